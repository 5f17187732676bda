"""Mixtures that give whole chunks of transitions one label: what DNNMM and ANPMM have in common.

A prior model is trained on the random episodes of the warm start, pooled without labels. From then on transitions
collect in a memory; when it is full, the chunk goes to the component with the largest

    log(points of the component) + log likelihood of the chunk
    log(alpha) + log likelihood under the prior model, for a new one

and that component is fitted anew from the prior's weights, on all its data.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mbrl_hdp.control.agent import Act, Agent, AgentTask, Epoch, Packed
from mbrl_hdp.control.state import prefixed, unprefixed
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.seeding import torch_generator
from mbrl_hdp_baselines.features import AngleFeatures
from mbrl_hdp_baselines.imagination import MeanRollouts, make_mean_planner
from mbrl_hdp_baselines.settings import ChunkConfig

Rows = tuple[Tensor, Tensor]


class ChunkModel(nn.Module, ABC):
    """A probabilistic model of targets `n D` given inputs `n I`, with the data it was fitted to.

    Inputs and targets are standardised by the data that `standardise` saw.

    Args:
        num_inputs: I.
        num_outputs: D.
    """

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        for name, width in (("input", num_inputs), ("target", num_outputs)):
            self.register_buffer(f"{name}_mean", torch.zeros(width))
            self.register_buffer(f"{name}_std", torch.ones(width))
        self.inputs, self.targets = torch.zeros(0, num_inputs), torch.zeros(0, num_outputs)

    def standardise(self, inputs: Tensor, targets: Tensor) -> None:
        """Estimate the scales of data; a column that never changes has scale 1."""
        for name, rows in (("input", inputs), ("target", targets)):
            std = rows.std(0, correction=0)
            getattr(self, f"{name}_mean").copy_(rows.mean(0))
            getattr(self, f"{name}_std").copy_(torch.where(std > 1e-8, std, 1.0))

    def scaled(self, inputs: Tensor, targets: Tensor) -> Rows:
        """Return standardised inputs and targets."""
        buffers = dict(self.named_buffers())
        return (
            (inputs - buffers["input_mean"]) / buffers["input_std"],
            (targets - buffers["target_mean"]) / buffers["target_std"],
        )

    def keep(self, inputs: Tensor, targets: Tensor) -> None:
        """Add data, without fitting."""
        self.inputs, self.targets = torch.cat([self.inputs, inputs]), torch.cat([self.targets, targets])

    @torch.no_grad()
    def log_likelihood(self, inputs: Tensor, targets: Tensor) -> float:
        """Return the log likelihood of targets in their own units, summed over points and outputs."""
        scaled_inputs, scaled_targets = self.scaled(inputs, targets)
        buffers = dict(self.named_buffers())
        found = self.distribution(scaled_inputs).log_prob(scaled_targets) - buffers["target_std"].log()
        return float(found.sum())

    @torch.no_grad()
    def predict_mean(self, inputs: Tensor) -> Tensor:
        """Return the mean targets."""
        buffers = dict(self.named_buffers())
        scaled = (inputs - buffers["input_mean"]) / buffers["input_std"]
        return self.distribution(scaled).mean * buffers["target_std"] + buffers["target_mean"]

    @abstractmethod
    def distribution(self, inputs: Tensor) -> torch.distributions.Normal:
        """Return the distribution of standardised targets."""

    @abstractmethod
    def pretrain(self, generator: torch.Generator) -> float:
        """Fit to the data that is kept, from fresh weights; return the loss."""

    @abstractmethod
    def refit(self, generator: torch.Generator) -> float:
        """Fit to the data that is kept, from the weights of the prior model; return the loss."""


class ChunkMixture(Agent):
    """A mixture of `ChunkModel`s that plans with the component of the last chunk.

    In evaluation episodes it goes on labelling chunks, among the components it has, and learns nothing.

    Attributes:
        prior: the model of the pooled random episodes; it plans until the first chunk has its label.
        components: the mixture.
        active: component of the last chunk, None before the first.
    """

    def __init__(self, config: ChunkConfig, task: AgentTask) -> None:
        self.config, self.task = config, task
        self.features = AngleFeatures(task.obs_dim, task.angle_columns)
        self.rollouts = MeanRollouts(task, self.features, torch.float32)
        self.planner = make_mean_planner(task, self.rollouts)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(task.seed)
            self.prior = self.new_model(self.features.width + task.act_dim, self.features.width)
        self.components: list[ChunkModel] = []
        self.num_fits = 0
        self._memory: list[Rows] = []
        self._trained_in: int | None = None
        self.begin_episode()

    @abstractmethod
    def new_model(self, num_inputs: int, num_outputs: int) -> ChunkModel:
        """Return a model with fresh weights, drawn from torch's global generator."""

    @property
    def is_ready(self) -> bool:
        """Whether the prior model is trained; until then actions are random."""
        return self.num_fits > 0

    def begin_episode(self) -> None:
        """Forget the plan and what was watched; the mixture and its memory stay."""
        self.planner.reset()
        self.active = self._trained_in
        self._watched: list[Rows] = []
        self._labels: list[int] = []

    def act(self, packed: Packed, explore: bool) -> Act:  # noqa: ARG002 - plans are no noisier in training
        """Plan with the active component."""
        model = self.prior if self.active is None else self.components[self.active]
        self.rollouts.predict = model.predict_mean
        return np.asarray(self.planner.act(packed))

    def observe(self, packed: Packed, act: Act, reward: float, next_packed: Packed, terminated: bool) -> None:  # noqa: ARG002
        """Remember a transition; label and learn a full chunk."""
        self._memory.append(self._pair(packed, act, next_packed))
        self._labels.append(self.active or 0)
        if len(self._memory) == self.config.chunk:
            inputs, targets = _stacked(self._memory)
            self._memory = []
            chosen = self.choose(inputs, targets, is_new_allowed=True)
            if chosen == len(self.components):
                self.components.append(copy.deepcopy(self.prior))
                self.components[-1].inputs, self.components[-1].targets = inputs[:0], targets[:0]
            self._fit(chosen, inputs, targets)
            self.active = self._trained_in = chosen
            self._label_chunk(chosen)

    def watch(self, packed: Packed, act: Act, next_packed: Packed) -> None:
        """Remember a transition of an evaluation episode; label a full chunk."""
        self._watched.append(self._pair(packed, act, next_packed))
        self._labels.append(self.active or 0)
        if len(self._watched) == self.config.chunk:
            if self.components:
                self.active = self.choose(*_stacked(self._watched), is_new_allowed=False)
                self._label_chunk(self.active)
            self._watched = []

    def choose(self, inputs: Tensor, targets: Tensor, is_new_allowed: bool) -> int:
        """Return the component that explains a chunk best; the number of components stands for a new one."""
        scores = [np.log(len(c.inputs)) + c.log_likelihood(inputs, targets) for c in self.components]
        if is_new_allowed:
            scores.append(np.log(self.config.new_weight) + self.prior.log_likelihood(inputs, targets))
        return int(np.nan_to_num(scores, nan=-np.inf).argmax())

    def end_episode(self) -> Mapping[str, float]:
        """Return how many components there are."""
        return {"num_components": float(len(self.components))}

    def context_labels(self) -> np.ndarray[Any, Any]:
        """Return the components of the last episode's transitions."""
        return np.array(self._labels, dtype=np.int64)

    def learn(self, epoch: Epoch) -> Mapping[str, float]:
        """Train the prior model on the random episodes; later epochs were learned from while acting."""
        if self.is_ready:
            return {}
        pairs = [
            self._pair(obs[t], act[t], obs[t + 1])
            for obs, act, length in zip(epoch.new.obs, epoch.new.act, epoch.new.lengths, strict=True)
            for t in range(length)
        ]
        inputs, targets = _stacked(pairs)
        self.prior.standardise(inputs, targets)
        self.prior.keep(inputs, targets)
        loss = self.prior.pretrain(self._fit_generator())
        self.num_fits += 1
        return {"pretrain_loss": loss}

    def state_dict(self) -> dict[str, Any]:
        """Return all models with their data, the memory and the planner."""
        inputs, targets = _stacked(self._memory) if self._memory else (torch.zeros(0), torch.zeros(0))
        state: dict[str, Any] = {
            "num_components": len(self.components), "num_fits": self.num_fits, "trained_in": self._trained_in,
            "memory_inputs": inputs, "memory_targets": targets,
        }  # fmt: skip
        for name, model in self._models().items():
            state |= prefixed(name, {**model.state_dict(), "data.inputs": model.inputs, "data.targets": model.targets})
        return state | prefixed("planner", self.planner.state_dict())

    def load_state_dict(self, state: Mapping[str, Any], data: Trajectories, model: ContextModel | None) -> None:  # noqa: ARG002
        """Restore what `state_dict` returned."""
        self.num_fits, self._trained_in = state["num_fits"], state["trained_in"]
        self.components = [copy.deepcopy(self.prior) for _ in range(state["num_components"])]
        for name, found in self._models().items():
            part = unprefixed(state, name)
            found.inputs, found.targets = part.pop("data.inputs").clone(), part.pop("data.targets").clone()
            found.load_state_dict(part)
        self._memory = list(zip(state["memory_inputs"], state["memory_targets"], strict=True))
        self.planner.load_state_dict(unprefixed(state, "planner"))
        self.active = self._trained_in

    def _models(self) -> dict[str, ChunkModel]:
        return {"prior": self.prior} | {f"component{number}": found for number, found in enumerate(self.components)}

    def _fit(self, number: int, inputs: Tensor, targets: Tensor) -> None:
        component = self.components[number]
        component.keep(inputs, targets)
        component.load_state_dict(self.prior.state_dict())
        component.refit(self._fit_generator())
        self.num_fits += 1

    def _fit_generator(self) -> torch.Generator:
        return torch_generator(self.task.seed, "chunk mixture", "fit", self.num_fits)

    def _label_chunk(self, label: int) -> None:
        """Label the steps of the chunk that lie in this episode."""
        num = min(self.config.chunk, len(self._labels))
        self._labels[len(self._labels) - num :] = [label] * num

    def _pair(self, obs: Packed, act: Act, next_obs: Packed) -> Rows:
        """Return input and target of a transition: [features, action] and the change of the features."""
        before, after = (self.features.encode(torch.as_tensor(o, dtype=torch.float64)) for o in (obs, next_obs))
        return torch.cat([before, torch.as_tensor(act, dtype=torch.float64)]).float(), (after - before).float()


def _stacked(pairs: list[Rows]) -> Rows:
    inputs, targets = zip(*pairs, strict=True)
    return torch.stack(inputs), torch.stack(targets)
