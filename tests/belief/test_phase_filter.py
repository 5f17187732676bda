"""The belief update over (context, phase) against the plain update on the dense chain over states."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from mbrl_hdp.belief.filter import update_belief
from mbrl_hdp.belief.phase_filter import PhaseUpdate
from mbrl_hdp.probability.phases import context_of, dense
from mbrl_hdp.types import PhaseChain

SIZES = (2, 1, 3)
STAY = [0.3, 0.6, 0.8, 0.1, 0.5, 0.7]
ADVANCE = [0.5, 0.0, 0.0, 0.7, 0.3, 0.0]
MOVES = [[0.0, 0.4, 0.6], [0.9, 0.0, 0.1], [0.3, 0.7, 0.0]]


def make_chain() -> PhaseChain:
    stay, advance = torch.tensor(STAY).double(), torch.tensor(ADVANCE).double()
    initial = torch.tensor([0.3, 0.1, 0.2, 0.25, 0.05, 0.1]).double()
    return PhaseChain(initial, stay, advance, 1.0 - stay - advance, torch.tensor(MOVES).double(), SIZES)


@pytest.mark.parametrize("missing", [None, 1])
def test_updates_are_those_of_the_dense_chain(missing):
    chain = make_chain()
    update, transition = PhaseUpdate(chain), dense(chain).transition.numpy()
    log_lik = np.array([[0.5, -1.0, 0.2], [-2.0, 0.3, 1.0], [1.0, -0.5, -np.inf]])
    if missing is not None:
        log_lik[missing] = np.nan
    belief = wanted = update.initial
    for row in log_lik:
        filtered, belief = update(belief, row)
        expected, wanted = update_belief(wanted, row[context_of(SIZES).numpy()], transition)
        assert_allclose(filtered, expected, rtol=1e-10)
        assert_allclose(belief, wanted, rtol=1e-10)
    assert_allclose(update.contexts(belief), [belief[:2].sum(), belief[2], belief[3:].sum()])


def test_a_batch_is_updated_row_by_row():
    update = PhaseUpdate(make_chain())
    beliefs = np.random.default_rng(0).dirichlet(np.ones(6), (2, 2))
    log_lik = np.random.default_rng(1).normal(size=(2, 2, 3))
    filtered, following = update(beliefs, log_lik)
    for place in np.ndindex(2, 2):
        one = update(beliefs[place], log_lik[place])
        assert_allclose(filtered[place], one[0], rtol=1e-12)
        assert_allclose(following[place], one[1], rtol=1e-12)
