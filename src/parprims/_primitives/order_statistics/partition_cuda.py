"""The CUDA kernels of partitions around an element: the division of their work, and the launches of a call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, dtype_name, mode, move_axis
from parprims._cuda import Launch, Numbers, Plan, Pointer
from parprims._dispatch.composite import gathered
from parprims._dispatch.derivative_rules import asked_by_torch
from parprims._dispatch.watch import unwatched
from parprims._operators.languages import C_TYPES
from parprims._primitives.order_statistics import cuda
from parprims._primitives.order_statistics.array import fixed
from parprims._primitives.order_statistics.call import Selection
from parprims._primitives.sort.call import ascending_integers, index_dtype, moved
from parprims._primitives.sort.cuda import Specialisation
from parprims._primitives.sort.public import argsort, sort

# ---- Tuning -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """The sizes that the kernels use on devices of one compute capability. Results do not depend on them."""

    least: int
    """Shorter rows are sorted whole."""
    threads: int
    """The threads of a block."""
    items: tuple[tuple[int, int], ...]
    """By the bytes of a key, the elements of a thread."""
    resident: int
    """The blocks that are to fit on a multiprocessor."""
    scanning: int
    """The threads of a block that goes through the tiles of a row."""


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` gives the entry of any other device."""

_COUNTS_BYTES = 16
"""sizeof(Counts) in partition.cu."""


def serves(n: int, places: tuple[int, ...]) -> bool:
    """Return whether the kernels partition rows of length n; otherwise rows are sorted."""
    return n >= TUNING[90].least and len(set(places)) == 1


# ---- Plans ------------------------------------------------------------------------------------------------------


def plan(dtype: str, index: str | None, shape: tuple[int, ...], tuning: Tuning) -> Plan:
    """Return the launches that partition rows around pivots, the first output of `places_plan` for one place.

    ``index`` is the dtype of positions, or None for the elements themselves.
    """
    spec, numbers, threads = (
        Specialisation(dtype, descending=False, keyed=True, values=(), index=None),
        Numbers(),
        tuning.threads,
    )
    n, rows = shape[-1], math.prod(shape[:-1])
    items = next(entry[1] for entry in tuning.items if spec.key_bytes <= entry[0])
    tiles = -(-n // (threads * items))
    source = spec.source("_primitives/order_statistics/partition.cu")
    inputs = Pointer("in0", f"const {spec.word}"), Pointer("in1", f"const {spec.word}")
    counts = Pointer("scratch", "partitions::Counts")
    sizes = numbers("columns", 3), numbers("n", n), numbers("tiles", tiles)
    result = C_TYPES[index] if index else spec.word
    tile = threads, items
    launches = (
        Launch(
            source,
            "partitions::count_parts",
            (*tile, "Order"),
            (*inputs, counts, *sizes),
            grid=rows * tiles,
            block=threads,
        ),
        Launch(
            source, "partitions::scan_parts", (tuning.scanning,), (counts, sizes[2]), grid=rows, block=tuning.scanning
        ),
        Launch(
            source,
            "partitions::move_parts",
            (*tile, index is not None, "Order", result),
            (*inputs, counts, Pointer("out0", result), *sizes),
            grid=rows * tiles,
            block=threads,
            resident_blocks=tuning.resident,
        ),
    )
    return Plan(
        launches, 2, ((shape, index or dtype),), numbers.all(), scratch_bytes=_COUNTS_BYTES * rows * (tiles + 1)
    )


# ---- Calls ------------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, c: Selection) -> str | None:
    """Return the sentence why the kernels cannot serve a call, or None."""
    return _cuda.refusal(xp, c.arrays)


def partitions(c: Selection) -> bool:
    """Return whether the kernels, not a sort, partition: long rows, around a single place."""
    (x,) = c.arrays
    return 0 not in x.shape and not asked_by_torch((x,)) and serves(x.shape[c.axis], c.places)


def prepare(indices: bool, xp: Namespace, c: Selection) -> Callable[..., Array]:
    """Return a function that partitions, or finds the indices, around the element at the place of a call."""
    last, place = c.arrays[0].ndim - 1, c.places[0]

    def pivots(rows: Array) -> tuple[Array]:
        with unwatched():
            ordered = sort(rows, method="native")
        taken = [ordered[..., position] for position in (place, min(place + 1, rows.shape[-1] - 1), rows.shape[-1] - 1)]
        return (xp.stack(taken, axis=-1),)

    def otherwise(rows: Array, ordered: Array) -> tuple[Array]:
        keys, pivot = (ascending_integers(xp, fixed(x)) for x in (rows, ordered[..., :1]))
        parts = xp.astype(keys > pivot, xp.uint8) + xp.astype(keys >= pivot, xp.uint8)
        with unwatched():
            order = argsort(parts, method="native")
        return (order if indices else moved(xp, rows, lambda array: gathered(xp, array, order, rows.ndim - 1)),)

    def laid_out(x: Array) -> Array:
        x = _cuda.plain(xp, fixed(x) if indices else x)
        return _cuda.contiguous(xp, x if c.axis == last else move_axis(xp, x, c.axis, -1))

    rows = laid_out(c.arrays[0])
    find = cuda.prepare_places(xp, fixed(rows), (place,), pivots)
    part = _parter(xp, rows, indices, otherwise)

    def run(x: Array) -> Array:
        rows = laid_out(x)
        (y,) = part(rows, find(fixed(rows))[0])
        return y if c.axis == last else move_axis(xp, y, -1, c.axis)

    return run


def _parter(
    xp: Namespace, x: Array, places: bool, otherwise: Callable[[Array, Array], tuple[Array]]
) -> Callable[[Array, Array], tuple[Array]]:
    """Return a function that partitions contiguous arrays like x along their last axis, given the outputs of
    `places_plan`.

    ``places`` asks for the indices of elements instead of elements. ``otherwise`` replaces the kernel in a JAX program
    without a CUDA device. It has the order of the kernel, because the derivative is taken through it.
    """
    dtype, shape = dtype_name(x.dtype), tuple(x.shape)
    index = dtype_name(index_dtype(xp)) if places else None

    def made() -> Plan:
        return plan(dtype, index, shape, _cuda.tuned_for(TUNING, xp, x))

    def batched(x: Array, ordered: Array) -> tuple[Array, ...]:
        size = max(x.shape[0], ordered.shape[0])
        x = xp.broadcast_to(x, (size, *x.shape[1:]))
        ordered = xp.broadcast_to(ordered, (size, *ordered.shape[1:]))
        return _parter(xp, x, places, otherwise)(x, ordered)

    key = ("partition", mode(xp), dtype, index, shape)
    return _cuda.ready(xp, x, key, made, in_program=lambda: (otherwise, batched))


# ---- Kernels to compile without a GPU ---------------------------------------------------------------------------


def cases() -> Iterator[tuple[str, Plan]]:
    """Yield the name and the plan of every kind of partition."""
    every = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    for dtype in (*every, "float16", "bfloat16", "float32", "float64"):
        for index in (None, "int32", "int64"):
            yield f"partition {dtype}", plan(dtype, index, (1 << 28,), TUNING[90])
