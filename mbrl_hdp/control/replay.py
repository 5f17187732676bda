"""Episodes for policy learning, packed with beliefs that are recomputed after every update of the model.

Every observation is stored once: an episode of L transitions is L+1 rows, and a transition is a row and the next one.
So relabelling (Algorithm 1: "recompute the beliefs using the model") writes each belief once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from mbrl.types import TransitionBatch
from torch import Tensor

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.data.trajectories import Episode, Trajectories
from mbrl_hdp.errors import CheckpointError, DataError
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.seeding import torch_generator


class PackedBatch(NamedTuple):
    """Transitions of packed observations."""

    obs: Float[Tensor, "B packed"]
    act: Float[Tensor, "B A"]
    reward: Float[Tensor, " B"]
    next_obs: Float[Tensor, "B packed"]
    terminated: Bool[Tensor, " B"]


def model_beliefs(model: ContextModel, data: Trajectories) -> Float[np.ndarray, "N T1 K"]:
    """Return the model's predictive belief at every observation, width max_contexts; NaN beyond an episode's end.

    Entry 0 is `initial`, entry t+1 the filtered belief of step t moved one step along the chain (Theorem 2 a): what an
    online filter of this model would have packed. Spurious contexts are exactly zero (Algorithm 2, policy form).
    """
    following = model.analyse(data).following
    first = np.broadcast_to(model.initial, (len(following), 1, model.num_contexts))
    beliefs = np.zeros((data.num_episodes, data.max_steps + 1, model.task.max_contexts))
    beliefs[..., model.kept] = np.concatenate([first, following], 1)
    beliefs[np.arange(data.max_steps + 1) > data.lengths[:, None]] = np.nan
    return beliefs


class BeliefReplay:
    """A replay buffer of whole episodes on packed observations, whose beliefs can be computed anew.

    Observations are kept in float32, the precision in which models filter them.

    Args:
        codec: how observation and belief lie in the packed vector; width 0 for agents without a belief.
        act_dim: width of an action.
        max_episodes: the oldest episodes go when there are more; None keeps all.
        seed: seed of `sample`, mbrl-lib's interface; `draw` takes a generator.

    Example:
        >>> replay = BeliefReplay(BeliefCodec(4, 10), act_dim=1)
        >>> replay.extend(data, model_beliefs(model, data))
        >>> replay.relabel(lambda data: model_beliefs(model, data))   # after an update of the model
        >>> sac.update(replay, 200)
    """

    def __init__(self, codec: BeliefCodec, act_dim: int, max_episodes: int | None = None, seed: int = 0) -> None:
        if max_episodes is not None and max_episodes < 1:
            raise DataError(f"max_episodes must be at least 1, got {max_episodes}")
        self.codec, self.act_dim, self.max_episodes = codec, act_dim, max_episodes
        self._generator = torch_generator(seed, "replay")
        # One row per observation; the last row of an episode has no action, reward or ending of its own.
        self._packed = torch.zeros(0, codec.width)
        self._act = torch.zeros(0, act_dim)
        self._reward = torch.zeros(0)
        self._terminated = torch.zeros(0, dtype=torch.bool)
        self._lengths = torch.zeros(0, dtype=torch.long)
        self._starts = torch.zeros(0, dtype=torch.long)

    @property
    def num_episodes(self) -> int:
        """Number of stored episodes."""
        return len(self._lengths)

    def __len__(self) -> int:
        """Return the number of stored transitions."""
        return len(self._starts)

    @property
    def trajectories(self) -> Trajectories:
        """All stored episodes, without contexts and beliefs."""
        self._check_filled()
        obs, _ = self.codec.unpack(self._packed)
        arrays = [self._padded(part) for part in (obs, self._act, self._reward, self._terminated)]
        return Trajectories(
            arrays[0],
            arrays[1][:, :-1],
            lengths=self._lengths.numpy(),
            reward=arrays[2][:, :-1],
            terminated=arrays[3][:, :-1],
        )

    def _padded(self, rows: Tensor) -> np.ndarray:
        padded = rows.new_zeros(*self._is_obs().shape, *rows.shape[1:])
        padded[self._is_obs()] = rows
        return padded.numpy()

    def _is_obs(self) -> Bool[Tensor, "N T1"]:
        return torch.arange(int(self._lengths.max()) + 1) <= self._lengths[:, None]

    # Filling ----------------------------------------------------------------------------------------------------

    def add(self, episode: Episode, belief: Float[np.ndarray, "L1 K"] | None = None) -> None:
        """Store one episode with the belief at each of its observations, the last one included.

        Args:
            episode: must have rewards; an ending that is unknown counts as none.
            belief: None only if the belief has width 0, or to fill it in later by `relabel` (it is uniform till then).
        """
        self.extend(Trajectories.from_episodes([episode]), None if belief is None else belief[None])

    def extend(self, data: Trajectories, beliefs: Float[np.ndarray, "N T1 K"] | None = None) -> None:
        """Store many episodes with their beliefs; see `add`."""
        if (data.obs_dim, data.act_dim) != (self.codec.obs_dim, self.act_dim):
            raise DataError(
                f"the replay buffer holds {self.codec.obs_dim} observations and {self.act_dim} actions a step, "
                f"these episodes have {data.obs_dim} and {data.act_dim}"
            )
        if data.reward is None or not np.isfinite(data.obs).all():
            raise DataError("policy learning needs episodes with rewards and without missing samples")
        is_obs = np.arange(data.max_steps + 1) <= data.lengths[:, None]
        wide = np.full((*is_obs.shape, self.codec.max_contexts), 1.0 / max(self.codec.max_contexts, 1))
        packed = self.codec.pack(data.obs, wide if beliefs is None else self._checked(beliefs, is_obs))
        ended = np.zeros_like(data.is_step) if data.terminated is None else data.terminated
        self._packed = torch.cat([self._packed, torch.as_tensor(packed[is_obs], dtype=torch.float32)])
        self._act = torch.cat([self._act, _rows(data.act, is_obs).float()])
        self._reward = torch.cat([self._reward, _rows(data.reward, is_obs).float()])
        self._terminated = torch.cat([self._terminated, _rows(ended, is_obs)])
        self._lengths = torch.cat([self._lengths, torch.as_tensor(data.lengths, dtype=torch.long)])
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        excess = 0 if self.max_episodes is None else max(0, self.num_episodes - self.max_episodes)
        gone = int((self._lengths[:excess] + 1).sum())
        if gone:
            self._packed, self._act = self._packed[gone:].clone(), self._act[gone:].clone()
            self._reward, self._terminated = self._reward[gone:].clone(), self._terminated[gone:].clone()
            self._lengths = self._lengths[excess:].clone()
        self._index()

    def _index(self) -> None:
        """Find the rows at which a transition starts: all but the last of every episode."""
        is_start = torch.ones(len(self._packed), dtype=torch.bool)
        is_start[(self._lengths + 1).cumsum(0) - 1] = False
        self._starts = is_start.nonzero().squeeze(-1)

    def relabel(self, beliefs_of: Callable[[Trajectories], Float[np.ndarray, "N T1 K"]]) -> None:
        """Compute the beliefs of all stored episodes anew, e.g. by `model_beliefs` after an update of the model."""
        is_obs = self._is_obs().numpy() if self.num_episodes else np.zeros((0, 0), bool)
        beliefs = self._checked(beliefs_of(self.trajectories), is_obs)
        obs, _ = self.codec.unpack(self._packed)
        self._packed = self.codec.pack_tensors(obs, torch.as_tensor(beliefs[is_obs], dtype=torch.float32))

    def _checked(
        self, beliefs: Float[np.ndarray, "_ _ _"], is_obs: Bool[np.ndarray, "N T1"]
    ) -> Float[np.ndarray, "N T1 K"]:
        wanted = (*is_obs.shape, self.codec.max_contexts)
        if beliefs.shape != wanted:
            raise DataError(f"beliefs must have shape {list(wanted)} (one per observation), got {list(beliefs.shape)}")
        if not np.isfinite(beliefs[is_obs]).all():
            raise DataError("beliefs must be finite numbers; the model may not be able to filter these episodes")
        return beliefs

    # Drawing ----------------------------------------------------------------------------------------------------

    def draw(self, num: int, generator: torch.Generator) -> PackedBatch:
        """Draw transitions with replacement, as tensors on the generator's device; all are equally likely."""
        self._check_filled()
        chosen = torch.randint(len(self), (num,), generator=generator, device=generator.device)
        return PackedBatch(*(part.to(generator.device) for part in self._at(chosen.cpu())))

    def sample(self, batch_size: int) -> TransitionBatch:
        """Draw a batch for mbrl-lib's algorithms, as arrays; `terminateds` are true endings, truncation is none."""
        obs, act, reward, next_obs, terminated = (part.numpy() for part in self.draw(batch_size, self._generator))
        return TransitionBatch(obs, act, next_obs, reward, terminated, np.zeros_like(terminated))

    def latest(self, num: int) -> Float[Tensor, "B packed"]:
        """Return the packed observations that were stored last, at most so many."""
        return self._packed[-num:]

    def get_all(self) -> PackedBatch:
        """Return every stored transition, in order."""
        return self._at(torch.arange(len(self)))

    def _at(self, chosen: Int[Tensor, " B"]) -> PackedBatch:
        rows = self._starts[chosen]
        return PackedBatch(
            self._packed[rows], self._act[rows], self._reward[rows], self._packed[rows + 1], self._terminated[rows]
        )

    def _check_filled(self) -> None:
        if not len(self):
            raise DataError("the replay buffer is empty: add an episode first")

    # Between runs -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that a resumed run needs, as tensors; safetensors can write it as it is."""
        state = {name: getattr(self, f"_{name}").clone() for name in _STORED}
        return {**state, "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            CheckpointError: if parts are missing or of other widths.
        """
        missing = [name for name in (*_STORED, "generator") if name not in state]
        if missing:
            raise CheckpointError(f"the replay buffer's state has no {missing[0]!r}: it was written by another version")
        widths = state["packed"].shape[-1], state["act"].shape[-1]
        if widths != (self.codec.width, self.act_dim):
            raise CheckpointError(
                f"the stored replay buffer holds packed observations and actions of widths {widths}, "
                f"this one {(self.codec.width, self.act_dim)}"
            )
        for name in _STORED:
            setattr(self, f"_{name}", state[name].clone())
        self._generator.set_state(state["generator"])
        self._index()


_STORED = ("packed", "act", "reward", "terminated", "lengths")


def _rows(values: np.ndarray, is_obs: Bool[np.ndarray, "N T1"]) -> Tensor:
    """Flatten `N T ...` values to one row per observation; the last one of every episode is padding."""
    padded = np.concatenate([values, np.zeros_like(values[:, :1])], 1)
    return torch.as_tensor(padded[is_obs])
