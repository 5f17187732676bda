"""MBPO with mbrl-lib's own ensemble, rollouts and SAC, blind to contexts or with a window of history.

mbrl-lib's `mbpo.train` owns the environment and the loop. Here the loop is ours: after the episodes of an epoch the
ensemble goes on learning, `rollout_model_and_populate_sac_buffer` imagines steps, and SAC is updated on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from mbrl.algorithms.mbpo import rollout_model_and_populate_sac_buffer
from mbrl.planning.sac_wrapper import SACAgent
from mbrl.third_party.pytorch_sac_pranz24 import SAC
from mbrl.types import TransitionBatch
from mbrl.util import ReplayBuffer
from numpy.typing import NDArray

from mbrl_hdp.control.agent import Act, AgentTask, Epoch, Packed
from mbrl_hdp.control.state import load_optimizer, optimizer_state, prefixed, unprefixed
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.seeding import numpy_generator, torch_generator
from mbrl_hdp_baselines.features import AngleFeatures
from mbrl_hdp_baselines.pets import EnsembleAgent, WindowModelEnv
from mbrl_hdp_baselines.settings import MbpoConfig

Windows = NDArray[np.floating[Any]]
_METRICS = ("value_loss_1", "value_loss_2", "policy_loss", "temperature_loss", "temperature")


class FeatureSac(SACAgent):
    """mbrl-lib's `SACAgent` on features of the windows: angles as sine and cosine."""

    def __init__(self, sac: SAC, features: AngleFeatures) -> None:
        super().__init__(sac)
        self.features = features

    def act(self, obs: Windows, sample: bool = False, batched: bool = False, **_settings: Any) -> Windows:
        """Return the policy's actions."""
        return np.asarray(super().act(self.see(obs), sample=sample, batched=batched))

    def see(self, windows: Windows) -> Windows:
        """Return what the networks see of windows."""
        return self.features.encode(torch.as_tensor(windows)).numpy().astype(np.float32)


class StepPool:
    """Steps to draw from, as mbrl-lib's code draws from its replay buffers."""

    def __init__(self, steps: TransitionBatch, rng: np.random.Generator) -> None:
        self.steps, self.rng = steps, rng

    def sample(self, batch_size: int) -> TransitionBatch:
        """Return steps, drawn with replacement."""
        return self.steps[self.rng.integers(len(self.steps), size=batch_size)]


class Mbpo(EnsembleAgent):
    """MBPO; the policy's draws come from torch's global generator, which the loop seeds.

    Attributes:
        sac: mbrl-lib's SAC.
        agent: the same behind mbrl-lib's interface of agents.
    """

    def __init__(self, config: MbpoConfig, task: AgentTask) -> None:
        super().__init__(config, task)
        self.config = config
        args = SimpleNamespace(
            gamma=config.gamma, tau=config.tau, alpha=0.2, policy="Gaussian", hidden_size=config.hidden_size,
            target_update_interval=config.target_update_interval, automatic_entropy_tuning=True, lr=config.sac_lr,
            target_entropy=config.target_entropy, device=torch.device("cpu"),
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(task.seed)
            self.sac = SAC(self.features.width, task.action_space, args)
        self.agent = FeatureSac(self.sac, self.features)
        self.num_updates = self.num_epochs = 0

    @property
    def is_ready(self) -> bool:
        """Whether it has learned anything yet."""
        return self.num_updates > 0

    def act(self, packed: Packed, explore: bool) -> Act:
        """Draw from the policy while exploring, take its mean in evaluations."""
        act = self.agent.act(self.history.window(packed), sample=explore).astype(np.float64)
        self.history.add(packed, act)
        return act

    def learn(self, epoch: Epoch) -> Mapping[str, float]:
        """Train the ensemble where it is due, imagine steps from real ones, update the policy on them."""
        real = self.keep(epoch.new)
        found = self.fit(real) if self.num_epochs % self.config.fit_every == 0 else {}
        losses: tuple[float, ...] = ()
        if epoch.num_updates:
            imagined = self.imagine(real)
            for _ in range(epoch.num_updates):
                losses = self.sac.update_parameters(
                    imagined, self.config.sac_batch_size, self.num_updates, reverse_mask=True
                )
                self.num_updates += 1
        self.num_epochs += 1
        return found | dict(zip(_METRICS, losses, strict=False))

    def imagine(self, real: TransitionBatch) -> StepPool:
        """Return steps of the present policy in the ensemble, from windows of real steps, as the networks see them."""
        size = self.config.ensemble_size
        num_starts = max(1, round(self.config.num_rollouts / size)) * size  # mbrl-lib demands a multiple
        rng = numpy_generator(self.task.seed, "mbpo", "starts", self.num_epochs)
        env = WindowModelEnv(self.task, self.model, size, torch_generator(self.task.seed, "mbpo", self.num_epochs))
        shapes = (self.history.width,), (self.task.act_dim,)
        buffer = ReplayBuffer(num_starts * self.config.rollout_horizon, *shapes, rng=rng)
        rollout_model_and_populate_sac_buffer(
            env, StepPool(real, rng), self.agent, buffer, sac_samples_action=True,
            rollout_horizon=self.config.rollout_horizon, batch_size=num_starts,
        )  # fmt: skip
        steps = buffer.get_all()
        seen = (self.agent.see(windows) for windows in (steps.obs, steps.next_obs))
        obs, next_obs = seen
        return StepPool(
            TransitionBatch(obs, steps.act, next_obs, steps.rewards, steps.terminateds, steps.truncateds), rng
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the ensemble, the networks, their optimisers and the temperature."""
        state = super().state_dict() | {"num_updates": self.num_updates, "num_epochs": self.num_epochs}
        state["log_alpha"] = self.sac.log_alpha
        for name, network in self._networks().items():
            state |= prefixed(name, network.state_dict())
        for name, optimizer in self._optimizers().items():
            state |= prefixed(name, optimizer_state(optimizer))
        return state

    def load_state_dict(self, state: Mapping[str, Any], data: Trajectories, model: ContextModel | None) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state, data, model)
        self.num_updates, self.num_epochs = state["num_updates"], state["num_epochs"]
        for name, network in self._networks().items():
            network.load_state_dict(unprefixed(state, name))
        for name, optimizer in self._optimizers().items():
            load_optimizer(optimizer, unprefixed(state, name))
        with torch.no_grad():
            self.sac.log_alpha.copy_(state["log_alpha"])
        if self.num_updates:  # mbrl-lib's first update takes the setting `alpha`
            self.sac.alpha = self.sac.log_alpha.exp()

    def _networks(self) -> dict[str, torch.nn.Module]:
        return {"policy": self.sac.policy, "critic": self.sac.critic, "critic_target": self.sac.critic_target}

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        sac = self.sac
        return {"policy_optim": sac.policy_optim, "critic_optim": sac.critic_optim, "alpha_optim": sac.alpha_optim}
