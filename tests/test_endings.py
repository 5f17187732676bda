"""How the program ends: one line and an exit code for signals, full disks and everything a user may cause."""

import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import mbrl_hdp.cli as cli
from mbrl_hdp.endings import Signals, ending, noted_signals
from mbrl_hdp.errors import ConfigError, DivergenceError, StepError, WriteError


def lines_of(error, signals=None):
    found = ending(error, signals or Signals())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (ConfigError("seed must be at least 0"), "seed must be at least 0", 2),
        (StepError("step 3: nan"), "step 3: nan", 1),
        (DivergenceError("the loss is nan"), "the loss is nan", 1),
        (WriteError("cannot write x"), "cannot write x", 1),
        (OSError(errno.ENOSPC, "No space left on device", "x.csv"), "no space left to write: x.csv", 1),
        (OSError(errno.EROFS, "Read-only file system", "x.csv"), "Read-only file system: x.csv", 1),
        (MemoryError(), "out of memory; ask for less (max_contexts, batch sizes, less data)", 1),
        (KeyboardInterrupt(), "interrupted (Ctrl-C)", 130),
    ],
)
def test_every_cause_has_its_line_and_code(error, line, code):
    assert lines_of(error) == (line, code)


def test_a_bug_of_ours_keeps_its_traceback():
    assert ending(ZeroDivisionError("a bug"), Signals()) is None


def test_notes_say_what_to_do_and_control_characters_are_shown():
    error = ConfigError("bad\nname \x1b[31mred " + "x" * 5000)
    error.add_note("go on with resume=RUN")
    line, _ = lines_of(error)
    assert "\n" not in line
    assert "\x1b" not in line
    assert r"\x1b[31mred" in line
    assert len(line) < 1200
    assert line.endswith("go on with resume=RUN")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_inside_a_kernel_is_still_that_signal(number):
    """Compiled code replaces KeyboardInterrupt by a SystemError of its own."""

    def kernel():
        try:
            os.kill(os.getpid(), number)
            time.sleep(1.0)
        except KeyboardInterrupt as error:
            raise SystemError("returned a result with an exception set") from error

    before = signal.getsignal(signal.SIGINT)  # ignored where the test runner is a background job
    with noted_signals() as signals:
        assert signal.getsignal(signal.SIGINT) is not before
        with pytest.raises(SystemError) as caught:
            kernel()
        assert lines_of(caught.value, signals)[1] == 128 + number
    assert signal.getsignal(signal.SIGINT) is before


# The real program, but for a file that says that it is in the middle of the gradient steps.
FIT = """
import sys
from pathlib import Path
from mbrl_hdp.cli import main
from mbrl_hdp.inference.trainer import Trainer

mark, real, calls = Path(sys.argv[1]), Trainer._descend, []

def descend(*args):
    calls.append(1)
    if len(calls) == 20:
        mark.touch()
    return real(*args)

Trainer._descend = descend
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "SIGTERM")])
def test_a_fit_that_is_ended_says_one_line(number, word, tmp_path):
    folder, mark = tmp_path / "work", tmp_path / "mark"
    folder.mkdir()
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", obs=rng.normal(size=(30, 60, 3)).cumsum(1))
    words = ["fit", "data.npz", "max_contexts=5", "fit.start=random", "fit.num_steps=100000", "out=out"]
    process = subprocess.Popen(
        [sys.executable, "-c", FIT, str(mark), *words], cwd=folder, text=True, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    until = time.monotonic() + 120.0
    while not mark.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(number)
    text = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number
    assert len(text.strip().splitlines()) == 1, text
    assert word in text
    assert [path.name for path in folder.iterdir()] == ["data.npz"]


def test_output_that_cannot_be_written_is_one_line(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mbrl_hdp", "plugins"], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("mbrl-hdp: no space left to write")
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_an_exception_of_user_code_is_shown_whole_with_debug(monkeypatch):
    def fails(_):
        raise StepError("step 3: the environment failed") from ZeroDivisionError("theirs")

    monkeypatch.setitem(cli._COMMANDS, "doctor", (fails, ""))
    assert cli.main(["doctor"]) == 1
    with pytest.raises(StepError) as caught:
        cli.main(["doctor", "--debug"])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
