"""Run tests on mutated code quickly: a process that has loaded every other library forks a child for each mutant.

The code under test is a copy of the repository. A test file runs once without a mutant: this checks that it passes (a
test that fails is named and left out), fills the cache of compiled code, and records what each test costs and which
functions it calls. A mutant of a function then runs against the tests that call it, quick ones first, up to a budget; a
test that takes longer than `SLOW` is left out, too.
All times are seconds of CPU, so that a busy machine changes neither the tests chosen nor the limits.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import hashlib
import importlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import pytest

from mbrl_hdp.experiments.code_pieces import hash_of

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("mbrl_hdp", "plugins")
CONFTESTS = tuple(sorted(file.relative_to(ROOT).as_posix() for file in ROOT.glob("tests/**/conftest.py")))
BUDGET = 40.0  # seconds of tests for one mutant
SLOW = 15.0  # seconds of one test, its fixtures and compilation aside
_UNKNOWN_SECONDS = 30.0  # of a test that no survey has timed
_NOT_COPIED = (".*", "__pycache__", "outputs", "multirun", "build", "demo", "runs", "dist")
_SETTINGS = {"OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy", "MPLBACKEND": "Agg"}


@dataclass
class Survey:
    """What tests cost and call.

    Attributes:
        seconds: CPU seconds by test.
        callers: tests by function `path::qualified.name`.
        reached: fingerprints of the files that have one of these functions; while they hold, so does the survey.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    callers: dict[str, list[str]] = field(default_factory=dict)
    reached: dict[str, str] = field(default_factory=dict)

    def order(self, function: str) -> list[str]:
        """Return the tests for a mutant of this function, in the order to run them.

        Args:
            function: `path::qualified.name`; one without callers (compiled, or outside of every function) runs against
                all tests.
        """
        found = self.callers.get(function) or list(self.seconds)
        own, every = (Counter(test.split("::")[0] for test in tests) for tests in (found, self.seconds))
        # Where all tests of a file call it, a fixture may do so: tests that call it themselves go first.
        is_shared = {file: own[file] == every[file] for file in own}
        spent, chosen = 0.0, []
        for test in sorted(found, key=lambda test: (is_shared[test.split("::")[0]], self.seconds[test])):
            spent += self.seconds[test]
            if spent > BUDGET and chosen:
                break
            chosen.append(test)
        # Tests of one file stay together within a class of cost: they share what its fixtures prepare.
        return sorted(chosen, key=lambda test: (_cost_class(self.seconds[test]), test))


def _cost_class(seconds: float) -> int:
    return sum(seconds > limit for limit in (0.3, 2.0, 8.0))


@dataclass(frozen=True)
class Outcome:
    """What a run ended with: `status` is survived (all tests passed), killed (`killer` failed) or timeout."""

    status: str
    seconds: float
    killer: str
    log: str


class Recorder:
    """A pytest plugin that writes the survey."""

    def __init__(self, folder: Path) -> None:
        self.folder = f"{folder}{os.sep}"
        self.survey = Survey()
        self._called: set[CodeType] = set()
        self._prepared: dict[str, set[CodeType]] = {}  # by test file, what its fixtures called: shared by all its tests
        self._by_test: dict[str, set[CodeType]] = {}
        self._failed: set[str] = set()

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> None:
        self._called.add(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Time a test."""
        started = cpu_seconds()
        result = yield
        self.survey.seconds[item.nodeid] = cpu_seconds() - started
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Record what the fixtures of a file call."""
        return (yield from self._record(self._prepared.setdefault(item.nodeid.split("::")[0], set())))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Record what a test calls; end it if it is slow."""
        signal.signal(signal.SIGVTALRM, _end_slow_test)
        signal.setitimer(signal.ITIMER_VIRTUAL, SLOW)
        try:
            return (yield from self._record(self._by_test.setdefault(item.nodeid, set())))
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)

    def _record(self, into: set[CodeType]) -> Iterator[None]:
        self._called = into
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what fails without a mutant."""
        if report.failed:
            self._failed.add(report.nodeid)

    def finish(self) -> Survey:
        """Return the survey; tests that failed are left out, because they would kill every mutant."""
        for test in self._failed:
            print(f"LEFT OUT {test}")
            self.survey.seconds.pop(test, None)
            self._by_test.pop(test, None)
        for test, called in self._by_test.items():
            codes = called | self._prepared.get(test.split("::")[0], set())
            ours = (code for code in codes if code.co_filename.startswith(self.folder))
            for function in {f"{code.co_filename.removeprefix(self.folder)}::{code.co_qualname}" for code in ours}:
                self.survey.callers.setdefault(function, []).append(test)
        return self.survey


def _end_slow_test(_signal: int, _frame: FrameType | None) -> None:
    locks = sys.modules.get("numba.core.compiler_lock")
    if locks is not None and locks.global_compiler_lock.is_locked():
        signal.setitimer(signal.ITIMER_VIRTUAL, 1.0)  # a compilation that is broken off would be tried again
        return
    raise TimeoutError(f"more than {SLOW:.0f} s")


class Selected:
    """A pytest plugin that runs these tests in this order."""

    def __init__(self, tests: list[str]) -> None:
        self.order = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep and sort."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda item: self.order[item.nodeid]
        )


class Workshop:
    """A copy of the repository that tests and mutants run in.

    Args:
        folder: where the copy, the cache of compiled code and the surveys live. A survey is used again as long as its
            test file is the same. Where product files that its tests call changed since, it is old: good enough to
            choose tests that may kill a mutant (`is_fair` runs the one that did without it), not to say that none does
            (`refresh`).
        tests: files and folders of tests.
    """

    def __init__(self, folder: Path, tests: tuple[str, ...]) -> None:
        self.copy, self.cache, self.surveys = folder / "copy", folder / "numba", folder / "surveys"
        self.num_runs = 0
        self.fair: dict[str, bool] = {}
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(ROOT, self.copy, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        self.cache.mkdir(exist_ok=True)
        self.surveys.mkdir(exist_ok=True)
        self._drop_old_kernels(folder / "product.json")
        os.environ.update(_SETTINGS)
        os.environ["PYTHONPATH"] = os.pathsep.join((str(self.copy), str(self.copy / "plugins")))
        self._load_libraries(tests)
        self.known: dict[str, Survey] = {}
        self.old: set[str] = set()

    def tests_of(self, function: str, places: tuple[str, ...]) -> list[str]:
        """Return the tests for a mutant of a function, of those in these files and folders."""
        joined = Survey()
        for file in _test_files(places, self.copy):
            self._survey(file)
            joined.seconds |= self.known[file].seconds
            for caller, tests in self.known[file].callers.items():
                joined.callers.setdefault(caller, []).extend(tests)
        return joined.order(function)

    def _survey(self, file: str) -> None:
        if file in self.known:
            return
        place = self.surveys / f"{Path(file).stem}-{_fingerprint((file, *CONFTESTS), self.copy)}.json"
        if place.exists() and not self._holds(place):
            self.old.add(file)
        if not place.exists():
            print(f"running {file} without a mutant ...", flush=True)
            result = self._fork(lambda: self._record(file, place), self.cache, 3600.0)
            if result.status != "survived":
                raise SystemExit(f"{file} fails without any mutant; mend it first:\n{result.log[-3000:]}")
            for test in re.findall(r"^LEFT OUT (.+)$", result.log, re.MULTILINE):
                print(f"left out, because it fails or is slow without a mutant: {test}", flush=True)
            self.fair |= {test.partition("[")[0]: True for test in json.loads(place.read_text())["seconds"]}
        self.known[file] = Survey(**json.loads(place.read_text()))

    def refresh(self, places: tuple[str, ...]) -> bool:
        """Drop the old surveys of these files and folders; return whether there were any."""
        found = self.old & {*_test_files(places, self.copy)}
        for file in found:
            self._forget(file)
        return bool(found)

    def _forget(self, file: str) -> None:
        self.known.pop(file, None)
        self.old.discard(file)
        for place in self.surveys.glob(f"{Path(file).stem}-*.json"):
            place.unlink()

    def has_test(self, test: str, places: tuple[str, ...]) -> bool:
        """Return whether a test of an earlier run still exists in one of these files and folders."""
        file, *names = test.partition("[")[0].split("::")
        if not names or file not in _test_files(places, self.copy):
            return False
        return f"def {names[-1]}(" in (self.copy / file).read_text()

    def _holds(self, place: Path) -> bool:
        """Return whether the files that a stored survey's tests call are the same."""
        reached = json.loads(place.read_text()).get("reached", {})
        return bool(reached) and reached == _hashes(list(reached), self.copy)

    def is_fair(self, killer: str) -> bool:
        """Return whether the test that a mutant died of passes without it; if not, its file is surveyed anew.

        A test of a survey of this run has passed; any other runs once more.
        """
        test = killer.partition("[")[0]
        file = test.partition("::")[0]
        if test and test not in self.fair:
            work = lambda: int(pytest.main(["-q", test]))  # noqa: E731
            self.fair[test] = self._fork(work, self.cache, 3600.0).status == "survived"
            if not self.fair[test]:
                self._forget(file)
        return self.fair.get(test, True)

    def _drop_old_kernels(self, mark: Path) -> None:
        """Drop compiled code that a changed file has a part in; the product's fingerprints of last time are in mark."""
        old = json.loads(mark.read_text()) if mark.exists() else {}
        new = _hashes(_product_files(), ROOT)
        changed = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
        cold = {Path(kernel).stem for kernel in kernel_files() if imported_files(kernel) & changed}
        for file in self.cache.rglob("*.nb?"):
            if file.name.split(".")[0] in cold:
                file.unlink()
        mark.write_text(json.dumps(new))

    def _record(self, file: str, place: Path) -> int:
        recorder = Recorder(self.copy)
        code = pytest.main(["-q", file], plugins=[recorder])
        survey = recorder.finish()
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not survey.seconds:
            return 1
        files = sorted({function.split("::")[0] for function in survey.callers})
        # Templates of pages are compiled under their own names; they are no Python.
        ours = [file for file in files if file.startswith(PRODUCT) and file.endswith(".py")]
        survey.reached = _hashes(ours, self.copy)
        place.write_text(json.dumps(vars(survey)))
        return 0

    def _load_libraries(self, tests: tuple[str, ...]) -> None:
        """Import what the tests import, except our own packages; a child finds out what that is."""
        listing = self.copy / "libraries.json"
        result = self._fork(lambda: _list_libraries(list(tests), listing), self.cache, 3600.0)
        if result.status != "survived":
            raise SystemExit(f"the tests cannot be collected; mend them first:\n{result.log[-3000:]}")
        for name in json.loads(listing.read_text()):
            importlib.import_module(name)
        sys.modules["torch"].set_num_threads(1)
        gc.collect()
        gc.freeze()

    def outcome(self, path: str, changed: str, tests: list[str]) -> Outcome:
        """Run tests on a changed file."""
        file = self.copy / path
        code, times = file.read_text(), file.stat()
        seconds = {test: time for survey in self.known.values() for test, time in survey.seconds.items()}
        limit = 20.0 + 4.0 * sum(seconds.get(test, _UNKNOWN_SECONDS) for test in tests)
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        command = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:warnings", *files]
        self.num_runs += 1
        try:
            file.write_text(changed)
            os.utime(file, (self.num_runs, self.num_runs))  # a time of its own: no cache takes it for another mutant
            with tempfile.TemporaryDirectory(prefix="numba-", dir=self.copy.parent) as fresh:
                cache = self._cache_without(path, Path(fresh))
                work = lambda: int(pytest.main(command, plugins=[Selected(tests)]))  # noqa: E731
                return self._fork(work, cache, limit)
        finally:
            file.write_text(code)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _cache_without(self, path: str, fresh: Path) -> Path:
        """Return a cache without the kernels that the file may have a part in; numba knows a kernel's own file only."""
        cold = {Path(kernel).stem for kernel in kernel_files() if path in imported_files(kernel)}
        if not cold:
            return self.cache
        for file in self.cache.rglob("*.nb?"):
            if file.name.split(".")[0] not in cold:
                place = fresh / file.relative_to(self.cache)
                place.parent.mkdir(exist_ok=True)
                os.link(file, place)
        return fresh

    def _fork(self, work: Callable[[], int], cache: Path, limit: float) -> Outcome:
        """Run `work` in a child."""
        with tempfile.TemporaryFile("w+") as log:
            before = cpu_seconds()
            child = os.fork()
            if child == 0:
                _become_child(self.copy, cache, limit, log.fileno())
                code = 1
                try:
                    code = work()
                except BaseException:  # noqa: BLE001 - it goes to the log of the run
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            status = _wait(child, 20.0 * limit)
            log.seek(0)
            text = log.read()
            failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
            killer = failed[1] if failed and status == "killed" else ""
            return Outcome(status, cpu_seconds() - before, killer, text)


def _become_child(copy: Path, cache: Path, limit: float, log: int) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 6))
    os.environ["NUMBA_CACHE_DIR"] = str(cache)
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = str(cache)
    for name in [name for name in sys.modules if _is_ours(name)]:
        del sys.modules[name]
    sys.path[:] = [str(copy), str(copy / "plugins"), *(place for place in sys.path if place not in ("", str(ROOT)))]
    os.chdir(copy)


def _wait(child: int, limit: float) -> str:
    """Wait for a child, at most so many seconds of the clock; what it started ends with it."""
    deadline = time.monotonic() + limit
    done, code = 0, 0
    try:
        while not done and time.monotonic() < deadline:
            time.sleep(0.02)
            done, code = os.waitpid(child, os.WNOHANG)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    if not done:
        os.waitpid(child, 0)
        return "timeout"
    if os.WIFSIGNALED(code):
        return "timeout" if os.WTERMSIG(code) in (signal.SIGXCPU, signal.SIGKILL) else "killed"
    return "survived" if os.WEXITSTATUS(code) == 0 else "killed"


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that ended."""
    return sum(os.times()[:4])


def _list_libraries(tests: list[str], listing: Path) -> int:
    before = set(sys.modules)
    code = pytest.main(["-q", "--collect-only", *tests])
    names = [name for name in sys.modules if name not in before and not _is_ours(name)]
    listing.write_text(json.dumps([name for name in names if _can_be_imported(name)]))
    return int(code)


def _can_be_imported(name: str) -> bool:
    module = sys.modules[name]
    spec = getattr(module, "__spec__", None)
    return getattr(spec, "name", None) == name and "tests" not in name.split(".") and "conftest" not in name


def _is_ours(name: str) -> bool:
    return name.startswith(("mbrl_hdp", "benchmarks"))


def function_at(path: str, line: int) -> tuple[str, int]:
    """Return the innermost function around a line as `path::qualified.name`, and its first line.

    Outside of every function the name is that of the class or empty, which no test is recorded to call.
    """
    node = _tree(path)
    name, first, inner = "", 1, _around(node, line)
    while inner is not None:
        node = inner
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            name += f"{node.name}{'.<locals>.' if isinstance(node, ast.FunctionDef) else '.'}"
        inner = _around(node, line)
    return f"{path}::{name.removesuffix('.<locals>.')}", first


@functools.cache
def _tree(path: str) -> ast.AST:
    return ast.parse((ROOT / path).read_text())


def _around(node: ast.AST, line: int) -> ast.AST | None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            decorators = child.decorator_list if isinstance(child, ast.FunctionDef | ast.ClassDef) else []
            first = min([child.lineno, *(decorator.lineno for decorator in decorators)])
            if first <= line <= (child.end_lineno or first):
                return child
    return None


def kernel_files() -> list[str]:
    """Return the files that compile functions."""
    return [file for file in _product_files() if "import compiled\n" in (ROOT / file).read_text()]


def imported_files(path: str) -> set[str]:
    """Return a file and those of our packages that it imports functions or constants from, directly or not."""
    found: set[str] = set()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and _is_ours(node.module):
                names = [alias.name for alias in node.names]
                if any(name.isupper() or name == name.lower() for name in names):  # a class is nothing for a kernel
                    waiting += _files_of(node.module)
    return found


def _files_of(module: str) -> list[str]:
    place = module.replace(".", "/")
    names = [f"{folder}{place}{end}" for folder in ("", "plugins/") for end in (".py", "/__init__.py")]
    return [name for name in names if (ROOT / name).is_file()]


def _test_files(tests: tuple[str, ...], root: Path) -> list[str]:
    places = [root / place for place in tests]
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.glob("test_*.py")))]
    return [file.relative_to(root).as_posix() for file in files]


def _product_files() -> list[str]:
    return [file.relative_to(ROOT).as_posix() for package in PRODUCT for file in sorted((ROOT / package).rglob("*.py"))]


def _hashes(files: list[str], root: Path) -> dict[str, str]:
    """Return fingerprints of files without their prose, by path; a file that is gone has an empty one."""
    return {file: hash_of((root / file).read_text())[:12] if (root / file).exists() else "" for file in files}


def _fingerprint(places: tuple[str, ...], root: Path) -> str:
    digest = hashlib.sha256()
    for place in places:
        for file in [root / place] if place.endswith(".py") else sorted((root / place).rglob("*.py")):
            digest.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:12]
