"""A model whose contexts have phases: learned from data, saved, refitted, reduced; everything shown is by context."""

import numpy as np
import pytest
import torch

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import CheckpointError, ConfigError, PluginError
from mbrl_hdp.experiments.config import FIT_CONFIG_NAME, check_fit_config, load_config
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.building import build_model
from mbrl_hdp.inference.duration import labelled_stays
from mbrl_hdp.inference.duration_choice import duration_part, learn_duration, without_phases
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.inference.model import ModelParts, Part
from mbrl_hdp.inference.saving import load
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.slim import without_spurious
from mbrl_hdp.report.stays import stay_fits
from mbrl_hdp.report.summary import summarise
from mbrl_hdp.types import TaskSpec

REGISTRY = load_registry()
DRIFT = np.array([0.3, -0.2])


def recorded(num_episodes=30, num_steps=80, seed=0, least=(5, 2)):
    """Episodes that drift up, then down, each for longer than so many steps."""
    draw = np.random.default_rng(seed)
    context = np.zeros((num_episodes, num_steps), int)
    for row in context:
        path, now = [], int(draw.integers(2))
        while len(path) < num_steps:
            path += [now] * (least[now] + draw.geometric((0.25, 0.4)[now]))
            now = 1 - now
        row[:] = path[:num_steps]
    moved = DRIFT[context] + 0.08 * draw.normal(size=context.shape)
    obs = np.concatenate([np.zeros((num_episodes, 1)), moved.cumsum(1)], 1)[..., None]
    return Trajectories(obs, np.zeros((num_episodes, num_steps, 1)), context=context)


@pytest.fixture(scope="module")
def data():
    return recorded()


@pytest.fixture
def plain(data):
    """Heads fitted to the true contexts, two of three slots in use."""
    names = {"prior": "hdp", "dynamics": "linear", "distillation": "stationary"}
    parts = {kind: Part(name, REGISTRY.get(kind, name).spec.config()) for kind, name in names.items()}
    model = build_model(ModelParts(**parts), TaskSpec(max_contexts=3, obs_dim=1, act_dim=1), REGISTRY)
    rows = [torch.as_tensor(part, dtype=torch.float32) for part in data.transitions()]
    share = torch.nn.functional.one_hot(torch.as_tensor(data.context.reshape(-1)), 3).float()
    model.dynamics.set_normaliser(*rows)
    model.dynamics.fit_heads(*rows, share)
    model.is_settled = True
    model.is_active[2] = False
    model.extract()
    return model


def part(name):
    return duration_part(REGISTRY, name, None)


def test_auto_finds_the_minimum_stays(plain, data):
    before = plain.log_likelihood(data).sum()
    learn_duration(plain, data, part("auto"), REGISTRY)
    assert (plain.report.duration["name"], plain.report.duration["sizes"]) == ("minimum", [6, 3])
    assert plain.log_likelihood(data).sum() > before + 100
    assert plain.transition.shape == (2, 2)
    np.testing.assert_allclose(1 / (1 - np.diag(plain.transition)), [9.0, 4.5], rtol=0.1)
    np.testing.assert_allclose(plain.stationary, [2 / 3, 1 / 3], atol=0.03)
    assert plain.smooth(data).shape == (30, 80, 2)
    assert (plain.most_likely(data) == data.context).mean() > 0.99


def test_geometric_changes_nothing(plain, data):
    before = plain.transition
    learn_duration(plain, data, part("geometric"), REGISTRY)
    assert plain.phases is None
    np.testing.assert_array_equal(plain.transition, before)


def test_a_fit_with_its_defaults_shows_the_stays_of_its_labels():
    """The prior weighs as much as 100 steps a context; the stays that are printed must not feel it."""
    markov = recorded(num_episodes=10, num_steps=60, least=(0, 0))
    config = FitConfig(num_steps=150, num_restarts=1, polish_steps=0, halves_within_s=0.0)
    model = fit(markov, dynamics="linear", max_contexts=3, config=config, progress=False)
    assert (model.num_contexts, model.report.duration["name"]) == (2, "geometric")
    assert model.states is None  # one phase each: filters, planners and exports see a plain chain
    stays = labelled_stays(model.most_likely(markov))
    own = [stays.of(context, has_first=True) for context in range(2)]
    counted = [each.lengths.sum() / each.is_ended.sum() for each in own]
    np.testing.assert_allclose(1 / (1 - np.diag(model.transition)), counted, rtol=0.05)
    pulled = without_phases(model)
    assert np.abs(1 / (1 - np.diag(pulled.transition)) / counted - 1).max() > 0.1


def test_defaults():
    assert duration_part(REGISTRY, None, None).name == "auto"
    assert load_config([], REGISTRY, FIT_CONFIG_NAME).duration.name == "auto"
    # Planners and resumed runs: `train` keeps the chain of its prior unless asked.
    assert load_config(["env=cartpole_hard"], REGISTRY).duration.name == "geometric"


def test_a_model_from_before_there_were_durations_counts_as_geometric(plain):
    assert plain.parts.duration is None
    assert duration_part(REGISTRY, None, plain).name == "geometric"


def test_online_filter_agrees_with_recorded_episodes(plain, data):
    learn_duration(plain, data, part("minimum"), REGISTRY)
    found, online = plain.analyse(data), plain.online_filter()
    online.reset(data.obs[0, 0])
    for step in range(40):
        online.update(data.act[0, step], data.obs[0, step + 1])
        np.testing.assert_allclose(online.filtered, found.filtered[0, step], atol=1e-4)
        np.testing.assert_allclose(online.belief, found.following[0, step], atol=1e-4)


def test_saved_and_loaded(plain, data, tmp_path):
    learn_duration(plain, data, part("auto"), REGISTRY)
    plain.save(tmp_path)
    again = load(tmp_path)
    np.testing.assert_array_equal(again.log_likelihood(data), plain.log_likelihood(data))
    assert again.report.duration == plain.report.duration
    assert again.parts.duration == plain.parts.duration  # settings within settings, too
    model = load(tmp_path)
    model.phases = model.phases.map(lambda value: value[:-1])
    model.save(tmp_path)
    with pytest.raises(CheckpointError, match="phases"):
        load(tmp_path)


def test_phases_belong_to_their_contexts(plain, data):
    learn_duration(plain, data, part("minimum"), REGISTRY)
    small = without_spurious(plain)
    np.testing.assert_array_equal(small.log_likelihood(data), plain.log_likelihood(data))
    assert without_phases(plain).phases is None
    assert duration_part(REGISTRY, None, plain).name == "minimum"
    plain.is_active[1] = False
    plain.extract()
    assert (plain.phases, plain.report.duration) == (None, {})


def test_reports_show_the_stays(plain, data):
    learn_duration(plain, data, part("minimum"), REGISTRY)
    found = plain.analyse(data)
    text = summarise(plain, found).text()
    assert "stays: at least 6, 3 steps, then geometric" in text
    for shown in stay_fits(plain, found.most_likely):
        assert shown.survival[0] == 1.0
        # The model expects as many ended stays as there are, within chance.
        assert abs(sum(shown.expected) - sum(shown.counted)) < 3 * sum(shown.counted) ** 0.5
        assert sum(shown.expected[:2]) < 0.1 * sum(shown.counted)


def test_settings_of_the_command_line():
    config = check_fit_config(load_config(["duration=minimum", "duration.max_steps=7"], REGISTRY, FIT_CONFIG_NAME))
    assert (config.duration.name, config.duration.max_steps) == ("minimum", 7)
    with pytest.raises(ConfigError, match="minimum"):
        load_config(["duration=minimal"], REGISTRY, FIT_CONFIG_NAME)
    with pytest.raises(PluginError, match="minimum"):
        duration_part(REGISTRY, "minimal", None)
