"""Build models from their parts: the untrained ones that the runs of a fit start from, and those that are loaded."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.hooks import Registry
from mbrl_hdp.inference.dynamics import ClosedFormDynamics
from mbrl_hdp.inference.model import ContextModel, ModelParts, Part
from mbrl_hdp.inference.recipes import Recipe
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.search import Structure
from mbrl_hdp.inference.starts import (
    FULL,
    RARE,
    STUDENT,
    NoiseDynamics,
    SeveralDynamics,
    Start,
    plan_starts,
    rule_for_rare,
)
from mbrl_hdp.seeding import sub_seed
from mbrl_hdp.types import TaskSpec


class Builder:
    """Builds a fresh model for every run."""

    def __init__(
        self,
        registry: Registry,
        data: Trajectories,
        parts: tuple[str | Part, str | Part, str | Part],
        max_contexts: int,
        dt: float | None,
        seed: int,
        recipe: Recipe,
        past: int = 0,
    ) -> None:
        self.registry, self.seed, self.recipe = registry, seed, recipe
        self.sizes: dict[str, Any] = {
            "max_contexts": max_contexts, "obs_dim": data.obs_dim, "act_dim": data.act_dim, "dt": dt,
            "past": past,
        }  # fmt: skip
        self.prior, dynamics, self.distillation = (
            self._part(kind, part) for kind, part in zip(("prior", "dynamics", "distillation"), parts, strict=True)
        )
        several = dynamics.config.candidates() if isinstance(dynamics.config, SeveralDynamics) else None
        named = [(dynamics.name, dynamics.config)] if several is None else several if recipe.compares else several[-1:]
        has_more = recipe.compares and isinstance(dynamics.config, NoiseDynamics)
        more = [dynamics.config.for_noise(kind) if has_more else [] for kind in (STUDENT, FULL)]
        self.families, self._tailed, self._correlated = (
            [Part(name, recipe.settle_dynamics(config)) for name, config in each] for each in (named, *more)
        )
        self.rows = [torch.as_tensor(rows, dtype=torch.float32) for rows in data.transitions()]

    def _part(self, kind: str, part: str | Part) -> Part:
        if isinstance(part, Part):
            self.registry.get(kind, part.name)
            return part
        return Part(part, self.registry.get(kind, part).spec.config())

    def families_for(self, structure: Structure | None) -> list[Part]:
        """Return the transition models to compare; those made for the noise that the search leaves come first."""
        if structure is None:
            return self.families
        tailed = self._tailed if structure.has_heavy_tails else []
        return [*tailed, *(self._correlated if structure.has_correlated_noise else []), *self.families]

    def starts(self, part: Part, structure: Structure | None, config: FitConfig) -> list[Start]:
        """Return the candidates of one transition model; one more where the search found a rare context."""
        starts = plan_starts(part, self.has_closed_form(part), structure, config, len(self.families) == 1)
        rule = None if structure is None or config.num_contexts else rule_for_rare(self.distillation, structure)
        if rule is None:
            return starts
        return [starts[0], dataclasses.replace(starts[0], name=RARE, distillation=rule), *starts[1:]]

    def has_closed_form(self, part: Part) -> bool:
        """Return whether a transition model's heads have a closed form."""
        task = TaskSpec(**self.sizes | {"max_contexts": 1}, seed=0)
        return isinstance(self.registry.build_dynamics(part.name, task, part.config), ClosedFormDynamics)

    def __call__(self, run: int, dynamics: Part, distillation: Part | None = None) -> ContextModel:
        """Build the untrained model of a run."""
        task = TaskSpec(**self.sizes, seed=sub_seed(self.seed, "start", run))
        return self._fresh(ModelParts(self.prior, dynamics, distillation or self.distillation), task)

    def again(self, model: ContextModel, dynamics: Part) -> ContextModel:
        """Build an untrained model like another one, with another transition model."""
        return self._fresh(dataclasses.replace(model.parts, dynamics=dynamics), model.task)

    def _fresh(self, parts: ModelParts, task: TaskSpec) -> ContextModel:
        model = build_model(parts, task, self.registry)
        if self.recipe.is_normalised:
            model.dynamics.set_normaliser(*self.rows)
        return model


def build_model(parts: ModelParts, task: TaskSpec, registry: Registry) -> ContextModel:
    """Build an untrained model from its parts."""
    return ContextModel(
        task,
        registry.build_prior(parts.prior.name, task, parts.prior.config),
        registry.build_dynamics(parts.dynamics.name, task, parts.dynamics.config),
        registry.build_distillation(parts.distillation.name, task, parts.distillation.config),
        parts,
    )
