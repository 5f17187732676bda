"""What a plugin author's own suite looks like."""

from mbrl_hdp_example_plugin import DwellConfig, DwellPrior, MostVisited

from mbrl_hdp.testing import check_distiller, check_prior


def test_the_prior_conforms():
    check_prior(lambda: DwellPrior(4, DwellConfig()))


def test_the_rule_conforms():
    check_distiller(MostVisited(2))
