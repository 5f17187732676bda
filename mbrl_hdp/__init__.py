"""Control and inference for systems whose hidden context switches abruptly (HDP-C-MDP on top of mbrl-lib).

Importing it registers the environments with gymnasium; everything else is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mbrl_hdp.envs.registration import register_envs
from mbrl_hdp.inference.views import provide_views
from mbrl_hdp.lazy import lazy_names

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

_MODULES = {
    "data.collect": ["collect"],
    "data.files": ["load_trajectories", "save_trajectories"],
    "data.trajectories": ["Trajectories"],
    "hooks.specs": ["AgentSpec", "PluginSpec", "hookimpl"],
    "inference.fit": ["fit"],
    "inference.model": ["ContextModel", "Part"],
    "inference.saving": ["load"],
    "inference.schedule": ["FitConfig"],
    "types": ["ContextChain", "ContextPosterior"],
}
__all__, __getattr__ = lazy_names(__name__, _MODULES)

register_envs()
provide_views("mbrl_hdp.report.views")


def __dir__() -> list[str]:
    return sorted({"__version__", *__all__})
