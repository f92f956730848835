"""Segments by the kernels for CPUs, and by what NumPy and PyTorch have for them."""

import os

import numpy as np
import pytest

import parprims
from parprims._operators.operator import Operator
from tests.emulation import emulator
from tests.support.contract import numpy_dtype, random

pytestmark = pytest.mark.once
pytest.importorskip("numba")

from parprims._primitives.segments import cpu as segments_cpu  # noqa: E402
from parprims._primitives.segments import methods as segments_methods  # noqa: E402
from parprims._primitives.segments.by_offsets import cpu as by_offsets_cpu  # noqa: E402
from tests.primitives.segments.test_segments import cuts, reduced, scanned  # noqa: E402


@pytest.fixture
def cut(monkeypatch):
    """Return a function that changes how elements are cut into blocks; calls made before are forgotten."""
    return emulator.changing(monkeypatch, segments_cpu)


def loop(x, ids, count, op, start):
    """Return the combinations along the first axis, one row after another; start where a segment has none."""
    found = [None if start is None else np.full(x.shape[1:], start, x.dtype)] * count
    for row, number in zip(x, ids, strict=True):
        if 0 <= number < count:
            found[number] = row if found[number] is None else op(found[number], row)
    return np.stack([np.zeros(x.shape[1:], x.dtype) if one is None else one for one in found])


def last(earlier, later):  # noqa: ARG001
    return later


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", "float32", "complex64"])
def test_dtypes(cut, rng, dtype):
    """Blocks of few rows, numbers of several dtypes, some of which are of no segment."""
    cut(_BLOCK=64, _EACH=1)
    # Of float16 such whose sums are exact.
    x = rng.integers(-9, 10, (200, 3)).astype(dtype) if dtype == "float16" else random(rng, (200, 3), dtype)
    for kind in ("int8", "uint32", "int64"):
        ids = rng.integers(0 if kind == "uint32" else -2, 9, 200).astype(kind)
        found = parprims.segment_reduce(x, ids, 7, method="kernel")
        wide = np.result_type(x, numpy_dtype(found.dtype.name))
        expected = loop(x.astype(wide), ids, 7, np.add, None)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_order_and_initial(cut, rng):
    """An operator that does not commute, from the left an initial element, and segments without elements."""
    cut(_BLOCK=16, _EACH=1)
    x, ids = rng.integers(0, 99, (50, 2)), rng.integers(0, 5, 50)
    op = Operator(last, name="last")
    for axis, given in ((0, x), (1, x.T.copy()), (0, x[::-1])):
        found = parprims.segment_reduce(given, ids, 6, op, axis=axis, initial=-7, method="kernel")
        expected = loop(np.moveaxis(given, axis, 0), ids, 6, last, -7)
        np.testing.assert_array_equal(np.moveaxis(found, axis, 0), expected)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_number_of_threads_changes_no_bits(rng, threads, monkeypatch):
    x, ids = random(rng, (300_000,), "float32"), rng.integers(0, 100, 300_000)
    emulator.forget(monkeypatch)
    monkeypatch.setitem(os.environ, "PARPRIMS_NUM_THREADS", "1")
    expected = parprims.segment_reduce(x, ids, 100, method="kernel")
    monkeypatch.setitem(os.environ, "PARPRIMS_NUM_THREADS", str(threads))
    assert parprims.segment_reduce(x, ids, 100, method="kernel").tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["add", "maximum"])
def test_derivatives(rng, name):
    """Of the kernel and of PyTorch's own additions, of second order too."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rng.standard_normal((20, 2))).requires_grad_()
    ids = torch.from_numpy(rng.integers(-1, 5, 20))
    for method in ("kernel", "native") if name == "add" else ("kernel",):

        def value(x, method=method):
            return parprims.segment_reduce(x * x, ids, 4, name, method=method)

        assert torch.autograd.gradcheck(value, x)
        assert torch.autograd.gradgradcheck(value, x)


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum"])
def test_library(rng, name):
    """NumPy and PyTorch combine at numbers, of which some are of no segment, as a loop does."""
    torch = pytest.importorskip("torch")
    ids = rng.integers(-2, 9, 60)
    for x in (random(rng, (60,), "float32"), rng.integers(-3, 4, 60), random(rng, (60,), "float16")):
        for initial in (None, 2):
            for make in (np.asarray, torch.from_numpy):
                arrays = make(x), make(ids)
                found, other = (
                    np.asarray(parprims.segment_reduce(*arrays, 8, name, initial=initial, method=method))
                    for method in ("native", "array")
                )
                assert found.dtype == other.dtype
                np.testing.assert_allclose(found, other, rtol=4e-3 if x.dtype == "float16" else 1e-5, atol=1e-5)


# ---- By offsets -------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """Cut segments into blocks, and lines into shares, of a few elements."""
    few = {"block_elements": lambda _: 8, "_SHARE": 16, "_ROWS": 2, "_COLUMNS": 4}
    emulator.changing(monkeypatch, by_offsets_cpu)(**few)


def layouts(x):
    """Return an array along axis 0 as arrays of several layouts, with the axis."""
    backward = np.ascontiguousarray(x[::-1])[::-1]
    apart = np.repeat(x, 2, axis=0)[::2]
    return [(x, 0), (np.asfortranarray(x), 0), (np.moveaxis(x, 0, -1).copy(), x.ndim - 1), (backward, 0), (apart, 0)]


SHAPES = ((90,), (90, 7), (40, 2, 3))


LAST = Operator(last, identity=-1, name="last")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("given", "op", "start"), [("add", np.add, None), (LAST, last, None), (LAST, last, -3)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", range(5))
def test_reductions_by_offsets(rng, given, op, start, shape, layout):
    """Segments that are shorter and longer than blocks and shares, some of them empty."""
    for many in (5, 60):
        x, offsets = rng.integers(-9, 10, shape), cuts(rng, shape[0], many)
        begin = start if start is not None else -1 if given is LAST else 0
        expected = reduced(x, offsets, 0, op, np.int64(begin))
        own, axis = layouts(x)[layout]
        found = parprims.reduce(own, given, offsets=offsets, axis=axis, initial=start, method="kernel")
        np.testing.assert_array_equal(np.moveaxis(found, axis, 0), expected)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("given", "op", "start"), [("add", np.add, None), (LAST, last, -3)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", range(5))
def test_scans_by_offsets(rng, given, op, start, reverse, exclusive, shape, layout):
    for many in (5, 60):
        x, offsets = rng.integers(-9, 10, shape), cuts(rng, shape[0], many)
        begin = 0 if start is None and exclusive else start
        expected = scanned(x, offsets, 0, op, begin, exclusive, reverse)
        own, axis = layouts(x)[layout]
        options = {"axis": axis, "reverse": reverse, "exclusive": exclusive, "initial": start}
        found = parprims.scan(own, given, offsets=offsets, method="kernel", **options)
        np.testing.assert_array_equal(np.moveaxis(found, axis, 0), expected)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", "complex64", "bool"])
@pytest.mark.parametrize("shape", [(90,), (90, 3)])
@pytest.mark.parametrize("kind", ["int8", "uint64"])
@pytest.mark.parametrize("call", [parprims.reduce, parprims.scan], ids=["reduce", "scan"])
def test_dtypes_by_offsets(rng, dtype, shape, kind, call):
    """Sums of several dtypes, and offsets of several dtypes and with gaps."""
    x = rng.integers(0, 3, shape).astype(dtype)
    offsets = np.repeat(cuts(rng, 90, 9).astype(kind), 2)[::2]
    found = call(x, offsets=offsets, axis=0, method="kernel")
    if call is parprims.reduce:
        expected = reduced(x.astype("complex128"), offsets.astype(int), 0, np.add, 0)
    else:
        expected = scanned(x.astype("complex128"), offsets.astype(int), 0, np.add, None, False, False)
    np.testing.assert_array_equal(found.astype("complex128"), expected)
    assert found.dtype == call(x, offsets=offsets, axis=0, method="array").dtype


def test_casts_by_offsets(rng):
    """Elements are cast to the dtype of the result before anything else."""
    x, offsets = 10 * rng.random(20), np.array([0, 7, 20])
    for dtype in ("int32", "float16"):
        x16 = x.astype(dtype)
        for method in ("kernel", "native", "array"):
            found = parprims.reduce(x, "maximum", offsets=offsets, dtype=dtype, initial=0, method=method)
            np.testing.assert_array_equal(found, [x16[:7].max(), x16[7:].max()])


@pytest.mark.usefixtures("small")
def test_components_by_offsets(rng):
    """Elements of several components, combined in order, with one result of each."""
    for shape in ((90,), (90, 3)):
        values, offsets = rng.integers(0, 5, shape), cuts(rng, 90, 7)
        index = np.broadcast_to(np.arange(90).reshape(-1, *(1,) * (len(shape) - 1)), shape)
        for call in (parprims.reduce, parprims.scan):
            pairs = [
                call((values, index), "argmax", offsets=offsets, axis=0, method=method)
                for method in ("kernel", "array")
            ]
            for one, other in zip(*pairs, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_number_of_threads_changes_no_bits_by_offsets(rng, threads, monkeypatch):
    x, a = random(rng, (300_000,), "float32"), rng.uniform(0, 1, 300_000).astype("float32")
    rows = x.reshape(-1, 3)

    def results():
        found = []
        for many in (1, 3, 5000):
            options = {"offsets": cuts(np.random.default_rng(many), 300_000, many), "method": "kernel"}
            found += [parprims.reduce(x, **options), parprims.scan(x, **options)]
            found.append(parprims.linear_recurrence(a, x, **options))
            options["offsets"] = cuts(np.random.default_rng(many), 100_000, many)
            found += [parprims.reduce(rows, axis=0, **options), parprims.scan(rows, axis=0, **options)]
        return [one.tobytes() for one in found]

    emulator.forget(monkeypatch)
    monkeypatch.setitem(os.environ, "PARPRIMS_NUM_THREADS", "1")
    expected = results()
    monkeypatch.setitem(os.environ, "PARPRIMS_NUM_THREADS", str(threads))
    assert results() == expected


@pytest.mark.usefixtures("small")
def test_wrong_offsets_by_kernel(rng):
    """Offsets that do not ascend read no other memory, leave no result unwritten, and do the same every time."""
    for shape in ((90,), (90, 3)):
        x = rng.standard_normal(shape)
        for wrong in ([0, 60, 30, 90], [5, 20], [-9, 200], [90, 0], [3], [80, 70, 60, 1, 90, 90, 0]):
            options = {"offsets": np.array(wrong), "axis": 0, "method": "kernel", "check": False}
            for call in (
                parprims.reduce,
                parprims.scan,
                lambda x, **options: parprims.linear_recurrence(x, x, **options),
            ):
                one, other = call(x, **options), call(x, **options)
                assert one.tobytes() == other.tobytes()
                assert one.shape[0] == (len(wrong) - 1 if call is parprims.reduce else 90)


@pytest.mark.parametrize("name", ["reduce", "scan", "linear_recurrence"])
def test_derivatives_by_offsets(rng, name):
    """Of elements and of the initial element, of second order too."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rng.standard_normal((9, 2))).requires_grad_()
    start = torch.from_numpy(rng.standard_normal(2)).requires_grad_()
    offsets = torch.tensor([0, 4, 4, 9])

    def value(x, start):
        given = (x, x * x) if name == "linear_recurrence" else (x * x,)
        return getattr(parprims, name)(*given, offsets=offsets, axis=0, initial=start, method="kernel")

    assert torch.autograd.gradcheck(value, (x, start))
    assert torch.autograd.gradgradcheck(value, (x, start))


# ---- By NumPy ---------------------------------------------------------------------------------------------------

REDUCTIONS = ("add", "multiply", "maximum", "minimum", "logaddexp", "bitwise_and", "bitwise_xor", "logical_or")


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_by_numpy(rng, name):
    """In NumPy's, PyTorch's and JAX's memory, with segments that are empty and offsets that are wrong."""
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    dtype = {"b": "int32", "l": "bool"}.get(name[0], "float32") if name != "logaddexp" else "float32"
    for shape, axis in (((30,), 0), ((3, 30), 1), ((30, 2), 0)):
        x = rng.integers(-2, 3, shape).astype(dtype)
        for offsets in ([0, 4, 9, 30], [0, 4, 4, 30], [0, 0, 0, 30, 30], [3, 5, 20]):
            for start in (None, True if dtype == "bool" else 2):
                options = {"axis": axis, "initial": start, "check": False}
                expected = parprims.reduce(x, name, offsets=np.array(offsets), method="array", **options)
                for make in (np.asarray, torch.from_numpy, jax.numpy.asarray):
                    given = make(x), make(np.array(offsets, np.int32))
                    found = parprims.reduce(given[0], name, offsets=given[1], method="native", **options)
                    assert type(found) is type(given[0])
                    assert str(found.dtype).removeprefix("torch.") in (str(expected.dtype), "int32")
                    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5)


def test_no_warnings():
    """Infinities and NaN of both signs, which NumPy warns of."""
    x = np.array([np.inf, -np.inf, np.nan, 3e38, 3e38], np.float32)
    for offsets in (np.array([0, 2, 5]), np.array([0, 2, 2, 5])):
        for _ in range(2):
            assert np.isnan(parprims.reduce(x, offsets=offsets, method="native")[0])
    for _ in range(2):
        assert np.isnan(parprims.segment_reduce(x, np.zeros(5, int), 1, method="native")[0])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("segments", [3, 20])
def test_sorts_by_numpy(rng, segments, descending):
    """One segment after another, and all by their numbers; offsets that leave elements out."""
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    for shape, axis in (((60,), 0), ((2, 60), 1), ((60, 3), 0)):
        x = rng.integers(-3, 4, shape).astype(np.float32) * rng.choice([1.0, -0.0, np.nan], shape).astype(np.float32)
        offsets = cuts(rng, 60, segments).astype(np.int32)
        for own in (offsets, offsets[1:-1]):
            options = {"axis": axis, "descending": descending, "check": False}
            index = parprims.argsort(x, offsets=own, method="array", **options)
            expected = np.take_along_axis(x, index, axis)
            for make in (np.asarray, torch.from_numpy, jax.numpy.asarray):
                options |= {"offsets": make(own), "method": "native"}
                given = make(x)
                found = [
                    np.asarray(one)
                    for one in (
                        parprims.argsort(given, **options),
                        parprims.sort(given, **options),
                        *parprims.sort_by_key(given, given, **options),
                    )
                ]
                np.testing.assert_array_equal(found[0], index)
                for one in found[1:]:
                    assert one.tobytes() == expected.tobytes()


# ---- Short calls ------------------------------------------------------------------------------------------------


def calls(put):
    x, offsets = put(np.arange(30.0)), put(np.array([0, 4, 4, 30]))
    for method in ("auto", "kernel"):
        options = {"offsets": offsets, "method": method}
        yield lambda options=options: parprims.reduce(x, **options)
        yield lambda options=options: parprims.reduce(x, initial=2.0, **options)
        yield lambda options=options: parprims.scan(x, exclusive=True, **options)
        yield lambda options=options: parprims.linear_recurrence(x, x, **options)
        yield lambda options=options: parprims.linear_recurrence(0.5, x, **options)
        yield lambda options=options: parprims.sort(x, **options)
        yield lambda options=options: parprims.argsort(x, **options)
        yield lambda options=options: parprims.sort_by_key(x, x, **options)
    yield lambda: parprims.segment_reduce(x, offsets[:1] * 0 + put(np.arange(30) % 3), 3)
    yield lambda: parprims.segment_reduce(x, put(np.arange(30) % 3), 3, initial=1.0)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_later_calls_are_found_again(name, monkeypatch):
    """A call like an earlier one is neither checked anew nor given to a method."""
    put = np.asarray if name == "numpy" else pytest.importorskip("torch").from_numpy
    parprims.sum(put(np.ones(3)))  # the type of a library's arrays is known from its first call on
    again = list(calls(put))
    first = [call() for call in again]

    def fails(*_):
        raise AssertionError

    for methods in segments_methods.METHODS.values():
        monkeypatch.setattr(methods, "check", fails)
    for call, found in zip(again, first, strict=True):
        later = call()
        for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (later, found)), strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_initial_elements_are_told_apart():
    x, offsets, ids = np.ones(3), np.array([0, 0, 3]), np.zeros(3, int)
    for start in (1.0, 2.0, -0.0, 0.0):
        found = parprims.reduce(x, offsets=offsets, initial=start)
        assert found.tobytes() == np.array([start, 3 + start]).tobytes()
        found = parprims.segment_reduce(x, ids, 2, initial=start, method="kernel")
        assert found.tobytes() == np.array([3 + start, start]).tobytes()
        assert parprims.scan(x, offsets=offsets, initial=start).tolist() == [1 + start, 2 + start, 3 + start]
