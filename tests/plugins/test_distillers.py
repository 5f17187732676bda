"""The built-in distillation rules."""

import pytest
import torch

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.testing import check_distiller
from mbrl_hdp.types import ContextChain, ContextPosterior, TaskSpec
from mbrl_hdp_distillers import BetaRule, StationaryRule, ThresholdConfig

# Stationary, by hand: p0 = 0.6, p1 = 0.3, p2 = 0.1 (detailed balance: p0*.1 = p1*.2, p0*.05 = p2*.3, p1*.1=p2*.3).
TRANSITION = torch.tensor([[0.85, 0.10, 0.05], [0.20, 0.70, 0.10], [0.30, 0.30, 0.40]], dtype=torch.float64)
CHAIN = ContextChain(torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64), TRANSITION)
TOP = torch.tensor([0.05, 0.60, 0.35], dtype=torch.float64)


@pytest.mark.parametrize("name", ["beta", "stationary"])
def test_built_in_rules_pass_the_conformance_check(name):
    check_distiller(load_registry().build_distillation(name, TaskSpec(max_contexts=4)))


def test_the_stationary_rule_cuts_by_the_stationary_law():
    torch.testing.assert_close(
        torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64) @ TRANSITION, StationaryRule().mass(ContextPosterior(CHAIN))
    )
    assert StationaryRule(test_threshold=0.0999).keep(ContextPosterior(CHAIN)).tolist() == [True, True, True]
    assert StationaryRule(test_threshold=0.1001).keep(ContextPosterior(CHAIN)).tolist() == [True, True, False]
    assert StationaryRule(test_threshold=0.31).keep(ContextPosterior(CHAIN)).tolist() == [True, False, False]


def test_training_and_extraction_have_a_threshold_each():
    rule = StationaryRule(train_threshold=0.2, test_threshold=0.05)
    assert rule.keep(ContextPosterior(CHAIN, is_training=True)).tolist() == [True, True, False]
    assert rule.keep(ContextPosterior(CHAIN, is_training=False)).tolist() == [True, True, True]


def test_the_beta_rule_cuts_by_the_shared_weights():
    assert BetaRule(test_threshold=0.1).keep(ContextPosterior(CHAIN, TOP)).tolist() == [False, True, True]


def test_the_beta_rule_says_what_to_do_without_shared_weights():
    with pytest.raises(ConfigError, match=r"distillation=beta .* use distillation=stationary, or prior=hdp"):
        BetaRule().keep(ContextPosterior(CHAIN))


def test_mass_is_counted_among_the_active_slots():
    """Without slot 0, slots 1 and 2 share what is left, .75 to .25, as in the reduced chain (Theorem 1 b)."""
    active = torch.tensor([False, True, True])
    posterior = ContextPosterior(CHAIN, TOP, is_active=active)
    assert StationaryRule(test_threshold=0.24).keep(posterior).tolist() == [False, True, True]
    assert StationaryRule(test_threshold=0.26).keep(posterior).tolist() == [False, True, False]
    assert BetaRule(test_threshold=0.36).keep(posterior).tolist() == [False, True, True]


def test_one_context_is_always_kept():
    one = torch.ones(1, 1)
    assert StationaryRule(test_threshold=0.99).keep(ContextPosterior(ContextChain(one[0], one))).tolist() == [True]


def test_a_zero_threshold_keeps_all():
    assert StationaryRule(0.0, 0.0).keep(ContextPosterior(CHAIN)).all()


@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_thresholds_out_of_range_are_refused_by_key(value):
    with pytest.raises(ConfigError, match=r"distillation\.train_threshold must be"):
        load_registry().build_distillation("stationary", TaskSpec(3), ThresholdConfig(train_threshold=value))
