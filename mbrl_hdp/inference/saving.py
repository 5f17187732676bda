"""Models on disk: one safetensors file with the numbers and, in its header, everything else as JSON.

One file, written atomically, so that numbers and words always belong together; reading it runs no code. `model.json`
beside it is a copy of the words for people. The full posterior is saved, so that a loaded model can be warm-started.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.manifest import MANIFEST
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.tensor_files import read_tensors, write_tensors
from mbrl_hdp.errors import CheckpointError, PluginError, did_you_mean
from mbrl_hdp.hooks import Registry, load_registry
from mbrl_hdp.inference.alarm import NoveltyCalibration
from mbrl_hdp.inference.devices import check_device, has_small_networks, resolve_device
from mbrl_hdp.inference.model import ContextModel, FitReport, ModelParts, Part
from mbrl_hdp.types import PhaseChain, TaskSpec

SCHEMA_VERSION = 2
_NUMBERS, _WORDS = "model.safetensors", "model.json"
_LEVELS, _PHASES = "levels.", "phases."
_KINDS = ("prior", "dynamics", "distillation")
_DURATION = "duration"  # models of earlier versions have none
_PHASE_PARTS = ("initial", "stay", "advance", "leave", "moves")


def save_model(model: ContextModel, folder: Path) -> None:
    """Write a model to a folder, which is made if it is not there; an interrupted write leaves the old files whole."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)  # it would belong to the model that is replaced
    words = {
        "schema_version": SCHEMA_VERSION,
        "task": dataclasses.asdict(model.task),
        "parts": {
            kind: {"name": part.name, "config": _plain(part.config), "package": _package(part.config)}
            for kind, part in ((kind, getattr(model.parts, kind)) for kind in (*_KINDS, _DURATION))
            if part is not None
        },
        "report": dataclasses.asdict(model.report),
        "is_settled": model.is_settled,
        "names": None if model.names is None else model.names.words(),
        **({} if model.phases is None else {"phases": list(model.phases.sizes)}),
        "novelty": None if model.novelty is None else model.novelty.words(),
    }
    level_heads = {_LEVELS + name: value for name, value in model.level_heads.items()}
    write_tensors(folder / _NUMBERS, model.state_dict() | level_heads | _phase_tensors(model.phases), words)
    with atomic_path(folder / _WORDS) as path:
        path.write_text(json.dumps(words, indent=2))


def load(folder: str | Path, registry: Registry | None = None, device: str = "cpu") -> ContextModel:
    """Build a model from a folder that `model.save` wrote (`mbrl_hdp.load`).

    Args:
        folder: where it was saved.
        registry: plugins to choose from; all installed ones by default.
        device: where its tensors go: cpu, cuda, or auto (cuda only if there is one and the networks are not small).
            Agents and planners want a model on the CPU.

    Raises:
        CheckpointError: if a file is missing, damaged or of another version, or a plugin is not installed.
        ConfigError: if the device does not exist here.
    """
    from mbrl_hdp.inference.fit import build_model

    check_device(device)
    folder = Path(folder)
    words, tensors = _read(folder / _NUMBERS)
    registry = registry or load_registry()
    try:
        task = TaskSpec(**words["task"])
        kinds = (*_KINDS, *([_DURATION] if _DURATION in words["parts"] else []))
        parts = ModelParts(**{kind: _part(kind, words["parts"][kind], registry) for kind in kinds})
        report = FitReport(**words["report"])
        names = Names.from_words(words["names"]) if words.get("names") else None  # earlier versions have none
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / _NUMBERS} is damaged: {error}; save the model again") from error
    model = build_model(parts, task, registry)
    _fill(model, words, tensors, folder / _NUMBERS)
    model.report, model.names = report, names
    return model.to(resolve_device(device, lambda: has_small_networks(model.dynamics)))


def load_parameters(model: ContextModel, folder: Path) -> None:
    """Fill a model of the same parts and sizes with the numbers in a folder.

    Raises:
        CheckpointError: if the file is missing or damaged, or belongs to a model of other sizes.
    """
    _fill(model, *_read(folder / _NUMBERS), folder / _NUMBERS)


def _fill(model: ContextModel, words: Mapping[str, Any], tensors: dict[str, torch.Tensor], path: Path) -> None:
    own = {name: value for name, value in tensors.items() if not name.startswith((_LEVELS, _PHASES))}
    model.level_heads = {name.removeprefix(_LEVELS): tensors[name] for name in tensors if name.startswith(_LEVELS)}
    try:
        model.load_state_dict(own)
    except RuntimeError as error:
        raise CheckpointError(f"{path} belongs to another model: {' '.join(str(error).split())}") from error
    model.is_settled = bool(words.get("is_settled", False))
    model.phases = None
    model.extract()
    model.use_phases(_read_phases(words, tensors, model.num_contexts, path))
    novelty = words.get("novelty")  # models of earlier versions have none
    model.novelty = None if novelty is None else _calibration(novelty, path)


def _calibration(words: dict[str, Any], path: Path) -> NoveltyCalibration:
    try:
        return NoveltyCalibration.from_words(words)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}; save the model again") from error


def _phase_tensors(phases: PhaseChain | None) -> dict[str, torch.Tensor]:
    return {} if phases is None else {_PHASES + name: getattr(phases, name).contiguous() for name in _PHASE_PARTS}


def _read_phases(
    words: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], num_contexts: int, path: Path
) -> PhaseChain | None:
    """Return how long contexts last, None where the model has no phases."""
    if "phases" not in words:
        return None
    sizes = tuple(int(size) for size in words["phases"])
    try:
        phases = PhaseChain.of((tensors[_PHASES + name] for name in _PHASE_PARTS), sizes)
    except KeyError as error:
        raise CheckpointError(f"{path} is damaged: {error} is missing; save the model again") from error
    states = {tuple(getattr(phases, name).shape) for name in _PHASE_PARTS[:-1]}
    if len(sizes) != num_contexts or min(sizes) < 1 or states != {(sum(sizes),)} or len(phases.moves) != num_contexts:
        raise CheckpointError(f"{path} is damaged: its phases do not belong to {num_contexts} contexts")
    return phases


def _read(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Read words and numbers; refuse what is missing, damaged or of another version."""
    if not path.is_file():
        raise CheckpointError(
            f"no model in {path.parent}: there is no {path.name}; give the folder that `mbrl-hdp fit ... out=DIR` or "
            "model.save(DIR) wrote"
        )
    tensors, words = read_tensors(path)
    version = words.get("schema_version")
    if version != SCHEMA_VERSION:
        raise CheckpointError(
            f"{path} has schema_version {version!r}, this program reads {SCHEMA_VERSION}: "
            "use the version of mbrl_hdp that wrote it, or fit the model again"
        )
    return words, tensors


def _part(kind: str, words: dict[str, Any], registry: Registry) -> Part:
    try:
        plugin = registry.get(kind, words["name"])
    except PluginError as error:
        package = words.get("package")
        if not package:
            raise
        raise PluginError(
            f"this model needs {kind} {words['name']!r} of the package {package}, which is not installed or disabled; "
            f"install it, as in `pip install {package}`"
        ) from error
    known = {field.name for field in dataclasses.fields(plugin.spec.config)}
    for key in words["config"]:
        if key not in known:
            raise CheckpointError(f"{kind} {words['name']!r} has no setting {key!r}; {did_you_mean(key, known)}")
    return Part(words["name"], _settings(plugin.spec.config, words["config"]))


def _settings(kind: type[Any], words: Mapping[str, Any]) -> Any:
    """Return a plugin's settings from plain words, settings within settings as well."""
    standard = kind()
    values = dict(words)
    for key, value in words.items():
        own = getattr(standard, key)
        if dataclasses.is_dataclass(own) and isinstance(value, Mapping):
            values[key] = _settings(type(own), value)
    return kind(**values)


def _package(config: Any) -> str | None:
    """Return the distribution (else the module) that a plugin's settings come from."""
    homes = (base.__module__.partition(".")[0] for base in type(config).__mro__)
    home = next((home for home in homes if home not in sys.stdlib_module_names), None)
    return None if home is None else _distributions().get(home, [home])[0]


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _plain(config: Any) -> dict[str, Any]:
    """Return a plugin's settings as plain words; the option name that Hydra adds is left out."""
    return {key: value for key, value in dataclasses.asdict(config).items() if key != "name"}
