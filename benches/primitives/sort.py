"""Sorting: keys per second; the ceiling is one read and one write of all keys and values at the copy rate."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale, library
from benches.core.one_thread import on_one_thread
from benches.core.problems import PIECE, cores, drawn
from benches.peers import by_numba


def keys(rng, n, dtype):
    """Return random keys over the whole range of a dtype, for floats standard normals."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return drawn(rng, n, dtype, lambda own, length: own.standard_normal(length, dtype))
    ends = np.iinfo(dtype).min, np.iinfo(dtype).max
    return drawn(rng, n, dtype, lambda own, length: own.integers(*ends, length, dtype, endpoint=True))


def merged(runs, piece):
    """Return ``piece(parts)`` of what all runs hold between two keys, one after another, on all cores.

    ``runs`` are tuples of arrays of one length, the first with ascending keys.
    """
    samples = np.sort(np.concatenate([run[0][::1024] for run in runs]))
    cuts = samples[:: len(samples) // 64 + 1][1:]
    ends = [[0, *np.searchsorted(run[0], cuts), len(run[0])] for run in runs]

    def part(at):
        rows = [tuple(x[end[at] : end[at + 1]] for x in run) for run, end in zip(runs, ends, strict=True)]
        return piece(*map(np.concatenate, zip(*rows, strict=True)))

    return np.concatenate(list(cores().map(part, range(len(cuts) + 1))))


def sort(x):
    """Return np.sort(x) by all cores."""
    if x.size <= PIECE:
        return np.sort(x)
    runs = list(cores().map(np.sort, np.array_split(x, 64)))
    if x.ndim > 1:
        return np.concatenate(runs)
    return merged([(run,) for run in runs], lambda keys: np.sort(keys, kind="stable"))


def argsort(x):
    """Return np.argsort(x, kind="stable") by all cores."""
    if x.size <= PIECE:
        return np.argsort(x, kind="stable")
    starts = range(0, x.size, PIECE)

    def run(start):
        order = np.argsort(x[start : start + PIECE], kind="stable") + start
        return x[order], order

    return merged(list(cores().map(run, starts)), lambda keys, order: order[np.argsort(keys, kind="stable")])


def sort_problem(rng, n, dtype, below=None, shape=None):
    """Return keys, perhaps only below a number, in rows if there is a shape."""
    if below is None:
        x = keys(rng, n, dtype)
    else:
        x = drawn(rng, n, dtype, lambda own, length: own.integers(0, below, length, dtype))
    x = x if shape is None else x.reshape(shape)
    return Problem((x,), sort(x))


def skewed_problem(rng, n, dtype, kind):
    x = keys(rng, n, dtype)
    if kind == "all equal":
        x[:] = x[0]
    elif kind == "few distinct":
        x = x[:16][rng.integers(0, 16, n)]
    elif kind == "entropy 0.2":  # of five bits drawn for each bit, all have to be set
        for _ in range(4):
            x &= keys(rng, n, dtype)
    answer = sort(x)
    return Problem(({"sorted": answer, "reversed": answer[::-1].copy()}.get(kind, x),), answer)


def argsort_problem(rng, n, dtype):
    x = keys(rng, n, dtype)
    return Problem((x,), argsort(x))


def by_key_problem(rng, n, dtype):
    # Few distinct keys beside the number of elements, so that a sort which is not stable shows.
    x = keys(rng, n, dtype) % np.array(n // 4, dtype)
    values = np.arange(n, dtype=dtype)
    order = argsort(x)
    return Problem((x, values), (x[order], values[order]))


def related_problem(rng, n, dtype):
    """Return keys with values that follow from them: more than a host sorts by key in the time."""
    x = keys(rng, n, dtype)
    answer = sort(x)
    factor = np.array(2_654_435_761 & np.iinfo(dtype).max, dtype)
    return Problem((x, x * factor), (answer, answer * factor))


@functools.lru_cache(maxsize=1)
def _cuda_compute(n, *dtypes):
    """Return cuda.compute's sorter of keys and perhaps values, and its scratch, made once for a case."""
    import cupy
    from cuda.compute import SortOrder, make_radix_sort

    arrays = _sort_arguments([cupy.empty(n, dtype) for dtype in dtypes])
    sorter = make_radix_sort(**arrays, order=SortOrder.ASCENDING)
    return sorter, cupy.empty(sorter(temp_storage=None, num_items=n, **arrays), np.uint8)


def _sort_arguments(arrays):
    import cupy

    names = ("d_in_keys", "d_out_keys", "d_in_values", "d_out_values")
    pairs = [one for x in arrays for one in (x, cupy.empty_like(x))]
    return dict(zip(names, [*pairs, None, None], strict=False))


def by_cuda_compute(_, *arrays):
    sorter, scratch = _cuda_compute(arrays[0].size, *(x.dtype for x in arrays))
    arguments = _sort_arguments(arrays)
    sorter(temp_storage=scratch, num_items=arrays[0].size, **arguments)
    out = tuple(arguments[name] for name in ("d_out_keys", "d_out_values"))
    return out if len(arrays) == 2 else out[0]


SORT = {
    **library(lambda xp, x: xp.sort(x), torch=lambda torch, x: torch.sort(x)[0]),
    "numba": lambda _, x: by_numba.sort(x),
    "cuda.compute": by_cuda_compute,
}
ARGSORT = {
    **library(
        lambda xp, x: xp.argsort(x, kind="stable"),
        torch=lambda torch, x: torch.sort(x, stable=True)[1],
        jax=lambda jnp, x: jnp.argsort(x, stable=True),
    ),
    "numba": lambda _, x: by_numba.argsort(x),
}


def by_argsort(xp, x, values):
    order = ARGSORT[xp.__name__](xp, x)
    return x[order], values[order]


def by_torch_sort(torch, x, values):
    x, order = torch.sort(x, stable=True)
    return x, values[order]


def by_jax_sort(_, x, values):
    import jax

    return jax.lax.sort((x, values), num_keys=1)


SORT_BY_KEY = {
    **library(by_argsort, torch=by_torch_sort, jax=by_jax_sort),
    "numba": lambda _, x, values: by_numba.sort_by_key(x, values),
    "cuda.compute": by_cuda_compute,
}


LARGE = 2**26
TIMED_SMALLER = {"array": "it is timed at smaller sizes"}
# XLA takes up to ten seconds and more to compile it, whatever the size.
TIMED_ONCE = dict.fromkeys(
    ("jax-cuda array", "jax array"), "it is timed as sort by every method and as key and value int32, 2^20"
)


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    found = []

    def add(function, name, make, peers, n, dtype, *, whole_call=False, **options):
        make = functools.partial(make, n=n, dtype=dtype, **options)
        once = name.startswith("sort by every method") or (name == "key and value, 2^20" and dtype == "int32")
        skip = TIMED_SMALLER if n >= LARGE else {} if once else TIMED_ONCE
        found.append(
            Case(
                function.__name__,
                name,
                make,
                function,
                peers,
                unit="key/s",
                work=n,
                whole_call=whole_call,
                skip=skip,
            )
        )

    for k in scale.pick((10,), (10, 16), (10, 12, 14, 16)):
        add(parprims.sort, f"call, 2^{k}", sort_problem, SORT, 2**k, "int32", whole_call=True)
    add(parprims.argsort, "call, 2^10", argsort_problem, ARGSORT, 2**10, "int32", whole_call=True)
    k = scale.pick(12, 16, 20)
    add(parprims.sort, f"sort by every method, 2^{k}", sort_problem, SORT, 2**k, "uint32")
    for k in scale.pick((14,), (14, 18, 20), (16, 20, 24, 28)):
        add(parprims.sort, f"sort, 2^{k}", sort_problem, SORT, 2**k, "uint32")
    k = scale.pick(12, 18, 28)
    for dtype in ("uint8", "int32", "uint64", "float32", "float64"):
        add(parprims.sort, f"sort, 2^{k}", sort_problem, SORT, 2**k, dtype)
    add(parprims.sort, f"sort below 2^24, 2^{k}", sort_problem, SORT, 2**k, "int64", below=2**24)
    # These sort one array only.
    peers = {name: call for name, call in SORT.items() if name not in ("cuda.compute", "numba")}
    for rows in (
        scale.pick((16, 1024), (256, 1024), (65536, 1024)),
        scale.pick((4, 6000), (16, 6000), (8192, 6000)),
    ):
        name = f"sort of rows, {rows[0]} x {rows[1]}"
        add(parprims.sort, name, sort_problem, peers, rows[0] * rows[1], "float32", shape=rows)
    k = scale.pick(12, 18, 26)
    for kind in ("all equal", "sorted", "reversed", "few distinct", "entropy 0.2"):
        for dtype in ("int32", "uint32"):
            add(parprims.sort, f"sort {kind}, 2^{k}", skewed_problem, SORT, 2**k, dtype, kind=kind)
    for dtype in ("int32", "int64", "float32"):
        add(parprims.argsort, f"argsort, 2^{k}", argsort_problem, ARGSORT, 2**k, dtype)
    for k in scale.pick((12,), (14, 18), (16, 20, 24)):
        for dtype in ("int32", "uint32"):
            add(parprims.sort_by_key, f"key and value, 2^{k}", by_key_problem, SORT_BY_KEY, 2**k, dtype)
    if not scale.gpu:
        k = scale.pick(12, 22, 22)
        for dtype in ("int32", "float64"):
            for function, make, of in (
                (parprims.sort, sort_problem, SORT),
                (parprims.argsort, argsort_problem, ARGSORT),
            ):
                add(function, f"{function.__name__} {dtype}, 2^{k}", make, of, 2**k, dtype)
                found.append(on_one_thread(found[-1]))
        add(parprims.sort_by_key, f"key and value of 64 bits, 2^{k}", by_key_problem, SORT_BY_KEY, 2**k, "int64")
        found.append(on_one_thread(found[-1]))
    if scale.gpu and not scale.quick:
        for dtype in ("int32", "uint32"):
            add(parprims.sort_by_key, "key and value, 2^28", related_problem, SORT_BY_KEY, 2**28, dtype)
    return found
