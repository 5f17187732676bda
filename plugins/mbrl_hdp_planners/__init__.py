"""Built-in planners: `cem`, `mbrl_cem`, `icem`, `mppi`, `random_shooting`, `custom`."""

from __future__ import annotations

from collections.abc import Iterable

from mbrl_hdp.control.planner_config import PlannerConfig, checked_planner
from mbrl_hdp.hooks import PluginSpec, hookimpl
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_planners.settings import (
    CemConfig,
    CustomConfig,
    IcemConfig,
    MbrlCemConfig,
    MppiConfig,
    RandomShootingConfig,
)

__all__ = [
    "CemConfig",
    "CustomConfig",
    "IcemConfig",
    "MbrlCemConfig",
    "MppiConfig",
    "RandomShootingConfig",
    "mbrl_hdp_register_planners",
]


def build_custom(config: CustomConfig, task: TaskSpec) -> PlannerConfig:
    """Check the settings; the class may also be in the current directory."""
    from mbrl_hdp.experiments.user_code import search_here

    search_here()
    return checked_planner(config, task)


@hookimpl
def mbrl_hdp_register_planners() -> Iterable[PluginSpec[PlannerConfig]]:
    """Register the built-in planners."""
    return [
        PluginSpec("cem", CemConfig, checked_planner, "the paper's cross-entropy method with coloured noise"),
        PluginSpec("mbrl_cem", MbrlCemConfig, checked_planner, "mbrl-lib's CEMOptimizer, unchanged"),
        PluginSpec("icem", IcemConfig, checked_planner, "mbrl-lib's ICEMOptimizer, unchanged"),
        PluginSpec("mppi", MppiConfig, checked_planner, "mbrl-lib's MPPIOptimizer, unchanged"),
        PluginSpec("random_shooting", RandomShootingConfig, checked_planner, "the best of many random plans"),
        PluginSpec("custom", CustomConfig, build_custom, "an optimiser class of your own, by its import path"),
    ]
