"""The API reference: every name on its pages exists and is documented; with mkdocs installed, the site builds."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mbrl_hdp

ROOT = Path(__file__).resolve().parents[2]
NAMES = [
    name
    for page in sorted((ROOT / "docs" / "api").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)
]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_documented(name):
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        found = getattr(importlib.import_module(module), attribute)
    assert found.__doc__


def test_names_of_the_package_are_there():
    for module, names in mbrl_hdp._MODULES.items():
        for name in names:
            assert {f"mbrl_hdp.{module}", f"mbrl_hdp.{module}.{name}"} & set(NAMES), name


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocstrings", reason="mkdocs is not installed (requirements-docs.lock)")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "api" / "library" / "index.html").read_text()
    assert "max_contexts" in page
    assert "https://fonts" not in page
