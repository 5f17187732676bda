"""Processor milliseconds of a planned action on the drone and the intersection, at the sizes of their presets.

Ours is the compiled rollout; the peer is the same planner with `ContextDynamics.rollout_blocks`, one torch call after
the other. Networks of random weights, two contexts among ten slots. A planned action on the drone may take 10 ms.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.report import Row
from mbrl_hdp.control.planner import make_planner
from mbrl_hdp.envs.drone import DroneTakeOff
from mbrl_hdp.envs.intersection import IntersectionLeftTurn
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ContextModel, ModelParts, Part
from mbrl_hdp.types import ContextChain, TaskSpec
from mbrl_hdp_dynamics.structured import StructuredDynamics

MAX_CONTEXTS = 10
MOST_MILLISECONDS = 10.0
TASKS: dict[str, tuple[str, type[Any]]] = {
    "drone": ("drone", DroneTakeOff),
    "intersection": ("vehicle", IntersectionLeftTurn),
}


def context_model(dynamics: str, act_dim: int) -> ContextModel:
    """Build two contexts on a sticky chain; the other slots are never entered."""
    registry = load_registry()
    parts = ModelParts(
        *(
            Part(name, registry.get(kind, name).spec.config())
            for kind, name in (("prior", "dirichlet"), ("dynamics", dynamics), ("distillation", "stationary"))
        )
    )
    model = build_model(parts, TaskSpec(MAX_CONTEXTS, 12, act_dim, dt=0.1), registry)
    share = torch.zeros(MAX_CONTEXTS)
    share[:2] = 0.5
    transition = 0.8 * torch.eye(MAX_CONTEXTS) + 0.2 * share
    model.prior.start_from(ContextChain(share + 1e-6, transition + 1e-6), 1000.0)  # type: ignore[operator]
    model.extract()
    assert model.num_contexts == 2, model.num_contexts
    return model


def action(task: str) -> Callable[[], object]:
    """Return a function that plans one action on a task with its preset's planner."""
    dynamics, env_class = TASKS[task]
    env = env_class(backend="vector")
    config = check_config(load_config([f"env={task}_vector"]))
    planner_config = load_registry().build_planner(config.planner.name, None, config.planner)  # type: ignore[arg-type]
    low, high = env.action_space.low, env.action_space.high
    model = context_model(dynamics, len(low))
    planner = make_planner(planner_config, model, env.reward_fn, env.termination_fn, low, high)
    obs, _ = env.reset(seed=0)
    belief = np.zeros(MAX_CONTEXTS)
    belief[:2] = 0.7, 0.3
    packed = np.concatenate([obs, belief]).astype(np.float32)
    return lambda: planner.act(packed)


def processor_milliseconds(function: Callable[[], object], repeats: int) -> float:
    """Return the median over calls, after three that compile and fill the caches."""
    times = []
    for number in range(repeats + 3):
        start = time.process_time()
        function()
        if number >= 3:
            times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


def run() -> list[Row]:
    """Measure both tasks; the ratio's target follows from the 10 ms that a planned action on the drone may take."""
    torch.set_num_threads(1)
    rows = []
    for task in TASKS:
        ours = processor_milliseconds(action(task), 40)
        with patch.object(StructuredDynamics, "begin_rollout", ContextDynamics.begin_rollout):
            stepped = processor_milliseconds(action(task), 20)
        target = stepped / MOST_MILLISECONDS if task == "drone" else None
        rows.append(Row(f"planned action, {task}, preset, CPU", ours, "the same, torch step by step", stepped, target))
    return rows
