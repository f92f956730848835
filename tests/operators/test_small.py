"""Operators on small matrices in kernels: each function that has a translation, against the function itself."""
# ruff: noqa: ARG005

import importlib.util
import re

import array_api_compat
import numpy as np
import pytest

import parprims
from tests.support.contract import compare

EPS = 2.0**-52


def both(backend, op, arrays, bound, **options):
    """Assert that the kernel combines two elements as the operator itself does."""
    pairs = [(x[:1, ...], x[1:, ...]) for x in map(backend.asarray, arrays)]
    single = len(arrays) == 1
    given = backend.asarray(arrays[0]) if single else tuple(map(backend.asarray, arrays))
    try:
        found = parprims.scan(given, op, axis=0, method="kernel", **options)
    except parprims.MethodRefused as refusal:
        if "CUDA device" in str(refusal) or "Numba" in str(refusal):
            pytest.skip(str(refusal))
        raise
    earlier, later = ([pair[side] for pair in pairs] for side in (0, 1))
    expected = op(earlier[0], later[0]) if single else op(tuple(earlier), tuple(later))
    for one, other, first in zip(
        (found,) if single else found, (expected,) if single else expected, earlier, strict=True
    ):
        compare(backend, one[:1, ...], backend.to_numpy(first))
        other = backend.to_numpy(other)
        compare(backend, one[1:, ...], other, bound * (1 + np.max(abs(other))))


def matrices(rng, side=3):
    """Return two matrices, which are far from singular, and two vectors; the pivots are not on the diagonal."""
    x = rng.uniform(-1, 1, (2, side, side)) + 4 * np.eye(side)[::-1]
    return x, rng.uniform(-1, 1, (2, side))


# Functions of an earlier and a later matrix and of a vector, in the standard's namespace. One kernel has a group.
STANDARD = {
    "products": {
        "products": lambda xp, p, q, v: p @ q @ xp.matrix_transpose(p),
        "matmul": lambda xp, p, q, v: xp.matmul(q, p),
        "by a vector": lambda xp, p, q, v: p + (q @ v[..., None]),
        "outer": lambda xp, p, q, v: p + v[..., None] * v[..., None, :],
    },
    "reductions": {
        "sums": lambda xp, p, q, v: p * xp.sum(q, axis=-1, keepdims=True) + xp.sum(p, axis=(1, 2), keepdims=True),
        "means": lambda xp, p, q, v: p + xp.mean(q, axis=-2, keepdims=True),
        "extrema": lambda xp, p, q, v: p - xp.max(q, axis=-1, keepdims=True) * xp.min(q, axis=-2, keepdims=True),
        "products of entries": lambda xp, p, q, v: q + xp.prod(p, axis=-1, keepdims=True),
        "trace": lambda xp, p, q, v: p / xp.linalg.trace(abs(q))[:, None, None],
    },
    "systems": {
        "solve": lambda xp, p, q, v: xp.linalg.solve(p, q),
        "solve of a sum": lambda xp, p, q, v: xp.linalg.solve(p + 3 * xp.eye(3, dtype=p.dtype), q),
        "inverse": lambda xp, p, q, v: xp.linalg.inv(p) @ q,
    },
    "shapes": {
        "axes": lambda xp, p, q, v: xp.permute_dims(p, (0, 2, 1)) + xp.flip(q, axis=1),
        "shapes": lambda xp, p, q, v: xp.reshape(xp.reshape(p, (-1, 9)), (-1, 3, 3)) * xp.expand_dims(v, axis=1),
        "joined": lambda xp, p, q, v: xp.concat([p[:, 1:, :], q[:, :1, :]], axis=1),
        "stacked": lambda xp, p, q, v: xp.stack([p[:, 0, :], q[:, :, 1], v], axis=1),
        "choice": lambda xp, p, q, v: xp.where(p > q, p, 2.0 * q),
        "elementwise": lambda xp, p, q, v: xp.exp(-abs(p)) * xp.sqrt(abs(q)) / (1.0 + p * p),
    },
}


def together(check, group):
    """Check a sum of all functions of a group at once; where it is not as it must be, each function by itself."""

    def total(*arguments):
        return sum((at + 1) * function(*arguments) for at, function in enumerate(group.values()))

    try:
        check(total)
    except Exception:
        for name, function in group.items():
            print(name)
            check(function)
        raise


@pytest.mark.parametrize("name", STANDARD)
def test_of_the_standard(backend, rng, name):
    if backend.family in ("torch", "array-api-strict"):
        pytest.skip("the kernel is that of NumPy's arrays")

    def check(compute):
        def op(earlier, later):
            xp = array_api_compat.array_namespace(earlier[0])
            return compute(xp, earlier[0], later[0], later[1]), earlier[1] + later[1]

        both(backend, op, matrices(rng), 500 * EPS)

    together(check, STANDARD[name])


CONSTANT = np.array([[1.0, 2.0, 0.5], [0.0, 1.0, -1.0], [3.0, 0.0, 1.0]])
NUMPYS = {
    "einsum": {
        "einsum": lambda p, q: np.einsum("nij,njk->nik", p, q),
        "einsum with dots": lambda p, q: np.einsum("...ij,...kj->...ik", p, q),
        "einsum without result": lambda p, q: q + np.einsum("nii->n", p)[:, None, None],
        "einsum of a constant": lambda p, q: q + np.einsum("ij,njk->nik", CONSTANT, p),
    },
    "others": {
        "a constant matrix": lambda p, q: CONSTANT @ p @ CONSTANT.T + q,
        "a constant in a sum": lambda p, q: p + CONSTANT * q,
        "linalg": lambda p, q: np.linalg.solve(p, np.linalg.inv(q)),
        "moved axes": lambda p, q: np.swapaxes(p, 1, 2) + np.moveaxis(q, 2, 1) + np.squeeze(p[:, None], axis=1),
        "methods": lambda p, q: p.transpose(0, 2, 1) + q.sum(axis=1, keepdims=True) * q.mean(axis=2, keepdims=True),
        "captured number": lambda p, q: p + EPS * 2.0**40 * q,
    },
}


@pytest.mark.parametrize("name", NUMPYS)
def test_of_numpy(backend, rng, name):
    """Functions of NumPy, on arrays of NumPy."""
    if backend.family not in ("numpy", "emulated"):
        pytest.skip("needs arrays of NumPy")
    together(lambda op: both(backend, op, matrices(rng)[:1], 500 * EPS), NUMPYS[name])


def test_of_pytorch(backend, rng):
    if backend.family != "torch":
        pytest.skip("needs tensors")
    import torch

    constant = torch.as_tensor(CONSTANT, device=backend.asarray(CONSTANT).device)
    group = {
        "einsum": lambda p, q: torch.einsum("nij,njk->nik", p, q),
        "solve": lambda p, q: torch.linalg.solve(p, q).transpose(-1, -2),
        "inverse": lambda p, q: torch.linalg.inv(p) @ q + q.sum(dim=-1, keepdim=True),
        "joined": lambda p, q: torch.cat([p[:, :1], q[:, 1:]], dim=1).permute(0, 2, 1),
        "stacked": lambda p, q: torch.stack([p[:, 0], q[:, 1], torch.linalg.solve(p, q[:, 0])], dim=-1),
        "a constant matrix": lambda p, q: torch.matmul(constant, p) + q.unsqueeze(1).squeeze(1),
        "choice": lambda p, q: torch.where(p > q, p, q) + torch.amax(q, dim=-1, keepdim=True).clone(),
    }
    together(lambda op: both(backend, op, matrices(rng)[:1], 500 * EPS), group)


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs JAX")
class TestOfJax:
    """Functions of JAX become part of kernels on arrays of JAX and of NumPy."""

    @pytest.fixture
    def arrays(self, backend):
        if backend.family not in ("numpy", "jax", "emulated"):
            pytest.skip("needs arrays of NumPy or JAX")
        return backend

    def check(self, backend, op, given):
        import jax.numpy as jnp

        if backend.family == "jax":
            both(backend, op, given, 500 * EPS)
            return
        arrays = tuple(map(backend.asarray, given))
        if "Numba" in (parprims.methods(parprims.scan, arrays[0], "add", axis=0)["kernel"] or ""):
            pytest.skip("needs Numba")
        found = parprims.scan(arrays, op, axis=0, method="kernel")
        expected = op(tuple(jnp.asarray(x[:1]) for x in given), tuple(jnp.asarray(x[1:]) for x in given))
        for one, other in zip(found, map(np.asarray, expected), strict=True):
            compare(backend, one[1:], other, 500 * EPS * (1 + np.max(abs(other))))

    GROUPS = ("products", "systems", "shapes")

    @pytest.mark.parametrize("name", GROUPS)
    def test_translated(self, arrays, rng, name):
        import jax
        import jax.numpy as jnp

        jax.config.update("jax_enable_x64", True)
        scale = 0.75
        groups = {
            "products": {
                "vmap": lambda p, q, v: jax.vmap(lambda p, q, v: p @ q + jnp.outer(v, q @ v))(p, q, v),
                "einsum": lambda p, q, v: jnp.einsum("nij,njk,nl->nil", p, q, v),
                "reductions": lambda p, q, v: (
                    p * jnp.max(q, axis=-1, keepdims=True) + jnp.mean(q, (1, 2), keepdims=True)
                ),
                "constants": lambda p, q, v: jnp.asarray(CONSTANT) @ p + q @ CONSTANT + jnp.triu(p),
            },
            "systems": {
                "inverse": lambda p, q, v: jax.vmap(jnp.linalg.inv)(p) @ q,
                "solve": lambda p, q, v: jnp.linalg.solve(p, q) + jax.vmap(jnp.linalg.solve)(q, p),
                "solve of vectors": lambda p, q, v: p + jax.vmap(jnp.linalg.solve)(q, v)[:, None],
                "cholesky": lambda p, q, v: q @ jnp.linalg.cholesky(p @ p.mT + jnp.eye(3)),
            },
            "shapes": {
                "moved": lambda p, q, v: (
                    jnp.flip(p, 1).transpose(0, 2, 1) + q.reshape(-1, 9).reshape(-1, 3, 3)[:, ::-1]
                ),
                "joined": lambda p, q, v: jnp.concatenate([p[:, :2], jnp.stack([v], axis=1)], axis=1),
                "chosen": lambda p, q, v: jnp.where(p > q, jnp.tanh(p), jax.nn.relu(q)),
                "scaled": lambda p, q, v: scale * p + q / 3,
            },
        }

        def check(compute):
            def op(earlier, later):
                return compute(earlier[0], later[0], later[1]), earlier[1] + later[1]

            self.check(arrays, op, matrices(rng))

        together(check, groups[name])


# Operators without a translation, and words of the reason.
REFUSED = {
    "reversed along the axis": (lambda p, q: p[::-1] + q, "mixes elements"),
    "both ways along the axis": (lambda p, q: p + p[::-1] + q, "mixes elements"),
    "sum along the axis": (lambda p, q: p + np.sum(q, axis=0, keepdims=True), "mixes elements"),
    "mean of everything": (lambda p, q: p + q.mean(), "mixes elements"),
    "the first element": (lambda p, q: p[:1] + q, "mixes elements"),
    "a product across elements": (lambda p, q: np.einsum("nij,mij->nij", p, q), "mixes elements"),
    "another shape": (lambda p, q: (p @ q)[..., :1], "trailing axes"),
    "a branch": (lambda p, q: p if (p > q).all() else q, "no attribute 'all'|branches"),
    "another dtype": (lambda p, q: p > q, "turns float64 into bool"),
    "an array of another dtype": (lambda p, q: p @ q + np.eye(3, dtype=np.float32), "array of float32"),
    "an unknown function": (lambda p, q: np.linalg.pinv(p) @ q, "pinv"),
    "no array": (lambda p, q: np.eye(3), "does not depend"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(backend, name):
    if backend.family not in ("numpy", "emulated"):
        pytest.skip("needs arrays of NumPy")
    op, words = REFUSED[name]
    x = backend.asarray(np.ones((4, 3, 3)))
    reason = parprims._dispatch.dispatch.reasons(parprims.scan, x, op, axis=0, named=True)["kernel"]
    assert reason is not None
    if "there is no kernel" not in reason and "Numba" not in reason:
        assert re.search(words, reason), reason


def test_long_operators(backend):
    """`auto` passes over kernels that take long to compile."""
    product = {side: backend.asarray(np.zeros((4096, side, side))) for side in (2, 5, 7)}
    for side, x in product.items():
        found = parprims.methods(parprims.scan, x, lambda p, q: p @ q, axis=0)["kernel"] or ""
        if "CUDA" in found or "Numba" in found or "arrays, and a kernel" in found:
            continue
        assert (side > 5) == (f"an operator of {2 * side**3 - side**2} operations on numbers" in found)


def test_too_large(backend):
    x = backend.asarray(np.zeros((4, 16, 16))), backend.asarray(np.zeros((4, 16)))

    def op(p, q):
        return p[0] @ q[0], p[1] + q[1]

    reason = parprims.methods(parprims.scan, x, op, axis=0)["kernel"]
    assert (
        "an element has 272 numbers, and a kernel takes 128 at most" in reason or "CUDA" in reason or "Numba" in reason
    )
    assert parprims.methods(parprims.scan, x, op, axis=0)["array"] is None


def test_numbers_of_kernels(backend):
    """A captured number is a parameter of the kernel: the results of every value are right."""
    x = backend.asarray(np.arange(16.0).reshape(4, 2, 2))
    if parprims.methods(parprims.scan, x, lambda p, q: p @ q, axis=0)["kernel"] is not None and backend.family not in (
        "numpy",
        "emulated",
    ):
        pytest.skip("needs a kernel")
    for k in (0.5, 0.25, 0.5):

        def op(p, q, k=k):
            return k * (p @ q)

        both(backend, op, [np.arange(8.0).reshape(2, 2, 2)], 8 * EPS)
