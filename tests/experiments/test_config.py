"""The configuration of `train`: budgets, fit.*, presets of the user's own, names of environments."""

import json
from dataclasses import asdict, replace

import pytest

from mbrl_hdp.cli import main
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.experiments import model_update
from mbrl_hdp.experiments.budget import BudgetConfig, BudgetTable, budget_for
from mbrl_hdp.experiments.config import check_config, config_dir, load_config
from mbrl_hdp.experiments.fit_settings import fit_config
from mbrl_hdp.experiments.loop import run_budget, train
from mbrl_hdp.hooks import load_registry
from mbrl_hdp.inference.schedule import FitConfig

SMALL = ["profile=smoke", "max_contexts=2", "dynamics=delta_mlp", "dynamics.hidden_sizes=[8]", "planner.horizon=2"]
MY_ENV = """
id: Pendulum-v1
kwargs: {max_episode_steps: 8}
reward: learned
budgets:
  smoke:
    mpc: {warm_episodes: 3, num_epochs: 1}
"""


REGISTRY = load_registry()


def typed(*overrides):
    return check_config(load_config(overrides, REGISTRY))


def budget(env, profile, agent, *more):
    return run_budget(typed(f"env={env}", f"profile={profile}", f"agent={agent}", *more), REGISTRY)


class TestBudget:
    def test_the_papers_numbers(self):
        found = budget("cartpole_hard", "paper", "c_cem")
        assert (found.warm_episodes, found.episodes_per_epoch, found.num_epochs) == (100, 20, 10)
        assert budget("drone_vector", "paper", "c_sac").agent_updates == 150
        assert budget("intersection", "paper", "c_cem").model_steps == 50

    def test_single_numbers_can_be_set(self):
        assert budget("cartpole_soft01", "fast", "c_sac", "budget.num_epochs=7").num_epochs == 7
        assert budget("cartpole_soft01", "fast", "c_sac").num_epochs == 150

    def test_an_own_environment_has_the_general_budget(self):
        general = check_config(load_config(["env=gymnasium", "env.id=a:B-v0"])).env.budgets
        for env in ("cartpole_hard", "drone"):
            assert (typed(f"env={env}").env.budgets == general) == (env == "cartpole_hard")
        chosen = typed("env=gymnasium", "env.id=a:B-v0", "env/budgets=drone").env.budgets
        assert chosen == typed("env=drone").env.budgets != general

    def test_a_family_without_a_budget_is_refused_by_name(self):
        table = typed().env.budgets
        with pytest.raises(ConfigError, match=r"family 'dqn'.*budget\.warm_episodes.*env\.budgets\.fast\.dqn"):
            budget_for("fast", "dqn", table, BudgetConfig())
        whole = BudgetConfig(**asdict(budget_for("fast", "mpc", table, BudgetConfig())))
        assert asdict(budget_for("fast", "dqn", BudgetTable(), whole)) == asdict(whole)


class TestFit:
    def test_settings_reach_the_fits_of_a_run(self, tmp_path, monkeypatch):
        seen, real = [], model_update.fit

        def spy(*words, **named):
            seen.append(named["config"])
            return real(*words, **named)

        monkeypatch.setattr(model_update, "fit", spy)
        more = ["fit.learning_rate=0.02", "fit.num_restarts=2", "fit.polish_steps=4", "budget.model_steps=7"]
        train(typed(*SMALL, "env.kwargs.horizon=8", *more), load_registry(), tmp_path, progress=False)
        first, refit = seen
        assert (first.learning_rate, first.num_restarts, first.polish_steps, first.num_steps) == (0.02, 2, 4, 20)
        assert (refit.learning_rate, refit.polish_steps, refit.num_steps, refit.batch_size) == (0.02, 0, 7, 10)

    def test_what_is_not_set_is_as_in_fit(self):
        config = typed("profile=fast")
        first, standard = fit_config(config, run_budget(config, load_registry()), True), FitConfig()
        assert type(first) is FitConfig
        # In the loop nobody reads a verdict after every refit: its searches are left out.
        assert first == replace(standard, halves_within_s=0.0)
        config = typed("profile=smoke", "recipe=literal")
        first = fit_config(config, run_budget(config, load_registry()), True)
        assert (first.recipe, first.num_restarts, first.polish_steps) == ("literal", 1, 0)

    @pytest.mark.parametrize(
        ("word", "instead"),
        [
            ("fit.num_steps=500", "budget.warm_model_steps"),
            ("fit.batch_size=100", "budget.model_batch"),
            ("fit.recipe=robust", "set recipe instead"),
            ("fit.learning_rate=0", "above 0"),
        ],
    )
    def test_keys_without_effect_are_refused(self, word, instead, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert main(["train", word]) == 2
        said = capsys.readouterr().err
        assert word.partition("=")[0] in said
        assert instead in said
        assert list(tmp_path.iterdir()) == []

    def test_a_recipe_s_own_settings_are_refused_before_any_work(self):
        with pytest.raises(ConfigError, match=r"fit\.polish_steps=3.*literal"):
            typed("recipe=literal", "fit.polish_steps=3")


class TestOwnPresets:
    @pytest.fixture
    def mine(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mine" / "env").mkdir(parents=True)
        (tmp_path / "mine" / "env" / "my_env.yaml").write_text(MY_ENV)
        return tmp_path / "mine"

    @pytest.mark.parametrize("where", ["--config-dir mine", "--config-dir=mine", "-cd mine", "searchpath"])
    def test_a_folder_of_presets_is_found(self, where, mine, capsys):
        words = [f"hydra.searchpath=[file://{mine}]"] if where == "searchpath" else where.split()
        assert main(["train", *words, "env=my_env", "--cfg", "job", *SMALL]) == 0
        assert "id: Pendulum-v1" in capsys.readouterr().out
        assert main(["train", *words, "env=my_evn", *SMALL]) == 2
        assert "did you mean 'my_env'" in capsys.readouterr().err

    def test_it_trains_and_its_id_names_folder_and_summary(self, mine, tmp_path):
        assert main(["train", "--config-dir", "mine", "env=my_env", *SMALL]) == 0
        (run,) = (tmp_path / "outputs" / "Pendulum-v1" / "c_cem").iterdir()
        summary = json.loads((run / "summary.json").read_text())
        assert (summary["env"], summary["num_real_episodes"]) == ("Pendulum-v1", 3)
        assert "name: Pendulum-v1" in (run / "config.yaml").read_text()
        assert main(["evaluate", str(run), "--episodes", "1"]) == 0

    def test_a_folder_that_is_not_there(self, mine, capsys):
        assert main(["train", "--config-dir", "nowhere", "env=my_env"]) == 2
        assert "--config-dir nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["env.id=Pendulum-v1"], "Pendulum-v1"),
        (["env.id=my_module:MyEnv-v0"], "MyEnv-v0"),
        (["env.id=my_module:lab/MyEnv-v0"], "lab_MyEnv-v0"),
        (["env.id=MyEnv-v0", "env.name=pump"], "pump"),
    ],
)
def test_an_own_environment_is_named_by_its_id(words, name):
    assert typed("env=gymnasium", *words).env.name == name


PRESETS = sorted(
    path.relative_to(config_dir() / "experiment") for path in (config_dir() / "experiment").rglob("*.yaml")
)


@pytest.mark.parametrize("preset", [str(path.with_suffix("")) for path in PRESETS])
def test_presets_compose(preset):
    config = typed(f"experiment={preset}")
    assert preset.removeprefix("paper/").removesuffix("_history") == f"{config.env.name}_{config.agent.name}"
    assert getattr(config.agent, "history", 0) == (5 if preset.endswith("_history") else 0)
    is_paper = preset.startswith("paper/")
    assert config.profile == ("paper" if is_paper else "fast")
    paper = 5000.0 if config.env.name == "drone" else 1000.0
    if REGISTRY.agent_spec(config.agent.name).needs_model:
        assert config.prior.row_concentration == (paper if is_paper else 100.0)


@pytest.mark.parametrize("agent", ["c_cem", "c_sac", "fi_sac", "ni_sac"])
@pytest.mark.parametrize("task", ["drone", "intersection"])
def test_task_and_agent_alone_have_the_settings_of_the_reported_run(task, agent):
    reported = typed(f"experiment={task}_{agent}")
    for env in (task, f"{task}_vector"):
        found = typed(f"env={env}", f"agent={agent}")
        assert (found.agent, found.planner, found.dynamics) == (reported.agent, reported.planner, reported.dynamics)
        assert found.budget == typed().budget
    assert typed(f"env={task}", f"agent={agent}", "planner.horizon=9").planner.horizon == 9


def test_settings_for_a_task_neither_hide_the_users_nor_reach_the_papers():
    assert typed("env=drone", "agent=c_sac", "agent.discount=0.7").agent.discount == 0.7
    paper, plain = typed("experiment=paper/drone_fi_sac").agent, typed("agent=fi_sac").agent
    assert (paper.standardise_obs, paper.magnify_obs) == (plain.standardise_obs, plain.magnify_obs) == (False, False)
    assert typed("env=drone_vector", "agent=fi_sac", "~env/presets@_global_").agent == plain


def test_every_preset_has_the_papers_beside_it():
    names = {str(path.with_suffix("")) for path in PRESETS}
    todays = ("_pets", "_pets_history", "_sac_stack", "_rnn_ppo_plain", "_mbpo")  # methods that the paper did not try
    ours = {name for name in names if "/" not in name and not name.endswith(todays)}
    assert {f"paper/{name}" for name in ours} == {name for name in names if "/" in name}
