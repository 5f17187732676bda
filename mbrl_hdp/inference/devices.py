"""Where a model is learned: `device=auto|cpu|cuda`.

Learning is plain torch and follows its tensors. What never leaves the CPU: compiled kernels (which other devices do
without), the online filter, agents and planners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from mbrl_hdp.errors import ConfigError, did_you_mean
from mbrl_hdp.inference.heads import ContextHeads

DEVICES = ("auto", "cpu", "cuda")


def check_device(device: str) -> None:
    """Raise if a device does not exist or this machine does not have it.

    Raises:
        ConfigError: saying what is missing and what to do.
    """
    if device not in DEVICES:
        raise ConfigError(f"device={device!r} is not allowed; {did_you_mean(str(device), DEVICES)}")
    if device != "cuda":
        return
    if torch.version.cuda is None:
        raise ConfigError(
            f"device=cuda, but torch {torch.__version__} was built without CUDA: install a CUDA build of torch, or use "
            "device=cpu"
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            "device=cuda, but torch finds no CUDA device: check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES, or "
            "use device=cpu"
        )


def resolve_device(device: str, is_small: Callable[[], bool]) -> torch.device:
    """Return the device that a word stands for.

    `auto` is the CPU, unless there is a CUDA device and the networks are not small: small ones run in compiled kernels
    on the CPU, and on a GPU they mostly wait for operations to be launched.

    Args:
        device: auto, cpu or cuda.
        is_small: returns whether the networks are small; called only where it matters.

    Raises:
        ConfigError: if the device does not exist here.
    """
    check_device(device)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() and not is_small() else "cpu"
    return torch.device(device)


def has_small_networks(dynamics: nn.Module) -> bool:
    """Return whether all networks of a transition model are small; one without such heads counts as small."""
    return all(part.is_narrow for part in dynamics.modules() if isinstance(part, ContextHeads))


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators of the CPU and of `device` (Pyro draws from them); put them back afterwards."""
    is_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if is_cuda else []):
        torch.default_generator.manual_seed(seed)
        if is_cuda:
            torch.cuda.manual_seed(seed)
        yield
