"""The suite: small switching systems with exact definitions, for measuring how well contexts are found.

Every system comes in variants (`VARIANTS`): plain, with noise, with few episodes, with contexts that differ little and
without any switching.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mbrl_hdp.envs.systems import bodies, linear, machines, oscillators
from mbrl_hdp.envs.systems.system import Rollouts, System
from mbrl_hdp.errors import ConfigError, did_you_mean

__all__ = ["SYSTEMS", "VARIANTS", "Rollouts", "System", "build_system", "simulate"]

SYSTEMS: dict[str, Callable[[], System]] = {
    build().name: build for build in (*oscillators.SYSTEMS, *machines.SYSTEMS, *linear.SYSTEMS)
} | bodies.SYSTEMS
VARIANTS: dict[str, Callable[[System], System]] = {
    "plain": lambda system: system,
    "process": lambda system: replace(system, process_noise=0.05),
    "observation": lambda system: replace(system, obs_noise=0.01),
    "few": lambda system: system,
    "close": lambda system: system.closer(0.3),
    "still": lambda system: system.still(),
    "still_process": lambda system: replace(system.still(), process_noise=0.05),
    "still_observation": lambda system: replace(system.still(), obs_noise=0.01),
}
_FEW_EPISODES = 30


def build_system(name: str, variant: str = "plain") -> System:
    """Build a system of the suite.

    Raises:
        ConfigError: on a name or variant that does not exist.
    """
    for kind, word, known in (("system", name, SYSTEMS), ("variant", variant, VARIANTS)):
        if word not in known:
            raise ConfigError(f"there is no {kind} {word!r}; {did_you_mean(word, known)}")
    return VARIANTS[variant](SYSTEMS[name]())


def simulate(name: str, variant: str = "plain", seed: int = 0, num_episodes: int = 100) -> Rollouts:
    """Simulate a system of the suite under random actions; variant `few` has 30 episodes."""
    return build_system(name, variant).simulate(_FEW_EPISODES if variant == "few" else num_episodes, seed=seed)
