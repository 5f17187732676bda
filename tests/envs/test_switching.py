"""The wrapper on toy environments that record what acted on them, and on gymnasium's own."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_sb3

from mbrl_hdp.envs import Context, MarkovChain, ScheduleChain, StateDependentChain, SwitchingContext
from mbrl_hdp.envs.rendering import context_color
from mbrl_hdp.envs.switching import contexts_from_config, read_path, write_path
from mbrl_hdp.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Wheel:
    mass: float = 2.0


class Shift(NamedTuple):
    first: float = 0.5
    second: float = -0.5


@dataclasses.dataclass
class Params:
    gain: float = 1.5
    wheel: Wheel = dataclasses.field(default_factory=Wheel)
    doubled: float = dataclasses.field(init=False)

    def __post_init__(self):
        self.doubled = 2.0 * self.wheel.mass


class Toy(gymnasium.Env):
    """obs' = 0.9 obs + gain * act / mass + shift, plus noise from the environment's own generator at reset only."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = Box(np.array([-1.0, -2.0]), np.array([1.0, 2.0]), dtype=np.float64)
        self.params, self.shift, self.bias = Params(), Shift(), 0.0
        self.render_mode = render_mode
        self.seen_at_reset = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs = self.np_random.normal(size=2)
        self.seen_at_reset = (self.params.gain, self.bias)
        return self.obs.copy(), {"own": 1}

    def step(self, action):
        self.received = np.array(action)
        params = self.params
        assert params.doubled == 2.0 * params.wheel.mass
        self.obs = (
            0.9 * self.obs + params.gain * np.asarray(action) / params.wheel.mass + np.array(self.shift) + self.bias
        )
        return self.obs.copy(), float(self.obs[0]), False, False, {"own": 2}

    def render(self):
        return np.full((30, 300, 3), 7, dtype=np.uint8)


def set_bias(env):
    env.bias = 3.0

    def undo():
        env.bias = 0.0

    return undo


CONTEXTS = [
    Context(name="plain"),
    Context(action_scale=-0.5),
    Context(action_scale=(1.0, 3.0)),
    Context(attributes={"params.gain": -4.0}),
    Context(attributes={"params.wheel.mass": 0.25}),
    Context(attributes={"shift.second": 8.0, "params.gain": 2.0}),
    Context(apply=set_bias),
]
# (scale, gain, mass, shift, bias) of each of them
CLOSED_FORM = [
    ([1.0, 1.0], 1.5, 2.0, [0.5, -0.5], 0.0),
    ([-0.5, -0.5], 1.5, 2.0, [0.5, -0.5], 0.0),
    ([1.0, 3.0], 1.5, 2.0, [0.5, -0.5], 0.0),
    ([1.0, 1.0], -4.0, 2.0, [0.5, -0.5], 0.0),
    ([1.0, 1.0], 1.5, 0.25, [0.5, -0.5], 0.0),
    ([1.0, 1.0], 2.0, 2.0, [0.5, 8.0], 0.0),
    ([1.0, 1.0], 1.5, 2.0, [0.5, -0.5], 3.0),
]


def expected_next(obs, act, context):
    scale, gain, mass, shift, bias = CLOSED_FORM[context]
    return 0.9 * obs + gain * np.array(scale) * act / mass + np.array(shift) + bias


def toy(chain=None, contexts=CONTEXTS, **kwargs):
    return SwitchingContext(Toy(**kwargs), contexts, chain or MarkovChain.symmetric(len(contexts), 0.7, cool_off=2))


def rollout(env, num_steps, seed, act_seed):
    _, info = env.reset(seed=seed)
    rng = np.random.default_rng(act_seed)
    contexts = [info["next_context"]]
    for _ in range(num_steps):
        *_, info = env.step(rng.uniform(-1.0, 1.0, 2))
        contexts.append(info["next_context"])
    return contexts


def test_every_context_acts_as_its_closed_form_and_is_reported():
    env = toy()
    obs, info = env.reset(seed=1)
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(400):
        announced = info["next_context"]
        act = rng.uniform(-1.0, 1.0, 2)
        next_obs, _, _, _, info = env.step(act)
        assert info["context"] == announced
        assert info["own"] == 2
        assert next_obs == pytest.approx(expected_next(obs, act, announced), abs=1e-12)
        others = [k for k in range(7) if np.allclose(next_obs, expected_next(obs, act, k), atol=1e-9)]
        assert others == [announced]
        seen.add(announced)
        obs = next_obs
    assert seen == set(range(7))


def test_info_at_reset_has_only_the_next_context():
    _, info = toy().reset(seed=0)
    assert set(info) == {"own", "next_context"}


def test_same_seed_same_contexts_whatever_the_actions():
    first, second = rollout(toy(), 80, seed=3, act_seed=0), rollout(toy(), 80, seed=3, act_seed=9)
    assert first == second
    assert len(set(first)) > 3
    assert rollout(toy(), 80, seed=4, act_seed=0) != first


def test_reset_without_seed_goes_on_and_is_reproducible():
    def two_episodes():
        env = toy()
        return rollout(env, 40, seed=5, act_seed=0), rollout(env, 40, seed=None, act_seed=0)

    (first, second), (first_again, second_again) = two_episodes(), two_episodes()
    assert (first, second) == (first_again, second_again)
    assert first != second


def test_chain_leaves_the_environments_own_generator_alone():
    bare, wrapped = Toy(), toy(contexts=[Context(), Context()])
    for seed in (7, None, None):
        own, _ = bare.reset(seed=seed)
        obs, _ = wrapped.reset(seed=seed)
        assert obs == pytest.approx(own, abs=0.0)
        for _ in range(20):
            wrapped.step(np.zeros(2))
            bare.step(np.zeros(2))


def test_reset_runs_under_the_environments_own_values():
    env = toy(ScheduleChain([6, 3, 3], num_contexts=7))
    env.reset(seed=0)
    env.step(np.zeros(2))
    env.reset()
    assert env.unwrapped.seen_at_reset == (1.5, 0.0)


@pytest.mark.parametrize("context", range(7))
def test_close_gives_the_own_values_back(context):
    env = toy(ScheduleChain([context], num_contexts=7))
    env.reset(seed=0)
    env.step(np.zeros(2))
    env.close()
    inner = env.unwrapped
    assert (inner.params, inner.shift, inner.bias) == (Params(), Shift(), 0.0)
    assert inner.params.doubled == 4.0


def test_own_values_may_be_drawn_anew_at_reset():
    class Drifting(Toy):
        def reset(self, *, seed=None, options=None):
            result = super().reset(seed=seed)
            self.params.gain = 10.0 + float(self.np_random.random())
            return result

    env = SwitchingContext(Drifting(), [Context(attributes={"params.gain": 1.0})])
    env.reset(seed=0)
    env.step(np.zeros(2))
    env.close()
    assert env.unwrapped.params.gain > 10.0


def test_action_is_clipped_before_it_is_scaled():
    env = toy(ScheduleChain([1], num_contexts=7))
    env.reset(seed=0)
    env.step(np.array([5.0, -5.0]))
    assert env.unwrapped.received.tolist() == [-0.5, 1.0]
    plain = toy(ScheduleChain([0], num_contexts=7))
    plain.reset(seed=0)
    plain.step(np.array([5.0, -5.0]))
    assert plain.unwrapped.received.tolist() == [5.0, -5.0]  # the environment's own affair


def test_state_dependent_chain_reads_the_observation():
    chain = StateDependentChain(lambda obs: (obs[:, 0] > 0.0).astype(int), num_contexts=2)
    env = SwitchingContext(Toy(), [Context(), Context(attributes={"bias": -1.5})], chain)
    obs, info = env.reset(seed=0)
    seen = set()
    for _ in range(40):
        assert info["next_context"] == int(obs[0] > 0.0)
        seen.add(info["next_context"])
        obs, *_, info = env.step(np.zeros(2))
    assert seen == {0, 1}


def test_step_before_reset_is_refused():
    with pytest.raises(gymnasium.error.ResetNeeded):
        toy().step(np.zeros(2))


@pytest.mark.parametrize(
    ("contexts", "chain", "words"),
    [
        ([], None, "at least one context"),
        ([Context(attributes={"params.gian": 1.0})], None, "params has no attribute 'gian'; did you mean 'gain'"),
        ([Context(attributes={"parms.gain": 1.0})], None, "Toy has no attribute 'parms'; did you mean 'params'"),
        ([Context(attributes={"": 1.0})], None, "has no attribute ''"),
        ([Context(), Context()], MarkovChain.symmetric(3), "over 3 contexts, but 2"),
        ([Context(action_scale=(1.0, 2.0, 3.0))], None, "action_scale of context 0"),
        ([Context(action_scale=float("nan"))], None, "finite"),
    ],
)
def test_construction_errors(contexts, chain, words):
    with pytest.raises(ConfigError, match=words):
        SwitchingContext(Toy(), contexts, chain)


def test_other_spaces_are_refused():
    class Buttons(Toy):
        def __init__(self):
            super().__init__()
            self.action_space = Discrete(3)

    class Picture(Toy):
        def __init__(self):
            super().__init__()
            self.observation_space = Box(0.0, 1.0, (4, 4))

    with pytest.raises(ConfigError, match="action space"):
        SwitchingContext(Buttons(), [Context()])
    with pytest.raises(ConfigError, match="observation space"):
        SwitchingContext(Picture(), [Context()])


def test_write_path_rebuilds_what_is_frozen_and_what_is_derived():
    env = Toy()
    wheel = env.params.wheel
    write_path(env, "params.wheel.mass", 5.0)
    assert (read_path(env, "params.wheel.mass"), env.params.doubled, wheel.mass) == (5.0, 10.0, 2.0)
    write_path(env, "params.gain", 7.0)
    assert (env.params.gain, env.params.wheel.mass) == (7.0, 5.0)
    write_path(env, "params.doubled", 1.0)
    assert env.params.doubled == 1.0
    write_path(env, "shift.first", 9.0)
    assert env.shift == Shift(9.0, -0.5)


def test_derived_field_of_a_frozen_dataclass_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Sealed:
        half: float = dataclasses.field(init=False, default=0.5)

    env = Toy()
    env.sealed = Sealed()
    with pytest.raises(ConfigError, match="derived"):
        write_path(env, "sealed.half", 1.0)


def test_contexts_from_config():
    hard = contexts_from_config(None, None, ["actuation"])
    assert [context.attributes for context in hard] == [{"actuation": 1.0}, {"actuation": -1.0}]
    assert len(contexts_from_config(0.5, None, ["actuation"])) == 1
    vector = contexts_from_config([[1.0, 1.0], [1.0, 0.0]], None, ["actuation"])
    assert vector[1].attributes == {"actuation": [1.0, 0.0]}
    own = Context(action_scale=2.0)
    mixed = contexts_from_config(None, [{"name": "heavy", "mass": 3.0}, own], ["mass"])
    assert (mixed[0].name, mixed[0].attributes, mixed[1]) == ("heavy", {"mass": 3.0}, own)
    for arguments, words in (
        ((None, [{"mas": 3.0}], ["mass"]), r"contexts\[0\].mas is unknown; did you mean 'mass'"),
        (([1.0], [{"mass": 3.0}], ["mass"]), "not both"),
        (([], None, ["actuation"]), "at least one"),
        ((None, [], ["actuation"]), "at least one"),
    ):
        with pytest.raises(ConfigError, match=words):
            contexts_from_config(*arguments)


def test_number_of_contexts():
    assert toy().num_contexts == 7


def test_pictures_show_the_true_context_and_a_given_belief():
    env = toy(ScheduleChain([0] * 60 + [1] * 200, num_contexts=7), render_mode="rgb_array")
    env.reset(seed=0)
    for _ in range(100):
        env.step(np.zeros(2))
    without = env.render()
    assert without.shape == (70, 300, 3)
    assert np.all(without[:30] == 7)
    # 200 columns of the window span pixels 56 to 300; the switch at step 60 is at pixel 56 + 60 * 1.22 = 129.
    context_row, belief_row = without[40], without[58]
    assert (context_row[100] == context_color(0)).all()
    assert (context_row[135] == context_color(1)).all()
    assert not (context_row[200] == context_color(1)).all()
    env.show_belief([0.0, 0.0, 1.0])
    for _ in range(3):
        env.step(np.zeros(2))
    shown = env.render()
    assert shown.shape == without.shape
    changed = np.flatnonzero((shown[58] == context_color(2)).all(-1))
    assert changed.size >= 1
    assert not (belief_row == context_color(2)).all(-1).any()
    assert abs(changed.mean() - (56 + 100.5 * 1.22)) < 2.0
    env.reset(seed=0)
    assert not (env.render()[58] == context_color(2)).all(-1).any()


def test_the_readme_example_on_mountain_car():
    env = SwitchingContext(
        gymnasium.make("MountainCarContinuous-v0"),
        contexts=[Context(), Context(action_scale=-1.0), Context(attributes={"power": 0.003})],
        chain=MarkovChain.symmetric(3, switch=0.2, cool_off=5),
    )
    (position, velocity), info = env.reset(seed=0)
    seen = set()
    for step in range(120):
        act = np.array([0.6 if step % 2 else -0.3], dtype=np.float32)
        power, scale = [(0.0015, 1.0), (0.0015, -1.0), (0.003, 1.0)][info["next_context"]]
        expected = velocity + scale * act[0] * power - 0.0025 * np.cos(3.0 * position)
        (position, velocity), _, _, _, info = env.step(act)
        assert velocity == pytest.approx(expected, abs=1e-6)
        seen.add(info["context"])
    assert seen == {0, 1, 2}
    env.close()
    assert env.unwrapped.power == 0.0015


def test_outside_checkers_accept_a_wrapped_environment():
    contexts = [Context(), Context(action_scale=-1.0), Context(attributes={"g": 3.0})]
    env = SwitchingContext(gymnasium.make("Pendulum-v1"), contexts)
    check_env(env, skip_render_check=True)
    check_env_sb3(env, warn=False)


def test_batch_needs_physics():
    with pytest.raises(ConfigError, match="no batched physics"):
        toy().as_batch(3)
