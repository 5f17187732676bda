"""The paper's two distillation rules (Algorithm 2): by the stationary distribution (a), by the shared weights (b)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from mbrl_hdp.distil.distiller import Distiller
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.probability.markov import stationary
from mbrl_hdp.settings import check_settings, setting
from mbrl_hdp.types import ContextPosterior, TaskSpec


@dataclass
class ThresholdConfig:
    """Thresholds of a rule that keeps contexts by their mass.

    The paper's values, training / testing: cart-pole .1 / .1 (SAC) and .1 / .02 (MPC); intersection .05 / .05 and
    0 / 0; drone .02 / .02 and 0 / .02. The defaults suit all three environments as long as training does not distil
    from its first step on, where every context's mass is still about 1/K.
    """

    train_threshold: float = setting(
        0.05, "during training, contexts below this mass are masked; 0 keeps all", at_least=0.0, below=1.0
    )
    test_threshold: float = setting(
        0.02, "when the model is extracted, contexts below this mass are removed; 0 keeps all", at_least=0.0, below=1.0
    )


class ThresholdRule(Distiller):
    """Keep the contexts whose mass reaches a threshold, one for training and one for extraction.

    Mass is counted among the slots that are still active: by Theorem 1 (b) that is the mass in the reduced chain.
    """

    def __init__(self, train_threshold: float = 0.05, test_threshold: float = 0.02) -> None:
        self.train_threshold = train_threshold
        self.test_threshold = test_threshold

    def keep(self, posterior: ContextPosterior) -> Bool[Tensor, " K"]:
        """Keep every active context with mass >= threshold."""
        threshold = self.train_threshold if posterior.is_training else self.test_threshold
        mass = self.mass(posterior)
        if posterior.is_active is None:
            return mass >= threshold
        is_active = posterior.is_active.to(mass.device)
        active_mass = mass * is_active
        total = active_mass.sum()
        return is_active & ((active_mass / total if total > 0 else active_mass) >= threshold)

    @abstractmethod
    def mass(self, posterior: ContextPosterior) -> Float[Tensor, " K"]:
        """Return the vector v of Algorithm 2, which sums to 1."""


class StationaryRule(ThresholdRule):
    """Rule (a): v = v R, the long-run share of time in each context of the expected chain."""

    def mass(self, posterior: ContextPosterior) -> Float[Tensor, " K"]:
        """Return the stationary distribution, reached from `initial` where the chain is reducible."""
        return stationary(posterior.chain.transition, posterior.chain.initial)


class BetaRule(ThresholdRule):
    """Rule (b): v = the HDP's shared weights; no stationary distribution needed."""

    def mass(self, posterior: ContextPosterior) -> Float[Tensor, " K"]:
        """Return the shared weights.

        Raises:
            ConfigError: the prior has none.
        """
        if posterior.top_weights is None:
            raise ConfigError(
                "distillation=beta looks at the prior's shared weights, and this prior has none: "
                "use distillation=stationary, or prior=hdp"
            )
        return posterior.top_weights.detach()


def build_stationary(config: ThresholdConfig, task: TaskSpec) -> Distiller:  # noqa: ARG001 - thresholds are all it needs
    """Build the `stationary` rule."""
    check_settings(config, "distillation")
    return StationaryRule(config.train_threshold, config.test_threshold)


def build_beta(config: ThresholdConfig, task: TaskSpec) -> Distiller:  # noqa: ARG001 - thresholds are all it needs
    """Build the `beta` rule."""
    check_settings(config, "distillation")
    return BetaRule(config.train_threshold, config.test_threshold)
