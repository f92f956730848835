"""Reductions against a sequential loop."""

from typing import ClassVar

import numpy as np

import parprims
from tests.contract import Contract, eps, random


def loop(combine, *xs, axis):
    """Combine the elements along an axis one after another, the definition of a reduction."""
    columns = [np.moveaxis(x, axis, 0) for x in xs]
    total = tuple(column[0] for column in columns)
    for index in range(1, columns[0].shape[0]):
        total = combine(total, tuple(column[index] for column in columns))
    return total


class TestSum(Contract):
    dtypes: ClassVar = (
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128"
    ).split()

    def function(self, x, **options):
        return parprims.sum(x, **options)

    def make(self, rng, shape, dtype):
        return (random(rng, shape, dtype),)

    def reference(self, x, axis):
        wide = {"f": np.float64, "V": np.float64, "c": np.complex128, "u": np.uint64}.get(x.dtype.kind, np.int64)
        return np.add.accumulate(np.insert(x.astype(wide), 0, 0, axis=axis), axis=axis).take(-1, axis=axis)

    def bound(self, x, axis):
        if x.dtype.kind in "biu":
            return 0
        name = x.dtype.name
        size = np.sum(abs(x.astype(complex)), axis=axis)
        # A library's own sum may be sequential; 16-bit floats are summed in float32 and rounded once.
        steps = x.shape[axis] + 1
        working = "float32" if name in ("float16", "bfloat16") else name
        return steps * eps(working) * size + (eps(name) * size if working != name else 0)

    def result_dtype(self, dtype):
        if dtype.startswith("uint"):
            return None
        return "int64" if dtype == "bool" or dtype.startswith("int") else dtype
