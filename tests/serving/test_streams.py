"""Streams are independent: each has its own belief, and what is wrong with one request changes nothing."""

import json

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.belief.novelty import NullTable
from mbrl_hdp.control.agent import AgentTask, Epoch
from mbrl_hdp.control.policy import ContextSac, SacConfig
from mbrl_hdp.control.tracker import BeliefTracker
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import CheckpointError, StepError
from mbrl_hdp.inference.alarm import NoveltyAlarm, NoveltyCalibration
from mbrl_hdp.serving import streams as module
from mbrl_hdp.serving.loading import Served, open_served
from mbrl_hdp.serving.streams import Limits, RefusedError, Streams
from mbrl_hdp.types import PhaseChain
from mbrl_hdp_agents.planning import PlanningAgent
from mbrl_hdp_planners.settings import CemConfig


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def served(tmp_path, cartpole_model):
    policy = ContextSac(BeliefCodec(4, 3), Box(-1.0, 1.0, (1,)), SacConfig(angle_columns=[2]), seed=1, total_updates=1)
    return Served(tmp_path, 4, 1, 0.05, cartpole_model, policy, None, "c_sac", "belief")


def rows(seed, count=12):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count + 1, 4)), rng.uniform(-1, 1, (count, 1))


def test_interleaved_streams_equal_filters_and_policies_of_their_own(served):
    streams = Streams(served)
    names = ["a", "b", "c"]
    data = {name: rows(seed) for seed, name in enumerate(names)}
    trackers = {name: BeliefTracker(served.model) for name in names}
    for name in names:
        obs = data[name][0][0]
        answer = streams.open({"stream": name, "obs": obs.tolist()})
        packed = trackers[name].reset(obs)
        np.testing.assert_allclose(answer["action"], served.policy.select_action(packed, evaluate=True), rtol=1e-6)
    for t in range(12):
        for name in names[:: 1 if t % 2 else -1]:
            obs, act = data[name]
            answer = streams.step(name, {"obs": obs[t + 1].tolist(), "act": act[t].tolist()})
            packed = trackers[name].update(act[t], obs[t + 1])
            np.testing.assert_array_equal(answer["filtered"], trackers[name].filtered)
            np.testing.assert_array_equal(answer["belief"], trackers[name].belief()[served.model.slots.numpy()])
            np.testing.assert_allclose(answer["action"], served.policy.select_action(packed, evaluate=True), rtol=1e-6)
            assert answer["context"] == int(np.argmax(answer["filtered"]))
            assert (answer["step"], answer["alarm"]) == (t + 1, None)
    assert streams.num_steps == 36


def test_without_an_action_the_answered_one_was_taken(served):
    streams, other = Streams(served), Streams(served)
    obs, _ = rows(0)
    for each in (streams, other):
        each.open({"stream": "a", "obs": obs[0].tolist()})
    action = streams.look("a")["action"]
    without = streams.step("a", {"obs": obs[1].tolist()})
    assert without == other.step("a", {"obs": obs[1].tolist(), "act": action})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"obs": [0.0] * 5, "act": [0.0]}, "obs: a list of 4 numbers is needed, got 5 values"),
        ({"obs": "0,0,0,0", "act": [0.0]}, "obs: a list of 4 numbers is needed, got no list"),
        ({"act": [0.0]}, "obs: a list of 4 numbers is needed, got no list"),
        ({"obs": [0.0] * 4, "act": [0.0, 1.0]}, "act: a list of 1 numbers is needed, got 2 values"),
        ({"obs": [0.0] * 4, "act": [None]}, r"act\[0\] is no finite number: None"),
        ({"obs": [0.0, float("inf"), 0.0, 0.0], "act": [0.0]}, r"obs\[1\] is no finite number: inf; send null"),
        ({"obs": [0.0, float("nan"), 0.0, 0.0], "act": [0.0]}, r"obs\[1\] is no finite number: nan"),
        ({"obs": [0.0, 10**400, 0.0, 0.0], "act": [0.0]}, r"obs\[1\] is no finite number: 1000"),
        ({"obs": [0.0, "1.0", 0.0, 0.0], "act": [0.0]}, r"obs\[1\] is no finite number: '1.0'"),
        ({"obs": [True, 0.0, 0.0, 0.0], "act": [0.0]}, r"obs\[0\] is no finite number: True"),
        ({"obs": [[0.0], 0.0, 0.0, 0.0], "act": [0.0]}, r"obs\[0\] is no finite number"),
    ],
)
def test_bad_input_is_refused_and_changes_no_stream(served, words, message):
    streams, untouched = Streams(served), Streams(served)
    obs, act = rows(3)
    for each in (streams, untouched):
        each.open({"stream": "a", "obs": obs[0].tolist()})
        each.open({"stream": "b", "obs": obs[1].tolist()})
        each.step("a", {"obs": obs[1].tolist(), "act": act[0].tolist()})
    with pytest.raises(RefusedError, match=message) as refused:
        streams.step("a", words)
    assert refused.value.status == 400
    if "obs" not in words or words["obs"] != [0.0] * 4:
        with pytest.raises(RefusedError):
            streams.reset("a", words)
        with pytest.raises(RefusedError):
            streams.open({"stream": "new", **words})
    assert streams.state() == untouched.state()
    step = {"obs": obs[2].tolist(), "act": act[1].tolist()}
    assert streams.step("a", step) == untouched.step("a", step)


def test_names_limits_and_unknown_streams(served):
    streams = Streams(served, Limits(max_streams=2))
    obs = [0.0] * 4
    name = streams.open({"obs": obs})["stream"]
    streams.open({"obs": obs, "stream": "b"})
    for words, status in (
        ({"stream": "b"}, 409),
        ({"stream": "c"}, 429),
        ({"stream": "no name"}, 400),
        ({"stream": 3}, 400),
    ):
        with pytest.raises(RefusedError) as refused:
            streams.open({"obs": obs, **words})
        assert refused.value.status == status
    assert streams.close(name)["closed"]
    streams.open({"obs": obs, "stream": "c"})
    for call in (streams.look, streams.close):
        with pytest.raises(RefusedError, match="there is no stream") as refused:
            call(name)
        assert refused.value.status == 404
    assert streams.names() == ["b", "c"]


def test_idle_streams_expire(served):
    clock = Clock()
    streams = Streams(served, Limits(idle_seconds=10.0), clock)
    for name in ("a", "b"):
        streams.open({"obs": [0.0] * 4, "stream": name})
    clock.now = 8.0
    streams.look("b")
    clock.now = 11.0
    assert streams.expire() == ["a"]
    assert streams.names() == ["b"]
    clock.now = 18.5
    assert streams.expire() == ["b"]


def test_missing_samples_move_the_belief_on_and_leave_no_action(served):
    streams = Streams(served)
    obs, act = rows(4)
    start = streams.open({"stream": "a", "obs": obs[0].tolist()})
    answer = streams.step("a", {"obs": [None, *obs[1, 1:].tolist()], "act": act[0].tolist()})
    assert answer["filtered"] == start["belief"]
    np.testing.assert_allclose(answer["belief"], np.array(start["belief"]) @ served.model.transition, rtol=1e-12)
    assert answer["log_evidence"] is None
    assert answer["action"] is None
    assert "missing" in answer["note"]
    with pytest.raises(RefusedError, match="act: the 1 numbers"):
        streams.step("a", {"obs": obs[2].tolist()})
    assert "note" not in streams.step("a", {"obs": obs[2].tolist(), "act": act[1].tolist()})


def test_saved_streams_go_on_as_if_never_stopped(served):
    streams = Streams(served)
    obs, act = rows(5)
    streams.open({"stream": "a", "obs": obs[0].tolist()})
    streams.open({"stream": "new", "obs": [None, 0.0, 0.0, 0.0]})
    for t in range(6):
        streams.step("a", {"obs": obs[t + 1].tolist(), "act": act[t].tolist()})
    other = Streams(served)
    assert other.restore(json.loads(json.dumps(streams.state(), allow_nan=False))) == 2
    assert [other.look(name) | {"note": ""} for name in ("a", "new")] == [
        streams.look(name) | {"note": ""} for name in ("a", "new")
    ]
    for t in range(6, 12):
        words = {"obs": obs[t + 1].tolist(), "act": act[t].tolist()}
        assert other.step("a", words) == streams.step("a", words)


def test_saved_streams_of_another_model_are_refused(served, tmp_path, make_model):
    streams = Streams(served)
    streams.open({"stream": "a", "obs": [0.0] * 4})
    state = streams.state()
    other = make_model("cartpole", 4)
    strange = Streams(Served(tmp_path, 4, 1, None, other))
    with pytest.raises(CheckpointError, match=r"stream 'a' cannot be restored: .*another model"):
        strange.restore(state)
    assert not len(strange)
    for damaged in ({}, {"schema_version": 1, "streams": {"a": {}}}, {"schema_version": 2, "streams": {}}):
        with pytest.raises(CheckpointError):
            strange.restore(damaged)


def test_an_alarm_is_fed_step_by_step(served, monkeypatch):
    """Every step is at level 1, whose factors are 2 / 1.5 and 4 / 2.5: evidence 1.47, 3.64, 6.87, by hand."""
    obs, act = rows(6)
    width = obs.shape[-1] + act.shape[-1]
    table = NullTable([-1e9], [[0.5]] * 6, 10.0, 0.0, 0.0, 1000, 0.95)
    calibration = NoveltyCalibration([0.0, 0.0], [-1e9] * width, [1e9] * width, table)
    monkeypatch.setattr(module, "alarm_of", lambda model: NoveltyAlarm(calibration, 5.0))
    streams = Streams(served)
    streams.open({"stream": "a", "obs": obs[0].tolist()})
    alarms = [streams.step("a", {"obs": obs[t + 1].tolist(), "act": act[t].tolist()})["alarm"] for t in range(3)]
    assert [alarm["is_raised"] for alarm in alarms] == [False, False, True]
    second = ((4 / 3 + 1) * 4 / 3 + (1.6 + 1) * 1.6) / 2
    assert alarms[1] == pytest.approx(
        {"is_raised": False, "share": np.log(second) / np.log(5.0), "false_alarms_per": 5.0}
    )
    assert streams.reset("a", {"obs": obs[0].tolist()})["alarm"]["is_raised"] is False


class Planner:
    """An agent with a plan of its own: it counts its steps, and fails at the third."""

    def __init__(self):
        self.count, self.seen = 0, []

    def begin_episode(self):
        self.count = 0

    def act(self, packed, explore):
        assert not explore
        self.count += 1
        if self.count == 3:
            raise StepError("no plan")
        return np.array([self.count / 10])

    def watch(self, packed, act, next_packed):
        self.seen.append(float(act[0]))


def test_every_stream_has_an_agent_of_its_own(tmp_path, cartpole_model):
    agent = Planner()
    streams = Streams(Served(tmp_path, 4, 1, None, cartpole_model, None, agent, "c_cem", "belief"))
    obs = [0.0] * 4
    first = [streams.open({"stream": name, "obs": obs})["action"] for name in ("a", "b")]
    assert first == [[0.1], [0.1]]
    assert streams.step("a", {"obs": obs})["action"] == [0.2]
    failed = streams.step("a", {"obs": obs})
    assert failed["action"] is None
    assert failed["note"] == "no action: no plan"
    assert streams.step("b", {"obs": obs})["action"] == [0.2]
    assert streams.reset("a", {"obs": obs})["action"] == [0.1]
    assert (agent.count, agent.seen) == (0, [])


def planning_agent(model):
    task = AgentTask(
        max_contexts=3, obs_dim=4, act_dim=1, name="cartpole", action_space=Box(-1.0, 1.0, (1,)), angle_columns=(2,),
        appended_dim=3, total_updates=0, reward_fn=lambda act, obs: -(obs[:, :1] - 1.0).abs() - 0.1 * act.square(),
        termination_fn=lambda act, obs: (obs[:, :1] > 1e9), planner=CemConfig(
            horizon=4, population_size=12, num_iterations=2, num_elites=3, tune="never"
        ),
    )  # fmt: skip
    agent = PlanningAgent(task)
    data = Trajectories(np.zeros((1, 2, 4)), np.zeros((1, 1, 1)))
    agent.learn(Epoch(data, None, model, True, 0))
    return agent


def test_plans_of_one_stream_do_not_depend_on_others(tmp_path, cartpole_model):
    agent = planning_agent(cartpole_model)
    served = Served(tmp_path, 4, 1, None, cartpole_model, None, agent, "c_cem", "belief")
    alone, together = Streams(served), Streams(served)
    obs, _ = rows(7, 4)
    for streams in (alone, together):
        streams.open({"stream": "a", "obs": obs[0].tolist()})
    together.open({"stream": "b", "obs": obs[3].tolist()})
    actions = [alone.look("a")["action"]]
    for t in range(3):
        together.step("b", {"obs": obs[3 - t].tolist()})
        words = {"obs": obs[t + 1].tolist()}
        actions.append(alone.step("a", words)["action"])
        assert together.step("a", words)["action"] == actions[-1]
    assert len({action[0] for action in actions}) == 4
    assert together.look("b")["action"] not in actions


def test_a_policy_that_sees_nothing_else_needs_no_model(tmp_path):
    policy = ContextSac(BeliefCodec(3, 0), Box(-1.0, 1.0, (2,)), SacConfig(), seed=1, total_updates=1)
    streams = Streams(Served(tmp_path, 3, 2, None, None, policy, None, "ni_sac", "nothing"))
    answer = streams.open({"stream": "a", "obs": [1.0, 2.0, 3.0]})
    np.testing.assert_allclose(
        answer["action"], policy.select_action(np.array([1.0, 2.0, 3.0]), evaluate=True), rtol=1e-6
    )
    assert answer["belief"] is None
    assert streams.step("a", {"obs": [1.0, 2.0, 2.0], "act": [0.0, 0.0]})["step"] == 1


def test_contexts_with_durations_are_served_and_saved(tmp_path, make_model):
    model = make_model("cartpole")
    stays = ([0.4, 0.0, 0.6], [0.0, 0.7, 0.8], [1.0, 0.0, 0.0], [0.0, 0.3, 0.2], [[0.0, 1.0], [1.0, 0.0]])
    model.use_phases(PhaseChain(*(torch.tensor(part, dtype=torch.float64) for part in stays), (2, 1)))
    assert model.states is not None
    served = Served(tmp_path, 4, 1, None, model)
    streams, online = Streams(served), model.online_filter()
    obs, act = rows(8)
    streams.open({"stream": "a", "obs": obs[0].tolist()})
    online.reset(obs[0])
    for t in range(6):
        answer = streams.step("a", {"obs": obs[t + 1].tolist(), "act": act[t].tolist()})
        np.testing.assert_array_equal(answer["belief"], online.update(act[t], obs[t + 1]))
    other = Streams(served)
    other.restore(json.loads(json.dumps(streams.state(), allow_nan=False)))
    words = {"obs": obs[7].tolist(), "act": act[6].tolist()}
    assert other.step("a", words) == streams.step("a", words)


def test_a_model_with_a_past_is_served_as_recorded(tmp_path, make_model):
    model = make_model("linear", past=2)
    model.names = Names(("a", "b", "c"), ("valve", "fan"))
    model.save(tmp_path / "model")
    served = open_served(tmp_path / "model")
    sizes = served.description()
    assert (sizes["obs_dim"], sizes["act_dim"], sizes["past"]) == (3, 2, 2)
    rng = np.random.default_rng(1)
    obs, act = rng.normal(size=(13, 3)), rng.normal(size=(12, 2))
    obs[6] = np.nan
    following, streams = model.analyse(Trajectories(obs, act, allow_missing=True)).following[0], Streams(served)
    streams.open({"stream": "a", "obs": obs[0].tolist()})
    with pytest.raises(RefusedError, match=r"act: a list of 2 numbers is needed \(valve, fan\), got 12 values"):
        streams.step("a", {"obs": obs[1].tolist(), "act": [0.0] * 12})
    for t in range(12):
        streams = restarted(streams)  # before the first step, with half a past, with a missing sample in it
        shown = [None if np.isnan(value) else value for value in obs[t + 1].tolist()]
        answer = streams.step("a", {"obs": shown, "act": act[t].tolist()})
        np.testing.assert_allclose(answer["belief"], following[t], atol=2e-5)
        assert (answer["log_evidence"] is None) == (t in {0, 1, 5, 6, 7, 8})
    saved = streams.state()
    del saved["streams"]["a"]["filter"]["past"]
    with pytest.raises(CheckpointError, match="has no 'past'"):
        Streams(served).restore(saved)


def restarted(streams):
    other = Streams(streams.served)
    other.restore(json.loads(json.dumps(streams.state(), allow_nan=False)))
    return other


@pytest.mark.parametrize(
    ("stays", "sizes"),
    [
        # The first context lasts at least two steps; leaving the second phase is more likely than leaving the third.
        ([[0.4, 0.0, 0.6], [0.0, 0.7, 0.8], [1.0, 0.0, 0.0], [0.0, 0.3, 0.2], [[0.0, 1.0], [1.0, 0.0]]], (2, 1)),
        # One phase each is a plain chain: what `fit` leaves where its comparison settles for geometric.
        ([[0.4, 0.6], [0.9, 0.8], [0.0, 0.0], [0.1, 0.2], [[0.0, 1.0], [1.0, 0.0]]], (1, 1)),
    ],
)
def test_contexts_with_durations_are_exported(tmp_path, make_model, stays, sizes):
    pytest.importorskip("onnxruntime")
    from mbrl_hdp.serving.export import export_onnx
    from mbrl_hdp.serving.export_check import check_export

    model = make_model("cartpole")
    model.use_phases(PhaseChain(*(torch.tensor(part, dtype=torch.float64) for part in stays), sizes))
    served = Served(tmp_path, 4, 1, None, model)
    words = export_onnx(served, tmp_path / "out")
    assert words["initial_states"] == (pytest.approx(stays[0]) if max(sizes) > 1 else None)
    found = check_export(served, tmp_path / "out", num_steps=150)
    assert found.belief < 1e-7  # `initial` of export.json has single precision
    assert found.log_evidence < 1e-9
    assert ("initial_states" in (tmp_path / "out" / "README.md").read_text()) == (max(sizes) > 1)
