"""Novelty on the command line and in training: `fit alarm_holdout= update=`, alarm columns, `train novelty=auto`."""

import csv

import numpy as np
import pytest

import mbrl_hdp
from mbrl_hdp.cli import main
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments import loop, novelty
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.fit_settings import fit_config
from mbrl_hdp.experiments.metrics import SilentLog
from mbrl_hdp.experiments.model_update import update_model
from mbrl_hdp.experiments.studies.novelty import interval
from mbrl_hdp.experiments.studies.novelty_cell import delays
from mbrl_hdp.experiments.studies.novelty_world import World
from mbrl_hdp.experiments.update import hold_out, sources_of
from mbrl_hdp.hooks import load_registry

PUSH = np.array([1.0, -0.8, 0.2])
STAY = 0.95
QUICK = ["dynamics=linear", "max_contexts=4", "prior.row_concentration=10", "fit.polish_steps=20"]
QUICK += ["fit.halves_within_s=0", "fit.num_restarts=1", "fit.num_steps=60"]


def simulate(num_episodes, seed, num_contexts):
    """x' = 0.9 x + push_k a + noise; contexts switch among the first few."""
    rng = np.random.default_rng(seed)
    context = np.empty((num_episodes, 80), dtype=int)
    context[:, 0] = rng.integers(num_contexts, size=num_episodes)
    for t in range(1, 80):
        other = (context[:, t - 1] + rng.integers(1, max(num_contexts, 2), num_episodes)) % num_contexts
        context[:, t] = np.where(rng.random(num_episodes) < STAY, context[:, t - 1], other)
    act = rng.uniform(-1, 1, (num_episodes, 80, 1))
    obs = np.zeros((num_episodes, 81, 1))
    for t in range(80):
        noise = 0.03 * rng.standard_normal(num_episodes)
        obs[:, t + 1, 0] = 0.9 * obs[:, t, 0] + PUSH[context[:, t]] * act[:, t, 0] + noise
    return mbrl_hdp.Trajectories(obs, act, context=context)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of two contexts with an alarm, and one that was widened by data with a third."""
    place = tmp_path_factory.mktemp("novelty")
    simulate(40, 0, 2).save(place / "old.npz")
    simulate(24, 1, 3).save(place / "new.npz")
    assert (
        main(["fit", str(place / "old.npz"), *QUICK, "alarm_holdout=0.5", f"out={place / 'model'}", "--no-report"]) == 0
    )
    words = [f"update={place / 'model'}", "fit.halves_within_s=0", f"out={place / 'wider'}", "--no-report"]
    assert main(["fit", str(place / "new.npz"), *words]) == 0
    return place


def test_the_alarm_is_in_the_labels(folder, capsys):
    for source, wanted in (("old.npz", False), ("new.npz", True)):
        out = folder / f"{source}.csv"
        assert main(["label", str(folder / "model"), str(folder / source), "-o", str(out)]) == 0
        with out.open() as file:
            rows = list(csv.DictReader(file))
        assert any(row["alarm"] == "1" for row in rows) is wanted
        assert all(0.0 <= float(row["novelty"]) <= 1.0 for row in rows)
    wanted = "novelty alarms: 0 (false ones: at most one in 100,000 steps on average, extrapolated from "
    assert wanted in capsys.readouterr().out


def test_an_update_finds_the_new_context_and_keeps_the_old_ones(folder):
    before, after = mbrl_hdp.load(folder / "model"), mbrl_hdp.load(folder / "wider")
    assert (before.num_contexts, after.num_contexts) == (2, 3)
    assert np.all(after.kept[before.kept])
    new = after.report.search["new_contexts"]
    assert [not before.kept[slot] for slot in after.slots.tolist()] == [number in new for number in range(3)]
    old = simulate(20, 5, 2)
    one = before.slots.numpy()[before.most_likely(old)]
    two = after.slots.numpy()[after.most_likely(old)]
    assert (one == two).mean() > 0.97
    assert after.novelty is None  # calibrated for another model


def test_an_update_of_an_update_knows_all_data(folder):
    assert sources_of(folder / "wider") == [str(folder / "old.npz"), str(folder / "new.npz")]


def test_an_update_without_the_old_data_is_refused(folder, tmp_path, capsys):
    model = tmp_path / "model"
    model.mkdir()
    for path in (folder / "model").iterdir():
        if path.is_file() and path.name != "manifest.json":
            (model / path.name).write_bytes(path.read_bytes())
    config = (model / "config.yaml").read_text().replace("old.npz", "gone.npz")
    (model / "config.yaml").write_text(config)
    assert main(["fit", str(folder / "new.npz"), f"update={model}", f"out={tmp_path / 'out'}"]) == 2
    assert "gone.npz" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    (model / "config.yaml").write_text("seed: 0\n")
    with pytest.raises(ConfigError, match="does not name the data"):
        sources_of(model)


def test_whole_episodes_or_the_ends_of_few_are_held_out():
    many = simulate(20, 0, 2)
    rest, aside = hold_out(many, 0.25, seed=0)
    assert (rest.num_episodes, aside.num_episodes) == (15, 5)
    few = simulate(2, 0, 2)
    rest, aside = hold_out(few, 0.25, seed=0)
    assert rest.lengths.tolist() == [60, 60]
    assert aside.lengths.tolist() == [20, 20]
    np.testing.assert_array_equal(aside.obs[1], few.obs[1, 60:])
    np.testing.assert_array_equal(aside.context[0], few.context[0, 60:])


def test_training_watches_real_episodes():
    registry = load_registry()
    words = ["profile=smoke", "max_contexts=3", "env.kwargs.horizon=100", "budget.warm_episodes=25", "novelty=auto"]
    words += ["agent=c_cem", "budget.warm_model_steps=5", "budget.model_steps=3", "budget.model_every=50"]
    run = loop.start_run(check_config(load_config([*words, "dynamics=linear"], registry)), registry)
    with SilentLog(1, is_wanted=False) as log:
        new, _ = loop.collect_episodes(run, 0, log)
        assert novelty.num_alarms(run, new) is None
        assert update_model(run, 0, log)
        assert run.model.report.num_episodes == 20
        assert run.model.novelty.table.num_steps > 400
        assert isinstance(novelty.num_alarms(run, new), int)
        assert not update_model(run, 1, log)
        assert update_model(run, 1, log, is_alarmed=True)
    assert fit_config(run.config, run.budget, is_first=False, is_alarmed=True).search_again == "always"
    assert fit_config(run.config, run.budget, is_first=False).search_again == "due"
    run.task.close()


def test_a_world_draws_diverged_episodes_again():
    """Half of the first states of this world lead nowhere; the others stand still but for the noise."""
    world = World(
        lambda state, act, context: np.where(state > 0.0, np.inf, state),
        lambda rng, num: rng.standard_normal((num, 1)),
        act_dim=1,
        noise=np.full(1, 1e-9),
    )
    context = np.arange(40).reshape(20, 2) % 3
    found = world.simulate(context, np.random.default_rng(0))
    assert (found.obs < 0.0).all()
    np.testing.assert_array_equal(found.context, context)


def test_delays_and_intervals_by_hand():
    alarms = np.array([[1, 0, 0, 1, 1], [0, 0, 0, 0, 0]], dtype=bool)
    assert delays(alarms, np.array([1, 2])) == [3, None]
    low, high = interval(4, 1000)  # Garwood's interval of 4 events is 1.0899 to 10.2416
    assert (1000 * low, 1000 * high) == pytest.approx((1.0899, 10.2416), abs=1e-4)
