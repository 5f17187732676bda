"""Comparisons of runs: groups, statistics with known answers, and what is said of runs that do not fit."""

import csv
import json

import numpy as np
import pytest
import yaml

from mbrl_hdp.cli import main
from mbrl_hdp.errors import DataError
from mbrl_hdp.experiments.summary import bootstrap_interval
from mbrl_hdp.report.compare import ALL_ENVS, compare_runs
from mbrl_hdp.report.comparison_files import comparison_figure

ROWS = [(10, 3.0), (20, 40.0), (30, 60.0)]


def write_run(folder, seed, returns, agent="c_cem", env="cartpole_hard", rows=ROWS, **settings):
    """Write a run directory; `returns` None: it is not finished."""
    folder.mkdir(parents=True)
    words = {"seed": seed, "env": {"name": env}, "agent": {"name": agent}, "runtime": {"threads": seed}, **settings}
    (folder / "config.yaml").write_text(yaml.safe_dump(words))
    lines = [f"{epoch},{x},-5.0,2,{y + seed},1.0" for epoch, (x, y) in enumerate(rows)]
    header = "epoch,num_real_episodes,train_return,num_contexts,return_mean,return_std"
    (folder / "metrics.csv").write_text("\n".join([header, *lines]) + "\n")
    if returns is not None:
        summary = {"returns": returns, "num_contexts": 2 + seed, "context_accuracy": 0.5 + 0.1 * seed,
                   "num_real_episodes": 30, "wall_time_s": 60.0 * (seed + 1), "git_commit": "a"}  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def sweep(tmp_path):
    for seed, (cem, sac) in enumerate([([80.0, 90.0], [70.0, 75.0]), ([60.0, 90.0, 60.0], [71.0, 71.0])]):
        write_run(tmp_path / "sweep" / f"{2 * seed}", seed, cem)
        write_run(tmp_path / "sweep" / f"{2 * seed + 1}", seed, sac, agent="c_sac")
    (tmp_path / "sweep" / "multirun.yaml").write_text("")
    return tmp_path / "sweep"


def test_a_sweep_is_grouped_by_agent(sweep):
    found = compare_runs([sweep])
    cem, sac = found.rows
    assert (cem.name, sac.name) == ("c_cem", "c_sac")
    assert (cem.seeds, cem.unfinished, cem.num_episodes) == ((0, 1), (), 5)
    assert cem.mean == pytest.approx((85.0 + 70.0) / 2)
    assert cem.iqm == pytest.approx(np.mean([60.0, 80.0, 90.0]))
    assert cem.std == pytest.approx(np.std([80, 90, 60, 90, 60], ddof=1))
    assert cem.interval == bootstrap_interval([np.array([80.0, 90.0]), np.array([60.0, 90.0, 60.0])])
    assert (cem.num_contexts, cem.accuracy, cem.real_episodes, cem.minutes) == ((2, 3), pytest.approx(0.55), 30, 1.5)
    assert found.remarks == ()


def test_a_curve_is_the_mean_over_seeds_with_its_interval(sweep):
    curve = compare_runs([sweep]).curves[0]
    assert curve.episodes == (10, 20, 30)
    assert curve.mean == (3.5, 40.5, 60.5)
    assert (curve.low[0], curve.high[0]) == (3.0, 4.0)
    assert len(curve.seeds) == 2


def test_probability_of_improvement_is_over_pairs_of_runs(sweep):
    (pair,) = compare_runs([sweep]).pairs
    assert (pair.one, pair.other, pair.env) == ("c_cem", "c_sac", "cartpole_hard")
    assert pair.probability == 0.5  # 85 beats 72.5 and 71, 70 beats neither
    assert pair.interval == (0.0, 1.0)


def test_environments_are_strata(tmp_path, sweep):
    for seed in (0, 1):
        write_run(tmp_path / "drone" / f"{seed}", seed, [5.0 + seed], env="drone")
        write_run(tmp_path / "drone" / f"s{seed}", seed, [5.0], agent="c_sac", env="drone")
    found = compare_runs([sweep, str(tmp_path / "dro*")])
    assert found.envs == ("cartpole_hard", "drone")
    assert [pair.env for pair in found.pairs] == ["cartpole_hard", "drone", ALL_ENVS]
    assert [pair.probability for pair in found.pairs] == [0.5, 0.75, 0.625]
    assert len(comparison_figure(found).axes) == 4


def test_any_setting_but_the_seed_makes_a_group(tmp_path):
    for seed in (0, 1):
        for k in (4, 8):
            write_run(tmp_path / f"{seed}_{k}", seed, [1.0 * k], max_contexts=k, planner={"name": "cem", "size": 2 * k})
    rows = compare_runs([tmp_path]).rows
    assert [row.name for row in rows] == ["c_cem max_contexts=4", "c_cem max_contexts=8"]
    assert dict(rows[1].settings) == {"max_contexts": "8", "planner.size": "16"}
    assert all(row.seeds == (0, 1) for row in rows)


def test_an_unfinished_run_shows_its_curve_only(tmp_path):
    write_run(tmp_path / "a", 0, [1.0, 2.0])
    write_run(tmp_path / "b", 1, None, rows=ROWS[:1])
    found = compare_runs([tmp_path])
    (row,) = found.rows
    assert (row.seeds, row.unfinished, row.num_episodes) == ((0,), (1,), 2)
    assert found.curves[0].episodes == (10, 20, 30)
    assert found.curves[0].low == ()
    assert found.curves[0].seeds[1] == ((10.0,), (4.0,))
    assert "b is unfinished" in found.remarks[0]


def test_one_seed_counts_once(tmp_path):
    write_run(tmp_path / "a", 0, [1.0])
    write_run(tmp_path / "b", 0, None)
    found = compare_runs([tmp_path, tmp_path / "a"])
    assert found.rows[0].num_episodes == 1
    assert "b is left out" in found.remarks[0]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda folder: None, "no such folder"),
        (lambda folder: folder.mkdir(), "is not a run"),
        (lambda folder: (folder.mkdir(), (folder / "config.yaml").write_text("out: x\n")), "has no env"),
        (lambda folder: write_run(folder, 0, []), "has no list `returns`"),
        (lambda folder: write_run(folder, 0, ["many"]), "has no list `returns`"),
    ],
)
def test_what_is_no_run_is_named(make, expected, tmp_path):
    make(tmp_path / "it")
    with pytest.raises(Exception, match=expected) as caught:
        compare_runs([tmp_path / "it"])
    assert "it" in str(caught.value)


def test_a_run_before_its_first_epoch_is_left_out(tmp_path):
    (write_run(tmp_path / "a", 0, None) / "metrics.csv").unlink()
    (tmp_path / "a" / "app.log").touch()
    with pytest.raises(DataError, match="has not finished its first epoch"):
        compare_runs([tmp_path / "a"])
    write_run(tmp_path / "b", 0, [3.0])
    assert "first epoch" in compare_runs([tmp_path]).remarks[0]


def test_the_command_prints_tables_and_writes_files(sweep, tmp_path, capsys):
    write_run(sweep / "x", 5, None, agent="c_sac")
    assert main(["compare", str(sweep), "-o", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    for words in ("77.50", "P(first better)", "2 (1 unfinished)", "●", "is unfinished"):
        assert words in text
    with (tmp_path / "out" / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["group"], float(row["mean"]), row["seeds"]) for row in rows] == [
        ("c_cem", 77.5, "0 1"),
        ("c_sac", 71.75, "0 1"),
    ]
    assert "| c_cem | cartpole_hard | 2 | 5 | 77.50 |" in (tmp_path / "out" / "comparison.md").read_text()
    assert (tmp_path / "out" / "comparison.png").read_bytes()[:4] == b"\x89PNG"


def test_the_command_refuses_a_file_as_folder(sweep, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["compare", str(sweep), "-o", str(tmp_path / "file")]) == 2
    assert "--out" in capsys.readouterr().err
