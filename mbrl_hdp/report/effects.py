"""What each context does: gains of the actions, drift and noise, linearised at the data, in numbers and in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float

from mbrl_hdp.data.names import Names
from mbrl_hdp.inference.analysis import Analysis
from mbrl_hdp.inference.model import ContextModel

_MOST_ROWS = 3000
_MOST_WORDS = 4
# What is worth a word: a tenth of a gain, half of a column's usual change, noise by half.
_GAIN, _SHIFT, _NOISE = 0.1, 0.5, 1.5
_ALIKE = 0.9


@dataclass(frozen=True)
class Effect:
    """One context, linearised: change of obs = drift + feedback (obs - mean) + gain (act - mean) + noise.

    Attributes:
        context: its number.
        gain: change of every observation per unit of every action, `S A`.
        feedback: change of every observation per unit of every observation, `S S`.
        drift: change at the mean of the data, `S`.
        noise: standard deviation of what the model does not predict in its steps, `S`; NaN where it has too few.
        words: what differs from the most frequent context.
    """

    context: int
    gain: list[list[float]]
    feedback: list[list[float]]
    drift: list[float]
    noise: list[float]
    words: list[str]


def effects(model: ContextModel, found: Analysis, names: Names) -> list[Effect]:
    """Linearise every context at the observed transitions of the data.

    Args:
        model: the fitted model.
        found: `model.analyse(data)`.
        names: names of the columns.
    """
    obs, act, next_obs = found.data.transitions()
    labels = found.most_likely[found.data.is_observed]
    chosen = np.random.default_rng(0).permutation(len(obs))[:_MOST_ROWS]
    obs, act, next_obs, labels = obs[chosen], act[chosen], next_obs[chosen], labels[chosen]
    inputs = np.column_stack([np.ones(len(obs)), obs - obs.mean(0), act - act.mean(0)])
    maps, noises = [], []
    for column, slot in enumerate(model.slots.tolist()):
        predicted = _predict(model, obs, act, slot)
        maps.append(np.linalg.lstsq(inputs, predicted - obs, rcond=None)[0])
        mine = (next_obs - predicted)[labels == column]
        noises.append(mine.std(0) if len(mine) > 2 else np.full(obs.shape[1], np.nan))
    usual = int(np.argmax(model.stationary))
    scale = _Scale(_positive((next_obs - obs).std(0)), _positive(obs.std(0)), _positive(act.std(0)), act.mean(0))
    return [
        Effect(
            context=k,
            gain=maps[k][1 + obs.shape[1] :].T.tolist(),
            feedback=maps[k][1 : 1 + obs.shape[1]].T.tolist(),
            drift=maps[k][0].tolist(),
            noise=noises[k].tolist(),
            words=list(_words(k, usual, maps, noises, scale, names, float(model.stationary[k]))),
        )
        for k in range(len(maps))
    ]


@dataclass(frozen=True)
class _Scale:
    """Usual size of a change, of an observation and of an action, and the mean action."""

    change: Float[np.ndarray, " S"]
    obs: Float[np.ndarray, " S"]
    act: Float[np.ndarray, " A"]
    mean_act: Float[np.ndarray, " A"]


def _words(
    k: int,
    usual: int,
    maps: Sequence[np.ndarray],
    noises: Sequence[np.ndarray],
    scale: _Scale,
    names: Names,
    share: float,
) -> Iterator[str]:
    if k == usual:
        yield f"the usual one, {share:.0%} of the time"
        return
    said = [*_map_words(maps[k], maps[usual], scale, names), *_noise_words(noises[k], noises[usual], names)]
    if not said:
        # Nothing is large beside the usual changes: what is large beside the noise is the difference.
        finer = replace(scale, change=_positive(2.0 * np.nan_to_num(noises[usual])))
        said = _map_words(maps[k], maps[usual], finer, names)
    yield from said[:_MOST_WORDS]
    if not said:
        yield "differs from the usual one only in details; see the table"


def _map_words(
    mine: Float[np.ndarray, "X S"], usual: Float[np.ndarray, "X S"], scale: _Scale, names: Names
) -> list[str]:
    """Compare two linear maps of (1, obs, act) to changes: gains, drifts, feedback."""
    width = 1 + len(names.obs)
    gain, usual_gain = mine[width:], usual[width:]
    return [
        *_gain_words(gain, usual_gain, scale, names),
        *_shift_words(mine[0] - usual[0], scale.mean_act @ (gain - usual_gain), scale, names),
        *_feedback_words(mine[1:width], usual[1:width], scale, names),
    ]


def _gain_words(
    mine: Float[np.ndarray, "A S"], usual: Float[np.ndarray, "A S"], scale: _Scale, names: Names
) -> Iterator[str]:
    """Compare what an action does: as a factor where it acts in the same direction, else column by column."""
    for action, name in enumerate(names.act):
        before, now = usual[action] / scale.change, mine[action] / scale.change
        size = scale.act[action] * max(np.linalg.norm(before), np.linalg.norm(now))
        if size < _GAIN:
            continue
        factor = float(before @ now / max(before @ before, 1e-12))
        is_alike = np.linalg.norm(now - factor * before) <= np.sqrt(1 - _ALIKE**2) * max(
            np.linalg.norm(before), np.linalg.norm(now)
        )
        if is_alike and abs(factor) < 20:
            if abs(factor - 1.0) > _GAIN:
                yield f"{name} acts with {factor:.2f} of its usual effect"
            continue
        column = int(np.argmax(np.abs(now - before)))
        yield (
            f"{name} changes {names.obs[column]} by {_number(mine[action, column])} per unit and step, usually by "
            f"{_number(usual[action, column])}"
        )


def _shift_words(
    more: Float[np.ndarray, " S"], by_gain: Float[np.ndarray, " S"], scale: _Scale, names: Names
) -> Iterator[str]:
    """Compare the drifts; what follows from other gains at the mean action has been said with the gains."""
    difference, left = np.abs(more) / scale.change, np.abs(more - by_gain) / scale.change
    for column in np.argsort(-difference).tolist():
        if min(difference[column], left[column]) > _SHIFT:
            direction = "more" if more[column] > 0 else "less"
            yield f"{names.obs[column]} changes by {_number(abs(more[column]))} a step {direction} than usual"


def _feedback_words(
    mine: Float[np.ndarray, "S S"], usual: Float[np.ndarray, "S S"], scale: _Scale, names: Names
) -> Iterator[str]:
    difference = (mine - usual) * scale.obs[:, None] / scale.change
    for place in np.argsort(-np.abs(difference), axis=None):
        source, target = divmod(int(place), difference.shape[1])
        if abs(difference[source, target]) < _SHIFT:
            return
        yield (
            f"{names.obs[target]} changes by {_number(mine[source, target])} a step per unit of {names.obs[source]}, "
            f"usually by {_number(usual[source, target])}"
        )


def _noise_words(mine: Float[np.ndarray, " S"], usual: Float[np.ndarray, " S"], names: Names) -> Iterator[str]:
    for column, name in enumerate(names.obs):
        if mine[column] > 0 and usual[column] > 0:
            ratio = mine[column] / usual[column]
            if ratio > _NOISE or ratio < 1 / _NOISE:
                yield f"the noise of {name} is {ratio:.2g} times the usual"


def _predict(model: ContextModel, obs: np.ndarray, act: np.ndarray, slot: int) -> np.ndarray:
    states, acts = (torch.as_tensor(values, dtype=torch.float32) for values in (obs, act))
    with torch.no_grad():
        return model.dynamics.predict(states, acts, torch.full((len(obs),), slot)).double().numpy()


def _positive(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, 1.0)


def _number(value: float) -> str:
    return f"{value:.3g}"


def effect_lines(found: Sequence[Effect]) -> list[str]:
    """Return the words of every context, a line each."""
    return [f"context {effect.context}: {'; '.join(effect.words)}" for effect in found]


def effect_rows(found: Sequence[Effect], names: Names, most: int = 12) -> list[tuple[str, list[float]]]:
    """Return a row for each gain, feedback, drift and noise, a number a context; of many, those that differ most.

    Columns that never change have none.
    """
    moving = [
        (i, o) for i, o in enumerate(names.obs) if not all(e.drift[i] == 0.0 and e.noise[i] == 0.0 for e in found)
    ]
    rows = [
        *((f"gain of {a} on {o}", [e.gain[i][j] for e in found]) for j, a in enumerate(names.act) for i, o in moving),
        *((f"effect of {o} on itself", [e.feedback[i][i] for e in found]) for i, o in moving),
        *((f"drift of {o}", [e.drift[i] for e in found]) for i, o in moving),
        *((f"noise of {o}", [e.noise[i] for e in found]) for i, o in moving),
    ]
    if len(rows) > most:
        order = sorted(range(len(rows)), key=lambda n: -float(np.ptp(rows[n][1]) / (np.abs(rows[n][1]).max() + 1e-12)))
        rows = [rows[n] for n in sorted(order[:most])]
    return rows


def effect_table(found: Sequence[Effect], names: Names, most: int = 12) -> list[str]:
    """Return the numbers as lines: the rows of `effect_rows`, a column for each context."""
    rows = effect_rows(found, names, most)
    width = max(len(name) for name, _ in rows) + 2
    head = f"{'':<{width}}" + "".join(f"{f'context {e.context}':>12}" for e in found)
    return [head, *(f"{name:<{width}}" + "".join(f"{value:>12.3g}" for value in values) for name, values in rows)]
