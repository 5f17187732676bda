"""One run of the messages over a batch: choose the engine, keep what the backward pass needs, mend what underflows."""

from __future__ import annotations

from functools import cached_property
from types import ModuleType
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbrl_hdp.probability import batched
from mbrl_hdp.probability.exact import exact_derivatives, log_messages
from mbrl_hdp.probability.scaling import SMALLEST_SINGLE, Derivatives, Forward, scaled_likelihoods
from mbrl_hdp.types import ContextChain

# With more contexts than this, matrix products take most of the time and another layout is quicker.
_MOST_NARROW = 60


class MessageInputs(NamedTuple):
    """What the messages are computed from: detached, on one device, the chain in float64."""

    initial: Float[Tensor, " K"]
    transition: Float[Tensor, "K K"]
    log_lik: Float[Tensor, "B T K"]
    lengths: Int[Tensor, " B"]

    def exact_rows(self, rows: Bool[Tensor, " B"]) -> MessageInputs:
        """Keep some of the sequences, in float64."""
        return MessageInputs(self.initial, self.transition, self.log_lik[rows].double(), self.lengths[rows])


def message_inputs(
    chain: ContextChain, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None
) -> MessageInputs:
    """Check the shapes and the lengths, and bring everything to `log_lik`'s device."""
    num_contexts = log_lik.shape[-1]
    if chain.initial.shape != (num_contexts,) or chain.transition.shape != (num_contexts, num_contexts):
        shapes = f"{tuple(chain.initial.shape)} and {tuple(chain.transition.shape)}"
        raise ValueError(f"log_lik has {num_contexts} contexts, but the chain's shapes are {shapes}")
    initial = chain.initial.detach().to(log_lik.device, torch.float64).contiguous()
    transition = chain.transition.detach().to(log_lik.device, torch.float64).contiguous()
    return MessageInputs(initial, transition, log_lik.detach(), checked_lengths(log_lik, lengths))


def checked_lengths(log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None) -> Int[Tensor, " B"]:
    """Return the lengths on `log_lik`'s device, the whole sequences if there are none; raise if they do not fit."""
    batch, num_steps, _ = log_lik.shape
    if lengths is None:
        return torch.full((batch,), num_steps, device=log_lik.device)
    if lengths.shape != (batch,) or bool(((lengths < 0) | (lengths > num_steps)).any()):
        raise ValueError(f"lengths must be {batch} numbers between 0 and {num_steps}, got {lengths.tolist()}")
    return lengths.to(log_lik.device, torch.int64).contiguous()


class MessagePass:
    """The forward pass over a batch of sequences; the backward pass runs on demand.

    Attributes:
        inputs: what it runs on.
        forward: result of the forward pass.
    """

    def __init__(self, inputs: MessageInputs) -> None:
        self.inputs = inputs
        self._engine = _engine_for(inputs)
        self._scaled_lengths = inputs.lengths
        self._mended: Bool[Tensor, " B"] | None = None
        self.forward = self._run_forward()

    @cached_property
    def unit_derivatives(self) -> Derivatives:
        """Return the derivatives of the summed evidence, computed once."""
        return self.derivatives(torch.ones_like(self.forward.log_evidence))

    def weighted_derivatives(self, weights: Float[Tensor, " B"]) -> Derivatives:
        """Return the derivatives of `weights @ log_evidence`, marginals included; from the cache if all weights agree.

        The marginals are new ones, which the caller may keep.
        """
        by_sequence = weights[:, None, None].to(self.inputs.log_lik.dtype)
        if "unit_derivatives" not in self.__dict__ or not bool((weights == weights[:1]).all()):
            found = self.derivatives(weights)
            found.marginals.mul_(by_sequence)
            return found
        unit = self.unit_derivatives
        weight = weights[:1].sum()
        return Derivatives(unit.marginals * by_sequence, unit.by_initial * weight, unit.by_transition * weight)

    def derivatives(self, weights: Float[Tensor, " B"]) -> Derivatives:
        """Run the backward pass for the derivatives of `weights @ log_evidence`."""
        scaled: Derivatives = self._engine.backward_pass(
            self.inputs.transition, self.forward, self._scaled_lengths, weights, self.inputs.log_lik.dtype
        )
        if self._mended is None:
            return scaled
        mended = exact_derivatives(*self.inputs.exact_rows(self._mended), weights[self._mended])
        scaled.marginals[self._mended] = mended.marginals.to(scaled.marginals)
        by_initial = scaled.by_initial + mended.by_initial
        return Derivatives(scaled.marginals, by_initial, scaled.by_transition + mended.by_transition)

    def _run_forward(self) -> Forward:
        initial, transition, log_lik, lengths = self.inputs
        lik, offset = scaled_likelihoods(initial, transition, log_lik, lengths, self._engine.by_step)
        forward: Forward = self._engine.forward_pass(initial, transition, lik, offset, lengths)
        is_left_out = ~forward.is_exact | (forward.log_evidence == -torch.inf)
        if is_left_out.any():
            forward.leave_out(is_left_out)
            self._scaled_lengths = torch.where(is_left_out, 0, lengths)
        if not forward.is_exact.all():
            self._mended = ~forward.is_exact
            messages = log_messages(*self.inputs.exact_rows(self._mended))
            forward.log_evidence[self._mended] = messages.log_evidence
            forward.probs[..., self._mended] = messages.forward.softmax(-1).nan_to_num(0.0).permute(1, 2, 0)
        return forward


def _engine_for(inputs: MessageInputs) -> ModuleType:
    if inputs.log_lik.device.type != "cpu":
        return batched
    from mbrl_hdp.probability import kernels, single_kernels, wide_kernels  # numba takes a while to load

    if inputs.log_lik.shape[-1] <= _MOST_NARROW:
        return kernels
    return single_kernels if _is_single_enough(inputs) else wide_kernels


def _is_single_enough(inputs: MessageInputs) -> bool:
    """Return whether float32 messages lose nothing that float32 log-likelihoods have."""
    chain = (inputs.initial, inputs.transition)
    return inputs.log_lik.dtype == torch.float32 and all(bool((value >= SMALLEST_SINGLE).all()) for value in chain)
