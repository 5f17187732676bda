"""Settings of the planners, one class each; light to import, so that the command line can tell them.

`planner=icem planner.horizon=12` chooses one and changes a setting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.settings import setting

CONTEXT_MODES = ("paths", "feedback", "held", "belief")
_OURS = "mbrl_hdp.control.optimizers"
_STOCK = "mbrl.planning"


@dataclass
class PlannerConfig:
    """What all planners have in common."""

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


@dataclass
class CemConfig(PlannerConfig):
    """The paper's cross-entropy method with coloured noise (ours)."""

    population_size: int = setting(128, "candidate plans per iteration", at_least=2)
    num_elites: int = setting(8, "best candidates that the next mean and variance are made of", at_least=1)
    num_iterations: int = setting(4, "iterations per plan", at_least=1)
    update_rate: float = setting(0.9, "share of the elites in the next mean and variance", above=0.0, at_most=1.0)
    initial_std: float = setting(1.0, "first spread, in units of half the action range", above=0.0)
    min_std: float = setting(0.02, "smallest spread, in the same units", at_least=0.0)
    noise_color: float = setting(
        0.8, "AR(1) coefficient of the noise along a plan; 0 is white", at_least=0.0, below=1.0
    )
    return_mean: bool = setting(True, "act by the final mean; otherwise by the best candidate seen")


@dataclass
class MbrlCemConfig(PlannerConfig):
    """mbrl-lib's CEMOptimizer, unchanged."""

    population_size: int = setting(128, "candidate plans per iteration", at_least=2)
    elite_ratio: float = setting(0.0625, "share of the candidates that are elites", above=0.0, at_most=1.0)
    num_iterations: int = setting(4, "iterations per plan", at_least=1)
    alpha: float = setting(0.1, "share of the old mean and dispersion in the new ones", at_least=0.0, below=1.0)
    return_mean_elites: bool = setting(True, "act by the final mean; otherwise by the best candidate seen")
    clipped_normal: bool = setting(True, "clip a normal to the bounds; otherwise a truncated normal")


@dataclass
class IcemConfig(PlannerConfig):
    """mbrl-lib's ICEMOptimizer, unchanged."""

    population_size: int = setting(128, "candidate plans of the first iteration", at_least=2)
    elite_ratio: float = setting(0.0625, "share of the candidates that are elites", above=0.0, at_most=1.0)
    num_iterations: int = setting(4, "iterations per plan", at_least=1)
    population_decay_factor: float = setting(1.25, "the population shrinks by this factor per iteration", at_least=1.0)
    colored_noise_exponent: float = setting(2.0, "exponent of the noise's power law along a plan", at_least=0.0)
    keep_elite_frac: float = setting(0.3, "share of the elites that are candidates again", at_least=0.0, at_most=1.0)
    alpha: float = setting(0.1, "share of the old mean and variance in the new ones", at_least=0.0, below=1.0)
    return_mean_elites: bool = setting(True, "act by the final mean; otherwise by the best candidate seen")


@dataclass
class MppiConfig(PlannerConfig):
    """mbrl-lib's MPPIOptimizer, unchanged."""

    population_size: int = setting(128, "candidate plans per iteration", at_least=2)
    num_iterations: int = setting(4, "iterations per plan", at_least=1)
    gamma: float = setting(5.0, "sharpness of the weights exp(gamma * return)", above=0.0)
    sigma: float = setting(1.0, "spread of the noise", above=0.0)
    beta: float = setting(0.6, "share of the new noise in a step; the rest is the step before", above=0.0, at_most=1.0)


@dataclass
class RandomShootingConfig(PlannerConfig):
    """The best of many random plans."""

    population_size: int = setting(512, "candidate plans", at_least=1)
    noise_color: float = setting(0.0, "AR(1) coefficient along a plan; 0 is uniform noise", at_least=0.0, below=1.0)


@dataclass
class CustomConfig(PlannerConfig):
    """A user's own optimiser: a class with mbrl-lib's interface.

    Its constructor gets `kwargs`, `lower_bound` and `upper_bound` (lists, `H A`) and `device`.
    """

    optimizer: str = setting(f"{_STOCK}.CEMOptimizer", "import path of the class, package.module.Class")
    kwargs: dict[str, Any] = field(default_factory=dict, metadata={"help": "keyword arguments of its constructor"})


PLANNERS: dict[str, type[PlannerConfig]] = {
    "cem": CemConfig,
    "mbrl_cem": MbrlCemConfig,
    "icem": IcemConfig,
    "mppi": MppiConfig,
    "random_shooting": RandomShootingConfig,
    "custom": CustomConfig,
}

_TARGETS: dict[type[PlannerConfig], str] = {
    CemConfig: f"{_OURS}.ColoredCemOptimizer",
    MbrlCemConfig: f"{_STOCK}.CEMOptimizer",
    IcemConfig: f"{_STOCK}.ICEMOptimizer",
    MppiConfig: f"{_STOCK}.MPPIOptimizer",
    RandomShootingConfig: f"{_OURS}.RandomShootingOptimizer",
}


def optimizer_config(config: PlannerConfig) -> dict[str, Any]:
    """Return the optimiser's import path and keyword arguments in mbrl-lib's form; mbrl-lib adds the bounds.

    Raises:
        ConfigError: if it is no planner's config.
    """
    if isinstance(config, CustomConfig):
        return {"_target_": config.optimizer, "device": "cpu", **config.kwargs}
    base = next((kind for kind in _TARGETS if isinstance(config, kind)), None)
    if base is None:
        raise ConfigError(f"{type(config).__name__} is no planner's config; known: {', '.join(PLANNERS)}")
    own = set(base.__dataclass_fields__) - set(PlannerConfig.__dataclass_fields__)
    return {"_target_": _TARGETS[base], "device": "cpu", **{name: getattr(config, name) for name in sorted(own)}}
