"""Candidates of a fit side by side: the model is that of one after the other, whatever finishes first."""

from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch

import mbrl_hdp
from mbrl_hdp.cli import main
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.workers import open_workers
from tests.inference.test_fit import weak_prior, world

RANDOM = FitConfig(start="random", num_steps=30, polish_steps=10, batch_size=40, num_restarts=3, learning_rate=2e-2)
SEARCH = FitConfig(num_steps=10, polish_steps=5, num_restarts=2)


class Eager:
    """Takes several calls at once and finishes each as it begins; counts them."""

    capacity = 7

    def __init__(self):
        self.calls = []

    def submit(self, function, *args):
        self.calls.append(function)
        future = Future()
        future.set_result(function(*args))
        return future

    def is_lost(self, error):
        return False


@contextmanager
def lend(workers):
    yield workers


def fit(data, config, dynamics, **more):
    return mbrl_hdp.fit(
        data, weak_prior(), dynamics=dynamics, max_contexts=4, seed=1, config=config, progress=False, **more
    )


def without_times(model):
    entries = [{key: value for key, value in run.items() if key != "time_s"} for run in model.report.runs]
    found = {key: value for key, value in model.report.search.items() if key != "cpu_time_s"}
    return entries, found


def assert_same(one, two):
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
    assert repr(without_times(one)) == repr(without_times(two))


def test_restarts_in_other_processes_are_those_of_this_one():
    data = world(40, 0)
    alone = fit(data, RANDOM, "linear")
    together = fit(data, RANDOM, "linear", workers=partial(open_workers, jobs=2))
    assert len(alone.report.runs) == 3
    assert_same(alone, together)


def test_candidates_are_judged_in_their_order_and_needless_ones_are_dropped():
    data = world(40, 0, num_steps=25)
    alone = fit(data, SEARCH, "auto")
    workers = Eager()
    together = fit(data, SEARCH, "auto", workers=partial(lend, workers))
    assert_same(alone, together)
    # Some begin before it is known that they are needless; what is known to be needless never does.
    skipped, num_runs = alone.report.search["skipped"], len(alone.report.runs)
    num_begun = sum(call.__name__ == "_train_apart" for call in workers.calls if not isinstance(call, partial))
    assert (num_runs, len(skipped)) == (6, 2)
    assert num_begun == 7
    assert len(workers.calls) == num_begun + 2  # the halves
    assert len(together.report.search["half_agreement"]) == 2


def test_a_diverged_candidate_is_left_out(monkeypatch):
    from mbrl_hdp.errors import DivergenceError
    from mbrl_hdp.inference import runs

    real = runs.held_out_score
    scored = []

    def fails_once(model, data, most_error):
        scored.append(model)
        if len(scored) == 2:
            raise DivergenceError("infinite loss")
        return real(model, data, most_error)

    monkeypatch.setattr(runs, "held_out_score", fails_once)
    model = fit(world(40, 0), RANDOM, "linear", workers=partial(lend, Eager()))
    assert len(scored) == 3
    assert [run["schedule"] for run in model.report.runs] == ["pooled", "plain"]


def test_the_command_takes_jobs_and_refuses_other_places(tmp_path, capsys):
    world(20, 0).save(tmp_path / "data.npz")
    words = ["fit", str(tmp_path / "data.npz"), "dynamics=linear", "max_contexts=3", "fit.start=random", "--no-report"]
    words += ["fit.num_steps=5", "fit.polish_steps=2", "fit.num_restarts=2", "seed=3"]
    for jobs in (1, 2):
        assert main([*words, f"jobs={jobs}", f"out={tmp_path / str(jobs)}"]) == 0
    one, two = (mbrl_hdp.load(tmp_path / name) for name in ("1", "2"))
    np.testing.assert_array_equal(one.transition, two.transition)
    assert main([*words, "workers=moon", f"out={tmp_path / 'no'}"]) == 2
    assert "workers" in capsys.readouterr().err
