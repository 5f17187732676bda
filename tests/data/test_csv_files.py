import contextlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mbrl_hdp.data import Trajectories, load_trajectories, save_trajectories
from mbrl_hdp.errors import DataError

GOOD = """episode,step,obs_0,obs_1,act_0,context,reward,terminated
0,0,0.1,-1.5,0.25,0,1.0,0
0,1,0.2,-1.25,0.5,1,0.5,1
0,2,0.3,-1.0,,,,
3,0,4.0,5.0,0.75,2,0.125,0
3,1,6.0,7.0,,,,
"""


def load_text(text, tmp_path, allow_missing=False, **write):
    (tmp_path / "log.csv").write_text(text, **write)
    return load_trajectories(tmp_path / "log.csv", allow_missing)


def edit(line, column, cell):
    """GOOD with another cell in that line (counted from 1, the header is 1)."""
    lines = [row.split(",") for row in GOOD.splitlines()]
    lines[line - 1][lines[0].index(column)] = cell
    return "\n".join(",".join(row) for row in lines) + "\n"


def test_a_file_by_hand(tmp_path):
    data = load_text(GOOD, tmp_path)
    assert data.lengths.tolist() == [2, 1]
    assert data.obs[0].tolist() == [[0.1, -1.5], [0.2, -1.25], [0.3, -1.0]]
    assert data.obs[1, :2].tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert data.act[..., 0].tolist() == [[0.25, 0.5], [0.75, 0.0]]
    assert data.context.tolist() == [[0, 1], [2, -1]]
    assert data.reward.tolist() == [[1.0, 0.5], [0.125, 0.0]]
    assert data.terminated.tolist() == [[False, True], [False, False]]


def test_saving_gives_the_file_by_hand(tmp_path):
    save_trajectories(load_text(GOOD, tmp_path), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == GOOD.replace("\n3,", "\n1,")


def test_round_trip_is_exact(full_data, gappy_data, tmp_path):
    for data in (full_data, gappy_data):
        data.save(tmp_path / "data.csv")
        assert load_trajectories(tmp_path / "data.csv", allow_missing=data.allow_missing) == data


@st.composite
def trajectories(draw):
    num, steps, obs_dim, act_dim = (draw(st.integers(low, 3)) for low in (1, 1, 1, 0))
    allow_missing = draw(st.booleans())
    kind = draw(st.sampled_from([np.float32, np.float64]))
    width = 32 if kind is np.float32 else 64
    numbers = st.floats(allow_nan=allow_missing, allow_infinity=False, width=width)
    return Trajectories(
        obs=draw(arrays(kind, (num, steps + 1, obs_dim), elements=numbers)),
        act=draw(arrays(kind, (num, steps, act_dim), elements=numbers)),
        lengths=draw(arrays(np.int64, num, elements=st.integers(1, steps))),
        context=draw(st.none() | arrays(np.int64, (num, steps), elements=st.integers(0, 9))),
        reward=draw(st.none() | arrays(kind, (num, steps), elements=numbers)),
        terminated=draw(st.none() | arrays(bool, num)),
        allow_missing=allow_missing,
    )


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=trajectories())
def test_round_trip_of_anything(data, suffix, tmp_path):
    path = tmp_path / f"data{suffix}"
    data.save(path)
    assert load_trajectories(path, allow_missing=data.allow_missing) == data


@pytest.mark.parametrize(
    "text",
    [
        GOOD.rstrip("\n"),
        GOOD + "\n\n",
        "\n" + GOOD,
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD.replace(",", " , "),
        GOOD.replace("\n3,0", "\n\n3,0"),
        GOOD.replace("0.1,", '"0.1",'),
        GOOD.replace(",,,,", ",nan,NaN,,"),
        GOOD.replace(",", ";"),
        GOOD.replace(",", ";").replace(".", ","),
        GOOD.replace(",", "\t"),
        "# remark\n" + GOOD,
    ],
)
def test_harmless_differences(text, tmp_path):
    plain = load_text(GOOD, tmp_path)
    assert load_text(text, tmp_path, encoding="utf-8", newline="") == plain


def test_columns_are_found_by_name(tmp_path):
    text = "act_0,obs_1,step,obs_0,episode\n9,1,0,0,5\n,3,1,2,5\n"
    data = load_text(text, tmp_path)
    assert data.obs.tolist() == [[[0.0, 1.0], [2.0, 3.0]]]
    assert data.act.tolist() == [[[9.0]]]
    named = load_text("episode,step,obs_z,obs_a\n0,0,1,2\n0,1,3,4\n", tmp_path)
    assert named.obs.tolist() == [[[1.0, 2.0], [3.0, 4.0]]]
    assert named.act_dim == 0
    assert named.context is None


def test_missing_samples(tmp_path):
    text = edit(3, "obs_1", "").replace(",0.25,0,1.0,", ",nan,,,")
    with pytest.raises(DataError, match=r"log\.csv, line 2, column 'act_0': 'nan' is empty"):
        load_text(text, tmp_path)
    text = edit(3, "obs_1", "")
    with pytest.raises(DataError, match=r"log\.csv, line 3, column 'obs_1': is empty .allow_missing=true"):
        load_text(text, tmp_path)
    text = text.replace(",0.25,0,1.0,", ",nan,,,")
    data = load_text(text, tmp_path, allow_missing=True)
    assert data.is_observed.tolist() == [[False, False], [True, False]]
    assert data.context.tolist() == [[-1, 1], [2, -1]]
    assert np.isnan(data.reward[0, 0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty: a header"),
        ("\n \n", "is empty: a header"),
        ("episode,step,obs_0\n", "line 1: has a header but no rows"),
        (GOOD.replace("episode,", "id,"), r"line 1: column 'id' has no role; leave out by ignore=\[id\]"),
        (GOOD.replace("act_0", "action_0"), "line 1: column 'action_0' has no role"),
        (
            GOOD.replace("act_0", "u").replace("obs_", "y_"),
            r"line 1: which .* example: obs=\[y_0,y_1\] act=\[u\]",
        ),
        ("episode,step,act_0\n0,0,1\n0,1,\n", "line 1: columns 'obs_\\*' are missing"),
        (GOOD.replace("obs_0", "obs_2"), "line 1: column 'obs_0' is missing: numbered"),
        (GOOD.replace("obs_1", "obs_0"), "line 1: column 'obs_0' appears twice"),
        (edit(3, "obs_1", "fast"), "line 3, column 'obs_1': 'fast' is not a number"),
        (edit(2, "act_0", "1_000"), "line 2, column 'act_0': '1_000' is not a number"),
        (edit(5, "reward", '"1,5"'), "line 5, column 'reward': '1,5' is not a number"),
        (edit(2, "obs_0", "٣"), "line 2, column 'obs_0': '٣' is not a number"),
        (GOOD.replace("0.1,-1.5,", "0.1,"), "line 2: has 7 cells, the header has 8"),
        (GOOD.replace("4.0,5.0", "4.0,5.0,5.0"), "line 5: has 9 cells, the header has 8"),
        ("episode,step,obs_0\n0,0,1,2\n0,1,1,2\n", "line 2: has 4 cells, the header has 3"),
        (edit(3, "episode", ""), "line 3, column 'episode': is not a whole number"),
        (edit(3, "step", ""), "line 3, column 'step': is not a whole number"),
        (edit(3, "step", "1.5"), "line 3, column 'step': '1.5' is not a whole number"),
        (edit(2, "episode", "inf"), "line 2, column 'episode': 'inf' is not a whole number"),
        (edit(3, "obs_0", "inf"), "line 3, column 'obs_0': 'inf' is not finite"),
        (edit(3, "act_0", "-1e999"), "line 3, column 'act_0': '-1e999' is not finite"),
        (GOOD.replace("0,1,0.2,-1.25,0.5,1,0.5,1\n", ""), "line 3, column 'step': '2' leaves a gap"),
        (GOOD.replace("0,0,0.1,-1.5,0.25,0,1.0,0\n", ""), "line 2, column 'step': '1' is not 0 in the first row"),
        (edit(4, "step", "1"), "line 4, column 'step': '1' appears twice.*duplicate"),
        (edit(4, "step", "0"), "line 4, column 'step': '0' is out of order: sort"),
        (edit(5, "episode", "-1"), "line 5, column 'episode': '-1' is out of order: sort"),
        (GOOD + GOOD.split("\n", 1)[1], "line 7, column 'episode': '0' is out of order: sort"),
        (GOOD.replace("3,1,6.0,7.0,,,,\n", ""), "line 5, column 'step': '0' is the only row .* too short"),
        (edit(4, "act_0", "0.5"), "line 4, column 'act_0': '0.5' must be empty in the last row"),
        (edit(6, "context", "1"), "line 6, column 'context': '1' must be empty in the last row"),
        (edit(6, "terminated", "1"), "line 6, column 'terminated': '1' must be empty in the last row"),
        (edit(2, "act_0", ""), "line 2, column 'act_0': is empty"),
        (edit(2, "context", ""), "line 2, column 'context': is empty"),
        (edit(2, "context", "0.5"), "line 2, column 'context': '0.5' is not a whole number from 0"),
        (edit(2, "context", "-1"), "line 2, column 'context': '-1' is not a whole number from 0"),
        (edit(5, "terminated", "2"), "line 5, column 'terminated': '2' must be 0 or 1"),
        (edit(5, "terminated", ""), "line 5, column 'terminated': must be 0 or 1"),
        (edit(2, "terminated", "1"), "line 2, column 'terminated': '1' is 1 before the last transition"),
        (edit(3, "obs_1", "x").replace("\n0,0", "\n\n\n0,0"), "line 5, column 'obs_1': 'x' is not a number"),
    ],
)
def test_refusals_name_file_line_and_column(text, words, tmp_path):
    with pytest.raises(DataError, match=rf"log\.csv,? {words}"):
        load_text(text, tmp_path, encoding="utf-8")


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "log.csv").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x01")
    with pytest.raises(DataError, match=r"log\.csv is not a text file"):
        load_trajectories(tmp_path / "log.csv")
    with pytest.raises(DataError, match=r"nothing\.csv does not exist"):
        load_trajectories(tmp_path / "nothing.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"folder\.csv is a folder"):
        load_trajectories(tmp_path / "folder.csv")


EDITS = st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.sampled_from([*"0123456789.-+eEna,\n\r \t\"'x;_#", ""])))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=EDITS, allow_missing=st.booleans())
def test_a_file_with_slips_is_loaded_or_refused(edits, allow_missing, tmp_path):
    cells = list(GOOD)
    for place, character in edits:
        cells[place] = character
    with contextlib.suppress(DataError):
        assert load_text("".join(cells), tmp_path, allow_missing).num_transitions >= 1


def test_an_overlong_cell_is_refused(tmp_path):
    with pytest.raises(DataError, match="line 2"):
        load_text("episode,step,obs_0\n0,0," + "9" * 200_000 + "x\n0,1,2\n", tmp_path)
