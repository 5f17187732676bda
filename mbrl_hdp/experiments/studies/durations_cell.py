"""One cell of `durations`: learn how long contexts last, compare hazards and mean stays with those of the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs import MarkovChain
from mbrl_hdp.experiments.studies.cartpole_fit import episodes, fit_settings, held_out_episodes, parts_of
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.duration import Phases, labelled_stays, split_phases
from mbrl_hdp.inference.duration_choice import choose_duration, without_phases
from mbrl_hdp.inference.duration_fit import Episodes
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.inference.model import ContextModel, Part
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.probability import semi_markov
from mbrl_hdp.probability.hmm import filter_contexts, viterbi
from mbrl_hdp.types import ContextChain, PhaseChain, TaskSpec

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings

COOL_OFF, SWITCH = 5, 0.2
# Distance of the readings of two contexts in standard deviations: the best label of a single step is right in 93 %.
_SEPARATION = 3.0


def run_cell(settings: Settings) -> Results:
    """Learn durations from cart-pole with learned heads, or from readings whose likelihood is known."""
    return _with_fit(settings) if settings["variant"] == "cartpole" else _with_known_heads(settings)


def _with_known_heads(settings: Settings) -> Results:
    cool_off = COOL_OFF if settings["variant"] == "cool-off" else 1
    chain = MarkovChain.symmetric(2, SWITCH, cool_off)
    truth = _walk(chain, settings, 0)
    log_lik, lengths = _read(truth, settings, 1)
    sticky = ContextChain(torch.full((2,), 0.5), torch.tensor([[0.9, 0.1], [0.1, 0.9]]))
    data = Episodes(log_lik, lengths, viterbi(sticky, log_lik, lengths).numpy())
    registry = load_registry()
    auto = Part("auto", registry.get("duration", "auto").spec.config())
    found = choose_duration(auto, data, TaskSpec(max_contexts=2), registry)
    phases = found.learned.chain
    return _compared(split_phases(phases), truth, [0, 1]) | found.entry() | _held_out(phases, chain, settings)


def _held_out(learned: PhaseChain, chain: MarkovChain, settings: Settings) -> Results:
    """Return how evidence and labels of other episodes differ from those of the true chain, which has its counter."""
    path = _walk(chain, settings, 2)
    log_lik, lengths = _read(path, settings, 3)
    exact = ContextChain(*(torch.from_numpy(part) for part in chain.with_counter()))
    width = len(exact.initial) // chain.num_contexts
    by_state = log_lik.repeat_interleave(width, -1)
    own = semi_markov.filter_contexts(learned, log_lik, lengths).log_evidence
    gain = own - filter_contexts(exact, by_state, lengths).log_evidence
    labels = semi_markov.viterbi(learned, log_lik, lengths).numpy()
    best = viterbi(exact, by_state, lengths).numpy() // width
    return {"evidence": _mean_of(gain.numpy()), "labels": _mean_of((labels == path).mean(1) - (best == path).mean(1))}


def _mean_of(differences: Float[np.ndarray, " N"]) -> dict[str, float]:
    """Return the mean over episodes and its standard error."""
    return {"mean": float(differences.mean()), "error": float(differences.std() / np.sqrt(len(differences)))}


def _read(path: Int[np.ndarray, "N T"], settings: Settings, stream: int) -> tuple[Tensor, Tensor]:
    """Return log-likelihoods of one noisy reading a step, and the lengths of the episodes."""
    draw = np.random.default_rng([settings["seed"], stream])
    readings = _SEPARATION * path + draw.normal(size=path.shape)
    log_lik = torch.tensor(-0.5 * (readings[..., None] - _SEPARATION * np.arange(2)) ** 2)
    return log_lik, torch.full((len(path),), path.shape[1])


def _with_fit(settings: Settings) -> Results:
    words = fit_settings(5, settings["seed"])
    words["num_trajectories"] = settings["num_episodes"]
    data, registry = episodes(words), load_registry()
    parts = parts_of(registry, words)
    model = fit(data, parts.prior, parts.distillation, parts.dynamics, max_contexts=5, seed=settings["seed"],
                duration="auto", config=FitConfig(), progress=False, registry=registry)  # fmt: skip
    assert data.context is not None
    to_true = align(model.most_likely(data), data.context).to_true.tolist()
    if model.phases is None:
        return {"name": "one context"}
    found = _compared(split_phases(model.phases), data.context, to_true) | model.report.duration
    return found | _against_plain(model, held_out_episodes(words))


def _against_plain(model: ContextModel, held_out: Trajectories) -> Results:
    """Return how evidence and labels of other episodes differ from those of the same model with the prior's chain."""
    plain = without_phases(model)
    assert plain is not None
    assert held_out.context is not None
    gain = model.log_likelihood(held_out) - plain.log_likelihood(held_out)
    right = [_is_right(each.most_likely(held_out), held_out.context).mean(1) for each in (model, plain)]
    return {"evidence": _mean_of(gain), "labels": _mean_of(right[0] - right[1])}


def _is_right(labels: Int[np.ndarray, "N T"], truth: Int[np.ndarray, "N T"]) -> Bool[np.ndarray, "N T"]:
    return align(labels, truth).to_true[labels] == truth


def _walk(chain: MarkovChain, settings: Settings, stream: int) -> Int[np.ndarray, "N T"]:
    """Draw paths of contexts; the counter is full at the beginning."""
    initial, transition = chain.with_counter()
    width = len(initial) // chain.num_contexts
    draw = np.random.default_rng([settings["seed"], stream])
    rows = np.concatenate([initial[None], transition]).cumsum(-1)
    state = np.full(settings["num_episodes"], -1)
    path = np.zeros((len(state), settings["num_steps"]), int)
    for step in range(path.shape[1]):
        state = (rows[state + 1] <= draw.random(len(state))[:, None]).sum(-1)
        path[:, step] = state // width
    return path


def _compared(phases: list[Phases], truth: Int[np.ndarray, "N T"], to_true: list[int]) -> Results:
    """Return hazards and mean stays by context: learned, and of the true stays."""
    stays, longest = labelled_stays(truth), int(labelled_stays(truth).lengths.max())
    rows = []
    for own, context in zip(phases, to_true, strict=False):
        if context < 0:
            continue
        seen = stays.of(context, has_first=True)
        survival = own.survival(max(longest, 2000))
        hazard = 1.0 - survival[1:] / np.maximum(survival[:-1], 1e-300)
        known = np.where(seen.is_ended, seen.lengths, seen.lengths - 1)
        at_risk = (known[:, None] >= np.arange(1, longest + 1)).sum(0)
        late = slice(COOL_OFF - 1, longest)
        rows.append(
            {
                "inside": float(hazard[: COOL_OFF - 1].max()),
                "after": float((at_risk * hazard[:longest])[late].sum() / at_risk[late].sum()),
                "true_after": float((seen.is_ended & (seen.lengths >= COOL_OFF)).sum() / at_risk[late].sum()),
                "mean": float(survival.sum()),
                "true_mean": _true_mean(seen.lengths, seen.is_ended),
            }
        )
    return {"contexts": rows}


def _true_mean(lengths: Int[np.ndarray, " n"], is_ended: np.ndarray) -> float:
    """Return Kaplan and Meier's mean stay; beyond the longest stay the last hazards go on."""
    times = np.arange(1, int(lengths.max()) + 1)
    at_risk = (np.where(is_ended, lengths, lengths - 1)[:, None] >= times).sum(0)
    ended = np.bincount(lengths[is_ended], minlength=len(times) + 1)[1:]
    survival = np.cumprod(1.0 - ended / np.maximum(at_risk, 1))
    late = slice(COOL_OFF - 1, None)
    hazard = ended[late].sum() / at_risk[late].sum()
    return float(1.0 + survival[: COOL_OFF - 1].sum() + survival[COOL_OFF - 2] * (1.0 - hazard) / hazard)
