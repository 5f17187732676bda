"""Three MuJoCo bodies with reversed or dead joints (extra `mujoco`); gymnasium's models, integrated by MuJoCo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from mbrl_hdp.envs.chains import FloatArray, IntArray
from mbrl_hdp.envs.systems.system import System
from mbrl_hdp.errors import ConfigError


@dataclass(frozen=True)
class Body(System):
    """A body whose state is (qpos, qvel); a context multiplies the control of every joint by a factor.

    Attributes:
        model: the MuJoCo model.
    """

    model: Any = None

    def step(
        self, state: FloatArray, act: FloatArray, context: IntArray, noise: FloatArray, rng: np.random.Generator
    ) -> FloatArray:
        """Return the next states, `B S`; MuJoCo takes `num_substeps` steps of its own."""
        from mujoco import MjData, rollout

        control = self.contexts[context] * act
        clock = np.zeros((len(state), 1))
        paths, _ = rollout.rollout(
            self.model, MjData(self.model), np.concatenate([clock, state], 1),
            np.repeat(control[:, None], self.num_substeps, 1),
        )  # fmt: skip
        after: FloatArray = paths[:, -1, 1 : 1 + state.shape[1]]
        return after + noise * rng.standard_normal(state.shape) if noise.any() else after


def _no_equation(state: FloatArray, act: FloatArray, parameters: FloatArray) -> FloatArray:
    raise NotImplementedError("MuJoCo integrates this body itself; it has no closed equation")


def _body(name: str, file: str, contexts: list[list[float]], num_substeps: int, spread: float, skipped: int) -> Body:
    """Build a body from a model of gymnasium; `skipped` first coordinates (its place) are not logged."""
    try:
        import mujoco
    except ImportError as error:
        raise ConfigError(f"the system {name!r} needs MuJoCo: pip install 'mbrl-hdp[mujoco]'") from error
    model = mujoco.MjModel.from_xml_path(str(Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / file))
    rest = np.concatenate([mujoco.MjData(model).qpos, np.zeros(model.nv)])
    moving = np.arange(len(rest)) if name != "mujoco_reacher" else np.array([0, 1, 4, 5])
    logged = moving[skipped:]

    def start(rng: np.random.Generator, num: int) -> FloatArray:
        states = np.tile(rest, (num, 1))
        states[:, moving] += rng.uniform(-spread, spread, (num, len(moving)))
        return states

    return Body(
        name, _no_equation, np.array(contexts), start, act_dim=model.nu, dt=model.opt.timestep * num_substeps,
        num_substeps=num_substeps, noisy=[int(i) for i in moving if i >= model.nq],
        observe=lambda path: path[..., logged], model=model,
    )  # fmt: skip


def reacher() -> Body:
    """Reacher (two joint angles and speeds; the target is left out): the shoulder is reversed."""
    return _body("mujoco_reacher", "reacher.xml", [[1.0, 1.0], [-1.0, 1.0]], 2, 0.5, 0)


def swimmer() -> Body:
    """Swimmer (gymnasium's observation: all but its place): nominal, or the first joint dead."""
    return _body("mujoco_swimmer", "swimmer.xml", [[1.0, 1.0], [0.0, 1.0]], 4, 0.3, 2)


def half_cheetah() -> Body:
    """Half-cheetah (gymnasium's observation: all but its place), with contacts: nominal, or the hind leg dead."""
    contexts = [[1.0] * 6, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]]
    return _body("mujoco_half_cheetah", "half_cheetah.xml", contexts, 5, 0.1, 1)


# Named here, not by building them: MuJoCo is an extra.
SYSTEMS: dict[str, Callable[[], System]] = {
    "mujoco_reacher": reacher,
    "mujoco_swimmer": swimmer,
    "mujoco_half_cheetah": half_cheetah,
}
