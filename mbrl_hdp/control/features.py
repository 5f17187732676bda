"""What the networks of a policy see of an observation: units, sines and cosines of angles, and a magnified copy.

Random actions drive a system through states that a good policy never visits: a drone tumbles, a car leaves the road.
In units of that spread the states that matter lie within a hundredth of each other, and a network hardly tells them
apart. The magnified copy shows every column around its median of late, in units of its quartiles of late:

    asinh((obs - centre) / scale)

It is steep where the system is now and flat far away, so that earlier states do not dominate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from mbrl_hdp.control.sac_config import SacConfig
from mbrl_hdp.errors import CheckpointError

_FOLLOWED = 0.05
"""Share of the way that centre and scale of the copy move towards those of the latest data in every call."""
_SMALLEST = 0.01
"""Smallest scale of the copy, in units of the spread of the first data."""


class ObsFeatures:
    """Turns observations into inputs of networks; its units are measured, then saved with the policy.

    Args:
        obs_dim: width of an observation.
        config: `angle_columns`, `standardise_obs`, `magnify_obs`.
        device: where tensors live.

    Attributes:
        centre, scale: units of the columns that are no angles.
        late_centre, late_scale: units of the magnified copy of all columns.
        least_scale: what `late_scale` never falls below.
    """

    def __init__(self, obs_dim: int, config: SacConfig, device: torch.device) -> None:
        self.config, self.angles = config, list(config.angle_columns)
        self.plain = [column for column in range(obs_dim) if column not in self.angles]
        self.width = obs_dim * (2 if config.magnify_obs else 1) + len(self.angles)
        self.centre, self.late_centre = (torch.zeros(obs_dim, device=device) for _ in range(2))
        self.scale, self.late_scale, self.least_scale = (torch.ones(obs_dim, device=device) for _ in range(3))

    def __call__(self, obs: Float[Tensor, "B S"]) -> Float[Tensor, "B features"]:
        """Return the columns that are no angles, sines and cosines of the angles, then the magnified copy."""
        own = (obs - self.centre) / self.scale if self.config.standardise_obs else obs
        parts = [own]
        if self.angles:
            turned = own[:, self.angles]
            parts = [own[:, self.plain], turned.sin(), turned.cos()]
        if self.config.magnify_obs:
            parts.append(torch.asinh(self._from(obs, self.late_centre) / self.late_scale))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def measure(self, obs: Float[Tensor, "B S"]) -> None:
        """Measure all units on the first data; a column that never changes keeps its unit."""
        spread, centre = torch.std_mean(obs.double(), dim=0, correction=0)
        spread = torch.where(spread > 1e-6 * centre.abs(), spread, 1.0)
        if self.config.standardise_obs:
            self.centre[self.plain], self.scale[self.plain] = centre[self.plain].float(), spread[self.plain].float()
        if self.config.magnify_obs:
            self.least_scale.copy_(_SMALLEST * spread)
            self.late_centre, self.late_scale = self._late_units(obs)

    def follow(self, obs: Float[Tensor, "B S"], factor: float = 1.0) -> None:
        """Move the units of the magnified copy towards those of the latest data; `factor` slows it down."""
        share = _FOLLOWED * factor
        centre, scale = self._late_units(obs)
        away = centre - self.late_centre
        away[self.angles] = _wrapped(away[self.angles])
        self.late_centre += share * away
        self.late_scale *= (scale / self.late_scale) ** share

    def _late_units(self, obs: Float[Tensor, "B S"]) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
        """Return median and half the distance of the quartiles; those of an angle around its mean direction."""
        around = torch.zeros_like(self.late_centre)
        turned = obs[:, self.angles]
        around[self.angles] = torch.atan2(turned.sin().mean(0), turned.cos().mean(0))
        low, middle, high = torch.quantile(self._from(obs, around), obs.new_tensor([0.25, 0.5, 0.75]), dim=0)
        return around + middle, ((high - low) / 2).maximum(self.least_scale)

    def _from(self, obs: Float[Tensor, "B S"], centre: Float[Tensor, " S"]) -> Float[Tensor, "B S"]:
        away = obs - centre
        if self.angles:
            away[:, self.angles] = _wrapped(away[:, self.angles])
        return away

    def state_dict(self) -> dict[str, Tensor]:
        """Return the units in use."""
        names = ["centre", "scale"] if self.config.standardise_obs else []
        names += ["late_centre", "late_scale", "least_scale"] if self.config.magnify_obs else []
        return {f"obs_{name}": getattr(self, name).clone() for name in names}

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raise `CheckpointError` if a state has units that these settings do not use."""
        for setting, name in (("standardise_obs", "obs_scale"), ("magnify_obs", "obs_late_scale")):
            if name in state and not getattr(self.config, setting):
                raise CheckpointError(f"this policy was trained with {setting}=true; build it with that, too")

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        for name in self.state_dict():
            getattr(self, name.removeprefix("obs_")).copy_(state[name])


def _wrapped(angle: Tensor) -> Tensor:
    return angle - 2.0 * math.pi * torch.round(angle / (2.0 * math.pi))
