"""Durations are recovered from simulated contexts; on Markov contexts `auto` settles for geometric."""

import numpy as np
import pytest
import scipy.stats
import torch

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference import duration_choice
from mbrl_hdp.inference.duration import Phases, Stays, labelled_stays, split_phases
from mbrl_hdp.inference.duration_choice import choose_duration, compare_durations
from mbrl_hdp.inference.duration_fit import Episodes, learn_phases
from mbrl_hdp.inference.parts import Part
from mbrl_hdp.probability import hmm, semi_markov
from mbrl_hdp.probability.phases import context_chain
from mbrl_hdp.testing import check_duration
from mbrl_hdp.types import ContextChain, PhaseChain, TaskSpec
from mbrl_hdp_durations import (
    AutoDurationConfig,
    Geometric,
    Minimum,
    MinimumConfig,
    NegativeBinomial,
    NegativeBinomialConfig,
    mbrl_hdp_register_durations,
)

MOVES = np.array([[0.0, 0.7, 0.3], [0.5, 0.0, 0.5], [0.2, 0.8, 0.0]])
FAMILIES = {
    "geometric": Geometric(),
    "minimum": Minimum(MinimumConfig(max_steps=15)),
    "negative_binomial": NegativeBinomial(NegativeBinomialConfig(max_phases=10)),
}
STAYS = {
    "geometric": lambda k, draw: draw.geometric([0.05, 0.1, 0.2][k]),
    "minimum": lambda k, draw: [4, 0, 8][k] + draw.geometric([0.2, 0.1, 0.3][k]),
    "negative_binomial": lambda k, draw: sum(draw.geometric([0.2, 0.3, 0.5][k]) for _ in range([1, 4, 8][k])),
}
MEANS = {"minimum": (9.0, 10.0, 8.0 + 1 / 0.3), "negative_binomial": (5.0, 4 / 0.3, 16.0)}
SIZES = {"geometric": (1, 1, 1), "minimum": (5, 1, 9), "negative_binomial": (1, 4, 8)}


def simulate(kind, seed, is_fresh=True, num_episodes=40, num_steps=120, separation=4.0):
    """Contexts with one noisy reading a step; labels come from a plain sticky chain."""
    draw = np.random.default_rng(seed)
    truth = np.zeros((num_episodes, num_steps), int)
    for row in truth:
        skipped = 0 if is_fresh else int(draw.integers(100, 200))
        path, context = [], int(draw.integers(3))
        while len(path) < num_steps + skipped:
            path += [context] * STAYS[kind](context, draw)
            context = int(draw.choice(3, p=MOVES[context]))
        row[:] = path[skipped : skipped + num_steps]
    reading = truth * separation + draw.normal(size=truth.shape)
    log_lik = torch.tensor(-0.5 * (reading[..., None] - np.arange(3) * separation) ** 2)
    lengths = torch.full((num_episodes,), num_steps)
    sticky = ContextChain(torch.full((3,), 1 / 3), torch.full((3, 3), 0.05) + 0.85 * torch.eye(3))
    return Episodes(log_lik, lengths, hmm.viterbi(sticky, log_lik, lengths).numpy())


@pytest.mark.parametrize("kind", ["minimum", "negative_binomial"])
@pytest.mark.parametrize("is_fresh", [True, False])
def test_sizes_starts_and_mean_stays_are_recovered(kind, is_fresh):
    data = simulate(kind, seed=3, is_fresh=is_fresh)
    found = learn_phases(FAMILIES[kind], data)
    assert np.abs(np.subtract(found.chain.sizes, SIZES[kind])).max() <= 1
    assert found.start == ("fresh" if is_fresh else "running")
    means = 1 / (1 - context_chain(found.chain).transition.diagonal().numpy())
    np.testing.assert_allclose(means, MEANS[kind], rtol=0.12)
    np.testing.assert_allclose(found.chain.moves, MOVES, atol=0.12)


def drawn_from_the_prior(draw, family, num_episodes=30, num_steps=80):
    """Minimum stays as their prior has them, contexts that follow them, and one clear reading a step."""
    sizes, late = draw.integers(1, 6, size=3), draw.beta(1.5, 1.5, size=3)
    early = draw.beta(family._early + 1.0, family._late + 1.0, size=3)
    truth = np.zeros((num_episodes, num_steps), int)
    for row in truth:
        context, lasted = int(draw.integers(3)), 0
        for step in range(num_steps):
            row[step], lasted = context, lasted + 1
            if draw.random() < (late if lasted >= sizes[context] else early)[context]:
                context, lasted = int(draw.choice(3, p=MOVES[context])), 0
    reading = truth * 6.0 + draw.normal(size=truth.shape)
    log_lik = torch.tensor(-0.5 * (reading[..., None] - np.arange(3) * 6.0) ** 2)
    return sizes, late, early, Episodes(log_lik, torch.full((num_episodes,), num_steps), truth)


def test_what_is_learned_is_calibrated_against_draws_from_the_prior():
    """As in simulation-based calibration: true probabilities fall uniformly into their Beta posteriors."""
    draw, family = np.random.default_rng(17), Minimum(MinimumConfig(max_steps=8))
    num_right, ranks = 0, {"late": [], "early": []}
    for _ in range(12):
        sizes, late, early, data = drawn_from_the_prior(draw, family)
        chain = learn_phases(family, data).chain
        counts = PhaseChain.of(semi_markov.smooth(chain, data.log_lik, data.lengths).counts, chain.sizes)
        for k, (own, count) in enumerate(zip(split_phases(chain), split_phases(counts), strict=True)):
            if len(own.leave) != sizes[k]:
                continue
            num_right += 1
            # The mode is the learned probability, the counts and pseudo-counts say how sure it is.
            total = 1.0 + count.leave[-1] + count.stay[-1]
            ranks["late"].append(beta_distribution(own.leave[-1], total).cdf(late[k]))
            if sizes[k] > 1:
                total = 100.0 + count.leave[:-1].sum() + count.advance[:-1].sum()
                ranks["early"].append(beta_distribution(own.leave[0], total).cdf(early[k]))
    assert num_right >= 32  # of 36; a context that is left in every step has no size to find
    for name, own in ranks.items():
        assert scipy.stats.kstest(own, "uniform").pvalue > 0.01, name


def beta_distribution(mode, total):
    return scipy.stats.beta(1.0 + total * mode, 1.0 + total * (1.0 - mode))


def test_the_right_duration_is_clearly_better_and_none_is_on_markov_contexts():
    for kind in ("minimum", "negative_binomial"):
        compared = compare_durations(list(FAMILIES.items()), simulate(kind, seed=5))
        best = max(compared, key=lambda each: each.gain)
        assert (best.name, best.is_clear) == (kind, True)
    clear = [
        each.is_clear
        for seed in range(3)
        for each in compare_durations(list(FAMILIES.items()), simulate("geometric", seed, num_episodes=12))
    ]
    assert not any(clear)


def test_few_long_episodes_are_cut_into_pieces():
    data = simulate("minimum", seed=7, num_episodes=2, num_steps=900)
    compared = {each.name: each for each in compare_durations(list(FAMILIES.items()), data)}
    assert compared["minimum"].is_clear


def test_a_large_log_is_compared_on_a_part_and_learned_from_all(monkeypatch):
    """One long episode: the comparison sees pieces within the limit, the stays are those of the whole log."""
    data = simulate("minimum", seed=11, num_episodes=1, num_steps=6000)
    seen = []

    def spy(families, part):
        seen.append(part)
        return compare_durations(families, part)

    monkeypatch.setattr(duration_choice, "_MOST_WORK", 6000)
    monkeypatch.setattr(duration_choice, "_LONGEST_PIECE", 200)
    monkeypatch.setattr(duration_choice, "compare_durations", spy)
    config = AutoDurationConfig(minimum=MinimumConfig(max_steps=15))
    chosen = choose_duration(Part("auto", config), data, TaskSpec(max_contexts=3), load_registry())
    assert chosen.name == "minimum"
    assert seen[0].labels.shape == (10, 200)
    # Pieces from all over the log, as they are there.
    begins = np.linspace(0, 29, 10).round().astype(int) * 200
    for row, begin in enumerate(begins):
        torch.testing.assert_close(seen[0].log_lik[row], data.log_lik[0, begin : begin + 200])
    evidence = {
        name: semi_markov.filter_contexts(learned.chain, data.log_lik, data.lengths).log_evidence.sum()
        for name, learned in (("part", learn_phases(FAMILIES["minimum"], seen[0])), ("all", chosen.learned))
    }
    assert evidence["all"] > evidence["part"] + 1.0
    means = 1 / (1 - context_chain(chosen.learned.chain).transition.diagonal().numpy())
    np.testing.assert_allclose(means, MEANS["minimum"], rtol=0.1)


def test_data_within_the_limit_is_used_as_it_is():
    data = simulate("minimum", seed=3)
    assert duration_choice._within_work(data) is data


@pytest.mark.parametrize("name", FAMILIES)
def test_built_in_durations_conform(name):
    check_duration(lambda: FAMILIES[name])


class _Forgetful(Minimum):
    def update(self, counts: Phases) -> Phases:
        return super().update(Phases(counts.stay, counts.advance, counts.leave * 0.5))


def test_the_check_sees_an_m_step_that_is_no_maximum():
    with pytest.raises(AssertionError, match="not the maximum"):
        check_duration(lambda: _Forgetful(MinimumConfig()))


def test_stays_of_labels_know_which_were_cut():
    stays = labelled_stays(np.array([[0, 0, 1, 0], [1, 1, -1, -1]]))
    assert stays.context.tolist() == [0, 1, 0, 1]
    assert stays.lengths.tolist() == [2, 1, 1, 2]
    assert stays.is_cut.tolist() == [False, False, True, True]
    assert stays.is_first.tolist() == [True, False, False, True]


def test_likelihood_of_stays_in_closed_form():
    phases = Minimum(MinimumConfig()).update(
        Phases(np.array([0.0, 30.0]), np.array([10.0, 0.0]), np.array([0.0, 10.0]))
    )
    early, late = phases.leave
    own = Stays(np.array([1, 3, 2]), np.array([True, True, False]))
    truth = np.log(early) + np.log((1 - early) * (1 - late) * late) + np.log(1 - early)
    np.testing.assert_allclose(own.log_likelihood(phases), truth)


def test_registered_durations_build_and_refuse_wrong_settings():
    registry, task = load_registry(), TaskSpec(max_contexts=3)
    for spec in mbrl_hdp_register_durations():
        if spec.name != "auto":
            assert registry.build_duration(spec.name, task).max_phases >= 1
    with pytest.raises(ConfigError, match="decided by `fit`"):
        registry.build_duration("auto", task)
    with pytest.raises(ConfigError, match=r"duration\.max_steps"):
        registry.build_duration("minimum", task, MinimumConfig(max_steps=0))
    assert [name for name, _ in AutoDurationConfig().candidates()] == list(FAMILIES)
