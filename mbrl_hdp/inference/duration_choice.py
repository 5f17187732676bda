"""Which duration a model gets: the one asked for, or the one that predicts held-out episodes clearly better."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.hooks import Registry
from mbrl_hdp.inference.duration import ContextDuration, SeveralDurations
from mbrl_hdp.inference.duration_fit import Episodes, Learned, converge, learn_phases
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.model import ContextModel, Part
from mbrl_hdp.probability import semi_markov
from mbrl_hdp.types import TaskSpec

PLAIN = "geometric"
# What a fit learns where nothing is asked for.
STANDARD = "auto"
# Nats that another duration must gain over all held-out episodes, and how many standard errors.
_LEAST_GAIN = 3.0
_NUM_ERRORS = 2.0
_FOLDS = 2
# With fewer episodes these are cut into pieces for the comparison.
_FEWEST_EPISODES = 8
# Larger logs are compared, and the phases counted, on a part of them: steps times contexts, and steps of its pieces.
_MOST_WORK = 100_000
_LONGEST_PIECE = 1000


@dataclass(frozen=True)
class Compared:
    """One candidate in a comparison.

    Attributes:
        name: of the duration.
        gain: log-likelihood that it gains over the first candidate on held-out episodes, summed.
        error: standard error of the gain.
    """

    name: str
    gain: float
    error: float

    @property
    def is_clear(self) -> bool:
        """Whether it is better than the first one by more than chance."""
        return self.gain > max(_NUM_ERRORS * self.error, _LEAST_GAIN)


def learn_duration(model: ContextModel, data: Trajectories, part: Part, registry: Registry) -> None:
    """Learn how long the contexts of a model last, and let it use that from now on.

    Nothing happens for `geometric`, which the model's own chain is, nor for a model of one context. `auto` compares;
    where it settles for geometric, the chain is estimated anew from this data, without the pull of the model's prior.

    Args:
        model: a fitted model without a duration, on the CPU.
        data: the episodes that it was learned from.
        part: which duration.
        registry: plugins to choose from.
    """
    model.parts = dataclasses.replace(model.parts, duration=part)
    if part.name == PLAIN or model.num_contexts < 2:
        model.report.duration = {"name": PLAIN}
        return
    chosen = choose_duration(part, _episodes(model, data), model.task, registry)
    model.use_phases(chosen.learned.chain)
    model.report.duration = chosen.entry()


@dataclass(frozen=True)
class Chosen:
    """The duration that was taken.

    Attributes:
        name: of the duration.
        learned: its chain over (context, phase).
        compared: the candidates; empty where one was asked for.
    """

    name: str
    learned: Learned
    compared: list[Compared]

    def entry(self) -> dict[str, Any]:
        """Return what the report of a fit says about it."""
        return {
            "name": self.name,
            "sizes": list(self.learned.chain.sizes),
            "start": self.learned.start,
            "compared": [dataclasses.asdict(found) for found in self.compared],
        }


def choose_duration(part: Part, data: Episodes, task: TaskSpec, registry: Registry) -> Chosen:
    """Learn a duration; of several candidates the first one, unless another is clearly better."""
    several = part.config.candidates() if isinstance(part.config, SeveralDurations) else [(part.name, part.config)]
    families = [(name, registry.build_duration(name, task, config)) for name, config in several]
    part_of_data = _within_work(data)
    compared = compare_durations(families, part_of_data) if len(families) > 1 else []
    clear = [place for place, found in enumerate(compared) if found.is_clear]
    best = max(clear, key=lambda place: compared[place].gain) if clear else 0
    name, family = families[best]
    learned = learn_phases(family, part_of_data)
    return Chosen(name, learned if part_of_data is data else converge(family, data, learned), compared)


def duration_part(registry: Registry, asked: str | Part | None, before: ContextModel | None) -> Part:
    """Return which duration is learned: the one asked for, else that of the model before, else auto.

    A model from before there were durations counts as geometric.

    Raises:
        PluginError: with the nearest names, if no such duration is registered.
    """
    if asked is None:
        asked = STANDARD if before is None else before.parts.duration or PLAIN
    if isinstance(asked, Part):
        registry.get("duration", asked.name)
        return asked
    return Part(asked, registry.get("duration", asked).spec.config())


def without_phases(model: ContextModel | None) -> ContextModel | None:
    """Return a model whose contexts last as its prior's chain says: a refit starts from it."""
    if model is None or model.phases is None:
        return model
    plain = copy.deepcopy(model)
    plain.phases = None
    plain.extract()
    return plain


def compare_durations(families: Sequence[tuple[str, ContextDuration]], data: Episodes) -> list[Compared]:
    """Learn every candidate on a half of the episodes and score it on the other, both ways."""
    pieces = _pieces(data)
    scores = [_held_out(family, pieces) for _, family in families]
    gains = [score - scores[0] for score in scores]
    return [
        Compared(name, float(gain.sum()), float(gain.std() * np.sqrt(len(gain))))
        for (name, _), gain in zip(families, gains, strict=True)
    ]


def _held_out(family: ContextDuration, data: Episodes) -> Float[np.ndarray, " N"]:
    """Return the log-likelihood of every episode under what was learned from the other half."""
    fold = np.arange(len(data.lengths)) % _FOLDS
    score = np.zeros(len(fold))
    for number in range(_FOLDS):
        chain = learn_phases(family, data.chosen(np.flatnonzero(fold != number))).chain
        own = data.chosen(np.flatnonzero(fold == number))
        score[fold == number] = semi_markov.filter_contexts(chain, own.log_lik, own.lengths).log_evidence.numpy()
    return score


def _episodes(model: ContextModel, data: Trajectories) -> Episodes:
    found = model.analyse(data)
    lengths = EpisodeTensors.of(data).batch().lengths
    return Episodes(found.log_lik.double(), lengths, found.most_likely)


def _within_work(data: Episodes) -> Episodes:
    """Return the data, or of a large log pieces that are spread evenly over it."""
    num_contexts = data.log_lik.shape[-1]
    if int(data.lengths.sum()) * num_contexts <= _MOST_WORK:
        return data
    pieces = _cut(data, -(-data.labels.shape[1] // _LONGEST_PIECE))
    mean_steps = float(pieces.lengths.double().mean())
    num = max(1, round(_MOST_WORK / (num_contexts * mean_steps)))
    if num >= len(pieces.lengths):
        return pieces
    return pieces.chosen(np.linspace(0, len(pieces.lengths) - 1, num).round().astype(np.int64))


def _pieces(data: Episodes) -> Episodes:
    """Cut few episodes into pieces, so that halves of them can be compared."""
    num_episodes = len(data.lengths)
    return data if num_episodes >= _FEWEST_EPISODES else _cut(data, -(-2 * _FEWEST_EPISODES // num_episodes))


def _cut(data: Episodes, num_pieces: int) -> Episodes:
    """Cut every episode into so many pieces of one length."""
    num_steps = data.labels.shape[1]
    length = -(-num_steps // num_pieces)
    padding = num_pieces * length - num_steps
    log_lik = torch.nn.functional.pad(data.log_lik, (0, 0, 0, padding)).reshape(-1, length, data.log_lik.shape[-1])
    labels = np.pad(data.labels, ((0, 0), (0, padding)), constant_values=-1).reshape(-1, length)
    begins = torch.arange(num_pieces) * length
    lengths = (data.lengths[:, None] - begins).clamp(0, length).reshape(-1)
    is_used = (lengths > 0).numpy()
    return Episodes(log_lik, lengths, labels).chosen(np.flatnonzero(is_used))
