"""The choice of the kernel and the tile of a matrix product, and its tuning.

The file is long because the choice of a tile, the model of its time and the measured costs belong together.
"""

from __future__ import annotations

import dataclasses
import math

from parprims import _cuda
from parprims._core.arrays import dtype_bits, dtype_kind

Tile = tuple[int, int, int]
"""Lengths of m, n and k."""

KERNELS = ("naive", "tiled", "packed", "conflict_free", "tensor")
"""The kernels that a caller can name, from the simplest to the fastest."""


# ---- Tuning -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Residues:
    """The tuning of products by residues.

    Parameters
    ----------
    moduli : dict of str to int
        The number of moduli, by the dtype of the factors.
    stages : int
        The tiles in shared memory.
    tested : dict of str to int
        The lower bound of sum |a| |b| is computed from the first of this many parts of k, and from all of k if that
        does not suffice.
    tested_from : int
        With fewer tiles along k than this, it is computed from all of k at once.
    least : dict of str to int
        The least number of products for which residues are faster than other methods, by the dtype.
    """

    moduli: dict[str, int]
    stages: int
    tested: dict[str, int]
    tested_from: int
    least: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Least:
    """The least sizes for which a kernel takes less time than the library's own routine.

    Parameters
    ----------
    lines : int
        The least rows and columns of a result.
    results : int
        The least elements of a result.
    depth : int
        The least length summed over.
    products : int
        The least number of products of all matrices.
    """

    lines: int = 1
    results: int = 1
    depth: int = 1
    products: int = 1

    def reached(self, m: int, n: int, k: int, matrices: int) -> bool:
        """Return whether ``matrices`` products of these lengths are large enough."""
        long = min(m, n) >= self.lines and k >= self.depth
        return long and m * n >= self.results and m * n * k * matrices >= self.products


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """The measured tuning of devices of one compute capability.

    Lists of tiles begin with the largest. `choose_block` leaves out tiles that compute more than twice as much as the
    best one, because of the edges, and takes the one that it estimates to be the fastest of the others. If the sum is
    split, bits depend on the tile and on the number of parts. So they depend on every field here except the fields of
    preferences, and the number of multiprocessors is from the entry, not from the device. Only the number of blocks
    that loop over units of work is from the device.

    Parameters
    ----------
    naive, tiled : Tile
        The tiles of the kernels naive, and tiled and packed.
    conflict_free : dict of int to tuple of Tile
        The tiles of the kernel conflict_free, by the bytes of a number in registers.
    tensor : dict of str to tuple of Tile
        The tiles of the kernel tensor by single warps, by the kind of its instructions.
    groups : dict of str to tuple of Tile
        The tiles of the kernel tensor by groups of four warps: lengths of the left factor, of the right factor, and of
        k.
    stages : int
        The most tiles in shared memory for single warps.
    stages_of_groups : tuple of int
        The numbers of tiles in shared memory for groups. The first number that fits is used; the kernel divides by
        these quickly.
    part : int
        The least number of tiles along k in a part of a sum.
    packed : int
        The least number of lines of one factor for which the other factor is packed along k, for groups. 16-bit floats
        that cannot be loaded as vectors of 8 bytes are always packed.
    at_once, at_once_uneven : int
        The number of products from which on 16-bit floats are copied by bulk copies: if tiles divide the factors and
        all lines begin at multiples of 128 bytes; and if not, when threads copy up to twice as slowly.
    clusters : tuple of (int, int)
        The clusters of blocks of 16-bit floats copied by bulk copies: how many tiles of the result are below one
        another, and side by side (see `Cluster` in kernels/matmul_pipeline.cuh).
    split_clusters : dict of int to int
        Clusters of blocks that share sums of 16-bit floats, each block for a part of k: their sizes, at most 8, and
        the number of such clusters that run at the same time (`cuOccupancyMaxActiveClusters` of the device).
    chain : int
        The least length of a sum of float32 that tensor cores compute. They truncate, so that shorter sums have
        smaller errors in ordinary registers.
    preferred, preferred_in_jax : dict of str to Least
        The least sizes for which `auto` takes the kernel, by the family of the product (see `crossover`): in calls of
        CuPy and PyTorch, and in programs of JAX, which calls its own routine at no cost. They come from the cases
        ``tf32``, ``highest``, ``square`` and ``any shape`` of bench ``matmul`` in benches/results/nvidia-h200.json, and
        from others.
    small, small_matrices : int
        The most rows, columns and length summed over, and the most matrices of a batch, up to which a call of the
        kernel takes less time than a call of the libraries' own routine, which takes longer than the product itself
        (cases ``call`` of bench ``matmul``).
    residues : Residues
        The tuning of products by residues.
    costs : dict of str to dict of str to Costs
        The costs of the kernel tensor by the kind of its instructions, then by whether single warps (``tensor``) or
        ``groups`` of four multiply. They fit 4167 times of 46 shapes on an H200, of every tile and of up to 132 parts
        of the sum. The tile chosen by them takes 2 % longer than the fastest tile, on average.
    parts : dict of str to (float, float)
        The costs of split sums, in us, by the kind: once, and for each element of each part of a tile.
    """

    naive: Tile
    tiled: Tile
    conflict_free: dict[int, tuple[Tile, ...]]
    tensor: dict[str, tuple[Tile, ...]]
    groups: dict[str, tuple[Tile, ...]]
    stages: int
    stages_of_groups: tuple[int, ...]
    part: int
    packed: int
    at_once: int
    at_once_uneven: int
    clusters: tuple[tuple[int, int], ...]
    split_clusters: dict[int, int]
    chain: int
    preferred: dict[str, Least]
    preferred_in_jax: dict[str, Least]
    small: int
    small_matrices: int
    residues: Residues
    costs: dict[str, dict[str, Costs]]
    parts: dict[str, tuple[float, float]]


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` gives the entry of any other device."""

# ---- Arithmetic of kernels --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """The dtypes of a product, by name, and the kind of the tensor cores' instructions.

    Parameters
    ----------
    memory : str
        The dtype of the arrays.
    registers : str
        The dtype of sums. Integers narrower than 32 bits are summed in 32 bits, for they wrap in the end anyway.
    ring : bool
        Whether the operators are sum and product.
    kind : str, optional
        A name of `Kind` in kernels/matmul_tensor.cuh, RESIDUES, or None where tensor cores cannot multiply.
    """

    memory: str
    registers: str
    ring: bool
    kind: str | None

    @staticmethod
    def of(memory: str, working: str, ring: bool, precision: str) -> Arithmetic:
        """Return the arithmetic of a product of dtype ``memory`` that is computed in dtype ``working``."""
        registers, kind = working, None
        if ring and dtype_kind(working) in ("int", "uint"):
            registers = "uint64" if dtype_bits(memory) == 64 else "uint32"
        if ring and dtype_kind(memory) == "float":
            by_precision = {"float32": "SPLIT", "tf32": "TF32", "highest": "DOUBLE"}
            by_dtype = {"float16": "HALF", "bfloat16": "BFLOAT", "float64": "DOUBLE"}
            kind = by_dtype.get(memory) or by_precision.get(precision)
            if precision == "residues":
                registers, kind = "float64", "RESIDUES"
        return Arithmetic(memory, registers, ring, kind)

    @property
    def memory_bytes(self) -> int:
        """The bytes of a number in memory."""
        return dtype_bits(self.memory) // 8

    @property
    def registers_bytes(self) -> int:
        """The bytes of a number in registers."""
        return max(4, dtype_bits(self.registers) // 8)

    @property
    def tuned_as(self) -> str:
        """The kind under which `Tuning` has the tiles of the kernel tensor."""
        return (self.kind or "").replace("BFLOAT", "HALF")

    def warp(self) -> tuple[int, int]:
        """Return m and n of a warp's tile in the kernel conflict_free, as in `OuterProduct` of kernels/matmul.cu."""
        return {4: (32, 64), 8: (32, 32), 16: (16, 32)}[self.registers_bytes]

    def warp_of_tensor(self) -> tuple[int, int]:
        """Return the most that m and n of a warp's tile can be in the kernel tensor."""
        return {"SPLIT": (32, 32), "DOUBLE": (64, 32)}.get(self.kind or "", (64, 64))

    def warps(self, tile: Tile) -> tuple[int, int]:
        """Return the number of warps along m and n of a tile of the kernel tensor."""
        high, wide = self.warp_of_tensor()
        return max(1, tile[0] // high), max(1, tile[1] // wide)


# ---- Blocks -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a batch of products: m, n and k of each, and the number of matrices.

    With ``whole``, sums are not split into parts.
    """

    lengths: Tile
    matrices: int
    whole: bool = False


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of a kernel: its tile, its threads, and the number of tiles and bytes in its shared memory.

    ``cluster`` counts the blocks of a cluster: tiles below one another, tiles side by side, and parts of their sums.
    """

    tile: Tile
    threads: int
    stages: int
    shared_bytes: int
    cluster: tuple[int, int, int] = (1, 1, 1)


@dataclasses.dataclass(frozen=True)
class Factor:
    """The memory layout of a factor of a product: lines along k, with strides in elements.

    Parameters
    ----------
    outer, along : int
        The strides from line to line, and along k.
    vector : int
        How many elements can be loaded as one vector, along k if ``along_k``, otherwise of adjacent lines.
    along_k : bool
        Whether elements adjacent along k are nearer to each other than adjacent lines.
    step : int, optional
        The distance between the matrices of a batch; None if there are several strides.
    """

    outer: int
    along: int
    vector: int
    along_k: bool
    step: int | None

    @staticmethod
    def of(
        strides: tuple[int, int], batch: tuple[int, ...], lengths: tuple[int, int], address: int, itemsize: int
    ) -> Factor:
        """Return the factor for strides and lengths (of lines, of k), strides of the batch, the address modulo 16."""
        outer, along = (0 if length == 1 else stride for stride, length in zip(strides, lengths, strict=True))
        along_k = along == 1 or (outer != 1 and abs(along) <= abs(outer))
        unit, other = (along, outer) if along_k else (outer, along)
        vector = 1
        if unit == 1:
            steps = [16, address, *(itemsize * step for step in (other, *batch))]
            vector = max(1, math.gcd(*steps) // itemsize)
        return Factor(
            outer=outer, along=along, vector=vector, along_k=along_k, step=None if len(batch) > 1 else sum(batch)
        )

    @property
    def pitch(self) -> int:
        """The distance between the lines in memory, in elements."""
        return self.outer if self.along_k else self.along

    def fits_map(self, itemsize: int) -> bool:
        """Return whether a tensor map can describe the factor."""
        if self.vector * itemsize < 16 or self.step is None:
            return False
        return 0 < self.pitch * itemsize < 2**40 and 0 <= self.step * itemsize < 2**40


@dataclasses.dataclass(frozen=True)
class Copies:
    """How groups of four warps copy the factors.

    Parameters
    ----------
    how : str
        A name of `Copying` in kernels/matmul_pipeline.cuh.
    swapped : bool
        Whether they multiply b and a and transpose the result.
    aligned : tuple of bool
        Whether all lines of the left and of the right factor begin at multiples of 128 bytes.
    needed : bool
        Whether single warps would have to load elements one by one, which takes many times as long.
    """

    how: str
    swapped: bool
    aligned: tuple[bool, bool]
    needed: bool = False


def block(kernel: str, tile: Tile, arithmetic: Arithmetic, most: int, tuned: Tuning) -> Block:
    """Return the block for a tile, with as many stages as the tuning has and ``most`` bytes of shared memory hold.

    The kernel "groups" is the kernel tensor by groups of four warps. The kernels assert that the bytes suffice.
    """
    m, n, k = tile
    size = arithmetic.memory_bytes
    if kernel == "naive":
        return Block(tile, m * n, 0, 0)
    if kernel in ("tiled", "packed"):
        return Block(tile, m * n, 1, (m + n) * k * arithmetic.registers_bytes)
    if kernel == "conflict_free":
        rows, columns = arithmetic.warp()
        return Block(tile, 32 * (m // rows) * (n // columns), 2, 2 * (m + n) * k * arithmetic.registers_bytes)

    def padded(length: int) -> int:
        """Return the bytes of a `PaddedTile`, the larger of both layouts of a factor: some rows are padded."""
        ways = ((length, k * size, 32 if size > 4 else 16), (k, length * size, 32 if size > 2 else 16))
        return max(rows * (row + pad * (row % 128 != 0)) for rows, row, pad in ways)

    if kernel == "tensor":
        threads, more, stage = 32 * math.prod(arithmetic.warps(tile)), 128, padded(m) + padded(n)
        stages = max(2, min(tuned.stages, (most - more) // stage))
    else:
        threads, more = m // 64 * 128 + 128, 1024
        left = m * k * size if size == 2 else padded(m)
        right = padded(n) if arithmetic.kind == "DOUBLE" else n * k * size
        stage = left + right * (2 if arithmetic.kind == "SPLIT" else 1)
        fits = (most - more) // stage
        stages = next((count for count in tuned.stages_of_groups if count <= fits), 3)
    return Block(tile, threads, stages, more + stages * stage)


def impossible(kernel: str, tile: Tile, arithmetic: Arithmetic, capability: int = 90) -> str | None:
    """Return the reason why no block of a kernel can have a tile, or None."""
    m, n, k = tile
    if kernel in ("naive", "tiled", "packed"):
        if m * n > 1024:
            return f"it asks for {m * n} threads of a block, which has at most 1024"
        if kernel == "naive":
            return None
    elif kernel == "conflict_free":
        rows, columns = arithmetic.warp()
        if m % rows or n % columns:
            return f"m and n must be multiples of {rows} and {columns}, the tile of a warp"
        if m // rows * (n // columns) > 16:
            return f"it asks for {m // rows * (n // columns)} warps of a block, which has registers for 16"
        if k & (k - 1):
            return "k must be a power of two"
    elif arithmetic.kind is not None:
        depth = 16 if arithmetic.kind in ("HALF", "BFLOAT") else 8
        if k < depth or k & (k - 1):
            return f"k must be a power of two, at least {depth}"
        for name, length, longest in zip("mn", tile[:2], arithmetic.warp_of_tensor(), strict=True):
            if length % 16 or (length > longest and length % longest):
                return f"{name} must be a multiple of 16, and of {longest} if it is more"
        down, across = arithmetic.warps(tile)
        most = 16 if arithmetic.kind == "SPLIT" else 8  # the warps of SPLIT have smaller tiles
        if down * across > most:
            return f"it asks for {down * across} warps of a block, which has registers for {most}"
    need = block(kernel, tile, arithmetic, most=0, tuned=_cuda.tuned(TUNING, capability)).shared_bytes
    there = _cuda.shared_bytes(capability)
    if need > there:
        return f"it asks for {need} bytes of shared memory, a block has {there}"
    return None


# ---- Choices ----------------------------------------------------------------------------------------------------


def choose_kernel(
    arithmetic: Arithmetic, k: int, kernel: str | None, tile: Tile | None, what: str, capability: int
) -> tuple[str, str | None]:
    """Return the kernel for a product of length k, and why it cannot serve, or None.

    ``kernel`` and ``tile`` are the caller's choice, if any. ``what`` names the product in messages.
    """
    if arithmetic.kind == "RESIDUES":
        if kernel not in (None, "tensor") or tile is not None:
            what = "tile" if tile is not None else f"kernel {kernel!r}"
            return "tensor", f"the kernel that multiplies by residues takes no {what}"
        if capability != 90:
            return "tensor", "the kernel that multiplies by residues needs a device of compute capability 9.0"
        return "tensor", None
    if kernel is not None:
        wanted: tuple[str, ...] = (kernel,)
    else:
        exact = arithmetic.kind != "SPLIT" or k >= _cuda.tuned(TUNING, capability).chain
        tensor = arithmetic.kind is not None and exact and capability >= 80
        wanted = ("tensor",) * tensor + ("conflict_free", "tiled")
    reason = None
    for name in wanted:
        if name == "tensor" and arithmetic.kind is None:
            return name, f"the kernel 'tensor' multiplies real floats by sum and product, got {what}"
        if name == "tensor" and capability < 80:
            return name, "the kernel 'tensor' needs a device of compute capability 8.0 or later"
        reason = impossible(name, tile, arithmetic, capability) if tile is not None else None
        if reason is None:
            return name, None
    return wanted[-1], f"tile {tile} fits no kernel: {reason}"


def tiny_tile(arithmetic: Arithmetic, lengths: Tile) -> Tile | None:
    """Return the tile of the kernel naive for matrices too small for the other kernels, or None if they are not.

    Most threads of a larger tile would have nothing to do, and no element is read often enough to be staged in shared
    memory. Batches of 100 to 100000 matrices were measured on an H200: of 16 x 16 elements naive is up to 5 times as
    fast as the others, and in float64, which tensor cores sum, up to 12 x 12.
    """
    m, n, k = lengths
    most = 12 if arithmetic.kind == "DOUBLE" else 16
    if (max(m, n) > most or k > 128) and max(min(m, n), k) > 8:
        return None
    columns = min(32, max(4, 1 << (n - 1).bit_length()))
    return min(128 // columns, max(4, 32 // columns, 1 << (m - 1).bit_length())), columns, 1


def choose_block(
    arithmetic: Arithmetic,
    kernel: str,
    tile: Tile | None,
    sizes: Sizes,
    *,
    capability: int,
    copies: Copies | None,
    one_by_one: bool = False,
) -> tuple[Block, int, bool]:
    """Return the block, the number of parts that the sum is split into, and whether groups of four warps multiply.

    ``tile`` is the tile that the caller asks for, if any. ``copies`` is None if groups cannot multiply. ``one_by_one``
    says that no vectors of a factor can be loaded.
    """
    (m, n, k), matrices = sizes.lengths, sizes.matrices
    most, tuned = _cuda.shared_bytes(capability), _cuda.tuned(TUNING, capability)
    if kernel in ("naive", "tiled", "packed"):
        own_tile = tile or (tuned.naive if kernel == "naive" else tuned.tiled)
        return block(kernel, own_tile, arithmetic, most=most, tuned=tuned), 1, False
    kind = arithmetic.tuned_as if kernel == "tensor" else ""
    choices = [("groups", tile_of_groups) for tile_of_groups in (() if copies is None else tuned.groups[kind])]
    swapped = copies is not None and copies.swapped
    clusters = tuned.clusters if copies is not None and copies.how == "AT_ONCE" else ((1, 1),)
    if tile is None:
        candidates = tuned.tensor[kind] if kernel == "tensor" else tuned.conflict_free[arithmetic.registers_bytes]
        if copies is None or not copies.needed:
            choices += [
                (kernel, candidate_tile)
                for candidate_tile in candidates
                if impossible(kernel, candidate_tile, arithmetic, capability) is None
            ]
    else:
        asked = (tile[1], tile[0], tile[2]) if swapped else tile
        choices = [choice for choice in choices if choice[1] == asked] or [(kernel, tile)]

    def tiles_of(name: str, tile: Tile, cluster: tuple[int, int] = (1, 1)) -> int:
        rows, columns = (tile[1], tile[0]) if swapped and name == "groups" else tile[:2]
        return -(-m // (rows * cluster[0])) * -(-n // (columns * cluster[1]))

    processors = tuned.multiprocessors
    least = min(
        tiles_of(name, candidate_tile) * candidate_tile[0] * candidate_tile[1] for name, candidate_tile in choices
    )
    best: tuple[float, Block, int, bool] | None = None
    for name, candidate_tile in choices:
        if tiles_of(name, candidate_tile) * candidate_tile[0] * candidate_tile[1] > 2 * least:
            continue
        candidate, deep = block(name, candidate_tile, arithmetic, most=most, tuned=tuned), -(-k // candidate_tile[2])
        threads = 512 if kernel == "conflict_free" else 256
        resident = max(1, min(most // candidate.shared_bytes, threads // candidate.threads))
        modelled = name == "groups" and kind == "HALF"
        costs = tuned.costs.get(kind, {}).get(name)
        for cluster in clusters if name == "groups" else ((1, 1),):
            size, tiles = math.prod(cluster), tiles_of(name, candidate_tile, cluster) * matrices
            if size > 1 and tiles * size >= 2 * tiles_of(name, candidate_tile) * matrices:
                continue  # blocks would have no tiles
            at_once = resident * (processors // size)
            # More parts than run at once even out the work of the multiprocessors.
            most_parts = at_once // tiles if costs is None else max(at_once // tiles, min(4, 4 * at_once // tiles))
            most_parts = 1 if sizes.whole else max(1, min(most_parts, deep // tuned.part))
            ways = [(parts, 1, at_once) for parts in range(1, most_parts + 1)]
            if modelled:
                ways += _splits_of_clusters(tuned, size, tiles, deep)
            for parts, in_cluster, at_once in ways:
                units, whole_cluster = tiles * parts, (*cluster, in_cluster)
                beside = min(resident, -(-units // processors))
                work = _Work(units=units, at_once=at_once, beside=beside, deep=deep, parts=parts)
                if copies is not None and modelled:
                    time = _time_of_groups(
                        candidate_tile, whole_cluster, work, aligned=copies.aligned, staged=n % 8 != 0
                    )
                elif costs is not None:
                    time = costs.time(candidate_tile, work, one_by_one)
                    if parts > 1:
                        once, each = tuned.parts[kind]
                        time += once + each * parts * candidate_tile[0] * candidate_tile[1]
                else:
                    time = _time(candidate_tile, work, kind)
                if best is None or time < best[0]:
                    best = time, dataclasses.replace(candidate, cluster=whole_cluster), parts, name == "groups"
    assert best is not None
    return best[1:]


def _splits_of_clusters(tuned: Tuning, size: int, tiles: int, deep: int) -> list[tuple[int, int, int]]:
    """Return (parts, parts, units at once) for each number of parts into which clusters can split sums.

    ``size`` blocks of a cluster have different tiles. Each of the ``tiles`` has a cluster, and all clusters begin at
    the same time. There are ``deep`` tiles along k.
    """
    splits = []
    for blocks, clusters in tuned.split_clusters.items():
        parts, rest = divmod(blocks, size)
        if not rest and 1 < parts <= deep and tiles <= clusters and -(-deep // -(-deep // parts)) == parts:
            splits.append((parts, parts, clusters * parts))
    return splits


@dataclasses.dataclass(frozen=True)
class _Work:
    """The work of a product, from which its time is estimated.

    Parameters
    ----------
    units : int
        The units of work: tiles of the result, times the parts of a sum.
    at_once : int
        The units that the device works on at the same time.
    beside : int
        The units that a multiprocessor works on at the same time.
    deep : int
        The tiles along k of a whole sum.
    parts : int
        The parts that a sum is split into.
    """

    units: int
    at_once: int
    beside: int
    deep: int
    parts: int

    @property
    def turns(self) -> int:
        """The number of times that the device takes ``at_once`` units."""
        return -(-self.units // self.at_once)


def _time_of_groups(
    tile: Tile, cluster: tuple[int, int, int], work: _Work, *, aligned: tuple[bool, bool], staged: bool
) -> float:
    """Return an estimate of the time of a product of 16-bit floats by groups of four warps, without constant costs.

    Results are ``staged`` in shared memory if their rows are not whole vectors.

    The numbers, in ps, fit 1400 times of 42 shapes on an H200 by bulk copies. The tile chosen by them takes 2 % longer
    than the fastest, on average. The time of a step along k has three terms: a latency; products, which a single group
    forms slower than two groups; and loads from the L2 cache, which all blocks share. Unaligned lines take more loads,
    and a block of a cluster loads only a part.
    """
    (m, n, _), (down, across, in_cluster) = tile, cluster
    blocks = min(work.units, work.at_once) * down * across
    loads = blocks * (m / across * (1.7 if aligned[0] else 4.5) + n / down * (1.7 if aligned[1] else 4.5))
    step = 57e3 + m * n * (14.6 if m > 64 else 19.5) + loads
    time = work.turns * (work.deep / work.parts * step + 154e3 + m * n * (295 if staged else 45))
    time += 206e3 * (down * across > 1)
    if in_cluster > 1:
        time += 414e3 + 186 * m * n
    elif work.parts > 1:
        time += 2700e3 + 54 * work.parts * m * n
    return float(time) / _UNIT


_UNIT = 18
"""The time of one sum for a step of 16-bit floats on an H200, in ps: the unit of estimates."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs, in us, of blocks of the kernel tensor that multiply float32 or float64.

    Parameters
    ----------
    product : float
        A sum, in a step along k.
    line : float
        A line of a factor, in such a step.
    latency : float
        The additional time of a step that no other block of the multiprocessor hides.
    block : float
        A block, besides its steps and results.
    result : float
        An element of the result.
    one_by_one : float
        The factor of the time of a step if elements of a factor are loaded one by one.
    """

    product: float
    line: float
    latency: float
    block: float
    result: float
    one_by_one: float

    def time(self, tile: Tile, work: _Work, one_by_one: bool) -> float:
        """Return the modelled time of a product, without the costs of split sums."""
        (m, n, _), deep = tile, -(-work.deep // work.parts)
        step = m * n * self.product + (m + n) * self.line
        steps = deep * max(step + self.latency, step * work.beside) * (self.one_by_one if one_by_one else 1)
        return work.turns * (steps + self.block + m * n * self.result * work.beside)


def _time(tile: Tile, work: _Work, kind: str) -> float:
    """Return an estimate of the time of a product by conflict_free, or of 16-bit floats by single warps.

    A step is a tile along k.
    Measured on an H200: a step costs a block as much as 2048 more sums, and has a latency of 8192 sums unless other
    blocks hide it. A block has an overhead of 9 steps of 16-bit floats; if the sum is split, of 4 more, and of 2 for
    every part. Single warps take twice as long as groups.
    """
    slowness = 1.0 if kind == "HALF" else tile[2] / 4
    besides = 9 + (4 + 2 * work.parts) * (work.parts > 1)
    sums = tile[0] * tile[1] + 2048
    block = 2 * max(sums + 8192, sums * work.beside) * (work.deep / work.parts * slowness + besides)
    return block * work.turns
