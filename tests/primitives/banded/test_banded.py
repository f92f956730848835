"""Systems with narrow bands against dense matrices: residuals against the rounding of the coefficients."""

import os

import numpy as np
import pytest

import parprims
from tests.fuzz import values
from tests.support.contract import check_derivatives, eps, numpy_dtype, random
from tests.trust.recorder import errors

METHODS = ("kernel", "native", "array")


def dense(widths, ab, periodic=False):
    """Return the matrix of diagonals, (l + u + 1, n), entry by entry."""
    (below, above), n = widths, ab.shape[-1]
    matrix = np.zeros((n, n), ab.dtype)
    for j in range(n):
        for d in range(below + above + 1):
            i = j + d - above
            if 0 <= i < n or periodic:
                matrix[i % n, j] += ab[d, j]
    return matrix


def dense_blocks(lower, diag, upper, periodic=False):
    n, k = diag.shape[0], diag.shape[-1]
    matrix = np.zeros((n, k, n, k), diag.dtype)
    for i in range(n):
        matrix[i, :, i] += diag[i]
        if i > 0 or periodic:
            matrix[i, :, i - 1] += lower[i]
        if i < n - 1 or periodic:
            matrix[i, :, (i + 1) % n] += upper[i]
    return matrix.reshape(n * k, n * k)


def backward_error(matrix, x, b):
    """Return the largest residual over |A| |x| + |b| of each system, in higher precision."""
    matrix, x, b = (one.astype(np.clongdouble if one.dtype.kind == "c" else np.longdouble) for one in (matrix, x, b))
    size = abs(matrix).max(axis=-1).max() * matrix.shape[0] * abs(x).max() + abs(b).max()
    return float(abs(matrix @ x - b).max() / size) if size else 0.0


def check(backend, run, method, function, arguments, options, found_of, n, d, dtype):
    """Solve, and hold every system's backward error against the bound."""
    found = run(function, *arguments, method=method, **options)
    x = backend.to_numpy(found)
    working = "float32" if dtype in ("float16", "bfloat16") else dtype
    bound = 64 * max(1, d) * (np.log2(max(2, n)) + 1) * eps(working) + (eps(dtype) if working != dtype else 0)
    error = max((backward_error(*one) for one in found_of(x.astype(np.result_type(x.dtype, np.float32)))), default=0.0)
    errors.note(backend, found, dtype, error, bound)
    assert x.dtype.name == dtype
    assert error <= bound
    return x


FAMILIES = ("random", "dominant", "small diagonal", "scaled rows")


def drawn(rng, shape, dtype, family, main):
    """Return coefficients of a family of systems; ``main`` is the index of the diagonal."""
    ab = random(rng, shape, dtype)
    if family == "dominant":
        ab[main] = ab[main] + np.asarray(8, ab.dtype)
    elif family == "small diagonal":
        ab[main] = ab[main] * np.asarray(1e-3, ab.dtype)
    elif family == "scaled rows":
        ab = ab * (10.0 ** rng.integers(-6, 6, shape[-1])).astype(ab.real.dtype)
    return ab


class TestBanded:
    methods = METHODS

    @pytest.mark.parametrize("widths", [(1, 1), (2, 2), (1, 2), (3, 1), (0, 0), (0, 1)])
    def test_shapes(self, backend, run, method, rng, widths):
        d = sum(widths)
        if backend.name == "jax" and widths not in ((2, 2), (0, 1)):
            pytest.skip("much to compile")
        for n in (1, 9) if backend.name == "jax" else (1, 2, 3, 4, 5, 7, 8, 9, 33, 200):
            for periodic in (False, True):
                if periodic and n <= d:
                    continue
                ab = drawn(rng, (d + 1, n), "float64", "dominant", widths[1])
                b = random(rng, (n,), "float64")
                arguments = widths, backend.asarray(ab), backend.asarray(b)
                matrix = dense(widths, ab, periodic)
                x = check(
                    backend, run, method, parprims.solve_banded, arguments, {"periodic": periodic},
                    lambda x, matrix=matrix, b=b: [(matrix, x, b)], n, d, "float64",
                )  # fmt: skip
                np.testing.assert_allclose(x, np.linalg.solve(matrix, b), rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_families(self, backend, run, method, rng, family):
        """Systems that need rows to be exchanged, and some whose rows differ by orders of magnitude."""
        if backend.name == "jax" and family != "small diagonal":
            pytest.skip("much to compile")
        for n in (21,) if backend.name == "jax" else (50, 333):
            ab, b = drawn(rng, (5, n), "float64", family, 2), random(rng, (n,), "float64")
            arguments = (2, 2), backend.asarray(ab), backend.asarray(b)
            matrix = dense((2, 2), ab)
            check(
                backend, run, method, parprims.solve_banded, arguments, {}, lambda x, m=matrix, b=b: [(m, x, b)], n, 4,
                "float64",
            )  # fmt: skip

    @pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "complex128"])
    def test_dtypes(self, backend, run, method, rng, dtype):
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        ab = drawn(rng, (4, 30), dtype, "dominant", 2).astype(numpy_dtype(dtype))
        b = random(rng, (30, 3), dtype)
        arguments = (1, 2), backend.asarray(ab[None]), backend.asarray(b[None])
        matrix = dense((1, 2), ab)
        check(backend, run, method, parprims.solve_banded, arguments, {}, lambda x: [(matrix, x[0], b)], 30, 3, dtype)

    def test_batches(self, backend, run, method, rng):
        ab, b = random(rng, (3, 1, 3, 20), "float64"), random(rng, (2, 20), "float64")
        ab[:, :, 1] += 5
        arguments = (1, 1), backend.asarray(ab), backend.asarray(np.broadcast_to(b, (3, 2, 20)).copy())

        def systems(x):
            assert x.shape == (3, 2, 20)
            return [(dense((1, 1), ab[i, 0]), x[i, j], b[j]) for i in range(3) for j in range(2)]

        check(backend, run, method, parprims.solve_banded, arguments, {}, systems, 20, 2, "float64")

    def test_what_is_not_read(self, backend, run, method, rng):
        ab, b = random(rng, (3, 20), "float64"), random(rng, (20,), "float64")
        ab[1] += 5
        found = []
        for odd in (0.0, np.nan):
            ab[0, 0] = ab[2, -1] = odd
            arguments = (1, 1), backend.asarray(ab), backend.asarray(b)
            found.append(backend.to_numpy(run(parprims.solve_banded, *arguments, method=method)))
        np.testing.assert_array_equal(*found)

    def test_nothing(self, backend, run, method):
        for n, shape in ((0, (0,)), (3, (3, 0))):
            ab, b = backend.asarray(np.ones((3, n))), backend.asarray(np.ones(shape))
            assert run(parprims.solve_banded, (1, 1), ab, b, method=method).shape == shape

    def test_derivatives(self, backend, run, method, rng):
        ab, b = random(rng, (3, 5), "float64"), random(rng, (5,), "float64")
        ab[1] += 4

        def solved(ab, b):
            return run(parprims.solve_banded, (1, 1), ab, b, method=method)

        check_derivatives(backend, solved, (ab, b), order=2, atol=1e-4, rtol=1e-4)


class TestBlocks:
    methods = METHODS

    @pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 33, 100])
    @pytest.mark.parametrize("k", [1, 2, 3])
    def test_shapes(self, backend, run, method, rng, k, n):
        """On JAX's CPUs of one length: each takes seconds to compile."""
        if backend.name == "jax" and n != 3:
            pytest.skip("much to compile")
        for periodic in (False, True):
            if periodic and n <= 2:
                continue
            lower, diag, upper = (random(rng, (n, k, k), "float64") for _ in range(3))
            b = random(rng, (n, k), "float64")
            arguments = [backend.asarray(one) for one in (lower, diag, upper, b)]
            matrix = dense_blocks(lower, diag, upper, periodic)
            check(
                backend, run, method, parprims.solve_block_tridiagonal, arguments, {"periodic": periodic},
                lambda x, m=matrix, b=b: [(m, x.reshape(-1), b.reshape(-1))], n, 2 * k, "float64",
            )  # fmt: skip

    def test_batches(self, backend, run, method, rng):
        lower, diag, upper = (random(rng, shape, "float32") for shape in ((5, 2, 2), (4, 5, 2, 2), (1, 5, 2, 2)))
        diag = diag + 5 * np.eye(2, dtype=np.float32)
        b = random(rng, (4, 5, 2, 3), "float32")
        arguments = [backend.asarray(one) for one in (lower, diag, upper, b)]

        def systems(x):
            matrices = [dense_blocks(lower, diag[i], upper[0]) for i in range(4)]
            return [(matrices[i], x[i].reshape(10, 3), b[i].reshape(10, 3)) for i in range(4)]

        check(backend, run, method, parprims.solve_block_tridiagonal, arguments, {}, systems, 5, 4, "float32")

    def test_derivatives(self, backend, run, method, rng):
        lower, diag, upper = (random(rng, (3, 2, 2), "float64") for _ in range(3))
        inputs = lower, diag + 5 * np.eye(2), upper, random(rng, (3, 2), "float64")

        def solved(*arrays):
            return run(parprims.solve_block_tridiagonal, *arrays, method=method)

        check_derivatives(backend, solved, inputs, order=2, atol=1e-4, rtol=1e-4)


@pytest.mark.once
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_number_of_threads_changes_no_bits(rng, threads, monkeypatch):
    pytest.importorskip("numba")
    ab, b = random(rng, (9, 5, 3000), "float64"), random(rng, (9, 3000), "float64")
    expected = np.stack([parprims.solve_banded((2, 2), *pair, method="kernel") for pair in zip(ab, b, strict=True)])
    monkeypatch.setitem(os.environ, "PARPRIMS_NUM_THREADS", str(threads))
    assert parprims.solve_banded((2, 2), ab, b, method="kernel").tobytes() == expected.tobytes()


def test_singular(backend):
    """Nothing is raised, and nothing looks like a solution."""
    ab = backend.asarray(np.zeros((3, 5)))
    for method in ("auto", "array"):
        found = backend.to_numpy(parprims.solve_banded((1, 1), ab, backend.asarray(np.ones(5)), method=method))
        assert not np.isfinite(found).all()


def test_transformed(rng):
    jax = pytest.importorskip("jax")
    ab, b = random(rng, (4, 3, 12), "float64"), random(rng, (4, 12), "float64")
    ab[:, 1] += 5
    with jax.enable_x64(True):
        found = jax.jit(jax.vmap(lambda ab, b: parprims.solve_banded((1, 1), ab, b)))(ab, b)
    np.testing.assert_allclose(np.asarray(found), parprims.solve_banded((1, 1), ab, b, method="array"), atol=1e-13)


def test_torch_compile(rng):
    torch = pytest.importorskip("torch")
    ab, b = random(rng, (3, 12), "float64"), random(rng, (12,), "float64")
    ab[1] += 5
    blocks = torch.eye(2, dtype=torch.float64).expand(3, 2, 2)

    def loss(ab, b):
        x = parprims.solve_banded((1, 1), ab, b)
        return (x * x).sum() + parprims.solve_block_tridiagonal(blocks, 4 * blocks, blocks, b[:6].reshape(3, 2)).sum()

    results = []
    for function in (torch.compile(loss, fullgraph=True, backend="aot_eager"), loss):
        leaves = [torch.from_numpy(one).requires_grad_() for one in (ab, b)]
        function(*leaves).backward()
        results.append([one.grad for one in leaves])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_arguments_named(backend):
    ab, b = backend.asarray(np.ones((3, 5))), backend.asarray(np.ones(5))
    blocks, rows = backend.asarray(np.ones((4, 2, 2))), backend.asarray(np.ones((4, 2)))
    banded, block = parprims.solve_banded, parprims.solve_block_tridiagonal
    for call, error, words in (
        (lambda: banded((1,), ab, b), TypeError, "l_and_u must be a pair of integers"),
        (lambda: banded((1, 1.0), ab, b), TypeError, r"l_and_u\[1\] must be an integer, got 1.0"),
        (lambda: banded((-1, 3), ab, b), ValueError, r"l_and_u\[0\] must be from 0 to 32, got -1"),
        (lambda: banded((20, 20), ab, b), ValueError, "l_and_u must have a sum of at most 32"),
        (
            lambda: block(blocks[1:, :, :], blocks, blocks, rows),
            ValueError,
            r"lower must .*: lower\[0\] is not read",
        ),
        (
            lambda: block(blocks, blocks, blocks[1:, :, :], rows),
            ValueError,
            r"upper must .*: upper\[n-1\] is not read",
        ),
        (lambda: banded((1, 2), ab, b), ValueError, r"ab must have shape \(..., 4, n\)"),
        (lambda: banded((1, 1), ab, b[:4]), ValueError, r"b must have shape \(5,\), or one axis more"),
        (lambda: banded((1, 1), ab[:, :2], b[:2], periodic=True), ValueError, "ab must have more than 2 columns"),
        (lambda: banded((1, 1), ab > 0, b), TypeError, "ab must have a floating or complex dtype"),
        (lambda: banded((1, 1), ab, b, periodic=1), TypeError, "periodic must be True or False"),
        (lambda: block(ab, blocks, blocks, rows), ValueError, r"lower must have shape \(..., n, k, k\)"),
        (
            lambda: block(blocks, blocks, blocks[:3, :, :], rows),
            ValueError,
            "upper must have the blocks of diag, in number and shape",
        ),
        (lambda: block(blocks, blocks, blocks, b), ValueError, r"rhs must have shape \(4, 2\), or one axis more"),
        (lambda: block(*(blocks[:2, :, :],) * 3, rows[:2, :], periodic=True), ValueError, "diag must have more than 2"),
    ):
        with pytest.raises(error, match=f"^{words}"):
            call()


# ---- What the fuzz makes of it (tests/fuzz finds these by their names) ----------------------------------------

WRONG_OPTIONS: dict = {}


def draw(d, name):
    """Return a valid call, whose residual is held against the rounding of the coefficients."""
    dtype = d.dtype("float32", "float64", "complex128")
    n = int(d.rng.integers(1, 12)) if not d.few else 5
    if name == "solve_banded":
        widths = (1, 1) if d.few else d.one(((1, 1), (0, 2), (2, 1), (0, 0)))
        ab = d.values((sum(widths) + 1, n), dtype, tame=True)
        ab[widths[1]] += np.asarray(6, ab.dtype)
        given, ab = d.array(ab)
        matrix, shape, args, width = dense(widths, ab), (n,), [widths, given], sum(widths)
    else:
        k = int(d.rng.integers(1, 4)) if not d.few else 2
        blocks = [d.values((n, k, k), dtype, tame=True) for _ in range(3)]
        blocks[1] = blocks[1] + np.asarray(9, blocks[1].dtype) * np.eye(k, dtype=blocks[1].dtype)
        pairs = [d.array(one) for one in blocks]
        args, shape, width = [one for one, _ in pairs], (n, k), 2 * k
        matrix = dense_blocks(*(one for _, one in pairs))
    array, b = d.array(d.values(shape, dtype, tame=True))
    bound = 64 * max(1, width) * 5 * values.eps(dtype)

    def check_residual(got):
        x = d.backend.to_numpy(got)
        if x.shape != shape or x.dtype.name != dtype:
            return f"result is {x.dtype}{x.shape}"
        error = backward_error(matrix, x.reshape(-1), b.reshape(-1))
        return None if error <= bound or np.linalg.cond(matrix) > 1e6 else f"backward error {error}"

    return values.Call(name, [*args, array], {}, check_residual)
