"""Settings of the built-in planners, one class each."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mbrl_hdp.control.planner_config import PlannerConfig
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.settings import setting

_OURS = "mbrl_hdp.control.optimizers"
_STOCK = "mbrl.planning"


@dataclass
class SampledConfig(PlannerConfig):
    """What the planners take that draw candidate plans again and again."""

    population_size: int = setting(128, "candidate plans per iteration (of the first one in icem)", at_least=2)
    num_iterations: int = setting(4, "iterations per plan", at_least=1)


@dataclass
class CemConfig(SampledConfig):
    """The paper's cross-entropy method with coloured noise (ours)."""

    target: ClassVar[str] = f"{_OURS}.ColoredCemOptimizer"

    num_elites: int = setting(8, "best candidates that the next mean and variance are made of", at_least=1)
    update_rate: float = setting(0.9, "share of the elites in the next mean and variance", above=0.0, at_most=1.0)
    initial_std: float = setting(1.0, "first spread, in units of half the action range", above=0.0)
    min_std: float = setting(0.02, "smallest spread, in the same units", at_least=0.0)
    noise_color: float = setting(
        0.8, "AR(1) coefficient of the noise along a plan; 0 is white", at_least=0.0, below=1.0
    )
    return_mean: bool = setting(True, "act by the final mean; otherwise by the best candidate seen")


@dataclass
class EliteConfig(SampledConfig):
    """What both of mbrl-lib's cross-entropy methods take."""

    elite_ratio: float = setting(0.0625, "share of the candidates that are elites", above=0.0, at_most=1.0)
    alpha: float = setting(0.1, "share of the old mean and dispersion in the new ones", at_least=0.0, below=1.0)
    return_mean_elites: bool = setting(True, "act by the final mean; otherwise by the best candidate seen")


@dataclass
class MbrlCemConfig(EliteConfig):
    """mbrl-lib's CEMOptimizer, unchanged."""

    target: ClassVar[str] = f"{_STOCK}.CEMOptimizer"

    clipped_normal: bool = setting(True, "clip a normal to the bounds; otherwise a truncated normal")


@dataclass
class IcemConfig(EliteConfig):
    """mbrl-lib's ICEMOptimizer, unchanged."""

    target: ClassVar[str] = f"{_STOCK}.ICEMOptimizer"

    population_decay_factor: float = setting(1.25, "the population shrinks by this factor per iteration", at_least=1.0)
    colored_noise_exponent: float = setting(2.0, "exponent of the noise's power law along a plan", at_least=0.0)
    keep_elite_frac: float = setting(0.3, "share of the elites that are candidates again", at_least=0.0, at_most=1.0)


@dataclass
class MppiConfig(SampledConfig):
    """mbrl-lib's MPPIOptimizer, unchanged."""

    target: ClassVar[str] = f"{_STOCK}.MPPIOptimizer"

    gamma: float = setting(5.0, "sharpness of the weights exp(gamma * return)", above=0.0)
    sigma: float = setting(1.0, "spread of the noise", above=0.0)
    beta: float = setting(0.6, "share of the new noise in a step; the rest is the step before", above=0.0, at_most=1.0)


@dataclass
class RandomShootingConfig(PlannerConfig):
    """The best of many random plans."""

    target: ClassVar[str] = f"{_OURS}.RandomShootingOptimizer"

    population_size: int = setting(512, "candidate plans", at_least=1)
    noise_color: float = setting(0.0, "AR(1) coefficient along a plan; 0 is uniform noise", at_least=0.0, below=1.0)


@dataclass
class CustomConfig(PlannerConfig):
    """A user's own optimiser: a class with mbrl-lib's interface.

    Its constructor gets `kwargs`, `lower_bound` and `upper_bound` (lists, `H A`) and `device`.
    """

    optimizer: str = setting(f"{_STOCK}.CEMOptimizer", "import path of the class, package.module.Class")
    kwargs: dict[str, Any] = field(default_factory=dict, metadata={"help": "keyword arguments of its constructor"})

    def optimizer_settings(self) -> dict[str, Any]:
        """Return the import path and the keyword arguments."""
        return {"_target_": self.optimizer, "device": "cpu", **self.kwargs}

    def check(self) -> None:
        """Check the settings and that there is such a class.

        Raises:
            ConfigError: if it cannot be imported or is no optimiser.
        """
        if "." not in self.optimizer:
            raise ConfigError(f"planner.optimizer={self.optimizer!r} is no import path; write package.module.Class")
        super().check()
        module_name, _, name = self.optimizer.rpartition(".")
        where = f"planner.optimizer={self.optimizer!r}"
        try:
            found = getattr(importlib.import_module(module_name), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"{where} cannot be imported: {error}; write package.module.Class") from error
        if not callable(getattr(found, "optimize", None)):
            raise ConfigError(f"{where} has no method optimize(obj_fun, x0, callback) as mbrl-lib asks")
