"""`belief_reliability`: is the filter right as often as it says? On the models of `novelty`, against the truth."""

from __future__ import annotations

from typing import Any

from mbrl_hdp.experiments.studies.cartpole_fit import resolve
from mbrl_hdp.experiments.studies.drawings import CurvePanel, Drawing
from mbrl_hdp.experiments.studies.novelty import cells
from mbrl_hdp.experiments.studies.novelty_cell import run
from mbrl_hdp.experiments.studies.study import CellRecord, Page, Study, table


def page(records: list[CellRecord]) -> Page:
    """Show the expected calibration error of every model, and reliability diagrams."""
    rows = [
        [
            record.settings["system"],
            words,
            record.seed,
            f"{results['error']:.4f}",
            f"{_mean_confidence(results):.4f}",
            f"{_share_right(results):.4f}",
        ]
        for record in records
        for words, results in _models(record)
    ]
    body = (
        "The models of [novelty](novelty.md) filter episodes that they were not trained on (100,000 steps with two "
        "contexts; 10,000 with three, after the widening). Expected calibration error: the mean distance between the "
        "largest probability of a step and how often that context is the true one, in ten bins weighted by steps. "
        "Confidence and share right are over all steps: confidence above the share right means overconfident.\n\n"
    )
    columns = ("system", "contexts", "seed", "expected calibration error", "mean confidence", "share right")
    return Page(body + table(columns, rows), [], _drawings(records))


def _models(record: CellRecord) -> list[tuple[str, dict[str, Any]]]:
    """Return the reliability of a cell's models: with the known contexts, and widened."""
    wider = [(f"three: {new}", found["after"]["reliability"]) for new, found in record.results["new"].items()]
    return [("two", record.results["reliability"]), *wider]


def _mean_confidence(results: dict[str, Any]) -> float:
    return _weighted(results, "predicted")


def _share_right(results: dict[str, Any]) -> float:
    return _weighted(results, "right")


def _weighted(results: dict[str, Any], name: str) -> float:
    total = sum(each["count"] for each in results["bins"])
    return float(sum(each["count"] * each[name] for each in results["bins"]) / total)


def _drawings(records: list[CellRecord]) -> list[Drawing]:
    by_system: dict[str, list[tuple[str, list[tuple[float, float]]]]] = {}
    for record in records:
        points = [(each["predicted"], each["right"]) for each in record.results["reliability"]["bins"]]
        by_system.setdefault(record.settings["system"], []).append(("filter, one line a seed", points))
    ideal = ("as often right as it says", [(0.5, 0.5), (1.0, 1.0)])
    panels = [
        CurvePanel(system, "largest probability", "share right", [ideal, *lines]) for system, lines in by_system.items()
    ]
    return [Drawing("belief_reliability", "Reliability of the filter, two known contexts, held-out episodes.", panels)]


STUDY = Study(
    "belief_reliability", "Is the belief right as often as it says?", cells, run, page, resolve, reads=("novelty",)
)
