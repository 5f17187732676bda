"""One training run: stochastic gradient ascent on the ELBO, with the schedule's order of events."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.utils import get_total_norm

from mbrl_hdp.distil.distiller import Distiller, apply_keep_mask, keep_at_least
from mbrl_hdp.errors import DivergenceError
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.inference.elbo import Elbo, ElboScale, EpisodeBatch, elbo, expected_log_likelihood, step_log_lik
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.prior import ChainDraw, ContextPrior, NaturalPrior, StartablePrior
from mbrl_hdp.inference.recipes import RECIPES
from mbrl_hdp.inference.schedule import FitConfig, Schedule
from mbrl_hdp.inference.stopping import EarlyStop
from mbrl_hdp.probability.hmm import filter_contexts
from mbrl_hdp.types import ContextChain, ContextPosterior

Report = Callable[[int, float, int], None]
# A copy of everything that training changes, but for the optimiser: parameters and kept contexts.
TrainingState = tuple[list[Tensor], Bool[Tensor, " K"]]


@dataclass(frozen=True)
class RunLength:
    """How long a run was.

    Attributes:
        num_steps: steps that it took.
        is_stopped: whether it ended before its last step because nothing improved any more.
    """

    num_steps: int
    is_stopped: bool


class Trainer:
    """Trains a prior and a transition model together on one data set."""

    def __init__(
        self,
        prior: ContextPrior,
        dynamics: ContextDynamics,
        distillation: Distiller,
        data: EpisodeTensors,
        config: FitConfig,
        schedule: Schedule,
        generator: torch.Generator,
        num_steps: int | None = None,
    ) -> None:
        self.prior, self.dynamics, self.distillation = prior, dynamics, distillation
        self.data, self.config, self.schedule = data, config, schedule
        self.recipe = RECIPES[config.recipe]
        self.generator = generator
        self.num_steps = config.num_steps if num_steps is None else num_steps
        self.keep = torch.ones(prior.max_contexts, dtype=torch.bool, device=data.device)
        self.start_chain = sticky_chain(prior.max_contexts, config.stay, data.device)
        prior.prepare()
        top = {id(p) for p in _top_parameters(prior)}
        rows = [p for p in prior.parameters() if id(p) not in top]
        top_rate = self.recipe.top_learning_rate if config.top_learning_rate is None else config.top_learning_rate
        self.optimiser = torch.optim.Adam(
            [
                {"params": list(dynamics.parameters()), "lr": config.learning_rate},
                {"params": _top_parameters(prior), "lr": top_rate},
                {"params": [] if self._natural_prior() else rows, "lr": config.row_learning_rate},
            ]
        )
        self.rates = [group["lr"] for group in self.optimiser.param_groups]

    def run(
        self,
        report: Report | None = None,
        from_scratch: bool = True,
        held_out: EpisodeTensors | None = None,
        most_steps: int | None = None,
    ) -> RunLength:
        """Take all steps, or fewer where the settings have patience; `report(step, loss, num_kept)` after each.

        Args:
            report: called after every step.
            from_scratch: start the chain where the recipe does, the heads together where the schedule says so; False
                goes on from where prior and heads are.
            held_out: other episodes for early stopping to look at; the bound on the run's own by default.
            most_steps: end after so many steps, with the learning rates of the whole run.

        Raises:
            DivergenceError: in the step in which the loss or a gradient is not finite.
        """
        if from_scratch and self.recipe.has_sticky_start and isinstance(self.prior, StartablePrior):
            self.prior.start_from(self.start_chain, self.config.start_strength)
        watch = self._early_stop(held_out) if self.config.patience else None
        num_pooled = math.floor(self.schedule.pool_until * self.num_steps) if from_scratch else 0
        num_steps, is_over = 0, False
        last = self.num_steps if most_steps is None else min(most_steps, self.num_steps)
        while num_steps < last and not is_over:
            try:
                loss = self._pool_step() if num_steps < num_pooled else self._step(num_steps / self.num_steps)
            except DivergenceError as error:
                raise DivergenceError(f"{error} in gradient step {num_steps} of run {self.schedule.name!r}") from error
            if num_steps == num_pooled - 1:
                self._part()
            if report:
                report(num_steps, loss, int(self.keep.sum()))
            is_over = watch is not None and watch.is_over(num_steps, -loss / self._loss_unit())
            num_steps += 1
        if watch is not None and watch.best is not None:
            self._restore(watch.best)
        return RunLength(num_steps, is_stopped=num_steps < self.num_steps)

    def _early_stop(self, held_out: EpisodeTensors | None) -> EarlyStop[TrainingState]:
        config = self.config
        first = math.ceil(self.schedule.last_event() * self.num_steps)
        measure = None if held_out is None else lambda: self.log_likelihood(held_out)
        return EarlyStop(config.patience, config.tolerance, config.check_every, first, self._state, measure)

    def _state(self) -> TrainingState:
        return [value.detach().clone() for value in self._values()], self.keep.clone()

    def _restore(self, state: TrainingState) -> None:
        values, self.keep = state
        with torch.no_grad():
            for value, saved in zip(self._values(), values, strict=True):
                value.copy_(saved)

    def _values(self) -> list[Tensor]:
        return [*self.prior.parameters(), *self.dynamics.parameters()]

    def log_likelihood(self, data: EpisodeTensors) -> float:
        """Return the log-likelihood per transition of episodes under the expected chain of the kept contexts."""
        with torch.no_grad():
            slots = self.keep.nonzero().squeeze(-1)
            batch = data.batch()
            found = filter_contexts(
                apply_keep_mask(self.posterior(), self.keep), step_log_lik(self.dynamics, batch, slots), batch.lengths
            )
            return float(found.log_evidence.double().sum()) / data.num_transitions

    def _loss_unit(self) -> float:
        """Return what the loss must be divided by to be one of one transition."""
        return 1.0 if self.recipe.is_loss_per_transition else float(self.data.num_transitions)

    def _natural_prior(self) -> NaturalPrior | None:
        """Return the prior if its rows move by natural steps; None if the optimiser moves them."""
        return self.prior if self.recipe.has_natural_steps and isinstance(self.prior, NaturalPrior) else None

    def _step(self, progress: float) -> float:
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.schedule.rate(progress)
        if progress >= self.schedule.distil_from:
            self._mask(progress)
        batch = self._minibatch()
        scale = ElboScale(
            len(self.data),
            self.data.num_transitions if self.recipe.is_loss_per_transition else 1,
            self.schedule.temperature(progress),
            self._mask_or_none(),
            reduce=self.recipe.reduce,
        )
        bound: Elbo | None = None
        if progress < self.schedule.freeze_until:
            loss = self._frozen_loss(batch, scale)
        else:
            bound = elbo(self.prior, self.dynamics, batch, scale)
            loss = bound.loss
        self._descend(loss)
        prior = self._natural_prior()
        if bound is not None and prior is not None:
            prior.natural_step(bound.draws, self.config.natural_step)
        return float(loss.detach())

    def _descend(self, loss: Float[Tensor, ""]) -> None:
        """Take one step.

        Raises:
            DivergenceError: if the loss or a gradient is not finite; nothing is changed then.
        """
        if not bool(loss.isfinite()):
            raise DivergenceError(f"the model's loss is {float(loss.detach())}")
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        if not _is_finite([p.grad for p in parameters if p.grad is not None]):
            raise DivergenceError("a gradient of the model is not finite")
        torch.nn.utils.clip_grad_value_(parameters, self.config.clip)
        self.optimiser.step()

    def _pool_step(self) -> float:
        """Train the first head as if there were one context; the others do not run."""
        self.optimiser.param_groups[0]["lr"] = self.rates[0] * self.schedule.pool_rate
        batch = self._minibatch()
        first = torch.zeros(1, dtype=torch.long, device=self.data.device)
        copies = len(self.data) / len(batch.lengths)
        likelihood = copies * step_log_lik(self.dynamics, batch, first).double().sum()
        loss = -(likelihood + self.dynamics.log_prior()) / self.data.num_transitions
        self._descend(loss)
        return float(loss.detach())

    def _part(self) -> None:
        """Start every head from the first one, each a little off; what differs between contexts drives them apart."""
        self.dynamics.start_near(0, self.schedule.spread, self.generator)
        self.optimiser.state.clear()

    def _minibatch(self) -> EpisodeBatch:
        if self.config.batch_size >= len(self.data):
            return self.data.batch()
        order = torch.randperm(len(self.data), generator=self.generator)  # the same on every device
        return self.data.batch(order[: self.config.batch_size].to(self.data.device))

    def _frozen_loss(self, batch: EpisodeBatch, scale: ElboScale) -> Float[Tensor, ""]:
        """Return the loss while the chain is held: the heads learn, the prior waits."""
        slots = None if scale.keep is None else scale.keep.nonzero().squeeze(-1)
        log_lik = step_log_lik(self.dynamics, batch, slots)
        evidence = expected_log_likelihood(self.start_chain, log_lik, batch.lengths, scale).log_evidence.double().sum()
        copies = scale.num_episodes / len(batch.lengths)
        return -(copies * evidence + self.dynamics.log_prior()) / scale.num_transitions

    def settle_chain(self, num_jumps: int = 5, num_rounds: int = 15) -> None:
        """Bring the chain to its optimum for the heads as they are, on all data; only where the prior can.

        Minibatches leave the chain scattered around it. After `num_jumps` full steps, falling ones average over draws.
        """
        if not isinstance(self.prior, NaturalPrior):
            return
        slots = self.keep.nonzero().squeeze(-1)
        with torch.no_grad():
            log_lik = step_log_lik(self.dynamics, self.data.batch(), slots)
            for number in range(num_rounds):
                draw, centre = (
                    self._counted(chain, log_lik) for chain in (self.prior.sample_chain(), self.prior.mean_chain())
                )
                self.prior.natural_step([draw], 1.0 / max(1, number - num_jumps + 2), centre)

    def _counted(self, chain: ContextChain, log_lik: Float[Tensor, "N T n"]) -> ChainDraw:
        scale = ElboScale(len(self.data), self.data.num_transitions, keep=self.keep)
        found = expected_log_likelihood(chain, log_lik, self.data.lengths, scale)
        return ChainDraw(chain, found.expected_initial, found.expected_transitions)

    def _mask(self, progress: float) -> None:
        if not self.recipe.is_distilled_for_good:
            self.keep = torch.ones_like(self.keep)
        posterior = self.posterior(is_training=True)
        minimum = 2 if progress < self.schedule.keep_two_until else 1
        self.keep = keep_at_least(posterior, self.distillation.keep(posterior), minimum).to(self.keep.device)

    def _mask_or_none(self) -> Bool[Tensor, " K"] | None:
        return None if bool(self.keep.all()) else self.keep

    def posterior(self, is_training: bool = False) -> ContextPosterior:
        """Return what the distillation rule looks at."""
        weights = self.prior.top_weights()
        return ContextPosterior(
            self.prior.mean_chain(), None if weights is None else weights.detach(), self.keep, is_training
        )


def sticky_chain(max_contexts: int, stay: float, device: torch.device | str = "cpu") -> ContextChain:
    """Return the chain that training starts from: `stay` on the diagonal, the rest spread over all contexts."""
    uniform = torch.full((max_contexts,), 1.0 / max_contexts, device=device)
    return ContextChain(uniform, (1.0 - stay) * uniform + stay * torch.eye(max_contexts, device=device))


def _is_finite(gradients: list[Tensor]) -> bool:
    """Return whether all numbers are finite; the norm settles it but for numbers whose squares overflow."""
    return bool(get_total_norm(gradients).isfinite()) or all(bool(each.isfinite().all()) for each in gradients)


def _top_parameters(prior: ContextPrior) -> list[torch.nn.Parameter]:
    parameters = getattr(prior, "top_parameters", None)
    return list(parameters()) if callable(parameters) else []
