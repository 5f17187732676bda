"""After training: model and policy without spurious contexts act as the full ones do."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import mbrl_hdp
from mbrl_hdp.control.saving import load_policy, load_reward
from mbrl_hdp.control.tracker import BeliefTracker
from mbrl_hdp.data.tensor_files import write_tensors
from mbrl_hdp.errors import CheckpointError
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.episodes import run_episode
from mbrl_hdp.experiments.export import export
from mbrl_hdp.experiments.loop import collect_episodes, start_run, train, update_agent
from mbrl_hdp.experiments.metrics import SilentLog
from mbrl_hdp.experiments.model_update import update_model
from mbrl_hdp.hooks import load_registry

SMALL = ["profile=smoke", "max_contexts=5", "env.kwargs.horizon=30", "dynamics.hidden_sizes=[16]"]
C_SAC = ["agent=c_sac", "agent.standardise_obs=true"]


def run_with_spare_slots(agent):
    """Run one epoch; the high threshold removes some of the five slots but not all."""
    registry = load_registry()
    thresholds = [f"distillation.{name}_threshold=0.25" for name in ("test", "train")]
    words = [*SMALL, *thresholds, *agent]
    run = start_run(check_config(load_config(words, registry)), registry)
    with SilentLog(1, is_wanted=False) as log:
        new, _ = collect_episodes(run, 0, log)
        is_refit = update_model(run, 0, log)
    update_agent(run, 0, new, is_refit)
    return run


def test_the_exported_policy_acts_the_same(tmp_path):
    run = run_with_spare_slots(C_SAC)
    assert 1 <= run.model.num_contexts < 5
    export(tmp_path, run)
    model = mbrl_hdp.load(tmp_path / "model")
    assert model.task.max_contexts == run.model.num_contexts
    words = json.loads((tmp_path / "policy.json").read_text())
    assert (words["obs_dim"], words["num_contexts"]) == (4, run.model.num_contexts)
    policy = load_policy(tmp_path)
    full, small = (
        run_episode(run.task.env, act, tracker, seed=5)
        for act, tracker in (
            (lambda packed: run.agent.act(packed, explore=False), run.tracker),
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


def test_a_learned_reward_comes_along(tmp_path):
    run = run_with_spare_slots(["agent=c_cem", "env.reward=learned"])
    export(tmp_path, run)
    model, reward = mbrl_hdp.load(tmp_path / "model"), load_reward(tmp_path)
    assert model.task.max_contexts == reward.max_contexts == run.model.num_contexts < 5
    rng = torch.Generator().manual_seed(0)
    act, obs = torch.randn(50, 1, generator=rng), torch.randn(50, 4, generator=rng)
    with torch.no_grad():
        for number, slot in enumerate(run.model.slots.tolist()):
            found = reward(act, obs, torch.full((50,), number))
            torch.testing.assert_close(found, run.task.reward_fn(act, obs, torch.full((50,), slot)))
            assert found.std() > 0


@pytest.mark.parametrize(("load", "name"), [(load_policy, "policy"), (load_reward, "reward")])
def test_files_that_cannot_be_read_are_named(tmp_path, load, name):
    with pytest.raises(CheckpointError, match=rf"cannot read the {name} in .*{name}\.safetensors"):
        load(tmp_path)
    (tmp_path / f"{name}.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=f"cannot read the {name}"):
        load(tmp_path)
    save_file({"x": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match="no checksum"):
        load(tmp_path)
    write_tensors(tmp_path / f"{name}.safetensors", {"x": torch.zeros(1)}, {"schema_version": 1})
    with pytest.raises(CheckpointError, match="another version"):
        load(tmp_path)
    write_tensors(tmp_path / f"{name}.safetensors", {"x": torch.zeros(1)}, {"schema_version": 2, "obs_dim": 2})
    with pytest.raises(CheckpointError, match=f"the {name} in .* cannot be built"):
        load(tmp_path)
