"""Compile every kind of kernel the library can ask for, for every supported architecture, without a GPU.

``python -m tests.checks.compile_kernels`` prints a line for each with registers, spills and shared memory, and fails on
a compile error, on a spill that is not in `SPILLS`, where asynchronous products would wait for each other, where no
block fits a multiprocessor, and where a file of device code does not compile by itself with its includes. One
architecture, or the one in `WHOLE`, compiles the whole list. Each of the others compiles beside it the first kernel of
each template; the first of each way of each template that its own tuning changes; and the first of each way goes to one
of them in turn. Kernels with instructions of one architecture alone, which is that in `WHOLE`, compile for it.

The same text, options and compiler give nearly the same result: only the registers of a few kernels vary from run to
run. So `RECORD` keeps results by a digest of these, and only new texts are compiled, with a few others at random, whose
results must be near those on record. ``--all`` compiles every kernel, and ``--record`` writes the record anew.
"""

import argparse
import concurrent.futures
import hashlib
import importlib
import json
import os
import pathlib
import pkgutil
import random
import re
import sys
from collections.abc import Iterator

import parprims
from parprims import _cuda
from parprims._cuda import Plan, compiler, device_source
from tests.support.text_plans import text_plan
from tests.support.tuning_tables import of_device

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
WHOLE = "sm_90"
ALONE = ("compute_75", "compute_90a")
"""The architectures for which every file compiles by itself: those of the most branches of the preprocessor."""

RECORD = pathlib.Path(__file__).with_name("compiled.json")
SAMPLE = 40
"""How many kernels on record are compiled once more."""

# Kernels that may spill, by the beginning of their name, with the reason.
_OCCUPANCY = "up to 40 bytes, the price the compiler pays to fit one more block on a multiprocessor"
SPILLS = {
    "histogram::count_bins<double, double, long long, histogram::GLOBAL, ": _OCCUPANCY,
    "histogram::count_bins<long long, double, long long, histogram::GLOBAL, ": _OCCUPANCY,
    "histogram::sum_bins<float, float, int, long long, long long, histogram::GLOBAL, 8>": "64 bytes on sm_120",
    "histogram::count_bins<unsigned long long, double, long long, histogram::GLOBAL, ": _OCCUPANCY,
    "reduce_marked_lines<256, ": "up to 800 bytes, in sums of lines whose guess was wrong",
    "reduce_lines<256, ": "up to 700 bytes of elements and states, which let more blocks fit a multiprocessor",
    "reduce_segments<4, ": _OCCUPANCY,
    "scan_columns<8, 32, 10, 1, CHAINED, Scan> welford float64": "200 bytes, which let another block fit",
    "scan_rows<192, 192, 3, 1, SERIAL, false, 55392, Scan> adjoint complex128": "44 bytes, in some runs",
    "scan_rows<192, 192, 3, 4, SERIAL, false, 9248, Scan> running sum everywhere float16": "8 bytes",
    "scan_strips<256, 2, 4000, true, 56320, Scan> argmax float32,int64": "72 bytes, which let another block fit",
    "scan_strips<256, 4, 5360, true, 23552, Scan> add float32": "24 bytes on sm_120, which let another block fit",
    "scan_columns<8, 32, 5, 1, LOOK_BACK, Scan> adjoint complex128": "32 bytes on sm_120",
    "scan_columns<8, 32, 5, 1, CHAINED, Scan> adjoint complex128": "110 bytes, which let another block fit",
    "top::find_top<64, 8, 1024, ": _OCCUPANCY,
    "top::find_top<512, 8, ": "up to 700 bytes where candidates are sorted, which let another block fit",
    "top::find_top<512, 16, 4096, ": "124 bytes where candidates of 8 bytes are sorted",
    "top::find_top<128, 16, 2048, ": "up to 700 bytes where candidates are sorted, which let another block fit",
    "sort_rows<128, 32, 7, 8, false, true, 9792, Order>": "8 bytes on sm_120, in some runs of the compiler",
    # What a thread keeps of its rows takes more registers than the threads of a long system may have.
    **{f"solve_stable<{kind}, 8, 512, 1,": "up to 2 KB each way" for kind in ("double", "Complex<float>")},
    "solve_stable<float, 8, 1024, 1,": "up to 1 KB each way",
    "solve_stable<float, 8, ": "up to 120 bytes each way, which let another block fit a multiprocessor",
    "solve_stable<Complex<double>, 4,": "up to 400 bytes each way",
    "solve_in_order<float, 8, 128, 8, true": _OCCUPANCY,
    "solve_exchanging<float, 8,": "up to 70 bytes each way, which let more blocks fit a multiprocessor",
    "solve_exchanging<float, 16,": "up to 50 bytes each way, the same",
    "solve_exchanging<double, 8,": "up to 250 bytes each way, the same",
    "solve_exchanging<Complex<float>, 8,": "up to 110 bytes each way, the same",
    "solve_exchanging<Complex<double>, 2,": "up to 1.2 KB each way",
    "solve_stable<Complex<float>, 8, 64, 2,": _OCCUPANCY,
    "reduce_in_order<Complex<double>, 4,": _OCCUPANCY,
    "refine_windows<Complex<float>, 8,": "up to 110 bytes each way, which let two blocks fit a multiprocessor",
    "refine_windows<double, 8,": "up to 450 bytes each way on one architecture, the same",
    "refine_windows<Complex<double>, 2,": "up to 60 bytes each way, the same",
    "expand_exchanging<Complex<double>, 2,": "up to 100 bytes each way, the same",
    "expand_exchanging<Complex<float>, 8,": "24 bytes on sm_120",
    "expand_in_order<double, 8,": _OCCUPANCY,
    "reduce_in_order<double, 8,": _OCCUPANCY,
    "solve_stably<float, 8, 128,": _OCCUPANCY,
    "solve_stably<Complex<double>, 4, 32,": "up to 140 bytes each way",
    "solve_stably<double, 4, 64,": "up to 30 bytes each way on the oldest architecture",
    "sweep_times<3, 12, 4": "up to 70 bytes on the oldest architectures with asynchronous copies",
    "expand_in_order<Complex<float>, 8,": _OCCUPANCY,
    "compaction::compact<512, ": _OCCUPANCY,
    "compaction::compact<256, ": "up to 60 bytes on sm_120, the same",
    "partitions::count_parts<256, 16, Order> partition int8": "16 bytes on sm_120",
    "sort_pieces<512, ": "up to 150 bytes each way; fewer threads or blocks take longer",
    "merge_pieces<512, ": "up to 100 bytes each way, which let a third block fit a multiprocessor",
    "solve_in_order<float, 8, 16, 32, true": _OCCUPANCY,
    "scan_columns<8, 32, 16, 4, LOOK_BACK, Scan> add float32": _OCCUPANCY,
    "scan_columns<8, 32, 16, 2, LOOK_BACK, Scan> add int8": _OCCUPANCY,
    "scan_columns<8, 32, 16, 2, CHAINED, Scan> add float64": _OCCUPANCY,
    "scan_columns<8, 32, 8, 1, CHAINED, Scan> recurrence complex128": _OCCUPANCY,
    "scan_columns<8, 32, 8, 1, LOOK_BACK, Scan> recurrence complex128": _OCCUPANCY,
    "scan_segment_blocks<2048, false, true, 37888, Scan> segments recurrence float64": "32 bytes on sm_100",
    "scan_rows<256, 256, 3, 4, LOOK_BACK, false, 36912, Scan> adjoint float32": "8 bytes on sm_86 and sm_89",
    "scan_rows<256, 256, 3, 1, LOOK_BACK, false, 36912, Scan> adjoint complex128": _OCCUPANCY,
    "scan_rows<256, 256, 7, 4, CHAINED, false, 28688, Scan> add float32 unaligned": _OCCUPANCY,
    "scan_rows<256, 256, 3, 2, LOOK_BACK, false, 36912, Scan> welford float64": _OCCUPANCY,
    "scan_rows<256, 32, 4, 4, ALONE, false, 18432, Scan> add float32": _OCCUPANCY,
    "scan_strips<512, ": _OCCUPANCY,
    "count_digits<256, 16, ": _OCCUPANCY,
    "sort_rows<128, 32, 32, 8, true, ": _OCCUPANCY,
    "sort_tiles<384, 15, Order, unsigned int, unsigned int> sort float32 values (1, 2, 8)": "up to 140 bytes, the same",
    "sort_rows<256, 256, 16, 8, false, true, 20560, Order> sort uint8 values (4,)": _OCCUPANCY,
    "sort_rows<256, 256, 32, 8, false, false, 41040, Order> sort float32": _OCCUPANCY,
    "sort_tiles<384, 12, ": "up to 40 bytes each way, which let a third block fit",
    "sort_tiles<512, 18, ": "up to 80 bytes each way, the price of longer tiles",
    "sort_pieces<256, ": _OCCUPANCY,
    "multiply_conflict_free<Semiring, 128, 128, ": "up to 300 bytes each way, which let another block fit",
    "multiply_doubles_by_groups<Semiring, DOUBLE, 64, 128, 16, 8, 197632, 2, false, 1,": "8 bytes, not in loops",
    "multiply_tiled<Semiring, 32, 32, 32, 16384> matmul uint64": "8 bytes: 1024 threads have 64 registers each",
    "multiply_tiled<Semiring, 32, 32, 32, 8192> matmul float32": "16 bytes each way on sm_86 and sm_89, the same",
    "multiply_conflict_free<Semiring, 32, 64, 16, 12288, 1, ": "up to 120 bytes on sm_120: elements loaded one by one",
    "filters::filter_rows<filters::Tables<": "up to 200 bytes each way, while states are scanned: another block fits",
    "filters::filter_rows<filters::Lattice<double, 3,": _OCCUPANCY,
    "filters::filter_rows<filters::Lattice<double, 4,": _OCCUPANCY,
    # States of so many numbers, of which the look-back holds several, take all registers.
    "filters::filter_rows<filters::Lattice<double, 24,": "up to 700 bytes each way",
    "filters::filter_rows<filters::Lattice<Complex<double>, ": "up to 2.5 KB each way",
    "banded::solve<double, 4, false,": "up to 160 bytes each way, as its window takes all registers",
    "banded::solve<Complex<float>, 4, false,": "up to 500 bytes each way, the same",
    # The sums alone take half of the registers that a thread can have.
    "residues::multiply_lost<Semiring, DOUBLE, 128, 128, 16, 2, 4, 4, 82048, 4, false, 4, false,": "144 bytes",
    "multiply_tensor<Semiring, HALF, 128, 256, ": "up to 30 bytes each way",
    "multiply_tensor<Semiring, TF32, 128, 256, ": "up to 10 bytes each way",
    "multiply_tensor<Semiring, BFLOAT, 16, 128, 64, 1, 2, 4, 77952, 1, ": "up to 40 bytes: elements copied one by one",
}


_OF_LIBRARIES = ("parprims._cpu.templates", "parprims._derivatives", "parprims._torch_compile", "parprims._devices")
"""The rooms with modules that import a library that need not be there."""


def stencils() -> Iterator[tuple[str, Plan]]:
    """Yield the name and the plan of every kernel of the example laplace3d."""
    folder = str(pathlib.Path(__file__).parents[2] / "examples")
    sys.path.insert(0, folder)
    try:
        import laplace3d_cuda
    finally:
        sys.path.remove(folder)
    for form in laplace3d_cuda.FORMS:
        yield "stencil float32", stencil_plan(laplace3d_cuda.TEXT, form, (512, 512, 512))


def stencil_plan(text: str, form, shape: tuple[int, int, int]) -> Plan:
    """Return the plan of a form of the example laplace3d."""
    body = f"  {form.call('(const float*)in0', '(float*)out0', 'n0, n1, n2', 'n3')}"
    return text_plan(
        text,
        body,
        name=form.name,
        inputs=1,
        outputs=((shape, "float32"),),
        integers=(*shape, form.cells[0]),
        grid=form.grid(shape),
        block=form.threads,
        shared_bytes=form.shared_bytes,
        resident_blocks=form.resident,
    )


def plans() -> Iterator[tuple[str, Plan]]:
    """Yield what a plan is for, and the plan, of every kind of kernel: the cases of every module that has some."""
    for found in pkgutil.walk_packages(parprims.__path__, "parprims."):
        module = None if found.name.startswith(_OF_LIBRARIES) else importlib.import_module(found.name)
        if hasattr(module, "cases"):
            yield from module.cases()
    yield from stencils()


def _way(name: str) -> str:
    """Return the template and those of its arguments that are words."""
    return re.sub(r"\d+(, )?", "", name.split("> ", 1)[0])


Result = tuple[int, int, int]
"""The registers of a thread, the bytes spilled, and the bytes of static shared memory of a block."""


def resident(architecture: str, launch: _cuda.Launch, result: Result) -> int:
    """Return how many blocks of a launch fit a multiprocessor."""
    device, warps = _cuda.model(_capability(architecture)), -(-launch.block // 32)
    registers = -(-result[0] // 8) * 8 * 32 * warps
    shared = launch.shared_bytes + result[2] + 1024 * (device.shared_kib > device.block_kib)
    by_shared = (device.shared_kib << 10) // shared if shared else 32
    return min(32, device.threads // (32 * warps), 65536 // registers, by_shared)


def _capability(architecture: str) -> int:
    return int(architecture.removeprefix("sm_").removesuffix("a"))


def _compile(job: tuple[str, str]) -> tuple[Result | None, str]:
    """Return the result of a text for an architecture, and what is wrong with it."""
    try:
        _, log = compiler.compile_source(*job, report=True)
    except _cuda.CudaError as error:
        return None, str(error)
    used = re.search(r"Used (\d+) registers", log)
    if not used:
        return None, f"the compiler does not tell the number of registers:\n{log}"
    shared = re.search(r"(\d+) bytes smem", log)
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", log))
    serialized = "\n".join(one for one in log.splitlines() if "wgmma" in one and "serialized" in one)
    return (int(used.group(1)), spilled, int(shared.group(1)) if shared else 0), serialized


def _is_near(result: Result, other: Result) -> bool:
    """Return whether two results can be of one text: registers differ by a quarter at most, shared memory not."""
    return 4 * abs(result[0] - other[0]) <= other[0] and result[2] == other[2]


def incomplete() -> dict[str, str]:
    """Return the files of device code that do not compile by themselves, with what they include, and the errors."""
    folder, found = pathlib.Path(parprims.__path__[0]), {}
    for file in sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.cu*")):
        for architecture in ALONE:
            try:
                compiler.compile_source(device_source(file), architecture)
            except _cuda.CudaError as error:
                found[f"{file} for {architecture}"] = str(error)
    return found


def digest(text: str, architecture: str) -> str:
    """Return what a result is found again by."""
    return hashlib.sha256(compiler.identity(text, architecture).encode()).hexdigest()[:24]


def jobs(architectures: tuple[str, ...], match: str = "") -> dict[tuple[str, str], tuple[str, _cuda.Launch]]:
    """Return the name and the launch of each kernel by its text and the architecture to compile it for."""
    whole = _sources(WHOLE, match)
    others = [arch for arch in architectures if arch != WHOLE] if len(architectures) > 1 else []
    ways = sorted({_way(name) for name, _ in whole.values()})
    turns = {way: others[at % len(others)] for at, way in enumerate(ways) if others}
    found = {}
    for arch in architectures:
        sources = whole if arch == WHOLE else _sources(arch, match)
        first: dict[str, str] = {}
        for text, (name, _) in sources.items():
            first.setdefault(name.split("<")[0], text)
            first.setdefault(_way(name), text)
            if text not in whole:
                first.setdefault(f"{_way(name)} changed", text)
        wanted = {text for key, text in first.items() if turns.get(key, arch) == arch} if others else sources
        for text in sources if arch == WHOLE else wanted:
            name, launch = sources[text]
            if arch == WHOLE or not launch.own_instructions:
                found[text, launch.architecture(arch)] = name, launch
    return found


def _sources(architecture: str, match: str) -> dict[str, tuple[str, _cuda.Launch]]:
    """Return the name and the launch of each kernel, by its text, whose blocks a device can have.

    Products for later architectures ask for more shared memory; they are in the list of all.
    """
    sources: dict[str, tuple[str, _cuda.Launch]] = {}
    most = _cuda.shared_bytes(_capability(architecture))
    with of_device(_capability(architecture)):
        for label, plan in plans():
            for at, launch in enumerate(plan.launches):
                name = f"{launch.name} {label}"
                if match in name and launch.shared_bytes <= most:
                    sources.setdefault(plan.text(at), (name, launch))
    return sources


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="only this architecture")
    parser.add_argument("--match", default="", help="only kernels whose name contains this")
    parser.add_argument("--all", action="store_true", help="compile the kernels on record too")
    parser.add_argument("--record", action="store_true", help="compile what is new, and write the record")
    options = parser.parse_args(arguments)
    if options.record and (options.arch or options.match):
        parser.error("--record is of every kernel and every architecture")
    wanted = {(digest(*job), *job): of for job, of in jobs(options.arch or ARCHITECTURES, options.match).items()}
    record: dict[str, Result] = {key: tuple(numbers) for key, numbers in json.loads(RECORD.read_text()).items()}
    known = [job for job in wanted if job[0] in record]
    again = known if options.all else random.sample(known, min(SAMPLE, len(known)))
    compiled = [job for job in wanted if job[0] not in record] + again
    print(f"{len(wanted)} kernels, {len(known)} on record; {len(compiled)} are compiled by {compiler.working()}")
    results, alone = dict(record), incomplete()
    for file, error in alone.items():
        print(f"FAILED {file}\n{error}")
    failures = len(alone)
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        # Those on record come first, for they need no wait.
        for job in [job for job in known if job not in again]:
            failures += not _told(wanted[job], job[2], record[job[0]], "")
        made = pool.map(_compile, (job[1:] for job in compiled), chunksize=4)
        for job, (result, error) in zip(compiled, made, strict=True):
            if result and not _is_near(result, record.get(job[0], result)):
                error += f"\nthe record in {RECORD.name} says {record[job[0]]}"
            failures += not _told(wanted[job], job[2], result, error)
            if result:
                results[job[0]] = result
    print(f"{len(wanted) + len(alone) - failures} passed, {failures} failed")
    if options.record and not failures:
        lines = sorted(f'"{job[0]}": {list(results[job[0]])}' for job in wanted)
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    elif len(known) < len(wanted):
        print(f"{len(wanted) - len(known)} kernels are not on record: nox -s kernels -- --record writes them")
    return 1 if failures else 0


def _told(of: tuple[str, _cuda.Launch], architecture: str, result: Result | None, error: str) -> bool:
    """Print what came of a kernel, and return whether all is well."""
    name, launch = of
    registers, spilled, shared = result or ("?", 0, 0)
    blocks = resident(architecture, launch, result) if result else 0
    line = f"{architecture:7} {registers:>4} registers {spilled:5} B spilled {shared:>6} B shared"
    line = f"{line} {blocks:3} x {launch.block:4} threads  {name}"
    if not error and spilled and not any(name.startswith(prefix) for prefix in SPILLS):
        error = "it spills registers"
    if not error and not blocks:
        error = "no block fits a multiprocessor"
    print(f"FAILED {line}\n{error}" if error else line, flush=True)
    return not error


if __name__ == "__main__":
    sys.exit(main())
