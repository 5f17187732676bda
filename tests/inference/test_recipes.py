"""recipe=literal is the paper's text, piece by piece; recipe=robust is untouched by it."""

import copy

import numpy as np
import pytest
import torch
from pyro.optim.clipped_adam import ClippedAdam

import mbrl_hdp
from mbrl_hdp.distil.distiller import Distiller
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments.studies import load_study
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.elbo import ElboScale, elbo, step_log_lik
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ModelParts, Part
from mbrl_hdp.inference.prior import ContextPrior
from mbrl_hdp.inference.recipes import RECIPES
from mbrl_hdp.inference.reduction import close_paths
from mbrl_hdp.inference.schedule import LITERAL, PLAIN, FitConfig, Schedule
from mbrl_hdp.inference.trainer import Trainer
from mbrl_hdp.probability.hmm import log_evidence
from mbrl_hdp.types import ContextChain, TaskSpec

CHAIN = ContextChain(
    torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64),
    torch.tensor(
        [[0.5, 0.2, 0.2, 0.1], [0.1, 0.6, 0.1, 0.2], [0.3, 0.3, 0.1, 0.3], [0.05, 0.15, 0.5, 0.3]], dtype=torch.float64
    ),
)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    act = rng.normal(size=(10, 12, 1))
    push = np.where(np.arange(12) % 6 < 3, 1.0, -0.5)[:, None] * act
    obs = np.concatenate([np.zeros((10, 1, 1)), np.cumsum(3.0 + 20.0 * push, 1)], 1)
    return mbrl_hdp.Trajectories(obs + 0.1 * rng.normal(size=obs.shape), act)


def untrained(data, max_contexts=3, **thresholds):
    registry = load_registry()
    configs = {
        kind: registry.get(kind, name).spec.config
        for kind, name in (("prior", "hdp"), ("dynamics", "delta_mlp"), ("distillation", "stationary"))
    }
    heads = RECIPES["literal"].settle_dynamics(configs["dynamics"](hidden_sizes=[5]))
    parts = ModelParts(
        Part("hdp", configs["prior"]()),
        Part("delta_mlp", heads),
        Part("stationary", configs["distillation"](**thresholds)),
    )
    return build_model(parts, TaskSpec(max_contexts, data.obs_dim, data.act_dim, seed=1), registry)


def trainer_of(model, data, recipe="literal", schedule=LITERAL):
    config = FitConfig(recipe=recipe, num_steps=3)
    generator = torch.Generator().manual_seed(0)
    tensors = EpisodeTensors.of(data)
    return Trainer(model.prior, model.dynamics, model.distillation, tensors, config, schedule, generator)


def test_closing_paths_only_leaves_out():
    found = close_paths(CHAIN, torch.tensor([False, True, False, True]))
    assert found.initial.tolist() == [0.4, 0.2]
    assert found.transition.tolist() == [[0.6, 0.2], [0.15, 0.3]]


@pytest.mark.parametrize(
    ("recipe", "chain"),
    [
        # Theorem 1 by hand: R11 + R12 R21 / (1 - R22) with slot 1 removed, and the initial distribution normalised.
        ("literal", ContextChain(torch.tensor([0.25, 0.75]), torch.tensor([[0.65, 0.35], [0.35, 0.65]]))),
        ("robust", ContextChain(torch.tensor([0.2, 0.6]), torch.tensor([[0.5, 0.2], [0.1, 0.4]]))),
    ],
)
def test_what_each_recipe_does_to_a_masked_chain_inside_the_bound(data, recipe, chain):
    """One training step's loss is the bound with this chain: the trainer reduces, and in the recipe's own way."""
    model = untrained(data, train_threshold=0.3)
    point = PointPrior([0.2, 0.2, 0.6], [[0.5, 0.3, 0.2], [0.4, 0.2, 0.4], [0.1, 0.5, 0.4]])
    trainer = trainer_of(model, data, recipe, Schedule(freeze_until=0.0, distil_from=0.0))
    trainer.prior = point
    trainer.distillation = KeepFirstAndLast()
    with torch.no_grad():
        log_lik = step_log_lik(model.dynamics, trainer.data.batch())[..., [0, 2]]
        wanted = -(log_evidence(chain, log_lik, trainer.data.lengths).double().sum() + model.dynamics.log_prior())
    loss = trainer._step(0.95)
    assert trainer.keep.tolist() == [True, False, True]
    unit = trainer.data.num_transitions if recipe == "robust" else 1
    assert loss * unit == pytest.approx(wanted.item(), rel=1e-5)


class PointPrior(ContextPrior):
    """A chain that is known."""

    def __init__(self, initial, transition):
        super().__init__(len(initial))
        self.chain = ContextChain(torch.tensor(initial), torch.tensor(transition))

    def model(self):
        return self.chain

    def guide(self):
        pass


class KeepFirstAndLast(Distiller):
    def keep(self, posterior):
        return torch.tensor([True, False, True])


def test_a_literal_step_is_pyros_clipped_adam_on_the_whole_bound(data):
    """Second route: the paper's loss (N/B times the batch, not divided) and Pyro's optimiser at the paper's rates."""
    model = untrained(data, train_threshold=0.0)
    other = copy.deepcopy(model)
    torch.manual_seed(3)
    trainer_of(model, data).run()
    rates = ((other.dynamics.parameters(), 5e-3), ([other.prior.raw_rows], 1e-2), ([other.prior.raw_top], 1e-2))
    optimiser = ClippedAdam([{"params": list(params), "lr": rate} for params, rate in rates], clip_norm=10.0)
    tensors = EpisodeTensors.of(data)
    torch.manual_seed(3)
    for _ in range(3):
        optimiser.zero_grad()
        (-elbo(other.prior, other.dynamics, tensors.batch(), ElboScale(len(tensors), 1)).value).backward()
        assert max(float(p.grad.abs().max()) for p in other.dynamics.parameters()) > 10.0  # the clip bites
        optimiser.step()
    for (name, found), wanted in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


def test_the_literal_chain_starts_at_the_prior(data):
    config = FitConfig(
        recipe="literal", num_steps=1, learning_rate=1e-9, row_learning_rate=1e-9, top_learning_rate=1e-9
    )
    model = mbrl_hdp.fit(data, max_contexts=3, config=config, progress=False)
    torch.testing.assert_close(model.prior.q_rows(), model.prior.expected_prior_rows(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.prior.top_weights(), torch.full((3,), 1 / 3))


def test_a_literal_fit_has_no_more_than_the_paper(data):
    config = FitConfig(recipe="literal", num_steps=4, batch_size=5)
    model = mbrl_hdp.fit(data, max_contexts=3, config=config, progress=False)
    assert [run["schedule"] for run in model.report.runs] == ["literal"]
    assert model.report.polish == {}
    for scaler in (model.dynamics.input_scaler, model.dynamics.target_scaler):
        assert scaler.centre.abs().max() == 0.0
        assert (scaler.scale == 1.0).all()
    assert model.dynamics.std_floor == 0.0
    assert model.parts.dynamics.config.final_std_floor == 0.0
    assert model.parts.dynamics.config.skip_share == 0.0


def test_another_seed_draws_other_weights_and_the_same_seed_the_same(data):
    config = FitConfig(recipe="literal", num_steps=2)
    one, two, other = (
        mbrl_hdp.fit(data, max_contexts=2, seed=seed, config=config, progress=False).dynamics.heads.weights[0]
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, two)
    assert not torch.allclose(one, other)


@pytest.mark.parametrize(("recipe", "comes_back"), [("literal", True), ("robust", False)])
def test_a_context_can_come_back_during_literal_training_only(data, recipe, comes_back):
    model = untrained(data, train_threshold=0.2)
    trainer = trainer_of(model, data, recipe, PLAIN)
    at_start = copy.deepcopy(model.prior.state_dict())
    rare = torch.tensor([[0.5, 0.45, 0.05]]).expand(3, 3)
    model.prior.start_from(ContextChain(rare[0], rare), 100.0)
    trainer._mask(1.0)
    assert trainer.keep.tolist() == [True, True, False]
    model.prior.load_state_dict(at_start)
    trainer._mask(1.0)
    assert trainer.keep.tolist() == [True, True, comes_back]


def test_reset_chain_puts_the_literal_q_back(data):
    short = FitConfig(recipe="literal", num_steps=1, row_learning_rate=1e-9, top_learning_rate=1e-9)
    model = mbrl_hdp.fit(data, max_contexts=3, config=short, progress=False)
    with torch.no_grad():
        model.prior.raw_rows += 1.0
        model.prior.raw_top += 1.0
    gone_on = mbrl_hdp.fit(data, config=short, warm_start=model, progress=False)
    torch.testing.assert_close(gone_on.prior.raw_top, model.prior.raw_top)
    reset = mbrl_hdp.fit(data, config=short, warm_start=model, reset="chain", progress=False)
    torch.testing.assert_close(reset.prior.raw_top, model.prior.raw_top - 1.0)
    torch.testing.assert_close(reset.prior.raw_rows, model.prior.raw_rows - 1.0)


@pytest.mark.parametrize(
    "changes", [{"num_restarts": 2}, {"polish_steps": 7}, {"holdout": 0.3}, {"schedules": [PLAIN]}], ids=str
)
def test_what_literal_fixes_cannot_be_asked_for(data, changes):
    key = next(iter(changes))
    with pytest.raises(ConfigError, match=rf"fit\.{key}=.*recipe=literal"):
        mbrl_hdp.fit(data, max_contexts=2, config=FitConfig(recipe="literal", **changes), progress=False)


def test_robust_fixes_nothing():
    config = FitConfig(num_restarts=5, polish_steps=3, holdout=0.4, schedules=[PLAIN])
    assert RECIPES["robust"].settle(config) == config


def test_a_transition_model_without_those_settings_is_left_alone():
    config = load_registry().get("prior", "mle").spec.config()
    assert RECIPES["literal"].settle_dynamics(config) is config


def test_the_study_reads_the_robust_cells():
    study, robust = load_study("recipes"), load_study("robust")
    cells = study.cells(None, False)
    assert len({str(cell) for cell in cells}) == len(cells) == 20
    shared = [cell for cell in cells if cell in robust.cells(None, False)]
    assert [cell["seed"] for cell in shared] == [100, 101, 102, 103, 104]


@pytest.mark.parametrize(("recipe", "rate"), [("robust", 0.05), ("literal", 0.01)])
def test_the_shared_weights_have_the_learning_rate_that_the_help_states(data, recipe, rate):
    model = untrained(data)
    groups = trainer_of(model, data, recipe).optimiser.param_groups
    top = {id(value) for value in model.prior.top_parameters()}
    assert [group["lr"] for group in groups if top & {id(value) for value in group["params"]}] == [rate]
