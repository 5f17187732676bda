"""A switching system: an ordinary differential equation whose parameters a hidden chain picks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mbrl_hdp.envs.chains import FloatArray, IntArray, MarkovChain
from mbrl_hdp.envs.walk import ChainWalk

# state (S, B), action (A, B), parameters (P, B) -> change per second (S, B)
Derivative = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
# random generator, number of episodes -> states (B, S)
Start = Callable[[np.random.Generator, int], FloatArray]

# Data of this seed fixes the units of the noise, so that every data set of a system has the same noise.
_CALIBRATION_SEED = 987_654


class Rollouts(NamedTuple):
    """Simulated episodes: `obs` (N, T+1, S), `act` (N, T, A) and the context that acted on every step, (N, T)."""

    obs: FloatArray
    act: FloatArray
    context: IntArray


@dataclass(frozen=True)
class System:
    """One system of the suite; integrated by Runge-Kutta 4 with the action held over a step.

    Attributes:
        name: word in tables.
        derivative: the equation; see `Derivative`.
        contexts: parameters of every context, `K P`.
        start: draws the first states.
        act_dim: number of actions, each uniform in [-1, 1] and drawn anew at every step.
        dt: seconds of a step.
        num_substeps: integration steps of a step.
        noisy: coordinates that process noise enters (it reaches the others through the equation); None is all.
        limit: applied to the state after every step (walls, saturation).
        observe: what is logged of the state; None logs it as it is.
        place: context at every state, `B S` -> `B`, where position decides; None: contexts switch at random.
        switch: probability of a switch after the cool-off.
        cool_off: steps that a context acts at least.
        process_noise: standard deviation of the noise of a step, in units of the spread of that coordinate's change.
        obs_noise: standard deviation of the noise on observations, in units of each one's spread.
    """

    name: str
    derivative: Derivative
    contexts: FloatArray
    start: Start
    act_dim: int = 1
    dt: float = 0.1
    num_substeps: int = 4
    noisy: Sequence[int] | None = None
    limit: Callable[[FloatArray], FloatArray] | None = None
    observe: Callable[[FloatArray], FloatArray] | None = None
    place: Callable[[FloatArray], IntArray] | None = None
    switch: float = 0.1
    cool_off: int = 5
    process_noise: float = 0.0
    obs_noise: float = 0.0

    @property
    def num_contexts(self) -> int:
        """Number of contexts."""
        return len(self.contexts)

    def closer(self, factor: float) -> System:
        """Return the system whose contexts lie `factor` times as far from their mean."""
        mean = self.contexts.mean(0)
        return replace(self, contexts=mean + factor * (self.contexts - mean))

    def still(self) -> System:
        """Return the system that stays in its first context for ever."""
        return replace(self, contexts=self.contexts[:1], place=None)

    def simulate(self, num_episodes: int = 100, num_steps: int = 100, seed: int = 0) -> Rollouts:
        """Simulate episodes under random actions."""
        rng = np.random.default_rng([seed, num_episodes, *self.name.encode()])
        state_noise = obs_noise = np.zeros(1)
        if self.process_noise or self.obs_noise:
            quiet = replace(self, process_noise=0.0, obs_noise=0.0)
            states, obs = quiet._run(np.random.default_rng(_CALIBRATION_SEED), 50, num_steps, np.zeros(1))[:2]
            state_noise = self.process_noise * np.diff(states, axis=1).std((0, 1))
            obs_noise = self.obs_noise * obs.std((0, 1))
        _, obs, act, context = self._run(rng, num_episodes, num_steps, self._entering(state_noise))
        return Rollouts(obs + obs_noise * rng.standard_normal(obs.shape), act, context)

    def _entering(self, noise: FloatArray) -> FloatArray:
        if self.noisy is None or len(noise) == 1:
            return noise
        return np.where(np.isin(np.arange(len(noise)), self.noisy), noise, 0.0)

    def _run(
        self, rng: np.random.Generator, num_episodes: int, num_steps: int, noise: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, IntArray]:
        walk = ChainWalk(MarkovChain.symmetric(self.num_contexts, self.switch, self.cool_off), num_episodes)
        context = np.stack([walk.reset(rng), *(walk.step(rng) for _ in range(num_steps - 1))], 1)
        act = rng.uniform(-1.0, 1.0, (num_episodes, num_steps, self.act_dim))
        states = [self.start(rng, num_episodes)]
        for t in range(num_steps):
            if self.place is not None:
                context[:, t] = self.place(states[-1])
            states.append(self.step(states[-1], act[:, t], context[:, t], noise, rng))
        path = np.stack(states, 1)
        return path, path if self.observe is None else self.observe(path), act, context

    def step(
        self, state: FloatArray, act: FloatArray, context: IntArray, noise: FloatArray, rng: np.random.Generator
    ) -> FloatArray:
        """Return the next states, `B S`; `noise` is the standard deviation that a step adds to each coordinate."""
        now, action, parameters = state.T, act.T, self.contexts[context].T
        h = self.dt / self.num_substeps
        for _ in range(self.num_substeps):
            k1 = self.derivative(now, action, parameters)
            k2 = self.derivative(now + 0.5 * h * k1, action, parameters)
            k3 = self.derivative(now + 0.5 * h * k2, action, parameters)
            k4 = self.derivative(now + h * k3, action, parameters)
            now = now + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
            if noise.any():
                now = now + noise[:, None] / np.sqrt(self.num_substeps) * rng.standard_normal(now.shape)
        return now.T if self.limit is None else self.limit(now.T)


def box_start(low: Sequence[float], high: Sequence[float]) -> Start:
    """Return a start that is uniform in a box."""
    return lambda rng, num: rng.uniform(low, high, (num, len(low)))
