"""A run directory as plain data: nothing in it is executed, what it names is imported only with trust.

Somebody may have sent it to you. Its config.yaml holds values, never interpolations or things to call; the plugins it
names are installed ones; links that leave it are refused; modules are never looked for inside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mbrl_hdp.data.plain_files import check_plain_yaml, read_words
from mbrl_hdp.errors import CheckpointError, ConfigError

CONFIG = "config.yaml"
LEARNED = "learned"
# What `planner=custom` may name without trust. Whole paths: `mbrl.planning.trajectory_opt.np` leads anywhere.
_KNOWN_OPTIMIZERS = {
    *(f"mbrl.planning.{name}" for name in ("CEMOptimizer", "ICEMOptimizer", "MPPIOptimizer")),
    *(f"mbrl_hdp.control.optimizers.{name}" for name in ("ColoredCemOptimizer", "RandomShootingOptimizer")),
}


def check_can_hold(key: str, folder: Path) -> None:
    """Raise if a folder, which need not exist yet, cannot be written to; `key` is the setting that names it.

    Raises:
        ConfigError: naming the setting.
    """
    nearest = folder.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir():
        raise ConfigError(f"{key}={folder}: {nearest} is a file; choose a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}={folder}: cannot write to {nearest}")


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration of a run as plain data.

    Raises:
        CheckpointError: if there is none, it is damaged, or it holds more than plain values.
    """
    path = folder / CONFIG
    if not folder.is_dir():
        raise CheckpointError(f"{folder or 'resume='} is no run directory: there is no such folder")
    if not path.is_file():
        raise CheckpointError(
            f"{folder} is no run directory: there is no {CONFIG} in it (a run that was ended before it wrote one has "
            "done nothing yet: start it again with its own command)"
        )
    check_links(folder)
    text = read_words(path)
    check_plain_yaml(text, str(path))
    try:
        words = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (OmegaConfBaseException, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(words, dict) or not isinstance(words.get("env"), dict):
        raise CheckpointError(f"{path} is not the configuration of a run: it has no env")
    for key, value in leaves(words):
        if isinstance(value, str) and "${" in value:
            raise CheckpointError(f"{path}: {key} holds an interpolation ({value[:60]!r}); a run's settings are values")
        if any(part.startswith("_") and part.endswith("_") for part in key.split(".")):
            raise CheckpointError(f"{path}: {key} would call code; a run's settings are values")
    return {str(key): value for key, value in words.items()}


def leaves(words: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return every value with its dotted key; empty containers count as values."""
    items = words.items() if isinstance(words, Mapping) else enumerate(words) if isinstance(words, list) else ()
    is_leaf = True
    for key, value in items:
        is_leaf = False
        yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    if is_leaf:
        yield prefix, words


def check_links(folder: Path) -> None:
    """Raise if a link leads out of a run directory: writing to it would write somewhere else.

    Raises:
        CheckpointError: naming the link.
    """
    inside = folder.resolve()
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place) / name
            if path.is_symlink() and inside not in path.resolve().parents:
                raise CheckpointError(
                    f"{path} is a link that leaves the run directory; replace it by what it points to"
                )


def check_trust(words: Mapping[str, Any], folder: Path, is_trusted: bool) -> None:
    """Raise if a run would import foreign code and is not trusted; never import from the run directory.

    Raises:
        ConfigError: naming every module that would be imported and the setting that asks for it.
    """
    if needs_trust(words) and not is_trusted:
        named = ", ".join(f"{module} ({key})" for key, module in _imports(words))
        raise ConfigError(
            f"{folder} would import code: {named}; add --trust (in Python: is_trusted=True) if you know what these "
            "modules do (they are looked for among installed packages, on PYTHONPATH and in the current directory, "
            "never in the run directory)"
        )
    from mbrl_hdp.experiments.user_code import close_folder

    close_folder(folder)


def needs_trust(words: Mapping[str, Any]) -> bool:
    """Return whether a configuration names modules that are not ours."""
    return any(True for _ in _imports(words))


def first_difference(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> str | None:
    """Return the first setting in which two configurations differ, in words; None where they do not."""
    one, two = dict(leaves(wanted)), dict(leaves(there))
    for key in [*one, *(key for key in two if key not in one)]:
        if one.get(key) != two.get(key):
            return f"its {key} is {two.get(key)}, not {one.get(key)}"
    return None


def _imports(words: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return the settings that name modules, and the modules."""
    env, planner = words.get("env") or {}, words.get("planner") or {}
    if ":" in str(env.get("id", "")):
        yield "env.id", str(env["id"]).partition(":")[0]
    for key in ("reward", "termination"):
        if env.get(key) not in {None, LEARNED}:
            yield f"env.{key}", str(env[key]).partition(":")[0]
    optimizer = str(planner.get("optimizer", ""))
    if optimizer and optimizer not in _KNOWN_OPTIMIZERS:
        yield "planner.optimizer", optimizer.rpartition(".")[0]
