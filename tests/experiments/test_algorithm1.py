"""What Algorithm 1 promises: data grows, refits start warm, and the policy learns on beliefs of the newest model."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from mbrl_hdp.cli import main
from mbrl_hdp.control.policy import ContextSac
from mbrl_hdp.control.replay import BeliefReplay, model_beliefs
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments import loop, model_update
from mbrl_hdp.experiments.app import run_app
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.seeding import sub_seed

SMALL = [
    *("profile=smoke", "max_contexts=3", "env.kwargs.horizon=10", "dynamics.hidden_sizes=[8]"),
    *("budget.warm_episodes=5", "budget.episodes_per_epoch=2", "budget.num_epochs=3"),
]


def run_of(*words):
    registry = load_registry()
    return loop.start_run(check_config(load_config([*SMALL, *words], registry)), registry)


def train(run, folder, monkeypatch):
    """Train to the end; return the model after every epoch."""
    models, real = [], loop.write_snapshot
    monkeypatch.setattr(loop, "start_run", lambda *_: run)
    monkeypatch.setattr(loop, "write_snapshot", lambda *words: models.append(run.model) or real(*words))
    loop.train(run.config, run.registry, folder, progress=False)
    return models


def stored_beliefs(replay):
    _, beliefs = replay.codec.unpack(replay.state_dict()["packed"])
    return beliefs.numpy()


def beliefs_of(model, data):
    """Return the model's beliefs of all episodes, one row an observation."""
    beliefs = model_beliefs(model, data)
    return beliefs[np.arange(data.max_steps + 1) <= data.lengths[:, None]]


@pytest.mark.parametrize("agent", ["c_sac", "mbrl_sac"])
def test_the_policy_is_updated_on_beliefs_of_the_model_that_was_just_learned(agent, tmp_path, monkeypatch):
    """The order is model, relabelling, policy: at every update each stored belief is the newest model's."""
    from mbrl.third_party.pytorch_sac_pranz24 import SAC

    run, seen = run_of(f"agent={agent}", "budget.warm_agent_updates=2", "budget.agent_updates=2"), []
    learner, method = (ContextSac, "update") if agent == "c_sac" else (SAC, "update_parameters")
    real = getattr(learner, method)

    def update(self, replay, *rest, **named):
        np.testing.assert_allclose(stored_beliefs(replay), beliefs_of(run.model, run.data), atol=1e-6)
        seen.append((run.model, replay.num_episodes))
        return real(self, replay, *rest, **named)

    monkeypatch.setattr(learner, method, update)
    models = train(run, tmp_path, monkeypatch)
    assert list(dict.fromkeys(seen)) == list(zip(models, (5, 7, 9), strict=True))
    old, new = (beliefs_of(model, run.data) for model in (models[0], models[-1]))
    assert np.abs(old - new).max() > 1e-3  # so stale beliefs would have been seen


def test_beliefs_stay_while_the_model_does(tmp_path, monkeypatch):
    run, calls = run_of("agent=c_sac", "budget.model_every=2"), []
    real = BeliefReplay.relabel
    monkeypatch.setattr(BeliefReplay, "relabel", lambda self, of: calls.append(self.num_episodes) or real(self, of))
    train(run, tmp_path, monkeypatch)
    assert calls == [5, 9]


@pytest.mark.parametrize("agent", ["c_cem", "c_sac", "ni_sac"])
def test_new_episodes_join_the_old_ones(agent, tmp_path, monkeypatch):
    """Data grows by what is collected, in order, and the model is learned from all of it."""
    run, learned_from, collected = run_of(f"agent={agent}", "planner.horizon=2"), [], []
    real_fit, real_play = model_update.fit, loop.run_episode

    def fit(data, **settings):
        learned_from.append(data.num_episodes)
        return real_fit(data, **settings)

    def play(*words, **named):
        record = real_play(*words, **named)
        collected.append(record)
        return record

    monkeypatch.setattr(model_update, "fit", fit)
    monkeypatch.setattr(loop, "run_episode", play)
    train(run, tmp_path, monkeypatch)
    assert learned_from == ([] if agent == "ni_sac" else [5, 7, 9])
    assert run.data.num_episodes == run.num_episodes == 9
    wanted = [sub_seed(run.config.seed, "train", number) for number in range(9)]
    by_seed = {record.seed: record for record in collected}
    for row, record in enumerate(by_seed[seed] for seed in wanted):
        np.testing.assert_array_equal(run.data.obs[row], record.episode.obs)
        np.testing.assert_array_equal(run.data.act[row], record.episode.act)


def test_a_refit_goes_on_from_the_last_model(tmp_path, monkeypatch):
    """One gradient step moves the heads by little; a fresh start has other weights altogether."""
    run = run_of("agent=c_cem", "planner.horizon=2", "budget.model_steps=1", "budget.warm_model_steps=30")
    models = train(run, tmp_path, monkeypatch)
    before, after = (dict(model.dynamics.named_parameters()) for model in models[:2])
    for name, value in before.items():
        moved = (after[name] - value).abs()
        assert moved.max() < 0.25 * value.abs().max(), name
    assert any(not torch.equal(after[name], value) for name, value in before.items())


def test_a_sweep_runs_to_its_end_and_every_job_is_the_run_of_its_seed(tmp_path, capsys):
    words = [*SMALL, "agent=ni_sac"]
    assert main(["train", "-m", "seed=0,1", *words, f"hydra.sweep.dir={tmp_path / 'sweep'}"]) == 0
    assert main(["train", "seed=1", *words, f"hydra.run.dir={tmp_path / 'alone'}"]) == 0
    found = [json.loads((tmp_path / "sweep" / job / "summary.json").read_text()) for job in ("0", "1")]
    assert [summary["seed"] for summary in found] == [0, 1]
    assert found[0]["returns"] != found[1]["returns"]
    assert found[1]["returns"] == json.loads((tmp_path / "alone" / "summary.json").read_text())["returns"]
    assert capsys.readouterr().out.count(" episodes; ") == 3


REFUSED_SWEEPS = {
    "an environment that cannot be built": (["env.kwargs.horizon=10,0"], "horizon"),
    "an agent that cannot be built": (["agent=ni_sac,c_cem", "planner=custom", "planner.optimizer=nope.X"], "nope.X"),
    "a folder that is a file": (["seed=0,1", "hydra.sweep.dir=file"], "hydra.sweep.dir"),
    "a folder without a name": (["seed=0,1", "hydra.sweep.dir="], "hydra.sweep.dir"),
    "the folder of another run": (["seed=3,7", "hydra.sweep.dir=.", "hydra.sweep.subdir=other"], "seed"),
}


@pytest.mark.parametrize(("words", "named"), REFUSED_SWEEPS.values(), ids=REFUSED_SWEEPS)
def test_a_sweep_with_a_bad_last_job_is_refused_before_its_first(tmp_path, monkeypatch, capsys, words, named):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    config = OmegaConf.to_container(load_config(["profile=smoke", "max_contexts=2", "seed=3"]), resolve=True)
    Path("other").mkdir()
    Path("other/config.yaml").write_text(OmegaConf.to_yaml(config))
    assert main(["train", "-m", "profile=smoke", "max_contexts=2", *words]) == 2
    assert named in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.yaml", "file", "other"]


def test_jobs_of_a_sweep_that_differ_in_their_seed_are_tried_once(tmp_path, monkeypatch):
    tried, real = [], loop.start_run
    monkeypatch.setattr(loop, "start_run", lambda config, registry: tried.append(config) or real(config, registry))
    with pytest.raises(ConfigError, match="horizon"):
        run_app(["-m", "seed=0,1,2", "env.kwargs.horizon=10,20,0", f"hydra.sweep.dir={tmp_path / 'sweep'}"])
    assert [config.env.kwargs["horizon"] for config in tried] == [10, 20, 0]
