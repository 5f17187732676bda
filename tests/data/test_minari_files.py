import importlib

import numpy as np
import pytest

from mbrl_hdp.data import Trajectories, load_trajectories, save_trajectories
from mbrl_hdp.errors import DataError


def test_without_minari_the_error_says_how_to_install_it(full_data, monkeypatch):
    real = importlib.import_module

    def refuse(name, package=None):
        if name.partition(".")[0] == "minari":
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", refuse)
    for call in (lambda: load_trajectories("minari:a/b-v0"), lambda: save_trajectories(full_data, "minari:a/b-v0")):
        with pytest.raises(DataError, match=r"pip install --no-deps -r requirements-extras\.lock"):
            call()


@pytest.fixture
def minari(tmp_path, monkeypatch):
    module = pytest.importorskip("minari", reason="the extra mbrl-hdp[minari] is not installed")
    pytest.importorskip("h5py", reason="Minari's default storage needs h5py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return module


@pytest.mark.filterwarnings("ignore")
def test_round_trip(minari, full_data):
    save_trajectories(full_data, "minari:mine/ragged-v0")
    assert load_trajectories("minari:mine/ragged-v0") == full_data


@pytest.mark.filterwarnings("ignore")
def test_round_trip_of_missing_samples(minari, gappy_data):
    save_trajectories(gappy_data, "minari:mine/gaps-v0")
    assert load_trajectories("minari:mine/gaps-v0", allow_missing=True) == gappy_data
    with pytest.raises(DataError, match=r"minari:mine/gaps-v0: obs is nan at episode 0, step 0, column 1"):
        load_trajectories("minari:mine/gaps-v0")


@pytest.mark.filterwarnings("ignore")
def test_observations_alone(minari):
    data = Trajectories(np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32))
    save_trajectories(data, "minari:mine/plain-v0")
    loaded = load_trajectories("minari:mine/plain-v0")
    assert np.array_equal(loaded.obs, data.obs)
    assert loaded.obs.dtype == np.float32
    assert loaded.reward is None
    assert loaded.context is None
    assert loaded.act_dim == 0


@pytest.mark.filterwarnings("ignore")
def test_refusals(minari, full_data):
    with pytest.raises(DataError, match=r"minari:mine/nothing-v0 cannot be loaded.*minari download mine/nothing-v0"):
        load_trajectories("minari:mine/nothing-v0")
    save_trajectories(full_data, "minari:mine/twice-v0")
    with pytest.raises(DataError, match=r"minari:mine/twice-v0 cannot be written.*exist"):
        save_trajectories(full_data, "minari:mine/twice-v0")


@pytest.mark.filterwarnings("ignore")
def test_spaces_that_are_no_flat_boxes_are_refused(minari):
    from gymnasium.spaces import Box, Discrete
    from minari.data_collector import EpisodeBuffer

    episode = EpisodeBuffer(
        id=0,
        observations=np.zeros((3, 2)),
        actions=np.zeros(2, np.int64),
        rewards=np.zeros(2),
        terminations=np.zeros(2, bool),
        truncations=np.array([False, True]),
    )
    minari.create_dataset_from_buffers(
        "mine/discrete-v0", [episode], observation_space=Box(-1, 1, (2,), np.float64), action_space=Discrete(2)
    )
    with pytest.raises(DataError, match=r"action space must be a Box of flat vectors, got Discrete"):
        load_trajectories("minari:mine/discrete-v0")
