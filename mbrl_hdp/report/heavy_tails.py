"""A remark on noise with heavy tails: how heavy, and whether the model knows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from mbrl_hdp.inference.model import ContextModel

# With so many degrees of freedom or more a Student t is taken for a normal distribution.
_NORMAL = 30.0


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
