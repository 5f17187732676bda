"""Control and inference for systems whose hidden context switches abruptly (HDP-C-MDP on top of mbrl-lib).

Importing it registers the environments with gymnasium; everything else is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mbrl_hdp.envs.registration import register_envs

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mbrl_hdp.data.collect import collect as collect
    from mbrl_hdp.data.trajectories import Trajectories as Trajectories
    from mbrl_hdp.hooks.specs import PluginSpec as PluginSpec
    from mbrl_hdp.hooks.specs import hookimpl as hookimpl
    from mbrl_hdp.types import ContextChain as ContextChain
    from mbrl_hdp.types import ContextPosterior as ContextPosterior

_LAZY = {
    "collect": "mbrl_hdp.data.collect",
    "Trajectories": "mbrl_hdp.data.trajectories",
    "PluginSpec": "mbrl_hdp.hooks.specs",
    "hookimpl": "mbrl_hdp.hooks.specs",
    "ContextChain": "mbrl_hdp.types",
    "ContextPosterior": "mbrl_hdp.types",
}

__all__ = ["Trajectories", "ContextChain", "ContextPosterior", "PluginSpec", "collect", "hookimpl"]  # noqa: RUF022


register_envs()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'mbrl_hdp' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
