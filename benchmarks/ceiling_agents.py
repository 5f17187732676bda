"""Agents with true dynamics that differ in what they know of the context, and the loop that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.ceiling_cem import CemConfig, CemPlanner
from benchmarks.ceiling_filter import ExactFilter, log_likelihoods
from benchmarks.ceiling_tasks import Episodes, Task
from mbrl_hdp.envs.chains import FloatArray, MarkovChain

Information = Literal["known", "filtered", "geometric", "blind"]


@dataclass(frozen=True)
class View:
    """What an agent may look at before a step: the step's number, the states of E episodes, its belief."""

    step: int
    state: Any
    belief: ExactFilter


class Agent(Protocol):
    """Returns the actions `E A` of one step."""

    def __call__(self, view: View) -> FloatArray:
        """Act."""
        ...


AgentMaker = Callable[[Task, int, int], Agent]
"""From task, number of episodes and seed to an agent."""

Gains = Callable[[FloatArray, FloatArray], FloatArray]
"""From guessed signs `E` and futures of the actuation `E P H` to futures of the gain; see `ceiling_cem`."""


def known_gains(guess: FloatArray, actuation: FloatArray) -> FloatArray:  # noqa: ARG001 - one signature for all
    """The agent will see the context before every step, so its controls are always carried out the right way."""
    return np.abs(actuation[:, :1])


def late_gains(guess: FloatArray, actuation: FloatArray) -> FloatArray:
    """The agent will see every context a step late, and corrects its sign from then on."""
    believed = np.concatenate((np.broadcast_to(guess[:, None, None], actuation[..., :1].shape), actuation), axis=-1)
    return actuation * np.sign(believed[..., :-1])


def open_loop_gains(guess: FloatArray, actuation: FloatArray) -> FloatArray:
    """The agent holds its guess over the whole plan."""
    return guess[:, None, None] * actuation


@dataclass(frozen=True)
class Planned:
    """Makes agents that plan by CEM.

    Attributes:
        config: of the planner.
        gains: how the agent expects its controls to be carried out.
        free: 1 for the entries of the action that are planned, 0 for those kept at zero; None plans all.
    """

    config: CemConfig
    gains: Gains
    free: Sequence[float] | None = None

    def __call__(self, task: Task, num: int, seed: int) -> Agent:
        """Make an agent for `num` episodes."""
        planner = CemPlanner(task, self.config, num, seed, self.free)
        rng = np.random.default_rng((seed, 1))

        def act(view: View) -> FloatArray:
            num_left = task.physics.horizon - view.step
            paths = view.belief.sample_paths(rng, self.config.num_paths, min(self.config.horizon, num_left))
            guess = most_likely_sign(task, view.belief)
            gains = self.gains(guess, task.factors[paths])
            return task.sent(planner.plan(view.state, gains, num_left), guess)

        return act


@dataclass(frozen=True)
class Scripted:
    """Makes agents that want the same of the actuator at every step, with the sign of the most likely context."""

    controls: Sequence[float]

    def __call__(self, task: Task, num: int, seed: int) -> Agent:  # noqa: ARG002 - nothing is drawn
        """Make an agent."""

        def act(view: View) -> FloatArray:
            return task.sent(np.tile(self.controls, (num, 1)), most_likely_sign(task, view.belief))

        return act


def most_likely_sign(task: Task, belief: ExactFilter) -> FloatArray:
    """Return the sign of the most likely context's actuation, `E`; of the first one's where they are equally likely."""
    return np.sign(task.factors[np.argmax(np.round(belief.contexts, 9), axis=1)])


@dataclass(frozen=True)
class Outcome:
    """What E episodes gave.

    Attributes:
        returns: `E`.
        accuracy: share of the steps whose context the filter names right afterwards, of the steps that are informative.
        info: what the physics reports at the end, `E` each.
    """

    returns: FloatArray
    accuracy: float
    info: dict[str, NDArray[Any]]


def run_episodes(task: Task, episodes: Episodes, agent: Agent, information: Information) -> Outcome:
    """Run all episodes side by side."""
    chain = without_counter(task.chain) if information == "geometric" else task.chain
    state, belief = episodes.start, ExactFilter(chain, episodes.num)
    returns = np.zeros(episodes.num)
    hits: list[NDArray[np.bool_]] = []
    for step in range(task.physics.horizon):
        context = episodes.contexts[:, step]
        if information == "known":
            belief.reveal(context)
        act = np.clip(agent(View(step, state, belief)), task.physics.act_low, task.physics.act_high)
        next_state = task.physics.step(state, act, {"actuation": task.factors[context]})
        next_obs = task.physics.observe(next_state)
        returns += task.physics.reward(act, next_obs)
        evidence = contexts_evidence(task, state, act, next_obs)
        filtered = belief.update(np.zeros_like(evidence) if information == "blind" else evidence)
        is_telling = np.ptp(evidence, axis=1) > 0.0
        hits.append((filtered.argmax(axis=1) == context)[is_telling])
        state = next_state
    scored = np.concatenate(hits)
    info = task.physics.info(state)
    return Outcome(returns, float(scored.mean()) if scored.size else float("nan"), info)


def without_counter(chain: MarkovChain) -> MarkovChain:
    """Return the chain without a cool-off whose contexts last as long in the mean."""
    leave = 1.0 - np.diag(chain.matrix)
    share = 1.0 / (1.0 + (max(chain.cool_off, 1) - 1) * leave)
    matrix = chain.matrix * share[:, None]
    np.fill_diagonal(matrix, 1.0 - share * leave)
    return MarkovChain(matrix, initial=chain.initial, cool_off=1)


def contexts_evidence(task: Task, state: Any, act: FloatArray, next_obs: FloatArray) -> FloatArray:
    """Return the log-likelihood `E n` of one step under each context, by the true physics."""
    shape = np.ones(len(act))
    predicted = [
        task.physics.observe(task.physics.step(state, act, {"actuation": factor * shape})) for factor in task.factors
    ]
    return log_likelihoods(np.stack(predicted, axis=1), next_obs)
