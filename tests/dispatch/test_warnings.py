"""Which floating-point warnings of NumPy a caller sees: those of a sequential loop over the same numbers, no others.

A sum or product that is finite has warned of nothing; a sort, an extremum, a truth value, a recurrence and a
tridiagonal solve never warn.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import parprims

VALUES = {
    "NaN": (np.nan, 1.0, 2.0, -1.0),
    "infinity": (np.inf, 1.0, -1.0, 0.5),
    "infinities": (np.inf, -np.inf, 0.0, 1.0),
    "subnormal": (5e-324, -1e-310, 1.0, 0.0),
    "large": (1e308, -1e308, 1.5e308, 1.0),
    "zeros": (0.0, -0.0, 1.0, -1.0),
}
N = 48


@pytest.fixture(params=[(name, dtype) for name in VALUES for dtype in ("float16", "float32", "float64", "complex128")])
def numbers(request, rng) -> list[np.ndarray]:
    """Return a few arrays of such values."""
    name, dtype = request.param
    with np.errstate(all="ignore"):
        return [rng.choice(VALUES[name], N).astype(dtype) for _ in range(4)]


@pytest.fixture(params=["array", "native"])
def way(request) -> str:
    """Name a method: under another name than the tests have that run over every library."""
    return request.param


def announced(call: Any) -> tuple[set[str], Any]:
    """Return what NumPy warned of in a call, such as "overflow", and the result; nothing if refused."""
    with warnings.catch_warnings(record=True) as caught, np.errstate(divide="warn", over="warn", invalid="warn"):
        warnings.simplefilter("always")
        try:
            result = call()
        except (TypeError, ValueError, parprims.MethodRefused):
            return set(), None
    return {str(one.message).partition(" encountered")[0] for one in caught}, result


def never(x: np.ndarray, y: np.ndarray, z: np.ndarray, w: np.ndarray, way: str) -> Iterator[Any]:
    index = np.arange(N)
    long = np.tile(x, 50)
    yield from (lambda d=d: parprims.sort(long, descending=d, method=way) for d in (False, True))
    yield lambda: parprims.argsort(x, method=way)
    yield lambda: parprims.sort_by_key(x, y, method=way)
    yield from (lambda f=f: f(x, method=way) for f in (parprims.any, parprims.all, parprims.max, parprims.min))
    yield from (lambda op=op: parprims.reduce((x, index), op, method=way) for op in ("argmax", "argmin"))
    yield from (lambda op=op: parprims.scan(x, op, reverse=True, method=way) for op in ("maximum", "minimum"))
    yield lambda: parprims.linear_recurrence(x, y, method=way)
    yield lambda: parprims.linear_recurrence(x[0, ...], y, reverse=True, method=way)
    for pivot in ("auto", "none"):
        for periodic in (False, True):
            options = {"pivot": pivot, "periodic": periodic, "return_residual": True, "return_status": True}
            yield lambda options=options: parprims.solve_tridiagonal(x, y, z, w, method=way, **options)
    yield lambda: parprims.check_associative("maximum", x)


def test_silent(numbers, way):
    for call in never(*numbers, way):
        assert announced(call)[0] == set()


def test_sums_and_products_warn_of_their_results(numbers, way):
    x, y, *_ = numbers
    square = x[:16].reshape(4, 4), y[:16].reshape(4, 4)
    calls = [lambda op=op: parprims.scan(x, op, method=way) for op in ("add", "multiply")]
    calls += [lambda op=op: parprims.reduce(x, op, method=way) for op in ("add", "multiply")]
    calls += [lambda: parprims.vecdot(x, y, method=way), lambda: parprims.matmul(*square, method=way)]
    calls += [lambda: parprims.scan(x, reverse=True, exclusive=True, method=way)]
    for call in calls:
        said, result = announced(call)
        assert not said or not np.all(np.isfinite(result))


@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "logaddexp"])
def test_scans_warn_as_a_loop_does(numbers, way, op):
    """But for an overflow, which may stand elsewhere where terms are grouped in another way."""
    x = numbers[0]
    wide = x.astype(np.float32) if x.dtype == np.float16 else x

    def loop() -> np.ndarray:
        y = wide.copy()
        for at in range(1, N):
            y[at : at + 1] = getattr(np, op)(y[at - 1 : at], y[at : at + 1])
        return y

    allowed, _ = announced(loop)
    said, _ = announced(lambda: parprims.scan(x, op, method=way))
    assert said <= allowed | ({"invalid value"} if "overflow" in allowed else set())
