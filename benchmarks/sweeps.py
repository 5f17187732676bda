"""Eight jobs on a Ray cluster of two nodes, with a worker killed and the head restarted, against one process.

    python -m benchmarks.sweeps [--skip-cells] [--folder DIR] [--write docs/results/sweeps.md]

The sweep is the real program. Its worker is ended by SIGKILL after a checkpoint, then both nodes (the head with all
that it knows) are ended while jobs run; a new cluster is started and the same command is run again. Then cells of a
study run on Ray and in one process. Exit code 1 if any result differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ray_sweep import SweepProcess, TwoNodes, kill_worker, on_ray, starts, unfinished_with_checkpoint
from benchmarks.run_differences import differences
from mbrl_hdp.experiments.cells import TimeBudget, run_cells
from mbrl_hdp.experiments.reproduce import code_version
from mbrl_hdp.experiments.studies import load_study
from mbrl_hdp.experiments.studies.records import last_records, records_path
from mbrl_hdp.experiments.studies.study import table
from mbrl_hdp.runtime import configure
from mbrl_hdp.workers import open_workers

JOBS = (
    *("seed=0,1,2,3", "agent=ni_sac,c_cem", "profile=smoke", "env=cartpole_hard", "env.kwargs.horizon=20"),
    *("max_contexts=3", "planner.horizon=4", "dynamics.hidden_sizes=[16]", "budget.num_epochs=5"),
    *("budget.warm_episodes=4", "budget.eval_episodes=1", "budget.final_eval_episodes=2"),
)
NUM_JOBS = 8
# Whole cells of Table 2, the shortest ones (about a minute each), on seeds that no page reports.
STUDY, NUM_CELLS = "table2", 6
CELL = {"agent": "FI-SAC", "failure": "soft .1", "profile": "fast"}


@dataclass(frozen=True)
class Story:
    """What happened to a sweep: the job whose worker was killed, those that ran when the head was ended, and counts."""

    killed: list[int]
    cut: list[int]
    finished_before: int
    found: list[str]
    starts: list[list[int]]
    exit_codes: tuple[int, int]


def disturbed_sweep(folder: Path) -> Story:
    """Run the sweep with a kill and a restart of the head; compare it with one process."""
    whole, sweep = folder / "whole", folder / "sweep"
    cluster = TwoNodes()
    child = SweepProcess(JOBS, sweep, *on_ray(cluster))
    killed: list[int] = []
    child.wait_for(lambda: killed.extend(kill_worker(sweep, range(NUM_JOBS))) or bool(killed), "a checkpoint")
    print(f"killed the worker of job {killed[0]}", flush=True)
    child.wait_for(lambda: _num_finished(sweep) >= 3 and len(_cut(sweep)) > 0, "the fourth job's checkpoint")
    cut, before = _cut(sweep), _num_finished(sweep)
    cluster.stop()
    first, _ = child.end()
    print(f"ended both nodes: {before} jobs were finished, {cut} were running", flush=True)
    cluster = TwoNodes()
    second, printed = SweepProcess(JOBS, sweep, *on_ray(cluster)).end()
    cluster.stop()
    print(printed[-2500:], flush=True)
    if SweepProcess(JOBS, whole).end()[0] != 0:
        raise RuntimeError(f"the sweep in one process failed; see {whole}.log")
    found = [
        f"job {job}: {what}" for job in range(NUM_JOBS) for what in differences(whole / str(job), sweep / str(job))
    ]
    return Story(killed, cut, before, found, [starts(sweep, job) for job in range(NUM_JOBS)], (first, second))


def _num_finished(sweep: Path) -> int:
    return len(list(sweep.glob("*/job.json")))


def _cut(sweep: Path) -> list[int]:
    return unfinished_with_checkpoint(sweep, range(NUM_JOBS))


def cells_side_by_side(folder: Path) -> dict[str, tuple[float, float, list[object]]]:
    """Run the same cells in one process and on Ray; return seconds, processor seconds of this process, and results."""
    study = load_study(STUDY)
    cells = [cell for cell in study.cells(range(NUM_CELLS), is_quick=False) if CELL.items() <= cell.items()]
    found = {}
    for on in ("local", "ray"):
        place = folder / on
        place.mkdir()
        with open_workers(on) as workers:
            began = time.perf_counter()
            run_cells(study, cells, place, code_version(), workers, TimeBudget())
            seconds = time.perf_counter() - began
        records = last_records(records_path(study.name, place))
        results = [_timeless(record.results) for _, record in sorted(records.items())]
        found[on] = (seconds, sum(record.time_s for record in records.values()), results)
    return found


def _timeless(results: dict[str, object]) -> object:
    summary = results["summary"]
    assert isinstance(summary, dict)
    return {key: value for key, value in summary.items() if "time" not in key and key not in {"versions", "git_commit"}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skip-cells", action="store_true", help="only the sweep")
    parser.add_argument("--folder", type=Path, help="keep everything in this new folder")
    parser.add_argument("--write", type=Path, help="also write the outcome to this Markdown file")
    options = parser.parse_args()
    configure()
    os.environ.setdefault("RAY_worker_niceness", "0")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        story = disturbed_sweep(folder)
        cells = None if options.skip_cells else cells_side_by_side(folder)
    text = page(story, cells)
    print(text)
    if options.write is not None:
        options.write.write_text(text)
    is_same = cells is None or cells["local"][2] == cells["ray"][2]
    return 0 if is_same and not story.found and story.exit_codes == (1, 0) else 1


def page(story: Story, cells: dict[str, tuple[float, float, list[object]]] | None) -> str:
    """Return the page."""
    again = [f"job {job} after {', '.join(map(str, epochs[1:]))} of 5 epochs"
             for job, epochs in enumerate(story.starts) if len(epochs) > 1]  # fmt: skip
    rows = [
        ["jobs", str(NUM_JOBS)],
        ["job whose worker was killed (SIGKILL) after a checkpoint", str(story.killed[0])],
        ["finished when both nodes were ended", str(story.finished_before)],
        ["running then, after a checkpoint", ", ".join(map(str, story.cut)) or "none"],
        ["exit codes of the sweep: with the dead cluster, run again on a new one", "{}, {}".format(*story.exit_codes)],
        ["starts of each job", ", ".join(str(len(epochs)) for epochs in story.starts)],
        ["begun again, from the checkpoint", "; ".join(again)],
        ["differences to one process (metrics, summaries, tensors, events)", str(len(story.found) or "none")],
    ]
    load = os.getloadavg()[0]
    parts = [
        "# Sweeps on a cluster that fails",
        f"Written by `python -m benchmarks.sweeps` at commit {code_version()}; do not edit.",
        "A Ray cluster of two nodes with one core each, on one machine. Settings: `" + " ".join(JOBS) + "`.",
        table(("", "found"), rows),
        *story.found,
        "No finished job was run again.",
    ]
    if cells is not None:
        local, ray = cells["local"], cells["ray"]
        is_same = "the same" if local[2] == ray[2] else "DIFFERENT"
        parts += [
            f"## Cells of `{STUDY}` on Ray and in one process",
            f"{NUM_CELLS} cells ({', '.join(CELL.values())}): {local[0]:.0f} s in one process, {ray[0]:.0f} s on Ray "
            f"with two cores, the start of its workers (imports) included: ratio **{local[0] / ray[0]:.2f}**; results "
            f"{is_same}. Load average of the machine at the end: {load:.1f} on {os.cpu_count()} cores; above that, "
            "other work took part of the time, and the ratio is preliminary.",
        ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
