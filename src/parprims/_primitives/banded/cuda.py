"""Systems with narrow bands by a CUDA kernel: a thread for each system, and elimination with row exchanges."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, cast, dtype_bits, dtype_name, is_jax, mode
from parprims._dispatch import derivative_rules
from parprims._dispatch.derivative_rules import linear_system
from parprims._dispatch.dispatch import directly
from parprims._operators.languages import C_TYPES
from parprims._primitives.banded.array import array
from parprims._primitives.banded.call import System
from parprims._primitives.banded.matrix import Matrix, by_reflections

MOST_ROWS = {"float32": 4, "float64": 4, "complex64": 4, "complex128": 2}
"""The most rows of a group, by the dtype of computation: a thread keeps 6 k^2 numbers for k rows."""


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """How the kernel divides its work on devices of one compute capability. No bits depend on it."""

    threads: int
    """Threads of a block."""
    ahead_bytes: int
    """The most bytes of a group of rows that are loaded while the group before is eliminated."""


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` gives the entry of any other device."""

_FEWEST, _SHORT, _SHORT_OF_OPERATIONS = 512, 64, 1 << 14
"""The fewest systems for the kernel if they have more rows than ``_SHORT``: estimated, not measured.

A row takes the kernel about 1 us. Outside of programs of JAX the array form takes some hundred operations of the
library, tens of us each.
"""


@dataclasses.dataclass(frozen=True)
class Kind:
    """The specialisation of a plan, besides sizes.

    ``widths`` are the numbers of diagonals below and above the main diagonal, or None for blocks of ``k`` rows.
    Diagonals are stored ``by_column``, as callers pass them, or by row. ``shared`` has a flag for each array of
    coefficients: whether all systems share it.
    """

    dtype: str
    widths: tuple[int, int] | None
    k: int
    periodic: bool
    by_column: bool
    shared: tuple[bool, ...]


def make_plan(kind: Kind, tuning: Tuning, systems: int, n: int, columns: int) -> _cuda.Plan:
    """Return the launch for ``systems`` systems of n rows, or n blocks, with ``columns`` right-hand sides each.

    Inputs are the diagonals (systems, l + u + 1, n), or the three arrays of blocks (systems, n, k, k), and right-hand
    sides (systems, rows, columns). The output has the shape of the right-hand sides.
    """
    numbers, k, c_type = _cuda.Numbers(), kind.k, C_TYPES[kind.dtype]
    nbytes, single, rows = dtype_bits(kind.dtype) // 8, columns == 1, n if kind.widths is not None else n * k
    if kind.widths is None:
        apart = [numbers("apart", 0 if shared else n * k * k) for shared in kind.shared]
        pointers = [_cuda.Pointer(f"in{index}", f"const {c_type}") for index in range(3)]
        name = f"banded::Blocks<{c_type}, {k}>"
        of = _cuda.Struct(*pointers, *apart, numbers("groups", n), type=name)
    else:
        below, above = kind.widths
        name = f"banded::Bands<{c_type}, {k}, {str(kind.by_column).lower()}>"
        of = _cuda.Struct(
            _cuda.Pointer("in0", f"const {c_type}"),
            numbers("apart", 0 if kind.shared[0] else (below + above + 1) * n),
            *(numbers("below", below), numbers("above", above), numbers("n", n)),
            type=name,
        )
    if kind.periodic:
        of = _cuda.Struct(of, type=f"banded::Folded<{c_type}, {k}, {name}>")
    together = k * (1 + kind.periodic)
    saved = together * (together + 1) // 2 + 2 * together**2 + together * single
    launch = _cuda.Launch(
        _cuda.device_source("_primitives/banded/banded.cu"),
        "banded::solve",
        (c_type, together, single, 3 * together**2 * nbytes <= tuning.ahead_bytes, tuning.threads),
        (
            of,
            _cuda.Pointer(f"in{len(kind.shared)}", f"const {c_type}"),
            _cuda.Pointer("out0", c_type),
            _cuda.Pointer("temporary", c_type),
            numbers("systems", systems),
            numbers("columns", columns),
        ),
        grid=-(-systems // tuning.threads),
        block=tuning.threads,
        unbound_registers=True,
    )
    return _cuda.Plan(
        (launch,),
        len(kind.shared) + 1,
        (((systems, rows, columns), kind.dtype),),
        numbers.all(),
        temporary_bytes=systems * -(-rows // together) * saved * nbytes,
    )


# ---- The method -------------------------------------------------------------------------------------------------


def _rows_of(s: System) -> int:
    """Return the number of rows of a block, or for diagonals of a group."""
    return max(1, *s.widths) if s.widths is not None else int(s.arrays[1].shape[-1])


def refusal(xp: Namespace, s: System) -> str | None:
    """Return the sentence why the kernel cannot serve the call, or None."""
    most = MOST_ROWS.get(dtype_name(s.working))
    if most is None:
        return f"the kernel has no dtype {dtype_name(s.working)}"
    rows, most = _rows_of(s), most // (1 + s.periodic)
    if rows > most:
        what = "diagonals on one side" if s.widths is not None else "rows of a block"
        of = "periodic systems" if s.periodic else "systems"
        return f"there is no kernel of {of} with more than {most} {what} in {dtype_name(s.working)}, got {rows}"
    return _cuda.refusal(xp, tuple([derivative_rules.detached(x) for x in s.arrays]))


def slower(xp: Namespace, s: System) -> str | None:
    """Return the sentence why another method is to be preferred, or None."""
    systems = math.prod(s.batch)
    if s.n <= (_SHORT if is_jax(xp) else _SHORT_OF_OPERATIONS) or systems >= _FEWEST:
        return None
    return f"one thread solves a system: {systems} systems are too few to fill the device"


def prepare(xp: Namespace, s: System) -> Callable[..., Array]:
    """Return a function that solves by the kernel, with derivatives that call the kernel too."""
    if 0 in s.results[0][0]:
        nothing: Callable[..., Array] = directly(array)(xp, s)
        return nothing
    (shape, dtype), bare, batch, k = s.results[0], s.on(*(None,) * len(s.arrays)), s.batch, _rows_of(s)
    systems, columns = math.prod(batch), shape[-1] if s.columns else 1
    rows = s.n * (k if s.widths is None else 1)
    bands = 2 if s.widths is not None else 3  # the axes of an array of coefficients that count no systems

    def run(matrix: Matrix, by_column: bool, coefficients: tuple[Array, ...], b: Array) -> Array:
        inputs = [_flat(xp, x, batch, systems=systems, dimensions=bands) for x in coefficients]
        right = _cuda.contiguous(xp, xp.reshape(_cuda.plain(xp, b), (systems, rows, columns)))
        shared = tuple([x.shape[0] < systems for x in inputs])
        kind = Kind(
            dtype_name(bare.working),
            widths=matrix.widths,
            k=k,
            periodic=bare.periodic,
            by_column=by_column,
            shared=shared,
        )
        return _runner(xp, kind, matrix, inputs[0].shape, right=right)(*inputs, right)[0]

    def solve(_: Namespace, matrix: Matrix, coefficients: tuple[Array, ...], b: Array) -> Array:
        if matrix.widths is not None:
            coefficients = (xp.stack(list(coefficients), axis=-2),)
        return xp.reshape(run(matrix, False, coefficients, b), b.shape)

    def differentiable(*arrays: Array) -> Array:
        x = linear_system(xp, bare.matrix, solve, *bare.parts(xp, *arrays))
        return cast(xp, xp.reshape(x, shape), dtype)

    def solved(*arrays: Array) -> Array:
        *coefficients, b = [cast(xp, x, bare.working) for x in arrays]
        if b.shape != shape:
            b = xp.broadcast_to(b, shape)
        return cast(xp, xp.reshape(run(bare.matrix, True, tuple(coefficients), b), shape), dtype)

    return differentiable if derivative_rules.asked_by_torch(s.arrays) else solved


def _flat(xp: Namespace, x: Array, batch: tuple[int, ...], systems: int, dimensions: int) -> Array:
    """Return coefficients with a single axis of systems, of length 1 if all systems share them."""
    x = _cuda.plain(xp, x)
    shape = tuple(x.shape[x.ndim - dimensions :])
    if math.prod(x.shape[: x.ndim - dimensions]) == 1:
        return _cuda.contiguous(xp, xp.reshape(x, (1, *shape)))
    return _cuda.contiguous(xp, xp.reshape(xp.broadcast_to(x, (*batch, *shape)), (systems, *shape)))


def _runner(xp: Namespace, kind: Kind, matrix: Matrix, coefficients: tuple[int, ...], *, right: Array) -> _cuda.Run:
    """Return a function that launches the kernel on coefficients of a shape and right-hand sides like an array."""
    systems, rows, columns = sides = right.shape

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        def otherwise(*arrays: Array) -> tuple[Array, ...]:
            *coefficients, b = arrays
            if kind.widths is None:
                b = xp.reshape(b, (systems, matrix.n, kind.k, columns))
            by_row = matrix.coefficients(xp, *coefficients)
            solution = linear_system(xp, matrix, by_reflections, tuple(by_row), b=b)
            return (xp.reshape(solution, sides),)

        def batched(*arrays: Array) -> tuple[Array, ...]:
            size = max(x.shape[0] for x in arrays)

            def together(x: Array) -> Array:
                if x.shape[:2] == (1, 1):
                    return x[0]
                return xp.reshape(xp.broadcast_to(x, (size, systems, *x.shape[2:])), (-1, *x.shape[2:]))

            sides_of_all = xp.broadcast_to(arrays[-1], (size, *sides))
            merged = [*map(together, arrays[:-1]), xp.reshape(sides_of_all, (size * systems, rows, columns))]
            shared = tuple([x.shape[0] < size * systems for x in merged[:-1]])
            more = dataclasses.replace(kind, shared=shared)
            run = _runner(xp, more, matrix, merged[0].shape, right=merged[-1])
            return (xp.reshape(run(*merged)[0], (size, *sides)),)

        return otherwise, batched

    def plan() -> _cuda.Plan:
        return make_plan(kind, _cuda.tuned_for(TUNING, xp, right), systems=systems, n=matrix.n, columns=columns)

    return _cuda.ready(xp, right, ("banded", mode(xp), kind, matrix, coefficients, sides), plan, in_program=in_program)


# ---- Every kernel there is, for a compiler without a GPU ----------------------------------------------------------


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of every kind of kernel."""
    for dtype, most in MOST_ROWS.items():
        for k, periodic in [(k, False) for k in range(1, most + 1)] + [(k, True) for k in range(1, most // 2 + 1)]:
            for columns in (1, 3):
                for widths in (None, (k, k)):
                    kind = Kind(
                        dtype,
                        widths=widths,
                        k=k,
                        periodic=periodic,
                        by_column=True,
                        shared=(False,) * (3 if widths is None else 1),
                    )
                    name = "blocks" if widths is None else "bands"
                    yield f"{name} {dtype}", make_plan(kind, TUNING[90], systems=8192, n=32, columns=columns)
    kind = Kind("float64", widths=(2, 2), k=2, periodic=False, by_column=False, shared=(False,))
    yield "bands by row float64", make_plan(kind, TUNING[90], systems=8192, n=32, columns=1)
