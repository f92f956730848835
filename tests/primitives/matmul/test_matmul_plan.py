"""Plans of the kernels of matrix products, which need no GPU."""

import dataclasses
import math

import numpy as np
import pytest

from parprims._cuda import shared_bytes
from parprims._primitives.matmul.tiles import impossible
from tests.primitives.matmul.test_matmul import (
    FLOATS,
    INTEGERS,
    KERNELS,
)
from tests.primitives.matmul.test_matmul_kernel import TENSOR, itemsize, make_problem, planned

CAPABILITIES = (75, 80, 86, 90)


class TestPlan:
    """How the kernels cut their work, checked without a GPU."""

    SHAPES = (
        ((1, 1), (1, 1)),
        ((1, 4096), (4096, 4096)),
        ((4096, 4096), (4096, 1)),
        ((17, 100_000), (100_000, 17)),
        ((1536, 1536), (1536, 1536)),
        ((8192, 8192), (8192, 8192)),
        ((1000, 33, 65), (1000, 65, 129)),
        ((3, 1, 5, 7), (4, 7, 9)),
    )

    @pytest.mark.once
    @pytest.mark.parametrize("capability", CAPABILITIES)
    def test_bounds_of_every_plan(self, subtests, capability):
        most = {75: 64, 80: 163, 86: 99, 90: 227}[capability] << 10
        for dtype, precision in (
            *TENSOR,
            ("int8", "float32"),
            ("int64", "float32"),
            ("complex64", "float32"),
            ("complex128", "float32"),
        ):
            for shapes in self.SHAPES:
                with subtests.test(dtype=dtype, precision=precision, shapes=shapes):
                    kernel, plan = planned(*shapes, dtype, precision=precision, capability=capability)
                    short = (dtype, precision) == ("float32", "float32") and shapes[0][-1] < 128  # better by a chain
                    floats = dtype.startswith(("float", "bfloat"))
                    assert (kernel == "tensor") == (capability >= 80 and floats and not short)
                    for launch in plan.launches:
                        assert 0 < launch.grid < 2**31
                        assert launch.block <= 1024
                        assert launch.block % 32 == 0
                        assert launch.shared_bytes <= most
                    # Parts of sums are at most four times as many as blocks that are resident at once.
                    assert plan.zeroed_bytes <= 16 * plan.launches[-1].grid
                    # Factors of 16-bit floats that are packed have lines of whole 128 bytes.
                    (*batch_a, m, k), (*batch_b, _, n) = shapes
                    lines = math.prod(np.broadcast_shapes(tuple(batch_a), tuple(batch_b))) * (m + n)
                    packed = (len(plan.launches) - 1) * lines * (-(-k // 64) * 128 + 256)
                    assert plan.temporary_bytes <= 132 * 8 * 128 * 256 * 8 + packed
                    assert bool(plan.zeroed_bytes or packed) == bool(plan.temporary_bytes)

    @pytest.mark.parametrize("capability", CAPABILITIES)
    def test_ladder(self, subtests, capability):
        most = {75: 64, 80: 163, 86: 99, 90: 227}[capability] << 10
        for kernel in KERNELS[: 4 if capability < 80 else 5]:
            for dtype in ("float16", "float32", "float64") if kernel == "tensor" else (*INTEGERS, *FLOATS):
                with subtests.test(kernel=kernel, dtype=dtype):
                    found, plan = planned((300, 400), (400, 500), dtype, kernel=kernel, capability=capability)
                    assert found == kernel
                    assert len(plan.launches) == (3 if kernel == "packed" else 1)
                    assert all(launch.shared_bytes <= most and launch.block <= 1024 for launch in plan.launches)
                    if kernel == "packed":  # what is packed has the size of the factors, rounded up to tiles
                        rows, columns = (-(-one // 32) * 32 for one in (300, 500))
                        least = (rows + columns) * 416 * itemsize(dtype)
                        assert least <= plan.temporary_bytes <= least + 256
                    elif kernel in ("naive", "tiled"):
                        assert plan.temporary_bytes == 0

    def test_tensor_needs_80(self):
        problem = make_problem((3, 3), (3, 3), "float32", kernel="tensor")
        assert "compute capability 8.0" in problem.choose_kernel(75)[1]
        assert problem.choose_kernel(80) == ("tensor", None)

    @pytest.mark.once
    def test_possible_tiles(self, rng, subtests):
        # Tiles at random: those that are possible have plans a device can run, the others are refused with the reason.
        possible = 0
        for _ in range(600):
            kernel, capability = str(rng.choice(KERNELS)), int(rng.choice(CAPABILITIES[1:]))
            dtype = str(rng.choice(FLOATS[:4] if kernel == "tensor" else [*INTEGERS, *FLOATS]))
            tile = tuple(int(2.0 ** rng.integers(0, 9)) * int(rng.choice([1, 1, 1, 3])) for _ in range(3))
            problem = dataclasses.replace(make_problem((3, 3), (3, 3), dtype), kernel=kernel, tile=tile)
            reason = impossible(kernel, tile, problem.arithmetic, capability)
            with subtests.test(kernel=kernel, capability=capability, dtype=dtype, tile=tile, reason=reason):
                named = problem.choose_kernel(capability)[1]
                if reason is not None:
                    assert named == f"tile {tile} fits no kernel: {reason}"
                    continue
                assert named is None
                possible += 1
                _, plan = planned((70, 200), (200, 90), dtype, kernel=kernel, tile=tile, capability=capability)
                for launch in plan.launches:
                    assert launch.block <= 1024
                    assert launch.shared_bytes <= shared_bytes(capability)
        assert 100 < possible < 500

    def test_vectors(self, subtests):
        # How many numbers are read at once, by the address, the strides and the order in memory.
        for strides, expected in (
            ((64, 1), (4, True)),
            ((66, 1), (2, True)),
            ((65, 1), (1, True)),
            ((1, 48), (4, False)),
            ((1, 50), (2, False)),
            ((1, 49), (1, False)),
            ((128, 2), (1, True)),
            ((-64, 1), (4, True)),
            ((64, -1), (1, True)),
        ):
            with subtests.test(strides=strides):
                _, plan = planned(
                    (48, 64), (64, 32), kernel="conflict_free", tile=(32, 64, 16), strides=[strides, (32, 1)]
                )
                (launch,) = plan.launches
                assert launch.template == "multiply_conflict_free"
                assert launch.arguments[-5:] == (*expected, 4, False, True)
