"""Trajectories to and from mbrl-lib's ReplayBuffer. Contexts do not go in: no learner reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mbrl_hdp.data.trajectories import Episode, Trajectories
from mbrl_hdp.errors import DataError

if TYPE_CHECKING:
    from mbrl.util import ReplayBuffer


def to_replay_buffer(
    data: Trajectories, capacity: int | None = None, rng: np.random.Generator | None = None
) -> ReplayBuffer:
    """Fill a buffer that stores trajectories, as `ReplayBuffer.add` would step by step.

    An episode that does not end in a terminal state counts as truncated. Rewards that are unknown become NaN.

    Args:
        data: episodes without missing samples.
        capacity: number of transitions the buffer can hold, at least those of `data`; by default just those.
        rng: the buffer's generator for sampling.
    """
    from mbrl.util import ReplayBuffer

    if not data.is_observed[data.is_step].all():
        raise DataError("a replay buffer cannot mark missing samples: fill them in or leave their episodes out")
    num_transitions = data.num_transitions
    capacity = num_transitions if capacity is None else capacity
    if capacity < num_transitions:
        raise DataError(f"capacity={capacity} is too small for {num_transitions} transitions")
    reward = np.full(data.is_step.shape, np.nan, np.float32) if data.reward is None else data.reward
    terminated = np.zeros_like(data.is_step) if data.terminated is None else data.terminated
    buffer = ReplayBuffer(
        capacity,
        (data.obs_dim,),
        (data.act_dim,),
        obs_type=data.obs.dtype,
        action_type=data.act.dtype,
        reward_type=reward.dtype,
        rng=rng,
        max_trajectory_length=data.max_steps,
    )
    filled = slice(0, num_transitions)
    buffer.obs[filled], buffer.action[filled], buffer.next_obs[filled] = data.transitions()
    buffer.reward[filled] = reward[data.is_step]
    buffer.terminated[filled] = terminated[data.is_step]
    ends = np.cumsum(data.lengths)
    buffer.truncated[filled] = False
    buffer.truncated[ends - 1] = ~buffer.terminated[ends - 1]
    for end in ends.tolist():
        buffer.cur_idx = buffer.num_stored = end
        buffer.close_trajectory()
    return buffer


def from_replay_buffer(buffer: ReplayBuffer) -> Trajectories:
    """Read the finished trajectories of a buffer made with `max_trajectory_length`; there are no contexts in it.

    Raises:
        DataError: if the buffer stores no trajectories, or one of them does not hang together.
    """
    if buffer.trajectory_indices is None:
        raise DataError("the replay buffer stores no trajectories: make it with max_trajectory_length=")
    if len(buffer.trajectory_indices) == 0:
        raise DataError("the replay buffer holds no finished trajectory yet")
    episodes = [_read_trajectory(buffer, int(start), int(end)) for start, end in buffer.trajectory_indices]
    if all(episode.reward is not None and np.isnan(episode.reward).all() for episode in episodes):
        episodes = [episode._replace(reward=None) for episode in episodes]
    return Trajectories.from_episodes(episodes)


def _read_trajectory(buffer: ReplayBuffer, start: int, end: int) -> Episode:
    obs, next_obs = buffer.obs[start:end], buffer.next_obs[start:end]
    broken = np.flatnonzero((next_obs[:-1] != obs[1:]).any(-1))
    if broken.size:
        row = start + int(broken[0])
        raise DataError(
            f"transition {row} of the replay buffer does not lead to transition {row + 1} of its trajectory"
        )
    if buffer.terminated[start : end - 1].any():
        row = start + int(np.flatnonzero(buffer.terminated[start : end - 1])[0])
        raise DataError(f"transition {row} of the replay buffer is terminal, but its trajectory goes on")
    return Episode(
        obs=np.concatenate([obs, next_obs[-1:]]),
        act=buffer.action[start:end],
        reward=buffer.reward[start:end],
        terminated=bool(buffer.terminated[end - 1]),
    )
