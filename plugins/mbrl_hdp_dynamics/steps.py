"""What all built-in transition models share: one step, expected or drawn, of rows or of blocks of rows."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from mbrl_hdp.errors import DataError
from mbrl_hdp.inference.dynamics import Act, ActingContext, BlockAct, BlockContext, BlockObs, ContextDynamics, Obs


@dataclass(frozen=True)
class NoiseSource:
    """Where random numbers come from."""

    generator: torch.Generator | None

    def like(self, values: Tensor) -> Tensor:
        """Draw standard normal numbers in the shape, dtype and device of `values`."""
        return torch.randn(values.shape, generator=self.generator, dtype=values.dtype, device=values.device)


class SteppedDynamics(ContextDynamics):
    """A transition model that says by `_step` where rows lead, each in its own context, or blocks that share one."""

    @abstractmethod
    def _step(self, obs: Tensor, act: Tensor, context: Tensor, noise: NoiseSource | None = None) -> Tensor:
        """Return where rows (`batch S`), or blocks of rows (`paths rows S`), lead: expected, or drawn with noise."""

    def predict(self, obs: Obs, act: Act, context: ActingContext) -> Obs:
        """Return the expected next observation of every row in its own context.

        Raises:
            DataError: on rows of the wrong width or a context that does not exist.
        """
        self._check_rows(obs, act)
        return self._step(obs, act, context).to(obs.dtype)

    def sample(self, obs: Obs, act: Act, context: ActingContext, generator: torch.Generator | None = None) -> Obs:
        """Draw the next observation of every row in its own context.

        Raises:
            DataError: on rows of the wrong width or a context that does not exist.
        """
        self._check_rows(obs, act)
        return self._step(obs, act, context, NoiseSource(generator)).to(obs.dtype)

    def predict_blocks(self, obs: BlockObs, act: BlockAct, context: BlockContext) -> BlockObs:
        """Return the expected next observation where all rows of path p are in context[p]; nothing is sorted."""
        self._check_rows(obs, act)
        return self._step(obs, act.expand(*obs.shape[:2], -1), context).to(obs.dtype)

    def sample_blocks(
        self, obs: BlockObs, act: BlockAct, context: BlockContext, generator: torch.Generator | None = None
    ) -> BlockObs:
        """Draw the next observation where all rows of path p are in context[p]; nothing is sorted."""
        self._check_rows(obs, act)
        return self._step(obs, act.expand(*obs.shape[:2], -1), context, NoiseSource(generator)).to(obs.dtype)

    def _check_rows(self, obs: Tensor, act: Tensor, next_obs: Tensor | None = None) -> None:
        for name, rows, width in (("obs", obs, self.obs_dim), ("act", act, self.act_dim), ("next_obs", next_obs, None)):
            if rows is not None and rows.shape[-1] != (self.obs_dim if width is None else width):
                raise DataError(
                    f"{name} has {rows.shape[-1]} columns, this model was built for obs_dim={self.obs_dim} and "
                    f"act_dim={self.act_dim}"
                )
