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
    from mbrl_hdp.control.baseline import Baseline
    from mbrl_hdp.distil.distiller import Distiller
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


@hookspec
def mbrl_hdp_register_priors() -> Iterable[PluginSpec[ContextPrior]]:  # type: ignore[empty-body]
    """Register priors over the context chain (Hydra group `prior`)."""


@hookspec
def mbrl_hdp_register_distillers() -> Iterable[PluginSpec[Distiller]]:  # type: ignore[empty-body]
    """Register distillation rules (Hydra group `distillation`)."""


@hookspec
def mbrl_hdp_register_baselines() -> Iterable[PluginSpec[Baseline]]:  # type: ignore[empty-body]
    """Register baseline agents (Hydra group `agent`)."""


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
    Kind("baseline", "mbrl_hdp_register_baselines", "agent"),
    Kind("dynamics", "mbrl_hdp_register_dynamics", "dynamics"),
)
