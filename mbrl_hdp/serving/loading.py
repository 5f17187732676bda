"""What is served or exported: the model and policy of a run, or a model alone."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float

from mbrl_hdp.control.agent import Agent
from mbrl_hdp.control.policy import ContextSac
from mbrl_hdp.control.saving import load_policy
from mbrl_hdp.data.past import recorded_width
from mbrl_hdp.errors import CheckpointError, ConfigError
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.saving import load

_MODEL, _POLICY = "model.safetensors", "policy.safetensors"
_CHAIN = ("initial", "transition", "stationary")


class Actor(Protocol):
    """Chooses the actions of one stream."""

    def begin(self) -> None:
        """Begin an episode."""

    def act(self, packed: Float[np.ndarray, " W"]) -> Float[np.ndarray, " A"]:
        """Return the action for a packed observation [obs, belief]."""

    def watch(
        self, packed: Float[np.ndarray, " W"], act: Float[np.ndarray, " A"], next_packed: Float[np.ndarray, " W"]
    ) -> None:
        """See a step."""


@dataclass(frozen=True)
class Served:
    """What a folder holds for use outside.

    Attributes:
        source: the folder.
        obs_dim: width of an observation.
        act_dim: width of an action as it was recorded: what the model adds of the past does not count.
        dt: seconds per step, None where unknown.
        model: the context model; None for a policy that sees observations alone.
        policy: a SAC policy; None where there is none, or another agent acts.
        agent: an agent that is no plain policy, such as a planner; None otherwise.
        agent_name: name of the run's agent; None for a model alone.
        sees: what the policy sees beside the observation: belief, truth or nothing.
    """

    source: Path
    obs_dim: int
    act_dim: int
    dt: float | None
    model: ContextModel | None = None
    policy: ContextSac | None = None
    agent: Agent | None = None
    agent_name: str | None = None
    sees: str = "nothing"

    def actor(self) -> Actor | None:
        """Return what chooses the actions of a new stream; None where nothing does."""
        if self.policy is not None:
            return _PolicyActor(self.policy)
        if self.agent is not None:
            # Every stream has its own plan; the model is shared.
            return _AgentActor(copy.deepcopy(self.agent, {id(self.model): self.model}))
        return None

    def description(self) -> dict[str, Any]:
        """Return what an export and a server both say about it: where it is from, its sizes and its chain."""
        model = self.model
        return {
            "source": self.source.name,
            "obs_dim": self.obs_dim,
            "act_dim": self.act_dim,
            "past": 0 if model is None else model.task.past,
            "dt": self.dt,
            "num_contexts": None if model is None else model.num_contexts,
            **{name: None if model is None else getattr(model, name).tolist() for name in _CHAIN},
        }

    @property
    def appended_dim(self) -> int:
        """Width of what the actor sees beside the observation."""
        if self.sees != "belief":
            return 0
        if self.policy is not None:
            return self.policy.codec.max_contexts
        return 0 if self.model is None else self.model.task.max_contexts


class _PolicyActor:
    def __init__(self, policy: ContextSac) -> None:
        self._policy = policy

    def begin(self) -> None:
        pass

    def act(self, packed: Float[np.ndarray, " W"]) -> Float[np.ndarray, " A"]:
        return self._policy.select_action(packed, evaluate=True)

    def watch(self, packed: Any, act: Any, next_packed: Any) -> None:
        pass


class _AgentActor:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def begin(self) -> None:
        self._agent.begin_episode()

    def act(self, packed: Float[np.ndarray, " W"]) -> Float[np.ndarray, " A"]:
        return self._agent.act(packed, False)

    def watch(self, packed: Any, act: Any, next_packed: Any) -> None:
        self._agent.watch(packed, act, next_packed)


def open_served(path: str | Path, is_trusted: bool = False, needs_agent: bool = True) -> Served:
    """Read a folder that `mbrl-hdp fit` or `mbrl-hdp train` wrote, or `final/` of a run.

    Args:
        path: the folder.
        is_trusted: let a run import the modules that its settings name.
        needs_agent: also build an agent that is no plain policy (from the run's last checkpoint).

    Raises:
        CheckpointError: if there is neither a model nor a run in it, or it is damaged.
        ConfigError: if the run would import a user's modules and is not trusted.
    """
    folder = Path(path)
    if (folder / _MODEL).is_file():
        return _of_parts(folder, load(folder), None, None, "nothing")
    if (folder / "config.yaml").is_file():
        return _open_run(folder, is_trusted, needs_agent)
    if (folder / "model" / _MODEL).is_file() or (folder / _POLICY).is_file():
        policy, model = _read_final(folder)
        return _of_parts(folder, model, policy, None, _seen_by(policy, model))
    raise CheckpointError(
        f"{folder} holds no model and no run: name the folder that `mbrl-hdp fit ... out=DIR` or model.save(DIR) "
        "wrote, or a run directory of `mbrl-hdp train`"
    )


def _open_run(folder: Path, is_trusted: bool, needs_agent: bool) -> Served:
    from mbrl_hdp.experiments.run_folder import read_config
    from mbrl_hdp.experiments.runs import load_run
    from mbrl_hdp.hooks import load_registry

    words = read_config(folder)
    name = str((words.get("agent") or {}).get("name"))
    final = folder / "final"
    if (final / _POLICY).is_file() or (not needs_agent and (final / "model" / _MODEL).is_file()):
        policy, model = _read_final(final)
        sees = load_registry().agent_spec(name).sees
        return _of_parts(folder, model, policy, name, sees)
    run = load_run(folder, is_trusted)
    run.task.close()
    return Served(
        folder,
        run.task.obs_dim,
        run.task.act_dim,
        run.task.dt,
        run.model,
        agent=run.agent,
        agent_name=name,
        sees=run.agent.spec.sees,
    )


def _read_final(folder: Path) -> tuple[ContextSac | None, ContextModel | None]:
    policy = load_policy(folder) if (folder / _POLICY).is_file() else None
    model = load(folder / "model") if (folder / "model" / _MODEL).is_file() else None
    return policy, model


def _seen_by(policy: ContextSac | None, model: ContextModel | None) -> str:
    if policy is None or not policy.codec.max_contexts:
        return "nothing"
    return "truth" if model is None else "belief"


def _of_parts(
    folder: Path, model: ContextModel | None, policy: ContextSac | None, name: str | None, sees: str
) -> Served:
    if model is not None:
        obs_dim, act_dim, dt = model.task.obs_dim, recorded_width(model.task), model.task.dt
    else:
        assert policy is not None
        obs_dim, act_dim, dt = policy.codec.obs_dim, policy.act_dim, None
    return Served(folder, obs_dim, act_dim, dt, model, policy, None, name, sees)


def check_servable(served: Served) -> Served:
    """Return it.

    Raises:
        ConfigError: if its policy needs the true context, which no stream knows.
    """
    if served.sees == "truth":
        raise ConfigError(
            f"agent={served.agent_name or 'fi_sac'} in {served.source} acts on the true context, which a stream does "
            "not know; serve a run of an agent that sees the belief, such as c_sac or c_cem"
        )
    return served
