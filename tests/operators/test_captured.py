"""Numbers that an operator captures: kernels are told them, and no value has a text of its own."""

import concurrent.futures
import functools
import math
import os
import subprocess
import sys
import types

import numpy as np
import pytest

import parprims
from parprims._core.arrays import dtype_kind
from parprims._cpu import NUMBA
from parprims._cpu.running import runner as cpu_runner
from parprims._cuda import compiler
from parprims._operators import languages, tracing
from tests.emulation import emulator
from tests.support.gpu_calls import capture, finish, launch, new_stream, on

pytest.importorskip("numba")

VALUES = {
    "bool": (True, False, True),
    "int": (3, -5, 100, 3),
    "uint": (3, 5, 100, 3),
    "float": (0.5, -1.25, 3.0, 0.5),
    "complex": (0.5 + 1j, -1.25, 2 - 0.5j, 0.5 + 1j),
}
"""Numbers to capture for elements of a kind: the last is the first again."""


@pytest.fixture
def _compiles(backend):
    if backend.name == "array-api-strict":
        pytest.skip("no kernel takes such arrays")


@pytest.fixture
def texts(monkeypatch):
    """The texts of all kernels that calls need, compiled or found again."""
    found = set()

    def collecting(module, text_of):
        original = module.compiled if module is not emulator else emulator._compiled

        def compiled(kernel, *rest):
            text = text_of(kernel)
            if "captured" in text:  # programs of other tests may still run
                found.add(text)
            return original(kernel, *rest)

        monkeypatch.setattr(module, "_compiled" if module is emulator else "compiled", compiled)

    collecting(cpu_runner, lambda kernel: kernel.identity)
    collecting(compiler, str)
    collecting(emulator, str)
    emulator.forget(monkeypatch)  # kernels that are compiled ask for no text
    return found


def needs(backend, *libraries):
    """Skip a test on the other libraries, where kernels are the same or the test's functions are NumPy's."""
    if backend.name not in libraries:
        pytest.skip("the library makes no difference, or its functions are not NumPy's")


# ---- Ways to read a number --------------------------------------------------------------------------------------


def mixed(p, q, k):
    """Return an element that depends on a number in several ways; it need not be associative to be traced."""
    if dtype_kind(p.dtype) == "bool":
        return (p & k) | (q ^ k)
    return p * k + q


def from_closure(k):
    return lambda p, q: mixed(p, q, k)


def from_global(k):
    global number
    number = k
    return lambda p, q: mixed(p, q, number)


def from_default(k):
    return lambda p, q, scale=k: mixed(p, q, scale)


def from_keyword(k):
    def combine(p, q, *, scale=k):
        return mixed(p, q, scale)

    return combine


def from_partial(k):
    return functools.partial(lambda scale, p, q: mixed(p, q, scale), k)


def from_array(k):
    weights = np.array([k, k])
    return lambda p, q: mixed(p, q, weights[0].item())


def from_table(k):
    table = {"scale": [k]}
    return lambda p, q: mixed(p, q, table["scale"][0])


class Held:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, p, q):
        return mixed(p, q, self.scale)


def from_helper(k):
    helper = from_closure(k)
    return lambda p, q: helper(p, q)


def from_arithmetic(k):
    return lambda p, q: mixed(p, q, k if isinstance(k, bool) else 2 * k - k)


READERS = [
    from_closure,
    from_global,
    from_default,
    from_keyword,
    from_partial,
    from_array,
    from_table,
    Held,
    from_helper,
    from_arithmetic,
]
DTYPES = ["float64", "int64", "float32", "complex128", "uint8", "bool", "complex64", "int16", "uint64", "float16"]


def elements(backend, dtype, shape=(40,)):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2 if dtype == "bool" else 5, shape)
    return backend.asarray(x.astype(dtype))


def check_one_text(backend, texts, call, values):
    """Check results of a call for several values against those of the array method, and that one text serves all."""
    counts = []
    for value in values:
        compare(backend, call(value, "kernel"), call(value, "array"))
        counts.append(len(texts))
    assert counts[0] > 0
    assert counts == counts[:1] * len(values)


def compare(backend, result, expected):
    if isinstance(expected, tuple):
        for one, other in zip(result, expected, strict=True):
            compare(backend, one, other)
        return
    result, expected = backend.to_numpy(result), backend.to_numpy(expected)
    assert result.dtype == expected.dtype
    if dtype_kind(result.dtype) in ("float", "complex"):
        error = 1e-2 if result.dtype == np.float16 else 1e-5
        wide = np.complex128 if result.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(result.astype(wide), expected.astype(wide), rtol=error, atol=error)
    else:
        np.testing.assert_array_equal(result, expected)


@pytest.mark.usefixtures("_compiles")
@pytest.mark.sanitize
class TestOneText:
    """Calls with other numbers are right, and use the text of the first."""

    @pytest.mark.parametrize(("reader", "dtype"), [*zip(READERS, DTYPES, strict=True)])
    def test_ways_to_read_it(self, backend, texts, reader, dtype):
        if reader not in (from_closure, from_partial, from_array):
            needs(backend, "numpy", "emulated", "cupy")
        x = elements(backend, dtype, (2,))  # two of which are combined once, in whatever order
        call = functools.partial(parprims.scan, x)
        check_one_text(backend, texts, lambda k, way: call(reader(k), method=way), VALUES[dtype_kind(x.dtype)])

    def calls(self, backend):
        """Return calls of every primitive that takes an operator, each a function of a number and a method."""
        x = elements(backend, "float64", (6, 8)) / 4
        ids, offsets = (backend.asarray(np.array(one)) for one in ([0, 2, 2, 0, 1, 2, 2, 0], [0, 3, 3, 8]))

        def op(k, **options):
            return parprims.Operator(lambda p, q: p + q + k * p * q, **options)

        def shifted(k):
            return parprims.Operator(lambda p, q: p + q - k, identity=k)

        def pairs(k):
            return lambda p, q: (p[0] + q[0] * k, p[1] * q[1] - k)

        def as_dict(k):
            return lambda p, q: {"a": p["a"] + q["a"] + k, "b": p["b"] * q["b"]}

        scan, reduce, map_reduce = parprims.scan, parprims.reduce, parprims.map_reduce
        return {
            "scan": lambda k, way: scan(x, op(k), axis=0, method=way),
            "of two": lambda k, way: scan((x[:, :2], x[:, 2:4]), pairs(k), method=way),
            "of a dict": lambda k, way: tuple(
                scan({"a": x, "b": x}, as_dict(k), reverse=True, method=way)[one] for one in "ab"
            ),
            "exclusive": lambda k, way: scan(x, shifted(k), exclusive=True, method=way),
            "from initial": lambda k, way: scan(x, op(k), initial=k, method=way),
            "by offsets": lambda k, way: scan(x, op(k, identity=0), offsets=offsets, method=way),
            "reduce": lambda k, way: reduce(x, op(k, commutative=True), axis=1, method=way),
            "reduce in order": lambda k, way: reduce(x, op(k), axis=0, method=way),
            "reduce by offsets": lambda k, way: reduce(x, shifted(k), axis=1, offsets=offsets, method=way),
            "map": lambda k, way: map_reduce(lambda x: (x - k) * k, x, op=op(k), axis=1, method=way),
            "segments": lambda k, way: parprims.segment_reduce(x, ids, 4, shifted(k), axis=1, method=way),
            "matmul": lambda k, way: parprims.matmul(
                x, x.T, add=shifted(k), multiply=lambda a, b: a * b - k, method=way
            ),
        }

    @pytest.mark.parametrize(
        "name",
        "scan,of two,of a dict,exclusive,from initial,by offsets,reduce,reduce in order,reduce by offsets,map,segments,"
        "matmul".split(","),
    )
    def test_primitives(self, backend, texts, name):
        if name not in ("exclusive", "map", "segments"):
            needs(backend, "numpy", "emulated", "cupy")
        call = self.calls(backend)[name]
        check_one_text(backend, texts, call, (0.1, 0.2, -0.3, 0.1))

    def test_random_operators(self, backend, texts):
        needs(backend, "numpy", "emulated")
        rng = np.random.default_rng()
        x = rng.normal(size=(2, 5))
        for _ in range(3):
            code = random_code(rng)
            texts.clear()
            for _ in range(4):
                numbers = rng.normal(size=3).tolist()
                op = operator_of(code, numbers)
                result = parprims.scan(x, op, axis=0, method="kernel")[1]
                np.testing.assert_array_equal(result, op(x[0], x[1]), err_msg=f"{code}, {numbers}")
            assert len(texts) == 1, code

    def test_many_calls_at_once(self, backend, texts):
        x = elements(backend, "float64")

        def call(k, way="kernel"):
            return parprims.scan(x, lambda p, q: p + q + k * p * q, method=way)

        values = [at / 64 for at in range(32)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            results = list(pool.map(call, values * 2))
        for k, result in zip(values * 2, results, strict=True):
            compare(backend, result, call(k, "array"))
        assert len(texts) == 1

    def test_files(self, backend, tmp_path):
        """The cache has a file for the first value alone."""
        needs(backend, "numpy")
        program = """if True:
            import numpy as np, pathlib, parprims, sys
            counts = []
            for k in (.1, .2, .3):
                parprims.scan(np.ones(5), lambda p, q: p + q + k * p * q, method="kernel")
                counts.append(len([*pathlib.Path(sys.argv[1]).rglob("*.o")]))
            print(counts)"""
        environment = {**os.environ, "PARPRIMS_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", program, str(tmp_path)]
        assert subprocess.check_output(command, env=environment, text=True).strip() == "[1, 1, 1]"


_compilations: list[str] = []


@pytest.fixture
def compilations(backend):
    """The programs that JAX has compiled."""
    if backend.name not in ("jax", "jax-cuda"):
        pytest.skip("programs are JAX's")
    import jax

    if not _compilations:
        jax.monitoring.register_event_duration_secs_listener(
            lambda name, _, **__: _compilations.append(name) if "backend_compile" in name else None
        )
        _compilations.append("begun")
    return _compilations


def joined(k):
    """Return an operator that is another for every sign of a number, and associative if that is positive."""

    def combine(p, q):
        return p + q + k * p * q if k > 0 else p + q

    return combine


class TestPrograms:
    """Programs of JAX are told numbers: the first value alone compiles one."""

    def check(self, backend, compilations, call, values, *, compiles=(0,)):
        """Check results for each value against NumPy's, and which of the values may compile a program."""
        found = []
        for at, value in enumerate(values):
            before = len(compilations)
            result = call(backend.asarray, value)
            if len(compilations) > before:
                found.append(at)
            compare(backend, result, call(np.asarray, value))
        assert {*found} <= {*compiles}  # programs of other tests serve too

    @pytest.mark.parametrize(("reader", "dtype"), [*zip(READERS, DTYPES, strict=True)])
    def test_ways_to_read_it(self, backend, compilations, reader, dtype):
        x = backend.to_numpy(elements(backend, dtype, (2,)))

        def call(made, k):
            return parprims.scan(made(x), reader(k), method="array")

        # A bool is a choice between operations: true changes nothing, and JAX leaves it out.
        values = VALUES[dtype_kind(dtype)]
        if dtype == "bool":
            self.check(backend, compilations, call, values[:1])
        else:
            self.check(backend, compilations, call, values)

    @pytest.mark.parametrize(
        "name", ["scan", "of two", "of a dict", "from initial", "by offsets", "reduce", "reduce in order", "map"]
    )
    @pytest.mark.parametrize("way", ["array", "native"])
    def test_primitives(self, backend, compilations, name, way):
        if way == "native" and name in ("reduce", "reduce in order", "map"):
            pytest.skip("no routine of the library takes an operator of the caller's")

        def call(made, k):
            on = types.SimpleNamespace(asarray=made, name=backend.name)
            return TestOneText().calls(on)[name](k, way if made is backend.asarray else "array")

        self.check(backend, compilations, call, (0.1, 0.2, -0.3, 0.1))

    @pytest.mark.parametrize("name", ["segments", "matmul", "segmented"])
    def test_operators_in_operators(self, backend, compilations, name):
        x = np.arange(12.0).reshape(3, 4) / 8

        def call(made, k):
            op = parprims.Operator(lambda p, q: p + q + k * p * q, identity=0)
            if name == "segments":
                return parprims.segment_reduce(made(x[0]), made(np.array([0, 1, 0, 1])), 2, op, method="array")
            if name == "matmul":
                return parprims.matmul(made(x), made(x.T), add=op, multiply=lambda a, b: a * b - k, method="array")
            flags = np.array([True, False, True, False])
            return parprims.scan((made(flags), made(x[1])), parprims.segmented(op), exclusive=True, method="array")[1]

        self.check(backend, compilations, call, (0.1, 0.2, -0.3, 0.1))

    def test_what_decides_a_branch(self, backend, compilations):
        x = np.arange(9.0) / 8

        def call(made, k):
            return parprims.scan(made(x), joined(k), method="array")

        self.check(backend, compilations, call, (0.5, 0.25, -1.0, -2.0, 0.125), compiles=(0, 2))

    def test_a_global_that_changes(self, backend, compilations):
        x = np.arange(9.0) / 8

        def combine(p, q):
            return p + q + number * p * q

        def call(made, k):
            global number
            number = k
            return parprims.scan(made(x), combine, method="array")

        self.check(backend, compilations, call, (0.5, 0.25, 0.125, 0.5))

    def test_numbers_that_programs_hold(self, backend, compilations):
        """Of functions that depend on shapes, capture arrays of the library, or raise to a power."""
        x = np.arange(9.0) / 8
        asarray = backend.asarray

        def by_shape(made, k):
            return parprims.map_reduce(lambda x: x * k / x.shape[0], made(x), method="array")

        def by_array(made, k):
            weight = made(np.array(k))
            return parprims.map_reduce(lambda x: x * weight, made(x), method="array")

        def by_power(made, k):
            return parprims.map_reduce(lambda x: x**k, made(x), method="array")

        for call in (by_shape, by_array, by_power):
            for k in (0.5, 1.5, 2.0, 0.5):
                compare(backend, call(asarray, k), call(np.asarray, k))
        assert compilations

    @pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
    def test_dtypes_are_as_ever(self, backend, compilations, dtype):
        x = backend.asarray(np.arange(5).astype(dtype))
        for k in (2, 3) if dtype == "int32" else (2, 0.5, np.float32(0.25)):
            result = parprims.scan(x, lambda p, q: p + q + k * p * q, method="array")  # noqa: B023
            assert result.dtype == x.dtype
        with pytest.raises(TypeError, match="returned"):
            parprims.scan(x, lambda p, q: p + q * (1j * k), method="array")
        assert compilations

    def test_in_programs_of_the_caller(self, backend, compilations):
        """There JAX keeps what the function read, and numbers without a value are the program's."""
        import jax

        x = backend.asarray(np.arange(9.0) / 8)

        def scan(x, k):
            return parprims.scan(x, lambda p, q: p + q + k * p * q, method="array")

        for k in (0.5, 0.25):
            expected = scan(backend.to_numpy(x), k)
            for found in (jax.jit(scan)(x, k), jax.jit(functools.partial(scan, k=k))(x), scan(x, k)):
                compare(backend, found, expected)
            compare(backend, jax.vmap(scan, (None, 0))(x, backend.asarray(np.array([k, k])))[1], expected)
            compare(backend, jax.jvp(lambda k: scan(x, k), (k,), (1.0,))[0], expected)
            with jax.disable_jit():
                compare(backend, scan(x, k), expected)
        assert compilations

    def test_many_at_once(self, backend, compilations):
        x = np.arange(9.0) / 8

        def call(made, k):
            return parprims.scan(made(x), lambda p, q: p + q + k * p * q, method="array")

        call(backend.asarray, 1.0)
        before = len(compilations)
        values = [at / 64 for at in range(32)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            results = list(pool.map(functools.partial(call, backend.asarray), values))
        for k, result in zip(values, results, strict=True):
            compare(backend, result, call(np.asarray, k))
        assert len(compilations) == before

    def test_what_was_let_go_is_made_again(self, backend, compilations):
        """A program that is compiled again has the functions of the call at hand, not of the first one."""
        import jax

        x = np.arange(9.0) / 8

        def call(made, k):
            return parprims.scan(made(x), lambda p, q: p + q + k * p * q, method="array")

        compare(backend, call(backend.asarray, 0.3), call(np.asarray, 0.3))
        for k in (0.4, 0.3):
            jax.clear_caches()
            compare(backend, call(backend.asarray, k), call(np.asarray, k))
        assert compilations


class TestOnGPUs:
    """Launches hold the numbers that they were given."""

    def test_streams_and_graphs(self, streams):
        x = elements(streams, "float64", (1000,))

        def call(k):
            return parprims.scan(x, lambda p, q: p + q + k * p * q)

        call(0.0)
        graphs, found = [], []
        for k in (1e-4, 2e-4):
            stream = new_stream(streams)
            graphs.append((k, stream, *capture(streams, stream, lambda k=k: call(k))))
        for number in range(10):
            for _, stream, graph, _ in graphs:
                launch(streams, graph, stream)
                with on(streams, stream):
                    found.append((number * 1e-4, call(number * 1e-4)))
        finish(streams)
        for k, result in (*found, *((k, result) for k, _, _, result in graphs)):
            compare(streams, result, parprims.scan(x, lambda p, q: p + q + k * p * q, method="array"))  # noqa: B023


@pytest.mark.usefixtures("_compiles")
class TestSameBits:
    """Results have the bits that they have if the numbers stand in the text."""

    @pytest.mark.sanitize
    @pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
    def test_all_operations(self, backend, monkeypatch, dtype):
        needs(backend, "numpy", "emulated", "cupy")
        language = NUMBA if backend.name == "numpy" else languages.CUDA
        rng = np.random.default_rng(2)
        x = rng.normal(size=200) * 100
        x[:6] = 0.0, -0.0, math.inf, -math.inf, math.nan, 1e-310
        with np.errstate(invalid="ignore", over="ignore"):
            x = x.astype(dtype)

        def op(k, p, q):
            if dtype == "int32":
                return (((q // k) ^ (q % k)) * k - (p << k)) | (q >> k)
            with np.errstate(all="ignore"):
                found = np.where(q > k, q / k, q - k) * k + np.remainder(q, k) - p
                return np.maximum(found, k) + np.hypot(q, k) + np.abs(q) ** k + np.copysign(k, q)

        for k in {"int32": (0, 2, -3), "float32": (0.5,), "float64": (-0.0, 1.7)}[dtype]:
            made = []
            for tells in (True, False):
                monkeypatch.setattr(language, "tells", tells)
                # An operator of another identity, so that nothing is found again.
                combine = parprims.Operator(functools.partial(op, k), identity=int(tells))
                two = backend.asarray(np.stack((x, x)))
                made.append(backend.to_numpy(parprims.scan(two, combine, axis=0, method="kernel"))[1])
            first, second = (np.where(one != one, 0, one).view(f"u{one.itemsize}") for one in made)
            np.testing.assert_array_equal(first, second)
            np.testing.assert_array_equal(made[0] != made[0], made[1] != made[1])


ELEMENTS = ((("float64", "earlier_0"),), (("float64", "later_0"),))


def traced(function, dtype="float64", language=NUMBA):
    operands = [((dtype, code),) for ((_, code),) in ELEMENTS]
    return tracing.trace("op", function, *operands, packed=False, language=language, told="captured")


def words(found):
    return [one.words for one in found.captured]


def random_code(rng, depth=4):
    """Return an expression of p, q, numbers of its own, and k[0] to k[2]."""
    if depth == 0:
        return rng.choice(["p", "q", "k[0]", "k[1]", "k[2]", "0.5", "2.0"])
    one, other = (random_code(rng, depth - 1 - int(rng.integers(0, 2 if depth > 1 else 1))) for _ in range(2))
    way = rng.choice(["({} + {})", "({} - {})", "({} * {})", "np.maximum({}, {})", "np.where(p > q, p + {}, {})"])
    return str(way).format(one, other)


def operator_of(code, numbers):
    return eval(f"lambda p, q: p * k[0] + q * 0.5 + {code}", {"np": np, "k": numbers})


@pytest.mark.once
class TestTrace:
    """What is in the text of a kernel, and what it is told."""

    def test_numbers_in_the_code_stay_in_the_text(self):
        k = 0.5
        found = traced(lambda p, q: p * 0.5 + q * k - 3 * p)
        assert found.lines == [
            "t0 = (earlier_0 * float64(0.5))",
            "t1 = (later_0 * captured0)",
            "t2 = (t0 + t1)",
            "t3 = (float64(3.0) * earlier_0)",
            "t4 = (t2 - t3)",
        ]
        assert words(found) == [(int(np.float64(0.5).view(np.int64)),)]

    def test_what_decides_a_branch_is_in_the_text(self):
        def make(k, n):
            def combine(p, q):
                for _ in range(n):
                    p = p * k
                return p + q if k > 0 else p - q

            return combine

        one, same, negative, longer = (traced(make(*given)) for given in ((0.5, 1), (2.5, 1), (-0.5, 1), (0.5, 2)))
        assert one.lines == same.lines != negative.lines
        assert len(longer.lines) == len(one.lines) + 1

    def test_functions_of_numbers(self):
        def make(k):
            return lambda p, q: p * math.exp(k) + q * (1 - k) + max(k, 0.0) + float(np.sqrt(abs(k)))

        assert traced(make(0.25)).lines == traced(make(4.0)).lines
        assert words(traced(make(0.25))) != words(traced(make(4.0)))

    def test_powers_that_compilers_replace_keep_their_number(self):
        for k, in_text in ((2, True), (0.5, True), (-1.0, True), (math.inf, True), (1.3, False)):
            assert bool(traced(lambda p, q: p**k + q).captured) != in_text  # noqa: B023
        for k, in_text in ((2.0, True), (0.125, True), (10, True), (1.3, False)):
            assert bool(traced(lambda p, q: k**p + q).captured) != in_text  # noqa: B023

    def test_scalars_of_numpy_decide_the_dtype_as_ever(self):
        def make(k):
            return lambda p, q: p * k + q

        assert traced(make(np.float32(0.5)), "float32").dtypes == ("float32",)
        assert traced(make(np.float64(0.5)), "float32").dtypes == ("float64",)
        assert traced(make(np.float64(0.5)), "float32").captured[0].dtype == "float64"
        for wrong in (2**70, 1.5, 1j, "a"):
            with pytest.raises(tracing.Untraceable, match=r"out of the range|it combines int64 with"):
                traced(make(wrong), "int64")

    def test_words_are_the_number(self):
        for dtype, number, expected in (
            ("uint64", 2**64 - 1, (-1,)),
            ("int64", -(2**63), (-(2**63),)),
            ("int8", -1, (-1,)),
            ("bool", True, (1,)),
            ("float32", -0.0, (-(2**31),)),
            ("float64", 2**70, (int(np.float64(2.0**70).view(np.int64)),)),
            ("bfloat16", 1.0, (0x3F800000,)),
            ("complex64", -0.0 + 1j, NUMBA.words(0.0, "float32") + NUMBA.words(1.0, "float32")),
            ("complex128", 3, (*NUMBA.words(3.0, "float64"), 0)),
        ):
            assert NUMBA.words(number, dtype) == expected

    def test_gpu_texts(self, monkeypatch):
        k = 0.25
        found = traced(lambda p, q: p * 0.5 + q * k, language=languages.CUDA)
        assert found.lines[1] == "const double t1 = ops::multiply(later_0, __longlong_as_double(captured0_0()));"
        assert words(found) == [NUMBA.words(0.25, "float64")]
        monkeypatch.setattr(languages.CUDA, "tells", False)
        found = traced(lambda p, q: p + q * k, language=languages.CUDA)
        assert not found.captured
        assert NUMBA.words(0.25, "float64")[0] == int("".join(found.lines).split("double(")[1].split("LL")[0])

    @pytest.mark.parametrize(
        ("dtype", "code"),
        [
            ("bool", "(captured_0() != 0)"),
            ("int16", "(short)captured_0()"),
            ("uint64", "(unsigned long long)captured_0()"),
            ("float16", "__int_as_float((int)captured_0())"),
            ("float64", "__longlong_as_double(captured_0())"),
            (
                "complex64",
                "Complex<float>{__int_as_float((int)captured_0()), __int_as_float((int)captured_1())}",
            ),
        ],
    )
    def test_numbers_of_gpu_texts(self, dtype, code):
        assert languages.CUDA.captured("captured", dtype) == code

    def test_nothing_is_seen_of_it(self):
        """The traced function reads numbers with their own types, and its writes to outer variables stay visible."""
        seen, k = [], 0.25

        def combine(p, q):
            global number
            number = k
            seen.append(k)
            return p + q * k

        traced(combine)
        assert seen[0] is k
        assert number is k

    def test_built_in_operators_are_told_nothing(self):
        for name, op in parprims._operators.operator.BUILT_IN.items():
            states = ("bool",) if name.startswith("logical_") else ("int32",) if name.startswith("bitwise") else None
            states = states or ("float64",) * (op.components or 1)
            states = ("float64", "int64") if name.startswith("arg") else states
            assert not tracing.trace_combine(op, states, language=NUMBA).captured
