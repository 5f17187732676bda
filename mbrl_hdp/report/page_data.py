"""Everything that a page shows, read from folders; nothing of them is executed, nothing outside of them is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from mbrl_hdp.data.logs import Log
from mbrl_hdp.data.names import numbered
from mbrl_hdp.data.plain_files import check_plain_yaml, file_problem, read_json, read_words
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError, MbrlHdpError
from mbrl_hdp.experiments.columns import ColumnNames
from mbrl_hdp.experiments.history import read_history
from mbrl_hdp.experiments.run_folder import check_links
from mbrl_hdp.inference.saving import load
from mbrl_hdp.report.curves import RunHistory, read_run
from mbrl_hdp.report.results_page import StudySection, is_results, study_sections, title_of
from mbrl_hdp.report.summary import summarise
from mbrl_hdp.report.timeline import Timeline

if TYPE_CHECKING:
    from mbrl_hdp.report.compare import Comparison

MAX_ANIMATION_BYTES = 3 << 20
ANIMATION = "rollout.gif"
_MOST_NAMED = 4
_MOST_TEXT = 300_000


@dataclass(frozen=True)
class ModelView:
    """A context model and what it says about the data that it was learned from.

    Attributes:
        summary: the content of summary.json of a fit.
        timeline: the data, drawn; None where it was not kept.
        context_names: words of the true contexts; empty where they have numbers.
        notes: what was decided when the data was read.
    """

    summary: dict[str, Any]
    timeline: Timeline | None
    context_names: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class ReportPage:
    """The content of one page.

    Attributes:
        kind: `fit`, `run`, `runs` or `studies`.
        title: what it is about.
        folder: where it was read.
        settings: text of config.yaml.
        model: the context model of a fit, or the last one of a run.
        history: learning curve and summary of a run.
        comparison: several runs side by side.
        starts: when a run was begun and resumed.
        animation: an episode as a GIF.
        notes: what is left out and why, a sentence each.
        studies: the pages of `mbrl-hdp reproduce`.
    """

    kind: str
    title: str
    folder: str
    settings: str = ""
    model: ModelView | None = None
    history: RunHistory | None = None
    comparison: Comparison | None = None
    starts: Sequence[dict[str, Any]] = ()
    animation: bytes | None = None
    notes: list[str] = field(default_factory=list)
    studies: Sequence[StudySection] = ()


def gather(paths: Sequence[str | Path]) -> ReportPage:
    """Read the folder of a fit, of a run, of several runs, of a sweep or of studies.

    Raises:
        DataError: if there is nothing to report, or fits are among several folders.
        CheckpointError: if a file is damaged, or a link leads out of a folder.
    """
    folders = [Path(path) for path in paths]
    if not folders:
        raise DataError("which folder? name a fit (out=DIR), a run, several runs or a sweep")
    for folder in folders:
        if folder.is_dir():
            check_links(folder)
    if len(folders) == 1 and is_fit(folders[0]):
        return fit_page(folders[0])
    if len(folders) == 1 and (folders[0] / "metrics.csv").is_file():
        return run_page(folders[0])
    if len(folders) == 1 and is_results(folders[0]):
        sections = study_sections(folders[0])
        return ReportPage("studies", title_of(sections), str(folders[0]), studies=sections)
    fits = [str(folder) for folder in folders if is_fit(folder)]
    if fits:
        raise DataError(f"a page shows one fit, or one or several runs; report {', '.join(fits)} alone")
    return runs_page(folders)


def is_fit(folder: Path) -> bool:
    """Return whether a folder is one that `mbrl-hdp fit` wrote."""
    return (folder / "summary.json").is_file() and (folder / "model.safetensors").is_file()


def fit_page(folder: Path) -> ReportPage:
    """Read what `mbrl-hdp fit` wrote."""
    settings = _text(folder / "config.yaml")
    columns = ColumnNames.load(folder)
    timeline = Timeline.load(folder)
    notes = [] if timeline else ["The log is not shown: an earlier version wrote this folder; fit again to see it."]
    names, read = ((), ()) if columns is None else (columns.context_names, columns.notes)
    view = ModelView(read_json(folder / "summary.json"), timeline, names, read)
    source = str(_parsed(settings, folder).get("data") or folder.resolve().name)
    return ReportPage("fit", Path(source).name, str(folder), model=view, settings=settings, notes=notes)


def run_page(folder: Path) -> ReportPage:
    """Read a run directory, finished or not."""
    history = read_run(folder)
    notes: list[str] = []
    title = f"{history.agent or 'run'} on {history.env or folder.resolve().name}"
    return ReportPage(
        "run",
        title,
        str(folder),
        model=_model_of_run(folder, notes),
        history=history,
        settings=_text(folder / "config.yaml"),
        starts=read_history(folder),
        animation=_animation(folder, notes),
        notes=notes,
    )


def runs_page(folders: Sequence[Path]) -> ReportPage:
    """Read several runs, or the runs below a folder."""
    from mbrl_hdp.report.compare import compare_runs

    found = compare_runs(folders)
    named = [row.name for row in found.rows]
    title = ", ".join(named) if len(named) <= _MOST_NAMED else f"{len(named)} groups of runs"
    if len(found.envs) == 1 and found.envs[0] and found.envs[0] not in title:
        title = f"{title} on {found.envs[0]}"
    return ReportPage("runs", title, ", ".join(map(str, folders)), comparison=found, notes=list(found.remarks))


def _model_of_run(folder: Path, notes: list[str]) -> ModelView | None:
    """Label the data of the last checkpoint by its model; None where there is no model."""
    checkpoints = [path for path in (folder / "checkpoints").glob("epoch_*") if (path / "model").is_dir()]
    if not checkpoints:
        return None
    last = max(checkpoints, key=lambda path: (len(path.name), path.name))
    try:
        model = load(last / "model")
        data = Trajectories.load(last / "data.npz")
    except (MbrlHdpError, OSError) as error:  # a running training removes its older checkpoints
        notes.append(f"The model is not shown: {error}")
        return None
    found = model.analyse(data)
    log = Log(data, numbered("obs_", data.obs_dim), numbered("act_", data.act_dim), model.task.dt)
    return ModelView(summarise(model, found).as_dict(), Timeline.of(found, log))


def _animation(folder: Path, notes: list[str]) -> bytes | None:
    path = folder / ANIMATION
    if not path.exists():
        return None
    problem = file_problem(path, MAX_ANIMATION_BYTES)
    content = b"" if problem else path.read_bytes()
    if problem is None and not content.startswith((b"GIF87a", b"GIF89a")):
        problem = "is no GIF"
    if problem is not None:
        notes.append(f"The animation is not shown: {path.name} {problem}.")
        return None
    return content


def _text(path: Path) -> str:
    text = read_words(path) if path.is_file() else ""
    if len(text) > _MOST_TEXT:
        raise DataError(f"{path} has {len(text):,} characters; settings of at most {_MOST_TEXT:,} are shown")
    return text


def _parsed(text: str, folder: Path) -> dict[str, Any]:
    check_plain_yaml(text, str(folder / "config.yaml"))
    words = yaml.safe_load(text)
    return words if isinstance(words, dict) else {}
