"""A few attempts of every family of `python -m benchmarks.attack`, which runs them all."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.attack import sandbox
from benchmarks.attack.command_lines import LINES
from benchmarks.attack.data_files import FILES
from benchmarks.attack.exploits import EXPLOITS
from benchmarks.attack.families import FAMILIES
from benchmarks.attack.faults import AGENTS, FAULTS

ROOT = Path(__file__).resolve().parents[2]


FAMILIES_HERE = ("exploits", "damage", "command_lines", "data_files", "faults")


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the small version says, run as a program: the suite's shape checks would be made anew in every fork."""
    command = [sys.executable, "-m", "benchmarks.attack", *FAMILIES_HERE, "--small", "--quiet"]
    command += ["--folder", str(tmp_path_factory.mktemp("attack"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES_HERE)
def test_what_is_attacked_holds(name, said):
    found = re.search(rf"^{name}: (\d+) of (\d+) held", said, re.MULTILINE)
    assert found is not None, said
    num_good, num_attempts = map(int, found.groups())
    assert num_attempts >= 8
    assert num_good == num_attempts, said


def test_the_full_version_is_as_large_as_promised():
    assert len(EXPLOITS) >= 40
    assert len(LINES) >= 100
    assert len(FILES) >= 60
    assert len(FAULTS) >= 8
    assert len(AGENTS) == 4
    assert set(FAMILIES) >= {"exploits", "damage", "command_lines", "data_files", "faults", "kills", "soak"}
    for names in ([e.name for e in EXPLOITS], [words for words, _ in LINES], [f.name for f in FILES]):
        assert len(set(names)) == len(names)


class TestSandbox:
    """The harness itself notices what it is there to notice."""

    def test_exit_code_output_and_files(self, tmp_path):
        before = sandbox.state_of(tmp_path)

        def job():
            print("said")
            (tmp_path / "left").write_text("behind")
            return 7

        outcome = sandbox.run_job(job, tmp_path)
        assert (outcome.code, outcome.out) == (7, "said\n")
        assert sandbox.changes(before, sandbox.state_of(tmp_path)) == ["left"]

    def test_a_traceback_is_not_one_line(self, tmp_path):
        outcome = sandbox.run_job(lambda: 1 // 0, tmp_path)
        assert outcome.code == 1
        assert "ZeroDivisionError" in outcome.err
        assert not outcome.is_one_line

    def test_limits_of_time_and_memory(self, tmp_path):
        def for_ever():
            while True:
                pass

        assert sandbox.run_job(for_ever, tmp_path, limit=0.3).code is None
        assert "MemoryError" in sandbox.run_job(lambda: len(bytearray(64 << 30)), tmp_path).err
