"""The trainer moves the chain to what the data says, in the right direction."""

import numpy as np
import torch

import mbrl_hdp
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.schedule import FitConfig, Schedule
from mbrl_hdp.inference.trainer import Trainer
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_priors import HdpPrior

# A cycle that is mostly run through one way: its transpose is another chain.
CYCLE = np.array([[0.80, 0.19, 0.01], [0.02, 0.58, 0.40], [0.30, 0.05, 0.65]])
DRIFT = np.array([1.0, -2.0, 4.0])


class KnownHeads(ContextDynamics):
    """Drift by context, known and far apart against the noise: every step shows its context."""

    def __init__(self):
        super().__init__(3, 1, 0)
        self.drift = torch.nn.Parameter(torch.tensor(DRIFT, dtype=torch.float32)[:, None])

    def log_prob(self, obs, act, next_obs):
        return -0.5 * ((next_obs - obs - self.drift[:, 0]) / 0.05) ** 2

    def predict(self, obs, act, context):
        return obs + self.drift[context]

    def sample(self, obs, act, context, generator=None):
        return self.predict(obs, act, context)

    def log_prior(self):
        return self.drift.new_zeros(())

    def reset_slots(self, slots, generator=None):
        raise NotImplementedError


def cycling(num_episodes=60, num_steps=50):
    rng = np.random.default_rng(0)
    context = np.zeros((num_episodes, num_steps), dtype=int)
    context[:, 0] = rng.choice(3, p=[0.6, 0.3, 0.1], size=num_episodes)
    for t in range(1, num_steps):
        context[:, t] = [rng.choice(3, p=CYCLE[k]) for k in context[:, t - 1]]
    change = DRIFT[context] + 0.01 * rng.normal(size=context.shape)
    obs = np.concatenate([np.zeros((num_episodes, 1)), change.cumsum(1)], 1)[..., None]
    return mbrl_hdp.Trajectories(obs, context=context)


def expected_rows(prior, data):
    """Return prior + counts, the optimum of the bound where every context is known; the rows of the mean chain."""
    counts = np.zeros((4, 3))
    np.add.at(counts[0], data.context[:, 0], 1)
    np.add.at(counts, (data.context[:, :-1] + 1, data.context[:, 1:]), 1)
    rows = prior.expected_prior_rows().detach() + torch.tensor(counts, dtype=torch.float32)
    return rows / rows.sum(-1, keepdim=True)


def known_trainer(data, **changes):
    prior = HdpPrior(3, row_concentration=3.0, stickiness=1.0)
    rule = load_registry().build_distillation("stationary", TaskSpec(3))
    config = FitConfig(learning_rate=1e-9, top_learning_rate=1e-9, num_steps=60, **changes)
    schedule = Schedule(freeze_until=0.0, distil_from=1.0, decay_from=1.0)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    return Trainer(prior, KnownHeads(), rule, EpisodeTensors.of(data), config, schedule, generator)


def rows_of(prior):
    chain = prior.mean_chain()
    return torch.cat([chain.initial[None], chain.transition])


def test_training_steps_move_the_chain_to_the_counted_moves():
    data = cycling()
    trainer = known_trainer(data, natural_step=0.2)
    trainer.run()
    torch.testing.assert_close(rows_of(trainer.prior), expected_rows(trainer.prior, data), rtol=0.0, atol=0.04)


def test_settling_brings_the_chain_to_the_optimum_on_all_data():
    data = cycling()
    trainer = known_trainer(data)
    trainer.prior.start_from(trainer.start_chain, 1000.0)
    trainer.settle_chain()
    torch.testing.assert_close(rows_of(trainer.prior), expected_rows(trainer.prior, data), rtol=0.0, atol=1e-3)
