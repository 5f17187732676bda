"""`systems`: are the contexts of systems that nobody prepared found with defaults only?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from mbrl_hdp.envs.systems import SYSTEMS, VARIANTS, bodies
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table, table_of
from mbrl_hdp.experiments.studies.system_cell import run_cell

SEEDS = range(100, 105)
RIGHT = 0.9
ACCURACY = 0.98
STILL_RIGHT = 0.95
MOST_SPURIOUS = 1
MEDIAN_S = 60.0
MOST_S = 300.0
LABELLED = 0.95


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return the plain cells of all seeds and the variants of the first: first seed first, MuJoCo bodies last."""
    if is_quick:
        return [_settings("pendulum", "plain", seed, 4) for seed in seeds or (100,)]
    first, *more = seeds or SEEDS
    variants = sorted(VARIANTS, key=lambda variant: (variant != "plain", not variant.startswith("still")))
    pairs = [(variant, first) for variant in variants] + [("plain", seed) for seed in more]
    groups = [[name for name in SYSTEMS if name not in bodies.SYSTEMS], list(bodies.SYSTEMS)]
    return [_settings(name, variant, seed, 100) for names in groups for variant, seed in pairs for name in names]


def _settings(name: str, variant: str, seed: int, num_episodes: int) -> Settings:
    return {
        "method": "find_contexts", "system": name, "variant": variant, "seed": seed, "num_episodes": num_episodes
    }  # fmt: skip


def resolve(settings: Settings) -> Settings:
    """Return a cell's settings: nothing is left to presets."""
    return dict(settings)


def is_still(record: CellRecord) -> bool:
    """Whether the system of a cell never switches."""
    return bool(record.results["true"] == 1)


def is_right(record: CellRecord) -> bool:
    """Whether the number of contexts is right."""
    return bool(record.results["found"] == record.results["true"])


def is_bad(record: CellRecord) -> bool:
    """Whether a cell is a failure: a wrong number, or the right number with labels that are not the contexts."""
    return not is_right(record) or record.results["accuracy"] < LABELLED


def page(records: list[CellRecord]) -> Page:
    """Sum the cells up by variant, show the failures, then everything."""
    methods = sorted({record.settings["method"] for record in records})
    body = (
        f"{len({record.settings['system'] for record in records})} systems (`mbrl_hdp/envs/systems`), 100 episodes of "
        "100 random actions (`few`: 30); process noise 5 % of the spread of a step's change, observation noise 1 % of "
        "the spread of an observation, `close`: contexts .3 as far from their mean, `still`: no switching. Everything "
        f"is a default; the call is `{'`, `'.join(methods)}`. Nothing was tuned on these seeds. Accuracy is the share "
        "of steps whose label is right after the best matching of contexts. Seconds are processor time of one core.\n\n"
    )
    bad = [record for record in records if is_bad(record)]
    parts = [
        body + table(_COLUMNS, _by_variant(records)),
        "## Failures",
        _failures(bad),
        "## Every cell",
        _all(records),
    ]
    return Page("\n\n".join(parts), _gates(records))


_COLUMNS = ("variant", "cells", "number right", "accuracy: median", "least", "CPU s: median", "most")


def _by_variant(records: list[CellRecord]) -> list[list[str]]:
    rows = []
    for variant in VARIANTS:
        group = [record for record in records if record.settings["variant"] == variant]
        if group:
            accuracy = [record.results["accuracy"] for record in group]
            seconds = [record.results["cpu_s"] for record in group]
            rows.append(
                [
                    variant, str(len(group)), f"{sum(map(is_right, group))}/{len(group)}", f"{median(accuracy):.4f}",
                    f"{min(accuracy):.4f}", f"{median(seconds):.0f}", f"{max(seconds):.0f}",
                ]
            )  # fmt: skip
    return rows


def _failures(bad: list[CellRecord]) -> str:
    if not bad:
        return f"None: every number is right and no accuracy is below {LABELLED}."
    bad = sorted(bad, key=lambda record: record.results["accuracy"])
    columns = {
        "system": lambda record: record.settings["system"],
        "variant": lambda record: record.settings["variant"],
        "seed": lambda record: record.seed,
        "found/true": _counts,
        "accuracy": lambda record: f"{record.results['accuracy']:.4f}",
        "regions": lambda record: ", ".join(f"{share:.2f}" for share in record.results["regions"]),
        "last division: gain, beyond a gate, jump": _last_division,
    }
    return (
        f"Cells with a wrong number or an accuracy below {LABELLED}. Regions: share of the entropy of leaving a "
        "context that state and action explain. Gain: nats a step over the model without the last division that was "
        "tried; beyond a gate: nats a step over one larger head that chooses between the halves by state and action; "
        "jump: how much steps beside a switch between the halves speak for their half, relative to all steps.\n\n"
        + table_of(bad, columns)
    )


def _counts(record: CellRecord) -> str:
    return f"{record.results['found']}/{record.results['true']}"


def _last_division(record: CellRecord) -> str:
    if not record.results["history"]:
        return "none tried"
    last = record.results["history"][-1]
    jump = "-" if last.get("jump") is None else f"{last['jump']:.2f}"
    return f"{last['gain']:.3f}, {last['beyond_gate']:.3f}, {jump}{'' if last['is_accepted'] else ' (rejected)'}"


def _all(records: list[CellRecord]) -> str:
    heads = [("plain", seed) for seed in sorted({record.settings["seed"] for record in records})]
    heads += [(variant, None) for variant in VARIANTS if variant != "plain"]
    names = [name for name in SYSTEMS if any(record.settings["system"] == name for record in records)]
    rows = [[name, *(_shown(records, name, *head) for head in heads)] for name in names]
    columns = ["system", *(variant if seed is None else f"{variant} {seed}" for variant, seed in heads)]
    return "Found/true, accuracy, CPU s.\n\n" + table(columns, rows)


def _shown(records: list[CellRecord], name: str, variant: str, seed: int | None) -> str:
    words = []
    for record in records:
        of = record.settings
        if (of["system"], of["variant"]) == (name, variant) and seed in (None, of["seed"]):
            mark = "" if is_right(record) else "**"
            words.append(
                f"{mark}{_counts(record)}{mark} {record.results['accuracy']:.3f} {record.results['cpu_s']:.0f}"
            )
    return "; ".join(words) or "-"


def _gates(records: list[CellRecord]) -> list[Gate]:
    planned = {(cell["system"], cell["variant"], cell["seed"]) for cell in cells(None, False)}
    ran = {tuple(record.settings[key] for key in ("system", "variant", "seed")) for record in records}
    switching = [record for record in records if not is_still(record)]
    still = [record for record in records if is_still(record)]
    gates = []
    if switching:
        share = sum(map(is_right, switching)) / len(switching)
        good = sum(not is_bad(record) for record in switching)
        middle = median(record.results["accuracy"] for record in switching)
        gates += [
            (f"number right in at least {RIGHT:.0%} of the switching cells", _of(switching), share >= RIGHT),
            (
                f"number right and accuracy at least {LABELLED} in at least {RIGHT:.0%} of them",
                f"{good} of {len(switching)}",
                good >= RIGHT * len(switching),
            ),
            (f"their median accuracy at least {ACCURACY}", f"{middle:.4f}", middle >= ACCURACY),
        ]
    if still:
        share = sum(map(is_right, still)) / len(still)
        gates.append((f"one context in at least {STILL_RIGHT:.0%} of the cells that never switch", _of(still),
                      share >= STILL_RIGHT))  # fmt: skip
    spurious = max(record.results["found"] - record.results["true"] for record in records)
    seconds = [record.results["cpu_s"] for record in records]
    gates += [
        (f"never more than {MOST_SPURIOUS} spurious context", f"at most {max(spurious, 0)}", spurious <= MOST_SPURIOUS),
        (f"median below {MEDIAN_S:.0f} CPU s", f"{median(seconds):.0f} s", median(seconds) < MEDIAN_S),
        (f"none above {MOST_S:.0f} CPU s", f"{max(seconds):.0f} s", max(seconds) <= MOST_S),
    ]
    is_whole = planned <= ran
    return [Gate(name, found, is_met if is_whole else None) for name, found, is_met in gates]


def _of(group: list[CellRecord]) -> str:
    return f"{sum(map(is_right, group))} of {len(group)}"


STUDY = Study("systems", "The contexts of systems that nobody prepared", cells, run_cell, page, resolve)
