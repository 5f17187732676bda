"""Bad command lines: exit code 2, one line that names the key, under two seconds, nothing written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.attack.attempts import BAD, REFUSED, Family, Verdict, sample
from benchmarks.attack.material import SMALL, Material
from benchmarks.attack.sandbox import Outcome, changes, run_command, state_of

LIMIT = 2.0
"""Seconds after start-up within which a line is refused."""
DEEP = "[" * 3000
_OWN = ("train", "env=gymnasium", "env.id=Pendulum-v1")
_FIT = ("fit", "data.csv")

# The words of a command line, and what its one line of refusal must name. `data.csv`, `model/` (of a fit) and `run/` (a
# finished run, seed 0) are in the folder.
LINES: tuple[tuple[tuple[str, ...], str], ...] = (
    # Commands and flags.
    (("trian",), "trian"),
    (("",), "unknown command"),
    (("train\x1b[2J",), "unknown command"),
    (("plugins", "--jsn"), "--jsn"),
    (("doctor", "--al", "x"), "x"),
    (("evaluate",), "run"),
    (("evaluate", "run", "--episodes", "0"), "--episodes"),
    (("evaluate", "run", "--episodes", "1.5"), "--episodes"),
    (("evaluate", "run", "--episodes", "nan"), "--episodes"),
    (("evaluate", "nowhere"), "nowhere"),
    (("evaluate", ""), "run"),
    (("evaluate", "data.csv"), "data.csv"),
    (("evaluate", "model"), "model"),
    (("evaluate", "run", "more"), "more"),
    (("evaluate", "a\x00b"), "a"),
    (("train", "--nope"), "--nope"),
    (("train", "--cfg"), "--cfg"),
    (("train", "--cfg", "nope"), "--cfg"),
    (("train", "--config-name", "nope"), "nope"),
    (("train", "--config-dir", "nowhere"), "nowhere"),
    # Groups, keys, types.
    (("train", "piror=hdp"), "piror"),
    (("train", "prior=hpd"), "prior"),
    (("train", "prior=../../x"), "prior"),
    (("train", "env=cartpole_hrad"), "cartpole_hard"),
    (("train", "experiment=nothing"), "experiment"),
    (("train", "agent=c_cme"), "c_cem"),
    (("train", "planner=ice"), "icem"),
    (("train", "sed=3"), "seed"),
    (("train", "seed=abc"), "seed"),
    (("train", "seed=null"), "seed"),
    (("train", "seed=-1"), "seed"),
    (("train", "seed=1e400"), "seed"),
    (("train", f"seed={10**30}"), "seed"),
    (("train", "max_contexts=0"), "max_contexts"),
    (("train", "max_contexts=2.5"), "max_contexts"),
    (("train", "max_contexts=1000000"), "max_contexts"),
    (("train", "max_contexts=inf"), "max_contexts"),
    (("train", "profile=papr"), "profile"),
    (("train", "hello"), "hello"),
    (("train", "=3"), "=3"),
    (("train", "env.id='abc"), "env.id"),
    (("train", f"seed={DEEP}"), "seed"),
    (("train", f"prior.x={'a' * 100_000}"), "prior.x"),
    (("train", "seed=${oc.env:NOWHERE}"), "seed"),
    (("train", "seed=${nothing}"), "seed"),
    (("train", "-m", "seed=0,1,-5"), "seed"),
    (("train", "-m", "prior=hdp,hpd"), "prior"),
    # The last job of a sweep is tried before the first one makes its folder.
    (("train", "-m", "env.kwargs.horizon=10,0"), "horizon"),
    (("train", "-m", "seed=0,1", "planner.num_elites=5,500"), "planner.num_elites"),
    (("train", "-m", "planner=cem,custom", "+planner.optimizer=nope.X"), "planner.optimizer"),
    (("train", "-m", "seed=0,1", "hydra.sweep.dir=data.csv"), "data.csv"),
    (("train", "-m", "seed=0,1", "hydra.sweep.dir="), "hydra.sweep.dir"),
    (("train", "-m", *SMALL, "seed=3,7", "hydra.sweep.dir=.", "hydra.sweep.subdir=run"), "seed"),
    (("train", "disable_plugins=[prior]"), "disable_plugins"),
    (("train", "strict_plugins=perhaps"), "strict_plugins"),
    (("train", "prior.row_concentration=inf"), "prior.row_concentration"),
    (("train", "prior.row_concentration=-1"), "prior.row_concentration"),
    (("train", "prior.row_concentration=nan"), "prior.row_concentration"),
    (("train", "prior.stickiness=inf"), "prior.stickiness"),
    (("train", "distillation.test_threshold=2"), "distillation.test_threshold"),
    (("train", "dynamics.hidden_sizes=[0]"), "dynamics.hidden_sizes"),
    (("train", "dynamics.hidden_sizes=[10000000]"), "dynamics.hidden_sizes"),
    (("train", "runtime.threads=0"), "runtime.threads"),
    (("train", "runtime.threads=100000"), "runtime.threads"),
    (("train", "budget.num_epochs=0"), "budget.num_epochs"),
    (("train", "budget.warm_episodes=1000000000000"), "budget.warm_episodes"),
    (("train", "device=tpu"), "device"),
    # Planners and agents: refused before the warm start, not after it.
    (("train", "planner.num_elites=500"), "planner.num_elites"),
    (("train", "planner.num_elites=0"), "planner.num_elites"),
    (("train", "planner.horizon=0"), "planner.horizon"),
    (("train", "planner.horizon=1000000000"), "planner.horizon"),
    (("train", "planner.population_size=1000000000"), "planner.population_size"),
    (("train", "planner.initial_std=inf"), "planner.initial_std"),
    (("train", "planner=custom", "planner.optimizer=nope.X"), "planner.optimizer"),
    (("train", "planner=custom", "planner.optimizer=mbrl.planning.Nope"), "planner.optimizer"),
    (("train", "planner=custom", "planner.optimizer="), "planner.optimizer"),
    (("train", "planner=custom", "+planner.kwargs.nope=3"), "planner"),
    (("train", "planner=mbrl_cem", "planner.elite_ratio=0"), "planner.elite_ratio"),
    (("train", "planner=icem", "planner.keep_elite_frac=2"), "planner.keep_elite_frac"),
    (("train", "agent=c_sac", "agent.hidden_sizes=[]"), "agent.hidden_sizes"),
    (("train", "agent=c_sac", "agent.updates_per_epoch=3"), "agent.updates_per_epoch"),
    (("train", "agent=c_sac", "agent.batch_size=0"), "agent.batch_size"),
    (("train", "agent=c_sac", "agent.discount=1.5"), "agent.discount"),
    # Environments.
    (("train", "env=gymnasium"), "env.id"),
    (("train", "env=gymnasium", "env.id=Nope-v0"), "env.id"),
    (("train", "env=gymnasium", "env.id=CartPole-v1"), "env.id"),
    (("train", "env=gymnasium", "env.id=nope_module:X-v0"), "env.id"),
    (_OWN, "reward"),
    ((*_OWN, "env.reward=nope"), "env.reward"),
    ((*_OWN, "env.reward=nope:f"), "env.reward"),
    ((*_OWN, "env.reward=os:nope"), "env.reward"),
    ((*_OWN, "env.reward=os:getcwd"), "env.reward"),
    ((*_OWN, "env.reward=learned", "env.termination=os:getcwd"), "env.termination"),
    ((*_OWN, "env.reward=learned", "+env.kwargs.nope=3"), "env.id"),
    ((*_OWN, "agent=fi_sac"), "fi_sac"),
    (("train", "env.kwargs.horizon=1000000000000"), "horizon"),
    (("train", "env.kwargs.horizon=0"), "horizon"),
    (("train", "env.kwargs.actuation=[1.0]", "env.kwargs.nope=3"), "nope"),
    (("train", "env.kwargs.actuation=[]"), "actuation"),
    (("train", "env.kwargs.actuation=[inf,1.0]"), "actuation"),
    # Runs.
    (("train", "resume="), "resume"),
    (("train", "resume=nowhere"), "nowhere"),
    (("train", "resume=data.csv"), "data.csv"),
    (("train", "resume=run", "seed=3"), "resume"),
    (("train", *SMALL, "seed=7", "hydra.run.dir=run"), "seed"),
    (("train", *SMALL, "planner.horizon=4", "hydra.run.dir=run"), "planner.horizon"),
    (("train", *SMALL, "agent=c_sac", "hydra.run.dir=run"), "agent"),
    (("train", "hydra.run.dir=data.csv"), "data.csv"),
    (("train", "hydra.run.dir="), "hydra.run.dir"),
    # Fits.
    (("fit",), "data"),
    (("fit", "nothing.csv"), "nothing.csv"),
    (("fit", "data.csv", "data.csv"), "one data file"),
    (("fit", "data.txt"), "data.txt"),
    ((*_FIT, "dt=inf"), "dt"),
    ((*_FIT, "dt=0"), "dt"),
    ((*_FIT, "out="), "out"),
    ((*_FIT, "out=data.csv"), "out"),
    ((*_FIT, "max_contexts=10000"), "max_contexts"),
    ((*_FIT, "prior.row_concentration=inf"), "prior.row_concentration"),
    ((*_FIT, "seed=0,1"), "seed"),
    ((*_FIT, "fit.num_steps=0"), "fit.num_steps"),
    ((*_FIT, "fit.learning_rate=inf"), "fit.learning_rate"),
    ((*_FIT, "fit.holdout=1.5"), "fit.holdout"),
    ((*_FIT, "runtime.threads=100000"), "runtime.threads"),
    ((*_FIT, "dynamics=cartpole"), "dynamics"),
    ((*_FIT, "env=cartpole_hard"), "env"),
    # Labels and studies.
    (("label", "model"), "DATA"),
    (("label", "nowhere", "data.csv"), "nowhere"),
    (("label", "run", "data.csv"), "run"),
    (("label", "model", "data.csv", "-o", "model/model.safetensors"), "model.safetensors"),
    (("label", "model", "data.csv", "-o", "data.csv"), "data.csv"),
    (("label", "model", "data.csv", "-o", "model"), "model"),
    (("label", "model", "data.csv", "-o", "nowhere/labels.csv"), "nowhere"),
    (("label", "model", "data.csv", "-o", ""), "-o"),
    (("reproduce", "tabel1"), "table1"),
    (("reproduce", "table1", "--jobs", "0"), "--jobs"),
    (("reproduce", "table1", "--seeds", "x"), "--seeds"),
    (("reproduce", "table1", "--seeds", "-1"), "--seeds"),
    (("reproduce", "table1", "--out", "data.csv"), "--out"),
)


def attack(root: Path, is_small: bool) -> Iterator[Verdict]:
    """Try every line in a folder that must stay as it is."""
    folder = _prepare(root)
    before = state_of(folder)
    for words, key in sample(LINES, is_small, 16):
        outcome = run_command(words, folder, limit=300.0)
        left = changes(before, state_of(folder))
        problem = problem_of(outcome, key, left, is_timed=not is_small)
        text = outcome.lines[0] if problem is None else f"{problem}; {' / '.join(outcome.lines[-2:])[-400:]}"
        kind = REFUSED if problem is None else BAD
        yield Verdict("command_lines", " ".join(words)[-90:], kind, text, outcome.seconds)
        if left:
            folder = _prepare(root)
            before = state_of(folder)


def _prepare(root: Path) -> Path:
    material, folder = Material(root), root / "command_lines"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy2(material.data(), folder / "data.csv")
    shutil.copy2(material.data(), folder / "data.txt")
    shutil.copytree(material.fit(), folder / "model")
    shutil.copytree(material.run("c_cem"), folder / "run")
    return folder


def problem_of(outcome: Outcome, key: str, left: Sequence[str], is_timed: bool) -> str | None:
    """Return what is wrong with a refusal, None if nothing is.

    The small version runs inside the test suite and is not timed: a fork of a large, busy test process is slow for
    reasons of its own.
    """
    if outcome.code != 2:
        return f"exit code {outcome.code}"
    if left:
        return f"left behind: {', '.join(left[:3])}"
    if not outcome.is_one_line or outcome.out:
        return "more than one line"
    if key not in outcome.lines[0]:
        return f"does not name {key!r}"
    return f"took {outcome.seconds:.1f} s" if is_timed and outcome.seconds > LIMIT else None


FAMILY = Family(
    "command_lines", f"exit code 2, one line that names the key, under {LIMIT:.0f} s, nothing written", attack
)
