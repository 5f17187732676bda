"""What the search is doing, for whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

Listener = Callable[[str], None]


@dataclass
class _Stage:
    listener: Listener
    words: str = ""


_STAGE: ContextVar[_Stage | None] = ContextVar("stage of the search", default=None)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Call `listener` with the stage of every search inside, when it begins and at every sign of life after that."""
    token = _STAGE.set(_Stage(listener))
    try:
        yield
    finally:
        _STAGE.reset(token)


def begin(words: str) -> None:
    """Report that a stage begins."""
    stage = _STAGE.get()
    if stage is not None:
        stage.words = words
        stage.listener(words)


def sign_of_life() -> None:
    """Report the present stage again; called in every iteration of EM and every round of feature growth."""
    stage = _STAGE.get()
    if stage is not None and stage.words:
        stage.listener(stage.words)
