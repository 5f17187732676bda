"""One cell of most studies: fit cart-pole data once, score it against the truth on other episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from omegaconf import OmegaConf

from mbrl_hdp.data.collect import collect
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.envs import BatchSwitchingEnv, Context, MarkovChain
from mbrl_hdp.envs.cartpole import CartPolePhysics
from mbrl_hdp.experiments.config import load_config
from mbrl_hdp.experiments.fingerprint import installed_plugins
from mbrl_hdp.hooks import Registry, load_registry
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.inference.model import ContextModel, ModelParts, Part
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.scoring import align, empirical_transition
from mbrl_hdp.probability.markov import stationary
from mbrl_hdp.types import ContextChain

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings

HELD_OUT_EPISODES = 100
# Held-out episodes come from a seed that no training set uses.
_HELD_OUT_SEED = 10_000
# Of a chain with more slots no matrix is stored.
_MOST_SLOTS = 20


def fit_settings(max_contexts: int, seed: int, is_quick: bool = False, **changes: Any) -> Settings:
    """Return the settings of one fit: cart-pole hard, 500 trajectories, the defaults of `fit` with these changes.

    `env`, a preset of conf/env, takes the place of actuation and force.
    """
    settings = {
        "task": "cartpole",
        "actuation": [1.0, -1.0],
        "force": 20.0,
        "num_trajectories": 500,
        "max_contexts": max_contexts,
        "seed": seed,
        "prior": {"name": "hdp"},
        "distillation": {"name": "stationary"},
        "dynamics": {"name": "cartpole"},
        "fit": {},
    }
    settings.update(changes)
    if is_quick:
        settings.update(
            num_trajectories=20,
            fit={"start": "random", "num_steps": 20, "num_restarts": 1, "polish_steps": 5, "batch_size": 10},
        )
    return settings


def resolve(settings: Settings) -> Settings:
    """Return a cell's settings with every default of its plugins and of `fit` filled in."""
    registry = installed_plugins()
    found = {key: value for key, value in settings.items() if key != "variant"}
    if "env" in settings:
        found["env"] = preset(settings["env"])
    for group in ("prior", "distillation", "dynamics"):
        words = settings[group]
        found[group] = {"name": words["name"], **asdict(part(registry, group, words).config)}
    return found | {"fit": asdict(fit_config(settings))}


def fit_config(settings: Settings) -> FitConfig:
    """Return the settings of `fit`: its defaults, but no halves of the episodes, which only serve the verdict."""
    return FitConfig(**{"halves_within_s": 0.0} | settings["fit"])


def fitted(settings: Settings, data: Trajectories, dt: float | None = None) -> ContextModel:
    """Fit data with a cell's parts, slots, seed and settings of `fit`."""
    registry = load_registry()
    parts = parts_of(registry, settings)
    return fit(
        data,
        parts.prior,
        parts.distillation,
        parts.dynamics,
        max_contexts=settings["max_contexts"],
        seed=settings["seed"],
        # These studies are about the chain that the prior learns.
        duration="geometric",
        config=fit_config(settings),
        dt=dt,
        progress=False,
        registry=registry,
    )


def run_fit(settings: Settings) -> Results:
    """Fit and score one cell."""
    data, held_out = episodes(settings), held_out_episodes(settings)
    model = fitted(settings, data)
    return score(model, data, held_out) | {"runs": model.report.runs, "fit_time_s": model.report.fit_time_s}


def score(model: ContextModel, data: Trajectories, held_out: Trajectories) -> Results:
    """Score a model against the truth; everything that the studies' pages need, as JSON."""
    assert held_out.context is not None
    assert data.context is not None
    labels = model.smooth(held_out).argmax(-1)
    aligned = align(labels, held_out.context)
    chain = model.prior.mean_chain()
    weights = model.prior.top_weights()
    truth = empirical_transition(data.context, int(data.context.max()) + 1)
    return {
        "accuracy": aligned.accuracy,
        "num_contexts": model.num_contexts,
        "transition": model.transition.tolist(),
        "to_true": aligned.to_true.tolist(),
        "confusion": aligned.confusion.tolist(),
        "course": {"truth": held_out.context[0].tolist(), "labels": labels[0].tolist()},
        "chain": chain_entry(chain),
        "masses": largest(stationary(chain.transition, chain.initial).tolist()),
        "top_weights": None if weights is None else largest(weights.detach().tolist()),
        "switch": switch_probability(model.transition),
        "true_switch": switch_probability(truth),
        "log_likelihood": float(model.log_likelihood(held_out).sum() / held_out.is_observed.sum()),
    }


def chain_entry(chain: ContextChain) -> Results | None:
    """Return the matrices of a chain over all slots, for figures; None if there are many slots."""
    if len(chain.initial) > _MOST_SLOTS:
        return None
    shares = stationary(chain.transition, chain.initial)
    parts = {"initial": chain.initial, "transition": chain.transition, "stationary": shares}
    return {name: np.round(values.detach().double().numpy(), 5).tolist() for name, values in parts.items()}


def episodes(settings: Settings) -> Trajectories:
    """Simulate the training episodes of a cell: random actions, its own seed."""
    return _collect(settings, settings["num_trajectories"], settings["seed"])


def held_out_episodes(settings: Settings) -> Trajectories:
    """Simulate the held-out episodes of a cell."""
    return _collect(settings, HELD_OUT_EPISODES, _HELD_OUT_SEED + settings["seed"])


def parts_of(registry: Registry, settings: Settings) -> ModelParts:
    """Return the three parts of a cell's model."""
    return ModelParts(**{kind: part(registry, kind, settings[kind]) for kind in ("prior", "dynamics", "distillation")})


def part(registry: Registry, kind: str, words: Settings) -> Part:
    """Turn `{"name": ..., setting: value}` into a part of the model."""
    values = {key: value for key, value in words.items() if key != "name"}
    return Part(words["name"], registry.get(kind, words["name"]).spec.config(**values))


def largest(masses: Sequence[float], count: int = 6) -> list[float]:
    """Return the largest masses in falling order."""
    return sorted(map(float, masses), reverse=True)[:count]


def switch_probability(transition: Any) -> float:
    """Return the mean probability of leaving a context."""
    return float(np.mean(1.0 - np.diag(np.asarray(transition, dtype=np.float64))))


def _collect(settings: Settings, num_episodes: int, seed: int) -> Trajectories:
    env = _batch_env(settings, min(100, num_episodes))
    return collect(env, num_episodes=num_episodes, seed=seed, progress=False)


@lru_cache
def preset(name: str) -> Settings:
    """Return id and arguments of an environment preset."""
    env = load_config([f"env={name}"]).env
    return {"id": env.id, "kwargs": OmegaConf.to_container(env.kwargs)}


def _batch_env(settings: Settings, num_envs: int) -> BatchSwitchingEnv:
    if "env" in settings:
        chosen = preset(settings["env"])
        made: BatchSwitchingEnv = gymnasium.make(chosen["id"], **chosen["kwargs"]).get_wrapper_attr("as_batch")(
            num_envs
        )
        return made
    contexts = [Context(attributes={"actuation": value}) for value in settings["actuation"]]
    chain = MarkovChain.symmetric(len(contexts), switch=0.2, cool_off=5)
    return BatchSwitchingEnv(CartPolePhysics(force=settings["force"]), contexts, chain, num_envs=num_envs)
