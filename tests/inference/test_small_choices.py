"""Small decisions of a fit, each with an answer by hand: which run is taken, what counts as an error, what is said."""

import io

import numpy as np
import pytest
import torch
from rich.console import Console

import mbrl_hdp
from mbrl_hdp.errors import FitError
from mbrl_hdp.inference import structure, warm_up
from mbrl_hdp.inference.choice import HeldOutScore, choose, held_out_score
from mbrl_hdp.inference.prediction_error import scaled_errors
from mbrl_hdp.inference.progress import FitProgress
from mbrl_hdp.inference.residual_split import _basis
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.search.rows import make_rows
from tests.inference.test_coordinate import make_trainer
from tests.inference.test_fit import pooled_trainer, world


def test_of_runs_with_as_many_contexts_the_likelier_is_taken():
    errors, jitter = np.full(4, 1.0), np.array([-0.1, 0.1, 0.3, -0.3])
    scores = [HeldOutScore(3.0 + jitter, errors, 2), HeldOutScore(3.05 - jitter, errors, 2)]
    assert choose(scores) == 1
    assert choose(scores[::-1]) == 0


def test_an_episode_without_an_observed_step_scores_zero():
    data = world(6, 0)
    obs = data.obs.copy()
    obs[2] = np.nan
    model, _ = pooled_trainer(data, num_steps=1, pool_until=0.0)
    model.extract()
    found = held_out_score(model, mbrl_hdp.Trajectories(obs, data.act, allow_missing=True)).log_likelihoods
    assert found[2] == pytest.approx(0.0, abs=1e-5)
    assert np.isfinite(found).all()


class TestScaledErrors:
    def test_errors_are_in_units_of_the_changes_and_constant_columns_do_not_count(self):
        change = np.array([1.0, 3.0, 5.0, 7.0])  # standard deviation sqrt(5)
        obs = np.zeros((1, 5, 3))
        obs[0, 1:, 0] = np.cumsum(change)
        obs[..., 1] = 4.0  # never changes; the third column is always zero
        data = mbrl_hdp.Trajectories(obs, np.zeros((1, 4, 1)))
        predicted = data.obs[:, 1:] + np.array([0.5, 9.0, 9.0])
        np.testing.assert_allclose(scaled_errors(predicted, data), np.full((4, 1), 0.5 / np.sqrt(5.0)))

    def test_where_nothing_changes_there_is_no_error(self):
        data = mbrl_hdp.Trajectories(np.full((2, 4, 1), 3.0), np.zeros((2, 3, 1)))
        np.testing.assert_array_equal(scaled_errors(data.obs[:, 1:] + 1.0, data), np.zeros((6, 1)))


def test_a_start_that_was_typed_is_the_start(monkeypatch):
    """The word of a command line is equal to the default, not the same object."""
    monkeypatch.setattr(structure, "search_structure", lambda *_: None)
    typed = FitConfig(start="".join(["sea", "rch"]), num_contexts=2)
    with pytest.raises(FitError, match="too little data"):  # the search ran
        structure.StructureSearch(typed, 3, ()).wanted(world(2, 0))


@pytest.mark.parametrize(("num_rounds", "num_kept"), [(3, 4), (4, 1)])
def test_no_context_is_masked_in_the_first_three_rounds(num_rounds, num_kept, monkeypatch):
    trainer = make_trainer(world(6, 0), 4)
    monkeypatch.setattr(trainer.distillation, "keep", lambda posterior: torch.arange(4) == 0)
    assert trainer.run_from(None, num_rounds=num_rounds, tolerance=0.0).num_steps == num_rounds
    assert int(trainer.keep.sum()) == num_kept


def test_one_slot_has_nothing_to_merge():
    trainer = make_trainer(world(6, 0), 1)
    trainer.merge_alike()
    assert trainer.keep.tolist() == [True]


def test_a_warm_up_returns_the_number_of_its_steps(monkeypatch):
    data = world(4, 0)
    _, trainer = pooled_trainer(data, num_steps=9, pool_until=0.0)
    certain = torch.nn.functional.one_hot(torch.as_tensor(data.context), 3).float()
    assert warm_up.warm_up(trainer, certain, most_steps=5) == 5
    monkeypatch.setattr(warm_up.EarlyStop, "is_over", lambda self, step, value: step == 2)
    assert warm_up.warm_up(trainer, certain, most_steps=5) == 3


def test_what_every_run_found_is_printed(capsys):
    """Also of runs that differ in their number only, and end soon after each other."""
    with FitProgress(2, 20, True, Console(file=io.StringIO())) as bar:
        for _ in range(2):
            bar.start_run("tempered", 10)
            bar.end_run(2, 10, False)
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"run {number}/2 (tempered)  contexts found 2" for number in (1, 2)
    ]


@pytest.mark.parametrize(("num_columns", "width"), [(3, 1 + 4 + 10), (12, 1 + 13)])
def test_products_are_features_where_columns_are_few(num_columns, width):
    """The constant, the inputs (one of them the action) and their products, or not these."""
    rng = np.random.default_rng(0)
    rows = make_rows(mbrl_hdp.Trajectories(rng.normal(size=(4, 30, num_columns)), rng.normal(size=(4, 29, 1))))
    basis = _basis(rows)
    assert basis.shape == (len(rows), width)
    np.testing.assert_array_equal(basis[:, 0], 1.0)
    np.testing.assert_array_equal(basis[:, 1 : 1 + rows.inputs.shape[1]], np.clip(rows.inputs, -3.0, 3.0))
