"""`fit`: from trajectories to a model of how many contexts there are, how they switch and what each does."""

from __future__ import annotations

import copy
import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError, DivergenceError, FitError
from mbrl_hdp.hooks import Registry, load_registry
from mbrl_hdp.inference.agreement import agreement_with, half_agreement, shares_by_context
from mbrl_hdp.inference.choice import DIVERGED_ADVICE, HeldOutScore, choose, equally_good, held_out_score
from mbrl_hdp.inference.coordinate import CoordinateTrainer
from mbrl_hdp.inference.devices import check_device, has_small_networks, resolve_device, seeded
from mbrl_hdp.inference.dynamics import ClosedFormDynamics
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.levels import add_levels
from mbrl_hdp.inference.model import ContextModel, FitReport, ModelParts, Part
from mbrl_hdp.inference.precision import check_precision
from mbrl_hdp.inference.prior import StartablePrior
from mbrl_hdp.inference.progress import FitProgress
from mbrl_hdp.inference.recipes import RECIPES, Recipe
from mbrl_hdp.inference.residuals import explainable_share
from mbrl_hdp.inference.revisit import Revisit, revisit
from mbrl_hdp.inference.schedule import POLISH, FitConfig
from mbrl_hdp.inference.search import Structure
from mbrl_hdp.inference.starts import SeveralDynamics, Start, informed, plan_starts
from mbrl_hdp.inference.structure import search_structure
from mbrl_hdp.inference.trainer import RunLength, Trainer
from mbrl_hdp.inference.warm_up import warm_up
from mbrl_hdp.seeding import sub_seed, torch_generator
from mbrl_hdp.settings import check_settings
from mbrl_hdp.types import TaskSpec

# With fewer episodes none is kept aside.
FEWEST_TO_SPLIT = 20
# Networks are not tried where they could explain less than this of what closed-form heads leave over.
_LEAST_EXPLAINABLE = 0.03


def fit(
    data: Trajectories,
    prior: str | Part = "hdp",
    distillation: str | Part = "stationary",
    dynamics: str | Part = "auto",
    max_contexts: int = 10,
    seed: int = 0,
    *,
    config: FitConfig | None = None,
    warm_start: ContextModel | None = None,
    reset: str | None = None,
    dt: float | None = None,
    progress: bool = True,
    registry: Registry | None = None,
    device: str = "auto",
) -> ContextModel:
    """Learn a context model from trajectories.

    Args:
        data: episodes; actions, true contexts and rewards are optional (true contexts are never looked at).
        prior: name of a registered prior, or a `Part` with its settings.
        distillation: name of a registered distillation rule, or a `Part`.
        dynamics: name of a registered transition model, or a `Part`; auto compares several on held-out episodes.
        max_contexts: upper bound on the number of contexts; too large costs time, not quality.
        seed: seed of the fit; the same data, settings and seed give the same model.
        config: recipe, budget, learning rates, schedules, restarts and early stopping.
        warm_start: go on from this model's posterior (its parts and max_contexts are taken over). Contexts are added or
            removed where its residuals say so and held-out episodes agree (docs/contexts.md).
        reset: with `warm_start`: "chain" keeps the networks and opens the chain again, so that new contexts can move
            into free slots.
        dt: seconds per step, for transition models that integrate positions.
        progress: show a progress bar when there is a terminal.
        registry: plugins to choose from; all installed ones by default.
        device: where it is learned: cpu, cuda, or auto (cuda only if there is one and the networks are not small).

    Returns:
        The model of the best run, distilled, on the CPU.

    Example:
        >>> model = fit(data, max_contexts=10, seed=0)
        >>> model.num_contexts, model.transition
    """
    started = time.perf_counter()
    config = config or FitConfig()
    check_settings(config, "fit")
    recipe = RECIPES[config.recipe]
    config = recipe.settle(config)
    check_device(device)
    _check_data(data, warm_start, reset, max_contexts)
    registry = registry or load_registry()
    build = _Builder(registry, data, (prior, dynamics, distillation), max_contexts, dt, seed, recipe)
    families = [warm_start.parts.dynamics] if warm_start else build.families
    place = resolve_device(device, lambda: has_small_networks((warm_start or build(0, families[-1])).dynamics))
    train, held_out = _hold_out(data, config.holdout, seed)
    job = _Job(config, EpisodeTensors.of(train, device=place), _aside(train, held_out, place), held_out)
    structure = _searched(train, config, max_contexts, seed) if warm_start is None else None
    if warm_start is None:
        families = [informed(part, structure, data.obs_dim) for part in families]
        starts = [start for part in families for start in build.starts(part, structure, config)]
    else:
        starts = _refits(warm_start, config, recipe, reset)
    runs = _Runs(job, build, warm_start, reset, seed, place)
    with FitProgress(len(starts), len(starts) * config.num_steps + config.polish_steps, progress) as bar:
        for start in starts:
            runs.take(start, bar)
        again = _revisited(runs, train, config, reset)
        for start in again.starts:
            runs.take(start, bar)
        best = runs.choose()
        model = runs.results[best].model
        polish: dict[str, Any] = {}
        if recipe.is_polished:
            whole = _Job(config, EpisodeTensors.of(data, device=place), None, held_out)
            polish = _length_entry(_polish(model, whole, sub_seed(seed, "polish"), bar))
    found = _search_entry(structure or again.structure, model, train) | again.entry | {"skipped": runs.skipped}
    if structure is not None and structure.time_s <= config.halves_within_s:
        found["half_agreement"] = half_agreement(
            model, train, lambda half: _search(half, config, max_contexts, seed), seed
        )
    model.report = FitReport(
        num_episodes=data.num_episodes,
        num_transitions=int(data.is_observed.sum()),
        seed=seed,
        runs=runs.entries(best),
        polish=polish,
        search=found,
    )
    model = model.to("cpu")
    if warm_start is None:
        add_levels(model, data)
    model.report.fit_time_s = time.perf_counter() - started
    return model


def _searched(train: Trajectories, config: FitConfig, max_contexts: int, seed: int) -> Structure | None:
    """Return what the structure search finds; None where it is not wanted or there is too little data.

    Raises:
        ConfigError: if the number of contexts is given where nothing can hold it.
        FitError: if it is given and there is too little data to find them.
    """
    wanted = config.num_contexts
    if wanted is not None and (config.start != "search" or wanted > max_contexts):
        raise ConfigError(
            f"fit.num_contexts={wanted} needs fit.start=search and max_contexts of at least as many; got "
            f"fit.start={config.start} and max_contexts={max_contexts}"
        )
    if config.start != "search":
        return None
    found = _search(train, config, max_contexts, seed)
    if found is None and wanted is not None:
        raise FitError(f"fit.num_contexts={wanted}, but there is too little data to tell contexts apart; record more")
    return found


def _search(data: Trajectories, config: FitConfig, max_contexts: int, seed: int) -> Structure | None:
    return search_structure(data, max_contexts, config.num_contexts, sub_seed(seed, "search"), config.regions)


def _revisited(runs: _Runs, train: Trajectories, config: FitConfig, reset: str | None) -> Revisit:
    """Return the candidates with other contexts that compete with a refit; none for a fit that starts afresh."""
    before = runs.warm_start
    if before is None or reset is not None or config.start != "search" or not runs.results:
        return Revisit()
    if runs.results[0].model.num_contexts == config.num_contexts:
        return Revisit()
    seed, most = runs.seed, before.task.max_contexts
    return revisit(
        runs.results[0].model,
        train,
        before.report.search,
        runs.build.recipe.refit,
        search=lambda: _searched(train, config, most, seed),
        build=lambda part: runs.build.again(before, part),
        seed=sub_seed(seed, "look"),
    )


@dataclass(frozen=True)
class _Job:
    """What a run is trained on, what early stopping looks at (None: its own) and the episodes that it is scored on."""

    config: FitConfig
    data: EpisodeTensors
    aside: EpisodeTensors | None
    held_out: Trajectories


@dataclass(frozen=True)
class _Result:
    """A finished run."""

    start: Start
    model: ContextModel
    score: HeldOutScore
    length: RunLength
    time_s: float

    def entry(self, is_taken: bool) -> dict[str, Any]:
        """Return the run as the fit's report shows it."""
        return {
            "dynamics": self.start.dynamics.name,
            "schedule": self.start.name,
            "num_contexts": self.model.num_contexts,
            "held_out_log_likelihood": self.score.log_likelihood,
            "held_out_rmse": self.score.rmse,
            "taken": is_taken,
            "time_s": self.time_s,
            **_length_entry(self.length),
        }


@dataclass
class _Runs:
    """The runs of a fit: trains candidates one after the other and leaves out those that cannot win."""

    job: _Job
    build: _Builder
    warm_start: ContextModel | None
    reset: str | None
    seed: int
    place: torch.device

    def __post_init__(self) -> None:
        self.results: list[_Result] = []
        self.skipped: list[str] = []
        self._diverged: list[str] = []
        self._number = 0

    def take(self, start: Start, bar: FitProgress) -> None:
        """Train a candidate, unless nothing is left for it to explain; one that diverges is left out."""
        number, self._number = self._number, self._number + 1
        if self._is_needless(start):
            self.skipped.append(f"{start.dynamics.name} ({start.name})")
            return
        if start.model is not None:
            model = copy.deepcopy(start.model).to(self.place)
        elif self.warm_start is None:
            model = self.build(number, start.dynamics).to(self.place)
        else:
            model = _continued(self.warm_start, self.reset, self.build).to(self.place)
        began = time.perf_counter()
        try:
            length = _train(model, self.job, start, sub_seed(self.seed, "run", number), self.warm_start is None, bar)
            score = held_out_score(model, self.job.held_out)
        except DivergenceError as error:  # the other runs may do better
            self._diverged.append(str(error))
            return
        bar.end_run(model.num_contexts, length.num_steps, length.is_stopped)
        self.results.append(_Result(start, model, score, length, time.perf_counter() - began))

    def choose(self) -> int:
        """Return the number of the best run.

        Raises:
            DivergenceError: if every run diverged.
            FitError: if no run has the number of contexts that was asked for.
        """
        if not self.results:
            raise DivergenceError(f"every run diverged ({self._diverged[0]}); {DIVERGED_ADVICE}")
        wanted = self.job.config.num_contexts
        allowed = [i for i, run in enumerate(self.results) if wanted in (None, run.model.num_contexts)]
        if not allowed:
            raise FitError(
                f"fit.num_contexts={wanted}, but distillation left {self.results[0].model.num_contexts}: lower "
                "distillation.train_threshold and distillation.test_threshold"
            )
        return allowed[choose([self.results[i].score for i in allowed])]

    def entries(self, best: int) -> list[dict[str, Any]]:
        """Return the runs as the fit's report shows them."""
        taken = self.results[best].model
        equal = equally_good([run.score for run in self.results])
        agreement = agreement_with(taken, [run.model for run in self.results], self.job.held_out)
        return [
            run.entry(number == best) | {"equally_good": number in equal, "agreement": agreement[number]}
            for number, run in enumerate(self.results)
        ]

    def _is_needless(self, start: Start) -> bool:
        """Return whether other heads explain all that state and action can, so that networks have nothing to add."""
        others = [run for run in self.results if run.start.dynamics.name != start.dynamics.name]
        if not others or len(self.build.families) == 1 or self.build.has_closed_form(start.dynamics):
            return False
        best = others[choose([run.score for run in others])].model
        return explainable_share(best, self.job.held_out) < _LEAST_EXPLAINABLE


class _Builder:
    """Builds a fresh model for every run."""

    def __init__(
        self,
        registry: Registry,
        data: Trajectories,
        parts: tuple[str | Part, str | Part, str | Part],
        max_contexts: int,
        dt: float | None,
        seed: int,
        recipe: Recipe,
    ) -> None:
        self.registry, self.seed, self.recipe = registry, seed, recipe
        self.sizes: dict[str, Any] = {
            "max_contexts": max_contexts, "obs_dim": data.obs_dim, "act_dim": data.act_dim, "dt": dt
        }  # fmt: skip
        self.prior, dynamics, self.distillation = (
            self._part(kind, part) for kind, part in zip(("prior", "dynamics", "distillation"), parts, strict=True)
        )
        several = dynamics.config.candidates() if isinstance(dynamics.config, SeveralDynamics) else None
        named = [(dynamics.name, dynamics.config)] if several is None else several
        self.families = [Part(name, recipe.settle_dynamics(config)) for name, config in named]
        self.rows = [torch.as_tensor(rows, dtype=torch.float32) for rows in data.transitions()]

    def _part(self, kind: str, part: str | Part) -> Part:
        if isinstance(part, Part):
            self.registry.get(kind, part.name)
            return part
        return Part(part, self.registry.get(kind, part).spec.config())

    def starts(self, part: Part, structure: Structure | None, config: FitConfig) -> list[Start]:
        """Return the candidates of one transition model."""
        return plan_starts(part, self.has_closed_form(part), structure, config)

    def has_closed_form(self, part: Part) -> bool:
        """Return whether a transition model's heads have a closed form."""
        task = TaskSpec(**self.sizes | {"max_contexts": 1}, seed=0)
        return isinstance(self.registry.build_dynamics(part.name, task, part.config), ClosedFormDynamics)

    def __call__(self, run: int, dynamics: Part) -> ContextModel:
        task = TaskSpec(**self.sizes, seed=sub_seed(self.seed, "start", run))
        return self._fresh(ModelParts(self.prior, dynamics, self.distillation), task)

    def again(self, model: ContextModel, dynamics: Part) -> ContextModel:
        """Return a fresh model like another one, with another transition model."""
        return self._fresh(dataclasses.replace(model.parts, dynamics=dynamics), model.task)

    def _fresh(self, parts: ModelParts, task: TaskSpec) -> ContextModel:
        model = build_model(parts, task, self.registry)
        if self.recipe.is_normalised:
            model.dynamics.set_normaliser(*self.rows)
        return model


def build_model(parts: ModelParts, task: TaskSpec, registry: Registry) -> ContextModel:
    """Build an untrained model from its parts."""
    return ContextModel(
        task,
        registry.build_prior(parts.prior.name, task, parts.prior.config),
        registry.build_dynamics(parts.dynamics.name, task, parts.dynamics.config),
        registry.build_distillation(parts.distillation.name, task, parts.distillation.config),
        parts,
    )


def _train(model: ContextModel, job: _Job, start: Start, seed: int, from_scratch: bool, bar: FitProgress) -> RunLength:
    """Train a candidate from where it starts."""
    report = bar.start_run(start.name, job.config.num_steps)
    has_closed_form = isinstance(model.dynamics, ClosedFormDynamics) and (start.contexts or not from_scratch)
    with seeded(seed, job.data.device):
        kind = CoordinateTrainer if has_closed_form else Trainer
        generator = torch_generator(seed, "minibatch")
        trainer = kind(model.prior, model.dynamics, model.distillation, job.data, job.config, start.schedule, generator)
        trainer.keep = model.is_active.clone()
        probability = None if start.contexts is None else _begin(trainer, start)
        if isinstance(trainer, CoordinateTrainer):
            length = trainer.run_from(probability, report, is_masking=job.config.num_contexts is None)
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
    return length


def _begin(trainer: Trainer, start: Start) -> torch.Tensor:
    """Set chain and kept slots to the contexts to start from; return their probability at every step."""
    assert start.contexts is not None
    size, device = trainer.prior.max_contexts, trainer.data.device
    if isinstance(trainer.prior, StartablePrior):
        trainer.prior.start_from(start.contexts.chain(size, device), trainer.config.start_strength)
    trainer.keep = start.contexts.is_used(size, device)
    return start.contexts.slots(size, device)


def _polish(model: ContextModel, job: _Job, seed: int, bar: FitProgress) -> RunLength:
    """Train the chosen model on all data with its contexts settled: no slot comes or goes, noise floors fall.

    Only the kept heads run, so this is cheap.
    """
    model.is_active = model.is_active & torch.as_tensor(model.kept, device=model.device)
    model.dynamics.sharpen()
    report = bar.start_run("polish", job.config.polish_steps)
    kind = CoordinateTrainer if isinstance(model.dynamics, ClosedFormDynamics) else Trainer
    with seeded(seed, job.data.device):
        generator = torch_generator(seed, "minibatch")
        parts = model.prior, model.dynamics, model.distillation
        trainer = kind(*parts, job.data, job.config, POLISH, generator, job.config.polish_steps)
        trainer.keep = model.is_active.clone()
        if isinstance(trainer, CoordinateTrainer):
            length = trainer.run_from(None, report, is_masking=False)
        else:
            length = trainer.run(report, from_scratch=False)
        trainer.settle_chain()
    model.extract()
    bar.end_run(model.num_contexts, length.num_steps, length.is_stopped)
    return length


def _refits(warm_start: ContextModel, config: FitConfig, recipe: Recipe, reset: str | None) -> list[Start]:
    """Return the runs that go on from a model."""
    part = warm_start.parts.dynamics
    if reset is None or isinstance(warm_start.dynamics, ClosedFormDynamics):
        return [Start(recipe.refit.name, part, recipe.refit)]
    return plan_starts(part, False, None, config)


def _continued(model: ContextModel, reset: str | None, build: _Builder) -> ContextModel:
    """Copy a model to go on from; `reset="chain"` opens every slot again and starts unused heads anew."""
    again = copy.deepcopy(model)
    if reset == "chain":
        if build.recipe.is_prior_reset:
            again.prior = build_model(again.parts, again.task, build.registry).prior
        unused = (~again.is_active).nonzero().squeeze(-1)
        again.dynamics.reset_slots(unused, torch_generator(build.seed, "reset"))
        again.is_active = torch.ones_like(again.is_active)
    return again


def _hold_out(data: Trajectories, share: float, seed: int) -> tuple[Trajectories, Trajectories]:
    """Split off held-out episodes; with too few to spare, runs are scored on the data they were trained on.

    One or two episodes say less about which run is right than all the others do about themselves.
    """
    count = round(share * data.num_episodes)
    if count < 1 or data.num_episodes < FEWEST_TO_SPLIT:
        return data, data
    held_out, train = data.split([count, data.num_episodes - count], seed=sub_seed(seed, "hold out"))
    return train, held_out


def _aside(train: Trajectories, held_out: Trajectories, device: torch.device) -> EpisodeTensors | None:
    return None if held_out is train else EpisodeTensors.of(held_out, device=device)


def _check_data(data: Trajectories, warm_start: ContextModel | None, reset: str | None, max_contexts: int) -> None:
    if reset not in {None, "chain"}:
        raise ConfigError(f"reset={reset!r} is not known; use reset='chain' or leave it out")
    if reset is not None and warm_start is None:
        raise ConfigError("reset='chain' needs a model to start from: warm_start=model")
    num_observed = int(data.is_observed.sum())
    if num_observed < 2:
        raise FitError(f"{num_observed} observed transitions are too few to learn from; at least 2 are needed")
    if warm_start is None and max_contexts > num_observed:
        raise FitError(
            f"max_contexts={max_contexts} is above the number of observed transitions, {num_observed}: a context takes "
            "many transitions to be learned; set max_contexts=10"
        )
    changes = np.ptp((data.obs[:, 1:] - data.obs[:, :-1])[data.is_observed], axis=0)
    if not (changes > 0).any():
        raise FitError("no observation ever changes in a way that varies; there is nothing to learn from this data")
    check_precision(data)
    if warm_start is not None and (warm_start.task.obs_dim, warm_start.task.act_dim) != (data.obs_dim, data.act_dim):
        raise FitError(
            f"warm_start was learned on {warm_start.task.obs_dim} observations and {warm_start.task.act_dim} actions a "
            f"step; this data has {data.obs_dim} and {data.act_dim}"
        )


def _search_entry(structure: Structure | None, model: ContextModel, train: Trajectories) -> dict[str, Any]:
    """Return what the fit's report says about the search."""
    if structure is None:
        return {}
    verdicts = [dataclasses.asdict(verdict) for verdict in structure.history]
    return {
        "num_contexts": structure.num_contexts,
        "num_features": len(structure.features),
        "evidence": structure.evidence,
        "regions": [float(share) for share in structure.regions],
        "context_regions": shares_by_context(model, train, structure),
        "verdicts": verdicts,
        "cpu_time_s": structure.time_s,
    }


def _length_entry(length: RunLength) -> dict[str, Any]:
    return {"num_steps": length.num_steps, "stopped_early": length.is_stopped}
