"""What a learned model says about recorded data, from one pass over its heads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbrl_hdp.belief.filter import predict
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.inference.elbo import EpisodeBatch, step_log_lik
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.probability import hmm, semi_markov
from mbrl_hdp.probability.phases import by_context
from mbrl_hdp.types import ContextChain, PhaseChain


@dataclass(frozen=True, eq=False, repr=False)
class Analysis:
    """Contexts and likelihood of every step; `model.analyse(data)` makes one.

    The likelihoods come from one pass over the heads, at once. Each property below is computed from them when it is
    first read and then kept. Only `predicted` runs the heads again, for their expected next observations: read it
    before the model is trained further.

    Attributes:
        data: the episodes.
        log_lik: log p(next_obs | obs, act, context) of every step and kept context; zero where nothing was observed.
    """

    data: Trajectories
    log_lik: Float[Tensor, "N T k"]
    _batch: EpisodeBatch
    _chain: ContextChain | PhaseChain
    _dynamics: ContextDynamics
    _slots: Int[Tensor, " k"]

    @staticmethod
    def of(
        data: Trajectories, chain: ContextChain | PhaseChain, dynamics: ContextDynamics, slots: Int[Tensor, " k"]
    ) -> Analysis:
        """Run the heads in `slots`, whose contexts move by `chain`, over the data."""
        batch = EpisodeTensors.of(data, device=slots.device).batch()
        with torch.no_grad():
            return Analysis(data, step_log_lik(dynamics, batch, slots), batch, chain, dynamics, slots)

    @cached_property
    def _forward(self) -> hmm.Filtered | semi_markov.PhaseFiltered:
        if isinstance(self._chain, PhaseChain):
            return semi_markov.filter_contexts(self._chain, self.log_lik, self._batch.lengths)
        return hmm.filter_contexts(self._chain, self.log_lik, self._batch.lengths)

    @cached_property
    def filtered(self) -> Float[np.ndarray, "N T k"]:
        """p(context[t] | obs up to t+1, acts up to t); NaN beyond an episode's end."""
        return self._padded(self._forward.probs)

    @cached_property
    def smoothed(self) -> Float[np.ndarray, "N T k"]:
        """p(context[t] | the whole episode); NaN beyond an episode's end."""
        if isinstance(self._chain, PhaseChain):
            return self._padded(semi_markov.smooth(self._chain, self.log_lik, self._batch.lengths).marginals)
        return self._padded(hmm.smooth(self._chain, self.log_lik, self._batch.lengths).marginals)

    @cached_property
    def most_likely(self) -> Int[np.ndarray, "N T"]:
        """The most likely path of contexts (Viterbi); -1 beyond an episode's end."""
        if isinstance(self._chain, PhaseChain):
            return semi_markov.viterbi(self._chain, self.log_lik, self._batch.lengths).cpu().numpy()
        return hmm.viterbi(self._chain, self.log_lik, self._batch.lengths).cpu().numpy()

    @cached_property
    def log_likelihood(self) -> Float[np.ndarray, " N"]:
        """The log-likelihood log p(episode) of every episode, contexts summed out, in the data's own units."""
        return self._forward.log_evidence.double().cpu().numpy()

    @property
    def log_likelihood_per_step(self) -> float:
        """Log-likelihood of all episodes per transition that carries any."""
        return float(self.log_likelihood.sum() / max(int((self.log_lik != 0).any(-1).sum()), 1))

    @cached_property
    def predictive_belief(self) -> Float[np.ndarray, "N T k"]:
        """p(context[t] | obs up to t, acts up to t-1), the belief before every step; NaN beyond an episode's end."""
        if isinstance(self._chain, PhaseChain):
            begin = by_context(self._chain.initial, self._chain.sizes).double().cpu().numpy()
            return np.concatenate([np.broadcast_to(begin, self.following[:, :1].shape), self.following[:, :-1]], 1)
        filtered = torch.as_tensor(self.filtered)
        first = self._chain.initial.to(filtered).expand(len(filtered), 1, -1)
        return torch.cat([first, predict(filtered[:, :-1], self._chain.transition.to(filtered))], dim=1).numpy()

    @cached_property
    def following(self) -> Float[np.ndarray, "N T k"]:
        """p(context[t+1] | obs up to t+1, acts up to t), the belief after every step; NaN beyond an episode's end."""
        if isinstance(self._forward, semi_markov.PhaseFiltered):
            return self._padded(self._forward.following)
        assert isinstance(self._chain, ContextChain)
        return predict(self.filtered, self._chain.transition.double().cpu().numpy())

    @cached_property
    def predicted(self) -> Float[np.ndarray, "N T S"]:
        """Expected next observation before every step, averaged over the belief; NaN where none is known."""
        with torch.no_grad():
            obs, act = self._batch.obs[:, :-1].flatten(0, 1), self._batch.act.flatten(0, 1)
            belief = torch.as_tensor(self.predictive_belief).to(obs).flatten(0, 1)
            mean = torch.zeros_like(obs)
            for column, slot in enumerate(self._slots.tolist()):
                context = torch.full((len(obs),), slot, device=obs.device)
                mean += belief[:, column : column + 1] * self._dynamics.predict(obs, act, context)
            predicted = mean.view(*self._batch.act.shape[:2], -1).double().cpu().numpy()
        return np.where(self.data.is_observed[..., None], predicted, np.nan)

    def _padded(self, probs: Float[Tensor, "N T k"]) -> Float[np.ndarray, "N T k"]:
        return np.where(self.data.is_step[..., None], probs.double().cpu().numpy(), np.nan)
