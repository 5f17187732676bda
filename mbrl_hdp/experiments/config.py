"""The typed configuration: schema, plugin options in Hydra's ConfigStore, and checks before any work begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mbrl_hdp.data.roles import LogConfig
from mbrl_hdp.errors import ConfigError, did_you_mean
from mbrl_hdp.experiments.budget import PROFILES, BudgetConfig, BudgetTable, check_budgets
from mbrl_hdp.experiments.explain import explain, parse_overrides
from mbrl_hdp.experiments.fit_settings import TrainFitConfig, UpdateConfig, WorkersConfig, check_fit
from mbrl_hdp.experiments.trackers import TENSORBOARD, TRACKERS, check_tracker
from mbrl_hdp.hooks import KINDS, PluginSpec, Registry, load_registry
from mbrl_hdp.inference.devices import DEVICES, check_device
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.runtime import RuntimeConfig
from mbrl_hdp.settings import check_settings, choice, setting
from mbrl_hdp.workers import check_place

CONFIG_NAME = "main"
FIT_CONFIG_NAME = "fit"
MAX_CONTEXTS = 1000
EXTERNAL = ("auto", "keep")
MAX_SEED = 2**32 - 1


@dataclass
class EnvConfig:
    """Which environment, and how it is made."""

    name: str = setting("${env_name:}", "name in output folders, titles and summaries; the id's, unless set")
    id: str = setting(MISSING, "gymnasium id, as in gymnasium.make(id)")
    kwargs: dict[str, Any] = field(default_factory=dict, metadata={"help": "keyword arguments of gymnasium.make"})
    report_kwargs: dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": "keyword arguments that replace those of kwargs in reported evaluations (the simulator's "
                          "backend); without its package these are played like the training"},
    )  # fmt: skip
    reward: str | None = setting(
        None,
        "reward that planners imagine: module:function of (act, next_obs), or learned; null for the environment's own",
    )
    termination: str | None = setting(
        None, "module:function: where imagined episodes end; null for the environment's own, else nowhere"
    )
    budgets: BudgetTable = field(default_factory=BudgetTable)


@dataclass
class ModelConfig:
    """What `train` and `fit` have in common: how the model is made."""

    seed: int = setting(0, "seed of the whole run", at_least=0, at_most=MAX_SEED)
    max_contexts: int = setting(10, "upper bound K on the number of contexts", at_least=1, at_most=MAX_CONTEXTS)
    device: str = setting(
        "auto",
        "where the model is learned: cpu, cuda, or auto (cuda only if there is one and the networks are not small); "
        "agents and planners always run on the CPU",
        choices=DEVICES,
    )
    prior: Any = MISSING
    distillation: Any = MISSING
    dynamics: Any = MISSING
    duration: Any = MISSING
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    disable_plugins: list[str] = field(default_factory=list, metadata={"help": "entry-point names to block"})
    strict_plugins: bool = setting(False, "stop if any plugin has a problem")


@dataclass
class MainConfig(ModelConfig):
    """All settings of `mbrl-hdp train`."""

    profile: str = setting("fast", "budget of the run", choices=PROFILES)
    recipe: str = choice(
        ("robust", "literal"), "how the model is trained: robust, or literal (the paper's text; docs/recipes.md)"
    )
    tracker: str = setting(
        TENSORBOARD,
        "where the metrics of every epoch go besides metrics.csv: none, tensorboard, wandb or mlflow (docs/control.md)",
        choices=TRACKERS,
    )
    env: EnvConfig = field(default_factory=EnvConfig)
    agent: Any = MISSING
    planner: Any = None  # `~planner` leaves it out, for agents that do not plan
    novelty: str = choice(
        ("never", "auto"),
        "auto: real episodes are watched by an alarm for contexts that the model does not know; every fifth episode is "
        "kept from its training to calibrate it, an alarm brings a refit that searches (docs/novelty.md)",
    )
    fit: TrainFitConfig = field(default_factory=TrainFitConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)


@dataclass
class FitMainConfig(ModelConfig, UpdateConfig, WorkersConfig, LogConfig):
    """All settings of `mbrl-hdp fit`; `LogConfig` has those of the data's columns."""

    dt: float | None = setting(
        None, "seconds per step, for transition models that integrate positions; null: from the time column", above=0.0
    )
    pca: int | None = setting(
        None, "learn on this many principal components of the observations, for data with many sensors", at_least=1
    )
    past: int | None = setting(
        None,
        "earlier steps whose changes and inputs are further inputs, for logs in which a part of the state is not "
        "recorded or an input acts late; null: as many as the data asks for, with dynamics=auto; 0: none",
        at_least=0,
    )
    angles: list[str] = setting(
        [],
        "observations that are angles in radians and go on beyond a turn, by name or pattern, as in angles=[heading]: "
        "sine and cosine are seen from the start; left open, long logs show them, short ones may not",
    )
    external: str = setting(
        "auto",
        "observed columns that nothing recorded influences, such as weather or load: auto makes them inputs (with "
        "dynamics=auto), so that their own rise and fall is no context; keep leaves them among the observations",
        choices=EXTERNAL,
    )
    out: str = setting("outputs/fit", "folder of the model and its report")
    overwrite: bool = setting(False, "replace an earlier fit in that folder")
    fit: FitConfig = field(default_factory=FitConfig)


_GROUPS = {kind.name: kind.group for kind in KINDS}
_RUN_GROUPS = ("prior", "distillation", "dynamics", "duration", "agent", "planner")
_SCHEMAS: dict[str, type[Any]] = {CONFIG_NAME: MainConfig, FIT_CONFIG_NAME: FitMainConfig}


def schema_of(name: str) -> type[Any]:
    """Return the dataclass of a configuration, `main` or `fit`."""
    return _SCHEMAS[name]


def config_dir() -> Path:
    """Return the folder of conf/: inside the package when installed from a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise ConfigError(f"conf/{CONFIG_NAME}.yaml is missing from the installation of mbrl_hdp; reinstall it")


_registered: list[tuple[str, PluginSpec[Any], str]] = []


def register_configs(registry: Registry) -> None:
    """Put the schema and every plugin's settings into Hydra's ConfigStore, so that `prior=mine` needs no YAML."""
    wanted = [(plugin.kind, plugin.spec, plugin.source.package) for plugin in registry.all()]
    if wanted and wanted == _registered:
        return  # it takes a tenth of a second
    store = ConfigStore.instance()
    for name, schema in _SCHEMAS.items():
        store.store(name=f"{name}_schema", node=schema, provider="mbrl_hdp")
    for group in _GROUPS.values():
        store.repo.pop(group, None)  # a second registry in one process must not inherit the first one's names
    if not registry.names("planner"):
        store.store(group="planner", name="none", node={}, provider="mbrl_hdp")  # so that ~planner works
    for kind, spec, package in wanted:
        store.store(group=_GROUPS[kind], name=spec.name, node=_named(spec.name, spec.config), provider=package)
    _registered[:] = wanted


def _env_name(*, _parent_: DictConfig) -> str:
    """Return the id of an environment as the name of a folder: without its module, without slashes."""
    env_id = "" if OmegaConf.is_missing(_parent_, "id") else str(_parent_.id)
    return env_id.rpartition(":")[2].replace("/", "_")


# At import: a worker of a sweep gets its configuration from elsewhere and registers nothing else.
OmegaConf.register_new_resolver("env_name", _env_name, replace=True)


def _named(name: str, config: type[Any]) -> type[Any]:
    """Extend a plugin's settings by their option name, so that `config.yaml` names the plugin.

    The class exists in no module, so its settings say how they are made anew in another process.
    """
    fields = [("name", str, dataclasses.field(default=name))]
    own = {"__reduce__": lambda settings: (_remade, (name, config, vars(settings)))}
    return dataclasses.make_dataclass(f"{config.__name__}Option", fields, bases=(config,), namespace=own)


def _remade(name: str, config: type[Any], values: dict[str, Any]) -> Any:
    """Return settings of a named option that came from another process."""
    made = object.__new__(_named(name, config))
    vars(made).update(values)
    return made


def registry_for(overrides: Sequence[str]) -> Registry:
    """Load the plugins as `disable_plugins` and `strict_plugins` among the overrides ask."""
    asked: dict[str, Any] = {"disable_plugins": [], "strict_plugins": False}
    for override in parse_overrides(overrides):
        if override.key_or_group in asked and not override.is_sweep_override():
            asked[override.key_or_group] = override.value()
    disable = asked["disable_plugins"]
    if not isinstance(disable, list) or not isinstance(asked["strict_plugins"], bool):
        raise ConfigError(
            "disable_plugins takes a list of names, as in disable_plugins=[priors]; strict_plugins takes true or false"
        )
    return load_registry(disable=[str(name) for name in disable], strict=asked["strict_plugins"])


def load_config(overrides: Sequence[str], registry: Registry | None = None, name: str = CONFIG_NAME) -> DictConfig:
    """Compose and check the configuration of one job; `name` is that of its file in conf/.

    Raises:
        ConfigError: naming the key or group and the nearest valid names.
    """
    registry = registry or registry_for(overrides)
    register_configs(registry)
    with composer():
        return compose_job(list(overrides), name)


def load_config_file(words: Any, registry: Registry) -> MainConfig:
    """Check a config.yaml that a run wrote, and return it as typed objects.

    Raises:
        ConfigError: naming the key that this version does not know, or the plugin that is not installed.
    """
    if "budgets" not in words["env"]:
        raise ConfigError("config.yaml has no env.budgets: an earlier version wrote it; start the run again")
    groups = {group: words[group] for group in _RUN_GROUPS if group in words}
    _check_options(groups, registry)
    chosen = [f"{group}={found['name']}" if found else f"~{group}" for group, found in groups.items()]
    config = load_config(chosen, registry)
    OmegaConf.set_struct(config, True)
    try:
        _take_free_keys(config, words)
        merged = OmegaConf.merge(config, words)
    except (OmegaConfBaseException, ValueError, AssertionError) as error:
        raise ConfigError(f"config.yaml: {' '.join(str(error).split())}") from error
    assert isinstance(merged, DictConfig)
    return check_config(merged)


def _check_options(groups: Mapping[str, Any], registry: Registry) -> None:
    """Raise if a run names an option that no installed plugin registers: a name is never a path."""
    for kind in KINDS:
        found = groups.get(kind.group)
        known = [plugin.spec.name for plugin in registry.all() if _GROUPS[plugin.kind] == kind.group]
        if found is not None and found.get("name") not in known:
            name = str(found.get("name"))
            raise ConfigError(f"config.yaml: {kind.group}.name={name!r} is unknown; {did_you_mean(name, known)}")


def _take_free_keys(config: DictConfig, words: Mapping[str, Any]) -> None:
    """Copy whole dictionaries whose keys are in no schema (keyword arguments), which a merge would reject."""
    for key in list(config):
        node, value = config._get_node(key), words.get(str(key))
        if isinstance(node, DictConfig) and isinstance(value, Mapping):
            if OmegaConf.get_type(node) is not dict:
                _take_free_keys(node, value)
            elif node._metadata.element_type is Any:
                config[key] = dict(value)


@contextmanager
def composer(more_places: Sequence[str] = ()) -> Iterator[None]:
    """Set Hydra up to compose from conf/ and from more places with presets."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(config_dir()), job_name="mbrl_hdp"):
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        for place in more_places:
            loader.get_search_path().prepend("command line", place, anchor="schema")
        loader.repository = ConfigRepository(loader.get_search_path())
        yield


def compose_job(overrides: list[str], name: str) -> DictConfig:
    """Compose and check one job within a `composer`.

    Raises:
        ConfigError: naming the key or group and the nearest valid names.
    """

    @lru_cache
    def composed(*lines: str) -> DictConfig:
        return compose(config_name=name, overrides=list(lines))

    try:
        config = composed(*overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, overrides, lambda lines: composed(*lines))) from error
    check_device(_typed(config, name).device)
    return config


def check_config(config: DictConfig) -> MainConfig:
    """Turn the composed configuration of `train` into typed objects and check every range.

    Raises:
        ConfigError: naming the full key.
    """
    return cast(MainConfig, _typed(config, CONFIG_NAME))


def check_fit_config(config: DictConfig) -> FitMainConfig:
    """Do the same with the configuration of `fit`."""
    return cast(FitMainConfig, _typed(config, FIT_CONFIG_NAME))


def _typed(config: DictConfig, name: str) -> Any:
    try:
        for key in sorted(OmegaConf.missing_keys(config)):
            raise ConfigError(f"{key} has no value; set it on the command line, as in {key}=...")
        typed = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise ConfigError(" ".join(str(error).split())) from error
    if not isinstance(typed, _SCHEMAS[name]):
        raise ConfigError(
            f"the configuration does not follow {name}_schema; keep it first in conf/{name}.yaml's defaults"
        )
    check_settings(typed)
    if isinstance(typed, FitMainConfig):
        typed.check()
        check_place(typed.workers)
    if isinstance(typed, MainConfig):
        check_tracker(typed.tracker)
        check_budgets(typed.env.budgets)
        check_fit(typed)
    return typed


__all__ = [
    "CONFIG_NAME",
    "FIT_CONFIG_NAME",
    "EnvConfig",
    "FitMainConfig",
    "MainConfig",
    "check_config",
    "check_fit_config",
    "compose_job",
    "composer",
    "config_dir",
    "load_config",
    "load_config_file",
    "register_configs",
    "registry_for",
    "schema_of",
]
