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


_PLANNERS: dict[str, type[PlannerConfig]] = {
    "cem": CemConfig,
    "mbrl_cem": MbrlCemConfig,
    "icem": IcemConfig,
    "mppi": MppiConfig,
    "random_shooting": RandomShootingConfig,
    "custom": CustomConfig,
}


@hookimpl
def mbrl_hdp_register_planners() -> Iterable[PluginSpec[PlannerConfig]]:
    """Register the built-in planners; the first line of a class's docstring is its summary."""
    for name, config in _PLANNERS.items():
        build = build_custom if config is CustomConfig else checked_planner
        yield PluginSpec(name, config, build, str(config.__doc__).partition("\n")[0].rstrip("."))
