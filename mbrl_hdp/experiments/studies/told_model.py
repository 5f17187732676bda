"""A planner's model that is the truth: a system's own equations and its own chain, for comparison with learned ones."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mbrl_hdp.distil.distiller import Distiller
from mbrl_hdp.envs.systems.system import System
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.parts import ModelParts, Part
from mbrl_hdp.inference.prior import ContextPrior
from mbrl_hdp.types import ContextChain, ContextPosterior, TaskSpec

_QUIET = np.zeros(1)
# Nothing is random in these systems: a step tells its context by more than this, or not at all. Rounding is below it.
_STD = 1e-3


class TrueDynamics(ContextDynamics):
    """The equations of a system, without noise; slots beyond its contexts repeat the last one and are never entered."""

    def __init__(self, system: System, max_contexts: int) -> None:
        super().__init__(max_contexts, system.start(np.random.default_rng(0), 1).shape[1], system.act_dim)
        self.system = system

    def predict(self, obs: Tensor, act: Tensor, context: Tensor) -> Tensor:
        """Return the next observation of every row in its own context; actions are clipped as the system does."""
        states, acts = (part.double().numpy() for part in (obs, act.clamp(-1.0, 1.0)))
        number = context.clamp_max(self.system.num_contexts - 1).numpy()
        found = self.system.step(states, acts, number, _QUIET, np.random.default_rng(0))
        return torch.as_tensor(found, dtype=obs.dtype)

    def sample(self, obs: Tensor, act: Tensor, context: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the same: nothing is random but the contexts."""
        del generator
        return self.predict(obs, act, context)

    def log_prob(self, obs: Tensor, act: Tensor, next_obs: Tensor) -> Tensor:
        """Return, up to a constant, a narrow Gaussian density around what each context predicts."""
        errors = [next_obs - self.predict(obs, act, slot.expand(len(obs))) for slot in torch.arange(self.max_contexts)]
        return -0.5 * torch.stack(errors, -1).div(_STD).square().sum(-2)

    def log_prior(self) -> Tensor:
        """Return 0: nothing is unknown."""
        return torch.zeros(())

    def reset_slots(self, slots: Tensor, generator: torch.Generator | None = None) -> None:
        """Change nothing: the equations have no starting values."""


class _KnownChain(ContextPrior):
    """A prior that is sure of its chain."""

    def __init__(self, chain: ContextChain) -> None:
        super().__init__(chain.max_contexts)
        self.chain = chain

    def model(self) -> ContextChain:
        return self.chain

    def guide(self) -> None:
        """Sample nothing: there is no latent variable."""

    def mean_chain(self) -> ContextChain:
        return self.chain


class _KeepFirst(Distiller):
    def __init__(self, num: int) -> None:
        self.num = num

    def keep(self, posterior: ContextPosterior) -> Tensor:
        return torch.arange(len(posterior.chain.initial)) < self.num


def told_model(system: System, max_contexts: int) -> ContextModel:
    """Return the model that knows everything about a system, its contexts in the first slots.

    Its chain is Markov with the same mean stay, cool_off - 1 + 1 / switch steps.
    """
    num = system.num_contexts
    leave = 1.0 / (max(system.cool_off, 1) - 1 + 1.0 / system.switch)
    transition = torch.zeros(max_contexts, max_contexts)
    transition[:, 0] = 1.0
    transition[:num] = 0.0
    transition[:num, :num] = leave / (num - 1)
    transition[range(num), range(num)] = 1.0 - leave
    initial = torch.zeros(max_contexts)
    initial[:num] = 1.0 / num
    dynamics = TrueDynamics(system, max_contexts)
    task = TaskSpec(max_contexts, dynamics.obs_dim, dynamics.act_dim)
    parts = ModelParts(*(Part(name, None) for name in ("known", "true", "known")))
    return ContextModel(task, _KnownChain(ContextChain(initial, transition)), dynamics, _KeepFirst(num), parts)
