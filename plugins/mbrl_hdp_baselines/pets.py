"""PETS with mbrl-lib's own ensemble, trainer and `ModelEnv`, blind to contexts or with a window of history."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import mbrl.models
import numpy as np
import torch
from gymnasium.spaces import Box
from jaxtyping import Float
from mbrl.types import TransitionBatch
from mbrl.util.replay_buffer import BootstrapIterator, TransitionIterator
from torch import Tensor

from mbrl_hdp.control.agent import Act, Agent, AgentTask, Epoch, Packed
from mbrl_hdp.control.rewards import RewardFn
from mbrl_hdp.control.state import load_optimizer, optimizer_state, prefixed, unprefixed
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.seeding import numpy_generator, torch_generator
from mbrl_hdp_baselines.features import AngleFeatures
from mbrl_hdp_baselines.history import History, transitions
from mbrl_hdp_baselines.imagination import make_mean_planner, plain_reward
from mbrl_hdp_baselines.settings import EnsembleConfig, PetsConfig


class WindowModel(mbrl.models.OneDTransitionRewardModel):
    """mbrl-lib's model on windows of history: it predicts the change of the newest observation and moves the window on.

    Args:
        model: mbrl-lib's ensemble, from features of window and action to the change of the observation.
        history: layout of the windows.
        features: angles of a window as sine and cosine.
    """

    def __init__(self, model: mbrl.models.GaussianMLP, history: History, features: AngleFeatures) -> None:
        self.obs_dim, self.features = history.obs_dim, features
        super().__init__(
            model, target_is_delta=True, normalize=True, normalize_double_precision=True, learned_rewards=False,
            obs_process_fn=self._encode,
        )  # fmt: skip

    def sample(
        self, act: Tensor, model_state: dict[str, Tensor], deterministic: bool = False,
        rng: torch.Generator | None = None,
    ) -> tuple[Tensor, None, None, dict[str, Tensor]]:  # fmt: skip
        """Return the next windows."""
        window = model_state["obs"]
        model_in = self._get_model_input(window, act)
        change, following = self.model.sample_1d(model_in, model_state, rng=rng, deterministic=deterministic)
        obs, past = window[:, : self.obs_dim], window[:, self.obs_dim :]
        moved = torch.cat([obs + change, torch.cat([obs, act, past], -1)[:, : past.shape[1]]], -1)
        following["obs"] = moved
        return moved, None, None, following

    def _process_batch(self, batch: TransitionBatch, _as_float: bool = False) -> tuple[Tensor, Tensor]:
        change = batch.next_obs[..., : self.obs_dim] - batch.obs[..., : self.obs_dim]
        model_in = self._get_model_input(batch.obs, batch.act)
        return model_in.float(), torch.as_tensor(change).float()

    def _encode(self, window: Any) -> Any:
        found = self.features.encode(torch.as_tensor(window))
        return found.numpy() if isinstance(window, np.ndarray) else found


class WindowModelEnv(mbrl.models.ModelEnv):
    """mbrl-lib's `ModelEnv` where `BeliefModelEnv` stands in C-CEM's planner; rewards see the newest observation."""

    def __init__(self, task: AgentTask, model: WindowModel, num_members: int, generator: torch.Generator) -> None:
        self.num_members = num_members
        space = task.action_space
        spaces = SimpleNamespace(
            observation_space=None,
            action_space=Box(np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)),
        )
        reward_fn, termination_fn = (self._on_obs(model, fn) for fn in (plain_reward(task), task.termination_fn))
        super().__init__(spaces, model, termination_fn, reward_fn, generator)

    @property
    def plan_width(self) -> int:
        """Numbers that a plan has for a step: an action."""
        return len(self.action_space.low)

    @property
    def generator(self) -> torch.Generator:
        """Source of the transitions' noise."""
        return self._rng

    def action_of(self, planned: Float[np.ndarray, " A"], obs: Float[np.ndarray, " W"]) -> Float[np.ndarray, " A"]:  # noqa: ARG002
        """Return the planned action."""
        return planned

    def one_plan(self) -> AbstractContextManager[None]:
        """Do nothing: every evaluation draws anew, as in mbrl-lib."""
        return nullcontext()

    def evaluate_action_sequences(
        self, action_sequences: Float[Tensor, "C H A"], initial_state: Float[np.ndarray, " W"], num_particles: int
    ) -> Float[Tensor, " C"]:
        """Return every plan's return; particles are rounded to a multiple of the ensemble, as mbrl-lib demands."""
        rounded = max(1, round(num_particles / self.num_members)) * self.num_members
        return super().evaluate_action_sequences(action_sequences, initial_state, rounded)

    @staticmethod
    def _on_obs(model: WindowModel, function: RewardFn) -> RewardFn:
        return lambda act, window: function(act, window[:, : model.obs_dim])


class EnsembleAgent(Agent):
    """What agents on mbrl-lib's ensemble have in common: the episodes, the model and its training.

    Attributes:
        model: mbrl-lib's model.
        num_fits: trainings of the ensemble so far.
    """

    def __init__(self, config: EnsembleConfig, task: AgentTask) -> None:
        self.settings, self.task = config, task
        self.history = History(task.obs_dim, task.act_dim, config.history)
        self.features = AngleFeatures(self.history.width, self.history.angles(task.angle_columns))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(task.seed)
            ensemble = mbrl.models.GaussianMLP(
                self.features.width + task.act_dim, task.obs_dim, "cpu", num_layers=config.num_layers,
                ensemble_size=config.ensemble_size, hid_size=config.hid_size, propagation_method="random_model",
                activation_fn_cfg={"_target_": "torch.nn.SiLU"},
            )  # fmt: skip
        self.model = WindowModel(ensemble, self.history, self.features)
        self.trainer = mbrl.models.ModelTrainer(self.model, config.lr, config.weight_decay)
        self.num_fits = 0
        self.data: Trajectories | None = None

    def begin_episode(self) -> None:
        """Forget the last episode."""
        self.history.reset()

    def keep(self, new: Trajectories) -> TransitionBatch:
        """Add episodes to those that are known; return all of their steps, windows in the place of observations."""
        self.data = new if self.data is None else Trajectories.concatenate([self.data, new])
        obs, act, reward, next_obs, ended = transitions(self.data, self.history)
        return TransitionBatch(obs, act, next_obs, reward, ended.astype(bool), np.zeros(len(obs), dtype=bool))

    def fit(self, batch: TransitionBatch) -> dict[str, float]:
        """Go on training the ensemble."""
        self.model.update_normalizer(batch)
        rng = numpy_generator(self.task.seed, "pets", "fit", self.num_fits)
        settings = {"batch_size": self.settings.batch_size, "shuffle_each_epoch": True, "rng": rng}
        dataset = (
            BootstrapIterator(batch, ensemble_size=self.settings.ensemble_size, permute_indices=False, **settings)
            if self.settings.ensemble_size > 1
            else TransitionIterator(batch, **settings)
        )
        losses, scores = self.trainer.train(dataset, num_epochs=self.settings.num_epochs, silent=True)
        self.num_fits += 1
        return {"model_loss": losses[-1], "model_mse": scores[-1]}

    def state_dict(self) -> dict[str, Any]:
        """Return the ensemble, its optimiser and the scale of its inputs; the loop keeps the episodes."""
        scale = self.model.input_normalizer
        state: dict[str, Any] = {"num_fits": self.num_fits, "input_mean": scale.mean, "input_std": scale.std}
        state |= prefixed("model", self.model.model.state_dict())
        return state | prefixed("optimizer", optimizer_state(self.trainer.optimizer))

    def load_state_dict(self, state: Mapping[str, Any], data: Trajectories, model: ContextModel | None) -> None:  # noqa: ARG002
        """Restore what `state_dict` returned."""
        self.num_fits, self.data = state["num_fits"], data
        self.model.input_normalizer.mean = state["input_mean"].clone()
        self.model.input_normalizer.std = state["input_std"].clone()
        self.model.model.load_state_dict(unprefixed(state, "model"))
        load_optimizer(self.trainer.optimizer, unprefixed(state, "optimizer"))


class Pets(EnsembleAgent):
    """PETS: the ensemble is trained on all episodes after every epoch; actions are planned.

    Attributes:
        planner: the optimiser that `planner=` names.
    """

    def __init__(self, config: PetsConfig, task: AgentTask) -> None:
        super().__init__(config, task)
        generator = torch_generator(task.seed, "pets", "noise")
        self.planner = make_mean_planner(task, WindowModelEnv(task, self.model, config.ensemble_size, generator))

    @property
    def is_ready(self) -> bool:
        """Whether there is a model to plan with."""
        return self.num_fits > 0

    def begin_episode(self) -> None:
        """Forget the last plan and the last episode."""
        super().begin_episode()
        self.planner.reset()

    def act(self, packed: Packed, explore: bool) -> Act:  # noqa: ARG002 - plans are no noisier in training
        """Plan, and take the first action."""
        act = np.asarray(self.planner.act(self.history.window(packed)))
        self.history.add(packed, act)
        return act

    def learn(self, epoch: Epoch) -> Mapping[str, float]:
        """Go on training the ensemble, on all episodes so far."""
        return self.fit(self.keep(epoch.new))

    def state_dict(self) -> dict[str, Any]:
        """Return the ensemble and the planner."""
        return super().state_dict() | prefixed("planner", self.planner.state_dict())

    def load_state_dict(self, state: Mapping[str, Any], data: Trajectories, model: ContextModel | None) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state, data, model)
        self.planner.load_state_dict(unprefixed(state, "planner"))
