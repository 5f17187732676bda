"""Tensors with their words in one safetensors file that notices when it was damaged; reading it runs no code.

The header holds the words as JSON and the SHA-256 of words and numbers: a flipped bit anywhere is found on load.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.data.manifest import check_file
from mbrl_hdp.data.plain_files import file_problem, parse_json
from mbrl_hdp.errors import CheckpointError

_CHECKSUM = "sha256"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], words: dict[str, Any]) -> None:
    """Write tensors and words; the file appears whole or not at all."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # One entry: safetensors writes several in any order, and equal runs should write equal files.
    text = json.dumps({_CHECKSUM: _digest(plain, words), **words})
    with atomic_path(path) as temporary:
        try:
            save_file(plain, temporary, metadata={"words": text})
        except SafetensorError as error:  # a full disk, in the words of another language
            raise OSError(str(error)) from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote.

    Raises:
        CheckpointError: if the file is missing or damaged, or holds numbers that are not finite.
    """
    problem = file_problem(path)
    if problem is not None:
        raise CheckpointError(f"{path} {problem}")
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    words = parse_json(header.get("words", "{}"), f"the header of {path}")
    if _CHECKSUM not in words:
        raise CheckpointError(f"{path} has no checksum: an older version of mbrl_hdp wrote it, or another program")
    if words.pop(_CHECKSUM) != _digest(tensors, words):
        raise CheckpointError(f"{path} is damaged: its content does not match its SHA-256 checksum")
    check_finite(tensors, str(path))
    return tensors, words


def check_finite(tensors: Mapping[str, Tensor], name: str) -> None:
    """Refuse NaN and infinity.

    Raises:
        CheckpointError: naming the first tensor that holds one.
    """
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            raise CheckpointError(f"{name}: {key!r} holds {count} values that are not finite; it cannot be used")


def _digest(tensors: Mapping[str, Tensor], words: Mapping[str, Any]) -> str:
    found = hashlib.sha256(json.dumps(words).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
