"""What all planners have in common: their settings name the optimiser. Light to import, for the command line.

A planner of a plugin is a dataclass that derives from `PlannerConfig`, with a class variable `target` and the
optimiser's keyword arguments as further fields; `planner=name planner.horizon=12` selects it and changes a setting.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.settings import check_settings, choice, setting
from mbrl_hdp.types import TaskSpec

CONTEXT_MODES = ("paths", "feedback", "held", "belief")


@dataclass
class PlannerConfig:
    """Settings that all planners have in common.

    Attributes:
        target: import path of the optimiser, a class with mbrl-lib's interface. Its constructor gets the fields that
            the subclass adds, `lower_bound` and `upper_bound` (lists, `H A`) and `device`.
    """

    target: ClassVar[str] = ""

    horizon: int = setting(10, "steps that a plan looks ahead", at_least=1)
    num_particles: int = setting(6, "context paths that every candidate plan is scored on", at_least=1)
    context_mode: str = setting(
        "paths",
        "contexts within a plan: paths draws them from belief and chain; feedback does too, and plans one action for "
        "each context that may be known by then; held holds the most likely one; belief draws them from a belief that "
        "every imagined step updates by Bayes' rule",
        choices=CONTEXT_MODES,
    )
    has_noise: bool = setting(False, "draw transitions with their noise; otherwise plan with expectations")
    replan_freq: int = setting(1, "actions taken from a plan before the next one is made", at_least=1)
    keep_last_solution: bool = setting(True, "start the next plan from the last one, shifted")
    tune: str = choice(
        ("auto", "never"),
        "auto: after the first fit choose horizon, context mode, noise and population on the learned model, for each "
        "of them that is at its default; never: take the settings as they are",
    )
    tune_seconds: float = setting(120.0, "processor seconds that the choice may take, estimated", above=0.0)

    def optimizer_settings(self) -> dict[str, Any]:
        """Return the optimiser's import path and keyword arguments in mbrl-lib's form; mbrl-lib adds the bounds."""
        shared = {field.name for field in dataclasses.fields(PlannerConfig)} | {"name"}
        own = sorted(field.name for field in dataclasses.fields(self) if field.name not in shared)
        return {"_target_": self.target, "device": "cpu", **{name: getattr(self, name) for name in own}}

    def check(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: naming the key.
        """
        check_settings(self, "planner")
        if self.replan_freq > self.horizon:
            raise ConfigError(f"planner.replan_freq={self.replan_freq} exceeds planner.horizon={self.horizon}")
        if not self.optimizer_settings()["_target_"]:
            raise ConfigError(f"{type(self).__name__} names no optimiser; set its class variable `target`")


_Planner = TypeVar("_Planner", bound=PlannerConfig)


def checked_planner(config: _Planner, task: TaskSpec) -> _Planner:  # noqa: ARG001 - the shape of `PluginSpec.build`
    """Check the settings and return them: `build` of a planner's `PluginSpec`."""
    config.check()
    return config
