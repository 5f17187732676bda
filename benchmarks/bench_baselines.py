"""Baselines: real steps per second in training, acting and learning together, against C-CEM's acting on the same task.

Every agent plays cart-pole episodes through the loop's own functions; `ours` and the peer are milliseconds per step.
Sizes are small enough for minutes: GPMM after one episode, PPO over one update, the others over one epoch.
"""

from __future__ import annotations

import time

from benchmarks.report import Row
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.loop import collect_episodes, start_run, update_agent
from mbrl_hdp.experiments.metrics import SilentLog
from mbrl_hdp.experiments.model_update import update_model
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.seeding import seed_everything

FEW = ["budget.warm_episodes=2", "budget.episodes_per_epoch=2"]
AGENTS = {
    "gpmm": ["budget.warm_episodes=1", "budget.episodes_per_epoch=1"],
    "dnnmm": FEW,
    "anpmm": [*FEW, "agent.pretrain_steps=100"],
    "pets": FEW,
    "sac_stack": [*FEW, "budget.warm_agent_updates=400", "budget.agent_updates=400"],
    "rnn_ppo": ["budget.warm_episodes=20", "budget.episodes_per_epoch=20"],
    "rnn_ppo_plain": ["budget.warm_episodes=20", "budget.episodes_per_epoch=20"],
}
PEER = [*FEW, "budget.warm_model_steps=20", "budget.model_steps=20"]


def milliseconds_per_step(agent: str, words: list[str]) -> float:
    """Return the time of a training step in the second epoch: acting, the environment and learning."""
    registry = load_registry()
    run = start_run(check_config(load_config([f"agent={agent}", "env=cartpole_hard", *words], registry)), registry)
    log = SilentLog(1, is_wanted=False)
    for epoch in range(2):
        seed_everything(epoch)
        begun, steps = time.perf_counter(), run.env_steps
        new, _ = collect_episodes(run, epoch, log)
        update_agent(run, epoch, new, run.agent.spec.needs_model and update_model(run, epoch, log))
    run.task.env.close()
    return 1e3 * (time.perf_counter() - begun) / (run.env_steps - steps)


def run() -> list[Row]:
    peer = milliseconds_per_step("c_cem", PEER)
    return [
        Row(f"training step of {agent} (cartpole_hard)", milliseconds_per_step(agent, words), "C-CEM", peer, None)
        for agent, words in AGENTS.items()
    ]
