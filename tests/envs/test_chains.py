"""The distributions of the hidden context against closed forms, enumeration and replayed uniform numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbrl_hdp.envs import (
    ChainWalk,
    MarkovChain,
    NonMarkovianChain,
    PositionStripes,
    ScheduleChain,
    StateDependentChain,
)
from mbrl_hdp.envs.chains import WalkState, chain_from_config, check_chain
from mbrl_hdp.errors import ConfigError

MATRIX = np.array([[0.7, 0.2, 0.1], [0.05, 0.9, 0.05], [0.5, 0.3, 0.2]])
INITIAL = np.array([0.2, 0.5, 0.3])


def walk_contexts(chain, num_steps, num=1, seed=0):
    """Contexts [num, num_steps] of a fresh walk."""
    walk, rng = ChainWalk(chain, num), np.random.default_rng(seed)
    return np.stack([walk.reset(rng)] + [walk.step(rng) for _ in range(num_steps - 1)], axis=1)


def dwell_lengths(contexts):
    """Lengths of all dwells that begin with a switch and end with one, and of the first dwells."""
    later, first = [], []
    for row in contexts:
        switches = np.flatnonzero(np.diff(row)) + 1
        first.append(switches[0] if switches.size else len(row))
        later.extend(np.diff(switches))
    return np.array(later), np.array(first)


class Replay:
    """A generator that hands out given uniform numbers."""

    def __init__(self, rows):
        self.rows = iter(rows)

    def random(self, num):
        row = next(self.rows)
        assert len(row) == num
        return row


@pytest.mark.parametrize("cool_off", [0, 1, 2, 5])
def test_a_context_acts_at_least_cool_off_steps_and_may_switch_right_after(cool_off):
    contexts = walk_contexts(MarkovChain(MATRIX, cool_off=cool_off), 300, num=200)
    later, first = dwell_lengths(contexts)
    assert later.min() == max(cool_off, 1)
    assert first.min() == max(cool_off, 1)


@pytest.mark.parametrize(("counter", "shortest"), [("full", 5), ("empty", 1), (0, 1), (3, 3), (5, 5)])
def test_counter_at_reset_decides_the_first_possible_switch(counter, shortest):
    chain = MarkovChain.symmetric(2, switch=0.9, cool_off=5, counter_at_reset=counter)
    later, first = dwell_lengths(walk_contexts(chain, 60, num=300))
    assert first.min() == shortest
    assert later.min() == 5


def test_dwell_follows_its_geometric_law():
    # After the cool-off of c steps a dwell ends with probability p at every step: P(dwell = c + j) = (1-p)^j p.
    later, _ = dwell_lengths(walk_contexts(MarkovChain.symmetric(2, switch=0.3, cool_off=4), 2000, num=50, seed=3))
    for extra in range(4):
        expected = 0.7**extra * 0.3
        error = np.sqrt(expected * (1.0 - expected) / len(later))
        assert abs(np.mean(later == 4 + extra) - expected) < 6.0 * error


@pytest.mark.parametrize(("cool_off", "counter"), [(0, "full"), (1, "full"), (3, "full"), (3, "empty"), (3, 2)])
def test_walk_has_the_marginals_of_the_chain_with_counter(cool_off, counter):
    chain = MarkovChain(MATRIX, INITIAL, cool_off=cool_off, counter_at_reset=counter)
    law, transition = chain.with_counter()
    contexts = walk_contexts(chain, 8, num=40_000, seed=1)
    for step in range(8):
        expected = law.reshape(3, -1).sum(1)
        observed = np.bincount(contexts[:, step], minlength=3) / len(contexts)
        assert np.all(np.abs(observed - expected) < 6.0 * np.sqrt(expected * (1.0 - expected) / len(contexts)))
        law = law @ transition


def test_chain_with_counter_gives_path_probabilities():
    # Cool-off 2, full counter: 0 0 is forced, then 1 1 is forced after the switch, then it may leave again.
    chain = MarkovChain(MATRIX, INITIAL, cool_off=2)
    initial, transition = chain.with_counter()
    assert transition.sum(1) == pytest.approx(np.ones(6))

    def probability(path):
        law = initial * np.repeat(np.arange(3) == path[0], 2)
        for context in path[1:]:
            law = (law @ transition) * np.repeat(np.arange(3) == context, 2)
        return law.sum()

    assert probability([0, 1]) == 0.0
    assert probability([0, 0, 1, 2]) == 0.0
    assert probability([0, 0, 1, 1, 2]) == pytest.approx(0.2 * 0.2 * 0.05)
    assert probability([2, 2, 2, 0, 0, 0, 1]) == pytest.approx(0.3 * 0.2 * 0.5 * 0.7 * 0.2)


def test_paper_default_switch_rate():
    # Switch probability .2, cool-off 5, full counter, 100 steps: the rate is .107 (known from elsewhere).
    contexts = walk_contexts(MarkovChain.symmetric(2), 100, num=4000)
    assert np.mean(np.diff(contexts, axis=1) != 0) == pytest.approx(0.107, abs=0.002)


def test_symmetric_and_ring_matrices():
    symmetric = MarkovChain.symmetric(3, switch=0.2).matrix
    assert symmetric == pytest.approx(np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]))
    ring = MarkovChain.ring(16).matrix
    for context in range(16):
        expected = np.zeros(16)
        expected[context], expected[(context + 1) % 16], expected[(context - 1) % 16] = 0.6, 0.2, 0.2
        assert ring[context] == pytest.approx(expected)
    assert MarkovChain.ring(2, stay=0.7).matrix == pytest.approx(np.array([[0.7, 0.3], [0.3, 0.7]]))
    assert MarkovChain.symmetric(1).matrix == pytest.approx(np.ones((1, 1)))
    assert MarkovChain.ring(1).matrix == pytest.approx(np.ones((1, 1)))


def test_batched_walk_equals_single_walks_on_the_same_numbers():
    uniforms = np.random.default_rng(5).random((50, 4))
    chain = NonMarkovianChain(MATRIX, INITIAL, cool_off=3)
    together = ChainWalk(chain, 4)
    replay = Replay(list(uniforms))
    batched = np.stack([together.reset(replay)] + [together.step(replay) for _ in range(49)])
    for column in range(4):
        walk, replay = ChainWalk(chain), Replay([row[column : column + 1] for row in uniforms])
        single = [int(walk.reset(replay)[0])] + [int(walk.step(replay)[0]) for _ in range(49)]
        assert single == batched[:, column].tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=6).filter(any), st.floats(0.0, 1.0, exclude_max=True))
def test_draw_inverts_the_cumulative_law(weights, uniform):
    row = np.array(weights) / sum(weights)
    chain = MarkovChain(np.tile(row, (len(row), 1)), cool_off=0)
    drawn = int(chain.propose(np.array([uniform]), WalkState(np.zeros(1, int), np.zeros(1, int), 1))[0])
    assert row[drawn] > 0.0
    assert row[:drawn].sum() <= uniform + 1e-12
    assert uniform <= row[: drawn + 1].sum() + 1e-12


def test_rounding_never_reaches_an_impossible_context():
    chain = MarkovChain([[0.1] * 10 + [0.0]] * 11, cool_off=0)
    state = WalkState(np.zeros(1, int), np.zeros(1, int), 1)
    assert chain.propose(np.array([np.nextafter(1.0, 0.0)]), state).tolist() == [9]


def test_non_markovian_next_depends_on_the_context_before_the_current():
    contexts = walk_contexts(NonMarkovianChain(MATRIX, cool_off=0), 400, num=200, seed=2)
    counts = np.zeros((3, 3, 3))
    for row in contexts:
        previous = current = row[0]
        for context in row[1:]:
            counts[previous, current, context] += previous != current
            if context != current:
                previous, current = current, context
    for previous in range(3):
        for current in set(range(3)) - {previous}:
            total = counts[previous, current].sum()
            error = np.sqrt(MATRIX[previous] * (1.0 - MATRIX[previous]) / total)
            assert np.all(np.abs(counts[previous, current] / total - MATRIX[previous]) < 6.0 * error)


def test_non_markovian_refuses_the_counter_form():
    with pytest.raises(ConfigError, match="no Markov chain"):
        NonMarkovianChain(MATRIX).with_counter()


def test_position_stripes_are_the_papers():
    zero = [0.0, 0.05, -0.1, -0.15, 0.25, -0.35]
    one = [-0.05, 0.1, 0.15, -0.2, -0.25, 0.35]
    position = np.array([zero + one]).T
    assert PositionStripes()(position).tolist() == [0] * 6 + [1] * 6
    shifted = np.concatenate([np.full_like(position, 9.0), 3.0 * position], axis=1)
    assert PositionStripes(width=0.3, index=1)(shifted).tolist() == [0] * 6 + [1] * 6


def test_state_dependent_chain_follows_the_observation():
    chain = StateDependentChain(lambda obs: np.where(obs[:, 0] > 1.0, 2, 0), num_contexts=3)
    walk, rng = ChainWalk(chain, 2), np.random.default_rng(0)
    assert walk.reset(rng, np.array([[0.0], [2.0]])).tolist() == [0, 2]
    assert walk.step(rng, np.array([[3.0], [0.5]])).tolist() == [2, 0]
    with pytest.raises(ConfigError, match="only 3"):
        ChainWalk(StateDependentChain(lambda obs: 3, num_contexts=3)).reset(rng, np.zeros((1, 1)))
    with pytest.raises(ConfigError, match="needs the observation"):
        ChainWalk(chain).reset(rng)


def test_schedule_holds_or_repeats():
    assert walk_contexts(ScheduleChain([0, 2, 2, 1]), 7)[0].tolist() == [0, 2, 2, 1, 1, 1, 1]
    assert walk_contexts(ScheduleChain([0, 2, 1], repeat=True), 7)[0].tolist() == [0, 2, 1, 0, 2, 1, 0]
    assert ScheduleChain([1, 0], num_contexts=4).num_contexts == 4


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: MarkovChain([[0.9, 0.2], [0.1, 0.9]]), "row 0 of matrix sums to 1.1"),
        (lambda: MarkovChain([[0.5, 0.5], [0.1, 0.8]]), "row 1 of matrix sums to 0.9"),
        (lambda: MarkovChain([[1.2, -0.2], [0.5, 0.5]]), "negative"),
        (lambda: MarkovChain([[np.nan, 1.0], [0.5, 0.5]]), "non-finite"),
        (lambda: MarkovChain([[0.5, 0.5]]), "square"),
        (lambda: MarkovChain([]), "non-empty"),
        (lambda: MarkovChain(MATRIX, [0.5, 0.5]), "2 entries"),
        (lambda: MarkovChain(MATRIX, [0.5, 0.5, 0.5]), "initial sums to 1.5"),
        (lambda: MarkovChain(MATRIX, cool_off=-1), "cool_off"),
        (lambda: MarkovChain(MATRIX, counter_at_reset="half"), "full, empty"),
        (lambda: MarkovChain(MATRIX, cool_off=3, counter_at_reset=4), "between 0 and cool_off=3"),
        (lambda: MarkovChain.symmetric(2, switch=1.5), "probability"),
        (lambda: MarkovChain.symmetric(0), "num_contexts"),
        (lambda: MarkovChain.ring(3, stay=-0.1), "probability"),
        (lambda: MarkovChain.ring(0), "num_contexts"),
        (lambda: ScheduleChain([]), "at least one"),
        (lambda: ScheduleChain([0, 3], num_contexts=2), "0 to 1"),
        (lambda: ScheduleChain([0, -1]), "0 to 0"),
        (lambda: check_chain(MarkovChain(MATRIX), 2), "over 3 contexts, but 2"),
        (lambda: check_chain("ring", 2), "MarkovChain"),
    ],
)
def test_wrong_chains_are_refused_with_a_reason(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


def test_chain_from_config_builds_every_kind():
    assert chain_from_config(2, switch=0.3, cool_off=2).matrix == pytest.approx(np.array([[0.7, 0.3], [0.3, 0.7]]))
    ring = chain_from_config(4, {"kind": "ring", "stay": 0.5}, cool_off=2, counter_at_reset="empty")
    assert (ring.matrix[0, 1], ring.cool_off, ring.counter_at_reset) == (0.25, 2, 0)
    markov = chain_from_config(3, {"kind": "markov", "matrix": MATRIX.tolist(), "initial": INITIAL.tolist()})
    assert type(markov) is MarkovChain
    assert markov.initial == pytest.approx(INITIAL)
    assert type(chain_from_config(3, {"kind": "non_markovian", "matrix": MATRIX.tolist()})) is NonMarkovianChain
    stripes = chain_from_config(2, {"kind": "stripes", "width": 0.5})
    assert stripes.function == PositionStripes(width=0.5)
    assert stripes.cool_off == 0
    assert chain_from_config(2, {"kind": "schedule", "sequence": [0, 0, 0]}).num_contexts == 2
    assert chain_from_config(2, ring) is ring


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        ({"kind": "rnig"}, "did you mean 'ring'"),
        ({"stay": 0.6}, "chain.kind"),
        ({"kind": "ring", "sty": 0.6}, "did you mean 'stay'"),
        ({"kind": "markov"}, "chain.matrix is missing"),
        ({"kind": "schedule"}, "chain.sequence is missing"),
    ],
)
def test_chain_from_config_refuses(chain, words):
    with pytest.raises(ConfigError, match=words):
        chain_from_config(2, chain)


def test_chains_are_equal_by_their_numbers():
    assert MarkovChain(MATRIX) == MarkovChain(MATRIX.copy())
    assert hash(MarkovChain(MATRIX)) == hash(MarkovChain(MATRIX.copy()))
    assert MarkovChain(MATRIX) != MarkovChain(MATRIX, cool_off=4)
    assert MarkovChain(MATRIX) != MarkovChain(MATRIX, INITIAL)
    assert MarkovChain(MATRIX) != NonMarkovianChain(MATRIX)
    assert StateDependentChain() == StateDependentChain()
