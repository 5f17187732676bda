"""A sweep on a Ray cluster of two nodes, one of whose workers is killed; only where Ray is installed."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.ray_sweep import SweepProcess, TwoNodes, kill_worker, on_ray
from benchmarks.run_differences import differences
from mbrl_hdp.cli import main
from mbrl_hdp.experiments.reproduce import ReproduceOptions, reproduce
from mbrl_hdp.experiments.studies.records import _parse
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.workers import open_workers, run_side_by_side
from tests.inference.test_fit import world

pytest.importorskip("ray", reason="Ray is not installed (requirements-ray.lock)")
pytest.importorskip("hydra_plugins.hydra_ray_launcher", reason="hydra-ray-launcher is not installed")

# `env=gymnasium` has no name of its own: workers must know how to make one.
JOBS = [
    *("seed=0,1,2,3", "env=gymnasium", "env.id=mbrl_hdp/CartPoleSwingUp-v0", "+env.kwargs.horizon=12"),
    *("profile=smoke", "agent=ni_sac", "max_contexts=3", "budget.num_epochs=4", "budget.warm_episodes=3"),
    *("budget.eval_episodes=1", "budget.final_eval_episodes=2", "budget.agent_updates=150"),
]


@pytest.fixture(scope="module")
def cluster():
    nodes = TwoNodes()
    yield nodes
    nodes.stop()


@pytest.mark.slow
def test_a_killed_worker_costs_nothing(cluster, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "sweep"
    child = SweepProcess(JOBS, folder, *on_ray(cluster))
    killed: list[int] = []
    child.wait_for(lambda: killed.extend(kill_worker(folder, range(4))) or bool(killed), "a checkpoint")
    code, printed = child.end()
    assert code == 0, printed[-3000:]
    assert main(["train", "-m", *JOBS, "--no-report", f"hydra.sweep.dir={whole}"]) == 0
    for job in range(4):
        assert differences(whole / str(job), folder / str(job)) == [], job
        began = [json.loads(line)["checkpoint_epoch"] for line in (folder / str(job) / "history.jsonl").open()]
        assert began[0] == 0
        assert (len(began) == 2 and began[1] > 0) == (job in killed)
    assert printed.count("resumed") == 1
    assert printed.count("finished now") == 3


@pytest.mark.slow
def test_cells_on_ray_are_those_of_one_process(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    found = []
    for on in ("local", "ray"):
        (page,) = reproduce("theorem3", ReproduceOptions(out=tmp_path / on, is_quick=True, on=on))
        rows = map(_parse, (Path(page.path).parent / "theorem3.jsonl").read_text().splitlines())
        found.append({row.key: (row.results, row.identity) for row in rows})
    assert found[0]
    assert found[0] == found[1]


@pytest.mark.slow
def test_restarts_of_a_fit_on_ray_are_those_of_one_process(cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    config = FitConfig(start="random", num_steps=10, polish_steps=5, num_restarts=2)
    settings = {"dynamics": "linear", "max_contexts": 3, "seed": 1, "config": config, "progress": False}
    data = world(20, 0)
    alone, together = fit(data, **settings), fit(data, **settings, workers=partial(open_workers, "ray"))
    assert len(together.report.runs) == 2
    for name, value in alone.state_dict().items():
        assert torch.equal(value, together.state_dict()[name]), name


@pytest.mark.slow
def test_a_task_whose_worker_dies_is_begun_again_and_errors_are_their_own(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    log = tmp_path / "log"
    dies_once = (
        f"(open({str(log)!r}, 'a').write('x'), len(open({str(log)!r}).read()) > 1"
        " or __import__('os').kill(__import__('os').getpid(), 9)) and __import__('os').getcwd()"
    )
    with open_workers("ray") as workers:
        assert workers.capacity == 2
        found = dict(run_side_by_side(workers, eval, [dies_once, "2+3"]))
        assert found == {dies_once: str(Path.cwd()), "2+3": 5}
        assert log.read_text() == "xx"
        with pytest.raises(ZeroDivisionError, match="division by zero"):
            list(run_side_by_side(workers, eval, ["1/0"]))
