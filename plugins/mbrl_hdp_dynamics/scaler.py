"""Scale columns to mean 0 and standard deviation 1, whatever units they come in."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mbrl_hdp.errors import DataError


class ColumnScaler(nn.Module):
    """Centre and scale of every column, kept as buffers and so saved with the model.

    A column that never changes has scale 0: as an input it is ignored, as a target it is predicted exactly and carries
    no density (it cannot separate contexts). Before `fit` nothing is scaled.

    Attributes:
        centre: mean of every column.
        scale: standard deviation of every column, 0 where the column is constant.
        inverse_scale: 1 / scale, 0 where the column is constant.
    """

    centre: Tensor
    scale: Tensor
    inverse_scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        self.register_buffer("inverse_scale", torch.ones(width))

    def fit(self, rows: Float[Tensor, "batch D"]) -> None:
        """Estimate centre and scale from data; rows with a missing value do not count.

        Raises:
            DataError: if no complete row is left.
        """
        complete = rows[rows.isfinite().all(-1)]
        if not len(complete):
            raise DataError("the normaliser needs at least one transition without missing values, got none")
        columns = complete.double()
        mean, spread = columns.mean(0), columns.std(0, correction=0)
        # A spread within the rounding of the values themselves is noise of the number format, not of the data.
        rounding = torch.finfo(rows.dtype).eps * columns.abs().amax(0)
        spread = torch.where(spread > rounding, spread, 0.0)
        self.centre.copy_(mean)
        self.scale.copy_(spread)
        self.inverse_scale.copy_(torch.where(spread > 0, 1.0 / spread, 0.0))

    def forward(self, rows: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Return (rows - centre) / scale in the precision of this module."""
        return ((rows - self.centre) * self.inverse_scale).to(self.centre.dtype)

    def undo(self, rows: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Return rows * scale + centre."""
        return torch.addcmul(self.centre, rows, self.scale)

    def log_volume(self) -> Float[Tensor, ""]:
        """Return the logarithm of the product of the scales: log |d rows / d scaled| over the columns that vary."""
        return torch.where(self.scale > 0, self.scale, 1.0).log().sum()
