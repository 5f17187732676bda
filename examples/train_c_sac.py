"""C-SAC on cart-pole with hidden actuator failures: Algorithm 1 as one loop, without Hydra and the command line.

    python examples/train_c_sac.py --seed 0 --save my_agent

The policy is SAC on the packed vector [obs, belief]. After every refit of the model the beliefs of all
stored episodes are computed anew (`relabel`) before the policy learns from them. `--quick` runs in seconds and learns
little.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import gymnasium
import numpy as np
from mbrl.planning.sac_wrapper import SACAgent

import mbrl_hdp
from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.policy import FAST_SAC, ContextSac
from mbrl_hdp.control.replay import BeliefReplay, model_beliefs
from mbrl_hdp.control.saving import save_policy
from mbrl_hdp.control.tracker import BeliefAgent, BeliefTracker
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.slim import without_spurious
from mbrl_hdp.runtime import configure
from mbrl_hdp.seeding import sub_seed


class ExploringAgent(SACAgent):
    """mbrl-lib's agent, drawing from the policy instead of taking its mean."""

    def act(self, obs: np.ndarray, sample: bool = True, batched: bool = False, **_: object) -> np.ndarray:
        """Draw an action."""
        return super().act(obs, sample=sample, batched=batched)


def main(words: list[str] | None = None) -> list[dict[str, float]]:
    """Train and evaluate; return one row an evaluation."""
    args = parse(words)
    configure()  # one thread and a tuned allocator: the quickest for networks this small
    start = time.perf_counter()
    env = gymnasium.make("mbrl_hdp/CartPoleSwingUp-v0", actuation=(1.0, -1.0), horizon=args.steps)

    # -------- Warm start: random episodes, the first model, the first updates of the policy --------
    data = mbrl_hdp.collect(env, num_episodes=args.warm, seed=sub_seed(args.seed, "train", 0))
    print(f"{args.warm} random episodes: mean return {np.sum(data.reward, 1).mean():.2f}\n")
    first_fit = mbrl_hdp.FitConfig(num_steps=args.model_steps, num_restarts=args.restarts, polish_steps=args.polish)
    refit = mbrl_hdp.FitConfig(num_steps=args.refit_steps, polish_steps=0)
    model = mbrl_hdp.fit(
        data,
        dynamics="cartpole",
        max_contexts=args.max_contexts,
        seed=args.seed,
        config=first_fit,
        dt=env.get_wrapper_attr("dt"),
    )
    codec = BeliefCodec(obs_dim=data.obs_dim, max_contexts=args.max_contexts)
    total = args.warm_updates + args.epochs * args.updates  # the learning rates fall to zero over these
    sac = ContextSac(codec, env.action_space, FAST_SAC["cartpole_hard"], seed=args.seed, total_updates=total)
    replay = BeliefReplay(codec, data.act_dim, seed=args.seed)
    replay.extend(data, model_beliefs(model, data))
    sac.update(replay, args.warm_updates)
    tracker = BeliefTracker(model)
    explorer, policy = BeliefAgent(ExploringAgent(sac), tracker), BeliefAgent(SACAgent(sac), tracker)

    # -------- Algorithm 1: collect, refit now and then, relabel, update the policy --------
    rows = []
    print("episodes  contexts       return   accuracy   temperature   seconds")
    for epoch in range(1, args.epochs + 1):
        new = mbrl_hdp.collect(env, explorer, num_episodes=1, seed=sub_seed(args.seed, "train", epoch))
        data = mbrl_hdp.Trajectories.concatenate([data, new])
        replay.extend(new, model_beliefs(model, new))
        if epoch % args.refit_every == 0:
            model = mbrl_hdp.fit(data, seed=sub_seed(args.seed, "model", epoch), config=refit, warm_start=model)
            tracker.set_model(model)
            replay.relabel(lambda stored, model=model: model_beliefs(model, stored))
        metrics = sac.update(replay, args.updates)
        if epoch % args.evaluate_every == 0 or epoch == args.epochs:
            test = mbrl_hdp.collect(env, policy, num_episodes=args.evaluate, seed=sub_seed(args.seed, "evaluate"))
            returns = np.sum(test.reward, 1)
            row = {
                "episodes": data.num_episodes,
                "contexts": model.num_contexts,
                "return": float(returns.mean()),
                "std": float(returns.std()),
                "accuracy": align(model.filter(test).argmax(-1), test.context).accuracy,  # for scoring only
                "seconds": time.perf_counter() - start,
            }
            rows.append(row)
            print(f"{row['episodes']:8d}  {row['contexts']:8d}  {row['return']:6.2f} ±{row['std']:5.2f}   "
                  f"{row['accuracy']:8.3f}   {metrics['temperature']:11.4f}   {row['seconds']:7.0f}",
                  flush=True)  # fmt: skip

    if args.save:
        # The belief in spurious contexts is always zero: model and policy can do without them.
        without_spurious(model).save(Path(args.save) / "model")
        save_policy(sac.drop_contexts(model.kept), args.save)
        print(f"\nModel and policy, without spurious contexts, are in {args.save}/ (mbrl_hdp.load, load_policy)")
    return rows


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm", type=int, default=100, help="random episodes before the first model")
    parser.add_argument("--epochs", type=int, default=150, help="further epochs, one episode each")
    parser.add_argument("--steps", type=int, default=100, help="steps an episode")
    parser.add_argument("--warm-updates", type=int, default=1000, help="updates of the policy after the warm start")
    parser.add_argument("--updates", type=int, default=400, help="updates of the policy an epoch")
    parser.add_argument("--refit-every", type=int, default=20, help="epochs from one refit of the model to the next")
    parser.add_argument("--evaluate-every", type=int, default=25, help="epochs from one evaluation to the next")
    parser.add_argument("--evaluate", type=int, default=50, help="evaluation episodes, always the same ones")
    parser.add_argument("--max-contexts", type=int, default=10)
    parser.add_argument("--model-steps", type=int, default=500, help="gradient steps of a run of the first fit")
    parser.add_argument("--restarts", type=int, default=3, help="runs of the first fit, of which the best is taken")
    parser.add_argument("--polish", type=int, default=600, help="further steps of the chosen run")
    parser.add_argument("--refit-steps", type=int, default=50, help="gradient steps of a refit")
    parser.add_argument("--save", metavar="DIR", help="folder for model and policy")
    parser.add_argument("--quick", action="store_true", help="tiny numbers, to see that it works")
    args = parser.parse_args(words)
    if args.quick:
        args.warm, args.epochs, args.steps, args.evaluate, args.evaluate_every = 10, 4, 15, 2, 2
        args.warm_updates, args.updates, args.refit_every = 20, 10, 2
        args.max_contexts, args.model_steps, args.restarts, args.polish, args.refit_steps = 3, 30, 1, 10, 10
    return args


if __name__ == "__main__":
    main()
