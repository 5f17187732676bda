"""Settings of soft actor-critic, and the paper's table of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mbrl_hdp.settings import setting


@dataclass
class SacConfig:
    """Soft actor-critic, with the settings of the paper's table."""

    hidden_sizes: list[int] = setting(
        [256], "widths of the hidden layers of policy and critics", at_least=1, at_most=16_384
    )
    target_entropy: float | None = setting(-0.05, "entropy that the temperature steers to; null for minus act_dim")
    initial_temperature: float = setting(0.8, "temperature at the start", above=0.0)
    adapt_temperature: bool = setting(True, "steer the temperature to the target entropy; false keeps it")
    policy_lr: float = setting(7e-4, "learning rate of the policy", above=0.0)
    value_lr: float = setting(7e-4, "learning rate of the critics", above=0.0)
    temperature_lr: float = setting(7e-5, "learning rate of the temperature", above=0.0)
    linear_decay: bool = setting(True, "let all learning rates fall linearly to 0 over the run")
    weight_decay: float = setting(1e-8, "L2 term of policy and critics", at_least=0.0)
    discount: float = setting(0.99, "discount factor", above=0.0, at_most=1.0)
    tau: float = setting(0.005, "share of the critics that an update of their targets takes over", above=0.0, at_most=1)
    target_update_interval: int = setting(4, "updates from one update of the targets to the next", at_least=1)
    batch_size: int = setting(256, "transitions per update", at_least=1)
    angle_columns: list[int] = setting([], "columns of obs that are angles: networks see sine and cosine", at_least=0)
    averaged_updates: int | None = setting(
        None, "updates over which the policy of evaluations is averaged; null takes the latest", at_least=1
    )
    standardise_obs: bool = setting(
        False, "networks see the other columns of obs in units of their spread in the first data they learn from"
    )
    magnify_obs: bool = setting(
        False, "networks see all columns of obs a second time, magnified around where the system has been lately"
    )


# What intersection and drone, with their longer episodes, have in common.
_LONG = SacConfig(temperature_lr=1e-4, weight_decay=1e-6, discount=0.999)
PAPER_SAC: Mapping[str, SacConfig] = {
    "cartpole_hard": SacConfig(angle_columns=[2]),
    "cartpole_soft": SacConfig(angle_columns=[2], policy_lr=3e-4, value_lr=3e-4, temperature_lr=5e-5),
    "intersection": replace(
        _LONG, hidden_sizes=[256, 256], target_entropy=-0.01, initial_temperature=0.2, policy_lr=5e-4, value_lr=5e-4
    ),
    "drone": replace(_LONG, target_entropy=-0.1, initial_temperature=0.6, policy_lr=3e-4, value_lr=3e-4),
}
"""The paper's table of SAC hyper-parameters; copy with `dataclasses.replace`. The table does not state tau. On
cart-pole the angle must be seen as sine and cosine, which the paper does not say."""

FAST_SAC: Mapping[str, SacConfig] = {
    name: replace(PAPER_SAC[name], temperature_lr=3e-4, target_update_interval=1)
    for name in ("cartpole_hard", "cartpole_soft")
}
"""Fewer episodes for the same return (benchmarks/sac_reference.py, with 400 updates an episode): targets that follow
every update, and a temperature that falls sooner."""
