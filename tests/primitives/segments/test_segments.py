"""Segments by offsets and by numbers against loops over the segments."""

import contextlib
import functools
import itertools

import numpy as np
import pytest

import parprims
from parprims._operators.operator import Operator
from tests.fuzz import values
from tests.primitives.order_statistics.test_order_statistics import drawn, gradient, order, quick
from tests.support.contract import compare, eps, numpy_dtype, random, skip_without_derivative

METHODS = ("kernel", "native", "array")
OPERATORS = {
    "add": (lambda x, y: x + y, 0),
    "multiply": (lambda x, y: x * y, 1),
    "maximum": (np.maximum, None),
    "keep first": (lambda x, _: x, None),
}


def keep_first(earlier, later):  # noqa: ARG001
    return earlier


def cuts(rng, n, segments):
    """Return offsets of segments of uneven length, some of them empty."""
    inner = np.sort(rng.choice(n + 1, segments - 1)) if segments else np.array([], np.int64)
    return np.concatenate([[0], inner, [n]]).astype(np.int64) if segments else np.array([0], np.int64)


def by_segments(x, offsets, axis, function):
    """Return what a function makes of the elements of every segment, (length, ...), one after another."""
    rows = np.moveaxis(x, axis, 0)
    found = [function(rows[begin:end]) for begin, end in itertools.pairwise(offsets)]
    return np.moveaxis(np.concatenate(found) if found else rows, 0, axis)


def folded(rows, op, start):
    """Return the combinations of the elements up to each, by a loop."""
    found = []
    total = start
    for row in rows:
        total = row if total is None else op(total, row)
        found.append(total)
    return found


def scanned(x, offsets, axis, op, start=None, exclusive=False, reverse=False):
    def one(rows):
        rows = rows[::-1] if reverse else rows
        found = folded(rows, op, start)
        if exclusive and len(rows):
            found = [np.broadcast_to(start, rows[0].shape), *found[:-1]]
        found = np.stack(found) if found else rows
        return (found[::-1] if reverse else found).astype(x.dtype)

    return by_segments(x, offsets, axis, one)


def reduced(x, offsets, axis, op, start):
    def one(rows):
        found = folded(rows, op, start)
        last = found[-1] if found else 0 if start is None else start
        return np.broadcast_to(last, rows.shape[1:])[None].astype(x.dtype)

    return by_segments(x, offsets, axis, one)


SHAPES = (((37,), 0), ((3, 20), 1), ((20, 3), 0))


class TestOffsets:
    methods = METHODS

    @pytest.mark.parametrize("name", ["add", "maximum", "keep first"])
    def test_reduce(self, backend, run, method, rng, name):
        op, start = OPERATORS[name]
        start = np.int64(-5) if start is None else np.int64(start)
        own = {"keep first": Operator(keep_first, name="first")}.get(name, name)
        for shape, axis in SHAPES:
            for segments in (1, 9):
                x, offsets = random(rng, shape, "int64"), cuts(rng, shape[axis], segments)
                options = {} if name == "add" else {"initial": int(start)}
                arrays = backend.asarray(x), own
                found = run(
                    parprims.reduce, *arrays, axis=axis, offsets=backend.asarray(offsets), method=method, **options
                )
                compare(backend, found, reduced(x, offsets, axis, op, start), dtype="int64")

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("exclusive", [False, True])
    def test_scan(self, backend, run, method, rng, exclusive, reverse):
        for shape, axis in SHAPES[:2] if backend.name == "jax" else SHAPES:
            x, offsets = random(rng, shape, "int64"), cuts(rng, shape[axis], 7)
            options = {"axis": axis, "exclusive": exclusive, "reverse": reverse, "offsets": backend.asarray(offsets)}
            found = run(parprims.scan, backend.asarray(x), method=method, **options)
            expected = scanned(x, offsets, axis, lambda x, y: x + y, 0 if exclusive else None, exclusive, reverse)
            compare(backend, found, expected, dtype="int64")
            found = run(parprims.scan, backend.asarray(x), "maximum", initial=3, method=method, **options)
            compare(backend, found, scanned(x, offsets, axis, np.maximum, 3, exclusive, reverse))

    def test_floats(self, backend, run, method, rng):
        x, offsets = random(rng, (500,), "float32"), cuts(rng, 500, 9)
        given = backend.asarray(x), backend.asarray(offsets)
        sizes = scanned(abs(x).astype(np.float64), offsets, 0, lambda x, y: x + y)
        bound = 500 * eps("float32") * sizes
        expected = scanned(x.astype(np.float64), offsets, 0, lambda x, y: x + y)
        compare(backend, run(parprims.scan, given[0], offsets=given[1], method=method), expected, bound, "float32")
        total = reduced(x.astype(np.float64), offsets, 0, lambda x, y: x + y, 0.0)
        bound = 500 * eps("float32") * reduced(abs(x).astype(np.float64), offsets, 0, lambda x, y: x + y, 0.0)
        compare(backend, run(parprims.reduce, given[0], offsets=given[1], method=method), total, bound, "float32")

    @pytest.mark.parametrize("reverse", [False, True])
    def test_recurrence(self, backend, run, method, rng, reverse):
        a, b = (random(rng, (2, 40), "float64") for _ in range(2))
        offsets = np.array([0, 0, 13, 14, 14, 40, 40])
        b[0, 3], a[1, 13 if not reverse else 39] = np.inf, np.nan
        for start in (None, 2.0):

            def solved(rows, start=start):
                rows = rows[::-1] if reverse else rows
                found, x = [], start
                for c, d in rows:
                    x = d if x is None else c * x + d
                    found.append(x)
                found = np.stack(found) if found else rows[:, 0]
                return found[::-1] if reverse else found

            pairs = np.moveaxis(np.stack([a, b]), 2, 0)
            expected = np.concatenate([solved(pairs[i:j]) for i, j in itertools.pairwise(offsets)]).T
            options = {} if start is None else {"initial": start}
            arrays = backend.asarray(a), backend.asarray(b)
            options |= {"offsets": backend.asarray(offsets), "reverse": reverse}
            found = run(parprims.linear_recurrence, *arrays, method=method, **options)
            got = backend.to_numpy(found)
            known = np.isfinite(expected)
            assert (np.isfinite(got) == known).all()
            np.testing.assert_allclose(got[known], expected[known], rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("descending", [False, True])
    def test_sort(self, backend, run, method, rng, descending):
        dtype = quick(backend, method, "float32")
        for shape, axis in SHAPES[:2]:
            x, offsets = drawn(rng, shape, dtype), cuts(rng, shape[axis], 7)

            def places(rows):
                if rows.size == 0:
                    return rows.astype(np.int64)
                rows = rows.reshape(len(rows), -1)
                found = [order(row.tolist(), descending) for row in rows.T]
                return np.array(found, np.int64).T.reshape(len(rows), -1)

            index = np.concatenate(
                [
                    places(np.moveaxis(x, axis, 0)[i:j]).reshape(j - i, *np.moveaxis(x, axis, 0).shape[1:]) + i
                    for i, j in itertools.pairwise(offsets)
                ]
            )
            index = np.moveaxis(index, 0, axis)
            options = {"axis": axis, "descending": descending, "offsets": backend.asarray(offsets), "method": method}
            array = backend.asarray(x)
            compare(backend, run(parprims.argsort, array, **options), index)
            compare(backend, run(parprims.sort, array, **options), np.take_along_axis(x, index, axis), dtype=dtype)
            moved = run(parprims.sort_by_key, array, backend.asarray(index), **options)
            compare(backend, moved, (np.take_along_axis(x, index, axis), np.take_along_axis(index, index, axis)))

    def test_nothing(self, backend, run, method):
        x = backend.asarray(np.ones((2, 0)))
        for offsets in (np.array([0]), np.array([0, 0, 0])):
            options = {"axis": 1, "offsets": backend.asarray(offsets), "method": method}
            assert backend.to_numpy(run(parprims.reduce, x, **options)).tolist() == [[0.0] * (len(offsets) - 1)] * 2
            assert run(parprims.scan, x, **options).shape == (2, 0)
            assert run(parprims.sort, x, **options).shape == (2, 0)

    def test_components(self, backend, run, method, rng):
        x, offsets = random(rng, (30,), "float64"), np.array([0, 11, 30])
        pair = backend.asarray(x), backend.asarray(np.arange(30))
        found = run(parprims.reduce, pair, "argmax", offsets=backend.asarray(offsets), method=method)
        at = [int(x[:11].argmax()), 11 + int(x[11:].argmax())]
        compare(backend, found, (x[at], np.array(at)))
        total = run(parprims.map_reduce, lambda x: x * x, pair[1], offsets=backend.asarray(offsets), method=method)
        squares = np.arange(30) ** 2
        compare(backend, total, np.array([squares[:11].sum(), squares[11:].sum()]))

    def test_derivative(self, backend, run, method, rng):
        if backend.family not in ("torch", "jax"):
            pytest.skip("has no derivatives")
        skip_without_derivative(backend, method)
        x, offsets, g = rng.standard_normal(12), np.array([0, 5, 5, 12]), rng.standard_normal(3)

        def loss(x):
            found = run(parprims.reduce, x, offsets=backend.asarray(offsets), method=method)
            return (found * backend.asarray(g)).sum()

        np.testing.assert_allclose(gradient(backend, loss, x), np.repeat(g, np.diff(offsets)), atol=1e-14)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("call", ["sort", "by key", "scan", "recurrence", "reduce"])
@pytest.mark.parametrize("way", ["auto", *METHODS])
def test_dtypes_of_offsets(backend, run, rng, dtype, call, way):
    """Of every integer dtype; where they end before the elements do they are wrong, and reach no memory."""
    x, offsets = rng.standard_normal(100), np.array([0, 13, 13, 14, 20, 33, 50, 60, 77, 100])
    given = backend.asarray(x), backend.asarray(np.ones(100)), backend.asarray(offsets.astype(dtype))
    ordered = by_segments(x, offsets, 0, np.sort)
    total = scanned(x, offsets, 0, lambda x, y: x + y)
    calls = {
        "sort": (lambda x, _, cuts, **options: parprims.sort(x, offsets=cuts, **options), ordered),
        "by key": (lambda x, _, cuts, **options: parprims.sort_by_key(x, x, offsets=cuts, **options)[1], ordered),
        "scan": (lambda x, _, cuts, **options: parprims.scan(x, offsets=cuts, **options), total),
        "recurrence": (lambda x, a, cuts, **options: parprims.linear_recurrence(a, x, offsets=cuts, **options), total),
        "reduce": (
            lambda x, _, cuts, **options: parprims.reduce(x, offsets=cuts, **options),
            reduced(x, offsets, 0, lambda x, y: x + y, 0.0),
        ),
    }
    function, expected = calls[call]
    compare(backend, run(function, *given, method=way), expected, 1e-13)
    parprims.sort(backend.asarray(np.ones(1000)), offsets=given[2], check=False)


class TestSegmentReduce:
    methods = METHODS

    @pytest.mark.parametrize("in_order", [False, True])
    def test_numbers(self, backend, run, method, rng, in_order):
        for shape, axis in (((40,), 0), ((3, 20), 1)):
            for name in ("add", "keep first"):
                op, start = OPERATORS[name]
                x, ids = random(rng, shape, "int32"), rng.integers(-1, 6, shape[axis])
                ids = np.sort(ids) if in_order else ids
                parts = [np.compress(ids == j, x, axis) for j in range(5)]
                expected = [reduced(part, [0, part.shape[axis]], axis, op, start) for part in parts]
                own = "add" if name == "add" else Operator(keep_first, identity=0)
                options = {"axis": axis, "indices_are_sorted": in_order, "method": method}
                arrays = backend.asarray(x), backend.asarray(ids)
                found = run(parprims.segment_reduce, *arrays, 5, own, **options)
                compare(backend, found, np.concatenate(expected, axis).astype(np.int64 if name == "add" else np.int32))

    @pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64"])
    def test_dtypes_of_numbers(self, backend, run, method, rng, subtests, dtype):
        """More segments than a dtype has numbers, and numbers at its ends, which may name no segment."""
        ends = np.iinfo(dtype)
        ids = rng.integers(max(ends.min, -2), min(ends.max, 305), 20).astype(dtype)
        ids[:5] = ends.max, ends.min, 0, 1, ends.max
        shapes = [((3, 20), 1)] if backend.name == "jax" and method == "array" else [((3, 20), 1), ((20,), 0)]
        for (shape, axis), in_order in itertools.product(shapes, (False, True)):
            own = np.sort(ids) if in_order else ids
            x = random(rng, shape, "int32")
            expected = np.full((*shape[:axis], 300), np.iinfo(np.int32).max, np.int32)
            for at, j in enumerate(own.tolist()):
                if 0 <= j < 300:
                    expected[..., j] = np.minimum(expected[..., j], x[..., at])
            options = {"axis": axis, "indices_are_sorted": in_order, "method": method}
            with subtests.test(shape=shape, in_order=in_order):
                arrays = backend.asarray(x), backend.asarray(own)
                compare(backend, run(parprims.segment_reduce, *arrays, 300, "minimum", **options), expected)

    @pytest.mark.parametrize("shape", [(4, 9, 0), (0, 9, 3)])
    def test_no_elements(self, backend, run, method, shape):
        """Rows without columns, and no rows."""
        x, ids = backend.asarray(np.zeros(shape, np.int8)), backend.asarray(np.zeros(9, np.int32))
        y = run(parprims.segment_reduce, x, ids, 4, "minimum", axis=-2, method=method)
        assert tuple(y.shape) == (shape[0], 4, shape[2])

    def test_same_bits(self, backend, run, method, rng):
        x = random(rng, (3000,), "float32") * 10.0 ** rng.integers(-6, 6, 3000).astype(np.float32)
        arrays = backend.asarray(x), backend.asarray(rng.integers(0, 3, 3000))
        one, other = (run(parprims.segment_reduce, *arrays, 3, method=method) for _ in range(2))
        assert backend.to_numpy(one).tobytes() == backend.to_numpy(other).tobytes()


@pytest.mark.parametrize("initial", [None, 3.0], ids=["none", "number"])
def test_operators_are_not_called_without_elements(backend, initial):
    def never(*elements):
        raise AssertionError(elements)

    x, offsets = backend.asarray(np.zeros((2, 0), np.float32)), backend.asarray(np.zeros(3, np.int32))
    y = parprims.scan(x, never, axis=1, offsets=offsets, initial=initial)
    assert tuple(y.shape) == (2, 0)


def test_wrong_offsets(backend):
    """They are named where that is asked for, and reach no memory where it is not."""
    x = backend.asarray(np.arange(6, dtype=quick(backend, "array", "float64")))
    on_cpu = backend.name not in ("cupy", "torch-cuda", "jax-cuda", "emulated") or isinstance(x, np.ndarray)
    for wrong in ([0, 3, 5], [1, 6], [0, 4, 3, 6], [0, 9], [-2, 6]):
        offsets = backend.asarray(np.array(wrong))
        for call in (parprims.reduce, parprims.scan, parprims.sort, functools.partial(parprims.linear_recurrence, x)):
            with pytest.raises(ValueError, match=r"^offsets must ascend from 0 to the length of the axis, 6"):
                call(x, offsets=offsets, check=True)
            with pytest.raises(ValueError, match=r"^offsets must ascend") if on_cpu else contextlib.nullcontext():
                call(x, offsets=offsets)
            for method in ("auto", "array"):
                call(x, offsets=offsets, method=method, check=False)
    right = backend.asarray(np.array([0, 2, 6]))
    for call, error, words in (
        (lambda: parprims.reduce(x, offsets=x), TypeError, "offsets must have an integer"),
        (
            lambda: parprims.scan(x, offsets=right[:0]),
            ValueError,
            "offsets must have one dimension and at least one",
        ),
        (lambda: parprims.reduce(x, offsets=right, check=1), TypeError, "check must be True or False"),
        (lambda: parprims.reduce(x, offsets=right, keepdims=True), ValueError, "keepdims must be False"),
        (lambda: parprims.reduce(x[None, :], offsets=right), ValueError, "axis must be given with offsets"),
        (lambda: parprims.reduce(x, keep_first, offsets=right), ValueError, "initial must be given: op keep_first"),
        (lambda: parprims.sort(x, offsets=[0, 6.5]), TypeError, "offsets must have an integer"),
        (lambda: parprims.sort(x, offsets={0, 6}), TypeError, "offsets must be an array"),
        (lambda: parprims.segment_reduce(x, x, 3), TypeError, "ids must have an integer"),
        (lambda: parprims.segment_reduce(x, right, 3), ValueError, "ids must have one dimension and the length of x"),
        (lambda: parprims.segment_reduce(x, right, -1), ValueError, "num_segments must be from 0"),
        (lambda: parprims.segment_reduce(x, right, 1.5), TypeError, "num_segments must be an integer"),
    ):
        with pytest.raises(error, match=f"^{words}"):
            call()


def test_traced(rng):
    jax = pytest.importorskip("jax")
    x, offsets = random(rng, (3, 20), "float32"), np.array([0, 7, 7, 20])
    found = jax.jit(jax.vmap(lambda x, o: parprims.scan(x, "maximum", offsets=o), (0, None)))(x, offsets)
    np.testing.assert_array_equal(np.asarray(found), scanned(x, offsets, 1, np.maximum))
    with pytest.raises(ValueError, match=r"^check must be None or False"):
        jax.jit(lambda x, o: parprims.reduce(x, axis=1, offsets=o, check=True))(x, offsets)


def test_torch_compile(rng):
    torch = pytest.importorskip("torch")
    x, offsets = torch.from_numpy(rng.standard_normal(20)), torch.tensor([0, 7, 7, 20])
    ids = torch.arange(20) % 3

    def loss(x):
        found = parprims.scan(x, offsets=offsets).sum() + (parprims.sort(x, offsets=offsets) * torch.arange(20)).sum()
        found = found + parprims.linear_recurrence(x, x, offsets=offsets).sum()
        return (
            found
            + parprims.reduce(x, "maximum", offsets=offsets, initial=0.0).sum()
            + parprims.segment_reduce(x, ids, 3)[1]
        )

    one, other = (x.clone().requires_grad_() for _ in range(2))
    torch.compile(loss, fullgraph=True, backend="aot_eager")(one).backward()
    loss(other).backward()
    torch.testing.assert_close(one.grad, other.grad)


# ---- What the fuzz makes of it (tests/fuzz finds these by their names) ----------------------------------------

WRONG_OPTIONS = {
    "num_segments": (-1, 1.5, "3", True, [3], 2**31, {}, None),
    "indices_are_sorted": (0, 1, None, "yes", []),
    "offsets": ("text", 3, [0, 10**6], {}, (0.5, 1), 1.5),
    "check": (0, 1, "yes", []),
}


def draw(d, name):
    """Return a valid call, whose result is held against the loop."""
    op = d.one(tuple(values.IDENTITIES))
    floats = ("float32", "float64", *(("float16", "bfloat16") if op != "logaddexp" else ()))
    kinds = {"logical": ("bool",), "bitwise": ("bool", *values.INTEGERS), "logaddexp": floats}
    x = d.values(d.shape(1), d.dtype(*kinds.get(op.partition("_")[0], (*values.INTEGERS, *floats))), tame=True)
    axis = int(d.axis(x.ndim)) % x.ndim
    ids = d.rng.integers(-1, 5, x.shape[axis])
    in_order = d.chance(0.3)
    ids = np.sort(ids) if in_order else ids
    (array, x), ids = d.array(x), ids.astype(d.one(("int32", "int64")))
    dtype = values.result_of_sum(x.dtype.name) if op in ("add", "multiply") else x.dtype.name
    rows, rest = np.moveaxis(x.astype(numpy_dtype(dtype)), axis, 0), x.shape[:axis] + x.shape[axis + 1 :]
    options = {"axis": axis, **({"indices_are_sorted": True} if in_order else {})}
    steps = []
    start = []
    if d.chance(0.3):
        options["initial"], one = d.array(d.values(rest, dtype, tame=True))
        start = [one]
    for number in range(4):
        own = values.folded(op, [*start, *rows[ids == number]], dtype)
        steps.append(own[-1] if own else values.single(op, dtype, rest))
    expected = values.stacked(steps, axis, (*x.shape[:axis], 4, *x.shape[axis + 1 :]), dtype)
    args = [array, d.plain(ids), 4, op]
    return values.Call(name, args, options, lambda got: values.differs(d.backend, got, expected))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint64", "float16", "complex64"])
def test_methods_that_are_promised_serve_without_elements(backend, subtests, dtype):
    """PyTorch has no arithmetic on most unsigned integers, and none is needed."""
    if not backend.supports(dtype):
        pytest.skip("has no such dtype")
    for shape, op in itertools.product([(9, 0), (9, 0, 2), (0, 2), (9, 2)], ("minimum", "add")):
        if dtype == "complex64" and op == "minimum":
            continue
        x, n = backend.asarray(np.ones(shape, dtype)), shape[0]
        ids, offsets = (backend.asarray(np.asarray(one)) for one in (np.arange(n) // 3, [0, n // 2, n]))
        calls = {
            "by ids": (parprims.segment_reduce, (x, ids, 4, op), {}),
            "by offsets": (parprims.reduce, (x, op), {"offsets": offsets}),
            "scans": (parprims.scan, (x, op), {"offsets": offsets}),
        }
        for name, (function, arguments, options) in calls.items():
            for method, reason in parprims.methods(function, *arguments, axis=0, **options).items():
                if reason is None:
                    with subtests.test(call=name, shape=shape, op=op, method=method):
                        function(*arguments, axis=0, method=method, **options)
