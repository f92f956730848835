"""The largest elements, partitions and quantiles against Python's sort by a key."""

import functools
import math

import numpy as np
import pytest

import parprims
from parprims._primitives.order_statistics import numpy_routines as order_statistics_numpy_routines
from parprims._primitives.order_statistics.call import Selection
from tests.fuzz import values
from tests.support.contract import compare, compiled_slowly, eps, numpy_dtype, random
from tests.trust.recorder import errors

METHODS = ("kernel", "native", "array")


def before(one, other):
    """Return how two numbers stand in the order: by value, NaN last, -0 equal to +0."""
    nans = (one != one) - (other != other)
    return nans or ((one > other) - (one < other) if one == one and other == other else 0)


def order(row, largest=False):
    """Return the places of a row in order, equal ones as they come."""
    places = sorted(range(len(row)), key=functools.cmp_to_key(lambda i, j: before(row[i], row[j])))
    if largest:
        key = functools.cmp_to_key(lambda i, j: before(row[j], row[i]))
        places = sorted(range(len(row)), key=key)
    return places


def along(x, axis, function):
    """Return what a function makes of every row along an axis, as rows along it."""
    rows = np.moveaxis(x, axis, -1)
    made = [function(row) for row in rows.reshape(-1, x.shape[axis])]
    length = len(made[0]) if made else 0
    whole = np.array(made).reshape(*rows.shape[:-1], length)
    return np.moveaxis(whole, -1, axis)


def top(x, k, axis, largest):
    places = along(x, axis, lambda row: order(row.tolist(), largest)[:k]).astype(np.int64)
    return np.take_along_axis(x, places, axis), places


def drawn(rng, shape, dtype):
    """Return numbers of which many are equal, some NaN, and some the ends of the dtype."""
    dtype = numpy_dtype(dtype)
    x = random(rng, shape, "int8").astype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.where(rng.random(shape) < 0.1, rng.choice([info.min, info.max], shape), x).astype(dtype)
    strange = np.array([np.nan, np.inf, -np.inf, -0.0], dtype)[rng.integers(0, 4, shape)]
    return np.where(rng.random(shape) < 0.15, strange, x).astype(dtype)


def quick(backend, method, dtype, narrow="float16"):
    """Return a dtype, or by array operations on JAX a narrow one, whose sort is few passes to compile."""
    return narrow if backend.name == "jax" and method == "array" else dtype


@pytest.mark.once
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
def test_every_way_of_numpy(rng, monkeypatch, subtests, largest, dtype):
    """Rows that are sorted whole, that are searched by chunks far apart or of neighbours, and many at once."""
    sizes = {"_SORTED": 10, "_ORDERED": 40, "_CHUNK": 3, "_CACHED": 2000, "_LEAST": 4, "_LONG": 50, "_SHORT": 5}
    for name, size in sizes.items():
        monkeypatch.setattr(order_statistics_numpy_routines, name, size)
    numbers = drawn(rng, (3, 2000), dtype), rng.permutation(6000).reshape(3, 2000).astype(dtype)
    nans = numbers[0].copy()
    if nans.dtype.kind == "f":
        nans[:, : 2000 - 7] = np.nan
    for x in (*numbers, nans):
        for n, k in ((6, 2), (20, 4), (20, 15), (49, 3), (100, 5), (300, 90), (2000, 6), (2000, 90)):
            for one in (x[:, :n], x[:1, :n], x[0, :n], x[0, ::-1][:n], x[:, :n].T):
                axis = int(one.ndim == 2 and one.shape[1] == n)
                call = Selection(
                    arrays=(one,),
                    results=((), ((), np.dtype(np.int64))),
                    axis=axis,
                    descending=largest,
                    places=(k,),
                )
                found = order_statistics_numpy_routines.prepare_top(np, call)(one)
                with subtests.test(shape=one.shape, k=k):
                    for y, expected in zip(found, top(one, k, axis, largest), strict=True):
                        assert y.dtype == expected.dtype
                        np.testing.assert_array_equal(y, expected)


class TestTopK:
    methods = METHODS

    def test_shapes(self, backend, run, method, rng, subtests):
        """Both where the library selects and where all is sorted, and on either side."""
        cases = [((40,), 5), ((3, 7), 7), ((4, 0), 0)]
        cases += (
            []
            if backend.name == "jax"
            else [((2, 1), 1), ((0, 8), 1), ((5,), 0), ((3000,), 64), ((16, 2, 3), 2), ((9, 64), 8)]
        )
        for shape, k in cases:
            for axis in (-1, 0):
                n = min(k, shape[axis])
                for mode in ("largest", "smallest"):
                    with subtests.test(shape=shape, k=n, axis=axis, mode=mode):
                        x = drawn(rng, shape, quick(backend, method, "float32"))
                        options = {"axis": axis, "mode": mode, "method": method}
                        found = run(parprims.top_k, backend.asarray(x), n, **options)
                        if x.size:
                            compare(backend, found, top(x, n, axis, mode == "largest"))
                        else:
                            assert found[0].shape == found[1].shape

    @pytest.mark.parametrize("dtype", ["int8", "uint8", "uint64", "int64", "bfloat16", "float64"])
    def test_dtypes(self, backend, run, method, rng, dtype):
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        if backend.name == "jax" and method == "array" and dtype[-2:] == "64":
            pytest.skip("many passes to compile")
        if dtype in ("uint8", "int64", "float64") and compiled_slowly(backend, method):
            pytest.skip("test_sort_cpu.py has keys of every dtype, and others of the width are left here")
        x = drawn(rng, (2, 40), dtype)
        for k, mode in ((4, "largest"), (30, "smallest")):
            values, places = run(parprims.top_k, backend.asarray(x), k, mode=mode, method=method)
            expected = top(x, k, 1, mode == "largest")
            compare(backend, (values, places), expected)
            assert backend.to_numpy(values).dtype.name == dtype

    def test_derivative(self, backend, run, method, rng):
        if backend.family not in ("torch", "jax"):
            pytest.skip("has no derivatives")
        x, g = (rng.standard_normal((2, n)).astype(quick(backend, method, "float64")) for n in (40, 4))
        expected = np.zeros_like(x)
        np.put_along_axis(expected, top(x, 4, 1, True)[1], g, 1)

        def loss(x):
            return (run(parprims.top_k, x, 4, method=method)[0] * backend.asarray(g)).sum()

        np.testing.assert_array_equal(gradient(backend, loss, x), expected)

    def test_transformed(self, backend, run, method, rng):
        x = drawn(rng, (3, 40), quick(backend, method, "float32"))
        if backend.name == "torch":
            import torch

            found = torch.func.vmap(lambda x: run(parprims.top_k, x, 4, method=method))(backend.asarray(x))
        elif backend.name == "jax":
            import jax

            found = jax.jit(jax.vmap(lambda x: run(parprims.top_k, x, 4, method=method)))(backend.asarray(x))
        else:
            pytest.skip("has no transformations")
        compare(backend, found, top(x, 4, 1, True))


@pytest.mark.once
@pytest.mark.parametrize("way", ["auto", "native", "array"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_unsigned_tensors(rng, way, dtype):
    """PyTorch finds no extrema of wide ones itself: of few elements and of many, whoever computes."""
    torch = pytest.importorskip("torch")
    x = drawn(rng, (3, 70), dtype)
    for k, mode in ((2, "largest"), (3, "smallest"), (40, "largest"), (0, "largest")):
        found = parprims.top_k(torch.from_numpy(x), k, mode=mode, method=way)
        for one, expected in zip(found, top(x, k, 1, mode == "largest"), strict=True):
            assert one.numpy().dtype == expected.dtype
            np.testing.assert_array_equal(one.numpy(), expected)


@pytest.mark.once
@pytest.mark.parametrize("way", ["auto", "native", "array"])
def test_bits_of_nan_in_tensors(rng, way):
    """Elements are moved as they are, of bfloat16 too, of which PyTorch's own gather makes one NaN of all."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    for shape, axis in (((3, 40), -1), ((40, 3), 0)):
        x = drawn(rng, shape, "bfloat16").view(np.int16)
        x[x == 0] = 0x7FC1
        keys = rng.integers(0, 9, shape, np.int8)
        values, places = top(x.view(numpy_dtype("bfloat16")), 5, axis % 2, True)
        given = torch.from_numpy(x).view(torch.bfloat16)
        found = parprims.top_k(given, 5, axis=axis, method=way)
        np.testing.assert_array_equal(found[0].view(torch.int16).numpy(), values.view(np.int16))
        np.testing.assert_array_equal(found[1].numpy(), places)
        _, found = parprims.sort_by_key(torch.from_numpy(keys), given, axis=axis, method=way)
        expected = np.take_along_axis(x, np.argsort(keys, axis, stable=True), axis)
        np.testing.assert_array_equal(found.view(torch.int16).numpy(), expected)


@pytest.mark.once
@pytest.mark.parametrize("way", ["auto", "native", "array"])
def test_nan_among_halves(way):
    """NaN come last, of bfloat16 too, which NumPy itself orders in another way, and a median of them is NaN."""
    pytest.importorskip("ml_dtypes")
    x = np.array([0.5, np.nan, -1.25]).astype(numpy_dtype("bfloat16"))
    for kth, value, place in ((0, -1.25, 2), (1, 0.5, 0), (2, np.nan, 1)):
        found = parprims.partition(x, kth, method=way)[kth]
        np.testing.assert_array_equal(float(found), value)
        assert parprims.argpartition(x, kth, method=way)[kth] == place
    assert np.isnan(float(parprims.median(x, method=way)))


class TestPartition:
    methods = METHODS

    @pytest.mark.parametrize("dtype", ["float32", "int64"])
    def test_places(self, backend, run, method, rng, subtests, dtype):
        dtype = quick(backend, method, dtype, dtype.replace("32", "16").replace("64", "8"))
        x = drawn(rng, (3, 33), dtype)
        for kth, axis in ((0, 0), (16, -1), (-1, 1), ((3, 20, 3), 1)):
            with subtests.test(kth=kth, axis=axis):
                array = backend.asarray(x)
                whole = run(parprims.partition, array, kth, axis=axis, method=method)
                parted = backend.to_numpy(whole)
                places = run(parprims.argpartition, array, kth, axis=axis, method=method)
                by_places = np.take_along_axis(x, backend.to_numpy(places), axis)
                ordered = along(x, axis, lambda row: row[order(row.tolist())])
                for got in (parted, by_places):
                    assert got.dtype == x.dtype
                    np.testing.assert_array_equal(along(got, axis, lambda row: row[order(row.tolist())]), ordered)
                    for one in kth if isinstance(kth, tuple) else (kth,):
                        at = one % x.shape[axis]
                        here = np.take(got, [at], axis)
                        np.testing.assert_array_equal(here, np.take(ordered, [at], axis))
                        first, rest = np.split(np.moveaxis(got, axis, 0), [at])
                        here = np.moveaxis(here, axis, 0)
                        assert all(before(a, b) <= 0 for a, b in pairs(first, here))
                        assert all(before(a, b) >= 0 for a, b in pairs(rest, here))
                for got in (whole, places):
                    errors.note(backend, got, backend.to_numpy(got).dtype.name)


def pairs(rows, row):
    one, other = np.broadcast_arrays(rows, row)
    return zip(one.reshape(-1).tolist(), other.reshape(-1).tolist(), strict=True)


def share(row, q, interpolation):
    """Return a quantile of a row, and the larger of the two elements that it is between."""
    row = [float(one) for one in row]
    if any(one != one for one in row):
        return math.nan, 0.0
    row = sorted(row)
    place = q * (len(row) - 1)
    low = math.floor(place)
    high = min(low + 1, len(row) - 1)
    part = {"lower": 0.0, "higher": math.ceil(place) - low, "midpoint": 0.5, "nearest": round(place) - low}.get(
        interpolation, place - low
    )
    part = 0.0 if place == low else part
    one, other = row[low], row[high]
    size = max((abs(x) for x in (one, other) if np.isfinite(x)), default=0.0)
    if one == other or part == 0:
        return one, 0.0
    return (other, 0.0) if part == 1 else (one * (1 - part) + other * part, size)


class TestQuantile:
    methods = METHODS

    @pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "nearest", "midpoint"])
    def test_shares(self, backend, run, method, rng, interpolation):
        if backend.name == "jax" and interpolation not in ("linear", "nearest"):
            pytest.skip("many passes to compile")
        dtype = quick(backend, method, "float64", "float32")
        x, shares = rng.standard_normal((3, 12)).astype(dtype), (0.0, 0.3, 0.5, 0.77, 1.0)
        x[1, 3], x[2, :4] = np.nan, np.inf
        found = run(parprims.quantile, backend.asarray(x), shares, axis=1, interpolation=interpolation, method=method)
        pairs = [[share(row, q, interpolation) for row in x] for q in shares]
        expected, sizes = (np.array([[pair[at] for pair in row] for row in pairs]) for at in (0, 1))
        compare(backend, found, expected, 2 * eps(dtype) * sizes, dtype)

    def test_median(self, backend, run, method, rng):
        for shape, axis in (((7,), None), ((3, 8), 1), ((3, 8), (0, 1))) + (((2, 5, 4), (0, 2)),):
            keepdims = bool(rng.integers(2))
            for dtype in (quick(backend, method, "float32"), "int8"):
                x = random(rng, shape, dtype)
                options = {"axis": axis, "keepdims": keepdims}
                found = run(parprims.median, backend.asarray(x), method=method, **options)
                expected = np.asarray(np.median(x.astype(np.float64), **options))
                bound = 2 * eps(found_dtype := backend.to_numpy(found).dtype.name) * abs(x).max()
                compare(backend, found, expected, bound)
                assert found_dtype == ("float64" if dtype == "int8" else dtype)

    def test_narrow_floats(self, backend, run, method, rng):
        if not backend.supports("bfloat16"):
            pytest.skip("has no bfloat16")
        x = random(rng, (8,), "bfloat16")
        found = run(parprims.median, backend.asarray(x), method=method)
        expected = np.median(x.astype(np.float64))
        compare(backend, found, np.asarray(expected), eps("bfloat16") / 2 * abs(expected), "bfloat16")

    def test_nothing_overflows(self, backend, run, method):
        dtype = np.dtype(quick(backend, method, "float64", "float32"))
        x = (np.array([0.8, -0.8, 0.95, 0.9]) * np.finfo(dtype).max).astype(dtype)
        found = float(run(parprims.median, backend.asarray(x), method=method))
        assert abs(found - 0.85 * np.finfo(dtype).max) <= 2 * eps(dtype.name) * np.finfo(dtype).max

    def test_derivative(self, backend, run, method, rng):
        if backend.family not in ("torch", "jax"):
            pytest.skip("has no derivatives")
        x = rng.standard_normal((2, 8)).astype(quick(backend, method, "float64"))
        expected = np.zeros_like(x)
        for row, to in zip(x, expected, strict=True):
            to[np.argsort(row)[3:5]] = 0.5

        def loss(x):
            return run(parprims.median, x, axis=1, method=method).sum()

        np.testing.assert_allclose(gradient(backend, loss, x), expected, atol=1e-15)


def gradient(backend, loss, x):
    if backend.family == "jax":
        import jax

        return np.asarray(jax.grad(loss)(backend.asarray(x)))
    x = backend.asarray(x).requires_grad_()
    loss(x).backward()
    return backend.to_numpy(x.grad)


def test_arguments_named(backend):
    x = backend.asarray(np.ones((2, 3), np.float32))
    for k, error in ((4, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError), (None, TypeError)):
        with pytest.raises(error, match=r"^k must be"):
            parprims.top_k(x, k)
    with pytest.raises(ValueError, match=r"^mode must be one of largest, smallest, got 'larges': did you mean"):
        parprims.top_k(x, 1, mode="larges")
    with pytest.raises(TypeError, match=r"^sorted must be True or False"):
        parprims.top_k(x, 1, sorted=1)
    for kth, error in ((3, ValueError), (-4, ValueError), ((), ValueError), ([1.0], TypeError), ("1", TypeError)):
        for function in (parprims.partition, parprims.argpartition):
            with pytest.raises(error, match=r"^kth must"):
                function(x, kth)
    for q, error in ((1.1, ValueError), (math.nan, ValueError), ("0.5", TypeError), (["a"], TypeError), (x, TypeError)):
        with pytest.raises(error, match=r"^q must be"):
            parprims.quantile(x, q)
    with pytest.raises(ValueError, match=r"^interpolation must be one of"):
        parprims.quantile(x, 0.5, interpolation="cubic")
    with pytest.raises(ValueError, match=r"^x must not be empty along the axes of a median"):
        parprims.median(x[:, :0])
    for call in (lambda x: parprims.top_k(x, 1), parprims.median, lambda x: parprims.partition(x, 0)):
        with pytest.raises(TypeError, match=r"^x must be of an integer or real floating dtype"):
            call(x > 0)
    k = np.int64(2)
    assert parprims.top_k(x, k)[0].shape == (2, 2)


def test_inputs_untouched(backend, rng):
    x = drawn(rng, (3, 40), quick(backend, "array", "float32"))
    array = backend.asarray(x.copy())
    for method in ("auto", "array"):
        parprims.top_k(array, 3, method=method)
        parprims.partition(array, 3, method=method)
        parprims.median(array, method=method)
    np.testing.assert_array_equal(backend.to_numpy(array), x)


def test_torch_compile(rng):
    """One node of the graph, with a derivative."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rng.standard_normal((3, 40)))

    def loss(x):
        ys, at = parprims.top_k(x, 4, mode="smallest")
        return (ys * at).sum() + parprims.quantile(x, (0.25, 0.5), axis=1).sum() + parprims.median(x)

    program = torch.compile(loss, fullgraph=True, backend="aot_eager")
    one, other = (x.clone().requires_grad_() for _ in range(2))
    program(one).backward()
    loss(other).backward()
    torch.testing.assert_close(one.grad, other.grad)


# ---- What the fuzz makes of it (tests/fuzz finds these by their names) ----------------------------------------

WRONG_OPTIONS = {
    "mode": ("bogus", None, 3, ["largest"], b"largest"),
    "sorted": (0, 1, None, "yes", []),
    "interpolation": ("cubic", None, 3, ["linear"], {}),
}


def draw(d, name):
    """Return a valid call, whose result is held against the sort."""
    x = d.values(d.shape(1), d.dtype(*values.REAL))
    array, x = d.array(x)
    axis = int(d.axis(x.ndim))
    n, options = x.shape[axis], {"axis": axis}
    if name == "top_k":
        k = int(d.rng.integers(0, n + 1))
        largest = d.chance(0.5)
        options |= {"mode": "largest" if largest else "smallest"} if not largest or d.chance(0.3) else {}
        ys, places = top(x, k, axis, largest) if x.size else (x[along_first(x, axis, k)],) * 2
        expected = values.Expected(ys, x.dtype.name), values.Expected(places, None)

        def check_result(got):
            if not x.size:
                return None
            found = (values.differs(d.backend, one, other) for one, other in zip(got, expected, strict=True))
            return next((one for one in found if one), None)

        return values.Call(name, [array, k], options, check_result)
    if "partition" in name:
        kth = int(d.rng.integers(-n, n)) if n else 0
        if n == 0:
            return values.Call(name, [array, kth], options, lambda _: None, {"kth"})
        if x.size == 0:
            return values.Call(name, [array, kth], options, lambda _: None)
        ordered = along(x, axis, lambda row: row[order(row.tolist())])

        def check_place(got):
            got = d.backend.to_numpy(got)
            got = np.take_along_axis(x, got, axis) if name == "argpartition" else got
            here = np.take(got, [kth % n], axis)
            same = np.array_equal(here, np.take(ordered, [kth % n], axis), equal_nan=x.dtype.kind not in "iu")
            return None if same and got.dtype == x.dtype else f"there is {here.tolist()}"

        return values.Call(name, [array, kth], options, check_place)
    q = 0.5 if name == "median" else d.one((0.0, 0.25, 0.6, 1, 1.0))
    args = [array] if name == "median" else [array, q]
    if n == 0:
        return values.Call(name, args, options, lambda _: None, {"x"})
    if x.size == 0:
        return values.Call(name, args, options, lambda _: None)

    def check_share(got):
        got = d.backend.to_numpy(got)
        pairs = along(x, axis, lambda row: share(row, q, "linear"))
        expected, size = (np.take(pairs, at, axis) for at in (0, 1))
        with np.errstate(all="ignore"):
            rounded = expected.astype(got.dtype).astype(np.float64)
            close = abs(got.astype(np.float64) - expected) <= 4 * values.eps(got.dtype.name) * size
            right = close | (got == rounded) | (np.isnan(got) & np.isnan(expected))
        return None if right.all() else f"{got.tolist()} instead of {expected.tolist()}"

    return values.Call(name, args, options, check_share)


def along_first(x, axis, k):
    return (slice(None),) * (axis % x.ndim) + (slice(0, k),)
