"""The ceilings: what the machine reaches at most, measured in the run that is held against them."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benches.core.cases import Scale
from benches.core.clock import Contender, interleave
from benches.core.problems import drawn
from examples.backends import Backend


def measure_ceilings(present: list[Backend], scale: Scale) -> dict[str, float]:
    """Return what the machine reaches at most: copy and read in B/s, products by dtype in FLOP/s.

    Each is the best of the libraries present.
    """
    found: dict[str, float] = {}
    size, n = scale.pick((2**24, 1024), (2**26, 2048), (2**30, 8192))
    rng = np.random.default_rng(0)
    numbers = drawn(rng, size, np.float32, lambda own, length: own.random(length, np.float32))
    matrices = drawn(rng, (2, n, n), np.float32, lambda own, length: own.standard_normal(length, np.float32))

    def best(name: str, backend: Backend, work: float, call: Callable[..., Any], *arrays: Any) -> None:
        one = Contender(backend, name, call, [arrays])
        interleave([one], False, 0.1 if scale.quick else 0.5)
        found[name] = max(found.get(name, 0.0), work / statistics.median(one.seconds))

    for backend in present:
        if backend.name.startswith("jax") and len(present) > 1:
            continue
        is_torch = backend.name.startswith("torch")
        x, out = backend.asarray(numbers), backend.asarray(numbers.copy())  # a CPU's arrays share the memory given
        copy = backend.module.Tensor.copy_ if is_torch else getattr(backend.module, "copyto", lambda _, x: x.copy())
        best("copy", backend, 8 * size, backend.compile(copy), out, x)
        for reduction in ("sum", "max"):
            best("read", backend, 4 * size, backend.compile(getattr(backend.module, reduction)), x)
        del x, out
        product = backend.module.matmul
        if backend.name.startswith("jax"):  # whose float32 are rounded to tf32 otherwise
            product = functools.partial(product, precision="highest")
        for dtype in ("float32", "float64", *(("float16", "bfloat16") if backend.cuda else ())):
            if backend.supports(dtype):
                a, b = map(backend.asarray, matrices)
                cast = getattr(backend.module, dtype)
                a, b = (m.to(cast) if is_torch else m.astype(cast) for m in (a, b))
                best(f"matmul {dtype}", backend, 2 * n**3, backend.compile(product), a, b)
        backend.free()
    return found
