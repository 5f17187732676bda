"""The novelty alarm of a model: scores by hand, what is not judged, files, and a context that nobody has seen."""

import json

import numpy as np
import pytest
import torch

import mbrl_hdp
from mbrl_hdp.cli import main
from mbrl_hdp.data.tensor_files import read_tensors, write_tensors
from mbrl_hdp.errors import CheckpointError, ConfigError, DataError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.alarm import DEFAULT_STEPS_PER_ALARM, score
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ModelParts, Part
from mbrl_hdp.inference.slim import without_spurious
from mbrl_hdp.types import ContextChain, TaskSpec

PUSH = np.array([1.0, -0.5, 0.1])
STD = np.array([0.05, 0.1])
STAY = 0.95


@pytest.fixture(scope="module")
def model():
    """Two known contexts: x' = x + push_k a + noise of their own size; a third is not known."""
    registry = load_registry()
    parts = ModelParts(
        Part("hdp", registry.get("prior", "hdp").spec.config()),
        Part("linear", registry.get("dynamics", "linear").spec.config(std_floor=1e-3)),
        Part("stationary", registry.get("distillation", "stationary").spec.config()),
    )
    made = build_model(parts, TaskSpec(2, obs_dim=1, act_dim=1), registry)
    with torch.no_grad():
        made.dynamics.heads.weights[0].copy_(torch.tensor([[[0.0, PUSH[0]]], [[0.0, PUSH[1]]]]))
        made.dynamics.heads.biases[0].zero_()
        made.dynamics.raw_log_std.copy_(torch.tensor(np.log(STD))[:, None])
    rows = torch.tensor([[STAY, 1.0 - STAY], [1.0 - STAY, STAY]]).float()
    made.prior.start_from(ContextChain(torch.tensor([0.5, 0.5]), rows), 1e6)
    made.extract()
    return made


def simulate(num_episodes, seed, new_from=None):
    rng = np.random.default_rng(seed)
    context = np.zeros((num_episodes, 100), dtype=int)
    context[:, 0] = rng.integers(2, size=num_episodes)
    for t in range(1, 100):
        context[:, t] = np.where(rng.random(num_episodes) < STAY, context[:, t - 1], 1 - context[:, t - 1])
    if new_from is not None:
        context[:, new_from:] = 2
    act = rng.uniform(-1, 1, (num_episodes, 100, 1))
    noise = np.array([*STD, 0.05])[context][..., None] * rng.standard_normal(act.shape)
    obs = np.concatenate([np.zeros((num_episodes, 1, 1)), np.cumsum(PUSH[context][..., None] * act + noise, 1)], 1)
    return mbrl_hdp.Trajectories(obs, act, context=context)


def test_the_score_is_that_of_the_best_context_relative_to_its_usual_one():
    log_lik = np.array([[-1.0, -9.0], [-7.0, -8.0], [np.nan, -1.0]])
    np.testing.assert_allclose(score(log_lik, np.array([0.5, 4.0])), [0.5, 4.0, np.nan])


def test_usual_values_are_the_medians_of_each_context(model):
    model.novelty_alarm(simulate(50, 1))
    median = 0.5 * 0.4549 + np.log(STD) + 0.5 * np.log(2 * np.pi)  # the median of chi-square with 1 degree is .4549
    np.testing.assert_allclose(model.novelty.usual, median, atol=0.05)


def test_false_alarms_are_rare_and_a_new_context_is_noticed(model):
    alarm = model.novelty_alarm(simulate(50, 1), false_alarms_per=1_000)
    assert alarm.scan(model.analyse(simulate(200, 2))).is_alarm.sum() <= 20
    course = model.novelty_alarm(false_alarms_per=100_000).scan(model.analyse(simulate(1, 3, new_from=30)))
    assert not course.is_alarm[0, :30].any()
    assert course.is_alarm[0, 30:80].any()
    assert course.share.max() == 1.0


def test_online_is_the_same_as_on_record(model):
    alarm = model.novelty_alarm(simulate(50, 1), 100_000)
    data = simulate(2, 3, new_from=30)
    online, raised, shares = model.online_filter(), [], []
    for episode in data:
        online.reset(episode.obs[0])
        alarm.begin_episode()
        for t in range(100):
            online.update(episode.act[t], episode.obs[t + 1])
            raised.append(alarm.update(episode.obs[t], episode.act[t], online.log_lik))
            shares.append(alarm.share)
    course = alarm.scan(model.analyse(data))
    assert raised == course.is_alarm.ravel().tolist()
    np.testing.assert_allclose(shares, course.share.ravel(), atol=1e-4)


def test_steps_outside_the_calibrated_range_are_not_judged(model):
    model.novelty_alarm(simulate(50, 1))
    far = simulate(3, 4)
    far.obs[1] += 1000.0
    course = model.novelty_alarm().scan(model.analyse(far))
    assert not course.is_judged[1].any()
    assert course.is_judged[[0, 2]].mean() > 0.9
    alarm = model.novelty_alarm()
    assert not alarm.update(np.array([1000.0]), np.zeros(1), np.array([-1e9, -1e9]))
    assert alarm.share == 0.0


def test_it_is_saved_with_the_model_and_older_models_load(model, tmp_path):
    wanted = model.novelty_alarm(simulate(50, 1)).calibration
    model.save(tmp_path / "new")
    again = mbrl_hdp.load(tmp_path / "new")
    assert again.novelty == wanted
    assert without_spurious(again).novelty == wanted
    tensors, words = read_tensors(tmp_path / "new" / "model.safetensors")
    del words["novelty"]
    (tmp_path / "old").mkdir()
    write_tensors(tmp_path / "old" / "model.safetensors", tensors, words)
    assert mbrl_hdp.load(tmp_path / "old").novelty is None
    write_tensors(tmp_path / "old" / "model.safetensors", tensors, words | {"novelty": {"usual": []}})
    with pytest.raises(CheckpointError, match="damaged"):
        mbrl_hdp.load(tmp_path / "old")
    assert json.loads((tmp_path / "new" / "model.json").read_text())["novelty"]["usual"] == wanted.usual


def test_training_on_forgets_the_calibration(model):
    model.novelty_alarm(simulate(50, 1))
    model.extract()
    assert model.novelty is None
    with pytest.raises(DataError, match="not calibrated"):
        model.novelty_alarm()


def test_a_rate_that_is_none_is_refused(model):
    with pytest.raises(ConfigError, match="false_alarms_per"):
        model.novelty_alarm(simulate(50, 1), false_alarms_per=1.0)


def test_the_command_line_and_the_library_allow_as_many_false_alarms(capsys):
    with pytest.raises(SystemExit):
        main(["label", "--help"])
    assert f"(default {DEFAULT_STEPS_PER_ALARM};" in " ".join(capsys.readouterr().out.split())
