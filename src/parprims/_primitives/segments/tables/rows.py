"""Reductions of segments of rows by a CUDA kernel, in any order of rows: the division of work, and the launch."""

from __future__ import annotations

import dataclasses

from parprims import _cuda
from parprims._core.layout import access, broadcast_strides, lines_along, row_major
from parprims._operators.languages import C_TYPES
from parprims._operators.tracing import state_size
from parprims._primitives.segments.work import Work


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """How the kernel divides its work on devices of one compute capability.

    All fields determine how rows are grouped, so the bits of results depend on them, and on the number of
    multiprocessors in the entry, not of the device.
    """

    threads: int
    """Threads of a block."""
    resident: tuple[tuple[int, int], ...]
    """Blocks of a multiprocessor, by the most bytes of the states of a thread's columns."""
    lanes: int
    """The most threads that share a row."""
    state_bytes: int
    """The most bytes of the states of a thread's columns, if they are several."""
    row_bytes: int
    """The bytes that a thread loads before it uses the first of them."""
    least: int
    """The fewest rows and ends of segments of a group of threads, where several blocks share them."""
    shared_bytes: int
    """The most shared memory of a block."""

    limited = ("shared_bytes",)


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` returns the entry of other devices."""


def _part_bytes(state_bytes: int) -> int:
    """Return the bytes of a `Part` of segment_parts.cuh."""
    return 2 * (state_bytes + 16) + 32


def make_plan(work: Work, tuning: Tuning, *, ordered: bool = False) -> _cuda.Plan | None:
    """Return the launch of a reduction of rows, or None.

    There is none if columns are not adjacent, or if states take more memory than a block can share. The offsets are
    the array after the inputs. If ``ordered``, the next array holds the position of each row, as int32.
    """
    special, shape, axis, segments = work.special, work.shape, work.axis, work.segments
    shapes, layouts = work.shapes, work.layouts
    inputs = len(special.inputs)
    n = shape[axis]
    arrays = inputs + len(special.outputs)
    result = (*shape[:axis], segments, *shape[axis + 1 :])
    strides = [
        broadcast_strides(steps, input_shape, len(shape))
        for input_shape, (steps, _) in zip(shapes, layouts, strict=True)
    ]
    strides[inputs:inputs] = [row_major(result)] * len(special.outputs)
    addresses = [address for _, address in layouts[:inputs]] + [0] * len(special.outputs)
    merged = lines_along(shape, axis, strides)
    if merged is None or merged.inner == 1 or any(step != 1 for step in merged.across[:inputs]):
        return None

    def accesses_of(vector: int) -> tuple[str, ...]:
        return tuple(
            access(
                merged.across[index],
                addresses[index],
                (merged.upward[index], merged.downward[index], merged.along[index], merged.inner),
                vector=vector,
                itemsize=special.itemsizes[index],
                backward=False,
            )
            for index in range(arrays)
        )

    state = state_size(special.states)
    vector = max(1, 16 // max(special.itemsizes))
    vector = min(vector, _cuda.power_of_two(max(1, tuning.state_bytes // state)))
    while vector > 1 and "STRIDED" in accesses_of(vector):
        vector //= 2

    def shared_bytes_of(threads: int, vector: int) -> int:
        return threads * _part_bytes(vector * state) + 8 * (threads + 1)

    threads = tuning.threads
    while threads > tuning.lanes and shared_bytes_of(threads, vector) > tuning.shared_bytes:
        threads, vector = (threads, vector // 2) if vector > 1 else (threads // 2, vector)
    if shared_bytes_of(threads, vector) > tuning.shared_bytes:
        return None
    accesses = accesses_of(vector)
    vectors = merged.inner // vector
    lanes = min(tuning.lanes, _cuda.power_of_two(vectors, up=True))
    groups, rows = threads // lanes, max(2, min(8, tuning.row_bytes // (vector * special.raw_bytes)))
    strips = -(-vectors // lanes)
    resident = next(count for most_bytes, count in tuning.resident if vector * state <= most_bytes)
    every = merged.high * merged.low * strips
    items = n + segments + 1
    blocks = min(resident * tuning.multiprocessors // every, -(-items // (groups * tuning.least)))
    blocks = max(1, blocks)
    part_bytes = _part_bytes(vector * state)
    shared_bytes = threads * part_bytes + 8 * (groups + 1)
    numbers = _cuda.Numbers()

    def view(index: int, memory: str, dtype: str) -> _cuda.Struct:
        return _cuda.Struct(
            _cuda.Pointer(memory, dtype),
            numbers("high_stride", merged.upward[index]),
            numbers("low_stride", merged.downward[index]),
            numbers("stride", merged.along[index]),
            numbers("inner_stride", merged.across[index]),
        )

    behind = inputs + 1 + ordered
    reads = [view(index, f"in{index}", f"const {C_TYPES[name]}") for index, name in enumerate(special.inputs)]
    writes = [view(inputs + index, f"out{index}", C_TYPES[name]) for index, name in enumerate(special.outputs)]
    starts = [
        view(arrays + index, f"in{behind + index}", f"const {C_TYPES[name]}")
        for index, name in enumerate(special.starts)
    ]
    lengths = {
        "low": merged.low,
        "n": n,
        "inner": merged.inner,
        "segments": segments,
        "share": -(-items // (blocks * groups)),
        "strips": strips,
        "blocks": blocks,
    }
    launch = _cuda.Launch(
        special.source("_primitives/segments/tables/segment_rows.cu", accesses, stages_outputs=False),
        "reduce_rows_of_segments",
        (lanes, groups, rows, vector, bool(special.starts), shared_bytes, "Scan"),
        (
            _cuda.Struct(*reads, type="Inputs"),
            _cuda.Struct(*writes, type="Outputs"),
            _cuda.Struct(*starts, type="Starts"),
            _cuda.Pointer(f"in{inputs}", f"const {C_TYPES[work.offsets]}"),
            _cuda.Pointer(f"in{inputs + 1}", "const int") if ordered else None,
            _cuda.Pointer("zeroed", "unsigned"),
            _cuda.Pointer("scratch", "unsigned"),
            *(numbers(name, value) for name, value in lengths.items()),
        ),
        every * blocks,
        threads,
        shared_bytes=shared_bytes,
        resident_blocks=resident,
    )
    several = blocks > 1
    return _cuda.Plan(
        (launch,),
        behind + len(special.starts),
        tuple([(result, name) for name in special.outputs]),
        numbers.all(),
        zeroed_bytes=4 * every * several,
        scratch_bytes=every * blocks * lanes * part_bytes * several,
        captured=special.captured,
    )
