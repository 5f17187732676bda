"""What the transition model is: K heads p(next_obs | obs, act, context), evaluated together or one per row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mbrl_hdp.inference.density_table import DensityTable

Rollout = Callable[[Tensor], Tensor]
# Rows: one step each, in a context of its own.
Obs = Float[Tensor, "batch S"]
Act = Float[Tensor, "batch A"]
ActingContext = Int[Tensor, " batch"]
Slots = Int[Tensor, " n"]
# Blocks of rows, one for each path of contexts.
BlockObs = Float[Tensor, "paths rows S"]
BlockAct = Float[Tensor, "paths rows A"] | Float[Tensor, "rows A"]
BlockContext = Int[Tensor, " paths"]
Paths = Int[Tensor, "paths steps"]


class ContextDynamics(nn.Module, ABC):
    """The per-context transition models theta_1..theta_K of eq. (1).

    Convention: every `nn.Parameter` has the context slot as its first axis (K, ...), so that the core can reorder or
    reset slots without knowing the structure. What is shared by the contexts (normalisation) is a buffer.

    Attributes:
        max_contexts: number of context slots K.
        obs_dim: width S of an observation.
        act_dim: width A of an action; 0 where there is none.
    """

    def __init__(self, max_contexts: int, obs_dim: int, act_dim: int) -> None:
        super().__init__()
        self.max_contexts = max_contexts
        self.obs_dim = obs_dim
        self.act_dim = act_dim

    @abstractmethod
    def log_prob(self, obs: Obs, act: Act, next_obs: Obs) -> Float[Tensor, "batch K"]:
        """Return log p(next_obs | obs, act, context=k) for every k, in the data's own units.

        Parts of the state that the structure predicts exactly (positions from velocities) carry no density.
        """

    def log_prob_slots(self, obs: Obs, act: Act, next_obs: Obs, slots: Slots) -> Float[Tensor, "batch n"]:
        """Return `log_prob` of some contexts only, those that distillation left alive.

        A structure that can leave out the others' work overrides this.
        """
        return self.log_prob(obs, act, next_obs)[:, slots]

    def log_prob_seen(
        self, obs: Obs, act: Act, next_obs: Obs, slots: Slots | None = None
    ) -> Float[Tensor, "batch n"] | None:
        """Return `log_prob` of what is not NaN in next_obs, the rest integrated out; None if this model cannot.

        Rows with a missing sensor come here, so that the others still inform; without an answer they carry nothing.
        """
        del obs, act, next_obs, slots
        return None

    def density_table(self, slots: Slots) -> DensityTable | None:
        """Return `log_prob` of some contexts as plain arrays; None if it cannot be written so.

        With it the online filter is compiled and the model can be exported (`mbrl-hdp export`).
        """
        del slots
        return None

    @abstractmethod
    def predict(self, obs: Obs, act: Act, context: ActingContext) -> Obs:
        """Return the expected next observation of every row in its own context."""

    @abstractmethod
    def sample(self, obs: Obs, act: Act, context: ActingContext, generator: torch.Generator | None = None) -> Obs:
        """Draw the next observation of every row in its own context."""

    def predict_blocks(self, obs: BlockObs, act: BlockAct, context: BlockContext) -> BlockObs:
        """Return the expected next observation where all rows of path p are in context[p].

        Candidate plans that share context paths look like this: P paths, each with all candidates. Actions without the
        path axis are the same on every path. A structure that can do without sorting rows by context overrides this.
        """
        rows, acts, contexts = _flatten_blocks(obs, act, context)
        return self.predict(rows, acts, contexts).view_as(obs)

    def sample_blocks(
        self, obs: BlockObs, act: BlockAct, context: BlockContext, generator: torch.Generator | None = None
    ) -> BlockObs:
        """Draw the next observation where all rows of path p are in context[p]; see `predict_blocks`."""
        rows, acts, contexts = _flatten_blocks(obs, act, context)
        return self.sample(rows, acts, contexts, generator).view_as(obs)

    def rollout_blocks(
        self,
        obs: Float[Tensor, " S"],
        acts: Float[Tensor, "rows steps A"] | Float[Tensor, "paths rows steps A"],
        paths: Paths,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "steps paths rows S"]:
        """Return where every plan (row of `acts`) leads from `obs` on every path of contexts, step by step.

        Plans that react to contexts act differently on every path; they may react to earlier contexts only, so on paths
        that have gone the same way they do the same. Without a generator every step is the expected one, with one it
        is drawn.
        """
        state = obs.expand(len(paths), acts.shape[-3], -1).contiguous()
        states = []
        for act, context in zip(acts.unbind(-2), paths.unbind(1), strict=True):
            if generator is None:
                state = self.predict_blocks(state, act, context)
            else:
                state = self.sample_blocks(state, act, context, generator)
            states.append(state)
        return torch.stack(states)

    def begin_rollout(
        self, obs: Float[Tensor, " S"], paths: Paths, generator: torch.Generator | None = None
    ) -> Rollout:
        """Return a function of plans that does what `rollout_blocks` does; planners call it repeatedly.

        The parameters must not change while it is in use. A structure that can prepare something, or do all steps at
        once, overrides this; plans on the same path may then share their noise, within a call and between calls.
        """
        return lambda acts: self.rollout_blocks(obs, acts, paths, generator)

    @abstractmethod
    def log_prior(self) -> Float[Tensor, ""]:
        """Return log p(theta), the sum over all heads."""

    def set_normaliser(self, obs: Obs, act: Act, next_obs: Obs) -> None:
        """Fix the scales of inputs and targets from data; called once, before the first training step."""

    @abstractmethod
    def reset_slots(self, slots: Slots, generator: torch.Generator | None = None) -> None:
        """Set the heads in `slots` to fresh starting values (restarts, learning new contexts)."""

    def start_near(self, slot: int, spread: float, generator: torch.Generator | None = None) -> None:
        """Set every head to the one in `slot` plus `spread` times its own deviation from the mean of fresh heads."""
        values = list(self.parameters())
        shared = [value[slot].detach().clone() for value in values]
        self.reset_slots(torch.arange(self.max_contexts), generator)
        with torch.no_grad():
            for value, centre in zip(values, shared, strict=True):
                value.copy_(centre + spread * (value - value.mean(0)))

    def sharpen(self) -> None:
        """Lower noise floors that keep contexts from being split; called once, when the contexts are settled."""


@runtime_checkable
class ClosedFormDynamics(Protocol):
    """A transition model whose heads have an optimum in closed form; it is trained without gradients."""

    def fit_heads(self, obs: Obs, act: Act, next_obs: Obs, weight: Float[Tensor, "batch K"]) -> None:
        """Set every head to its optimum or posterior given rows that count `weight` times for it.

        Heads without rows stay as they are.
        """


def _flatten_blocks(obs: Tensor, act: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    num_paths, num_rows, _ = obs.shape
    acts = act.expand(num_paths, num_rows, -1)
    return obs.flatten(0, 1), acts.flatten(0, 1), context.repeat_interleave(num_rows)
