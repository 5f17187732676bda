"""`baselines`: the rows of Table 2 that are not ours, and what people would try today; whole runs, three seeds each."""

from __future__ import annotations

from collections.abc import Sequence

from mbrl_hdp.experiments.studies.study import CellRecord, Page, Settings, Study, table
from mbrl_hdp.experiments.studies.table2 import SEEDS, return_rows
from mbrl_hdp.experiments.studies.train_cell import BASELINES, FAILURES, resolve, run

# Mean and standard deviation in the paper's tables, of its best runs or episodes; it has no others.
PAPER = {
    "GPMM": ("3.50 ± 18.59", "3.55 ± 7.83", "10.64 ± 16.10", "49.61 ± 19.13"),
    "RNN-PPO": ("-0.17 ± 18.06", "64.10 ± 21.37", "74.58 ± 20.66", "67.01 ± 8.52"),
    "DNNMM": ("-7.73 ± 17.62", "2.87 ± 15.18", "28.24 ± 22.87", "66.35 ± 19.67"),
    "ANPMM": ("-3.35 ± 15.64", "8.07 ± 16.48", "32.08 ± 19.54", "57.22 ± 25.55"),
}
_NONE = ("",) * len(FAILURES)


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return every baseline on every failure, the paper's baselines first."""
    if is_quick:
        return [{"agent": "DNNMM", "failure": "hard", "profile": "smoke", "seed": seed} for seed in seeds or SEEDS[:1]]
    return [
        {"agent": agent, "failure": failure, "profile": "fast", "seed": seed}
        for agent in BASELINES
        for failure in FAILURES
        for seed in seeds or SEEDS
    ]


def page(records: list[CellRecord]) -> Page:
    """Return the page: our returns beside the paper's."""
    rows = [row for agent in BASELINES for row in return_rows(agent, records, PAPER.get(agent, _NONE))]
    body = [
        "Return over separate evaluation episodes a seed (50; 10 for GPMM, DNNMM, ANPMM): mean over seeds ± standard "
        "deviation over all episodes [95 % interval of the mean], no run picked. The paper's numbers have another "
        "protocol: for GPMM the best episodes of the three best of ten runs, for RNN-PPO the best policy over time and "
        "runs. Every cell is a preset: `mbrl-hdp train experiment=cartpole_soft03_gpmm seed=100`; "
        "[docs/baselines.md](../baselines.md) says what each agent is.",
        table(("agent", *FAILURES), rows),
        "Every run, with the real episodes that it took.",
        table(("failure", "agent", "seed", "return", "episodes", "accuracy", "minutes"), [_each(r) for r in records]),
    ]
    return Page("\n\n".join(body), [])


def _each(record: CellRecord) -> list[str]:
    settings, found = record.settings, record.results["summary"]
    accuracy = "" if found["context_accuracy"] is None else f"{found['context_accuracy']:.3f}"
    return [
        settings["failure"], settings["agent"], str(settings["seed"]), f"{found['return_mean']:.2f}",
        str(found["num_real_episodes"]), accuracy, f"{found['wall_time_s'] / 60:.0f}",
    ]  # fmt: skip


STUDY = Study("baselines", "Baselines on cart-pole with hard and soft failures", cells, run, page, resolve)
