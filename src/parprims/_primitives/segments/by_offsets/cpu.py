"""Reductions, scans and recurrences by offsets by kernels for CPUs: the division of work, and the call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, cast, dtype_name, library
from parprims._dispatch import derivative_rules
from parprims._operators.in_place import is_own
from parprims._primitives.reduce.cpu import functions_of_blocks, way_of
from parprims._primitives.reduce.grouping import block_elements
from parprims._primitives.scan import cpu as scan_cpu
from parprims._primitives.scan.call import Scan
from parprims._primitives.segments.call import Segmented
from parprims._primitives.segments.cuda import as_scan, is_readable

_SHARE = 1 << 14
"""The fewest elements of a share; the segments of a share are one task."""
_ROWS = 256
"""The fewest rows of a block of a segment, a power of two. Threads reduce blocks side by side."""
_COLUMNS = 512
"""Columns of a tile: its states stay in the cache."""


# ---- Plan -------------------------------------------------------------------------------------------------------


def _texts(c: Segmented, r: scan_cpu.Call, first: int) -> tuple[str, ...]:
    """Return the functions that the loops of segments add to a scan; their parameters begin at ``first``."""
    function = _cpu.text.function
    functions = [
        function("offset(inputs, number)", (f"return int64(load(inputs[{c.count}], number))",)),
        function("turned(n, first, behind)", ("return n - behind" if c.reverse else "return first",)),
    ]
    names = ("segments_of", "shares_of", "share_of", "slots_of", "block_of")
    functions += [
        function(f"{name}(numbers)", (f"return numbers[{at}]",)) for at, name in enumerate(names, start=first)
    ]
    if c.reduces:
        assert isinstance(r, Scan)
        last = "element(inputs, at, steps, count - 1), count - 1"
        way = way_of(r.op, [dtype_name(one) for one in r.working])
        functions += [
            function(
                "closed(starts, from_, state)",
                ("return combine(before(starts, from_), state)" if c.starts else "return state",),
            ),
            *functions_of_blocks(r.op, way, last),
        ]
    return *functions, _cpu.text.loops("_primitives/segments/by_offsets/by_offsets_loops.py")


def _plan(xp: Namespace, c: Segmented, r: scan_cpu.Call, hosts: Sequence[np.ndarray[Any, Any]]) -> _cpu.Plan | None:
    """Return the plan for elements and starts, or None if they cannot be viewed as (high, low, n, inner)."""
    count, axis, shape = c.count, c.axis, r.shape
    n, names = shape[axis], [dtype_name(x.dtype) for x in r.arrays]
    dtypes = [dtype_name(one) for one in (r.dtypes if isinstance(r, Scan) else (r.dtype,))]
    result = (*shape[:axis], c.segments if c.reduces else n, *shape[axis + 1 :])
    arrays, outputs = [*zip(hosts, names, strict=True)], tuple([(result, dtype) for dtype in dtypes])
    layout = _cpu.lines_of(shape, axis, arrays[:count], outputs, starts=arrays[count:], reverse=c.reverse)
    if layout is None:
        return None
    kinds = (*names[:count], *dtypes, *names[count:])
    columns, layout = layout.inner > 1, layout.by_low()
    inner, width = layout.inner, min(layout.inner, _COLUMNS)
    lines = layout.high * layout.low * (-(-inner // width) if columns else inner)
    numbers = layout.low, n, inner, width, *_cpu.text.numbers_of(layout.groups)
    wide = width if columns else 1
    shares = max(1, n * wide // _SHARE)
    share = -(-n // shares)
    shares = -(-n // share)
    slots, block = 0, n + 1
    if c.reduces:
        assert isinstance(r, Scan)
        rows = most = block_elements(_cpu.bytes_of(dtype_name(one) for one in r.working))
        while rows > _ROWS and rows * wide > most:
            rows //= 2
        if n >= 2 * rows:
            block = rows
            slots = -(-n // block)
    texts = (
        *scan_cpu.functions(xp, r, c.exclusive, views=layout.groups, steps=layout.steps(columns=columns)),
        *_texts(c, r, len(numbers)),
    )
    nbytes = math.prod(shape) * _cpu.bytes_of(kinds[: count if c.reduces else count + len(dtypes)])
    simple = isinstance(r, Scan) and scan_cpu.waits_for_memory(r, kinds)

    def launch(name: str, tasks: int) -> _cpu.Launch:
        least = _cpu.threads.least_of_elements(tasks, math.prod(shape))
        return _cpu.Launch(name, tasks, _cpu.threads.least_of_bytes(tasks, nbytes) if simple else least)

    ending = ("_of_rows" if c.reduces else "_down") if columns else ""
    launches = [launch(f"{'reduce' if c.reduces else 'scan'}_segments{ending}", lines * shares)]
    if slots:
        launches.insert(0, launch(f"reduce_blocks{ending}", lines * slots))
    scratch = []
    if c.reduces:
        assert isinstance(r, Scan)
        scratch = [(slots * math.prod(shape) // n, dtype_name(dtype)) for dtype in r.working]
    shares_and_blocks = c.segments, shares, share, slots, block
    return _cpu.Plan(
        tuple(launches),
        texts,
        (*names[:count], dtype_name(c.arrays[count].dtype)),
        outputs,
        tuple(scratch),
        (*numbers, *shares_and_blocks),
        starts=tuple(names[count:]),
        captured=scan_cpu.captured(xp, r),
    )


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, c: Segmented) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    return _cpu.refusal(xp, c.arrays, differentiable=True) or scan_cpu.refusal(xp, as_scan(xp, c))


CROSSOVERS = _cpu.crossovers(__name__)
"""Elements from which the kernel is faster: by operator where NumPy reduces segments by itself."""


def kind(c: Segmented, by_numpy: bool) -> str:
    """Return the kind of a call in `CROSSOVERS`: its operator where NumPy reduces segments by itself."""
    return str(c.op.name) if by_numpy else "operator"


def slower(xp: Namespace, c: Segmented, by_numpy: bool) -> str | None:
    """Return the reason why another method is faster, or None."""
    count = math.prod(c.arrays[0].shape)
    reason = _cpu.compiles_in_vain(library(xp), count) if is_own(c.op) else None
    measured_on = "numpy" if by_numpy else library(xp)
    return reason or _cpu.measured(CROSSOVERS, xp, c.arrays).slower(measured_on, kind(c, by_numpy), count)


def prepare(xp: Namespace, c: Segmented, operations: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function of the arrays that computes a call with elements and segments.

    Its derivative is the derivative of the function that ``operations`` returns, in operations of the library.
    """
    run = derivative_rules.by_operations(xp, c.arrays, _prepared(xp, c), operations)
    return (lambda *arrays: run(*arrays)[0]) if c.single else run


def _prepared(xp: Namespace, c: Segmented) -> Callable[..., tuple[Array, ...]]:
    count, dtypes = c.count, c.dtypes
    are_readable = [is_readable(x.dtype, to) for x, to in zip(c.arrays[:count], dtypes, strict=True)]

    def readable(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        xs = [x if same else cast(xp, x, to) for x, to, same in zip(arrays[:count], dtypes, are_readable, strict=True)]
        return (*xs, *arrays[count:])

    run = _runner(xp, c.on(*readable(c.arrays)))
    return run if all(are_readable) else lambda *arrays: run(*readable(arrays))


def _runner(xp: Namespace, c: Segmented) -> Callable[..., tuple[Array, ...]]:
    r, count, axis = as_scan(xp, c), c.count, c.axis
    elements, starts = [_cpu.host(x) for x in c.arrays[:count]], [_cpu.host(x) for x in c.starts]
    readers = [_cpu.reader(x) for x in c.arrays]
    readers[count] = _cpu.reader_in_order(c.arrays[count])
    plan = _plan(xp, c, r, [*elements, *(x if c.own else _cpu.with_axis(x, axis) for x in starts)])
    if plan is None:
        elements, starts = ([_cpu.host(_cpu.in_order(x)) for x in given] for given in (c.arrays[:count], c.starts))
        plan = _plan(xp, c, r, [*elements, *(x if c.own else _cpu.with_axis(x, axis) for x in starts)])
        readers = [_cpu.flat_in_order] * len(readers)
    elif _cpu.host(c.arrays[count]).flags.c_contiguous:
        return _cpu.runner(plan, c.arrays)
    assert plan is not None
    return _cpu.runner(plan, c.arrays, readers)
