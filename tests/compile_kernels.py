"""Compile every kind of kernel the library can ask for, for every supported architecture, without a GPU.

``python -m tests.compile_kernels`` prints a line for each with registers, spills and shared memory, and fails on a
compile error, on a spill that is not in `SPILLS`, and where asynchronous products would wait for each other. One
architecture, or the one in `WHOLE`, compiles the whole list; beside it the others compile every sixteenth kernel, and
the oldest and the newest the first of each way of each template with each dtype. Kernels with instructions of one
architecture alone, which is that in `WHOLE`, compile for it.
"""

import argparse
import concurrent.futures
import itertools
import math
import os
import pathlib
import re
import sys
from collections.abc import Iterator

import numpy as np

from parprims import _cuda, _matmul, _reduce, _scan, _sort, _tridiagonal
from parprims._arrays import compute_dtype, ring_dtype
from parprims._operators import BUILT_IN, as_operator, segmented
from parprims._trace import C_TYPES

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
WHOLE = "sm_90"

# Kernels that may spill, by the beginning of their name, with the reason.
_OCCUPANCY = "up to 40 bytes, the price the compiler pays to fit one more block on a multiprocessor"
SPILLS = {
    "reduce_rows<256, 4> multiply int8": _OCCUPANCY,
    "reduce_rows<512, 4> maximum int8": _OCCUPANCY,
    "reduce_rows<512, 4> maximum uint8": _OCCUPANCY,
    "reduce_short_rows<256, 1, 4> add uint32": _OCCUPANCY,
    # What a thread keeps of its rows takes more registers than the threads of a long system may have.
    **{f"solve_systems<{kind}, 8, 512, 1,": "up to 2 KB each way" for kind in ("double", "Complex<float>")},
    "solve_systems<float, 8, 1024, 1,": "up to 1 KB each way",
    "solve_systems<float, 8, ": "up to 120 bytes each way, which let another block fit a multiprocessor",
    "solve_systems<Complex<double>, 4,": "up to 400 bytes each way",
    "solve_in_order<float, 8, 128, 8, true": _OCCUPANCY,
    "solve_exchanging<float, 8,": "up to 200 bytes each way, which let more blocks fit a multiprocessor",
    "solve_exchanging<float, 16, 512,": "up to 750 bytes each way",
    "solve_exchanging<double, 8,": "up to 650 bytes each way",
    "solve_exchanging<Complex<float>, 8,": "up to 550 bytes each way",
    "solve_exchanging<Complex<double>, 2,": "up to 1.4 KB each way",
    "solve_systems<Complex<float>, 8, 64, 2,": _OCCUPANCY,
    "solve_short<double, 8, 128, true, true>": _OCCUPANCY,
    "shorten_long<Complex<double>, 4,": _OCCUPANCY,
    "expand_long<double, 8, true, false,": _OCCUPANCY,
    "mend_long<Complex<float>, 8,": "up to 110 bytes each way, which let two blocks fit a multiprocessor",
    "mend_long<double, 8,": "up to 450 bytes each way on one architecture, the same",
    "mend_long<Complex<double>, 2,": "up to 60 bytes each way, the same",
    "mend_stably<Complex<double>, 4,": _OCCUPANCY,
    "mend_stably<float, 8,": "up to 50 bytes each way, the same",
    "sweep_times<3, 12, 4": "up to 70 bytes on the oldest architectures with asynchronous copies",
    "lengthen_long<Complex<float>, 8,": _OCCUPANCY,
    "reduce_chunks<Complex<float>, 8, 64,": _OCCUPANCY,
    "join_segments<Complex<double>, 256,": "up to 70 bytes each way, the same",
    "reduce_chunks<double, 8, 256, false": _OCCUPANCY,
    "reduce_chunks<Complex<double>, 4, 256, false": "up to 100 bytes each way, the same",
    "solve_chunks<float, 8, 256, false": _OCCUPANCY,
    "solve_chunks<Complex<float>, 8, 256,": "up to 200 bytes each way, the same",
    "solve_chunks<double, 8, 256,": "up to 120 bytes each way, which let another block fit a multiprocessor",
    "reduce_chunks<float, 8, 256, true, false,": _OCCUPANCY,
    "solve_chunks<Complex<double>, 4,": _OCCUPANCY,
    "solve_in_order<float, 8, 16, 32, true": _OCCUPANCY,
    "scan_columns<8, 32, 16, GROUPS> add float32": _OCCUPANCY,
    "scan_columns<8, 32, 16, GROUPS> add int8": _OCCUPANCY,
    "scan_columns<8, 32, 16, NEIGHBOUR> add float64": _OCCUPANCY,
    "scan_columns<8, 32, 8, NEIGHBOUR> recurrence complex128": _OCCUPANCY,
    "scan_rows<256, 256, 3, GROUPS, false> adjoint complex128": _OCCUPANCY,
    "scan_rows<256, 256, 7, NEIGHBOUR, false> add float32 unaligned": _OCCUPANCY,
    "scan_rows<256, 256, 3, GROUPS, false> welford float64": _OCCUPANCY,
    "scan_rows<256, 32, 4, ALONE, false> add float32": _OCCUPANCY,
    "count_digits<256, 16> sort bool": _OCCUPANCY,
    "SortedRows<128, 32, 32, 8, true, ": _OCCUPANCY,
    "SortedTile<384, 15> sort float32 values (1, 2, 8)": _OCCUPANCY,
    "SortedRows<64, 64, 16, 8, true, true> sort ": "up to 30 bytes each way on sm_100, which another block is worth",
    "SortedRows<256, 256, 16, 8, false, true> sort uint8 values (4,)": _OCCUPANCY,
    "SortedRows<256, 256, 32, 8, false, false> sort float32": _OCCUPANCY,
    "SortedRows<384, 384, ": "up to 190 bytes each way, which another block is worth",
    "SortedTile<512, 18> sort ": "up to 80 bytes each way, the price of longer tiles",
    "multiply_conflict_free<128, 128, ": "up to 300 bytes each way, which let another block fit a multiprocessor",
    "multiply_doubles_by_groups<DOUBLE, 64, 128, 16, 8, 2, false, 1,": "8 bytes each way, outside of the loops",
    "multiply_tiled<32, 32, 32> matmul uint64": "8 bytes each way: 1024 threads have 64 registers each",
    "multiply_tiled<32, 32, 32> matmul float32": "16 bytes each way on sm_86 and sm_89, the same",
    "multiply_conflict_free<32, 64, 16, 1, ": "up to 120 bytes on sm_120: elements that are loaded one by one",
    # The sums alone take half of the registers that a thread can have.
    "multiply_tensor<HALF, 128, 256, ": "up to 30 bytes each way",
    "multiply_tensor<TF32, 128, 256, ": "up to 10 bytes each way",
    "multiply_tensor<BFLOAT, 16, 128, 64, 1, 2, 4, 1, ": "up to 40 bytes each way: elements that are copied one by one",
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


# The same for scans: threads that have a row each, a few to a row, a warp or a block; rows in tiles that wait for their
# neighbour or look back in groups; columns alone, narrow and wide, and in tiles.
SCAN_LAYOUTS = (
    ((1 << 16, 3), 1),
    ((1 << 16, 40), 1),
    ((1 << 16, 500), 1),
    ((64, 4000), 1),
    ((512, 20_000), 1),
    ((1 << 24,), 0),
    ((4096, 9, 7), 1),
    ((4096, 2, 64), 1),
    ((4096, 100, 30), 1),
    ((1 << 14, 1 << 14), 0),
    ((1 << 14, 128), 0),
    ((2048, 40_000), 1),
)


def scans() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of scans and linear recurrences that reach every way of the two templates."""
    for shape, axis in SCAN_LAYOUTS:
        for dtype in ("int8", "float32"):
            yield _scan_kernel("add", (dtype,), shape, axis)
        for dtype in ("float32", "bfloat16", "complex128"):
            yield _scan_kernel("recurrence", (dtype,) * 2, shape, axis)
        yield _scan_kernel("adjoint", ("float32",) * 3, shape, axis)
    for shape, axis in (SCAN_LAYOUTS[5], SCAN_LAYOUTS[9]):
        for dtype in C_TYPES:
            yield _scan_kernel("add", (dtype,), shape, axis)
        for dtype in ("float16", "float64", "complex64", "int32"):
            yield _scan_kernel("recurrence", (dtype,) * 2, shape, axis)
        for dtype in ("bfloat16", "float64", "complex64", "complex128"):
            yield _scan_kernel("adjoint", (dtype,) * 3, shape, axis)
        yield _scan_kernel("adjoint", ("float32",) * 2, shape, axis)
        for op, dtypes in (
            ("maximum", ("float16",)),
            ("multiply", ("complex64",)),
            ("affine", ("float32",) * 2),
            ("argmax", ("float32", "int64")),
            ("welford", ("float64",) * 3),
            (segmented("add"), ("bool", "float32")),
        ):
            yield _scan_kernel(op, dtypes, shape, axis)
    for shape, axis in (SCAN_LAYOUTS[2], SCAN_LAYOUTS[4], SCAN_LAYOUTS[5], SCAN_LAYOUTS[9]):
        yield _scan_kernel("add", ("float32",), shape, axis, exclusive=True)
        yield _scan_kernel("add", ("float32",), shape, axis, reverse=True)
        yield _scan_kernel("add", ("float32",), shape, axis, unaligned=True)
        yield _scan_kernel("affine", ("int32",) * 2, shape, axis, exclusive=True, reverse=True, start=True)
        yield _scan_kernel("recurrence", ("float32",) * 2, shape, axis, constant=True)
        yield _scan_kernel("recurrence", ("float32",) * 2, shape, axis, reverse=True, start=True)


def _scan_kernel(
    op, dtypes, shape, axis, *, exclusive=False, reverse=False, start=False, constant=False, unaligned=False
) -> tuple[str, _cuda.Plan]:
    from array_api_compat import numpy as xp

    arrays = tuple(np.broadcast_to(np.zeros((), _numpy_dtype(dtype)), shape) for dtype in dtypes)
    starts = tuple(x[(slice(None),) * axis + (slice(1),)] for x in arrays) if start else None
    r: _scan._Scan | _scan._Recurrence | _scan._Adjoint
    if op == "adjoint":
        name = op
        r = _scan._Adjoint(arrays, axis, True)
    elif op == "recurrence":
        name = op
        if constant:
            arrays = (np.zeros((1,) * len(shape), arrays[0].dtype), arrays[1])
        r = _scan._Recurrence(arrays, shape, constant, axis, starts and starts[1], reverse, arrays[1].dtype)
    else:
        operator = BUILT_IN[op] if isinstance(op, str) else op
        name = operator.name
        results = _scan._dtypes(xp, operator, tuple(x.dtype for x in arrays), None)
        working = tuple((ring_dtype if operator in _scan._SUMS else compute_dtype)(xp, dtype) for dtype in results)
        identity = operator.identity(*working) if exclusive and not start else None
        r = _scan._Scan(
            arrays,
            len(arrays) == 1,
            operator,
            None,
            axis,
            exclusive,
            reverse,
            starts,
            identity,
            shape[axis],
            working,
            results,
        )
    shapes = tuple(x.shape for x in (*r.inputs, *r.starts()))
    layouts = tuple((_scan._row_major(one), 4 if unaligned else 0) for one in shapes)
    plan = _scan._plan(r.make_program(), shape, axis, reverse, r.n, shapes, layouts)
    assert plan is not None
    call = re.search(r"scan_\w+<[^>]+>", plan.body).group()
    options = {"exclusive": exclusive, "reverse": reverse, "start": start, "constant": constant, "unaligned": unaligned}
    return " ".join((call, name, ",".join(dtypes), *(option for option, set_ in options.items() if set_))), plan


# Systems of a thread, a warp and a block; systems side by side; the most unknowns that fit; right-hand sides.
TRIDIAGONAL_LAYOUTS = (
    ((1 << 16, 5), -1),
    ((1 << 16, 128), -1),
    ((1 << 14, 512), -1),
    ((1 << 12, 2000), -1),
    ((1 << 12, 4096), -1),
    ((1 << 8, 8000), -1),
    ((128, 1 << 16), -2),
    ((1000, 1 << 12), -2),
)


def solves() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plans of tridiagonal solves that reach every way of the templates."""
    dtypes = ("float32", "float64", "complex64", "complex128")
    for shape, axis in TRIDIAGONAL_LAYOUTS:
        for dtype in dtypes:
            for pivot in ("auto", "partial", "none"):
                if pivot != "partial" or dtype == "float32":
                    yield from _solve_kernels(shape, axis, dtype, pivot)
            yield from _solve_kernels(shape, axis, dtype, "auto", periodic=True)
    for dtype in dtypes:
        yield from _solve_kernels((4, 1 << 24), -1, dtype, "auto")
        yield from _solve_kernels((1 << 16,), -1, dtype, "auto")
        yield from _solve_kernels((4, 1 << 24), -1, dtype, "none", periodic=True)


def _solve_kernels(shape, axis, dtype, pivot, *, periodic=False) -> Iterator[tuple[str, _cuda.Plan]]:
    layouts = ((_tridiagonal._row_major(shape), 0),) * 4
    arguments = (shape, axis, periodic, pivot, dtype, 0, (shape,) * 4, layouts)
    plan = (_tridiagonal._long_plan if _tridiagonal._beyond_block(dtype, shape[axis]) else _tridiagonal._plan)(
        *arguments
    )
    assert plan is not None
    for launch in plan.launches():
        body = launch.body.splitlines()[-1]
        yield f"{re.match(r' *([a-z_]+<.+?>)[(]', body).group(1)} solve {dtype}", launch


# And for sorts: rows in a warp's lanes, in a warp, in a block, and in tiles, small and large.
SORT_LAYOUTS = (
    *((1 << 16, n) for n in (20, 200, 1024, 4000, 8000)),
    (1 << 14,),
    (1 << 28,),
)
SORT_DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64"  # every order of keys
).split()


def sorts() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plans of every way to sort, and the plans of large sorts of every dtype."""
    wide = 1 << 33  # words of 64 bits
    for shape in SORT_LAYOUTS:
        for dtype in SORT_DTYPES if shape == (1 << 28,) else ("uint8", "float16", "float32", "int64"):
            for descending in (False, True) if dtype == "float32" else (False,):
                yield from _sort_kernels(dtype, shape, descending=descending)
                yield from _sort_kernels(dtype, shape, (), "int64", descending=descending)
                yield from _sort_kernels(dtype, shape, (4,), descending=descending)
        yield from _sort_kernels("float32", shape, (1, 2, 8), "int32")
        yield from _sort_kernels("float64", shape, (8,))
        yield from _sort_kernels("float64", shape, (16,))
    yield from _sort_kernels("float32", (wide,))
    yield from _sort_kernels("int64", (wide,), (), "int64")
    yield from _sort_kernels("float32", (1 << 28,), unaligned=True)


def _sort_kernels(
    dtype, shape, values=(), index=None, *, descending=False, unaligned=False
) -> Iterator[tuple[str, _cuda.Plan]]:
    keyed = bool(values) or index is None
    spec = _sort._Spec(dtype, descending, keyed, values, index)
    outputs = [(shape, dtype)] * keyed + [(shape, "int8")] * len(values) + [(shape, index)] * bool(index)
    for plan in dict.fromkeys(_sort._plan(spec, outputs, shape, 4 if unaligned else 0).launches()):
        call = re.search(r"(count_digits|Sorted\w+)<[^>]+>", plan.body).group()
        words = {f"values {values}": values, "indices": index, "descending": descending, "wide": shape[-1] > 1 << 31}
        yield " ".join((call, "sort", dtype, *(word for word, set_ in words.items() if set_))), plan


def products() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plans of matrix products that reach every way of the ladder's templates."""
    for dtype in ("float32", "int8", "complex128"):
        yield from _product_kernels("naive", dtype)
    for dtype in ("float32", "bfloat16", "uint64"):
        yield from _product_kernels("tiled", dtype)
    for dtype in ("float64", "float16"):
        yield from _product_kernels("packed", dtype)
    for dtype in ("float32", "int8", "float64", "complex128"):
        yield from _product_kernels("conflict_free", dtype)
    yield from _product_kernels("conflict_free", "float32", transposed=(True, True))
    yield from _product_kernels("conflict_free", "float32", (300, 301, 303))
    yield from _product_kernels("conflict_free", "float32", unaligned=True)
    yield from _product_kernels("conflict_free", "float32", operators=("minimum", "add"))
    yield from _product_kernels("conflict_free", "float32", operators=("logaddexp", "add"))
    yield from _product_kernels("conflict_free", "bool", operators=("logical_or", "logical_and"))
    # Tensor cores by single warps: every kind of instruction and every way that factors lie with few rows, which
    # compile the fastest; then the large tiles.
    few = (16, 8192, 8192)
    warps = {"capability": 80}
    for dtype, precision in (
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float32", "float32"),
        ("float32", "tf32"),
        ("float32", "highest"),
        ("float64", "float32"),
    ):
        yield from _product_kernels("tensor", dtype, few, precision=precision, **warps)
        if precision == "float32":
            yield from _product_kernels("tensor", dtype, few, transposed=(True, True), **warps)
    yield from _product_kernels("tensor", "bfloat16", few, transposed=(False, True), **warps)
    yield from _product_kernels("tensor", "bfloat16", few, unaligned=True, **warps)
    yield from _product_kernels("tensor", "float32", (16, 301, 303), **warps)
    for dtype in ("float16", "float32", "float64"):
        yield from _product_kernels("tensor", dtype, **warps)
    yield from _product_kernels("tensor", "float32", precision="tf32", **warps)
    yield from _product_kernels("tensor", "float32", (512, 512, 512), **warps)
    # And by groups of four warps: 16-bit floats; float32 turned or not, with the left factor along k or not; float64.
    some = (1024, 1024, 1024)
    yield from _product_kernels("tensor", "float16")
    yield from _product_kernels("tensor", "bfloat16", some, transposed=(True, True))
    yield from _product_kernels("tensor", "float32", precision="tf32")
    yield from _product_kernels("tensor", "float32", some, precision="tf32", transposed=(False, True))
    for transposed in ((False, False), (False, True), (True, True), (True, False)):
        yield from _product_kernels("tensor", "float32", transposed=transposed)
    yield from _product_kernels("tensor", "float64")
    yield from _product_kernels("tensor", "float64", (300, 301, 303), transposed=(True, False))
    yield from _product_kernels("tensor", "float32", precision="highest")


def _product_kernels(
    kernel,
    dtype,
    lengths=(8192, 8192, 8192),
    *,
    precision="float32",
    operators=("add", "multiply"),
    transposed=(False, False),
    unaligned=False,
    capability=90,
) -> Iterator[tuple[str, _cuda.Plan]]:
    from array_api_compat import numpy as xp

    m, k, n = lengths
    a, b = (np.broadcast_to(np.zeros((), _numpy_dtype(dtype)), shape) for shape in ((m, k), (k, n)))
    p = _matmul._Product(xp, a, b, _matmul._operators(*operators), operators, None)
    p.choose(xp, precision, kernel)
    numbers = _matmul._Numbers(p)
    layouts = [
        ((1, rows) if across else (columns, 1), numbers.memory_bytes if unaligned else 0)
        for across, (rows, columns) in zip(transposed, ((m, k), (k, n)), strict=True)
    ]
    plan = _matmul._plan(p, numbers, kernel, _matmul._text(p, numbers), layouts, capability)
    for launch in plan.launches():
        call = re.search(r"(multiply|pack)_\w+<[^>]+>", launch.body).group()
        words = {"_".join(operators): not p.ring, precision: precision != "float32", "unaligned": unaligned}
        yield " ".join((call, "matmul", dtype, *(word for word, set_ in words.items() if set_))), launch


def stencils() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of every kernel of the example laplace3d."""
    folder = str(pathlib.Path(__file__).parents[1] / "examples")
    sys.path.insert(0, folder)
    try:
        import laplace3d_cuda
    finally:
        sys.path.remove(folder)
    for form in laplace3d_cuda.FORMS:
        yield f"{form.name} stencil float32", stencil_plan(laplace3d_cuda.TEXT, form, (512, 512, 512))


def stencil_plan(text: str, form, shape: tuple[int, int, int]) -> _cuda.Plan:
    """Return the plan of a form of the example laplace3d."""
    body = f"  {form.call('(const float*)in0', '(float*)out0', 'n0, n1, n2', 'n3')}"
    return _cuda.Plan(
        text,
        body,
        inputs=1,
        outputs=((shape, "float32"),),
        integers=(*shape, form.cells[0]),
        grid=form.grid(shape),
        block=form.threads,
        shared_bytes=form.shared_bytes,
        resident_blocks=form.resident,
    )


def _numpy_dtype(name: str):
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return name


def _way(name: str) -> str:
    """Return the template, those of its arguments that are words, and the dtypes."""
    call, rest = name.split("> ", 1)
    return " ".join((re.sub(r"\d+(, )?", "", call), rest.split(" ")[1]))


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
    sources: dict[str, tuple[str, _cuda.Plan]] = {}
    for name, plan in itertools.chain(reductions(), scans(), solves(), sorts(), products(), stencils()):
        if options.match in name:
            sources.setdefault(plan.text(static=False), (name, plan))
    architectures = options.arch or ARCHITECTURES
    ways = {_way(name): name for name, _ in reversed(sources.values())}

    def wanted(arch: str, at: int, name: str, plan: _cuda.Plan) -> bool:
        if arch == WHOLE or plan.own_instructions:
            return arch == WHOLE
        ends = ARCHITECTURES[0], ARCHITECTURES[-1]
        return len(architectures) == 1 or at % 16 == 0 or (arch in ends and ways[_way(name)] == name)

    jobs = [
        (name, text, plan.architecture(arch))
        for at, (text, (name, plan)) in enumerate(sources.items())
        for arch in architectures
        if wanted(arch, at, name, plan)
    ]
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
            error = error or "\n".join(one for one in log.splitlines() if "wgmma" in one and "serialized" in one)
            if error or not used or (spill and not allowed):
                failures += 1
                print(f"FAILED {line}\n{error}", flush=True)
            else:
                print(line, flush=True)
    print(f"{len(jobs) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
