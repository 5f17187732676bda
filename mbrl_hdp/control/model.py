"""A `ContextModel` on the packed vector [obs, belief], in two modes with one law of the states.

Planning draws a context and steps only that context's head (`BeliefModel`); imagined data for policies carries the
belief along by Bayes' rule (`FilteringBeliefModel`). In both the transition itself is `ContextModel`'s.
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
from mbrl_hdp.inference.model import ContextModel

Packed = Float[Tensor, "B W"] | Float[np.ndarray, "B W"]


class BeliefModel(mbrl.models.Model):
    """Rollouts for planning: the context is drawn from the packed belief, then from the chain.

    What a step returns is packed again; the rollout knows its context, so the belief there is a one-hot vector.

    Attributes:
        model: the learned model.
        codec: layout of the packed vector.
    """

    def __init__(self, model: ContextModel) -> None:
        super().__init__(model.device)
        self.model = model
        self.codec = BeliefCodec(model.task.obs_dim, model.task.max_contexts)

    def split(self, packed: Packed) -> tuple[Float[Tensor, "B S"], Float[Tensor, "B k"]]:
        """Give the observations and the beliefs over the kept contexts."""
        rows = torch.as_tensor(packed, dtype=torch.float32, device=self.device)
        obs, belief = self.codec.unpack_tensors(rows)
        return obs, narrow(belief, self.model.slots, self.model.chain.initial.to(belief))

    def join(self, obs: Float[Tensor, "B S"], belief: Float[Tensor, "B k"]) -> Float[Tensor, "B W"]:
        """Pack observations with beliefs over the kept contexts."""
        return self.codec.pack_tensors(obs, widen(belief.to(obs), self.model.slots, self.codec.max_contexts))

    def reset(self, obs: Packed, rng: torch.Generator | None = None) -> dict[str, Tensor]:
        """Begin imagined trajectories at packed observations: state `obs` and `context`."""
        start, belief = self.split(obs)
        return self.model.reset(start, rng, belief)

    def sample(
        self,
        act: Float[Tensor, "B A"],
        model_state: dict[str, Tensor],
        deterministic: bool = False,
        rng: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "B W"], None, None, dict[str, Tensor]]:
        """Step every trajectory in its own context, then draw the context that acts next."""
        next_obs, _, _, state = self.model.sample(act, model_state, deterministic, rng)
        known = torch.nn.functional.one_hot(state["context"], self.model.num_contexts)
        return self.join(next_obs, known.to(next_obs)), None, None, state

    def loss(self, model_in: TransitionBatch, target: Tensor | None = None) -> tuple[Tensor, dict[str, Any]]:
        """Give the learned model's loss; its data carries no beliefs."""
        return self.model.loss(model_in, target)

    def eval_score(self, model_in: TransitionBatch, target: Tensor | None = None) -> tuple[Tensor, dict[str, Any]]:
        """Give the learned model's score."""
        return self.model.eval_score(model_in, target)


class FilteringBeliefModel(BeliefModel):
    """Rollouts for policies: the belief is part of the state and moves on by Theorem 2's update.

    Each step draws the acting context from the belief, the next observation from that context's law, and then the
    belief learns from that observation what an agent would. `deterministic` steps take the belief's mean instead.
    """

    def reset(self, obs: Packed, rng: torch.Generator | None = None) -> dict[str, Tensor]:  # noqa: ARG002
        """Begin imagined trajectories at packed observations: state `obs` and `belief`."""
        start, belief = self.split(obs)
        return {"obs": start, "belief": belief}

    def sample(
        self,
        act: Float[Tensor, "B A"],
        model_state: dict[str, Tensor],
        deterministic: bool = False,
        rng: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "B W"], None, None, dict[str, Tensor]]:
        """Step every trajectory and update its belief by what it led to."""
        obs, belief = model_state["obs"], model_state["belief"]
        with torch.no_grad():
            if deterministic:
                next_obs = self._mean(obs, act, belief)
            else:
                slot = self.model.slots[torch.multinomial(belief, 1, generator=rng).squeeze(-1)]
                next_obs = self.model.dynamics.sample(obs, act, slot, rng)
            log_lik = self.model.dynamics.log_prob_slots(obs, act, next_obs, self.model.slots)
            next_belief = update_belief(belief, log_lik.to(belief), self.model.chain.transition.to(belief))
        return self.join(next_obs, next_belief), None, None, {"obs": next_obs, "belief": next_belief}

    def _mean(self, obs: Tensor, act: Tensor, belief: Tensor) -> Tensor:
        mean = torch.zeros_like(obs)
        for column, slot in enumerate(self.model.slots.tolist()):
            context = torch.full((len(obs),), slot, device=obs.device)
            mean += belief[:, column : column + 1] * self.model.dynamics.predict(obs, act, context)
        return mean
