"""The paper's first baseline prior: sticky Dirichlet rows without shared weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mbrl_hdp.inference.prior import ContextPrior
from mbrl_hdp.settings import check_settings, setting
from mbrl_hdp.types import ContextChain, TaskSpec
from mbrl_hdp_priors.rows import DirichletRowsPrior


@dataclass
class DirichletConfig:
    """Settings of the `dirichlet` prior."""

    row_concentration: float = setting(100.0, "prior mass of a row, spread evenly (alpha)", above=0.0)
    stickiness: float | None = setting(None, "extra prior mass on staying (kappa); null means 3K/5", at_least=0.0)


class DirichletPrior(DirichletRowsPrior):
    """Independent sticky Dirichlet rows.

    initial ~ Dir(row_concentration / K), transition[j] ~ Dir(row_concentration / K + stickiness * e_j); q = Dir(q_rows)
    and starts at the prior.
    """

    def __init__(self, max_contexts: int, row_concentration: float = 100.0, stickiness: float | None = None) -> None:
        super().__init__(max_contexts, row_concentration, stickiness)
        with torch.no_grad():
            self._set_q_rows(self.expected_prior_rows())

    def model(self) -> ContextChain:
        """Sample the rows."""
        return self.sample_rows(self.expected_prior_rows())

    def guide(self) -> None:
        """Sample the rows from q."""
        self.sample_rows(self.q_rows())

    def expected_prior_rows(self) -> Float[Tensor, "rows K"]:
        """Return the rows' prior concentrations."""
        return self.prior_rows(torch.full_like(self.raw_rows[0], 1.0 / self.max_contexts))


def build_dirichlet(config: DirichletConfig, task: TaskSpec) -> ContextPrior:
    """Build the `dirichlet` prior."""
    check_settings(config, "prior")
    return DirichletPrior(task.max_contexts, config.row_concentration, config.stickiness)
