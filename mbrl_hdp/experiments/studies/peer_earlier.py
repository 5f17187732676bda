"""Cells of `peers` with an earlier version of this package, before there was a structure search: `fit` with defaults.

Its checkout is named by the environment variable MBRL_HDP_EARLIER (`git worktree add FOLDER 849ed93`) and runs in a
process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mbrl_hdp.envs.systems import build_system, simulate
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.scoring import align

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings

FOLDER = "MBRL_HDP_EARLIER"
COMMIT = "849ed93"
# Runs in the earlier checkout: reads obs and act, writes the labels, prints contexts and processor seconds.
_PROGRAM = """
import json, sys, time
import numpy as np
import torch
import mbrl_hdp
torch.set_num_threads(1)
data = np.load(sys.argv[1])
started = time.process_time()
model = mbrl_hdp.fit(mbrl_hdp.Trajectories(obs=data["obs"], act=data["act"]), progress=False)
seconds = time.process_time() - started
np.save(sys.argv[2], model.most_likely(mbrl_hdp.Trajectories(obs=data["obs"], act=data["act"])))
print(json.dumps({"found": int(model.num_contexts), "cpu_s": round(seconds, 1), "folder": mbrl_hdp.__file__}))
"""


def run_cell(settings: Settings) -> Results:
    """Fit one data set with the earlier version; the true contexts are only compared with afterwards.

    Raises:
        ConfigError: if there is no checkout of it, or it does not run.
    """
    rollouts = simulate(settings["system"], settings["variant"], settings["seed"], settings["num_episodes"])
    with tempfile.TemporaryDirectory() as scratch:
        data, labels = Path(scratch, "data.npz"), Path(scratch, "labels.npy")
        np.savez(data, obs=rollouts.obs, act=rollouts.act)
        found = _run(checkout(), data, labels)
        accuracy = align(np.load(labels), rollouts.context).accuracy
    return {
        "found": found["found"],
        "true": build_system(settings["system"], settings["variant"]).num_contexts,
        "accuracy": round(accuracy, 4),
        "cpu_s": found["cpu_s"],
        "num_transitions": int(rollouts.context.size),
    }


def checkout() -> Path:
    """Return the folder of the earlier version.

    Raises:
        ConfigError: if the environment variable is not set, or the folder holds another commit.
    """
    words = f"set {FOLDER} to the folder of `git worktree add FOLDER {COMMIT}`"
    folder = Path(os.environ.get(FOLDER, ""))
    if not os.environ.get(FOLDER) or not (folder / "mbrl_hdp").is_dir():
        raise ConfigError(f"the peer `earlier` needs a checkout of commit {COMMIT}: {words}")
    head = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if not head.stdout.startswith(COMMIT):
        raise ConfigError(f"{FOLDER}={folder} holds commit {head.stdout.strip()[:12] or 'none'}; {words}")
    return folder


def _run(folder: Path, data: Path, labels: Path) -> Results:
    paths = os.pathsep.join(map(str, (folder, folder / "plugins")))
    words = [sys.executable, "-P", "-W", "ignore", "-c", _PROGRAM, str(data), str(labels)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"the checkout {folder} does not run: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
        )
    found: Results = json.loads(done.stdout.splitlines()[-1])
    if not Path(found["folder"]).is_relative_to(folder.resolve()):
        raise ConfigError(f"{FOLDER}={folder}: {found['folder']} ran instead")
    return found
