"""`mbrl-hdp`: one program, one sub-command per task. Heavy imports happen inside the sub-command that needs them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import mbrl_hdp
from mbrl_hdp.endings import ending, noted_signals
from mbrl_hdp.errors import MbrlHdpError, did_you_mean

if TYPE_CHECKING:
    from mbrl_hdp.experiments.reproduce import ReproduceOptions

_FIT_WORDS = "a .npz or .csv file or minari:ID, then settings, as in max_contexts=10 dynamics=linear out=DIR"

Command = Callable[[list[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `mbrl-hdp`; return the exit code (see `mbrl_hdp.endings`)."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if not words or words[0] in {"-h", "--help", "help"}:
        print(_usage())
        return 0
    if words[0] in {"-V", "--version"}:
        print(f"mbrl-hdp {mbrl_hdp.__version__}")
        return 0
    with noted_signals() as signals:
        try:
            code = _command(words[0])(words[1:] if words[0] not in _COMPLETION else words)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            sys.stderr.close()
            return 0
        except BaseException as error:
            found = ending(error, signals)
            if found is None or debug:
                raise
            print(f"mbrl-hdp: {found[0]}", file=sys.stderr)
            return found[1]


def _command(name: str) -> Command:
    if name in _COMPLETION:
        return _complete
    if name not in _COMMANDS:
        raise MbrlHdpError(f"unknown command {name!r}; {did_you_mean(name, _COMMANDS)}")
    return _COMMANDS[name][0]


def train(words: list[str]) -> int:
    """Learn to control by Algorithm 1; any Hydra override, -m for sweeps, --cfg job to look."""
    from mbrl_hdp.experiments.app import run_app

    return run_app(words, _draw_curve)


def _draw_curve(folder: Path) -> None:
    from mbrl_hdp.report.curves import write_learning_curve

    write_learning_curve(folder)


def fit(words: list[str]) -> int:
    """Learn how many contexts logged data has, how they switch and what each does: fit DATA [key=value ...]."""
    parser = _parser("fit", fit)
    parser.add_argument("words", nargs="*", metavar="DATA [key=value ...]", help=_FIT_WORDS)
    parser.add_argument("--cfg", choices=["job"], help="print the full typed configuration and do nothing")
    options = parser.parse_intermixed_args(words)
    from mbrl_hdp.experiments.fit_command import prepare, run_job

    job = prepare(options.words, is_data_needed=options.cfg is None)
    if options.cfg:
        print(job.yaml(), end="")
        return 0
    outcome = run_job(job)
    from mbrl_hdp.report.fit_report import write_fit_report

    print(write_fit_report(outcome.model, outcome.analysis, job.out, outcome.columns.obs, outcome.columns.act))
    return 0


def label(words: list[str]) -> int:
    """Return the context of every step of a data file by a model that `fit` wrote: label DIR DATA -o labels.csv."""
    parser = _parser("label", label)
    parser.add_argument("model", metavar="DIR", help="folder that `mbrl-hdp fit ... out=DIR` wrote")
    parser.add_argument("data", metavar="DATA", help=".npz or .csv file, or minari:ID")
    parser.add_argument("-o", "--out", default="labels.csv", help="CSV file to write (default: labels.csv)")
    parser.add_argument("--allow-missing", action="store_true", help="let NaN or empty cells mark missing samples")
    options = parser.parse_intermixed_args(words)
    from mbrl_hdp.runtime import configure

    configure()
    from mbrl_hdp.experiments.label_command import label_file

    print(label_file(options.model, options.data, options.out, options.allow_missing))
    return 0


def evaluate(words: list[str]) -> int:
    """Evaluate the last checkpoint of a run on separate seeded episodes."""
    parser = _parser("evaluate", evaluate)
    parser.add_argument("run", help="run directory of `mbrl-hdp train`")
    parser.add_argument("--episodes", type=int, default=50, help="number of episodes (default 50)")
    parser.add_argument("--trust", action="store_true", help="let the run import the modules that its settings name")
    options = parser.parse_args(words)
    if options.episodes < 1:
        raise MbrlHdpError(f"--episodes must be at least 1, got {options.episodes}")
    from mbrl_hdp.experiments.runs import evaluate_run

    result = evaluate_run(Path(options.run), options.episodes, options.trust)
    low, high = result.return_ci
    spread = f"{result.return_mean:.2f} +- {result.return_std:.2f}"
    print(f"return {spread}, 95 % interval of the mean {low:.2f} to {high:.2f}")
    if result.context_accuracy is not None:
        print(f"context accuracy {result.context_accuracy:.3f}, switch delay {result.switch_delay or 0.0:.2f} steps")
    return 0


def plugins(words: list[str]) -> int:
    """List every registered prior, distillation rule, agent and transition model with its package."""
    parser = _parser("plugins", plugins)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(words)
    from mbrl_hdp.hooks import load_registry

    registry = load_registry()
    rows = [
        {
            "kind": plugin.kind,
            "name": plugin.spec.name,
            "package": plugin.source.package,
            "version": plugin.source.version,
            "summary": plugin.spec.summary.strip(),
        }
        for plugin in registry.all()
    ]
    if options.json:
        print(json.dumps({"plugins": rows, "problems": [str(problem) for problem in registry.problems]}, indent=2))
    else:
        from mbrl_hdp.report.tables import print_table

        print_table("Plugins", ["kind", "name", "package", "version", "summary"], [list(row.values()) for row in rows])
        for problem in registry.problems:
            print(f"warning: {problem}", file=sys.stderr)
    return 0


def doctor(words: list[str]) -> int:
    """Check Python, every dependency, the extras and the thread settings; say what to do about each finding."""
    parser = _parser("doctor", doctor)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--all", action="store_true", help="also a row for everything that is fine")
    options = parser.parse_args(words)
    from mbrl_hdp.doctor import examine, is_healthy

    findings = examine()
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        from mbrl_hdp.report.tables import print_table

        shown = [finding for finding in findings if options.all or finding.status != "ok"]
        rows = [[finding.status, finding.what, finding.found, finding.advice] for finding in shown]
        passed = sum(finding.status == "ok" for finding in findings)
        print(f"{passed} of {len(findings)} checks passed" + ("" if options.all else "; --all lists them"))
        print_table("mbrl-hdp doctor", ["status", "what", "found", "what to do"], rows)
    return 0 if is_healthy(findings) else 1


def reproduce(words: list[str]) -> int:
    """Run what is missing or stale of a study of the paper, ours beside its numbers; --stale only lists it."""
    parser = _parser("reproduce", reproduce)
    parser.add_argument("name", nargs="?", help="a study, or all; an unknown name lists them")
    parser.add_argument(
        "--stale", action="store_true", help="list what is out of date and run nothing; exit code 1 if anything is"
    )
    parser.add_argument("--page", action="store_true", help="only write the pages from the finished cells")
    parser.add_argument("--seeds", type=int, nargs="+", help="run these seeds instead of the study's own")
    parser.add_argument("--sizes", type=int, nargs="+", help="run only these max_contexts")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side, one thread each")
    parser.add_argument("--quick", action="store_true", help="tiny cells, to see that it works")
    parser.add_argument("--out", default="docs/results", help="folder of the pages and the finished cells")
    parser.add_argument("--share", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.name is None and not options.stale:
        raise MbrlHdpError("which study? name one, or all, as in `mbrl-hdp reproduce table1`")
    from mbrl_hdp.runtime import configure

    configure()
    from mbrl_hdp.experiments.reproduce import ReproduceOptions, share_of
    from mbrl_hdp.experiments.reproduce import reproduce as run_studies

    asked = ReproduceOptions(
        options.seeds,
        options.jobs,
        options.quick,
        Path(options.out),
        options.sizes,
        share_of(options.share),
        options.page,
    )
    if options.stale:
        return _list_stale(options.name or "all", asked)
    for page in run_studies(options.name, asked):
        print(page)
    return 0


def _list_stale(name: str, asked: ReproduceOptions) -> int:
    """Print the cells of studies by state; return 1 if any is not up to date."""
    from mbrl_hdp.experiments.reproduce import stale
    from mbrl_hdp.experiments.studies.study import STATES
    from mbrl_hdp.report.tables import print_table

    rows, changes = stale(name, asked)
    print_table("Cells by state", ["study", "cells", *STATES], rows)
    for line in changes:
        print(f"changed: {line}")
    return 0 if all(row[1] == row[2] for row in rows) else 1


def _complete(words: list[str]) -> int:
    """Answer the shell's tab completion: our own words first, then Hydra's for `train`."""
    line = os.environ.get("COMP_LINE", "")
    typed = line.split()
    if len(typed) > 2 or (len(typed) == 2 and line.endswith(" ")):
        if typed[1] != "train":
            return 0
        # Hydra strips the program's name only: take the sub-command out of the line for it.
        os.environ["COMP_LINE"] = line.replace(" train", "", 1)
        return train(words)
    print(" ".join(_COMMANDS))
    return 0


_COMPLETION = ("-sc", "--shell_completion", "--shell-completion")
_COMMANDS: dict[str, tuple[Command, str]] = {
    function.__name__: (function, (function.__doc__ or "").strip())
    for function in (train, evaluate, fit, label, reproduce, plugins, doctor)
}


def _usage() -> str:
    width = max(map(len, _COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in _COMMANDS.items()]
    return "\n".join(
        [
            "usage: mbrl-hdp COMMAND ...   (also: python -m mbrl_hdp COMMAND ...)",
            "",
            *lines,
            "",
            "`mbrl-hdp COMMAND --help` tells more; --debug shows tracebacks; --version the version.",
            'Tab completion: eval "$(mbrl-hdp train -sc install=bash)"',
        ]
    )


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaints look like every other error of the program."""

    def error(self, message: str) -> NoReturn:
        raise MbrlHdpError(f"{message}; see `{self.prog} --help`")


def _parser(name: str, function: Command) -> argparse.ArgumentParser:
    return _Parser(prog=f"mbrl-hdp {name}", description=function.__doc__)


if __name__ == "__main__":
    sys.exit(main())
