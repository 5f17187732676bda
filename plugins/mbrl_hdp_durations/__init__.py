"""Built-in durations of contexts: `geometric`, `minimum`, `negative_binomial`, and `auto`, which compares them."""

from __future__ import annotations

from collections.abc import Iterable

from mbrl_hdp.hooks import PluginSpec, hookimpl
from mbrl_hdp.inference.duration import ContextDuration
from mbrl_hdp_durations.auto import AutoDurationConfig, build_auto
from mbrl_hdp_durations.families import (
    Geometric,
    GeometricConfig,
    Minimum,
    MinimumConfig,
    NegativeBinomial,
    NegativeBinomialConfig,
    build_geometric,
    build_minimum,
    build_negative_binomial,
)

__all__ = [
    "AutoDurationConfig",
    "Geometric",
    "GeometricConfig",
    "Minimum",
    "MinimumConfig",
    "NegativeBinomial",
    "NegativeBinomialConfig",
    "mbrl_hdp_register_durations",
]


@hookimpl
def mbrl_hdp_register_durations() -> Iterable[PluginSpec[ContextDuration]]:
    """Register the built-in durations."""
    return [
        PluginSpec("geometric", GeometricConfig, build_geometric, "left with the same probability in every step"),
        PluginSpec("minimum", MinimumConfig, build_minimum, "a minimum number of steps, then geometric"),
        PluginSpec(
            "negative_binomial", NegativeBinomialConfig, build_negative_binomial, "phases of equal mean, in a row"
        ),
        PluginSpec("auto", AutoDurationConfig, build_auto, "what predicts held-out episodes best; else geometric"),
    ]
