"""The context heads: the emission part of an ELBO gradient, and particles that each have their own context.

"Learned" gradients are responsibilities of a fitted model (two contexts explain everything), "dense" ones those of the
first steps (every context explains everything a little).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.report import Row, time_pair
from mbrl_hdp.inference.heads import ContextHeads
from mbrl_hdp.types import TaskSpec
from mbrl_hdp_dynamics.delta_mlp import CartpoleConfig, build_cartpole
from mbrl_hdp_dynamics.structured import StructuredDynamics

ROWS, HIDDEN = 10_000, 128


def _cartpole(max_contexts: int) -> tuple[StructuredDynamics, tuple[Tensor, Tensor, Tensor]]:
    model = build_cartpole(CartpoleConfig(hidden_sizes=[HIDDEN]), TaskSpec(max_contexts, 4, 1))
    generator = torch.Generator().manual_seed(0)
    obs, change = torch.randn(2, ROWS, 4, generator=generator)
    data = obs, torch.randn(ROWS, 1, generator=generator), obs + 0.1 * change
    model.set_normaliser(*data)
    return model, data


def _row_major(model: StructuredDynamics, data: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The textbook way: one batched product a layer, rows first, everything kept for autograd."""
    obs, act, next_obs = data
    hidden = model.input_scaler(model.features(obs, act)).expand(model.max_contexts, -1, -1)
    for number, (weight, bias) in enumerate(zip(model.heads.weights, model.heads.biases, strict=True)):
        hidden = torch.baddbmm(bias[:, None], hidden.relu() if number else hidden, weight.mT)
    targets = model.target_scaler(model.targets(obs, next_obs))
    normal = torch.distributions.Normal(hidden, model.noise_std()[:, None], validate_args=False)
    return (normal.log_prob(targets).sum(-1) - model.target_scaler.log_volume()).T


def _emission_rows(max_contexts: int) -> list[Row]:
    model, data = _cartpole(max_contexts)
    generator = torch.Generator().manual_seed(1)
    dense = torch.rand(ROWS, max_contexts, generator=generator)
    learned = torch.full((ROWS, max_contexts), 1e-9)
    learned[torch.arange(ROWS), torch.randint(min(2, max_contexts), (ROWS,), generator=generator)] = 1.0
    parameters = list(model.parameters())

    def gradient(log_prob: Callable[[], Tensor], weight: Tensor) -> Callable[[], object]:
        return lambda: torch.autograd.grad(log_prob(), parameters, weight)

    rows = []
    for name, weight in (("dense", dense), ("learned", learned)):
        ours = gradient(lambda: model.log_prob(*data), weight)
        theirs = gradient(lambda: _row_major(model, data), weight)
        what = f"emissions + gradient, {ROWS} rows, K={max_contexts}, {name}"
        rows.append(Row(what, *_order(time_pair(ours, theirs), "torch bmm, row-major"), 3.0))
    return rows


def _particle_rows() -> list[Row]:
    """Ours against one single network, feature-major, the fastest plain torch way to run it."""
    generator = torch.Generator().manual_seed(2)
    many, single = ContextHeads(10, 6, 4, [HIDDEN]), ContextHeads(1, 6, 4, [HIDDEN])
    with torch.no_grad():
        for value in (*many.parameters(), *single.parameters()):
            value.copy_(0.1 * torch.randn(value.shape, generator=generator))
    inputs = torch.randn(ROWS, 6, generator=generator)
    context = torch.randint(10, (ROWS,), generator=generator)
    blocks, of_block = inputs.view(20, ROWS // 20, 6), torch.randint(10, (20,), generator=generator)
    nobody = torch.zeros(ROWS, dtype=torch.long)
    cases: list[tuple[str, Callable[[], object], str, Callable[[], object], float | None]] = [
        ("own context", lambda: many.own_head(inputs, context), "one network, torch", lambda: single(inputs), 1 / 1.5),
        (
            "own context",
            lambda: many.own_head(inputs, context),
            "one network, ours",
            lambda: single.own_head(inputs, nobody),
            1 / 1.5,
        ),
        (
            "20 shared paths",
            lambda: many.block_heads(blocks, of_block),
            "one network, torch",
            lambda: single(inputs),
            1 / 1.5,
        ),
        (
            "own context",
            lambda: many.own_head(inputs, context),
            "all heads, then gather",
            lambda: many(inputs)[torch.arange(ROWS), context],
            None,
        ),
    ]
    with torch.no_grad():
        return [
            Row(f"heads of {ROWS} particles, K=10, {name}", *_order(time_pair(ours, theirs), peer), target)
            for name, ours, peer, theirs, target in cases
        ]


def _order(pair: tuple[float, float], peer: str) -> tuple[float, str, float]:
    return pair[0], peer, pair[1]


def run() -> list[Row]:
    torch.set_num_threads(1)
    return [row for max_contexts in (5, 10, 20) for row in _emission_rows(max_contexts)] + _particle_rows()
