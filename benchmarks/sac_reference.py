"""Train FI-SAC or NI-SAC on the true cart-pole with hidden actuator failures; no model is needed.

    python -m benchmarks.sac_reference --agent fi --seed 100
    python -m benchmarks.sac_reference --agent ni --seed 100 --updates 1000 100

FI gets the one-hot of the context that acts next (`info["next_context"]`), NI nothing. The returns are those of the
policy's mean on episodes of their own seed.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import yaml
from mbrl.planning.sac_wrapper import SACAgent
from numpy.typing import NDArray

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.policy import FAST_SAC, ContextSac, SacConfig
from mbrl_hdp.control.replay import BeliefReplay
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs.batch import BatchSwitchingEnv
from mbrl_hdp.envs.cartpole import CartPolePhysics
from mbrl_hdp.errors import ConfigError, did_you_mean
from mbrl_hdp.report.tables import print_table
from mbrl_hdp.runtime import configure
from mbrl_hdp.seeding import numpy_generator, sub_seed
from mbrl_hdp.settings import check_settings

Act = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def main() -> None:
    configure()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agent", choices=("fi", "ni"), default="fi")
    parser.add_argument("--seed", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--warm", type=int, default=20, help="random episodes before learning")
    parser.add_argument("--epochs", type=int, default=60, help="one episode each")
    parser.add_argument("--every", type=int, default=10, help="epochs from one evaluation to the next")
    parser.add_argument("--updates", type=int, nargs=2, default=[1000, 400], metavar=("WARM", "EPOCH"),
                        help="updates after the random episodes and after every later one")  # fmt: skip
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of SAC")
    args = parser.parse_args()
    config = _with_settings(FAST_SAC["cartpole_hard"], args.set)
    cells = []
    for seed in args.seed:
        start = time.perf_counter()
        returns = Reference(args.agent, seed, config, args.warm, args.epochs, *args.updates).train(args.every)
        cells.append([str(seed), f"{returns.mean():.2f}", f"{returns.std():.2f}", f"{time.perf_counter() - start:.0f}"])
    print_table(
        f"{args.agent.upper()}-SAC, cart-pole hard, {args.warm} + {args.epochs} episodes",
        ["seed", "return", "std of 50 episodes", "seconds"],
        cells,
    )


def _with_settings(config: SacConfig, words: list[str]) -> SacConfig:
    names = [field.name for field in dataclasses.fields(config)]
    values = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in names:
            raise ConfigError(f"SAC has no setting {name!r}; {did_you_mean(name, names)}")
        values[name] = yaml.safe_load(value)
    changed = dataclasses.replace(config, **values)
    check_settings(changed, "--set")
    return changed


class Reference:
    """One training run on the true environment."""

    def __init__(
        self, agent: str, seed: int, config: SacConfig, num_warm: int, num_epochs: int, warm_updates: int, updates: int
    ) -> None:
        self.seed, self.num_warm, self.num_epochs = seed, num_warm, num_epochs
        self.warm_updates, self.updates = warm_updates, updates
        self.codec = BeliefCodec(4, 2 if agent == "fi" else 0)
        self.env = _cartpole(1)
        total = warm_updates + num_epochs * updates
        self.sac = ContextSac(self.codec, _ActionSpace(self.env), config, seed, total)
        self.agent = SACAgent(self.sac)
        self.replay = BeliefReplay(self.codec, 1, seed=seed)

    def train(self, every: int) -> NDArray[np.float64]:
        """Run Algorithm 1 without its model; return the returns of the final evaluation."""
        warm, rng = _cartpole(self.num_warm), numpy_generator(self.seed, "warm")
        self._collect(warm, lambda _: warm.sample_actions(rng), sub_seed(self.seed, "warm"))
        self.sac.update(self.replay, self.warm_updates)
        returns = self.evaluate()
        for epoch in range(self.num_epochs):
            self._collect(
                self.env, lambda packed: self.agent.act(packed, sample=True, batched=True), sub_seed(self.seed, epoch)
            )
            metrics = self.sac.update(self.replay, self.updates)
            if (epoch + 1) % every == 0 or epoch + 1 == self.num_epochs:
                returns = self.evaluate()
                _tell(self.replay.num_episodes, returns, metrics)
        return returns

    def evaluate(self, num_episodes: int = 50) -> NDArray[np.float64]:
        """Return the returns of the policy's mean on episodes that training never saw."""
        env = _cartpole(num_episodes)
        act: Act = lambda packed: self.agent.act(packed, batched=True)  # noqa: E731
        return self._run(env, act, sub_seed(self.seed, "evaluate"))["reward"].sum(1)

    def _collect(self, env: BatchSwitchingEnv, act: Act, seed: int) -> None:
        arrays = self._run(env, act, seed)
        data = Trajectories(arrays["obs"], arrays["act"], reward=arrays["reward"])
        self.replay.extend(data, self._filling(arrays["next_context"]))

    def _filling(self, contexts: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
        """Return the belief slot: the truth, or nothing."""
        if self.codec.max_contexts == 0:
            return np.zeros((*contexts.shape, 0))
        return np.eye(self.codec.max_contexts)[contexts]

    def _run(self, env: BatchSwitchingEnv, act: Act, seed: int) -> dict[str, NDArray[Any]]:
        obs, info = env.reset(seed=seed)
        rows: dict[str, list[Any]] = {"obs": [obs], "act": [], "reward": [], "next_context": [info["next_context"]]}
        for _ in range(env.horizon):
            chosen = act(self.codec.pack(obs, self._filling(info["next_context"])))
            obs, reward, _, _, info = env.step(chosen)
            for name, value in (("obs", obs), ("act", chosen), ("reward", reward)):
                rows[name].append(value)
            rows["next_context"].append(info["next_context"])
        return {name: np.stack(values, 1) for name, values in rows.items()}


class _ActionSpace:
    """The bounds of a batched environment, as of a Box."""

    def __init__(self, env: BatchSwitchingEnv) -> None:
        self.low, self.high = env.physics.act_low, env.physics.act_high


def _cartpole(num_envs: int) -> BatchSwitchingEnv:
    return BatchSwitchingEnv(CartPolePhysics(), [{"actuation": 1.0}, {"actuation": -1.0}], None, num_envs)


def _tell(num_episodes: int, returns: NDArray[np.float64], metrics: dict[str, float]) -> None:
    print(
        f"episode {num_episodes:4d}  return {returns.mean():6.2f} +- {returns.std():5.2f}  "
        f"temperature {metrics['temperature']:.3f}  entropy {metrics['entropy']:.2f}  value {metrics['value']:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
