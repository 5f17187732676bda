"""Messages over contexts with phases against the sum over every path of (context, phase)."""

import itertools

import numpy as np
import pytest
import torch

from mbrl_hdp.inference.duration import Phases
from mbrl_hdp.probability import hmm, semi_markov
from mbrl_hdp.probability.markov import stationary
from mbrl_hdp.probability.phases import by_context, context_chain, context_of, dense, first_states
from mbrl_hdp.types import ContextChain, PhaseChain

TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def phase_chain(sizes, seed, early=True):
    """An asymmetric chain; without `early` only last phases can be left."""
    draw = np.random.default_rng(seed)
    num, states = len(sizes), sum(sizes)
    parts = draw.dirichlet([3.0, 2.0, 1.0], states)
    last = np.cumsum(sizes) - 1
    parts[last] = np.stack([parts[last, 0], 0 * parts[last, 0], 1 - parts[last, 0]], 1)
    if not early:
        rest = np.setdiff1d(np.arange(states), last)
        parts[rest, 1] += parts[rest, 2]
        parts[rest, 2] = 0.0
    moves = draw.dirichlet(np.arange(1, num + 1), num) * (1 - np.eye(num))
    moves /= np.maximum(moves.sum(1, keepdims=True), 1e-300)
    tensors = (draw.dirichlet(np.linspace(1, 2, states)), *parts.T, moves)
    return PhaseChain(*(torch.tensor(value) for value in tensors), tuple(sizes))


def enumerate_states(chain, log_lik):
    """List all paths of states with their joint weights, as the definition reads."""
    context, first = context_of(chain.sizes).tolist(), first_states(chain.sizes).tolist()
    num_steps = len(log_lik)
    paths = list(itertools.product(range(chain.num_states), repeat=num_steps))
    weights = []
    for path in paths:
        weight = chain.initial[path[0]] * log_lik[0, context[path[0]]].exp()
        for t in range(1, num_steps):
            before, now = path[t - 1], path[t]
            move = chain.stay[before] if now == before else torch.zeros(())
            if now == before + 1 and context[now] == context[before]:
                move = move + chain.advance[before]
            if now == first[context[now]] and context[now] != context[before]:
                move = move + chain.leave[before] * chain.moves[context[before], context[now]]
            weight = weight * move * log_lik[t, context[now]].exp()
        weights.append(weight)
    return torch.tensor(paths), torch.stack(weights)


CASES = [((2, 1), 5, True), ((1, 3), 5, False), ((2, 1, 2), 4, True), ((3, 2), 5, False)]


@pytest.mark.parametrize(("sizes", "num_steps", "early"), CASES)
def test_messages_equal_enumeration(make_log_lik, sizes, num_steps, early):
    chain = phase_chain(sizes, seed=sum(sizes), early=early)
    log_lik = make_log_lik(3, num_steps, len(sizes), seed=1)
    log_lik[1, 1] = 0.0  # a missing step
    lengths = torch.tensor([num_steps, num_steps - 1, num_steps - 2])
    smoothed = semi_markov.smooth(chain, log_lik, lengths)
    filtered = semi_markov.filter_contexts(chain, log_lik, lengths)
    path = semi_markov.viterbi(chain, log_lik, lengths)
    context, whole = context_of(sizes), dense(chain)
    pairs = torch.zeros(chain.num_states, chain.num_states, dtype=torch.float64)
    begins = torch.zeros(chain.num_states, dtype=torch.float64)
    for b, length in enumerate(lengths.tolist()):
        for t in range(1, length + 1):
            paths, weights = enumerate_states(chain, log_lik[b, :t])
            states = torch.zeros(t, chain.num_states, dtype=torch.float64)
            for step in range(t):
                states[step].index_add_(0, paths[:, step], weights / weights.sum())
            now = by_context(states, sizes)
            torch.testing.assert_close(filtered.probs[b, t - 1], now[-1], **TIGHT)
            following = by_context(states[-1] @ whole.transition, sizes)
            torch.testing.assert_close(filtered.following[b, t - 1], following, **TIGHT)
        torch.testing.assert_close(smoothed.marginals[b, :length], now, **TIGHT)
        alone = semi_markov.log_evidence(chain, log_lik, lengths)
        for evidence in (smoothed.log_evidence, filtered.log_evidence, alone):
            torch.testing.assert_close(evidence[b], weights.sum().log(), **TIGHT)
        assert path[b, :length].tolist() == context[paths[weights.argmax()]].tolist()
        assert (path[b, length:] == -1).all()
        assert (smoothed.marginals[b, length:] == 0).all()
        begins += states[0]
        share = weights / weights.sum()
        for t in range(1, length):
            pairs.index_put_((paths[:, t - 1], paths[:, t]), share, accumulate=True)
    counts = smoothed.counts
    torch.testing.assert_close(counts.initial, begins, **TIGHT)
    torch.testing.assert_close(counts.stay, pairs.diagonal(), **TIGHT)
    torch.testing.assert_close(counts.stay + counts.advance + counts.leave, pairs.sum(1), **TIGHT)
    entered = torch.zeros_like(counts.moves)
    for j, k in itertools.product(range(len(sizes)), repeat=2):
        if j != k:
            entered[j, k] = pairs[context == j][:, first_states(sizes)[k]].sum()
    torch.testing.assert_close(counts.moves, entered, **TIGHT)
    torch.testing.assert_close(by_context(counts.leave, sizes), entered.sum(1), **TIGHT)


@pytest.mark.parametrize("early", [True, False])
def test_gradients(make_log_lik, early):
    chain = phase_chain((2, 3, 1), seed=4, early=early)
    lengths = torch.tensor([6, 0, 4])
    tensors = [chain.initial, chain.stay, chain.leave, chain.moves, make_log_lik(3, 6, 3, seed=2)]
    inside = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    off = 1.0 - torch.eye(3, dtype=torch.float64)

    def evidence(initial, stay, leave, moves, log_lik):
        # Last phases have no next one, and a context is not left for itself: these entries are not the chain's.
        advance, leave = chain.advance * inside * (1 + stay), chain.leave * (1 + leave)
        own = PhaseChain(initial, stay, advance, leave, moves * off, chain.sizes)
        return semi_markov.log_evidence(own, log_lik, lengths)

    inputs = [value.clone().requires_grad_() for value in tensors]
    assert torch.autograd.gradcheck(evidence, inputs)
    weights = torch.tensor([0.7, 1.0, -1.9], dtype=torch.float64)
    mine = torch.autograd.grad(weights @ evidence(*inputs), inputs)
    each = [torch.autograd.grad(evidence(*inputs)[b], inputs) for b in range(3)]
    for place, value in enumerate(mine):
        torch.testing.assert_close(value, sum(w * one[place] for w, one in zip(weights, each, strict=True)))


def test_blocks_of_sequences_are_joined(make_log_lik):
    """More sequences than fit in a block, with lengths and weights of their own, against the dense chain."""
    chain, num = phase_chain((1, 3, 2), seed=7), 150
    log_lik, lengths = make_log_lik(num, 9, 3, seed=6), torch.arange(num) % 10
    weights = torch.linspace(-1.0, 2.0, num, dtype=torch.float64)
    whole, context = dense(chain), context_of(chain.sizes)
    mine = [value.clone().requires_grad_() for value in (chain.initial, chain.stay, chain.moves, log_lik)]
    initial, stay, moves, own = mine
    found = semi_markov.log_evidence(
        PhaseChain(initial, stay, chain.advance, chain.leave, moves, chain.sizes), own, lengths
    )
    theirs = [value.clone().requires_grad_() for value in (whole.initial, whole.transition, log_lik)]
    expected = hmm.log_evidence(ContextChain(*theirs[:2]), theirs[2][..., context], lengths)
    torch.testing.assert_close(found, expected, **TIGHT)
    by_own = torch.autograd.grad(weights @ found, mine)
    by_whole = torch.autograd.grad(weights @ expected, theirs)
    torch.testing.assert_close(by_own[0], by_whole[0], **TIGHT)
    torch.testing.assert_close(by_own[1], by_whole[1].diagonal(), **TIGHT)
    torch.testing.assert_close(by_own[3], by_whole[2], **TIGHT)
    entered = torch.zeros_like(moves).index_add(0, context, chain.leave[:, None] * by_whole[1][:, [0, 1, 4]])
    torch.testing.assert_close(by_own[2], entered, **TIGHT)
    filtered = semi_markov.filter_contexts(chain, log_lik, lengths)
    states = hmm.filter_contexts(whole, log_lik[..., context], lengths).probs
    torch.testing.assert_close(filtered.probs, by_context(states, chain.sizes), **TIGHT)


def test_one_phase_each_is_the_plain_chain(make_chain, make_log_lik):
    plain = make_chain(4, seed=5)
    stay = plain.transition.diagonal()
    moves = (plain.transition - torch.diag(stay)) / (1 - stay)[:, None]
    chain = PhaseChain(plain.initial, stay, torch.zeros(4, dtype=torch.float64), 1 - stay, moves, (1,) * 4)
    torch.testing.assert_close(context_chain(chain).transition, plain.transition, **TIGHT)
    log_lik, lengths = make_log_lik(37, 20, 4, seed=3, spread=6.0), torch.arange(37) % 21
    theirs, mine = hmm.smooth(plain, log_lik, lengths), semi_markov.smooth(chain, log_lik, lengths)
    torch.testing.assert_close(mine.marginals, theirs.marginals, **TIGHT)
    torch.testing.assert_close(mine.log_evidence, theirs.log_evidence, **TIGHT)
    torch.testing.assert_close(mine.counts.stay, theirs.expected_transitions.diagonal(), **TIGHT)
    assert torch.equal(semi_markov.viterbi(chain, log_lik, lengths), hmm.viterbi(plain, log_lik, lengths))


@pytest.mark.parametrize("early", [True, False])
def test_sharp_likelihoods_agree_with_the_dense_chain_in_logarithms(make_log_lik, early):
    """Likelihoods that differ by thousands of nats a step lose all but a few paths; those left must be right."""
    chain = phase_chain((4, 1, 6), seed=2, early=early)
    log_lik = make_log_lik(20, 30, 3, seed=8, spread=1500.0)
    lengths = torch.arange(20) + 11
    whole, context = dense(chain), context_of(chain.sizes)
    truth = hmm.smooth(whole, log_lik[..., context], lengths)
    mine = semi_markov.smooth(chain, log_lik, lengths)
    torch.testing.assert_close(mine.log_evidence, truth.log_evidence, rtol=1e-10, atol=1e-6)
    torch.testing.assert_close(mine.marginals, by_context(truth.marginals, chain.sizes), rtol=1e-6, atol=1e-6)
    pairs, counts = truth.expected_transitions, mine.counts
    torch.testing.assert_close(counts.stay, pairs.diagonal(), rtol=1e-6, atol=1e-6)
    advanced = torch.where(chain.advance[:-1] > 0, pairs.diagonal(1), 0.0)
    torch.testing.assert_close(counts.advance[:-1], advanced, rtol=1e-6, atol=1e-6)
    entered = pairs[:, first_states(chain.sizes)] * (context[:, None] != torch.arange(3))
    torch.testing.assert_close(counts.leave, entered.sum(1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(counts.moves, by_context(entered.T, chain.sizes).T, rtol=1e-6, atol=1e-6)
    exact = hmm.filter_contexts(whole, log_lik[..., context], lengths)
    found = semi_markov.filter_contexts(chain, log_lik, lengths)
    torch.testing.assert_close(found.probs, by_context(exact.probs, chain.sizes), rtol=1e-6, atol=1e-6)
    is_step = (torch.arange(30) < lengths[:, None])[..., None]
    following = torch.where(is_step, by_context(exact.probs @ whole.transition, chain.sizes), 0.0)
    torch.testing.assert_close(found.following, following, rtol=1e-6, atol=1e-6)


def test_impossible_sequences_have_no_evidence_and_no_gradient(make_log_lik):
    chain = phase_chain((2, 2), seed=1)
    log_lik = make_log_lik(2, 5, 2, seed=1)
    log_lik[0, 2] = -torch.inf
    log_lik.requires_grad_()
    evidence = semi_markov.log_evidence(chain, log_lik)
    assert evidence[0] == -torch.inf
    assert evidence[1].isfinite()
    (gradient,) = torch.autograd.grad(evidence.sum(), log_lik)
    assert (gradient[0] == 0).all()
    torch.testing.assert_close(gradient[1].sum(-1), torch.ones(5, dtype=torch.float64))
    assert (semi_markov.filter_contexts(chain, log_lik.detach()).probs[0] == 0).all()


def test_contexts_as_seen_step_by_step():
    """Long-run shares, mean stays and the distribution of stays against the dense chain."""
    chain = phase_chain((3, 1, 2), seed=9)
    whole, seen = dense(chain), context_chain(chain)
    torch.testing.assert_close(whole.transition.sum(1), torch.ones(6, dtype=torch.float64))
    shares = stationary(whole.transition)
    torch.testing.assert_close(stationary(seen.transition), by_context(shares, chain.sizes), **TIGHT)
    for k in range(3):
        inside = context_of(chain.sizes) == k
        block = whole.transition[inside][:, inside]
        survival = torch.stack([torch.linalg.matrix_power(block, n)[0].sum() for n in range(8)])
        own = Phases(*(part[inside].numpy() for part in (chain.stay, chain.advance, chain.leave)))
        np.testing.assert_allclose(own.survival(7), survival, rtol=1e-10)
        mean = torch.linalg.inv(torch.eye(int(inside.sum()), dtype=torch.float64) - block)[0].sum()
        torch.testing.assert_close(1 / (1 - seen.transition[k, k]), mean, **TIGHT)
