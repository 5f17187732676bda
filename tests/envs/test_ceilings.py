"""The ceilings' parts against enumeration and closed forms; the command itself on a tiny budget."""

import itertools
import json

import gymnasium
import numpy as np
import pytest

import mbrl_hdp.envs  # noqa: F401 - registers the tasks
from benchmarks import ceiling_variants, ceilings
from benchmarks.ceiling_agents import (
    Planned,
    Scripted,
    View,
    contexts_evidence,
    known_gains,
    late_gains,
    open_loop_gains,
    run_episodes,
    without_counter,
)
from benchmarks.ceiling_cem import CemConfig, score_plans
from benchmarks.ceiling_filter import ExactFilter, log_likelihoods
from benchmarks.ceiling_refine import Refined
from benchmarks.ceiling_straight import Straight, plan_accelerations
from benchmarks.ceiling_table import best_of, load_records, page, save_records, summary
from benchmarks.ceiling_tasks import TASKS, draw_episodes, repeat_state
from benchmarks.ceiling_variants import VariantCell, variant_cells, variant_task
from mbrl_hdp.envs.chains import MarkovChain
from mbrl_hdp.envs.intersection_vehicle import IntersectionConfig
from mbrl_hdp.errors import DataError
from mbrl_hdp.experiments.studies.task_variants import COSTLY, VARIANTS, TaskVariant

TINY = CemConfig(horizon=8, population=48, num_elites=6, num_iterations=3, num_paths=4, noise_color=0.8)
IDS = {
    "cartpole": "mbrl_hdp/CartPoleSwingUp-v0",
    "drone": "mbrl_hdp/DroneTakeOff-v0",
    "intersection": "mbrl_hdp/IntersectionLeftTurn-v0",
}


def path_probability(chain: MarkovChain, path: tuple[int, ...]) -> float:
    """Walk the definition: a context acts at least `cool_off` steps, then the matrix's row decides."""
    probability, left = chain.initial[path[0]], chain.counter_at_reset
    for current, following in itertools.pairwise(path):
        left -= 1
        if left > 0:
            probability *= float(current == following)
            continue
        probability *= chain.matrix[current, following]
        if current != following:
            left = chain.cool_off
    return float(probability)


def test_filter_equals_enumeration_over_paths():
    chain = MarkovChain([[0.7, 0.3], [0.45, 0.55]], initial=[0.2, 0.8], cool_off=3, counter_at_reset=1)
    log_likelihood = np.log(np.random.default_rng(3).uniform(0.05, 1.0, (6, 2, 2)))  # step, episode, context
    belief = ExactFilter(chain, 2)
    paths = list(itertools.product(range(2), repeat=7))
    for step in range(6):
        filtered = belief.update(log_likelihood[step])
        for episode in range(2):
            weight = np.array(
                [
                    path_probability(chain, path)
                    * np.exp(sum(log_likelihood[t, episode, path[t]] for t in range(step + 1)))
                    for path in paths
                ]
            )
            weight /= weight.sum()
            acted, coming = (np.array([path[t] for path in paths]) for t in (step, step + 1))
            np.testing.assert_allclose(filtered[episode, 1], weight @ (acted == 1), atol=1e-12)
            np.testing.assert_allclose(belief.contexts[episode, 1], weight @ (coming == 1), atol=1e-12)


def test_without_its_counter_a_chain_has_the_same_mean_stays_and_moves():
    matrix = np.array([[0.7, 0.2, 0.1], [0.3, 0.5, 0.2], [0.0, 0.6, 0.4]])
    plain = without_counter(MarkovChain(matrix, initial=[0.2, 0.5, 0.3], cool_off=4))
    np.testing.assert_allclose(1 / (1 - np.diag(plain.matrix)), 3 + 1 / (1 - np.diag(matrix)))
    off = plain.matrix - np.diag(np.diag(plain.matrix))
    np.testing.assert_allclose(off / off.sum(1, keepdims=True), [[0, 2 / 3, 1 / 3], [0.6, 0, 0.4], [0, 1, 0]])
    assert plain.cool_off <= 1


def test_a_geometric_filter_expects_switches_at_any_time():
    task, seen = TASKS["cartpole"](), {"filtered": [], "geometric": []}
    for information, beliefs in seen.items():
        act = lambda view, beliefs=beliefs: beliefs.append(view.belief.contexts.min()) or np.ones((1, 1))  # noqa: E731
        run_episodes(task, draw_episodes(task, range(1)), act, information)
    np.testing.assert_allclose(seen["geometric"][1:], 1 / 9, atol=1e-6)
    np.testing.assert_allclose(seen["filtered"][1:5], 0.0, atol=1e-6)
    assert max(seen["filtered"][1:]) == pytest.approx(0.2)


def test_sampled_paths_follow_the_chain():
    chain = MarkovChain([[0.7, 0.3], [0.45, 0.55]], initial=[0.2, 0.8], cool_off=3, counter_at_reset=2)
    num = 20_000
    drawn = ExactFilter(chain, 1).sample_paths(np.random.default_rng(0), num, 5)[0]
    for path in itertools.product(range(2), repeat=5):
        expected = path_probability(chain, path)
        share = (drawn == path).all(axis=1).mean()
        assert abs(share - expected) <= 6 * np.sqrt(expected * (1 - expected) / num) + 1e-12


def test_one_step_tells_the_context_unless_the_actuator_rests():
    task = TASKS["intersection"]()
    episodes = draw_episodes(task, [0, 1])
    act = np.array([[0.4, 0.01], [0.4, 0.0]])
    next_state = task.physics.step(episodes.start, act, {"actuation": np.array([-1.0, -1.0])})
    evidence = contexts_evidence(task, episodes.start, act, task.physics.observe(next_state))
    filtered = ExactFilter(task.chain, 2).update(evidence)
    np.testing.assert_allclose(filtered, [[0.0, 1.0], [0.5, 0.5]], atol=1e-12)


def test_evidence_is_gaussian():
    predicted, seen = np.array([[[0.0, 3e-7], [1e-7, 0.0]]]), np.array([[0.0, 0.0]])
    np.testing.assert_allclose(log_likelihoods(predicted, seen), [[-4.5, -0.5]])


def test_told_keeps_the_counter():
    chain = MarkovChain.symmetric(2, switch=0.2, cool_off=3)
    belief = ExactFilter(chain, 1)
    seen = []
    for context in (1, 1, 1, 1, 0, 0):
        belief.reveal(np.array([context]))
        belief.update(np.zeros((1, 2)))
        seen.append(belief.contexts[0, 1])
    # Full counter: no switch before the third step; after the switch to 0 again none for three steps.
    np.testing.assert_allclose(seen, [1.0, 1.0, 0.8, 0.8, 0.0, 0.0])


def test_gains_by_hand():
    guess, actuation = np.array([-1.0]), np.array([[[-1.0, -1.0, 1.0, 1.0], [1.0, 1.0, 1.0, -1.0]]])
    np.testing.assert_array_equal(late_gains(guess, actuation)[0], [[1, 1, -1, 1], [-1, 1, 1, -1]])
    np.testing.assert_array_equal(open_loop_gains(guess, actuation)[0], [[1, 1, -1, -1], [-1, -1, -1, 1]])
    np.testing.assert_array_equal(known_gains(guess, actuation), np.ones((1, 1, 4)))


@pytest.mark.parametrize("name", list(IDS))
def test_episodes_are_those_of_the_environment(name):
    task = TASKS[name]()
    episodes = draw_episodes(task, [4, 11])
    outcome = run_episodes(task, episodes, lambda view: np.full((2, task.physics.act_dim), 0.1), "filtered")
    env = gymnasium.make(IDS[name], **({} if name == "cartpole" else {"backend": "vector"}))
    for number, seed in enumerate((4, 11)):
        _, info = env.reset(seed=seed)
        total, contexts = 0.0, []
        for _ in range(task.physics.horizon):
            contexts.append(info["next_context"])
            _, reward, _, _, info = env.step(np.full(task.physics.act_dim, 0.1))
            total += float(reward)
        assert contexts == episodes.contexts[number].tolist()
        assert total == pytest.approx(outcome.returns[number], rel=1e-5)  # the action went through float32
    env.close()


@pytest.mark.parametrize("name", list(TASKS))
def test_planning_model_scores_what_the_physics_gives(name):
    task, rng = TASKS[name](), np.random.default_rng(1)
    episodes = draw_episodes(task, [2, 3, 5])
    plans = rng.uniform(-1, 1, (3, 4, 6, task.physics.act_dim))
    gains = rng.choice([-1.0, 1.0], (3, 2, 6))
    expected = np.zeros((3, 4))
    for candidate, path in itertools.product(range(4), range(2)):
        state = repeat_state(episodes.start, 1)
        for step in range(6):
            act = plans[:, candidate, step]
            state = task.physics.step(state, act, {"actuation": gains[:, path, step]})
            expected[:, candidate] += 0.5 * task.physics.reward(act, task.physics.observe(state))
    np.testing.assert_allclose(score_plans(task, episodes.start, plans, gains), expected, rtol=1e-12)


def test_drone_in_closed_form():
    """Undamped, k steps of full thrust give v_z = k g (1.05^2 - 1) dt; crossed motors lift 1 + .05^2 of the weight."""
    task = TASKS["drone"]()
    episodes = draw_episodes(task, range(3))
    steps, gravity, dt = 80 * 81 / 2, 9.8, 1 / 80
    known = run_episodes(task, episodes, Scripted((1.0,) * 4)(task, 3, 0), "known").returns
    crossed = run_episodes(task, episodes, Scripted((1.0, -1.0, 1.0, -1.0))(task, 3, 0), "blind").returns
    np.testing.assert_allclose(known, gravity * (1.05**2 - 1) * dt * steps, rtol=0.04)
    np.testing.assert_allclose(crossed, gravity * 0.05**2 * dt * steps, rtol=0.04)
    assert (known < gravity * (1.05**2 - 1) * dt * steps).all()


def test_more_knowledge_gives_more_on_cartpole():
    task = TASKS["cartpole"]()
    episodes = draw_episodes(task, range(4))
    returns = {
        information: run_episodes(task, episodes, Planned(TINY, gains)(task, 4, 1), information).returns.mean()
        for information, gains in (("known", known_gains), ("filtered", open_loop_gains), ("blind", open_loop_gains))
    }
    assert returns["known"] > 85.0
    assert returns["known"] >= returns["filtered"] > returns["blind"] + 30.0


def test_search_improves_the_planned_episode():
    task = TASKS["intersection"]()
    episodes = draw_episodes(task, [0])
    first = Planned(CemConfig(8, 32, 4, 2, 1, 0.8), known_gains)
    before, after = (
        run_episodes(task, episodes, Refined(first, rounds, 32)(task, 1, 0), "known").returns[0] for rounds in (0, 20)
    )
    assert before < after < 600.0


def test_blind_search_is_scored_on_mirrored_futures():
    task = TASKS["intersection"]()
    gains = Refined(Straight(), 1, 1, num_paths=3)._gains(task, np.random.default_rng(0))[0]
    np.testing.assert_array_equal(gains[3:], -gains[:3])
    assert gains.shape == (6, 100)
    assert set(np.unique(gains)) == {-1.0, 1.0}


def test_straight_accelerations_beat_every_grid_sequence():
    config = IntersectionConfig(horizon=6)
    distance, speed = 0.5, 2.0

    def score(actions):
        speeds = speed + 0.5 * np.cumsum(actions, axis=-1)
        speeds = np.concatenate((np.full((*speeds.shape[:-1], 1), speed), speeds[..., :-1]), axis=-1)
        return np.exp(-np.abs(distance - 0.1 * np.cumsum(speeds, axis=-1)) / 8.0).sum(axis=-1)

    grid = np.array(list(itertools.product(np.linspace(-1, 1, 7), repeat=5)))
    grid = np.concatenate((grid, np.zeros((len(grid), 1))), axis=1)  # the last action moves nothing
    planned = plan_accelerations(config, distance, speed, 4)
    assert np.abs(planned).max() <= 1.0
    assert score(planned) >= score(grid).max() - 1e-9
    assert score(planned) > score(np.zeros(6)) + 0.01


def test_free_entries_only():
    task = TASKS["intersection"]()
    acts = []
    agent = Planned(CemConfig(4, 16, 4, 2, 2, 0.5), open_loop_gains, free=(1.0, 0.0))(task, 2, 0)
    run_episodes(task, draw_episodes(task, [0, 1]), lambda view: acts.append(agent(view)) or acts[-1], "filtered")
    assert not np.stack(acts)[..., 1].any()
    assert np.stack(acts)[..., 0].any()


def test_summary_counts_mirrored_episodes_once_in_the_error():
    record = summary(np.array([1.0, 2.0, 6.0, 3.0, 4.0, 2.0]), num_seeds=3)
    assert record["returns_by_seed"] == [2.0, 3.0, 4.0]
    assert record["mean"] == pytest.approx(3.0)
    assert record["std"] == pytest.approx(np.sqrt(16 / 5))
    assert record["standard_error"] == pytest.approx(1 / np.sqrt(3))


def test_best_is_chosen_on_shared_seeds():
    lucky, sound = {"returns_by_seed": [9.0]}, {"returns_by_seed": [10.0, 1.0, 1.0]}
    assert best_of([lucky, sound]) is sound


def test_command_writes_record_and_page_and_resumes(tmp_path, monkeypatch, capsys):
    cells = (
        ceilings.Cell("drone", "known", "full thrust", Scripted((1.0,) * 4)),
        ceilings.Cell("intersection", "filtered", "straight on", Scripted((0.0, 0.0)), 2),
    )
    monkeypatch.setattr(ceilings, "CELLS", cells)
    record, written = tmp_path / "results" / "ceilings.json", tmp_path / "ceilings.md"
    arguments = ["--episodes", "3", "--seed", "7", "--record", str(record), "--page", str(written)]
    assert ceilings.main(arguments) == 0
    text = written.read_text()
    assert "| drone | **39.88** +- 0.00 (full thrust) |  |  |" in text
    assert "| drone | known | full thrust | 39.883 | 0.000 | 0.000 | 3 | 7-9 |  |" in text
    row = next(line for line in text.splitlines() if line.startswith("| intersection | filtered | straight on |"))
    assert "| 2 | 7-8 |" in row
    assert "closest" in row
    assert "Scripted(controls=(1.0,1.0,1.0,1.0))" in text
    before = record.read_text()
    capsys.readouterr()
    assert ceilings.main([*arguments, "--tasks", "drone"]) == 0
    assert "on record" in capsys.readouterr().out
    assert record.read_text() == before
    assert written.read_text() == text
    assert ceilings.main([*arguments, "--tasks", "drone", "--seed", "8"]) == 0
    assert json.loads(record.read_text())["cells"]["drone/known/full thrust"]["seeds"] == [8, 10]


def test_old_record_is_refused(tmp_path):
    path = tmp_path / "old.json"
    save_records(path, {"a/known/b": {"mean": 1.0}})
    assert load_records(path) == {"a/known/b": {"mean": 1.0}}
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 0'))
    with pytest.raises(DataError, match="schema_version 0"):
        load_records(path)
    assert page({}).startswith("# Ceilings")


def test_a_factor_that_is_not_one_is_a_gain_of_that_size():
    """Controls go out with the sign that is guessed; the plant does as much of them as the context lets it."""
    guess, actuation = np.array([-1.0]), np.array([[[-1.0, 0.3, 1.0]]])
    np.testing.assert_array_equal(open_loop_gains(guess, actuation)[0], [[1.0, -0.3, -1.0]])
    np.testing.assert_array_equal(known_gains(guess, actuation)[0], [[1.0, 0.3, 1.0]])
    np.testing.assert_array_equal(late_gains(guess, actuation)[0], [[1.0, -0.3, 1.0]])
    task = variant_task("drone", VARIANTS["actuation 1, -1, 0.3"])
    sent = {}
    for first in range(3):
        belief = ExactFilter(task.chain, 1)
        belief.reveal(np.array([first]))
        sent[first] = Scripted((1.0,) * 4)(task, 1, 0)(View(0, None, belief))[0, 0]
    assert sent == {0: 1.0, 1: -1.0, 2: 1.0}


def test_without_switches_the_filter_knows_all_but_the_first_step():
    """Full thrust for 80 steps, or for 79 after one the wrong way round: 39.88 less 2 g (1.05^2 - 1) dt for each."""
    task = variant_task("drone", TaskVariant(switch=0.0))
    episodes = draw_episodes(task, range(12))
    returns = run_episodes(task, episodes, Scripted((1.0,) * 4)(task, 12, 0), "filtered").returns
    assert (episodes.contexts == episodes.contexts[:, :1]).all()
    is_wrong = episodes.contexts[:, 0] == 1
    assert 0 < is_wrong.sum() < 12
    np.testing.assert_allclose(returns[~is_wrong], 39.883, atol=5e-4)
    step = 9.8 * (2 * (1.05**2 - 1) - 2 * 0.05**2) / 80  # the lost thrust and the wrong one, undamped
    np.testing.assert_allclose(returns[is_wrong], 39.883 - 80 * step, rtol=0.01)


def test_contexts_of_one_sign_need_no_filter():
    """Thrust at 1 and at 0.3 of the band: every step adds g ((1 + 0.05 factor)^2 - 1) dt to the velocity."""
    task = variant_task("drone", VARIANTS["actuation 1, 0.3"])
    episodes = draw_episodes(task, range(5))
    agent = Scripted((1.0,) * 4)
    blind, known = (run_episodes(task, episodes, agent(task, 5, 0), name).returns for name in ("blind", "known"))
    np.testing.assert_array_equal(blind, known)
    lift = 9.8 * ((1 + 0.05 * np.array([1.0, 0.3])[episodes.contexts]) ** 2 - 1) / 80
    np.testing.assert_allclose(known, np.cumsum(lift, axis=1).sum(axis=1), rtol=0.04)


@pytest.mark.parametrize("variant", ["switch 0.5", "start noise", "actuation 1, -1, 0.3"])
@pytest.mark.parametrize("name", ["drone", "intersection"])
def test_episodes_of_variants_are_those_of_the_environment(name, variant):
    chosen = VARIANTS[variant]
    task = variant_task(name, chosen)
    outcome = run_episodes(
        task, draw_episodes(task, [4]), lambda view: np.full((1, task.physics.act_dim), 0.1), "known"
    )
    words = dict(word.removeprefix("+").removeprefix("env.").split("=") for word in chosen.overrides(name))
    kwargs = {key.removeprefix("kwargs."): json.loads(word) for key, word in words.items() if key != "id"}
    env = gymnasium.make(words.get("id", IDS[name]), backend="vector", **kwargs)
    env.reset(seed=4)
    total = sum(float(env.step(np.full(task.physics.act_dim, 0.1))[1]) for _ in range(task.physics.horizon))
    assert total == pytest.approx(outcome.returns[0], rel=1e-5)


def test_collisions_cost_the_agents_of_that_task_as_they_do_in_the_environment():
    plain, costly = TASKS["intersection"](), TASKS["collision_cost"]()
    planned, acts = Planned(TINY, known_gains)(plain, 1, 0), []
    steer = lambda view: acts.append(planned(view)) or acts[-1]  # noqa: E731
    first = run_episodes(plain, draw_episodes(plain, [4]), steer, "known")
    again = run_episodes(costly, draw_episodes(costly, [4]), lambda view: acts[view.step], "known")
    assert first.info["crashed"].all()
    num_steps = (first.returns[0] - again.returns[0]) / 10.0
    assert num_steps >= 1.0
    assert num_steps == pytest.approx(round(num_steps))
    kwargs = {word.split("=")[0].removeprefix("+env.kwargs."): json.loads(word.split("=")[1])
              for word in VARIANTS[COSTLY].overrides("intersection")}  # fmt: skip
    env = gymnasium.make(IDS["intersection"], backend="vector", **kwargs)
    env.reset(seed=4)
    total = sum(float(env.step(np.clip(act[0], -1.0, 1.0))[1]) for act in acts)
    assert total == pytest.approx(again.returns[0], rel=1e-5)


def test_variants_command_computes_what_is_not_on_record(tmp_path, monkeypatch, capsys):
    assert len(variant_cells()) == 2 * (len(VARIANTS) - 2)  # the default and collision costs are tasks of their own
    cell = VariantCell("drone", "switch 0.5", "full thrust", Scripted((1.0,) * 4), 2)
    monkeypatch.setattr(ceiling_variants, "variant_cells", lambda: [cell])
    record = tmp_path / "ceilings.json"
    assert ceiling_variants.main(["--record", str(record)]) == 0
    written = json.loads(record.read_text())["cells"]
    plain = ["drone/switch 0.2", "intersection/switch 0.2", "intersection/collision cost 10"]
    assert list(written) == [*plain, "drone/switch 0.5"]
    assert written["intersection/collision cost 10"]["task"] == "intersection"
    assert written["drone/switch 0.2"]["mean"] == pytest.approx(31.132, abs=1e-3)
    assert written["drone/switch 0.5"]["seeds"] == [100, 101]
    assert "returns_by_seed" not in written["drone/switch 0.5"]
    before = record.read_text()
    capsys.readouterr()
    assert ceiling_variants.main(["--record", str(record)]) == 0
    assert "on record" in capsys.readouterr().out
    assert record.read_text() == before
