"""Algorithm 1: collect, learn the model, distil, relabel, improve the policy. The only file that closes the circle."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mbrl_hdp.control.tracker import ContextTracker, TruthTracker
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.experiments.agents import Agent, agent_family, make_agent
from mbrl_hdp.experiments.budget import Budget, budget_for
from mbrl_hdp.experiments.checkpoint import Snapshot, latest_snapshot, write_snapshot
from mbrl_hdp.experiments.config import MainConfig
from mbrl_hdp.experiments.diagnostics import SwitchLoss, believed_contexts, slots_of_truth, switch_loss
from mbrl_hdp.experiments.episodes import Record, Vector, run_episode
from mbrl_hdp.experiments.export import export
from mbrl_hdp.experiments.fit_settings import fit_config
from mbrl_hdp.experiments.metrics import RunLog, SilentLog
from mbrl_hdp.experiments.summary import Evaluation, evaluation_of, write_summary
from mbrl_hdp.experiments.tasks import Task, make_task
from mbrl_hdp.hooks import Registry
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.inference.model import ContextModel, Part
from mbrl_hdp.seeding import seed_everything, sub_seed
from mbrl_hdp.types import EpisodeSummary

# Gradient steps of a learned reward for every one of the model: its minibatches are small.
_REWARD_STEPS = 4


@dataclass
class Run:
    """Everything that changes while Algorithm 1 runs."""

    config: MainConfig
    task: Task
    agent: Agent
    budget: Budget
    registry: Registry
    model: ContextModel | None = None
    data: Trajectories | None = None
    num_episodes: int = 0
    env_steps: int = 0
    times: dict[str, float] = field(default_factory=dict)


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
    with RunLog(folder, run.budget.num_epochs, progress) as log:
        first = _resume(run, log, latest_snapshot(folder))
        for epoch in range(first, run.budget.num_epochs):
            seed_everything(sub_seed(config.seed, "epoch", epoch))  # so that a resumed run is the same run
            run.times = {}
            with _timed(run, "env_s"):
                new = collect_episodes(run, epoch, log)
            with _timed(run, "model_s"):
                is_refit = update_model(run, epoch, log)
                metrics = update_reward(run, epoch) if is_refit else {}
            with _timed(run, "agent_s"):
                metrics |= update_agent(run, epoch, new, is_refit)
            if _is_due(epoch + 1, run.budget.eval_every) or epoch + 1 == run.budget.num_epochs:
                with _timed(run, "evaluate_s"):
                    metrics |= _evaluation_row(evaluate(run, run.budget.eval_episodes, f"epoch {epoch}", log))
            log.epoch(_row(run, epoch, new, metrics))
            write_snapshot(folder, Snapshot(epoch + 1, run.num_episodes, run.env_steps, log.rows), run)
        records = play_evaluation(run, run.budget.final_eval_episodes, "final", log)
        result = evaluation_of(records, run.model)
        write_summary(folder, run, result, what_switches_cost(run, records, log), log)
        export(folder / "final", run)
    run.task.env.close()
    return result


def start_run(config: MainConfig, registry: Registry) -> Run:
    """Build environment, agent and budget; nothing is learned yet."""
    task = make_task(config.env, config.max_contexts, sub_seed(config.seed, "reward"))
    budget = run_budget(config)
    seed_everything(config.seed)
    agent = make_agent(config.agent, config.planner, task, config.max_contexts, sub_seed(config.seed, "agent"), budget)
    return Run(config, task, agent, budget, registry)


def run_budget(config: MainConfig) -> Budget:
    """Return the numbers of a run: the row of its agent's family in the environment's preset, and `budget.*`."""
    return budget_for(config.profile, agent_family(config.agent), config.env.budgets, config.budget)


def collect_episodes(run: Run, epoch: int, log: RunLog) -> list[Record]:
    """Sample trajectories with the agent; at random until it is ready (line 1 of the loop)."""
    count = run.budget.warm_episodes if epoch == 0 else run.budget.episodes_per_epoch
    phase = "train" if run.agent.is_ready else "warm_start"
    records = []
    for number in range(count):
        log.says(f"epoch {epoch}: episode {number + 1}/{count}")
        seed = sub_seed(run.config.seed, "train", run.num_episodes)
        record = _play(run, seed, explore=True)
        records.append(record)
        run.registry.episode_ended(_episode_summary(run, record, phase))
        run.num_episodes += 1
        run.env_steps += len(record.episode.obs) - 1
    new = Trajectories.from_episodes([record.episode for record in records])
    run.data = new if run.data is None else Trajectories.concatenate([run.data, new])
    return records


def _play(run: Run, seed: int, explore: bool, tracker: ContextTracker | None = None) -> Record:
    """Run one episode with the agent, or with uniform random actions while it is not ready."""
    if run.agent.is_ready:
        run.agent.begin_episode()
        act = _timed_act(run) if explore else lambda packed: run.agent.act(packed, explore=False)
        return run_episode(run.task.env, act, tracker or run.agent.tracker(), seed)
    rng = np.random.default_rng(sub_seed(seed, "random actions"))
    told = None if run.agent.needs_model else run.agent.tracker()
    return run_episode(run.task.env, lambda _: rng.uniform(run.task.act_low, run.task.act_high), told, seed)


def _timed_act(run: Run) -> Callable[[Vector], Vector]:
    """Act with exploration; the time goes to the agent's account, not the environment's."""

    def act(packed: Vector) -> Vector:
        with _timed(run, "act_s", inside="env_s"):
            return run.agent.act(packed, explore=True)

    return act


def update_model(run: Run, epoch: int, log: RunLog) -> bool:
    """Update the generative model by the ELBO on all data and distil; later epochs go on from what is known."""
    if not run.agent.needs_model or not (epoch == 0 or _is_due(epoch, run.budget.model_every)):
        return False
    assert run.data is not None
    log.says(f"epoch {epoch}: learning the contexts of {run.data.num_episodes} episodes")
    parts: dict[str, Any] = {
        kind: Part(config.name, config)
        for kind, config in (
            ("prior", run.config.prior),
            ("dynamics", run.config.dynamics),
            ("distillation", run.config.distillation),
        )
    }
    run.model = fit(
        run.data,
        **parts,
        max_contexts=run.config.max_contexts,
        seed=sub_seed(run.config.seed, "model", epoch),
        config=fit_config(run.config, run.budget, is_first=epoch == 0),
        warm_start=run.model,
        dt=run.task.dt,
        progress=False,
        registry=run.registry,
        device=run.config.device,
    )
    return True


def update_reward(run: Run, epoch: int) -> dict[str, float]:
    """Go on fitting the reward of imagined steps to all data, where it is learned with the model."""
    assert run.model is not None
    assert run.data is not None
    num_steps = _REWARD_STEPS * (run.budget.warm_model_steps if epoch == 0 else run.budget.model_steps)
    return run.agent.learn_reward(run.model, run.data, num_steps, sub_seed(run.config.seed, "reward", epoch))


def update_agent(run: Run, epoch: int, new: list[Record], is_refit: bool) -> dict[str, float]:
    """Recompute the beliefs of stored episodes and update the policy; planners only take the new model."""
    num_updates = run.budget.warm_agent_updates if epoch == 0 else run.budget.agent_updates
    return run.agent.learn(run.model, new, is_refit, num_updates)


def evaluate(run: Run, num_episodes: int, name: str, log: RunLog | SilentLog) -> Evaluation:
    """Run separate, seeded episodes without exploration; every evaluation of a run uses the same seeds."""
    return evaluation_of(play_evaluation(run, num_episodes, name, log), run.model)


def play_evaluation(
    run: Run, num_episodes: int, name: str, log: RunLog | SilentLog, tracker: ContextTracker | None = None
) -> list[Record]:
    """Play the evaluation episodes; `tracker` replaces what the agent sees beside the observation."""
    records = []
    for number in range(num_episodes):
        log.says(f"{name}: evaluating {number + 1}/{num_episodes}")
        record = _play(run, sub_seed(run.config.seed, "evaluate", number), explore=False, tracker=tracker)
        records.append(record)
        run.registry.episode_ended(_episode_summary(run, record, "evaluate"))
    return records


def what_switches_cost(run: Run, records: list[Record], log: RunLog | SilentLog) -> SwitchLoss | None:
    """Play the evaluation episodes again with the truth in the belief's place (Theorem 3); None where unknown."""
    if run.model is None or run.task.num_contexts is None:
        return None
    slots = slots_of_truth(records, run.model, run.task.num_contexts)
    if slots is None:
        return None
    tracker = TruthTracker(run.task.obs_dim, run.model.task.max_contexts, slots)
    known = play_evaluation(run, len(records), "known contexts", log, tracker)
    return switch_loss(records, known, believed_contexts(records, slots))


def _resume(run: Run, log: RunLog, snapshot: Callable[[Run], Snapshot] | None) -> int:
    """Take the last checkpoint; return the epoch to go on with."""
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
