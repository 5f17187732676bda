"""Messages and their gradient (by the chain and by every log-likelihood) against Pyro and dynamax, on one thread.

    python -m benchmarks messages

dynamax needs JAX and is not in the lock; its rows appear when it is installed beside the package, for example in a
second environment: `pip install dynamax` there, `pip install -e .`, then the command above. JAX works in float32 as it
comes, ours in float64 inside up to 60 contexts. With 100 contexts, where matrix products take most of the time, float32
comes in and float32 messages run; two rows have float64 log-likelihoods, and dynamax in float32 and in float64. The
evidence of every peer is compared with ours before the clocks start. Times are processor times.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import TraceEnum_ELBO
from pyro.ops.indexing import Vindex
from torch import Tensor

from benchmarks.report import Row, paired_row, time_in_turns
from mbrl_hdp.probability import semi_markov
from mbrl_hdp.probability.hmm import log_evidence
from mbrl_hdp.types import ContextChain, PhaseChain

BATCH = NUM_STEPS = 100


class Problem(NamedTuple):
    """Leaves whose gradients are computed.

    `before` is the distribution of the context before the first move: Pyro's DiscreteHMM begins there.
    """

    before: Tensor
    transition: Tensor
    log_lik: Tensor


def problem(num_contexts: int, dtype: torch.dtype = torch.float32) -> Problem:
    """Make a dense random chain and random log-likelihoods; the numbers are those of float32."""
    generator = torch.Generator().manual_seed(0)
    before = torch.rand(num_contexts, generator=generator).softmax(0)
    transition = torch.rand(num_contexts, num_contexts, generator=generator).mul(3).softmax(1)
    log_lik = 2 * torch.randn(BATCH, NUM_STEPS, num_contexts, generator=generator)
    return Problem(*(value.to(dtype).requires_grad_() for value in (before, transition, log_lik)))


def ours(leaves: Problem) -> float:
    """Compute the summed evidence and its gradient with our messages."""
    chain = ContextChain(leaves.before @ leaves.transition, leaves.transition)
    evidence = log_evidence(chain, leaves.log_lik).sum()
    torch.autograd.grad(evidence, leaves)
    return float(evidence.detach())


def discrete_hmm(leaves: Problem) -> float:
    """Do the same with Pyro's DiscreteHMM and autograd."""
    observed = dist.Unit(leaves.log_lik)
    hmm = dist.DiscreteHMM(leaves.before.log(), leaves.transition.log(), observed, duration=NUM_STEPS)
    evidence = hmm.log_prob(torch.empty(BATCH, NUM_STEPS, 0)).sum()
    torch.autograd.grad(evidence, leaves)
    return float(evidence.detach())


def enumeration(leaves: Problem) -> float:
    """Do the same with enumerated contexts in a Pyro model, all sequences in one plate."""
    initial = leaves.before @ leaves.transition

    def model() -> None:
        with pyro.plate("sequences", BATCH, dim=-1) as rows:
            context = None
            for t in pyro.markov(range(NUM_STEPS)):
                row = initial if context is None else leaves.transition[context]
                context = pyro.sample(f"context_{t}", dist.Categorical(row), infer={"enumerate": "parallel"})
                pyro.factor(f"step_{t}", Vindex(leaves.log_lik)[rows, t, context])

    loss = TraceEnum_ELBO(max_plate_nesting=1).differentiable_loss(model, lambda: None)
    torch.autograd.grad(loss, leaves)
    return -float(loss.detach())


def dynamax_gradient(leaves: Problem, dtype: str = "float32") -> Callable[[], float]:
    """Return a compiled function that does the same with dynamax's filter and JAX's reverse mode."""
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    import jax
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import hmm_filter

    def evidence(before, transition, log_lik):  # type: ignore[no-untyped-def]
        one = jax.vmap(lambda steps: hmm_filter(before @ transition, transition, steps).marginal_loglik)
        return one(log_lik).sum()

    gradient = jax.jit(jax.value_and_grad(evidence, argnums=(0, 1, 2)))
    with jax.enable_x64(dtype == "float64"):
        inputs = [jnp.asarray(value.detach().numpy(), dtype) for value in leaves]

    def run() -> float:
        with jax.enable_x64(dtype == "float64"):
            return float(jax.block_until_ready(gradient(*inputs))[0])

    return run


def with_phases(leaves: Problem, num_phases: int) -> float:
    """Compute evidence and gradient for negative binomial stays: each context has phases that are passed alike."""
    size = len(leaves.before)
    is_last = torch.arange(size * num_phases) % num_phases == num_phases - 1
    advance, leave = torch.where(is_last, 0.0, 0.3), torch.where(is_last, 0.3, 1e-4)
    moves = leaves.transition * (1.0 - torch.eye(size))
    initial = leaves.before.repeat_interleave(num_phases) / num_phases
    phases = [value.requires_grad_() for value in (1.0 - advance - leave, advance, leave)]
    chain = PhaseChain.of([initial, *phases, moves / moves.sum(1, keepdim=True)], (num_phases,) * size)
    evidence = semi_markov.log_evidence(chain, leaves.log_lik).sum()
    torch.autograd.grad(evidence, [*leaves, *phases])
    return float(evidence.detach())


def _phases_rows(num_contexts: int) -> list[Row]:
    """Compare phases with the plain chain, and the cost of further phases with that of the first ones."""
    leaves = problem(num_contexts)
    rows = [
        paired_row(
            f"the same with {num_phases} phases a context, K={num_contexts}",
            lambda num_phases=num_phases: with_phases(leaves, num_phases),  # type: ignore[misc]
            "geometric",
            lambda: ours(leaves),
            target,
            repeats=61,
            clock=time.process_time,
        )
        for num_phases, target in ((5, 1 / 2), (10, None), (20, None))
    ]
    runs = [lambda size=size: with_phases(leaves, size) for size in (2, 10, 20)]  # type: ignore[misc]
    few, some, many = (statistics.median(times) for times in time_in_turns(runs, repeats=31, clock=time.process_time))
    name = f"cost of a phase, from 10 to 20 a context, K={num_contexts}"
    # Linear: a ratio of 1. The sizes of blocks change with the number of phases, hence the margin.
    return [*rows, Row(name, (many - some) / 10, "from 2 to 10", (some - few) / 8, 1 / 1.5)]


def run() -> list[Row]:
    """Time K = 10 against all peers, K = 20 and 100 against those that can, and phases against the plain chain."""
    torch.set_num_threads(1)
    rows = [
        _row(10, "Pyro enumeration", lambda leaves: lambda: enumeration(leaves), 40.0, repeats=7),
        _row(10, "Pyro DiscreteHMM", lambda leaves: lambda: discrete_hmm(leaves), 8.0),
        _row(20, "Pyro DiscreteHMM", lambda leaves: lambda: discrete_hmm(leaves), None),
    ]
    rows += _phases_rows(10)
    if importlib.util.find_spec("dynamax") is not None:
        rows += [_row(size, "dynamax (jit, float32)", dynamax_gradient, goal) for size, goal in _DYNAMAX_GOALS.items()]
        for dtype, goal in (("float32", None), ("float64", 1.0)):
            make = partial(dynamax_gradient, dtype=dtype)
            rows.append(_row(100, f"dynamax (jit, {dtype})", make, goal, dtype=torch.float64))
    return rows


_DYNAMAX_GOALS = {10: 1 / 1.5, 20: None, 100: 1.0}


def _row(
    num_contexts: int,
    peer: str,
    make: Callable[[Problem], Callable[[], float]],
    target: float | None,
    repeats: int = 31,
    dtype: torch.dtype = torch.float32,
) -> Row:
    leaves = problem(num_contexts, dtype)
    theirs = make(leaves)
    np.testing.assert_allclose(theirs(), ours(leaves), rtol=1e-4)
    name = f"messages + gradient, B=T=100, K={num_contexts}" + (", float64" if dtype == torch.float64 else "")
    return paired_row(name, lambda: ours(leaves), peer, theirs, target, repeats, time.process_time)
