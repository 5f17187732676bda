"""One run of the messages over a batch: choose the engine, keep what the backward pass needs, mend what underflows."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbrl_hdp.probability import batched
from mbrl_hdp.probability.exact import exact_derivatives, log_messages
from mbrl_hdp.probability.scaling import Derivatives, Forward, scaled_likelihoods
from mbrl_hdp.types import ContextChain


class MessageInputs(NamedTuple):
    """What the messages are computed from: float64, detached, on one device."""

    initial: Float[Tensor, " K"]
    transition: Float[Tensor, "K K"]
    log_lik: Float[Tensor, "B T K"]
    lengths: Int[Tensor, " B"]

    def rows(self, rows: Bool[Tensor, " B"]) -> MessageInputs:
        """Keep some of the sequences."""
        return MessageInputs(self.initial, self.transition, self.log_lik[rows], self.lengths[rows])


class MessagePass:
    """The forward pass over a batch of sequences; the backward pass runs when it is asked for.

    Everything inside is float64 and detached.

    Attributes:
        inputs: the chain, the log-likelihoods and the lengths in float64.
    """

    def __init__(
        self, chain: ContextChain, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None = None
    ) -> None:
        self.inputs = self.checked_inputs(chain, log_lik, lengths)
        self._forward = self._run_forward()

    @staticmethod
    def checked_inputs(
        chain: ContextChain, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None
    ) -> MessageInputs:
        """Detach and convert to float64 on `log_lik`'s device; make `lengths` explicit."""
        initial = chain.initial.detach().to(log_lik.device, torch.float64).contiguous()
        transition = chain.transition.detach().to(log_lik.device, torch.float64).contiguous()
        return MessageInputs(
            initial, transition, log_lik.detach().to(torch.float64), _checked_lengths(log_lik, lengths)
        )

    @property
    def log_evidence(self) -> Float[Tensor, " B"]:
        """Give log p(observations) of every sequence."""
        return self._forward.log_evidence

    @property
    def probs(self) -> Float[Tensor, "B T K"]:
        """Give the filtered probabilities."""
        return self._forward.probs

    @cached_property
    def unit_derivatives(self) -> Derivatives:
        """Give the derivatives of the summed evidence, computed once."""
        return self.derivatives(torch.ones_like(self.log_evidence))

    def weighted_derivatives(self, weights: Float[Tensor, " B"]) -> Derivatives:
        """Give the derivatives of `weights @ log_evidence`; from the cache if there is one and all weights agree."""
        if "unit_derivatives" not in self.__dict__ or not bool((weights == weights[:1]).all()):
            return self.derivatives(weights)
        unit = self.unit_derivatives
        weight = weights[:1]
        return Derivatives(unit.marginals, unit.by_initial * weight, unit.by_transition * weight)

    def derivatives(self, weights: Float[Tensor, " B"]) -> Derivatives:
        """Run the backward pass for the derivatives of `weights @ log_evidence`."""
        scaled = batched.backward_pass(self.inputs.transition, self._forward, self._scaled_lengths, weights)
        if not self._is_mended.any():
            return scaled
        rows = self._is_mended
        mended = exact_derivatives(*self.inputs.rows(rows), weights[rows])
        scaled.marginals[rows] = mended.marginals
        by_initial = scaled.by_initial + mended.by_initial
        return Derivatives(scaled.marginals, by_initial, scaled.by_transition + mended.by_transition)

    def _run_forward(self) -> Forward:
        initial, transition, log_lik, lengths = self.inputs
        lik, offset = scaled_likelihoods(initial, transition, log_lik, lengths)
        forward = batched.forward_pass(initial, transition, lik, offset, lengths)
        self._is_mended = ~forward.is_exact
        is_left_out = self._is_mended | (forward.log_evidence == -torch.inf)
        self._scaled_lengths = torch.where(is_left_out, 0, lengths)
        if is_left_out.any():
            forward.lik[is_left_out] = 0.0
            forward.scale[is_left_out] = 1.0
            forward.probs[is_left_out] = 0.0
        if self._is_mended.any():
            self._mend(forward)
        return forward

    def _mend(self, forward: Forward) -> None:
        rows = self._is_mended
        messages = log_messages(*self.inputs.rows(rows))
        forward.log_evidence[rows] = messages.log_evidence
        forward.probs[rows] = messages.forward.softmax(-1).nan_to_num(0.0)


def _checked_lengths(log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None) -> Int[Tensor, " B"]:
    batch, num_steps, _ = log_lik.shape
    if lengths is None:
        return torch.full((batch,), num_steps, device=log_lik.device)
    if lengths.shape != (batch,) or (batch and not 0 <= int(lengths.min()) <= int(lengths.max()) <= num_steps):
        raise ValueError(f"lengths must be {batch} numbers between 0 and {num_steps}, got {lengths.tolist()}")
    return lengths.to(log_lik.device, torch.int64)
