"""How much a run may spend: `profile=` picks a row, `budget.*` overrides single numbers.

`paper` has the numbers of the paper's tables, `fast` reaches the same returns as soon as possible on two cores, `smoke`
takes seconds and is for tests.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from mbrl_hdp.settings import setting


@dataclass
class BudgetConfig:
    """Numbers of Algorithm 1; null takes the profile's."""

    warm_episodes: int | None = setting(None, "random episodes of the first epoch (N_warm)", at_least=1)
    episodes_per_epoch: int | None = setting(None, "new episodes of every later epoch (N_traj)", at_least=1)
    num_epochs: int | None = setting(None, "epochs, the warm start included (N_epochs)", at_least=1)
    warm_model_steps: int | None = setting(None, "gradient steps of the first fit, per run", at_least=1)
    model_steps: int | None = setting(None, "gradient steps of every later refit", at_least=1)
    model_every: int | None = setting(None, "epochs from one refit of the model to the next", at_least=1)
    model_batch: int | None = setting(None, "episodes in a minibatch of the model", at_least=1)
    warm_agent_updates: int | None = setting(None, "updates of the policy after the warm start", at_least=0)
    agent_updates: int | None = setting(None, "updates of the policy per epoch", at_least=0)
    eval_every: int | None = setting(None, "epochs from one evaluation to the next", at_least=1)
    eval_episodes: int | None = setting(None, "episodes of an evaluation during training", at_least=1)
    final_eval_episodes: int | None = setting(None, "episodes of the last evaluation", at_least=1)


@dataclass(frozen=True)
class Budget:
    """A budget without holes."""

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


_MPC_PAPER = Budget(100, 20, 10, 500, 500, 1, 100, 0, 0, 1, 10, 50)
_SAC_PAPER = Budget(100, 1, 500, 500, 500, 1, 20, 1000, 200, 25, 10, 50)
_MPC_SMOKE = Budget(10, 2, 2, 20, 10, 1, 10, 0, 0, 1, 1, 2)
_SAC_SMOKE = Budget(10, 2, 3, 20, 10, 1, 10, 20, 10, 1, 1, 2)

_TABLE: dict[tuple[str, str, str], Budget] = {
    ("paper", "mpc", "cartpole"): _MPC_PAPER,
    ("paper", "mpc", "intersection"): replace(_MPC_PAPER, warm_episodes=200, num_epochs=3, model_steps=50),
    ("paper", "mpc", "drone"): replace(_MPC_PAPER, warm_episodes=200, num_epochs=3, model_steps=60, model_batch=50),
    ("paper", "sac", "cartpole"): _SAC_PAPER,
    ("paper", "sac", "intersection"): replace(
        _SAC_PAPER, warm_episodes=200, model_steps=200, model_batch=50, agent_updates=100
    ),
    ("paper", "sac", "drone"): replace(
        _SAC_PAPER, warm_episodes=200, model_steps=200, model_batch=50, warm_agent_updates=100, agent_updates=150
    ),
    ("fast", "mpc", "cartpole"): replace(_MPC_PAPER, num_epochs=4, model_steps=100),
    ("fast", "mpc", "intersection"): replace(_MPC_PAPER, warm_episodes=200, num_epochs=3, model_steps=50),
    ("fast", "mpc", "drone"): replace(_MPC_PAPER, warm_episodes=200, num_epochs=3, model_steps=60, model_batch=50),
    ("fast", "sac", "cartpole"): replace(
        _SAC_PAPER, num_epochs=150, model_steps=50, model_every=20, model_batch=100, agent_updates=400, eval_every=10
    ),
    ("fast", "sac", "intersection"): replace(
        _SAC_PAPER, warm_episodes=200, model_steps=50, model_every=20, model_batch=50, agent_updates=100
    ),
    ("fast", "sac", "drone"): replace(_SAC_PAPER, warm_episodes=200, model_steps=50, model_every=20, model_batch=50),
}


def budget_for(profile: str, family: str, env_name: str, overrides: BudgetConfig) -> Budget:
    """Return the numbers of a run.

    Args:
        profile: `paper`, `fast` or `smoke`.
        family: `mpc` (planners) or `sac` (policies).
        env_name: name of the environment's preset; its first word tells the task, cart-pole where there is no own row.
        overrides: what the user set; None stands for the profile's number.
    """
    if profile == "smoke":
        base = _MPC_SMOKE if family == "mpc" else _SAC_SMOKE
    else:
        task = env_name.partition("_")[0]
        base = _TABLE.get((profile, family, task)) or _TABLE[profile, family, "cartpole"]
    given = {f.name: getattr(overrides, f.name) for f in fields(overrides)}
    return replace(base, **{name: value for name, value in given.items() if value is not None})
