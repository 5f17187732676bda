"""Drone take-off with hidden actuator failures: fly up while staying level."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mbrl_hdp.envs import rendering
from mbrl_hdp.envs.drone_backends import make_backend
from mbrl_hdp.envs.drone_physics import DronePhysics, TakeOffConfig, continue_angles
from mbrl_hdp.envs.task import FloatArray, TaskEnv

if TYPE_CHECKING:
    import torch

_PANEL_SIZE, _VIEW_SCALE, _BODY_RADIUS, _MARK_SPACING = 300, 400.0, 0.06, 0.1


class DroneTakeOff(TaskEnv):
    """Fly up and stay level; reward `v_z - tilt_weight (|roll| + |pitch|)` of the next state.

    Observation: position 0-2, roll, pitch, yaw 3-5, velocity 6-8, angular velocity 9-11, world frame, SI units, nothing
    normalised. Action: four motors in [-1, 1], `rpm = hover (1 + rpm_band actuation a)`. There is no ground and no
    noise at the start; episodes are truncated at the horizon and never terminate.

    Args:
        config: all numbers; None takes the paper's.
        backend: `pybullet`, `gym_pybullet_drones` or `vector` (numpy); one physics.
        render_mode: `rgb_array` or None.

    Attributes:
        actuation: factor on the motors' deviation from hover, one number or one per motor; can be set at any time.
        physics: the batched twin of this environment.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 80}  # noqa: RUF012
    title = "the drone"
    settings = (*(field.name for field in dataclasses.fields(TakeOffConfig)), "backend")
    angle_columns = (3, 4, 5)

    def __init__(
        self, config: TakeOffConfig | None = None, backend: str = "pybullet", render_mode: str | None = None
    ) -> None:
        self.config = TakeOffConfig() if config is None else config
        super().__init__(DronePhysics(self.config), render_mode)
        self.backend = backend
        self._drone = make_backend(backend, self.config)
        self._obs = self._drone.reset()

    def reward_fn(self, act: torch.Tensor, next_obs: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - mbrl-lib's signature
        """Return the rewards `B 1` of the next observations `B 12`, for mbrl-lib."""
        tilt = next_obs[..., 3:5].abs().sum(-1, keepdim=True)
        return next_obs[..., 8:9] - self.config.tilt_weight * tilt

    def episode_scores(self, obs: FloatArray) -> dict[str, float]:
        """Return the mean and the largest |roll| + |pitch| in rad, and the height gained in m."""
        tilt = np.abs(obs[1:, 3:5]).sum(-1)
        return {"tilt_mean": float(tilt.mean()), "tilt_max": float(tilt.max()), "height": float(obs[-1, 2] - obs[0, 2])}

    @classmethod
    def _build(cls, settings: dict[str, Any], render_mode: str | None) -> DroneTakeOff:
        numbers = {name: value for name, value in settings.items() if name != "backend"}
        return cls(TakeOffConfig(**numbers), settings.get("backend", "pybullet"), render_mode)

    def _start(self, options: Mapping[str, Any]) -> FloatArray:  # noqa: ARG002 - there is nothing to choose
        self._obs = self._drone.reset()
        return self._obs.copy()

    def _advance(self, act: FloatArray) -> FloatArray:
        """Hold the motor speeds of an action for one control step."""
        obs = self._drone.step(act, self.actuation)
        obs[3:6] = continue_angles(self.config, self._obs[3:6], obs[3:6])
        self._obs = obs
        return obs.copy()

    def _picture(self) -> rendering.Frame:
        """Draw the drone from the side (x to the right) and from behind (y to the left); the view follows it."""
        side = self._panel(axis=0, sign=1.0, words="side")
        behind = self._panel(axis=1, sign=-1.0, words="behind")
        return np.concatenate([side, behind], axis=1)

    def close(self) -> None:
        """Free the simulator."""
        self._drone.close()

    def _panel(self, axis: int, sign: float, words: str) -> rendering.Frame:
        """Draw the projection on one horizontal world axis and the height."""
        place = np.array([sign * self._obs[axis], self._obs[2]])
        canvas = rendering.Canvas(_PANEL_SIZE, _PANEL_SIZE, (float(place[0]), float(place[1])), _VIEW_SCALE)
        reach = 0.5 * _PANEL_SIZE / _VIEW_SCALE
        lowest, highest = (int(np.ceil((place[1] + end) / _MARK_SPACING)) for end in (-reach, reach))
        for mark in range(lowest, highest):
            height = mark * _MARK_SPACING
            canvas.line([(place[0] - reach, height), (place[0] + reach, height)], rendering.FAINT, 1.0)
            canvas.text((place[0] - 0.85 * reach, height), f"{height:.1f} m")
        axes = _body_axes(self._obs[3:6])
        across, up = (np.array([sign * column[axis], column[2]]) for column in (axes[:, axis], axes[:, 2]))
        canvas.line([place - _BODY_RADIUS * across, place + _BODY_RADIUS * across], rendering.INK, 6.0)
        for end in (-1.0, 1.0):
            canvas.circle(place + end * _BODY_RADIUS * across, 0.012, rendering.ACCENT)
        canvas.arrow(place, place + 0.08 * up, rendering.ACCENT)
        canvas.text((place[0], place[1] + 0.95 * reach), words)
        return canvas.frame()


make_drone = DroneTakeOff.make


def _body_axes(euler: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation matrix of roll, pitch, yaw; its columns are the body's axes in the world."""
    (cr, cp, cy), (sr, sp, sy) = np.cos(euler), np.sin(euler)
    return np.array(
        [
            [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
            [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
            [-sp, cp * sr, cp * cr],
        ]
    )
