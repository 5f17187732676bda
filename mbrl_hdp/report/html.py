"""A report as one HTML file that opens offline: no request leaves it, and nothing in it runs but the scripts here."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

import mbrl_hdp
from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.names import Names
from mbrl_hdp.errors import DataError
from mbrl_hdp.report import page_charts
from mbrl_hdp.report.effects import Effect, effect_rows
from mbrl_hdp.report.page_data import ModelView, ReportPage, gather
from mbrl_hdp.report.palette import context_colours
from mbrl_hdp.report.timeline import MOST_COLUMNS, LabelRuns, Timeline

FILE_NAME = "report.html"
_MOST_EFFECT_ROWS = 60
_UNKNOWN, _MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
_TEMPLATES = Path(__file__).parent / "templates"


def write_page(paths: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page of a fit, a run, several runs or a sweep; return its path.

    Args:
        paths: folders.
        out: file to write; report.html in the first folder by default.

    Raises:
        DataError: if there is nothing to report.
        CheckpointError: if a file is damaged.

    Example:
        >>> write_page(["outputs/fit"])
    """
    return save_page(gather(paths), Path(paths[0]) / FILE_NAME if out is None else Path(out))


def save_page(page: ReportPage, target: Path) -> Path:
    """Write a page to a file; return its path."""
    text = render(page)
    with atomic_path(target) as path:
        path.write_text(text, encoding="utf-8")
    return target


def render(page: ReportPage, live: bool = False) -> str:
    """Return the HTML of a page.

    Args:
        page: its content.
        live: also look for a newer version at the server that sent it.

    Raises:
        DataError: if the files hold something else than what this version writes.
    """
    scripts = [_source("page.js"), *([_source("live.js")] if live else [])]
    try:
        return _environment().get_template("page.html").render(
            page=page,
            view=page.model,
            summary=page.model.summary if page.model else None,
            charts=page_charts,
            timeline=_timeline(page.model),
            effects=_effects(page.model),
            true_names=lambda labels: _true_names(page.model, labels),
            colours=context_colours(max(_num_colours(page), 10)),
            style=Markup(_source("page.css")),
            scripts=[Markup(script) for script in scripts],
            policy=_policy(scripts, live),
            animation=base64.b64encode(page.animation).decode() if page.animation else "",
            version=mbrl_hdp.__version__,
            now=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )  # fmt: skip
    except (jinja2.UndefinedError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DataError(
            f"{page.folder} does not hold what this version of mbrl-hdp writes ({type(error).__name__}: {error}); "
            "make it again, or report it with the version that wrote it"
        ) from error


@lru_cache
def _source(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str], live: bool) -> str:
    """Return the content security policy: only our own scripts run, and nothing is loaded from anywhere."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    parts = ["default-src 'none'", f"script-src {hashes}", "style-src 'unsafe-inline'", "img-src data:"]
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'", *(["connect-src 'self'"] if live else [])])


@lru_cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": _number, "count": _count, "percent": _percent, "duration": _duration}
    return environment


def _number(value: Any, digits: int = 4) -> str:
    """Write a number with some digits; a dash for what is unknown."""
    if value is None or not math.isfinite(value):
        return _UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}".replace("-", _MINUS)


def _count(value: float, word: str) -> str:
    """Write a number of things, as in `1 step` and `2 steps`."""
    return f"{_number(value)} {word if value == 1 else f'{word}s'}"


def _percent(value: Any, digits: int = 1) -> str:
    return _UNKNOWN if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


def _duration(seconds: Any) -> str:
    """Write seconds as a person would."""
    if seconds is None or not math.isfinite(seconds):
        return _UNKNOWN
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.2g} s"


def _num_colours(page: ReportPage) -> int:
    num_groups = 0 if page.comparison is None else len(page.comparison.rows)
    return max(num_groups, 0 if page.model is None else int(page.model.summary["num_contexts"]))


def _effects(view: ModelView | None) -> list[tuple[str, list[float]]]:
    """Return the rows of the table of what contexts do."""
    if view is None or not view.summary.get("effects"):
        return []
    known = [
        Effect(**{**effect, "noise": [math.nan if value is None else value for value in effect["noise"]]})
        for effect in view.summary["effects"]
    ]
    return effect_rows(known, Names(**view.summary["names"]), _MOST_EFFECT_ROWS)


def _timeline(view: ModelView | None) -> dict[str, Any] | None:
    """Return the log for the page's script: arrays of little-endian numbers as base64."""
    if view is None or view.timeline is None:
        return None
    drawn = view.timeline
    return {
        "rows": drawn.num_rows,
        "binRows": drawn.bin_rows,
        "columns": _columns(drawn),
        "contexts": drawn.belief.shape[1],
        "belief": _packed(drawn.belief, "u1"),
        "labels": _runs(drawn.labels),
        "truth": None if drawn.truth is None else _runs(drawn.truth),
        "trueContexts": _true_contexts(view, drawn.truth),
        "starts": _packed(drawn.starts, "<i4"),
        "names": drawn.episode_names,
        "stamps": drawn.first_stamps,
        "dt": drawn.dt,
        "left": max(drawn.num_columns - MOST_COLUMNS, 0),
    }


def _columns(drawn: Timeline) -> list[dict[str, Any]]:
    return [
        {
            "name": column.name,
            "unit": column.unit,
            "kind": column.kind,
            "from": column.low,
            "to": column.high,
            "low": _packed(drawn.low[number], "<i2"),
            "high": None if drawn.bin_rows == 1 else _packed(drawn.high[number], "<i2"),
        }
        for number, column in enumerate(drawn.columns)
    ]


def _runs(runs: LabelRuns) -> dict[str, Any]:
    return {"start": _packed(runs.start, "<i4"), "value": _packed(runs.value, "<i2"), "binRows": runs.bin_rows}


def _packed(values: np.ndarray[Any, Any], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values.astype(dtype)).tobytes()).decode()


def _true_contexts(view: ModelView, truth: LabelRuns | None) -> list[dict[str, Any]]:
    """Return name and colour (that of the learned context it was matched to, -1 for none) of every true context."""
    if truth is None:
        return []
    learned = {label: k for k, label in enumerate(view.summary["truth"]["to_true"]) if label >= 0}
    names = _true_names(view, range(int(truth.value.max()) + 1))
    return [{"name": name, "colour": learned.get(label, -1)} for label, name in enumerate(names)]


def _true_names(view: ModelView | None, labels: Iterable[int]) -> list[str]:
    known = [] if view is None else list(view.context_names)
    return [known[label] if label < len(known) else f"true {label}" for label in labels]
