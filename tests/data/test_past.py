"""The past as further inputs, and recordings in pieces."""

from __future__ import annotations

import numpy as np
import pytest

from mbrl_hdp import Trajectories
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.past import past_width
from mbrl_hdp.data.pieces import in_pieces
from mbrl_hdp.errors import DataError


def numbered_steps(lengths: tuple[int, ...] = (5, 3)) -> Trajectories:
    """Return episodes whose observation is the square of the step and whose action is ten times the step."""
    most = max(lengths)
    steps = np.arange(most + 1.0)
    obs = np.tile(np.square(steps)[:, None], (len(lengths), 1, 1))
    act = np.tile(10.0 * steps[:-1, None], (len(lengths), 1, 1))
    context = np.tile(np.arange(most), (len(lengths), 1))
    return Trajectories(obs, act, lengths=lengths, context=context, names=Names(("x",), ("u",)))


def test_the_past_is_beside_the_action() -> None:
    wide = numbered_steps().with_past(2)
    assert wide.names is not None
    assert tuple(wide.names.act) == ("u", "x_change_ago_1", "u_ago_1", "x_change_ago_2", "u_ago_2")
    # Step 3: u = 30; x went from 4 to 9 one step ago and from 1 to 4 two steps ago.
    np.testing.assert_array_equal(wide.act[0, 3], [30.0, 5.0, 20.0, 3.0, 10.0])
    np.testing.assert_array_equal(wide.obs, numbered_steps().obs)


def test_steps_without_a_past_are_not_observed_but_stay() -> None:
    wide = numbered_steps().with_past(2)
    assert wide.is_observed[:, :5].tolist() == [[False, False, True, True, True], [False, False, True, False, False]]
    np.testing.assert_array_equal(wide.lengths, [5, 3])
    np.testing.assert_array_equal(wide.context[0], np.arange(5))


def test_no_past_is_the_same_data() -> None:
    data = numbered_steps()
    assert data.with_past(0) is data
    assert past_width(3, 2, 0) == 2
    assert past_width(data.obs_dim, data.act_dim, 2) == data.with_past(2).act_dim


def test_a_past_longer_than_every_episode_is_refused() -> None:
    with pytest.raises(DataError, match="no episode has more than 5 transitions"):
        numbered_steps().with_past(5)
    with pytest.raises(DataError, match="at least 0"):
        numbered_steps().with_past(-1)


def test_pieces_hold_every_transition_once() -> None:
    data = numbered_steps((200, 30))
    pieces = in_pieces(data, num_pieces=4, shortest=50)
    # 230 transitions in four pieces: about 57 each; the short episode stays whole.
    np.testing.assert_array_equal(pieces.lengths, [67, 66, 67, 30])
    first, second = pieces.episode(0), pieces.episode(1)
    np.testing.assert_array_equal(first.obs[-1], second.obs[0])
    together = np.concatenate([pieces.episode(n).act for n in range(3)])
    np.testing.assert_array_equal(together, data.episode(0).act)
    np.testing.assert_array_equal(np.concatenate([pieces.episode(n).context for n in range(3)]), np.arange(200))


def test_pieces_are_not_shorter_than_asked() -> None:
    pieces = in_pieces(numbered_steps((120,)), num_pieces=100, shortest=50)
    np.testing.assert_array_equal(pieces.lengths, [60, 60])


def test_only_the_last_piece_can_be_terminal() -> None:
    obs = np.arange(101.0)[:, None]
    terminated = np.zeros(100, bool)
    terminated[-1] = True
    pieces = in_pieces(Trajectories(obs, terminated=terminated), num_pieces=2)
    assert [pieces.episode(n).terminated for n in range(2)] == [False, True]
