"""Numbers that cannot be used, and exceptions, at ten places of a run: found in the step they appear, and named.

An environment of the user's gives NaN, infinity, a wrong shape, a wrong type or an exception in step 5 of training
episode 2; an agent gives NaN as its action, a filter NaN as its belief; the loss or the gradient of what is learned is
NaN in some update. Good is: exit code 1, one line that names episode and step (or the update), a way to go on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.attack.attempts import BAD, REFUSED, Family, Verdict
from benchmarks.attack.sandbox import run_job

AGENTS = ("c_cem", "c_sac", "fi_sac", "ni_sac")
MODULE = '''
import gymnasium, numpy as np, torch

class Faulty(gymnasium.Env):
    """A mass that is pushed; the push changes its sign in the second context."""
    contexts = (1.0, -1.0)

    def __init__(self, place="none", episode=2, step=5, horizon=10):
        self.place, self.episode, self.step_, self.horizon = place, episode + 1, step, horizon  # one reset is a trial
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.resets = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.t, self.state, self.context = 0, self.np_random.normal(size=2), 0
        is_due = self.resets == self.episode and self.place == "reset"
        return (self.state * np.nan if is_due else self.state.copy()), {"context": 0, "next_context": 0}

    def step(self, action):
        is_due = self.resets == self.episode and self.t == self.step_
        place = self.place if is_due else "none"
        push = self.contexts[self.context] * float(action[0])
        move = np.array([0.1 * self.state[1], 0.3 * push])
        self.state = 0.95 * self.state + move + 0.01 * self.np_random.normal(size=2)
        self.t += 1
        acted, self.context = self.context, int(self.np_random.uniform() < 0.2) ^ self.context
        obs = {"observation": np.array([np.inf, 0.0]), "shape": np.zeros(3)}.get(place, self.state.copy())
        reward = {"reward": float("nan"), "type": "much"}.get(place, -float(self.state @ self.state))
        if place == "exception":
            raise ZeroDivisionError("the user's own mistake")
        info = {"context": acted, "next_context": self.context}
        return obs, reward, False, self.t >= self.horizon, info

    def reward_fn(self, act, next_obs):
        self.calls = getattr(self, "calls", 0) + 1
        if self.place == "imagined" and self.calls > 20:
            return next_obs[:, :1] * np.nan
        return -next_obs.square().sum(-1, keepdim=True)

gymnasium.register("Faulty-v0", Faulty)
'''
_WORDS = (
    *("train", "profile=smoke", "env=gymnasium", "env.id=faulty:Faulty-v0", "max_contexts=3", "planner.horizon=3"),
    *(
        "dynamics=delta_mlp",
        "dynamics.hidden_sizes=[16]",
        "budget.num_epochs=2",
        "budget.warm_episodes=6",
        "budget.eval_episodes=1",
    ),
    *("budget.final_eval_episodes=1", "budget.warm_model_steps=20", "budget.model_steps=5", "hydra.run.dir=run"),
)
_FIRST = "training episode 0, step 5"
_EVALUATED = "evaluation episode 0, step 5"

Patch = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """One place.

    Attributes:
        name: the environment's `place`, or what is patched.
        expected: what the line must say, by agent.
        patch: puts the fault into our own code; None for the environment's.
    """

    name: str
    expected: dict[str, str]
    patch: dict[str, Patch] | None = None


def _every(words: str) -> dict[str, str]:
    return dict.fromkeys(AGENTS, words)


def _nan_on_call(owner: Any, name: str, number: int) -> Patch:
    """Let a method return NaN in one call."""

    def patch() -> None:
        real, calls = getattr(owner, name), []

        def faulty(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            found = real(*args, **kwargs)
            return np.asarray(found) * np.nan if len(calls) == number else found

        setattr(owner, name, faulty)

    return patch


def _nan_action() -> None:
    from mbrl_hdp.experiments import agent_setup

    real = agent_setup.make_agent

    def make_agent(*args: Any, **kwargs: Any) -> Any:
        made = real(*args, **kwargs)
        _nan_on_call(made.agent, "act", 6)()
        return made

    from mbrl_hdp.experiments import loop

    loop.make_agent = make_agent


def _nan_belief(tracker: str) -> Patch:
    def patch() -> None:
        from mbrl_hdp.control import tracker as trackers

        _nan_on_call(getattr(trackers, tracker), "update", 6)()

    return patch


def _nan_elbo(is_gradient: bool) -> Patch:
    """Make the bound's loss, or only its gradient, NaN from the fifth step on."""

    def patch() -> None:
        from mbrl_hdp.inference import trainer

        real, calls = trainer.Trainer._descend, []

        def descend(self: Any, loss: torch.Tensor) -> None:
            calls.append(1)
            if len(calls) == 5:
                zero = self.optimiser.param_groups[0]["params"][0].sum() * 0.0
                loss = loss + (zero.sqrt() if is_gradient else zero * float("nan"))
            real(self, loss)

        trainer.Trainer._descend = descend

    return patch


def _nan_sac(what: str) -> Patch:
    """Put NaN into a network, or into the running mean of its gradients, before the first update."""

    def patch() -> None:
        from mbrl_hdp.control.sac_learner import SacLearner

        real, calls = SacLearner.learn, []

        def learn(self: Any, *args: Any) -> Any:
            calls.append(1)
            if len(calls) == 1:
                target = self.critic.flat if what == "loss" else self.policy_optim.mean
                target[..., 0] = float("nan")
            return real(self, *args)

        SacLearner.learn = learn

    return patch


_MODEL_AGENTS, _SAC_AGENTS = AGENTS[:2], AGENTS[2:]
FAULTS = (
    Fault("reset", _every("training episode 2, step 0")),
    *(Fault(name, _every("training episode 2, step 5")) for name in ("observation", "shape", "reward", "type")),
    Fault("exception", _every("training episode 2, step 5: step() of the environment faulty:Faulty-v0 failed")),
    # Only planners imagine rewards; twenty calls reach into the second plan.
    Fault("imagined", {"c_cem": "evaluation episode 0, step"}),
    Fault("action", _every(_EVALUATED), dict.fromkeys(AGENTS, _nan_action)),
    Fault(
        "belief",
        {"c_cem": _EVALUATED, "c_sac": _EVALUATED, "fi_sac": _FIRST, "ni_sac": _FIRST},
        {
            **dict.fromkeys(_MODEL_AGENTS, _nan_belief("BeliefTracker")),
            **{"fi_sac": _nan_belief("TruthTracker"), "ni_sac": _nan_belief("NothingTracker")},
        },
    ),
    *(
        Fault(
            name,
            {
                **dict.fromkeys(_MODEL_AGENTS, "gradient step 4"),
                **dict.fromkeys(_SAC_AGENTS, "SAC diverged in update 1 "),
            },
            {
                **dict.fromkeys(_MODEL_AGENTS, _nan_elbo(name == "gradient")),
                **dict.fromkeys(_SAC_AGENTS, _nan_sac(name)),
            },
        )
        for name in ("loss", "gradient")
    ),
)


def attack(root: Path, is_small: bool) -> Iterator[Verdict]:
    """Try every place with every agent; the small version takes another agent for every place."""
    pairs = [(fault, agent) for fault in FAULTS for agent in AGENTS if agent in fault.expected]
    for fault, agent in pairs[:: len(AGENTS) + 1] if is_small else pairs:
        yield _attempt(fault, agent, root / "faults")


def _attempt(fault: Fault, agent: str, folder: Path) -> Verdict:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "faulty.py").write_text(MODULE)
    place = fault.name if fault.patch is None else "none"

    def job() -> int:
        from mbrl_hdp.cli import main

        if fault.patch is not None:
            fault.patch[agent]()
        return main([*_WORDS, f"agent={agent}", f"+env.kwargs.place={place}"])

    outcome = run_job(job, folder, limit=600.0)
    line = outcome.lines[0] if outcome.lines else ""
    is_good = outcome.code == 1 and outcome.is_one_line and fault.expected[agent] in line and "resume=" in line
    words = line if is_good else f"exit code {outcome.code}: {outcome.err[-400:]}"
    return Verdict("faults", f"{fault.name} with {agent}", REFUSED if is_good else BAD, words, outcome.seconds)


FAMILY = Family("faults", "found in the step it appears, episode and step named, exit code 1, how to go on", attack)
