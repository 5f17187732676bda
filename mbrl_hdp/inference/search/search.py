"""The search: from one context upwards, every further one accepted only on evidence that nothing simpler explains."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int
from threadpoolctl import threadpool_limits

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.search.evidence import enriched, gain_of
from mbrl_hdp.inference.search.exchange import exchanged
from mbrl_hdp.inference.search.features import Features, Library, linear_features, monomials
from mbrl_hdp.inference.search.labelling import label, part_of
from mbrl_hdp.inference.search.memory import past_steps
from mbrl_hdp.inference.search.moves import (
    Candidate,
    birth,
    drop_small,
    hold_longer,
    nearest_pairs,
    one_context,
    rebuild,
    settle,
    simpler,
    split,
    without,
)
from mbrl_hdp.inference.search.noise import CORRELATED
from mbrl_hdp.inference.search.noise_levels import NoiseLevels, noise_levels
from mbrl_hdp.inference.search.regions import gated_evidence, jump_share, region_share
from mbrl_hdp.inference.search.rows import Rows, make_rows
from mbrl_hdp.inference.search.stages import begin
from mbrl_hdp.inference.search.tails import HEAVY, far_share

FLOOR = 0.01
SHARP_FLOOR = 0.002
# Transitions that are searched at most; the rest is only labelled.
MOST_ROWS = 12_000
FORBID, ALLOW = "forbid", "allow"
# Every further context must gain this many nats a row over a model without it, whose noise is as rich as the data asks
# for ...
LEAST_GAIN = 0.03
# ... and this many over one larger head that chooses between the halves by state and action alone.
LEAST_BEYOND_GATE = 0.02
# ... unless the place decides: state and action explain this share of the entropy of leaving a half, and steps beside a
# switch speak for their half at least this much as all steps do, so the dynamics jump there.
LEAST_REGION = 0.3
LEAST_JUMP = 0.8
# A third or further context that depends on the place needs this share: with the others known, places are clear.
# Regions that heads are too small for had shares up to 0.44.
CLEAR_REGION = 0.5
# Where they speak for it less than this, a head is only too small: it hands over where another one is as good.
_SMOOTH = 0.4
# A gain within this many standard errors over episodes is chance.
_ERRORS = 3.0
_LEAST_CHEAP_GAIN = 0.015
# No richer noise makes up for a loss of so many nats a row.
_LARGE_GAIN = 1.0
# Of so many contexts all pairs are looked at.
_FEW_CONTEXTS = 4
# So many further contexts are tried at once where one alone is not enough.
_MOST_DEEPER = 4
# Contexts that act for fewer steps on average are outliers, not contexts.
_LEAST_STAY = 0.6


@dataclass(frozen=True)
class Verdict:
    """What was measured about one more context.

    Attributes:
        context: the context that was divided.
        gain: evidence per row over the model without the division.
        error: its standard error over episodes.
        beyond_gate: evidence per row over a head that chooses by state and action.
        jump: how much steps beside a switch speak for their half, relative to all steps; None: too few switches.
        region: larger share of the entropy of leaving a half that state and action explain.
        stay: smaller probability of staying of the two halves.
        is_accepted: whether the division stands.
    """

    context: int
    gain: float
    error: float
    beyond_gate: float
    jump: float | None
    region: float
    stay: float
    is_accepted: bool

    @property
    def lacks_gain_only(self) -> bool:
        """Whether the division is into hidden contexts that stay, and only its gain speaks against it."""
        return (
            _is_hidden(self.beyond_gate, self.jump)
            and not _is_part(self.jump, self.region)
            and self.stay > _LEAST_STAY
            and not self.is_accepted
        )


@dataclass(frozen=True)
class Structure:
    """Contexts that the search found.

    Attributes:
        probability: probability of every context, `N T K`; rows of zeros where nothing was observed.
        transition: chain, `K K`.
        evidence: cross-fitted log evidence per transition.
        regions: share of the entropy of leaving each context that state and action explain, cross-fitted.
        features: features of the heads.
        history: verdicts on all divisions that were tried.
        time_s: seconds of processor time.
        past_steps: earlier steps whose changes and inputs promise to explain what is left over (`memory.py`).
        noise_levels: where one context was found, calm and rough times of it; None: there are none, or too much data.
        far: share of the transitions that lie far from what every context predicts (`tails.py`).
        correlation: largest correlation of two columns' noise.
    """

    probability: Float[np.ndarray, "N T K"]
    transition: Float[np.ndarray, "K K"]
    evidence: float
    regions: Float[np.ndarray, " K"]
    features: Features
    history: list[Verdict]
    time_s: float
    past_steps: int = 0
    noise_levels: NoiseLevels | None = None
    far: float = 0.0
    correlation: float = 0.0

    @property
    def num_contexts(self) -> int:
        """Number of contexts."""
        return len(self.transition)

    @property
    def has_heavy_tails(self) -> bool:
        """Whether more transitions lie far away than normal noise leaves there."""
        return self.far > HEAVY

    @property
    def has_correlated_noise(self) -> bool:
        """Whether noise that is taken for independent would count evidence twice."""
        return self.correlation > CORRELATED

    @property
    def labels(self) -> Int[np.ndarray, "N T"]:
        """Most probable context of every step, -1 where nothing was observed."""
        return np.where(self.probability.sum(-1) > 0.0, self.probability.argmax(-1), -1)


@dataclass
class _Search:
    """The search under way: data, and the verdicts so far."""

    rows: Rows
    max_contexts: int
    regions: str
    history: list[Verdict] = field(default_factory=list)

    def run(self, current: Candidate) -> Candidate:
        """Divide contexts until no division is accepted."""
        while current.num_contexts < self.max_contexts:
            current = self._widened(current)
            better = self._divide(current)
            if better is None:
                break
            better = self._pruned(better)
            is_larger = better.num_contexts > current.num_contexts
            if not is_larger and better.evidence() < current.evidence() + LEAST_GAIN * len(self.rows):
                break  # the new context went again and the labels are no better
            current = better
        return current

    def _widened(self, current: Candidate) -> Candidate:
        """Add the features that divisions of the model would get, where they help."""
        more = current.features.with_terms(monomials(current.features.library, 3, 60))
        if len(more) == len(current.features):
            return current
        wide = self._with_features(current, more)
        return wide if wide.evidence() > current.evidence() + 0.01 * len(self.rows) else current

    def _with_features(self, current: Candidate, features: Features) -> Candidate:
        return settle(self.rows, features, current.state.weight, current.state.noise.floor, 6)

    def _divide(self, current: Candidate) -> Candidate | None:
        """Return the first division into hidden contexts, else the best one into contexts that depend on the place."""
        null, placed = enriched(self.rows, current), None
        doubtful: list[tuple[int, Candidate]] = []
        for context, division in self._divisions(current):
            child = self._child(current, division)
            if child is None:
                continue
            verdict = self._judge(current, null, child, context)
            self.history.append(verdict)
            if verdict.is_accepted and verdict.beyond_gate > LEAST_BEYOND_GATE:
                return child
            if verdict.is_accepted and (placed is None or child.evidence() > placed.evidence()):
                placed = child
            if verdict.lacks_gain_only:
                doubtful.append((context, child))
        if placed is None and current.num_contexts == 1:
            return self._restarted(current, null, doubtful)
        return placed

    def _divisions(self, current: Candidate) -> Iterator[tuple[int, Candidate]]:
        """Return divisions of the contexts, the largest loss first, then a context made of outliers."""
        for context in _by_potential(current):
            begin(f"{_found(current)}; trying a division of context {context}")
            yield context, split(self.rows, current, context)
        if current.num_contexts == 1 and not _is_explained(current):
            begin(f"{_found(current)}; trying divisions of simpler heads")
            yield from ((0, division) for division in self._imitated(current))
        begin(f"{_found(current)}; trying a context of outliers")
        born = birth(self.rows, current)
        if born is not None:
            yield born

    def _imitated(self, current: Candidate) -> Iterator[Candidate]:
        """Return divisions of simpler heads that make up for half of what these lost: did waves imitate a context?"""
        for fewer in simpler(self.rows, current):
            division = split(self.rows, fewer, 0)
            if division.evidence() - fewer.evidence() > 0.5 * (current.evidence() - fewer.evidence()):
                yield rebuild(self.rows, division)

    def _child(self, current: Candidate, division: Candidate) -> Candidate | None:
        """Return the division after longer EM, None where it gains nothing even with plain noise."""
        rows = self.rows
        child = hold_longer(rows, division)
        if child.evidence() - current.evidence() < _LEAST_CHEAP_GAIN * len(rows):
            return None
        again = hold_longer(rows, rebuild(rows, child))
        return exchanged(rows, again if again.evidence() > child.evidence() else child)

    def _restarted(
        self, current: Candidate, null: Candidate, doubtful: list[tuple[int, Candidate]]
    ) -> Candidate | None:
        """Run EM anew from the labels of rejected divisions; return the first that is accepted then.

        Noise with memory imitates contexts in part, so that one context with it may beat two whose EM stopped early.
        With nothing known but the labels, and the features of both models, EM often goes further.
        """
        halves: list[tuple[int, Candidate]] = []
        for context, child in doubtful:
            begin(f"{_found(current)}; trying a division of context {context} again")
            features = current.features.with_terms(child.features.terms)
            again = settle(self.rows, features, child.state.weight, child.state.noise.floor)
            again = exchanged(self.rows, hold_longer(self.rows, again))
            verdict = self._judge(current, null, again, context)
            if verdict.is_accepted:
                self.history.append(verdict)
                return again
            halves.append((context, again))
        deeper = (self._deeper(current, null, *half) for half in halves)
        return next((found for found in deeper if found is not None), None)

    def _deeper(self, current: Candidate, null: Candidate, context: int, child: Candidate) -> Candidate | None:
        """Divide the halves of a rejected division further; return the first model that is accepted, else None.

        Where many contexts differ by what they add (wind from several sides), noise with memory follows them better
        than any two contexts do, but not better than all of them.
        """
        for _ in range(min(_MOST_DEEPER, self.max_contexts - child.num_contexts)):
            begin(f"{_found(current)}; trying {child.num_contexts + 1} contexts at once")
            divisions = (split(self.rows, child, half) for half in _by_potential(child))
            further = next((found for each in divisions if (found := self._child(child, each)) is not None), None)
            if further is None:
                return None
            verdict = self._judge(current, null, further, context)
            self.history.append(verdict)
            if verdict.is_accepted:
                return further
            child = further
        return None

    def _judge(self, current: Candidate, null: Candidate, child: Candidate, context: int) -> Verdict:
        rows = self.rows
        rich = enriched(rows, child)
        union = current.features.with_terms(child.features.terms)
        if len(union) > len(current.features):
            other = enriched(rows, self._with_features(current, union))
            null = other if other.evidence() > null.evidence() else null
        gain, error = gain_of(rows, rich.state, null.state)
        pair = rich.num_contexts - 2, rich.num_contexts - 1
        beyond, jump = self._beyond_gate(rich, pair), jump_share(rows, rich.state, pair)
        region = self._region(rich, pair)
        stay = float(np.diagonal(rich.state.transition)[list(pair)].min())
        least = LEAST_GAIN + rows.targets.shape[1] * (rows.inputs.shape[1] + 1) / len(rows)
        is_accepted = (
            gain > least * (child.num_contexts - current.num_contexts)
            and gain > _ERRORS * error
            and _is_context(beyond, jump, region, LEAST_REGION if current.num_contexts == 1 else CLEAR_REGION)
            and not _is_part(jump, region)
            and stay > _LEAST_STAY
        )
        return Verdict(context, gain, error, beyond, jump, region, stay, bool(is_accepted))

    def _pruned(self, current: Candidate) -> Candidate:
        """Remove contexts that the others explain as well: small ones, pairs that became alike, halves by region."""
        rows = self.rows
        current = drop_small(rows, current)
        if current.num_contexts < 3:
            return current
        begin(f"{_found(current)}; trying merges")
        rich = enriched(rows, current)
        for pair in _pairs(current):
            fewer = without(rows, current, pair)
            if _is_context(self._beyond_gate(rich, pair), jump_share(rows, rich.state, pair), self._region(rich, pair)):
                if current.evidence() - fewer.evidence() > _LARGE_GAIN * len(rows):
                    continue
                fewer = hold_longer(rows, fewer)
                gain, error = gain_of(rows, rich.state, enriched(rows, fewer).state)
                if gain >= max(LEAST_GAIN, _ERRORS * error):
                    continue
            return self._pruned(rebuild(rows, fewer))
        return current

    def _region(self, rich: Candidate, pair: tuple[int, int]) -> float:
        """Return the larger share of the entropy of leaving one of two contexts that state and action explain."""
        labels = rich.state.weight.argmax(1)
        return max(region_share(self.rows, labels, half) for half in pair)

    def _beyond_gate(self, rich: Candidate, pair: tuple[int, int]) -> float:
        """Return the evidence per row over a head that chooses between two contexts by state and action."""
        if self.regions == ALLOW:
            return np.inf
        gated = gated_evidence(self.rows, rich.state, pair)
        return float(rich.state.evidence.sum() - gated.sum()) / len(self.rows)


def _is_context(beyond_gate: float, jump: float | None, region: float, least_region: float = LEAST_REGION) -> bool:
    """Return whether two contexts are more than regions that one head is too small for.

    Hidden contexts gain over a head that chooses by state and action. Contexts that depend on the place do not, but
    their dynamics jump where one ends. Noise that was sorted into two contexts jumps too, but nowhere in particular.

    Args:
        beyond_gate: nats a row over one larger head that chooses between them by state and action.
        jump: how much steps beside a switch speak for their context, relative to all steps; None: too few switches.
        region: share of the entropy of leaving one of them that state and action explain.
        least_region: what it must exceed where the place decides.
    """
    is_placed = jump is not None and jump > LEAST_JUMP and region > least_region
    return is_placed or _is_hidden(beyond_gate, jump)


def _is_hidden(beyond_gate: float, jump: float | None) -> bool:
    return beyond_gate > LEAST_BEYOND_GATE and (jump is None or jump > _SMOOTH)


def _is_part(jump: float | None, region: float) -> bool:
    """Return whether two halves may be parts of one context that depends on the place, as stripes do.

    One half hardly ever follows the other, and the place decides where each of them ends: another context lies between
    them. A gate by state and action is then never quite as good as the halves' own chain.
    """
    return jump is None and region > LEAST_REGION


def _found(current: Candidate) -> str:
    return f"{current.num_contexts} context{'s' if current.num_contexts > 1 else ''} found"


def _is_explained(current: Candidate) -> bool:
    """Return whether all residuals are near the floor."""
    noise = current.state.noise
    return bool(np.sqrt(np.diagonal(noise.covariance)).max() < 2.0 * noise.floor)


def _by_potential(current: Candidate) -> list[int]:
    """Return the contexts with something left to explain, the largest loss first."""
    state = current.state
    loss = np.array(
        [float((state.log_lik[:, k] * state.weight[:, k]).sum()) / len(state.weight) for k in range(state.num_contexts)]
    )
    peak = state.noise.peak() * state.weight.mean(0)
    potential = peak - loss
    return [int(k) for k in np.argsort(-potential) if potential[k] > LEAST_GAIN]


def _pairs(current: Candidate) -> list[tuple[int, int]]:
    """Return the pairs that a merge is tried on: all of few contexts, the likeliest of many."""
    if current.num_contexts > _FEW_CONTEXTS:
        return nearest_pairs(current) + _smallest(current)
    return nearest_pairs(current, _FEW_CONTEXTS * (_FEW_CONTEXTS - 1) // 2)


def _smallest(current: Candidate) -> list[tuple[int, int]]:
    """Return the smallest context and the one whose head predicts its rows best, the larger one first."""
    state = current.state
    small = int(state.weight.sum(0).argmin())
    fit = (state.log_lik * state.weight[:, small : small + 1]).sum(0)
    fit[small] = -np.inf
    return [(int(fit.argmax()), small)]


def find_contexts(
    data: Trajectories,
    max_contexts: int = 12,
    floor: float = FLOOR,
    sharp_floor: float = SHARP_FLOOR,
    regions: str = FORBID,
    angles: Sequence[int] = (),
) -> Structure:
    """Find number and labels of the contexts of `data`.

    Of more than 12,000 transitions a random part is searched; then all are labelled in one pass.

    Args:
        data: episodes; true contexts are never looked at.
        max_contexts: largest number of contexts.
        floor: smallest noise, in units of each target's spread.
        sharp_floor: where all residuals are near the floor, the search goes on with this one.
        regions: `forbid`: a context must explain more than one larger head that chooses between its halves by state
            and action could; `allow`: a context may be a region of the state space.
        angles: observations that are known to be angles in radians: features begin with their sine and cosine.

    Raises:
        ConfigError: if `regions` is neither.
    """
    if regions not in (FORBID, ALLOW):
        raise ConfigError(f"regions must be {FORBID!r} or {ALLOW!r}, got {regions!r}")
    # The matrices are small: with more threads BLAS takes several times as long, and its last digits differ.
    with threadpool_limits(1, user_api="blas"):
        return _find(data, max_contexts, floor, sharp_floor, regions, angles)


def _find(
    data: Trajectories, max_contexts: int, floor: float, sharp_floor: float, regions: str, angles: Sequence[int]
) -> Structure:
    started = time.process_time()
    part = part_of(data, MOST_ROWS)
    rows = make_rows(part, angles=angles)
    search = _Search(rows, max_contexts, regions)
    begin("choosing features for one context")
    first = one_context(rows, linear_features(Library(rows)), floor)
    pooled = first.state.mean_residual()
    current = search.run(first)
    if _is_explained(current) and sharp_floor < floor:
        begin(f"{_found(current)}; choosing features for less noise")
        current = search.run(_sharpened(rows, current, sharp_floor))
    begin(f"{_found(current)}; labelling")
    rich = enriched(rows, current)
    labels = rich.state.weight.argmax(1)
    is_one = current.num_contexts == 1 and max_contexts > 1 and part is data and not _is_explained(current)
    left = current.state.mean_residual()
    return Structure(
        probability=rows.pad(rich.state.weight) if part is data else label(data, rows, current),
        transition=rich.state.transition,
        evidence=rich.evidence() / len(rows),
        regions=np.array([region_share(rows, labels, context) for context in range(rich.num_contexts)]),
        features=rich.features,
        history=search.history,
        time_s=time.process_time() - started,
        past_steps=past_steps(rows, data.obs_dim, pooled, left),
        noise_levels=noise_levels(rows, left, current.state.noise.floor, rich.state.evidence) if is_one else None,
        far=far_share(rows, rich.state),
        correlation=rich.state.noise.largest_correlation(),
    )


def _sharpened(rows: Rows, current: Candidate, floor: float) -> Candidate:
    state = current.state.copy()
    state.noise.floor = floor
    return rebuild(rows, Candidate(state, current.features))
