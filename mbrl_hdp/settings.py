"""Typed settings: how a config dataclass documents its fields and their ranges where they are declared.

    @dataclass
    class HdpConfig:
        row_concentration: float = setting(100.0, "pull of every row towards the shared weights", above=0.0)

`check_settings` refuses an out-of-range value with its full key before any work begins.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from mbrl_hdp.errors import ConfigError, did_you_mean

LARGEST = 10_000_000
"""Largest whole number of a setting that declares no `at_most` of its own: more is a slip, and takes for ever."""
_RULES = ("at_least", "above", "at_most", "below", "choices")


def setting(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """Declare a dataclass field with its help text and its range.

    Args:
        default: default value; lists and dicts are copied for every instance.
        help: what the setting does, one line.
        at_least: smallest allowed value.
        above: the value must be larger than this.
        at_most: largest allowed value.
        below: the value must be smaller than this.
        choices: allowed words.
    """
    rules = dict(zip(_RULES, (at_least, above, at_most, below, choices), strict=True))
    metadata = {"help": help, **{name: rule for name, rule in rules.items() if rule is not None}}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def choice(options: tuple[str, ...], help: str) -> Any:
    """Declare a dataclass field that holds one of some words; the first one is its default."""
    return setting(options[0], help, choices=options)


def check_settings(config: Any, prefix: str = "") -> None:
    """Check every field of a config dataclass instance (nested ones too) against its declared range.

    Raises:
        ConfigError: naming the full key, the value and the range.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        key = f"{prefix}.{field.name}" if prefix else field.name
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            check_settings(value, key)
        else:
            _check_value(key, value, field.metadata)


def _check_value(key: str, value: Any, rules: Any) -> None:
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_value(f"{key}[{index}]", item, rules)
        return
    if isinstance(value, str):
        if "choices" in rules and value not in rules["choices"]:
            raise ConfigError(f"{key}={value!r} is not allowed; {did_you_mean(value, rules['choices'])}")
        return
    if value is None or not isinstance(value, int | float):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key} must be a finite number, got {value}")
    if isinstance(value, int) and "at_most" not in rules and value > LARGEST:
        raise ConfigError(f"{key} must be at most {LARGEST}, got {value}")
    broken = (
        ("at_least", value < rules.get("at_least", -math.inf), "at least"),
        ("above", value <= rules.get("above", -math.inf), "above"),
        ("at_most", value > rules.get("at_most", math.inf), "at most"),
        ("below", value >= rules.get("below", math.inf), "below"),
    )
    for rule, is_broken, words in broken:
        if rule in rules and is_broken:
            raise ConfigError(f"{key} must be {words} {rules[rule]:g}, got {value:g}")
