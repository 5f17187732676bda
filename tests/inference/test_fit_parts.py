"""The decisions of a fit, one at a time: which runs, from which start, on which device, which one is taken."""

import numpy as np
import pytest
import torch

import mbrl_hdp
from mbrl_hdp.errors import FitError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference import fit as fit_module
from mbrl_hdp.inference.fit import HeldOutScore, choose
from mbrl_hdp.inference.recipes import RECIPES
from mbrl_hdp.inference.schedule import PLAIN, POOLED, REFIT, TEMPERED, FitConfig

QUICK = FitConfig(num_steps=2, polish_steps=1, num_restarts=1)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return mbrl_hdp.Trajectories(rng.normal(size=(4, 6, 2)), rng.normal(size=(4, 5, 1)))


@pytest.fixture(scope="module")
def build(data):
    parts = "hdp", "linear", "stationary"
    return fit_module._Builder(load_registry(), data, parts, 5, None, 3, RECIPES["robust"])


def names(num_restarts, warm_start, reset):
    config = FitConfig(num_restarts=num_restarts)
    return [schedule.name for schedule in fit_module._plan_runs(config, RECIPES["robust"], warm_start, reset)]


def test_runs_take_the_schedules_in_turn_and_a_warm_start_takes_one_run(build):
    three = [POOLED.name, TEMPERED.name, PLAIN.name]
    assert names(3, None, None) == three
    assert names(5, None, None) == [*three, *three[:2]]
    assert names(2, build(0), "chain") == three[:2]  # every slot is open again: a search as from the start
    assert names(3, build(0), None) == [REFIT.name]


@pytest.mark.parametrize("active", [[True, False, True, False, True], [True] * 4 + [False], [False] * 4 + [True]])
def test_reset_chain_opens_every_slot_and_starts_the_unused_ones_anew(build, active, monkeypatch):
    model, asked = build(0), []
    model.is_active = torch.tensor(active)
    monkeypatch.setattr(type(model.dynamics), "reset_slots", lambda _, slots, generator: asked.append(slots.tolist()))
    plain = fit_module._continued(model, None, build)
    assert plain.is_active.tolist() == active
    assert asked == []
    again = fit_module._continued(model, "chain", build)
    assert again.is_active.tolist() == [True] * 5
    assert asked == [[slot for slot, is_active in enumerate(active) if not is_active]]
    assert model.is_active.tolist() == active  # the old model is left alone


def test_whether_networks_are_small_is_asked_of_the_model_that_is_learned(data, monkeypatch):
    asked = []
    monkeypatch.setattr(fit_module, "has_small_networks", lambda dynamics: asked.append(dynamics) or True)
    monkeypatch.setattr(fit_module, "resolve_device", lambda _, is_small: torch.device("cpu" if is_small() else "meta"))
    settings = {"dynamics": "linear", "max_contexts": 2, "config": QUICK, "progress": False}
    model = mbrl_hdp.fit(data, **settings)
    mbrl_hdp.fit(data, **settings, warm_start=model)
    assert asked[0].max_contexts == 2
    assert asked[1] is model.dynamics


def test_a_report_counts_the_seconds_of_the_fit(data, monkeypatch):
    ticks = iter([100.0, 107.5])
    monkeypatch.setattr(fit_module.time, "perf_counter", lambda: next(ticks))
    model = mbrl_hdp.fit(data, dynamics="linear", max_contexts=2, config=QUICK, progress=False, seed=4)
    report = model.report
    assert (report.fit_time_s, report.num_episodes, report.num_transitions, report.seed) == (7.5, 4, 20, 4)


def test_a_warm_start_of_other_sizes_is_refused(data, build):
    other = mbrl_hdp.Trajectories(np.concatenate([data.obs, data.obs], -1), data.act)
    with pytest.raises(FitError, match="learned on 2 observations and 1 actions a step; this data has 4 and 1"):
        mbrl_hdp.fit(other, dynamics="linear", config=QUICK, progress=False, warm_start=build(0))


@pytest.mark.parametrize("best", [0, 1])
def test_of_runs_that_differ_by_chance_only_the_likelier_is_taken(best):
    likelihoods = np.array([1.0, 2.0, 3.0, 4.0])
    scores = [HeldOutScore(likelihoods, np.ones(4), 2), HeldOutScore(likelihoods, np.ones(4), 2)]
    scores[best] = HeldOutScore(likelihoods + np.array([0.3, -0.2, 0.3, -0.2]), np.ones(4), 2)
    assert choose(scores) == best
