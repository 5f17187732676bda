"""After training: model and policy without spurious contexts act as the full ones do."""

import json

import numpy as np

import mbrl_hdp
from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.policy import ContextSac
from mbrl_hdp.control.tracker import BeliefTracker
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.episodes import run_episode
from mbrl_hdp.experiments.export import export
from mbrl_hdp.experiments.loop import collect_episodes, start_run, train, update_agent, update_model
from mbrl_hdp.experiments.metrics import SilentLog
from mbrl_hdp.hooks import load_registry

WORDS = ["agent=c_sac", "profile=smoke", "max_contexts=5", "env.kwargs.horizon=30", "dynamics.hidden_sizes=[16]"]


def run_with_spare_slots(threshold):
    """Run one epoch; a high threshold removes some of the five slots but not all."""
    registry = load_registry()
    words = [*WORDS, f"distillation.test_threshold={threshold}", f"distillation.train_threshold={threshold}"]
    run = start_run(check_config(load_config(words, registry)), registry)
    with SilentLog(1, is_wanted=False) as log:
        new = collect_episodes(run, 0, log)
        is_refit = update_model(run, 0, log)
    update_agent(run, 0, new, is_refit)
    return run


def test_the_exported_policy_acts_the_same(tmp_path):
    run = run_with_spare_slots(0.25)
    assert 1 <= run.model.num_contexts < 5
    export(tmp_path, run)
    model = mbrl_hdp.load(tmp_path / "model")
    assert model.task.max_contexts == run.model.num_contexts
    words = json.loads((tmp_path / "policy.json").read_text())
    assert words == {"obs_dim": 4, "num_contexts": run.model.num_contexts}
    codec = BeliefCodec(words["obs_dim"], words["num_contexts"])
    policy = ContextSac(codec, run.task.action_space, run.agent.sac.config, total_updates=30)
    policy.load_checkpoint(tmp_path / "policy.safetensors")
    full, small = (
        run_episode(run.task.env, act, tracker, seed=5)
        for act, tracker in (
            (lambda packed: run.agent.act(packed, explore=False), run.agent.tracker()),
            (lambda packed: policy.select_action(packed, evaluate=True), BeliefTracker(model)),
        )
    )
    np.testing.assert_allclose(small.beliefs, full.beliefs[:, run.model.kept], atol=1e-3)
    np.testing.assert_allclose(small.episode.act, full.episode.act, atol=1e-3)
    np.testing.assert_allclose(small.episode.obs, full.episode.obs, atol=1e-2)


def test_every_finished_run_leaves_it(tmp_path):
    registry = load_registry()
    words = ["agent=c_cem", "profile=smoke", "max_contexts=3", "env.kwargs.horizon=8", "planner.horizon=3"]
    train(check_config(load_config(words, registry)), registry, tmp_path, progress=False)
    model = mbrl_hdp.load(tmp_path / "final" / "model")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert model.task.max_contexts == summary["num_contexts"]
    assert set(summary["time_breakdown_s"]) == {"env", "act", "model", "agent", "evaluate"}
    assert all(seconds >= 0 for seconds in summary["time_breakdown_s"].values())
    assert not (tmp_path / "final" / "policy.safetensors").exists()
