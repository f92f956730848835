"""Binary trees over the elements along an axis: a sweep up combines neighbours, a sweep down leads back.

On most libraries each level is an array of half the length. A JAX program in this form would grow with the number of
levels, and take seconds to compile. On JAX all levels are therefore stored in one array, one behind the other, and a
loop processes a block of nodes at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import Array, Namespace, is_jax
from parprims._libraries.steps import repeated

Arrays = tuple[Array, ...]

_PARTS, _SMALLEST = 32, 512
"""A step of the loop processes a 32nd of the nodes of the longest level, but at least 512 nodes."""


class Halving:
    """A tree over ``count`` elements along an axis counted from the end.

    With ``rows``, arrays may have an axis of rows before all other axes. JAX joins arrays of one dtype along it.
    """

    def __init__(self, xp: Namespace, count: int, axis: int, *, rows: bool = False) -> None:
        self._xp, self._axis, self._rows = xp, axis, rows
        self._counts = [count]
        while self._counts[-1] > 1:
            self._counts.append(-(-self._counts[-1] // 2))

    def up(
        self,
        combine: Callable[..., tuple[Arrays, Arrays]],
        elements: Arrays,
        neutral: Callable[[Arrays], Arrays],
        *known: Any,
    ) -> tuple[Arrays, Any]:
        """Return the element at the root, and the data of all nodes, which later sweeps take as ``known``.

        ``combine`` takes the earlier and the later elements of pairs, and the data of their nodes from each earlier
        sweep in ``known``. It returns the combined elements, and the data to keep for their nodes. ``neutral`` takes
        the elements, and returns the neighbour of a last element that has none.
        """
        xp = self._xp
        if is_jax(xp) and len(self._counts) > 1:
            return _Loop(self).up(combine, elements, neutral, known)
        evens, odds = self._at(0, None, 2), self._at(1, None, 2)
        found = []
        for level, count in enumerate(self._counts[:-1]):
            if count % 2:
                elements = tuple(
                    [xp.concat(pair, axis=self._axis) for pair in zip(elements, neutral(elements), strict=True)]
                )
            own = [one[level] for one in known]
            elements, new = combine(tuple([x[evens] for x in elements]), tuple([x[odds] for x in elements]), *own)
            found.append(new)
        return elements, found

    def down(self, between: Callable[..., Arrays], ends: tuple[Arrays, Arrays], *known: Any) -> Arrays:
        """Return the values before, between and behind all elements, given the values at both ends.

        ``between`` takes the values before and behind nodes, and the data of these nodes in ``known``. It returns the
        value between the two halves of each node.
        """
        xp, axis = self._xp, self._axis
        if is_jax(xp) and len(self._counts) > 1:
            return _Loop(self).down(between, ends, known)
        ys = tuple([xp.concat(pair, axis=axis) for pair in zip(*ends, strict=True)])
        for level in range(len(self._counts) - 2, -1, -1):
            before, behind = tuple([y[self._at(0, -1)] for y in ys]), tuple([y[self._at(1, None)] for y in ys])
            middle = between(before, behind, *[one[level] for one in known])
            ys = tuple(
                [
                    xp.concat([interleaved(xp, x, y, axis), z[self._at(-1, None)]], axis=axis)[
                        self._at(0, self._counts[level] + 1)
                    ]
                    for x, y, z in zip(before, middle, ys, strict=True)
                ]
            )
        return ys

    def _at(self, start: int | None, stop: int | None, step: int | None = None) -> tuple[Any, ...]:
        return (..., slice(start, stop, step), *(slice(None),) * (-1 - self._axis))


def interleaved(xp: Namespace, x: Array, y: Array, axis: int = -1) -> Array:
    """Return x[0], y[0], x[1], y[1], ... along an axis counted from the end."""
    at = x.ndim + axis
    return xp.reshape(xp.stack([x, y], axis=at + 1), (*x.shape[:at], 2 * x.shape[at], *x.shape[at + 1 :]))


class _Loop:
    """The sweeps of a `Halving` on JAX. All levels lie in one array, the elements first.

    A step may write behind the end of its level; later steps overwrite these values.
    """

    def __init__(self, tree: Halving) -> None:
        self._xp, self._axis, self._at, self._rows = tree._xp, tree._axis, tree._at, tree._rows
        self._counts = counts = tree._counts
        self._part = part = min(counts[1], max(_SMALLEST, -(-counts[1] // _PARTS)))
        self._starts = np.cumsum([0, *counts])
        self._posts = np.cumsum([0, *(count + 1 for count in counts)])
        places = [(level, at) for level in range(1, len(counts)) for at in range(0, counts[level], part)]
        self._levels, self._places = (np.asarray(one, np.int32) for one in zip(*places, strict=True))

    def up(
        self, combine: Any, elements: Arrays, neutral: Callable[[Arrays], Arrays], known: tuple[_Kept, ...]
    ) -> tuple[Arrays, _Kept]:
        import jax

        xp, part, counts = self._xp, self._part, self._counts
        children = self._starts[self._levels - 1] + 2 * self._places
        parents = self._starts[self._levels] + self._places
        whole = np.asarray(counts)[self._levels - 1] // 2 - self._places
        spare = neutral(elements)
        place = xp.reshape(xp.arange(part), (part, *(1,) * (-1 - self._axis)))

        def pairs(i: Any, state: Arrays) -> tuple[Arrays, Arrays]:
            both = elements_of.unpacked(self._read(state, self._entry(children, i), 2 * part))
            later = [
                xp.where(place < self._entry(whole, i), x[self._at(1, None, 2)], y)
                for x, y in zip(both, spare, strict=True)
            ]
            left, right = tuple([x[self._at(0, None, 2)] for x in both]), tuple(later)
            own = [self._own(one, self._entry(parents, i)) for one in known]
            new, found = combine(left, right, *own)
            return tuple(new), tuple(found)

        # `combine` may broadcast arrays along other axes; eval_shape finds their shapes without a computation.
        some = tuple([x[self._at(0, 1)] for x in elements])
        shapes, _ = jax.eval_shape(lambda: combine(some, spare, *[self._own(one, 0, 1) for one in known]))
        elements = tuple(
            [xp.broadcast_to(x, self._long(shape.shape, counts[0])) for x, shape in zip(elements, shapes, strict=True)]
        )
        elements_of = _Packing(self, elements)
        end = int(self._starts[-1]) + 2 * part
        state = tuple([self._padded(x, 0, end) for x in elements_of.packed(elements)])
        found = jax.eval_shape(lambda: pairs(0, state)[1])
        kept_of = _Packing(self, found)
        length = end - counts[0]
        kept = tuple(
            [
                xp.zeros(self._long(x.shape, length), dtype=x.dtype)
                for x in jax.eval_shape(lambda: kept_of.packed(pairs(0, state)[1]))
            ]
        )

        def step(i: Any, both: tuple[Arrays, Arrays]) -> tuple[Arrays, Arrays]:
            state, kept = both
            new, found = pairs(i, state)
            state = self._written(state, elements_of.packed(new), self._entry(parents, i))
            return state, self._written(kept, kept_of.packed(found), self._entry(parents, i) - counts[0])

        state, kept = repeated(xp, len(self._places), step, (state, kept))
        last = self._at(int(self._starts[-2]), int(self._starts[-2]) + 1)
        return elements_of.unpacked(tuple([x[last] for x in state])), _Kept(kept, kept_of)

    def down(self, between: Any, ends: tuple[Arrays, Arrays], known: tuple[_Kept, ...]) -> Arrays:
        xp, part = self._xp, self._part
        # From the last level to the first. No step reads the values that a step writes behind the end of its level.
        order = np.argsort(-self._levels, stable=True)
        levels, places = self._levels[order], self._places[order]
        parents = self._posts[levels] + places
        children = self._posts[levels - 1] + 2 * places
        nodes = self._starts[levels] + places
        posts_of = _Packing(self, ends[0])
        both = zip(*map(posts_of.packed, ends), strict=True)
        top = int(self._posts[-2])
        state = tuple([self._padded(xp.concat(pair, axis=self._axis), top, top + 2 * part + 3) for pair in both])

        def step(i: Any, state: Arrays) -> Arrays:
            ys = posts_of.unpacked(self._read(state, self._entry(parents, i), part + 1))
            before, behind = tuple([y[self._at(0, -1)] for y in ys]), tuple([y[self._at(1, None)] for y in ys])
            middle = between(before, behind, *[self._own(one, self._entry(nodes, i)) for one in known])
            joined = [
                xp.concat([interleaved(xp, x, y, self._axis), z[self._at(-1, None)]], axis=self._axis)
                for x, y, z in zip(before, middle, ys, strict=True)
            ]
            return self._written(state, posts_of.packed(tuple(joined)), self._entry(children, i))

        state = repeated(xp, len(self._places), step, state)
        return posts_of.unpacked(tuple([x[self._at(0, self._counts[0] + 1)] for x in state]))

    def _own(self, known: _Kept, place: Any, length: int | None = None) -> Arrays:
        length = self._part if length is None else length
        return known.packing.unpacked(self._read(known.arrays, place - self._counts[0], length))

    def _entry(self, table: Any, i: Any) -> Any:
        """Return an entry of a table; a Python integer if i is an integer, so that a single step makes no array."""
        return int(table[i]) if isinstance(i, int) else self._xp.asarray(np.asarray(table, np.int32))[i]

    def _long(self, shape: tuple[int, ...], length: int) -> tuple[int, ...]:
        at = len(shape) + self._axis
        return (*shape[:at], length, *shape[at + 1 :])

    def _padded(self, x: Array, before: int, length: int) -> Array:
        """Return an array of a length, with zeros before and behind."""
        widths = [(0, 0)] * x.ndim
        widths[self._axis] = (before, length - before - x.shape[self._axis])
        return self._xp.pad(x, widths)

    def _read(self, arrays: Arrays, start: Any, length: int) -> Arrays:
        from jax import lax

        return tuple([lax.dynamic_slice_in_dim(x, start, length, x.ndim + self._axis) for x in arrays])

    def _written(self, arrays: Arrays, parts: Arrays, start: Any) -> Arrays:
        from jax import lax

        both = zip(arrays, parts, strict=True)
        return tuple([lax.dynamic_update_slice_in_dim(x, y, start, x.ndim + self._axis) for x, y in both])


class _Kept:
    """The data of all nodes: their arrays and the packing."""

    def __init__(self, arrays: Arrays, packing: _Packing) -> None:
        self.arrays, self.packing = arrays, packing


class _Packing:
    """The storage of several arrays in fewer: with ``rows``, arrays of one dtype become rows of one array."""

    def __init__(self, loop: _Loop, arrays: Any) -> None:
        self._xp, self._rows = loop._xp, loop._rows
        self._ndim = max(x.ndim for x in arrays) if arrays else 0
        self._dtypes = list(dict.fromkeys(x.dtype for x in arrays))
        self._kinds = [self._dtypes.index(x.dtype) for x in arrays]
        flat = len({x.ndim for x in arrays}) <= 1  # no array has an axis of rows
        self._bare = [flat or x.ndim < self._ndim for x in arrays]
        self._heights = [1 if bare else x.shape[0] for x, bare in zip(arrays, self._bare, strict=True)]

    def packed(self, arrays: Arrays) -> Arrays:
        if not self._rows:
            return arrays
        xp = self._xp
        rows = [x[None, ...] if bare else x for x, bare in zip(arrays, self._bare, strict=True)]
        kinds = range(len(self._dtypes))
        return tuple(
            [xp.concat([x for x, one in zip(rows, self._kinds, strict=True) if one == kind]) for kind in kinds]
        )

    def unpacked(self, arrays: Arrays) -> Arrays:
        if not self._rows:
            return arrays
        found, at = [], [0] * len(arrays)
        for kind, height, bare in zip(self._kinds, self._heights, self._bare, strict=True):
            rows = arrays[kind][at[kind] : at[kind] + height, ...]
            found.append(rows[0, ...] if bare else rows)
            at[kind] += height
        return tuple(found)
