"""Supervised start of networks: every head learns the steps of its context before anything else moves."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from mbrl_hdp.inference.elbo import step_log_lik
from mbrl_hdp.inference.stopping import EarlyStop
from mbrl_hdp.inference.trainer import Trainer

_RATE = 2.0
_CHECK_EVERY = 50
_PATIENCE = 2
_TOLERANCE = 0.01


def warm_up(trainer: Trainer, probability: Float[Tensor, "N T K"], most_steps: int) -> int:
    """Train the heads on labelled steps until the log density per step stops rising; return the number of steps.

    Args:
        trainer: whose heads are trained; contexts that are not kept wait.
        probability: probability of every context at every step.
        most_steps: largest number of steps.
    """
    data, slots = trainer.data, trainer.keep.nonzero().squeeze(-1)
    share = probability[..., slots]
    watch = EarlyStop(_PATIENCE, _TOLERANCE, _CHECK_EVERY, 0, lambda: None)
    trainer.optimiser.param_groups[0]["lr"] = _RATE * trainer.rates[0]
    for step in range(most_steps):
        order = torch.randperm(len(data), generator=trainer.generator)[: trainer.config.batch_size].to(data.device)
        log_lik = step_log_lik(trainer.dynamics, data.batch(order), slots)
        copies = len(data) / len(order)
        likelihood = copies * (share[order] * log_lik).double().sum()
        loss = -(likelihood + trainer.dynamics.log_prior()) / data.num_transitions
        trainer._descend(loss)
        if watch.is_over(step, -float(loss.detach())):
            return step + 1
    return most_steps
