"""Runs ended by SIGKILL and resumed: nothing is lost, nothing is doubled (all of it: `benchmarks.kill_and_resume`)."""

import json
import os
import signal
from pathlib import Path

import pytest

from benchmarks.attack.sandbox import run_job
from benchmarks.run_differences import differences, leftovers, scalars
from mbrl_hdp.cli import main
from mbrl_hdp.data.atomic import atomic_path, clear_leftovers
from mbrl_hdp.experiments import checkpoint, loop
from mbrl_hdp.experiments.metrics import RunLog

SMALL = [
    *("profile=smoke", "max_contexts=3", "env.kwargs.horizon=12", "dynamics.hidden_sizes=[16]", "planner.horizon=3"),
    *("budget.num_epochs=3", "budget.warm_episodes=4"),
]


def killed_at(place, count, folder, *words):
    """Run `mbrl-hdp train` in a fork, killed in the count-th call of a function (or inside a file)."""

    def job():
        module = checkpoint if place == "write_tensors" else loop
        real, calls = getattr(module, place), []

        def dies(*args, **kwargs):
            calls.append(place)
            if len(calls) < count:
                return real(*args, **kwargs)
            if place == "write_tensors":
                real(*args, **kwargs)
                whole = Path(args[0]).read_bytes()
                Path(args[0]).write_bytes(whole[: len(whole) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(module, place, dies)
        return main(["train", *words])

    done = run_job(job, folder)
    assert done.code == -signal.SIGKILL, done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "kills"),
    [
        # In the warm start, before any checkpoint; after metrics.csv, before the checkpoint; inside the checkpoint.
        ("c_sac", [("run_episode", 3), ("write_snapshot", 2), ("write_tensors", 1)]),
        ("c_cem", [("write_tensors", 2)]),
    ],
)
def test_a_killed_run_is_the_same_run(agent, kills, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    words = [*SMALL, f"agent={agent}"]
    assert main(["train", *words, f"hydra.run.dir={whole}"]) == 0
    for number, (place, count) in enumerate(kills):
        killed_at(place, count, tmp_path, *([f"resume={killed}"] if number else [*words, f"hydra.run.dir={killed}"]))
    assert [path.name for path in leftovers(killed)] == [".unfinished_00002"]  # half a checkpoint, which nobody reads
    assert main(["train", f"resume={killed}"]) == 0
    assert differences(whole, killed) == []
    assert all([step for step, _ in curve] == [0, 1, 2] for curve in scalars(killed).values())


def test_the_comparison_sees_differences(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for run, seed in ((one, 0), (two, 0)):
        assert main(["train", *SMALL, "agent=ni_sac", f"seed={seed}", f"hydra.run.dir={run}"]) == 0
    assert differences(one, two) == []
    (two / ".metrics.csv.abcdefgh.csv").touch()
    summary = json.loads((two / "summary.json").read_text())
    (two / "summary.json").write_text(json.dumps({**summary, "return_mean": 0.0, "wall_time_s": 0.0}))
    rows = (two / "metrics.csv").read_text().splitlines()
    (two / "metrics.csv").write_text("\n".join([*rows[:2], rows[2].replace("1,", "7,", 1), *rows[3:]]) + "\n")
    agent = two / "checkpoints" / "epoch_00003" / "agent.safetensors"
    content = bytearray(agent.read_bytes())
    content[-1] ^= 1
    agent.write_bytes(content)
    found = differences(one, two)
    assert found[0] == "metrics.csv from row 1 on (epoch)"
    assert found[1:] == ["summary.json", "checkpoint/agent.safetensors", "left behind: .metrics.csv.abcdefgh.csv"]


def test_a_run_that_wrote_nothing_is_started_again(tmp_path, capsys):
    assert main(["train", f"resume={tmp_path}"]) == 2
    assert "start it again" in capsys.readouterr().err


def test_only_temporary_files_are_cleared(tmp_path):
    kept = [".hydra.yaml", ".metrics.csv", ".a.csv.b.csv", "metrics.csv.abcdefgh.csv", ".env"]
    for name in [*kept, ".metrics.csv.a1b2_c3d.csv", ".summary.json.zzzzzzzz.json"]:
        (tmp_path / name).touch()
    with atomic_path(tmp_path / "metrics.csv") as path:
        clear_leftovers(tmp_path)
        assert not path.exists()  # what is cleared is what `atomic_path` makes
        path.touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "metrics.csv"])


def test_a_run_resumed_within_the_second_is_read_in_order(tmp_path, monkeypatch):
    # Event files are named by second and process; the one that goes on may have the smaller process number.
    for process, rows in ((20_000, [(0, 1.0), (1, 7.0)]), (10_000, [(1, 2.0), (2, 3.0)])):
        monkeypatch.setattr("os.getpid", lambda process=process: process)
        with RunLog(tmp_path, 3, is_wanted=False) as log:
            for epoch, value in rows:
                log.epoch({"epoch": epoch, "return_mean": value})
    names = sorted(path.name for path in (tmp_path / "tensorboard").iterdir())
    assert [name.split(".")[5] for name in names] == ["20000", "10000"]
    assert dict(scalars(tmp_path)["return_mean"]) == {0: "1.0", 1: "2.0", 2: "3.0"}
