"""Stick-breaking both ways, and its equivalence with the Dirichlet distribution at a finite truncation.

K weights come from K-1 fractions; the last mass goes to the final stick (the paper's q(nu_K = 1) = 1), so the weights
sum to one at any truncation. With the Beta parameters of eq. (3) and eq. (5) the weights are exactly Dirichlet:

    fraction_k ~ Beta(c_k, sum_{i>k} c_i), k < K    <=>    weights ~ Dir(c_1, ..., c_K)
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def stick_weights(fractions: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n+1"]:
    """Break a stick: weight_k = fraction_k prod_{i<k} (1 - fraction_i), eq. (2); the rest goes to the last one.

    Example:
        >>> stick_weights(torch.tensor([0.5, 0.5]))
        tensor([0.5000, 0.2500, 0.2500])
    """
    ones = fractions.new_ones((*fractions.shape[:-1], 1))
    left = torch.cat([ones, (1 - fractions).cumprod(-1)], dim=-1)
    return left * torch.cat([fractions, ones], dim=-1)


def stick_fractions(weights: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch K-1"]:
    """Undo `stick_weights`: fraction_k = weight_k / sum_{i>=k} weight_i.

    Weights need not sum to one (their proportions count). Where nothing is left to break, the fraction is 0.
    """
    left = _tail_sums(weights)[..., :-1]
    is_empty = left == 0
    return torch.where(is_empty, 0.0, weights[..., :-1] / torch.where(is_empty, 1.0, left))


def row_concentrations(
    top_weights: Float[Tensor, " K"], row_concentration: float, stickiness: float
) -> Float[Tensor, "K+1 K"]:
    """Return the Dirichlet parameters of eq. (3)'s rows: row 0 for `initial`, row j for the moves from context j.

    row_concentration * top_weights, with `stickiness` added on the self-transition (not for the initial distribution).
    """
    rows = (row_concentration * top_weights).repeat(len(top_weights) + 1, 1)
    rows[1:].diagonal().add_(stickiness)
    return rows


def _tail_sums(values: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch K"]:
    """Sum from each entry to the end, without the cancellation of one minus a running sum."""
    return values.flip(-1).cumsum(-1).flip(-1)
