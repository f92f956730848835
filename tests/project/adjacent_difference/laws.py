"""Differences of neighbours against a loop. `test_new_primitive.py` runs these laws; no other suite finds the file."""

import numpy as np

import parprims
from tests.support.contract import Contract, eps, random


def differences(x, axis):
    """Return the differences by a loop."""
    lines = np.moveaxis(x, axis, -1)
    result = lines.copy()
    for i in range(1, lines.shape[-1]):
        result[..., i] = lines[..., i] - lines[..., i - 1]
    return np.moveaxis(result, -1, axis)


class TestAdjacentDifference(Contract):
    methods = ("kernel", "array")
    dtypes = ("int32", "uint8", "float16", "float32", "float64", "complex64")
    lengths = (0, 1, 2, 255, 256, 257, 1000)
    compiled_lengths = (0, 1, 257)

    def function(self, x, **options):
        return parprims.adjacent_difference(x, **options)

    def make(self, rng, shape, dtype):
        return (random(rng, shape, dtype),)

    def reference(self, x, axis):
        wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) if x.dtype.kind in "fc" else x
        return differences(wide, axis)

    def bound(self, x, axis):
        """Half a unit in the last place of each difference, and of both parts of complex ones."""
        return eps(x.dtype.name) * abs(self.reference(x, axis)) if x.dtype.kind in "fc" else 0


def draw(rng):
    """Return a random call for the fuzz."""
    shape = tuple(int(n) for n in rng.integers(0, 9, rng.integers(1, 4)))
    x = random(rng, shape, str(rng.choice(TestAdjacentDifference.dtypes)))
    return parprims.adjacent_difference, (x,), {"axis": int(rng.integers(-x.ndim, x.ndim))}
