"""Long recordings cut into pieces: some can then be held out, and differences between them show what is chance."""

from __future__ import annotations

import itertools

import numpy as np

from mbrl_hdp.data.trajectories import Episode, Trajectories

# Wanted number of pieces, and the fewest transitions of one.
NUM_PIECES = 40
SHORTEST = 50


def in_pieces(data: Trajectories, num_pieces: int = NUM_PIECES, shortest: int = SHORTEST) -> Trajectories:
    """Cut long episodes into pieces of about equal length; short ones stay whole.

    The observation between two pieces belongs to both, so no transition is lost.

    Args:
        data: episodes.
        num_pieces: about how many pieces are wanted in all.
        shortest: fewest transitions of a piece.
    """
    wanted = max(shortest, data.num_transitions / num_pieces)
    pieces: list[Episode] = []
    for episode in data:
        length = len(episode.obs) - 1
        count = max(1, min(round(length / wanted), length // shortest))
        places = np.linspace(0, length, count + 1).round().astype(int)
        pieces += [piece_of(episode, int(start), int(stop)) for start, stop in itertools.pairwise(places)]
    cut = Trajectories.from_episodes(pieces, allow_missing=data.allow_missing)
    return cut.with_names(None if data.names is None else data.names.of_episodes())


def piece_of(episode: Episode, start: int, stop: int) -> Episode:
    """Return the transitions from `start` up to `stop`, not included; only a last one can be terminal."""
    act, context, reward = (
        None if each is None else each[start:stop] for each in (episode.act, episode.context, episode.reward)
    )
    is_last = stop == len(episode.obs) - 1
    terminated = episode.terminated if is_last or episode.terminated is None else False
    return Episode(episode.obs[start : stop + 1], act, context, reward, terminated)
