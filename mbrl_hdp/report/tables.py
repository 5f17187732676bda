"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_COLOURS = {"ok": "green", "missing": "bold red", "differs": "yellow", "optional": "dim", "note": "cyan"}


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that fits the terminal; status words in the first column get their colour."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*[Text(cell, style=_COLOURS.get(cell, "") if i == 0 else "") for i, cell in enumerate(row)])
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, 140))  # a file or a pipe has no width to fit
    console.print(table)
