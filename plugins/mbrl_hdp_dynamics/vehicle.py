"""`vehicle`: one network for every car on the road; ego with its actions, the others with zero action."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.density_table import DensityTable
from mbrl_hdp.inference.dynamics import Slots
from mbrl_hdp.settings import check_settings, choice, setting
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.density import network_table
from mbrl_hdp_dynamics.layout import ACT, STATE, StepLayout, columns
from mbrl_hdp_dynamics.steps import NoiseSource
from mbrl_hdp_dynamics.structured import KinematicConfig, StructuredDynamics, require_dt

_COLUMNS = 6


@dataclass
class VehicleConfig(KinematicConfig):
    """Settings of `vehicle`."""

    hidden_sizes: list[int] = setting(
        [64], "units of the hidden ReLU layers of every context's network", at_least=1, at_most=16_384
    )
    density: str = choice(
        ("ego", "all"), "cars whose motion enters the context likelihood: ego (the actions move no other car) or all"
    )


class VehicleDynamics(StructuredDynamics):
    """Cars, each observed as x, y, vx, vy, cos(heading), sin(heading) in absolute raw units; the first is the ego.

    The network sees vx, vy, cos, sin and two actions of one car and predicts the change of vx, vy, cos, sin; positions
    move by dt times the current velocity. Density: the ego's four changes only. The other cars go through the same
    networks with zero action, under which the contexts of this task do not differ; their residuals (a social car turns
    by itself) would only add noise to the context likelihood. `density=all` adds them all the same.
    """

    def __init__(self, task: TaskSpec, config: VehicleConfig, dt: float) -> None:
        super().__init__(task, 4 + task.act_dim, 4, config)
        self.dt = dt
        self.uses_all = config.density == "all"

    def features(self, obs: Float[Tensor, "*batch S"], act: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch I"]:
        """Return vx, vy, cos, sin of the first car, then act."""
        return torch.cat([obs[..., 2:_COLUMNS], act], -1)

    def targets(self, obs: Float[Tensor, "batch S"], next_obs: Float[Tensor, "batch S"]) -> Float[Tensor, "batch O"]:
        """Return the changes of vx, vy, cos, sin of the first car."""
        return (next_obs - obs)[..., 2:_COLUMNS]

    def advance(self, obs: Float[Tensor, "*batch S"], change: Float[Tensor, "*batch O"]) -> Float[Tensor, "*batch S"]:
        """Move one car by dt times its velocity, then change its velocity and heading."""
        position = obs[..., :2] + self.dt * obs[..., 2:4]
        return torch.cat([position, obs[..., 2:_COLUMNS] + change], -1)

    def layout(self) -> StepLayout | None:
        """Return what a compiled rollout needs to know."""
        return StepLayout(
            features=(*columns(STATE, 2, 4), *columns(ACT, 0, self.act_dim)),
            act_dim=self.act_dim,
            body_width=_COLUMNS,
            num_bodies=self.obs_dim // _COLUMNS,
            first_changed=2,
            num_positions=2,
            dt=self.dt,
        )

    def density_table(self, slots: Slots) -> DensityTable | None:
        """Return the density as arrays: that of the ego, or of every car."""
        layout = self.layout()
        if layout is None:
            return None
        return network_table(self, layout, slots, layout.num_bodies if self.uses_all else 1)

    def _density_rows(self, obs: Tensor, act: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        if not self.uses_all:
            return super()._density_rows(obs, act, next_obs)
        cars, acts = _per_car(obs, act)
        features = self.features(cars, acts).flatten(0, 1)
        return features, self.targets(cars.flatten(0, 1), _split_cars(next_obs).flatten(0, 1))

    def _log_density(self, features: Tensor, targets: Tensor, slots: Tensor | None = None) -> Tensor:
        log_density = super()._log_density(features, targets, slots)
        if not self.uses_all:
            return log_density
        return log_density.unflatten(0, (-1, self.obs_dim // _COLUMNS)).sum(1)

    def _step(self, obs: Tensor, act: Tensor, context: Tensor, noise: NoiseSource | None = None) -> Tensor:
        """Move all cars: every car is a row of its own for the networks, in the context of its observation."""
        cars, acts = _per_car(obs, act)
        num_cars = cars.shape[-2]
        contexts = context if obs.ndim > 2 else context.repeat_interleave(num_cars)
        change = self._change(self.features(cars, acts).flatten(-3, -2), contexts, noise)
        return self.advance(cars, change.unflatten(-2, (-1, num_cars))).flatten(-2)


def _split_cars(obs: Tensor) -> Tensor:
    return obs.unflatten(-1, (-1, _COLUMNS))


def _per_car(obs: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cars `... cars 6` and their actions `... cars 2`, zero for all but the first."""
    cars = _split_cars(obs)
    acts = act.new_zeros(*cars.shape[:-1], act.shape[-1])
    acts[..., 0, :] = act
    return cars, acts


def build_vehicle(config: VehicleConfig, task: TaskSpec) -> VehicleDynamics:
    """Build `vehicle`.

    Raises:
        ConfigError: if the observations are not six columns a car, or the seconds per step are not known.
    """
    check_settings(config, "dynamics")
    if task.obs_dim % _COLUMNS or task.obs_dim < _COLUMNS or task.act_dim != 2:
        raise ConfigError(
            "dynamics=vehicle expects x, y, vx, vy, cos, sin of every car and two actions: obs_dim a multiple of "
            f"{_COLUMNS} and act_dim 2; this task has obs_dim {task.obs_dim} and act_dim {task.act_dim}. "
            "Use dynamics=delta_mlp, which fits any task"
        )
    return VehicleDynamics(task, config, require_dt("vehicle", config.dt, task))
