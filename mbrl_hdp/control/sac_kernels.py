"""SAC updates as compiled loops, for networks with one hidden layer on the CPU.

There the arithmetic of an update is so small that calling torch's operations costs more than it. `update_minibatches`
does what `SacLearner._update_once` does, minibatch after minibatch; the tests hold one against the other. Activations
are feature-major (`features B`), so every inner loop runs along the minibatch and vectorises; inputs are taken four at
a time, so that a pass over the row that is being summed serves four of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from mbrl_hdp.compiling import compiled
from mbrl_hdp.control.networks import FlatAdam, LastUpdate, Layer, StackedMlp

Array = NDArray[Any]
_ZERO, _ONE, _TWO, _HALF = np.float32(0.0), np.float32(1.0), np.float32(2.0), np.float32(0.5)
_LOG_TWO, _HALF_LOG_TWO_PI = np.float32(math.log(2.0)), np.float32(0.5 * math.log(2.0 * math.pi))


class Net(NamedTuple):
    """Parameters of stacked networks, or gradients that lie like them: one vector, and its parts as views.

    Attributes:
        flat: everything, `P`.
        first: weights of the hidden layer, `nets H rows`; a row of ones among the inputs carries the bias.
        second: weights of the outputs, `nets out H`.
        bias: biases of the outputs, `nets out 1`.
    """

    flat: Array
    first: Array
    second: Array
    bias: Array


class Learner(NamedTuple):
    """A network that is trained: its values, room for its gradient, Adam's moments and its learning rate."""

    values: Net
    grad: Net
    mean: Array
    square: Array
    lr: float


class Settings(NamedTuple):
    """Numbers that an update needs; see `SacConfig`. `first_step` counts the updates before this call."""

    weight_decay: float
    tau: float
    target_update_interval: int
    target_entropy: float
    temperature_lr: float
    log_volume: float
    min_log_std: float
    max_log_std: float
    first_step: int


class Last(NamedTuple):
    """`LastUpdate` as arrays; `numbers` are log_alpha and excess."""

    error: Array
    values: Array
    log_prob: Array
    numbers: Array


def step_all(
    batches: tuple[Tensor, Tensor, Tensor, Tensor],
    factors: Float[np.ndarray, " n"],
    learners: tuple[tuple[StackedMlp, FlatAdam], tuple[StackedMlp, FlatAdam]],
    target: StackedMlp,
    temperature: Float[Tensor, "3 1"],
    settings: Settings,
) -> tuple[LastUpdate, int]:
    """Run `update_minibatches` on the memory of torch's tensors; policy and critics are changed in place.

    Args:
        batches: inputs, reward, discount and noise, contiguous.
        factors: what is left of the learning rates at every minibatch.
        learners: policy and critics with their optimisers, whose counts of steps are left alone.
        target: the critics' targets.
        temperature: log temperature and its two moments, changed in place.
        settings: numbers.

    Returns:
        What the last update measured, and the number of updates done.
    """
    size = batches[1].shape[1]
    last = Last(*(np.empty(shape, np.float32) for shape in ((2, size), (2, size), size, 2)))
    num_done = update_minibatches(
        *(part.contiguous().numpy() for part in batches),
        factors,
        *(_learner(network, optim) for network, optim in learners),
        _net(target.flat, target.layers),
        temperature.numpy(),
        settings,
        last,
    )
    error, values, log_prob, numbers = (torch.from_numpy(part) for part in last)
    return LastUpdate(error, values, log_prob, numbers[:1], numbers[1]), num_done


def _learner(network: StackedMlp, optim: FlatAdam) -> Learner:
    values, grad = _net(network.flat, network.layers), _net(network.grad, network.layer_grads)
    return Learner(values, grad, optim.mean.numpy(), optim.square.numpy(), optim.lr)


def _net(flat: Tensor, layers: list[Layer]) -> Net:
    (first, _), (second, bias) = layers
    assert bias is not None
    return Net(*(part.detach().numpy() for part in (flat, first, second, bias)))


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
def forward(net: Net, x: Array, hidden: Array, out: Array) -> None:
    """Set the hidden activations `nets H B` and the outputs `nets out B` of inputs `rows B`."""
    num_nets, num_outputs, num_hidden = net.second.shape
    size = x.shape[1]
    for e in range(num_nets):
        for o in range(num_outputs):
            for b in range(size):
                out[e, o, b] = net.bias[e, o, 0]
        for h in range(num_hidden):
            row = hidden[e, h]
            _unit(net.first[e, h], x, row)
            for o in range(num_outputs):
                w = net.second[e, o, h]
                target = out[e, o]
                for b in range(size):
                    target[b] += w * row[b]


@compiled("reordered")
@no_type_check
def _hidden_grad(net: Net, e: int, h: int, row: Array, out_grad: Array, grad: Array) -> None:
    """Set the gradient that reaches one hidden unit before its ReLU."""
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
def parameter_grad(net: Net, x: Array, hidden: Array, out_grad: Array, result: Net) -> None:
    """Set `result` to the gradient by all parameters, from that by the outputs, `nets out B`."""
    num_nets, num_outputs, num_hidden = net.second.shape
    size = x.shape[1]
    grad = np.empty(size, np.float32)
    for e in range(num_nets):
        for o in range(num_outputs):
            total, back = _ZERO, out_grad[e, o]
            for b in range(size):
                total += back[b]
            result.bias[e, o, 0] = total
        for h in range(num_hidden):
            row = hidden[e, h]
            for o in range(num_outputs):
                total, back = _ZERO, out_grad[e, o]
                for b in range(size):
                    total += row[b] * back[b]
                result.second[e, o, h] = total
            _hidden_grad(net, e, h, row, out_grad, grad)
            _dots(grad, x, result.first[e, h])


@compiled("reordered")
@no_type_check
def input_grad(net: Net, hidden: Array, out_grad: Array, first_row: int, result: Array) -> None:
    """Set `result` to the gradient by the input rows from `first_row` on, summed over the networks."""
    num_nets, _, num_hidden = net.second.shape
    size = result.shape[1]
    result[:] = _ZERO
    grad = np.empty(size, np.float32)
    for e in range(num_nets):
        for h in range(num_hidden):
            _hidden_grad(net, e, h, hidden[e, h], out_grad, grad)
            for a in range(len(result)):
                w, target = net.first[e, h, first_row + a], result[a]
                for b in range(size):
                    target[b] += w * grad[b]


@compiled("reordered")
@no_type_check
def adam(values: Array, grad: Array, mean: Array, square: Array, step: int, lr: float, weight_decay: float) -> None:
    """Take Adam's step number `step` (from 1), as `FlatAdam`."""
    root = math.sqrt(1.0 - 0.999**step)
    scale = np.float32(lr * root / (1.0 - 0.9**step))
    epsilon, decay = np.float32(1e-8 * root), np.float32(weight_decay)
    first, second = np.float32(0.1), np.float32(0.001)
    keep = np.float32(0.999)
    for i in range(len(values)):
        g = grad[i] + decay * values[i]
        mean[i] += first * (g - mean[i])
        square[i] = keep * square[i] + second * g * g
        values[i] -= scale * mean[i] / (math.sqrt(square[i]) + epsilon)


@compiled("reordered", is_inlined=True)
@no_type_check
def is_finite(values: Array) -> bool:
    """Return whether no entry is NaN or infinite; a sum that overflows counts as infinite."""
    total = _ZERO
    for i in range(len(values)):
        total += values[i]
    return math.isfinite(total)


@compiled("reordered")
@no_type_check
def squash(outputs: Array, noise: Array, settings: Settings, act: Array, spread: Array, log_prob: Array) -> None:
    """Draw actions and their log densities, as `squashed_draw`; `act` and `spread` are `A B`."""
    num_acts, size = noise.shape
    low, high = np.float32(settings.min_log_std), np.float32(settings.max_log_std)
    log_prob[:] = -np.float32(settings.log_volume) - num_acts * _HALF_LOG_TWO_PI
    for a in range(num_acts):
        for b in range(size):
            log_std = min(max(outputs[num_acts + a, b], low), high)
            spread[a, b] = math.exp(log_std) * noise[a, b]
            before = outputs[a, b] + spread[a, b]
            # log(1 - tanh(u)^2) = 2 (log 2 - |u| - log1p(exp(-2|u|))), which is even in u.
            size_of = abs(before)
            small = math.exp(-_TWO * size_of)
            act[a, b] = math.copysign((_ONE - small) / (_ONE + small), before)
            log_slope = _TWO * (_LOG_TWO - size_of - math.log1p(small))
            log_prob[b] -= _HALF * noise[a, b] * noise[a, b] + log_std + log_slope


@compiled("reordered")
@no_type_check
def squash_grad(
    outputs: Array, act: Array, spread: Array, act_grad: Array, weight: float, settings: Settings, result: Array
) -> None:
    """Set the gradient by the policy's outputs `2A B`, as `squashed_grad`."""
    num_acts, size = act.shape
    low, high = np.float32(settings.min_log_std), np.float32(settings.max_log_std)
    for a in range(num_acts):
        for b in range(size):
            back = act_grad[a, b] * (_ONE - act[a, b] * act[a, b]) + _TWO * weight * act[a, b]
            raw = outputs[num_acts + a, b]
            result[a, b] = back
            result[num_acts + a, b] = back * spread[a, b] - weight if low <= raw <= high else _ZERO


@compiled("reordered")
@no_type_check
def update_minibatches(
    inputs: Array,
    reward: Array,
    discount: Array,
    noise: Array,
    factors: Array,
    policy: Learner,
    critic: Learner,
    target: Net,
    temperature: Array,
    settings: Settings,
    last: Last,
) -> int:
    """Step critics, policy and temperature on every minibatch, and the targets when it is their turn.

    It stops after the first update that leaves a network that is not finite: a bad loss, a bad gradient or a bad moment
    of Adam all end there.

    Args:
        inputs: `n 2 rows B`: states, ones and actions, for obs and for next_obs; the actions are overwritten.
        reward: `n B`.
        discount: `n B`, zero where the transition terminates.
        noise: `n 2 A B`, standard normal.
        factors: what is left of the learning rates, `n`.
        policy: the policy.
        critic: both critics.
        target: the critics' targets.
        temperature: log temperature and Adam's two moments, `3 1`.
        settings: numbers.
        last: filled with what the last minibatch measured.

    Returns:
        The number of updates done.
    """
    num_batches, _, num_rows, size = inputs.shape
    num_acts, num_hidden = noise.shape[2], policy.values.first.shape[1]
    state_rows = num_rows - num_acts
    hidden = np.empty((1, num_hidden, size), np.float32)
    value_hidden = np.empty((2, critic.values.first.shape[1], size), np.float32)
    # One array each: parts of an unpacked array would not be known to be contiguous.
    outputs, out_grad = np.empty((1, 2 * num_acts, size), np.float32), np.empty((1, 2 * num_acts, size), np.float32)
    values, next_values = np.empty((2, 1, size), np.float32), np.empty((2, 1, size), np.float32)
    value_grad = np.empty((2, 1, size), np.float32)
    spread, act_grad = np.empty((num_acts, size), np.float32), np.empty((num_acts, size), np.float32)
    next_log_prob = np.empty(size, np.float32)
    unit = np.float32(1.0 / size)
    for n in range(num_batches):
        here, after = inputs[n, 0], inputs[n, 1]
        step, factor = settings.first_step + n + 1, factors[n]
        alpha = np.float32(math.exp(temperature[0, 0]))
        # Targets of the critics.
        forward(policy.values, after[:state_rows], hidden, outputs)
        squash(outputs[0], noise[n, 1], settings, after[state_rows:], spread, next_log_prob)
        forward(target, after, value_hidden, next_values)
        forward(critic.values, here, value_hidden, values)
        for b in range(size):
            next_value = min(next_values[0, 0, b], next_values[1, 0, b]) - alpha * next_log_prob[b]
            wanted = reward[n, b] + discount[n, b] * next_value
            for e in range(2):
                last.error[e, b] = values[e, 0, b] - wanted
                value_grad[e, 0, b] = _TWO * unit * last.error[e, b]
        parameter_grad(critic.values, here, value_hidden, value_grad, critic.grad)
        adam(critic.values.flat, critic.grad.flat, critic.mean, critic.square, step, critic.lr * factor,
             settings.weight_decay)  # fmt: skip
        # The policy, by the critics as they are now.
        state, act = here[:state_rows], here[state_rows:]
        forward(policy.values, state, hidden, outputs)
        squash(outputs[0], noise[n, 0], settings, act, spread, last.log_prob)
        forward(critic.values, here, value_hidden, values)
        for b in range(size):
            is_first = values[0, 0, b] <= values[1, 0, b]
            value_grad[0, 0, b] = -unit if is_first else _ZERO
            value_grad[1, 0, b] = _ZERO if is_first else -unit
            last.values[0, b], last.values[1, b] = values[0, 0, b], values[1, 0, b]
        input_grad(critic.values, value_hidden, value_grad, state_rows, act_grad)
        squash_grad(outputs[0], act, spread, act_grad, alpha * unit, settings, out_grad[0])
        parameter_grad(policy.values, state, hidden, out_grad, policy.grad)
        adam(policy.values.flat, policy.grad.flat, policy.mean, policy.square, step, policy.lr * factor,
             settings.weight_decay)  # fmt: skip
        # The temperature, then the targets.
        excess = np.float32(last.log_prob.mean() + settings.target_entropy)
        last.numbers[0], last.numbers[1] = temperature[0, 0], excess
        if settings.temperature_lr > 0.0:
            slope = np.full(1, -excess, np.float32)
            adam(temperature[0], slope, temperature[1], temperature[2], step, settings.temperature_lr * factor, 0.0)
        if step % settings.target_update_interval == 0:
            tau = np.float32(settings.tau)
            for i in range(len(target.flat)):
                target.flat[i] += tau * (critic.values.flat[i] - target.flat[i])
        if not (is_finite(critic.values.flat) and is_finite(policy.values.flat) and math.isfinite(temperature[0, 0])):
            return n + 1
    return num_batches
