"""Heavy tails in `fit`: when the search reports them, which candidates that adds, how runs are scored, what is said."""

import copy
import dataclasses

import numpy as np
import pytest

import mbrl_hdp
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.building import Builder
from mbrl_hdp.inference.choice import held_out_score
from mbrl_hdp.inference.model import Part
from mbrl_hdp.inference.recipes import RECIPES
from mbrl_hdp.inference.saving import load, save_model
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.search.em import start_state
from mbrl_hdp.inference.search.rows import make_rows
from mbrl_hdp.inference.search.tails import HEAVY, far_share, is_far
from mbrl_hdp.inference.structure import search_structure
from mbrl_hdp.report.noise import heavy_tails
from mbrl_hdp.report.summary import summarise
from mbrl_hdp_dynamics.auto import AutoConfig
from mbrl_hdp_dynamics.sparse import SparseConfig, build_sparse


def switching(spike_share=0.0, seed=0, num_episodes=30, num_steps=50):
    """A lag whose input acts with one sign or the other; readings of the second sensor may be spikes."""
    rng = np.random.default_rng(seed)
    context = np.cumsum(rng.random((num_episodes, num_steps)) < 0.04, 1) % 2
    act = rng.uniform(-1.0, 1.0, (num_episodes, num_steps, 1))
    obs = np.zeros((num_episodes, num_steps + 1, 2))
    for t in range(num_steps):
        drive = act[:, t, 0] * (1 - 2 * context[:, t])
        change = np.stack([0.5 * drive - 0.2 * obs[:, t, 0], 0.3 * obs[:, t, 0] - 0.3 * obs[:, t, 1]], 1)
        obs[:, t + 1] = obs[:, t] + change + 0.05 * rng.normal(size=(num_episodes, 2))
    obs[..., 1] += (rng.random(obs.shape[:2]) < spike_share) * rng.choice([-5.0, 5.0], obs.shape[:2])
    return Trajectories(obs=obs, act=act, context=context)


def state_of(rows, residuals):
    weight = np.full((len(rows), len(residuals)), 1.0 / len(residuals))
    weight[:, 0] += 0.1
    state = start_state(rows, weight, floor=0.01)
    state.residuals = residuals
    return state


def test_far_is_beyond_six_usual_deviations_under_every_context():
    rows = make_rows(switching())
    rng = np.random.default_rng(1)
    residuals = np.stack([rng.normal(size=(len(rows), 2)), np.full((len(rows), 2), 3.0)])
    residuals[0, :, 0] *= 10.0  # a unit of its own
    residuals[:, 7, 1] = 7.0, -7.0
    residuals[:, 8, 1] = 7.0, 3.0  # the second context predicts it
    residuals[:, 9, 1] = 5.0, 9.0  # not far enough in the first
    residuals[:, 10, 0] = 50.0
    residuals[:, 11, 0] = 70.0
    assert np.flatnonzero(is_far(state_of(rows, residuals))).tolist() == [7, 11]


def test_rows_that_are_far_beside_each_other_are_no_tails():
    rows = make_rows(switching())
    rng, size = np.random.default_rng(1), len(rows)
    scattered, together = (rng.normal(size=(1, size, 2)) for _ in range(2))
    scattered[0, rng.choice(size, 15, replace=False), 0] = 20.0
    together[0, np.argsort(rows.inputs[:, 0])[:150], 0] = 20.0
    assert far_share(rows, state_of(rows, scattered)) == pytest.approx(15 / size, rel=0.3)
    assert far_share(rows, state_of(rows, together)) < HEAVY
    assert far_share(rows, state_of(rows, rng.normal(size=(1, size, 2)))) == 0.0


def test_a_handful_of_rows_is_no_distribution():
    rows = make_rows(switching(num_episodes=4))
    residuals = np.random.default_rng(1).normal(size=(1, len(rows), 2))
    residuals[0, [3, 60, 117, 174], 0] = 20.0
    assert far_share(rows, state_of(rows, residuals)) == 0.0
    residuals[0, 25, 0] = 20.0
    assert far_share(rows, state_of(rows, residuals)) > HEAVY


@pytest.fixture(scope="module")
def calm():
    """What the search says about normal noise."""
    return search_structure(switching(), 4)


def test_heads_for_heavy_tails_are_added_where_they_are(calm):
    assert (calm.far, calm.has_heavy_tails) == (0.0, False)
    registry, parts = load_registry(), ("hdp", "auto", "stationary")
    build = Builder(registry, switching(), parts, 4, None, 0, RECIPES["robust"])
    plain = [(part.name, getattr(part.config, "noise", None)) for part in build.families_for(calm)]
    assert plain == [("sparse", "normal"), ("linear", "diagonal"), ("delta_mlp", None)]
    assert build.families_for(None) == build.families_for(calm) == build.families
    spiky = dataclasses.replace(calm, far=1.01 * HEAVY)
    tailed = [(part.name, getattr(part.config, "noise", None)) for part in build.families_for(spiky)]
    assert tailed == [("sparse", "student"), *plain]
    literal = Builder(registry, switching(), parts, 4, None, 0, RECIPES["literal"])
    assert [part.name for part in literal.families_for(spiky)] == ["delta_mlp"]


@pytest.fixture(scope="module")
def spiky():
    """A model of data with spikes, compared with one of normal noise."""
    config = FitConfig(num_restarts=1, halves_within_s=0.0)
    dynamics = Part("auto", AutoConfig(models=["sparse"]))
    return mbrl_hdp.fit(
        switching(0.02), dynamics=dynamics, max_contexts=4, config=config, duration="geometric", progress=False
    )


def test_fit_takes_heavy_tails_where_they_are(spiky):
    assert spiky.parts.dynamics.config.noise == "student"
    kinds = [run.get("noise") for run in spiky.report.runs]
    assert kinds.index(None) == kinds.count("student") > 1
    assert [run["noise"] for run in spiky.report.runs if run["taken"]] == ["student"]
    assert max(run["held_out_rmse"] for run in spiky.report.runs) < 1.0  # no error counts more
    data = switching(0.02)
    wrong = np.mean(spiky.most_likely(data) != data.context)
    assert min(wrong, 1.0 - wrong) < 0.05


def test_the_report_says_how_heavy(spiky):
    told = summarise(spiky, spiky.analyse(switching(0.02)))
    (words,) = (words for words in told.remarks if "heavy tails" in words)
    normal, heavy = (float(found) for found in spiky.dynamics.degrees()[spiky.slots].min(0).values)
    assert normal > 5.0 > 2.0 > heavy
    assert f"obs_1 ({heavy:.1f})" in words
    assert f"{spiky.report.search['far']:.1%} of the steps lie far from what every context predicts" in words
    assert "(sparse, heavy tails, search): 2 contexts" in told.text()
    assert "an error counts at most as the spread of the changes" in told.text()


def test_the_report_says_nothing_without_reason(spiky):
    plain = copy.deepcopy(spiky)
    plain.report = dataclasses.replace(spiky.report, search={"far": 0.004})
    plain.dynamics = build_sparse(SparseConfig(), spiky.task)
    assert list(heavy_tails(plain, ["a", "b"])) == [
        "noise may have heavy tails (0.4% of the steps lie far from what every context predicts, their neighbours "
        "not), but held-out data prefers heads with normal noise"
    ]
    plain.report = dataclasses.replace(spiky.report, search={})
    assert list(heavy_tails(plain, ["a", "b"])) == []


def test_a_model_with_heavy_tails_is_loaded_as_it_was_saved(spiky, tmp_path):
    save_model(spiky, tmp_path / "model")
    again, data = load(tmp_path / "model"), switching(0.02, seed=3)
    np.testing.assert_array_equal(again.dynamics.log_degrees.detach(), spiky.dynamics.log_degrees.detach())
    np.testing.assert_array_equal(again.analyse(data).log_likelihood, spiky.analyse(data).log_likelihood)


def test_an_error_counts_no_more_than_asked(spiky):
    data = switching(0.02, seed=3)
    free, capped = held_out_score(spiky, data), held_out_score(spiky, data, 1.0)
    assert free.squared_errors.max() > 10.0
    assert capped.squared_errors.max() <= 1.0
    is_small = free.squared_errors < 0.5  # the mean over two columns: neither is above one
    np.testing.assert_array_equal(free.squared_errors[is_small], capped.squared_errors[is_small])
