"""Histograms by kernels for CPUs: the text for dtypes, the plan, and the prepared call."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, compute_dtype, dtype_name, library
from parprims._core.memo import Memo
from parprims._core.signature import signature
from parprims._cpu.language import loaded
from parprims._dispatch.dispatch import directly
from parprims._libraries.numpy_bridge import quietly
from parprims._primitives.histogram.array import array, finished
from parprims._primitives.histogram.call import Histogram

_BLOCK, _BLOCKS = 1 << 15, 64
"""The fewest elements of a block, and the most blocks."""
_EACH = 4
"""The fewest elements of a block for each bin, if there is more than one block."""
_LANES, _NARROW = 4, 1 << 11
"""The number of tables for the counts of neighbouring elements, and the most bins with several tables."""
_ENDS = 6
"""The index of the bits of two ends among the numbers of a plan."""


# ---- Specialisation ---------------------------------------------------------------------------------------------


def texts_of(x: str, edge: str, working: str, *, given: str | None, weight: str | None) -> tuple[str, ...]:
    """Return the functions that the loops call; ``given`` is the dtype of the caller's edges."""
    text, language = _cpu.text, _cpu.NUMBA
    element = language.cast(loaded(x, "load(inputs[0], i)"), x, edge)
    number = _cpu.register_type(edge)
    first = f"{number}(as_float64(uint64(numbers[{_ENDS} + i])))"
    if given is not None:
        first = language.cast(loaded(given, "load(inputs[1], i)"), given, edge)
    added = f"{working}(1)"
    if weight is not None:
        read = f"load(inputs[{1 if given is None else 2}], i)"
        added = language.cast(loaded(weight, read), weight, working)
    return (
        text.function("element(inputs, i)", (f"return {element}",)),
        text.function("weight(inputs, i)", (f"return {added}",)),
        text.function("given(inputs, numbers, i)", (f"return {first}",)),
        text.function("edge_type(x)", (f"return {number}(x)",)),
        text.function("nan_edge()", (f"return {number}({'nan' if 'float' in edge else '0'})",)),
        text.function("previous(x)", (f"return np.nextafter(x, {number}(-inf))" if "float" in edge else "return x",)),
        text.function("zero_sum()", (f"return {working}(0)",)),
        text.function("sums(count)", (f"return np.empty(count, np.{working})",)),
        text.function("edges(count)", (f"return np.empty(count, np.{number})",)),
        text.loops("_primitives/histogram/histogram_loops.py"),
    )


# ---- Plan -------------------------------------------------------------------------------------------------------


def numbers_of(n: int, bins: int, *, even: bool, ends: tuple[float, float] | None) -> tuple[int, ...]:
    """Return the numbers of a plan for n elements, as the loops name them."""
    blocks = max(1, min(_BLOCKS, -(-n // _BLOCK), n // (_EACH * bins)))
    size = -(-n // blocks)
    kind = 0 if not even else 1 if ends is not None else 2
    bits = [int(one) for one in np.array(ends or (0.0, 0.0), np.float64).view(np.int64)]
    return n, bins, -(-n // size), size, kind, _LANES if bins <= _NARROW else 1, *bits


def _plan(xp: Namespace, h: Histogram, names: list[str], n: int) -> _cpu.Plan:
    """Return the plan for n elements and inputs of these dtypes: elements, the caller's edges, weights."""
    bins, edge = h.bins, dtype_name(h.edges)
    working = dtype_name(compute_dtype(xp, h.result))
    numbers = numbers_of(n, bins, even=h.even, ends=h.ends)
    _, _, blocks, _, even, *_ = numbers
    launches = [_cpu.Launch("find_ends", blocks)] if even == 2 else []
    launches += [_cpu.Launch("make_edges", 1), _cpu.Launch("count_elements", blocks)]
    if blocks > 1:
        launches.append(_cpu.Launch("add_blocks", -(-bins // 1024), 16))
    return _cpu.Plan(
        tuple(launches),
        texts_of(names[0], edge, working, given=None if h.even else names[1], weight=names[-1] if h.weighted else None),
        inputs=tuple(names),
        outputs=(((bins,), working), ((bins + 1,), edge)),
        scratch=((blocks * bins if blocks > 1 else 0, working), (2 * blocks, edge), (2, "float64")),
        numbers=numbers,
    )


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, h: Histogram) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    return _cpu.unknown_dtype(h.arrays) or _cpu.refusal(xp, h.arrays)


CROSSOVERS = _cpu.crossovers(__name__)
"""Elements from which kernels save 10 us over the library's own routine."""


def slower(xp: Namespace, h: Histogram) -> str | None:
    """Return the reason why another method is faster, or None."""
    kind = "even" if h.even else "weights between edges" if h.weighted else "edges"
    return _cpu.measured(CROSSOVERS, xp, h.arrays).slower(library(xp), kind, math.prod(h.arrays[0].shape))


_runs: Memo[Callable[..., tuple[Array, Array]]] = Memo()


def prepare(xp: Namespace, h: Histogram) -> Callable[..., tuple[Array, Array]]:
    """Return a function that computes the counts and the edges by the kernels."""
    if 0 in h.arrays[0].shape:
        return quietly(directly(array)(xp, h))
    run, bare = _runner(xp, h), h.on(*(None,) * len(h.arrays))
    if not h.density and compute_dtype(xp, h.result) == h.result:
        return run
    return quietly(lambda *arrays: finished(xp, bare, *run(*arrays)))


def _runner(xp: Namespace, h: Histogram) -> Callable[..., tuple[Array, Array]]:
    """Return a function of the arrays of a call with elements: the counts, in the dtype of sums, and the edges.

    It is kept under the signature of the arrays, because a call with edges has no key in the dispatch, so that it comes
    here every time.
    """
    layouts = signature(h.arrays, gradient=True)
    if layouts is None:
        return _prepared(xp, h)
    key = (layouts, h.bins, h.even, repr(h.ends), h.weighted, dtype_name(h.edges), dtype_name(h.result))
    return _runs.get(key) or _runs.keep(key, _prepared(xp, h))


def _prepared(xp: Namespace, h: Histogram) -> Callable[..., tuple[Array, Array]]:
    weighted = int(h.weighted)
    x, *others = h.arrays
    order = [x, *others[weighted:], *others[:weighted]]

    plan = _plan(xp, h, [dtype_name(one.dtype) for one in order], math.prod(x.shape))
    run = _cpu.runner(plan, order, [_cpu.reader_in_order(one) for one in order])

    if not weighted:
        return run

    def counted(x: Array, *others: Array) -> tuple[Array, Array]:
        counts, edges = run(x, *others[weighted:], *others[:weighted])
        return counts, edges

    return counted
