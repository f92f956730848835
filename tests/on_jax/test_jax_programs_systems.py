"""Programs of JAX by method array: their size does not grow with the length of what they compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import parprims

jax = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = pytest.mark.once


def _equations(jaxpr: Any) -> int:
    """Return the number of equations of a program, those of loops and inner programs included."""
    count = 0
    for equation in jaxpr.eqns:
        count += 1
        for value in equation.params.values():
            for one in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(one, "jaxpr", one)
                count += _equations(inner) if hasattr(inner, "eqns") else 0
    return count


def _compose(earlier: Any, later: Any) -> Any:
    return earlier[0] * later[0], earlier[1] * later[0] + later[1]


_OWN = parprims.Operator(_compose, components=2)


def _rows(count: int, n: int) -> list[Any]:
    return [jax.ShapeDtypeStruct((n,), np.float32)] * count


def _squares(n: int) -> list[Any]:
    return [jax.ShapeDtypeStruct((math.isqrt(n),) * 2, np.float32)] * 2


# Not the examples of the declarations: the arrays are shapes of up to 2^31 elements, without values.
CALLS: dict[str, tuple[Any, Any]] = {
    "reduce": (parprims.reduce, lambda n: _rows(1, n)),
    "reduce, own operator": (lambda a, b, **how: parprims.reduce((a, b), _OWN, **how), lambda n: _rows(2, n)),
    "argmax": (parprims.argmax, lambda n: _rows(1, n)),
    "map_reduce": (lambda x, **how: parprims.map_reduce(lambda v: v * v, x, **how), lambda n: _rows(1, n)),
    "vecdot": (parprims.vecdot, lambda n: _rows(2, n)),
    "scan": (parprims.scan, lambda n: _rows(1, n)),
    "scan, logaddexp": (lambda x, **how: parprims.scan(x, "logaddexp", **how), lambda n: _rows(1, n)),
    "scan, own operator": (lambda a, b, **how: parprims.scan((a, b), _OWN, **how), lambda n: _rows(2, n)),
    "scan from behind": (
        lambda x, **how: parprims.scan(x, exclusive=True, reverse=True, **how),
        lambda n: _rows(1, n),
    ),
    "cumulative_prod": (parprims.cumulative_prod, lambda n: _rows(1, n)),
    "linear_recurrence": (parprims.linear_recurrence, lambda n: _rows(2, n)),
    "linear_recurrence of matrices": (
        lambda a, b, **how: parprims.linear_recurrence(a, b, matrices=True, **how),
        lambda n: [jax.ShapeDtypeStruct((n, 3, 3), np.float32), jax.ShapeDtypeStruct((n, 3), np.float32)],
    ),
    "solve_tridiagonal": (parprims.solve_tridiagonal, lambda n: _rows(4, n)),
    "solve_tridiagonal, periodic": (
        lambda *system, **how: parprims.solve_tridiagonal(*system, periodic=True, **how),
        lambda n: _rows(4, n),
    ),
    "solve_tridiagonal, no exchanges": (
        lambda *system, **how: parprims.solve_tridiagonal(*system, pivot="none", **how),
        lambda n: _rows(4, n),
    ),
    "solve_banded": (
        lambda ab, b, **how: parprims.solve_banded((2, 2), ab, b, **how),
        lambda n: [jax.ShapeDtypeStruct((5, n), np.float32), *_rows(1, n)],
    ),
    "lfilter": (
        lambda x, b, a, **how: parprims.lfilter(b, a, x, **how),
        lambda n: [*_rows(1, n), *_rows(2, 3)],
    ),
    "sosfilt": (
        lambda x, sos, **how: parprims.sosfilt(sos, x, **how),
        lambda n: [*_rows(1, n), jax.ShapeDtypeStruct((2, 6), np.float32)],
    ),
    "solve_block_tridiagonal": (
        parprims.solve_block_tridiagonal,
        lambda n: [*[jax.ShapeDtypeStruct((n, 2, 2), np.float32)] * 3, jax.ShapeDtypeStruct((n, 2), np.float32)],
    ),
}


LIGHT = ("reduce", "map_reduce", "vecdot")
"""Calls of operators of an equation or two: JAX is given a tree of ceil(log2 n) of them, which is faster than lanes."""


@pytest.mark.parametrize("name", CALLS)
def test_programs_do_not_grow(name: str) -> None:
    function, arrays = CALLS[name]

    def size(n: int) -> int:
        return _equations(jax.make_jaxpr(lambda *given: function(*given, method="array"))(*arrays(n)).jaxpr)

    if name in LIGHT:
        assert size(2**20) <= 80
        assert size(2**31 - 1) <= 160
        return
    largest = size(2**20)
    assert size(2**17) == largest
    # An odd number of elements, or some behind the last lane, take some equations for each component.
    assert size(2**17 + 5) <= largest + 80
    assert size(2**8) <= largest + 80


def test_light_operators_are_those_of_few_equations() -> None:
    """A whole tree of them is a small program; of others it would grow by more with every doubling of n."""

    def grown(op: Any) -> int:
        sizes = [
            _equations(jax.make_jaxpr(lambda x: parprims.reduce(x, op, method="array"))(*_rows(1, n)).jaxpr)
            for n in (2**12, 2**20)
        ]
        return sizes[1] - sizes[0]

    assert all(0 < grown(op) <= 40 for op in ("add", "multiply", "maximum", "minimum"))
    assert grown("logaddexp") <= 0
    assert grown(parprims.Operator(lambda earlier, later: earlier + later + earlier * later)) <= 0


@pytest.mark.parametrize("n", [17, 1000, 8193, 20001])
@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("pivot", ["partial", "none"])
def test_systems_of_many_parts_are_solved(n: int, periodic: bool, pivot: str) -> None:
    rng = np.random.default_rng(n)
    lower, upper, rhs = (rng.standard_normal(n).astype(np.float32) for _ in range(3))
    diag = (np.abs(lower) + np.abs(upper) + 1).astype(np.float32)
    given = tuple(map(jnp.asarray, (lower, diag, upper, rhs)))
    _, error = parprims.solve_tridiagonal(*given, periodic=periodic, pivot=pivot, method="array", return_residual=True)
    assert float(error) < 100 * np.finfo(np.float32).eps


@pytest.mark.parametrize("n", [17, 18, 300, 8193, 20001])
def test_lanes_keep_the_order(n: int) -> None:
    rng = np.random.default_rng(n)
    a, b = rng.uniform(0.9, 1.1, n).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    x = np.zeros(n)
    total = 0.0
    for i in range(n):
        total = float(a[i]) * total + float(b[i])
        x[i] = total
    given = jnp.asarray(a), jnp.asarray(b)
    scale = 1e-3 * np.maximum.accumulate(np.abs(x))
    assert np.all(np.abs(np.asarray(parprims.scan(given, _OWN, method="array")[1]) - x) <= scale)
    assert abs(float(parprims.reduce(given, _OWN, method="array")[1]) - x[-1]) <= scale[-1]


@pytest.mark.parametrize("operators", [("add", "multiply"), ("minimum", "add"), ("logaddexp", "add")])
def test_programs_of_products_do_not_grow(operators: tuple[str, str]) -> None:
    """However many tiles there are; only the tree along k has a few steps more."""

    def size(side: int) -> int:
        add, multiply = operators
        return _equations(
            jax.make_jaxpr(lambda a, b: parprims.matmul(a, b, add=add, multiply=multiply, method="array"))(
                *_squares(side**2)
            ).jaxpr
        )

    assert size(900) <= 400  # a tile has whole groups of reduce/grouping.py, which hold the operator a dozen times
    assert size(4000) <= size(900) + 40


@pytest.mark.parametrize("operators", [("add", "multiply"), ("minimum", "add")])
def test_derivatives_of_products_keep_no_products(operators: tuple[str, str]) -> None:
    """A derivative of matrices of 300 rows has memory for the products of a few tiles, and not for all 108 MB."""
    add, multiply = operators

    def total(a: Any, b: Any) -> Any:
        return parprims.matmul(a, b, add=add, multiply=multiply, method="array").sum()

    program = jax.jit(jax.grad(total, argnums=(0, 1))).lower(*_squares(300**2)).compile()
    assert program.memory_analysis().temp_size_in_bytes <= 24e6


@pytest.mark.parametrize("shape", [(150, 130, 170), (9, 300, 1100), (3, 40000, 30), (1, 700, 900), (900, 700, 1)])
def test_products_of_many_tiles(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(m)
    a, b = (rng.integers(-9, 9, two).astype(np.float32) for two in ((m, k), (k, n)))
    given = jnp.asarray(a), jnp.asarray(b)
    assert np.all(np.asarray(parprims.matmul(*given, method="array")) == a @ b)  # all of them exact
    least = np.stack([np.min(row[:, None] + b, axis=0) for row in a])
    assert np.all(np.asarray(parprims.matmul(*given, add="minimum", multiply="add", method="array")) == least)
