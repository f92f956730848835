"""The laws of bits, tried on this library and on others: ``python -m tests.trust.laws [--gpu]`` writes docs/laws.json.

A law is a function of a call and of random numbers. It returns whether the bits are those that the law asks for. The
table on the page "Reproducibility" shows which calls keep which laws, and tests/core/test_canonical.py holds this
library to them.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import parprims

RECORD = Path(__file__).resolve().parents[2] / "docs" / "laws.json"

Call = Callable[..., np.ndarray]
"""Takes an array of NumPy and an axis, or a start as well; returns an array of NumPy."""

Law = Callable[[Call, np.random.Generator, int], bool]
"""Takes a call, random numbers and a length; returns whether the law holds for lines of this length."""

LENGTHS = (100, 1000, 5000, 20001, 300001)


def terms(rng: np.random.Generator, lines: int, n: int) -> np.ndarray:
    """Return terms of float32 of several magnitudes and of both signs."""
    return (rng.standard_normal((lines, n)) * 10.0 ** rng.integers(-3, 3, (lines, n))).astype(np.float32)


def equal(ones: np.ndarray, others: np.ndarray) -> bool:
    """Return whether arrays have the same bits."""
    return ones.dtype == others.dtype and ones.shape == others.shape and ones.tobytes() == others.tobytes()


def in_a_batch(call: Call, rng: np.random.Generator, n: int) -> bool:
    """A line has the same bits alone and among others."""
    x = terms(rng, 37, n)
    found = call(x, axis=-1)
    return all(equal(call(x[at], axis=-1), found[at]) for at in (0, 1, 17, 36))


def in_any_layout(call: Call, rng: np.random.Generator, n: int) -> bool:
    """A line has the same bits along any axis, in any memory layout."""
    x = terms(rng, 5, n)
    found = call(x, axis=-1)
    spread, columns = np.repeat(x, 2, axis=1)[:, ::2], np.ascontiguousarray(x.T)
    by_columns = call(columns, axis=0)
    return equal(call(spread, axis=-1), found) and equal(
        np.ascontiguousarray(by_columns.T if by_columns.ndim == 2 else by_columns), found
    )


def in_any_order(call: Call, rng: np.random.Generator, n: int) -> bool:
    """A sum has the same bits in any order of its terms."""
    x = terms(rng, 3, n)
    return equal(call(x[:, ::-1], axis=-1), call(x, axis=-1)) and equal(
        call(x[:, rng.permutation(n)], axis=-1), call(x, axis=-1)
    )


def in_a_prefix(call: Call, rng: np.random.Generator, n: int) -> bool:
    """A result does not depend on the elements behind it."""
    x = terms(rng, 3, n)
    found = call(x, axis=-1)
    return all(equal(call(x[:, :m], axis=-1), np.ascontiguousarray(found[:, :m])) for m in (1, n // 3, n - 1))


def continued(call: Call, rng: np.random.Generator, n: int) -> bool:
    """A line that is cut behind a block and continued from its state has the bits of the whole line."""
    block = parprims.CANONICAL_BLOCK
    x = terms(rng, 3, 2 * block + n)
    found = call(x, axis=-1)
    return all(
        equal(call(x[:, cut:], axis=-1, start=found[:, cut - 1]), np.ascontiguousarray(found[:, cut:]))
        for cut in (block, 2 * block)
    )


def in_one_direction(call: Call, rng: np.random.Generator, n: int) -> bool:
    """Running sums of terms >= 0 never descend, and of terms <= 0 never ascend."""
    x = np.abs(terms(rng, 3, n))
    return bool(np.all(np.diff(call(x, axis=-1)) >= 0) and np.all(np.diff(call(-x, axis=-1)) <= 0))


LAWS: tuple[tuple[str, str, Law], ...] = (
    ("sum", "alone and in a batch", in_a_batch),
    ("sum", "along any axis, in any layout", in_any_layout),
    ("sum", "in any order of the terms", in_any_order),
    ("product of vectors", "alone and in a batch", in_a_batch),
    ("product of vectors", "along any axis, in any layout", in_any_layout),
    ("product of vectors", "in any order of the terms", in_any_order),
    ("running sum", "alone and in a batch", in_a_batch),
    ("running sum", "along any axis, in any layout", in_any_layout),
    ("running sum", "a prefix alone", in_a_prefix),
    ("running sum", "cut and continued", continued),
    ("running sum", "of terms >= 0 never descends", in_one_direction),
    ("linear recurrence", "alone and in a batch", in_a_batch),
    ("linear recurrence", "along any axis, in any layout", in_any_layout),
    ("linear recurrence", "a prefix alone", in_a_prefix),
    ("linear recurrence", "cut and continued", continued),
    ("matrix product", "a row alone and among others", in_a_batch),
)
"""The laws: the operation, the law in a few words, and the function."""


def own(asarray: Callable[[np.ndarray], Any], to_numpy: Callable[[Any], np.ndarray], **options: Any) -> dict[str, Call]:
    """Return the calls of this library on arrays of a library, by operation."""

    def sum(x: np.ndarray, axis: int) -> np.ndarray:
        return to_numpy(parprims.sum(asarray(x), axis=axis, **options))

    def dot(x: np.ndarray, axis: int) -> np.ndarray:
        return to_numpy(parprims.vecdot(asarray(x), asarray(x), axis=axis - x.ndim if axis >= 0 else axis, **options))

    def running(x: np.ndarray, axis: int, start: np.ndarray | None = None) -> np.ndarray:
        initial = {} if start is None else {"initial": asarray(np.ascontiguousarray(start))}
        return to_numpy(parprims.cumulative_sum(asarray(x), axis=axis, **initial, **options))

    def recurrence(x: np.ndarray, axis: int, start: np.ndarray | None = None) -> np.ndarray:
        initial = {} if start is None else {"initial": asarray(np.ascontiguousarray(start))}
        a = asarray(np.copysign(np.float32(1), x))  # so that nothing decays
        return to_numpy(parprims.linear_recurrence(a, asarray(x), axis=axis, **initial, **options))

    def product(x: np.ndarray, axis: int) -> np.ndarray:
        del axis
        return to_numpy(parprims.matmul(asarray(x), asarray(_factor(x.shape[-1])), **options))

    calls: dict[str, Call] = {"sum": sum, "product of vectors": dot}
    if "reproducible" in options:  # running sums have no initial element, and other operations no such option
        return {**calls, "running sum": lambda x, axis: running(x, axis)}
    return {**calls, "running sum": running, "linear recurrence": recurrence, "matrix product": product}


def of_library(xp: Any, asarray: Callable[[np.ndarray], Any], to_numpy: Callable[[Any], np.ndarray]) -> dict[str, Call]:
    """Return the calls of another library by its own routines."""

    def sum(x: np.ndarray, axis: int) -> np.ndarray:
        return to_numpy(xp.sum(asarray(x), axis))

    def dot(x: np.ndarray, axis: int) -> np.ndarray:
        if hasattr(xp, "vecdot"):
            return to_numpy(xp.vecdot(asarray(x), asarray(x), axis=axis))
        return to_numpy(xp.linalg.vecdot(asarray(x), asarray(x), dim=axis))

    def running(x: np.ndarray, axis: int, start: np.ndarray | None = None) -> np.ndarray:
        if start is None:
            return to_numpy(xp.cumsum(asarray(x), axis))
        return running(np.concatenate([start[:, None], x], axis=1), axis)[:, 1:]

    def product(x: np.ndarray, axis: int) -> np.ndarray:
        del axis
        return to_numpy(xp.matmul(asarray(x), asarray(_factor(x.shape[-1]))))

    found = {"sum": sum, "product of vectors": dot, "running sum": running, "matrix product": product}
    if not (hasattr(xp, "vecdot") or hasattr(xp.linalg, "vecdot")):
        del found["product of vectors"]
    return found


def _factor(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 9)).astype(np.float32)


def holds(law: Law, call: Call, lengths: tuple[int, ...] = LENGTHS) -> bool:
    """Return whether a call keeps a law at every length."""
    rng = np.random.default_rng(7)
    return all(law(call, rng, n) for n in lengths)


def kept(calls: dict[str, Call], operation: str, law: Law) -> bool | None:
    """Return whether the call of an operation keeps a law; None if there is no such call."""
    call = calls.get(operation)
    if call is None or (law is continued and "start" not in inspect.signature(call).parameters):
        return None
    return holds(law, call)


def columns() -> Iterator[tuple[str, dict[str, Call]]]:
    """Yield the columns of the table: the name, and the calls by operation."""
    yield "`canonical`", own(np.asarray, np.asarray, method="canonical")
    yield "`everywhere`", own(np.asarray, np.asarray, reproducible="everywhere")
    yield f"NumPy {np.__version__}", of_library(np, np.asarray, np.asarray)
    import jax.numpy as jnp

    yield f"JAX {importlib.metadata.version('jax')}", of_library(jnp, jnp.asarray, np.asarray)
    import torch

    yield f"PyTorch {torch.__version__.partition('+')[0]}", of_library(torch, _tensor, lambda x: x.numpy())


def _tensor(x: np.ndarray) -> Any:
    import torch

    # The strides stay, since `from_numpy` makes a view; negative ones it cannot.
    return torch.from_numpy(x if all(step > 0 for step in x.strides) else x.copy())


def columns_of_gpus() -> Iterator[tuple[str, dict[str, Call]]]:
    """Yield the columns for a GPU: CuPy's arrays, and the libraries by their own routines."""
    import cupy
    import jax
    import jax.numpy as jnp
    import torch

    yield "`canonical`", own(_on_gpu, cupy.asnumpy, method="canonical")
    yield "`everywhere`", own(_on_gpu, cupy.asnumpy, reproducible="everywhere")
    yield f"CuPy {cupy.__version__}", of_library(cupy, _on_gpu, cupy.asnumpy)
    yield f"JAX {jax.__version__}", of_library(jnp, jnp.asarray, np.asarray)

    def tensor(x: np.ndarray) -> Any:
        return torch.from_dlpack(_on_gpu(x))

    yield f"PyTorch {torch.__version__.partition('+')[0]}", of_library(torch, tensor, lambda x: x.cpu().numpy())


def _on_gpu(x: np.ndarray) -> Any:
    """Return an array of CuPy with the strides of an array, unless they are negative."""
    import cupy

    if any(step < 0 for step in x.strides) or 0 in x.shape:
        return cupy.asarray(x)
    last = sum((length - 1) * step for length, step in zip(x.shape, x.strides, strict=True))
    memory = cupy.zeros(last // x.itemsize + 1, x.dtype)
    found = cupy.lib.stride_tricks.as_strided(memory, x.shape, x.strides)
    found[...] = cupy.asarray(np.ascontiguousarray(x))
    return found


def tried(columns: Iterator[tuple[str, dict[str, Call]]]) -> dict[str, dict[str, bool | None]]:
    """Try every law with every column."""
    found = {}
    for name, calls in columns:
        found[name] = {f"{operation}: {words}": kept(calls, operation, law) for operation, words, law in LAWS}
        print(name, found[name], flush=True)
    return found


def main() -> None:
    """Try every law with every column, and write the record. With ``--gpu``, write its part for a GPU."""
    record = json.loads(RECORD.read_text())
    if "--gpu" in sys.argv[1:]:
        import cupy

        device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        record["gpu"] = {"device": device, "columns": tried(columns_of_gpus())}
    else:
        record |= {"processor": platform.machine(), "terms": "float32", "lengths": LENGTHS, "columns": tried(columns())}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
