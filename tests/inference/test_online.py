"""One step of the online filter: Bayes' rule by hand, and steps that tell nothing."""

import numpy as np
import pytest

from mbrl_hdp.inference.online import OnlineFilter

TRANSITION = np.array([[0.9, 0.1], [0.3, 0.7]])


def after(log_lik):
    online = OnlineFilter(np.array([0.2, 0.8]), TRANSITION, lambda *_: np.array(log_lik))
    online.reset(np.zeros(1))
    return online.update(np.zeros(1), np.zeros(1)), online.filtered


def test_bayes_rule():
    belief, filtered = after([0.0, -1.0])
    wanted = np.array([0.2, 0.8 * np.exp(-1.0)])
    np.testing.assert_allclose(filtered, wanted / wanted.sum(), rtol=1e-12)
    np.testing.assert_allclose(belief, wanted / wanted.sum() @ TRANSITION, rtol=1e-12)


def test_only_differences_of_the_likelihood_count():
    np.testing.assert_allclose(after([-1e5, -1e5 - 1.0])[0], after([0.0, -1.0])[0], rtol=1e-9)


@pytest.mark.parametrize("log_lik", [[np.nan, 0.0], [0.0, np.nan], [np.nan, np.nan], [-np.inf, -np.inf], [np.inf, 0.0]])
def test_a_step_that_tells_nothing_only_moves_on(log_lik):
    belief, filtered = after(log_lik)
    np.testing.assert_array_equal(filtered, [0.2, 0.8])
    np.testing.assert_allclose(belief, [0.42, 0.58], rtol=1e-12)
