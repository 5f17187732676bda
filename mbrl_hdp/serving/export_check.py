"""Whether an exported model returns the numbers of the model that it came from, step by step over an episode."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mbrl_hdp.data.past import PastWindow
from mbrl_hdp.errors import ExportError
from mbrl_hdp.inference.density_table import PLAIN, DensityTable
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.serving.export import table_of
from mbrl_hdp.serving.loading import Served

TOLERANCE = 1e-5
NUM_STEPS = 400
_EPISODE = 50
_MISSING_EVERY = 17
Array = NDArray[Any]
Step = tuple[Array, Array]


@dataclass(frozen=True)
class Differences:
    """Largest differences over all steps; of the log evidence in units of max(1, its size), None where there is none.

    Attributes:
        num_steps: steps that were compared.
        belief: of filtered distributions and beliefs.
        log_evidence: of the log evidence.
        action: of the actions.
    """

    num_steps: int
    belief: float | None
    log_evidence: float | None
    action: float | None

    def largest(self) -> float:
        """Return the largest of all."""
        return max((value for value in (self.belief, self.log_evidence, self.action) if value is not None), default=0.0)


def check_export(served: Served, folder: Path, num_steps: int = NUM_STEPS, seed: int = 0) -> Differences:
    """Run the exported files beside the model on episodes that the model itself imagines, some values missing.

    Raises:
        ExportError: if a number differs by more than 1e-5.
    """
    runner = _runner(folder)
    found = _compare(served, runner, num_steps, seed)
    if not found.largest() <= TOLERANCE:
        raise ExportError(
            f"the exported model in {folder} differs from the model by {found.largest():.2g}, more than {TOLERANCE:g}; "
            "do not use it, and tell us"
        )
    return found


def _runner(folder: Path) -> Any:
    """Import run.py as it was written, as a stranger would."""
    spec = importlib.util.spec_from_file_location("mbrl_hdp_exported_run", folder / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        return module.Runner(folder)
    finally:
        del sys.modules[spec.name]


def _compare(served: Served, runner: Any, num_steps: int, seed: int) -> Differences:
    online = None if served.model is None else served.model.online_filter()
    beliefs, evidences, actions = [0.0], [0.0], [0.0]
    for number, (act, obs) in enumerate(_steps(served, num_steps, seed)):
        if number % (_EPISODE + 1) == 0:
            runner.reset(obs)
            if online is not None:
                online.reset(obs)
        else:
            runner.step(obs, act)
            if online is not None:
                online.update(act, obs)
                evidences.append(_evidence_difference(online.log_evidence, runner.log_evidence))
        if online is not None:
            pairs = (online.belief, runner.belief), (online.filtered, runner.filtered)
            beliefs.append(max(_largest(one, two) for one, two in pairs))
        if runner.action is not None:
            actions.append(_largest(_action(served, obs, runner.belief), runner.action))
    has_filter, has_policy = online is not None, served.policy is not None and served.sees != "truth"
    return Differences(
        num_steps,
        max(beliefs) if has_filter else None,
        max(evidences) if has_filter else None,
        max(actions) if has_policy else None,
    )


def _largest(one: Array, two: Array) -> float:
    difference = np.abs(np.asarray(one) - np.asarray(two))
    return float("inf") if np.isnan(difference).any() else float(difference.max(initial=0.0))


def _evidence_difference(one: float, two: float) -> float:
    if np.isnan(one) or np.isnan(two) or np.isinf(one) or np.isinf(two):
        return 0.0 if str(one) == str(two) else float("inf")
    return abs(one - two) / max(1.0, abs(one))


def _action(served: Served, obs: Array, belief: Array | None) -> Array:
    assert served.policy is not None
    beside = np.zeros(served.policy.codec.max_contexts)
    if served.model is not None and served.sees == "belief":
        beside[served.model.slots.numpy()] = belief
    act: Array = served.policy.select_action(served.policy.codec.pack(obs, beside), evaluate=True)
    return act


def _steps(served: Served, num_steps: int, seed: int) -> Iterator[Step]:
    """Return episodes as (action before, observation); the action of a first observation does not count."""
    rng = np.random.default_rng(seed)
    if served.model is None:
        for _ in range(num_steps):
            yield rng.uniform(-1, 1, served.act_dim), rng.normal(size=served.obs_dim)
        return
    for number, (act, obs) in enumerate(imagined(served.model, num_steps, rng)):
        shown = obs.copy()
        if number % _MISSING_EVERY == _MISSING_EVERY - 1:
            shown[number % len(shown)] = np.nan
        yield act, shown


def imagined(model: ContextModel, num_steps: int, rng: np.random.Generator) -> Iterator[Step]:
    """Draw episodes from the model itself, from starts (and pasts) as spread as the data that it was learned on."""
    centre, spread = _column_scales(table_of(model))
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    width, slots = model.task.obs_dim, model.slots
    context = 0
    obs = np.zeros(width)
    window = PastWindow.of(model.task)
    for number in range(num_steps):
        drawn = centre + spread * rng.normal(size=len(centre))
        act = wide = drawn[width:]
        is_start = number % (_EPISODE + 1) == 0 or not (np.abs(obs) < 1e6).all()
        if window is not None:
            act = window.present[:] = wide[: window.act_dim]
            if is_start:
                window.past[:] = wide[window.act_dim :]
            wide = window.row
        if is_start:
            context, obs = _draw(rng, model.initial), drawn[:width]
        else:
            rows = [torch.as_tensor(row[None], dtype=torch.float32) for row in (obs, wide)]
            with torch.no_grad():
                next_obs = model.dynamics.sample(rows[0], rows[1], slots[context : context + 1], generator)[0]
            before, obs = obs, next_obs.double().numpy()
            if window is not None:
                window.move(before, obs)
            weights = model.transition[context]
            context = int(rng.choice(model.num_contexts, p=weights / weights.sum()))
        yield act, obs


def _draw(rng: np.random.Generator, weights: Array) -> int:
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def _column_scales(table: DensityTable) -> tuple[Array, Array]:
    """Return centre and spread of the columns of (obs, act), as far as the scaling of the terms says; else 0 and 1."""
    terms, count = table.terms, len(table.terms.kind)
    width = table.obs_dim + table.act_dim
    centre, spread = np.zeros(width), np.ones(width)
    for place, row in enumerate(terms.index):
        factors = row[row < count]
        if len(factors) != 1 or terms.kind[factors[0]] != PLAIN or not terms.term_inverse[place] > 0:
            continue
        factor, column = factors[0], terms.column[factors[0]]
        inverse = terms.inverse_scale[factor]
        if inverse > 0:
            column += table.obs_dim - table.body_width if column >= table.body_width else 0
            centre[column] = terms.centre[factor] + terms.term_centre[place] / inverse
            spread[column] = 1.0 / (inverse * terms.term_inverse[place])
    return centre, spread
