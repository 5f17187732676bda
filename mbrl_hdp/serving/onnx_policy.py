"""A SAC policy as an ONNX graph: (obs, belief) -> action, the mean of the policy as in evaluations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from mbrl_hdp.control.policy import ContextSac
from mbrl_hdp.serving.onnx_graph import BATCH, Graph


def write_policy(
    policy: ContextSac, path: Path, beside: str | None = "belief", slots: Int[np.ndarray, " k"] | None = None
) -> None:
    """Write the graph.

    Args:
        policy: the policy.
        path: the file.
        beside: name of what it sees beside the observation; None if it sees nothing else.
        slots: the policy's slots that the belief of the filter belongs to; None if they are the same.
    """
    width = policy.codec.max_contexts
    graph = Graph({"obs": [BATCH, policy.codec.obs_dim]})
    if beside is not None:
        graph.inputs[beside] = [BATCH, width if slots is None else len(slots)]
    hidden = _features(graph, policy, _widened(graph, beside, slots, width))
    for number, (weight, bias) in enumerate(policy.calm_policy.layers):
        matrix = weight[0].double().cpu().numpy()
        if bias is None:  # the last column belongs to a row of ones
            matrix, shift = matrix[:, :-1], matrix[:, -1]
        else:
            shift = bias[0, :, 0].double().cpu().numpy()
        source = graph.relu(hidden) if number else hidden
        hidden = graph.add("Add", graph.add("MatMul", source, matrix.T), shift)
    low, high = (np.asarray(bound, np.float64) for bound in (policy.action_space.low, policy.action_space.high))
    squashed = graph.add("Tanh", graph.columns(hidden, np.arange(policy.act_dim)))
    act = graph.add("Add", graph.add("Mul", squashed, (high - low) / 2), (high + low) / 2)
    graph.write(path, {act: "action"}, {"action": [BATCH, policy.act_dim]})


def _widened(graph: Graph, beside: str | None, slots: Int[np.ndarray, " k"] | None, width: int) -> str | None:
    if beside is None or slots is None:
        return beside
    return graph.add("MatMul", beside, np.eye(width)[slots])


def _features(graph: Graph, policy: ContextSac, beside: str | None) -> str:
    """Return what the network sees: what `ObsFeatures` makes of obs, then what is beside it."""
    made, obs = policy.obs_features, "obs"
    if made.config.standardise_obs:
        obs = graph.add("Div", graph.add("Sub", obs, _numbers(made.centre)), _numbers(made.scale))
    parts = [obs]
    if made.angles:
        turned = graph.columns(obs, made.angles)
        parts = [graph.columns(obs, made.plain), graph.sine(turned), graph.cosine(turned)]
    if made.config.magnify_obs:
        parts.append(_magnified(graph, policy))
    if beside is not None:
        parts.append(beside)
    return parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)


def _magnified(graph: Graph, policy: ContextSac) -> str:
    """Return asinh of the observation in its late units; asinh is odd: sign(x) log(|x| + sqrt(x^2 + 1))."""
    made = policy.obs_features
    turns = np.isin(np.arange(policy.codec.obs_dim), made.angles) * 2.0 * np.pi  # 0: nothing is wrapped
    away = graph.add("Sub", "obs", _numbers(made.late_centre))
    if made.angles:
        whole = graph.add("Round", graph.add("Div", away, 2.0 * np.pi))
        away = graph.add("Sub", away, graph.add("Mul", whole, turns))
    scaled = graph.add("Div", away, _numbers(made.late_scale))
    root = graph.add("Sqrt", graph.add("Add", graph.add("Mul", scaled, scaled), 1.0))
    size = graph.add("Log", graph.add("Add", graph.add("Abs", scaled), root))
    return graph.add("Mul", graph.add("Sign", scaled), size)


def _numbers(values: Tensor) -> NDArray[np.float64]:
    return values.double().cpu().numpy()
