"""Oscillators, chaos, populations and tanks."""

from __future__ import annotations

import numpy as np

from mbrl_hdp.envs.chains import FloatArray
from mbrl_hdp.envs.systems.system import System, box_start


def van_der_pol() -> System:
    """Van der Pol: the damping has another strength in every context."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        x, v = state
        return np.stack([v, parameters[0] * (1.0 - x**2) * v - x + act[0]])

    return System("van_der_pol", derivative, np.array([[0.5], [2.0]]), box_start([-2, -2], [2, 2]), noisy=[1])


def van_der_pol_stiff() -> System:
    """Stiff Van der Pol (damping 5): the drive is reversed."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        x, v = state
        return np.stack([v, 5.0 * (1.0 - x**2) * v - x + 4.0 * parameters[0] * act[0]])

    contexts = np.array([[1.0], [-1.0]])
    return System("van_der_pol_stiff", derivative, contexts, box_start([-2, -2], [2, 2]), noisy=[1], num_substeps=20)


def fitzhugh_nagumo() -> System:
    """FitzHugh-Nagumo neuron: three currents."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        v, w = state
        return np.stack([v - v**3 / 3.0 - w + parameters[0] + 0.3 * act[0], 0.08 * (v + 0.7 - 0.8 * w)])

    contexts = np.array([[0.0], [0.4], [0.9]])
    return System("fitzhugh_nagumo", derivative, contexts, box_start([-2, -1], [2, 1.5]), dt=0.4, noisy=[0])


def duffing() -> System:
    """Duffing oscillator: a soft, a hard and a double-well spring.

    Switching pumps energy into some episodes (amplitudes of 25), where the hard spring needs short steps.
    """

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        x, v = state
        return np.stack([v, -0.2 * v - parameters[0] * x - parameters[1] * x**3 + 2.0 * act[0]])

    contexts = np.array([[1.0, 0.0], [1.0, 3.0], [-1.0, 1.0]])
    return System("duffing", derivative, contexts, box_start([-1.5, -1.5], [1.5, 1.5]), noisy=[1], num_substeps=16)


def rossler() -> System:
    """Roessler attractor (chaotic): two speeds of the outer loop."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        x, y, z = state
        return np.stack([-y - z, x + parameters[0] * y + act[0], 0.2 + z * (x - 5.7)])

    contexts = np.array([[0.2], [-0.1]])
    return System(
        "rossler", derivative, contexts, box_start([-5, -5, 0], [5, 5, 1]), dt=0.1, num_substeps=8, noisy=[0, 1]
    )


def lorenz() -> System:
    """Lorenz attractor (chaotic): two Rayleigh numbers; no action."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:  # noqa: ARG001
        x, y, z = state
        return np.stack([10.0 * (y - x), x * (parameters[0] - z) - y, x * y - 8.0 / 3.0 * z])

    contexts = np.array([[28.0], [20.0]])
    start = box_start([-10, -10, 15], [10, 10, 30])
    return System("lorenz", derivative, contexts, start, act_dim=0, dt=0.03, num_substeps=4)


def lotka_volterra() -> System:
    """Predators and prey; a disease of the predators comes and goes, the action is harvest."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        prey, predator = state
        return np.stack(
            [
                prey * (1.0 - 0.1 * prey - 0.5 * predator + 0.3 * act[0]),
                predator * (parameters[0] * prey - parameters[1]),
            ]
        )

    contexts = np.array([[0.4, 0.7], [0.4, 1.3]])
    return System("lotka_volterra", derivative, contexts, box_start([0.5, 0.5], [4, 3]))


def two_tanks() -> System:
    """Two tanks in a row: nominal, a leak in the first, a blocked pipe between them."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        upper, lower = np.sqrt(np.maximum(state, 1e-3))
        pipe = parameters[1] * upper
        return np.stack([1.0 + 0.8 * act[0] - pipe - parameters[0] * upper, pipe - 0.7 * lower])

    contexts = np.array([[0.0, 0.8], [0.5, 0.8], [0.0, 0.3]])

    def limit(state: FloatArray) -> FloatArray:
        return np.maximum(state, 0.0)

    return System("two_tanks", derivative, contexts, box_start([0.5, 0.5], [3, 3]), dt=0.2, limit=limit)


def reactor() -> System:
    """Stirred-tank reactor with Arrhenius kinetics: good and fouled cooling."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        concentration, heat = state
        rate = concentration * np.exp(4.0 * heat / (1.0 + heat))
        return np.stack([1.0 - concentration - 0.3 * rate, 0.4 * rate - heat * parameters[0] + 0.5 * act[0]])

    contexts = np.array([[3.0], [1.5]])
    return System("reactor", derivative, contexts, box_start([0.2, 0.0], [1.0, 0.6]), dt=0.1)


SYSTEMS = (
    van_der_pol, van_der_pol_stiff, fitzhugh_nagumo, duffing, rossler, lorenz, lotka_volterra, two_tanks, reactor
)  # fmt: skip
