"""What a learned model says: filter, smoother, futures, mbrl-lib's interface, files."""

import dataclasses
import json

import mbrl.models
import numpy as np
import pytest
import torch
from mbrl.types import TransitionBatch

import mbrl_hdp
from mbrl_hdp.errors import CheckpointError, DataError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference import saving
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ModelParts, Part
from mbrl_hdp.types import ContextChain, TaskSpec

INITIAL = np.array([0.7, 0.3])
TRANSITION = np.array([[0.9, 0.1], [0.25, 0.75]])
PUSH = np.array([1.0, -0.5])
STD = 0.2


@pytest.fixture
def model():
    """A model whose every number is known: x' = x + push_k a + noise."""
    registry = load_registry()
    config = registry.get("dynamics", "linear").spec.config
    parts = ModelParts(
        Part("hdp", registry.get("prior", "hdp").spec.config()),
        Part("linear", config(std_floor=1e-3)),
        Part("stationary", registry.get("distillation", "stationary").spec.config()),
    )
    made = build_model(parts, TaskSpec(2, obs_dim=1, act_dim=1), registry)
    with torch.no_grad():
        made.dynamics.heads.weights[0].copy_(torch.tensor([[[0.0, PUSH[0]]], [[0.0, PUSH[1]]]]))
        made.dynamics.heads.biases[0].zero_()
        made.dynamics.raw_log_std.fill_(np.log(STD))
    chain = ContextChain(torch.tensor(INITIAL).float(), torch.tensor(TRANSITION).float())
    made.prior.start_from(chain, 1e6)
    made.extract()
    return made


@pytest.fixture
def data():
    rng = np.random.default_rng(3)
    act = rng.uniform(-1, 1, (3, 6, 1))
    context = np.array([[0, 0, 0, 1, 1, 0], [1, 1, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0]])
    steps = PUSH[context][..., None] * act + STD * rng.normal(size=act.shape)
    obs = np.concatenate([np.zeros((3, 1, 1)), np.cumsum(steps, 1)], 1)
    return mbrl_hdp.Trajectories(obs, act, lengths=[6, 4, 6], context=context)


@pytest.mark.parametrize("prior", ["hdp", "dirichlet"])
def test_the_posterior_has_the_shared_weights_of_a_prior_that_has_any(model, prior):
    registry = load_registry()
    parts = dataclasses.replace(model.parts, prior=Part(prior, registry.get("prior", prior).spec.config()))
    made = build_model(parts, TaskSpec(3, obs_dim=1, act_dim=1), registry)
    found, weights = made.posterior().top_weights, made.prior.top_weights()
    assert (found is None) == (weights is None) == (prior == "dirichlet")
    if weights is not None:
        assert torch.equal(found, weights)
        assert not found.requires_grad


def log_lik_by_hand(data):
    error = (np.diff(data.obs[..., 0], axis=1)[..., None] - data.act * PUSH) / STD
    return -0.5 * error**2 - np.log(STD) - 0.5 * np.log(2 * np.pi)


def enumerate_paths(log_lik):
    """All context paths of one episode with their log joint."""
    steps = len(log_lik)
    paths = np.stack(np.meshgrid(*[[0, 1]] * steps, indexing="ij"), -1).reshape(-1, steps)
    joint = np.log(INITIAL[paths[:, 0]]) + log_lik[0, paths[:, 0]]
    for t in range(1, steps):
        joint += np.log(TRANSITION[paths[:, t - 1], paths[:, t]]) + log_lik[t, paths[:, t]]
    return paths, joint


def test_it_is_an_mbrl_lib_model(model):
    assert isinstance(model, mbrl.models.Model)
    np.testing.assert_allclose(model.transition, TRANSITION, atol=1e-3)
    np.testing.assert_allclose(model.initial, INITIAL, atol=1e-3)
    np.testing.assert_allclose(model.stationary, [0.25 / 0.35, 0.1 / 0.35], atol=3e-3)


def test_filter_smoother_path_and_evidence_against_enumeration(model, data):
    log_lik = log_lik_by_hand(data)
    filtered, smoothed = model.filter(data), model.smooth(data)
    for episode, length in enumerate(data.lengths):
        paths, joint = enumerate_paths(log_lik[episode, :length])
        weight = np.exp(joint - np.logaddexp.reduce(joint))
        expected = np.stack([((paths == k) * weight[:, None]).sum(0) for k in (0, 1)], -1)
        np.testing.assert_allclose(smoothed[episode, :length], expected, atol=2e-3)
        np.testing.assert_allclose(filtered[episode, length - 1], expected[-1], atol=2e-3)
        assert np.isnan(smoothed[episode, length:]).all()
        np.testing.assert_array_equal(model.most_likely(data)[episode, :length], paths[joint.argmax()])
        assert model.log_likelihood(data)[episode] == pytest.approx(np.logaddexp.reduce(joint), abs=2e-2)


def test_online_filter_equals_the_batch_filter(model, data):
    filtered, predictive = model.filter(data), model.analyse(data).predictive_belief
    online = model.online_filter()
    np.testing.assert_allclose(online.reset(data.obs[0, 0]), predictive[0, 0], atol=1e-6)
    for t in range(6):
        belief = online.update(data.act[0, t], data.obs[0, t + 1])
        np.testing.assert_allclose(online.filtered, filtered[0, t], atol=1e-5)
        if t < 5:
            np.testing.assert_allclose(belief, predictive[0, t + 1], atol=1e-5)
    np.testing.assert_allclose(belief, filtered[0, -1] @ TRANSITION, atol=2e-3)


def test_online_filter_moves_on_over_missing_samples_and_wants_a_reset(model):
    online = model.online_filter()
    with pytest.raises(DataError, match="reset"):
        online.update(np.zeros(1), np.zeros(1))
    online.reset(np.zeros(1))
    np.testing.assert_allclose(online.update(np.zeros(1), np.array([np.nan])), INITIAL @ TRANSITION, atol=1e-3)


def test_predictions_average_over_the_belief(model, data):
    belief = model.analyse(data).predictive_belief
    expected = data.obs[:, :-1, 0] + (belief * PUSH).sum(-1) * data.act[..., 0]
    np.testing.assert_allclose(model.analyse(data).predicted[0, :, 0], expected[0], atol=1e-4)
    assert np.isnan(model.analyse(data).predicted[1, 4:]).all()


def test_futures_have_the_moments_of_the_chain(model):
    """After two steps of action 1: E[x] = sum over both steps of the expected push."""
    futures = model.predict(np.array([[0.5]]), np.ones((1, 2, 1)), num_samples=20_000, seed=1)
    assert futures.shape == (20_000, 1, 2, 1)
    first = INITIAL @ PUSH
    second = INITIAL @ TRANSITION @ PUSH
    for step, mean in enumerate([0.5 + first, 0.5 + first + second]):
        draws = futures[:, 0, step, 0]
        assert abs(draws.mean() - mean) < 6 * draws.std() / np.sqrt(len(draws)) + 1e-3
    variance = STD**2 + INITIAL @ PUSH**2 - first**2
    assert futures[:, 0, 0, 0].var() == pytest.approx(variance, rel=0.05)
    known = model.predict(np.array([[0.5]]), np.ones((1, 1, 1)), 4000, belief=np.array([[0.0, 1.0]]))
    assert known.mean() == pytest.approx(0.5 + PUSH[1], abs=6 * STD / np.sqrt(4000))


def test_predict_refuses_wrong_shapes(model):
    with pytest.raises(DataError, match="acts must be"):
        model.predict(np.zeros((2, 1)), np.zeros((2, 3, 4)))
    with pytest.raises(DataError, match="learned on 1 observations and 1 actions"):
        model.filter(mbrl_hdp.Trajectories(np.zeros((2, 4, 3))))


def test_mbrl_lib_trainer_trains_it(model):
    """mbrl-lib's own ModelTrainer on its own replay buffer, through its own sequence iterator."""
    from mbrl.models import ModelTrainer
    from mbrl.util.replay_buffer import SequenceTransitionIterator

    rng = np.random.default_rng(0)
    act = rng.uniform(-1, 1, (30, 20, 1))
    obs = np.concatenate([np.zeros((30, 1, 1)), np.cumsum(0.3 * act + 0.05 * rng.normal(size=act.shape), 1)], 1)
    data = mbrl_hdp.Trajectories(obs, act)
    buffer = data.to_replay_buffer()
    iterator = SequenceTransitionIterator(
        buffer.get_all(), buffer.trajectory_indices, batch_size=10, sequence_length=10, ensemble_size=1, rng=rng
    )
    model.set_data_size(30, 600)
    before = float(model.log_likelihood(data).mean())
    score_before = model.eval_score(next(iter(iterator)))[0].mean()
    trainer = ModelTrainer(model, optim_lr=2e-2)
    losses, scores = trainer.train(iterator, num_epochs=5, silent=True, evaluate=False)
    model.extract()
    assert float(model.log_likelihood(data).mean()) > before
    assert losses[-1] < losses[0]
    assert model.eval_score(next(iter(iterator)))[0].mean() < score_before
    assert scores is not None


def test_single_transitions_are_episodes_of_one_step(model):
    rng = np.random.default_rng(1)
    obs, act = rng.normal(size=(8, 1)), rng.uniform(-1, 1, (8, 1))
    flat = TransitionBatch(obs, act, obs + 0.3 * act, None, None, None)
    loss, meta = model.loss(flat)
    assert loss.requires_grad
    assert set(meta) == {"log_likelihood", "prior_kl"}
    score, _ = model.eval_score(flat)
    expected = ((INITIAL @ PUSH - 0.3) * act) ** 2
    np.testing.assert_allclose(score.numpy(), expected, atol=1e-4)


def test_model_env_of_mbrl_lib_steps_it(model):
    import gymnasium
    from mbrl.models import ModelEnv

    env = gymnasium.make("MountainCarContinuous-v0")
    imagined = ModelEnv(env, model, lambda act, obs: torch.zeros(len(obs), 1, dtype=torch.bool),
                        lambda act, obs: -obs.square(), torch.Generator().manual_seed(0))  # fmt: skip
    state = imagined.reset(np.zeros((64, 1), dtype=np.float32), return_as_np=False)
    next_obs, _, done, state = imagined.step(np.ones((64, 1), dtype=np.float32), state)
    assert next_obs.shape == (64, 1)
    assert set(state) == {"obs", "context"}
    assert not done.any()
    env.close()


class TestFiles:
    def test_round_trip(self, model, data, tmp_path):
        model.report.seed = 17
        model.save(tmp_path / "deep" / "model")
        again = mbrl_hdp.load(tmp_path / "deep" / "model")
        np.testing.assert_array_equal(again.smooth(data), model.smooth(data))
        np.testing.assert_array_equal(again.transition, model.transition)
        assert again.report.seed == 17
        assert again.task == model.task
        assert again.parts.dynamics == model.parts.dynamics

    def test_load_into_an_existing_model(self, model, data, tmp_path):
        model.save(tmp_path)
        expected = model.smooth(data)
        with torch.no_grad():
            model.dynamics.raw_log_std.zero_()
        model.load(tmp_path)
        np.testing.assert_array_equal(model.smooth(data), expected)

    def test_what_is_missing_or_damaged_is_named(self, model, tmp_path):
        with pytest.raises(CheckpointError, match="no model in"):
            mbrl_hdp.load(tmp_path)
        model.save(tmp_path)
        path = tmp_path / "model.safetensors"
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CheckpointError, match="damaged"):
            mbrl_hdp.load(tmp_path)
        path.write_bytes(b"not a model")
        with pytest.raises(CheckpointError, match="damaged"):
            mbrl_hdp.load(tmp_path)

    def test_another_version_is_refused(self, model, tmp_path, monkeypatch):
        import mbrl_hdp.inference.saving as saving

        monkeypatch.setattr(saving, "SCHEMA_VERSION", 99)
        model.save(tmp_path)
        monkeypatch.undo()
        with pytest.raises(CheckpointError, match="schema_version 99"):
            mbrl_hdp.load(tmp_path)

    def test_numbers_of_another_size_are_refused(self, model, tmp_path):
        model.save(tmp_path)
        larger = build_model(model.parts, TaskSpec(3, obs_dim=1, act_dim=1), load_registry())
        with pytest.raises(CheckpointError, match="belongs to another model"):
            saving.load_parameters(larger, tmp_path)

    @pytest.mark.parametrize("name", ["TaskSpec", "FitReport"])
    def test_fields_that_this_version_does_not_know_are_refused(self, model, tmp_path, monkeypatch, name):
        model.save(tmp_path)
        monkeypatch.setattr(saving, name, lambda: None)
        with pytest.raises(CheckpointError, match="damaged"):
            mbrl_hdp.load(tmp_path)

    def test_words_are_readable(self, model, tmp_path):
        model.save(tmp_path)
        words = json.loads((tmp_path / "model.json").read_text())
        assert words["parts"]["prior"]["name"] == "hdp"
        assert words["schema_version"] == 2
