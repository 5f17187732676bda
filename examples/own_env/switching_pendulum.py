"""A pendulum whose motor now and then turns the other way: an environment of one's own, in one file.

`env.id=switching_pendulum:SwitchingPendulum-v0` imports this module, and importing it registers the environment.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from torch import Tensor

from mbrl_hdp.envs import Context, MarkovChain, SwitchingContext


def make(gravity: float = 5.0, mass: float = 0.5, switch: float = 0.2, cool_off: int = 5) -> gymnasium.Env[Any, Any]:
    """Make gymnasium's pendulum with a motor that is now and then wired the wrong way round.

    Args:
        gravity: m/s^2; less than gymnasium's, so that the motor can do something about it.
        mass: kg; likewise.
        switch: probability of a switch at every step once a context has acted `cool_off` steps.
        cool_off: steps that a context acts at least.
    """
    pendulum = PendulumEnv(g=gravity)
    pendulum.m = mass
    contexts = [Context("as labelled"), Context("reversed", action_scale=-1.0)]
    return SwitchingContext(pendulum, contexts, MarkovChain.symmetric(2, switch=switch, cool_off=cool_off))


def reward(act: Tensor, next_obs: Tensor) -> Tensor:
    """Return the pendulum's reward of imagined steps, `B 1`, from actions `B 1` and next observations `B 3`.

    Gymnasium's own reward looks at the state before the step; for a planner the one after it serves as well.
    """
    cos, sin, velocity = next_obs.split(1, dim=1)
    return -(torch.atan2(sin, cos).square() + 0.1 * velocity.square() + 0.001 * act.square())


gymnasium.register("SwitchingPendulum-v0", entry_point=make, max_episode_steps=60)
