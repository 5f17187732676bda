"""What a model shows of itself is drawn by a later room; the package says which module does it.

`report` comes after this room, so nothing here imports it: `mbrl_hdp/__init__.py`, which knows all rooms, calls
`provide_views`, and the module is imported when the first text or figure is wanted.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mbrl_hdp.inference.model import ContextModel

_providers: list[str] = []


@runtime_checkable
class ModelViews(Protocol):
    """The texts and figures of a model, as functions of a module; `ContextModel` documents them."""

    def summary_text(self, model: ContextModel, data: Any = None) -> str:
        """Return the report as text."""

    def plot_contexts(
        self,
        model: ContextModel,
        data: Any,
        episodes: Sequence[int] | None = None,
        columns: Sequence[int | str] | None = None,
    ) -> Figure:
        """Return a figure of contexts over time."""

    def plot_transition(self, model: ContextModel, data: Any = None) -> Figure:
        """Return a figure of the transition matrices."""

    def plot_stationary(self, model: ContextModel) -> Figure:
        """Return a figure of the share of every slot."""

    def html(self, model: ContextModel) -> str:
        """Return the report as HTML for a notebook."""


def provide_views(module: str) -> None:
    """Name the module whose functions are the views; the last one named counts."""
    _providers.append(module)


def model_views() -> ModelViews:
    """Return the views that were provided.

    Raises:
        RuntimeError: if no module provides them.
    """
    if not _providers:
        raise RuntimeError("no module provides the views of a model; `import mbrl_hdp` does")
    return cast(ModelViews, importlib.import_module(_providers[-1]))
