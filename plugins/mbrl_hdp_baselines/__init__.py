"""Baselines to compare with: GPMM and its kin, recurrent PPO, SAC on a stack, PETS, MBPO; see docs/baselines.md."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.hooks import AgentSpec, PluginSpec, hookimpl
from mbrl_hdp_baselines import settings

if TYPE_CHECKING:
    from mbrl_hdp.control.agent import Agent
    from mbrl_hdp.control.baseline import Baseline


# gpytorch, Stable-Baselines3 and mbrl-lib take seconds to import: they are, when an agent is built.


def _require(package: str) -> None:
    """Check for a package of the extra `baselines`.

    Raises:
        ConfigError: if it is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"this agent needs the package {package}, which is part of the extra `baselines`: pip install "
            "'mbrl-hdp[baselines]' (in the checkout: make setup)"
        )


def build_gpmm(config: settings.GpmmConfig, task: Any) -> Baseline:
    """Build GPMM."""
    _require("gpytorch")
    from mbrl_hdp_baselines.gpmm import Gpmm

    return Gpmm(config, task)


def build_rnn_ppo(config: settings.RnnPpoConfig, task: Any) -> Baseline:
    """Build RNN-PPO."""
    _require("sb3_contrib")
    from mbrl_hdp_baselines.ppo import BeliefPpo

    return BeliefPpo(config, task)


def build_rnn_ppo_plain(config: settings.PpoConfig, task: Any) -> Baseline:
    """Build sb3-contrib's RecurrentPPO."""
    _require("sb3_contrib")
    from mbrl_hdp_baselines.ppo import RecurrentPpo

    return RecurrentPpo(config, task)


def build_dnnmm(config: settings.DnnmmConfig, task: Any) -> Agent:
    """Build DNNMM."""
    from mbrl_hdp_baselines.dnnmm import Dnnmm

    return Dnnmm(config, task)


def build_anpmm(config: settings.AnpmmConfig, task: Any) -> Agent:
    """Build ANPMM."""
    from mbrl_hdp_baselines.anpmm import Anpmm

    return Anpmm(config, task)


def build_sac_stack(config: settings.SacStackConfig, task: Any) -> Agent:
    """Build SAC on a stack of observations."""
    _require("stable_baselines3")
    from mbrl_hdp_baselines.sac_stack import SacStack

    return SacStack(config, task)


def build_pets(config: settings.PetsConfig, task: Any) -> Agent:
    """Build PETS."""
    from mbrl_hdp_baselines.pets import Pets

    return Pets(config, task)


def build_mbpo(config: settings.MbpoConfig, task: Any) -> Agent:
    """Build MBPO."""
    from mbrl_hdp_baselines.mbpo import Mbpo

    return Mbpo(config, task)


@hookimpl
def mbrl_hdp_register_baselines() -> Iterable[PluginSpec[Baseline]]:
    """Register the baselines that learn while they act."""
    return [
        AgentSpec("gpmm", settings.GpmmConfig, build_gpmm,
                  "GPMM: an online mixture of Gaussian processes (Xu et al. 2020); the optimiser is planner=",
                  budget="online", needs_reward=True),
        AgentSpec("rnn_ppo", settings.RnnPpoConfig, build_rnn_ppo,
                  "RNN-PPO: recurrent PPO with a belief over a known number of contexts", budget="ppo"),
        AgentSpec("rnn_ppo_plain", settings.PpoConfig, build_rnn_ppo_plain,
                  "RecurrentPPO of sb3-contrib", budget="ppo"),
    ]  # fmt: skip


@hookimpl
def mbrl_hdp_register_agents() -> Iterable[AgentSpec[Agent]]:
    """Register the baselines that learn after the episodes of an epoch."""
    return [
        AgentSpec("dnnmm", settings.DnnmmConfig, build_dnnmm,
                  "DNNMM: a mixture of neural networks, pre-trained on random episodes; the optimiser is planner=",
                  budget="pretrained", needs_reward=True),
        AgentSpec("anpmm", settings.AnpmmConfig, build_anpmm,
                  "ANPMM: a mixture of attentive neural processes, pre-trained likewise; the optimiser is planner=",
                  budget="pretrained", needs_reward=True),
        AgentSpec("sac_stack", settings.SacStackConfig, build_sac_stack,
                  "SAC of Stable-Baselines3 on the last observations and actions", budget="sac"),
        AgentSpec("pets", settings.PetsConfig, build_pets,
                  "PETS: mbrl-lib's probabilistic ensemble; the optimiser is planner=",
                  budget="mpc", needs_reward=True),
        AgentSpec("mbpo", settings.MbpoConfig, build_mbpo,
                  "MBPO: mbrl-lib's SAC on imagined steps of its probabilistic ensemble",
                  budget="sac", needs_reward=True),
    ]  # fmt: skip
