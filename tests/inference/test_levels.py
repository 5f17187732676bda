"""The tree of merges and the models of its levels, on a world of three contexts, against least squares."""

import itertools

import numpy as np
import pytest
import torch

import mbrl_hdp
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.inference.levels import MergeLevel, add_levels, grouped_chain, merge_levels, read_levels
from mbrl_hdp.inference.schedule import FitConfig
from tests.inference.test_fit import weak_prior, world

CONFIG = FitConfig(num_contexts=3, halves_within_s=0.0)


@pytest.fixture(scope="module")
def data():
    return world(40, 0, contexts=(0, 1, 2))


@pytest.fixture(scope="module")
def model(data):
    return mbrl_hdp.fit(data, weak_prior(), dynamics="linear", max_contexts=5, config=CONFIG, progress=False)


def test_levels_lose_more_and_more(model):
    three, two, one = read_levels(model.report.levels)
    assert (len(three.groups), len(two.groups), one.groups) == (3, 2, ((0, 1, 2),))
    assert three.loss == 0.0
    assert 0.1 < two.loss < one.loss
    assert two.error < 0.3 * two.loss
    assert not two.is_approximate


def test_a_level_is_the_best_of_all_merges(model, data):
    """Of the three ways to merge two contexts, the one whose least squares fits have the largest likelihood."""
    two = merge_levels(model, data)[1]
    labels = model.most_likely(data)
    lost = {}
    for pair in itertools.combinations(range(3), 2):
        members = [labels == context for context in pair]
        lost[pair] = _surprise(data, members[0] | members[1]) - sum(_surprise(data, mask) for mask in members)
    assert min(lost, key=lost.get) in two.groups
    assert two.loss == pytest.approx(min(lost.values()) / data.is_observed.sum(), rel=0.35)  # the chain has its part


def _surprise(data, mask):
    """Negative log-likelihood of one affine map with normal noise at its optimum, up to what all ways share."""
    count = int(mask.sum())
    return 0.5 * count * float(np.log(_squares(data, mask) / count).sum())


def _squares(data, mask):
    """Squared error of one affine map fitted to some steps, by column."""
    x = np.concatenate([data.obs[:, :-1], data.act, np.ones_like(data.act)], -1)[mask]
    y = (data.obs[:, 1:] - data.obs[:, :-1])[mask]
    return np.square(y - x @ np.linalg.lstsq(x, y, rcond=None)[0]).sum(0)


def test_the_model_of_a_level(model, data):
    two = model.at_level(2)
    assert (two.num_contexts, model.num_contexts) == (2, 3)
    level = read_levels(model.report.levels)[1]
    # Labels: the merged contexts' steps are one context, the other's stay.
    merged = np.array([next(i for i, group in enumerate(level.groups) if k in group) for k in range(3)])
    assert np.mean(merged[model.most_likely(data)] == two.most_likely(data)) > 0.97
    # Its evidence on the data is what the tree says, up to cross-fitting.
    lost = (model.log_likelihood(data).sum() - two.log_likelihood(data).sum()) / data.is_observed.sum()
    assert lost == pytest.approx(level.loss, abs=0.05)
    # The chain is that of the groups.
    shares = model.stationary
    for (i, one), (j, other) in itertools.product(enumerate(level.groups), repeat=2):
        flow = sum(shares[a] * model.transition[a, b] for a in one for b in other)
        assert two.transition[i, j] == pytest.approx(flow / shares[list(one)].sum(), abs=5e-3)


def test_the_merged_head_is_fitted_to_all_steps_of_its_contexts(model, data):
    two = model.at_level(2)
    labels = two.most_likely(data)
    (group,) = [number for number, each in enumerate(read_levels(model.report.levels)[1].groups) if len(each) == 2]
    x = torch.as_tensor(data.obs[:, :-1][labels == group], dtype=torch.float32)
    act = torch.as_tensor(data.act[labels == group], dtype=torch.float32)
    with torch.no_grad():
        predicted = two.dynamics.predict(x, act, two.slots[group].expand(len(x))).numpy()
    error = np.square(data.obs[:, 1:][labels == group] - predicted).sum(0)
    np.testing.assert_allclose(error, _squares(data, labels == group), rtol=0.05)


def test_levels_of_a_level(model):
    two = model.at_level(2)
    assert [level.groups for level in read_levels(two.report.levels)] == [((0,), (1,)), ((0, 1),)]
    direct, by_way = model.at_level(1), two.at_level(1)
    assert direct.num_contexts == by_way.num_contexts == 1
    for mine, theirs in zip(direct.dynamics.parameters(), by_way.dynamics.parameters(), strict=True):
        assert torch.equal(mine[direct.slots], theirs[by_way.slots])
    assert model.at_level(3).num_contexts == 3


def test_levels_are_saved(model, data, tmp_path):
    model.save(tmp_path)
    again = mbrl_hdp.load(tmp_path)
    assert read_levels(again.report.levels) == read_levels(model.report.levels)
    np.testing.assert_array_equal(again.at_level(2).most_likely(data), model.at_level(2).most_likely(data))


def test_levels_that_are_not_there(model, data):
    with pytest.raises(ConfigError, match="levels of 1 to 3"):
        model.at_level(4)
    refit = mbrl_hdp.fit(data, warm_start=model, config=CONFIG, progress=False)
    with pytest.raises(ConfigError, match=r"at_level\(n, data\)"):
        refit.at_level(2)
    assert refit.at_level(2, data).num_contexts == 2


def test_networks_keep_the_better_head_and_say_so(data):
    config = FitConfig(start="random", num_steps=15, num_restarts=1, polish_steps=0)
    model = mbrl_hdp.fit(data, weak_prior(), dynamics="delta_mlp", max_contexts=3, config=config, progress=False)
    model.is_active = torch.ones(3, dtype=torch.bool)
    model.prior.start_from(mbrl_hdp.ContextChain(torch.full((3,), 1 / 3), 0.7 * torch.eye(3) + 0.1), 1000.0)
    model.extract()
    assert model.num_contexts == 3
    add_levels(model, data)
    two = read_levels(model.report.levels)[1]
    assert two.is_approximate
    rough = model.at_level(2)
    (pair,) = [group for group in two.groups if len(group) == 2]
    place = rough.slots[two.groups.index(pair)]
    weights = next(model.dynamics.parameters())
    assert any(torch.equal(next(rough.dynamics.parameters())[place], weights[member]) for member in pair)
    trained = model.at_level(2, data)
    assert trained.log_likelihood(data).sum() > rough.log_likelihood(data).sum()


def test_chain_of_groups():
    starts = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    moves = torch.tensor([[8.0, 1.0, 1.0], [2.0, 4.0, 0.0], [1.0, 1.0, 6.0]], dtype=torch.float64)
    chain = grouped_chain(starts, moves, ((0, 2), (1,)))
    np.testing.assert_allclose(chain.initial, [0.75, 0.25])
    np.testing.assert_allclose(chain.transition, [[16 / 18, 2 / 18], [2 / 6, 4 / 6]], rtol=1e-6)


def test_groups_are_renumbered():
    fine = MergeLevel(((0, 3), (1,), (2,)), 0.25, 0.0, False)
    coarse = MergeLevel(((0, 2, 3), (1,)), 0.75, 0.0, False)
    assert coarse.coarser_than(fine) == MergeLevel(((0, 2), (1,)), 0.5, 0.0, False)
