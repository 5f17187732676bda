"""Scores whose answer can be counted by hand."""

import numpy as np

from mbrl_hdp.inference.scoring import align, empirical_transition, switch_delays, transition_error


def test_align_matches_one_to_one():
    labels = np.array([2, 2, 2, 0, 0, 1])
    truth = np.array([0, 0, 1, 1, 1, 0])
    found = align(labels, truth)
    assert found.to_true.tolist() == [1, -1, 0]
    assert found.accuracy == 4 / 6
    assert found.confusion.tolist() == [[0, 2], [1, 0], [2, 1]]


def test_align_ignores_padding():
    labels = np.array([[1, 0, -1], [1, -1, -1]])
    truth = np.array([[0, 1, -1], [0, 1, -1]])
    assert align(labels, truth).accuracy == 1.0
    assert np.isnan(align(np.array([-1]), np.array([0])).accuracy)


def test_empirical_transition_counts_moves_inside_episodes():
    truth = np.array([[0, 0, 1, 1, -1], [1, 0, 0, 0, 1]])
    np.testing.assert_allclose(empirical_transition(truth), [[3 / 5, 2 / 5], [1 / 2, 1 / 2]])


def test_empirical_transition_counts_no_move_from_or_to_an_unknown_context():
    truth = np.array([[-1, 0, 1, -1, 1, 1], [0, -1, -1, 1, 0, -1]])
    np.testing.assert_allclose(empirical_transition(truth), [[0, 1], [1 / 2, 1 / 2]])


def test_empirical_transition_has_a_row_for_every_context_that_is_asked_for():
    truth = np.array([[0, 1, 1, 0]])
    found = empirical_transition(truth, 3)
    np.testing.assert_allclose(found, [[0, 1, 0], [1 / 2, 1 / 2, 0], [np.nan] * 3])


def test_transition_error_follows_the_matching():
    truth = np.array([[0.9, 0.1], [0.3, 0.7]])
    learned = np.array([[0.65, 0.35], [0.1, 0.9]])
    assert np.isclose(transition_error(learned, truth, np.array([1, 0])), 0.05)


def test_transition_error_counts_every_matched_entry_and_no_other():
    truth = np.array([[0.9, 0.1], [0.3, 0.7]])
    learned = np.array([[0.5, 0.2, 0.3], [0.0, 1.0, 0.0], [0.15, 0.25, 0.6]])
    # Slot 1 is matched with nothing; 0 and 2 differ from the truth by .2, 0 / .05, .3.
    assert np.isclose(transition_error(learned, truth, np.array([1, -1, 0])), 0.3)
    assert np.isclose(transition_error(learned, truth, np.array([1, -1])), 0.2)  # a slot that labels no step
    assert np.isnan(transition_error(learned, truth, np.array([-1, -1, -1])))


def test_switch_delays():
    truth = np.array([[0, 0, 1, 1, 1, 0, 0, -1]])
    labels = np.array([[0, 0, 0, 1, 1, 1, 1, -1]])  # right after one step, then never
    assert switch_delays(labels, truth).tolist() == [1, 2]
    assert switch_delays(truth, truth).tolist() == [0, 0]
    assert switch_delays(truth[:, :2], truth[:, :2]).tolist() == []
