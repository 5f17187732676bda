"""Draw hidden contexts from a chain, for one environment or for many at once.

A single environment is a walk with `num=1`, so single and batched environments share one distribution.
"""

from __future__ import annotations

import numpy as np

from mbrl_hdp.envs.chains import Chain, FloatArray, IntArray, WalkState


class ChainWalk:
    """State of `num` independent walks on one chain.

    Every call draws exactly `num` uniform numbers, so the same seed gives the same contexts whatever else happens
    (state-dependent chains excepted).

    Example:
        >>> walk = ChainWalk(MarkovChain.symmetric(2), num=3)
        >>> rng = np.random.default_rng(0)
        >>> first = walk.reset(rng)      # contexts that act on step 0, [3]
        >>> second = walk.step(rng)      # contexts that act on step 1
    """

    def __init__(self, chain: Chain, num: int = 1) -> None:
        self.chain = chain
        self.num = num
        self._current = np.zeros(num, dtype=np.int64)
        self._previous = self._current
        self._left = np.zeros(num, dtype=np.int64)
        self._num_steps = 0

    @property
    def current(self) -> IntArray:
        """Contexts that act on the coming step, `num`."""
        return self._current

    def reset(self, rng: np.random.Generator, obs: FloatArray | None = None) -> IntArray:
        """Draw the first acting contexts, `num`."""
        self._current = self.chain.first(rng.random(self.num), obs)
        self._previous = self._current
        self._left = np.full(self.num, self.chain.counter_at_reset)
        self._num_steps = 0
        return self._current

    def step(self, rng: np.random.Generator, obs: FloatArray | None = None) -> IntArray:
        """Draw the contexts that act on the next step, `num`; `obs` is what the last step led to, `num S`."""
        uniform = rng.random(self.num)
        self._num_steps += 1
        self._left = self._left - 1
        proposed = self.chain.propose(uniform, WalkState(self._current, self._previous, self._num_steps, obs))
        is_switch = (self._left <= 0) & (proposed != self._current)
        if is_switch.any():
            self._previous = np.where(is_switch, self._current, self._previous)
            self._current = np.where(is_switch, proposed, self._current)
            self._left = np.where(is_switch, self.chain.cool_off, self._left)
        return self._current
