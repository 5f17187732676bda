"""What misidentified switches cost: counted by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mbrl_hdp.control.tracker import TruthTracker
from mbrl_hdp.data.trajectories import Episode
from mbrl_hdp.experiments.diagnostics import believed_contexts, slots_of_truth, switch_loss
from mbrl_hdp.experiments.episodes import Record


def record(contexts, rewards, beliefs=None, labels=None):
    contexts = np.array(contexts)
    steps = len(contexts)
    episode = Episode(np.zeros((steps + 1, 1)), np.zeros((steps, 1)), contexts, np.array(rewards, float), False)
    return Record(episode, None if beliefs is None else np.array(beliefs), labels, seed=0)


def test_only_switches_that_the_belief_had_wrong_are_counted():
    # Switches at steps 2 and 4; before step 2 the belief is wrong, before step 4 it is right; step 1 is wrong without
    # a switch and does not count.
    played = record([0, 0, 1, 1, 0], [1, 0, 0, 1, 1])
    known = record([0, 0, 1, 1, 0], [1, 1, 1, 1, 2])
    found = switch_loss([played], [known], [np.array([0, 1, 0, 1, 0])])
    assert found.switches_per_episode == 2
    assert found.misidentified_per_episode == 1
    assert found.return_mean == 6
    assert found.difference_per_misidentified_switch == pytest.approx(3.0)


def test_no_wrong_switch_means_no_loss_per_switch():
    played = record([0, 1], [1, 1])
    assert switch_loss([played], [played], [np.array([0, 1])]).difference_per_misidentified_switch is None


def test_slots_are_matched_to_true_contexts():
    # Kept slots 1 and 4; label 0 (slot 1) goes with true context 1, label 1 (slot 4) with true context 0.
    model = SimpleNamespace(slots=torch.tensor([1, 4]))
    played = record([0, 0, 1, 1], [0] * 4, labels=np.array([1, 1, 0, 0]))
    assert slots_of_truth([played], model, 2) == [4, 1]
    assert slots_of_truth([played], model, 3) is None


def test_beliefs_are_read_before_every_step():
    wide = np.zeros((4, 5))
    wide[[0, 1, 2, 3], [4, 1, 2, 4]] = 1.0
    played = record([0, 1, 1], [0] * 3, beliefs=wide)
    assert believed_contexts([played], [4, 1])[0].tolist() == [0, 1, -1]


def test_a_truth_tracker_can_speak_in_the_model_s_slots():
    tracker = TruthTracker(2, 5, places=[4, 1])
    packed = tracker.reset(np.zeros(2), {"next_context": 0})
    assert packed.tolist() == [0, 0, 0, 0, 0, 0, 1]
    packed = tracker.update(np.zeros(1), np.ones(2), {"next_context": 1})
    assert packed.tolist() == [1, 1, 0, 1, 0, 0, 0]
