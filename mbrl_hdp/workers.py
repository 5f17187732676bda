"""Calls side by side: in this process, in processes of this machine or on a Ray cluster, behind one interface.

A worker that dies (killed, out of memory, its machine gone) costs one attempt of what it was doing, nothing else.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from mbrl_hdp.errors import ConfigError, MbrlHdpError

LOCAL, RAY = "local", "ray"
PLACES = (LOCAL, RAY)
# Attempts of a call whose workers die; after that the call itself is what kills them.
_ATTEMPTS = 3
_WATCH_S = 2.0
_RAY_ADVICE = "Ray is not installed: pip install --no-deps -r requirements-ray.lock"

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerError(MbrlHdpError):
    """A call could not be finished because its workers died again and again."""

    exit_code = 1


@runtime_checkable
class Workers(Protocol):
    """Where calls are carried out."""

    @property
    def capacity(self) -> int:
        """Calls that are carried out at the same time."""
        ...

    def submit(self, function: Callable[..., Result], *args: Any) -> Future[Result]:
        """Begin a call."""
        ...

    def is_lost(self, error: BaseException) -> bool:
        """Return whether an error means that the worker died, not that the call failed."""
        ...


# Opens a place where calls are carried out, as `open_workers` does.
OpenWorkers = Callable[[], AbstractContextManager[Workers]]


class ThisProcess:
    """Calls one after the other, here."""

    capacity = 1

    def submit(self, function: Callable[..., Result], *args: Any) -> Future[Result]:
        """Carry a call out at once."""
        future: Future[Result] = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - kept for whoever asks for the result
            future.set_exception(error)
        return future

    def is_lost(self, error: BaseException) -> bool:  # noqa: ARG002 - nobody can be lost here
        """Return False: there is no other process."""
        return False


class LocalProcesses:
    """Processes of this machine; each imports what it needs anew and shares nothing with this one."""

    def __init__(self, jobs: int) -> None:
        self.capacity = jobs
        self._others = set(multiprocessing.active_children())
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        spawn = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.capacity, mp_context=spawn, initializer=_begin_process, initargs=(os.getpid(),))

    def submit(self, function: Callable[..., Result], *args: Any) -> Future[Result]:
        """Begin a call in a free process; where one died, all of its pool are gone and are started anew."""
        try:
            return self._pool.submit(function, *args)
        except BrokenExecutor:
            self._pool = self._new_pool()
            return self._pool.submit(function, *args)

    def is_lost(self, error: BaseException) -> bool:
        """Return whether a process died."""
        return isinstance(error, BrokenExecutor)

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - self._others:
            process.terminate()


def _begin_process(parent: int) -> None:
    """Let a process end quietly on Ctrl-C and when the process that it works for is gone."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class RayCluster:
    """Tasks of a Ray cluster with one core each, in the directory of this process (a folder that all machines see)."""

    def __init__(self) -> None:
        import ray

        self._ray = ray
        self._tasks: list[Any] = []
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            ray.init(include_dashboard=False, log_to_driver=False)

    @property
    def capacity(self) -> int:
        """Cores of the cluster as it is now: machines come and go."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, function: Callable[..., Result], *args: Any) -> Future[Result]:
        """Begin a task; `run_side_by_side` repeats it if its worker dies, so Ray itself must not."""
        task = self._ray.remote(num_cpus=1, max_retries=0)(_call_from)
        self._tasks.append(task.remote(str(Path.cwd()), function, *args))
        future: Future[Result] = self._tasks[-1].future()
        return future

    def is_lost(self, error: BaseException) -> bool:
        """Return whether Ray reports the end of a worker or a machine."""
        failures = self._ray.exceptions
        return isinstance(error, failures.RayError) and not isinstance(error, failures.RayTaskError)

    def close(self) -> None:
        """End what is still under way; leave the cluster, unless somebody else joined it before."""
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        if self._is_ours:
            self._ray.shutdown()


def _call_from(folder: str, function: Callable[..., Result], *args: Any) -> Result:
    os.chdir(folder)
    return function(*args)


def check_place(on: str) -> None:
    """Raise if there is no such place for calls.

    Raises:
        ConfigError: if its name is not known, or Ray is not installed.
    """
    if on not in PLACES:
        raise ConfigError(f"work can be done on {' or '.join(PLACES)}, not on {on!r}")
    if on == RAY and importlib.util.find_spec("ray") is None:
        raise ConfigError(_RAY_ADVICE)


@contextmanager
def open_workers(on: str = LOCAL, jobs: int = 1) -> Iterator[Workers]:
    """Open a place for calls.

    Args:
        on: `local`, or `ray` for the cluster that RAY_ADDRESS names or `ray start` began here, else a new one.
        jobs: processes side by side, where it is local.

    Raises:
        ConfigError: if there is no such place, or Ray is not installed.
    """
    check_place(on)
    if on == LOCAL and jobs == 1:
        yield ThisProcess()
        return
    workers = RayCluster() if on == RAY else LocalProcesses(jobs)
    try:
        yield workers
    finally:
        workers.close()


def run_side_by_side(
    workers: Workers,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    may_start: Callable[[Item], bool] = lambda _: True,
) -> Iterator[tuple[Item, Result]]:
    """Call a function with every item and return items and results as they finish; stop where nothing may start.

    Args:
        workers: who does it.
        function: what is called; where other processes do it, it must be possible to pickle it.
        items: what it is called with, most urgent first.
        may_start: asked before an item is begun; one that may not is left out unless it may later.

    Raises:
        WorkerError: if the workers of one item die again and again.
        Exception: whatever the function raises.
    """
    waiting, attempts = deque(items), Counter[int]()
    running: dict[Future[Result], Item] = {}
    while True:
        while len(running) < workers.capacity:
            item = next((item for item in waiting if may_start(item)), None)
            if item is None:
                break
            waiting.remove(item)
            running[workers.submit(function, item)] = item
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            item, error = running.pop(future), future.exception()
            if error is None:
                yield item, future.result()
            elif not workers.is_lost(error):
                raise getattr(error, "cause", None) or error  # Ray wraps what a task raised
            else:
                attempts[id(item)] += 1
                if attempts[id(item)] >= _ATTEMPTS:
                    raise WorkerError(f"{_ATTEMPTS} workers died at the same work ({error}); is memory short?")
                print(f"a worker died ({type(error).__name__}); its work is begun again", file=sys.stderr, flush=True)
                waiting.appendleft(item)
