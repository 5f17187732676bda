"""Exact inference over contexts with phases: the functions of `hmm` under the same names, for a `PhaseChain`.

Everything that comes out is by context. The conventions of `hmm` hold: float64 inside, -inf and missing steps allowed,
padding ignored, zero probabilities where no path explains a sequence. Tensors of other devices are brought to the CPU.

Scaled messages are exact here if every context is entered in every step with at least `SMALLEST` and every phase can be
left (`LEAST_LEAVE`): whatever underflows is then smaller than the paths that enter its context anew in the next step
and are left together with it. Sequences that break this (contexts whose likelihoods differ by hundreds of nats a step)
are computed again in logarithms (`phase_logs`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from mbrl_hdp.probability.hmm import cut_to_range
from mbrl_hdp.probability.passes import checked_lengths
from mbrl_hdp.probability.phase_kernels import (
    PhaseArrays,
    PhaseDerivatives,
    PhaseParts,
    filter_pass,
    smooth_pass,
)
from mbrl_hdp.probability.phase_logs import log_filter, log_smooth
from mbrl_hdp.probability.phase_paths import most_likely_paths
from mbrl_hdp.probability.phases import by_context, first_states
from mbrl_hdp.probability.scaling import scaled_likelihoods
from mbrl_hdp.types import PhaseChain

LEAST_LEAVE = 1e-60


class PhaseFiltered(NamedTuple):
    """Result of `filter_contexts`.

    Attributes:
        probs: p(context_t | observations up to t).
        following: p(context_{t+1} | observations up to t), the belief before the next step.
        log_evidence: log p(observations) of every sequence.
    """

    probs: Float[Tensor, "B T K"]
    following: Float[Tensor, "B T K"]
    log_evidence: Float[Tensor, " B"]


class PhaseSmoothed(NamedTuple):
    """Result of `smooth`.

    Attributes:
        marginals: p(context_t | all observations).
        counts: expected numbers over all sequences and steps.
        log_evidence: log p(observations) of every sequence, differentiable.
    """

    marginals: Float[Tensor, "B T K"]
    counts: PhaseParts
    log_evidence: Float[Tensor, " B"]


def log_evidence(
    chain: PhaseChain, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None = None
) -> Float[Tensor, " B"]:
    """Return log p(observations), all paths summed out; differentiable in the chain's tensors and in `log_lik`.

    Example:
        >>> half = torch.tensor([0.5, 0.5])
        >>> chain = PhaseChain(half, half, torch.zeros(2), half, torch.tensor([[0.0, 1.0], [1.0, 0.0]]), (1, 1))
        >>> log_evidence(chain, torch.zeros(1, 3, 2))
        tensor([0.])
    """
    return _attach(chain, log_lik, _Pass(chain, log_lik, lengths))


def smooth(
    chain: PhaseChain, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None = None
) -> PhaseSmoothed:
    """Return the smoothed contexts, the expected counts and the evidence; only the evidence has a gradient."""
    messages = _Pass(chain, log_lik, lengths)
    found = messages.unit
    # Expected count = probability * derivative by that probability.
    counts = [value * factor for value, factor in zip(messages.arrays.parts, found.by, strict=True)]
    return PhaseSmoothed(
        found.marginals.to(log_lik.device),
        PhaseParts(*(count.to(log_lik) for count in counts)),
        _attach(chain, log_lik, messages),
    )


@torch.no_grad()
def filter_contexts(
    chain: PhaseChain, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None = None
) -> PhaseFiltered:
    """Return filtered contexts, the beliefs before each next step, and the evidence; no gradient."""
    inputs = _inputs(chain, log_lik, lengths)
    found = filter_pass(inputs.arrays, inputs.lik, inputs.lengths, inputs.log_lik.dtype)
    is_exact = found.is_exact & inputs.is_safe
    evidence = inputs.offset + found.scale.log().sum(0)
    is_lost = is_exact & (evidence == -torch.inf)
    found.probs[is_lost], found.following[is_lost] = 0.0, 0.0
    if not is_exact.all():
        evidence[~is_exact], probs, following = log_filter(inputs.arrays, *inputs.sequences(~is_exact))
        found.probs[~is_exact], found.following[~is_exact] = probs.to(found.probs), following.to(found.following)
    is_step = (torch.arange(found.probs.shape[1]) < inputs.lengths[:, None])[..., None]
    probs, following = (torch.where(is_step, values, 0.0) for values in (found.probs, found.following))
    return PhaseFiltered(probs.to(log_lik.device), following.to(log_lik.device), evidence.to(log_lik))


@torch.no_grad()
def viterbi(
    chain: PhaseChain, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None = None
) -> Int[Tensor, "B T"]:
    """Return the contexts of the most likely path of (context, phase); -1 beyond a sequence's length."""
    arrays = _arrays(chain)
    lasting = checked_lengths(log_lik, lengths).cpu()
    values = log_lik.detach().to("cpu", torch.float64).contiguous()
    paths = torch.full(values.shape[:2], -1)
    words = [value.log() for value in arrays.parts]
    most_likely_paths(*(value.numpy() for value in (*words, arrays.first, values, lasting, paths)))
    return paths.to(log_lik.device)


class _Inputs(NamedTuple):
    """What the messages are computed from: detached, on the CPU."""

    arrays: PhaseArrays
    log_lik: Float[Tensor, "B T K"]
    lik: Float[Tensor, "T K B"]
    offset: Float[Tensor, " B"]
    lengths: Int[Tensor, " B"]
    is_safe: bool

    def sequences(self, rows: Bool[Tensor, " B"]) -> tuple[Float[Tensor, "b T K"], Int[Tensor, " b"]]:
        """Return the log-likelihoods, in float64, and the lengths of some sequences."""
        return self.log_lik[rows].double(), self.lengths[rows]


def _arrays(chain: PhaseChain) -> PhaseArrays:
    if chain.moves.shape != (chain.num_contexts, chain.num_contexts) or len(chain.stay) != chain.num_states:
        found = f"{len(chain.stay)} states and moves {tuple(chain.moves.shape)}"
        raise ValueError(f"sizes {chain.sizes} do not fit {found}")
    parts = PhaseParts(*(value.detach().to("cpu", torch.float64).contiguous() for value in chain.tensors))
    return PhaseArrays(parts, torch.cat([first_states(chain.sizes), torch.tensor([chain.num_states])]))


def _inputs(chain: PhaseChain, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None) -> _Inputs:
    if log_lik.shape[-1] != chain.num_contexts:
        raise ValueError(f"log_lik has {log_lik.shape[-1]} contexts, but the chain {chain.num_contexts}")
    arrays, lasting = _arrays(chain), checked_lengths(log_lik, lengths).cpu()
    own = log_lik.detach().cpu()
    parts = arrays.parts
    is_entered = parts.moves + torch.eye(chain.num_contexts, dtype=torch.float64)
    lik, offset = scaled_likelihoods(by_context(parts.initial, chain.sizes), is_entered, own, lasting)
    # Which log-likelihoods count beside a context that cannot be entered matters to `scaled_likelihoods` only.
    is_safe = bool((parts.leave >= LEAST_LEAVE).all() and (parts.moves > 0).any(0).all())
    return _Inputs(arrays, own, lik, offset, lasting, is_safe)


class _Pass:
    """Both passes over a batch, for weights of one; others are computed on demand."""

    def __init__(self, chain: PhaseChain, log_lik: Float[Tensor, "B T K"], lengths: Int[Tensor, " B"] | None) -> None:
        self.inputs = _inputs(chain, log_lik, lengths)
        self.evidence = self.inputs.offset.clone()
        self.unit = self._run(torch.ones_like(self.evidence))

    @property
    def arrays(self) -> PhaseArrays:
        """The chain's numbers."""
        return self.inputs.arrays

    def weighted(self, weights: Float[Tensor, " B"]) -> PhaseDerivatives:
        """Return the derivatives of `weights @ log_evidence`."""
        if not bool((weights == weights[:1]).all()):
            return self._run(weights)
        marginals, by = self.unit
        return PhaseDerivatives(marginals, PhaseParts(*(value * weights[:1].sum() for value in by)))

    def _run(self, weights: Float[Tensor, " B"]) -> PhaseDerivatives:
        arrays, log_lik, lik, offset, lengths, is_safe = self.inputs
        if not is_safe:
            lik = torch.zeros_like(lik)
        scale, is_exact, found = smooth_pass(arrays, lik, lengths, weights, log_lik.dtype)
        is_exact = is_exact & is_safe
        self.evidence = offset + scale.log().sum(0)
        return found if is_exact.all() else self._mended(found, ~is_exact, weights)

    def _mended(self, found: PhaseDerivatives, rows: Bool[Tensor, " B"], weights: Tensor) -> PhaseDerivatives:
        """Add the sequences that scaled messages cannot carry, computed in logarithms."""
        self.evidence[rows], own = log_smooth(self.arrays, *self.inputs.sequences(rows), weights[rows])
        found.marginals[rows] = own.marginals.to(found.marginals)
        return PhaseDerivatives(found.marginals, PhaseParts(*(a + b for a, b in zip(found.by, own.by, strict=True))))


def _attach(chain: PhaseChain, log_lik: Float[Tensor, "B T K"], messages: _Pass) -> Float[Tensor, " B"]:
    evidence: Tensor = _PhaseGradient.apply(*chain.tensors, log_lik, messages)
    return evidence


class _PhaseGradient(torch.autograd.Function):
    """The evidence of finished passes, with its gradient by Fisher's identity."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Return the log evidence that the passes found."""
        *tensors, ctx.messages = inputs
        ctx.likes = [(value.dtype, value.device) for value in tensors]
        return ctx.messages.evidence.to(tensors[-1], copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        """Return the expected counts over the probabilities, and the marginals, weighted by sequence."""
        own = weights.to("cpu", torch.float64)
        marginals, by_chain = ctx.messages.weighted(own)
        *likes, (_, device) = ctx.likes
        by_log_lik = (marginals * own[:, None, None].to(marginals)).to(device)
        pairs = zip(by_chain, likes, strict=True)
        return *(cut_to_range(value, dtype).to(place) for value, (dtype, place) in pairs), by_log_lik, None
