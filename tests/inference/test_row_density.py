"""The compiled density of one step gives the model's own numbers, or stands aside."""

import numpy as np
import pytest
import torch

from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.row_density import CompiledRow, compiled_row
from mbrl_hdp.types import TaskSpec

TASKS = {"delta_mlp": (3, 2), "cartpole": (4, 1), "drone": (12, 4)}


def build(name, obs_dim, act_dim, **settings):
    registry = load_registry()
    config = registry.get("dynamics", name).spec.config(**settings)
    task = TaskSpec(max_contexts=4, obs_dim=obs_dim, act_dim=act_dim, dt=0.05, seed=3)
    return registry.build_dynamics(name, task, config)


def rows_of(obs_dim, act_dim, count=50):
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(count, obs_dim, generator=generator)
    act = torch.randn(count, act_dim, generator=generator)
    return obs, act, obs + 0.3 * torch.randn(count, obs_dim, generator=generator) + 0.1


@pytest.mark.parametrize("name", sorted(TASKS))
def test_equals_the_batched_density(name):
    sizes = TASKS[name]
    dynamics, rows = build(name, *sizes), rows_of(*sizes)
    dynamics.set_normaliser(*rows)
    with torch.no_grad():
        dynamics.raw_log_std.add_(torch.linspace(-1.0, 0.5, dynamics.raw_log_std.numel()).view_as(dynamics.raw_log_std))
    slots = torch.tensor([2, 0])
    quick = compiled_row(dynamics, slots)
    assert isinstance(quick, CompiledRow)
    with torch.no_grad():
        wanted = dynamics.log_prob_slots(*rows, slots).numpy()
    found = [quick(*(row[step].numpy() for row in rows)) for step in range(len(rows[0]))]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_column_that_never_changes_carries_no_density():
    dynamics = build("delta_mlp", 3, 2)
    obs, act, next_obs = rows_of(3, 2)
    next_obs[:, 1] = obs[:, 1]
    dynamics.set_normaliser(obs, act, next_obs)
    slots = torch.arange(4)
    with torch.no_grad():
        wanted = dynamics.log_prob_slots(obs[:1], act[:1], next_obs[:1], slots)[0].numpy()
    found = compiled_row(dynamics, slots)(obs[0].numpy(), act[0].numpy(), next_obs[0].numpy())
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("missing", range(3))
def test_missing_values_give_no_number(missing):
    dynamics = build("delta_mlp", 3, 2)
    rows = [row[0].numpy().copy() for row in rows_of(3, 2)]
    rows[missing][-1] = np.nan
    assert np.isnan(CompiledRow(dynamics, torch.arange(4))(*rows)).all()


def test_other_structures_are_left_to_torch():
    deep = build("delta_mlp", 3, 2, hidden_sizes=[8, 8])
    assert compiled_row(deep, torch.arange(4)) is None

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
