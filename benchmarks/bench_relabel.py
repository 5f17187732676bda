"""Relabelling the replay buffer after a model update: 500 episodes of 100 steps at K = 10, all contexts kept.

The peer is the same filter pass step by step, as an online filter does it; the target is one second.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

from benchmarks.report import Row
from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.replay import BeliefReplay, model_beliefs
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ContextModel, ModelParts, Part
from mbrl_hdp.types import TaskSpec

EPISODES, STEPS, CONTEXTS, LIMIT_MS = 500, 100, 10, 1000.0


def _data() -> Trajectories:
    rng = np.random.default_rng(0)
    obs, act = rng.normal(size=(EPISODES, STEPS + 1, 4)), rng.uniform(-1, 1, (EPISODES, STEPS, 1))
    return Trajectories(obs, act, reward=rng.normal(size=(EPISODES, STEPS)))


def _model(data: Trajectories) -> ContextModel:
    """An untrained model: every context has the same mass, so none is distilled away."""
    registry = load_registry()
    names = (("prior", "hdp"), ("dynamics", "cartpole"), ("distillation", "stationary"))
    parts = ModelParts(*(Part(name, registry.get(kind, name).spec.config()) for kind, name in names))
    model = build_model(parts, TaskSpec(CONTEXTS, 4, 1), registry)
    model.dynamics.set_normaliser(*(torch.as_tensor(rows, dtype=torch.float32) for rows in data.transitions()))
    assert model.num_contexts == CONTEXTS
    return model


def run() -> list[Row]:
    torch.set_num_threads(1)
    data = _data()
    model = _model(data)
    replay = BeliefReplay(BeliefCodec(4, CONTEXTS), 1)
    replay.extend(data)
    times = []
    for _ in range(6):
        start = time.perf_counter()
        replay.relabel(lambda stored: model_beliefs(model, stored))
        times.append(1e3 * (time.perf_counter() - start))
    what = f"relabel {EPISODES} episodes x {STEPS} steps, K={CONTEXTS}"
    ours = statistics.median(times[1:])
    return [
        Row(what, ours, "limit of one second", LIMIT_MS, 1.0),
        Row(what, ours, "online filter (10 episodes, scaled)", _online_ms(model, data, 10)),
    ]


def _online_ms(model: ContextModel, data: Trajectories, num_episodes: int) -> float:
    start = time.perf_counter()
    for episode in range(num_episodes):
        online = model.online_filter()
        online.reset(data.obs[episode, 0])
        for step in range(STEPS):
            online.update(data.act[episode, step], data.obs[episode, step + 1])
    return 1e3 * (time.perf_counter() - start) * EPISODES / num_episodes
