"""Everything a person reads after a fit, written beside the model."""

from __future__ import annotations

from pathlib import Path

from mbrl_hdp.data.logs import Log
from mbrl_hdp.data.names import Names
from mbrl_hdp.inference.analysis import Analysis
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.report.figures import save_figures
from mbrl_hdp.report.html import FILE_NAME, save_page
from mbrl_hdp.report.page_data import fit_page
from mbrl_hdp.report.summary import summarise
from mbrl_hdp.report.timeline import TIMELINE, Timeline


def write_fit_report(
    model: ContextModel,
    found: Analysis,
    folder: Path,
    names: Names | None = None,
    log: Log | None = None,
    has_page: bool = True,
) -> str:
    """Write summary.json, report.txt, the figures and report.html to a folder; return the text to print.

    Args:
        model: the fitted model.
        found: `model.analyse(data)` of the data that it was learned from.
        folder: where to write; made if it is not there.
        names: what the columns are called.
        log: the data with its times, units and names of episodes, for the page.
        has_page: write report.html, and what it is drawn from.

    Example:
        >>> print(write_fit_report(model, model.analyse(data), Path("out")))
    """
    folder.mkdir(parents=True, exist_ok=True)
    summary = summarise(model, found, names)
    summary.save(folder)
    files = [path.name for path in save_figures(model, found, summary, folder)]
    if has_page:
        named = log or Log(found.data, tuple(summary.names.obs), tuple(summary.names.act), model.task.dt)
        Timeline.of(found, named).save(folder)
    else:  # a page of an earlier fit would show another model
        for name in (FILE_NAME, TIMELINE):
            (folder / name).unlink(missing_ok=True)
    look = f"Look at {', '.join(files)} and labels.csv in {folder}/"
    if has_page:
        page = save_page(fit_page(folder), folder / FILE_NAME)
        look = f"Open {page} in a browser. {look}"
    return f"{summary.text()}\n\n{look}"
