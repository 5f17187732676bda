"""From a wheel, in a new environment, from another directory: what a pip user gets."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command, cwd, **environment):
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **environment},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(project: Path, out: Path) -> Path:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, project, cwd=project)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def new_environment(tmp_path_factory, wheel):
    """A new environment with the wheel and the example plugin; the lock's packages are borrowed from this one."""
    folder = tmp_path_factory.mktemp("new")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=folder).strip())
    example = build_wheel(ROOT / "examples" / "plugin", tmp_path_factory.mktemp("example"))
    for file in (wheel, example):
        run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, file, cwd=folder)
    borrowed = folder / "borrowed"
    borrowed.mkdir()
    here = Path(sysconfig.get_paths()["purelib"])
    for entry in here.iterdir():  # everything but our own editable install
        if not re.match(r"(_?mbrl_hdp|__editable__|_editable)", entry.name):
            (borrowed / entry.name).symlink_to(entry)
    (site / "borrowed.pth").write_text(str(borrowed))
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    return python, elsewhere


def test_the_wheel_holds_configs_lock_and_plugins(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"mbrl_hdp/conf/main.yaml", "mbrl_hdp/requirements.lock", "mbrl_hdp/py.typed"} <= names
    assert {
        f"mbrl_hdp_{kind}/__init__.py"
        for kind in ("priors", "distillers", "dynamics", "agents", "planners", "baselines")
    } <= names
    templates = {f"mbrl_hdp/report/templates/{path.name}" for path in (ROOT / "mbrl_hdp/report/templates").iterdir()}
    assert {"mbrl_hdp/report/templates/page.html", "mbrl_hdp/report/templates/page.js"} <= templates <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "conf/"))]


def test_it_is_really_the_wheel(new_environment):
    python, elsewhere = new_environment
    path = run(python, "-c", "import mbrl_hdp; print(mbrl_hdp.__file__)", cwd=elsewhere).strip()
    assert str(elsewhere.parent) in path


def test_doctor_and_train_from_another_directory(new_environment):
    python, elsewhere = new_environment
    findings = json.loads(run(python, "-m", "mbrl_hdp", "doctor", "--json", cwd=elsewhere))
    assert {finding["what"]: finding["status"] for finding in findings}["torch"] == "ok"
    config = run(python, "-m", "mbrl_hdp", "train", "--cfg", "job", "env=cartpole_hard", cwd=elsewhere)
    assert "name: cartpole_hard" in config
    assert list(elsewhere.iterdir()) == []


def test_the_example_plugin_is_found_and_is_a_hydra_option(new_environment):
    python, elsewhere = new_environment
    listing = json.loads(run(python, "-m", "mbrl_hdp", "plugins", "--json", cwd=elsewhere))
    assert listing["problems"] == []
    ours = [row for row in listing["plugins"] if row["package"] == "mbrl-hdp-example-plugin"]
    assert {row["kind"] for row in ours} == {"prior", "distillation", "baseline"}
    options = {row["kind"]: row["name"] for row in ours}
    overrides = [f"prior={options['prior']}", f"distillation={options['distillation']}", f"agent={options['baseline']}"]
    config = run(python, "-m", "mbrl_hdp", "train", "--cfg", "job", *overrides, cwd=elsewhere)
    for name in options.values():
        assert f"name: {name}" in config


def test_no_file_names_an_index_a_host_or_a_local_path():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    wrong = re.compile(r"--index-url|--extra-index|--find-links|file:///|(?<![\w.])/(?:root|opt|home)/\w")
    for name in tracked:
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".txt", ".in", ".lock", ".yaml", ""} and path.is_file():
            text = path.read_text(errors="ignore")
            assert not wrong.search(text) or path == Path(__file__).resolve(), name
