"""What a fit starts from and compares: candidates, known numbers, defaults end to end."""

import dataclasses

import numpy as np
import pytest
import torch

import mbrl_hdp
from mbrl_hdp.envs.systems import simulate
from mbrl_hdp.errors import ConfigError, FitError
from mbrl_hdp.inference.model import Part
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.search import Structure
from mbrl_hdp.inference.slim import without_spurious
from mbrl_hdp.inference.starts import Contexts, angle_columns, informed, plan_starts
from mbrl_hdp.inference.structure import _divided, search_structure
from mbrl_hdp_dynamics import DeltaMlpConfig, SparseConfig
from tests.inference.test_fit import weak_prior, world
from tests.inference.test_revisit import no_features


def trajectories(name, variant="plain", seed=0, num_episodes=40):
    found = simulate(name, variant, seed=seed, num_episodes=num_episodes)
    return mbrl_hdp.Trajectories(found.obs, found.act, context=found.context)


@pytest.fixture(scope="module")
def pendulum():
    return trajectories("pendulum")


@pytest.fixture(scope="module")
def fitted(pendulum):
    """The model that defaults find, and what the first search of that fit found."""
    found = []

    def search(*args):
        found.append(search_structure(*args))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mbrl_hdp.inference.structure.search_structure", search)
        return mbrl_hdp.fit(pendulum, progress=False), found[0]


@pytest.fixture(scope="module")
def model(fitted):
    return fitted[0]


@pytest.fixture(scope="module")
def structure(fitted):
    return fitted[1]


def test_defaults_find_the_contexts_of_a_pendulum(pendulum, model):
    assert model.num_contexts == 2
    assert align(model.most_likely(pendulum), pendulum.context).accuracy > 0.99
    assert model.parts.dynamics.name == "sparse"
    assert {run["dynamics"] for run in model.report.runs} >= {"sparse", "linear"}
    assert model.report.search["num_contexts"] == 2
    # Straight lines from the same contexts predict far worse, so random starts of theirs are not tried.
    assert "linear (tempered)" in model.report.search["skipped"]
    assert [run["schedule"] for run in model.report.runs if run["dynamics"] == "linear"] == ["search", "one context"]


def test_the_equations_name_the_actuator(model):
    lines = model.dynamics.equations(model.slots, ["angle", "speed", "torque"])
    assert all("sin(angle)" in context[1] for context in lines)
    signs = [context[1].split("torque")[0].split()[-2] for context in lines]
    assert set(signs) == {"+", "-"}  # the contexts differ in the sign of the torque


def test_a_chosen_model_is_saved_with_its_features(model, pendulum, tmp_path):
    model.save(tmp_path)
    again = mbrl_hdp.load(tmp_path)
    assert again.parts.dynamics.config.terms == model.parts.dynamics.config.terms
    np.testing.assert_array_equal(again.most_likely(pendulum), model.most_likely(pendulum))
    np.testing.assert_array_equal(again.log_likelihood(pendulum), model.log_likelihood(pendulum))
    assert again.dynamics.equations(again.slots) == model.dynamics.equations(model.slots)


def test_the_search_fills_in_what_the_user_left_open(structure):
    sparse = informed(Part("sparse", SparseConfig()), structure, 2)
    assert len(sparse.config.terms) == len(structure.features)
    own = Part("sparse", SparseConfig(terms=["x0*x1"]))
    assert informed(own, structure, 2) == own
    assert angle_columns(structure, 2) == [0]
    assert informed(Part("delta_mlp", DeltaMlpConfig()), structure, 2).config.angle_columns == [0]
    assert informed(own, None, 2) is own


def test_candidates(structure):
    part, config = Part("linear", None), FitConfig()
    closed = plan_starts(part, True, structure, config)
    assert [start.name for start in closed] == ["search", "one context", *["tempered"] * 3]
    chosen = plan_starts(Part("sparse", SparseConfig()), True, structure, config, is_alone=False)
    assert [start.name for start in chosen] == ["search", "one context"]
    np.testing.assert_allclose(closed[1].contexts.probability[..., 0], 1.0)
    networks = plan_starts(part, False, structure, config)
    assert [start.name for start in networks] == ["search", "pooled", "tempered"]
    at_random = plan_starts(part, True, None, config)
    assert [(start.name, start.contexts) for start in at_random] == [
        ("pooled", None),
        ("tempered", None),
        ("plain", None),
    ]
    known = plan_starts(part, False, structure, dataclasses.replace(config, num_contexts=2))
    assert [start.name for start in known] == ["search"]


def test_contexts_take_the_first_slots():
    probability = np.array([[[0.25, 0.75], [1.0, 0.0]]])
    contexts = Contexts(probability, np.array([[0.9, 0.1], [0.3, 0.7]]))
    chain = contexts.chain(4, torch.device("cpu"))
    np.testing.assert_allclose(chain.transition[:2], [[0.9, 0.1, 0.0, 0.0], [0.3, 0.7, 0.0, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(chain.initial, [0.5, 0.5, 0.0, 0.0])
    np.testing.assert_allclose(chain.transition.sum(-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(contexts.slots(4, torch.device("cpu"))[..., :2], probability)


def test_a_known_number_of_contexts(tmp_path):
    data = world(40, 0, contexts=(0, 1, 2))
    known = FitConfig(num_contexts=3, halves_within_s=0.0)
    model = mbrl_hdp.fit(data, weak_prior(), dynamics="linear", max_contexts=5, config=known, progress=False)
    assert model.num_contexts == 3
    assert align(model.most_likely(data), data.context).accuracy > 0.9
    two = mbrl_hdp.fit(world(40, 0), weak_prior(), dynamics="linear", max_contexts=5, config=known, progress=False)
    assert two.num_contexts == 3  # also where the data would say two
    two.save(tmp_path)
    assert mbrl_hdp.load(tmp_path).num_contexts == 3
    assert without_spurious(two).num_contexts == 3


def test_a_known_number_that_cannot_be(pendulum):
    with pytest.raises(ConfigError, match=r"fit\.num_contexts=3"):
        mbrl_hdp.fit(pendulum, max_contexts=2, config=FitConfig(num_contexts=3), progress=False)
    with pytest.raises(ConfigError, match=r"fit\.start"):
        mbrl_hdp.fit(pendulum, config=FitConfig(num_contexts=3, start="random"), progress=False)
    with pytest.raises(FitError, match=r"fit\.num_contexts=2"):
        mbrl_hdp.fit(world(3, 0), max_contexts=3, config=FitConfig(num_contexts=2), progress=False)


def test_much_data_is_searched_in_part(monkeypatch):
    data = world(60, 0)
    whole = search_structure(data, 4)
    monkeypatch.setattr("mbrl_hdp.inference.search.search.MOST_ROWS", 900)
    monkeypatch.setattr("mbrl_hdp.inference.structure.MOST_ROWS", 900)
    part = search_structure(data, 4)
    assert part.num_contexts == whole.num_contexts == 2
    assert part.probability.shape == whole.probability.shape
    assert align(part.labels, data.context).accuracy > 0.97
    three = search_structure(data, 4, num_contexts=3)
    assert three.probability.shape == (*whole.probability.shape[:2], 3)
    np.testing.assert_allclose(three.probability.sum(-1)[data.is_step], 1.0)


def test_a_divided_structure_has_its_evidence_per_transition():
    data = world(10, 0)
    one = np.ones((*data.is_step.shape, 1))
    undivided = Structure(one, np.ones((1, 1)), 0.0, np.zeros(1), no_features(data), [], 0.0)
    two = _divided(data, undivided, 2)
    assert two.num_contexts == 2
    assert 0.3 < two.evidence < 1.2  # 1.2 of the true densities, less what so few steps leave open


def test_without_held_out_episodes_the_contexts_of_the_search_stand():
    """A machine's log is often one long episode: likelihood on training data would prefer more contexts."""
    few = trajectories("linear_4d_2", "observation", num_episodes=8)
    model = mbrl_hdp.fit(few, dynamics="linear", config=FitConfig(halves_within_s=0.0), progress=False)
    assert {run["schedule"] for run in model.report.runs} == {"search", "one context"}
    assert model.num_contexts == model.report.search["num_contexts"] == 2


def test_one_context_where_nothing_switches():
    data = trajectories("pendulum", "still")
    model = mbrl_hdp.fit(data, config=FitConfig(halves_within_s=0.0), progress=False)
    assert model.num_contexts == 1
