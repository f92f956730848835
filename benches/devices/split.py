"""Arrays split over the devices of one host against one device, through JAX: ``python -m benches.devices.split``.

Prints one row a case: the seconds of one device and of all, their ratio, and the goal for two devices.
No time is printed before the results agree. `benches.devices.larger` has what one device cannot hold.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import gzip
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import parprims
from benches.core import records


@dataclasses.dataclass(frozen=True)
class Split:
    """One call, on arrays of one shape and dtype.

    Parameters
    ----------
    name : str
        What is computed.
    shapes : tuple of tuple of int
        The shapes of the arrays.
    dtype : str
        Their dtype.
    axes : tuple of int
        The axis that each is split along.
    call : callable
        The call.
    goal : float
        The ratio that is the goal on two devices.
    limit_ms : float
        The time that is the goal on two devices, in milliseconds.
    scaled : tuple of pair of float
        The least and the largest number of each array, of floats; one pair is that of all.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    axes: tuple[int, ...]
    call: Callable[..., Any]
    goal: float = math.nan
    limit_ms: float = math.nan
    scaled: tuple[tuple[float, float], ...] = ((-1.0, 1.0),)


def splits(log2: int) -> list[Split]:
    """Return the cases, the largest arrays of 2^log2 elements."""
    n, rows = 2**log2, 2 ** max(log2 - 24, 3)
    side = 2 ** (log2 * 14 // 30)
    systems, unknowns = 2 ** max(log2 - 14, 3), 2 ** min(12, max(log2 - 8, 4))
    decaying, near_one, any_b = (-0.5, 0.5), (1 - 1e-5, 1.0), (-1.0, 1.0)
    solve = functools.partial(parprims.solve_tridiagonal, axis=-1)
    dominant = ((-1.0, 1.0), (3.0, 4.0), (-1.0, 1.0), (-1.0, 1.0))
    return [
        Split("sum", ((n,),), "float32", (0,), parprims.sum, 1.9),
        Split("scan of a batch", ((rows, n // rows),), "float32", (0,), parprims.scan, 1.95),
        Split("scan", ((n,),), "float32", (0,), parprims.scan, 1.38),
        Split("linear_recurrence, |a| < 0.5", ((n,),) * 2, "float32", (0, 0), parprims.linear_recurrence, 1.8,
              scaled=(decaying, any_b)),
        Split("linear_recurrence, a near 1", ((n,),) * 2, "float32", (0, 0), parprims.linear_recurrence, 1.15,
              scaled=(near_one, any_b)),
        Split("sort u32", ((n,),), "uint32", (0,), parprims.sort, 1.35),
        Split("sort u64", ((n // 2,),), "uint64", (0,), parprims.sort, 1.5),
        Split("argsort u32", ((n // 4,),), "uint32", (0,), parprims.argsort),
        Split("solve_tridiagonal, systems split", ((systems, unknowns),) * 4, "float64", (0,) * 4, solve, 1.85,
              scaled=dominant),
        Split("solve_tridiagonal, unknowns split", ((systems, unknowns),) * 4, "float64", (1,) * 4, solve,
              limit_ms=2.5, scaled=dominant),
        Split("matmul, rows split", ((side, side),) * 2, "float32", (0, -1), parprims.matmul, 1.95),
        Split("matmul, inner axis split", ((side, side),) * 2, "float32", (1, 0), parprims.matmul),
    ]  # fmt: skip


# ---- Arrays -----------------------------------------------------------------------------------------------------


def hashed(shape: tuple[int, ...], places: tuple[Any, ...], seed: int) -> Any:
    """Return 32 bits for elements of an array of a shape, given their places along each axis."""
    place = places[0] * np.uint32(0) + np.uint32(seed * 7919 + 1)
    for n, along in zip(shape, places, strict=True):
        place = place * np.uint32((n | 1) % 2**32) + along
    for multiplier in (0x85EBCA6B, 0xC2B2AE35):
        place = (place ^ (place >> 15)) * np.uint32(multiplier)
    return place ^ (place >> 16)


def made(mesh: Any, shape: tuple[int, ...], dtype: str, axis: int, seed: int, bounds: tuple[float, float]) -> Any:
    """Return an array of numbers that depend on their place alone, so that any number of devices make the same."""
    import jax

    spec = [None] * len(shape)
    count = mesh.shape["i"]
    if axis >= 0 and count > 1:
        spec[axis] = "i"
    own = tuple(n // count if one else n for n, one in zip(shape, spec, strict=True))

    def part() -> Any:
        xp = jax.numpy
        places = []
        for at, n in enumerate(own):
            along = jax.lax.broadcasted_iota(xp.uint32, own, at)
            if spec[at]:
                along = along + np.uint32(n % 2**32) * jax.lax.axis_index("i").astype(xp.uint32)
            places.append(along)
        place = hashed(shape, tuple(places), seed)
        if np.dtype(dtype).kind == "u":
            return place if dtype == "uint32" else place.astype(xp.uint64) << 32 | (place * xp.uint32(0x9E3779B9))
        low, high = bounds
        return (place >> 8).astype(dtype) * np.dtype(dtype).type((high - low) / 2**24) + np.dtype(dtype).type(low)

    if count == 1:
        with jax.default_device(mesh.devices.ravel()[0]):
            return jax.jit(part)()
    mapped = jax.shard_map(part, mesh=mesh, in_specs=(), out_specs=jax.sharding.PartitionSpec(*spec), check_vma=False)
    return jax.jit(mapped)()


def inputs(case: Split, mesh: Any) -> list[Any]:
    """Return the arrays of a case, split over a mesh."""
    bounds = case.scaled * (len(case.shapes) // len(case.scaled))
    return [
        made(mesh, shape, case.dtype, axis, seed, limits)
        for seed, (shape, axis, limits) in enumerate(zip(case.shapes, case.axes, bounds, strict=True))
    ]


def _ends(x: Any) -> list[np.ndarray]:
    """Return the corner where all indices are least, and that where they are greatest, of the first and last parts."""
    shards = sorted(x.addressable_shards, key=lambda shard: [part.start or 0 for part in shard.index])
    first, last = shards[0].data, shards[-1].data
    few = [min(n, 1024 if x.ndim == 1 else 4) for n in first.shape]
    corners = first[tuple(slice(n) for n in few)], last[tuple(slice(-n, None) for n in few)]
    return [np.asarray(one) for one in corners]


# ---- Times ------------------------------------------------------------------------------------------------------


def seconds(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call, timed in turn, several in a row where they are short.

    So devices work while the host prepares the next call, as they do in a program of many.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    counts = {name: max(1, min(16, int(0.02 / in_a_row(call, 1)))) for name, call in calls.items()}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(in_a_row(call, counts[name]))
    return {name: statistics.median(times) for name, times in found.items()}


def in_a_row(call: Callable[[], Any], count: int) -> float:
    """Return the seconds of one of several calls in a row, of which the memory of two results is needed."""
    import jax

    began, result = time.perf_counter(), None
    for _ in range(count):
        result = call()
    jax.block_until_ready(result)
    return (time.perf_counter() - began) / count


def measured(case: Split, rounds: int) -> dict[str, Any]:
    """Return the row of a case."""
    import jax

    devices = jax.devices()
    explicit = (jax.sharding.AxisType.Explicit,)
    meshes = {
        "one": jax.make_mesh((1,), ("i",), axis_types=explicit, devices=devices[:1]),
        "all": jax.make_mesh((len(devices),), ("i",), axis_types=explicit, devices=devices),
    }
    row: dict[str, Any] = {"case": case.name, "shape": case.shapes[0], "dtype": case.dtype, "devices": len(devices)}
    calls, results = {}, {}
    for name, mesh in meshes.items():
        try:
            arrays = inputs(case, mesh)
            compiled = jax.jit(case.call)
            with parprims.explain() as told:
                results[name] = _ends(jax.block_until_ready(compiled(*arrays)))
            calls[name] = functools.partial(compiled, *arrays)
            row[f"method {name}"] = told[0].method if told else ""
            if name == "all" and told:
                row["steps"] = [(step.name, step.nbytes) for step in told[0].steps]
        except Exception as error:  # out of memory, most likely: the row says what
            row[f"error {name}"] = told_of(error)
    if len(results) == 2 and not _near(*results.values()):
        row["error all"] = "the results differ"
        return row
    row |= {f"ms {name}": 1e3 * took for name, took in seconds(calls, rounds).items()}
    if "ms one" in row and "ms all" in row:
        row["ratio"] = row["ms one"] / row["ms all"]
    return row


def told_of(error: Exception) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"


def _near(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    for x, y in zip(one, other, strict=True):
        if x.dtype.kind == "f":
            size = max(float(np.max(np.abs(x), initial=0)), 1e-30)
            if not float(np.max(np.abs(x - y), initial=0)) <= 1e-3 * size:
                return False
        elif not np.array_equal(x, y):
            return False
    return True


def shown(row: dict[str, Any], case: Split) -> str:
    """Return a row as text."""
    words = [f"{row['case']:34} {row['dtype']:8} {'x'.join(map(str, row['shape'])):>14}"]
    words += [f"{name} {row[f'ms {name}']:9.3f} ms" for name in ("one", "all") if f"ms {name}" in row]
    if "ratio" in row:
        words.append(f"ratio {row['ratio']:.2f}" + (f" (goal {case.goal})" if case.goal == case.goal else ""))
    if case.limit_ms == case.limit_ms:
        words.append(f"(goal {case.limit_ms} ms)")
    return "  ".join(words + [row[name] for name in ("error one", "error all") if name in row])


def profile(case: Split, calls: int = 3) -> str:
    """Return what one device does in a call on all, by JAX's profiler: the longest operations first."""
    import jax

    mesh = jax.make_mesh((len(jax.devices()),), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    arrays = inputs(case, mesh)
    compiled = jax.jit(case.call)
    in_a_row(functools.partial(compiled, *arrays), 2)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            in_a_row(functools.partial(compiled, *arrays), calls)
        (path,) = Path(folder).rglob("perfetto_trace.json.gz")
        found = json.loads(gzip.decompress(path.read_bytes()))
    events = found["traceEvents"] if isinstance(found, dict) else found
    named = {name: {} for name in ("process_name", "thread_name")}
    for one in events:
        if one.get("name") in named:
            named[one["name"]][one["pid"], one.get("tid")] = one["args"]["name"]
    processes = {pid: name for (pid, _), name in named["process_name"].items()}
    times: dict[str, float] = {}
    for one in events:
        stream = named["thread_name"].get((one.get("pid"), one.get("tid")), "")
        if one.get("ph") == "X" and "GPU:0" in processes.get(one["pid"], "") and "Stream" in stream:
            name = one["name"].partition("(")[0]
            times[name] = times.get(name, 0.0) + one["dur"] / calls
    lines = [f"{took:10.1f} us  {name}" for name, took in sorted(times.items(), key=lambda one: -one[1])[:12]]
    return "\n".join((f"{case.name}, {' x '.join(map(str, case.shapes[0]))}", *lines))


def table(file: Mapping[str, Any]) -> str:
    """Return the table that docs/devices.md shows of a results file."""
    head = file["header"]
    lines = [
        f"{head['devices']} {head['device']} of one host, JAX {head['versions']['jax']}, {head['date'][:10]}, commit "
        f"{head['commit'][:7]}; milliseconds, several calls in a row.\n",
        "| call | shape | dtype | one | all | one / all | goal on two H200 |\n|---|---|---|---|---|---|---|",
    ]
    for row in file["rows"]:
        shape = " x ".join(map(_power, row["shape"]))
        times = [f"{row[f'ms {name}']:.2f}" if f"ms {name}" in row else "does not fit" for name in ("one", "all")]
        goal = f"{row['goal']}" if "goal" in row else f"{row['goal ms']} ms" if "goal ms" in row else ""
        ratio = f"{row['ratio']:.2f}" if "ratio" in row else ""
        cells = (row["case"], shape, row["dtype"], *times, ratio, goal)
        lines.append(f"| {' | '.join(cells)} |".replace("|a|", "\\|a\\|"))
    return "\n".join(lines) + "\n"


def write(path: str, about: Mapping[str, Any], rows: list[dict[str, Any]], commit: str | None) -> None:
    """Write a results file: what the devices are, and the rows."""
    header = {
        **about,
        "versions": records.versions(True),
        "commit": commit or records.commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    Path(path).write_text(json.dumps({"header": header, "rows": rows}, indent=1) + "\n")


def _power(n: int) -> str:
    return f"2^{n.bit_length() - 1}" if n >= 2**10 and n & (n - 1) == 0 else str(n)


def main(arguments: list[str] | None = None) -> int:
    """Time all cases; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benches.devices.split", description=__doc__.splitlines()[0])
    parser.add_argument("--log2", type=int, default=30, help="the logarithm of the largest number of elements")
    parser.add_argument("--rounds", type=int, default=11, help="how often each call is timed")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--commit", metavar="SHA", help="the commit measured, where there is no git to ask")
    parser.add_argument("--json", metavar="PATH", help="file to write the rows to")
    parser.add_argument("--profile", action="store_true", help="tell what one device does in a call on all")
    given = parser.parse_args(arguments)
    import jax

    jax.config.update("jax_enable_x64", True)
    print(f"{len(jax.devices())} devices: {jax.devices()[0].device_kind}; JAX {jax.__version__}", flush=True)
    rows = []
    for case in splits(given.log2):
        if given.case in case.name and given.profile:
            print(profile(case), flush=True)
        elif given.case in case.name:
            goals = {"goal": case.goal, "goal ms": case.limit_ms}
            rows.append(measured(case, given.rounds))
            rows[-1] |= {name: goal for name, goal in goals.items() if goal == goal}
            print(shown(rows[-1], case), flush=True)
    if given.json:
        about = {"device": jax.devices()[0].device_kind, "devices": len(jax.devices())}
        write(given.json, about, rows, given.commit)
    return int(any("error all" in row for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
