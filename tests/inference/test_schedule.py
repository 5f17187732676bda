"""Settings of training: their ranges end where the docs and the formulas end; the schedules are the documented ones."""

import dataclasses
import math

import pytest

from mbrl_hdp.inference.recipes import RECIPES
from mbrl_hdp.inference.schedule import LITERAL, PLAIN, POLISH, POOLED, REFIT, TEMPERED, FitConfig, Schedule
from mbrl_hdp.settings import check_settings

# Ends of the range of a field; an end with a bracket is allowed, one with a parenthesis is not.
FRACTION = ("[", 0.0, 1.0, "]")
SHARE = ("[", 0.0, 1.0, ")")
FACTOR = ("(", 0.0, 1.0, "]")
POSITIVE = ("(", 0.0, math.inf, ")")
COUNT = ("[", 1, math.inf, ")")
NOT_NEGATIVE = ("[", 0, math.inf, ")")
RANGES = {
    Schedule: {
        "pool_until": SHARE, "pool_rate": POSITIVE, "spread": POSITIVE, "temper_from": FACTOR, "temper_until": FRACTION,
        "freeze_until": FRACTION, "distil_from": FRACTION, "keep_two_until": FRACTION, "decay_from": FRACTION,
        "rate_factor": FACTOR,
    },
    FitConfig: {
        "halves_within_s": NOT_NEGATIVE,
        "num_contexts": COUNT,
        "num_steps": COUNT, "batch_size": COUNT, "learning_rate": POSITIVE, "row_learning_rate": POSITIVE,
        "top_learning_rate": POSITIVE, "natural_step": FACTOR, "stay": FRACTION, "start_strength": POSITIVE,
        "num_restarts": COUNT, "polish_steps": NOT_NEGATIVE, "holdout": SHARE, "clip": POSITIVE,
        "patience": NOT_NEGATIVE, "check_every": COUNT, "tolerance": NOT_NEGATIVE,
    },
}  # fmt: skip
WORDS = {
    ("[", "]"): lambda low, high: {"at_least": low, "at_most": high},
    ("[", ")"): lambda low, high: {"at_least": low, "below": high},
    ("(", "]"): lambda low, high: {"above": low, "at_most": high},
    ("(", ")"): lambda low, high: {"above": low, "below": high},
}


@pytest.mark.parametrize("kind", RANGES)
def test_ranges(kind):
    check_settings(kind())
    found = {}
    for field in dataclasses.fields(kind):
        rules = {name: rule for name, rule in field.metadata.items() if name not in ("help", "choices")}
        if rules:
            found[field.name] = rules
    wanted = {
        name: {word: end for word, end in WORDS[left, right](low, high).items() if math.isfinite(end)}
        for name, (left, low, high, right) in RANGES[kind].items()
    }
    assert found == wanted


def events(schedule):
    """Return when one head is pooled, the chain held, contexts masked and so on, as fractions of a run."""
    return (
        schedule.pool_until, schedule.temper_from, schedule.freeze_until, schedule.distil_from,
        schedule.keep_two_until, schedule.decay_from, schedule.rate_factor,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (POOLED, (0.2, 1.0, 0.6, 0.7, 0.9, 0.7, 1.0)),
        (TEMPERED, (0.0, 0.1, 0.3, 0.5, 0.9, 0.7, 1.0)),
        (PLAIN, (0.0, 1.0, 0.7, 0.8, 0.9, 0.7, 1.0)),
        (REFIT, (0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.2)),  # a fifth of the rates, decaying
        (POLISH, (0.0, 1.0, 0.0, 1.0, 0.9, 0.0, 1.0)),
        (LITERAL, (0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0)),  # at every step, constant rates
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_schedules(schedule, wanted):
    check_settings(schedule)
    assert events(schedule) == wanted
    assert (schedule.temper_until, schedule.pool_rate, schedule.spread) == (0.4, 3.0, 1.0)


def test_rate_and_temperature_at_their_ends():
    schedule = Schedule(temper_from=0.2, temper_until=0.5, decay_from=0.6, rate_factor=0.5)
    assert [schedule.rate(at) for at in (0.0, 0.6)] == [0.5, 0.5]
    assert schedule.rate(0.8) == pytest.approx(0.5 * 0.55)  # half-way to a tenth
    assert schedule.rate(1.0) == pytest.approx(0.05)
    assert Schedule(decay_from=1.0).rate(1.0) == 1.0
    assert schedule.temperature(0.0) == pytest.approx(0.2)
    assert schedule.temperature(0.25) == pytest.approx(0.6)
    assert schedule.temperature(0.5) == schedule.temperature(0.9) == 1.0
    assert Schedule(temper_until=0.5).temperature(0.1) == 1.0


def test_defaults_of_fit_are_the_documented_ones():
    config = FitConfig()
    assert (config.num_steps, config.batch_size, config.num_restarts, config.polish_steps) == (500, 100, 3, 1000)
    assert (config.learning_rate, config.row_learning_rate, config.top_learning_rate) == (5e-3, 1e-2, None)
    assert (config.natural_step, config.stay, config.start_strength, config.holdout) == (0.05, 0.8, 1000.0, 0.1)
    assert (config.clip, config.patience, config.check_every, config.tolerance) == (10.0, 0, 20, 1e-3)
    assert [schedule.name for schedule in config.schedules] == ["pooled", "tempered", "plain"]
    assert {name: recipe.top_learning_rate for name, recipe in RECIPES.items()} == {"robust": 0.05, "literal": 0.01}


def test_what_the_literal_recipe_fixes():
    literal = RECIPES["literal"]
    settled = literal.settle(FitConfig())
    assert (settled.num_restarts, settled.polish_steps, settled.holdout, settled.schedules) == (1, 0, 0.0, [LITERAL])
    assert literal.dynamics == {"std_floor": 0.0, "final_std_floor": 0.0, "skip_share": 0.0}
