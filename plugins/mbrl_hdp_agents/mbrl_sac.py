"""mbrl-lib's own SAC and `SACAgent`, unchanged, on the packed vector [obs, belief].

The same loop, beliefs and replay buffer as C-SAC, for comparison: C-SAC's policy (`mbrl_hdp.control.policy.ContextSac`)
is an implementation of our own. mbrl-lib's networks see the packed vector as it is, angles not as sine and cosine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from mbrl.planning.sac_wrapper import SACAgent
from mbrl.third_party.pytorch_sac_pranz24 import SAC

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.agent import Act, Agent, AgentTask, Epoch, Packed
from mbrl_hdp.control.replay import BeliefReplay
from mbrl_hdp.control.state import load_optimizer, optimizer_state, prefixed, save_state, unprefixed
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import CheckpointError
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp_agents.memory import replay_state, restore_replay, take_in
from mbrl_hdp_agents.settings import MbrlSacConfig

_METRICS = ("value_loss_1", "value_loss_2", "policy_loss", "temperature_loss", "temperature")


class MbrlSacAgent(Agent):
    """mbrl-lib's `SAC` behind its `SACAgent`; draws come from torch's global generator, which the loop seeds."""

    def __init__(self, config: MbrlSacConfig, task: AgentTask) -> None:
        self.config, self.codec = config, BeliefCodec(task.obs_dim, task.appended_dim)
        settings = SimpleNamespace(**asdict(config), policy="Gaussian", device=torch.device("cpu"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(task.seed)
            self.sac = SAC(self.codec.width, task.action_space, settings)
        self.agent = SACAgent(self.sac)
        self.replay = BeliefReplay(self.codec, task.act_dim, seed=task.seed)
        self.num_updates = 0

    @property
    def is_ready(self) -> bool:
        """Whether it has learned anything yet."""
        return self.num_updates > 0

    def act(self, packed: Packed, explore: bool) -> Act:
        """Draw from the policy while exploring, take its mean in evaluations."""
        return np.asarray(self.agent.act(packed, sample=explore))

    def learn(self, epoch: Epoch) -> Mapping[str, float]:
        """Store the episodes, relabel the beliefs after a refit, update by mbrl-lib's `update_parameters`."""
        take_in(self.replay, epoch)
        found: tuple[float, ...] = ()
        for _ in range(epoch.num_updates):
            # The buffer marks transitions that terminate; mbrl-lib's mask marks those that do not.
            found = self.sac.update_parameters(self.replay, self.config.batch_size, self.num_updates, reverse_mask=True)
            self.num_updates += 1
        return dict(zip(_METRICS, found, strict=False))

    def state_dict(self) -> Mapping[str, Any]:
        """Return networks, optimisers, temperature and the beliefs of the stored episodes."""
        state: dict[str, Any] = {"num_updates": self.num_updates}
        for name, network in self._networks().items():
            state |= prefixed(name, network.state_dict())
        for name, optimiser in self._optimisers().items():
            state |= prefixed(name, optimizer_state(optimiser))
        if self.config.automatic_entropy_tuning:
            state["log_alpha"] = self.sac.log_alpha
        return state | prefixed("replay", replay_state(self.replay))

    def load_state_dict(self, state: Mapping[str, Any], data: Trajectories, model: ContextModel | None) -> None:  # noqa: ARG002
        """Restore networks, optimisers, temperature and replay buffer.

        Raises:
            CheckpointError: if the state belongs to networks of another size.
        """
        self.num_updates = state["num_updates"]
        for name, network in self._networks().items():
            try:
                network.load_state_dict(unprefixed(state, name))
            except RuntimeError as error:
                raise CheckpointError(
                    f"the saved {name} of mbrl-lib's SAC has another size; resume with the settings it began with"
                ) from error
        for name, optimiser in self._optimisers().items():
            load_optimizer(optimiser, unprefixed(state, name))
        if self.config.automatic_entropy_tuning:
            with torch.no_grad():
                self.sac.log_alpha.copy_(state["log_alpha"])
            if self.num_updates:  # mbrl-lib's first update takes the setting `alpha`
                self.sac.alpha = self.sac.log_alpha.exp()
        restore_replay(self.replay, unprefixed(state, "replay"), data)

    def export(self, folder: Path, kept: Bool[np.ndarray, " K"] | None) -> None:
        """Write the policy network, without the inputs of spurious contexts; mbrl-lib's `GaussianPolicy` reads it."""
        state = dict(self.sac.policy.state_dict())
        if kept is not None:
            columns = np.concatenate([np.ones(self.codec.obs_dim, dtype=bool), kept])
            state["linear1.weight"] = state["linear1.weight"][:, torch.from_numpy(columns)]
        save_state(state, folder)

    def _networks(self) -> dict[str, torch.nn.Module]:
        sac = self.sac
        return {"policy": sac.policy, "critic": sac.critic, "critic_target": sac.critic_target}

    def _optimisers(self) -> dict[str, torch.optim.Optimizer]:
        found = {"policy_optim": self.sac.policy_optim, "critic_optim": self.sac.critic_optim}
        if self.config.automatic_entropy_tuning:
            found["alpha_optim"] = self.sac.alpha_optim
        return found
