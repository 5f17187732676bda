"""The packed vector: round trips, widths, slots."""

import numpy as np
import pytest
import torch

from mbrl_hdp.belief.codec import BeliefCodec, narrow, widen
from mbrl_hdp.errors import DataError


def test_round_trip_for_arrays_and_tensors():
    codec = BeliefCodec(obs_dim=3, max_contexts=2)
    obs, belief = np.arange(12.0).reshape(2, 2, 3), np.array([[[0.1, 0.9]], [[0.4, 0.6]]]).repeat(2, axis=1)
    packed = codec.pack(obs, belief)
    assert packed.shape == (2, 2, codec.width) == (2, 2, 5)
    for found, expected in zip(codec.unpack(packed), (obs, belief), strict=True):
        np.testing.assert_array_equal(found, expected)
    tensors = codec.pack_tensors(torch.from_numpy(obs), torch.from_numpy(belief))
    np.testing.assert_array_equal(tensors.numpy(), packed)
    for found, expected in zip(codec.unpack(tensors), (obs, belief), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)


def test_no_belief_is_a_width_of_zero():
    codec = BeliefCodec(obs_dim=3, max_contexts=0)
    np.testing.assert_array_equal(codec.pack(np.array([1.0, 2.0, 3.0]), np.zeros(0)), [1.0, 2.0, 3.0])


def test_a_wrong_width_is_refused():
    codec = BeliefCodec(obs_dim=3, max_contexts=2)
    with pytest.raises(DataError, match=r"3 \+ 2 columns"):
        codec.unpack(np.zeros(4))
    with pytest.raises(DataError, match="got 6"):
        codec.pack_tensors(torch.zeros(3), torch.zeros(3))


@pytest.mark.parametrize("batch", [(), (1,), (4,), (4, 6)])
def test_the_width_is_that_of_the_last_axis(batch):
    codec = BeliefCodec(obs_dim=3, max_contexts=2)
    obs, belief = np.zeros((*batch, 3)), np.ones((*batch, 2))
    assert codec.pack(obs, belief).shape == codec.pack_tensors(*map(torch.from_numpy, (obs, belief))).shape
    for wrong in (np.zeros((*batch, 2)), np.zeros((*batch, 4))):
        with pytest.raises(DataError, match=rf"got {wrong.shape[-1] + 2}"):
            codec.pack(wrong, belief)
        with pytest.raises(DataError, match=rf"got {wrong.shape[-1] + 2}"):
            codec.pack_tensors(torch.from_numpy(wrong), torch.from_numpy(belief))


def test_slots_round_trip_and_normalise():
    slots, initial = torch.tensor([1, 3]), torch.tensor([0.9, 0.1])
    small = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    wide = widen(small, slots, 4)
    torch.testing.assert_close(wide, torch.tensor([[0.0, 0.25, 0.0, 0.75], [0.0, 1.0, 0.0, 0.0]]))
    torch.testing.assert_close(narrow(wide, slots, initial), small)
    stale = torch.tensor([[0.5, 0.1, 0.0, 0.4], [0.5, 0.0, 0.5, 0.0]])
    torch.testing.assert_close(narrow(stale, slots, initial), torch.tensor([[0.2, 0.8], [0.9, 0.1]]))


@pytest.mark.parametrize("batch", [(), (5,), (5, 3)])
def test_beliefs_of_any_batch_are_widened_and_narrowed_alike(batch):
    slots, initial = torch.tensor([1, 3]), torch.tensor([0.9, 0.1])
    wide = torch.tensor([0.5, 0.1, 0.0, 0.4]).expand(*batch, 4)
    small = narrow(wide, slots, initial)
    torch.testing.assert_close(small, torch.tensor([0.2, 0.8]).expand(*batch, 2))
    torch.testing.assert_close(widen(small, slots, 4), torch.tensor([0.0, 0.2, 0.0, 0.8]).expand(*batch, 4))
