"""A user's own code: found by its import path, also in the current directory, and tried before any work begins."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor

from mbrl_hdp.control.rewards import RewardFn, uses_context
from mbrl_hdp.errors import ConfigError, StepError, did_you_mean

_NUM_TRIED = 7
_ORDINARY = 1e6
_closed: set[Path] = set()


class Steps(NamedTuple):
    """A few real steps to try functions on: actions `B A` and the observations they led to, `B S`."""

    act: Tensor
    next_obs: Tensor


def search_here() -> None:
    """Make modules in the current directory importable, as `python -m` does and an installed command does not."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path and not _is_closed(Path(here)):
        sys.path.insert(0, here)


def close_folder(folder: Path) -> None:
    """Never look for modules in a folder or below it, not even when it is the current directory."""
    _closed.add(folder.resolve())
    sys.path[:] = [place for place in sys.path if not _is_closed(Path(place or os.curdir))]


def _is_closed(path: Path) -> bool:
    return any(folder in {path.resolve(), *path.resolve().parents} for folder in _closed)


def load_function(key: str, path: str) -> Callable[..., Any]:
    """Import `module:function`.

    Args:
        key: the setting that names it.
        path: what the setting says.

    Raises:
        ConfigError: if there is no such thing.
    """
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name):
        raise ConfigError(f"{key}={path!r} is no import path; write module:function, as in my_package.rewards:reward")
    search_here()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail at import in any way
        raise ConfigError(
            f"{key}={path!r}: module {module_name!r} cannot be imported ({type(error).__name__}: {error}); modules are "
            "looked for among installed packages, on PYTHONPATH and in the current directory"
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ConfigError(f"{key}={path!r}: the module has no function {name!r}; {did_you_mean(name, functions)}")
    function: Callable[..., Any] = found
    return function


def few_steps(env: gymnasium.Env[Any, Any]) -> Steps:
    """Take a few random steps; the next seeded reset makes them undone.

    Raises:
        ConfigError: if the environment fails, or its steps cannot be used.
    """
    space: Any = env.action_space
    rng = np.random.default_rng(0)
    acts, observed = [], []
    is_over = True
    try:
        for _ in range(_NUM_TRIED):
            if is_over:
                env.reset(seed=0)
            acts.append(rng.uniform(space.low, space.high))
            obs, _, terminated, truncated, _ = env.step(acts[-1])
            observed.append(obs)
            is_over = terminated or truncated
    except StepError as error:
        raise ConfigError(f"env.id: step {len(observed)} of a trial: {error}") from error
    return Steps(*(torch.as_tensor(np.array(rows), dtype=torch.float32) for rows in (acts, observed)))


def check_reward(key: str, function: RewardFn, steps: Steps) -> None:
    """Try a reward function of (act, next_obs).

    Raises:
        ConfigError: if it fails or returns anything but finite numbers `B 1`.
    """
    if uses_context(function):
        raise ConfigError(
            f"{key} declares uses_context, but the slots of contexts that are still to be learned mean nothing to a "
            "formula; use env.reward=learned"
        )
    found = _try(key, function, steps)
    if not found.is_floating_point():
        raise ConfigError(f"{key} returns {found.dtype}; rewards are floating-point numbers")
    if not bool(found.isfinite().all()):
        row = int((~found.isfinite()).any(-1).nonzero()[0])
        raise ConfigError(
            f"{key} returns {found[row].item()} for act {_words(steps.act[row])} and next_obs "
            f"{_words(steps.next_obs[row])}, a step of the environment; rewards must be finite"
        )


def watched(key: str, function: RewardFn) -> RewardFn:
    """Return a user's reward function that is checked whenever a planner calls it.

    A plan may imagine states that overflow: only what it returns for ordinary ones counts.

    Raises:
        StepError: when called, if the function fails or returns anything but finite numbers `B 1`.
    """

    @functools.wraps(function)
    def reward(act: Tensor, next_obs: Tensor) -> Tensor:
        """Call the function and check what it returns."""
        try:
            found = function(act, next_obs)
        except Exception as error:  # a user's function may fail in any way
            raise StepError(f"{key} failed: {type(error).__name__}: {error} (--debug shows where)") from error
        if not isinstance(found, Tensor) or found.shape != (len(next_obs), 1):
            raise StepError(f"{key} returns {_shape(found)}; [{len(next_obs)}, 1] is needed")
        is_wrong = ~found.isfinite()
        if bool(is_wrong.any()):
            is_wrong = is_wrong & (torch.cat([act, next_obs], -1).abs() <= _ORDINARY).all(-1, keepdim=True)
            if bool(is_wrong.any()):
                row = int(is_wrong.nonzero()[0, 0])
                raise StepError(f"{key} returns {found[row].item()} for act {_words(act[row])} and next_obs "
                                f"{_words(next_obs[row])}, which a plan imagines; rewards must be finite")  # fmt: skip
        return found

    return reward


def _shape(found: Any) -> str:
    return str(list(found.shape)) if isinstance(found, Tensor) else f"a {type(found).__name__}"


def check_termination(key: str, function: RewardFn, steps: Steps) -> None:
    """Try a termination function of (act, next_obs).

    Raises:
        ConfigError: if it fails or returns anything but truth values `B 1`.
    """
    found = _try(key, function, steps)
    if found.dtype != torch.bool:
        raise ConfigError(f"{key} returns {found.dtype}; it must return True or False (torch.bool) for every row")


def _try(key: str, function: RewardFn, steps: Steps) -> Tensor:
    asked = f"it gets act {list(steps.act.shape)} and next_obs {list(steps.next_obs.shape)}, one step a row"
    wanted = f"and must return a torch tensor of shape [{len(steps.act)}, 1]"
    try:
        with torch.no_grad():
            found = function(steps.act.clone(), steps.next_obs.clone())
    except Exception as error:  # a user's function may fail in any way
        raise ConfigError(f"{key} fails ({type(error).__name__}: {error}); {asked} {wanted}") from error
    if not isinstance(found, Tensor):
        raise ConfigError(f"{key} returns a {type(found).__name__}; {asked} {wanted}")
    if found.shape != (len(steps.act), 1):
        raise ConfigError(f"{key} returns shape {list(found.shape)}; {asked} {wanted} (keep the last axis: x[:, :1])")
    return found


def _words(row: Tensor) -> str:
    return str([round(value, 4) for value in row.tolist()])
