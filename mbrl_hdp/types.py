"""The frozen dataclasses that cross rooms.

`Trajectories` (data/trajectories.py) is the one further type that does; it lives with its validation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class ContextChain:
    """A Markov chain over contexts: eq. (1)'s rho_0 and R.

    Rows may sum to less than one: masked contexts have zero columns and the rest is not renormalised (a valid bound
    during training, see `distil`).

    Attributes:
        initial: p(first acting context), `K`.
        transition: p(next context | context), `K K`, one row per current context.
    """

    initial: Float[torch.Tensor, " K"]
    transition: Float[torch.Tensor, "K K"]

    @property
    def max_contexts(self) -> int:
        """Number of context slots, K."""
        return int(self.transition.shape[-1])


@dataclass(frozen=True)
class PhaseChain:
    """A Markov chain over (context, phase): contexts whose stay is not geometric (`mbrl_hdp.probability.phases`).

    A context of n phases is entered at its first one. In every step it stays in its phase, advances to the next one or
    is left, and then another context is entered. The states of all contexts lie one after the other: S of them.

    Attributes:
        initial: p(first acting state), `S`.
        stay: p(the phase stays), `S`.
        advance: p(the next phase of the same context), `S`; 0 in last phases.
        leave: p(the context is left), `S`. The three sum to one.
        moves: p(next context | context is left), `K K`; 0 on the diagonal.
        sizes: number of phases of every context.
    """

    initial: Float[torch.Tensor, " S"]
    stay: Float[torch.Tensor, " S"]
    advance: Float[torch.Tensor, " S"]
    leave: Float[torch.Tensor, " S"]
    moves: Float[torch.Tensor, "K K"]
    sizes: tuple[int, ...]

    @property
    def num_contexts(self) -> int:
        """Number of contexts, K."""
        return len(self.sizes)

    @property
    def num_states(self) -> int:
        """Number of states, S."""
        return sum(self.sizes)

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> PhaseChain:
        """Apply a function to every tensor, as in `chain.map(torch.Tensor.double)`."""
        return PhaseChain.of(map(function, self.tensors), self.sizes)

    @staticmethod
    def of(tensors: Iterable[torch.Tensor], sizes: Sequence[int]) -> PhaseChain:
        """Make a chain from its five tensors, in their order."""
        initial, stay, advance, leave, moves = tensors
        return PhaseChain(initial, stay, advance, leave, moves, tuple(sizes))

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The five tensors, in their order."""
        return self.initial, self.stay, self.advance, self.leave, self.moves


@dataclass(frozen=True)
class ContextPosterior:
    """What a distillation rule may look at: the expected chain and the prior's shared weights.

    Attributes:
        chain: expected chain under the variational distribution (the paper's barred rho_0 and R).
        top_weights: the HDP's shared weights beta, `K`; None for priors that have none.
        is_active: slots that earlier distillation left alive, `K`; None means all of them.
        is_training: True when asked during training (masking), False at extraction; rules have a threshold for each.
    """

    chain: ContextChain
    top_weights: Float[torch.Tensor, " K"] | None = None
    is_active: Bool[torch.Tensor, " K"] | None = None
    is_training: bool = False


@dataclass(frozen=True)
class TaskSpec:
    """Sizes of the problem, passed to every plugin when it is built.

    Attributes:
        max_contexts: upper bound K on the number of contexts (truncation level).
        obs_dim: width of an observation.
        act_dim: width of an action; 0 where a log has no actions.
        dt: seconds per step, None where unknown.
        seed: seed of the run, for plugins that keep a generator of their own.
        past: earlier steps whose changes and actions are part of the action (`Trajectories.with_past`); usually 0.
    """

    max_contexts: int
    obs_dim: int = 1
    act_dim: int = 0
    dt: float | None = None
    seed: int = 0
    past: int = 0


@dataclass(frozen=True)
class EpisodeSummary:
    """What observers (`mbrl_hdp_episode_ended`) learn about a finished episode.

    Attributes:
        episode: number of the episode within the run, from 0.
        phase: `warm_start`, `train` or `evaluate`.
        episode_return: undiscounted sum of rewards.
        num_steps: number of transitions.
        seed: seed that the episode's environment was reset with, None where it was not.
        num_contexts: contexts kept by the current model, None before the first fit.
        context_accuracy: share of steps whose filtered context was right, None where the truth is unknown.
    """

    episode: int
    phase: str
    episode_return: float
    num_steps: int
    seed: int | None = None
    num_contexts: int | None = None
    context_accuracy: float | None = None
