"""Data as the runs of a fit see it: with its past where that is asked for, learned from in part, the rest held out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mbrl_hdp.data.pieces import in_pieces
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.search import Structure
from mbrl_hdp.seeding import sub_seed

# With fewer episodes none is kept aside ...
FEWEST_TO_SPLIT = 20
# ... but of so many transitions or more, episodes are cut into pieces and some of these are.
ENOUGH_TO_CUT = 2000
# Nats a step that earlier steps as further inputs must gain.
LEAST_PAST_GAIN = 0.1

Search = Callable[[Trajectories], Structure | None]


@dataclass(frozen=True)
class Arranged:
    """Data as the runs see it: with its past, learned from in part, the rest held out.

    Attributes:
        data: all episodes.
        past: earlier steps that are part of the actions.
        train: what the runs learn from.
        held_out: what they are scored on; the same where nothing could be held out.
        num_pieces: pieces that few long episodes were cut into; 0: episodes were left whole.
        past_gain: nats a step that the past gained in the search; None: it was not compared.
    """

    data: Trajectories
    past: int
    train: Trajectories
    held_out: Trajectories
    num_pieces: int
    past_gain: float | None = None

    @staticmethod
    def of(
        data: Trajectories, past: int, holdout: float, seed: int, is_refit: bool = False
    ) -> Arranged:  # fmt: skip
        """Add the past and split.

        A refit goes on from contexts that are known, and its data is often little: its episodes are left whole.
        """
        whole = data.with_past(past)
        pieces = whole if is_refit else cut_if_few(whole)
        train, held_out = hold_out(pieces, holdout, seed)
        return Arranged(whole, past, train, held_out, 0 if pieces is whole else pieces.num_episodes)


def with_contexts(
    data: Trajectories, past: int | None, holdout: float, seed: int, search: Search
) -> tuple[Arranged, Structure | None]:
    """Search for contexts; where the past promises to explain what they leave over, also with it, and compare.

    Both searches predict the same changes, so their evidence decides.

    Args:
        data: all episodes.
        past: earlier steps to use; None: as many as the data asks for.
        holdout: share of the episodes that is held out.
        seed: seed of the split.
        search: finds the contexts of what is learned from.
    """
    plain = Arranged.of(data, past or 0, holdout, seed)
    structure = search(plain.train)
    if past is not None or structure is None or not structure.past_steps:
        return plain, structure
    wide = Arranged.of(data, structure.past_steps, holdout, seed)
    found = search(wide.train)
    gain = -np.inf if found is None else found.evidence - structure.evidence
    return (replace(wide, past_gain=gain), found) if gain > LEAST_PAST_GAIN else (plain, structure)


def cut_if_few(data: Trajectories) -> Trajectories:
    """Cut few long episodes into pieces, so that some can be held out and halves can be compared."""
    is_whole = data.num_episodes >= FEWEST_TO_SPLIT or data.num_transitions < ENOUGH_TO_CUT
    return data if is_whole else in_pieces(data)


def hold_out(data: Trajectories, share: float, seed: int) -> tuple[Trajectories, Trajectories]:
    """Split off held-out episodes; with too few to spare, runs are scored on the data they were trained on.

    One or two episodes say less about which run is right than all the others do about themselves.
    """
    count = round(share * data.num_episodes)
    if count < 1 or data.num_episodes < FEWEST_TO_SPLIT:
        return data, data
    held_out, train = data.split([count, data.num_episodes - count], seed=sub_seed(seed, "hold out"))
    return train, held_out
