"""Settings of the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import numpy, scipy.linalg
from threadpoolctl import threadpool_info
from mbrl_hdp.runtime import RuntimeConfig, configure
before = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
configure(RuntimeConfig(threads=1, tune_malloc=False))
after = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
print(before, after)
"""


def test_threads_reach_libraries_that_are_loaded_already():
    environment = os.environ | {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    command = [sys.executable, "-c", _PROGRAM]
    words = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    before, after = words.strip()[1:-1].split("] [")
    if not before or "1" in before:
        pytest.skip("this BLAS cannot be set to two threads")
    assert set(after.split(", ")) == {"1"}


_ONE_THREAD = """
import torch
from threadpoolctl import threadpool_info
from mbrl_hdp.runtime import RuntimeConfig, configure
from mbrl_hdp.inference.threads import one_thread
torch.set_num_threads(2)
if {is_configured}:
    configure(RuntimeConfig(threads=2, tune_malloc=False))
with one_thread():
    print(torch.get_num_threads(), end=" ")
print(torch.get_num_threads())
"""


@pytest.mark.parametrize(("is_configured", "words"), [(False, "1 2"), (True, "2 2")])
def test_a_fit_takes_one_thread_unless_somebody_said_how_many(is_configured, words):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", _ONE_THREAD.format(is_configured=is_configured)]
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip() == words
