"""What the tasks share: spaces, clipping, the horizon, mbrl-lib's functions, and the C-MDP that is made of a task."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from mbrl_hdp.envs.batch import BatchPhysics
from mbrl_hdp.envs.chains import Chain, chain_from_config
from mbrl_hdp.envs.rendering import Frame
from mbrl_hdp.envs.switching import Context, SwitchingContext, contexts_from_config
from mbrl_hdp.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import torch

FloatArray = NDArray[np.float64]


class TaskEnv(gymnasium.Env[FloatArray, NDArray[np.float32]]):
    """A single episode of a task; it is truncated at the horizon and never terminates.

    Args:
        physics: the batched twin of this environment; also its reward.
        render_mode: `rgb_array` or None.

    Attributes:
        title: name of the task in messages.
        settings: what `make` accepts besides contexts and chain.
        context_parameters: attributes that a context may set.
        angle_columns: observation columns that are angles; policies see their sine and cosine.
        actuation: factor on the action (on one part of it in some tasks); can be set at any time.
    """

    title: ClassVar[str]
    settings: ClassVar[Collection[str]]
    context_parameters: ClassVar[Sequence[str]] = ("actuation",)
    angle_columns: ClassVar[tuple[int, ...]] = ()

    def __init__(self, physics: BatchPhysics, render_mode: str | None) -> None:
        self.physics: BatchPhysics = physics
        self.render_mode = render_mode
        self.actuation: Any = 1.0
        self.observation_space = Box(-np.inf, np.inf, (physics.obs_dim,), np.float64)
        self.action_space = Box(-1.0, 1.0, (physics.act_dim,), np.float32)
        self._num_steps = 0

    @property
    def dt(self) -> float:
        """Seconds per control step."""
        return self.physics.dt

    @property
    def horizon(self) -> int:
        """Control steps per episode."""
        return self.physics.horizon

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Start an episode; cart-pole takes `options={"state": (x, v, theta, omega)}`, the others take none."""
        super().reset(seed=seed)
        self._num_steps = 0
        obs = self._start(options or {})
        return obs, self._info()

    def step(self, action: NDArray[np.float32]) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        """Apply the clipped action for one control step."""
        act = np.asarray(action, dtype=np.float64).reshape(self.physics.act_dim)
        act = np.minimum(np.maximum(act, -1.0), 1.0)  # a third of the time of np.clip
        obs = self._advance(act)
        self._num_steps += 1
        reward = float(self.physics.reward(act[None], obs[None])[0])
        return obs, reward, False, self._num_steps >= self.horizon, self._info()

    @abstractmethod
    def reward_fn(self, act: torch.Tensor, next_obs: torch.Tensor) -> torch.Tensor:
        """Return the rewards `B 1` of actions `B A` and next observations `B S`, for mbrl-lib."""

    @staticmethod
    def termination_fn(act: torch.Tensor, next_obs: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - mbrl-lib's signature
        """Return `B 1` of False: nothing terminates."""
        import torch

        return torch.zeros_like(next_obs[..., :1], dtype=torch.bool)

    def episode_scores(self, obs: FloatArray) -> dict[str, float]:  # noqa: ARG002 - a task may have none
        """Return what the return of an episode with observations `L+1 S` does not say, by name."""
        return {}

    def render(self) -> Frame | None:
        """Draw the present state; None without a render mode."""
        return None if self.render_mode is None else self._picture()

    @classmethod
    def make(
        cls,
        *,
        actuation: float | Sequence[float] | Sequence[Sequence[float]] | None = None,
        contexts: Sequence[Context | Mapping[str, Any]] | None = None,
        switch: float = 0.2,
        cool_off: int = 5,
        counter_at_reset: str | int = "full",
        chain: Chain | Mapping[str, Any] | None = None,
        render_mode: str | None = None,
        **settings: Any,
    ) -> SwitchingContext:
        """Build the task as a C-MDP (the function behind `gymnasium.make("mbrl_hdp/...")`).

        Args:
            actuation: one context per factor on the action; default (1, -1), the paper's hard failure. On the drone a
                factor may be a list, one per motor.
            contexts: instead of `actuation`: the values that each context sets, e.g. `{"actuation": 0.5}`, on
                cart-pole also `{"gravity": 50.0, "cart_mass": 5.0}`.
            switch: switch probability after the cool-off, to each other context alike.
            cool_off: smallest number of steps that a context acts.
            counter_at_reset: `full`, `empty` or a number of steps, see `Chain`.
            chain: another chain: a `Chain`, or a mapping such as `{"kind": "ring", "stay": 0.6}` (`chain_from_config`).
            render_mode: `rgb_array` or None.
            **settings: any setting of the task: a field of `CartPolePhysics` but `actuation`, of `TakeOffConfig` or of
                `IntersectionConfig`; also `backend` on the drone (`pybullet`, `gym_pybullet_drones`, `vector`) and the
                intersection (`highway_env`, `vector`).

        Raises:
            ConfigError: for an unknown setting, context parameter, chain or backend.
        """
        for name in settings:
            if name not in cls.settings:
                raise ConfigError(f"{cls.title} has no setting {name!r}; {did_you_mean(name, cls.settings)}")
        chosen = contexts_from_config(actuation, contexts, cls.context_parameters)
        cls._check_contexts(chosen)
        how = chain_from_config(len(chosen), chain, switch=switch, cool_off=cool_off, counter_at_reset=counter_at_reset)
        return SwitchingContext(cls._build(settings, render_mode), chosen, how)

    @classmethod
    @abstractmethod
    def _build(cls, settings: dict[str, Any], render_mode: str | None) -> Self:
        """Build the environment from checked settings."""

    @classmethod
    def _check_contexts(cls, contexts: Sequence[Context]) -> None:
        """Raise if the task cannot take one of the contexts."""

    @abstractmethod
    def _start(self, options: Mapping[str, Any]) -> FloatArray:
        """Return the first observation of an episode."""

    @abstractmethod
    def _advance(self, act: FloatArray) -> FloatArray:
        """Apply an action inside the bounds; return the next observation."""

    @abstractmethod
    def _picture(self) -> Frame:
        """Draw the present state."""

    def _info(self) -> dict[str, Any]:
        """Return what gymnasium's `info` reports besides the contexts."""
        return {}
