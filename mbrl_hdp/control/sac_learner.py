"""The learning half of SAC: networks, optimisers and their updates, on inputs that are ready for the networks.

`_update_once` is an update in torch's operations, for any depth and device; where the networks have one or two hidden
layers and live on the CPU, compiled loops do the same (`sac_kernels`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mbrl_hdp.control.networks import FlatAdam, LastUpdate, SquashedDraw, StackedMlp, squashed_draw, squashed_grad
from mbrl_hdp.control.sac_config import SacConfig
from mbrl_hdp.errors import CheckpointError, DivergenceError
from mbrl_hdp.seeding import torch_generator

LOG_STD_BOUNDS = (-20.0, 2.0)
MOST_COMPILED = 2
"""Hidden layers that the compiled loops can have."""
_NETWORKS = ("policy", "critic", "critic_target")
_OPTIMISERS = ("policy_optim", "critic_optim", "alpha_optim")


class SacLearner:
    """Policy, twin critics with their targets, and the temperature.

    Args:
        num_state: width of what the networks see of a state; their input rows are the state, ones and the action.
        act_dim: width of an action.
        config: settings.
        log_volume: log of the factor between actions in (-1, 1) and the environment's, summed over their entries.
        seed: seed of the weights and of every later draw.
        total_updates: updates of the whole run, for `linear_decay`.
        device: where tensors live.

    Attributes:
        calm_policy: what acts in evaluations: the policy, or its average over the latest updates.
        num_updates: updates so far.
        is_compiled: whether compiled loops do the updates.
    """

    def __init__(
        self,
        num_state: int,
        act_dim: int,
        config: SacConfig,
        log_volume: float,
        seed: int,
        total_updates: int | None,
        device: torch.device,
    ) -> None:
        self.config, self.act_dim, self.total_updates, self.device = config, act_dim, total_updates, device
        self.target_entropy = -float(act_dim) if config.target_entropy is None else config.target_entropy
        self.num_updates = 0
        self.is_compiled = device.type == "cpu" and len(config.hidden_sizes) <= MOST_COMPILED
        self.generator = torch_generator(seed, "sac", device=device)
        self._log_volume = log_volume
        self._state_rows, self._act_rows = slice(0, num_state + 1), slice(num_state + 1, num_state + 1 + act_dim)
        self._build(num_state, torch_generator(seed, "sac_weights"))

    def _build(self, num_state: int, generator: torch.Generator) -> None:
        config, sizes = self.config, list(self.config.hidden_sizes)
        self.policy = StackedMlp(1, num_state + 1, num_state, sizes, 2 * self.act_dim)
        self.critic, self.critic_target = (
            StackedMlp(2, num_state + 1 + self.act_dim, num_state, sizes, 1) for _ in range(2)
        )
        self.policy.initialise(generator)
        self.critic.initialise(generator)
        self.critic_target.load_flat(self.critic.flat.detach())
        for name in _NETWORKS:
            getattr(self, name).to(self.device)
        self.log_alpha = torch.tensor([math.log(config.initial_temperature)], device=self.device)
        self.calm_policy = self.policy
        if config.averaged_updates:
            self.calm_policy = StackedMlp(1, num_state + 1, num_state, sizes, 2 * self.act_dim)
            self.calm_policy.load_flat(self.policy.flat.detach())
            self.calm_policy.to(self.device)
        self.policy_optim = FlatAdam(self.policy.flat.detach(), config.policy_lr, config.weight_decay)
        self.critic_optim = FlatAdam(self.critic.flat.detach(), config.value_lr, config.weight_decay)
        self.alpha_optim = FlatAdam(self.log_alpha, config.temperature_lr)

    @property
    def _networks(self) -> tuple[str, ...]:
        return (*_NETWORKS, "calm_policy") if self.config.averaged_updates else _NETWORKS

    @property
    def alpha(self) -> Float[Tensor, " 1"]:
        """The temperature."""
        return self.log_alpha.exp()

    @property
    def lr_factor(self) -> float:
        """Current factor on the learning rates."""
        if not self.config.linear_decay or self.total_updates is None:
            return 1.0
        return max(0.0, 1.0 - self.num_updates / self.total_updates)

    def learn(
        self,
        inputs: Float[Tensor, "n 2 rows B"],
        reward: Float[Tensor, "n B"],
        discount: Float[Tensor, "n B"],
    ) -> dict[str, float]:
        """Step on n minibatches; return what the last of them measured.

        Args:
            inputs: the critics' inputs at obs and at next_obs (whose actions are still open); overwritten.
            reward: rewards.
            discount: discount factor, zero where the transition terminates.

        Raises:
            DivergenceError: in the update that leaves a network that is not finite.
        """
        count, size = reward.shape
        noise = torch.randn(count, 2, self.act_dim, size, generator=self.generator, device=self.device)
        if self.is_compiled:
            last = self._update_compiled(inputs, reward, discount, noise)
            self._check_finite(last)
        else:
            for step in range(count):
                last = self._update_once(inputs[step], reward[step], discount[step], noise[step])
                self._check_finite(last)
        if self.config.averaged_updates:
            share = 1.0 - (1.0 - 1.0 / self.config.averaged_updates) ** count
            self.calm_policy.flat.detach().lerp_(self.policy.flat.detach(), share)
        return self._metrics(last)

    def _check_finite(self, last: LastUpdate) -> None:
        """Raise `DivergenceError` if the last update's loss, a network or the temperature is not finite."""
        loss = float(last.error.square().mean())
        total = self.critic.flat.detach().sum() + self.policy.flat.detach().sum() + self.log_alpha
        if not math.isfinite(loss + float(total)):
            raise DivergenceError(
                f"SAC diverged in update {self.num_updates} (value loss {loss}): "
                "lower value_lr and policy_lr, or raise weight_decay"
            )

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
        if self.num_updates % self.config.target_update_interval == 0:
            self.critic_target.flat.lerp_(self.critic.flat, self.config.tau)
        return LastUpdate(error[:, 0], values[:, 0], draw.log_prob, alpha.log(), excess)

    def _draw(
        self, inputs: Float[Tensor, "rows B"], noise: Float[Tensor, "A B"]
    ) -> tuple[SquashedDraw, list[Float[Tensor, "1 _ B"]]]:
        hidden = self.policy.run(inputs[self._state_rows])
        draw = squashed_draw(hidden[-1][0], noise, LOG_STD_BOUNDS)
        return draw._replace(log_prob=draw.log_prob.sub_(self._log_volume)), hidden

    def _update_compiled(self, inputs: Tensor, reward: Tensor, discount: Tensor, noise: Tensor) -> LastUpdate:
        """Do `_update_once` for every minibatch (a further first axis), in compiled loops."""
        from mbrl_hdp.control import sac_kernels

        config, count, optim = self.config, len(reward), self.alpha_optim
        settings = sac_kernels.Settings(
            weight_decay=config.weight_decay,
            tau=config.tau,
            target_update_interval=config.target_update_interval,
            target_entropy=self.target_entropy,
            temperature_lr=config.temperature_lr if config.adapt_temperature else 0.0,
            log_volume=self._log_volume,
            min_log_std=LOG_STD_BOUNDS[0],
            max_log_std=LOG_STD_BOUNDS[1],
            first_step=self.num_updates,
        )
        temperature = torch.stack([self.log_alpha, optim.mean, optim.square])
        last, num_done = sac_kernels.step_all(
            (inputs, reward, discount, noise),
            self._lr_factors(count),
            ((self.policy, self.policy_optim), (self.critic, self.critic_optim)),
            self.critic_target,
            temperature,
            settings,
        )
        for values, found in zip((self.log_alpha, optim.mean, optim.square), temperature, strict=True):
            values.copy_(found)
        self.num_updates += num_done
        for counted in (self.policy_optim, self.critic_optim, *([optim] if config.adapt_temperature else [])):
            counted.num_steps += num_done
        return last

    def _lr_factors(self, count: int) -> Float[np.ndarray, " n"]:
        """Return `lr_factor` of the next updates."""
        if not self.config.linear_decay or self.total_updates is None:
            return np.ones(count)
        return np.maximum(0.0, 1.0 - np.arange(self.num_updates, self.num_updates + count) / self.total_updates)

    def _metrics(self, last: LastUpdate) -> dict[str, float]:
        squares = last.error.square().mean(1)
        policy_loss = (last.log_alpha.exp() * last.log_prob - last.values.amin(0)).mean()
        return {
            "value_loss_1": float(squares[0]),
            "value_loss_2": float(squares[1]),
            "policy_loss": float(policy_loss),
            "temperature_loss": float(-last.log_alpha * last.excess),
            "temperature": float(self.alpha),
            "entropy": -float(last.log_prob.mean()),
            "value": float(last.values.mean()),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that a resumed run needs, as tensors (copies): safetensors can write it as it is."""
        state: dict[str, Tensor] = {name: getattr(self, name).flat for name in self._networks}
        state |= {"log_alpha": self.log_alpha, "num_updates": torch.tensor(self.num_updates)}
        state["generator"] = self.generator.get_state()
        for name in _OPTIMISERS:
            state |= {f"{name}.{part}": value for part, value in getattr(self, name).state_dict().items()}
        return {name: value.detach().clone() for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a state that `state_dict` returned.

        Raises:
            CheckpointError: if the state belongs to networks of another size, or parts are missing.
        """
        for name, value in self.state_dict().items():
            if name not in state:
                raise CheckpointError(f"the policy's state has no {name!r}: it was written by another version")
            if state[name].shape != value.shape:
                raise CheckpointError(
                    f"the policy's {name!r} has {list(state[name].shape)} entries, this agent needs "
                    f"{list(value.shape)}: sizes of observation, belief, action or hidden layers differ"
                )
        for name in self._networks:
            getattr(self, name).load_flat(state[name])
        self.log_alpha.copy_(state["log_alpha"])
        self.num_updates = int(state["num_updates"])
        self.generator.set_state(state["generator"].cpu())
        for name in _OPTIMISERS:
            optim: FlatAdam = getattr(self, name)
            optim.load_state_dict({part: state[f"{name}.{part}"] for part in optim.state_dict()})
