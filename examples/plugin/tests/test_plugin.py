"""What a plugin author's own suite looks like."""

from mbrl_hdp_example_plugin import DwellConfig, DwellPrior, MostVisited
from mbrl_hdp_example_plugin.swing_up import SwingUp, SwingUpConfig

from mbrl_hdp.testing import check_agent, check_baseline, check_distiller, check_prior


def test_the_prior_conforms():
    check_prior(lambda: DwellPrior(4, DwellConfig()))


def test_the_rule_conforms():
    check_distiller(MostVisited(2))


def test_the_agent_conforms():
    check_baseline(lambda: SwingUp(SwingUpConfig(), seed=0), obs_dim=4, act_dim=1)


def test_the_agent_trains_and_resumes():
    check_agent("swing_up", ["env=cartpole_hard"])
