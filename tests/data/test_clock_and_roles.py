"""Columns by role, time stamps, gaps and resampling, against small tables whose answer is known."""

import numpy as np
import pandas as pd
import pytest

from mbrl_hdp.data.clock import is_clock, to_seconds
from mbrl_hdp.data.logs import log_from_frame
from mbrl_hdp.data.roles import LogConfig, assign
from mbrl_hdp.data.suggestions import Guesses
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError, DataError

NAMES = ["stamp", "operator", "temp_in", "temp_out", "valve", "shift"]


def roles(**words):
    return assign(NAMES, LogConfig(**words), "log.csv, line 1", Guesses({"operator"}))


def test_names_patterns_and_the_rest():
    found = roles(time="stamp", obs=["temp_out", "temp_*"], act="valve", episode="shift", ignore=["*"])
    assert found.obs == ("temp_out", "temp_in")
    assert found.act == ("valve",)
    assert found.single == {"episode": "shift", "time": "stamp"}


def test_all_unknown_columns_at_once_with_what_to_type():
    with pytest.raises(DataError) as error:
        roles(obs=["temp_*"])
    assert "'stamp', 'operator', 'valve', 'shift' have no role" in str(error.value)
    assert "ignore=[stamp,operator,valve,shift]" in str(error.value)
    with pytest.raises(DataError) as error:
        roles()
    assert "time=stamp episode=shift obs=[temp_in,temp_out] act=[valve] ignore=[operator]" in str(error.value)


def test_what_is_typed_back_works():
    names = ["Time (s)", "a b", "it's"]
    with pytest.raises(DataError) as error:
        assign(names, LogConfig(), "log.csv")
    import shlex

    from mbrl_hdp.experiments.label_command import _changes

    words = shlex.split(str(error.value).partition("example: ")[2])
    assert assign(names, LogConfig(**_changes(words)), "log.csv").obs == ("a b", "it's")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"obs": ["tmep_*", "VLAVE"], "ignore": ["*"]},
            r"for obs=tmep_\* \(did you mean 'temp_in' or 'temp_out'\?\), obs=VLAVE \(did you mean 'valve'\?\);",
        ),
        ({"obs": ["temp_in"], "act": ["temp_in"], "ignore": ["*"]}, "'temp_in' is asked for as obs and as act"),
        ({"obs": ["temp_in"], "time": "clock", "ignore": ["*"]}, "no column for time=clock"),
    ],
)
def test_wrong_names(words, message):
    with pytest.raises(DataError, match=message):
        roles(**words)


def test_lists_are_lists_of_names():
    with pytest.raises(ConfigError, match=r"obs=.* must be a list of column names"):
        LogConfig(obs={"a": 1}).check()
    with pytest.raises(ConfigError, match="gaps"):
        LogConfig(gaps="ignore").check()


@pytest.mark.parametrize(
    ("stamps", "form"),
    [
        (["2024-03-31T00:59:59+00:00", "2024-03-31T01:00:00Z", "2024-03-31T03:00:02.500+02:00"], "dates"),
        (["31.03.2024 00:59:59", "31.03.2024 01:00:00", "31.03.2024 01:00:02.5"], "dates"),
        (["01/12/2024 11:59:59 PM", "01/13/2024 12:00:00 AM", "01/13/2024 12:00:02.5 AM"], "dates"),
        ([1_710_000_000_000, 1_710_000_001_000, 1_710_000_003_500], "milliseconds since 1970"),
        (["1710000000", "1710000001", "1710000003.5"], "seconds"),
        (["23:59:57", "23:59:58", "24:00:00.5"], "times of day"),
        (pd.to_datetime([0, 1000, 3500], unit="ms"), "dates"),
    ],
)
def test_forms_of_time(stamps, form):
    seconds, found = to_seconds(pd.Series(stamps), str)
    np.testing.assert_allclose(seconds - seconds[0], [0.0, 1.0, 3.5], atol=1e-6)
    assert found == form


@pytest.mark.parametrize(
    ("values", "is_it"),
    [
        (["01.03.2026 06:00:00", "01.03.2026 06:00:30"], True),
        (["06:00", "06:01", None], True),
        (pd.to_datetime([0, 1], unit="s"), True),
        (np.arange(12) * 0.02, True),
        ([f"{n},5" for n in range(12)], True),
        ([0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3], False),  # a counter of something
        ([*range(11), 3], False),
        ([1, 2, 4], False),  # too few to say
        (["normal", "worn", "normal"], False),
        (["pump 1", "pump 2", "pump 3"], False),
        ([True] * 12, False),
        ([], False),
    ],
)
def test_what_looks_like_a_clock(values, is_it):
    assert is_clock(pd.Series(values)) == is_it


def test_day_or_month_first_is_decided_by_the_order():
    days = pd.Series([f"{day:02d}/02/2024" for day in range(1, 13)])  # the first twelve could be months
    np.testing.assert_allclose(np.diff(to_seconds(days, str)[0]), 86400)
    months = pd.Series([f"02/{day:02d}/2024" for day in range(1, 13)])
    np.testing.assert_allclose(np.diff(to_seconds(months, str)[0]), 86400)


def table(times, **columns):
    return pd.DataFrame({"t": times, "x": np.arange(len(times), dtype=float), **columns})


def test_bad_time_stamps_are_named():
    with pytest.raises(DataError, match=r"the table, row 1, column 't': 'soon' is not a time stamp"):
        log_from_frame(table(["2024-01-01", "soon", "2024-01-03"]), LogConfig(time="t", obs=["x"]))
    with pytest.raises(DataError, match=r"row 2, column 't': has the same time stamp as the row before"):
        log_from_frame(table([0.0, 1.0, 1.0, 2.0]), LogConfig(time="t", obs=["x"]))


def test_rows_are_put_in_order():
    late = log_from_frame(table([3.0, 0.0, 1.0, 2.0]), LogConfig(time="t", obs=["x"]))
    assert late.data.obs[0, :, 0].tolist() == [1.0, 2.0, 3.0, 0.0]
    shuffled = pd.DataFrame({"t": pd.to_datetime([3, 0, 1, 2], unit="s"), "x": [3.0, 0.0, 1.0, 2.0]})
    log = log_from_frame(shuffled, LogConfig(time="t", obs=["x"]))
    assert log.data.obs[0, :, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert "rows were sorted by t" in log.notes


def test_gaps_start_episodes_or_mark_missing_rows():
    frame = table([0.0, 1.0, 2.0, 5.0, 6.0])
    split = log_from_frame(frame, LogConfig(time="t", obs=["x"]))
    assert split.data.lengths.tolist() == [2, 1]
    filled = log_from_frame(frame, LogConfig(time="t", obs=["x"], gaps="missing"))
    np.testing.assert_equal(filled.data.obs[0, :, 0], [0.0, 1.0, 2.0, np.nan, np.nan, 3.0, 4.0])
    whole = log_from_frame(frame, LogConfig(time="t", obs=["x"], max_gap=4.0, resample=1.0))
    np.testing.assert_allclose(whole.data.obs[0, :, 0], [0.0, 1.0, 2.0, 7 / 3, 8 / 3, 3.0, 4.0])


def test_irregular_sampling_is_refused_with_the_largest_deviation():
    frame = table([0.0, 1.0, 2.0, 2.7, 4.0, 5.0])
    with pytest.raises(DataError, match=r"row 3, .*irregular: 0\.7 s .* where 1 s is usual .*resample=1 "):
        log_from_frame(frame, LogConfig(time="t", obs=["x"]))
    log = log_from_frame(frame, LogConfig(time="t", obs=["x"], resample=1.0))
    np.testing.assert_allclose(log.data.obs[0, :, 0], [0.0, 1.0, 2.0, 3 + 0.3 / 1.3, 4.0, 5.0])


def test_resampling_holds_actions_and_averages_equal_stamps():
    frame = table([0.0, 1.0, 1.0, 2.0], u=[10.0, 20.0, 30.0, 40.0])
    log = log_from_frame(frame, LogConfig(time="t", obs=["x"], act=["u"], resample=0.5))
    np.testing.assert_allclose(log.data.obs[0, :, 0], [0.0, 0.75, 1.5, 2.25, 3.0])
    np.testing.assert_allclose(log.data.act[0, :, 0], [10.0, 10.0, 30.0, 30.0])


def test_a_clock_that_starts_again_starts_an_episode():
    times = np.concatenate([0.1 * np.arange(7), 0.1 * np.arange(9)])
    log = log_from_frame(table(times), LogConfig(time="t", obs=["x"]))
    assert log.data.lengths.tolist() == [6, 8]


def test_words_for_episodes_contexts_and_states():
    frame = pd.DataFrame(
        {
            "batch": ["b", "b", "b", "a", "a", "a"],
            "mode": ["wet", "dry", "dry", "dry", "wet", "wet"],
            "pump": ["on", "off", "on", "on", "on", "off"],
            "x": np.arange(6.0),
        }
    )
    log = log_from_frame(frame, LogConfig(episode="batch", context="mode", act=["pump"], obs=["x"]))
    assert log.episode_names == ("b", "a")
    assert log.context_names == ("wet", "dry")
    assert log.data.context.tolist() == [[0, 1], [1, 0]]
    assert log.data.act[..., 0].tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_the_first_hole_is_the_one_named():
    frame = pd.DataFrame({"a": [1.0, 2.0, np.nan], "b": [1.0, np.nan, 3.0]})
    with pytest.raises(DataError, match=r"row 1, column 'b': is empty \(2 such cells in all\); allow_missing=true"):
        log_from_frame(frame, LogConfig(obs=["a", "b"]))
    obs = np.zeros((2, 4, 1))
    obs[1, 1, 0] = np.nan
    act = np.zeros((2, 3, 1))
    act[0, 2, 0] = np.nan
    with pytest.raises(DataError, match="act is nan at episode 0, step 2"):
        Trajectories(obs, act)
