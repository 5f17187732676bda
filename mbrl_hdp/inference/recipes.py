"""The recipes as data: which pieces of training each one has.

`literal` is the paper's text; `robust` is what finds the contexts on every seed. docs/recipes.md has the reason and the
source of every difference; `mbrl-hdp reproduce recipes` measures both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.reduction import ChainReduction, close_paths
from mbrl_hdp.inference.schedule import LITERAL, REFIT, FitConfig, Schedule
from mbrl_hdp.probability.markov import distilled_chain


@dataclass(frozen=True)
class Recipe:
    """How a model is trained, piece by piece; the defaults are those of `robust`.

    Attributes:
        name: word in the configuration.
        is_normalised: inputs and targets of the networks are centred and scaled by the data.
        is_loss_per_transition: the loss is the bound per transition; else the bound of the whole data set.
        has_natural_steps: the chain moves along its natural gradient where the prior knows it; else Adam moves it.
        has_sticky_start: the chain starts at a sticky one; else where the prior's own q starts.
        top_learning_rate: learning rate of the shared weights, unless the configuration says otherwise.
        reduce: what distillation does to the chain inside the bound.
        is_distilled_for_good: a context that was removed during training stays so; else every step decides anew.
        is_prior_reset: `reset="chain"` puts the prior's q back to its start; else the schedule's hold and the natural
            steps after it replace the rows, and the shared weights go on from where they are.
        is_polished: the chosen run is trained on with its contexts settled.
        compares: transition models are compared where several are possible (`dynamics=auto`); else the last, networks.
        refit: schedule of a warm start.
        fixed: settings of `FitConfig` that have one value in this recipe.
        dynamics: the same for settings of the transition model, where it has them.
    """

    name: str
    is_normalised: bool = True
    is_loss_per_transition: bool = True
    has_natural_steps: bool = True
    has_sticky_start: bool = True
    top_learning_rate: float = 5e-2
    reduce: ChainReduction = close_paths
    is_distilled_for_good: bool = True
    is_prior_reset: bool = False
    is_polished: bool = True
    compares: bool = True
    refit: Schedule = field(default_factory=lambda: REFIT)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    dynamics: Mapping[str, Any] = field(default_factory=dict)

    def settle(self, config: FitConfig) -> FitConfig:
        """Return the settings with those that the recipe fixes.

        Raises:
            ConfigError: on a fixed setting that was given another value.
        """
        standard = FitConfig()
        for key, value in self.fixed.items():
            asked = getattr(config, key)
            if asked not in (value, getattr(standard, key)):
                raise ConfigError(
                    f"fit.{key}={asked!r} has no place in recipe={self.name}, which has {value!r}; leave it out, or "
                    "use recipe=robust"
                )
        return dataclasses.replace(config, **self.fixed)

    def settle_dynamics(self, config: Any) -> Any:
        """Return a transition model's settings with those that the recipe fixes; a model without them is left alone."""
        known = {field.name for field in dataclasses.fields(config)}
        fixed = {key: value for key, value in self.dynamics.items() if key in known}
        return dataclasses.replace(config, **fixed) if fixed else config


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("robust"),
        Recipe(
            "literal",
            is_normalised=False,
            is_loss_per_transition=False,
            has_natural_steps=False,
            has_sticky_start=False,
            top_learning_rate=1e-2,
            reduce=distilled_chain,
            is_distilled_for_good=False,
            is_prior_reset=True,
            is_polished=False,
            compares=False,
            refit=LITERAL,
            fixed={"start": "random", "num_restarts": 1, "polish_steps": 0, "holdout": 0.0, "schedules": [LITERAL]},
            dynamics={"std_floor": 0.0, "final_std_floor": 0.0, "skip_share": 0.0},
        ),
    )
}
