"""Rewards of imagined steps: formulas, rewards that depend on the context, and one that is learned with the model.

A formula is `f(act, next_obs) -> (B, 1)`. One that depends on the context (Theorem 2's r(s, b, a)) says so by an
attribute `uses_context = True` and is `f(act, next_obs, slot) -> (B, 1)`: slot is the model's slot of the context that
acted on the step. Planners know it on every path; where only a belief is known, its expectation is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError
from mbrl_hdp.inference.heads import ContextHeads
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.seeding import torch_generator

RewardFn = Callable[[Tensor, Tensor], Tensor]
ContextRewardFn = Callable[[Tensor, Tensor, Tensor], Tensor]
AnyRewardFn = Callable[..., Tensor]  # either of the two
_Function = TypeVar("_Function", bound=Callable[..., Any])

# Every tenth episode is held out, always the same ones: what a head was once trained on is never held out later.
_HELD_OUT_EVERY, _HELD_OUT_FIRST = 10, 4
_REFIT_RATE = 0.3


def uses_context(reward_fn: AnyRewardFn) -> bool:
    """Return whether a reward function wants the context slot as its third argument."""
    return bool(getattr(reward_fn, "uses_context", False))


def context_reward(function: _Function) -> _Function:
    """Declare that a function is a reward of (act, next_obs, slot).

    Example:
        >>> @context_reward
        ... def reward(act, next_obs, slot):
        ...     return torch.where(slot[:, None] == 0, act, -act)
    """
    function.uses_context = True  # type: ignore[attr-defined]
    return function


def expected_reward(
    reward_fn: ContextRewardFn,
    act: Float[Tensor, "B A"],
    next_obs: Float[Tensor, "B S"],
    belief: Float[Tensor, "B k"],
    slots: Int[Tensor, " k"],
) -> Float[Tensor, "B 1"]:
    """Return sum_k belief_k r(act, next_obs, slots_k)."""
    total = next_obs.new_zeros(len(next_obs), 1)
    for column, slot in enumerate(slots):
        total += belief[:, column : column + 1] * reward_fn(act, next_obs, slot.expand(len(next_obs)))
    return total


class _Rows(NamedTuple):
    """Steps with their rewards: inputs `M I`, rewards `M 1`, responsibility of every kept context `M k`."""

    inputs: Tensor
    rewards: Tensor
    weights: Tensor

    def at(self, is_wanted: Tensor) -> _Rows:
        return _Rows(*(part[is_wanted] for part in self))


class LearnedReward(nn.Module):
    """One small network r(act, next_obs) per context slot, fitted to the rewards of real episodes.

    Slots are those of the model (max_contexts), so the heads survive refits and distillation. One further head is
    fitted to all steps alike: a context that is new begins as its copy, and slots that were never kept use it.

    Args:
        obs_dim: width of an observation.
        act_dim: width of an action.
        max_contexts: number of context slots K.
        angle_columns: observation columns that are angles; the networks see their sine and cosine.
        hidden_size: units of the hidden layer.
        lr: learning rate where a context is new, falling to 0; other fits use a part of it.
        batch_size: steps in a minibatch.
        seed: seed of the starting weights.

    Example:
        >>> reward = LearnedReward(obs_dim=3, act_dim=1, max_contexts=10)
        >>> rmse = reward.fit(model, data, num_steps=2000)
        >>> planner = make_planner(CemConfig(), model, reward, never, [-2.0], [2.0])
    """

    uses_context = True
    is_learned: Tensor
    input_centre: Tensor
    input_scale: Tensor
    reward_centre: Tensor
    reward_scale: Tensor

    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        max_contexts: int,
        angle_columns: Sequence[int] = (),
        hidden_size: int = 64,
        lr: float = 2e-2,
        batch_size: int = 256,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.settings = {
            "obs_dim": obs_dim, "act_dim": act_dim, "max_contexts": max_contexts, "angle_columns": list(angle_columns),
            "hidden_size": hidden_size, "lr": lr, "batch_size": batch_size, "seed": seed,
        }  # fmt: skip
        self.max_contexts, self.lr, self.batch_size = max_contexts, lr, batch_size
        self.angle_columns = sorted(angle_columns)
        self.lengths = [column for column in range(obs_dim) if column not in self.angle_columns]
        num_inputs = act_dim + obs_dim + len(self.angle_columns)
        self.heads = ContextHeads(max_contexts + 1, num_inputs, 1, [hidden_size])
        self.register_buffer("is_learned", torch.zeros(max_contexts, dtype=torch.bool))
        self.register_buffer("input_centre", torch.zeros(num_inputs))
        self.register_buffer("input_scale", torch.ones(num_inputs))
        self.register_buffer("reward_centre", torch.zeros(1))
        self.register_buffer("reward_scale", torch.ones(1))
        generator = torch_generator(seed, "learned reward")
        with torch.no_grad():
            for value, fan_in in zip(self.heads.parameters(), self._fan_in(), strict=True):
                value.copy_(torch.randn(value.shape, generator=generator) / math.sqrt(fan_in))

    def forward(
        self, act: Float[Tensor, "B A"], next_obs: Float[Tensor, "B S"], slot: Int[Tensor, " B"]
    ) -> Float[Tensor, "B 1"]:
        """Return the expected reward of every step in its own context.

        Raises:
            DataError: on a slot that does not exist.
        """
        if slot.numel() and int(slot.max()) >= self.max_contexts:
            raise DataError(f"context slots must lie in [0, {self.max_contexts}), got {int(slot.max())}")
        head = torch.where(self.is_learned[slot], slot, self.max_contexts)
        inputs = (self._features(act, next_obs) - self.input_centre) / self.input_scale
        return self.heads.own_head(inputs, head) * self.reward_scale + self.reward_centre

    def fit(self, model: ContextModel, data: Trajectories, num_steps: int, seed: int = 0) -> float:
        """Fit the heads of the model's contexts to all rewards, by squared error weighted with smoothed contexts.

        Goes on from what is known already; the same calls give the same numbers.

        Args:
            model: infers which context acted.
            data: real episodes with their rewards.
            num_steps: gradient steps; contexts that are new take half as many on all steps alike before.
            seed: seed of the minibatches.

        Returns:
            Root mean squared error on the held-out episodes (every tenth); NaN while there is none.

        Raises:
            DataError: if the data has no rewards.
        """
        rows, is_held_out = self._rows(model, data)
        known = rows.at(~is_held_out)
        generator = torch_generator(seed, "learned reward", "minibatches")
        self._set_units(known)
        new = model.slots[~self.is_learned[model.slots]]
        rate = self.lr if len(new) else self.lr * _REFIT_RATE
        pooled = torch.tensor([self.max_contexts])
        everything = torch.ones_like(known.rewards)
        if len(new):
            self._train(pooled, known._replace(weights=everything), (num_steps + 1) // 2, rate, generator)
            self._copy_pooled(new)
        both = known._replace(weights=torch.cat([known.weights, everything], 1))
        self._train(torch.cat([model.slots, pooled]), both, num_steps, rate, generator)
        return self._error(rows.at(is_held_out), model.slots)

    def narrowed(self, slots: Int[Tensor, " k"]) -> LearnedReward:
        """Return the same reward for a model that has only these slots, in their order."""
        small = LearnedReward(**{**self.settings, "max_contexts": len(slots)})  # type: ignore[arg-type]
        heads = torch.cat([slots, torch.tensor([self.max_contexts])])
        with torch.no_grad():
            for mine, theirs in zip(small.heads.parameters(), self.heads.parameters(), strict=True):
                mine.copy_(theirs[heads])
        small.is_learned.copy_(self.is_learned[slots])
        for name in ("input_centre", "input_scale", "reward_centre", "reward_scale"):
            getattr(small, name).copy_(getattr(self, name))
        return small

    def _train(self, heads: Tensor, rows: _Rows, num_steps: int, rate: float, generator: torch.Generator) -> None:
        inputs = (rows.inputs - self.input_centre) / self.input_scale
        targets = (rows.rewards - self.reward_centre) / self.reward_scale
        ones, zeros = inputs.new_ones(len(heads), 1), inputs.new_zeros(len(heads))
        optimizer = torch.optim.Adam(self.heads.parameters(), lr=rate, fused=True)
        for step in range(num_steps):
            optimizer.param_groups[0]["lr"] = 0.5 * rate * (1.0 + math.cos(math.pi * step / num_steps))
            batch = torch.randint(len(inputs), (self.batch_size,), generator=generator)
            # A Gaussian log density of variance 1 is minus half the squared error; its kernels are compiled.
            log_density = self.heads.log_density(inputs[batch], targets[batch], ones, zeros, slots=heads)
            loss = -2.0 * (rows.weights[batch] * log_density).sum() / self.batch_size
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def _copy_pooled(self, slots: Tensor) -> None:
        with torch.no_grad():
            for value in self.heads.parameters():
                value[slots] = value[self.max_contexts].clone()
            self.is_learned[slots] = True

    def _error(self, rows: _Rows, slots: Tensor) -> float:
        if not len(rows.rewards):
            return float("nan")
        with torch.no_grad():
            inputs = (rows.inputs - self.input_centre) / self.input_scale
            found = self.heads(inputs)[:, slots, 0] * self.reward_scale + self.reward_centre
            return float((rows.weights * (found - rows.rewards).square()).sum(1).mean().sqrt())

    def _set_units(self, rows: _Rows) -> None:
        """Estimate centre and scale from all data so far; the networks are rewritten to stay the same functions."""
        (weight, out_weight), (bias, out_bias) = self.heads.weights, self.heads.biases
        is_first = not bool(self.is_learned.any())
        with torch.no_grad():
            centre, scale = _units(rows.inputs)
            reward_centre, reward_scale = _units(rows.rewards)
            if not is_first:
                bias += weight @ ((centre - self.input_centre) / self.input_scale)
                weight *= scale / self.input_scale
                out_bias.copy_((out_bias * self.reward_scale + self.reward_centre - reward_centre) / reward_scale)
                out_weight *= self.reward_scale / reward_scale
            self.input_centre.copy_(centre)
            self.input_scale.copy_(scale)
            self.reward_centre.copy_(reward_centre)
            self.reward_scale.copy_(reward_scale)

    def _rows(self, model: ContextModel, data: Trajectories) -> tuple[_Rows, Tensor]:
        """Return every step whose reward is known, and whether its episode is held out."""
        if data.reward is None:
            raise DataError("a reward can only be learned from episodes with rewards; this data has none")
        is_known = data.is_observed & np.isfinite(data.reward)
        episode = np.broadcast_to(np.arange(data.num_episodes)[:, None], is_known.shape)[is_known]
        arrays = data.act, data.obs[:, 1:], data.reward[..., None], model.smooth(data)
        act, next_obs, rewards, weights = (torch.as_tensor(a[is_known], dtype=torch.float32) for a in arrays)
        is_held_out = torch.from_numpy(episode % _HELD_OUT_EVERY == _HELD_OUT_FIRST)
        return _Rows(self._features(act, next_obs), rewards, weights), is_held_out

    def _features(self, act: Tensor, next_obs: Tensor) -> Tensor:
        if not self.angle_columns:
            return torch.cat([act, next_obs], -1)
        angles = next_obs[:, self.angle_columns]
        return torch.cat([act, next_obs[:, self.lengths], angles.sin(), angles.cos()], -1)

    def _fan_in(self) -> list[int]:
        """Return the number of inputs behind every parameter, weights of all layers first; biases as wide as they."""
        widths = [weight.shape[2] for weight in self.heads.weights]
        return [*widths, 1, widths[1]]


def _units(rows: Float[Tensor, "M D"]) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """Return mean and standard deviation of every column; a column that never changes has scale 1."""
    columns = rows.double()
    mean, spread = columns.mean(0), columns.std(0, correction=0)
    rounding = torch.finfo(rows.dtype).eps * columns.abs().amax(0)
    return mean.to(rows), torch.where(spread > rounding, spread, 1.0).to(rows)
