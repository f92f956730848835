"""What comes in at the door: which arrays, numbers, dtypes and options are taken, and the sentence where one is not."""

import importlib.util
import inspect
import os
import subprocess
import sys
import tempfile
import textwrap
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import parprims
from parprims._dispatch.dispatch import primitives
from parprims._dispatch.examples import Sample
from parprims._dispatch.primitive import examples
from tests.fuzz import draw
from tests.fuzz.judge import leaves
from tests.fuzz.run import FUNCTIONS

X = np.array([3.0, 1.0, 2.0])
ONES = np.ones(3)
EXAMPLES = examples(lambda: Sample(X.shape, dtype="float64"))


def first(name):
    """Return what errors call the first array of an example call, and the call as a function of this array."""
    one = EXAMPLES[name]
    x, *others = one.arrays
    named = inspect.signature(one.function).bind(*one.args).arguments
    parameter = next((word for word, value in named.items() if value is x), r"arrays\[0\]")
    return parameter, lambda x, **options: one(x, *others, **options)


MEANING = {
    "masked": (np.ma.masked_array(X, [0, 1, 0]), "must be a plain array, got MaskedArray: its mask would be lost"),
    "matrix": (X.view(np.matrix), "must be a plain array, got matrix: convert it by numpy.asarray"),
    "recarray": (np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)]), "must be a plain array, got recarray"),
    "subclass": (X.view(draw.Plain), "must be a plain array, got Plain"),
    "structured": (np.zeros(3, dtype=[("a", int)]), "must have a dtype of numbers or bool, got"),
    "objects": (np.array([1, None]), "must have a dtype of numbers or bool, got object"),
    "strings": (np.array(["a", "b"]), "must have a dtype of numbers or bool, got str"),
    "dates": (np.array(["2020"], dtype="datetime64[s]"), "must have a dtype of numbers or bool, got datetime64"),
    "chunked": (draw.dask_array(), "is a dask array, and this call has no driver for chunks: call compute"),
    "list": ([1.0, 2.0], "must be an array, got list"),
    "None": (None, "must be an array, got NoneType"),
}


def test_every_primitive_is_here():
    assert {*primitives, "check_associative"} == set(FUNCTIONS)
    others = {"compare", "explain", "jax_export_checks", "launches", "methods", "segmented", "warm"}
    assert {name for name in parprims.__all__ if name.islower()} == {*FUNCTIONS, *others}


class TestArrays:
    @pytest.mark.parametrize("function", EXAMPLES)
    @pytest.mark.parametrize("what", MEANING)
    def test_meaning_lost_is_refused(self, function, what):
        if (function, what) == ("lfilter", "list"):
            pytest.skip("takes lists of coefficients, as SciPy")
        name, call = first(function)
        x, words = MEANING[what]
        with pytest.raises(TypeError, match=rf"^{name} {words}"):
            call(x)
        with pytest.raises(TypeError, match=rf"^{name} {words}"):
            parprims.methods(lambda: call(x))

    @pytest.mark.parametrize("function", EXAMPLES)
    def test_big_endian_is_converted(self, function):
        call = EXAMPLES[function]
        foreign = [x.astype(x.dtype.newbyteorder(">")) for x in call.arrays]
        before = [x.tobytes() for x in foreign]
        for name, reason in parprims.methods(call, *foreign).items():
            if reason is None:
                wanted, got = call(*call.arrays, method=name), call(*foreign, method=name)
                for one, other in zip(leaves(got), leaves(wanted), strict=True):
                    assert one.dtype == other.dtype
                    assert one.dtype.isnative
                    assert one.tobytes() == other.tobytes()
        assert [x.tobytes() for x in foreign] == before

    def test_big_endian_initial_values_and_dtype(self):
        start = np.asarray(2.0).astype(">f8")
        assert float(parprims.reduce(X, initial=start)) == 8.0
        assert parprims.scan(X.astype(">i4"), initial=np.asarray(2).astype(">i8")).tolist() == [5, 6, 8]
        assert parprims.linear_recurrence(X.astype(">f8"), X, initial=start).tolist() == [9.0, 10.0, 22.0]
        keys, values = parprims.sort_by_key(X.astype(">f4"), X.astype(">c16"))
        assert (keys.dtype, values.dtype) == (np.dtype("f4"), np.dtype("c16"))
        assert parprims.sum(np.arange(3), dtype=np.dtype(">f4")).dtype.isnative

    def test_memory_mapped_is_plain(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, call in EXAMPLES.items():
                x = call.arrays[0]
                mapped = np.memmap(Path(folder) / name, dtype=x.dtype, mode="w+", shape=x.shape)
                mapped[:] = x
                assert {type(one) for one in leaves(first(name)[1](mapped))} == {np.ndarray}, name
                del mapped

    def test_values_of_any_dtype_move(self):
        for values in (np.array(["c", "a", "b"]), np.array([3, None, "b"]), np.array(["2020"] * 3, dtype="M8[s]")):
            moved = parprims.sort_by_key(X, values)[1]
            assert moved.tolist() == values[[1, 2, 0]].tolist()

    def test_results_are_arrays_by_every_method(self):
        for method in ("auto", "array", "native"):
            for result in (
                parprims.sum(X, method=method),
                parprims.reduce(X, "maximum", initial=5.0, method=method),
                parprims.max(X, method=method),
                parprims.any(X, method=method),
                parprims.vecdot(X, X, method=method),
                parprims.matmul(X, X, method=method),
                parprims.map_reduce(draw.square, X, method=method),
                parprims.sum(np.float64(3.0), method=method),
                parprims.reduce(np.arange(0.0), method=method),
            ):
                assert type(result) is np.ndarray
                assert result.shape == ()
        assert type(parprims.reduce(X, draw.plus)) is np.ndarray
        for one in parprims.solve_tridiagonal(ONES, 4 * ONES, ONES, X, return_residual=True, return_status=True):
            assert type(one) is np.ndarray

    def test_an_operator_that_returns_its_argument_returns_no_view(self):
        start = np.ones((1,))
        for op in (draw.keep_first, draw.keep_last):
            for axis in (0, 1, ()):
                x = np.arange(3.0).reshape(1, 3)
                got = parprims.reduce(x, op, axis=axis)
                assert not np.shares_memory(got, x)
        assert not np.shares_memory(parprims.reduce(np.ones((1, 3)), draw.keep_first, axis=1, initial=start), start)
        assert not np.shares_memory(parprims.reduce(np.ones((1, 0)), axis=1, initial=start), start)

    def test_nothing_to_multiply(self, backend):
        a, b = (backend.asarray(np.ones(shape, np.float32)) for shape in ((0,), (0, 1)))
        for method in ("auto", "array"):
            got = parprims.matmul(a, b, add="minimum", multiply="add", method=method)
            assert backend.to_numpy(got).tolist() == [np.inf]

    def test_nothing_warns(self):
        huge, small = np.full(3, 1e308), np.array([1e-300, 1e-300, 0.0])
        half = np.full((3,), 6e4, dtype=np.float16)
        with np.errstate(all="raise"):
            for method in ("auto", "array"):
                assert np.isinf(parprims.sum(huge, method=method))
                assert parprims.prod(small, method=method) == 0
                assert np.isinf(parprims.cumulative_prod(huge, method=method)[-1])
                assert np.isinf(parprims.scan(half, method=method)[-1])
                assert np.isinf(parprims.matmul(huge, huge, method=method))
                zeros = np.zeros(3)
                assert np.isnan(
                    parprims.solve_tridiagonal(zeros, zeros, zeros, X, return_status=True, method=method)[0]
                ).all()
                assert np.isnan(parprims.linear_recurrence(huge, np.array([0.0, np.inf, np.nan]), method=method)[-1])


class TestOtherLibraries:
    def test_torch(self):
        torch = pytest.importorskip("torch")
        x = torch.ones(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of dtypes that are still young
            half = torch.zeros(3, dtype=torch.complex32)
        refused = {
            "layout torch.sparse_coo": torch.eye(3).to_sparse(),
            "NestedTensor": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            "complex32": half,
            "float8": x.to(torch.float8_e4m3fn),
            "got Own": x.as_subclass(type("Own", (torch.Tensor,), {})),
        }
        for words, one in refused.items():
            for function in (parprims.sum, parprims.sort, parprims.scan, parprims.any):
                with pytest.raises(TypeError, match=rf"^x .*{words}"):
                    function(one)
        assert parprims.sum(torch.nn.Parameter(x)).item() == 3.0
        fake = pytest.importorskip("torch._subclasses.fake_tensor")
        with fake.FakeTensorMode():
            assert parprims.sum(torch.empty(3, 4), axis=0).shape == (4,)

    def test_wide_unsigned_integers_of_torch(self):
        torch = pytest.importorskip("torch")
        for name in ("uint16", "uint32", "uint64"):
            x = torch.tensor([3, 1, 2], dtype=getattr(torch, name))
            assert int(parprims.sum(x)) == 6
            assert int(parprims.sum(x, dtype=x.dtype, method="array")) == 6
            assert int(parprims.vecdot(x, x)) == 14
            assert parprims.sort(x).tolist() == [1, 2, 3]
            for call in (
                lambda **options: parprims.max(x, **options),  # noqa: B023
                lambda **options: parprims.scan(x, "maximum", **options),  # noqa: B023
                lambda **options: parprims.reduce(x, draw.plus, **options),  # noqa: B023
                lambda **options: parprims.matmul(x, x, add="minimum", multiply="add", **options),  # noqa: B023
            ):
                reasons = parprims.methods(call)
                assert None not in (reasons["native"], reasons["array"])
                assert f"no arithmetic on {name}" in reasons["array"]
                if reasons["kernel"] is not None:
                    refused = f"every method refused: .*no arithmetic on {name}"
                    with pytest.raises(parprims.MethodRefused, match=refused):
                        call()
                with pytest.raises(parprims.MethodRefused, match=f"'array' refused: .*no arithmetic on {name}"):
                    call(method="array")

    def test_random_keys_of_jax(self):
        jax = pytest.importorskip("jax")
        keys = jax.random.split(jax.random.key(0), 3)
        for function in (parprims.sum, parprims.sort, parprims.scan):
            with pytest.raises(TypeError, match=r"^x must have a dtype of numbers or bool, got key<fry>"):
                function(keys)
        with pytest.raises(TypeError, match=r"^values\[0\] must have a dtype"):
            parprims.sort_by_key(jax.numpy.arange(3), keys)

    def test_arrays_sharded_over_devices_of_jax(self):
        pytest.importorskip("jax")
        program = """
            import warnings; warnings.simplefilter("error")
            import jax, numpy as np, parprims
            from jax.sharding import NamedSharding, PartitionSpec as P
            mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
            x = np.arange(8.0, dtype=np.float32)
            split, whole = (jax.device_put(x, NamedSharding(mesh, spec)) for spec in (P("i"), P()))
            for function in (parprims.sum, parprims.scan, parprims.sort, parprims.max):
                assert np.asarray(function(split)).tolist() == np.asarray(function(x)).tolist()
                assert parprims.methods(function, split)["array"] is None
            try:
                parprims.check_associative("add", split)
            except ValueError as error:
                assert "is sharded over 4 devices" in str(error), error
            else:
                raise SystemExit("took a sharded array")
            assert float(parprims.sum(whole)) == 28
            assert parprims.scan(whole, initial=whole[0]).tolist() == np.cumsum(x).tolist()
            one = jax.device_put(x, jax.devices()[1])
            assert parprims.sort(one).tolist() == x.tolist()
            a = jax.device_put(x.reshape(4, 2), NamedSharding(mesh, P("i")))
            b = jax.device_put(x.reshape(2, 4), NamedSharding(mesh, P(None, "i")))
            c = jax.device_put(x.reshape(2, 4), NamedSharding(mesh, P()))
            for other in (b, c):
                assert (np.asarray(parprims.matmul(a, other)) == x.reshape(4, 2) @ x.reshape(2, 4)).all()
            paths = {"add": "minimum", "multiply": "add"}
            expected = parprims.matmul(x.reshape(4, 2), x.reshape(2, 4), **paths)
            assert (np.asarray(parprims.matmul(a, b, **paths)) == expected).all()
            try:
                parprims.vecdot(one, whole)
            except ValueError as error:
                assert "all arrays must be on one device" in str(error)
            inside = lambda x: jax.lax.psum(parprims.sum(x), "i")
            assert float(jax.shard_map(inside, mesh=mesh, in_specs=P("i"), out_specs=P())(split)) == 28
            print("right")
        """
        flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
        path = os.pathsep.join((str(Path(parprims.__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True, text=True, env=os.environ | flags | {"PYTHONPATH": path}, check=False,
        )  # fmt: skip
        assert done.stdout.strip() == "right", done.stderr

    def test_an_array_of_chunks(self):
        dask = pytest.importorskip("dask.array")
        with pytest.raises(TypeError, match="axis_name"):
            parprims.sort(dask.ones(3), axis_name="i")
        with pytest.raises(TypeError, match=r"is a dask array, and this call"):
            parprims.check_associative("add", dask.ones(3))


class TestNumbers:
    def test_a_number_for_a_coefficient(self, backend):
        b = backend.asarray(np.ones(3, np.float32))
        wanted = [1.0, 1.5, 1.75]
        for a in (0.5, np.float32(0.5), np.float64(0.5), backend.asarray(np.asarray(0.5, np.float32))):
            got = parprims.linear_recurrence(a, b)
            assert backend.to_numpy(got).tolist() == wanted
        assert backend.to_numpy(parprims.linear_recurrence(b, 2)).tolist() == [2.0, 4.0, 6.0]
        whole = backend.asarray(np.ones(3, np.int32))
        with pytest.raises(TypeError, match=r"^a must fit dtype int32, got 0.5"):
            parprims.linear_recurrence(0.5, whole)
        with pytest.raises(TypeError, match=r"^a must be an array, got float"):
            parprims.linear_recurrence(0.5, 0.5)

    @pytest.mark.parametrize("number", [0.99, np.float64(0.99), np.float32(0.99), np.asarray(0.99)])
    def test_a_fraction(self, backend, number):
        """It is rounded to the dtype it goes into, of whatever type it is; integers are not made floats unasked."""
        ones = backend.asarray(np.ones(3, np.float32))
        wanted = np.float32([1.99, 2.99, 3.99])
        for call in (parprims.scan, lambda x, **k: parprims.linear_recurrence(x, x, **k)):
            got = call(ones, initial=number)
            assert got.dtype == ones.dtype
            assert np.allclose(backend.to_numpy(got), wanted, rtol=1e-6)
        assert np.isclose(float(parprims.reduce(ones, initial=number)), 3.99, rtol=1e-6)
        assert np.allclose(backend.to_numpy(parprims.linear_recurrence(number, ones)), [1, 1.99, 2.9701], rtol=1e-6)
        offsets = backend.asarray(np.array([0, 3]))
        got = parprims.linear_recurrence(number, ones, offsets=offsets)
        assert np.allclose(backend.to_numpy(got), [1, 1.99, 2.9701], rtol=1e-6)
        for dtype in (np.int32, np.int8, np.bool_):
            whole = backend.asarray(np.ones(3, dtype))
            for options in ({}, {"offsets": offsets}):
                with pytest.raises(TypeError, match=r"^a must fit dtype .*: cast b to a float dtype$"):
                    parprims.linear_recurrence(number, whole, **options)
                with pytest.raises(TypeError, match=r"^b must fit dtype .*: cast a to a float dtype$"):
                    parprims.linear_recurrence(whole, number, **options)

    @pytest.mark.parametrize("dtype", [np.float32, np.int32])
    def test_truth_values_are_factors(self, backend, dtype):
        keeps, x = np.array([True, False, True, True]), np.arange(1, 5).astype(dtype)
        for options in ({}, {"offsets": backend.asarray(np.array([0, 4]))}, {"reverse": True}):
            got, wanted = (
                parprims.linear_recurrence(backend.asarray(one), backend.asarray(x), **options)
                for one in (keeps, keeps.astype(dtype))
            )
            assert got.dtype == wanted.dtype
            assert backend.to_numpy(got).tolist() == backend.to_numpy(wanted).tolist()

    def test_numbers_of_numpy(self, backend):
        x = backend.asarray(np.ones(3, np.float64))
        narrow = backend.asarray(np.ones(3, np.float32))
        for start in (np.float32(2), np.float64(2), np.int8(2), np.float16(2), np.uint64(2)):
            for one in (x, narrow):
                assert float(parprims.reduce(one, initial=start)) == 5.0
                assert backend.to_numpy(parprims.scan(one, initial=start)).tolist() == [3.0, 4.0, 5.0]
                assert backend.to_numpy(parprims.linear_recurrence(one, one, initial=start)).tolist() == [3.0, 4.0, 5.0]
        got = parprims.solve_tridiagonal(np.int8(0), np.float32(2), np.float16(0), narrow)
        assert backend.to_numpy(got).tolist() == [0.5, 0.5, 0.5]
        for call in (parprims.reduce, parprims.scan):
            with pytest.raises(ValueError, match=r"^initial must be exact in float32, got np.int64\(16777217\)"):
                call(narrow, initial=np.int64(2**24 + 1))
            with pytest.raises(TypeError, match=r"^initial must fit dtype float32, got np.complex64"):
                call(narrow, initial=np.complex64(1))

    def test_out_of_range(self, backend):
        x = backend.asarray(np.ones(3, np.float32))
        for start in (10**400, -(10**39), 1e300):
            for call in (parprims.reduce, parprims.scan):
                with pytest.raises(ValueError, match=r"^initial must be in the range of float32"):
                    call(x, initial=start)
        with pytest.raises(ValueError, match=r"^diag must be in the range of float32"):
            parprims.solve_tridiagonal(0.0, 1e39, 0.0, x)
        assert float(parprims.reduce(x, "minimum", initial=-np.inf)) == -np.inf

    def test_exact_numbers_against_fractions(self):
        """A number is exact in a dtype where the dtype gives it back."""
        rng = np.random.default_rng(5)
        for dtype in (np.float16, np.float32):
            info = np.finfo(dtype)
            numbers = rng.standard_normal(200) * 2.0 ** rng.integers(-30, 14, 200)
            kept = numbers.astype(dtype).astype(np.float64)
            edges = [
                float(info.smallest_subnormal),
                float(info.smallest_subnormal) / 2,
                float(info.max),
                float(info.tiny),
            ]
            for number in (*numbers, *kept, *edges):
                same = Fraction(float(dtype(number))) == Fraction(float(number))
                assert parprims._core.scalars._is_exact(float(number), np.dtype(dtype).name) == same, number


class TestDtypes:
    def test_by_name_on_every_library(self, backend):
        x = backend.asarray(np.arange(3, dtype=np.int32))
        for name in ("float32", "float64", "int64"):
            for call in (parprims.sum, parprims.cumulative_sum, parprims.reduce, parprims.scan):
                got = call(x, dtype=name)
                assert got.dtype == backend.dtype(name)
                assert got.dtype == call(x, dtype=backend.dtype(name)).dtype == call(x, dtype=got.dtype).dtype
        assert parprims.map_reduce(draw.square, x, dtype="float32").dtype == backend.dtype("float32")
        pair = parprims.scan((x, x), "affine", dtype=("float32", backend.dtype("float32")))
        assert [one.dtype for one in pair] == [backend.dtype("float32")] * 2

    @pytest.mark.parametrize("dtype", ["floaty", "datetime64[s]", 3, b"float32", object(), object, str, [], np.ones(2)])
    def test_no_dtype_named(self, backend, dtype):
        x = backend.asarray(np.arange(3, dtype=np.int32))
        for call in (parprims.sum, parprims.cumulative_sum, parprims.reduce, parprims.scan):
            with pytest.raises(TypeError, match=r"^dtype must be a dtype of .* got "):
                call(x, dtype=dtype)
        with pytest.raises(TypeError, match=r"^dtype\[1\] must be a dtype of"):
            parprims.scan((x, x), "affine", dtype=("int32", dtype))

    def test_what_jax_lacks_without_x64(self):
        jax = pytest.importorskip("jax")
        with jax.enable_x64(False):
            x = jax.numpy.arange(3)
            with pytest.raises(
                TypeError, match=r"^dtype must be a dtype that JAX has without jax_enable_x64, got float64"
            ):
                parprims.sum(x, dtype="float64")
            assert parprims.sum(x, dtype=float).dtype == jax.numpy.float32


FLAGS = {
    "keepdims": lambda x, **option: parprims.sum(x, **option),
    "exclusive": lambda x, **option: parprims.scan(x, **option),
    "reverse": lambda x, **option: parprims.linear_recurrence(x, x, **option),
    "include_initial": lambda x, **option: parprims.cumulative_sum(x, **option),
    "descending": lambda x, **option: parprims.sort(x, **option),
    "stable": lambda x, **option: parprims.sort_by_key(x, x, **option),
    "periodic": lambda x, **option: parprims.solve_tridiagonal(x, 4 * x, x, x, **option),
    "transpose": lambda x, **option: parprims.solve_tridiagonal(x, 4 * x, x, x, **option),
    "return_residual": lambda x, **option: parprims.solve_tridiagonal(x, 4 * x, x, x, **option),
    "return_status": lambda x, **option: parprims.solve_tridiagonal(x, 4 * x, x, x, **option),
}


class TestOptions:
    @pytest.mark.parametrize("name", FLAGS)
    def test_flags(self, backend, name):
        x = backend.asarray(X)
        for right in (True, False, np.True_, np.False_):
            FLAGS[name](x, **{name: right})
        for value in ("yes", None, 1, 0, 1.0, [], X, np.array(True), x):  # some equal an earlier one
            with pytest.raises(TypeError, match=f"^{name} must be True or False, got"):
                FLAGS[name](x, **{name: value})

    def test_words(self, subtests):
        cases = {
            "method": (lambda word: parprims.sum(X, method=word), "native"),
            "pivot": (lambda word: parprims.solve_tridiagonal(X, 4 * X, X, X, pivot=word), "partial"),
            "precision": (lambda word: parprims.matmul(X, X, precision=word), "highest"),
            "kernel": (lambda word: parprims.matmul(X, X, kernel=word), "naive"),
        }
        for name, (call, right) in cases.items():
            with subtests.test(name=name):
                for word in (3, ["array"], {}, np.array(["array"]), np.array(["auto", "array"]), b"auto", object()):
                    with pytest.raises(ValueError, match=f"^{name} must be one of .*, got "):
                        call(word)
                    with pytest.raises(ValueError, match=f"^{name} must be one of .*, got "):
                        parprims.methods(call, word)
                with pytest.raises(ValueError, match=f"^{name} must be .*did you mean '{right}'"):
                    call(right[:-1])

    def test_axes(self):
        for axis in (True, [0], {}, "0", 0.0, np.array([0, 1])):
            for call in (parprims.sum, parprims.scan, parprims.sort):
                with pytest.raises(TypeError, match=r"^axis must be an integer.* got "):
                    call(X, axis=axis)
        for axis in (10**30, -(10**30), 1):
            with pytest.raises(IndexError, match=r"^axis"):
                parprims.sort(X, axis=axis)

    def test_a_long_value_is_not_shown(self):
        with pytest.raises(TypeError, match=r"^keepdims must be True or False, got Opaque$"):
            parprims.sum(X, keepdims=draw.Opaque())

    def test_methods_raise_what_the_call_raises(self):
        calls = (
            lambda: parprims.sum(X, method="bogus"),
            lambda: parprims.reduce(X, initial="text"),
            lambda: parprims.reduce(X[:0], draw.plus),
            lambda: parprims.map_reduce(draw.square, X, initial="text"),
        )
        for call in calls:
            with pytest.raises((TypeError, ValueError)) as raised:
                call()
            with pytest.raises(raised.type) as listed:
                parprims.methods(call)
            assert str(listed.value) == str(raised.value)

    def test_methods_list_what_is_wrong_with_a_map(self):
        """As with an operator: a method that serves would be listed beside."""
        found = parprims.methods(parprims.map_reduce, draw.returns_text, X, X)
        assert None not in found.values()
        with pytest.raises(TypeError, match=f"^{found['array']}"):
            parprims.map_reduce(draw.returns_text, X, X)

    def test_a_function_may_call_primitives_while_methods_are_listed(self):
        found = parprims.methods(parprims.map_reduce, lambda x: x - parprims.sum(x), X)
        assert found["native"] is found["array"] is None
        assert "not on a CUDA device" in found["kernel"] or "fn cannot be traced" in found["kernel"]

    @pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs Numba")
    def test_a_map_of_what_the_library_has_no_operation_for(self):
        """PyTorch shifts no unsigned integers; the kernel does, and methods tells so."""
        torch = pytest.importorskip("torch")
        x = torch.tensor([1, 2, 9], dtype=torch.uint64)

        def shifted(a):
            return a << a

        found = parprims.methods(parprims.map_reduce, shifted, x, op="maximum")
        assert found["kernel"] is None
        assert "uint64" in found["array"]
        assert int(parprims.map_reduce(shifted, x, op="maximum")) == 9 << 9

    def test_no_examples_named(self):
        for none in ({}, ()):
            with pytest.raises(ValueError, match=r"^examples must hold at least one array"):
                parprims.check_associative(draw.keep_last, none)

    def test_no_function_named(self):
        with pytest.raises(TypeError, match=r"^function must be a primitive of parprims, got None"):
            parprims.methods(None)


class TestOtherNames:
    @pytest.mark.parametrize("name", ["cumsum", "associative_scan", "topk", "segment_sum"])
    def test_of_functions(self, name):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': the function is called \w+ here"):
            getattr(parprims, name)

    def test_of_names_that_nobody_has(self):
        assert not hasattr(parprims, "no_such_name")

    @pytest.mark.parametrize("function", ["sum", "argmax", "top_k", "histogram", "select"])
    def test_offsets_of_functions_without_them(self, function):
        with pytest.raises(TypeError, match=r"has no option 'offsets': (for segments write \w+|reduce, map_reduce)"):
            EXAMPLES[function](*EXAMPLES[function].arrays, offsets=[0, 1])

    def test_launches_of_no_call(self):
        with pytest.raises(TypeError, match=r"^launches lists the kernels of one call: write launches\(function"):
            parprims.launches()

    def test_arguments_of_explain(self):
        with pytest.raises(TypeError, match=r"^explain takes no arguments: write `with explain"):
            parprims.explain(parprims.sum, X)
