"""Worlds of the study `novelty`: two contexts that switch, a third that appears, and exact densities of every step.

A world is a simulator to whose every step Gaussian noise of known size is added, so that the density of a step in each
context is known and the best possible detector can be computed beside ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs.cartpole import CartPolePhysics
from mbrl_hdp.envs.chains import FloatArray, IntArray, MarkovChain
from mbrl_hdp.envs.systems import build_system
from mbrl_hdp.envs.walk import ChainWalk

NUM_STEPS = 100
# Probability with which a known context is left at a step; free at every step, so that the chain is Markov.
SWITCH = 0.05
# Standard deviation of the noise, in units of the spread of each coordinate's change.
NOISE = 0.05
# Data of this seed fixes the units of the noise, so that all data of a world has the same noise.
_UNITS_SEED = 987_654
# States are of order one; beyond this the integration is about to overflow.
_DIVERGED = 1e6
KNOWN = 2
NEW = 2

# state (B, S), action (B, A), context (B) -> expected next state (B, S)
Step = Callable[[FloatArray, FloatArray, IntArray], FloatArray]


@dataclass(frozen=True)
class World:
    """A simulator with known densities; contexts 0 and 1 are known, context 2 is new.

    Attributes:
        step: expected next states.
        start: draws first states.
        act_dim: number of actions, uniform in [-1, 1].
        noise: standard deviation of the noise of every coordinate.
    """

    step: Step
    start: Callable[[np.random.Generator, int], FloatArray]
    act_dim: int
    noise: FloatArray

    def simulate(self, context: IntArray, rng: np.random.Generator) -> Trajectories:
        """Simulate episodes with given contexts, `N T`, under random actions.

        Episodes in which the integration diverges are drawn again, with the same contexts.
        """
        obs, act = self._rows(context, rng)
        while (is_bad := ~(np.abs(obs) < _DIVERGED).all((1, 2))).any():
            obs[is_bad], act[is_bad] = self._rows(context[is_bad], rng)
        return Trajectories(obs=obs, act=act, context=context)

    def _rows(self, context: IntArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        num_episodes, num_steps = context.shape
        act = rng.uniform(-1.0, 1.0, (num_episodes, num_steps, self.act_dim))
        states = [self.start(rng, num_episodes)]
        for t in range(num_steps):
            mean = self.step(states[-1], act[:, t], context[:, t])
            states.append(mean + self.noise * rng.standard_normal(mean.shape))
        return np.stack(states, 1), act

    def known(self, num_episodes: int, rng: np.random.Generator) -> Trajectories:
        """Simulate episodes in which the two known contexts switch."""
        return self.simulate(known_contexts(num_episodes, rng), rng)

    def changed(self, num_episodes: int, rng: np.random.Generator) -> tuple[Trajectories, IntArray]:
        """Simulate episodes in which the new context appears at a random step and stays; return these steps, too."""
        context = known_contexts(num_episodes, rng)
        change = rng.integers(1, NUM_STEPS // 2, num_episodes)
        return self.simulate(np.where(np.arange(NUM_STEPS) < change[:, None], context, NEW), rng), change

    def mixed(self, num_episodes: int, rng: np.random.Generator) -> Trajectories:
        """Simulate episodes in which all three contexts switch."""
        return self.simulate(_walk(KNOWN + 1, num_episodes, rng), rng)

    def log_density(self, data: Trajectories) -> FloatArray:
        """Return the exact log p(next_obs | obs, act, context) of every step and context, `N T 3`."""
        rows = data.obs[:, :-1].reshape(-1, data.obs_dim), data.act.reshape(-1, data.act_dim)
        after = data.obs[:, 1:].reshape(-1, data.obs_dim)
        found = []
        for context in range(KNOWN + 1):
            mean = self.step(*rows, np.full(len(after), context))
            scaled = (after - mean) / self.noise
            found.append(-0.5 * np.square(scaled).sum(-1) - np.log(np.sqrt(2.0 * np.pi) * self.noise).sum())
        return np.stack(found, -1).reshape(*data.act.shape[:2], KNOWN + 1)


def known_contexts(num_episodes: int, rng: np.random.Generator) -> IntArray:
    """Draw the known contexts of episodes, `N T`."""
    return _walk(KNOWN, num_episodes, rng)


def _walk(num_contexts: int, num_episodes: int, rng: np.random.Generator) -> IntArray:
    walk = ChainWalk(MarkovChain.symmetric(num_contexts, SWITCH, 1), num_episodes)
    return np.stack([walk.reset(rng), *(walk.step(rng) for _ in range(NUM_STEPS - 1))], 1)


def build_world(system: str, new: str) -> World:
    """Build a world by its names in `SYSTEMS`; the noise is in units of the spread of its changes."""
    quiet = SYSTEMS[system][new]()
    spread = np.diff(quiet.known(50, np.random.default_rng(_UNITS_SEED)).obs, axis=1).std((0, 1))
    return replace(quiet, noise=NOISE * spread)


def _cartpole(**new: float) -> World:
    """Cart-pole whose force is reversed in context 1 and some parameters of which change in context 2."""
    physics = CartPolePhysics()
    usual = {name: getattr(physics, name) for name in ("actuation", *new)}
    values = {name: np.array([value, value, new.get(name, value)]) for name, value in usual.items()}
    values["actuation"][1] = -1.0

    def step(state: FloatArray, act: FloatArray, context: IntArray) -> FloatArray:
        return physics.step(state, act, {name: value[context] for name, value in values.items()})

    return World(step, lambda rng, num: physics.start(num, rng), physics.act_dim, np.zeros(physics.obs_dim))


def _suite(name: str) -> World:
    """Return a system of the suite with three contexts, the last of which is new."""
    system = build_system(name)
    assert system.num_contexts == KNOWN + 1
    quiet, unused = np.zeros(1), np.random.default_rng(0)

    def step(state: FloatArray, act: FloatArray, context: IntArray) -> FloatArray:
        return system.step(state, act, context, quiet, unused)

    return World(step, system.start, system.act_dim, np.zeros(system.start(unused, 1).shape[1]))


# What is new, by system; the two known contexts of a system are the same for all of them.
SYSTEMS: dict[str, dict[str, Callable[[], World]]] = {
    "cart-pole": {
        "actuation 0.3": lambda: _cartpole(actuation=0.3),
        "pole mass x 2": lambda: _cartpole(pole_mass=1.0),
    },
    "unicycle": {"wheels slip": lambda: _suite("unicycle")},
    "two-link arm": {"second motor dead": lambda: _suite("two_link_arm")},
    "Duffing": {"spring turns soft": lambda: _suite("duffing")},
}
