"""States of agents as flat dictionaries of tensors: prefixes, networks and optimisers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def prefixed(name: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a part under its name."""
    return {f"{name}.{key}": value for key, value in state.items()}


def part_of(state: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the entries of a part without its name."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the moments of an optimiser as tensors, `number.name`."""
    found = optimizer.state_dict()["state"]
    return {f"{number}.{name}": value for number, moments in found.items() for name, value in moments.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    """Restore what `optimizer_state` returned; settings such as the learning rate stay as they are."""
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in state.items():
        number, _, name = key.partition(".")
        moments.setdefault(int(number), {})[name] = value.clone()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
