"""Scans and linear recurrences against sequential loops."""

import functools
import itertools
from typing import ClassVar

import numpy as np
import pytest
from array_api_compat import is_jax_array

import parprims
from parprims._primitives.scan import array as scan_array
from tests.support.contract import Contract, compare, eps, random

METHODS = ("kernel", "native", "array")
SIXTEEN = ("float16", "bfloat16")
# Sizes around the one up to which the array form doubles steps and above which it goes by pairs, even and odd halves.
EDGES = (8191, 8192, 8193, 16383, 16384, 16385, 16386, 32769, 50001)


def in_one_program(function):
    """Return the function, compiled as a whole on JAX, which would else compile every operation for every shape."""

    @functools.wraps(function)
    def call(*args, **options):
        first = args[0] if isinstance(args[0], tuple) else args[:1]
        if not all(is_jax_array(x) for x in first):
            return function(*args, **options)
        import jax

        arrays = [index for index, x in enumerate(args) if index == 0 or is_jax_array(x)]

        @jax.jit
        def program(*values):
            given = dict(enumerate(args)) | dict(zip(arrays, values, strict=True))
            return function(*given.values(), **options)

        return program(*(args[index] for index in arrays))

    return call


scan = in_one_program(parprims.scan)
cumulative_sum = in_one_program(parprims.cumulative_sum)
linear_recurrence = in_one_program(parprims.linear_recurrence)


def need(backend, dtype):
    if not backend.supports(dtype):
        pytest.skip(f"{backend.name} has no {dtype} arithmetic")


def wide(x):
    """Return x in a dtype that rounds far less than its own; integers stay, for they wrap around."""
    return x.astype({"c": np.clongdouble, "f": np.longdouble, "V": np.longdouble}.get(x.dtype.kind, x.dtype))


def loop(combine, *xs, axis=-1, exclusive=False, reverse=False, initial=None):
    """Combine elements one after another along an axis: the definition of a scan."""
    columns = [np.moveaxis(x, axis, 0) for x in xs]
    n = columns[0].shape[0]
    results = [None] * n
    total = initial
    for index in reversed(range(n)) if reverse else range(n):
        before = total
        element = tuple(column[index] for column in columns)
        total = element if total is None else combine(total, element)
        results[index] = before if exclusive else total
    outs = [np.empty_like(column) for column in columns]
    for index in range(n):
        for out, value in zip(outs, results[index], strict=True):
            out[index] = value
    return tuple(np.moveaxis(out, 0, axis) for out in outs)


def recur(a, b, axis=-1, initial=None, reverse=False):
    """Apply x = a x + b one after another along an axis: the definition of a linear recurrence."""
    a, b = np.broadcast_arrays(a, b)
    a, b = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    out = np.empty(b.shape, np.result_type(a, b))
    x = initial
    for index in reversed(range(len(b))) if reverse else range(len(b)):
        x = b[index] if x is None else a[index] * x + b[index]
        out[index] = x
    return np.moveaxis(out, 0, axis)


def elementwise(function):
    return lambda earlier, later: (function(earlier[0], later[0]),)


add = elementwise(np.add)


def affine(earlier, later):
    return later[0] * earlier[0], later[0] * earlier[1] + later[1]


def matrices(earlier, later):
    """Multiply 2 by 2 matrices given as four components; does not commute."""
    (a, b, c, d), (e, f, g, h) = earlier, later
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


class TestCumulativeSum(Contract):
    methods = METHODS
    dtypes: ClassVar = (
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128"
    ).split()
    lengths: ClassVar = (0, 1, 2, 3, 4, 5, 8, 33, 1000, 8192, 8193, 16387)
    compiled_lengths: ClassVar = (0, 1, 2, 3, 5, 33, 8192, 8193, 16387)

    def function(self, x, **options):
        return cumulative_sum(x, **options)

    def make(self, rng, shape, dtype):
        return (random(rng, shape, dtype),)

    def reference(self, x, axis):
        x = x.astype({"b": np.int64, "i": np.int64, "u": np.uint64}.get(x.dtype.kind, wide(x).dtype))
        return loop(add, x, axis=axis)[0]

    def bound(self, x, axis):
        # As documented, a term passes n / 2048 + 50 additions by array (fewer of real numbers), n by a library and n /
        # 256 + 100 by kernel (fewer on a CPU), each of which owes half a unit of the sum of the magnitudes. 16-bit
        # floats are added in float32 and rounded once.
        name, n = x.dtype.name, x.shape[axis]
        additions = {"array": n / 2048 + 50 if x.dtype.kind == "c" else n / 4096 + 40, "kernel": n / 256 + 100}.get(
            self.ran, n
        )
        if x.dtype.kind in "biu":
            return 0
        size = np.cumsum(abs(x.astype(complex)), axis=axis)
        working = "float32" if name in SIXTEEN else name
        return min(n, additions) / 2 * eps(working) * size + (eps(name) / 2 * size if working != name else 0)

    def result_dtype(self, dtype):
        if dtype.startswith("uint"):
            return None
        return "int64" if dtype == "bool" or dtype.startswith("int") else dtype


class TestAffineScan(Contract):
    """Pairs under an operator that does not commute."""

    methods: ClassVar = ("kernel", "array")  # Only JAX has another, and takes it for auto.
    dtypes: ClassVar = ("int32", "float16", "float64", "complex64")
    lengths: ClassVar = (0, 1, 2, 3, 5, 33, 5000)
    compiled_lengths = lengths

    def function(self, a, b, **options):
        return scan((a, b), "affine", **options)

    def make(self, rng, shape, dtype):
        return random(rng, shape, dtype), random(rng, shape, dtype)

    def reference(self, a, b, axis):
        return loop(affine, wide(a), wide(b), axis=axis)

    def bound(self, a, b, axis):
        return recurrence_bound(a, b, axis=axis, product=True)


def recurrence_bound(a, b, axis=-1, product=False, **options):
    """Return how far a recurrence in the dtype of a and b may be from the exact one, elementwise.

    A term b[m] a[m+1] ... a[n] is rounded in at most n multiplications and n additions, whatever their order, so the
    error is at most 2 n eps (complex multiplications: 3 times that) times the recurrence of the magnitudes; and the
    smallest normal number for what underflows.
    """
    name = a.dtype.name
    if a.dtype.kind in "biu":
        return 0
    working = "float32" if name in SIXTEEN else name
    steps = (2 if a.dtype.kind != "c" else 6) * a.shape[axis] * eps(working)
    if working != name:
        steps += eps(name) / 2
    sizes = [abs(wide(x)).astype(np.longdouble) for x in (a, b)]
    tiny = 1e-7 if name in SIXTEEN else 1e-37
    size = recur(*sizes, axis=axis, **options)
    if not product:
        return steps * size + tiny
    return steps * np.multiply.accumulate(sizes[0], axis=axis) + tiny, steps * size + tiny


class TestScan:
    methods = METHODS

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("exclusive", [False, True])
    def test_options(self, backend, run, method, rng, subtests, exclusive, reverse):
        for shape, axis in (((11,), 0), ((3, 6), 0), ((3, 6), 1), ((4, 0), 1), ((1,), 0)):
            rest = shape[:axis] + shape[axis + 1 :]
            x = random(rng, shape, "int64")
            for initial in (None, 5, random(rng, rest, "int64")):
                with subtests.test(shape=shape, axis=axis, initial=initial):
                    given = backend.asarray(initial) if isinstance(initial, np.ndarray) else initial
                    options = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
                    result = run(parprims.scan, backend.asarray(x), method=method, initial=given, **options)
                    start = 0 if initial is None else initial
                    compare(backend, result, loop(add, x, initial=(start,), **options)[0], dtype="int64")

    def test_nothing_in_one_program(self, backend, run, method):
        """XLA's compiler ends the process at some programs without elements."""
        for shape, axis in (((0,), 0), ((4, 0), 1), ((0, 3), 0)):
            for initial in (None, 5):
                for exclusive in (False, True):
                    x = backend.asarray(np.ones(shape, "int64"))
                    result = run(scan, x, "add", axis=axis, exclusive=exclusive, initial=initial, method=method)
                    assert result.shape == shape

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("exclusive", [False, True])
    def test_order(self, backend, run, method, rng, exclusive, reverse):
        # Integers wrap around, and with them matrix products are exact, associative and not commutative.
        xs = tuple(random(rng, (2, 37), "int64") for _ in range(4))
        initial = (2, -1, 3, 7) if exclusive else None
        options = {"exclusive": exclusive, "reverse": reverse}
        arrays = tuple(backend.asarray(x) for x in xs)
        result = run(scan, arrays, matrices, method=method, initial=initial, **options)
        first = initial and tuple(np.int64(x) for x in initial)
        compare(backend, result, loop(matrices, *xs, initial=first, **options))

    def test_keep_first_and_last(self, backend, run, method, rng):
        x = random(rng, (2, 9000), "int32")
        first = run(scan, backend.asarray(x), lambda earlier, _: earlier, method=method)
        compare(backend, first, np.broadcast_to(x[:, :1], x.shape), dtype="int32")
        last = run(scan, backend.asarray(x), lambda _, later: later, method=method)
        compare(backend, last, x, dtype="int32")

    @pytest.mark.parametrize(
        ("op", "dtypes"),
        [
            ("multiply", ("int32", "uint8", "float32", "complex64")),
            ("maximum", ("int8", "uint8", "float16", "float64")),
            ("minimum", ("int64", "bfloat16", "float32")),
            ("logical_and", ("bool",)),
            ("logical_or", ("bool",)),
            ("bitwise_and", ("bool", "int16", "uint8")),
            ("bitwise_or", ("int32",)),
            ("bitwise_xor", ("bool", "int64")),
        ],
    )
    def test_operator(self, backend, run, method, rng, subtests, op, dtypes):
        for dtype in dtypes:
            with subtests.test(dtype=dtype):
                need(backend, dtype)
                # Few enough factors that their product stays in the range of int64.
                x = random(rng, (2, 12 if op == "multiply" else 37), dtype)
                result = run(scan, backend.asarray(x), op, method=method)
                start = wide(x) if op != "multiply" or x.dtype.kind in "fc" else x.astype(np.int64)
                expected = loop(elementwise(getattr(np, op)), start)[0]
                # A product of n factors is rounded n times (complex: 3 n), relative to itself; the rest is exact.
                bound = 3 * 12 * eps(dtype) * abs(expected) if op == "multiply" and x.dtype.kind in "fc" else 0
                compare(backend, result, expected, bound, None if op == "multiply" else dtype)

    @pytest.mark.optimised
    def test_logaddexp(self, backend, run, method, rng):
        x = 9 * random(rng, (2, 300), "float64")
        x[0, :3] = -np.inf
        x[1, 250] = np.inf
        result = run(scan, backend.asarray(x), "logaddexp", method=method)
        total = np.cumsum(np.exp(wide(x)), axis=1)
        with np.errstate(divide="ignore"):
            # Every combination rounds to within eps of its value or of one, by which log is off.
            compare(backend, result, np.log(total), 300 * eps("float64") * (1 + np.max(abs(x[np.isfinite(x)]))))

    def test_special_values(self, backend, run, method, subtests):
        x = np.array([-0.0, 2.0, np.inf, 1.0, -np.inf, 3.0, np.nan, 1.0])
        for op, combine in (("add", np.add), ("maximum", np.maximum), ("minimum", np.minimum)):
            for values in (x, x[::-1].copy(), x[:6].copy(), -x[:2]):
                with subtests.test(op=op, values=values):
                    result = run(scan, backend.asarray(values), op, method=method)
                    compare(backend, result, loop(elementwise(combine), values)[0])

    def test_dtype(self, backend, run, method, rng):
        x = random(rng, (5, 40), "int8")
        for dtype in ("int8", "int32", "float32"):
            result = run(scan, backend.asarray(x), method=method, dtype=backend.dtype(dtype))
            compare(backend, result, np.cumsum(x, axis=1, dtype=dtype), dtype=dtype)
        result = run(scan, backend.asarray(x), "maximum", method=method, dtype=backend.dtype("float64"))
        compare(backend, result, np.maximum.accumulate(x, axis=1), dtype="float64")

    def test_wide_unsigned_integers(self, backend, run, method, rng, subtests):
        # PyTorch has no arithmetic for them; results wrap around nevertheless.
        for dtype in ("uint16", "uint32", "uint64"):
            with subtests.test(dtype=dtype):
                a, b = rng.integers(0, np.iinfo(dtype).max, (2, 30), dtype, endpoint=True)
                arrays = (backend.asarray(a), backend.asarray(b))
                result = run(scan, arrays[0], method=method, initial=5, dtype=arrays[0].dtype)
                compare(backend, result, loop(add, a, initial=(np.asarray(5, dtype),))[0], dtype=dtype)
                solver = "array" if method == "native" else method
                result = run(parprims.linear_recurrence, *arrays, initial=5, method=solver)
                compare(backend, result, recur(a, b, initial=np.asarray(5, dtype)), dtype=dtype)

    @pytest.mark.optimised
    def test_half_precision_is_rounded_once(self, backend, run, method):
        # In float16 the sum would stay at 2048, where adding 1 is rounded away.
        need(backend, "float16")
        x = np.ones(5000, np.float16)
        result = run(scan, backend.asarray(x), method=method, initial=np.float32(0).item())
        compare(backend, result, np.arange(1, 5001).astype(np.float16), dtype="float16")

    @pytest.mark.optimised
    def test_initial_of_half_precision(self, backend, run, method, rng):
        need(backend, "float16")
        x, initial = random(rng, (3, 50), "float16"), random(rng, (3,), "float16")
        result = run(scan, backend.asarray(x), method=method, initial=backend.asarray(initial))
        expected = wide(initial)[:, None] + np.cumsum(wide(x), axis=1)
        size = abs(wide(initial))[:, None] + np.cumsum(abs(wide(x)), axis=1)
        compare(backend, result, expected, (51 * eps("float32") + eps("float16")) * size, "float16")

    def test_result_is_not_the_input(self, backend, run, method):
        if backend.name != "numpy":
            pytest.skip("asks for NumPy's memory")
        for n in (1, 2, 3, 9000):
            x = np.arange(float(n))
            for options in ({}, {"exclusive": True}, {"reverse": True}, {"initial": 1.0}):
                assert not np.shares_memory(run(scan, x, method=method, **options), x)
                assert not np.shares_memory(run(scan, x, lambda e, _: e, method="array", initial=x[0]), x)

    def test_segments(self, backend, run, method, rng):
        starts, x = rng.random((2, 60)) < 0.1, random(rng, (2, 60), "int32")
        arrays = (backend.asarray(starts), backend.asarray(x))
        flags, sums = run(scan, arrays, parprims.segmented("add"), method=method)
        expected = x.copy()
        for index in range(1, 60):
            expected[:, index] += np.where(starts[:, index], 0, expected[:, index - 1])
        compare(backend, sums, expected, dtype="int32")
        compare(backend, flags, np.logical_or.accumulate(starts, axis=1))

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("exclusive", [False, True])
    def test_segments_of_pairs(self, backend, run, method, rng, exclusive, reverse):
        def combine(earlier, later):
            a, b = affine(earlier[1:], later[1:])
            return earlier[0] | later[0], np.where(later[0], later[1], a), np.where(later[0], later[2], b)

        xs = (rng.random((50, 3)) < 0.2, random(rng, (50, 3), "int32"), random(rng, (50, 3), "int32"))
        options = {"axis": 0, "exclusive": exclusive, "reverse": reverse}
        op = parprims.segmented("affine")
        result = run(scan, tuple(backend.asarray(x) for x in xs), op, method=method, **options)
        nothing = (False, np.int32(1), np.int32(0))
        expected = loop(combine, *xs, initial=nothing, **options)
        if exclusive:  # a flagged element is the first of its segment: nothing stands before it
            expected = (expected[0], *map(np.where, (xs[0],) * 2, nothing[1:], expected[1:]))
        compare(backend, result, expected)

    def test_argmax(self, backend, run, method, rng):
        x = random(rng, (20,), "int32").astype(np.float32)
        x[15] = np.nan
        value, index = run(parprims.scan, (backend.asarray(x), backend.asarray(np.arange(20))), "argmax", method=method)
        expected = np.array([np.argmax(x[: end + 1]) for end in range(20)])
        compare(backend, index, expected)
        compare(backend, value, x[expected])

    @pytest.mark.optimised
    def test_welford(self, backend, run, method, rng):
        x = 100 + random(rng, (30,), "float64")
        zero, one = backend.asarray(np.zeros(30)), backend.asarray(np.ones(30))
        count, mean, m2 = run(scan, (one, backend.asarray(x), zero), "welford", method=method)
        exact = wide(x)
        means = np.array([exact[: end + 1].mean() for end in range(30)])
        squares = np.array([((exact[: end + 1] - means[end]) ** 2).sum() for end in range(30)])
        compare(backend, count, np.arange(1.0, 31.0))
        # Every combination rounds the mean by a few units of its size, and m2 by that times the deviations.
        compare(backend, mean, means, 30 * 4 * eps("float64") * 104)
        compare(backend, m2, squares, 30 * 8 * eps("float64") * (squares + 104 * np.sqrt(30 * squares)))

    def test_prefix_sum_problem(self, backend, run, method):
        x = np.random.default_rng(9).integers(0, 1000, 10**6).astype(np.float64)
        result = run(scan, backend.asarray(x), method=method, exclusive=True)
        expected = np.cumsum(np.insert(x.astype(np.int64), 0, 0))[:-1]
        compare(backend, result, expected.astype(np.float64), dtype="float64")

    def test_method_taken(self, backend):
        x = backend.asarray(np.array([3.0, 1.0, 2.0]))
        natives = {
            "numpy": ("add", "multiply", "maximum", "minimum", "logaddexp"),
            "array-api-strict": ("add", "multiply"),
            "torch": ("add", "multiply", "maximum", "minimum", "logaddexp"),
            "jax": ("add", "multiply", "maximum", "minimum", "logaddexp", add),
            "cupy": ("add", "multiply"),
        }[backend.name.removesuffix("-cuda")]
        for op in ("add", "multiply", "maximum", "minimum", "logaddexp", lambda earlier, later: earlier + later):
            with parprims.explain() as calls:
                parprims.scan(x, op)
            native = op in natives or (callable(op) and add in natives)
            taken = {"native" if native else "array"} | ({"kernel"} if backend.kernels else set())
            assert calls[0].primitive == "scan"
            assert calls[0].method in taken

    def test_unknown_library_routine_refused(self, backend):
        if backend.name.startswith("jax"):
            pytest.skip("JAX scans with any operator")
        x = backend.asarray(np.array([3.0, 1.0, 2.0]))
        with pytest.raises(parprims.MethodRefused, match="no scan with the operator halve"):
            parprims.scan(x, parprims.Operator(lambda e, _: e, name="halve"), method="native")


class TestArrayForm:
    """What the array form promises beyond the other methods."""

    @pytest.mark.parametrize("n", EDGES)
    def test_edges(self, backend, rng, n):
        if backend.name.startswith("jax") and n not in (8193, 16386):
            pytest.skip("two of these sizes are enough where each is compiled")
        a, b = random(rng, (n,), "int32"), random(rng, (n,), "int32")
        result = scan((backend.asarray(a), backend.asarray(b)), "affine", method="array")
        compare(backend, result, loop(affine, a, b))
        compare(backend, linear_recurrence(backend.asarray(a), backend.asarray(b), method="array"), recur(a, b))

    @pytest.mark.parametrize(
        ("shape", "axis"), [((3, 9001), 1), ((9001, 3), 0), ((5000, 3), 1), ((5000, 2), 1), ((2, 70, 90), 1)]
    )
    def test_many_elements(self, backend, rng, shape, axis):
        a, b = random(rng, shape, "int32"), random(rng, shape, "int32")
        result = scan((backend.asarray(a), backend.asarray(b)), "affine", axis=axis, method="array")
        compare(backend, result, loop(affine, a, b, axis=axis))

    @pytest.mark.optimised
    @pytest.mark.parametrize("n", [8192, 100_003])
    def test_error_of_a_tree(self, backend, rng, n):
        # Every term passes at most n / 4096 + 40 additions.
        x = rng.random(n, dtype=np.float32)
        result = scan(backend.asarray(x), method="array")
        expected = np.cumsum(wide(x))
        compare(backend, result, expected, (n / 4096 + 40) / 2 * eps("float32") * expected, "float32")

    def test_first_element_is_untouched(self, backend):
        # An inclusive scan begins with x[0] itself: adding the identity to it would turn -0 into 0.
        x = backend.asarray(np.array([-0.0, -0.0, -0.0]))
        for options in ({}, {"reverse": True}):
            assert np.signbit(backend.to_numpy(parprims.scan(x, method="array", **options))).all()

    def test_program_is_short(self, backend):
        if not backend.name.startswith("jax"):
            pytest.skip("only JAX traces")
        import jax

        def length(function, n):
            x = jax.ShapeDtypeStruct((n,), "float32")
            return len(jax.make_jaxpr(function)(x).eqns)

        for function in (
            lambda x: parprims.scan(x, method="array"),
            lambda x: parprims.linear_recurrence(x, x, method="array"),
        ):
            short, middle, long = (length(function, 2**log) for log in (14, 20, 26))
            assert long - middle == middle - short
            assert long < 1000


class TestStandard:
    methods = METHODS

    def test_include_initial(self, backend, run, method, rng):
        x = random(rng, (3, 7), "int32")
        for axis in (0, 1):
            one = tuple(1 if index == axis else length for index, length in enumerate(x.shape))
            sums = run(parprims.cumulative_sum, backend.asarray(x), method=method, axis=axis, include_initial=True)
            expected = np.concatenate([np.zeros(one, np.int64), np.cumsum(x, axis=axis)], axis=axis)
            compare(backend, sums, expected, dtype="int64")
            products = run(parprims.cumulative_prod, backend.asarray(x), method=method, axis=axis, include_initial=True)
            expected = np.concatenate([np.ones(one, np.int64), np.cumprod(x, axis=axis)], axis=axis)
            compare(backend, products, expected, dtype="int64")
        empty = run(parprims.cumulative_sum, backend.asarray(x[:, :0]), method=method, axis=1, include_initial=True)
        compare(backend, empty, np.zeros((3, 1), np.int64), dtype="int64")

    def test_axis_may_be_none_for_one_dimension(self, backend, run, method, rng):
        x = random(rng, (9,), "float64")
        products = run(parprims.cumulative_prod, backend.asarray(x), method=method)
        expected = np.cumprod(wide(x))
        compare(backend, products, expected, 9 * eps("float64") * abs(expected))
        for function in (parprims.cumulative_sum, parprims.cumulative_prod):
            for shape, message in (((2, 3), "axis must be given"), ((), "x must have at least one dimension")):
                with pytest.raises(ValueError, match=message):
                    function(backend.asarray(np.ones(shape)), method=method)

    def test_tuple_refused(self, backend):
        x = backend.asarray(np.ones(3))
        for function in (parprims.cumulative_sum, parprims.cumulative_prod):
            with pytest.raises(TypeError, match="x must be an array"):
                function((x,))


class TestBadInput:
    def test_scan(self, backend):
        x, y = backend.asarray(np.ones((2, 3))), backend.asarray(np.ones((2, 4)))
        flags = backend.asarray(np.ones((2, 3), bool))
        with pytest.raises(ValueError, match="op"):
            parprims.scan(x, "plus")
        with pytest.raises(TypeError, match="op"):
            parprims.scan(x, 3)
        with pytest.raises(ValueError, match="x must be arrays of equal shape"):
            parprims.scan((x, y), "affine")
        with pytest.raises(ValueError, match="x must hold"):
            parprims.scan(())
        with pytest.raises(ValueError, match="op affine works on tuples of 2"):
            parprims.scan(x, "affine")
        with pytest.raises(TypeError, match="x must have an integer"):
            parprims.scan(flags, "maximum")
        with pytest.raises(TypeError, match="x must have a bool dtype"):
            parprims.scan(x, "logical_and")
        with pytest.raises(ValueError, match="initial"):
            parprims.scan(x, lambda earlier, later: earlier + later, exclusive=True)
        with pytest.raises(ValueError, match="initial"):
            parprims.scan(x, initial=backend.asarray(np.ones(3)))
        with pytest.raises(ValueError, match="initial must have 1"):
            parprims.scan(x, initial=(1.0, 2.0))
        with pytest.raises(ValueError, match="dtype must have 1"):
            parprims.scan(x, dtype=(x.dtype, x.dtype))
        with pytest.raises(TypeError, match="initial"):
            parprims.scan(flags, "logical_or", initial=2.5)
        with pytest.raises(IndexError, match="axis"):
            parprims.scan(backend.asarray(np.asarray(1.0)))
        with pytest.raises(TypeError, match="op widen returned"):
            parprims.scan(x, parprims.Operator(lambda e, _: e > 0, name="widen"), method="array")

    def test_recurrence(self, backend):
        x, y = backend.asarray(np.ones((2, 3))), backend.asarray(np.ones((2, 4)))
        whole = backend.asarray(np.ones((2, 3), np.int64))
        with pytest.raises(ValueError, match="a and b must broadcast"):
            parprims.linear_recurrence(x, y)
        for one, other in ((x, whole), (whole, x)):
            with pytest.raises(TypeError, match="a and b must have dtypes that promote"):
                parprims.linear_recurrence(one, other)
        with pytest.raises(TypeError, match="a must be an array"):
            parprims.linear_recurrence("0.5", x)
        with pytest.raises(TypeError, match="a must be an array"):
            parprims.linear_recurrence(0.5, 0.5)
        with pytest.raises(TypeError, match="a must fit dtype int64"):
            parprims.linear_recurrence(0.5, whole)
        with pytest.raises(ValueError, match="initial"):
            parprims.linear_recurrence(x, x, initial=backend.asarray(np.ones(3)))
        with pytest.raises(TypeError, match="initial"):
            parprims.linear_recurrence(whole, whole, initial=0.5)
        with pytest.raises(IndexError, match="axis"):
            parprims.linear_recurrence(backend.asarray(np.asarray(1.0)), backend.asarray(np.asarray(1.0)))


@pytest.mark.once
@pytest.mark.parametrize("wide", [2, 256])
def test_numpys_way_in_the_memory_of_the_result(rng, monkeypatch, wide):
    """Rows added one after another, ends, identities: the bits of what accumulate does with the elements in order."""
    monkeypatch.setattr(scan_array, "_WIDE", wide)
    whole, ufuncs = ("bool", "uint8", "int32", "int64"), {"add": np.add, "multiply": np.multiply, "maximum": np.maximum}
    for dtype, op, shape in itertools.product(
        ("float32", "float64", *whole), ufuncs, [(5,), (3, 4), (2, 3, 4), (2, 0)]
    ):
        if op == "maximum" and dtype == "bool":
            continue
        x = (rng.standard_normal(shape) * 2).astype(dtype)
        for axis, exclusive, reverse in itertools.product(range(len(shape)), (False, True), (False, True)):
            found = parprims.scan(x, op, axis=axis, exclusive=exclusive, reverse=reverse, method="native")
            terms = np.flip(x, axis) if reverse else x
            expected = ufuncs[op].accumulate(terms, axis, found.dtype)
            if exclusive and shape[axis]:
                least = -np.inf if dtype.startswith("float") else 0 if dtype == "bool" else np.iinfo(dtype).min
                first = np.full_like(expected.take([0], axis), {"add": 0, "multiply": 1, "maximum": least}[op])
                expected = np.concatenate([first, expected.take(range(shape[axis] - 1), axis)], axis)
            np.testing.assert_array_equal(found, np.flip(expected, axis) if reverse else expected)
            assert not np.shares_memory(found, x)


@pytest.mark.once
@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
def test_integers_of_tensors_widen(name):
    torch = pytest.importorskip("torch")
    for given in (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64):
        x = torch.tensor([[1, 2, 3], [4, 100, 6]]).to(given)
        for dtype in (None, torch.int8, torch.int32, torch.float32):
            for axis in (0, 1):
                found, expected = (
                    getattr(parprims, name)(x, axis=axis, dtype=dtype, method=method) for method in ("native", "array")
                )
                assert found.dtype == (dtype or (torch.uint64 if given == torch.uint8 else torch.int64))
                assert torch.equal(found, expected)
