"""The page of hyper-parameters: ours are read from the presets, and every difference has a reason."""

import pytest

from mbrl_hdp.experiments.studies import settings_page
from mbrl_hdp.experiments.studies.settings_page import TABLES, TASKS, value_at
from mbrl_hdp.experiments.studies.train_cell import resolve


@pytest.fixture(scope="module")
def presets():
    return {
        (agent, task, kind): resolve(place | {"agent": agent, "profile": kind, "seed": 100})
        for agent in ("C-CEM", "C-SAC")
        for task, place in TASKS.items()
        for kind in ("paper", "fast")
    }


def test_every_difference_has_a_reason(presets):
    for _, agent, rows in TABLES:
        for number, task in enumerate(TASKS):
            for stated in rows:
                said = stated.paper[number]
                for kind, why in (("paper", stated.why_paper), ("fast", stated.why)):
                    is_same = value_at(presets[agent, task, kind], stated.key) == said
                    assert is_same or why, f"{task}: {stated.name}, {kind}"


def test_the_page_shows_the_presets_own_numbers(presets):
    body = settings_page.page([]).body
    ours = value_at(presets["C-CEM", "cart-pole, hard", "fast"], "prior.row_concentration")
    assert f"| alpha | `prior.row_concentration` | 1000.0 | 1000.0 | {ours} |" in body
    assert body.count("**drone**") == len(TABLES)
    horizon = [value_at(presets["C-CEM", task, "fast"], "planner.horizon") for task in TASKS]
    assert f"| CEM: horizon | `planner.horizon` | {' | '.join(map(str, horizon))} |" in body
