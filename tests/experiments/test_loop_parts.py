"""The parts of Algorithm 1's loop, one at a time: when it evaluates, what it names, what it counts."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest

from mbrl_hdp.control.rewards import LearnedReward
from mbrl_hdp.errors import CheckpointError, StepError
from mbrl_hdp.experiments import loop
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.metrics import SilentLog
from mbrl_hdp.experiments.run_lock import run_lock
from mbrl_hdp.hooks import load_registry

SMALL = [
    *("profile=smoke", "max_contexts=3", "env.kwargs.horizon=6", "budget.warm_episodes=3"),
    *("budget.warm_agent_updates=1", "budget.agent_updates=1", "budget.final_eval_episodes=1"),
]


def typed(*words):
    registry = load_registry()
    return check_config(load_config([*SMALL, *words], registry)), registry


@pytest.mark.parametrize(
    ("num_epochs", "eval_every", "wanted"), [(3, 2, [1, 2]), (4, 2, [1, 3]), (3, 1, [0, 1, 2]), (2, 9, [1])]
)
def test_every_nth_epoch_and_the_last_are_evaluated(num_epochs, eval_every, wanted, tmp_path):
    config, registry = typed("agent=ni_sac", f"budget.num_epochs={num_epochs}", f"budget.eval_every={eval_every}")
    loop.train(config, registry, tmp_path, progress=False)
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == num_epochs
    assert [int(row["epoch"]) for row in rows if row["return_mean"]] == wanted


def test_progress_is_shown_unless_it_is_not_wanted(tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    def log(folder, num_epochs, is_wanted, tracker, settings):
        raise Stop(folder, num_epochs, is_wanted)

    config, registry = typed("agent=ni_sac", "budget.num_epochs=2")
    monkeypatch.setattr(loop, "RunLog", log)
    for words, is_wanted in (((), True), ((False,), False)):
        with pytest.raises(Stop) as stopped:
            loop.train(config, registry, tmp_path, *words)
        assert stopped.value.args == (tmp_path, 2, is_wanted)


def test_a_run_is_locked_from_its_first_epoch_to_its_end(tmp_path, monkeypatch):
    """A lock counts between two handles of one process as between two processes."""
    places = []

    def locked(name, real):
        def part(*words, **named):
            with pytest.raises(CheckpointError, match="in use by another process"), run_lock(tmp_path):
                pass
            places.append(name)
            return real(*words, **named)

        return part

    for name in ("collect_episodes", "write_snapshot", "play_evaluation", "export"):
        monkeypatch.setattr(loop, name, locked(name, getattr(loop, name)))
    loop.train(*typed("agent=ni_sac", "budget.num_epochs=1"), tmp_path, progress=False)
    assert list(dict.fromkeys(places)) == ["collect_episodes", "play_evaluation", "write_snapshot", "export"]
    with run_lock(tmp_path):  # free again
        pass


def test_a_step_that_fails_is_named_with_its_episode():
    run = loop.start_run(*typed("agent=ni_sac"))
    real, num_steps = run.task.env.step, []

    def step(act):
        num_steps.append(1)
        if len(num_steps) == 6 + 3:  # the third step of the second episode
            raise StepError("the environment's reward is nan")
        return real(act)

    run.task.env.step = step
    with SilentLog(1, is_wanted=False) as log:
        with pytest.raises(StepError, match=r"^training episode 1, step 2: the environment's reward is nan$"):
            loop.collect_episodes(run, 0, log)
        num_steps.clear()
        with pytest.raises(StepError, match=r"^evaluation episode 1, step 2: the environment's reward is nan$"):
            loop.play_evaluation(run, 2, "evaluation", log)


@pytest.mark.parametrize("agent", ["ni_sac", "fi_sac"])
def test_a_model_does_not_change_what_an_agent_without_beliefs_sees(agent):
    run = loop.start_run(*typed(f"agent={agent}"))
    tracker, model = run.tracker, SimpleNamespace(num_contexts=2)
    run.use_model(model)
    assert run.model is model
    assert run.tracker is tracker


def test_a_learned_reward_takes_four_steps_for_every_one_of_the_model(monkeypatch):
    words = "env.reward=learned", "budget.warm_model_steps=7", "budget.model_steps=3"
    run, calls = loop.start_run(*typed("agent=c_cem", *words)), []

    def fit(self, model, data, num_steps, seed):
        calls.append((self, model, data, num_steps, seed))
        return 0.25

    monkeypatch.setattr(LearnedReward, "fit", fit)
    run.model, run.data = SimpleNamespace(), SimpleNamespace(reward=None)
    log = SilentLog(1, is_wanted=False)
    assert [loop.update_reward(run, epoch, log) for epoch in (0, 1)] == 2 * [{"reward_rmse": 0.25}]
    assert [call[:4] for call in calls] == [(run.task.reward_fn, run.model, run.data, count) for count in (28, 12)]
    assert calls[0][4] != calls[1][4]
    known = loop.start_run(*typed("agent=c_cem"))
    assert loop.update_reward(known, 0, log) == {}


def test_training_explores_and_evaluation_does_not(monkeypatch):
    run, flags = loop.start_run(*typed("agent=ni_sac")), []
    monkeypatch.setattr(type(run.agent), "is_ready", property(lambda _: True))
    real = type(run.agent).act

    def act(self, packed, explore):
        flags.append(explore)
        return real(self, packed, explore)

    monkeypatch.setattr(type(run.agent), "act", act)
    with SilentLog(1, is_wanted=False) as log:
        loop.collect_episodes(run, 1, log)
        num_acts = len(flags)
        loop.play_evaluation(run, 1, "evaluation", log)
    assert flags == num_acts * [True] + 6 * [False]
    assert num_acts == 6 * run.budget.episodes_per_epoch


def test_summaries_of_episodes_say_how_many_contexts_there_are():
    run = loop.start_run(*typed("agent=ni_sac"))
    seen = []
    run.registry.episode_ended = seen.append
    with SilentLog(1, is_wanted=False) as log:
        loop.play_evaluation(run, 1, "evaluation", log)
        run.use_model(SimpleNamespace(num_contexts=2))
        loop.play_evaluation(run, 1, "evaluation", log)
    assert [summary.num_contexts for summary in seen] == [None, 2]
    assert [summary.num_steps for summary in seen] == [6, 6]


def test_the_time_of_an_inner_block_is_taken_from_the_outer_one(monkeypatch):
    run = SimpleNamespace(times={})
    ticks = iter([0.0, 1.0, 3.0, 4.0, 9.0, 10.0])
    monkeypatch.setattr(loop.time, "perf_counter", lambda: next(ticks))
    with loop._timed(run, "env_s"):  # 0 to 10
        for _ in range(2):  # 1 to 3 and 4 to 9
            with loop._timed(run, "act_s", inside="env_s"):
                pass
    assert run.times == {"act_s": 7.0, "env_s": 3.0}


def test_what_was_appended_to_observations_is_padded_with_nan():
    records = [SimpleNamespace(beliefs=np.full((length, 2), float(length))) for length in (3, 1)]
    padded = loop._appended(records)
    assert padded.shape == (2, 3, 2)
    np.testing.assert_array_equal(padded[..., 0], [[3.0, 3.0, 3.0], [1.0, np.nan, np.nan]])
    assert loop._appended([SimpleNamespace(beliefs=None)]) is None


def test_what_switches_cost_is_measured_where_truth_and_belief_are_known(monkeypatch):
    cem, sac = (loop.start_run(*typed(f"agent={agent}")) for agent in ("c_cem", "ni_sac"))
    slots, log = [], SilentLog(1, is_wanted=False)
    monkeypatch.setattr(loop, "slots_of_truth", lambda *_: slots[-1])
    monkeypatch.setattr(loop, "TruthTracker", lambda obs_dim, width, found: (obs_dim, width, found))
    monkeypatch.setattr(loop, "play_evaluation", lambda run, count, name, log, tracker: (count, tracker))
    monkeypatch.setattr(loop, "believed_contexts", lambda records, found: (len(records), found))
    monkeypatch.setattr(loop, "switch_loss", lambda records, known, believed: (len(records), known, believed))
    model = SimpleNamespace(task=SimpleNamespace(max_contexts=3))
    for run, has_model, found in ((cem, False, "slots"), (sac, True, "slots"), (cem, True, None)):
        run.model = model if has_model else None
        slots.append(found)
        assert loop.what_switches_cost(run, [1, 2], log) is None
    cem.model = model
    slots.append("slots")
    tracker = cem.task.obs_dim, 3, "slots"
    assert loop.what_switches_cost(cem, [1, 2], log) == (2, (2, tracker), (2, "slots"))
    cem.task = SimpleNamespace(num_contexts=None, obs_dim=cem.task.obs_dim)
    assert loop.what_switches_cost(cem, [1, 2], log) is None
