"""Animated episodes: the strips say what happened, the file holds a frame a step, a run directory is enough."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mbrl_hdp.cli import main
from mbrl_hdp.data.trajectories import Episode
from mbrl_hdp.errors import CheckpointError, ConfigError
from mbrl_hdp.experiments.episodes import Record
from mbrl_hdp.report.animation import animate_episode, animate_run, strips_of
from mbrl_hdp.report.scenes import CartPoleScene, PictureScene

ROOT = Path(__file__).resolve().parents[2]
TRUTH = np.array([0, 0, 0, 1, 1, 2, 2, 2])
LENGTH = len(TRUTH)
AHEAD = (0xE6, 0xE8, 0xEB)


def record_of(truth=TRUTH, beliefs=None, labels=None, length=LENGTH):
    rng = np.random.default_rng(0)
    episode = Episode(rng.normal(size=(length + 1, 4)), rng.uniform(-1, 1, (length, 1)), truth, np.full(length, 0.5))
    return Record(episode, beliefs, labels, seed=1)


class TestStrips:
    def test_learned_contexts_take_the_numbers_of_the_true_ones(self):
        labels = np.array([3, 3, 3, 0, 0, 1, 1, 0])  # 3 is the true 0, 0 the true 1, 1 the true 2; 2 is never likely
        beliefs = np.zeros((LENGTH + 1, 7))
        slots = np.array([1, 2, 4, 6])  # slots of the learned contexts 0 to 3
        beliefs[:, slots] = [0.1, 0.2, 0.3, 0.4]
        strips = strips_of(record_of(beliefs=beliefs, labels=labels), slots)
        assert strips.likely.tolist() == [0, 0, 0, 1, 1, 2, 2, 1]
        assert strips.num_contexts == 4
        np.testing.assert_allclose(strips.belief, np.tile([0.4, 0.1, 0.2, 0.3], (LENGTH + 1, 1)))
        assert strips.switches.tolist() == [3, 5]

    def test_a_full_information_agent_believes_the_truth(self):
        beliefs = np.eye(3)[[*TRUTH, 2]]
        strips = strips_of(record_of(beliefs=beliefs))
        np.testing.assert_array_equal(strips.belief, beliefs)
        assert strips.likely is None

    def test_an_agent_without_information_believes_nothing(self):
        strips = strips_of(record_of(beliefs=np.zeros((LENGTH + 1, 0))))
        assert strips.belief is None
        assert strips.num_contexts == 3

    def test_without_a_truth_learned_numbers_stay(self):
        labels = np.array([1, 1, 1, 0, 0, 0, 0, 0])
        strips = strips_of(record_of(None, np.full((LENGTH + 1, 2), 0.5), labels))
        assert strips.truth is None
        assert strips.likely.tolist() == labels.tolist()
        assert strips.switches.size == 0


def frames_of(path):
    with Image.open(path) as image:
        frames, times = [], []
        for number in range(image.n_frames):
            image.seek(number)
            frames.append(np.asarray(image.convert("RGB")).astype(int))
            times.append(image.info["duration"])
    return frames, times


def num_ahead(frame):
    """Count the pixels of the strips that lie ahead."""
    return int((np.abs(frame - AHEAD).max(-1) <= 6).sum())


@pytest.fixture(scope="module")
def believed():
    labels = np.array([0, 0, 0, 0, 1, 1, 2, 2])
    return record_of(beliefs=np.eye(3)[[0, 0, 0, 0, 1, 1, 1, 2, 2]], labels=labels)


def test_there_is_a_frame_for_every_observation_and_the_strips_fill_up(believed, tmp_path):
    scene = CartPoleScene([1.0, -1.0, 0.5], ["#0072B2", "#E69F00", "#009E73"], pole_length=0.6)
    path = animate_episode(believed, strips_of(believed), tmp_path / "a.gif", scene=scene, names=["a", "b", "c"])
    frames, times = frames_of(path)
    assert len(frames) == LENGTH + 1
    assert times == [80] * LENGTH + [2500]
    hidden = [num_ahead(frame) for frame in frames]
    assert all(before > after for before, after in itertools.pairwise(hidden))
    assert hidden[-1] < 0.02 * hidden[0]
    assert list(tmp_path.iterdir()) == [path]


def test_the_rows_show_the_contexts_in_their_colours(believed, tmp_path):
    """The last frame's row of true contexts, read back from the picture, is the truth."""
    last = frames_of(animate_episode(believed, strips_of(believed), tmp_path / "a.gif"))[0][-1]
    colours = np.array([[0x00, 0x72, 0xB2], [0xE6, 0x9F, 0x00], [0x00, 0x9E, 0x73]])
    is_context = (np.abs(last[:, :, None] - colours).max(-1) <= 12).any(-1)
    rows = np.flatnonzero(is_context.sum(1) > 0.6 * last.shape[1])
    columns = np.flatnonzero(is_context[rows[2]])
    middle = columns[0] + (np.arange(LENGTH) + 0.5) / LENGTH * (columns[-1] - columns[0])
    pixels = last[rows[2], middle.round().astype(int)]
    assert np.abs(pixels[:, None] - colours).max(-1).argmin(-1).tolist() == TRUTH.tolist()


def test_long_episodes_skip_steps(tmp_path):
    long = record_of(np.arange(25) // 6, length=25)
    frames, _ = frames_of(animate_episode(long, strips_of(long), tmp_path / "a.gif", max_frames=10))
    assert len(frames) == 9 + 1  # every third step, and the end


def test_an_environments_own_pictures_can_be_shown(believed, tmp_path):
    pictures = [np.full((30, 40, 3), 20 * step, np.uint8) for step in range(LENGTH + 1)]
    scene = PictureScene(pictures)
    frames, _ = frames_of(animate_episode(believed, strips_of(believed), tmp_path / "a.gif", scene=scene))
    middle = frames[0].shape[0] // 4, frames[0].shape[1] // 2
    shades = [int(frame[middle][0]) for frame in frames]
    np.testing.assert_allclose(shades, [20 * step for step in range(LENGTH + 1)], atol=20)
    assert shades == sorted(shades)


def test_times_that_a_gif_cannot_hold_are_refused(believed, tmp_path):
    with pytest.raises(ConfigError, match="frame_ms"):
        animate_episode(believed, strips_of(believed), tmp_path / "a.gif", frame_ms=25)


SMALL = ["profile=smoke", "max_contexts=3", "env.kwargs.horizon=8", "dynamics.hidden_sizes=[16]", "planner.horizon=3"]


@pytest.mark.parametrize("agent", ["c_cem", "fi_sac", "ni_sac"])
def test_a_finished_run_is_enough(agent, tmp_path):
    run = tmp_path / "run"
    assert main(["train", *SMALL, f"agent={agent}", f"hydra.run.dir={run}"]) == 0
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    path, record = animate_run(run)
    assert path == run / "rollout.gif"
    assert len(frames_of(path)[0]) == 9
    # The first episode of the final evaluation, which started from the same checkpoint.
    assert record.episode_return == json.loads((run / "summary.json").read_text())["returns"][0]


def test_another_environment_draws_itself(tmp_path, monkeypatch):
    (tmp_path / "rewards_of_this_test.py").write_text("def reward(act, next_obs):\n    return next_obs[:, :1]\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    words = ["env=gymnasium", "env.id=MountainCarContinuous-v0", "env.reward=rewards_of_this_test:reward"]
    words += ["+env.kwargs.max_episode_steps=6", "profile=smoke", "agent=ni_sac", "budget.num_epochs=1"]
    assert main(["train", *words, f"hydra.run.dir={run}"]) == 0
    frames, _ = frames_of(animate_run(run, tmp_path / "own.gif", is_trusted=True)[0])
    assert len(frames) == 7
    assert len(np.unique(frames[0].reshape(-1, 3), axis=0)) > 5


def test_an_environment_that_takes_no_render_mode_is_drawn_without_a_picture(tmp_path, monkeypatch):
    """examples/own_env: a wrapper inherits the render modes of what it wraps; its factory takes no render_mode."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "own_env")
    run = tmp_path / "run"
    words = ["env=gymnasium", "env.id=switching_pendulum:SwitchingPendulum-v0", "agent=ni_sac", "profile=smoke"]
    words += ["+env.kwargs.max_episode_steps=6", "budget.num_epochs=1"]
    assert main(["train", *words, f"hydra.run.dir={run}"]) == 0
    assert "epoch 1/1 done" in (run / "app.log").read_text()
    gif = tmp_path / "own.gif"
    assert main(["evaluate", str(run), "--episodes", "1", "--seed", "5", "--video", str(gif), "--trust"]) == 0
    assert len(frames_of(gif)[0]) == 7


def test_no_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="no run directory"):
        animate_run(tmp_path)
