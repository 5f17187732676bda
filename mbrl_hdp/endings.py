"""How the command line ends: one line on stderr and an exit code for whatever a user or the machine may cause.

| code | meaning |
|---|---|
| 0 | success |
| 1 | a check failed, or work that had begun could not go on (disk full, numbers that are not finite, user code) |
| 2 | invalid input, refused before any work |
| 130, 143 | ended by SIGINT (Ctrl-C) or SIGTERM |

What to do next comes along as a note of the exception (`error.add_note`), e.g. how to go on with a run. Every other
exception is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mbrl_hdp.errors import MbrlHdpError, short

FAILED = 1
_MAX_CHARACTERS = 1000
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_WORDS = {signal.SIGINT: "interrupted (Ctrl-C)", signal.SIGTERM: "ended by SIGTERM"}


class Signals:
    """Signals that asked the program to end.

    Attributes:
        received: the first one, None while there is none.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        """Remember the signal and unwind; a second one ends the process at once."""
        if self.received is not None:
            os._exit(128 + number)
        self.received = signal.Signals(number)
        raise KeyboardInterrupt


@contextmanager
def noted_signals() -> Iterator[Signals]:
    """Turn SIGINT and SIGTERM into KeyboardInterrupt for a while, and remember them.

    A compiled kernel may replace the exception by a SystemError of its own: only the memory says what happened.
    """
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.signal(number, signals.note) for number in _WORDS}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ending(error: BaseException, signals: Signals) -> tuple[str, int] | None:
    """Return the line and the exit code of an exception, None for a bug of ours."""
    if signals.received is not None:
        return _line(_WORDS[signals.received], error), 128 + signals.received
    if isinstance(error, KeyboardInterrupt):
        return _line(_WORDS[signal.SIGINT], error), 128 + signal.SIGINT
    if isinstance(error, MbrlHdpError):
        return _line(str(error), error), error.exit_code
    if isinstance(error, OSError) and error.errno is not None:
        what = "no space left to write" if error.errno in _FULL else (error.strerror or "input or output failed")
        where = f": {error.filename}" if error.filename else ""
        return _line(f"{what}{where}", error), FAILED
    if isinstance(error, MemoryError):
        return _line("out of memory; ask for less (max_contexts, batch sizes, less data)", error), FAILED
    return None


def _line(words: str, error: BaseException) -> str:
    """Join words and notes to one line; control characters of names and files are shown, not obeyed."""
    notes = [note for cause in _causes(error) for note in getattr(cause, "__notes__", [])]
    text = "; ".join([short(" ".join(words.split()), _MAX_CHARACTERS), *dict.fromkeys(notes)])
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Return the exception and those behind it: a note may hang on the one that started it all."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
