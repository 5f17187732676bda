"""Settings of the baselines; light to import."""

from __future__ import annotations

from dataclasses import dataclass

from mbrl_hdp.settings import choice, setting


@dataclass
class GpmmConfig:
    """GPMM, with the numbers of its swing-up experiment; plans by `planner=`."""

    new_weight: float = setting(0.1, "prior weight of a new component (alpha)", above=0.0)
    burn_in: int = setting(15, "no component is created while the newest has fewer points", at_least=1)
    first_weight: float = setting(0.001, "count of every transition from a new component (window)", at_least=0.0)
    first_self_weight: float = setting(1.0, "count of staying in a new component (self)", above=0.0)
    stickiness: float = setting(0.0, "weight that is always added to staying: the article's beta", at_least=0.0)
    merges: bool = setting(False, "merge and prune components: the article does, the released code does not")
    kl_max: float = setting(20.0, "components are merged if their predictions differ by less than this", above=0.0)
    first_noise: float = setting(1e-3, "noise variance of a new component", above=0.0)
    least_noise: float = setting(1e-4, "lower bound of the noise variance", above=0.0)
    first_scale: float = setting(0.5, "prior variance of a new component", above=0.0)
    first_length: float = setting(1.0, "length scales of a new component", above=0.0)
    lr: float = setting(0.1, "learning rate of Adam on the marginal likelihood", above=0.0)
    fit_steps: int = setting(10, "steps of Adam in a fit, at most", at_least=1)
    large: int = setting(500, "components with more points take large_fit_steps", at_least=1)
    large_fit_steps: int = setting(3, "steps of Adam in a fit of a large component, at most", at_least=1)
    refit_growth: float = setting(
        0.02, "hyper-parameters are fitted again when a component has grown by this share; 0 at every point",
        at_least=0.0)  # fmt: skip
    distil_above: int = setting(1500, "a component with more points is reduced", at_least=2)
    distil_keep: int = setting(1300, "points that it keeps", at_least=1)
    distil_subsets: int = setting(100, "random subsets of which the best is kept", at_least=1)


@dataclass
class ChunkConfig:
    """What mixtures that label whole chunks of transitions have in common; they plan by `planner=`."""

    new_weight: float = setting(0.1, "prior weight of a new component (alpha)", above=0.0)
    chunk: int = setting(50, "transitions that get one label together", at_least=1)
    lr: float = setting(5e-4, "learning rate", above=0.0)


@dataclass
class DnnmmConfig(ChunkConfig):
    """DNNMM: a mixture of neural networks."""

    hidden_size: int = setting(256, "width of both hidden layers", at_least=1)
    num_epochs: int = setting(100, "passes over the data in a fit, at most", at_least=1)
    batch_size: int = setting(64, "transitions in a minibatch", at_least=1)
    validation: float = setting(0.1, "share of the data that chooses the weights", above=0.0, below=1.0)
    patience: int = setting(15, "passes without improvement on the held-out data that end a fit", at_least=1)


@dataclass
class AnpmmConfig(ChunkConfig):
    """ANPMM: a mixture of attentive neural processes."""

    hidden_size: int = setting(
        128, "width of the second hidden layer; the first is twice, the representation half as wide", at_least=8
    )
    latent_size: int = setting(64, "width of the latent variable", at_least=1)
    num_heads: int = setting(
        8, "heads of the attention to the context points; a divisor of half of hidden_size", at_least=1
    )
    context_points: int = setting(100, "context points, at most", at_least=1)
    target_points: int = setting(25, "target points of a training task, beside the context points", at_least=1)
    pretrain_steps: int = setting(2000, "gradient steps on the pooled random episodes", at_least=1)
    refit_steps: int = setting(100, "gradient steps on a component's data after every chunk", at_least=0)
    tasks: int = setting(16, "training tasks in a minibatch", at_least=1)


@dataclass
class PpoConfig:
    """Recurrent PPO of sb3-contrib; its settings have the names that Stable-Baselines3 uses."""

    learning_rate: float = setting(1e-3, "learning rate of Adam", above=0.0)
    n_steps: int = setting(2000, "steps between two updates", at_least=2)
    batch_size: int = setting(1000, "steps in a minibatch", at_least=2)
    n_epochs: int = setting(10, "passes over the steps of an update", at_least=1)
    gamma: float = setting(0.98, "discount factor", above=0.0, at_most=1.0)
    gae_lambda: float = setting(0.95, "trade-off of bias and variance of the advantages", at_least=0.0, at_most=1.0)
    clip_range: float = setting(0.2, "clipping of the probability ratio", above=0.0)
    ent_coef: float = setting(0.0, "weight of the entropy", at_least=0.0)
    vf_coef: float = setting(0.5, "weight of the value's loss", above=0.0)
    max_grad_norm: float = setting(0.5, "largest norm of a gradient", above=0.0)
    lstm_hidden_size: int = setting(64, "units of the LSTM", at_least=1)
    hidden_sizes: list[int] = setting([64, 64], "hidden layers of policy and value behind the LSTM", at_least=1)
    log_std_init: float = setting(0.0, "first logarithm of the policy's standard deviation")
    reward_scale: float = setting(0.1, "factor on the rewards that the value is learned from", above=0.0)
    obs_clip: float = setting(10.0, "standardised observations are cut off here", above=0.0)


@dataclass
class RnnPpoConfig(PpoConfig):
    """RNN-PPO: recurrent PPO whose memory is a belief over a known number of contexts."""

    num_contexts: int | None = setting(None, "width of the belief; null for the environment's own number", at_least=1)
    decoder: str = choice(
        ("softmax", "linear", "none"),
        "how the memory is read: softmax (a belief), linear (any numbers), none (the hidden state itself)",
    )


@dataclass
class SacStackConfig:
    """SAC of Stable-Baselines3 on the last observations and actions, with its names of the settings."""

    stack: int = setting(5, "observations and actions before the current one that the policy sees", at_least=0)
    learning_rate: float = setting(3e-4, "learning rate of policy, critics and temperature", above=0.0)
    hidden_sizes: list[int] = setting([256, 256], "hidden layers of policy and critics", at_least=1)
    batch_size: int = setting(256, "transitions per update", at_least=1)
    gamma: float = setting(0.99, "discount factor", above=0.0, at_most=1.0)
    tau: float = setting(0.005, "share of the critics that their targets take over", above=0.0, at_most=1.0)
    buffer_size: int = setting(1_000_000, "transitions that are kept", at_least=1)


@dataclass
class EnsembleConfig:
    """mbrl-lib's probabilistic ensemble, with the numbers of its cart-pole example."""

    history: int = setting(
        0, "earlier observations and actions that the model sees; 0 is blind to contexts", at_least=0
    )
    ensemble_size: int = setting(5, "networks of the ensemble; the particles of a plan are a multiple", at_least=1)
    num_layers: int = setting(3, "hidden layers", at_least=1)
    hid_size: int = setting(200, "width of the hidden layers", at_least=1)
    lr: float = setting(7.5e-4, "learning rate", above=0.0)
    weight_decay: float = setting(3e-5, "weight decay", at_least=0.0)
    batch_size: int = setting(256, "transitions in a minibatch", at_least=1)
    num_epochs: int = setting(25, "passes over all data in a training of the ensemble", at_least=1)


@dataclass
class PetsConfig(EnsembleConfig):
    """PETS: the ensemble is trained after every epoch of the run; plans by `planner=`."""


@dataclass
class MbpoConfig(EnsembleConfig):
    """MBPO: SAC on imagined steps of the ensemble, with the numbers of mbrl-lib's cart-pole example."""

    fit_every: int = setting(20, "epochs from one training of the ensemble to the next", at_least=1)
    num_rollouts: int = setting(10_000, "imagined episodes an epoch, from real observations", at_least=1)
    rollout_horizon: int = setting(1, "steps of an imagined episode", at_least=1)
    hidden_size: int = setting(256, "width of both hidden layers of policy and critics", at_least=1)
    sac_lr: float = setting(3e-4, "learning rate of policy, critics and temperature", above=0.0)
    gamma: float = setting(0.99, "discount factor", above=0.0, at_most=1.0)
    tau: float = setting(0.005, "share of the critics that their targets take over", above=0.0, at_most=1.0)
    target_entropy: float = setting(-0.05, "entropy that the temperature is adapted to")
    target_update_interval: int = setting(4, "updates from one update of the targets to the next", at_least=1)
    sac_batch_size: int = setting(256, "imagined steps per update of SAC", at_least=1)
