"""Narrow bands and block tridiagonal systems by a tree of orthogonal eliminations.

With l diagonals below and u above the main one, d = l + u rows from row i on are d equations between two vectors of d
unknowns, y[i] = x[i-l] ... x[i+u-1] and y[i+d]: A y[i] + B y[i+d] = r. Two adjacent groups are 2d equations between
three vectors. Reflections make the columns of the middle vector triangular. That leaves d equations without the middle
vector, again between two vectors, and d equations that give the middle vector from its neighbours. After log2(n / d)
steps a single A y + B y = r is left, because the vector after the last row is the vector before the first: a system
that is not periodic has no coefficients there.

Reflections are chosen by columns of 2d rows, which hold all coefficients of the unknowns in the middle, so that every
regular matrix can be solved. They change no lengths, so that nothing grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parprims._core.arrays import Array, Namespace, broadcast_shapes, device, dtype_kind, is_jax
from parprims._dispatch.derivative_rules import conj
from parprims._libraries.halving import Halving

Solve = Callable[[Array], Array]
"""Takes right-hand sides (..., blocks, d, columns) and returns the unknowns y in this shape."""


def product(xp: Namespace, x: Array, y: Array) -> Array:
    """Return products of small matrices in their own precision, on every device."""
    return xp.sum(xp.expand_dims(x, axis=-1) * xp.expand_dims(y, axis=-3), axis=-2)


def eliminated(xp: Namespace, a: Array, b: Array) -> Solve:
    """Return a solver of a[g] y[g] + b[g] y[g + 1] = r[g] for all g, cyclic in g; a is (..., blocks, d, d)."""
    d = a.shape[-1]
    size = xp.maximum(xp.max(abs(a), axis=-1, keepdims=True), xp.max(abs(b), axis=-1, keepdims=True))
    size = xp.where(size > 0, size, xp.ones_like(size))
    size = xp.astype(size, a.dtype)
    a, b = a / size, b / size
    eye = xp.zeros_like(a[..., :1, :, :]) + xp.eye(d, dtype=a.dtype, device=device(a))
    levels = Halving(xp, a.shape[-3], -3)

    def eliminate(
        earlier: tuple[Array, Array], later: tuple[Array, Array]
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        (a0, b0), (a1, b1) = earlier, later
        nothing = xp.zeros_like(a0)
        upper, lower = xp.concat([b0, a0, nothing], axis=-1), xp.concat([a1, nothing, b1], axis=-1)
        rows, mirrors = _triangular(xp, xp.concat([upper, lower], axis=-2), d)
        parts = rows[..., d:, d : 2 * d], rows[..., d:, 2 * d :]
        return parts, (rows[..., :d, :d], rows[..., :d, d:], *mirrors)

    # y[g] = y[g + 1] changes nothing
    (a, b), eliminated = levels.up(eliminate, (a, b), lambda _: (eye, -eye))
    last, closing = _triangular(xp, a + b, d)

    def reflect(
        earlier: tuple[Array], later: tuple[Array], own: tuple[Array, ...]
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        r = _reflected(xp, xp.concat([*earlier, *later], axis=-2), own[2:])
        return (r[..., d:, :],), (r[..., :d, :],)

    def between(
        before: tuple[Array], behind: tuple[Array], own: tuple[Array, ...], top: tuple[Array]
    ) -> tuple[Array, ...]:
        middle, others, *_ = own
        rest = top[0] - product(xp, others, xp.concat([*before, *behind], axis=-2))
        return (_back_substituted(xp, middle, rest),)

    def solve(r: Array) -> Array:
        count = r.shape[-3]
        (r,), known = levels.up(reflect, (r / size,), lambda xs: (xp.zeros_like(xs[0][..., :1, :, :]),), eliminated)
        y = _back_substituted(xp, last, _reflected(xp, r, closing))
        return levels.down(between, ((y,), (y,)), eliminated, known)[0][..., :count, :, :]

    return solve


def _triangular(xp: Namespace, rows: Array, d: int) -> tuple[Array, list[Array]]:
    """Return the rows with their first d columns made triangular, and the reflections, as vectors and factors.

    On JAX the reflections are one matrix, from the library's QR factorization: a program of reflections would grow with
    d.
    """
    if is_jax(xp):
        rotation, _ = xp.linalg.qr(rows[..., :d], mode="complete")
        rotation = conj(xp, xp.matrix_transpose(rotation))
        return product(xp, rotation, rows), [rotation]
    mirrors: list[Array] = []
    for column in range(d):
        if column == rows.shape[-2] - 1:
            break
        x = rows[..., column:, column : column + 1]
        norm = xp.astype(xp.sqrt(xp.sum(_square(xp, x), axis=-2, keepdims=True)), x.dtype)
        head = x[..., :1, :]
        if dtype_kind(x.dtype) == "complex":
            length = xp.astype(abs(head), x.dtype)
            nought = length == 0
            sign = xp.where(nought, xp.ones_like(head), head / xp.where(nought, xp.ones_like(length), length))
        else:
            sign = xp.where(head < 0, -xp.ones_like(head), xp.ones_like(head))
        mirror = xp.concat([head + sign * norm, x[..., 1:, :]], axis=-2)
        length = xp.astype(xp.sum(_square(xp, mirror), axis=-2, keepdims=True), x.dtype)
        nought = length == 0
        factor = xp.where(nought, length, 2 / xp.where(nought, xp.ones_like(length), length))
        mirrors += [mirror, factor]
        rows = _mirrored(xp, rows, mirror, factor)
    return rows, mirrors


def _square(xp: Namespace, x: Array) -> Array:
    if dtype_kind(x.dtype) == "complex":
        return xp.real(x) * xp.real(x) + xp.imag(x) * xp.imag(x)
    return x * x


def _mirrored(xp: Namespace, rows: Array, mirror: Array, factor: Array) -> Array:
    """Return the rows; the mirror reflects the last of them, as many as it has rows."""
    first = rows.shape[-2] - mirror.shape[-2]
    part = rows[..., first:, :]
    shares = xp.sum(conj(xp, mirror) * part, axis=-2, keepdims=True)
    part = part - mirror * (factor * shares)
    return xp.concat([rows[..., :first, :], part], axis=-2) if first else part


def _reflected(xp: Namespace, r: Array, mirrors: Sequence[Array]) -> Array:
    if is_jax(xp):
        return product(xp, mirrors[0], r)
    for mirror, factor in zip(mirrors[::2], mirrors[1::2], strict=True):
        r = _mirrored(xp, r, mirror, factor)
    return r


def _back_substituted(xp: Namespace, upper: Array, r: Array) -> Array:
    """Return the solution of triangular systems."""
    if is_jax(xp):
        from jax.lax.linalg import triangular_solve

        batch = broadcast_shapes(tuple(upper.shape[:-2]), tuple(r.shape[:-2]))
        upper, r = (xp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (upper, r))
        solution: Array = triangular_solve(upper, r, left_side=True, lower=False)
        return solution
    d = upper.shape[-1]
    y: Array = r[..., :0, :]
    for row in range(d - 1, -1, -1):
        rest = r[..., row : row + 1, :]
        if row < d - 1:
            rest = rest - product(xp, upper[..., row : row + 1, row + 1 :], y)
        unknown = rest / upper[..., row : row + 1, row : row + 1]
        y = xp.concat([unknown, y], axis=-2) if row < d - 1 else unknown
    return y


# ---- Equations of d rows ----------------------------------------------------------------------------------------


def of_bands(xp: Namespace, bands: list[Array]) -> tuple[Array, Array]:
    """Return A and B of all groups of d rows, given d + 1 diagonals (..., n), the i-th entry of each in row i.

    Where rows are left over, the last group has equations that say which unknowns are in both vectors.
    """
    d, n = len(bands) - 1, bands[0].shape[-1]
    groups, rest = n // d, n % d
    rows = xp.stack(bands, axis=-1)
    parts: tuple[list[Array], list[Array]] = ([], [])
    if groups:
        whole = rows[..., : groups * d, :]
        both = _sheared(xp, xp.reshape(whole, (*whole.shape[:-2], groups, d, d + 1)))
        for part, half in zip(parts, (slice(0, d), slice(d, None)), strict=True):
            part.append(both[..., half])
    if rest:
        both = _sheared(xp, xp.expand_dims(rows[..., groups * d :, :], axis=-3))
        none = xp.zeros_like(both[..., : d - rest])
        # y[rest + p] of the last vector is y[p] of the next.
        eye = xp.zeros_like(both[..., :1, :d]) + xp.eye(d, dtype=rows.dtype, device=device(rows))
        parts[0].append(xp.concat([both[..., :d], eye[..., rest:, :]], axis=-2))
        parts[1].append(xp.concat([xp.concat([none, both[..., d:]], axis=-1), -eye[..., : d - rest, :]], axis=-2))
    a, b = (xp.concat(part, axis=-3) if len(part) > 1 else part[0] for part in parts)
    return a, b


def _sheared(xp: Namespace, rows: Array) -> Array:
    """Return rows (..., t, width), the i-th moved right by i and padded with zeros: (..., t, width + t - 1)."""
    t, width = rows.shape[-2:]
    padded = xp.concat([rows, xp.zeros((*rows.shape[:-1], t), dtype=rows.dtype, device=device(rows))], axis=-1)
    flat = xp.reshape(padded, (*rows.shape[:-2], t * (width + t)))
    return xp.reshape(flat[..., : t * (width + t - 1)], (*rows.shape[:-1], width + t - 1))


def of_blocks(xp: Namespace, lower: Array, diag: Array, upper: Array) -> tuple[Array, Array]:
    """Return A and B for pairs of block rows, the vectors being X[i-1] and X[i]."""
    n, k = diag.shape[-3], diag.shape[-1]
    parts: tuple[list[Array], list[Array]] = ([], [])
    for first, step in ((0, 2), (n - 1, 1)):
        if (step == 2 and n < 2) or (step == 1 and n % 2 == 0):
            continue
        last = n - n % 2 if step == 2 else n
        l0, d0, u0 = (x[..., first:last:step, :, :] for x in (lower, diag, upper))
        nothing = xp.zeros_like(d0)
        if step == 2:
            l1, d1, u1 = (x[..., 1:last:2, :, :] for x in (lower, diag, upper))
            lines = ((l0, d0, u0, nothing), (nothing, l1, d1, u1))
        else:
            eye = nothing + xp.eye(k, dtype=diag.dtype, device=device(diag))
            lines = ((l0, d0, nothing, u0), (nothing, eye, -eye, nothing))
        for index, part in enumerate(parts):
            rows = [xp.concat(line[2 * index : 2 * index + 2], axis=-1) for line in lines]
            part.append(xp.concat(rows, axis=-2))
    a, b = (xp.concat(part, axis=-3) if len(part) > 1 else part[0] for part in parts)
    return a, b
