"""One step of the filter as an ONNX graph: (obs, act, next_obs, belief) -> (filtered, next_belief, log_evidence).

Where contexts have phases, the belief that is fed back is over (context, phase): the input is `states` in place of
`belief`, and `next_states` comes out beside the next belief by context. Where the model looks at earlier steps, `past`
(their changes and actions, NaN before an episode's first step) is one more input, and `next_past` comes out last.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from mbrl_hdp.inference.density_table import COSINE, HINGE, PLAIN, SINE, DensityTable, TermArrays
from mbrl_hdp.probability.phases import context_of, dense
from mbrl_hdp.serving.onnx_graph import BATCH, Graph
from mbrl_hdp.types import PhaseChain

Array = NDArray[Any]


def write_filter(
    table: DensityTable,
    transition: Float[np.ndarray, "k k"],
    path: Path,
    phases: PhaseChain | None = None,
    past: int = 0,
) -> None:
    """Write the graph; rows of a batch are systems of their own.

    Args:
        table: densities of a step in every context.
        transition: the chain.
        path: the file.
        phases: the chain over (context, phase), which then takes the place of `transition`.
        past: earlier steps whose changes and actions are part of the table's action.
    """
    width, count = table.obs_dim, table.num_contexts
    past_width = past * (width + table.act_dim) // (past + 1)
    inputs: dict[str, list[str | int]] = {"obs": [BATCH, width], "act": [BATCH, table.act_dim - past_width]}
    if table.act_dim == past_width:
        del inputs["act"]
    inputs["next_obs"] = [BATCH, width]
    shapes: dict[str, list[str | int]] = {
        "filtered": [BATCH, count], "next_belief": [BATCH, count], "log_evidence": [BATCH]
    }  # fmt: skip
    if past:
        inputs["past"] = [BATCH, past_width]
    if phases is None:
        graph = Graph({**inputs, "belief": [BATCH, count]})
        found: tuple[str, ...] = _update(graph, "belief", _log_lik(graph, table), transition)
    else:
        inputs["states"] = shapes["next_states"] = [BATCH, phases.num_states]
        graph = Graph(inputs)
        found = _update_states(graph, _log_lik(graph, table), phases)
    if past:
        shapes["next_past"] = [BATCH, past_width]
        found = (*found, _next_past(graph, past_width // past, past))
    graph.write(path, dict(zip(found, shapes, strict=True)), shapes)


def _next_past(graph: Graph, step_width: int, steps: int) -> str:
    """Return the past of the next step, as `data.past.PastWindow` keeps it: this step first, without the oldest."""
    change = graph.add("Sub", "next_obs", "obs")
    act = ["act"] if "act" in graph.inputs else []
    newer = [graph.columns("past", np.arange((steps - 1) * step_width))] if steps > 1 else []
    return graph.add("Concat", change, *act, *newer, axis=1)


def _update_states(graph: Graph, log_lik: str, phases: PhaseChain) -> tuple[str, str, str, str]:
    """Return what `_update` does, by context, and the next belief over (context, phase)."""
    chain, context = dense(phases.map(lambda part: part.detach().double().cpu())), context_of(phases.sizes).numpy()
    own = graph.columns(log_lik, context)
    filtered, following, evidence = _update(graph, "states", own, chain.transition.numpy())
    is_of = (context[:, None] == np.arange(phases.num_contexts)).astype(np.float64)
    return graph.add("MatMul", filtered, is_of), graph.add("MatMul", following, is_of), evidence, following


def _log_lik(graph: Graph, table: DensityTable) -> str:
    """Return log p(next_obs | obs, act, context), `batch k`; see `DensityTable` for the formula."""
    body, next_body = (_bodies(graph, table, name) for name in ("obs", "next_obs"))
    act = _act(graph)
    terms = _terms(graph, table.terms, _with_act(graph, table, body, act))
    change = graph.add("Sub", graph.columns(next_body, table.targets), graph.columns(body, table.targets))
    scaled = graph.add("Mul", graph.add("Sub", change, table.target_centre), table.target_inverse)
    error = graph.add("Mul", graph.add("Sub", scaled, _networks(graph, table, terms)), table.inverse_std[:, None])
    if table.whitening is not None:
        error = graph.add("MatMul", error, table.whitening.transpose(0, 2, 1))
    log_lik = _density(graph, table, terms, graph.add("Mul", error, error))
    if table.num_bodies > 1:
        log_lik = graph.sum_last(graph.reshape(log_lik, [table.num_contexts, -1, table.num_bodies]))
    log_lik = graph.add("Transpose", log_lik, perm=[1, 0])
    if "past" not in graph.inputs:
        return log_lik
    # A past that is not complete says nothing, even where the heads ignore what is missing: 0 * NaN is NaN.
    return graph.add("Add", log_lik, graph.sum_last(graph.add("Mul", act, 0.0), keep=True))


def _act(graph: Graph) -> str:
    """Return the action with its past; "" where there is neither."""
    parts = [name for name in ("act", "past") if name in graph.inputs]
    return graph.add("Concat", *parts, axis=1) if len(parts) > 1 else "".join(parts)


def _bodies(graph: Graph, table: DensityTable, name: str) -> str:
    """Return one row for each body of each observation."""
    used = table.body_width * table.num_bodies
    columns = name if used == table.obs_dim else graph.columns(name, np.arange(used))
    return columns if table.num_bodies == 1 else graph.reshape(columns, [-1, table.body_width])


def _with_act(graph: Graph, table: DensityTable, body: str, act: str) -> str:
    """Append the action to every row; it is zero for all bodies but the first."""
    if not table.act_dim:
        return body
    if table.num_bodies > 1:
        is_first = (np.arange(table.num_bodies) == 0).astype(float)[:, None]
        alone = graph.add("Mul", graph.reshape(act, [-1, 1, table.act_dim]), is_first)
        act = graph.reshape(alone, [-1, table.act_dim])
    return graph.add("Concat", body, act, axis=1)


def _terms(graph: Graph, terms: TermArrays, rows: str) -> str:
    """Return the scaled terms, `rows D`."""
    order = np.argsort(terms.kind, kind="stable")
    parts = []
    for kind in np.unique(terms.kind):
        chosen = order[terms.kind[order] == kind]
        parts.append(_factors(graph, terms, graph.columns(rows, terms.column[chosen]), int(kind), chosen))
    factors = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
    # One more column, of ones, stands for a factor that is not there.
    factors = graph.add("Pad", factors, graph.constant([0, 0, 0, 1], np.int64), 1.0)
    place = np.append(np.argsort(order, kind="stable"), len(order))
    product = graph.columns(factors, place[terms.index[:, 0]])
    for number in range(1, terms.index.shape[1]):
        product = graph.add("Mul", product, graph.columns(factors, place[terms.index[:, number]]))
    return graph.add("Mul", graph.add("Sub", product, terms.term_centre), terms.term_inverse)


def _factors(graph: Graph, terms: TermArrays, columns: str, kind: int, chosen: Array) -> str:
    if kind in (SINE, COSINE):
        turned = graph.add("Mul", columns, terms.number[chosen])
        return graph.sine(turned) if kind == SINE else graph.cosine(turned)
    scaled = graph.add("Mul", graph.add("Sub", columns, terms.centre[chosen]), terms.inverse_scale[chosen])
    if kind == PLAIN:
        return scaled
    assert kind == HINGE
    return graph.relu(graph.add("Sub", scaled, terms.number[chosen]))


def _networks(graph: Graph, table: DensityTable, terms: str) -> str:
    """Return the output of every context's network, `k rows O`."""
    hidden = terms
    for number, (weight, bias) in enumerate(zip(table.weights, table.biases, strict=True)):
        source = graph.relu(hidden) if number else hidden
        hidden = graph.add("Add", graph.add("MatMul", source, weight.transpose(0, 2, 1)), bias[:, None])
    return hidden


def _density(graph: Graph, table: DensityTable, terms: str, square: str) -> str:
    """Return the log densities, `k rows`."""
    offset = table.offset[:, None]
    if table.half is None or table.factor is None:
        return graph.add("Sub", offset, graph.add("Mul", graph.sum_last(square), 0.5))
    spread = graph.add("MatMul", terms, table.factor)
    leverage = graph.sum_last(graph.add("Mul", spread, spread), keep=True)
    widening = graph.add("Add", leverage, 1.0)
    share = graph.add("Div", square, graph.add("Mul", widening, 2.0 * table.half[:, None]))
    tails = graph.add("Mul", graph.add("Log", graph.add("Add", share, 1.0)), table.half[:, None] + 0.5)
    narrow = graph.add("Mul", graph.sum_last(graph.add("Log", widening)), 0.5 * table.num_varying)
    return graph.add("Sub", graph.add("Sub", offset, narrow), graph.sum_last(tails))


def _update(graph: Graph, belief: str, log_lik: str, transition: Array) -> tuple[str, str, str]:
    """Return the filtered distribution, the next belief and the log evidence, as `belief.filter` computes them."""
    seen = graph.add("Where", graph.add("Greater", belief, 0.0), log_lik, -np.inf)
    missing = graph.add("IsNaN", seen)
    clean = graph.add("Where", missing, -np.inf, seen)
    peak = graph.add("ReduceMax", clean, axes=[1], keepdims=1)
    is_finite = graph.add("Not", graph.add("IsInf", peak))
    any_missing = graph.add("ReduceMax", graph.add("Where", missing, 1.0, 0.0), axes=[1], keepdims=1)
    is_missing = graph.add("Greater", any_missing, 0.5)
    is_informative = graph.add("And", is_finite, graph.add("Not", is_missing))
    shift = graph.add("Where", is_finite, peak, 0.0)
    weight = graph.add("Mul", belief, graph.add("Exp", graph.add("Sub", clean, shift)))
    total = graph.sum_last(weight, keep=True)
    filtered = graph.add("Where", is_informative, graph.add("Div", weight, total), belief)
    evidence = graph.add("Where", is_finite, graph.add("Add", peak, graph.add("Log", total)), peak)
    evidence = graph.add("Where", is_missing, np.nan, evidence)
    return filtered, graph.add("MatMul", filtered, transition), graph.reshape(evidence, [-1])
