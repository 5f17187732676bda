"""mbrl-lib's own tools on our model: its replay buffer, its ModelTrainer, its TrajectoryOptimizerAgent with its CEM.

    python examples/mbrl_lib_trainer.py --seed 0

`ContextModel` is an `mbrl.models.Model`, so whoever has an mbrl-lib experiment can put it in place of an ensemble. What
`mbrl_hdp.fit` does beside gradient steps (restarts, schedules, natural gradients) is left out here on purpose.
`--quick` runs in seconds and learns little.
"""

from __future__ import annotations

import argparse
import time

import gymnasium
import mbrl.models
import mbrl.planning
import mbrl.util.common
import numpy as np
import omegaconf
import torch
from mbrl.util import ReplayBuffer

import mbrl_hdp
from mbrl_hdp.control.model import BeliefModel
from mbrl_hdp.control.model_env import BeliefModelEnv
from mbrl_hdp.control.tracker import BeliefAgent, BeliefTracker
from mbrl_hdp.data.replay import from_replay_buffer
from mbrl_hdp.distil.distiller import keep_at_least
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ModelParts
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.trainer import sticky_chain
from mbrl_hdp.runtime import configure
from mbrl_hdp.seeding import numpy_generator, seed_env, seed_everything, sub_seed, torch_generator
from mbrl_hdp.types import TaskSpec

# What mbrl-lib's examples keep in examples/conf/algorithm/pets.yaml and conf/action_optimizer/cem.yaml.
AGENT = {
    "_target_": "mbrl.planning.TrajectoryOptimizerAgent",
    "_recursive_": False,  # mbrl-lib was written for a Hydra that did not build nested parts by itself
    "action_lb": "???",
    "action_ub": "???",
    "planning_horizon": 10,
    "optimizer_cfg": {
        "_target_": "mbrl.planning.CEMOptimizer",
        "num_iterations": 4,
        "elite_ratio": 0.08,
        "population_size": 200,
        "alpha": 0.1,
        "lower_bound": "???",
        "upper_bound": "???",
        "return_mean_elites": True,
        "device": "cpu",
    },
}


def main(words: list[str] | None = None) -> dict[str, float]:
    """Train and evaluate; return what was reached."""
    args = parse(words)
    configure()
    seed_everything(args.seed)  # mbrl-lib's CEM draws from torch's global generator
    start = time.perf_counter()

    # -------- mbrl-lib's replay buffer, filled by its own rollout function --------
    env = gymnasium.make("mbrl_hdp/CartPoleSwingUp-v0", actuation=(1.0, -1.0), horizon=args.steps)
    seed_env(env, args.seed)
    buffer = ReplayBuffer(
        (args.episodes + 1) * args.steps,
        env.observation_space.shape,
        env.action_space.shape,
        max_trajectory_length=args.steps,
        rng=numpy_generator(args.seed, "buffer"),
    )
    random_agent = mbrl.planning.RandomAgent(env)
    returns = mbrl.util.common.rollout_agent_trajectories(
        env, args.episodes, random_agent, {}, replay_buffer=buffer, collect_full_trajectories=True
    )
    print(f"{len(returns)} random episodes: mean return {np.mean(returns):.2f}")

    # -------- Our model, trained by mbrl-lib's ModelTrainer through its sequence iterator --------
    model = untrained_model(from_replay_buffer(buffer), args.max_contexts, env.get_wrapper_attr("dt"), args.seed)
    iterator, _ = mbrl.util.common.get_sequence_buffer_iterator(
        buffer, args.batch, val_ratio=0.0, sequence_length=args.steps
    )
    trainer = mbrl.models.ModelTrainer(model, optim_lr=5e-3, weight_decay=0.0)

    def distil(trained: mbrl_hdp.ContextModel, _: int, epoch: int, loss: float, *__: object) -> None:
        """From half-way on, close the contexts that hardly ever act (Algorithm 2)."""
        if epoch >= args.epochs // 2:
            posterior = trained.posterior(is_training=True)
            trained.is_active = keep_at_least(posterior, trained.distillation.keep(posterior), minimum=2)
        trained.extract()
        if (epoch + 1) % max(1, args.epochs // 5) == 0:
            print(f"  epoch {epoch + 1}: loss {loss:.3f}, {trained.num_contexts} contexts", flush=True)

    losses, _ = trainer.train(iterator, num_epochs=args.epochs, evaluate=False, callback=distil, silent=True)
    model.extract()
    print(f"found {model.num_contexts} contexts; transition matrix\n{np.round(model.transition, 3)}")

    # -------- mbrl-lib's stock planning agent on the belief --------
    model_env = BeliefModelEnv(
        BeliefModel(model),
        env.get_wrapper_attr("reward_fn"),
        env.get_wrapper_attr("termination_fn"),
        env.action_space.low,  # type: ignore[attr-defined]
        env.action_space.high,  # type: ignore[attr-defined]
        torch_generator(args.seed, "model"),
        has_noise=False,
    )
    planner = mbrl.planning.create_trajectory_optim_agent_for_model(
        model_env, omegaconf.OmegaConf.create(AGENT), num_particles=6
    )
    agent = BeliefAgent(planner, BeliefTracker(model))
    test = mbrl_hdp.collect(env, agent, num_episodes=args.evaluate, seed=sub_seed(args.seed, "evaluate"))
    reached = np.sum(test.reward, 1)
    accuracy = align(model.filter(test).argmax(-1), test.context).accuracy  # the truth is for scoring only
    print(f"return {reached.mean():.2f} ± {reached.std():.2f} over {len(reached)} episodes, context accuracy "
          f"{accuracy:.3f}, {time.perf_counter() - start:.0f} s")  # fmt: skip
    return {
        "return": float(reached.mean()),
        "contexts": model.num_contexts,
        "accuracy": accuracy,
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def untrained_model(data: mbrl_hdp.Trajectories, max_contexts: int, dt: float, seed: int) -> mbrl_hdp.ContextModel:
    """Build a model from three plugins, with normalised inputs and a chain that starts sticky."""
    registry = load_registry()
    names = {"prior": "hdp", "dynamics": "cartpole", "distillation": "stationary"}
    parts = [mbrl_hdp.Part(name, registry.get(kind, name).spec.config()) for kind, name in names.items()]
    task = TaskSpec(max_contexts, obs_dim=data.obs_dim, act_dim=data.act_dim, dt=dt, seed=seed)
    model = build_model(ModelParts(*parts), task, registry)
    model.dynamics.set_normaliser(*(torch.as_tensor(rows, dtype=torch.float32) for rows in data.transitions()))
    model.prior.start_from(sticky_chain(max_contexts, stay=0.8), strength=1000.0)  # type: ignore[attr-defined]
    model.set_data_size(data.num_episodes, data.num_transitions)
    return model


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=200, help="random episodes to learn from")
    parser.add_argument("--steps", type=int, default=100, help="steps an episode")
    parser.add_argument("--epochs", type=int, default=200, help="passes of the ModelTrainer over the episodes")
    parser.add_argument("--batch", type=int, default=50, help="episodes in a minibatch")
    parser.add_argument("--evaluate", type=int, default=20, help="evaluation episodes")
    parser.add_argument("--max-contexts", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="tiny numbers, to see that it works")
    args = parser.parse_args(words)
    if args.quick:
        args.episodes, args.steps, args.epochs, args.batch, args.evaluate, args.max_contexts = 10, 15, 5, 5, 2, 3
    return args


if __name__ == "__main__":
    main()
