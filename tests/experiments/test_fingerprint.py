"""The fingerprint of code: what makes a result stale, and what does not."""

import sys

import pytest

from mbrl_hdp.experiments import fingerprint, loop
from mbrl_hdp.experiments.code_pieces import Piece, hash_of, named_pieces, pieces_of
from mbrl_hdp.experiments.config import check_config, load_config
from mbrl_hdp.experiments.fingerprint import (
    CONTEXT_MODEL,
    MODEL_UPDATE,
    TUNING,
    code_fingerprint,
    fingerprint_of,
    is_never_tuned,
    reached_modules,
    roots_of,
    source_of,
)
from mbrl_hdp.experiments.studies.train_cell import resolved_run
from mbrl_hdp.hooks import load_registry

# Episodes of a few steps.
SHORT = ("env.kwargs.horizon=12", "planner.population_size=12", "planner.num_elites=4")
SOURCE = '''"""A module."""
from mbrl_hdp.errors import ConfigError
from mbrl_hdp.settings import setting


class Config:
    """Settings."""

    rate: float = setting(0.1, "learning rate", above=0.0)


def halve(value: float) -> float:
    """Return half."""
    if value < 0:
        raise ConfigError(f"must be positive, got {value}")
    return value / 2  # exactly
'''


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""Return half."""', '"""Return the half of a number."""'),
        ("  # exactly", ""),
        ("    return value / 2", "\n    return (value / 2)"),
        ("must be positive, got {value}", "{value} is negative"),
        ('"learning rate"', '"step of Adam"'),
        ("value: float) -> float", "value: Number) -> Number"),
        ('    """Return half."""\n', ""),
    ],
)
def test_prose_does_not_count(before, after):
    assert before in SOURCE
    assert hash_of(SOURCE.replace(before, after)) == hash_of(SOURCE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("value / 2", "value / 3"),
        ("value / 2", "2 / value"),
        ("value < 0", "value <= 0"),
        ("0.1", "0.2"),
        ("above=0.0", "above=0.01"),
        ("halve", "half"),
        ("raise ConfigError", "raise ValueError"),
        ("return value / 2", "return None"),
    ],
)
def test_code_counts(before, after):
    assert before in SOURCE
    assert hash_of(SOURCE.replace(before, after)) != hash_of(SOURCE)


WHOLE = """
LIMIT = 3

def used(x):
    return helper(x)

def helper(x):
    return LIMIT * x

def alone(x):
    return friend(x)

def friend(x):
    return x

@register
def called_by_others(x):
    return x

class Box:
    size = 1

    def __len__(self):
        return self.size

    def open(self):
        return 1

    def shut(self):
        return 2

class Net(Module):
    def forward(self, x):
        return 3
"""


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        ("return helper(x)", "return helper(2 * x)", True),
        ("return LIMIT * x", "return LIMIT + x", True),
        ("LIMIT = 3", "LIMIT = 4", True),
        ("return friend(x)", "return friend(2 * x)", False),
        ("def friend(x):\n    return x", "def friend(x):\n    return 2 * x", False),
        ("def called_by_others(x):\n    return x", "def called_by_others(x):\n    return 2 * x", True),
        ("size = 1", "size = 2", True),
        ("return self.size", "return 0", True),
        ("return 1", "return 10", True),
        ("return 2", "return 20", False),
        ("return 3", "return 30", True),
        ("class Net", "def new():\n    return 4\n\nclass Net", False),
    ],
)
def test_only_what_is_named_counts(before, after, counts):
    assert WHOLE.count(before) == 1
    root = [Piece("used(1), Box().open(), 'my_module:Net'")]

    def counted(source):
        return [[piece.meaning for piece in found] for found in named_pieces([root, pieces_of(source)], ["1"])]

    assert (counted(WHOLE) != counted(WHOLE.replace(before, after))) == counts


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that loads a name on first use, as ours do."""
    folder = tmp_path / "own_study"
    folder.mkdir()
    files = {
        "__init__": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from own_study.lazy import late\n",
        "cell": "import numpy\nfrom own_study import late\nfrom .near import near\nfrom own_study import inner\n"
        "def run():\n    from own_study.hidden import deep\n",
        "lazy": "late = 1\n",
        "near": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from own_study.words import Text\nnear = 1\n",
        "inner": "import own_study.far\n",
        "far": "far = 1\n",
        "hidden": "deep = 1\n",
        "words": "Text = str\n",
        "unused": "",
    }
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.startswith("own_study")]:
        del sys.modules[name]


def test_imports_are_followed_to_the_end(package):
    names = ("", ".cell", ".far", ".hidden", ".inner", ".lazy", ".near")
    assert reached_modules({"own_study.cell"}) == [f"own_study{name}" for name in names]


def forget():
    for function in (code_fingerprint, fingerprint._pieces, fingerprint._import_lines, fingerprint.source_of):
        function.cache_clear()


@pytest.mark.parametrize(("name", "counts"), [("far", True), ("lazy", True), ("unused", False), ("words", False)])
def test_a_change_counts_where_it_is_reached(package, name, counts):
    forget()
    before = code_fingerprint(frozenset({"own_study.cell"}))
    (package / f"{name}.py").write_text("changed = 2\n")
    forget()
    assert (code_fingerprint(frozenset({"own_study.cell"})) != before) == counts
    forget()


def test_the_roots_are_the_run_its_plugins_and_its_environment():
    config = {"prior": {"name": "mle"}, "env": {"id": "mbrl_hdp/CartPoleSwingUp-v0"}, "seed": 3}
    roots = roots_of("mbrl_hdp.experiments.loop", config)
    assert {"mbrl_hdp.experiments.loop", "mbrl_hdp_priors.mle", "mbrl_hdp.envs.cartpole"} <= roots
    assert not any("hdp_priors.hdp" in root or "drone" in root for root in roots)
    reached = reached_modules(roots)
    for name in ("inference.trainer", "belief.codec", "control.policy", "distil.distiller", "probability.hmm"):
        assert f"mbrl_hdp.{name}" in reached
    assert "mbrl_hdp.envs.drone" not in reached
    assert "mbrl_hdp.report.curves" not in reached


@pytest.mark.parametrize(("agent", "module"), [("gpmm", "gpmm"), ("rnn_ppo_plain", "ppo"), ("pets", "pets")])
def test_an_agent_that_is_imported_late_counts(agent, module):
    roots = roots_of("mbrl_hdp.experiments.studies.train_cell", {"agent": {"name": agent}})
    assert f"mbrl_hdp_baselines.{module}" in reached_modules(roots)


def run_code(config, folder):
    """Train; return the code of every function that was called."""
    ran = set()
    sys.setprofile(lambda frame, event, _: ran.add(frame.f_code) if event == "call" else None)
    try:
        loop.train(config, load_registry(), folder, progress=False)
    finally:
        sys.setprofile(None)
    return ran


@pytest.mark.parametrize(("agent", "counts"), [("gpmm", False), ("fi_sac", False), ("c_sac", True)])
def test_code_of_context_models_counts_where_one_is_learned(agent, counts, monkeypatch):
    config = {"agent": {"name": agent}}
    before = fingerprint_of("mbrl_hdp.experiments.studies.train_cell", config)
    known = fingerprint._pieces
    monkeypatch.setattr(
        fingerprint, "_pieces", lambda name: [Piece("changed")] if name.endswith("search.search") else known(name)
    )
    code_fingerprint.cache_clear()
    assert (fingerprint_of("mbrl_hdp.experiments.studies.train_cell", config) != before) == counts
    code_fingerprint.cache_clear()


@pytest.mark.parametrize(("tune", "counts"), [("never", False), ("auto", True)])
def test_code_that_tunes_planners_counts_where_one_is_tuned(tune, counts, monkeypatch):
    config = {"agent": {"name": "c_cem"}, "planner": {"name": "cem", "tune": tune}}
    before = fingerprint_of("mbrl_hdp.experiments.studies.train_cell", config)
    known = fingerprint._pieces
    monkeypatch.setattr(fingerprint, "_pieces", lambda name: [Piece("changed")] if name == TUNING else known(name))
    code_fingerprint.cache_clear()
    assert (fingerprint_of("mbrl_hdp.experiments.studies.train_cell", config) != before) == counts
    code_fingerprint.cache_clear()


def test_a_planner_that_is_never_tuned_runs_nothing_of_it(tmp_path):
    words = ["env=cartpole_hard", "agent=c_cem", "profile=smoke", "fit.start=random", *SHORT]
    config = check_config(load_config(words))
    assert is_never_tuned(resolved_run(config))
    ran = {code.co_filename for code in run_code(config, tmp_path)}
    assert str(source_of("mbrl_hdp.control.planner")) in ran
    assert str(source_of(TUNING)) not in ran


@pytest.mark.parametrize("agent", ["fi_sac", "gpmm"])
def test_all_that_an_agent_without_a_context_model_runs_counts(agent, tmp_path):
    config = check_config(load_config(["env=cartpole_hard", f"agent={agent}", "profile=smoke", *SHORT]))
    code = roots_of("mbrl_hdp.experiments.loop", resolved_run(config))
    counted = {str(source_of(name)) for name in reached_modules(code, (*CONTEXT_MODEL, MODEL_UPDATE))}
    ran = run_code(config, tmp_path)
    assert str(source_of(MODEL_UPDATE)) not in {code.co_filename for code in ran}
    folders = [str(source_of(name).parent) for name in CONTEXT_MODEL]
    inside = {code for code in ran if any(code.co_filename.startswith(folder) for folder in folders)}
    assert {f"{code.co_filename}: {code.co_name}" for code in inside if code.co_filename not in counted} == set()
