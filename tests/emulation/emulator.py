"""Run the CUDA kernels on a CPU: the text of a `Plan`, compiled by the C++ compiler against emulator.hpp.

`Runner` replaces `_cuda.Runner` for NumPy arrays, so that tests of kernels run without a GPU (``pytest --backend
emulated``). It shows wrong indices, shared memory that is read before it is written, races in shared memory without a
barrier, missing fences between blocks, deadlocks, accesses out of bounds, and scratch that is not left as promised
(emulator.cpp says how). Apart from missing fences, it does not show the weak order of a GPU's memory.
`install_in_programs` lets programs of JAX run their kernels on the emulator.

The translation of the text and its launch share the table `PTX` and the structures of emulator.hpp, so they are one
file in spite of its length.
"""

import ctypes
import dataclasses
import functools
import hashlib
import itertools
import mmap
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from parprims import _cpu, _cuda
from parprims._compiling.plan_capture import observed
from parprims._core import signature
from parprims._core.memo import Memo
from parprims._cuda import compiler as compiler_of_cuda
from parprims._cuda import xla
from parprims._cuda.plan import SCRATCH
from parprims._dispatch import door
from tests.emulation import ways
from tests.support.contract import numpy_dtype

# What each PTX text does, as C++ with the same operands.
PTX = {
    "griddepcontrol.wait;": "",  # launches never overlap here
    "": "",  # keeps a compiler from seeing through a number
    "rcp.approx.ftz.f32 %0, %1;": "%0 = 1.f / %1;",
    "rcp.approx.ftz.f64 %0, %1;": "%0 = 1. / %1;",
    "max.NaN.f32 %0, %1, %2;": "%0 = %1 != %1 || %2 != %2 ? NAN : fmaxf(%1, %2);",
    "min.NaN.f32 %0, %1, %2;": "%0 = %1 != %1 || %2 != %2 ? NAN : fminf(%1, %2);",
    "cvt.f32.f16 %0, %1;": "%0 = emulated::from_half(%1);",
    "cvt.rn.f16.f32 %0, %1;": "%0 = emulated::to_half(%1);",
    "cvt.rn.bf16.f32 %0, %1;": "%0 = emulated::to_bfloat(%1);",
    "{ .reg .b128 w; mov.b128 w, {%1, %2}; st.relaxed.gpu.b128 [%0], w; }": "emulated::store16(%0, %1, %2);",
    "{ .reg .b128 w; ld.relaxed.gpu.b128 w, [%2]; mov.b128 {%0, %1}, w; }": "emulated::load16(%2, %0, %1);",
    "prefetch.global.L2 [%0];": "{ volatile char read = *reinterpret_cast<const char*>(%0); }",  # which is watched
    "cp.async.cg.shared.global [%0], [%1], 16;": "emulated::copy_async(%0, %1, 16, 16);",
    "cp.async.cg.shared.global [%0], [%1], 16, %2;": "emulated::copy_async(%0, %1, 16, %2);",
    "cp.async.ca.shared.global [%0], [%1], %2;": "emulated::copy_async(%0, %1, %2, %2);",
    "cp.async.ca.shared.global [%0], [%1], %2, %3;": "emulated::copy_async(%0, %1, %2, %3);",
    "st.relaxed.gpu.u32 [%0], %1;": "emulated::store(%0, %1);",
    "st.relaxed.gpu.u64 [%0], %1;": "emulated::store(%0, %1);",
    "ld.relaxed.gpu.u32 %0, [%1];": "%0 = emulated::load<unsigned>(%1);",
    "ld.relaxed.gpu.u64 %0, [%1];": "%0 = emulated::load<unsigned long long>(%1);",
    "cp.async.wait_all;": "emulated::wait_copies(-1);",
    "cp.async.commit_group;": "emulated::end_copies();",
    "cp.async.wait_group 1;": "emulated::wait_copies(1);",
    "cp.async.wait_group %0;": "emulated::wait_copies(%0);",
    "cvt.rna.tf32.f32 %0, %1;": "%0 = emulated::to_tf32<false>(%1);",
    "cvt.rn.tf32.f32 %0, %1;": "%0 = emulated::to_tf32<true>(%1);",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];": (
        "emulated::load_matrices<false>(%4, %0, %1, %2, %3);"
    ),
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];": (
        "emulated::load_matrices<true>(%4, %0, %1, %2, %3);"
    ),
    **{
        f"mma.sync.aligned.m16n8k{k}.row.col.{types} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, "
        "{%0, %1, %2, %3};": f"emulated::multiply<emulated::{name}>({{%4, %5, %6, %7}}, {{%8, %9}}, %0, %1, %2, %3);"
        for name, k, types in (
            ("Half", 16, "f32.f16.f16.f32"),
            ("Bfloat", 16, "f32.bf16.bf16.f32"),
            ("Tf32", 8, "f32.tf32.tf32.f32"),
            ("Double", 8, "f64.f64.f64.f64"),
        )
    },
    "wgmma.fence.sync.aligned;": "emulated::begin_products();",
    "wgmma.commit_group.sync.aligned;": "emulated::end_products();",
    "wgmma.wait_group.sync.aligned %0;": "emulated::wait_products(%0);",
    "mbarrier.init.shared::cta.b64 [%0], %1;": "emulated::begin_barrier(%0, %1);",
    "mbarrier.arrive.shared::cta.b64 _, [%0];": "emulated::arrive(%0);",
    "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];": "emulated::arrive_when_copied(%0);",
    "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }": (
        "%0 = emulated::has_ended(%1, %2);"
    ),
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;": "emulated::arrive(%0, %1);",
    "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];": (
        "emulated::copy_box(%0, %1, %2, %3, %4, %5);"
    ),
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];": (
        "emulated::copy_bytes(%0, %1, %2, %3);"
    ),
    "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
    "[%0], [%1, {%2, %3, %4}], [%5], %6;": "emulated::copy_box(%0, %1, %2, %3, %4, %5, %6);",
    "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there]; }": (
        "emulated::arrive_in_cluster(%0, %1);"
    ),
    "{ .reg .b32 there, barrier; mapa.shared::cluster.u32 there, %0, %6; mapa.shared::cluster.u32 barrier, %1, %6; "
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%2, %3, %4, %5}, [barrier]; }": (
        "emulated::store_in_cluster(%0, %1, {%2, %3, %4, %5}, %6);"
    ),
    "barrier.cluster.arrive.relaxed; barrier.cluster.wait.acquire;": "emulated::wait_cluster();",
    "fence.mbarrier_init.release.cluster;": "",
    # A tensor map: zeros, then the address, lengths, pitches, box, steps and type; three axes, swizzle of 128 bytes.
    " ".join(
        f"tensormap.replace.tile.{field}.shared::cta.b1024.b{bits} [%0], {value};"
        for field, bits, values in (
            ("global_address", 64, "%1"),
            ("rank", 32, "2"),
            ("global_dim", 32, "0, %2; 1, %3; 2, %4"),
            ("global_stride", 64, "0, %5; 1, %6"),
            ("box_dim", 32, "0, %7; 1, %8; 2, %9"),
            ("element_stride", 32, "0, %9; 1, %9; 2, %9"),
            ("elemtype", 32, "%10"),
            ("interleave_layout", 32, "0"),
            ("swizzle_mode", 32, "3"),
            ("fill_mode", 32, "0"),
        )
        for value in values.split("; ")
    ): "emulated::describe(%0, %1, {%2, %3, %4}, {%5, %6}, {%7, %8, %9}, %10);",
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;": (
        "emulated::publish(%0, %1);"
    ),
    "fence.proxy.tensormap::generic.acquire.gpu [%0], 128;": "",
    "bar.sync 1, %0;": "emulated::wait_block(1, %0);",
    "fence.proxy.async;": "emulated::show();",
    "fence.proxy.async.shared::cta;": "emulated::show();",
    "{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }": (
        "%0 = emulated::thread_index().x % 32 == 0;"
    ),
    "setmaxnreg.inc.sync.aligned.u32 %0;": "",
    "setmaxnreg.dec.sync.aligned.u32 %0;": "",
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};": (
        "emulated::multiply4(%2, %3, %0, %1);"
    ),
}

_POISON = 0xCB
_GUARD = 256
_FOLDER = pathlib.Path(__file__).parent


def compiler() -> str | None:
    """Return the path of a C++ compiler, or None."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


def host_text(plan: Any, at: int = 0) -> str:
    """Return the text of one launch as C++ for a CPU, with a function ``emulate`` that launches it."""
    return _as_host(plan.text(at), plan.inputs + len(plan.outputs) + len(SCRATCH), len(plan.integers))


def _as_host(text: str, pointers: int, integers: int = 0) -> str:
    """Return the text of a kernel, whose parameters are pointers and then integers, as C++ for a CPU."""
    text = "".join(_without_asm(text))
    text = re.sub(
        r"extern __shared__ (?:__align__\(\w+\) )?(\w+) (\w+)\[\];",
        r"\1* const \2 = reinterpret_cast<\1*>(emulated::dynamic_memory());",
        text,
    )
    text = text.replace('extern "C"', "static")
    values = [f"(void*)v[{at}]" for at in range(pointers)]
    values += [f"v[{pointers + at}]" for at in range(integers)]
    return f"""#include "emulator.hpp"
namespace text {{
{text}
char* one_static() {{
    static thread_local char one;
    return &one;
}}
void start(void* values) {{
    const long long* v = static_cast<const long long*>(values);
    kernel({", ".join(values)});
}}
}}
extern "C" __attribute__((visibility("default")))
int emulate(const emulated::Launch* launch, long long* values, char* message, size_t size) {{
    return emulated::run(*launch, text::start, text::one_static, values, message, size);
}}
"""


def _without_asm(text: str) -> Iterator[str]:
    """Yield the pieces of a text in which C++ stands for every asm statement; KeyError names an unknown one."""
    at = 0
    for found in re.finditer(r"\basm(?:\s+volatile)?\s*\(", text):
        yield text[at : found.start()]
        depth, at = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        inside = text[found.end() : at - 1]
        code = "".join(re.findall(r'^\s*((?:"[^"]*"\s*)+)', inside)).strip()
        ptx = " ".join("".join(re.findall(r'"([^"]*)"', code)).replace("\\n", " ").replace("\\t", " ").split())
        operands = list(_operands(inside[inside.index(code) + len(code) :]))
        parameter = re.fullmatch(r"ld\.param\.b64 %0, \[kernel_param_(\d+)\];", ptx)
        meaning = f"%0 = emulated::parameter({parameter[1]})" if parameter else PTX.get(ptx)
        yield _with_operands(_product(ptx) if meaning is None else meaning, operands).rstrip(";")
    yield text[at:]


def _with_operands(code: str, operands: Sequence[str]) -> str:
    return re.sub(r"%(\d+)", lambda found: f"({operands[int(found[1])]})", code)


# The products of a warpgroup have too many operands to name each text: accumulators, A, B, whether to add, 1, 1, and of
# the operands that lie in shared memory, if they are of 16 bits, whether they are transposed.
_PRODUCT = re.compile(
    r"(?P<open>{ ?\.reg \.pred p; setp\.ne\.b32 p, (?P<predicate>%\d+), 0; )?"
    r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<columns>\d+)(?P<types>k\d+\.\w+\.\w+\.\w+) "
    r"{(?P<d>[^}]*)}, (?P<a>%\d+|{[^}]*}), (?P<b>%\d+), (?P<add>p|%\d+|[01])"
    r"(?P<signs>, 1, 1)?(?P<transposed>(, ?(%\d+|[01]))*);"
    r"(?(open) ?})"
)
_PRODUCTS = {
    "k16.f32.f16.f16": "Half",
    "k16.f32.bf16.bf16": "Bfloat",
    "k8.f32.tf32.tf32": "Tf32",
    "k32.s32.s8.s8": "Byte",
}


def _product(ptx: str) -> str:
    """Return the C++ of a wgmma.mma_async."""
    found = _PRODUCT.fullmatch(ptx)
    if not found or found["types"] not in _PRODUCTS or (found["add"] == "p") != bool(found["open"]):
        raise KeyError(ptx)
    name = _PRODUCTS[found["types"]]
    if bool(found["signs"]) != (name != "Byte"):  # integers have neither signs nor transposition
        raise KeyError(ptx)
    accumulators = re.findall(r"%\d+", found["d"])
    transposed = re.findall(r"%\d+|[01]", found["transposed"])
    in_shared = 1 + (found["a"][0] == "%")
    if len(accumulators) != int(found["columns"]) // 2 or len(transposed) != (name not in ("Tf32", "Byte")) * in_shared:
        raise KeyError(ptx)
    d = ", ".join(f"&{one}" for one in accumulators)
    operands = ", ".join((found["a"], found["b"], found["predicate"] or found["add"], *transposed))
    return f"emulated::multiply_later<emulated::{name}>({{{d}}}, {operands});"


def _operands(text: str) -> Iterator[str]:
    """Yield the expressions of constraints like "=r"(expression)."""
    for found in re.finditer(r'"[=+]?&?[a-zA-Z]"\s*\(', text):
        depth, at = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        yield text[found.end() : at - 1]


class _Launch(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_longlong) for name in ("grid", "threads", "cluster", "dynamic_bytes")),
        *((name, ctypes.c_longlong) for name in ("in_flight", "seed", "races")),
        ("seconds", ctypes.c_double),
        ("given", ctypes.c_void_p),
        ("count", ctypes.c_longlong),
    )


class _Given(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_longlong), ("bytes", ctypes.c_longlong), ("name", ctypes.c_char_p))


# Hidden symbols: static variables of equal templates in two libraries would otherwise be one.
_OPTIONS = (
    "-std=c++17",
    "-w",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",  # which takes a jump to another fiber for an error
    "-ffp-contract=off",
)
# The text of a kernel is compiled with a call before every access to memory, which emulator.cpp takes.
_WATCHED = ("-O1", "-fsanitize=thread")


@functools.cache
def _compiled(text: str) -> Any:
    """Return the function ``emulate`` of a text, kept on disk."""
    header = _runtime()
    # What the text calls is found among what is loaded already: linking libraries takes a third of the time.
    options = (*_WATCHED, "-I", str(header.parent))
    path = _built(options, text, "kernel.cpp", "kernel.so", ("-shared", "-nodefaultlibs", "-nostartfiles", "-lgcc"))
    return ctypes.CDLL(str(path)).emulate


@functools.cache
def _runtime() -> pathlib.Path:
    """Load what carries texts of kernels out, and return the header that is compiled for them."""
    text = (_FOLDER / "emulator.cpp").read_text()
    for name in ("emulator.hpp", "emulator_watch.hpp", "emulator_ptx.hpp"):
        text = text.replace(f'#include "{name}"\n', (_FOLDER / name).read_text())
    shown = ("-O2", "-fvisibility=default")
    ctypes.CDLL(str(_built(shown, text, "emulator.cpp", "emulator.so", ("-shared",))), mode=ctypes.RTLD_GLOBAL)
    header = (_FOLDER / "emulator.hpp").read_text()
    return _built((*_WATCHED, "-x", "c++-header"), header, "emulator.hpp", "emulator.hpp.gch")


def _built(options: Sequence[str], text: str, source: str, result: str, linked: Sequence[str] = ()) -> pathlib.Path:
    """Compile a text unless it has been; return the result, which lies beside its source."""
    path = compiler()
    assert path is not None
    key = hashlib.sha256("\0".join((text, path, *_OPTIONS, *options, *linked)).encode()).hexdigest()[:32]
    folder = _FOLDER.parents[1] / ".pytest_cache" / "emulator" / key
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = pathlib.Path(tempfile.mkdtemp(dir=folder.parent))
        (made / source).write_text(text)
        command = [path, *_OPTIONS, *options, str(made / source), "-o", str(made / result), *linked]
        subprocess.run(command, check=True)
        try:
            made.rename(folder)  # whole or not at all, also for processes that compile the same
        except OSError:
            shutil.rmtree(made)
    return folder / result


class _Memory:
    """Poisoned memory between guards, aligned as a GPU's allocations are."""

    def __init__(self, nbytes: int, fill: int = _POISON) -> None:
        self._all = np.full(nbytes + 3 * _GUARD, _POISON, np.uint8)
        start = _GUARD + -self._all.ctypes.data % _GUARD
        self.bytes = self._all[start : start + nbytes]
        self.bytes[:] = fill
        self._guards = self._all[:start], self._all[start + nbytes :]
        self.address = self.bytes.ctypes.data

    def check(self, what: str) -> None:
        for guard in self._guards:
            if (guard != _POISON).any():
                raise AssertionError(f"the kernel wrote outside {what}")


_turns = itertools.count()


def _between_pages(x: np.ndarray) -> np.ndarray:
    """Return a copy that begins, or every other time ends, where a page does that ends the process if it is touched.

    It is as far from a multiple of 16 as it was, and so less than 16 bytes from the page. Views with gaps stay as they
    are, and of a broadcast array its elements are copied.
    """
    if x.size == 0:
        return x
    repeated = [step == 0 and length > 1 for step, length in zip(x.strides, x.shape, strict=True)]
    if any(repeated):
        once = x[tuple([slice(0, 1) if one else slice(None) for one in repeated])]
        return np.broadcast_to(_between_pages(once), x.shape)
    if not x.flags.c_contiguous:
        return x
    page = mmap.PAGESIZE
    size = -(-(x.nbytes + 16) // page) * page
    region = mmap.mmap(-1, size + 2 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(region))
    for guard in (begin, begin + page + size):
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0):
            raise OSError("a page cannot be protected")
    rest = x.ctypes.data % 16
    offset = next(_turns) % 2 * ((size - x.nbytes - rest) // 16 * 16)
    copy = np.frombuffer(region, np.uint8, x.nbytes, page + offset + rest).view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def _bounds(x: np.ndarray) -> tuple[int, int]:
    """Return where an array begins in memory, and how many bytes there are to its end."""
    if x.size == 0:
        return x.ctypes.data, 0
    steps = [(length - 1) * step for length, step in zip(x.shape, x.strides, strict=True)]
    low, high = sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
    return x.ctypes.data + low, high - low + x.itemsize


_kept: dict[str, _Memory] = {}  # the scratch that is kept between launches, by kind


def _scratch(kind: str, nbytes: int) -> _Memory | None:
    if not nbytes:
        return None
    if kind in ("temporary", "scratch"):
        return _Memory(nbytes)
    if kind not in _kept or _kept[kind].bytes.size < nbytes:
        _kept[kind] = _Memory(nbytes, fill=0)
    return _kept[kind]


class Runner:
    """What `_cuda.Runner` is on a GPU, for NumPy arrays.

    Blocks in flight and the seed of their order can be set, and whether races in shared memory are errors.
    """

    in_flight = 3
    seconds = 120.0
    races = True

    def __init__(self, xp: Any, plan: Any, device: int) -> None:
        del xp, device
        self.plan = plan
        self._seed = 0

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Launch and return the outputs; RuntimeError tells why a kernel cannot go on."""
        plan = self.plan
        observed(plan, arrays)
        before = [x.copy() for x in arrays]
        arrays = tuple(_between_pages(x) for x in arrays)
        outputs = [
            _Memory(int(np.prod(shape, dtype=np.int64)) * numpy_dtype(name).itemsize) for shape, name in plan.outputs
        ]
        sizes = {**plan.zeros(), **plan.unset()}
        scratch = {kind: _scratch(kind, sizes[kind]) for kind in SCRATCH}
        addresses = [x.ctypes.data for x in arrays] + [out.address for out in outputs]
        addresses += [memory.address if memory else 0 for memory in scratch.values()]
        given = [_Given(*_bounds(x), f"input {at}".encode()) for at, x in enumerate(arrays)]
        given += [_Given(out.address, out.bytes.size, f"output {at}".encode()) for at, out in enumerate(outputs)]
        given += [
            _Given(memory.address if memory else 0, sizes[kind], kind.encode())
            for kind, memory in sorted(scratch.items(), key=lambda one: one[0] in ("scratch", "temporary"))
        ]
        try:
            for at, launch in enumerate(plan.launches):
                idle = launch.if_any and not any(scratch["zeroed"].bytes.view(np.uint32)[[*launch.if_any]])
                memory = [one.bytes for one in (*outputs, *scratch.values()) if one] if idle else []
                left = [one.tobytes() for one in memory]
                self._launch(at, [*addresses, *plan.integers], given)
                changed = [one.tobytes() for one in memory] != left
                assert not changed, f"{launch.name} has nothing to do and changed memory"
            for at, out in enumerate(outputs):
                out.check(f"output {at}")
            for kind, memory in scratch.items():
                if memory:
                    memory.check(kind)
            if scratch["zeroed"]:
                assert not scratch["zeroed"].bytes.any(), "the kernel left zeroed scratch that is not zero"
        except BaseException:
            _kept.clear()  # so that later launches do not find what this one has left
            raise
        for x, old in zip(arrays, before, strict=True):
            assert x.tobytes() == old.tobytes(), "the kernel wrote to an input"
        return tuple(
            out.bytes.view(numpy_dtype(name)).reshape(shape)
            for out, (shape, name) in zip(outputs, plan.outputs, strict=True)
        )

    def one(self, x: np.ndarray) -> np.ndarray:
        return self(x)[0]

    def returning(self, length: int) -> "Runner":
        outputs = tuple(((length,), name) for _, name in self.plan.outputs)
        return type(self)(None, dataclasses.replace(self.plan, outputs=outputs), 0)

    def with_captured(self, captured: tuple[Any, ...]) -> "Runner":
        return type(self)(None, dataclasses.replace(self.plan, captured=captured), 0)

    def _launch(self, at: int, values: Sequence[int], given: Sequence[_Given]) -> None:
        plan, launch = self.plan, self.plan.launches[at]
        assert 0 < launch.grid < 2**31, "an impossible grid"
        assert 0 < launch.block <= 1024, "an impossible block"
        assert launch.shared_bytes <= 227 << 10, "more shared memory than there is"
        self._seed += 1
        ways.reached.update(ways.ways(launch))
        assert launch.grid % launch.cluster == 0, "an impossible cluster"
        sizes = launch.grid, launch.block, launch.cluster, launch.shared_bytes
        _carry_out(host_text(plan, at), (*sizes, self.in_flight, self._seed, self.races, self.seconds), values, given)


def _carry_out(text: str, how: Sequence[Any], values: Sequence[int], given: Sequence[_Given]) -> None:
    """Launch a kernel, ``how`` as the first fields of `_Launch` say, on parameters, with the memory given."""
    memory = (_Given * len(given))(*given)
    packet = _Launch(*how, ctypes.addressof(memory), len(given))
    message = ctypes.create_string_buffer(1000)
    array = (ctypes.c_longlong * len(values))(*values)
    if _compiled(text)(ctypes.byref(packet), array, message, ctypes.c_size_t(len(message))):
        raise RuntimeError(f"the kernel failed: {message.value.decode()}")


def forget(patch: pytest.MonkeyPatch) -> None:
    """Let the library remember no earlier call, and until the patch is undone what comes now."""
    for memo in [*Memo._all]:
        patch.setattr(memo, "_found", {})


def changing(patch: pytest.MonkeyPatch, module: Any) -> Callable[..., None]:
    """Return a function that changes constants of a module until the patch is undone; calls are forgotten."""
    forget(patch)

    def change(**constants: Any) -> None:
        for name, value in constants.items():
            patch.setattr(module, name, value)

    return change


def install(patch: pytest.MonkeyPatch) -> None:
    """Let kernels take NumPy arrays, until the patch is undone."""
    # A call is remembered by all that its kernel depends on.
    for table in (signature.makers, signature.alone):
        patch.setitem(table, np.ndarray, lambda x, _: (x.dtype, x.shape, x.strides, x.ctypes.data & 15, "emulated"))
    patch.setattr(door, "_identifies_itself", lambda _: False)  # doors do not know where an array of NumPy begins
    patch.setattr(_cpu, "on_cpu", lambda *_: False)
    patch.setattr(_cuda, "refusal", lambda *_: None)
    patch.setattr(_cuda, "layout", lambda _, x: (tuple(step // x.itemsize for step in x.strides), x.ctypes.data & 15))
    patch.setattr(_cuda, "plain", lambda _, x: x)
    patch.setattr(_cuda, "contiguous", lambda _, x: np.ascontiguousarray(x))
    patch.setattr(_cuda, "device_index", lambda *_: 0)
    patch.setattr(_cuda, "capability", lambda *_: 90)
    patch.setattr(_cuda, "multiprocessors", lambda *_: None)
    patch.setattr(_cuda, "Runner", Runner)


def install_for_jax(patch: pytest.MonkeyPatch) -> None:
    """Let JAX take its CPU for a GPU until it compiles, so that programs for both can be had."""
    forget(patch)
    patch.setattr(xla, "devices", lambda: [types.SimpleNamespace(compute_capability="9.0")])
    patch.setattr(_cpu, "on_cpu", lambda *_: False)
    patch.setattr(compiler_of_cuda, "compiled", lambda text, _: f"{len(text)}".encode())
    patch.setattr(_cuda, "refusal", lambda *_: None)


def install_in_programs(patch: pytest.MonkeyPatch) -> None:
    """Let programs of JAX carry out on a CPU the kernels that they hold, by a callback, until the patch is undone."""
    import jax

    install_for_jax(patch)
    patch.setattr(compiler_of_cuda, "compiled", lambda text, _: text.encode())
    patch.setattr(jax.lax, "platform_dependent", lambda *arrays, cuda, **_: cuda(*arrays))
    patch.setattr(jax.ffi, "ffi_call", _emulated_call)


def _emulated_call(target: str, results: Sequence[Any], input_output_aliases: dict[int, int]) -> Callable[..., Any]:
    """Return what stands for the function that ``jax.ffi.ffi_call`` returns for a kernel."""
    import jax

    assert target == xla.TARGET
    shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in results]

    def call(*operands: Any, name: str, kernel_type: str, kernel_data: str, shared_mem_bytes: Any, **sizes: Any) -> Any:
        assert (name, kernel_type) == ("kernel", "ptx")
        assert {int(sizes[one]) for one in ("grid_y", "grid_z", "block_y", "block_z")} == {1}
        cluster = re.search(r"__cluster_dims__\((\d+),", kernel_data)
        whole = int(sizes["grid_x"]), int(sizes["block_x"]), int(cluster[1]) if cluster else 1, int(shared_mem_bytes)
        how = (*whole, Runner.in_flight, 1, Runner.races, Runner.seconds)

        def launch(*given: Any) -> tuple[np.ndarray, ...]:
            return _launched(kernel_data, how, [np.asarray(x) for x in given], shapes, input_output_aliases)

        return jax.pure_callback(launch, shapes, *operands)

    return call


def _launched(
    text: str, how: Sequence[Any], operands: Sequence[np.ndarray], shapes: Sequence[Any], aliases: dict[int, int]
) -> tuple[np.ndarray, ...]:
    """Return the results of a kernel on operands, some of which it updates: result ``aliases[at]`` is operand at."""
    memory = [_Memory(x.nbytes) for x in operands]
    for one, x in zip(memory, operands, strict=True):
        one.bytes[:] = np.frombuffer(x.tobytes(), np.uint8)
    updated = {result: memory[at] for at, result in aliases.items()}
    sizes = [int(np.prod(one.shape, dtype=np.int64)) * one.dtype.itemsize for one in shapes]
    found = [updated.get(at) or _Memory(size) for at, size in enumerate(sizes)]
    parameters = [*memory, *found]
    names = {one.address: (one, f"parameter {at}") for at, one in enumerate(parameters)}
    given = [_Given(one.address, one.bytes.size, name.encode()) for one, name in names.values()]
    _carry_out(_as_host(text, len(parameters)), how, [one.address for one in parameters], given)
    for one, name in names.values():
        one.check(name)
    for at, (one, x) in enumerate(zip(memory, operands, strict=True)):
        assert at in aliases or one.bytes.tobytes() == x.tobytes(), "the kernel wrote to an input"
    return tuple(one.bytes.copy().view(kind.dtype).reshape(kind.shape) for one, kind in zip(found, shapes, strict=True))


def install_for_torch(patch: pytest.MonkeyPatch) -> None:
    """Let kernels take PyTorch's tensors too, which are handed to them as NumPy arrays, until the patch is undone."""
    import torch

    class TensorRunner(Runner):
        def __call__(self, *xs: Any) -> tuple[Any, ...]:
            return tuple(torch.from_numpy(y) for y in super().__call__(*(x.detach().numpy() for x in xs)))

    def refusal(_: Any, xs: Sequence[Any]) -> str | None:
        if _cuda.transformed():
            return "a transformation or a forward derivative is under way"
        return "a gradient is asked for" if torch.is_grad_enabled() and any(x.requires_grad for x in xs) else None

    forget(patch)
    patch.setattr(_cpu, "on_cpu", lambda *_: False)
    patch.setattr(_cuda, "refusal", refusal)
    patch.setattr(_cuda, "layout", lambda _, x: (x.stride(), x.data_ptr() & 15))
    patch.setattr(_cuda, "plain", lambda _, x: x.resolve_conj())
    patch.setattr(_cuda, "contiguous", lambda _, x: x.contiguous())
    patch.setattr(_cuda, "Runner", TensorRunner)
