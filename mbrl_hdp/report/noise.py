"""Remarks on noise with heavy tails and on correlated noise: how much, and whether the model knows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from mbrl_hdp.inference.model import ContextModel

# With so many degrees of freedom or more a Student t is taken for a normal distribution.
_NORMAL = 30.0
# Smaller correlations are not listed, nor more pairs than this.
_LEAST, _MOST_PAIRS = 0.3, 3


def heavy_tails(model: ContextModel, names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence on jumps that the search saw, and one on the tails of the model's noise."""
    far, degrees = model.report.search.get("far"), getattr(model.dynamics, "degrees", None)
    jumps = (
        "" if far is None else f"{far:.1%} of the steps lie far from what every context predicts, their neighbours not"
    )
    if not callable(degrees):
        if jumps:
            yield f"noise may have heavy tails ({jumps}), but held-out data prefers heads with normal noise"
        return
    with torch.no_grad():
        fewest = degrees()[model.slots].min(0).values.tolist()
    listed = [
        f"{name} ({'normal' if value >= _NORMAL else f'{value:.1f}'})"
        for name, value in zip(names, fewest, strict=True)
    ]
    yield (
        f"noise has heavy tails: Student t, degrees of freedom of {', '.join(listed)}; 1 has a large jump in every few "
        f"steps, 5 few, normal none{f' ({jumps})' if jumps else ''}. Such steps count less in the heads"
    )


def correlated_noise(model: ContextModel, names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence on the correlations that the search saw, or on those that the model's noise has."""
    found, covariance = model.report.search.get("correlation"), getattr(model.dynamics, "noise_covariance", None)
    if not callable(covariance):
        if found is not None:
            yield (
                f"the noise of some columns is correlated (up to {found:.2f}), but held-out data prefers heads with "
                "independent noise"
            )
        return
    with torch.no_grad():
        noise = covariance()[model.slots]
    std = noise.diagonal(dim1=-2, dim2=-1).sqrt()
    correlation = noise / std[:, :, None] / std[:, None]
    largest = correlation.gather(0, correlation.abs().argmax(0, keepdim=True))[0]
    pairs = [(float(largest[i, j]), names[j], names[i]) for i in range(len(names)) for j in range(i)]
    listed = sorted((pair for pair in pairs if abs(pair[0]) > _LEAST), key=lambda pair: -abs(pair[0]))[:_MOST_PAIRS]
    if listed:
        words = ", ".join(f"{first} and {second} ({value:+.2f})" for value, first, second in listed)
        yield f"noise is correlated: {words}; taken for independent, it would count as evidence more than once"
