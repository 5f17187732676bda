"""`drone`: networks for the changes of velocity and angular velocity, kinematics for position and attitude."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mbrl_hdp.settings import check_settings, choice, setting
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.layout import ACT, ACT_SQUARE, COSINE, SINE, SMALLEST_COSINE, STATE, StepLayout, columns
from mbrl_hdp_dynamics.structured import KinematicConfig, StructuredDynamics, require_dimensions, require_dt

_POSITION, _ATTITUDE, _VELOCITY, _SPIN = slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 12)


@dataclass
class DroneConfig(KinematicConfig):
    """Settings of `drone`."""

    std_floor: float = setting(0.2, "smallest noise std, in units of the target's spread", at_least=0.0, below=1.0)
    integrate: str = choice(
        ("next", "current"),
        "velocities that move position and attitude: next (nearer to the simulator) or current (the paper's formula)",
    )


class DroneDynamics(StructuredDynamics):
    """A flying body, observed as position, roll-pitch-yaw, velocity, angular velocity (3 each, WORLD frame).

    The networks see angular velocity, velocity, sines and cosines of roll, pitch, yaw, the actions and their squares,
    and predict the changes of velocity and angular velocity; only these carry density. Position and attitude follow
    by dt times velocity and dt times the Euler rates. (The paper's printed matrix mixes yaw and roll and is meant for
    body rates.)
    """

    def __init__(self, task: TaskSpec, config: DroneConfig, dt: float) -> None:
        super().__init__(task, 12 + 2 * task.act_dim, 6, config)
        self.dt = dt
        self.uses_next = config.integrate == "next"

    def features(self, obs: Float[Tensor, "*batch S"], act: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch I"]:
        """Return angular velocity, velocity, sin and cos of the angles, act, act^2."""
        angles = obs[..., _ATTITUDE]
        parts = [obs[..., _SPIN], obs[..., _VELOCITY], angles.sin(), angles.cos(), act, act.square()]
        return torch.cat(parts, -1)

    def targets(self, obs: Float[Tensor, "batch S"], next_obs: Float[Tensor, "batch S"]) -> Float[Tensor, "batch O"]:
        """Return the changes of velocity and angular velocity."""
        return (next_obs - obs)[..., 6:]

    def advance(self, obs: Float[Tensor, "*batch S"], change: Float[Tensor, "*batch O"]) -> Float[Tensor, "*batch S"]:
        """Integrate position and attitude over one step, then change the velocities."""
        moving = obs[..., 6:] + change
        used = moving if self.uses_next else obs[..., 6:]
        position = obs[..., _POSITION] + self.dt * used[..., :3]
        attitude = obs[..., _ATTITUDE] + self.dt * euler_rates(obs[..., _ATTITUDE], used[..., 3:].to(obs.dtype))
        return torch.cat([position, attitude, moving], -1)

    def layout(self) -> StepLayout | None:
        """Return what a compiled rollout needs to know."""
        seen = [*columns(STATE, 9, 3), *columns(STATE, 6, 3), *columns(SINE, 3, 3), *columns(COSINE, 3, 3)]
        acts = [*columns(ACT, 0, self.act_dim), *columns(ACT_SQUARE, 0, self.act_dim)]
        return StepLayout(
            features=(*seen, *acts),
            act_dim=self.act_dim,
            body_width=self.obs_dim,
            first_changed=6,
            num_positions=3,
            has_attitude=True,
            uses_next=self.uses_next,
            dt=self.dt,
        )


def euler_rates(attitude: Float[Tensor, "*batch 3"], spin: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
    """Return the rates of roll, pitch, yaw (R = Rz(yaw) Ry(pitch) Rx(roll)) from the WORLD angular velocity.

    roll' = (cos(yaw) wx + sin(yaw) wy) / cos(pitch), pitch' = -sin(yaw) wx + cos(yaw) wy,
    yaw' = wz + sin(pitch) roll'. Near the gimbal lock |cos(pitch)| is kept above 0.01, so that rates stay finite.
    """
    _, pitch, yaw = attitude.unbind(-1)
    spin_x, spin_y, spin_z = spin.unbind(-1)
    cosine = pitch.cos()
    safe = torch.where(cosine.abs() > SMALLEST_COSINE, cosine, torch.where(cosine < 0, -1.0, 1.0) * SMALLEST_COSINE)
    roll_rate = (yaw.cos() * spin_x + yaw.sin() * spin_y) / safe
    pitch_rate = yaw.cos() * spin_y - yaw.sin() * spin_x
    return torch.stack([roll_rate, pitch_rate, spin_z + pitch.sin() * roll_rate], -1)


def build_drone(config: DroneConfig, task: TaskSpec) -> DroneDynamics:
    """Build `drone`.

    Raises:
        ConfigError: if the task is not a drone, or the seconds per step are not known.
    """
    check_settings(config, "dynamics")
    layout = "position, roll-pitch-yaw, velocity, angular velocity (3 each) and four motor commands"
    require_dimensions("drone", task, 12, 4, layout)
    return DroneDynamics(task, config, require_dt("drone", config.dt, task))
