"""Compiled passes through stacked networks with one or two hidden layers, forwards and back.

Activations are feature-major (`features B`), so every inner loop runs along the minibatch and vectorises; inputs are
taken four at a time, so that a pass over the row that is being summed serves four of them. Only the products between
two hidden layers are left to BLAS. numba's cache does not notice a change of this file in `sac_kernels`, which calls
it: delete the __pycache__ folders after one.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import numpy as np
from numpy.typing import NDArray

from mbrl_hdp.compiling import compiled

Array = NDArray[Any]
_ZERO, _HALF = np.float32(0.0), np.float32(0.5)


class Net(NamedTuple):
    """Parameters of stacked networks, or gradients that lie like them: one vector, and its parts as views.

    Attributes:
        flat: everything, `P`.
        first: weights of the first hidden layer, `nets H rows`; a row of ones among the inputs carries the bias.
        middle: weights of the second hidden layer, `nets D H`; `0 1 1` where there is none.
        middle_bias: its biases, `nets D 1`.
        second: weights of the outputs, `nets out D` (`nets out H` without a second layer).
        bias: biases of the outputs, `nets out 1`.
    """

    flat: Array
    first: Array
    middle: Array
    middle_bias: Array
    second: Array
    bias: Array


class Room(NamedTuple):
    """Room for the activations of stacked networks and for the gradients by them.

    Attributes:
        first: activations of the first hidden layer, `nets H B`.
        deep: those of the second, `nets D B`; nothing where there is none.
        deep_grad: gradient by them, `D B`.
        first_grad: gradient by `first` of a network with two layers, `H B`.
    """

    first: Array
    deep: Array
    deep_grad: Array
    first_grad: Array


@compiled("reordered")
@no_type_check
def _unit(weight: Array, x: Array, out: Array) -> None:
    """Set out = relu(weight @ x) for one hidden unit."""
    num_rows, size = x.shape
    for b in range(size):
        out[b] = _ZERO
    blocked = num_rows // 4 * 4
    for i in range(0, blocked, 4):
        w0, w1, w2, w3 = weight[i], weight[i + 1], weight[i + 2], weight[i + 3]
        for b in range(size):
            out[b] += w0 * x[i, b] + w1 * x[i + 1, b] + w2 * x[i + 2, b] + w3 * x[i + 3, b]
    for i in range(blocked, num_rows):
        w0 = weight[i]
        for b in range(size):
            out[b] += w0 * x[i, b]
    for b in range(size):
        out[b] = _HALF * (out[b] + abs(out[b]))  # exact, and unlike max() it is vectorised


@compiled("reordered")
@no_type_check
def _dots(grad: Array, x: Array, out: Array) -> None:
    """Set out = x @ grad: the gradient of one unit's weights."""
    num_rows, size = x.shape
    blocked = num_rows // 4 * 4
    for i in range(0, blocked, 4):
        s0, s1, s2, s3 = _ZERO, _ZERO, _ZERO, _ZERO
        for b in range(size):
            g = grad[b]
            s0 += g * x[i, b]
            s1 += g * x[i + 1, b]
            s2 += g * x[i + 2, b]
            s3 += g * x[i + 3, b]
        out[i], out[i + 1], out[i + 2], out[i + 3] = s0, s1, s2, s3
    for i in range(blocked, num_rows):
        s0 = _ZERO
        for b in range(size):
            s0 += grad[b] * x[i, b]
        out[i] = s0


@compiled("reordered")
@no_type_check
def make_room(net: Net, size: int) -> Room:
    """Return room for minibatches of `size`."""
    num_nets, num_hidden = net.first.shape[:2]
    num_deep = net.middle.shape[1] if len(net.middle) > 0 else 0
    return Room(
        np.empty((num_nets, num_hidden, size), np.float32),
        np.empty((num_nets, num_deep, size), np.float32),
        np.empty((num_deep, size), np.float32),
        np.empty((num_hidden if num_deep > 0 else 0, size), np.float32),
    )


@compiled("reordered")
@no_type_check
def forward(net: Net, x: Array, room: Room, out: Array) -> None:
    """Set the activations and the outputs `nets out B` of inputs `rows B`."""
    num_nets, num_outputs, num_top = net.second.shape
    num_hidden = net.first.shape[1]
    size = x.shape[1]
    is_deep = len(net.middle) > 0
    for e in range(num_nets):
        for o in range(num_outputs):
            for b in range(size):
                out[e, o, b] = net.bias[e, o, 0]
        if is_deep:
            for h in range(num_hidden):
                _unit(net.first[e, h], x, room.first[e, h])
            np.dot(net.middle[e], room.first[e], room.deep[e])
        for h in range(num_top):
            if is_deep:
                row = room.deep[e, h]
                shift = net.middle_bias[e, h, 0]
                for b in range(size):
                    value = row[b] + shift
                    row[b] = _HALF * (value + abs(value))
            else:
                row = room.first[e, h]
                _unit(net.first[e, h], x, row)
            for o in range(num_outputs):
                w = net.second[e, o, h]
                target = out[e, o]
                for b in range(size):
                    target[b] += w * row[b]


@compiled("reordered")
@no_type_check
def _top_grad(net: Net, e: int, h: int, row: Array, out_grad: Array, grad: Array) -> None:
    """Set the gradient that reaches one unit of the last hidden layer before its ReLU."""
    size = len(row)
    for b in range(size):
        grad[b] = _ZERO
    for o in range(out_grad.shape[1]):
        w, back = net.second[e, o, h], out_grad[e, o]
        for b in range(size):
            grad[b] += w * back[b]
    for b in range(size):
        grad[b] = grad[b] if row[b] > _ZERO else _ZERO


@compiled("reordered")
@no_type_check
def _through_middle(net: Net, e: int, room: Room) -> None:
    """Pull the gradient in `room.deep_grad` back through the second hidden layer and the first one's ReLU."""
    np.dot(net.middle[e].T, room.deep_grad, room.first_grad)
    num_hidden, size = room.first_grad.shape
    for h in range(num_hidden):
        grad, row = room.first_grad[h], room.first[e, h]
        for b in range(size):
            grad[b] = grad[b] if row[b] > _ZERO else _ZERO


@compiled("reordered")
@no_type_check
def parameter_grad(net: Net, x: Array, room: Room, out_grad: Array, result: Net) -> None:
    """Set `result` to the gradient by all parameters, from that by the outputs, `nets out B`, after `forward`."""
    num_nets, num_outputs, num_top = net.second.shape
    num_hidden = net.first.shape[1]
    size = x.shape[1]
    is_deep = len(net.middle) > 0
    single = np.empty(size, np.float32)
    for e in range(num_nets):
        for o in range(num_outputs):
            total, back = _ZERO, out_grad[e, o]
            for b in range(size):
                total += back[b]
            result.bias[e, o, 0] = total
        for h in range(num_top):
            row = room.deep[e, h] if is_deep else room.first[e, h]
            for o in range(num_outputs):
                total, back = _ZERO, out_grad[e, o]
                for b in range(size):
                    total += row[b] * back[b]
                result.second[e, o, h] = total
            grad = room.deep_grad[h] if is_deep else single
            _top_grad(net, e, h, row, out_grad, grad)
            if is_deep:
                total = _ZERO
                for b in range(size):
                    total += grad[b]
                result.middle_bias[e, h, 0] = total
            else:
                _dots(grad, x, result.first[e, h])
        if is_deep:
            np.dot(room.deep_grad, room.first[e].T, result.middle[e])
            _through_middle(net, e, room)
            for h in range(num_hidden):
                _dots(room.first_grad[h], x, result.first[e, h])


@compiled("reordered")
@no_type_check
def input_grad(net: Net, room: Room, out_grad: Array, first_row: int, result: Array) -> None:
    """Set `result` to the gradient by the input rows from `first_row` on, summed over the networks."""
    num_nets, _, num_top = net.second.shape
    num_hidden = net.first.shape[1]
    size = result.shape[1]
    is_deep = len(net.middle) > 0
    result[:] = _ZERO
    single = np.empty(size, np.float32)
    for e in range(num_nets):
        if is_deep:
            for h in range(num_top):
                _top_grad(net, e, h, room.deep[e, h], out_grad, room.deep_grad[h])
            _through_middle(net, e, room)
        for h in range(num_hidden):
            grad = room.first_grad[h] if is_deep else single
            if not is_deep:
                _top_grad(net, e, h, room.first[e, h], out_grad, grad)
            for a in range(len(result)):
                w, target = net.first[e, h, first_row + a], result[a]
                for b in range(size):
                    target[b] += w * grad[b]
