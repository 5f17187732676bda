"""The place where a model's novelty alarm enters a stream; null in every answer of a model that offers none."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from mbrl_hdp.inference.model import ContextModel


@runtime_checkable
class StepAlarm(Protocol):
    """A sequential test that is fed with the log-likelihood of every step in every context.

    Attributes:
        evidence: evidence that no known context explains the last steps.
        false_alarms_per: steps between two false alarms, on average, at least; evidence this high raises the alarm.
    """

    evidence: float
    false_alarms_per: float

    def begin_episode(self) -> None:
        """Begin an episode."""

    def update(self, log_lik: Float[np.ndarray, " k"]) -> bool:
        """Take a step; return whether it raises an alarm."""


def alarm_of(model: ContextModel) -> StepAlarm | None:
    """Return a new alarm for one stream; None where the model has no calibrated one."""
    if getattr(model, "novelty", None) is None:
        return None
    made = model.novelty_alarm()
    return made if isinstance(made, StepAlarm) else None


def alarm_words(alarm: StepAlarm | None, is_raised: bool) -> dict[str, Any] | None:
    """Return the alarm of an answer: whether this step raised it, the evidence and where it is raised."""
    if alarm is None:
        return None
    return {"is_raised": is_raised, "evidence": float(alarm.evidence), "threshold": float(alarm.false_alarms_per)}
