"""Mutation testing: change one operator, number or branch of the mathematical rooms and see whether a test notices.

    python -m benchmarks.mutants [--samples core:220:0 search:40:0] [--first N] [--only TEXT] [--page]

The mutants are those of Cosmic Ray, one drawn for each drawn position in the code; changes that no test could notice
(annotations, texts) are never drawn. A sample is drawn once and stored in docs/results/mutants_sample.json: mutants
whose line is gone since are replaced by new draws, all others stay. Each runs against the nearest tests that call the
changed function (see `mutant_runner.py`). Results go to docs/results/mutants.jsonl as they come, so a run goes on where
it was stopped: a death counts as long as the changed function (its prose aside) and the test that failed are the same,
a survival as long as the function and its nearest tests are the same, or only the function if it was judged equivalent;
so after tests were added, only unjudged survivors and holes run again, and after a test was changed its victims, first
of all against that test. docs/results/mutants.md is written from the results and from
docs/results/mutants_judged.json, where survivors are judged by name: `equivalent: why` or `hole: what`. A sample of
another seed (`core:60:1`) says whether the tests hold beyond those that they were written for.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import hashlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from benchmarks.mutant_runner import ROOT, Outcome, Workshop, function_at, kernel_files
from mbrl_hdp.experiments.code_pieces import hash_of

WORKSHOP = ROOT / "build/mutants"
SAMPLES = ROOT / "docs/results/mutants_sample.json"
RESULTS = ROOT / "docs/results/mutants.jsonl"
JUDGED = ROOT / "docs/results/mutants_judged.json"
PAGE = ROOT / "docs/results/mutants.md"
# What a sample is drawn from, by the word that names it.
ROOMS = {
    "core": (
        "mbrl_hdp/probability",
        "mbrl_hdp/belief",
        "mbrl_hdp/distil",
        "mbrl_hdp/inference",
        "mbrl_hdp/experiments/loop.py",
        "mbrl_hdp/experiments/model_update.py",
    ),
    "search": ("mbrl_hdp/inference/search",),
}
WANTED = 0.95
_MOST_LAG = 6
MIN_DRAWN = 200
RECORDS = "tests/inference/test_records.py"
# Nearest tests by the beginning of a path, the first match counts. Of these, a mutant of a function runs against those
# that call it; one of a compiled function, or outside of every function, against all.
NEAREST = (
    ("mbrl_hdp/probability", ("tests/probability",)),
    ("mbrl_hdp/belief", ("tests/belief", "tests/inference/test_online.py", RECORDS)),
    ("mbrl_hdp/distil", ("tests/distil", "tests/plugins/test_distillers.py", RECORDS)),
    ("mbrl_hdp/inference/head", ("tests/inference/test_heads.py", "tests/inference/test_head_kernels.py")),
    ("mbrl_hdp/inference/row_density", ("tests/inference/test_row_density.py", "tests/inference/test_online.py")),
    ("mbrl_hdp/inference/scoring", ("tests/inference/test_scoring.py", RECORDS)),
    ("mbrl_hdp/inference/schedule", ("tests/inference/test_schedule.py", "tests/inference/test_early_stopping.py")),
    (
        "mbrl_hdp/inference/analysis",
        ("tests/inference/test_analysis.py", "tests/inference/test_context_model.py", RECORDS),
    ),
    ("mbrl_hdp/inference/devices", ("tests/inference/test_device.py",)),
    ("mbrl_hdp/inference/auto_guide", ("tests/plugins/test_priors.py",)),
    ("mbrl_hdp/inference/prior", ("tests/plugins/test_priors.py", "tests/inference/test_elbo.py", RECORDS)),
    (
        "mbrl_hdp/inference/dynamics",
        (
            "tests/plugins/test_dynamics.py",
            "tests/control/test_rollout_kernels.py",
            "tests/inference/test_fit.py",
            RECORDS,
        ),
    ),
    (
        "mbrl_hdp/inference/elbo",
        (
            "tests/inference/test_elbo.py",
            "tests/inference/test_trainer.py",
            "tests/inference/test_partly_missing.py",
            RECORDS,
        ),
    ),
    (
        "mbrl_hdp/inference/model",
        (
            "tests/inference/test_context_model.py",
            "tests/inference/test_online.py",
            "tests/inference/test_fit.py",
            RECORDS,
        ),
    ),
    ("mbrl_hdp/inference/saving", ("tests/inference/test_context_model.py",)),
    ("mbrl_hdp/inference/slim", ("tests/inference/test_slim.py",)),
    ("mbrl_hdp/inference/precision", ("tests/inference/test_bad_data.py",)),
    ("mbrl_hdp/inference/search/tails", ("tests/inference/test_heavy_tails.py",)),
    ("mbrl_hdp/inference/search", ("tests/inference/search",)),
    ("mbrl_hdp/inference/alarm", ("tests/inference/test_alarm.py",)),
    ("mbrl_hdp/inference/agreement", ("tests/inference/test_agreement.py",)),
    ("mbrl_hdp/inference/verdict", ("tests/report/test_advice.py",)),
    ("mbrl_hdp/inference/calibration", ("tests/report/test_timeline.py",)),
    (
        "mbrl_hdp/inference/coordinate",
        ("tests/inference/test_coordinate.py", "tests/inference/test_small_choices.py"),
    ),
    (
        "mbrl_hdp/inference/episodes",
        (
            "tests/inference/test_episodes.py",
            "tests/inference/test_partly_missing.py",
            "tests/inference/test_fit.py",
            RECORDS,
        ),
    ),
    (
        "mbrl_hdp/inference/levels",
        ("tests/inference/test_levels.py", "tests/inference/test_revisit.py", RECORDS),
    ),
    ("mbrl_hdp/inference/residuals", ("tests/inference/test_residuals.py",)),
    (
        "mbrl_hdp/inference/residual_split",
        (
            "tests/inference/test_residuals.py",
            "tests/inference/test_revisit.py",
            "tests/inference/test_small_choices.py",
            RECORDS,
        ),
    ),
    (
        "mbrl_hdp/inference/re",
        (
            "tests/inference/test_revisit.py",
            "tests/inference/test_recipes.py",
            "tests/inference/test_small_choices.py",
            RECORDS,
        ),
    ),
    ("mbrl_hdp/inference/starts", ("tests/inference/test_starts.py", RECORDS)),
    ("mbrl_hdp/inference/structure", ("tests/inference/test_starts.py", RECORDS)),
    ("mbrl_hdp/inference/terms", ("tests/plugins/test_sparse.py", "tests/inference/test_starts.py")),
    (
        "mbrl_hdp/inference",
        (
            "tests/inference/test_agreement.py",
            "tests/inference/test_early_stopping.py",
            "tests/inference/test_fit.py",
            "tests/inference/test_fit_parts.py",
            "tests/inference/test_recipes.py",
            "tests/inference/test_schedule.py",
            "tests/inference/test_small_choices.py",
            "tests/inference/test_trainer.py",
            RECORDS,
        ),
    ),
    (
        "mbrl_hdp/experiments",
        (
            "tests/experiments/test_algorithm1.py",
            "tests/experiments/test_loop.py",
            "tests/experiments/test_loop_parts.py",
        ),
    ),
)


@dataclass(frozen=True)
class Mutant:
    """One change: `operator` at its `occurrence` in a file, and what it does to the line `offset` of its function."""

    path: str
    operator: str
    occurrence: int
    line: int
    function: str
    offset: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """A name that survives edits elsewhere in the file."""
        text = f"{self.function}|{self.offset}|{self.operator}|{self.before}|{self.after}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def nearest_tests(path: str) -> tuple[str, ...]:
    """Return the test files and folders that a mutant of this file runs against."""
    return NEAREST[_place(path)][1]


def _place(path: str) -> int:
    return next(place for place, (start, _) in enumerate(NEAREST) if path.startswith(start))


def sources(rooms: str) -> list[str]:
    """Return the files that are mutated in a sample of these rooms."""
    found = [
        file
        for room in ROOMS[rooms]
        for file in ([ROOT / room] if room.endswith(".py") else sorted((ROOT / room).glob("*.py")))
        if file.name != "__init__.py"
    ]
    return [file.relative_to(ROOT).as_posix() for file in found]


@dataclass(frozen=True)
class Draw:
    """Which sample: `count` mutants of some rooms, drawn with a seed."""

    rooms: str
    count: int
    seed: int

    @classmethod
    def read(cls, text: str) -> Draw:
        """Read ROOMS:COUNT:SEED.

        Raises:
            argparse.ArgumentTypeError: if it is anything else.
        """
        rooms, *numbers = text.split(":")
        if rooms not in ROOMS or len(numbers) != 2 or not all(number.isdigit() for number in numbers):
            raise argparse.ArgumentTypeError(f"{text!r} is not ROOMS:COUNT:SEED with ROOMS one of {', '.join(ROOMS)}")
        return cls(rooms, int(numbers[0]), int(numbers[1]))

    def __str__(self) -> str:
        return f"{self.rooms}:{self.count}:{self.seed}"


def sample(draw: Draw) -> Iterator[Mutant]:
    """Draw positions from all files, and one mutant for each; changes of annotations and texts do not count."""
    places: dict[tuple[str, int, int], list[tuple[str, int]]] = {}
    codes = {path: (ROOT / path).read_text() for path in sources(draw.rooms)}
    for path, code in codes.items():
        nodes = _nodes(code)
        for name in operator_names():
            kind = get_operator(name)
            if kind.arguments():
                continue
            spots = [start for node in nodes for start, _ in kind().mutation_positions(node)]
            for occurrence, (line, column) in enumerate(spots):
                places.setdefault((path, line, column), []).append((name, occurrence))
    order = sorted(places)
    rng = random.Random(draw.seed)
    rng.shuffle(order)
    for path, line, column in order:
        operator, occurrence = rng.choice(places[path, line, column])
        mutant = _mutant(path, codes[path], operator, occurrence)
        if mutant is not None:
            yield mutant


def stored_sample(draw: Draw) -> list[Mutant]:
    """Return the sample as it was drawn first, at its places in the present code; what is gone is drawn anew."""
    stored = json.loads(SAMPLES.read_text()) if SAMPLES.exists() else {}
    found = [relocate(Mutant(**fields)) for fields in stored.get(str(draw), [])]
    mutants = {mutant.name: mutant for mutant in found if mutant is not None}
    if len(mutants) < draw.count:
        for mutant in sample(draw):
            mutants.setdefault(mutant.name, mutant)
            if len(mutants) == draw.count:
                break
    stored[str(draw)] = [asdict(mutant) for mutant in mutants.values()]
    SAMPLES.write_text(json.dumps(stored, indent=0) + "\n")
    return list(mutants.values())


def relocate(mutant: Mutant) -> Mutant | None:
    """Return a mutant at its place in the present code, None where its line or function is no longer the same."""
    if not (ROOT / mutant.path).exists():
        return None
    code, kind = (ROOT / mutant.path).read_text(), get_operator(mutant.operator)
    spots = [start for node in _nodes(code) for start, _ in kind().mutation_positions(node)]
    node = _node_of(ast.parse(code), mutant.function)
    if node is None:
        return None
    decorators = getattr(node, "decorator_list", [])
    line = mutant.offset + min([getattr(node, "lineno", 1), *(one.lineno for one in decorators)])
    # The text that differs may begin some lines away from the node that is changed.
    lags = [abs(line - spot) for spot, _ in spots]
    for occurrence in sorted((n for n, lag in enumerate(lags) if lag < _MOST_LAG), key=lags.__getitem__):
        candidate = _mutant(mutant.path, code, mutant.operator, occurrence)
        if candidate is not None and candidate.name == mutant.name:
            return candidate
    return None


@functools.cache
def _nodes(code: str) -> list[Any]:
    return list(ast_nodes(get_ast(code)))


def _mutant(path: str, code: str, operator: str, occurrence: int) -> Mutant | None:
    changed = mutate_code(code, get_operator(operator)(), occurrence)
    if changed is None or _meaning(changed) in (None, _meaning(code)):
        return None
    lines = list(difflib.ndiff(code.splitlines(), changed.splitlines()))
    before = " ".join(line[2:].strip() for line in lines if line.startswith("- "))
    after = " ".join(line[2:].strip() for line in lines if line.startswith("+ "))
    pairs = zip(code.splitlines(), changed.splitlines(), strict=False)
    line = next((number for number, (one, two) in enumerate(pairs, 1) if one != two), 0)
    function, first = function_at(path, line)
    return Mutant(path, operator, occurrence, line, function, line - first, before, after)


@functools.cache
def _meaning(code: str) -> str | None:
    """Return the program without annotations, texts and compilation; None where it is no Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            node.decorator_list = [one for one in node.decorator_list if not _is_neutral(one)]
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = None if isinstance(node, ast.arg) else ast.Constant(0)
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and "Callable" in ast.dump(node.value)
        ):
            node.value = ast.Constant(0)  # a type's name
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            node.exc.args = []  # the text of an error
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("says", "warn"):
            node.args = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def _is_neutral(decorator: ast.expr) -> bool:
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(name, ast.Name) and name.id in ("compiled", "no_type_check", "override")


def source_stamp(path: str, function: str, root: Path = ROOT) -> str:
    """Return a fingerprint of the changed function, class or (outside of both) file without its prose; "" if gone."""
    if not (root / path).exists():
        return ""
    node = _node_of(ast.parse((root / path).read_text()), function)
    return "" if node is None else hash_of(ast.unparse(node))[:12]


def _node_of(node: ast.AST | None, function: str) -> ast.AST | None:
    """Return the function or class `path::qualified.name` of a file; the file itself where there is no name."""
    for name in function.partition("::")[2].replace(".<locals>", "").rstrip(".").split("."):
        if name and node is not None:
            node = next((child for child in ast.walk(node) if getattr(child, "name", None) == name), None)
    return node


def deciders_stamp(path: str, outcome: str, killer: str, root: Path = ROOT) -> str:
    """Return a fingerprint of the tests that decided: the one that failed, or all nearest ones."""
    digest = hashlib.sha256()
    if killer:
        file, *names = killer.partition("[")[0].split("::")
        if (root / file).exists():
            digest.update(_without_other_tests((root / file).read_text(), tuple(names)).encode())
    elif outcome == "survived":
        for place in nearest_tests(path):
            for file in [root / place] if place.endswith(".py") else sorted((root / place).rglob("*.py")):
                digest.update(file.read_bytes() if file.exists() else b"")
    return digest.hexdigest()[:12]


@functools.cache
def _without_other_tests(code: str, names: tuple[str, ...]) -> str:
    """Return a test file without its tests but the one that goes by these names (class, function)."""
    tree = ast.parse(code)

    def keep(body: list[ast.stmt], name: str) -> list[ast.stmt]:
        return [one for one in body if getattr(one, "name", name) == name or not one.name.lower().startswith("test")]

    tree.body = keep(tree.body, names[0] if names else "")
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and len(names) > 1:
            node.body = keep(node.body, names[1])
    return ast.unparse(tree)


def records() -> list[dict[str, Any]]:
    """Return all results, oldest first."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines() if line] if RESULTS.exists() else []


def finished() -> dict[str, dict[str, Any]]:
    """Return the results that still count, by mutant."""
    equivalent = {name for name, text in judgements().items() if text.startswith("equivalent")}
    return {record["name"]: record for record in records() if _counts(record, record["name"] in equivalent)}


def _counts(record: dict[str, Any], is_equivalent: bool) -> bool:
    if record["source"] != source_stamp(record["path"], record["function"]):
        return False
    return is_equivalent or record["tests"] == deciders_stamp(record["path"], record["outcome"], record["killer"])


def judgements() -> dict[str, str]:
    """Return the judgements of survivors, by mutant."""
    return dict(json.loads(JUDGED.read_text())) if JUDGED.exists() else {}


def run(mutants: list[Mutant]) -> None:
    """Run what has no result yet: what died before and what is quick to test first, compiled code last.

    Compiled code compiles for every mutant.
    """
    known, killers = finished(), {record["name"]: record["killer"] for record in records()}
    todo = [mutant for mutant in mutants if mutant.name not in known]
    kernels = kernel_files()
    todo.sort(key=lambda one: (one.path in kernels, not killers.get(one.name), _place(one.path)))
    if not todo:
        return
    workshop = Workshop(WORKSHOP, tuple(dict.fromkeys(test for _, tests in NEAREST for test in tests)))
    for number, mutant in enumerate(todo, 1):
        tests, result = _decide(workshop, mutant, killers.get(mutant.name, ""))
        record = {
            "name": mutant.name, **asdict(mutant), "outcome": result.status, "seconds": round(result.seconds, 1),
            "killer": result.killer, "source": source_stamp(mutant.path, mutant.function, workshop.copy),
            "tests": deciders_stamp(mutant.path, result.status, result.killer, workshop.copy),
        }  # fmt: skip
        with RESULTS.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(
            f"{number}/{len(todo)} {result.status} {result.seconds:.0f} s, {mutant.name} {mutant.path}:{mutant.line}\n"
            f"    - {mutant.before}\n    + {mutant.after}\n    {len(tests)} tests {result.killer}",
            flush=True,
        )


def _decide(workshop: Workshop, mutant: Mutant, killer: str) -> tuple[list[str], Outcome]:
    """Run a mutant; return the tests that it ran against and what became of it.

    The test that killed it before goes first and alone: where it does so again, nothing needs to be surveyed.
    """
    changed = str(mutate_code((ROOT / mutant.path).read_text(), get_operator(mutant.operator)(), mutant.occurrence))
    places = nearest_tests(mutant.path)
    if workshop.has_test(killer, places):
        result = workshop.outcome(mutant.path, changed, [killer])
        if result.killer and workshop.is_fair(result.killer):
            return [killer], result
    while True:
        tests = workshop.tests_of(mutant.function, places)
        result = workshop.outcome(mutant.path, changed, tests)
        if result.status == "survived" and workshop.refresh(places):
            continue
        if workshop.is_fair(result.killer):
            return tests, result


@dataclass(frozen=True)
class Tally:
    """The results of a sample.

    Attributes:
        num_drawn: mutants in the sample.
        done: results that count, one for each mutant that has one.
        survivors: those of `done` that no test noticed.
        num_equivalent: survivors that were judged to change no behaviour.
    """

    num_drawn: int
    done: list[dict[str, Any]]
    survivors: list[dict[str, Any]]
    num_equivalent: int

    @property
    def num_dead(self) -> int:
        """Mutants that a test noticed."""
        return len(self.done) - len(self.survivors)

    @property
    def num_effective(self) -> int:
        """Mutants that change behaviour."""
        return len(self.done) - self.num_equivalent

    @property
    def score(self) -> float:
        """The share of those that change behaviour that died."""
        return self.num_dead / max(self.num_effective, 1)


def tally(mutants: list[Mutant], judged: dict[str, str]) -> Tally:
    """Count the results of a sample."""
    known = finished()
    done = [known[mutant.name] | {"line": mutant.line} for mutant in mutants if mutant.name in known]
    survivors = [record for record in done if record["outcome"] == "survived"]
    equivalent = [record for record in survivors if judged.get(record["name"], "").startswith("equivalent")]
    return Tally(len(mutants), done, survivors, len(equivalent))


def page(samples: dict[Draw, list[Mutant]], command: str) -> str:
    """Return the page of samples: scores and every survivor with its judgement."""
    judged = judgements()
    tallies = {draw: tally(mutants, judged) for draw, mutants in samples.items()}
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True)
    places = "; ".join(f"{rooms}: " + ", ".join(f"`{place}`" for place in ROOMS[rooms]) for rooms in ROOMS)
    lines = [
        "# Mutants: what the tests notice",
        "",
        f"Written by `{command}` at commit {commit.strip()} from `mutants.jsonl` and the judgements in "
        "`mutants_judged.json`; do not edit.",
        "",
        f"Each mutant changes one place ({places}) and runs against the tests nearest to its file that call the "
        "changed function.",
        "",
        "Wanted: of at least 200 mutants of `core`, 95 % of those that change behaviour die. *Equivalent* are "
        "survivors that were judged to change no behaviour. A survivor whose nearest tests changed since counts as "
        "not run, so the score of an unfinished sample is too high.",
        "",
        "| rooms | seed | drawn | run | died | survived | equivalent | score | gate |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_row(draw, found) for draw, found in tallies.items()),
    ]
    for draw, found in tallies.items():
        lines += ["", f"## Survivors of {draw.rooms}, seed {draw.seed}", "", "| where | code | mutant | judgement |"]
        lines += ["| --- | --- | --- | --- |", *(_survivor(record, judged) for record in found.survivors)]
    return "\n".join(lines) + "\n"


def _row(draw: Draw, found: Tally) -> str:
    if found.num_drawn < MIN_DRAWN:
        gate = "-"
    else:
        gate = "met" if found.score >= WANTED and len(found.done) == found.num_drawn else "not met"
    score = f"{100 * found.score:.1f} % of {found.num_effective}"
    return (
        f"| {draw.rooms} | {draw.seed} | {found.num_drawn} | {len(found.done)} | {found.num_dead} | "
        f"{len(found.survivors)} | {found.num_equivalent} | {score} | {gate} |"
    )


def _survivor(record: dict[str, Any], judged: dict[str, str]) -> str:
    return (
        f"| {record['path']}:{record['line']} | `{_cell(record['before'])}` | `{_cell(record['after'])}` | "
        f"{judged.get(record['name'], 'not judged yet')} (`{record['name']}`) |"
    )


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|")


def main() -> None:
    """Draw, run and write the page."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the child that runs tests ends as well
    parser = argparse.ArgumentParser(description="mutation testing of the mathematical rooms")
    parser.add_argument(
        "--samples", type=Draw.read, nargs="+", default=[Draw("core", 220, 0), Draw("search", 40, 0)],
        metavar="ROOMS:COUNT:SEED", help=f"what to draw; ROOMS is one of {', '.join(ROOMS)}",
    )  # fmt: skip
    parser.add_argument("--first", type=int, help="run only the first ones of each sample; writes no page")
    parser.add_argument("--only", default="", help="run only mutants of files whose path has this text; writes no page")
    parser.add_argument("--page", action="store_true", help="run nothing, only write the page")
    options = parser.parse_args()
    samples = {draw: stored_sample(draw) for draw in options.samples}
    if not options.page:
        run([one for mutants in samples.values() for one in mutants[: options.first] if options.only in one.path])
    if not options.only and options.first is None:
        names = " ".join(map(str, options.samples))
        PAGE.write_text(page(samples, f"make mutants MUTANTS='--samples {names}'"))


if __name__ == "__main__":
    main()
