"""Mutation testing: change one operator, number or branch of the mathematical rooms and see whether a test notices.

    python -m benchmarks.mutants [--count 240] [--seed 0] [--only TEXT] [--page]

The mutants are those of Cosmic Ray, one drawn for each drawn position in the code, the same ones for the same seed and
code. Every mutant runs in a copy of the repository against the tests nearest to its file. Results go to
docs/results/mutants.jsonl as they come, so a run goes on where it was stopped; a result counts as long as its file and
the tests are the same. docs/results/mutants.md is written from them and from docs/results/mutants_judged.json, in which
survivors are judged one by one (`--page` only writes it).
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results/mutants.jsonl"
JUDGED = ROOT / "docs/results/mutants_judged.json"
PAGE = ROOT / "docs/results/mutants.md"
ROOMS = (
    "mbrl_hdp/probability",
    "mbrl_hdp/belief",
    "mbrl_hdp/distil",
    "mbrl_hdp/inference",
    "mbrl_hdp/experiments/loop.py",
)
WANTED = 0.95
# Nearest tests by the beginning of a path, the first match counts; quick files first: the first failure is enough.
NEAREST = (
    ("mbrl_hdp/probability/markov", ("tests/probability/test_markov.py",)),
    ("mbrl_hdp/probability/sticks", ("tests/probability/test_sticks.py",)),
    ("mbrl_hdp/probability", ("tests/probability/test_messages.py", "tests/probability/test_message_peers.py")),
    ("mbrl_hdp/belief", ("tests/belief",)),
    ("mbrl_hdp/distil", ("tests/distil", "tests/plugins/test_distillers.py")),
    ("mbrl_hdp/experiments/loop", ("tests/experiments/test_loop.py",)),
    ("mbrl_hdp/inference/head", ("tests/inference/test_heads.py", "tests/plugins/test_dynamics.py")),
    ("mbrl_hdp/inference/dynamics", ("tests/plugins/test_dynamics.py",)),
    ("mbrl_hdp/inference/elbo", ("tests/inference/test_elbo.py",)),
    ("mbrl_hdp/inference/prior", ("tests/plugins/test_priors.py", "tests/inference/test_elbo.py")),
    ("mbrl_hdp/inference/auto_guide", ("tests/plugins/test_priors.py",)),
    ("mbrl_hdp/inference/devices", ("tests/inference/test_device.py",)),
    ("mbrl_hdp/inference/precision", ("tests/inference/test_bad_data.py",)),
    ("mbrl_hdp/inference/row_density", ("tests/inference/test_row_density.py",)),
    ("mbrl_hdp/inference/scoring", ("tests/inference/test_scoring.py",)),
    ("mbrl_hdp/inference/slim", ("tests/inference/test_slim.py",)),
    ("mbrl_hdp/inference/stopping", ("tests/inference/test_early_stopping.py",)),
    ("mbrl_hdp/inference/progress", ("tests/inference/test_early_stopping.py",)),
    ("mbrl_hdp/inference/saving", ("tests/inference/test_context_model.py",)),
    ("mbrl_hdp/inference/model", ("tests/inference/test_context_model.py", "tests/inference/test_online.py")),
    ("mbrl_hdp/inference/online", ("tests/inference/test_online.py", "tests/inference/test_context_model.py")),
    (
        "mbrl_hdp/inference",
        (
            "tests/inference/test_trainer.py",
            "tests/inference/test_recipes.py",
            "tests/inference/test_early_stopping.py",
            "tests/inference/test_fit.py",
        ),
    ),
)


@dataclass(frozen=True)
class Mutant:
    """One change: `operator` at its `occurrence` in a file, and what it does to the line."""

    path: str
    operator: str
    occurrence: int
    line: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """A name that survives edits elsewhere in the file."""
        text = f"{self.path}|{self.operator}|{self.before}|{self.after}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def nearest_tests(path: str) -> tuple[str, ...]:
    """Return the tests that a mutant of this file runs against."""
    return next(tests for start, tests in NEAREST if path.startswith(start))


def sources() -> list[str]:
    """Return the files that are mutated."""
    found = [
        file
        for room in ROOMS
        for file in ([ROOT / room] if room.endswith(".py") else sorted((ROOT / room).glob("*.py")))
        if file.name != "__init__.py"
    ]
    return [file.relative_to(ROOT).as_posix() for file in found]


def sample(count: int, seed: int, only: str = "") -> Iterator[Mutant]:
    """Draw positions from all files, and one mutant for each; changes of annotations and texts do not count."""
    places: dict[tuple[str, int, int], list[tuple[str, int]]] = {}
    codes = {path: (ROOT / path).read_text() for path in sources()}
    for path, code in codes.items():
        nodes = list(ast_nodes(get_ast(code)))
        for name in operator_names():
            kind = get_operator(name)
            if kind.arguments():
                continue
            spots = [start for node in nodes for start, _ in kind().mutation_positions(node)]
            for occurrence, (line, column) in enumerate(spots):
                places.setdefault((path, line, column), []).append((name, occurrence))
    order = sorted(places)
    rng = random.Random(seed)
    rng.shuffle(order)
    num_drawn = 0
    for path, line, column in order:
        operator, occurrence = rng.choice(places[path, line, column])
        mutant = _mutant(path, codes[path], operator, occurrence)
        if mutant is None or only not in path:
            continue
        yield mutant
        num_drawn += 1
        if num_drawn == count:
            return


def _mutant(path: str, code: str, operator: str, occurrence: int) -> Mutant | None:
    changed = mutate_code(code, get_operator(operator)(), occurrence)
    if changed is None or _meaning(changed) in (None, _meaning(code)):
        return None
    lines = list(difflib.ndiff(code.splitlines(), changed.splitlines()))
    before = " ".join(line[2:].strip() for line in lines if line.startswith("- "))
    after = " ".join(line[2:].strip() for line in lines if line.startswith("+ "))
    pairs = zip(code.splitlines(), changed.splitlines(), strict=False)
    line = next((number for number, (one, two) in enumerate(pairs, 1) if one != two), 0)
    return Mutant(path, operator, occurrence, line, before, after)


def _meaning(code: str) -> str | None:
    """Return the program without annotations and texts of messages; None where it is no Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = None if isinstance(node, ast.arg) else ast.Constant(0)
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and "Callable" in ast.dump(node.value)
        ):
            node.value = ast.Constant(0)  # a type's name
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


class Copy:
    """A copy of the repository that mutants run in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignore = shutil.ignore_patterns("__pycache__", ".venv", ".git", "outputs", "multirun", ".mypy_cache", "demo")
        shutil.copytree(ROOT, folder, ignore=ignore, dirs_exist_ok=True)
        self.seconds: dict[tuple[str, ...], float] = {}

    def outcome(self, mutant: Mutant) -> tuple[str, float]:
        """Run the nearest tests on a mutant; killed, timeout or survived, and the seconds it took."""
        tests = nearest_tests(mutant.path)
        if tests not in self.seconds:
            status, self.seconds[tests] = self._run(tests, 3600.0, self.folder / ".numba")
            if status != "survived":
                raise SystemExit(f"{' '.join(tests)} fail without any mutant; mend them first")
        file = self.folder / mutant.path
        code, times = file.read_text(), file.stat()
        changed = mutate_code(code, get_operator(mutant.operator)(), mutant.occurrence)
        # Numba's cache knows a function's own file only, so a changed kernel compiles everything anew.
        is_kernel = "@compiled" in code or "njit" in code
        try:
            file.write_text(str(changed))
            with tempfile.TemporaryDirectory() as fresh:
                cache = Path(fresh) if is_kernel else self.folder / ".numba"
                return self._run(tests, 60.0 + 10.0 * self.seconds[tests], cache)
        finally:
            file.write_text(code)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _run(self, tests: tuple[str, ...], limit: float, cache: Path) -> tuple[str, float]:
        paths = os.pathsep.join(map(str, (self.folder, self.folder / "plugins")))
        env = {
            **os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(cache),
            "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", *tests]
        started = time.perf_counter()
        try:
            done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, timeout=limit, check=False)
            status = "survived" if done.returncode == 0 else "killed"
        except subprocess.TimeoutExpired:
            status = "timeout"
        return status, time.perf_counter() - started


def stamp(path: str) -> str:
    """Return a fingerprint of a file and its tests."""
    digest = hashlib.sha256((ROOT / path).read_bytes())
    for start in nearest_tests(path):
        place = ROOT / start
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def finished() -> dict[str, dict[str, object]]:
    """Return the results that still count, by mutant."""
    if not RESULTS.exists():
        return {}
    records = [json.loads(line) for line in RESULTS.read_text().splitlines() if line]
    return {record["name"]: record for record in records if record["stamp"] == stamp(record["path"])}


def run(mutants: list[Mutant]) -> None:
    """Run what has no result yet."""
    known = finished()
    todo = [mutant for mutant in mutants if mutant.name not in known]
    if not todo:
        return
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder))
        for number, mutant in enumerate(todo, 1):
            status, seconds = copy.outcome(mutant)
            record = {
                "name": mutant.name, **asdict(mutant), "outcome": status, "seconds": round(seconds, 1),
                "stamp": stamp(mutant.path),
            }  # fmt: skip
            with RESULTS.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(f"{number}/{len(todo)} {status} {mutant.path}:{mutant.line} {mutant.after}", flush=True)


def page(mutants: list[Mutant], command: str) -> str:
    """Return the page of a sample: the score and every survivor with its judgement."""
    known = finished()
    judged = json.loads(JUDGED.read_text()) if JUDGED.exists() else {}
    done = [known[mutant.name] | {"line": mutant.line} for mutant in mutants if mutant.name in known]
    survivors = [record for record in done if record["outcome"] == "survived"]
    equivalent = [record for record in survivors if judged.get(str(record["name"]), "").startswith("equivalent")]
    effective = len(done) - len(equivalent)
    dead = len(done) - len(survivors)
    score = dead / effective if effective else 0.0
    verdict = "met" if score >= WANTED and len(done) == len(mutants) >= 200 else "not met"
    rows = [
        f"| {record['path']}:{record['line']} | `{_cell(record['before'])}` | `{_cell(record['after'])}` | "
        f"{judged.get(str(record['name']), 'not judged yet')} (`{record['name']}`) |"
        for record in survivors
    ]
    lines = [
        "# Mutants: what the tests notice",
        "",
        f"Written by `{command}` from `mutants.jsonl` and the judgements in `mutants_judged.json`; do not edit.",
        "",
        f"{len(done)} of {len(mutants)} drawn mutants were run, each against the tests nearest to its file: {dead} "
        f"died, {len(survivors)} survived, of which {len(equivalent)} change no behaviour.",
        "",
        "| asked for | found | gate |",
        "| --- | --- | --- |",
        f"| of at least 200 mutants, 95 % of those that change behaviour die | {100 * score:.1f} % of {effective} | "
        f"{verdict} |",
        "",
        "## Survivors",
        "",
        "| where | code | mutant | judgement |",
        "| --- | --- | --- | --- |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|")


def main() -> None:
    """Draw, run and write the page."""
    parser = argparse.ArgumentParser(description="mutation testing of the mathematical rooms")
    parser.add_argument("--count", type=int, default=240, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--only", default="", help="only files whose path has this text; writes no page")
    parser.add_argument("--page", action="store_true", help="run nothing, only write the page")
    options = parser.parse_args()
    mutants = list(sample(options.count, options.seed, options.only))
    if not options.page:
        run(mutants)
    if not options.only:
        PAGE.write_text(page(mutants, f"make mutants MUTANTS='--count {options.count} --seed {options.seed}'"))


if __name__ == "__main__":
    main()
