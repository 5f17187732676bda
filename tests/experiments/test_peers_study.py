"""The studies `peers` and `raw_angles`: their cells, their gates, what a peer's labels are worth on an easy system."""

import builtins
from typing import ClassVar

import numpy as np
import pytest

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs.systems import simulate
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments.studies import peer_ar_hmm, peer_earlier, peer_residual_hmm, peers, raw_angles, systems_fit
from mbrl_hdp.experiments.studies.study import CellRecord
from mbrl_hdp.inference.scoring import align


def records(accuracy):
    """Every cell, with an accuracy by system and method."""
    cells = peers.cells(None, False)
    results = [{"found": 2, "true": 2, "cpu_s": 1.0, "accuracy": accuracy(c["system"], c["method"])} for c in cells]
    return [CellRecord(cell, result, "c", 1.0) for cell, result in zip(cells, results, strict=True)]


def gates(accuracy):
    return [gate.is_met for gate in peers.page(records(accuracy)).gates]


def test_a_tie_is_enough_on_linear_systems_only():
    assert gates(lambda system, method: 0.99 if method == "fit" else 0.7) == [True, True]
    assert gates(lambda system, method: 0.99) == [False, True]
    worse = {("linear_4d_2", "ar_hmm"): 0.999, ("linear_6d_4", "ar_hmm"): 0.98}
    assert gates(lambda *key: worse.get(key, 0.99 if key[1] == "fit" else 0.7)) == [True, False]
    assert [gate.is_met for gate in peers.page(records(lambda *_: 0.9)[:10]).gates] == [None, None]


def test_a_tie_is_enough_where_a_peer_leaves_no_room():
    def found(ours):
        full = {("two_tanks", "fit"): ours, ("two_tanks", "ar_hmm"): 1.0}
        return records(lambda *key: full.get(key, 0.99 if key[1] == "fit" else 0.7))

    assert [gate.is_met for gate in peers.page(found(0.996)).gates] == [True, True]
    assert [gate.is_met for gate in peers.page(found(0.994)).gates] == [False, True]
    assert "(1 of them where a peer has so much)" in peers.page(found(0.996)).gates[0].found


def test_cells_of_fit_are_those_of_systems_fit():
    cell = peers.cells(None, False)[0]
    assert cell["method"] == "fit"
    assert peers.STUDY.identity(cell) == systems_fit.STUDY.identity(cell)
    assert "systems_fit" in peers.STUDY.reads
    other = cell | {"method": "ar_hmm"}
    assert peers.STUDY.identity(other).code != peers.STUDY.identity(cell).code


def test_residuals_with_two_means_are_labelled():
    rng = np.random.default_rng(0)
    context = (np.arange(60) // 15 % 2)[None].repeat(12, 0)
    obs = np.zeros((12, 61, 1))
    for step in range(60):
        drift = 0.5 * (2 * context[:, step] - 1)
        obs[:, step + 1, 0] = 0.9 * obs[:, step, 0] + drift + 0.02 * rng.normal(size=12)
    labels = peer_residual_hmm.label(Trajectories(obs, np.zeros((12, 60, 0))), 2)
    assert align(labels, context).accuracy > 0.9


def test_windows_of_a_linear_system_have_its_heads():
    rng = np.random.default_rng(1)
    inputs, weight = rng.normal(size=(3, 40, 2)), np.array([[1.0, -2.0]])
    weights, biases = peer_ar_hmm.window_heads(inputs, inputs @ weight.T + 0.5, 4, rng)
    np.testing.assert_allclose(weights, np.tile(weight, (4, 1, 1)), atol=1e-2)
    np.testing.assert_allclose(biases, 0.5, atol=1e-2)


def test_a_missing_library_is_named(monkeypatch):
    plain = builtins.__import__

    def refuse(name, *rest, **more):
        if name.startswith(("jax", "dynamax", "hmmlearn")):
            raise ImportError(name)
        return plain(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    data = Trajectories(np.zeros((2, 4, 1)), np.zeros((2, 3, 0)))
    with pytest.raises(ConfigError, match=r"needs dynamax.*pip install dynamax"):
        peer_ar_hmm.label(data, 2)
    with pytest.raises(ConfigError, match=r"needs hmmlearn.*pip install dynamax hmmlearn"):
        peer_residual_hmm.label(data, 2)


class TestEarlierVersion:
    CELL: ClassVar = {"system": "linear_4d_2", "variant": "plain", "seed": 0, "num_episodes": 4, "method": "earlier"}

    def test_what_to_set_is_named(self, monkeypatch, tmp_path):
        monkeypatch.delenv(peer_earlier.FOLDER, raising=False)
        with pytest.raises(ConfigError, match=r"MBRL_HDP_EARLIER.*git worktree add FOLDER 849ed93"):
            peer_earlier.run_cell(self.CELL)
        (tmp_path / "mbrl_hdp").mkdir()
        monkeypatch.setenv(peer_earlier.FOLDER, str(tmp_path))
        with pytest.raises(ConfigError, match="holds commit none"):
            peer_earlier.run_cell(self.CELL)

    def test_another_program_labels_and_is_scored(self, monkeypatch, tmp_path):
        """A package of that name whose `fit` knows nothing but the sign of the first change."""
        folder = tmp_path / "mbrl_hdp"
        folder.mkdir()
        (folder / "__init__.py").write_text(
            "import numpy as np\n"
            "class Trajectories:\n"
            "    def __init__(self, obs, act): self.obs = obs\n"
            "class Model:\n"
            "    num_contexts = 2\n"
            "    def most_likely(self, data): return (np.diff(data.obs[..., 0]) > 0).astype(int)\n"
            "def fit(data, progress): return Model()\n"
        )
        monkeypatch.setattr(peer_earlier, "checkout", lambda: tmp_path)
        found = peer_earlier.run_cell(self.CELL)
        rollouts = simulate("linear_4d_2", "plain", 0, 4)
        expected = align((np.diff(rollouts.obs[..., 0]) > 0).astype(int), rollouts.context).accuracy
        assert (found["found"], found["true"], found["accuracy"]) == (2, 2, round(expected, 4))

    def test_it_does_not_count_as_a_peer(self):
        assert (
            gates(lambda system, method: 1.0 if method == "earlier" else 0.99 if method == "fit" else 0.7) == [True] * 2
        )
        page = peers.page(records(lambda *_: 0.9))
        assert "0.900 (2/2) 1 | 0.900 (2/2) 1 | 0.900 1 | 0.900 1" in page.body


def angles(**wrong):
    good = {
        "accuracy": 0.99, "num_contexts": 2, "switch": 0.1, "true_switch": 0.1, "fit_time_s": 1.0,
        "runs": [{"dynamics": "sparse", "schedule": "search", "taken": True}],
    }  # fmt: skip
    cells = raw_angles.cells(None, False)
    return [CellRecord(cell, good | (wrong if cell["seed"] == 100 else {}), "c", 1.0) for cell in cells]


@pytest.mark.parametrize("wrong", [{"num_contexts": 3}, {"accuracy": 0.97}])
def test_one_wrong_seed_misses_the_gate(wrong):
    assert [gate.is_met for gate in raw_angles.page(angles()).gates] == [True]
    assert [gate.is_met for gate in raw_angles.page(angles(**wrong)).gates] == [False]
    assert [gate.is_met for gate in raw_angles.page(angles()[1:]).gates] == [None]


def test_nothing_is_told_about_the_angle():
    cells = raw_angles.cells(None, False)
    assert len(cells) == 20
    assert {(cell["dynamics"]["name"], cell["num_trajectories"], cell["max_contexts"]) for cell in cells} == {
        ("auto", 500, 10)
    }
