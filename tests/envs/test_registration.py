"""Registering is quick, silent and harmless when repeated."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import gymnasium
import pytest

from mbrl_hdp.envs.registration import ENTRY_POINTS, register_envs


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_registering_again_changes_nothing_and_says_nothing(capfd):
    register_envs()
    before = {env_id: gymnasium.registry[env_id] for env_id in ENTRY_POINTS}
    register_envs()
    assert all(gymnasium.registry[env_id] is spec for env_id, spec in before.items())
    assert capfd.readouterr() == ("", "")


def test_importing_the_package_is_light_and_silent():
    heavy = ["torch", "gym", "highway_env", "pybullet", "PIL", "scipy", "mbrl_hdp.envs.cartpole"]
    done = run(f"import sys, mbrl_hdp.envs; print([name for name in {heavy} if name in sys.modules])")
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("[]", "", 0)


def test_make_by_module_and_id_in_a_fresh_process():
    done = run(
        "import gymnasium, sys\n"
        "env = gymnasium.make('mbrl_hdp.envs:mbrl_hdp/CartPoleSwingUp-v0', actuation=(1.0, -1.0))\n"
        "print(env.reset(seed=0)[0].shape, 'torch' in sys.modules)"
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("(4,) False", "", 0)


@pytest.mark.parametrize("env_id", sorted(ENTRY_POINTS))
def test_entry_points_exist(env_id):
    module, _, name = ENTRY_POINTS[env_id].partition(":")
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not part of this build")
    assert callable(getattr(importlib.import_module(module), name))
