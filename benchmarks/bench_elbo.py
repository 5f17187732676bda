"""The whole ELBO gradient against the enumerated Pyro program, and its peak memory.

    python -m benchmarks.bench_elbo

Cart-pole's shapes: B = T = 100, 6 features, 4 targets, one hidden layer of 128, one thread. Both sides have the same
weights, prior, guide and data (random: no context explains a step better than the others by much, so nothing can be
skipped), and the bounds are compared before the clocks start.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.enumerated_pyro import Data, HdpGuide, HdpSettings, PlainHeads, enumerated_loss
from benchmarks.report import Row, time_pair
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.elbo import ElboScale, EpisodeBatch, elbo
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.delta_mlp import DeltaMlpDynamics
from mbrl_hdp_priors import HdpPrior

NUM_EPISODES = 500
TARGETS = {5: None, 10: 5.0, 20: None}


def build(max_contexts: int, num_episodes: int, num_steps: int) -> tuple[HdpPrior, DeltaMlpDynamics, EpisodeBatch]:
    """Make a prior, a cart-pole model with fixed scales and a random minibatch."""
    torch.manual_seed(0)
    task = TaskSpec(max_contexts=max_contexts, obs_dim=4, act_dim=1)
    dynamics: Any = load_registry().build_dynamics("cartpole", task)
    obs, act = torch.randn(num_episodes, num_steps + 1, 4), torch.randn(num_episodes, num_steps, 1)
    dynamics.set_normaliser(obs[:, :-1].flatten(0, 1), act.flatten(0, 1), obs[:, 1:].flatten(0, 1))
    batch = EpisodeBatch(obs, act, torch.full((num_episodes,), num_steps))
    return HdpPrior(max_contexts), dynamics, batch


def our_gradient(prior: HdpPrior, dynamics: DeltaMlpDynamics, batch: EpisodeBatch) -> Callable[[], float]:
    """Return a function that computes our bound and all its gradients."""
    scale = ElboScale(num_episodes=NUM_EPISODES, num_transitions=NUM_EPISODES * batch.act.shape[1])

    def step() -> float:
        bound = elbo(prior, dynamics, batch, scale)
        bound.loss.backward()
        return float(bound.value.detach())

    return step


def their_gradient(prior: HdpPrior, dynamics: DeltaMlpDynamics, batch: EpisodeBatch) -> Callable[[], float]:
    """Return the same with the enumerated program, from the same weights and concentrations."""
    obs, act = batch.obs[:, :-1], batch.act
    features = dynamics.input_scaler(dynamics.features(obs, act))
    targets = dynamics.target_scaler(batch.obs[:, 1:] - obs)
    heads = PlainHeads(dynamics.max_contexts, features.shape[-1], targets.shape[-1])
    guide = HdpGuide(dynamics.max_contexts)
    (first, second), (first_bias, second_bias) = dynamics.heads.weights, dynamics.heads.biases
    with torch.no_grad():
        heads.first.copy_(first.mT)
        heads.first_bias.copy_(first_bias[:, None])
        heads.second.copy_(second.mT)
        heads.second_bias.copy_(second_bias[:, None])
        heads.log_std.copy_(dynamics.noise_std().log())
        guide.raw_top.copy_(prior.raw_top)
        guide.raw_rows.copy_(prior.raw_rows)
    data = Data(features.detach(), targets.detach(), batch.lengths, NUM_EPISODES)
    settings = HdpSettings(dynamics.max_contexts, prior.top_concentration, prior.row_concentration, prior.stickiness)
    # Densities of scaled targets: theirs lack the constant Jacobian that ours has.
    jacobian = float(dynamics.target_scaler.log_volume()) * NUM_EPISODES * act.shape[1]

    def step() -> float:
        loss = enumerated_loss(settings, heads, data, guide)
        (loss / (NUM_EPISODES * act.shape[1])).backward()
        return -float(loss.detach()) - jacobian

    return step


def peak_memory(num_episodes: int, num_steps: int, max_contexts: int) -> float:
    """Measure the peak resident memory that one gradient adds, in MB, in a process of its own."""
    sizes = [str(size) for size in (num_episodes, num_steps, max_contexts)]
    command = [sys.executable, "-m", "benchmarks.bench_elbo", "--memory", *sizes]
    root = Path(__file__).parents[1]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def run() -> list[Row]:
    """Time K = 5, 10, 20 and weigh three sizes."""
    torch.set_num_threads(1)
    rows = []
    for max_contexts, target in TARGETS.items():
        prior, dynamics, batch = build(max_contexts, 100, 100)
        ours, theirs = our_gradient(prior, dynamics, batch), their_gradient(prior, dynamics, batch)
        _check_same(ours(), theirs())
        name = f"ELBO gradient, B=T=100, K={max_contexts}"
        mine, peers = time_pair(ours, theirs, repeats=9)
        rows.append(Row(name, mine, "enumerated Pyro", peers, target))
    return rows + _memory_rows()


def _memory_rows() -> list[Row]:
    base = (200, 200, 10)
    grown = {"2x B": (400, 200, 10), "2x T": (200, 400, 10), "2x K": (200, 200, 20), "8x B*T*K": (400, 400, 20)}
    base_peak = peak_memory(*base)
    return [
        Row(
            f"peak memory of an ELBO gradient, {name} of B=T=200, K=10",
            peak_memory(*sizes),
            "linear growth",
            base_peak * math.prod(sizes) / math.prod(base),
            target=0.65,  # allocator noise; growth with the square of a size would give 0.5
            unit="MB",
        )
        for name, sizes in grown.items()
    ]


def _check_same(ours: float, theirs: float) -> None:
    """The draws of the rows differ, and so do the estimates of KL: near is all that can be asked."""
    assert abs(ours - theirs) < 5e-3 * abs(ours), f"the two programs disagree: {ours} and {theirs}"


def _print_peak_memory(sizes: list[int]) -> None:
    num_episodes, num_steps, max_contexts = sizes
    our_gradient(*build(max_contexts, 2, 3))()  # compile what is compiled
    step = our_gradient(*build(max_contexts, num_episodes, num_steps))
    before = _reset_peak()
    step()
    print(_peak() - before)


def _reset_peak() -> float:
    """Forget the peak so far (Linux) and return the memory in use, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) / 1024
    raise RuntimeError("this system does not report a process's peak memory")


def main() -> None:
    """Print the rows, or with `--memory B T K` one peak."""
    if sys.argv[1:2] == ["--memory"]:
        _print_peak_memory([int(size) for size in sys.argv[2:5]])
        return
    for row in run():
        verdict = "" if row.target is None else f"  (target {row.target:g}x: {'met' if row.is_met else 'MISSED'})"
        print(f"{row.name}: {row.ours:.1f} {row.unit}, {row.peer} {row.theirs:.1f}, {row.ratio:.1f}x{verdict}")


if __name__ == "__main__":
    main()
