"""`fit`: from trajectories to a model of how many contexts there are, how they switch and what each does."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from mbrl_hdp.data.arrays import as_trajectories
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError, FitError
from mbrl_hdp.hooks import Registry, load_registry
from mbrl_hdp.inference.agreement import Find, half_agreement, shares_by_context
from mbrl_hdp.inference.arrangement import Arranged, with_contexts
from mbrl_hdp.inference.building import Builder, build_model
from mbrl_hdp.inference.choice import HeldOutScore, choose, held_out_score
from mbrl_hdp.inference.devices import check_device, has_small_networks, resolve_device
from mbrl_hdp.inference.division import divide_on
from mbrl_hdp.inference.duration_choice import duration_part, learn_duration, without_phases
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.levels import add_levels
from mbrl_hdp.inference.model import ContextModel, FitReport, Part
from mbrl_hdp.inference.precision import check_precision
from mbrl_hdp.inference.progress import POLISH, FitProgress, search_progress
from mbrl_hdp.inference.recipes import RECIPES
from mbrl_hdp.inference.revisit import Revisit, revisit
from mbrl_hdp.inference.runs import Runs, refits
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.search import Structure
from mbrl_hdp.inference.search.stages import heard_by
from mbrl_hdp.inference.starts import NOISE_LEVELS, SeveralDynamics, informed
from mbrl_hdp.inference.structure import StructureSearch
from mbrl_hdp.inference.threads import one_thread
from mbrl_hdp.inference.training import Job, length_entry, polish, useful_polish
from mbrl_hdp.seeding import sub_seed
from mbrl_hdp.settings import check_settings
from mbrl_hdp.workers import OpenWorkers, open_workers

__all__ = ["HeldOutScore", "build_model", "choose", "fit", "held_out_score"]


@one_thread()
def fit(
    data: Any,
    prior: str | Part = "hdp",
    distillation: str | Part = "stationary",
    dynamics: str | Part = "auto",
    max_contexts: int = 10,
    seed: int = 0,
    *,
    duration: str | Part | None = None,
    config: FitConfig | None = None,
    warm_start: ContextModel | None = None,
    reset: str | None = None,
    dt: float | None = None,
    past: int | None = None,
    angles: Sequence[int] | None = None,
    progress: bool | Callable[[str], None] = True,
    registry: Registry | None = None,
    device: str = "auto",
    workers: OpenWorkers = open_workers,
) -> ContextModel:
    """Learn a context model from trajectories.

    Args:
        data: `Trajectories`, or what `mbrl_hdp.data.arrays.as_trajectories` makes some of: a pandas or polars table,
            arrays, lists of episodes, dictionaries. Actions, true contexts and rewards are optional (true contexts are
            never looked at).
        prior: name of a registered prior, or a `Part` with its settings.
        distillation: name of a registered distillation rule, or a `Part`.
        dynamics: name of a registered transition model, or a `Part`; auto compares several on held-out episodes.
        max_contexts: upper bound on the number of contexts; too large costs time, not quality.
        seed: seed of the fit; the same data, settings and seed give the same model.
        duration: how long contexts last: name of a registered duration, or a `Part` (docs/durations.md). None: that of
            `warm_start`, else auto: several are compared on held-out episodes. geometric keeps the prior's chain.
        config: recipe, budget, learning rates, schedules, restarts and early stopping.
        warm_start: go on from this model's posterior (its parts and max_contexts are taken over). Contexts are added or
            removed where its residuals say so and held-out episodes agree (docs/contexts.md).
        reset: with `warm_start`: "chain" keeps the networks and opens the chain again, so that new contexts can move
            into free slots.
        dt: seconds per step, for transition models that integrate positions.
        past: earlier steps whose changes and actions are further inputs (`Trajectories.with_past`), for data in which a
            part of the state is not recorded or an input acts late. None: with dynamics auto as many as the search
            finds worth it, usually 0. `warm_start` keeps its own.
        angles: observation columns that are angles in radians: search and networks see their sine and cosine from the
            start, which little data does not show. None: those that `dynamics` names (`angle_columns`), or those of
            `warm_start`.
        progress: show a bar, or lines where there is no terminal; a function is called with every line instead.
        registry: plugins to choose from; all installed ones by default.
        device: where it is learned: cpu, cuda, or auto (cuda only if there is one and the networks are not small).
        workers: opens a place where candidates are trained side by side, as in `partial(open_workers, "ray")` or
            `partial(open_workers, jobs=2)` of `mbrl_hdp.workers`; by default this process. The model is the same.

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
    data = as_trajectories(data, warm_start.names if warm_start else None)
    names = data.names
    check_learnable(data, warm_start, reset, max_contexts)
    registry = registry or load_registry()
    search = StructureSearch(config, max_contexts, _angles(angles, data, registry, dynamics, warm_start))
    lasting = duration_part(registry, duration, warm_start)
    warm_start = without_phases(warm_start)
    structure = None
    if warm_start is None:
        steps = 0 if past is None and not _is_auto(registry, dynamics) else past
        arranged, structure = with_contexts(
            data, steps, config.holdout, seed, lambda train: search.shown(train, progress)
        )
    else:
        arranged = Arranged.of(warm_start.with_past(data), 0, config.holdout, seed, is_refit=True)
    data, train, held_out = arranged.data, arranged.train, arranged.held_out
    build = Builder(registry, data, (prior, dynamics, distillation), max_contexts, dt, seed, recipe, arranged.past)
    families = [warm_start.parts.dynamics] if warm_start else build.families
    place = resolve_device(device, lambda: has_small_networks((warm_start or build(0, families[-1])).dynamics))
    job = Job(
        config, EpisodeTensors.of(train, device=place), _aside(train, held_out, place), held_out, _most_error(structure)
    )
    if warm_start is None:
        families = [informed(part, structure, data.obs_dim, search.angles) for part in build.families_for(structure)]
        starts = [start for part in families for start in build.starts(part, structure, config)]
    else:
        starts = refits(warm_start, config, recipe, reset)
    runs = Runs(job, build, warm_start, reset, seed, place)
    num_steps = len(starts) * config.num_steps + config.polish_steps
    with FitProgress(len(starts), num_steps, progress is True, tell=progress) as bar:
        runs.take_all(starts, bar, workers)
        again = _with_other_contexts(runs, train, bar, workers, search)
        best = runs.choose()
        model = runs.results[best].model
        polished = _polished(model, data, held_out, runs, bar) if recipe.is_polished else {}
    found = _search_entry(structure or again.structure, runs, model, arranged, search.angles) | again.entry
    if warm_start is not None:
        found["new_contexts"] = np.flatnonzero(~warm_start.kept[model.slots.cpu().numpy()]).tolist()
    if structure is not None and structure.time_s <= config.halves_within_s:
        with search_progress("last checks", progress):
            found["half_agreement"] = half_agreement(model, train, _route(runs, best, search), seed, workers)
    model.report = FitReport(
        num_episodes=data.num_episodes,
        num_transitions=int(data.is_observed.sum()),
        num_steps=data.num_transitions,
        seed=seed,
        runs=runs.entries(best),
        polish=polished,
        search=found,
        num_held_out=0 if held_out is train else held_out.num_episodes,
        num_pieces=arranged.num_pieces,
    )
    model = _named(model, names).to("cpu")
    if warm_start is None:
        add_levels(model, data)
    learn_duration(model, data, lasting, registry)
    model.report.fit_time_s = time.perf_counter() - started
    return model


def _most_error(structure: Structure | None) -> float:
    """Return what a prediction error counts at most: where tails are heavy, a few jumps would decide between runs."""
    return 1.0 if structure is not None and structure.has_heavy_tails else np.inf


def _polished(
    model: ContextModel, data: Trajectories, held_out: Trajectories, runs: Runs, bar: FitProgress
) -> dict[str, Any]:  # fmt: skip
    """Train the chosen run on, with all episodes; return what the fit's report says about it."""
    config, seed = runs.job.config, sub_seed(runs.seed, "polish")
    whole = Job(config, EpisodeTensors.of(data, device=runs.place), None, held_out)
    most = useful_polish(model, runs.job, seed, bar.tries("how long to polish"), config.polish_steps)
    report = bar.start_run(POLISH, config.polish_steps)
    length = polish(model, whole, seed, report, config.polish_steps, most)
    bar.end_run(model.num_contexts, length.num_steps, length.is_stopped)
    return length_entry(length)


def _named(model: ContextModel, names: Names | None) -> ContextModel:
    """Let a model know the names of its columns; a refit on data without names keeps those it has."""
    model.names = model.names if names is None else names.of_episodes()
    return model


def _config_of(registry: Registry, dynamics: str | Part) -> Any:
    return dynamics.config if isinstance(dynamics, Part) else registry.get("dynamics", dynamics).spec.config()


def _is_auto(registry: Registry, dynamics: str | Part) -> bool:
    """Return whether the transition model is chosen by the data: it can then take any inputs."""
    return isinstance(_config_of(registry, dynamics), SeveralDynamics)


def _angles(
    angles: Sequence[int] | None, data: Trajectories, registry: Registry, dynamics: str | Part,
    warm_start: ContextModel | None,
) -> tuple[int, ...]:  # fmt: skip
    """Return the observation columns that are known to be angles in radians.

    A transition model that is made for more columns refuses the data itself.

    Raises:
        ConfigError: on a column of `angles` that does not exist.
    """
    if angles is not None:
        named: Sequence[int] = angles
    elif warm_start is not None:
        named = warm_start.report.search.get("angles") or getattr(warm_start.dynamics, "angle_columns", None) or ()
    else:
        named = getattr(_config_of(registry, dynamics), "angle_columns", None) or ()
    known = tuple(sorted({int(column) for column in named}))
    there = tuple(column for column in known if 0 <= column < data.obs_dim)
    if angles is not None and there != known:
        raise ConfigError(f"angles={list(known)} must be columns of the {data.obs_dim} observations, counted from 0")
    return there


def _route(runs: Runs, best: int, search: Callable[[Trajectories], Structure | None]) -> Find:
    """Return how the contexts of a run are found anew in other episodes: in the way in which that run found them."""

    def trained(half: Trajectories, other: Trajectories) -> Int[np.ndarray, "N T"]:
        return runs.again(best, half, other).most_likely(half)

    is_noise = runs.results[best].start.name == NOISE_LEVELS
    return trained if runs.repeats(best) else partial(_labels_by_search, search, is_noise)


def _labels_by_search(
    search: Callable[[Trajectories], Structure | None], is_noise: bool, half: Trajectories, _: Trajectories
) -> Int[np.ndarray, "N T"] | None:
    """Return the labels that a search finds, those of its levels of noise where the run to judge started from these."""
    found = search(half)
    if found is not None and found.noise_levels is not None and is_noise:
        return np.where(found.labels >= 0, found.noise_levels.probability.argmax(-1), -1)
    return None if found is None else found.labels


def _with_other_contexts(
    runs: Runs, train: Trajectories, bar: FitProgress, workers: OpenWorkers, search: StructureSearch
) -> Revisit:
    """Train the candidates with other contexts that compete with a refit; return what led to them."""
    again = _revisited(runs, train, bar, search.angles)
    runs.take_all(again.starts, bar, workers)
    if again.entry and runs.reset is not None and runs.job.config.num_contexts is None:
        divide_on(runs, train, bar, workers)
    return again


def _revisited(runs: Runs, train: Trajectories, bar: FitProgress, angles: tuple[int, ...]) -> Revisit:
    """Return the candidates with other contexts that compete with a refit; none for a fit that starts afresh."""
    before, config = runs.warm_start, runs.job.config
    if before is None or config.start != "search" or not runs.results:
        return Revisit()
    if runs.results[0].model.num_contexts == config.num_contexts:
        return Revisit()
    search = StructureSearch(config, before.task.max_contexts, angles)
    with heard_by(bar.searches):
        return revisit(
            # With an open chain random heads compete with those that are known, and may spoil them.
            runs.results[0].model if runs.reset is None else before,
            train,
            before.report.search,
            runs.build.recipe.refit,
            search=lambda: search.wanted(train),
            build=lambda part: runs.build.again(before, part),
            is_forced=config.search_again == "always" or runs.reset is not None,
        )


def _aside(train: Trajectories, held_out: Trajectories, device: torch.device) -> EpisodeTensors | None:
    return None if held_out is train else EpisodeTensors.of(held_out, device=device)


def check_learnable(data: Trajectories, warm_start: ContextModel | None, reset: str | None, max_contexts: int) -> None:
    """Raise if `fit` cannot learn from this data.

    Raises:
        ConfigError: if `reset` is not known or has no model to start from.
        FitError: if there are too few transitions, nothing varies, or the model to start from has other columns.
    """
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
    given = data if warm_start is None else warm_start.with_past(data)
    if warm_start is not None and (warm_start.task.obs_dim, warm_start.task.act_dim) != (given.obs_dim, given.act_dim):
        raise FitError(
            f"warm_start was learned on {warm_start.task.obs_dim} observations and {warm_start.task.act_dim} actions a "
            f"step; this data has {data.obs_dim} and {data.act_dim}"
        )


def _search_entry(
    structure: Structure | None, runs: Runs, model: ContextModel, arranged: Arranged, angles: Sequence[int]
) -> dict[str, Any]:
    """Return what the fit's report says about the search."""
    known = {"angles": list(angles)} if angles else {}
    if structure is None:
        return known
    verdicts = [dataclasses.asdict(verdict) for verdict in structure.history]
    return known | {
        "num_contexts": structure.num_contexts,
        "num_features": len(structure.features),
        "evidence": structure.evidence,
        "regions": [float(share) for share in structure.regions],
        "context_regions": shares_by_context(model, arranged.train, structure),
        "verdicts": verdicts,
        "cpu_time_s": structure.time_s,
        "skipped": runs.skipped,
        "refused": runs.refused,
        "past_gain": arranged.past_gain,
        **({"far": structure.far} if structure.has_heavy_tails else {}),
        **({"correlation": structure.correlation} if structure.has_correlated_noise else {}),
    }
