"""`auto`: the duration that predicts held-out episodes best; `fit` compares, this says what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.duration import ContextDuration
from mbrl_hdp.settings import setting
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_durations.families import GeometricConfig, MinimumConfig, NegativeBinomialConfig


@dataclass
class AutoDurationConfig:
    """Settings of `auto`."""

    durations: list[str] = setting(
        ["minimum", "negative_binomial"],
        "what is compared with geometric, which is taken unless another one is clearly better",
        choices=("minimum", "negative_binomial"),
    )
    geometric: GeometricConfig = field(default_factory=GeometricConfig)
    minimum: MinimumConfig = field(default_factory=MinimumConfig)
    negative_binomial: NegativeBinomialConfig = field(default_factory=NegativeBinomialConfig)

    def candidates(self) -> list[tuple[str, Any]]:
        """Return name and settings of every duration, geometric first."""
        return [(name, getattr(self, name)) for name in ("geometric", *self.durations)]


def build_auto(config: AutoDurationConfig, task: TaskSpec) -> ContextDuration:  # noqa: ARG001
    """Raise: only a comparison on data decides.

    Raises:
        ConfigError: always.
    """
    raise ConfigError("duration=auto is decided by `fit`; name one of geometric, minimum, negative_binomial instead")
