"""SAC updates: ours against Stable-Baselines3 and against mbrl-lib's own, same batch and network sizes, one thread.

All three step on minibatches of 256 from a buffer of 10,000 transitions: one step of both critics, the policy and the
temperature, and the targets at every step. With two hidden layers of 256 units an update has 16 products of 256 x 256
matrices, which no library does faster than the machine's peak: where one takes 0.36 ms (94 GFLOP/s), the floor is
5.7 ms and the ratio to Stable-Baselines3 cannot exceed 3.
"""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import mbrl.util
import numpy as np
import torch
from mbrl.third_party.pytorch_sac_pranz24 import SAC
from omegaconf import OmegaConf
from stable_baselines3 import SAC as Sb3Sac  # noqa: N811
from stable_baselines3.common.logger import Logger

from benchmarks.report import Row, time_pair
from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.policy import ContextSac, SacConfig
from mbrl_hdp.control.replay import BeliefReplay
from mbrl_hdp.data.trajectories import Trajectories

UPDATES, EPISODES, STEPS, BATCH = 100, 100, 100, 256
Updates = Callable[[], object]


def _data() -> Trajectories:
    rng = np.random.default_rng(0)
    obs, act = rng.normal(size=(EPISODES, STEPS + 1, 4)), rng.uniform(-1, 1, (EPISODES, STEPS, 1))
    return Trajectories(obs, act, reward=rng.normal(size=(EPISODES, STEPS)))


def _replay(num_contexts: int) -> BeliefReplay:
    replay = BeliefReplay(BeliefCodec(4, num_contexts), 1)
    contexts = np.random.default_rng(1).integers(num_contexts, size=(EPISODES, STEPS + 1))
    replay.extend(_data(), np.eye(num_contexts)[contexts])
    return replay


def _space() -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-1.0, 1.0, (1,))


def _ours(hidden_sizes: list[int], num_contexts: int) -> Updates:
    replay = _replay(num_contexts)
    config = SacConfig(hidden_sizes=hidden_sizes, batch_size=BATCH, target_update_interval=1, linear_decay=False)
    sac = ContextSac(replay.codec, _space(), config)
    return lambda: sac.update(replay, UPDATES)


class _Nowhere(gymnasium.Env[np.ndarray, np.ndarray]):
    """Spaces for SB3, which asks for an environment."""

    def __init__(self, width: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (width,))
        self.action_space = _space()


def _sb3(hidden_sizes: list[int], num_contexts: int) -> Updates:
    batch = _replay(num_contexts).get_all()
    kwargs = {"net_arch": hidden_sizes}
    model = Sb3Sac("MlpPolicy", _Nowhere(4 + num_contexts), policy_kwargs=kwargs, device="cpu", buffer_size=20_000)
    model.set_logger(Logger(None, []))
    for obs, act, reward, next_obs, _ in zip(*(part.numpy() for part in batch), strict=True):
        model.replay_buffer.add(obs, next_obs, act, reward, np.zeros(1), [{}])
    return lambda: model.train(UPDATES, BATCH)


def _pranz24(num_contexts: int) -> Updates:
    """mbrl-lib's SAC; its networks always have two hidden layers."""
    batch = _replay(num_contexts).get_all()
    buffer = mbrl.util.ReplayBuffer(len(batch.reward), (4 + num_contexts,), (1,), rng=np.random.default_rng(0))
    for obs, act, reward, next_obs, terminated in zip(*(part.numpy() for part in batch), strict=True):
        buffer.add(obs, act, next_obs, reward, terminated, False)
    settings = {"gamma": 0.99, "tau": 0.005, "alpha": 0.2, "policy": "Gaussian", "target_update_interval": 1,
                "automatic_entropy_tuning": True, "target_entropy": -1.0, "hidden_size": 256, "device": "cpu",
                "lr": 3e-4}  # fmt: skip
    sac = SAC(4 + num_contexts, _space(), OmegaConf.create(settings))

    def updates() -> None:
        for number in range(UPDATES):
            sac.update_parameters(buffer, BATCH, number, reverse_mask=True)

    return updates


def run() -> list[Row]:
    torch.set_num_threads(1)
    rows = []
    for hidden_sizes, num_contexts, target in (([256], 2, 1.7), ([256], 10, 1.7), ([256, 256], 2, 2.0)):
        shape = "x".join(["256", str(len(hidden_sizes))])
        what = f"SAC update, batch {BATCH}, hidden {shape}, {num_contexts} contexts"
        peers = [("Stable-Baselines3", _sb3(hidden_sizes, num_contexts), target)]
        if len(hidden_sizes) == 2:
            peers.append(("mbrl-lib (pranz24)", _pranz24(num_contexts), None))
        for peer, theirs, wanted in peers:
            ours, theirs_ms = time_pair(_ours(hidden_sizes, num_contexts), theirs, repeats=5, warm_up=1)
            rows.append(Row(what, ours / UPDATES, peer, theirs_ms / UPDATES, wanted))
    return rows
