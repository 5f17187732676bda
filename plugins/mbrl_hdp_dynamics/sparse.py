"""`sparse`: heads linear in features chosen from the data, with their Bayesian posterior in closed form.

next_obs - obs = W_k^T phi(obs, act) + noise in scaled units; W_k and the noise variances of context k have a
normal-inverse-gamma posterior, so that the density of a step is a Student t, wider where W_k is known less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mbrl_hdp.errors import DataError
from mbrl_hdp.inference.density_table import DensityTable
from mbrl_hdp.inference.dynamics import Act, Obs, Paths, Rollout, Slots
from mbrl_hdp.inference.search.features import Factor, Term
from mbrl_hdp.inference.terms import read_term
from mbrl_hdp.settings import check_settings, choice, setting
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.density import sparse_table
from mbrl_hdp_dynamics.regression import regress
from mbrl_hdp_dynamics.scaler import ColumnScaler
from mbrl_hdp_dynamics.steps import NoiseSource, SteppedDynamics
from mbrl_hdp_dynamics.term_table import TermTable

NUM_EXAMPLES = 512
_FRESH_STD = 0.1
_FRESH_SHAPE = 50.0
# A head with fewer rows is left as it is.
_LEAST_ROWS = 1.0


@dataclass
class SparseConfig:
    """Settings of `sparse`."""

    terms: list[str] = setting(
        [],
        "features beside the constant and every column of (obs, act), such as x0*x2 or sin(2.0*r1) (x: standardised, "
        "r: own units); empty: chosen from the data",
    )
    std_floor: float = setting(
        2e-3, "smallest noise std, in units of the target's spread: changes that differ by less are the same",
        above=0.0, below=1.0,
    )  # fmt: skip
    noise: str = choice(
        ("normal", "student", "full"),
        "normal; or student: Student t with degrees of freedom from the data, so that spikes do not move the heads; or "
        "full: normal noise that is correlated between the columns",
    )


class SparseDynamics(SteppedDynamics):
    """Student t densities around weighted sums of features, in double precision.

    Attributes:
        table: the features.
        input_scaler: centre and scale of (obs, act).
        term_scaler: centre and scale of the features; the constant's are 0 and 1.
        target_scaler: centre and scale of the changes.
        examples: some inputs in their own units, by which equations are shortened, `NUM_EXAMPLES X`.
        weight: expected weights, `K D S`.
        factor: F in cov(weights of one output) = noise variance * F F^T, `K D D`.
        shape: shape of the noise variances' inverse gamma posterior, half the degrees of freedom, `K`.
        log_variance: log(rate / shape) of that posterior, `K S`.
    """

    examples: Tensor

    def __init__(self, task: TaskSpec, config: SparseConfig) -> None:
        super().__init__(task.max_contexts, task.obs_dim, task.act_dim)
        self.config = config
        num_inputs = task.obs_dim + task.act_dim
        always: list[Term] = [(), *((Factor(column),) for column in range(num_inputs))]
        chosen = [read_term(text, num_inputs) for text in config.terms]
        self.table = TermTable([*always, *dict.fromkeys(term for term in chosen if term not in always)])
        size, count = len(self.table.terms), task.max_contexts
        self.input_scaler, self.target_scaler = ColumnScaler(num_inputs), ColumnScaler(task.obs_dim)
        self.term_scaler = ColumnScaler(size)
        self.register_buffer("examples", torch.zeros(NUM_EXAMPLES, num_inputs))
        self.weight = nn.Parameter(torch.zeros(count, size, task.obs_dim))
        self.factor = nn.Parameter(torch.zeros(count, size, size), requires_grad=False)
        self.shape = nn.Parameter(torch.full((count,), _FRESH_SHAPE), requires_grad=False)
        self.log_variance = nn.Parameter(torch.zeros(count, task.obs_dim))
        self.double()
        self.reset_slots(torch.arange(count), torch.Generator().manual_seed(task.seed))

    def features(self, obs: Float[Tensor, "*batch S"], act: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch D"]:
        """Return the scaled features.

        Raises:
            DataError: on rows of the wrong width.
        """
        self._check_rows(obs, act)
        raw = torch.cat([obs, act], -1).to(self.weight.dtype)
        return self.term_scaler(self.table(raw, self.input_scaler(raw)))

    def noise_variance(self) -> Float[Tensor, "K S"]:
        """Return the noise variance of every context and target, in units of the target's spread."""
        return self.log_variance.exp().clamp_min(self.config.std_floor**2)

    def noise_std(self) -> Float[Tensor, "K S"]:
        """Return the noise std of every context and target, in units of the target's spread."""
        return self.noise_variance().sqrt()

    def half_degrees(self) -> Float[Tensor, "K _"]:
        """Return half the degrees of freedom of a step's density, of every context and target."""
        return self.shape[:, None]

    def colour(self, white: Tensor, context: Tensor) -> Tensor:  # noqa: ARG002
        """Turn independent noise of unit scale, `*context S` or `*context n S`, into the contexts': nothing to do."""
        return white

    def draw_widening(self, paths: Paths, generator: torch.Generator) -> Tensor | float:  # noqa: ARG002
        """Draw for every step of a rollout what multiplies the noise's std: nothing for normal noise."""
        return 1.0

    def log_prob(self, obs: Obs, act: Act, next_obs: Obs) -> Float[Tensor, "batch K"]:
        """Return log p(next_obs | obs, act, context=k) for every k, with the weights' uncertainty integrated out."""
        return self.log_prob_slots(obs, act, next_obs, torch.arange(self.max_contexts, device=self.weight.device))

    def log_prob_slots(self, obs: Obs, act: Act, next_obs: Obs, slots: Slots) -> Float[Tensor, "batch n"]:
        """Return `log_prob` of some contexts only.

        Raises:
            DataError: on rows of the wrong width.
        """
        features, targets = self.features(obs, act), self._targets(obs, next_obs)
        density = self._log_density(features, targets, slots, self.target_scaler.scale > 0)
        return (density - self.target_scaler.log_volume()).to(obs.dtype)

    def log_prob_seen(
        self, obs: Obs, act: Act, next_obs: Obs, slots: Slots | None = None
    ) -> Float[Tensor, "batch n"] | None:
        """Return the density of the targets that are not NaN: independent ones integrate to 1, so they drop out."""
        features, targets = self.features(obs, act), self._targets(obs, next_obs)
        used = torch.arange(self.max_contexts, device=self.weight.device) if slots is None else slots
        counts = targets.isfinite() & (self.target_scaler.scale > 0)
        volume = torch.where(counts, self.target_scaler.scale, 1.0).log().sum(-1, keepdim=True)
        return (self._log_density(features, targets.nan_to_num(), used, counts) - volume).to(obs.dtype)

    def _log_density(self, features: Tensor, targets: Tensor, slots: Slots, counts: Tensor) -> Tensor:
        """Return the log density of the scaled targets that are marked."""
        variance, halves, columns = self.noise_variance(), self.half_degrees(), []
        for slot in slots.tolist():
            half = halves[slot]
            scale = variance[slot] * (1.0 + (features @ self.factor[slot]).square().sum(-1, keepdim=True))
            error = (targets - features @ self.weight[slot]).square() / scale
            peak = torch.lgamma(half + 0.5) - torch.lgamma(half) - 0.5 * (2.0 * torch.pi * half).log()
            each = peak - 0.5 * scale.log() - (half + 0.5) * torch.log1p(error / (2.0 * half))
            columns.append(torch.where(counts, each, 0.0).sum(-1))
        return torch.stack(columns, -1)

    def density_table(self, slots: Slots) -> DensityTable | None:
        """Return the density as arrays."""
        return sparse_table(self, slots)

    def begin_rollout(
        self, obs: Float[Tensor, " S"], paths: Paths, generator: torch.Generator | None = None
    ) -> Rollout:
        """Return a compiled rollout; with a generator, weights and variances are drawn once for each path.

        They do not change while a plan runs, so this is the posterior predictive distribution of whole paths.

        Raises:
            DataError: on an observation of the wrong width or a context that does not exist.
        """
        from mbrl_hdp_dynamics.sparse_kernels import SparseRollout

        if obs.device.type != "cpu" or torch.is_grad_enabled():
            return super().begin_rollout(obs, paths, generator)
        if len(obs) != self.obs_dim:
            raise DataError(f"obs has {len(obs)} columns, this model was built for obs_dim={self.obs_dim}")
        self._check_contexts(paths)
        return SparseRollout(self, obs, paths, generator)

    def fit_heads(self, obs: Obs, act: Act, next_obs: Obs, weight: Float[Tensor, "batch K"]) -> None:
        """Set every head to its posterior given rows that count `weight` times for it; heads without rows stay."""
        with torch.no_grad():
            features, targets = self.features(obs, act), self._targets(obs, next_obs)
            for slot in range(self.max_contexts):
                share = weight[:, slot].to(features.dtype)
                if float(share.sum()) < _LEAST_ROWS:
                    continue
                used = share > 1e-6
                self._fit_head(slot, features[used], targets[used], share[used])

    def _fit_head(self, slot: int, features: Tensor, targets: Tensor, share: Tensor) -> None:
        found = regress(features, targets, share, self.config.std_floor)
        self.weight[slot], self.factor[slot], self.shape[slot] = found.mean, found.factor, found.shape
        self.log_variance[slot] = (found.rate / found.shape).log()

    def log_prior(self) -> Float[Tensor, ""]:
        """Return log p(theta) where gradients train the weights: independent standard normal numbers."""
        return -0.5 * (self.weight.square() + math.log(2.0 * math.pi)).sum()

    def set_normaliser(self, obs: Obs, act: Act, next_obs: Obs) -> None:
        """Fix the scales of inputs, features and targets from data; rows with missing values do not count.

        Raises:
            DataError: if no complete row is left.
        """
        with torch.no_grad():
            is_complete = torch.cat([obs, act, next_obs], -1).isfinite().all(-1)
            raw = torch.cat([obs, act], -1)[is_complete].double()
            self.input_scaler.fit(raw)
            self.target_scaler.fit((next_obs.double() - obs.double())[is_complete])
            self.term_scaler.fit(self.table(raw, self.input_scaler(raw)))
            self.term_scaler.centre[0], self.term_scaler.scale[0], self.term_scaler.inverse_scale[0] = 0.0, 1.0, 1.0
            place = torch.linspace(0, len(raw) - 1, NUM_EXAMPLES, dtype=torch.float64).round().long()
            self.examples.copy_(raw[place])

    def reset_slots(self, slots: Slots, generator: torch.Generator | None = None) -> None:
        """Draw fresh weights for the heads in `slots` and set their noise to the targets' spread."""
        with torch.no_grad():
            drawn = torch.randn(len(slots), *self.weight.shape[1:], generator=generator, dtype=self.weight.dtype)
            self.weight[slots] = _FRESH_STD * drawn.to(self.weight.device)
            self.factor[slots], self.shape[slots], self.log_variance[slots] = 0.0, _FRESH_SHAPE, 0.0

    def equations(self, slots: Slots, names: list[str] | None = None) -> list[list[str]]:
        """Return for each of some contexts what it does to every column, as equations in the data's own units."""
        from mbrl_hdp_dynamics.equations import equations

        return equations(self, slots.tolist(), names)

    def _targets(self, obs: Obs, next_obs: Obs) -> Float[Tensor, "batch S"]:
        return self.target_scaler(next_obs.to(self.weight.dtype) - obs.to(self.weight.dtype))

    def _step(self, obs: Tensor, act: Tensor, context: Tensor, noise: NoiseSource | None = None) -> Tensor:
        self._check_contexts(context)
        features = self.features(obs, act)
        change = self._blocks(features, context, noise) if obs.ndim > 2 else self._rows(features, context, noise)
        return obs + self.target_scaler.undo(change)

    def _rows(self, features: Tensor, context: Tensor, noise: NoiseSource | None) -> Tensor:
        mean = features.new_empty(*features.shape[:-1], self.obs_dim)
        leverage = features.new_zeros(*features.shape[:-1], 1)
        for slot in context.unique().tolist():
            mine = context == slot
            mean[mine] = features[mine] @ self.weight[slot]
            if noise is not None:
                leverage[mine] = (features[mine] @ self.factor[slot]).square().sum(-1, keepdim=True)
        if noise is not None:
            white = _student_t(noise, mean, 1.0 + leverage, self.half_degrees()[context])
            mean = mean + self.noise_variance()[context].sqrt() * self.colour(white, context)
        return mean

    def _blocks(self, features: Tensor, context: Tensor, noise: NoiseSource | None) -> Tensor:
        mean = features @ self.weight[context]
        if noise is not None:
            leverage = (features @ self.factor[context]).square().sum(-1, keepdim=True)
            white = _student_t(noise, mean, 1.0 + leverage, self.half_degrees()[context][:, None])
            mean = mean + self.noise_variance()[context].sqrt()[:, None] * self.colour(white, context)
        return mean

    def _check_contexts(self, context: Tensor) -> None:
        if context.numel() and not 0 <= int(context.min()) <= int(context.max()) < self.max_contexts:
            raise DataError(
                f"context must lie in [0, {self.max_contexts}), got values from {int(context.min())} to "
                f"{int(context.max())}"
            )


def _student_t(noise: NoiseSource, values: Tensor, variance: Tensor, shape: Tensor) -> Tensor:
    """Draw in the shape of `values`: normal numbers of variances that are inverse gamma numbers around these."""
    normal = noise.like(values)
    gamma = torch._standard_gamma(shape.expand_as(values).contiguous(), generator=cast(Any, noise.generator))
    return normal * (variance * shape / gamma).sqrt()


def build_sparse(config: SparseConfig, task: TaskSpec) -> SparseDynamics:
    """Build `sparse`.

    Raises:
        ConfigError: on settings out of range, or text that is no term.
    """
    from mbrl_hdp_dynamics.sparse_full import FullSparseDynamics
    from mbrl_hdp_dynamics.sparse_student import StudentDynamics

    check_settings(config, "dynamics")
    classes = {"normal": SparseDynamics, "student": StudentDynamics, "full": FullSparseDynamics}
    return classes[config.noise](task, config)
