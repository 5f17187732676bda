"""Calls side by side: results, order, dead workers. Calls are expressions, since `eval` can be sent to any process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.workers import LocalProcesses, ThisProcess, WorkerError, open_workers, run_side_by_side


def dies_until(path, value, times=1):
    """Return an expression that kills its own process so many times, then is a value."""
    return (
        f"(lambda os, log: (log.write('x'), log.close(), os.path.getsize({str(path)!r}) > {times}"
        f" or os.kill(os.getpid(), {signal.SIGKILL:d})))(__import__('os'), open({str(path)!r}, 'a')) and {value}"
    )


def test_this_process_takes_one_call_after_the_other():
    with open_workers() as workers:
        assert isinstance(workers, ThisProcess)
        assert list(run_side_by_side(workers, eval, ["1+1", "2*3"])) == [("1+1", 2), ("2*3", 6)]
        with pytest.raises(ZeroDivisionError):
            list(run_side_by_side(workers, eval, ["1/0"]))


def test_what_may_not_start_is_left_and_others_go_on():
    allowed = []
    with open_workers() as workers:
        found = run_side_by_side(workers, eval, ["1", "2", "3"], lambda item: item != "2" or "3" in allowed)
        for item, _ in found:
            allowed.append(item)
    assert allowed == ["1", "3", "2"]


def test_the_call_of_a_dead_process_is_begun_again_and_nothing_else_is_lost(tmp_path, capsys):
    calls = [dies_until(tmp_path / "once", "7"), "__import__('os').getpid()", "5"]
    with open_workers(jobs=2) as workers:
        found = dict(run_side_by_side(workers, eval, calls))
    assert found[calls[0]] == 7
    assert found["5"] == 5
    assert found[calls[1]] != os.getpid()
    assert (tmp_path / "once").read_text() == "xx"
    assert "begun again" in capsys.readouterr().err


def test_a_call_that_kills_every_worker_is_named(tmp_path):
    with open_workers(jobs=2) as workers, pytest.raises(WorkerError, match="3 workers died"):
        list(run_side_by_side(workers, eval, [dies_until(tmp_path / "log", "7", times=100)]))
    assert (tmp_path / "log").read_text() == "xxx"


def test_an_error_in_another_process_is_that_error():
    with open_workers(jobs=2) as workers, pytest.raises(ZeroDivisionError):
        list(run_side_by_side(workers, eval, ["1/0"]))


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")  # a process that nobody waited for is dead, too
    return not stat.is_file() or stat.read_text().split()[2] != "Z"


DRIVER = """
import time
from mbrl_hdp.workers import LocalProcesses

if __name__ == "__main__":
    workers = LocalProcesses(1)
    print(workers.submit(eval, "__import__('os').getpid()").result(), flush=True)
    workers.submit(time.sleep, 60)
    time.sleep(60)
"""


def test_processes_end_with_the_one_that_they_work_for(tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    driver = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    worker = int(driver.stdout.readline())
    driver.kill()
    driver.wait()
    driver.stdout.close()
    patience = time.monotonic() + 60
    while is_alive(worker):
        assert time.monotonic() < patience
        time.sleep(0.1)


def test_places_that_there_are_not_are_refused():
    with pytest.raises(ConfigError, match="local or ray"), open_workers("moon"):
        pass
    workers = LocalProcesses(1)
    assert workers.capacity == 1
    workers.close()
