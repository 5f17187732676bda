"""A fingerprint of the code that decides a result.

It is a hash of the parsed sources of every module that is reached by imports from where the result is computed, from
the plugins that its configuration names and from its environment. Prose does not count: comments, docstrings, type
annotations of functions, messages of exceptions and help texts of settings can change without making a result stale.
So can functions, classes and methods that nothing in these modules names.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium

from mbrl_hdp.experiments.code_pieces import Piece, named_pieces, pieces_of
from mbrl_hdp.hooks import KINDS, AgentSpec, Registry, load_registry

PACKAGE = "mbrl_hdp"
# Modules whose effect is in the resolved configuration, which identifies a cell as well, or that only name and report;
# and the readers of files that people bring: cells simulate their data.
_WITHOUT_EFFECT = frozenset(
    {
        PACKAGE,
        f"{PACKAGE}.errors",
        f"{PACKAGE}.experiments.budget",
        f"{PACKAGE}.experiments.code_pieces",
        f"{PACKAGE}.experiments.config",
        f"{PACKAGE}.experiments.explain",
        f"{PACKAGE}.experiments.fingerprint",
        f"{PACKAGE}.experiments.fit_settings",
        f"{PACKAGE}.experiments.trackers",
        *(
            f"{PACKAGE}.data.{name}"
            for name in (
                "cells",
                "clock",
                "csv_files",
                "csv_layout",
                "file_names",
                "files",
                "log_episodes",
                "log_order",
            )
        ),
        *(f"{PACKAGE}.data.{name}" for name in ("logs", "many_files", "minari_files", "parquet_files", "roles")),
        *(f"{PACKAGE}.data.{name}" for name in ("suggestions", "text_table")),
    }
)
# What learns a context model and computes with one; its plugins come by the configuration.
CONTEXT_MODEL = (f"{PACKAGE}.inference", f"{PACKAGE}.belief", f"{PACKAGE}.distil")
# What calls them in a run.
MODEL_UPDATE = f"{PACKAGE}.experiments.model_update"
# Modules in there that every agent uses.
_FOR_ALL = frozenset(f"{PACKAGE}.{name}" for name in ("inference.scoring", "inference.progress", "belief.codec"))
# What chooses a planner's settings, unless these are fixed.
TUNING = f"{PACKAGE}.control.tuning"


def fingerprint_of(run_module: str, config: Mapping[str, Any]) -> str:
    """Return the fingerprint of the code that decides a cell.

    For an agent that no context model is learned for, the code of context models does not count; neither does the
    code that tunes a planner where `planner.tune=never`.

    Args:
        run_module: module of the function that runs the cell.
        config: the cell's resolved configuration.
    """
    unused: tuple[str, ...] = (*CONTEXT_MODEL, MODEL_UPDATE) if learns_no_model(config) else ()
    unused += (TUNING,) if is_never_tuned(config) else ()
    return code_fingerprint(roots_of(run_module, config), unused, frozenset(_strings(config)))


def _strings(config: Any) -> Iterator[str]:
    """Return the words of all strings in a configuration: they may name functions."""
    if isinstance(config, str):
        yield from re.findall(r"\w+", config)
    elif isinstance(config, Mapping | list):
        for value in config.values() if isinstance(config, Mapping) else config:
            yield from _strings(value)


def learns_no_model(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration names an agent that no context model is learned for."""
    agent = config.get("agent")
    if not isinstance(agent, Mapping):
        return False
    found = [plugin.spec for plugin in installed_plugins().all() if plugin.spec.name == agent.get("name")]
    return any(isinstance(spec, AgentSpec) and not spec.needs_model for spec in found)


def is_never_tuned(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration has a planner whose settings are fixed."""
    planner = config.get("planner")
    return isinstance(planner, Mapping) and planner.get("tune") == "never"


def roots_of(run_module: str, config: Mapping[str, Any]) -> frozenset[str]:
    """Return the modules from which a cell's code is reached.

    Args:
        run_module: module of the function that runs the cell.
        config: the cell's resolved configuration; its plugins and its environment are looked up by name.
    """
    roots = {run_module}
    groups = {kind.name: kind.group for kind in KINDS}
    for plugin in installed_plugins().all():
        chosen = config.get(groups[plugin.kind])
        if isinstance(chosen, Mapping) and chosen.get("name") == plugin.spec.name:
            roots |= {plugin.spec.config.__module__, plugin.spec.build.__module__}
    env = config.get("env")
    if isinstance(env, Mapping):
        module, _, name = env["id"].rpartition(":")
        if module:  # `module:id`: importing the module registers the id
            importlib.import_module(module)
        entry = gymnasium.spec(name).entry_point
        roots.add(entry.partition(":")[0] if isinstance(entry, str) else entry.__module__)
    return frozenset(roots)


@cache
def installed_plugins() -> Registry:
    """Return all plugins, loaded once."""
    return load_registry()


@cache
def code_fingerprint(
    roots: frozenset[str], unused: tuple[str, ...] = (), words: frozenset[str] = frozenset()
) -> str:  # fmt: skip
    """Return the fingerprint of the code that is reached from these modules, 16 hexadecimal digits.

    Functions, methods and classes that no code among it names do not count: nothing calls them.

    Args:
        roots: where to begin; all of these counts.
        unused: packages of which nothing is run but what all agents use.
        words: further names that may be called.
    """
    names = reached_modules(roots, unused)
    pieces = [
        [replace(each, name=None) for each in _pieces(name)] if name in roots else _pieces(name) for name in names
    ]
    parts = [
        f"{name} {[piece.meaning for piece in counted]}"
        for name, counted in zip(names, named_pieces(pieces, words), strict=True)
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def reached_modules(roots: Iterable[str], unused: tuple[str, ...] = ()) -> list[str]:
    """Return the modules that are reached by imports, in order of their names.

    Only packages of the roots and this one are followed: numpy and the like are not ours.

    Args:
        roots: where to begin.
        unused: packages that are imported and of which nothing is run but what all agents use.
    """
    is_unused = re.compile("|".join(rf"{re.escape(package)}(\.|$)" for package in unused) or "(?!)").match
    waiting, found = list(roots), set()
    tops = {PACKAGE, *(root.partition(".")[0] for root in roots)}
    while waiting:
        name = waiting.pop()
        if name in found or name in _WITHOUT_EFFECT or name.partition(".")[0] not in tops or source_of(name) is None:
            continue
        if is_unused(name) and name not in _FOR_ALL:
            continue
        found.add(name)
        waiting += _imported(name)
    return sorted(found)


@cache
def source_of(name: str) -> Path | None:
    """Return the file of a module, None if there is no such module."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # an attribute of a module, not a module
        return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None


@cache
def _pieces(name: str) -> list[Piece]:
    path = source_of(name)
    assert path is not None
    return pieces_of(path.read_text())


def _imported(name: str) -> Iterator[str]:
    """Return the modules that a module imports when it runs; names of a package are looked up in its `__init__`."""
    for module, names in _import_lines(name, with_type_checking=False):
        yield module
        for imported in names:
            yield f"{module}.{imported}"
            yield from _home_of(module, imported)


def _home_of(package: str, imported: str) -> Iterator[str]:
    """Return the module behind a name of a package that loads its names on first use."""
    path = source_of(package)
    if path is None or path.name != "__init__.py":
        return
    for module, names in _import_lines(package, with_type_checking=True):
        if imported in names:
            yield module


@cache
def _import_lines(name: str, with_type_checking: bool) -> list[tuple[str, list[str]]]:
    path = source_of(name)
    assert path is not None
    tree = ast.parse(path.read_text())
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not with_type_checking:
            skipped |= {id(child) for line in node.body for child in ast.walk(line)}
    lines: list[tuple[str, list[str]]] = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            lines += [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            lines.append((module, [alias.name for alias in node.names]))
    return lines
