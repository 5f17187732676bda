"""The past as further inputs, for logs in which a part of the state is not recorded or an input acts late."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float

from mbrl_hdp.data.names import Names
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError
from mbrl_hdp.types import TaskSpec


def with_past(data: Trajectories, steps: int) -> Trajectories:
    """Add the changes and actions of the last `steps` steps to the actions of every step.

    A model that is learned from this predicts the same observations, but knows what happened before: a velocity that
    no sensor measures shows in the last change of the position, a valve with dead time in its earlier openings. The
    first `steps` transitions of an episode have no such past: they count as not observed, and still get a label.

    Args:
        data: episodes, each longer than `steps`.
        steps: how many earlier steps; 0 returns the data.

    Raises:
        DataError: if no episode is long enough.

    Example:
        >>> model = mbrl_hdp.fit(data.with_past(2))
    """
    if steps < 0:
        raise DataError(f"with_past: the number of steps must be at least 0, got {steps}")
    if steps == 0:
        return data
    if data.lengths.max() <= steps:
        raise DataError(f"past={steps}: no episode has more than {steps} transitions; use fewer steps")
    changes = data.obs[:, 1:] - data.obs[:, :-1]
    act = np.concatenate([data.act, *(_ago(part, n) for n in range(1, steps + 1) for part in (changes, data.act))], -1)
    names = data.names or Names.numbered(data.obs_dim, data.act_dim)
    return data.with_actions(act, with_past_names(names, steps))


def with_past_names(names: Names, steps: int) -> Names:
    """Return names with those of the further inputs, in order: `temp_change_ago_1`, `valve_ago_1`, ..."""
    past = [
        name
        for n in range(1, steps + 1)
        for name in (*(f"{each}_change_ago_{n}" for each in names.obs), *(f"{each}_ago_{n}" for each in names.act))
    ]
    return dataclasses.replace(names, act=(*names.act, *past))


def past_width(obs_dim: int, act_dim: int, steps: int) -> int:
    """Return the width of actions with the past of so many steps, of which the present one has `act_dim`."""
    return act_dim + steps * (obs_dim + act_dim)


def recorded_width(task: TaskSpec) -> int:
    """Return the width of an action as it was recorded, without the past that the model's actions contain."""
    return (task.act_dim - task.past * task.obs_dim) // (task.past + 1)


class PastWindow:
    """What `with_past` adds, while a system runs: the last changes and actions, NaN where an episode has none yet.

        window = PastWindow.of(model.task)
        window.present[:] = act             # the action as it was recorded
        window.row                          # the same with its past: what the model takes
        window.move(obs, next_obs)          # after the step

    Nothing is allocated after the start: two rows are filled by turns.

    Args:
        obs_dim: width of an observation.
        act_dim: width of an action as it was recorded.
        steps: how many earlier steps, at least 1.
        batch: sizes of leading axes, for many systems at once.
        names: names of the recorded columns; None: they are numbered.

    Attributes:
        label: what messages call an action.
    """

    def __init__(
        self, obs_dim: int, act_dim: int, steps: int, batch: tuple[int, ...] = (), names: Names | None = None
    ) -> None:
        self.obs_dim, self.act_dim, self.steps, self.batch = obs_dim, act_dim, steps, batch
        self.names = names or Names.numbered(obs_dim, act_dim)
        columns = ", ".join(self.names.act) or "no column"
        self.label = f"act ({columns}, as recorded; the last {steps} steps are remembered)"
        shape = (*batch, past_width(obs_dim, act_dim, steps))
        self._now, self._then = (_Row(np.full(shape, np.nan), obs_dim, act_dim) for _ in range(2))

    @staticmethod
    def of(task: TaskSpec, names: Names | None = None, batch: tuple[int, ...] = ()) -> PastWindow | None:
        """Return the window of a model; None where it looks at no past."""
        return PastWindow(task.obs_dim, recorded_width(task), task.past, batch, names) if task.past else None

    @property
    def row(self) -> Float[np.ndarray, "*batch W"]:
        """The present action with its past; the next `move` overwrites it."""
        return self._now.whole

    @property
    def present(self) -> Float[np.ndarray, "*batch A"]:
        """The action of the present step, to be written to; the next `move` overwrites it."""
        return self._now.present

    @property
    def past(self) -> Float[np.ndarray, "*batch P"]:
        """The changes and actions before the present step, the latest first; may be written to."""
        return self._now.past

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the row is missing; a step with a row that is not complete carries no information."""
        return bool(np.isfinite(self.row.sum()))

    def clear(self) -> None:
        """Begin an episode, which has no past."""
        self.row.fill(np.nan)

    def fresh(self) -> PastWindow:
        """Return another window of the same sizes, cleared."""
        return PastWindow(self.obs_dim, self.act_dim, self.steps, self.batch, self.names)

    def move(self, obs: Float[np.ndarray, "*batch S"], next_obs: Float[np.ndarray, "*batch S"]) -> None:
        """Let the step from `obs` to `next_obs` with the present action become the latest of the past."""
        now, then = self._now, self._then
        np.subtract(next_obs, obs, out=then.last_change)
        then.last_act[...] = now.present
        then.older[...] = now.newer
        self._now, self._then = then, now


class _Row:
    """Views of an action with its past, made once: they are what a step would allocate."""

    def __init__(self, whole: Float[np.ndarray, "*batch W"], obs_dim: int, act_dim: int) -> None:
        step = obs_dim + act_dim
        self.whole, self.present, self.past = whole, whole[..., :act_dim], whole[..., act_dim:]
        self.last_change, self.last_act = self.past[..., :obs_dim], self.past[..., obs_dim:step]
        self.newer, self.older = self.past[..., :-step], self.past[..., step:]


def _ago(values: np.ndarray, steps: int) -> np.ndarray:
    """Return the values of so many steps earlier, NaN before the first."""
    earlier = np.full_like(values, np.nan)
    earlier[:, steps:] = values[:, : values.shape[1] - steps]
    return earlier
