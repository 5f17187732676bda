"""Use an exported model: numpy and onnxruntime are all it needs (`pip install numpy onnxruntime`).

Example:
    >>> runner = Runner(".")  # the folder of export.json
    >>> action = runner.reset(obs)  # the first observation
    >>> action = runner.step(next_obs, act)  # after every step: what was observed, the action that was taken before
    >>> runner.belief, runner.filtered, runner.context, runner.log_evidence
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


class Runner:
    """The filter of an exported model and, where there is one, its policy, for one system.

    Attributes:
        belief: distribution of the context that acts next; None where there is no filter.
        filtered: distribution of the context that acted on the last step.
        log_evidence: log density of the last step; NaN where a value was missing.
        action: action of the policy; None where there is none, or the observation has missing values.
    """

    def __init__(self, folder: str | Path = ".") -> None:
        self.words = json.loads((Path(folder) / "export.json").read_text())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the networks are small: threads would only wait for each other
        files = self.words["files"]
        self._sessions = {
            name: onnxruntime.InferenceSession(str(Path(folder) / file), options, providers=["CPUExecutionProvider"])
            for name, file in files.items()
        }
        self.obs: Any = None
        self.belief: Any = None
        self._states: Any = None  # over (context, phase); None where contexts have no phases
        self._past: Any = None  # changes and actions of the last steps; None where the model looks at none
        self.filtered: Any = None
        self.action: Any = None
        self.log_evidence = float("nan")

    @property
    def context(self) -> int | None:
        """Most likely context of the last step."""
        return None if self.filtered is None else int(self.filtered.argmax())

    def reset(self, obs: Any) -> Any:
        """Begin an episode at its first observation; return the policy's action."""
        self.obs = np.array(obs, dtype=np.float64)
        if "filter" in self._sessions:
            self.belief = self.filtered = np.array(self.words["initial"], dtype=np.float64)
            self._states = self.words.get("initial_states")
            width = self.words["past"] * (self.words["obs_dim"] + self.words["act_dim"])
            self._past = np.full(width, np.nan) if width else None
        self.log_evidence = float("nan")
        return self._act()

    def step(self, next_obs: Any, act: Any = None) -> Any:
        """Take what was observed after an action (by default the policy's); return the policy's next action."""
        act = self.action if act is None else act
        next_obs = np.array(next_obs, dtype=np.float64)
        if "filter" in self._sessions:
            rows = {"obs": self.obs, "act": act, "next_obs": next_obs, "belief": self.belief, "states": self._states}
            del rows["belief" if self._states is not None else "states"]
            if not self.words["act_dim"]:
                del rows["act"]
            if self._past is not None:
                rows["past"] = self._past
            found = self._run("filter", rows)
            self.filtered, self.belief, self.log_evidence = found[0], found[1], float(found[2])
            if self._states is not None:
                self._states = found[3]
            if self._past is not None:
                self._past = found[-1]
        self.obs = next_obs
        return self._act()

    def _act(self) -> Any:
        self.action = None
        beside = self.words["policy_input"]
        if "policy" in self._sessions and beside != "context" and np.isfinite(self.obs).all():
            rows = {"obs": self.obs} if beside is None else {"obs": self.obs, beside: self.belief}
            self.action = self._run("policy", rows)[0]
        return self.action

    def _run(self, name: str, rows: dict[str, Any]) -> list[Any]:
        batches = {key: np.array(value, dtype=np.float64)[None] for key, value in rows.items()}
        return [output[0] for output in self._sessions[name].run(None, batches)]


def main() -> None:
    """Feed a few made-up observations, to see that everything is there."""
    runner = Runner(Path(sys.argv[0]).parent)
    rng = np.random.default_rng(0)
    runner.reset(np.zeros(runner.words["obs_dim"]))
    for step in range(5):
        obs, act = 0.1 * rng.normal(size=runner.words["obs_dim"]), rng.uniform(-1, 1, runner.words["act_dim"])
        runner.step(obs, act)
        print(f"step {step}: belief {runner.belief}, context {runner.context}, action {runner.action}")


if __name__ == "__main__":
    main()
