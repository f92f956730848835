"""Plans of the kernel of scans, which need no GPU, and when it is chosen."""

import math

import numpy as np
import pytest

import parprims
from parprims._core.arrays import sum_dtype
from parprims._core.layout import row_major, skew
from parprims._operators.operator import BUILT_IN, Operator
from parprims._operators.tracing import state_size
from parprims._primitives.recurrence.call import Recurrence
from parprims._primitives.scan import cuda as scan_cuda
from parprims._primitives.scan import source as scan_source
from parprims._primitives.scan import tiling as scan_tiling
from parprims._primitives.scan.call import Scan


class TestAuto:
    def test_what_auto_takes(self, gpu, run, rng):
        x = gpu.asarray(rng.standard_normal(1000))
        run(parprims.scan, x, method="kernel")
        with parprims.explain() as calls:
            parprims.scan(x, lambda earlier, later: earlier * later)
            parprims.scan((x, x), "affine")
            parprims.linear_recurrence(x, x)
        assert [call.method for call in calls] == ["kernel"] * 3

    def test_what_cannot_be_traced_is_refused_with_the_reason(self, gpu):
        x = gpu.asarray(np.arange(5.0))

        def untraceable(earlier, later):
            return later if float(later[0]) > 0 else earlier

        with pytest.raises(parprims.MethodRefused, match="untraceable cannot be traced"):
            parprims.scan(x, untraceable, method="kernel")


class TestPlan:
    """How the kernel cuts its work, checked without a GPU."""

    SHAPES = (
        (1 << 33,),
        (1 << 20, 1 << 12),
        (1 << 12, 1 << 20),
        (3, 1 << 31),
        (1 << 31, 3),
        (7, 5, 1 << 26),
        (5, 1 << 20, 33),
    )

    @pytest.mark.once
    @pytest.mark.parametrize("recurrence", [False, True])
    @pytest.mark.parametrize("dtype", ["int8", "float32", "complex128"])
    def test_bounds_of_every_plan(self, subtests, dtype, recurrence):
        # A state of int8 takes as many registers as one of int32: tiles of its recurrence are no longer, 256 elements
        # of a column for every 16 bytes published, and its results are a quarter of the bytes.
        share = 0.07 if dtype == "int8" and recurrence else 0.04
        for shape in self.SHAPES:
            for axis in range(len(shape)):
                for reverse in (False, True):
                    with subtests.test(shape=shape, axis=axis, reverse=reverse):
                        x = np.broadcast_to(np.zeros((), dtype), shape)
                        plan = self.plan(x, axis, *(x,) * recurrence, reverse=reverse, strides=row_major(shape))
                        (launch,) = plan.launches
                        assert 0 < launch.grid < 2**31
                        assert launch.block <= 1024
                        assert launch.shared_bytes <= 112 << 10  # two blocks fit a multiprocessor
                        result = sum(math.prod(out) * np.dtype(name).itemsize for out, name in plan.outputs)
                        assert plan.status_bytes <= max(share * result, 1 << 20)

    @pytest.mark.once
    def test_strips_of_adjacent_lines(self, subtests):
        """Rows are read whole, or in wide pieces; where lines are few or short, by adjacent threads."""
        for shape, axis, width, whole in (
            ((999_983, 67), 0, 67, True),
            ((1 << 24, 3), 0, 3, True),
            ((4000, 500, 67), 1, 67, True),
            ((65_536, 1001), 0, 64, False),
            ((1 << 16, 63), 0, 63, True),
            ((999_983, 64), 0, 64, True),
            ((1 << 20, 1024), 0, 64, False),
            ((1 << 20, 320), 0, 64, False),
            ((1 << 20, 96), 0, 96, True),
            ((1024, 3000, 20), 1, 20, True),
        ):
            for reverse in (False, True):
                with subtests.test(shape=shape, reverse=reverse):
                    found = self.strips(shape, axis, reverse=reverse)
                    assert (found["whole"], found["width"]) == (whole, width)
                    assert found["backward"] == (whole and reverse)
        for shape, threads in (((4096, 80, 67), 64), ((3000, 67), 32), ((1 << 14, 64), 8), ((1 << 20, 8192), 8)):
            with subtests.test(shape=shape):
                x = np.broadcast_to(np.float32(0), shape)
                (launch,) = self.plan(x, len(shape) - 2, strides=row_major(shape)).launches
                assert (launch.template, launch.arguments[0]) == ("scan_columns", threads)

    @pytest.mark.once
    def test_sums_of_strips_pass_few_additions(self, subtests):
        """As documented, a term passes n / 256 + 100: of a thread's rows, of a block, of a group's tiles, of groups."""
        shapes = ((200, 1 << 17, 100), (200, 1 << 17, 1001), (1000, 1 << 16, 67), (300, 50_000, 33))
        for shape in (*shapes, (1 << 20, 128), (1 << 22, 4)):
            with subtests.test(shape=shape):
                n, found = shape[-2], self.strips(shape, len(shape) - 2)
                groups = found["threads"] // found["width"]
                inside = -(-found["rows"] // groups) + 1 + math.log2(groups) + 2
                tiles = min(found["span"], found["tiles"]) + found["tiles"] / found["span"]
                assert inside + tiles <= n / 256 + 100

    @pytest.mark.once
    @pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64", "complex64"])
    def test_two_blocks_fit_where_many_adjacent_lines_are_scanned(self, dtype):
        """A block that waits for the tile before it has another beside it: threads keep no more than 16 rows."""
        for shape, carry, most, resident in (
            ((1 << 20, 16_384), "CHAINED", 16, 2),
            ((1 << 14, 16), "LOOK_BACK", 20, 0),
        ):
            (launch,) = self.plan(np.broadcast_to(np.zeros((), dtype), shape), 0, strides=row_major(shape)).launches
            assert launch.template == "scan_columns"
            assert launch.arguments[4] == carry
            assert launch.arguments[2] <= most
            assert launch.resident_blocks == resident

    @pytest.mark.once
    def test_strips_are_cut_without_remainder(self, rng, subtests):
        """No tile is empty, none is larger than shared memory, and contiguous ones begin where vectors are aligned."""
        for _ in range(300):
            inner = int(np.exp(rng.uniform(np.log(2), np.log(3000))))
            shape = (int(rng.integers(1, 4)), int(rng.integers(3_000_000, 60_000_000)) // inner, inner)
            dtype = str(rng.choice(["int8", "float16", "float32", "float64", "complex64"]))
            with subtests.test(shape=shape, dtype=dtype):
                found = self.strips(shape, 1, dtype)
                if found is None:
                    continue
                rows, tiles, width = found["rows"], found["tiles"], found["width"]
                assert (tiles - 1) * rows < shape[1] <= tiles * rows
                assert rows * width <= found["elements"]
                assert rows * width % found["vector"] == 0
                assert width >= min(inner, 16)

    def strips(self, shape, axis, dtype="float32", **options):
        """Return how strips of a sum of these are cut, by name, or None where another kernel is launched."""
        plan = self.plan(np.broadcast_to(np.zeros((), dtype), shape), axis, strides=row_major(shape), **options)
        (launch,) = plan.launches
        if launch.template != "scan_strips":
            return None
        numbers = {one.name: one.value for one in plan.numbers}
        threads, vector, elements, whole, *_ = launch.arguments
        return {**numbers, "threads": threads, "vector": vector, "elements": elements, "whole": whole}

    @pytest.mark.once
    def test_rows_are_cut_without_remainder(self, rng, subtests):
        """Lines of any length are loaded by vectors of 16 bytes, unless short; threads and tiles reach their ends."""
        for _ in range(400):
            n = int(np.exp(rng.uniform(0, np.log(100_000))))
            shape = (int(rng.integers(2, 3000)), n)
            dtype = str(rng.choice(["int8", "float16", "float32", "float64", "complex128"]))
            with subtests.test(shape=shape, dtype=dtype):
                x = np.broadcast_to(np.zeros((), dtype), shape)
                recurs = dtype != "int8" and bool(rng.integers(2))
                plan = self.plan(x, 1, x if recurs else None, strides=row_major(shape), reverse=bool(rng.integers(2)))
                (launch,) = plan.launches
                block, lanes, rounds, vector, carry, _, shared = launch.arguments[:7]
                widest = 16 // max(x.itemsize, 8 if dtype == "int8" else 0)  # sums of int8 are int64
                assert vector == (widest if n % widest == 0 or n >= 64 else 1)
                skew = vector - 1 if n % vector else 0
                assert ("SKEWED = true" in launch.source) == (skew > 0)
                tiles = 1
                if carry != "ALONE":
                    tiles = {one.name: one.value for one in plan.numbers}["tiles"]
                    assert launch.grid == shape[0] * tiles
                    if carry == "SERIAL":  # they are parts of lines, which have some of as many tiles as there must be
                        all_tiles = -(-(n + skew) // (lanes * rounds * vector))
                        each = -(-all_tiles // tiles)
                        assert (tiles - 1) * each < all_tiles <= tiles * each
                        tiles = all_tiles
                assert (tiles - 1) * lanes * rounds * vector < n + skew <= tiles * lanes * rounds * vector
                assert block % 32 == 0
                assert lanes == block or 32 % lanes == 0
                assert shared == launch.shared_bytes <= 227 << 10

    @pytest.mark.once
    @pytest.mark.parametrize("components", [1, 4, 9, 20])
    def test_rows_of_wide_states_fit(self, subtests, components):
        """Short lines of strided arrays: what a thread has of a line in shared memory is bounded, whatever a state."""
        from array_api_compat import numpy as xp

        op = Operator(lambda one, other: tuple(x + y for x, y in zip(one, other, strict=True)), components=components)
        dtypes = ("float64",) * components
        for n in range(3, 64):
            with subtests.test(n=n):
                shape = (1000, n)
                special = scan_source.specialisation(xp, scan_source.without_arrays(op, dtypes, shape, 1), dtypes, ())
                views = [((2 * n, 2), 0)] * components
                tuning = scan_tiling.TUNING[90]
                geometry = scan_cuda.Geometry(shape, 1, False, n, (shape,) * components, tuple(views))
                plan = scan_cuda.make_plan(special, tuning, geometry)
                (launch,) = plan.launches
                block, _, rounds, vector, _, direct, shared = launch.arguments[:7]
                assert not direct
                assert rounds == 1 or rounds * vector * 8 * components <= tuning.shared_bytes
                assert shared <= max(block * tuning.shared_bytes * 9 // 8, 2 * 8 * components * (block + 1))

    @pytest.mark.once
    def test_skew(self):
        """It counts the elements of memory before a line that share a vector with its first, forwards and backwards."""
        for address, strides, ascending, descending in (
            (0, (), (0,), (3,)),
            (4, (5,), (1, 1), (2, 3)),
            (12, (8, 7), (3, 0, 3), (0, 0, 1)),
        ):
            assert skew(1, address, strides, 4, 4) == ascending
            assert skew(-1, address, strides, 4, 4) == descending

    @pytest.mark.once
    @pytest.mark.parametrize("reverse", [False, True])
    def test_unlike_lines_have_no_vectors(self, reverse):
        """Lines of a product have vectors where those of all arrays begin at the same place within one."""

        def vector(strides, repeat=False):
            b = np.broadcast_to(np.zeros((), np.float32), (40, 1001))
            a = b[:1] if repeat else b
            layouts = tuple((one, 0) for one in ((0, 1) if repeat else (strides, 1), (1001, 1)))
            return self.planned(b, 1, a, layouts, reverse=reverse).launches[0].arguments[3]

        assert vector(1001) == vector(1005) == vector(2001) == 4
        assert vector(1002) == vector(1003) == vector(1000) == vector(0, repeat=True) == 1

    def test_copies_only_where_unavoidable(self, subtests):
        whole = np.zeros((4, 6, 8), np.float32)
        for axis in range(3):
            for a in (
                np.zeros((1, 6, 1), np.float32),
                np.zeros((1, 1, 1), np.float32),
                np.broadcast_to(whole[:1], whole.shape),
            ):
                with subtests.test(shape=a.shape, axis=axis):
                    assert self.plan(whole, axis, a) is not None
            assert self.plan(np.zeros((4, 6, 9), np.float32)[:, :, 1:], axis) is not None
            assert self.plan(whole[::2, ::-1, ::3], axis) is not None
            assert self.plan(whole.transpose(2, 0, 1), axis) is not None
        for axis in (0, 1):
            assert self.plan(np.zeros((30, 50), np.float32).T, axis) is not None
            assert self.plan(np.zeros((30, 50), np.float32)[:, 3:20], axis) is not None
        assert self.plan(np.zeros((2, 3, 4, 5, 6), np.float32), 2) is not None
        assert self.plan(np.zeros((3, 4, 5, 8), np.float32)[:, ::2, ::2, ::2], 0) is not None
        assert self.plan(np.zeros((3, 4, 5, 6, 8), np.float32)[:, ::2, ::2, ::2, ::2], 0) is None

    def test_size_of_states(self, rng):
        """As C++ compilers, and NumPy, align the members of a structure; complex numbers by their own size."""
        for _ in range(100):
            names = tuple(rng.choice(["bool", "int16", "uint32", "float32", "float64", "int64"], rng.integers(1, 6)))
            assert state_size(names) == np.dtype([(f"v{at}", one) for at, one in enumerate(names)], True).itemsize
        assert state_size(("bool", "complex128")) == 32
        assert state_size(("complex64", "float16")) == 16

    def test_depends_on_nothing_but_shape_and_layout(self, rng):
        for shape, axis in (
            ((300, 5000), 1),
            ((40, 900, 60), 1),
            ((1 << 20,), 0),
            ((1, 9000, 1), 1),
            ((1, 900, 60), 1),
        ):
            a, b, c = (rng.standard_normal(shape, np.float32) for _ in range(3))
            assert self.plan(a, axis, b) == self.plan(c, axis, c)
            steps = tuple(7 if n == 1 else step for n, step in zip(shape, row_major(shape), strict=True))
            assert self.plan(a, axis) == self.plan(a, axis, strides=steps)  # nobody steps along a length of 1

    def plan(self, b, axis, a=None, *, reverse=False, strides=None):
        """Return the plan of a sum, or of a recurrence if there are coefficients; every address is aligned."""
        arrays = (b,) if a is None else (a, b)
        layouts = tuple((strides or tuple(step // x.itemsize for step in x.strides), 0) for x in arrays)
        return self.planned(b, axis, a, layouts, reverse=reverse)

    def planned(self, b, axis, a, layouts, *, reverse):
        """Return the same for arrays of these layouts."""
        from array_api_compat import numpy as xp

        arrays = (b,) if a is None else (a, b)
        call: Scan | Recurrence
        if a is None:
            to = (sum_dtype(xp, b.dtype),)
            sums = {"single": True, "op": BUILT_IN["add"], "n": b.shape[axis], "working": to, "dtypes": to}
            call = Scan(arrays=arrays, shape=b.shape, axis=axis, reverse=reverse, **sums)
        else:
            call = Recurrence(arrays=arrays, shape=b.shape, axis=axis, reverse=reverse, dtype=b.dtype)
        shapes = tuple(x.shape for x in arrays)
        special, tuning = scan_source.specialised(xp, call), scan_tiling.TUNING[90]
        geometry = scan_cuda.Geometry(b.shape, axis, reverse, call.n, shapes, tuple(layouts))
        return scan_cuda.make_plan(special, tuning, geometry)
