"""Sizes beyond 2^31 and 2^32 elements, on a GPU.

Tests that need much of the device's memory take turns, in whatever process they are.
"""

import pathlib
import tempfile

import numpy as np
import pytest

import parprims
from tests.support.gpu_calls import finish, release, until


@pytest.fixture
def room(streams):
    """Return a function that waits for so much memory, which tests in other processes leave meanwhile."""
    if streams.name != "cupy":
        pytest.skip("one library is enough")
    import fcntl

    import cupy

    def wait(nbytes):
        release(streams)
        if not until(lambda: cupy.cuda.runtime.memGetInfo()[0] > nbytes + (2 << 30), 60):
            pytest.skip(f"needs {nbytes >> 30} GB of memory")
        return cupy

    with open(pathlib.Path(tempfile.gettempdir()) / "parprims-memory.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield wait
        finish(streams)
        release(streams)


RAMP = 251


def ramps(cupy, n, dtype="uint8"):
    """Return 0, 1, ..., 250, 0, ... by index arithmetic on slices, since a library's arange may err (fault 7)."""
    x = cupy.empty(n, dtype)
    whole = n // RAMP * RAMP
    x[:whole].reshape(-1, RAMP)[...] = cupy.arange(RAMP).astype(dtype)
    x[whole:] = cupy.arange(n - whole).astype(dtype)
    return x


def are_sorted_ramps(y, n):
    """Return whether these are the sorted numbers of `ramps`."""
    bounds, right = 0, True
    for value in range(RAMP):
        count = n // RAMP + (value < n % RAMP)
        right = right and bool((y[bounds : bounds + count] == value).all())
        bounds += count
    return right and bounds == n


FAR = (1 << 32) + 12_345


class TestBeyond32Bits:
    """More than 2^32 elements, or 4 GB: every primitive and axis; faults 2 to 8."""

    def test_reductions(self, room):
        cupy = room(6 << 30)
        x = ramps(cupy, FAR)
        whole, rest = divmod(FAR, RAMP)
        total = whole * (RAMP * (RAMP - 1) // 2) + rest * (rest - 1) // 2
        assert int(parprims.sum(x, method="kernel")) == total
        assert int(parprims.vecdot(x[: 1 << 20].astype("int64"), x[: 1 << 20].astype("int64"), method="kernel")) > 0
        x[...] = 0
        assert not bool(parprims.any(x, method="kernel"))
        for place in (FAR - 1, 1 << 32, (1 << 32) - 1, (1 << 31) + 1):
            x[place] = 7
            assert int(parprims.max(x, method="kernel")) == 7
            assert int(parprims.sum(x, method="kernel")) == 7
            x[place] = 0

    @pytest.mark.parametrize("shape", [(2, (1 << 31) + 1), (4_194_305, 1025), ((1 << 31) + 1, 2), (309_504, 3, 5000)])
    def test_reductions_along_an_axis(self, room, shape):
        count = int(np.prod(shape, dtype=np.int64))
        cupy = room(44 << 30)
        x = ramps(cupy, count).reshape(shape)
        for axis in range(len(shape)):
            top = parprims.max(x, axis=axis, method="kernel")
            total = parprims.sum(x, axis=axis, method="kernel")
            along = max(range(len(shape)), key=shape.__getitem__)  # pieces of so many elements are easy to be right on
            step = -(-shape[along] // (count >> 27))
            tops, sums = cupy.zeros_like(top), cupy.zeros_like(total)
            for begin in range(0, shape[along], step):
                part = x[(slice(None),) * along + (slice(begin, begin + step),)]
                if along == axis:
                    tops = cupy.maximum(tops, part.max(axis=axis))
                    sums += part.sum(axis=axis, dtype=total.dtype)
                else:
                    place = (slice(None),) * (along - (along > axis)) + (slice(begin, begin + step),)
                    assert bool((top[place] == part.max(axis=axis)).all())
                    assert bool((total[place] == part.sum(axis=axis, dtype=total.dtype)).all())
            if along == axis:
                assert bool((top == tops).all())
                assert bool((total == sums).all())
            del top, total, tops, sums

    def test_cumulative_sum(self, room):
        """Fault 2."""
        n = (1 << 31) + 7
        cupy = room(44 << 30)
        y = parprims.cumulative_sum(cupy.ones(n, "int8"), method="kernel")
        places = (0, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, n - 1)
        assert [int(y[place]) for place in places] == [place + 1 for place in places]
        assert bool((y[1:] - y[:-1] == 1).all())

    def test_cumulative_sum_far(self, room):
        cupy = room(44 << 30)
        y = parprims.cumulative_sum(cupy.ones(FAR, "int8"), method="kernel")
        places = (0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, FAR - 1)
        assert [int(y[place]) for place in places] == [place + 1 for place in places]

    def test_segments(self, room):
        cupy = room(14 << 30)
        x = cupy.zeros(FAR, "int8")
        places = np.array([(1 << 31) - 1, 1 << 31, (1 << 31) + 5, (1 << 32) - 1, 1 << 32, (1 << 32) + 7])
        x[cupy.asarray(places)] = cupy.arange(1, 7, dtype="int8")
        offsets = cupy.asarray(np.array([0, *places, FAR]))
        found = parprims.reduce(x, "maximum", offsets=offsets, method="kernel")
        assert found.tolist() == [0, 1, 2, 3, 4, 5, 6]
        y = parprims.scan(x, "maximum", offsets=offsets, method="kernel")
        bounds = offsets.tolist()
        for value in range(7):
            assert bool((y[bounds[value] : bounds[value + 1]] == value).all())

    @pytest.mark.parametrize("reverse", [False, True])
    def test_scan(self, room, reverse):
        cupy = room(14 << 30)
        x = cupy.zeros(FAR, "int8")
        x[(1 << 31) + 5], x[(1 << 32) + 7] = (2, 3) if not reverse else (3, 2)
        y = parprims.scan(x, "maximum", reverse=reverse, method="kernel")
        (low, high), steps = ((1 << 31) + 5, (1 << 32) + 7), (0, 2, 3)
        if reverse:
            parts = ((y[: low + 1], 3), (y[low + 1 : high + 1], 2), (y[high + 1 :], 0))
        else:
            parts = tuple(zip((y[:low], y[low:high], y[high:]), steps, strict=True))
        assert all(bool((part == value).all()) for part, value in parts)

    @pytest.mark.parametrize(
        ("shape", "axis"),
        [
            ((309_504, 1, 16_384), 1),
            ((309_504, 3, 5000), 1),
            ((2, (1 << 31) + 1), 0),
            ((2, (1 << 31) + 1), 1),
            (((1 << 31) + 1, 2), 0),
            ((4_194_305, 1025), 1),
            ((4_194_305, 1025), 0),
        ],
    )
    def test_scan_along_an_axis(self, room, shape, axis):
        """Faults 3, 4 and 5."""
        count = int(np.prod(shape, dtype=np.int64))
        cupy = room(5 * count)
        x = ramps(cupy, count).reshape(shape)
        y = parprims.scan(x, "bitwise_xor", axis=axis, method="kernel")
        assert y.dtype == x.dtype
        first = (slice(None),) * axis
        assert bool((y[(*first, slice(0, 1))] == x[(*first, slice(0, 1))]).all())
        step = max(1, count >> 30)
        for begin in range(1, shape[axis], -(-shape[axis] // step)):
            end = min(shape[axis], begin + -(-shape[axis] // step))
            here, before = (*first, slice(begin, end)), (*first, slice(begin - 1, end - 1))
            assert bool((y[here] == y[before] ^ x[here]).all())

    def test_recurrence(self, room):
        cupy = room(24 << 30)
        n = FAR // 256 * 256
        one = cupy.ones(n, "uint8")
        y = parprims.linear_recurrence(one, one, method="kernel").reshape(-1, 256)
        assert bool((y == (cupy.arange(256) + 1).astype("uint8")).all())

    def test_sort(self, room):
        cupy = room(24 << 30)
        x = ramps(cupy, FAR)
        assert are_sorted_ramps(parprims.sort(x, method="kernel"), FAR)

    @pytest.mark.parametrize(
        ("shape", "axis"), [((4_194_305, 1025), 1), ((1025, 4_194_305), 0), ((2, (1 << 31) + 1), 1)]
    )
    def test_sort_along_an_axis(self, room, shape, axis):
        count = int(np.prod(shape, dtype=np.int64))
        cupy = room(7 * count)
        x = ramps(cupy, count).reshape(shape)
        y = parprims.sort(x, axis=axis, method="kernel")
        lines = (0, shape[1 - axis] // 2, shape[1 - axis] - 1)
        step = -(-shape[0] // 8)
        for begin in range(0, shape[0], step):
            part = y[begin : begin + step + (axis == 0)]
            right = part[:, 1:] >= part[:, :-1] if axis == 1 else part[1:] >= part[:-1]
            assert bool(right.all())
        for line in lines:
            one, other = (cupy.take(z, line, axis=1 - axis) for z in (x, y))
            assert bool((cupy.bincount(one, minlength=256) == cupy.bincount(other, minlength=256)).all())

    def test_argsort(self, room):
        n = (1 << 31) + 5
        cupy = room(80 << 30)
        x = ramps(cupy, n)
        order = parprims.argsort(x, method="kernel")
        bounds = 0
        for value in range(RAMP):  # equal numbers stand RAMP apart, in their order
            count = n // RAMP + (value < n % RAMP)
            part = order[bounds : bounds + count]
            assert int(part[0]) == value
            assert bool((part[1:] - part[:-1] == RAMP).all())
            bounds += count

    def test_more_than_four_gigabytes_of_float64(self, room):
        """Fault 6."""
        n = (1 << 29) + 1
        cupy = room(26 << 30)
        y = parprims.scan(cupy.ones(n, "float64"), method="kernel")
        assert bool((y[1:] - y[:-1] == 1).all())
        assert float(y[-1]) == n
        del y
        x = (cupy.arange(n) * 40_503 % (1 << 31)).astype("float64")
        y = parprims.sort(x, method="kernel")
        assert bool((y[1:] >= y[:-1]).all())
        assert int(y.astype("int64").sum()) == int(x.astype("int64").sum())
        assert bool((y[-5000:] == cupy.sort(x[x >= y[-5000]])[-5000:]).all())

    def test_product_with_many_results(self, room):
        n = (1 << 16) + 1
        cupy = room(16 << 30)
        left, right = cupy.arange(n) % 5, cupy.arange(n) % 7
        a, b = cupy.zeros((n, 8), "float16"), cupy.zeros((8, n), "float16")
        a[:, 3], b[3] = left, right
        c = parprims.matmul(a, b, method="kernel")
        for begin in range(0, n, 8192):
            part = (left[begin : begin + 8192, None] * right[None]).astype("float16")
            assert bool((c[begin : begin + 8192] == part).all())

    def test_product_with_many_inputs(self, room):
        cupy = room(14 << 30)
        m, k = (1 << 20) + 1, 4096
        a, b = cupy.zeros((m, k), "float16"), cupy.zeros((k, 8), "float16")
        left = (cupy.arange(m) % 5).astype("float16")
        a[:, k - 1], b[k - 1] = left, cupy.arange(8)
        c = parprims.matmul(a, b, method="kernel")
        assert bool((c == left[:, None] * cupy.arange(8).astype("float16")).all())
        del a, c
        long = cupy.zeros(FAR, "float16")
        for place in (0, (1 << 31) + 3, (1 << 32) + 11, FAR - 1):
            long[place] = 3
        c = parprims.matmul(long[None, :], long[:, None], method="kernel")
        assert float(c[0, 0]) == 36.0

    def test_many_products(self, room):
        cupy = room(2 << 30)
        count = (1 << 16) + 1
        a = (ramps(cupy, count * 12) % 5).reshape(count, 3, 4).astype("float32")
        b = (ramps(cupy, count * 8) % 7).reshape(count, 4, 2).astype("float32")
        expected = (a[:, :, :, None] * b[:, None]).sum(axis=2)
        assert bool((parprims.matmul(a, b, method="kernel") == expected).all())

    @pytest.mark.parametrize(("shape", "axis"), [(((1 << 26) + 1, 64), 1), ((64, (1 << 26) + 1), 0)])
    def test_systems(self, room, shape, axis):
        cupy = room(80 << 30)
        self.solve(cupy, shape, axis)

    def test_one_system(self, room):
        cupy = room(80 << 30)
        self.solve(cupy, ((1 << 32) + 4,), 0)

    def solve(self, cupy, shape, axis):
        """Solve -x[i-1] + 3 x[i] - x[i+1] = rhs where x is 1, 2, 3, 4, 1, ... times a number for every system."""
        lines = cupy.moveaxis(cupy.empty(shape, "float32"), axis, -1)
        n = lines.shape[-1]
        pattern, found = (
            cupy.asarray([1, 2, 3, 4], "float32"),
            cupy.asarray([3 - 4 - 2, 6 - 1 - 3, 9 - 2 - 4, 12 - 3 - 1], "float32"),
        )
        scale = (
            (cupy.arange(lines.shape[0]) % 5 + 1).astype("float32")[:, None]
            if lines.ndim == 2
            else cupy.ones((), "float32")
        )
        for at in range(4):
            lines[..., at::4] = found[at] * (scale if lines.ndim == 2 else 1)
        lines[..., 0] += 4 * scale.reshape(lines.shape[:-1])
        lines[..., -1] += pattern[n % 4] * scale.reshape(lines.shape[:-1])
        rhs = cupy.moveaxis(lines, -1, axis)
        x = cupy.moveaxis(
            parprims.solve_tridiagonal(-1, 3, -1, rhs, axis=axis, pivot="none", method="kernel"), axis, -1
        )
        for at in range(4):
            part = x[..., at::4]
            part -= pattern[at] * scale
            assert float(max(part.max(), -part.min())) < 1e-4

    @pytest.mark.parametrize("columns", [524_281, 65_536 * 8 + 1])
    def test_many_right_sides(self, room, columns):
        """Fault 8."""
        cupy = room(4 << 30)
        n = 9
        rng = cupy.random.default_rng(1)
        lower, upper = (rng.standard_normal((n, 1)) for _ in range(2))
        diag = abs(lower) + abs(upper) + 1
        rhs = rng.standard_normal((n, columns))
        for rhs_, axis in ((rhs, 0), (cupy.ascontiguousarray(rhs.T), 1)):
            given = (lower, diag, upper) if axis == 0 else (lower.T, diag.T, upper.T)
            x = parprims.solve_tridiagonal(*given, rhs_, axis=axis, method="kernel")
            x = x if axis == 0 else x.T
            residual = diag * x - rhs
            residual[1:] += lower[1:] * x[:-1]
            residual[:-1] += upper[:-1] * x[1:]
            assert float(abs(residual).max()) < 1e-12

    def test_many_systems(self, room):
        cupy = room(4 << 30)
        rng = cupy.random.default_rng(2)
        for count, n in ((65_537, 9), (65_537, 700)):
            lower, upper, rhs = (rng.standard_normal((count, n)) for _ in range(3))
            diag = abs(lower) + abs(upper) + 1
            x = parprims.solve_tridiagonal(lower, diag, upper, rhs, method="kernel")
            residual = diag * x - rhs
            residual[:, 1:] += lower[:, 1:] * x[:, :-1]
            residual[:, :-1] += upper[:, :-1] * x[:, 1:]
            assert float(abs(residual).max()) < 1e-11
