"""Elements of any structure: NamedTuples, dicts and tuples of arrays, nested, in every call that takes elements."""

from typing import NamedTuple

import numpy as np
import pytest
from array_api_compat import array_namespace

import parprims
from parprims._core import elements as core_elements
from parprims._operators import function_key, tracing
from tests.support.contract import compare


class Affine(NamedTuple):
    """The map x -> slope x + offset."""

    slope: np.ndarray
    offset: np.ndarray


class Filtered(NamedTuple):
    """One element of a Kalman filter in parallel (Sarkka and Garcia-Fernandez 2021) for one state variable.

    The state given the one before and the measurements between is normal with mean a x + b and variance c; of the one
    before those measurements tell with information eta and j.
    """

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    eta: np.ndarray
    j: np.ndarray


def compose(earlier, later):
    return Affine(later.slope * earlier.slope, later.slope * earlier.offset + later.offset)


def filtering(earlier, later):
    inverse = 1.0 / (1.0 + earlier.c * later.j)
    return Filtered(
        a=later.a * earlier.a * inverse,
        b=later.a * (earlier.b + earlier.c * later.eta) * inverse + later.b,
        c=later.a * later.a * earlier.c * inverse + later.c,
        eta=earlier.a * (later.eta - later.j * earlier.b) * inverse + earlier.eta,
        j=earlier.a * earlier.a * later.j * inverse + earlier.j,
    )


COMPOSE = parprims.Operator(compose, identity=Affine(1, 0))


def methods(backend):
    """Return the methods that serve operators of one's own."""
    yield "native" if backend.name == "jax" else "array"
    if backend.cuda:
        yield "kernel"


def length(backend, n):
    """Return n, or little on JAX, which compiles for every shape."""
    return 5 if backend.name == "jax" else n


def maps(rng, backend, shape):
    slope, offset = rng.integers(-2, 3, shape), rng.integers(-9, 9, shape)
    return (slope, offset), Affine(backend.asarray(slope), backend.asarray(offset))


class TestNamedTuple:
    def test_scan(self, backend, rng):
        (slope, offset), x = maps(rng, backend, (3, length(backend, 50)))
        for method in methods(backend):
            expected = parprims.scan((slope, offset), "affine", method="array")
            for op in (COMPOSE, compose, "affine"):
                for _ in range(2):
                    result = parprims.scan(x, op, method=method)
                    assert type(result) is Affine
                    compare(backend, tuple(result), expected)

    def test_options(self, backend, rng):
        (slope, offset), x = maps(rng, backend, (length(backend, 20),))
        for options in (
            {"exclusive": True},
            {"reverse": True},
            {"initial": Affine(2, 3)},
            {"initial": (2, 3), "exclusive": True},
        ):
            plain = {**options, "initial": tuple(options["initial"])} if "initial" in options else options
            expected = parprims.scan((slope, offset), "affine", **plain)
            compare(backend, tuple(parprims.scan(x, COMPOSE, method="array", **options)), expected)
        for dtype in (Affine("float64", "float64"), ("float64", "float64")):
            dtypes = (
                type(dtype)(*map(backend.dtype, dtype)) if type(dtype) is Affine else tuple(map(backend.dtype, dtype))
            )
            result = parprims.scan(x, COMPOSE, dtype=dtypes)
            compare(backend, tuple(result), parprims.scan((slope.astype(float), offset.astype(float)), "affine"))
            assert backend.to_numpy(result.slope).dtype == np.float64

    def test_reduce(self, backend, rng):
        (slope, offset), x = maps(rng, backend, (4, 9))
        for method in methods(backend):
            if method == "native":
                continue
            for options in ({"axis": 1}, {"axis": 0, "keepdims": True}, {"axis": 1, "initial": Affine(2, 3)}):
                result = parprims.reduce(x, COMPOSE, method=method, **options)
                plain = {**options, "initial": tuple(options["initial"])} if "initial" in options else options
                assert type(result) is Affine
                compare(backend, tuple(result), parprims.reduce((slope, offset), "affine", **plain))
        empty = parprims.reduce(Affine(x.slope[:0, ...], x.offset[:0, ...]), COMPOSE, axis=0)
        compare(backend, tuple(empty), (np.ones(9), np.zeros(9)))

    def test_map_reduce(self, backend, rng):
        (slope, offset), x = maps(rng, backend, (4, 9))
        expected = parprims.reduce((2 * slope, offset), "affine", axis=1)
        for method in methods(backend):
            if method == "native":
                continue
            for start in (None, Affine(2, 3), (2, 3)):
                first = (1, 0) if start is None else start
                for _ in range(2):
                    result = parprims.map_reduce(
                        lambda a, b: Affine(2 * a, b), *x, op=compose, axis=1, initial=start, method=method
                    )
                    assert type(result) is Affine
                    after = expected[0] * first[0], expected[0] * first[1] + expected[1]
                    compare(backend, tuple(result), after)
            result = parprims.map_reduce(lambda a, b: Affine(2 * a, b), *x, op="affine", axis=1, method=method)
            compare(backend, tuple(result), expected)
            assert type(result) is Affine

    def test_check_associative(self, backend, rng):
        _, x = maps(rng, backend, (length(backend, 30),))
        assert parprims.check_associative(COMPOSE, x)
        wrong = parprims.Operator(lambda e, later: Affine(e.slope - later.slope, later.offset), name="wrong")
        with pytest.raises(ValueError, match="op wrong is not associative"):
            parprims.check_associative(wrong, x)


class TestNested:
    def test_dicts_in_tuples(self, backend, rng):
        x, y, z = rng.integers(-9, 9, (3, length(backend, 40)))

        def combine(earlier, later):
            (one, more), (other, others) = earlier, later
            xp = array_namespace(one)
            return one + other, {"most": xp.maximum(more["most"], others["most"]), "last": others["last"]}

        elements = backend.asarray(x), {"most": backend.asarray(y), "last": backend.asarray(z)}
        expected = np.cumsum(x), np.maximum.accumulate(y), z
        for method in methods(backend):
            total, rest = parprims.scan(elements, combine, method=method)
            assert list(rest) == ["last", "most"]
            compare(backend, (total, rest["most"], rest["last"]), expected)
            options = {"initial": (100, {"last": 0, "most": 8}), "method": method}
            total, rest = parprims.scan(elements, combine, **options)
            compare(backend, (total, rest["most"]), (expected[0] + 100, np.maximum(expected[1], 8)))
        op = parprims.Operator(combine, identity=(0, {"most": -99, "last": 7}))
        total, rest = parprims.scan(elements, op, exclusive=True)
        compare(backend, (total[0], rest["most"][0], rest["last"][0]), (0, -99, 7))

    def test_a_dict_of_one(self, backend):
        x = {"only": backend.asarray(np.arange(5))}
        result = parprims.scan(x, lambda e, later: {"only": e["only"] + later["only"]})
        compare(backend, result["only"], np.cumsum(np.arange(5)))
        total = parprims.map_reduce(lambda x: {"only": x}, x["only"], op=lambda e, f: {"only": e["only"] + f["only"]})
        compare(backend, total["only"], 10)

    def test_segments(self, backend, rng):
        (slope, offset), x = maps(rng, backend, (length(backend, 30),))
        flags = rng.random(len(slope)) < 0.3
        for method in methods(backend):
            for options in ({}, {"exclusive": True}):
                seen, result = parprims.scan(
                    (backend.asarray(flags), x), parprims.segmented(COMPOSE), method=method, **options
                )
                expected = parprims.scan(
                    (flags, slope, offset), parprims.segmented("affine"), method="array", **options
                )
                assert type(result) is Affine
                compare(backend, (seen, *result), expected)

    def test_result_of_another_structure(self, backend):
        x = backend.asarray(np.arange(6))
        for combine, got in (
            (lambda e, later: (e.slope, later.offset), r"\(\*, \*\)"),
            (lambda e, later: {"slope": e.slope, "offset": later.offset}, r"\{'offset': \*, 'slope': \*\}"),
            (lambda e, _: e.slope, r"\*"),
        ):
            for function in (parprims.scan, parprims.reduce, parprims.check_associative):
                arguments = (Affine(x, x), parprims.Operator(combine, name="tried"))
                if function is parprims.check_associative:
                    arguments = arguments[::-1]
                with pytest.raises(
                    TypeError, match=rf"^op tried returned {got} for elements Affine\(slope=\*, offset=\*"
                ):
                    function(*arguments)

    def test_arguments_of_another_structure(self, backend):
        x = backend.asarray(np.arange(6))
        with pytest.raises(
            TypeError, match=r"^initial must be \{'a': \*, 'b': \*\} or a tuple, got \{'a': \*, 'c': \*\}"
        ):
            parprims.scan({"a": x, "b": x}, lambda e, _: e, initial={"a": 0, "c": 0})
        op = parprims.Operator(lambda e, _: e, identity=Affine(0, 0), name="tried")
        with pytest.raises(TypeError, match=r"^the identity of op tried must be .* got Affine"):
            parprims.scan({"a": x, "b": x}, op, exclusive=True)
        with pytest.raises(ValueError, match="initial must have 2 entries"):
            parprims.scan({"a": x, "b": x}, lambda e, _: e, initial=(0, 0, 0))
        with pytest.raises(ValueError, match="op tried works on elements of 3 arrays"):
            parprims.scan(Affine(x, x), parprims.Operator(compose, components=3, name="tried"))
        with pytest.raises(TypeError, match="x must have keys that can be sorted"):
            parprims.scan({"a": x, 1: x}, lambda e, _: e)
        with pytest.raises(TypeError, match=r"x\[1\]\['a'\]\[0\] must be an array, got float"):
            parprims.scan((x, {"a": [1.0]}), lambda e, _: e)
        with pytest.raises(ValueError, match="at least one array"):
            parprims.scan({}, lambda e, _: e)
        with pytest.raises(TypeError, match=r"op segmented.* works on tuples of flags and elements"):
            parprims.scan({"a": x, "b": x}, parprims.segmented(compose))


class TestKalman:
    """A filter for a random walk seen with noise, by a scan of NamedTuples of five arrays, against its recursion."""

    def test_filter(self, backend, rng):
        self.check(backend, rng, methods(backend))

    def test_filter_of_tensors(self, tensors, rng):
        self.check(tensors, rng, ("array", "kernel"))

    def check(self, backend, rng, methods):
        steps = length(backend, 60)
        f, q, h, r, mean, variance = 0.9, 0.3, 1.5, 0.2, 0.4, 2.0
        y = rng.standard_normal((3, steps))
        expected = np.empty_like(y)
        for line in range(3):
            m, p = mean, variance
            for n in range(steps):
                if n:
                    m, p = f * m, f * p * f + q
                gain = p * h / (h * p * h + r)
                m, p = m + gain * (y[line, n] - h * m), (1 - gain * h) * p
                expected[line, n] = m
        gain = q * h / (h * q * h + r)
        whole = np.ones_like(y)
        parts = [
            (1 - gain * h) * f * whole,
            gain * y,
            (1 - gain * h) * q * whole,
            f * h / (h * q * h + r) * y,
            (f * h) ** 2 / (h * q * h + r) * whole,
        ]
        first = variance * h / (h * variance * h + r)
        for part, value in zip(
            parts, (0, mean + first * (y[:, 0] - h * mean), (1 - first * h) * variance, 0, 0), strict=True
        ):
            part[:, 0] = value
        elements = Filtered(*map(backend.asarray, parts))
        for method in methods:
            for _ in range(2):
                result = parprims.scan(elements, filtering, method=method)
                assert type(result) is Filtered
                # A contraction: what a combination rounds off is not made larger by later ones.
                compare(backend, result.b, expected, steps * 8 * np.finfo(float).eps * abs(expected).max())


class TestSizes:
    """Components of several sizes, between which a state has gaps that are passed from block to block too."""

    def test_of_a_state(self):
        assert tracing.state_size(("bool", "int64")) == 16
        assert tracing.state_size(("int8", "int8", "int16", "float16")) == 8
        assert tracing.state_size(("float32", "complex128", "bool")) == 48
        assert tracing.state_size(("complex64", "float32")) == 16

    @pytest.mark.sanitize
    def test_between_blocks(self, gpu, rng):
        def last(_, later):
            return later

        for n in (9, 40_000):
            shape = (n,) if n > 9 else (5000, n)
            xs = tuple(rng.integers(0, 2, shape).astype(name) for name in ("bool", "int64", "bool", "int64"))
            arrays = tuple(map(gpu.asarray, xs))
            op = parprims.Operator(last, identity=(False, 0, False, 0))
            compare(gpu, parprims.reduce(arrays, op, axis=0, method="kernel"), tuple(x[-1] for x in xs))
            compare(gpu, parprims.scan(arrays, op, axis=0, method="kernel"), xs)


class TestStructures:
    def test_round_trip(self):
        x = ({"b": 1, "a": (2, 3)}, Affine(4, {"c": 5}), 6, ())
        leaves, structure = core_elements.flattened(x)
        assert leaves == (2, 3, 1, 4, 5, 6)
        assert core_elements.rebuilt(structure, leaves) == x
        assert core_elements.as_text(structure) == "({'a': (*, *), 'b': *}, Affine(slope=*, offset={'c': *}), *, ())"

    def test_plain_elements_are_left_alone(self):
        for plain in (1, (1, 2), (1,), (), [1, (2,)], np.ones(3)):
            assert not core_elements.is_structured(plain)
        for structured in (Affine(1, 2), {}, (1, (2,)), ({},)):
            assert core_elements.is_structured(structured)

    def test_operators_on_structures_are_remembered(self):
        def key(kind):
            _, structure = core_elements.flattened(kind(1, 2))
            return function_key.lasting_key(
                parprims._operators.operator.restructured(parprims.Operator(compose), structure)
            )

        class Other(NamedTuple):
            slope: int
            offset: int

        class Own(NamedTuple):
            slope: int
            offset: int

            @property
            def twice(self):
                return 2 * self.slope

        assert key(Affine) == key(Affine) is not None
        assert key(Other) not in (None, key(Affine))
        assert key(Own) is None
