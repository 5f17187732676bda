"""Contexts that differ in their noise only: found where calm and rough times last, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

import mbrl_hdp
from mbrl_hdp import FitConfig, Trajectories
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.search import find_contexts


def noisy(
    kind: str, num_episodes: int = 20, num_steps: int = 100, seed: int = 0
) -> tuple[Trajectories, np.ndarray]:  # fmt: skip
    """Return a slow process whose noise is four times as large in rough times, in some places, or never."""
    rng = np.random.default_rng(seed)
    obs = np.zeros((num_episodes, num_steps + 1, 2))
    context = np.zeros((num_episodes, num_steps), int)
    for n in range(num_episodes):
        obs[n, 0] = rng.normal(size=2)
        rough = int(rng.integers(2))
        for t in range(num_steps):
            rough = rough if rng.random() < 0.97 else 1 - rough
            context[n, t] = rough
            is_rough = {"times": rough, "places": obs[n, t, 0] > 0.0, "none": False}[kind]
            noise = rng.normal(0.0, 0.4 if is_rough else 0.1, 2)
            obs[n, t + 1] = obs[n, t] @ np.array([[0.95, 0.05], [-0.05, 0.9]]) + noise
    return Trajectories(obs), context


def test_rough_times_are_found() -> None:
    data, context = noisy("times")
    found = find_contexts(data, 4)
    assert found.num_contexts == 1
    assert found.noise_levels is not None
    assert align(found.noise_levels.probability.argmax(-1), context).accuracy > 0.97
    assert np.diagonal(found.noise_levels.transition).min() > 0.93


@pytest.mark.parametrize("kind", ["places", "none"])
def test_noise_that_depends_on_the_place_is_no_context(kind: str) -> None:
    assert find_contexts(noisy(kind)[0], 4).noise_levels is None


def test_fit_takes_them_for_contexts() -> None:
    data, context = noisy("times", num_episodes=30)
    config = FitConfig(num_restarts=1, num_steps=30)
    model = mbrl_hdp.fit(data, dynamics="linear", max_contexts=4, config=config, progress=False)
    assert model.num_contexts == 2
    assert align(model.most_likely(data), context).accuracy > 0.97
    taken = next(run for run in model.report.runs if run["taken"])
    assert taken["schedule"] == "noise levels"
    assert min(model.report.search["half_agreement"]) > 0.8
