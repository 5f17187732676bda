"""Probability: exact messages over contexts, Markov-chain algebra, stick-breaking."""

from mbrl_hdp.probability.hmm import (
    EvidenceAndCounts,
    Filtered,
    Smoothed,
    filter_contexts,
    log_evidence,
    log_evidence_and_counts,
    pair_marginals,
    smooth,
    viterbi,
)

__all__ = [
    "EvidenceAndCounts",
    "Filtered",
    "Smoothed",
    "filter_contexts",
    "log_evidence",
    "log_evidence_and_counts",
    "pair_marginals",
    "smooth",
    "viterbi",
]
