"""Whether noise sits on the sensors or in the process: noise on a reading comes back with the opposite sign."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from mbrl_hdp.inference.analysis import Analysis

_DOMINATES = -0.25
_FEWEST = 50


def lag_correlation(found: Analysis) -> Float[np.ndarray, " S"]:
    """Return the correlation of neighbouring prediction errors of every column.

    With process noise w and sensor noise v on a slow signal the error is w[t] + v[t+1] - v[t]: the correlation is
    -var v / (var w + 2 var v), 0 without sensor noise and -1/2 with nothing else.
    """
    data = found.data
    error = found.predicted - data.obs[:, 1:]
    first, second = error[:, :-1], error[:, 1:]
    keep = (data.is_observed[:, :-1] & data.is_observed[:, 1:])[..., None]
    if keep.sum() < _FEWEST:
        return np.zeros(data.obs_dim)
    product, power = (
        np.where(keep, values, 0.0).sum((0, 1)) for values in (first * second, 0.5 * (first**2 + second**2))
    )
    return product / np.maximum(power, 1e-300)


def sensor_noise(found: Analysis, names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence if sensor noise dominates in some columns."""
    correlation = lag_correlation(found)
    noisy = [f"{name} ({value:.2f})" for name, value in zip(names, correlation, strict=True) if value < _DOMINATES]
    if noisy:
        yield (
            f"noise of the sensor, not of the process, dominates in {', '.join(noisy)}: errors of neighbouring steps "
            "have opposite signs (their correlation is in brackets); smooth these columns before the fit, or resample "
            "to longer steps"
        )
