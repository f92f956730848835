"""The laws every primitive keeps, on every backend and by every method.

A test class names the function, its inputs, its reference and its error bound, and inherits the laws from
`Contract`. The reference is a plain sequential loop or an independent NumPy expression in higher precision that
shares no code with the library.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import parprims
from tests.support.covering import lacks_dtype
from tests.trust.recorder import errors

Arrays = tuple[np.ndarray, ...]


def compare(backend: Any, result: Any, expected: Any, bound: Any = 0.0, dtype: str | None = None) -> None:
    """Assert that a result has the namespace, shape, dtype and, within the bound, the values expected.

    A NaN passes only where the reference has one, an infinity only where the reference has the same. What the error
    is of the bound goes on record (``pytest --record-errors``).
    """
    if isinstance(expected, tuple):
        assert isinstance(result, tuple)
        assert len(result) == len(expected)
        bounds = bound if isinstance(bound, tuple) else (bound,) * len(expected)
        for one, other, allowed in zip(result, expected, bounds, strict=True):
            compare(backend, one, other, allowed)
        return
    assert parprims._core.arrays.namespace(result=result) is backend.xp
    got = backend.to_numpy(result)
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    if dtype is not None:
        assert got.dtype.name == dtype
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, expected)
        errors.note(backend, result, got.dtype.name)
        return
    name, wide = got.dtype.name, np.complex128 if got.dtype.kind == "c" else np.float64
    got, expected = got.astype(wide), expected.astype(wide)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    same = (got == expected) | np.isnan(expected)
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, abs(got - expected))
    errors.note(backend, result, name, error, bound)
    worst = np.max(error - np.broadcast_to(bound, error.shape), initial=-np.inf)
    if not np.all(error <= bound):
        raise AssertionError(
            f"error exceeds the bound by {worst}: largest error {np.max(error)}, bound {np.max(bound)}"
        )


def within(error: Any, bound: Any, primitive: str, method: str, dtype: str, backend: Any) -> None:
    """Assert that an error that a test measured itself is within its bound, and put it on record under these names."""
    errors.add(primitive, method, dtype, backend.name, error, bound)
    assert np.all(error <= bound)


def eps(dtype: str) -> float:
    """Return the distance from 1 to the next number of a floating dtype, real or complex."""
    widths = {"bfloat16": 2.0**-7, "complex64": 2.0**-23, "complex128": 2.0**-52}
    return widths.get(dtype) or float(np.finfo(dtype).eps)


def numpy_dtype(name: str) -> np.dtype:
    """Return NumPy's dtype of a name, bfloat16 included."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return random numbers of a dtype: small integers, standard normals, fair bools."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.startswith("complex"):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if dtype == "bfloat16" or dtype.startswith("float"):
        return rng.standard_normal(shape).astype(numpy_dtype(dtype))
    low = -9 if dtype.startswith("int") else 0
    return rng.integers(low, 10, shape).astype(dtype)


_COMPILED = ("bool", "int8", "uint64", "float16", "float32", "complex128")
"""Dtypes of every kind and most widths."""


_COMPILING = ("numpy", "jax", "torch")
"""The libraries whose kernels Numba compiles."""


def compiled_slowly(backend: Any, method: str) -> bool:
    """Return whether a method is by kernels for CPUs: each takes half a second to compile, and is one for every dtype.

    test_cpu.py and test_sort_cpu.py have elementwise functions and keys of every dtype.
    """
    return method == "kernel" and backend.name in _COMPILING and backend.kernels


def some_dtypes(backend: Any, method: str, dtypes: Sequence[str]) -> Sequence[str]:
    """Return all dtypes, or some of every kind for kernels that are compiled slowly."""
    if not compiled_slowly(backend, method):
        return dtypes
    return [one for one in dtypes if one in _COMPILED] or dtypes


def skip_without_derivative(backend, method):
    """Skip a test of a primitive whose kernel for GPUs refuses where PyTorch asks for a derivative."""
    if backend.name == "torch-cuda" and method == "kernel":
        pytest.skip("a gradient is asked for, which the kernel does not carry")


def check_derivatives(backend, function, inputs, order=1, **tolerances):
    """Hold derivatives of a function of arrays, up to an order, against differences.

    JAX does so under jit, which compiles a few programs in the place of every operation. Calls outside of it are in
    test_jax.py.
    """
    if backend.family == "torch":
        from torch.autograd import gradcheck, gradgradcheck

        given = tuple(backend.asarray(x).requires_grad_() for x in inputs)
        assert gradcheck(function, given)
        assert order == 1 or gradgradcheck(function, given)
    elif backend.family == "jax":
        from jax import jit
        from jax.test_util import check_grads

        check_grads(jit(function), tuple(map(backend.asarray, inputs)), order=order, modes=("rev",), **tolerances)
    else:
        pytest.skip("has no derivatives")


def check_equal_derivatives(backend, ours, theirs, inputs, **tolerances):
    """Hold derivatives of a loss against those of another; skip the test if a method refuses the first.

    Losses take arrays like the ``inputs``; JAX differentiates them under jit.
    """

    def gradients(loss):
        given = tuple(map(backend.asarray, inputs))
        if backend.family == "jax":
            import jax

            return [np.asarray(g) for g in jax.jit(jax.grad(loss, argnums=tuple(range(len(given)))))(*given)]
        leaves = [x.requires_grad_() for x in given]
        loss(*leaves).backward()
        return [backend.to_numpy(x.grad) for x in leaves]

    try:
        found = gradients(ours)
    except parprims.MethodRefused as refusal:
        pytest.skip(str(refusal))
    for one, other in zip(found, gradients(theirs), strict=True):
        np.testing.assert_allclose(one, other, **tolerances)


def few_on_jax(gpu: Any, rng: np.random.Generator, items: Sequence[Any], few: int) -> Sequence[Any]:
    """Return all items, or on JAX, which compiles for every shape, a few of them."""
    if gpu.name != "jax-cuda":
        return items
    return [items[index] for index in sorted(rng.choice(len(items), min(few, len(items)), replace=False))]


def strided(backend: Any, x: np.ndarray) -> Any:
    """Return x as every second element of a larger array."""
    wide = np.repeat(x, 2, axis=-1)
    wide[..., 1::2] = wide[..., 1::2][..., ::-1]
    return backend.asarray(wide)[..., ::2]


def reversed_view(backend: Any, x: np.ndarray) -> Any:
    """Return x as a view with a negative stride, where the library has such views."""
    y = backend.asarray(np.ascontiguousarray(x[..., ::-1]))
    return y[..., ::-1] if backend.negative_strides else backend.xp.flip(y, axis=-1)


def transposed(backend: Any, x: np.ndarray) -> Any:
    """Return x as a view with its axes stored in the opposite order."""
    axes = tuple(reversed(range(x.ndim)))
    return backend.xp.permute_dims(backend.asarray(np.ascontiguousarray(x.transpose(axes))), axes)


def unaligned(backend: Any, x: np.ndarray) -> Any:
    """Return x as a view that starts one element after an aligned address."""
    flat = np.concatenate([x.reshape(-1)[:1], x.reshape(-1)])
    return backend.xp.reshape(backend.asarray(flat)[1:], x.shape)


def read_only(backend: Any, x: np.ndarray) -> Any:
    """Return x as an array that cannot be written, where the library has such arrays."""
    y = backend.asarray(x)
    if backend.name == "numpy":
        y = y.copy()
        y.flags.writeable = False
    return y


# One, two and three axes, each of them the working one; it empty, of length 1 or more, and others empty.
SHAPES_COMPILED = (
    ((6,), -1),
    ((1, 5), -2),
    ((4, 0), -1),
    ((0, 3), -1),
    ((2, 6, 3), -3),
    ((3, 1, 2), -2),
    ((5, 2, 4), -1),
)
VIEWS = (strided, reversed_view, transposed, unaligned, read_only)


class Contract:
    """The laws. A subclass fills in what is left open here.

    The first input's shape is the shape asked for; the length of the working axis is ``shape[axis]``.
    """

    methods: ClassVar[tuple[str, ...]] = ("array", "native")
    """The methods the primitive has, apart from auto."""
    dtypes: ClassVar[tuple[str, ...]] = ("int32", "int64", "float32", "float64")
    """The dtypes it is defined for."""
    lengths: ClassVar[tuple[int, ...]] = (0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 127, 128, 129, 1000)
    """Lengths along the working axis; around every power of two and tile edge that the code knows."""
    compiled_lengths: ClassVar[tuple[int, ...]] = (0, 1, 2, 5, 33, 128, 1000)
    """Those for JAX on a CPU, which compiles for every length: the ends, odd, even, and what the array form knows."""
    many: int = 1037
    """A length at which the order of combining shows in the bits."""
    plain: str = "float32"
    """The dtype of programs in which the dtype is not the question."""
    options: ClassVar[dict[str, Any]] = {}
    """Keyword arguments of every call."""
    ran: str | None = None
    """The method that the call checked was computed by, which bounds may depend on."""

    @classmethod
    def left_out(cls, law: str, given: dict[str, Any]) -> str:
        """Return the sentence why a case of a law is not tested, or nothing.

        JAX on a CPU compiles for every shape: it is saved what was tested under another name.
        """
        backend, method = given.get("backend", ""), given.get("method", "")
        if law == "test_jit" and not backend.startswith("jax"):
            return "only JAX traces"
        if law == "test_view" and backend == "jax":
            return "JAX has no views"
        if law in ("test_length", "test_axis", "test_any_shape") and (backend, method) == ("jax", "auto"):
            return "auto takes a method that is tested by name"
        some = [one for one in cls.dtypes if one in _COMPILED] or cls.dtypes
        if law == "test_dtype" and method == "kernel" and backend in _COMPILING and given["dtype"] not in some:
            return "a kernel for every dtype takes long to compile here"
        return ""

    @classmethod
    def only_refused(cls, law: str, given: dict[str, Any]) -> bool:
        """Return whether a case of a law can only be refused: see covering.py."""
        if law == "test_jit" and given["method"] == "kernel" and given["backend"] == "jax":
            return True  # on a CPU programs of JAX have no kernels
        return law == "test_dtype" and lacks_dtype(given)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a case of every dtype, which are others in every class."""
        if metafunc.function.__name__ == "test_dtype":
            metafunc.parametrize("dtype", self.dtypes)

    def function(self, *arrays: Any, **options: Any) -> Any:
        """Call the public function."""
        raise NotImplementedError

    def make(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Arrays:
        """Return random, non-constant inputs."""
        raise NotImplementedError

    def reference(self, *inputs: np.ndarray, axis: int, **options: Any) -> Any:
        """Return the result by a sequential loop or in higher precision."""
        raise NotImplementedError

    def bound(self, *inputs: np.ndarray, axis: int, **options: Any) -> Any:
        """Return the largest absolute error allowed, elementwise; integers are exact whatever it says.

        It is the one documented for the method that ran, `ran`.
        """
        raise NotImplementedError

    def result_dtype(self, dtype: str) -> str | None:
        """Return the dtype of the result for inputs of one dtype, None where backends may differ."""
        return dtype

    def check(self, backend: Any, run: Any, method: str, inputs: Arrays, arrays: Any = None, **options: Any) -> Any:
        """Call by the method and compare with the reference; return the result."""
        options = {"axis": -1, **self.options, **options}
        if arrays is None:
            arrays = tuple(backend.asarray(x) for x in inputs)
        result = run(self.function, *arrays, method=method, **options)
        self.ran = run.method
        compare(
            backend,
            result,
            self.reference(*inputs, **options),
            self.bound(*inputs, **options),
            self.result_dtype(inputs[0].dtype.name),
        )
        return result

    def test_length(self, backend, run, method, rng, subtests):
        for n in self.compiled_lengths if backend.name == "jax" else self.lengths:
            with subtests.test(n=n):
                self.check(backend, run, method, self.make(rng, (n,), "float32"))

    @pytest.mark.optimised
    def test_dtype(self, backend, run, method, rng, dtype):
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        self.check(backend, run, method, self.make(rng, (3, 37), dtype))

    @pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
    def test_axis(self, backend, run, method, rng, axis):
        self.check(backend, run, method, self.make(rng, (3, 5, 4), "float32"), axis=axis)

    @pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
    @pytest.mark.parametrize("axis", [0, 1])
    def test_view(self, backend, run, method, rng, view, axis):
        inputs = self.make(rng, (6, 9), "float32")
        self.check(backend, run, method, inputs, tuple(view(backend, x) for x in inputs), axis=axis)

    def test_inputs_untouched(self, backend, run, method, rng):
        inputs = self.make(rng, (4, 33), "float32")
        arrays = tuple(backend.asarray(x.copy()) for x in inputs)
        self.check(backend, run, method, inputs, arrays)
        for before, after in zip(inputs, arrays, strict=True):
            np.testing.assert_array_equal(backend.to_numpy(after), before)

    def test_device_kept(self, backend, run, method, rng):
        from array_api_compat import device

        arrays = tuple(backend.asarray(x) for x in self.make(rng, (4, 33), "float32"))
        result = run(self.function, *arrays, method=method, **{"axis": -1, **self.options})
        for one in result if isinstance(result, tuple) else (result,):
            assert device(one) == device(arrays[0])

    @pytest.mark.optimised
    def test_same_bits_twice(self, backend, run, method, rng):
        arrays = tuple(backend.asarray(x) for x in self.make(rng, (3, self.many), self.plain))
        options = {"axis": -1, **self.options}
        first, second = (run(self.function, *arrays, method=method, **options) for _ in range(2))
        ones = first if isinstance(first, tuple) else (first,)
        others = second if isinstance(second, tuple) else (second,)
        for one, other in zip(ones, others, strict=True):
            assert backend.to_numpy(one).tobytes() == backend.to_numpy(other).tobytes()

    @pytest.mark.optimised
    def test_jit(self, backend, run, method, rng):
        import jax

        inputs = self.make(rng, (4, 33), self.plain)
        arrays = tuple(backend.asarray(x) for x in inputs)
        options = {"axis": -1, **self.options}
        result = jax.jit(lambda *xs: run(self.function, *xs, method=method, **options))(*arrays)
        self.ran = run.method
        compare(backend, result, self.reference(*inputs, **options), self.bound(*inputs, **options))

    def test_any_shape(self, backend, run, method):
        def law(shape, axis, seed, wide):
            dtype = "float64" if wide else "int32"
            if dtype not in self.dtypes:
                dtype = "float64"
            inputs = self.make(np.random.default_rng(seed), tuple(shape), dtype)
            self.check(backend, run, method, inputs, axis=axis)

        if backend.name == "jax":  # compiles for every shape
            for index, (shape, axis) in enumerate(SHAPES_COMPILED):
                for seed in range(3):
                    law(shape, axis, seed, index % 2 == 0)
            return

        @settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(
            st.lists(st.integers(0, 6), min_size=1, max_size=3), st.integers(0, 2), st.integers(0, 2**32), st.booleans()
        )
        def any_law(shape, axis, seed, wide):
            law(shape, axis % len(shape) - len(shape), seed, wide)

        any_law()

    def test_unknown_method_named(self, backend, rng):
        arrays = tuple(backend.asarray(x) for x in self.make(rng, (3, 4), "float32"))
        with pytest.raises(ValueError, match="method"):
            self.function(*arrays, method="vendor", **{"axis": -1, **self.options})

    def test_bad_axis_named(self, backend, rng):
        arrays = tuple(backend.asarray(x) for x in self.make(rng, (3, 4), "float32"))
        for axis in (2, -3):
            with pytest.raises(IndexError, match="axis"):
                self.function(*arrays, **{**self.options, "axis": axis})
        with pytest.raises(TypeError, match="axis"):
            self.function(*arrays, **{**self.options, "axis": 0.5})

    def test_no_array_named(self, backend, rng):
        arrays = tuple(backend.asarray(x) for x in self.make(rng, (3, 4), "float32"))
        with pytest.raises(TypeError, match="must be an array"):
            self.function([1.0, 2.0], *arrays[1:], **{"axis": -1, **self.options})

    def test_mixed_namespaces_named(self, backend, rng):
        inputs = self.make(rng, (3, 4), "float32")
        if backend.name in ("numpy", "emulated") or len(inputs) == 1:
            pytest.skip("needs two libraries and two arrays")
        arrays = (*(backend.asarray(x) for x in inputs[:-1]), inputs[-1])
        with pytest.raises(TypeError, match="library"):
            self.function(*arrays, **{"axis": -1, **self.options})
