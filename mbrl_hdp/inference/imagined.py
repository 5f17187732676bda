"""Draws of (context, phase) for imagined trajectories."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbrl_hdp.probability.phases import context_of, dense, phase_shares
from mbrl_hdp.types import PhaseChain

Rng = torch.Generator | None


def belief_over_states(chain: PhaseChain, belief: Float[Tensor, "*batch _"]) -> Float[Tensor, "*batch S"]:
    """Return a belief over states: as it is, or one over contexts with their phases as in the long run."""
    if belief.shape[-1] == chain.num_states:
        return belief
    return belief[..., context_of(chain.sizes).to(belief.device)] * phase_shares(chain).to(belief)


def first_state(chain: PhaseChain, num: int, belief: Float[Tensor, "B _"] | None, rng: Rng) -> dict[str, Tensor]:
    """Draw the first `state` of imagined trajectories, with its `context`."""
    own = chain.initial.expand(num, -1) if belief is None else belief_over_states(chain, belief)
    return _drawn(chain, own, rng)


def next_state(chain: PhaseChain, state: Int[Tensor, " B"], rng: Rng) -> dict[str, Tensor]:
    """Draw the state that acts next, with its context."""
    return _drawn(chain, dense(chain).transition[state], rng)


def _drawn(chain: PhaseChain, probs: Float[Tensor, "B S"], rng: Rng) -> dict[str, Tensor]:
    state = torch.multinomial(probs, 1, generator=rng).squeeze(-1)
    return {"state": state, "context": context_of(chain.sizes).to(state.device)[state]}
