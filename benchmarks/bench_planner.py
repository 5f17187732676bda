"""Milliseconds per planned action against stock mbrl-lib PETS at the same sizes.

PETS: mbrl-lib's ModelEnv, OneDTransitionRewardModel and GaussianMLP, an ensemble of five networks with one hidden layer
of 128 ReLU units, planned by its CEMOptimizer. Ours: five contexts with networks of that size, planned by the same
CEMOptimizer with the same population, particles, horizon and iterations. Not alike: PETS' networks also predict the
variance and every particle has noise of its own; ours have one noise level per context, and the candidates of a path
share its draws (that sharing is what makes it fast). The row without noise takes both differences away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import mbrl.models
import numpy as np
import torch
from gymnasium.spaces import Box
from mbrl.planning import create_trajectory_optim_agent_for_model
from omegaconf import OmegaConf
from torch import Tensor

from benchmarks.report import Row, time_pair
from mbrl_hdp.control.planner import make_planner
from mbrl_hdp.envs.cartpole import CartPoleSwingUp
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ContextModel, ModelParts, Part
from mbrl_hdp.types import ContextChain, TaskSpec
from mbrl_hdp_planners import CemConfig, CustomConfig

NUM_NETWORKS, HIDDEN = 5, 128
OBS = np.array([0.1, -0.2, 3.0, 0.3], dtype=np.float32)
BELIEF = np.array([0.5, 0.2, 0.1, 0.1, 0.1], dtype=np.float32)
Action = Callable[[], object]


@dataclass(frozen=True)
class Sizes:
    """Sizes that both planners share."""

    population: int
    particles: int
    horizon: int
    iterations: int

    def __str__(self) -> str:
        return f"{self.population} plans x {self.particles} particles x horizon {self.horizon} x {self.iterations}"

    def optimizer(self) -> dict[str, object]:
        """Return the keyword arguments of mbrl-lib's CEMOptimizer."""
        return {
            "num_iterations": self.iterations,
            "elite_ratio": 0.1,
            "population_size": self.population,
            "alpha": 0.1,
            "return_mean_elites": True,
            "clipped_normal": True,
        }


BIG = Sizes(500, 20, 20, 5)
SMALL = Sizes(130, 6, 10, 4)  # the particles must be a multiple of the ensemble: 130 stands for our default of 128


def _angle_as_sine_and_cosine(obs: Tensor) -> Tensor:
    return torch.cat([obs[..., :2], obs[..., 2:3].sin(), obs[..., 2:3].cos(), obs[..., 3:]], -1)


def pets(sizes: Sizes, has_noise: bool) -> Action:
    torch.manual_seed(0)
    network = mbrl.models.GaussianMLP(
        *(6, 4, "cpu"),
        num_layers=1,
        ensemble_size=NUM_NETWORKS,
        hid_size=HIDDEN,
        deterministic=not has_noise,
        propagation_method="fixed_model",
    )
    model = mbrl.models.OneDTransitionRewardModel(
        network, normalize=True, learned_rewards=False, obs_process_fn=_angle_as_sine_and_cosine
    )
    spaces = SimpleNamespace(observation_space=Box(-9.0, 9.0, (4,)), action_space=Box(-1.0, 1.0, (1,)))
    generator = torch.Generator().manual_seed(0)
    env = mbrl.models.ModelEnv(
        spaces, model, CartPoleSwingUp.termination_fn, CartPoleSwingUp().reward_fn, generator=generator
    )
    config = {
        "_target_": "mbrl.planning.TrajectoryOptimizerAgent",
        "_recursive_": False,
        "planning_horizon": sizes.horizon,
        "action_lb": "???",
        "action_ub": "???",
        "optimizer_cfg": {"_target_": "mbrl.planning.CEMOptimizer", "device": "cpu", **sizes.optimizer()},
    }
    agent = create_trajectory_optim_agent_for_model(env, OmegaConf.create(config), sizes.particles)
    return lambda: agent.act(OBS)


def context_model() -> ContextModel:
    """Five contexts, none distilled away, on a sticky chain; networks of random weights."""
    registry, task = load_registry(), TaskSpec(NUM_NETWORKS, 4, 1)
    parts = ModelParts(
        *(
            Part(name, registry.get(kind, name).spec.config())
            for kind, name in (("prior", "dirichlet"), ("dynamics", "cartpole"), ("distillation", "stationary"))
        )
    )
    model = build_model(parts, task, registry)
    stay = 0.8 * torch.eye(NUM_NETWORKS) + 0.2 / NUM_NETWORKS
    model.prior.start_from(ContextChain(torch.full((NUM_NETWORKS,), 1 / NUM_NETWORKS), stay), 100.0)  # type: ignore[operator]
    model.extract()
    assert model.num_contexts == NUM_NETWORKS
    return model


def ours(sizes: Sizes, has_noise: bool) -> Action:
    config = CustomConfig(
        horizon=sizes.horizon, num_particles=sizes.particles, has_noise=has_noise, kwargs=sizes.optimizer()
    )
    return _act(config)


def default_cem() -> Action:
    return _act(CemConfig())


def _act(config: CustomConfig | CemConfig) -> Action:
    agent = make_planner(
        config, context_model(), CartPoleSwingUp().reward_fn, CartPoleSwingUp.termination_fn, [-1.0], [1.0]
    )
    packed = np.concatenate([OBS, BELIEF])
    return lambda: agent.act(packed)


def run() -> list[Row]:
    torch.set_num_threads(1)
    rows = []
    for sizes, has_noise, target in ((BIG, True, 5.0), (BIG, False, None), (SMALL, True, 5.0)):
        name = f"planned action, {sizes}{'' if has_noise else ', no noise'}"
        mine, theirs = time_pair(ours(sizes, has_noise), pets(sizes, has_noise), repeats=7 if sizes is BIG else 25)
        rows.append(Row(name, mine, "mbrl-lib PETS", theirs, target))
    mine, theirs = time_pair(default_cem(), pets(SMALL, True), repeats=15)
    return [*rows, Row("planned action, defaults of planner=cem", mine, f"mbrl-lib PETS, {SMALL}", theirs)]
