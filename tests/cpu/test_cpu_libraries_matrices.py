"""Kernels for CPUs of matrix products and tridiagonal systems on PyTorch's tensors and JAX's arrays."""

import concurrent.futures

import numpy as np
import pytest

import parprims
from parprims import matmul, solve_tridiagonal
from tests.cpu import test_cpu_libraries
from tests.cpu.test_cpu_libraries import check_derivatives, values

pytest.importorskip("numba")

library, torch, jax = test_cpu_libraries.library, test_cpu_libraries.torch, test_cpu_libraries.jax

SHORTEST = {"add": "minimum", "multiply": "add"}
FACTORS = (((3, 5), (5, 4)), ((130, 140), (140, 270)), ((300,), (300, 2)), ((2, 3, 7, 9), (3, 9, 8)), ((0, 3), (3, 2)))


def same_bits(back, found, expected):
    found = back(found)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int8", "int64", "complex64"])
def test_products_have_the_bits_of_numpy(library, dtype):
    _, own, back = library
    for one, other in FACTORS:
        a, b = values(one, dtype), values(other, dtype)
        for options in ({}, SHORTEST) if dtype != "complex64" else ({}, {"add": "multiply", "multiply": "add"}):
            if 0 in one and options:
                continue
            expected = matmul(a, b, method="kernel", **options)
            for _ in range(2):  # the second call is a prepared one
                same_bits(back, matmul(own(a), own(b), method="kernel", **options), expected)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "complex64"])
def test_solutions_have_the_bits_of_numpy(library, dtype):
    _, own, back = library
    shapes = ((1,), (70,), (31, 33), (3, 40, 5))
    cases = [((shape,) * 4, {"axis": axis}) for shape in shapes for axis in range(len(shape))]
    cases += [(((6, 20),) * 4, {option: True}) for option in ("periodic", "transpose")]
    cases += [(((40,), (40,), (40,), (40, 7)), {}), (((4, 1, 20), (20,), (1, 20), (4, 3, 20, 5)), {})]
    cases += [(((3, 1, 4, 1, 2), (1, 2, 4, 3, 1), (3, 2, 4, 1, 1), (1, 2, 4, 3, 2)), {"axis": 2}), (((0, 4),) * 4, {})]
    for each, options in cases:
        _, diag, _, rhs = inputs = [values(shape, dtype) for shape in each]
        diag += np.asarray(9, diag.dtype)
        expected = solve_tridiagonal(*inputs, method="kernel", **options)
        for _ in range(2):
            same_bits(back, solve_tridiagonal(*map(own, inputs), method="kernel", **options), expected)
        numbers = solve_tridiagonal(1.0, 4.0, 1.0, own(rhs[..., :1]), axis=0, method="kernel")
        same_bits(back, numbers, solve_tridiagonal(1.0, 4.0, 1.0, rhs[..., :1], axis=0, method="kernel"))
        if dtype == "float64" or each[0] == (70,):  # array operations, which JAX compiles for every shape
            x, error = solve_tridiagonal(*map(own, inputs), method="kernel", return_residual=True, **options)
            same_bits(back, x, expected)
            assert np.all(back(error) < 1e-2)


def test_kernels_are_given_the_memory_of_the_arrays(library, monkeypatch):
    from parprims import _cpu

    module, own, _ = library
    seen = []
    reader = _cpu.memory.reader

    def watched(x):
        read = reader(x)
        return lambda x: seen.append(read(x)) or seen[-1]

    monkeypatch.setattr(_cpu.memory, "reader", watched)
    shape = (23, 29) if module.__name__ == "torch" else (29, 23)  # no call has been prepared for these
    arrays = [own(values(shape, "float64") + at) for at in (0, 9, 1, 2)]
    addresses = {x.data_ptr() if module.__name__ == "torch" else x.unsafe_buffer_pointer() for x in arrays}
    solve_tridiagonal(*arrays, method="kernel")
    assert {x.ctypes.data for x in seen} == addresses
    seen.clear()
    matmul(arrays[0], arrays[1].mT, method="kernel", **SHORTEST)
    if module.__name__ == "torch":  # of JAX a transposed array is another one
        assert {x.ctypes.data for x in seen} == {x.data_ptr() for x in arrays[:2]}


def test_arguments_stay_as_they_are(library):
    _, own, back = library
    inputs = [values((40, 30), "float64") + at for at in (0, 9, 1, 2)]
    given = list(map(own, inputs))
    solve_tridiagonal(*given, axis=0, method="kernel")
    matmul(given[0], given[1][:30], method="kernel")
    for x, y in zip(given, inputs, strict=True):
        np.testing.assert_array_equal(back(x), y)


def test_many_threads_call_at_once(library):
    _, own, back = library
    inputs = [own(values((300, 400), "float64") + at) for at in (0, 9, 1, 2)]
    calls = (
        lambda: solve_tridiagonal(*inputs, axis=0, method="kernel"),
        lambda: matmul(inputs[0][:, :90], inputs[1][:90], method="kernel", **SHORTEST),
    )
    expected = [back(call()) for call in calls]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for at, found in enumerate(pool.map(lambda at: calls[at % 2](), range(24))):
            np.testing.assert_array_equal(back(found), expected[at % 2])


def test_auto_takes_the_faster(library):
    module, own, _ = library
    is_torch = module.__name__ == "torch"

    def chosen(call):
        with parprims.explain() as calls:
            call()
        return calls[0].method

    def systems(*shape):
        x = own(values(shape, "float64"))
        return chosen(lambda: solve_tridiagonal(x, x + 9, x, x))

    assert systems(60) == "native"
    assert systems(20, 20) == systems(9000) == systems(90, 90) == "kernel"

    def products(one, other, dtype, **options):
        a, b = own(values(one, dtype)), own(values(other, dtype))
        return chosen(lambda: matmul(a, b, **options))

    assert products((200, 200), (200, 200), "float32") == "native"
    assert products((130, 130), (130, 130), "float32", **SHORTEST) == "kernel"
    assert products((9, 9), (9, 9), "float32", **SHORTEST) == ("kernel" if is_torch else "array")
    assert products((130, 130), (130, 130), "int64") == ("native" if is_torch else "kernel")
    assert products((2, 300), (300, 300), "int64") == ("kernel" if is_torch else "native")
    assert products((100, 8, 8), (100, 8, 8), "int32") == ("kernel" if is_torch else "native")
    assert products((9, 9), (9, 9), "int64") == "native"


# ---- PyTorch ----------------------------------------------------------------------------------------------------


def test_large_products_of_integers(torch):
    """They are exact, or wrap around, whether floats can hold them or not."""
    rng = np.random.default_rng(1)
    for dtype, largest in (("int64", 9), ("int64", 2**62), ("int32", 2**30), ("uint8", 255), ("uint32", 2**31)):
        a, b = (rng.integers(0, largest, shape).astype(dtype) for shape in ((210, 200), (200, 220)))
        found = matmul(torch.from_numpy(a), torch.from_numpy(b), method="native")
        np.testing.assert_array_equal(found.numpy(), np.matmul(a, b))


def test_tensors_of_any_strides(torch):
    whole = torch.from_numpy(values((12, 14, 16), "float64"))
    for x in (whole.mT, whole[:, ::2, 3], whole[1:, 2:7:2, ::3], whole[0, 0].expand(14, 16), whole.permute(2, 0, 1)):
        for axis in range(x.ndim):
            inputs = [x - 9, x, x + 1, 2 * x][: 3 - axis] + [x] * (axis + 1)  # some of these share a layout
            expected = solve_tridiagonal(*(one.numpy() for one in inputs), axis=axis, method="kernel")
            np.testing.assert_array_equal(solve_tridiagonal(*inputs, axis=axis, method="kernel").numpy(), expected)
        expected = matmul(x.numpy(), x.mT.numpy(), method="kernel", **SHORTEST)
        np.testing.assert_array_equal(matmul(x, x.mT, method="kernel", **SHORTEST).numpy(), expected)
    z = torch.from_numpy(values((5, 9), "complex64"))
    for seen in (z.conj(), z.imag, z.conj().imag):  # whose elements memory holds otherwise
        plain = seen.resolve_conj().resolve_neg().clone()
        assert torch.equal(matmul(seen, seen.mT, method="kernel"), matmul(plain, plain.mT, method="kernel"))
        solutions = (solve_tridiagonal(x, x + 9, x, x, method="kernel") for x in (seen, plain))
        assert torch.equal(*solutions)


DIFFERENTIABLE = {
    "solve_tridiagonal": lambda a, b, **m: solve_tridiagonal(a, b + 9, a * b, b, **m),
    "columns": lambda a, b, **m: solve_tridiagonal(a[:, 0], b[:, 0] + 9, a[:, 1], b, **m),
    "periodic": lambda a, b, **m: solve_tridiagonal(a, b + 9, 1.0, a, axis=0, periodic=True, **m),
    "transpose": lambda a, b, **m: solve_tridiagonal(a, b + 9, a, b, transpose=True, **m),
    "residual": lambda a, b, **m: solve_tridiagonal(a, b + 9, a, b, return_residual=True, **m)[0],
    "matmul": lambda a, b, **m: matmul(a, b.mT, **m),
    "vectors": lambda a, b, **m: matmul(a[0], b[0], **m),
    "minimum": lambda a, b, **m: matmul(a, b.mT, **SHORTEST, **m),
    "logaddexp": lambda a, b, **m: matmul(a[None], b.mT, add="logaddexp", multiply="add", **m),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives_by_the_kernel(torch, name):
    check_derivatives(torch, DIFFERENTIABLE[name], (4, 5))


def functions(**options):
    return (
        lambda x: solve_tridiagonal(x, x + 9, x, x, **options),
        lambda x: matmul(x, x.mT, **SHORTEST, **options),
    )


@pytest.mark.filterwarnings("ignore:Converting a tensor", "ignore:Trace had nondeterministic")  # of torch.jit.trace
def test_observers_of_pytorch(torch):
    """Where an observer is to see operations the kernel refuses, and auto computes by operations."""
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.from_numpy(values((3, 4, 5), "float64"))
    for function, by_auto in zip(functions(method="kernel"), functions(), strict=True):
        observers = (torch.func.vmap, lambda f: lambda x: make_fx(f)(x), lambda f: lambda x: torch.jit.trace(f, x))
        for observed in observers:
            with pytest.raises(parprims.MethodRefused, match=r"a transformation of torch\.func, a forward derivative"):
                observed(function)(x)
        with pytest.raises(parprims.MethodRefused, match=r"a transformation of torch\.func, a forward derivative"):
            torch.func.jvp(function, (x,), (x,))
        torch.testing.assert_close(torch.func.vmap(by_auto)(x), function(x))
        torch.testing.assert_close(make_fx(by_auto)(x)(x + 1), function(x + 1))


def test_nodes_of_compiled_programs(torch):
    """A call stays one node, by the kernel, and so do the calls of its derivative."""
    torch._dynamo.reset()
    for function in functions(method="kernel"):
        x = torch.from_numpy(values((5, 6), "float64")).requires_grad_()
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        with parprims.explain() as calls:
            found = compiled(x)
        assert [one.method for one in calls] == ["kernel"]
        torch.testing.assert_close(found, function(x), rtol=0, atol=0)
        by = [torch.autograd.grad(torch.sin(one).sum(), x)[0] for one in (found, function(x))]
        torch.testing.assert_close(*by)
        module = torch.nn.Module()
        module.forward = function
        exported = torch.export.export(module, (x.detach(),))
        names = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
        assert sum("parprims" in name for name in names) == 1
        torch.testing.assert_close(exported.module()(x.detach()), function(x.detach()), rtol=0, atol=0)


# ---- JAX --------------------------------------------------------------------------------------------------------


def test_arrays_without_values(jax):
    """Inside jit, vmap and grad the kernel serves."""
    x = jax.numpy.asarray(values((4, 5), "float64"))
    for function, by_array in zip(functions(method="kernel"), functions(method="array"), strict=True):
        for one, other in (
            (jax.jit(function), by_array),
            (jax.vmap(lambda x, f=function: f(x[None])), jax.vmap(lambda x, f=by_array: f(x[None]))),
            (jax.grad(lambda x, f=function: f(x).sum()), jax.grad(lambda x, f=by_array: f(x).sum())),
        ):
            np.testing.assert_allclose(one(x), other(x), rtol=1e-9, atol=1e-9)


def test_results_are_where_the_arrays_are(jax):
    there = jax.device_put(jax.numpy.asarray(values((4, 5), "float64")), jax.devices("cpu")[0])
    for function in (lambda x: solve_tridiagonal(x, x, x, x, method="kernel"), functions(method="kernel")[1]):
        with jax.transfer_guard("disallow_explicit"):
            found = function(there)
        assert found.committed
        assert found.devices() == there.devices()
        assert not function(jax.numpy.ones((4, 5))).committed
