"""A `ContextModel` on the packed vector [obs, belief], in two forms with one distribution of the states.

`BeliefModel` draws a path of contexts and steps only the head of the context that acts. `FilteringBeliefModel` carries
the belief along by Bayes' rule, as an agent would (`planner.context_mode=belief`). Both use `ContextModel`'s heads.
"""

from __future__ import annotations

from typing import Any

import mbrl.models
import numpy as np
import torch
from jaxtyping import Float
from mbrl.types import TransitionBatch
from torch import Tensor

from mbrl_hdp.belief.codec import BeliefCodec, narrow, widen
from mbrl_hdp.belief.filter import update_belief
from mbrl_hdp.belief.phase_filter import PhaseUpdate
from mbrl_hdp.control.paths import choose_contexts
from mbrl_hdp.control.rewards import ContextRewardFn, expected_reward
from mbrl_hdp.inference.imagined import belief_over_states
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.probability.phases import by_context

Packed = Float[Tensor, "B W"] | Float[np.ndarray, "B W"]
Obs = Float[Tensor, "B S"]
Act = Float[Tensor, "B A"]
Belief = Float[Tensor, "B k"]
Carried = Float[Tensor, "B c"]  # over contexts, or over their states
Reward = Float[Tensor, "B 1"]
State = dict[str, Tensor]
Rng = torch.Generator | None
# What mbrl-lib's `Model.sample` returns: packed next observations, rewards, no terminations, next state.
Step = tuple[Float[Tensor, "B W"], Reward | None, None, State]


class BeliefModel(mbrl.models.Model):
    """Rollouts for planning: the context is drawn from the packed belief, then from the chain.

    What a step returns is packed again; the rollout knows its context, so the belief there is a one-hot vector.

    Attributes:
        model: the learned model.
        codec: layout of the packed vector.
        context_reward: a reward that depends on the context, predicted with every step (mbrl-lib takes it from there
            when its environment has no reward function); None where the reward is a formula of (act, next_obs).
    """

    def __init__(self, model: ContextModel, context_reward: ContextRewardFn | None = None) -> None:
        super().__init__(model.device)
        self.model, self.context_reward = model, context_reward
        self.codec = BeliefCodec(model.task.obs_dim, model.task.max_contexts)

    def split(self, packed: Packed) -> tuple[Obs, Belief]:
        """Return the observations and the beliefs over the kept contexts."""
        rows = torch.as_tensor(packed, dtype=torch.float32, device=self.device)
        obs, belief = self.codec.unpack(rows)
        return obs, narrow(belief, self.model.slots, self.model.chain.initial.to(belief))

    def join(self, obs: Obs, belief: Belief) -> Float[Tensor, "B W"]:
        """Pack observations with beliefs over the kept contexts."""
        return self.codec.pack_tensors(obs, widen(belief.to(obs), self.model.slots, self.codec.max_contexts))

    def carried(self, packed: Packed | Float[np.ndarray, " W"], belief: Float[Tensor, "*batch k"]) -> Tensor:
        """Return the belief that a rollout carries on: over contexts, or over (context, phase) where these have phases.

        A packed observation of a tracker brings its own; of another one only the contexts are known, and their phases
        are as in the long run.
        """
        states = self.model.states
        if states is None:
            return belief
        own = getattr(packed, "states", None)
        if own is not None and len(own) == states.num_states and belief.ndim == 1:
            return torch.as_tensor(own, device=belief.device)
        return belief_over_states(states, belief)

    def reset(self, obs: Packed, rng: Rng = None) -> State:
        """Begin imagined trajectories at packed observations: state `obs` and `context`."""
        start, belief = self.split(obs)
        return self.model.reset(start, rng, self.carried(obs, belief))

    def sample(self, act: Act, model_state: State, deterministic: bool = False, rng: Rng = None) -> Step:
        """Step every trajectory in its own context, then draw the context that acts next."""
        next_obs, _, _, state = self.model.sample(act, model_state, deterministic, rng)
        known = torch.nn.functional.one_hot(state["context"], self.model.num_contexts)
        reward = None
        if self.context_reward is not None:
            reward = self.context_reward(act, next_obs, self.model.slots[model_state["context"]])
        return self.join(next_obs, known.to(next_obs)), reward, None, state

    def loss(self, model_in: TransitionBatch, target: Tensor | None = None) -> tuple[Tensor, dict[str, Any]]:
        """Return the learned model's loss; its data carries no beliefs."""
        return self.model.loss(model_in, target)

    def eval_score(self, model_in: TransitionBatch, target: Tensor | None = None) -> tuple[Tensor, dict[str, Any]]:
        """Return the learned model's score."""
        return self.model.eval_score(model_in, target)


class FilteringBeliefModel(BeliefModel):
    """Rollouts whose state holds the belief, which moves on by Theorem 2's update.

    Each step draws the acting context from the belief, the next observation from that context's head, and then the
    belief learns from that observation what an agent would. `deterministic` steps take the belief's mean instead.
    mbrl-lib's `ModelEnv` and planners run on it as they are.

    A reward that depends on the context is its expectation under what is believed about the context that acted once
    the step was seen. Averaged over next observations this is Theorem 2's r(s, b, a) = sum_k b_k r_k(s, a).
    """

    def reset(self, obs: Packed, rng: Rng = None) -> State:  # noqa: ARG002
        """Begin imagined trajectories at packed observations: state `obs` and `belief` (float64)."""
        start, belief = self.split(obs)
        return {"obs": start, "belief": self.carried(obs, belief).double()}

    def sample(self, act: Act, model_state: State, deterministic: bool = False, rng: Rng = None) -> Step:
        """Step every trajectory and update its belief by what it led to."""
        obs, belief = model_state["obs"], model_state["belief"]
        reward = None
        with torch.no_grad():
            if deterministic:
                next_obs, reward = self._expectation(obs, act, self._contexts(belief).to(obs))
                _, next_belief = self._update(obs, act, next_obs, belief)
            else:
                uniform = torch.rand(len(obs), generator=rng, device=obs.device)
                next_obs, acted, next_belief = self.advance(obs, act, belief, uniform, True, rng)
                if self.context_reward is not None:
                    reward = expected_reward(self.context_reward, act, next_obs, acted.to(obs), self.model.slots)
        return self.join(next_obs, self._contexts(next_belief)), reward, None, {"obs": next_obs, "belief": next_belief}

    def advance(
        self, obs: Obs, act: Act, belief: Carried, uniform: Float[Tensor, " B"], has_noise: bool = True, rng: Rng = None
    ) -> tuple[Obs, Belief, Carried]:
        """Step every trajectory in the context that its uniform number selects from its belief.

        Args:
            obs: where they are.
            act: what they do.
            belief: distribution of the context that acts (or of its state, where contexts have phases), float64.
            uniform: numbers in [0, 1).
            has_noise: draw the next observation; otherwise it is the expected one of the selected context.
            rng: source of the noise.

        Returns:
            Next observations, the distribution of the context that acted given them, and the next beliefs.
        """
        slot = self.model.slots[choose_contexts(self._contexts(belief), uniform)]
        dynamics = self.model.dynamics
        next_obs = dynamics.sample(obs, act, slot, rng) if has_noise else dynamics.predict(obs, act, slot)
        return next_obs, *self._update(obs, act, next_obs, belief)

    def _update(self, obs: Obs, act: Act, next_obs: Obs, belief: Carried) -> tuple[Belief, Carried]:
        log_lik = self.model.dynamics.log_prob_slots(obs, act, next_obs, self.model.slots)
        if self.model.states is not None:
            update = PhaseUpdate(self.model.states)
            acted, following = update(belief.double().cpu().numpy(), log_lik.double().cpu().numpy())
            return torch.from_numpy(update.contexts(acted)).to(obs.device), torch.from_numpy(following).to(obs.device)
        known = (belief, log_lik, self.model.chain.transition)
        filtered, following = update_belief(*(value.double().cpu().numpy() for value in known))
        return torch.from_numpy(filtered).to(obs.device), torch.from_numpy(following).to(obs.device)

    def _contexts(self, belief: Carried) -> Belief:
        """Return a carried belief by context."""
        return belief if self.model.states is None else by_context(belief, self.model.states.sizes)

    def _expectation(self, obs: Obs, act: Act, belief: Belief) -> tuple[Obs, Reward | None]:
        """Return the mean over the belief of every context's expected next observation and of its reward there."""
        mean, reward = torch.zeros_like(obs), obs.new_zeros(len(obs), 1)
        for column, slot in enumerate(self.model.slots):
            context, share = slot.expand(len(obs)), belief[:, column : column + 1]
            next_obs = self.model.dynamics.predict(obs, act, context)
            mean += share * next_obs
            if self.context_reward is not None:
                reward += share * self.context_reward(act, next_obs, context)
        return mean, reward if self.context_reward is not None else None
