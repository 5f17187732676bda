"""Names of columns, episodes and contexts stay with the data, and never change its numbers."""

import numpy as np
import pandas as pd
import pytest

from mbrl_hdp import Trajectories
from mbrl_hdp.data.arrays import as_trajectories
from mbrl_hdp.data.files import read_log
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.roles import LogConfig
from mbrl_hdp.errors import DataError

NAMES = Names(("heading", "speed"), ("rudder",), {"speed": "kn"}, ("early", "late", "night"), 2.0, ("calm", "wind"))


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    return Trajectories(rng.normal(size=(3, 6, 2)), rng.normal(size=(3, 5, 1)), lengths=[5, 3, 4], names=NAMES)


def test_from_frame_keeps_the_names():
    rows = {
        "clock": 0.5 * np.arange(8),
        "heading": np.arange(8.0),
        "rudder": np.ones(8),
        "shift": ["b"] * 4 + ["a"] * 4,
    }
    table = pd.DataFrame(rows)
    read = Trajectories.from_frame(table, time="clock", obs=["heading"], act=["rudder"], episode="shift")
    assert read.names == Names(("heading",), ("rudder",), {}, ("b", "a"), 0.5)
    assert as_trajectories(pd.DataFrame({"obs_x": np.arange(4.0)})).names == Names(("obs_x",), ())


def test_episodes_and_columns_take_their_names_along(data):
    assert data.select([2, 0]).names.episodes == ("night", "early")
    assert all(len(part.names.episodes) == part.num_episodes for part in data.split([1, 2]))
    taken = data.take_columns([1], []).names
    assert (taken.obs, taken.act, taken.episodes) == (("speed",), (), NAMES.episodes)


def test_sets_of_the_same_columns_keep_them_together(data):
    together = Trajectories.concatenate([data, data.select([1])])
    assert together.names.episodes == ("early", "late", "night", "late")
    assert (together.names.obs, together.names.dt, together.names.contexts) == (NAMES.obs, 2.0, NAMES.contexts)
    slower = data.with_names(Names(NAMES.obs, NAMES.act, dt=3.0))
    mixed = Trajectories.concatenate([data, slower]).names
    assert (mixed.episodes, mixed.dt, mixed.contexts) == ((), None, ())
    assert Trajectories.concatenate([data, data.with_names(None)]).names is None
    assert Trajectories.concatenate([data, data.with_names(Names(("speed", "heading"), ("rudder",)))]).names is None


def test_names_are_not_compared_and_numbers_are_not_copied(data):
    bare = data.with_names(None)
    assert bare == data
    assert bare.obs is data.obs
    assert data.names is NAMES


def test_npz_keeps_all_names_and_csv_those_of_columns(data, tmp_path):
    data.save(tmp_path / "a.npz")
    assert Trajectories.load(tmp_path / "a.npz").names == NAMES
    assert Trajectories.load(tmp_path / "a.npz") == data
    log = read_log(tmp_path / "a.npz", LogConfig())
    assert Names.of(log) == NAMES
    data.save(tmp_path / "a.csv")
    assert Trajectories.load(tmp_path / "a.csv").names == Names(("obs_heading", "obs_speed"), ("act_rudder",))
    clash = data.with_names(Names(("speed", "obs_speed"), ("act_rudder",)))
    clash.save(tmp_path / "b.csv")
    assert Trajectories.load(tmp_path / "b.csv").names.obs == ("obs_0", "obs_1")
    assert Trajectories.load(tmp_path / "b.csv") == data
    np.savez(tmp_path / "c.npz", obs=data.obs, names=np.arange(3))
    with pytest.raises(DataError, match=r"c\.npz: its array 'names' does not hold names of columns"):
        Trajectories.load(tmp_path / "c.npz")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (Names(("a",), ("u",)), "2 different names of observation columns are needed, got a$"),
        (Names(("a", "a"), ("u",)), "2 different names of observation columns"),
        (Names(("a", "b"), ()), r"1 different names of action columns are needed, got \(none\)"),
        (Names(("a", "b"), ("u",), episodes=("one",)), "1 names of episodes, but there are 3 episodes"),
    ],
)
def test_names_that_do_not_fit_are_refused(data, names, message):
    with pytest.raises(DataError, match=message):
        data.with_names(names)
    with pytest.raises(DataError, match=message):
        Trajectories(data.obs, data.act, names=names)


def test_columns_are_found_by_name_in_any_order(data):
    wanted = Names(("speed",), ("rudder",))
    assert as_trajectories(data, wanted) == data.take_columns([1], [0])
    assert as_trajectories(data, NAMES) is data
    assert as_trajectories(data.with_names(None), wanted).obs_dim == 2  # without names, nothing can be chosen
    assert as_trajectories(data, Names.numbered(2, 1)) is data
    with pytest.raises(DataError, match="missing are depth"):
        as_trajectories(data, Names(("speed", "depth"), ("rudder",)))
