"""The cell of `novelty`: learn two contexts, watch for a third, widen the model, and compare with the best detector."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from mbrl_hdp.belief.filter import update_belief
from mbrl_hdp.belief.novelty import run as run_detector
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs.chains import FloatArray, IntArray
from mbrl_hdp.experiments.studies.cartpole_fit import parts_of
from mbrl_hdp.experiments.studies.novelty_world import KNOWN, NEW, NUM_STEPS, SWITCH, World, build_world
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.calibration import calibrate
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.seeding import numpy_generator

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings

RATES = (1_000, 10_000, 100_000)
STATED = 100_000
# Levels from which a step counts as surprising where the dependence of scores is measured.
_SURPRISING = 3


def run(settings: Settings) -> Results:
    """Fit the known contexts once; then, for everything new: detect it, learn it, score old and new."""
    worlds = {new: build_world(settings["system"], new) for new in settings["news"]}
    first = next(iter(worlds.values()))
    seed, sizes = settings["seed"], settings["num_episodes"]
    train, held_out, quiet = (
        first.known(sizes[name], numpy_generator(seed, name)) for name in ("train", "calibration", "test")
    )
    registry = load_registry()
    parts = parts_of(registry, settings)
    config = FitConfig(**settings["fit"])
    model = fit(
        train, parts.prior, parts.distillation, parts.dynamics, settings["max_contexts"], seed,
        duration="geometric", config=config, progress=False, registry=registry,
    )  # fmt: skip
    model.novelty_alarm(held_out)
    return {
        "num_contexts": model.num_contexts,
        "accuracy": _accuracy(model, quiet),
        "reliability": _reliability(model, quiet),
        "quiet": _quiet(model, quiet),
        "new": {new: _one_new(world, model, train, quiet, settings) for new, world in worlds.items()},
    }


def _quiet(model: ContextModel, quiet: Trajectories) -> Results:
    """Count false alarms at several stated rates, and measure how far surprising steps attract each other."""
    assert model.novelty is not None
    table, scores = model.novelty.table, model.novelty.scores(model.analyse(quiet))
    is_high = table.levels(scores) >= _SURPRISING
    return {
        "num_steps": int(quiet.is_step.sum()),
        "judged": float(np.isfinite(scores).mean()),
        "false_alarms": {str(rate): int(run_detector(table, scores, rate).is_alarm.sum()) for rate in RATES},
        "log_limits": {str(rate): table.log_limit(rate) for rate in RATES},
        "surprising": float(is_high[np.isfinite(scores)].mean()),
        "surprising_after_surprising": float(is_high[:, 1:][is_high[:, :-1]].mean()),
    }


def _one_new(
    world: World, model: ContextModel, train: Trajectories, quiet: Trajectories, settings: Settings
) -> Results:
    seed, sizes = settings["seed"], settings["num_episodes"]
    changed, change = world.changed(sizes["changed"], numpy_generator(seed, "changed"))
    assert model.novelty is not None
    scores = model.novelty.scores(model.analyse(changed))
    alarms = np.concatenate([run_detector(model.novelty.table, row[None], STATED).is_alarm for row in scores])
    more = world.mixed(sizes["update"], numpy_generator(seed, "update"))
    wider = fit(
        Trajectories.concatenate([train, more]), warm_start=model, seed=seed, progress=False,
        config=FitConfig(**settings["fit"], search_again="always"),
    )  # fmt: skip
    mixed = world.mixed(sizes["scored"], numpy_generator(seed, "scored"))
    return {
        "delays": delays(alarms, change),
        "best_delays": delays(*_best(world, changed, change, numpy_generator(seed, "best"), sizes["best"])),
        "after": {
            "num_contexts": wider.num_contexts,
            "new_contexts": wider.report.search["new_contexts"],
            "slots_kept": bool(np.all(wider.kept[model.kept])),
            "accuracy_known": _accuracy(wider, quiet),
            "accuracy_all": _accuracy(wider, mixed),
            "recall_new": _recall(wider, mixed),
            "reliability": _reliability(wider, mixed),
        },
    }


def delays(is_alarm: np.ndarray, change: IntArray) -> list[int | None]:
    """Return the steps from the change to the first alarm, 1 if it is raised by the first new step; None: no alarm.

    Example:
        >>> delays(np.array([[False, False, True, True]]), np.array([1]))
        [2]
    """
    found: list[int | None] = []
    for row, start in zip(is_alarm, change, strict=True):
        places = np.flatnonzero(row[start:])
        found.append(int(places[0]) + 1 if places.size else None)
    return found


def _best(
    world: World, changed: Trajectories, change: IntArray, rng: np.random.Generator, num_quiet: int
) -> tuple[np.ndarray, IntArray]:
    """Return the alarms of Page's CUSUM with all densities known, its limit set by simulation to the stated rate."""
    quiet = world.known(num_quiet, rng)
    limit = _limit(_gains(world, quiet), num_quiet * NUM_STEPS / STATED)
    gains = _gains(world, changed)
    level, alarms = np.zeros(len(gains)), np.zeros(gains.shape, dtype=bool)
    for t in range(gains.shape[1]):
        level = np.maximum(level, 0.0) + gains[:, t]
        alarms[:, t] = level >= limit
    return alarms, change


def _limit(gains: FloatArray, num_allowed: float) -> float:
    """Return the smallest limit that raises no more than so many alarms, counted with a restart after each."""
    low, high = 0.0, 50.0
    for _ in range(20):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _num_alarms(gains, middle) <= num_allowed else (middle, high)
    return high


def _num_alarms(gains: FloatArray, limit: float) -> int:
    level, count = np.zeros(len(gains)), 0
    for t in range(gains.shape[1]):
        level = np.maximum(level, 0.0) + gains[:, t]
        is_alarm = level >= limit
        count += int(is_alarm.sum())
        level = np.where(is_alarm, 0.0, level)
    return count


def _gains(world: World, data: Trajectories) -> FloatArray:
    """Return log p(step | new context) - log p(step | history, known contexts only), `N T`, by the exact filter."""
    density = world.log_density(data)
    transition = np.full((KNOWN, KNOWN), SWITCH)
    np.fill_diagonal(transition, 1.0 - SWITCH)
    belief = np.full((len(density), KNOWN), 1.0 / KNOWN)
    gains = np.empty(density.shape[:2])
    for t in range(density.shape[1]):
        known = density[:, t, :KNOWN]
        gains[:, t] = density[:, t, NEW] - np.logaddexp.reduce(np.log(belief) + known, axis=1)
        # Beliefs are kept above rounding: in the new context the known ones are equally impossible.
        belief = np.clip(update_belief(belief, np.ascontiguousarray(known), transition)[1], 1e-12, 1.0)
    return gains


def _accuracy(model: ContextModel, data: Trajectories) -> float:
    assert data.context is not None
    return align(model.smooth(data).argmax(-1), data.context).accuracy


def _recall(model: ContextModel, data: Trajectories) -> float:
    """Return the share of the new context's steps that get the learned context matched to it."""
    assert data.context is not None
    labels = model.smooth(data).argmax(-1)
    matched = align(labels, data.context).to_true
    return float((matched[labels] == NEW)[data.context == NEW].mean())


def _reliability(model: ContextModel, data: Trajectories) -> Results:
    """Return the expected calibration error of the filter and its bins."""
    assert data.context is not None
    filtered = model.filter(data)
    found = calibrate(filtered, data.context, align(filtered.argmax(-1), data.context).to_true.tolist())
    assert found is not None
    return {"error": found.error, "bins": [asdict(each) for each in found.bins]}
