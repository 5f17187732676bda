"""The one decorator for compiled loops."""

import numpy as np
import pytest

from mbrl_hdp import compiling


@pytest.mark.parametrize("is_inlined", [False, True])
def test_compiles_without_a_place_for_its_cache(monkeypatch, is_inlined):
    real = compiling.numba.njit

    def no_cache(*args, **options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return real(*args, **options)

    monkeypatch.setattr(compiling.numba, "njit", no_cache)

    def double(value):
        return 2 * value

    assert compiling.compiled("reordered", is_inlined=is_inlined)(double)(21) == 42


def total(numbers):
    result = 0.0
    for number in numbers:
        result += number
    return result


@pytest.mark.parametrize(("rounding", "is_reordered"), [("exact", False), ("fused", False), ("reordered", True)])
def test_only_reordered_sums_are_reordered(monkeypatch, rounding, is_reordered):
    real = compiling.numba.njit
    # The cache is keyed by the function alone, not by its flags.
    monkeypatch.setattr(compiling.numba, "njit", lambda cache, **options: real(**options))
    values = np.array([1.0, 1e100, 1.0, -1e100] * 8)
    function = compiling.compiled(rounding)(total)
    found = function(values)
    assert is_reordered or found == total(values) == 0.0
    assert any("fadd reassoc" in code for code in function.inspect_llvm().values()) == is_reordered


@pytest.mark.parametrize("rounding", ["exact", "fused", "reordered"])
def test_nan_and_infinities_keep_their_meaning(rounding):
    @compiling.compiled(rounding)
    def is_nan_or_quotient(value):
        return value != value, 1.0 / (value - value + 0.0)

    assert is_nan_or_quotient(np.nan)[0]
    assert is_nan_or_quotient(1.0) == (False, np.inf)
