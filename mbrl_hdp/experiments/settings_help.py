"""What `--help` and tab completion say about settings: every key with its default, help text, choices and range."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from mbrl_hdp.experiments.config import FIT_CONFIG_NAME, load_config, schema_of
from mbrl_hdp.hooks import KINDS, Registry, load_registry

_WIDTH = 110
_RANGE = (("at_least", "at least"), ("above", "above"), ("at_most", "at most"), ("below", "below"))


@dataclass(frozen=True)
class SettingLine:
    """One setting.

    Attributes:
        key: full key.
        default: its default, as typed.
        help: what it does, with choices and range.
        options: words that may be typed; empty where any value goes.
    """

    key: str
    default: str
    help: str
    options: tuple[str, ...] = ()


def settings_of(name: str, registry: Registry | None = None) -> list[SettingLine]:
    """Return the settings of `train` (main) or `fit`, groups with their options and the default option's settings."""
    registry = registry or load_registry()
    chosen = load_config([], registry, name)
    groups = {kind.group: kind.name for kind in KINDS}
    lines: list[SettingLine] = []
    for field in dataclasses.fields(schema_of(name)):
        if field.name in groups:
            lines += _group(field.name, registry, str((chosen.get(field.name) or {}).get("name", "")))
        else:
            lines += _lines(field, field.name)
    return lines


def help_text(name: str) -> str:
    """Return the settings as text for `--help`."""
    title = "Settings of the data, the model and the fit" if name == FIT_CONFIG_NAME else "Settings of a run"
    shown = [f"{title} (key=value; `--cfg job` prints all of them as they are set):", ""]
    for line in settings_of(name):
        shown.append(f"  {line.key}={line.default}")
        shown += textwrap.wrap(line.help, _WIDTH, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(shown)


def completions(name: str, word: str) -> list[str]:
    """Return what a half-typed word may become."""
    lines = settings_of(name)
    key, is_value, start = word.partition("=")
    if is_value:
        options = next((line.options for line in lines if line.key == key), ())
        return [f"{key}={option}" for option in options if option.startswith(start)]
    return [f"{line.key}=" for line in lines if line.key.startswith(word)]


def _group(group: str, registry: Registry, chosen: str) -> Iterator[SettingLine]:
    plugins = [plugin for kind in KINDS if kind.group == group for plugin in registry.all() if plugin.kind == kind.name]
    names = tuple(sorted(plugin.spec.name for plugin in plugins))
    words = "; ".join(f"{plugin.spec.name}: {plugin.spec.summary.strip()}" for plugin in plugins)
    yield SettingLine(group, chosen, words or "no plugin registers one", names)
    for plugin in plugins:
        if plugin.spec.name == chosen and dataclasses.is_dataclass(plugin.spec.config):
            for field in dataclasses.fields(plugin.spec.config):
                yield from _lines(field, f"{group}.{field.name}")


def _lines(field: dataclasses.Field[Any], key: str) -> Iterator[SettingLine]:
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        for inner in dataclasses.fields(default):
            yield from _lines(inner, f"{key}.{inner.name}")
        return
    if isinstance(default, list) and any(map(dataclasses.is_dataclass, default)):
        return  # nothing that is typed on a command line
    rules = field.metadata
    words = [str(rules.get("help", ""))]
    options = tuple(map(str, rules.get("choices", ()))) or (("true", "false") if isinstance(default, bool) else ())
    if "choices" in rules:
        words.append(f"({' | '.join(options)})")
    bounds = [f"{text} {rules[name]:g}" for name, text in _RANGE if name in rules]
    if bounds:
        words.append(f"({', '.join(bounds)})")
    yield SettingLine(key, _typed(default), " ".join(words), options)


def _typed(value: Any) -> str:
    if value is dataclasses.MISSING or value == MISSING:
        return "..."
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_typed, value))}]"
    return "{}" if isinstance(value, dict) and not value else str(value)
