"""Logs of many habits: each file goes in with one command, and the right numbers come out."""

import json

import numpy as np
import pandas as pd
import pytest

from mbrl_hdp import Trajectories
from mbrl_hdp.cli import main
from mbrl_hdp.data.files import read_log
from mbrl_hdp.data.roles import LogConfig
from mbrl_hdp.errors import ConfigError, DataError
from mbrl_hdp.experiments.fit_command import prepare, run_job
from mbrl_hdp.experiments.label_command import label_file
from tests.data.make_logs import CASES, FOLDER

QUICK = [
    "dynamics=linear",
    "max_contexts=2",
    "fit.num_steps=3",
    "fit.polish_steps=1",
    "fit.num_restarts=1",
    "fit.start=random",
]


@pytest.mark.parametrize("name", CASES)
def test_the_files_are_what_the_generator_writes(name):
    assert (FOLDER / name).read_bytes() == CASES[name]().text


@pytest.mark.parametrize("name", CASES)
def test_the_right_numbers_come_out(name):
    case = CASES[name]()
    log = read_log(FOLDER / name, prepare([str(FOLDER / name), *case.words]).typed)
    assert log.data.lengths.tolist() == [len(obs) - 1 for obs in case.obs]
    for number, obs in enumerate(case.obs):
        np.testing.assert_allclose(log.data.episode(number).obs, obs, atol=1e-9)
        np.testing.assert_allclose(log.data.episode(number).act, case.act[number][:-1], atol=1e-9)
        if case.context is not None:
            assert log.data.episode(number).context.tolist() == case.context[number][:-1].tolist()
    assert log.dt == pytest.approx(case.dt) if case.dt else log.dt is None


@pytest.mark.parametrize("name", CASES)
def test_one_command_each(name, tmp_path):
    case = CASES[name]()
    out = tmp_path / "model"
    line = [str(FOLDER / name), *case.words, *QUICK, f"out={out}"]
    if name == "rover.tsv":  # figures and report once; they take longer than all the rest
        assert main(["fit", *line]) == 0
    else:
        run_job(prepare(line), progress=False)
    rows = (out / "labels.csv").read_text().splitlines()
    assert len(rows) == 1 + sum(len(obs) - 1 for obs in case.obs)
    # `label` needs no words: it reads the file as the fit did.
    label_file(str(out), str(FOLDER / name), str(tmp_path / "again.csv"))
    assert (tmp_path / "again.csv").read_text() == (out / "labels.csv").read_text()
    columns = json.loads((out / "columns.json").read_text())
    assert len(columns["obs"]) == case.obs[0].shape[1]


class TestHabits:
    """What strangers' files have; `tests/data/make_logs.py` has whole ones."""

    def write(self, folder, text, name="log.csv"):
        (folder / name).write_text(text)
        return folder / name

    def test_a_file_without_names_is_numbered(self, tmp_path):
        path = self.write(tmp_path, "0.0,1.5,2\n0.5,1.6,3\n1.0,1.7,4\n")
        with pytest.raises(DataError, match=r"obs=\[column_0,column_1,column_2\]"):
            read_log(path, LogConfig())
        log = read_log(path, LogConfig(time="column_0", obs="column_1", ignore="*"))
        np.testing.assert_allclose(log.data.obs[0, :, 0], [1.5, 1.6, 1.7])

    def test_names_in_a_remark_and_numbers_as_names(self, tmp_path):
        remark = self.write(tmp_path, "# made by numpy\n# t x y\n0.0 1.5 2.0\n0.5 1.6 3.0\n", "a.txt")
        assert read_log(remark, LogConfig(time="t", obs=["x", "y"])).obs_names == ("x", "y")
        counted = self.write(tmp_path, "0,1\n1.5,2\n1.6,3\n")
        log = read_log(counted, LogConfig(obs=[0, 1]))
        np.testing.assert_allclose(log.data.obs[0], [[1.5, 2], [1.6, 3]])

    def test_names_that_come_again_need_a_clock(self, tmp_path):
        path = self.write(tmp_path, "t,x\n0,1.5\n1,1.6\nt,x\n0,1.9\n1,2.0\n2,2.1\n3,2.2\n4,2.3\n5,2.4\n")
        with pytest.raises(DataError, match="line 4: the names of the columns come again"):
            read_log(path, LogConfig(obs="x", ignore="t"))

    def test_a_folder_and_a_pattern_of_files(self, tmp_path):
        for number, first in ((2, 5.5), (10, 7.5)):
            self.write(tmp_path, f"t,x\n0,{first}\n1,6.5\n2,6.6\n", f"run_{number}.csv")
        for source in (tmp_path, f"{tmp_path}/run_*.csv"):
            log = read_log(source, LogConfig(time="t", obs="x"))
            np.testing.assert_allclose(log.data.obs[:, 0, 0], [5.5, 7.5])
            assert log.episode_names == ("run_2.csv", "run_10.csv")
        self.write(tmp_path, "t,x\n0,1\n9,6.5\n18,6.6\n", "run_11.csv")
        with pytest.raises(DataError, match=r"run_11.csv: sampling changes from 1 to 9 s"):
            read_log(tmp_path, LogConfig(time="t", obs="x"))

    def test_what_marks_missing_samples_is_suggested(self, tmp_path):
        path = self.write(tmp_path, "x,y\n1.5,2\nBad,3\noops,4\n1.7,-999\n1.8,5\n1.9,6\n")
        with pytest.raises(DataError, match=r"line 4, column 'x': 'oops' is not a number.* missing=\['oops'\]"):
            read_log(path, LogConfig(obs=["x", "y"]))
        log = read_log(path, LogConfig(obs=["x", "y"], missing="oops"))
        assert np.isnan(log.data.obs[0, 1:3, 0]).all()
        note = "y is -999 in 1 row, far from its other values: if that marks missing samples, add missing=[-999]"
        assert log.notes == (note,)

    def test_spikes_are_dropped_on_request(self, tmp_path):
        rows = [[0.1 * t + 0.01 * (-1) ** t, t % 3] for t in range(60)]
        rows[20][0] += 9.0
        path = self.write(tmp_path, "x,y\n" + "\n".join(f"{x},{y}" for x, y in rows) + "\n")
        assert np.isfinite(read_log(path, LogConfig(obs=["x", "y"])).data.obs).all()
        log = read_log(path, LogConfig(obs=["x", "y"], spikes="drop"))
        assert np.argwhere(np.isnan(log.data.obs)).tolist() == [[0, 20, 0]]
        assert log.notes == ("readings that jump away and come back are taken for missing: x (1)",)
        with pytest.raises(ConfigError, match="spikes"):
            read_log(path, LogConfig(obs=["x", "y"], spikes="mend"))

    def test_one_reading_a_row_is_explained(self, tmp_path):
        path = self.write(tmp_path, "t,tag,value\n0,temp,1.5\n0,flow,1.6\n1,temp,1.7\n")
        with pytest.raises(DataError, match=r"df.pivot\(index=..., columns='tag', values='value'\)"):
            read_log(path, LogConfig())

    @pytest.mark.parametrize("name", ["sheet.xlsx", "runs/*.csv", "nothing"])
    def test_what_is_no_table_says_what_to_do(self, name, tmp_path):
        (tmp_path / "nothing").mkdir()
        with pytest.raises(DataError, match=r"save the sheet as CSV|no text file matches|folder without"):
            read_log(tmp_path / name, LogConfig())

    def test_a_damaged_packed_file(self, tmp_path):
        (tmp_path / "a.csv.gz").write_bytes(b"\x1f\x8b\x08junk")
        with pytest.raises(DataError, match=r"a\.csv\.gz cannot be read"):
            read_log(tmp_path / "a.csv.gz", LogConfig(obs="x"))

    def test_a_table_in_python_gets_python_to_type(self):
        frame = pd.DataFrame({"mass": [1, 2, 4], "stamp": [0, 1, 2], "x": 1.5, "who": "a"})
        with pytest.raises(DataError, match=r"Trajectories.from_frame\(df, time='stamp', obs=\['mass', 'x'\], ignore="):
            Trajectories.from_frame(frame)

    def test_clocks_are_suggested_by_what_they_hold(self, tmp_path):
        rows = "".join(f"{n:02d}.03.2026 06:00;{1.77e12 + n:.0f};Meier;{n % 3},5;ON\n" for n in range(1, 20))
        path = self.write(tmp_path, f"Zeitpunkt;zaehler;Bediener;Druck;pump\n{rows}")
        with pytest.raises(DataError, match=r"example: time=Zeitpunkt obs=\[zaehler,Druck,pump\] ignore=\[Bediener\]"):
            read_log(path, LogConfig())
        frame = pd.DataFrame({"when": pd.date_range("2026", periods=12, tz="UTC"), "x": 0.5, "pump": "OFF"})
        with pytest.raises(DataError, match=r"time='when', obs=\['x', 'pump'\]\)"):
            Trajectories.from_frame(frame)

    def test_our_own_layout_may_hold_words_and_marks(self, tmp_path):
        rows = "a,0,1.5,dry\na,1,1.6,\nb,0,1.7,wet\nb,1,-9,dry\nb,2,1.9,\n"
        path = self.write(tmp_path, f"episode,step,obs_x,context\n{rows}")
        log = read_log(path, LogConfig(missing=[-9]))
        assert log.data.lengths.tolist() == [1, 2]
        assert log.context_names == ("dry", "wet")
        assert np.isnan(log.data.obs[1, 1, 0])
        plain = self.write(tmp_path, "episode,step,obs_x\n0,0,1.5\n0,1,-9\n0,2,1.9\n")
        assert np.isnan(read_log(plain, LogConfig(missing=[-9])).data.obs[0, 1, 0])

    @pytest.mark.parametrize(
        ("text", "obs"),
        [
            ("sep=;\nt;x\n0,0;1,5\n0,5;2,5\n1,0;3,5\n", [1.5, 2.5, 3.5]),  # Excel's first line; seconds with commas
            ("t,x\n0.0,40%\n0.5,41%\n1.0,42%\n", [40, 41, 42]),
            ("t,x\n0.0,20.5 °C\n0.5,\n1.0,2e1 °C\n", [20.5, np.nan, 20]),
            ("t,x\n0 days 00:00:00,1\n0 days 00:00:00.5,2\n0 days 00:00:01,3\n", [1, 2, 3]),
        ],
    )
    def test_more_signs_in_cells(self, text, obs, tmp_path):
        log = read_log(self.write(tmp_path, text), LogConfig(time="t", obs=["x"], allow_missing=True))
        assert log.dt == 0.5
        np.testing.assert_allclose(log.data.obs[0, :, 0], obs)

    def test_units_that_differ_are_refused(self, tmp_path):
        with pytest.raises(DataError, match=r"line 2, column 'x': '1 m' is not a number"):
            read_log(self.write(tmp_path, "t,x\n0,1 m\n1,2 km\n"), LogConfig(time="t", obs=["x"]))

    def test_a_model_needs_no_column_that_was_left_out(self, tmp_path):
        path = self.write(tmp_path, "x,y\n1.5,2\n1.6,3\n")
        with pytest.raises(DataError, match="ignore=operator"):
            read_log(path, LogConfig(obs="x", ignore=["operator", "y"]))
        assert read_log(path, LogConfig(obs="x", ignore=["operator", "y"]), rest=True).obs_names == ("x",)
