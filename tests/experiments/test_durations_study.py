"""The study of durations: what its cells record and what its gates ask for."""

import pytest

from mbrl_hdp.experiments.studies import load_study
from mbrl_hdp.experiments.studies.durations_cell import run_cell
from mbrl_hdp.experiments.studies.study import CellRecord


@pytest.mark.parametrize("variant", ["cool-off", "markov"])
def test_learned_chains_predict_other_episodes_about_as_the_true_chain_does(variant):
    found = run_cell({"variant": variant, "seed": 3, "num_episodes": 100, "num_steps": 60})
    assert found["name"] == ("minimum" if variant == "cool-off" else "geometric")
    # A few learned numbers cost d / (2 N) nats an episode in the mean; knowing nothing would cost several nats.
    assert -0.15 < found["evidence"]["mean"] < 0.05
    assert 0 < found["evidence"]["error"] < 0.05
    assert abs(found["labels"]["mean"]) < 0.005


def record(seed, evidence, variant="markov"):
    context = {"inside": 0.2, "after": 0.2, "true_after": 0.2, "mean": 5.0, "true_mean": 5.0}
    differences = {"evidence": {"mean": evidence, "error": 0.1}, "labels": {"mean": 0.001, "error": 0.1}}
    found = {"name": "geometric", "sizes": [1, 1], "contexts": [context], **differences}
    return CellRecord({"variant": variant, "seed": seed, "num_episodes": 150}, found, "c", 1.0)


@pytest.mark.parametrize(("centre", "is_met"), [(-0.035, True), (-0.045, False), (0.5, True)])
def test_gates_on_held_out_episodes_are_over_seeds(centre, is_met):
    """Ten seeds with a standard error of .01: three of them are allowed, and .01 for three estimates."""
    values = [centre + (0.03 if seed % 2 else -0.03) for seed in range(100, 110)]
    page = load_study("durations").page(
        [record(seed, value) for seed, value in zip(range(100, 110), values, strict=True)]
    )
    gates = {gate.name.partition(" of ")[0]: gate.is_met for gate in page.gates}
    assert gates["markov: evidence"] is is_met
    assert gates["markov: labels"] is True
    few = load_study("durations").page([record(100, 0.0)])
    assert {gate.name.partition(" of ")[0]: gate.is_met for gate in few.gates}["markov: evidence"] is None
