"""Collect trajectories from an environment, one episode at a time or a batch of them together."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Float

from mbrl_hdp.data.trajectories import Episode, Trajectories
from mbrl_hdp.envs.batch import BatchSwitchingEnv
from mbrl_hdp.errors import DataError

_LIMIT = 100_000
"""Steps after which an environment without a known horizon is taken for one that never ends."""


class CollectingAgent(Protocol):
    """What `collect` asks of an agent; mbrl-lib's agents have it."""

    def act(self, obs: np.ndarray) -> np.ndarray:
        """Choose an action, `A`, for an observation, `S` (a batch of both, `B A` and `B S`, for a batched env)."""

    def reset(self) -> Any:
        """Forget the last episode."""


def collect(
    env: gymnasium.Env[Any, Any] | BatchSwitchingEnv,
    agent: CollectingAgent | None = None,
    num_episodes: int = 1,
    seed: int = 0,
    progress: bool = True,
    *,
    max_steps: int | None = None,
) -> Trajectories:
    """Run episodes and keep observations, actions, rewards and the true contexts that the environment reports.

    Episode i is seeded by `seed` and i alone, so more episodes never change the first ones (for a batched environment:
    batch i). True contexts are `info["context"]`; when any step lacks one (or says -1), the set has none.

    Args:
        env: a gymnasium environment with flat Box spaces, or a `BatchSwitchingEnv`, which runs `num_envs` at a time.
        agent: has `act(obs)` and `reset()`; None draws actions uniformly from the action space. An agent that is random
            keeps its own generator: seed it yourself.
        num_episodes: how many episodes to collect.
        seed: seed of the environment and of the random actions.
        progress: show a progress bar when the output is a terminal.
        max_steps: cut episodes after this many steps; by default where the environment's own horizon is.

    Raises:
        DataError: for spaces that are not flat boxes, actions of the wrong shape, or observations that are not finite.

    Example:
        >>> data = collect(gymnasium.make("mbrl_hdp/CartPoleSwingUp-v0"), num_episodes=100, seed=0)
    """
    for name, value, least in (("num_episodes", num_episodes, 1), ("max_steps", max_steps, 1), ("seed", seed, 0)):
        if value is not None and value < least:
            raise DataError(f"{name} must be at least {least}, got {value}")
    if agent is not None and not callable(getattr(agent, "act", None)):
        raise DataError(f"an agent needs a method act(obs), {type(agent).__name__} has none")
    episodes: list[Episode] = []
    with _progress_bar(num_episodes, progress) as advance:
        for number in range(num_episodes):
            if len(episodes) >= num_episodes:
                break
            more = _run_any(env, agent, np.random.SeedSequence(seed, spawn_key=(number,)), max_steps)
            episodes += more
            advance(len(more))
    return _without_unknown_contexts(episodes[:num_episodes])


def _run_any(
    env: Any, agent: CollectingAgent | None, seeds: np.random.SeedSequence, max_steps: int | None
) -> list[Episode]:
    if isinstance(env, BatchSwitchingEnv):
        return _run_batch(env, agent, seeds, max_steps)
    if isinstance(env, gymnasium.Env):
        return [_run_episode(env, agent, seeds, max_steps)]
    raise DataError(
        f"cannot collect from {type(env).__name__}: a gymnasium environment or a BatchSwitchingEnv is needed"
        + (" (gymnasium's vector environments restart episodes by themselves)" if hasattr(env, "num_envs") else "")
    )


def _run_episode(
    env: gymnasium.Env[Any, Any], agent: CollectingAgent | None, seeds: np.random.SeedSequence, max_steps: int | None
) -> Episode:
    low, high = _action_bounds(env, is_random=agent is None)
    choose = _policy(agent, low, high, low.shape, seeds)
    horizon = max_steps or getattr(env.spec, "max_episode_steps", None)
    first, _ = env.reset(seed=_env_seed(seeds))
    obs, acts, rewards, contexts = [np.array(first)], [], [], []
    is_over = terminated = False
    while not is_over:
        act = choose(obs[-1])
        next_obs, reward, terminated, truncated, info = env.step(act)
        obs.append(np.array(next_obs))
        acts.append(act)
        rewards.append(float(reward))
        contexts.append(info.get("context"))
        is_over = terminated or truncated or len(acts) == horizon
        _check_endless(len(acts), horizon, is_over)
    return Episode(np.stack(obs), np.stack(acts), _labels(contexts), np.array(rewards), bool(terminated))


def _run_batch(
    env: BatchSwitchingEnv, agent: CollectingAgent | None, seeds: np.random.SeedSequence, max_steps: int | None
) -> list[Episode]:
    low, high = env.physics.act_low, env.physics.act_high
    choose = _policy(agent, low, high, (env.num_envs, env.physics.act_dim), seeds)
    horizon = max_steps or env.horizon
    first, _ = env.reset(seed=_env_seed(seeds))
    obs, acts, rewards = [np.array(first)], list[np.ndarray](), list[np.ndarray]()
    contexts, terminals = list[Any](), list[np.ndarray]()
    lengths = np.zeros(env.num_envs, dtype=np.int64)
    is_running = np.ones(env.num_envs, dtype=bool)
    while is_running.any() and len(acts) < horizon:
        acts.append(choose(obs[-1]))
        next_obs, reward, terminated, truncated, info = env.step(acts[-1])
        obs.append(np.array(next_obs))
        rewards.append(np.array(reward))
        contexts.append(info.get("context"))
        terminals.append(np.array(terminated))
        lengths += is_running
        is_running = is_running & ~terminated & ~truncated
    all_obs, all_acts, all_rewards, labels = np.stack(obs), np.stack(acts), np.stack(rewards), _labels(contexts)
    return [
        Episode(
            obs=all_obs[: length + 1, row],
            act=all_acts[:length, row],
            context=None if labels is None else labels[:length, row],
            reward=all_rewards[:length, row],
            terminated=bool(terminals[length - 1][row]),
        )
        for row, length in enumerate(lengths.tolist())
    ]


def _env_seed(seeds: np.random.SeedSequence) -> int:
    return int(seeds.generate_state(1)[0])


def _policy(
    agent: CollectingAgent | None,
    low: Float[np.ndarray, " A"],
    high: Float[np.ndarray, " A"],
    shape: tuple[int, ...],
    seeds: np.random.SeedSequence,
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the rule that picks actions of this shape within one episode (or batch)."""
    if agent is None:
        # A child of the episode's seed, so that actions and environment do not share a stream.
        rng = np.random.default_rng(np.random.SeedSequence(seeds.entropy, spawn_key=(*seeds.spawn_key, 0)))
        start, width = low.astype(np.float64), high.astype(np.float64) - low
        return lambda _: (start + width * rng.random(shape)).astype(low.dtype)  # quicker than rng.uniform
    if callable(getattr(agent, "reset", None)):
        agent.reset()

    def act(obs: np.ndarray) -> np.ndarray:
        chosen = np.array(agent.act(obs))
        if chosen.shape != shape:
            raise DataError(f"the agent's actions must have shape {list(shape)}, got {list(chosen.shape)}")
        return chosen

    return act


def _action_bounds(
    env: gymnasium.Env[Any, Any], is_random: bool
) -> tuple[Float[np.ndarray, " A"], Float[np.ndarray, " A"]]:
    for name, space in (("observation", env.observation_space), ("action", env.action_space)):
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise DataError(f"the {name} space must be a Box of flat vectors, got {space}; wrap the environment")
    space = env.action_space
    assert isinstance(space, Box)
    if space.dtype is None or space.dtype.kind != "f":
        raise DataError(f"the action space must hold floats, got {space}; wrap the environment")
    if is_random and not space.is_bounded():
        raise DataError(f"cannot draw random actions from the unbounded space {space}; pass an agent")
    return space.low, space.high


def _check_endless(num_steps: int, horizon: int | None, is_over: bool) -> None:
    if horizon is None and not is_over and num_steps >= _LIMIT:
        raise DataError(f"the episode has not ended after {num_steps} steps; pass max_steps= to cut episodes")


def _labels(contexts: list[Any]) -> np.ndarray | None:
    if any(context is None for context in contexts):
        return None
    labels = np.array(contexts)
    return None if (labels == -1).any() else labels


def _without_unknown_contexts(episodes: list[Episode]) -> Trajectories:
    if any(episode.context is None for episode in episodes):
        episodes = [episode._replace(context=None) for episode in episodes]
    return Trajectories.from_episodes(episodes)


@contextlib.contextmanager
def _progress_bar(num_episodes: int, is_wanted: bool) -> Iterator[Callable[[int], None]]:
    if not (is_wanted and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("collecting episodes", total=num_episodes)
        yield lambda count: bar.advance(task, count)
