"""The record behind docs/ceilings.md (JSON) and the page itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mbrl_hdp.envs.chains import FloatArray
from mbrl_hdp.errors import DataError
from mbrl_hdp.experiments.studies.task_variants import COLLISION_COST

SCHEMA_VERSION = 1
CeilingRecord = dict[str, Any]
_TITLES = {
    "cartpole": "cart-pole hard",
    "drone": "drone",
    "intersection": "intersection",
    "collision_cost": f"intersection, collision_cost={COLLISION_COST:g}",
}
_COLUMNS = ("known", "filtered", "blind")
_INFORMATION = ("known", "filtered", "geometric", "blind")


def load_records(path: Path) -> dict[str, CeilingRecord]:
    """Read the records of the cells that are done; none if there is no file yet."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text())
    if content.get("schema_version") != SCHEMA_VERSION:
        raise DataError(f"{path} has schema_version {content.get('schema_version')}, not {SCHEMA_VERSION}; delete it")
    cells: dict[str, CeilingRecord] = content["cells"]
    return cells


def save_records(path: Path, records: Mapping[str, CeilingRecord]) -> None:
    """Write all records, one line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(record)}" for key, record in records.items())
    path.write_text(f'{{"schema_version": {SCHEMA_VERSION}, "cells": {{\n{lines}\n}}}}\n')


def summary(returns: FloatArray, num_seeds: int) -> CeilingRecord:
    """Return mean, standard deviation (over episodes), standard error (over seeds) and the mean return of every seed.

    Args:
        returns: one per episode; episode `i` has seed number `i % num_seeds`.
        num_seeds: number of seeds.
    """
    by_seed = returns.reshape(-1, num_seeds).mean(axis=0)
    return {
        "mean": round(float(returns.mean()), 6) + 0.0,  # no minus zero
        "std": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        "standard_error": float(by_seed.std(ddof=1) / np.sqrt(num_seeds)) if num_seeds > 1 else 0.0,
        "num_episodes": len(returns),
        "returns_by_seed": np.round(by_seed, 4).tolist(),
    }


def best_of(records: Sequence[CeilingRecord]) -> CeilingRecord:
    """Return the record with the highest mean over the seeds that all records have (less luck with the seeds)."""
    shared = min(len(record["returns_by_seed"]) for record in records)
    return max(records, key=lambda record: float(np.mean(record["returns_by_seed"][:shared])))


def commit_name() -> str:
    """Name the commit of the checkout, with a plus sign where tracked files are changed."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "mbrl_hdp/envs", "benchmarks/ceil*")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(*words: str) -> str:
    return subprocess.run(("git", *words), capture_output=True, text=True, check=True).stdout.strip()


def page(records: Mapping[str, CeilingRecord]) -> str:
    """Write the page: the table of the best, then every agent that was tried."""
    parts = [_HEAD, _best_table(records), _WORDS, _full_table(records), _settings(records)]
    return "\n".join(parts)


def _best_table(records: Mapping[str, CeilingRecord]) -> str:
    lines = ["| | context known | exact filter | blind |", "|---|---|---|---|"]
    for task, title in _TITLES.items():
        cells = [_of(records, task, column) for column in _COLUMNS]
        if any(cells):
            shown = [_short(best_of(cell)) if cell else "" for cell in cells]
            lines.append(f"| {title} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _of(records: Mapping[str, CeilingRecord], task: str, information: str) -> list[CeilingRecord]:
    return [item for item in records.values() if item["task"] == task and item["information"] == information]


def _short(record: CeilingRecord) -> str:
    return f"**{record['mean']:.2f}** +- {record['standard_error']:.2f} ({record['agent']})"


def _full_table(records: Mapping[str, CeilingRecord]) -> str:
    header = "| task | context | agent | mean | std | standard error | episodes | seeds | notes |"
    lines = [header, "|---|---|---|---|---|---|---|---|---|"]
    for task in _TITLES:
        for information in _INFORMATION:
            lines += [_full_row(record) for record in _of(records, task, information)]
    return "\n".join(lines) + "\n"


def _full_row(record: CeilingRecord) -> str:
    numbers = " | ".join(f"{record[name]:.3f}" for name in ("mean", "std", "standard_error"))
    first, last = record["seeds"]
    place = f"| {record['task']} | {record['information']} | {record['agent']} |"
    return f"{place} {numbers} | {record['num_episodes']} | {first}-{last} | {_notes(record)} |"


def _notes(record: CeilingRecord) -> str:
    notes = []
    if record["information"] == "filtered" and record["accuracy"] is not None:
        notes.append(f"contexts right {record['accuracy']:.4f}")
    if "distance" in record:
        notes.append(f"closest {record['distance']:.2f} m (least {record['least_distance']:.2f})")
        notes.append(f"collisions {record['crashed']:.2f}")
    return "; ".join(notes)


def _settings(records: Mapping[str, CeilingRecord]) -> str:
    lines = ["| task | context | agent | settings | commit | seconds |", "|---|---|---|---|---|---|"]
    for record in records.values():
        place = f"| {record['task']} | {record['information']} | {record['agent']} |"
        lines.append(f"{place} {record['settings']} | {record['commit']} | {record['wall_time_s']:.0f} |")
    return "## Settings\n\n" + "\n".join(lines) + "\n"


_HEAD = """# Ceilings

Written by `python -m benchmarks.ceilings`; the record behind it is `docs/results/ceilings.json`.

The best returns found with the *true* dynamics: what no learned model can be expected to beat by much. They are lower
bounds of the optimum. Default tasks: actuation +1 and -1, cool-off 5 (counter full at reset), then switch probability
0.2 a step. Ceilings of variants of the drone and the intersection: `python -m benchmarks.ceiling_variants`, on the page
of the study `twelve_variants`.

Mean return of an episode +- standard error (which agent):
"""

_WORDS = """
- **context known**: the agent sees the context before every step.
- **exact filter**: the agent sees the states only; Bayes' rule on the chain with its cool-off counter. The physics has
  no noise, so any step on which the actuator is used reveals its context, one step late.
- **geometric** (below): the same filter, on the chain without a counter whose contexts last as long in the mean: what
  an agent has that does not know how long a context has lasted.
- **blind**: the agent sees the states and knows the chain, but never learns from what it sees: its belief
  stays the chain's own. Every blind episode is run twice, the second time with the contexts exchanged, which is as
  likely; the standard error is over seeds.

The settings were chosen on seeds below 100, the numbers are from the seeds in the table. Of several agents in one cell
the table above shows the one with the highest mean over the seeds that all have run; all are below. "Contexts right"
is the share of steps after which the filter names the context that acted, among the steps on which the contexts lead to
different states (never those with zero steering). "Closest" is the distance of the two cars' centres, "collisions" the
share of episodes in which they overlap: the paper's reward knows neither, and agents that steer run into the other car
in nearly every episode. With `env.kwargs.collision_cost=10`, the reward lost on every step on which the cars overlap,
no agent below does, and the detour costs little.

## All agents
"""
