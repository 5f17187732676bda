"""Batched numpy tasks against the environments they stand for, per environment step."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.report import Row, time_pair
from mbrl_hdp.envs.batch import BatchSwitchingEnv

_BATCH = 100
_SINGLE_STEPS = 20


def _batch_episode(batch: BatchSwitchingEnv) -> Callable[[], None]:
    """A function that runs one episode of random actions, drawn beforehand."""
    rng = np.random.default_rng(0)
    acts = [batch.sample_actions(rng) for _ in range(batch.horizon)]

    def run_episode() -> None:
        batch.reset(seed=0)
        for act in acts:
            batch.step(act)

    return run_episode


def _single_steps(env: Any, num_steps: int, num_episodes: int) -> Callable[[], None]:
    """A function that runs episodes of `num_steps` random actions, drawn beforehand; resets are part of the price."""
    rng = np.random.default_rng(0)
    low, high = env.action_space.low, env.action_space.high
    acts = [rng.uniform(low, high).astype(np.float32) for _ in range(num_steps)]

    def run_episodes() -> None:
        for _ in range(num_episodes):
            env.reset(seed=0)
            for act in acts:
                env.step(act)

    return run_episodes


def _row(
    task: str,
    batch: BatchSwitchingEnv,
    env: Any,
    peer: str,
    target: float | None,
    num_steps: int,
    num_episodes: int = 1,
) -> Row:
    """Time both for about as long (`num_episodes` of the single one), so that a busy machine slows both alike."""
    ours, theirs = time_pair(_batch_episode(batch), _single_steps(env, num_steps, num_episodes), repeats=9)
    per_step = 1e3 * ours / (batch.num_envs * batch.horizon)
    peer_per_step = 1e3 * theirs / (num_steps * num_episodes)
    return Row(f"{task}, {batch.num_envs} at once", per_step, peer, peer_per_step, target, "us/step")


def _cartpole() -> list[Row]:
    from mbrl_hdp.envs.cartpole import CartPoleSwingUp, make_cartpole

    env = make_cartpole()
    batch = env.as_batch(_BATCH)
    return [
        _row("cart-pole", batch, env, "python env with contexts", 10.0, batch.horizon, num_episodes=3),
        # Only reported: ours draws and applies contexts, this peer does not.
        _row("cart-pole", batch, CartPoleSwingUp(), "python env without", None, batch.horizon, num_episodes=8),
    ]


def _drone() -> list[Row]:
    from mbrl_hdp.envs.drone import make_drone

    env = make_drone(backend="pybullet")
    return [_row("drone", env.as_batch(_BATCH), env, "pybullet backend", 20.0, env.unwrapped.horizon)]


def _intersection() -> list[Row]:
    if importlib.util.find_spec("mbrl_hdp.envs.intersection") is None:
        return []
    from mbrl_hdp.envs.intersection import make_intersection

    env = make_intersection()
    return [_row("intersection", env.as_batch(_BATCH), env, "highway-env backend", 100.0, _SINGLE_STEPS)]


def run() -> list[Row]:
    return [*_cartpole(), *_drone(), *_intersection()]
