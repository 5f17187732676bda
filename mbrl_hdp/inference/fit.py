"""`fit`: from trajectories to a model of how many contexts there are, how they switch and what each does."""

from __future__ import annotations

import copy
import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mbrl_hdp.data.arrays import as_trajectories
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError, DivergenceError, FitError
from mbrl_hdp.hooks import Registry, load_registry
from mbrl_hdp.inference.devices import check_device, has_small_networks, resolve_device, seeded
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.model import ContextModel, FitReport, ModelParts, Part
from mbrl_hdp.inference.precision import check_precision
from mbrl_hdp.inference.prediction_error import scaled_errors
from mbrl_hdp.inference.progress import FitProgress
from mbrl_hdp.inference.recipes import RECIPES, Recipe
from mbrl_hdp.inference.schedule import POLISH, FitConfig, Schedule
from mbrl_hdp.inference.trainer import RunLength, Trainer
from mbrl_hdp.seeding import sub_seed, torch_generator
from mbrl_hdp.settings import check_settings
from mbrl_hdp.types import TaskSpec

# With fewer episodes none is kept aside.
FEWEST_TO_SPLIT = 20
_DIVERGED_ADVICE = "check the data for extreme values, or lower fit.learning_rate"


@dataclass(frozen=True)
class HeldOutScore:
    """How well a run does on episodes that it was not trained on.

    Attributes:
        log_likelihoods: held-out log-likelihood per transition of the distilled model, one number an episode.
        squared_errors: squared error of the belief's prediction of every transition: the mean over the columns, each in
            units of its spread.
        num_contexts: contexts that the run found.
    """

    log_likelihoods: Float[np.ndarray, " N"]
    squared_errors: Float[np.ndarray, " transitions"]
    num_contexts: int

    @property
    def rmse(self) -> float:
        """Root of the mean squared error."""
        return float(np.sqrt(self.squared_errors.mean()))

    @property
    def log_likelihood(self) -> float:
        """Mean over the episodes."""
        return float(self.log_likelihoods.mean())


def fit(
    data: Any,
    prior: str | Part = "hdp",
    distillation: str | Part = "stationary",
    dynamics: str | Part = "delta_mlp",
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
        data: `Trajectories`, or what `mbrl_hdp.data.arrays.as_trajectories` makes some of: a pandas or polars table,
            arrays, lists of episodes, dictionaries. Actions, true contexts and rewards are optional (true contexts are
            never looked at).
        prior: name of a registered prior, or a `Part` with its settings.
        distillation: name of a registered distillation rule, or a `Part`.
        dynamics: name of a registered transition model, or a `Part`.
        max_contexts: upper bound on the number of contexts; too large costs time, not quality.
        seed: seed of the fit; the same data, settings and seed give the same model.
        config: recipe, budget, learning rates, schedules, restarts and early stopping.
        warm_start: go on from this model's posterior (its parts and max_contexts are taken over).
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
    data = as_trajectories(data)
    _check_data(data, warm_start, reset, max_contexts)
    registry = registry or load_registry()
    build = _Builder(registry, data, (prior, dynamics, distillation), max_contexts, dt, seed, recipe)
    place = resolve_device(device, lambda: has_small_networks((warm_start or build(0)).dynamics))
    train, held_out = _hold_out(data, config.holdout, seed)
    job = _Job(config, EpisodeTensors.of(train, device=place), _aside(train, held_out, place))
    runs = _plan_runs(config, recipe, warm_start, reset)
    with FitProgress(len(runs), len(runs) * config.num_steps + config.polish_steps, progress) as bar:
        results, finished, diverged = [], [], []
        for number, schedule in enumerate(runs):
            model = (build(number) if warm_start is None else _continued(warm_start, reset, build)).to(place)
            run_seed = sub_seed(seed, "run", number)
            try:
                results.append(_run(model, job, schedule, run_seed, warm_start is None, held_out, bar))
                finished.append(schedule)
            except DivergenceError as error:  # the other runs may do better
                diverged.append(str(error))
        if not results:
            raise DivergenceError(f"every run diverged ({diverged[0]}); {_DIVERGED_ADVICE}")
        best = choose([score for _, score, _ in results])
        model = results[best][0]
        polish: dict[str, Any] = {}
        if recipe.is_polished:
            whole = _Job(config, EpisodeTensors.of(data, device=place), None)
            polish = _length_entry(_polish(model, whole, sub_seed(seed, "polish"), bar))
    model.report = FitReport(
        num_episodes=data.num_episodes,
        num_transitions=int(data.is_observed.sum()),
        seed=seed,
        runs=[_run_entry(finished[i], *result, i == best) for i, result in enumerate(results)],
        polish=polish,
        fit_time_s=time.perf_counter() - started,
    )
    return model.to("cpu")


def choose(scores: list[HeldOutScore], tolerance: float = 0.05) -> int:
    """Choose among runs by their predictions, then their number of contexts, then their likelihood.

    Runs that predict worse than the best one by more than `tolerance`, and by more than chance, are rejected: the
    likelihood alone can prefer a wrong optimum in which the contexts flip at every step, and its predictions give it
    away. Among the others, those whose likelihood is within two standard errors of the best count as equally good, and
    of these the simplest is taken.
    """
    rmse = np.array([score.rmse for score in scores])
    if not np.isfinite(rmse).any():
        raise DivergenceError(f"every run diverged; {_DIVERGED_ADVICE}")
    finite = [i for i in range(len(scores)) if np.isfinite(rmse[i])]
    sharpest = scores[int(np.nanargmin(rmse))]
    good = [
        i
        for i in finite
        if rmse[i] <= sharpest.rmse * (1.0 + tolerance)
        or _is_within_chance(scores[i].squared_errors - sharpest.squared_errors)
    ]
    best = max(good, key=lambda i: scores[i].log_likelihood)
    equal = [i for i in good if _is_within_chance(scores[best].log_likelihoods - scores[i].log_likelihoods)]
    return min(equal, key=lambda i: (scores[i].num_contexts, -scores[i].log_likelihood))


def _is_within_chance(difference: Float[np.ndarray, " n"]) -> bool:
    """Return whether the mean difference to the better run, on the same data, is within two standard errors of zero."""
    return bool(difference.mean() <= 2.0 * difference.std() / np.sqrt(max(len(difference) - 1, 1)))


def held_out_score(model: ContextModel, data: Trajectories) -> HeldOutScore:
    """Score a model on episodes that it was not trained on."""
    found = model.analyse(data)
    error = scaled_errors(found.predicted, data)
    num_steps = np.maximum(data.is_observed.sum(-1), 1)
    return HeldOutScore(
        log_likelihoods=found.log_likelihood / num_steps,
        squared_errors=np.square(error).mean(-1),
        num_contexts=model.num_contexts,
    )


@dataclass(frozen=True)
class _Job:
    """What a run is trained on, and the episodes that early stopping looks at (None: its own)."""

    config: FitConfig
    data: EpisodeTensors
    aside: EpisodeTensors | None


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
        prior, dynamics, distillation = (
            self._part(kind, part) for kind, part in zip(("prior", "dynamics", "distillation"), parts, strict=True)
        )
        dynamics = dataclasses.replace(dynamics, config=recipe.settle_dynamics(dynamics.config))
        self.parts = ModelParts(prior, dynamics, distillation)
        self.rows = [torch.as_tensor(rows, dtype=torch.float32) for rows in data.transitions()]

    def _part(self, kind: str, part: str | Part) -> Part:
        if isinstance(part, Part):
            self.registry.get(kind, part.name)
            return part
        return Part(part, self.registry.get(kind, part).spec.config())

    def __call__(self, run: int) -> ContextModel:
        task = TaskSpec(**self.sizes, seed=sub_seed(self.seed, "start", run))
        model = build_model(self.parts, task, self.registry)
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


def _run(
    model: ContextModel,
    job: _Job,
    schedule: Schedule,
    seed: int,
    from_scratch: bool,
    held_out: Trajectories,
    bar: FitProgress,
) -> tuple[ContextModel, HeldOutScore, RunLength]:
    """Train once and score on the held-out episodes."""
    report = bar.start_run(schedule.name, job.config.num_steps)
    with seeded(seed, job.data.device):
        generator = torch_generator(seed, "minibatch")
        trainer = Trainer(model.prior, model.dynamics, model.distillation, job.data, job.config, schedule, generator)
        trainer.keep = model.is_active.clone()
        length = trainer.run(report, from_scratch, job.aside)
    model.is_active = trainer.keep
    model.extract()
    score = held_out_score(model, held_out)
    bar.end_run(model.num_contexts, length.num_steps, length.is_stopped)
    return model, score, length


def _polish(model: ContextModel, job: _Job, seed: int, bar: FitProgress) -> RunLength:
    """Train the chosen model on all data with its contexts settled: no slot comes or goes, noise floors fall.

    Only the kept heads run, so this is cheap.
    """
    model.is_active = model.is_active & torch.as_tensor(model.kept, device=model.device)
    model.dynamics.sharpen()
    report = bar.start_run("polish", job.config.polish_steps)
    with seeded(seed, job.data.device):
        generator = torch_generator(seed, "minibatch")
        parts = model.prior, model.dynamics, model.distillation
        trainer = Trainer(*parts, job.data, job.config, POLISH, generator, job.config.polish_steps)
        trainer.keep = model.is_active.clone()
        length = trainer.run(report, from_scratch=False)
        trainer.settle_chain()
    model.extract()
    bar.end_run(model.num_contexts, length.num_steps, length.is_stopped)
    return length


def _plan_runs(config: FitConfig, recipe: Recipe, warm_start: ContextModel | None, reset: str | None) -> list[Schedule]:
    if warm_start is not None and reset is None:
        return [recipe.refit]
    return [config.schedules[run % len(config.schedules)] for run in range(config.num_restarts)]


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


def _run_entry(
    schedule: Schedule, model: ContextModel, score: HeldOutScore, length: RunLength, is_taken: bool
) -> dict[str, Any]:
    return {
        "schedule": schedule.name,
        "num_contexts": model.num_contexts,
        "held_out_log_likelihood": score.log_likelihood,
        "held_out_rmse": score.rmse,
        "taken": is_taken,
        **_length_entry(length),
    }


def _length_entry(length: RunLength) -> dict[str, Any]:
    return {"num_steps": length.num_steps, "stopped_early": length.is_stopped}
