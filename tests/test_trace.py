"""Functions translated to CUDA: what they may do, what refuses, and that every translated function is right."""

import math

import numpy as np
import pytest
from array_api_compat import array_namespace

import parprims
from parprims import _reduce, _trace
from tests.contract import compare

ELEMENT = (("float32", "x"),)


def lines(function, *dtypes, packed=False):
    """Return what a function of scalars of these dtypes is translated to."""
    elements = tuple(((dtype, name),) for dtype, name in zip(dtypes, "xyz", strict=False))
    return _trace.trace("fn", function, *elements, packed=packed)


class TestTranslation:
    def test_operators_and_constants_take_the_dtype_of_the_arrays(self):
        traced = lines(lambda x: 2 * x - 1, "float64")
        assert traced.dtypes == ("float64",)
        assert traced.lines[0].startswith("const double t0 = ops::multiply(__longlong_as_double(")

    def test_constants_are_exact(self):
        for value in (0.1, -0.0, math.inf, 1e-310):
            assert f"{np.float64(value).view(np.int64)}LL" in _trace.literal(value, "float64")
        assert _trace.literal(-(2**63), "int64") == "(long long)9223372036854775808ULL"
        assert "9.0" not in _trace.literal(9.0, "float32")

    @pytest.mark.parametrize("library", ["standard", "numpy", "torch"])
    def test_functions_of_any_library(self, library):
        def standard(x, y):
            xp = array_namespace(x)
            return xp.where(x > y, xp.exp(x), xp.maximum(x, y))

        def with_numpy(x, y):
            return np.where(np.greater(x, y), np.exp(x), np.maximum(x, y))

        def with_torch(x, y):
            torch = pytest.importorskip("torch")
            return torch.where(torch.gt(x, y), torch.exp(x), torch.maximum(x, y))

        expected = [
            "const bool t0 = ops::greater(x, y);",
            "const float t1 = ops::exp(x);",
            "const float t2 = ops::maximum(x, y);",
            "const float t3 = t0 ? t1 : t2;",
        ]
        function = {"standard": standard, "numpy": with_numpy, "torch": with_torch}[library]
        assert lines(function, "float32", "float32").lines == expected

    def test_promotion_is_the_standard_s(self):
        assert lines(lambda x, y: x + y, "int8", "uint8").dtypes == ("int16",)
        assert lines(lambda x, y: x + y, "float32", "complex64").dtypes == ("complex64",)
        assert lines(lambda x, y: x + y, "bfloat16", "float32").dtypes == ("float32",)
        assert lines(lambda x: abs(x), "complex128").dtypes == ("float64",)
        assert lines(lambda x: x > 0, "int32").dtypes == ("bool",)

    @pytest.mark.parametrize(
        ("function", "dtypes", "reason"),
        [
            (lambda x: x if x > 0 else -x, ("float32",), "branches on the values"),
            (lambda x: math.sqrt(x), ("float32",), "asks for the value"),
            (lambda x: np.sort(x), ("float32",), "calls sort, which has no CUDA translation"),
            (lambda x: array_namespace(x).cumulative_sum(x), ("float32",), "calls cumulative_sum"),
            (lambda x: np.add.reduce(x), ("float32",), "is not elementwise"),
            (lambda x, y: x + y, ("int32", "float32"), "combines int32 with float32"),
            (lambda x, y: x + y, ("uint64", "int64"), "combines uint64 with int64"),
            (lambda x: x + 0.5, ("int32",), "combines int32 with 0.5"),
            (lambda x: x + 300, ("int8",), "out of the range of int8"),
            (lambda x: x[0], ("float32",), "indexes an array"),
            (lambda x: x & 1, ("float32",), "bitwise_and is not defined for float32"),
            (lambda x: x < 1, ("complex64",), "less is not defined for complex64"),
            (lambda _: 3, ("float32",), "returns int, not an array"),
            (lambda x: x.mean(), ("float32",), "AttributeError"),
        ],
    )
    def test_what_cannot_be_translated_says_why(self, function, dtypes, reason):
        with pytest.raises(_trace.Untraceable, match=reason):
            lines(function, *dtypes)

    def test_other_combines_are_refused_with_the_reason(self):
        with pytest.raises(_trace.Untraceable, match="returns"):
            lines(lambda x: [x], "float32")


class TestLastingKey:
    def test_code_and_plain_captures_make_the_key(self):
        def make(scale):
            return lambda x: x * scale

        assert _trace.lasting_key(make(2.0)) == _trace.lasting_key(make(2.0))
        assert _trace.lasting_key(make(2.0)) != _trace.lasting_key(make(3.0))
        assert _trace.lasting_key(make(0.0)) != _trace.lasting_key(make(-0.0))
        assert _trace.lasting_key(make(1)) != _trace.lasting_key(make(1.0))
        assert _trace.lasting_key(make(True)) != _trace.lasting_key(make(1))

    def test_captures_that_may_change_have_none(self):
        state = {"scale": 1}
        assert _trace.lasting_key(lambda x: x * state["scale"]) is None
        assert _trace.lasting_key(lambda x: (lambda: helper(x))()) is None
        assert _trace.lasting_key(lambda x: np.maximum(x, 0)) is not None
        assert _trace.lasting_key(_reduce._conjugate_product) is not None


def helper(x):
    return x


ARGUMENTS = {
    "float": np.array([-3.5, -2.5, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 7.0, np.inf, -np.inf, np.nan]),
    "int": np.array([-128, -127, -7, -2, -1, 0, 1, 2, 3, 6, 7, 100, 127, 5, -5]),
    "uint": np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 100, 127, 128, 200, 254, 255]),
    "bool": np.array([False, True] * 7 + [True]),
    "complex": np.array([-3.5, 1j, 2 - 1j, -0.5 + 0.25j, 0j, 1.0, 1e3 - 2j, 3j, 2.0, 1 + 1j, 5, 6, 7, 8, 9]),
}

# Units in the last place that CUDA's mathematical functions may be off, from its programming guide.
ULPS = {"float32": 8, "float64": 4, "complex64": 8, "complex128": 8}
EXACT = "maximum minimum floor ceil trunc round negative positive abs where sign add subtract multiply".split()


def _cases():
    for name, (kinds, _) in _trace._ELEMENTWISE.items():
        for kind in kinds:
            for dtype in {
                "float": ("float32", "float64"),
                "int": ("int8", "int64"),
                "uint": ("uint8", "uint64"),
                "bool": ("bool",),
                "complex": ("complex64", "complex128"),
            }[kind]:
                yield name, dtype


BINARY = set(
    "add subtract multiply divide floor_divide remainder maximum minimum equal not_equal less less_equal greater "
    "greater_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift "
    "bitwise_right_shift pow atan2 hypot copysign logaddexp".split()
)


class TestTranslatedFunctions:
    """Every function, on a GPU, at the values where it is easiest to get wrong, against NumPy."""

    def test_against_numpy(self, backend, run, subtests):
        if backend.name != "cupy":
            pytest.skip("needs CuPy on a GPU")
        from array_api_compat import numpy as xp

        for name, dtype in _cases():
            with subtests.test(function=name, dtype=dtype):
                values = ARGUMENTS[dtype.rstrip("0123456789")].astype(dtype)
                function = getattr(xp, name, None) or getattr(np, name)
                if name in BINARY:
                    x, y = (one.reshape(-1) for one in np.meshgrid(values, values))
                    if "shift" in name:
                        y = np.abs(y % 8)  # NumPy leaves other shifts open
                    if name == "divide" and dtype.startswith("complex"):
                        x, y = x[y != 0], y[y != 0]
                    inputs = (x, y)
                else:
                    inputs = (values,)
                expected = function(*inputs)

                def mapped(*arrays, name=name):
                    return getattr(array_namespace(arrays[0]), name)(*arrays)

                arrays = tuple(backend.asarray(one) for one in inputs)
                result = (
                    run(parprims.map_reduce, mapped, *arrays, op="bitwise_or", axis=(), method="kernel")
                    if (expected.dtype == bool)
                    else run(parprims.map_reduce, mapped, *arrays, op=_first, axis=(), method="kernel")
                )
                bound = 0.0
                if dtype in ULPS and name not in EXACT:
                    bound = np.nan_to_num(ULPS[dtype] * np.spacing(np.abs(expected)), nan=0, posinf=0)
                compare(backend, result, expected, bound)

    def test_casts(self, backend, run, subtests):
        if backend.name != "cupy":
            pytest.skip("needs CuPy on a GPU")
        x = np.array([0.0, 1.0, 100.4, -100.6, 65504.0, 1e-8, 3.14159274])
        for source in ("float16", "float32", "float64"):
            for target in ("float16", "float32", "float64", "int32", "int64", "bool", "complex64"):
                with subtests.test(source=source, target=target):
                    given = x.astype(source)
                    result = run(
                        parprims.map_reduce,
                        lambda x, target=target: array_namespace(x).astype(x, getattr(array_namespace(x), target)),
                        backend.asarray(given),
                        op=_first,
                        axis=(),
                        method="kernel",
                    )
                    compare(backend, result, given.astype(target))


_first = parprims.Operator(lambda earlier, _: earlier, name="first")
