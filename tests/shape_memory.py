"""jaxtyping's checks with a memory: shapes and types that have passed once pass again without being parsed.

A check depends on the annotations of a function and on the types and shapes of its arguments and of its result, not on
the numbers in them. So every call is still checked; the thousand equal calls of a training loop cost a look into a set
each. What has no short description (long lists and dictionaries) is checked in full every time.
"""

import functools
import inspect
import types

import jaxtyping
import numpy as np
import torch

_LONG = 16


class _Undescribed(Exception):
    pass


def _described(values):
    """Return all of some values that a check can depend on, as something hashable."""
    return tuple([_DESCRIBE.get(type(value), _kind)(value) for value in values])


def _kind(value):
    # Tuples with names are tuples; of any other object a check sees the class alone.
    return _container(value) if isinstance(value, tuple | dict) else type(value)


def _array(value):
    return type(value), value.shape, value.dtype


def _container(value):
    if len(value) > _LONG:
        raise _Undescribed
    return type(value), _described(value), _described(value.values()) if isinstance(value, dict) else None


_DESCRIBE = {
    **dict.fromkeys((torch.Tensor, torch.nn.Parameter, np.ndarray), _array),
    **dict.fromkeys((tuple, list, dict, set, frozenset), _container),
    **dict.fromkeys((str, bool, bytes), lambda value: (type(value), value)),
}


class _Checks:
    """The checks of one function: of all its closures, where it is defined inside another."""

    def __init__(self, fn, decorate):
        self.passed = {}
        self._fn, self._decorate = fn, decorate
        self._decorated = {}
        self._result = []
        self._replay = None

    def call(self, fn, args, kwargs):
        """Call a function with a full check; it is decorated only now, because that takes a millisecond."""
        checked = self._decorated.get(fn)
        if checked is None:
            checked = self._decorated[fn] = self._decorate(fn)
        return checked(*args, **kwargs)

    def result(self, result, args, kwargs):
        """Check a result against these arguments without calling the function again."""
        if self._replay is None:
            code = (lambda *_args, **_kwargs: stored.pop()).__code__
            stored = self._result
            stand_in = types.FunctionType(code, self._fn.__globals__, closure=(types.CellType(stored),))
            self._replay = self._decorate(functools.update_wrapper(stand_in, self._fn))
        self._result.append(result)
        self._replay(*args, **kwargs)


def with_memory(decorate):
    """Return the decorator `jaxtyping.jaxtyped` with a memory for functions; classes are decorated as before."""
    known = {}

    def decorator(fn=None, *, typechecker):
        if fn is None:
            return functools.partial(decorator, typechecker=typechecker)
        if not isinstance(fn, types.FunctionType) or inspect.isgeneratorfunction(fn):
            return decorate(fn, typechecker=typechecker)
        if fn.__code__ not in known:
            known[fn.__code__] = _Checks(fn, functools.partial(decorate, typechecker=typechecker))
        return _remembered(fn, known[fn.__code__])

    return decorator


def _remembered(fn, checks):
    passed = checks.passed

    @functools.wraps(fn)
    def remembered(*args, **kwargs):
        __tracebackhide__ = True
        try:
            key = _described(args), _container(kwargs) if kwargs else None
        except _Undescribed:
            return checks.call(fn, args, kwargs)
        results = passed.get(key)
        result = checks.call(fn, args, kwargs) if results is None else fn(*args, **kwargs)
        try:
            outcome = _described((result,))
        except _Undescribed:
            outcome = None
        if results is None:
            passed[key] = {outcome}
        elif outcome is None or outcome not in results:
            checks.result(result, args, kwargs)
            results.add(outcome)
        return result

    return remembered


def install():
    """Put the memory into the decorator that jaxtyping's import hook applies."""
    jaxtyping.jaxtyped = with_memory(jaxtyping.jaxtyped)
