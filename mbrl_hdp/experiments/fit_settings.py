"""The settings `fit.*` of `mbrl-hdp train`, and the settings of the fits of a run.

One rule: `budget.*` decides how many steps and how large a batch, `recipe` which recipe, `fit.*` all the rest.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.recipes import RECIPES
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.runtime import MAX_THREADS
from mbrl_hdp.settings import setting
from mbrl_hdp.workers import LOCAL, PLACES

if TYPE_CHECKING:
    from mbrl_hdp.experiments.budget import Budget
    from mbrl_hdp.experiments.config import MainConfig

# Keys of `fit.*` that something else decides in `train`, and what.
_DECIDED_ELSEWHERE = {
    "recipe": "recipe",
    "num_steps": "budget.warm_model_steps (first fit) or budget.model_steps (refits)",
    "batch_size": "budget.model_batch",
}


@dataclass
class UpdateConfig:
    """Settings of `mbrl-hdp fit` about a model that exists already and about the novelty alarm."""

    update: str | None = setting(
        None,
        "folder of a model to widen by this data: it keeps its contexts, transition model and max_contexts, and is "
        "learned on its old data and this together (docs/novelty.md)",
    )
    alarm_holdout: float = setting(
        0.0,
        "share of the data kept from all learning to calibrate the novelty alarm, .2 say; 0: no alarm",
        at_least=0.0,
        below=1.0,
    )


@dataclass
class WorkersConfig:
    """Settings of `mbrl-hdp fit` about processes that share the work; the model is the same with any of them."""

    workers: str = setting(
        LOCAL,
        "where candidates and halves are learned side by side: local (jobs= processes of this machine) or ray (the "
        "cluster that RAY_ADDRESS names or `ray start` began here, else a new one; docs/cluster.md)",
        choices=PLACES,
    )
    jobs: int = setting(1, "processes side by side, with workers=local", at_least=1, at_most=MAX_THREADS)


@dataclass
class TrainFitConfig(FitConfig):
    """The settings `fit.*` of `train`: those of `mbrl-hdp fit`, except for what `budget.*` and `recipe` decide.

    Null stands for a value that is decided elsewhere; three of those keys would have no effect and are refused.
    """

    recipe: str | None = setting(None, "set recipe instead")  # type: ignore[assignment]
    num_steps: int | None = setting(None, "set budget.warm_model_steps, budget.model_steps")  # type: ignore[assignment]
    batch_size: int | None = setting(None, "set budget.model_batch instead")  # type: ignore[assignment]
    start: str | None = setting(  # type: ignore[assignment]
        None, "search or random; null: as in `fit`, random with profile=smoke", choices=("search", "random")
    )
    num_restarts: int | None = setting(  # type: ignore[assignment]
        None, "runs of the first fit; null: as in `fit`, 1 with profile=smoke", at_least=1
    )
    polish_steps: int | None = setting(  # type: ignore[assignment]
        None, "further steps of the first fit's chosen run; null: as in `fit`, 0 with profile=smoke", at_least=0
    )
    halves_within_s: float = setting(0.0, "as in `fit`; 0: never, since a run has no verdict", at_least=0.0)


def check_fit(config: MainConfig) -> None:
    """Raise if a key of `fit.*` has no effect in `train`, or no place in its recipe."""
    for key, instead in _DECIDED_ELSEWHERE.items():
        if getattr(config.fit, key) is not None:
            raise ConfigError(f"fit.{key} has no effect in `train`; set {instead} instead")
    RECIPES[config.recipe].settle(_filled(config, {}))


def model_parts(config: MainConfig) -> dict[str, Any]:
    """Return the parts of a run's model as `fit` takes them."""
    from mbrl_hdp.inference.model import Part

    parts = {
        "prior": config.prior,
        "dynamics": config.dynamics,
        "distillation": config.distillation,
        "duration": config.duration,
    }
    return {kind: Part(part.name, part) for kind, part in parts.items()}


def fit_config(config: MainConfig, budget: Budget, is_first: bool, is_alarmed: bool = False) -> FitConfig:
    """Return the settings of a run's first fit, or of a later refit.

    `budget` decides steps and batch size, `recipe` the recipe; the rest is `fit.*`. Only the first fit is polished. A
    refit after a novelty alarm searches for new contexts.
    """
    steps = budget.warm_model_steps if is_first else budget.model_steps
    decided: dict[str, Any] = {"num_steps": steps, "batch_size": budget.model_batch}
    if is_alarmed:
        decided["search_again"] = "always"
    return _filled(config, decided if is_first else decided | {"polish_steps": 0})


def _filled(config: MainConfig, decided: dict[str, Any]) -> FitConfig:
    """Return `fit.*` with nothing left open: what is decided, then what the user set, then the defaults of `fit`."""
    standard = FitConfig(recipe=config.recipe)
    if config.profile == "smoke":
        standard.start, standard.num_restarts, standard.polish_steps = "random", 1, 0
    given = {f.name: getattr(config.fit, f.name) for f in dataclasses.fields(FitConfig)}
    given = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(standard, **given | decided)
