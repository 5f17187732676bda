"""Pieces of the compiled heads, by hand."""

import numpy as np
import pytest

from mbrl_hdp.inference.head_kernels import skip_threshold


def test_pairs_are_skipped_below_a_share_of_the_mean_contribution():
    offset = np.array([1.0, -2.0], np.float32)
    log_prob = np.array([[0.5, -2.0], [1.0, -5.0], [-1.0, -2.5]], np.float32)
    grad = np.array([[0.5, -0.25], [0.0, 1.0], [-2.0, 0.0]], np.float32)
    contributions = [0.5 * 2.0, 0.25 * 1.0, 1.0 * 7.0, 2.0 * 5.0]  # |grad| (1 + squared distance), zeros left out
    assert skip_threshold(log_prob, offset, grad, 0.3) == pytest.approx(0.3 * sum(contributions) / 6, rel=1e-6)
    assert skip_threshold(log_prob, offset, grad, 0.0) == 0.0
