"""Linear regression with Student t noise by expectation maximisation: rows that do not fit count less."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from torch import Tensor

from mbrl_hdp_dynamics.regression import regress

# Degrees of freedom: below the first the noise has no mean, beyond the last no data tells it from a normal one.
FEWEST, MOST = 1.0, 100.0
# Prior of the degrees: a gamma distribution with shape 2 and this rate.
_RATE = 0.1
_MOST_ROUNDS = 50
# Nats a row that a round must gain.
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class StudentFit:
    """One output: target = features . mean + noise, noise ~ sqrt(variance) Student t(degrees).

    Attributes:
        mean: expected weights, `D`.
        variance: squared scale of the noise.
        degrees: degrees of freedom.
        share: how much every row counts, (degrees + 1) / (degrees + error^2 / variance), `M`.
    """

    mean: Float[Tensor, " D"]
    variance: float
    degrees: float
    share: Float[Tensor, " M"]


def regress_student(
    features: Float[Tensor, "M D"],
    target: Float[Tensor, " M"],
    weight: Float[Tensor, " M"],
    floor: float,
    start: tuple[Float[Tensor, " D"], float, float] | None = None,
) -> StudentFit:
    """Return weights, scale and degrees of largest posterior density given rows that count `weight` times each.

    A t is a normal distribution whose precision is a gamma number of its own in every row. In turn, every row's
    expected precision is computed, weights and variance are regressed on the rows scaled by its root, and the degrees
    are set to their optimum. It begins with least squares, or with `start` where that is better.

    Args:
        features: rows of features, roughly standardised.
        target: their targets, standardised.
        weight: how often each row counts.
        floor: smallest standard deviation, which the prior of the variance expects.
        start: mean, variance and degrees to begin with, such as those of the last call.
    """
    now = _round(features, target, weight, floor, torch.ones_like(target))
    if start is not None:
        known = _completed(features, target, *start)
        now = known if _height(known, features, target, weight) > _height(now, features, target, weight) else now
    height = _height(now, features, target, weight)
    for _ in range(_MOST_ROUNDS):
        found = _round(features, target, weight, floor, now.share)
        before, height, now = height, _height(found, features, target, weight), found
        if height - before < _TOLERANCE * float(weight.sum()):
            break
    return now


def _round(features: Tensor, target: Tensor, weight: Tensor, floor: float, share: Tensor) -> StudentFit:
    """Regress on rows of the given precisions, then set the degrees.

    At the optimum the mean precision is one; brought there in every round, the scale settles in few of them
    (parameter expansion, Liu, Rubin and Wu 1998).
    """
    root = (share * (weight.sum() / (weight @ share))).sqrt()
    found = regress(features * root[:, None], (target * root)[:, None], weight, floor)
    mean, variance = found.mean[:, 0], max(float(found.rate[0]) / found.shape, floor**2)
    square = (target - features @ mean).square() / variance
    return _completed(features, target, mean, variance, likeliest_degrees(square, weight))


def _completed(features: Tensor, target: Tensor, mean: Tensor, variance: float, degrees: float) -> StudentFit:
    square = (target - features @ mean).square() / variance
    return StudentFit(mean, variance, degrees, (degrees + 1.0) / (degrees + square))


def _height(found: StudentFit, features: Tensor, target: Tensor, weight: Tensor) -> float:
    """Return the log density of all rows and of the degrees."""
    square = (target - features @ found.mean).square() / found.variance
    return _log_density(square, weight, found.degrees) - 0.5 * float(weight.sum()) * math.log(found.variance)


def likeliest_degrees(square: Float[Tensor, " M"], weight: Float[Tensor, " M"]) -> float:
    """Return the most probable degrees of freedom given squared errors over the squared scale."""
    found = minimize_scalar(
        lambda log_degrees: -_log_density(square, weight, math.exp(log_degrees)),
        bounds=(math.log(FEWEST), math.log(MOST)),
        method="bounded",
        options={"xatol": 1e-3},
    )
    return math.exp(found.x)


def _log_density(square: Tensor, weight: Tensor, degrees: float) -> float:
    """Return the log density of rows in units of the scale, with the prior of the degrees."""
    half = 0.5 * degrees
    peak = math.lgamma(half + 0.5) - math.lgamma(half) - 0.5 * math.log(degrees * math.pi)
    rows = peak * float(weight.sum()) - (half + 0.5) * float(weight @ (square / degrees).log1p())
    return rows + log_prior_degrees(degrees)


def log_prior_degrees(degrees: float) -> float:
    """Return the log density of the degrees' prior, up to a constant."""
    return math.log(degrees) - _RATE * degrees
