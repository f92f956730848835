"""The matrix product by residues: the moduli, their error bound, and the plan of launches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from parprims import _cuda
from parprims._cuda import Argument, Launch, Number, Parameter, Plan, Pointer, Struct
from parprims._primitives.matmul.tiles import TUNING, block

if TYPE_CHECKING:
    from parprims._primitives.matmul.cuda import Builder, Folded, Problem
    from parprims._primitives.matmul.operators import Semiring

MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193)
"""The largest numbers of at most 8 bits that are pairwise coprime."""

TOLERANCE = 1.5
"""The error that rounding to integers may have, in units of eps sqrt(k) sum |a| |b|; the promise has 2 of these."""

LONGEST = 1023
"""The tiles along k that are multiplied before sums are reduced: sums of products of two bytes fit in 31 bits."""

SIDE = 128
"""The lines, and numbers along k, of a stored tile of residues."""

TILE = SIDE, 2 * SIDE, SIDE
"""The tile of a block: lines of a, of b, and numbers along k."""


# ---- The text ---------------------------------------------------------------------------------------------------


def largest_norm(count: int) -> float:
    """Return the largest norm of lines of integers for which ``count`` moduli determine their products."""
    return math.sqrt(math.prod(MODULI[:count]) / 2 * (1 - 2**-8))


def moduli_text(dtype: str, count: int) -> str:
    """Return the definition of the struct ``Moduli`` of kernels/matmul_residues.cu."""
    values = MODULI[:count]
    product = math.prod(values)
    words = 1 if largest_norm(count) < 2**30 else 2
    cofactors = [product // value for value in values]
    inverses = [pow(other, -1, value) for other, value in zip(cofactors, values, strict=True)]

    def weights(factors: list[int]) -> str:
        """Return the residues of a factor times powers of 256, as bytes with signs, four to a word."""
        rows = []
        for value, factor in zip(values, factors, strict=True):
            of = [factor * 256**power % value for power in range(4 * words)]
            of = [residue - value if residue > value // 2 or residue > 127 else residue for residue in of]
            packed = b"".join(residue.to_bytes(1, "little", signed=True) for residue in of)
            row = (
                int.from_bytes(packed[start : start + 4], "little", signed=True) for start in range(0, len(packed), 4)
            )
            rows.append(f"{{{', '.join(f'(int)0x{word % 2**32:x}u' for word in row)}}}")
        return ", ".join(rows)

    groups = [math.prod(values[start : start + 3]) for start in range(0, count, 3)]
    columns = 1 if product < 2**64 else 3
    group_cofactors = [groups[index // 3] // value for index, value in enumerate(values)]

    def split(x: int) -> str:
        """Return a number in columns of 32 bits; the last column has the rest."""
        parts = [x >> 32 * index & 2**32 - 1 for index in range(columns - 1)] + [x >> 32 * (columns - 1)]
        return f"{{{', '.join(f'0x{part:x}ull' for part in parts)}}}"

    eps = 2.0**-23 if dtype == "float32" else 2.0**-52
    return "\n".join(
        (
            "struct Moduli {",
            f"    static constexpr int COUNT = {count}, WORDS = {words}, GROUPS = {len(groups)}, COLUMNS = {columns};",
            f"    static constexpr int VALUES[COUNT] = {{{', '.join(map(str, values))}}};",
            f"    static constexpr int OF_A[COUNT][WORDS] = {{{weights([1] * count)}}};",
            f"    static constexpr int OF_B[COUNT][WORDS] = {{{weights(inverses)}}};",
            f"    static constexpr unsigned WEIGHTS[COUNT] = {{{', '.join(map(str, group_cofactors))}}};",
            "    static constexpr unsigned long long TERMS[GROUPS][COLUMNS] = "
            f"{{{', '.join(split(product // group) for group in groups)}}};",
            f"    static constexpr unsigned long long WHOLE[COLUMNS] = {split(product)};",
            f"    static constexpr float PARTS[GROUPS] = {{{', '.join(f'{1 / group!r}' for group in groups)}}};",
            f"    static constexpr double LARGEST = {largest_norm(count)!r};",
            f"    static constexpr float TOLERANCE = {TOLERANCE * eps!r};",
            "};",
        )
    )


def wgmma_text(columns: int) -> str:
    """Return the definition of the struct ``ByteWgmma`` of kernels/matmul_bytes.cu, for a number of columns."""
    half = columns // 2
    sums = ", ".join(f"%{i}" for i in range(half))
    outputs = ", ".join(f'"+r"(c[{i}])' for i in range(half))
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, %{half + 2}, 0; wgmma.mma_async.sync.aligned.m64n{columns}k32.s32.s8.s8 "
        f"{{{sums}}}, %{half}, %{half + 1}, p; }}"
    )
    return "\n".join(
        (
            "",
            "#if __CUDA_ARCH__ == 900",
            "struct ByteWgmma {",
            f"    static constexpr int WIDTH = {columns};",
            "    static DEVICE void "
            f"multiply(int (&c)[{half}], unsigned long long a, unsigned long long b, int more) {{",
            f'        asm volatile("{text}" : {outputs} : "l"(a), "l"(b), "r"(more) : "memory");',
            "    }",
            "};",
            "#endif",
        )
    )


# ---- The plan ---------------------------------------------------------------------------------------------------


class _Scratch:
    """Divides the temporary memory of a plan between the arrays that its launches share."""

    def __init__(self, make: Builder) -> None:
        self.make, self.bytes = make, 0

    def __call__(self, name: str, nbytes: int, type: str) -> Pointer:
        """Return a pointer to ``nbytes`` bytes that are not taken yet."""
        place = self.make.number(name, self.bytes)
        self.bytes += -(-nbytes // 256) * 256
        return Pointer("temporary", type, bytes=place)


def plan(
    builder: type[Builder],
    problem: Problem,
    code: Semiring,
    batch: Folded,
    *,
    capability: int,
    multiprocessors: int | None,
) -> Plan:
    """Return the launches for a batch of products, which an instance of ``builder`` makes."""
    (m, n, k), dtype = batch.lengths, problem.arithmetic.memory
    matrices, entry = batch.matrices, _cuda.tuned(TUNING, capability)
    tuned = entry.residues
    count = tuned.moduli[dtype]
    down, across, deep = -(-m // TILE[0]), -(-n // TILE[1]), -(-k // SIDE)
    tiles = down * across * matrices
    if max(16 * tiles, 4 * (down + 2 * across) * deep * matrices) >= 2**31:
        raise ValueError(f"a and b must make fewer than 2^31 tiles of residues, got {tiles}")
    make = builder(problem, code, batch, tiles=down * across, splits=1, part=k)
    make.text += "\n" + moduli_text(dtype, count) + wgmma_text(TILE[1])
    number, scratch = make.number, _Scratch(make)
    lines = [
        scratch(f"lines_{name}_at", 16 * length * matrices, "residues::Line") for name, length in (("a", m), ("b", n))
    ]
    tried, marks = (scratch(name, 8 * tiles, "unsigned char") for name in ("tried_at", "marks_at"))
    depth = number("deep", deep)
    stored = [
        Struct(scratch(f"stored_{name}_at", (count + 1) * matrices * rows * deep * SIDE * SIDE, "char"),
               number(f"down_{name}", rows), depth, type="residues::Stored")
        for name, rows in (("a", down), ("b", 2 * across))
    ]  # fmt: skip
    most = multiprocessors or entry.multiprocessors
    residues = scratch("residues_at", tiles * count * TILE[0] * TILE[1], "unsigned")

    def launch(name: str, arguments: tuple[Argument, ...], parameters: tuple[Parameter, ...], **options: Any) -> Launch:
        options = {"file": "matmul_residues.cu", **options}
        return make.launch(f"residues::{name}", arguments, parameters, **options)

    a, b = batch.a, batch.b
    groups = [-(-length // 32) for length in (m, n)]
    measured = [number(f"groups_{name}", count) for name, count in zip("ab", groups, strict=True)]
    launches = [
        launch("measure_lines", ("Moduli", a.along_k, b.along_k),
               (*measured, number("measured_a", groups[0] * matrices), *lines),
               grid=sum(groups) * matrices, block=1024),
    ]  # fmt: skip
    taken = [4 * rows * deep * matrices for rows in (down, 2 * across)]
    accesses: list[bool | int] = []
    for factor in (a, b):
        accesses += [factor.along_k, factor.vector if factor.along_k else 1]
    launches.append(
        launch("take_residues", ("Moduli", *accesses), (number("taken_a", taken[0]), *lines, *stored),
               grid=sum(taken), block=256)
    )  # fmt: skip
    shared = 1024 + tuned.stages * 3 * SIDE * SIDE
    sizes: dict[str, Any] = {"block": 384, "shared_bytes": shared, "unbound_registers": True, "own_instructions": True}
    sizes["file"] = "matmul_bytes.cu"
    arguments: tuple[Argument, ...] = ("ByteWgmma", "Moduli", tuned.stages, shared)
    some = -(-deep // tuned.tested[dtype]) if deep >= tuned.tested_from else deep
    bound: tuple[Number, ...] = number("tested", min(some, LONGEST)), number("tested_at_most", min(deep, LONGEST))
    tiles_ = number("tiles_of_c", tiles)
    launches += [
        launch("find_lost", arguments, (tiles_, *stored, *bound, *lines, tried, marks), grid=min(most, tiles), **sizes),
        launch("multiply_residues", (*arguments, LONGEST), (tiles_, *stored, marks, residues),
               grid=min(most, tiles * count), **sizes),
        launch("combine_residues", ("Moduli",), (marks, residues, *lines), grid=16 * tiles, block=512),
    ]  # fmt: skip
    launches.append(_in_float64(make, marks, launch, capability))
    return make.plan(*launches, temporary_bytes=scratch.bytes)


def _in_float64(make: Builder, marks: Pointer, launch: Callable[..., Launch], capability: int) -> Launch:
    """Return the launch that multiplies the tiles that are marked."""
    (m, n, _), tuned = make.batch.lengths, _cuda.tuned(TUNING, capability)
    arithmetic = dataclasses.replace(make.problem.arithmetic, kind="DOUBLE")
    tile = tuned.tensor["DOUBLE"][0]
    chosen = block("tensor", tile, arithmetic, most=_cuda.shared_bytes(capability), tuned=tuned)
    accesses: list[bool | int] = []
    for factor, length in ((make.batch.a, tile[0]), (make.batch.b, tile[1])):
        accesses += [math.gcd(factor.vector, tile[2] if factor.along_k else length), factor.along_k]
    stages = (*tile, *arithmetic.warps(tile), chosen.stages, chosen.shared_bytes)
    marked, tiles = make.own["tiles"], -(-m // tile[0]) * -(-n // tile[1])
    make.own["tiles"] = make.number("tiles_in_float64", tiles)
    return launch(
        "multiply_lost",
        ("Semiring", "DOUBLE", *stages, *accesses, n % 2 == 0),
        (marked, marks),
        file="matmul_bytes.cu",
        grid=tiles * make.batch.matrices,
        block=chosen.threads,
        shared_bytes=chosen.shared_bytes,
        unbound_registers=True,
    )
