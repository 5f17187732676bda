"""examples/plugin: builds, is found through its entry point, conforms and trains."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from mbrl_hdp.hooks.registry import PluginSource, installed_sources, load_registry
from mbrl_hdp.inference.elbo import ElboScale, expected_log_likelihood, prior_kl
from mbrl_hdp.testing import check_distiller, check_prior
from mbrl_hdp.types import TaskSpec

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def registry():
    sys.path.insert(0, str(PLUGIN / "src"))
    try:
        import mbrl_hdp_example_plugin as module

        source = PluginSource("example", "mbrl-hdp-example-plugin", "0.1.0", lambda: module)
        built_in = [each for each in installed_sources() if each.name in ("priors", "distillers")]
        yield load_registry(sources=[*built_in, source], strict=True)
    finally:
        sys.path.remove(str(PLUGIN / "src"))


def test_it_stands_beside_the_built_ins(registry):
    assert {"dwell", "hdp"} <= set(registry.names("prior"))
    assert {"most_visited", "stationary"} <= set(registry.names("distillation"))


@pytest.mark.parametrize("size", [2, 4, 20])
def test_the_prior_conforms(registry, size):
    check_prior(lambda: registry.build_prior("dwell", TaskSpec(max_contexts=size)))


def test_the_rule_conforms(registry):
    check_distiller(registry.build_distillation("most_visited", TaskSpec(max_contexts=4)))


def test_the_prior_without_a_guide_trains(registry):
    """Sharp observations of a chain that stays with 0.8 and leaves for contexts 0 (0.7) and 1 (0.3) alone."""
    generator = torch.Generator().manual_seed(0)
    size, stay, target = 4, 0.8, torch.tensor([0.7, 0.3, 0.0, 0.0])
    contexts = torch.zeros(40, 50, dtype=torch.long)
    for t in range(50):
        drawn = torch.multinomial(target, 40, replacement=True, generator=generator)
        stays = (torch.rand(40, generator=generator) < stay) & torch.tensor(t > 0)
        contexts[:, t] = torch.where(stays, contexts[:, t - 1], drawn)
    log_lik = 4.0 * torch.nn.functional.one_hot(contexts, size).float()
    lengths = torch.full((40,), 50)
    prior = registry.build_prior("dwell", TaskSpec(max_contexts=size))
    prior.prepare()
    optimiser = torch.optim.Adam(prior.parameters(), lr=0.1)
    torch.manual_seed(0)
    losses = []
    for _ in range(150):
        optimiser.zero_grad()
        evidence = expected_log_likelihood(prior.sample_chain(), log_lik, lengths, ElboScale(40, 2000)).log_evidence
        loss = (prior_kl(prior) - evidence.sum()) / 2000
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    chain = prior.mean_chain()
    assert sum(losses[-20:]) / 20 < sum(losses[:5]) / 5 - 0.05
    assert chain.transition[1, 1].item() == pytest.approx(stay + 0.2 * 0.3, abs=0.03)
    assert chain.transition[1, 0].item() == pytest.approx(0.2 * 0.7, abs=0.03)
    assert chain.initial[2:].sum().item() < 0.05


def test_the_wheel_is_found_through_its_entry_point(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=PLUGIN, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("mbrl_hdp_example_plugin-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "from mbrl_hdp.hooks import load_registry; from mbrl_hdp.types import TaskSpec\n"
        "registry = load_registry()\n"
        "print(registry.get('prior', 'dwell').source.package)\n"
        "print(type(registry.build_distillation('most_visited', TaskSpec(3))).__name__)\n"
        "print('dwell' in load_registry(disable=['example']).names('prior'))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["mbrl-hdp-example-plugin", "MostVisited", "False"]
