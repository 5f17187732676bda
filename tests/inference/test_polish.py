"""How long a model is polished: no longer than episodes that are kept aside profit from it."""

import numpy as np
import pytest
import torch

import mbrl_hdp
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.building import build_model
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.parts import ModelParts, Part
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.training import TRIAL_STEPS, Job, polish, useful_polish
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.delta_mlp import DeltaMlpConfig

STEPS = 2 * TRIAL_STEPS
# Networks that nothing keeps from learning their data by heart.
LOOSE = Part("delta_mlp", DeltaMlpConfig(weight_std=10.0))


def world(num_episodes, seed, noise=0.3):
    """One context: a point that a push moves, with much noise; four further columns say nothing."""
    rng = np.random.default_rng(seed)
    act = rng.uniform(-1, 1, (num_episodes, 20, 1))
    change = noise * rng.normal(size=(num_episodes, 20, 5))
    change[..., :1] += act
    obs = np.concatenate([np.zeros((num_episodes, 1, 5)), change.cumsum(1)], 1)
    return mbrl_hdp.Trajectories(obs, act)


def untrained(data, dynamics="delta_mlp"):
    registry = load_registry()
    names = {"prior": "hdp", "dynamics": dynamics, "distillation": "stationary"}
    parts = {kind: Part(name, registry.get(kind, name).spec.config()) for kind, name in names.items()}
    if dynamics == "delta_mlp":
        parts["dynamics"] = LOOSE
    model = build_model(ModelParts(**parts), TaskSpec(1, 5, 1, seed=0), registry)
    rows = (torch.as_tensor(each, dtype=torch.float32) for each in data.transitions())
    model.dynamics.set_normaliser(*rows)
    model.extract()
    return model


def job_of(data, aside, rate=1e-3):
    kept = None if aside is None else EpisodeTensors.of(aside)
    return Job(FitConfig(learning_rate=rate), EpisodeTensors.of(data), kept, data)


def silent(step, loss, num_kept):
    pass


def length(model, job, num_steps=STEPS):
    return useful_polish(model, job, 7, silent, num_steps)


@pytest.fixture(scope="module")
def few():
    return world(12, 0)


def test_it_ends_where_other_episodes_were_most_likely(few):
    aside, model = world(30, 1), untrained(few)
    job = job_of(few, aside)
    most = length(model, job)
    assert 0 < most < TRIAL_STEPS
    found = {}
    for steps in (most, STEPS):
        other = untrained(few)
        assert polish(other, job, 7, silent, STEPS, steps).num_steps == steps
        found[steps] = float(other.log_likelihood(aside).mean() / 20)
    assert found[most] > found[STEPS] + 0.5


def test_while_other_episodes_profit_all_steps_are_taken(few):
    assert length(untrained(few), job_of(few, world(30, 1), rate=2e-4)) == STEPS


def test_the_trial_leaves_the_model_as_it_is(few):
    model = untrained(few)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    steps = []
    useful_polish(model, job_of(few, world(5, 1)), 7, lambda step, *_: steps.append(step), STEPS)
    assert steps == list(range(TRIAL_STEPS))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dynamics", ["delta_mlp", "linear"])
def test_without_other_episodes_or_with_a_closed_form_all_steps_are_taken(few, dynamics):
    aside = world(30, 1) if dynamics == "linear" else None
    assert length(untrained(few, dynamics), job_of(few, aside)) == STEPS


def test_a_polish_as_short_as_the_trial_is_not_tried(few):
    assert length(untrained(few), job_of(few, world(30, 1)), TRIAL_STEPS) == TRIAL_STEPS


def test_a_fit_reports_the_steps_it_took():
    config = FitConfig(num_steps=50, num_restarts=1, polish_steps=STEPS, holdout=0.5, start="random")
    lines = []
    model = mbrl_hdp.fit(world(20, 0), dynamics=LOOSE, max_contexts=1, config=config, progress=lines.append)
    assert model.report.polish["stopped_early"]
    assert model.report.polish["num_steps"] < TRIAL_STEPS
    assert any(line.startswith("trial: how long to polish") for line in lines)
