"""The first elements of rows by the kernels for CPUs."""

import itertools

import numpy as np
import pytest

import parprims
from examples import backends
from tests.emulation import emulator
from tests.primitives.order_statistics.test_order_statistics import drawn, top
from tests.support.contract import numpy_dtype

pytestmark = pytest.mark.once
pytest.importorskip("numba")

from parprims import _cpu  # noqa: E402
from parprims._primitives.order_statistics.top_k import cpu as order_statistics_top_k_cpu  # noqa: E402

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
DTYPES += ("float16", "bfloat16", "float32", "float64")


@pytest.fixture
def cut(monkeypatch):
    """Return a function that changes how rows are cut; calls made before are forgotten."""
    return emulator.changing(monkeypatch, order_statistics_top_k_cpu)


def check(x, k, axis=-1, given=None, like=np.asarray):
    """Expect by the kernel the bits that the order of a loop says, of an array or of one with its elements."""
    for mode in ("largest", "smallest"):
        with parprims.explain() as calls:
            found = parprims.top_k(x if given is None else given, k, axis=axis, mode=mode, method="kernel")
        assert [one.primitive for one in calls] == ["top_k"]
        for one, expected in zip(found, top(x, k, axis % x.ndim, mode == "largest"), strict=True):
            one = like(one)
            assert one.dtype == expected.dtype
            assert one.shape == expected.shape
            assert one.tobytes() == expected.tobytes()


def orders(rng, n, dtype):
    """Return rows in orders that are easy or hard to choose from."""
    x = drawn(rng, (n,), dtype)
    found = {"random": x, "few": rng.integers(0, 3, n).astype(dtype), "equal": x[:1].repeat(n)}
    ascending = np.sort(rng.permutation(n).astype(dtype))
    found |= {"ascending": ascending, "descending": ascending[::-1].copy()}
    found["there and back"] = np.concatenate((ascending[::2], ascending[1::2][::-1]))
    if x.dtype.kind in "iu":
        found |= {"ends": np.full(n, np.iinfo(dtype).max, dtype), "other ends": np.full(n, np.iinfo(dtype).min, dtype)}
    else:
        found["nan"] = np.full(n, np.nan, x.dtype)
        found["few numbers"] = np.where(rng.random(n) < 0.02, x, found["nan"])
        found["zeros"] = np.where(rng.random(n) < 0.5, 0.0, -0.0).astype(x.dtype)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(rng, dtype):
    """Rows shorter than a block and longer, of which one element to the half is wanted."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    for n, k in ((2, 1), (31, 4), (64, 1), (64, 32), (333, 9), (333, 100)):
        check(drawn(rng, (3, n), numpy_dtype(dtype)), k)


@pytest.mark.parametrize("rounds", [0, 2, 32])
@pytest.mark.parametrize("dtype", ["int8", "float32", "int64", "float64"])
def test_orders(cut, rng, subtests, dtype, rounds):
    """Rows in any order, where rounds of choices suffice and where candidates are sorted."""
    cut(_ROUNDS=rounds)
    for (name, x), k in itertools.product(orders(rng, 400, dtype).items(), (1, 7, 60)):
        with subtests.test(order=name, k=k):
            check(x, k)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_samples(rng, subtests, dtype):
    """Rows so long that a sample gives the first limit, which may be the last key there is."""
    for (name, x), k in itertools.product(orders(rng, 4200, dtype).items(), (1, 120)):
        with subtests.test(order=name, k=k):
            check(x, k)


def test_wide_indices(cut, rng):
    """Those of 64 bits, which rows of 2^31 elements need, on short ones."""
    cut(NARROW=0)
    for dtype in ("int16", "float32", "int64"):
        check(drawn(rng, (2, 300), dtype), 9)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_layouts(rng, subtests, dtype):
    """Any axis, any strides, memory that may not be written, and no copy of what is read in order."""
    x = drawn(rng, (6, 40, 5), dtype)
    frozen = x.copy()
    frozen.flags.writeable = False
    given = {
        "plain": x,
        "fortran": np.asfortranarray(x),
        "reversed": np.ascontiguousarray(x[::-1, ::-1, ::-1])[::-1, ::-1, ::-1],
        "apart": np.repeat(np.repeat(x, 2, 0), 3, 2)[::2, :, ::3],
        "turned": np.moveaxis(np.moveaxis(x, 0, -1).copy(), -1, 0),
        "frozen": frozen,
        "unaligned": np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(dtype).reshape(x.shape),
    }
    for (name, one), axis in itertools.product(given.items(), (0, 1, -1)):
        with subtests.test(layout=name, axis=axis):
            before = one.tobytes()
            check(x, 2, axis, one)
            assert one.tobytes() == before
    check(np.broadcast_to(x[:, :, :1], x.shape), 2)
    check(np.broadcast_to(x[:1], x.shape), 20, 1)


@pytest.mark.parametrize("dtype", ["int8", "float32", "int64", "float16"])
def test_parts(cut, rng, monkeypatch, subtests, dtype):
    """Few rows that threads share, of parts that are as short as can be and of others."""
    monkeypatch.setattr(_cpu.threads, "limit", lambda: 5)
    cut(_PART=16, _EACH=1)
    for (name, x), k in itertools.product(orders(rng, 333, dtype).items(), (1, 16, 60)):
        with subtests.test(order=name, k=k):
            check(x, k)
    check(drawn(rng, (3, 90), dtype), 9)
    (first, second) = parprims.launches(parprims.top_k, drawn(rng, (3, 90), dtype), 9, method="kernel")
    assert (first.name, first.grid, second.name, second.grid) == ("top_of_parts", 15, "top_of_all_parts", 3)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_libraries(rng, name):
    """On other libraries whose memory the kernel reads: 16-bit floats too, and axes that are not the last."""
    if not backends.available(name):
        pytest.skip(f"{name} is not here")
    backend = backends.make(name)
    for dtype in ("float32", "int64", "bfloat16", "float16", "uint8"):
        for axis in (0, 1):
            x = drawn(rng, (70, 40), dtype)
            check(x, 6, axis, backend.asarray(x), backend.to_numpy)


@pytest.mark.parametrize("shape", [(300_000,), (3, 200_000), (5000, 64)])
def test_the_number_of_threads_changes_no_bits(rng, shape, monkeypatch):
    x = drawn(rng, shape, "float32")
    expected = None
    for threads in (1, 2, 7):
        emulator.forget(monkeypatch)
        monkeypatch.setattr(_cpu.threads, "limit", lambda threads=threads: threads)
        found = [one.tobytes() for one in parprims.top_k(x, 30, method="kernel")]
        expected = expected or found
        assert found == expected
    for one, other in zip(found, parprims.top_k(x, 30, method="native"), strict=True):
        assert np.array_equal(np.frombuffer(one, other.dtype).reshape(other.shape), other, equal_nan=True)


def test_derivative_and_more_than_half(rng):
    """What PyTorch asks a derivative of is sorted, as are rows of which more than half is wanted."""
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((3, 50))
    given = torch.from_numpy(x).requires_grad_()
    values, places = parprims.top_k(given, 4, method="kernel")
    values.sum().backward()
    expected = np.zeros_like(x)
    np.put_along_axis(expected, top(x, 4, 1, True)[1], 1.0, 1)
    np.testing.assert_array_equal(given.grad.numpy(), expected)
    np.testing.assert_array_equal(places.numpy(), top(x, 4, 1, True)[1])
    check(x, 26)
    check(x, 50)


def test_choice_of_auto():
    """Auto takes the kernel but for few elements, and for many of a row that is alone, which NumPy finds."""
    for make in (np.asarray, *(backends.make(name).asarray for name in ("torch", "jax") if backends.available(name))):

        def reason(shape, k, dtype="float32", make=make):
            return parprims.methods(parprims.top_k, make(np.zeros(shape, dtype)), k)["kernel"]

        assert reason((512, 64), 4) is None
        assert "faster below 32768 elements" in reason((511, 64), 4)
        assert reason((10**5,), 97) is None
        assert "above 97 elements of a single row" in reason((10**5,), 98)
        assert reason((10**5,), 98, "float16") is None
        assert reason((2, 10**5), 98) is None
