"""Register the tasks with gymnasium, by string entry points only: nothing heavy is imported here.

gymnasium 1.0 and later load no plugins by themselves: an import has to register, or the id has to name the module:
`gymnasium.make("mbrl_hdp.envs:mbrl_hdp/CartPoleSwingUp-v0")`.
"""

from __future__ import annotations

ENTRY_POINTS = {
    "mbrl_hdp/CartPoleSwingUp-v0": "mbrl_hdp.envs.cartpole:make_cartpole",
    "mbrl_hdp/DroneTakeOff-v0": "mbrl_hdp.envs.drone:make_drone",
    "mbrl_hdp/IntersectionLeftTurn-v0": "mbrl_hdp.envs.intersection:make_intersection",
}


def register_envs() -> None:
    """Make `gymnasium.make("mbrl_hdp/...")` work; harmless when called again."""
    from gymnasium.envs.registration import register, registry

    for env_id, entry_point in ENTRY_POINTS.items():
        if env_id not in registry:
            register(id=env_id, entry_point=entry_point)
