"""Logs of ten habits: each file goes in with one command, and the right numbers come out."""

import json

import numpy as np
import pytest

from mbrl_hdp.cli import main
from mbrl_hdp.data.files import read_log
from mbrl_hdp.experiments.fit_command import prepare, run_job
from mbrl_hdp.experiments.label_command import label_file
from tests.data.make_logs import CASES, FOLDER

QUICK = ["dynamics=linear", "max_contexts=2", "fit.num_steps=3", "fit.polish_steps=1", "fit.num_restarts=1"]


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
