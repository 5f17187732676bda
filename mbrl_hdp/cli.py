"""`mbrl-hdp`: one program, one sub-command per task. Heavy imports happen inside the sub-command that needs them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import mbrl_hdp
from mbrl_hdp.endings import ending, noted_signals
from mbrl_hdp.errors import MbrlHdpError, did_you_mean

if TYPE_CHECKING:
    from mbrl_hdp.experiments.sweep import JobOutcome

_FIT_WORDS = (
    "a .csv (.tsv, .txt, .csv.gz, ...), .npz or parquet file, a folder of them, a pattern in quotes ('runs/*.csv') or "
    "minari:ID, then settings, as in time=stamp obs=[temp,flow] act=[valve] ignore=[*] max_contexts=10 out=DIR"
)

_TRAIN_HELP = """usage: mbrl-hdp train [key=value ...] [-m] [--cfg job] [--config-dir FOLDER] [--no-report]
       mbrl-hdp train resume=RUN [--trust] [--no-report]

Learn to control by Algorithm 1.
  -m, --multirun       a sweep: every combination of values between commas, as in seed=0,1,2 agent=c_cem,c_sac
                       hydra/launcher=joblib|ray|submitit_local|submitit_slurm runs its jobs side by side;
                       the same sweep with the same hydra.sweep.dir=DIR again skips finished jobs and resumes others
  --cfg job            print the full typed configuration and do nothing
  --config-dir FOLDER  look for presets in a folder of yours, too
  --no-report          write no report.html at the end
  --trust              with resume=RUN: let the run import the modules that its settings name
  --hydra-help         Hydra's own flags
env=, experiment= and env/budgets= take the presets in conf/ (a wrong name lists them). On the drone and the
intersection agents have the settings of our reported runs (conf/env/presets/)."""

_NO_REPORT = "--no-report"

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
    if {"-h", "--help"} & set(words):
        print(_TRAIN_HELP + "\n\n" + _settings_help("main"))
        return 0
    from mbrl_hdp.experiments.app import run_app

    has_page = _NO_REPORT not in words
    return run_app([word for word in words if word != _NO_REPORT], partial(_finish, has_page=has_page), _show_sweep)


def _settings_help(name: str) -> str:
    from mbrl_hdp.experiments.settings_help import help_text

    return help_text(name)


def _finish(folder: Path, has_page: bool) -> None:
    from mbrl_hdp.report.run_report import write_run_report

    write_run_report(folder, has_page)


def _show_sweep(outcomes: Sequence[JobOutcome]) -> None:
    from mbrl_hdp.report.sweep_table import print_sweep

    print_sweep(outcomes)


def fit(words: list[str]) -> int:
    """Learn how many contexts logged data has, how they switch and what each does: fit DATA [key=value ...]."""
    parser = _parser("fit", fit)
    parser.add_argument("words", nargs="*", metavar="DATA [key=value ...]", help=_FIT_WORDS)
    parser.add_argument("--cfg", choices=["job"], help="print the full typed configuration and do nothing")
    parser.add_argument(_NO_REPORT, action="store_true", help="write no report.html")
    if {"-h", "--help"} & set(words):
        print(parser.format_help() + "\n" + _settings_help("fit"))
        return 0
    options = parser.parse_intermixed_args(words)
    from mbrl_hdp.experiments.fit_command import prepare, run_job

    job = prepare(options.words, is_data_needed=options.cfg is None)
    if options.cfg:
        print(job.yaml(), end="")
        return 0
    outcome = run_job(job)
    from mbrl_hdp.data.names import Names
    from mbrl_hdp.report.fit_report import write_fit_report

    names = Names.of(outcome.log)
    has_page = not options.no_report
    print(write_fit_report(outcome.model, outcome.analysis, job.out, names, outcome.log, has_page))
    for remark in outcome.remarks:
        print(remark)
    return 0


def label(words: list[str]) -> int:
    """Return the context of every step of a data file by a model that `fit` wrote: label DIR DATA -o labels.csv."""
    parser = _parser("label", label)
    parser.add_argument("model", metavar="DIR", help="folder that `mbrl-hdp fit ... out=DIR` wrote")
    parser.add_argument("data", metavar="DATA", help="file, folder or pattern, as for `mbrl-hdp fit`")
    parser.add_argument(
        "words", nargs="*", metavar="key=value", help="what differs from the fit's data, as in allow_missing=true"
    )
    parser.add_argument("-o", "--out", default="labels.csv", help="CSV file to write (default: labels.csv)")
    alarm = "steps between false novelty alarms, where the model has an alarm (default 100000; docs/novelty.md)"
    parser.add_argument("--false-alarms-per", type=float, default=100_000, metavar="STEPS", help=alarm)
    parser.add_argument("--allow-missing", action="store_true", help=argparse.SUPPRESS)  # now allow_missing=true
    options = parser.parse_intermixed_args(words)
    from mbrl_hdp.runtime import configure

    configure()
    from mbrl_hdp.experiments.label_command import label_file

    words = [*options.words, *(["allow_missing=true"] if options.allow_missing else [])]
    print(label_file(options.model, options.data, options.out, words, options.false_alarms_per))
    return 0


def evaluate(words: list[str]) -> int:
    """Evaluate the last checkpoint of a run on separate seeded episodes."""
    parser = _parser("evaluate", evaluate)
    parser.add_argument("run", help="run directory of `mbrl-hdp train`")
    parser.add_argument("--episodes", type=int, default=50, help="number of episodes (default 50)")
    parser.add_argument("--trust", action="store_true", help="let the run import the modules that its settings name")
    parser.add_argument("--seed", type=int, help="seed of the episodes (default: the run's own, as in its summary)")
    parser.add_argument("--render", action="store_true", help="show the episodes in a window")
    parser.add_argument("--video", metavar="FILE.gif", help="also write the first episode as an animated GIF")
    options = parser.parse_args(words)
    if options.episodes < 1:
        raise MbrlHdpError(f"--episodes must be at least 1, got {options.episodes}")
    if options.seed is not None and options.seed < 0:
        raise MbrlHdpError(f"--seed must be at least 0, got {options.seed}")
    if options.video is not None:
        _check_target("--video", Path(options.video), ".gif", "episodes are written as animated GIFs")
    from mbrl_hdp.experiments.runs import evaluate_run

    result = evaluate_run(Path(options.run), options.episodes, options.trust, options.seed, options.render)
    low, high = result.return_ci
    spread = f"{result.return_mean:.2f} +- {result.return_std:.2f}"
    print(f"return {spread}, 95 % interval of the mean {low:.2f} to {high:.2f}")
    if result.context_accuracy is not None:
        print(f"context accuracy {result.context_accuracy:.3f}, switch delay {result.switch_delay or 0.0:.2f} steps")
    if result.scores:
        print(", ".join(f"{name} {value:.3f}" for name, value in result.scores.items()))
    if options.video is not None:
        from mbrl_hdp.report.animation import animate_run

        print(animate_run(options.run, options.video, is_trusted=options.trust, seed=options.seed)[0])
    return 0


def compare(words: list[str]) -> int:
    """Compare runs and seeds, grouped by the settings that differ: compare RUN_OR_SWEEP... -o DIR."""
    parser = _parser("compare", compare)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directory, sweep folder or pattern ('multirun/*')")
    parser.add_argument("-o", "--out", default="comparison", help="folder of the files (default: comparison)")
    options = parser.parse_args(words)
    from mbrl_hdp.experiments.run_folder import check_can_hold

    check_can_hold("--out", Path(options.out))
    from mbrl_hdp.report.compare import compare_runs
    from mbrl_hdp.report.comparison_files import EXPLANATION, print_comparison, write_comparison

    found = compare_runs(options.runs)
    print_comparison(found)
    print(EXPLANATION)
    for remark in found.remarks:
        print(f"note: {remark}")
    print(", ".join(str(path) for path in write_comparison(found, options.out)))
    return 0


def tune(words: list[str]) -> int:
    """Choose the planner's settings of a run on its learned model alone; evaluate and resume use them from then on."""
    parser = _parser("tune", tune)
    parser.add_argument("run", help="run directory of `mbrl-hdp train` with an agent that plans")
    parser.add_argument("--trust", action="store_true", help="let the run import the modules that its settings name")
    options = parser.parse_args(words)
    from mbrl_hdp.experiments.runs import tune_run

    print(tune_run(Path(options.run), options.trust), end="")
    return 0


def _check_target(flag: str, path: Path, suffix: str, what: str) -> None:
    """Raise, before any work, if a file cannot be written."""
    if path.suffix.lower() != suffix:
        raise MbrlHdpError(f"{flag} {path}: {what}; name a file that ends in {suffix}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise MbrlHdpError(f"{flag} {path}: there is no folder {path.parent}, or it is a folder itself")


def report(words: list[str]) -> int:
    """Write one HTML file that opens offline: a fit, a run, several runs, a sweep, studies; --live follows a run."""
    parser = _parser("report", report)
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="folder of a fit, a run, several runs, a sweep, studies"
    )
    parser.add_argument("-o", "--out", metavar="FILE.html", help="file to write (default: PATH/report.html)")
    parser.add_argument("--animate", action="store_true", help="play an episode of the run and show it, animated")
    parser.add_argument("--trust", action="store_true", help="with --animate: let it import what its settings name")
    parser.add_argument("--live", action="store_true", help="serve a page on 127.0.0.1 that follows a running training")
    parser.add_argument("--port", type=int, default=0, help="with --live: port to serve it at (default: any free one)")
    options = parser.parse_args(words)
    if options.out is not None:
        _check_target("-o", Path(options.out), ".html", "a report is a page")
    from mbrl_hdp.runtime import configure

    configure()
    if options.live:
        from mbrl_hdp.report.live import follow

        return follow(options.paths, options.port)
    from mbrl_hdp.report.html import write_page
    from mbrl_hdp.report.run_report import animate

    if options.animate:
        animate(options.paths, options.trust)
    print(write_page(options.paths, options.out))
    return 0


def export(words: list[str]) -> int:
    """Write filter and policy as ONNX, which runs without this package: export RUN_OR_MODEL -o DIR."""
    from mbrl_hdp.serving.commands import add_export_options, run_export

    parser = _parser("export", export)
    add_export_options(parser)
    return run_export(parser.parse_args(words))


def serve(words: list[str]) -> int:
    """Serve a model over HTTP: observations in; belief, context, alarm and action out, many streams at once."""
    from mbrl_hdp.serving.commands import add_serve_options, run_serve

    parser = _parser("serve", serve)
    add_serve_options(parser)
    return run_serve(parser.parse_args(words))


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
    from mbrl_hdp.doctor import examine, health, is_healthy

    findings = examine()
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        from mbrl_hdp.report.tables import print_table

        shown = [finding for finding in findings if options.all or finding.status != "ok"]
        rows = [[finding.status, finding.what, finding.found, finding.advice] for finding in shown]
        print(health(findings) + ("" if options.all else "; --all lists everything"))
        print_table("mbrl-hdp doctor", ["status", "what", "found", "what to do"], rows)
    return 0 if is_healthy(findings) else 1


def reproduce(words: list[str]) -> int:
    """Run what is missing or stale of a study of the paper, ours beside its numbers; --stale only lists it."""
    from mbrl_hdp.report.reproduce_command import add_options, run

    parser = _parser("reproduce", reproduce)
    add_options(parser)
    return run(parser.parse_args(words))


def _complete(words: list[str]) -> int:
    """Answer the shell's tab completion: our own words first, then the settings of `fit`, Hydra's for `train`."""
    line = os.environ.get("COMP_LINE", "")
    typed = line.split()
    if len(typed) > 2 or (len(typed) == 2 and line.endswith(" ")):
        if typed[1] == "fit":
            from mbrl_hdp.experiments.settings_help import completions

            print("\n".join(completions("fit", "" if line.endswith(" ") else typed[-1])))
            return 0
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
    for function in (train, evaluate, report, compare, tune, fit, label, export, serve, reproduce, plugins, doctor)
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
            "`mbrl-hdp COMMAND --help` shows more; --debug shows tracebacks; --version the version.",
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
