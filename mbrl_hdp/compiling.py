"""Compile plain Python loops with numba: one decorator, with the rounding that a kernel may rely on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numba

Function = Callable[..., Any]
Rounding = Literal["exact", "fused", "reordered"]
# numba's cache does not notice a change of these: delete the __pycache__ folders after one.
_FLAGS: dict[Rounding, Any] = {"exact": False, "fused": {"contract"}, "reordered": {"contract", "reassoc", "nsz"}}


def compiled(rounding: Rounding = "fused", *, is_inlined: bool = False) -> Callable[[Function], Function]:
    """Compile a function on its first call and cache the machine code on disk, if there is a writable folder.

    Args:
        rounding: `exact`: every operation rounds as written; `fused`: a product and a sum may round once, the order of
            sums is kept (code that works near the ends of the float range relies on it); `reordered`: sums may be
            reordered as well, without which no reduction is vectorised. NaN and infinities always keep their meaning.
        is_inlined: always compile the function into its callers. Needed for a `reordered` kernel that sums for other
            kernels: a helper that is merely called exists twice, alone and once more optimised inside its caller. The
            process that compiles would run the one and those that read the cache the other, and with reordered sums
            the two differ in the last bit: the same run would not be the same run the second time.
    """
    options: dict[str, Any] = {"fastmath": _FLAGS[rounding], "error_model": "numpy"}
    if is_inlined:
        options["forceinline"] = True

    def compile_it(function: Function) -> Function:
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # numba found no writable cache directory
            return numba.njit(**options)(function)

    return compile_it
