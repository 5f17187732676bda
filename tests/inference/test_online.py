"""One step of the online filter: Bayes' rule by hand, steps that tell nothing, its state, and what it allocates."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from mbrl_hdp.errors import DataError
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.online import OnlineFilter
from mbrl_hdp.inference.row_density import compiled_row
from mbrl_hdp.types import TaskSpec

TRANSITION = np.array([[0.9, 0.1], [0.3, 0.7]])


def after(log_lik):
    online = OnlineFilter(np.array([0.2, 0.8]), TRANSITION, lambda *_: np.array(log_lik))
    online.reset(np.zeros(1))
    return online.update(np.zeros(1), np.zeros(1)), online


def test_bayes_rule():
    belief, online = after([0.0, -1.0])
    wanted = np.array([0.2, 0.8 * np.exp(-1.0)])
    np.testing.assert_allclose(online.filtered, wanted / wanted.sum(), rtol=1e-12)
    np.testing.assert_allclose(belief, wanted / wanted.sum() @ TRANSITION, rtol=1e-12)
    np.testing.assert_allclose(online.log_evidence, np.log(wanted.sum()), rtol=1e-12)


def test_only_differences_of_the_likelihood_count():
    belief, online = after([-1e5, -1e5 - 1.0])
    np.testing.assert_allclose(belief, after([0.0, -1.0])[0], rtol=1e-9)
    np.testing.assert_allclose(online.log_evidence, -1e5 + np.log(0.2 + 0.8 * np.exp(-1.0)), rtol=1e-12)


@pytest.mark.parametrize(
    ("log_lik", "evidence"),
    [
        ([np.nan, 0.0], np.nan),
        ([0.0, np.nan], np.nan),
        ([np.nan, np.nan], np.nan),
        ([-np.inf, np.nan], np.nan),
        ([-np.inf, -np.inf], -np.inf),
        ([np.inf, 0.0], np.inf),
    ],
)
def test_a_step_that_tells_nothing_only_moves_on(log_lik, evidence):
    belief, online = after(log_lik)
    np.testing.assert_array_equal(online.filtered, [0.2, 0.8])
    np.testing.assert_allclose(belief, [0.42, 0.58], rtol=1e-12)
    np.testing.assert_equal(online.log_evidence, evidence)


@pytest.fixture(scope="module")
def density():
    registry = load_registry()
    task = TaskSpec(max_contexts=2, obs_dim=3, act_dim=2, seed=3)
    dynamics = registry.build_dynamics("delta_mlp", task, registry.get("dynamics", "delta_mlp").spec.config())
    return compiled_row(dynamics, torch.arange(2))


def fresh(density):
    return OnlineFilter(np.array([0.2, 0.8]), TRANSITION, density)


def steps(count=40):
    rng = np.random.default_rng(5)
    return rng.normal(size=(count + 1, 3)), rng.normal(size=(count, 2))


def test_equals_the_update_by_hand(density):
    obs, act = steps()
    online, belief = fresh(density), np.array([0.2, 0.8])
    online.reset(obs[0])
    for t in range(len(act)):
        weight = belief * np.exp(density(obs[t], act[t], obs[t + 1]))
        belief = weight / weight.sum() @ TRANSITION
        np.testing.assert_allclose(online.update(act[t], obs[t + 1]), belief, rtol=1e-12)
        np.testing.assert_allclose(online.filtered, weight / weight.sum(), rtol=1e-12)
        np.testing.assert_allclose(online.log_evidence, np.log(weight.sum()), rtol=1e-10)


def test_what_it_returned_stays_as_it_is(density):
    obs, act = steps()
    online = fresh(density)
    start = online.reset(obs[0])
    first, filtered, attribute = online.update(act[0], obs[1]), online.filtered, online.belief
    kept = first.copy(), filtered.copy(), attribute.copy()
    own = np.empty(2)
    assert online.update(act[1], obs[2], out=own) is own
    np.testing.assert_array_equal(own, online.belief)
    assert not np.array_equal(own, kept[0])
    for found, wanted in zip((first, filtered, attribute, start), (*kept, [0.2, 0.8]), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_the_observation_is_copied(density):
    obs, act = steps(2)
    online, other = fresh(density), fresh(density)
    buffer = obs[0].copy()
    online.reset(buffer)
    other.reset(obs[0])
    buffer[:] = obs[1]  # a control loop that reads its sensors into one array
    online.update(act[0], buffer)
    other.update(act[0], obs[1])
    buffer[:] = obs[2]
    np.testing.assert_array_equal(online.update(act[1], buffer), other.update(act[1], obs[2]))


MEASURE = """
import tracemalloc
import numpy as np
import torch
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.belief.phase_filter import PhaseUpdate
from mbrl_hdp.inference.online import OnlineFilter, PhaseFilter
from mbrl_hdp.inference.row_density import compiled_row
from mbrl_hdp.types import PhaseChain, TaskSpec

registry = load_registry()
size = 400
task = TaskSpec(max_contexts=size, obs_dim=size, act_dim=size)
config = registry.get("dynamics", "delta_mlp").spec.config(hidden_sizes=[1])
dynamics = registry.build_dynamics("delta_mlp", task, config)
rng = np.random.default_rng(5)
chain = rng.dirichlet(np.ones(size), size)
density = compiled_row(dynamics, torch.arange(size))
if HAS_PHASES:
    stays = [np.full(2 * size, 0.5 / size), *np.tile([[0.5, 0.8], [0.5, 0.0], [0.0, 0.2]], size), chain]
    phases = PhaseChain.of([torch.as_tensor(part) for part in stays], [2] * size)
    online = PhaseFilter(PhaseUpdate(phases), density)
else:
    online = OnlineFilter(chain[0], chain, density)
obs, act, out = list(rng.normal(size=(21, size))), list(rng.normal(size=(20, size))), np.empty(size)
online.reset(obs[0])

def run(target):
    for t in range(20):
        online.update(act[t], obs[t + 1], out=target)

def measure(target):
    run(target)
    tracemalloc.start()
    for _ in range(20):
        run(target)  # objects that numba keeps for its next calls are traced from here on
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    run(target)
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(after - before, peak - before)

measure(out)  # the interpreter fills its own caches
measure(out)
measure(None)
"""


@pytest.mark.parametrize("has_phases", [False, True])
def test_no_array_is_allocated(has_phases):
    """In a process of its own: the shape checks of the test suite allocate."""
    script = f"HAS_PHASES = {has_phases}\n{MEASURE}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    (growth, peak), (_, peak_of_copies) = (map(int, line.split()) for line in done.stdout.splitlines()[-2:])
    assert growth <= 100  # nothing grows: the evidence and the count of steps are replaced by new numbers
    array = 400 * 8  # bytes of any row, action or belief of this model
    assert peak < array < peak_of_copies, (peak, peak_of_copies)


@pytest.mark.parametrize("medium", ["npz", "json"])
def test_a_restored_filter_goes_on_as_if_never_stopped(density, medium):
    obs, act = steps()
    online = fresh(density)
    online.reset(obs[0])
    for t in range(20):
        online.update(act[t], obs[t + 1])
    if medium == "npz":
        file = io.BytesIO()
        np.savez(file, **online.state())
        file.seek(0)
        state = np.load(file, allow_pickle=False)
    else:
        state = json.loads(json.dumps({name: value.tolist() for name, value in online.state().items()}))
    other = fresh(density)
    other.restore(state)
    assert (other.num_steps, other.log_evidence) == (20, online.log_evidence)
    np.testing.assert_array_equal(other.filtered, online.filtered)
    for t in range(20, 40):
        np.testing.assert_array_equal(other.update(act[t], obs[t + 1]), online.update(act[t], obs[t + 1]))


def test_a_state_before_the_first_reset_wants_a_reset(density):
    online = fresh(density)
    online.restore(fresh(density).state())
    with pytest.raises(DataError, match="call reset"):
        online.update(np.zeros(2), np.zeros(3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"belief": [0.5, 0.6]}, "belief of this state is no distribution"),
        ({"filtered": [np.nan, 1.0]}, "filtered of this state is no distribution"),
        ({"belief": [1.0]}, "belief: a row of 2 numbers"),
        ({"obs": np.zeros(4)}, "obs: a row of 3 numbers"),
        ({"num_steps": "many"}, "num_steps of this state is no number"),
        ({"model": "another"}, "belongs to another model"),
    ],
)
def test_what_is_no_state_is_refused_and_changes_nothing(density, changes, message):
    obs, act = steps(3)
    online = fresh(density)
    online.reset(obs[0])
    online.update(act[0], obs[1])
    before = online.state()
    with pytest.raises(DataError, match=message):
        online.restore({**fresh(density).state(), **changes})
    with pytest.raises(DataError, match="has no 'obs'"):
        online.restore({name: value for name, value in before.items() if name != "obs"})
    for name, value in online.state().items():
        np.testing.assert_array_equal(value, before[name])


def test_bad_rows_change_nothing(density):
    obs, act = steps(3)
    online = fresh(density)
    online.reset(obs[0])
    online.update(act[0], obs[1])
    before = online.state()
    for bad_act, bad_obs in ((act[1, :1], obs[2]), (act[1], obs[2, :2])):
        with pytest.raises(DataError, match="a row of"):
            online.update(bad_act, bad_obs)
    for name, value in online.state().items():
        np.testing.assert_array_equal(value, before[name])
