"""`durations`: are hazards and mean stays those of the data, and is geometric taken where the chain is Markov?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from mbrl_hdp.experiments.studies.durations_cell import run_cell
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Settings, Study, table

INSIDE, WITHIN = 0.005, 0.02
# Standard errors within which evidence and labels must be those of the true chain.
NUM_ERRORS = 3.0
# What is estimated from the episodes: the first context, and how likely each of the two is left. Each parameter costs
# half a nat of evidence in as many other episodes as it was estimated from (Akaike), however good the estimate is.
NUM_PARAMETERS = 3
VARIANTS = ("cool-off", "markov", "cartpole")
SEEDS = range(100, 110)
_WORDS = {
    "cool-off": "a cool-off of 5 steps, then .2 a step; two contexts with readings of known likelihood",
    "markov": "the same without a cool-off",
    "cartpole": "cart-pole hard, `fit` with its defaults and duration=auto",
}


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return data sets of 500 episodes of 100 steps, ten of each kind."""
    own = range(100, 101) if is_quick else SEEDS
    return [
        {"variant": variant, "seed": seed, "num_episodes": 20 if is_quick else 500, "num_steps": 100}
        for variant in VARIANTS
        for seed in seeds or own
    ]


def resolve(settings: Settings) -> Settings:
    """Return a cell's settings: nothing is left open."""
    return dict(settings)


def page(records: list[CellRecord]) -> Page:
    """Show what was chosen, hazards and mean stays."""
    rows = [_row(record) for record in records]
    columns = ("data", "seed", "taken", "phases", "hazard in the cool-off", "hazard after it", "mean stay", "evidence",
               "labels")  # fmt: skip
    words = "\n".join(f"- {variant}: {text}" for variant, text in _WORDS.items())
    body = (
        "Hazard: probability that a context is left, by steps since it was entered; in the cool-off the largest of the "
        "model, after it the model's beside the share counted in the true stays. Mean stay: the model's, and that of "
        "the true stays (Kaplan-Meier). Largest difference of the two contexts. Evidence (nats an episode) and labels "
        "(% of the steps right): of other episodes, less those of the true chain with its counter; on cart-pole less "
        "those of the same heads with the chain of their prior; ± standard error over episodes, in gates over "
        f"seeds. The true chain knows its {NUM_PARAMETERS} parameters; whoever estimates them from as many episodes as "
        "are then predicted loses half a nat for each on average, in all episodes together. The gates of the evidence "
        f"allow for that (they did not at first, and were missed by it).\n\n{words}\n\n"
    )
    return Page(body + table(columns, rows), _gates(records))


def _row(record: CellRecord) -> list[str]:
    found = record.results
    contexts: list[dict[str, Any]] = found.get("contexts", [])
    after = max(contexts, key=lambda each: abs(_off(each, "after")), default=None)
    mean = max(contexts, key=lambda each: abs(_off(each, "mean")), default=None)
    return [
        record.settings["variant"],
        record.seed,
        str(found["name"]),
        ", ".join(map(str, found.get("sizes", []))),
        "" if after is None else f"{max(each['inside'] for each in contexts):.4f}",
        "" if after is None else _beside(after, "after", 4),
        "" if mean is None else _beside(mean, "mean", 2),
        _difference(found.get("evidence"), 1.0),
        _difference(found.get("labels"), 100.0),
    ]


def _difference(found: dict[str, float] | None, factor: float) -> str:
    return "" if found is None else f"{factor * found['mean']:+.3f} ± {factor * found['error']:.3f}"


def _beside(context: dict[str, Any], key: str, digits: int) -> str:
    """Write a learned number, the true one and how far they are apart."""
    return f"{context[key]:.{digits}f} / {context[f'true_{key}']:.{digits}f} ({100 * _off(context, key):+.1f} %)"


def _off(context: dict[str, Any], key: str) -> float:
    return float(context[key] / context[f"true_{key}"] - 1.0)


def _gates(records: list[CellRecord]) -> list[Gate]:
    gates = []
    for variant in VARIANTS:
        own = [record for record in records if record.settings["variant"] == variant]
        contexts = [each for record in own for each in record.results.get("contexts", [])]
        if not contexts:
            continue
        is_whole, seeds = len(own) >= len(SEEDS), f"{len(own)} seeds"
        mean = max(abs(_off(each, "mean")) for each in contexts)
        if variant == "markov":
            count = sum(record.results["name"] == "geometric" for record in own)
            is_met = count >= 0.9 * len(own) if is_whole else None
            gates.append(Gate("Markov data: geometric is taken in 9 of 10", f"{count} of {len(own)}", is_met))
        else:
            inside = max(each["inside"] for each in contexts)
            after = max(abs(_off(each, "after")) for each in contexts)
            gates.append(_gate(f"{variant}: hazard in the cool-off below .005", inside, INSIDE, seeds, is_whole))
            gates.append(_gate(f"{variant}: hazard after it within 2 %", after, WITHIN, seeds, is_whole))
        gates.append(_gate(f"{variant}: mean stays within 2 %", mean, WITHIN, seeds, is_whole))
        if variant != "cartpole":
            gates += [_close_gate(variant, key, own, is_whole) for key in ("evidence", "labels")]
    return gates


def _close_gate(variant: str, key: str, records: list[CellRecord], is_whole: bool) -> Gate:
    """Return the gate on held-out episodes: beyond the price of estimates and chance, the true chain is no better."""
    own = [record for record in records if key in record.results]
    found = [record.results[key]["mean"] for record in own]
    error = stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0.0
    mean = fmean(found) if found else 0.0
    price = fmean(_price(record) for record in own) if own and key == "evidence" else 0.0
    is_met = mean >= -price - NUM_ERRORS * error if is_whole and len(found) == len(records) else None
    name = f"{variant}: {key} of other episodes at most {NUM_ERRORS:g} standard errors below the true chain's"
    allowed = f", less {price:.3f} for estimates" if price else ""
    return Gate(name + allowed, f"{mean:+.5f} ± {error:.5f}, {len(found)} seeds", is_met)


def _price(record: CellRecord) -> float:
    """Return the nats an episode that estimating the parameters from the cell's episodes costs on average."""
    return 0.5 * NUM_PARAMETERS / float(record.settings["num_episodes"])


def _gate(name: str, value: float, limit: float, seeds: str, is_whole: bool) -> Gate:
    return Gate(name, f"largest {value:.4f}, {seeds}", value <= limit if is_whole else None)


STUDY = Study("durations", "Contexts last as long as in the data", cells, run_cell, page, resolve)
