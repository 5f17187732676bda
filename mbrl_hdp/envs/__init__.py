"""Tasks with hidden contexts, and the wrapper that makes any gymnasium environment one.

Importing this package registers the tasks with gymnasium.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mbrl_hdp.envs.registration import register_envs
from mbrl_hdp.lazy import lazy_names

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

_CHAINS = "Chain MarkovChain NonMarkovianChain PositionStripes ScheduleChain StateDependentChain"
# Loaded on first use, so that registering stays quick and silent.
_MODULES = {
    "batch": ["BatchPhysics", "BatchSwitchingEnv"],
    "chains": _CHAINS.split(),
    "registration": ["register_envs"],
    "switching": ["Context", "SwitchingContext"],
    "walk": ["ChainWalk"],
}
__all__, __getattr__ = lazy_names(__name__, _MODULES)

register_envs()
