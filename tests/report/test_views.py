"""A model shows itself in Python and in a notebook."""

import copy
import inspect
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgb

import mbrl_hdp
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.tensor_files import read_tensors, write_tensors
from mbrl_hdp.errors import DataError
from mbrl_hdp.inference.views import ModelViews, model_views
from mbrl_hdp.report import views
from mbrl_hdp.report.figures import contexts_figure
from mbrl_hdp.report.palette import context_colours
from mbrl_hdp.report.summary import summarise

QUICK = mbrl_hdp.FitConfig(num_steps=5, polish_steps=2, num_restarts=1)


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(60, 3)).cumsum(0)
    frame = pd.DataFrame(values, columns=["obs_a", "obs_b", "obs_c"]).assign(episode=np.arange(60) // 20, act_u=1.0)
    frame["act_u"] = rng.normal(size=60)
    frame["obs_c"] = 5.0
    return mbrl_hdp.fit(frame, dynamics="linear", max_contexts=2, config=QUICK, progress=False), frame


def test_a_model_takes_what_fit_takes(fitted):
    model, frame = fitted
    episode = frame[frame["episode"] == 1]
    obs, act = episode[["obs_a", "obs_b", "obs_c"]].to_numpy(), episode[["act_u"]].to_numpy()
    wanted = model.most_likely(frame)[1]
    assert model.most_likely({"observations": obs, "actions": act[:-1]})[0].tolist() == wanted.tolist()
    assert model.filter([(obs, act[:-1])]).shape == (1, 19, model.num_contexts)
    with pytest.raises(DataError, match="cannot read trajectories from float"):
        model.smooth(1.5)


def test_the_package_names_the_module_that_draws_a_model():
    assert model_views() is views
    names = [name for name, value in vars(ModelViews).items() if inspect.isfunction(value) and name[0] != "_"]
    assert len(names) == 5
    for name in names:
        wanted = list(inspect.signature(getattr(ModelViews, name)).parameters)[1:]
        assert list(inspect.signature(getattr(views, name)).parameters) == wanted, name


def test_a_constant_column_does_not_spoil_the_score(fitted):
    model, _ = fitted
    assert all(run["held_out_rmse"] < 10 for run in model.report.runs)


def test_print_and_summary(fitted):
    model, frame = fitted
    assert str(model) == model.summary()
    assert "How sure:" in str(model)
    assert "mean posterior probability" not in model.summary()
    assert "mean posterior probability" in model.summary(frame)
    if model.num_contexts > 1:
        assert "gain of act_u on obs_a" in model.summary(frame)


def test_figures_by_episode_and_column(fitted):
    model, frame = fitted
    figure = model.plot_contexts(frame, episodes=[2, 0], columns=["obs_b", 0])
    assert [ax.get_title(loc="left") for ax in figure.axes][::2] == ["episode 2", "episode 0"]
    assert [line.get_label().split("\n")[0] for line in figure.axes[0].lines] == ["obs_b", "obs_a"]
    assert figure.axes[0].lines[0].get_label().endswith(f"{frame.obs_b.min():.4g} to {frame.obs_b.max():.4g}")
    assert figure.axes[-1].get_xlabel() == "step"
    assert len(figure.axes[0].lines[0].get_xdata()) == 20
    assert model.plot_transition().axes
    assert model.plot_stationary().axes
    with pytest.raises(DataError, match="there is no column 'obs_d'; did you mean"):
        model.plot_contexts(frame, columns=["obs_d"])
    with pytest.raises(DataError, match="the data has episodes 0 to 2"):
        model.plot_contexts(frame, episodes=[3])


def test_time_units_and_names_of_episodes_where_known(fitted):
    model, frame = fitted
    found = model.analyse(mbrl_hdp.Trajectories.from_frame(frame))
    names = Names(["a", "b", "c"], ["u"], {"b": "bar"}, ("early", "late", "night"), dt=60.0)
    figure = contexts_figure(found, summarise(model, found, names), [1])
    top, below = figure.axes
    assert top.get_title(loc="left") == "episode 1 (late)"
    assert top.lines[1].get_label().endswith(" bar")
    assert below.get_xlabel() == "time in minutes (a step is 60 s)"
    assert below.get_xlim() == (0.0, 19.0)
    assert top.lines[0].get_xdata().tolist() == list(range(20))


def test_a_model_keeps_the_names_of_its_columns(fitted, tmp_path):
    _, frame = fitted
    names = {"obs_a": "heading", "obs_b": "speed", "obs_c": "depth", "act_u": "rudder"}
    table = frame.rename(columns=names)
    asked = {"obs": ["heading", "speed", "depth"], "act": ["rudder"], "episode": "episode", "ignore": ["*"]}
    data = mbrl_hdp.Trajectories.from_frame(table, **asked)
    quick = mbrl_hdp.FitConfig(num_steps=2, polish_steps=1, num_restarts=1, start="random")
    named = mbrl_hdp.fit(data, dynamics="linear", max_contexts=2, config=quick, progress=False)
    plain = mbrl_hdp.fit(data.with_names(None), dynamics="linear", max_contexts=2, config=quick, progress=False)
    assert plain.names is None
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(named.parameters(), plain.parameters(), strict=True))
    named.save(tmp_path)
    loaded = mbrl_hdp.load(tmp_path)
    assert loaded.names == named.names == Names(("heading", "speed", "depth"), ("rudder",))
    for known in (data, data.with_names(None)):
        figure = loaded.plot_contexts(known, columns=["depth"])
        assert figure.axes[0].lines[0].get_label().startswith("depth")
    swapped = mbrl_hdp.Trajectories.from_frame(table, **{**asked, "obs": ["depth", "speed", "heading"]})
    np.testing.assert_array_equal(loaded.smooth(swapped), loaded.smooth(data))
    with pytest.raises(DataError, match="missing are heading, speed, depth"):
        loaded.analyse(frame)
    again = mbrl_hdp.fit(data.with_names(None), config=quick, progress=False, warm_start=loaded)
    assert again.names == loaded.names


def test_a_model_saved_without_names_still_loads(fitted, tmp_path):
    model, frame = fitted
    model.save(tmp_path)
    tensors, words = read_tensors(tmp_path / "model.safetensors")
    del words["names"], words["report"]["num_steps"]
    write_tensors(tmp_path / "model.safetensors", tensors, words)
    old = mbrl_hdp.load(tmp_path)
    assert old.names is None
    np.testing.assert_array_equal(old.smooth(frame), model.smooth(frame))
    assert f"{model.report.num_transitions} steps without missing values of" in str(old)


def test_a_model_without_data_says_what_it_counts(fitted):
    model, _ = fitted
    report = replace(model.report, num_steps=57, num_transitions=41)
    holey = copy.deepcopy(model)
    holey.report = report
    assert " in 57 steps (41 without missing values) of 3 episodes " in str(holey)
    assert " in 57 steps of 3 episodes " in str(model)


def test_a_notebook_shows_it(fitted):
    html = fitted[0]._repr_html_()
    assert html.startswith("<pre>")
    assert "data:image/png;base64," in html
    assert "http" not in html.partition("<img")[0]


def test_ten_colours_and_both_grounds_differ_also_for_a_colour_blind_reader():
    colours = np.array([to_rgb(colour) for colour in [*context_colours(10), "#FFFFFF", "#14171C"]])
    # Machado et al. (2009), deuteranomaly and protanomaly of severity 1, on linear RGB.
    deutan = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    protan = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    for matrix in (np.eye(3), np.array(deutan), np.array(protan)):
        seen = np.clip(linear @ matrix.T, 0, 1)
        shown = np.where(seen <= 0.0031308, 12.92 * seen, 1.055 * seen ** (1 / 2.4) - 0.055)
        distance = np.linalg.norm(shown[:, None] - shown[None], axis=-1) + 9 * np.eye(12)
        assert distance.min() > 0.19
