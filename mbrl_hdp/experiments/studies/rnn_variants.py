"""`rnn_variants`: other architectures of RNN-PPO, which the paper tried "without reasonable results" (appendix)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mbrl_hdp.experiments.studies.returns_table import LEGEND, SEEDS, group_of, improvement_table, name_of, return_rows
from mbrl_hdp.experiments.studies.study import CellRecord, Page, Settings, Study, table
from mbrl_hdp.experiments.studies.train_cell import resolve, run

PLACES = ("hard", "soft .5")
AGENT, PLAIN = "RNN-PPO", "RecurrentPPO"
# Variant -> what it is, and the settings that make it.
VARIANTS = {
    "wide belief": ("five contexts instead of two, room for spurious ones (paper)", ["agent.num_contexts=5"]),
    "no decoder": ("policy and value see the hidden state itself (paper)", ["agent.decoder=none"]),
    "linear decoder": ("W h without the softmax: no belief, two free numbers (ours)", ["agent.decoder=linear"]),
    "no memory": ("a belief over one context, which is constant: plain PPO (ours)", ["agent.num_contexts=1"]),
}


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return the paper's architecture and sb3-contrib's (cells of `baselines`), then every variant."""
    if is_quick:
        small = {"agent": AGENT, "failure": PLACES[0], "profile": "smoke", "variant": "no decoder"}
        overrides = ["env.kwargs.horizon=12", "agent.n_steps=24", "agent.batch_size=12", *VARIANTS["no decoder"][1]]
        return [small | {"overrides": overrides, "seed": seed} for seed in seeds or SEEDS[:1]]
    kinds: list[Settings] = [{"agent": AGENT}, {"agent": PLAIN}]
    kinds += [
        {"agent": AGENT, "variant": name, "overrides": overrides} for name, (_, overrides) in VARIANTS.items()
    ]  # fmt: skip
    return [
        kind | {"failure": place, "profile": "fast", "seed": seed}
        for kind in kinds
        for place in PLACES
        for seed in seeds or SEEDS
    ]


def page(records: list[CellRecord]) -> Page:
    """Return the returns of every architecture."""
    names = list(dict.fromkeys(map(name_of, records)))
    rows = [row for name in names for row in return_rows(name, records, (), PLACES)]
    body = [
        'The paper (appendix, "PPO with an RNN model") reads the memory of its RNN as a belief, softmax(W h), as wide '
        'as the known number of contexts, and mentions others, "projecting to a larger belief space to account for '
        'spurious contexts, removing the decoder altogether etc.", without numbers: they "did not yield reasonable '
        f'results". {LEGEND}',
        table(("agent", "what it is"), [
            [AGENT, "the paper's: a belief over the two contexts (cells of [baselines](baselines.md))"],
            [PLAIN, "sb3-contrib's own, two LSTMs on the observation (likewise)"],
            *([f"{AGENT}, {name}", words] for name, (words, _) in VARIANTS.items()),
        ]),
        table(("agent", *PLACES), rows),
        improvement_table(records, [AGENT], list(PLACES)),
        "Movement: standard deviation of the belief within the first evaluation episode, mean over seeds.",
        table(("agent", *PLACES), [[name, *(_movement(records, name, place) for place in PLACES)] for name in names]),
    ]  # fmt: skip
    return Page("\n\n".join(body), [])


def _movement(records: list[CellRecord], name: str, place: str) -> str:
    found = []
    for record in group_of(records, name, place):
        course = record.results.get("course")
        if course is not None and course["belief"] is not None:
            found.append(float(np.std(course["belief"], axis=0).mean()))
    return f"{np.mean(found):.3f}, n={len(found)}" if found else "-"


STUDY = Study(
    "rnn_variants", "Architectures of the recurrent baseline", cells, run, page, resolve, reads=("baselines", "table2")
)
