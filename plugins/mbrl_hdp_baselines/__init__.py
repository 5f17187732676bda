"""Baselines to compare with: GPMM and its kin, recurrent PPO, SAC on a stack, PETS, MBPO; see docs/baselines.md."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.hooks import AgentSpec, PluginSpec, hookimpl
from mbrl_hdp_baselines import settings

if TYPE_CHECKING:
    from mbrl_hdp.control.agent import Agent
    from mbrl_hdp.control.baseline import Baseline


def _late(place: str, needs: str = "") -> Callable[[Any, Any], Any]:
    """Return a function that builds an agent and imports its class, `module:Class`, only then.

    gpytorch, Stable-Baselines3 and mbrl-lib take seconds to import. `needs` names a package of the extra `baselines`.
    """
    module, _, name = place.partition(":")

    def build(config: Any, task: Any) -> Any:
        if needs and importlib.util.find_spec(needs) is None:
            raise ConfigError(
                f"this agent needs the package {needs}, which is part of the extra `baselines`: pip install "
                "'mbrl-hdp[baselines]' (in the checkout: make setup)"
            )
        return getattr(importlib.import_module(build.__module__), name)(config, task)

    # The fingerprint of an agent's results begins at the module of its build function.
    build.__module__ = f"{__name__}.{module}"
    return build


@hookimpl
def mbrl_hdp_register_baselines() -> Iterable[PluginSpec[Baseline]]:
    """Register the baselines that learn while they act."""
    return [
        AgentSpec("gpmm", settings.GpmmConfig, _late("gpmm:Gpmm", "gpytorch"),
                  "GPMM: an online mixture of Gaussian processes (Xu et al. 2020); the optimiser is planner=",
                  budget="online", needs_reward=True),
        AgentSpec("rnn_ppo", settings.RnnPpoConfig, _late("ppo:BeliefPpo", "sb3_contrib"),
                  "RNN-PPO: recurrent PPO with a belief over a known number of contexts", budget="ppo"),
        AgentSpec("rnn_ppo_plain", settings.PpoConfig, _late("ppo:RecurrentPpo", "sb3_contrib"),
                  "RecurrentPPO of sb3-contrib", budget="ppo"),
    ]  # fmt: skip


@hookimpl
def mbrl_hdp_register_agents() -> Iterable[AgentSpec[Agent]]:
    """Register the baselines that learn after the episodes of an epoch."""
    return [
        AgentSpec("dnnmm", settings.DnnmmConfig, _late("dnnmm:Dnnmm"),
                  "DNNMM: a mixture of neural networks, pre-trained on random episodes; the optimiser is planner=",
                  budget="pretrained", needs_reward=True),
        AgentSpec("anpmm", settings.AnpmmConfig, _late("anpmm:Anpmm"),
                  "ANPMM: a mixture of attentive neural processes, pre-trained likewise; the optimiser is planner=",
                  budget="pretrained", needs_reward=True),
        AgentSpec("pets", settings.PetsConfig, _late("pets:Pets"),
                  "PETS: mbrl-lib's probabilistic ensemble; the optimiser is planner=",
                  budget="mpc", needs_reward=True),
        AgentSpec("sac_stack", settings.SacStackConfig, _late("sac_stack:SacStack", "stable_baselines3"),
                  "SAC of Stable-Baselines3 on the last observations and actions", budget="sac"),
        AgentSpec("mbpo", settings.MbpoConfig, _late("mbpo:Mbpo"),
                  "MBPO: mbrl-lib's SAC on imagined steps of its probabilistic ensemble",
                  budget="sac", needs_reward=True),
    ]  # fmt: skip
