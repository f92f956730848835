"""Selections, partitions by a mask, runs and unique elements against loops over the elements."""

import numpy as np
import pytest

import parprims
from parprims._primitives.selection import numpy_routines as selection_numpy_routines
from tests.fuzz import values
from tests.primitives.order_statistics.test_order_statistics import drawn, gradient, order
from tests.support.contract import compare, numpy_dtype, random

METHODS = ("kernel", "native", "array")


def fitted(rows, size, fills):
    """Return rows of a length, the first elements of longer ones, and what stands behind shorter ones."""
    if size is None:
        return rows
    missing = max(0, size - len(rows[0]))
    pairs = zip(rows, fills, strict=True)
    return tuple(np.concatenate([row[:size], np.full(missing, fill, row.dtype)]) for row, fill in pairs)


def kept(x, mask, size=None, fill=0):
    found = [one for one, wanted in zip(x.reshape(-1), mask.reshape(-1), strict=True) if wanted]
    return *fitted((np.array(found, x.dtype),), size, (fill,)), np.asarray(int(mask.sum()))


def runs(x, size=None, fill=0):
    """Return the runs of equal neighbours, by a loop."""
    found, lengths = [], []
    for one in x:
        if found and (found[-1] == one or (found[-1] != found[-1] and one != one)):
            lengths[-1] += 1
        else:
            found.append(one)
            lengths.append(1)
    rows = np.array(found, x.dtype), np.array(lengths, np.int64)
    return *fitted(rows, size, (fill, 0)), np.asarray(len(found))


def once(x, size=None, fill=0):
    flat = x.reshape(-1)
    return runs(flat[np.array(order(flat.tolist()), np.int64)], size, fill)


class TestSelect:
    methods = METHODS

    def test_shapes(self, backend, run, method, rng, subtests):
        shapes = ((7,), (0,), (2, 3)) if backend.name == "jax" else ((0,), (1,), (7,), (3, 4), (2, 0), (700,), ())
        for shape in shapes:
            for size in (None, 0, 3, 20):
                with subtests.test(shape=shape, size=size):
                    x, mask = random(rng, shape, "float32"), random(rng, shape, "bool")
                    options = {} if size is None else {"size": size, "fill_value": -1}
                    arrays = backend.asarray(x), backend.asarray(mask)
                    found = run(parprims.select, *arrays, method=method, **options)
                    compare(backend, found, kept(x, mask, size, -1))
                    assert backend.to_numpy(found[0]).dtype == x.dtype

    def test_blocks_by_numpy(self, backend, run, method, rng, monkeypatch):
        """Ends of blocks, with results that end in the first block, in another, and nowhere."""
        if backend.name not in ("numpy", "torch") or method == "array":
            pytest.skip("it is of NumPy, which computes on PyTorch's arrays too")
        monkeypatch.setattr(selection_numpy_routines, "_BLOCK", 700)
        for n in (600, 700, 701, 1400, 5000):
            x, mask = random(rng, (n,), "float32"), random(rng, (n,), "bool")
            arrays = backend.asarray(x), backend.asarray(mask)
            for size in (None, 200, 2000, 6000):
                compare(backend, run(parprims.select, *arrays, size=size, method=method), kept(x, mask, size))
            found, count = run(parprims.partition_by, *arrays, method=method)
            compare(backend, found, np.concatenate([x[mask], x[~mask]]))
            assert int(count) == mask.sum()

    def test_shares(self, backend, run, method, rng):
        for share in (0, 1):
            x, mask = random(rng, (40,), "int32"), np.full(40, bool(share))
            for size in (None, 30):
                found = run(parprims.select, backend.asarray(x), backend.asarray(mask), size=size, method=method)
                compare(backend, found, kept(x, mask, size))

    @pytest.mark.parametrize("dtype", ["bool", "uint64", "bfloat16", "complex64"])
    def test_dtypes(self, backend, run, method, rng, dtype):
        if dtype != "bool" and not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        x, mask = random(rng, (30,), dtype), random(rng, (30,), "bool")
        found = run(parprims.select, backend.asarray(x), backend.asarray(mask), size=30, method=method)
        compare(backend, found, kept(x, mask, 30))

    def test_partition(self, backend, run, method, rng):
        for shape in ((30,), (3, 5), (0,)):
            x, mask = random(rng, shape, "float32"), random(rng, shape, "bool")
            found = run(parprims.partition_by, backend.asarray(x), backend.asarray(mask), method=method)
            compare(backend, found, (np.concatenate([x[mask], x[~mask]]), np.asarray(mask.sum())))

    def test_derivative(self, backend, run, method, rng):
        if backend.family not in ("torch", "jax"):
            pytest.skip("has no derivatives")
        x, mask, g = rng.standard_normal(20), random(rng, (20,), "bool"), rng.standard_normal(20)
        expected = np.zeros(20)
        expected[mask] = g[: mask.sum()]

        def loss(x):
            found = run(parprims.select, x, backend.asarray(mask), size=20, method=method)[0]
            return (found * backend.asarray(g)).sum()

        np.testing.assert_array_equal(gradient(backend, loss, x), expected)


class TestRuns:
    methods = METHODS

    def test_runs(self, backend, run, method, rng, subtests):
        for n in (0, 1, 12) if backend.name == "jax" else (0, 1, 2, 12, 300):
            for size in (None, 0, 1, 5, 14):
                with subtests.test(n=n, size=size):
                    x = np.repeat(drawn(rng, (n,), "float32"), rng.integers(1, 4, n))[:n]
                    options = {} if size is None else {"size": size, "fill_value": 7}
                    found = run(parprims.run_lengths, backend.asarray(x), method=method, **options)
                    compare(backend, found, runs(x, size, 7))

    @pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "bfloat16", "complex128"])
    def test_dtypes(self, backend, run, method, rng, dtype):
        if dtype != "bool" and not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        x = np.repeat(random(rng, (20,), dtype), 2)
        x[::7] = x[0]
        found = run(parprims.run_lengths, backend.asarray(x), method=method)
        compare(backend, found, runs(x))

    def test_unique(self, backend, run, method, rng, subtests):
        dtype = "float16" if backend.name == "jax" else "float32"
        for shape in ((0,), (3, 8)) if backend.name == "jax" else ((0,), (1,), (3, 8), (400,)):
            for size in (None, 4, 30):
                with subtests.test(shape=shape, size=size):
                    x = drawn(rng, shape, dtype)
                    found = run(parprims.unique, backend.asarray(x), size=size, method=method)
                    compare(backend, found, once(x, size))


def test_traced(rng):
    """In a program the results have a size, which must be given."""
    jax = pytest.importorskip("jax")
    x, mask = drawn(rng, (3, 9), "float16"), random(rng, (3, 9), "bool")
    program = jax.jit(jax.vmap(lambda x, mask: parprims.select(x, mask, size=9)))
    found = program(x, mask)
    for at in range(3):
        for one, other in zip(found, kept(x[at], mask[at], 9), strict=True):
            np.testing.assert_array_equal(np.asarray(one[at]), other)
    for one, other in zip(jax.jit(lambda x: parprims.unique(x, size=9))(x[0]), once(x[0], 9), strict=True):
        np.testing.assert_array_equal(np.asarray(one), other)
    for call in (lambda x: parprims.select(x, x > 0), parprims.unique, parprims.run_lengths):
        with pytest.raises(ValueError, match=r"^size must be given inside jit, vmap and torch.compile"):
            jax.jit(call)(x[0])


def test_torch_compile(rng):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rng.standard_normal(30))

    def loss(x):
        ys, count = parprims.select(x, x > 0, size=20)
        first, _ = parprims.partition_by(x, x > 0.5)
        return (
            (ys * torch.arange(20)).sum()
            + (first * torch.arange(30)).sum()
            + parprims.unique(x, size=4)[0].sum()
            + count
        )

    program = torch.compile(loss, fullgraph=True, backend="aot_eager")
    one, other = (x.clone().requires_grad_() for _ in range(2))
    program(one).backward()
    loss(other).backward()
    torch.testing.assert_close(one.grad, other.grad)
    with pytest.raises(Exception, match="size must be given"):
        torch.compile(lambda x: parprims.select(x, x > 0)[0], fullgraph=True, backend="aot_eager")(x)


def test_arguments_named(backend):
    x = backend.asarray(np.ones((2, 3), np.float32))
    for call, error, words in (
        (lambda **o: parprims.select(x, x, **o), TypeError, "mask must have dtype bool, got float32: write mask != 0"),
        (lambda **o: parprims.select(x, x[0, :] > 0, **o), ValueError, "mask must have the shape of x"),
        (lambda **o: parprims.partition_by(x, x[0, :] > 0, **o), ValueError, "mask must have the shape of x"),
        (lambda **o: parprims.run_lengths(x, **o), ValueError, "x must have one dimension"),
        (lambda **o: parprims.select(x, x > 0, size=-1, **o), ValueError, "size must be from 0 to"),
        (lambda **o: parprims.select(x, x > 0, size=1.0, **o), TypeError, "size must be an integer, got"),
        (lambda **o: parprims.unique(x, size=True, **o), TypeError, "size must be an integer, got"),
        (lambda **o: parprims.unique(x, fill_value="a", **o), TypeError, "fill_value must fit dtype float32"),
    ):
        with pytest.raises(error, match=f"^{words}"):
            call()
    with pytest.raises(TypeError, match=r"^x must be of bool, or of an integer or real floating dtype"):
        parprims.unique(backend.asarray(np.ones(3, np.complex64)))


def test_inputs_untouched(backend, rng):
    x, mask = drawn(rng, (40,), "float32"), random(rng, (40,), "bool")
    arrays = backend.asarray(x.copy()), backend.asarray(mask.copy())
    for method in ("auto", "array"):
        parprims.select(*arrays, method=method)
        parprims.partition_by(*arrays, method=method)
        parprims.unique(arrays[0], method=method)
    np.testing.assert_array_equal(backend.to_numpy(arrays[0]), x)
    np.testing.assert_array_equal(backend.to_numpy(arrays[1]), mask)


# ---- What the fuzz makes of it (tests/fuzz finds these by their names) ----------------------------------------

WRONG_OPTIONS = {
    "size": (-1, 1.5, "3", True, [3], 2**31, {}, (1,)),
    "fill_value": ("a", None, [0], {}, 10**400, (0, 0), b"0"),
}


def draw(d, name):
    """Return a valid call, whose result is held against the loops."""
    mark = name in ("select", "partition_by")
    dtype = d.dtype("bool", *(values.NUMBERS if name != "unique" else values.REAL))
    x = d.values(d.shape(*((1, 1) if name == "run_lengths" else ())), dtype)
    array, x = d.array(x)
    args, options = [array], {}
    if mark:
        mask = d.values(x.shape, "bool")
        given, mask = d.array(mask)
        args.append(given)
    if name == "partition_by":
        expected = np.concatenate([x[mask], x[~mask]]), np.asarray(mask.sum())
    else:
        size = None if d.chance(0.4) else int(d.rng.integers(0, 12))
        options |= {"size": size} if size is not None or d.chance(0.3) else {}
        expected = kept(x, mask, size) if mark else (once if name == "unique" else runs)(x, size)

    def check_result(got):
        wanted = [values.Expected(one, x.dtype.name if at == 0 else None) for at, one in enumerate(expected)]
        found = (values.differs(d.backend, one, other) for one, other in zip(got, wanted, strict=True))
        return next((one for one in found if one), None)

    return values.Call(name, args, options, check_result)


def test_dtype_of_counts(backend):
    x = backend.asarray(np.arange(3).astype(numpy_dtype("int32")))
    index = parprims.argsort(x).dtype
    assert parprims.select(x, x > 0)[1].dtype == index
    assert [one.dtype for one in parprims.unique(x)][1:] == [index, index]
