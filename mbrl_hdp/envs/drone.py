"""Drone take-off with hidden actuator failures: fly up while staying level."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from mbrl_hdp.envs import rendering
from mbrl_hdp.envs.chains import Chain, chain_from_config
from mbrl_hdp.envs.drone_backends import make_backend
from mbrl_hdp.envs.drone_physics import ACT_DIM, OBS_DIM, DronePhysics, TakeOffConfig, continue_angles
from mbrl_hdp.envs.switching import Context, SwitchingContext, contexts_from_config
from mbrl_hdp.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import torch

CONTEXT_PARAMETERS = ("actuation",)
_PANEL_SIZE, _VIEW_SCALE, _BODY_RADIUS, _MARK_SPACING = 300, 400.0, 0.06, 0.1


class DroneTakeOff(gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]):
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
    angle_columns = (3, 4, 5)  # policies see the sine and cosine of these columns

    def __init__(
        self, config: TakeOffConfig | None = None, backend: str = "pybullet", render_mode: str | None = None
    ) -> None:
        self.config = TakeOffConfig() if config is None else config
        self.physics = DronePhysics(self.config)
        self.backend = backend
        self.render_mode = render_mode
        self.actuation: float | Sequence[float] = 1.0
        self.observation_space = Box(-np.inf, np.inf, (OBS_DIM,), np.float64)
        self.action_space = Box(-1.0, 1.0, (ACT_DIM,), np.float32)
        self._drone = make_backend(backend, self.config)
        self._obs = self._drone.reset()
        self._num_steps = 0

    @property
    def dt(self) -> float:
        """Seconds per control step."""
        return self.physics.dt

    @property
    def horizon(self) -> int:
        """Control steps per episode."""
        return self.config.horizon

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002 - there is nothing to choose
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Put the drone back to its start, level and at rest."""
        super().reset(seed=seed)
        self._obs = self._drone.reset()
        self._num_steps = 0
        return self._obs.copy(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Hold the motor speeds of the clipped action for one control step."""
        act = np.clip(np.asarray(action, dtype=np.float64).reshape(ACT_DIM), -1.0, 1.0)
        obs = self._drone.step(act, self.actuation)
        obs[3:6] = continue_angles(self.config, self._obs[3:6], obs[3:6])
        self._obs = obs
        self._num_steps += 1
        reward = float(self.physics.reward(act[None], obs[None])[0])
        return obs.copy(), reward, False, self._num_steps >= self.horizon, {}

    def reward_fn(self, act: torch.Tensor, next_obs: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - mbrl-lib's signature
        """Return the rewards `B 1` of the next observations `B 12`, for mbrl-lib."""
        tilt = next_obs[..., 3:5].abs().sum(-1, keepdim=True)
        return next_obs[..., 8:9] - self.config.tilt_weight * tilt

    @staticmethod
    def termination_fn(act: torch.Tensor, next_obs: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """Return `B 1` of False: nothing terminates."""
        import torch

        return torch.zeros_like(next_obs[..., :1], dtype=torch.bool)

    def render(self) -> rendering.Frame | None:
        """Draw the drone from the side (x to the right) and from behind (y to the left); the view follows it."""
        if self.render_mode is None:
            return None
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


def make_drone(
    *,
    actuation: float | Sequence[float] | Sequence[Sequence[float]] | None = None,
    contexts: Sequence[Context | Mapping[str, Any]] | None = None,
    switch: float = 0.2,
    cool_off: int = 5,
    counter_at_reset: str | int = "full",
    chain: Chain | Mapping[str, Any] | None = None,
    backend: str = "pybullet",
    render_mode: str | None = None,
    **numbers: Any,
) -> SwitchingContext:
    """Build drone take-off as a C-MDP (entry point of `mbrl_hdp/DroneTakeOff-v0`).

    Args:
        actuation: one context per factor on the motors (a number, or one per motor); default (1, -1).
        contexts: instead of `actuation`: what each context sets, e.g. `{"actuation": [1.0, 1.0, 0.2, 1.0]}`.
        switch: switch probability after the cool-off, to each other context alike.
        cool_off: steps that a context acts at least.
        counter_at_reset: `full`, `empty` or a number of steps, see `Chain`.
        chain: another chain: a `Chain`, or a mapping such as `{"kind": "ring", "stay": 0.6}` (`chain_from_config`).
        backend: `pybullet`, `gym_pybullet_drones` or `vector`.
        render_mode: `rgb_array` or None.
        **numbers: any field of `TakeOffConfig` (mass, rpm_band, control_rate, horizon, tilt_weight, ...).

    Raises:
        ConfigError: for an unknown number, context parameter, chain or backend.
    """
    known = [field.name for field in dataclasses.fields(TakeOffConfig)]
    for name in numbers:
        if name not in known:
            raise ConfigError(f"the drone has no setting {name!r}; {did_you_mean(name, known)}")
    chosen = contexts_from_config(actuation, contexts, CONTEXT_PARAMETERS)
    law = chain_from_config(len(chosen), chain, switch=switch, cool_off=cool_off, counter_at_reset=counter_at_reset)
    return SwitchingContext(DroneTakeOff(TakeOffConfig(**numbers), backend, render_mode), chosen, law)


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
