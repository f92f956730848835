"""Plans of the kernel of scans, which need no GPU, and when it is chosen."""

import math

import numpy as np
import pytest

import parprims
from parprims import _scan_kernel, _scan_special
from parprims._arrays import sum_dtype
from parprims._layout import row_major
from parprims._operators import BUILT_IN
from parprims._recurrence_array import Recurrence
from parprims._scan_array import Scan
from parprims._trace import state_size


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
        share = 0.07 if dtype == "int8" and recurrence else 0.03
        for shape in self.SHAPES:
            for axis in range(len(shape)):
                for reverse in (False, True):
                    with subtests.test(shape=shape, axis=axis, reverse=reverse):
                        x = np.broadcast_to(np.zeros((), dtype), shape)
                        plan = self.plan(x, axis, *(x,) * recurrence, reverse=reverse, strides=row_major(shape))
                        (launch,) = plan.launches
                        assert 0 < launch.grid < 2**31
                        assert launch.block <= 1024
                        assert launch.shared_bytes <= 48 << 10
                        result = sum(math.prod(out) * np.dtype(name).itemsize for out, name in plan.outputs)
                        assert plan.status_bytes <= max(share * result, 1 << 20)

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
        from array_api_compat import numpy as xp

        arrays = (b,) if a is None else (a, b)
        call: Scan | Recurrence
        if a is None:
            to = (sum_dtype(xp, b.dtype),)
            sums = {"single": True, "op": BUILT_IN["add"], "n": b.shape[axis], "working": to, "dtypes": to}
            call = Scan(arrays=arrays, shape=b.shape, axis=axis, reverse=reverse, **sums)
        else:
            call = Recurrence(arrays=arrays, shape=b.shape, axis=axis, reverse=reverse, dtype=b.dtype)
        layouts = tuple((strides or tuple(step // x.itemsize for step in x.strides), 0) for x in arrays)
        shapes = tuple(x.shape for x in arrays)
        special, tuning = _scan_special.specialised(xp, call), _scan_kernel.TUNING[90]
        return _scan_kernel.make_plan(special, tuning, b.shape, axis, reverse, call.n, shapes, layouts)
