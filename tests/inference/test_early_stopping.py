"""Early stopping: ends where nothing improves, goes back to the best, and changes nothing when it is off."""

import copy
import io

import numpy as np
import pytest
import torch
from rich.console import Console

import mbrl_hdp
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ModelParts, Part
from mbrl_hdp.inference.progress import FitProgress
from mbrl_hdp.inference.schedule import LITERAL, PLAIN, POLISH, REFIT, TEMPERED, FitConfig, Schedule
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.stopping import EarlyStop
from mbrl_hdp.inference.trainer import Trainer
from mbrl_hdp.types import TaskSpec

BUDGET = {"num_steps": 100, "polish_steps": 300, "batch_size": 100, "num_restarts": 1, "learning_rate": 5e-2}


def world(num_episodes, seed):
    """A point on a line: pushed forwards in one context, backwards in the other; both last about ten steps."""
    rng = np.random.default_rng(seed)
    context = np.cumsum(rng.random((num_episodes, 30)) < 0.1, 1) % 2
    act = rng.uniform(-1, 1, (num_episodes, 30, 1))
    change = np.where(context == 0, 1.0, -0.7)[..., None] * act + 0.05 * rng.normal(size=act.shape)
    obs = np.concatenate([np.zeros((num_episodes, 1, 1)), np.cumsum(change, 1)], 1)
    return mbrl_hdp.Trajectories(obs, act, context=context)


@pytest.fixture(scope="module")
def data():
    return world(50, 0)


def fitted(data, **changes):
    config = FitConfig(start="random", **BUDGET | changes)
    return mbrl_hdp.fit(data, dynamics="linear", max_contexts=2, seed=1, config=config, progress=False)


class TestEarlyStop:
    def watch(self, values, **changes):
        """Run through values; return the step after which it ended and the state it kept (the step)."""
        now = {"step": -1}
        settings = {"patience": 2, "tolerance": 0.1, "every": 1, "first_step": 0} | changes
        watch = EarlyStop(**settings, snapshot=lambda: now["step"])
        for step, value in enumerate(values):
            now["step"] = step
            if watch.is_over(step, value):
                return step, watch.best
        return None, watch.best

    def test_it_ends_after_two_looks_without_a_gain(self):
        assert self.watch([1.0, 2.0, 3.0, 2.9, 2.5, 9.0]) == (4, 2)

    def test_small_gains_do_not_count_but_are_kept(self):
        assert self.watch([1.0, 1.05, 1.08, 9.0]) == (2, 2)

    def test_small_gains_add_up(self):
        assert self.watch([1.0, 1.07, 1.14, 1.21, 1.28]) == (None, 4)

    def test_it_waits_for_the_first_step(self):
        assert self.watch([5.0, 1.0, 1.0, 1.0, 1.0, 1.0], first_step=2) == (4, 2)

    def test_it_looks_at_means(self):
        assert self.watch([0.0, 4.0, 3.0, 1.0, 2.0, 2.0], every=2, patience=1) == (3, 1)

    def test_a_measure_takes_precedence(self):
        values = iter([1.0, 5.0, 4.0, 4.0])
        assert self.watch([0.0] * 9, measure=lambda: next(values)) == (3, 1)

    def test_nan_is_no_gain(self):
        assert self.watch([1.0, float("nan"), float("nan"), 7.0]) == (2, 0)


@pytest.mark.parametrize(
    ("schedule", "last"),
    [
        (TEMPERED, 0.9),
        (PLAIN, 0.9),
        (POLISH, 0.0),
        (REFIT, 0.0),
        (LITERAL, 0.0),
        (Schedule(temper_from=0.5, temper_until=0.8, freeze_until=0.1, distil_from=0.2, keep_two_until=0.3), 0.8),
        (Schedule(temper_from=1.0, temper_until=0.8, freeze_until=0.1, distil_from=0.6, keep_two_until=0.3), 0.6),
        (Schedule(freeze_until=0.7, distil_from=1.0), 0.7),
    ],
    ids=str,
)
def test_the_last_event_of_a_schedule(schedule, last):
    assert schedule.last_event() == last


def test_an_easy_problem_ends_early_and_as_well(data):
    test = world(40, 9)
    full, early = fitted(data), fitted(data, patience=3, check_every=10, tolerance=1e-3)
    assert full.report.runs[0]["num_steps"] == 100
    assert full.report.polish == {"num_steps": 300, "stopped_early": False}
    assert early.report.polish["stopped_early"]
    assert early.report.polish["num_steps"] <= 200
    assert 90 < early.report.runs[0]["num_steps"] <= 100  # the last event of the schedule is at .9
    wanted, found = (float(model.log_likelihood(test).mean() / 30) for model in (full, early))
    assert found > wanted - 0.02
    assert wanted > 0.5  # the noise alone gives 1.58; one map for both contexts -1
    assert [align(model.most_likely(test), test.context).accuracy > 0.9 for model in (full, early)] == [True, True]


def test_without_episodes_aside_the_bound_decides(data):
    model = fitted(data, holdout=0.0, patience=2, check_every=4, tolerance=10.0)
    # The first look sets the mark; no gain is as large as 10. Ten steps after the last event have two looks.
    assert (model.report.runs[0]["num_steps"], model.report.runs[0]["stopped_early"]) == (100, False)
    assert model.report.polish == {"num_steps": 12, "stopped_early": True}


def untrained(data):
    registry = load_registry()
    parts = [Part(name, registry.get(kind, name).spec.config()) for kind, name in PARTS]
    model = build_model(ModelParts(*parts), TaskSpec(3, 1, 1, seed=2), registry)
    model.dynamics.set_normaliser(*(torch.as_tensor(rows, dtype=torch.float32) for rows in data.transitions()))
    return model


PARTS = (("prior", "hdp"), ("dynamics", "linear"), ("distillation", "stationary"))


def trainer_of(model, data, schedule=TEMPERED, **changes):
    config = FitConfig(start="random", num_steps=30, batch_size=20, **changes)
    generator = torch.Generator().manual_seed(0)
    parts = model.prior, model.dynamics, model.distillation
    return Trainer(*parts, EpisodeTensors.of(data), config, schedule, generator)


def values(model):
    return [value.detach().clone() for value in model.parameters()]


def is_same(first, second):
    return all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


def test_switched_off_it_is_the_plain_loop(data):
    """Second route: the steps one by one, without `run`."""
    model = untrained(data)
    stepped, watched = copy.deepcopy(model), copy.deepcopy(model)
    torch.manual_seed(0)
    trainer_of(model, data, patience=0).run()
    torch.manual_seed(0)
    by_hand = trainer_of(stepped, data)
    by_hand.prior.start_from(by_hand.start_chain, by_hand.config.start_strength)
    for step in range(30):
        by_hand._step(step / 30)
    assert is_same(values(model), values(stepped))
    # A watch that never gets to look changes nothing either.
    torch.manual_seed(0)
    length = trainer_of(watched, data, patience=1, check_every=31).run()
    assert (length.num_steps, length.is_stopped) == (30, False)
    assert is_same(values(model), values(watched))


def test_it_goes_back_to_the_best_state(data):
    model = untrained(data)
    trainer = trainer_of(model, data, REFIT, patience=3, check_every=1, tolerance=0.0)
    aside = EpisodeTensors.of(world(10, 5))
    seen = []
    measure = trainer.log_likelihood

    def falling_after_five(episodes):
        assert episodes is aside
        seen.append(values(model))
        return measure(episodes) if len(seen) <= 5 else -1e9

    trainer.log_likelihood = falling_after_five
    torch.manual_seed(0)
    length = trainer.run(held_out=aside)
    assert (length.num_steps, length.is_stopped) == (8, True)
    assert any(is_same(values(model), state) for state in seen[:5])
    assert not is_same(values(model), seen[-1])


def test_the_bar_ends_full(data):
    console = Console(file=io.StringIO(), force_terminal=True)
    with FitProgress(1, 80, is_wanted=True, console=console) as bar:
        report = bar.start_run("tempered", 50)
        for step in range(20):
            report(step, 1.5, 3)
        assert bar.num_done == 20
        bar.end_run(num_contexts=2, num_steps=20, is_stopped=True)
        assert bar.num_done == 50
        report = bar.start_run("polish", 30)
        for step in range(30):
            report(step, 1.5, 2)
        bar.end_run(num_contexts=2, num_steps=30, is_stopped=False)
        assert bar.num_done == 80
    shown = console.file.getvalue()
    assert "run 1/1 (tempered)" in shown
    assert "settled after 20 steps" in shown
    assert "run 2/1" not in shown
