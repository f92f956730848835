"""Derivatives of third order of primitives that solve systems, along a line through their inputs.

The value along the line is a smooth function of one number, which the reference computes by NumPy, by dense matrices
and loops, at Chebyshev's points; the polynomial through these has its third derivative.
"""

import numpy as np
import pytest
from numpy.polynomial import Chebyshev

import parprims
from tests.primitives.banded.test_banded import dense, dense_blocks
from tests.primitives.filters.test_filters import loop
from tests.support.contract import random, skip_without_derivative

METHODS = ("kernel", "native", "array")
N = 6


def _tridiagonal(lower, diag, upper, rhs):
    return np.linalg.solve(np.diag(diag) + np.diag(lower[1:], -1) + np.diag(upper[:-1], 1), rhs)


def _vectors(a, b):
    x = [b[0]]
    for one, other in zip(a[1:], b[1:], strict=True):
        x.append(one @ x[-1] + other)
    return np.stack(x)


def _filtered(b, a, x, zi):
    return loop(b, a, x, zi)[:2]


def _sections(sos, x, zi):
    states = []
    for section, start in zip(sos, zi, strict=True):
        x, end = _filtered(section[:3], section[3:], x, start)
        states.append(end)
    return x, np.stack(states)


CASES = {
    "solve_banded": (
        lambda run, ab, b, **k: run(parprims.solve_banded, (2, 1), ab, b, **k),
        lambda ab, b: np.linalg.solve(dense((2, 1), ab), b),
        ((4, N), (N,)),
    ),
    "solve_block_tridiagonal": (
        lambda run, *args, **k: run(parprims.solve_block_tridiagonal, *args, **k),
        lambda lower, diag, upper, rhs: np.linalg.solve(dense_blocks(lower, diag, upper), rhs.reshape(-1, 2)),
        ((3, 2, 2), (3, 2, 2), (3, 2, 2), (3, 2, 2)),
    ),
    "solve_tridiagonal": (
        lambda run, *args, **k: run(parprims.solve_tridiagonal, *args, **k),
        _tridiagonal,
        ((N,), (N,), (N,), (N,)),
    ),
    "linear_recurrence": (
        lambda run, *args, **k: run(parprims.linear_recurrence, *args, matrices=True, **k),
        _vectors,
        ((N, 2, 2), (N, 2)),
    ),
    "lfilter": (
        lambda run, b, a, x, zi, **k: run(parprims.lfilter, b, a, x, zi=zi, **k),
        _filtered,
        ((3,), (3,), (N,), (2,)),
    ),
    "sosfilt": (
        lambda run, sos, x, zi, **k: run(parprims.sosfilt, sos, x, zi=zi, **k),
        _sections,
        ((2, 6), (N,), (2, 2)),
    ),
}


def inputs(rng, name, dtype):
    """Return inputs of a case whose matrices are regular along the line, and how they change."""
    arrays = [random(rng, shape, dtype) for shape in CASES[name][2]]
    if name == "solve_banded":
        arrays[0][1] += 6
    elif name == "solve_block_tridiagonal":
        arrays[1] += 6 * np.eye(2)
    elif name == "solve_tridiagonal":
        arrays[1] += 6
    elif name == "lfilter":
        arrays[1][0] += 6
    elif name == "sosfilt":
        arrays[0][:, 3] += 6
    return arrays, [random(rng, one.shape, dtype) / 4 for one in arrays]


def size(found, absolute):
    """Return a smooth number made of all results."""
    return sum((absolute(one) ** 2).sum() for one in (found if isinstance(found, tuple) else (found,)))


def expected(name, arrays, steps):
    """Return the third derivative at 0."""

    def value(t):
        return float(size(CASES[name][1](*(x + t * d for x, d in zip(arrays, steps, strict=True))), abs))

    points = 0.3 * np.cos(np.pi * (np.arange(17) + 0.5) / 17)
    return Chebyshev.fit(points, [value(t) for t in points], 16).deriv(3)(0.0)


class TestThird:
    methods = METHODS

    @pytest.mark.parametrize("dtype", ["float64", "complex128"])
    @pytest.mark.parametrize("name", CASES)
    def test_along_a_line(self, backend, run, method, rng, name, dtype):
        if name == "linear_recurrence":
            skip_without_derivative(backend, method)
        arrays, steps = inputs(rng, name, dtype)
        given, changes = ([backend.asarray(one) for one in ones] for ones in (arrays, steps))

        def value(t, run=run):
            found = CASES[name][0](run, *(x + t * d for x, d in zip(given, changes, strict=True)), method=method)
            return size(found, abs)

        if backend.family == "torch":
            got = [_thrice_by_torch(value, given[0])]
            if method == "array" and dtype == "float64":
                got += _transformed(value, given[0])
        elif backend.family == "jax":
            if (name, dtype) != ("solve_banded", "complex128"):
                pytest.skip("much to compile")
            import jax

            got = [float(jax.jit(jax.grad(jax.grad(jax.grad(value))))(0.0))]
        else:
            pytest.skip("has no derivatives")
        np.testing.assert_allclose(got, expected(name, arrays, steps), rtol=1e-6)


def _thrice_by_torch(value, like):
    import torch

    t = torch.zeros((), dtype=torch.float64, device=like.device, requires_grad=True)
    found = value(t)
    for _ in range(3):
        (found,) = torch.autograd.grad(found, t, create_graph=True)
    return float(found.detach())


def _transformed(value, like):
    """Return the same by transformations of functions, backward and forward."""
    import torch

    def plain(t):
        return value(t, lambda function, *args, **options: function(*args, **options))

    t = torch.zeros((), dtype=torch.float64, device=like.device)
    grad, forward = torch.func.grad, torch.func.jacfwd
    return [float(one(t)) for one in (grad(grad(grad(plain))), forward(grad(grad(plain))), grad(forward(grad(plain))))]
