"""Swapped labels are exchanged back; contexts that depend on the place are told from regions that a head underfits."""

import numpy as np
import pytest

from mbrl_hdp import Trajectories
from mbrl_hdp.envs.systems import simulate
from mbrl_hdp.inference.scoring import align
from mbrl_hdp.inference.search import search
from mbrl_hdp.inference.search.em import expect
from mbrl_hdp.inference.search.exchange import exchanged, switch_patterns
from mbrl_hdp.inference.search.features import Factor, Features, Library, linear_features, monomials
from mbrl_hdp.inference.search.growth import fitted
from mbrl_hdp.inference.search.moves import Candidate, settle, simpler
from mbrl_hdp.inference.search.regions import jump_share
from mbrl_hdp.inference.search.rows import make_rows


def rows_and_truth(name, variant="plain", num_episodes=40):
    rollouts = simulate(name, variant, seed=5, num_episodes=num_episodes)
    rows = make_rows(Trajectories(obs=rollouts.obs, act=rollouts.act))
    return rows, rollouts.context[rows.episode, rows.step]


def soft(labels, count=2):
    return 0.98 * np.eye(count)[labels] + 0.02 / count


def cubic(rows):
    library = Library(rows)
    return Features(library, monomials(library, 3, 60))


def test_labels_swapped_on_one_side_of_where_heads_agree_are_exchanged_back():
    rows, truth = rows_and_truth("rossler")  # the contexts differ by a multiple of the second coordinate
    features = cubic(rows)
    kinked = features.with_terms([(Factor(1, "hinge", float(-rows.input_center[1] / rows.input_scale[1])),)])
    swapped = settle(rows, kinked, soft(np.where(rows.raw_inputs[:, 1] > 0.0, truth, 1 - truth)), 0.01)
    assert align(swapped.state.weight.argmax(1), truth).accuracy < 0.7
    assert align(exchanged(rows, swapped).state.weight.argmax(1), truth).accuracy > 0.97


def motor_rows(num_episodes=16, num_steps=250):
    """Two kinds of friction, dry and viscous, which are equal at a speed of +-4.7: no polynomial of the speed."""
    rng = np.random.default_rng(3)
    speed, current, context = np.zeros(num_episodes), np.zeros(num_episodes), rng.integers(2, size=num_episodes)
    obs, act, contexts = [np.stack([speed, current], 1)], [], []
    for step in range(num_steps):
        if step % 10 == 0:
            volt = rng.uniform(-12.0, 12.0, num_episodes)
        context = np.where(rng.random(num_episodes) < 1 / 60, 1 - context, context)
        friction = 0.1 * speed + np.where(context == 0, 0.7 * np.tanh(3.0 * speed), 0.15 * speed)
        noise = 0.01 * rng.normal(size=(2, num_episodes))
        speed, current = (
            speed + 0.2 * (0.6 * current - friction) + noise[0],
            current + 0.2 * (volt - current - 0.4 * speed) + noise[1],
        )
        obs.append(np.stack([speed, current], 1))
        act.append(volt[:, None])
        contexts.append(context)
    rows = make_rows(Trajectories(obs=np.stack(obs, 1), act=np.stack(act, 1)))
    return rows, np.stack(contexts, 1)[rows.episode, rows.step]


def test_labels_swapped_beyond_a_surface_are_found_by_the_switches_where_it_is_crossed():
    rows, truth = motor_rows()
    speed = rows.raw_inputs[:, 0]
    swapped = settle(rows, waves(rows), soft(np.where(speed > -4.7, truth, 1 - truth)), 0.01, 2)
    before = align(swapped.state.weight.argmax(1), truth).accuracy
    assert before < 0.9
    (found, *_) = switch_patterns(rows, swapped, (0, 1))
    is_far = np.abs(speed + 4.7) > 1.0
    assert (found == (speed > -4.7))[is_far].mean() in (pytest.approx(0.0, abs=0.02), pytest.approx(1.0, abs=0.02))
    assert align(exchanged(rows, swapped).state.weight.argmax(1), truth).accuracy > 0.97


def steered_rows(num_episodes=40, num_steps=60):
    """A velocity that steering turns to the left or to the right, beside nine columns that drift by themselves."""
    rng = np.random.default_rng(4)
    velocity, drift = rng.normal(size=(2, num_episodes)), rng.normal(size=(9, num_episodes))
    context = rng.integers(2, size=num_episodes)
    obs, act, contexts = [np.concatenate([velocity, drift]).T], [], []
    for _ in range(num_steps):
        context = np.where(rng.random(num_episodes) < 0.1, 1 - context, context)
        steering = rng.uniform(-1.0, 1.0, num_episodes)
        turn = 0.8 * steering * np.where(context == 0, 1.0, -1.0)
        velocity = np.stack([
            np.cos(turn) * velocity[0] - np.sin(turn) * velocity[1],
            np.sin(turn) * velocity[0] + np.cos(turn) * velocity[1],
        ])  # fmt: skip
        drift = 0.9 * drift + 0.1 * rng.normal(size=drift.shape)
        obs.append(np.concatenate([velocity, drift]).T)
        act.append(steering[:, None])
        contexts.append(context)
    rows = make_rows(Trajectories(obs=np.stack(obs, 1), act=np.stack(act, 1)))
    return rows, np.stack(contexts, 1)[rows.episode, rows.step]


def test_labels_swapped_by_the_sign_of_a_random_input_are_exchanged_back():
    rows, truth = steered_rows()
    steering = len(rows.inputs.T) - 1
    linear = linear_features(Library(rows))
    assert len(monomials(linear.library, 3, 60)) == len(linear)  # too many columns for products of any two
    # Waves of the steering make up its size, which the exchanged labels need, and not its sign.
    sizes = [(Factor(column), Factor(steering, "cos", turns)) for column in (0, 1) for turns in (1.0, 2.0, 4.0)]
    turned = np.where(rows.inputs[:, steering] > 0.0, truth, 1 - truth)
    swapped = settle(rows, linear.with_terms(sizes), soft(turned), 0.01)
    labels = swapped.state.weight.argmax(1)
    assert align(labels, truth).accuracy < 0.6
    assert align(labels, turned).accuracy > 0.9
    assert align(exchanged(rows, swapped).state.weight.argmax(1), truth).accuracy > 0.95


def test_contexts_that_switch_anywhere_have_no_pattern():
    rows, truth = motor_rows()
    assert switch_patterns(rows, settle(rows, waves(rows), soft(truth), 0.01, 2), (0, 1)) == []


def waves(rows):
    """Features that follow dry friction: sines of the speed."""
    library = Library(rows)
    return linear_features(library).with_terms([(factor,) for factor in library.factors if factor.column == 0])


def test_labels_that_are_right_stay():
    rows, truth = rows_and_truth("linear_4d_2", num_episodes=20)
    right = settle(rows, linear_features(Library(rows)), soft(truth), 0.01)
    assert exchanged(rows, right) is right


def test_steps_beside_a_switch_are_clear_where_the_dynamics_jump_and_not_where_a_head_is_too_small():
    rows, truth = rows_and_truth("cartpole_stripes", num_episodes=60)
    stripes = settle(rows, cubic(rows), soft(truth), 0.01)
    assert jump_share(rows, stripes.state, (0, 1)) > search.LEAST_JUMP
    rows, _ = rows_and_truth("lorenz", "still", num_episodes=60)
    halves = (rows.inputs[:, 0] > 0.0).astype(int)
    regions = settle(rows, linear_features(Library(rows)), soft(halves), 0.01)
    assert jump_share(rows, regions.state, (0, 1)) < 0.5 * search.LEAST_JUMP


def test_nothing_is_known_about_a_jump_without_switches():
    rows, _ = rows_and_truth("lorenz", "still", num_episodes=12)
    labels = (rows.episode > 5).astype(int)
    state = settle(rows, linear_features(Library(rows)), soft(labels), 0.01, 0).state
    state.log_lik = np.zeros((len(rows), 2))
    assert jump_share(rows, state, (0, 1)) is None


@pytest.mark.parametrize(
    ("beyond_gate", "jump", "region", "is_context"),
    [
        (0.1, 1.0, 0.0, True),  # hidden
        (0.1, None, 0.0, True),  # hidden, too few switches to see a jump
        (-0.2, 1.0, 0.5, True),  # depends on the place, and jumps there
        (-0.2, 1.0, 0.1, False),  # noise in two boxes
        (-0.2, 0.5, 0.5, False),  # a head that is too small
        (0.1, 0.2, 0.5, False),  # a small region that the gate does not see
        (-0.2, None, 0.5, False),
    ],
)
def test_a_context_is_hidden_or_jumps_where_it_ends(beyond_gate, jump, region, is_context):
    assert search._is_context(beyond_gate, jump, region) is is_context


def test_simpler_heads_know_one_input_only_as_a_line():
    rows, _ = rows_and_truth("pendulum", "still", num_episodes=20)
    library = Library(rows)
    sine = (Factor(0, "sin", 1.0),)
    features = linear_features(library).with_terms([sine])
    state = fitted(rows, features, np.ones((len(rows), 1)), 0.01)
    expect(rows, state)
    found = simpler(rows, Candidate(state, features))
    assert [len(each.features) for each in found] == [len(features) - 1]
    assert sine not in found[0].features.terms
    assert (Factor(0),) in found[0].features.terms
