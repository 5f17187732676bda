"""The messages against the sum over all paths, in every engine and at the edges."""

import gc
import weakref

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from mbrl_hdp.probability import batched, kernels, passes, single_kernels, wide_kernels
from mbrl_hdp.probability.exact import exact_derivatives, log_messages
from mbrl_hdp.probability.hmm import filter_contexts, log_evidence, smooth, viterbi
from mbrl_hdp.probability.scaling import SMALLEST_SINGLE, scaled_likelihoods
from mbrl_hdp.types import ContextChain

TIGHT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(params=["kernels", "wide_kernels", "batched"])
def engine(request, monkeypatch):
    module = {"kernels": kernels, "wide_kernels": wide_kernels, "batched": batched}[request.param]
    monkeypatch.setattr(passes, "_engine_for", lambda inputs: module)
    return module


def test_compiled_loops_serve_the_cpu_and_tensors_every_other_device():
    engines = (("cpu", 2, kernels), ("cpu", 60, kernels), ("cpu", 61, wide_kernels), ("meta", 61, batched))
    for device, size, module in engines:
        log_lik = torch.zeros(1, 3, size, dtype=torch.float64, device=device)
        inputs = passes.MessageInputs(torch.ones(size), torch.ones(size, size), log_lik, torch.tensor([3]))
        assert passes._engine_for(inputs) is module


@pytest.mark.parametrize(
    ("size", "dtype", "first", "entry", "module"),
    [
        (61, torch.float32, 1.0, SMALLEST_SINGLE, single_kernels),
        (61, torch.float32, SMALLEST_SINGLE, 1.0, single_kernels),
        (60, torch.float32, 1.0, 1.0, kernels),
        (61, torch.float64, 1.0, 1.0, wide_kernels),
        (61, torch.float16, 1.0, 1.0, wide_kernels),
        (61, torch.float32, 1.0, 0.9 * SMALLEST_SINGLE, wide_kernels),
        (61, torch.float32, 0.9 * SMALLEST_SINGLE, 1.0, wide_kernels),
        (61, torch.float32, 0.0, 1.0, wide_kernels),
        (61, torch.float32, 1.0, torch.nan, wide_kernels),
    ],
)
def test_float32_serves_many_contexts_without_tiny_entries_only(size, dtype, first, entry, module):
    initial, transition = torch.ones(size, dtype=torch.float64), torch.ones(size, size, dtype=torch.float64)
    initial[7], transition[5, 3] = first, entry
    inputs = passes.MessageInputs(initial, transition, torch.zeros(1, 3, size, dtype=dtype), torch.tensor([3]))
    assert passes._engine_for(inputs) is module


@pytest.mark.parametrize(("num_contexts", "num_steps"), [(1, 3), (2, 5), (3, 1), (3, 4), (3, 5)])
def test_messages_equal_enumeration(engine, oracle, make_chain, make_log_lik, num_contexts, num_steps):
    chain = make_chain(num_contexts, seed=num_steps)
    log_lik = make_log_lik(3, num_steps, num_contexts, seed=1)
    lengths = torch.tensor([num_steps, max(1, num_steps - 1), max(1, num_steps - 2)])
    smoothed, filtered = smooth(chain, log_lik, lengths), filter_contexts(chain, log_lik, lengths)
    path = viterbi(chain, log_lik, lengths)
    expected_initial, expected_transitions = 0, torch.zeros(num_contexts, num_contexts, dtype=torch.float64)
    for b, length in enumerate(lengths.tolist()):
        truth = oracle(chain.initial, chain.transition, log_lik[b, :length])
        marginals, true_pairs = truth.marginals(num_contexts), truth.pairs(num_contexts)
        for result in (smoothed.log_evidence, filtered.log_evidence, log_evidence(chain, log_lik, lengths)):
            torch.testing.assert_close(result[b], truth.evidence.log(), **TIGHT)
        torch.testing.assert_close(smoothed.marginals[b, :length], marginals, **TIGHT)
        for t in range(length):
            upto = oracle(chain.initial, chain.transition, log_lik[b, : t + 1])
            torch.testing.assert_close(filtered.probs[b, t], upto.marginals(num_contexts)[t], **TIGHT)
        assert path[b, :length].tolist() == truth.paths[truth.weights.argmax()].tolist()
        assert (path[b, length:] == -1).all()
        assert (smoothed.marginals[b, length:] == 0).all()
        expected_initial = expected_initial + marginals[0]
        expected_transitions += true_pairs.sum(0)
    torch.testing.assert_close(smoothed.expected_initial, expected_initial, **TIGHT)
    torch.testing.assert_close(smoothed.expected_transitions, expected_transitions, **TIGHT)


def test_gradients_equal_enumeration_at_zero_entries_and_masks(engine, oracle, make_chain, make_log_lik):
    chain = make_chain(3, seed=0)
    initial, transition = chain.initial.clone(), chain.transition.clone()
    initial[2], transition[:, 2], transition[0, 1] = 0.0, 0.0, 0.0  # a masked context and a forbidden move
    log_lik = make_log_lik(2, 4, 3, seed=5)
    log_lik[0, 1, 0] = -torch.inf
    weights = torch.tensor([0.7, -1.9], dtype=torch.float64)
    inputs = [value.requires_grad_() for value in (initial, transition, log_lik)]
    ours = torch.autograd.grad(weights @ log_evidence(ContextChain(initial, transition), log_lik), inputs)
    truth = sum(w * oracle(initial, transition, x).evidence.log() for w, x in zip(weights, log_lik, strict=True))
    expected = torch.autograd.grad(truth, inputs)
    for mine, theirs in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, theirs.nan_to_num(0.0), **TIGHT)
    assert (ours[1][:2, 2] != 0).any()


def test_gradcheck(engine, make_chain, make_log_lik):
    chain = make_chain(3, seed=3)
    lengths = torch.tensor([6, 0, 4])
    inputs = [v.requires_grad_() for v in (chain.initial, chain.transition, make_log_lik(3, 6, 3, seed=2))]
    assert torch.autograd.gradcheck(lambda i, r, x: log_evidence(ContextChain(i, r), x, lengths), inputs)


def test_sub_stochastic_rows_count_only_the_surviving_paths(engine, oracle, make_chain, make_log_lik):
    chain = make_chain(3, seed=7)
    keep = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    masked = ContextChain(chain.initial * keep, chain.transition * keep)
    log_lik = make_log_lik(1, 5, 3, seed=3)
    evidence = log_evidence(masked, log_lik)
    truth = oracle(masked.initial, masked.transition, log_lik[0])
    torch.testing.assert_close(evidence[0], truth.evidence.log(), **TIGHT)
    assert evidence < log_evidence(chain, log_lik)
    assert (smooth(masked, log_lik).marginals[..., 1] == 0).all()


def test_engines_agree_on_a_larger_ragged_batch(make_chain, make_log_lik, monkeypatch):
    chain, log_lik = make_chain(40, seed=1), make_log_lik(9, 30, 40, seed=4, spread=20.0)
    lengths = torch.tensor([30, 1, 17, 0, 30, 29, 2, 8, 30])
    results = []
    for module in (kernels, wide_kernels, batched):
        monkeypatch.setattr(passes, "_engine_for", lambda inputs, module=module: module)
        results.append(smooth(chain, log_lik, lengths))
    for values in zip(*results, strict=True):
        for mine in values[:-1]:
            torch.testing.assert_close(mine, values[-1], rtol=1e-12, atol=1e-12)


def test_ten_thousand_steps(engine, make_chain, make_log_lik):
    chain, log_lik = make_chain(3, seed=2), make_log_lik(2, 10_000, 3, seed=9, spread=8.0)
    inputs = [v.requires_grad_() for v in (chain.initial, chain.transition, log_lik)]
    evidence = log_evidence(chain, log_lik)
    gradients = torch.autograd.grad(evidence.sum(), inputs)
    assert all(gradient.isfinite().all() for gradient in gradients)
    with torch.no_grad():
        lengths = torch.tensor([10_000, 10_000])
        truth = log_messages(chain.initial, chain.transition, log_lik, lengths)
    torch.testing.assert_close(evidence, truth.log_evidence, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients[2].sum(-1), torch.ones(2, 10_000, dtype=torch.float64))
    # Moves out of a context = its expected visits but the last step's: a check on the gradient by the chain.
    moves = (chain.transition * gradients[1]).sum(1)
    torch.testing.assert_close(moves, gradients[2][:, :-1].sum((0, 1)))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), order=st.permutations(range(4)), scale=st.sampled_from([0.1, 3.0, 300.0]))
def test_relabelling_permutes_everything(seed, order, scale):
    generator = torch.Generator().manual_seed(seed)
    chain = ContextChain(
        torch.rand(4, generator=generator, dtype=torch.float64).softmax(0),
        torch.rand(4, 4, generator=generator, dtype=torch.float64).mul(4).softmax(1),
    )
    log_lik = scale * torch.randn(2, 7, 4, generator=generator, dtype=torch.float64)
    relabelled = ContextChain(chain.initial[order], chain.transition[order][:, order])
    plain, other = smooth(chain, log_lik), smooth(relabelled, log_lik[..., order])
    torch.testing.assert_close(other.log_evidence, plain.log_evidence, **TIGHT)
    torch.testing.assert_close(other.marginals, plain.marginals[..., order], **TIGHT)
    torch.testing.assert_close(other.expected_initial, plain.expected_initial[order], **TIGHT)
    torch.testing.assert_close(other.expected_transitions, plain.expected_transitions[order][:, order], **TIGHT)
    path = viterbi(relabelled, log_lik[..., order])
    assert torch.equal(torch.tensor(order)[path], viterbi(chain, log_lik))


def test_a_chain_that_never_switches_survives_any_sharpness(engine):
    # Every path is constant, so the evidence has a closed form that scaled messages alone would lose to underflow.
    initial = torch.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)
    log_lik = torch.zeros(1, 4, 2, dtype=torch.float64)
    log_lik[0, 0, 0], log_lik[0, 2, 1] = -5000.0, -5001.0
    log_lik.requires_grad_()
    evidence = log_evidence(ContextChain(initial, torch.eye(2, dtype=torch.float64)), log_lik)
    truth = (initial.log() + log_lik[0].sum(0)).logsumexp(0)
    torch.testing.assert_close(evidence[0], truth, **TIGHT)
    mine = torch.autograd.grad(evidence.sum(), (initial, log_lik))
    for ours, theirs in zip(mine, torch.autograd.grad(truth, (initial, log_lik)), strict=True):
        torch.testing.assert_close(ours, theirs, **TIGHT)
    filtered = filter_contexts(ContextChain(initial.detach(), torch.eye(2, dtype=torch.float64)), log_lik)
    torch.testing.assert_close(filtered.probs[0, 1], torch.tensor([0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(
        filtered.probs[0, 3, 0], torch.sigmoid(torch.log(initial[0] / initial[1]) + 1.0).detach()
    )


def test_tiny_transitions_and_sharp_likelihoods_in_float32(engine, make_log_lik):
    # FINDINGS: scaled float32 messages gave NaN gradients here.
    transition = torch.full((5, 5), 1e-30)
    transition[:, 0] = 1.0 - 4e-30
    initial = torch.tensor([1.0, 1e-30, 1e-30, 1e-30, 1e-30])
    log_lik = make_log_lik(4, 50, 5, seed=0, spread=3000.0).float()
    inputs = [value.requires_grad_() for value in (initial, transition, log_lik)]
    evidence = log_evidence(ContextChain(initial, transition), log_lik)
    gradients = torch.autograd.grad(evidence.sum(), inputs)
    assert evidence.dtype == torch.float32
    assert [gradient.dtype for gradient in gradients] == [torch.float32] * 3
    exact = [value.detach().double() for value in inputs]
    lengths = torch.full((4,), 50)
    truth = exact_derivatives(*exact, lengths, torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(evidence.double(), log_messages(*exact, lengths).log_evidence, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradients[2].double(), truth.marginals, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients[1].double(), truth.by_transition, rtol=1e-5, atol=1e-6)


def test_a_masked_context_that_explains_best_gives_no_nan(engine, make_chain, make_log_lik):
    chain, log_lik = make_chain(20, seed=0, dtype=torch.float32), make_log_lik(3, 40, 20, seed=1).float()
    log_lik[:, :, 5] += 4000.0
    keep = torch.ones(20)
    keep[5] = 0.0
    initial, transition = chain.initial.clone().requires_grad_(), chain.transition.clone().requires_grad_()
    evidence = log_evidence(ContextChain(initial * keep, transition * keep), log_lik)
    evidence.sum().backward()
    others = keep.bool()
    reduced = ContextChain(chain.initial[others], chain.transition[others][:, others])
    torch.testing.assert_close(evidence, log_evidence(reduced, log_lik[..., others]))
    for gradient in (initial.grad, transition.grad):
        assert gradient.isfinite().all()
        assert (gradient[..., 5] == 0).all()


def test_padding_is_ignored_even_if_nan(engine, make_chain, make_log_lik):
    chain, log_lik = make_chain(3, seed=4), make_log_lik(2, 6, 3, seed=6)
    lengths = torch.tensor([6, 4])
    plain = smooth(chain, log_lik, lengths)
    log_lik[1, 4:] = torch.nan
    log_lik.requires_grad_()
    for mine, theirs in zip(smooth(chain, log_lik, lengths), plain, strict=True):
        torch.testing.assert_close(mine, theirs)
    log_evidence(chain, log_lik, lengths).sum().backward()
    assert (log_lik.grad[1, 4:] == 0).all()
    torch.testing.assert_close(log_lik.grad, plain.marginals)


def test_missing_steps_are_neutral(engine, make_chain, make_log_lik):
    chain, log_lik = make_chain(3, seed=4), make_log_lik(1, 5, 3, seed=6)
    log_lik[0, 2] = 0.0
    direct = log_evidence(chain, log_lik)
    two_moves = filter_contexts(chain, log_lik[:, :2])
    jump = ContextChain(two_moves.probs[0, -1] @ chain.transition @ chain.transition, chain.transition)
    torch.testing.assert_close(direct, two_moves.log_evidence + log_evidence(jump, log_lik[:, 3:]))
    log_lik[0, 3:] = 0.0
    torch.testing.assert_close(log_evidence(chain, log_lik), two_moves.log_evidence)


def test_an_impossible_sequence_leaves_the_others_alone(engine, make_chain, make_log_lik):
    chain, log_lik = make_chain(2, seed=4), make_log_lik(2, 5, 2, seed=6)
    alone = smooth(chain, log_lik[1:])
    log_lik[0, 2] = -torch.inf
    inputs = [v.requires_grad_() for v in (chain.initial, chain.transition, log_lik)]
    result = smooth(chain, log_lik)
    assert result.log_evidence[0] == -torch.inf
    assert (result.marginals[0] == 0).all()
    torch.testing.assert_close(result.expected_transitions, alone.expected_transitions)
    gradients = torch.autograd.grad(log_evidence(chain, log_lik).sum(), inputs)
    assert (gradients[2][0] == 0).all()
    torch.testing.assert_close(chain.transition * gradients[1], alone.expected_transitions)


@pytest.mark.parametrize("weights", [[-0.5, -0.5, -0.5], [1.0, -2.0, 0.3]])
def test_counts_come_with_the_evidence_and_its_gradient(engine, make_chain, make_log_lik, weights):
    chain, log_lik = make_chain(4, seed=8), make_log_lik(3, 7, 4, seed=9)
    inputs = [v.requires_grad_() for v in (chain.initial, chain.transition, log_lik)]
    weights = torch.tensor(weights, dtype=torch.float64)
    result = smooth(chain, log_lik)
    torch.testing.assert_close(result.log_evidence, log_evidence(chain, log_lik))
    mine = torch.autograd.grad(weights @ result.log_evidence, inputs)
    for ours, theirs in zip(mine, torch.autograd.grad(weights @ log_evidence(chain, log_lik), inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_messages_die_with_the_evidence(make_chain, make_log_lik):
    # No cycle between the result and what its gradient needs, or every training step would wait for the collector.
    log_lik = make_log_lik(2, 5, 3, seed=0).requires_grad_()
    evidence = log_evidence(make_chain(3, seed=0), log_lik)
    alive = weakref.ref(evidence.grad_fn.messages)
    gc.disable()
    try:
        del evidence
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("batch", "num_steps"), [(0, 4), (3, 0), (0, 0)])
def test_nothing_in_nothing_out(engine, make_chain, batch, num_steps):
    chain = make_chain(3, seed=0)
    log_lik = torch.zeros(batch, num_steps, 3, dtype=torch.float64, requires_grad=True)
    evidence = log_evidence(chain, log_lik)
    assert torch.equal(evidence, torch.zeros(batch, dtype=torch.float64))
    evidence.sum().backward()
    assert log_lik.grad.shape == log_lik.shape
    assert viterbi(chain, log_lik).shape == (batch, num_steps)
    assert smooth(chain, log_lik).expected_transitions.sum() == 0


def test_wrong_sizes_are_refused(make_chain):
    log_lik = torch.zeros(2, 4, 3)
    with pytest.raises(ValueError, match="between 0 and 4"):
        log_evidence(make_chain(3, seed=0), log_lik, torch.tensor([5, 1]))
    with pytest.raises(ValueError, match="3 contexts"):
        log_evidence(make_chain(2, seed=0), log_lik)
    with pytest.raises(ValueError, match="3 contexts"):
        log_evidence(ContextChain(make_chain(3, seed=0).initial, make_chain(2, seed=0).transition), log_lik)


def uneven_chain(size, smallest):
    """Half of the entries are as small as float32 messages allow; float32."""
    generator = torch.Generator().manual_seed(size)
    rows = torch.rand(size + 1, size, generator=generator)
    rows = torch.where(rows < 0.5, 1.5 * smallest, rows)
    rows = rows / rows.sum(1, keepdim=True)
    return ContextChain(rows[0], rows[1:])


@pytest.mark.parametrize("spread", [2.0, 40.0, 3000.0])
@pytest.mark.parametrize("smallest", [1e-3, 50 * SMALLEST_SINGLE])
@pytest.mark.parametrize("weights", [[1.0] * 6, [0.7, -1.9, 1.0, 0.0, 3.0, 0.2]])
def test_float32_messages_agree_with_logarithms(make_log_lik, spread, smallest, weights):
    chain, lengths = uneven_chain(65, smallest), torch.tensor([40, 1, 0, 39, 40, 17])
    log_lik = make_log_lik(6, 40, 65, seed=3, spread=spread).float()
    log_lik[0, 3, :60], log_lik[3, 5], log_lik[1, 1:] = -torch.inf, -torch.inf, torch.nan
    inputs = [value.requires_grad_() for value in (chain.initial, chain.transition, log_lik)]
    evidence = log_evidence(ContextChain(*inputs[:2]), log_lik, lengths)
    assert evidence.grad_fn.messages._engine is single_kernels
    weights = torch.tensor(weights)
    found = torch.autograd.grad(weights[evidence != -torch.inf] @ evidence[evidence != -torch.inf], inputs)
    exact = [value.detach().double() for value in inputs]
    exact[2] = exact[2].nan_to_num(0.0, neginf=-torch.inf)
    by_exact = log_messages(*exact, lengths)
    truth = exact_derivatives(*exact, lengths, weights.double())
    assert evidence[3] == -torch.inf
    torch.testing.assert_close(evidence.double(), by_exact.log_evidence, rtol=1e-6, atol=1e-5)
    marginals = weights[:, None, None] * truth.marginals
    torch.testing.assert_close(found[2].double(), marginals, rtol=2e-5, atol=1e-6)
    for mine, theirs in zip(found[:2], (truth.by_initial, truth.by_transition), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


def test_float32_messages_equal_enumeration(monkeypatch, oracle, make_chain, make_log_lik):
    monkeypatch.setattr(passes, "_engine_for", lambda inputs: single_kernels)
    chain, log_lik = make_chain(3, seed=5, dtype=torch.float32), make_log_lik(2, 5, 3, seed=1).float()
    inputs = [value.requires_grad_() for value in (chain.initial, chain.transition, log_lik)]
    evidence = log_evidence(ContextChain(*inputs[:2]), log_lik)
    exact = [value.detach().double().requires_grad_() for value in inputs]
    truth = torch.stack([oracle(*exact[:2], rows).evidence.log() for rows in exact[2]])
    torch.testing.assert_close(evidence.double(), truth, rtol=1e-6, atol=1e-6)
    weights = torch.tensor([0.7, -1.9])
    expected = torch.autograd.grad(weights.double() @ truth, exact)
    for mine, theirs in zip(torch.autograd.grad(weights @ evidence, inputs), expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-6)


def test_offsets_of_float32_likelihoods_are_summed_in_float64(make_chain):
    """100 steps of 1e6 + 1/16, which float32 holds, while it does not hold their sum."""
    chain, log_lik = make_chain(3, seed=0), torch.full((1, 100, 3), 1e6 + 1 / 16)
    lik, offset = scaled_likelihoods(
        chain.initial, chain.transition, log_lik, torch.tensor([100]), single_kernels.by_step
    )
    assert lik.dtype == torch.float32
    assert offset.tolist() == [1e8 + 6.25]


def test_float32_messages_do_not_drift(make_log_lik):
    """A sticky chain forgets slowly: rounding errors would add up over the steps."""
    size, num_steps = 61, 10_000
    chain = ContextChain(torch.full((size,), 1 / size), torch.full((size, size), 1e-5) + (1 - 61e-5) * torch.eye(size))
    log_lik = make_log_lik(1, num_steps, size, seed=2, spread=0.05).float()
    found = smooth(chain, log_lik)
    exact = smooth(ContextChain(chain.initial.double(), chain.transition.double()), log_lik.double())
    torch.testing.assert_close(found.log_evidence.double(), exact.log_evidence, rtol=1e-6, atol=0)
    # Rounding alone is 1e-5 at most, from the first step to the last; which digits it takes depends on the processor.
    torch.testing.assert_close(found.marginals.double().sum(-1), torch.ones(1, num_steps).double(), rtol=0, atol=3e-5)
    torch.testing.assert_close(found.marginals.double(), exact.marginals, rtol=1e-3, atol=1e-4)
    moves = found.expected_transitions.double()
    torch.testing.assert_close(moves.sum(), torch.tensor(num_steps - 1.0).double(), rtol=1e-5, atol=0)


HALF, TINY = [[0.5, 0.5], [0.5, 0.5]], 1e-150


@pytest.mark.parametrize(
    ("initial", "transition", "first_log_lik", "is_exact"),
    [
        ([0.5, 0.5], HALF, 0.0, [True, True]),
        ([1.0, TINY], HALF, 0.0, [False, False]),
        ([TINY, 1.0], HALF, 0.0, [False, False]),
        ([1.0, 0.0], HALF, 0.0, [True, True]),  # a context that cannot be the first one is no loss
        ([0.5, 0.5], [[1.0, TINY], [1.0, TINY]], 0.0, [False, True]),  # the second sequence has one step only
        ([0.5, 0.5], [[1.0, 0.0], [1.0, 0.0]], 0.0, [True, True]),  # nor is one that cannot be entered
        ([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]], 0.0, [True, True]),
        ([1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], 0.0, [False, True]),  # context 1 could be entered, but from itself only
        ([0.5, 0.5], [[1.0, TINY], [1.0, TINY]], -torch.inf, [True, True]),  # nothing is left to lose
    ],
)
def test_sequences_that_scaled_messages_cannot_carry_are_flagged(engine, initial, transition, first_log_lik, is_exact):
    initial, transition = (torch.tensor(rows, dtype=torch.float64) for rows in (initial, transition))
    log_lik, lengths = torch.zeros(2, 2, 2, dtype=torch.float64), torch.tensor([2, 1])
    log_lik[:, 0] = first_log_lik
    lik, offset = scaled_likelihoods(initial, transition, log_lik, lengths)
    assert engine.forward_pass(initial, transition, lik, offset, lengths).is_exact.tolist() == is_exact


@pytest.mark.parametrize(
    ("initial", "transition", "step"),
    [([1.0, 0.0], HALF, 0), ([0.5, 0.5], [[1.0, 0.0], [1.0, 0.0]], 1)],
    ids=["not the first one", "never entered"],
)
def test_a_likelihood_beyond_all_numbers_of_a_context_that_cannot_act_does_no_harm(engine, initial, transition, step):
    """It is no part of the largest one that is taken out, so its ratio overflows; 0 times infinity is no number."""
    initial, transition = (torch.tensor(rows, dtype=torch.float64) for rows in (initial, transition))
    log_lik = torch.zeros(1, 2, 2, dtype=torch.float64)
    log_lik[0, step, 1] = 1e4
    assert bool(scaled_likelihoods(initial, transition, log_lik, torch.tensor([2]))[0].isfinite().all())
    found = log_evidence(ContextChain(initial, transition), log_lik)
    torch.testing.assert_close(found, torch.zeros(1, dtype=torch.float64), **TIGHT)


@pytest.mark.parametrize("step", range(5))
def test_a_context_that_is_lost_is_flagged_but_not_a_sequence_that_is_impossible(engine, step):
    """The chain never switches: a context that a step rules out is predicted with zero from the next step on."""
    initial, transition = torch.full((2,), 0.5, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    log_lik, lengths = torch.zeros(2, 5, 2, dtype=torch.float64), torch.full((2,), 5)
    log_lik[0, step, 1] = -torch.inf
    log_lik[1, step] = -torch.inf
    lik, offset = scaled_likelihoods(initial, transition, log_lik, lengths)
    assert engine.forward_pass(initial, transition, lik, offset, lengths).is_exact.tolist() == [step == 4, True]


PROBABILITIES = st.sampled_from([0.0, 0.0, 1e-300, 1e-120, 1e-60, 1e-30, 0.1, 0.5, 1.0])
LOG_LIKS = st.sampled_from([-torch.inf, -5000.0, -900.0, -300.0, -40.0, -1.0, 0.0, 0.5, 2.0, 700.0])


@settings(max_examples=150, deadline=None)
@given(data=st.data(), size=st.integers(1, 3), num_steps=st.integers(1, 5))
def test_no_regime_is_lost(data, size, num_steps):
    # Zeros, tiny entries and likelihoods far beyond the float range, in any combination.
    initial = torch.tensor(data.draw(st.lists(PROBABILITIES, min_size=size, max_size=size)), dtype=torch.float64)
    rows = data.draw(st.lists(PROBABILITIES, min_size=size * size, max_size=size * size))
    transition = torch.tensor(rows, dtype=torch.float64).reshape(size, size)
    initial, transition = (torch.nn.functional.normalize(x, p=1, dim=-1, eps=1e-310) for x in (initial, transition))
    values = data.draw(st.lists(LOG_LIKS, min_size=num_steps * size, max_size=num_steps * size))
    log_lik = torch.tensor(values, dtype=torch.float64).reshape(1, num_steps, size)
    # Derivatives by entries that nothing passes through may exceed any number and are cut: keep away from that.
    can_enter = torch.stack([initial > 0] + [(transition > 0).any(0)] * (num_steps - 1))
    best = torch.where(can_enter, log_lik[0], -torch.inf).amax(-1, keepdim=True)
    log_lik[0] = torch.minimum(log_lik[0], best + 100.0)
    lengths, weights = torch.tensor([num_steps]), torch.ones(1, dtype=torch.float64)
    messages = log_messages(initial, transition, log_lik, lengths)
    truth = exact_derivatives(initial, transition, log_lik, lengths, weights)
    result = passes.MessagePass(passes.message_inputs(ContextChain(initial, transition), log_lik, lengths))
    torch.testing.assert_close(result.forward.log_evidence, messages.log_evidence, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(result.unit_derivatives.marginals, truth.marginals, rtol=1e-8, atol=1e-10)
    for mine, theirs in zip(result.unit_derivatives[1:], truth[1:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)
