"""Spring chains, a point in the wind and random switching linear systems."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mbrl_hdp.envs.chains import FloatArray
from mbrl_hdp.envs.systems.system import System, box_start


def spring_chain() -> System:
    """Four masses on five springs, pushed at the ends: nominal, the second or the fourth spring broken."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        place, speed = state[:4], state[4:]
        walls = np.zeros_like(place[:1])
        stretch = np.diff(np.concatenate([walls, place, walls]), axis=0)
        force = np.diff(10.0 * parameters * stretch, axis=0) - 0.3 * speed
        force[0] += 4.0 * act[0]
        force[3] += 4.0 * act[1]
        return np.concatenate([speed, force])

    contexts = np.array([[1.0, 1, 1, 1, 1], [1, 0, 1, 1, 1], [1, 1, 1, 0, 1]])
    return System(
        "spring_chain", derivative, contexts, box_start([-1] * 8, [1] * 8), act_dim=2, dt=0.1, noisy=[4, 5, 6, 7]
    )


def windy_point() -> System:
    """Point with quadratic drag in the plane: no wind or wind from three sides (four contexts)."""

    def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
        velocity = state[2:]
        air = velocity - parameters
        drag = -0.3 * air * np.sqrt((air**2).sum(0) + 1e-6)
        return np.concatenate([velocity, drag + 2.0 * act])

    contexts = np.array([[0.0, 0.0], [3.0, 0.0], [-2.0, 2.5], [-1.0, -3.0]])
    return System("windy_point", derivative, contexts, box_start([-1] * 4, [1] * 4), act_dim=2, dt=0.1, noisy=[2, 3])


def switching_linear(dim: int, num_contexts: int, act_dim: int = 2) -> Callable[[], System]:
    """Return a builder of a random stable linear system; every context has its own matrices and offset."""

    def build() -> System:
        rng = np.random.default_rng([dim, num_contexts])
        size = dim * dim
        values = []
        for _ in range(num_contexts):
            matrix = rng.standard_normal((dim, dim)) / np.sqrt(dim)
            matrix = 2.0 * (matrix - matrix.T) - 0.5 * np.eye(dim)
            values.append(
                np.concatenate([matrix.ravel(), rng.standard_normal(dim * act_dim), 0.5 * rng.standard_normal(dim)])
            )

        def derivative(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
            matrix = parameters[:size].reshape(dim, dim, -1)
            gain = parameters[size : size + dim * act_dim].reshape(dim, act_dim, -1)
            return (
                np.einsum("ijb,jb->ib", matrix, state)
                + np.einsum("ijb,jb->ib", gain, act)
                + parameters[size + dim * act_dim :]
            )

        return System(
            f"linear_{dim}d_{num_contexts}", derivative, np.stack(values), box_start([-1] * dim, [1] * dim),
            act_dim=act_dim, dt=0.1, num_substeps=2,
        )  # fmt: skip

    return build


SYSTEMS = (
    spring_chain, windy_point, switching_linear(4, 2), switching_linear(6, 4), switching_linear(8, 6),
    switching_linear(12, 9),
)  # fmt: skip
