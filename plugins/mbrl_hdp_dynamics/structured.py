"""What the built-in structures share: scaled features, K heads, learned Gaussian noise, a step that knows the physics.

next_obs = advance(obs, change), change ~ N(unscale(head_k(scale(features(obs, act)))), scale^2 std_k^2). A structure
says what its features, its targets (the observed change) and its `advance` are; everything else is here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mbrl_hdp.errors import ConfigError, DataError
from mbrl_hdp.inference.density_table import DensityTable
from mbrl_hdp.inference.dynamics import Act, Obs, Paths, Rollout, Slots
from mbrl_hdp.inference.heads import DEFAULT_SKIP_SHARE, ContextHeads
from mbrl_hdp.settings import setting
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.density import network_table
from mbrl_hdp_dynamics.layout import StepLayout
from mbrl_hdp_dynamics.scaler import ColumnScaler
from mbrl_hdp_dynamics.steps import NoiseSource, SteppedDynamics

_LOG_2PI = math.log(2.0 * math.pi)
# Standard deviation of the log noise std of heads that start near a shared one.
_NOISE_SPREAD = 0.3


@dataclass
class HeadsConfig:
    """Settings that every structure with networks has."""

    hidden_sizes: list[int] = setting(
        [128], "units of the hidden ReLU layers of every context's network", at_least=1, at_most=16_384
    )
    weight_std: float = setting(0.1, "standard deviation of the Gaussian prior on weights and biases", above=0.0)
    init_std: float = setting(0.1, "standard deviation of the starting weights and biases", above=0.0)
    std_floor: float = setting(
        0.1,
        "smallest noise std while contexts are separated, in units of the target's spread: contexts whose effects "
        "differ by less are one",
        at_least=0.0,
        below=1.0,
    )
    final_std_floor: float = setting(5e-3, "smallest noise std once the contexts are settled", at_least=0.0, below=1.0)
    skip_share: float = setting(
        DEFAULT_SKIP_SHARE,
        "share of all contributions to a gradient that may be left out for speed (single precision); 0 is exact",
        at_least=0.0,
        below=1.0,
    )


@dataclass
class KinematicConfig(HeadsConfig):
    """Settings of models that integrate velocities."""

    dt: float | None = setting(None, "seconds per step; null takes the task's", above=0.0)


class StructuredDynamics(SteppedDynamics):
    """Per-context networks on scaled features, with a learned noise std per context and target.

    The noise is std^2 = floor^2 + exp(2 raw_log_std), in units of the targets' spread; it starts at 1.

    Attributes:
        heads: the K networks.
        raw_log_std: noise parameters, `K O`.
        std_floor: smallest noise std that is allowed now.
        input_scaler: centre and scale of the features.
        target_scaler: centre and scale of the targets.
    """

    std_floor: Tensor

    def __init__(self, task: TaskSpec, num_inputs: int, num_targets: int, config: HeadsConfig) -> None:
        super().__init__(task.max_contexts, task.obs_dim, task.act_dim)
        self.config = config
        self.heads = ContextHeads(task.max_contexts, num_inputs, num_targets, config.hidden_sizes)
        self.raw_log_std = nn.Parameter(torch.zeros(task.max_contexts, num_targets))
        self.input_scaler = ColumnScaler(num_inputs)
        self.target_scaler = ColumnScaler(num_targets)
        self.register_buffer("std_floor", torch.tensor(config.std_floor))
        self._reset(torch.arange(task.max_contexts), torch.Generator().manual_seed(task.seed))

    @abstractmethod
    def features(self, obs: Float[Tensor, "*batch S"], act: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch I"]:
        """Return what the networks see, in the data's units."""

    @abstractmethod
    def targets(self, obs: Obs, next_obs: Obs) -> Float[Tensor, "batch O"]:
        """Return the observed change that the networks predict."""

    @abstractmethod
    def advance(self, obs: Float[Tensor, "*batch S"], change: Float[Tensor, "*batch O"]) -> Float[Tensor, "*batch S"]:
        """Return the next observation from the predicted change."""

    def log_prob(self, obs: Obs, act: Act, next_obs: Obs) -> Float[Tensor, "batch K"]:
        """Return log p(next_obs | obs, act, context=k) for every k, in the data's own units.

        Raises:
            DataError: on rows of the wrong width.
        """
        self._check_rows(obs, act, next_obs)
        return self._log_density(*self._density_rows(obs, act, next_obs))

    def log_prob_slots(self, obs: Obs, act: Act, next_obs: Obs, slots: Slots) -> Float[Tensor, "batch n"]:
        """Return `log_prob` of some contexts only; the others' networks do not run.

        Raises:
            DataError: on rows of the wrong width.
        """
        self._check_rows(obs, act, next_obs)
        return self._log_density(*self._density_rows(obs, act, next_obs), slots)

    def log_prob_seen(
        self, obs: Obs, act: Act, next_obs: Obs, slots: Slots | None = None
    ) -> Float[Tensor, "batch n"] | None:
        """Return the density of the targets that are not NaN: independent ones integrate to 1, so they drop out.

        None where a structure has a density of its own (a full covariance, several cars).
        """
        if type(self)._log_density is not StructuredDynamics._log_density:
            return None
        self._check_rows(obs, act, next_obs)
        features, targets = self._density_rows(obs, act, next_obs)
        patterns, pattern_of = targets.isfinite().unique(dim=0, return_inverse=True)
        num_slots = self.max_contexts if slots is None else len(slots)
        log_density = self.raw_log_std.new_zeros(len(targets), num_slots)
        for number, is_seen in enumerate(patterns):
            rows = (pattern_of == number).nonzero().squeeze(-1)
            has_density = is_seen & (self.target_scaler.scale > 0)
            part = self._density_of(features[rows], targets[rows].nan_to_num(), slots, has_density)
            log_density = log_density.index_put((rows,), part)
        return log_density

    def density_table(self, slots: Slots) -> DensityTable | None:
        """Return the density as arrays where the features can be described by a layout."""
        layout = self.layout()
        return None if layout is None else network_table(self, layout, slots)

    def layout(self) -> StepLayout | None:
        """Return `features` and `advance` as tables for a compiled rollout; None where they cannot be so described."""
        return None

    def begin_rollout(
        self, obs: Float[Tensor, " S"], paths: Paths, generator: torch.Generator | None = None
    ) -> Rollout:
        """Return a compiled rollout where there is one; plans on the same path share their noise.

        Raises:
            DataError: on an observation of the wrong width or a context that does not exist.
        """
        layout = self.layout() if self._is_compiled_for(obs) else None
        if layout is None:
            return super().begin_rollout(obs, paths, generator)
        if len(obs) != self.obs_dim:
            raise DataError(f"obs has {len(obs)} columns, this model was built for obs_dim={self.obs_dim}")
        self.heads.check_contexts(paths)
        noise = None
        if generator is not None:
            scale = self.noise_std()[paths] * self.target_scaler.scale
            noise = torch.randn(*paths.shape, layout.num_bodies, scale.shape[-1], generator=generator)
            noise = (noise * scale[..., None, :]).flatten(-2)
        from mbrl_hdp_dynamics.rollout_kernels import CompiledRollout

        return CompiledRollout(self.heads, layout, self.input_scaler, self.target_scaler, obs, paths, noise)

    def _is_compiled_for(self, obs: Tensor) -> bool:
        """Return whether the kernel can be used: one hidden layer, single precision, CPU, no gradient needed."""
        tensors = obs, self.heads.weights[0]
        return (
            len(self.heads.weights) == 2
            and not torch.is_grad_enabled()
            and all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
        )

    def log_prior(self) -> Float[Tensor, ""]:
        """Return log p(theta): independent N(0, weight_std^2) on all weights and biases; the noise std has none."""
        values = list(self.heads.parameters())
        count = sum(value.numel() for value in values)
        squares = torch.stack([value.square().sum() for value in values]).sum() / self.config.weight_std**2
        return -0.5 * squares - count * (math.log(self.config.weight_std) + 0.5 * _LOG_2PI)

    def set_normaliser(self, obs: Obs, act: Act, next_obs: Obs) -> None:
        """Fix the scales of inputs and targets from data; rows with missing values do not count.

        Raises:
            DataError: on rows of the wrong width, or if no complete row is left.
        """
        self._check_rows(obs, act, next_obs)
        with torch.no_grad():
            features, targets = self._density_rows(obs, act, next_obs)
            is_complete = features.isfinite().all(-1) & targets.isfinite().all(-1)
            self.input_scaler.fit(features[is_complete])
            self.target_scaler.fit(targets[is_complete])

    def reset_slots(self, slots: Slots, generator: torch.Generator | None = None) -> None:
        """Draw fresh weights for the heads in `slots` and set their noise to the targets' spread."""
        self._reset(slots, generator)

    def start_near(self, slot: int, spread: float, generator: torch.Generator | None = None) -> None:
        """Start every head from the one in `slot`, a little off, and with a noise of its own.

        Heads that are sure of different targets do not all compete for the same rows.
        """
        super().start_near(slot, spread, generator)
        with torch.no_grad():
            drawn = torch.randn(self.raw_log_std.shape, generator=generator, dtype=self.raw_log_std.dtype)
            self.raw_log_std.add_(_NOISE_SPREAD * spread * drawn.to(self.raw_log_std.device))

    def noise_std(self) -> Float[Tensor, "K O"]:
        """Return the noise std of every context and target, in units of the target's spread."""
        return (self.std_floor**2 + (2.0 * self.raw_log_std).exp()).sqrt()

    def sharpen(self) -> None:
        """Let the noise fall below the floor that kept one context from being split into several."""
        self.std_floor.fill_(min(self.config.final_std_floor, float(self.std_floor)))

    def _density_rows(self, obs: Tensor, act: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and targets that carry density, a row each."""
        return self.features(obs, act), self.targets(obs, next_obs)

    def _log_density(self, features: Tensor, targets: Tensor, slots: Tensor | None = None) -> Tensor:
        return self._density_of(features, targets, slots, self.target_scaler.scale > 0)

    def _density_of(self, features: Tensor, targets: Tensor, slots: Tensor | None, has_density: Tensor) -> Tensor:
        """Return the log density of the targets that are marked."""
        std = self.noise_std() if slots is None else self.noise_std()[slots]
        inverse_std = torch.where(has_density, 1.0 / std, 0.0)
        inputs, scaled = self.input_scaler(features), self.target_scaler(targets)
        offset = self._log_peak(std, has_density)
        return self.heads.log_density(inputs, scaled, inverse_std, offset, self.config.skip_share, slots)

    def _log_peak(self, std: Tensor, has_density: Tensor) -> Tensor:
        """Return the log density at the mean, in the data's units, over the targets that have a density."""
        log_scale = torch.where(has_density, self.target_scaler.scale, 1.0).log()
        return torch.where(has_density, -std.log() - 0.5 * _LOG_2PI - log_scale, 0.0).sum(-1)

    def _step(self, obs: Tensor, act: Tensor, context: Tensor, noise: NoiseSource | None = None) -> Tensor:
        return self.advance(obs, self._change(self.features(obs, act), context, noise))

    def _change(self, features: Tensor, context: Tensor, noise: NoiseSource | None) -> Tensor:
        """Return the change of every row: its expectation, or a draw if there is noise."""
        inputs = self.input_scaler(features)
        is_blocks = inputs.ndim > 2
        mean = self.heads.block_heads(inputs, context) if is_blocks else self.heads.own_head(inputs, context)
        if noise is not None:
            mean = mean + self._draw_noise(noise.like(mean), context)
        return self.target_scaler.undo(mean)

    def _draw_noise(self, standard: Tensor, context: Tensor) -> Tensor:
        """Turn standard normal numbers (rows, or blocks that share a context) into the contexts' noise."""
        std = self.noise_std()[context]
        return standard * (std[:, None] if standard.ndim > 2 else std)

    def _reset(self, slots: Tensor, generator: torch.Generator | None) -> None:
        with torch.no_grad():
            for value in self.heads.parameters():
                drawn = torch.randn(len(slots), *value.shape[1:], generator=generator, dtype=value.dtype)
                value[slots] = self.config.init_std * drawn.to(value.device)
            self.raw_log_std[slots] = 0.5 * math.log1p(-(float(self.std_floor) ** 2))


def require_dimensions(name: str, task: TaskSpec, obs_dim: int, act_dim: int, layout: str) -> None:
    """Raise if the observations or actions of a task do not fit a structure.

    Raises:
        ConfigError: naming what the structure expects and what the task has.
    """
    if (task.obs_dim, task.act_dim) != (obs_dim, act_dim):
        raise ConfigError(
            f"dynamics={name} expects {layout}: obs_dim {obs_dim} and act_dim {act_dim}; this task has obs_dim "
            f"{task.obs_dim} and act_dim {task.act_dim}. Use dynamics=delta_mlp, which fits any task"
        )


def require_dt(name: str, dt: float | None, task: TaskSpec) -> float:
    """Return the seconds per step: the setting, else the task's.

    Raises:
        ConfigError: if neither says.
    """
    found = task.dt if dt is None else dt
    if found is None:
        raise ConfigError(f"dynamics={name} integrates positions and needs the seconds per step: set dynamics.dt")
    if found <= 0:
        raise ConfigError(f"dynamics.dt must be above 0, got {found:g}")
    return found
