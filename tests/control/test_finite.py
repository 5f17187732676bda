"""Theorems 2 and 3 on small C-MDPs, where every number can be had by a second route."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from mbrl_hdp.control.finite import (
    FiniteCmdp,
    history_value,
    known_context_values,
    performance_gap,
    reachable_beliefs,
    solve_beliefs,
    visits,
)
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments.studies import finite_cells, theorem3
from mbrl_hdp.experiments.studies.finite_problems import (
    FAMILIES,
    guessing_problem,
    random_problem,
    revealed_problem,
    shelter_problem,
)
from mbrl_hdp.experiments.studies.study import CellRecord

TINY = FiniteCmdp(
    initial_state=np.array([0.7, 0.3]),
    initial=np.array([0.4, 0.6]),
    transition=np.array([[0.8, 0.2], [0.35, 0.65]]),
    kernel=np.array([[[[0.9, 0.1], [0.3, 0.7]], [[0.6, 0.4], [0.2, 0.8]]],
                     [[[0.1, 0.9], [0.5, 0.5]], [[0.25, 0.75], [1.0, 0.0]]]]),
    reward=np.array([[[1.0, -0.5], [0.2, 0.4]], [[-1.0, 0.7], [0.9, -0.3]]]),
    discount=0.85,
    horizon=3,
)  # fmt: skip


def paths_of(problem):
    """Return every path of contexts and states with its probability under given acts."""
    num_contexts, num_states, _ = problem.reward.shape
    contexts = itertools.product(range(num_contexts), repeat=problem.horizon)
    return itertools.product(contexts, itertools.product(range(num_states), repeat=problem.horizon))


def return_of(problem, act_of):
    """Evaluate a policy of the history (and, if it wants, of the acting context) by summing over all paths."""
    total = 0.0
    for contexts, states in paths_of(problem):
        weight = problem.initial_state[states[0]] * problem.initial[contexts[0]]
        gained, history = 0.0, (states[0],)
        for step in range(problem.horizon):
            act = act_of(step, history, contexts[step])
            gained += problem.discount**step * problem.reward[contexts[step], states[step], act]
            if step + 1 < problem.horizon:
                weight *= problem.kernel[contexts[step], states[step], act, states[step + 1]]
                weight *= problem.transition[contexts[step], contexts[step + 1]]
                history = (*history, act, states[step + 1])
        total += weight * gained
    return total


def histories(problem):
    _, num_states, num_acts = problem.reward.shape
    for length in range(problem.horizon):
        yield from itertools.product(range(num_states), *[range(num_acts), range(num_states)] * length)


class TestTheorem2:
    def test_no_policy_of_the_history_beats_the_belief(self):
        """All 2^10 deterministic policies of two decisions, each summed over all paths."""
        problem = replace(TINY, horizon=2)
        known = list(histories(problem))
        tables = [dict(zip(known, acts, strict=True)) for acts in itertools.product(range(2), repeat=len(known))]
        best = max(return_of(problem, lambda _step, history, _, table=table: table[history]) for table in tables)
        assert solve_beliefs(problem, reachable_beliefs(problem))[0] == pytest.approx(best, abs=1e-13)
        assert history_value(problem) == pytest.approx(best, abs=1e-13)

    @pytest.mark.parametrize("seed", range(8))
    def test_histories_and_beliefs_give_one_value(self, seed):
        problem = random_problem(np.random.default_rng(seed))
        value, _ = solve_beliefs(problem, reachable_beliefs(problem))
        assert history_value(problem) == pytest.approx(value, abs=1e-12)

    def test_the_policy_earns_the_value(self):
        levels = reachable_beliefs(TINY)
        value, acts = solve_beliefs(TINY, levels)

        def act_of(step, history, _):
            place = int(np.flatnonzero(levels[0].state == history[0])[0])
            for level, act, state in zip(levels[:step], history[1::2], history[2::2], strict=True):
                place = level.child[place, act, state]
            return acts[step][place]

        assert return_of(TINY, act_of) == pytest.approx(value, abs=1e-13)

    def test_beliefs_are_the_laws_of_the_acting_context(self):
        """Against the definition: sum the weights of all context paths of a history."""
        levels = reachable_beliefs(TINY)
        for start, act, state, act2, state2 in itertools.product(range(2), repeat=5):
            place = levels[1].child[levels[0].child[start, act, state], act2, state2]
            weight = np.zeros(2)
            for first, second, third in itertools.product(range(2), repeat=3):
                weight[third] += (
                    TINY.initial[first] * TINY.kernel[first, start, act, state] * TINY.transition[first, second]
                    * TINY.kernel[second, state, act2, state2] * TINY.transition[second, third]
                )  # fmt: skip
            if weight.sum() == 0:
                assert place == -1
            else:
                np.testing.assert_allclose(levels[2].belief[place], weight / weight.sum(), atol=1e-13)


def test_known_values_are_what_the_greedy_policy_earns():
    values = known_context_values(TINY)
    earned = return_of(TINY, lambda step, history, context: int(values[step, context, history[-1]].argmax()))
    assert np.einsum("s,k,ks->", TINY.initial_state, TINY.initial, values[0].max(-1)) == pytest.approx(earned)
    assert values[-1] == pytest.approx(TINY.reward)


def test_visits_are_probabilities_of_histories_and_contexts():
    levels = reachable_beliefs(TINY)
    _, acts = solve_beliefs(TINY, levels)
    for level, seen in zip(levels, visits(TINY, levels, [act[:, None] for act in acts]), strict=True):
        assert seen.acting.sum() == pytest.approx(1.0)
        reached = seen.acting.sum(-1, keepdims=True)
        np.testing.assert_allclose(seen.acting, reached * level.belief, atol=1e-14)  # the policy adds no information


class TestTheorem3:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_gap_is_at_least_the_bound(self, family):
        for seed in range(12):
            found = performance_gap(FAMILIES[family](np.random.default_rng([7, seed])))
            assert found.all_steps == pytest.approx(found.gap, abs=1e-12)
            assert -1e-12 < found.switch_bound <= found.misidentified_steps + 1e-12
            assert found.misidentified_steps <= found.gap + 1e-12
            assert found.num_misidentified <= found.num_switches + 1e-12

    def test_the_bound_by_its_own_definition(self):
        """Walk over all paths with the belief policy and add up the losses at misidentified switches."""
        levels = reachable_beliefs(TINY)
        _, acts = solve_beliefs(TINY, levels)
        values = known_context_values(TINY)
        bound = count = 0.0
        for contexts, states in paths_of(TINY):
            weight = TINY.initial_state[states[0]] * TINY.initial[contexts[0]]
            place = states[0]
            for step, (context, state) in enumerate(zip(contexts, states, strict=True)):
                act = acts[step][place]
                is_wrong = levels[step].belief[place].argmax() != context
                if step and contexts[step - 1] != context and is_wrong:
                    rest = _mass_of_the_rest(contexts, states, step, acts, levels, place)
                    loss = values[step, context, state].max() - values[step, context, state, act]
                    bound += weight * rest * TINY.discount**step * loss
                    count += weight * rest
                if step + 1 < TINY.horizon:
                    weight *= TINY.kernel[context, state, act, states[step + 1]]
                    weight *= TINY.transition[context, contexts[step + 1]]
                    place = levels[step].child[place, act, states[step + 1]]
                    if place < 0:
                        break
        found = performance_gap(TINY)
        assert found.switch_bound == pytest.approx(bound, abs=1e-13)
        assert found.num_misidentified == pytest.approx(count, abs=1e-13)
        assert 0.05 < bound < found.gap - 0.05

    @pytest.mark.parametrize("family", ["identical", "certain"])
    def test_nothing_to_know_or_nothing_hidden_costs_nothing(self, family):
        for seed in range(5):
            problem = FAMILIES[family](np.random.default_rng([8, seed]))
            found = performance_gap(problem)
            assert found.gap == pytest.approx(0.0, abs=1e-12)
            assert found.switch_bound == pytest.approx(0.0, abs=1e-12)
            assert found.num_switches > 0.1  # there are switches; they do not matter, or are foreseen

    @pytest.mark.parametrize("switch", [0.05, 0.3, 0.45])
    def test_guessing_has_a_closed_form(self, switch):
        found = performance_gap(guessing_problem(switch, horizon=6, discount=0.9))
        expected = switch * sum(0.9**step for step in range(1, 6))
        assert found.gap == pytest.approx(expected, abs=1e-12)
        assert found.switch_bound == pytest.approx(expected, abs=1e-12)
        assert found.num_misidentified == pytest.approx(5 * switch)

    def test_a_switch_that_is_expected_is_not_misidentified(self):
        """Above one half the best guess is a switch; now staying is the surprise, and the bound sees nothing."""
        found = performance_gap(guessing_problem(0.8))
        assert found.gap == pytest.approx(0.2 * sum(0.9**step for step in range(1, 6)))
        assert found.switch_bound == 0.0
        assert found.misidentified_steps == pytest.approx(found.gap)

    def test_rare_switches_of_revealed_contexts_meet_the_bound(self):
        rates = []
        for switch in (0.01, 0.001):
            found = [performance_gap(revealed_problem(np.random.default_rng([9, seed]), switch)) for seed in range(12)]
            for one in found:
                assert one.switch_bound == pytest.approx(one.gap, abs=1e-12)
            rates.append(np.array([one.gap / one.num_misidentified for one in found]))
        np.testing.assert_allclose(rates[0], rates[1], atol=0.02)
        assert rates[1].mean() > 0.1

    def test_equality_is_foretold(self):
        """Where the known-context optimum is clear enough for the switch probability, the bound is met."""
        found = {True: [], False: []}
        for seed, switch in itertools.product(range(12), (0.2, 0.02, 0.002)):
            problem = revealed_problem(np.random.default_rng([10, seed]), switch)
            one = performance_gap(problem)
            found[finite_cells.is_clear(problem, switch)].append(abs(one.gap - one.switch_bound))
        assert max(found[True]) < 1e-12
        assert len(found[True]) >= 10
        assert max(found[False]) > 0.01

    def test_frequent_switches_make_it_strict(self):
        found = [performance_gap(revealed_problem(np.random.default_rng([9, seed]), 0.3)) for seed in range(12)]
        assert sum(one.switch_bound < one.gap - 1e-3 for one in found) >= 5


class TestPrintedText:
    """Where the theorem's text must be read with care; each is a counter-example."""

    def test_trajectories_of_the_known_context_policy_give_no_bound(self):
        found = performance_gap(shelter_problem())
        assert found.gap == pytest.approx(3.5)
        assert found.switch_bound_known == pytest.approx(4.2)
        assert found.switch_bound <= found.gap

    def test_a_bellman_equation_without_discount_gives_no_bound(self):
        """One context in two names; after a step of waiting, 1 now or 1.5 a step later, at discount .6: now is right.

        Without the discount "later" seems better by .5, and the loss is laid to the switch (probability .4) that does
        not matter: .6 * .4 * .5.
        """
        wait, choose, later, end = range(4)
        kernel = np.zeros((2, 4, 2, 4))
        kernel[:, wait, :, choose] = kernel[:, choose, 0, end] = kernel[:, choose, 1, later] = 1.0
        kernel[:, later, :, end] = kernel[:, end, :, end] = 1.0
        reward = np.zeros((2, 4, 2))
        reward[:, choose, 0], reward[:, later, :] = 1.0, 1.5
        chain = np.array([[0.6, 0.4], [0.3, 0.7]])
        problem = FiniteCmdp(np.eye(4)[wait], np.array([1.0, 0.0]), chain, kernel, reward, 0.6, 3)
        assert performance_gap(problem).gap == pytest.approx(0.0, abs=1e-12)
        assert performance_gap(problem).switch_bound == pytest.approx(0.0, abs=1e-12)
        assert performance_gap(problem, loss_discount=1.0).switch_bound == pytest.approx(0.12)

    def test_the_proofs_line_is_false_for_one_path_of_contexts(self):
        """One state, one act, reward = context: no loss anywhere, yet a path's return is not the value."""
        reward = np.array([0.0, 1.0]).reshape(2, 1, 1)
        chain = np.array([[0.9, 0.1], [0.2, 0.8]])
        problem = FiniteCmdp(np.ones(1), np.array([1.0, 0.0]), chain, np.ones((2, 1, 1, 1)), reward, 1.0, 2)
        found = performance_gap(problem)
        assert (found.gap, found.all_steps) == (0.0, 0.0)
        assert found.known_value == pytest.approx(0.1)  # the paths 00 and 01 return 0 and 1


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"initial": np.array([0.5, 0.6])}, "initial"),
        ({"transition": np.array([[1.2, -0.2], [0.0, 1.0]])}, "transition"),
        ({"discount": 1.1}, "discount"),
        ({"horizon": 0}, "horizon"),
    ],
)
def test_wrong_problems_are_refused(change, word):
    with pytest.raises(ConfigError, match=word):
        replace(TINY, **change)


class TestStudy:
    def records(self):
        return [CellRecord(cell, finite_cells.run(cell), "abc", 1.0) for cell in theorem3.cells(None, True)]

    def test_a_page_of_all_quick_cells(self):
        page = theorem3.page(self.records())
        assert all(gate.is_met is None for gate in page.gates)  # a quick look decides nothing
        assert "0 violations" in page.gates[0].found
        assert "gap 3.50, the right side along the known-context trajectories 4.20" in page.body

    def test_gates_can_fail(self, monkeypatch):
        monkeypatch.setattr(theorem3, "cells", lambda *_: [])
        cell = {"family": "random", "seed": 100, "num_problems": 2}
        records = [CellRecord(cell, finite_cells.run(cell), "abc", 1.0)]
        assert theorem3.page(records).gates[0].is_met
        records[0].results["switch_bound"][1] = 99.0
        assert theorem3.page(records).gates[0].is_met is False


def _mass_of_the_rest(contexts, states, step, acts, levels, place):
    """Probability of what follows `step` on a path, so that summing over paths leaves the path's beginning."""
    mass = 1.0
    for now in range(step, TINY.horizon - 1):
        act = acts[now][place]
        mass *= TINY.kernel[contexts[now], states[now], act, states[now + 1]]
        mass *= TINY.transition[contexts[now], contexts[now + 1]]
        place = levels[now].child[place, act, states[now + 1]]
        if place < 0:
            return 0.0
    return mass
