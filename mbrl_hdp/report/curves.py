"""Learning curves of training runs, drawn from what every run directory holds: metrics.csv."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.errors import DataError, PluginError
from mbrl_hdp.experiments.fingerprint import installed_plugins
from mbrl_hdp.report.palette import GREY, SHADE, context_colours

# The paper's Tables 2 and 3: mean return of three seeds.
PAPER_RETURNS: Mapping[tuple[str, str], float] = {
    ("cartpole_hard", "c_cem"): 87.63,
    ("cartpole_hard", "c_sac"): 85.38,
    ("cartpole_hard", "fi_sac"): 84.50,
    ("cartpole_soft01", "c_cem"): 60.15,
    ("cartpole_soft01", "c_sac"): 76.80,
    ("cartpole_soft01", "fi_sac"): 76.63,
    ("cartpole_soft03", "c_cem"): 83.15,
    ("cartpole_soft03", "c_sac"): 86.76,
    ("cartpole_soft03", "fi_sac"): 84.75,
    ("cartpole_soft05", "c_cem"): 89.08,
    ("cartpole_soft05", "c_sac"): 88.35,
    ("cartpole_soft05", "fi_sac"): 86.92,
    ("drone", "c_cem"): 32.30,
    ("drone", "c_sac"): 28.41,
    ("drone", "fi_sac"): 36.13,
    ("drone", "ni_sac"): -0.80,
    ("intersection", "c_cem"): 529.75,
    ("intersection", "c_sac"): 555.11,
    ("intersection", "fi_sac"): 572.09,
    ("intersection", "ni_sac"): 499.62,
}
FILE_NAME = "learning_curve.png"
_FLAT = 0.2
"""Evaluations that span less than this share of the axis are shown once more, enlarged."""

Column = Float[np.ndarray, " n"]


@dataclass(frozen=True)
class RunHistory:
    """The learning curve that a run directory holds.

    Attributes:
        folder: the run directory.
        env: name of the environment.
        agent: name of the agent.
        seed: seed of the run, None where there is no config.yaml.
        columns: metrics.csv, one array a column, NaN where a cell is empty.
        summary: summary.json; empty while the run is not finished.
        starts_random: whether the agent takes its first episodes at random; False where it is not installed.
    """

    folder: Path
    env: str
    agent: str
    seed: int | None
    columns: Mapping[str, Column]
    summary: Mapping[str, Any]
    starts_random: bool

    @property
    def evaluations(self) -> tuple[Column, Column, Column]:
        """Real episodes, mean return and its standard deviation over the episodes, at every evaluation."""
        empty = np.full_like(self.columns["num_real_episodes"], np.nan)
        mean = self.columns.get("return_mean", empty)
        done = np.isfinite(mean)
        return self.columns["num_real_episodes"][done], mean[done], self.columns.get("return_std", empty)[done]

    @property
    def random_return(self) -> float | None:
        """Mean return of the warm start's episodes, where the agent takes them at random."""
        return float(self.columns["train_return"][0]) if self.starts_random else None


def read_run(folder: str | Path) -> RunHistory:
    """Read a run directory, finished or not.

    Raises:
        DataError: if it has no metrics.csv, or one that no run wrote.
    """
    folder = Path(folder)
    try:
        with (folder / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise DataError(
            f"{folder} is not a run directory of `mbrl-hdp train`: metrics.csv: {error.strerror}"
        ) from error
    if not rows or not {"num_real_episodes", "train_return"} <= set(rows[0]):
        raise DataError(f"{folder / 'metrics.csv'} holds no epoch yet; wait for the first one")
    try:
        columns = {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}
    except (ValueError, TypeError) as error:
        raise DataError(f"{folder / 'metrics.csv'} has a cell that is not a number: {error}") from error
    config = _mapping(folder / "config.yaml")
    names = [str((config.get(group) or {}).get("name") or "") for group in ("env", "agent")]
    summary, seed = _mapping(folder / "summary.json"), config.get("seed")
    return RunHistory(folder, names[0], names[1], seed, columns, summary, _starts_random(names[1]))


def _starts_random(agent: str) -> bool:
    try:
        return installed_plugins().agent_spec(agent).starts_random
    except PluginError:
        return False


def _mapping(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON mapping; an empty one where there is no file."""
    if not path.is_file():
        return {}
    try:
        words = json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return words if isinstance(words, dict) else {}


def write_learning_curve(folder: str | Path, path: str | Path | None = None, true_contexts: int | None = None) -> Path:
    """Draw one run's learning curve into its directory as learning_curve.png, or to another path; return the path."""
    target = Path(folder) / FILE_NAME if path is None else Path(path)
    figure = learning_curve([folder], true_contexts)
    with atomic_path(target) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
    return target


def learning_curve(run_folders: Sequence[str | Path], true_contexts: int | None = None) -> Figure:
    """Draw the return of every evaluation over the real episodes seen, and below it the number of contexts found.

    Runs of the same agent are seeds of one curve: the line is their mean, the band reaches from the worst seed to the
    best. The band of a single run is the standard deviation of its evaluation episodes. The paper's return and that of
    random actions (the warm start's own episodes) are drawn where they are known.

    Args:
        run_folders: run directories of `mbrl-hdp train` on one environment, finished or not.
        true_contexts: how many contexts there really are, drawn beside the number found.

    Raises:
        DataError: if a folder is no run directory, or the runs are of different environments.

    Example:
        >>> learning_curve(sorted(Path("multirun/2022-01-01").glob("*/"))).savefig("seeds.png")
    """
    runs = [read_run(folder) for folder in run_folders]
    if not runs:
        raise DataError("a learning curve needs at least one run directory")
    if len({run.env for run in runs}) > 1:
        raise DataError(f"one figure shows one environment, got runs of {', '.join(sorted({run.env for run in runs}))}")
    agents = {agent: [run for run in runs if run.agent == agent] for agent in dict.fromkeys(run.agent for run in runs)}
    has_contexts = any(np.isfinite(run.columns.get("num_contexts", np.nan)).any() for run in runs)
    figure = Figure(figsize=(8.0, 5.4 if has_contexts else 4.2), layout="constrained")
    axes = figure.subplots(1 + has_contexts, 1, sharex=True, squeeze=False, height_ratios=[4, 1][: 1 + has_contexts])
    top, colours = axes[0, 0], dict(zip(agents, context_colours(len(agents)), strict=True))
    _draw_returns(top, agents, colours)
    _draw_warm_start(top, runs)
    _enlarge(top, agents, colours)
    top.set(ylabel="return of an episode", xlim=(0, None))
    top.set_title(f"Learning curve{f' on {runs[0].env}' if runs[0].env else ''}", loc="left", parse_math=False)
    figure.legend(*top.get_legend_handles_labels(), loc="outside lower left", ncols=2, frameon=False, fontsize=9)
    if has_contexts:
        _draw_contexts(axes[1, 0], agents, colours, true_contexts)
    axes[-1, 0].set_xlabel("real episodes seen so far")
    return figure


def _draw_returns(ax: Any, agents: Mapping[str, list[RunHistory]], colours: Mapping[str, Any]) -> None:
    for agent, runs in agents.items():
        _draw_curve(ax, runs, colours[agent], _label(agent, runs))
        paper = PAPER_RETURNS.get((runs[0].env, agent))
        if paper is not None:
            name = f"{_agent_name(agent)} in the paper: {paper:g}"
            ax.axhline(paper, color=colours[agent], linestyle="--", linewidth=1.2, zorder=1, label=name)
    random = [run.random_return for runs in agents.values() for run in runs if run.random_return is not None]
    if random:
        name = f"random actions: {np.mean(random):.1f}"
        ax.axhline(float(np.mean(random)), color=GREY, linestyle=":", linewidth=1.5, label=name)
    ax.spines[["top", "right"]].set_visible(False)
    ax.margins(y=0.08)


def _draw_curve(ax: Any, runs: list[RunHistory], colour: Any, label: str | None = None) -> None:
    episodes, middle, low, high = _band(runs)
    if len(episodes):
        ax.fill_between(episodes, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(episodes, middle, "o-", color=colour, markersize=4, linewidth=1.6, label=label)
        if len(runs) > 1:
            for run in runs:
                ax.plot(*run.evaluations[:2], color=colour, linewidth=0.7, alpha=0.6)


def _band(runs: list[RunHistory]) -> tuple[Column, Column, Column, Column]:
    """Return episodes, mean, lower and upper edge; seeds are compared where all of them have been evaluated."""
    if len(runs) == 1:
        episodes, mean, std = runs[0].evaluations
        return episodes, mean, mean - std, mean + std
    seeds = [run.evaluations[:2] for run in runs if len(run.evaluations[0])]
    if not seeds:
        return (np.zeros(0),) * 4
    first, last = max(x.min() for x, _ in seeds), min(x.max() for x, _ in seeds)
    places = np.unique(np.concatenate([x for x, _ in seeds]))
    places = places[(places >= first) & (places <= last)]
    values = np.array([np.interp(places, x, y) for x, y in seeds])
    return places, values.mean(0), values.min(0), values.max(0)


def _label(agent: str, runs: list[RunHistory]) -> str:
    finals = [run.summary["return_mean"] for run in runs if "return_mean" in run.summary]
    words = f"{_agent_name(agent)}, {f'{len(runs)} seeds' if len(runs) > 1 else f'seed {runs[0].seed}'}"
    words += ": mean, worst and best seed" if len(runs) > 1 else ": mean and spread of the evaluation episodes"
    if len(runs) == len(finals) == 1:
        run = runs[0].summary
        end = f"{run['return_mean']:.2f} ± {run['return_std']:.2f} over {run['num_eval_episodes']} episodes"
        return f"{words}\n(at the end {end})"
    return f"{words}\n(at the end {np.mean(finals):.2f})" if finals else words


def _agent_name(agent: str) -> str:
    return agent.upper().replace("_", "-") if agent else "return"


def _draw_warm_start(ax: Any, runs: list[RunHistory]) -> None:
    """Shade the episodes before the first model or policy; the agent has not learned anything there."""
    until = min(float(run.columns["num_real_episodes"][0]) for run in runs)
    if all(run.starts_random for run in runs):
        ax.axvspan(0, until, color=SHADE, zorder=0)
        ax.annotate(f"warm start:\n{until:g} episodes\nof random actions", (until / 2, 0.5), ha="center", va="center",
                    xycoords=("data", "axes fraction"), fontsize=9, color=GREY)  # fmt: skip


def _enlarge(ax: Any, agents: Mapping[str, list[RunHistory]], colours: Mapping[str, Any]) -> None:
    """Show nearly flat evaluations once more on an axis of their own, in the empty middle."""
    bands = [_band(runs) for runs in agents.values()]
    ends = [edge for _, _, low, high in bands for edge in (*low, *high) if np.isfinite(edge)]
    if len(ends) < 4:
        return
    bottom, top = ax.get_ylim()
    middle = 0.5 * (max(ends) + min(ends))
    if max(ends) - min(ends) > _FLAT * (top - bottom) or middle < bottom + 0.75 * (top - bottom):
        return
    inset = ax.inset_axes((0.5, 0.22, 0.43, 0.44))
    for agent, runs in agents.items():
        _draw_curve(inset, runs, colours[agent])
        paper = PAPER_RETURNS.get((runs[0].env, agent))
        if paper is not None and abs(paper - middle) < 2 * (max(ends) - min(ends)):
            inset.axhline(paper, color=colours[agent], linestyle="--", linewidth=1.2, zorder=1)
            inset.annotate("paper", (1.01, paper), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    inset.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    inset.tick_params(labelsize=8)
    inset.set_title("the evaluations, enlarged", fontsize=9)
    inset.set_facecolor("white")


def _draw_contexts(
    ax: Any, agents: Mapping[str, list[RunHistory]], colours: Mapping[str, Any], true_contexts: int | None
) -> None:
    most = float(true_contexts or 1)
    for agent, runs in agents.items():
        for run in runs:
            found = run.columns.get("num_contexts", np.full_like(run.columns["num_real_episodes"], np.nan))
            ax.plot(run.columns["num_real_episodes"], found, "s-", color=colours[agent], markersize=4, linewidth=1.0)
            most = max([most, *found[np.isfinite(found)]])
    if true_contexts is not None:
        ax.axhline(true_contexts, color=GREY, linestyle=":", linewidth=1.5)
        ax.annotate(f"truth: {true_contexts}", (0.01, true_contexts), xycoords=("axes fraction", "data"),
                    textcoords="offset points", xytext=(0, 3), color=GREY, fontsize=9)  # fmt: skip
    ax.set(ylabel="contexts\nfound", ylim=(0, most + 1))
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.spines[["top", "right"]].set_visible(False)
