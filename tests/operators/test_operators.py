"""The built-in operators, segmented and check_associative, against their definitions."""

import copy
import itertools
import pathlib
import pickle
import re

import array_api_compat
import numpy as np
import pytest

import parprims
from parprims._operators.operator import BUILT_IN, as_operator
from tests.support.contract import compare, eps, random

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
SINGLE = {
    "add": (*INTEGERS, *FLOATS, "complex64", "complex128"),
    "multiply": (*INTEGERS, *FLOATS, "complex64", "complex128"),
    "maximum": (*INTEGERS, *FLOATS),
    "minimum": (*INTEGERS, *FLOATS),
    "logical_and": ("bool",),
    "logical_or": ("bool",),
    "bitwise_and": ("bool", *INTEGERS),
    "bitwise_or": ("bool", *INTEGERS),
    "bitwise_xor": ("bool", *INTEGERS),
    "logaddexp": ("float32", "float64"),
}


def extremes(rng, dtype):
    """Return random elements of a dtype and its extreme ones."""
    x = random(rng, (20,), dtype)
    if x.dtype.kind in "iu":
        info = np.iinfo(dtype)
        x[:3] = info.min, info.max, 0
    elif x.dtype.kind in "fV":
        x[:4] = np.inf, -np.inf, 0, np.nan
    return x


def combine(backend, name, earlier, later):
    """Combine two elements given as NumPy arrays; return a tuple of them."""
    op = BUILT_IN[name]
    return op(tuple(backend.asarray(x) for x in earlier), tuple(backend.asarray(x) for x in later))


@pytest.mark.parametrize("name", SINGLE)
def test_identity_changes_nothing(backend, rng, subtests, name):
    for dtype in SINGLE[name]:
        with subtests.test(dtype=dtype):
            if not backend.supports(dtype):
                pytest.skip(f"{backend.name} has no {dtype} arithmetic")
            x = extremes(rng, dtype)
            (value,) = BUILT_IN[name].identity(dtype)
            identity = np.full(x.shape, value, dtype=x.dtype)
            for earlier, later in (((identity,), (x,)), ((x,), (identity,))):
                compare(backend, combine(backend, name, earlier, later), (x,))


@pytest.mark.parametrize("name", SINGLE)
def test_combines_as_numpy_does(backend, rng, subtests, name):
    for dtype in SINGLE[name]:
        with subtests.test(dtype=dtype):
            if not backend.supports(dtype):
                pytest.skip(f"{backend.name} has no {dtype} arithmetic")
            x, y = extremes(rng, dtype), extremes(rng, dtype)[::-1].copy()
            (result,) = combine(backend, name, (x,), (y,))
            wide = {"f": np.float64, "V": np.float64, "c": np.complex128}.get(x.dtype.kind, x.dtype)
            expected = getattr(np, name)(x.astype(wide), y.astype(wide))
            if name in ("add", "multiply", "logaddexp") and x.dtype.kind in "fVc":
                # One rounding; three in a complex product, and a few in a logarithm, which is off by that absolutely.
                bound = 4 * eps(dtype) * (np.nan_to_num(abs(expected), posinf=0) + 1)
            else:
                bound = 0
            compare(backend, result, expected, bound)
            assert result.dtype == backend.asarray(x).dtype


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("affine", ("float64", "float64")),
        ("affine", ("int32", "int32")),
        ("argmax", ("float32", "int64")),
        ("argmin", ("float64", "int32")),
        ("argmax", ("int16", "int64")),
        ("argmin", ("uint8", "uint8")),
        ("welford", ("float64", "float64", "float64")),
    ],
)
def test_identity_of_tuples_changes_nothing(backend, rng, name, dtypes):
    xs = tuple(abs(random(rng, (9,), dtype)) for dtype in dtypes)
    if name.startswith("arg") and xs[0].dtype.kind == "f":
        xs[0][:3] = np.inf, -np.inf, np.nan
    identity = tuple(
        np.full(x.shape, value, dtype=x.dtype) for x, value in zip(xs, BUILT_IN[name].identity(*dtypes), strict=True)
    )
    for earlier, later in ((identity, xs), (xs, identity)):
        compare(backend, combine(backend, name, earlier, later), xs)


def test_affine_applies_the_earlier_map_first(backend, rng):
    a, b, c, d, x = random(rng, (5, 30), "int64")
    slope, offset = combine(backend, "affine", (a, b), (c, d))
    compare(backend, slope * backend.asarray(x) + offset, c * (a * x + b) + d)


@pytest.mark.parametrize(("name", "reference"), [("argmax", np.argmax), ("argmin", np.argmin)])
def test_extremum_of_pairs(backend, name, reference):
    # Every pair of these, at every pair of places: the winning value, the smaller index among equals, NaN first.
    values = np.array([1.0, 2.0, -0.0, 0.0, np.inf, -np.inf, np.nan])
    x, y = (grid.reshape(-1) for grid in np.meshgrid(values, values))
    for first, second in ((4, 7), (7, 4)):
        places = np.full(x.shape, first), np.full(x.shape, second)
        value, index = combine(backend, name, (x, places[0]), (y, places[1]))
        pairs = np.stack([x, y] if first < second else [y, x])
        winner = reference(pairs, axis=0)
        compare(backend, value, np.take_along_axis(pairs, winner[None], axis=0)[0])
        compare(backend, index, np.where(winner == 0, min(first, second), max(first, second)))


def test_extremum_of_integers(backend, rng):
    x = random(rng, (40,), "int32")
    for name, reference in (("argmax", np.argmax), ("argmin", np.argmin)):
        value, index = parprims.reduce((backend.asarray(x), backend.asarray(np.arange(40))), name)
        compare(backend, index, reference(x))
        compare(backend, value, x[reference(x)])


@pytest.mark.optimised
def test_welford_joins_samples(backend, rng, subtests):
    for sizes in ((5, 7), (1, 1), (1, 200), (0, 3), (3, 0), (0, 0)):
        with subtests.test(sizes=sizes):
            samples = tuple(50 + random(rng, (size,), "float64") for size in sizes)
            elements = tuple(
                tuple(np.asarray([value]) for value in (float(x.size), x.mean(), ((x - x.mean()) ** 2).sum()))
                if x.size
                else (np.zeros(1),) * 3
                for x in samples
            )
            result = combine(backend, "welford", *elements)
            joined = np.concatenate(samples).astype(np.longdouble)
            if not joined.size:
                compare(backend, result, (np.zeros(1),) * 3)
                continue
            mean = joined.mean()
            expected = tuple(np.asarray([value]) for value in (joined.size, mean, ((joined - mean) ** 2).sum()))
            # The inputs' means are off by a few units of 54, which enters m2 times the difference of the means.
            compare(backend, result, expected, (0, 8 * eps("float64") * 54, 1e-12 * joined.size))


def test_segmented_starts_anew(backend, rng, subtests):
    starts = rng.random(50) < 0.2
    x, y = random(rng, (2, 50), "int64")
    for op, xs, step in (
        ("add", (x,), lambda e, later: (e[0] + later[0],)),
        ("affine", (x, y), lambda e, later: (later[0] * e[0], later[0] * e[1] + later[1])),
    ):
        with subtests.test(op=op):
            expected = [tuple(one[0] for one in xs)]
            for index in range(1, 50):
                here = tuple(one[index] for one in xs)
                expected.append(here if starts[index] else step(expected[-1], here))
            arrays = tuple(backend.asarray(one) for one in (starts, *xs))
            flags, *results = parprims.scan(arrays, parprims.segmented(op))
            compare(backend, flags, np.logical_or.accumulate(starts))
            for index, result in enumerate(results):
                compare(backend, result, np.array([one[index] for one in expected]))
            total = parprims.reduce(arrays, parprims.segmented(op))
            compare(backend, total[1], expected[-1][0])


def test_segmented_identity(backend):
    flags, x = backend.asarray(np.array([False, True])), backend.asarray(np.array([3.0, 4.0]))
    start, before = parprims.scan((flags, x), parprims.segmented("maximum"), exclusive=True)
    compare(backend, start, np.array([False, False]))
    compare(backend, before, np.array([-np.inf, -np.inf]))
    keep_first = parprims.segmented(lambda earlier, _: earlier)
    assert keep_first.identity("bool", "float64") is None
    with pytest.raises(ValueError, match="initial"):
        parprims.scan((flags, x), keep_first, exclusive=True)


def test_segmented_of_tuples_counts_components():
    assert parprims.segmented("add").components == 2
    assert parprims.segmented("affine").components == 3
    assert parprims.segmented(parprims.segmented("add")).components == 3


@pytest.mark.parametrize("given", [{"identity": (0, 0, 0)}, {"components": 3}, {}, {"identity": lambda *_: (0, 0, 0)}])
def test_segmented_of_three_components(backend, given):
    """Of a sum of three numbers, whose count the identity tells, or the caller, or the elements."""
    op = parprims.segmented(
        parprims.Operator(lambda x, y: tuple(one + other for one, other in zip(x, y, strict=True)), **given)
    )
    flags, x = np.array([True, False, True, False]), np.arange(4)
    element = tuple(backend.asarray(one) for one in (flags, x, 2 * x, 3 * x))
    for found, factor in zip(parprims.scan(element, op)[1:], (1, 2, 3), strict=True):
        np.testing.assert_array_equal(backend.to_numpy(found), factor * np.array([0, 1, 2, 5]))
    if "components" in given or isinstance(given.get("identity"), tuple):
        with pytest.raises(ValueError, match=r"works on tuples of 4 arrays, x has 2"):
            parprims.scan(element[:2], op)
    with pytest.raises(ValueError, match=r"works on (flags and elements|tuples of 4 arrays), x has"):
        parprims.scan(element[:1], op)


@pytest.mark.parametrize("name", [*SINGLE, "affine", "argmax", "argmin", "welford"])
def test_built_in_is_associative(backend, rng, name):
    dtypes = {
        "affine": ("float64", "float64"),
        "argmax": ("float64", "int64"),
        "argmin": ("float64", "int64"),
        "welford": ("float64", "float64", "float64"),
    }.get(name, (SINGLE.get(name, ("",))[-1],))
    if not all(backend.supports(dtype) for dtype in dtypes):
        pytest.skip(f"{backend.name} has no {dtypes[0]} arithmetic")
    xs = tuple(random(rng, (30, 2), dtype) for dtype in dtypes)
    if name == "welford":
        xs = (np.floor(abs(3 * xs[0])), xs[1], abs(xs[2]))
        xs = (xs[0], xs[1] * (xs[0] > 0), xs[2] * (xs[0] > 1))
    arrays = tuple(backend.asarray(x) for x in xs)
    assert parprims.check_associative(name, arrays if len(arrays) > 1 else arrays[0])


def test_check_associative_finds_the_place(backend):
    x = backend.asarray(np.array([0.0, 0.0, 0.0, 5.0, 6.0]))
    with pytest.raises(ValueError, match=r"not associative: examples 1 to 3 give -5\.0 .* and 5\.0 from the right"):
        parprims.check_associative(lambda earlier, later: earlier - later, x)
    average = parprims.Operator(lambda earlier, later: (earlier + later) / 2, name="average")
    with pytest.raises(ValueError, match="op average is not associative"):
        parprims.check_associative(average, x)


def test_check_associative_of_components(backend):
    x = backend.asarray(np.array([1, 2, 3, 4]))

    def second_is_wrong(earlier, later):
        return earlier[0] + later[0], earlier[1] - later[1]

    with pytest.raises(ValueError, match="not associative: examples 0 to 2"):
        parprims.check_associative(second_is_wrong, (x, x))
    assert parprims.check_associative(lambda earlier, _: earlier, x)


def test_check_associative_checks_the_identity(backend):
    x = backend.asarray(np.array([1.0, 2.0, 3.0]))
    wrong = parprims.Operator(lambda e, later: e + later, identity=1, name="sum")
    with pytest.raises(ValueError, match=r"identity of op sum turns example 0, 1\.0, into 2\.0"):
        parprims.check_associative(wrong, x)
    # An identity from the left only is none.
    keep_last = parprims.Operator(lambda _, later: later, identity=0, name="keep_last")
    with pytest.raises(ValueError, match="identity of op keep_last"):
        parprims.check_associative(keep_last, x)


@pytest.mark.optimised
def test_check_associative_tolerance(backend, rng):
    x = backend.asarray(rng.random(50).astype(np.float32))
    rough = parprims.Operator(lambda e, later: (e + later) * (1 + 1e-4), name="rough")
    with pytest.raises(ValueError, match="rough"):
        parprims.check_associative(rough, x)
    assert parprims.check_associative(rough, x, rtol=1e-2)


def test_check_associative_passes_infinities(backend, rng):
    x = random(rng, (40,), "float64")
    x[3], x[20] = np.inf, np.nan
    for op in ("add", "multiply"):
        assert parprims.check_associative(op, backend.asarray(x))


def test_check_associative_bad_input(backend):
    x = backend.asarray(np.array([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="examples must hold at least 3"):
        parprims.check_associative("add", x[:2])
    with pytest.raises(ValueError, match="examples must hold at least 3"):
        parprims.check_associative("add", backend.asarray(np.asarray(1.0)))
    with pytest.raises(TypeError, match=r"examples\[0\] must be an array"):
        parprims.check_associative("add", [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="op affine works on tuples of 2"):
        parprims.check_associative("affine", x)


def test_operator_meant():
    assert as_operator("add") is BUILT_IN["add"]
    op = parprims.Operator(max)
    assert as_operator(op) is op
    assert as_operator(np.add).name == "add"
    assert as_operator(np.add) is not BUILT_IN["add"]
    assert repr(parprims.Operator(lambda e, _: e, name="keep_first")) == "Operator(keep_first)"
    with pytest.raises(TypeError, match="combine must be callable"):
        parprims.Operator("add")
    with pytest.raises(ValueError, match="op must be one of add, "):
        as_operator("plus")
    with pytest.raises(TypeError, match="op must be a name"):
        as_operator(3)


def test_operator_keeps_components_and_dtypes(backend):
    x = backend.asarray(np.array([1.0, 2.0, 3.0]))
    with pytest.raises(TypeError, match="op pair returned 2 components for elements of 1"):
        parprims.scan(x, parprims.Operator(lambda e, later: (e, later), name="pair"))
    with pytest.raises(TypeError, match="op less returned bool for component 0, which has dtype float64"):
        parprims.scan(x, parprims.Operator(lambda e, later: e < later, name="less"), method="array")


def test_check_associative_tests_commutativity(backend):
    x = backend.asarray(np.array([1.0, 1.0, 2.0, 2.0]))
    keep_last = parprims.Operator(lambda _, later: later, commutative=True, name="keep_last")
    with pytest.raises(ValueError, match=r"keep_last is declared commutative, but examples 1 and 2 give 2\.0 .* 1\.0"):
        parprims.check_associative(keep_last, x)
    assert parprims.check_associative(parprims.Operator(lambda e, later: e + later, commutative=True), x)


def by_segment(flags, x, start, op, reverse=False):
    """Return the exclusive scan of every segment, begun with a number, by a loop."""
    y, order = np.empty_like(x), range(len(x))
    for index in reversed(order) if reverse else order:
        if flags[index] or index == (len(x) - 1 if reverse else 0):
            total = start
        y[index], total = total, op(total, x[index])
    return y


class TestSegmentsExclusive:
    """An exclusive scan begins anew at every flag, as scans by key do."""

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("initial", [None, 5])
    def test_against_a_loop(self, backend, rng, reverse, initial):
        for method in ("array", "native", "kernel", "auto"):
            if (method == "native" and not backend.name.startswith("jax")) or (method == "kernel" and not backend.cuda):
                continue
            for n in (0, 1, 2, 41) if not backend.name.startswith("jax") else (6,):
                flags, x = rng.random(n) < 0.3, rng.integers(-9, 9, n)
                arrays = backend.asarray(flags), backend.asarray(x)
                start = None if initial is None else (False, initial)
                seen, y = parprims.scan(
                    arrays, parprims.segmented("add"), exclusive=True, reverse=reverse, initial=start, method=method
                )
                compare(backend, y, by_segment(flags, x, initial or 0, np.add, reverse))
                met = np.logical_or.accumulate(flags[::-1])[::-1] if reverse else np.logical_or.accumulate(flags)
                before = np.r_[met[1:], [False] * (n > 0)] if reverse else np.r_[[False] * (n > 0), met[:-1]]
                compare(backend, seen, before.astype(bool)[:n])

    def test_of_affine_maps_along_an_axis(self, backend, rng):
        n = 6 if backend.name.startswith("jax") else 20
        flags, a, b = rng.random((n, 3)) < 0.3, rng.integers(-2, 3, (n, 3)), rng.integers(-9, 9, (n, 3))
        arrays = tuple(map(backend.asarray, (flags, a, b)))
        for start in (None, (2, 3)):
            initial = None if start is None else (True, *start)
            seen, *maps = parprims.scan(arrays, parprims.segmented("affine"), axis=0, exclusive=True, initial=initial)
            maps = [backend.to_numpy(one) for one in maps]
            for column in range(3):
                total = start or (1, 0)
                for row in range(n):
                    if flags[row, column]:
                        total = start or (1, 0)
                    assert tuple(int(one[row, column]) for one in maps) == total
                    total = a[row, column] * total[0], a[row, column] * total[1] + b[row, column]
            assert bool(seen[0, 0]) is (start is not None)

    def test_of_segments_of_segments(self, backend, rng):
        n = 6 if backend.name.startswith("jax") else 40
        outer, inner, x = rng.random(n) < 0.1, rng.random(n) < 0.3, rng.integers(-9, 9, n)
        op = parprims.segmented(parprims.segmented("add"))
        for start in (None, 4):
            initial = None if start is None else (False, False, start)
            arrays = tuple(map(backend.asarray, (outer, inner, x)))
            first, second, y = parprims.scan(arrays, op, exclusive=True, initial=initial)
            compare(backend, y, by_segment(outer | inner, x, start or 0, np.add))
            compare(backend, first, np.r_[False, np.logical_or.accumulate(outer)[:-1]])
            compare(backend, second, by_segment(outer, inner, False, np.logical_or))

    def test_without_an_identity(self, backend):
        flags, x = backend.asarray(np.array([False, True, False])), backend.asarray(np.array([1, 2, 3]))
        op = parprims.segmented(lambda e, later: e * 10 + later)
        with pytest.raises(ValueError, match="initial"):
            parprims.scan((flags, x), op, exclusive=True)

    def test_inclusive_begins_with_initial_once(self, backend):
        flags, x = backend.asarray(np.array([False, False, True, False])), backend.asarray(np.array([1, 2, 3, 4]))
        seen, y = parprims.scan((flags, x), parprims.segmented("add"), initial=(False, 10))
        compare(backend, (seen, y), (np.array([False, False, True, True]), np.array([11, 13, 3, 7])))

    def test_reverse_flags_stand_on_the_last_in_memory(self, backend):
        flags, x = backend.asarray(np.array([False, True, False, False])), backend.asarray(np.array([1, 2, 3, 4]))
        _, y = parprims.scan((flags, x), parprims.segmented("add"), reverse=True)
        compare(backend, y, np.array([3, 2, 7, 4]))


def test_flags_broadcast(backend, rng):
    flags, x = rng.random(6) < 0.3, rng.integers(-9, 9, (3, 6))
    op = parprims.segmented("add")
    wide = np.broadcast_to(flags, x.shape).copy(), x
    methods = ("array", "kernel") if backend.cuda else ("array",)
    for shape, method in itertools.product(((6,), (1, 6), (3, 6)), methods):
        given = backend.asarray(np.ascontiguousarray(np.broadcast_to(flags, shape))), backend.asarray(x)
        for _ in range(2):
            for options in ({}, {"exclusive": True, "reverse": True}):
                expected = parprims.scan(wide, op, axis=1, method="array", **options)
                compare(backend, parprims.scan(given, op, axis=1, method=method, **options), expected)
            result = parprims.reduce(given, op, axis=1, method=method)
            compare(backend, result, parprims.reduce(wide, op, axis=1, method="array"))
    rows = backend.asarray(np.array([[True], [False], [True]])), backend.asarray(x)
    compare(backend, parprims.reduce(rows, op, axis=0)[1], x[2])
    with pytest.raises(ValueError, match="equal shape"):
        parprims.scan((rows[0], rows[1]), parprims.Operator(lambda e, _: e, components=2))


def added(earlier, later):
    return earlier + later


class TestPickle:
    @pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda op: pickle.loads(pickle.dumps(op))])
    def test_operators(self, backend, again):
        for name, op in BUILT_IN.items():
            assert again(op) is BUILT_IN[name]
        own = parprims.Operator(added, identity=0, commutative=True, name="own", components=1)
        x = backend.asarray(np.arange(1, 9))
        flags = backend.asarray(np.arange(8) % 3 == 0)
        strict = backend.name not in ("numpy", "emulated", "cupy")  # their arrays are none for NumPy's functions
        for op in (parprims.Operator(added), parprims.Operator(added if strict else np.add, identity=0)):
            for method in ("array", "kernel") if backend.cuda else ("array",):
                compare(backend, parprims.scan(x, again(op), method=method), np.cumsum(np.arange(1, 9)))
        copied = again(own)
        assert (copied.name, copied.components, copied.commutative) == ("own", 1, True)
        assert copied.identity("int64") == (0,)
        for inner in ("add", parprims.Operator(added), parprims.segmented("add")):
            op = parprims.segmented(inner)
            components = (flags, flags, x) if op.flags == 2 else (flags, x)
            for method in ("array", "kernel") if backend.cuda else ("array",):
                expected = parprims.reduce(components, op, method=method)
                result = parprims.reduce(components, again(op), method=method)
                compare(backend, result, tuple(backend.to_numpy(one) for one in expected))

    def test_what_cannot(self):
        with pytest.raises((pickle.PicklingError, AttributeError)):
            pickle.dumps(parprims.Operator(lambda e, _: e))


@pytest.mark.parametrize(
    ("page", "name", "values", "expected"),
    [
        ("operators.md", "smallest_gap", lambda t: (t, t, np.full(4, np.inf)), (1.0, 9.0, 0.5)),
        ("notebooks/operators.md", "stretch", lambda t: (t, t, np.zeros(4)), (1.0, 9.0, 8.0)),
        ("notebooks/operators.md", "brackets", lambda t: (t - 4, t - 4), (2.5, -3.0)),
    ],
)
def test_examples_of_the_pages_run_on_every_library(backend, page, name, values, expected):
    """What a reader copies works on the arrays that the reader has, by every method."""
    text = (pathlib.Path(__file__).parents[2] / "docs" / page).read_text()
    function = re.search(rf"^def {name}\(.*?(?=\n\n\n|\n```)", text, re.DOTALL | re.MULTILINE)
    assert function is not None
    assert "array_namespace(" not in function[0] or "from array_api_compat import array_namespace\n" in text
    names = {"array_namespace": array_api_compat.array_namespace, "np": np}
    exec(function[0], names)
    arrays = tuple(map(backend.asarray, values(np.array([1.0, 4.0, 4.5, 9.0]))))
    found = parprims.methods(parprims.reduce, arrays, names[name])
    served = [one for one, reason in found.items() if reason is None or "prefer" in reason]
    assert "array" in served
    for method in ("auto", *served):
        compare(backend, parprims.reduce(arrays, names[name], method=method), expected)
