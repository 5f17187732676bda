"""What a model leaves unexplained although state and action could explain it."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.model import ContextModel

_NUM_HIDDEN = 300
_MOST_ROWS = 6000
_NUM_FOLDS = 4
_RIDGES = (1.0, 10.0, 100.0, 1000.0)


def explainable_share(model: ContextModel, data: Trajectories) -> float:
    """Return the largest share of a column's residuals that a wide random network explains, cross-fitted; at least 0.

    In every context the residuals of the most likely path are regressed on random ReLU features of state and action. A
    share near zero means that heads of more capacity have nothing to add.
    """
    labels = model.most_likely(data)[data.is_observed]
    obs, act, next_obs = data.transitions()
    left = own_residuals(model, data, labels)
    change = (next_obs - obs).std(0)
    varies = change > 0
    # What is left is no larger than rounding where a column is predicted exactly.
    left = left[:, varies] / change[varies]
    left = np.where(np.sqrt(np.square(left).mean(0)) > 1e-3, left, 0.0)
    standard = np.concatenate([obs, act], -1)
    standard = (standard - standard.mean(0)) / np.maximum(standard.std(0), 1e-12)
    error = np.zeros_like(left)
    for context in range(model.num_contexts):
        mine = np.flatnonzero(labels == context)
        error[mine] = left[mine] - _cross_predict(standard[mine], left[mine])
    total = np.square(left).mean(0)
    share = 1.0 - np.square(error).mean(0) / np.where(total > 0, total, 1.0)
    return float(np.where(total > 0, share, 0.0).max(initial=0.0))


def own_residuals(model: ContextModel, data: Trajectories, labels: Int[np.ndarray, " M"]) -> Float[np.ndarray, "M S"]:
    """Return what the head of its own context leaves of every observed transition, in the data's units."""
    obs, act, next_obs = data.transitions()
    with torch.no_grad():
        inputs, actions = (torch.as_tensor(each, dtype=torch.float32, device=model.device) for each in (obs, act))
        slots = model.slots[torch.as_tensor(labels, device=model.device)]
        return next_obs - model.dynamics.predict(inputs, actions, slots).double().cpu().numpy()


def _cross_predict(inputs: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Predict every fold from the others; the ridge with the smallest error is taken."""
    generator = np.random.default_rng(0)
    direction = generator.normal(size=(inputs.shape[1], _NUM_HIDDEN)) / np.sqrt(max(inputs.shape[1], 1))
    hidden = np.maximum(inputs @ direction + generator.normal(size=_NUM_HIDDEN), 0.0)
    fold = np.arange(len(inputs)) * _NUM_FOLDS // max(len(inputs), 1)
    best, least = np.zeros_like(left), float(np.square(left).sum())
    for ridge in _RIDGES:
        predicted = np.zeros_like(left)
        for number in range(_NUM_FOLDS):
            mine = fold == number
            others = np.flatnonzero(~mine)[:_MOST_ROWS]
            gram = hidden[others].T @ hidden[others] + ridge * np.eye(_NUM_HIDDEN)
            predicted[mine] = hidden[mine] @ np.linalg.solve(gram, hidden[others].T @ left[others])
        error = float(np.square(left - predicted).sum())
        if error < least:
            best, least = predicted, error
    return best
