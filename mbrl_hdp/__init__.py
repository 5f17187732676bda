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
    from mbrl_hdp.data.files import load_trajectories as load_trajectories
    from mbrl_hdp.data.files import save_trajectories as save_trajectories
    from mbrl_hdp.data.trajectories import Trajectories as Trajectories
    from mbrl_hdp.hooks.specs import AgentSpec as AgentSpec
    from mbrl_hdp.hooks.specs import PluginSpec as PluginSpec
    from mbrl_hdp.hooks.specs import hookimpl as hookimpl
    from mbrl_hdp.inference.fit import fit as fit
    from mbrl_hdp.inference.model import ContextModel as ContextModel
    from mbrl_hdp.inference.model import Part as Part
    from mbrl_hdp.inference.saving import load as load
    from mbrl_hdp.inference.schedule import FitConfig as FitConfig
    from mbrl_hdp.types import ContextChain as ContextChain
    from mbrl_hdp.types import ContextPosterior as ContextPosterior

_LAZY = {
    "collect": "mbrl_hdp.data.collect",
    "Trajectories": "mbrl_hdp.data.trajectories",
    "AgentSpec": "mbrl_hdp.hooks.specs",
    "PluginSpec": "mbrl_hdp.hooks.specs",
    "hookimpl": "mbrl_hdp.hooks.specs",
    "load_trajectories": "mbrl_hdp.data.files",
    "save_trajectories": "mbrl_hdp.data.files",
    "fit": "mbrl_hdp.inference.fit",
    "FitConfig": "mbrl_hdp.inference.schedule",
    "ContextModel": "mbrl_hdp.inference.model",
    "Part": "mbrl_hdp.inference.model",
    "load": "mbrl_hdp.inference.saving",
    "ContextChain": "mbrl_hdp.types",
    "ContextPosterior": "mbrl_hdp.types",
}

__all__ = [
    "AgentSpec",
    "ContextChain",
    "ContextModel",
    "ContextPosterior",
    "FitConfig",
    "Part",
    "PluginSpec",
    "Trajectories",
    "collect",
    "fit",
    "hookimpl",
    "load",
    "load_trajectories",
    "save_trajectories",
]


register_envs()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'mbrl_hdp' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
