"""The CUDA kernels of sorts: the division of their work, and the launches of a call.

The file is long because three algorithms, by the length of rows, share the tuning and the specialisation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, cast, device, dtype_kind, dtype_name, mode, move_axis
from parprims._cuda import Launch, Number, Numbers, Parameter, Plan, Pointer, Struct
from parprims._operators.languages import C_TYPES
from parprims._primitives.sort import native
from parprims._primitives.sort.call import FRACTION_BITS, Sorting, index_dtype

# ---- Tuning -----------------------------------------------------------------------------------------------------


class RowTile(NamedTuple):
    """A tile for rows of up to ``longest`` keys: ``group`` threads sort a row, by ``digit`` bits in each pass.

    A block has ``block`` threads. If arrays of values move with the keys, rows have up to ``valued`` keys: a block
    gathers them slowly.
    """

    longest: int
    group: int
    block: int
    digit: int = 8
    valued: int = 8192


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """The sizes that the kernels use on devices of one compute capability. Results do not depend on them.

    Parameters
    ----------
    lanes : int
        Rows of up to this many keys have one lane for each key.
    each : int
        A thread has keys of this many such rows, if there are enough rows.
    rows : tuple of RowTile
        The tiles for longer rows that are sorted in one launch, first choice first.
    few : tuple of RowTile
        Tiles that come before ``rows`` for keys of at most 4 bytes, if there are fewer rows than half of ``blocks``.
    shared_bytes, few_bytes : int
        The most shared memory of a block that sorts rows in one launch: of many rows, where several blocks should fit
        on a multiprocessor, and of few rows.
    alone, together : tuple of (bytes, threads, items, resident)
        The tiles of long rows, of keys alone and of keys with values, by the bytes of the widest element: the threads
        of a block, the elements of a thread, and the blocks on a multiprocessor.
    ahead_bytes : int
        The distance, in bytes, at which a block prefetches a tile of long rows into the L2 cache, if keys move alone.
        Otherwise the stores need the cache.
    blocks : int
        The number of multiprocessors. Tiles are smaller if there would be fewer blocks than this.
    counters : int
        The most blocks that count digits.
    counting : int
        The threads of a counting block for each 32 bits of a key.
    counting_threads : int
        The threads of counting blocks that must fit on a multiprocessor, as shared memory allows.
    chunk : int
        The fewest keys of a counting block.
    besides : int
        The scratch for digit counts and look-back words is at most this many bytes, plus a twentieth of the memory of
        keys and values.
    counts : int
        Integers of 32 bits count the keys of rows up to this length; two of their bits are status bits.
    segment : int
        Look-back words always have 32 bits: in longer rows they count the keys of a segment of this length.
    places : int
        Integers of 32 bits number the keys of rows up to this length.
    """

    lanes: int
    each: int
    rows: tuple[RowTile, ...]
    few: tuple[RowTile, ...]
    shared_bytes: int
    few_bytes: int
    alone: tuple[tuple[int, int, int, int], ...]
    together: tuple[tuple[int, int, int, int], ...]
    ahead_bytes: int
    blocks: int
    counters: int
    counting: int
    counting_threads: int
    chunk: int
    besides: int
    counts: int
    segment: int
    places: int

    scaled = ("ahead_bytes", "blocks", "counters")
    limited = ("shared_bytes", "few_bytes")
    prefetched = ("ahead_bytes",)

    def fitted(self, measured: _cuda.Model, device: _cuda.Model) -> Tuning:
        """Return the entry for another device, with tiles of long rows that fit two blocks on a multiprocessor."""
        return dataclasses.replace(
            super().fitted(measured, device),
            alone=tuple([_fitted(device, *entry) for entry in self.alone]),
            together=tuple([_fitted(device, *entry) for entry in self.together]),
            counting_threads=min(self.counting_threads, device.threads),
        )


def _fitted(device: _cuda.Model, nbytes: int, threads: int, items: int, resident: int) -> tuple[int, int, int, int]:
    """Return the largest tile, of at most the given threads and elements of a thread, for which two blocks fit."""

    def size(threads: int) -> tuple[int, int, int]:
        counts = (threads // 32 + 3) << 10  # counts of every warp, and the offsets of digits
        most = min(items, (device.room() - counts) // (threads * nbytes))
        return threads * most, threads, most

    _, threads, items = max(size(threads_of_tile) for threads_of_tile in range(_RADIX, threads + 1, 128))
    return nbytes, threads, items, device.resident(resident, threads)


_RADIX = 256
"""The values of a digit: a block has at least as many threads."""


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` returns the entry of other devices."""


# ---- The key of a kernel ----------------------------------------------------------------------------------------

WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long", 16: "uint4"}


@dataclasses.dataclass(frozen=True)
class Specialisation:
    """The key of generated kernels: the dtypes by name, and the results.

    ``values`` are the bytes of an element of each array of values; ``index`` is the dtype of indices, or None without
    indices. If ``keyed``, the results begin with the keys.
    """

    key: str
    descending: bool
    keyed: bool
    values: tuple[int, ...]
    index: str | None

    @property
    def bits(self) -> int:
        """The number of bits of a key that can differ."""
        return 1 if self.key == "bool" else 8 * self.key_bytes

    @property
    def moves(self) -> bool:
        """Whether values or indices move with the keys."""
        return bool(self.values or self.index)

    @property
    def key_bytes(self) -> int:
        """The bytes of a key."""
        kind = self.key.lstrip("abcdefghijklmnopqrstuvwxyz")
        return int(kind) // 8 if kind else 1

    @property
    def word(self) -> str:
        """The C++ type of a key's bits."""
        return WORDS[self.key_bytes]

    def source(self, file: str) -> str:
        """Return the CUDA text of a kernel: the text of a package file, then the order of the keys."""
        kind = {"b": "BOOL", "i": "SIGNED", "u": "UNSIGNED", "f": "FLOATING"}[
            "f" if self.key == "bfloat16" else self.key[0]
        ]
        fraction = FRACTION_BITS.get(self.key, 0)
        infinite = ((1 << (8 * self.key_bytes - 1 - fraction)) - 1) << fraction if fraction else 0
        return "\n".join(
            (
                _cuda.device_source(file),
                "using namespace sorting;",
                "struct Order {",
                f"    using Key = {self.word};",
                f"    static constexpr Kind KIND = {kind};",
                f"    static constexpr Key INFINITE = (Key){infinite}ULL;",
                f"    static constexpr bool DESCENDING = {str(self.descending).lower()};",
                f"    static constexpr int WIDTH = {self.bits};",
                "};",
            )
        )

    def asked_of_row(self) -> Iterator[Parameter]:
        """Yield the results of a sort in one launch: its keys, values and indices."""
        if self.keyed:
            yield Struct(Pointer("out0", self.word), type=f"Keys<{self.word}>")
        for number, nbytes in enumerate(self.values):
            word = WORDS[nbytes]
            source, out = Pointer(f"in{number + 1}", f"const {word}"), Pointer(f"out{number + 1}", word)
            yield Struct(source, None, out, type=f"Move<{word}>")
        if self.index:
            index = C_TYPES[self.index]
            yield Struct(None, None, Pointer(f"out{len(self.values) + self.keyed}", index), 0, type=f"Indices<{index}>")


# ---- Plans ------------------------------------------------------------------------------------------------------


def plan(
    spec: Specialisation,
    outputs: tuple[tuple[tuple[int, ...], str], ...],
    shape: tuple[int, ...],
    address: int,
    tuning: Tuning | None = None,
) -> Plan:
    """Return the launches that sort the last axis of contiguous arrays; the keys have this ``address`` modulo 16."""
    n, rows, sizes = shape[-1], math.prod(shape[:-1]), tuning or TUNING[90]
    if n <= sizes.lanes:
        return _plan_lanes(spec, sizes, outputs, rows=rows, n=n)
    tile = _row_tile(spec, sizes, rows, n)
    if tile:
        return _plan_rows(spec, outputs, rows, n, tile=tile[0], size=tile[1])
    return _TilesPlan(spec, sizes, rows, n, address=address).plan(outputs)


def _plan_lanes(
    spec: Specialisation, sizes: Tuning, outputs: tuple[tuple[tuple[int, ...], str], ...], rows: int, n: int
) -> Plan:
    """Return the launch that sorts rows with one lane for each key."""
    block, lanes = 256, _cuda.power_of_two(n, up=True)
    each = sizes.each if rows * lanes >= 16 * block * sizes.blocks else 1
    numbers = Numbers()
    launch = Launch(
        source=spec.source("_primitives/sort/sort.cu"),
        template="sort_lanes",
        arguments=(block, lanes, each, "Order"),
        parameters=(
            Pointer("in0", f"const {spec.word}"),
            numbers("rows", rows),
            numbers("n", n),
            *spec.asked_of_row(),
        ),
        grid=-(-rows * lanes // (block * each)),
        block=block,
    )
    return Plan((launch,), 1 + len(spec.values), outputs, numbers.all())


def _row_tile(spec: Specialisation, sizes: Tuning, rows: int, n: int) -> tuple[RowTile, int] | None:
    """Return the first tile that fits the rows, and the shared memory of a row; None if none fits."""
    few = rows < sizes.blocks // 2
    most = sizes.few_bytes if few else sizes.shared_bytes
    for tile in (*(sizes.few if few and spec.key_bytes <= 4 else ()), *sizes.rows):
        length = -(-n // tile.group) * tile.group
        digits = 2 ** min(tile.digit, spec.bits)
        size = length * (spec.key_bytes + 2 * spec.moves) + 4 * tile.group // 32 * digits + digits // 8 + 48
        longest = min(tile.longest, tile.valued) if spec.values else tile.longest
        if n <= longest and tile.block // tile.group * size <= most:
            return tile, size
    return None


def _plan_rows(
    spec: Specialisation,
    outputs: tuple[tuple[tuple[int, ...], str], ...],
    rows: int,
    n: int,
    tile: RowTile,
    size: int,
) -> Plan:
    """Return the launch that sorts rows in a warp or a block, given the tile and the shared memory of a row."""
    items, together = -(-n // tile.group), tile.block // tile.group
    digit, full, shared_bytes = min(tile.digit, spec.bits), n == tile.group * items, together * size
    numbers = Numbers()
    launch = Launch(
        source=spec.source("_primitives/sort/sort.cu"),
        template="sort_rows",
        arguments=(tile.block, tile.group, items, digit, full, spec.moves, shared_bytes, "Order"),
        parameters=(
            Pointer("in0", f"const {spec.word}"),
            numbers("rows", rows),
            numbers("n", n),
            *spec.asked_of_row(),
        ),
        grid=-(-rows // together),
        block=tile.block,
        shared_bytes=shared_bytes,
    )
    return Plan((launch,), 1 + len(spec.values), outputs, numbers.all())


class _TilesPlan:
    """The launches that sort long rows: one that counts digits, and one for each digit."""

    def __init__(self, spec: Specialisation, sizes: Tuning, rows: int, n: int, address: int) -> None:
        self.spec, self.sizes, self.rows, self.n, self.address = spec, sizes, rows, n, address
        self.count_bytes = 4 if n <= sizes.counts else 8
        self.place_bytes = 4 if n <= sizes.places else 8
        self.radix, self.passes = 2 ** min(8, spec.bits), -(-spec.bits // 8)
        self.numbers, self.temporary_bytes = Numbers(), 0
        self._choose_tile()
        self._choose_rows_together()
        self._choose_chunk()

    def _choose_tile(self) -> None:
        spec, sizes = self.spec, self.sizes
        self.widest = max(spec.key_bytes, *spec.values, self.place_bytes if spec.index else 0)
        arrays_moved = len(spec.values) + bool(spec.index)
        entries = sizes.together if arrays_moved else sizes.alone
        self.threads, items, self.resident = next(entry[1:] for entry in entries if self.widest <= entry[0])
        if arrays_moved > 1 or self.count_bytes > 4:
            self.resident = min(self.resident, 2)
        while items > 4 and self.rows * -(-self.n // (self.threads * items)) < sizes.blocks:
            items = (items + 1) // 2
        self.items, self.tiles = items, -(-self.n // (self.threads * items))
        self.ahead = 0 if spec.moves else -(-sizes.ahead_bytes // (self.threads * items * spec.key_bytes))

    def _choose_rows_together(self) -> None:
        """Choose the rows of a batch, which must fit with their counts and look-back words."""
        spec, rows, radix, tiles = self.spec, self.rows, self.radix, self.tiles
        self.segment = max(1, self.sizes.segment // (self.threads * self.items)) if self.count_bytes > 4 else 0  # tiles
        words_bytes = radix * (4 * tiles + (self.count_bytes * -(-tiles // self.segment) if self.segment else 0))
        counts_bytes = self.passes * radix * self.count_bytes
        copy = rows * self.n * (spec.key_bytes + sum(spec.values) + (self.place_bytes if spec.index else 0))
        room = (copy // 20 if self.passes > 1 else copy) + self.sizes.besides
        self.together = -(-rows // min(rows, -(-rows * (words_bytes + counts_bytes) // room)))
        self.turns = -(-rows // self.together)
        self.words_bytes, self.counts_bytes = self.together * words_bytes, self.together * counts_bytes

    def _choose_chunk(self) -> None:
        sizes, n, key_bytes = self.sizes, self.n, self.spec.key_bytes
        self.vector = 16 // key_bytes
        if self.rows == 1:
            aligned = self.address % 16 == 0
        else:
            aligned = self.address % 16 == 0 and (self.address + n * key_bytes) % 16 == 0
        if not aligned:
            self.vector = 1
        self.counting = sizes.counting * -(-self.passes // 4)
        step = 4 * self.counting * self.vector
        chunks = max(1, min(n // sizes.chunk, sizes.counters // self.together))
        self.chunk = -(-n // (chunks * step)) * step
        self.chunks = -(-n // self.chunk)

    def _reserved(self, name: str, type_: str, nbytes: int) -> Pointer:
        """Return the address of ``nbytes`` bytes of the call's temporary memory."""
        offset = self.numbers(name, self.temporary_bytes)
        self.temporary_bytes += -(-nbytes // 256) * 256
        return Pointer("temporary", type_, bytes=offset)

    def _moves(self, name: str, type_: str, nbytes: int) -> Pointer | None:
        """Return the address of memory for another copy of the elements, or None for one pass."""
        return self._reserved(name, type_, self.rows * self.n * nbytes) if self.passes > 1 else None

    def plan(self, outputs: tuple[tuple[tuple[int, ...], str], ...]) -> Plan:
        """Return the plan."""
        spec, numbers = self.spec, self.numbers
        extent = Struct(
            rows := numbers("rows", self.rows),
            together := numbers("together", self.together),
            n := numbers("n", self.n),
            tiles := numbers("tiles", self.tiles),
            ahead := numbers("ahead", self.ahead),
        )
        del rows, together, n, tiles, ahead
        chunk, chunks = numbers("chunk", self.chunk), numbers("chunks", self.chunks)
        vectors = numbers("word_vectors", -(-self.words_bytes // 16))
        words = self._reserved("words_offset", "unsigned", self.words_bytes)
        single = self.chunks == 1  # one block counts a row, so counts need no initial zeros
        count = WORDS[self.count_bytes]
        counts = (
            self._reserved("counts_offset", count, self.counts_bytes)
            if single
            else Pointer("zeroed", count, bytes=_CONTROL_BYTES)
        )
        scratch = Struct(Pointer("zeroed", "Control"), counts, words)
        keys, asked = self._between_launches()
        source = spec.source("_primitives/sort/sort_tiles.cu")
        first = Launch(
            source=source,
            template="count_digits",
            arguments=(self.counting, self.vector, spec.moves, "Order", count),
            parameters=(Pointer("in0", f"const {spec.word}"), scratch, extent, chunk, chunks, vectors),
            grid=self.together * self.chunks,
            block=self.counting,
            shared_bytes=-(-self.passes // 4) * self.radix * 128,
            resident_blocks=max(1, self.sizes.counting_threads // self.counting),
        )
        sort_tiles = Launch(
            source=source,
            template="sort_tiles",
            arguments=(self.threads, self.items, "Order", count, WORDS[self.place_bytes]),
            parameters=(keys, scratch, extent, self.segment, *asked),
            grid=self.together * self.tiles,
            block=self.threads,
            shared_bytes=-(-self.threads * self.items * self.widest // 16) * 16,
            resident_blocks=self.resident,
        )
        return Plan(
            (first, *(sort_tiles,) * self.passes) * self.turns,
            1 + len(spec.values),
            outputs,
            numbers.all(),
            zeroed_bytes=_CONTROL_BYTES + (0 if single else self.counts_bytes),
            temporary_bytes=self.temporary_bytes,
        )

    def _between_launches(self) -> tuple[Struct, list[Parameter]]:
        """Return the memory of keys, and of the values and indices that move with them, for all launches.

        Between launches, keys and indices of a row are stored in the memory of its result if they fit. Wide indices
        fill it, and then every second launch writes no keys.
        """
        spec, place_bytes = self.spec, self.place_bytes
        key, place = spec.word, WORDS[place_bytes]
        key_temporary = self._moves("keys_offset", key, spec.key_bytes)
        key_out: Pointer | None = Pointer("out0", key)
        through: Pointer | None = None
        keys_apart = 0
        indices: list[Parameter] = []
        if spec.index:
            index_bytes = int(spec.index[3:]) // 8
            last = f"out{len(spec.values) + spec.keyed}"
            place_temporary = self._moves("places_offset", place, place_bytes)
            aside, places_apart = Pointer(last, place), index_bytes - place_bytes
            if not spec.keyed and self.passes > 2:  # two launches write keys that are no results
                if spec.key_bytes + place_bytes <= index_bytes:
                    behind: Number = self.numbers("keys_behind_places", self.n * place_bytes)
                    key_out, keys_apart = Pointer(last, key, bytes=behind), index_bytes - spec.key_bytes
                elif place_bytes == 8:
                    key_out, through = None, Pointer(last, f"const {place}")
                elif place_bytes <= spec.key_bytes <= index_bytes:
                    key_out, places_apart = Pointer(last, key), 0
                    aside = self._reserved("aside_offset", place, self.rows * self.n * place_bytes)
                else:
                    key_out = self._reserved("keys_aside_offset", key, self.rows * self.n * spec.key_bytes)
            index = C_TYPES[spec.index]
            kind = f"Indices<{index}, {place}>"
            indices = [Struct(place_temporary, aside, Pointer(last, index), places_apart, type=kind)]
        values: list[Parameter] = []
        for number, nbytes in enumerate(spec.values):
            word = WORDS[nbytes]
            temporary = self._moves(f"values{number}_offset", word, nbytes)
            source, out = Pointer(f"in{number + 1}", f"const {word}"), Pointer(f"out{number + 1}", word)
            values.append(Struct(source, temporary, out, type=f"Move<{word}>"))
        keys = Struct(Pointer("in0", f"const {key}"), key_temporary, key_out, keys_apart, not spec.keyed, through)
        return keys, [*values, *indices]


_CONTROL_BYTES = 16  # sizeof(Control) in sort_tiles.cu


# ---- Calls ------------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, call: Sorting) -> str | None:
    """Return the reason why the kernel cannot compute a call, or None."""
    for values in call.values:
        if dtype_kind(values.dtype) == "other":
            return f"the kernel does not move values of dtype {dtype_name(values.dtype)}"
    return _cuda.refusal(xp, call.arrays)


def prepare(xp: Namespace, call: Sorting) -> Callable[..., tuple[Array, ...]]:
    """Return a function of a call's arrays that launches the kernels."""
    axis, last = call.axis, call.keys.ndim - 1
    bare = call.on(*(None,) * len(call.arrays))
    if 0 in call.keys.shape:
        return lambda *arrays: _empty(xp, bare.on(*arrays))

    def laid_out(*arrays: Array) -> tuple[Array, ...]:
        """Return contiguous arrays with the axis to sort along last, as kernels read them."""
        last_axis = (x if axis == last else move_axis(xp, x, axis, -1) for x in arrays)
        return tuple([_cuda.contiguous(xp, _cuda.plain(xp, x)) for x in last_axis])

    arrays, arranged = _cuda.arranged(laid_out, call.arrays)
    run = _runner(xp, bare, arrays)
    if call.keys_alone:
        sorted_keys = arranged(_cuda.only(run))
        if axis == last:
            return lambda x: (sorted_keys(x),)
        return lambda x: (move_axis(xp, sorted_keys(x), -1, axis),)
    run = arranged(run)
    return run if axis == last else lambda *arrays: tuple([move_axis(xp, y, -1, axis) for y in run(*arrays)])


def _empty(xp: Namespace, call: Sorting) -> tuple[Array, ...]:
    """Return the results of a call without elements."""
    dtypes = [x.dtype for x in call.arrays] if call.keyed else []
    dtypes += [index_dtype(xp)] if call.indices else []
    return tuple([xp.empty(call.keys.shape, dtype=dtype, device=device(call.keys)) for dtype in dtypes])


def _runner(xp: Namespace, bare: Sorting, arrays: tuple[Array, ...]) -> _cuda.Run:
    """Return a function that launches the kernels on contiguous arrays, sorting along the last axis."""
    shape = tuple(arrays[0].shape)
    address = _cuda.layout(xp, arrays[0])[1]
    dtypes = tuple([x.dtype for x in arrays])

    def make() -> _cuda.Plan:
        index = (bare.index or dtype_name(index_dtype(xp))) if bare.indices else None
        names = [dtype_name(dtype) for dtype in dtypes]
        values = tuple(x.dtype.itemsize for x in arrays[1:])
        spec = Specialisation(names[0], bare.descending, bare.keyed, values=values, index=index)
        results = (names if spec.keyed else []) + ([index] if index else [])
        tuning = _cuda.tuned_for(TUNING, xp, arrays[0])
        return plan(spec, tuple((shape, name) for name in results), shape, address, tuning=tuning)

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        rows = dataclasses.replace(bare, axis=len(shape) - 1, stable=True, key=None)

        def otherwise(*arrays: Array) -> tuple[Array, ...]:
            *result, last = native.prepare(xp, rows.on(*arrays))(*arrays)
            return (*result, cast(xp, last, getattr(xp, bare.index)) if bare.index else last)

        def batched(*arrays: Array) -> tuple[Array, ...]:
            arrays = tuple(xp.broadcast_arrays(*arrays))
            call = dataclasses.replace(rows, arrays=arrays, axis=len(shape))
            return prepare(xp, call)(*arrays)

        return otherwise, batched

    key = ("sort", mode(xp), dtypes, shape, bare.descending, bare.keyed, bare.indices, bare.index, address)
    return _cuda.ready(xp, arrays[0], key, plan=make, in_program=in_program)


# ---- Plans to compile without a GPU -----------------------------------------------------------------------------

# Rows in a warp's lanes, in a warp, and in a block; a few rows in a block; rows in tiles.
_LAYOUTS = (
    *((1 << 16, n) for n in (20, 200, 1024, 4000, 8000)),
    *((n,) for n in (14_000, 14_336, 16_000, 1 << 14, 1 << 28)),
)
_DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64"  # every order of keys
).split()


def cases() -> Iterator[tuple[str, Plan]]:
    """Yield the name and the plan of every kind of sort, and of large sorts of every dtype."""
    wide = 1 << 33  # words of 64 bits
    for shape in _LAYOUTS:
        for dtype in _DTYPES if shape == (1 << 28,) else ("uint8", "float16", "float32", "int64"):
            for descending in (False, True) if dtype == "float32" else (False,):
                yield _case(dtype, shape, descending=descending)
                yield _case(dtype, shape, (), "int64", descending=descending)
                yield _case(dtype, shape, (4,), descending=descending)
        yield _case("float32", shape, (1, 2, 8), "int32")
        yield _case("float64", shape, (8,))
        yield _case("float64", shape, (16,))
    yield _case("float32", (wide,))
    yield _case("int64", (wide,), (), "int64")
    yield _case("float32", (1 << 28,), unaligned=True)


def _case(
    dtype: str,
    shape: tuple[int, ...],
    values: tuple[int, ...] = (),
    index: str | None = None,
    *,
    descending: bool = False,
    unaligned: bool = False,
) -> tuple[str, Plan]:
    keyed = bool(values) or index is None
    spec = Specialisation(dtype, descending, keyed, values=values, index=index)
    results = [dtype] * keyed + ["int8"] * len(values) + ([index] if index else [])
    words = {f"values {values}": values, "indices": index, "descending": descending, "wide": shape[-1] > 1 << 31}
    case = plan(spec, tuple((shape, name) for name in results), shape, 4 if unaligned else 0)
    return " ".join(("sort", dtype, *(word for word, set_ in words.items() if set_))), case
