"""What a finished run leaves for use elsewhere: model and policy without their spurious contexts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mbrl_hdp.control.saving import save_reward
from mbrl_hdp.data.manifest import MANIFEST, write_manifest
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.prior import StartablePrior
from mbrl_hdp.inference.slim import without_spurious

if TYPE_CHECKING:
    from mbrl_hdp.experiments.loop import Run


def export(folder: Path, run: Run) -> None:
    """Write `model/`, the learned reward and what the agent exports, at the width of the contexts found.

    `mbrl_hdp.load`, `load_policy` and `load_reward` (`mbrl_hdp.control.saving`) read them, `load_state`
    (`mbrl_hdp.control.state`) the state of other agents. The checkpoints keep the full width, so that a run can go on;
    this copy cannot learn new contexts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    model, reward, kept = run.model, run.learned_reward, None
    if model is not None:
        small = reduced(model, run)
        small.save(folder / "model")
        if small is not model:
            kept = model.kept
        if reward is not None:
            save_reward(reward if kept is None else reward.narrowed(model.slots), folder)
    run.agent.export(folder, kept)
    write_manifest(folder)


def reduced(model: ContextModel, run: Run) -> ContextModel:
    """Return the model without spurious contexts; the model itself where there are none, or its prior cannot shrink."""
    if bool(np.all(model.kept)) or not isinstance(model.prior, StartablePrior):
        return model
    return without_spurious(model, run.registry)
