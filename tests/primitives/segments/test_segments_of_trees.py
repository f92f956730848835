"""Segments of trees with trailing axes, combined by operators that are not elementwise, against loops over elements."""

import itertools

import numpy as np
import pytest

import parprims
from tests.operators.test_trees import SIDE, product, structured
from tests.primitives.segments.test_segments import METHODS, cuts
from tests.support.contract import check_equal_derivatives, compare

AXES = (((), 0), ((3,), 1))
"""Axes before the axis of the call, and this axis."""
INITIAL = ("number", "line", "segments")
"""Initial elements: numbers, an element for each line, and an element for each segment of each line."""


def maps(rng, *lead):
    """Return maps x -> matrix x + offset of whole numbers, which floats hold exactly, with a count."""
    return tuple(
        rng.integers(-1, 2, (*lead, *trailing)).astype(dtype)
        for trailing, dtype in (((SIDE, SIDE), "float64"), ((SIDE,), "float64"), ((), "int64"))
    )


def tree(leaves):
    """Return the element of `product` of these leaves."""
    matrix, offset, number = leaves
    return {"matrix": matrix, "offset": offset, "none": None, "rest": [number]}


def composed(earlier, later):
    """Return the map that is first the earlier, then the later map, of arrays without the axis of the call."""
    (a, b, m), (c, d, n) = earlier, later
    return c @ a, (c @ b[..., None])[..., 0] + d, m + n


def started(rng, form, batch, axis, segments):
    """Return an initial element, as leaves that are given to a call, and with an element for each segment."""
    whole = maps(rng, *batch[:axis], segments, *batch[axis:])
    if form == "segments":
        return whole, whole
    if form == "number":
        return (2, 0.5, 7), tuple(np.full_like(x, value) for x, value in zip(whole, (2, 0.5, 7), strict=True))
    line = maps(rng, *batch)
    return line, tuple(np.broadcast_to(np.expand_dims(x, axis), y.shape) for x, y in zip(line, whole, strict=True))


def loop(xs, starts, ids, axis, *, reverse=False, exclusive=False):
    """Return results and last states of segments, one element after another; elements without a segment stay."""
    rows, states = ([np.moveaxis(x, axis, 0).copy() for x in given] for given in (xs, starts))
    found = [x.copy() for x in rows]
    for i in reversed(range(len(ids))) if reverse else range(len(ids)):
        if 0 <= ids[i] < len(states[0]):
            before = tuple(x[ids[i]].copy() for x in states)
            after = composed(before, tuple(x[i] for x in rows))
            for y, state, part, shown in zip(found, states, after, before if exclusive else after, strict=True):
                state[ids[i]], y[i] = part, shown
    return tuple(tuple(np.moveaxis(x, 0, axis) for x in part) for part in (found, states))


def drawn(rng, n):
    """Return offsets of segments, some of them empty, and the number of the segment of each element."""
    offsets = np.concatenate([[0], cuts(rng, n, 4), [n] * 2])
    return offsets, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def given(backend, xs):
    """Return the element of these leaves in the library of a backend; numbers stay numbers."""
    return tree([x if isinstance(x, int | float) else backend.asarray(x) for x in xs])


class TestScans:
    methods = METHODS

    @pytest.mark.parametrize("by", ["offsets", "ids"])
    @pytest.mark.parametrize("form", INITIAL)
    @pytest.mark.parametrize("exclusive", [False, True])
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("case", range(len(AXES)))
    @pytest.mark.parametrize("n", [1, 13])
    def test_after_initial_elements(self, backend, run, method, rng, by, form, exclusive, reverse, case, n):
        batch, axis = AXES[case]
        xs = maps(rng, *batch[:axis], n, *batch[axis:])
        offsets, ids = drawn(rng, n)
        segments = len(offsets) - 1
        options = {"offsets": backend.asarray(offsets)}
        if by == "ids":
            ids = rng.permutation(np.where(ids == 2, -1, ids))
            options = {"segment_ids": backend.asarray(ids), "num_segments": segments}
        initial, starts = started(rng, form, batch, axis, segments)
        before = [np.copy(x) for x in (*xs, *initial)]
        options |= {"initial": given(backend, initial), "exclusive": exclusive, "reverse": reverse, "axis": axis}
        y, last = run(parprims.scan, given(backend, xs), product, return_last=True, method=method, **options)
        expected = loop(xs, starts, ids, axis, reverse=reverse, exclusive=exclusive)
        compare(backend, structured(y), expected[0])
        compare(backend, structured(last), expected[1])
        alone = run(parprims.scan, given(backend, xs), product, method=method, **options)
        compare(backend, structured(alone), expected[0])
        for x, other in zip((*xs, *initial), before, strict=True):
            np.testing.assert_array_equal(x, other)

    @pytest.mark.parametrize("by", ["offsets", "ids"])
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("case", range(len(AXES)))
    @pytest.mark.parametrize("n", [1, 2, 40])
    def test_without_initial_elements(self, backend, run, method, rng, by, reverse, case, n):
        batch, axis = AXES[case]
        xs = maps(rng, *batch[:axis], n, *batch[axis:])
        offsets, ids = drawn(rng, n)
        options = {"offsets": offsets.tolist()}
        if by == "ids":
            ids = rng.permutation(ids)
            options = {"segment_ids": backend.asarray(ids), "num_segments": len(offsets) - 1}
        y = run(parprims.scan, given(backend, xs), product, axis=axis, reverse=reverse, method=method, **options)
        unit = np.broadcast_to(np.eye(SIDE), (*batch[:axis], len(offsets) - 1, *batch[axis:], SIDE, SIDE))
        starts = unit, np.zeros(unit.shape[:-1]), np.zeros(unit.shape[:-2], int)
        compare(backend, structured(y), loop(xs, starts, ids, axis, reverse=reverse)[0])

    @pytest.mark.parametrize("reverse", [False, True])
    def test_matrices_alone(self, backend, run, method, rng, reverse):
        """A tree of one leaf, and an array that is no tree."""
        x, (offsets, ids) = maps(rng, 21)[0], drawn(rng, 21)
        starts = np.broadcast_to(np.eye(SIDE), (len(offsets) - 1, SIDE, SIDE)), *maps(rng, len(offsets) - 1)[1:]
        expected = loop((x, *maps(rng, 21)[1:]), starts, ids, 0, reverse=reverse)[0][0]
        options = {"axis": 0, "offsets": backend.asarray(offsets), "reverse": reverse, "method": method}
        compare(backend, run(parprims.scan, backend.asarray(x), lambda p, q: q @ p, **options), expected)
        (found,) = run(parprims.scan, [backend.asarray(x)], lambda p, q: [q[0] @ p[0]], **options)
        compare(backend, found, expected)

    @pytest.mark.parametrize("segments", [0, 2])
    def test_no_elements(self, backend, run, method, rng, segments):
        xs, starts = maps(rng, 0), maps(rng, segments)
        for by in ({"offsets": [0] * (segments + 1)}, {"segment_ids": np.zeros(0, int), "num_segments": segments}):
            if "segment_ids" in by:
                by["segment_ids"] = backend.asarray(by["segment_ids"])
            options = {"axis": 0, "initial": given(backend, starts), "return_last": True, "method": method, **by}
            y, last = run(parprims.scan, given(backend, xs), product, **options)
            compare(backend, structured(y), xs)
            compare(backend, structured(last), starts)

    def test_a_leaf_without_elements(self, backend, run, method, rng):
        """Other leaves are combined as without it."""
        x, none, (offsets, ids) = rng.integers(0, 9, 12), np.ones((12, 0)), drawn(rng, 12)

        def both(p, q):
            return p[0] + q[0], p[1] + q[1]

        def loops(ids):
            return np.array([x[: i + 1][ids[: i + 1] == ids[i]].sum() for i in range(12)])

        for leaves in ((x, none), (none, x)):
            elements, at = tuple(map(backend.asarray, leaves)), int(leaves[0] is none)
            whole = run(parprims.scan, elements, both, axis=0, method=method)
            np.testing.assert_array_equal(backend.to_numpy(whole[at]), np.cumsum(x))
            found = run(parprims.scan, elements, both, axis=0, offsets=backend.asarray(offsets), method=method)
            np.testing.assert_array_equal(backend.to_numpy(found[at]), loops(ids))
            assert [tuple(one.shape) for one in found] == [one.shape for one in leaves]
            sums = run(
                parprims.segment_reduce,
                elements,
                backend.asarray(ids),
                len(offsets) - 1,
                parprims.Operator(both, identity=(0, 0)),
                method=method,
            )
            expected = [x[ids == j].sum() for j in range(len(offsets) - 1)]
            np.testing.assert_array_equal(backend.to_numpy(sums[at]), expected)


class TestReductions:
    methods = METHODS

    @pytest.mark.parametrize("by", ["offsets", "sorted ids", "ids"])
    @pytest.mark.parametrize("form", ["number", "line"])
    @pytest.mark.parametrize("case", range(len(AXES)))
    @pytest.mark.parametrize("n", [0, 1, 2, 17])
    def test_loop(self, backend, run, method, rng, by, form, case, n):
        batch, axis = AXES[case]
        xs = maps(rng, *batch[:axis], n, *batch[axis:])
        offsets, ids = drawn(rng, n)
        segments = len(offsets) - 1
        initial, starts = started(rng, form, batch, axis, segments)
        options = {"axis": axis, "initial": given(backend, initial), "method": method}
        if by == "offsets":
            options["offsets"] = backend.asarray(offsets)
            found = run(parprims.reduce, given(backend, xs), product, **options)
        else:
            if by == "ids":
                ids = rng.permutation(np.where(ids == 1, 1000, ids))
            options["indices_are_sorted"] = by == "sorted ids"
            arguments = given(backend, xs), backend.asarray(ids), segments, product
            found = run(parprims.segment_reduce, *arguments, **options)
        compare(backend, structured(found), loop(xs, starts, ids, axis)[1])

    @pytest.mark.parametrize("by", ["offsets", "ids"])
    def test_identity(self, backend, run, method, rng, by):
        """Empty segments are the identity, a number for each leaf."""
        xs, (offsets, ids) = maps(rng, 30)[:2], drawn(rng, 30)
        op = parprims.Operator(lambda p, q: (p[0] + q[0], p[1] + q[1] + 0 * p[0][..., 0]), identity=(0, 0))
        elements = tuple(map(backend.asarray, xs))
        if by == "offsets":
            found = run(parprims.reduce, elements, op, axis=0, offsets=backend.asarray(offsets), method=method)
        else:
            arguments = elements, backend.asarray(ids), len(offsets) - 1, op
            found = run(parprims.segment_reduce, *arguments, method=method)
        expected = tuple(np.stack([x[i:j].sum(0) for i, j in itertools.pairwise(offsets)]) for x in xs)
        compare(backend, found, expected)

    def test_matrices_alone(self, backend, run, method, rng):
        x, start = maps(rng, 30)[0], np.array([[0.0, 1.0], [2.0, 1.0]])
        offsets, ids = drawn(rng, 30)
        options = {"initial": backend.asarray(start), "method": method}
        expected = []
        for i, j in itertools.pairwise(offsets):
            total = start
            for one in x[i:j]:
                total = one @ total
            expected.append(total)
        found = run(
            parprims.reduce, backend.asarray(x), lambda p, q: q @ p, axis=0, offsets=offsets.tolist(), **options
        )
        compare(backend, found, np.stack(expected))
        arguments = backend.asarray(x), backend.asarray(ids), len(offsets) - 1, lambda p, q: q @ p
        compare(backend, run(parprims.segment_reduce, *arguments, **options), np.stack(expected))


@pytest.mark.parametrize("way", METHODS)
@pytest.mark.parametrize("by", ["offsets", "ids"])
def test_derivatives(backend, rng, way, by):
    """With respect to elements and initial elements: those of a scan of each segment, on PyTorch and JAX."""
    if backend.family not in ("torch", "jax"):
        pytest.skip("has no derivatives")
    n, segments, ids = 8, 3, np.array([1, 0, 1, 2, 0, 1, 1, 0])
    ids = np.sort(ids) if by == "offsets" else ids
    x, v, start = rng.standard_normal((n, 2, 2)), rng.standard_normal((n, 2)), rng.standard_normal((segments, 2, 2))
    weights, xp = backend.asarray(rng.standard_normal((n, 2))), backend.xp
    own = {"offsets": backend.asarray(np.searchsorted(ids, np.arange(segments + 1)))}
    if by == "ids":
        own = {"segment_ids": backend.asarray(ids), "num_segments": segments}

    def op(p, q):
        return q[0] @ p[0], (q[0] @ p[1][..., None])[..., 0] + q[1]

    def loss_of(y, last, weights):
        return xp.sum(y[1] * weights) + xp.sum(y[0][:, 0, 0]) + xp.sum(last[0] * last[0])

    def ours(x, v, start):
        y, last = parprims.scan((x, v), op, axis=0, initial=(start, 0.5), return_last=True, method=way, **own)
        total = parprims.segment_reduce((x, v), backend.asarray(ids), segments, op, initial=(1, 0.5), method=way)
        return loss_of(y, last, weights) + xp.sum(total[1])

    def theirs(x, v, start):
        loss = 0.0
        for j in range(segments):
            at = backend.asarray(np.nonzero(ids == j)[0])
            part = xp.take(x, at, axis=0), xp.take(v, at, axis=0)
            options = {"axis": 0, "return_last": True, "method": "array"}
            y, last = parprims.scan(part, op, initial=(start[j], 0.5), **options)
            loss = loss + loss_of(y, last, xp.take(weights, at, axis=0))
            loss = loss + xp.sum(parprims.scan(part, op, initial=(1, 0.5), **options)[1][1])
        return loss

    check_equal_derivatives(backend, ours, theirs, (x, v, start), rtol=1e-9, atol=1e-9)


def test_methods(backend, rng):
    """Every method that is listed computes the call, and a kernel takes small elements where there are kernels."""
    xs, (offsets, ids) = given(backend, maps(rng, 20)), drawn(rng, 20)
    ids, count, start = backend.asarray(ids), len(offsets) - 1, {"initial": given(backend, (1, 0, 0))}
    calls = [
        (parprims.scan, (xs, product), {"axis": 0, "offsets": backend.asarray(offsets)}),
        (parprims.scan, (xs, product), {"axis": 0, "segment_ids": ids, "num_segments": count}),
        (parprims.reduce, (xs, product), {"axis": 0, "offsets": backend.asarray(offsets), **start}),
        (parprims.segment_reduce, (xs, ids, count, product), start),
    ]
    for function, arguments, options in calls:
        listed = parprims.methods(function, *arguments, **options)
        assert listed["array"] is None
        if backend.kernels:
            reason = listed["kernel"]
            assert reason is None or any(words in reason for words in ("less time", "faster", "preferred"))
        for name, reason in listed.items():
            if reason is None or (name == "kernel" and backend.kernels):
                function(*arguments, method=name, **options)
    wide = {"axis": 0, "offsets": backend.asarray(offsets)}
    x = backend.asarray(rng.standard_normal((20, 12, 12)))
    listed = parprims.methods(parprims.scan, (x, x[:, 0, :]), lambda p, q: (q[0] @ p[0], p[1]), **wide)
    assert listed["kernel"]
    assert listed["array"] is None


def test_wrong_arguments(backend):
    x, v, short = (backend.asarray(np.ones(shape)) for shape in ((6, 2, 2), (6, 2), (5, 2)))
    ids, op = backend.asarray(np.zeros(6, int)), (lambda p, q: (q[0] @ p[0], p[1]))
    by_offsets, by_ids = {"offsets": [0, 6]}, {"segment_ids": ids, "num_segments": 1}
    for segments in (by_offsets, by_ids):
        with pytest.raises(ValueError, match=r"^x must be arrays of equal shape, or axis must count from the front"):
            parprims.scan((x, v), op, **segments)
        with pytest.raises(ValueError, match=r"^x must be arrays of equal shape, or of equal length along axis 0"):
            parprims.scan((x, short), op, axis=0, **segments)
        with pytest.raises(ValueError, match=r"^x must be arrays of equal shape for op affine, which is elementwise"):
            parprims.scan((x, v), "affine", axis=0, **segments)
        with pytest.raises(ValueError, match=r"^initial\['a'\] must broadcast"):
            parprims.scan(
                {"a": x, "b": v},
                lambda p, q: {"a": q["a"] @ p["a"], "b": p["b"]},
                axis=0,
                initial={"a": backend.asarray(np.ones((3, 3))), "b": 0},
                **segments,
            )
        with pytest.raises(ValueError, match=r"^initial must be given"):
            parprims.scan((x, v), op, axis=0, exclusive=True, **segments)
    with pytest.raises(ValueError, match=r"^initial must be given"):
        parprims.segment_reduce((x, v), ids, 1, op)
    with pytest.raises(ValueError, match=r"^ids must have one dimension and the length of x along the axis, 6"):
        parprims.segment_reduce((x, v), backend.asarray(np.zeros(5, int)), 1, op)
    for call in (parprims.scan, parprims.reduce):
        with pytest.raises(ValueError, match=r"^x must be arrays of equal shape for op affine"):
            call((x, v), "affine", axis=0)


@pytest.mark.parametrize("way", METHODS)
def test_built_in_operators_broadcast(backend, rng, way):
    """Slopes with an axis of length 1."""
    a, b, (offsets, ids) = rng.integers(-1, 2, (9, 1)), rng.integers(-3, 4, (9, 4)), drawn(rng, 9)
    whole, segments = (np.broadcast_to(a, b.shape).copy(), b), len(offsets) - 1
    arrays, numbers = (backend.asarray(a), backend.asarray(b)), backend.asarray(ids)
    options = {"axis": 0, "offsets": offsets.tolist()}
    calls = [(function, options) for function in (parprims.scan, parprims.reduce)]
    for function, options in [*calls, (parprims.segment_reduce, {})]:
        of_ids, of_numbers = ((ids, segments), (numbers, segments)) if function is parprims.segment_reduce else ((), ())
        try:
            found = function(arrays, *of_numbers, "affine", method=way, **options)
        except parprims.MethodRefused as refusal:
            pytest.skip(str(refusal))
        slope, offset = function(whole, *of_ids, "affine", method="array", **options)
        compare(backend, found, (slope[:, :1], offset))
