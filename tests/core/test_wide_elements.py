"""Operators on elements of very many arrays: 30, from where on Numba's tuples are others, to 128 and more."""

import itertools

import numpy as np
import pytest

import parprims
from tests.support.contract import compare


def chained(earlier, later):
    """Combine maps of all components but the last by the last: not commutative, and every component is read."""
    *values, factor = earlier
    *others, by = later
    return (*(value * by + other for value, other in zip(values, others, strict=True)), factor * by)


def elements(count, shape, dtype, seed=5):
    """Return small integers, of which nothing is rounded."""
    rng = np.random.default_rng(seed)
    values = [rng.integers(-3, 4, shape).astype(dtype) for _ in range(count - 1)]
    return (*values, rng.choice([-1, 1], shape).astype(dtype))


def scanned(xs, axis):
    """Return the scan by a loop: the reference."""
    rows = [np.moveaxis(x, axis, 0) for x in xs]
    states = [tuple(row[0] for row in rows)]
    for i in range(1, rows[0].shape[0]):
        states.append(chained(states[-1], tuple(row[i] for row in rows)))
    return tuple(np.stack([state[at] for state in states], axis) for at in range(len(xs)))


def last(xs, axis):
    return tuple(np.take(x, -1, axis) for x in scanned(xs, axis))


def operator(count):
    return parprims.Operator(chained, identity=(0,) * (count - 1) + (1,), name="chained", components=count)


def methods_of(call):
    """Return the methods that serve a call, of which all are to give the same."""
    return [name for name, reason in parprims.methods(call).items() if reason is None or "prefer" in reason]


def check(backend, call, expected):
    """Hold every method to what is expected; on JAX only auto and the kernel, for XLA compiles others for minutes."""
    served = methods_of(call)
    assert "array" in served
    if backend.name.startswith("jax"):
        served = [name for name in served if name == "kernel"]
    for method in ("auto", *served):
        compare(backend, call(method=method), expected)


NARROWEST, WIDEST = (pytest.param(*one, marks=pytest.mark.sanitize) for one in ((64, "float32"), (128, "complex128")))


@pytest.mark.parametrize(("count", "dtype"), [(31, "float64"), NARROWEST, (100, "float64"), (128, "float64"), WIDEST])
class TestElements:
    @pytest.mark.parametrize(("shape", "axis"), [((70,), 0), ((9, 5), 0)])
    def test_reduced(self, backend, count, dtype, shape, axis):
        xs = elements(count, shape, dtype)
        given = tuple(map(backend.asarray, xs))
        check(backend, lambda **way: parprims.reduce(given, operator(count), axis=axis, **way), last(xs, axis))

    @pytest.mark.parametrize(("shape", "axis", "reverse"), [((70,), 0, False), ((9, 5), 0, False), ((2, 40), 1, True)])
    def test_scanned(self, backend, count, dtype, shape, axis, reverse):
        xs = elements(count, shape, dtype)
        given = tuple(map(backend.asarray, xs))
        turned = tuple(np.flip(x, axis) for x in xs) if reverse else xs
        expected = scanned(turned, axis)
        expected = tuple(np.flip(x, axis) for x in expected) if reverse else expected
        options = {"axis": axis, "reverse": reverse}
        check(backend, lambda **way: parprims.scan(given, operator(count), **options, **way), expected)

    def test_by_offsets(self, backend, count, dtype):
        xs, bounds = elements(count, (60,), dtype), [0, 7, 7, 60]
        given, offsets = tuple(map(backend.asarray, xs)), backend.asarray(np.array(bounds))
        parts = [tuple(x[begin:end] for x in xs) for begin, end in itertools.pairwise(bounds) if end > begin]
        scans = tuple(np.concatenate(one) for one in zip(*(scanned(part, 0) for part in parts), strict=True))
        first, second = (last(part, 0) for part in parts)
        identity = operator(count).identity(*[dtype] * count)
        totals = tuple(np.array(one) for one in zip(first, identity, second, strict=True))
        op = operator(count)
        check(backend, lambda **way: parprims.scan(given, op, offsets=offsets, **way), scans)
        check(backend, lambda **way: parprims.reduce(given, op, offsets=offsets, **way), totals)


@pytest.mark.parametrize("k", [6, 8])
def test_matrices(backend, k):
    """A recurrence of vectors of 8 numbers is a scan of 72 components."""
    rng = np.random.default_rng(k)
    a, b = rng.integers(-1, 2, (20, k, k)).astype(np.float64) / k, rng.integers(-3, 4, (20, k)).astype(np.float64)
    expected = [b[0]]
    for i in range(1, 20):
        expected.append(a[i] @ expected[-1] + b[i])
    given = backend.asarray(a), backend.asarray(b)
    served = methods_of(lambda **way: parprims.linear_recurrence(*given, axis=0, matrices=True, **way))
    assert "array" in served
    for method in ("auto", "array", *(one for one in served if one == "kernel")):
        got = parprims.linear_recurrence(*given, axis=0, matrices=True, method=method)
        compare(backend, got, np.stack(expected), 1e-12)


def test_mapped(backend):
    xs = elements(100, (50,), "float64")
    given = tuple(map(backend.asarray, xs))
    check(backend, lambda **way: parprims.map_reduce(lambda *x: x, *given, op=operator(100), **way), last(xs, 0))


def test_one_of_many(backend):
    """The sum of many arrays has one component: what is read counts too."""
    xs = elements(100, (50,), "float64")
    given = tuple(map(backend.asarray, xs))

    def call(**way):
        return parprims.map_reduce(lambda *x: sum(x[1:], x[0]), *given, **way)

    check(backend, call, np.array(sum(x.sum() for x in xs)))
