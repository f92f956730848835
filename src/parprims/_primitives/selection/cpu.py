"""Selections by the kernels that sort on a CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from parprims._core.arrays import Array, Namespace, library, library_title
from parprims._dispatch.composite import Compose, Parts, by_parts
from parprims._dispatch.dispatch import Method
from parprims._primitives.selection import numpy_routines
from parprims._primitives.selection.call import Selection
from parprims._primitives.sort import cpu as sort_cpu


def by_sort(compose: Compose, parts: Parts) -> Method:
    """Return the kernel of a selection, which sorts. It is slower than a library that finds true elements directly."""

    def slower(xp: Namespace, c: Selection) -> str | None:
        if library(xp) != "other":
            return f"{library_title(xp)} is faster: it selects without a sort"
        return None if sorts.slower is None else sorts.slower(xp, c)

    sorts = by_parts("kernel", compose, parts)
    return dataclasses.replace(sorts, slower=slower)


def runs_in_order(sorts: Method) -> Method:
    """Return the kernel of `unique`: the method ``sorts`` of sorts by kernels, or NumPy on elements sorted by one."""

    def prepare(xp: Namespace, c: Selection) -> Callable[..., tuple[Array, ...]]:
        run: Callable[..., tuple[Array, ...]] = numpy_routines.prepare_unique(xp, c, sort_cpu) or sorts.prepare(xp, c)
        return run

    return dataclasses.replace(sorts, prepare=prepare)
