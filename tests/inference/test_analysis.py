"""`model.analyse`: every result by the functions underneath, and how often the heads run."""

import csv

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError
from mbrl_hdp.experiments.label_command import describe, save_labels
from mbrl_hdp.inference.elbo import step_log_lik
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.fit import FitConfig, fit, held_out_score
from mbrl_hdp.probability import hmm
from mbrl_hdp.report.fit_report import write_fit_report

METHODS = {
    "filter": "filtered",
    "smooth": "smoothed",
    "most_likely": "most_likely",
    "log_likelihood": "log_likelihood",
}


@pytest.fixture(scope="module")
def fitted():
    """A model of a few training steps with two contexts, and episodes of different lengths with holes."""
    rng = np.random.default_rng(0)
    context = np.arange(20)[None] // 5 % 2 * np.ones((6, 1), int)
    act = rng.uniform(-1, 1, (6, 20, 1))
    obs = np.zeros((6, 21, 2))
    for t in range(20):
        push = np.where(context[:, t] == 0, 1.0, -0.5)[:, None]
        obs[:, t + 1] = 0.9 * obs[:, t] + push * act[:, t] + 0.05 * rng.normal(size=(6, 2))
    config = FitConfig(start="random", num_steps=30, num_restarts=1, polish_steps=5)
    model = fit(Trajectories(obs, act), dynamics="linear", max_contexts=3, config=config, progress=False)
    obs[1, 7] = np.nan
    lengths = np.array([20, 20, 13, 20, 1, 8])
    return model, Trajectories(obs, act, lengths=lengths, context=context, allow_missing=True)


@pytest.fixture
def passes(fitted, monkeypatch):
    """Count the passes over the heads: densities of all steps, and expected next observations by context."""
    model, _ = fitted
    counts = {"log_prob_slots": 0, "predict": 0}

    def count(name, real):
        def counted(*values):
            counts[name] += 1
            return real(*values)

        return counted

    for name in counts:
        monkeypatch.setattr(model.dynamics, name, count(name, getattr(model.dynamics, name)))
    return counts


def test_results_are_those_of_the_messages(fitted):
    model, data = fitted
    found = model.analyse(data)
    batch = EpisodeTensors.of(data).batch()
    with torch.no_grad():
        log_lik = step_log_lik(model.dynamics, batch, model.slots)
    inside = data.is_step[..., None]
    filtered = hmm.filter_contexts(model.chain, log_lik, batch.lengths)
    by_hand = np.where(inside, filtered.probs.double(), np.nan)
    np.testing.assert_array_equal(found.filtered, by_hand)
    np.testing.assert_array_equal(found.log_likelihood, filtered.log_evidence.double())
    smoothed = hmm.smooth(model.chain, log_lik, batch.lengths).marginals.double()
    np.testing.assert_array_equal(found.smoothed, np.where(inside, smoothed, np.nan))
    np.testing.assert_array_equal(found.most_likely, hmm.viterbi(model.chain, log_lik, batch.lengths))
    np.testing.assert_array_equal(
        found.predictive_belief[:, 0], np.broadcast_to(model.initial, (6, model.num_contexts))
    )
    np.testing.assert_allclose(found.predictive_belief[:, 1:], by_hand[:, :-1] @ model.transition, rtol=1e-12)
    steps = data.is_observed
    assert found.log_likelihood_per_step == pytest.approx(found.log_likelihood.sum() / steps.sum())
    obs, act = (torch.as_tensor(part[steps], dtype=torch.float32) for part in (data.obs[:, :-1], data.act))
    with torch.no_grad():
        heads = [model.dynamics.predict(obs, act, torch.full((len(obs),), slot)) for slot in model.slots.tolist()]
    mean = sum(found.predictive_belief[steps][:, k, None] * head.double().numpy() for k, head in enumerate(heads))
    np.testing.assert_allclose(found.predicted[steps], mean, rtol=1e-4, atol=1e-5)
    assert np.isnan(found.predicted[~steps]).all()


@pytest.mark.parametrize(("method", "field"), METHODS.items())
def test_the_single_questions_have_the_same_answers(fitted, method, field):
    model, data = fitted
    np.testing.assert_array_equal(getattr(model, method)(data), getattr(model.analyse(data), field))


def test_everything_takes_one_pass(fitted, passes):
    model, data = fitted
    found = model.analyse(data)
    for field in ("filtered", "smoothed", "most_likely", "log_likelihood", "predictive_belief", "filtered", "smoothed"):
        getattr(found, field)
    assert passes == {"log_prob_slots": 1, "predict": 0}
    for _ in range(2):
        assert found.predicted.shape == (6, 20, 2)
    assert passes == {"log_prob_slots": 1, "predict": model.num_contexts}


def test_labels_report_and_figures_share_the_pass(fitted, passes, tmp_path, monkeypatch):
    model, data = fitted
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: path.touch())
    found = model.analyse(data)
    save_labels(found, tmp_path / "labels.csv")
    assert "accuracy" in describe(model, found, "labels.csv")
    write_fit_report(model, found, tmp_path)
    # What each context does and where the noise sits take the expected next observations, once each.
    assert passes == {"log_prob_slots": 1, "predict": 2 * model.num_contexts}
    with (tmp_path / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["most_likely"]) for row in rows] == found.most_likely[data.is_step].tolist()
    np.testing.assert_allclose(
        [float(row["filtered_0"]) for row in rows], found.filtered[data.is_step][:, 0], rtol=1e-5
    )


def test_held_out_scores_take_one_pass(fitted, passes):
    model, data = fitted
    assert held_out_score(model, data).num_contexts == model.num_contexts
    assert passes == {"log_prob_slots": 1, "predict": model.num_contexts}


def test_data_of_other_widths_is_refused(fitted):
    model, _ = fitted
    with pytest.raises(DataError, match="learned on 2 observations and 1 actions"):
        model.analyse(Trajectories(np.zeros((1, 3, 3)), np.zeros((1, 2, 1))))


def test_an_analysis_is_only_equal_to_itself(fitted):
    """Arrays do not compare to one truth value: comparing fields would raise, and so would using it as a key."""
    model, data = fitted
    one, two = model.analyse(data), model.analyse(data)
    assert one == one
    assert one != two
    assert {one: "first", two: "second"}[one] == "first"
