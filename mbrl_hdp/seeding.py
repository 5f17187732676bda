"""The one place that seeds: Python, numpy, torch, Pyro, environments and their spaces, mbrl-lib's generators.

mbrl-lib draws from several sources (its CEM from torch's global generator, ModelEnv and ReplayBuffer from generators
of their own), so a run calls `seed_everything` once and takes every further generator from `numpy_generator` or
`torch_generator`, each with a name: the same seed and name give the same stream whatever else was drawn.
"""

from __future__ import annotations

import random
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import gymnasium
    import torch


def sub_seed(seed: int, *names: str | int) -> int:
    """Derive a seed for one purpose; stable across processes, platforms and versions of Python.

    Example:
        >>> sub_seed(0, "evaluate", 3) == sub_seed(0, "evaluate", 3) != sub_seed(0, "evaluate", 4)
        True
    """
    words = [zlib.crc32(name.encode()) if isinstance(name, str) else name for name in names]
    return int(np.random.SeedSequence([seed, *words]).generate_state(1, np.uint32)[0])


def numpy_generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return a numpy generator of its own for one purpose."""
    return np.random.default_rng(sub_seed(seed, *names))


def torch_generator(seed: int, *names: str | int, device: str | torch.device = "cpu") -> torch.Generator:
    """Return a torch generator of its own for one purpose (mbrl-lib's ModelEnv and ReplayBuffer take one)."""
    import torch

    return torch.Generator(device=device).manual_seed(sub_seed(seed, *names))


def seed_everything(seed: int) -> None:
    """Seed every global generator: Python's, numpy's, torch's (all devices) and through it Pyro's."""
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - mbrl-lib and gym draw from the legacy generator
    torch.manual_seed(seed)


def seed_env(env: gymnasium.Env[Any, Any], seed: int) -> Any:
    """Reset an environment with a seed and seed its spaces too; return what `reset` gave."""
    env.action_space.seed(sub_seed(seed, "action_space"))
    env.observation_space.seed(sub_seed(seed, "observation_space"))
    return env.reset(seed=seed)
