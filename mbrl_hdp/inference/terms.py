"""Features as text: how the terms of the structure search are written into a model's settings and read back.

A term is a product of factors, as in `x0*x2*sin(2.0*r1)`: `x2` is input column 2 of (obs, act), standardised, `r2` the
same column in its own units; factors are `x2`, `sin(W*r2)`, `cos(W*r2)` and `max(x2-KNOT,0)`. The constant is `1`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.search.features import Factor, Features, Term

_NUMBER = r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?"
_FACTOR = re.compile(
    rf"x(?P<x>\d+)|(?P<wave>sin|cos)\((?P<turn>{_NUMBER})\*r(?P<r>\d+)\)|max\(x(?P<h>\d+)-(?P<knot>{_NUMBER}),0\)"
)


def term_texts(features: Features) -> list[str]:
    """Return the chosen terms as text, the constant first."""
    columns = features.library.rows.input_columns.tolist()
    return [term_text(term, columns) for term in features.terms]


def term_text(term: Term, columns: Sequence[int]) -> str:
    """Return a term as text; `columns` are the columns of (obs, act) that the factors' numbers stand for."""
    return "*".join(_factor_text(factor, int(columns[factor.column])) for factor in term) or "1"


def _factor_text(factor: Factor, column: int) -> str:
    if factor.kind in ("sin", "cos"):
        return f"{factor.kind}({factor.number!r}*r{column})"
    return f"max(x{column}-{factor.number!r},0)" if factor.kind == "hinge" else f"x{column}"


def read_term(text: str, num_inputs: int, key: str = "dynamics.terms") -> Term:
    """Return the term that a text stands for.

    Raises:
        ConfigError: on text that is no term, or a column that does not exist.
    """
    if not text.strip():
        raise ConfigError(f"{key} has an empty term; leave it out")
    factors: list[Factor] = []
    position, rest = 0, text.replace(" ", "")
    while rest != "1" and position < len(rest):
        found = _FACTOR.match(rest, position)
        if found is None or (found.end() < len(rest) and rest[found.end()] != "*"):
            raise ConfigError(f"{key}: {text!r} is no product of factors like x0, sin(2.0*r1), max(x0-0.5,0)")
        factors.append(_read_factor(found))
        position = found.end() + 1
        if position == len(rest):
            raise ConfigError(f"{key}: {text!r} ends with *")
    for factor in factors:
        if factor.column >= num_inputs:
            raise ConfigError(f"{key}: {text!r} names column {factor.column}; (obs, act) has {num_inputs} columns")
    return tuple(sorted(factors))


def _read_factor(found: re.Match[str]) -> Factor:
    if found["x"]:
        return Factor(int(found["x"]))
    if found["wave"]:
        return Factor(int(found["r"]), found["wave"], float(found["turn"]))
    return Factor(int(found["h"]), "hinge", float(found["knot"]))
