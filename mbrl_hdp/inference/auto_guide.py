"""A guide for priors that bring none: independent normals on the unconstrained values of every site.

Pyro's own `AutoNormal` is not used here for two reasons that were tried: its parameters live in the global parameter
store under the same names for every model of a process, and `TraceMeanField_ELBO` drops the Jacobian of its
constrained sites, so that the "bound" exceeds the evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor, nn

from mbrl_hdp.errors import PluginError

_START_SCALE = 0.1


class AutoGuide(nn.Module):
    """A mean-field normal guide that owns its parameters and starts at the prior's mean.

    Every site x gets q(x) = that of transform(loc + scale * noise), as one `TransformedDistribution`: its density
    holds the Jacobian, and the ELBO estimates its KL term from the draw.
    """

    def __init__(self, model: Callable[[], Any]) -> None:
        super().__init__()
        self.raw_locs = nn.ParameterList()
        self.raw_scales = nn.ParameterList()
        self._sites: list[tuple[str, Any]] = []
        for name, fn in _latent_sites(model):
            transform = dist.transforms.biject_to(fn.support)
            loc = _unconstrained_mean(fn, transform)
            self._sites.append((name, transform))
            self.raw_locs.append(nn.Parameter(loc))
            self.raw_scales.append(nn.Parameter(torch.full_like(loc, _START_SCALE).log()))

    def forward(self) -> dict[str, Tensor]:
        """Sample every site from the variational distribution."""
        values = {}
        for (name, transform), loc, raw_scale in zip(self._sites, self.raw_locs, self.raw_scales, strict=True):
            base = dist.Normal(loc, raw_scale.exp()).to_event(loc.dim())
            values[name] = pyro.sample(name, dist.TransformedDistribution(base, [transform]))
        return values


def _latent_sites(model: Callable[[], Any]) -> list[tuple[str, Any]]:
    """Return the name and the distribution of every latent site, refusing what the guide cannot serve."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), poutine.block():
        torch.manual_seed(0)
        trace = poutine.trace(model).get_trace()
    sites = []
    for name in trace.stochastic_nodes:
        fn = trace.nodes[name]["fn"]
        if fn.batch_shape:
            raise PluginError(
                f"prior site {name!r} has batch shape {tuple(fn.batch_shape)}: declare it with "
                f".to_event({len(fn.batch_shape)}), or write a guide() of your own"
            )
        if fn.support.is_discrete:
            raise PluginError(f"prior site {name!r} is discrete: sum it out in model(), or write a guide() of your own")
        sites.append((name, fn))
    return sites


def _unconstrained_mean(fn: Any, transform: Any) -> Tensor:
    """Map the site's mean (a draw, where it has none in closed form) to the unconstrained space."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            value = fn.mean
        except NotImplementedError:
            value = fn.sample()
        if not bool(torch.isfinite(value).all()):
            value = fn.sample()
        return transform.inv(value).detach().clone()
