"""The matrix product by CUDA kernels: the plan of launches, the prepared call, and the cases to compile.

The file is long because one `Builder` makes the launches of all kernels, from the simplest to groups of four warps.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from parprims import _cuda
from parprims._core.arrays import SIXTEEN_BIT_FLOATS, Array, Namespace, cast, dtype_name, is_jax, mode
from parprims._core.layout import Layout, broadcast_strides, fold
from parprims._core.memo import Memo
from parprims._cuda import Argument, Launch, Numbers, Parameter, Plan, Pointer, Struct
from parprims._dispatch import derivative_rules
from parprims._dispatch.dispatch import directly
from parprims._operators.languages import C_TYPES
from parprims._operators.operator import BUILT_IN, Operator
from parprims._operators.tracing import Untraceable
from parprims._primitives.matmul import native, residues
from parprims._primitives.matmul.array import tiled_product
from parprims._primitives.matmul.call import Product
from parprims._primitives.matmul.operators import Semiring, semiring, sum_identity
from parprims._primitives.matmul.tiles import (
    TUNING,
    Arithmetic,
    Block,
    Copies,
    Factor,
    Sizes,
    Tile,
    Tuning,
    choose_block,
    choose_kernel,
    tiny_tile,
)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A product without its arrays and their memory layouts: the specialisation of a kernel.

    Parameters
    ----------
    a, b : tuple of int
        The shapes of the factors, each of at least two dimensions.
    batch, shape : tuple of int
        The shapes of the batch and of the result.
    arithmetic : Arithmetic
        The dtypes computed with.
    add, multiply : Operator
        The operators.
    kernel : str, optional
        The kernel asked for.
    tile : Tile, optional
        The tile asked for.
    canonical : bool
        Whether every element is summed in one order, whatever the shapes: by one kernel, without parts.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    batch: tuple[int, ...]
    shape: tuple[int, ...]
    arithmetic: Arithmetic
    add: Operator
    multiply: Operator
    kernel: str | None
    tile: Tile | None
    canonical: bool = False

    @staticmethod
    def of(p: Product) -> Problem:
        """Return the problem of a checked call."""
        a, b = p.arrays
        return Problem(
            a=tuple(a.shape) if a.ndim > 1 else (1, *a.shape),
            b=tuple(b.shape) if b.ndim > 1 else (*b.shape, 1),
            batch=p.batch,
            shape=p.shape,
            arithmetic=Arithmetic.of(dtype_name(p.dtype), dtype_name(p.working), p.ring, p.precision),
            add=p.add,
            multiply=p.multiply,
            kernel=p.kernel,
            tile=p.tile,
            canonical=p.in_one_order,
        )

    def choose_kernel(self, capability: int) -> tuple[str, str | None]:
        """Return the kernel for a device, and the reason why it cannot serve or None."""
        what = self.arithmetic.memory if self.arithmetic.ring else f"add={self.add.name}, multiply={self.multiply.name}"
        return choose_kernel(self.arithmetic, self.a[-1], self.kernel, self.tile, what=what, capability=capability)


# ---- The text of an instruction ---------------------------------------------------------------------------------


def wgmma(arithmetic: Arithmetic, columns: int, a_along_k: bool, b_along_k: bool) -> str:
    """Return the definition of the struct ``Wgmma`` of kernels/matmul_groups.cu.

    The number of operands of an instruction depends on its width, so no template can write it. ``columns`` is the
    width. The flags are the memory layout of 16-bit factors.
    """
    half = columns // 2
    sums = ", ".join(f"%{i}" for i in range(half))
    outputs = ", ".join(f'"+f"(c[{i}])' for i in range(half))
    if arithmetic.memory_bytes == 2:
        kind = "f16" if arithmetic.kind == "HALF" else "bf16"
        left, operand, inputs, operand_number = "unsigned long long a", f"%{half}", '"l"(a)', half + 1
        name, flags = f"k16.f32.{kind}.{kind}", f", {int(not a_along_k)}, {int(not b_along_k)}"
    else:
        registers = ", ".join(f"%{half + i}" for i in range(4))
        left, operand, operand_number = "const unsigned (&a)[4]", f"{{{registers}}}", half + 4
        inputs, name, flags = ", ".join(f'"r"(a[{i}])' for i in range(4)), "k8.f32.tf32.tf32", ""
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, %{operand_number + 1}, 0; wgmma.mma_async.sync.aligned.m64n{columns}{name} "
        f"{{{sums}}}, {operand}, %{operand_number}, p, 1, 1{flags}; }}"
    )
    return "\n".join(
        (
            "",
            "#if __CUDA_ARCH__ == 900",
            "struct Wgmma {",
            f"    static constexpr int WIDTH = {columns};",
            f"    static DEVICE void multiply(float (&c)[{half}], {left}, unsigned long long b, int more) {{",
            f'        asm volatile("{text}" : {outputs} : {inputs}, "l"(b), "r"(more) : "memory");',
            "    }",
            "};",
            "#endif",
        )
    )


# ---- The plan ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Folded:
    """A batch of products as kernels see it: its axes (length, steps of a and of b), lengths and factors."""

    axes: list[tuple[int, tuple[int, ...]]]
    lengths: Tile
    a: Factor
    b: Factor

    @property
    def matrices(self) -> int:
        return math.prod(length for length, _ in self.axes)


def _folded(problem: Problem, layouts: Sequence[Layout]) -> Folded:
    """Return the batch with as few axes as the layouts allow."""
    (strides_a, address_a), (strides_b, address_b) = layouts
    m, k, n = problem.a[-2], problem.a[-1], problem.b[-1]
    size, rank = problem.arithmetic.memory_bytes, len(problem.batch)

    steps = [
        broadcast_strides(strides[:-2], shape[:-2], rank)
        for strides, shape in ((strides_a, problem.a), (strides_b, problem.b))
    ]
    axes, _ = fold(problem.batch, (), steps)
    # Matrices that share b, and have one stride between all their rows, are one matrix.
    while axes and axes[-1][1][1] == 0 and (axes[-1][1][0] == m * strides_a[-2] or m == 1):
        length, (step, _) = axes.pop()
        strides_a = (step, strides_a[-1]) if m == 1 else strides_a[-2:]
        m *= length
    a = Factor.of(
        (strides_a[-2], strides_a[-1]), tuple(steps[0] for _, steps in axes), (m, k), address=address_a, itemsize=size
    )
    b = Factor.of(
        (strides_b[-1], strides_b[-2]), tuple(steps[1] for _, steps in axes), (n, k), address=address_b, itemsize=size
    )
    return Folded(axes, (m, n, k), a, b)


class Builder:
    """Makes the launches of one plan, from the integers that they share and the batch of products."""

    def __init__(self, problem: Problem, code: Semiring, batch: Folded, tiles: int, splits: int, part: int) -> None:
        self.problem, self.text, self.batch = problem, code.text, batch
        self.captured = code.captured
        self.number = Numbers()
        self.element = C_TYPES[problem.arithmetic.memory]
        a, b = batch.a, batch.b
        m, n, k = batch.lengths
        named = {
            "m": m, "n": n, "k": k, "a_outer": a.outer, "a_along": a.along, "b_outer": b.outer, "b_along": b.along,
            "tiles": tiles, "splits": splits, "part": part,
        }  # fmt: skip
        self.own = {name: self.number(name, value) for name, value in named.items()}
        self.axes = [
            Struct(
                *(self.number(name, value) for name, value in zip(("length", "step_a", "step_b"), values, strict=True))
            )
            for values in ((length, *steps) for length, steps in reversed(batch.axes))
        ]
        self.factors = {
            name: Struct(
                Pointer(f"in{index}", f"const {self.element}"), self.own[f"{name}_outer"], self.own[f"{name}_along"]
            )
            for index, name in enumerate("ab")
        }
        self.kinds = dict.fromkeys("ab", f"StridedFactor<{self.element}>")

    def products(self) -> Struct:
        """Return the `ProductBatch` of kernels/matmul.cu."""
        numbers = [self.own[name] for name in ("m", "n", "k", "tiles", "splits", "part")]
        axes = Struct(Struct(*self.axes)) if self.axes else Struct()
        return Struct(
            *self.factors.values(),
            Pointer("out0", self.element),
            *numbers,
            axes,
            type=f"ProductBatch<{', '.join(self.kinds.values())}, {len(self.axes)}>",
        )

    def launch(
        self,
        name: str,
        arguments: tuple[Argument, ...],
        parameters: tuple[Parameter, ...] = (),
        *,
        file: str = "matmul.cu",
        **sizes: Any,
    ) -> Launch:
        """Return the launch of a template of a file that is called with the products and other parameters."""
        shared = _cuda.device_source(f"_primitives/matmul/kernels/{file}")
        # Without products that are rounded, copies of one operator may round a b + c in different places. Sums of
        # products of real numbers have one place.
        arithmetic, rounded = self.problem.arithmetic, ""
        if self.problem.canonical and not (arithmetic.ring and arithmetic.registers.startswith("float")):
            rounded = "  // with --fmad=false"
        source = "\n".join((f"#define EXTREMA_BY_INSTRUCTION{rounded}", shared, self.text))
        return Launch(source, name, arguments, (self.products(), *parameters), **sizes)

    def plan(self, *launches: Launch, **scratch: int) -> Plan:
        """Return the plan of these launches."""
        outputs = ((self.problem.shape, self.problem.arithmetic.memory),)
        return Plan(launches, 2, outputs, self.number.all(), captured=self.captured, **scratch)


def make_plan(
    problem: Problem, code: Semiring, layouts: Sequence[Layout], capability: int, multiprocessors: int | None = None
) -> Plan:
    """Return the launches for factors of these layouts; ``code`` is the result of `semiring` for the problem."""
    arithmetic, batch = problem.arithmetic, _folded(problem, layouts)
    kernel, tuned = problem.choose_kernel(capability)[0], _cuda.tuned(TUNING, capability)
    if arithmetic.kind == "RESIDUES":
        return residues.plan(Builder, problem, code, batch, capability=capability, multiprocessors=multiprocessors)
    (m, n, k), matrices, tile = batch.lengths, batch.matrices, problem.tile
    if problem.kernel is None and tile is None and not problem.canonical:
        tile = tiny_tile(arithmetic, batch.lengths)
        kernel = kernel if tile is None else "naive"
    grouped = _for_groups(batch, arithmetic, tuned) if _may_be_grouped(problem, kernel, capability) else None
    copies, one_by_one = grouped.copies if grouped else None, min(batch.a.vector, batch.b.vector) == 1
    block, splits, by_groups = choose_block(
        arithmetic,
        kernel,
        tile,
        Sizes(batch.lengths, matrices, whole=problem.canonical),
        capability=capability,
        copies=copies,
        one_by_one=one_by_one,
    )
    if not by_groups:
        grouped = None
    a, b, swapped = (grouped.a, grouped.b, grouped.copies.swapped) if grouped else (batch.a, batch.b, False)
    rows, columns, depth = block.tile
    blocks, parts_of_cluster = math.prod(block.cluster[:2]), block.cluster[2]
    high, wide = rows * block.cluster[0], columns * block.cluster[1]
    tiles = -(-n // high) * -(-m // wide) if swapped else -(-m // high) * -(-n // wide)
    part = -(-k // (splits * depth)) * depth
    splits = -(-k // part)
    units = tiles * splits * matrices
    if units >= 2**31:
        raise ValueError(f"a and b must make fewer than 2^31 tiles of {rows} x {columns}, got {units}")

    make = Builder(problem, code, batch, tiles=tiles, splits=splits, part=part)
    sizes: dict[str, Any] = {"grid": units, "block": block.threads, "shared_bytes": block.shared_bytes}
    if kernel == "naive":
        return make.plan(make.launch("multiply_naive", ("Semiring", rows, columns), **sizes))
    staged = (*block.tile, block.shared_bytes)
    if kernel == "tiled":
        return make.plan(make.launch("multiply_tiled", ("Semiring", *staged), **sizes))
    if kernel == "packed":
        return _packed(make, staged, sizes)
    cut = splits > 1 and parts_of_cluster == 1
    scratch = {
        "zeroed_bytes": 4 * tiles * blocks * matrices * cut,
        "temporary_bytes": units * blocks * rows * columns * arithmetic.registers_bytes * cut,
    }
    parts = Pointer("temporary"), Pointer("zeroed")
    accesses: list[bool | int] = []
    for factor, length in ((a, rows), (b, columns)):
        accesses += [math.gcd(factor.vector, depth if factor.along_k else length), factor.along_k]
    if kernel == "conflict_free":
        whole_rows = n % (16 // arithmetic.registers_bytes) == 0
        if block.threads <= 256 and arithmetic.registers_bytes == 4:
            sizes["resident_blocks"] = 2
        template_arguments: tuple[Argument, ...] = ("Semiring", *staged, *accesses, whole_rows)
        return make.plan(make.launch("multiply_conflict_free", template_arguments, parts, **sizes), **scratch)
    sizes["unbound_registers"] = True
    if grouped:
        # No bits depend on the number of these blocks.
        most = max(1, (multiprocessors or tuned.multiprocessors) // blocks) * blocks
        grid = units * blocks if parts_of_cluster > 1 else min(units * blocks, most)
        sizes |= {"grid": grid, "cluster": blocks * parts_of_cluster, "own_instructions": True}
        return _by_groups(make, units, block, grouped, accesses=accesses, sizes=sizes, scratch=scratch)
    kind = arithmetic.kind or ""
    stages = (*block.tile, *arithmetic.warps(block.tile), block.stages, block.shared_bytes)
    arguments: tuple[Argument, ...] = ("Semiring", kind, *stages, *accesses, n % 2 == 0)
    return make.plan(make.launch("multiply_tensor", arguments, parts, file="matmul_tensor.cuh", **sizes), **scratch)


def _may_be_grouped(problem: Problem, kernel: str, capability: int) -> bool:
    """Return whether groups of four warps may multiply."""
    return kernel == "tensor" and capability == 90 and not problem.canonical


@dataclasses.dataclass(frozen=True)
class _Grouped:
    """The factors in layouts that groups of four warps can multiply. ``to_pack`` names the factors to pack first."""

    a: Factor
    b: Factor
    to_pack: tuple[str, ...]
    copies: Copies


def _for_groups(batch: Folded, arithmetic: Arithmetic, tuned: Tuning) -> _Grouped | None:
    """Return how groups of four warps multiply the factors of a batch, or None.

    Groups read 16 bytes at once: of both factors if numbers have 2 bytes; of the right factor, along k, if they have 4.
    In float64, factors may have any layout. Other factors can be packed along k, which pays if each line meets many
    lines of the other factor.
    """
    a, b, (m, n, _), size = batch.a, batch.b, batch.lengths, arithmetic.memory_bytes
    to_pack: tuple[str, ...] = ()
    swapped, needed, least = False, False, tuned.packed
    if arithmetic.kind != "DOUBLE":
        if size == 2:
            to_pack = tuple([name for name, factor in (("a", a), ("b", b)) if factor.vector < 8])
            needed = min(a.vector, b.vector) < 4
            least = 1 if needed else least
        else:
            fits = [factor.along_k and factor.vector == 4 for factor in (b, a)]
            to_pack = () if any(fits) else ("b",) if n <= m else ("a",)
            swapped = "a" in to_pack if to_pack else not fits[0]
        if to_pack and min(n if name == "a" else m for name in to_pack) < least:
            return None
        a, b = (
            _packed_factor(batch, name, size) if name in to_pack else factor for name, factor in (("a", a), ("b", b))
        )
    left, right = (b, a) if swapped else (a, b)
    aligned = left.pitch * size % 128 == 0, right.pitch * size % 128 == 0
    how = "BY_THREADS"
    if max(batch.lengths) < 2**31 and right.fits_map(size):
        if arithmetic.kind == "TF32":
            how = "RIGHT_AT_ONCE"  # bulk copies round the right factor
        elif size == 2 and left.fits_map(size):
            even = all(aligned) and not any(length % 128 for length in batch.lengths)
            if math.prod(batch.lengths) * batch.matrices >= (tuned.at_once if even else tuned.at_once_uneven):
                how = "AT_ONCE"
    return _Grouped(a, b, to_pack, Copies(how, swapped, aligned, needed))


def _packed_factor(batch: Folded, name: str, size: int) -> Factor:
    """Return the layout of a factor once it is packed: lines of float32 begin at 16 bytes, 16-bit floats at 128."""
    m, n, k = batch.lengths
    unit = 4 if size == 4 else 64
    lanes = -(-k // unit) * unit
    length, factor = (m, batch.a) if name == "a" else (n, batch.b)
    return Factor(outer=lanes, along=1, vector=16 // size, along_k=True, step=0 if factor.step == 0 else length * lanes)


def _by_groups(
    make: Builder,
    units: int,
    block: Block,
    grouped: _Grouped,
    accesses: list[bool | int],
    sizes: dict[str, Any],
    scratch: dict[str, int],
) -> Plan:
    """Return the launches for groups of four warps: blocks or clusters loop over units of work."""
    arithmetic, batch, copies = make.problem.arithmetic, make.batch, grouped.copies
    n, matrices, a, b = batch.lengths[1], batch.matrices, grouped.a, grouped.b
    packing: list[Launch] = []
    if grouped.to_pack:
        launch, scratch = _pack_lines(make, {"a": a, "b": b}, grouped.to_pack, scratch)
        packing.append(launch)
    if arithmetic.kind != "DOUBLE":
        make.text += wgmma(arithmetic, block.tile[1], a.along_k, b.along_k)
    left = b if copies.swapped else a
    kind, tile = arithmetic.kind or "", (*block.tile, block.stages, block.shared_bytes)
    start = ("Semiring", "Wgmma", kind, *tile, copies.how)
    if arithmetic.kind == "DOUBLE":
        name = "multiply_doubles_by_groups"
        arguments: tuple[Any, ...] = ("Semiring", kind, *tile, *accesses, n % 2 == 0)
    elif arithmetic.memory_bytes == 2:
        cluster = f"Cluster<{', '.join(map(str, block.cluster))}>"
        name, arguments = "multiply_by_groups", (*start, cluster, a.along_k, b.along_k, math.gcd(n, 8))
    else:
        name = "multiply_floats_by_groups"
        arguments = (*start, left.vector, left.along_k, copies.swapped, n % 2 == 0)
    parameters: tuple[Parameter, ...] = make.number("units", units), Pointer("temporary"), Pointer("zeroed")
    if copies.how != "BY_THREADS":
        count = make.number("matrices", matrices)
        steps = make.number("matrix_step_a", a.step or 0), make.number("matrix_step_b", b.step or 0)
        parameters += (Struct(make.own["k"], count, *steps, Pointer("scratch"), type="Bulk"),)
        scratch = {**scratch, "scratch_bytes": 256 * sizes["grid"]}
    return make.plan(*packing, make.launch(name, arguments, parameters, file="matmul_groups.cu", **sizes), **scratch)


def _pack_lines(
    make: Builder, packed: dict[str, Factor], names: tuple[str, ...], scratch: dict[str, int]
) -> tuple[Launch, dict[str, int]]:
    """Return the launch that packs factors of these names along k to the given layouts, and the scratch with room.

    From then on, the products of the builder have the packed factors.
    """
    m, n, k = make.batch.lengths
    side, threads, grid, end = 64, 256, 0, scratch["temporary_bytes"]
    packings = dict.fromkeys(packed, Struct(None, 0, 0, 0, 0, type=f"Packing<{make.element}>"))
    factors: dict[str, Struct] = {}
    for name in names:
        factor, length = packed[name], m if name == "a" else n
        matrices = make.batch.matrices if factor.step else 1
        count, begin = -(-length // side) * -(-k // side), -(-end // 256) * 256
        values = {
            "at": begin,
            "tiles": count,
            "blocks": count * matrices,
            "pitch": factor.outer,
            "step": factor.step or 0,
        }
        place, *numbers = (make.number(f"packed_{what}_{name}", value) for what, value in values.items())
        to = Pointer("temporary", make.element, bytes=place)
        packings[name] = Struct(to, *numbers, type=f"Packing<{make.element}>")
        factors[name] = Struct(dataclasses.replace(to, type=f"const {make.element}"), *numbers[2:])
        grid += count * matrices
        end = begin + matrices * length * factor.outer * make.problem.arithmetic.memory_bytes
    launch = make.launch(
        "pack_lines", ("a" in names, "b" in names, side, threads), tuple(packings.values()), grid=grid, block=threads
    )
    make.factors |= factors
    make.kinds |= dict.fromkeys(names, f"PackedFactor<{make.element}>")
    return launch, {**scratch, "temporary_bytes": end}


def _packed(make: Builder, tile: tuple[int, ...], sizes: dict[str, Any]) -> Plan:
    """Return the launches that pack a and b and multiply the packed factors."""
    rows, columns, depth, _ = tile
    m, n, k = make.batch.lengths
    matrices, threads, deep = make.batch.matrices, 256, -(-k // depth)
    counts = -(-m // rows) * deep, -(-n // columns) * deep
    nbytes = [
        count * matrices * side * depth * make.problem.arithmetic.memory_bytes
        for count, side in zip(counts, (rows, columns), strict=True)
    ]
    begin = -(-nbytes[0] // 256) * 256
    tiles = make.number("packed_tiles_a", counts[0]), make.number("packed_tiles_b", counts[1])
    second = make.number("packed_at_b", begin)
    places = Pointer("temporary", make.element), Pointer("temporary", make.element, bytes=second)
    packing = [
        make.launch(
            "pack_tiles", (f"FACTOR_{name}", side, depth, threads), (number, place),
            grid=count * matrices, block=threads,
        )
        for name, side, number, place, count in zip("AB", (rows, columns), tiles, places, counts, strict=True)
    ]  # fmt: skip
    multiply = make.launch("multiply_packed", ("Semiring", *tile), (*places, *tiles), **sizes)
    return make.plan(*packing, multiply, temporary_bytes=begin + nbytes[1])


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, p: Product) -> str | None:
    """Return the sentence why no kernel can serve a checked call, or None."""
    # For sums of products, the dispatch adds derivatives to the kernel (see `Method`).
    reason = _cuda.refusal(xp, tuple([derivative_rules.detached(x) for x in p.arrays]) if p.ring else p.arrays)
    if reason is not None:
        return reason
    if dtype_name(p.dtype) not in C_TYPES:
        return f"the kernel has no dtype {dtype_name(p.dtype)}"
    problem = Problem.of(p)
    if not p.ring and sum_identity(problem) is None:
        return f"op {p.add.name} has no identity, and the kernel's sums begin with it"
    reason = problem.choose_kernel(_cuda.capability(xp, p.arrays[0]))[1]
    if reason is not None:
        return reason
    try:
        _code(problem, p.operation, is_jax(xp))
    except Untraceable as untraceable:
        return str(untraceable)
    return None


_codes: Memo[Semiring] = Memo()


def _code(problem: Problem, operation: tuple[Any, Any], immutable: bool) -> Semiring:
    """Return the operators as device code, remembered if they can be (see `lasting_key`)."""
    if None in operation:
        return semiring(problem, immutable=immutable)
    key = operation, problem.arithmetic, immutable
    return _codes.get(key) or _codes.keep(key, semiring(problem, immutable=immutable))


def prepare(xp: Namespace, p: Product) -> Callable[..., Array]:
    """Return a function of both factors that multiplies them by a kernel."""
    if 0 in p.shape or p.arrays[0].shape[-1] == 0:
        return directly(tiled_product)(xp, p)
    bare = p.on(None, None)
    matrices = _matrices(*p.arrays)
    readable = _readable(xp, p.dtype, *matrices)
    runner = _runner(xp, bare, *readable)
    if any(x is not other for x, other in zip(readable, matrices, strict=True)):
        return lambda a, b: _multiplied(xp, bare, *_readable(xp, p.dtype, *_matrices(a, b)))
    multiplied = _cuda.only(runner)
    if any(x is not other for x, other in zip(matrices, p.arrays, strict=True)):
        return lambda a, b: multiplied(*_matrices(a, b))
    return multiplied


def _multiplied(xp: Namespace, p: Product, a: Array, b: Array) -> Array:
    return _runner(xp, p, a, b)(a, b)[0]


def _matrices(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the factors with a row or a column for a vector."""
    return a if a.ndim > 1 else a[None, :], b if b.ndim > 1 else b[:, None]


def _readable(xp: Namespace, dtype: Any, a: Array, b: Array) -> tuple[Array, Array]:
    """Return the factors in the result's dtype, copied where a kernel cannot read their memory."""
    return _cuda.plain(xp, cast(xp, a, dtype)), _cuda.plain(xp, cast(xp, b, dtype))


def _runner(xp: Namespace, p: Product, a: Array, b: Array) -> _cuda.Run:
    """Return the remembered function that launches the plan for factors like these; ``p`` holds no arrays."""
    layouts = tuple(_cuda.layout(xp, x) for x in (a, b))
    problem = Problem.of(p.on(a, b))
    operation, code = p.operation, _code(problem, p.operation, is_jax(xp))
    if None in operation or code.captured:
        # Variables that the operators read may have changed, so the key holds their translation. JAX may call the
        # operators again later, so there the key holds their ids too, and the runner keeps them alive.
        ids = (id(p.add.combine), id(p.multiply.combine)) if is_jax(xp) else ()
        operation = (code.text, ids)
    key = (
        "matmul", operation, mode(xp), p.dtype, p.working, p.precision, p.shape, problem.a, problem.b, p.kernel, p.tile,
        problem.canonical, layouts,
    )  # fmt: skip

    def plan() -> _cuda.Plan:
        device = _cuda.capability(xp, a), _cuda.multiprocessors(xp, a)
        return make_plan(problem, code, layouts, *device)

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        def otherwise(*factors: Array) -> tuple[Array, ...]:
            other = p.of_factors(xp, *factors)
            return (xp.reshape(native.prepare(xp, other)(*factors) if p.ring else tiled_product(xp, other), p.shape),)

        def batched(*factors: Array) -> tuple[Array, ...]:
            rank = max(x.ndim for x in factors)
            a, b = (xp.reshape(x, (x.shape[0], *(1,) * (rank - x.ndim), *x.shape[1:])) for x in factors)
            return (xp.reshape(prepare(xp, p.of_factors(xp, a, b))(a, b), (-1, *p.shape)),)

        return otherwise, batched

    return _cuda.ready(xp, a, key, plan, in_program=in_program, captured=code.captured)


# ---- Kernels to compile without a GPU ---------------------------------------------------------------------------


_LAYOUTS = ((False, False), (False, True), (True, False), (True, True))  # which of a and b are transposed


def cases() -> Iterator[tuple[str, Plan]]:
    """Yield the name and the plan of matrix products that reach every branch of the kernels' templates."""
    for case in _cases():
        yield case.name, case.plan()


def _cases() -> Iterator[_Case]:
    for dtype in ("float32", "int8", "complex128"):
        yield _Case("naive", dtype)
    yield _Case(None, "float16", (3, 5, 7))
    for dtype in ("float32", "bfloat16", "uint64"):
        yield _Case("tiled", dtype)
    for dtype in ("float64", "float16"):
        yield _Case("packed", dtype)
    for dtype in ("float32", "int8", "float64", "complex128"):
        yield _Case("conflict_free", dtype)
    yield _Case("conflict_free", "float32", transposed=(True, True))
    yield _Case("conflict_free", "float32", (300, 301, 303))
    yield _Case("conflict_free", "float32", unaligned=True)
    yield _Case("conflict_free", "float32", operators=("minimum", "add"))
    yield _Case("conflict_free", "float32", operators=("logaddexp", "add"))
    yield _Case("conflict_free", "bool", operators=("logical_or", "logical_and"))
    # Tensor cores by single warps: every kind of instruction and every layout of the factors with few rows, which
    # compile the fastest; then the large tiles.
    few = (16, 8192, 8192)
    for dtype, precision in (
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float32", "float32"),
        ("float32", "tf32"),
        ("float32", "highest"),
        ("float64", "float32"),
    ):
        yield _Case("tensor", dtype, few, precision=precision, capability=80)
        if precision == "float32":
            yield _Case("tensor", dtype, few, transposed=(True, True), capability=80)
    yield _Case("tensor", "bfloat16", few, transposed=(False, True), capability=80)
    yield _Case("tensor", "bfloat16", few, unaligned=True, capability=80)
    yield _Case("tensor", "float32", (16, 301, 303), capability=80)
    for dtype in ("float16", "float32", "float64"):
        yield _Case("tensor", dtype, capability=80)
    yield _Case("tensor", "float32", precision="tf32", capability=80)
    yield _Case("tensor", "float32", (512, 512, 512), capability=80)
    # And by groups of four warps: 16-bit floats; float32 swapped or not, with the left factor along k or not; float64.
    yield _Case("tensor", "float16")
    yield _Case("tensor", "bfloat16", (3000, 5000, 2000))
    yield _Case("tensor", "bfloat16", (1088, 2224, 7024))
    yield _Case("tensor", "float16", (3001, 5007, 2003))
    yield _Case("tensor", "bfloat16", (1024,) * 3, transposed=(True, True))
    yield _Case("tensor", "bfloat16", (512,) * 3, transposed=(True, True))
    yield _Case("tensor", "float32", precision="tf32")
    for lengths in ((1024, 1024, 1024), (3000, 5000, 2000), (2047, 2048, 2049), (256, 64, 4096)):
        yield _Case("tensor", "float32", lengths, precision="tf32", transposed=(False, True))
    for lengths in ((1024, 1024, 1024), (8192, 8192, 96), (256, 256, 256)):
        yield _Case("tensor", "float32", lengths, transposed=(False, True))
    for both in _LAYOUTS:
        yield _Case("tensor", "float32", transposed=both)
    yield _Case("tensor", "float64")
    yield _Case("tensor", "float64", (300, 301, 303), transposed=(True, False))
    yield _Case("tensor", "float32", precision="highest")
    for dtype, both in itertools.product(("float32", "float64"), _LAYOUTS):
        yield _Case("tensor", dtype, precision="residues", transposed=both)
    yield _Case("tensor", "float32", (300, 301, 303), precision="residues", transposed=(False, True))


@dataclasses.dataclass(frozen=True)
class _Case:
    """A product of matrices of lengths (m, k, n) that `cases` compiles: the arguments of its call, and the device."""

    kernel: str | None
    dtype: str
    lengths: Tile = (8192, 8192, 8192)
    precision: str = "float32"
    operators: tuple[str, str] = ("add", "multiply")
    transposed: tuple[bool, bool] = (False, False)
    unaligned: bool = False
    capability: int = 90

    @property
    def ring(self) -> bool:
        return self.operators == ("add", "multiply")

    @property
    def name(self) -> str:
        words = {
            "_".join(self.operators): not self.ring,
            self.precision: self.precision != "float32",
            "unaligned": self.unaligned,
        }
        return " ".join(("matmul", self.dtype, *(word for word, is_said in words.items() if is_said)))

    def plan(self) -> Plan:
        m, k, n = self.lengths
        dtype = self.dtype
        working = "float32" if dtype in SIXTEEN_BIT_FLOATS else "float64" if self.precision == "highest" else dtype
        arithmetic = Arithmetic.of(dtype, working, self.ring, self.precision)
        add, multiply = (BUILT_IN[name] for name in self.operators)
        problem = Problem(
            a=(m, k), b=(k, n), batch=(), shape=(m, n), arithmetic=arithmetic,
            add=add, multiply=multiply, kernel=self.kernel, tile=None,
        )  # fmt: skip
        layouts = [
            ((1, rows) if across else (columns, 1), arithmetic.memory_bytes if self.unaligned else 0)
            for across, (rows, columns) in zip(self.transposed, ((m, k), (k, n)), strict=True)
        ]
        return make_plan(problem, semiring(problem, immutable=False), layouts, self.capability)
