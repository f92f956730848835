"""The CUDA kernels of sorts of segments: the division of their work, and the launches of a call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, cast, dtype_kind, dtype_name, mode, move_axis
from parprims._cuda import Launch, Numbers, Parameter, Plan, Pointer, Struct
from parprims._operators.languages import C_TYPES
from parprims._primitives.segments.call import Segmented
from parprims._primitives.sort.call import index_dtype
from parprims._primitives.sort.cuda import WORDS, Specialisation

# ---- Tuning -----------------------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """The tile that a block sorts or merges, for keys of at most ``key_bytes``."""

    key_bytes: int
    threads: int
    items: int
    """The most elements of a thread."""
    sorting: int
    """The sorting blocks that must fit on a multiprocessor."""
    merging: int
    """The merging blocks that must fit on a multiprocessor."""


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """The sizes that the kernels use on devices of one compute capability. Results do not depend on them."""

    tiles: tuple[Tile, ...]
    """By the bytes of a key."""
    blocks: int
    """The most merging blocks."""
    places: int
    """The most keys of a row that are numbered by 32-bit integers."""

    scaled = ("blocks",)

    def fitted(self, measured: _cuda.Model, device: _cuda.Model) -> Tuning:
        """Return the entry for another device, on which two blocks with keys and their positions must fit."""
        tiles = []
        for tile in self.tiles:
            sorting, merging = (device.resident(blocks, tile.threads) for blocks in (tile.sorting, tile.merging))
            while _shared_bytes(tile.key_bytes, tile.threads, tile.items) > device.room():
                tile = tile._replace(items=tile.items - 1)
            tiles.append(tile._replace(sorting=sorting, merging=merging))
        return dataclasses.replace(super().fitted(measured, device), tiles=tuple(tiles))


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` returns the entry of other devices."""

_PIECES_BYTES = 40
"""sizeof(Pieces) in sort_segments.cu."""


# ---- Plans ------------------------------------------------------------------------------------------------------


def _shared_bytes(key_bytes: int, threads: int, items: int) -> int:
    """Return the shared memory of a sorting block: keys and their positions, counts of each warp, and flags of ends."""
    size = threads * items
    return size * (key_bytes + 2) + 4 * (256 * (threads // 32) + 2 * -(-size // 1024) * 32) + 256


def plan(
    spec: Specialisation,
    outputs: tuple[tuple[tuple[int, ...], str], ...],
    shape: tuple[int, ...],
    segments: int,
    offset: str,
    tuning: Tuning,
) -> Plan:
    """Return the launches that sort segments along the last axis of contiguous arrays.

    One launch sorts tiles, and one merges them for each bit in the number of the last tile.
    """
    numbers, n, rows = Numbers(), shape[-1], math.prod(shape[:-1])
    tile = next(tile for tile in tuning.tiles if spec.key_bytes <= tile.key_bytes)
    threads, items = tile.threads, tile.items
    while items > 1 and threads * (items + 1) // 2 >= n:
        items = (items + 1) // 2
    size = threads * items
    tiles = -(-n // size)
    levels = (tiles - 1).bit_length()
    temporary_bytes = 0

    def reserved(name: str, type_: str, nbytes: int) -> Pointer | None:
        """Return the address of memory for another copy of elements, or None without levels."""
        nonlocal temporary_bytes
        if not levels:
            return None
        offset = numbers(name, temporary_bytes)
        temporary_bytes += -(-rows * n * nbytes // 256) * 256
        return Pointer("temporary", type_, bytes=offset)

    word = spec.word
    keys = Struct(
        Pointer("in0", f"const {word}"),
        reserved("keys_offset", word, spec.key_bytes),
        Pointer("out0", word) if spec.keyed else reserved("keys_aside_offset", word, spec.key_bytes),
        not spec.keyed,
    )
    moved_parameters: list[Parameter] = []
    for number, nbytes in enumerate(spec.values):
        value = WORDS[nbytes]
        source_pointer, out = Pointer(f"in{number + 1}", f"const {value}"), Pointer(f"out{number + 1}", value)
        moved_parameters.append(
            Struct(source_pointer, reserved(f"values{number}_offset", value, nbytes), out, type=f"Moving<{value}>")
        )
    if spec.index:
        index, place = C_TYPES[spec.index], WORDS[4 if n <= tuning.places else 8]
        places_memory = reserved("places_offset", place, 4 if n <= tuning.places else 8)
        moved_parameters.append(Struct(places_memory, Pointer("out0", index), type=f"Places<{index}, {place}>"))
    bound = C_TYPES[offset]
    inputs = 1 + len(spec.values)
    length, parts = numbers("n", n), numbers("tiles", tiles)
    bounds = Struct(Pointer(f"in{inputs}", f"const {bound}"), numbers("offsets", segments + 1), length, parts)
    pieces = Pointer("scratch", "Pieces") if levels else None
    shared_bytes = _shared_bytes(spec.key_bytes, threads, items)
    source = spec.source("_primitives/segments/by_offsets/sort_segments.cu")
    first = Launch(
        source=source,
        template="sort_pieces",
        arguments=(threads, items, shared_bytes, "Order", bound),
        parameters=(keys, bounds, pieces, *moved_parameters),
        grid=rows * tiles,
        block=threads,
        shared_bytes=shared_bytes,
        resident_blocks=tile.sorting,
    )
    level = Launch(
        source=source,
        template="merge_pieces",
        arguments=(threads, items, "Order"),
        parameters=(keys, length, parts, numbers("all_tiles", rows * tiles), pieces, *moved_parameters),
        grid=min(rows * tiles, tuning.blocks),
        block=threads,
        resident_blocks=tile.merging,
    )
    return Plan(
        (first, *(level,) * levels),
        inputs + 1,
        outputs,
        numbers.all(),
        scratch_bytes=_PIECES_BYTES * rows * tiles if levels else 0,
        temporary_bytes=temporary_bytes,
    )


# ---- Calls ------------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, c: Segmented) -> str | None:
    """Return the reason why the kernel cannot compute a call, or None."""
    for x in c.arrays[1 : c.count]:
        if dtype_kind(x.dtype) == "other":
            return f"the kernel does not move values of dtype {dtype_name(x.dtype)}"
    return _cuda.refusal(xp, c.arrays)


def prepare(
    xp: Namespace, c: Segmented, otherwise: Callable[[Segmented], tuple[Array, ...]]
) -> Callable[..., tuple[Array, ...]]:
    """Return a function of a call's arrays that launches the kernels.

    ``otherwise`` computes a call in JAX programs for other devices, and has derivatives.
    """
    axis, last = c.axis, c.arrays[0].ndim - 1
    direct = dtype_name(c.arrays[-1].dtype) in ("int32", "int64")

    def laid_out(*arrays: Array) -> tuple[Array, ...]:
        offsets = arrays[-1] if direct else cast(xp, arrays[-1], index_dtype(xp))
        last_axis = [x if axis == last else move_axis(xp, x, axis, -1) for x in arrays[:-1]]
        return tuple([_cuda.contiguous(xp, _cuda.plain(xp, x)) for x in (*last_axis, offsets)])

    arrays, arranged = _cuda.arranged(laid_out, c.arrays)
    run = arranged(_runner(xp, dataclasses.replace(c.on(*(None,) * len(c.arrays)), key=None), arrays, otherwise))
    return run if axis == last else lambda *arrays: tuple([move_axis(xp, y, -1, axis) for y in run(*arrays)])


def _runner(
    xp: Namespace, bare: Segmented, arrays: tuple[Array, ...], otherwise: Callable[[Segmented], tuple[Array, ...]]
) -> _cuda.Run:
    """Return a function that launches the kernels on contiguous arrays, sorting along the last axis."""
    shape, offset = tuple(arrays[0].shape), dtype_name(arrays[-1].dtype)
    dtypes = tuple([x.dtype for x in arrays[:-1]])

    def make() -> Plan:
        index = None if bare.keyed else dtype_name(index_dtype(xp))
        names = [dtype_name(dtype) for dtype in dtypes]
        spec = Specialisation(
            names[0],
            bare.descending,
            bare.keyed,
            values=tuple(x.dtype.itemsize for x in arrays[1:-1]),
            index=index,
        )
        results = tuple([(shape, name) for name in ([index] if index else names)])
        tuning = _cuda.tuned_for(TUNING, xp, arrays[0])
        return plan(spec, results, shape, bare.segments, offset=offset, tuning=tuning)

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        def computed(*arrays: Array) -> tuple[Array, ...]:
            rows = tuple(arrays[0].shape)
            results = tuple([(rows, dtype) for _, dtype in bare.results])
            call = dataclasses.replace(bare, arrays=arrays, axis=len(rows) - 1, results=results)
            return otherwise(call)

        def batched(*arrays: Array) -> tuple[Array, ...]:
            if arrays[-1].shape[0] > 1:  # each row has its own segments
                return _cuda.row_by_row(computed)(*arrays)
            arrays = (*xp.broadcast_arrays(*arrays[:-1]), arrays[-1][0])
            return _runner(xp, bare, arrays, otherwise)(*arrays)

        return computed, batched

    key = ("sort segments", mode(xp), dtypes, shape, bare.descending, bare.keyed, bare.segments, offset)
    return _cuda.ready(xp, arrays[0], key, plan=make, in_program=in_program)


# ---- Plans to compile without a GPU -----------------------------------------------------------------------------


def cases() -> Iterator[tuple[str, Plan]]:
    """Yield the name and the plan of every kind of sort of segments."""
    every = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64"
    n = 1 << 28
    for dtype in every.split():
        yield _case(dtype, n)
    for dtype in ("uint8", "float16", "float32", "int64"):
        yield _case(dtype, n, (), "int64")
        yield _case(dtype, n, (4,), offset="int32")
    for size in (20, 500, 1000, 2000, 3000):
        yield _case("float32", size)
        yield _case("int64", size, (), "int64")
    yield _case("float32", n, (1, 2, 8, 16), descending=True)
    yield _case("float32", n, (), "int32", descending=True)
    yield _case("int64", 1 << 33, (), "int64")


def _case(
    dtype: str,
    n: int,
    values: tuple[int, ...] = (),
    index: str | None = None,
    *,
    offset: str = "int64",
    descending: bool = False,
) -> tuple[str, Plan]:
    spec = Specialisation(dtype, descending, index is None, values=values, index=index)
    results = [index] if index else [dtype, *("int8" for _ in values)]
    words = {f"values {values}": values, "indices": index, "descending": descending, f"offsets {offset}": True}
    outputs = tuple(((n,), name) for name in results)
    case = plan(spec, outputs, (n,), 10**6, offset=offset, tuning=TUNING[90])
    return " ".join(("sort segments", dtype, *(word for word, is_set in words.items() if is_set))), case
