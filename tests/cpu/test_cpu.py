"""Kernels for CPUs: their functions, threads, what is kept on disk, and what is refused."""

import concurrent.futures
import os
import subprocess
import sys
import textwrap
import time
import warnings

import numpy as np
import pytest

import parprims

pytestmark = pytest.mark.once
numba = pytest.importorskip("numba")
special = pytest.importorskip("scipy.special")

from parprims import __main__ as report  # noqa: E402
from parprims._compiling import disk_cache  # noqa: E402
from parprims._core.arrays import dtype_kind  # noqa: E402
from parprims._cpu import compiler, inline, language, memory, text, threads  # noqa: E402
from parprims._operators.tracing import _ELEMENTWISE, BINARY, NAMESPACE, trace  # noqa: E402

FLOATS = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.7, 1e-3, 20.0, np.inf, -np.inf, np.nan])


FLOAT = ("float16", "float32", "float64")


def values(dtype):
    """Return pairs of values of a dtype, with those at which functions turn."""
    if dtype == "bool":
        x = np.array([False, True])
    elif dtype.startswith("f"):
        x = FLOATS.astype(dtype)
    else:
        info = np.iinfo(dtype)
        x = np.array([0, 1, 2, 3, 7, 8, 63, info.max, info.min, info.max - 1, *([-1, -7] if info.min else [])], dtype)
    return tuple(one.ravel() for one in np.meshgrid(x, x))


def elementwise(names, dtype, x, y):
    """Return what functions give for x, or for x and y, by one kernel of all, for kernels take long to compile."""

    def functions(x, y):
        return tuple(getattr(NAMESPACE, name)(*(x, y)[: 1 + (name in BINARY)]) for name in names)

    traced = trace("functions", functions, ((dtype, "x"),), ((dtype, "y"),), packed=False, language=language.NUMBA)
    kind = language.memory_type(dtype)
    lines = (
        *(f"{one} = {language.loaded(dtype, f'load(inputs[{at}], i)')}" for at, one in enumerate("xy")),
        *traced.lines,
        *text.stores(traced.dtypes, traced.outputs, ["i"] * len(names)),
    )
    loop = text.function(
        "loop(inputs, outputs, numbers, begin, end)", ("for i in range(begin, end):", *(f"    {one}" for one in lines))
    )
    kinds = tuple(language.memory_type(one) for one in traced.dtypes)
    run = compiler.compiled(text.Kernel("loop", (loop,), ((kind, kind),), (kinds,)))
    results = [np.empty(x.shape, one) for one in traced.dtypes]
    bits = [one.view(np.uint16) if one.dtype == np.float16 else one for one in (x, y, *results)]
    run(*bits, np.zeros(1, np.int64), 0, x.size)
    return results


def numpys(name, dtype, x, y):
    """Return what a function of NumPy gives in the dtype, and where that says what a kernel is to give."""
    numpys_name = {"pow": "power", "bitwise_invert": "invert", "lgamma": "gammaln"}.get(name, name)
    function = getattr(np, numpys_name, None) or getattr(special, numpys_name)
    known = np.ones(x.shape, bool) if name != "lgamma" else x != -np.inf  # where SciPy's is -inf, unlike all others
    if name.endswith("_shift"):
        known = (y >= 0) & (y < np.iinfo(dtype).bits)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = function(*(x, y)[: 1 + (name in BINARY)])
    if name == "sign" and dtype.startswith("f"):
        found = np.where(np.isnan(x), x, found)
    return found if found.dtype == bool else found.astype(x.dtype), known


@pytest.mark.parametrize("dtype", ["bool", *(f"{sign}int{8 << k}" for sign in ("", "u") for k in range(4)), *FLOAT])
def test_elementwise(dtype, subtests):
    """Every function that can be traced gives what NumPy does, in every dtype."""
    x, y = values(dtype)
    names = [name for name, (kinds, _) in sorted(_ELEMENTWISE.items()) if dtype_kind(dtype) in kinds]
    names = [name for name in names if name != "pow" or dtype in FLOAT]
    names = [name for name in names if name != "nextafter" or dtype != "float16"]
    assert len(names) > 8
    for name, found in zip(names, elementwise(names, dtype, x, y), strict=True):
        expected, known = numpys(name, dtype, x, y)
        with subtests.test(name=name):
            assert found.dtype == expected.dtype
            tolerance = {"float16": 2e-3, "float32": 1e-6}.get(dtype, 1e-14)
            np.testing.assert_allclose(found[known], expected[known], rtol=tolerance)


@pytest.mark.parametrize("name", ["exp2", "log2", "log", "pow", "hypot", "floor"])
def test_one_function_of_both_kinds_of_floats(name):
    """A function of float32 and of float64 in one kernel, which Numba's log2 does not allow."""
    narrow = np.array([0.5, 2, 3], np.float32)

    def combine(_, later):
        where = NAMESPACE if hasattr(later[0], "_lines") else np
        function = getattr(where, name if where is NAMESPACE else {"pow": "power"}.get(name, name))
        return tuple(function(*(x, x)[: 1 + (name in BINARY)]) for x in later)

    xs = (narrow.repeat(2).reshape(-1, 2), narrow.astype(np.float64).repeat(2).reshape(-1, 2))
    found = parprims.scan(xs, parprims.Operator(combine, components=2), axis=1, method="kernel")
    for one, x in zip(found, combine((), (narrow, narrow.astype(np.float64))), strict=True):
        assert one.dtype == x.dtype
        np.testing.assert_allclose(one[:, 1], x, rtol=1e-6 if x.dtype == np.float32 else 1e-14)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_division_of_complex_numbers(dtype):
    """Quotients are NumPy's, of numbers by zero and of infinities too."""
    parts = [0.0, -0.0, 1.5, -2.0, 3e4, np.inf, -np.inf, np.nan]
    x, y = np.meshgrid(*(np.array([complex(a, b) for a in parts for b in parts]).astype(dtype),) * 2)
    with np.errstate(all="ignore"):
        expected = x / y
    found = parprims.map_reduce(np.divide, x[..., None], y[..., None], op="add", axis=2, method="kernel")
    for part in ("real", "imag"):
        wanted = getattr(expected, part)
        np.testing.assert_allclose(getattr(found, part), wanted, rtol=4 * np.finfo(dtype).eps)


SINGULAR = {
    "tridiagonal": lambda z, b: parprims.solve_tridiagonal(z, z, z, b, method="kernel"),
    "banded": lambda z, b: parprims.solve_banded((2, 1), np.stack([z] * 4), b, method="kernel"),
    "block": lambda z, b: parprims.solve_block_tridiagonal(*[z[:, None, None]] * 3, b[:, None], method="kernel"),
    "product": lambda z, _: parprims.matmul(z[:, None], z[None, :], multiply=np.divide, add="add", method="kernel"),
    "scan": lambda z, _: parprims.scan(z, lambda p, q: p / q, method="kernel"),
}


@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("name", SINGULAR)
def test_division_by_zero_is_no_error(name, dtype):
    """Kernels that divide by an element that is zero give NaN or infinities, for complex numbers too."""
    zeros, ones = np.zeros(9, dtype), np.ones(9, dtype)
    with np.errstate(all="ignore"):
        found = SINGULAR[name](zeros, ones)
    assert found.dtype == dtype
    assert not np.isfinite(found).all()


def test_every_half():
    """All 16-bit floats become the float32 that they are, and all of these the nearest 16-bit float."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    halves = bits.view(np.float16)
    found = parprims.scan(halves[:, None], "maximum", axis=1, method="kernel")[:, 0]
    np.testing.assert_array_equal(found, halves)
    rng = np.random.default_rng(3)
    near = rng.standard_normal(10**5).astype(np.float32) * np.exp2(rng.integers(-30, 20, 10**5)).astype(np.float32)
    middles = (halves[:-1].astype(np.float64) + halves[1:]) / 2
    middles = middles[np.isfinite(middles)].astype(np.float32)
    for x in (near, middles):
        with np.errstate(over="ignore"):
            expected = x.astype(np.float16)
        both = parprims.map_reduce(
            lambda x: NAMESPACE.astype(x, "float16") if hasattr(x, "_lines") else x.astype(np.float16),
            x[:, None],
            op="maximum",
            axis=1,
            method="kernel",
        )
        np.testing.assert_array_equal(both, expected)


def test_every_half_without_instructions(tmp_path):
    """The same on a processor that has none between float16 and float32."""
    program = """
        import numpy as np, parprims
        from parprims._operators.tracing import NAMESPACE
        halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
        found = parprims.scan(halves[:, None], "maximum", axis=1, method="kernel")[:, 0]
        np.testing.assert_array_equal(found, halves)
        middles = (halves[:-1].astype(np.float64) + halves[1:]).astype(np.float32) / 2
        middles = middles[np.isfinite(middles)]
        function = lambda x: NAMESPACE.astype(x, "float16") if hasattr(x, "_lines") else x.astype(np.float16)
        found = parprims.map_reduce(function, middles[:, None], op="maximum", axis=1, method="kernel")
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(found, middles.astype(np.float16))
    """
    run(program, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="", PARPRIMS_CACHE_DIR=str(tmp_path))


@pytest.mark.parametrize("columns", [0, 5])
def test_a_long_sum_passes_few_additions(columns):
    """As documented, a term passes n / 4096 + 40 additions, each of which owes half a unit of the result."""
    n = 1 << 20
    shape = (n, columns) if columns else (n,)
    found = parprims.cumulative_sum(np.full(shape, 0.1, np.float32), axis=0, method="kernel")
    exact = (np.float64(np.float32(0.1)) * np.arange(1, n + 1)).reshape(-1, *[1] * (len(shape) - 1))
    assert np.all(abs(found - exact) <= (n / 4096 + 40) / 2 * np.finfo(np.float32).eps * exact)


@pytest.mark.parametrize("columns", [0, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_pieces_of_a_scan(columns, reverse):
    """Lengths around the edges of pieces and of groups of them, by an operator that does not commute and is exact."""
    rng = np.random.default_rng(5)
    edges = (32, 64, 2048, 2080, 4096, 4128, 6144)
    for n in (1, 2, *(edge + near for edge in edges for near in (-1, 0, 1))):
        shape = (n, columns) if columns else (n,)
        a, b = rng.choice([-1.0, 1.0], shape), rng.integers(-9, 10, shape).astype(np.float64)
        start = rng.choice([-1.0, 1.0], shape[1:]), rng.integers(-9, 10, shape[1:]).astype(np.float64)
        for initial in (None, start):
            c, d = (np.ones(shape[1:]), np.zeros(shape[1:])) if initial is None else initial
            states = [(c, d)]
            for i in range(n)[:: -1 if reverse else 1]:
                c, d = a[i] * c, a[i] * d + b[i]
                states.append((c, d))
            for exclusive in (False, True):
                options = {"axis": 0, "reverse": reverse, "exclusive": exclusive, "initial": initial}
                found = parprims.scan((a, b), "affine", method="kernel", **options)
                wanted = (states[:-1] if exclusive else states[1:])[:: -1 if reverse else 1]
                for one, other in zip(found, zip(*wanted, strict=True), strict=True):
                    np.testing.assert_array_equal(one, np.stack(other), err_msg=f"{n} {exclusive}")


@pytest.mark.parametrize("shape", [(300_001,), (3, 200_001), (70_001, 5), (999, 1001), (40, 50, 600)])
def test_the_number_of_threads_changes_no_bits(shape, monkeypatch):
    rng = np.random.default_rng(list(shape))
    a, b = rng.uniform(-1, 1, shape), rng.standard_normal(shape)
    op = parprims.Operator(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), components=2)
    found = []
    for count in (1, 2, 7):
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        monkeypatch.setattr(threads, "_pool", None)
        results = []
        for axis in range(len(shape)):
            results.append(parprims.sum(b, axis=axis, method="kernel"))
            results.append(parprims.reduce((a, b), op, axis=axis, method="kernel")[1])
            results.append(parprims.cumulative_sum(b, axis=axis, method="kernel"))
            results.append(parprims.linear_recurrence(a, b, axis=axis, method="kernel"))
        found.append(results)
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


def test_many_threads_call_at_once():
    x = np.random.default_rng(1).standard_normal((64, 40_000))
    expected = parprims.cumulative_sum(x, axis=1, method="kernel")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: parprims.cumulative_sum(x, axis=1, method="kernel"), range(64)):
            np.testing.assert_array_equal(found, expected)


def run(program, **environment):
    """Return what a program prints, in a process of its own."""
    code = textwrap.dedent(program)
    given = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=given, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork():
    found = run("""
        import os, warnings
        warnings.simplefilter("ignore")
        import numpy as np, parprims
        from parprims._cpu import threads
        threads.limit = lambda: 3
        x = np.arange(4 * 200_000.0).reshape(4, -1)
        whole = parprims.cumulative_sum(x, axis=1, method="kernel")
        child = os.fork()
        if not child:
            same = np.array_equal(parprims.cumulative_sum(x, axis=1, method="kernel"), whole)
            os._exit(0 if same else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert found.strip() == "0"


PROGRAM = """
    import numpy as np, parprims, numba.core.event as event
    compiled = []
    class Listener(event.Listener):
        def on_start(self, one): pass
        def on_end(self, one): compiled.append(one)
    event.register("numba:compile", Listener())
    op = parprims.Operator(lambda e, l: e * 0.25 + l, name="decay")
    print(float(parprims.scan(np.ones(5), op, method="kernel")[-1]), len(compiled))
"""


def test_one_of_several_processes_compiles_and_the_next_find_kernels_on_disk(tmp_path):
    """Processes that come to a kernel at once: none goes on before all have started."""
    count, kept, started = 3, tmp_path / "kept", tmp_path / "started"
    started.mkdir()
    together = f"""
    import os, pathlib, time
    import numpy as np, parprims, numba
    started, end = pathlib.Path({str(started)!r}), time.monotonic() + 60
    (started / str(os.getpid())).touch()
    while len([*started.iterdir()]) < {count} and time.monotonic() < end:
        time.sleep(0.01)
    """

    def found(program):
        return run(program, PARPRIMS_CACHE_DIR=str(kept)).split()

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        first = [*pool.map(found, [together + PROGRAM] * count)]
    last = found(PROGRAM)
    assert {float(one[0]) for one in (*first, last)} == {1.33203125}
    assert sum(int(one[1]) > 0 for one in first) == 1
    assert int(last[1]) == 0


def test_of_processes_that_write_a_file_once_the_first_does(tmp_path):
    path = tmp_path / "text"
    disk_cache.write(path, b"first", once=True)
    disk_cache.write(path, b"second", once=True)
    assert path.read_bytes() == b"first"
    disk_cache.write(path, b"third")
    assert path.read_bytes() == b"third"
    assert [*tmp_path.iterdir()] == [path]


def test_a_process_that_is_held_up_keeps_others_only_for_a_time(tmp_path, monkeypatch):
    path = tmp_path / "locked"
    path.write_text("")
    monkeypatch.setattr(disk_cache, "_PATIENCE", 0.3)
    begin = time.monotonic()
    with disk_cache.in_turn(path, lambda: False), disk_cache.in_turn(path, lambda: False):
        assert time.monotonic() - begin >= 0.3
    monkeypatch.setattr(disk_cache, "_PATIENCE", 60)
    begin = time.monotonic()
    with disk_cache.in_turn(path, lambda: False), disk_cache.in_turn(path, lambda: True):
        assert time.monotonic() - begin < 30


def test_damaged_and_missing_folders(tmp_path):
    run(PROGRAM, PARPRIMS_CACHE_DIR=str(tmp_path))
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(b"not what was kept")
    assert run(PROGRAM, PARPRIMS_CACHE_DIR=str(tmp_path)).split()[0] == "1.33203125"
    (tmp_path / "file").write_text("")
    assert run(PROGRAM, PARPRIMS_CACHE_DIR=str(tmp_path / "file")).split()[0] == "1.33203125"


def test_without_numba(monkeypatch):
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda _: None)
    compiler.failure.cache_clear()
    try:
        reason = parprims.methods(parprims.reduce, np.arange(100.0), lambda e, _: e)["kernel"]
        assert reason == f"the arrays are not on a CUDA device, and {compiler.MISSING}"
        assert compiler.MISSING.endswith("is not installed: pip install numba")
        assert f"  on CPUs          {compiler.MISSING}" in list(report.lines())
    finally:
        compiler.failure.cache_clear()


def test_views_of_any_strides():
    """What is flat covers an array's memory, and first is where its first element is in it."""
    whole = np.arange(7 * 8 * 9).reshape(7, 8, 9)
    for x in (
        whole,
        whole[::-1],
        whole[:, ::-2, 3],
        whole.T,
        whole[1:, 2:7:2, ::-3],
        np.broadcast_to(whole[0, 0], (4, 9)),
    ):
        flat, begin, strides = memory.flat(x), memory.first(x), memory.strides(x)
        for index in np.ndindex(x.shape):
            assert flat[begin + sum(i * step for i, step in zip(index, strides, strict=True))] == x[index]


def test_inlined():
    text = (
        "def double(x):\n    y = x + x\n    return y\n"
        "def pair(x):\n    return (double(x), x)\n"
        "def run(x):\n    'Not kept.'\n    y = 1\n    for i in range(3):\n        y = y + double(pair(x)[0])\n"
        "    return y\n"
    )
    found = inline.inlined((text,), "run")
    assert "double(" not in found
    assert "pair(" not in found
    names = {}
    exec(found, names)
    assert names["run"](5) == 61


def first_extremum(x, index, axis, sign):
    """Return the largest of sign x along an axis and its position: NaN before all, then the smallest position."""
    x, index = np.moveaxis(x, axis, -1), np.moveaxis(index, axis, -1)
    rank = np.where(x != x, np.inf, sign * x.astype(float))
    among = np.where(rank == rank.max(-1, keepdims=True), index, np.iinfo(np.int64).max)
    at = among.argmin(-1)[..., None]
    return np.take_along_axis(x, at, -1)[..., 0], np.take_along_axis(index, at, -1)[..., 0]


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
@pytest.mark.parametrize("positions", ["ascend", "descend", "agree", "turn", "differ between lines"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((600, 40), 0), ((3, 90, 5), 1), ((4, 2, 700), 2), ((2, 40_000, 3), 1), ((5, 17, 2), 1)]
)
@pytest.mark.parametrize("step", [1, 2])
def test_positions_of_extrema(monkeypatch, name, dtype, positions, shape, axis, step):
    """Positions that ascend are not compared, and others are; layouts and threads change nothing."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(len(positions))
    n = shape[axis]
    along = {
        "ascend": 3 * np.arange(n) - 50,
        "descend": -np.arange(n),
        "agree": np.full(n, 7),
        "turn": np.r_[np.arange(n - 2), 5, 3],
    }.get(positions, np.arange(n))
    index = np.broadcast_to(along.reshape(-1, *[1] * (len(shape) - 1 - axis)), shape)
    if positions == "differ between lines":
        index = np.ascontiguousarray(index)
        np.moveaxis(index, axis, 0)[:, 1:] = rng.integers(0, 9, np.moveaxis(index, axis, 0)[:, 1:].shape)
    for spoiled in (False, True):
        x = rng.integers(-4, 5, shape).astype(dtype)
        if spoiled and dtype != "int32":
            x[rng.random(shape) < 0.02] = np.nan
        values = np.repeat(x, step, axis=-1)[..., ::step]
        expected = first_extremum(values, index, axis, 1 if name == "argmax" else -1)
        for count in (1, 2, 7):
            monkeypatch.setattr(threads, "limit", lambda count=count: count)
            found = parprims.reduce((values, index), name, axis=axis, method="kernel")
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_winners_so_far(name, dtype, rng):
    """Scans by position look at 32 elements at once, and at positions only where a value does not lose clearly."""
    for n in (1, 33, 64, 300):
        rising = np.arange(n).astype(dtype)
        cases = {"rising": rising, "falling": rising[::-1].copy(), "equal": np.zeros(n, dtype)}
        cases["random"] = rng.integers(0, 9, n).astype(dtype)
        if dtype.startswith("float"):
            cases["NaN"] = np.where(rng.random(n) < 0.01, np.nan, cases["random"]).astype(dtype)
            cases["NaN first"] = np.where(np.arange(n) == 0, np.nan, cases["random"]).astype(dtype)
            cases["zeros"] = np.copysign(np.zeros(n), rng.standard_normal(n)).astype(dtype)
        for what, x in cases.items():
            for at in (np.arange(n), np.arange(n)[::-1].copy(), rng.integers(0, 5, n)):
                values, places = parprims.scan((x, at), name, method="kernel")
                value, place = x[0], at[0]
                for i in range(n):
                    better = x[i] > value if name == "argmax" else x[i] < value
                    same = x[i] == value or (x[i] != x[i] and value != value)
                    first = x[i] != x[i] and value == value
                    if (better and value == value) or first or (same and at[i] < place):
                        value, place = x[i], at[i]
                    assert (places[i], values[i].tobytes()) == (place, value.tobytes()), (what, n, i)
