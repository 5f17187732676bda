"""The page of the baselines' checks: finished ones are kept, a later result replaces an earlier one."""

import json

import torch

from benchmarks import baseline_checks, pets_script
from mbrl_hdp.experiments.config import check_config, load_config


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


def test_pets_and_the_script_of_mbrl_lib_have_the_same_settings():
    ours, theirs = check_config(load_config(pets_script.words())), pets_script.script_config(3, 800)
    optimizer, model = theirs.algorithm.agent.optimizer_cfg, theirs.dynamics_model
    for name in ("num_iterations", "population_size", "elite_ratio", "alpha", "clipped_normal", "return_mean_elites"):
        assert getattr(ours.planner, name) == optimizer[name], name
    for name in ("ensemble_size", "num_layers", "hid_size"):
        assert getattr(ours.agent, name) == model[name]
    assert ours.planner.horizon == theirs.algorithm.agent.planning_horizon
    assert ours.planner.num_particles == theirs.algorithm.num_particles
    assert (ours.agent.lr, ours.agent.num_epochs) == (
        theirs.overrides.model_lr,
        theirs.overrides.num_epochs_train_model,
    )
    assert (theirs.seed, theirs.overrides.num_steps) == (3, 800)


def test_pets_is_held_against_the_interval_of_the_script(tmp_path, monkeypatch):
    (tmp_path / "metrics.csv").write_text("epoch,train_return\n" + "".join(f"{n},{n * 10.0}\n" for n in range(9)))
    monkeypatch.setattr(baseline_checks, "_run", lambda _name, _words: tmp_path)
    for level, state in ((64.0, "ok"), (90.0, "missing")):
        monkeypatch.setattr(pets_script, "script_returns", lambda _seed, level=level: [0.0] * 5 + [level] * 4)
        ((found, name, mean, wanted, _),) = baseline_checks.check_pets()
        assert (found, mean) == (state, "65")
        assert f">= {level:.4g}" in wanted
        assert "last 4 of 8 episodes, 3 seeds" in name


def test_an_unknown_check_is_refused(capsys):
    assert baseline_checks.main(["gpm"]) == 2
    assert "known: gpmm" in capsys.readouterr().err
