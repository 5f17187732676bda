"""The K heads: plain torch against finite differences and single networks, compiled kernels against plain torch."""

import pytest
import torch

from mbrl_hdp.errors import DataError
from mbrl_hdp.inference import head_kernels
from mbrl_hdp.inference.heads import ROWS_PER_CHUNK, WIDEST_COMPILED, ContextHeads

# Sizes that are no multiples of the kernels' blocks, a batch longer than a chunk, one context, one row, no row, more
# outputs than hidden units.
SHAPES = [
    *[(3, 5, 2, [7], 700), (10, 6, 4, [128], 1300), (2, 21, 6, [10], 5), (1, 1, 1, [1], 1), (4, 3, 2, [9], 0)],
    (2, 3, 9, [2], 6),
]


def make_heads(max_contexts, num_inputs, num_outputs, hidden_sizes, dtype=torch.float64, seed=0):
    heads = ContextHeads(max_contexts, num_inputs, num_outputs, hidden_sizes).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for number, value in enumerate(heads.parameters()):
            value.copy_((0.2 + 0.1 * number) * torch.randn(value.shape, generator=generator))
    return heads


def make_density(max_contexts, num_inputs, num_outputs, rows, dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    inverse_std = (0.3 + draw(max_contexts, num_outputs).exp()).requires_grad_()
    return draw(rows, num_inputs), draw(rows, num_outputs), inverse_std, draw(max_contexts).requires_grad_()


def gradients(heads, log_density, grad, density):
    return torch.autograd.grad(log_density, [*heads.parameters(), *density[2:]], grad, retain_graph=True)


@pytest.mark.parametrize("hidden_sizes", [[], [5], [4, 3]])
def test_reference_gradients_equal_finite_differences(hidden_sizes):
    heads = make_heads(2, 3, 2, hidden_sizes)
    inputs, targets, inverse_std, offset = make_density(2, 3, 2, 6)
    values = [*heads.parameters()]

    def run(inverse_std, offset, inputs, targets, *parameters):
        names = [name for name, _ in heads.named_parameters()]
        arguments = (inputs, targets, inverse_std, offset)
        with torch.nn.utils.stateless._reparametrize_module(heads, dict(zip(names, parameters, strict=True))):
            return heads.reference_log_density(*arguments)

    free = (inverse_std, offset, inputs.requires_grad_(), targets.requires_grad_(), *values)
    assert torch.autograd.gradcheck(run, free)


def test_every_head_is_a_plain_network():
    heads = make_heads(3, 4, 2, [6, 5])
    inputs = torch.randn(9, 4, dtype=torch.float64)
    for k in range(3):
        hidden = inputs
        for weight, bias in zip(heads.weights[:-1], heads.biases[:-1], strict=True):
            hidden = torch.nn.functional.linear(hidden, weight[k], bias[k]).relu()
        expected = torch.nn.functional.linear(hidden, heads.weights[-1][k], heads.biases[-1][k])
        torch.testing.assert_close(heads(inputs)[:, k], expected)


def test_density_is_the_normal_distribution():
    heads = make_heads(3, 4, 2, [6])
    inputs, targets, inverse_std, _ = make_density(3, 4, 2, 8)
    std = 1.0 / inverse_std
    offset = (-std.log() - 0.5 * torch.log(torch.tensor(2 * torch.pi))).sum(-1)
    expected = torch.distributions.Normal(heads(inputs), std).log_prob(targets[:, None]).sum(-1)
    torch.testing.assert_close(heads.log_density(inputs, targets, inverse_std, offset), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_kernel_equals_reference(shape, dtype, tolerance):
    max_contexts, num_inputs, num_outputs, hidden_sizes, rows = shape
    heads = make_heads(max_contexts, num_inputs, num_outputs, hidden_sizes, dtype)
    density = make_density(max_contexts, num_inputs, num_outputs, rows, dtype)
    grad = torch.randn(rows, max_contexts, generator=torch.Generator().manual_seed(2)).to(dtype)
    ours = heads.log_density(*density, skip_share=0.0)
    assert "Compiled" in type(ours.grad_fn).__name__, "this shape was meant to reach the kernel"
    reference = heads.reference_log_density(*density)
    torch.testing.assert_close(ours, reference, rtol=tolerance, atol=tolerance)
    both = gradients(heads, ours, grad, density), gradients(heads, reference, grad, density)
    for mine, theirs in zip(*both, strict=True):
        size = float(theirs.abs().max()) if theirs.numel() else 0.0
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance * (1.0 + size))


def test_kernel_takes_outputs_out_of_the_density():
    heads = make_heads(2, 3, 3, [5])
    inputs, targets, inverse_std, offset = make_density(2, 3, 3, 20)
    inverse_std = inverse_std.detach().clone()
    inverse_std[:, 1] = 0.0
    inverse_std.requires_grad_()
    log_density = heads.log_density(inputs, targets, inverse_std, offset)
    moved = targets + torch.tensor([0.0, 5.0, 0.0])
    torch.testing.assert_close(heads.log_density(inputs, moved, inverse_std, offset), log_density)
    grad = torch.ones_like(log_density)
    by_kernel = torch.autograd.grad(log_density, [inverse_std, *heads.parameters()], grad)
    reference = heads.reference_log_density(inputs, targets, inverse_std, offset)
    by_torch = torch.autograd.grad(reference, [inverse_std, *heads.parameters()], grad)
    torch.testing.assert_close(by_kernel, by_torch)


def contribution(grad, log_density, offset):
    return (grad.abs() * (1.0 + 2.0 * (offset - log_density))).detach().double()


@pytest.mark.parametrize("share", [1e-6, 1e-3, 0.1])
def test_skipping_stays_within_its_bound(share):
    """The gradient with skipping is that of the kept pairs, and the others hold less than `share` of everything."""
    heads = make_heads(4, 6, 3, [16], torch.float32)
    density = make_density(4, 6, 3, 900, torch.float32)
    generator = torch.Generator().manual_seed(3)
    grad = (8.0 * torch.randn(900, 4, generator=generator)).softmax(-1) ** 2
    log_density = heads.log_density(*density, skip_share=share)
    size = contribution(grad, log_density, density[3])
    kept = size >= share * size.mean()
    assert 0 < int((~kept).sum()) < kept.numel(), "the fixture must have pairs to skip and pairs to keep"
    assert float(size[~kept].sum()) < share * float(size.sum())
    ours = gradients(heads, log_density, grad, density)
    reference = heads.reference_log_density(*density)
    expected = gradients(heads, reference, grad * kept, density)
    exact = gradients(heads, reference, grad, density)
    for mine, of_kept in zip(ours[:-1], expected[:-1], strict=True):
        torch.testing.assert_close(mine, of_kept, rtol=1e-4, atol=1e-5 * float(of_kept.abs().max()))
    torch.testing.assert_close(ours[-1], exact[-1])
    # By output bias and by log std one pair's derivative is at most its contribution (times 1/std for the bias).
    bound = share * float(size.sum())
    assert bool(((ours[3] - exact[3]).abs() <= 1.01 * bound * density[2].detach() + 1e-4).all())
    assert bool(((ours[4] - exact[4]).abs() * density[2].detach() <= 1.01 * bound + 1e-3).all())


def test_double_precision_skips_nothing():
    heads = make_heads(3, 4, 2, [6])
    density = make_density(3, 4, 2, 50)
    grad = torch.full((50, 3), 1e-12, dtype=torch.float64)
    grad[::7, 1] = 1.0
    ours = gradients(heads, heads.log_density(*density, skip_share=0.5), grad, density)
    exact = gradients(heads, heads.reference_log_density(*density), grad, density)
    torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-18)


def test_rows_without_gradient_may_hold_nan():
    heads = make_heads(2, 3, 2, [4], torch.float32)
    inputs, targets, inverse_std, offset = make_density(2, 3, 2, 10, torch.float32)
    grad = torch.rand(10, 2)
    grad[4] = 0.0
    clean = gradients(heads, heads.log_density(inputs, targets, inverse_std, offset), grad, (0, 0, inverse_std, offset))
    inputs[4, 1] = torch.nan
    log_density = heads.log_density(inputs, targets, inverse_std, offset)
    assert bool(log_density[4].isnan().all()), "a row with a missing value must not look like a number"
    assert bool(log_density[[3, 5]].isfinite().all())
    torch.testing.assert_close(gradients(heads, log_density, grad, (0, 0, inverse_std, offset)), clean)


def test_gradient_by_inputs_comes_from_the_reference():
    heads = make_heads(2, 3, 2, [4])
    inputs, targets, inverse_std, offset = make_density(2, 3, 2, 10)
    inputs.requires_grad_()
    (found,) = torch.autograd.grad(heads.log_density(inputs, targets, inverse_std, offset)[:, 1].sum(), inputs)
    step = 1e-6
    with torch.no_grad():
        moved = inputs + step * torch.eye(3, dtype=torch.float64)[2]
        arguments = (targets, inverse_std, offset)
        rise = heads.log_density(moved, *arguments) - heads.log_density(inputs, *arguments)
    torch.testing.assert_close(found[:, 2], rise[:, 1] / step, rtol=1e-4, atol=1e-4)


def test_wide_networks_are_left_to_the_matrix_library():
    heads = make_heads(2, WIDEST_COMPILED, 3, [4])
    density = make_density(2, WIDEST_COMPILED, 3, 5)
    log_density = heads.log_density(*density)
    assert "Compiled" not in type(log_density.grad_fn).__name__
    torch.testing.assert_close(log_density, heads.reference_log_density(*density))


@pytest.mark.parametrize(
    ("hidden_sizes", "weights", "rows", "is_compiled"),
    [
        ([4], torch.float32, torch.zeros(5, 3), True),
        ([4], torch.float64, torch.zeros(5, 3, dtype=torch.float64), True),
        ([], torch.float32, torch.zeros(5, 3), False),
        ([4, 4], torch.float32, torch.zeros(5, 3), False),
        ([4], torch.float32, torch.zeros(5, 3, dtype=torch.float64), False),
        ([4], torch.bfloat16, torch.zeros(5, 3, dtype=torch.bfloat16), False),
        ([4], torch.float32, torch.zeros(5, 3, device="meta"), False),
        ([4], torch.float32, torch.zeros(5, 3, requires_grad=True), False),
    ],
)
def test_kernels_serve_one_hidden_layer_on_the_cpu_in_one_precision(hidden_sizes, weights, rows, is_compiled):
    heads = make_heads(2, 3, 1, hidden_sizes, weights)
    assert heads._is_compilable(rows) is is_compiled
    assert heads._is_compilable(torch.zeros(5, 3, dtype=weights), rows) is is_compiled
    assert heads._is_compiled_for(rows) is False  # its gradient would be lost
    with torch.no_grad():
        assert heads._is_compiled_for(rows) is (is_compiled or rows.requires_grad)


@pytest.mark.parametrize("hidden_sizes", [[], [7], [6, 5]])
def test_chunks_of_the_reference_change_nothing(hidden_sizes):
    heads = make_heads(3, 4, 2, hidden_sizes)
    density = make_density(3, 4, 2, 2 * ROWS_PER_CHUNK + 17)
    grad = torch.randn(len(density[0]), 3, dtype=torch.float64)
    whole = heads.reference_log_density(*density)
    parts = [
        heads.reference_log_density(density[0][rows], density[1][rows], *density[2:])
        for rows in torch.arange(len(grad)).split(100)
    ]
    torch.testing.assert_close(whole, torch.cat(parts))
    both = [gradients(heads, value, grad, density) for value in (whole, torch.cat(parts))]
    torch.testing.assert_close(*both)
    with torch.no_grad():
        torch.testing.assert_close(heads.reference_log_density(*density), whole)


@pytest.mark.parametrize("is_learning", [False, True], ids=["compiled", "torch"])
@pytest.mark.parametrize("hidden_sizes", [[], [7], [6, 5]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_own_head_equals_all_heads_then_gather(hidden_sizes, dtype, is_learning):
    heads = make_heads(4, 5, 3, hidden_sizes, dtype)
    inputs = torch.randn(1100, 5, dtype=dtype)
    context = torch.randint(4, (1100,), generator=torch.Generator().manual_seed(0)) % 3  # nobody is in context 3
    expected = heads(inputs)[torch.arange(1100), context]
    with torch.set_grad_enabled(is_learning):
        torch.testing.assert_close(heads.own_head(inputs, context), expected, check_device=True)
        assert heads.own_head(inputs[:0], context[:0]).shape == (0, 3)


@pytest.mark.parametrize("is_learning", [False, True], ids=["compiled", "torch"])
@pytest.mark.parametrize("hidden_sizes", [[], [7], [6, 5]])
def test_block_heads_equal_own_head(hidden_sizes, is_learning):
    heads = make_heads(4, 5, 3, hidden_sizes)
    inputs, context = torch.randn(6, 13, 5, dtype=torch.float64), torch.tensor([2, 0, 2, 3, 1, 0])
    expected = heads.own_head(inputs.flatten(0, 1), context.repeat_interleave(13)).view(6, 13, 3)
    with torch.set_grad_enabled(is_learning):
        torch.testing.assert_close(heads.block_heads(inputs, context), expected)


def test_own_head_passes_gradients():
    heads = make_heads(3, 4, 2, [5])
    inputs = torch.randn(20, 4, dtype=torch.float64, requires_grad=True)
    context = torch.arange(20) % 3
    values = [inputs, *heads.parameters()]
    weight = torch.randn(20, 2, dtype=torch.float64)
    ours = torch.autograd.grad((weight * heads.own_head(inputs, context)).sum(), values)
    gathered = heads(inputs)[torch.arange(20), context]
    torch.testing.assert_close(ours, torch.autograd.grad((weight * gathered).sum(), values))


@pytest.mark.parametrize("bad", [-1, 3])
@pytest.mark.parametrize("is_learning", [False, True])
def test_unknown_contexts_are_refused(bad, is_learning):
    heads = make_heads(3, 4, 2, [5])
    with torch.set_grad_enabled(is_learning), pytest.raises(DataError, match=r"\[0, 3\)"):
        heads.own_head(torch.zeros(2, 4, dtype=torch.float64), torch.tensor([0, bad]))
    with torch.set_grad_enabled(is_learning), pytest.raises(DataError, match=r"\[0, 3\)"):
        heads.block_heads(torch.zeros(2, 3, 4, dtype=torch.float64), torch.tensor([0, bad]))


def test_backward_memory_does_not_hold_the_hidden_layer():
    """What autograd saves is linear in rows times contexts: much less than rows times contexts times hidden units."""
    heads = make_heads(5, 6, 4, [128], torch.float32)
    density = make_density(5, 6, 4, 4 * ROWS_PER_CHUNK, torch.float32)
    saved: list[int] = []

    def pack(tensor):
        saved.append(tensor.numel())
        return tensor

    for function in (heads.log_density, heads.reference_log_density):
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            function(*density)
        assert sum(saved) < 0.3 * 4 * ROWS_PER_CHUNK * 5 * 128


@pytest.mark.parametrize(("hidden_sizes", "is_narrow"), [([], True), ([5], True), ([5, 4], False)])
def test_at_most_one_hidden_layer_is_narrow(hidden_sizes, is_narrow):
    assert make_heads(2, 3, 2, hidden_sizes).is_narrow == is_narrow


@pytest.mark.parametrize("is_trained", [True, False])
def test_residuals_are_kept_only_for_a_gradient(monkeypatch, is_trained):
    # The kernel writes a residual of every row wherever there is room for any.
    real, widths = head_kernels.gaussian_forward, []

    def noted(*arrays):
        widths.append(arrays[-1].shape[-1])
        return real(*arrays)

    monkeypatch.setattr(head_kernels, "gaussian_forward", noted)
    heads, density = make_heads(2, 3, 2, [4]).requires_grad_(is_trained), make_density(2, 3, 2, 5)
    heads.log_density(*(tensor if is_trained else tensor.detach() for tensor in density))
    assert widths == [5 if is_trained else 0]
