"""Recurrent PPO of sb3-contrib fed by our loop: its buffer is filled step by step, its `train` does the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates

from mbrl_hdp.control.agent import AgentTask
from mbrl_hdp.control.baseline import Baseline, Vector
from mbrl_hdp.control.state import load_optimizer, optimizer_state, prefixed, unprefixed
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.seeding import torch_generator
from mbrl_hdp_baselines.features import AngleFeatures
from mbrl_hdp_baselines.normaliser import Normaliser
from mbrl_hdp_baselines.policies import BeliefPolicy, SequencePolicy
from mbrl_hdp_baselines.sb3 import SpacesOnly, logged, silence
from mbrl_hdp_baselines.settings import PpoConfig, RnnPpoConfig
from mbrl_hdp_baselines.single_step import State, StepOutput, StepPolicy

Pair = tuple[Vector, Vector]

_BUFFERED = (
    *("observations", "actions", "rewards", "episode_starts", "values", "log_probs"),
    *("hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf"),
)
_METRICS = ("policy_gradient_loss", "value_loss", "approx_kl", "std", "explained_variance")


@dataclass
class _Step:
    """A step that is not in the buffer yet: whether it is the last of its episode is known later.

    Attributes:
        seen: what the policy saw.
        act: what it drew, before it was cut off at the bounds.
        output: what the policy said, with the state of the memory after the step.
        before: states of the actor's and the critic's memory before.
        is_first: whether the episode began with it.
        reward: what it earned, scaled.
        reached: what the policy would see next.
        terminated: whether the episode ended by itself.
    """

    seen: Vector
    act: np.ndarray[Any, Any]
    output: StepOutput
    before: tuple[State, State]
    is_first: bool
    reward: float = 0.0
    reached: Vector | None = None
    terminated: bool = False


class RecurrentPpo(Baseline):
    """sb3-contrib's RecurrentPPO with its own policy, on standardised features of the observation.

    Every step and every update is what `RecurrentPPO.learn` would do on one environment. Actions are drawn from a
    stream of its own, minibatches by numpy's global generator, which the loop seeds.

    Attributes:
        ppo: the algorithm.
    """

    def __init__(self, config: PpoConfig, task: AgentTask) -> None:
        self.config, self.task = config, task
        self.features = AngleFeatures(task.obs_dim, task.angle_columns)
        self.normaliser = Normaliser(self.features.width, config.obs_clip)
        self.ppo = RecurrentPPO(
            self._policy_class(), SpacesOnly(self._seen_width(), task.action_space), device="cpu", seed=task.seed,
            learning_rate=config.learning_rate, n_steps=config.n_steps, batch_size=config.batch_size,
            n_epochs=config.n_epochs, gamma=config.gamma, gae_lambda=config.gae_lambda, clip_range=config.clip_range,
            ent_coef=config.ent_coef, vf_coef=config.vf_coef, max_grad_norm=config.max_grad_norm,
            policy_kwargs=self._policy_settings(),
        )  # fmt: skip
        silence(self.ppo)
        self._one_step = StepPolicy(self.policy)
        self._stream = torch_generator(task.seed, "ppo", "actions")
        self._step: _Step | None = None
        self._metrics: dict[str, float] = {}
        self.reset()

    @property
    def policy(self) -> RecurrentActorCriticPolicy:
        """The policy."""
        return self.ppo.policy

    def reset(self) -> None:
        """Begin an episode with an empty memory."""
        empty = np.zeros(self.policy.lstm_output_dim, dtype=np.float32)
        self._memory: tuple[State, State] = (empty, empty), (empty, empty)
        self._previous: Pair | None = None

    def act(self, obs: Vector, explore: bool = False) -> Vector:
        """Draw from the policy while exploring, take its mean in evaluations."""
        if explore:
            self._store(is_last=False)
            self.normaliser.add(self._features(obs))
        seen, before = self._see(obs, self._previous), self._memory
        output = self._last_output = self._one_step(seen, *before)
        self._memory = output.actor, output.critic
        drawn = output.mean
        if explore:
            drawn = drawn + output.std * torch.randn(len(drawn), generator=self._stream).numpy()
            self._step = _Step(seen, drawn, output, before, is_first=self._previous is None)
        taken = np.clip(drawn, self.ppo.action_space.low, self.ppo.action_space.high).astype(np.float64)
        self._previous = (obs, taken)
        return taken

    def observe(self, obs: Vector, act: Vector, reward: float, next_obs: Vector, terminated: bool) -> None:
        """Keep a step until it is known whether it was the last."""
        assert self._step is not None
        self._step.reward, self._step.terminated = self.config.reward_scale * reward, terminated
        self._step.reached = self._see(next_obs, (obs, act))

    def end_episode(self) -> Mapping[str, float]:
        """Store the last step; the value of what lies beyond a time limit is added to its reward."""
        self._store(is_last=True)
        return self._metrics

    def state_dict(self) -> dict[str, Any]:
        """Return policy, optimiser, the steps since the last update and the normaliser."""
        buffer = self.ppo.rollout_buffer
        state: dict[str, Any] = {"num_updates": self.ppo._n_updates, "num_stored": buffer.pos, "metrics": self._metrics}
        state["stream"] = self._stream.get_state()
        state |= prefixed("policy", self.policy.state_dict())
        state |= prefixed("optimizer", optimizer_state(self.policy.optimizer))
        state |= prefixed("normaliser", self.normaliser.state_dict())
        return state | prefixed("buffer", {name: getattr(buffer, name)[: buffer.pos] for name in _BUFFERED})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.policy.load_state_dict(unprefixed(state, "policy"))
        load_optimizer(self.policy.optimizer, unprefixed(state, "optimizer"))
        self.normaliser.load_state_dict(unprefixed(state, "normaliser"))
        self.ppo._n_updates, self._metrics = state["num_updates"], dict(state["metrics"])
        self._stream.set_state(state["stream"].clone())
        buffer = self.ppo.rollout_buffer
        buffer.reset()
        buffer.pos = state["num_stored"]
        for name in _BUFFERED:
            getattr(buffer, name)[: buffer.pos] = state[f"buffer.{name}"]

    def _store(self, is_last: bool) -> None:
        """Append the kept step to the buffer; update the policy when the buffer is full."""
        step, self._step = self._step, None
        if step is None or step.reached is None:  # an action that was never taken
            return
        buffer: RecurrentRolloutBuffer = self.ppo.rollout_buffer
        is_cut, reward = is_last and not step.terminated, step.reward
        if is_cut or buffer.pos + 1 == buffer.buffer_size:
            reached = self._one_step(step.reached, step.output.actor, step.output.critic).value
        if is_cut:
            reward += self.config.gamma * reached
        buffer.add(
            step.seen.astype(np.float32)[None], step.act[None], np.array([reward]), np.array([step.is_first]),
            torch.tensor([step.output.value]), torch.tensor([step.output.log_prob(step.act)]),
            lstm_states=_as_states(*step.before),
        )  # fmt: skip
        if buffer.full:
            # What follows the last step of an episode is another one: its value must not count.
            buffer.compute_returns_and_advantage(last_values=torch.tensor([reached]), dones=np.array([is_last]))
            self.ppo.train()
            self._metrics = {name: value for name, value in logged(self.ppo).items() if name in _METRICS}
            buffer.reset()

    def _features(self, obs: Vector) -> Vector:
        return self.features.encode_row(np.asarray(obs, dtype=np.float64))

    def _see(self, obs: Vector, previous: Pair | None) -> Vector:  # noqa: ARG002 - `BeliefPpo` sees it
        """Return what the policy sees at an observation, given the observation and the action before it."""
        return self.normaliser(self._features(obs))

    def _seen_width(self) -> int:
        return self.features.width

    def _policy_class(self) -> type[RecurrentActorCriticPolicy]:
        return SequencePolicy

    def _policy_settings(self) -> dict[str, Any]:
        layers = list(self.config.hidden_sizes)
        return {
            "lstm_hidden_size": self.config.lstm_hidden_size,
            "net_arch": {"pi": layers, "vf": layers},
            "log_std_init": self.config.log_std_init,
        }


class BeliefPpo(RecurrentPpo):
    """RNN-PPO: the memory sees the previous observation and action and is read as a belief over contexts.

    With another `decoder` than softmax there is no belief: nothing is noted, and the agent has no contexts of its own.

    Attributes:
        num_contexts: width of the belief.
    """

    config: RnnPpoConfig

    def __init__(self, config: RnnPpoConfig, task: AgentTask) -> None:
        if config.num_contexts is None and task.num_contexts is None:
            raise ConfigError(f"agent.num_contexts: {task.name} does not report how many contexts it has; set it")
        self.num_contexts = config.num_contexts or task.num_contexts or 0
        self._beliefs: list[Vector] = []
        super().__init__(config, task)

    def reset(self) -> None:
        """Begin an episode with an empty memory."""
        super().reset()
        self._beliefs = []

    def act(self, obs: Vector, explore: bool = False) -> Vector:
        """Draw from the policy and note its belief."""
        act = super().act(obs, explore)
        if self._has_belief:
            self._beliefs.append(np.asarray(self._last_output.belief, dtype=np.float64))
        return act

    def end_episode(self) -> Mapping[str, float]:
        """Store the last step; add how sure the belief was, and how much it moved."""
        if not self._has_belief:
            return super().end_episode()
        beliefs = np.array(self._beliefs)
        entropy = -(beliefs * np.log(np.maximum(beliefs, 1e-12))).sum(1).mean()
        return {**super().end_episode(), "belief_entropy": float(entropy), "belief_std": float(beliefs.std(0).mean())}

    def context_labels(self) -> np.ndarray[Any, Any] | None:
        """Return the most likely context at every step; None without a belief."""
        return np.array(self._beliefs).argmax(1) if self._has_belief else None

    def state_dict(self) -> dict[str, Any]:
        """Return the state; `beliefs` are those of the last episode, step by step, to look at."""
        if not self._has_belief:
            return super().state_dict()
        return {**super().state_dict(), "beliefs": np.array(self._beliefs).reshape(-1, self.num_contexts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self._beliefs = list(state["beliefs"]) if self._has_belief else []

    @property
    def _has_belief(self) -> bool:
        return self.config.decoder == "softmax"

    def _see(self, obs: Vector, previous: Pair | None) -> Vector:
        now = super()._see(obs, None)
        if previous is None:
            return np.concatenate([now, np.zeros(len(now) + self.task.act_dim)])
        return np.concatenate([now, super()._see(previous[0], None), previous[1]])

    def _seen_width(self) -> int:
        return 2 * self.features.width + self.task.act_dim

    def _policy_class(self) -> type[RecurrentActorCriticPolicy]:
        return BeliefPolicy

    def _policy_settings(self) -> dict[str, Any]:
        settings = {"num_contexts": self.num_contexts, "decoder": self.config.decoder}
        return {**super()._policy_settings(), **settings, "obs_width": self.features.width}


def _as_states(actor: State, critic: State) -> RNNStates:
    """Return states as sb3-contrib's buffer takes them: layers x environments x units."""
    return RNNStates(*(tuple(torch.from_numpy(part)[None, None] for part in state) for state in (actor, critic)))
