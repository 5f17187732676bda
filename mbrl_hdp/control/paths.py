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

    Every path is distributed as the chain is. Together they are stratified: at each step the uniform numbers of the P
    paths fall into P equal cells, one each, so that few paths already represent the belief well.
    """
    shape = (num_paths, horizon)
    cell = torch.rand(shape, generator=generator).argsort(0)
    uniform = (cell + torch.rand(shape, generator=generator)) / num_paths
    paths = np.empty(shape, np.int64)
    laws = (law.to("cpu", torch.float64).cumsum(-1).numpy() for law in (belief, transition))
    _walk(*laws, uniform.double().numpy(), paths)
    return torch.from_numpy(paths).to(belief.device)


@compiled()
@no_type_check
def _walk(first: np.ndarray, following: np.ndarray, uniform: np.ndarray, paths: np.ndarray) -> None:
    """Invert the cumulative distributions; the last context takes whatever rounding leaves above the last sum."""
    last = first.shape[0] - 1
    for path in range(uniform.shape[0]):
        context = 0
        for step in range(uniform.shape[1]):
            law = first if step == 0 else following[context]
            context = 0
            while context < last and uniform[path, step] * law[last] >= law[context]:
                context += 1
            paths[path, step] = context
