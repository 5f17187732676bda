"""Does the stated rate of false novelty alarms hold for every held-out set, or only on average over such sets?

    python -m benchmarks.alarms [--seeds 0 1] [--sizes 100 500] [--write docs/results/alarms.md]

`mbrl-hdp reproduce novelty` calibrates each model once. Here each model of that study (other seeds) is calibrated many
times, on disjoint held-out sets, and all calibrations are counted on the same further episodes of known contexts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from mbrl_hdp.belief.novelty import run as run_detector
from mbrl_hdp.experiments.reproduce import code_version
from mbrl_hdp.experiments.studies.cartpole_fit import parts_of
from mbrl_hdp.experiments.studies.novelty import cells
from mbrl_hdp.experiments.studies.novelty_cell import RATES, STATED, delays
from mbrl_hdp.experiments.studies.novelty_world import NUM_STEPS, SYSTEMS, build_world
from mbrl_hdp.experiments.studies.study import table
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.alarm import NoveltyCalibration
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.runtime import configure
from mbrl_hdp.seeding import numpy_generator

NUM_TEST = 3000
NUM_CALIBRATION = 1500
COLUMNS = (
    *("system", "seed", "contexts found", "held-out episodes", "sets"),
    *(f"1 in {rate:,}: mean, most (allowed {100_000 / rate:g})" for rate in RATES),
    *("sets above", "median delay, of the sets: least, most"),
)


def learn(settings: dict[str, Any]) -> ContextModel:
    """Learn the known contexts as a cell of `novelty` does."""
    registry = load_registry()
    parts, seed = parts_of(registry, settings), settings["seed"]
    world = build_world(settings["system"], settings["news"][0])
    train = world.known(settings["num_episodes"]["train"], numpy_generator(seed, "train"))
    return fit(
        train, parts.prior, parts.distillation, parts.dynamics, settings["max_contexts"], seed,
        duration="geometric", config=FitConfig(**settings["fit"]), progress=False, registry=registry,
    )  # fmt: skip


def rows(settings: dict[str, Any], sizes: list[int]) -> list[list[str]]:
    """Return a line of the table for every size of the held-out sets."""
    system, seed = settings["system"], settings["seed"]
    model = learn(settings)
    worlds = [build_world(system, new) for new in settings["news"]]
    held_out = worlds[0].known(NUM_CALIBRATION, numpy_generator(seed, "calibration"))
    quiet = model.analyse(worlds[0].known(NUM_TEST, numpy_generator(seed, "test")))
    changed = [world.changed(100, numpy_generator(seed, "changed")) for world in worlds]
    watched = [(model.analyse(data), change) for data, change in changed]
    found = []
    for size in sizes:
        counts, waits = [], []
        for start in range(0, NUM_CALIBRATION - size + 1, size):
            own = NoveltyCalibration.of(model.analyse(held_out.select(np.arange(start, start + size))))
            scores = own.scores(quiet)
            counts.append([int(run_detector(own.table, scores, rate).is_alarm.sum()) for rate in RATES])
            waits.append([_median_delay(own, *each) for each in watched])
        per_100_000 = np.array(counts) * 100_000 / (NUM_TEST * NUM_STEPS)
        cells = [f"{column.mean():.2g}, {column.max():.2g}" for column in per_100_000.T]
        above = (per_100_000[:, RATES.index(STATED)] > 1.0).sum()
        least_most = "; ".join(f"{min(column):g}, {max(column):g}" for column in zip(*waits, strict=True))
        first = [system, str(seed), str(model.num_contexts), str(size), str(len(counts))]
        found.append([*first, *cells, str(above), least_most])
    return found


def _median_delay(own: NoveltyCalibration, analysis: Any, change: np.ndarray) -> float:
    """Return the median of the steps from a change to the alarm; infinite where most changes are missed."""
    scores = own.scores(analysis)
    alarms = np.concatenate([run_detector(own.table, row[None], STATED).is_alarm for row in scores])
    waits = [np.inf if each is None else float(each) for each in delays(alarms, change)]
    return float(np.quantile(waits, 0.5, method="lower"))


def main() -> int:
    """Calibrate, count and print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 500], help="episodes of a held-out set")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS))
    parser.add_argument("--write", type=Path, help="also write the outcome to this Markdown file")
    options = parser.parse_args()
    configure()
    lines = []
    for settings in cells(options.seeds, is_quick=False):
        if settings["system"] in options.systems:
            lines += rows(settings, options.sizes)
            print(*lines[-len(options.sizes) :], sep="\n", flush=True)
    text = "\n\n".join([
        "# False novelty alarms, one held-out set after the other",
        f"Written by `python -m benchmarks.alarms --seeds {' '.join(map(str, options.seeds))} --sizes "
        f"{' '.join(map(str, options.sizes))}` at commit {code_version()}; do not edit.",
        "Models and systems of the study [novelty](novelty.md). Each model is calibrated on many disjoint held-out "
        f"sets (episodes of {NUM_STEPS} steps); false alarms are counted on the same {NUM_TEST * NUM_STEPS:,} further "
        "steps, in alarms per 100,000 steps: the mean over the sets and the worst set. *Sets above*: with more alarms "
        "than stated, at one in 100,000 (a set that is exactly right has more in about one case of three, by chance). "
        "Delays: at the same stated rate, for each change of the system; inf: most changes are missed.",
        table(COLUMNS, lines),
    ]) + "\n"  # fmt: skip
    print(text)
    if options.write is not None:
        options.write.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
