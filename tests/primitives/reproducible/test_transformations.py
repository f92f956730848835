"""Sums with the same bits everywhere inside programs, batches and derivatives: the bits of NumPy's arrays."""

import functools

import numpy as np
import pytest

import parprims
from tests.primitives.reproducible.test_reproducible_sums import EVERYWHERE, METHODS, agree, terms

OFFSETS, IDS, EDGES = (0, 10, 10, 64), np.arange(64) % 3, (0.0, 1.0, 2.0)

FUNCTIONS = {
    "sum": functools.partial(parprims.sum, **EVERYWHERE),
    "vecdot": lambda x, **options: parprims.vecdot(x, x, **EVERYWHERE, **options),
    "cumulative_sum": functools.partial(parprims.cumulative_sum, **EVERYWHERE),
    "by offsets": functools.partial(parprims.reduce, offsets=OFFSETS, **EVERYWHERE),
}
PLAIN = {
    "sum": parprims.sum,
    "vecdot": lambda x, **options: parprims.vecdot(x, x, **options),
    "cumulative_sum": parprims.cumulative_sum,
    "by offsets": functools.partial(parprims.reduce, offsets=OFFSETS),
}


def left_out(_test, given):
    """Return the sentence why a case is not tested, or nothing."""
    return (
        ""
        if given.get("backend", "torch") in ("jax", "torch", "jax-cuda", "torch-cuda")
        else "the library has no programs"
    )


def lines(rng):
    return np.stack([terms(kind, "float32", 64, rng) for kind in ("wide", "tiny", "cancelling")])


def expected(name, x):
    return np.stack([FUNCTIONS[name](row, method="array") for row in x])


@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("wide", [False, True])
def test_programs_of_jax(backend, rng, name, wide, by):
    """In jit and vmap, with and without dtypes of 64 bits."""
    if backend.family != "jax":
        pytest.skip("a program of JAX")
    import jax

    x, function = lines(rng), functools.partial(FUNCTIONS[name], method=by)
    wanted = expected(name, x)
    with jax.enable_x64(wide):
        given = backend.asarray(x)
        for transformed in (jax.jit(function), jax.grad(lambda row: function(row).sum())):
            assert transformed(given[0]).dtype == np.float32
        agree(np.asarray(jax.jit(jax.vmap(function))(given)), wanted)
        agree(np.asarray(jax.vmap(function)(given)), wanted)
        agree(np.asarray(jax.jit(function)(given[1])), wanted[1])
        agree(np.asarray(jax.vmap(lambda row: jax.vjp(function, row)[0])(given)), wanted)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(backend, rng, name):
    """The derivatives are those of sums of floats; values under them keep their bits."""
    x = rng.normal(size=64).astype(np.float32)
    wanted = expected(name, x[None])[0]
    if backend.family == "jax":
        import jax

        value, by = jax.vjp(FUNCTIONS[name], backend.asarray(x))
        _, by_plain = jax.vjp(PLAIN[name], backend.asarray(x))
        pushed, pushed_plain = (jax.jvp(one[name], (value_of(x),), (value_of(x),)) for one in (FUNCTIONS, PLAIN))
        cotangent = np.ones_like(value)
        agree(np.asarray(value), wanted)
        agree(np.asarray(pushed[0]), wanted)
        np.testing.assert_allclose(by(cotangent)[0], by_plain(cotangent)[0])
        np.testing.assert_allclose(pushed[1], pushed_plain[1], rtol=1e-5, atol=1e-5)
    else:
        import torch

        given = backend.asarray(x).requires_grad_()
        value = FUNCTIONS[name](given)
        agree(backend.to_numpy(value), wanted)
        found, plain = (torch.autograd.grad(one[name](given).sum(), given)[0] for one in (FUNCTIONS, PLAIN))
        torch.testing.assert_close(found, plain)
        twice = torch.func.jvp(torch.func.grad(lambda v: (FUNCTIONS[name](v) ** 2).sum()), (given,), (given,))[1]
        plain = torch.func.jvp(torch.func.grad(lambda v: (PLAIN[name](v) ** 2).sum()), (given,), (given,))[1]
        torch.testing.assert_close(twice, plain, rtol=1e-4, atol=1e-4)


def value_of(x):
    import jax

    return jax.numpy.asarray(x)


@pytest.mark.parametrize("name", ["sum", "vecdot", "cumulative_sum"])
def test_programs_of_torch(backend, rng, name):
    if backend.family != "torch":
        pytest.skip("a program of PyTorch")
    import torch

    x = lines(rng)
    wanted, given = expected(name, x), backend.asarray(x)
    agree(backend.to_numpy(torch.compile(FUNCTIONS[name], fullgraph=True, backend="eager")(given[0])), wanted[0])
    agree(backend.to_numpy(torch.func.vmap(FUNCTIONS[name])(given)), wanted)


@pytest.mark.once
def test_long_lines(rng):
    """Lines of several blocks of a kernel, and sums of more than 53 bits."""
    pytest.importorskip("numba")
    for name in ("float32", "float64"):
        for x in (0.9 + 0.09 * rng.random(70_000), terms("wide", name, 70_000, rng)):
            x = x.astype(name)
            for function in (parprims.sum, parprims.cumulative_sum):
                by_kernel, by_array = (function(x, method=one, **EVERYWHERE) for one in ("kernel", "array"))
                agree(by_kernel, by_array)
        x[50_000] = np.inf
        by_kernel, by_array = (parprims.cumulative_sum(x, method=one, **EVERYWHERE) for one in ("kernel", "array"))
        agree(by_kernel, by_array)


@pytest.mark.once
def test_more_terms_have_a_coarser_grid():
    """Of two terms the smaller is on the grid of 2^20 terms, but not on the grid of more."""
    pytest.importorskip("numba")
    x = np.zeros(2**20 + 1, np.float32)
    x[:3] = 1.0, 2.0**-42, -1.0
    assert float(parprims.sum(x[:-1], **EVERYWHERE)) == 2.0**-42
    assert float(parprims.sum(x, **EVERYWHERE)) == 0.0
