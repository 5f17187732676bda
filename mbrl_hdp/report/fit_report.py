"""Everything a person reads after a fit, written beside the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mbrl_hdp.inference.analysis import Analysis
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.report.figures import save_figures
from mbrl_hdp.report.summary import summarise


def write_fit_report(
    model: ContextModel,
    found: Analysis,
    folder: Path,
    obs_names: Sequence[str] = (),
    act_names: Sequence[str] = (),
) -> str:
    """Write summary.json, report.txt and the figures to a folder; return the text to print.

    Args:
        model: the fitted model.
        found: `model.analyse(data)` of the data that it was learned from.
        folder: where to write; made if it is not there.
        obs_names: what the observation columns are called.
        act_names: what the action columns are called.

    Example:
        >>> print(write_fit_report(model, model.analyse(data), Path("out")))
    """
    folder.mkdir(parents=True, exist_ok=True)
    summary = summarise(model, found, [*obs_names, *act_names])
    summary.save(folder)
    figures = save_figures(model, found, summary, folder, obs_names)
    look = f"Look at {', '.join(path.name for path in figures)} and labels.csv in {folder}/"
    return f"{summary.text()}\n\n{look}"
