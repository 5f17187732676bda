"""Settings of the built-in agents; light to import."""

from __future__ import annotations

from dataclasses import dataclass

from mbrl_hdp.control.sac_config import SacConfig
from mbrl_hdp.settings import setting


@dataclass
class CemAgentConfig:
    """C-CEM: plans on the belief; the optimiser is `planner=`."""


@dataclass
class SacAgentConfig(SacConfig):
    """SAC with the two settings that need fewer episodes than the paper's (`python -m benchmarks.sac_reference`).

    The paper's own numbers are in conf/experiment/. Angles that the environment names are added to `angle_columns`.
    """

    temperature_lr: float = setting(3e-4, "learning rate of the temperature", above=0.0)
    target_update_interval: int = setting(1, "updates from one update of the targets to the next", at_least=1)
    best_of_episodes: int | None = setting(
        None,
        "evaluations take the policy whose training episodes, so many in a row, had the best mean return; null: the "
        "latest",
        at_least=1,
    )


@dataclass
class MbrlSacConfig:
    """mbrl-lib's own SAC, with its names of the settings; its networks have two hidden layers."""

    hidden_size: int = setting(256, "width of both hidden layers", at_least=1)
    lr: float = setting(3e-4, "learning rate of policy, critics and temperature", above=0.0)
    gamma: float = setting(0.99, "discount factor", above=0.0, at_most=1.0)
    tau: float = setting(0.005, "share of the critics that an update of their targets takes over", above=0.0, at_most=1)
    alpha: float = setting(0.2, "temperature; with automatic_entropy_tuning the temperature of the first update only",
                           above=0.0)  # fmt: skip
    automatic_entropy_tuning: bool = setting(True, "adapt the temperature to the target entropy")
    target_entropy: float | None = setting(None, "entropy that the temperature is adapted to; null for minus act_dim")
    target_update_interval: int = setting(1, "updates from one update of the targets to the next", at_least=1)
    batch_size: int = setting(256, "transitions per update", at_least=1)
