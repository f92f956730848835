"""Scans of segments that are given by the number of each element, in any order, against loops."""

import numpy as np
import pytest

import parprims
from tests.primitives.segments.test_segment_states import FORMS, OPERATORS, SHAPES, formed, of_segments
from tests.primitives.segments.test_segments import METHODS
from tests.support.contract import check_equal_derivatives, compare


def loop(xs, combine, starts, ids, axis, *, reverse=False, exclusive=False):
    """Return results and last states of segments, one element after another; ids that name none leave elements."""
    rows, states = [np.moveaxis(x, axis, 0) for x in xs], [np.moveaxis(x.copy(), axis, 0) for x in starts]
    found = [x.copy() for x in rows]
    for i in reversed(range(len(ids))) if reverse else range(len(ids)):
        if 0 <= ids[i] < len(states[0]):
            before = tuple(x[ids[i]].copy() for x in states)
            after = combine(before, tuple(x[i] for x in rows))
            for y, state, part, shown in zip(found, states, after, before if exclusive else after, strict=True):
                state[ids[i]], y[i] = part, shown
    return tuple(tuple(np.moveaxis(x, 0, axis) for x in part) for part in (found, states))


class TestScan:
    methods = METHODS

    @pytest.mark.parametrize("name", OPERATORS)
    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("exclusive", [False, True])
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("case", range(len(SHAPES)))
    @pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
    def test_loop(self, backend, run, method, rng, name, form, exclusive, reverse, case, dtype):
        """Some segments are empty, and some elements have no segment."""
        op, combine, count = OPERATORS[name]
        shape, axis = SHAPES[case]
        ids = rng.integers(0 if dtype == "uint8" else -2, 7, shape[axis]).astype(dtype)
        ids[ids == 4] = 255 if dtype == "uint8" else 1000
        xs = tuple(rng.integers(-1, 2, shape) for _ in range(count))
        given, starts = zip(
            *[formed(of_segments(rng, shape, axis, 6, "int64"), form, axis) for _ in range(count)], strict=True
        )
        expected = loop(xs, combine, starts, ids.astype(int), axis, reverse=reverse, exclusive=exclusive)
        arrays = tuple(backend.asarray(x) for x in xs)
        initial = tuple(x if form == "number" else backend.asarray(x) for x in given)
        arrays, initial = (arrays, initial) if count > 1 else (arrays[0], initial[0])
        options = {"axis": axis, "exclusive": exclusive, "reverse": reverse, "initial": initial, "method": method}
        options |= {"segment_ids": backend.asarray(ids), "num_segments": 6}
        found = run(parprims.scan, arrays, op, return_last=True, **options)
        compare(backend, found, expected if count > 1 else (expected[0][0], expected[1][0]))
        alone = run(parprims.scan, arrays, op, **options)
        compare(backend, alone, expected[0] if count > 1 else expected[0][0])

    @pytest.mark.parametrize("exclusive", [False, True])
    @pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "logsumexp"])
    def test_cumulative(self, backend, run, method, rng, name, exclusive):
        function = getattr(parprims, f"cumulative_{name}")
        x, ids = rng.integers(-2, 3, 30).astype("float64"), rng.integers(0, 3, 30)
        options = {"exclusive": exclusive, "method": method}
        found = run(function, backend.asarray(x), segment_ids=backend.asarray(ids), num_segments=3, **options)
        expected = np.empty_like(x)
        for j in range(3):
            expected[ids == j] = function(x[ids == j], exclusive=exclusive, method="array")
        compare(backend, found, expected, 1e-12)

    @pytest.mark.parametrize("n", [0, 5])
    @pytest.mark.parametrize("segments", [0, 3])
    def test_no_elements_or_segments(self, backend, run, method, n, segments):
        x, ids = np.arange(2.0 * n).reshape(2, n), np.full(n, 7)
        start = np.arange(2.0 * segments).reshape(2, segments)
        options = {"segment_ids": backend.asarray(ids), "num_segments": segments, "method": method}
        options |= {"initial": backend.asarray(start), "return_last": True}
        for exclusive in (False, True):
            compare(backend, run(parprims.scan, backend.asarray(x), exclusive=exclusive, **options), (x, start))

    @pytest.mark.parametrize("dtype", ["bool", "uint8", "uint64", "complex64", "float16"])
    def test_dtypes(self, backend, run, method, rng, dtype):
        if not backend.supports(dtype):
            pytest.skip(f"has no {dtype}")
        x, ids = rng.integers(0, 2, 20).astype(dtype), rng.integers(0, 3, 20)
        y = run(parprims.scan, backend.asarray(x), segment_ids=backend.asarray(ids), num_segments=3, method=method)
        expected = np.empty(20, np.complex128)
        for j in range(3):
            expected[ids == j] = np.cumsum(x[ids == j].astype(np.complex128))
        assert y.dtype == parprims.scan(backend.asarray(x)).dtype
        np.testing.assert_array_equal(backend.to_numpy(y).astype(np.complex128), expected)


def recurrence(a, b, start, ids, axis, *, reverse=False):
    """Return solutions and last states of segments; without ``start`` the first element of a segment is that of b."""
    a, b = (np.moveaxis(x, axis, 0) for x in (a, b))
    states = None if start is None else np.moveaxis(start.copy(), axis, 0)
    found, known = b.copy(), {} if states is None else dict(enumerate(states))
    for i in reversed(range(len(ids))) if reverse else range(len(ids)):
        if ids[i] in known:
            found[i] = a[i] * known[ids[i]] + b[i]
        known[ids[i]] = found[i]
    ends = None if states is None else np.stack([known[j] for j in range(len(states))]) if len(states) else states
    return np.moveaxis(found, 0, axis), None if ends is None else np.moveaxis(ends, 0, axis)


class TestRecurrence:
    methods = METHODS

    @pytest.mark.parametrize("form", [None, *FORMS])
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("case", range(len(SHAPES)))
    @pytest.mark.parametrize("dtype", ["int64", "float64", "complex128"])
    @pytest.mark.parametrize("width", ["int32", "uint8", "int64"])
    def test_loop(self, backend, run, method, rng, form, reverse, case, dtype, width):
        """Some segments are empty; elements without a segment, of large coefficients, stay those of b."""
        shape, axis = SHAPES[case]
        ids = rng.integers(0 if width == "uint8" else -2, 7, shape[axis])
        ids[ids == 4] = 255 if width == "uint8" else 1000
        a, b = (rng.integers(-2, 3, shape).astype(dtype) for _ in range(2))
        if dtype != "int64":
            where = np.reshape((ids < 0) | (ids > 5), [-1 if at == axis else 1 for at in range(len(shape))])
            a = np.where(where, 1e300, a)
        given, start = formed(of_segments(rng, shape, axis, 6, dtype), form, axis) if form else (None, None)
        single = {i: -1 - i for i in range(len(ids)) if not 0 <= ids[i] < 6}
        names = np.array([single.get(i, ids[i]) for i in range(len(ids))], int)
        expected, last = recurrence(a, b, start, names, axis, reverse=reverse)
        before = [x.copy() for x in (a, b)]
        arrays = backend.asarray(a), backend.asarray(b)
        options = {"axis": axis, "reverse": reverse, "method": method, "num_segments": 6}
        options["segment_ids"] = backend.asarray(ids.astype(width))
        options["initial"] = given if form in (None, "number") else backend.asarray(given)
        compare(backend, run(parprims.linear_recurrence, *arrays, **options), expected)
        if form:
            found = run(parprims.linear_recurrence, *arrays, return_last=True, **options)
            compare(backend, found, (expected, last))
        for x, other in zip((a, b), before, strict=True):
            np.testing.assert_array_equal(x, other)

    @pytest.mark.parametrize("n", [0, 1, 5])
    @pytest.mark.parametrize("segments", [0, 3])
    def test_broadcast_coefficients(self, backend, run, method, rng, n, segments):
        """A number, or a coefficient for each line; no elements, and no segments."""
        b, ids, start = rng.integers(-2, 3, (2, n)), rng.integers(0, 3, n), rng.integers(-2, 3, (2, segments))
        options = {"segment_ids": backend.asarray(ids), "num_segments": segments, "return_last": True}
        names = ids if segments else -1 - np.arange(n)
        for a in (2, rng.integers(-2, 3, (2, 1))):
            expected = recurrence(np.broadcast_to(a, b.shape), b, start, names, 1)
            coefficient = a if isinstance(a, int) else backend.asarray(a)
            arguments = coefficient, backend.asarray(b)
            found = run(
                parprims.linear_recurrence, *arguments, initial=backend.asarray(start), method=method, **options
            )
            compare(backend, found, expected)


@pytest.mark.parametrize("way", METHODS)
@pytest.mark.parametrize("reverse", [False, True])
def test_derivatives_of_recurrences(backend, rng, way, reverse):
    """With respect to coefficients and initial elements: those of a call for each segment, alone."""
    if backend.family not in ("torch", "jax"):
        pytest.skip("has no derivatives")
    xp, ids, weights = backend.xp, np.array([1, 0, 1, 3, 0, 1, 1, -1, 3]), backend.asarray(rng.standard_normal((9, 2)))
    a, b, start = rng.standard_normal((9, 2)), rng.standard_normal((9, 2)), rng.standard_normal((3, 2))
    a[ids == 3], a[-2] = 1e200, 1e300  # elements without a segment overflow together
    options = {"axis": 0, "reverse": reverse}

    def ours(a, b, start):
        segments = {"segment_ids": backend.asarray(ids), "num_segments": 3, "method": way}
        x, last = parprims.linear_recurrence(a, b, initial=start, return_last=True, **segments, **options)
        return xp.sum(x * weights) + xp.sum(last * last)

    def theirs(a, b, start):
        alone = backend.asarray(np.nonzero((ids < 0) | (ids > 2))[0])
        total = xp.sum(xp.take(b, alone, axis=0) * xp.take(weights, alone, axis=0))
        for j in range(3):
            at = backend.asarray(np.nonzero(ids == j)[0])
            pair = xp.take(a, at, axis=0), xp.take(b, at, axis=0)
            x, last = parprims.linear_recurrence(*pair, initial=start[j], return_last=True, method="array", **options)
            total = total + xp.sum(x * xp.take(weights, at, axis=0)) + xp.sum(last * last)
        return total

    check_equal_derivatives(backend, ours, theirs, (a, b, start), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("way", METHODS)
def test_derivatives(backend, rng, way):
    """Of sums and products with respect to elements and initial elements: those of a call for each segment."""
    if backend.family not in ("torch", "jax"):
        pytest.skip("has no derivatives")
    xp, ids = backend.xp, np.array([1, 0, 1, 3, 0, 1, 1])
    x, start, weights = rng.standard_normal((7, 2)), rng.standard_normal((3, 2)), rng.standard_normal((7, 2))

    def ours(x, start, op):
        options = {"axis": 0, "segment_ids": backend.asarray(ids), "num_segments": 3, "method": way}
        y, last = parprims.scan(x, op, initial=start, return_last=True, **options)
        return xp.sum(y * backend.asarray(weights)) + xp.sum(last * last)

    def theirs(x, start, op):
        total = xp.sum(x[3] * backend.asarray(weights)[3])  # an element without a segment
        for j in range(3):
            at = backend.asarray(np.nonzero(ids == j)[0])
            part = xp.take(x, at, axis=0)
            y, last = parprims.scan(part, op, axis=0, initial=start[j], return_last=True, method="array")
            total = total + xp.sum(y * xp.take(backend.asarray(weights), at, axis=0)) + xp.sum(last * last)
        return total

    def gradients(loss, op):
        put = [backend.asarray(one) for one in (x, start)]
        if backend.family == "jax":
            import jax

            return [np.asarray(g) for g in jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnums=2)(*put, op)]
        leaves = [one.requires_grad_() for one in put]
        loss(*leaves, op).backward()
        return [backend.to_numpy(one.grad) for one in leaves]

    for op in ("add", "multiply"):
        try:
            found = gradients(ours, op)
        except parprims.MethodRefused as refusal:
            pytest.skip(str(refusal))
        for one, other in zip(found, gradients(theirs, op), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_wrong_arguments(backend):
    x, ids = backend.asarray(np.ones(4)), backend.asarray(np.array([0, 1, 0, 1]))
    for function in (parprims.scan, parprims.cumulative_sum, parprims.cumulative_max):
        for given in ({"segment_ids": ids}, {"num_segments": 2}):
            with pytest.raises(ValueError, match=r"^segment_ids and num_segments must be given together"):
                function(x, **given)
        with pytest.raises(ValueError, match=r"^offsets must be None where segment_ids are given"):
            function(x, segment_ids=ids, num_segments=2, offsets=[0, 4])
        with pytest.raises(ValueError, match=r"^segment_ids must have one dimension"):
            function(x, segment_ids=ids[1:], num_segments=2)
        with pytest.raises(TypeError, match=r"^segment_ids must have an integer dtype"):
            function(x, segment_ids=x, num_segments=2)
        with pytest.raises(ValueError, match=r"^num_segments must be from 0"):
            function(x, segment_ids=ids, num_segments=-1)
        with pytest.raises(ValueError, match=r"^initial must broadcast"):
            function(x, segment_ids=ids, num_segments=2, initial=backend.asarray(np.ones(3)))
    for given in ({"segment_ids": ids}, {"num_segments": 2}):
        with pytest.raises(ValueError, match=r"^segment_ids and num_segments must be given together"):
            parprims.linear_recurrence(x, x, **given)
        (name,) = given
        with pytest.raises(ValueError, match=rf"^{name} must be None where coefficients are matrices"):
            parprims.linear_recurrence(x, x, matrices=True, **given)
    segments = {"segment_ids": ids, "num_segments": 2}
    with pytest.raises(ValueError, match=r"^offsets must be None where segment_ids are given"):
        parprims.linear_recurrence(x, x, offsets=[0, 4], **segments)
    with pytest.raises(ValueError, match=r"^segment_ids must have one dimension"):
        parprims.linear_recurrence(0.5, backend.asarray(np.ones(5)), **segments)
    with pytest.raises(TypeError, match=r"^segment_ids must have an integer dtype"):
        parprims.linear_recurrence(x, x, segment_ids=x, num_segments=2)
    with pytest.raises(ValueError, match=r"^initial must be given: a linear recurrence without elements"):
        parprims.linear_recurrence(x, x, return_last=True, **segments)
    with pytest.raises(ValueError, match=r"^initial must broadcast"):
        parprims.linear_recurrence(x, x, initial=backend.asarray(np.ones(3)), **segments)
    with pytest.raises(ValueError, match=r"^axis_name must not be given with segment_ids"):
        parprims.linear_recurrence(x, x, axis_name="i", **segments)
    with pytest.raises(ValueError, match=r"^axis_name must not be given with segment_ids"):
        parprims.scan(x, segment_ids=ids, num_segments=2, axis_name="i")
    with pytest.raises(ValueError, match=r"^include_initial must be False where segment_ids are given"):
        parprims.cumulative_sum(x, segment_ids=ids, num_segments=2, include_initial=True)
    with pytest.raises(ValueError, match=r"^initial must be given: op .* has no identity"):
        parprims.scan(x, lambda _, y: y, segment_ids=ids, num_segments=2, exclusive=True)


@pytest.mark.once
def test_programs(rng):
    """Inside jit, vmap and torch.compile."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    x, ids, start = rng.standard_normal((2, 9)), rng.integers(-1, 4, 9), rng.standard_normal((2, 3))

    def both(x, ids, start):
        groups = {"segment_ids": ids, "num_segments": 3}
        ys = parprims.scan(x, "maximum", initial=start, return_last=True, **groups)
        return *ys, parprims.cumulative_sum(x, axis=-1, exclusive=True, **groups)

    expected = both(x, ids, start)
    for call in (jax.jit(both), jax.vmap(both, in_axes=(0, None, 0))):
        for one, other in zip(call(*map(jax.numpy.asarray, (x, ids, start))), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for one, other in zip(compiled(*map(torch.from_numpy, (x, ids, start))), expected, strict=True):
        np.testing.assert_allclose(one, other)
