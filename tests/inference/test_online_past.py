"""A model that looks at earlier steps takes data as it was recorded, step by step, and keeps the past itself."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from mbrl_hdp import Trajectories
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.past import PastWindow, past_width, recorded_width
from mbrl_hdp.errors import DataError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ModelParts, Part
from mbrl_hdp.inference.online import OnlineFilter
from mbrl_hdp.types import ContextChain, PhaseChain, TaskSpec

PAST = 3
CASES = {"linear": ("linear", {}), "sparse": ("sparse", {"terms": ["x0*x11"]}), "torch": ("linear", {})}


def recording(num_episodes=3, num_steps=30, seed=0):
    """Return two sensors and one input that acts three steps late, some samples missing."""
    rng = np.random.default_rng(seed)
    obs, act = np.zeros((num_episodes, num_steps + 1, 2)), rng.uniform(-1, 1, (num_episodes, num_steps, 1))
    for t in range(num_steps):
        late = act[:, t - PAST] if t >= PAST else 0.0
        gain = np.where(rng.random((num_episodes, 1)) < 0.5, 0.9, 0.4)
        obs[:, t + 1] = 0.8 * obs[:, t] + gain * late * [1.0, 0.5] + 0.1 * rng.normal(size=(num_episodes, 2))
    obs[0, [10, 11, 20]] = np.nan
    obs[1, [0, 2]] = np.nan
    act[2, 15] = np.nan
    lengths = [30, 30, 25, *[num_steps] * (num_episodes - 3)]
    return Trajectories(obs, act, lengths, allow_missing=True)


def build(case="linear", has_phases=False, past=PAST):
    name, settings = CASES[case]
    registry = load_registry()
    words = {"prior": ("hdp", {}), "dynamics": (name, settings), "distillation": ("stationary", {})}
    parts = {kind: Part(one, registry.get(kind, one).spec.config(**more)) for kind, (one, more) in words.items()}
    task = TaskSpec(2, 2, past_width(2, 1, past), seed=3, past=past)
    model = build_model(ModelParts(**parts), task, registry)
    rows = [torch.as_tensor(part, dtype=torch.float32) for part in recording().with_past(past).transitions()]
    model.dynamics.set_normaliser(*rows)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in model.dynamics.parameters():
            value.add_(0.3 * torch.randn(value.shape, generator=generator))
    model.prior.start_from(ContextChain(torch.tensor([0.3, 0.7]), torch.tensor([[0.9, 0.1], [0.3, 0.7]])), 50.0)
    model.is_settled = True
    model.extract()
    if has_phases:
        stays = ([0.4, 0.0, 0.6], [0.0, 0.7, 0.8], [1.0, 0.0, 0.0], [0.0, 0.3, 0.2], [[0.0, 1.0], [1.0, 0.0]])
        model.use_phases(PhaseChain(*(torch.tensor(part, dtype=torch.float64) for part in stays), (2, 1)))
    if case == "torch":
        model.dynamics.density_table = lambda slots: None
    model.names = Names(("temp", "flow"), ("valve",))
    return model


def run(online, data, episode):
    """Return beliefs, filtered distributions and evidence after every step of an episode."""
    obs, act = data.obs[episode], data.act[episode]
    online.reset(obs[0])
    return [
        (online.update(act[t], obs[t + 1]), online.filtered, online.log_lik, online.log_evidence)
        for t in range(data.lengths[episode])
    ]


@pytest.mark.parametrize("has_phases", [False, True])
@pytest.mark.parametrize("case", list(CASES))
def test_the_online_belief_is_that_of_the_record(case, has_phases):
    model, data = build(case, has_phases), recording()
    found, online = model.analyse(data), model.online_filter()
    for episode in range(data.num_episodes):  # one filter, reset in between
        steps, length = run(online, data, episode), data.lengths[episode]
        for place, wanted in enumerate((found.following, found.filtered)):
            np.testing.assert_allclose([step[place] for step in steps], wanted[episode, :length], atol=2e-5)
        is_observed = found.data.is_observed[episode, :length]
        log_lik = np.array([step[2] for step in steps])
        np.testing.assert_array_equal(np.isfinite(log_lik).all(-1), is_observed)
        np.testing.assert_array_equal(np.isfinite([step[3] for step in steps]), is_observed)
        np.testing.assert_allclose(log_lik[is_observed], found.log_lik[episode, :length][is_observed], rtol=1e-3)
        assert not is_observed[:PAST].any()
    assert found.data.is_observed.sum(-1).tolist() == [30 - PAST - 6 - 5, 30 - 6, 25 - PAST - 4]


def test_steps_without_a_complete_past_only_move_along_the_chain():
    model, data = build(), recording()
    online = model.online_filter()
    steps = run(online, data, 0)
    belief = model.initial
    for t in range(PAST):
        np.testing.assert_array_equal(steps[t][1], belief)
        belief = belief @ model.transition
        np.testing.assert_allclose(steps[t][0], belief, rtol=1e-12)
    assert np.abs(steps[PAST][1] - belief).max() > 1e-3


def test_a_past_that_is_not_complete_says_nothing_even_to_heads_that_ignore_it():
    online = OnlineFilter(np.array([0.3, 0.7]), np.eye(2), lambda *_: np.array([0.0, -1.0]), PastWindow(1, 0, 2))
    online.reset(np.zeros(1))
    found = []
    for value in (1.0, 2.0, 3.0, np.nan, 5.0, 6.0, 7.0, 8.0):
        online.update(np.zeros(0), np.array([value]))
        found.append(np.isfinite(online.log_evidence))
    assert found == [False, False, True, True, False, False, False, True]


@pytest.mark.parametrize("medium", ["npz", "json"])
@pytest.mark.parametrize("has_phases", [False, True])
@pytest.mark.parametrize("stop", [0, 2, 8, 12])
def test_a_filter_is_restored_in_the_middle_of_its_past(stop, has_phases, medium):
    model, data = build(has_phases=has_phases), recording()
    online = model.online_filter()
    online.reset(data.obs[0, 0])
    for t in range(stop):
        online.update(data.act[0, t], data.obs[0, t + 1])
    if medium == "npz":
        file = io.BytesIO()
        np.savez(file, **online.state())
        file.seek(0)
        state = np.load(file, allow_pickle=False)
    else:
        state = json.loads(json.dumps({name: value.tolist() for name, value in online.state().items()}))
    other = online.fresh()
    run(other, data, 1)  # a past of its own, which must be gone
    other.restore(state)
    for t in range(stop, 30):
        wanted = online.update(data.act[0, t], data.obs[0, t + 1])
        np.testing.assert_array_equal(other.update(data.act[0, t], data.obs[0, t + 1]), wanted)
        np.testing.assert_array_equal(other.log_lik, online.log_lik)


def test_filters_that_share_a_model_have_pasts_of_their_own():
    model, data = build(), recording()
    one, alone = model.online_filter(), [run(model.online_filter(), data, episode) for episode in (0, 1)]
    two = one.fresh()
    one.reset(data.obs[0, 0])
    two.reset(data.obs[1, 0])
    for t in range(20):
        for online, episode in ((one, 0), (two, 1)):
            belief = online.update(data.act[episode, t], data.obs[episode, t + 1])
            np.testing.assert_array_equal(belief, alone[episode][t][0])


def test_a_state_without_a_past_or_of_another_length_is_refused():
    online = build().online_filter()
    online.reset(np.zeros(2))
    online.update(np.ones(1), np.ones(2))
    state = online.state()
    for past, message in ((None, "has no 'past'"), (np.zeros(6), "past: a row of 9 numbers")):
        changed = {name: value for name, value in state.items() if name != "past"}
        with pytest.raises(DataError, match=message):
            online.restore(changed if past is None else {**changed, "past": past})
    for name, value in online.state().items():
        np.testing.assert_array_equal(value, state[name])


@pytest.mark.parametrize("case", ["linear", "torch"])
def test_rows_of_other_widths_are_refused_and_change_nothing(case):
    online, data = build(case).online_filter(), recording()
    with pytest.raises(DataError, match="obs: a row of 2 numbers"):
        online.reset(np.zeros(3))
    run(online, data, 0)
    before = online.state()
    with pytest.raises(DataError, match=r"act \(valve, as recorded; .*a row of 1 numbers.*, got shape \(10,\)"):
        online.update(np.zeros(10), np.zeros(2))
    with pytest.raises(DataError, match="next_obs: a row of 2 numbers"):
        online.update(np.zeros(1), np.zeros(1))
    for name, value in online.state().items():
        np.testing.assert_array_equal(value, before[name])


def test_the_window_is_with_past_step_by_step():
    data = recording()
    task = TaskSpec(1, 2, past_width(2, 1, PAST), past=PAST)
    assert recorded_width(task) == 1
    window = PastWindow.of(task, batch=(3,))
    for t in range(25):
        window.present[...] = data.act[:, t]
        np.testing.assert_array_equal(window.row, data.with_past(PAST).act[:, t])
        window.move(data.obs[:, t], data.obs[:, t + 1])
    assert PastWindow.of(TaskSpec(1, 2, 1)) is None


MEASURE = """
import tracemalloc
import numpy as np
from mbrl_hdp.data.past import PastWindow
from mbrl_hdp.inference.online import OnlineFilter

size, out = 400, np.empty(2)
rng = np.random.default_rng(5)
density = np.zeros(2)
online = OnlineFilter(np.array([0.2, 0.8]), np.array([[0.9, 0.1], [0.3, 0.7]]), lambda *_: density,
                      PastWindow(size, size, 3))
obs, act = list(rng.normal(size=(21, size))), list(rng.normal(size=(20, size)))
online.reset(obs[0])

def run():
    for t in range(20):
        online.update(act[t], obs[t + 1], out=out)

run()
tracemalloc.start()
for _ in range(20):
    run()
before = tracemalloc.get_traced_memory()[0]
tracemalloc.reset_peak()
run()
print(tracemalloc.get_traced_memory()[1] - before)
"""


def test_no_array_is_allocated_for_the_past():
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) < 400 * 8


def test_an_alarm_takes_what_was_recorded_and_no_step_without_a_past_counts():
    model = build()
    data = recording(40)
    alarm, online = model.novelty_alarm(data, false_alarms_per=20), model.online_filter()
    scores = []
    alarm._detector.update = lambda score: scores.append(score) or False
    for episode in range(2):
        online.reset(data.obs[episode, 0])
        alarm.begin_episode()
        for t in range(data.lengths[episode]):
            online.update(data.act[episode, t], data.obs[episode, t + 1])
            alarm.update(data.obs[episode, t], data.act[episode, t], online.log_lik)
    found = model.analyse(data)
    wanted = alarm.calibration.scores(found)[:2].ravel()
    np.testing.assert_allclose(scores, wanted, rtol=1e-3, atol=1e-3)  # NaN at the same steps
    assert np.isnan(scores[:PAST]).all()
    assert np.isfinite(scores).sum() > 30
    alarm.begin_episode()  # forgets the steps before, whatever the densities are
    for t in range(PAST):
        alarm.update(data.obs[3, t], data.act[3, t], np.zeros(2))
    assert np.isnan(scores[-PAST:]).all()
    with pytest.raises(DataError, match=r"act \(valve"):
        alarm.update(data.obs[0, 0], np.zeros(10), online.log_lik)


@pytest.mark.parametrize("has_phases", [False, True])
def test_futures_are_drawn_with_the_past(has_phases):
    """One context without noise: the future is the recursion by hand, with the wide inputs of `with_past`."""
    model = build(has_phases=has_phases)
    rng = np.random.default_rng(4)
    obs, act = rng.normal(size=(2, PAST + 1, 2)), rng.uniform(-1, 1, (2, PAST + 5, 1))
    model.dynamics.sample = lambda obs, act, slot, rng: model.dynamics.predict(obs, act, slot * 0)
    found = model.predict(obs[:, PAST], act[:, PAST:], num_samples=3, history=(obs[:, :PAST], act[:, :PAST]))
    assert found.shape == (3, 2, 5, 2)
    for step in range(5):
        wide = Trajectories(np.concatenate([obs, np.zeros((2, 1, 2))], 1), act[:, : obs.shape[1]]).with_past(PAST)
        rows = (torch.as_tensor(rows, dtype=torch.float32) for rows in (obs[:, -1], wide.act[:, -1]))
        with torch.no_grad():
            wanted = model.dynamics.predict(*rows, torch.zeros(2, dtype=torch.long)).double().numpy()
        np.testing.assert_allclose(found[:, :, step], np.broadcast_to(wanted, (3, 2, 2)), rtol=1e-4, atol=1e-5)
        obs = np.concatenate([obs, wanted[:, None]], 1)


def test_futures_of_a_past_need_its_history():
    model = build()
    obs, acts = np.zeros((2, 2)), np.zeros((2, 4, 1))
    past = np.zeros((2, PAST, 2)), np.zeros((2, PAST, 1))
    for history in (None, (past[0][:, 1:], past[1]), (past[0], past[1][:1])):
        with pytest.raises(DataError, match=r"history=\(obs, acts\).*\(2, 3, 2\) and \(2, 3, 1\).*acts: valve"):
            model.predict(obs, acts, history=history)
    with pytest.raises(DataError, match="missing values"):
        model.predict(obs, acts, history=(past[0] * np.nan, past[1]))
    with pytest.raises(DataError, match=r"acts must be \(B, H, 1\)"):
        model.predict(obs, np.zeros((2, 4, 10)), history=past)
