"""The messages of `wide_kernels` in float32: half the time where matrix products take most of it.

Only for float32 log-likelihoods and chains without tiny entries (`scaling` has the bounds). Scales, evidence and counts
are summed in float64; errors are of the size of those that the log-likelihoods brought with them.
"""

from __future__ import annotations

from mbrl_hdp.probability.scaling import single_contexts_side_by_side
from mbrl_hdp.probability.wide_kernels import backward_pass, forward_pass

__all__ = ["backward_pass", "by_step", "forward_pass"]

by_step = single_contexts_side_by_side
