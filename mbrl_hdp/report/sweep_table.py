"""What became of the jobs of a sweep, as a table in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mbrl_hdp.experiments.sweep import FAILED, LOG, JobOutcome
from mbrl_hdp.report.tables import print_table


def print_sweep(outcomes: Sequence[JobOutcome]) -> None:
    """Print one row a job; failed ones again on stderr, with their error and their log."""
    print_table("Jobs of the sweep", ["job", "state", "return", "folder"], [_row(job) for job in outcomes])
    for job in outcomes:
        if job.state == FAILED:
            print(f"job {job.number} failed: {job.error}; see {job.folder / LOG}", file=sys.stderr)


def _row(job: JobOutcome) -> list[str]:
    shown = "" if job.return_mean is None else f"{job.return_mean:.2f}"
    return [f"{job.number} {job.words}".strip(), job.state, shown, str(job.folder)]
