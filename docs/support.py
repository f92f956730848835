"""The support of each library: ``python -m docs.support`` tries dtypes and transformations, and writes records.

The command calls every primitive on small arrays of every dtype, by ``auto`` and by the kernel. Then it makes the call
inside the library's transformations, and compares the results. docs/support/ has a record for each library; the records
make the tables of the README and of docs/support.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # which tells NumPy of bfloat16
import numpy as np

from examples.backends import MAKERS, Backend, available, make
from parprims._dispatch.examples import Example, Sample
from parprims._dispatch.primitive import declared

FOLDER = Path(__file__).resolve().parent
RECORDS = FOLDER / "support"
DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128"
).split()
TRANSFORMATIONS = ("jit", "compile", "vmap", "grad")


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


EXAMPLES = tuple(sorted({one.name for one in declared.values()}.difference(*ALIKE.values()) | {"reduce by offsets"}))
"""The calls that are tried: every other primitive, and segments, in the order of the tables."""

NOT_SMOOTH = ("argmax", "histogram", "run_lengths", "searchsorted")
"""Those that have no derivative."""


def example(name: str, dtype: str, seed: int = 0) -> Example | None:
    """Return the call of a primitive on a few elements of a dtype, None if it has none of its kind."""
    return declared[name].sampled(Sample((12,), dtype=dtype, fixed=True, seed=seed))


def works(on: Backend, call: Callable[..., Any], arrays: list[Any], expected: Any = None) -> bool:
    """Return whether a call gives a result, and the one expected if there is one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = call(*arrays)
            on.wait(result)
            found = _results(on, result)
        except Exception:  # what does not work is what this looks for
            return False
    return expected is None or all(map(_near, found, expected))


def _near(found: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(found, expected, rtol=1e-4, equal_nan=True)


def _results(on: Backend, result: Any) -> list[np.ndarray]:
    """Return all arrays of a result as NumPy's."""
    return [on.to_numpy(x) for x in (result if isinstance(result, tuple | list) else (result,))]


def dtypes(on: Backend, sampled: Callable[[str], Example | None], method: str) -> Iterator[str]:
    """Yield the dtypes of the calls that work by a method on arrays of a library; ``sampled`` makes one of a dtype."""
    for dtype in DTYPES:
        one = sampled(dtype) if on.supports(dtype) else None
        if one is not None:
            try:
                arrays = [on.asarray(x) for x in one.arrays]
            except TypeError:
                continue
            if works(on, functools.partial(one, method=method), arrays):
                yield dtype


def slope(on: Backend, one: Example) -> np.ndarray:
    """Return the derivative of the sum of all floats of a result by the first input, by differences."""
    found = np.zeros_like(one.arrays[0])
    for index in np.ndindex(found.shape):
        ends = []
        for step in (1e-3, -1e-3):
            moved = [x.copy() for x in one.arrays]
            moved[0][index] += step
            results = _results(on, one(*map(on.asarray, moved), method="array"))
            ends.append(sum(x.sum() for x in results if x.dtype.kind == "f"))
        found[index] = (ends[0] - ends[1]) / 2e-3
    return found


def transformed(on: Backend, name: str) -> Iterator[str]:
    """Yield the transformations of the library that a call works in."""
    three = [example(name, "float64", seed) for seed in range(3)]
    one = three[0]
    assert one is not None

    def call(*arrays: Any) -> Any:
        return one(*arrays, method="auto")

    def total(*arrays: Any) -> Any:
        results = call(*arrays)
        floats = [x.sum() for x in (results if isinstance(results, tuple) else (results,)) if "float" in str(x.dtype)]
        return sum(floats)

    # Offsets and coefficients, which are the same in each, have no axis of vmap.
    rows = list(zip(*[x.arrays for x in three if x is not None], strict=True))
    dims = tuple(None if all(np.array_equal(x, xs[0]) for x in xs) else 0 for xs in rows)
    lines = [on.asarray(xs[0] if dim is None else np.stack(xs)) for xs, dim in zip(rows, dims, strict=True)]
    arrays = [on.asarray(x) for x in one.arrays]
    expected = _results(on, call(*arrays))
    apart = [_results(on, call(*map(on.asarray, x.arrays))) for x in three if x is not None]
    stacked = [np.stack(results) for results in zip(*apart, strict=True)]
    if on.family == "jax":
        import jax

        ways = {"jit": jax.jit(call), "vmap": jax.vmap(call, in_axes=dims), "grad": jax.grad(total)}
    elif on.family == "torch":
        import torch

        torch.compiler.reset()  # which counts one function that is compiled anew for each primitive, up to a limit
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        ways = {"compile": compiled, "vmap": torch.vmap(call, in_dims=dims), "grad": torch.func.grad(total)}
    else:
        return
    for way, function in ways.items():
        if way == "grad":
            right = name not in NOT_SMOOTH and works(on, function, arrays, [slope(on, one)])
        else:
            right = works(on, function, *((lines, stacked) if way == "vmap" else (arrays, expected)))
        if right:
            yield way


def record(on: Backend, *, transformations: bool = True) -> dict[str, Any]:
    """Return the support of a library: for each primitive the dtypes by method, and the transformations."""
    return {
        name: {
            "auto": list(dtypes(on, functools.partial(example, name), "auto")),
            "kernel": list(dtypes(on, functools.partial(example, name), "kernel")),
            **({"inside": list(transformed(on, name))} if transformations else {}),
        }
        for name in EXAMPLES
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
    able = [name for name in one["primitives"] if way != "grad" or name not in NOT_SMOOTH]
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
    """Return a short text of dtypes, in which the dtypes of a kind are together."""
    kinds: dict[str, list[str]] = {}
    for dtype in dtypes:
        kind = dtype.rstrip("0123456789")
        kinds.setdefault(kind, []).append(dtype.removeprefix(kind))
    return ", ".join(f"{kind}{'/'.join(sizes)}" for kind, sizes in kinds.items())


def _by_kernel(row: Mapping[str, Any]) -> str:
    """Return the text of the dtypes of a primitive that have a kernel."""
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
    if way == "grad" and primitive in NOT_SMOOTH:
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
