"""Learn how long contexts last, with the heads as they are: exact EM on the messages over (context, phase).

The number of phases of every context starts from the stays in the labels and is then changed one context at a time
while the evidence (with the priors) grows. Whether episodes begin with a fresh context or with one that has been acting
for a while is compared in the same way: environments reset their contexts, logs begin anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbrl_hdp.inference.duration import ContextDuration, LabelledStays, Phases, labelled_stays, split_phases
from mbrl_hdp.probability import semi_markov
from mbrl_hdp.probability.phases import by_context, context_of, first_states, phase_shares
from mbrl_hdp.types import PhaseChain

FRESH, RUNNING = "fresh", "running"
# Pseudo-counts of a row of moves and of the first contexts, in all; MAP estimates of Dirichlet distributions.
_PSEUDO = 1.0
_SHORT, _LONG = 4, 40
_CONVERGED = 0.01  # nats
# Changes of a number of phases that are tried, as a share of it, one phase at least.
_JUMPS = (0.25, 0.0)
_MOST_ROUNDS = 4


@dataclass(frozen=True)
class Episodes:
    """What durations are learned from.

    Attributes:
        log_lik: log-likelihood of every step in every context, float64.
        lengths: steps of every episode.
        labels: contexts of the steps as they are known so far; -1 beyond an episode's end.
    """

    log_lik: Float[Tensor, "N T k"]
    lengths: Int[Tensor, " N"]
    labels: Int[np.ndarray, "N T"]

    def chosen(self, which: Int[np.ndarray, " n"]) -> Episodes:
        """Return some of the episodes."""
        return Episodes(self.log_lik[which], self.lengths[which], self.labels[which])

    @cached_property
    def stays(self) -> LabelledStays:
        """The stays in the labels."""
        return labelled_stays(self.labels)


@dataclass(frozen=True)
class Learned:
    """A chain over (context, phase) and what speaks for it.

    Attributes:
        chain: the chain.
        start: fresh if episodes begin in first phases, running if anywhere in a stay.
        objective: log evidence of all episodes plus log prior.
    """

    chain: PhaseChain
    start: str
    objective: float


def learn_phases(family: ContextDuration, data: Episodes) -> Learned:
    """Return the most probable phases of a family.

    Example:
        >>> learn_phases(Minimum(MinimumConfig()), Episodes(log_lik, lengths, labels)).chain.sizes
        (5, 5)
    """
    learners = [_Learner(family, data, start) for start in (FRESH, RUNNING)]
    first = [learner.begin(data.stays) for learner in learners]
    best = max(range(len(first)), key=lambda place: first[place].objective)
    return learners[best].refine(first[best])


def converge(family: ContextDuration, data: Episodes, learned: Learned) -> Learned:
    """Go on with more data: the numbers of phases stay, their probabilities are learned anew."""
    return _Learner(family, data, learned.start).improve(learned.chain, _LONG)


class _Learner:
    """EM for one family and one kind of start."""

    def __init__(self, family: ContextDuration, data: Episodes, start: str) -> None:
        self.family, self.data, self.start = family, data, start
        self.num_contexts = data.log_lik.shape[-1]

    def begin(self, stays: LabelledStays) -> Learned:
        """Return the phases that suit the stays best, improved for a while; then once more with its own labels."""
        first = self.improve(self._guess(stays), _SHORT)
        labels = semi_markov.viterbi(first.chain, self.data.log_lik, self.data.lengths).numpy()
        again = self.improve(self._guess(labelled_stays(labels)), _SHORT)
        return max(first, again, key=lambda each: each.objective)

    def refine(self, best: Learned) -> Learned:
        """Change numbers of phases one context at a time while that helps; then converge."""
        best = self.improve(best.chain, _LONG)
        for _ in range(_MOST_ROUNDS if self.family.max_phases > 1 else 0):
            before = best
            for context in range(self.num_contexts):
                for size in self._nearby(best.chain.sizes[context]):
                    changed = self.improve(self._resized(best.chain, context, size), _SHORT)
                    best = changed if changed.objective > best.objective + _CONVERGED else best
            if best is before:
                break
            best = self.improve(best.chain, _LONG)
        return best

    def improve(self, chain: PhaseChain, num_iterations: int) -> Learned:
        """Run EM until it converges, for so many iterations at most."""
        last = -np.inf
        for number in range(num_iterations + 1):
            found = semi_markov.smooth(chain, self.data.log_lik, self.data.lengths)
            objective = float(found.log_evidence.sum()) + self._log_prior(chain)
            if number == num_iterations or objective - last < _CONVERGED:
                break
            last = objective
            chain = self._maximised(found.counts, chain.sizes)
        return Learned(chain, self.start, objective)

    def _nearby(self, size: int) -> list[int]:
        steps = {max(1, round(jump * size)) for jump in _JUMPS}
        sizes = {size + sign * step for step in steps for sign in (-1, 1)}
        return sorted(value for value in sizes if 1 <= value <= self.family.max_phases)

    def _guess(self, stays: LabelledStays) -> PhaseChain:
        contexts = [self._best_phases(stays, context) for context in range(self.num_contexts)]
        moves = np.full((self.num_contexts, self.num_contexts), _PSEUDO / max(self.num_contexts - 1, 1))
        is_next = ~stays.is_cut[:-1]  # what follows an ended stay is the next stay of the episode
        np.add.at(moves, (stays.context[:-1][is_next], stays.context[1:][is_next]), 1.0)
        begins = np.bincount(stays.context[stays.is_first], minlength=self.num_contexts)
        return self._assembled(contexts, torch.from_numpy(moves), torch.from_numpy(begins.astype(np.float64)))

    def _best_phases(self, stays: LabelledStays, context: int) -> Phases:
        own = stays.of(context, has_first=self.start == FRESH)
        tried = [self.family.start(size, own) for size in range(1, self.family.max_phases + 1)]
        return max(tried, key=lambda phases: own.log_likelihood(phases) + self.family.log_prior(phases))

    def _resized(self, chain: PhaseChain, context: int, size: int) -> PhaseChain:
        contexts = split_phases(chain)
        contexts[context] = self.family.start(size, self.data.stays.of(context, has_first=self.start == FRESH))
        return self._assembled(contexts, chain.moves, by_context(chain.initial, chain.sizes), pseudo=0.0)

    def _maximised(self, counts: semi_markov.PhaseParts, sizes: Sequence[int]) -> PhaseChain:
        expected = PhaseChain.of(counts, sizes)
        contexts = [self.family.update(phases) for phases in split_phases(expected)]
        return self._assembled(contexts, counts.moves, by_context(counts.initial, sizes))

    def _assembled(
        self, contexts: Sequence[Phases], moves: Tensor, begins: Tensor, pseudo: float = _PSEUDO
    ) -> PhaseChain:
        """Return the chain of these phases with moves and first contexts as counted."""
        sizes = tuple(len(phases.stay) for phases in contexts)
        off = 1.0 - torch.eye(self.num_contexts, dtype=torch.float64)
        rows = (moves + pseudo / max(self.num_contexts - 1, 1)) * off
        shares = begins + pseudo / self.num_contexts
        parts = [torch.from_numpy(np.concatenate(part)) for part in zip(*contexts, strict=True)]
        chain = PhaseChain.of([parts[0], *parts, rows / rows.sum(1, keepdim=True).clamp_min(1e-300)], sizes)
        return _begun(chain, shares / shares.sum(), self.start)

    def _log_prior(self, chain: PhaseChain) -> float:
        own = sum(self.family.log_prior(phases) for phases in split_phases(chain))
        off = ~torch.eye(self.num_contexts, dtype=torch.bool)
        moves = _PSEUDO / max(self.num_contexts - 1, 1) * float(chain.moves[off].log().sum())
        return own + moves + _PSEUDO / self.num_contexts * float(by_context(chain.initial, chain.sizes).log().sum())


def _begun(chain: PhaseChain, begins: Float[Tensor, " k"], start: str) -> PhaseChain:
    """Return the chain with its first contexts distributed as `begins`, in first phases or anywhere in a stay."""
    if start == RUNNING:
        within = phase_shares(chain)
    else:
        within = torch.zeros_like(chain.stay)
        within[first_states(chain.sizes)] = 1.0
    initial = begins[context_of(chain.sizes)] * within
    return PhaseChain(initial, chain.stay, chain.advance, chain.leave, chain.moves, chain.sizes)
