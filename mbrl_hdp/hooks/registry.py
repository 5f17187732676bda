"""Load plugins, check them, and look them up by kind and name.

Nothing is loaded at import. A broken plugin becomes a `PluginProblem` with its name and package, and the rest of the
program works; `strict=True` makes the first problem fatal.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pluggy

from mbrl_hdp.errors import MbrlHdpError, PluginError, did_you_mean
from mbrl_hdp.hooks import specs
from mbrl_hdp.hooks.specs import BUDGETS, KINDS, NAMESPACE, SEES, AgentSpec, Kind, PluginSpec
from mbrl_hdp.types import EpisodeSummary, TaskSpec

if TYPE_CHECKING:
    from mbrl_hdp.control.planner_config import PlannerConfig
    from mbrl_hdp.distil.distiller import Distiller
    from mbrl_hdp.inference.duration import ContextDuration
    from mbrl_hdp.inference.dynamics import ContextDynamics
    from mbrl_hdp.inference.prior import ContextPrior

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_RESERVED_FIELDS = frozenset({"name"})
_GROUPS = {kind.name: kind.group for kind in KINDS}


@dataclass(frozen=True)
class PluginSource:
    """Where a plugin comes from: entry-point name, distribution and version, and how to import it."""

    name: str
    package: str
    version: str
    load: Callable[[], Any]


@dataclass(frozen=True)
class PluginProblem:
    """What is wrong with a plugin, in one line."""

    plugin: str
    package: str
    message: str

    def __str__(self) -> str:
        return f"plugin {self.plugin!r} (package {self.package}): {self.message}"


@dataclass(frozen=True)
class RegisteredPlugin:
    """One usable registration: the spec, its kind and who brought it."""

    kind: str
    spec: PluginSpec[Any]
    source: PluginSource

    def build(self, config: Any, task: TaskSpec) -> Any:
        """Build the object; whatever the plugin raises comes back as one clear error.

        Raises:
            ConfigError: a setting that the plugin itself refuses.
            PluginError: anything else, naming the plugin and its package.
        """
        with self.reporting("could not be built"):
            return self.spec.build(config, task)

    @contextmanager
    def reporting(self, what: str) -> Iterator[None]:
        """Turn whatever the plugin raises in this block into one line that names the plugin and its package.

        Args:
            what: what failed, as in "could not be built".

        Raises:
            PluginError: instead of anything but an `MbrlHdpError`, which says itself what is wrong and what to do.
        """
        try:
            yield
        except MbrlHdpError:
            raise
        except Exception as error:
            raise PluginError(f"{self} {what}: {_describe(error)}{_place(error)}") from error

    def __str__(self) -> str:
        return f"{self.kind} {self.spec.name!r} of {_owner(self)}"


class Registry:
    """All plugins of one process, by kind and name."""

    def __init__(
        self,
        plugins: Iterable[RegisteredPlugin],
        problems: Iterable[PluginProblem],
        manager: pluggy.PluginManager,
    ) -> None:
        self.problems = tuple(problems)
        self._manager = manager
        self._plugins: dict[tuple[str, str], RegisteredPlugin] = {}
        self._clashes: dict[tuple[str, str], str] = {}
        for plugin in sorted(plugins, key=lambda p: (p.kind, p.spec.name, p.source.package)):
            self._add(plugin)

    def _add(self, plugin: RegisteredPlugin) -> None:
        key = (_GROUPS[plugin.kind], plugin.spec.name)
        other = self._plugins.pop(key, None)
        if other is None and key not in self._clashes:
            self._plugins[key] = plugin
            return
        owners = self._clashes.get(key) or _owner(cast(RegisteredPlugin, other))
        self._clashes[key] = f"{owners} and {_owner(plugin)}"
        message = (
            f"{plugin.kind} {plugin.spec.name!r} is registered by {self._clashes[key]}; neither is used. "
            f"Rename one, or block one with disable_plugins=[{plugin.source.name}]"
        )
        self.problems += (PluginProblem(plugin.source.name, plugin.source.package, message),)

    def names(self, kind: str) -> list[str]:
        """Return the registered names of a kind, sorted."""
        return [plugin.spec.name for plugin in self.all() if plugin.kind == kind]

    def all(self) -> list[RegisteredPlugin]:
        """Return every registration, by kind and name."""
        return sorted(self._plugins.values(), key=lambda plugin: (plugin.kind, plugin.spec.name))

    def get(self, kind: str, name: str) -> RegisteredPlugin:
        """Look one up.

        Raises:
            PluginError: with the nearest names, or with both owners if the name is registered twice.
        """
        key = (_GROUPS[kind], name)
        if key in self._clashes:
            raise PluginError(f"{kind} {name!r} is registered by {self._clashes[key]}; neither is used")
        if key not in self._plugins or self._plugins[key].kind != kind:
            raise PluginError(f"unknown {kind} {name!r}; {did_you_mean(name, self.names(kind))}")
        return self._plugins[key]

    def get_agent(self, name: str) -> RegisteredPlugin:
        """Look up what `agent=name` selects, an agent or a baseline; its spec is an `AgentSpec` in both cases.

        Raises:
            PluginError: with the nearest names.
        """
        return self.get("baseline" if name in self.names("baseline") else "agent", name)

    def agent_spec(self, name: str) -> AgentSpec[Any]:
        """Return what the agent `name` declares.

        Raises:
            PluginError: with the nearest names.
        """
        return cast(AgentSpec[Any], self.get_agent(name).spec)

    def build_prior(self, name: str, task: TaskSpec, config: Any = None) -> ContextPrior:
        """Build the prior `name`; its default settings unless `config` is given."""
        return cast("ContextPrior", self._build("prior", name, task, config))

    def build_distillation(self, name: str, task: TaskSpec, config: Any = None) -> Distiller:
        """Build the distillation rule `name`."""
        return cast("Distiller", self._build("distillation", name, task, config))

    def build_duration(self, name: str, task: TaskSpec, config: Any = None) -> ContextDuration:
        """Build the duration `name`."""
        return cast("ContextDuration", self._build("duration", name, task, config))

    def build_dynamics(self, name: str, task: TaskSpec, config: Any = None) -> ContextDynamics:
        """Build the transition model `name`."""
        return cast("ContextDynamics", self._build("dynamics", name, task, config))

    def build_planner(self, name: str, task: TaskSpec, config: Any = None) -> PlannerConfig:
        """Check the settings of the planner `name` and return those to plan with."""
        return cast("PlannerConfig", self._build("planner", name, task, config))

    def _build(self, kind: str, name: str, task: TaskSpec, config: Any) -> Any:
        plugin = self.get(kind, name)
        return plugin.build(plugin.spec.config() if config is None else config, task)

    def episode_ended(self, summary: EpisodeSummary) -> None:
        """Call every observer; one that raises is reported as a warning and does not stop the run."""
        for impl in self._manager.hook.mbrl_hdp_episode_ended.get_hookimpls():
            try:
                impl.function(*[summary for _ in impl.argnames])
            except Exception as error:  # noqa: BLE001 - an observer must never stop a training run
                warnings.warn(f"plugin {impl.plugin_name!r}: episode observer failed: {_describe(error)}", stacklevel=2)


def load_registry(
    *, disable: Sequence[str] = (), strict: bool = False, sources: Iterable[PluginSource] | None = None
) -> Registry:
    """Load every plugin behind the entry-point group `mbrl_hdp`.

    Args:
        disable: entry-point names to block (`disable_plugins=[...]`); an unknown name is refused.
        strict: make the first problem fatal (`strict_plugins=true`).
        sources: plugins to load instead of the installed ones (for tests and embedding).

    Raises:
        PluginError: on an unknown name in `disable`, or on any problem if `strict`.
    """
    found = sorted(installed_sources() if sources is None else sources, key=lambda s: (s.name, s.package))
    _check_disable(disable, found)
    manager = pluggy.PluginManager(NAMESPACE)
    manager.add_hookspecs(specs)
    problems: list[PluginProblem] = []
    registered: list[RegisteredPlugin] = []
    allowed, repeated = _split_repeated([source for source in found if source.name not in disable])
    problems += repeated
    for source in allowed:
        try:
            _register(manager, source)
            registered += _collect(manager, source)
        except PluginError as error:
            problems.append(PluginProblem(source.name, source.package, str(error)))
    registry = Registry(registered, problems, manager)
    if strict and registry.problems:
        raise PluginError("strict_plugins: " + "; ".join(str(problem) for problem in registry.problems))
    return registry


def installed_sources() -> list[PluginSource]:
    """Return the plugins of all installed distributions, not imported yet."""
    sources = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        for entry in distribution.entry_points.select(group=NAMESPACE):
            # A distribution can be seen twice (editable install and its folder on sys.path): count it once.
            sources[entry.name, name] = PluginSource(entry.name, name, distribution.version, entry.load)
    return list(sources.values())


def _check_disable(disable: Sequence[str], sources: Sequence[PluginSource]) -> None:
    known = {source.name for source in sources}
    for name in disable:
        if name not in known:
            raise PluginError(f"disable_plugins: no plugin is called {name!r}; {did_you_mean(name, known)}")


def _split_repeated(sources: Sequence[PluginSource]) -> tuple[list[PluginSource], list[PluginProblem]]:
    """Raise if two packages share an entry-point name: `disable_plugins` could mean either."""
    owners: dict[str, list[PluginSource]] = {}
    for source in sources:
        owners.setdefault(source.name, []).append(source)
    problems = [
        PluginProblem(
            name,
            " and ".join(source.package for source in group),
            "two packages use this entry-point name; neither is loaded. Uninstall one or rename its entry point",
        )
        for name, group in owners.items()
        if len(group) > 1
    ]
    return [group[0] for group in owners.values() if len(group) == 1], problems


def _register(manager: pluggy.PluginManager, source: PluginSource) -> None:
    try:
        plugin = source.load()
    except Exception as error:  # a plugin may raise anything at import
        raise PluginError(
            f"could not be imported: {_describe(error)}. Reinstall it, or block it: disable_plugins=[{source.name}]"
        ) from error
    hooks = [kind.hook for kind in KINDS] + ["mbrl_hdp_episode_ended"]
    for name in dir(plugin):
        if name.startswith(f"{NAMESPACE}_") and callable(getattr(plugin, name)):
            if name not in hooks:
                raise PluginError(f"no hook is called {name!r}; {did_you_mean(name, hooks)}")
            if not hasattr(getattr(plugin, name), f"{NAMESPACE}_impl"):
                raise PluginError(f"{name} lacks the decorator @mbrl_hdp.hookimpl, so it would never be called")
    try:
        manager.register(plugin, name=source.name)
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        manager.unregister(name=source.name)
        raise PluginError(_describe(error)) from error


def _collect(manager: pluggy.PluginManager, source: PluginSource) -> list[RegisteredPlugin]:
    """Ask one plugin for its specs, kind by kind, and check them."""
    others = [plugin for name, plugin in manager.list_name_plugin() if name != source.name]
    found = []
    for kind in KINDS:
        call = manager.subset_hook_caller(kind.hook, remove_plugins=others)
        try:
            results = call()
        except Exception as error:  # a hook may raise anything
            manager.unregister(name=source.name)
            raise PluginError(f"{kind.hook} raised {_describe(error)}") from error
        for result in results:
            found += [RegisteredPlugin(kind.name, spec, source) for spec in _checked_specs(kind, result)]
    return found


def _checked_specs(kind: Kind, result: Any) -> list[PluginSpec[Any]]:
    if isinstance(result, PluginSpec | str) or not isinstance(result, Iterable):
        raise PluginError(f"{kind.hook} must return a list of PluginSpec, got {type(result).__name__}")
    checked = []
    for spec in result:
        if not isinstance(spec, PluginSpec):
            raise PluginError(f"{kind.hook} must return a list of PluginSpec, got one of {type(spec).__name__}")
        _check_spec(kind, spec)
        checked.append(_agent_spec(kind, spec) if kind.group == "agent" else spec)
    return checked


def _agent_spec(kind: Kind, spec: PluginSpec[Any]) -> AgentSpec[Any]:
    """Check what an agent declares; a baseline that is registered by a plain `PluginSpec` gets its declarations."""
    where = f"{kind.name} {spec.name!r}"
    if not isinstance(spec, AgentSpec):
        if kind.name == "agent":
            raise PluginError(f"{where}: {kind.hook} must return a list of AgentSpec, got one of PluginSpec")
        return AgentSpec(spec.name, spec.config, spec.build, spec.summary, starts_random=False)
    for name, value, known in (("budget", spec.budget, BUDGETS), ("sees", spec.sees, SEES)):
        if value not in known:
            raise PluginError(f"{where}: {name}={value!r} is unknown; {did_you_mean(str(value), known)}")
    if spec.sees == "belief" and not spec.needs_model:
        raise PluginError(f"{where}: sees='belief' needs a model: declare needs_model=True")
    if kind.name == "baseline" and (spec.sees != "nothing" or spec.needs_model):
        raise PluginError(f"{where}: a baseline sees observations only; use mbrl_hdp_register_agents for more")
    return spec if kind.name == "agent" else dataclasses.replace(spec, starts_random=False)


def _check_spec(kind: Kind, spec: PluginSpec[Any]) -> None:
    where = f"{kind.name} {spec.name!r}"
    if not isinstance(spec.name, str) or not _NAME.fullmatch(spec.name):
        raise PluginError(f"{where}: a name is lower case letters, digits and underscores")
    if not isinstance(spec.config, type) or not dataclasses.is_dataclass(spec.config):
        raise PluginError(f"{where}: config must be a dataclass type, got {spec.config!r}")
    if cast(Any, spec.config).__dataclass_params__.frozen:
        raise PluginError(
            f"{where}: config {spec.config.__name__} is frozen, Hydra could not override it; use a plain @dataclass"
        )
    for field in dataclasses.fields(spec.config):
        if field.name in _RESERVED_FIELDS:
            raise PluginError(f"{where}: config field {field.name!r} is taken by mbrl_hdp; rename it")
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise PluginError(f"{where}: config field {field.name!r} has no default")
    if not callable(spec.build):
        raise PluginError(f"{where}: build must be callable, got {spec.build!r}")
    if not isinstance(spec.summary, str) or not spec.summary.strip() or "\n" in spec.summary.strip():
        raise PluginError(f"{where}: summary must be one line of text")


def _owner(plugin: RegisteredPlugin) -> str:
    return f"plugin {plugin.source.name!r} (package {plugin.source.package})"


def _place(error: BaseException) -> str:
    """Return the file and line that raised, for an author who reads the message."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
