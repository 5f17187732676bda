"""States of agents: tensors, arrays and plain data in one safetensors file; reading it runs no code.

Plain data is whatever JSON holds (numbers, words, lists, dictionaries), e.g. a numpy generator's
`bit_generator.state`. Every value comes back with the type it had; numpy's scalars as Python's numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mbrl_hdp.data.tensor_files import read_tensors, write_tensors
from mbrl_hdp.errors import CheckpointError

FILE_NAME = "agent.safetensors"
_TENSOR, _ARRAY, _PLAIN = "tensor.", "array.", "plain."


def pack_state(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Turn a state into tensors of their own memory, the kind of every value in its name.

    Raises:
        CheckpointError: naming the entry that cannot be saved.
    """
    packed = {}
    for name, value in state.items():
        kind, tensor = _pack(name, value)
        packed[f"{kind}{name}"] = tensor
    return packed


def _pack(name: str, value: Any) -> tuple[str, Tensor]:
    if isinstance(value, Tensor):
        return _TENSOR, value.detach().cpu().clone().contiguous()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return _ARRAY, torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="), order="C"))
    if isinstance(value, np.generic):
        value = value.item()
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = ""
    # A tuple or a dictionary with numbers as keys would come back as something else.
    if not text or repr(json.loads(text)) != repr(value):
        raise CheckpointError(
            f"state_dict(): entry {name!r} of type {type(value).__name__} cannot be saved; return tensors, numpy "
            "arrays of numbers, or plain data as JSON has it (numbers, words, lists, dictionaries with words as keys)"
        )
    return _PLAIN, torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def unpack_state(packed: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the state that `pack_state` packed."""
    state: dict[str, Any] = {}
    for name, tensor in packed.items():
        if name.startswith(_TENSOR):
            state[name.removeprefix(_TENSOR)] = tensor
        elif name.startswith(_ARRAY):
            state[name.removeprefix(_ARRAY)] = tensor.numpy()
        else:
            state[name.removeprefix(_PLAIN)] = json.loads(bytes(tensor.tolist()).decode())
    return state


def save_state(state: Mapping[str, Any], folder: str | Path) -> None:
    """Write an agent's state to `agent.safetensors` of a folder.

    Raises:
        CheckpointError: naming the entry that cannot be saved.
    """
    write_tensors(Path(folder) / FILE_NAME, pack_state(state), {})


def load_state(folder: str | Path) -> dict[str, Any]:
    """Read an agent's state from a folder, as `final/` of a run with a plugin's agent is.

    Example:
        >>> agent = MyAgent(MyConfig(), task)
        >>> agent.load_state_dict(load_state("RUN/final"))

    Raises:
        CheckpointError: if the file is missing or damaged.
    """
    tensors, _ = read_tensors(Path(folder) / FILE_NAME)
    return unpack_state(tensors)


def prefixed(name: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a part under its name."""
    return {f"{name}.{key}": value for key, value in state.items()}


def unprefixed(state: Mapping[str, Any], name: str) -> dict[str, Any]:
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
