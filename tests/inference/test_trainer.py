"""The trainer moves the chain to what the data says, in the right direction."""

import numpy as np
import pytest
import torch

import mbrl_hdp
from mbrl_hdp.errors import DivergenceError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.inference.elbo import ElboScale
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.recipes import RECIPES
from mbrl_hdp.inference.schedule import FitConfig, Schedule
from mbrl_hdp.inference.trainer import Trainer, _top_parameters
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_priors import HdpPrior, MlePrior

# A cycle that is mostly run through one way: its transpose is another chain.
CYCLE = np.array([[0.80, 0.19, 0.01], [0.02, 0.58, 0.40], [0.30, 0.05, 0.65]])
DRIFT = np.array([1.0, -2.0, 4.0])


class KnownHeads(ContextDynamics):
    """Drift by context, known and far apart against the noise: every step shows its context."""

    def __init__(self):
        super().__init__(3, 1, 0)
        self.drift = torch.nn.Parameter(torch.tensor(DRIFT, dtype=torch.float32)[:, None])

    def log_prob(self, obs, act, next_obs):
        return -0.5 * ((next_obs - obs - self.drift[:, 0]) / 0.05) ** 2

    def predict(self, obs, act, context):
        return obs + self.drift[context]

    def sample(self, obs, act, context, generator=None):
        return self.predict(obs, act, context)

    def log_prior(self):
        return self.drift.new_zeros(())

    def reset_slots(self, slots, generator=None):
        raise NotImplementedError


def cycling(num_episodes=60, num_steps=50):
    rng = np.random.default_rng(0)
    context = np.zeros((num_episodes, num_steps), dtype=int)
    context[:, 0] = rng.choice(3, p=[0.6, 0.3, 0.1], size=num_episodes)
    for t in range(1, num_steps):
        context[:, t] = [rng.choice(3, p=CYCLE[k]) for k in context[:, t - 1]]
    change = DRIFT[context] + 0.01 * rng.normal(size=context.shape)
    obs = np.concatenate([np.zeros((num_episodes, 1)), change.cumsum(1)], 1)[..., None]
    return mbrl_hdp.Trajectories(obs, context=context)


def expected_rows(prior, data):
    """Return prior + counts, the optimum of the bound where every context is known; the rows of the mean chain."""
    counts = np.zeros((4, 3))
    np.add.at(counts[0], data.context[:, 0], 1)
    np.add.at(counts, (data.context[:, :-1] + 1, data.context[:, 1:]), 1)
    rows = prior.expected_prior_rows().detach() + torch.tensor(counts, dtype=torch.float32)
    return rows / rows.sum(-1, keepdim=True)


def known_trainer(data, **changes):
    prior = HdpPrior(3, row_concentration=3.0, stickiness=1.0)
    rule = load_registry().build_distillation("stationary", TaskSpec(3))
    config = FitConfig(learning_rate=1e-9, top_learning_rate=1e-9, num_steps=60, **changes)
    schedule = Schedule(freeze_until=0.0, distil_from=1.0, decay_from=1.0)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    return Trainer(prior, KnownHeads(), rule, EpisodeTensors.of(data), config, schedule, generator)


def rows_of(prior):
    chain = prior.mean_chain()
    return torch.cat([chain.initial[None], chain.transition])


def test_training_steps_move_the_chain_to_the_counted_moves():
    data = cycling()
    trainer = known_trainer(data, natural_step=0.2)
    trainer.run()
    torch.testing.assert_close(rows_of(trainer.prior), expected_rows(trainer.prior, data), rtol=0.0, atol=0.04)


def test_settling_brings_the_chain_to_the_optimum_on_all_data():
    data = cycling()
    trainer = known_trainer(data)
    trainer.prior.start_from(trainer.start_chain, 1000.0)
    trainer.settle_chain()
    torch.testing.assert_close(rows_of(trainer.prior), expected_rows(trainer.prior, data), rtol=0.0, atol=1e-3)


def values(trainer):
    return [value.clone() for value in trainer._values()]


@pytest.mark.parametrize(
    ("loss_of", "words"),
    [
        (lambda value: value * float("nan"), "the model's loss is nan"),
        (lambda value: value - float("inf"), "the model's loss is -inf"),
        (lambda value: (value * 0.0).sqrt(), "a gradient of the model is not finite"),
    ],
)
def test_what_is_not_finite_ends_the_run_and_changes_nothing(loss_of, words, monkeypatch):
    trainer = known_trainer(cycling(2, 5))
    before, real, calls = values(trainer), Trainer._descend, []
    with pytest.raises(DivergenceError, match=words):
        trainer._descend(loss_of(trainer.dynamics.drift.sum()))
    assert all(torch.equal(one, two) for one, two in zip(before, values(trainer), strict=True))

    def descend(self, loss):
        calls.append(1)
        real(self, loss_of(self.dynamics.drift.sum()) if len(calls) == 4 else loss)

    monkeypatch.setattr(Trainer, "_descend", descend)
    with pytest.raises(DivergenceError, match=f"{words} in gradient step 3 of run {trainer.schedule.name!r}"):
        trainer.run()


@pytest.mark.parametrize(("pool_until", "wanted"), [(0.0, []), (0.1, [0]), (0.5, [4])])
def test_heads_part_once_when_the_pooled_steps_are_over(pool_until, wanted, monkeypatch):
    trainer = known_trainer(cycling(2, 5))
    trainer.schedule, trainer.num_steps = Schedule(pool_until=pool_until, freeze_until=0.6, distil_from=1.0), 10
    steps, parted, kinds = [], [], []
    monkeypatch.setattr(Trainer, "_part", lambda _: parted.append(len(kinds) - 1))
    monkeypatch.setattr(Trainer, "_pool_step", lambda _: kinds.append("pooled") or 0.0)
    monkeypatch.setattr(Trainer, "_step", lambda _, progress: kinds.append("own") or progress)
    length = trainer.run(lambda step, loss, num_open: steps.append((step, loss, num_open)))
    assert parted == wanted
    assert kinds == ["pooled"] * round(10 * pool_until) + ["own"] * round(10 - 10 * pool_until)
    assert [step for step, _, _ in steps] == list(range(10))
    assert {num_open for _, _, num_open in steps} == {3}
    assert (length.num_steps, length.is_stopped) == (10, False)


def test_natural_steps_are_taken_where_the_chain_is_free_and_the_recipe_has_them(monkeypatch):
    calls = []
    monkeypatch.setattr(HdpPrior, "natural_step", lambda _, draws, step, *rest: calls.append((len(draws), step)))
    for freeze_until, recipe, wanted in ((0.0, "robust", [(1, 0.05)]), (1.0, "robust", []), (0.0, "literal", [])):
        trainer = known_trainer(cycling(2, 5))
        trainer.schedule = Schedule(freeze_until=freeze_until, distil_from=1.0)
        trainer.recipe = RECIPES[recipe]
        calls.clear()
        trainer._step(0.5)
        assert calls == wanted


def test_the_mask_is_none_while_every_context_is_open():
    trainer = known_trainer(cycling(2, 5))
    assert trainer._mask_or_none() is None
    trainer.keep = torch.tensor([True, False, True])
    assert trainer._mask_or_none().tolist() == [True, False, True]


def test_the_loss_of_a_held_chain_is_the_evidence_under_it():
    """With contexts that every step shows, the evidence is that of the true path."""
    data = cycling(2, 5)
    trainer = known_trainer(data)
    scale = ElboScale(num_episodes=2, num_transitions=10)
    loss = trainer._frozen_loss(trainer.data.batch(), scale)
    chain = trainer.start_chain
    path = chain.initial[data.context[:, 0]].log().sum()
    path += chain.transition[data.context[:, :-1], data.context[:, 1:]].log().sum()
    change = torch.as_tensor(np.diff(data.obs[..., 0], axis=1) - DRIFT[data.context])
    wanted = path.double() - 0.5 * ((change / 0.05) ** 2).sum()
    torch.testing.assert_close(-10.0 * loss.double(), wanted, rtol=1e-4, atol=1e-3)


def test_the_loss_of_a_pooled_step_is_that_of_the_first_head_per_transition():
    data = cycling(4, 10)
    trainer = known_trainer(data)
    trainer.dynamics.log_prior = lambda: trainer.dynamics.drift.new_tensor(7.0)
    error = (np.diff(data.obs[..., 0], axis=1) - DRIFT[0]) / 0.05
    assert trainer._pool_step() == pytest.approx((0.5 * np.square(error).sum() - 7.0) / 40, rel=1e-5)


def test_only_priors_that_name_top_parameters_have_a_rate_for_them():
    prior = HdpPrior(3)
    assert [id(value) for value in _top_parameters(prior)] == [id(value) for value in prior.top_parameters()]
    assert len(_top_parameters(prior)) > 0
    assert _top_parameters(MlePrior(3)) == []
