"""A cell that fits cart-pole data: once, or as a run that branches when distillation begins, one branch a threshold.

Branching changes no result, because a run reads its threshold for the first time when distillation begins: up to
there the runs of all thresholds are the same run, generators included.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.distil.distiller import Distiller
from mbrl_hdp.experiments.studies.cartpole_fit import episodes, held_out_episodes, parts_of, run_fit, score
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.prior import StartablePrior
from mbrl_hdp.inference.schedule import TEMPERED, FitConfig, Schedule
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.trainer import Trainer
from mbrl_hdp.probability.markov import stationary
from mbrl_hdp.seeding import sub_seed, torch_generator
from mbrl_hdp.types import ContextPosterior, TaskSpec

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings


@runtime_checkable
class HasTrainThreshold(Protocol):
    """A distillation rule with a threshold of its own for training."""

    train_threshold: float


class BranchingRun(Trainer):
    """A training run that can stop on the way, be copied there and go on."""

    def start(self) -> None:
        """Start the chain at the sticky one, as a run from scratch does."""
        if isinstance(self.prior, StartablePrior):
            self.prior.start_from(self.start_chain, self.config.start_strength)

    def advance(self, start: int, stop: int) -> None:
        """Take the steps from `start` up to, not including, `stop`."""
        for step in range(start, stop):
            self._step(step / self.num_steps)


def branch_step(schedule: Schedule, num_steps: int) -> int:
    """Return the first step at which the schedule distils."""
    return min(math.ceil(schedule.distil_from * num_steps), num_steps)


def run_cell(settings: Settings) -> Results:
    """Run one cell: with branches where the settings list `thresholds`, else a plain fit."""
    return run_branches(settings) if "thresholds" in settings else run_fit(settings)


def run_branches(settings: Settings) -> Results:
    """Train one cell with every threshold; return the scores of each, by threshold.

    Settings are those of `cartpole_fit.fit_settings` with `thresholds` instead of a rule's own.
    """
    data, held_out = episodes(settings), held_out_episodes(settings)
    config = FitConfig(**settings["fit"])
    schedule = replace(TEMPERED)
    model = _untrained(settings, data)
    tensors = EpisodeTensors.of(data)
    results = {}
    with torch.random.fork_rng(devices=[]):
        run = _start(model, tensors, config, schedule, settings["seed"])
        step = branch_step(schedule, config.num_steps)
        started = time.perf_counter()
        run.advance(0, step)
        trunk_s = time.perf_counter() - started
        state = torch.random.get_rng_state()
        for threshold in settings["thresholds"]:
            torch.random.set_rng_state(state)
            branch_model, branch = _branch(model, run, threshold)
            branch.advance(step, config.num_steps)
            branch_model.is_active = branch.keep
            results[str(threshold)] = score_branch(branch_model, data, held_out)
    return {"branches": results, "trunk_time_s": round(trunk_s, 1)}


def score_branch(model: ContextModel, data: Trajectories, held_out: Trajectories) -> Results:
    """Score a trained branch as it is extracted, and with its two largest contexts alone (the paper's R_K)."""
    model.extract()
    scored = score(model, data, held_out)
    model.distillation = TwoLargest()
    model.extract()
    assert held_out.context is not None
    aligned = align(model.smooth(held_out).argmax(-1), held_out.context)
    order = aligned.to_true.argsort()
    two = model.transition[order][:, order]
    return scored | {"two_accuracy": aligned.accuracy, "two_transition": two.tolist()}


class TwoLargest(Distiller):
    """Keep the two active contexts with the largest stationary mass: the paper's choice a posteriori."""

    def keep(self, posterior: ContextPosterior) -> Bool[Tensor, " K"]:
        """Keep two, or the one that is left."""
        masses = stationary(posterior.chain.transition, posterior.chain.initial)
        if posterior.is_active is not None:
            masses = masses * posterior.is_active
        keep = torch.zeros_like(masses, dtype=torch.bool)
        keep[masses.argsort(descending=True)[:2]] = True
        return keep


def _untrained(settings: Settings, data: Trajectories) -> ContextModel:
    registry = load_registry()
    parts = parts_of(registry, settings)
    seed = sub_seed(settings["seed"], "start", 0)
    model = build_model(parts, TaskSpec(settings["max_contexts"], data.obs_dim, data.act_dim, seed=seed), registry)
    model.dynamics.set_normaliser(*(torch.as_tensor(rows, dtype=torch.float32) for rows in data.transitions()))
    return model


def _start(model: ContextModel, data: EpisodeTensors, config: FitConfig, schedule: Schedule, seed: int) -> BranchingRun:
    torch.manual_seed(sub_seed(seed, "run", 0))
    generator = torch_generator(sub_seed(seed, "run", 0), "minibatch")
    run = BranchingRun(model.prior, model.dynamics, model.distillation, data, config, schedule, generator)
    run.start()
    return run


def _branch(model: ContextModel, run: BranchingRun, threshold: float) -> tuple[ContextModel, BranchingRun]:
    """Copy model, optimiser and minibatch generator together, so that they still belong to each other."""
    generator = torch.Generator().set_state(run.generator.get_state())
    memo = {id(run.data): run.data, id(run.generator): generator}
    new_model, new_run = copy.deepcopy((model, run), memo)
    assert new_run.prior is new_model.prior
    assert isinstance(new_run.distillation, HasTrainThreshold)
    new_run.distillation.train_threshold = threshold
    return new_model, new_run
