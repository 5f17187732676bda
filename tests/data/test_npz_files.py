import contextlib
import os
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mbrl_hdp.data import Trajectories, load_trajectories, save_trajectories
from mbrl_hdp.errors import DataError


def test_round_trip_is_exact(full_data, gappy_data, tmp_path):
    for data in (full_data, gappy_data):
        save_trajectories(data, tmp_path / "data.npz")
        loaded = load_trajectories(tmp_path / "data.npz")
        assert loaded == data
        assert loaded.allow_missing == data.allow_missing
        assert loaded.max_steps == data.max_steps


def test_methods_of_trajectories_do_the_same(full_data, tmp_path):
    full_data.save(str(tmp_path / "data.npz"))
    assert Trajectories.load(str(tmp_path / "data.npz")) == full_data


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    obs=arrays(
        st.sampled_from([np.float32, np.float64]),
        (2, 3, 2),
        elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
    )
)
def test_float_kinds_survive(obs, tmp_path):
    data = Trajectories(obs)
    data.save(tmp_path / "data.npz")
    loaded = Trajectories.load(tmp_path / "data.npz")
    assert loaded.obs.dtype == obs.dtype
    assert loaded == data


def test_files_of_ones_own(tmp_path):
    np.savez(tmp_path / "own.npz", obs=np.zeros((2, 4, 1)), act=np.ones((2, 3, 1)))
    assert load_trajectories(tmp_path / "own.npz").act.sum() == 6
    np.savez(tmp_path / "gaps.npz", obs=np.full((2, 4, 1), np.nan))
    with pytest.raises(DataError, match=r"gaps\.npz: obs is nan at episode 0, step 0"):
        load_trajectories(tmp_path / "gaps.npz")
    assert not load_trajectories(tmp_path / "gaps.npz", allow_missing=True).is_observed.any()


@pytest.mark.parametrize(
    ("arrays_", "words"),
    [
        ({"observations": np.zeros((2, 4, 1))}, "does not hold trajectories: unknown array 'observations'"),
        ({"obs": np.zeros((2, 4, 1)), "action": np.zeros((2, 3, 1))}, "unknown array 'action'.*did you mean 'act'"),
        ({"act": np.zeros((2, 4, 1))}, "no array 'obs'"),
        ({"obs": np.zeros((2, 4, 1)), "schema_version": 2}, "schema_version 2, this program reads up to 1: update"),
        ({"obs": np.zeros((2, 4, 1)), "schema_version": "x"}, "schema_version x"),
        ({"obs": np.zeros(4)}, "obs must have shape"),
    ],
)
def test_foreign_files_are_refused(arrays_, words, tmp_path):
    np.savez(tmp_path / "foreign.npz", **arrays_)
    with pytest.raises(DataError, match=rf"foreign\.npz.*{words}"):
        load_trajectories(tmp_path / "foreign.npz")


class Bomb:
    def __reduce__(self):
        return os._exit, (1,)


def test_loading_never_runs_code(tmp_path):
    np.savez(tmp_path / "bomb.npz", obs=np.array([Bomb()], dtype=object))
    with pytest.raises(DataError, match=r"cannot be read as an .npz file"):
        load_trajectories(tmp_path / "bomb.npz")


def test_damaged_files_are_refused(full_data, tmp_path):
    full_data.save(tmp_path / "good.npz")
    good = (tmp_path / "good.npz").read_bytes()
    for name, content in {"cut": good[: len(good) // 2], "empty": b"", "text": b"obs,act\n1,2\n"}.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(DataError, match=f"{name}.npz cannot be read as an .npz file"):
            load_trajectories(tmp_path / f"{name}.npz")
    middle = good.index(b"NUMPY", 200) + 200
    (tmp_path / "flipped.npz").write_bytes(good[:middle] + bytes([good[middle] ^ 255]) + good[middle + 1 :])
    with pytest.raises(DataError, match=r"flipped\.npz cannot be read"):
        load_trajectories(tmp_path / "flipped.npz")
    with zipfile.ZipFile(tmp_path / "zip.npz", "w") as file:
        file.writestr("obs", "hello")
    with pytest.raises(DataError, match=r"zip\.npz"):
        load_trajectories(tmp_path / "zip.npz")


def test_any_damage_is_refused_or_harmless(tmp_path):
    path = tmp_path / "data.npz"
    data = Trajectories(np.ones((1, 3, 1)), context=[[0, 1]])
    data.save(path)
    good, rng, num_refused = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(1000):
        content = bytearray(good)
        content[rng.integers(len(good))] = rng.integers(256)
        path.write_bytes(content)
        with contextlib.suppress(DataError):
            assert load_trajectories(path) == data
            continue
        num_refused += 1
    assert num_refused > 500


def test_a_single_array_is_refused(tmp_path):
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, np.zeros((2, 4, 1)))
    with pytest.raises(DataError, match="single array"):
        load_trajectories(tmp_path / "array.npz")


def test_missing_files_and_folders(full_data, tmp_path):
    with pytest.raises(DataError, match=r"nothing\.npz does not exist"):
        load_trajectories(tmp_path / "nothing.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(DataError, match=r"folder\.npz"):
        load_trajectories(tmp_path / "folder.npz")
    with pytest.raises(DataError, match="there is no folder"):
        save_trajectories(full_data, tmp_path / "nowhere" / "data.npz")
    with pytest.raises(DataError, match="cannot write"):
        save_trajectories(full_data, tmp_path / "folder.npz")


@pytest.mark.parametrize("name", ["data.doc", "data", "data.npy", "D4RL/pen/human-v2"])
def test_unknown_endings_tell_the_known_ones(full_data, name, tmp_path):
    with pytest.raises(DataError, match=r"known are \.npz, \.csv, .*\.parquet.* and minari:ID"):
        load_trajectories(name)
    with pytest.raises(DataError, match=r"known are \.npz, \.csv and minari:ID"):
        save_trajectories(full_data, name)


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(full_data, suffix, tmp_path, monkeypatch):
    target = tmp_path / f"data{suffix}"
    full_data.save(target)
    before = target.read_bytes()

    def fail(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.savez", fail)
    monkeypatch.setattr("mbrl_hdp.data.csv_files._episode_rows", fail)
    with pytest.raises(DataError, match=r"cannot write .*No space left"):
        full_data.select([0]).save(target)
    assert target.read_bytes() == before
    assert os.listdir(tmp_path) == [target.name]


def test_files_are_as_readable_as_others(full_data, tmp_path):
    full_data.save(tmp_path / "data.npz")
    (tmp_path / "other").touch()
    assert (tmp_path / "data.npz").stat().st_mode == (tmp_path / "other").stat().st_mode
