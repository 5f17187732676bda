"""The page that compares backends: a policy plays the same episodes on both, and a difference is noticed."""

import json

import pytest

from benchmarks import engines

TINY = ["env.kwargs.horizon=12", "budget.num_epochs=1", "budget.warm_episodes=2", "budget.eval_episodes=1"]


def found(real, batched=(10.0, 12.0, 11.0)):
    return {"task": "drone", "agent": "c_cem", "seed": 100, "batched": list(batched), "real": list(real), "commit": "c"}


@pytest.mark.parametrize(
    ("real", "is_same"),
    [
        ((10.0, 12.0, 11.0), True),
        ((10.5, 11.5, 11.0), True),  # better here, worse there
        ((10.001, 12.001, 11.001), True),  # always more, but by rounding only
        ((10.1, 12.1, 11.2), False),
    ],
)
def test_a_steady_difference_is_one(real, is_same):
    assert engines.is_same(found(real)) is is_same
    assert engines.row(found(real))[-1] == ("yes" if is_same else "**no**")


def test_page_and_records(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(
        engines, "measure", lambda task, agent, *more: asked.append((task, agent, more)) or found((10.1, 12.1, 11.2))
    )
    out = tmp_path / "engines.md"
    words = ["--tasks", "drone", "--agents", "c_cem", "--episodes", "3", "--out", str(out)]
    engines.main(words)
    engines.main(words)
    assert asked == [("drone", "c_cem", (100, 3, []))]
    assert "| drone | c_cem | 11.000 ± 1.000 | 11.133 ± 1.002 (pybullet) | +0.13 [+0.1, +0.2] | 0.2 | **no** |" in (
        out.read_text()
    )
    assert json.loads(out.with_suffix(".jsonl").read_text())["real"] == [10.1, 12.1, 11.2]
    assert "drone c_cem" in capsys.readouterr().out


def test_a_policy_plays_the_same_episodes_on_both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    played = []
    returns = engines.returns
    monkeypatch.setattr(
        engines, "returns", lambda run, number: played.append(run.task.env.unwrapped.backend) or returns(run, number)
    )
    line = engines.measure("drone", "fi_sac", 0, 2, TINY)
    assert played == ["vector", "pybullet"]
    assert line["real"] == pytest.approx(line["batched"], abs=1e-5)
    assert len(set(line["real"])) == 2
