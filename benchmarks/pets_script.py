"""mbrl-lib's own PETS script on its own cart-pole, and our `agent=pets` with the same settings there.

Both search less than mbrl-lib's example does (100 plans, 5 particles), so that a run takes minutes. Its script trains
the ensemble every 50 steps, ours after every episode.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from mbrl.algorithms import pets
from mbrl.env import reward_fns, termination_fns
from mbrl.env.cartpole_continuous import CartPoleEnv
from omegaconf import OmegaConf

ENV_ID = "benchmarks.pets_script:PlainCartPole-v0"
TRIAL, TRIALS, TRAIN_EVERY = 200, 8, 50
HORIZON, POPULATION, ELITES, ITERATIONS, PARTICLES = 15, 100, 10, 4, 5
ENSEMBLE = {"ensemble_size": 5, "num_layers": 3, "hid_size": 200}
LR, WEIGHT_DECAY, BATCH, EPOCHS = 7.5e-4, 3e-5, 256, 25
# Episodes of random actions, which last about 20 steps: as many steps as mbrl-lib's script begins with.
WARM = 10


class PlainCartPole(CartPoleEnv):
    """mbrl-lib's cart-pole, with gymnasium's signature of `reset`."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:  # noqa: ARG002
        """Begin an episode."""
        obs, info = super().reset(seed=seed)
        return np.asarray(obs, np.float32), info

    def step(self, action: Any) -> Any:
        """Take a step."""
        obs, *rest = super().step(np.asarray(action))
        return np.asarray(obs, np.float32), *rest


gymnasium.register("PlainCartPole-v0", "benchmarks.pets_script:PlainCartPole", max_episode_steps=TRIAL)


def words() -> list[str]:
    """Return the settings of our own run, as `mbrl-hdp train` takes them."""
    return [
        "env=gymnasium", f"env.id={ENV_ID}", "env.reward=mbrl.env.reward_fns:cartpole",
        "env.termination=mbrl.env.termination_fns:cartpole", "agent=pets", "planner=mbrl_cem",
        f"planner.horizon={HORIZON}", f"planner.population_size={POPULATION}", f"planner.num_iterations={ITERATIONS}",
        f"planner.elite_ratio={ELITES / POPULATION}", f"planner.num_particles={PARTICLES}", "planner.tune=never",
        "planner.clipped_normal=false", "planner.alpha=0.1",
        *(f"agent.{name}={value}" for name, value in ENSEMBLE.items()),
        f"agent.lr={LR}", f"agent.weight_decay={WEIGHT_DECAY}", f"agent.batch_size={BATCH}",
        f"agent.num_epochs={EPOCHS}", f"budget.warm_episodes={WARM}", "budget.episodes_per_epoch=1",
        f"budget.num_epochs={TRIALS + 1}", f"budget.eval_every={TRIALS + 1}", "budget.eval_episodes=1",
        "budget.final_eval_episodes=1",
    ]  # fmt: skip


def script_config(seed: int, num_steps: int) -> Any:
    """Return the configuration of mbrl-lib's script."""
    optimizer = {
        "_target_": "mbrl.planning.CEMOptimizer", "num_iterations": ITERATIONS, "elite_ratio": ELITES / POPULATION,
        "population_size": POPULATION, "alpha": 0.1, "lower_bound": "???", "upper_bound": "???",
        "return_mean_elites": True, "device": "cpu", "clipped_normal": False,
    }  # fmt: skip
    model = {
        "_target_": "mbrl.models.GaussianMLP", "_recursive_": False, **ENSEMBLE, "device": "cpu", "in_size": "???",
        "out_size": "???", "deterministic": False, "propagation_method": "random_model", "learn_logvar_bounds": False,
        "activation_fn_cfg": {"_target_": "torch.nn.SiLU"},
    }  # fmt: skip
    agent = {
        "_target_": "mbrl.planning.TrajectoryOptimizerAgent", "_recursive_": False, "action_lb": "???",
        "action_ub": "???", "planning_horizon": HORIZON, "optimizer_cfg": optimizer, "replan_freq": 1, "verbose": False,
    }  # fmt: skip
    algorithm = {
        "agent": agent, "normalize": True, "normalize_double_precision": True, "target_is_delta": True,
        "initial_exploration_steps": TRIAL, "freq_train_model": TRAIN_EVERY, "learned_rewards": False,
        "num_particles": PARTICLES,
    }  # fmt: skip
    overrides = {
        "trial_length": TRIAL, "num_steps": num_steps, "model_lr": LR, "model_wd": WEIGHT_DECAY,
        "model_batch_size": BATCH, "validation_ratio": 0, "patience": EPOCHS, "num_epochs_train_model": EPOCHS,
    }  # fmt: skip
    return OmegaConf.create({"seed": seed, "device": "cpu", "dynamics_model": model, "algorithm": algorithm,
                             "overrides": overrides})  # fmt: skip


def script_returns(seed: int, num_steps: int = TRIAL * TRIALS) -> list[float]:
    """Run mbrl-lib's script; return the return of every episode after the random ones."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the script draws from it
    env = gymnasium.wrappers.TimeLimit(PlainCartPole(), TRIAL)
    env.reset(seed=seed)
    env.action_space.seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        pets.train(env, termination_fns.cartpole, reward_fns.cartpole, script_config(seed, num_steps), work_dir=folder)
        with (Path(folder) / "results.csv").open() as file:
            return [float(row["episode_reward"]) for row in csv.DictReader(file)]
