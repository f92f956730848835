"""Matrix products: operations per second, beside the machine's own product of the dtype.

The ladder is here too: a case that names a kernel times it by method kernel, and by native the library's own routine.
It runs with CuPy's arrays alone, for the kernels are the same for all libraries, and with NumPy's, which are refused.
"""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale, library
from benches.core.one_thread import on_one_thread
from benches.core.problems import cores, drawn
from benches.peers import by_numba

ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}


def product(a, b, precision="float32", spread=2):
    """Return the problem of multiplying two matrices, whose reference is their product in float64.

    Sums of k products may have errors of spread sqrt(k) roundings, beyond what the dtype and the precision cost.
    """
    name = a.dtype.name
    if a.dtype.kind in "iu":
        return Problem((a, b), a.astype(np.int64) @ b.astype(np.int64))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    size = abs(a).astype(np.float32) @ abs(b).astype(np.float32)
    # Sums of k products are formed in float32 at least: their errors grow like sqrt(k), the result is rounded once.
    working = max(ROUNDING["float64"], min(ROUNDING["float32"], ROUNDING[name]))
    if precision == "highest":
        working = ROUNDING["float64"]
    allowed = spread * np.sqrt(a.shape[-1]) * working * size + 2 * ROUNDING[name] * abs(exact)
    if precision == "tf32":
        # Dropping all but 10 fraction bits of both factors changes a product by at most 2^-9 of it. For factors of
        # random signs such changes are independent of mean 0: by Hoeffding's inequality their sum is beyond 10 times
        # the root of the sum of their squares with probability 2 exp(-50), for each of the at most 2^26 elements.
        allowed += 10 * 2.0**-9 * np.sqrt(np.square(a) @ np.square(b))
    return Problem((a, b), exact.astype(a.dtype), allowed)


def a_problem(_, n):
    return _a_problem(n)


@functools.lru_cache(maxsize=1)  # that of all rungs of the ladder
def _a_problem(n):
    i, j = np.arange(n, dtype=np.float64)[:, None], np.arange(n, dtype=np.float64)
    a = (i - 0.1 * j + 1) / (i + j + 1)
    b = (j - 0.2 * i + 1) * (i + j + 1) / (i * i + j * j + 1)
    # Smooth numbers, mostly of one sign, whose roundings are less independent than those of random ones: plain chains
    # of 4096 reach 2.6 sqrt(k), and cuBLAS goes beyond 2. Independent ones would be beyond 10 sqrt(k) with probability
    # 2 exp(-50) (N. J. Higham and T. Mary, A New Approach to Probabilistic Rounding Error Analysis, SISC 41(5), 2019).
    return product(a.astype(np.float32), b.astype(np.float32), spread=10)


def random_problem(_, shape, dtype, precision="float32"):
    return _random_problem(shape, dtype, precision)


@functools.lru_cache(maxsize=1)  # the cases of a size and dtype follow each other
def _random_problem(shape, dtype, precision):
    *batch, m, k, n = shape
    rng, shapes = np.random.default_rng(shape), ((*batch, m, k), (*batch, k, n))
    if dtype.startswith("int"):
        return product(*(rng.integers(-9, 10, one, dtype=dtype) for one in shapes))
    if dtype == "bfloat16":
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    return product(*(normals(rng, one, dtype) for one in shapes), precision)


def normals(rng, shape, dtype):
    return drawn(rng, shape, dtype, lambda own, length: own.standard_normal(length, np.float32).astype(dtype))


def shortest_problem(rng, n):
    """Return the problem of prolonging shortest paths, c[i, j] = min over k of a[i, k] + b[k, j].

    Every sum is rounded once and minima are exact, so that the answer is exact in any order.
    """
    a, b = (drawn(rng, (n, n), np.float32, lambda own, length: own.random(length, np.float32)) for _ in range(2))
    c = np.full((n, n), np.inf, np.float32)
    height = max(1, 2**18 // n)  # what a core computes at once stays in its cache

    def fill(start):
        rows, sums = c[start : start + height], np.empty((min(height, n - start), n), np.float32)
        for x, y in zip(a[start : start + height].T, b, strict=True):
            np.minimum(rows, np.add(x[:, None], y, out=sums), out=rows)

    list(cores().map(fill, range(0, n, height)))
    return Problem((a, b), c)


RUNGS = {
    "packed": "packed",
    "tiled": "tiled",
    "without bank conflicts": "conflict_free",
    "tensor cores": "tensor",
}
"""The kernels of the ladder to the fast product of float64, by what a reader calls them."""

PEERS = {
    **library(lambda xp, a, b: xp.matmul(a, b), jax=lambda jnp, a, b: jnp.matmul(a, b, precision="highest")),
    "cublas": lambda cupy, a, b: cupy.dot(a, b),
}


def torch_tf32(torch, a, b):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return torch.matmul(a, b)
    finally:
        torch.set_float32_matmul_precision(before)


def cublas_tf32(cupy, a, b):
    from cupy._core import _routines_linalg as routines

    before = routines.get_compute_type(a.dtype)
    routines.set_compute_type(a.dtype, routines.COMPUTE_TYPE_TF32)
    try:
        return cupy.matmul(a, b)
    finally:
        routines.set_compute_type(a.dtype, before)


TF32_PEERS = {
    "torch": torch_tf32,
    "jax": lambda jnp, a, b: jnp.matmul(a, b, precision="tensorfloat32"),
    "cublas": cublas_tf32,
}


def in_float64(call):
    """Return a peer that multiplies in float64 and returns float32."""

    def wide(xp, a, b):
        if xp.__name__ == "torch":
            return call(xp, a.double(), b.double()).float()
        return call(xp, a.astype("float64"), b.astype("float64")).astype("float32")

    return wide


WIDE_PEERS = {name: in_float64(call) for name, call in PEERS.items()}

# XLA makes one loop of this, without the n^3 sums in memory.
SHORTEST_PEERS = {
    "jax": lambda jnp, a, b: jnp.min(a[:, :, None] + b, axis=1),
    "numba": lambda _, a, b: by_numba.shortest(a, b),
}


def multiply(a, b, *, method, kernel=None, tile=None, **options):
    """Multiply, by method kernel with the kernel and the tile named; the other methods have none."""
    if method == "kernel" and kernel is not None:
        options.update(kernel=kernel, tile=tile)
    return parprims.matmul(a, b, method=method, **options)


def viewed(call, turned):
    """Return a peer, or our function, that is given the factors named by ``turned`` as rows and reads their columns."""

    def run(*arguments, **options):
        *library, a, b = arguments
        return call(*library, a.mT if "a" in turned else a, b.mT if "b" in turned else b, **options)

    return run


def stored_problem(_, shape, turned):
    """Return the problem of multiplying factors of bfloat16, the memory of some of which holds their columns."""
    found = _random_problem(shape, "bfloat16", "float32")
    a, b = (
        np.ascontiguousarray(x.swapaxes(-1, -2)) if name in turned else x
        for name, x in zip("ab", found.inputs, strict=True)
    )
    return Problem((a, b), found.expected, found.allowed)


ANY_SHAPES = (
    (1000, 1000, 1000),
    (3000, 5000, 2000),
    (2504, 2504, 2504),
    (3072, 3072, 3072),
    (1088, 2224, 7024),
    (752, 1120, 14696),
    (264, 2728, 5592),
    (432, 2840, 1696),
    (128, 2456, 13656),
    (600, 13712, 112),
    (2088, 184, 2168),
    (2047, 2048, 2049),
    (4095, 4095, 4095),
    (1333, 4126, 381),
    (687, 8093, 1168),
    (2016, 211, 15411),
)
"""Rows, length summed over and columns of products that are random in size."""


BATCHES = (
    (10000, 4, 4, 4, "float32"),
    (100000, 3, 3, 3, "float64"),
    (10000, 16, 16, 16, "float32"),
    (10000, 8, 8, 8, "float16"),
    (100, 6, 6, 6, "float64"),
    (1000, 32, 32, 32, "float32"),
    (10000, 5, 5, 5, "int32"),
    (1, 1000000, 4, 4, "float32"),
)
"""A number of matrices, their rows, the length summed over, their columns, and the dtype."""


def more_shapes(count):
    """Return so many more, with a batch and the factors whose columns are contiguous: (batch, m, k, n, turned).

    Lengths are drawn so that their logarithms are uniform, from 64 to 16384. In a third of the products all of them are
    odd, in the others multiples of 8. One product of five has few rows or columns, and one is a batch.
    """
    rng, found = np.random.default_rng(60), []
    while len(found) < count:
        at = len(found)
        batch, most = (int(rng.integers(2, 17)), 2048) if at % 5 == 4 else (1, 16384)
        drawn_lengths = np.exp(rng.uniform(np.log(64), np.log(most), 3)).astype(int)
        lengths = [int(one) | 1 if at % 3 == 0 else int(one) // 8 * 8 for one in drawn_lengths]
        if at % 5 == 3:
            lengths[2 * int(rng.integers(2))] = int(rng.integers(1, 64))
        m, k, n = lengths
        if batch * m * k * n <= 2**37 and batch * max(m * k, k * n, m * n) <= 2**26:
            found.append((batch, m, k, n, ("", "a", "b", "ab")[at % 4]))
    return found


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    largest = scale.pick(275, 512, 1024)
    found = []

    def add(
        name, make, shape, peers=PEERS, *, unit="FLOP/s", ceiling=None, libraries=None, whole_call=False, **options
    ):
        m, k, n = shape
        array = ""
        if k > largest:
            array = "it would take too long"
        elif "kernel" in options:
            array = "it has no kernels"
        elif "precision" in options:
            array = "it is timed with the default precision"
        skip = {"array": array} if array else {}
        if scale.gpu and k == 512:
            skip.setdefault("jax-cuda array", "XLA takes long to compile it, and it is timed at 1024")
        found.append(
            Case(
                "matmul",
                name,
                make,
                functools.partial(multiply, **options),
                peers,
                unit,
                None if unit == "B/s" else 2 * m * k * n,
                ceiling,
                whole_call,
                skip=skip,
                **({"libraries": libraries} if libraries else {}),
            )
        )

    def random(family, dtype, n, peers=PEERS, *, ceiling=None, **options):
        precision = options.get("precision", "float32")
        make = functools.partial(random_problem, shape=(n, n, n), dtype=dtype, precision=precision)
        top = ceiling or (f"matmul {dtype}" if dtype in ROUNDING else None)
        add(f"{family}, {n}", make, (n, n, n), peers, ceiling=top, **options)

    for n in scale.pick((64,), (64, 128), (64, 128, 256, 512)):
        random("call", "float32", n, whole_call=True)
    whole_products = {name: call for name, call in PEERS.items() if name in ("numpy", "jax")}
    whole_products["numba"] = lambda _, a, b: by_numba.product(a, b)
    sizes = scale.pick((256,), (512, 2048), (512, 1024, 2048, 4096, 8192))
    for n in (*sizes, *scale.pick((), (), (1000, 1536))):
        random("square", "float32", n)
        if n <= scale.pick(256, 512, 8192):
            if n in sizes:
                random("without bank conflicts", "float32", n, kernel="conflict_free")
            random("tf32", "float32", n, TF32_PEERS, precision="tf32")
            random("highest", "float32", n, WIDE_PEERS, ceiling="matmul float64", precision="highest")
    for n in scale.pick((128,), (256, 1024), sizes):
        random("square", "float64", n)
    if scale.gpu:
        for dtype in ("float16", "bfloat16"):
            for n in scale.pick((512,), (), sizes):
                random("square", dtype, n)
        for dtype in ("float32", "float64"):
            for n in scale.pick((512,), (), (2048, 4096, 8192)):
                random("residues", dtype, n, precision="residues")
        shape = (16, *scale.pick((512, 512), (), (8192, 8192)))
        make = functools.partial(random_problem, shape=shape, dtype="bfloat16")
        add(f"skinny, {shape[0]} x {shape[1]}", make, shape, unit="B/s", ceiling="read")
        # Shapes that no tile divides: rows that are multiples of 16 bytes and not of 128, rows of odd lengths, few
        # rows, few products along k.
        for shape in scale.pick(((72, 65, 56),), (), ANY_SHAPES):
            m, k, n = shape
            make = functools.partial(random_problem, shape=shape, dtype="bfloat16")
            add(f"any shape, {m} x {k} x {n}", make, shape, ceiling="matmul bfloat16")
        for batch, m, k, n, turned in more_shapes(scale.pick(4, 0, 44)):
            shape = (m, k, n) if batch == 1 else (batch, m, k, n)
            name = f"any shape, {' x '.join(map(str, shape))}"
            name += f" (columns of {' and '.join(turned)})" * bool(turned)
            found.append(
                Case(
                    "matmul",
                    name,
                    functools.partial(stored_problem, shape=shape, turned=turned),
                    viewed(multiply, turned),
                    {one: viewed(call, turned) for one, call in PEERS.items()},
                    "FLOP/s",
                    2 * batch * m * k * n,
                    "matmul bfloat16",
                    skip={"array": "it is timed at other shapes"},
                )
            )
        # Many small matrices, and rows of a few numbers by a small matrix.
        for batch, m, k, n, dtype in BATCHES[scale.pick(slice(4, 5), slice(0), slice(None))]:
            shape = (*((batch,) * (batch > 1)), m, k, n)
            peers = whole_products if dtype == "int32" else {**PEERS}
            peers.pop("cublas", None)  # for batches `dot` is another product
            found.append(
                Case(
                    "matmul",
                    f"batch, {' x '.join(map(str, shape))}",
                    functools.partial(random_problem, shape=shape, dtype=dtype),
                    multiply,
                    peers,
                    "B/s",
                    None,
                    "read",
                    skip={"array": "it is timed at other shapes"},
                )
            )
    random("odd size", "float32", 275)
    for n in scale.pick((64,), (256,), (512, 1024)):
        random("square", "int32", n, whole_products)
    if not scale.gpu:
        random("square", "int64", scale.pick(64, 512, 0), whole_products)
        found.append(on_one_thread(found[-1]))

    # The rate counts a sum and a minimum as two operations.
    for n in scale.pick((64,), (256,), (1024, 4096)):
        make = functools.partial(shortest_problem, n=n)
        shortest = {"add": "minimum", "multiply": "add"}
        add(f"minimum of sums, {n}", make, (n, n, n), SHORTEST_PEERS, unit="op/s", **shortest)
    if not scale.gpu:
        found.append(on_one_thread(found[-1]))

    # The ladder: what others climbed (see examples/gemm_ladder.py), beside the library's own routine.
    own = {"peers": {"cublas": PEERS["cublas"]}, "libraries": ("numpy", "cupy")}
    for n in scale.pick((64,), (256, 512), (512, 4096)):
        add(f"smooth numbers, {n}", functools.partial(a_problem, n=n), (n, n, n), ceiling="matmul float32")
    for kernel in ("naive", "tiled"):
        for width in (4, 8, 16, 32):
            make = functools.partial(a_problem, n=n)
            rung = {"kernel": kernel, "tile": width}
            add(f"{kernel} by hand in tiles of {width}, {n}", make, (n, n, n), ceiling="matmul float32", **own, **rung)
    for n in scale.pick((64,), (256,), (4096, 8192)):
        for name, kernel in RUNGS.items():
            random(f"{name} by hand", "float64", n, kernel=kernel, **own)
    for n in scale.pick((64,), (256,), sizes):
        for threads in (32, 64, 128, 256, 512):
            random(
                f"naive by hand with {threads} threads",
                "float32",
                n,
                kernel="naive",
                tile=(threads // 32, 32, 1),
                **own,
            )
    return found
