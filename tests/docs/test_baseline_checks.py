"""The page of the baselines' checks: finished ones are kept, a later result replaces an earlier one."""

import json

import torch

from benchmarks import baseline_checks


def test_a_later_result_replaces_an_earlier_one_and_the_others_stay(tmp_path):
    baseline_checks.keep("dnnmm", [["missing", "dnnmm, error", "3", "<= 2", "aaa"]], tmp_path)
    baseline_checks.keep("rnn_ppo", [["ok", "rnn_ppo, return", "88", ">= 80", "bbb"]], tmp_path)
    baseline_checks.keep("dnnmm", [["ok", "dnnmm, error", "1", "<= 2", "ccc"]], tmp_path)
    text = (tmp_path / "baseline_checks.md").read_text()
    assert "| ok | dnnmm, error | 1 | <= 2 | ccc |" in text
    assert "| ok | rnn_ppo, return | 88 | >= 80 | bbb |" in text
    assert "aaa" not in text
    assert "| not run | gpmm |" in text


def test_the_committed_page_is_that_of_the_committed_results():
    found = json.loads((baseline_checks.RESULTS / "baseline_checks.json").read_text())
    assert (baseline_checks.RESULTS / "baseline_checks.md").read_text() == baseline_checks.page(found)


def test_the_network_that_mixtures_are_compared_with_learns_a_function_of_its_inputs():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(300, 2, generator=generator)
    targets = torch.stack([3.0 + inputs[:, 0] * inputs[:, 1], 0.1 * inputs[:, 0]], 1)
    network = baseline_checks.single_network(inputs[:250], targets[:250])
    assert baseline_checks._error(network(inputs[250:]), targets[250:]) < 0.3


def test_an_unknown_check_is_refused(capsys):
    assert baseline_checks.main(["gpm"]) == 2
    assert "known: gpmm" in capsys.readouterr().err
