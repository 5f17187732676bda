"""Policies for sb3-contrib's recurrent PPO: its own with faster sequences, and one whose memory is a belief."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.torch_layers import MlpExtractor
from torch import Tensor, nn

LstmState = tuple[Tensor, Tensor]


class SequencePolicy(RecurrentActorCriticPolicy):
    """sb3-contrib's policy; whole sequences go through the LSTM at once.

    sb3-contrib begins a new sequence where an episode begins, so only the first step of a sequence can reset the
    state; its own code nevertheless loops over the steps. The results are the same.
    """

    @staticmethod
    def _process_sequence(
        features: Tensor, lstm_states: LstmState, episode_starts: Tensor, lstm: nn.LSTM
    ) -> tuple[Tensor, LstmState]:
        num = lstm_states[0].shape[1]
        sequence = features.reshape((num, -1, lstm.input_size)).swapaxes(0, 1)
        goes_on = 1.0 - episode_starts.reshape((num, -1))[:, 0]
        hidden, cell = (part * goes_on.view(1, num, 1) for part in lstm_states)
        output, states = lstm(sequence, (hidden, cell))
        return torch.flatten(output.transpose(0, 1), start_dim=0, end_dim=1), states


class BeliefPolicy(SequencePolicy):
    """The paper's RNN policy, whose memory is read as a belief b = softmax(W h).

    The LSTM sees the previous observation and action; policy and value see the observation and b. An observation of
    this class is [features, previous features, previous action].

    Args:
        observation_space: space of such vectors.
        action_space: the actions.
        lr_schedule: learning rate of the remaining progress.
        num_contexts: width of the belief.
        decoder: how the memory is read: `softmax`, the belief; `linear`, W h; `none`, the hidden state h itself.
        obs_width: width of the features.
        lstm_hidden_size: units of the LSTM.
        net_arch: hidden layers of policy and value.
        log_std_init: first logarithm of the policy's standard deviation.
        use_sde: must be False; Stable-Baselines3 passes it.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Any,
        num_contexts: int,
        decoder: str,
        obs_width: int,
        lstm_hidden_size: int,
        net_arch: dict[str, list[int]],
        log_std_init: float,
        use_sde: bool = False,
    ) -> None:
        self.decoder, self.obs_width = decoder, obs_width
        self.read_width = lstm_hidden_size if decoder == "none" else num_contexts
        super().__init__(
            observation_space, action_space, lr_schedule, net_arch=net_arch, use_sde=use_sde, log_std_init=log_std_init,
            lstm_hidden_size=lstm_hidden_size, shared_lstm=True, enable_critic_lstm=False,
        )  # fmt: skip
        self.lstm_actor = nn.LSTM(self.features_dim - obs_width, lstm_hidden_size)
        if decoder != "none":
            self.belief_head = nn.Linear(lstm_hidden_size, num_contexts, bias=False)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = MlpExtractor(
            self.obs_width + self.read_width, self.net_arch, self.activation_fn, self.device
        )

    def belief(self, obs: Tensor, states: LstmState, episode_starts: Tensor) -> tuple[Tensor, LstmState]:
        """Return what is read of the memory at observations (beliefs `B K`), and the state of the LSTM after them."""
        before = self.extract_features(obs)[:, self.obs_width :]
        hidden, states = self._process_sequence(before, states, episode_starts, self.lstm_actor)
        if self.decoder == "none":
            return hidden, states
        read = self.belief_head(hidden)
        return read.softmax(-1) if self.decoder == "softmax" else read, states

    def _latent(self, obs: Tensor, states: LstmState, episode_starts: Tensor) -> tuple[Tensor, LstmState]:
        belief, states = self.belief(obs, states, episode_starts)
        return torch.cat([self.extract_features(obs)[:, : self.obs_width], belief], -1), states

    def forward(
        self, obs: Tensor, lstm_states: RNNStates, episode_starts: Tensor, deterministic: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, RNNStates]:
        """Return actions, values, log probabilities and the state after them."""
        latent, states = self._latent(obs, lstm_states.pi, episode_starts)
        distribution = self._distribution(latent)
        acts = distribution.get_actions(deterministic=deterministic)
        log_prob = distribution.log_prob(acts)
        return acts.reshape((-1, *self.action_space.shape)), self._value(latent), log_prob, RNNStates(states, states)

    def get_distribution(
        self, obs: Tensor, lstm_states: LstmState, episode_starts: Tensor
    ) -> tuple[Distribution, LstmState]:
        """Return the distribution of the actions and the state after them."""
        latent, states = self._latent(obs, lstm_states, episode_starts)
        return self._distribution(latent), states

    def predict_values(self, obs: Tensor, lstm_states: LstmState, episode_starts: Tensor) -> Tensor:
        """Return the values."""
        return self._value(self._latent(obs, lstm_states, episode_starts)[0])

    def evaluate_actions(
        self, obs: Tensor, actions: Tensor, lstm_states: RNNStates, episode_starts: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return values, log probabilities of the actions and entropies; both losses reach LSTM and belief."""
        latent, _ = self._latent(obs, lstm_states.pi, episode_starts)
        distribution = self._distribution(latent)
        return self._value(latent), distribution.log_prob(actions), distribution.entropy()

    def _distribution(self, latent: Tensor) -> Distribution:
        return self._get_action_dist_from_latent(self.mlp_extractor.forward_actor(latent))

    def _value(self, latent: Tensor) -> Tensor:
        return self.value_net(self.mlp_extractor.forward_critic(latent))
