"""`mbrl-hdp reproduce`: its options, and the studies with their pages, figures and tables."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mbrl_hdp.errors import ConfigError

if TYPE_CHECKING:
    from mbrl_hdp.experiments.reproduce import ReproduceOptions


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("name", nargs="?", help="a study, or all; --list shows them")
    parser.add_argument("--list", action="store_true", help="list the studies and run nothing")
    parser.add_argument(
        "--stale", action="store_true", help="list what is out of date and run nothing; exit code 1 if anything is"
    )
    parser.add_argument("--page", action="store_true", help="only write the pages from the finished cells")
    parser.add_argument("--missing", action="store_true", help="run only what was never run; leave stale cells")
    parser.add_argument(
        "--confirm",
        type=int,
        default=0,
        metavar="N",
        help="run only N of the cells that are stale by code; if their results are the same, keep the others",
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="run these seeds instead of the study's own")
    parser.add_argument("--sizes", type=int, nargs="+", help="run only these max_contexts")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="SETTING=VALUE",
        help="run only these cells, as in agent=C-CEM,C-SAC task=drone",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side, one thread each, with --on local")
    parser.add_argument(
        "--on", default="local", choices=["local", "ray"], help="run the cells on this machine or on a Ray cluster"
    )
    parser.add_argument("--budget", metavar="90m", help="start no cell that would not end within this time (s, m, h)")
    parser.add_argument(
        "--profile", choices=["full", "smoke"], default="full", help="smoke: tiny cells, to see that it works"
    )
    parser.add_argument("--quick", action="store_const", const="smoke", dest="profile", help=argparse.SUPPRESS)
    parser.add_argument("--out", default="docs/results", help="folder of the pages and the finished cells")
    parser.add_argument(
        "--readme", action="store_true", help="write the tables of README.md and docs/results/README.md anew"
    )


def run(options: argparse.Namespace) -> int:
    """Run studies, or list or write what is there.

    Raises:
        ConfigError: if no study is named.
    """
    if options.name is None and not (options.stale or options.list or options.readme):
        raise ConfigError("which study? name one, or all, as in `mbrl-hdp reproduce table1`; --list shows them")
    from mbrl_hdp.runtime import configure

    configure()
    from mbrl_hdp.experiments.cells import seconds_of
    from mbrl_hdp.experiments.reproduce import FIGURES, ReproduceOptions, listing, only_of, reproduce

    if options.list:
        from mbrl_hdp.report.tables import print_table

        print_table("Studies", ["study", "cells", "max_contexts", "title"], listing())
        return 0
    if options.readme and options.name is None:
        return _write_readme(Path(options.out))

    asked = ReproduceOptions(
        options.seeds,
        options.jobs,
        options.profile == "smoke",
        Path(options.out),
        options.sizes,
        options.page,
        only_of(options.only),
        options.missing,
        options.confirm,
        options.on,
        seconds_of(options.budget),
    )
    if options.stale:
        return _list_stale(options.name or "all", asked)
    for page in reproduce(options.name, asked):
        if page.drawings:
            from mbrl_hdp.report.study_figures import save_drawings

            save_drawings(page.drawings, page.path.parent / FIGURES)
        print(page.path)
    return _write_readme(Path(options.out)) if options.readme else 0


def _write_readme(folder: Path) -> int:
    """Write the tables of all studies; README.md is that of the folder above docs/results."""
    from mbrl_hdp.experiments.overview import write_tables

    for path in write_tables(folder, folder.absolute().parents[1]):
        print(path)
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
