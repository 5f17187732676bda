"""A prior without a guide, a distillation rule and an agent, as a plugin of mbrl_hdp."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from jaxtyping import Bool
from torch import Tensor

import mbrl_hdp
from mbrl_hdp.control.baseline import Baseline
from mbrl_hdp.distil.distiller import Distiller
from mbrl_hdp.inference.prior import ContextPrior
from mbrl_hdp.probability.markov import stationary
from mbrl_hdp.settings import check_settings, setting
from mbrl_hdp.types import ContextChain, ContextPosterior, TaskSpec
from mbrl_hdp_example_plugin.swing_up import SwingUpConfig, build_swing_up


@dataclass
class DwellConfig:
    """Settings of the `dwell` prior."""

    stay: float = setting(10.0, "prior pseudo-steps of staying in a context", above=0.0)
    leave: float = setting(1.0, "prior pseudo-steps of leaving it", above=0.0)


class DwellPrior(ContextPrior):
    """Stay with one probability in every context, else draw the next one from one shared distribution."""

    def __init__(self, max_contexts: int, config: DwellConfig) -> None:
        super().__init__(max_contexts)
        self.config = config

    def model(self) -> ContextChain:
        """Sample the probability of staying and the distribution of the next context."""
        stay = pyro.sample("stay", dist.Beta(self.config.stay, self.config.leave))
        target = pyro.sample("target", dist.Dirichlet(torch.ones(self.max_contexts)))
        return ContextChain(target, stay * torch.eye(self.max_contexts) + (1 - stay) * target)


@dataclass
class MostVisitedConfig:
    """Settings of the `most_visited` rule."""

    num_kept: int = setting(2, "how many contexts to keep", at_least=1)


class MostVisited(Distiller):
    """Keep the contexts with the largest share of time, a fixed number of them."""

    def __init__(self, num_kept: int) -> None:
        self.num_kept = num_kept

    def keep(self, posterior: ContextPosterior) -> Bool[Tensor, " K"]:
        """Keep the first `num_kept` by stationary mass."""
        order = stationary(posterior.chain.transition).argsort(descending=True)
        keep = torch.zeros(len(order), dtype=torch.bool)
        keep[order[: self.num_kept]] = True
        return keep


def build_dwell(config: DwellConfig, task: TaskSpec) -> ContextPrior:
    """Build the prior; a setting out of range is refused with its key."""
    check_settings(config, "prior")
    return DwellPrior(task.max_contexts, config)


def build_most_visited(config: MostVisitedConfig, task: TaskSpec) -> Distiller:  # noqa: ARG001 - needs no task
    """Build the rule."""
    check_settings(config, "distillation")
    return MostVisited(config.num_kept)


@mbrl_hdp.hookimpl
def mbrl_hdp_register_priors() -> Iterable[mbrl_hdp.PluginSpec[ContextPrior]]:
    """Register the prior."""
    return [mbrl_hdp.PluginSpec("dwell", DwellConfig, build_dwell, "one dwell time for all contexts (few parameters)")]


@mbrl_hdp.hookimpl
def mbrl_hdp_register_distillers() -> Iterable[mbrl_hdp.PluginSpec[Distiller]]:
    """Register the rule."""
    return [
        mbrl_hdp.PluginSpec("most_visited", MostVisitedConfig, build_most_visited, "keep a fixed number of contexts")
    ]


@mbrl_hdp.hookimpl
def mbrl_hdp_register_baselines() -> Iterable[mbrl_hdp.PluginSpec[Baseline]]:
    """Register the agent."""
    return [mbrl_hdp.PluginSpec("swing_up", SwingUpConfig, build_swing_up, "cart-pole by energy, adaptive actuator")]
