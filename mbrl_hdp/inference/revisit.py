"""Refits may change the contexts: candidates with one more or one fewer than the model that is gone on from.

A refit goes on from the contexts of a model, and distillation only removes. So after every refit a quick look at it
(`residual_split`) decides whether to try more: with two contexts merged, where they are as good as one, and, where two
heads in place of one would gain evidence, from what the structure search finds in the data as it is now. Held-out
episodes choose among these and the plain refit.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from scipy.optimize import linear_sum_assignment

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.levels import one_fewer
from mbrl_hdp.inference.model import ContextModel, Part
from mbrl_hdp.inference.prior import StartablePrior
from mbrl_hdp.inference.residual_split import Look, look_at
from mbrl_hdp.inference.schedule import SEARCHED, Schedule
from mbrl_hdp.inference.search import Structure
from mbrl_hdp.inference.search.features import MOST_FEATURES
from mbrl_hdp.inference.starts import Contexts, Start
from mbrl_hdp.inference.terms import term_texts

# Evidence per step that a division must promise for a search to be worth its time.
LEAST_GAIN = 0.015
# The search is repeated when the data, or what a division promises, has grown by this factor since the last one.
_GROWTH = 1.5

Search = Callable[[], Structure | None]
Build = Callable[[Part], ContextModel]


@dataclass(frozen=True)
class Revisit:
    """Further candidates of a refit.

    Attributes:
        starts: the candidates; none where a quick look finds nothing to change.
        structure: what the search found; None where it did not run.
        entry: what the fit's report keeps about it.
    """

    starts: list[Start] = field(default_factory=list)
    structure: Structure | None = None
    entry: dict[str, Any] = field(default_factory=dict)


def revisit(
    model: ContextModel,
    data: Trajectories,
    before: dict[str, Any],
    schedule: Schedule,
    search: Search,
    build: Build,
    is_forced: bool = False,
) -> Revisit:
    """Return the candidates that compete with a plain refit.

    Args:
        model: the plain refit.
        data: episodes that it was trained on.
        before: `report.search` of the model before it.
        schedule: schedule of a refit.
        search: runs the structure search on the data.
        build: returns a fresh model with a given transition model.
        is_forced: search even where the quick look promises nothing.
    """
    look = look_at(model, data)
    size = int(data.is_observed.sum())
    last = before.get("last_search")
    starts = []
    if look.merge is not None and isinstance(model.prior, StartablePrior):
        fewer = one_fewer(model, data)
        starts.append(Start("one fewer", model.parts.dynamics, schedule, is_refit=True, model=fewer))
    structure = search() if is_forced or _is_due(look, size, last) else None
    if structure is not None:
        starts.append(_regrouped(model, data, structure, build))
        last = {"gain": look.gain, "num_transitions": size}
    entry = {"look": {"gain": look.gain, "merge": look.merge, "cpu_time_s": look.cpu_time_s}, "last_search": last}
    return Revisit(starts, structure, entry)


def _is_due(look: Look, num_transitions: int, last: dict[str, Any] | None) -> bool:
    """Return whether a search is worth its time: a division promises a gain, and more is known than at the last one."""
    if look.gain < LEAST_GAIN:
        return False
    if last is None:
        return True
    return bool(look.gain > _GROWTH * last["gain"] or num_transitions >= _GROWTH * last["num_transitions"])


def _regrouped(model: ContextModel, data: Trajectories, structure: Structure, build: Build) -> Start:
    """Return the candidate that starts from the contexts of a search.

    A context that the model knew keeps its slot and its head. A new one takes a free slot, with a copy of the head that
    explained most of its steps.
    """
    places, parents = _places(model, model.most_likely(data), structure)
    part = _with_terms(model.parts.dynamics, structure)
    begun = with_copied_heads(model, places, parents) if part == model.parts.dynamics else build(part)
    contexts = Contexts(structure.probability, structure.transition, places)
    return Start("search", part, SEARCHED, contexts, model=begun)


def with_copied_heads(
    model: ContextModel, places: Int[np.ndarray, " n"], parents: Int[np.ndarray, " n"]
) -> ContextModel:  # fmt: skip
    """Return a copy of a model in which every slot of `places` has the head of the slot of `parents`."""
    begun = copy.deepcopy(model)
    with torch.no_grad():
        for values in begun.dynamics.parameters():
            values[torch.as_tensor(places)] = values[torch.as_tensor(parents)].clone()
    return begun


def _places(
    model: ContextModel, labels: Int[np.ndarray, "N T"], structure: Structure
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Return the slot of every context of the search, and the slot whose head explained most of its steps."""
    is_known = (labels >= 0) & (structure.labels >= 0)
    shared = np.zeros((structure.num_contexts, model.num_contexts))
    np.add.at(shared, (structure.labels[is_known], labels[is_known]), 1.0)
    kept = model.slots.cpu().numpy()
    parents = kept[shared.argmax(1)]
    places = np.full(structure.num_contexts, -1)
    rows, columns = linear_sum_assignment(-shared)
    places[rows] = kept[columns]
    free = [slot for slot in range(model.task.max_contexts) if slot not in places]
    places[places < 0] = free[: int((places < 0).sum())]
    return places, np.where(np.isin(places, kept), places, parents)


def _with_terms(part: Part, structure: Structure) -> Part:
    """Return a transition model with the features of the search beside its own, where it has such settings.

    Where these would be too many, with those of the search alone.
    """
    known = {each.name for each in dataclasses.fields(part.config)}
    if "terms" not in known:
        return part
    found = term_texts(structure.features)
    both = list(dict.fromkeys([*part.config.terms, *found]))
    terms = both if len(both) <= MOST_FEATURES else found
    return part if terms == part.config.terms else Part(part.name, dataclasses.replace(part.config, terms=terms))
