"""Trees of arrays with trailing axes of several shapes, combined by operators that are not elementwise."""

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from array_api_compat import array_namespace, device

import parprims
from tests.support.contract import compare

LENGTHS = (0, 1, 2, 3, 5, 16, 33, 100)
SIDE = 2
EPS = 2.0**-52
METHODS = ("auto", "kernel", "native", "array")


class Gaussian(NamedTuple):
    """An element of a Kalman filter in parallel (Sarkka and Garcia-Fernandez 2021), for states of several numbers."""

    a: Any
    b: Any
    c: Any
    eta: Any
    j: Any


def product(earlier, later):
    """Return the map x -> matrix x + offset that is first the earlier, then the later map; the number counts maps."""
    return {
        "matrix": later["matrix"] @ earlier["matrix"],
        "offset": (later["matrix"] @ earlier["offset"][..., None])[..., 0] + later["offset"],
        "none": None,
        "rest": [earlier["rest"][0] + later["rest"][0]],
    }


def filtering(earlier, later):
    """Return the element of two stretches of time. The systems of equations are solved, not inverted."""
    xp = array_namespace(earlier.b)
    turned = xp.eye(SIDE, dtype=earlier.b.dtype, device=device(earlier.b)) + earlier.c @ later.j
    forward = xp.matrix_transpose(xp.linalg.solve(xp.matrix_transpose(turned), xp.matrix_transpose(later.a)))
    backward = xp.matrix_transpose(xp.linalg.solve(turned, earlier.a))

    def applied(matrix, vector):
        return (matrix @ vector[..., None])[..., 0]

    return Gaussian(
        a=forward @ earlier.a,
        b=applied(forward, earlier.b + applied(earlier.c, later.eta)) + later.b,
        c=forward @ earlier.c @ xp.matrix_transpose(later.a) + later.c,
        eta=applied(backward, later.eta - applied(later.j, earlier.b)) + earlier.eta,
        j=backward @ later.j @ earlier.a + earlier.j,
    )


def maps(rng, n, batch=()):
    """Return matrices of norm at most 1, offsets and counts, as a tree of arrays of NumPy, and their number of axes."""
    matrix = rng.standard_normal((*batch, n, SIDE, SIDE))
    matrix /= np.maximum(np.linalg.norm(matrix, axis=(-2, -1), keepdims=True), 1)
    return {
        "matrix": matrix,
        "offset": rng.uniform(-1, 1, (*batch, n, SIDE)),
        "none": None,
        "rest": [np.ones((*batch, n), np.int64)],
    }


def on(backend, tree):
    """Return the tree with its arrays in the library of a backend."""
    if isinstance(tree, dict):
        return {key: on(backend, part) for key, part in tree.items()}
    if isinstance(tree, list):
        return [on(backend, part) for part in tree]
    return None if tree is None else backend.asarray(tree)


def loop(tree, axis=0, start=None):
    """Return the inclusive scan of maps along an axis, in extended precision where NumPy has it."""
    wide = {key: np.moveaxis(np.asarray(tree[key], np.longdouble), axis, 0) for key in ("matrix", "offset")}
    count = np.moveaxis(tree["rest"][0], axis, 0)
    results = []
    matrix, offset, number = start or (None, None, 0)
    for a, b, one in zip(wide["matrix"], wide["offset"], count, strict=True):
        offset = b if offset is None else np.einsum("...ij,...j->...i", a, offset) + b
        matrix = a if matrix is None else np.einsum("...ij,...jk->...ik", a, matrix)
        number = number + one
        results.append((matrix, offset, number))
    parts = [np.stack(part) for part in zip(*results, strict=True)]
    return tuple(np.moveaxis(part, 0, axis) for part in parts)


def flat(tree):
    return tree["matrix"], tree["offset"], tree["rest"][0]


def bound(n):
    """Return the largest error: n products, of at most 2 SIDE roundings in a term, of matrices of norm 1."""
    return (2 * SIDE * n * EPS, 2 * SIDE * n * n * EPS, 0)


def structured(result):
    assert set(result) == {"matrix", "offset", "none", "rest"}
    assert result["none"] is None
    assert isinstance(result["rest"], list)
    return flat(result)


class TestScan:
    methods = METHODS

    @pytest.mark.parametrize("n", LENGTHS)
    def test_along_the_first_axis(self, backend, run, method, rng, n):
        x = maps(rng, n)
        for _ in range(2):
            found = structured(run(parprims.scan, on(backend, x), product, axis=0, method=method))
            if n:
                compare(backend, found, loop(x), bound(n))
            else:
                assert [one.shape for one in found] == [(0, SIDE, SIDE), (0, SIDE), (0,)]

    @pytest.mark.parametrize("n", [1, 4, 21])
    def test_behind_an_axis(self, backend, run, method, rng, n):
        x = maps(rng, n, batch=(2,))
        found = structured(run(parprims.scan, on(backend, x), product, axis=1, method=method))
        compare(backend, found, loop(x, axis=1), bound(n))

    @pytest.mark.parametrize("n", [1, 2, 3, 20])
    def test_from_the_end(self, backend, run, method, rng, n):
        x = maps(rng, n)
        found = structured(run(parprims.scan, on(backend, x), product, axis=0, reverse=True, method=method))
        flipped = {"matrix": x["matrix"][::-1], "offset": x["offset"][::-1], "rest": [x["rest"][0][::-1]]}
        compare(backend, found, tuple(one[::-1] for one in loop(flipped)), bound(n))

    @pytest.mark.parametrize("exclusive", [False, True])
    @pytest.mark.parametrize("n", [1, 2, 3, 20])
    def test_after_an_initial_element(self, backend, run, method, rng, n, exclusive):
        x, matrix = maps(rng, n), np.eye(SIDE)[::-1].copy()
        start = {"matrix": backend.asarray(matrix), "offset": 0.5, "none": None, "rest": [7]}
        for initial in (start, (start["matrix"], 0.5, 7)):
            options = {"initial": initial, "exclusive": exclusive, "axis": 0, "method": method}
            found = structured(run(parprims.scan, on(backend, x), product, **options))
            begun = matrix, np.full(SIDE, 0.5), 7
            expected = tuple(
                np.concatenate([np.broadcast_to(first, rest.shape[1:])[None], rest])
                for first, rest in zip(begun, loop(x, start=begun), strict=True)
            )
            compare(backend, found, tuple(one[:-1] if exclusive else one[1:] for one in expected), bound(n + 1))

    def test_equal_shapes(self, backend, run, method, rng):
        """One array of matrices: the operator `@` is no elementwise operator, whatever the shapes."""
        x = maps(rng, 17)["matrix"]
        for op in (lambda earlier, later: later @ earlier, lambda p, q: array_namespace(p).matmul(q, p)):
            found = run(parprims.scan, backend.asarray(x), op, axis=0, method=method)
            compare(backend, found, loop({"matrix": x, "offset": x[..., 0], "rest": [x]})[0], bound(17)[0])

    def test_broadcasting(self, backend, run, method, rng):
        """A built-in operator on slopes with an axis of length 1."""
        a, b = rng.integers(-1, 2, (9, 1)), rng.integers(-3, 4, (9, 4))
        found = run(parprims.scan, (backend.asarray(a), backend.asarray(b)), "affine", axis=0, method=method)
        slope, offset = parprims.scan((np.broadcast_to(a, b.shape).copy(), b), "affine", axis=0, method="array")
        compare(backend, found, (slope[:, :1], offset))

    def test_segments(self, backend, run, method, rng):
        x, flags = maps(rng, 30), rng.random(30) < 0.2
        given = backend.asarray(flags), on(backend, x)
        starts = [0, *(np.flatnonzero(flags[1:]) + 1), 30]
        parts = [slice(*pair) for pair in itertools.pairwise(starts)]
        of_parts = [
            loop({**x, **{k: x[k][at] for k in ("matrix", "offset")}, "rest": [x["rest"][0][at]]}) for at in parts
        ]
        expected = tuple(np.concatenate(part) for part in zip(*of_parts, strict=True))
        _, found = run(parprims.scan, given, parprims.segmented(product), axis=0, method=method)
        compare(backend, structured(found), expected, bound(30))

    def test_exclusive_segments(self, backend, run, method, rng):
        x, flags = maps(rng, 12), np.arange(12) % 5 == 0
        initial = (False, {"matrix": 0.0, "offset": 0.25, "none": None, "rest": [0]})
        given = backend.asarray(flags), on(backend, x)
        options = {"axis": 0, "exclusive": True, "initial": initial, "method": method}
        _, found = run(parprims.scan, given, parprims.segmented(product), **options)
        offset = np.empty((12, SIDE), np.longdouble)
        for at in range(12):
            offset[at] = 0.25 if flags[at] else x["matrix"][at - 1] @ offset[at - 1] + x["offset"][at - 1]
        compare(backend, found["offset"], offset, bound(12)[1])


XLA_ENDS = "XLA of JAX 0.11 ends the process: triton_tiling_propagation.cc, Check failed: src_fragment_it"


class TestReduce:
    methods = METHODS

    @pytest.mark.parametrize("keepdims", [False, True])
    @pytest.mark.parametrize("n", LENGTHS[1:])
    def test_along_the_first_axis(self, backend, run, method, rng, n, keepdims):
        if (backend.name, method, n, keepdims) == ("jax-cuda", "array", 33, False):
            pytest.skip(XLA_ENDS)
        x = maps(rng, n)
        options = {"axis": (0,) if n % 2 else 0, "keepdims": keepdims, "method": method}
        for _ in range(2):
            found = structured(run(parprims.reduce, on(backend, x), product, **options))
            compare(backend, found, tuple(one[-1:] if keepdims else one[-1] for one in loop(x)), bound(n))

    @pytest.mark.parametrize("n", [0, 1, 2, 7])
    def test_after_an_initial_element(self, backend, run, method, rng, n):
        x, matrix = maps(rng, n, batch=(2,)), np.eye(SIDE)[::-1].copy()
        initial = {"matrix": backend.asarray(matrix), "offset": 0.5, "none": None, "rest": [7]}
        found = structured(run(parprims.reduce, on(backend, x), product, axis=1, initial=initial, method=method))
        start = tuple(np.broadcast_to(one, (2, *np.shape(one))) for one in (matrix, np.full(SIDE, 0.5), 7))
        expected = loop(x, axis=1, start=start) if n else None
        compare(backend, found, tuple(one[:, -1] for one in expected) if n else start, bound(n + 1))

    @pytest.mark.parametrize("n", [1, 2, 3, 40])
    def test_of_a_map(self, backend, run, method, rng, n):
        """A map from numbers to rotations, with an angle each."""
        if (backend.name, method, n) == ("jax-cuda", "array", 40):
            pytest.skip(XLA_ENDS)
        angles = rng.uniform(-3, 3, n)

        def rotation(angle):
            xp = array_namespace(angle)
            rows = [
                xp.stack([xp.cos(angle), -xp.sin(angle)], axis=-1),
                xp.stack([xp.sin(angle), xp.cos(angle)], axis=-1),
            ]
            return {"matrix": xp.stack(rows, axis=-2), "angle": angle}

        def turned(earlier, later):
            return {"matrix": later["matrix"] @ earlier["matrix"], "angle": earlier["angle"] + later["angle"]}

        if method == "kernel":
            with pytest.raises(parprims.MethodRefused, match="kernel"):
                parprims.map_reduce(rotation, backend.asarray(angles), op=turned, axis=0, method=method)
            return
        found = run(parprims.map_reduce, rotation, backend.asarray(angles), op=turned, axis=0, method=method)
        total = np.sum(angles.astype(np.longdouble))
        matrix = np.array([[np.cos(total), -np.sin(total)], [np.sin(total), np.cos(total)]])
        compare(backend, (found["matrix"], found["angle"]), (matrix, total), (8 * n * EPS, 3 * n * n * EPS))


def observed(rng, n):
    """Return the elements of a filter of n observations, and its means and covariances by the textbook's filter."""
    f, h = 0.9 * np.eye(SIDE) + 0.1 * np.eye(SIDE, k=1), rng.standard_normal((2, SIDE))
    q, r, y = 0.2 * np.eye(SIDE), 0.5 * np.eye(2), rng.standard_normal((n, 2))
    means, covariances, mean, cov = [], [], np.zeros(SIDE), np.eye(SIDE)
    for measured in y:
        mean, cov = f @ mean, f @ cov @ f.T + q
        gain = cov @ h.T @ np.linalg.inv(h @ cov @ h.T + r)
        mean, cov = mean + gain @ (measured - h @ mean), cov - gain @ h @ cov
        means.append(mean)
        covariances.append(cov)
    inverse = np.linalg.inv(h @ q @ h.T + r)
    gain, back = q @ h.T @ inverse, f.T @ h.T @ inverse
    kept = np.eye(SIDE) - gain @ h
    whole = [kept @ f, y @ gain.T, kept @ q, y @ back.T, back @ h @ f]
    shapes = [(n, SIDE, SIDE), (n, SIDE), (n, SIDE, SIDE), (n, SIDE), (n, SIDE, SIDE)]
    parts = [np.array(np.broadcast_to(part, shape)) for part, shape in zip(whole, shapes, strict=True)]
    for part, first in zip(parts, (0, means[0], covariances[0], 0, 0), strict=True):
        part[0] = first
    return parts, np.stack(means), np.stack(covariances)


def allowed(means, covariances):
    """Return the largest error of a filter, a contraction: it forgets roundings of earlier steps.

    A combination solves two systems of SIDE unknowns.
    """
    return 1000 * SIDE * EPS * max(np.max(abs(means)), np.max(abs(covariances)))


class TestKalman:
    methods = METHODS

    @pytest.mark.parametrize("n", [1, 2, 9, 60])
    def test_filter(self, backend, run, method, rng, n):
        """The means and covariances of a filter in parallel, against the textbook's filter."""
        parts, means, covariances = observed(rng, n)
        found = run(parprims.scan, Gaussian(*map(backend.asarray, parts)), filtering, axis=0, method=method)
        assert type(found) is Gaussian
        compare(backend, (found.b, found.c), (means, covariances), allowed(means, covariances))

    @pytest.mark.parametrize("by", ["offsets", "ids"])
    def test_several_series(self, backend, run, method, rng, by):
        """Filters of several series of unequal length side by side, some of them empty."""
        lengths = np.array([5, 0, 1, 17, 2])
        of_parts, of_means, of_covariances = zip(*[observed(rng, n) for n in lengths if n], strict=True)
        parts = [np.concatenate(part) for part in zip(*of_parts, strict=True)]
        means, covariances = np.concatenate(of_means), np.concatenate(of_covariances)
        order, ids = np.arange(lengths.sum()), np.repeat(np.arange(len(lengths)), lengths)
        options = {"offsets": backend.asarray(np.concatenate([[0], np.cumsum(lengths)]))}
        if by == "ids":  # steps of all series in any order, but in time for each series
            order = np.argsort(rng.permutation(ids), kind="stable").argsort(kind="stable")
            ids = ids[order]
            options = {"segment_ids": backend.asarray(ids), "num_segments": len(lengths)}
        x = Gaussian(*[backend.asarray(part[order]) for part in parts])
        found = run(parprims.scan, x, filtering, axis=0, method=method, **options)
        compare(backend, (found.b, found.c), (means[order], covariances[order]), allowed(means, covariances))


class TestStructures:
    def test_of_every_kind(self, backend):
        """The result has the structure of the input, and the operator gets elements of this structure."""
        x, y = backend.asarray(np.arange(1, 6)), backend.asarray(np.arange(10).reshape(5, 2))
        expected = np.cumsum(np.arange(1, 6)), np.cumsum(np.arange(10).reshape(5, 2), axis=0)

        class Pair(NamedTuple):
            x: Any
            y: Any

        for make, parts in (
            (lambda x, y: [x, y], lambda t: t),
            (lambda x, y: (x, [y, None]), lambda t: (t[0], t[1][0])),
            (lambda x, y: {"y": y, "x": x}, lambda t: (t["x"], t["y"])),
            (lambda x, y: Pair(x, {"a": y}), lambda t: (t.x, t.y["a"])),
            (lambda x, y: [None, (x, [[y]])], lambda t: (t[1][0], t[1][1][0][0])),
        ):
            tree = make(x, y)
            seen = []

            def added(earlier, later, make=make, parts=parts, seen=seen):
                seen.append(type(earlier))
                return make(*(p + q for p, q in zip(parts(earlier), parts(later), strict=True)))

            for function, at in ((parprims.scan, slice(None)), (parprims.reduce, -1)):
                found = function(tree, added, axis=0)
                assert type(found) is type(tree)
                compare(backend, tuple(parts(found)), tuple(one[at] for one in expected))
            assert set(seen) == {type(tree)}

    @pytest.mark.parametrize("library", ["jax.tree_util", "torch.utils._pytree"])
    def test_registered_dataclasses(self, backend, library):
        registry = pytest.importorskip(library)

        @dataclasses.dataclass
        class Line:
            slope: Any
            offset: Any

        if library == "jax.tree_util":
            registry.register_dataclass(Line, data_fields=["slope", "offset"], meta_fields=[])
        else:
            registry.register_dataclass(Line)
        rng = np.random.default_rng(3)
        a, b = rng.integers(-1, 2, (9, 1)), rng.integers(-3, 4, (9, 4))
        x = Line(backend.asarray(a), [backend.asarray(b)])

        def composed(p, q):
            return Line(p.slope * q.slope, [q.slope * p.offset[0] + q.offset[0]])

        slope, offset = parprims.scan((np.broadcast_to(a, b.shape).copy(), b), "affine", axis=0, method="array")
        found = parprims.scan(x, composed, axis=0)
        assert type(found) is Line
        compare(backend, (found.slope, found.offset[0]), (slope[:, :1], offset))
        start = Line(1, [backend.asarray(b[0])])
        total = parprims.reduce(x, composed, axis=0, initial=start)
        compare(backend, total.offset[0], slope[-1] * b[0] + offset[-1])

    def test_no_registered_class(self, backend):
        @dataclasses.dataclass
        class Unknown:
            x: Any

        with pytest.raises(TypeError, match=r"^x must be an array, got Unknown"):
            parprims.scan(Unknown(backend.asarray(np.ones(3))), lambda e, _: e, axis=0)
        with pytest.raises(TypeError, match=r"^x\['a'\]\[1\] must be an array, got Unknown"):
            parprims.scan({"a": [backend.asarray(np.ones(3)), Unknown(3)]}, lambda e, _: e, axis=0)


class TestErrors:
    """Wrong trees get errors that name the leaf."""

    @pytest.fixture(params=[parprims.scan, parprims.reduce], ids=["scan", "reduce"])
    def function(self, request):
        return functools.partial(request.param, axis=0)

    def test_unequal_lengths_without_an_axis(self, backend):
        x = backend.asarray(np.ones(3)), backend.asarray(np.arange(2))
        words = r"^x must be arrays of equal shape, or of equal length along a given axis, got \(2,\) and \(3,\)$"
        with pytest.raises(ValueError, match=words):
            parprims.reduce(x, "argmax")

    def test_of_shapes(self, backend, function):
        x = {"a": backend.asarray(np.ones((3, 2, 2))), "b": [backend.asarray(np.ones((4, 2)))]}
        words = r"equal length along axis 0: x\['a'\] has shape \(3, 2, 2\), x\['b'\]\[0\] has \(4, 2\)"
        with pytest.raises(ValueError, match=words):
            function(x, lambda e, _: e)
        for axis in (-1, -2):
            with pytest.raises(ValueError, match=r"axis must count from the front: x\['b'\]\[0\] has 2 dimensions"):
                function(x, lambda e, _: e, axis=axis)
        with pytest.raises(IndexError, match=r"axis of x\['b'\]\[0\]: 2 is out of range"):
            function(x, lambda e, _: e, axis=2)
        scalar = {"a": x["a"], "b": backend.asarray(np.ones(()))}
        with pytest.raises(IndexError, match=r"axis of x\['b'\]: 0 is out of range"):
            function(scalar, lambda e, _: e)

    def test_of_results(self, backend, function):
        x = {"a": backend.asarray(np.ones((3, 2, 2))), "b": [backend.asarray(np.ones((3, 2)))]}
        for wrong, error, words in (
            (
                lambda e, _: {**e, "a": e["a"][:, :1, :]},
                ValueError,
                r"returned shape \(\d, 1, 2\) for component \['a'\]",
            ),
            (lambda e, _: {**e, "b": [3]}, TypeError, r"returned int for component \['b'\]\[0\], not an array"),
            (lambda e, _: {**e, "b": tuple(e["b"])}, TypeError, r"returned .*\(\*,\)\} for elements .*\[\*\]\}"),
            (lambda e, _: e["a"], TypeError, r"op tried returned \* for elements"),
            (lambda e, _: None, TypeError, r"op tried returned .* for elements"),  # noqa: ARG005
        ):
            with pytest.raises(error, match=words):
                function(x, parprims.Operator(wrong, name="tried"))

    def test_of_options(self, backend, function):
        x = {"a": backend.asarray(np.ones((3, 2, 2))), "b": [backend.asarray(np.ones((3, 2)))]}
        long = backend.asarray(np.ones(5))
        with pytest.raises(ValueError, match=r"initial\['b'\]\[0\] must broadcast to shape \(2,\)"):
            function(x, lambda e, _: e, initial={"a": 0.0, "b": [long]})
        with pytest.raises(ValueError, match="initial must have 2 entries"):
            function(x, lambda e, _: e, initial=(1, 2, 3))
        with pytest.raises(parprims.MethodRefused, match="method 'kernel' refused"):
            function((x["a"], x["b"][0]), lambda e, _: (e[0][::-1, ...], e[1]), method="kernel")

    def test_changes_in_place(self, backend, function):
        if backend.family == "jax":
            pytest.skip("JAX's arrays never change")

        def changed(earlier, later):
            earlier["a"][...] = later["a"]
            return earlier

        x = {"a": backend.asarray(np.ones((3, 2, 2))), "b": backend.asarray(np.ones((3, 2)))}
        with pytest.raises(TypeError, match="op changed changes its argument in place"):
            function(x, changed)

    def test_reduction_along_several_axes(self, backend):
        x = backend.asarray(np.ones((3, 2, 2))), backend.asarray(np.ones((3, 2)))
        for axis in (None, (0, 1)):
            with pytest.raises((TypeError, ValueError), match="axis"):
                parprims.reduce(x, lambda e, _: e, axis=axis)
        with pytest.raises(ValueError, match=r"x is empty along axis \(0,\) and op .* has no identity"):
            parprims.reduce((x[0][:0, ...], x[1][:0, ...]), lambda e, _: e, axis=0)


class TestAssociativity:
    def test_of_trees(self, backend, rng):
        x = on(backend, maps(rng, 12))
        assert parprims.check_associative(product, x)

        def wrong(earlier, later):
            return {**product(earlier, later), "offset": earlier["offset"] - later["offset"]}

        with pytest.raises(ValueError, match="op wrong is not associative"):
            parprims.check_associative(wrong, x)
        with pytest.raises(ValueError, match=r"^examples must be arrays of .* along axis 0: .*, examples\['b'\] has"):
            parprims.check_associative(wrong, {"a": x["matrix"], "b": x["offset"][:3, ...]})

    def test_methods_of_trees(self, backend, rng):
        x = on(backend, maps(rng, 12))
        found = parprims.methods(parprims.scan, x, product, axis=0)
        assert found["array"] is None
        assert backend.family == "jax" or found["native"] is not None

        def wrong(_earlier, _later):
            raise RuntimeError("never")

        assert "never" in str(parprims.methods(parprims.scan, x, wrong, axis=0)["array"])
