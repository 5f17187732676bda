"""A SAC policy as an ONNX graph: (obs, belief) -> action, the mean of the policy as in evaluations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Int

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
    for number, (weight, bias) in enumerate(policy.policy.layers):
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
    """Return what the network sees: obs with sine and cosine for angles, then what is beside it."""
    obs, angles = "obs", list(policy.config.angle_columns)
    if policy.config.standardise_obs:
        centre, scale = (part.double().cpu().numpy() for part in (policy.obs_centre, policy.obs_scale))
        obs = graph.add("Div", graph.add("Sub", obs, centre), scale)
    parts = [obs]
    if angles:
        plain = [column for column in range(policy.codec.obs_dim) if column not in angles]
        turned = graph.columns(obs, angles)
        parts = [graph.columns(obs, plain), graph.sine(turned), graph.cosine(turned)]
    if beside is not None:
        parts.append(beside)
    return parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
