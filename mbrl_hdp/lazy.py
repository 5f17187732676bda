"""Names of a package that are imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(package: str, modules: Mapping[str, Sequence[str]]) -> tuple[list[str], Callable[[str], Any]]:
    """Return `__all__` and `__getattr__` of a package, from the names that each of its modules defines."""
    homes = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        """Import the module that defines a name, and keep the value in the package."""
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        vars(importlib.import_module(package))[name] = value
        return value

    return sorted(homes), load
