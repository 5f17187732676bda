"""What a finished run leaves for use elsewhere: model and policy without their spurious contexts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mbrl_hdp.control.policy import ContextSac
from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.prior import StartablePrior
from mbrl_hdp.inference.slim import without_spurious

if TYPE_CHECKING:
    from mbrl_hdp.experiments.loop import Run


def export(folder: Path, run: Run) -> None:
    """Write `model/` (read it with `mbrl_hdp.load`) and `policy.safetensors`, at the width of the contexts found.

    The checkpoints keep the full width, so that a run can go on; this copy cannot learn new contexts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    policy: ContextSac | None = getattr(run.agent, "sac", None)
    model = run.model
    if model is not None:
        small = reduced(model, run)
        small.save(folder / "model")
        if policy is not None and small is not model:
            policy = policy.drop_contexts(model.kept)
    if policy is not None:
        policy.save_checkpoint(ckpt_path=folder / "policy.safetensors")
        words = {"obs_dim": policy.codec.obs_dim, "num_contexts": policy.codec.max_contexts}
        with atomic_path(folder / "policy.json") as path:
            path.write_text(json.dumps(words, indent=2))


def reduced(model: ContextModel, run: Run) -> ContextModel:
    """Give the model without spurious contexts; the model itself where there are none, or its prior cannot shrink."""
    if bool(np.all(model.kept)) or not isinstance(model.prior, StartablePrior):
        return model
    return without_spurious(model, run.registry)
