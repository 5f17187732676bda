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
