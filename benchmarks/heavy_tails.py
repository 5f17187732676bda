"""Contexts under noise with heavy tails: `fit` with defaults, on logs written down before any of them was fitted.

    python -m benchmarks.heavy_tails cart_tails tanks_spikes --seeds 0 1 [--off]

`cart_tails` and `oven_spikes` are systems of this file; other names are logs of `mbrl_hdp.envs.recordings`. `--off`
leaves out the candidate with Student t noise (`dynamics.heavy_tails=false`). Prints one line of JSON a fit.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

import mbrl_hdp
from mbrl_hdp.envs.recordings import Recording, held_inputs, hidden_path, record
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.model import Part
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.verdict import facts, judge


def cart_tails(rng: np.random.Generator) -> Recording:
    """A cart on a spring, pushed by t noise with 2.5 degrees: normal, reversed motor, stiff spring."""
    shape = (50, 120)
    context, force = hidden_path(rng, shape, 3, 0.97), held_inputs(rng, shape, 0.2, -1.0, 1.0)
    place, speed = rng.uniform(-1.0, 1.0, shape[0]), np.zeros(shape[0])
    obs = [np.stack([place, speed], 1)]
    for t in range(shape[1]):
        gain, spring = np.array([2.0, -2.0, 2.0])[context[:, t]], np.array([1.0, 1.0, 4.0])[context[:, t]]
        noise = 0.02 * rng.standard_t(2.5, (2, shape[0]))
        push = gain * force[:, t] - spring * place - 0.5 * speed
        place, speed = place + 0.1 * speed + 0.2 * noise[0], speed + 0.1 * push + noise[1]
        obs.append(np.stack([place, speed], 1))
    return Recording(np.stack(obs, 1), force[..., None], context)


def oven_spikes(rng: np.random.Generator) -> Recording:
    """An oven with radiation and two sensors, one reading in 200 a spike: door shut, door open."""
    shape = (40, 150)
    context, power = hidden_path(rng, shape, 2, 0.98), held_inputs(rng, shape, 0.1)
    air, wall = rng.uniform(0.5, 2.0, shape[0]), rng.uniform(0.5, 2.0, shape[0])
    obs = [np.stack([air, wall], 1)]
    for t in range(shape[1]):
        loss = np.array([0.1, 0.5])[context[:, t]]
        air, wall = (
            air + 0.1 * (3.0 * power[:, t] - loss * air - 0.6 * (air - wall)) + rng.normal(0.0, 0.005, shape[0]),
            wall + 0.1 * (0.6 * (air - wall) - 0.1 * wall**2) + rng.normal(0.0, 0.005, shape[0]),
        )
        obs.append(np.stack([air, wall], 1))
    series = np.stack(obs, 1)
    spikes = (
        (rng.random(series.shape) < 0.005) * rng.choice([-1.0, 1.0], series.shape) * rng.uniform(1, 4, series.shape)
    )
    return Recording(series + spikes, power[..., None], context)


OWN = {system.__name__: system for system in (cart_tails, oven_spikes)}


def measure(name: str, seed: int, is_off: bool) -> dict[str, object]:
    """Fit one log with defaults and compare with the true contexts."""
    log = OWN[name](np.random.default_rng(seed)) if name in OWN else record(name, seed)
    data = mbrl_hdp.Trajectories(obs=log.obs, act=log.act, context=log.context)
    config = load_registry().get("dynamics", "auto").spec.config()
    if is_off:
        config.heavy_tails = False
    started = time.process_time()
    model = mbrl_hdp.fit(data, dynamics=Part("auto", config), progress=False)
    seconds = time.process_time() - started
    found = model.analyse(data)
    return {
        "log": name,
        "seed": seed,
        "found/true": f"{model.num_contexts}/{len(np.unique(log.context))}",
        "accuracy": round(align(found.most_likely, log.context).accuracy, 4),
        "verdict": judge(facts(model, found)).level,
        "cpu_s": round(seconds, 1),
        "searched": model.report.search.get("num_contexts"),
        "runs": [
            f"{run['dynamics']} {run.get('noise', '')} {run['schedule']} {run['num_contexts']} "
            f"{run['held_out_log_likelihood']:.6f} {run['held_out_rmse']:.6f}{' taken' if run['taken'] else ''}"
            for run in model.report.runs
        ],
        "log_likelihood": repr(float(found.log_likelihood.sum())),
    }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--off", action="store_true", help="without the candidate with Student t noise")
    chosen = parser.parse_args()
    for name in chosen.names:
        for seed in chosen.seeds:
            print(json.dumps(measure(name, seed, chosen.off)), flush=True)


if __name__ == "__main__":
    main()
