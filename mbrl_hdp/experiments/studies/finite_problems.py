"""Small C-MDPs for `theorem3`: random ones, and two whose answer is known in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mbrl_hdp.control.finite import FiniteCmdp

Array = np.ndarray[Any, Any]
DISCOUNT = 0.9
# Decisions by number of continuations (acts x states) of a step, so that every tree is enumerated in a moment.
_HORIZONS = {4: 6, 6: 5, 9: 4}


def switching_chain(rng: np.random.Generator, num_contexts: int, switch: float) -> Array:
    """Return a chain that leaves every context with one probability, for the others at random."""
    others = rng.dirichlet(np.ones(num_contexts - 1), num_contexts)
    chain = (1.0 - switch) * np.eye(num_contexts)
    chain[~np.eye(num_contexts, dtype=bool)] = switch * others.ravel()
    return chain


def random_problem(rng: np.random.Generator) -> FiniteCmdp:
    """Draw everything: 2-3 states, acts and contexts, distributions uniform on their simplices, normal rewards."""
    num_states, num_acts, num_contexts = (int(rng.integers(2, 4)) for _ in range(3))
    return FiniteCmdp(
        initial_state=rng.dirichlet(np.ones(num_states)),
        initial=rng.dirichlet(np.ones(num_contexts)),
        transition=rng.dirichlet(np.ones(num_contexts), num_contexts),
        kernel=rng.dirichlet(np.ones(num_states), (num_contexts, num_states, num_acts)),
        reward=rng.normal(size=(num_contexts, num_states, num_acts)),
        discount=DISCOUNT,
        horizon=_HORIZONS[num_states * num_acts],
    )


def sticky_problem(rng: np.random.Generator) -> FiniteCmdp:
    """Draw a problem whose contexts last, differ much, and are rewarded through the next state as in the paper."""
    base = random_problem(rng)
    num_contexts, num_states, num_acts = base.reward.shape
    kernel = rng.dirichlet(np.full(num_states, 0.3), (num_contexts, num_states, num_acts))
    return replace(
        base,
        transition=switching_chain(rng, num_contexts, rng.uniform(0.02, 0.3)),
        kernel=kernel,
        reward=(kernel * rng.normal(size=(num_states, num_acts, num_states))).sum(-1),
    )


def identical_problem(rng: np.random.Generator) -> FiniteCmdp:
    """Draw a problem whose contexts are all alike: there is nothing to know."""
    base = random_problem(rng)
    kernel, reward = (np.repeat(part[:1], len(base.initial), axis=0) for part in (base.kernel, base.reward))
    return replace(base, kernel=kernel, reward=reward)


def certain_problem(rng: np.random.Generator) -> FiniteCmdp:
    """Draw a problem that switches at every step, but in a fixed order: every switch is foreseen."""
    base = random_problem(rng)
    identity = np.eye(len(base.initial))
    return replace(base, initial=identity[0], transition=np.roll(identity, 1, axis=1))


def revealed_problem(rng: np.random.Generator, switch: float) -> FiniteCmdp:
    """Draw a problem that meets the proof's assumptions: each next state shows which context acted, the first is known.

    States are pairs of two places and two last contexts; the context matters through places and rewards.
    """
    num_places, num_acts, num_contexts = 2, 2, 2
    num_states = num_places * num_contexts
    kernel = np.zeros((num_contexts, num_states, num_acts, num_states))
    for context in range(num_contexts):
        shown = np.arange(num_places) * num_contexts + context
        places = rng.dirichlet(np.ones(num_places), (num_places, num_acts))
        kernel[context][:, :, shown] = np.repeat(places, num_contexts, axis=0)
    gain = np.repeat(rng.normal(size=(num_contexts, num_places, num_acts)), num_contexts, axis=1)
    return FiniteCmdp(
        initial_state=np.eye(num_states)[0],
        initial=np.eye(num_contexts)[0],
        transition=switching_chain(rng, num_contexts, switch),
        kernel=kernel,
        reward=gain,
        discount=DISCOUNT,
        horizon=5,
    )


def guessing_problem(switch: float, horizon: int = 6, discount: float = DISCOUNT) -> FiniteCmdp:
    """Guess the context that acts: 1 if right, else 0; the next state shows it. Gap = sum_{t>=1} discount^t switch.

    Holds for switch < .5, where the last context is the best guess; two contexts, the first is known.
    """
    kernel = np.zeros((2, 2, 2, 2))
    kernel[0, :, :, 0] = kernel[1, :, :, 1] = 1.0
    reward = np.broadcast_to(np.eye(2)[:, None, :], (2, 2, 2)).copy()
    chain = np.array([[1.0 - switch, switch], [switch, 1.0 - switch]])
    return FiniteCmdp(np.eye(2)[0], np.eye(2)[0], chain, kernel, reward, discount, horizon)


def shelter_problem(switch: float = 0.4, horizon: int = 7, loss: float = 3.0) -> FiniteCmdp:
    """A field where a right guess pays 1 and a wrong one costs `loss`, and a shelter that pays .5 for ever.

    Whoever sees the context stays in the field; whoever does not goes to the shelter at once. So the trajectories of
    the two policies differ, and Theorem 3 holds along the one and fails along the other. States: field after context 0,
    field after context 1, shelter; acts: guess 0, guess 1, go to the shelter.
    """
    kernel = np.zeros((2, 3, 3, 3))
    reward = np.full((2, 3, 3), -loss)
    for context in range(2):
        kernel[context, :2, :2, context] = 1.0
        reward[context, :2, context] = 1.0
    kernel[:, :2, 2, 2] = kernel[:, 2, :, 2] = 1.0
    reward[:, :2, 2] = reward[:, 2, :] = 0.5
    chain = np.array([[1.0 - switch, switch], [switch, 1.0 - switch]])
    return FiniteCmdp(np.eye(3)[0], np.array([0.5, 0.5]), chain, kernel, reward, 1.0, horizon)


FAMILIES: dict[str, Callable[[np.random.Generator], FiniteCmdp]] = {
    "random": random_problem,
    "sticky": sticky_problem,
    "identical": identical_problem,
    "certain": certain_problem,
}
