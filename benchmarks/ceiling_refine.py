"""Search over all controls of an episode together, for tasks that always start alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.ceiling_agents import Agent, AgentMaker, View, most_likely_sign, run_episodes
from benchmarks.ceiling_cem import score_plans
from benchmarks.ceiling_filter import ExactFilter
from benchmarks.ceiling_tasks import Task, draw_episodes
from mbrl_hdp.envs.chains import FloatArray

_SIZES = (1.0, 0.3, 0.1, 0.03, 0.01)


@dataclass(frozen=True)
class Refined:
    """Makes agents that take the controls of one episode of another agent and improve them by random local changes.

    Attributes:
        first: makes the agent that gives the first controls, in an episode with known contexts.
        num_rounds: rounds of the search.
        population: changes tried a round; the best one is kept if it is better.
        num_paths: futures of the context that a blind agent scores a change on, each with its mirror image; 0 where the
            controls are always carried out (the context is known, or nothing it acts on is used).
        free: entries of the action that the search changes, see `Planned`.
    """

    first: AgentMaker
    num_rounds: int
    population: int
    num_paths: int = 0
    free: Sequence[float] | None = None

    def __call__(self, task: Task, num: int, seed: int) -> Agent:
        """Make an agent for `num` episodes."""
        controls = self._improved(task, self._first_controls(task, seed), np.random.default_rng((seed, 2)))

        def act(view: View) -> FloatArray:
            return task.sent(np.tile(controls[view.step], (num, 1)), most_likely_sign(task, view.belief))

        return act

    def _first_controls(self, task: Task, seed: int) -> FloatArray:
        """Return the controls `T A` of the first agent."""
        agent = self.first(task, 1, seed)
        controls: list[FloatArray] = []

        def record(view: View) -> FloatArray:
            act = agent(view)
            controls.append(task.sent(act, most_likely_sign(task, view.belief))[0])
            return act

        run_episodes(task, draw_episodes(task, [seed]), record, "known")
        return np.stack(controls)

    def _improved(self, task: Task, controls: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Keep the best of many changes, round after round."""
        start, gains = task.physics.start(1, rng), self._gains(task, rng)
        for _ in range(self.num_rounds):
            plans = np.clip(controls + self._changes(controls.shape, rng), task.physics.act_low, task.physics.act_high)
            controls = plans[score_plans(task, start, plans[None], gains)[0].argmax()]
        return controls

    def _gains(self, task: Task, rng: np.random.Generator) -> FloatArray:
        """Return the futures `1 P T` that every change is scored on."""
        if not self.num_paths:
            return np.ones((1, 1, task.physics.horizon))
        futures = task.factors[ExactFilter(task.chain, 1).sample_paths(rng, self.num_paths, task.physics.horizon)]
        return np.concatenate((futures, -futures), axis=1)

    def _changes(self, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
        """Draw changes `N T A`: a shift or noise on a random stretch of each entry; the first changes nothing."""
        (length, act_dim), num = shape, self.population
        begin, end = np.sort(rng.integers(0, length + 1, (2, num, 1, act_dim)), axis=0)
        end = np.where(rng.random(end.shape) < 0.5, begin + rng.integers(1, 6, end.shape), end)
        time = np.arange(length)[:, None]
        is_inside = (time >= begin) & (time < end)
        shift, noise = rng.standard_normal((num, 1, act_dim)), rng.standard_normal((num, length, act_dim))
        change = np.where(rng.random((num, 1, 1)) < 0.7, shift * rng.integers(0, 2, shift.shape), 0.3 * noise)
        change *= rng.choice(_SIZES, shift.shape) * is_inside
        change[0] = 0.0
        return change if self.free is None else change * np.asarray(self.free)
