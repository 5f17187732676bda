"""Algorithm 1: collect, learn the model, distil, relabel, improve the policy. The only file that closes the circle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mbrl_hdp.control.agent import Epoch
from mbrl_hdp.control.rewards import LearnedReward
from mbrl_hdp.control.tracker import BeliefTracker, ContextTracker, NothingTracker, TruthTracker
from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import StepError
from mbrl_hdp.experiments.agent_setup import GuardedAgent, make_agent
from mbrl_hdp.experiments.budget import Budget, budget_for
from mbrl_hdp.experiments.checkpoint import Snapshot, latest_snapshot, write_snapshot
from mbrl_hdp.experiments.config import MainConfig
from mbrl_hdp.experiments.diagnostics import SwitchLoss, believed_contexts, slots_of_truth, switch_loss
from mbrl_hdp.experiments.episodes import Observer, Record, Vector, run_episode
from mbrl_hdp.experiments.export import export
from mbrl_hdp.experiments.metrics import RunLog, SilentLog
from mbrl_hdp.experiments.model_update import update_model
from mbrl_hdp.experiments.novelty import num_alarms
from mbrl_hdp.experiments.run_lock import run_lock
from mbrl_hdp.experiments.summary import Evaluation, evaluation_of, write_summary
from mbrl_hdp.experiments.tasks import Task, make_task
from mbrl_hdp.hooks import Registry
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.seeding import seed_everything, sub_seed
from mbrl_hdp.types import EpisodeSummary

# Gradient steps of a learned reward for every one of the model: its minibatches are small.
_REWARD_STEPS = 4


@dataclass
class Run:
    """Everything that changes while Algorithm 1 runs.

    Attributes:
        tracker: what is appended to the agent's observations; None while an agent that sees the belief has no model.
    """

    config: MainConfig
    task: Task
    agent: GuardedAgent
    budget: Budget
    registry: Registry
    data: Trajectories | None = None
    num_episodes: int = 0
    env_steps: int = 0
    model: ContextModel | None = None
    tracker: ContextTracker | None = None
    times: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sees, obs_dim = self.agent.spec.sees, self.task.obs_dim
        if sees == "truth":
            self.tracker = TruthTracker(obs_dim, self.task.num_contexts or 0)
        elif sees == "nothing":
            self.tracker = NothingTracker(obs_dim)

    def use_model(self, model: ContextModel) -> None:
        """Use a new model; beliefs are computed with it from now on."""
        self.model = model
        if self.agent.spec.sees == "belief":
            self.tracker = BeliefTracker(model)

    @property
    def learned_reward(self) -> LearnedReward | None:
        """The reward of imagined steps where it is learned (env.reward=learned) and the agent uses it."""
        reward = self.task.reward_fn
        return reward if self.agent.spec.needs_reward and isinstance(reward, LearnedReward) else None


def train(config: MainConfig, registry: Registry, folder: Path, progress: bool = True) -> Evaluation:
    """Run Algorithm 1 to its end, going on from the last checkpoint in `folder` if there is one.

    Args:
        config: what to do.
        registry: plugins to choose from.
        folder: run directory; metrics, checkpoints and the summary go there.
        progress: show what is happening.

    Returns:
        The last evaluation.
    """
    run = start_run(config, registry)
    folder.mkdir(parents=True, exist_ok=True)
    log = RunLog(folder, run.budget.num_epochs, progress, config.tracker, asdict(config))
    with run_lock(folder), log:
        first = _resume(run, log, latest_snapshot(folder))
        for epoch in range(first, run.budget.num_epochs):
            seed_everything(sub_seed(config.seed, "epoch", epoch))  # so that a resumed run is the same run
            run.times = {}
            with _timed(run, "env_s"):
                new, metrics = collect_episodes(run, epoch, log)
            with _timed(run, "model_s"):
                alarms = num_alarms(run, new)
                metrics |= {} if alarms is None else {"novelty_alarms": alarms}
                is_refit = run.agent.spec.needs_model and update_model(run, epoch, log, is_alarmed=bool(alarms))
                metrics |= update_reward(run, epoch, log) if is_refit else {}
            with _timed(run, "agent_s"):
                metrics |= update_agent(run, epoch, new, is_refit)
            if _is_due(epoch + 1, run.budget.eval_every) or epoch + 1 == run.budget.num_epochs:
                with _timed(run, "evaluate_s"):
                    metrics |= _evaluation_row(evaluate(run, run.budget.eval_episodes, f"epoch {epoch}", log))
            log.epoch(_row(run, epoch, new, metrics))
            write_agent_files(folder, run)
            write_snapshot(folder, Snapshot(epoch + 1, run.num_episodes, run.env_steps, log.rows), run)
        log.phase(run.budget.final_eval_episodes)
        with reported(run):
            records = play_evaluation(run, run.budget.final_eval_episodes, "final", log)
            loss = what_switches_cost(run, records, log)
        result = evaluation_of(records, run.task.episode_scores)
        write_summary(folder, run, result, loss, log)
        export(folder / "final", run)
    run.task.close()
    return result


def write_agent_files(folder: Path, run: Run) -> None:
    """Write what the agent has to say beside its metrics."""
    for name, text in run.agent.run_files().items():
        with atomic_path(folder / name) as path:
            path.write_text(text)


def start_run(config: MainConfig, registry: Registry) -> Run:
    """Build environment, agent and budget; nothing is learned yet."""
    task = make_task(config.env, config.max_contexts, sub_seed(config.seed, "reward"))
    budget = run_budget(config, registry)
    seed_everything(config.seed)
    return Run(config, task, make_agent(config, registry, task, budget), budget, registry)


def run_budget(config: MainConfig, registry: Registry) -> Budget:
    """Return the numbers of a run: the row of its agent's family in the environment's preset, and `budget.*`."""
    family = registry.agent_spec(config.agent.name).budget
    return budget_for(config.profile, family, config.env.budgets, config.budget)


def collect_episodes(run: Run, epoch: int, log: RunLog | SilentLog) -> tuple[list[Record], dict[str, float]]:
    """Sample trajectories with the agent, at random until it is ready (line 1 of the loop); return its metrics, too."""
    count = run.budget.warm_episodes if epoch == 0 else run.budget.episodes_per_epoch
    is_ready = run.agent.is_ready
    phase = "train" if is_ready else "warm_start"
    records, ends = [], []
    for number in range(count):
        log.says(f"epoch {epoch}: episode {number + 1}/{count}")
        seed = sub_seed(run.config.seed, "train", run.num_episodes)
        with _named(f"training episode {run.num_episodes}"):
            record = _play(run, seed, explore=True) if is_ready else _play_at_random(run, seed)
        records.append(record)
        ends.append(run.agent.end_episode() if is_ready else {})
        run.registry.episode_ended(_episode_summary(run, record, phase))
        run.num_episodes += 1
        run.env_steps += len(record.episode.obs) - 1
    new = Trajectories.from_episodes([record.episode for record in records])
    run.data = new if run.data is None else Trajectories.concatenate([run.data, new])
    return records, {name: float(np.mean([end[name] for end in ends if name in end])) for name in _names(ends)}


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Name the episode in which a step failed."""
    try:
        yield
    except StepError as error:
        raise StepError(f"{name}, {error}") from error


def _names(rows: list[Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _play(run: Run, seed: int, explore: bool, tracker: ContextTracker | None = None) -> Record:
    """Run one episode with the agent; it learns from the steps of training episodes only."""
    run.agent.begin_episode()
    act, observe = (_timed_act(run), run.agent.observe) if explore else (_act_without_exploring(run), _watch(run))
    record = run_episode(run.task.env, act, tracker or run.tracker, seed, observe=observe)
    own = run.agent.labels_of(len(record.episode.obs) - 1)
    return record if own is None else replace(record, labels=own)


def _play_at_random(run: Run, seed: int) -> Record:
    """Run one episode with uniform random actions; a belief is computed once there is a model that has seen it."""
    rng = np.random.default_rng(sub_seed(seed, "random actions"))
    tracker = None if run.agent.spec.sees == "belief" else run.tracker
    return run_episode(run.task.env, lambda _: rng.uniform(run.task.act_low, run.task.act_high), tracker, seed)


def _act_without_exploring(run: Run) -> Callable[[Vector], Vector]:
    return lambda packed: run.agent.act(packed, explore=False)


def _watch(run: Run) -> Observer:
    return lambda packed, act, _reward, next_packed, _terminated: run.agent.watch(packed, act, next_packed)


def _timed_act(run: Run) -> Callable[[Vector], Vector]:
    """Act with exploration; the time goes to the agent's account, not the environment's."""

    def act(packed: Vector) -> Vector:
        with _timed(run, "act_s", inside="env_s"):
            return run.agent.act(packed, explore=True)

    return act


def update_reward(run: Run, epoch: int, log: RunLog | SilentLog) -> dict[str, float]:
    """Go on fitting the reward of imagined steps to all data, where it is learned with the model."""
    if run.learned_reward is None:
        return {}
    assert run.model is not None
    assert run.data is not None
    num_steps = _REWARD_STEPS * (run.budget.warm_model_steps if epoch == 0 else run.budget.model_steps)
    seed = sub_seed(run.config.seed, "reward", epoch)
    if run.data.reward is not None and not np.ptp(run.data.reward[run.data.is_step]):
        log.warns(
            f"epoch {epoch}: every reward so far is {run.data.reward[0, 0]:g}, so env.reward=learned has learned "
            "nothing to aim at; collect more at random (budget.warm_episodes), or write the reward as a function"
        )
    return {"reward_rmse": run.learned_reward.fit(run.model, run.data, num_steps, seed)}


def update_agent(run: Run, epoch: int, new: list[Record], is_refit: bool) -> dict[str, float]:
    """Recompute the beliefs of stored episodes and update the policy; planners only take the new model."""
    num_updates = run.budget.warm_agent_updates if epoch == 0 else run.budget.agent_updates
    episodes = Trajectories.from_episodes([record.episode for record in new])
    return dict(run.agent.learn(Epoch(episodes, _appended(new), run.model, is_refit, num_updates)))


def _appended(records: list[Record]) -> Vector | None:
    """Return what was appended to the observations of episodes, `N T+1 K`, NaN beyond an episode's end."""
    parts = [record.beliefs for record in records if record.beliefs is not None]
    if not parts:
        return None
    padded = np.full((len(parts), max(len(part) for part in parts), parts[0].shape[1]), np.nan)
    for row, part in zip(padded, parts, strict=True):
        row[: len(part)] = part
    return padded


def evaluate(run: Run, num_episodes: int, name: str, log: RunLog | SilentLog, seed: int | None = None) -> Evaluation:
    """Run separate, seeded episodes without exploration; every evaluation of a run uses the same seeds by default."""
    return evaluation_of(play_evaluation(run, num_episodes, name, log, seed=seed), run.task.episode_scores)


@contextmanager
def reported(run: Run) -> Iterator[None]:
    """Within this block episodes are played in the environment of reported evaluations."""
    training = run.task
    if training.report_env is not None:
        run.task = replace(training, env=training.report_env)
    try:
        yield
    finally:
        run.task = training


def play_evaluation(
    run: Run,
    num_episodes: int,
    name: str,
    log: RunLog | SilentLog,
    tracker: ContextTracker | None = None,
    seed: int | None = None,
) -> list[Record]:
    """Play the evaluation episodes.

    Args:
        run: model, agent and environment.
        num_episodes: how many.
        name: what progress calls them.
        log: where progress goes.
        tracker: replaces what the agent sees beside the observation.
        seed: seed of the episodes; the run's own by default.
    """
    records = []
    for number in range(num_episodes):
        log.says(f"{name}: evaluating {number + 1}/{num_episodes}")
        episode_seed = sub_seed(run.config.seed if seed is None else seed, "evaluate", number)
        with _named(f"evaluation episode {number}"):
            is_ready = run.agent.is_ready
            record = _play(run, episode_seed, False, tracker) if is_ready else _play_at_random(run, episode_seed)
        records.append(record)
        run.registry.episode_ended(_episode_summary(run, record, "evaluate"))
    return records


def what_switches_cost(run: Run, records: list[Record], log: RunLog | SilentLog) -> SwitchLoss | None:
    """Play the evaluation episodes again with the truth in the belief's place (Theorem 3); None where unknown."""
    if run.model is None or run.task.num_contexts is None or run.agent.spec.sees != "belief":
        return None
    slots = slots_of_truth(records, run.model, run.task.num_contexts)
    if slots is None:
        return None
    tracker = TruthTracker(run.task.obs_dim, run.model.task.max_contexts, slots)
    log.phase(len(records))
    known = play_evaluation(run, len(records), "known contexts", log, tracker)
    return switch_loss(records, known, believed_contexts(records, slots))


def _resume(run: Run, log: RunLog, snapshot: Callable[[Run], Snapshot] | None) -> int:
    """Restore the last checkpoint; return the epoch to continue with."""
    if snapshot is None:
        return 0
    found = snapshot(run)
    run.num_episodes, run.env_steps = found.num_episodes, found.env_steps
    log.restore(found.rows)
    return found.next_epoch


def _row(run: Run, epoch: int, new: list[Record], metrics: dict[str, float]) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "num_real_episodes": run.num_episodes,
        "env_steps": run.env_steps,
        "train_return": float(np.mean([record.episode_return for record in new])),
        "num_contexts": None if run.model is None else run.model.num_contexts,
        **metrics,
        **{name: round(seconds, 3) for name, seconds in run.times.items()},
    }


def _evaluation_row(result: Evaluation) -> dict[str, float]:
    return {
        "return_mean": result.return_mean,
        "return_std": result.return_std,
        "context_accuracy": float("nan") if result.context_accuracy is None else result.context_accuracy,
        "switch_delay": float("nan") if result.switch_delay is None else result.switch_delay,
        **result.scores,
    }


def _episode_summary(run: Run, record: Record, phase: str) -> EpisodeSummary:
    return EpisodeSummary(
        episode=run.num_episodes,
        phase=phase,
        episode_return=record.episode_return,
        num_steps=len(record.episode.obs) - 1,
        seed=record.seed,
        num_contexts=None if run.model is None else run.model.num_contexts,
    )


def _is_due(epoch: int, every: int) -> bool:
    return epoch % every == 0


class _timed:  # noqa: N801 - reads as a word
    """Add the seconds of a block to the run's times, and take them from those of a block around it."""

    def __init__(self, run: Run, name: str, inside: str | None = None) -> None:
        self.run, self.name, self.inside = run, name, inside

    def __enter__(self) -> None:
        self.started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self.started
        self.run.times[self.name] = self.run.times.get(self.name, 0.0) + seconds
        if self.inside is not None:
            self.run.times[self.inside] = self.run.times.get(self.inside, 0.0) - seconds
