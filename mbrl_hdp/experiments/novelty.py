"""`train novelty=auto`: real episodes are watched by the model's novelty alarm; an alarm makes the next refit search.

Every fifth real episode is kept from the model's training and calibrates the alarm. The alarm then judges the episodes
of the next epoch, which the model has not seen either. An alarm brings a refit in that epoch, whether or not one is
due, and makes it search for new contexts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError

if TYPE_CHECKING:
    from mbrl_hdp.experiments.episodes import Record
    from mbrl_hdp.experiments.loop import Run

# One real episode in so many calibrates the alarm.
_EVERY = 5
# A false alarm costs no more than a search.
_FALSE_ALARMS_PER = 10_000


def is_watched(run: Run) -> bool:
    """Return whether the run has a model and an alarm for it."""
    return run.config.novelty == "auto" and run.agent.spec.needs_model


def num_alarms(run: Run, new: list[Record]) -> int | None:
    """Return the number of alarms in an epoch's episodes; None while there is no calibrated alarm."""
    if not is_watched(run) or run.model is None or run.model.novelty is None:
        return None
    episodes = Trajectories.from_episodes([record.episode for record in new])
    return int(run.model.novelty_alarm(None, _FALSE_ALARMS_PER).scan(run.model.analyse(episodes)).is_alarm.sum())


def training_data(run: Run) -> Trajectories:
    """Return the episodes that the model is trained on: all, or four in five where an alarm is calibrated."""
    assert run.data is not None
    return run.data.select(~_is_aside(run.data)) if is_watched(run) else run.data


def calibrate_alarm(run: Run) -> None:
    """Calibrate the new model's alarm on the episodes kept aside; without enough of them there is no alarm yet."""
    assert run.model is not None
    assert run.data is not None
    is_aside = _is_aside(run.data)
    if not is_watched(run) or not is_aside.any():
        return
    try:
        run.model.novelty_alarm(run.data.select(is_aside))
    except DataError:  # too few steps so far
        run.model.novelty = None


def _is_aside(data: Trajectories) -> np.ndarray:
    return np.arange(data.num_episodes) % _EVERY == _EVERY - 1
