"""Compiled kernels of the context heads: K networks with one hidden ReLU layer, on one CPU thread.

Rows come in chunks that stay in the first-level cache, turned so that features are rows and the batch is the fast axis.
The hidden layer lives four units at a time in a scratch buffer and is never stored: it is computed again in the
backward pass, so memory is linear in rows times contexts. Every inner loop runs along the batch and is what the
compiler turns into vector instructions; ReLU is applied where a hidden unit is used, because an in-place pass over
the buffer is not vectorised. NaN keeps its meaning: a pair whose gradient is zero is skipped, never multiplied.

Layout: inputs `N I` and targets `N O` are row-major; weights are `K H I` and `K O H`. `heads.py` holds the same
mathematics in plain torch, and the tests hold one against the other.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
from numpy.typing import NDArray

from mbrl_hdp.compiling import compiled

Array = NDArray[Any]

BLOCK = 4  # terms summed per pass over a chunk; inputs, hidden units and outputs are padded to multiples of it
_CHUNK_NUMBERS = 8192  # numbers of one chunk (inputs and outputs): what fits beside the scratch in 32 KiB
_ZERO = np.float32(0.0)


@compiled("reordered")
@no_type_check
def _padded(size: int) -> int:
    return (size + BLOCK - 1) // BLOCK * BLOCK


@compiled("reordered")
@no_type_check
def _chunk_rows(num_inputs: int, num_outputs: int) -> int:
    return max(64, _CHUNK_NUMBERS // (num_inputs + num_outputs) // 64 * 64)


@compiled("reordered")
@no_type_check
def pad_hidden(weight: Array, bias: Array) -> Array:
    """Copy weights `K H I` and biases `K H` into one `K H I+1`, both sizes rounded up to the block, the rest zero.

    Plain loops: slices take much longer to compile.
    """
    num_heads, num_hidden, num_inputs = weight.shape
    out = np.zeros((num_heads, _padded(num_hidden), _padded(num_inputs + 1)), weight.dtype)
    for k in range(num_heads):
        for h in range(num_hidden):
            for i in range(num_inputs):
                out[k, h, i] = weight[k, h, i]
            out[k, h, num_inputs] = bias[k, h]
    return out


@compiled("reordered")
@no_type_check
def pad_output(out_weight: Array) -> Array:
    """Copy output weights `K O H` into `K H O`, both sizes rounded up to the block, the rest zero."""
    num_heads, num_outputs, num_hidden = out_weight.shape
    out = np.zeros((num_heads, _padded(num_hidden), _padded(num_outputs)), out_weight.dtype)
    for k in range(num_heads):
        for o in range(num_outputs):
            for h in range(num_hidden):
                out[k, h, o] = out_weight[k, o, h]
    return out


@compiled("reordered")
@no_type_check
def _combine(x: Array, weight: Array, unit: int, out: Array, slot: int, rows: int) -> None:
    """out[slot] = weight[unit] @ x: a hidden unit before its ReLU, or what flows back into it."""
    for r in range(rows):
        total = _ZERO
        for i in range(BLOCK):
            total += weight[unit, i] * x[i, r]
        out[slot, r] = total
    for first in range(BLOCK, x.shape[0], BLOCK):
        for r in range(rows):
            total = out[slot, r]
            for i in range(BLOCK):
                total += weight[unit, first + i] * x[first + i, r]
            out[slot, r] = total


@compiled("reordered")
@no_type_check
def forward_chunk(x: Array, weight: Array, by_unit: Array, out_bias: Array, out: Array, pre: Array, rows: int) -> None:
    """Set out = by_unit.T @ relu(weight @ x) + out_bias for one head and one chunk."""
    num_outputs = out_bias.shape[0]
    for o in range(num_outputs):
        for r in range(rows):
            out[o, r] = out_bias[o]
    for h in range(0, weight.shape[0], BLOCK):
        for j in range(BLOCK):
            _combine(x, weight, h + j, pre, j, rows)
        for o in range(num_outputs):
            for r in range(rows):
                total = out[o, r]
                for j in range(BLOCK):
                    total += by_unit[h + j, o] * max(pre[j, r], _ZERO)
                out[o, r] = total


@compiled("reordered")
@no_type_check
def gaussian_forward(
    inputs: Array,
    targets: Array,
    weight: Array,
    bias: Array,
    out_weight: Array,
    out_bias: Array,
    inverse_std: Array,
    offset: Array,
    log_prob: Array,
    residual: Array,
) -> None:
    """log_prob[n, k] = offset[k] - 1/2 sum_o ((targets[n, o] - mean[n, k, o]) inverse_std[k, o])^2.

    `residual` `K O N` receives targets - mean for the backward pass; size 0 in N if none will follow.
    """
    num_rows, num_inputs = inputs.shape
    num_heads, num_outputs = inverse_std.shape
    keep_residual = residual.shape[2] > 0
    affine, by_unit = pad_hidden(weight, bias), pad_output(out_weight)
    chunk = _chunk_rows(num_inputs, num_outputs)
    x = np.zeros((affine.shape[2], chunk), inputs.dtype)
    mean = np.empty((num_outputs, chunk), inputs.dtype)
    pre = np.empty((BLOCK, chunk), inputs.dtype)
    distance = np.empty(chunk, inputs.dtype)
    for start in range(0, num_rows, chunk):
        rows = min(chunk, num_rows - start)
        for r in range(rows):
            for i in range(num_inputs):
                x[i, r] = inputs[start + r, i]
            x[num_inputs, r] = 1
        for k in range(num_heads):
            forward_chunk(x, affine[k], by_unit[k], out_bias[k], mean, pre, rows)
            for r in range(rows):
                distance[r] = 0
            for o in range(num_outputs):
                for r in range(rows):
                    error = targets[start + r, o] - mean[o, r]
                    if keep_residual:
                        residual[k, o, start + r] = error
                    error *= inverse_std[k, o]
                    distance[r] += error * error
            for r in range(rows):
                log_prob[start + r, k] = offset[k] - np.float32(0.5) * distance[r]


@compiled("reordered", is_inlined=True)
@no_type_check
def _sum_gated_products(x: Array, pre: Array, up: Array, total: Array, unit: int, rows: int) -> None:
    """total[unit + j] += x @ (up[j] where pre[j] > 0) for j = 0, 1: what passes where the ReLU was open.

    Two hidden units share every load of x.
    """
    for i in range(0, x.shape[0], BLOCK):
        a0 = a1 = a2 = a3 = _ZERO
        b0 = b1 = b2 = b3 = _ZERO
        for r in range(rows):
            a = up[0, r] if pre[0, r] > _ZERO else _ZERO
            b = up[1, r] if pre[1, r] > _ZERO else _ZERO
            a0 += a * x[i, r]
            a1 += a * x[i + 1, r]
            a2 += a * x[i + 2, r]
            a3 += a * x[i + 3, r]
            b0 += b * x[i, r]
            b1 += b * x[i + 1, r]
            b2 += b * x[i + 2, r]
            b3 += b * x[i + 3, r]
        _add_four(total, unit, i, a0, a1, a2, a3)
        _add_four(total, unit + 1, i, b0, b1, b2, b3)


@compiled("reordered")
@no_type_check
def _add_four(total: Array, row: int, column: int, t0: float, t1: float, t2: float, t3: float) -> None:
    total[row, column] += t0
    total[row, column + 1] += t1
    total[row, column + 2] += t2
    total[row, column + 3] += t3


@compiled("reordered")
@no_type_check
def _backward_chunk(
    x: Array,
    error: Array,
    weight: Array,
    by_unit: Array,
    grad_weight: Array,
    grad_out: Array,
    pre: Array,
    up: Array,
    rows: int,
) -> None:
    """Add one chunk's gradients of one head: `grad_weight` is `H I+1`, `grad_out` is `H O`."""
    for h in range(0, weight.shape[0], 2):
        for j in range(2):
            _combine(x, weight, h + j, pre, j, rows)
            _combine(error, by_unit, h + j, up, j, rows)
        _sum_gated_products(error, pre, pre, grad_out, h, rows)
        _sum_gated_products(x, pre, up, grad_weight, h, rows)


@compiled("reordered")
@no_type_check
def skip_threshold(log_prob: Array, offset: Array, grad: Array, share: float) -> float:
    """Return the contribution below which a (row, context) pair may be skipped.

    A pair contributes |grad| (1 + squared distance), which bounds its share of every derivative by mean and scale.
    Pairs below `share` times the average contribution add up to less than `share` of all contributions.
    """
    if share <= 0.0 or grad.size == 0:
        return 0.0
    total = 0.0
    for n in range(grad.shape[0]):
        for k in range(grad.shape[1]):
            size = abs(grad[n, k])
            if size > _ZERO:
                total += size * (np.float32(1.0) + np.float32(2.0) * (offset[k] - log_prob[n, k]))
    return share * total / grad.size


@compiled("reordered")
@no_type_check
def _active_rows(log_prob: Array, offset: float, grad: Array, head: int, threshold: float, rows: Array) -> int:
    """List the rows whose contribution to `head` counts; pairs with a zero gradient never do."""
    count = 0
    for n in range(grad.shape[0]):
        size = abs(grad[n, head])
        if size > _ZERO and not size * (np.float32(1.0) + np.float32(2.0) * (offset - log_prob[n, head])) < threshold:
            rows[count] = n
            count += 1
    return count


@compiled("reordered")
@no_type_check
def _load_chunk(
    inputs: Array, residual: Array, grad: Array, inverse_std: Array, head: int, picked: Array, x: Array, error: Array
) -> None:
    """Gather the picked rows: x = inputs, error = derivative of the loss by the head's mean."""
    for r in range(picked.shape[0]):
        for i in range(inputs.shape[1]):
            x[i, r] = inputs[picked[r], i]
        x[inputs.shape[1], r] = 1
    for o in range(residual.shape[1]):
        precision = inverse_std[head, o] * inverse_std[head, o]
        for r in range(picked.shape[0]):
            error[o, r] = grad[picked[r], head] * precision * residual[head, o, picked[r]]


@compiled("reordered", is_inlined=True)
@no_type_check
def _output_gradients(
    residual: Array, error: Array, head: int, picked: Array, grad_bias: Array, grad_precision: Array
) -> None:
    """Sum over the picked rows: the error (output bias) and error times residual (inverse std, up to its factor)."""
    for o in range(residual.shape[1]):
        plain = weighted = _ZERO
        for r in range(picked.shape[0]):
            plain += error[o, r]
            weighted += error[o, r] * residual[head, o, picked[r]]
        grad_bias[head, o] += plain
        grad_precision[head, o] += weighted


@compiled("reordered")
@no_type_check
def gaussian_backward(
    inputs: Array,
    residual: Array,
    log_prob: Array,
    grad: Array,
    weight: Array,
    bias: Array,
    out_weight: Array,
    inverse_std: Array,
    offset: Array,
    skip_below: float,
) -> tuple[Array, Array, Array, Array]:
    """Return the gradients of sum(grad * log_prob).

    Returns:
        By hidden weight with its bias as one more input (`K H I+1`) and by out_weight (`K H O`), both padded with zeros
        to the block; by out_bias and by inverse_std (`K O`).
    """
    num_heads, num_outputs = inverse_std.shape
    affine, by_unit = pad_hidden(weight, bias), pad_output(out_weight)
    chunk = _chunk_rows(inputs.shape[1], num_outputs)
    x = np.zeros((affine.shape[2], chunk), weight.dtype)
    error = np.zeros((by_unit.shape[2], chunk), weight.dtype)
    pre, up = np.empty((2, chunk), weight.dtype), np.empty((2, chunk), weight.dtype)
    grad_weight, grad_out = np.zeros_like(affine), np.zeros_like(by_unit)
    grad_bias, grad_std = np.zeros_like(inverse_std), np.zeros_like(inverse_std)
    threshold = skip_threshold(log_prob, offset, grad, skip_below)
    active = np.empty(inputs.shape[0], np.int64)
    for k in range(num_heads):
        count = _active_rows(log_prob, offset[k], grad, k, threshold, active)
        for start in range(0, count, chunk):
            picked = active[start : min(start + chunk, count)]
            _load_chunk(inputs, residual, grad, inverse_std, k, picked, x, error)
            _output_gradients(residual, error, k, picked, grad_bias, grad_std)
            _backward_chunk(x, error, affine[k], by_unit[k], grad_weight[k], grad_out[k], pre, up, picked.shape[0])
        for o in range(num_outputs):
            grad_std[k, o] = -grad_std[k, o] / inverse_std[k, o] if inverse_std[k, o] > _ZERO else _ZERO
    return grad_weight, grad_out, grad_bias, grad_std


@compiled("reordered")
@no_type_check
def group_rows(context: Array, num_heads: int) -> tuple[Array, Array]:
    """Sort rows by context: the order and where each context's rows begin (`K+1`); an empty order if one is invalid."""
    starts = np.zeros(num_heads + 1, np.int64)
    for n in range(context.shape[0]):
        if context[n] < 0 or context[n] >= num_heads:
            return np.empty(0, np.int64), starts
        starts[context[n] + 1] += 1
    for k in range(num_heads):
        starts[k + 1] += starts[k]
    cursor = starts.copy()
    order = np.empty(context.shape[0], np.int64)
    for n in range(context.shape[0]):
        order[cursor[context[n]]] = n
        cursor[context[n]] += 1
    return order, starts


@compiled("reordered")
@no_type_check
def segment_forward(
    inputs: Array,
    order: Array,
    starts: Array,
    head_of: Array,
    weight: Array,
    bias: Array,
    out_weight: Array,
    out_bias: Array,
    out: Array,
) -> None:
    """Run segment g, the rows order[starts[g]:starts[g + 1]], through head head_of[g]; `out` is `N O`."""
    num_inputs, num_outputs = inputs.shape[1], out_bias.shape[1]
    affine, by_unit = pad_hidden(weight, bias), pad_output(out_weight)
    chunk = _chunk_rows(num_inputs, num_outputs)
    x = np.zeros((affine.shape[2], chunk), inputs.dtype)
    mean = np.empty((num_outputs, chunk), inputs.dtype)
    pre = np.empty((BLOCK, chunk), inputs.dtype)
    for g in range(head_of.shape[0]):
        k = head_of[g]
        for start in range(starts[g], starts[g + 1], chunk):
            rows = min(chunk, starts[g + 1] - start)
            for r in range(rows):
                for i in range(num_inputs):
                    x[i, r] = inputs[order[start + r], i]
                x[num_inputs, r] = 1
            forward_chunk(x, affine[k], by_unit[k], out_bias[k], mean, pre, rows)
            for r in range(rows):
                for o in range(num_outputs):
                    out[order[start + r], o] = mean[o, r]
