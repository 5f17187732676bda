"""Paths of contexts that all candidate plans share.

Contexts evolve by themselves, whatever the agent does. So P paths of contexts are drawn once per plan and every
candidate is scored on the same ones: nothing is sorted by context, and the comparison of candidates has less noise.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbrl_hdp.compiling import compiled


def draw_paths(
    belief: Float[Tensor, " k"],
    transition: Float[Tensor, "k k"],
    num_paths: int,
    horizon: int,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "P H"]:
    """Draw paths of contexts: the first from the belief, the others along the chain.

    Every path is distributed as the chain is; together they are stratified (`draw_uniform`).
    """
    paths = np.empty((num_paths, horizon), np.int64)
    cumulative = (value.to("cpu", torch.float64).cumsum(-1).numpy() for value in (belief, transition))
    _walk(*cumulative, draw_uniform(num_paths, horizon, generator).double().numpy(), paths)
    return torch.from_numpy(paths).to(belief.device)


def draw_uniform(num_paths: int, horizon: int, generator: torch.Generator | None = None) -> Float[Tensor, "P H"]:
    """Draw uniform numbers that are stratified: at each step those of the P paths fall into P equal cells, one each.

    So few paths already represent the distribution that the numbers select from.
    """
    shape = (num_paths, horizon)
    cell = torch.rand(shape, generator=generator).argsort(0)
    return (cell + torch.rand(shape, generator=generator)) / num_paths


def choose_contexts(belief: Float[Tensor, "B k"], uniform: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Select the context of every row by inverting its cumulative belief at a uniform number.

    Equal beliefs and equal numbers select the same context, so candidates that share their numbers are compared with
    less noise. A context of zero belief is never selected.
    """
    cumulative = belief.double().cumsum(-1)
    # Stratified single precision numbers may round to 1, which would select whatever comes last.
    reached = uniform.double().clamp(max=1.0 - 1e-12) * cumulative[:, -1]
    return (cumulative <= reached[:, None]).sum(-1)


@compiled()
@no_type_check
def _walk(first: np.ndarray, following: np.ndarray, uniform: np.ndarray, paths: np.ndarray) -> None:
    """Invert the cumulative distributions; the last context takes whatever rounding leaves above the last sum."""
    last = first.shape[0] - 1
    for path in range(uniform.shape[0]):
        context = 0
        for step in range(uniform.shape[1]):
            cumulative = first if step == 0 else following[context]
            context = 0
            while context < last and uniform[path, step] * cumulative[last] >= cumulative[context]:
                context += 1
            paths[path, step] = context
