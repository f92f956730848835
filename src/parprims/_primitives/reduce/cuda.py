"""Reductions by a CUDA kernel: the division of work, and the launch.

The file is long because the division of work, in `_Lines`, fixes the arguments of every template in the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, dtype_kind, is_jax, mode
from parprims._core.elements import flattened
from parprims._core.layout import Layout, fold, is_aligned, row_major
from parprims._core.options import dtype_named
from parprims._dispatch.dispatch import directly
from parprims._operators.foreign.jax_programs import dtypes_of_64_bits
from parprims._operators.languages import C_TYPES
from parprims._operators.operator import BUILT_IN, Operator, as_operator, capturing, segmented
from parprims._operators.tracing import Untraceable, state_size
from parprims._primitives.reduce import native
from parprims._primitives.reduce.array import array
from parprims._primitives.reduce.call import Map, Reduction, assembled, conjugate_product, is_nonzero, refused_shapes
from parprims._primitives.reduce.source import Specialisation, specialise, specialised
from parprims._primitives.reduce.traced import Traced, with_initial

# ---- Tuning -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """How the kernels divide their work on devices of one compute capability. No bit of a result depends on it."""

    threads: int
    """Threads of a block."""
    bytes_in_flight: int
    """The most bytes that a thread loads from all inputs before it uses the first."""
    blocks: int
    """The number of blocks for few lines, or slightly less, so that multiprocessors end together; for more lines a
    multiple of it."""
    rounds: int
    """The most units that a warp takes of a chunk, as long as the partial results fit in their scratch."""
    column_bytes: int
    """The most bytes of totals that a thread keeps when it reduces columns."""
    column_blocks: int
    """As ``blocks``, for columns."""
    scratch_bytes: int
    """The most scratch for partial results."""

    scaled = ("blocks", "column_blocks")


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` returns the entry of other devices."""


# ---- Limits -----------------------------------------------------------------------------------------------------

_MOST_ARRAYS = 400
"""The most inputs and outputs together of a kernel: its parameters may have 32 KiB."""

_DECLARED_BYTES = 47 << 10
"""The most shared memory that a kernel may declare itself, without a request at the launch: 48 KiB less 1 KiB."""

_NODES_BYTES = 64 << 10
"""The most shared memory for nodes of the tree that wait for their neighbours: two blocks fit a multiprocessor."""

_GROUP = 256
"""The elements of a group, as in grouping.py."""

_SHARED_LINE = 4
"""Up to this number of units, a line has one warp if there are lines for all warps."""

# ---- Plan -------------------------------------------------------------------------------------------------------


def make_plan(special: Specialisation, tuning: Tuning, r: Reduction, layouts: tuple[Layout, ...]) -> _cuda.Plan | None:
    """Return the launch for inputs of these layouts.

    Return None if the inputs cannot be viewed as (outer, n, inner) with one stride each.
    """
    lines = _Lines.of(special, tuning, r, layouts)
    if lines is None:
        return None
    if not lines.columns:
        return _plan_of_rows(lines)
    # Rows of a copy with the axes last are reduced in place of columns of large states.
    return _plan_of_columns(lines) if 32 * (special.scratch_bytes + 1) <= _DECLARED_BYTES else None


@dataclasses.dataclass(frozen=True)
class _Division:
    """The division of work among threads, as reduce.cu names its parts."""

    threads: int
    runs: int = 1
    lanes: int = 1
    across: int = 1
    """Adjacent threads that take adjacent columns."""
    loads: int = 0
    depth: int = 1
    run: int = 1
    """The units of a run."""
    chunks: int = 1

    @property
    def outers(self) -> int:
        """The lines along outer that a block takes at a time."""
        return self.threads // (self.runs * self.lanes * self.across)


@dataclasses.dataclass(frozen=True)
class _Lines:
    """The lines of a call as (outer, n, inner), the way in which threads read them, and their launches.

    Parameters
    ----------
    special, tuning
        The kernel and its tuning.
    results : tuple of (tuple of int, str)
        The shape and the dtype of each result.
    lengths : tuple of int
        The lengths of outer, n and inner.
    strides : tuple of tuple of int
        The strides of each input along outer, n and inner.
    addresses : tuple of int
        The address of each input modulo 16.
    vector : int
        The elements that a thread loads at once.
    vectorized : tuple of bool
        Whether each input is read as vectors.
    """

    special: Specialisation
    tuning: Tuning
    results: tuple[tuple[tuple[int, ...], str], ...]
    lengths: tuple[int, int, int]
    strides: tuple[tuple[int, int, int], ...]
    addresses: tuple[int, ...]
    vector: int = 1
    vectorized: tuple[bool, ...] = ()

    @classmethod
    def of(cls, special: Specialisation, tuning: Tuning, r: Reduction, layouts: tuple[Layout, ...]) -> _Lines | None:
        """Return the lines of a call, or None if the inputs do not have one stride each along outer, n and inner."""
        # Positions ascend along the combined axes only in their own order.
        reorder = special.code.op.commutative and not special.positions
        kept, combined = fold(r.shape, r.axes, [strides for strides, _ in layouts], reorder=reorder)
        if len(kept) > 2 or len(combined) > 1:
            return None
        nothing = (1, (0,) * len(layouts))
        n, along = combined[0] if combined else nothing
        if len(kept) == 2:
            (outer, outward), (inner, across) = kept
        elif kept and kept[0][1] != nothing[1] and abs(kept[0][1][0]) < abs(along[0]):
            (outer, outward), (inner, across) = nothing, kept[0]
        else:
            (outer, outward), (inner, across) = (kept[0] if kept else nothing), nothing
        results = tuple([(r.result_shape, name) for name in special.outputs])
        strides = tuple(zip(outward, along, across, strict=True))
        addresses = tuple([address for _, address in layouts])
        return cls(
            special=special,
            tuning=tuning,
            results=results,
            lengths=(outer, n, inner),
            strides=strides,
            addresses=addresses,
        ).with_vectors()

    @property
    def columns(self) -> bool:
        """Whether lines are columns: adjacent lines are adjacent in memory."""
        return self.lengths[2] > 1

    @property
    def constant(self) -> tuple[bool, ...]:
        """Whether each input has one element for a whole line, and not every input has."""
        found = tuple([self.lengths[1] > 1 and along == 0 for _, along, _ in self.strides])
        return found if not all(found) else (False,) * len(found)

    @property
    def sizes(self) -> list[int]:
        """The bytes of an element of each input that has several for a line."""
        pairs = zip(self.special.itemsizes, self.constant, strict=True)
        return [size for size, is_constant in pairs if not is_constant]

    @property
    def element(self) -> int:
        """The bytes of an element of all these inputs."""
        return sum(self.sizes)

    @property
    def rolled(self) -> bool:
        """Whether a thread combines eight loads one after another, and does not keep their states in registers."""
        return 8 * max(self.element, self.special.register_bytes) > self.tuning.bytes_in_flight

    @property
    def exact(self) -> bool:
        """Whether elements are combined in any order."""
        return not self.rolled and _is_exact(self.special.code)

    @property
    def grouped(self) -> bool:
        """Whether whole groups are combined row by row."""
        return self.special.code.op.commutative and not self.exact

    @property
    def single(self) -> bool:
        """Whether a line may be a single unit."""
        return self.lengths[1] < _GROUP or not self.grouped

    @property
    def width(self) -> int:
        """The lines that a thread reduces at a time."""
        return self.vector if self.columns else 1

    def with_vectors(self) -> _Lines:
        """Return the lines with the vectors in which threads read them."""
        special, tuning, (_, n, inner) = self.special, self.tuning, self.lengths
        rolled, columns = self.rolled, self.columns
        vector = 1 if rolled else min(16 // max(self.sizes), tuning.bytes_in_flight // (8 * self.element), 8)
        vector = min(vector, max(1, 64 // special.register_bytes))
        if columns:
            # A thread keeps one total per column, in registers, which limits the number of columns.
            vector = min(vector, tuning.column_bytes // special.register_bytes)
        vector = _cuda.power_of_two(vector, most=_cuda.power_of_two(inner if columns else n))
        while vector > 1 and not (self.suits(vector) and (not columns or inner % vector == 0)):
            vector //= 2
        if vector == 1 and not columns and not rolled and self.single:
            vector = min(4, 16 // max(self.sizes))  # elements of vectors are loaded one by one
        vectorized = tuple([self._is_vectorized(index, vector) for index in range(len(self.strides))])
        return dataclasses.replace(self, vector=vector, vectorized=vectorized)

    def _is_vectorized(self, index: int, vector: int) -> bool:
        (outer, n, _), (outward, along, across) = self.lengths, self.strides[index]
        step, other = (across, along) if self.columns else (along, 0)
        strides = other if n > 1 else 0, outward if outer > 1 else 0
        return step == 1 and is_aligned(self.addresses[index], strides, vector, self.special.itemsizes[index])

    def suits(self, vector: int) -> bool:
        """Return whether all inputs are read as vectors, or constant along them or along lines."""
        fastest = 2 if self.columns else 1
        return all(
            constant or one[fastest] == 0 or self._is_vectorized(at, vector)
            for at, (one, constant) in enumerate(zip(self.strides, self.constant, strict=True))
        )

    def tiles(self, by: _Division) -> int:
        """Return the number of stretches of lines that a block takes."""
        outer, _, inner = self.lengths
        return -(-outer // by.outers) * -(-inner // (by.across * self.width))

    def chunked(self, by: _Division, units: int, blocks: int, most: int = 1 << 30) -> _Division:
        """Return the division with the units of a run, at most so many, and the number of chunks.

        For long lines there are at least ``blocks`` blocks for rows, and at most so many for columns: where fewer
        blocks read at a time, each reads longer parts of memory.
        """
        tiles = self.tiles(by)
        run = _cuda.power_of_two(-(-units * tiles // (by.runs * blocks)), most=most, up=self.columns)
        run = min(run, _cuda.power_of_two(-(-units // by.runs), up=True))
        totals = tiles * by.outers * by.across * self.width * self.special.scratch_bytes
        chunks = self.tuning.scratch_bytes // totals if tiles < 2 * blocks else 1
        while -(-units // (by.runs * run)) > max(1, chunks):
            run *= 2
        return dataclasses.replace(by, run=run, chunks=-(-units // (by.runs * run)))

    def _resident(self, depth: int, *, in_turn: bool) -> int:
        """Return the number of blocks on a multiprocessor for which a thread can hold most of what it loads at once."""
        if 8 * self.vector * depth * self.element > 128:
            return 2
        is_light = self.element <= 8 and self.vector <= 4 and self.vector * self.special.register_bytes <= 32
        return 4 if in_turn and is_light else 3

    def plan(self, by: _Division) -> _cuda.Plan:
        """Return the plan of the launch."""
        special, (outer, n, inner) = self.special, self.lengths
        numbers = _cuda.Numbers()
        arrays: list[_cuda.Parameter] = [
            _cuda.Struct(
                _cuda.Pointer(f"in{index}", f"const {C_TYPES[name]}"),
                numbers("outer_stride", outward),
                numbers("stride", along),
                numbers("inner_stride", across),
            )
            for index, (name, (outward, along, across)) in enumerate(zip(special.arrays, self.strides, strict=True))
        ]
        if special.positions:
            arrays.append(_cuda.Struct())
        results = [_cuda.Pointer(f"out{index}", C_TYPES[name]) for index, name in enumerate(special.outputs)]
        data = _cuda.Struct(*arrays, type="Inputs"), _cuda.Struct(*results, type="Outputs")
        tickets = _cuda.Pointer("zeroed", "unsigned"), _cuda.Pointer("scratch", "unsigned")
        lengths = numbers("outer", outer), numbers("n", n), numbers("inner", inner)

        tiles, outers = self.tiles(by), by.outers
        share = -(-by.chunks // (8 * by.lanes * by.runs)) if by.chunks > 1 else 1
        most = max(by.run, _cuda.power_of_two(share, up=True))
        batch, in_turn = 0, by.runs > 1 and not self.columns
        if in_turn:
            batch = min(256, most * by.runs, _cuda.power_of_two(_NODES_BYTES // (outers * special.scratch_bytes)))
            batch = max(batch, by.runs)
            levels = (most * by.runs // batch).bit_length()
            states = outers * (levels + batch)
        else:
            levels = most.bit_length()
            states = levels * by.threads // by.lanes * self.width
        named = {"run": by.run, "chunks": by.chunks, "levels": levels, "batch": batch}
        counts = tuple([numbers(name, count) for name, count in named.items()])
        whole = n == by.loads * by.lanes * self.vector // self.width
        shape = by.threads, by.runs, by.lanes, by.across, by.loads, self.vector, by.depth
        launch = _cuda.Launch(
            special.source(self.vectorized, self.constant),
            "reduce_lines",
            (*shape, whole, self.columns, self.rolled, self.exact, "Op"),
            (*data, *tickets, *lengths, *counts),
            tiles * by.chunks,
            by.threads,
            shared_bytes=0 if by.loads else states * state_size(special.code.states),
            needs_cache=True,
            resident_blocks=0 if by.loads else self._resident(by.depth, in_turn=in_turn),
        )
        totals = tiles * by.chunks * outers * by.across * self.width
        return _cuda.Plan(
            (launch,),
            len(self.strides),
            self.results,
            numbers.all(),
            zeroed_bytes=4 * tiles if by.chunks > 1 else 0,
            scratch_bytes=totals * special.scratch_bytes if by.chunks > 1 else 0,
            captured=special.code.captured,
        )


def _plan_of_columns(lines: _Lines) -> _cuda.Plan:
    """Return the launch for columns. Every thread shares its states; in a row each warp shares one state."""
    special, tuning, vector = lines.special, lines.tuning, lines.vector
    outer, n, inner = lines.lengths
    threads = _fitting(tuning.threads, special.scratch_bytes * vector)
    vectors = -(-inner // vector)
    most_across = min(threads, _cuda.power_of_two(vectors, up=True))
    # The most adjacent threads with the fewest of them idle.
    least = _cuda.power_of_two(128 // (vector * min(lines.sizes)), most=most_across)  # for reads of 128 bytes
    widths = [most_across >> shift for shift in range(4) if most_across >> shift >= least]
    idle = min(-(-vectors // one) * one for one in widths)
    most_across = next(one for one in widths if -(-vectors // one) * one == idle)
    depth = 1
    if not lines.rolled and most_across < 32:
        depth = _cuda.power_of_two(16 // (vector * lines.element), most=4)
    depth = min(depth, _cuda.power_of_two(-(-n // 8), up=True))
    lanes = min(max(1, 32 // most_across), _cuda.power_of_two(-(-n // (8 * depth)), up=True))
    depth = min(depth, 32 // lanes)
    units = -(-n // (8 * lanes * depth))
    if lines.single and units == 1:
        loads = _cuda.power_of_two(-(-n // lanes), up=True)
        return lines.plan(_Division(threads, lanes=lanes, across=most_across, loads=loads))
    while True:
        across = most_across
        if outer * vectors * lanes < 2 * tuning.blocks * threads:
            across = min(32, most_across)  # too few columns to occupy every thread
        runs = max(1, threads // (across * lanes * _cuda.power_of_two(outer)))
        while outer * vectors * lanes * runs < 2 * tuning.blocks * threads and 2 * runs <= units:
            if 2 * runs > threads // (across * lanes):
                break
            runs *= 2
        blocks = tuning.column_blocks * (2 if vector == 1 else 1)
        found = lines.plan(lines.chunked(_Division(threads, runs, lanes, across, depth=depth), units, blocks))
        if found.launches[0].shared_bytes <= _NODES_BYTES or threads == 32:
            return found
        threads //= 2
        most_across = min(most_across, threads)


def _plan_of_rows(lines: _Lines) -> _cuda.Plan:
    """Return the launch for rows."""
    special, tuning, vector = lines.special, lines.tuning, lines.vector
    outer, n, _ = lines.lengths
    threads, commutative = _fitting(tuning.threads, special.scratch_bytes / 32), special.code.op.commutative
    if commutative and _GROUP <= n < _GROUP * vector // 2 and outer * 32 // vector >= 2 * tuning.blocks * threads:
        threads = _fitting(threads, special.scratch_bytes * vector / 32)
        run = _cuda.power_of_two(-(-n // _GROUP), up=True)
        return lines.plan(_Division(threads, lanes=32 // vector, run=run))
    vectors = -(-n // vector)
    if lines.single and vectors <= 8 * 32:
        lanes = min(32, _cuda.power_of_two(-(-vectors // 4), up=True))
        loads = _cuda.power_of_two(-(-vectors // lanes), up=True)
        return lines.plan(_Division(tuning.threads, lanes=lanes, loads=loads))
    if not lines.suits(vector):
        vector = 1
    if lines.grouped:
        vector = min(vector, _cuda.power_of_two(n // _GROUP))
    lines = dataclasses.replace(lines, vector=vector)
    depth = 1
    if not lines.rolled and vector == 1:
        depth = _cuda.power_of_two(min(16 // lines.element, n // (2 * _GROUP)), most=4)
    units = -(-n // (8 * 32 * vector * depth))
    warps = threads // 32
    runs = min(warps, _cuda.power_of_two(units, up=True))
    if units <= _SHARED_LINE and outer >= 2 * tuning.blocks * warps:
        runs = 1
    return lines.plan(lines.chunked(_Division(threads, runs, 32, depth=depth), units, tuning.blocks, tuning.rounds))


def _is_exact(code: Traced) -> bool:
    """Return whether the operator commutes and never rounds."""
    if not (code.op._built_in and code.op.commutative):
        return False
    return len(code.states) == 1 and dtype_kind(code.states[0]) in ("bool", "int", "uint")


def _fitting(threads: int, nbytes: float) -> int:
    """Return the threads of a block that fit with ``nbytes`` bytes each: fewer for elements of very many arrays."""
    while threads > 32 and threads * (nbytes + 1) > _DECLARED_BYTES:
        threads //= 2
    return threads


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, r: Reduction) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    reason = _cuda.refusal(xp, r.arrays) or refused_shapes(r)
    if reason is not None:
        return reason
    try:
        special = specialised(xp, r)
    except Untraceable as reason:
        return str(reason)
    if 2 * (special.scratch_bytes + 1) > _DECLARED_BYTES or len(special.arrays) + len(special.outputs) > _MOST_ARRAYS:
        return f"an element of {len(special.code.states)} arrays does not fit in the shared memory of a block"
    return None


def slower(xp: Namespace, r: Reduction) -> str | None:
    """Return the reason why another method is faster, or None."""
    if is_jax(xp) and native.refusal(xp, r) is None:
        return "XLA's own reduction is as fast, and fuses with the operations before it"
    return None


def prepare(xp: Namespace, r: Reduction) -> Callable[..., Any]:
    """Return a function of the arrays that computes the result by one launch."""
    if r.n == 0 or 0 in r.result_shape:
        nothing: Callable[..., Any] = directly(array)(xp, r)
        return nothing
    special = specialised(xp, r)
    code = special.code
    run = _prepare_totals(xp, special, r)
    if r.initial is not None:
        return with_initial(xp, r, code, run)
    if code.structure is not None:
        return lambda *arrays: assembled(run(*arrays), code.single, code.structure)
    return _cuda.only(run) if code.single else run


def _prepare_totals(xp: Namespace, special: Specialisation, r: Reduction) -> _cuda.Run:
    """Return a function from the arrays of a call to the outputs of the kernel."""
    return _cuda.on_readable(
        xp, r.arrays, lambda arrays: _runner(xp, special, r.on(*arrays)), _on_copies(xp, special, r)
    )


def _runner(xp: Namespace, special: Specialisation, r: Reduction) -> _cuda.Run | None:
    """Return a function that launches the kernel on arrays of these layouts, or None if there is no plan for them."""
    layouts = tuple([_cuda.layout(xp, x) for x in r.arrays])

    def plan() -> _cuda.Plan | None:
        return make_plan(special, _cuda.tuned_for(TUNING, xp, r.arrays[0]), r, layouts)

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        bare = dataclasses.replace(r, arrays=(None,) * len(r.arrays), initial=None, key=None)
        wide = mode(xp)  # JAX calls these functions later, perhaps in another mode

        def otherwise(*arrays: Array) -> tuple[Array, ...]:
            call, names = bare.on(*arrays), special.outputs
            with dtypes_of_64_bits(wide):
                values, _ = flattened(array(xp, call if call.positions is None else call.with_positions(xp)))
                pairs = zip(values[-len(names) :], names, strict=True)
                return tuple([xp.astype(value, dtype_named(xp, name)) for value, name in pairs])

        def batched(*arrays: Array) -> tuple[Array, ...]:
            with dtypes_of_64_bits(wide):
                arrays = tuple(xp.broadcast_arrays(*arrays))
                more = bare.of(*arrays, axes=tuple([axis + 1 for axis in bare.axes]))
                return _prepare_totals(xp, special, more)(*arrays)

        return otherwise, batched

    key = (special.like or special, r.shape, r.axes, r.keepdims, layouts)
    captured = special.code.captured
    return _cuda.ready(xp, r.arrays[0], key, plan=plan, in_program=in_program, captured=captured)


def _on_copies(xp: Namespace, special: Specialisation, r: Reduction) -> _cuda.Run:
    """Return a runner that copies its arrays: they cannot be viewed as (outer, n, inner) with one stride each."""
    kept = tuple([axis for axis in range(len(r.shape)) if axis not in r.axes])
    axes, shape = tuple(range(len(kept), len(r.shape))), r.result_shape
    bare = r.on(*(None,) * len(r.arrays))

    def run(*arrays: Array) -> tuple[Array, ...]:
        moved = [_cuda.contiguous(xp, xp.permute_dims(_cuda.plain(xp, x), kept + bare.axes)) for x in arrays]
        launch = _runner(xp, special, bare.of(*moved, axes=axes, keepdims=False))
        assert launch is not None
        return tuple([xp.reshape(x, shape) for x in launch(*moved)])

    return run


# ---- Every kernel there is, for a compiler without a GPU ----------------------------------------------------------

# Shapes and axes that together reach every kernel: short rows of every width, long rows in one chunk and in
# many, columns from narrow to wide, with the axis short, long, and shared by several blocks.
_LAYOUTS = (
    *(((1 << 16, n), 1) for n in (3, 40, 100, 200, 400, 500)),
    ((1 << 16, 4000), 1),
    ((64, 1 << 16), 1),
    ((1 << 24,), 0),
    *(((4096, n, inner), 1) for n in (2, 9, 100) for inner in (2, 7, 30, 130)),
    ((1 << 20, 3), 0),
    ((1 << 14, 1 << 14), 0),
)


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of a call for every kind of kernel."""
    for shape, axis in _LAYOUTS:
        for dtype in ("int8", "float32", "complex128"):
            yield _case("add", (dtype,), shape, axis)
        yield _case(as_operator(lambda earlier, later: earlier + later), ("float32",), shape, axis)
        yield _case(capturing(0.5), ("float32",), shape, axis)
        yield _case("argmax", ("float32", "int32"), shape, axis, positions=True)
    for shape, axis in (_LAYOUTS[0], _LAYOUTS[8]):
        for dtype in C_TYPES:
            yield _case("add", (dtype,), shape, axis)
        yield _case("welford", ("float64",) * 3, shape, axis)
    for shape, axis in (_LAYOUTS[7], _LAYOUTS[-1]):
        for dtype in C_TYPES:
            yield _case("add", (dtype,), shape, axis)
            kind = dtype.rstrip("0123456789")
            if kind not in ("bool", "complex"):
                yield _case("maximum", (dtype,), shape, axis)
                yield _case("argmin", (dtype, "int64"), shape, axis)
            if kind in ("float", "bfloat"):
                yield _case("logaddexp", (dtype,), shape, axis)
                yield _case("welford", (dtype,) * 3, shape, axis)
            if kind in ("bool", "int", "uint"):
                yield _case("bitwise_xor", (dtype,), shape, axis)
            if kind != "bool":
                yield _case("multiply", (dtype,), shape, axis)
                yield _case("affine", (dtype,) * 2, shape, axis)
                yield _case("add", (dtype,) * 2, shape, axis, fn=conjugate_product)
            yield _case("logical_or", (dtype,), shape, axis, fn=None if kind == "bool" else is_nonzero)
        yield _case(segmented("add"), ("bool", "float32"), shape, axis)
        yield _case("add", ("float32",), shape, axis, unaligned=True)
        for dtypes in (("int8", "int32"), ("float16", "int32"), ("float64", "int32"), ("float32", "int64")):
            yield _case("argmax", dtypes, shape, axis, positions=True)


def _case(
    op: str | Operator,
    dtypes: tuple[str, ...],
    shape: tuple[int, ...],
    axis: int,
    fn: Map | None = None,
    *,
    unaligned: bool = False,
    positions: bool = False,
) -> tuple[str, _cuda.Plan]:
    from array_api_compat import numpy as xp

    operator = BUILT_IN[op] if isinstance(op, str) else op
    counted = xp.int64 if positions else None
    r = Reduction(arrays=(), shape=shape, fn=fn, single=len(dtypes) == 1, op=operator, axes=(axis,), positions=counted)
    layouts = ((row_major(shape), 4 if unaligned else 0),) * (len(dtypes) - positions)
    plan = make_plan(specialise(xp, r, dtypes), TUNING[90], r, layouts)
    assert plan is not None
    ways = (" mapped" * (fn is not None), " unaligned" * unaligned, " by position" * positions)
    return f"{operator.name} {','.join(dtypes)}{''.join(ways)}", plan
