"""Algorithm 1 at toy size: what a run writes, and that a resumed run is the same run."""

import csv
import json

import numpy as np
import pytest
import torch

from mbrl_hdp.errors import CheckpointError, ConfigError
from mbrl_hdp.experiments.checkpoint import latest_snapshot
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.loop import start_run, train
from mbrl_hdp.hooks import load_registry

SMALL = ["profile=smoke", "max_contexts=3", "env.kwargs.horizon=12", "dynamics.hidden_sizes=[16]", "planner.horizon=3"]


def typed(*overrides):
    registry = load_registry()
    return check_config(load_config([*SMALL, *overrides], registry)), registry


def rows(folder):
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if not k.endswith("_s")} for row in csv.DictReader(file)]


@pytest.mark.parametrize("agent", ["c_cem", "c_sac", "fi_sac", "ni_sac", "mbrl_sac"])
def test_a_run_writes_what_it_promises(agent, tmp_path):
    config, registry = typed(f"agent={agent}")
    result = train(config, registry, tmp_path, progress=False)
    summary = json.loads((tmp_path / "summary.json").read_text())
    promised = {
        *(
            "return_mean",
            "return_std",
            "return_iqm",
            "return_ci",
            "num_eval_episodes",
            "num_real_episodes",
            "env_steps",
        ),
        *("wall_time_s", "num_contexts", "stationary", "context_accuracy", "switch_delay", "seed", "versions"),
        "git_commit",
    }
    assert promised <= set(summary)
    assert summary["return_mean"] == pytest.approx(np.mean(result.returns))
    assert summary["num_eval_episodes"] == 2
    epochs = rows(tmp_path)
    assert [int(row["epoch"]) for row in epochs] == list(range(len(epochs)))
    assert int(epochs[-1]["num_real_episodes"]) == summary["num_real_episodes"] == 10 + 2 * (len(epochs) - 1)
    assert summary["env_steps"] == 12 * summary["num_real_episodes"]
    assert (summary["num_contexts"] is None) == (agent in {"fi_sac", "ni_sac"})
    assert list((tmp_path / "tensorboard").iterdir())


class Killed(Exception):
    pass


@pytest.mark.parametrize("agent", ["c_cem", "c_sac", "fi_sac", "mbrl_sac"])
def test_a_resumed_run_is_the_same_run(agent, tmp_path, monkeypatch):
    import mbrl_hdp.experiments.loop as loop

    config, registry = typed(f"agent={agent}", "budget.num_epochs=3")
    train(config, registry, tmp_path / "whole", progress=False)
    real = loop.update_agent
    for epoch_to_die in (1, 2):

        def dies(run, epoch, new, is_refit, epoch_to_die=epoch_to_die):
            if epoch == epoch_to_die:
                raise Killed
            return real(run, epoch, new, is_refit)

        monkeypatch.setattr(loop, "update_agent", dies)
        with pytest.raises(Killed):
            train(config, registry, tmp_path / "killed", progress=False)
        torch.rand(5)
    monkeypatch.setattr(loop, "update_agent", real)
    train(config, registry, tmp_path / "killed", progress=False)
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    for name in ("agent.safetensors", "data.npz"):
        one, two = ((tmp_path / run / "checkpoints" / "epoch_00003" / name).read_bytes() for run in ("whole", "killed"))
        assert one == two, name
    one, two = (json.loads((tmp_path / run / "summary.json").read_text()) for run in ("whole", "killed"))
    assert one["returns"] == two["returns"]


def test_a_damaged_checkpoint_is_named(tmp_path):
    config, registry = typed("agent=ni_sac")
    train(config, registry, tmp_path, progress=False)
    last = sorted((tmp_path / "checkpoints").iterdir())[-1]
    (last / "agent.safetensors").write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match=last.name):
        train(config, registry, tmp_path, progress=False)


def test_no_checkpoint_means_a_new_run(tmp_path):
    assert latest_snapshot(tmp_path) is None


def test_evaluation_episodes_are_apart_from_training_and_always_the_same(tmp_path):
    seen = {"train": [], "evaluate": []}
    config, registry = typed("agent=ni_sac")
    registry.episode_ended = lambda s: seen["evaluate" if s.phase == "evaluate" else "train"].append(s.seed)
    train(config, registry, tmp_path, progress=False)
    assert not set(seen["train"]) & set(seen["evaluate"])
    assert len(set(seen["train"])) == len(seen["train"])
    assert set(seen["evaluate"]) == set(seen["evaluate"][-2:])  # the last evaluation has the most episodes


def test_the_true_context_is_read_by_no_learner_but_fi(tmp_path):
    """Lying about the contexts in `info` changes nothing for C-CEM and C-SAC."""

    def run(agent, is_lying):
        config, registry = typed(f"agent={agent}")
        run = start_run(config, registry)
        if is_lying:
            step, reset = run.task.env.step, run.task.env.reset
            lie = {"context": 0, "next_context": 1}
            run.task.env.step = lambda act: (*(out := step(act))[:4], {**out[4], **lie})
            run.task.env.reset = lambda **kw: ((out := reset(**kw))[0], {**out[1], **lie})
        import mbrl_hdp.experiments.loop as loop

        folder = tmp_path / f"{agent}_{is_lying}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "start_run", lambda *_: run)
            return train(config, registry, folder, progress=False).returns

    for agent in ("c_cem", "c_sac"):
        assert run(agent, False) == run(agent, True), agent
    assert run("fi_sac", False) != run("fi_sac", True)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["env=gymnasium", "env.id=NoSuchEnv-v0"], ["env.id", "NoSuchEnv"]),
        (["env=gymnasium", "env.id=CartPole-v1"], ["Box"]),
        (["env=gymnasium", "env.id=Pendulum-v1"], ["env.reward"]),
        (["env.reward=no_such_module:reward"], ["env.reward", "no_such_module"]),
        (["env=gymnasium", "env.id=Pendulum-v1", "agent=fi_sac"], ["fi_sac", "contexts"]),
    ],
)
def test_environments_that_cannot_be_used_are_refused(overrides, words):
    config = check_config(load_config(["profile=smoke", *overrides]))
    with pytest.raises(ConfigError) as error:
        start_run(config, load_registry())
    for word in words:
        assert word in str(error.value)


def test_a_missing_env_id_is_named():
    with pytest.raises(ConfigError, match=r"env\.id"):
        check_config(load_config(["env=gymnasium"]))


def test_config_of_a_run_is_typed():
    config, _ = typed("agent=c_sac", "agent.discount=0.9")
    assert config.agent.discount == 0.9
    assert config.agent.name == "c_sac"


class TestCommands:
    def test_train_resume_and_evaluate(self, tmp_path, capsys):
        from mbrl_hdp.cli import main

        folder = tmp_path / "run"
        assert main(["train", *SMALL, "agent=ni_sac", f"hydra.run.dir={folder}"]) == 0
        assert (folder / "config.yaml").is_file()
        before = rows(folder)
        last = sorted((folder / "checkpoints").iterdir())[-1]
        for path in sorted(last.iterdir()):
            path.unlink()
        last.rmdir()  # as if it had been killed in its last epoch
        assert main(["train", f"resume={folder}"]) == 0
        assert rows(folder) == before
        assert main(["evaluate", str(folder), "--episodes", "3"]) == 0
        assert len(json.loads((folder / "evaluation.json").read_text())["returns"]) == 3
        assert "95 % interval" in capsys.readouterr().out

    def test_wrong_requests(self, tmp_path, capsys):
        from mbrl_hdp.cli import main

        assert main(["train", f"resume={tmp_path / 'nowhere'}"]) == 2
        assert "no run directory" in capsys.readouterr().err
        assert main(["train", f"resume={tmp_path}", "seed=3"]) == 2
        assert "stands alone" in capsys.readouterr().err
        assert main(["evaluate", str(tmp_path)]) == 2
        assert main(["evaluate", str(tmp_path), "--episodes", "0"]) == 2


def test_angles_reach_the_policy_as_sine_and_cosine():
    config, registry = typed("agent=ni_sac")
    assert start_run(config, registry).agent.agent.sac.config.angle_columns == [2]


def test_the_commit_is_this_checkouts_own(monkeypatch, tmp_path):
    import mbrl_hdp.experiments.summary as summary

    here = summary.git_commit()
    assert here is None or len(here) == 40
    monkeypatch.setattr(summary, "__file__", str(tmp_path / "summary.py"))
    assert summary.git_commit() is None
