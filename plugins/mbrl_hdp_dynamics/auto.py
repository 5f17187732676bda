"""`auto`: the transition model that predicts held-out episodes best; `fit` compares, this says what."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.settings import setting
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.delta_mlp import DeltaMlpConfig
from mbrl_hdp_dynamics.linear import LinearConfig
from mbrl_hdp_dynamics.sparse import SparseConfig


def _free_networks() -> DeltaMlpConfig:
    """Return networks that may fit what nobody prepared: a weak weight prior, a low floor of the noise."""
    return DeltaMlpConfig(weight_std=1.0, std_floor=0.02)


@dataclass
class AutoConfig:
    """Settings of `auto`."""

    models: list[str] = setting(
        ["sparse", "linear", "delta_mlp"],
        "what is compared",
        choices=("sparse", "linear", "delta_mlp"),
    )
    heavy_tails: bool = setting(
        True, "compare sparse heads with Student t noise as well, where the search leaves residuals with heavy tails"
    )
    correlated_noise: bool = setting(
        True, "compare sparse heads with correlated noise as well, where the noise that the search leaves is correlated"
    )
    sparse: SparseConfig = field(default_factory=SparseConfig)
    linear: LinearConfig = field(default_factory=LinearConfig)
    delta_mlp: DeltaMlpConfig = field(default_factory=_free_networks)

    @property
    def angle_columns(self) -> list[int]:
        """Columns of obs that the user named as angles."""
        return self.delta_mlp.angle_columns

    def candidates(self) -> list[tuple[str, Any]]:
        """Return name and settings of every model.

        Raises:
            ConfigError: if there is none.
        """
        if not self.models:
            raise ConfigError("dynamics.models is empty; name at least one of sparse, linear, delta_mlp")
        return [(name, getattr(self, name)) for name in self.models]

    def for_noise(self, kind: str) -> list[tuple[str, Any]]:
        """Return name and settings of the models that are compared where noise has heavy tails or is correlated."""
        is_wanted = {"student": self.heavy_tails, "full": self.correlated_noise}[kind]
        is_new = "sparse" in self.models and self.sparse.noise != kind
        return [("sparse", replace(self.sparse, noise=kind))] if is_wanted and is_new else []


def build_auto(config: AutoConfig, task: TaskSpec) -> ContextDynamics:  # noqa: ARG001
    """Raise: only a comparison on data decides.

    Raises:
        ConfigError: always.
    """
    raise ConfigError("dynamics=auto is decided by `fit`; name one of sparse, linear, delta_mlp instead")
