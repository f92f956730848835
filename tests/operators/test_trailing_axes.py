"""Flags, vectors and matrices side by side, also where their axes happen to have equal lengths.

Arrays broadcast from their last axes. So flags of shape (n,) beside matrices of shape (n, k, k) are the flags of their
columns if n is k. A call has the result of the loop below, or raises an error; it never has another result.
"""

import itertools

import numpy as np
import pytest
from array_api_compat import array_namespace

import parprims
from tests.support.contract import compare

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 16)
SIDES = (1, 2, 3, 4)
METHODS = ("auto", "kernel", "native", "array")
FORMS = ("scan", "exclusive scan", "reverse scan", "reduce")


def elements(rng, n, k):
    """Return flags, numbers, vectors and matrices of small integers, exact in float64."""
    drawn = (rng.integers(-1, 2, (n, *trailing)).astype(float) for trailing in ((), (k,), (k, k)))
    return rng.random(n) < 0.4, *drawn


def loop(form, flags, x, combine, identity):
    """Return the scan, or its last element, of segments that begin at flags: one element after another."""
    reverse = form == "reverse scan"
    flags, x = (one[::-1] if reverse else one for one in (flags, x))
    total, before, results = None, identity, []
    for flag, one in zip(flags, x, strict=True):
        before = identity if flag or total is None else total
        total = one if flag or total is None else combine(total, one)
        results.append(before if form == "exclusive scan" else total)
    if form == "reduce":
        return results[-1]
    return np.stack(results[::-1] if reverse else results)


def called(run, form, x, op, **options):
    if form == "reduce":
        return run(parprims.reduce, x, op, axis=0, **options)
    flags = {"exclusive": form == "exclusive scan", "reverse": form == "reverse scan"}
    return run(parprims.scan, x, op, axis=0, **flags, **options)


class TestFlags:
    """Flags of `segmented` have the axis of the call."""

    methods = METHODS

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("k", SIDES)
    @pytest.mark.parametrize("n", LENGTHS)
    def test_beside_elements_of_one_shape(self, backend, run, method, rng, n, k, form):
        flags, _, vectors, matrices = elements(rng, n, k)
        product = parprims.Operator(lambda p, q: p @ q)
        for x, op, combine, identity in (
            (vectors, "add", np.add, np.zeros(k)),
            (matrices, "maximum", np.maximum, np.full((k, k), -np.inf)),
            (matrices, product, np.matmul, None),
        ):
            if identity is None and form == "exclusive scan":
                continue
            given = backend.asarray(flags), backend.asarray(x)
            _, found = called(run, form, given, parprims.segmented(op), method=method)
            compare(backend, found, loop(form, flags, x, combine, identity), n * k**n * 2.0**-52 if k > 1 else 0)

    @pytest.mark.parametrize("axis", [0, 1, 2])
    @pytest.mark.parametrize("shape", [(2, 2), (3, 3, 3), (2, 2, 3), (3, 2, 2), (2, 3, 2), (2, 3, 4)])
    def test_flags_are_placed_or_refused(self, backend, run, method, rng, shape, axis):
        """Flags with fewer axes mean the flags with all axes that have the axis of the call, if there are only one."""
        if axis >= len(shape):
            pytest.skip("there is no such axis")
        x = backend.asarray(rng.integers(-9, 10, shape))
        for count in range(1, len(shape)):
            places = {(at, tuple(shape[at : at + count])) for at in (0, len(shape) - count) if at <= axis < at + count}
            for lengths in {tuple(shape[at : at + count]) for at in range(len(shape) - count + 1)}:
                flags = rng.random(lengths) < 0.5
                fitting = [at for at, one in places if one == lengths]
                given = backend.asarray(flags), x
                if len(fitting) != 1:
                    with pytest.raises(ValueError, match=r"^x\[0\], the flags of op segmented\(add\), must broadcast"):
                        parprims.scan(given, parprims.segmented("add"), axis=axis, method=method)
                    continue
                whole = flags.reshape((1,) * fitting[0] + lengths + (1,) * (len(shape) - fitting[0] - count))
                whole = backend.asarray(np.ascontiguousarray(np.broadcast_to(whole, shape)))
                expected = parprims.scan((whole, x), parprims.segmented("add"), axis=axis, method="array")[1]
                found = run(parprims.scan, given, parprims.segmented("add"), axis=axis, method=method)[1]
                compare(backend, found, backend.to_numpy(expected))


def choice_of(columns):
    """Return the operator that starts anew at flags; ``columns`` appends axes to the flags."""

    def choice(earlier, later):
        (flag, *values), (starts, *others) = earlier, later
        xp = array_namespace(starts)
        joined = [xp.where(columns(starts, y), y, x + y) for x, y in zip(values, others, strict=True)]
        return flag | starts, *joined

    return choice


def weighted_of(columns):
    """Return the operator that scales by the number, the first component, and adds."""

    def weighted(earlier, later):
        (number, *values), (factor, *others) = earlier, later
        return number * factor, *(columns(factor, y) * x + y for x, y in zip(values, others, strict=True))

    return weighted


def written(x, like):
    """Append axes of length 1, as the page "Operators and tracing" says."""
    return x[(..., *(None,) * (like.ndim - x.ndim))]


def forgotten(x, like):
    """Forget the axes: arrays then broadcast from their last axes."""
    del like
    return x


RANKS = [(1,), (2,), (1, 2), (2, 1), (0, 2), (0, 1, 2)]
"""The numbers of trailing axes of the components behind the first, which has none."""


class TestOwnOperators:
    """Operators that combine components of several shapes."""

    methods = METHODS

    @pytest.mark.parametrize("op_of", [choice_of, weighted_of])
    @pytest.mark.parametrize("ranks", RANKS)
    @pytest.mark.parametrize("k", SIDES)
    @pytest.mark.parametrize("n", LENGTHS)
    def test_axes_are_written(self, backend, run, method, rng, n, k, ranks, op_of):
        flags, *drawn = elements(rng, n, k)
        arrays = (flags if op_of is choice_of else drawn[0], *(drawn[rank] for rank in ranks))
        for form in ("scan", "reduce"):
            found = called(run, form, tuple(map(backend.asarray, arrays)), op_of(written), method=method)
            compare(backend, found, self.in_order(form, arrays, op_of))

    @pytest.mark.parametrize("op_of", [choice_of, weighted_of])
    @pytest.mark.parametrize("ranks", RANKS)
    @pytest.mark.parametrize("k", SIDES)
    @pytest.mark.parametrize("n", LENGTHS)
    def test_axes_are_left_out(self, backend, method, rng, n, k, ranks, op_of):
        """No length turns the mistake into a result, neither n equal to k nor an axis of length 1."""
        flags, *drawn = elements(rng, n, k)
        arrays = (flags if op_of is choice_of else drawn[0], *(drawn[rank] for rank in ranks))
        given, op = tuple(map(backend.asarray, arrays)), op_of(forgotten)
        offsets = backend.asarray(np.array([0, n // 2, n]))
        ids = backend.asarray(np.sort(rng.integers(0, 2, n)))
        start = {"initial": (False, *(0.0 for _ in ranks)) if op_of is choice_of else (1.0, *(0.0 for _ in ranks))}
        calls = [
            lambda: parprims.scan(given, op, axis=0, method=method),
            lambda: parprims.reduce(given, op, axis=0, method=method),
            lambda: parprims.scan(given, op, axis=0, method=method, **start),
            lambda: parprims.scan(given, op, axis=0, offsets=offsets, method=method),
            lambda: parprims.reduce(given, op, axis=0, offsets=offsets, method=method, **start),
            lambda: parprims.segment_reduce(given, ids, 2, op, method=method, **start),
            lambda: parprims.scan(given, op, axis=0, segment_ids=ids, num_segments=2, method=method),
        ]
        if n > 2:
            calls.append(lambda: parprims.check_associative(op, given))
        for call in calls:
            with pytest.raises((ValueError, TypeError, RuntimeError)):  # the libraries raise different errors
                call()

    @staticmethod
    def in_order(form, arrays, op_of):
        """Return the scan, or its last element: one element after another."""
        op, total, results = op_of(written), None, []
        for begin in range(len(arrays[0])):
            one = tuple(x[begin : begin + 1] for x in arrays)
            total = one if total is None else op(total, one)
            results.append(total)
        if form == "reduce":
            return tuple(x[0] for x in total)
        return tuple(np.concatenate(column) for column in zip(*results, strict=True))


def test_an_element_of_one_array(backend, rng):
    """An operator that forgets an axis of a sum is an error, whatever the lengths."""
    for n, k in itertools.product((2, 3, 4, 6), (2, 3)):
        x = backend.asarray(rng.standard_normal((n, k)))
        for method in ("auto", "array"):
            with pytest.raises((ValueError, TypeError, RuntimeError)):
                parprims.reduce(x, lambda p, q: p + q * array_namespace(q).sum(abs(q), axis=-1), axis=0, method=method)
