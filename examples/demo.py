"""What `make demo` shows: cart-pole's hidden actuator failures, found in logged data that nobody labelled.

The actuator pushes the wrong way in one of two contexts, which switch at random. Only positions, speeds and actions are
logged; the true contexts are kept beside them to score what is found.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mbrl_hdp import collect
from mbrl_hdp.cli import main as mbrl_hdp
from mbrl_hdp.envs.batch import BatchSwitchingEnv
from mbrl_hdp.envs.cartpole import CartPolePhysics

SETTINGS = ("dynamics=cartpole", "max_contexts=10")
BUDGET = ("fit.num_steps=300", "fit.polish_steps=200", "fit.num_restarts=2", "fit.batch_size=50")


def run(out: Path, num_episodes: int, extra: list[str]) -> int:
    """Log cart-pole, fit, and write figures and summary."""
    out.mkdir(parents=True, exist_ok=True)
    log = out / "cartpole.npz"
    env = BatchSwitchingEnv(CartPolePhysics(), [{"actuation": 1.0}, {"actuation": -1.0}], num_envs=num_episodes)
    collect(env, num_episodes=num_episodes, seed=0, progress=False).save(log)
    words = ["fit", str(log), *SETTINGS, *BUDGET, f"out={out}", *extra]
    print(f"Learning cart-pole's contexts from {num_episodes} logged episodes of random actions:\n")
    print(f"    $ mbrl-hdp {' '.join(words)}\n")
    code = mbrl_hdp(words)
    if code == 0:
        print(
            f"\nThe same works on your own logs: see examples/own_logs, or `mbrl-hdp label {out} {log} -o labels.csv`."
        )
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write to (default: demo)")
    parser.add_argument("--episodes", type=int, default=200, help="episodes to log")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="further settings of `mbrl-hdp fit`")
    options = parser.parse_args()
    return run(options.out, options.episodes, options.overrides)


if __name__ == "__main__":
    raise SystemExit(main())
