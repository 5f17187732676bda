"""The decisions of a fit, one at a time: which runs, from which start, on which device, which one is taken."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import mbrl_hdp
from mbrl_hdp.errors import FitError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference import fit as fit_module
from mbrl_hdp.inference import runs as runs_module
from mbrl_hdp.inference.building import Builder
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.fit import HeldOutScore, choose
from mbrl_hdp.inference.parts import Part
from mbrl_hdp.inference.progress import FitProgress
from mbrl_hdp.inference.recipes import RECIPES
from mbrl_hdp.inference.runs import Result, Runs, _continued, refits
from mbrl_hdp.inference.schedule import PLAIN, POOLED, REFIT, SEARCHED, TEMPERED, FitConfig
from mbrl_hdp.inference.starts import Contexts, Start
from mbrl_hdp.inference.trainer import RunLength
from mbrl_hdp.inference.training import Job, polish, train_run
from mbrl_hdp_distillers import ThresholdConfig

QUICK = FitConfig(num_steps=2, polish_steps=1, num_restarts=1)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return mbrl_hdp.Trajectories(rng.normal(size=(4, 6, 2)), rng.normal(size=(4, 5, 1)))


@pytest.fixture(scope="module")
def build(data):
    parts = "hdp", "delta_mlp", "stationary"
    return Builder(load_registry(), data, parts, 5, None, 3, RECIPES["robust"])


@pytest.fixture
def model(build):
    return build(0, build.families[0])


def names(starts):
    return [start.schedule.name for start in starts]


def test_runs_take_the_schedules_in_turn_and_a_warm_start_takes_one_run(build, model):
    def config(num_restarts):
        return FitConfig(num_restarts=num_restarts, start="random")

    three, part, recipe = [POOLED.name, TEMPERED.name, PLAIN.name], build.families[0], RECIPES["robust"]
    assert names(build.starts(part, None, config(3))) == three
    assert names(build.starts(part, None, config(5))) == [*three, *three[:2]]
    assert names(refits(model, config(2), recipe, "chain")) == three[:2]  # every slot is open again
    assert names(refits(model, config(3), recipe, None)) == [REFIT.name]


@pytest.mark.parametrize("active", [[True, False, True, False, True], [True] * 4 + [False], [False] * 4 + [True]])
def test_reset_chain_opens_every_slot_and_starts_the_unused_ones_anew(build, model, active, monkeypatch):
    asked = []
    model.is_active = torch.tensor(active)
    monkeypatch.setattr(type(model.dynamics), "reset_slots", lambda _, slots, generator: asked.append(slots.tolist()))
    plain = _continued(model, None, build)
    assert plain.is_active.tolist() == active
    assert asked == []
    again = _continued(model, "chain", build)
    assert again.is_active.tolist() == [True] * 5
    assert asked == [[slot for slot, is_active in enumerate(active) if not is_active]]
    assert model.is_active.tolist() == active  # the old model is left alone


def test_whether_networks_are_small_is_asked_of_the_model_that_is_learned(data, monkeypatch):
    asked = []
    monkeypatch.setattr(fit_module, "has_small_networks", lambda dynamics: asked.append(dynamics) or True)
    monkeypatch.setattr(fit_module, "resolve_device", lambda _, is_small: torch.device("cpu" if is_small() else "meta"))
    settings = {"dynamics": "linear", "max_contexts": 2, "duration": "geometric", "config": QUICK, "progress": False}
    model = mbrl_hdp.fit(data, **settings)
    mbrl_hdp.fit(data, **settings, warm_start=model)
    assert asked[0].max_contexts == 2
    assert asked[1] is model.dynamics


def test_a_report_counts_the_seconds_of_the_fit(data, monkeypatch):
    ticks = iter([100.0, 107.5])
    monkeypatch.setattr(fit_module, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    model = mbrl_hdp.fit(data, dynamics="linear", max_contexts=2, config=QUICK, progress=False, seed=4)
    report = model.report
    assert (report.fit_time_s, report.num_episodes, report.num_transitions, report.seed) == (7.5, 4, 20, 4)


def test_a_warm_start_of_other_sizes_is_refused(data, model):
    other = mbrl_hdp.Trajectories(np.concatenate([data.obs, data.obs], -1), data.act)
    with pytest.raises(FitError, match="learned on 2 observations and 1 actions a step; this data has 4 and 1"):
        mbrl_hdp.fit(other, dynamics="linear", config=QUICK, progress=False, warm_start=model)


@pytest.mark.parametrize("best", [0, 1])
def test_of_runs_that_differ_by_chance_only_the_likelier_is_taken(best):
    likelihoods = np.array([1.0, 2.0, 3.0, 4.0])
    scores = [HeldOutScore(likelihoods, np.ones(4), 2), HeldOutScore(likelihoods, np.ones(4), 2)]
    scores[best] = HeldOutScore(likelihoods + np.array([0.3, -0.2, 0.3, -0.2]), np.ones(4), 2)
    assert choose(scores) == best


@pytest.mark.parametrize(("agreement", "is_confirmed"), [(0.97, True), (0.3, False)])
def test_a_run_confirms_the_search_by_its_labels_not_by_their_number(
    build, model, data, agreement, is_confirmed, monkeypatch
):
    score, length = HeldOutScore(np.zeros(3), np.ones(3), model.num_contexts), RunLength(2, False)
    contexts = Contexts(np.ones((4, 5, 1)), np.ones((1, 1)))
    random = Start("random", build.families[0], PLAIN)
    searched = Start("search", build.families[0], PLAIN, contexts)
    runs = Runs(Job(QUICK, EpisodeTensors.of(data), None, data), build, None, None, 0, torch.device("cpu"))
    runs.results = [Result(start, model, score, length, 0.0) for start in (searched, random)]
    monkeypatch.setattr(runs_module, "agreement_with", lambda _, others, data: [agreement] * len(others))
    assert runs._is_confirmed(random) is is_confirmed


@pytest.mark.parametrize(("num_steps", "taken"), [(1, 1 + 1), (3, 3 + 1), (8, 8 + 4)])
def test_networks_take_half_as_many_steps_again_after_those_on_labels(build, model, data, num_steps, taken):
    job = Job(FitConfig(num_steps=num_steps), EpisodeTensors.of(data), None, data)
    labels = np.eye(2)[np.arange(20).reshape(4, 5) % 2]
    start = Start("search", build.families[0], SEARCHED, Contexts(labels, np.full((2, 2), 0.5)))
    with FitProgress(1, num_steps, is_wanted=False) as bar:
        assert train_run(model, job, start, 0, True, bar).num_steps == taken


@pytest.mark.parametrize("true_one", [None, "_is_confirmed", "_is_outdone", "_is_explained"])
def test_one_reason_is_enough_to_leave_a_run_out(build, data, true_one, monkeypatch):
    runs = Runs(Job(QUICK, EpisodeTensors.of(data), None, data), build, None, None, 0, torch.device("cpu"))
    for name in ("_is_confirmed", "_is_outdone", "_is_explained"):
        monkeypatch.setattr(runs, name, lambda _, found=name == true_one: found)
    assert runs._is_needless(Start("random", build.families[0], PLAIN)) is (true_one is not None)


def test_polishing_does_not_ask_the_rule_of_distillation(data):
    """With a threshold that no context reaches the polished model is the same as without any."""
    polished = []
    for threshold in (0.0, 0.6):
        rule = Part("stationary", ThresholdConfig(train_threshold=threshold, test_threshold=0.0))
        build = Builder(load_registry(), data, ("hdp", "linear", rule), 3, None, 0, RECIPES["robust"])
        model = build(0, build.families[0])
        model.extract()
        job = Job(FitConfig(), EpisodeTensors.of(data), None, data)
        polish(model, job, 0, lambda *_: None, num_steps=10)
        polished.append([*model.prior.parameters(), *model.dynamics.parameters()])
    for one, two in zip(*polished, strict=True):
        assert torch.equal(one, two)
