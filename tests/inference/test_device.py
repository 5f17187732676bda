"""device=auto|cpu|cuda: which word means what, and that a whole fit follows its tensors to another device.

There is no GPU where the tests run. `Elsewhere` stands in for one: tensors whose device is not the CPU, which hold real
numbers and refuse what CUDA tensors refuse (mixing devices, `.numpy()`), so that a fit on them finds every tensor that
was left behind.
"""

import copy

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

import mbrl_hdp
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments.fit_command import prepare
from mbrl_hdp.experiments.jobs import check_jobs
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference import fit as fit_module
from mbrl_hdp.inference.devices import check_device, has_small_networks, resolve_device, seeded
from mbrl_hdp.inference.heads import ContextHeads
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.probability import batched, passes
from mbrl_hdp.types import TaskSpec

QUICK = FitConfig(
    start="random", num_steps=12, polish_steps=4, batch_size=6, num_restarts=1, patience=50, check_every=3
)
AWAY = torch.device("meta")
aten = torch.ops.aten
# A CUDA tensor may be indexed by CPU indices, and written to from the CPU.
MAY_MIX = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
MAY_MOVE = {aten.copy_.default, aten._to_copy.default}


class Elsewhere(torch.Tensor):
    """A tensor on another device that holds its numbers on the CPU."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=AWAY
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"Elsewhere({self.inner})"

    def tolist(self):  # torch allows it for CUDA tensors, not for subclasses
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})


class OtherDevice(TorchDispatchMode):
    """While this is on, the device `AWAY` exists."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})


def dispatch(func, args, kwargs):
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    is_away = any(isinstance(tensor, Elsewhere) for tensor in tensors)
    left_behind = [t for t in tensors if not isinstance(t, Elsewhere) and t.ndim > 0]
    may_mix = func in MAY_MOVE or (func in MAY_MIX and isinstance(tensors[0], Elsewhere))
    if is_away and left_behind and not may_mix:
        raise RuntimeError(f"{func}: tensors on two devices, {[tuple(t.shape) for t in left_behind]} left behind")
    target = kwargs.get("device")
    goes_away = is_away if target is None else torch.device(target) == AWAY
    if target is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if func is aten.copy_.default:
        goes_away = isinstance(args[0], Elsewhere)
    inner_args, inner_kwargs = tree_map_only(Elsewhere, lambda tensor: tensor.inner, (args, kwargs))
    result = func(*inner_args, **inner_kwargs)
    own = {id(tensor.inner): tensor for tensor in tensors if isinstance(tensor, Elsewhere)}

    def wrap(tensor):
        return own.get(id(tensor), tensor) if id(tensor) in own else Elsewhere(tensor)

    return tree_map_only(torch.Tensor, wrap, result) if goes_away else result


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    obs, act = rng.normal(size=(12, 9, 2)), rng.normal(size=(12, 8, 1))
    obs[2, 4] = np.nan
    return mbrl_hdp.Trajectories(obs, act, lengths=[8, 5, *[8] * 10], allow_missing=True)


def quick_fit(data, device="auto", dynamics="delta_mlp", prior="hdp"):
    return mbrl_hdp.fit(
        data, prior, dynamics=dynamics, max_contexts=3, config=QUICK, progress=False, device=device
    )  # fmt: skip


def numbers(model):
    return {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}


@pytest.fixture
def without_kernels(monkeypatch):
    """Send the CPU the way that other devices go."""
    monkeypatch.setattr(passes, "_engine_for", lambda _: batched)
    monkeypatch.setattr(ContextHeads, "_is_compilable", lambda *_: False)


class TestWords:
    def test_auto_is_the_cpu_without_cuda_and_the_same_fit(self, data, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        by_default, on_cpu = quick_fit(data), quick_fit(data, device="cpu")
        assert by_default.device == torch.device("cpu")
        for name, tensor in on_cpu.state_dict().items():
            assert torch.equal(tensor, by_default.state_dict()[name])

    def test_auto_takes_cuda_only_where_it_is_and_networks_are_not_small(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert resolve_device("auto", lambda: True).type == "cpu"
        assert resolve_device("auto", lambda: False).type == "cuda"
        assert resolve_device("cpu", lambda: False).type == "cpu"
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert resolve_device("auto", lambda: False).type == "cpu"

    @pytest.mark.parametrize(
        ("hidden_sizes", "obs_dim", "is_small"),
        [([128], 3, True), ([], 3, True), ([512], 3, True), ([64, 64], 3, False), ([128], 200, False)],
    )
    def test_small_is_what_the_kernels_are_made_for(self, hidden_sizes, obs_dim, is_small):
        registry = load_registry()
        config = registry.get("dynamics", "delta_mlp").spec.config(hidden_sizes=hidden_sizes)
        built = registry.build_dynamics("delta_mlp", TaskSpec(2, obs_dim, 1), config)
        assert has_small_networks(built) is is_small

    def test_an_unknown_word_tells_the_known_ones(self, data):
        with pytest.raises(ConfigError, match="auto, cpu, cuda"):
            quick_fit(data, device="gpu")
        with pytest.raises(ConfigError, match="device='gpu'"):
            prepare(["logs.csv", "device=gpu"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
class TestWithoutCuda:
    def test_cuda_is_refused_before_any_work(self, data, tmp_path):
        registry = load_registry()
        for attempt in (
            lambda: quick_fit(data, device="cuda"),
            lambda: mbrl_hdp.load(tmp_path / "not there", device="cuda"),
            lambda: prepare(["no_such_file.csv", "device=cuda", f"out={tmp_path}"]),
            lambda: check_jobs(["device=cuda"], registry),
        ):
            with pytest.raises(ConfigError, match=r"device=cuda.*use device=cpu"):
                attempt()

    def test_it_says_what_is_missing(self, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", None)
        with pytest.raises(ConfigError, match="built without CUDA: install a CUDA build"):
            check_device("cuda")
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ConfigError, match="no CUDA device: check the driver"):
            check_device("cuda")


def test_load_puts_a_model_on_the_device(data, tmp_path):
    quick_fit(data).save(tmp_path)
    with OtherDevice():
        away = mbrl_hdp.load(tmp_path).to(AWAY)
        assert {tensor.device for tensor in away.state_dict().values()} == {AWAY}
        assert away.chain.transition.device == away.device == AWAY
        back = copy.deepcopy(away).to("cpu")
        away.save(tmp_path / "again")
    assert back.device.type == "cpu"
    again = mbrl_hdp.load(tmp_path / "again", device="auto")
    np.testing.assert_equal(numbers(again), numbers(mbrl_hdp.load(tmp_path, device="cpu")))


@pytest.mark.parametrize(("dynamics", "prior"), [("delta_mlp", "hdp"), ("linear", "dirichlet"), ("delta_mlp", "mle")])
def test_a_fit_on_another_device_is_the_same_fit(data, dynamics, prior, monkeypatch, without_kernels):
    wanted = numbers(quick_fit(data, "cpu", dynamics, prior))
    monkeypatch.setattr(fit_module, "resolve_device", lambda *_: AWAY)
    with OtherDevice():
        found = quick_fit(data, "auto", dynamics, prior)
    np.testing.assert_equal(numbers(found), wanted)


def test_without_kernels_the_numbers_are_the_same(data, request):
    wanted = numbers(quick_fit(data, "cpu"))
    request.getfixturevalue("without_kernels")
    found = numbers(quick_fit(data, "cpu"))
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_a_model_on_another_device_answers_as_on_the_cpu(data, without_kernels):
    model = quick_fit(data, "cpu")
    complete = mbrl_hdp.Trajectories(np.nan_to_num(data.obs), data.act)
    with OtherDevice():
        away = copy.deepcopy(model).to(AWAY)
        for name in ("filtered", "smoothed", "most_likely", "log_likelihood", "predictive_belief", "predicted"):
            found, wanted = getattr(away.analyse(complete), name), getattr(model.analyse(complete), name)
            np.testing.assert_array_equal(found, wanted, err_msg=name)
        for name in ("transition", "initial", "stationary", "kept"):
            np.testing.assert_array_equal(getattr(away, name), getattr(model, name), err_msg=name)
        online, reference = away.online_filter(), model.online_filter()
    for one in (online, reference):
        one.reset(complete.obs[0, 0])
    step = complete.act[0, 0], complete.obs[0, 1]
    np.testing.assert_allclose(online.update(*step), reference.update(*step))


def test_the_other_device_refuses_what_cuda_refuses():
    with OtherDevice():
        away = torch.arange(3.0).to(AWAY)
        with pytest.raises(RuntimeError, match="two devices"):
            away + torch.ones(3)
        with pytest.raises((RuntimeError, TypeError)):
            away.numpy()
        assert (away + 1.0).device == AWAY
        assert away[torch.tensor([2, 0])].cpu().tolist() == [2.0, 0.0]


SIZES = {"cartpole": (4, 1), "drone": (12, 4), "vehicle": (12, 2)}


def parts():
    registry = load_registry()
    found = [(plugin.kind, plugin.spec.name) for plugin in registry.all() if plugin.kind in {"prior", "dynamics"}]
    return [(kind, name) for kind, name in found if name != "auto"]  # it is decided by `fit`, never built


@pytest.mark.parametrize(("kind", "name"), parts(), ids=lambda word: word)
def test_no_tensor_of_a_part_is_left_behind(kind, name):
    """Every tensor that hangs on a module is a parameter or a buffer, so that `.to` finds it."""
    registry = load_registry()
    obs_dim, act_dim = SIZES.get(name, (3, 1))
    task = TaskSpec(3, obs_dim, act_dim, dt=0.1)
    part = getattr(registry, f"build_{kind}")(name, task, registry.get(kind, name).spec.config())
    moved = {id(tensor) for tensor in (*part.parameters(), *part.buffers())}
    for module in part.modules():
        for attribute, value in vars(module).items():
            if attribute not in {"_parameters", "_buffers", "_modules"}:
                for leaf in tree_flatten(value)[0]:
                    assert not isinstance(leaf, torch.Tensor) or id(leaf) in moved, f"{type(module)}.{attribute}"


def test_seeding_for_the_cpu_leaves_cuda_and_the_global_stream_alone(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "manual_seed", calls.append)
    before = torch.random.get_rng_state()
    with seeded(3, torch.device("cpu")):
        drawn = torch.rand(4)
    assert torch.equal(drawn, torch.rand(4, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert calls == []
