"""Training of one candidate: from random heads, from the contexts of a search or of a model, and its polish."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.coordinate import CoordinateTrainer
from mbrl_hdp.inference.devices import seeded
from mbrl_hdp.inference.dynamics import ClosedFormDynamics
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.prior import StartablePrior
from mbrl_hdp.inference.progress import FitProgress
from mbrl_hdp.inference.schedule import POLISH, FitConfig
from mbrl_hdp.inference.starts import Start
from mbrl_hdp.inference.trainer import Report, RunLength, Trainer
from mbrl_hdp.inference.warm_up import warm_up
from mbrl_hdp.seeding import torch_generator

# One in so many steps of a run from random heads is added to lower its floors before runs are compared.
_SHARPEN = 4
# Rounds of closed-form training from random heads in which the likelihood is tempered.
_TEMPERED = 15
# Steps of the trial that decides how long a polish may be, steps between two looks at other episodes, and by how many
# nats a transition these must have become less likely.
TRIAL_STEPS = 300
_LOOK_EVERY = 50
_LEAST_FALL = 0.05


@dataclass(frozen=True)
class Job:
    """What a run is trained on, what early stopping looks at (None: its own) and the episodes that it is scored on.

    Of these a prediction error counts `most_error` at most (`held_out_score`).
    """

    config: FitConfig
    data: EpisodeTensors
    aside: EpisodeTensors | None
    held_out: Trajectories
    most_error: float = math.inf


def train_run(
    model: ContextModel, job: Job, start: Start, seed: int, from_scratch: bool, bar: FitProgress
) -> RunLength:
    """Train a candidate from where it starts."""
    report = bar.start_run(start.name, job.config.num_steps)
    with seeded(seed, job.data.device):
        is_reset = not from_scratch and not start.is_refit
        kind = CoordinateTrainer if _is_closed_form(model, job.config) and not is_reset else Trainer
        generator = torch_generator(seed, "minibatch")
        trainer = kind(model.prior, model.dynamics, model.distillation, job.data, job.config, start.schedule, generator)
        trainer.keep = model.is_active.clone()
        probability = None if start.contexts is None else _begin(trainer, start)
        if isinstance(trainer, CoordinateTrainer):
            is_masking, is_random = job.config.num_contexts is None, from_scratch and start.contexts is None
            length = trainer.run_from(probability, report, is_masking=is_masking, num_tempered=_TEMPERED * is_random)
            if is_random:
                trainer.merge_alike()
        elif probability is not None:
            model.dynamics.sharpen()  # the contexts are settled
            num_steps = warm_up(trainer, probability, job.config.num_steps)
            trainer.num_steps = max(1, job.config.num_steps // 2)
            length = trainer.run(report, False, job.aside)
            length = RunLength(num_steps + length.num_steps, length.is_stopped)
        else:
            length = trainer.run(report, from_scratch, job.aside)
    model.is_active = trainer.keep
    model.extract()
    if from_scratch and start.contexts is None and job.config.start == "search" and kind is Trainer:
        # Runs are compared with their floors lowered, as the one from the search has them.
        extra = polish(model, job, seed, report, job.config.num_steps // _SHARPEN)
        length = RunLength(length.num_steps + extra.num_steps, length.is_stopped)
    return length


def _is_closed_form(model: ContextModel, config: FitConfig) -> bool:
    """Return whether training takes the closed form of the heads; `start=random` is gradients throughout."""
    return config.start == "search" and isinstance(model.dynamics, ClosedFormDynamics)


def _begin(trainer: Trainer, start: Start) -> torch.Tensor:
    """Set chain and kept slots to the contexts to start from; return their probability at every step."""
    assert start.contexts is not None
    size, device = trainer.prior.max_contexts, trainer.data.device
    if isinstance(trainer.prior, StartablePrior):
        trainer.prior.start_from(start.contexts.chain(size, device), trainer.config.start_strength)
    trainer.keep = start.contexts.is_used(size, device)
    return start.contexts.slots(size, device)


def polish(
    model: ContextModel, job: Job, seed: int, report: Report, num_steps: int, most_steps: int | None = None
) -> RunLength:
    """Train a model with its contexts settled: no slot comes or goes, noise floors fall.

    Only the kept heads run, so this is cheap. It ends after `most_steps` of its `num_steps` where these are given.
    """
    with seeded(seed, job.data.device):
        trainer = _polisher(model, job, seed, num_steps)
        if isinstance(trainer, CoordinateTrainer) and num_steps > 0:
            length = trainer.run_from(None, report, is_masking=False)
        else:
            length = trainer.run(report, from_scratch=False, most_steps=most_steps)
        trainer.settle_chain()
    model.is_settled = job.config.num_contexts is not None
    model.extract()
    return length


def useful_polish(model: ContextModel, job: Job, seed: int, report: Report, num_steps: int) -> int:
    """Return how many steps of a polish make other episodes more likely; the model stays as it is.

    A copy is trained for some steps on the training episodes alone. If those kept aside are then less likely than they
    were at their best, the heads learn their data by heart, and only the steps up to that best are useful.
    Otherwise all are, as where nothing is kept aside or heads have a closed form.
    """
    aside = job.aside
    if aside is None or num_steps <= TRIAL_STEPS or _is_closed_form(model, job.config):
        return num_steps
    with seeded(seed, job.data.device):
        trainer = _polisher(copy.deepcopy(model), job, seed, num_steps)
        found = [trainer.log_likelihood(aside)]

        def look(step: int, loss: float, num_kept: int) -> None:
            report(step, loss, num_kept)
            if (step + 1) % _LOOK_EVERY == 0:
                found.append(trainer.log_likelihood(aside))

        trainer.run(look, from_scratch=False, most_steps=TRIAL_STEPS)
    best = max(range(len(found)), key=found.__getitem__)
    return num_steps if found[-1] >= found[best] - _LEAST_FALL else best * _LOOK_EVERY


def _polisher(model: ContextModel, job: Job, seed: int, num_steps: int) -> Trainer:
    model.is_active = model.is_active & torch.as_tensor(model.kept, device=model.device)
    model.dynamics.sharpen()
    kind = CoordinateTrainer if _is_closed_form(model, job.config) else Trainer
    parts = model.prior, model.dynamics, model.distillation
    trainer = kind(*parts, job.data, job.config, POLISH, torch_generator(seed, "minibatch"), num_steps)
    trainer.keep = model.is_active.clone()
    return trainer


def length_entry(length: RunLength) -> dict[str, Any]:
    """Return a run's length as the fit's report shows it."""
    return {"num_steps": length.num_steps, "stopped_early": length.is_stopped}
