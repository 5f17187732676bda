"""The registry loads what is right, names what is wrong, and never lets one plugin break another."""

import types
import warnings
from dataclasses import dataclass

import pytest

from mbrl_hdp.errors import ConfigError, PluginError
from mbrl_hdp.hooks import PluginSpec, hookimpl, load_registry
from mbrl_hdp.hooks.registry import PluginSource
from mbrl_hdp.hooks.specs import KINDS
from mbrl_hdp.types import EpisodeSummary, TaskSpec


@dataclass
class GoodConfig:
    strength: float = 1.0


@dataclass(frozen=True)
class FrozenConfig:
    strength: float = 1.0


@dataclass
class DefaultlessConfig:
    strength: float


def build_good(config, task):
    return (config.strength, task.max_contexts)


def build_broken(config, task):
    raise RuntimeError("no licence for this GPU")


GOOD = PluginSpec("good", GoodConfig, build_good, "a good prior")


def plugin(**hooks):
    """Make a plugin module with the given hooks; values are what the hooks return."""
    module = types.ModuleType("made_up")
    for name, value in hooks.items():
        setattr(module, name, hookimpl(_hook_that_returns(value)))
    return module


def _hook_that_returns(value):
    def hook():
        if isinstance(value, Exception):
            raise value
        return value

    return hook


def source(name, module, package=None):
    def load():
        if isinstance(module, Exception):
            raise module
        return module

    return PluginSource(name, package or f"{name}-package", "1.2", load)


def good_source():
    return source("goods", plugin(mbrl_hdp_register_priors=[GOOD]))


def spec(**changes):
    fields = {"name": "mine", "config": GoodConfig, "build": build_good, "summary": "mine"} | changes
    return PluginSpec(**fields)


BROKEN = {
    "import error": (source("bad", ImportError("No module named 'cupy'")), ["could not be imported", "cupy"]),
    "misspelt hook": (source("bad", plugin(mbrl_hdp_register_prior=[])), ["mbrl_hdp_register_priors"]),
    "wrong return type": (source("bad", plugin(mbrl_hdp_register_priors=3)), ["list of PluginSpec", "int"]),
    "wrong item type": (source("bad", plugin(mbrl_hdp_register_priors=["x"])), ["list of PluginSpec", "str"]),
    "frozen config": (source("bad", plugin(mbrl_hdp_register_priors=[spec(config=FrozenConfig)])), ["frozen"]),
    "config without defaults": (
        source("bad", plugin(mbrl_hdp_register_priors=[spec(config=DefaultlessConfig)])),
        ["strength", "no default"],
    ),
    "config no dataclass": (source("bad", plugin(mbrl_hdp_register_priors=[spec(config=dict)])), ["dataclass"]),
    "summary missing": (source("bad", plugin(mbrl_hdp_register_priors=[spec(summary="")])), ["summary"]),
    "name with capitals": (source("bad", plugin(mbrl_hdp_register_priors=[spec(name="My Prior")])), ["My Prior"]),
    "hook that raises": (source("bad", plugin(mbrl_hdp_register_priors=ValueError("boom"))), ["boom"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_plugin_is_named_and_skipped(case):
    bad, words = BROKEN[case]
    registry = load_registry(sources=[good_source(), bad])
    assert registry.names("prior") == ["good"]
    (problem,) = registry.problems
    text = str(problem)
    assert "'bad'" in text
    assert "bad-package" in text
    assert "\n" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize("case", BROKEN)
def test_strict_makes_it_fatal(case):
    with pytest.raises(PluginError, match="bad-package"):
        load_registry(sources=[good_source(), BROKEN[case][0]], strict=True)


def test_forgotten_marker_is_told():
    module = types.ModuleType("made_up")
    module.mbrl_hdp_register_priors = lambda: [GOOD]
    registry = load_registry(sources=[source("bad", module)])
    assert "hookimpl" in str(registry.problems[0])


@pytest.mark.parametrize("is_reversed", [False, True])
def test_duplicate_name_names_both_packages_whatever_the_order(is_reversed):
    sources = [good_source(), source("other", plugin(mbrl_hdp_register_priors=[GOOD, spec()]))]
    registry = load_registry(sources=sources[::-1] if is_reversed else sources)
    assert registry.names("prior") == ["mine"]
    (problem,) = registry.problems
    with pytest.raises(PluginError) as error:
        registry.get("prior", "good")
    for text in (str(problem), str(error.value)):
        assert "goods-package" in text
        assert "other-package" in text


def test_same_name_of_two_kinds_is_fine():
    module = plugin(mbrl_hdp_register_priors=[GOOD], mbrl_hdp_register_distillers=[GOOD])
    registry = load_registry(sources=[source("both", module)])
    assert [p.kind for p in registry.all()] == ["distillation", "prior"]
    assert not registry.problems


def test_two_packages_of_one_entry_point_name():
    twins = [source("twin", plugin(mbrl_hdp_register_priors=[spec()]), package) for package in ("one", "two")]
    registry = load_registry(sources=[good_source(), *twins])
    assert registry.names("prior") == ["good"]
    assert "one and two" in str(registry.problems[0])


def test_build_that_raises_is_named():
    registry = load_registry(sources=[source("bad", plugin(mbrl_hdp_register_priors=[spec(build=build_broken)]))])
    with pytest.raises(PluginError, match=r"prior 'mine'.*'bad'.*bad-package.*no licence for this GPU"):
        registry.build_prior("mine", TaskSpec(max_contexts=3))


def test_a_setting_that_the_plugin_refuses_stays_a_config_error():
    def refuse(config, task):
        raise ConfigError("prior.strength must be below 3")

    registry = load_registry(sources=[source("picky", plugin(mbrl_hdp_register_priors=[spec(build=refuse)]))])
    with pytest.raises(ConfigError, match="strength must be below 3"):
        registry.build_prior("mine", TaskSpec(max_contexts=3))


def test_build_gets_settings_and_task():
    registry = load_registry(sources=[good_source()])
    assert registry.build_prior("good", TaskSpec(max_contexts=3)) == (1.0, 3)
    assert registry.build_prior("good", TaskSpec(max_contexts=3), GoodConfig(2.5)) == (2.5, 3)


def test_unknown_name_tells_the_nearest():
    registry = load_registry(sources=[good_source()])
    with pytest.raises(PluginError, match="did you mean 'good'"):
        registry.get("prior", "goood")


def test_disable_blocks_by_name_and_refuses_unknown_ones():
    assert load_registry(sources=[good_source()], disable=["goods"]).all() == []
    with pytest.raises(PluginError, match="did you mean 'goods'"):
        load_registry(sources=[good_source()], disable=["godos"])


def test_disable_skips_the_import_of_a_broken_plugin():
    bad, _ = BROKEN["import error"]
    assert not load_registry(sources=[good_source(), bad], disable=["bad"], strict=True).problems


def test_observers_are_told_and_one_that_raises_stops_nobody():
    seen = []
    quiet, loud = types.ModuleType("quiet"), types.ModuleType("loud")

    def mbrl_hdp_episode_ended(summary):
        seen.append(summary.episode_return)

    def broken_observer(summary):
        raise OSError("disk full")

    quiet.mbrl_hdp_episode_ended = hookimpl(mbrl_hdp_episode_ended)
    loud.mbrl_hdp_episode_ended = hookimpl(broken_observer)
    registry = load_registry(sources=[source("loud", loud), source("quiet", quiet)])
    with pytest.warns(UserWarning, match=r"'loud'.*disk full"):
        registry.episode_ended(EpisodeSummary(0, "train", 87.5, 100))
    assert seen == [87.5]


def test_installed_plugins_have_no_problem_and_every_kind_has_its_hook():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry = load_registry(strict=True)
    assert {"hdp", "dirichlet", "mle"} <= set(registry.names("prior"))
    assert {"stationary", "beta"} <= set(registry.names("distillation"))
    assert set(registry.names("duration")) == {"geometric", "minimum", "negative_binomial", "auto"}
    ours = {"c_cem", "c_sac", "fi_sac", "ni_sac", "mbrl_sac"}
    assert set(registry.names("agent")) == ours | {"dnnmm", "anpmm", "sac_stack", "pets"}
    assert set(registry.names("baseline")) == {"gpmm", "rnn_ppo", "rnn_ppo_plain"}
    assert {"cem", "mbrl_cem", "icem", "mppi", "random_shooting", "custom"} <= set(registry.names("planner"))
    assert {"auto", "sparse", "delta_mlp", "linear", "cartpole", "drone", "vehicle"} <= set(registry.names("dynamics"))
    assert len({kind.hook for kind in KINDS}) == len(KINDS) == 7


def test_no_manager_exists_at_import():
    import mbrl_hdp.hooks.registry as module

    assert not [name for name, value in vars(module).items() if type(value).__name__ == "PluginManager"]
