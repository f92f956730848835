"""Sorts of segments of uneven length: keys per second."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale
from benches.core.problems import drawn
from benches.primitives.segments import offsets_of


def sort_problem(rng, n, segments, what):
    """Return numbers and offsets, and the sorted segments, or with ``what`` "argsort" the indices."""
    x = drawn(rng, n, np.dtype("float32"), lambda own, m: own.standard_normal(m, np.float32))
    offsets = offsets_of(rng, n, segments)
    order = np.lexsort((x, np.repeat(np.arange(segments, dtype=np.int32), np.diff(offsets))))
    return Problem((x, offsets), x[order] if what == "sort" else order)


def sorted_segments(what, x, offsets, *, method):
    return getattr(parprims, what)(x, offsets=offsets, method=method)


def sorted_by_torch(torch, x, offsets, what):
    """Return the same by two stable sorts of PyTorch."""
    order = torch.argsort(x, stable=True)
    ids = torch.repeat_interleave(offsets[1:] - offsets[:-1])
    order = order[torch.argsort(ids[order], stable=True)]
    return x[order] if what == "sort" else order


def sorted_by_cupy(cupy, x, offsets, what):
    """Return the same by CuPy's lexsort."""
    ids = cupy.zeros(x.size, cupy.int32)
    cupy.add.at(ids, offsets[1:-1][offsets[1:-1] < x.size], 1)
    order = cupy.lexsort(cupy.stack([x, cupy.cumsum(ids).astype(x.dtype)]))
    return x[order] if what == "sort" else order


@functools.lru_cache(maxsize=1)
def _segmented_sorter(n, segments):
    """Return cuda.compute's sorter of float32 by offsets of int64, and its scratch, made once for a case."""
    import cupy
    from cuda.compute import SortOrder, make_segmented_sort

    x, offsets = cupy.empty(n, np.float32), cupy.zeros(segments + 1, np.int64)
    arrays = _segmented_arguments(x, offsets)
    kept = {name: one for name, one in arrays.items() if not name.startswith("num_")}
    sorter = make_segmented_sort(**kept, order=SortOrder.ASCENDING)
    return sorter, cupy.empty(sorter(temp_storage=None, **arrays), np.uint8)


def _segmented_arguments(x, offsets):
    import cupy

    ends = {"start_offsets_in": offsets[:-1], "end_offsets_in": offsets[1:]}
    sizes = {"num_items": x.size, "num_segments": offsets.size - 1}
    return {
        "d_in_keys": x,
        "d_out_keys": cupy.empty_like(x),
        "d_in_values": None,
        "d_out_values": None,
        **ends,
        **sizes,
    }


def sorted_by_cuda_compute(_, x, offsets, what):
    """Return the sorted segments by CUB's segmented sort."""
    del what
    sorter, scratch = _segmented_sorter(x.size, offsets.size - 1)
    arguments = _segmented_arguments(x, offsets)
    sorter(temp_storage=scratch, **arguments)
    return arguments["d_out_keys"]


def sorted_by_jax(jnp, x, offsets, what):
    """Return the same by JAX's sort by two keys."""
    import jax

    places = jnp.arange(x.size)
    ids = jnp.searchsorted(offsets, places, side="right", method="sort")
    found = jax.lax.sort((ids, x, places), num_keys=2)
    return found[1] if what == "sort" else found[2]


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    k, few, many = scale.pick(12, 20, 24), 10, scale.pick(150, 40_000, 10**6)  # NumPy finds the answers
    skip = {"array": "it is timed at smaller sizes"} if scale.gpu else {}
    found = []
    for what, segments in (("sort", few), ("sort", many), ("argsort", many)):
        make = functools.partial(sort_problem, n=2**k, segments=segments, what=what)
        run = functools.partial(sorted_segments, what)
        own = {"torch": sorted_by_torch, "cupy": sorted_by_cupy, "jax": sorted_by_jax}
        own |= {"cuda.compute": sorted_by_cuda_compute} if what == "sort" else {}
        peers = {name: functools.partial(function, what=what) for name, function in own.items()}
        name = f"{segments} segments, 2^{k}"
        found.append(Case(what, name, make, run, peers, unit="key/s", work=2**k, skip=skip))
    return found
