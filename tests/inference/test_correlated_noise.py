"""Correlated noise in `fit`: when the search reports it, which candidates that adds, what is found and said."""

import copy
import dataclasses

import numpy as np
import pytest

import mbrl_hdp
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.building import Builder
from mbrl_hdp.inference.model import Part
from mbrl_hdp.inference.recipes import RECIPES
from mbrl_hdp.inference.saving import load, save_model
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.search.noise import CORRELATED, Noise
from mbrl_hdp.inference.structure import search_structure
from mbrl_hdp.report.noise import correlated_noise
from mbrl_hdp.report.summary import summarise
from mbrl_hdp_dynamics.auto import AutoConfig
from mbrl_hdp_dynamics.sparse import SparseConfig, build_sparse

CONFIG = FitConfig(num_restarts=1, halves_within_s=0.0)


def gusty(gust=0.3, seed=4):
    """Gusts shake both coordinates together; the contexts differ across that direction, by less than the noise."""
    rng = np.random.default_rng(seed)
    context = (np.arange(60) // 15 % 2)[None] ^ rng.integers(0, 2, (40, 1))
    obs, act = np.zeros((40, 61, 2)), rng.uniform(-1.0, 1.0, (40, 60, 1))
    for step in range(60):
        shake = gust * rng.normal(size=(40, 1)) + 0.02 * rng.normal(size=(40, 2))
        push = np.where(context[:, step, None] == 0, 1.0, -1.0) * act[:, step] * [0.08, -0.08]
        obs[:, step + 1] = 0.7 * obs[:, step] + push + shake
    return Trajectories(obs, act, context=context)


def learned(data, **settings):
    dynamics = Part("auto", AutoConfig(**settings))
    return mbrl_hdp.fit(
        data, dynamics=dynamics, max_contexts=4, config=CONFIG, duration="geometric", seed=0, progress=False
    )


def test_noise_of_the_floors_size_is_independent():
    covariance = np.array([[4.0, -3.0, 0.0], [-3.0, 9.0, 0.0], [0.0, 0.0, 1.0]]) * 1e-4
    assert Noise(1e-9, covariance).largest_correlation() == pytest.approx(0.5)
    assert Noise(0.1, covariance).largest_correlation() < 0.03
    assert Noise(0.1, np.eye(1)).largest_correlation() == 0.0


@pytest.fixture(scope="module")
def found():
    return search_structure(gusty(), 4)


def test_the_search_reports_how_far_noise_is_correlated(found):
    assert found.correlation == pytest.approx(0.3**2 / (0.3**2 + 0.02**2), abs=0.01)
    assert found.has_correlated_noise
    calm = search_structure(gusty(gust=0.0), 4)
    assert calm.correlation < 0.1
    assert not calm.has_correlated_noise


def test_heads_for_correlated_noise_are_added_where_it_is(found):
    registry, parts = load_registry(), ("hdp", "auto", "stationary")
    build = Builder(registry, gusty(), parts, 4, None, 0, RECIPES["robust"])
    noise = [(part.name, getattr(part.config, "noise", None)) for part in build.families_for(found)]
    assert noise == [("sparse", "full"), ("sparse", "normal"), ("linear", "diagonal"), ("delta_mlp", None)]
    calm = dataclasses.replace(found, correlation=CORRELATED)
    assert build.families_for(None) == build.families_for(calm) == build.families
    both = build.families_for(dataclasses.replace(found, far=1.0))
    assert [getattr(part.config, "noise", None) for part in both[:3]] == ["student", "full", "normal"]


@pytest.fixture(scope="module")
def model():
    return learned(gusty())


def test_fit_tells_contexts_apart_that_independent_noise_hides(model):
    data = gusty()
    assert model.parts.dynamics.config.noise == "full"
    assert [run["noise"] for run in model.report.runs if run["taken"]] == ["full"]
    assert align(model.most_likely(data), data.context).accuracy > 0.99
    without = learned(data, models=["sparse"], correlated_noise=False)
    assert align(without.most_likely(data), data.context).accuracy < 0.9


def test_the_report_names_the_columns(model):
    told = summarise(model, model.analyse(gusty()))
    (words,) = (words for words in told.remarks if "noise is correlated" in words)
    assert "obs_0 and obs_1 (+1.00)" in words or "obs_0 and obs_1 (+0.99)" in words
    assert "(sparse, correlated noise, search): 2 contexts" in told.text()


def test_the_report_says_where_independent_noise_was_preferred(model):
    plain = copy.deepcopy(model)
    plain.dynamics = build_sparse(SparseConfig(), model.task)
    plain.report = dataclasses.replace(model.report, search={"correlation": 0.47})
    assert list(correlated_noise(plain, ["a", "b"])) == [
        "the noise of some columns is correlated (up to 0.47), but held-out data prefers heads with independent noise"
    ]
    plain.report = dataclasses.replace(model.report, search={})
    assert list(correlated_noise(plain, ["a", "b"])) == []
    plain.dynamics = build_sparse(SparseConfig(noise="full"), model.task)
    assert list(correlated_noise(plain, ["a", "b"])) == []


def test_a_model_with_correlated_noise_is_loaded_as_it_was_saved(model, tmp_path):
    save_model(model, tmp_path / "model")
    again, data = load(tmp_path / "model"), gusty(seed=5)
    np.testing.assert_array_equal(again.analyse(data).log_likelihood, model.analyse(data).log_likelihood)
    online, exact = again.online_filter(), model.filter(data)[0]
    online.reset(data.obs[0, 0])
    for step in range(10):
        belief = online.update(data.act[0, step], data.obs[0, step + 1])
        np.testing.assert_allclose(belief, exact[step] @ model.transition, atol=1e-6)
