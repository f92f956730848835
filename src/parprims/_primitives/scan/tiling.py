"""The division of work of the kernels of scans: tunings, and the tiles of lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from parprims import _cuda
from parprims._core.arrays import dtype_bits
from parprims._core.layout import Lines, is_aligned
from parprims._cuda.look_back import look_back_bytes
from parprims._operators.tracing import state_size
from parprims._primitives.scan.grouping import block_elements
from parprims._primitives.scan.source import Specialisation

# ---- Tuning -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """How the kernels divide their work on devices of one compute capability.

    All fields but the last determine how elements are grouped, so the bits of results depend on them. They depend on
    the compute capability alone: devices of one kind give the same bits, however many multiprocessors they have.
    """

    threads: int
    """Threads of a block; a block that holds a whole line in registers may have twice as many."""
    line_bytes: int
    """Bytes of elements and their prefixes that a thread keeps in registers, if that is enough for a whole line."""
    long_line_bytes: int
    """Bytes of elements and their prefixes that a thread keeps in registers for longer lines, if that is enough."""
    shared_bytes: int
    """Bytes that a thread keeps in shared memory."""
    column_bytes: int
    """Bytes of elements that a thread keeps in registers, for lines that are adjacent in memory."""
    columns_bytes: int
    """Bytes of elements that a thread keeps in registers for adjacent lines of several inputs or with chained tiles."""
    columns: int
    """Adjacent threads across lines that are adjacent in memory: with vectors of 16 bytes, they load 128 bytes. If
    vectors are not aligned, there are up to four times as many threads."""
    strip_threads: int
    """Threads of a block for lines that are adjacent in memory, if their vectors are not aligned or if they are few."""
    strip_bytes: int
    """The shared memory of a multiprocessor for the blocks of strips: `MOST_STRIPS` blocks, or fewer if tiles would be
    too small."""
    column_state_bytes: int
    """The most bytes of states that a thread keeps for adjacent lines."""
    tiles: int
    """A single line is divided further until it has this many tiles, so that every multiprocessor has a tile."""
    chained_lines: int
    """From this number of lines on, tiles of adjacent lines and of segments are chained: blocks take tiles across the
    lines, and a tile waits only for the tile before it."""
    serial_lines: int
    """From this number of lines on, with more inputs than outputs, a block scans a part of a line serially. It loads a
    tile while it computes the tile before. Otherwise tiles that look back are faster."""
    serial_parts: int
    """Lines are divided until there are about this many parts in total."""
    serial_tiles: int
    """The fewest tiles of a part, if the line has enough tiles."""
    serial_threads: tuple[int, ...]
    """The numbers of threads that a serial block may have. For equal tiles the first number is chosen."""
    serial_bytes: int
    """Bytes of one array in each tile of a serial block, or a third of the bytes of all arrays if that is more."""
    serial_resident: int
    """The number of serial blocks that must fit on a multiprocessor."""
    skewed_elements: int
    """From this number of elements on, lines that begin within a vector are accessed by skewed vectors."""
    block_bytes: int
    """The most shared memory of a block, including the memory that its kernel declares."""
    ahead_bytes: int
    """The distance, in bytes, at which tiles that look back are prefetched into the L2 cache. Bits of results do not
    depend on it. Chained tiles are not prefetched, which would not pay."""

    scaled = ("ahead_bytes",)
    counted = ("tiles", "serial_parts")
    limited = ("block_bytes",)
    prefetched = ("ahead_bytes",)

    def fitted(self, measured: _cuda.Model, device: _cuda.Model) -> Tuning:
        """Return the entry for another device, on which two blocks with tiles in shared memory must fit."""
        most = (device.room() - _TOTALS_BYTES) // 16
        return dataclasses.replace(
            super().fitted(measured, device),
            shared_bytes=min(self.shared_bytes, most // self.threads * 16),
            serial_bytes=min(self.serial_bytes, most // 2 * 16 // 3 * 8 // 9),  # two tiles, of three arrays, with gaps
            strip_bytes=min(self.strip_bytes, MOST_STRIPS * device.room(MOST_STRIPS)),
        )


_TOTALS_BYTES = 2 << 10
"""The most other shared memory of a block, for flags of segments and for the states that its warps exchange."""

MOST_STRIPS = 4
"""The most blocks with strips of lines that must fit on a multiprocessor."""


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` returns the entry of other devices."""

DECLARED_BYTES = 47 << 10
"""The most shared memory that a kernel may declare itself, without a request at the launch: 48 KiB less 1 KiB."""

FEWEST_THREADS = 64
"""The fewest threads of a block with tiles that wait for other tiles: one warp would treat its tile as a whole line."""


def fits(tuning: Tuning, special: Specialisation, block: int, shared: int) -> bool:
    """Return whether a tile, and the states that warps exchange, fit in the shared memory of a block."""
    declared = (block // 32 + 5) * state_size(special.states)  # of each warp, of the tile before, and of four groups
    return declared <= DECLARED_BYTES and shared + declared <= tuning.block_bytes


def for_wide(tuning: Tuning, special: Specialisation, vector: int, sizes: Sequence[int]) -> Tuning:
    """Return the entry with so few threads that their elements, of very many arrays, fit in shared memory."""
    while tuning.threads > FEWEST_THREADS and not fits(
        tuning, special, tuning.threads, staged_bytes(tuning.threads, 1, vector, sizes)
    ):
        tuning = dataclasses.replace(tuning, threads=tuning.threads // 2)
    return tuning


def columns_fit(work: Work, special: Specialisation) -> bool:
    """Return whether the states that threads exchange fit in the shared memory of a block of `scan_columns`."""
    width, groups, _, vector = (int(argument) for argument in work.arguments[:4])
    carry = work.arguments[4]
    in_warp = min(groups, max(1, 32 // width))
    states = work.block * vector // in_warp + (0 if carry == "ALONE" else width * vector)
    looking = 4 * (carry == "LOOK_BACK")
    return (states + looking) * state_size(special.states) <= DECLARED_BYTES


def too_wide(tuning: Tuning, special: Specialisation, *, in_blocks: bool = False) -> str | None:
    """Return the reason why the elements do not fit in the shared memory of a block, or None."""
    strided = ("STRIDED",) * len(special.itemsizes)
    _, sizes = special.places(strided)
    if in_blocks:  # blocks of vectors are no larger
        room = cut_blocks(special, tuning, Extents(1, 1, 1, 1), vector=1, accesses=strided, across=False) is not None
    else:
        room = fits(tuning, special, FEWEST_THREADS, staged_bytes(FEWEST_THREADS, 1, 1, sizes))
    if room and len(special.itemsizes) <= MOST_ARRAYS:
        return None
    count = len(special.inputs)
    return f"an element of {count} arrays, {special.raw_bytes} bytes, does not fit in the shared memory of a block"


MOST_ARRAYS = 400
"""The most inputs and outputs together of a kernel: its parameters may have 32 KiB."""

# ---- Work -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Work:
    """The division of the work of a launch.

    Parameters
    ----------
    template, arguments :
        The function template, and its arguments before the types.
    lengths : tuple of (str, int)
        The parameters after the arrays.
    grid, block, shared_bytes, resident_blocks : int
        As in `Launch`.
    tiles : int
        The tiles of a line.
    slots : int
        The number of lines with tiles that wait for each other.
    waits : bool
        Whether tiles wait for each other.
    whole : bool
        Whether a view covers the memory of all adjacent lines, as one line.
    """

    template: str
    arguments: tuple[_cuda.Argument, ...]
    lengths: tuple[tuple[str, int], ...]
    grid: int
    block: int
    slots: int
    tiles: int
    waits: bool
    shared_bytes: int = 0
    resident_blocks: int = 0
    whole: bool = False


@dataclasses.dataclass(frozen=True)
class Extents:
    """The numbers of lines, and their lengths.

    Parameters
    ----------
    lines, low, inner : int
        There are ``lines`` times ``inner`` lines, ``inner`` of them adjacent in memory. ``low`` divides ``lines``, as
        in `Lines`.
    read, n : int
        The lengths of a line of the inputs and of a line of the outputs.
    """

    lines: int
    low: int
    read: int
    n: int
    inner: int = 1


def cut_columns(special: Specialisation, tuning: Tuning, extents: Extents, *, vector: int, least: int) -> Work:
    """Return the division of work for lines that are adjacent in memory.

    At least ``least`` threads are side by side across lines, if there are lines enough.
    """
    block = 256
    lines, low, read, n, inner = extents.lines, extents.low, extents.read, extents.n, extents.inner

    def cut(most: int, most_bytes: int) -> tuple[int, int, int, int, int, str]:
        """Return width, groups, rounds, tiles, blocks and carry, given the most rows and bytes of a thread."""
        most = max(1, min(most, most_bytes // (vector * special.raw_bytes)))
        groups = _cuda.power_of_two(-(-n // most), up=True)
        width = max(least, block // min(groups, 32))
        width = min(width, _cuda.power_of_two(-(-inner // vector), up=True), block)
        groups = min(groups, block // width)
        if n > groups * most:
            groups = block // width
        tiles = -(-n // (groups * most))
        rounds = -(-n // (tiles * groups))
        blocks = -(-lines // (block // (width * groups))) * -(-inner // (width * vector))
        return width, groups, rounds, tiles, blocks, carry_of(tuning, tiles, blocks)

    thread_bytes = tuning.column_bytes if len(special.inputs) == 1 else tuning.columns_bytes
    width, groups, rounds, tiles, blocks, carry = cut(20, thread_bytes)
    if carry == "CHAINED":
        width, groups, rounds, tiles, blocks, carry = cut(16, tuning.columns_bytes)
    rows = block // width * rounds
    ahead = tiles_ahead(tuning, special, carry, rows * width * vector)
    lengths = {"lines": lines, "low": low, "read": read, "n": n, "inner": inner, "tiles": tiles, "ahead": ahead}
    return Work(
        "scan_columns",
        (width, groups, rounds, vector, carry),
        tuple(lengths.items()),
        grid=blocks * tiles,
        block=block,
        slots=blocks * width * vector,
        tiles=tiles,
        waits=tiles > 1,
        # Two blocks must fit on a multiprocessor, which limits their registers.
        resident_blocks=2 if carry == "CHAINED" else 0,
    )


def cut_strips(
    special: Specialisation,
    tuning: Tuning,
    lines: Lines,
    addresses: Sequence[int],
    reverse: bool,
    n: int,
    least_tiles: int,
) -> Work | None:
    """Return the division of work for lines that are adjacent in memory, with vectors aligned or not.

    Return None if lines are not adjacent, do not fill a tile, or make too few tiles.
    """
    block, arrays, inputs = tuning.strip_threads, len(special.itemsizes), len(special.inputs)
    along, across, outer, inner = lines.along[:arrays], lines.across[:arrays], lines.high * lines.low, lines.inner
    accesses = [
        "CONSTANT" if (step, across_step) == (0, 0) else "ASCENDING"
        for step, across_step in zip(along, across, strict=True)
    ]
    moving = [index for index in range(arrays) if accesses[index] != "CONSTANT"]
    if any(across[index] != 1 for index in moving) or moving[0] >= inputs:
        return None
    state = state_size(special.states)
    # The states of 32 tiles take at most 3 % of the bytes of their results, or 4 % where tiles are contiguous.
    states = look_back_bytes(1, 32, state) - look_back_bytes(0, 32, state)
    least = -(-100 * states // (3 * 32 * sum(special.itemsizes[inputs:])))

    def cut(contiguous: bool) -> tuple[int, int, int, int]:
        """Return the resident blocks, the elements of a block, the adjacent lines of a strip, and their rows."""
        _, sizes = special.places(accesses if contiguous else accesses[:inputs])
        # The most blocks that each fit 32 lines of the least rows, but at least two.
        for resident in range(MOST_STRIPS, 1, -1):
            elements = (tuning.strip_bytes // resident - 16 - 2 * block * state) // sum(sizes) // 16 * 16
            if elements >= 32 * least:
                break
        # A thread adds at most 81 elements, one after another.
        rows = [min(elements // width, 81 * (block // width)) for width in range(1, block // 2 + 1)]
        if contiguous:
            width = min(inner, len(rows))
        else:
            widths = range(1, min(inner, block // 4) + 1)
            width = max(widths, key=lambda width: (rows[width - 1] >= least, used(width), width))
        return resident, elements, width, rows[width - 1]

    def used(width: int) -> float:
        """Return the used fraction of strips, threads and cache lines, for strips of a width."""
        line = max(1, 128 // min(special.itemsizes))
        padded = -(-inner // width) * width * block * (-(-width // line) * line)
        return inner * (block // width * width) * width / padded

    vector, contiguous = 1, all(along[index] == inner for index in moving)
    resident, elements, width, rows = cut(contiguous)
    if contiguous and (width < inner or 4 * rows < 3 * least):
        contiguous = False
        resident, elements, width, rows = cut(contiguous)
    if contiguous:
        steps = [(lines.upward[index], lines.downward[index]) for index in range(arrays)]
        vector = 16 // max(special.itemsizes)
        while not all(is_aligned(addresses[index], steps[index], vector, special.itemsizes[index]) for index in moving):
            vector //= 2
    strips, most = outer * -(-inner // width), max(0, rows) // vector * vector
    if most == 0 or width < min(inner, 16) or strips * width >= 2**31:
        return None
    if 2 * n < most or strips * -(-n // most) < least_tiles:
        return None
    rows = -(-n // (-(-n // most) * vector)) * vector
    tiles = -(-n // rows)
    carry = carry_of(tuning, tiles, strips)
    ahead = tiles_ahead(tuning, special, carry, rows * width)
    # The number of tiles that wait for each other's totals; with many lines only tiles of 256 rows, to limit rounding
    # errors.
    span = 32 if carry == "LOOK_BACK" else -(-256 // rows)
    shared = tuning.strip_bytes // resident // 16 * 16
    lengths = {"outer": outer, "low": lines.low, "n": n, "inner": inner, "width": width, "rows": rows, "tiles": tiles}
    return Work(
        "scan_strips",
        (block, vector, elements, contiguous, shared),
        (*lengths.items(), ("span", span), ("ahead", ahead), ("backward", int(contiguous and reverse))),
        grid=strips * tiles,
        block=block,
        slots=strips * width,
        tiles=tiles,
        waits=True,
        shared_bytes=shared,
        resident_blocks=resident,
        whole=contiguous,
    )


def cut_blocks(
    special: Specialisation, tuning: Tuning, extents: Extents, *, vector: int, accesses: tuple[str, ...], across: bool
) -> Work | None:
    """Return the division of work in the canonical grouping, or None if elements do not fit in shared memory.

    With ``across``, adjacent threads are placed across lines that are adjacent in memory, else along lines.
    """
    lines, low, read, n, inner = extents.lines, extents.low, extents.read, extents.n, extents.inner
    block = block_elements(sum(dtype_bits(name) for name in special.states) // 8)
    most = block // 32  # the parts of 32 elements of a tile
    parts, width, outers, tiles, carry = -(-read // 32), 1, 1, 1, "ALONE"
    if across:
        width = _whole_sectors(max(1, most // parts), inner)
        if parts > most or width < min(8, inner):
            # Tiles are parts of a block, so that they are wide.
            parts = 64 if inner <= 4 and block >= 2048 else 8
            width = _whole_sectors(most // parts, inner)
            tiles, carry = -(-read // (32 * parts)), "CHAINED"
    elif parts > most:
        parts, tiles = most, -(-read // block)
        carry = carry_of(tuning, tiles, lines)
    if carry == "ALONE":
        outers = min(lines, most // (parts * width))
    strips = -(-lines // outers) * -(-inner // width)
    _, sizes = special.places(accesses[: len(special.inputs)] if across else accesses)
    threads, shared = block_threads(special, tuning, sizes, vector)
    if shared == 0:
        return None
    ahead = tiles_ahead(tuning, special, carry, block)
    lengths = {"outer": lines, "low": low, "read": read, "n": n, "inner": inner}
    cut = {"width": width, "parts": parts, "outers": outers, "tiles": tiles, "ahead": ahead}
    return Work(
        "scan_blocks",
        (block, special.adds, vector, across, carry, shared),
        (*lengths.items(), *cut.items()),
        grid=strips * tiles,
        block=threads,
        slots=strips * width,
        tiles=tiles,
        waits=carry != "ALONE",
        shared_bytes=shared,
        resident_blocks=5 if special.adds and threads == 256 and not across and carry != "ALONE" else 0,
    )


def block_threads(special: Specialisation, tuning: Tuning, sizes: Sequence[int], vector: int) -> tuple[int, int]:
    """Return the threads of a tile of a canonical block, and its bytes of shared memory; 0 if it has no so many."""
    parts = block_elements(sum(dtype_bits(name) for name in special.states) // 8) // 32
    threads = max(32, parts)
    shared = 4 * threads * state_size(special.states)
    for size in sizes:  # a vector more for each part, and each place begins at an aligned vector
        shared = -(-shared // (vector * size)) * vector * size + parts * (32 // vector + 1) * vector * size
    shared = -(-shared // 16) * 16
    return threads, shared if shared + 64 <= tuning.block_bytes else 0


def _whole_sectors(most: int, inner: int) -> int:
    """Return the number of adjacent lines of a tile: all, or at most ``most``, in multiples of 8 if possible."""
    return inner if inner <= most else most // 8 * 8 or most


def cut_rows(
    special: Specialisation,
    tuning: Tuning,
    extents: Extents,
    *,
    vector: int,
    accesses: tuple[str, ...],
    skew: int = 0,
) -> Work:
    """Return the division of work for lines along which adjacent threads are placed.

    The first vector of a line begins at most ``skew`` elements before the line.
    """
    lines, low, read, n = extents.lines, extents.low, extents.read, extents.n
    _, sizes = special.places(accesses)
    vectors, staged = -(-(n + skew) // vector), vector * sum(sizes)
    tuning = for_wide(tuning, special, vector, sizes)
    # Narrow elements would be unpacked in registers, and elements of strided arrays are loaded one by one.
    direct = min(special.itemsizes[: len(special.inputs)]) >= 4 and "STRIDED" not in accesses
    kept_bytes = vector * special.raw_bytes + special.state_bytes
    waiting = rounds_in(tuning.shared_bytes, staged)
    few, most = (max(1, nbytes // kept_bytes) for nbytes in (tuning.line_bytes, tuning.long_line_bytes))
    if not direct:
        few = most = waiting
    block, tiles, carry = tuning.threads, 1, "ALONE"
    # Blocks of twice the threads take so many registers for wide elements that tiles are faster.
    narrow = max(special.itemsizes) < 8 or len(special.inputs) > len(special.outputs)
    widest, most = (2 * block, most) if direct and narrow else (block, most if narrow else few)
    along = len(special.inputs) > len(special.outputs) and lines >= tuning.serial_lines
    # A block that is alone on a multiprocessor is faster than serial blocks if it is nearly full.
    full = vectors > widest * (most - 2) and special.state_bytes <= 8 and skew == 0
    if vectors <= 32 * few:
        wide = vector * max(special.itemsizes) >= 16
        lanes = _lanes(vectors, few, most, wide=wide, aligned=skew == 0)
    elif vectors <= widest * few or (vectors <= widest * most and (full or not along)):
        lanes = block = _threads(vectors, few, most, widest)
    else:
        direct = False
        if along:
            carry = "SERIAL"
            block, rounds = _serial_tile(tuning, vectors, max(vector * max(special.itemsizes), -(-staged // 3)))
        else:
            carry = "LOOK_BACK"
            rounds = max(1, min(waiting, vectors * lines // (tuning.tiles * block)))
        lanes, tiles = block, -(-vectors // (block * rounds))
    rounds = -(-vectors // (lanes * tiles))
    tiles = -(-vectors // (lanes * rounds))
    shared = 0 if direct else staged_bytes(block, rounds, vector, sizes, tiles=2 if carry == "SERIAL" else 1)
    ahead = tiles_ahead(tuning, special, carry, block * rounds * vector)
    if carry == "SERIAL":  # from here on, ``tiles`` counts the parts of a line
        tiles = -(-tiles // min(tiles, max(tuning.serial_tiles, lines * tiles // tuning.serial_parts)))
    return Work(
        "scan_rows",
        (block, lanes, rounds, vector, carry, direct, shared),
        (("lines", lines), ("low", low), ("read", read), ("n", n), ("tiles", tiles), ("ahead", ahead)),
        grid=-(-lines * lanes // block) if carry == "ALONE" else lines * tiles,
        block=block,
        slots=lines,
        tiles=tiles,
        waits=carry != "ALONE",
        shared_bytes=shared,
        resident_blocks=tuning.serial_resident if carry == "SERIAL" else 0,
    )


def _lanes(vectors: int, few: int, most: int, *, wide: bool, aligned: bool) -> int:
    """Return the number of threads of a warp that share a line of ``vectors`` vectors.

    A thread may have ``few`` vectors in any case, and ``most`` if that leaves fewer threads idle. A vector is ``wide``
    if it has 16 bytes, and lines are ``aligned`` if each begins at a vector. The limits are measured: a thread should
    have several vectors, but 4 or more threads should load adjacent vectors.
    """
    allowed: tuple[int, ...]
    if vectors <= 8:
        limit, allowed = few, (8, 4, 2, 1)
    elif wide:
        limit, allowed = min(5, most), (32, 16, 8, 4) if aligned else (4, 8, 16, 32)
    else:
        limit, allowed = min(7, most), (1, 2, 4, 8, 16, 32)

    def cost(lanes: int) -> tuple[int, bool]:
        return lanes * -(-vectors // lanes), lanes > vectors

    return min((threads for threads in allowed if vectors <= threads * limit), key=cost, default=32)


def _threads(vectors: int, few: int, most: int, widest: int) -> int:
    """Return the number of threads, in several warps, that share a line; each has at most ``most`` vectors."""

    def cost(threads: int) -> float:
        """Return a measure of time: the fraction of idle threads, and measured penalties of other numbers of rounds."""
        rounds = -(-vectors // threads)
        return threads * rounds / vectors + 0.02 * abs(rounds - few) + 0.03 * (threads.bit_count() > 1)

    return min((threads for threads in range(widest, 32, -32) if vectors <= threads * most), key=cost)


def _serial_tile(tuning: Tuning, vectors: int, vector_bytes: int) -> tuple[int, int]:
    """Return the threads of a block that scans a line serially, and the vectors of a thread in each tile."""

    def preference(cut: tuple[int, int]) -> tuple[float, int]:
        threads, rounds = cut
        tile = threads * rounds
        # A tile that the line does not fill costs as much as a full tile. Up to 4 % of such waste is accepted.
        return max(1.04 * vectors, -(-vectors // tile) * tile), -tile

    most = {threads: max(1, tuning.serial_bytes // (threads * vector_bytes)) for threads in tuning.serial_threads}
    cuts = [(threads, rounds) for threads in most for rounds in range(-(-most[threads] // 2), most[threads] + 1)]
    return min(cuts, key=preference)


def tiles_ahead(tuning: Tuning, special: Specialisation, carry: str, elements: int) -> int:
    """Return the distance, in tiles of ``elements`` elements, at which tiles are prefetched into the L2 cache."""
    return -(-tuning.ahead_bytes // (elements * sum(special.itemsizes))) if carry == "LOOK_BACK" else 0


def rounds_in(nbytes: int, vector_bytes: int) -> int:
    """Return the vectors of a thread that fit in shared memory; an even number needs an eighth more, for gaps."""
    most = max(1, nbytes // vector_bytes)
    return most - 1 if most > 1 and most % 2 == 0 and most * vector_bytes * 9 // 8 > nbytes else most


def staged_bytes(block: int, rounds: int, vector: int, sizes: Sequence[int], tiles: int = 1) -> int:
    """Return the bytes of shared memory that stage ``tiles`` tiles, given the itemsizes of their places."""
    places, shared = block * rounds + (block * rounds // 8 if rounds % 2 == 0 else 1), 0
    for size in sizes:  # each place begins at an aligned vector
        shared = -(-shared // (vector * size)) * vector * size + places * vector * size
    return tiles * -(-shared // 16) * 16


def carry_of(tuning: Tuning, tiles: int, lines: int) -> str:
    """Return the name in `Carry` (_cuda/device/tile_scan.cuh) of the way in which a tile gets its prefix."""
    return "ALONE" if tiles == 1 else "CHAINED" if lines >= tuning.chained_lines else "LOOK_BACK"
