"""What `make demo` shows: cart-pole with hidden actuator failures, first found in logged data, then mastered.

The actuator pushes the wrong way in one of two contexts, which switch at random, and nothing in the observation shows
which one acts. Part one learns the contexts from a log of random actions that nobody labelled. Part two learns to swing
the pole up all the same (Algorithm 1 with the C-CEM agent), and draws its learning curve and an animated episode.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import pandas as pd

from mbrl_hdp import collect
from mbrl_hdp.cli import main as mbrl_hdp
from mbrl_hdp.envs.batch import BatchSwitchingEnv
from mbrl_hdp.envs.cartpole import CartPolePhysics

NAMES = {"obs_0": "position", "obs_1": "speed", "obs_2": "angle", "obs_3": "turning", "act_0": "force"}
CONTEXT_WORDS = ("working", "reversed")
ROLES = ("obs=[position,speed,angle,turning]", "act=[force]")
SETTINGS = ("dynamics=cartpole", "max_contexts=10")
BUDGET = ("fit.num_steps=300", "fit.polish_steps=200", "fit.num_restarts=2", "fit.batch_size=50")
CONTROL = ("env=cartpole_hard", "agent=c_cem", "seed=0")
TRUE_CONTEXTS = 2


def learn_contexts(out: Path, num_episodes: int, extra: list[str]) -> int:
    """Log cart-pole, fit, and write figures and summary; return the exit code."""
    out.mkdir(parents=True, exist_ok=True)
    log = out / "cartpole.csv"
    env = BatchSwitchingEnv(CartPolePhysics(), [{"actuation": 1.0}, {"actuation": -1.0}], num_envs=num_episodes)
    collect(env, num_episodes=num_episodes, seed=0, progress=False).save(log)
    table = pd.read_csv(log).rename(columns=NAMES)
    table["context"] = table["context"].map(dict(enumerate(CONTEXT_WORDS)))
    table.to_csv(log, index=False)
    words = ["fit", str(log), *ROLES, *SETTINGS, *BUDGET, f"out={out}", "overwrite=true", *extra]
    print(f"1. Learning cart-pole's contexts from {num_episodes} logged episodes of random actions:\n")
    print(f"    $ mbrl-hdp {' '.join(words)}\n", flush=True)
    code = mbrl_hdp(words)
    if code == 0:
        print(
            f"\nThe same works on your own logs: see examples/own_logs, or `mbrl-hdp label {out} {log} -o labels.csv`."
        )
    return code


def learn_control(run: Path, profile: str, extra: list[str]) -> int:
    """Train C-CEM in a run directory, going on where an earlier demo stopped; return the exit code."""
    print("\n2. Learning to swing the pole up although the actuator fails (Algorithm 1, C-CEM):\n")
    if (run / "summary.json").is_file():
        print(f"{run}/ holds a finished run, which is kept; --fresh trains anew.", flush=True)
        return 0
    # --no-report: the page is written at the end, with the episode that is drawn there.
    words = ["train", *CONTROL, f"profile={profile}", f"hydra.run.dir={run}", *extra, "--no-report"]
    if any((run / "checkpoints").glob("epoch_*")):
        print(f"{run}/ holds an unfinished run: going on from its last checkpoint; --fresh starts anew.\n")
        words = ["train", f"resume={run}", "--no-report"]
    print(f"    $ mbrl-hdp {' '.join(words)}\n")
    if profile == "fast":
        print("100 random episodes, a model, then three rounds of 20 episodes: two to four minutes on one core.")
    sys.stdout.flush()
    code = mbrl_hdp(words)
    if code:
        print(f"The run stopped; `--fresh` (or deleting {run}/) starts it anew.")
    return code


def show_control(run: Path, out: Path) -> None:
    """Draw the learning curve, an animated episode and the page of the run; say what was reached."""
    from mbrl_hdp.report.animation import animate_run
    from mbrl_hdp.report.curves import PAPER_RETURNS, write_learning_curve
    from mbrl_hdp.report.html import write_page

    print("\nDrawing ...", flush=True)
    curve = write_learning_curve(run, out / "learning_curve.png", TRUE_CONTEXTS)
    drawn, record = animate_run(run)
    rollout = shutil.copy(drawn, out / "rollout.gif")
    page = write_page([run])
    shown = f"one evaluation episode (return {record.episode_return:.1f}): cart and pole, the true context, the belief"
    print(f"  {curve}   returns over the episodes seen, beside the paper's, and the contexts found")
    print(f"  {rollout}          {shown}")
    print(f"  {page}   the training as a page, with the episode; {out / 'report.html'} is that of the log")
    summary = json.loads((run / "summary.json").read_text())
    reached = (
        f"{summary['return_mean']:.2f} +- {summary['return_std']:.2f} over {summary['num_eval_episodes']} episodes"
    )
    paper = PAPER_RETURNS["cartpole_hard", "c_cem"]
    print(
        f"\nReturn {reached} after {summary['num_real_episodes']} real episodes (the paper: {paper}); "
        f"{summary['num_contexts']} contexts found (truth: {TRUE_CONTEXTS})."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write to (default: demo)")
    parser.add_argument("--episodes", type=int, default=200, help="episodes to log in part one")
    parser.add_argument("--skip-control", action="store_true", help="only part one, half a minute")
    parser.add_argument("--skip-logs", action="store_true", help="only part two")
    parser.add_argument(
        "--fresh", action="store_true", help="train anew instead of going on with an earlier demo's run"
    )
    parser.add_argument("--quick", action="store_true", help="tiny budgets, to see that it works; learns nothing")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="further settings of `mbrl-hdp fit`")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    run = options.out / ("control_quick" if options.quick else "control")
    if not options.skip_logs:
        tiny = ["fit.num_steps=20", "fit.polish_steps=0", "fit.num_restarts=1", "max_contexts=3"]
        code = learn_contexts(options.out, options.episodes, [*(tiny if options.quick else []), *options.overrides])
        if code:
            return code
    if options.skip_control:
        return 0
    if options.fresh:
        shutil.rmtree(run, ignore_errors=True)
    small = ["max_contexts=3", "env.kwargs.horizon=12", "planner.horizon=3"] if options.quick else []
    code = learn_control(run, "smoke" if options.quick else "fast", small)
    if code == 0:
        show_control(run, options.out)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
