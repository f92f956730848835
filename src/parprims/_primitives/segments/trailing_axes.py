"""Kernels of segments on elements of small matrices and vectors: each of their numbers is a component."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import Array, Namespace, is_jax
from parprims._core.programs import one_program
from parprims._dispatch.derivative_rules import detached
from parprims._dispatch.dispatch import Method
from parprims._operators.in_place import is_own
from parprims._primitives.scan.trailing_axes.parts import Divided, Operations, Parts, or_components, parts_of
from parprims._primitives.segments.call import Segmented


def _of_segments(xp: Namespace, c: Segmented) -> Divided | str | None:
    """Return the call on components, or the reason why there is none; None for elements without trailing axes."""
    if not is_own(c.op) or c.operation == "recurrence":
        return None
    shapes = c.shapes or [c.shape] * c.count
    parts = parts_of(shapes, c.axis, differ=c.shapes is not None)
    if not isinstance(parts, Parts):
        return parts
    dtypes, lead = parts.repeated(c.dtypes), c.shape[: c.axis]
    lengths = [shape[c.axis] for shape, _ in c.results[:: c.count]]
    return parts, dataclasses.replace(
        c,
        arrays=_split(parts, c, tuple(map(detached, c.arrays))),
        key=None,
        complete=None,
        results=tuple([((*lead, length), dtype) for length in lengths for dtype in dtypes]),
        single=False,
        count=parts.count,
        op=parts.operator(xp, c.op, parts.identity(c.op)),
        operation=parts.key(c.operation),
        dtypes=dtypes,
        shapes=None,
    )


def _split(parts: Parts, c: Segmented, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    starts = arrays[c.behind :]
    return (*parts.split(arrays[: c.count]), *arrays[c.count : c.behind], *(parts.split(starts) if starts else ()))


def _run(xp: Namespace, c: Segmented, parts: Parts, compute: Callable[..., Any]) -> Callable[..., tuple[Array, ...]]:
    """Return a function of the arrays of a call; ``compute`` takes and returns components."""
    bare = c.on(*(None,) * len(c.arrays))

    def split(*arrays: Array) -> tuple[Array, ...]:
        return _split(parts, bare, arrays)

    def joined(*found: Array) -> tuple[Array, ...]:
        halves = [found[at : at + parts.count] for at in range(0, len(found), parts.count)]
        return tuple([x for half in halves for x in parts.joined(xp, half)])

    if is_jax(xp):  # single operations of JAX take long
        split, joined = one_program(split), one_program(joined)

    def run(*arrays: Array) -> tuple[Array, ...]:
        found = compute(*split(*arrays))
        return joined(*(found if isinstance(found, tuple) else (found,)))

    return run


def of_segments(method: Method, operations: Operations) -> Method:
    """Return a kernel method of segments that also takes elements of small matrices (see `or_components`)."""
    return or_components(method, _of_segments, _run, operations)
