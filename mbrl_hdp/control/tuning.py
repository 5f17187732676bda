"""Choose a planner's settings on the learned model alone: no step of the environment is spent.

Candidates play the same imagined episodes (starts from the data, contexts from the learned chain, transitions with the
learned noise, the belief filtered as in reality). Two grids in turn, each by successive halving: first horizon, context
mode and noise colour, then feedback, spread and population around the winner. Of the last candidates that are equally
good within a standard error, the cheapest is taken: short plans rely less on a model that is not exact. Only settings
that are at their defaults are varied. How many episodes are played follows from an estimate of their cost, not from a
clock, so that the same seed always leads to the same choice.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mbrl_hdp.control.planner import make_planner
from mbrl_hdp.control.planner_config import PlannerConfig
from mbrl_hdp.control.rewards import AnyRewardFn, RewardFn, uses_context
from mbrl_hdp.control.tracker import BeliefTracker
from mbrl_hdp.errors import CheckpointError
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.seeding import torch_generator

FIRST_GRID: dict[str, tuple[Any, ...]] = {
    "context_mode": ("paths", "held"),
    "horizon": (4, 7, 10, 15, 25),
    "noise_color": (0.5, 0.9),
}
SECOND_GRID: dict[str, tuple[Any, ...]] = {
    "context_mode": ("feedback",),
    "initial_std": (2.0, 0.5),
    "population_size": (256,),
}
TUNED = {*FIRST_GRID, *SECOND_GRID, "num_elites"}
MOST_STEPS = 100
MOST_EPISODES = 40  # of one candidate
_KEPT = 3  # one of so many candidates survives a round
_FIRST_SHARE = 0.6  # of the time, for the first grid
# Processor seconds, measured on a busy machine: of an iteration of an optimiser, of one imagined step of one plan for
# every weight of a network, and of an action besides.
_PER_ITERATION, _PER_WEIGHT, _PER_ACTION = 5e-4, 2.4e-10, 2e-3


@dataclass(frozen=True)
class ImaginedTask:
    """The learned model as a task.

    Attributes:
        model: the learned model.
        reward_fn: reward of imagined steps.
        termination_fn: termination of imagined steps.
        act_low: lower action bounds.
        act_high: upper action bounds.
        starts: first observations of real episodes.
        num_steps: length of an imagined episode.
        seed: seed of episodes and planners.
    """

    model: ContextModel
    reward_fn: AnyRewardFn
    termination_fn: RewardFn
    act_low: Float[np.ndarray, " A"]
    act_high: Float[np.ndarray, " A"]
    starts: Float[np.ndarray, "N S"]
    num_steps: int
    seed: int


@dataclass
class PlannerTrial:
    """Settings that are tried, and their returns in the imagined episodes."""

    config: PlannerConfig
    returns: list[float] = field(default_factory=list)

    def mean_of(self, num_episodes: int) -> float:
        """Return the mean return of the first episodes."""
        return float(np.mean(self.returns[:num_episodes]))


@dataclass(frozen=True)
class Tuning:
    """A finished choice.

    Attributes:
        chosen: the settings that differ from those asked for.
        rows: every candidate with its settings, mean return and episodes, the winner first.
        num_steps: length of the imagined episodes.
    """

    chosen: dict[str, Any]
    rows: list[dict[str, Any]]
    num_steps: int

    def apply(self, config: PlannerConfig) -> PlannerConfig:
        """Return the settings with those that were chosen.

        Raises:
            CheckpointError: if a setting is none that can be chosen; a checkpoint may come from anybody.
        """
        if not set(self.chosen) <= TUNED:
            raise CheckpointError(f"the saved choice of the planner also sets {sorted(set(self.chosen) - TUNED)}")
        return dataclasses.replace(config, **self.chosen)

    def markdown(self) -> str:
        """Return the table as a page."""
        names = [name for name in self.rows[0] if name not in ("return", "std_error", "episodes")]
        chosen = ", ".join(f"planner.{name}={value}" for name, value in self.chosen.items()) or "as they were"
        length = "1 step" if self.num_steps == 1 else f"{self.num_steps} steps"
        lines = [
            "# Choice of the planner's settings",
            "",
            f"Chosen: {chosen}. Imagined episodes of {length} on the learned model, no step of the "
            "environment. The winner comes first: the cheapest of those that are best within a standard error, "
            "episode by episode. A candidate with few episodes lost early. All play the same episodes.",
            "",
            "| " + " | ".join([*names, "return", "episodes"]) + " |",
            "|" + "---|" * (len(names) + 2),
        ]
        for row in self.rows:
            error = "" if row["std_error"] is None else f" ± {row['std_error']:.2f}"
            cells = [*(str(row[name]) for name in names), f"{row['return']:.2f}{error}"]
            lines.append("| " + " | ".join([*cells, str(row["episodes"])]) + " |")
        return "\n".join([*lines, ""])


def tune_planner(config: PlannerConfig, task: ImaginedTask) -> Tuning:
    """Choose the settings that earn most on the learned model.

    Args:
        config: where to begin; settings that are not at their defaults stay.
        task: what to play.
    """
    first = [PlannerTrial(config), *candidates(config, config, FIRST_GRID, task.model.num_contexts, is_full=True)]
    task = _affordable(first, task, _FIRST_SHARE * config.tune_seconds)
    winner = _halve(first, task, _FIRST_SHARE * config.tune_seconds)
    second = [winner, *candidates(winner.config, config, SECOND_GRID, task.model.num_contexts, is_full=False)]
    winner = _halve(second, task, (1.0 - _FIRST_SHARE) * config.tune_seconds, incumbent=winner)
    chosen = {
        f.name: getattr(winner.config, f.name)
        for f in dataclasses.fields(config)
        if getattr(winner.config, f.name) != getattr(config, f.name)
    }
    others = [one for one in [*first, *second[1:]] if one is not winner]
    others.sort(key=lambda one: (len(one.returns), one.mean_of(MOST_EPISODES)), reverse=True)
    rows = [_row(one) for one in [winner, *others]]
    return Tuning(chosen, rows, task.num_steps)


def candidates(
    base: PlannerConfig,
    asked: PlannerConfig,
    grid: Mapping[str, Sequence[Any]],
    num_contexts: int,
    is_full: bool,
) -> list[PlannerTrial]:
    """Return variations of `base` in the settings that `asked` leaves at their defaults.

    Args:
        base: what is varied.
        asked: the settings as the user has them.
        grid: values to try.
        num_contexts: contexts of the model; with one, all context modes are the same.
        is_full: try every combination; otherwise one change at a time and all together.
    """
    defaults = {f.name: f.default for f in dataclasses.fields(asked)}
    free = {
        name: values for name, values in grid.items() if name in defaults and getattr(asked, name) == defaults[name]
    }
    if num_contexts == 1:
        free.pop("context_mode", None)
    changes: Iterable[dict[str, Any]]
    if is_full:
        changes = (dict(zip(free, values, strict=True)) for values in itertools.product(*free.values()))
    else:
        singles = [{name: value} for name, values in free.items() for value in values]
        changes = [*singles, {name: values[0] for name, values in free.items()}]
    found: list[PlannerConfig] = []
    for change in changes:
        varied = _varied(base, change)
        if varied not in (base, asked, *found):
            found.append(varied)
    return [PlannerTrial(one) for one in found]


def _varied(base: PlannerConfig, change: Mapping[str, Any]) -> PlannerConfig:
    """Change settings; the number of elites grows with the population, plans are no shorter than their replanning."""
    change = dict(change)
    elites, population = getattr(base, "num_elites", None), getattr(base, "population_size", None)
    if "population_size" in change and elites is not None and population is not None:
        change["num_elites"] = max(1, round(elites * change["population_size"] / population))
    if "horizon" in change:
        change["horizon"] = max(change["horizon"], base.replan_freq)
    return dataclasses.replace(base, **change)


def _affordable(all_candidates: list[PlannerTrial], task: ImaginedTask, seconds: float) -> ImaginedTask:
    """Shorten the episodes if one of each candidate would take more than a round's share of the time."""
    cost = sum(episode_seconds(one.config, task) for one in all_candidates) * _num_rounds(all_candidates)
    num_steps = max(1, int(task.num_steps * min(1.0, seconds / cost)))
    return dataclasses.replace(task, num_steps=num_steps)


def _num_rounds(all_candidates: list[PlannerTrial]) -> int:
    """Return the rounds until one candidate is left."""
    return max(1, int(np.ceil(np.log(len(all_candidates)) / np.log(_KEPT))))


def _halve(
    remaining: list[PlannerTrial], task: ImaginedTask, seconds: float, incumbent: PlannerTrial | None = None
) -> PlannerTrial:
    """Play rounds of episodes, each with a third of the candidates before it, until one is left.

    The incumbent, which has more episodes behind it, stays until the last round.
    """
    num_rounds = _num_rounds(remaining)
    while len(remaining) > 1 or not remaining[0].returns:
        num_episodes = _episodes_within(remaining, task, seconds / num_rounds)
        for one in remaining:
            for number in range(len(one.returns), num_episodes):
                one.returns.append(imagined_return(one.config, task, number))
        ranked = sorted(remaining, key=lambda one: one.mean_of(num_episodes), reverse=True)
        num_kept = len(remaining) // _KEPT
        if num_kept <= 1:
            return _cheapest(ranked, task, num_episodes)
        remaining = ranked[:num_kept]
        if incumbent is not None and incumbent not in remaining:
            remaining.append(incumbent)
    return remaining[0]


def _cheapest(ranked: list[PlannerTrial], task: ImaginedTask, num_episodes: int) -> PlannerTrial:
    """Return the cheapest candidate that is no worse than the first by more than a standard error of the difference."""

    def is_as_good(one: PlannerTrial) -> bool:
        loss = np.subtract(ranked[0].returns[:num_episodes], one.returns[:num_episodes])
        return one is ranked[0] or bool(
            num_episodes > 1 and np.isfinite(loss).all() and loss.mean() <= loss.std(ddof=1) / num_episodes**0.5
        )

    return min(filter(is_as_good, ranked), key=lambda one: episode_seconds(one.config, task))


def _episodes_within(remaining: list[PlannerTrial], task: ImaginedTask, seconds: float) -> int:
    """Return the episodes that every candidate can have played after `seconds` more; those played already count."""
    costs = [episode_seconds(one.config, task) for one in remaining]

    def missing(count: int) -> float:
        return sum(max(0, count - len(one.returns)) * cost for one, cost in zip(remaining, costs, strict=True))

    return max((n for n in range(1, MOST_EPISODES + 1) if missing(n) <= seconds), default=1)


def episode_seconds(config: PlannerConfig, task: ImaginedTask) -> float:
    """Estimate the processor time of an imagined episode."""
    numbers = vars(config)
    iterations = numbers.get("num_iterations", 1)
    paths = 1 if config.context_mode == "held" and not config.has_noise else config.num_particles
    weights = sum(value[0].numel() for value in task.model.dynamics.parameters())
    steps = numbers.get("population_size", 500) * paths * config.horizon
    per_plan = iterations * (_PER_ITERATION + _PER_WEIGHT * (weights + 200) * steps)
    return task.num_steps * (_PER_ACTION + per_plan / config.replan_freq)


def imagined_return(config: PlannerConfig, task: ImaginedTask, number: int) -> float:
    """Play one episode on the model; the same number is the same start, contexts and noise for every planner."""
    model = task.model
    planner = make_planner(
        config, model, task.reward_fn, task.termination_fn, task.act_low, task.act_high, task.seed + number
    )
    tracker = BeliefTracker(model)
    generator = torch_generator(task.seed, "tuning", number)
    start = task.starts[int(torch.randint(len(task.starts), (1,), generator=generator))]
    state = model.reset(torch.as_tensor(start, dtype=torch.float32)[None], generator)
    packed, total = tracker.reset(start), 0.0
    with torch.no_grad():
        for _ in range(task.num_steps):
            act = np.clip(planner.act(packed), task.act_low, task.act_high)
            acts = torch.as_tensor(act, dtype=torch.float32)[None]
            slot = model.slots[state["context"]]
            next_obs, _, _, state = model.sample(acts, state, rng=generator)
            arguments = (acts, next_obs, slot) if uses_context(task.reward_fn) else (acts, next_obs)
            total += float(task.reward_fn(*arguments))
            if not np.isfinite(total) or bool(task.termination_fn(acts, next_obs)):
                break
            packed = tracker.update(act, next_obs[0].double().numpy())
    return total if np.isfinite(total) else -np.inf


def _row(one: PlannerTrial) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(one.config) if f.name in {*FIRST_GRID, *SECOND_GRID}]
    error = float(np.std(one.returns, ddof=1) / len(one.returns) ** 0.5) if len(one.returns) > 1 else None
    numbers = {"return": one.mean_of(MOST_EPISODES), "std_error": error, "episodes": len(one.returns)}
    return {**{name: getattr(one.config, name) for name in names}, **numbers}
