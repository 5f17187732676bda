"""Contexts that are seldom active: found by the search, kept by `fit` where held-out episodes ask for them."""

import dataclasses

import numpy as np
import pytest

import mbrl_hdp
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.building import Builder
from mbrl_hdp.inference.model import Part
from mbrl_hdp.inference.recipes import RECIPES
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.starts import RARE, rule_for_rare
from mbrl_hdp.inference.structure import search_structure
from mbrl_hdp_distillers.rules import ThresholdConfig
from mbrl_hdp_dynamics.auto import AutoConfig

CHAIN = np.array([[0.97, 0.02, 0.01], [0.05, 0.94, 0.01], [0.15, 0.15, 0.7]])


def faults(seed=0, num_episodes=60, num_steps=100):
    """An actuator that is reversed at times, and seldom and briefly dead."""
    rng = np.random.default_rng(seed)
    context = np.zeros((num_episodes, num_steps), int)
    for t in range(1, num_steps):
        passed = (rng.random((num_episodes, 1)) > CHAIN[context[:, t - 1]].cumsum(1)).sum(1)
        context[:, t] = passed.clip(max=2)
    act = rng.uniform(-1.0, 1.0, (num_episodes, num_steps, 1))
    obs = np.zeros((num_episodes, num_steps + 1, 2))
    gain = np.array([1.0, -0.5, 0.0])[context]
    for t in range(num_steps):
        drive, noise = 0.3 * gain[:, t] * act[:, t, 0], 0.02 * rng.normal(size=(num_episodes, 2))
        obs[:, t + 1, 0] = 0.9 * obs[:, t, 0] + drive + noise[:, 0]
        obs[:, t + 1, 1] = 0.9 * obs[:, t, 1] + 0.3 * obs[:, t, 0] + noise[:, 1]
    return Trajectories(obs, act, context=context)


@pytest.fixture(scope="module")
def data():
    return faults()


@pytest.fixture(scope="module")
def structure(data):
    return search_structure(data, 6)


def with_rarest(structure, share):
    probability = np.zeros((1, 1000, 2))
    probability[..., 1], probability[..., 0] = share, 1.0 - share
    return dataclasses.replace(structure, probability=probability, transition=np.full((2, 2), 0.5), regions=np.zeros(2))


def test_thresholds_are_lowered_for_a_rare_context_only(structure):
    rule = Part("stationary", ThresholdConfig())
    assert rule_for_rare(rule, with_rarest(structure, 0.11)) is None
    lower = rule_for_rare(rule, with_rarest(structure, 0.08)).config
    assert (lower.train_threshold, lower.test_threshold) == pytest.approx((0.02, 0.02))
    lower = rule_for_rare(rule, with_rarest(structure, 0.02)).config
    assert (lower.train_threshold, lower.test_threshold) == pytest.approx((0.005, 0.005))


def test_what_the_user_chose_stays(structure):
    rare = with_rarest(structure, 0.02)
    assert rule_for_rare(Part("stationary", ThresholdConfig(train_threshold=0.1)), rare) is None
    assert rule_for_rare(Part("own", object()), rare) is None


def test_a_candidate_is_added_where_the_search_found_a_rare_context(structure, data):
    build = Builder(load_registry(), data, ("hdp", "auto", "stationary"), 6, None, 0, RECIPES["robust"])
    part = build.families[0]
    common = with_rarest(structure, 0.4)
    assert [start.name for start in build.starts(part, common, FitConfig())] == ["search", "one context"]
    starts = build.starts(part, structure, FitConfig())
    assert [start.name for start in starts] == ["search", RARE, "one context"]
    rule = starts[1].distillation
    assert [start.distillation for start in starts] == [None, rule, None]
    assert build(0, part, rule).parts.distillation == rule
    assert build(0, part).parts.distillation.config == ThresholdConfig()
    known = FitConfig(num_contexts=3)
    assert RARE not in [start.name for start in build.starts(part, structure, known)]


def test_fit_finds_the_rare_fault(data, structure):
    assert 0.01 < np.mean(data.context == 2) < 0.04
    assert structure.num_contexts == 3
    model = mbrl_hdp.fit(
        data,
        dynamics=Part("auto", AutoConfig(models=["sparse"])),
        max_contexts=6,
        config=FitConfig(num_restarts=1, halves_within_s=0.0),
        duration="geometric",
        progress=False,
    )
    assert [run["num_contexts"] for run in model.report.runs[:2]] == [2, 3]
    assert [run["schedule"] for run in model.report.runs if run["taken"]] == [RARE]
    other = faults(seed=1)
    found = align(model.most_likely(other), other.context)
    assert found.accuracy > 0.98
    right = found.confusion[found.to_true == 2, 2]
    assert right.sum() > 0.7 * (other.context == 2).sum()
