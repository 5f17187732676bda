"""Summary and figures of models whose truth is known."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from mbrl_hdp import FitConfig, Trajectories, fit
from mbrl_hdp.data.names import Names
from mbrl_hdp.inference.verdict import slot_mass
from mbrl_hdp.report.figures import save_figures, transition_figure
from mbrl_hdp.report.fit_report import write_fit_report
from mbrl_hdp.report.palette import context_colours
from mbrl_hdp.report.summary import compare, summarise
from mbrl_hdp.report.summary_text import _how_sure, _levels


def small_model(max_contexts=3, num_episodes=6, seed=0):
    rng = np.random.default_rng(seed)
    data = Trajectories(
        np.cumsum(rng.normal(size=(num_episodes, 13, 2)), 1), lengths=[12, 9, 12, 5, 12, 7][:num_episodes]
    )
    config = FitConfig(num_steps=4, num_restarts=2, polish_steps=2)
    return fit(data, dynamics="linear", max_contexts=max_contexts, config=config, progress=False), data


@pytest.fixture(scope="module")
def fitted():
    return small_model()


def with_truth(model, data):
    """The same data, its true contexts being what the model finds, renumbered: 0 -> 2, 1 -> 0, 2 -> 1."""
    renumbered = np.array([2, 0, 1, 5])[model.most_likely(data)]
    context = np.where(data.is_step, renumbered, -1)
    return Trajectories(data.obs, data.act, lengths=data.lengths, context=context, allow_missing=True)


def test_names_of_recorded_columns_are_those_of_earlier_steps_too():
    rng = np.random.default_rng(0)
    act = rng.uniform(-1, 1, (8, 60, 1))
    late = np.concatenate([np.zeros((8, 2, 1)), act[:, :-2]], 1)
    gain = np.where(np.arange(60)[:, None] // 20 % 2, 1.0, 0.2)
    obs = np.cumsum(np.concatenate([np.zeros((8, 1, 1)), gain * late + 0.01 * rng.normal(size=late.shape)], 1), 1)
    data, config = Trajectories(obs, act), FitConfig(num_steps=50, num_restarts=1, polish_steps=5)
    model = fit(data, dynamics="linear", max_contexts=2, config=config, past=2, progress=False)
    summary = summarise(model, model.analyse(data), Names(("temp",), ("valve",)))  # as `mbrl-hdp fit` names them
    assert summary.names.act == ("valve", "temp_change_ago_1", "valve_ago_1", "temp_change_ago_2", "valve_ago_2")
    assert model.num_contexts == 2
    assert any(word.startswith("valve_ago_2 acts with") for effect in summary.effects for word in effect.words)


def test_truth_that_agrees_is_scored_as_such(fitted):
    model, data = fitted
    truth = compare(model, model.analyse(with_truth(model, data)))
    assert truth.accuracy == 1.0
    used = sorted({int(k) for k in model.most_likely(data)[data.is_step]})
    assert [truth.to_true[k] for k in used] == [[2, 0, 1][k] for k in used]
    assert np.sum(truth.confusion) == data.num_transitions
    assert compare(model, model.analyse(data)) is None


def test_summary_tells_the_models_own_numbers(fitted):
    model, data = fitted
    summary = summarise(model, model.analyse(data))
    np.testing.assert_allclose(summary.transition, model.transition)
    np.testing.assert_allclose(summary.mean_dwell, 1.0 / np.maximum(1.0 - np.diag(model.transition), 1e-9))
    assert summary.log_likelihood == pytest.approx(model.log_likelihood(data).sum() / data.num_transitions)
    assert summary.slots == np.flatnonzero(model.kept).tolist()
    assert summary.threshold == 0.02
    assert sum(summary.slot_mass) == pytest.approx(1.0, abs=1e-5)
    transition = model.posterior().chain.transition.double().numpy()
    np.testing.assert_allclose(slot_mass(model) @ transition, slot_mass(model), atol=1e-5)
    text = summary.text()
    assert text.startswith(f"{model.num_contexts} context")
    assert "How sure: " in text
    assert "If it looks wrong:" in text
    assert text.count("log-likelihood per step") == 2
    assert text.count("of the data learned from; none was held out)") == 1


def test_confusion_names_its_rows_and_columns(fitted):
    model, data = fitted
    known = model.analyse(with_truth(model, data))
    words = ("pump is worn out", "normal", "stuck")
    summary = summarise(model, known, Names(["a", "b"], [], contexts=words))
    lines = summary.text().split("steps by learned (row) and true (column) context:\n")[1].splitlines()
    num_true = len(summary.truth.confusion[0])
    assert lines[0].split("  ")[-1].strip() == words[num_true - 1]
    for k, row in enumerate(summary.truth.confusion):
        assert lines[1 + k].split() == ["context", str(k), *map(str, row)]
        assert len(lines[1 + k]) == len(lines[0])
    assert f"true {num_true - 1}" in summarise(model, known).text()


def test_without_switches_no_delay_is_told(fitted):
    model, data = fitted
    context = np.where(data.is_step, 0, -1)
    still = Trajectories(data.obs, lengths=data.lengths, context=context)
    assert "; no switches\n" in summarise(model, model.analyse(still)).text()


def test_json_is_strict_and_whole(fitted, tmp_path):
    model, data = fitted
    write_fit_report(model, model.analyse(with_truth(model, data)), tmp_path / "new")
    text = (tmp_path / "new" / "summary.json").read_text()
    words = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    for key in ("num_contexts", "stationary", "context_accuracy", "switch_delay", "seed", "versions", "wall_time_s"):
        assert key in words
    assert words["context_accuracy"] == 1.0


def test_figures_are_pictures(fitted, tmp_path):
    model, data = fitted
    found = model.analyse(data)
    paths = save_figures(model, found, summarise(model, found), tmp_path)
    assert [path.name for path in paths] == ["transition.png", "stationary.png", "contexts.png", "stays.png"]
    for path in paths:
        pixels = imread(path)
        assert min(pixels.shape[:2]) > 300
        assert pixels[..., :3].std() > 0.02


def test_heat_maps_show_the_matrices(fitted):
    model, data = fitted
    known = model.analyse(with_truth(model, data))
    figure = transition_figure(model, summarise(model, known))
    images = [ax.images[0].get_array() for ax in figure.axes if ax.images]
    np.testing.assert_allclose(images[0], model.posterior().chain.transition.numpy(), atol=1e-6)
    np.testing.assert_allclose(images[1], model.transition, atol=1e-6)
    truth = compare(model, known)
    order = [label for label in truth.to_true if label >= 0]
    shown = images[2][: len(order), : len(order)]
    np.testing.assert_allclose(shown, np.array(truth.transition)[np.ix_(order, order)])


def test_one_context_one_episode_missing_samples(tmp_path):
    model, _ = small_model(max_contexts=1)
    obs = np.cumsum(np.random.default_rng(3).normal(size=(1, 13, 2)), 1)
    obs[0, 4] = np.nan
    text = write_fit_report(model, model.analyse(Trajectories(obs, allow_missing=True)), tmp_path)
    assert text.startswith("1 context in 12 steps of 1 episode ")
    assert "\nNote: 2 steps have missing values; 0 of them inform through the values that are there\n" in text
    assert (tmp_path / "contexts.png").stat().st_size > 0


def test_many_slots(tmp_path):
    model, data = small_model(max_contexts=40)
    model.is_active = torch.ones(40, dtype=torch.bool)
    model.extract()
    summary = summarise(model, model.analyse(data))
    save_figures(model, model.analyse(data), summary, tmp_path)
    assert len(context_colours(40)) == 40
    assert len(set(context_colours(7))) == 7


@pytest.mark.parametrize(("num_episodes", "line"), [(1, "  1: 1.188   0+1"), (9, "  1: 1.188 (+- 0.200)   0+1")])
def test_a_single_episode_has_no_error_of_a_mean(num_episodes, line):
    merged = {"groups": [[0, 1]], "loss": 1.188, "error": 0.2, "is_approximate": False}
    summary = SimpleNamespace(levels=[{"groups": [[0], [1]]}, merged], num_episodes=num_episodes)
    assert _levels(summary)[1] == line


def test_a_dropped_slot_above_the_thresholds_is_explained(fitted):
    model, data = fitted
    summary = summarise(model, model.analyse(data))
    low = dataclasses.replace(summary, threshold=0.02, train_threshold=0.05, slots=[0], slot_mass=[0.96, 0.03, 0.01])
    high = dataclasses.replace(low, slot_mass=[0.8, 0.11, 0.09])
    expected = "largest of 2 dropped slots"
    assert f"{expected} 3.00%; slots below" in "\n".join(_how_sure(low))
    assert f"{expected} 11.00%, which the prior expects of a slot without data; slots" in "\n".join(_how_sure(high))
