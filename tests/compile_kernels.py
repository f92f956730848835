"""Compile every kind of kernel the library can ask for, for every supported architecture, without a GPU.

``python -m tests.compile_kernels`` prints a line for each with registers, spills and shared memory, and fails on a
compile error or on a spill that is not in `SPILLS`.
"""

import argparse
import concurrent.futures
import math
import os
import re
import sys
from collections.abc import Iterator

import numpy as np

from parprims import _cuda, _reduce
from parprims._operators import BUILT_IN, as_operator, segmented
from parprims._trace import C_TYPES

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")

# Kernels that may spill, by the beginning of their name, with the reason.
_OCCUPANCY = "up to 32 bytes, the price the compiler pays to fit one more block on a multiprocessor"
SPILLS = {
    "reduce_rows<256, 4> multiply int8": _OCCUPANCY,
    "reduce_rows<512, 4> maximum int8": _OCCUPANCY,
    "reduce_rows<512, 4> maximum uint8": _OCCUPANCY,
    "reduce_short_rows<256, 1, 4> add uint32": _OCCUPANCY,
}

# Shapes and axes that between them reach every kernel: short rows of every width, long rows in one chunk and in
# many, columns from narrow to wide, with the axis short, long, and shared by several blocks.
LAYOUTS = (
    *(((1 << 16, n), 1) for n in (3, 40, 100, 200, 400, 500)),
    ((1 << 16, 4000), 1),
    ((64, 1 << 16), 1),
    ((1 << 24,), 0),
    *(((4096, n, inner), 1) for n in (2, 9, 100) for inner in (2, 7, 30, 130)),
    ((1 << 20, 3), 0),
    ((1 << 14, 1 << 14), 0),
)


def reductions() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of every instantiation of the reduction."""
    simple = (LAYOUTS[0], LAYOUTS[7], LAYOUTS[8], LAYOUTS[-1])
    for shape, axis in LAYOUTS:
        for dtype in ("int8", "float32", "complex128"):
            yield _reduction("add", (dtype,), shape, axis)
        yield _reduction(as_operator(lambda earlier, later: earlier + later), ("float32",), shape, axis)
    for shape, axis in simple:
        for dtype in C_TYPES:
            yield _reduction("add", (dtype,), shape, axis)
            kind = dtype.rstrip("0123456789")
            if kind not in ("bool", "complex"):
                yield _reduction("maximum", (dtype,), shape, axis)
                yield _reduction("argmin", (dtype, "int64"), shape, axis)
            if kind in ("float", "bfloat"):
                yield _reduction("logaddexp", (dtype,), shape, axis)
                yield _reduction("welford", (dtype,) * 3, shape, axis)
            if kind in ("bool", "int", "uint"):
                yield _reduction("bitwise_xor", (dtype,), shape, axis)
            if kind != "bool":
                yield _reduction("multiply", (dtype,), shape, axis)
                yield _reduction("affine", (dtype,) * 2, shape, axis)
                yield _reduction("add", (dtype,) * 2, shape, axis, _reduce._conjugate_product)
            yield _reduction("logical_or", (dtype,), shape, axis, None if kind == "bool" else _reduce._nonzero)
        yield _reduction(segmented("add"), ("bool", "float32"), shape, axis)
        yield _reduction("add", ("float32",), shape, axis, unaligned=True)


def _reduction(op, dtypes, shape, axis, fn=None, *, unaligned=False) -> tuple[str, _cuda.Plan]:
    operator = BUILT_IN[op] if isinstance(op, str) else op
    arrays = tuple(np.broadcast_to(np.zeros((), _numpy_dtype(dtype)), shape) for dtype in dtypes)
    r = _reduce._Reduction(fn, arrays, len(arrays) == 1, operator, (axis,), False, None, None)
    from array_api_compat import numpy as xp

    program = _reduce._Program(xp, r)
    strides = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
    plan = _reduce._plan(program, r, ((strides, 4 if unaligned else 0),) * len(arrays))
    assert plan is not None
    call = re.search(r"reduce_\w+<[^>]+>", plan.body).group()
    name = f"{call} {operator.name} {','.join(dtypes)}{' mapped' if fn else ''}{' unaligned' if unaligned else ''}"
    return name, plan


def _numpy_dtype(name: str):
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return name


def _compile(job: tuple[str, str, str]) -> tuple[str, str, str, str]:
    name, text, architecture = job
    try:
        _, log = _cuda.compile_source(text, architecture, report=True)
    except _cuda.CudaError as error:
        return name, architecture, "", str(error)
    return name, architecture, log, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="only this architecture")
    parser.add_argument("--match", default="", help="only kernels whose name contains this")
    options = parser.parse_args()
    sources = {}
    for name, plan in reductions():
        if options.match in name:
            sources.setdefault(plan.text(static=False), name)
    architectures = options.arch or ARCHITECTURES
    jobs = [(name, text, arch) for text, name in sources.items() for arch in architectures]
    print(f"{len(sources)} kernels for {', '.join(architectures)}")
    failures = 0
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        for name, architecture, log, error in pool.map(_compile, jobs, chunksize=8):
            used = re.search(r"Used (\d+) registers", log)
            spill = sum(int(n) for n in re.findall(r"(\d+) bytes spill", log))
            shared = re.search(r"(\d+) bytes smem", log)
            line = (
                f"{architecture:7} {used.group(1) if used else '?':>4} registers {spill:5} B spilled "
                f"{shared.group(1) if shared else '0':>6} B shared  {name}"
            )
            allowed = any(name.startswith(prefix) for prefix in SPILLS)
            if error or not used or (spill and not allowed):
                failures += 1
                print(f"FAILED {line}\n{error}", flush=True)
            else:
                print(line, flush=True)
    print(f"{len(jobs) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
