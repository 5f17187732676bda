"""`logs`: what does `fit` with pure defaults say about logs as strangers record them?"""

from __future__ import annotations

from collections.abc import Sequence

from mbrl_hdp.envs.recordings import RECORDINGS
from mbrl_hdp.experiments.studies import systems
from mbrl_hdp.experiments.studies.log_cell import run_cell
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table_of
from mbrl_hdp.experiments.studies.systems_fit import SURE_ACCURACY, SURE_RIGHT, is_good, is_sure, resolve

SEEDS = (100, 101)


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return every log with every seed."""
    names = ("servo_still",) if is_quick else tuple(RECORDINGS)
    return [{"system": name, "seed": seed} for seed in seeds or SEEDS for name in names]


def page(records: list[CellRecord]) -> Page:
    """Show every fit, the wrong ones first."""
    ordered = sorted(records, key=lambda record: (not systems.is_bad(record), record.results["accuracy"]))
    columns = {
        "log": lambda record: record.settings["system"],
        "seed": lambda record: record.seed,
        "found/true": lambda record: f"{record.results['found']}/{record.results['true']}",
        "accuracy": lambda record: f"{record.results['accuracy']:.4f}",
        "verdict": lambda record: record.results["verdict"],
        "past": lambda record: str(record.results["past"]),
        "start": lambda record: record.results["start"],
        "search found": lambda record: str(record.results["searched"]),
        "CPU s": lambda record: f"{record.results['cpu_s']:.0f}",
    }
    body = (
        "`mbrl_hdp.fit(data)` with nothing set on logs as strangers record them (`mbrl_hdp/envs/recordings.py`): "
        "states that no sensor measures, inputs that act late, closed loops, one long recording, quantised readings, "
        "spikes, contexts that differ in their noise only, weather among the observations, gusts that shake several "
        "columns together, a fault that acts 3 % of the time. Some fail; they stay "
        "in. The settings of the search for earlier steps and for levels of noise were chosen on data of seed 0 of "
        "these logs. Past: earlier steps that `fit` made further inputs. Start: where the run that was taken began. "
        "Seconds are processor time of one core. Wrong ones come first.\n\n"
    )
    described = "\n".join(f"- {name}: {_first_line(make.__doc__)}" for name, make in RECORDINGS.items())
    return Page(f"{body}{table_of(ordered, columns)}\n\n{described}", _gates(records))


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]


def _gates(records: list[CellRecord]) -> list[Gate]:
    planned = {tuple(cell.values()) for cell in cells(None, False)}
    is_whole = planned <= {(record.settings["system"], record.settings["seed"]) for record in records}
    good = sum(systems.is_right(record) and is_good(record) for record in records)
    sure = [record for record in records if is_sure(record)]
    right = sum(map(is_good, sure))
    gates = [
        (f"number right and accuracy at least {SURE_ACCURACY} in 75% of the cells", f"{good} of {len(records)}",
         good >= 0.75 * len(records)),
        (f"accuracy at least {SURE_ACCURACY} in {SURE_RIGHT:.0%} of the fits that say sure", f"{right} of {len(sure)}",
         right >= SURE_RIGHT * len(sure)),
    ]  # fmt: skip
    return [Gate(name, found, is_met if is_whole else None) for name, found, is_met in gates]


STUDY = Study("logs", "Logs as strangers record them", cells, run_cell, page, resolve)
