"""Theorem 2's belief update, one step at a time, for any batch of beliefs.

Two conventions of the belief differ by a predict step. The packed belief that agents and planners carry is
*predictive*: the distribution of the next context. So a step is `correct` by what was just observed, then `predict`:

    belief' = normalise(belief * likelihood) @ transition

The filtered distribution of the context that acted (the paper's b^z, `filter_contexts`) is what stands after `correct`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def correct(belief: Float[Tensor, "*batch K"], log_lik: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch K"]:
    """Weigh the belief by the likelihood of what was observed: Bayes' rule.

    A context of zero belief stays at zero whatever its likelihood. An observation that no believed context explains
    (all their log-likelihoods are -inf) is ignored: the belief stays.

    Args:
        belief: distribution of the context that acted, before the observation.
        log_lik: log-likelihood of the observed step in every context.
    """
    # The largest log-likelihood among believed contexts is taken out, so the sum below is never zero by underflow.
    believed = torch.where(belief > 0, log_lik, -torch.inf)
    offset = believed.amax(-1, keepdim=True)
    is_explained = offset != -torch.inf
    weight = belief * (believed - torch.where(is_explained, offset, 0.0)).exp()
    weight = torch.where(is_explained, weight, belief)
    return weight / weight.sum(-1, keepdim=True)


def predict(belief: Float[Tensor, "*batch K"], transition: Float[Tensor, "K K"]) -> Float[Tensor, "*batch K"]:
    """Move the belief one step along the chain; normalised, so that rows with masked contexts may sum to less than 1.

    A belief whose mass the masked chain loses altogether stays where it is.
    """
    moved = belief @ transition
    total = moved.sum(-1, keepdim=True)
    return torch.where(total > 0, moved / torch.where(total > 0, total, 1.0), belief)


def update_belief(
    belief: Float[Tensor, "*batch K"], log_lik: Float[Tensor, "*batch K"], transition: Float[Tensor, "K K"]
) -> Float[Tensor, "*batch K"]:
    """Return the distribution of the context that acts next, from the one that was believed to act now (Theorem 2 a).

    Example:
        >>> transition = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
        >>> update_belief(torch.tensor([0.5, 0.5]), torch.tensor([0.0, -torch.inf]), transition)
        tensor([0.9000, 0.1000])
    """
    return predict(correct(belief, log_lik), transition)
