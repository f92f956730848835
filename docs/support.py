"""What works where: ``python -m docs.support`` tries it on every library present and keeps what it saw.

Every primitive is called on small arrays of every dtype, by ``auto`` and by the kernel, then inside the library's own
transformations, and held to the same call outside of them. A record for each library is kept in docs/support/; the
tables of the README and of docs/support.md are made of the records.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

import parprims
from examples.backends import MAKERS, Backend, available, make

FOLDER = Path(__file__).resolve().parent
RECORDS = FOLDER / "support"
DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128"
).split()
TRANSFORMATIONS = ("jit", "compile", "vmap", "grad")


class Example(NamedTuple):
    """A call of a primitive: a function of arrays, their shapes, and whether it has a derivative."""

    call: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    smooth: bool = True


def _solution(lower: Any, diag: Any, upper: Any, rhs: Any, method: str) -> Any:
    return parprims.solve_tridiagonal(lower, diag + 8 * diag / diag, upper, rhs, method=method)


def _block_solution(rhs: Any, lower: Any, diag: Any, upper: Any, method: str) -> Any:
    xp = array_namespace(rhs)
    dominant = diag + 64 * xp.eye(2, dtype=diag.dtype, device=device(diag))
    return parprims.solve_block_tridiagonal(lower, dominant, upper, rhs, method=method)


def _found(x: Any, keys: Any, method: str) -> Any:
    return parprims.searchsorted(parprims.sort(x), keys, method=method)


def _merged(x: Any, y: Any, method: str) -> Any:
    return parprims.merge(parprims.sort(x), parprims.sort(y), method=method)


def _by_offsets(x: Any, method: str) -> Any:
    offsets = array_namespace(x).asarray([0, 3, 3, 12], device=device(x))
    return parprims.reduce(x, "add", offsets=offsets, method=method)


def _by_ids(x: Any, method: str) -> Any:
    ids = array_namespace(x).arange(N, device=device(x)) // 4
    return parprims.segment_reduce(x, ids, 3, method=method)


N, ROW, SQUARE, BLOCKS = 12, ((12,),), (4, 4), (6, 2, 2)
EXAMPLES = {
    "reduce": Example(lambda x, method: parprims.reduce(x, "add", method=method), ROW),
    "argmax": Example(parprims.argmax, ROW, smooth=False),
    "scan": Example(lambda x, method: parprims.scan(x, "add", method=method), ROW),
    "cumulative_max": Example(lambda x, method: parprims.cumulative_max(x, return_indices=True, method=method)[0], ROW),
    "cumulative_logsumexp": Example(parprims.cumulative_logsumexp, ROW),
    "linear_recurrence": Example(parprims.linear_recurrence, 2 * ROW),
    "lfilter": Example(lambda x, b, a, method: parprims.lfilter(b, a * 4, x, method=method), (*ROW, (3,), (3,))),
    "sosfilt": Example(lambda x, s, method: parprims.sosfilt(s / s[:, 3:4], x, method=method), (*ROW, (1, 6))),
    "sort": Example(parprims.sort, ROW),
    "sort_by_key": Example(lambda x, y, method: parprims.sort_by_key(x, y, method=method)[1], 2 * ROW),
    "top_k": Example(lambda x, method: parprims.top_k(x, 3, method=method)[0], ROW),
    "partition": Example(lambda x, method: parprims.partition(x, 3, method=method)[3], ROW),
    "quantile": Example(lambda x, method: parprims.quantile(x, 0.3, method=method), ROW),
    "searchsorted": Example(_found, 2 * ROW, smooth=False),
    "merge": Example(_merged, 2 * ROW),
    "select": Example(lambda x, method: parprims.select(x, x != x[0], size=4, method=method)[0], ROW),
    "partition_by": Example(lambda x, method: parprims.partition_by(x, x != x[0], method=method)[0], ROW),
    "run_lengths": Example(lambda x, method: parprims.run_lengths(x, size=4, method=method)[1], ROW, smooth=False),
    "unique": Example(lambda x, method: parprims.unique(x, size=4, method=method)[0], ROW),
    "reduce by offsets": Example(_by_offsets, ROW),
    "segment_reduce": Example(_by_ids, ROW),
    "solve_tridiagonal": Example(_solution, 4 * ROW),
    "solve_banded": Example(lambda b, ab, method: parprims.solve_banded((0, 1), ab, b, method=method), (*ROW, (2, N))),
    "solve_block_tridiagonal": Example(_block_solution, ((6, 2), BLOCKS, BLOCKS, BLOCKS)),
    "matmul": Example(parprims.matmul, (SQUARE, SQUARE)),
    "histogram": Example(
        lambda x, method: parprims.histogram(x, 4, range=(-8.0, 8.0), method=method)[0], ROW, smooth=False
    ),
}
"""The calls that are tried, by primitive, in the order of the tables."""

ALIKE = {
    "reduce": ("sum", "prod", "max", "min", "any", "all", "vecdot", "map_reduce"),
    "argmax": ("argmin",),
    "scan": ("cumulative_sum", "cumulative_prod"),
    "cumulative_max": ("cumulative_min",),
    "sort": ("argsort",),
    "partition": ("argpartition",),
    "quantile": ("median",),
    "merge": ("merge_by_key",),
}
"""The functions that are computed as one of these, and are not tried themselves."""


def inputs(one: Example, dtype: str, lines: int = 0) -> list[np.ndarray]:
    """Return random inputs of a dtype, or so many sets of them side by side."""
    rng = np.random.default_rng(7)
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return [rng.integers(1, 5, (*((lines,) if lines else ()), *shape)).astype(kind) for shape in one.shapes]


def works(on: Backend, call: Callable[..., Any], arrays: list[Any], expected: Any = None) -> bool:
    """Return whether a call gives a result, and the one expected if there is one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = call(*arrays)
            on.wait(result)
            found = on.to_numpy(result)
        except Exception:  # what does not work is what this looks for
            return False
    return expected is None or np.allclose(found, expected, rtol=1e-4, equal_nan=True)


def dtypes(on: Backend, one: Example, method: str) -> Iterator[str]:
    """Yield the dtypes that a primitive takes by a method on arrays of a library."""
    for dtype in DTYPES:
        if on.supports(dtype):
            try:
                arrays = [on.asarray(x) for x in inputs(one, dtype)]
            except TypeError:
                continue
            if works(on, lambda *xs: one.call(*xs, method=method), arrays):
                yield dtype


def slope(on: Backend, one: Example, arrays: list[np.ndarray]) -> np.ndarray:
    """Return the derivative of the sum of a result by the first input, by differences."""
    found = np.zeros_like(arrays[0])
    for index in np.ndindex(found.shape):
        ends = []
        for step in (1e-3, -1e-3):
            moved = [x.copy() for x in arrays]
            moved[0][index] += step
            ends.append(on.to_numpy(one.call(*map(on.asarray, moved), method="array")).sum())
        found[index] = (ends[0] - ends[1]) / 2e-3
    return found


def transformed(on: Backend, one: Example) -> Iterator[str]:
    """Yield the transformations of the library that a call works in."""

    def call(*arrays: Any) -> Any:
        return one.call(*arrays, method="auto")

    plain, many = inputs(one, "float64"), inputs(one, "float64", lines=3)
    plain = [x + np.linspace(0, 0.5, x.size).reshape(x.shape) for x in plain]  # no two alike
    arrays, lines = ([on.asarray(x) for x in xs] for xs in (plain, many))
    expected = on.to_numpy(call(*arrays))
    stacked = np.stack([on.to_numpy(call(*(on.asarray(x[row]) for x in many))) for row in range(3)])
    if on.family == "jax":
        import jax

        ways = {"jit": jax.jit(call), "vmap": jax.vmap(call), "grad": jax.grad(lambda *xs: call(*xs).sum())}
    elif on.family == "torch":
        import torch

        torch.compiler.reset()  # which counts one function that is compiled anew for each primitive, up to a limit
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        ways = {"compile": compiled, "vmap": torch.vmap(call), "grad": torch.func.grad(lambda *xs: call(*xs).sum())}
    else:
        return
    for name, way in ways.items():
        if name == "grad":
            right = one.smooth and works(on, way, arrays, slope(on, one, plain))
        else:
            right = works(on, way, *((lines, stacked) if name == "vmap" else (arrays, expected)))
        if right:
            yield name


def record(on: Backend, *, transformations: bool = True) -> dict[str, Any]:
    """Return what works on a library's arrays: for each primitive the dtypes by method, and the transformations."""
    return {
        name: {
            "auto": list(dtypes(on, one, "auto")),
            "kernel": list(dtypes(on, one, "kernel")),
            **({"inside": list(transformed(on, one))} if transformations else {}),
        }
        for name, one in EXAMPLES.items()
    }


LABELS = {
    "numpy": "NumPy",
    "torch": "PyTorch, CPU",
    "jax": "JAX, CPU",
    "cupy": "CuPy",
    "torch-cuda": "PyTorch, GPU",
    "jax-cuda": "JAX, GPU",
}
"""The backends of the tables, in order."""


def records(folder: Path = RECORDS) -> dict[str, dict[str, Any]]:
    """Return the records that there are, in the order of the tables."""
    return {
        name: json.loads((folder / f"{name}.json").read_text()) for name in LABELS if (folder / f"{name}.json").exists()
    }


def _of(found: int, all_: int) -> str:
    return "all" if found == all_ else f"{found} of {all_}" if found else "no"


def _reach(one: Mapping[str, Any], way: str) -> str:
    """Return in how many primitives a transformation works, of those it could."""
    has = {"jit": ("jax",), "compile": ("torch",)}.get(way, ("jax", "torch"))
    if one["library"] not in has:
        return "-"
    able = [name for name in one["primitives"] if way != "grad" or EXAMPLES[name].smooth]
    return _of(sum(way in one["primitives"][name]["inside"] for name in able), len(able))


def short_table() -> str:
    """Return the README's table: for each library how many primitives each transformation and the kernel serve."""
    lines = [
        "| library | primitives tried | jit | torch.compile | vmap | grad | dtypes | with a kernel |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in records().items():
        tried = one["primitives"].values()
        every = {dtype for row in tried for dtype in row["auto"]}
        kernel = _of(sum(bool(row["kernel"]) for row in tried), len(tried))
        ways = [_reach(one, way) for way in TRANSFORMATIONS]
        lines.append(f"| {LABELS[name]} | {len(tried)} | {' | '.join(ways)} | {len(every)} | {kernel} |")
    return "\n".join(lines) + "\n"


def _spelled(dtypes: list[str]) -> str:
    """Return dtypes in short: those of one kind together."""
    kinds: dict[str, list[str]] = {}
    for dtype in dtypes:
        kind = dtype.rstrip("0123456789")
        kinds.setdefault(kind, []).append(dtype.removeprefix(kind))
    return ", ".join(f"{kind}{'/'.join(sizes)}" for kind, sizes in kinds.items())


def _by_kernel(row: Mapping[str, Any]) -> str:
    """Return for which of a primitive's dtypes there is a kernel."""
    missing = [dtype for dtype in row["auto"] if dtype not in row["kernel"]]
    return "no" if missing == row["auto"] else f"but {_spelled(missing)}" if missing else "yes"


def long_table() -> str:
    """Return the tables of the page: for each library, a line for each primitive."""
    alike = (f"`{name}`: {', '.join(f'`{other}`' for other in others)}" for name, others in ALIKE.items())
    lines = [f"Computed alike and therefore tried under one name, the first: {'; '.join(alike)}.", ""]
    for name, one in records().items():
        lines += [f"## {LABELS[name]}", "", f"{one['library']} {one['version']}.", ""]
        ways = [way for way in TRANSFORMATIONS if _reach(one, way) != "-"]
        lines.append(f"| primitive | kernel |{''.join(f' {way} |' for way in ways)} dtypes |")
        lines.append("|---" * (3 + len(ways)) + "|")
        for primitive in EXAMPLES:
            row = one["primitives"].get(primitive)
            if row is not None:
                cells = [_works(primitive, way, row) for way in ways]
                lines.append(f"| {' | '.join([f'`{primitive}`', _by_kernel(row), *cells, _spelled(row['auto'])])} |")
        left = [f"`{primitive}`" for primitive in EXAMPLES if primitive not in one["primitives"]]
        lines += ["", *([f"Not tried on this library yet: {', '.join(left)}.", ""] if left else [])]
    return "\n".join(lines)


def _works(primitive: str, way: str, row: Mapping[str, Any]) -> str:
    if way == "grad" and not EXAMPLES[primitive].smooth:
        return "-"
    return "yes" if way in row["inside"] else "no"


def main(arguments: list[str] | None = None) -> int:
    """Try what works on the libraries asked for, or on all present, and write the records."""
    parser = argparse.ArgumentParser(prog="python -m docs.support", description=__doc__)
    parser.add_argument("--backend", nargs="+", choices=tuple(MAKERS))
    parser.add_argument("--out", type=Path, default=RECORDS)
    options = parser.parse_args(arguments)
    options.out.mkdir(exist_ok=True)
    for name in options.backend or [name for name in MAKERS if available(name)]:
        on = make(name)
        version = getattr(on.library, "__version__", "").partition("+")[0]
        body = {"library": on.family, "version": version, "primitives": record(on)}
        (options.out / f"{name}.json").write_text(json.dumps(body, indent=1) + "\n")
        print(
            name,
            {key: (len(one["auto"]), len(one["kernel"]), one["inside"]) for key, one in body["primitives"].items()},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
