"""The built-in operators, segmented and check_associative, against their definitions."""

import copy
import itertools
import pickle

import numpy as np
import pytest

import parprims
from parprims import _harmless
from parprims._lasting import lasting_key
from parprims._operators import BUILT_IN, as_operator, nearest
from tests.contract import compare, eps, random

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


class TestSentences:
    """What is wrong with an operator is said of it, by name, before or instead of what a library makes of it."""

    def calls(self, backend, **way):
        x = backend.asarray(np.arange(1.0, 7.0))
        square = backend.asarray(np.ones((3, 3)))
        return {
            "scan": lambda op: parprims.scan(x, op, **way),
            "reduce": lambda op: parprims.reduce(x, op, **way),
            "map_reduce": lambda op: parprims.map_reduce(abs, x, op=op, **way),
            "add": lambda op: parprims.matmul(square, square, add=op, **way),
            "multiply": lambda op: parprims.matmul(square, square, multiply=op, **way),
            "check_associative": lambda op: parprims.check_associative(op, x),
        }

    @pytest.mark.parametrize(
        ("combine", "words"),
        [
            (lambda e, later: max(e, later), "branches on the value of an array: use where"),
            (lambda e, later: 0.5, "returned float, not an array"),  # noqa: ARG005
            (lambda e, later: [e + later], "returned list, not an array"),
            (lambda e, later: None, "returned NoneType, not an array .it has no return"),  # noqa: ARG005
            (lambda e, later: "text", "returned str, not an array"),  # noqa: ARG005
            (lambda e, later: {"sum": e + later}, "returned dict, not an array"),
            (lambda e, later: (e, later), "returned 2 components for elements of 1"),
            (lambda e, later: e < later, "returned bool for component 0, which has dtype float64"),
        ],
    )
    def test_of_what_it_does(self, backend, subtests, combine, words):
        for name, call in self.calls(backend, method="array").items():
            with (
                subtests.test(function=name),
                pytest.raises(TypeError, match=rf"^op tried {words}"),
            ):
                call(parprims.Operator(combine, name="tried", identity=0))

    def test_of_its_shape(self, backend, subtests):
        xp = backend.xp
        calls = self.calls(backend, method="array")
        for combine in (lambda e, later: xp.sum(e + later), lambda e, later: (e + later)[..., None]):
            for name in ("scan", "reduce", "map_reduce", "check_associative"):
                with (
                    subtests.test(function=name),
                    pytest.raises(ValueError, match=r"op tried returned shape \(.*\) for component 0, which has shape"),
                ):
                    calls[name](parprims.Operator(combine, name="tried", identity=0))

    def test_of_another_library(self, backend, subtests):
        if backend.name in ("numpy", "emulated"):
            pytest.skip("needs two libraries")
        for name, call in self.calls(backend, method="array").items():
            with (
                subtests.test(function=name),
                pytest.raises(TypeError, match=r"op tried returned an array of .*numpy.*, given arrays of"),
            ):
                call(parprims.Operator(lambda e, later: backend.to_numpy(e) + 0 * len(later.shape), name="tried"))

    def test_other_failures_keep_their_words(self, backend):
        def fails(_, __):
            raise KeyError("own")

        with pytest.raises(KeyError, match="own") as caught:
            parprims.scan(backend.asarray(np.ones(4)), fails, method="array")
        notes = [note for note in caught.value.__notes__ if "JAX" not in note]  # which tells of its own frames
        assert notes == ["Raised by op fails."]

    @pytest.mark.parametrize(
        ("fn", "error", "words"),
        [
            (lambda x: x if x > 2 else -x, TypeError, "branches on the value of an array: use where"),
            (lambda x: 0.5, TypeError, "returned float, not an array"),  # noqa: ARG005
            (lambda x: [x], TypeError, "returned list, not an array"),
            (lambda x: None, TypeError, "returned NoneType, not an array"),  # noqa: ARG005
            (lambda x: (x, 0.5), TypeError, "returned float for component 1, not an array"),
            (lambda x: (), TypeError, "returned no array"),  # noqa: ARG005
            (lambda x: x[:3], ValueError, r"returned shape \(3,\), which does not broadcast"),
        ],
    )
    def test_of_a_map(self, backend, fn, error, words):
        with pytest.raises(error, match=f"^fn {words}"):
            parprims.map_reduce(fn, backend.asarray(np.arange(6.0)), method="array")

    def test_traced_by_jax(self, backend):
        if backend.name != "jax":
            pytest.skip("only JAX traces")
        import jax

        x = backend.asarray(np.arange(6.0))
        branching = parprims.Operator(lambda e, later: e if e.any() else later, name="tried")
        for method in ("array", "native"):
            with pytest.raises(TypeError, match=r"^op tried branches on the value of an array: use where"):
                jax.jit(lambda x, method=method: parprims.scan(x, branching, method=method))(x)

    def test_of_a_name(self):
        for given, meant in (("mximum", "maximum"), ("sum", "add"), ("logical-or", "logical_or"), ("max", "maximum")):
            with pytest.raises(ValueError, match=f"got {given!r}: did you mean {meant!r}"):
                parprims.reduce(np.ones(3), given)
        with pytest.raises(ValueError, match=r"got 'frobnicate'$"):
            parprims.reduce(np.ones(3), "frobnicate")
        assert nearest(["array"], ["array"]) == ""
        assert nearest("kernal", ["kernel", "native"]) == ": did you mean 'kernel'?"

    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"identity": [1, 0]}, TypeError, "^identity must be a scalar, a tuple of scalars or a callable, got list"),
            ({"identity": "zero"}, TypeError, "^identity must be .* got str"),
            ({"identity": (0, None)}, TypeError, "^identity must be .* got a tuple with NoneType"),
            ({"identity": np.zeros(2)}, TypeError, "^identity must be .* got ndarray"),
            (
                {"identity": (1,), "components": 2},
                ValueError,
                "^identity must have 2 entries, one per component, got 1",
            ),
            (
                {"identity": (1, 0), "components": 1},
                ValueError,
                "^identity must have 1 entry, one per component, got 2",
            ),
            ({"commutative": "yes"}, TypeError, "^commutative must be True or False"),
            ({"components": 2.0}, TypeError, "^components must be an integer"),
            ({"components": 0}, ValueError, "^components must be at least 1"),
            ({"name": 3}, TypeError, "^name must be a string"),
        ],
    )
    def test_of_an_operator_as_it_is_made(self, options, error, words):
        with pytest.raises(error, match=words):
            parprims.Operator(lambda e, later: e + later, **options)

    @pytest.mark.parametrize(
        ("identity", "dtypes", "error", "words"),
        [
            ((1,), ("int64", "int64"), ValueError, "must have 2 entries, one per component, got 1"),
            (0, ("int64", "int64"), ValueError, "must have 2 entries, one per component, got 1"),
            ((0, 0), ("int64",), ValueError, "must have 1 entry, one per component, got 2"),
            (0.5, ("int64",), TypeError, "must fit int64, got 0.5"),
            (300, ("int8",), TypeError, "must fit int8, got 300"),
            (-1, ("uint8",), TypeError, "must fit uint8, got -1"),
            (2, ("bool",), TypeError, "must fit bool, got 2"),
            (1j, ("float64",), TypeError, "must fit float64, got 1j"),
            (lambda *_: [0], ("float64",), TypeError, "must be a scalar, a tuple of scalars or a callable, got list"),
            (lambda *_: (0, 0), ("float64",), ValueError, "must have 1 entry, one per component, got 2"),
        ],
    )
    def test_of_an_identity_in_use(self, backend, subtests, identity, dtypes, error, words):
        op = parprims.Operator(
            lambda _, later: later,
            identity=identity,
            name="tried",
        )
        xs = tuple(backend.asarray(np.ones(4, dtype=dtype)) for dtype in dtypes)
        x = xs if len(xs) > 1 else xs[0]
        for name, call in {
            "scan": lambda: parprims.scan(x, op, exclusive=True),
            "reduce": lambda: parprims.reduce(tuple(one[:0] for one in xs) if len(xs) > 1 else x[:0], op),
            "check_associative": lambda: parprims.check_associative(op, x),
        }.items():
            with subtests.test(function=name), pytest.raises(error, match=f"^the identity of op tried {words}"):
                call()

    def test_of_flags(self, backend):
        flags, x = backend.asarray(np.array([1, 0, 1])), backend.asarray(np.array([1.0, 2.0, 3.0]))
        for function in (parprims.scan, parprims.reduce):
            with pytest.raises(TypeError, match=r"^x\[0\], the flags of op segmented\(add\), must have dtype bool"):
                function((flags, x), parprims.segmented("add"))
            with pytest.raises(TypeError, match=r"^x\[1\], the flags of op .*, must have dtype bool, got float64"):
                function((x > 0, x, x), parprims.segmented(parprims.segmented("add")))
            with pytest.raises(TypeError, match=r"^x must have a dtype of kind bool for op logical_or in component 1"):
                function((x > 0, x), parprims.segmented("logical_or"))
            with pytest.raises(ValueError, match=r"^x\[0\], the flags of op .*, must broadcast to the shape \(3,\)"):
                function((x[:2] > 0, x), parprims.segmented("add"))


def augmented(earlier, later):
    earlier += later
    return earlier


def later_augmented(earlier, later):
    later += earlier
    return later


def assigned(earlier, later):
    earlier[...] = earlier + later
    return earlier


def emptied(earlier, later):
    later[...] = 0
    return earlier


def first_augmented(earlier, later):
    (a, b), (c, d) = earlier, later
    a += c
    return a, b + d


WORDS = "changes its argument in place: return a new array"


class TestInPlace:
    """An operator or map that works in place is refused, at the first call too, and damages nothing."""

    def arrays(self, backend):
        return [np.arange(1, 13).reshape(3, 4), np.zeros((3, 4), dtype=np.float32), np.ones((0, 4), dtype=np.int8)]

    def calls(self, x, combine):
        op = parprims.Operator(combine, identity=0, commutative=True)
        yield lambda **way: parprims.scan(x, combine, **way)
        yield lambda **way: parprims.scan(x, op, initial=0, exclusive=True, **way)
        yield lambda **way: parprims.reduce(x, combine, axis=1, **way)
        yield lambda **way: parprims.reduce(x, op, axis=1, initial=0, **way)
        yield lambda **way: parprims.map_reduce(lambda one: one, x, op=op, axis=1, **way)
        yield lambda **way: parprims.matmul(x, x.T, add=op, **way)
        yield lambda **way: parprims.matmul(x, x.T, multiply=combine, **way)

    @pytest.mark.parametrize("combine", [augmented, later_augmented, assigned, emptied])
    def test_operator(self, backend, combine):
        if backend.name.startswith("jax"):
            pytest.skip("JAX's arrays never change")
        methods = ("array", "kernel") if backend.cuda else ("array", "auto")
        for values in self.arrays(backend)[:2]:
            x = backend.asarray(values.copy())
            for method, call in itertools.product(methods, self.calls(x, combine)):
                for _ in range(3):  # what was seen at a call before must not let the next one pass
                    with pytest.raises(TypeError, match=rf"^op {combine.__name__} {WORDS}$"):
                        call(method=method)
            compare(backend, x, values)

    def test_map(self, backend):
        if backend.name.startswith("jax"):
            pytest.skip("JAX's arrays never change")
        for values in self.arrays(backend)[:2]:
            x = backend.asarray(values.copy())
            for method in ("array", "kernel") if backend.cuda else ("array", "auto"):
                for fn in (lambda x: augmented(x, x + 1), lambda x: emptied(x, x)):
                    with pytest.raises(TypeError, match=rf"^fn {WORDS}$"):
                        parprims.map_reduce(fn, x, method=method)
            compare(backend, x, values)

    def test_component(self, backend):
        if backend.name.startswith("jax"):
            pytest.skip("JAX's arrays never change")
        x, y = (backend.asarray(np.arange(6.0)) for _ in range(2))
        for call in (parprims.scan, parprims.reduce):
            for method in ("array", "kernel") if backend.cuda else ("array",):
                with pytest.raises(TypeError, match=rf"^op first_augmented {WORDS}$"):
                    call((x, y), first_augmented, method=method)
                op = parprims.segmented(parprims.Operator(first_augmented, components=2))
                with pytest.raises(TypeError, match=rf"^op segmented\(first_augmented\) {WORDS}$"):
                    call((x > 0, x, y), op, method=method)
        compare(backend, (x, y), (np.arange(6.0), np.arange(6.0)))

    def test_jax_makes_another_array(self, backend):
        if not backend.name.startswith("jax"):
            pytest.skip("JAX's arrays never change")
        x = backend.asarray(np.arange(1.0, 7.0))
        compare(backend, parprims.scan(x, augmented), np.cumsum(np.arange(1.0, 7.0)))
        compare(backend, parprims.reduce(x, later_augmented), 21.0)
        compare(backend, x, np.arange(1.0, 7.0))

    def test_own_arrays_may_change(self, backend):
        def careful(earlier, later):
            total = earlier + later
            total += 1
            return total

        x = np.arange(1.0, 7.0)
        for method in ("array", "kernel") if backend.cuda else ("array",):
            compare(backend, parprims.scan(backend.asarray(x), careful, method=method), np.cumsum(x) + np.arange(6))

    def test_tried_once(self, backend):
        if backend.name.startswith("jax"):
            pytest.skip("JAX's arrays never change")

        class Calls:
            count = 0

        def counting(earlier, later):
            Calls.count += 1
            return earlier + later

        def calls(function, dtype="float32"):
            Calls.count = 0
            x = backend.asarray(np.ones(1000, dtype=dtype))
            parprims.reduce(x, function, method="array")
            return Calls.count

        first, again, third = (calls(counting) for _ in range(3))
        assert first > again == third
        assert calls(counting, "float64") > calls(counting, "float64") == again
        operator = parprims.Operator(counting)
        assert calls(operator) == again

        def made():
            return lambda earlier, later: earlier + later + 0 * len(seen)

        seen = []
        key = lasting_key(made())
        parprims.reduce(backend.asarray(np.ones(9)), made(), method="array")
        known = len(_harmless._tried)
        for _ in range(3):  # made anew for every call, but from the same code
            parprims.reduce(backend.asarray(np.ones(9)), made(), method="array")
        assert len(_harmless._tried) == known
        assert any(one == key for one, _ in _harmless._tried)

    def test_check_associative(self, backend):
        if backend.name.startswith("jax"):
            pytest.skip("JAX's arrays never change")
        for combine in (augmented, later_augmented, assigned, emptied):
            x = backend.asarray(np.arange(6.0))
            with pytest.raises(TypeError, match=rf"^op {combine.__name__} {WORDS}$"):
                parprims.check_associative(combine, x)
            compare(backend, x, np.arange(6.0))

    def test_torch_of_any_kind(self, backend):
        if backend.name != "torch":
            pytest.skip("PyTorch's modes")
        import torch

        for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
            with mode():
                x = torch.arange(6.0, requires_grad=mode is torch.enable_grad)
                with pytest.raises(TypeError, match=WORDS):
                    parprims.reduce(x, lambda a, b: a.detach().add_(b), method="array")
                assert x.detach().tolist() == list(range(6))
                assert parprims.reduce(x, lambda a, b: a + b, method="array").item() == 15
        # Where nobody counts changes the operator works on copies.
        x = torch.arange(6.0).reshape(2, 3)
        result = torch.func.vmap(lambda one: parprims.scan(one, lambda a, b: a.add_(b), method="array"))(x)
        assert result.tolist() == x.cumsum(1).tolist()
        assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


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
