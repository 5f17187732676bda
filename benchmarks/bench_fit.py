"""A whole fit against the enumerated Pyro program, the online filter against its limit, and a fit on much data.

    python -m benchmarks fit

Times of fits are processor seconds of one thread, so that other work on the machine does not count.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from benchmarks.bench_elbo import build, their_gradient
from benchmarks.report import Row
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.experiments.studies.cartpole_fit import episodes, fit_settings
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.fit import build_model, fit
from mbrl_hdp.inference.model import ContextModel, ModelParts, Part
from mbrl_hdp.inference.schedule import PLAIN, FitConfig
from mbrl_hdp.types import TaskSpec

FIT_TARGET = 5.0
FILTER_LIMIT_MS = 0.1
MEMORY_LIMIT_MB = 4096.0
PEER_STEPS = 8
LARGE, HALF = 5000, 2500
NUM_PASSES = 2
LARGE_REPEATS = 2


def run() -> list[Row]:
    """Time a whole fit, the filter, and weigh and time a fit on much data."""
    torch.set_num_threads(1)
    return [whole_fit_row(), filter_row(), *large_fit_rows()]


def whole_fit_row() -> Row:
    """Time `fit` with its defaults, and as many gradients of the enumerated program."""
    data = cartpole(500)
    config = FitConfig()
    fit(cartpole(10), max_contexts=10, dynamics="cartpole", config=tiny_config(), progress=False)  # compile
    before = peer_step_s()
    started = time.process_time()
    fit(data, max_contexts=10, dynamics="cartpole", seed=0, config=config, progress=False)
    ours = time.process_time() - started
    num_steps = config.num_restarts * config.num_steps + config.polish_steps
    theirs = num_steps * median([*before, *peer_step_s()])
    name = f"whole fit, cart-pole hard, 500 trajectories, K=10, {config.num_restarts} restarts, {num_steps} steps"
    peer = f"enumerated Pyro, as many gradients (extrapolated from {2 * PEER_STEPS})"
    return Row(name, ours, peer, theirs, FIT_TARGET, unit="s")


def peer_step_s() -> list[float]:
    """Time gradients of the enumerated program on a minibatch of 100 episodes at K=10; its optimiser comes for free."""
    gradient = their_gradient(*build(10, 100, 100))
    gradient()
    return [_cpu_seconds(gradient) for _ in range(PEER_STEPS)]


def filter_row() -> Row:
    """Time updates of the online filter with ten contexts."""
    data = cartpole(20)
    online = untrained(data, 10).online_filter()
    times = []
    for obs, act in zip(data.obs, data.act, strict=True):
        online.reset(obs[0])
        for step in range(len(act)):
            started = time.perf_counter()
            online.update(act[step], obs[step + 1])
            times.append(time.perf_counter() - started)
    return Row("online filter update, K=10", 1e3 * median(times), "stated limit", FILTER_LIMIT_MS, target=1.0)


def large_fit_rows() -> list[Row]:
    """Fit much data and half of it, each several times in processes of their own, by turns; the quickest count."""
    pairs = [(measure(HALF), measure(LARGE)) for _ in range(LARGE_REPEATS)]
    half, large = (min(found, key=lambda each: each["time_s"]) for found in zip(*pairs, strict=True))
    name = f"fit on {LARGE:,} trajectories x 100 steps, K=20, {NUM_PASSES} passes with all contexts alive"
    return [
        Row(f"{name}: peak memory", large["peak_mb"], "stated limit", MEMORY_LIMIT_MB, target=1.0, unit="MB"),
        # Below 1 the time grows faster than the data; a square would give 0.5.
        Row(f"{name}: time", large["time_s"], f"twice that of {HALF:,}", 2.0 * half["time_s"], target=0.8, unit="s"),
    ]


def measure(num_trajectories: int) -> dict[str, float]:
    """Run one large fit in a process of its own; return its seconds and its peak memory in MB."""
    command = [sys.executable, "-m", "benchmarks.bench_fit", "--large", str(num_trajectories)]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def large_fit(num_trajectories: int) -> dict[str, float]:
    """Fit with as many steps as some passes over the data take, half of them as polish.

    No context is ever removed: how many remain, and with them the work of a step, would depend on the number of steps.
    """
    torch.set_num_threads(1)
    rule = load_registry().get("distillation", "stationary").spec
    keep_all = Part("stationary", rule.config(train_threshold=0.0, test_threshold=0.0))
    schedule = replace(PLAIN, distil_from=1.0)

    def run(num_episodes: int, num_steps: int) -> ContextModel:
        config = FitConfig(num_steps=num_steps, num_restarts=1, polish_steps=num_steps, schedules=[schedule])
        data = cartpole(num_episodes)
        started = time.process_time()
        model = fit(data, "hdp", keep_all, "cartpole", 20, config=config, progress=False)
        times.append(time.process_time() - started)
        return model

    times: list[float] = []
    run(10, 4)  # compile
    model = run(num_trajectories, NUM_PASSES * num_trajectories // 200)
    assert model.num_contexts == 20
    return {"time_s": times[-1], "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def cartpole(num_trajectories: int) -> Trajectories:
    """Simulate cart-pole hard."""
    return episodes(fit_settings(10, 0, num_trajectories=num_trajectories))


def untrained(data: Trajectories, max_contexts: int) -> ContextModel:
    """Build a cart-pole model that has learned nothing yet and keeps all its contexts."""
    registry = load_registry()
    names = {"prior": "hdp", "dynamics": "cartpole", "distillation": "stationary"}
    parts = [Part(name, registry.get(kind, name).spec.config()) for kind, name in names.items()]
    model = build_model(ModelParts(*parts), TaskSpec(max_contexts, data.obs_dim, data.act_dim), registry)
    model.dynamics.set_normaliser(*(torch.as_tensor(rows, dtype=torch.float32) for rows in data.transitions()))
    return model


def tiny_config() -> FitConfig:
    """Return a fit of a few steps, so that everything is compiled before the clock starts."""
    return FitConfig(num_steps=4, num_restarts=2, polish_steps=2)


def _cpu_seconds(function: Callable[[], object]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


if __name__ == "__main__":
    if sys.argv[1:2] == ["--large"]:
        print(json.dumps(large_fit(int(sys.argv[2]))))
    else:
        sys.exit("run it with: python -m benchmarks fit")
