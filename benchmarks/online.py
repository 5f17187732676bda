"""The online filter in a control loop: `python -m benchmarks.online [--seconds 60] [--write]`.

A loop at 1 kHz, one update a tick, for a minute; in every tick a plain numpy filter of the same model does the same
update, and their beliefs are compared. Processor time is what an update costs; by the wall clock, waiting for a core
counts as well, as it does in a control loop. `--realtime` asks the system for the fixed priority that a control loop
has (SCHED_FIFO; needs the right to do so): leave it out on a machine that others share.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.model import ContextModel, ModelParts, Part

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "online.md"
HERTZ = 1000.0
_CASES = ("cartpole", "linear", "sparse")
Array = NDArray[Any]


@dataclass(frozen=True)
class Percentiles:
    """Latency in milliseconds."""

    median: float
    p99: float
    p999: float
    worst: float


def percentiles(seconds: Array) -> Percentiles:
    return Percentiles(*(1e3 * float(np.quantile(seconds, share)) for share in (0.5, 0.99, 0.999, 1.0)))


def demo_model(folder: Path | None = None, dynamics: str = "cartpole", with_policy: bool = False) -> ContextModel:
    """Return a model of cart-pole's sizes with two contexts; its speed is that of a trained one."""
    import torch

    from mbrl_hdp.inference.fit import build_model
    from mbrl_hdp.types import TaskSpec

    registry = load_registry()
    names = {"prior": "hdp", "dynamics": dynamics, "distillation": "stationary"}
    settings = {"dynamics": {"terms": ["sin(1.0*r2)", "cos(1.0*r2)", "x3*x3", "x4*x4"]} if dynamics == "sparse" else {}}
    parts = {
        kind: Part(name, registry.get(kind, name).spec.config(**settings.get(kind, {}))) for kind, name in names.items()
    }
    model = build_model(ModelParts(**parts), TaskSpec(2, 4, 1, dt=0.02, seed=0), registry)
    generator = torch.Generator().manual_seed(0)
    obs, act = torch.randn(500, 4, generator=generator), torch.randn(500, 1, generator=generator)
    model.dynamics.set_normaliser(obs, act, obs + 0.1 * torch.randn(500, 4, generator=generator))
    if folder is not None:
        model.save(folder / "model")
    if folder is not None and with_policy:
        _save_policy(folder, model)
    return model


def _save_policy(folder: Path, model: ContextModel) -> None:
    from gymnasium.spaces import Box

    from mbrl_hdp.belief.codec import BeliefCodec
    from mbrl_hdp.control.policy import ContextSac, SacConfig
    from mbrl_hdp.control.saving import save_policy

    codec = BeliefCodec(model.task.obs_dim, model.task.max_contexts)
    save_policy(ContextSac(codec, Box(-1.0, 1.0, (1,)), SacConfig(angle_columns=[2]), total_updates=1), folder)


class NumpyFilter:
    """The same filter as one writes it in an afternoon: whole-array numpy, nothing compiled, nothing prepared twice."""

    def __init__(self, model: ContextModel) -> None:
        table = model.dynamics.density_table(model.slots)
        assert table is not None
        self.table, self.transition, self.initial = table, model.transition, model.initial

    def reset(self, obs: Array) -> None:
        """Begin."""
        self.obs, self.belief = obs, self.initial

    def update(self, act: Array, next_obs: Array) -> Array:
        """Return the next belief."""
        log_lik = self._log_lik(act, next_obs)
        weight = self.belief * np.exp(log_lik - log_lik.max())
        self.belief = weight / weight.sum() @ self.transition
        self.obs = next_obs
        return self.belief

    def _log_lik(self, act: Array, next_obs: Array) -> Array:
        table, terms = self.table, self.table.terms
        values = np.concatenate([self.obs, act])[terms.column]
        waves = np.where(terms.kind == 1, np.sin(terms.number * values), np.cos(terms.number * values))
        factors = np.where(terms.kind == 0, (values - terms.centre) * terms.inverse_scale, waves)
        inputs = np.append(factors, 1.0)[terms.index].prod(-1)
        inputs = (inputs - terms.term_centre) * terms.term_inverse
        hidden = inputs[None, :, None]
        for number, (weight, bias) in enumerate(zip(table.weights, table.biases, strict=True)):
            hidden = weight @ (np.maximum(hidden, 0.0) if number else hidden) + bias[..., None]
        change = ((next_obs - self.obs)[table.targets] - table.target_centre) * table.target_inverse
        square = ((change - hidden[..., 0]) * table.inverse_std) ** 2
        if table.half is None or table.factor is None:
            return table.offset - 0.5 * square.sum(-1)
        leverage = ((inputs @ table.factor) ** 2).sum(-1)
        half = table.half
        tail = (half + 0.5) * np.log1p(square / (2.0 * half * (1.0 + leverage[:, None])))
        return table.offset - 0.5 * table.num_varying * np.log1p(leverage) - tail.sum(-1)


@dataclass(frozen=True)
class Case:
    """Times of both filters in the same loop, and the largest difference of their beliefs."""

    dynamics: str
    num_steps: int
    ours: tuple[Percentiles, Percentiles]
    plain: tuple[Percentiles, Percentiles]
    difference: float
    seconds: float
    back_to_back: tuple[float, float]

    def rows(self) -> list[str]:
        """Return the rows of the table."""
        found = []
        for name, times in (("online_filter()", self.ours), ("plain numpy", self.plain)):
            numbers = [1e3 * value for p in times for value in (p.median, p.p99, p.p999, p.worst)]
            texts = " | ".join(f"{number:,.0f}" for number in numbers)
            found.append(f"| {self.dynamics} | {name} | {texts} |")
        return found

    def more(self) -> str:
        """Return the row of the second table."""
        ours, plain = self.back_to_back
        rate = self.num_steps / self.seconds
        return f"| {self.dynamics} | {rate:.0f} | {ours:.1f} | {plain:.1f} | {self.difference:.1e} |"


def measure(dynamics: str, seconds: float) -> Case:
    """Run both filters at 1 kHz for some seconds."""
    model = demo_model(dynamics=dynamics)
    online, plain = model.online_filter(), NumpyFilter(model)
    count = int(seconds * HERTZ)
    rng = np.random.default_rng(0)
    obs, act, belief = rng.normal(size=(count + 1, 4)).cumsum(0) * 0.01, rng.uniform(-1, 1, (count, 1)), np.empty(2)
    online.reset(obs[0])
    plain.reset(obs[0])
    times, difference = np.zeros((4, count)), 0.0
    gc.collect()
    gc.freeze()
    begin = time.perf_counter()
    for t in range(count):
        time.sleep(max(0.0, begin + t / HERTZ - time.perf_counter()))
        marks = [_now()]
        online.update(act[t], obs[t + 1], out=belief)
        marks.append(_now())
        other = plain.update(act[t], obs[t + 1])
        marks.append(_now())
        times[:, t] = np.diff(np.array(marks), axis=0).ravel()
        difference = max(difference, abs(float(belief[0] - other[0])))
    took = time.perf_counter() - begin
    gc.unfreeze()
    ours, theirs = ((percentiles(times[row]), percentiles(times[row + 1])) for row in (0, 2))
    return Case(dynamics, count, ours, theirs, difference, took, _back_to_back(online, plain, obs, act, belief))


def _back_to_back(online: Any, plain: NumpyFilter, obs: Array, act: Array, belief: Array) -> tuple[float, float]:
    """Return the processor time of an update in microseconds when nothing happens between updates."""
    count = min(5000, len(act))
    begin = time.process_time()
    for t in range(count):
        online.update(act[t], obs[t + 1], out=belief)
    between = time.process_time()
    for t in range(count):
        plain.update(act[t], obs[t + 1])
    return 1e6 * (between - begin) / count, 1e6 * (time.process_time() - between) / count


def _now() -> tuple[float, float]:
    """Return the processor time of this thread and the wall clock, in seconds."""
    return time.thread_time(), time.perf_counter()


def page(cases: list[Case], load: tuple[float, ...], is_realtime: bool) -> str:
    """Return the page."""
    how = "with a fixed real-time priority" if is_realtime else "with ordinary priority"
    busy = "that other programs kept busy " if load[0] > (os.cpu_count() or 1) else ""
    lines = [
        "# The online filter in a control loop",
        "",
        f"Written by `python -m benchmarks.online --seconds {cases[0].num_steps / HERTZ:g} "
        f"{'--realtime ' if is_realtime else ''}--write`. A loop at 1 kHz,",
        f"{cases[0].num_steps:,} ticks a model; in every tick `online.update(act, obs, out=belief)` and, right after,",
        "the same update by a plain numpy filter of the same model (cart-pole's sizes, two contexts). Microseconds of",
        f"one update, {how}, on {os.cpu_count()} cores {busy}(load average {load[0]:.1f}):",
        "processor time is what an update costs; the wall clock includes waiting for a core.",
        "",
        "| dynamics | filter | CPU: median | 99 % | 99.9 % | largest | wall: median | 99 % | 99.9 % | largest |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(row for case in cases for row in case.rows()),
        "",
        "| dynamics | ticks a second, reached | back to back: online_filter() | plain numpy | largest difference |",
        "|---|---|---|---|---|",
        *(case.more() for case in cases),
        "",
        "Back to back: processor time of an update when nothing else happens between updates, so that caches are warm.",
        "The last column is the largest difference of the two beliefs over the whole run. Where fewer than 1000 ticks",
        "a second were reached, the machine had no time for the loop: late ticks follow each other at once, and after",
        "each of them the loop offers its core to the other programs.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.online", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds a model (default 60)")
    parser.add_argument("--realtime", action="store_true", help="run with a fixed real-time priority (SCHED_FIFO)")
    parser.add_argument("--write", action="store_true", help="write docs/results/online.md")
    options = parser.parse_args()
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    text = page([measure(name, options.seconds) for name in _CASES], os.getloadavg(), options.realtime)
    print(text)
    if options.write:
        PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
