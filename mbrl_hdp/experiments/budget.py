"""How much a run may spend.

An environment's preset has the numbers by profile and by the agent's family (`env.budgets`, conf/env/budgets/);
`profile=` and the agent pick a row of it, and `budget.*` overrides single numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from mbrl_hdp.errors import ConfigError
from mbrl_hdp.settings import check_settings, setting

PROFILES = ("paper", "fast", "smoke")


def _count(help: str) -> Any:
    """Declare a number from 1 on that the environment's preset has."""
    return setting(None, help, at_least=1)


@dataclass
class BudgetConfig:
    """Numbers of Algorithm 1; null takes the number of the environment's preset."""

    warm_episodes: int | None = _count("random episodes of the first epoch (N_warm)")
    episodes_per_epoch: int | None = _count("new episodes of every later epoch (N_traj)")
    num_epochs: int | None = _count("epochs, the warm start included (N_epochs)")
    warm_model_steps: int | None = _count("gradient steps of the first fit, per run")
    model_steps: int | None = _count("gradient steps of every later refit")
    model_every: int | None = _count("epochs from one refit of the model to the next")
    model_batch: int | None = _count("episodes in a minibatch of the model")
    warm_agent_updates: int | None = setting(None, "updates of the policy after the warm start", at_least=0)
    agent_updates: int | None = setting(None, "updates of the policy per epoch", at_least=0)
    eval_every: int | None = _count("epochs from one evaluation to the next")
    eval_episodes: int | None = _count("episodes of an evaluation during training")
    final_eval_episodes: int | None = _count("episodes of the last evaluation")


@dataclass(frozen=True)
class Budget:
    """A budget without holes; the fields are those of `BudgetConfig`."""

    warm_episodes: int
    episodes_per_epoch: int
    num_epochs: int
    warm_model_steps: int
    model_steps: int
    model_every: int
    model_batch: int
    warm_agent_updates: int
    agent_updates: int
    eval_every: int
    eval_episodes: int
    final_eval_episodes: int


@dataclass
class BudgetTable:
    """The budgets of an environment: one row for each family of agents, by profile."""

    paper: dict[str, BudgetConfig] = field(default_factory=dict, metadata={"help": "the paper's numbers"})
    fast: dict[str, BudgetConfig] = field(default_factory=dict, metadata={"help": "the same returns, sooner"})
    smoke: dict[str, BudgetConfig] = field(default_factory=dict, metadata={"help": "seconds, for tests"})


def budget_for(profile: str, family: str, table: BudgetTable, overrides: BudgetConfig) -> Budget:
    """Return the numbers of a run.

    Args:
        profile: `paper`, `fast` or `smoke`.
        family: row of the budget that the agent declares: `mpc` (planners), `sac` (policies) or a plugin's own.
        table: `env.budgets`.
        overrides: `budget.*`; None stands for the preset's number.

    Raises:
        ConfigError: if a number is set nowhere, as for a family that the preset does not know.
    """
    row = getattr(table, profile).get(family, BudgetConfig())
    found = asdict(row) | {name: value for name, value in asdict(overrides).items() if value is not None}
    missing = [name for name, value in found.items() if value is None]
    if missing:
        raise ConfigError(
            f"no budget for agents of the family {family!r} with profile={profile}: set "
            f"{', '.join(f'budget.{name}' for name in missing)}, or env.budgets.{profile}.{family} in the preset"
        )
    return Budget(**found)


def check_budgets(table: BudgetTable) -> None:
    """Raise if a number of `env.budgets` is out of range."""
    for profile in PROFILES:
        for family, row in getattr(table, profile).items():
            check_settings(row, f"env.budgets.{profile}.{family}")
