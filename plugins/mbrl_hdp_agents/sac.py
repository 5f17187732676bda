"""C-SAC, FI-SAC and NI-SAC: one policy on the observation and what is appended to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.agent import Act, Agent, AgentTask, Epoch, Packed
from mbrl_hdp.control.policy import ContextSac
from mbrl_hdp.control.replay import BeliefReplay
from mbrl_hdp.control.saving import save_policy
from mbrl_hdp.control.state import prefixed, unprefixed
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp_agents.best import BestPolicy
from mbrl_hdp_agents.memory import replay_state, restore_replay, take_in
from mbrl_hdp_agents.settings import SacAgentConfig


class SacAgent(Agent):
    """A `ContextSac` with its replay buffer."""

    def __init__(self, config: SacAgentConfig, task: AgentTask) -> None:
        codec = BeliefCodec(task.obs_dim, task.appended_dim)
        config = replace(config, angle_columns=sorted({*config.angle_columns, *task.angle_columns}))
        self.sac = ContextSac(codec, task.action_space, config, task.seed, total_updates=task.total_updates)
        self.replay = BeliefReplay(codec, task.act_dim, seed=task.seed)
        self.best = BestPolicy(self.sac, config.best_of_episodes) if config.best_of_episodes else None

    @property
    def calm(self) -> ContextSac:
        """What acts in evaluations and is exported: the best policy where one is kept, else the latest."""
        return (self.best.policy if self.best else None) or self.sac

    @property
    def is_ready(self) -> bool:
        """Whether it has learned anything yet."""
        return self.sac.num_updates > 0

    def act(self, packed: Packed, explore: bool) -> Act:
        """Draw from the policy while exploring, take its mean in evaluations."""
        return np.asarray((self.sac if explore else self.calm).select_action(packed, evaluate=not explore))

    def learn(self, epoch: Epoch) -> Mapping[str, float]:
        """Store the episodes, relabel the beliefs after a refit, update the policy."""
        take_in(self.replay, epoch)
        if self.best is not None and self.is_ready:
            self.best.see(epoch.new, self.sac, [] if epoch.model is None else epoch.model.slots.tolist())
        return self.sac.update(self.replay, epoch.num_updates) if epoch.num_updates else {}

    def state_dict(self) -> Mapping[str, Any]:
        """Return the policy, the best one so far, and the beliefs of the stored episodes."""
        state = prefixed("sac", self.sac.state_dict()) | prefixed("replay", replay_state(self.replay))
        return state if self.best is None else state | prefixed("best", self.best.state_dict())

    def load_state_dict(self, state: Mapping[str, Any], data: Trajectories, model: ContextModel | None) -> None:  # noqa: ARG002
        """Restore policy and replay buffer."""
        self.sac.load_state_dict(unprefixed(state, "sac"))
        restore_replay(self.replay, unprefixed(state, "replay"), data)
        if self.best is not None:
            self.best.load_state_dict(unprefixed(state, "best"))

    def export(self, folder: Path, kept: Bool[np.ndarray, " K"] | None) -> None:
        """Write the policy, without the inputs of spurious contexts."""
        save_policy(self.calm if kept is None else self.calm.drop_contexts(kept), folder)
