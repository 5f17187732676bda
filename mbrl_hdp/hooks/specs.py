"""Hook signatures: what a plugin can register. No code lives here.

A plugin is a module (or object) behind an entry point of group `mbrl_hdp` that implements some of these functions,
each marked with `@hookimpl`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pluggy

from mbrl_hdp.types import EpisodeSummary, TaskSpec

if TYPE_CHECKING:
    from mbrl_hdp.control.agent import Agent
    from mbrl_hdp.control.baseline import Baseline
    from mbrl_hdp.control.planner_config import PlannerConfig
    from mbrl_hdp.distil.distiller import Distiller
    from mbrl_hdp.inference.duration import ContextDuration
    from mbrl_hdp.inference.dynamics import ContextDynamics
    from mbrl_hdp.inference.prior import ContextPrior

NAMESPACE = "mbrl_hdp"

hookspec = pluggy.HookspecMarker(NAMESPACE)
hookimpl = pluggy.HookimplMarker(NAMESPACE)

T = TypeVar("T")


@dataclass(frozen=True)
class PluginSpec(Generic[T]):
    """One thing that a plugin registers.

    Attributes:
        name: the word that selects it, as in `prior=name`; lower case letters, digits and underscores.
        config: a dataclass (not frozen, every field with a default): its settings. It becomes a Hydra option.
        build: `build(config, task)` makes the object from an instance of `config` and a `TaskSpec`.
        summary: one line for `mbrl-hdp plugins`.
    """

    name: str
    config: type[Any]
    build: Callable[[Any, TaskSpec], T]
    summary: str = ""


BUDGETS = ("mpc", "sac", "online", "pretrained", "ppo")
SEES = ("belief", "truth", "nothing")


@dataclass(frozen=True)
class AgentSpec(PluginSpec[T]):
    """An agent and what the loop must know about it before it is built.

    `build(config, task)` gets an `AgentTask` (`mbrl_hdp.control.agent`), which is a `TaskSpec` with more.

    Attributes:
        budget: row of the budget table: `mpc` (few epochs of many episodes), `sac` (many epochs of few episodes, with
            updates of the agent in each), `online` (few episodes, no warm start), `pretrained` (the same after random
            episodes) or `ppo` (thousands of episodes).
        sees: what is appended to every observation: the `belief` over contexts, the `truth` (one-hot) or `nothing`.
        needs_model: whether a context model is learned for it; `sees="belief"` needs one.
        needs_reward: whether it imagines steps and so needs the environment's reward as a function, or a learned one.
        starts_random: whether it takes random actions until it has learned from the first epoch's episodes.
    """

    budget: str = "sac"
    sees: str = "nothing"
    needs_model: bool = False
    needs_reward: bool = False
    starts_random: bool = True


@hookspec
def mbrl_hdp_register_priors() -> Iterable[PluginSpec[ContextPrior]]:  # type: ignore[empty-body]
    """Register priors over the context chain (Hydra group `prior`)."""


@hookspec
def mbrl_hdp_register_distillers() -> Iterable[PluginSpec[Distiller]]:  # type: ignore[empty-body]
    """Register distillation rules (Hydra group `distillation`)."""


@hookspec
def mbrl_hdp_register_durations() -> Iterable[PluginSpec[ContextDuration]]:  # type: ignore[empty-body]
    """Register how long contexts last (Hydra group `duration`)."""


@hookspec
def mbrl_hdp_register_agents() -> Iterable[AgentSpec[Agent]]:  # type: ignore[empty-body]
    """Register agents that use the context model, the belief or the loop's epochs (Hydra group `agent`)."""


@hookspec
def mbrl_hdp_register_baselines() -> Iterable[PluginSpec[Baseline]]:  # type: ignore[empty-body]
    """Register simple agents that see observations, rewards and episode ends (Hydra group `agent`)."""


@hookspec
def mbrl_hdp_register_planners() -> Iterable[PluginSpec[PlannerConfig]]:  # type: ignore[empty-body]
    """Register optimisers of action sequences for planning agents (Hydra group `planner`)."""


@hookspec
def mbrl_hdp_register_dynamics() -> Iterable[PluginSpec[ContextDynamics]]:  # type: ignore[empty-body]
    """Register structures of the per-context transition model (Hydra group `dynamics`)."""


@hookspec
def mbrl_hdp_episode_ended(summary: EpisodeSummary) -> None:
    """Observe a finished episode; an exception here is reported and does not stop the run."""


@dataclass(frozen=True)
class Kind:
    """One kind of plugin: its word, the hook that registers it and the Hydra group that selects it."""

    name: str
    hook: str
    group: str


KINDS = (
    Kind("prior", "mbrl_hdp_register_priors", "prior"),
    Kind("distillation", "mbrl_hdp_register_distillers", "distillation"),
    Kind("duration", "mbrl_hdp_register_durations", "duration"),
    Kind("agent", "mbrl_hdp_register_agents", "agent"),
    Kind("baseline", "mbrl_hdp_register_baselines", "agent"),
    Kind("planner", "mbrl_hdp_register_planners", "planner"),
    Kind("dynamics", "mbrl_hdp_register_dynamics", "dynamics"),
)
