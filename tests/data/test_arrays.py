"""Trajectories from tables, arrays, lists and dictionaries."""

import numpy as np
import pandas as pd
import pytest

from mbrl_hdp.data import Episode, Trajectories, load_trajectories
from mbrl_hdp.data.arrays import as_trajectories
from mbrl_hdp.data.roles import LogConfig
from mbrl_hdp.errors import DataError

OBS = np.arange(12.0).reshape(6, 2)
ACT = np.arange(6.0)[:, None]
FRAME = pd.DataFrame({"run": [0, 0, 0, 1, 1, 1], "y1": OBS[:, 0], "y2": OBS[:, 1], "u": ACT[:, 0], "note": "x"})
WANTED = Trajectories(obs=OBS.reshape(2, 3, 2), act=np.array([[[0.0], [1.0]], [[3.0], [4.0]]]))
WORDS = {"episode": "run", "obs": ["y*"], "act": "u", "ignore": "note"}


def test_pandas():
    assert Trajectories.from_frame(FRAME, **WORDS) == WANTED
    own = FRAME.drop(columns="note").rename(columns={"run": "episode", "y1": "obs_0", "y2": "obs_1", "u": "act_0"})
    assert as_trajectories(own) == WANTED
    assert list(FRAME.columns) == ["run", "y1", "y2", "u", "note"]


def test_an_index_of_dates_is_the_time():
    frame = FRAME.set_index(pd.to_datetime([0, 1, 2, 10, 11, 12], unit="s"))
    assert Trajectories.from_frame(frame, obs=["y1", "y2"], act=["u"], ignore=["*"]) == WANTED


def test_polars():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({name: FRAME[name].to_list() for name in FRAME.columns})
    assert Trajectories.from_frame(frame, **WORDS) == WANTED
    assert Trajectories.from_frame(frame.lazy(), **WORDS) == WANTED


def test_parquet_file_and_folder(tmp_path):
    pytest.importorskip("pyarrow")
    FRAME.to_parquet(tmp_path / "log.parquet")
    config = LogConfig(episode="run", obs=["y*"], act=["u"], ignore=["note"])
    assert load_trajectories(tmp_path / "log.parquet", columns=config) == WANTED
    (tmp_path / "parts").mkdir()
    for number in range(3):
        FRAME.iloc[2 * number : 2 * number + 2].to_parquet(tmp_path / "parts" / f"part-{number}.parquet")
    assert load_trajectories(tmp_path / "parts", columns=config) == WANTED
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"bad\.parquet cannot be read as parquet"):
        load_trajectories(tmp_path / "bad.parquet", columns=config)


def test_arrays_and_lists():
    pairs = [(episode.obs, episode.act) for episode in WANTED]
    assert as_trajectories(pairs) == WANTED
    assert as_trajectories([Episode(*pair) for pair in pairs]) == WANTED
    assert as_trajectories([obs for obs, _ in pairs]) == Trajectories(OBS.reshape(2, 3, 2))
    assert as_trajectories(OBS.reshape(2, 3, 2)) == Trajectories(OBS.reshape(2, 3, 2))
    assert as_trajectories(WANTED) is WANTED
    for bad in ("data.csv", 3, [OBS, "x"], []):
        with pytest.raises(DataError):
            as_trajectories(bad)


def test_d4rl_dictionaries():
    flat = {"observations": OBS, "actions": ACT, "rewards": np.arange(6.0), "terminals": [0, 0, 0, 0, 0, 1]}
    flat["timeouts"] = [0, 0, 1, 0, 0, 0]
    found = as_trajectories(flat)
    assert found.lengths.tolist() == [2, 2]
    assert found.obs[1].tolist() == OBS[3:].tolist()
    assert found.act[..., 0].tolist() == [[0.0, 1.0], [3.0, 4.0]]
    assert found.terminated.tolist() == [[False, False], [False, True]]
    whole = as_trajectories({**flat, "next_observations": OBS + 1})
    assert whole.lengths.tolist() == [3, 3]
    assert whole.obs[0].tolist() == [*OBS[:3].tolist(), (OBS[2] + 1).tolist()]
    assert whole.reward[1].tolist() == [3.0, 4.0, 5.0]


def test_minari_dictionaries():
    episode = {"observations": OBS, "actions": ACT[:5], "rewards": np.ones(5), "terminations": [0, 0, 0, 0, 1]}
    assert as_trajectories([episode, episode]).lengths.tolist() == [5, 5]
    with pytest.raises(DataError, match="act has 4 rows, observations have 6"):
        as_trajectories({"observations": OBS, "actions": ACT[:4]})
    with pytest.raises(DataError, match="no observations"):
        as_trajectories({"states": OBS})


def test_a_large_parquet_log_is_read_in_pieces_and_sampled(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    from mbrl_hdp.data import parquet_files

    monkeypatch.setattr(parquet_files, "PIECE", 700)
    rows = np.arange(6000)
    words = np.where(rows // 10 % 2, "wet", "dry")
    frame = pd.DataFrame({"run": rows // 100, "y": rows / 7.0, "mode": np.where(rows < 3000, "dry", words)})
    for number in range(6):
        frame.iloc[1000 * number : 1000 * number + 1000].to_parquet(tmp_path / f"{number}.parquet", row_group_size=100)
    config = LogConfig(episode="run", obs=["y"], context="mode", max_rows=1500)
    log = parquet_files.read_parquet_log(tmp_path, config)
    assert log.data.num_transitions + log.data.num_episodes <= 1500
    assert log.data.num_transitions > 1000
    assert log.context_names == ("dry", "wet")
    starts = []
    for episode in log.data:  # every row belongs to one run, in order, with its own context
        number = np.rint(episode.obs[:, 0] * 7).astype(int)
        assert (np.diff(number) == 1).all()
        assert len(set(number // 100)) == 1
        wanted = np.where((number >= 3000) & (number // 10 % 2 == 1), 1, 0)[:-1]
        assert episode.context.tolist() == wanted.tolist()
        starts.append(number[0])
    assert starts == sorted(starts)
    assert min(starts) < 2000
    assert max(starts) > 4000
    assert parquet_files.read_parquet_log(tmp_path, config).data == log.data
    whole = parquet_files.read_parquet_log(tmp_path, LogConfig(episode="run", obs=["y"], ignore=["*"], max_rows=None))
    assert whole.data.num_transitions == 6000 - 60
