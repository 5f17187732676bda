"""Conformance checks for plugin authors: call them from your own test suite.

    from mbrl_hdp.testing import check_prior
    check_prior(lambda: MyPrior(max_contexts=4))

Each raises AssertionError with what is wrong; none returns anything.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import safetensors.torch as safetensors
import torch
from torch import Tensor

from mbrl_hdp.control.agent import Agent
from mbrl_hdp.control.baseline import Baseline, BaselineAgent
from mbrl_hdp.control.state import FILE_NAME, pack_state, unpack_state
from mbrl_hdp.data.tensor_files import read_tensors
from mbrl_hdp.distil.distiller import Distiller
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.loop import train
from mbrl_hdp.hooks import Registry, load_registry
from mbrl_hdp.inference.duration import ContextDuration, Phases, Stays
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.inference.elbo import prior_kl
from mbrl_hdp.inference.prior import ChainDraw, ContextPrior, NaturalPrior, StartablePrior
from mbrl_hdp.probability.hmm import log_evidence, smooth
from mbrl_hdp.seeding import seed_everything
from mbrl_hdp.types import ContextChain, ContextPosterior

# Natural steps of larger priors are not checked: a slope in so many parameters is lost in the noise of the draws.
_LARGEST_NATURAL = 10


def check_prior(make: Callable[[], ContextPrior]) -> None:
    """Check that a prior samples stochastic chains, has a trainable guide and a sensible mean.

    Args:
        make: builds a fresh prior; called several times.
    """
    torch.manual_seed(0)
    prior = make()
    prior.prepare()
    size = prior.max_contexts
    with torch.no_grad():
        _check_chain(prior.model(), size, "model()")
        _check_chain(prior.mean_chain(), size, "mean_chain()")
    parameters = [parameter for parameter in prior.parameters() if parameter.requires_grad]
    assert parameters, "the prior has no trainable parameter: its guide could learn nothing"
    _check_guide_learns(prior, parameters)
    weights = prior.top_weights()
    if weights is not None:
        assert weights.shape == (size,), f"top_weights() must have shape ({size},), got {tuple(weights.shape)}"
        assert torch.isclose(weights.sum(), weights.new_ones(())), "top_weights() must sum to 1"
    _check_offers(make)


def _check_guide_learns(prior: ContextPrior, parameters: list[torch.nn.Parameter]) -> None:
    """A likelihood that pulls every row towards its last context must reach the guide's parameters and move it."""
    before = prior.mean_chain().transition[:, -1].mean().item()
    optimiser = torch.optim.Adam(parameters, lr=0.05)
    for _ in range(60):
        chain = prior.sample_chain()
        _check_chain(chain, prior.max_contexts, "sample_chain()")
        loss = -1000.0 * chain.transition[:, -1].clamp_min(1e-6).log().mean()
        optimiser.zero_grad()
        loss.backward()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        assert gradients, "no gradient reaches the guide's parameters: sites must be reparameterisable"
        assert all(bool(gradient.isfinite().all()) for gradient in gradients), "a gradient is not finite"
        optimiser.step()
    after = prior.mean_chain().transition[:, -1].mean().item()
    assert prior.max_contexts == 1 or after > before, "training the guide does not move mean_chain()"


def _check_offers(make: Callable[[], ContextPrior]) -> None:
    """Check the optional abilities of a prior, where it has them."""
    size = make().max_contexts
    if size < 2:
        return
    goal = torch.full((size, size), 0.2 / size) + 0.8 * torch.eye(size)
    prior = make()
    prior.prepare()
    if isinstance(prior, StartablePrior):
        prior.start_from(ContextChain(torch.full((size,), 1.0 / size), goal), strength=1e4)
        error = (prior.mean_chain().transition - goal).abs().max().item()
        assert error < 0.02, f"start_from(): mean_chain() is {error:.3f} away from the chain it was given"
    if isinstance(prior, NaturalPrior) and size <= _LARGEST_NATURAL:
        _check_natural_step(make)


def _check_natural_step(make: Callable[[], ContextPrior]) -> None:
    """Check that natural steps lead to the maximum of E_q[log p(obs | chain)] - KL(q || p): no slope is left there.

    The contexts overlap, so that this maximum is far from that of other bounds. The slope is measured along its own
    direction, found from other draws.
    """
    prior = make()
    prior.prepare()
    assert isinstance(prior, NaturalPrior)
    before = [parameter.detach().clone() for parameter in prior.parameters()]
    generator = torch.Generator().manual_seed(1)
    log_lik = torch.randn(6, 20, prior.max_contexts, generator=generator)
    with torch.no_grad():
        for number in range(200):
            chain = prior.sample_chain()
            found = smooth(chain, log_lik)
            draw = ChainDraw(chain, found.expected_initial, found.expected_transitions)
            prior.natural_step([draw], 2.0 / (number + 10))
    moved = [p for p, old in zip(prior.parameters(), before, strict=True) if not torch.equal(p, old)]
    assert moved, "natural_step() moves no parameter of the prior"
    slopes = torch.stack([_slope(prior, moved, log_lik) for _ in range(200)])
    first, second = slopes.chunk(2)
    along = second @ (first.mean(0) / first.var(0).clamp_min(1e-12))
    score = float(along.mean() / along.std() * len(along) ** 0.5)
    assert score < 5.0, (
        f"natural_step(): the bound still has a slope where the steps end, {score:.1f} standard errors from zero; they "
        "must follow the natural gradient of E_q[log p(obs | chain)] - KL(q || p)"
    )


def _slope(prior: ContextPrior, parameters: list[torch.nn.Parameter], log_lik: Tensor) -> Tensor:
    bound = log_evidence(prior.sample_chain(), log_lik).sum() - prior_kl(prior)
    return torch.cat([slope.flatten() for slope in torch.autograd.grad(bound, parameters)])


def _check_chain(chain: ContextChain, size: int, where: str) -> None:
    assert isinstance(chain, ContextChain), f"{where} must return a ContextChain, got {type(chain).__name__}"
    for name, tensor, shape in (("initial", chain.initial, (size,)), ("transition", chain.transition, (size, size))):
        assert tuple(tensor.shape) == shape, f"{where}.{name} must have shape {shape}, got {tuple(tensor.shape)}"
        assert bool((tensor >= 0).all()), f"{where}.{name} has a negative entry"
        error = (tensor.sum(-1) - 1).abs().max().item()
        assert error < 1e-4, f"{where}.{name} must sum to 1 along its last axis, it is off by {error:.2g}"


def check_distiller(rule: Distiller) -> None:
    """Check that a rule returns a mask of the right shape, keeps what dominates and follows a relabelling."""
    posterior = _example_posterior()
    for is_training in (False, True):
        example = ContextPosterior(posterior.chain, posterior.top_weights, None, is_training)
        keep = rule.keep(example)
        size = example.chain.max_contexts
        assert isinstance(keep, Tensor), f"keep() must return a tensor, got {type(keep).__name__}"
        assert keep.dtype == torch.bool, f"keep() must return a bool tensor, got {keep.dtype}"
        assert tuple(keep.shape) == (size,), f"keep() must have shape ({size},), got {tuple(keep.shape)}"
        assert bool(keep[1]), "keep() drops the context that holds most of the mass"
        order = torch.tensor([2, 0, 3, 1])
        relabelled = rule.keep(_relabel(example, order))
        assert bool((relabelled == keep[order]).all()), "keep() depends on how the contexts are numbered"


def _example_posterior() -> ContextPosterior:
    """Two strong contexts (1 and 3), two spurious ones (0 and 2)."""
    transition = torch.tensor(
        [[0.40, 0.40, 0.01, 0.19], [0.002, 0.90, 0.001, 0.097], [0.10, 0.30, 0.30, 0.30], [0.004, 0.195, 0.001, 0.80]]
    )
    initial = torch.tensor([0.01, 0.55, 0.01, 0.43])
    return ContextPosterior(ContextChain(initial, transition), torch.tensor([0.01, 0.60, 0.005, 0.385]))


def _relabel(posterior: ContextPosterior, order: Tensor) -> ContextPosterior:
    chain = ContextChain(posterior.chain.initial[order], posterior.chain.transition[order][:, order])
    weights = None if posterior.top_weights is None else posterior.top_weights[order]
    return ContextPosterior(chain, weights, None, posterior.is_training)


def check_duration(make: Callable[[], ContextDuration]) -> None:
    """Check that a duration makes proper phases, that its M step is the maximum, and that EM never loses evidence.

    Args:
        make: builds a fresh duration.
    """
    family = make()
    assert family.max_phases >= 1, f"max_phases must be at least 1, got {family.max_phases}"
    generator = np.random.default_rng(0)
    stays = Stays(generator.geometric(0.2, 50) + 2, generator.random(50) < 0.8)
    for size in {1, 2, min(family.max_phases, 5)} & set(range(1, family.max_phases + 1)):
        _check_phases(family.start(size, stays), size, "start()")
        # What cannot happen in this family is never counted.
        counts = Phases(*(generator.gamma(2.0, 20.0, size) * (part > 0) for part in family.start(size, stays)))
        found = family.update(counts)
        _check_phases(found, size, "update()")
        best = _expected(family, counts, found)
        for other in (family.start(size, stays), *(family.update(_shaken(counts, generator)) for _ in range(20))):
            assert _expected(family, counts, other) <= best + 1e-6, "update() is not the maximum of the M step"


def _shaken(counts: Phases, generator: np.random.Generator) -> Phases:
    return Phases(*(part * generator.uniform(0.7, 1.4, len(part)) for part in counts))


def _expected(family: ContextDuration, counts: Phases, phases: Phases) -> float:
    """Return what an M step maximises; counts of what cannot happen are left out."""
    pairs = zip(counts, phases, strict=True)
    parts = [(count[chance > 0] * np.log(chance[chance > 0])).sum() for count, chance in pairs]
    return float(sum(parts)) + family.log_prior(phases)


def _check_phases(phases: Phases, size: int, where: str) -> None:
    for name, part in phases._asdict().items():
        assert part.shape == (size,), f"{where}.{name} must have shape ({size},), got {part.shape}"
        assert bool((part >= 0).all()), f"{where}.{name} has a negative entry"
    assert np.allclose(sum(phases), 1.0), f"{where}: stay, advance and leave of a phase must sum to 1"
    assert phases.advance[-1] == 0.0, f"{where}: there is no phase after the last one, advance must be 0 there"


def check_dynamics(model: ContextDynamics) -> None:
    """Check shapes, gradients, per-row contexts and the slot convention of a transition model."""
    generator = torch.Generator().manual_seed(0)
    rows, size = 32, model.max_contexts
    obs = torch.randn(rows, model.obs_dim, generator=generator)
    act = torch.randn(rows, model.act_dim, generator=generator)
    next_obs = obs + 0.1 * torch.randn(rows, model.obs_dim, generator=generator)
    model.set_normaliser(obs, act, next_obs)
    log_prob = model.log_prob(obs, act, next_obs)
    assert tuple(log_prob.shape) == (rows, size), f"log_prob must be ({rows}, {size}), got {tuple(log_prob.shape)}"
    assert bool(log_prob.isfinite().all()), "log_prob is not finite"
    (log_prob.sum() + model.log_prior()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.shape[0] == size, f"parameter {name} must have the {size} context slots as its first axis"
        assert parameter.grad is None or bool(parameter.grad.isfinite().all()), f"gradient of {name} is not finite"
    _check_predictions(model, obs, act)


def _check_predictions(model: ContextDynamics, obs: Tensor, act: Tensor) -> None:
    context = torch.arange(len(obs)) % model.max_contexts
    with torch.no_grad():
        means = model.predict(obs, act, context)
        assert means.shape == obs.shape, f"predict must be {tuple(obs.shape)}, got {tuple(means.shape)}"
        one = model.predict(obs[:1], act[:1], context[:1])
        assert torch.allclose(one, means[:1], atol=1e-4), "predict of a row depends on the other rows"
        drawn = model.sample(obs, act, context, generator=torch.Generator().manual_seed(1))
        again = model.sample(obs, act, context, generator=torch.Generator().manual_seed(1))
        assert torch.equal(drawn, again), "sample does not follow its generator"


def check_baseline(make: Callable[[], Baseline], obs_dim: int, act_dim: int) -> None:
    """Check that a baseline acts inside its bounds, learns from steps, and that its state makes a resumed run the same.

    It is called as the loop calls it, through the adapter to `Agent`, and its state goes through a file's bytes.

    Args:
        make: builds a fresh baseline; called several times.
        obs_dim: width of the observations it was built for.
        act_dim: width of its actions, which must lie in [-1, 1].
    """
    first = BaselineAgent(make())
    _run_episodes(first, obs_dim, act_dim, seed=0)
    second = BaselineAgent(make())
    second.baseline.load_state_dict(unpack_state(safetensors.load(safetensors.save(pack_state(first.state_dict())))))
    generator = np.random.default_rng(1)
    for agent in (first, second):
        agent.begin_episode()
    for _ in range(3):
        probe = generator.normal(size=obs_dim)
        one, two = (np.asarray(agent.act(probe.copy(), explore=True)) for agent in (first, second))
        assert np.array_equal(one, two), "load_state_dict(state_dict()) does not act the same"


def _run_episodes(agent: Agent, obs_dim: int, act_dim: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(2):
        agent.begin_episode()
        obs = generator.normal(size=obs_dim)
        for step in range(5):
            act = np.asarray(agent.act(obs, explore=True))
            assert act.shape == (act_dim,), f"act() must have shape ({act_dim},), got {act.shape}"
            assert np.all(np.abs(act) <= 1.0 + 1e-6), "act() leaves [-1, 1]"
            next_obs = obs + 0.1 * generator.normal(size=obs_dim)
            agent.observe(obs, act, float(generator.normal()), next_obs, terminated=step == 4)
            obs = next_obs
        metrics = agent.end_episode()
        assert all(np.isfinite(value) for value in metrics.values()), "a metric of end_episode() is not finite"
        labels = agent.context_labels()
        assert labels is None or len(labels) == 5, "context_labels() must have one label a step of the last episode"


def check_agent(name: str, overrides: Sequence[str] = (), registry: Registry | None = None) -> None:
    """Check that a registered agent trains by the real loop and that a run ended before its last epoch resumes exactly.

    Args:
        name: the word that selects it, as in `agent=name`; an agent or a baseline.
        overrides: further words of the command line, as in `env=cartpole_hard`; `profile=smoke` is the default.
        registry: plugins to choose from; all installed ones by default.
    """
    found = load_registry() if registry is None else registry
    assert name in {*found.names("agent"), *found.names("baseline")}, f"no plugin registers agent {name!r}"
    words = ["profile=smoke", f"agent={name}", *overrides]
    config = check_config(load_config(words, found))
    with TemporaryDirectory() as whole, TemporaryDirectory() as ended:
        result = train(config, found, Path(whole), progress=False)
        shutil.copytree(whole, ended, dirs_exist_ok=True)
        last = sorted((Path(ended) / "checkpoints").iterdir())
        assert len(last) > 1, "the run has a single epoch: there is nothing to resume; raise budget.num_epochs"
        shutil.rmtree(last[-1])
        seed_everything(12345)  # what a new process begins with must not matter
        resumed = train(config, found, Path(ended), progress=False)
        files = [Path(folder) / "checkpoints" / last[-1].name / FILE_NAME for folder in (whole, ended)]
        states = [read_tensors(file)[0] for file in files]
        assert (Path(whole) / "final").is_dir(), "nothing was exported"
    assert resumed.returns == result.returns, "a resumed run ends with other returns: state_dict() lacks something"
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key]), f"a resumed run ends with another state of {key!r}"
