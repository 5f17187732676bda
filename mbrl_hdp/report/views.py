"""How a model shows itself in Python and in a notebook: `print(model)`, `model.summary()`, `model.plot_contexts()`."""

from __future__ import annotations

import base64
import html as escaping
import io
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from mbrl_hdp.inference.analysis import Analysis
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.report.figures import contexts_figure, stationary_figure, transition_figure
from mbrl_hdp.report.summary import FitSummary, summarise


def summary_text(model: ContextModel, data: Any = None) -> str:
    """Return the report of a fit as text; a model that nothing was fitted to says so."""
    if not model.report.runs:
        return f"ContextModel with {model.task.max_contexts} slots, not fitted yet"
    return _summed_up(model, data)[1].text()


def plot_contexts(
    model: ContextModel, data: Any, episodes: Sequence[int] | None = None, columns: Sequence[int | str] | None = None
) -> Figure:
    """Return a figure of observations and contexts over time; see `ContextModel.plot_contexts`."""
    found, summary = _summed_up(model, data)
    assert found is not None
    return contexts_figure(found, summary, episodes, columns)


def plot_transition(model: ContextModel, data: Any = None) -> Figure:
    """Return a figure of the transition matrices."""
    return transition_figure(model, _summed_up(model, data)[1])


def plot_stationary(model: ContextModel) -> Figure:
    """Return a figure of the share of every slot."""
    return stationary_figure(summarise(model))


def html(model: ContextModel) -> str:
    """Return the report and the transition matrices as HTML for a notebook; nothing is loaded from elsewhere."""
    text = f"<pre>{escaping.escape(summary_text(model))}</pre>"
    if not model.report.runs:
        return text
    picture = io.BytesIO()
    plot_transition(model).savefig(picture, format="png", dpi=80, bbox_inches="tight")
    encoded = base64.b64encode(picture.getvalue()).decode()
    return f'{text}<img alt="transition matrices" src="data:image/png;base64,{encoded}">'


def _summed_up(model: ContextModel, data: Any) -> tuple[Analysis | None, FitSummary]:
    if data is None:
        return None, summarise(model)
    found = model.analyse(data)
    return found, summarise(model, found)
