"""Initial elements and last states of segments and lines, against loops over the elements."""

import itertools

import numpy as np
import pytest

import parprims
from tests.primitives.segments.test_segments import METHODS, SHAPES, cuts
from tests.support.contract import check_equal_derivatives, compare

SHAPES = (*SHAPES, ((2, 11, 3), 1))


def keep_last(earlier, later):  # noqa: ARG001
    return later


def compose(earlier, later):
    (a, b), (c, d) = earlier, later
    return a * c, b * c + d


def loop(xs, combine, starts, offsets, axis, *, reverse=False, exclusive=False):
    """Return the results and last states of segments, one element after another.

    Elements and starts are tuples of arrays; a start has the axis, with the length of the segments.
    """
    rows = [np.moveaxis(x, axis, 0) for x in xs]
    found, states = [np.empty_like(x) for x in rows], [np.moveaxis(x.copy(), axis, 0) for x in starts]
    for number, (begin, end) in enumerate(itertools.pairwise(offsets)):
        state = tuple(x[number] for x in states)
        for i in reversed(range(begin, end)) if reverse else range(begin, end):
            before, state = state, combine(state, tuple(x[i] for x in rows))
            for y, part in zip(found, before if exclusive else state, strict=True):
                y[i] = part
        for x, part in zip(states, state, strict=True):
            x[number] = part
    return tuple(tuple(np.moveaxis(x, 0, axis) for x in part) for part in (found, states))


def of_segments(rng, shape, axis, segments, dtype):
    """Return an initial element for each segment."""
    return rng.integers(-9, 10, (*shape[:axis], segments, *shape[axis + 1 :])).astype(dtype)


OPERATORS = {
    "add": ("add", lambda x, y: (x[0] + y[0],), 1),
    "maximum": ("maximum", lambda x, y: (np.maximum(x[0], y[0]),), 1),
    "keep last": (keep_last, lambda _, y: y, 1),
    "affine": ("affine", compose, 2),
    "compose": (compose, compose, 2),
}
FORMS = ("number", "line", "segment", "segments")
"""Initial elements: a number, an element for each line, for each segment of all lines, and for each of each line."""


def formed(start, form, axis):
    """Return a start in one form, as it is given to a call, with the start that it then means."""
    if form == "number":
        return 3, np.full_like(start, 3)
    if form == "line":
        given = start[(slice(None),) * axis + (0,)] if start.shape[axis] else start.sum(axis).astype(start.dtype)
        return given, np.broadcast_to(np.expand_dims(given, axis), start.shape)
    if form == "segment":
        given = start[tuple(slice(None) if at == axis else slice(0, 1) for at in range(start.ndim))]
        return given, np.broadcast_to(given, start.shape)
    return start, start


class TestStates:
    methods = METHODS

    @pytest.mark.parametrize("name", OPERATORS)
    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("exclusive", [False, True])
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("case", range(len(SHAPES)))
    def test_scan(self, backend, run, method, rng, name, form, exclusive, reverse, case):
        op, combine, count = OPERATORS[name]
        shape, axis = SHAPES[case]
        offsets = np.concatenate([[0], cuts(rng, shape[axis], 5), [shape[axis]] * 2])
        xs = tuple(rng.integers(-1, 2, shape) for _ in range(count))
        given, starts = zip(
            *[formed(of_segments(rng, shape, axis, 8, "int64"), form, axis) for _ in range(count)], strict=True
        )
        expected = loop(xs, combine, starts, offsets, axis, reverse=reverse, exclusive=exclusive)
        before = [x.copy() for x in (*xs, *starts)]
        arrays = tuple(backend.asarray(x) for x in xs)
        initial = tuple(x if form == "number" else backend.asarray(x) for x in given)
        arrays, initial = (arrays, initial) if count > 1 else (arrays[0], initial[0])
        options = {"axis": axis, "exclusive": exclusive, "reverse": reverse, "initial": initial}
        options |= {"offsets": backend.asarray(offsets), "method": method}
        found = run(parprims.scan, arrays, op, return_last=True, **options)
        compare(backend, found, expected if count > 1 else (expected[0][0], expected[1][0]))
        alone = run(parprims.scan, arrays, op, **options)
        compare(backend, alone, expected[0] if count > 1 else expected[0][0])
        for x, other in zip((*xs, *starts), before, strict=True):
            np.testing.assert_array_equal(x, other)

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("case", range(len(SHAPES)))
    @pytest.mark.parametrize("dtype", ["int32", "float64"])
    def test_recurrence(self, backend, run, method, rng, form, reverse, case, dtype):
        """With NaN in one segment and in the initial element of another, which is empty."""
        shape, axis = SHAPES[case]
        offsets = np.concatenate([[0], cuts(rng, shape[axis], 5), [shape[axis]] * 2])
        a, b = (rng.integers(-1, 2, shape).astype(dtype) for _ in range(2))
        given, start = formed(of_segments(rng, shape, axis, 8, dtype), form, axis)
        if dtype == "float64":
            b.flat[3] = np.nan
            if form == "segments":
                given.flat[-1] = np.nan
        _, solution = loop((a, b), compose, (start, start), offsets, axis, reverse=reverse)

        def step(state, maps):
            return maps[0], maps[0] * state[1] + maps[1]

        (_, x), (_, last) = loop((a, b), step, (start, start), offsets, axis, reverse=reverse)
        assert solution
        arrays = backend.asarray(a), backend.asarray(b)
        options = {"axis": axis, "reverse": reverse, "offsets": backend.asarray(offsets), "method": method}
        options["initial"] = given if form == "number" else backend.asarray(given)
        found = run(parprims.linear_recurrence, *arrays, return_last=True, **options)
        compare(backend, found, (x, last), 1e-12)
        compare(backend, run(parprims.linear_recurrence, *arrays, **options), x, 1e-12)

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("n", [0, 1, 9])
    def test_lines(self, backend, run, method, rng, reverse, n):
        """Lines without segments, of no elements, with an initial element and without."""
        x, start = rng.integers(-9, 10, (2, n, 3)), rng.integers(-9, 10, (2, 3))
        for initial in (None, start):
            begin = np.zeros_like(start) if initial is None else start
            expected = loop((x,), OPERATORS["add"][1], (begin[:, None],), [0, n], 1, reverse=reverse)
            last = expected[1][0][:, 0]
            options = {"axis": 1, "reverse": reverse, "method": method, "return_last": True}
            options["initial"] = None if initial is None else backend.asarray(initial)
            for exclusive in (False, True):
                _, found = run(parprims.scan, backend.asarray(x), exclusive=exclusive, **options)
                compare(backend, found, last)
        ones = backend.asarray(np.ones_like(x))
        found = run(parprims.linear_recurrence, ones, backend.asarray(x), **options)
        compare(backend, found, (expected[0][0], last))

    def test_identities(self, backend, run, method):
        """Empty segments without an initial element have the identity as their last state."""
        x, offsets = backend.asarray(np.array([3, -5, 2])), backend.asarray(np.array([0, 0, 2, 2, 3, 3]))
        for name, expected in (("add", [0, -2, 0, 2, 0]), ("multiply", [1, -15, 1, 2, 1])):
            _, last = run(parprims.scan, x, name, offsets=offsets, return_last=True, method=method)
            compare(backend, last, np.array(expected))

    @pytest.mark.parametrize("segments", [0, 1, 3])
    def test_no_elements(self, backend, run, method, segments):
        for shape in ((2, 0), (0, 4)) if segments else ((2, 0),):
            offsets = np.zeros(segments + 1, int)
            offsets[-1] = shape[1]
            start = np.arange(shape[0] * segments, dtype="float64").reshape(shape[0], segments)
            x, initial = backend.asarray(np.zeros(shape)), backend.asarray(start)
            options = {"offsets": backend.asarray(offsets), "initial": initial, "return_last": True, "method": method}
            for exclusive in (False, True):
                found = run(parprims.scan, x, exclusive=exclusive, **options)
                compare(backend, found, (np.zeros(shape), start))
            compare(backend, run(parprims.linear_recurrence, x, x, **options), (np.zeros(shape), start))

    @pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint64", "complex64"])
    @pytest.mark.parametrize("exclusive", [False, True])
    @pytest.mark.parametrize("form", ["number", "segments"])
    def test_dtypes(self, backend, run, method, rng, dtype, exclusive, form):
        """`methods` names the methods of calls of every dtype, and results have the dtype of the same call of lines."""
        if not backend.supports(dtype):
            pytest.skip(f"has no {dtype}")
        x, offsets = rng.integers(0, 2, 9).astype(dtype), np.array([0, 4, 4, 9])
        like = parprims.scan(backend.asarray(x))
        start = backend.xp.astype(backend.asarray(np.array([5, 6, 7])), like.dtype)
        initial = 5 if form == "number" else start
        options = {"exclusive": exclusive, "initial": initial, "offsets": backend.asarray(offsets)}
        y, last = run(parprims.scan, backend.asarray(x), return_last=True, method=method, **options)
        assert parprims.methods(parprims.scan, backend.asarray(x), **options)["array"] is None
        assert y.dtype == last.dtype == like.dtype
        begin = np.full(3, 5) if form == "number" else np.array([5, 6, 7])
        ((expected,), (end,)) = loop(
            (x.astype("int64") if dtype != "complex64" else x,),
            OPERATORS["add"][1],
            (begin if dtype != "complex64" else begin.astype(dtype),),
            offsets,
            0,
            exclusive=exclusive,
        )
        compare(backend, (y, last), (expected, end), 1e-5)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_16_bits(self, backend, run, method, rng, dtype):
        """Results are rounded once: as of wider elements, then rounded."""
        if not backend.supports(dtype):
            pytest.skip(f"has no {dtype}")
        x, start = (rng.integers(1, 99, n).astype(np.float32) / 64 for n in (40, 3))
        options = {"offsets": backend.asarray(np.array([0, 20, 20, 40])), "method": method}
        narrow = [backend.xp.astype(backend.asarray(one), getattr(backend.xp, dtype)) for one in (x, start)]
        wide = [backend.xp.astype(one, backend.xp.float32) for one in narrow]
        found = run(parprims.scan, narrow[0], initial=narrow[1], **options)
        other = backend.xp.astype(run(parprims.scan, wide[0], initial=wide[1], **options), found.dtype)
        ours, theirs = (backend.to_numpy(backend.xp.astype(one, backend.xp.float32)) for one in (found, other))
        np.testing.assert_array_equal(ours, theirs)


def going_on(call, *arrays, offsets, initial, parts, axis=0):
    """Return results and last states of packed segments that are computed part by part."""
    found, state = [[] for _ in range(len(offsets) - 1)], initial
    for part in range(parts):
        bounds = [
            (b + (e - b) * part // parts, b + (e - b) * (part + 1) // parts) for b, e in itertools.pairwise(offsets)
        ]
        packed = [np.concatenate([x[b:e] for b, e in bounds], axis) for x in arrays]
        cut = np.concatenate([[0], np.cumsum([e - b for b, e in bounds])])
        ys, state = call(*packed, offsets=cut, initial=state, return_last=True)
        for number, (b, e) in enumerate(itertools.pairwise(cut)):
            found[number].append(ys[b:e])
    return np.concatenate([part for parts in found for part in parts]), state


@pytest.mark.once
@pytest.mark.parametrize("way", METHODS)
def test_parts_of_a_packed_batch(rng, way):
    """The last states of a part are the initial elements of the next: all parts are the whole."""
    offsets = np.array([0, 0, 7, 40, 41, 60])
    a, b = rng.integers(-2, 3, (2, 60, 2))
    start = rng.integers(-9, 10, (5, 2))
    options = {"axis": 0, "method": way}
    for call in (
        lambda a, b, **given: parprims.linear_recurrence(a, b, **options, **given),
        lambda a, b, **given: parprims.scan(a + b, "maximum", **options, **given),
    ):
        try:
            whole = call(a, b, offsets=offsets, initial=start, return_last=True)
        except parprims.MethodRefused as refusal:
            pytest.skip(str(refusal))
        for parts in (2, 3):
            found = going_on(call, a, b, offsets=offsets, initial=start, parts=parts)
            for one, other in zip(found, whole, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.once
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("columns", [(), (3,)], ids=["lines", "columns"])
@pytest.mark.parametrize("name", ["add", "multiply", "logaddexp", "compose", "recurrence", "float16"])
def test_a_segment_has_the_bits_of_its_line(rng, name, columns, reverse):
    """By kernels for CPUs, with the initial element of the segment."""
    offsets = np.array([0, 0, 5, 14000, 14001, 20000, 20000])
    shape, starts = (20000, *columns), (6, *columns)
    dtype = "float16" if name == "float16" else "float32"
    xs = [rng.uniform(0.5, 1.5, shape).astype(dtype) for _ in range(2)]
    start = [rng.uniform(0.5, 1.5, starts).astype(dtype) for _ in range(2)]
    pairs = name == "compose"

    def call(xs, start, **options):
        options |= {"axis": 0, "reverse": reverse, "initial": start, "method": "kernel"}
        if name == "recurrence":
            return parprims.linear_recurrence(*xs, **options)
        op = {"compose": compose, "float16": "add"}.get(name, name)
        return parprims.scan(xs if pairs else xs[0], op, **options)

    options = {} if name == "recurrence" else {"exclusive": True}
    for more in ({}, options):
        whole = call(tuple(xs), tuple(start) if pairs else start[0], offsets=offsets, **more)
        for number, (begin, end) in enumerate(itertools.pairwise(offsets)):
            own = [x[number] for x in start]
            alone = call(tuple(x[begin:end] for x in xs), tuple(own) if pairs else own[0], **more)
            for y, one in zip(whole if pairs else (whole,), alone if pairs else (alone,), strict=True):
                assert y[begin:end].tobytes() == one.tobytes()


# ---- Derivatives and programs -----------------------------------------------------------------------------------


def weighed(xp, results, weights):
    return sum(xp.sum(y * w) for y, w in zip(results, weights, strict=True))


def by_lines(call, arrays, start, offsets, join):
    """Return results and last states of segments by a call for each."""
    pairs = [
        call(*(x[b:e] for x in arrays), initial=start[number], return_last=True)
        for number, (b, e) in enumerate(itertools.pairwise(offsets))
    ]
    return join([y for y, _ in pairs]), join([last[None] for _, last in pairs])


CALLS = {
    "recurrence": parprims.linear_recurrence,
    "add": lambda a, b, **options: parprims.scan(a * b, **options),
    "exclusive": lambda a, b, **options: parprims.scan(a * b, exclusive=True, **options),
    "multiply": lambda a, b, **options: parprims.scan(a * b, "multiply", **options),
    "reverse": lambda a, b, **options: parprims.linear_recurrence(a, b, reverse=True, **options),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("way", METHODS)
def test_derivatives(backend, rng, name, way):
    """The derivatives of a call equal those of a separate call for each segment, also by initial elements."""
    offsets = [0, 0, 3, 7, 7]
    arrays = [rng.standard_normal((7, 2)) for _ in range(2)] + [rng.standard_normal((4, 2))]
    weights = [rng.standard_normal((n, 2)) for n in (7, 4)]

    def ours(a, b, start):
        cut = backend.asarray(np.array(offsets))
        return CALLS[name](a, b, axis=0, offsets=cut, initial=start, return_last=True, method=way)

    def theirs(a, b, start):
        join = lambda parts: backend.xp.concat(parts, axis=0)  # noqa: E731
        call = lambda a, b, **options: CALLS[name](a, b, axis=0, method="array", **options)  # noqa: E731
        return by_lines(call, (a, b), start, offsets, join)

    if backend.family not in ("torch", "jax"):
        pytest.skip("has no derivatives")
    dtype = np.float32 if backend.family == "jax" else np.float64
    factors = [backend.asarray(x.astype(dtype)) for x in weights]

    def loss_of(call):
        return lambda *xs: weighed(backend.xp, call(*xs), factors)

    rtol = 1e-4 if backend.family == "jax" else 1e-10
    inputs = [x.astype(dtype) for x in arrays]
    check_equal_derivatives(backend, loss_of(ours), loss_of(theirs), inputs, rtol=rtol, atol=1e-5)


@pytest.mark.once
def test_programs(rng):
    """Inside jit, vmap and torch.compile, with numbers and arrays as initial elements."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    x, start, offsets = rng.standard_normal((2, 9)), rng.standard_normal((2, 4)), np.array([0, 0, 4, 9, 9])
    put = jax.numpy.asarray

    def both(x, start, offsets):
        ys = parprims.scan(x, "maximum", initial=start, offsets=offsets, return_last=True)
        zs = parprims.linear_recurrence(x, x, initial=0.5, offsets=offsets, return_last=True, reverse=True)
        return *ys, *zs, *parprims.scan(x, exclusive=True, return_last=True)

    expected = both(x, start, offsets)
    for call in (jax.jit(both), jax.vmap(both, in_axes=(0, 0, None))):
        for one, other in zip(call(put(x), put(start), put(offsets)), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for one, other in zip(compiled(*map(torch.from_numpy, (x, start, offsets))), expected, strict=True):
        np.testing.assert_allclose(one, other)


# ---- Errors -----------------------------------------------------------------------------------------------------


def test_wrong_arguments(backend):
    x, offsets = backend.asarray(np.ones((2, 6))), backend.asarray(np.array([0, 2, 2, 6]))
    last_only = parprims.Operator(keep_last, name="last")
    for call in (parprims.scan, lambda x, **options: parprims.linear_recurrence(x, x, **options)):
        for shape in ((2, 4), (3, 3), (2, 6), (2, 3, 1), (3,)):
            with pytest.raises(ValueError, match=r"^initial must broadcast to shape"):
                call(x, initial=backend.asarray(np.ones(shape)), offsets=offsets)
        with pytest.raises(TypeError, match=r"^initial must have dtype float64"):
            call(x, initial=backend.asarray(np.ones((2, 3), np.float32)), offsets=offsets)
        with pytest.raises(ValueError, match=r"^initial must broadcast to shape"):  # a line is no segment
            call(x, initial=backend.asarray(np.ones((2, 1))))
        with pytest.raises(TypeError, match=r"^return_last must be True or False"):
            call(x, return_last=1)
        with pytest.raises(ValueError, match=r"^axis_name must not be given with return_last"):
            call(x, return_last=True, axis_name="i")
        with pytest.raises(TypeError, match="bogus"):
            call(x, return_last=True, bogus=1)
        if backend.name != "numpy":
            other = np.ones((2, 3)) if backend.name == "array-api-strict" else None
            if other is not None:
                with pytest.raises(TypeError, match=r"^initial must be"):
                    call(x, initial=other, offsets=offsets)
    for call in (
        lambda: parprims.scan(x, last_only, offsets=offsets, return_last=True),
        lambda: parprims.scan(x[:, :0], last_only, return_last=True),
        lambda: parprims.linear_recurrence(x, x, offsets=offsets, return_last=True),
        lambda: parprims.linear_recurrence(x[:, :0], x[:, :0], return_last=True),
    ):
        with pytest.raises(ValueError, match=r"^initial must be given"):
            call()
    with pytest.raises(ValueError, match=r"^initial must be given"):  # methods() raises what the call raises
        parprims.methods(parprims.linear_recurrence, x, x, offsets=offsets, return_last=True)


@pytest.mark.parametrize("way", METHODS)
def test_wrong_offsets_reach_no_memory(backend, way):
    x, start = backend.asarray(np.ones((2, 9))), backend.asarray(np.ones((2, 3)))
    for wrong in ([0, 9, 2, 4], [5, 5, 5, 5], [-9, 20, 30, 2]):
        options = {"offsets": backend.asarray(np.array(wrong)), "check": False, "method": way, "initial": start}
        for call in (parprims.scan, lambda x, **options: parprims.linear_recurrence(x, x, **options)):
            try:
                y, last = call(x, return_last=True, **options)
            except parprims.MethodRefused:
                continue
            assert y.shape == (2, 9)
            assert last.shape == (2, 3)
