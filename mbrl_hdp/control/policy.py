"""Soft actor-critic on the packed vector [obs, belief]: our own implementation, with the paper's settings, and fast.

What stands beside the observation is the belief (C-SAC), the one-hot truth (FI-SAC) or nothing (NI-SAC, width 0).
`ContextSac` has the methods of mbrl-lib's SAC, so mbrl-lib's `SACAgent` and algorithms take it, but no code of it:
mbrl-lib's own SAC is `agent=mbrl_sac`. Nothing here cuts the bootstrap where an episode is merely truncated.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.features import ObsFeatures
from mbrl_hdp.control.networks import squashed_draw
from mbrl_hdp.control.replay import BeliefReplay, PackedBatch
from mbrl_hdp.control.sac_config import FAST_SAC, PAPER_SAC, SacConfig
from mbrl_hdp.control.sac_learner import LOG_STD_BOUNDS, SacLearner
from mbrl_hdp.data.tensor_files import read_tensors, write_tensors
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.settings import check_settings

__all__ = ["FAST_SAC", "PAPER_SAC", "ContextSac", "SacConfig"]

_UPDATES_AT_ONCE = 50
"""Minibatches that are gathered together; it bounds the memory of a long call of `update`."""
_ROWS_OF_A_SCALE = 10_000
"""Transitions that units of the observations are measured on at first."""
_LATEST_ROWS = 2000
"""Latest observations that the magnified copy follows."""


class ContextSac(SacLearner):
    """SAC on packed [obs, belief], with the paper's settings and a fast update.

    `update(replay, num_updates)` is the fast way to learn; `update_parameters` is mbrl-lib's own signature, for its
    algorithms. All randomness comes from one generator, `state_dict` holds everything that a resumed run needs.

    Args:
        codec: how observation and belief lie in the packed vector; a width of 0 is an agent without a belief.
        action_space: a bounded Box.
        config: settings.
        seed: seed of the weights and of every later draw.
        total_updates: updates of the whole run, for `linear_decay`.
        device: where tensors live.

    Example:
        >>> sac = ContextSac(BeliefCodec(4, 10), env.action_space, PAPER_SAC["cartpole_hard"], total_updates=101_000)
        >>> agent = mbrl.planning.sac_wrapper.SACAgent(sac)
        >>> sac.update(replay, 200)
    """

    def __init__(
        self,
        codec: BeliefCodec,
        action_space: Any,
        config: SacConfig,
        seed: int = 0,
        total_updates: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        low, high = (torch.as_tensor(np.asarray(bound), dtype=torch.float32) for bound in _bounds(action_space))
        _check(config, codec.obs_dim, total_updates)
        place = torch.device(device)
        self.codec, self.action_space = codec, action_space
        self._act_scale, self._act_middle = ((high - low) / 2).to(place), ((high + low) / 2).to(place)
        self.obs_features = ObsFeatures(codec.obs_dim, config, place)
        super().__init__(
            self.obs_features.width + codec.max_contexts,
            len(low),
            config,
            float(self._act_scale.log().sum()),
            seed,
            total_updates,
            place,
        )

    # Acting -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def select_action(
        self, state: Any, batched: bool = False, evaluate: bool = False
    ) -> Float[np.ndarray, " A"] | Float[np.ndarray, "B A"]:
        """Act on packed vectors: draw from the policy, or take its mean with `evaluate` (mbrl-lib's signature)."""
        packed = torch.as_tensor(np.asarray(state), dtype=torch.float32).to(self.device)
        network = self.calm_policy if evaluate else self.policy
        outputs = network.run(self._with_ones(self.features(packed if batched else packed[None])))[-1][0]
        if evaluate:
            act = outputs[: self.act_dim].tanh()
        else:
            noise = torch.randn(self.act_dim, outputs.shape[1], generator=self.generator, device=self.device)
            act = squashed_draw(outputs, noise, LOG_STD_BOUNDS).act
        acts = (act.mT * self._act_scale + self._act_middle).cpu().numpy()
        return acts if batched else acts[0]

    def features(self, packed: Float[Tensor, "B packed"]) -> Float[Tensor, "B state"]:
        """Return what the networks see of a packed vector: features of obs, then the belief."""
        obs, belief = self.codec.unpack(packed)
        return torch.cat([self.obs_features(obs), belief], -1)

    def _with_ones(self, state: Float[Tensor, "B state"]) -> Float[Tensor, "rows B"]:
        return torch.cat([state, torch.ones_like(state[:, :1])], 1).mT

    # Learning ---------------------------------------------------------------------------------------------------

    def update(self, replay: BeliefReplay, num_updates: int) -> dict[str, float]:
        """Take gradient steps on minibatches from the replay buffer; return what the last of them measured.

        Raises:
            FitError: if the networks have diverged.
        """
        metrics: dict[str, float] = {}
        if num_updates and not self.num_updates and self._has_units:
            self._measure(replay.draw(_ROWS_OF_A_SCALE, self.generator).obs)
        elif num_updates and self.config.magnify_obs:
            latest, _ = self.codec.unpack(replay.latest(_LATEST_ROWS).to(self.device))
            self.obs_features.follow(latest, self.lr_factor)  # as fast as the networks learn
        with torch.inference_mode():
            for start in range(0, num_updates, _UPDATES_AT_ONCE):
                count = min(_UPDATES_AT_ONCE, num_updates - start)
                metrics = self._learn_from(replay.draw(count * self.config.batch_size, self.generator), count)
        return metrics

    def update_parameters(
        self, memory: Any, batch_size: int, updates: int, logger: Any = None, reverse_mask: bool = False
    ) -> tuple[float, float, float, float, float]:
        """Take one step on a minibatch of mbrl-lib's replay buffer; its signature and its five numbers.

        Args:
            memory: has `sample(batch_size)`, which returns a `TransitionBatch` of packed observations.
            batch_size: transitions of the minibatch.
            updates: ignored but for the logger: the number of updates is part of this object's state.
            logger: mbrl-lib's logger, or None.
            reverse_mask: True if the batch marks the transitions that terminate, False if it marks the others.
        """
        obs, act, next_obs, reward, mask, _ = memory.sample(batch_size).astuple()
        parts = [torch.as_tensor(np.asarray(part), dtype=torch.float32) for part in (obs, act, reward, next_obs)]
        ended = torch.as_tensor(np.asarray(mask)).bool()
        parts.append(ended if reverse_mask else ~ended)
        if not self.num_updates and self._has_units:
            self._measure(parts[0].to(self.device))
        with torch.inference_mode():
            metrics = self._learn_from(PackedBatch(*(part.to(self.device) for part in parts)), 1)
        if logger is not None:
            _log(logger, metrics, float(np.mean(reward)), self.target_entropy, updates)
        names = ("value_loss_1", "value_loss_2", "policy_loss", "temperature_loss", "temperature")
        first, second, policy, temperature_loss, temperature = (metrics[name] for name in names)
        return first, second, policy, temperature_loss, temperature

    def _learn_from(self, batch: PackedBatch, count: int) -> dict[str, float]:
        """Split a big batch into `count` minibatches, lay out the critics' inputs and step on each."""
        size = len(batch.reward) // count
        inputs = batch.obs.new_empty(count, 2, self._act_rows.stop, size)
        for place, packed in enumerate((batch.obs, batch.next_obs)):
            inputs[:, place, : self._state_rows.stop - 1] = self.features(packed).view(count, size, -1).mT
        inputs[:, :, self._state_rows.stop - 1] = 1.0
        act = (batch.act - self._act_middle) / self._act_scale
        inputs[:, 0, self._act_rows] = act.view(count, size, -1).mT
        discount = self.config.discount * (~batch.terminated).to(batch.reward.dtype)
        return self.learn(inputs, batch.reward.view(count, size), discount.view(count, size))

    @property
    def _has_units(self) -> bool:
        return self.config.standardise_obs or self.config.magnify_obs

    def _measure(self, packed: Float[Tensor, "B packed"]) -> None:
        self.obs_features.measure(self.codec.unpack(packed)[0])

    # After training, and between runs ---------------------------------------------------------------------------

    def drop_contexts(self, kept: Bool[np.ndarray, " K"] | Bool[Tensor, " K"]) -> ContextSac:
        """Return the same agent without the inputs of spurious contexts, whose belief is always zero.

        It acts the same on vectors packed without them, and can learn on: optimisers come along.
        """
        keep = torch.as_tensor(np.asarray(kept), dtype=torch.bool)
        if keep.shape != (self.codec.max_contexts,) or not bool(keep.any()):
            raise ConfigError(f"kept must mark at least one of {self.codec.max_contexts} contexts, got {keep.tolist()}")
        codec = BeliefCodec(self.codec.obs_dim, int(keep.sum()))
        small = ContextSac(codec, self.action_space, self.config, total_updates=self.total_updates, device=self.device)
        rows = torch.ones(self._act_rows.stop, dtype=torch.bool)
        rows[self.obs_features.width : self.obs_features.width + len(keep)] = keep
        state, rows = self.state_dict(), rows.to(self.device)
        for name in {"policy", "calm_policy", "policy_optim.mean", "policy_optim.square"} & state.keys():
            state[name] = self.policy.select_rows(state[name], rows[self._state_rows])
        for name in ("critic", "critic_target", "critic_optim.mean", "critic_optim.square"):
            state[name] = self.critic.select_rows(state[name], rows)
        small.load_state_dict(state)
        return small

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that a resumed run needs, as tensors (copies): safetensors can write it as it is."""
        return super().state_dict() | self.obs_features.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            CheckpointError: if the state belongs to networks of another size or other units, or parts are missing.
        """
        self.obs_features.check_state(state)
        super().load_state_dict(state)
        self.obs_features.load_state_dict(state)

    def save_checkpoint(
        self, env_name: str | None = None, suffix: str = "", ckpt_path: str | Path | None = None
    ) -> None:
        """Write `state_dict` to a safetensors file (mbrl-lib's signature)."""
        path = Path("checkpoints") / f"sac_checkpoint_{env_name}_{suffix}" if ckpt_path is None else Path(ckpt_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, self.state_dict(), {})

    def load_checkpoint(self, ckpt_path: str | Path, evaluate: bool = False) -> None:  # noqa: ARG002
        """Read what `save_checkpoint` wrote (mbrl-lib's signature); the file cannot run code."""
        self.load_state_dict(read_tensors(Path(ckpt_path))[0])


def _check(config: SacConfig, obs_dim: int, total_updates: int | None) -> None:
    check_settings(config, "agent")
    if not config.hidden_sizes:
        raise ConfigError("agent.hidden_sizes must name at least one hidden layer")
    for column in config.angle_columns:
        if column >= obs_dim or config.angle_columns.count(column) > 1:
            raise ConfigError(f"agent.angle_columns must be different columns below {obs_dim}, got {column}")
    if config.linear_decay and total_updates is None:
        raise ConfigError("agent.linear_decay needs the number of updates of the run: pass total_updates, or false")


def _bounds(action_space: Any) -> tuple[Any, Any]:
    low, high = np.asarray(action_space.low), np.asarray(action_space.high)
    if low.ndim != 1 or not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ConfigError(f"SAC needs a flat Box of bounded actions, got {action_space}")
    return low, high


def _log(logger: Any, metrics: Mapping[str, float], reward: float, target_entropy: float, updates: int) -> None:
    """Log under mbrl-lib's names."""
    logger.log("train/batch_reward", reward, updates)
    logger.log("train_critic/loss", metrics["value_loss_1"] + metrics["value_loss_2"], updates)
    logger.log("train_actor/loss", metrics["policy_loss"], updates)
    logger.log("train_actor/target_entropy", target_entropy, updates)
    logger.log("train_actor/entropy", metrics["entropy"], updates)
    logger.log("train_alpha/loss", metrics["temperature_loss"], updates)
    logger.log("train_alpha/value", metrics["temperature"], updates)
