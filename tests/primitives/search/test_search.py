"""Searches and merges against loops over the elements."""

import functools

import numpy as np
import pytest

import parprims
from tests.fuzz import values
from tests.primitives.order_statistics.test_order_statistics import before, drawn, gradient, order
from tests.support.contract import compare, numpy_dtype


def ordered(x, axis=-1, largest=False):
    """Return x in order along an axis, by Python's sort."""
    rows = np.moveaxis(x, axis, -1)
    if x.size == 0:
        return x
    whole = np.array([row[order(row.tolist(), largest)] for row in rows.reshape(-1, rows.shape[-1])], x.dtype)
    return np.moveaxis(whole.reshape(rows.shape), -1, axis)


def places(x1, x2, side):
    """Return where elements would stand, by a loop."""
    bound = 1 if side == "right" else 0
    found = [sum(before(one, other) < bound for one in x1.tolist()) for other in x2.reshape(-1).tolist()]
    return np.array(found, np.int64).reshape(x2.shape)


def merged(x1, x2, axis, descending=False):
    """Return two arrays merged and which element of their concatenation stands where, by a loop over two rows."""
    both = np.concatenate([x1, x2], axis=axis)
    rows, found = np.moveaxis(both, axis, -1), np.empty(np.moveaxis(both, axis, -1).shape, np.int64)
    n, m = x1.shape[axis], x2.shape[axis]
    for at in np.ndindex(rows.shape[:-1]):
        row, i, j = rows[at].tolist(), 0, n
        for t in range(n + m):
            sign = 1 if j == n + m or i == n else before(row[i], row[j]) * (-1 if descending else 1)
            first = j == n + m or (i < n and sign <= 0)
            found[at][t] = i if first else j
            i, j = i + first, j + (not first)
    found = np.moveaxis(found, -1, axis)
    return np.take_along_axis(both, found, axis), found


class TestSearchsorted:
    methods = ("kernel", "native", "array")

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_shapes(self, backend, run, method, rng, subtests, side):
        for n, shape in ((0, (3,)), (1, (4,)), (7, (2, 3)), (33, (0,)), (32, (5, 1)), (500, (40,)), (3, ())):
            with subtests.test(n=n, shape=shape):
                x1, x2 = ordered(drawn(rng, (n,), "float32")), drawn(rng, shape, "float32")
                found = run(parprims.searchsorted, backend.asarray(x1), backend.asarray(x2), side=side, method=method)
                compare(backend, found, places(x1, x2, side))

    @pytest.mark.parametrize("dtype", ["int8", "uint64", "bfloat16", "float64"])
    def test_dtypes(self, backend, run, method, rng, dtype):
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        x1, x2 = ordered(drawn(rng, (40,), dtype)), drawn(rng, (30,), dtype)
        for side in ("left", "right"):
            found = run(parprims.searchsorted, backend.asarray(x1), backend.asarray(x2), side=side, method=method)
            compare(backend, found, places(x1, x2, side))

    def test_sorter(self, backend, run, method, rng):
        x1, x2 = drawn(rng, (40,), "float32"), drawn(rng, (30,), "float32")
        sorter = np.array(order(x1.tolist()))
        arrays = (backend.asarray(x) for x in (x1, x2))
        found = run(parprims.searchsorted, *arrays, sorter=backend.asarray(sorter), method=method)
        compare(backend, found, places(x1[sorter], x2, "left"))

    def test_promotion(self, backend, run, method):
        x1, x2 = np.array([1, 2**24, 2**24 + 1], np.int32), np.array([2**24 + 1, 2**40], np.int64)
        found = run(parprims.searchsorted, backend.asarray(x1), backend.asarray(x2), method=method)
        assert backend.to_numpy(found).tolist() == [2, 3]

    @pytest.mark.parametrize(("sorted_", "wanted"), [("float32", "float64"), ("float64", "float32")])
    def test_subnormal(self, backend, run, method, rng, sorted_, wanted):
        """Of two dtypes, one of which CuPy and XLA on a CPU make zeros of when they cast it."""
        least = np.finfo(np.float32).smallest_subnormal
        some = np.array([-1, -1e-39, -least, 0, least, 5 * least, 1e-39, 1], np.float32)
        x1, x2 = some.astype(sorted_), rng.choice(some, 30).astype(wanted)
        found = run(parprims.searchsorted, backend.asarray(x1), backend.asarray(x2), method=method)
        compare(backend, found, places(x1, x2, "left"))


class TestManySearches:
    """Kernels for CPUs search for some hundred elements together, and threads share these."""

    methods = ("kernel", "native")

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_numbers_of_searches(self, backend, run, method, rng, subtests, side):
        for n in (1, 2, 3, 1000):
            x1 = np.sort(rng.integers(0, n, n)).astype(np.float32)
            x1[n - n // 10 :] = np.nan
            for m in (255, 256, 257, 9000):
                with subtests.test(n=n, m=m):
                    x2 = rng.integers(-1, n + 1, m).astype(np.float32)
                    x2[:: 1 + m // 9] = np.nan
                    found = run(parprims.searchsorted, *map(backend.asarray, (x1, x2)), side=side, method=method)
                    compare(backend, found, np.searchsorted(x1, x2, side))

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_nan_in_a_later_call(self, backend, run, method, side):
        """What is remembered of a call without NaN serves one that has them."""
        x1, nan = np.arange(100.0), np.where(np.arange(100) < 90, np.arange(100.0), np.nan)
        for one, other in ((x1, x1), (x1, nan), (nan, x1), (nan, nan)):
            found = run(parprims.searchsorted, *map(backend.asarray, (one, other)), side=side, method=method)
            compare(backend, found, np.searchsorted(one, other, side))

    @pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
    def test_unsigned(self, backend, run, method, rng, dtype):
        """Also by PyTorch, whose own search has no unsigned integers of more than 8 bits."""
        top = np.iinfo(dtype).max
        x1, x2 = np.sort(rng.integers(0, top, 100, dtype)), rng.integers(0, top, 1000, dtype)
        found = run(parprims.searchsorted, *map(backend.asarray, (x1, x2)), method=method)
        compare(backend, found, np.searchsorted(x1, x2))

    def test_unsorted(self, backend, run, method, rng):
        """Places are anywhere, but in the array."""
        x1, x2 = (backend.asarray(rng.standard_normal(n)) for n in (1000, 300))
        found = backend.to_numpy(run(parprims.searchsorted, x1, x2, method=method))
        assert ((found >= 0) & (found <= 1000)).all()

    def test_views(self, backend, run, method, rng):
        x1, x2 = np.sort(rng.standard_normal(500)), rng.standard_normal((20, 15))
        one, other = backend.asarray(np.repeat(x1, 2)), backend.asarray(x2)
        found = run(parprims.searchsorted, one[::2], other.T, method=method)
        compare(backend, found, np.searchsorted(x1, x2.T))


class TestMerge:
    methods = ("kernel", "native", "array")

    @pytest.mark.parametrize("dtype", ["uint16", "uint64"])
    def test_unsigned(self, backend, run, method, rng, dtype):
        """Also by PyTorch, which on GPUs chooses between no unsigned integers of more than 8 bits."""
        x1, x2 = (np.sort(rng.integers(0, np.iinfo(dtype).max, n, dtype)) for n in (40, 33))
        found = run(parprims.merge, *map(backend.asarray, (x1, x2)), method=method)
        compare(backend, found, np.sort(np.concatenate([x1, x2])))

    def test_shapes(self, backend, run, method, rng, subtests):
        cases = [((5,), (3,), 0), ((0,), (4,), 0), ((2, 9), (2, 1), 1), ((3, 2), (4, 2), 0)]
        cases += (
            [] if backend.name == "jax" else [((4,), (0,), 0), ((1,), (1,), 0), ((300,), (77,), 0), ((64,), (64,), 0)]
        )
        dtype = "float16" if backend.name == "jax" else "float32"
        for one, other, axis in cases:
            for descending in (False, True):
                with subtests.test(one=one, other=other, axis=axis, descending=descending):
                    x1, x2 = (ordered(drawn(rng, shape, dtype), axis, descending) for shape in (one, other))
                    options = {"axis": axis, "descending": descending, "method": method}
                    found = run(parprims.merge, backend.asarray(x1), backend.asarray(x2), **options)
                    compare(backend, found, merged(x1, x2, axis, descending)[0], dtype=dtype)

    @pytest.mark.parametrize("dtype", ["int8", "uint64", "bfloat16", "float64"])
    def test_by_key(self, backend, run, method, rng, dtype):
        """Values show that the merge is stable."""
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        if backend.name == "jax" and dtype[-2:] == "64":
            pytest.skip("many passes to compile")
        x1, x2 = (ordered(drawn(rng, (2, n), dtype)) for n in (20, 33))
        keys, found = merged(x1, x2, 1)
        whole = np.broadcast_to(np.arange(53.0), (2, 53))
        given = (x1, whole[:, :20].copy(), x2, whole[:, 20:].copy())
        got = run(parprims.merge_by_key, *(backend.asarray(x) for x in given), method=method)
        compare(backend, got, (keys, found.astype(np.float64)))

    def test_derivative(self, backend, run, method, rng):
        if backend.family not in ("torch", "jax"):
            pytest.skip("has no derivatives")
        dtype = "float16" if backend.name == "jax" else "float64"
        x1, x2 = (np.sort(rng.standard_normal(n)).astype(dtype) for n in (5, 4))
        g = rng.standard_normal(9).astype(dtype)
        expected = np.empty(9, dtype)
        expected[merged(x1, x2, 0)[1]] = g

        def loss(x1):
            return (run(parprims.merge, x1, backend.asarray(x2), method=method) * backend.asarray(g)).sum()

        np.testing.assert_array_equal(gradient(backend, loss, x1), expected[:5])


def test_arguments_named(backend):
    x, whole = backend.asarray(np.ones((2, 3), np.float32)), backend.asarray(np.arange(3))
    row = x[0, :]
    for call, error, words in (
        (lambda: parprims.searchsorted(x, row), ValueError, "x1 must have one dimension"),
        (lambda: parprims.searchsorted(row, whole), TypeError, "x1 and x2 must have dtypes that promote together"),
        (lambda: parprims.searchsorted(row, row, side="lef"), ValueError, "side must be one of left, right"),
        (lambda: parprims.searchsorted(row, row, sorter=row), TypeError, "sorter must have an integer"),
        (lambda: parprims.searchsorted(row, row, sorter=whole[:2]), ValueError, "sorter must have the shape of x1"),
        (lambda: parprims.searchsorted(row, row > 0), TypeError, "x2 must have an? .* dtype"),
        (lambda: parprims.merge(x, row), ValueError, "x1 and x2 must have equal shapes"),
        (lambda: parprims.merge(x, x[:1, :]), ValueError, "x1 and x2 must have equal shapes"),
        (lambda: parprims.merge(row, whole), TypeError, "x1 and x2 must have dtypes that promote together"),
        (lambda: parprims.merge(row, row, descending=1), TypeError, "descending must be True or False"),
        (lambda: parprims.searchsorted(row, 2.0, side="middle"), ValueError, "side must be one of left, right"),
        (lambda: parprims.merge_by_key(row, x, row, row), ValueError, "values1 must have the shape of keys1"),
        (lambda: parprims.merge_by_key(row, row, row, x), ValueError, "values2 must have the shape of keys2"),
        (lambda: parprims.merge_by_key(row, row, row, whole), TypeError, "values1 and values2 must have one dtype"),
    ):
        with pytest.raises(error, match=f"^{words}"):
            call()


def test_torch_compile(rng):
    torch = pytest.importorskip("torch")
    x, y = (torch.from_numpy(np.sort(rng.standard_normal(n))) for n in (30, 20))

    def loss(x, y):
        found = parprims.searchsorted(x, y)
        return (parprims.merge(x, y) * torch.arange(50)).sum() + parprims.merge_by_key(x, x, y, y)[1][found].sum()

    program = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = []
    for function in (program, loss):
        leaves = [one.clone().requires_grad_() for one in (x, y)]
        function(*leaves).backward()
        results.append([one.grad for one in leaves])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_jit(rng):
    jax = pytest.importorskip("jax")
    x, y = (ordered(drawn(rng, (2, n), "float16")) for n in (9, 5))
    both = functools.partial(parprims.merge, axis=-1)
    compare_rows = jax.jit(jax.vmap(both))(x, y)
    np.testing.assert_array_equal(np.asarray(compare_rows), merged(x, y, 1)[0])
    found = jax.jit(jax.vmap(parprims.searchsorted))(x, y)
    np.testing.assert_array_equal(np.asarray(found), [places(*rows, "left") for rows in zip(x, y, strict=True)])


# ---- What the fuzz makes of it (tests/fuzz finds these by their names) ----------------------------------------

WRONG_OPTIONS = {
    "side": ("bogus", None, 3, ["left"], b"left"),
    "sorter": ("text", 3, [0, 1], {}, (1, 2), 1.5),
}


def draw(d, name):
    """Return a valid call, whose result is held against the loops."""
    dtype = d.dtype(*values.REAL)
    if name == "searchsorted":
        x1 = ordered(d.values(d.shape(1, 1), dtype))
        (one, x1), (two, x2) = d.array(x1), d.array(d.values(d.shape(), dtype))
        side = d.one(("left", "right"))
        options = {"side": side} if side == "right" or d.chance(0.5) else {}
        x1 = np.array(sorted_again(x1))
        expected = values.Expected(places(x1, x2, side), None)
        return values.Call(name, [one, two], options, lambda got: values.differs(d.backend, got, expected))
    shape = d.shape(1)
    axis = int(d.axis(len(shape)))
    other = list(shape)
    other[axis] = int(d.rng.integers(0, 6)) if not d.few else shape[axis]
    rows = [ordered(d.values(one, dtype), axis) for one in (shape, tuple(other))]
    arrays = [d.plain(x) for x in rows]
    keys, found = merged(*rows, axis)
    expected = values.Expected(keys, dtype)
    if name == "merge":
        return values.Call(name, arrays, {"axis": axis}, lambda got: values.differs(d.backend, got, expected))
    values1, values2 = (d.values(x.shape, "int32", tame=True) for x in rows)
    moved = np.take_along_axis(np.concatenate([values1, values2], axis=axis), found, axis)

    def check_result(got):
        wrong = values.differs(d.backend, got[0], expected)
        return wrong or values.differs(d.backend, got[1], values.Expected(moved, "int32"))

    args = [arrays[0], d.plain(values1), arrays[1], d.plain(values2)]
    return values.Call(name, args, {"axis": axis}, check_result)


def sorted_again(x):
    """Return what a layout that repeats elements made of sorted ones: they are equal then, and in order."""
    return x.astype(numpy_dtype(x.dtype.name))


class TestLongMerges:
    """Rows of several chunks by kernels for CPUs, which merge two halves of a chunk in turn, and copy NaN."""

    methods = ("kernel", "native")

    @pytest.mark.parametrize("descending", [False, True])
    @pytest.mark.parametrize(("n", "m"), [(17_000, 9_000), (3, 20_000), (8192, 8192)])
    def test_chunks(self, backend, run, method, rng, n, m, descending):
        """Many equal keys, zeros of both signs, and NaN in the last chunks, or the first."""
        keys, values = [], []
        for length in (n, m):
            x = rng.integers(-999, 999, length) / np.float32(8) * rng.choice(np.float32([-1, 1]), length)
            x[: length // 3] = np.nan
            keys.append(x[order(x.tolist(), descending)])
            values.append(rng.integers(0, 2**30, length))
        given = (backend.asarray(x) for pair in zip(keys, values, strict=True) for x in pair)
        found = run(parprims.merge_by_key, *given, descending=descending, method=method)
        both = np.concatenate(keys)
        places = np.array(order(both.tolist(), descending))
        compare(backend, found, (both[places], np.concatenate(values)[places]))

    def test_rows(self, backend, run, method, rng):
        one, other = (np.sort(rng.standard_normal((length, 3)), axis=0) for length in (9000, 10_000))
        found = run(parprims.merge, backend.asarray(one), backend.asarray(other), axis=0, method=method)
        compare(backend, found, np.sort(np.concatenate([one, other]), axis=0))
