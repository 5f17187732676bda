"""Exported graphs return the model's numbers over whole episodes, in a process that does not know mbrl_hdp, too."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from mbrl_hdp.belief.codec import BeliefCodec  # noqa: E402
from mbrl_hdp.cli import main  # noqa: E402
from mbrl_hdp.control.policy import ContextSac, SacConfig  # noqa: E402
from mbrl_hdp.control.saving import save_policy  # noqa: E402
from mbrl_hdp.data.past import recorded_width  # noqa: E402
from mbrl_hdp.errors import CheckpointError, ConfigError, ExportError  # noqa: E402
from mbrl_hdp.serving.export import export_onnx, table_of  # noqa: E402
from mbrl_hdp.serving.export_check import check_export  # noqa: E402
from mbrl_hdp.serving.loading import Served, open_served  # noqa: E402
from mbrl_hdp.serving.onnx_filter import write_filter  # noqa: E402
from mbrl_hdp.types import PhaseChain  # noqa: E402

CASES = [
    "delta_mlp",
    "deep",
    "cartpole",
    "drone",
    "vehicle",
    "all cars",
    "linear",
    "full noise",
    "sparse",
    "heavy tails",
]
SPACE = Box(np.float32([-1.0, 0.5]), np.float32([2.0, 0.75]))


def policy_of(obs_dim, width, **settings):
    return ContextSac(BeliefCodec(obs_dim, width), SPACE, SacConfig(**settings), seed=2, total_updates=10)


def served_by(model, tmp_path, policy=None, sees="nothing"):
    task, act_dim = model.task, recorded_width(model.task)
    return Served(tmp_path / "source", task.obs_dim, act_dim, task.dt, model, policy, None, None, sees)


@pytest.mark.parametrize("case", CASES)
def test_every_structure_equals_the_online_filter(case, tmp_path, make_model):
    served = served_by(make_model(case), tmp_path)
    words = export_onnx(served, tmp_path / "out")
    found = check_export(served, tmp_path / "out", num_steps=150)
    assert found.belief < 1e-9
    assert found.log_evidence < 1e-9
    assert found.action is None
    assert words["files"] == {"filter": "filter.onnx"}


STAYS = ([0.4, 0.0, 0.6], [0.0, 0.7, 0.8], [1.0, 0.0, 0.0], [0.0, 0.3, 0.2], [[0.0, 1.0], [1.0, 0.0]])


@pytest.mark.parametrize(
    ("case", "past", "has_phases"),
    [("linear", 2, False), ("linear", 1, True), ("sparse", 3, True), ("deep", 2, False), ("delta_mlp", 3, False)],
)
def test_a_past_is_fed_back_and_actions_are_as_recorded(case, past, has_phases, tmp_path, make_model):
    """`deep` has no actions."""
    model = make_model(case, past=past)
    if has_phases:
        model.use_phases(PhaseChain(*(torch.tensor(part, dtype=torch.float64) for part in STAYS), (2, 1)))
    served = served_by(model, tmp_path)
    words = export_onnx(served, tmp_path / "out")
    assert (words["past"], words["act_dim"]) == (past, 0 if case == "deep" else 2)
    found = check_export(served, tmp_path / "out", num_steps=150)
    assert found.belief < 1e-7
    assert found.log_evidence < 1e-9
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "filter.onnx"))
    sizes = {part.name: part.shape[1] for part in session.get_inputs()}
    assert sizes["past"] == past * (3 + words["act_dim"])
    assert sizes.get("act", 0) == words["act_dim"]
    assert f"looks at the last {past} steps" in (tmp_path / "out" / "README.md").read_text()


def test_a_past_that_is_not_complete_says_nothing_in_the_graph(tmp_path, make_model):
    """Every value of the past counts, also where the heads look at the first observation only."""
    table = table_of(make_model("linear", past=2))
    blind = replace(table, terms=replace(table.terms, column=np.zeros_like(table.terms.column)))
    write_filter(blind, np.eye(2), tmp_path / "filter.onnx", past=2)
    session = onnxruntime.InferenceSession(str(tmp_path / "filter.onnx"))
    rng = np.random.default_rng(0)
    widths = {"obs": 3, "act": 2, "next_obs": 3, "past": 10}
    rows = {name: rng.normal(size=(11, width)) for name, width in widths.items()}
    rows["past"][range(10), range(10)] = np.nan
    found = session.run(None, {**rows, "belief": np.full((11, 2), 0.5)})
    assert np.isnan(found[2]).tolist() == [True] * 10 + [False]
    wanted = np.concatenate([rows["next_obs"] - rows["obs"], rows["act"], rows["past"][:, :5]], 1)
    np.testing.assert_array_equal(found[-1], wanted)


def test_a_batch_is_row_by_row(tmp_path, cartpole_model):
    export_onnx(served_by(cartpole_model, tmp_path), tmp_path / "out")
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "filter.onnx"))
    rng = np.random.default_rng(0)
    rows = {"obs": rng.normal(size=(5, 4)), "act": rng.normal(size=(5, 1)), "belief": rng.dirichlet([1, 1], 5)}
    rows["next_obs"] = rows["obs"] + 0.3 * rng.normal(size=(5, 4))
    rows["next_obs"][3, 2] = np.nan
    whole = session.run(None, rows)
    assert [part.shape for part in whole] == [(5, 2), (5, 2), (5,)]
    for place in range(5):
        one = session.run(None, {name: values[place : place + 1] for name, values in rows.items()})
        for batched, single in zip(whole, one, strict=True):
            np.testing.assert_allclose(batched[place], single[0], rtol=1e-12)
    np.testing.assert_array_equal(whole[0][3], rows["belief"][3])
    assert np.isnan(whole[2]).tolist() == [False, False, False, True, False]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"angle_columns": [0, 2]},
        {"hidden_sizes": [16, 8]},
        {"standardise_obs": True},
        {"magnify_obs": True},
        {"averaged_updates": 50},
        {"standardise_obs": True, "magnify_obs": True, "angle_columns": [2]},
    ],
)
def test_policies_equal_their_own_actions(settings, tmp_path, make_model):
    model = make_model("delta_mlp")
    policy = policy_of(3, 3, **settings)
    if settings.get("standardise_obs"):
        policy.obs_features.centre += 0.7
        policy.obs_features.scale *= 1.7
    if settings.get("averaged_updates"):
        policy.calm_policy.flat.detach().mul_(1.3)
    if settings.get("magnify_obs"):
        policy.obs_features.late_centre += torch.tensor([0.3, -0.4, 2.5])
        policy.obs_features.late_scale *= torch.tensor([0.1, 2.0, 0.5])
    served = served_by(model, tmp_path, policy, "belief")
    words = export_onnx(served, tmp_path / "out")
    assert words["policy_input"] == "belief"
    found = check_export(served, tmp_path / "out", num_steps=100)
    assert found.action < 1e-5
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "policy.onnx"))
    rows = {"obs": np.random.default_rng(3).normal(size=(30, 3)) * 3, "belief": np.full((30, 2), 0.5)}
    actions = session.run(None, rows)[0]
    assert np.ptp(actions, axis=0).min() > 1e-3  # they do differ


def test_policies_without_a_belief_or_with_the_truth(tmp_path):
    blind = Served(tmp_path / "run", 3, 2, None, None, policy_of(3, 0), None, "ni_sac", "nothing")
    export_onnx(blind, tmp_path / "blind")
    assert check_export(blind, tmp_path / "blind", num_steps=30).action < 1e-5
    full = Served(tmp_path / "run", 3, 2, None, None, policy_of(3, 4), None, "fi_sac", "truth")
    words = export_onnx(full, tmp_path / "full")
    assert words["policy_input"] == "context"
    session = onnxruntime.InferenceSession(str(tmp_path / "full" / "policy.onnx"))
    obs, truth = np.ones((1, 3)), np.eye(4)[[2]]
    wanted = full.policy.select_action(np.concatenate([obs[0], truth[0]]), evaluate=True)
    np.testing.assert_allclose(session.run(None, {"obs": obs, "context": truth})[0][0], wanted, atol=1e-5)
    assert "true context" in (tmp_path / "full" / "README.md").read_text()


def test_a_difference_is_found(tmp_path, cartpole_model):
    served = served_by(cartpole_model, tmp_path)
    export_onnx(served, tmp_path / "out")
    words = json.loads((tmp_path / "out" / "export.json").read_text())
    words["initial"] = words["initial"][::-1]
    (tmp_path / "out" / "export.json").write_text(json.dumps(words))
    with pytest.raises(ExportError, match="differs from the model"):
        check_export(served, tmp_path / "out", num_steps=20)


def test_what_cannot_be_exported_is_refused(tmp_path, cartpole_model, make_model):
    class NoTable(type(cartpole_model.dynamics)):
        def density_table(self, slots):
            return None

    class OtherTable(type(cartpole_model.dynamics)):
        def density_table(self, slots):
            table = super().density_table(slots)
            return replace(table, offset=table.offset + 1.0)

    model = make_model("cartpole")
    model.dynamics.__class__ = NoTable
    with pytest.raises(ConfigError, match=r"dynamics=cartpole .* offers no density_table"):
        export_onnx(served_by(model, tmp_path), tmp_path / "out")
    model.dynamics.__class__ = OtherTable
    with pytest.raises(ConfigError, match="does not have the numbers of its log_prob"):
        export_onnx(served_by(model, tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="neither a context model nor a SAC policy"):
        export_onnx(Served(tmp_path, 3, 2, None, agent_name="gpmm"), tmp_path / "out")
    with pytest.raises(CheckpointError, match="holds no model and no run"):
        open_served(tmp_path)


def test_the_command_and_a_process_without_the_package(tmp_path, capsys, cartpole_model):
    source, out = tmp_path / "final", tmp_path / "out"
    cartpole_model.save(source / "model")
    space = Box(-1.0, 1.0, (1,))
    save_policy(ContextSac(BeliefCodec(4, 3), space, SacConfig(angle_columns=[2]), total_updates=10), source)
    assert main(["export", str(source), "-o", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "filter.onnx, policy.onnx, export.json, run.py, README.md" in printed
    assert "checked on 400 imagined steps" in printed
    script = (
        "import sys, numpy as np\nfrom run import Runner\nrunner = Runner('.')\nrunner.reset(np.zeros(4))\n"
        "runner.step([0.1, 0.2, 0.3, 0.4], [0.5])\nprint(runner.belief.tolist())\n"
        "assert not [name for name in sys.modules if name.startswith(('mbrl', 'torch'))]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=out, capture_output=True, text=True, check=True)
    online = open_served(source).model.online_filter()
    online.reset(np.zeros(4))
    wanted = online.update(np.array([0.5]), np.array([0.1, 0.2, 0.3, 0.4]))
    np.testing.assert_allclose(json.loads(done.stdout), wanted, rtol=1e-9)


def test_a_run_that_plans_is_exported_as_its_filter(tmp_path, capsys, cartpole_model):
    cartpole_model.save(tmp_path / "run" / "final" / "model")
    (tmp_path / "run" / "config.yaml").write_text("agent:\n  name: c_cem\nenv:\n  id: mbrl_hdp/CartPoleSwingUp-v0\n")
    assert main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "out"), "--no-check"]) == 0
    printed = capsys.readouterr().out
    assert "agent=c_cem is no SAC policy: a planner cannot be written as ONNX, only the filter was" in printed
    assert not (tmp_path / "out" / "policy.onnx").exists()


def test_errors_are_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for words in (["export", str(tmp_path)], ["export", str(tmp_path), "-o", str(tmp_path / "file" / "x")]):
        assert main(words) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
