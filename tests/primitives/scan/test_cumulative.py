"""Extrema up to each element with their positions, and logarithms of sums of exponentials, against loops."""

import math

import numpy as np
import pytest

import parprims
from tests.fuzz import values
from tests.support.contract import Contract, compare, eps, numpy_dtype, random, skip_without_derivative

METHODS = ("kernel", "native", "array")
REAL = ("int8", "uint64", "bfloat16", "float64")


def extrema(x, axis, largest):
    """Return the extrema up to each element and where they are, by a loop: the first of equals, NaN before all."""
    rows = np.moveaxis(x, axis, -1)
    found, places = np.empty_like(rows), np.empty(rows.shape, np.int64)
    for at in np.ndindex(rows.shape[:-1]):
        best = 0
        for i in range(rows.shape[-1]):
            one, other = rows[at][best], rows[at][i]
            if (other > one if largest else other < one) or (other != other and one == one):
                best = i
            found[at][i], places[at][i] = rows[at][best], best
    return np.moveaxis(found, -1, axis), np.moveaxis(places, -1, axis)


def sums(x, axis):
    """Return the logarithms of sums of exponentials, by a loop in higher precision."""
    rows = np.moveaxis(x, axis, -1).astype(np.longdouble)
    found = np.empty_like(rows)
    for at in np.ndindex(rows.shape[:-1]):
        for i in range(rows.shape[-1]):
            part = rows[at][: i + 1]
            top = part.max()
            found[at][i] = top if not np.isfinite(top) else top + np.log(np.exp(part - top).sum())
    return np.moveaxis(found, -1, axis)


def bound_of_sums(x, y, axis):
    """Return half a unit of |y|, and of 4, for each of at most n sums, 16-bit floats being rounded once more."""
    n, name = x.shape[axis], x.dtype.name
    working = "float32" if name in ("float16", "bfloat16") else name
    size = np.where(np.isfinite(y), abs(y), 0).astype(np.float64) + 4
    return size * (2 * (n + 2) * eps(working) + eps(name))


class TestCumulativeMax(Contract):
    methods = METHODS
    lengths = (0, 1, 2, 3, 33, 1000)
    compiled_lengths = (0, 1, 2, 33)
    dtypes = REAL
    options = {"return_indices": True}  # noqa: RUF012

    def function(self, *arrays, **options):
        return parprims.cumulative_max(*arrays, **options)

    def make(self, rng, shape, dtype):
        x = random(rng, shape, "int8").astype(numpy_dtype(dtype))  # with many equal ones
        if numpy_dtype(dtype).kind not in "iu":
            x = np.where(rng.random(shape) < 0.03, numpy_dtype(dtype).type(np.nan), x)
        return (x.astype(numpy_dtype(dtype)),)

    def reference(self, x, axis, return_indices):
        assert return_indices
        return extrema(x, axis, True)

    def bound(self, *_, **__):
        return 0.0


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_no_lines(backend, run, dtype):
    """PyTorch, which does not compare these, is not asked to where nothing is combined."""
    empty = backend.asarray(np.zeros((0, 3), dtype))
    for function in (parprims.cumulative_max, parprims.cumulative_min):
        ways = parprims.methods(function, empty, axis=-1, return_indices=True)
        for method in ("auto", *(name for name, reason in ways.items() if reason is None)):
            found = run(function, empty, axis=-1, return_indices=True, method=method)
            assert [tuple(one.shape) for one in found] == [(0, 3), (0, 3)]
            assert backend.to_numpy(found[0]).dtype == np.dtype(dtype)


class TestCumulativeLogsumexp(Contract):
    methods = METHODS
    lengths = (0, 1, 2, 33, 1000)
    compiled_lengths = (0, 1, 2, 33)
    dtypes = ("float16", "bfloat16", "float32", "float64")

    def function(self, *arrays, **options):
        return parprims.cumulative_logsumexp(*arrays, **options)

    def make(self, rng, shape, dtype):
        return ((5 * random(rng, shape, "float64")).astype(numpy_dtype(dtype)),)

    def reference(self, x, axis):
        return sums(x, axis)

    def bound(self, x, axis):
        return bound_of_sums(x, sums(x, axis), axis)


class TestExtrema:
    methods = METHODS

    def test_smallest(self, backend, run, method, rng):
        for dtype in ("int32", "float64"):
            (x,) = TestCumulativeMax().make(rng, (3, 40), dtype)
            for axis in (0, 1):
                options = {"axis": axis, "return_indices": True, "method": method}
                compare(backend, run(parprims.cumulative_min, backend.asarray(x), **options), extrema(x, axis, False))

    def test_without_indices(self, backend, run, method, rng):
        (x,) = TestCumulativeMax().make(rng, (3, 40), "float32")
        for function, largest in ((parprims.cumulative_max, True), (parprims.cumulative_min, False)):
            found = run(function, backend.asarray(x), axis=1, method=method)
            compare(backend, found, extrema(x, 1, largest)[0], dtype="float32")
            assert backend.xp.all(found == found) or np.isnan(x).any()

    def test_zeros_are_equal(self, backend, run, method):
        x = np.array([-1.0, -0.0, 0.0, -0.0])
        _, places = run(parprims.cumulative_max, backend.asarray(x), return_indices=True, method=method)
        assert backend.to_numpy(places).tolist() == [0, 1, 1, 1]


class TestSpecialSums:
    methods = METHODS

    @pytest.mark.parametrize(
        ("x", "expected"),
        [
            ([-math.inf, -math.inf, 1.0, -math.inf], [-math.inf, -math.inf, 1.0, 1.0]),
            ([1.0, math.inf, 2.0, math.inf], [1.0, math.inf, math.inf, math.inf]),
            ([-math.inf, math.inf], [-math.inf, math.inf]),
            ([1.0, math.nan, math.inf, -math.inf], [1.0, math.nan, math.nan, math.nan]),
            ([1e308, 1e308, -1e308], [1e308, 1e308, 1e308]),
        ],
    )
    def test_values(self, backend, run, method, x, expected):
        found = run(parprims.cumulative_logsumexp, backend.asarray(np.array(x)), method=method)
        compare(backend, found, np.array(expected))


class TestDerivatives:
    methods = METHODS

    def test_sums(self, backend, run, method, rng):
        """The derivative of y[i] by x[j] is exp(x[j] - y[i]), nothing where a sum is of nothing."""
        skip_without_derivative(backend, method)
        x, g = rng.standard_normal(9), rng.standard_normal(9)
        x[:2], x[5] = -math.inf, -math.inf
        y = sums(x, 0)
        with np.errstate(all="ignore"):
            weights = np.exp(x[:, None] - y[None, :])
        expected = (np.triu(np.where(np.isnan(weights), 0, weights)) * g).sum(axis=1).astype(np.float64)
        found = gradient(backend, lambda x: run(parprims.cumulative_logsumexp, x, method=method), x, g)
        np.testing.assert_allclose(found, expected, atol=1e-13)
        least = np.full(2, np.finfo(np.float64).min)
        values = run(parprims.cumulative_logsumexp, with_derivative(backend, least), method=method)
        assert np.isfinite(backend.to_numpy(detached(values))).all()

    def test_extrema(self, backend, run, method, rng):
        skip_without_derivative(backend, method)
        x, g = rng.standard_normal(20), rng.standard_normal(20)
        _, places = extrema(x, 0, True)
        for options in ({}, {"return_indices": True}):

            def largest(x, options=options):
                found = run(parprims.cumulative_max, x, method=method, **options)
                return found[0] if options else found

            np.testing.assert_allclose(gradient(backend, largest, x, g), np.bincount(places, g, 20), atol=1e-14)


def detached(x):
    return x.detach() if hasattr(x, "detach") else x


def with_derivative(backend, x):
    """Return an array by which a derivative is asked for."""
    if backend.family == "torch":
        return backend.asarray(x).requires_grad_()
    return backend.asarray(x)


def gradient(backend, function, x, g):
    """Return the derivative of a function's result times g."""
    if backend.family == "torch":
        x = with_derivative(backend, x)
        (function(x) * backend.asarray(g)).sum().backward()
        return backend.to_numpy(x.grad)
    if backend.family != "jax":
        pytest.skip("has no derivatives")
    import jax

    return np.asarray(jax.grad(lambda x: (function(x) * g).sum())(backend.asarray(x)))


def test_no_axis_named(backend):
    x = backend.asarray(np.ones((2, 3)))
    for function in (parprims.cumulative_max, parprims.cumulative_min, parprims.cumulative_logsumexp):
        with pytest.raises(ValueError, match="axis must be given"):
            function(x)
    with pytest.raises(ValueError, match="axis must be given"):
        parprims.cumulative_max(x, return_indices=True)
    one = backend.asarray(np.asarray(1.0))  # which has no axis to give
    for function in (parprims.cumulative_max, parprims.cumulative_logsumexp, parprims.cumulative_sum):
        with pytest.raises(ValueError, match="x must have at least one dimension"):
            function(one)
    with pytest.raises(ValueError, match="x must have at least one dimension"):
        parprims.cumulative_min(one, return_indices=True)
    with pytest.raises(TypeError, match="return_indices must be True or False"):
        parprims.cumulative_max(x, axis=0, return_indices=1)
    with pytest.raises(TypeError, match="x must have an integer or floating dtype"):
        parprims.cumulative_max(x > 0, axis=0, return_indices=True)
    with pytest.raises(TypeError, match="x must have a floating dtype"):
        parprims.cumulative_logsumexp(backend.asarray(np.arange(3)))


def test_torch_compile(rng):
    """Nodes of the graph, with derivatives."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rng.standard_normal((3, 40)))

    def loss(x):
        ys, at = parprims.cumulative_max(x, axis=1, return_indices=True)
        return (ys * at).sum() + parprims.cumulative_logsumexp(x, axis=0).sum()

    program = torch.compile(loss, fullgraph=True, backend="aot_eager")
    (one, other) = (x.clone().requires_grad_() for _ in range(2))
    program(one).backward()
    loss(other).backward()
    torch.testing.assert_close(one.grad, other.grad)


# ---- What the fuzz makes of it (tests/fuzz finds these by their names) ----------------------------------------

WRONG_OPTIONS = {"return_indices": (0, 1, None, "yes", [], 0.5)}


def draw(d, name):
    """Return a valid call, whose result is held against the loop."""
    floats = ("float32", "float64", "float16", "bfloat16")
    x = d.values(d.shape(1), d.dtype(*(floats if "log" in name else values.REAL)), tame="log" in name)
    array, x = d.array(x)
    axis = d.axis(x.ndim)
    options = {"axis": axis}
    reverse = d.chance(0.3)
    options |= {"reverse": True} if reverse else {}
    turn = lambda x: np.flip(x, int(axis)) if reverse else x  # noqa: E731
    if "log" in name:
        y = turn(sums(turn(x), int(axis)))
        expected = values.Expected(y, x.dtype.name, bound_of_sums(x, y, int(axis)))
        return values.Call(name, [array], options, lambda got: values.differs(d.backend, got, expected))
    ys, places = extrema(turn(x), int(axis), name == "cumulative_max")
    ys = values.Expected(turn(ys), x.dtype.name)
    indices = d.flag() and not reverse
    options |= {"return_indices": indices} if indices or d.chance(0.3) else {}

    def check_result(got):
        if not indices:
            return values.differs(d.backend, got, ys)
        index = values.Expected(places, None)
        return values.differs(d.backend, got[0], ys) or values.differs(d.backend, got[1], index)

    return values.Call(name, [array], options, check_result)
