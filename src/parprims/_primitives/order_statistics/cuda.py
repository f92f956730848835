"""The CUDA kernel of order statistics: the division of its work, and the launch of a call."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, along, dtype_name, is_jax, mode, move_axis
from parprims._cuda import Launch, Numbers, Parameter, Plan, Pointer, Struct
from parprims._dispatch.composite import gathered
from parprims._dispatch.derivative_rules import asked_by_torch, constant
from parprims._dispatch.dispatch import Inside
from parprims._dispatch.watch import unwatched
from parprims._operators.languages import C_TYPES
from parprims._primitives.order_statistics.array import top_by_library
from parprims._primitives.order_statistics.call import Quantiles, Selection
from parprims._primitives.order_statistics.quantiles import between, rows_of
from parprims._primitives.sort import cuda as sort_cuda
from parprims._primitives.sort.call import Sorting, index_dtype, moved
from parprims._primitives.sort.cuda import Specialisation
from parprims._primitives.sort.public import sort

# ---- Tuning -----------------------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """A block that finds the first elements of a row, with the limits of the rows it suits."""

    key_bytes: int
    """The most bytes of a key."""
    longest: int
    """The most elements of a row."""
    wanted: int
    """The most elements to find in a row."""
    many: bool
    """Whether it is only for more rows than there are blocks at once."""
    threads: int
    items: int
    """The elements of a thread in a batch."""
    capacity: int
    """The number of candidates that fit."""
    resident: int
    """The blocks that are to fit on a multiprocessor."""


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """The sizes that the kernel uses on devices of one compute capability. Results do not depend on them.

    Parameters
    ----------
    least : int
        Shorter rows are sorted whole.
    most : int
        The most elements to find in a row; for more, rows are sorted whole.
    tiles : tuple of Tile
        The first tile that suits the rows is taken.
    digits : tuple of (bytes, items)
        By the bytes of a key, the elements that a thread loads at once where it counts digits.
    counting : int
        The threads of a block that counts digits. Two blocks are to fit on a multiprocessor.
    several : int
        The most places of sorted rows that are found one after another; for more, rows are sorted whole.
    blocks : int
        Rows are cut into parts while there are fewer blocks than this, times those of a tile on a multiprocessor.
    counting_blocks : int
        Where digits are counted, rows are cut into parts while there are fewer blocks than this.
    part : int
        The fewest elements of a part.
    """

    least: int
    most: int
    tiles: tuple[Tile, ...]
    digits: tuple[tuple[int, int], ...]
    counting: int
    several: int
    blocks: int
    counting_blocks: int
    part: int

    scaled = ("blocks", "counting_blocks")

    def fitted(self, measured: _cuda.Model, device: _cuda.Model) -> Tuning:
        """Return the entry for another device, with blocks that have room for the candidates."""
        tiles = []
        for tile in self.tiles:
            while tile.capacity * _candidate_bytes(tile.key_bytes) > device.room(1):
                tile = tile._replace(capacity=tile.capacity // 2)
            tiles.append(tile._replace(resident=device.resident(tile.resident, tile.threads)))
        return dataclasses.replace(super().fitted(measured, device), tiles=tuple(tiles))


def _candidate_bytes(key_bytes: int) -> int:
    """Return the size of a key and its position in shared memory."""
    return 8 if key_bytes <= 4 else 16


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` gives the entry of any other device."""

_DIGIT = 11
"""BITS in quantile.cu."""

_LONGEST = 1 << 31
"""The most elements of a part, which numbers of 32 bits count."""

# ---- Plans ------------------------------------------------------------------------------------------------------


def plan(
    dtype: str, index: str, shape: tuple[int, ...], k: int, tuning: Tuning | None = None, *, descending: bool = True
) -> Plan:
    """Return the launch that finds k elements along the last axis of a contiguous array, and their positions."""
    sizes, numbers = tuning or TUNING[90], Numbers()
    spec = Specialisation(dtype, descending=descending, keyed=True, values=(), index=index)
    n, rows = shape[-1], math.prod(shape[:-1])
    fitting = (
        tile for tile in sizes.tiles if spec.key_bytes <= tile.key_bytes and n <= tile.longest and k <= tile.wanted
    )
    threads, items, capacity, resident = next(tile for tile in fitting if rows > sizes.blocks or not tile.many)[4:]
    blocks = sizes.blocks * resident
    parts = max(1, min(blocks // rows, n // max(sizes.part, 4 * k)), -(-n // _LONGEST))
    length = -(-n // (parts * threads * items)) * threads * items  # of whole batches, which begin all loads at once
    parts = -(-n // length)
    results = (*shape[:-1], k)
    launch = Launch(
        source=spec.source("_primitives/order_statistics/top_k.cu"),
        template="top::find_top",
        arguments=(threads, items, capacity, "Order", C_TYPES[index]),
        parameters=(
            Pointer("in0", f"const {spec.word}"),
            Pointer("out0", spec.word),
            Pointer("out1", C_TYPES[index]),
            Pointer("scratch", "unsigned") if parts > 1 else None,
            Pointer("zeroed", "unsigned") if parts > 1 else None,
            numbers("n", n),
            numbers("k", k),
            numbers("parts", parts),
            numbers("length", length),
        ),
        grid=rows * parts,
        block=threads,
        shared_bytes=capacity * _candidate_bytes(spec.key_bytes),
        resident_blocks=resident,
    )
    return Plan(
        (launch,),
        1,
        ((results, dtype), (results, index)),
        numbers.all(),
        zeroed_bytes=4 * rows if parts > 1 else 0,
        scratch_bytes=16 * rows * parts * k if parts > 1 else 0,
    )


def finds_places(n: int, places: int, tuning: Tuning | None = None) -> bool:
    """Return whether the kernel, not a sort, finds this many order statistics of rows of length n."""
    sizes = tuning or TUNING[90]
    return n >= sizes.least and places <= sizes.several


def places_plan(dtype: str, shape: tuple[int, ...], places: tuple[int, ...], tuning: Tuning | None = None) -> Plan:
    """Return the launches that find order statistics of the rows of a contiguous array.

    For each place they find the element there in the sorted row, the next element, and the last.
    """
    sizes, numbers = tuning or TUNING[90], Numbers()
    spec = Specialisation(dtype, descending=False, keyed=True, values=(), index=None)
    n, rows, key_bytes = shape[-1], math.prod(shape[:-1]), spec.key_bytes
    items = next(entry[1] for entry in sizes.digits if key_bytes <= entry[0])
    parts = max(1, min(sizes.counting_blocks // rows, n // sizes.part), -(-n // _LONGEST))
    alone = parts == 1
    source, tile = spec.source("_primitives/order_statistics/quantile.cu"), (sizes.counting, items)
    arrays = Pointer("in0", f"const {spec.word}"), Pointer("out0", spec.word)
    length, columns = numbers("n", n), numbers("columns", 3 * len(places))
    launches: list[Launch] = []
    between = numbers("parts", parts)
    memory = Pointer("zeroed"), Pointer("scratch", "quantiles::Found")
    shifts = [*range(spec.bits - _DIGIT, 0, -_DIGIT), 0]
    cuts = [
        (numbers("shift", shift), numbers("bits", above - shift))
        for above, shift in zip((spec.bits, *shifts), shifts, strict=False)
    ]

    def launch(name: str, arguments: tuple[Any, ...], parameters: tuple[Parameter, ...], grid: int) -> None:
        template = f"quantiles::{name}"
        launches.append(
            Launch(source, template, arguments, parameters, grid=grid, block=sizes.counting, resident_blocks=2)
        )

    for index, place in enumerate(places):
        where = numbers("place", place), numbers("column", 3 * index), columns
        if alone:
            launch("select_alone", (*tile, "Order"), (*arrays, length, *where), rows)
            continue
        for turn, (shift, bits) in enumerate(cuts):
            arguments = *tile, turn == 0, turn + 1 == len(cuts), "Order"
            launch("select_digit", arguments, (*arrays, *memory, length, between, shift, bits, *where), rows * parts)
    shared_bytes = 2 * max(4, key_bytes) + 8 + 8 * 2**_DIGIT
    return Plan(
        tuple(launches),
        1,
        (((*shape[:-1], 3 * len(places)), dtype),),
        numbers.all(),
        zeroed_bytes=0 if alone else rows * shared_bytes,
        scratch_bytes=0 if alone else rows * 16,
    )


_MOST = 32
"""The most quantiles of a launch: all are compiled in."""


def between_plan(
    dtype: str, length: int, rows: int, steps: tuple[tuple[int, int, float], ...], result: tuple[tuple[int, ...], str]
) -> Plan:
    """Return the launch that interpolates between elements of contiguous rows of a length (see `Quantiles`)."""
    numbers, threads = Numbers(), 128
    bits = np.array([part for *_, part in steps]).view(np.int64)
    each = [
        Struct(numbers("low", low), numbers("high", high), numbers("part", int(part)))
        for (low, high, _), part in zip(steps, bits, strict=True)
    ]
    launch = Launch(
        source=_cuda.device_source("_primitives/order_statistics/interpolate.cu"),
        template="between::interpolate",
        arguments=(C_TYPES[dtype], C_TYPES[result[1]], len(steps)),
        parameters=(
            Pointer("in0", f"const {C_TYPES[dtype]}"),
            Pointer("out0", C_TYPES[result[1]]),
            numbers("rows", rows),
            numbers("length", length),
            Struct(Struct(*each), type=f"between::Steps<{len(steps)}>"),
        ),
        grid=-(-rows // threads),
        block=threads,
    )
    return Plan((launch,), 1, (result,), numbers.all())


# ---- Calls ------------------------------------------------------------------------------------------------------

Run = Callable[[Array], tuple[Array, Array]]


def top_refusal(xp: Namespace, c: Selection) -> str | None:
    """Return the sentence why the kernel cannot find the k first elements, or None."""
    return _cuda.refusal(xp, tuple(map(constant, c.arrays)) if asked_by_torch(c.arrays) else c.arrays)


def finds_top(c: Selection) -> bool:
    """Return whether the kernel, not a sort, finds the k first elements."""
    (x,), (k,), sizes = c.arrays, c.places, TUNING[90]
    n = x.shape[c.axis]
    return 0 not in x.shape and n >= sizes.least and 0 < k <= min(n, sizes.most)


def prepare_top(xp: Namespace, c: Selection) -> Callable[..., tuple[Array, Array]]:
    """Return a function that finds the k first elements by the kernel of a GPU."""
    (x,), (k,), last = c.arrays, c.places, c.arrays[0].ndim - 1
    carried = asked_by_torch((x,))
    rows = _rows_of(xp, constant(x) if carried else x, c.axis)
    bare = dataclasses.replace(c, arrays=(None,), axis=-1, key=None)

    def otherwise(x: Array) -> tuple[Array, Array]:
        with unwatched():
            return top_by_library(xp, bare.on(x), "native")

    run = _finder(xp, rows, k, descending=c.descending, otherwise=otherwise)

    def selected(x: Array) -> tuple[Array, Array]:
        values, index = run(_rows_of(xp, constant(x) if carried else x, c.axis))
        index = index if c.axis == last else move_axis(xp, index, -1, c.axis)
        if carried:
            return moved(xp, x, lambda array: gathered(xp, array, index, c.axis)), index
        return values if c.axis == last else move_axis(xp, values, -1, c.axis), index

    return selected


def _rows_of(xp: Namespace, x: Array, axis: int) -> Array:
    """Return an array as kernels read it: contiguous, the axis last."""
    return _cuda.contiguous(xp, _cuda.plain(xp, x if axis == x.ndim - 1 else move_axis(xp, x, axis, -1)))


def _finder(xp: Namespace, x: Array, k: int, *, descending: bool, otherwise: Run) -> Run:
    """Return a function of contiguous arrays like x that finds k elements along the last axis, and their positions.

    ``otherwise`` replaces the kernel in a JAX program without a CUDA device, for arrays of any dimensions.
    """
    dtype, index, shape = dtype_name(x.dtype), dtype_name(index_dtype(xp)), tuple(x.shape)

    def made() -> Plan:
        return plan(dtype, index, shape, k, tuning=_cuda.tuned_for(TUNING, xp, x), descending=descending)

    def batched(x: Array) -> tuple[Array, ...]:
        return _finder(xp, x, k, descending=descending, otherwise=otherwise)(x)

    key = ("top_k", mode(xp), dtype, index, shape, k, descending)
    return _cuda.ready(xp, x, key, made, in_program=lambda: (otherwise, batched))


def prepare_places(
    xp: Namespace, x: Array, places: tuple[int, ...], otherwise: Callable[[Array], tuple[Array]]
) -> Callable[[Array], tuple[Array]]:
    """Return a function of contiguous arrays like x that runs `places_plan`; ``otherwise`` as for `_finder`."""
    dtype, shape = dtype_name(x.dtype), tuple(x.shape)

    def made() -> Plan:
        return places_plan(dtype, shape, places, _cuda.tuned_for(TUNING, xp, x))

    def batched(x: Array) -> tuple[Array, ...]:
        return prepare_places(xp, x, places, otherwise)(x)

    return _cuda.ready(xp, x, ("places", mode(xp), dtype, shape, places), made, in_program=lambda: (otherwise, batched))


_WHOLE = 1 << 14
"""The longest lines that are sorted whole; longer lines are searched by chunks (see `array.top`)."""


def prepare_top_by_sort(xp: Namespace, c: Selection) -> Callable[[Array], tuple[Array, ...]] | None:
    """Return a function that sorts short lines by the kernel, with their indices, and keeps the first k; or None."""
    (x,), (k,), axis = c.arrays, c.places, c.axis
    if is_jax(xp) or 0 in x.shape or k == 0 or x.shape[axis] > _WHOLE or asked_by_torch((x,)):
        return None
    call = Sorting(arrays=(x,), axis=axis, descending=c.descending, stable=True, keyed=True, indices=True)
    order, first = sort_cuda.prepare(xp, call), along(axis, 0, k)
    return lambda x: tuple([xp.concat([y[first]], axis=axis) for y in order(x)])  # no views of whole lines


def prepare_between(xp: Namespace, c: Quantiles, x: Array, length: int) -> Callable[[Array], Array]:
    """Return a function that computes `between` of contiguous rows of a length, of the dtype and on the device of x.

    It launches a kernel for arrays of CuPy and PyTorch. In a program of JAX, XLA fuses the operations to one kernel.
    """
    if is_jax(xp) or len(c.steps) > _MOST:
        return functools.partial(between, xp, c)
    ((shape, dtype),) = c.results
    names, rows = (dtype_name(x.dtype), dtype_name(dtype)), math.prod(shape) // len(c.steps)

    def made() -> Plan:
        return between_plan(names[0], length, rows, c.steps, result=(shape, names[1]))

    return _cuda.only(_cuda.ready(xp, x, ("between", *names, length, shape, c.steps), made, in_program=_no_program))


def _no_program() -> tuple[_cuda.Run, _cuda.Run]:
    raise NotImplementedError


def quantiles_refusal(xp: Namespace, c: Quantiles) -> str | None:
    """Return the sentence why the kernel cannot find quantiles, or None."""
    return _cuda.refusal(xp, c.arrays)


def finds_quantiles(c: Quantiles) -> bool:
    """Return whether the kernel, not a sort, finds the elements; PyTorch's derivatives need the sort."""
    (x,) = c.arrays
    if 0 in x.shape or asked_by_torch((x,)):
        return False
    return finds_places(math.prod([x.shape[axis] for axis in c.axes]), len(c.lows))


def prepare_quantiles(xp: Namespace, c: Quantiles) -> Callable[..., Array]:
    """Return a function that finds quantiles by the kernel of a GPU."""
    lows, bare = c.lows, c.on(None)
    steps = tuple([(3 * lows.index(low), 3 * lows.index(low) + (high > low), part) for low, high, part in c.steps])
    between_places = dataclasses.replace(bare, steps=steps, key=None)

    def laid_out(x: Array) -> Array:
        return _cuda.contiguous(xp, _cuda.plain(xp, rows_of(xp, bare.on(x))))

    def otherwise(rows: Array) -> tuple[Array]:
        with unwatched():
            ordered, last = sort(rows, method="native"), rows.shape[-1] - 1
        taken = [ordered[..., place] for low in lows for place in (low, min(low + 1, last), last)]
        return (xp.stack(taken, axis=-1),)

    run = prepare_places(xp, laid_out(c.arrays[0]), lows, otherwise)
    finish = prepare_between(xp, between_places, c.arrays[0], 3 * len(lows))
    return lambda x: finish(run(laid_out(x))[0])


def prepare_quantiles_by_sort(xp: Namespace, c: Quantiles) -> Callable[..., Array] | None:
    """Return a function that sorts by a kernel and interpolates by another, or None."""
    (x,), bare = c.arrays, c.on(None)
    if is_jax(xp) or 0 in x.shape or asked_by_torch((x,)):
        return None
    finish = prepare_between(xp, bare, x, math.prod([x.shape[axis] for axis in c.axes]))

    def run(x: Array) -> Array:
        with unwatched():
            return finish(sort(rows_of(xp, bare.on(x)), method=Inside("kernel")))

    return run


# ---- Kernels to compile without a GPU ---------------------------------------------------------------------------


def cases() -> Iterator[tuple[str, Plan]]:
    """Yield the name and the plan of every kind of kernel."""
    every = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    for dtype in (*every, "float16", "bfloat16", "float32", "float64"):
        yield f"top {dtype}", plan(dtype, "int64", (1 << 28,), 100)
        if dtype in ("uint8", "int32", "float16", "float32", "float64"):
            for descending in (True, False):
                yield f"top {dtype} short", plan(dtype, "int64", (500, 1000), 10, descending=descending)
                yield f"top {dtype}", plan(dtype, "int32", (128, 1 << 16), 64, descending=descending)
        yield f"top {dtype}", plan(dtype, "int64", (1000, 1 << 16), 100)
        if dtype in ("float32", "float64"):
            for rows, k in ((1000, 10), (1000, 200), (1000, 1000), (1, 1000)):
                yield f"top {dtype}", plan(dtype, "int64", (rows, 1 << 16), k)
        for shape in ((1000, 1 << 16), (1 << 28,)):
            yield f"places {dtype}", places_plan(dtype, shape, (100,))
        result = dtype if "float" in dtype else "float64"
        for steps in (((0, 1, 0.5),), ((0, 1, 0.5), (3, 3, 0.0))):
            yield f"between {dtype}", between_plan(dtype, 6, 1000, steps, result=((len(steps), 1000), result))
