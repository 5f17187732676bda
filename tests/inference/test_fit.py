"""From trajectories to contexts, on a toy world whose answer is known."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import mbrl_hdp
from mbrl_hdp.errors import ConfigError, FitError, PluginError
from mbrl_hdp.experiments.studies.cartpole_fit import episodes, fit_settings, held_out_episodes
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.arrangement import hold_out
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.fit import HeldOutScore, build_model, choose, held_out_score
from mbrl_hdp.inference.model import ModelParts, Part
from mbrl_hdp.inference.schedule import PLAIN, TEMPERED, FitConfig, Schedule
from mbrl_hdp.inference.scoring import align, empirical_transition
from mbrl_hdp.inference.trainer import Trainer
from mbrl_hdp.seeding import numpy_generator
from mbrl_hdp.types import TaskSpec

QUICK = FitConfig(start="random", num_steps=150, polish_steps=40, batch_size=40, num_restarts=1, learning_rate=2e-2)
LONGER = FitConfig(start="random", polish_steps=40, num_restarts=1)
STAY = np.array([[0.90, 0.06, 0.04], [0.08, 0.86, 0.06], [0.10, 0.10, 0.80]])
PUSH = np.array([1.0, -0.8, 0.2])


def world(num_episodes, seed, contexts=(0, 1), num_steps=40, noise=0.03):
    """A point on a line, pushed by an actuator whose sign and strength depend on the context."""
    rng = numpy_generator(seed, "toy world")
    rows = STAY[np.ix_(contexts, contexts)]
    rows = rows / rows.sum(-1, keepdims=True)
    context = np.zeros((num_episodes, num_steps), dtype=int)
    context[:, 0] = rng.integers(len(contexts), size=num_episodes)
    for t in range(1, num_steps):
        u = rng.random(num_episodes)[:, None]
        context[:, t] = (u > rows[context[:, t - 1]].cumsum(-1)).sum(-1).clip(0, len(contexts) - 1)
    context = np.asarray(contexts)[context]
    act = rng.uniform(-1, 1, (num_episodes, num_steps, 1))
    obs = np.zeros((num_episodes, num_steps + 1, 2))
    for t in range(num_steps):
        speed = obs[:, t, 1]
        push = PUSH[context[:, t]] * act[:, t, 0]
        step = np.stack([0.1 * speed, push - 0.1 * speed], -1)
        obs[:, t + 1] = obs[:, t] + step + noise * rng.normal(size=step.shape)
    return mbrl_hdp.Trajectories(obs, act, context=context)


@pytest.fixture(scope="module")
def data():
    return world(80, 0)


@pytest.fixture(scope="module")
def model(data):
    return mbrl_hdp.fit(data, weak_prior(), dynamics="linear", max_contexts=4, seed=1, config=QUICK, progress=False)


def weak_prior():
    """The default pulls rows towards equal shares with 100 counts, too much for this little data."""
    return Part("hdp", load_registry().get("prior", "hdp").spec.config(row_concentration=5.0))


def accuracy(model, data):
    return align(model.most_likely(data), data.context).accuracy


def test_it_finds_how_many_which_and_how_they_switch(model):
    test = world(40, 99)
    assert model.num_contexts == 2
    assert accuracy(model, test) > 0.97
    labels = model.most_likely(test)
    to_true = align(labels, test.context).to_true
    truth = empirical_transition(test.context)
    np.testing.assert_allclose(model.transition, truth[np.ix_(to_true, to_true)], atol=0.03)
    np.testing.assert_allclose(model.transition.sum(-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(model.stationary @ model.transition, model.stationary, atol=1e-5)
    assert model.kept.sum() == 2
    assert model.kept.shape == (4,)


def test_same_seed_same_model_whatever_was_drawn_before_and_whatever_the_true_contexts_are(data, model):
    blind = mbrl_hdp.Trajectories(data.obs, data.act)
    torch.rand(7)
    again = mbrl_hdp.fit(blind, weak_prior(), dynamics="linear", max_contexts=4, seed=1, config=QUICK, progress=False)
    for one, two in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_fit_leaves_the_global_generator_alone(data):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    quick = FitConfig(start="random", num_steps=2, polish_steps=2, num_restarts=1)
    mbrl_hdp.fit(data, dynamics="linear", max_contexts=2, config=quick, progress=False)
    assert torch.equal(torch.rand(3), expected)


def test_the_chain_is_settled_on_all_data_at_the_end(data):
    """Steps that are too small to matter leave the chain where training starts it, at .8: only settling moves it."""
    quick = {"config": replace(QUICK, natural_step=1e-9), "seed": 1, "progress": False}
    # With geometric stays the chain is that of the prior's posterior; other durations estimate their own.
    fitted = mbrl_hdp.fit(data, weak_prior(), dynamics="linear", duration="geometric", max_contexts=2, **quick)
    to_true = align(fitted.most_likely(data), data.context).to_true
    truth = empirical_transition(data.context)[np.ix_(to_true, to_true)]
    np.testing.assert_allclose(fitted.transition, truth, atol=0.01)


def test_few_episodes_are_all_trained_on(data):
    """Of fewer than twenty, those that could be kept aside would say too little."""
    few = data.select(slice(0, 19))
    assert hold_out(few, 0.25, seed=0) == (few, few)
    train, held_out = hold_out(data.select(slice(0, 20)), 0.25, seed=0)
    assert (train.num_episodes, held_out.num_episodes) == (15, 5)


def test_held_out_episodes_are_not_trained_on(data):
    """Another order of the held-out episodes leaves every number that training sees as it was."""
    quick = FitConfig(start="random", num_steps=30, polish_steps=0, num_restarts=1, batch_size=20, holdout=0.25)
    train, held_out = hold_out(data, quick.holdout, seed=4)
    is_held_out = np.array([(held_out.obs == episode).all((1, 2)).any() for episode in data.obs])
    assert (train.num_episodes, held_out.num_episodes, is_held_out.sum()) == (60, 20, 20)
    assert not any((train.obs == episode).all((1, 2)).any() for episode in held_out.obs)
    order = np.arange(80)
    order[is_held_out] = order[is_held_out][::-1]
    turned = mbrl_hdp.Trajectories(data.obs[order], data.act[order])
    one, two = (
        mbrl_hdp.fit(each, dynamics="linear", max_contexts=2, seed=4, config=quick, progress=False)
        for each in (mbrl_hdp.Trajectories(data.obs, data.act), turned)
    )
    assert one.report.num_held_out == 20
    none = replace(quick, holdout=0.0, num_steps=2)
    scored = mbrl_hdp.fit(data, dynamics="linear", max_contexts=2, seed=4, config=none, progress=False)
    assert scored.report.num_held_out == 0
    for (name, found), wanted in zip(one.dynamics.named_parameters(), two.dynamics.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("prior", ["dirichlet", "mle"])
def test_other_priors_learn_too(data, prior):
    # Without shared weights nothing starves a spare context: the threshold has to be higher, as the paper says.
    rule = Part("stationary", load_registry().get("distillation", "stationary").spec.config(0.2, 0.1))
    fitted = mbrl_hdp.fit(data, prior, rule, "linear", max_contexts=3, seed=0, config=QUICK, progress=False)
    assert fitted.num_contexts == 2
    assert accuracy(fitted, world(20, 99)) > 0.95


def test_one_context_is_allowed(data):
    fitted = mbrl_hdp.fit(data, dynamics="linear", max_contexts=1, config=QUICK, progress=False)
    assert fitted.num_contexts == 1
    np.testing.assert_array_equal(fitted.transition, [[1.0]])
    assert held_out_score(fitted, world(20, 99)).rmse > 0.5  # one map cannot tell the two pushes apart


def test_without_actions():
    rng = np.random.default_rng(0)
    drift = np.where(np.arange(60) % 20 < 10, 0.5, -0.3)
    obs = np.concatenate([np.zeros((30, 1)), np.cumsum(drift + 0.05 * rng.normal(size=(30, 60)), -1)], -1)[..., None]
    context = np.broadcast_to((np.arange(60) % 20 >= 10).astype(int), (30, 60))
    data = mbrl_hdp.Trajectories(obs, context=context)
    fitted = mbrl_hdp.fit(data, dynamics="linear", max_contexts=3, config=LONGER, progress=False)
    assert fitted.num_contexts == 2
    assert accuracy(fitted, data) > 0.98


def test_ragged_episodes_with_missing_samples(model):
    test = world(12, 5)
    obs = test.obs.copy()
    obs[0, 10:12] = np.nan
    lengths = np.full(12, 40)
    lengths[3] = 17
    holey = mbrl_hdp.Trajectories(obs, test.act, lengths, context=test.context, allow_missing=True)
    quick = FitConfig(start="random", num_steps=120, polish_steps=20, num_restarts=1, learning_rate=2e-2)
    fitted = mbrl_hdp.fit(holey, dynamics="linear", max_contexts=2, config=quick, progress=False)
    probs = fitted.smooth(holey)
    assert np.isnan(probs[3, 17:]).all()
    assert np.isfinite(probs[3, :17]).all()
    assert np.isfinite(probs[0]).all()
    assert (fitted.most_likely(holey)[3, 17:] == -1).all()
    # what is unknown carries no likelihood: the filter only moves on over the gap
    filtered = model.filter(holey)
    np.testing.assert_allclose(filtered[0, 10], filtered[0, 9] @ model.transition, atol=1e-5)


class TestWarmStart:
    def test_it_goes_on_and_keeps_its_slots(self, data, model):
        more = world(60, 7)
        again = mbrl_hdp.fit(more, seed=3, config=QUICK, warm_start=model, progress=False)
        np.testing.assert_array_equal(again.kept, model.kept)
        assert accuracy(again, world(40, 99)) > 0.97
        same = (again.most_likely(data) == model.most_likely(data)).mean()
        assert same > 0.97  # slot by slot, without aligning: identity survives

    def test_the_old_model_is_left_alone(self, data, model):
        before = copy.deepcopy(model.state_dict())
        mbrl_hdp.fit(
            data,
            seed=3,
            config=FitConfig(start="random", num_steps=5, polish_steps=2),
            warm_start=model,
            progress=False,
        )
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())

    @pytest.mark.parametrize("start", ["random", "search"])
    def test_reset_chain_learns_a_new_context_and_keeps_the_old_ones(self, model, start):
        more = world(120, 8, contexts=(0, 1, 2))
        config = FitConfig(
            start=start, num_steps=200, polish_steps=40, batch_size=60, num_restarts=1, learning_rate=2e-2
        )
        grown = mbrl_hdp.fit(more, seed=0, config=config, warm_start=model, reset="chain", progress=False)
        assert grown.num_contexts == 3
        assert accuracy(grown, world(40, 98, contexts=(0, 1, 2))) > 0.93
        assert grown.kept[model.kept].all()
        assert any(run["schedule"] == "search" for run in grown.report.runs) == (start == "search")

    def test_wrong_requests_are_refused(self, data, model):
        with pytest.raises(ConfigError, match="warm_start"):
            mbrl_hdp.fit(data, reset="chain", progress=False)
        with pytest.raises(ConfigError, match="reset='networks'"):
            mbrl_hdp.fit(data, warm_start=model, reset="networks", progress=False)
        other = mbrl_hdp.Trajectories(np.zeros((3, 5, 7)) + np.random.default_rng(0).normal(size=(3, 5, 7)))
        with pytest.raises(FitError, match="7"):
            mbrl_hdp.fit(other, warm_start=model, progress=False)


def test_unknown_names_tell_the_nearest(data):
    with pytest.raises(PluginError, match="did you mean 'hdp'"):
        mbrl_hdp.fit(data, prior="hpd", progress=False)
    with pytest.raises(PluginError, match="linear"):
        mbrl_hdp.fit(data, dynamics="linaer", progress=False)


def test_settings_reach_the_parts(data):
    config = load_registry().get("prior", "hdp").spec.config(row_concentration=7.0)
    quick = FitConfig(start="random", num_steps=2, polish_steps=0, num_restarts=1)
    fitted = mbrl_hdp.fit(data, Part("hdp", config), dynamics="linear", max_contexts=2, config=quick, progress=False)
    assert fitted.prior.row_concentration == 7.0


def held_out(mean, rmse, num_contexts=2, spread=0.1, seed=0):
    rng = np.random.default_rng(seed)
    errors = rmse**2 * rng.uniform(0.9, 1.1, size=5000)
    return HeldOutScore(mean + spread * rng.normal(size=50), errors, num_contexts)


class TestChoose:
    def test_prediction_rejects_then_likelihood_ranks(self):
        assert choose([held_out(9.0, 0.70), held_out(7.0, 0.49), held_out(8.0, 0.50)]) == 2

    def test_of_equally_good_runs_the_simplest_is_taken(self):
        near = [held_out(8.01, 0.5, num_contexts=3), held_out(8.0, 0.5, num_contexts=2, seed=1)]
        assert choose(near) == 1
        apart = [held_out(8.3, 0.5, num_contexts=3), held_out(8.0, 0.5, num_contexts=2, seed=1)]
        assert choose(apart) == 0

    def test_accepted_contexts_are_no_complexity(self):
        """Among runs with no more contexts than accepted the likelihood decides; those with more must earn them."""
        runs = [held_out(8.01, 0.5, num_contexts=number, seed=number) for number in (4, 3, 2)]
        runs[1] = held_out(8.02, 0.5, num_contexts=3, seed=2)
        assert [choose(runs, accepted=number) for number in (1, 2, 3)] == [2, 2, 1]

    def test_predictions_that_are_worse_by_chance_do_not_reject(self):
        few = np.array([0.1, 0.1, 0.1, 0.1])
        lucky = HeldOutScore(np.full(4, 3.0), few, 2)
        unlucky = HeldOutScore(np.full(4, 5.0), few + np.array([0.0, 0.0, 0.0, 0.3]), 2)  # one bad step
        assert choose([lucky, unlucky]) == 1
        worse = HeldOutScore(np.full(4, 5.0), few + 0.3, 2)
        assert choose([lucky, worse]) == 0

    @pytest.mark.parametrize(("standard_errors", "taken"), [(1.9, 1), (2.1, 0)])
    def test_chance_ends_at_two_standard_errors(self, standard_errors, taken):
        errors = np.full(4, 1.0)
        apart = np.array([-1.0, 1.0, -1.0, 1.0])  # standard deviation 1, standard error of the mean 1 / sqrt(4 - 1)
        worse = errors + apart + standard_errors / np.sqrt(3.0)
        assert choose([HeldOutScore(np.full(4, 3.0), errors, 2), HeldOutScore(np.full(4, 5.0), worse, 2)]) == taken

    def test_predictions_within_the_tolerance_do_not_reject(self):
        errors = np.full(4, 1.0)
        for factor, taken in ((1.04, 1), (1.06, 0)):  # every step is worse, so chance is no excuse
            other = HeldOutScore(np.full(4, 5.0), errors * factor**2, 2)
            assert choose([HeldOutScore(np.full(4, 3.0), errors, 2), other]) == taken

    def test_diverged_runs_are_never_taken(self):
        nothing = HeldOutScore(np.full(50, np.nan), np.full(50, np.nan), 1)
        assert choose([nothing, held_out(-3.0, 0.9)]) == 1
        with pytest.raises(FitError, match="diverged"):
            choose([nothing])


def pooled_trainer(data, num_steps, pool_until):
    registry = load_registry()
    names = {"prior": "hdp", "dynamics": "linear", "distillation": "stationary"}
    parts = [Part(name, registry.get(kind, name).spec.config()) for kind, name in names.items()]
    model = build_model(ModelParts(*parts), TaskSpec(3, data.obs_dim, data.act_dim), registry)
    model.dynamics.set_normaliser(*(torch.as_tensor(rows, dtype=torch.float32) for rows in data.transitions()))
    config = FitConfig(start="random", num_steps=num_steps, learning_rate=2e-2)
    schedule = Schedule(pool_until=pool_until)
    generator = torch.Generator().manual_seed(0)
    pieces = model.prior, model.dynamics, model.distillation
    return model, Trainer(*pieces, EpisodeTensors.of(data), config, schedule, generator)


class TestPooledStart:
    """One head learns what the contexts share, then all heads start from it."""

    def test_heads_start_around_the_shared_one(self):
        dynamics = load_registry().build_dynamics("delta_mlp", TaskSpec(50, 3, 1))
        weight = dynamics.heads.weights[0].detach()  # shares its memory
        shared, fresh_std = weight[7].clone(), float(weight.std())
        dynamics.start_near(7, spread=0.5, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(weight.mean(0), shared, atol=1e-6, rtol=0.0)
        assert float((weight - shared).std()) == pytest.approx(0.5 * fresh_std, rel=0.05)

    def test_the_shared_head_learns_and_the_others_do_not_run(self, data):
        model, trainer = pooled_trainer(data, num_steps=20, pool_until=0.5)
        noise = model.dynamics.raw_log_std
        before = noise.detach().clone()
        first = trainer._pool_step()
        for _ in range(30):
            last = trainer._pool_step()
        assert last < first - 0.3
        assert bool((noise[0] != before[0]).all())
        assert torch.equal(noise[1:], before[1:])

    def test_what_is_known_is_not_pooled_away(self, data):
        model, trainer = pooled_trainer(data, num_steps=4, pool_until=0.5)
        with torch.no_grad():
            model.dynamics.heads.weights[0][1] += 3.0
        trainer.run(from_scratch=False)
        gap = model.dynamics.heads.weights[0][1] - model.dynamics.heads.weights[0][0]
        assert float(gap.detach().mean()) > 2.5

    def test_contexts_that_differ_little_are_found(self):
        # A failing actuator with half its force: most of what happens is the same in both contexts.
        settings = fit_settings(5, 0, actuation=[1.0, 0.5], force=40.0, num_trajectories=100)
        once = FitConfig(start="random", polish_steps=0, num_restarts=1)
        fitted = mbrl_hdp.fit(episodes(settings), dynamics="cartpole", max_contexts=5, config=once, progress=False)
        assert fitted.num_contexts == 2
        assert accuracy(fitted, held_out_episodes(settings)) > 0.9


class TestSchedule:
    def test_tempering_rises_to_one(self):
        assert TEMPERED.temperature(0.0) == pytest.approx(0.1)
        assert TEMPERED.temperature(0.2) == pytest.approx(0.55)
        assert TEMPERED.temperature(0.4) == TEMPERED.temperature(0.9) == 1.0
        assert PLAIN.temperature(0.0) == 1.0

    def test_rate_falls_to_a_tenth(self):
        schedule = Schedule(decay_from=0.5)
        assert schedule.rate(0.5) == 1.0
        assert schedule.rate(0.75) == pytest.approx(0.55)
        assert schedule.rate(1.0) == pytest.approx(0.1)
