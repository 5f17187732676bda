"""Thread and memory settings, applied in one place and switchable.

Small networks run fastest on one thread, and glibc's default of returning big buffers to the system after every
operation costs torch's MLPs page faults; keeping them is a setting of the C library, not of torch. Both are set by
`configure`, which the command line calls; a program that uses the library keeps its own settings unless it calls it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass

from threadpoolctl import threadpool_limits

from mbrl_hdp.settings import setting

MAX_THREADS = 256
"""More than this is a slip; far more ends the interpreter when its libraries start them."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30


@dataclass
class RuntimeConfig:
    """How much of the machine a process takes."""

    threads: int = setting(1, "threads of torch, BLAS and OpenMP in this process", at_least=1, at_most=MAX_THREADS)
    tune_malloc: bool = setting(True, "let the C library keep freed buffers (glibc only); speeds up small networks")


def configure(config: RuntimeConfig | None = None) -> dict[str, str]:
    """Apply the settings to this process and its children; return what was done, for `doctor` and logs."""
    config = config or RuntimeConfig()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = str(config.threads)
    # The variables reach only libraries that are loaded later: numpy and scipy, with a BLAS each, mostly are already.
    threadpool_limits(config.threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(config.threads)
    return {"threads": str(config.threads), "malloc": _tune_malloc() if config.tune_malloc else "left alone"}


def _tune_malloc() -> str:
    """Make glibc keep big freed blocks; other C libraries are not changed."""
    if not sys.platform.startswith("linux"):
        return "left alone (not Linux)"
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return "left alone (the C library has no mallopt)"
    done = mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES) and mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
    return "keeps freed buffers" if done else "refused by the C library"
