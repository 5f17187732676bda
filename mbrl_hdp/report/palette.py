"""The colours of contexts and of runs, the same ones in every figure and page.

A test keeps the ten apart from each other and from white and dark ground, also for red-green colour blindness.
"""

from __future__ import annotations

# Okabe and Ito's colours; yellow, the faintest, comes late. Then two of Tol's, dark, and a brown.
CONTEXT_COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"),
    *("#332288", "#882255", "#593C04"),
)
DROPPED, UNKNOWN = "#BBBBBB", "#FFFFFF"
GREY, SHADE = "#666666", "#EEEEEE"


def context_colours(num_contexts: int) -> list[str]:
    """Return one colour a context as `#RRGGBB`: ten that everybody can tell apart, an even scale beyond."""
    if num_contexts <= len(CONTEXT_COLOURS):
        return list(CONTEXT_COLOURS[:num_contexts])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](place / (num_contexts - 1))) for place in range(num_contexts)]
