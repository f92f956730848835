"""Sorts by the kernels for CPUs: sizes around every edge, every dtype, layouts, special numbers, and threads."""

import os

import numpy as np
import pytest

import parprims
from tests.cpu.test_cpu import run
from tests.emulation import emulator
from tests.primitives.sort.test_sort import REAL, extremes, raw
from tests.support.contract import numpy_dtype, random

pytestmark = pytest.mark.once
pytest.importorskip("numba")

from parprims import _cpu  # noqa: E402
from parprims._cpu import threads  # noqa: E402
from parprims._cpu.processor import is_zen_4  # noqa: E402
from parprims._primitives.sort import cpu as sort_cpu  # noqa: E402

DTYPES = [one for one in REAL if one != "bfloat16"]
VALUES = ("bool", "int8", "int16", "float16", "int32", "float64", "complex64", "complex128")


@pytest.fixture
def cut(monkeypatch):
    """Return a function that changes how lines are cut; calls made before are forgotten."""
    return emulator.changing(monkeypatch, sort_cpu)


def keys(rng, shape, dtype):
    """Return keys of one of four kinds: few different ones, over the whole range, almost equal, and special ones."""
    kind = int(rng.integers(4))
    if dtype == "bool":
        return rng.random(shape) < (0.5, 0.01)[kind % 2]
    if numpy_dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        ends = ((max(info.min, -3), 3), (info.min, info.max), (info.max - 300 if info.bits > 8 else 0, info.max))
        found = rng.integers(*ends[kind % 3], shape, dtype, endpoint=True)
    else:
        wide = rng.standard_normal(shape) * np.exp2(rng.uniform(-20, 14, shape))
        found = (rng.integers(-3, 4, shape) if kind == 0 else wide if kind == 1 else 1 + wide * 2.0**-14).astype(dtype)
    if kind == 3:
        special = extremes(dtype)
        found = np.where(rng.random(shape) < 0.3, special[rng.integers(0, special.size, shape)], found)
    return found


def order(x, axis, descending):
    """Return the stable indices by NumPy's stable sort, whose order is ours. Flipped twice, equals keep their order."""
    x = x.astype(np.float32) if x.dtype.name == "bfloat16" else x
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


def check(x, axis=-1, values=()):
    """Compare all three sorts in both directions, bit for bit; the arrays are to stay as they are."""
    before = [one.copy() for one in (x, *values)]
    for descending in (False, True):
        options = {"axis": axis, "descending": descending, "method": "kernel"}
        wanted = order(x, axis, descending)
        np.testing.assert_array_equal(parprims.argsort(x, **options), wanted)
        found = [parprims.sort(x, **options), *parprims.sort_by_key(x, *values, **options)]
        for one, given in zip(found, (x, x, *values), strict=True):
            expected = np.take_along_axis(given, wanted, axis)
            assert one.dtype == expected.dtype
            np.testing.assert_array_equal(raw(one), raw(expected))
            assert not np.shares_memory(one, given)
    for one, given in zip(before, (x, *values), strict=True):
        np.testing.assert_array_equal(raw(one), raw(given))


def around(*edges):
    return sorted({max(0, edge + near) for edge in edges for near in (-1, 0, 1)})


@pytest.mark.parametrize("dtype", DTYPES)
def test_lengths_around_every_edge(rng, dtype, subtests):
    """Of insertion, digits, runs, counted keys, chunks and blocks."""
    counted = sort_cpu._COUNTED.get(8 * np.dtype(dtype).itemsize, 0)
    for n in around(1, 24, 48, 256, 4096, counted, 1 << 16):
        with subtests.test(n=n):
            check(keys(rng, (n,), dtype), values=(rng.standard_normal(n),))


@pytest.mark.parametrize("dtype", ["int32", "float64", "float16"])
def test_lines_that_are_cut(rng, dtype, cut, subtests):
    """Blocks of few elements, so that there are many; keys of every kind, and those that leave one bucket."""
    cut(_LONG=64, _BLOCK=32, _COUNTED={})
    for n in around(64, 256, 32 * 32, 5000):
        for _ in range(4):
            with subtests.test(n=n):
                check(keys(rng, (max(n, 64),), dtype))
    x = keys(rng, (5000,), dtype)
    for one in (np.sort(x), np.sort(x)[::-1], np.full_like(x, x[0]), np.where(np.arange(5000) == 77, x.max(), x[1])):
        check(one)
    for shape, axis in (((3, 500), 1), ((500, 3), 0), ((2, 300, 5), 1)):
        check(keys(rng, shape, dtype), axis)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_long_runs_that_agree_in_high_bits(rng, dtype):
    """Keys that the first digits do not tell apart, beside one that is far off."""
    for n in (100, 1000, 20_000, 140_000):
        x = (1 + rng.integers(0, 1 << 12, n) * 2.0**-40 if dtype == "float64" else rng.integers(0, 1 << 12, n)).astype(
            dtype
        )
        x[n // 2] = 2.0**60
        check(x)


@pytest.mark.parametrize("dtype", ["int8", "float64"])
def test_layouts(rng, dtype, subtests):
    for shape in ((7, 30), (30, 7), (3, 40, 5), (2, 3, 4, 5), (300, 21), (21, 300)):
        x = keys(rng, shape, dtype)
        raw_bytes = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:]
        views = {
            "rows": x,
            "columns": np.asfortranarray(x),
            "backwards": np.ascontiguousarray(x[::-1, ..., ::-1])[::-1, ..., ::-1],
            "steps": np.repeat(x, 2, axis=-1)[..., ::2],
            "unaligned": raw_bytes.view(x.dtype).reshape(shape),
            "axes turned": np.ascontiguousarray(np.moveaxis(x, 0, -1)).transpose(-1, *range(x.ndim - 1)),
            "broadcast": np.broadcast_to(x[:1], shape),
        }
        for name, view in views.items():
            for axis in range(x.ndim):
                with subtests.test(shape=shape, name=name, axis=axis):
                    check(view, axis, (np.asfortranarray(rng.standard_normal(shape)),))


@pytest.mark.parametrize("dtype", VALUES)
def test_values_of_every_dtype(rng, dtype):
    for n in (20, 1000, 140_000):
        for key in ("int8", "int32", "float64") if dtype in ("int16", "complex128") else ("int32",):
            check(keys(rng, (n,), key), values=(random(rng, (n,), dtype), np.arange(n)))


def test_strange_values_are_refused():
    values = np.zeros(3, dtype=[("a", "i4"), ("b", "f8")])
    with pytest.raises((parprims.MethodRefused, TypeError), match=r"does not move values of dtype|values\[0\]"):
        parprims.sort_by_key(np.arange(3), values, method="kernel")


def test_bfloat16(rng):
    pytest.importorskip("ml_dtypes")
    every = np.arange(1 << 16, dtype=np.uint16).view(numpy_dtype("bfloat16"))
    for n in (30, 3000, 1 << 16):
        check(rng.permutation(np.concatenate([every, extremes("bfloat16")]))[:n])


def test_every_half(rng):
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    check(rng.permutation(every), values=(every,))


def test_wide_indices(rng, cut):
    """Those of 64 bits, which lines of 2^31 elements need, on short ones."""
    cut(NARROW=0, _LONG=5000)
    for dtype in ("int32", "float64"):
        for n in (2, 30, 1000, 9000):
            check(keys(rng, (n,), dtype), values=(rng.standard_normal(n),))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float64"])
def test_the_number_of_threads_changes_no_bits(rng, dtype, cut, monkeypatch):
    """Every call is checked; parts are so small that all threads have some."""
    cut(_LEAST=64, _LONG=2000, _BLOCK=100)
    for count in (1, 2, 7):
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        monkeypatch.setattr(threads, "_pool", None)
        for shape, axis in (((20_000,), 0), ((3, 3000), 1), ((300, 40), 0), ((40, 300), 1), ((2, 40_000), 1)):
            check(keys(rng, shape, dtype), axis, (rng.standard_normal(shape),))


def test_read_only_input(rng):
    x = keys(rng, (3, 500), "float64")
    x.flags.writeable = False
    check(x)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork():
    found = run("""
        import os, warnings
        warnings.simplefilter("ignore")
        import numpy as np, parprims
        from parprims._cpu import threads
        threads.limit = lambda: 3
        x = np.random.default_rng(1).standard_normal(300_000)
        whole = parprims.argsort(x, method="kernel")
        child = os.fork()
        if not child:
            os._exit(0 if np.array_equal(parprims.argsort(x, method="kernel"), whole) else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert found.strip() == "0"


def test_auto_takes_the_faster(rng, monkeypatch):
    """Short calls stay with NumPy, and keys alone too, which it sorts by vectors, unless there are many threads."""
    monkeypatch.setattr(_cpu.processor, "compresses_slowly", lambda: False)
    emulator.forget(monkeypatch)
    calls = {
        (parprims.sort, "float64", 2000): "native",
        (parprims.sort, "float64", 5000): "native",
        (parprims.sort, "int32", 2000): "native",
        (parprims.sort, "uint8", 2000): "native",
        (parprims.sort, "uint8", 20_000): "kernel",
        (parprims.argsort, "int64", 2000): "native",
        (parprims.argsort, "int64", 5000): "kernel",
    }
    for (function, dtype, n), expected in calls.items():
        with parprims.explain() as told:
            function(random(rng, (n,), dtype))
        assert [one.method for one in told] == [expected], (function.__name__, dtype, n)
    with parprims.explain() as told:
        parprims.sort(random(rng, (300, 100), "float32"), axis=1)
    assert told[0].method == "native"
    for count, expected in ((3, "native"), (4, "kernel")):
        emulator.forget(monkeypatch)
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        with parprims.explain() as told:
            parprims.sort(random(rng, (1 << 19,), "float64"))
        assert told[0].method == expected
    with parprims.explain() as told:
        parprims.sort_by_key(np.arange(3), np.arange(3))
        parprims.sort_by_key(np.arange(5000), np.arange(5000))
    assert [one.method for one in told] == ["native", "kernel"]


def test_auto_takes_the_faster_where_numpy_sorts_slowly(rng, monkeypatch):
    """On processors that store chosen lanes of vectors slowly, lines are the kernel's, but short ones."""
    monkeypatch.setattr(_cpu.processor, "compresses_slowly", lambda: True)
    emulator.forget(monkeypatch)
    for shape, dtype, expected in (
        ((2000,), "float64", "native"),
        ((5000,), "float64", "kernel"),
        ((5000,), "float32", "kernel"),
        ((5000,), "int32", "kernel"),
        ((5000,), "uint64", "kernel"),
        ((300, 100), "float32", "native"),
        ((300, 600), "int64", "kernel"),
    ):
        with parprims.explain() as told:
            parprims.sort(random(rng, shape, dtype), axis=-1)
        assert [one.method for one in told] == [expected], (shape, dtype)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("descending", [False, True])
def test_integers_of_pytorch_by_its_own_sort(rng, monkeypatch, slow, descending):
    """Where NumPy sorts slowly PyTorch sorts long lines of its integers itself, in the same order."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(_cpu.processor, "compresses_slowly", lambda: slow)
    emulator.forget(monkeypatch)
    asked = []
    given = torch.sort
    monkeypatch.setattr(torch, "sort", lambda *args, **options: asked.append(1) or given(*args, **options))
    keys = rng.integers(-50, 50, (3, 700))
    places = np.argsort(-keys if descending else keys, axis=1, kind="stable")
    options = {"axis": 1, "descending": descending, "method": "native"}
    found = parprims.sort(torch.asarray(keys), **options)
    np.testing.assert_array_equal(found, np.take_along_axis(keys, places, axis=1))
    np.testing.assert_array_equal(parprims.argsort(torch.asarray(keys), **options), places)
    assert bool(asked) is slow


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n", True),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7763\n", False),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n", False),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 25\nmodel\t\t: 17\n", False),
        ("AMD64 Family 25 Model 97 Stepping 2, AuthenticAMD", True),
        ("AMD64 Family 25 Model 33 Stepping 2, AuthenticAMD", False),
        ("arm", False),
    ],
)
def test_processors(text, expected):
    assert is_zen_4(text) is expected


@pytest.mark.parametrize("n", [30, 2000])
def test_derivatives_on_pytorch(rng, n):
    """Of keys and values, of first and second order, as by the array form; by name and by auto."""
    torch = pytest.importorskip("torch")
    x, y = (torch.from_numpy(rng.integers(0, 9, (3, n)).astype(np.float64)) for _ in range(2))

    def derivatives(method):
        keys, values = (one.clone().requires_grad_(True) for one in (x, y))
        with parprims.explain() as told:
            one = parprims.sort(keys, descending=True, method=method)
            two, moved = parprims.sort_by_key(keys, values, axis=0, method=method)
        weights = torch.arange(3.0 * n).reshape(3, n)
        total = (one**3 * weights).sum() + (two * moved**2 * weights).sum()
        first = torch.autograd.grad(total, (keys, values), create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), (keys, values))
        return [call.method for call in told], (first, second)

    methods, found = derivatives("kernel")
    assert methods == ["kernel", "kernel"]
    expected = derivatives("array")[1]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(derivatives("auto")[1], expected, rtol=1e-12, atol=0)
