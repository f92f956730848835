"""Tridiagonal systems by CUDA kernels: refusals, the launches for short systems, and the prepared call."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, broadcast_shapes, dtype_name
from parprims._core.layout import row_major
from parprims._dispatch.dispatch import directly
from parprims._primitives.tridiagonal.array import array, empty
from parprims._primitives.tridiagonal.call import LAPACK, System
from parprims._primitives.tridiagonal.long_cuda import counts, make_long_plan
from parprims._primitives.tridiagonal.problem import (
    TUNING,
    Block,
    Problem,
    Tuning,
    block_in_order,
    exchanging_block,
    fits_block,
    make_batch,
    rows_wait,
    source,
    stable_block,
)

# ---- Plan -------------------------------------------------------------------------------------------------------


def make_plan(problem: Problem, tuning: Tuning) -> _cuda.Plan | None:
    """Return the launches for a problem, or None if its arrays have too many axes."""
    fits = fits_block(tuning, problem.nbytes, problem.n)
    return (make_short_plan if fits else make_long_plan)(problem, tuning)


def make_short_plan(problem: Problem, tuning: Tuning) -> _cuda.Plan | None:
    """Return the launches for systems that fit in a block, or None if their arrays have too many axes.

    A launch leaves the systems that it does not solve to later ones, by worklists in scratch.
    """
    batch = make_batch(problem)
    if batch is None:
        return None
    n, systems, interleaved = problem.n, problem.systems, batch.interleaved
    is_float32 = problem.dtype == "float32"
    everything = _cuda.Struct(type="Worklist")
    left = [
        _cuda.Struct(
            _cuda.Pointer("zeroed", "unsigned", elements=2 * index),
            _cuda.Pointer("temporary", "unsigned", elements=batch.systems if index else 0),
            type="Worklist",
        )
        for index in range(2)
    ]

    def launch(
        solver: str,
        block: Block,
        arguments: tuple[_cuda.Argument, ...],
        *,
        lists: tuple[_cuda.Struct, ...],
        resident: int,
        most: int | None = None,
        due: _cuda.Struct = everything,
    ) -> _cuda.Launch:
        blocks = -(-systems // block.systems)
        if most is not None:
            # No more blocks than the device holds at once: later blocks would only wait to find that no system is left.
            together = min(16, 2048 // block.size, tuning.shared_bytes // max(block.shared_bytes, 1))
            blocks = min(blocks, max(1, most * max(1, together) // 16))
        return _cuda.Launch(
            source(solver),
            f"solve_{solver.replace(' ', '_')}",
            (problem.type, block.rows, block.threads, block.systems, interleaved, *arguments),
            (*batch.parameter.fields, *lists),
            grid=blocks,
            block=block.size,
            shared_bytes=block.shared_bytes,
            resident_blocks=resident,
            if_any=counts(due),
        )

    def in_order(is_checked: bool, remaining: _cuda.Struct) -> _cuda.Launch:
        block = block_in_order(tuning, problem.nbytes, n, interleaved)
        # Few enough registers that two blocks of interleaved systems fit on a multiprocessor.
        two = interleaved and is_float32 and block.rows == 8 and block.size <= 512
        resident = 2 if two else 0
        return launch("in order", block, (is_checked, *batch.access), lists=(remaining,), resident=resident)

    def exchanging(listed: _cuda.Struct, remaining: _cuda.Struct, most: int | None) -> _cuda.Launch:
        block = exchanging_block(tuning, problem.nbytes, n, interleaved)
        waits = rows_wait(tuning, problem.nbytes, block.threads, interleaved)
        resident = 0
        if waits and (is_float32 or not interleaved):
            rows = tuning.resident_threads_exchanging[problem.nbytes] * tuning.rows_exchanging[problem.nbytes]
            resident = -(-rows // (block.rows * block.size))
        elif is_float32 and block.threads <= 16:
            resident = tuning.resident_blocks_exchanging
        return launch(
            "exchanging",
            block,
            (waits, *batch.access),
            lists=(listed, remaining),
            resident=resident,
            most=most,
            due=listed,
        )

    def stable(pivot: str, listed: _cuda.Struct, most: int | None = None) -> _cuda.Launch:
        block = stable_block(tuning, problem.nbytes, n, interleaved)
        resident = tuning.resident_blocks if is_float32 and block.size <= tuning.threads else 0
        arguments = pivot.upper(), problem.periodic
        return launch("stable", block, arguments, lists=(listed,), resident=resident, most=most, due=listed)

    launches: tuple[_cuda.Launch, ...]
    lists = False
    if problem.periodic or systems >= 2**32:
        launches = (stable(problem.pivot, everything),)
    elif problem.pivot == "none":
        launches = (in_order(False, everything),)
    else:
        # Blocks take the systems that are left in turn. If none are left, only few blocks have to find that out.
        lists, most = True, tuning.blocks
        if problem.pivot == "auto":
            launches = in_order(True, left[0]), exchanging(left[0], left[1], most), stable("partial", left[1], most)
        else:
            launches = exchanging(everything, left[1], None), stable("partial", left[1], most)
    return _cuda.Plan(
        launches,
        4,
        ((problem.whole, problem.dtype),),
        batch.numbers.all(),
        zeroed_bytes=16 * lists,
        temporary_bytes=8 * systems * lists,
    )


# ---- Calls ------------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, s: System) -> str | None:
    """Return why the kernels cannot serve a call, or None."""
    reason = _cuda.refusal(xp, s.arrays)
    if reason is not None:
        return reason
    dtype = dtype_name(s.rhs.dtype)
    if dtype not in LAPACK:
        return f"the kernel does not compute in {dtype}"
    return None


def prepare(xp: Namespace, s: System) -> Callable[..., Array]:
    """Return a function that computes the solutions by CUDA kernels, in one launch or several."""
    if 0 in s.shape:
        return directly(empty)(xp, s)
    bare = s.on(*(None,) * len(s.arrays))
    # Arrays with more than three axes besides the axis of the unknowns are copied. Copies have at most two such axes.
    run = _cuda.on_readable(
        xp, s.arrays, lambda arrays: _runner(xp, s, arrays), lambda *arrays: (_on_copies(xp, bare.on(*arrays)),)
    )
    return lambda *arrays: run(*arrays)[0]


def _on_copies(xp: Namespace, s: System) -> Array:
    copies = (*s.coefficients(xp), xp.broadcast_to(s.rhs, s.shape))
    arrays = tuple([_cuda.contiguous(xp, _cuda.plain(xp, x)) for x in copies])
    run = _runner(xp, s, arrays)
    assert run is not None
    return run(*arrays)[0]


def _runner(xp: Namespace, s: System, arrays: tuple[Array, ...]) -> _cuda.Run | None:
    """Return a function of such arrays that launches the kernels, or None if the arrays have too many axes."""
    # If rhs has more axes than the coefficients, its first axis counts right-hand sides.
    columns = s.shape[0] if len(s.shape) > len(s.rows) else 0
    problem = Problem(
        shape=s.shape[1:] if columns else s.shape,
        axis=s.axis,
        periodic=s.periodic,
        pivot=s.pivot,
        dtype=dtype_name(s.rhs.dtype),
        columns=columns,
        shapes=tuple([tuple(x.shape) for x in arrays]),
        layouts=tuple([_cuda.layout(xp, x) for x in arrays]),
    )

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        axis, periodic, pivot = s.axis, s.periodic, s.pivot

        def system(arrays: tuple[Array, ...]) -> System:
            shape = broadcast_shapes(*(x.shape for x in arrays))
            rows = broadcast_shapes(*(x.shape for x in arrays[:3]), (shape[axis], *(1,) * (-1 - axis)))
            return System(
                arrays=arrays, rows=tuple(rows), shape=tuple(shape), axis=axis, periodic=periodic, pivot=pivot
            )

        def otherwise(*arrays: Array) -> tuple[Array, ...]:
            return (array(xp, system(arrays)),)

        def batched(*arrays: Array) -> tuple[Array, ...]:
            # The new axis leads. Every array gets axes of length 1 after it, up to the number of axes of the solution.
            ndim = max(x.ndim for x in arrays)
            aligned = tuple(xp.reshape(x, (x.shape[0], *(1,) * (ndim - x.ndim), *x.shape[1:])) for x in arrays)
            return (prepare(xp, system(aligned))(*aligned),)

        return otherwise, batched

    def plan() -> _cuda.Plan | None:
        return make_plan(problem, _cuda.tuned_for(TUNING, xp, arrays[3]))

    return _cuda.ready(xp, arrays[3], problem, plan, in_program=in_program)


# ---- Kernels to compile without a GPU ---------------------------------------------------------------------------

# Shapes and axes of systems that a thread, a warp and a block hold; of interleaved systems; of the longest that fit.
_SHAPES = (
    ((1 << 16, 5), -1),
    ((1 << 16, 128), -1),
    ((1 << 14, 512), -1),
    ((1 << 12, 2000), -1),
    ((1 << 12, 4096), -1),
    ((1 << 8, 8000), -1),
    ((128, 1 << 16), -2),
    ((1000, 1 << 12), -2),
)


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield names and plans of solves that reach every branch of the templates."""
    for shape, axis in _SHAPES:
        for dtype in LAPACK:
            for pivot in ("auto", "partial", "none"):
                if pivot != "partial" or dtype == "float32":
                    yield _case(shape, axis, dtype, pivot)
            yield _case(shape, axis, dtype, "auto", periodic=True)
    for dtype in LAPACK:
        yield _case((4, 1 << 24), -1, dtype, "auto")
        yield _case((1 << 16,), -1, dtype, "auto")
        yield _case((4, 1 << 24), -1, dtype, "none", periodic=True)


def _case(
    shape: tuple[int, ...], axis: int, dtype: str, pivot: str, *, periodic: bool = False
) -> tuple[str, _cuda.Plan]:
    problem = Problem(
        shape=shape,
        axis=axis,
        periodic=periodic,
        pivot=pivot,
        dtype=dtype,
        columns=0,
        shapes=(shape,) * 4,
        layouts=((row_major(shape), 0),) * 4,
    )
    plan = make_plan(problem, TUNING[90])
    assert plan is not None
    return f"solve {dtype}", plan
