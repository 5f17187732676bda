"""Probability: exact messages over contexts, Markov-chain algebra, stick-breaking."""

from mbrl_hdp.probability.hmm import (
    EvidenceAndCounts,
    Filtered,
    Smoothed,
    filter_contexts,
    log_evidence,
    log_evidence_and_counts,
    smooth,
    viterbi,
)
from mbrl_hdp.probability.markov import (
    distilled_chain,
    distilled_initial,
    distilled_policy_initial,
    distilled_policy_transition,
    distilled_transition,
    stationary,
)
from mbrl_hdp.probability.sticks import (
    row_concentrations,
    stick_fractions,
    stick_weights,
)

__all__ = [
    "EvidenceAndCounts",
    "Filtered",
    "Smoothed",
    "distilled_chain",
    "distilled_initial",
    "distilled_policy_initial",
    "distilled_policy_transition",
    "distilled_transition",
    "filter_contexts",
    "log_evidence",
    "log_evidence_and_counts",
    "row_concentrations",
    "smooth",
    "stationary",
    "stick_fractions",
    "stick_weights",
    "viterbi",
]
