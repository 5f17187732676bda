"""`delta_mlp`: next_obs = obs + network(obs, act), for any task; and `cartpole`, the same with the paper's features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.dynamics import Obs
from mbrl_hdp.settings import check_settings, setting
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.layout import ACT, COSINE, SINE, STATE, Feature, StepLayout, columns
from mbrl_hdp_dynamics.structured import HeadsConfig, StructuredDynamics, require_dimensions


@dataclass
class DeltaMlpConfig(HeadsConfig):
    """Settings of `delta_mlp`."""

    angle_columns: list[int] = setting([], "columns of obs that are angles: networks see sine and cosine", at_least=0)


@dataclass
class CartpoleConfig(HeadsConfig):
    """Settings of `cartpole`."""

    angle_columns: ClassVar[tuple[int, ...]] = (2,)


class DeltaMlpDynamics(StructuredDynamics):
    """The change of every observation column from the observation and the action.

    Angle columns (unwrapped, in radians) are seen as sine and cosine and predicted as angles.
    """

    def __init__(self, task: TaskSpec, config: HeadsConfig, angle_columns: tuple[int, ...] = ()) -> None:
        self.angle_columns = angle_columns
        super().__init__(task, task.obs_dim + task.act_dim + len(angle_columns), task.obs_dim, config)

    def features(self, obs: Float[Tensor, "*batch S"], act: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch I"]:
        """Return obs with every angle replaced by its sine and cosine, then act."""
        if not self.angle_columns:
            return torch.cat([obs, act], -1)
        parts: list[Tensor] = []
        begin = 0
        for column in self.angle_columns:
            angle = obs[..., column : column + 1]
            parts += [obs[..., begin:column], angle.sin(), angle.cos()]
            begin = column + 1
        return torch.cat([*parts, obs[..., begin:], act], -1)

    def targets(self, obs: Obs, next_obs: Obs) -> Float[Tensor, "batch O"]:
        """Return next_obs - obs."""
        return next_obs - obs

    def advance(self, obs: Float[Tensor, "*batch S"], change: Float[Tensor, "*batch O"]) -> Float[Tensor, "*batch S"]:
        """Return obs + change."""
        return obs + change

    def layout(self) -> StepLayout | None:
        """Return what a compiled rollout needs to know."""
        seen: list[Feature] = []
        for column in range(self.obs_dim):
            is_angle = column in self.angle_columns
            seen += [(SINE, column), (COSINE, column)] if is_angle else [(STATE, column)]
        return StepLayout((*seen, *columns(ACT, 0, self.act_dim)), self.act_dim, self.obs_dim)


def build_delta_mlp(config: DeltaMlpConfig, task: TaskSpec) -> DeltaMlpDynamics:
    """Build `delta_mlp`.

    Raises:
        ConfigError: on settings out of range.
    """
    check_settings(config, "dynamics")
    columns = tuple(sorted(config.angle_columns))
    if len(set(columns)) < len(columns) or any(column >= task.obs_dim for column in columns):
        raise ConfigError(
            f"dynamics.angle_columns={list(config.angle_columns)} must be different columns, each below {task.obs_dim}"
        )
    return DeltaMlpDynamics(task, config, columns)


def build_cartpole(config: CartpoleConfig, task: TaskSpec) -> DeltaMlpDynamics:
    """Build `cartpole`: features x, v, sin, cos, omega, a; targets the changes of x, v, theta, omega.

    Raises:
        ConfigError: if the task is not a cart-pole with angle observations.
    """
    check_settings(config, "dynamics")
    require_dimensions("cartpole", task, 4, 1, "observations x, v, theta, omega and one force")
    return DeltaMlpDynamics(task, config, config.angle_columns)
