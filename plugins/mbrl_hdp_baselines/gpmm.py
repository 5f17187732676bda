"""GPMM: an infinite mixture of Gaussian processes, learned and labelled online; plans with the component it is in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mbrl_hdp.control.agent import AgentTask
from mbrl_hdp.control.baseline import Baseline, Vector
from mbrl_hdp.control.state import prefixed, unprefixed
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.seeding import numpy_generator, torch_generator
from mbrl_hdp_baselines.counts import AssignmentCounts
from mbrl_hdp_baselines.distillation import distil
from mbrl_hdp_baselines.features import AngleFeatures
from mbrl_hdp_baselines.gp import GpComponent
from mbrl_hdp_baselines.imagination import MeanRollouts, make_mean_planner
from mbrl_hdp_baselines.settings import GpmmConfig


class Gpmm(Baseline):
    """The mixture, its labels and its planner. The first action of all is random; from then on every step is planned.

    In evaluation episodes it goes on labelling transitions, among the components it has, and learns nothing.

    Attributes:
        components: the Gaussian processes.
        assignment: labels and counts.
        active: component of the last transition; plans are made with it alone, held over the horizon.
    """

    def __init__(self, config: GpmmConfig, task: AgentTask) -> None:
        if config.distil_keep >= config.distil_above:
            raise ConfigError(
                f"agent.distil_keep={config.distil_keep} must be below agent.distil_above={config.distil_above}"
            )
        self.config, self.task = config, task
        self.features = AngleFeatures(task.obs_dim, task.angle_columns)
        self.assignment = AssignmentCounts(
            config.new_weight, config.burn_in, config.first_weight, config.first_self_weight, config.stickiness
        )
        self.components: list[GpComponent] = []
        self.rollouts = MeanRollouts(task, self.features, torch.float64)
        self.planner = make_mean_planner(task, self.rollouts)
        self.generator = torch_generator(task.seed, "gpmm", "distil")
        self.active, self._first_label = 0, 0
        self._watched: list[int] = []

    def reset(self) -> None:
        """Begin an episode: forget the plan and what was watched, not the mixture."""
        self.planner.reset()
        labels = self.assignment.labels
        self.active, self._first_label, self._watched = labels[-1] if labels else 0, len(labels), []

    def act(self, obs: Vector, explore: bool = False) -> Vector:  # noqa: ARG002 - plans are no noisier in training
        """Plan with the active component; without any data, act at random."""
        if not self.components:
            space = self.task.action_space
            return numpy_generator(self.task.seed, "gpmm", "first action").uniform(space.low, space.high)
        self.rollouts.predict = self.components[self.active].predict_mean
        return np.asarray(self.planner.act(obs))

    def observe(self, obs: Vector, act: Vector, reward: float, next_obs: Vector, terminated: bool) -> None:  # noqa: ARG002
        """Label a transition, add it to its component, fit that one again; then merge, prune, reduce."""
        point, change = self._pair(obs, act, next_obs)
        if not self.components:
            label = self.assignment.begin()
        else:
            previous = self.assignment.labels[-1]
            label = self.assignment.add(previous, self._probabilities(previous, point, change, is_new_allowed=True))
        if label == len(self.components):
            self.components.append(self._new_component())
        self.components[label].add(point[None], change[None])
        if self.config.merges:
            self._merge_or_prune(label)
        self.active = self.assignment.labels[-1]
        self._reduce(self.components[self.active])

    def watch(self, obs: Vector, act: Vector, next_obs: Vector) -> None:
        """Label a transition of an evaluation episode."""
        if self.components:
            self.active = int(self._probabilities(self.active, *self._pair(obs, act, next_obs), False).argmax())
        self._watched.append(self.active)

    def end_episode(self) -> Mapping[str, float]:
        """Compute predictions from data and hyper-parameters anew, so that a resumed run is the same run."""
        for component in self.components:
            component.refresh()
        labels = self.assignment.labels[self._first_label :]
        return {
            "num_components": float(len(self.components)),
            "label_switches": float(np.count_nonzero(np.diff(labels))),
        }

    def context_labels(self) -> np.ndarray[Any, Any]:
        """Return the components of the last episode's transitions."""
        return np.array(self._watched or self.assignment.labels[self._first_label :], dtype=np.int64)

    def state_dict(self) -> dict[str, Any]:
        """Return components, labels, counts, planner and generator."""
        state: dict[str, Any] = {"num_components": len(self.components), "generator": self.generator.get_state()}
        state |= prefixed("assignment", self.assignment.state_dict())
        state |= prefixed("planner", self.planner.state_dict())
        for number, component in enumerate(self.components):
            state |= prefixed(f"component{number}", component.state_dict())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.generator.set_state(state["generator"])
        self.assignment.load_state_dict(unprefixed(state, "assignment"))
        self.planner.load_state_dict(unprefixed(state, "planner"))
        self.components = [self._new_component() for _ in range(state["num_components"])]
        for number, component in enumerate(self.components):
            component.load_state_dict(unprefixed(state, f"component{number}"))

    def _new_component(self) -> GpComponent:
        return GpComponent(self.features.width + self.task.act_dim, self.features.width, self.config)

    def _pair(self, obs: Vector, act: Vector, next_obs: Vector) -> tuple[Tensor, Tensor]:
        """Return input and target of a transition: [features, action] and the change of the features."""
        before, after = (self.features.encode(torch.as_tensor(o, dtype=torch.float64)) for o in (obs, next_obs))
        return torch.cat([before, torch.as_tensor(act, dtype=torch.float64)]), after - before

    def _probabilities(self, previous: int, point: Tensor, change: Tensor, is_new_allowed: bool) -> Vector:
        scores = np.array([component.score(point, change) for component in self.components])
        new = self.components[0].prior_score(change) if is_new_allowed else -np.inf
        return self.assignment.probabilities(previous, scores, new)

    def _merge_or_prune(self, label: int) -> None:
        """Merge the active component once it is old enough to compare; prune one that was left too soon."""
        labels = self.assignment.labels
        if len(self.components[label]) == self.config.burn_in and label > 0:
            nearest, distance = self._nearest(label, list(range(label)))
            if distance < self.config.kl_max:
                self._merge(label, nearest)
        elif len(labels) > 1 and labels[-2] != label and len(self.components[labels[-2]]) < self.config.burn_in:
            left = labels[-2]
            beside = [place for place in self.assignment.neighbours(left) if place is not None]
            self._merge(left, self._nearest(left, beside)[0])

    def _nearest(self, label: int, others: list[int]) -> tuple[int, float]:
        """Return which component predicts the points of one most alike, and the mean divergence."""
        found = [mean_divergence(self.components[other], self.components[label]) for other in others]
        best = int(np.argmin(found))
        return others[best], found[best]

    def _merge(self, source: int, target: int) -> None:
        moved = self.components[source]
        self.components[target].add(moved.inputs, moved.targets)
        self.assignment.merge(source, target)
        del self.components[source]

    def _reduce(self, component: GpComponent) -> None:
        if len(component) > self.config.distil_above:
            distil(component, self.config.distil_keep, self.config.distil_subsets, self.generator)


def mean_divergence(one: GpComponent, two: GpComponent) -> float:
    """Return the mean over the points of `two` of sum_d KL(one's prediction || two's prediction), both latent."""
    (mean, variance), (other_mean, other_variance) = one.predict(two.inputs), two.predict(two.inputs)
    pair = [
        torch.distributions.Normal(m, torch.where(v > 0.0, v, 1e-3).sqrt())
        for m, v in ((mean, variance), (other_mean, other_variance))
    ]
    return float(torch.distributions.kl_divergence(*pair).sum(-1).mean())
