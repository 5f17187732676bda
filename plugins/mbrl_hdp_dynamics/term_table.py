"""Terms evaluated together: every factor once, then their products by index."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mbrl_hdp.inference.search.features import Factor, Term

KINDS = ("x", "sin", "cos", "hinge")


class TermTable(nn.Module):
    """Products of factors as index arrays; what is made of the settings alone is not saved with the model.

    Attributes:
        terms: the terms, in order.
        column: input column of every factor, `F`.
        kind: place of every factor's kind in `KINDS`, `F`.
        number: frequency or knot of every factor, `F`.
        index: factors of every term, `D P`; F, one past the last factor, stands for the number one.
    """

    column: Tensor
    kind: Tensor
    number: Tensor
    index: Tensor

    def __init__(self, terms: Sequence[Term]) -> None:
        super().__init__()
        self.terms = list(terms)
        factors: list[Factor] = sorted({factor for term in terms for factor in term})
        place = {factor: number for number, factor in enumerate(factors)}
        width = max((len(term) for term in terms), default=1) or 1
        index = [[place[factor] for factor in term] + [len(factors)] * (width - len(term)) for term in terms]
        self._buffer("column", torch.tensor([factor.column for factor in factors], dtype=torch.long))
        self._buffer("kind", torch.tensor([KINDS.index(factor.kind) for factor in factors], dtype=torch.long))
        self._buffer("number", torch.tensor([factor.number for factor in factors], dtype=torch.float64))
        self._buffer("index", torch.tensor(index, dtype=torch.long).view(len(terms), width))

    def _buffer(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)

    def forward(self, raw: Float[Tensor, "*batch X"], standard: Float[Tensor, "*batch X"]) -> Float[Tensor, "*batch D"]:
        """Return the terms of inputs in their own units and standardised."""
        own, scaled = raw[..., self.column], standard[..., self.column]
        turned = own * self.number
        values = torch.where(self.kind == 0, scaled, (scaled - self.number).clamp_min(0.0))
        values = torch.where(self.kind == 1, turned.sin(), values)
        values = torch.where(self.kind == 2, turned.cos(), values)
        values = torch.cat([values, torch.ones_like(raw[..., :1])], -1)
        product = values[..., self.index[:, 0]]
        for factor in self.index[:, 1:].unbind(1):
            product = product * values[..., factor]
        return product
