"""Cart-pole swing-up with hidden actuator failures, on gym-cartpole-swingup's physics class."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mbrl_hdp.envs import rendering
from mbrl_hdp.envs.batch import BatchPhysics
from mbrl_hdp.envs.switching import read_path, write_path
from mbrl_hdp.envs.task import FloatArray, TaskEnv
from mbrl_hdp.errors import ConfigError

if TYPE_CHECKING:
    import torch

with contextlib.redirect_stderr(io.StringIO()):  # gym says at import that it is no longer maintained
    from gym_cartpole_swingup.envs.cartpole_swingup import (
        CartParams,
        CartPoleSwingUpParams,
        CartPoleSwingUpV0,
        PoleParams,
        State,
    )

_FRAME_WIDTH, _FRAME_HEIGHT, _VIEW_SCALE = 600, 300, 160.0


@dataclass(frozen=True, eq=False)
class CartPolePhysics(BatchPhysics):
    """Batched cart-pole: explicit Euler, all four updates from the old state; theta = 0 is upright.

    Observations are x, v, theta (unwrapped), omega; the reward is cos(theta) of the next state.

    Attributes:
        force: largest force F, N.
        gravity: m/s^2.
        friction: coefficient b between cart and track.
        cart_mass: kg.
        pole_mass: kg.
        pole_length: m.
        actuation: factor on the force (the paper's chi).
        dt: seconds per step.
        horizon: steps per episode.
        start_mean: mean of the first state.
        start_std: its standard deviation, one number or four.
    """

    obs_dim: ClassVar[int] = 4
    act_dim: ClassVar[int] = 1
    force: float = 20.0
    gravity: float = 9.82
    friction: float = 0.1
    cart_mass: float = 0.5
    pole_mass: float = 0.5
    pole_length: float = 0.6
    actuation: float = 1.0
    dt: float = 0.04
    horizon: int = 100
    start_mean: Sequence[float] = (0.0, 0.0, float(np.pi), 0.0)
    start_std: float | Sequence[float] = 0.2

    def __post_init__(self) -> None:
        for name in ("cart_mass", "pole_mass", "pole_length", "dt", "horizon"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        if np.shape(self.start_mean) != (4,) or np.shape(self.start_std) not in ((), (4,)):
            raise ConfigError("start_mean must hold four numbers (x, v, theta, omega), start_std one or four")

    @cached_property
    def defaults(self) -> Mapping[str, float]:
        """Every parameter that a context may set."""
        return {name: getattr(self, name) for name in CONTEXT_PARAMETERS}

    def start(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Draw `num` first states, `num 4`."""
        return rng.normal(self.start_mean, self.start_std, (num, 4))

    def observe(self, state: FloatArray) -> FloatArray:
        """Return x, v, theta, omega, `B 4`."""
        return state.copy()

    def step(self, state: FloatArray, act: FloatArray, params: Mapping[str, FloatArray]) -> FloatArray:
        """Return the states `B 4` after one step; `act` is `B 1`, parameters are `B`."""
        change = np.empty_like(state)
        change[:, 0::2] = state[:, 1::2]
        accelerations = self._accelerations(state.T, act[:, 0], {**self.defaults, **params})
        change[:, 1], change[:, 3] = accelerations
        change *= self.dt
        change += state
        return change

    def reward(self, act: FloatArray, next_obs: FloatArray) -> FloatArray:  # noqa: ARG002
        """Return cos(theta) of the next state, `B`."""
        return np.cos(next_obs[:, 2])

    @staticmethod
    def _accelerations(state: FloatArray, act: FloatArray, values: Mapping[str, Any]) -> tuple[FloatArray, FloatArray]:
        """Return x'' and theta'' of a cart that carries an un-actuated rod; `state` is `4 B`, all else `B` or a number.

        M = m_c + m_p, f = actuation F a - b v:
        (4 M - 3 m_p cos^2) x''       = -2 m_p l w^2 sin     + 3 m_p g sin cos + 4 f
        (4 M - 3 m_p cos^2) l theta'' = -3 m_p l w^2 sin cos + 6 M g sin       + 6 f cos
        """
        _, velocity, angle, rate = state
        pole_mass, gravity = values["pole_mass"], values["gravity"]
        total_mass = values["cart_mass"] + pole_mass
        sin, cos = np.sin(angle), np.cos(angle)
        push = values["actuation"] * values["force"] * act - values["friction"] * velocity
        push -= (0.5 * pole_mass * values["pole_length"]) * rate * rate * sin
        weight = gravity * sin
        inertia = 4.0 * total_mass - (3.0 * pole_mass) * cos * cos
        cart = (4.0 * push + (3.0 * pole_mass) * weight * cos) / inertia
        pole = 6.0 * (push * cos + total_mass * weight) / (values["pole_length"] * inertia)
        return cart, pole


CONTEXT_PARAMETERS = ("actuation", "force", "gravity", "friction", "cart_mass", "pole_mass", "pole_length")
_PATHS = {
    "force": "params.forcemag",
    "gravity": "params.gravity",
    "friction": "params.friction",
    "cart_mass": "params.cart.mass",
    "pole_mass": "params.pole.mass",
    "pole_length": "params.pole.length",
}


class _CoreParameter:
    """An attribute of the environment that lives in the physics class's parameters."""

    def __init__(self, name: str) -> None:
        self.path = _PATHS[name]

    def __get__(self, env: CartPoleSwingUp | None, owner: type) -> Any:
        return self if env is None else read_path(env.core, self.path)

    def __set__(self, env: CartPoleSwingUp, value: float) -> None:
        write_path(env.core, self.path, float(value))


class CartPoleSwingUp(TaskEnv):
    """Swing a pole up from hanging and keep it there; observation x, v, theta, omega, reward cos(theta).

    The physics is gym-cartpole-swingup's; `force`, `gravity`, `friction`, `cart_mass`, `pole_mass`, `pole_length` and
    `actuation` can be set at any time. Episodes are truncated at the horizon and never terminate: good controllers let
    the cart run far.

    Args:
        physics: all numbers; None takes the paper's. Also the batched twin of this environment.
        render_mode: `rgb_array` or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012
    physics: CartPolePhysics
    title = "cart-pole"
    settings = tuple(field.name for field in dataclasses.fields(CartPolePhysics) if field.name != "actuation")
    context_parameters = CONTEXT_PARAMETERS
    angle_columns = (2,)
    force = _CoreParameter("force")
    gravity = _CoreParameter("gravity")
    friction = _CoreParameter("friction")
    cart_mass = _CoreParameter("cart_mass")
    pole_mass = _CoreParameter("pole_mass")
    pole_length = _CoreParameter("pole_length")

    def __init__(self, physics: CartPolePhysics | None = None, render_mode: str | None = None) -> None:
        physics = CartPolePhysics() if physics is None else physics
        super().__init__(physics, render_mode)
        self.actuation = physics.actuation
        self.core = _core(physics)
        self._last_force = 0.0

    def reward_fn(self, act: torch.Tensor, next_obs: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - mbrl-lib's signature
        """Return the rewards `B 1` of the next observations `B 4`, for mbrl-lib."""
        return next_obs[..., 2:3].cos()

    @classmethod
    def _build(cls, settings: dict[str, Any], render_mode: str | None) -> CartPoleSwingUp:
        return cls(CartPolePhysics(**settings), render_mode)

    def _start(self, options: Mapping[str, Any]) -> FloatArray:
        start, chosen = self.physics.start(1, self.np_random)[0], options.get("state")
        self.core.state = State(*(float(value) for value in (start if chosen is None else chosen)))
        self._last_force = 0.0
        return self._obs()

    def _advance(self, act: FloatArray) -> FloatArray:
        """Apply the action times `actuation` for one step of explicit Euler."""
        applied = self.actuation * float(act[0])
        self.core.state = self.core._transition_fn(self.core.state, (applied,))
        self._last_force = applied * self.core.params.forcemag
        return self._obs()

    def _picture(self) -> rendering.Frame:
        """Draw cart, pole and the force that acted; the view follows the cart."""
        x, _, angle, _ = self.core.state
        canvas = rendering.Canvas(_FRAME_WIDTH, _FRAME_HEIGHT, (x, 0.0), _VIEW_SCALE)
        reach = 0.5 * _FRAME_WIDTH / _VIEW_SCALE
        canvas.line([(x - reach, -0.1), (x + reach, -0.1)], rendering.INK, 1.5)
        for mark in range(int(np.ceil(x - reach)), int(np.floor(x + reach)) + 1):
            canvas.line([(mark, -0.1), (mark, -0.16)], rendering.INK, 1.5)
            canvas.text((mark, -0.18), f"{mark} m")
        tip = (x - self.pole_length * np.sin(angle), self.pole_length * np.cos(angle))
        canvas.box((x, 0.0), self.core.params.cart.width, self.core.params.cart.height, color=rendering.INK)
        canvas.line([(x, 0.0), tip], rendering.ACCENT, 5.0)
        canvas.circle((x, 0.0), 0.03, rendering.PAPER)
        canvas.circle(tip, 0.045, rendering.ACCENT)
        canvas.arrow((x, -0.4), (x + 0.05 * self._last_force, -0.4), (0, 114, 178))
        return canvas.frame()

    def _obs(self) -> FloatArray:
        return np.array(self.core.state, dtype=np.float64)


make_cartpole = CartPoleSwingUp.make


def _core(physics: CartPolePhysics) -> Any:
    core = CartPoleSwingUpV0()
    core.params = CartPoleSwingUpParams(
        gravity=physics.gravity,
        forcemag=physics.force,
        deltat=physics.dt,
        friction=physics.friction,
        cart=CartParams(mass=physics.cart_mass),
        pole=PoleParams(mass=physics.pole_mass, length=physics.pole_length),
    )
    return core
