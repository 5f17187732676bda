"""The left turn: numpy against highway-env, contexts that really act, and the promises of every environment."""

from __future__ import annotations

import math
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from highway_env import utils

from mbrl_hdp.envs import intersection_road as road
from mbrl_hdp.envs.intersection import make_intersection
from mbrl_hdp.envs.intersection_highway import HighwayBackend, _make_road
from mbrl_hdp.envs.intersection_physics import IntersectionPhysics
from mbrl_hdp.envs.intersection_vehicle import VEHICLES, IntersectionConfig, advance, cars_overlap, coast
from mbrl_hdp.errors import ConfigError

BACKENDS = ["highway_env", "vector"]
PRESETS = Path(__file__).parents[2] / "conf" / "env"
SOUTH_START = [2.0, 11.0, 0.0, -10.0, 0.0, -1.0]
NORTH_START = [-2.0, -12.0, 0.0, 11.0, 0.0, 1.0]


def random_acts(seed, num=100):
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (num, 2))


def drive_both(config, acts):
    """Largest distance between the two backends per step, of the ego and of the social car, and the last state."""
    package, physics = HighwayBackend(config), IntersectionPhysics(config)
    package.reset()
    state = physics.start(1, np.random.default_rng(0))
    apart, num_yielding = [], 0
    for act in acts:
        ego, social = package.step(act, 1.0)
        state = physics.step(state, act[None], {})
        pairs = ((ego, state.ego[0]), (social, state.social[0]))
        apart.append([np.abs(theirs - ours).max() for theirs, ours in pairs])
        num_yielding += int(state.driver.is_yielding[0])
    return np.max(apart, axis=0), num_yielding, state


def test_lanes_are_the_packages():
    network = _make_road().network
    lanes = network.lanes_dict()
    starts = road.lane_position(np.arange(20), np.zeros(20))
    ours = {}
    for index, lane in lanes.items():
        ends = road.lane_position(np.arange(20), road.LENGTH)
        gap = np.abs(starts - lane.position(0, 0)).sum(1) + np.abs(ends - lane.position(lane.length, 0)).sum(1)
        ours[index] = int(np.argmin(gap))
        assert gap.min() < 1e-9
        assert road.PRIORITY[ours[index]] == lane.priority
    assert sorted(ours.values()) == list(range(20))
    rng = np.random.default_rng(0)
    points, headings = rng.uniform(-40, 40, (60, 2)), rng.uniform(-7, 7, 60)
    frames = road.lane_frames(points)
    for column, (point, heading) in enumerate(zip(points, headings, strict=True)):
        for index, lane in lanes.items():
            along, across = lane.local_coordinates(point)
            assert frames.along[ours[index], column] == pytest.approx(along, abs=1e-9)
            assert frames.across[ours[index], column] == pytest.approx(across, abs=1e-9)
        nearest = network.get_closest_lane_index(point, heading)
        assert road.closest_lane(frames, headings)[column] == ours[nearest]
    for origin, start in road.CORNERS.items():
        for destination, end in road.CORNERS.items():
            if origin != destination:
                names = [(f"o{start}", f"ir{start}", 0), (f"ir{start}", f"il{end}", 0), (f"il{end}", f"o{end}", 0)]
                assert road.route_lanes(origin, destination).tolist() == [ours[name] for name in names]


@pytest.mark.parametrize("vehicle", VEHICLES)
@pytest.mark.parametrize("seed", range(3))
def test_vector_tracks_highway_env(vehicle, seed):
    rng = np.random.default_rng(seed)
    acts = random_acts(seed) if seed < 2 else np.clip(rng.normal([-0.1, -0.1], 0.15, (100, 2)), -1, 1)
    apart, _, state = drive_both(IntersectionConfig(vehicle=vehicle), acts)
    assert apart[0] < 1e-9
    assert apart[1] < 1e-9
    assert np.abs(state.ego[0, :2] - [2.0, 11.0]).max() > 1.0


@pytest.mark.parametrize("vehicle", VEHICLES)
def test_vector_tracks_highway_env_through_the_environment(rollout, vehicle):
    acts = random_acts(5)
    theirs, _, contexts, info = rollout(make_intersection(vehicle=vehicle), acts, seed=3)
    ours, _, our_contexts, our_info = rollout(make_intersection(vehicle=vehicle, backend="vector"), acts, seed=3)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(contexts, our_contexts)
    assert set(contexts) == {0, 1}
    assert info["distance"] == pytest.approx(our_info["distance"], abs=1e-9)
    assert info["crashed"] == our_info["crashed"]


@pytest.mark.parametrize(
    ("numbers", "brake", "steer", "must_yield"),
    [
        ({"social_to": "east", "social_longitudinal": 70.0, "ego_longitudinal": 90.0}, -0.2, 0.0, True),
        ({"social_to": "south", "social_longitudinal": 85.0, "social_speed": 8.0}, -0.1, -0.1, True),
        ({"social_from": "west", "social_to": "north", "social_longitudinal": 80.0, "dt": 0.05}, -0.25, 0.0, True),
        ({"social_from": "south", "social_to": "west", "social_longitudinal": 70.0, "dt": 1 / 15}, -0.12, 0.0, False),
        ({"social_from": "east", "social_to": "west", "social_longitudinal": 90.0, "vehicle": "slip"}, 0.0, 0.0, False),
        (
            {"social_from": "south", "social_to": "east", "social_longitudinal": 85.0, "idm_jam_distance": 7.0},
            0,
            0,
            False,
        ),
    ],
)
def test_driver_follows_and_yields_as_the_package(numbers, brake, steer, must_yield):
    rng = np.random.default_rng(1)
    acts = np.clip(rng.normal([brake, steer], 0.02, (90, 2)), -1, 1)
    free = IntersectionConfig(**numbers)
    apart, num_yielding, state = drive_both(free, acts)
    assert apart.max() < 1e-6
    assert (num_yielding > 0) == must_yield
    alone, _, unhindered = drive_both(free, np.tile([-1.0, 0.0], (90, 1)))  # the ego reverses out of the way
    assert alone.max() < 1e-6
    if must_yield:
        assert np.abs(state.social - unhindered.social).max() > 0.5


def test_start_is_the_papers():
    for backend in BACKENDS:
        obs, info = make_intersection(backend=backend).reset(seed=0)
        np.testing.assert_allclose(obs, SOUTH_START + NORTH_START, atol=1e-12)
        assert info["distance"] == pytest.approx(math.hypot(4.0, 23.0))
        assert not info["crashed"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("vehicle", VEHICLES)
@pytest.mark.parametrize("actuation", [1.0, -1.0, 0.3])
def test_actuation_scales_the_steering_only(rollout, backend, vehicle, actuation):
    env = make_intersection(backend=backend, vehicle=vehicle, actuation=[actuation])
    obs, rewards, _, _ = rollout(env, np.array([[0.6, -0.4], [0.0, 0.0]]))
    angle = -0.4 * math.pi / 4 * actuation
    if vehicle == "slip":
        slip = math.atan(math.tan(angle) / 2)
        place, heading = (2 + math.cos(-math.pi / 2 + slip), 11 + math.sin(-math.pi / 2 + slip)), math.sin(slip) / 2.5
    else:
        place, heading = (2.0, 10.0), math.tan(angle) / 5
    heading = -math.pi / 2 + heading  # 10 m/s for 0.1 s is one metre
    speed = 10 + 0.6 * 5 * 0.1
    expected = [*place, speed * math.cos(heading), speed * math.sin(heading), math.cos(heading), math.sin(heading)]
    np.testing.assert_allclose(obs[1, :6], expected, atol=1e-12)
    reward = 5 * math.exp(-abs(place[1] + 2) / 8) + math.exp(-abs(1 + math.cos(heading))) + 0.1 * speed / 70
    assert rewards[0] == pytest.approx(reward - 0.05 * 0.4**2, rel=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_report_is_what_acted(rollout, backend):
    acts = np.tile([0.0, 0.3], (60, 1))
    obs, _, contexts, _ = rollout(make_intersection(backend=backend), acts, seed=4)
    heading = np.unwrap(np.arctan2(obs[:, 5], obs[:, 4]))
    assert 10 < contexts.sum() < 50
    np.testing.assert_array_equal(np.diff(heading) > 0, contexts == 0)


def test_social_car_takes_its_route(rollout):
    """Alone on the road: a right turn about (-11, -11), then west along y = -2 at the limit of 10 m/s."""
    obs, _, _, _ = rollout(make_intersection(backend="vector"), np.tile([-1.0, 0.0], (100, 1)))
    x, y = obs[:, 6], obs[:, 7]
    is_turning = (x > -11) & (y > -11)
    assert np.abs(np.hypot(x + 11, y + 11)[is_turning] - 9).max() < 1.0  # the controller swings wide
    assert np.abs(y[x < -20] + 2).max() < 0.2
    assert obs[-1, 8] == pytest.approx(-10, abs=0.01)


@pytest.mark.parametrize("backend", BACKENDS)
def test_social_car_goes_on_beyond_its_road(rollout, backend):
    env = make_intersection(backend=backend, horizon=180)
    obs, _, _, _ = rollout(env, np.tile([-0.05, 0.0], (180, 1)))
    assert obs[-1, 6] < -160  # the road ends at -111
    assert obs[-1, 7] == pytest.approx(-2, abs=1e-6)
    assert obs[-1, 10] == pytest.approx(-1)


def side_by_side(apart):
    """Two cars heading west, one `apart` metres north of the other on the exit lane."""
    car = [-20.0, -2.0, -10.0, 0.0, -1.0, 0.0]
    return np.array([*car, -20.0, -2.0 - apart, *car[2:]])


def test_a_collision_costs_what_it_is_set_to():
    obs, act = np.stack([side_by_side(apart) for apart in (1.9, 2.1)]), np.zeros((2, 2))
    plain, costly = (make_intersection(backend="vector", collision_cost=cost).unwrapped for cost in (0.0, 7.0))
    lost = plain.physics.reward(act, obs) - costly.physics.reward(act, obs)
    np.testing.assert_allclose(lost, [7.0, 0.0])
    by_torch = costly.reward_fn(torch.tensor(act), torch.tensor(obs))
    np.testing.assert_allclose(by_torch[:, 0], costly.physics.reward(act, obs))
    with pytest.raises(ConfigError, match="collision_cost"):
        make_intersection(backend="vector", collision_cost=-1.0)


def test_scores_of_an_episode_are_known():
    env = make_intersection(backend="vector").unwrapped
    obs = np.stack([side_by_side(apart) for apart in (9.0, 1.5, 3.0, 4.0)])
    obs[2, [1, 4, 5]] = -2.5, -np.cos(0.3), np.sin(0.3)
    obs[3, [1, 4, 5]] = -1.0, -np.cos(0.1), -np.sin(0.1)
    found = env.episode_scores(obs)
    assert found == pytest.approx({"lane_error": 0.75, "heading_error": 0.2, "closest": 1.5, "collision": 1.0})
    assert env.episode_scores(obs[3:])["collision"] == 0.0


def test_overlap_is_the_packages():
    rng = np.random.default_rng(0)
    first, second = rng.uniform(-3, 3, (2, 400, 4))

    def corners(pose):
        points = utils.rect_corners(pose[:2], 5.0, 2.0, pose[2])
        return np.vstack([points, points[:1]])

    still = np.zeros(2)
    expected = [
        utils.are_polygons_intersecting(corners(a), corners(b), still, still)[0]
        for a, b in zip(first, second, strict=True)
    ]
    ours = cars_overlap(first, second)
    assert 0.2 < np.mean(expected) < 0.9
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("vehicle", VEHICLES)
def test_coasting_is_advancing_again_and_again(vehicle):
    config = IntersectionConfig(vehicle=vehicle)
    rng = np.random.default_rng(0)
    pose = rng.uniform([-10, -10, -3, -60], [10, 10, 3, 60], (50, 4))  # some beyond the speed limit
    steering = rng.uniform(-0.7, 0.7, 50)
    coasted = coast(config, pose, steering, 0.25, 11)
    for step in coasted:
        pose = advance(config, pose, steering, np.zeros(50), 0.25)
        np.testing.assert_allclose(step, pose, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_collision_is_reported_and_changes_nothing(backend):
    # The social car starts right behind the ego, which brakes.
    numbers = {"social_from": "south", "social_longitudinal": 94.6, "social_speed": 15.0, "ego_speed": 3.0}
    env = make_intersection(backend=backend, **numbers)
    _, info = env.reset(seed=0)
    assert not info["crashed"]
    closest = info["distance"]
    for _ in range(10):
        obs, _, terminated, _, info = env.step(np.array([-1.0, 0.0]))
        closest = min(closest, math.hypot(*(obs[:2] - obs[6:8])))
        assert not terminated
    assert info["crashed"]
    assert info["distance"] == pytest.approx(closest)
    assert obs[3] == pytest.approx(-(3.0 - 5.0 * 1.0))  # still braking, now backwards
    _, info = env.reset()
    assert not info["crashed"]


def test_copies_of_a_batch_do_not_mix():
    physics = IntersectionPhysics(IntersectionConfig(social_longitudinal=80.0, social_to="east"))
    rng = np.random.default_rng(0)
    acts, actuation = rng.uniform(-0.5, 0.3, (40, 7, 2)), rng.uniform(-1, 1, 7)
    together = physics.start(7, rng)
    for act in acts:
        together = physics.step(together, act, {"actuation": actuation})
    for index in range(7):
        alone, one = physics.start(1, rng), slice(index, index + 1)
        for act in acts:
            alone = physics.step(alone, act[one], {"actuation": actuation[one]})
        np.testing.assert_allclose(alone.ego[0], together.ego[index], atol=1e-10)
        np.testing.assert_allclose(alone.social[0], together.social[index], atol=1e-6)


@pytest.mark.parametrize("vehicle", VEHICLES)
def test_thousand_random_episodes(vehicle):
    batch = make_intersection(backend="vector", vehicle=vehicle).as_batch(1000)
    rng = np.random.default_rng(0)
    obs, _ = batch.reset(seed=0)
    for _ in range(100):
        obs, reward, terminated, truncated, info = batch.step(batch.sample_actions(rng))
        assert np.isfinite(obs).all()
        assert np.isfinite(reward).all()
        assert not terminated.any()
    assert truncated.all()
    assert set(info["context"]) == {0, 1}
    assert np.abs(obs[:, [2, 3, 8, 9]]).max() < 41
    assert np.abs(obs[:, [0, 1, 6, 7]]).max() < 500
    assert 0 < info["crashed"].mean() < 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "higway_env"}, "did you mean 'highway_env'"),
        ({"horizn": 5}, "did you mean 'horizon'"),
        ({"vehicle": "bicycle"}, "did you mean 'bicycle_2020'"),
        ({"dt": 0.0}, r"intersection\.dt must be above 0"),
        ({"social_from": "west"}, "social_to must differ from social_from"),
        ({"contexts": [{"friction": 1.0}]}, r"contexts\[0\]\.friction is unknown"),
        ({"actuation": [[1.0, 1.0]]}, r"actuation\[0\] must be one number"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_intersection(**settings)


@pytest.mark.parametrize("name", ["intersection", "intersection_vector"])
def test_presets(name):
    preset = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())
    assert set(preset) - {"report_kwargs"} == {"defaults", "name", "id", "kwargs", "reward"}
    assert preset.get("report_kwargs") == ({"backend": "highway_env"} if name.endswith("vector") else None)
    assert preset["name"] == name
    env = gymnasium.make(f"mbrl_hdp.envs:{preset['id']}", **preset["kwargs"])
    assert env.unwrapped.config == IntersectionConfig()
    assert env.unwrapped.backend == {"intersection": "highway_env", "intersection_vector": "vector"}[name]
    assert env.get_wrapper_attr("num_contexts") == 2
    env.close()
