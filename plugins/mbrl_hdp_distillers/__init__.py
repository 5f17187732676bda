"""Built-in distillation rules: `stationary` and `beta`."""

from __future__ import annotations

from collections.abc import Iterable

from mbrl_hdp.distil.distiller import Distiller
from mbrl_hdp.hooks import PluginSpec, hookimpl
from mbrl_hdp_distillers.rules import BetaRule, StationaryRule, ThresholdConfig, build_beta, build_stationary

__all__ = ["BetaRule", "StationaryRule", "ThresholdConfig", "mbrl_hdp_register_distillers"]


@hookimpl
def mbrl_hdp_register_distillers() -> Iterable[PluginSpec[Distiller]]:
    """Register the built-in rules."""
    return [
        PluginSpec("stationary", ThresholdConfig, build_stationary, "keep contexts by their long-run share of time"),
        PluginSpec("beta", ThresholdConfig, build_beta, "keep contexts by the HDP's shared weights"),
    ]
