"""The cell of `sbc`: draw a chain from the prior, simulate data, learn the chain, rank the truth in its posterior.

If the posterior is right, the rank of the true value among draws from it is uniform (Talts et al., "Validating Bayesian
inference algorithms with simulation-based calibration", 2018). Heads are known, so that only the chain is learned, as
`fit` learns it: gradient steps and natural steps (`Trainer.run`), then `Trainer.settle_chain`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.experiments.studies.cartpole_fit import part
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.devices import seeded
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.prior import ContextPrior
from mbrl_hdp.inference.schedule import POLISH, FitConfig
from mbrl_hdp.inference.trainer import Trainer
from mbrl_hdp.probability.markov import stationary
from mbrl_hdp.seeding import numpy_generator, sub_seed, torch_generator
from mbrl_hdp.types import ContextChain, TaskSpec

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings

COVERAGES = (0.5, 0.8, 0.95)


class KnownHeads(ContextDynamics):
    """Heads that are known: in context k the next observation is normal around k * separation with variance 1."""

    def __init__(self, max_contexts: int, separation: float) -> None:
        super().__init__(max_contexts, obs_dim=1, act_dim=0)
        self.means = separation * torch.arange(max_contexts)

    def log_prob(self, obs: Tensor, act: Tensor, next_obs: Tensor) -> Float[Tensor, "batch K"]:  # noqa: ARG002
        """Return the normal log densities."""
        return torch.distributions.Normal(self.means, 1.0).log_prob(next_obs)

    def predict(self, obs: Tensor, act: Tensor, context: Tensor) -> Tensor:  # noqa: ARG002
        """Return the means."""
        return self.means[context][:, None]

    def sample(self, obs: Tensor, act: Tensor, context: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw from the normal distributions."""
        mean = self.predict(obs, act, context)
        return mean + torch.randn(mean.shape, generator=generator)

    def log_prior(self) -> Float[Tensor, ""]:
        """Return 0: nothing is learned here."""
        return self.means.new_zeros(())

    def reset_slots(self, slots: Tensor, generator: torch.Generator | None = None) -> None:
        """Do nothing: there is nothing to reset."""


def run(settings: Settings) -> Results:
    """Simulate and learn; return the rank of every true value among draws, and whether intervals hold it."""
    registry = load_registry()
    chosen = part(registry, "prior", settings["prior"])
    ranks: dict[str, list[int]] = {}
    for number in range(settings["num_simulations"]):
        seed = sub_seed(settings["seed"], "simulation", number)
        task = TaskSpec(settings["num_contexts"], 1, 0, seed=seed)
        prior = registry.build_prior(chosen.name, task, chosen.config)
        with seeded(seed, torch.device("cpu")), torch.no_grad():
            truth = prior.model()
        data = simulate(truth, settings, numpy_generator(seed, "data"))
        draws = learn(prior, data, settings, seed, registry.build_distillation("stationary", task))
        for name, rank in rank_all(truth, draws).items():
            ranks.setdefault(name, []).append(rank)
    return {"ranks": ranks, "num_draws": settings["num_draws"]}


def simulate(chain: ContextChain, settings: Settings, rng: np.random.Generator) -> Trajectories:
    """Simulate episodes of normal emissions under a chain."""
    initial, rows = chain.initial.double().numpy(), chain.transition.double().numpy()
    context = np.empty((settings["num_episodes"], settings["num_steps"]), dtype=np.int64)
    for episode in context:
        for step in range(len(episode)):
            chances = initial if step == 0 else rows[episode[step - 1]]
            episode[step] = rng.choice(len(chances), p=chances / chances.sum())
    after = settings["separation"] * context + rng.standard_normal(context.shape)
    obs = np.concatenate([np.zeros((len(context), 1)), after], 1)[..., None]
    return Trajectories(obs=obs, context=context)


def learn(
    prior: ContextPrior, data: Trajectories, settings: Settings, seed: int, distillation: Any
) -> list[ContextChain]:
    """Learn the chain with known heads; return draws from its variational posterior."""
    heads = KnownHeads(settings["num_contexts"], settings["separation"])
    with seeded(seed, torch.device("cpu")):
        trainer = Trainer(
            prior, heads, distillation, EpisodeTensors.of(data), FitConfig(), POLISH,
            torch_generator(seed, "minibatch"), settings["num_gradient_steps"],
        )  # fmt: skip
        trainer.run(from_scratch=False)
        trainer.settle_chain()
        with torch.no_grad():
            return [prior.sample_chain() for _ in range(settings["num_draws"])]


def rank_all(truth: ContextChain, draws: list[ContextChain]) -> dict[str, int]:
    """Return the rank of the true value of every quantity among the draws: how many draws are smaller."""
    own, others = quantities(truth), [quantities(draw) for draw in draws]
    return {name: int(sum(other[name] < value for other in others)) for name, value in own.items()}


def quantities(chain: ContextChain) -> dict[str, float]:
    """Return the numbers of a chain whose posterior is judged."""
    return {
        "initial 0": float(chain.initial[0]),
        "stay in 0": float(chain.transition[0, 0]),
        "0 to 1": float(chain.transition[0, 1]),
        "mean leaving": float(1.0 - chain.transition.diagonal().mean()),
        "long-run share of 0": float(stationary(chain.transition, chain.initial)[0]),
    }


def is_inside(ranks: Int[np.ndarray, " n"], num_draws: int, coverage: float) -> np.ndarray:
    """Return whether the true value lies in the central interval of the draws with this coverage.

    Of `num_draws` + 1 equally likely ranks, the central ones make up the interval.
    """
    place = (ranks + 0.5) / (num_draws + 1)
    return np.asarray(np.abs(place - 0.5) <= 0.5 * coverage)
