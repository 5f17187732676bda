"""Search over all controls of an episode together, for tasks that always start alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.ceiling_agents import Agent, Planned, View, known_gains, most_likely_actuation, run_episodes
from benchmarks.ceiling_cem import CemConfig, score_plans
from benchmarks.ceiling_filter import ExactFilter
from benchmarks.ceiling_tasks import Task, draw_episodes
from mbrl_hdp.envs.chains import FloatArray

_SIZES = (0.3, 0.1, 0.03, 0.01)


@dataclass(frozen=True)
class Refined:
    """Makes agents that plan an episode by CEM once, then improve its controls by random local changes.

    Attributes:
        config: of the planner that gives the first controls, with its controls carried out whatever the contexts are.
        num_rounds: rounds of the search.
        population: changes tried a round; the best one is kept if it is better.
        num_paths: futures of the context that a blind agent scores a change on, each with its mirror image; 0 where the
            controls are always carried out (the context is known, or nothing it acts on is used).
        first_free: entries of the action that the planner uses, see `Planned`.
        free: entries of the action that the search changes.
    """

    config: CemConfig
    num_rounds: int
    population: int
    num_paths: int = 0
    first_free: Sequence[float] | None = None
    free: Sequence[float] | None = None

    def __call__(self, task: Task, num: int, seed: int) -> Agent:
        """Make an agent for `num` episodes."""
        controls = self._improved(task, self._planned(task, seed), np.random.default_rng((seed, 2)))

        def act(view: View) -> FloatArray:
            return task.sent(np.tile(controls[view.step], (num, 1)), most_likely_actuation(task, view.belief))

        return act

    def _planned(self, task: Task, seed: int) -> FloatArray:
        """Give the controls `T A` of the receding-horizon planner."""
        agent = Planned(self.config, known_gains, self.first_free)(task, 1, seed)
        controls: list[FloatArray] = []

        def record(view: View) -> FloatArray:
            act = agent(view)
            controls.append(task.sent(act, most_likely_actuation(task, view.belief))[0])
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
        """Give the futures `1 P T` that every change is scored on."""
        if not self.num_paths:
            return np.ones((1, 1, task.physics.horizon))
        futures = task.factors[ExactFilter(task.chain, 1).sample_paths(rng, self.num_paths, task.physics.horizon)]
        return np.concatenate((futures, -futures), axis=1)

    def _changes(self, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
        """Draw changes `N T A`: a shift or noise of random size on a random stretch; the first changes nothing."""
        (length, act_dim), num = shape, self.population
        begin, end = np.sort(rng.integers(0, length + 1, (2, num)), axis=0)
        end = np.where(rng.random(num) < 0.5, begin + rng.integers(1, 4, num), end)
        time = np.arange(length)
        is_inside = (time >= begin[:, None]) & (time < end[:, None])
        shift, noise = rng.standard_normal((num, 1, act_dim)), rng.standard_normal((num, length, act_dim))
        change = np.where(rng.random((num, 1, 1)) < 0.7, shift * rng.integers(0, 2, shift.shape), 0.3 * noise)
        change *= rng.choice(_SIZES, (num, 1, 1)) * is_inside[:, :, None]
        change[0] = 0.0
        return change if self.free is None else change * np.asarray(self.free)
