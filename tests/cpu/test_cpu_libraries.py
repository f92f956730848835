"""Kernels for CPUs on PyTorch's tensors and JAX's arrays: their own memory, NumPy's bits, and what is refused."""

import concurrent.futures

import numpy as np
import pytest

import parprims

pytest.importorskip("numba")

DTYPES = ("float64", "float32", "float16", "bfloat16", "int8", "int64", "complex64")
SHAPES = ((1,), (70_001,), (3, 700), (31, 33, 5))


@pytest.fixture(params=["torch", "jax"])
def library(request):
    """The library of arrays under test, as (its own arrays of NumPy's, NumPy's of its own)."""
    name = request.param
    if name not in (request.config.getoption("--backend") or ["torch", "jax"]):
        pytest.skip(f"{name} is not asked for")
    return pytest.importorskip(name), *(_torch() if name == "torch" else _jax())


def _torch():
    import torch

    def own(x):
        if x.dtype.name == "bfloat16":
            return torch.from_numpy(x.view(np.uint16).copy()).view(torch.bfloat16)
        return torch.from_numpy(x.copy())

    def back(x):
        assert type(x) is torch.Tensor
        if x.dtype == torch.bfloat16:
            import ml_dtypes

            return x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        return x.detach().numpy()

    return own, back


def _jax():
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax.numpy.asarray, np.asarray


def values(shape, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    return (3 * np.random.default_rng(list(shape)).standard_normal(shape)).astype(dtype)


CALLS = {
    "sum": parprims.sum,
    "cumulative_sum": parprims.cumulative_sum,
    "linear_recurrence": lambda x, **options: parprims.linear_recurrence(x, x, **options),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_of_numpy(library, dtype):
    _, own, back = library
    # How memory is read and made depends on the dtype alone, and each kernel of one takes half a second to compile.
    names = CALLS if dtype == "float64" else ("cumulative_sum",)
    for name, call in ((name, CALLS[name]) for name in names):
        for shape in SHAPES:
            x = values(shape, dtype)
            for axis in range(len(shape)):
                for _ in range(2):  # the second call is a prepared one
                    expected, found = (call(one, axis=axis, method="kernel") for one in (x, own(x)))
                    found = back(found)
                    assert found.dtype == expected.dtype, name
                    assert found.shape == expected.shape, name
                    assert found.tobytes() == expected.tobytes(), name


def test_nothing_is_copied(library):
    """What a kernel is given is the memory of the array, and what it writes that of the result, but for few bytes."""
    module, own, back = library
    from parprims._cpu import memory

    for dtype in DTYPES:
        x = own(values((20_000, 7), dtype))
        address = x.data_ptr() if module.__name__ == "torch" else x.unsafe_buffer_pointer()
        assert memory.host(x).ctypes.data == address
        assert memory.reader(x)(x).ctypes.data == address
        bits = memory.host(x)
        made = memory.allocator(x)(bits.shape, bits.dtype)
        made[...] = bits
        (result,) = memory.maker(x, [dtype])([made], (x,))
        assert back(result).tobytes() == bits.tobytes()
        address = result.data_ptr() if module.__name__ == "torch" else result.unsafe_buffer_pointer()
        assert made.ctypes.data == address


def test_arguments_stay_as_they_are(library):
    _, own, back = library
    x = values((64, 2000), "float64")
    given = own(x)
    parprims.linear_recurrence(given, given, axis=0, method="kernel")
    parprims.reduce((given, given), "affine", axis=1, method="kernel")
    np.testing.assert_array_equal(back(given), x)


def test_many_threads_call_at_once(library):
    _, own, back = library
    given = own(values((64, 40_000), "float64"))
    expected = back(parprims.cumulative_sum(given, axis=1, method="kernel"))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: parprims.cumulative_sum(given, axis=1, method="kernel"), range(32)):
            np.testing.assert_array_equal(back(found), expected)


def test_auto_takes_the_faster(library):
    module, own, _ = library
    op = parprims.Operator(lambda earlier, later: earlier * 0.25 + later, name="decay")
    large, small = own(values((2048, 128), "float64")), own(values((4, 4), "float64"))
    few = ("array", "kernel") if module.__name__ == "torch" else ("native", "native")
    for x, others in ((large, ("kernel", "kernel")), (small, few)):
        for at, call in enumerate((parprims.scan, parprims.linear_recurrence)):
            with parprims.explain() as calls:
                call(x, (op, x)[at], axis=0)
            assert calls[0].method == others[at]
    with parprims.explain() as calls:
        parprims.cumulative_sum(own(values((8192, 128), "float64")), axis=0)
        parprims.cumulative_sum(small, axis=0)
        parprims.sum(large)
    assert [one.method for one in calls] == ["kernel", "native", "native"]


# ---- PyTorch ----------------------------------------------------------------------------------------------------


@pytest.fixture
def torch(request):
    if "torch" not in (request.config.getoption("--backend") or ["torch"]):
        pytest.skip("torch is not asked for")
    return pytest.importorskip("torch")


def test_tensors_of_any_strides(torch):
    whole = torch.from_numpy(values((12, 14, 16), "float64"))
    halves = whole.to(torch.bfloat16)
    for x in (whole.mT, whole[:, ::2, 3], whole[1:, 2:7:2, ::3], whole[0, 0].expand(4, 16), whole.permute(2, 0, 1)):
        for axis in range(x.ndim):
            for call in CALLS.values():
                expected = call(x.numpy(), axis=axis, method="kernel")
                np.testing.assert_array_equal(call(x, axis=axis, method="kernel").numpy(), expected)
    torch.testing.assert_close(
        parprims.cumulative_sum(halves[:, ::2].mT, axis=0, method="kernel"),
        parprims.cumulative_sum(halves[:, ::2].mT.contiguous(), axis=0, method="kernel"),
        rtol=0,
        atol=0,
    )
    z = torch.from_numpy(values((5, 9), "complex64"))
    for seen in (z.conj(), z.imag, z.conj().imag):  # whose elements memory holds otherwise
        expected = parprims.sum(seen.resolve_conj().resolve_neg().clone(), method="kernel")
        assert parprims.sum(seen, method="kernel") == expected


def test_bytes_at_odd_addresses(torch):
    memory = bytearray(8 * 10 + 1)
    x = torch.frombuffer(memory, dtype=torch.float64, offset=1) if hasattr(torch, "frombuffer") else None
    x[:] = torch.arange(10.0)
    assert parprims.sum(x, method="kernel") == 45
    assert parprims.cumulative_sum(x, method="kernel")[-1] == 45


OWN = parprims.Operator(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), components=2, identity=(1, 0))
DIFFERENTIABLE = {
    "sum": lambda a, b, **m: parprims.sum(a * b, axis=0, **m),
    "max": lambda a, b, **m: parprims.max(a, axis=0, **m) + b,
    "reduce": lambda a, b, **m: parprims.reduce((a, b), OWN, axis=1, **m)[1],
    "map_reduce": lambda a, b, **m: parprims.map_reduce(lambda x, y: x * y, a, b, op="logaddexp", axis=1, **m),
    "initial": lambda a, b, **m: parprims.reduce(a, "logaddexp", axis=0, initial=b[0], **m),
    "scan": lambda a, b, **m: parprims.scan((a, b), OWN, axis=1, exclusive=True, **m)[1],
    "cummax": lambda a, b, **m: parprims.scan(a, "maximum", axis=0, initial=b[0], **m),
    "cumulative_sum": lambda a, b, **m: parprims.cumulative_sum(a + b, axis=0, **m),
    "linear_recurrence": lambda a, b, **m: parprims.linear_recurrence(a, b, axis=1, initial=a[:, 0], **m),
    "constant": lambda a, b, **m: parprims.linear_recurrence(a[0, 0], b, axis=1, **m),
}


def check_derivatives(torch, function, shape):
    """Assert that derivatives by kernel are those by array, of both orders, where one array or both want one."""
    given = [torch.from_numpy(values(shape, "float64") + at) for at in range(2)]

    def derivatives(method, wanted):
        a, b = (x.clone().requires_grad_(one) for x, one in zip(given, wanted, strict=True))
        leaves = [x for x in (a, b) if x.requires_grad]
        with parprims.explain() as calls:
            y = torch.sin(function(a, b, method=method)).sum()
        assert [one.method for one in calls] == [method]
        first = torch.autograd.grad(y, leaves, create_graph=True, materialize_grads=True)
        total = sum((one * one).sum() for one in first)
        second = torch.autograd.grad(total, leaves, materialize_grads=True) if total.requires_grad else ()
        return y, first, second

    for wanted in ((True, True), (True, False)):
        torch.testing.assert_close(derivatives("kernel", wanted), derivatives("array", wanted))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives_by_the_kernel(torch, name):
    check_derivatives(torch, DIFFERENTIABLE[name], (3, 4))


@pytest.mark.filterwarnings("ignore:Converting a tensor")  # of torch.jit.trace, for lengths are tensors there
def test_observers_of_pytorch(torch):
    """Where an observer is to see operations the kernel refuses, and auto computes by operations."""
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.from_numpy(values((4, 50), "float64"))
    op = parprims.Operator(lambda earlier, later: earlier + later, name="plus")

    def function(x, method="auto"):
        return parprims.scan(x, op, axis=-1, method=method)

    expected = function(x)
    for observed in (torch.func.vmap, lambda f: make_fx(f)(x), lambda f: torch.jit.trace(f, x)):
        with pytest.raises(parprims.MethodRefused, match=r"a transformation of torch\.func, a forward derivative or"):
            observed(lambda x: function(x, "kernel"))(x)
    torch.testing.assert_close(torch.func.vmap(function)(x), expected)
    traced = make_fx(lambda x: function(x))(x)
    torch.testing.assert_close(traced(x + 1), function(x + 1))  # nothing of x has become a constant


def test_nodes_of_compiled_programs(torch):
    torch._dynamo.reset()
    x = torch.from_numpy(values((3, 50), "float64"))
    compiled = torch.compile(
        lambda x: parprims.linear_recurrence(x, x, axis=0, method="kernel"), backend="aot_eager", fullgraph=True
    )
    with parprims.explain() as calls:
        found = compiled(x)
    assert [one.method for one in calls] == ["kernel"]
    torch.testing.assert_close(found, parprims.linear_recurrence(x, x, axis=0, method="kernel"), rtol=0, atol=0)


# ---- JAX --------------------------------------------------------------------------------------------------------


@pytest.fixture
def jax(request):
    if "jax" not in (request.config.getoption("--backend") or ["jax"]):
        pytest.skip("jax is not asked for")
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


def test_results_are_where_the_arrays_are(jax):
    x = jax.numpy.arange(10.0)
    assert not parprims.cumulative_sum(x, method="kernel").committed
    there = jax.device_put(x, jax.devices("cpu")[0])
    found = parprims.cumulative_sum(there, method="kernel")
    assert found.committed
    assert found.devices() == there.devices()
    with jax.transfer_guard("disallow_explicit"):
        assert parprims.cumulative_sum(there, method="kernel").shape == (10,)


def test_zeros_and_nan_of_short_searches(jax):
    zeros = np.array([-0.0, 0.0]), np.array([0.0, -0.0])
    for x in (*zeros, np.array([0.0, np.nan, np.inf, np.nan]), np.array([-np.inf, -np.inf])):
        index = np.arange(len(x))[::-1].copy()
        for op in ("argmax", "argmin"):
            found = parprims.reduce(tuple(map(jax.numpy.asarray, (x, index))), op, method="native")
            expected = parprims.reduce((x, index), op, method="array")
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)
                assert np.signbit(np.asarray(one, "float64")) == np.signbit(np.asarray(other, "float64"))


def test_short_systems_with_numbers_that_are_not_finite(jax):
    for at in range(4):
        for value in (np.inf, -np.inf, np.nan):
            for row in (0, 1, 4):
                given = [np.ones(5), np.full(5, 3.0), np.ones(5), np.ones(5)]
                given[at][row] = value
                x = parprims.solve_tridiagonal(*map(jax.numpy.asarray, given), method="native")
                read = (at, row) not in ((0, 0), (2, 4))
                assert np.isnan(x).all() if read else np.isfinite(x).all()
                both = [np.stack([np.where(np.isfinite(one), one, 1.0), one], 1) for one in given]
                x = parprims.solve_tridiagonal(*map(jax.numpy.asarray, both), axis=0, method="native")
                assert np.isfinite(x[:, 0]).all()
                assert np.isnan(x[:, 1]).all() if read else np.isfinite(x[:, 1]).all()
    huge = [np.zeros(3), np.full(3, 1e200), np.full(3, 1e200), np.full(3, 1e300)]
    assert np.isfinite(parprims.solve_tridiagonal(*map(jax.numpy.asarray, huge), method="native")).all()


def test_meshes_are_refused(jax):
    mesh = jax.make_mesh((1,), ("i",), devices=jax.devices("cpu")[:1])
    x = jax.device_put(jax.numpy.arange(8.0), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    with pytest.raises(parprims.MethodRefused, match="a mesh of devices"):
        parprims.cumulative_sum(x, method="kernel")
