"""What each context does, against systems whose answer is known."""

import numpy as np
import pytest
import torch

from mbrl_hdp.data.names import Names
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ModelParts, Part
from mbrl_hdp.report.effects import Effect, effect_lines, effect_rows, effect_table, effects
from mbrl_hdp.report.sensor_noise import lag_correlation, sensor_noise
from mbrl_hdp.types import TaskSpec

NAMES = Names(["angle", "speed"], ["motor", "brake"])
GAIN = np.array([[0.5, 0.0], [0.2, 0.3]])  # of motor and brake on angle and speed
FEEDBACK = np.array([[-0.1, 0.05], [0.0, -0.2]])


def linear_model(gains, drifts):
    """A model whose two heads are known linear maps: change = drift + feedback obs + gain act."""
    registry = load_registry()
    parts = ModelParts(
        *(
            Part(name, registry.get(kind, name).spec.config())
            for kind, name in (("prior", "mle"), ("dynamics", "linear"), ("distillation", "stationary"))
        )
    )
    model = build_model(parts, TaskSpec(max_contexts=2, obs_dim=2, act_dim=2, seed=0), registry)
    with torch.no_grad():
        for k in range(2):
            weight = np.column_stack([FEEDBACK, gains[k]])
            model.dynamics.heads.weights[0][k] = torch.as_tensor(weight, dtype=torch.float32)
            model.dynamics.heads.biases[0][k] = torch.as_tensor(drifts[k], dtype=torch.float32)
    return model


def simulated(gains, drifts, seed=0, noise=0.02, mean_act=0.0):
    rng = np.random.default_rng(seed)
    obs, act, context = np.zeros((5, 201, 2)), rng.normal(mean_act, 1, size=(5, 200, 2)), np.zeros((5, 200), int)
    context[:, 120:] = 1
    for t in range(200):
        k = context[:, t]
        drive = np.einsum("nij,nj->ni", gains[k], act[:, t]) + drifts[k]
        obs[:, t + 1] = obs[:, t] + obs[:, t] @ FEEDBACK.T + drive + noise * rng.normal(size=(5, 2))
    return Trajectories(obs, act, context=context)


def found_effects(gains, drifts):
    model = linear_model(gains, drifts)
    model.dynamics.raw_log_std.data.fill_(-2.0)
    return effects(model, model.analyse(simulated(gains, drifts)), NAMES)


def test_gains_drift_and_noise_are_those_of_the_system():
    gains = np.stack([GAIN, GAIN * [-0.98, 1.0]])
    drifts = np.array([[0.0, 0.0], [0.0, 0.0]])
    found = found_effects(gains, drifts)
    usual = next(effect for effect in found if effect.words[0].startswith("the usual one"))
    other = found[1 - usual.context]
    for effect in found:
        np.testing.assert_allclose(effect.gain, gains[effect.context], atol=1e-4)
        np.testing.assert_allclose(effect.feedback, FEEDBACK, atol=1e-4)
        np.testing.assert_allclose(effect.noise, 0.02, rtol=0.2)
    ratio = -0.98 if usual.context == 0 else -1 / 0.98
    assert other.words == [f"motor acts with {ratio:.2f} of its usual effect"]
    assert any("motor acts with" in line for line in effect_lines(found))
    table = effect_table(found, NAMES)
    assert any(line.startswith("gain of motor on angle") and "-0.49" in line for line in table)


def test_a_drift_is_named():
    found = found_effects(np.stack([GAIN, GAIN]), np.array([[0.0, 0.0], [0.0, 2.0]]))
    words = [word for effect in found for word in effect.words if "usual one" not in word]
    assert words
    assert words[0].startswith("speed changes by 2 a step")


def test_what_is_small_beside_the_changes_but_not_beside_the_noise_is_named():
    gains = np.stack([GAIN, GAIN])
    found = found_effects(gains, np.array([[0.0, 0.0], [0.0, 0.1]]))  # the motor moves the speed by .3, noise .02
    words = [word for effect in found for word in effect.words if "usual one" not in word]
    assert words
    assert words[0].startswith("speed changes by 0.1 a step")
    found = found_effects(gains, np.array([[0.0, 0.0], [0.0, 0.001]]))
    assert "differs from the usual one only in details; see the table" in found[0].words + found[1].words


def test_a_drift_that_follows_from_another_gain_is_not_told_twice():
    """A valve that is 50 % open on average and acts with a fifth of its effect changes the drift as well."""
    gains = np.stack([GAIN, GAIN * [0.2, 1.0]])
    model = linear_model(gains, np.zeros((2, 2)))
    model.dynamics.raw_log_std.data.fill_(-2.0)
    found = effects(model, model.analyse(simulated(gains, np.zeros((2, 2)), mean_act=4.0)), NAMES)
    assert abs(found[0].drift[0] - found[1].drift[0]) > 1.0
    words = [word for effect in found for word in effect.words if "usual one" not in word]
    assert len(words) == 1
    assert words[0].startswith("motor acts with")


@pytest.mark.parametrize(("process", "sensor", "wanted"), [(0.3, 0.0, 0.0), (0.02, 0.3, -0.5), (0.2, 0.2, -1 / 3)])
def test_where_the_noise_sits(process, sensor, wanted):
    """The heads are the true map with almost no decay, so the correlation is known in closed form."""
    rng = np.random.default_rng(3)
    state = np.cumsum(process * rng.normal(size=(20, 301, 2)), axis=1)
    act = np.zeros((20, 300, 2))
    data = Trajectories(state + sensor * rng.normal(size=state.shape), act)
    model = linear_model(np.zeros((2, 2, 2)), np.zeros((2, 2)))
    with torch.no_grad():
        model.dynamics.heads.weights[0].zero_()
    found = model.analyse(data)
    np.testing.assert_allclose(lag_correlation(found), wanted, atol=0.04)
    assert bool(list(sensor_noise(found, NAMES.obs))) == (wanted < -0.25)


def test_columns_that_never_change_have_no_rows():
    names = Names(["still", "old still"], ["motor"])
    found = [Effect(k, [[0.0], [0.5]], [[0.0, 0.0]] * 2, [0.0, 0.1 * k], [0.0, 0.2], []) for k in range(2)]
    names_of_rows = ["gain of motor on", "effect of old still on itself", "drift of", "noise of"]
    rows = [f"{name} old still" if name.endswith(("on", "of")) else name for name in names_of_rows]
    assert [name for name, _ in effect_rows(found, names)] == rows
