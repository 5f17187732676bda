"""The place where a model's novelty alarm enters a stream; null in every answer of a model that offers none."""

from __future__ import annotations

from typing import Any

from mbrl_hdp.inference.alarm import NoveltyAlarm
from mbrl_hdp.inference.model import ContextModel


def alarm_of(model: ContextModel) -> NoveltyAlarm | None:
    """Return a new alarm for one stream; None where the model has no calibrated one."""
    return None if model.novelty is None else model.novelty_alarm()


def alarm_words(alarm: NoveltyAlarm | None, is_raised: bool) -> dict[str, Any] | None:
    """Return the alarm of an answer: whether this step raised it, and how far the evidence has come (1: alarm)."""
    if alarm is None:
        return None
    return {"is_raised": is_raised, "share": alarm.share, "false_alarms_per": alarm.false_alarms_per}
