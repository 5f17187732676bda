"""Left turn at an intersection behind a social car, with hidden steering failures, on highway-env."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from mbrl_hdp.envs import intersection_road as road
from mbrl_hdp.envs import rendering
from mbrl_hdp.envs.chains import Chain, chain_from_config
from mbrl_hdp.envs.intersection_physics import ACT_DIM, OBS_DIM, IntersectionPhysics
from mbrl_hdp.envs.intersection_road import FloatArray
from mbrl_hdp.envs.intersection_vehicle import (
    CAR_LENGTH,
    CAR_WIDTH,
    IntersectionConfig,
    cars_overlap,
    center_distance,
    observation,
)
from mbrl_hdp.envs.switching import Context, SwitchingContext, contexts_from_config
from mbrl_hdp.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import torch

CONTEXT_PARAMETERS = ("actuation",)
_FRAME_SIZE, _VIEW_SCALE = 420, 6.0
_ASPHALT, _SOCIAL = (232, 234, 238), (90, 110, 140)


class IntersectionBackend(Protocol):
    """One ego and one social car that can be put back to their starts and stepped; poses are x, y, heading, speed."""

    def reset(self) -> tuple[FloatArray, FloatArray]:
        """Return both poses at the start."""
        ...

    def step(self, act: FloatArray, actuation: float) -> tuple[FloatArray, FloatArray]:
        """Apply an action for one step; return both poses."""
        ...


class VectorBackend:
    """Our own numpy, one episode."""

    def __init__(self, config: IntersectionConfig) -> None:
        self._physics = IntersectionPhysics(config)
        self._state = self._physics.start(1, np.random.default_rng(0))

    def reset(self) -> tuple[FloatArray, FloatArray]:
        """See `IntersectionBackend`."""
        self._state = self._physics.start(1, np.random.default_rng(0))
        return self._state.ego[0], self._state.social[0]

    def step(self, act: FloatArray, actuation: float) -> tuple[FloatArray, FloatArray]:
        """See `IntersectionBackend`."""
        self._state = self._physics.step(self._state, act[None], {"actuation": np.array([actuation])})
        return self._state.ego[0], self._state.social[0]


def _highway_backend(config: IntersectionConfig) -> IntersectionBackend:
    from mbrl_hdp.envs.intersection_highway import HighwayBackend  # imports pygame

    return HighwayBackend(config)


BACKENDS: Mapping[str, Callable[[IntersectionConfig], IntersectionBackend]] = {
    "highway_env": _highway_backend,
    "vector": VectorBackend,
}


class IntersectionLeftTurn(gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]):
    """Turn left into the western exit, which a social car enters just before.

    Observation: x, y, vx, vy, cos h, sin h of the ego 0-5 and of the social car 6-11: absolute, SI units, y points
    south, never zeroed. Action: acceleration (times 5 m/s^2) and steering (times pi/4 and `actuation`) in [-1, 1], in
    this order. Reward of the next state: `5 exp(-|y + 2| / 8) + exp(-|1 + cos h|) + 0.1 |v| / 70 - 0.05 steer^2`.

    `info["crashed"]` tells whether the cars have overlapped since the start, `info["distance"]` the closest that their
    centres have been; neither ends the episode nor moves the cars. There is no noise at the start; episodes are
    truncated at the horizon and never terminate. Beyond the end of its exit road the social car goes straight on.

    Args:
        config: all numbers; None takes the paper's.
        backend: `highway_env` or `vector` (numpy); one physics.
        render_mode: `rgb_array` or None.

    Attributes:
        actuation: factor on the steering; can be set at any time.
        physics: the batched twin of this environment.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self, config: IntersectionConfig | None = None, backend: str = "highway_env", render_mode: str | None = None
    ) -> None:
        if backend not in BACKENDS:
            raise ConfigError(
                f"backend={backend!r} is not a backend of the intersection; {did_you_mean(backend, BACKENDS)}"
            )
        self.config = IntersectionConfig() if config is None else config
        self.physics = IntersectionPhysics(self.config)
        self.backend = backend
        self.render_mode = render_mode
        self.actuation = 1.0
        self.observation_space = Box(-np.inf, np.inf, (OBS_DIM,), np.float64)
        self.action_space = Box(-1.0, 1.0, (ACT_DIM,), np.float32)
        self._cars = BACKENDS[backend](self.config)
        self._ego, self._social = self._cars.reset()
        self._is_crashed, self._closest, self._num_steps = False, np.inf, 0

    @property
    def dt(self) -> float:
        """Seconds per step."""
        return self.config.dt

    @property
    def horizon(self) -> int:
        """Steps per episode."""
        return self.config.horizon

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002 - there is nothing to choose
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Put both cars back to their starts."""
        super().reset(seed=seed)
        self._ego, self._social = self._cars.reset()
        self._is_crashed, self._closest, self._num_steps = False, np.inf, 0
        return self._obs(), self._info()

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Apply the clipped action for one step."""
        act = np.clip(np.asarray(action, dtype=np.float64).reshape(ACT_DIM), -1.0, 1.0)
        self._ego, self._social = self._cars.step(act, self.actuation)
        self._num_steps += 1
        obs = self._obs()
        reward = float(self.physics.reward(act[None], obs[None])[0])
        return obs, reward, False, self._num_steps >= self.horizon, self._info()

    def reward_fn(self, act: torch.Tensor, next_obs: torch.Tensor) -> torch.Tensor:
        """Return the rewards `B 1` of actions `B 2` and next observations `B 12`, for mbrl-lib."""
        config = self.config
        lane = config.lane_weight * (-(next_obs[..., 1:2] - config.goal_y).abs() / config.lane_scale).exp()
        heading = config.heading_weight * (-(1.0 + next_obs[..., 4:5]).abs()).exp()
        speed = config.speed_weight / config.speed_scale * next_obs[..., 2:4].norm(dim=-1, keepdim=True)
        return lane + heading + speed - config.steering_weight * act[..., 1:2] ** 2

    @staticmethod
    def termination_fn(act: torch.Tensor, next_obs: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """Return `B 1` of False: nothing terminates."""
        import torch

        return torch.zeros_like(next_obs[..., :1], dtype=torch.bool)

    def render(self) -> rendering.Frame | None:
        """Draw the crossing from above, north at the top, the ego in red."""
        if self.render_mode is None:
            return None
        canvas = rendering.Canvas(_FRAME_SIZE, _FRAME_SIZE, (0.0, 0.0), _VIEW_SCALE)
        _draw_lanes(canvas)
        for pose, color in ((self._social, _SOCIAL), (self._ego, rendering.ACCENT)):
            place, heading = np.array([pose[0], -pose[1]]), -float(pose[2])
            canvas.box(place, CAR_LENGTH, CAR_WIDTH, heading, color)
            front = place + 0.3 * CAR_LENGTH * np.array([np.cos(heading), np.sin(heading)])
            canvas.circle(front, 0.5, rendering.PAPER)
        return canvas.frame()

    def _obs(self) -> NDArray[np.float64]:
        return observation(self._ego[None], self._social[None])[0]

    def _info(self) -> dict[str, Any]:
        ego, social = self._ego[None], self._social[None]
        self._is_crashed = self._is_crashed or bool(cars_overlap(ego, social)[0])
        self._closest = min(self._closest, float(center_distance(ego, social)[0]))
        return {"crashed": self._is_crashed, "distance": self._closest}


def make_intersection(
    *,
    actuation: float | Sequence[float] | None = None,
    contexts: Sequence[Context | Mapping[str, Any]] | None = None,
    switch: float = 0.2,
    cool_off: int = 5,
    counter_at_reset: str | int = "full",
    chain: Chain | Mapping[str, Any] | None = None,
    backend: str = "highway_env",
    render_mode: str | None = None,
    **numbers: Any,
) -> SwitchingContext:
    """Build the left turn as a C-MDP (entry point of `mbrl_hdp/IntersectionLeftTurn-v0`).

    Args:
        actuation: one context per factor on the steering; default (1, -1).
        contexts: instead of `actuation`: what each context sets, e.g. `{"actuation": 0.5}`.
        switch: switch probability after the cool-off, to each other context alike.
        cool_off: steps that a context acts at least.
        counter_at_reset: `full`, `empty` or a number of steps, see `Chain`.
        chain: another chain: a `Chain`, or a mapping such as `{"kind": "ring", "stay": 0.6}` (`chain_from_config`).
        backend: `highway_env` or `vector`.
        render_mode: `rgb_array` or None.
        **numbers: any field of `IntersectionConfig` (vehicle, dt, horizon, social_from, speed_weight, ...).

    Raises:
        ConfigError: for an unknown number, context parameter, chain or backend.
    """
    known = [field.name for field in dataclasses.fields(IntersectionConfig)]
    for name in numbers:
        if name not in known:
            raise ConfigError(f"the intersection has no setting {name!r}; {did_you_mean(name, known)}")
    chosen = contexts_from_config(actuation, contexts, CONTEXT_PARAMETERS)
    for index, context in enumerate(chosen):
        if np.ndim(context.attributes.get("actuation", 1.0)):
            raise ConfigError(f"actuation[{index}] must be one number, the factor on the steering")
    law = chain_from_config(len(chosen), chain, switch=switch, cool_off=cool_off, counter_at_reset=counter_at_reset)
    return SwitchingContext(IntersectionLeftTurn(IntersectionConfig(**numbers), backend, render_mode), chosen, law)


def _draw_lanes(canvas: rendering.Canvas) -> None:
    """Draw every lane as a grey band and its middle as a thin line, y turned so that north is up."""
    paths = []
    for lane in range(road.NUM_LANES):
        along = np.linspace(0.0, road.LENGTH[lane], 25)
        paths.append(road.lane_position(np.full(25, lane), along) * np.array([1.0, -1.0]))
    for path in paths:
        canvas.line(list(path), _ASPHALT, road.LANE_WIDTH * _VIEW_SCALE)
    for path in paths:
        canvas.line(list(path), rendering.FAINT, 1.0)
