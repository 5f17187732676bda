"""A model without its spurious contexts, for use after training: same beliefs and predictions, fewer slots."""

from __future__ import annotations

from dataclasses import replace

import torch

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.hooks import Registry, load_registry
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.prior import StartablePrior

# Pseudo-counts a row behind the reduced chain where nothing is known about the data.
_LEAST_STRENGTH = 1000.0


def without_spurious(model: ContextModel, registry: Registry | None = None) -> ContextModel:
    """Return a model of `num_contexts` slots that filters and predicts as `model` does.

    Its chain is the distilled one (Theorem 1), its heads are those of the kept slots, in their order. What is lost are
    the free slots: new contexts can be learned with `model` only.

    Raises:
        ConfigError: if the prior cannot be set to a given chain (it has no `start_from`).

    Example:
        >>> small = without_spurious(model)
        >>> small.task.max_contexts == model.num_contexts
        True
    """
    if not isinstance(model.prior, StartablePrior):
        raise ConfigError(
            f"prior {model.parts.prior.name!r} has no start_from(chain, strength), which removing contexts needs"
        )
    small = build_model(model.parts, replace(model.task, max_contexts=model.num_contexts), registry or load_registry())
    slots = model.slots
    with torch.no_grad():
        for mine, theirs in zip(small.dynamics.parameters(), model.dynamics.parameters(), strict=True):
            mine.copy_(theirs[slots])
        for own, shared in zip(small.dynamics.buffers(), model.dynamics.buffers(), strict=True):
            own.copy_(shared)
    assert isinstance(small.prior, StartablePrior)
    small.prior.start_from(model.chain, max(_LEAST_STRENGTH, float(model.report.num_transitions)))
    small.report, small.names = model.report, model.names
    small.is_settled = model.is_settled
    small.extract()
    small.use_phases(model.phases)
    if small.num_contexts != model.num_contexts:
        raise ConfigError(
            f"distillation {model.parts.distillation.name!r} drops contexts again that it had kept; "
            "lower distillation.test_threshold"
        )
    small.novelty = model.novelty
    return small
