"""The compiled density of one step gives the model's own numbers, or stands aside."""

import numpy as np
import pytest
import torch

from mbrl_hdp.errors import DataError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.row_density import CompiledRow, compiled_row, fill_row
from mbrl_hdp.types import TaskSpec

CASES = {
    "delta_mlp": ("delta_mlp", 3, 2, {}),
    "angles": ("delta_mlp", 3, 2, {"angle_columns": [0, 2]}),
    "deep": ("delta_mlp", 3, 2, {"hidden_sizes": [8, 5, 7]}),
    "deeper": ("delta_mlp", 3, 0, {"hidden_sizes": [4, 9]}),
    "cartpole": ("cartpole", 4, 1, {}),
    "drone": ("drone", 12, 4, {}),
    "vehicle": ("vehicle", 18, 2, {}),
    "all cars": ("vehicle", 18, 2, {"density": "all"}),
    "linear": ("linear", 3, 2, {}),
    "linear, full noise": ("linear", 3, 2, {"noise": "full"}),
    "sparse": ("sparse", 3, 2, {"terms": ["x0*x4", "sin(2.0*r1)", "cos(0.5*r2)*x3", "max(x1-0.3,0)", "x0*x0*x1"]}),
}


def build(name, obs_dim, act_dim, settings=None):
    registry = load_registry()
    config = registry.get("dynamics", name).spec.config(**(settings or {}))
    task = TaskSpec(max_contexts=4, obs_dim=obs_dim, act_dim=act_dim, dt=0.05, seed=3)
    return registry.build_dynamics(name, task, config)


def rows_of(obs_dim, act_dim, count=50):
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(count, obs_dim, generator=generator, dtype=torch.float64)
    act = torch.randn(count, act_dim, generator=generator, dtype=torch.float64)
    return obs, act, obs + 0.3 * torch.randn(count, obs_dim, generator=generator, dtype=torch.float64) + 0.1


def varied(case):
    """Return dynamics in double precision whose every parameter is away from where it starts, and rows for them."""
    name, obs_dim, act_dim, settings = CASES[case]
    dynamics, rows = build(name, obs_dim, act_dim, settings), rows_of(obs_dim, act_dim)
    dynamics.set_normaliser(*rows)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for value in dynamics.parameters():
            value.add_(0.2 * torch.rand(value.shape, generator=generator))
    return dynamics.double(), rows


@pytest.mark.parametrize("case", CASES)
def test_equals_the_batched_density(case):
    dynamics, rows = varied(case)
    slots = torch.tensor([2, 0])
    quick = compiled_row(dynamics, slots)
    assert isinstance(quick, CompiledRow)
    with torch.no_grad():
        wanted = dynamics.log_prob_slots(*rows, slots).numpy()
    found = [quick(*(row[step].numpy() for row in rows)) for step in range(len(rows[0]))]
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)
    assert np.ptp(wanted, axis=1).min() > 0  # the contexts differ


def test_a_column_that_never_changes_carries_no_density():
    for name in ("delta_mlp", "linear", "sparse"):
        dynamics = build(name, 3, 2)
        obs, act, next_obs = (row.float() for row in rows_of(3, 2))
        next_obs[:, 1] = obs[:, 1]
        dynamics.set_normaliser(obs, act, next_obs)
        slots = torch.arange(4)
        with torch.no_grad():
            wanted = dynamics.log_prob_slots(obs[:1], act[:1], next_obs[:1], slots)[0].numpy()
        found = compiled_row(dynamics, slots)(obs[0].numpy(), act[0].numpy(), next_obs[0].numpy())
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("missing", range(3))
@pytest.mark.parametrize("name", ["delta_mlp", "linear", "sparse"])
def test_missing_values_give_no_number(name, missing):
    dynamics = build(name, 3, 2)
    rows = [row[0].numpy().copy() for row in rows_of(3, 2)]
    rows[missing][-1] = np.nan
    assert np.isnan(CompiledRow(dynamics.density_table(torch.arange(4)))(*rows)).all()


def test_rows_of_another_width_are_refused():
    quick = compiled_row(build("delta_mlp", 3, 2), torch.arange(4))
    with pytest.raises(DataError, match="act: a row of 2 numbers is needed here, got shape \\(1,\\)"):
        quick(np.zeros(3), np.zeros(1), np.zeros(3))
    with pytest.raises(DataError, match="next_obs: a row of numbers is needed"):
        fill_row(np.zeros(3), ["a", "b", "c"], "next_obs")


def test_other_structures_are_left_to_torch():
    dynamics = build("delta_mlp", 3, 2)
    dynamics.layout = lambda: None
    assert compiled_row(dynamics, torch.arange(4)) is None

    dynamics = build("delta_mlp", 3, 2)
    dynamics.log_prob_slots = lambda *rows: torch.zeros(3, len(rows[-1]))  # looks alike, means something else
    assert compiled_row(dynamics, torch.arange(4)) is None

    dynamics = build("delta_mlp", 3, 2)
    with torch.no_grad():
        for value in dynamics.parameters():
            value.zero_()  # all contexts alike
    real = dynamics.log_prob_slots
    assert compiled_row(dynamics, torch.arange(4)) is not None
    dynamics.log_prob_slots = lambda *rows: real(*rows)[:, :1]  # the same numbers, but not one for each context
    assert compiled_row(dynamics, torch.arange(4)) is None
