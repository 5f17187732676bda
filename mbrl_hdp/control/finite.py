"""C-MDPs with few states, solved exactly: what the belief costs against knowing the context (Theorems 2 and 3).

Nothing is sampled and nothing is rounded to a grid: with a finite horizon only finitely many beliefs can be reached,
and all of them are enumerated. `context[t]` acts on `state[t] -> state[t+1]`; whoever knows the context knows the one
that acts next (the paper's z_{t+1}), whoever does not has its distribution given the past, the predictive belief.

Theorem 3 in one line (performance difference lemma): with Q the known-context optimum, V = max_a Q and states, contexts
and actions drawn with the belief policy,

    E V(s_0, z_1) - R  =  E sum_t discount^t (V(s_t, z_{t+1}) - Q(s_t, z_{t+1}, a_t)).

No term is negative, so any choice of steps gives a lower bound; the theorem chooses the misidentified switches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from mbrl_hdp.errors import ConfigError

_SUM_TOLERANCE = 1e-9


@dataclass(frozen=True)
class FiniteCmdp:
    """A C-MDP of S states, A actions and K contexts.

    Attributes:
        initial_state: distribution of the first state.
        initial: distribution of the first acting context (rho_0).
        transition: distribution of the next acting context, a row per context (R).
        kernel: p(next state | context, state, act).
        reward: expected reward of a step; the agent does not see it, only its consequences for the state.
        discount: factor per step.
        horizon: number of decisions, H.
    """

    initial_state: Float[np.ndarray, " S"]
    initial: Float[np.ndarray, " K"]
    transition: Float[np.ndarray, "K K"]
    kernel: Float[np.ndarray, "K S A S"]
    reward: Float[np.ndarray, "K S A"]
    discount: float
    horizon: int

    def __post_init__(self) -> None:
        """Raise if a row is not a probability distribution.

        Raises:
            ConfigError: if a distribution does not sum to 1 or has negative entries, or a number is out of range.
        """
        for name in ("initial_state", "initial", "transition", "kernel"):
            probs = getattr(self, name)
            if (probs < 0).any() or not np.allclose(probs.sum(-1), 1.0, rtol=0.0, atol=_SUM_TOLERANCE):
                raise ConfigError(f"{name} must be probabilities that sum to 1 along the last axis")
        if not 0.0 < self.discount <= 1.0:
            raise ConfigError(f"discount must be in (0, 1], got {self.discount}")
        if self.horizon < 1:
            raise ConfigError(f"horizon must be at least 1, got {self.horizon}")


@dataclass(frozen=True)
class Level:
    """All histories of one length that can happen under some policy; N of them.

    Attributes:
        state: the last state of each history.
        belief: distribution of the context that acts next, given the history.
        child: place of each continuation (act, next state) in the next level, -1 where it cannot happen.
    """

    state: Int[np.ndarray, " N"]
    belief: Float[np.ndarray, "N K"]
    child: Int[np.ndarray, "N A S"]


def known_context_values(problem: FiniteCmdp) -> Float[np.ndarray, "H K S A"]:
    """Return Q_gt at every step for an agent that sees the next acting context: value iteration on (state, context).

    Q_gt(s, z, a) = r(s, z, a) + discount E V_gt(s', z'), s' ~ p(. | s, a, z), z' ~ rho_z. (The paper's proof prints it
    without the discount; its theorem needs it.)
    """
    values = np.zeros((problem.horizon, *problem.reward.shape))
    following = np.zeros(problem.reward.shape[:2])
    for step in reversed(range(problem.horizon)):
        expected = np.einsum("ksan,kj,jn->ksa", problem.kernel, problem.transition, following)
        values[step] = problem.reward + problem.discount * expected
        following = values[step].max(-1)
    return values


def reachable_beliefs(problem: FiniteCmdp) -> list[Level]:
    """Enumerate every history that can happen, with its belief (Theorem 2 a); one level per decision.

    belief' = normalise(belief * p(s' | s, a, .)) @ transition
    """
    state = np.flatnonzero(problem.initial_state > 0)
    belief = np.tile(problem.initial, (len(state), 1))
    levels = []
    for step in range(problem.horizon):
        joint = belief[:, None, None, :] * problem.kernel[:, state].transpose(1, 2, 3, 0)
        weight = joint.sum(-1)
        is_possible = weight > 0 if step + 1 < problem.horizon else np.zeros(weight.shape, bool)
        child = np.full(weight.shape, -1)
        child[is_possible] = np.arange(is_possible.sum())
        levels.append(Level(state, belief, child))
        state = np.nonzero(is_possible)[2]
        belief = (joint[is_possible] / weight[is_possible][:, None]) @ problem.transition
    return levels


def solve_beliefs(problem: FiniteCmdp, levels: Sequence[Level]) -> tuple[float, list[Int[np.ndarray, " _"]]]:
    """Return the best expected return without seeing contexts, and the action after every history (Theorem 2 b).

    Q(s, b, a) = sum_i b_i r(s, i, a) + discount sum_{s'} (sum_i b_i p(s' | s, a, i)) max_{a'} Q(s', b', a')
    """
    following = np.zeros(0)
    acts: list[Int[np.ndarray, " _"]] = []
    for level in reversed(levels):
        value = np.einsum("nk,kna->na", level.belief, problem.reward[:, level.state])
        weight = np.einsum("nk,knas->nas", level.belief, problem.kernel[:, level.state])
        if len(following):
            value = value + problem.discount * (weight * np.where(level.child >= 0, following[level.child], 0.0)).sum(
                -1
            )
        acts.append(value.argmax(-1))
        following = value.max(-1)
    return float(problem.initial_state[levels[0].state] @ following), acts[::-1]


def history_value(problem: FiniteCmdp) -> float:
    """Return the best expected return over all policies of the whole history; no belief is formed.

    The weight of every path of contexts is carried along by itself (K^H of them), so this is a route of its own to the
    number that `solve_beliefs` returns: that they agree is Theorem 2. For tiny problems.
    """
    num_contexts, num_states, num_acts = problem.reward.shape

    def best(step: int, state: int, weights: Float[np.ndarray, "*paths K"]) -> float:
        """Return the largest expected return from a state, given the weight of every path of contexts so far."""
        values = []
        for act in range(num_acts):
            value = float((weights * problem.reward[:, state, act]).sum())
            for next_state in range(num_states if step + 1 < problem.horizon else 0):
                longer = (weights * problem.kernel[:, state, act, next_state])[..., None] * problem.transition
                value += problem.discount * best(step + 1, next_state, longer)
            values.append(value)
        return max(values)

    first = problem.initial.reshape(1, num_contexts)
    return sum(float(weight) * best(0, state, first) for state, weight in enumerate(problem.initial_state))


@dataclass(frozen=True)
class Visits:
    """How likely the histories of one level are together with the contexts, under some policy.

    Attributes:
        first: p(history, context that acts next) where no context has acted yet.
        moved: p(history, context that acted, context that acts next) later.
    """

    first: Float[np.ndarray, "N K"]
    moved: Float[np.ndarray, "N K K"]

    @property
    def acting(self) -> Float[np.ndarray, "N K"]:
        """p(history, context that acts next)."""
        return self.first + self.moved.sum(1)


def visits(problem: FiniteCmdp, levels: Sequence[Level], acts: Sequence[Int[np.ndarray, "_ _"]]) -> list[Visits]:
    """Follow a policy through all histories; it may look at the context (`acts` of width K) or not (width 1)."""
    num_contexts = len(problem.initial)
    first = problem.initial_state[levels[0].state][:, None] * problem.initial
    found = [Visits(first, np.zeros((len(first), num_contexts, num_contexts)))]
    for level, act, after in zip(levels, acts, levels[1:], strict=False):
        place, context = np.meshgrid(np.arange(len(level.state)), np.arange(num_contexts), indexing="ij")
        chosen = np.broadcast_to(act, place.shape)
        passed = found[-1].acting[..., None] * problem.kernel[context, level.state[place], chosen]
        child = level.child[place, chosen]
        acted = np.zeros((len(after.state), num_contexts))
        is_possible = child >= 0
        whose = np.broadcast_to(context[..., None], child.shape)
        np.add.at(acted, (child[is_possible], whose[is_possible]), passed[is_possible])
        found.append(Visits(np.zeros_like(acted), acted[..., None] * problem.transition))
    return found


@dataclass(frozen=True)
class PerformanceGap:
    """What not seeing the context costs, and the parts of it.

    Attributes:
        known_value: E V_gt, the best return of whoever sees the context.
        belief_value: R, the best return of whoever does not.
        all_steps: loss against Q_gt summed over all steps of the belief policy's trajectories; equals the gap.
        misidentified_steps: the same over steps whose most believed context is not the one that acts.
        switch_bound: the right side of Theorem 3: over steps where the context moved and the belief did not expect it.
        switch_bound_known: the right side with trajectories of the known-context policy instead; not a bound.
        num_switches: expected number of switches before the last decision.
        num_misidentified: expected number of misidentified ones, the theorem's E M.
    """

    known_value: float
    belief_value: float
    all_steps: float
    misidentified_steps: float
    switch_bound: float
    switch_bound_known: float
    num_switches: float
    num_misidentified: float

    @property
    def gap(self) -> float:
        """The left side of Theorem 3."""
        return self.known_value - self.belief_value


def performance_gap(problem: FiniteCmdp, loss_discount: float | None = None) -> PerformanceGap:
    """Solve a problem with and without sight of the context and evaluate both sides of Theorem 3.

    Args:
        problem: the C-MDP.
        loss_discount: discount inside the Q that measures losses; the problem's own unless one wants to see what the
            Bellman equation as the paper's proof prints it (discount 1) does to the bound.
    """
    levels = reachable_beliefs(problem)
    belief_value, belief_acts = solve_beliefs(problem, levels)
    known = known_context_values(problem)
    measure = known if loss_discount is None else known_context_values(replace(problem, discount=loss_discount))
    acts = [act[:, None] for act in belief_acts]
    known_acts = [q.argmax(-1)[:, level.state].T for q, level in zip(known, levels, strict=True)]
    losses = [_loss(q, level, act) for q, level, act in zip(measure, levels, acts, strict=True)]
    on_belief = _sums(problem, levels, visits(problem, levels, acts), losses)
    on_known = _sums(problem, levels, visits(problem, levels, known_acts), losses)
    return PerformanceGap(
        known_value=float(np.einsum("s,k,ks->", problem.initial_state, problem.initial, known[0].max(-1))),
        belief_value=belief_value,
        switch_bound_known=on_known["switch_bound"],
        **on_belief,
    )


def _sums(
    problem: FiniteCmdp, levels: Sequence[Level], seen: Sequence[Visits], losses: Sequence[Float[np.ndarray, "_ K"]]
) -> dict[str, float]:
    """Return sums over the steps of a policy's trajectories; losses discounted, counts not."""
    names = ("all_steps", "misidentified_steps", "switch_bound", "num_switches", "num_misidentified")
    sums = dict.fromkeys(names, 0.0)
    is_switch = ~np.eye(len(problem.initial), dtype=bool)
    for step, (level, visit, loss) in enumerate(zip(levels, seen, losses, strict=True)):
        factor = problem.discount**step
        wrong = _is_wrong(level)
        switched = (visit.moved * is_switch).sum(1)
        sums["all_steps"] += factor * float((visit.acting * loss).sum())
        sums["misidentified_steps"] += factor * float((visit.acting * loss * wrong).sum())
        sums["switch_bound"] += factor * float((switched * loss * wrong).sum())
        sums["num_switches"] += float(switched.sum())
        sums["num_misidentified"] += float((switched * wrong).sum())
    return sums


def _is_wrong(level: Level) -> Bool[np.ndarray, "N K"]:
    """Mark the contexts that are not the most believed one: the paper's a priori estimate is arg max of b R."""
    return np.arange(level.belief.shape[1]) != level.belief.argmax(-1)[:, None]


def _loss(values: Float[np.ndarray, "K S A"], level: Level, act: Int[np.ndarray, "N 1"]) -> Float[np.ndarray, "N K"]:
    """Return V_gt - Q_gt of the action taken after every history, for every context that may act."""
    here = values[:, level.state].transpose(1, 0, 2)
    return np.asarray(here.max(-1) - np.take_along_axis(here, act[:, None, :], axis=-1)[..., 0])
