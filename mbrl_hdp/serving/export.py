"""`mbrl-hdp export`: filter and policy as ONNX, with a script that runs them without mbrl_hdp."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.density_table import DensityTable
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.row_density import compiled_row
from mbrl_hdp.serving import exported_run_path
from mbrl_hdp.serving.loading import Served
from mbrl_hdp.serving.onnx_filter import write_filter
from mbrl_hdp.serving.onnx_graph import IR_VERSION, OPSET
from mbrl_hdp.serving.onnx_policy import write_policy

SCHEMA_VERSION = 1
_FILTER, _POLICY = "filter.onnx", "policy.onnx"


def export_onnx(served: Served, folder: Path) -> dict[str, Any]:
    """Write `filter.onnx`, `policy.onnx`, `export.json`, `run.py` and `README.md`; return what export.json holds.

    Args:
        served: model and policy.
        folder: where to; it is made if it is not there.

    Raises:
        ConfigError: if there is nothing that can be written as ONNX.
    """
    if served.model is None and served.policy is None:
        raise ConfigError(
            f"{served.source}: agent={served.agent_name} has neither a context model nor a SAC policy to export"
        )
    table = None if served.model is None else table_of(served.model)
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    if served.model is not None and table is not None:
        write_filter(table, served.model.transition, folder / _FILTER, served.model.states, served.model.task.past)
        files["filter"] = _FILTER
    beside = {"belief": "belief", "truth": "context"}.get(served.sees)
    if served.policy is not None:
        write_policy(served.policy, folder / _POLICY, beside, _slots(served))
        files["policy"] = _POLICY
    words = _words(served, files, beside)
    _write(folder / "export.json", json.dumps(words, indent=2) + "\n")
    _write(folder / "run.py", exported_run_path().read_text())
    _write(folder / "README.md", _readme(words))
    return words


def table_of(model: ContextModel) -> DensityTable:
    """Return the density table of a model.

    Raises:
        ConfigError: if its transition model offers none, or one that means something else.
    """
    name, slots = model.parts.dynamics.name, model.slots
    if model.dynamics.density_table(slots) is None:
        raise ConfigError(
            f"dynamics={name} ({type(model.dynamics).__module__}) cannot be exported: it offers no density_table, the "
            "arrays that ONNX is written from; docs/serving.md says how a plugin offers one"
        )
    row = compiled_row(model.dynamics, slots)
    if row is None:
        raise ConfigError(
            f"dynamics={name} ({type(model.dynamics).__module__}) cannot be exported: its density_table does not have "
            "the numbers of its log_prob"
        )
    return row.table


def _slots(served: Served) -> Any:
    """Return the policy's slots of the filter's contexts, None where they are the same."""
    if served.sees != "belief" or served.model is None or served.policy is None:
        return None
    slots, width = served.model.slots.cpu().numpy(), served.policy.codec.max_contexts
    return None if np.array_equal(slots, np.arange(width)) else slots


def _words(served: Served, files: dict[str, str], beside: str | None) -> dict[str, Any]:
    model, policy = served.model, served.policy
    versions = {name: importlib.metadata.version(name) for name in ("mbrl-hdp", "onnx", "numpy", "torch")}
    return {
        "schema_version": SCHEMA_VERSION,
        "files": files,
        **served.description(),
        "initial_states": None if model is None or model.states is None else model.states.initial.tolist(),
        "dynamics": None if model is None else model.parts.dynamics.name,
        "agent": served.agent_name,
        "policy_input": beside if policy is not None else None,
        "action_low": None if policy is None else np.asarray(policy.action_space.low, float).tolist(),
        "action_high": None if policy is None else np.asarray(policy.action_space.high, float).tolist(),
        "precision": "float64",
        "opset": OPSET,
        "ir_version": IR_VERSION,
        "versions": versions | {"python": platform.python_version()},
    }


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _readme(words: dict[str, Any]) -> str:
    lines = [
        f"# {words['source']}, exported by mbrl_hdp {words['versions']['mbrl-hdp']}",
        "",
        "Runs with numpy and onnxruntime alone (`pip install numpy onnxruntime`): `python run.py` tries it out,",
        "`Runner` in `run.py` is what a program uses. `export.json` holds sizes, contexts and versions. All numbers",
        "are float64; the first axis of every input is a batch of independent systems.",
        "",
    ]
    if "filter" in words["files"]:
        lines += _filter_lines(words)
    if "policy" in words["files"]:
        source = {"belief": ", belief (the filter's next_belief)", "context": ", context"}
        seen = source.get(words["policy_input"], "")
        lines += [f"`policy.onnx`: obs{seen} -> action, the mean of the policy.", ""]
        if words["policy_input"] == "context":
            lines += ["This policy was trained on the true context, one-hot; it has no filter of its own.", ""]
    elif words["agent"] is not None:
        lines += [f"agent={words['agent']} is no SAC policy (a planner is no graph): there is no policy.onnx.", ""]
    return "\n".join(lines)


def _filter_lines(words: dict[str, Any]) -> list[str]:
    act = f", act [batch, {words['act_dim']}]" if words["act_dim"] else ""
    obs, belief = f"[batch, {words['obs_dim']}]", f"[batch, {words['num_contexts']}]"
    end = ["NaN marks a missing value: the belief then only moves along the chain, and log_evidence is NaN.", ""]
    if words["past"]:
        past = f"[batch, {words['past'] * (words['obs_dim'] + words['act_dim'])}]"
        end = [
            f"This model looks at the last {words['past']} steps: one more input, past {past}, and one more output,",
            f"next_past {past}: feed it back. An episode begins with NaN in all of it.",
            *end,
        ]
    if words["initial_states"] is None:
        return [
            f"`filter.onnx`: obs {obs}{act}, next_obs {obs}, belief {belief}",
            f"-> filtered {belief} (the context that acted), next_belief {belief} (the one that acts next: feed it",
            "back), log_evidence [batch]. An episode begins with `initial` of export.json.",
            *end,
        ]
    states = f"[batch, {len(words['initial_states'])}]"
    return [
        f"`filter.onnx`: obs {obs}{act}, next_obs {obs}, states {states}",
        f"-> filtered {belief} (the context that acted), next_belief {belief} (the one that acts next), log_evidence",
        f"[batch], next_states {states} (over contexts and how long they have lasted: feed it back). An episode begins",
        "with `initial_states` of export.json.",
        *end,
    ]
