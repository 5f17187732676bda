"""The errors that a user can cause, each saying what is wrong and what to do.

Whatever the command line catches and prints as one line derives from `MbrlHdpError`; any other exception is a bug of
ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MbrlHdpError(Exception):
    """Base of every error with a message meant for the user.

    Attributes:
        exit_code: exit code of the command line: 2 for what was asked for, 1 for work that had begun and failed.
    """

    exit_code = 2


class ConfigError(MbrlHdpError):
    """A setting is unknown, of the wrong type or out of range."""


class DataError(MbrlHdpError):
    """Trajectories, files or arrays that cannot be used as they are."""


class PluginError(MbrlHdpError):
    """A plugin is missing, broken or clashes with another one."""


class FitError(MbrlHdpError):
    """Learning could not be carried out on this data with these settings."""


class WriteError(DataError):
    """A file cannot be written: no such folder, no permission, no space."""

    exit_code = 1


class StepError(MbrlHdpError):
    """An environment, a reward or an agent failed or gave what cannot be used, in a step that the message names."""

    exit_code = 1


class DivergenceError(FitError):
    """A loss or a gradient is not finite, in a gradient step that the message names."""

    exit_code = 1


class CheckpointError(MbrlHdpError):
    """A saved model or run is missing, damaged or of a version that cannot be read."""


class ExportError(MbrlHdpError):
    """An exported model does not return the numbers of the model that it came from."""

    exit_code = 1


def short(text: str, limit: int = 80) -> str:
    """Cut a long text for a message; a cell of a broken file may have megabytes."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters)"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the nearest known names, or all of them if none is near.

    Example:
        >>> did_you_mean("hpd", ["hdp", "dirichlet", "mle"])
        "did you mean 'hdp'? (known: dirichlet, hdp, mle)"
    """
    names = sorted(set(known))
    name = name[:200]
    if not names:
        return "nothing is known here"
    listing = f"known: {', '.join(names)}"
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if not near:
        return listing
    return f"did you mean {' or '.join(repr(n) for n in near)}? ({listing})"
