"""Imports point downstream only, and each outside library has its door."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mbrl_hdp"

ORDER = [
    *("errors", "types", "settings", "seeding", "runtime", "workers", "compiling", "lazy", "hooks"),
    *("probability", "envs", "data", "distil", "belief", "inference", "control", "experiments", "serving", "report"),
    *("testing", "doctor", "endings", "cli", "__main__"),
]
# `doctor` is asked by the command line only; rooms may print tables through report, never the other way round.
DOORS = {
    "pluggy": {"hooks"},
    "hydra": {"experiments", "cli", "control"},
    "highway_env": {"envs"},
    "pybullet": {"envs"},
    "gym_cartpole_swingup": {"envs"},
    "aiohttp": {"serving"},
    "onnx": {"serving"},
    "onnxruntime": {"serving"},
}


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0].removesuffix(".py")


def imports(path: Path, with_type_checking: bool = False):
    """Return (module, line) of every import that runs; those under TYPE_CHECKING are for readers only.

    A text that is a module of ours counts as well: `importlib` and the like import it.
    """
    tree = ast.parse(path.read_text())
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not with_type_checking:
            skipped |= {id(child) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"mbrl_hdp(\.\w+)+\.?", str(node.value)):
            yield str(node.value).rstrip("."), node.lineno


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downstream(path):
    room = room_of(path)
    assert room in ORDER, f"new room {room!r}: give it its place in ORDER"
    for module, line in imports(path):
        parts = module.split(".")
        if parts[0] != "mbrl_hdp" or len(parts) < 2 or parts[1] not in ORDER:
            continue
        assert ORDER.index(parts[1]) <= ORDER.index(room), (
            f"{path.name}:{line} {room} imports {module}, which comes later"
        )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_outside_libraries_have_one_door(path):
    room = room_of(path)
    for module, line in imports(path):
        rooms = DOORS.get(module.split(".")[0])
        assert rooms is None or room in rooms, f"{path.name}:{line} only {rooms} may import {module}"


def test_the_checks_see_a_wrong_import(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from mbrl_hdp.control import planner\nimport pluggy\n"
        "load('mbrl_hdp.report.views')\nload(f'mbrl_hdp.cli.{name}')\n"
    )
    assert ("mbrl_hdp.control", 1) in list(imports(wrong))
    assert ("pluggy", 2) in list(imports(wrong))
    assert ("mbrl_hdp.report.views", 3) in list(imports(wrong))
    assert ("mbrl_hdp.cli", 4) in list(imports(wrong))


@pytest.mark.parametrize("folder", ["mbrl_hdp", "plugins"])
def test_no_module_is_a_drawer(folder):
    names = {path.stem for path in (ROOT / folder).rglob("*.py")}
    assert not names & {"utils", "common", "helpers", "misc"}
