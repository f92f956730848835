"""Tridiagonal solves under the transformations of JAX and PyTorch, and their derivatives."""

import functools
from typing import Any

import numpy as np
import pytest

import parprims
from parprims import solve_tridiagonal
from parprims._primitives.tridiagonal import native as tridiagonal_native
from tests.primitives.tridiagonal.test_tridiagonal import dominant


@pytest.fixture
def jax():
    """JAX, in double precision."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


@pytest.mark.parametrize("pivot", ["none", "partial"])
def test_steps_are_those_of_a_loop(jax, pivot):
    """The program does not grow with n: its loops take more steps."""

    def operations(n: int) -> int:
        x = np.ones(n)
        traced = jax.make_jaxpr(lambda *a: solve_tridiagonal(*a, method="array", pivot=pivot))
        program = traced(*(jax.numpy.asarray(x),) * 4).jaxpr
        while (last := program.eqns[-1]).primitive.name != "custom_linear_solve":
            program = last.params["jaxpr"].jaxpr
        program = last.params["jaxprs"].solve.jaxpr
        while len(program.eqns) == 1:  # a program in it
            program = program.eqns[0].params["jaxpr"].jaxpr
        return len(program.eqns)

    counts = [operations(n) for n in (5, 8, 9, 16, 17, 33, 512, 513, 1024, 1025)]
    assert max(counts) - min(counts) <= 20  # an odd number takes some more


@pytest.mark.parametrize(("chosen", "pivot"), [("native", "auto"), ("array", "none"), ("array", "auto")])
@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
def test_jax_transforms(jax, chosen, pivot, periodic, transpose):
    """Gradients against central differences, with garbage in the corners not read; vmap against a loop."""
    rng = np.random.default_rng(5)
    inputs = dominant(rng, (3, 6), "float64")
    if chosen == "native" and jax.default_backend() != "cpu":
        pytest.skip("native refuses traced arrays on a GPU")
    if not periodic:
        inputs[0][:, 0] = inputs[2][:, -1] = np.nan
    if transpose:
        inputs = tuple(0.4 * x if at in (0, 2) else x for at, x in enumerate(inputs))
    weights = rng.standard_normal((3, 6))

    def solve(*arrays: Any) -> Any:
        return solve_tridiagonal(*arrays, method=chosen, pivot=pivot, periodic=periodic, transpose=transpose)

    @jax.jit
    def loss(*arrays: Any) -> Any:
        return (weights * solve(*arrays)).sum()

    arrays = tuple(map(jax.numpy.asarray, inputs))
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*arrays)
    for which, gradient in enumerate(gradients):
        direction = rng.standard_normal((3, 6))
        change = np.zeros((4, 1, 1))
        change[which] = 1e-6
        ends = [loss(*(x + sign * c * direction for x, c in zip(arrays, change, strict=True))) for sign in (1, -1)]
        np.testing.assert_allclose((gradient * direction).sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-7)
    alone = jax.jit(solve)
    looped = jax.numpy.stack([alone(*(x[i] for x in arrays)) for i in range(3)])
    np.testing.assert_allclose(jax.jit(jax.vmap(solve))(*arrays), looped, rtol=1e-13)


def test_jax_native_refuses_what_it_gets_wrong(jax, monkeypatch):
    """On a GPU, JAX exchanges no rows in a batch, and a traced system may become one."""
    arrays = (jax.numpy.ones((2, 4)),) * 4
    monkeypatch.setattr(tridiagonal_native, "jax_platform", lambda _: "gpu")
    assert "exchanges rows" in parprims.methods(solve_tridiagonal, *arrays)["native"]
    one = tuple(x[0] for x in arrays)
    assert parprims.methods(solve_tridiagonal, *one)["native"] is None
    monkeypatch.setattr(tridiagonal_native, "is_traced", lambda _: True)
    assert "exchanges rows" in parprims.methods(solve_tridiagonal, *one)["native"]


def test_jax_derivatives_of_a_system_that_needs_exchanges(jax):
    """Forward, backward and second derivatives by all arguments, one of them broadcast."""
    from jax.test_util import check_grads

    rng = np.random.default_rng(7)
    lower, upper = rng.standard_normal((2, 6))
    arrays = tuple(jax.numpy.asarray(x) for x in (lower, 1e-9 * np.ones(1), upper, rng.standard_normal((2, 6))))

    def solve(lower, diag, upper, rhs):
        return solve_tridiagonal(lower[None], diag, upper, rhs, method="array")

    check_grads(solve, arrays, order=2, modes=("fwd", "rev"), rtol=1e-4, atol=1e-4)
    _, back = jax.vjp(solve, *arrays)
    assert float(abs(back(jax.numpy.ones((2, 6)))[0][0])) == 0


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("pivot", ["auto", "none"])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_torch_gradients(periodic, pivot, transpose, dtype):
    torch = pytest.importorskip("torch")
    inputs = dominant(np.random.default_rng(6), (2, 5), dtype)
    inputs = (0.4 * inputs[0], inputs[1], 0.4 * inputs[2], inputs[3])
    arrays = tuple(torch.from_numpy(x).requires_grad_() for x in inputs)

    def solve(*arrays: Any) -> Any:
        return solve_tridiagonal(*arrays, periodic=periodic, pivot=pivot, transpose=transpose)

    assert torch.autograd.gradcheck(solve, arrays, fast_mode=True)
    assert torch.autograd.gradgradcheck(solve, arrays, fast_mode=True)
    if not periodic:
        _, error = solve_tridiagonal(*arrays, return_residual=True)
        error.sum().backward()
        assert all(torch.all(torch.isfinite(y.grad)) for y in arrays)


@pytest.mark.parametrize("axis", [0, 1])
def test_torch_gradients_of_what_broadcasts(axis):
    """Constant coefficients, several right-hand sides, a zero diagonal, and corners that are not read."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    shape = (6, 2) if axis == 0 else (2, 6)
    lower, rhs = rng.standard_normal(shape), rng.standard_normal((*shape, 3))
    lower[(0,) if axis == 0 else (slice(None), 0)] = np.nan
    given = (lower, np.zeros(()), np.ones((1, 1)), rhs)
    arrays = tuple(torch.from_numpy(np.asarray(x)).requires_grad_() for x in given)
    solve = functools.partial(solve_tridiagonal, axis=axis)
    solve(*arrays).sum().backward()
    derivative = arrays[0].grad.numpy()
    assert np.all(derivative[(0,) if axis == 0 else (slice(None), 0)] == 0)
    direction = rng.standard_normal(rhs.shape)
    ends = [solve(*arrays[:3], arrays[3] + torch.from_numpy(h * direction)).sum() for h in (1e-6, -1e-6)]
    slope = float((ends[0] - ends[1]).detach()) / 2e-6
    np.testing.assert_allclose((arrays[3].grad.numpy() * direction).sum(), slope, rtol=1e-6)
    ends = [solve(arrays[0], arrays[1] + h, *arrays[2:]).sum() for h in (1e-6, -1e-6)]
    np.testing.assert_allclose(float(arrays[1].grad), float((ends[0] - ends[1]).detach()) / 2e-6, rtol=1e-6)


def test_torch_func():
    """torch.func sees through the array form."""
    torch = pytest.importorskip("torch")
    inputs = dominant(np.random.default_rng(9), (3, 6), "float64")
    arrays = tuple(torch.from_numpy(x) for x in inputs)
    mapped = torch.func.vmap(solve_tridiagonal)(*arrays)
    np.testing.assert_allclose(mapped.numpy(), solve_tridiagonal(*arrays).numpy(), rtol=1e-14)
    slopes = torch.func.grad(lambda *a: solve_tridiagonal(*a).sum(), argnums=(0, 1, 2, 3))(*arrays)
    given = tuple(x.clone().requires_grad_() for x in arrays)
    solve_tridiagonal(*given).sum().backward()
    for slope, x in zip(slopes, given, strict=True):
        np.testing.assert_allclose(slope.numpy(), x.grad.numpy(), rtol=1e-9, atol=1e-12)
