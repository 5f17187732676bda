"""Tasks with hidden contexts, and the wrapper that makes any gymnasium environment one.

Importing this package registers the tasks with gymnasium.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mbrl_hdp.envs.registration import register_envs

if TYPE_CHECKING:
    from mbrl_hdp.envs.batch import BatchPhysics as BatchPhysics
    from mbrl_hdp.envs.batch import BatchSwitchingEnv as BatchSwitchingEnv
    from mbrl_hdp.envs.chains import Chain as Chain
    from mbrl_hdp.envs.chains import MarkovChain as MarkovChain
    from mbrl_hdp.envs.chains import NonMarkovianChain as NonMarkovianChain
    from mbrl_hdp.envs.chains import PositionStripes as PositionStripes
    from mbrl_hdp.envs.chains import ScheduleChain as ScheduleChain
    from mbrl_hdp.envs.chains import StateDependentChain as StateDependentChain
    from mbrl_hdp.envs.switching import Context as Context
    from mbrl_hdp.envs.switching import SwitchingContext as SwitchingContext
    from mbrl_hdp.envs.walk import ChainWalk as ChainWalk

# Loaded on first use, so that registering stays quick and silent.
_LAZY = {
    "BatchPhysics": "batch",
    "BatchSwitchingEnv": "batch",
    "Chain": "chains",
    "ChainWalk": "walk",
    "Context": "switching",
    "MarkovChain": "chains",
    "NonMarkovianChain": "chains",
    "PositionStripes": "chains",
    "ScheduleChain": "chains",
    "StateDependentChain": "chains",
    "SwitchingContext": "switching",
}

__all__ = [
    "BatchPhysics",
    "BatchSwitchingEnv",
    "Chain",
    "ChainWalk",
    "Context",
    "MarkovChain",
    "NonMarkovianChain",
    "PositionStripes",
    "ScheduleChain",
    "StateDependentChain",
    "SwitchingContext",
    "register_envs",
]

register_envs()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'mbrl_hdp.envs' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"mbrl_hdp.envs.{_LAZY[name]}"), name)
    globals()[name] = value
    return value
