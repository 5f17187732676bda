"""Every hook is documented with its exact signature, and every hook of the docs exists."""

import inspect
import re
from pathlib import Path

import pytest

from mbrl_hdp.hooks import specs
from mbrl_hdp.hooks.specs import KINDS

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "plugins.md").read_text()
HOOKS = {name: hook for name, hook in vars(specs).items() if name.startswith("mbrl_hdp_") and callable(hook)}


@pytest.mark.parametrize("name", HOOKS)
def test_hook_is_documented_with_its_signature(name):
    signature = str(inspect.signature(HOOKS[name])).replace("'", "")
    assert f"```python\n{name}{signature}\n```" in DOCS
    assert (inspect.getdoc(HOOKS[name]) or "").rstrip(".") in DOCS.replace("\n", " ")


def test_documented_hooks_exist():
    assert set(re.findall(r"^(mbrl_hdp_\w+)\(", DOCS, re.MULTILINE)) == set(HOOKS)


def test_every_kind_has_a_hook_and_a_group_in_the_docs():
    for kind in KINDS:
        assert kind.hook in HOOKS
        assert f"Hydra group `{kind.group}`" in DOCS


@pytest.mark.parametrize("name", HOOKS)
def test_hook_is_itself_tested(name):
    tests = Path(__file__).resolve().parents[1].rglob("test_*.py")
    assert any(name in path.read_text() for path in tests if path != Path(__file__).resolve())
