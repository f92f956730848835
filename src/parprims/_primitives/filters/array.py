"""Filters by array operations: exact convolutions, and the solution of a triangular system.

With the coefficients divided by a[0], the outputs y solve A y = u. Here (A y)[n] = y[n] + a[1] y[n-1] + ... +
a[k] y[n-k], and u[n] = b[0] x[n] + ... + b[k] x[n-k], and the states before are added to the first k numbers of u. So u
is a convolution, and A a triangular matrix of k + 1 diagonals. The states after are the terms of the last inputs and
outputs in later samples. The derivatives of a filter are convolutions and a filter with the same A: dy solves
A dy = du - dA y, and the transpose of A is A from the other end.

The number of poles decides how A y = u is solved. JAX on a CPU takes one sample after another, as SciPy does, in
float64 or with more than two poles. Elsewhere:

One or two poles: all chunks of a signal at once, with a recurrence of states between them: z' = M z + c x and
y = x + z[0] with a small matrix M. L outputs are a matrix times L samples and the state before them, and the
states between chunks are the same recurrence of M^L, log_L n times. JAX on a CPU without float64 goes this way too,
and takes the last 1024 states one after another.

More poles: if poles are close to each other, the numbers of M^L are large and cancel in products, by any number of
digits. So one block is filtered after another. A block of u is multiplied by the inverse of A within the block.

Both ways then correct y by the inverse times u - A y. The remaining error is the rounding of every term of the
recurrence, as in SciPy.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import Array, Namespace, cast, device, dtype_kind, dtype_name, is_jax, lacks_arithmetic
from parprims._dispatch.derivative_rules import linear_system
from parprims._dispatch.watch import unwatched
from parprims._libraries.steps import doubled, repeated
from parprims._primitives.filters.call import Filter, Parts, zeros
from parprims._primitives.matmul.public import matmul
from parprims._primitives.scan.array import steps_in_jax
from parprims._primitives.scan.cumulative import cumulative_max

Solve = Callable[[Namespace, Array, Array], Array]
"""Takes the namespace, the coefficients a and lines u; returns the lines y with A y = u. Without a derivative."""

_CHUNK = 32
"""Samples of a chunk, and the multiplications of a product for each sample."""

_TAPS = 256
"""The most coefficients of a convolution that a single matrix product takes."""

_SHIFTED = 8
"""The most coefficients of a convolution that is computed as a sum of shifted signals."""


def array(xp: Namespace, f: Filter, solve: Solve | None = None) -> Any:
    """Return the result by array operations, one section after another."""
    return f.finished(xp, *_cascade(xp, f, f.parts(xp), solve or solved))


def array_refusal(xp: Namespace, f: Filter) -> str | None:
    """Return the sentence why array operations cannot serve the call, or None."""
    return lacks_arithmetic(xp, [f.working])


def filtered_lines(xp: Namespace, f: Filter, arrays: tuple[Array, ...]) -> tuple[Array, Array]:
    """Return filtered lines and the states after them, given the inputs of the kernel for GPUs."""
    *coefficients, x = arrays[: len(arrays) - f.states]
    b, a = f.coefficients(xp, coefficients)
    x = cast(xp, x, f.working)
    z = cast(xp, arrays[-1], f.working) if f.states else zeros(xp, (x.shape[0], b.shape[0], f.order), x)
    y, z = _cascade(xp, f, (b, a, x, z), solved)
    return cast(xp, y, f.dtype), cast(xp, z, f.dtype)


def _cascade(xp: Namespace, f: Filter, parts: Parts, solve: Solve) -> tuple[Array, Array]:
    """Return the lines filtered by all sections, and the states after."""
    b, a, x, z = parts
    states = []
    for section in range(b.shape[0]):
        first, (of_b, of_a) = a[section, 0], f.lengths
        coefficients = b[section, :of_b] / first, a[section, :of_a] / first
        with unwatched():
            x, end = _filtered(xp, coefficients, x, z[:, section, :], solve=solve)
        states.append(end)
    return x, xp.stack(states, axis=1)


def _filtered(
    xp: Namespace, coefficients: tuple[Array, Array], x: Array, z: Array, *, solve: Solve
) -> tuple[Array, Array]:
    """Return the filtered lines of x (lines, n), and their states after, given those before (lines, k).

    The first of a is 1. In a product with zeros a sample that is not finite would show in results before it. So it is
    left out, and results that depend on it are NaN.
    """
    b, a = coefficients
    if 0 in x.shape:
        return x + 0, z + 0
    if b.shape[0] == a.shape[0] == 1:
        return x * b[0], z + 0
    n, k = x.shape[1], z.shape[1]
    known = xp.isfinite(x)
    y, end = _of_finite(xp, coefficients, xp.where(known, x, xp.zeros_like(x)), z, solve=solve)
    positions = xp.arange(n, dtype=xp.int32 if n + k < 2**30 else xp.int64, device=device(x))
    last = cumulative_max(
        xp.where(known, xp.full_like(positions, -n - k), positions), axis=1
    )  # the last unknown sample so far
    reach = n if a.shape[0] > 1 else k
    y = xp.where(positions - last <= reach, xp.full_like(y, math.nan), y)
    return y, xp.where(n - last[:, -1:] <= reach, xp.full_like(end, math.nan), end)


def _of_finite(
    xp: Namespace, coefficients: tuple[Array, Array], x: Array, z: Array, *, solve: Solve
) -> tuple[Array, Array]:
    """Return `_filtered` of finite samples."""
    b, a = coefficients
    n, k = x.shape[1], z.shape[1]
    u = convolved(xp, b, _extended(xp, x, 0, k)) + _extended(xp, z, 0, n)
    u, end = u[:, :n], u[:, n:]
    if a.shape[0] == 1:
        return u, end
    y = linear_system(xp, _Feedback(solve, a.shape[0]), _system, coefficients=(a,), b=u)
    last = _extended(xp, y[:, max(0, n - k) :], max(0, k - n), k)
    return y, end - convolved(xp, a, last)[:, k:]


def _extended(xp: Namespace, x: Array, before: int, after: int) -> Array:
    """Return lines with ``before`` zeros before them and ``after`` zeros after them."""
    parts = [xp.zeros((x.shape[0], count), dtype=x.dtype, device=device(x)) for count in (before, after)]
    return xp.concat([parts[0], x, parts[1]], axis=1)


# ---- Convolutions -----------------------------------------------------------------------------------------------


def convolved(xp: Namespace, c: Array, x: Array) -> Array:
    """Return c[0] x[n] + c[1] x[n-1] + ... of lines, with zeros before the first sample."""
    lines, n = x.shape
    taps = min(c.shape[0], n)
    c = c[:taps]
    if taps <= _SHIFTED:
        before = _extended(xp, x, taps - 1, 0)
        terms = [c[i] * before[:, taps - 1 - i : taps - 1 - i + n] for i in range(taps)]
        return functools.reduce(lambda total, term: total + term, terms)
    length, blocks = _in_groups(xp, x, taps)
    groups = -(-taps // length)
    c = xp.concat([c, xp.zeros((groups * length - taps,), dtype=c.dtype, device=device(c))])

    def step(_: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        """Add the products of the next ``length`` coefficients."""
        total, c, x = state
        zeros = xp.zeros((2 * length,), dtype=c.dtype, device=device(c))
        matrix = _toeplitz(xp, xp.concat([zeros, c[:length]]), 2 * length, length)
        total = total + matmul(xp.concat([_moved_back(xp, x), x], axis=2), matrix)
        return total, xp.roll(c, -length), _moved_back(xp, x)

    total, _, _ = repeated(xp, groups, step, (xp.zeros_like(blocks * c[0]), c, blocks))
    return xp.reshape(total, (lines, -1))[:, :n]


def correlated(xp: Namespace, y: Array, x: Array, taps: int) -> Array:
    """Return sums of y[n] x[n-j] over all n and lines, j = 0, ..., taps - 1: the derivative of `convolved` by c."""
    length, blocks = _in_groups(xp, x, taps)
    _, rows = _in_groups(xp, y, taps)
    rows = xp.permute_dims(xp.reshape(rows, (-1, length)), (1, 0))
    results = []
    for _ in range(-(-taps // length)):
        pairs = xp.concat([_moved_back(xp, blocks), blocks], axis=2)
        sums = matmul(rows, xp.reshape(pairs, (-1, 2 * length)))  # the terms of a sum lie on a diagonal
        flat = xp.concat([xp.reshape(sums, (-1,)), xp.zeros((length,), dtype=sums.dtype, device=device(sums))])
        skewed = xp.reshape(flat, (length, 2 * length + 1))[:, 1 : length + 1]
        results.append(xp.flip(xp.sum(skewed, axis=0, dtype=sums.dtype)))
        blocks = _moved_back(xp, blocks)
    return xp.concat(results)[:taps]


def _in_groups(xp: Namespace, x: Array, taps: int) -> tuple[int, Array]:
    """Return the number of coefficients of a product, and lines in blocks of this length, padded with zeros."""
    lines, n = x.shape
    length = min(max(taps, _CHUNK), _TAPS)
    count = -(-n // length)
    return length, xp.reshape(_extended(xp, x, 0, count * length - n), (lines, count, length))


def _moved_back(xp: Namespace, blocks: Array) -> Array:
    """Return the lines of blocks, moved back by one block."""
    return xp.concat([xp.zeros_like(blocks[:, :1, :]), blocks[:, :-1, :]], axis=1)


def _toeplitz(xp: Namespace, circle: Array, rows: int, columns: int) -> Array:
    """Return the matrix with circle[j - i] in row i and column j. Negative indices count from the end.

    A circle of rows + columns numbers is repeated and cut into rows that are shorter by one number, so it moves by one
    number from row to row. Nothing is gathered: a GPU would add the derivative of a gather in any order.
    """
    size, rest = circle.shape[0], circle.shape[1:]
    repeated = xp.broadcast_to(circle[None, ...], (rows, *circle.shape))
    flat = xp.reshape(repeated, (rows * size, *rest))[: rows * (size - 1), ...]
    return xp.reshape(flat, (rows, size - 1, *rest))[:, :columns, ...]


# ---- The triangular system --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Feedback:
    """The matrix A of ``taps`` coefficients; ``reverse`` if transposed, which is A applied from the other end."""

    solve: Solve
    taps: int
    reverse: bool = False

    def product(self, xp: Namespace, coefficients: tuple[Array, ...], y: Array) -> Array:
        """Return A y."""
        return self.turned(xp, convolved(xp, coefficients[0], self.turned(xp, y)))

    def by_coefficients(self, xp: Namespace, g: Array, y: Array) -> tuple[Array, ...]:
        """Return the derivative by the coefficients of the sum of g times A y."""
        return (correlated(xp, self.turned(xp, g), self.turned(xp, y), self.taps),)

    def transposed(self, _: Namespace, coefficients: tuple[Array, ...]) -> tuple[_Feedback, tuple[Array, ...]]:
        """Return the transposed matrix."""
        return dataclasses.replace(self, reverse=not self.reverse), coefficients

    def turned(self, xp: Namespace, y: Array) -> Array:
        """Return lines from the end that the matrix begins at."""
        return xp.flip(y, axis=1) if self.reverse else y


def _system(xp: Namespace, matrix: _Feedback, coefficients: tuple[Array, ...], u: Array) -> Array:
    """Return the solution y of A y = u."""
    return matrix.turned(xp, matrix.solve(xp, coefficients[0], matrix.turned(xp, u)))


def solved(xp: Namespace, a: Array, u: Array) -> Array:
    """Return the lines y with y[n] + a[1] y[n-1] + ... + a[k] y[n-k] = u[n], by array operations."""
    wide = dtype_name(a.dtype) in ("float64", "complex128")
    few = a.shape[0] <= 3
    if is_jax(xp) and steps_in_jax() and (wide or not few):
        return _by_steps(xp, a, u)
    return _by_powers(xp, a, u) if few else _by_blocks(xp, a, u)


def _by_steps(xp: Namespace, a: Array, u: Array) -> Array:
    """Return `solved`, one sample after another."""

    def step(z: Array, x: Array) -> tuple[Array, Array]:
        y = x + z[:, 0]
        return xp.concat([z[:, 1:], xp.zeros_like(z[:, :1])], axis=1) - y[:, None] * a[1:], y

    y = _in_order(xp, step, xp.zeros_like(u[:, :1]) * a[1:], xp.permute_dims(u, (1, 0)))
    return xp.permute_dims(y, (1, 0))


def _by_blocks(xp: Namespace, a: Array, u: Array) -> Array:
    """Return `solved`, one block of samples after another.

    A correction multiplies the error by the unit in the last place and by the sizes of A and of its inverse within a
    block, at most 2^k L^(k-1) / (k-1)! for poles in or on the unit circle. So in single precision
    blocks are short, and are corrected twice.
    """
    multiply = matmul if is_jax(xp) else xp.matmul  # called thousands of times; JAX needs a precision
    lines, n = u.shape
    k = a.shape[0] - 1
    length, corrections = (64 if k <= 8 else 32, 1) if dtype_name(a.dtype) in ("float64", "complex128") else (16, 2)
    count = -(-n // length)
    zeros = xp.zeros((length,), dtype=a.dtype, device=device(a))
    within = _toeplitz(xp, xp.concat([xp.concat([a, zeros])[:length], zeros]), length, length)
    behind = xp.permute_dims(_toeplitz(xp, xp.concat([xp.flip(a[1:]), zeros]), length, k), (1, 0))
    system = xp.concat([behind, within], axis=0)
    inverse = _toeplitz(xp, xp.concat([_impulse(xp, a, length), zeros]), length, length)
    response = matmul(behind, inverse)

    def step(last: Array, part: Array) -> tuple[Array, Array]:
        """Return the last k outputs, given the last k before a block, and the outputs of the block."""
        u, y = part[0, ...], part[1, ...]
        y = y - multiply(last, response)
        for _ in range(corrections):
            missing = u - multiply(xp.concat([last, y], axis=1), system)
            # Outputs after one that is not finite are unknown, and outputs before it must not change.
            y = y + multiply(xp.where(xp.isfinite(missing), missing, xp.zeros_like(missing)), inverse)
        return (y if k <= length else xp.concat([last, y], axis=1))[:, -k:], y

    blocks = xp.reshape(_extended(xp, u, 0, count * length - n), (lines, count, length))
    parts = xp.permute_dims(xp.stack([blocks, matmul(blocks, inverse)]), (2, 0, 1, 3))
    y = _in_order(xp, step, xp.zeros_like(u[:, :1]) * a[1:], parts)
    return xp.reshape(xp.permute_dims(y, (1, 0, 2)), (lines, -1))[:, :n]


def _in_order(xp: Namespace, step: Callable[[Array, Array], tuple[Array, Array]], state: Array, parts: Array) -> Array:
    """Return the second results of ``step(state, part)`` over all parts, in order; the first is the next state."""
    if is_jax(xp):
        from jax import lax

        _, results = lax.scan(step, state, parts)
        return results
    outputs = []
    for index in range(parts.shape[0]):
        state, result = step(state, parts[index, ...])
        outputs.append(result)
    return xp.stack(outputs)


def _impulse(xp: Namespace, a: Array, length: int) -> Array:
    """Return the impulse response of the feedback, a column of the inverse of A: its first ``length`` numbers."""
    k = a.shape[0] - 1

    def step(_: Any, latest: Array) -> Array:
        return xp.concat([xp.sum(-a[1:] * latest[:k], keepdims=True), latest[:-1]])

    more = xp.zeros((max(length, k) - 1,), dtype=a.dtype, device=device(a))
    latest = repeated(xp, length - 1, step, xp.concat([a[:1], more]))
    return xp.flip(latest[:length])


# ---- One or two poles ---------------------------------------------------------------------------------------------


def _by_powers(xp: Namespace, a: Array, u: Array) -> Array:
    """Return `solved` for one or two poles, corrected once.

    The state of two poles is z[0] and s z[0] + z[1], where s is 1 or -1 if both poles are on its side, else 0. Next to
    s the two numbers z nearly cancel, and powers of their matrix would lose digits. A y is a sum of differences to s
    times the output before, which keep digits that products with A lose.
    """
    k = a.shape[0] - 1
    one, side = xp.ones_like(a[:1]), xp.real(a[1:2]) if dtype_kind(a.dtype) == "complex" else a[1:2]
    s = xp.where(side > k / 2, -one, xp.where(side < -k / 2, one, 0 * one))
    if k == 1:
        matrix, c = xp.reshape(-a[1:], (1, 1)), -a[1:]
    else:
        nearness = s * s + s * a[1:2] + a[2:]  # the distance of one pole from s times that of the other
        matrix = xp.reshape(xp.concat([-a[1:2] - s, one, -nearness, s]), (2, 2))
        c = xp.concat([-a[1:2], s * s - nearness])
    outputs = _by_chunks(xp, matrix, c, u.shape[1])

    def missing(y: Array) -> Array:
        before = _extended(xp, y, 2, 0)
        latest, previous, oldest = before[:, 2:], before[:, 1:-1], before[:, :-2]
        difference = u - (latest - s * previous)
        if k == 1:
            return difference - (a[1:2] + s) * previous
        return difference + s * (previous - s * oldest) - (a[1:2] + 2 * s) * previous - (a[2:] - s * s) * oldest

    def correct(i: Any, y: Array) -> Array:
        rest = missing(y)
        return y + outputs(xp.where(xp.isfinite(rest) | (i == 0), rest, xp.zeros_like(rest)))

    if is_jax(xp):  # corrects y = 0 twice, so that the program holds the outputs once
        return repeated(xp, 2, correct, xp.zeros_like(u * c[0]))
    return correct(1, outputs(u))


def _by_chunks(xp: Namespace, matrix: Array, c: Array, n: int) -> Callable[[Array], Array]:
    """Return a function of lines x of n samples: the outputs x + z[0] of z' = M z + c x. The first z is zero."""
    length = min(_CHUNK, n)
    powers = _powers(xp, matrix, length)
    reach = xp.sum(powers * c, axis=-1)  # M^t c, for every t
    impulse = xp.concat([xp.ones_like(c[:1]), reach[: length - 1, 0]])
    outputs = xp.permute_dims(_lower(xp, impulse, length), (1, 0))
    inputs = xp.flip(reach[:length, :], axis=0)  # M^(L-1-s) c, by s
    starts = xp.permute_dims(powers[:length, 0, :], (1, 0))
    count = -(-n // length)

    def run(x: Array) -> Array:
        lines = x.shape[0]
        chunks = xp.reshape(_extended(xp, x, 0, count * length - n), (lines, count, length))
        y = matmul(chunks, outputs)
        if count > 1:
            y = y + matmul(_states(xp, powers[length, ...], matmul(chunks, inputs)), starts)
        return xp.reshape(y, (lines, count * length))[:, :n]

    return run


def _multiplied(xp: Namespace, x: Array, y: Array) -> Array:
    """Return products of small matrices, in their own precision on every device."""
    return xp.sum(xp.expand_dims(x, axis=-1) * xp.expand_dims(y, axis=-3), axis=-2)


def _powers(xp: Namespace, matrix: Array, length: int) -> Array:
    """Return the powers 0, 1, ..., length of a matrix, by doubling."""
    k = matrix.shape[0]
    identity = xp.reshape(xp.eye(k, dtype=matrix.dtype, device=device(matrix)), (1, k, k))
    same = xp.broadcast_to(matrix, (length, k, k))
    (powers,) = doubled(xp, (same,), lambda xs, ys: (_multiplied(xp, xs[0], ys[0]),), 0)
    return xp.concat([identity, powers], axis=0)


def _lower(xp: Namespace, column: Array, length: int) -> Array:
    """Return the lower triangular matrix with these numbers on and below its diagonal; numbers may be blocks."""
    zeros = xp.zeros((length, *column.shape[1:]), dtype=column.dtype, device=device(column))
    circle = xp.concat([column[:1, ...], zeros, xp.flip(column[1:length, ...], axis=0)], axis=0)
    return _toeplitz(xp, circle, length, length)


_STEPS = 1024
"""The most states that JAX on a CPU computes one after another, which saves levels of its program."""


def _states(xp: Namespace, matrix: Array, u: Array) -> Array:
    """Return the state before each step z' = M z + u, given M. The first state is zero."""
    lines, m, k = u.shape
    if m <= _STEPS and is_jax(xp) and steps_in_jax():
        start = xp.zeros_like(u[:, 0, :]) + xp.zeros_like(matrix[0, :])
        states = _in_order(xp, _next_state(xp, matrix), start, xp.permute_dims(u, (1, 0, 2)))
        return xp.permute_dims(states, (1, 0, 2))
    length = min(_CHUNK, m)
    count = -(-m // length)
    powers = _powers(xp, matrix, length)
    # The state after t + 1 steps of a group, from zero: the sum of M^(t-s) u[s] over s <= t.
    blocks = _lower(xp, powers[:length, ...], length)
    blocks = xp.reshape(xp.permute_dims(blocks, (1, 3, 0, 2)), (length * k, length * k))
    behind = xp.zeros((lines, count * length - m, k), dtype=u.dtype, device=device(u))
    groups = xp.reshape(xp.concat([u, behind], axis=1), (lines, count, length * k))
    sums = xp.reshape(_times(xp, groups, blocks), (lines, count, length, k))
    states = xp.concat([xp.zeros_like(sums[:, :, :1, :]), sums[:, :, : length - 1, :]], axis=2)
    if count > 1:
        first = _states(xp, powers[length, ...], sums[:, :, length - 1, :])
        later = xp.permute_dims(xp.reshape(powers[:length, ...], (length * k, k)), (1, 0))
        states = states + xp.reshape(_times(xp, first, later), (lines, count, length, k))
    return xp.reshape(states, (lines, count * length, k))[:, :m, :]


def _next_state(xp: Namespace, matrix: Array) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Return a step: it takes a state z and u, and returns M z + u and z. Overflow in M is treated as in `_times`."""
    known = xp.isfinite(matrix)
    finite = xp.where(known, matrix, xp.zeros_like(matrix))

    def step(z: Array, u: Array) -> tuple[Array, Array]:
        row = xp.expand_dims(z, axis=1)
        state = xp.sum(row * finite, axis=2) + u
        lost = xp.any((row != 0) & ~known, axis=2)
        return xp.where(lost, xp.full_like(state, math.nan), state), z

    return step


def _times(xp: Namespace, rows: Array, powers: Array) -> Array:
    """Return rows times powers. A power that overflowed makes products with nonzero numbers NaN, with zeros 0."""
    known = xp.isfinite(powers)
    lost = matmul(xp.astype(rows != 0, rows.dtype), xp.astype(~known, rows.dtype)) != 0
    product = matmul(rows, xp.where(known, powers, xp.zeros_like(powers)))
    return xp.where(lost, xp.full_like(product, math.nan), product)
