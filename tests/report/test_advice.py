"""The judgement of a fit: every doubt has its cause and names the setting that answers it."""

import pytest

from mbrl_hdp.report.advice import advise


def run(num_contexts, is_good=True, agreement=1.0, taken=False):
    return {
        "schedule": "plain",
        "num_contexts": num_contexts,
        "held_out_rmse": 0.5,
        "held_out_log_likelihood": 1.0,
        "taken": taken,
        "equally_good": is_good,
        "agreement": agreement,
    }


def found(**changes):
    """A fit that nothing speaks against: two contexts, three runs and two halves that agree, plenty of data."""
    return {
        "num_contexts": 2,
        "max_contexts": 5,
        "slots": [1, 3],
        "stationary": [0.4, 0.6],
        "slot_mass": [0.001, 0.398, 0.001, 0.599, 0.001],
        "threshold": 0.02,
        "mean_dwell": [8.0, 12.0],
        "certainty": 0.99,
        "runs": [run(2, taken=True), run(2), run(2)],
        "half_agreement": [0.97, 0.93],
        "regions": [0.02, None],
        "num_episodes": 200,
        "few_components": None,
        "search": {"num_contexts": 2},
        "num_transitions": 20000,
        "parts": {"prior": "hdp", "distillation": "stationary", "dynamics": "delta_mlp"},
        "row_concentration": 100.0,
        **changes,
    }


def test_a_clear_fit_is_sure():
    advice = advise(found())
    assert advice.is_sure
    assert advice.level == "sure"
    assert advice.verdict.startswith("sure, since models learned from either half of the data alone")
    assert "at least 0.93" in advice.verdict
    assert "do the 3 best runs" in advice.verdict
    assert advice.doubts == []
    assert any("too many" in line for line in advice.suggestions)
    assert any("act=[COLUMN]" in line for line in advice.suggestions)
    assert any("too few" in line and "test_threshold=0.005" in line for line in advice.suggestions)


DOUBTS = {
    "all slots in use": ({"max_contexts": 2, "slots": [0, 1], "slot_mass": [0.4, 0.6]}, "max_contexts=4"),
    "all of three slots in use": (
        {
            "num_contexts": 3,
            "max_contexts": 3,
            "slots": [0, 1, 2],
            "slot_mass": [0.3, 0.3, 0.4],
            "stationary": [0.3, 0.3, 0.4],
            "mean_dwell": [8.0, 12.0, 9.0],
            "regions": [0.02, None, None],
            "runs": [run(3, taken=True), run(3), run(3)],
            "search": {"num_contexts": 3},
        },
        "max_contexts=6",
    ),
    "rare context": ({"stationary": [0.03, 0.97]}, "distillation.test_threshold=0.04"),
    "nearly kept": ({"slot_mass": [0.018, 0.39, 0.0, 0.592, 0.0]}, "distillation.train_threshold=0.009"),
    "nearly kept, alone": (
        {"max_contexts": 3, "slots": [1, 2], "slot_mass": [0.018, 0.39, 0.592]},
        "distillation.train_threshold=0.009",
    ),
    "runs disagree": ({"runs": [run(2, taken=True), run(3), run(2)]}, "fit.num_restarts=6"),
    "labels of runs disagree": ({"runs": [run(2, taken=True), run(2, agreement=0.6)]}, "fit.num_restarts=6"),
    "labels of halves disagree": ({"half_agreement": [0.97, 0.5]}, "record more"),
    "few steps for networks": ({"num_transitions": 900}, "dynamics=linear"),
    "few steps in a context": ({"num_transitions": 100}, "record more"),
    "flips": ({"mean_dwell": [1.2, 9.0]}, "fit.num_restarts=6"),
    "alike": ({"certainty": 0.7}, "add columns"),
}


def test_what_the_prior_gives_to_every_dropped_slot_is_no_doubt():
    advice = advise(found(slot_mass=[0.024, 0.37, 0.028, 0.554, 0.024]))
    assert advice.level == "sure"
    assert "candidate" not in advice.verdict


def test_nor_is_what_it_gives_to_a_single_one():
    """1.3 % of 2499 steps with three contexts: 300 pseudo-counts, a quarter of which may go to the fourth slot."""
    changes = {"max_contexts": 4, "num_contexts": 3, "slots": [0, 1, 2], "stationary": [0.5, 0.3, 0.2]}
    changes |= {"slot_mass": [0.49, 0.297, 0.2, 0.013], "mean_dwell": [9.0] * 3, "regions": [None] * 3}
    parts = {"prior": "hdp", "distillation": "stationary", "dynamics": "linear"}
    short, long = (advise(found(num_transitions=size, parts=parts, **changes)) for size in (2499, 24990))
    assert "candidate" not in short.verdict
    assert "a candidate context, dropped, still holds 1.3%" in long.verdict


def test_one_context_in_many_columns_that_move_together_is_unsure():
    changes = {"num_contexts": 1, "stationary": [1.0], "slots": [3], "mean_dwell": [1e9], "few_components": 3}
    changes["slot_mass"] = [0.0, 0.0, 0.0, 1.0, 0.0]
    advice = advise(found(**changes))
    assert advice.level == "unsure"
    assert "3 principal components hold 99.5% of their variance" in advice.verdict
    assert "pca=3" in advice.suggestions[0]
    assert advise(found(few_components=3)).is_sure


@pytest.mark.parametrize("case", DOUBTS)
def test_every_doubt_is_told_with_its_remedy(case):
    changes, remedy = DOUBTS[case]
    advice = advise(found(**changes))
    assert not advice.is_sure
    assert advice.verdict.startswith("unsure, since ")
    assert len(advice.doubts) == 1
    assert remedy in advice.suggestions[0]


def test_runs_that_predict_badly_have_no_vote():
    advice = advise(found(runs=[run(2, taken=True), run(2), run(4, is_good=False, agreement=0.3)]))
    assert advice.is_sure
    assert "do the 2 best runs" in advice.verdict
    alone = advise(found(runs=[run(2, taken=True), run(2, is_good=False)]))
    assert alone.verdict.endswith("(adjusted Rand index at least 0.93)")  # the run taken agrees with itself


def test_without_halves_it_is_only_fairly_sure():
    """Runs that start from the same search agree even where it is wrong."""
    advice = advise(found(half_agreement=[]))
    assert (advice.level, advice.is_sure) == ("fairly sure", False)
    assert advice.doubts == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "fit.halves_within_s=600 allows more time"),
        ({"num_episodes": 3}, "3 episodes are too few (it takes 10)"),
        ({"num_episodes": 1}, "1 episode is too few (it takes 10)"),
        ({"search": {}}, "that takes a new fit with fit.start=search"),
    ],
)
def test_why_halves_were_not_learned_is_told(changes, words):
    assert words in advise(found(half_agreement=[], **changes)).verdict


def test_one_context_is_never_too_many():
    changes = {"num_contexts": 1, "stationary": [1.0], "slots": [3], "mean_dwell": [1e9]}
    assert not any("too many" in line for line in advise(found(**changes)).suggestions)


def test_a_context_that_looks_like_a_region_is_only_fairly_sure():
    advice = advise(found(regions=[0.05, 0.62]))
    assert advice.level == "fairly sure"
    assert "62%" in advice.verdict


def test_networks_are_not_recommended_to_who_has_linear_ones():
    parts = {"prior": "hdp", "distillation": "stationary", "dynamics": "linear"}
    assert advise(found(num_transitions=900, parts=parts)).is_sure


def test_the_priors_pull_is_told_when_it_matters():
    assert not any("row_concentration" in line for line in advise(found()).suggestions)
    advice = advise(found(num_transitions=6000, row_concentration=100.0))
    (line,) = [line for line in advice.suggestions if "row_concentration" in line]
    assert "duration=auto" in line
    assert "prior.row_concentration=20" in line  # a hundredth of the 2400 steps of the rarer context
    assert not any("row_concentration" in line for line in advise(found(row_concentration=None)).suggestions)


def test_a_rule_without_threshold():
    advice = advise(found(threshold=None))
    assert any("distillation=stationary" in line for line in advice.suggestions)


def test_one_context():
    one = {
        "num_contexts": 1,
        "slots": [1],
        "stationary": [1.0],
        "slot_mass": [0.001, 0.996, 0.001, 0.001, 0.001],
        "mean_dwell": [1e9],
        "runs": [run(1, taken=True), run(1)],
        "regions": [0.0],
    }
    assert advise(found(**one)).is_sure
