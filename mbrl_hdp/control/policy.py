"""Soft actor-critic on the packed vector [obs, belief]: mbrl-lib's SAC with the paper's settings, and fast.

One slot, three fillings: the belief (C-SAC), the one-hot truth (FI-SAC) or nothing (NI-SAC, width 0). mbrl-lib's
`SACAgent` wraps a `ContextSac` unchanged. Nothing here cuts the bootstrap where an episode is merely truncated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float
from mbrl.third_party.pytorch_sac_pranz24 import SAC
from torch import Tensor

from mbrl_hdp.belief.codec import BeliefCodec
from mbrl_hdp.control.networks import FlatAdam, LastUpdate, SquashedDraw, StackedMlp, squashed_draw, squashed_grad
from mbrl_hdp.control.replay import PackedBatch
from mbrl_hdp.control.sac_config import PAPER_SAC, SacConfig
from mbrl_hdp.errors import CheckpointError, ConfigError, FitError
from mbrl_hdp.seeding import torch_generator
from mbrl_hdp.settings import check_settings

__all__ = ["PAPER_SAC", "ContextSac", "PackedReplay", "SacConfig"]

_LOG_STD_BOUNDS = (-20.0, 2.0)
_UPDATES_AT_ONCE = 50
"""Minibatches that are gathered together; it bounds the memory of a long call of `update`."""


@runtime_checkable
class PackedReplay(Protocol):
    """What `ContextSac.update` draws minibatches from (`BeliefReplay`)."""

    def draw(self, num: int, generator: torch.Generator) -> PackedBatch:
        """Draw transitions with replacement, as tensors."""
        ...


class ContextSac(SAC):
    """mbrl-lib's SAC on packed [obs, belief], with the paper's settings and a fast update.

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
        >>> agent = mbrl.planning.SACAgent(sac)
        >>> sac.update(replay, 200)
    """

    # mbrl-lib's own constructor builds two-layer networks from a bag of arguments; none of it is of use here.
    def __init__(
        self,
        codec: BeliefCodec,
        action_space: Any,
        config: SacConfig,
        seed: int = 0,
        total_updates: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        _check(config, codec.obs_dim, action_space, total_updates)
        self.codec, self.action_space, self.config, self.total_updates = codec, action_space, config, total_updates
        self.args = config
        self.device = torch.device(device)
        self.gamma, self.tau, self.target_update_interval = config.discount, config.tau, config.target_update_interval
        self.policy_type, self.automatic_entropy_tuning = "Gaussian", config.adapt_temperature
        low, high = (torch.as_tensor(np.asarray(bound), dtype=torch.float32) for bound in _bounds(action_space))
        self._act_scale, self._act_middle = ((high - low) / 2).to(self.device), ((high + low) / 2).to(self.device)
        self._log_volume = float(self._act_scale.log().sum())
        self.act_dim = len(low)
        self.target_entropy = -float(self.act_dim) if config.target_entropy is None else config.target_entropy
        self._plain = [column for column in range(codec.obs_dim) if column not in config.angle_columns]
        self.generator = torch_generator(seed, "sac", device=self.device)
        self.num_updates = 0
        self.is_compiled = self.device.type == "cpu" and len(config.hidden_sizes) == 1
        self._build_networks(torch_generator(seed, "sac_weights"))

    def _build_networks(self, generator: torch.Generator) -> None:
        """Build the networks; their input rows are the observation's features, the belief, ones and the action."""
        num_state = self.codec.obs_dim + len(self.config.angle_columns) + self.codec.max_contexts
        self._state_rows, self._act_rows = slice(0, num_state + 1), slice(num_state + 1, num_state + 1 + self.act_dim)
        sizes = list(self.config.hidden_sizes)
        self.policy = StackedMlp(1, num_state + 1, num_state, sizes, 2 * self.act_dim)
        self.critic = StackedMlp(2, num_state + 1 + self.act_dim, num_state, sizes, 1)
        self.critic_target = StackedMlp(2, num_state + 1 + self.act_dim, num_state, sizes, 1)
        self.policy.initialise(generator)
        self.critic.initialise(generator)
        self.critic_target.load_flat(self.critic.flat.detach())
        self.log_alpha = torch.tensor([math.log(self.config.initial_temperature)], device=self.device)
        for network in (self.policy, self.critic, self.critic_target):
            network.to(self.device)
        self._build_optimisers()

    def _build_optimisers(self) -> None:
        config = self.config
        self.policy_optim = FlatAdam(self.policy.flat.detach(), config.policy_lr, config.weight_decay)
        self.critic_optim = FlatAdam(self.critic.flat.detach(), config.value_lr, config.weight_decay)
        self.alpha_optim = FlatAdam(self.log_alpha, config.temperature_lr)

    @property
    def alpha(self) -> Float[Tensor, " 1"]:
        """The temperature."""
        return self.log_alpha.exp()

    @property
    def lr_factor(self) -> float:
        """What is left of the learning rates."""
        if not self.config.linear_decay or self.total_updates is None:
            return 1.0
        return max(0.0, 1.0 - self.num_updates / self.total_updates)

    # Acting -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def select_action(
        self, state: Any, batched: bool = False, evaluate: bool = False
    ) -> Float[np.ndarray, " A"] | Float[np.ndarray, "B A"]:
        """Act on packed vectors: draw from the policy, or take its mean with `evaluate` (mbrl-lib's signature)."""
        packed = torch.as_tensor(np.asarray(state), dtype=torch.float32).to(self.device)
        outputs = self.policy.run(self._with_ones(self.features(packed if batched else packed[None])))[-1][0]
        if evaluate:
            act = outputs[: self.act_dim].tanh()
        else:
            noise = torch.randn(self.act_dim, outputs.shape[1], generator=self.generator, device=self.device)
            act = squashed_draw(outputs, noise, _LOG_STD_BOUNDS).act
        acts = (act.mT * self._act_scale + self._act_middle).cpu().numpy()
        return acts if batched else acts[0]

    def features(self, packed: Float[Tensor, "B packed"]) -> Float[Tensor, "B state"]:
        """Give what the networks see of a packed vector: obs with sine and cosine for angles, then the belief."""
        obs, belief = self.codec.unpack_tensors(packed)
        angles = self.config.angle_columns
        if not angles:
            return torch.cat([obs, belief], -1)
        turned = obs[:, angles]
        return torch.cat([obs[:, self._plain], turned.sin(), turned.cos(), belief], -1)

    def _with_ones(self, state: Float[Tensor, "B state"]) -> Float[Tensor, "rows B"]:
        return torch.cat([state, torch.ones_like(state[:, :1])], 1).mT

    # Learning ---------------------------------------------------------------------------------------------------

    def update(self, replay: PackedReplay, num_updates: int) -> dict[str, float]:
        """Take gradient steps on minibatches from the replay buffer; give what the last of them measured.

        Raises:
            FitError: if the networks have diverged.
        """
        metrics: dict[str, float] = {}
        with torch.inference_mode():
            for start in range(0, num_updates, _UPDATES_AT_ONCE):
                count = min(_UPDATES_AT_ONCE, num_updates - start)
                batch = replay.draw(count * self.config.batch_size, self.generator)
                metrics = self._update_many(batch, count)
        return metrics

    def update_parameters(
        self, memory: Any, batch_size: int, updates: int, logger: Any = None, reverse_mask: bool = False
    ) -> tuple[float, float, float, float, float]:
        """Take one step on a minibatch of mbrl-lib's replay buffer; its signature and its five numbers.

        Args:
            memory: has `sample(batch_size)`, which gives a `TransitionBatch` of packed observations.
            batch_size: transitions of the minibatch.
            updates: ignored but for the logger: the number of updates is part of this object's state.
            logger: mbrl-lib's logger, or None.
            reverse_mask: True if the batch tells which transitions terminate, False if it tells which do not.
        """
        obs, act, next_obs, reward, mask, _ = memory.sample(batch_size).astuple()
        parts = [torch.as_tensor(np.asarray(part), dtype=torch.float32) for part in (obs, act, reward, next_obs)]
        ended = torch.as_tensor(np.asarray(mask)).bool()
        parts.append(ended if reverse_mask else ~ended)
        with torch.inference_mode():
            metrics = self._update_many(PackedBatch(*(part.to(self.device) for part in parts)), 1)
        if logger is not None:
            _log(logger, metrics, float(np.mean(reward)), self.target_entropy, updates)
        names = ("value_loss_1", "value_loss_2", "policy_loss", "temperature_loss", "temperature")
        first, second, policy, temperature_loss, temperature = (metrics[name] for name in names)
        return first, second, policy, temperature_loss, temperature

    def _update_many(self, batch: PackedBatch, count: int) -> dict[str, float]:
        """Split a big batch into `count` minibatches and step on each."""
        size = len(batch.reward) // count
        inputs = self._network_inputs(batch, count)
        reward = batch.reward.view(count, size)
        discount = (self.gamma * (~batch.terminated).to(reward.dtype)).view(count, size)
        noise = torch.randn(count, 2, self.act_dim, size, generator=self.generator, device=self.device)
        if self.is_compiled:
            return self._metrics(self._update_compiled(inputs, reward, discount, noise))
        for step in range(count):
            last = self._update_once(inputs[step], reward[step], discount[step], noise[step])
        return self._metrics(last)

    def _network_inputs(self, batch: PackedBatch, count: int) -> Float[Tensor, "count 2 rows B"]:
        """Lay out the critics' inputs of every minibatch, for obs and for next_obs (whose actions are still open)."""
        size = len(batch.reward) // count
        inputs = batch.obs.new_empty(count, 2, self._act_rows.stop, size)
        for place, packed in enumerate((batch.obs, batch.next_obs)):
            inputs[:, place, : self._state_rows.stop - 1] = self.features(packed).view(count, size, -1).mT
        inputs[:, :, self._state_rows.stop - 1] = 1.0
        act = (batch.act - self._act_middle) / self._act_scale
        inputs[:, 0, self._act_rows] = act.view(count, size, -1).mT
        return inputs

    def _update_once(
        self,
        inputs: Float[Tensor, "2 rows B"],
        reward: Float[Tensor, " B"],
        discount: Float[Tensor, " B"],
        noise: Float[Tensor, "2 A B"],
    ) -> LastUpdate:
        """One step of critics, policy and temperature, in mbrl-lib's order; overwrites the actions in `inputs`."""
        size, factor, alpha = len(reward), self.lr_factor, self.alpha
        here, after = inputs
        next_draw, _ = self._draw(after, noise[1])
        after[self._act_rows] = next_draw.act
        next_value = self.critic_target.run(after)[-1].amin(0)[0] - alpha * next_draw.log_prob
        target = torch.addcmul(reward, discount, next_value)

        hidden = self.critic.run(here)
        error = hidden[-1] - target
        self.critic_optim.step(self.critic.parameter_grad(here, hidden, error * (2.0 / size)), factor)

        draw, policy_hidden = self._draw(here, noise[0])
        here[self._act_rows] = draw.act
        hidden = self.critic.run(here)
        values = hidden[-1]
        is_smaller = torch.stack([values[0] <= values[1], values[0] > values[1]])
        act_grad = self.critic.input_grad(hidden, is_smaller * (-1.0 / size), self._act_rows)
        output_grad = squashed_grad(draw, act_grad, alpha / size)
        state = here[self._state_rows]
        self.policy_optim.step(self.policy.parameter_grad(state, policy_hidden, output_grad[None]), factor)

        excess = draw.log_prob.mean().add_(self.target_entropy)
        if self.config.adapt_temperature:
            self.alpha_optim.step(-excess[None], factor)
        self.num_updates += 1
        if self.num_updates % self.target_update_interval == 0:
            self.critic_target.flat.lerp_(self.critic.flat, self.tau)
        return LastUpdate(error[:, 0], values[:, 0], draw.log_prob, alpha.log(), excess)

    def _update_compiled(
        self,
        inputs: Float[Tensor, "count 2 rows B"],
        reward: Float[Tensor, "count B"],
        discount: Float[Tensor, "count B"],
        noise: Float[Tensor, "count 2 A B"],
    ) -> LastUpdate:
        """`_update_once` for every minibatch, in compiled loops."""
        from mbrl_hdp.control import sac_kernels

        config, count = self.config, len(reward)
        total = self.total_updates if config.linear_decay else None
        steps = np.arange(self.num_updates, self.num_updates + count)
        factors = np.ones(count) if total is None else np.maximum(0.0, 1.0 - steps / total)
        settings = sac_kernels.Settings(
            weight_decay=config.weight_decay,
            tau=self.tau,
            target_update_interval=self.target_update_interval,
            target_entropy=self.target_entropy,
            temperature_lr=config.temperature_lr if config.adapt_temperature else 0.0,
            log_volume=self._log_volume,
            min_log_std=_LOG_STD_BOUNDS[0],
            max_log_std=_LOG_STD_BOUNDS[1],
            first_step=self.num_updates,
        )
        optim = self.alpha_optim
        temperature = torch.stack([self.log_alpha, optim.mean, optim.square])
        last = sac_kernels.step_all(
            (inputs, reward, discount, noise),
            factors,
            ((self.policy, self.policy_optim), (self.critic, self.critic_optim)),
            self.critic_target,
            temperature,
            settings,
        )
        for values, found in zip((self.log_alpha, optim.mean, optim.square), temperature, strict=True):
            values.copy_(found)
        self.num_updates += count
        for counted in (self.policy_optim, self.critic_optim, *([optim] if config.adapt_temperature else [])):
            counted.num_steps += count
        return last

    def _draw(
        self, inputs: Float[Tensor, "rows B"], noise: Float[Tensor, "A B"]
    ) -> tuple[SquashedDraw, list[Float[Tensor, "1 _ B"]]]:
        hidden = self.policy.run(inputs[self._state_rows])
        draw = squashed_draw(hidden[-1][0], noise, _LOG_STD_BOUNDS)
        return draw._replace(log_prob=draw.log_prob.sub_(self._log_volume)), hidden

    def _metrics(self, last: LastUpdate) -> dict[str, float]:
        squares = last.error.square().mean(1)
        policy_loss = (last.log_alpha.exp() * last.log_prob - last.values.amin(0)).mean()
        metrics = {
            "value_loss_1": float(squares[0]),
            "value_loss_2": float(squares[1]),
            "policy_loss": float(policy_loss),
            "temperature_loss": float(-last.log_alpha * last.excess),
            "temperature": float(self.alpha),
            "entropy": -float(last.log_prob.mean()),
            "value": float(last.values.mean()),
        }
        if not all(math.isfinite(value) for value in metrics.values()):
            raise FitError(
                f"SAC diverged after {self.num_updates} updates (value loss {metrics['value_loss_1']}): "
                "lower value_lr and policy_lr, or raise weight_decay"
            )
        return metrics

    # After training, and between runs ---------------------------------------------------------------------------

    def drop_contexts(self, kept: Bool[np.ndarray, " K"] | Bool[Tensor, " K"]) -> ContextSac:
        """Give the same agent without the inputs of spurious contexts, whose belief is always zero.

        It acts the same on vectors packed without them, and can learn on: optimisers come along.
        """
        keep = torch.as_tensor(np.asarray(kept), dtype=torch.bool)
        if keep.shape != (self.codec.max_contexts,) or not bool(keep.any()):
            raise ConfigError(f"kept must mark at least one of {self.codec.max_contexts} contexts, got {keep.tolist()}")
        small = ContextSac(
            BeliefCodec(self.codec.obs_dim, int(keep.sum())),
            self.action_space,
            self.config,
            total_updates=self.total_updates,
            device=self.device,
        )
        num_features = self.codec.obs_dim + len(self.config.angle_columns)
        state_keep = torch.cat([torch.ones(num_features, dtype=torch.bool), keep, torch.ones(1, dtype=torch.bool)])
        rows = {"policy": state_keep, "critic": torch.cat([state_keep, torch.ones(self.act_dim, dtype=torch.bool)])}
        state = self.state_dict()
        for name in ("policy", "policy_optim.mean", "policy_optim.square"):
            state[name] = self.policy.select_rows(state[name], rows["policy"].to(self.device))
        for name in ("critic", "critic_target", "critic_optim.mean", "critic_optim.square"):
            state[name] = self.critic.select_rows(state[name], rows["critic"].to(self.device))
        small.load_state_dict(state)
        return small

    def state_dict(self) -> dict[str, Tensor]:
        """Give everything that a resumed run needs, as tensors (copies): safetensors can write it as it is."""
        state = {
            "policy": self.policy.flat,
            "critic": self.critic.flat,
            "critic_target": self.critic_target.flat,
            "log_alpha": self.log_alpha,
            "num_updates": torch.tensor(self.num_updates),
            "generator": self.generator.get_state(),
        }
        for name in ("policy_optim", "critic_optim", "alpha_optim"):
            parts = getattr(self, name).state_dict()
            state.update({f"{name}.{part}": value for part, value in parts.items()})
        return {name: value.detach().clone() for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state_dict` gave.

        Raises:
            CheckpointError: if the state belongs to networks of another size, or parts are missing.
        """
        own = self.state_dict()
        for name, value in own.items():
            if name not in state:
                raise CheckpointError(f"the policy's state has no {name!r}: it was written by another version")
            if state[name].shape != value.shape:
                raise CheckpointError(
                    f"the policy's {name!r} has {list(state[name].shape)} entries, this agent needs "
                    f"{list(value.shape)}: sizes of observation, belief, action or hidden layers differ"
                )
        for name in ("policy", "critic", "critic_target"):
            getattr(self, name).load_flat(state[name])
        self.log_alpha.copy_(state["log_alpha"])
        self.num_updates = int(state["num_updates"])
        self.generator.set_state(state["generator"].cpu())
        for name in ("policy_optim", "critic_optim", "alpha_optim"):
            parts = {part: state[f"{name}.{part}"] for part in ("mean", "square", "num_steps")}
            getattr(self, name).load_state_dict(parts)

    def save_checkpoint(
        self, env_name: str | None = None, suffix: str = "", ckpt_path: str | Path | None = None
    ) -> None:
        """Write `state_dict` to a safetensors file (mbrl-lib's signature)."""
        from safetensors.torch import save_file

        path = Path("checkpoints") / f"sac_checkpoint_{env_name}_{suffix}" if ckpt_path is None else Path(ckpt_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(self.state_dict(), path)

    def load_checkpoint(self, ckpt_path: str | Path, evaluate: bool = False) -> None:  # noqa: ARG002
        """Read what `save_checkpoint` wrote (mbrl-lib's signature); the file cannot run code."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            state = load_file(ckpt_path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read the policy in {ckpt_path}: {error}") from error
        self.load_state_dict(state)


def _check(config: SacConfig, obs_dim: int, action_space: Any, total_updates: int | None) -> None:
    check_settings(config, "agent")
    if not config.hidden_sizes:
        raise ConfigError("agent.hidden_sizes must name at least one hidden layer")
    for column in config.angle_columns:
        if column >= obs_dim or config.angle_columns.count(column) > 1:
            raise ConfigError(f"agent.angle_columns must be different columns below {obs_dim}, got {column}")
    if config.linear_decay and total_updates is None:
        raise ConfigError("agent.linear_decay needs the number of updates of the run: pass total_updates, or false")
    low, high = _bounds(action_space)
    if len(np.shape(low)) != 1 or not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConfigError(f"SAC needs a flat Box of bounded actions, got {action_space}")


def _bounds(action_space: Any) -> tuple[Any, Any]:
    return np.asarray(action_space.low), np.asarray(action_space.high)


def _log(logger: Any, metrics: Mapping[str, float], reward: float, target_entropy: float, updates: int) -> None:
    """Log under mbrl-lib's names."""
    logger.log("train/batch_reward", reward, updates)
    logger.log("train_critic/loss", metrics["value_loss_1"] + metrics["value_loss_2"], updates)
    logger.log("train_actor/loss", metrics["policy_loss"], updates)
    logger.log("train_actor/target_entropy", target_entropy, updates)
    logger.log("train_actor/entropy", metrics["entropy"], updates)
    logger.log("train_alpha/loss", metrics["temperature_loss"], updates)
    logger.log("train_alpha/value", metrics["temperature"], updates)
