"""Optimisers of plans beside mbrl-lib's, with its interface: `optimize(obj_fun, x0) -> plan`.

Like mbrl-lib's they draw from torch's global generator; `planner.py` gives each planner a stream of its own there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from mbrl.planning.trajectory_opt import Optimizer
from torch import Tensor

from mbrl_hdp.errors import ConfigError

Plan = Float[Tensor, "H A"]
Objective = Callable[[Tensor], Tensor]
Callback = Callable[[Tensor, Tensor, int], None]


class ColoredCemOptimizer(Optimizer):
    """The paper's cross-entropy method (appendix "MPC using Cross-Entropy Method") with coloured noise.

        mean     <- (1 - rate) mean     + rate * mean of the elites
        variance <- (1 - rate) variance + rate * variance of the elites

    The noise of a plan is an AR(1) process over its steps, noise[h] = color * noise[h-1] + sqrt(1 - color^2) * white,
    with variance 1 at every step: neighbouring actions resemble each other, which explores further. The mean is a
    candidate of its own, so that an iteration never loses what it had. Without noise_color it is the paper's.

    Args:
        num_iterations: iterations (the paper's N_epochs).
        population_size: candidates per iteration, the mean included (N_pops).
        num_elites: candidates that the update is made of (N_elite).
        update_rate: the paper's learning rate l_r.
        initial_std: spread at the first iteration, in units of half the action range.
        min_std: smallest spread, in the same units.
        noise_color: AR(1) coefficient; 0 is white noise.
        lower_bound: lower bounds, `H A`.
        upper_bound: upper bounds, `H A`.
        device: where plans live.
        return_mean: return the final mean; otherwise the best candidate seen.
    """

    def __init__(
        self,
        num_iterations: int,
        population_size: int,
        num_elites: int,
        update_rate: float,
        initial_std: float,
        min_std: float,
        noise_color: float,
        lower_bound: Sequence[Sequence[float]],
        upper_bound: Sequence[Sequence[float]],
        device: str | torch.device = "cpu",
        return_mean: bool = True,
    ) -> None:
        super().__init__()
        if num_elites > population_size:
            raise ConfigError(f"planner.num_elites={num_elites} exceeds planner.population_size={population_size}")
        self.num_iterations, self.population_size, self.num_elites = num_iterations, population_size, num_elites
        self.update_rate, self.return_mean = update_rate, return_mean
        self.lower_bound = torch.tensor(lower_bound, dtype=torch.float32, device=device)
        self.upper_bound = torch.tensor(upper_bound, dtype=torch.float32, device=device)
        half_range = (self.upper_bound - self.lower_bound) / 2
        self.initial_variance = (initial_std * half_range).square()
        self.min_variance = (min_std * half_range).square()
        self.color_matrix = _color_matrix(len(self.lower_bound), noise_color).to(device)

    def optimize(self, obj_fun: Objective, x0: Plan | None = None, callback: Callback | None = None, **_: Any) -> Plan:
        """Return the plan found from the mean `x0` (the middle of the bounds by default).

        Args:
            obj_fun: values `C` of plans `C H A`, to be maximised.
            x0: first mean.
            callback: called with plans, values and iteration, as in mbrl-lib.
        """
        mean = (self.lower_bound + self.upper_bound) / 2 if x0 is None else x0.clone()
        variance = self.initial_variance
        best_value, best_plan = -torch.inf, mean
        for iteration in range(self.num_iterations):
            plans = self._candidates(mean, variance.sqrt())
            values = torch.nan_to_num(obj_fun(plans), nan=-torch.inf)
            if callback is not None:
                callback(plans, values, iteration)
            top_values, order = values.topk(self.num_elites)
            elite_variance, elite_mean = torch.var_mean(plans.index_select(0, order), dim=0, correction=0)
            mean = torch.lerp(mean, elite_mean, self.update_rate)
            variance = torch.lerp(variance, elite_variance, self.update_rate).maximum(self.min_variance)
            if not self.return_mean and float(top_values[0]) > best_value:
                best_value, best_plan = float(top_values[0]), plans[order[0]]
        return mean if self.return_mean else best_plan

    def _candidates(self, mean: Float[Tensor, "H A"], std: Float[Tensor, "H A"]) -> Float[Tensor, "C H A"]:
        white = torch.randn(self.population_size, *mean.shape, device=mean.device)
        white[0].zero_()
        plans = torch.addcmul(mean, self.color_matrix @ white, std)
        return plans.clamp_(self.lower_bound, self.upper_bound)


class RandomShootingOptimizer(Optimizer):
    """Take the best of many plans drawn uniformly within the bounds; the previous plan `x0` is one of them.

    Args:
        population_size: number of plans.
        lower_bound: lower bounds, `H A`.
        upper_bound: upper bounds, `H A`.
        device: where plans live.
        noise_color: AR(1) coefficient of the plan's steps; above 0 the noise is normal, cut off at the bounds.
    """

    def __init__(
        self,
        population_size: int,
        lower_bound: Sequence[Sequence[float]],
        upper_bound: Sequence[Sequence[float]],
        device: str | torch.device = "cpu",
        noise_color: float = 0.0,
    ) -> None:
        super().__init__()
        self.population_size = population_size
        self.lower_bound = torch.tensor(lower_bound, dtype=torch.float32, device=device)
        self.upper_bound = torch.tensor(upper_bound, dtype=torch.float32, device=device)
        self.color_matrix = _color_matrix(len(self.lower_bound), noise_color).to(device) if noise_color else None

    def optimize(self, obj_fun: Objective, x0: Plan | None = None, callback: Callback | None = None, **_: Any) -> Plan:
        """Return the best plan; the arguments are those of `ColoredCemOptimizer.optimize`."""
        plans = self._candidates()
        if x0 is not None:
            plans[0] = x0
        values = torch.nan_to_num(obj_fun(plans), nan=-torch.inf)
        if callback is not None:
            callback(plans, values, 0)
        return plans[values.argmax()].clone()

    def _candidates(self) -> Float[Tensor, "C H A"]:
        shape = (self.population_size, *self.lower_bound.shape)
        if self.color_matrix is None:
            uniform = torch.rand(shape, device=self.lower_bound.device)
            return torch.lerp(self.lower_bound, self.upper_bound, uniform)
        normal = self.color_matrix @ torch.randn(shape, device=self.lower_bound.device)
        middle, half_range = (self.lower_bound + self.upper_bound) / 2, (self.upper_bound - self.lower_bound) / 2
        return torch.addcmul(middle, normal, half_range).clamp(self.lower_bound, self.upper_bound)


def _color_matrix(horizon: int, color: float) -> Float[Tensor, "H H"]:
    """Return the matrix that turns white noise into an AR(1) process with unit variance at every step."""
    steps = torch.arange(horizon)
    lag = (steps[:, None] - steps).clamp(min=0)
    matrix = torch.tensor(color, dtype=torch.float64).pow(lag).tril()
    matrix[:, 1:] *= (1.0 - color**2) ** 0.5
    return matrix.float()
