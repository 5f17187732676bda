"""Built-in agents: `c_cem`, `c_sac`, `fi_sac`, `ni_sac`, `mbrl_sac`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mbrl_hdp.hooks import AgentSpec, hookimpl
from mbrl_hdp_agents.settings import CemAgentConfig, MbrlSacConfig, SacAgentConfig

if TYPE_CHECKING:
    from mbrl_hdp.control.agent import Agent

__all__ = ["CemAgentConfig", "MbrlSacConfig", "SacAgentConfig", "mbrl_hdp_register_agents"]

# mbrl-lib and the compiled updates take seconds to import: they are, when an agent is built.


def build_cem(config: CemAgentConfig, task: Any) -> Agent:  # noqa: ARG001 - its settings are the planner's
    """Build C-CEM."""
    from mbrl_hdp_agents.planning import PlanningAgent

    return PlanningAgent(task)


def build_sac(config: SacAgentConfig, task: Any) -> Agent:
    """Build C-SAC, FI-SAC or NI-SAC: one policy; what it sees is declared."""
    from mbrl_hdp_agents.sac import SacAgent

    return SacAgent(config, task)


def build_mbrl_sac(config: MbrlSacConfig, task: Any) -> Agent:
    """Build mbrl-lib's SAC on the packed vector."""
    from mbrl_hdp_agents.mbrl_sac import MbrlSacAgent

    return MbrlSacAgent(config, task)


@hookimpl
def mbrl_hdp_register_agents() -> Iterable[AgentSpec[Agent]]:
    """Register the built-in agents."""
    return [
        AgentSpec("c_cem", CemAgentConfig, build_cem, "C-CEM: plans on the belief; the optimiser is planner=",
                  budget="mpc", sees="belief", needs_model=True, needs_reward=True),
        AgentSpec("c_sac", SacAgentConfig, build_sac, "C-SAC: a policy on the observation and the belief",
                  budget="sac", sees="belief", needs_model=True),
        AgentSpec("fi_sac", SacAgentConfig, build_sac, "FI-SAC: a policy that sees the true context",
                  budget="sac", sees="truth"),
        AgentSpec("ni_sac", SacAgentConfig, build_sac, "NI-SAC: a policy that sees the observation alone",
                  budget="sac", sees="nothing"),
        AgentSpec("mbrl_sac", MbrlSacConfig, build_mbrl_sac, "mbrl-lib's own SAC on the observation and the belief",
                  budget="sac", sees="belief", needs_model=True),
    ]  # fmt: skip
