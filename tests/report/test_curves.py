"""Learning curves: what is drawn is what metrics.csv says."""

import json

import numpy as np
import pytest
import yaml

from mbrl_hdp.errors import DataError
from mbrl_hdp.report.curves import PAPER_RETURNS, learning_curve, read_run, write_learning_curve

HEADER = "epoch,num_real_episodes,env_steps,train_return,num_contexts,return_mean,return_std,env_s"


def run_folder(folder, rows, agent="c_cem", env="cartpole_hard", seed=3, summary=None):
    """Write a run directory; a row is (episodes, train return, contexts, return or None, std or None)."""
    folder.mkdir(parents=True)
    lines = [HEADER]
    for epoch, (episodes, train, contexts, mean, std) in enumerate(rows):
        cells = [epoch, episodes, 100 * episodes, train, contexts, mean, std, 0.5]
        lines.append(",".join("" if cell is None else str(cell) for cell in cells))
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": seed, "env": {"name": env}, "agent": {"name": agent}}))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


ROWS = [(10, -20.5, 5, 3.0, 1.5), (12, 1.0, 3, None, None), (14, 30.0, 2, 41.0, 4.0)]


def lines_of(ax):
    """Return (x, y, linestyle) of every line."""
    return [(list(line.get_xdata()), list(line.get_ydata()), line.get_linestyle()) for line in ax.get_lines()]


def test_a_run_is_read_with_its_holes(tmp_path):
    run = read_run(run_folder(tmp_path / "run", ROWS))
    assert (run.env, run.agent, run.seed, run.summary) == ("cartpole_hard", "c_cem", 3, {})
    episodes, mean, std = run.evaluations
    assert episodes.tolist() == [10, 14]
    assert mean.tolist() == [3.0, 41.0]
    assert std.tolist() == [1.5, 4.0]
    assert run.random_return == -20.5
    assert np.isnan(run.columns["return_mean"][1])


def test_one_run_shows_its_evaluations_the_paper_and_random_actions(tmp_path):
    end = {"return_mean": 40.25, "return_std": 3.5, "num_eval_episodes": 7}
    figure = learning_curve([run_folder(tmp_path / "run", ROWS, summary=end)], true_contexts=2)
    top, below = figure.axes
    drawn = lines_of(top)
    assert ([10, 14], [3.0, 41.0], "-") in drawn
    levels = {style: y[0] for _, y, style in drawn if style != "-"}
    assert levels == {"--": 87.63, ":": -20.5}
    band = top.collections[0].get_paths()[0].vertices
    assert sorted({(x, y) for x, y in band.tolist()}) == [(10, 1.5), (10, 4.5), (14, 37.0), (14, 45.0)]
    assert lines_of(below)[0][1] == [5, 3, 2]
    assert lines_of(below)[1][1] == [2, 2]
    words = " ".join(text.get_text() for text in figure.legends[0].get_texts())
    assert "40.25 ± 3.50 over 7 episodes" in words
    assert "seed 3" in words


def test_seeds_are_averaged_where_all_have_been_evaluated(tmp_path):
    one = run_folder(tmp_path / "a", [(10, 0.0, 2, 10.0, 1.0), (20, 0.0, 2, 30.0, 1.0), (30, 0.0, 2, 50.0, 1.0)])
    two = run_folder(tmp_path / "b", [(10, 0.0, 2, 20.0, 1.0), (15, 0.0, 2, 24.0, 1.0), (20, 0.0, 2, 60.0, 1.0)])
    figure = learning_curve([one, two])
    drawn = lines_of(figure.axes[0])
    # At 15 the first run is half-way between 10 and 30; beyond 20 only one of them has been.
    assert ([10, 15, 20], [15.0, 22.0, 45.0], "-") in drawn
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert {tuple(point) for point in band.tolist()} == {(10, 10), (10, 20), (15, 20), (15, 24), (20, 30), (20, 60)}


def test_agents_are_curves_of_their_own_and_colours_differ(tmp_path):
    folders = [run_folder(tmp_path / agent, ROWS, agent) for agent in ("c_cem", "fi_sac")]
    top = learning_curve(folders).axes[0]
    solid = [line for line in top.get_lines() if line.get_linestyle() == "-"]
    assert len({line.get_color() for line in solid}) == 2
    papers = {line.get_ydata()[0] for line in top.get_lines() if line.get_linestyle() == "--"}
    assert papers == {PAPER_RETURNS["cartpole_hard", "c_cem"], PAPER_RETURNS["cartpole_hard", "fi_sac"]}


def test_an_agent_without_a_model_has_no_panel_of_contexts(tmp_path):
    rows = [(10, -20.0, None, 3.0, 1.0), (11, 2.0, None, 4.0, 1.0)]
    assert len(learning_curve([run_folder(tmp_path / "run", rows, "ni_sac")]).axes) == 1


def test_agents_with_and_without_a_model_share_a_figure(tmp_path):
    blind = run_folder(tmp_path / "blind", [(10, -20.0, None, 3.0, 1.0)], "ni_sac")
    top, below = learning_curve([blind, run_folder(tmp_path / "run", ROWS)]).axes
    assert len([line for line in top.get_lines() if line.get_linestyle() == "-"]) == 2
    assert lines_of(below)[1][1] == [5, 3, 2]


def test_an_agent_that_is_not_ours_may_start_otherwise_than_at_random(tmp_path):
    run = read_run(run_folder(tmp_path / "run", ROWS, "somebody"))
    assert run.random_return is None
    assert ":" not in [style for _, _, style in lines_of(learning_curve([run.folder]).axes[0])]


def test_flat_curves_are_enlarged(tmp_path):
    flat = [(10, -20.0, 2, 88.0, 0.5), (12, 88.0, 2, 87.5, 0.5)]
    top = learning_curve([run_folder(tmp_path / "flat", flat)]).axes[0]
    assert len(top.child_axes) == 1
    assert not learning_curve([run_folder(tmp_path / "steep", ROWS)]).axes[0].child_axes


def test_a_run_that_was_never_evaluated_still_has_a_figure(tmp_path):
    figure = learning_curve([run_folder(tmp_path / "run", [(10, -20.0, 2, None, None)])])
    assert [style for _, _, style in lines_of(figure.axes[0])] == ["--", ":"]


def test_the_file_is_a_picture_in_the_run_directory(tmp_path):
    folder = run_folder(tmp_path / "run", ROWS)
    path = write_learning_curve(folder)
    assert path == folder / "learning_curve.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in folder.iterdir()) == ["config.yaml", "learning_curve.png", "metrics.csv"]


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "not a run directory"), (HEADER + "\n", "holds no epoch"), (HEADER + "\n0,ten,,,,,,\n", "not a number")],
)
def test_what_is_no_run_is_named(tmp_path, text, words):
    if text is not None:
        (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(DataError, match=words) as error:
        learning_curve([tmp_path])
    assert str(tmp_path) in str(error.value)


def test_different_environments_do_not_share_a_figure(tmp_path):
    folders = [run_folder(tmp_path / env, ROWS, env=env) for env in ("drone", "intersection")]
    with pytest.raises(DataError, match="drone, intersection"):
        learning_curve(folders)
    with pytest.raises(DataError, match="at least one"):
        learning_curve([])
