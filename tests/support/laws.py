"""What the tests of the bits of scans and of reductions share."""

import pytest


def mixed(earlier, later):
    """An operator that rounds, and that the library cannot know."""
    return earlier + later + 0.125 * earlier * later


def affine(earlier, later):
    (a, b), (c, d) = earlier, later
    return a * c, b * c + d


def require_kernels_for_cpus(backend):
    """Skip a test if no kernel for CPUs takes the library's arrays."""
    pytest.importorskip("numba")
    if backend.cuda or backend.name == "array-api-strict":
        pytest.skip("is of kernels for CPUs")


def by_kernel(backend):
    """Return the method that takes a library's kernels and their canonical grouping, or skip the test."""
    if backend.cuda:
        return "canonical"
    require_kernels_for_cpus(backend)
    return "kernel"


def require_bits(backend, method, op, dtype):
    """Skip a test of bits by method array if the library rounds the operator in a way of its own."""
    if method != "array":
        return
    if dtype.startswith("complex") and op != "add":
        pytest.skip("the library may round products of complex numbers once")
    if backend.name.startswith("jax") and op not in ("add", "multiply"):
        pytest.skip("XLA may round a b + c once")
    if backend.name.startswith("torch") and op == "logaddexp":
        pytest.skip("PyTorch's exponentials depend on the place of an element in memory")
