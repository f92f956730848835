"""Maps made of elementwise functions of NumPy with SciPy, PyTorch and JAX, two to five functions deep."""

import contextlib
import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

import parprims
from tests.fuzz.draw import Draw
from tests.fuzz.values import Call, Expected, differs, eps, tiny
from tests.support import foreign

_NEEDS = {"numpy": "scipy", "torch": "torch", "jax": "jax"}
_FIRST = parprims.Operator(lambda earlier, _: earlier, name="first")
_RUNS = (1, -1, 1, -1)
"""The library computes the map so often with results that are off in their last bits: the signs of its zeros then."""


def draw_foreign(d: Draw) -> Call:
    """Return a map by functions of some library, and a reduction of an axis of length 1, which changes nothing."""
    home = d.one([one for one, package in _NEEDS.items() if importlib.util.find_spec(package)])
    importlib.import_module(home)
    dtype = d.dtype("float32", "float64", "int32")
    steps = drawn_steps(d, foreign.functions(home, dtype))
    values = [d.values((int(d.rng.integers(1, 40)), 1), dtype)]
    values.append(d.values(values[0].shape, dtype))
    if dtype == "int32":
        values = [x % 100 for x in values]
    else:  # to programs of JAX, subnormal numbers are zeros
        values = [np.where(abs(x) < tiny(dtype), 0, x).astype(dtype) for x in values]
    options = {"op": _FIRST, "axis": 1, "method": d.one(("kernel", "kernel", "array", "auto"))}
    call = Call("map_reduce", [composed(steps)], options, lambda got: differs(d.backend, got, expected))
    given = [d.array(x) for x in values]
    call.args += [one for one, _ in given]
    expected = _expected(d, home, steps, [x for _, x in given], dtype)
    call.may_refuse = not d.backend.supports(dtype)
    return call


Step = tuple[Callable[[Any, Any], Any], int, int]
"""A function, and which of the values before it are its arguments; the last value is -1."""


def drawn_steps(d: Draw, table: foreign.Table) -> list[Step]:
    """Return random functions; the first takes the arguments of the map, and each the result before it."""
    steps: list[Step] = [(table[d.one(sorted(table))], 0, 1)]
    names = sorted({*table} - {"copysign", "sign"})  # which show the signs of NaN, that no library promises
    for count in range(3, 3 + int(d.rng.integers(1, 5))):
        other = int(d.rng.integers(count))
        steps.append((table[d.one(names)], *d.one(((-1, other), (other, -1)))))
    return steps


def composed(steps: list[Step], changed: Callable[[Any], Any] | None = None) -> Callable[[Any, Any], Any]:
    """Return the function of the steps; ``changed`` changes the result of each."""

    def mapped(p: Any, q: Any) -> Any:
        values = [p, q]
        with np.errstate(all="ignore"):
            for function, one, other in steps:
                result = function(values[one], values[other])
                values.append(result if changed is None else changed(result))
        return values[-1]

    return mapped


def _expected(d: Draw, home: str, steps: list[Step], arrays: list[np.ndarray], dtype: str) -> Expected:
    """Return the results by the library itself. Where these depend on the last bits of its steps, they are unknown."""
    module = __import__(home)

    def run(changed: Callable[[Any], Any] | None = None) -> np.ndarray:
        with contextlib.ExitStack() as stack:
            given: list[Any] = [np.array(x) for x in arrays]
            if home == "jax":
                stack.enter_context(module.enable_x64("64" in dtype))
                given = [module.numpy.asarray(x) for x in given]
            elif home == "torch":
                given = [module.asarray(x) for x in given]
            return np.asarray(composed(steps, changed)(*given))[:, 0]

    found = run()
    if dtype == "int32":
        return Expected(found, found.dtype.name)

    def off(x: Any, sign: int) -> Any:
        factors = np.asarray(1 + eps(dtype) * d.rng.integers(-6, 7, tuple(x.shape)), dtype)
        # A zero may be what a library leaves of a smaller number, of either sign.
        terms = np.asarray(sign * eps(dtype) ** 2 * (np.asarray(x) == 0), dtype)
        return x * module.asarray(factors) + module.asarray(terms) if home == "torch" else x * factors + terms

    with np.errstate(all="ignore"):
        others = np.stack([run(functools.partial(off, sign=sign)) for sign in _RUNS]).astype(np.float64)
        apart = np.where((others == found) | (np.isnan(others) & np.isnan(found)), 0, abs(others - found)).max(0)
        size = np.where(np.isfinite(found), abs(found), 0)
        bound = 16 * apart + 128 * eps(dtype) * (1 + size) + tiny(dtype)
        unknown = ~(apart <= 1e-3 * (1 + size))
    return Expected(found, found.dtype.name, bound, unknown)
