"""SAC of Stable-Baselines3 on the last observations and actions: what a user would try first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3 import SAC

from mbrl_hdp.control.agent import Act, Agent, AgentTask, Epoch, Packed
from mbrl_hdp.control.state import load_optimizer, optimizer_state, prefixed, unprefixed
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp_baselines.features import AngleFeatures
from mbrl_hdp_baselines.history import History, transitions
from mbrl_hdp_baselines.sb3 import SpacesOnly, logged, silence
from mbrl_hdp_baselines.settings import SacStackConfig

_METRICS = ("actor_loss", "critic_loss", "ent_coef")


class SacStack(Agent):
    """Stable-Baselines3's SAC; draws come from the global generators, which the loop seeds.

    Attributes:
        sac: the algorithm.
    """

    def __init__(self, config: SacStackConfig, task: AgentTask) -> None:
        self.config = config
        self.history = History(task.obs_dim, task.act_dim, config.stack)
        self.features = AngleFeatures(self.history.width, self.history.angles(task.angle_columns))
        self.sac = SAC(
            "MlpPolicy", SpacesOnly(self.features.width, task.action_space), device="cpu", seed=task.seed,
            learning_rate=config.learning_rate, batch_size=config.batch_size, gamma=config.gamma, tau=config.tau,
            buffer_size=config.buffer_size, policy_kwargs={"net_arch": list(config.hidden_sizes)},
        )  # fmt: skip
        silence(self.sac)

    @property
    def is_ready(self) -> bool:
        """Whether it has learned anything yet."""
        return bool(self.sac._n_updates > 0)

    def begin_episode(self) -> None:
        """Forget the last episode."""
        self.history.reset()

    def act(self, packed: Packed, explore: bool) -> Act:
        """Draw from the policy while exploring, take its mean in evaluations."""
        window = self._see(self.history.window(packed))
        act = self.sac.predict(window, deterministic=not explore)[0].astype(np.float64)
        self.history.add(packed, act)
        return act

    def learn(self, epoch: Epoch) -> Mapping[str, float]:
        """Store the episodes and take the epoch's updates."""
        self._store(epoch.new)
        if not epoch.num_updates:
            return {}
        self.sac.train(epoch.num_updates, self.config.batch_size)
        return {name: value for name, value in logged(self.sac).items() if name in _METRICS}

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimisers and temperature; the loop keeps the episodes."""
        state: dict[str, Any] = {"num_updates": self.sac._n_updates, "log_ent_coef": self.sac.log_ent_coef}
        state |= prefixed("policy", self.sac.policy.state_dict())
        for name, optimizer in self._optimizers().items():
            state |= prefixed(name, optimizer_state(optimizer))
        return state

    def load_state_dict(self, state: Mapping[str, Any], data: Trajectories, model: ContextModel | None) -> None:  # noqa: ARG002
        """Restore networks, optimisers, temperature and the replay buffer."""
        self.sac._n_updates = state["num_updates"]
        self.sac.policy.load_state_dict(unprefixed(state, "policy"))
        with torch.no_grad():
            self.sac.log_ent_coef.copy_(state["log_ent_coef"])
        for name, optimizer in self._optimizers().items():
            load_optimizer(optimizer, unprefixed(state, name))
        self._store(data)

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        sac = self.sac
        return {
            "actor_optimizer": sac.actor.optimizer,
            "critic_optimizer": sac.critic.optimizer,
            "temperature_optimizer": sac.ent_coef_optimizer,
        }

    def _store(self, data: Trajectories) -> None:
        obs, act, reward, next_obs, ended = transitions(data, self.history)
        scaled = self.sac.policy.scale_action(act.astype(np.float32))
        rows = zip(self._see(obs), self._see(next_obs), scaled, reward, ended, strict=True)
        for before, after, taken, earned, is_end in rows:
            self.sac.replay_buffer.add(before, after, taken, np.array([earned]), np.array([is_end]), [{}])

    def _see(self, windows: Packed) -> np.ndarray[Any, Any]:
        return self.features.encode(torch.as_tensor(windows)).numpy().astype(np.float32)
