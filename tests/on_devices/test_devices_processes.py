"""JAX on several processes by `jax.distributed`: one program, collective operations between processes."""

import socket

import numpy as np
import pytest

import parprims
from tests.on_jax import test_jax
from tests.support import devices

jax = test_jax.jax


@pytest.mark.usefixtures("jax")
def test_in_processes(backend, subtests):
    """In three of them: the first, one between others, and the last."""
    if backend.cuda:
        pytest.skip("is of a CPU")
    count = 3
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    for name, raised in devices.outcomes_of_processes("tests.on_devices.test_devices_processes", count, port).items():
        with subtests.test(check=name):
            assert not raised, raised


# ---- In each of the processes -----------------------------------------------------------------------------------

N = 24
RNG = np.random.default_rng(29)
A, B, C = RNG.uniform(-1, 1, (3, N))
KEYS = RNG.integers(-3, 4, N)
COLUMNS = RNG.standard_normal((N, 5))


def mesh():
    import jax

    return jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))


def put(x):
    """Return an array of which this process holds its part alone."""
    import jax

    place = jax.sharding.NamedSharding(mesh(), jax.sharding.PartitionSpec("i"))
    return jax.make_array_from_callback(x.shape, place, lambda index: x[index])


def same(found, expected):
    """Compare the parts that this process holds."""
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    for shard in found.addressable_shards:
        np.testing.assert_allclose(shard.data, expected[shard.index], rtol=1e-12, atol=1e-13)


def check_every_driver():
    import jax

    assert jax.process_count() > 1
    assert jax.device_count() > jax.local_device_count()
    with parprims.explain() as calls:
        same(parprims.sum(put(KEYS)), parprims.sum(KEYS))
        same(parprims.scan(put(KEYS), reverse=True), parprims.scan(KEYS, reverse=True))
    assert [one.devices for one in calls if one.devices > 1] == [jax.device_count()] * 2
    same(parprims.linear_recurrence(put(A), put(B)), parprims.linear_recurrence(A, B))
    same(parprims.argsort(put(KEYS)), np.argsort(KEYS, kind="stable"))
    same(parprims.solve_tridiagonal(put(A), put(3 + B), put(C), put(B)), parprims.solve_tridiagonal(A, 3 + B, C, B))
    same(parprims.matmul(put(COLUMNS).T, put(COLUMNS)), COLUMNS.T @ COLUMNS)
    same(parprims.histogram(put(B), 4)[0], parprims.histogram(B, 4)[0])


def check_a_program_and_its_derivative():
    import jax

    def loss(a, b):
        return (parprims.scan(parprims.linear_recurrence(a, b)) ** 2).sum()

    expected = jax.grad(loss, (0, 1))(*(jax.device_put(x, jax.local_devices()[0]) for x in (A, B)))
    with jax.set_mesh(mesh()):
        found = jax.jit(jax.grad(loss, (0, 1)))(put(A), put(B))
    for one, other in zip(found, expected, strict=True):
        same(one, other)


NEEDS = ("jax",)


def main(rank, count, port):
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", num_processes=count, process_id=rank)
    devices.run_all(globals(), stop=True)
    jax.distributed.shutdown()
