"""A small learned model with known numbers: affine dynamics, two kept contexts among four slots."""

import pytest
import torch

from mbrl_hdp.distil.distiller import Distiller
from mbrl_hdp.inference.model import ContextModel, ModelParts, Part
from mbrl_hdp.inference.prior import ContextPrior
from mbrl_hdp.types import ContextChain, TaskSpec
from mbrl_hdp_dynamics.delta_mlp import DeltaMlpConfig, build_delta_mlp
from mbrl_hdp_dynamics.linear import LinearConfig, build_linear

PARTS = ModelParts(*(Part(name, None) for name in ("fixed", "toy", "fixed")))


class FixedChain(ContextPrior):
    """A prior that is sure of its chain."""

    def __init__(self, chain):
        super().__init__(chain.max_contexts)
        self.chain = chain

    def model(self):
        return self.chain

    def guide(self):
        return None

    def mean_chain(self):
        return self.chain


class FixedKeep(Distiller):
    def __init__(self, keep):
        self.mask = torch.tensor(keep)

    def keep(self, posterior):
        return self.mask


def wide_chain(slots, max_contexts, initial, transition):
    """Put a small chain into its slots; the other slots are never entered."""
    first = torch.zeros(max_contexts)
    first[list(slots)] = torch.tensor(initial)
    matrix = torch.zeros(max_contexts, max_contexts)
    matrix[:, slots[0]] = 1.0
    for row, slot in enumerate(slots):
        matrix[slot] = 0.0
        matrix[slot, list(slots)] = torch.tensor(transition[row])
    return ContextChain(first, matrix)


def build(dynamics, slots, initial, transition):
    max_contexts = dynamics.max_contexts
    task = TaskSpec(max_contexts, dynamics.obs_dim, dynamics.act_dim)
    chain = wide_chain(slots, max_contexts, initial, transition)
    keep = [slot in slots for slot in range(max_contexts)]
    return ContextModel(task, FixedChain(chain), dynamics, FixedKeep(keep), PARTS)


@pytest.fixture
def affine_model():
    """Two contexts that push the other way: next = obs + A_k [obs, act] + b_k + noise."""

    def make(
        initial=(0.7, 0.3),
        transition=((0.8, 0.2), (0.35, 0.65)),
        slots=(1, 3),
        max_contexts=4,
        noise_std=0.1,
        gains=(0.5, -0.4, 0.2, 0.1),
    ):
        dynamics = build_linear(LinearConfig(std_floor=0.0), TaskSpec(max_contexts, 2, 1))
        with torch.no_grad():
            dynamics.heads.weights[0].zero_()
            dynamics.heads.biases[0].zero_()
            dynamics.raw_log_std.fill_(torch.tensor(max(noise_std, 1e-30)).log())
            for number, slot in enumerate(slots):
                matrix = torch.tensor([[-0.1, 0.2, 0.0], [0.05 * (number + 1), -0.2, gains[number]]])
                dynamics.heads.weights[0][slot] = matrix
                dynamics.heads.biases[0][slot] = torch.tensor([0.02, -0.03 * (number + 1)])
        return build(dynamics, slots, initial, transition)

    return make


@pytest.fixture
def network_model():
    """Networks with one hidden layer and an angle, which take the compiled rollout."""

    def make(initial=(0.7, 0.3), transition=((0.8, 0.2), (0.35, 0.65)), slots=(1, 3), max_contexts=4, noise_std=0.1):
        config = DeltaMlpConfig(hidden_sizes=[13], std_floor=0.0, angle_columns=[1])
        dynamics = build_delta_mlp(config, TaskSpec(max_contexts, 3, 2, seed=4))
        with torch.no_grad():
            for value in dynamics.heads.parameters():
                value.mul_(8.0)
            dynamics.raw_log_std.fill_(torch.tensor(max(noise_std, 1e-30)).log())
        generator = torch.Generator().manual_seed(5)
        obs, change = torch.randn(2, 50, 3, generator=generator)
        dynamics.set_normaliser(obs + 1.0, 2.0 * torch.randn(50, 2, generator=generator), obs + 1.0 + 0.3 * change)
        return build(dynamics, slots, initial, transition)

    return make
