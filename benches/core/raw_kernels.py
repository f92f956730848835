"""The kernels of a call as CuPy launches them, without the library."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import parprims

_launched: dict[tuple[int, ...], Callable[[], Any]] = {}  # of the arrays that were launched on last


def launched(call: Callable[..., Any], *arrays: Any) -> Any:
    """Return the outputs of a call's kernels, launched as ``cupy.RawKernel``; they are made for the arrays once."""
    key = (id(call), *map(id, arrays))
    if key not in _launched:
        _launched.clear()
        _launched[key] = _raw_kernels(call, arrays)
    return _launched[key]()


def _raw_kernels(call: Callable[..., Any], arrays: tuple[Any, ...]) -> Callable[[], Any]:
    found = parprims.launches(call, *arrays)
    if not found:
        raise ValueError("the call launches no kernel")
    ready = [(one.raw_kernel(), (one.grid,), (one.block,), one.arguments, one.shared_bytes) for one in found]
    named = dict(zip(found[0].parameters, found[0].arguments, strict=True))
    outputs = tuple(value for name, value in named.items() if re.fullmatch(r"out\d+", name))

    def run() -> Any:
        for kernel, grid, block, arguments, shared_bytes in ready:
            kernel(grid, block, arguments, shared_mem=shared_bytes)
        return outputs if len(outputs) > 1 else outputs[0]

    return run
