"""The CUDA kernel of merges: of two runs in each row, which are whole rows or begin where an array says."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, cast, dtype_kind, dtype_name, mode, move_axis
from parprims._cuda import Launch, Numbers, Plan, Pointer, Struct
from parprims._dispatch.watch import unwatched
from parprims._operators.languages import C_TYPES
from parprims._primitives.search.merges.array import rows_joined
from parprims._primitives.search.merges.call import Merge
from parprims._primitives.sort.cuda import WORDS, Specialisation
from parprims._primitives.sort.public import sort, sort_by_key

# ---- Tuning -----------------------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """The tile for keys of up to ``key_bytes``: a block has ``threads`` threads, and a thread ``items`` keys."""

    key_bytes: int
    threads: int
    items: int


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """The sizes that the kernel uses on devices of one compute capability. Results do not depend on them."""

    tiles: tuple[Tile, ...]
    """By the bytes of a key."""
    alone: int
    """The most tiles that are merged in one launch. For more, a launch before finds where they begin."""

    scaled = ("alone",)


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` gives the entry of any other device."""


# ---- Plans ------------------------------------------------------------------------------------------------------


class Runs(NamedTuple):
    """The sizes that a plan depends on.

    ``first``, ``second`` and ``n`` are the lengths of rows: of both runs, and of the result. ``bound`` is the dtype of
    an array of shape (rows, 5), or None where runs are whole rows. Its columns are the beginning and the length of the
    first run, the beginning and the length of the second run, and 1 if the second run's keys come first among equal
    keys, else 0. The lengths add up to at most ``n``.
    """

    rows: int
    first: int
    second: int
    n: int
    bound: str | None = None


def plan(spec: Specialisation, names: tuple[str, ...], runs: Runs, shape: tuple[int, ...], tuning: Tuning) -> Plan:
    """Return the launches that merge, given the dtypes of keys and values by name and the shape of the results."""
    numbers = Numbers()
    tile = next(entry for entry in tuning.tiles if spec.key_bytes <= entry.key_bytes)
    tiles = -(-runs.n // (tile.threads * tile.items))
    words = [spec.word, *(WORDS[nbytes] for nbytes in spec.values)]
    bounds, bound = None, "int"
    if runs.bound is not None:
        bound = C_TYPES[runs.bound]
        bounds = Pointer(f"in{2 * len(words)}", f"const {bound}")
    arrays = [
        Struct(
            Pointer(f"in{index}", f"const {word}"),
            Pointer(f"in{len(words) + index}", f"const {word}"),
            Pointer(f"out{index}", word),
            type=f"Merged<{word}>",
        )
        for index, word in enumerate(words)
    ]
    sizes = [numbers(name, value) for name, value in zip(("first", "second", "n"), runs[1:4], strict=True)]
    parameters = arrays[0], Struct(bounds, *sizes, numbers("tiles", tiles), type=f"Runs<{bound}>")
    source, count = spec.source("_primitives/search/merge.cu"), runs.rows * (tiles + 1)
    first: tuple[Launch, ...] = ()
    splits = None
    if runs.rows * tiles > tuning.alone:
        splits = Pointer("scratch", "Index")
        first = (
            Launch(
                source=source,
                template="find_splits",
                arguments=(tile.threads * tile.items, "Order", bound),
                parameters=(*parameters, splits, numbers("splits", count)),
                grid=-(-count // 128),
                block=128,
            ),
        )
    launch = Launch(
        source=source,
        template="merge_runs",
        arguments=(tile.threads, tile.items, "Order", bound, *(f"Merged<{word}>" for word in words[1:])),
        parameters=(*parameters, splits, *arrays[1:]),
        grid=runs.rows * tiles,
        block=tile.threads,
    )
    return Plan(
        (*first, launch),
        2 * len(words) + (bounds is not None),
        tuple((shape, name) for name in names),
        numbers.all(),
        scratch_bytes=8 * count * len(first),
    )


# ---- Calls ------------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, arrays: tuple[Array, ...]) -> str | None:
    """Return the sentence why the kernel cannot merge arrays, or None."""
    for x in arrays:
        if dtype_kind(x.dtype) == "other":
            return f"the kernel does not move values of dtype {dtype_name(x.dtype)}"
    return _cuda.refusal(xp, arrays)


def merger(
    xp: Namespace, arrays: tuple[Array, ...], n: int, descending: bool, bound: str | None, otherwise: _cuda.Run
) -> _cuda.Run:
    """Return a function that merges contiguous arrays along their last axis.

    Parameters
    ----------
    xp : namespace
        The namespace of the arrays.
    arrays : tuple of array
        The keys and values of the first run, then the keys and values of the second run, of equal dtypes.
    n : int
        The length of a row of the result.
    descending : bool
        Whether the largest key comes first.
    bound : str or None
        The dtype of a last argument of shape (rows, 5), see `Runs`.
    otherwise : callable
        Merges in a program of JAX without a CUDA device, and has the derivatives.
    """
    each = len(arrays) // 2
    shape = (*arrays[0].shape[:-1], n)
    names = tuple([dtype_name(x.dtype) for x in arrays[:each]])
    runs = Runs(rows=math.prod(shape[:-1]), first=arrays[0].shape[-1], second=arrays[each].shape[-1], n=n, bound=bound)
    spec = Specialisation(
        names[0],
        descending=descending,
        keyed=True,
        values=tuple([x.dtype.itemsize for x in arrays[1:each]]),
        index=None,
    )

    return _cuda.ready(
        xp,
        arrays[0],
        ("merge", mode(xp), names, runs, shape, descending),
        lambda: plan(spec, names, runs, shape, tuning=_cuda.tuned_for(TUNING, xp, arrays[0])),
        in_program=lambda: (otherwise, _cuda.row_by_row(otherwise)),
    )


def prepare(xp: Namespace, c: Merge) -> Callable[..., tuple[Array, ...]]:
    """Return a function of the arrays of a call of `merge` that launches the kernel."""
    axis, descending, dtypes, each, last = c.axis, c.descending, c.dtypes, c.each, len(c.shape) - 1
    lengths = [c.arrays[index].shape[axis] for index in (0, each)]
    if 0 in c.shape or 0 in lengths:
        return lambda *arrays: rows_joined(xp, arrays, dtypes, axis)

    def laid_out(*arrays: Array) -> tuple[Array, ...]:
        ready = (cast(xp, x, dtype) for x, dtype in zip(arrays, dtypes * 2, strict=True))
        return tuple([_cuda.contiguous(xp, _cuda.plain(xp, move_axis(xp, x, axis, -1))) for x in ready])

    def otherwise(*arrays: Array) -> tuple[Array, ...]:
        rows = rows_joined(xp, arrays, dtypes, -1)
        with unwatched():
            if each == 1:
                return (sort(*rows, descending=descending, method="native"),)
            return sort_by_key(*rows, descending=descending, method="native")

    arrays, arranged = _cuda.arranged(laid_out, c.arrays)
    run = arranged(merger(xp, arrays, sum(lengths), descending=descending, bound=None, otherwise=otherwise))
    return run if axis == last else lambda *arrays: tuple([move_axis(xp, x, -1, axis) for x in run(*arrays)])


# ---- Kernels to compile without a GPU ---------------------------------------------------------------------------


def cases() -> Iterator[tuple[str, Plan]]:
    """Yield the name and the plan of every kind of merge."""
    for dtype in "bool int8 int16 int32 int64 uint8 uint32 uint64 float16 bfloat16 float32 float64".split():
        for values in ((), (4,)) if dtype in ("float32", "int64") else ((),):
            for bound in (None, "int32", "int64") if dtype in ("float32", "uint64") else (None,):
                spec = Specialisation(dtype, descending=dtype == "int32", keyed=True, values=values, index=None)
                runs = Runs(rows=1, first=1 << 20, second=1 << 20, n=1 << 21, bound=bound)
                names = (dtype, *("float32" for _ in values))
                yield f"merge {dtype} values {values} {bound}", plan(spec, names, runs, (runs.n,), tuning=TUNING[90])
    small = Runs(1, 1000, 1000, 2000)
    spec = Specialisation("float32", descending=False, keyed=True, values=(), index=None)
    yield "merge float32 of few", plan(spec, ("float32",), small, (2000,), tuning=TUNING[90])
    wide = Specialisation("float64", descending=False, keyed=True, values=(1, 2, 8, 16), index=None)
    runs = Runs(3, 1000, 2000, 3000)
    yield (
        "merge wide",
        plan(wide, ("float64", "int8", "int16", "int64", "complex128"), runs, (3, 3000), tuning=TUNING[90]),
    )
