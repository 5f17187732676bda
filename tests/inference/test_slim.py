"""A model without its spurious contexts says the same about data as the one it came from."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mbrl_hdp import Trajectories
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ModelParts, Part
from mbrl_hdp.inference.prior import ContextPrior
from mbrl_hdp.inference.saving import load
from mbrl_hdp.inference.slim import without_spurious
from mbrl_hdp.types import ContextChain, TaskSpec

# Slots 1 and 3 are hardly ever entered.
TRANSITION = torch.tensor(
    [
        [0.895, 0.001, 0.1, 0.001, 0.003],
        [0.3, 0.2, 0.2, 0.1, 0.2],
        [0.25, 0.001, 0.7, 0.001, 0.048],
        [0.2, 0.2, 0.2, 0.2, 0.2],
        [0.05, 0.001, 0.1, 0.001, 0.848],
    ]
)


class PlainPrior(ContextPrior):
    """The least that a prior must have."""

    def model(self):
        uniform = torch.full((self.max_contexts,), 1.0 / self.max_contexts)
        return ContextChain(uniform, uniform.expand(self.max_contexts, -1))

    def guide(self):
        """Sample nothing."""


def model_with_spare_slots(prior="hdp"):
    registry = load_registry()
    parts = ModelParts(
        *(
            Part(name, registry.get(kind, name).spec.config())
            for kind, name in (("prior", prior), ("dynamics", "delta_mlp"), ("distillation", "stationary"))
        )
    )
    model = build_model(parts, TaskSpec(max_contexts=5, obs_dim=3, act_dim=2, dt=None, seed=3), registry)
    rng = np.random.default_rng(0)
    rows = [torch.as_tensor(rng.normal(2.0, 3.0, (50, n)), dtype=torch.float32) for n in (3, 2, 3)]
    model.dynamics.set_normaliser(*rows)
    model.prior.start_from(ContextChain(torch.tensor([0.3, 0.01, 0.5, 0.01, 0.18]), TRANSITION), 5e4)
    model.extract()
    return model


def some_data():
    rng = np.random.default_rng(1)
    return Trajectories(rng.normal(2.0, 3.0, (4, 21, 3)), rng.normal(size=(4, 20, 2)), lengths=[20, 13, 20, 1])


@pytest.mark.parametrize("prior", ["hdp", "dirichlet", "mle"])
def test_same_beliefs_and_predictions_with_fewer_slots(prior):
    model = model_with_spare_slots(prior)
    assert model.kept.tolist() == [True, False, True, False, True]
    small = without_spurious(model)
    assert small.task.max_contexts == small.num_contexts == 3
    assert len(next(small.dynamics.parameters())) == 3
    np.testing.assert_allclose(small.transition, model.transition, atol=1e-5)
    np.testing.assert_allclose(small.initial, model.initial, atol=1e-5)
    data = some_data()
    np.testing.assert_allclose(small.filter(data), model.filter(data), atol=1e-4)
    np.testing.assert_allclose(small.log_likelihood(data), model.log_likelihood(data), rtol=1e-4)
    np.testing.assert_allclose(small.analyse(data).predicted, model.analyse(data).predicted, rtol=1e-3, atol=1e-3)


def test_it_is_a_copy_and_survives_saving(tmp_path):
    model = model_with_spare_slots()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    small = without_spurious(model)
    with torch.no_grad():
        next(small.dynamics.parameters()).add_(1.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    small.save(tmp_path)
    again = load(tmp_path)
    np.testing.assert_array_equal(again.transition, small.transition)
    np.testing.assert_array_equal(again.filter(some_data()), small.filter(some_data()))


def test_a_prior_that_cannot_be_set_is_named():
    model = model_with_spare_slots()
    model.prior = PlainPrior(5)
    with pytest.raises(ConfigError, match=r"'hdp' has no start_from"):
        without_spurious(model)


@pytest.mark.parametrize(("num_transitions", "strength"), [(80, 1000.0), (20_000, 20_000.0)])
def test_the_chain_stands_on_the_data_or_on_a_thousand_counts_a_row(num_transitions, strength, monkeypatch):
    model, seen = model_with_spare_slots(), []
    model.report = replace(model.report, num_transitions=num_transitions)
    kind = type(model.prior)
    real = kind.start_from
    monkeypatch.setattr(
        kind, "start_from", lambda self, chain, counts: seen.append(counts) or real(self, chain, counts)
    )
    without_spurious(model)
    assert seen == [strength]
