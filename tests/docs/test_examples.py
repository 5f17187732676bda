"""Every script in examples/ runs with --quick and gives what it says; examples/README.md names them all."""

import importlib.util
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mbrl_hdp
from mbrl_hdp.control.saving import load_policy
from mbrl_hdp.control.tracker import BeliefTracker

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def script(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_rows(rows, num_episodes):
    assert [row["episodes"] for row in rows] == num_episodes
    for row in rows:
        assert 1 <= row["contexts"] <= 3
        assert abs(row["return"]) <= 15  # fifteen steps of rewards between -1 and 1
        assert 0.0 < row["accuracy"] <= 1.0


def test_c_cem_without_the_command_line(tmp_path, capsys):
    rows = script("train_c_cem").main(["--quick", "--seed", "1", "--save", str(tmp_path / "model")])
    check_rows(rows, [10, 12])
    model = mbrl_hdp.load(tmp_path / "model")
    assert model.num_contexts == rows[-1]["contexts"]
    assert model.task.max_contexts == 3
    assert f"{rows[-1]['return']:.2f} ±" in capsys.readouterr().out


def test_c_cem_is_the_same_run_for_the_same_seed(tmp_path):
    main = script("train_c_cem").main
    once, again, other = (main(["--quick", "--seed", seed])[-1]["return"] for seed in ("2", "2", "3"))
    assert once == again != other


def test_c_sac_without_the_command_line(tmp_path, capsys):
    rows = script("train_c_sac").main(["--quick", "--save", str(tmp_path)])
    check_rows(rows, [12, 14])
    model, policy = mbrl_hdp.load(tmp_path / "model"), load_policy(tmp_path)
    assert model.num_contexts == model.task.max_contexts == rows[-1]["contexts"]
    act = policy.select_action(BeliefTracker(model).reset(np.zeros(4)), evaluate=True)
    assert abs(act.item()) <= 1.0
    assert "temperature" in capsys.readouterr().out


def test_mbrl_libs_own_trainer_and_agent():
    result = script("mbrl_lib_trainer").main(["--quick"])
    assert result["last_loss"] < result["first_loss"]
    assert 1 <= result["contexts"] <= 3
    assert math.isfinite(result["return"])
    assert abs(result["return"]) <= 15


def test_the_demo_draws_and_goes_on(tmp_path, capsys, monkeypatch):
    demo = script("demo")
    words = ["demo.py", "--quick", "--skip-logs", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    assert demo.main() == 0
    said = capsys.readouterr().out
    summary = json.loads((tmp_path / "control_quick" / "summary.json").read_text())
    assert f"Return {summary['return_mean']:.2f}" in said
    assert "the paper: 87.63" in said
    for name in ("learning_curve.png", "rollout.gif"):
        assert str(tmp_path / name) in said
    with Image.open(tmp_path / "rollout.gif") as image:
        assert image.n_frames == 13
    # Once more: the finished run is kept, the pictures are drawn anew.
    (tmp_path / "learning_curve.png").unlink()
    assert demo.main() == 0
    assert "finished run, which is kept" in capsys.readouterr().out
    assert (tmp_path / "learning_curve.png").is_file()
    # Killed before its end: the run goes on from its last checkpoint.
    (tmp_path / "control_quick" / "summary.json").unlink()
    assert demo.main() == 0
    assert "going on from its last checkpoint" in capsys.readouterr().out
    assert json.loads((tmp_path / "control_quick" / "summary.json").read_text())["returns"] == summary["returns"]


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.iterdir() if not p.name.startswith(("_", "."))))
def test_the_index_names_everything(name):
    assert name == "README.md" or f"]({name})" in (EXAMPLES / "README.md").read_text(), f"add {name} to the index"


def test_the_index_names_nothing_else():
    for link in re.findall(r"\]\(([^)#]+)\)", (EXAMPLES / "README.md").read_text()):
        assert link.startswith("https://") or (EXAMPLES / link).exists(), link
