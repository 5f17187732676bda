"""Training without gradients, for heads with a closed form: contexts, heads and chain take turns until all settle."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from mbrl_hdp.distil.distiller import apply_keep_mask
from mbrl_hdp.errors import DivergenceError
from mbrl_hdp.inference.dynamics import ClosedFormDynamics
from mbrl_hdp.inference.elbo import ElboScale, elbo_of, step_log_lik
from mbrl_hdp.inference.trainer import Report, RunLength, Trainer
from mbrl_hdp.probability.hmm import smooth

MOST_ROUNDS = 60
_CHAIN_STEPS = 2
_STEP = 0.5
# The chain and the heads settle before a context can be masked.
_ROUNDS_BEFORE_MASK = 3


class CoordinateTrainer(Trainer):
    """Coordinate ascent: exact messages, then every head's closed form, then the chain's natural steps."""

    def run_from(
        self,
        probability: Float[Tensor, "N T K"] | None,
        report: Report | None = None,
        num_rounds: int = MOST_ROUNDS,
        tolerance: float = 1e-4,
        is_masking: bool = True,
    ) -> RunLength:
        """Alternate until the log-likelihood per transition moves by less than `tolerance` in two rounds.

        Args:
            probability: probability of every context at every step to start from; None starts from the present heads.
            report: called after every round.
            num_rounds: largest number of rounds.
            tolerance: smallest change that counts.
            is_masking: let the distillation rule remove contexts on the way.

        Raises:
            DivergenceError: if the log-likelihood is not finite.
        """
        batch = self.data.batch()
        is_used = batch.carries_likelihood()
        obs, act, next_obs = (column[is_used] for column in (batch.obs[:, :-1], batch.act, batch.obs[:, 1:]))
        assert isinstance(self.dynamics, ClosedFormDynamics)
        before, num_still, number = -float("inf"), 0, 0
        for number in range(1, num_rounds + 1):
            if probability is not None:
                self.dynamics.fit_heads(obs, act, next_obs, probability[is_used])
            if is_masking and number > _ROUNDS_BEFORE_MASK:
                self._mask(progress=1.0)
            slots = self.keep.nonzero().squeeze(-1)
            with torch.no_grad():
                log_lik = step_log_lik(self.dynamics, batch, slots)
            self._move_chain(log_lik)
            # Reduced by Theorem 1, which is normalised: mass that spare slots still hold would move the evidence.
            found = smooth(apply_keep_mask(self.posterior(), self.keep), log_lik, batch.lengths)
            probability = log_lik.new_zeros(*is_used.shape, self.prior.max_contexts)
            probability[..., slots] = found.marginals
            value = float(found.log_evidence.double().sum()) / self.data.num_transitions
            if not abs(value) < float("inf"):
                raise DivergenceError(f"the log-likelihood is {value} in round {number} of coordinate ascent")
            if report:
                report(number - 1, -value, len(slots))
            num_still = num_still + 1 if abs(value - before) < tolerance else 0
            before = value
            if num_still >= 2 and number > _ROUNDS_BEFORE_MASK:
                break
        return RunLength(number, is_stopped=num_still >= 2)

    def _move_chain(self, log_lik: Float[Tensor, "N T n"]) -> None:
        if self.prior.max_contexts == 1:
            return
        scale = ElboScale(len(self.data), self.data.num_transitions, keep=self._mask_or_none())
        prior = self._natural_prior()
        for _ in range(_CHAIN_STEPS):
            bound = elbo_of(self.prior, log_lik, log_lik.new_zeros(()), self.data.lengths, scale)
            if bound.loss.requires_grad:
                self._descend(bound.loss)
            if prior is not None:
                prior.natural_step(bound.draws, _STEP, self._counted(self.prior.mean_chain(), log_lik))
