"""One training run: stochastic gradient ascent on the ELBO, with the schedule's order of events."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mbrl_hdp.distil.distiller import Distiller, keep_at_least
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.inference.elbo import Elbo, ElboScale, EpisodeBatch, elbo, expected_log_likelihood, step_log_lik
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.prior import ContextPrior, NaturalPrior, StartablePrior
from mbrl_hdp.inference.schedule import FitConfig, Schedule
from mbrl_hdp.types import ContextChain, ContextPosterior

Report = Callable[[int, float, int], None]


class Trainer:
    """Trains a prior and a transition model together on one data set."""

    def __init__(
        self,
        prior: ContextPrior,
        dynamics: ContextDynamics,
        distiller: Distiller,
        data: EpisodeTensors,
        config: FitConfig,
        schedule: Schedule,
        generator: torch.Generator,
        num_steps: int | None = None,
    ) -> None:
        self.prior, self.dynamics, self.distiller = prior, dynamics, distiller
        self.data, self.config, self.schedule = data, config, schedule
        self.generator = generator
        self.num_steps = config.num_steps if num_steps is None else num_steps
        self.keep = torch.ones(prior.max_contexts, dtype=torch.bool)
        self.start_chain = sticky_chain(prior.max_contexts, config.stay)
        prior.prepare()
        top = {id(p) for p in _top_parameters(prior)}
        rows = [p for p in prior.parameters() if id(p) not in top]
        is_natural = isinstance(prior, NaturalPrior)
        self.optimiser = torch.optim.Adam(
            [
                {"params": list(dynamics.parameters()), "lr": config.learning_rate},
                {"params": _top_parameters(prior), "lr": config.top_learning_rate},
                {"params": [] if is_natural else rows, "lr": config.row_learning_rate},
            ]
        )
        self.rates = [group["lr"] for group in self.optimiser.param_groups]

    def run(self, report: Report | None = None, from_scratch: bool = True) -> None:
        """Take all steps; `report(step, loss, num_kept)` is called after each.

        Args:
            report: told about every step.
            from_scratch: start the chain at the sticky one; False goes on from where the prior is.
        """
        if from_scratch and isinstance(self.prior, StartablePrior):
            self.prior.start_from(self.start_chain, self.config.start_strength)
        for step in range(self.num_steps):
            loss = self._step(step / self.num_steps)
            if report:
                report(step, loss, int(self.keep.sum()))

    def _step(self, progress: float) -> float:
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.schedule.rate(progress)
        if progress >= self.schedule.distil_from:
            self._mask(progress)
        batch = self._minibatch()
        scale = ElboScale(
            len(self.data), self.data.num_transitions, self.schedule.temperature(progress), self._mask_or_none()
        )
        self.optimiser.zero_grad(set_to_none=True)
        bound: Elbo | None = None
        if progress < self.schedule.freeze_until:
            loss = self._frozen_loss(batch, scale)
        else:
            bound = elbo(self.prior, self.dynamics, batch, scale)
            loss = bound.loss
        loss.backward()
        torch.nn.utils.clip_grad_value_(
            [p for group in self.optimiser.param_groups for p in group["params"]], self.config.clip
        )
        self.optimiser.step()
        if bound is not None and isinstance(self.prior, NaturalPrior):
            self.prior.natural_step(bound.expected_initial, bound.expected_transitions, self.config.natural_step)
        return float(loss.detach())

    def _minibatch(self) -> EpisodeBatch:
        if self.config.batch_size >= len(self.data):
            return self.data.batch()
        order = torch.randperm(len(self.data), generator=self.generator)
        return self.data.batch(order[: self.config.batch_size])

    def _frozen_loss(self, batch: EpisodeBatch, scale: ElboScale) -> Float[Tensor, ""]:
        """Give the loss while the chain is held: the heads learn, the prior waits."""
        slots = None if scale.keep is None else scale.keep.nonzero().squeeze(-1)
        log_lik = step_log_lik(self.dynamics, batch, slots)
        evidence = expected_log_likelihood(self.start_chain, log_lik, batch.lengths, scale).log_evidence.double().sum()
        copies = scale.num_episodes / len(batch.lengths)
        return -(copies * evidence + self.dynamics.log_prior()) / scale.num_transitions

    def settle_chain(self, num_rounds: int = 5) -> None:
        """Bring the chain to its optimum for the heads as they are, on all data; only where the prior can.

        Minibatches leave the chain scattered around it.
        """
        if not isinstance(self.prior, NaturalPrior):
            return
        slots = self.keep.nonzero().squeeze(-1)
        scale = ElboScale(len(self.data), self.data.num_transitions, keep=self.keep)
        with torch.no_grad():
            log_lik = step_log_lik(self.dynamics, self.data.batch(), slots)
            for _ in range(num_rounds):
                found = expected_log_likelihood(self.prior.mean_chain(), log_lik, self.data.lengths, scale)
                self.prior.natural_step(found.expected_initial, found.expected_transitions, 1.0)

    def _mask(self, progress: float) -> None:
        posterior = self.posterior(is_training=True)
        minimum = 2 if progress < self.schedule.keep_two_until else 1
        self.keep = keep_at_least(posterior, self.distiller.keep(posterior), minimum)

    def _mask_or_none(self) -> Bool[Tensor, " K"] | None:
        return None if bool(self.keep.all()) else self.keep

    def posterior(self, is_training: bool = False) -> ContextPosterior:
        """Give what the distillation rule looks at."""
        weights = self.prior.top_weights()
        return ContextPosterior(
            self.prior.mean_chain(), None if weights is None else weights.detach(), self.keep, is_training
        )


def sticky_chain(max_contexts: int, stay: float) -> ContextChain:
    """Give the chain that training starts from: `stay` on the diagonal, the rest spread over all contexts."""
    uniform = torch.full((max_contexts,), 1.0 / max_contexts)
    return ContextChain(uniform, (1.0 - stay) * uniform + stay * torch.eye(max_contexts))


def _top_parameters(prior: ContextPrior) -> list[torch.nn.Parameter]:
    give = getattr(prior, "top_parameters", None)
    return list(give()) if callable(give) else []
