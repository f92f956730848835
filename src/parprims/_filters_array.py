"""Filters by products of matrices: chunks of a signal at once, and between them a recurrence of states.

With the coefficients divided by a[0], the state of k numbers and the output are

    z' = M z + c x,   y = b[0] x + z[0],

where row i of M has -a[i+1] in its first column and 1 behind the diagonal, and c[i] = b[i+1] - a[i+1] b[0]. So L
outputs are a matrix times L samples and the state before them, and the state after them is another: M^L z + C x. The
states between chunks are the same recurrence of a matrix M^L, in chunks of chunks, log_L n times.

Where poles are close to each other and to the unit circle, the numbers of M^L are large and cancel in products. With
two poles that is so next to 1 or -1, where z[0] and z[1] nearly make up for each other: there z[0] and their sum, or
their difference, are the state. With more poles the outputs are corrected once: what they lack in a[0] y[n] + ... +
a[k] y[n-k] = b[0] x[n] + ... + b[k] x[n-k], which is known to the rounding of every term, is filtered in turn.
"""

from __future__ import annotations

import math
from typing import Any

from parprims._arrays import Array, Namespace, compute_dtype, device, dtype_kind, is_jax, mode
from parprims._cumulative import cumulative_max
from parprims._matmul import matmul

_CHUNK = 32
"""Samples of a chunk: a product costs so many multiplications for each of them."""


def filtered(xp: Namespace, b: Array, a: Array, x: Array, z: Array) -> tuple[Array, Array]:
    """Return the filtered lines of x (lines, n), and their states after, given those before (lines, k).

    In a product with zeros a sample that is not finite would show in results before it. So it is left out, and all
    results from it on are NaN.
    """
    if 0 in x.shape or b.shape[0] == 1:
        return x * b[0], z + 0
    known = xp.isfinite(x)
    y, end = _filtered(xp, b, a, xp.where(known, x, xp.zeros_like(x)), z)
    lost = cumulative_max(xp.astype(~known, xp.uint8), axis=1) > 0
    y, end = (xp.where(where, xp.full_like(one, math.nan), one) for where, one in ((lost, y), (lost[:, -1:], end)))
    return y, end


def _filtered(xp: Namespace, b: Array, a: Array, x: Array, z: Array) -> tuple[Array, Array]:
    """Return the same of finite samples."""
    k = a.shape[0] - 1
    if k == 2:
        return _by_sums(xp, b, a, x, z)
    matrix = _companion(xp, a)
    y, end = _by_chunks(xp, b[0], matrix, b[1:] - a[1:] * b[0], x, z)
    if k == 1 or x.shape[1] < k:
        return y, end
    right = _delayed_sum(xp, b, x)
    right = xp.concat([right[:, :k] + z, right[:, k:]], axis=1)
    missing = right - _delayed_sum(xp, a, y)
    more, _ = _by_chunks(xp, xp.ones_like(b[0]), matrix, -a[1:], missing, xp.zeros_like(z))
    y = y + more
    last = [xp.flip(one[:, x.shape[1] - k :], axis=1) for one in (x, y)]  # the latest sample first
    rows = [xp.sum(b[i + 1 :] * last[0][:, : k - i] - a[i + 1 :] * last[1][:, : k - i], axis=1) for i in range(k)]
    return y, xp.stack(rows, axis=1)


def _by_sums(xp: Namespace, b: Array, a: Array, x: Array, z: Array) -> tuple[Array, Array]:
    """Return the same of two poles: with s 1 or -1, on the side of the poles, the state is z[0] and s z[0] + z[1]."""
    one = xp.ones_like(a[:1])
    s = xp.where(xp.real(a[1:2]) > 0 if dtype_kind(a.dtype) == "complex" else a[1:2] > 0, -one, one)
    nearness = one + s * a[1:2] + a[2:]  # the distance of one pole from s times that of the other
    matrix = xp.reshape(xp.concat([-a[1:2] - s, one, -nearness, s]), (2, 2))
    c = xp.concat([b[1:2] - a[1:2] * b[:1], b[:1] + s * b[1:2] + b[2:] - nearness * b[:1]])
    y, end = _by_chunks(xp, b[0], matrix, c, x, xp.concat([z[:, :1], s * z[:, :1] + z[:, 1:]], axis=1))
    return y, xp.concat([end[:, :1], end[:, 1:] - s * end[:, :1]], axis=1)


def _delayed_sum(xp: Namespace, c: Array, x: Array) -> Array:
    """Return c[0] x[n] + c[1] x[n-1] + ... of lines, in which nothing comes before the first sample."""
    n, k = x.shape[1], c.shape[0] - 1
    before = xp.concat([xp.zeros_like(x[:, :k]), x], axis=1)
    total = c[0] * x
    for i in range(1, k + 1):
        total = total + c[i] * before[:, k - i : k - i + n]
    return total


def _by_chunks(xp: Namespace, first: Array, matrix: Array, c: Array, x: Array, z: Array) -> tuple[Array, Array]:
    """Return the outputs first x + z[0] and the last state of z' = M z + c x, given the state before."""
    lines, n = x.shape
    length = min(_CHUNK, n)
    powers = _powers(xp, matrix, length)
    reach = xp.sum(powers * c, axis=-1)  # M^t c, for every t
    impulse = xp.concat([xp.reshape(first, (1,)), reach[:-1, 0]])
    outputs = _toeplitz(xp, impulse, length)
    inputs = xp.flip(reach[:length, :], axis=0)  # M^(L-1-s) c, by s
    starts = powers[:length, 0, :]

    count = n // length
    whole = xp.reshape(x[:, : count * length], (lines, count, length))
    before, end = _states(xp, powers[length, ...], matmul(whole, inputs), z)
    y = _times(xp, whole, outputs) + _times(xp, before, starts)
    y = xp.reshape(y, (lines, count * length))
    rest = n - count * length
    if rest:
        tail = x[:, count * length :]
        last = _times(xp, tail, outputs[:rest, :rest]) + _times(xp, end, starts[:rest, :])
        y = xp.concat([y, last], axis=1)
        end = _times(xp, end, powers[rest, ...]) + matmul(tail, inputs[length - rest :, :])
    return y, end


def widest(xp: Namespace, dtype: Any) -> Any:
    """Return the dtype that signals of a dtype are filtered in: the widest of its kind that the library has."""
    if is_jax(xp) and not mode(xp):
        return compute_dtype(xp, dtype)
    return xp.complex128 if dtype_kind(dtype) == "complex" else xp.float64


def _companion(xp: Namespace, a: Array) -> Array:
    """Return M."""
    k = a.shape[0] - 1
    column = xp.reshape(-a[1:], (k, 1))
    return xp.concat([column, xp.eye(k, dtype=a.dtype, device=device(a))[:, : k - 1]], axis=1)


def _multiplied(xp: Namespace, x: Array, y: Array) -> Array:
    """Return products of small matrices, in their own precision on every device."""
    return xp.sum(xp.expand_dims(x, axis=-1) * xp.expand_dims(y, axis=-3), axis=-2)


def _powers(xp: Namespace, matrix: Array, length: int) -> Array:
    """Return the powers 0, 1, ..., length of a matrix, by doubling."""
    k = matrix.shape[0]
    powers, last = xp.reshape(xp.eye(k, dtype=matrix.dtype, device=device(matrix)), (1, k, k)), matrix
    while powers.shape[0] <= length:
        powers = xp.concat([powers, _multiplied(xp, powers, last)], axis=0)
        last = _multiplied(xp, last, last)
    return powers[: length + 1, ...]


def _toeplitz(xp: Namespace, column: Array, length: int) -> Array:
    """Return the lower triangular matrix with these numbers on and below its diagonal, by blocks if they are such.

    A circle of 2 n numbers, repeated and cut into rows of 2 n - 1, moves by one a row. So nothing is gathered,
    whose derivative a GPU would add in any order.
    """
    zeros = xp.zeros((length, *column.shape[1:]), dtype=column.dtype, device=device(column))
    circle = xp.concat([column[:1, ...], zeros, xp.flip(column[1:length, ...], axis=0)], axis=0)
    whole = xp.broadcast_to(circle[None, ...], (length, *circle.shape))
    flat = xp.reshape(whole, (length * 2 * length, *column.shape[1:]))[: length * (2 * length - 1), ...]
    return xp.reshape(flat, (length, 2 * length - 1, *column.shape[1:]))[:, :length, ...]


def _states(xp: Namespace, matrix: Array, u: Array, z: Array) -> tuple[Array, Array]:
    """Return the states before each of z' = M z + u, and the last, given M and the first."""
    lines, m, k = u.shape
    length = min(_CHUNK, m)
    powers = _powers(xp, matrix, length)
    # The state after t + 1 steps of a group, without one before: the sum of M^(t-s) u[s] over s <= t.
    blocks = _toeplitz(xp, powers[:length, ...], length)
    blocks = xp.reshape(xp.permute_dims(blocks, (1, 3, 0, 2)), (length * k, length * k))
    later = xp.permute_dims(xp.reshape(powers[:length, ...], (length * k, k)), (1, 0))
    count = m // length
    whole = xp.reshape(u[:, : count * length, :], (lines, count, length * k))
    sums = xp.reshape(matmul(whole, blocks), (lines, count, length, k))
    if count == 1:
        first, end = xp.expand_dims(z, axis=1), _times(xp, z, powers[length, ...]) + sums[:, 0, length - 1, :]
    else:
        first, end = _states(xp, powers[length, ...], sums[:, :, length - 1, :], z)
    inner = xp.concat([xp.zeros_like(sums[:, :, :1, :]), sums[:, :, : length - 1, :]], axis=2)
    found = inner + xp.reshape(matmul(first, later), (lines, count, length, k))
    found = xp.reshape(found, (lines, count * length, k))
    rest = m - count * length
    if rest:
        tail, last = _states(xp, matrix, u[:, count * length :, :], end)
        return xp.concat([found, tail], axis=1), last
    return found, end


def _times(xp: Namespace, rows: Array, matrix: Array) -> Array:
    """Return a matrix times each of the rows."""
    return matmul(rows, xp.permute_dims(matrix, (1, 0)))
