"""The door for plugins: hook signatures, `PluginSpec`, the `hookimpl` marker and the registry."""

from mbrl_hdp.hooks.registry import PluginProblem, RegisteredPlugin, Registry, load_registry
from mbrl_hdp.hooks.specs import KINDS, AgentSpec, PluginSpec, hookimpl

__all__ = [
    "KINDS",
    "AgentSpec",
    "PluginProblem",
    "PluginSpec",
    "RegisteredPlugin",
    "Registry",
    "hookimpl",
    "load_registry",
]
