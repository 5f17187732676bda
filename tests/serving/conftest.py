"""Small untrained models of every built-in structure: numbers are all that matters here."""

import pytest
import torch

from mbrl_hdp.data.past import past_width
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.fit import build_model
from mbrl_hdp.inference.model import ModelParts, Part
from mbrl_hdp.types import ContextChain, TaskSpec

CASES = {
    "delta_mlp": ("delta_mlp", 3, 2, {"hidden_sizes": [8], "angle_columns": [1]}),
    "deep": ("delta_mlp", 3, 0, {"hidden_sizes": [8, 5]}),
    "cartpole": ("cartpole", 4, 1, {}),
    "drone": ("drone", 12, 4, {}),
    "vehicle": ("vehicle", 18, 2, {}),
    "all cars": ("vehicle", 18, 2, {"density": "all"}),
    "linear": ("linear", 3, 2, {}),
    "full noise": ("linear", 3, 2, {"noise": "full"}),
    "sparse": ("sparse", 3, 2, {"terms": ["x0*x4", "sin(2.0*r1)", "cos(0.5*r2)*x3", "max(x1-0.3,0)"]}),
    "heavy tails": ("sparse", 3, 2, {"terms": ["x0*x4", "sin(2.0*r1)"], "noise": "student"}),
}


def build(case, max_contexts=3, past=0):
    """Return a model whose contexts differ; its slot 1 is distilled away. Its last `past` steps are further inputs."""
    name, obs_dim, act_dim, settings = CASES[case]
    act_dim = past_width(obs_dim, act_dim, past)
    registry = load_registry()
    parts = {
        kind: Part(option, registry.get(kind, option).spec.config(**words))
        for kind, option, words in (
            ("prior", "hdp", {}),
            ("dynamics", name, settings),
            ("distillation", "stationary", {}),
        )
    }
    task = TaskSpec(max_contexts, obs_dim, act_dim, dt=0.05, seed=3, past=past)
    model = build_model(ModelParts(**parts), task, registry)
    generator = torch.Generator().manual_seed(1)
    obs, act = 2 * torch.randn(200, obs_dim, generator=generator), torch.randn(200, act_dim, generator=generator)
    obs = obs + torch.arange(obs_dim)
    model.dynamics.set_normaliser(obs, act, obs + 0.3 * torch.randn(200, obs_dim, generator=generator) + 0.1)
    with torch.no_grad():
        for value in model.dynamics.parameters():
            value.add_(0.2 * torch.rand(value.shape, generator=generator))
    generator = torch.Generator().manual_seed(5)
    rows = torch.rand(max_contexts + 1, max_contexts, generator=generator) + 3 * torch.eye(max_contexts + 1)[:, 1:]
    rows = rows / rows.sum(-1, keepdim=True)
    model.prior.start_from(ContextChain(rows[0], rows[1:]), 50.0)
    model.is_active[1] = False
    model.is_settled = True
    model.extract()
    assert model.slots.tolist() == [0, *range(2, max_contexts)]
    return model


@pytest.fixture(scope="session")
def make_model():
    return build


@pytest.fixture(scope="session")
def cartpole_model():
    return build("cartpole")
