"""Training of one candidate: from random heads, from the contexts of a search or of a model, and its polish."""

from __future__ import annotations

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


def polish(model: ContextModel, job: Job, seed: int, report: Report, num_steps: int) -> RunLength:
    """Train a model with its contexts settled: no slot comes or goes, noise floors fall.

    Only the kept heads run, so this is cheap.
    """
    model.is_active = model.is_active & torch.as_tensor(model.kept, device=model.device)
    model.dynamics.sharpen()
    kind = CoordinateTrainer if _is_closed_form(model, job.config) else Trainer
    with seeded(seed, job.data.device):
        generator = torch_generator(seed, "minibatch")
        parts = model.prior, model.dynamics, model.distillation
        trainer = kind(*parts, job.data, job.config, POLISH, generator, num_steps)
        trainer.keep = model.is_active.clone()
        if isinstance(trainer, CoordinateTrainer) and num_steps > 0:
            length = trainer.run_from(None, report, is_masking=False)
        else:
            length = trainer.run(report, from_scratch=False)
        trainer.settle_chain()
    model.is_settled = job.config.num_contexts is not None
    model.extract()
    return length


def length_entry(length: RunLength) -> dict[str, Any]:
    """Return a run's length as the fit's report shows it."""
    return {"num_steps": length.num_steps, "stopped_early": length.is_stopped}
