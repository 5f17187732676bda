"""One step of a recurrent policy in numpy: for single vectors, most of torch's time is overhead.

The arrays share memory with the policy's parameters, so an update or a loaded state is seen at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from torch import Tensor, nn

from mbrl_hdp_baselines.policies import BeliefPolicy

Array = NDArray[np.float32]
# Hidden and cell state of an LSTM.
State = tuple[Array, Array]
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class StepOutput:
    """What a policy says about one observation.

    Attributes:
        mean: mean of its actions.
        std: their standard deviation.
        value: value of the observation.
        actor: state of the actor's memory after the step.
        critic: state of the critic's memory after the step; the actor's where they share one.
        belief: what was read of the memory (`BeliefPolicy`); None for other policies.
    """

    mean: Array
    std: Array
    value: float
    actor: State
    critic: State
    belief: Array | None

    def log_prob(self, act: Array) -> float:
        """Return the log density of an action."""
        error = (act - self.mean) / self.std
        return float((-0.5 * error * error - np.log(self.std) - _HALF_LOG_2PI).sum())


class StepPolicy:
    """A recurrent policy of sb3-contrib, or a `BeliefPolicy`, one observation at a time."""

    def __init__(self, policy: RecurrentActorCriticPolicy) -> None:
        self.actor, self.critic = _Lstm(policy.lstm_actor), None
        if policy.lstm_critic is not None:
            self.critic = _Lstm(policy.lstm_critic)
        extractor = policy.mlp_extractor
        self.policy_layers = [*_layers(extractor.policy_net), _layer(policy.action_net)]
        self.value_layers = [*_layers(extractor.value_net), _layer(policy.value_net)]
        self.log_std = _array(policy.log_std)
        self.obs_width = policy.obs_width if isinstance(policy, BeliefPolicy) else None
        self.decoder = policy.decoder if isinstance(policy, BeliefPolicy) else None
        self.belief_head = _array(policy.belief_head.weight) if self.decoder in {"softmax", "linear"} else None

    def __call__(self, seen: NDArray[Any], actor: State, critic: State) -> StepOutput:
        """Return mean, value and the states of the memory after the step.

        Args:
            seen: one observation of the policy's space.
            actor: state of the actor's memory before the step.
            critic: likewise of the critic's; not used where they share one.
        """
        seen, belief = seen.astype(np.float32), None
        if self.obs_width is not None:
            actor = self.actor(seen[self.obs_width :], actor)
            belief = self._read(actor[0])
            latent = other = np.concatenate([seen[: self.obs_width], belief])
            critic = actor
        else:
            actor = self.actor(seen, actor)
            critic = actor if self.critic is None else self.critic(seen, critic)
            latent, other = actor[0], critic[0]
        mean, value = _forward(self.policy_layers, latent), _forward(self.value_layers, other)
        return StepOutput(mean, np.exp(self.log_std), float(value[0]), actor, critic, belief)

    def _read(self, hidden: Array) -> Array:
        if self.belief_head is None:
            return hidden
        read = self.belief_head @ hidden
        if self.decoder == "linear":
            return read
        shares: Array = np.exp(read - read.max())
        return shares / shares.sum()


class _Lstm:
    """One layer of an LSTM, in torch's order of the gates: input, forget, cell, output."""

    def __init__(self, lstm: nn.LSTM) -> None:
        named = {name: _array(parameter) for name, parameter in lstm.named_parameters()}
        self.by_input, self.by_hidden = named["weight_ih_l0"], named["weight_hh_l0"]
        self.biases = named["bias_ih_l0"], named["bias_hh_l0"]

    def __call__(self, inputs: Array, state: State) -> State:
        gates = self.by_input @ inputs + self.by_hidden @ state[0] + self.biases[0] + self.biases[1]
        size = len(state[0])
        enter, forget, leave = (_sigmoid(gates[n * size : (n + 1) * size]) for n in (0, 1, 3))
        cell = forget * state[1] + enter * np.tanh(gates[2 * size : 3 * size])
        return leave * np.tanh(cell), cell


def _sigmoid(values: Array) -> Array:
    # By the hyperbolic tangent, which cannot overflow.
    return np.float32(0.5) + np.float32(0.5) * np.tanh(np.float32(0.5) * values)


def _forward(layers: list[tuple[Array, Array]], inputs: Array) -> Array:
    """Pass a vector through layers with hyperbolic tangents between them, none behind the last."""
    for weight, bias in layers[:-1]:
        inputs = np.tanh(weight @ inputs + bias)
    return layers[-1][0] @ inputs + layers[-1][1]


def _layers(network: nn.Sequential) -> list[tuple[Array, Array]]:
    return [_layer(module) for module in network if isinstance(module, nn.Linear)]


def _layer(module: nn.Linear) -> tuple[Array, Array]:
    return _array(module.weight), _array(module.bias)


def _array(parameter: Tensor) -> Array:
    found: Array = parameter.detach().numpy()
    return found
