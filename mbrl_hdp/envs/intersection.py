"""Left turn at an intersection behind a social car, with hidden steering failures, on highway-env."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mbrl_hdp.envs import intersection_road as road
from mbrl_hdp.envs import rendering
from mbrl_hdp.envs.intersection_physics import IntersectionPhysics
from mbrl_hdp.envs.intersection_road import FloatArray
from mbrl_hdp.envs.intersection_vehicle import (
    CAR_LENGTH,
    CAR_WIDTH,
    IntersectionConfig,
    cars_overlap,
    center_distance,
    observation,
    observed_overlap,
)
from mbrl_hdp.envs.switching import Context
from mbrl_hdp.envs.task import TaskEnv
from mbrl_hdp.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import torch

_FRAME_WIDTH, _FRAME_HEIGHT, _VIEW_SCALE = 640, 340, 12.0
_ASPHALT, _SOCIAL = (232, 234, 238), (90, 110, 140)


class IntersectionBackend(Protocol):
    """One ego and one social car that can be put back to their starts and stepped; poses are x, y, heading, speed."""

    def reset(self) -> tuple[FloatArray, FloatArray]:
        """Return both poses at the start."""

    def step(self, act: FloatArray, actuation: float) -> tuple[FloatArray, FloatArray]:
        """Apply an action for one step; return both poses."""


class VectorCarsBackend:
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
    "vector": VectorCarsBackend,
}


class IntersectionLeftTurn(TaskEnv):
    """Turn left into the western exit, which a social car enters just before.

    Observation: x, y, vx, vy, cos h, sin h of the ego 0-5 and of the social car 6-11: absolute, SI units, y points
    south, never zeroed. Action: acceleration (times 5 m/s^2) and steering (times pi/4 and `actuation`) in [-1, 1], in
    this order. Reward of the next state: `5 exp(-|y + 2| / 8) + exp(-|1 + cos h|) + 0.1 |v| / 70 - 0.05 steer^2`,
    and `- collision_cost` where the cars overlap (0 by default: the paper's reward does not see the other car).

    `info["crashed"]` is whether the cars have overlapped since the start, `info["distance"]` the closest that their
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
    title = "the intersection"
    settings = (*(field.name for field in dataclasses.fields(IntersectionConfig)), "backend")

    def __init__(
        self, config: IntersectionConfig | None = None, backend: str = "highway_env", render_mode: str | None = None
    ) -> None:
        if backend not in BACKENDS:
            raise ConfigError(
                f"backend={backend!r} is not a backend of the intersection; {did_you_mean(backend, BACKENDS)}"
            )
        self.config = IntersectionConfig() if config is None else config
        super().__init__(IntersectionPhysics(self.config), render_mode)
        self.backend = backend
        self._cars = BACKENDS[backend](self.config)
        self._ego, self._social = self._cars.reset()
        self._is_crashed, self._closest = False, np.inf

    def reward_fn(self, act: torch.Tensor, next_obs: torch.Tensor) -> torch.Tensor:
        """Return the rewards `B 1` of actions `B 2` and next observations `B 12`, for mbrl-lib."""
        config = self.config
        lane = config.lane_weight * (-(next_obs[..., 1:2] - config.goal_y).abs() / config.lane_scale).exp()
        heading = config.heading_weight * (-(1.0 + next_obs[..., 4:5]).abs()).exp()
        speed = config.speed_weight / config.speed_scale * next_obs[..., 2:4].norm(dim=-1, keepdim=True)
        reward = lane + heading + speed - config.steering_weight * act[..., 1:2] ** 2
        if config.collision_cost:
            reward = reward - config.collision_cost * observed_overlap(next_obs)[..., None]
        return reward

    def episode_scores(self, obs: FloatArray) -> dict[str, float]:
        """Return the errors in the second half of the episode, when the turn is over, and how near the cars came.

        `lane_error`: mean |y - goal_y| in m; `heading_error`: mean angle from due west in rad; `closest`: smallest
        distance of the centres in m; `collision`: 1 if the cars overlapped at any step.
        """
        late = obs[len(obs) // 2 :]
        return {
            "lane_error": float(np.abs(late[:, 1] - self.config.goal_y).mean()),
            "heading_error": float(np.abs(np.arctan2(late[:, 5], -late[:, 4])).mean()),
            "closest": float(np.hypot(*(obs[:, 6:8] - obs[:, :2]).T).min()),
            "collision": float(observed_overlap(obs).any()),
        }

    @classmethod
    def _build(cls, settings: dict[str, Any], render_mode: str | None) -> IntersectionLeftTurn:
        numbers = {name: value for name, value in settings.items() if name != "backend"}
        return cls(IntersectionConfig(**numbers), settings.get("backend", "highway_env"), render_mode)

    @classmethod
    def _check_contexts(cls, contexts: Sequence[Context]) -> None:
        for index, context in enumerate(contexts):
            if np.ndim(context.attributes.get("actuation", 1.0)):
                raise ConfigError(f"actuation[{index}] must be one number, the factor on the steering")

    def _start(self, options: Mapping[str, Any]) -> FloatArray:  # noqa: ARG002 - there is nothing to choose
        self._ego, self._social = self._cars.reset()
        self._is_crashed, self._closest = False, np.inf
        return self._obs()

    def _advance(self, act: FloatArray) -> FloatArray:
        self._ego, self._social = self._cars.step(act, self.actuation)
        return self._obs()

    def _picture(self) -> rendering.Frame:
        """Draw the crossing from above, north at the top, the ego in red; the view follows it."""
        middle = float(self._ego[0]), -float(self._ego[1])
        canvas = rendering.Canvas(_FRAME_WIDTH, _FRAME_HEIGHT, middle, _VIEW_SCALE)
        _draw_lanes(canvas)
        for pose, color in ((self._social, _SOCIAL), (self._ego, rendering.ACCENT)):
            place, heading = np.array([pose[0], -pose[1]]), -float(pose[2])
            canvas.box(place, CAR_LENGTH, CAR_WIDTH, heading, color)
            front = place + 0.3 * CAR_LENGTH * np.array([np.cos(heading), np.sin(heading)])
            canvas.circle(front, 0.5, rendering.PAPER)
        return canvas.frame()

    def _obs(self) -> FloatArray:
        return observation(self._ego[None], self._social[None])[0]

    def _info(self) -> dict[str, Any]:
        ego, social = self._ego[None], self._social[None]
        self._is_crashed = self._is_crashed or bool(cars_overlap(ego, social)[0])
        self._closest = min(self._closest, float(center_distance(ego, social)[0]))
        return {"crashed": self._is_crashed, "distance": self._closest}


make_intersection = IntersectionLeftTurn.make


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
