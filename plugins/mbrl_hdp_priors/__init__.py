"""Built-in priors over the context chain: `hdp`, `dirichlet`, `mle`."""

from __future__ import annotations

from collections.abc import Iterable

from mbrl_hdp.hooks import PluginSpec, hookimpl
from mbrl_hdp.inference.prior import ContextPrior
from mbrl_hdp_priors.dirichlet import DirichletConfig, DirichletPrior, build_dirichlet
from mbrl_hdp_priors.hdp import BetaHdpPrior, HdpConfig, HdpPrior, build_hdp
from mbrl_hdp_priors.mle import MleConfig, MlePrior, build_mle

__all__ = ["BetaHdpPrior", "DirichletPrior", "HdpPrior", "MlePrior", "mbrl_hdp_register_priors"]


@hookimpl
def mbrl_hdp_register_priors() -> Iterable[PluginSpec[ContextPrior]]:
    """Register the built-in priors."""
    yield PluginSpec("hdp", HdpConfig, build_hdp, "sticky hierarchical Dirichlet process (the paper's prior)")
    yield PluginSpec("dirichlet", DirichletConfig, build_dirichlet, "sticky Dirichlet rows without shared weights")
    yield PluginSpec("mle", MleConfig, build_mle, "no prior: the chain by maximum likelihood")
