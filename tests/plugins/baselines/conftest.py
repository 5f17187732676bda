"""Tasks for baselines without an environment."""

import gymnasium
import pytest
import torch

from mbrl_hdp.control.agent import AgentTask
from mbrl_hdp_planners import CemConfig


@pytest.fixture
def task_of():
    def make(obs_dim=4, act_dim=1, angle_columns=(), **named):
        settings = {
            "max_contexts": 3, "obs_dim": obs_dim, "act_dim": act_dim, "dt": None, "seed": 0, "name": "made up",
            "action_space": gymnasium.spaces.Box(-1.0, 1.0, (act_dim,)), "angle_columns": angle_columns,
            "appended_dim": 0, "total_updates": 0,
            "reward_fn": lambda act, next_obs: -next_obs[:, :1].abs(),
            "termination_fn": lambda act, next_obs: torch.zeros(len(next_obs), 1, dtype=torch.bool),
            "planner": CemConfig(horizon=3, population_size=16, num_elites=4, num_iterations=2), "num_contexts": 2,
        }  # fmt: skip
        return AgentTask(**{**settings, **named})

    return make
