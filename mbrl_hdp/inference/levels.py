"""Levels: a tree of merges, from the contexts of a model down to one, with the evidence that every merge loses.

Where data supports several answers (behaviours and their phases), "how many contexts?" is answered by the tree: a merge
that loses little joins contexts that hardly differ, one that loses much joins different ones.

Heads with a closed form are fitted to the steps of a merged context. Of other heads the better one of the pair is kept,
so that losses are upper bounds; `at_level` with data trains these on.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.dynamics import ClosedFormDynamics, ContextDynamics
from mbrl_hdp.inference.elbo import EpisodeBatch, step_log_lik
from mbrl_hdp.inference.episodes import EpisodeTensors, some_episodes
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.prior import StartablePrior
from mbrl_hdp.inference.starts import placed_chain
from mbrl_hdp.probability.hmm import smooth
from mbrl_hdp.types import ContextChain

# Transitions on which merges are compared, at most.
_MOST_TRANSITIONS = 4000
# With fewer episodes heads are scored on what they were fitted to.
_FEWEST_EPISODES = 4
# Pseudo-counts a row behind the chain of a level, at least.
_LEAST_STRENGTH = 1000.0
# Steps that the networks of a level are trained on.
_SHORT = 200
_OF_ALL_CONTEXTS = ("context_regions", "half_agreement")

Group = tuple[int, ...]


@dataclass(frozen=True)
class MergeLevel:
    """One level of the tree.

    Attributes:
        groups: contexts of the model that are one context here, in order of their first.
        loss: evidence per step lost against the model with all contexts, on episodes that heads were not fitted to.
        error: standard error of the loss over episodes.
        is_approximate: whether merged heads are the better one of the pair instead of fitted ones.
    """

    groups: tuple[Group, ...]
    loss: float
    error: float
    is_approximate: bool

    def coarser_than(self, other: MergeLevel) -> MergeLevel:
        """Return it with the groups of a finer level as the contexts."""
        number = {member: context for context, group in enumerate(other.groups) for member in group}
        groups = tuple(tuple(sorted({number[member] for member in group})) for group in self.groups)
        return dataclasses.replace(self, groups=groups, loss=self.loss - other.loss)


def read_levels(entries: list[dict[str, Any]]) -> list[MergeLevel]:
    """Return the levels that a model's report holds as plain words and numbers."""
    return [MergeLevel(**entry | {"groups": tuple(tuple(group) for group in entry["groups"])}) for entry in entries]


def add_levels(model: ContextModel, data: Trajectories) -> None:
    """Compute the tree of merges and the heads of all merged contexts, and keep them with the model."""
    levels = merge_levels(model, data)
    comparison = _Comparison(model, data)
    values = dict(model.dynamics.named_parameters())
    heads: dict[str, list[Tensor]] = {name: [] for name in values}
    for group in _new_groups(levels):
        for name, head in comparison.head(group).items():
            heads[name].append(head)
    model.level_heads = {name: torch.stack(nodes) for name, nodes in heads.items() if nodes}
    model.report.levels = [dataclasses.asdict(level) for level in levels]


def merge_levels(model: ContextModel, data: Trajectories) -> list[MergeLevel]:
    """Merge, again and again, the two contexts that lose least; return all levels, the model's own first.

    Args:
        model: the model whose contexts are merged.
        data: episodes; a part of many is looked at.
    """
    comparison = _Comparison(model, some_episodes(data, _MOST_TRANSITIONS))
    groups = comparison.singles
    levels = [comparison.level(groups)]
    while len(groups) > 1:
        groups = comparison.merged(groups)
        levels.append(comparison.level(groups))
    return levels


def best_merge(model: ContextModel, data: Trajectories) -> MergeLevel:
    """Return the level with one context fewer than a model of two or more has."""
    comparison = _Comparison(model, some_episodes(data, _MOST_TRANSITIONS))
    return comparison.level(comparison.merged(comparison.singles))


def _merged(groups: tuple[Group, ...], first: int, second: int) -> tuple[Group, ...]:
    others = [group for number, group in enumerate(groups) if number not in (first, second)]
    return tuple(sorted([*others, tuple(sorted(groups[first] + groups[second]))]))


class _Comparison:
    """Evidence of partitions of a model's contexts, on given episodes."""

    def __init__(self, model: ContextModel, data: Trajectories) -> None:
        self.model = model
        self.singles: tuple[Group, ...] = tuple((context,) for context in range(model.num_contexts))
        self.data = EpisodeTensors.of(data, device=model.device)
        self.batch = self.data.batch()
        own = model.analyse(data)
        found = smooth(model.chain, own.log_lik, self.batch.lengths)
        self.share, self.moves, self.starts = found.marginals, found.expected_transitions, found.expected_initial
        self.is_closed_form = isinstance(model.dynamics, ClosedFormDynamics)
        is_even = torch.arange(len(self.data), device=model.device) % 2 == 0
        self.halves = [is_even, ~is_even] if len(self.data) >= _FEWEST_EPISODES else [is_even | ~is_even]
        self.columns: dict[Group, Tensor] = {}
        if not self.is_closed_form:
            self.columns = {single: own.log_lik[..., single[0]] for single in self.singles}

    def level(self, groups: tuple[Group, ...]) -> MergeLevel:
        """Return a level with what it loses against all contexts."""
        lost = self.evidence(self.singles) - self.evidence(groups)
        error = float(lost.std()) * np.sqrt(len(lost)) / self.data.num_transitions
        is_approximate = not self.is_closed_form and len(groups) < self.model.num_contexts
        return MergeLevel(groups, float(lost.sum()) / self.data.num_transitions, error, is_approximate)

    def merged(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """Merge the two groups that lose least."""
        pairs = itertools.combinations(range(len(groups)), 2)
        return max((_merged(groups, *pair) for pair in pairs), key=lambda choice: float(self.evidence(choice).sum()))

    def evidence(self, groups: tuple[Group, ...]) -> Float[np.ndarray, " N"]:
        """Return the log evidence of every episode if the contexts of a group are one."""
        log_lik = torch.stack([self._column(group) for group in groups], -1)
        chain = grouped_chain(self.starts, self.moves, groups)
        return smooth(chain, log_lik, self.batch.lengths).log_evidence.double().cpu().numpy()

    def _column(self, group: Group) -> Float[Tensor, "N T"]:
        """Return the log density of every step in a merged context."""
        if group not in self.columns:
            self.columns[group] = self._fitted(group) if self.is_closed_form else self._better(group)
        return self.columns[group]

    def _fitted(self, group: Group) -> Float[Tensor, "N T"]:
        """Return densities of a head fitted to the group's steps, each half of the episodes by the other half."""
        weight = self.share[..., list(group)].sum(-1)
        column, slot = torch.zeros_like(weight), torch.zeros(1, dtype=torch.long, device=weight.device)
        for scored in self.halves:
            head = copy.deepcopy(self.model.dynamics)
            fit_group(head, self.batch, weight * (~scored if len(self.halves) > 1 else scored)[:, None], 0)
            with torch.no_grad():
                column[scored] = step_log_lik(head, self.batch, slot)[scored, :, 0]
        return column

    def _better(self, group: Group) -> Float[Tensor, "N T"]:
        return self.columns[(self._best_member(group),)]

    def _best_member(self, group: Group) -> int:
        """Return the context whose head explains the steps of a group best."""
        weight = self.share[..., list(group)].sum(-1)
        return max(group, key=lambda member: float((self.columns[(member,)] * weight).sum()))

    def head(self, group: Group) -> dict[str, Tensor]:
        """Return the parameters of a merged context's head: fitted to all its steps, or those of the best member."""
        dynamics = self.model.dynamics
        if self.is_closed_form:
            dynamics, slot = copy.deepcopy(dynamics), 0
            fit_group(dynamics, self.batch, self.share[..., list(group)].sum(-1), slot)
        else:
            slot = int(self.model.slots[self._best_member(group)])
        return {name: value[slot].detach().clone() for name, value in dynamics.named_parameters()}


def fit_group(dynamics: ContextDynamics, batch: EpisodeBatch, weight: Float[Tensor, "N T"], slot: int) -> None:
    """Fit one head in closed form to steps that count `weight` times; the others stay."""
    assert isinstance(dynamics, ClosedFormDynamics)
    is_used = batch.carries_likelihood()
    share = weight.new_zeros(int(is_used.sum()), dynamics.max_contexts)
    share[:, slot] = weight[is_used]
    dynamics.fit_heads(batch.obs[:, :-1][is_used], batch.act[is_used], batch.obs[:, 1:][is_used], share)


def grouped_chain(starts: Float[Tensor, " k"], moves: Float[Tensor, "k k"], groups: tuple[Group, ...]) -> ContextChain:
    """Return the chain of merged contexts from expected counts: those of a group are summed, then normalised."""
    member = torch.zeros(len(starts), len(groups), dtype=starts.dtype, device=starts.device)
    for number, group in enumerate(groups):
        member[list(group), number] = 1.0
    # Without a move from a context nothing is known; it stays.
    counts = member.T @ moves @ member + 1e-6 * torch.eye(len(groups), dtype=starts.dtype, device=starts.device)
    initial = member.T @ starts
    return ContextChain(initial / initial.sum(), counts / counts.sum(-1, keepdim=True))


def one_fewer(model: ContextModel, data: Trajectories) -> ContextModel:
    """Return a model of one context fewer, its heads not trained on."""
    again = copy.deepcopy(model)
    add_levels(again, data)
    return _merged_model(again, read_levels(again.report.levels), 1)


def at_level(model: ContextModel, num_contexts: int, data: Trajectories | None = None) -> ContextModel:
    """Return a model with fewer contexts; see `ContextModel.at_level`."""
    if data is not None:
        model = copy.deepcopy(model)
        add_levels(model, data)
    levels = read_levels(model.report.levels)
    if not levels:
        raise ConfigError("this model was saved without levels: a refit makes none; pass data, at_level(n, data)")
    if not 1 <= num_contexts <= len(levels):
        raise ConfigError(f"num_contexts={num_contexts}: this model has levels of 1 to {len(levels)} contexts")
    if not isinstance(model.prior, StartablePrior):
        raise ConfigError(f"prior {model.parts.prior.name!r} has no start_from(chain, strength), which levels need")
    number = len(levels) - num_contexts
    small = _merged_model(model, levels, number)
    if small.num_contexts != num_contexts:
        raise ConfigError(
            f"distillation {model.parts.distillation.name!r} drops contexts of this level; lower "
            "distillation.test_threshold"
        )
    return _trained_on(small, data) if data is not None and levels[number].is_approximate else small


def _merged_model(model: ContextModel, levels: list[MergeLevel], number: int) -> ContextModel:
    """Return the model of a level: a merged context takes the slot of its first member."""
    small, level = copy.deepcopy(model), levels[number]
    places = model.slots[torch.as_tensor([group[0] for group in level.groups], device=model.device)]
    nodes = {group: node for node, group in enumerate(_new_groups(levels))}
    with torch.no_grad():
        for slot, group in zip(places.tolist(), level.groups, strict=True):
            for name, value in small.dynamics.named_parameters():
                if len(group) > 1:
                    value[slot] = model.level_heads[name][nodes[group]].to(value)
        shares = torch.as_tensor(model.stationary, device=model.device).to(model.chain.transition)
        chain = grouped_chain(model.chain.initial, shares[:, None] * model.chain.transition, level.groups)
        assert isinstance(small.prior, StartablePrior)
        strength = max(_LEAST_STRENGTH, float(model.report.num_transitions))
        small.prior.start_from(placed_chain(chain, places, model.task.max_contexts), strength)
        small.is_active = torch.zeros_like(model.is_active)
        small.is_active[places] = True
    small.extract()
    rest = [dataclasses.asdict(each.coarser_than(level)) for each in levels[number:]]
    # What was found about the contexts does not hold for merged ones.
    search = {key: value for key, value in model.report.search.items() if key not in _OF_ALL_CONTEXTS}
    duration = {} if small.phases is None else model.report.duration
    small.report = dataclasses.replace(model.report, levels=rest, search=search, duration=duration)
    small.level_heads = {name: value[number:] for name, value in model.level_heads.items() if number < len(value)}
    return small


def _new_groups(levels: list[MergeLevel]) -> list[Group]:
    """Return the group that each merge makes."""
    return [next(iter(set(level.groups) - set(above.groups))) for above, level in itertools.pairwise(levels)]


def _trained_on(model: ContextModel, data: Trajectories) -> ContextModel:
    """Train a model with the better heads of merged contexts on for a short while, its contexts as they are."""
    from mbrl_hdp.inference.fit import fit
    from mbrl_hdp.inference.schedule import FitConfig

    config = FitConfig(start="random", num_steps=_SHORT, polish_steps=0)
    trained = fit(data, warm_start=model, seed=model.report.seed, config=config, progress=False)
    trained.report = model.report
    return trained
