"""`resultB`: the chain with K=8 for three thresholds: distillation in training regularises (Figure of Result B)."""

from __future__ import annotations

from collections.abc import Sequence

from mbrl_hdp.experiments.studies import table1
from mbrl_hdp.experiments.studies.branches import run_cell
from mbrl_hdp.experiments.studies.cartpole_fit import resolve
from mbrl_hdp.experiments.studies.drawings import Drawing, chain_panel
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Results, Settings, Study, table

SIZE = 8


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return the cells of Table 1 with K=8."""
    size = 5 if is_quick else SIZE
    return [cell for cell in table1.cells(seeds, is_quick) if cell["max_contexts"] == size]


def spurious_stay(branch: Results) -> float:
    """Return the largest self-transition of a slot other than the two with the largest mass."""
    chain = branch["chain"]
    order = sorted(range(len(chain["stationary"])), key=lambda slot: -chain["stationary"][slot])
    return max(float(chain["transition"][slot][slot]) for slot in order[2:])


def page(records: list[CellRecord]) -> Page:
    """Return how long spurious contexts would hold once entered, by threshold, and draw the first seed's chains."""
    whole = [record for record in records if all("chain" in branch for branch in record.results["branches"].values())]
    left_out = len(records) - len(whole)
    records, rows = whole, []
    for record in records:
        for threshold in table1.THRESHOLDS:
            branch = record.results["branches"][str(threshold)]
            rows.append(
                [
                    record.seed,
                    f"{threshold:g}",
                    f"{spurious_stay(branch):.3f}",
                    f"{table1.third(branch):.1e}",
                    str(branch["num_contexts"]),
                    f"{branch['accuracy']:.4f}",
                ]
            )
    columns = ("seed", "eps", "largest self-transition of a spurious slot", "third mass", "contexts kept", "accuracy")
    body = (
        "The K=8 cells of [Table 1](table1.md). The paper (Result B): without distillation a context with little mass "
        "keeps a high probability of staying, so that a spurious transition would last; distillation in training "
        "prevents it.\n\n"
    )
    if left_out:
        body += f"{left_out} cells are left out: they were run before the whole chain was kept.\n\n"
    if not records:
        return Page(body.rstrip(), [])
    return Page(body + table(columns, rows), _gates(records), _drawings(records))


def _gates(records: list[CellRecord]) -> list[Gate]:
    plain, distilled = (
        [spurious_stay(record.results["branches"][str(eps)]) for record in records] for eps in (0.0, 0.1)
    )
    lower = sum(after <= before for before, after in zip(plain, distilled, strict=True))
    is_whole = len(records) >= table1.planned_seeds(SIZE)
    name = "eps = .1 lowers the largest spurious self-transition on every seed"
    return [Gate(name, f"{lower} of {len(records)}", lower == len(records) if is_whole else None)]


def _drawings(records: list[CellRecord]) -> list[Drawing]:
    first = records[0]
    panels = [chain_panel(f"eps = {eps:g}", first.results["branches"][str(eps)]) for eps in table1.THRESHOLDS]
    caption = f"Learned chains, seed {first.settings['seed']}, by threshold in training."
    return [Drawing("resultB_chains", caption, panels)]


STUDY = Study(
    "resultB", "Result B: distillation regularises", cells, run_cell, page, resolve, reads=("table1",)
)  # fmt: skip
