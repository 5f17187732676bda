"""The choice of a planner's settings on the learned model."""

import dataclasses
import json

import numpy as np
import pytest
import torch

import mbrl_hdp.control.tuning as tuning
from mbrl_hdp.control.tuning import FIRST_GRID, ImaginedTask, candidates, imagined_return, tune_planner
from mbrl_hdp.errors import CheckpointError
from mbrl_hdp_planners import CemConfig, CustomConfig


def reward(act, next_obs):
    return next_obs[:, 1:] - 0.1 * act.square()


def never(act, next_obs):
    return torch.zeros(len(act), 1, dtype=torch.bool)


def imagined(model, num_steps=6, termination_fn=never):
    starts = np.array([[0.2, -0.1], [0.5, 0.3]])
    bounds = np.array([-1.0]), np.array([1.0])
    return ImaginedTask(model, reward, termination_fn, *bounds, starts, num_steps, seed=3)


def test_the_best_of_the_grid_wins_and_what_the_user_set_stays(affine_model, monkeypatch):
    def known(config, task, number):
        score = -abs(config.horizon - 15) - 10 * abs(config.noise_color - 0.9) + (config.context_mode == "feedback")
        return score + (config.population_size == 256) + 0.01 * number

    monkeypatch.setattr(tuning, "imagined_return", known)
    found = tune_planner(CemConfig(), imagined(affine_model()))
    wanted = {"horizon": 15, "noise_color": 0.9, "context_mode": "feedback", "population_size": 256, "num_elites": 16}
    assert {name: found.chosen[name] for name in wanted} == wanted
    assert found.rows[0] == {**found.rows[0], **{name: wanted[name] for name in ("horizon", "noise_color")}}
    asked = CemConfig(horizon=6, context_mode="held")
    chosen = tune_planner(asked, imagined(affine_model())).apply(asked)
    assert (chosen.horizon, chosen.context_mode, chosen.noise_color) == (6, "held", 0.9)


def test_of_equally_good_candidates_the_cheapest_wins(affine_model, monkeypatch):
    def noisy(edge):
        """A horizon of 25 has `edge` more, but for what changes from episode to episode; one of 4 is far worse."""
        return lambda config, task, number: (
            (-1) ** number * config.horizon + edge * (config.horizon == 25) - 90.0 * (config.horizon == 4)
        )

    asked = CemConfig(context_mode="held", noise_color=0.5, initial_std=2.0, population_size=64)
    for edge, wanted in ((0.0, 7), (0.5, 7), (30.0, 25)):
        monkeypatch.setattr(tuning, "imagined_return", noisy(edge))
        found = tune_planner(asked, imagined(affine_model()))
        assert found.apply(asked).horizon == found.rows[0]["horizon"] == wanted


def test_the_winner_of_the_first_grid_stays_until_the_end(affine_model, monkeypatch):
    """Variations that are lucky in the first episodes do not push it out."""

    def known(config, task, number):
        is_base = (config.context_mode, config.initial_std, config.population_size) == ("paths", 1.0, 128)
        return float(number >= 5) if is_base else 0.5 * (number < 5)

    monkeypatch.setattr(tuning, "imagined_return", known)
    monkeypatch.setattr(tuning, "FIRST_GRID", {"horizon": (4, 7)})
    asked = CemConfig(tune_seconds=2.0)
    found = tune_planner(asked, imagined(affine_model(), num_steps=4))
    few = [row["episodes"] for row in found.rows]
    assert min(few) <= 5 < max(few), few
    assert set(found.chosen) <= {"horizon"}


def test_one_episode_or_an_infinite_loss_is_no_tie(affine_model):
    task = imagined(affine_model())
    best, short = (tuning.PlannerTrial(CemConfig(horizon=horizon)) for horizon in (15, 4))
    best.returns, short.returns = [1.0, 2.0], [1.1, 1.8]
    assert tuning._cheapest([best, short], task, 2) is short
    assert tuning._cheapest([best, short], task, 1) is best
    short.returns = [1.1, -np.inf]
    assert tuning._cheapest([best, short], task, 2) is best


def test_no_more_episodes_than_the_time_allows(affine_model, monkeypatch):
    played = []
    monkeypatch.setattr(tuning, "imagined_return", lambda config, task, number: played.append((config, task)) or 0.0)
    for seconds in (0.5, 5.0, 50.0):
        played.clear()
        tune_planner(CemConfig(tune_seconds=seconds), imagined(affine_model(), num_steps=100))
        spent = sum(tuning.episode_seconds(config, task) for config, task in played)
        assert 0.4 * seconds < spent <= seconds


def test_candidates_vary_only_what_the_planner_has_and_the_contexts_allow():
    def names(config, num_contexts):
        found = candidates(config, config, FIRST_GRID, num_contexts, is_full=True)
        return {(one.config.horizon, one.config.context_mode) for one in found}, len(found)

    assert names(CemConfig(), 2)[1] == 20
    assert names(CustomConfig(), 2)[1] == 9  # horizon 10 with paths is where it begins
    assert {mode for _, mode in names(CemConfig(), 1)[0]} == {"paths"}
    assert min(horizon for horizon, _ in names(CemConfig(replan_freq=6), 2)[0]) == 6


def test_an_imagined_return_is_that_of_the_model(affine_model):
    """One kept context without noise: the return is that of the planned actions, step by step."""
    model = affine_model(initial=(1.0, 0.0), transition=((1.0, 0.0), (0.0, 1.0)), noise_std=0.0)
    config = CemConfig(horizon=3, population_size=40)
    acts = []

    def noting(act, next_obs):
        if len(act) == 1:
            acts.append(act)
        return reward(act, next_obs)

    task = dataclasses.replace(imagined(model), reward_fn=noting)
    found = imagined_return(config, task, 0)
    totals = []
    for start in task.starts:
        obs, total = torch.tensor(start, dtype=torch.float32)[None], 0.0
        for act in acts:
            obs = model.dynamics.predict(obs, act, torch.tensor([1]))
            total += float(reward(act, obs).detach())
        totals.append(total)
    assert min(abs(found - total) for total in totals) < 1e-4
    assert len(acts) == task.num_steps
    assert imagined_return(config, imagined(model), 0) == pytest.approx(found, abs=1e-5)


def test_an_imagined_episode_ends_where_the_task_does(affine_model):
    task = imagined(affine_model(), num_steps=9, termination_fn=lambda act, next_obs: next_obs[:, :1] > -9)
    calls = []
    ended = dataclasses.replace(task, reward_fn=lambda act, next_obs: calls.append(len(act)) or reward(act, next_obs))
    imagined_return(CemConfig(horizon=2, population_size=8, num_elites=2), ended, 0)
    assert calls.count(1) == 1


def test_the_same_seed_leads_to_the_same_choice_and_it_survives_a_checkpoint(affine_model):
    config = CemConfig(tune_seconds=0.2)
    one, two = (tune_planner(config, imagined(affine_model())) for _ in range(2))
    assert one == two
    again = tuning.Tuning(**json.loads(json.dumps(dataclasses.asdict(one))))
    assert again.apply(config) == one.apply(config)
    assert f"| {one.rows[0]['horizon']} |" in one.markdown()
    assert "episodes of 1 step on" in dataclasses.replace(one, num_steps=1).markdown()


def test_a_saved_choice_cannot_set_anything_else():
    with pytest.raises(CheckpointError, match="optimizer"):
        tuning.Tuning({"optimizer": "os.system"}, [], 1).apply(CustomConfig())
