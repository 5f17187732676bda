"""C-CEM on cart-pole with hidden actuator failures: Algorithm 1 as one loop, without Hydra and the command line.

    python examples/train_c_cem.py --seed 0 --save my_model

The same parts are what `mbrl-hdp train agent=c_cem` is made of; take this file as the start of an experiment of your
own. `--quick` runs in seconds and learns little.
"""

from __future__ import annotations

import argparse
import time

import gymnasium
import numpy as np

import mbrl_hdp
from mbrl_hdp.control.planner import make_planner
from mbrl_hdp.control.tracker import BeliefAgent, BeliefTracker
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.runtime import configure
from mbrl_hdp.seeding import sub_seed
from mbrl_hdp_planners import CemConfig


def main(words: list[str] | None = None) -> list[dict[str, float]]:
    """Train and evaluate; return one row an epoch."""
    args = parse(words)
    configure()  # one thread and a tuned allocator: the quickest for networks this small

    # -------- The environment, and what a planner must know about it --------
    env = gymnasium.make("mbrl_hdp/CartPoleSwingUp-v0", actuation=(1.0, -1.0), horizon=args.steps)
    reward_fn, termination_fn = env.get_wrapper_attr("reward_fn"), env.get_wrapper_attr("termination_fn")
    low, high = env.action_space.low, env.action_space.high  # type: ignore[attr-defined]
    seconds = env.get_wrapper_attr("dt")

    # -------- Warm start: random episodes, the first model, a planner on it --------
    start = time.perf_counter()
    data = mbrl_hdp.collect(env, num_episodes=args.warm, seed=sub_seed(args.seed, "train", 0))
    print(f"{args.warm} random episodes: mean return {np.sum(data.reward, 1).mean():.2f}\n")
    first_fit = mbrl_hdp.FitConfig(num_steps=args.model_steps, num_restarts=args.restarts, polish_steps=args.polish)
    refit = mbrl_hdp.FitConfig(num_steps=args.refit_steps, polish_steps=0)
    model = mbrl_hdp.fit(
        data, dynamics="cartpole", max_contexts=args.max_contexts, seed=args.seed, config=first_fit, dt=seconds
    )
    planner = make_planner(CemConfig(), model, reward_fn, termination_fn, low, high, seed=args.seed)
    tracker = BeliefTracker(model)
    agent = BeliefAgent(planner, tracker)

    # -------- Algorithm 1: evaluate, collect with the agent, refit from what is known --------
    rows = []
    print("epoch  episodes  contexts      return   accuracy   seconds")
    for epoch in range(args.epochs + 1):
        if epoch > 0:
            new = mbrl_hdp.collect(env, agent, num_episodes=args.episodes, seed=sub_seed(args.seed, "train", epoch))
            data = mbrl_hdp.Trajectories.concatenate([data, new])
            model = mbrl_hdp.fit(data, seed=sub_seed(args.seed, "model", epoch), config=refit, warm_start=model)
            planner.set_model(model)
            tracker.set_model(model)
        test = mbrl_hdp.collect(env, agent, num_episodes=args.evaluate, seed=sub_seed(args.seed, "evaluate"))
        returns = np.sum(test.reward, 1)
        accuracy = align(model.filter(test).argmax(-1), test.context).accuracy  # the truth is for scoring only
        row = {
            "episodes": data.num_episodes,
            "contexts": model.num_contexts,
            "return": float(returns.mean()),
            "std": float(returns.std()),
            "accuracy": accuracy,
            "seconds": time.perf_counter() - start,
        }
        rows.append(row)
        print(f"{epoch:5d}  {row['episodes']:8d}  {row['contexts']:8d}  {row['return']:6.2f} ±{row['std']:4.2f}   "
              f"{row['accuracy']:8.3f}   {row['seconds']:7.0f}", flush=True)  # fmt: skip

    if args.save:
        model.save(args.save)
        print(f"\nmbrl_hdp.load({args.save!r}) gives the model again.")
    return rows


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm", type=int, default=100, help="random episodes before the first model")
    parser.add_argument("--epochs", type=int, default=3, help="rounds of collecting and refitting after that")
    parser.add_argument("--episodes", type=int, default=20, help="episodes a round")
    parser.add_argument("--evaluate", type=int, default=20, help="evaluation episodes a round, always the same ones")
    parser.add_argument("--steps", type=int, default=100, help="steps an episode")
    parser.add_argument("--max-contexts", type=int, default=10)
    parser.add_argument("--model-steps", type=int, default=500, help="gradient steps of a run of the first fit")
    parser.add_argument("--restarts", type=int, default=3, help="runs of the first fit, of which the best is taken")
    parser.add_argument("--polish", type=int, default=600, help="further steps of the chosen run")
    parser.add_argument("--refit-steps", type=int, default=100, help="gradient steps of a refit")
    parser.add_argument("--save", metavar="DIR", help="folder for the last model")
    parser.add_argument("--quick", action="store_true", help="tiny numbers, to see that it works")
    args = parser.parse_args(words)
    if args.quick:
        args.warm, args.epochs, args.episodes, args.evaluate, args.steps = 10, 1, 2, 2, 15
        args.max_contexts, args.model_steps, args.restarts, args.polish, args.refit_steps = 3, 30, 1, 10, 10
    return args


if __name__ == "__main__":
    main()
