"""Turn Hydra's and OmegaConf's errors into one line that names the key and the nearest valid names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mbrl_hdp.errors import ConfigError, did_you_mean, short

_MAX_CHARACTERS = 20_000
Compose = Callable[[list[str]], DictConfig]


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse command-line overrides.

    Raises:
        ConfigError: naming the word that is no override.
    """
    parser = OverridesParser.create()
    parsed = []
    for line in overrides:
        if len(line) > _MAX_CHARACTERS:
            raise ConfigError(f"{short(line)!r} is longer than any override; at most {_MAX_CHARACTERS:,} are read")
        try:
            parsed.append(parser.parse_override(line))
            if not parsed[-1].key_or_group:
                raise HydraException("no key")
        except (HydraException, RecursionError) as error:
            words = f"{short(line)!r} is not an override; write key=value, as in seed=3 or prior=hdp"
            raise ConfigError(words) from error
    return parsed


def explain(error: Exception, overrides: Sequence[str], compose: Compose) -> str:
    """Return which override is wrong and what would be right; `compose` is asked for the same lines more than once."""
    groups = _groups(compose)
    base = _base_config(overrides, groups, compose)
    parsed = parse_overrides(overrides)
    # A wrong name first: with it, the right overrides beside it do not compose either.
    for override in parsed:
        message = _explain_group(override, groups) or _explain_key(override, groups, base)
        if message:
            return message
    for override in parsed:
        if len(parsed) == 1 or not _composes(override, groups, overrides, compose):
            return f"{override.input_line}: {_first_lines(error)}"
    return _first_lines(error)


def _groups(compose: Compose) -> dict[str, list[str]]:
    """Return the groups that this configuration knows (`fit` has no `env`) with their options.

    Presets (`experiment`) write into the whole configuration, so they are no key of it.
    """
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    found = loader.repository  # the loader's own methods copy all of it for every question
    names = found.get_group_options("", ObjectType.GROUP)
    groups = {name: found.get_group_options(name, ObjectType.CONFIG) for name in names if not name.startswith("hydra")}
    try:
        defaults = compose([])
    except (HydraException, OmegaConfBaseException):
        return groups
    known = {*defaults, *(("experiment",) if "env" in defaults else ())}
    groups = {name: options for name, options in groups.items() if name in known}
    for name in list(groups):
        for inner in found.get_group_options(name, ObjectType.GROUP):
            options = found.get_group_options(f"{name}/{inner}", ObjectType.CONFIG)
            if OmegaConf.select(defaults, f"{name}.{inner}") is not None:
                groups[f"{name}/{inner}"] = options  # a key of its own, as in env/budgets=drone
            else:
                groups[name] += [f"{inner}/{option}" for option in options]  # as in experiment=paper/NAME
    return groups


def _explain_group(override: Override, groups: dict[str, list[str]]) -> str | None:
    key = override.key_or_group.partition("@")[0]
    if key not in groups or override.is_delete():
        return None
    for value in _values(override):
        if value not in groups[key]:
            return f"{key}={value}: unknown option {value!r} of group {key!r}; {did_you_mean(value, groups[key])}"
    return None


def _explain_key(override: Override, groups: dict[str, list[str]], base: DictConfig | None) -> str | None:
    key = override.key_or_group
    if base is None or key in groups or override.is_add() or override.is_force_add() or "@" in key:
        return None
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(base, parent) if parent else base
    if not isinstance(node, DictConfig):
        siblings = sorted({*_keys(base), *groups})
        return f"unknown key {key!r}: there is no {parent!r}; {did_you_mean(parent, siblings)}"
    if leaf in set(map(str, node)):  # `in node` would leave out mandatory keys that have no value yet
        return None
    if OmegaConf.get_type(node) is dict:
        return f"{parent!r} has no {leaf!r} yet; a new key needs a plus: +{override.input_line}"
    siblings = [f"{parent}.{name!s}" if parent else str(name) for name in node]
    siblings += [] if parent else list(groups)
    return f"unknown key {key!r}; {did_you_mean(key, siblings)}"


def _values(override: Override) -> list[str]:
    if override.is_discrete_sweep():
        return list(override.sweep_string_iterator())
    value = override.value()
    items = value if isinstance(value, list) else [value]
    return [f"{item!s}" for item in items]


def _keys(config: DictConfig) -> list[str]:
    return [str(key) for key in config]


def _base_config(overrides: Sequence[str], groups: dict[str, list[str]], compose: Compose) -> DictConfig | None:
    """Compose with the valid group choices only, to see which keys exist then."""
    lines = [
        override.input_line or ""
        for override in parse_overrides(overrides)
        if override.key_or_group in groups and _explain_group(override, groups) is None
    ]
    try:
        return compose(lines)
    except (HydraException, OmegaConfBaseException):
        return None


def _composes(override: Override, groups: dict[str, list[str]], overrides: Sequence[str], compose: Compose) -> bool:
    """Try one override on its own, on top of the group choices."""
    lines = [o.input_line or "" for o in parse_overrides(overrides) if o.key_or_group in groups]
    try:
        compose(lines if override.key_or_group in groups else [*lines, override.input_line or ""])
    except (HydraException, OmegaConfBaseException):
        return False
    return True


def _first_lines(error: Exception) -> str:
    """Return the innermost message without OmegaConf's trailing bookkeeping."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    lines = [line.strip() for line in str(cause).splitlines()]
    return "; ".join(
        line for line in lines if line and not line.startswith(("full_key", "object_type", "reference_type"))
    )
