"""Columns that are known to be angles: features begin with sine and cosine, so little data is enough."""

import gymnasium
import numpy as np
import pytest

import mbrl_hdp
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.search import find_contexts
from mbrl_hdp.inference.search.features import Factor, Library, linear_features, monomials
from mbrl_hdp.inference.search.rows import make_rows

ANGLE = 2
COS, SIN = Factor(ANGLE, "cos", 1.0), Factor(ANGLE, "sin", 1.0)


@pytest.fixture(scope="module")
def swings():
    """Five episodes of a cart-pole whose motor is reversed now and then."""
    cart = gymnasium.make("mbrl_hdp/CartPoleSwingUp-v0", actuation=(1.0, -1.0)).get_wrapper_attr("as_batch")(5)
    return mbrl_hdp.collect(cart, num_episodes=5, seed=1, progress=False)


def test_products_are_of_sines_and_cosines_in_the_place_of_an_angle(swings):
    library = Library(make_rows(swings, angles=(ANGLE,)))
    terms = linear_features(library).terms
    assert terms == [(), (Factor(0),), (Factor(1),), (COS,), (SIN,), (Factor(3),), (Factor(4),)]
    products = monomials(library, 2, 60)
    assert len(products) == 1 + 6 + 21 - 1  # the square of the cosine is left out
    assert (COS, COS) not in products
    assert {(SIN, SIN), (COS, SIN), (Factor(1), COS)} <= set(products)
    assert len(set(products)) == len(products)


def test_an_observation_that_never_varies_shifts_the_inputs_not_the_angles(swings):
    still = mbrl_hdp.Trajectories(obs=np.concatenate([np.ones((5, 101, 1)), swings.obs], -1), act=swings.act)
    rows = make_rows(still, angles=(ANGLE + 1,))
    assert rows.angles == (ANGLE,)
    raw = rows.raw_inputs[:, ANGLE]
    np.testing.assert_allclose(rows.coordinates[:, 2], (np.cos(raw) - np.cos(raw).mean()) / np.cos(raw).std())
    np.testing.assert_allclose(rows.coordinates[:, 4], rows.inputs[:, 3])
    assert make_rows(still, like=rows).angles == (ANGLE,)


def test_five_episodes_are_enough_to_find_the_contexts(swings):
    assert find_contexts(swings).num_contexts == 1  # nothing says that the third column is an angle
    found = find_contexts(swings, angles=(ANGLE,))
    assert found.num_contexts == 2
    assert align(found.labels, swings.context).accuracy > 0.98


@pytest.mark.parametrize(
    ("dynamics", "named"), [("cartpole", None), ("auto", [ANGLE]), ("delta_mlp", [ANGLE])]
)  # fmt: skip
def test_fit_takes_the_angles_that_the_transition_model_or_the_user_names(swings, dynamics, named):
    quick = mbrl_hdp.FitConfig(num_steps=5, polish_steps=2, num_restarts=1, halves_within_s=0.0)
    model = mbrl_hdp.fit(swings, dynamics=dynamics, max_contexts=3, angles=named, config=quick, progress=False)
    assert model.report.search["angles"] == [ANGLE]
    assert model.report.search["num_contexts"] == 2
    # A refit keeps what is known.
    again = mbrl_hdp.fit(swings, warm_start=model, config=quick, progress=False)
    assert again.report.search["angles"] == [ANGLE]


def test_an_angle_that_is_no_observation_is_refused(swings):
    with pytest.raises(ConfigError, match=r"angles=\[4\] must be columns of the 4 observations"):
        mbrl_hdp.fit(swings, angles=[4], progress=False)
