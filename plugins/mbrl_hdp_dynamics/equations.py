"""What the heads of `sparse` do, as short equations in the data's own units."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float

from mbrl_hdp.inference.search.features import Factor, Term

if TYPE_CHECKING:
    from mbrl_hdp_dynamics.sparse import SparseDynamics

# Terms are added until what they leave out is this share of the noise, or of the change itself where there is no noise.
_OF_NOISE, _OF_CHANGE = 0.3, 0.01
_MOST_TERMS = 12


def equations(dynamics: SparseDynamics, slots: list[int], names: list[str] | None = None) -> list[list[str]]:
    """Return one line for every column and each of some contexts.

    A head is a sum of many correlated features; its prediction on some inputs of the data is approximated by as few
    terms in the data's units as leave out less than the noise.

    Args:
        dynamics: the heads.
        slots: the contexts.
        names: names of the columns of obs and act; obs0, ..., act0, ... by default.
    """
    sizes = (("obs", dynamics.obs_dim), ("act", dynamics.act_dim))
    names = names or [f"{word}{column}" for word, size in sizes for column in range(size)]
    inputs = dynamics.examples.numpy()
    terms = _parts(dynamics.table.terms)
    shift, spread = dynamics.input_scaler.centre.numpy(), dynamics.input_scaler.scale.numpy()
    values = np.stack([_evaluate(term, inputs, shift, spread) for term in terms], 1)
    texts = [_text(term, names, shift, spread) for term in terms]
    with torch.no_grad():
        features = dynamics.features(dynamics.examples[:, : dynamics.obs_dim], dynamics.examples[:, dynamics.obs_dim :])
        scale, noise = dynamics.target_scaler.scale, dynamics.noise_std()
        changes = [dynamics.target_scaler.undo(features @ dynamics.weight[slot]).numpy() for slot in slots]
        noises = [(noise[slot] * scale).numpy() for slot in slots]
    return [
        [
            f"change of {names[column]} = {_sum(texts, values, change[:, column], float(std[column]))}"
            f"  (noise {std[column]:.2g})"
            for column in range(dynamics.obs_dim)
        ]
        for change, std in zip(changes, noises, strict=True)
    ]


def _parts(terms: list[Term]) -> list[Term]:
    """Return the terms and every product of some of their factors: moving a centre needs them."""
    found = {part for term in terms for size in range(len(term) + 1) for part in combinations(term, size)}
    return sorted(found, key=lambda term: (len(term), term))


def _evaluate(
    term: Term, inputs: Float[np.ndarray, "M X"], shift: np.ndarray, spread: np.ndarray
) -> Float[np.ndarray, " M"]:
    value = np.ones(len(inputs))
    for factor in term:
        if factor.kind == "hinge":
            value = value * np.maximum(inputs[:, factor.column] - _knot(factor, shift, spread), 0.0)
        else:  # called with its own units in place of the standardised ones
            value = value * factor(inputs, inputs)
    return value


def _knot(factor: Factor, shift: np.ndarray, spread: np.ndarray) -> float:
    return float(shift[factor.column] + spread[factor.column] * factor.number)


def _text(term: Term, names: list[str], shift: np.ndarray, spread: np.ndarray) -> str:
    powers: dict[str, int] = {}
    for factor in term:
        name = names[factor.column]
        if factor.kind == "hinge":
            knot = _knot(factor, shift, spread)
            name = f"max({name} {'-' if knot >= 0 else '+'} {abs(knot):.4g}, 0)"
        elif factor.kind != "x":
            name = f"{factor.kind}({name})" if factor.number == 1.0 else f"{factor.kind}({factor.number:.4g} {name})"
        powers[name] = powers.get(name, 0) + 1
    return " * ".join(name if power == 1 else f"{name}^{power}" for name, power in powers.items())


def _sum(texts: list[str], values: Float[np.ndarray, "M D"], change: Float[np.ndarray, " M"], noise: float) -> str:
    """Choose terms one by one, the one that leaves least first, and write their sum."""
    allowed = max(_OF_NOISE * noise, _OF_CHANGE * float(change.std()))
    chosen: list[int] = []
    coefficients, left = np.zeros(0), change
    size = np.sqrt(np.square(values).mean(0)) + 1e-300
    scaled = values / size
    while len(chosen) < min(_MOST_TERMS, values.shape[1]) and np.sqrt(np.square(left).mean()) > allowed:
        best = int(_errors_with(scaled, chosen, change).argmin())
        if best in chosen:
            break
        chosen.append(best)
        coefficients = np.linalg.lstsq(scaled[:, chosen], change, rcond=1e-10)[0]
        left = change - scaled[:, chosen] @ coefficients
    chosen, coefficients = _without_needless(scaled, chosen, change, allowed)
    pairs = sorted(zip(chosen, coefficients, strict=True))
    words = [_product(coefficient / size[place], texts[place]) for place, coefficient in pairs]
    return " ".join(words).removeprefix("+ ") or "0"


def _errors_with(scaled: np.ndarray, chosen: list[int], change: np.ndarray) -> Float[np.ndarray, " D"]:
    """Return the squared error that each further term would leave."""
    basis = np.linalg.qr(scaled[:, chosen])[0] if chosen else np.zeros((len(change), 0))
    rest = scaled - basis @ (basis.T @ scaled)
    left = change - basis @ (basis.T @ change)
    power = np.square(rest).sum(0)
    gain = np.where(power > 1e-10 * len(change), np.square(left @ rest) / np.maximum(power, 1e-300), 0.0)
    return np.square(left).sum() - gain


def _without_needless(
    scaled: np.ndarray, chosen: list[int], change: np.ndarray, allowed: float
) -> tuple[list[int], np.ndarray]:
    """Drop terms that later ones made needless."""
    allowed = max(allowed, 1.05 * _left(scaled, chosen, change)[0])
    for place in list(chosen):
        fewer = [other for other in chosen if other != place]
        if _left(scaled, fewer, change)[0] <= allowed:
            chosen = fewer
    return chosen, _left(scaled, chosen, change)[1]


def _left(scaled: np.ndarray, chosen: list[int], change: np.ndarray) -> tuple[float, np.ndarray]:
    if not chosen:
        return float(np.sqrt(np.square(change).mean())), np.zeros(0)
    coefficients = np.linalg.lstsq(scaled[:, chosen], change, rcond=1e-10)[0]
    return float(np.sqrt(np.square(change - scaled[:, chosen] @ coefficients).mean())), coefficients


def _product(coefficient: float, text: str) -> str:
    sign = "-" if coefficient < 0 else "+"
    return f"{sign} {abs(coefficient):.4g}{' ' + text if text else ''}"
