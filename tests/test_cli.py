"""What a user types, rightly and wrongly."""

import json
import subprocess
import sys

import pytest

from mbrl_hdp.cli import main

BAD_LINES = {
    "unknown command": (["trian"], ["trian", "train"]),
    "unknown group": (["train", "piror=hdp"], ["piror", "prior"]),
    "unknown option": (["train", "prior=hpd"], ["prior", "hpd", "'hdp'"]),
    "unknown option behind a right one": (["train", "env=drone", "agent=c_sac", "prior=hpd"], ["prior=hpd", "'hdp'"]),
    "unknown env": (["train", "env=cartpole_hrad"], ["env", "cartpole_hard"]),
    "unknown experiment": (["train", "experiment=cartpole_hrad_c_cem"], ["experiment", "cartpole_hard_c_cem"]),
    "unknown agent": (["train", "agent=c_cme"], ["agent", "c_cem"]),
    "unknown planner": (["train", "planner=ice"], ["planner", "icem"]),
    "out of range budget": (["train", "budget.num_epochs=0"], ["budget.num_epochs", "at least 1"]),
    "unknown key": (["train", "sed=3"], ["sed", "'seed'"]),
    "unknown plugin key": (["train", "prior.row_concentratoin=3"], ["prior.row_concentratoin", "row_concentration"]),
    "unknown nested key": (["train", "runtime.thread=3"], ["runtime.thread", "runtime.threads"]),
    "no value": (["train", "env=gymnasium"], ["env.id", "no value", "env.id=..."]),
    "unknown key beside one without a value": (
        ["train", "env=gymnasium", "env.id=Pendulum-v1", "env.kwargs.g=5"],
        ["'env.kwargs' has no 'g'", "+env.kwargs.g=5"],
    ),
    "unknown parent": (["train", "prio.stickiness=3"], ["prio", "prior"]),
    "key of another plugin": (["train", "prior=mle", "prior.stickiness=3"], ["prior.stickiness"]),
    "wrong type int": (["train", "seed=abc"], ["seed", "abc", "Integer"]),
    "wrong type float": (["train", "prior.row_concentration=[1]"], ["prior.row_concentration"]),
    "wrong type bool": (["train", "strict_plugins=perhaps"], ["strict_plugins", "true or false"]),
    "fraction for an int": (["train", "max_contexts=2.5"], ["max_contexts", "2.5"]),
    "out of range": (["train", "max_contexts=0"], ["max_contexts", "at least 1", "0"]),
    "out of range in a plugin": (["train", "prior.row_concentration=-1"], ["prior.row_concentration", "-1"]),
    "out of range threads": (["train", "runtime.threads=0"], ["runtime.threads", "at least 1"]),
    "word outside the choices": (["train", "profile=papr"], ["profile", "papr", "'paper'"]),
    "not an override": (["train", "hello"], ["hello", "key=value"]),
    "broken quoting": (["train", "env.id='abc"], ["env.id"]),
    "null where a value is needed": (["train", "seed=null"], ["seed"]),
    "one bad job of a sweep": (["train", "-m", "seed=0,1,-5"], ["seed", "at least 0", "-5"]),
    "bad option in a sweep": (["train", "-m", "prior=hdp,hpd"], ["prior", "hpd", "'hdp'"]),
    "unknown plugin to disable": (["train", "disable_plugins=[prior]"], ["disable_plugins", "'priors'"]),
    "disabled plugin is asked for": (["train", "disable_plugins=[priors]"], ["prior", "hdp"]),
    "unknown flag": (["plugins", "--jsn"], ["--jsn", "--help"]),
    "unknown doctor flag": (["doctor", "--al", "x"], ["--help"]),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_command_line(case, capsys, tmp_path, monkeypatch):
    words, expected = BAD_LINES[case]
    monkeypatch.chdir(tmp_path)
    code = main(words)
    streams = capsys.readouterr()
    assert code == 2
    assert streams.out == ""
    assert len(streams.err.strip().splitlines()) == 1, streams.err
    assert "Traceback" not in streams.err
    for word in expected:
        assert word in streams.err
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback(tmp_path, monkeypatch):
    from mbrl_hdp.errors import ConfigError

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        main(["--debug", "train", "sed=3"])


def test_help_lists_every_command(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    for command in ("train", "plugins", "doctor"):
        assert f"  {command}" in text


def test_plugins_json(capsys):
    assert main(["plugins", "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert listing["problems"] == []
    found = {(row["kind"], row["name"]): row for row in listing["plugins"]}
    assert found["prior", "hdp"]["package"] == "mbrl-hdp"
    assert found["prior", "hdp"]["summary"]
    assert ("distillation", "stationary") in found


def test_plugins_table(capsys):
    assert main(["plugins"]) == 0
    text = capsys.readouterr().out
    assert "stationary" in text
    assert "summary" in text


def test_doctor_is_content_with_the_lock(capsys):
    assert main(["doctor", "--json"]) == 0
    findings = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["mbrl"]["status"] == "ok"
    assert findings["Python"]["status"] == "ok"
    assert findings["minari"]["status"] in {"ok", "optional"}
    assert "threads" in findings


def test_doctor_fails_when_something_needed_is_missing(capsys, monkeypatch):
    from packaging.requirements import Requirement

    import mbrl_hdp.doctor as doctor

    needs = [Requirement("numpy>=999"), Requirement("no-such-package"), Requirement("scipy>=1")]
    monkeypatch.setattr(doctor, "_requirements", lambda: needs)
    assert main(["doctor", "--json"]) == 1
    findings = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["no-such-package"]["status"] == "missing"
    assert "pip install" in findings["no-such-package"]["advice"]
    assert ">=999" in findings["numpy"]["found"]
    assert findings["scipy"]["status"] == "ok"


def test_doctor_tells_versions_that_differ_from_the_tested_ones(capsys, monkeypatch):
    import mbrl_hdp.doctor as doctor

    monkeypatch.setattr(doctor, "tested_versions", lambda: {"numpy": "1.0"})
    assert main(["doctor", "--json"]) == 0
    findings = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["numpy"]["status"] == "differs"
    assert "tested with 1.0" in findings["numpy"]["found"]


def run(*words, cwd, **environment):
    import os

    command = [sys.executable, "-m", "mbrl_hdp", *words]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120, check=False
    )


def test_train_shows_its_configuration_from_any_directory(tmp_path):
    done = run("train", "--cfg", "job", "prior=dirichlet", "seed=3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "seed: 3" in done.stdout
    assert "name: dirichlet" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_tab_completion(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def said(*words, line="", point="0"):
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setenv("COMP_POINT", point)
        assert main(words) == 0
        return capsys.readouterr().out

    assert "train" in said("-sc", "query=bash", line="mbrl-hdp tr", point="11").split()
    second = run("-sc", "query=bash", cwd=tmp_path, COMP_LINE="mbrl-hdp train prior=", COMP_POINT="21")
    assert {"prior=hdp", "prior=dirichlet", "prior=mle"} <= set(second.stdout.split()), second.stderr
    assert "complete" in said("train", "-sc", "install=bash")
