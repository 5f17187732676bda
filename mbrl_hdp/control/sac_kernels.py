"""SAC updates as compiled loops, for networks with one or two hidden layers on the CPU.

There the arithmetic of an update is so small that calling torch's operations costs more than it. `update_minibatches`
does what `SacLearner._update_once` does, minibatch after minibatch; the tests hold one against the other. The passes
through the networks are in `mlp_kernels`.
"""

from __future__ import annotations

import math
from typing import NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mbrl_hdp.compiling import compiled
from mbrl_hdp.control.mlp_kernels import Array, Net, forward, input_grad, make_room, parameter_grad
from mbrl_hdp.control.networks import FlatAdam, LastUpdate, Layer, StackedMlp

_ZERO, _ONE, _TWO, _HALF = np.float32(0.0), np.float32(1.0), np.float32(2.0), np.float32(0.5)
_LOG_TWO, _HALF_LOG_TWO_PI = np.float32(math.log(2.0)), np.float32(0.5 * math.log(2.0 * math.pi))


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
    first, *between, (second, bias) = layers
    assert bias is not None
    empty = flat.new_empty(0, 1, 1)
    (middle, middle_bias) = between[0] if between else (empty, empty)
    assert middle_bias is not None
    parts = (flat, first.weight, middle, middle_bias, second, bias)
    return Net(*(part.detach().numpy() for part in parts))


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
    num_acts = noise.shape[2]
    state_rows = num_rows - num_acts
    hidden, value_hidden = make_room(policy.values, size), make_room(critic.values, size)
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
