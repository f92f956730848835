"""Sums of many float32 along any axis: the error that docs/errors.md states, with Numba and without."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

import parprims

HALF_AN_ULP = 2.0**-24
SHAPES = (
    ((1 << 22, 2), 0),
    ((2, (1 << 21) + 5), 1),
    ((3000, 7, 300), (0, 2)),
    ((3, 1 << 20, 2), 1),
    ((1 << 21, 2), (0, 1)),
)


def check(asarray, methods):
    """Compare sums of positive terms, which all have the sign of their rounding errors in common, with exact ones."""
    rng = np.random.default_rng(0)
    for shape, axis in SHAPES:
        x = rng.random(shape, dtype=np.float32)
        for method, values in itertools.product(methods, (x, np.asfortranarray(x), x[::-1])):
            exact = values.astype(np.float64).sum(axis=axis)
            n, given = x.size / exact.size, values if asarray is np.asarray else asarray(np.array(values, order="K"))
            for found in (
                parprims.sum(given, axis=axis, method=method),
                parprims.reduce(given, axis=axis, method=method),
                parprims.map_reduce(lambda one: one * 1, given, axis=axis, method=method),
            ):
                error = np.max(abs(np.asarray(found, np.float64) - exact) / exact) / HALF_AN_ULP
                assert error <= 4 * np.log2(n), (shape, axis, method, error)


@pytest.mark.once
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_errors_do_not_grow_with_the_axis(name):
    check(pytest.importorskip("torch").asarray if name == "torch" else np.asarray, ("auto", "native", "array"))


@pytest.mark.once
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_errors_without_numba(name):
    pytest.importorskip(name)
    text = "import sys; sys.modules['numba'] = None; import {0}; "
    text += "import tests.primitives.reduce.test_sums_along_axes as t; "
    text += "t.check({0}.asarray, ('auto',))"
    subprocess.run([sys.executable, "-c", text.format(name)], check=True, env=dict(os.environ), timeout=300)
