"""Arrays of JAX that are split over all GPUs of the machine, against NumPy: the sizes where kernels and quick ways run.

The other tests of split arrays take the CPU for several devices.
"""

import numpy as np
import pytest

import parprims

N = 2**18  # a part is larger than the tile of any kernel


@pytest.fixture
def mesh(backend):
    if backend.name != "jax-cuda":
        pytest.skip("is of JAX on GPUs")
    import jax

    count = len(jax.devices())
    if count < 2:
        pytest.skip("needs two GPUs")
    return jax.make_mesh((count,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))


def put(x, mesh, *spec):
    import jax

    return jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))


def near(found, expected, bound):
    scale = np.max(np.abs(expected), initial=0)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=bound * scale)


def test_reductions_and_scans(mesh, rng):
    x = rng.integers(-9, 9, N).astype(np.int32)
    split = put(x, mesh, "i")
    assert int(parprims.sum(split)) == x.sum()
    assert int(parprims.max(split)) == x.max()
    np.testing.assert_array_equal(parprims.scan(split), np.cumsum(x))
    np.testing.assert_array_equal(parprims.scan(split, reverse=True), np.cumsum(x[::-1])[::-1])
    np.testing.assert_array_equal(parprims.histogram(split, 18)[0], np.histogram(x, 18)[0])
    rows = put(x.reshape(16, -1), mesh, "i")
    with parprims.explain() as told:
        np.testing.assert_array_equal(parprims.scan(rows, axis=1), np.cumsum(x.reshape(16, -1), 1))
    assert told[0].steps == ()


@pytest.mark.parametrize("limit", [0.5, 1.0])
def test_recurrences(mesh, rng, limit):
    a, b = rng.uniform(-limit, limit, N), rng.uniform(-1, 1, N)
    expected = np.empty(N)
    state = 0.0
    for i in range(N):
        state = expected[i] = a[i] * state + b[i]
    near(parprims.linear_recurrence(*(put(x.astype(np.float32), mesh, "i") for x in (a, b))), expected, 1e-5)


@pytest.mark.parametrize("dtype", ["uint32", "float32", "int16"])
@pytest.mark.parametrize("order", ["random", "few", "sorted", "reversed", "interleaved"])
def test_sorts(mesh, rng, dtype, order):
    keys = {
        "random": lambda: rng.integers(0, 2**15, N),
        "few": lambda: rng.integers(0, 3, N),
        "sorted": lambda: np.arange(N) // 16,
        "reversed": lambda: np.arange(N)[::-1] // 16,
        "interleaved": lambda: np.arange(N) % 8 * 1000,
    }[order]().astype(dtype)
    split = put(keys, mesh, "i")
    place = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(parprims.sort(split), keys[place])
    np.testing.assert_array_equal(parprims.argsort(split), place)
    found, values = parprims.sort_by_key(split, put(np.arange(N, dtype=np.int32), mesh, "i"), descending=True)
    place = N - 1 - np.argsort(keys[::-1], kind="stable")[::-1]
    np.testing.assert_array_equal(found, keys[place])
    np.testing.assert_array_equal(values, place)


@pytest.mark.parametrize("low", [3.0, 0.1])
@pytest.mark.parametrize("axis", [0, 1])
def test_tridiagonal_systems(mesh, rng, low, axis):
    """By parts where diagonals dominate, and by exchanges of rows where they do not."""
    shape = 16, 2**14 if low > 1 else 2**10
    lower, upper, rhs = rng.uniform(-1, 1, (3, *shape))
    diag = rng.uniform(low, low + 1, shape)
    spec = ("i", None) if axis == 0 else (None, "i")
    x, error = parprims.solve_tridiagonal(*(put(one, mesh, *spec) for one in (lower, diag, upper, rhs)), axis=1,
                                          return_residual=True)  # fmt: skip
    assert np.max(error) < 1e-14
    if low > 1:
        alone = parprims.solve_tridiagonal(lower, diag, upper, rhs, axis=1)
        near(x, alone, 1e-14)


def test_products(mesh, rng):
    a, b = rng.integers(-9, 9, (2, 512, 512)).astype(np.float32)
    for first, second in ((("i", None), (None, None)), ((None, "i"), ("i", None)), ((None, None), (None, "i"))):
        np.testing.assert_array_equal(parprims.matmul(put(a, mesh, *first), put(b, mesh, *second)), a @ b)
