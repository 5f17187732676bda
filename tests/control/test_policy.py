"""SAC on the packed vector: gradients against autograd, whole updates against a plain version, behaviour on toys."""

import dataclasses
import math

import gymnasium
import mbrl.util
import numpy as np
import pytest
import torch
from mbrl.planning.sac_wrapper import SACAgent
from torch.distributions import Normal, TanhTransform, TransformedDistribution
from torch.testing import assert_close

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.networks import FlatAdam, StackedMlp, squashed_draw, squashed_grad
from mbrl_hdp.control.policy import PAPER_SAC, ContextSac, SacConfig
from mbrl_hdp.control.replay import BeliefReplay
from mbrl_hdp.control.sac_learner import SacLearner
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import CheckpointError, ConfigError, DivergenceError, FitError

BOX = gymnasium.spaces.Box(np.array([-1.0, -3.0]), np.array([1.0, 1.0]), dtype=np.float64)
QUICK = SacConfig(hidden_sizes=[24], batch_size=32, linear_decay=False)
DEPTHS = pytest.mark.parametrize("hidden_sizes", [[13], [13, 7]], ids=["1 layer", "2 layers"])


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled_replay(codec, act_dim=2, num_episodes=6, seed=0):
    rng = np.random.default_rng(seed)
    beliefs = rng.dirichlet(np.ones(codec.max_contexts), (num_episodes, 11)) if codec.max_contexts else None
    lengths = rng.integers(4, 11, num_episodes)
    data = Trajectories(
        rng.normal(size=(num_episodes, 11, codec.obs_dim)),
        rng.uniform(-1, 1, (num_episodes, 10, act_dim)),
        lengths=lengths,
        reward=rng.normal(size=(num_episodes, 10)),
        terminated=(np.arange(10) == lengths[:, None] - 1) & (np.arange(num_episodes) % 2 == 0)[:, None],
    )
    replay = BeliefReplay(codec, act_dim)
    replay.extend(data, beliefs)
    return replay


class TestNetworks:
    def mlp(self, hidden_sizes, num_nets=2):
        mlp = StackedMlp(num_nets, 6, 4, hidden_sizes, 3)
        mlp.initialise(torch.Generator().manual_seed(1))
        with torch.no_grad():
            mlp.flat.add_(0.1 * rand(len(mlp.flat)))  # biases too
        inputs = rand(6, 9, seed=2)
        inputs[4] = 1.0
        return mlp, inputs

    @DEPTHS
    def test_equals_separate_torch_networks(self, hidden_sizes):
        mlp, inputs = self.mlp(hidden_sizes)
        for net in range(2):
            hidden = inputs
            for number, (weight, bias) in enumerate(mlp.layers):
                hidden = weight[net] @ (hidden.relu() if number else hidden)
                hidden = hidden if bias is None else hidden + bias[net]
            assert_close(mlp(inputs)[net], hidden)
            assert_close(mlp.run(inputs)[-1][net], hidden)

    @DEPTHS
    def test_gradients_equal_autograd(self, hidden_sizes):
        mlp, inputs = self.mlp(hidden_sizes)
        weight = rand(2, 3, 9, seed=3)
        wanted_inputs = inputs.clone().requires_grad_()
        wanted = torch.autograd.grad((mlp(wanted_inputs) * weight).sum(), [mlp.flat, wanted_inputs])
        with torch.no_grad():
            activations = mlp.run(inputs)
            assert_close(mlp.parameter_grad(inputs, activations, weight), wanted[0])
            assert_close(mlp.input_grad(activations, weight, slice(2, 5)), wanted[1][2:5])

    def test_weights_are_glorot_uniform_and_biases_zero(self):
        mlp = StackedMlp(1, 7, 6, [400], 1)
        mlp.initialise(torch.Generator().manual_seed(0))
        first, last = mlp.layers
        assert (first.weight[:, :, 6] == 0).all()
        assert (last.bias == 0).all()
        bound = math.sqrt(6 / 406)
        assert first.weight[:, :, :6].abs().max() <= bound
        assert first.weight[:, :, :6].var().item() == pytest.approx(bound**2 / 3, rel=0.1)

    def test_adam_equals_torch(self):
        start = rand(40)
        theirs = torch.nn.Parameter(start.clone())
        optimiser = torch.optim.Adam([theirs], lr=0.02, weight_decay=0.1)
        ours = FlatAdam(start.clone(), lr=0.02, weight_decay=0.1)
        for step in range(30):
            theirs.grad = rand(40, seed=step + 1) + 0.3
            optimiser.param_groups[0]["lr"] = 0.02 * (1 - step / 30)
            optimiser.step()
            ours.step(rand(40, seed=step + 1) + 0.3, 1 - step / 30)
        assert_close(ours.values, theirs.detach(), rtol=1e-5, atol=1e-6)

    def test_squashed_draw_equals_torch_distributions(self):
        outputs, noise = rand(4, 50), rand(2, 50, seed=1)
        draw = squashed_draw(outputs, noise, (-20.0, 2.0))
        law = TransformedDistribution(Normal(outputs[:2], outputs[2:].exp()), TanhTransform(cache_size=1))
        assert_close(draw.act, (outputs[:2] + outputs[2:].exp() * noise).tanh())
        assert_close(draw.log_prob, law.log_prob(draw.act.double().clamp(-1 + 1e-15, 1 - 1e-15)).sum(0).float(),
                     rtol=1e-3, atol=1e-3)  # fmt: skip

    def test_squashed_gradient_equals_autograd_and_stops_at_the_bounds(self):
        outputs, noise = rand(4, 50, seed=5), rand(2, 50, seed=6)
        outputs[2, 7], outputs[3, 9] = 2.5, -20.5
        outputs.requires_grad_()
        act_weight = rand(2, 50, seed=7)
        draw = squashed_draw(outputs, noise, (-20.0, 2.0))
        wanted = torch.autograd.grad((act_weight * draw.act).sum() + 0.7 * draw.log_prob.sum(), outputs)[0]
        found = squashed_grad(draw, act_weight, 0.7)
        assert_close(found.detach(), wanted, rtol=1e-4, atol=1e-5)
        assert found[2, 7] == 0
        assert found[3, 9] == 0

    def test_log_prob_stays_finite_where_the_action_saturates(self):
        draw = squashed_draw(torch.tensor([[60.0], [0.0]]), torch.zeros(1, 1), (-20.0, 2.0))
        # log(1 - tanh(60)^2) = log 4 - 120 up to e^-240
        assert_close(draw.log_prob, torch.tensor([-0.5 * math.log(2 * math.pi) - math.log(4.0) + 120.0]))


class PlainSac:
    """SAC by autograd and torch's optimisers, two separate critics: slow and easy to read."""

    def __init__(self, sac):
        self.sac, config = sac, sac.config
        self.policy, self.critic, self.target = (
            [[(w[net].clone(), None if b is None else b[net].clone()) for w, b in net_of.layers]
             for net in range(net_of.num_nets)]
            for net_of in (sac.policy, sac.critic, sac.critic_target)
        )  # fmt: skip
        self.log_alpha = sac.log_alpha.clone().requires_grad_()
        learned = {"policy": self.policy, "critic": self.critic}
        self.parameters = {
            name: [part.requires_grad_() for net in nets for layer in net for part in layer if part is not None]
            for name, nets in learned.items()
        }
        decay = config.weight_decay
        self.optims = {
            "policy": torch.optim.Adam(self.parameters["policy"], config.policy_lr, weight_decay=decay),
            "critic": torch.optim.Adam(self.parameters["critic"], config.value_lr, weight_decay=decay),
            "alpha": torch.optim.Adam([self.log_alpha], config.temperature_lr),
        }
        self.num_updates = 0

    @staticmethod
    def apply(net, rows):
        for number, (weight, bias) in enumerate(net):
            rows = weight @ (rows.relu() if number else rows)
            rows = rows if bias is None else rows + bias
        return rows

    def act(self, state, noise):
        mean, log_std = self.apply(self.policy[0], state).chunk(2)
        log_std = log_std.clamp(-20, 2)
        before = mean + log_std.exp() * noise
        density = Normal(mean, log_std.exp()).log_prob(before) - torch.log1p(-(before.tanh() ** 2))
        return before.tanh(), density.sum(0) - self.sac._act_scale.log().sum()

    def value(self, nets, state, act):
        return torch.stack([self.apply(net, torch.cat([state, act]))[0] for net in nets])

    def step(self, name, loss, factor):
        optim = self.optims[name]
        optim.zero_grad()
        loss.backward()
        rates = [group["lr"] for group in optim.param_groups]
        for group, rate in zip(optim.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        optim.step()
        for group, rate in zip(optim.param_groups, rates, strict=True):
            group["lr"] = rate

    def update(self, batch, noise):
        config, factor = self.sac.config, 1 - self.num_updates / self.sac.total_updates
        state, after = (self.sac._with_ones(self.sac.features(part)) for part in (batch.obs, batch.next_obs))
        taken = ((batch.act - self.sac._act_middle) / self.sac._act_scale).T
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_act, next_log_prob = self.act(after, noise[1])
            value = self.value(self.target, after, next_act).min(0).values - alpha * next_log_prob
            target = batch.reward + config.discount * ~batch.terminated * value
        self.step("critic", ((self.value(self.critic, state, taken) - target) ** 2).mean(1).sum(), factor)
        act, log_prob = self.act(state, noise[0])
        self.step("policy", (alpha * log_prob - self.value(self.critic, state, act).min(0).values).mean(), factor)
        self.step("alpha", -(self.log_alpha * (log_prob.detach() + self.sac.target_entropy)).mean(), factor)
        self.num_updates += 1
        if self.num_updates % config.target_update_interval == 0:
            for target_net, net in zip(self.target, self.critic, strict=True):
                for to, of in zip(target_net, net, strict=True):
                    for old, new in zip(to, of, strict=True):
                        if old is not None:
                            old.lerp_(new.detach(), config.tau)


class RecordedReplay(BeliefReplay):
    """Keeps what was drawn, and where the generator stood."""

    def __init__(self, replay):
        self.replay, self.drawn = replay, []

    def draw(self, num, generator):
        batch = self.replay.draw(num, generator)
        self.drawn.append((batch, generator.get_state()))
        return batch


def same_draws(recorded, num_updates, act_dim, size):
    """Return the minibatches and the noise that the fast version used."""
    generator = torch.Generator()
    for batch, state in recorded.drawn:
        generator.set_state(state)
        count = len(batch.reward) // size
        noise = torch.randn(count, 2, act_dim, size, generator=generator)
        for step in range(count):
            rows = slice(step * size, (step + 1) * size)
            yield type(batch)(*(part[rows] for part in batch)), noise[step]


class TestUpdate:
    @pytest.mark.parametrize(
        ("hidden_sizes", "is_compiled"),
        [([13], True), ([13], False), ([13, 7], True), ([13, 7], False), ([13, 7, 5], False)],
        ids=["compiled", "torch", "compiled, 2 layers", "torch, 2 layers", "torch, 3 layers"],
    )
    def test_equals_the_plain_version(self, hidden_sizes, is_compiled):
        config = SacConfig(
            hidden_sizes=hidden_sizes, batch_size=16, target_update_interval=3, tau=0.2, weight_decay=1e-2,
            policy_lr=2e-3, value_lr=5e-3, temperature_lr=1e-2, target_entropy=None, discount=0.9, angle_columns=[1],
        )  # fmt: skip
        codec = BeliefCodec(3, 4)
        sac = ContextSac(codec, BOX, config, seed=3, total_updates=60)
        assert sac.is_compiled == (len(hidden_sizes) <= 2)
        sac.is_compiled = is_compiled
        plain = PlainSac(sac)
        recorded = RecordedReplay(filled_replay(codec))
        sac.update(recorded, 10)
        for batch, noise in same_draws(recorded, 10, 2, 16):
            plain.update(batch, noise)
        for ours, theirs in ((sac.policy, plain.policy), (sac.critic, plain.critic), (sac.critic_target, plain.target)):
            for number, (weight, bias) in enumerate(ours.layers):
                for net in range(ours.num_nets):
                    assert_close(weight[net], theirs[net][number][0].detach(), rtol=1e-3, atol=1e-5)
                    if bias is not None:
                        assert_close(bias[net], theirs[net][number][1].detach(), rtol=1e-3, atol=1e-5)
        assert_close(sac.log_alpha, plain.log_alpha.detach(), rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize(("terminated", "wanted"), [(True, 1.0), (False, 2.0)])
    def test_only_termination_cuts_the_bootstrap(self, terminated, wanted):
        # Every step of a one-state world pays 1; the discounted sum with discount 1/2 is 2 unless the world ends.
        codec = BeliefCodec(1, 0)
        config = SacConfig(
            hidden_sizes=[16], batch_size=16, discount=0.5, value_lr=1e-2, tau=0.05, target_update_interval=1,
            adapt_temperature=False, initial_temperature=1e-6, linear_decay=False,
        )  # fmt: skip
        sac = ContextSac(codec, gymnasium.spaces.Box(-1.0, 1.0, (1,)), config)
        replay = BeliefReplay(codec, 1)
        for seed in range(5):
            act = np.random.default_rng(seed).uniform(-1, 1, (1, 1, 1))
            ends = np.array([[terminated]])
            replay.extend(Trajectories(np.ones((1, 2, 1)), act, reward=np.ones((1, 1)), terminated=ends))
        metrics = sac.update(replay, 600)
        assert metrics["value"] == pytest.approx(wanted, abs=0.05)

    def test_learning_rates_fall_linearly_to_zero(self):
        codec = BeliefCodec(2, 3)
        sac = ContextSac(codec, BOX, dataclasses.replace(QUICK, linear_decay=True), total_updates=8)
        replay = filled_replay(codec)
        sac.update(replay, 2)
        assert sac.lr_factor == 0.75
        sac.update(replay, 6)
        assert sac.lr_factor == 0.0
        before = sac.policy.flat.detach().clone()
        sac.update(replay, 2)
        assert torch.equal(sac.policy.flat.detach(), before)

    def test_a_fixed_temperature_stays(self):
        codec = BeliefCodec(2, 3)
        config = dataclasses.replace(QUICK, adapt_temperature=False, initial_temperature=0.3)
        sac = ContextSac(codec, BOX, config)
        assert sac.update(filled_replay(codec), 5)["temperature"] == pytest.approx(0.3)

    def test_mbrl_libs_interface_learns_the_same_way(self):
        codec = BeliefCodec(2, 3)
        replay, sac = filled_replay(codec), ContextSac(codec, BOX, QUICK)
        everything = replay.get_all()
        buffer = mbrl.util.ReplayBuffer(len(replay), (5,), (2,), rng=np.random.default_rng(0))
        for obs, act, reward, next_obs, terminated in zip(*(part.numpy() for part in everything), strict=True):
            buffer.add(obs, act, next_obs, reward, terminated, False)
        before = sac.critic.flat.detach().clone()
        numbers = [sac.update_parameters(buffer, 32, step, reverse_mask=True) for step in range(60)]
        assert np.shape(numbers) == (60, 5)
        assert not torch.equal(sac.critic.flat.detach(), before)
        assert np.mean([row[0] for row in numbers[-10:]]) < np.mean([row[0] for row in numbers[:10]])
        other = ContextSac(codec, BOX, QUICK)
        assert np.isfinite(other.update_parameters(replay, 32, 0, reverse_mask=True)).all()

    def test_divergence_is_reported(self):
        codec = BeliefCodec(2, 0)
        replay = BeliefReplay(codec, 2)
        replay.extend(Trajectories(np.ones((1, 3, 2)), np.zeros((1, 2, 2)), reward=np.full((1, 2), 1e38)))
        with pytest.raises(FitError, match="value_lr"):
            ContextSac(codec, BOX, QUICK).update(replay, 3)

    @pytest.mark.parametrize("hidden", [[8], [8, 8, 8]], ids=["compiled", "torch"])
    @pytest.mark.parametrize("what", ["loss", "policy", "critic"])
    def test_divergence_is_found_in_its_update(self, hidden, what):
        """A bad reward in the third of eight minibatches, or bad moments of Adam, end the run in that very update."""
        learner = SacLearner(2, 1, dataclasses.replace(QUICK, hidden_sizes=hidden), 0.0, 0, None, torch.device("cpu"))
        inputs, reward = torch.randn(8, 2, 4, 16), torch.zeros(8, 16)
        if what == "loss":
            reward[2, 5] = float("nan")
        else:
            getattr(learner, f"{what}_optim").mean[..., 1] = float("inf")
        with pytest.raises(DivergenceError, match=f"in update {3 if what == 'loss' else 1} "):
            learner.learn(inputs, reward, torch.full((8, 16), 0.9))


class TestActing:
    def test_stock_sac_agent_wraps_it(self):
        agent = SACAgent(ContextSac(BeliefCodec(2, 3), BOX, QUICK, seed=1))
        packed = rand(200, 5).numpy() * 10
        for acts in (agent.act(packed, batched=True), agent.act(packed, sample=True, batched=True)):
            assert acts.shape == (200, 2)
            assert (acts >= BOX.low).all()
            assert (acts <= BOX.high).all()
        mean = agent.act(packed[0])
        assert mean.shape == (2,)
        np.testing.assert_allclose(mean, agent.act(packed, batched=True)[0], rtol=1e-5, atol=1e-6)
        assert (agent.act(packed[0], sample=True) != agent.act(packed[0], sample=True)).any()

    def test_only_its_own_seed_matters(self):
        packed = rand(3, 5).numpy()
        acts = []
        for seed, outside in ((1, 5), (1, 6), (2, 6)):
            torch.manual_seed(outside)
            acts.append(ContextSac(BeliefCodec(2, 3), BOX, QUICK, seed=seed).select_action(packed, batched=True))
            torch.rand(outside)
        np.testing.assert_array_equal(acts[0], acts[1])
        assert (acts[0] != acts[2]).any()

    def test_angles_are_seen_as_angles(self):
        sac = ContextSac(BeliefCodec(3, 2), BOX, dataclasses.replace(QUICK, angle_columns=[1]))
        packed = rand(1, 5).repeat(2, 1)
        packed[1, 1] += 4 * math.pi
        features = sac.features(packed)
        assert_close(features[0], features[1], rtol=0, atol=1e-5)
        obs = packed[0]
        wanted = torch.stack([obs[0], obs[2], obs[1].sin(), obs[1].cos(), obs[3], obs[4]])
        assert_close(features[0], wanted)

    @pytest.mark.parametrize("way", ["update", "update_parameters"])
    def test_standardised_it_learns_the_same_in_any_units(self, way):
        config = dataclasses.replace(QUICK, angle_columns=[1], standardise_obs=True)
        codec = BeliefCodec(3, 0)
        data = filled_replay(codec).trajectories
        # The first column in other units and far from zero; the last never changes.
        obs = np.array(data.obs)
        obs[..., 2] = 7.0
        other = obs * [1e4, 1.0, 1.0] + [3e3, 0.0, 0.0]
        acts = []
        for seen in (obs, other):
            replay = BeliefReplay(codec, 2)
            replay.extend(
                Trajectories(seen, data.act, lengths=data.lengths, reward=data.reward, terminated=data.terminated)
            )
            sac = ContextSac(codec, BOX, config, seed=4)
            if way == "update":
                sac.update(replay, 20)
            else:
                sac.update_parameters(replay, 4096, 0, reverse_mask=True)
            assert sac.features(replay.get_all().obs).abs().max() < 10.0
            acts.append(sac.select_action(replay.get_all().obs.numpy(), batched=True, evaluate=True))
        assert np.ptp(acts[0]) > 0.01
        np.testing.assert_allclose(acts[1], acts[0], atol=2e-3)
        assert sac.features(replay.get_all().obs)[:, 1].abs().max() == 0.0

    @pytest.mark.parametrize("units", [False, True])
    def test_after_dropping_contexts_it_acts_and_learns_the_same(self, units):
        codec = BeliefCodec(2, 5)
        kept = np.array([False, True, False, True, True])
        config = dataclasses.replace(QUICK, angle_columns=[0], standardise_obs=units, magnify_obs=units)
        config = dataclasses.replace(config, averaged_updates=9 if units else None)
        wide = ContextSac(codec, BOX, config, seed=4)
        rng = np.random.default_rng(0)
        data = filled_replay(BeliefCodec(2, 0)).trajectories
        beliefs = np.zeros((len(data), data.max_steps + 1, 5))
        beliefs[..., kept] = rng.dirichlet(np.ones(3), beliefs.shape[:2])
        replays = BeliefReplay(codec, 2), BeliefReplay(BeliefCodec(2, 3), 2)
        replays[0].extend(data, beliefs)
        replays[1].extend(data, beliefs[..., kept])
        wide.update(replays[0], 20)
        narrow = wide.drop_contexts(kept)
        assert narrow.codec == BeliefCodec(2, 3)

        def acts():
            return [
                sac.select_action(replay.get_all().obs.numpy(), batched=True, evaluate=evaluate)
                for evaluate in (True, False)
                for sac, replay in zip((wide, narrow), replays, strict=True)
            ]

        for _ in range(2):
            mean, narrow_mean, draw, narrow_draw = acts()
            np.testing.assert_allclose(narrow_mean, mean, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(narrow_draw, draw, rtol=1e-4, atol=1e-5)
            wide.update(replays[0], 5)
            narrow.update(replays[1], 5)
        with pytest.raises(ConfigError, match="at least one of 5"):
            wide.drop_contexts(np.zeros(5, bool))


class TestAveraging:
    def test_evaluations_take_the_average_of_the_latest_policies(self):
        codec = BeliefCodec(2, 3)
        config = dataclasses.replace(QUICK, averaged_updates=20)
        sac, plain = (ContextSac(codec, BOX, each, seed=1) for each in (config, QUICK))
        replay, average = filled_replay(codec), sac.policy.flat.detach().clone()
        for _ in range(3):
            for learner in (sac, plain):
                learner.update(replay, 10)
            average += (1.0 - 0.95**10) * (sac.policy.flat.detach() - average)
        assert_close(sac.calm_policy.flat.detach(), average)
        assert_close(sac.policy.flat, plain.policy.flat, rtol=0, atol=0)  # it learns the same
        packed = rand(1, 5).numpy()
        calm, latest = (each.select_action(packed, batched=True, evaluate=True) for each in (sac, plain))
        assert np.abs(calm - latest).max() > 1e-4
        sac.calm_policy.load_flat(torch.zeros_like(average))
        np.testing.assert_allclose(sac.select_action(packed, batched=True, evaluate=True), [[0.0, -1.0]])
        drawn = [each.select_action(packed, batched=True) for each in (sac, plain)]
        np.testing.assert_allclose(*drawn)  # exploring does not use the average


class TestResume:
    @DEPTHS
    def test_is_bit_exact(self, hidden_sizes, tmp_path):
        codec = BeliefCodec(2, 3)
        units = {"standardise_obs": True, "magnify_obs": True, "averaged_updates": 9}
        config = dataclasses.replace(QUICK, hidden_sizes=hidden_sizes, linear_decay=True, **units)
        replay = filled_replay(codec)
        whole = ContextSac(codec, BOX, config, seed=1, total_updates=200)
        whole.update(replay, 33)
        whole.save_checkpoint(ckpt_path=tmp_path / "sac.safetensors")
        resumed = ContextSac(codec, BOX, config, seed=2, total_updates=200)
        resumed.load_checkpoint(tmp_path / "sac.safetensors")
        for sac in (whole, resumed):
            sac.select_action(np.ones(5))
            sac.update(replay, 21)
        states = whole.state_dict(), resumed.state_dict()
        assert states[0].keys() == states[1].keys()
        for name, value in states[0].items():
            assert torch.equal(value, states[1][name]), name

    def test_the_wrong_state_is_refused(self, tmp_path):
        small, wide = (ContextSac(BeliefCodec(2, width), BOX, QUICK) for width in (3, 4))
        with pytest.raises(CheckpointError, match="sizes of observation"):
            wide.load_state_dict(small.state_dict())
        scaled = ContextSac(BeliefCodec(2, 3), BOX, dataclasses.replace(QUICK, standardise_obs=True))
        with pytest.raises(CheckpointError, match="trained with standardise_obs"):
            small.load_state_dict(scaled.state_dict())
        magnified = ContextSac(BeliefCodec(2, 3), BOX, dataclasses.replace(QUICK, magnify_obs=True))
        with pytest.raises(CheckpointError, match="trained with magnify_obs"):
            small.load_state_dict(magnified.state_dict())
        with pytest.raises(CheckpointError, match="no 'obs_centre'"):
            scaled.load_state_dict(small.state_dict())
        with pytest.raises(CheckpointError, match="no 'policy'"):
            wide.load_state_dict({})
        (tmp_path / "broken").write_bytes(b"nothing")
        with pytest.raises(CheckpointError, match="broken"):
            wide.load_checkpoint(tmp_path / "broken")


class TestToyWorld:
    """The context turns the reward's sign, r = +-act, and the belief is right 9 times out of 10 (Theorem 2)."""

    @staticmethod
    def data(num_contexts, num_episodes=60, num_steps=20):
        rng = np.random.default_rng(0)
        shape = num_episodes, num_steps + 1
        guess = rng.integers(2, size=shape)
        context = np.where(rng.random(shape) < 0.9, guess, 1 - guess)
        act = rng.uniform(-1, 1, (num_episodes, num_steps, 1))
        reward = act[..., 0] * (1 - 2 * context[:, :-1])
        data = Trajectories(rng.normal(size=(*shape, 1)), act, reward=reward)
        beliefs = 0.8 * np.eye(2)[guess] + 0.1
        replay = BeliefReplay(BeliefCodec(1, num_contexts), 1)
        replay.extend(data, beliefs if num_contexts else None)
        return replay

    def mean_reward(self, num_contexts):
        config = SacConfig(
            hidden_sizes=[32], batch_size=64, discount=0.5, policy_lr=3e-3, value_lr=3e-3, target_update_interval=1,
            initial_temperature=0.05, linear_decay=False,
        )  # fmt: skip
        replay = self.data(num_contexts)
        sac = ContextSac(replay.codec, gymnasium.spaces.Box(-1.0, 1.0, (1,)), config)
        sac.update(replay, 500)
        obs = np.random.default_rng(1).normal(size=(200, 1))
        expected = []
        for guess in range(2):
            belief = np.tile(0.8 * np.eye(2)[guess] + 0.1, (200, 1))[:, :num_contexts]
            acts = sac.select_action(replay.codec.pack(obs, belief), batched=True, evaluate=True)
            expected.append(acts.mean() * 0.8 * (1 - 2 * guess))
        return np.mean(expected)

    def test_the_belief_earns_what_a_blind_policy_cannot(self):
        assert self.mean_reward(2) > 0.7  # 0.8 is the most that this belief allows
        assert abs(self.mean_reward(0)) < 0.1


class TestConfig:
    def test_the_papers_table(self):
        hard, drone, crossing = (PAPER_SAC[name] for name in ("cartpole_hard", "drone", "intersection"))
        assert (hard.policy_lr, hard.temperature_lr, hard.target_entropy, hard.initial_temperature) == (
            7e-4, 7e-5, -0.05, 0.8,
        )  # fmt: skip
        assert (drone.discount, drone.hidden_sizes, drone.policy_lr) == (0.999, [256], 3e-4)
        assert (crossing.hidden_sizes, crossing.weight_decay, crossing.target_entropy) == ([256, 256], 1e-6, -0.01)
        assert {config.target_update_interval for config in PAPER_SAC.values()} == {4}

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"discount": 1.5}, "agent.discount must be at most 1"),
            ({"hidden_sizes": []}, "hidden_sizes"),
            ({"angle_columns": [2]}, "angle_columns must be different columns below 2"),
            ({"angle_columns": [1, 1]}, "angle_columns"),
            ({"linear_decay": True}, "total_updates"),
        ],
    )
    def test_bad_settings_are_refused(self, change, message):
        with pytest.raises(ConfigError, match=message):
            ContextSac(BeliefCodec(2, 3), BOX, dataclasses.replace(QUICK, **change))

    def test_unbounded_actions_are_refused(self):
        with pytest.raises(ConfigError, match="bounded"):
            ContextSac(BeliefCodec(2, 3), gymnasium.spaces.Box(-np.inf, np.inf, (2,)), QUICK)
