"""Make any gymnasium environment a C-MDP: a hidden chain picks, step by step, the context that acts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import ArrayLike, NDArray

from mbrl_hdp.envs.chains import Chain, chain_from_config, check_chain
from mbrl_hdp.envs.rendering import ContextStrips
from mbrl_hdp.envs.walk import ChainWalk
from mbrl_hdp.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from mbrl_hdp.envs.batch import BatchSwitchingEnv

# The chain's generator is a child of the seed with a key of its own: it never shares a stream with the environment.
_CHAIN_KEY = 0xC0


@dataclass(frozen=True)
class Context:
    """One context: what is different about the environment while it acts.

    Attributes:
        name: shown in reports; None gives `context 0`, `context 1`, ...
        action_scale: factor on the action (clipped to its box first), one number or one per dimension.
        attributes: values for attributes of the unwrapped environment, by dotted path (`params.cart.mass`).
        apply: called with the unwrapped environment when the context begins to act; may return a function that undoes
            it, called when it ceases to act.
    """

    name: str | None = None
    action_scale: float | Sequence[float] = 1.0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    apply: Callable[[Any], Callable[[], None] | None] | None = None


class SwitchingContext(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Let a hidden chain pick the context that acts on each step.

    `info["context"]` acted on this step, `info["next_context"]` (also at reset) will act on the next. The observation
    holds neither. `reset(seed=)` seeds environment and chain; the same seed gives the same contexts whatever the
    actions (state-dependent chains excepted). `close()` restores the environment's own values.

    Args:
        env: an environment with flat Box observations and actions.
        contexts: at least one context.
        chain: how the context switches; None is the symmetric chain with switch probability 0.2 and
            cool-off 5.

    Raises:
        ConfigError: for an attribute path that does not exist, an empty list, a chain that does not fit, spaces other
            than flat boxes.

    Example:
        >>> env = SwitchingContext(
        ...     gymnasium.make("MountainCarContinuous-v0"),
        ...     contexts=[Context(), Context(action_scale=-1.0), Context(attributes={"power": 0.003})],
        ...     chain=MarkovChain.symmetric(3, switch=0.2, cool_off=5),
        ... )
    """

    def __init__(self, env: gymnasium.Env[Any, Any], contexts: Sequence[Context], chain: Chain | None = None) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, contexts=contexts, chain=chain)
        gymnasium.Wrapper.__init__(self, env)
        self.contexts = tuple(contexts)
        self._check_spaces()
        if not self.contexts:
            raise ConfigError("SwitchingContext needs at least one context, got an empty list")
        self.chain = check_chain(chain_from_config(len(self.contexts), chain), len(self.contexts))
        self._scales = [self._scale(index) for index in range(len(self.contexts))]
        self._own = self._read_own()
        self._walk = ChainWalk(self.chain)
        self._rng = np.random.default_rng()
        self._acting: int | None = None
        self._undo: Callable[[], None] | None = None
        self._strips = ContextStrips(getattr(self.unwrapped, "horizon", None))

    @property
    def num_contexts(self) -> int:
        """Number of contexts."""
        return len(self.contexts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment under its own values, then draw the first acting context."""
        self._release()
        obs, info = self.env.reset(seed=seed, options=options)
        self._own = self._read_own()  # a reset may draw them anew
        if seed is not None:
            self._rng = chain_generator(seed)
        first = int(self._walk.reset(self._rng, _row(obs))[0])
        self._act(first)
        self._strips.clear()
        self._strips.add(first)
        return obs, {**info, "next_context": first}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step under the context drawn before, then draw the next one."""
        if self._acting is None:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        acted = self._acting
        obs, reward, terminated, truncated, info = self.env.step(self._scaled(action, acted))
        following = int(self._walk.step(self._rng, _row(obs))[0])
        if following != acted:
            self._act(following)
        self._strips.add(following)
        return obs, reward, terminated, truncated, {**info, "context": acted, "next_context": following}

    def render(self) -> Any:
        """Return the environment's picture, with the true context (and a belief, where shown) as strips below it."""
        frame: Any = self.env.render()
        is_picture = isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.dtype == np.uint8
        return self._strips.below(frame) if is_picture else frame

    def show_belief(self, belief: ArrayLike) -> None:
        """Show an agent's belief about the context that acts on the coming step, `K`, in the pictures."""
        self._strips.show_belief(belief)

    def close(self) -> None:
        """Restore the environment's own values and close it."""
        self._release()
        self.env.close()

    def as_batch(self, num_envs: int) -> BatchSwitchingEnv:
        """Return a batched twin (numpy) of this C-MDP.

        Raises:
            ConfigError: where the environment has no `physics` (a `BatchPhysics`).
        """
        from mbrl_hdp.envs.batch import BatchSwitchingEnv

        physics = getattr(self.unwrapped, "physics", None)
        if physics is None:
            raise ConfigError(f"{type(self.unwrapped).__name__} has no batched physics; step it one by one")
        return BatchSwitchingEnv(physics, self.contexts, self.chain, num_envs)

    def _act(self, index: int) -> None:
        self._release()
        context = self.contexts[index]
        for path, value in context.attributes.items():
            write_path(self.unwrapped, path, value)
        if context.apply is not None:
            self._undo = context.apply(self.unwrapped)
        self._acting = index

    def _release(self) -> None:
        """Undo the acting context."""
        if self._acting is None:
            return
        if self._undo is not None:
            self._undo()
            self._undo = None
        for path in reversed(list(self.contexts[self._acting].attributes)):
            write_path(self.unwrapped, path, self._own[path])
        self._acting = None

    def _read_own(self) -> dict[str, Any]:
        paths = {path for context in self.contexts for path in context.attributes}
        return {path: read_path(self.unwrapped, path) for path in sorted(paths)}

    def _check_spaces(self) -> None:
        for name, space in (("observation", self.observation_space), ("action", self.action_space)):
            if not isinstance(space, Box) or len(space.shape) != 1:
                raise ConfigError(
                    f"the {name} space of {self.env} is {space}; only flat Box spaces (one axis) are supported: wrap "
                    "the environment first, e.g. with gymnasium.wrappers.FlattenObservation"
                )

    def _scale(self, index: int) -> NDArray[np.float64] | None:
        scale = np.asarray(self.contexts[index].action_scale, dtype=np.float64)
        width = self._action_box.shape[0]
        if scale.shape not in ((), (1,), (width,)) or not np.isfinite(scale).all():
            raise ConfigError(
                f"action_scale of context {index} must be one finite number or {width} of them, got {scale.tolist()}"
            )
        return None if (scale == 1.0).all() else scale

    @property
    def _action_box(self) -> Box:
        space = self.action_space
        assert isinstance(space, Box)  # checked at construction
        return space

    def _scaled(self, action: Any, index: int) -> Any:
        scale = self._scales[index]
        if scale is None:
            return action
        box = self._action_box
        return (np.clip(action, box.low, box.high) * scale).astype(box.dtype)


def contexts_from_config(
    actuation: float | Sequence[float] | Sequence[Sequence[float]] | None,
    contexts: Sequence[Context | Mapping[str, Any]] | None,
    parameters: Sequence[str],
) -> list[Context]:
    """Build the contexts of a task from plain settings, as configuration files give them.

    Args:
        actuation: one context per factor (a number, or one per action dimension); None with `contexts` None is the
            paper's (1, -1).
        contexts: instead of `actuation`: contexts, or mappings of parameter names to values (and an optional `name`).
        parameters: the parameters that a context of this task may set.

    Raises:
        ConfigError: for an unknown parameter, an empty list, or both kinds of setting at once.
    """
    if contexts is not None and actuation is not None:
        raise ConfigError("give either actuation or contexts, not both")
    if contexts is None:
        factors = [1.0, -1.0] if actuation is None else actuation
        listed = [factors] if np.ndim(factors) == 0 else list(factors)  # type: ignore[arg-type]
        if not all(np.isfinite(np.asarray(factor, float)).all() for factor in listed):
            raise ConfigError(f"actuation must be finite numbers, got {listed}")
        contexts = [{"name": f"actuation {factor}", "actuation": factor} for factor in listed]
    if not contexts:
        raise ConfigError("a task needs at least one context: actuation or contexts is an empty list")
    return [_context_from_config(index, item, parameters) for index, item in enumerate(contexts)]


def _context_from_config(index: int, item: Context | Mapping[str, Any], parameters: Sequence[str]) -> Context:
    if isinstance(item, Context):
        return item
    values = dict(item)
    name = values.pop("name", None)
    for parameter in values:
        if parameter not in parameters:
            raise ConfigError(f"contexts[{index}].{parameter} is unknown; {did_you_mean(parameter, parameters)}")
    return Context(name=name, attributes=values)


def chain_generator(seed: int) -> np.random.Generator:
    """Return the generator that the hidden chain of an environment reset with `seed` draws from."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_CHAIN_KEY,)))


def read_path(target: Any, path: str) -> Any:
    """Read an attribute by dotted path.

    Raises:
        ConfigError: naming the first part that does not exist and the nearest attributes.
    """
    value = target
    for depth, part in enumerate(path.split(".")):
        if not part or not hasattr(value, part):
            where = ".".join(path.split(".")[:depth]) or type(target).__name__
            public = [name for name in dir(value) if not name.startswith("_")]
            raise ConfigError(
                f"attribute path {path!r}: {where} has no attribute {part!r}; {did_you_mean(part, public)}. "
                "If it exists only after reset(), reset the environment before wrapping it"
            )
        value = getattr(value, part)
    return value


def write_path(target: Any, path: str, value: Any) -> None:
    """Set an attribute by dotted path.

    Frozen dataclasses, named tuples and dataclasses with derived fields (`init=False`) on the way are rebuilt, so that
    what is derived from the value follows it.
    """
    parent_path, _, name = path.rpartition(".")
    parent = read_path(target, parent_path) if parent_path else target
    if parent_path and _is_rebuilt(parent, name):
        write_path(target, parent_path, _rebuilt(parent, name, value))
    else:
        setattr(parent, name, value)


def _is_rebuilt(parent: Any, name: str) -> bool:
    if isinstance(parent, tuple) and hasattr(parent, "_replace"):
        return True
    if not dataclasses.is_dataclass(parent):
        return False
    fields = {item.name: item for item in dataclasses.fields(parent)}
    is_frozen = type(parent).__dataclass_params__.frozen  # type: ignore[union-attr]
    has_derived = any(not item.init for item in fields.values())
    return is_frozen or (has_derived and name in fields and fields[name].init)


def _rebuilt(parent: Any, name: str, value: Any) -> Any:
    if isinstance(parent, tuple):
        return parent._replace(**{name: value})  # type: ignore[attr-defined]
    try:
        return dataclasses.replace(parent, **{name: value})
    except ValueError as error:  # a derived field of a frozen dataclass
        raise ConfigError(f"{name!r} of {type(parent).__name__} is derived and cannot be set: {error}") from error


def _row(obs: Any) -> NDArray[np.float64]:
    return np.asarray(obs, dtype=np.float64)[None, :]
