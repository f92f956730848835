"""Arrays larger than the memory of one device, split over all of one host: ``python -m benches.devices.larger``.

Prints one row a case: the bytes of arrays and results, the seconds of a call, and whether the result is right, which
each device is asked about its own part, and the host about the ends of neighbours.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import parprims
from benches.devices.split import Split, hashed, inputs, told_of, write

Shards = list[tuple[Any, ...]]
"""For each device its parts of the arrays, and last that of the result."""


@dataclasses.dataclass(frozen=True)
class Larger:
    """A call on arrays that need more memory than one device has, and a question whether its result is right."""

    split: Split
    right: Callable[[Shards], bool]


def larger(log2: int) -> list[Larger]:
    """Return the cases: 2^log2 is the number of elements of 32 bits that half the memory of a device holds."""
    n, side = 2**log2, 2 ** (log2 // 2 - 2)
    near_one, any_b = (1 - 1e-5, 1.0), (-1.0, 1.0)
    dominant = ((-1.0, 1.0), (3.0, 4.0), (-1.0, 1.0), (-1.0, 1.0))
    solve = functools.partial(parprims.solve_tridiagonal, axis=-1)
    systems = (n // 2**14, 2**12)
    recurrence = Split("linear_recurrence", ((n,),) * 2, "float32", (0, 0), parprims.linear_recurrence,
                       scaled=(near_one, any_b))  # fmt: skip
    tridiagonal = Split("solve_tridiagonal, systems split", (systems,) * 4, "float64", (0,) * 4, solve, scaled=dominant)
    return [
        Larger(Split("sum", ((4 * n,),), "float32", (0,), parprims.sum), _summed),
        Larger(Split("scan", ((2 * n,),), "float32", (0,), parprims.scan), _scanned),
        Larger(recurrence, _recurred),
        Larger(Split("sort u32", ((n * 27 // 32,),), "uint32", (0,), parprims.sort), _sorted),
        Larger(Split("argsort u32", ((n * 3 // 8,),), "uint32", (0,), parprims.argsort), _ordered),
        Larger(tridiagonal, _solved),
        Larger(dataclasses.replace(tridiagonal, name="solve_tridiagonal, unknowns split", axes=(1,) * 4), _solved),
        Larger(Split("matmul, rows split", ((48 * side, side), (side, side)), "float32", (0, -1), parprims.matmul),
               _multiplied),
    ]  # fmt: skip


# ---- Whether results are right --------------------------------------------------------------------------------------


def _asked(question: Callable[..., Any], shards: Shards) -> list[float]:
    """Return what a program finds of the parts of each device."""
    import jax

    program = jax.jit(question)
    return [float(program(*parts)) for parts in shards]


def _summed(shards: Shards) -> bool:
    totals = _asked(lambda x, _: x.sum(dtype="float64"), shards)
    sizes = _asked(lambda x, _: abs(x).sum(dtype="float64"), shards)
    return all(abs(float(parts[1]) - sum(totals)) <= 1e-6 * sum(sizes) for parts in shards)


def _error_of(before: Any, shards: Shards) -> bool:
    """Return whether each element of the result follows from that before it.

    What comes before a part is found in another order of operations than the part before it: more roundings.
    """
    ok, last = True, 0.0
    for *arrays, y in shards:
        first = float(before(last, *(x[:1] for x in arrays))[0])
        error, size = (
            _asked(question, [(*arrays, y)])[0]
            for question in (
                lambda *parts: abs(parts[-1][1:] - before(parts[-1][:-1], *(x[1:] for x in parts[:-1]))).max(),
                lambda *parts: abs(parts[-1]).max(),
            )
        )
        bound = 64 * float(np.finfo(np.float32).eps) * max(size, 1.0)
        ok = ok and abs(float(y[0]) - first) <= 1e-3 * max(size, 1.0) and error <= bound
        last = float(y[-1])
    return ok


def _scanned(shards: Shards) -> bool:
    return _error_of(lambda y, x: y + x, shards)


def _recurred(shards: Shards) -> bool:
    return _error_of(lambda y, a, b: a * y + b, shards)


def _in_order(parts: list[Any]) -> bool:
    inside = _asked(lambda y: (y[1:] >= y[:-1]).all(), [(y,) for y in parts])
    ends = [(int(y[0]), int(y[-1])) for y in parts]
    return all(inside) and all(one[1] <= other[0] for one, other in itertools.pairwise(ends))


def _sorted(shards: Shards) -> bool:
    """Return whether keys are in order, and the sums of keys and of their products with themselves are the old ones."""
    for question in (lambda x: x.sum(dtype="uint32"), lambda x: (x * (x ^ (x >> 7))).sum(dtype="uint32")):
        before, after = (int(sum(_asked(question, [(parts[at],) for parts in shards]))) % 2**32 for at in (0, 1))
        if before != after:
            return False
    return _in_order([y for _, y in shards])


def _ordered(shards: Shards) -> bool:
    """Return whether the keys are in order, and the places are all there are, as far as their sums tell."""
    import jax

    n = sum(math.prod(x.shape) for x, _ in shards)
    key = jax.jit(lambda places: hashed((n,), (places.astype("uint32"),), 0))
    places = sum(map(int, _asked(lambda _, y: (y % 2**20).sum(dtype="int64"), shards)))
    whole, rest = divmod(n, 2**20)
    return _in_order([key(y) for _, y in shards]) and places == whole * (2**19 * (2**20 - 1)) + rest * (rest - 1) // 2


def _solved(shards: Shards) -> bool:
    """Return whether equations hold: all whose unknowns one device has."""
    errors = _asked(
        lambda a, b, c, d, x: abs(
            a[:, 1:-1] * x[:, :-2] + b[:, 1:-1] * x[:, 1:-1] + c[:, 1:-1] * x[:, 2:] - d[:, 1:-1]
        ).max(),
        shards,
    )
    return max(errors) < 1e-14


def _multiplied(shards: Shards) -> bool:
    """Return whether the product times a vector is that of the factors, one after the other."""
    errors = _asked(lambda a, b, y: abs(y.sum(axis=1) - a @ b.sum(axis=1)).max() / a.shape[1], shards)
    return max(errors) < 1e-3


# ---- Times ------------------------------------------------------------------------------------------------------


def measured(case: Split, right: Callable[[Shards], bool]) -> dict[str, Any]:
    """Return the row of a case."""
    import jax

    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    row: dict[str, Any] = {"case": case.name, "shape": case.shapes[0], "dtype": case.dtype, "devices": len(devices)}
    try:
        arrays = inputs(case, mesh)
        compiled = jax.jit(case.call)
        y = jax.block_until_ready(compiled(*arrays))
        del y
        began = time.perf_counter()
        y = jax.block_until_ready(compiled(*arrays))
        row["ms all"] = 1e3 * (time.perf_counter() - began)
        row["nbytes"] = sum(x.nbytes for x in (*arrays, y))
        row["right"] = right(list(_parts((*arrays, y))))
    except Exception as error:  # out of memory, most likely: the row says what
        row["error"] = told_of(error)
    return row


def _parts(arrays: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the parts of each device, in the order of the parts of the first array."""
    ordered = sorted(arrays[0].addressable_shards, key=lambda one: [part.start or 0 for part in one.index])
    for device in (one.device for one in ordered):
        yield tuple(next(one.data for one in x.addressable_shards if one.device == device) for x in arrays)


def shown(row: dict[str, Any]) -> str:
    """Return a row as text."""
    words = f"{row['case']:34} {row['dtype']:8} {'x'.join(map(str, row['shape'])):>14}"
    if "error" in row:
        return f"{words}  {row['error']}"
    return f"{words}  {row['nbytes'] / 2**30:6.1f} GiB  {row['ms all']:9.1f} ms  {'right' if row['right'] else 'WRONG'}"


def table(file: Mapping[str, Any]) -> str:
    """Return the table that docs/devices.md shows of a results file."""
    head = file["header"]
    lines = [
        f"{head['devices']} {head['device']} of one host, of which JAX uses {head['memory'] / 2**30:.0f} GiB each, "
        f"{head['date'][:10]}.\n",
        "| call | shape | dtype | arrays and result, GiB | milliseconds | right | commit |",
        f"|{'---|' * 7}",
    ]
    for row in file["rows"]:
        found = ("", "does not fit", "")
        if "error" not in row:
            found = f"{row['nbytes'] / 2**30:.0f}", f"{row['ms all']:.1f}", "yes" if row["right"] else "no"
        commit = row.get("commit", head["commit"])[:7]
        cells = (row["case"], " x ".join(map(str, row["shape"])), row["dtype"], *found, commit)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run all cases, each in a process of its own; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benches.devices.larger", description=__doc__.splitlines()[0])
    parser.add_argument("--log2", type=int, default=33, help="what half of a device holds: 2^33 for 64 to 80 GB")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--commit", metavar="SHA", help="the commit measured, where there is no git to ask")
    parser.add_argument("--json", metavar="PATH", help="file to write the rows to")
    given = parser.parse_args(arguments)
    processes = multiprocessing.get_context("spawn")
    rows, about = [], {}
    for index, case in enumerate(larger(given.log2)):
        if given.case in case.split.name:
            with processes.Pool(1) as pool:
                row, about = pool.apply(_in_a_process, (given.log2, index))
            rows.append(row)
            print(shown(row), flush=True)
    if given.json:
        write(given.json, about, rows, given.commit)
    return int(any("error" in row or not row["right"] for row in rows))


def _in_a_process(log2: int, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the row of a case, and what the devices are."""
    # To find the fastest of its own kernels, XLA would make all of their arrays a second time.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0"
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
    import jax

    jax.config.update("jax_enable_x64", True)
    case, device = larger(log2)[index], jax.devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit", 0)
    return measured(case.split, case.right), {
        "device": device.device_kind,
        "devices": len(jax.devices()),
        "memory": memory,
    }


if __name__ == "__main__":
    raise SystemExit(main())
