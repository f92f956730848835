"""Lines of which each begins at another place within a vector, by the kernel; needs a GPU or the emulator."""

import numpy as np
import pytest

import parprims
from tests.primitives.scan import test_scan_kernel, test_scan_rounding
from tests.primitives.scan.test_scan import recur
from tests.primitives.scan.test_scan_kernel import (
    AFFINE,
    BY_NAME,
    RECURRENCE,
    WAYS_ALONG,
    check,
    columns,
    middle,
    plain,
)
from tests.support.contract import compare, random, unaligned

change = test_scan_kernel.change


def between(gpu, x):
    """Return x as rows between others, of which the first begins where a vector does."""
    return gpu.asarray(np.pad(x, [(16, 1), (0, 0)], constant_values=1))[16:-1]


@pytest.mark.sanitize
class TestSkewedLines:
    """Lines of which each begins at another place within a vector: some threads, a block, tiles, parts of a line."""

    SHAPES = ((9, 67), (7, 301), (6, 1003), (5, 4101), (3, 40_003))

    @pytest.mark.parametrize("shape", SHAPES)
    def test_every_kernel(self, gpu, run, rng, shape):
        for name in ("add", "affine", "segments", "half"):
            check(gpu, run, BY_NAME[name], shape, 1, rng, exclusive=False, reverse=name == "affine", initial="none")
        for layout in (between, unaligned, middle):  # of these the first are alike to the result
            check(gpu, run, AFFINE, shape, 1, rng, (layout, layout), exclusive=True, initial="array", untouched=True)
        check(gpu, run, RECURRENCE, shape, 1, rng, repeat=((0, 1), ()), initial="scalar")
        check(gpu, run, AFFINE, shape, 1, rng, repeat=((0, 1), (0, 1)), exclusive=False, initial="none")

    @pytest.mark.parametrize("n", [131, 1003, 9001])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_narrow(self, gpu, run, rng, n, reverse):
        """Vectors of 16 elements, and lines that begin at each of them."""
        check(gpu, run, BY_NAME["bytes"], (19, n), 1, rng, exclusive=False, reverse=reverse, initial="none")

    @pytest.mark.parametrize("way", list(WAYS_ALONG))
    @pytest.mark.parametrize("n", [8445, 8446, 8447, 8448, 8449])
    def test_parts_of_lines(self, gpu, run, rng, change, way, n):
        """Tiles of 256 elements: of lines of 8447 some have 34 and others 33, and then the last is empty."""
        change(serial_threads=(64,), serial_bytes=1 << 10, **WAYS_ALONG[way])
        for reverse in (False, True):
            check(gpu, run, RECURRENCE, (5, n), 1, rng, reverse=reverse, initial="none")

    @pytest.mark.parametrize("shape", SHAPES)
    def test_first_coefficient_counts_for_nothing(self, gpu, run, rng, shape):
        for reverse in (False, True):
            a, b = 2.0 * rng.integers(0, 2, shape) - 1, rng.integers(-9, 10, shape) + 0.0
            expected = recur(a, b, axis=1, reverse=reverse)
            a[:, -1 if reverse else 0] = np.nan
            arrays = (gpu.asarray(x.astype(np.float32)) for x in (a, b))
            found = run(parprims.linear_recurrence, *arrays, axis=1, reverse=reverse, method="kernel")
            compare(gpu, found, expected, 0, "float32")

    def test_unlike(self, gpu, run, rng):
        """Arrays whose lines begin at different places within a vector."""
        for layouts in ((plain, unaligned), (unaligned, plain), (plain, columns)):
            check(gpu, run, AFFINE, (5, 1003), 1, rng, layouts, exclusive=False, initial="none")

    @pytest.mark.parametrize("shape", SHAPES)
    def test_adjoint(self, gpu, rng, shape):
        """Results that depend on the next element."""
        for reverse in (False, True):
            a, g, x = (random(rng, shape, "float32") for _ in range(3))
            test_scan_rounding.TestAdjoint().check(gpu, a, g, x, 1, reverse)
