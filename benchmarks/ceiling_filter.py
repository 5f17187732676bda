"""The exact belief over (context, steps left in the cool-off), for many episodes at once."""

from __future__ import annotations

import numpy as np

from mbrl_hdp.envs.chains import FloatArray, IntArray, MarkovChain

# The physics has no noise: two predictions that differ by much more than this identify the context at once, equal
# ones carry no information.
OBS_NOISE = 1e-7


class ExactFilter:
    """Predictive belief of the context that acts next, by Bayes' rule on the chain with its cool-off counter.

    Args:
        chain: distribution of the context.
        num: number of episodes E.

    Attributes:
        belief: distribution of (context, left) on the coming step, `E n*width`, as in `MarkovChain.with_counter`.
    """

    def __init__(self, chain: MarkovChain, num: int) -> None:
        self._initial, self._transition = chain.with_counter()
        self._cumulative = np.cumsum(self._transition, axis=1)
        self._width = len(self._initial) // chain.num_contexts
        self.belief: FloatArray = np.tile(self._initial, (num, 1))

    @property
    def contexts(self) -> FloatArray:
        """Distribution of the context that acts next, `E n`."""
        return self._by_context(self.belief)

    def reveal(self, contexts: IntArray) -> None:
        """Condition on the contexts `E` that act next (an agent with full information)."""
        is_so = np.arange(len(self._initial)) // self._width == contexts[:, None]
        self.belief = _normalised(np.where(is_so, self.belief, 0.0))

    def update(self, log_likelihood: FloatArray) -> FloatArray:
        """Condition on what a step showed, then move on to the next one.

        Args:
            log_likelihood: of the step under each context, `E n`.

        Returns:
            filtered distribution of the context that acted, `E n`.
        """
        weight = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
        posterior = _normalised(self.belief * np.repeat(weight, self._width, axis=1))
        self.belief = posterior @ self._transition
        return self._by_context(posterior)

    def sample_paths(self, rng: np.random.Generator, num: int, horizon: int) -> IntArray:
        """Draw `num` futures of the context for every episode, `E num horizon`; stratified in the first entry."""
        strata = (np.arange(num) + rng.random((len(self.belief), num))) / num
        state = _pick(np.cumsum(self.belief, axis=1)[:, None, :], strata)
        paths = [state]
        for _ in range(horizon - 1):
            paths.append(_pick(self._cumulative[paths[-1]], rng.random(state.shape)))
        return np.stack(paths, axis=-1) // self._width

    def _by_context(self, weights: FloatArray) -> FloatArray:
        return weights.reshape(len(weights), -1, self._width).sum(axis=-1)


def log_likelihoods(predicted: FloatArray, next_obs: FloatArray) -> FloatArray:
    """Return log N(next_obs; predicted, OBS_NOISE^2), `E n`, up to a constant, for each prediction `E n S`."""
    error = (predicted - next_obs[:, None, :]) / OBS_NOISE
    return -0.5 * np.square(error).sum(axis=-1)


def _pick(cumulative: FloatArray, uniform: FloatArray) -> IntArray:
    """Return the first index whose cumulative probability exceeds the uniform number."""
    return np.argmax(cumulative > uniform[..., None] * cumulative[..., -1:], axis=-1)


def _normalised(weights: FloatArray) -> FloatArray:
    return weights / weights.sum(axis=1, keepdims=True)
