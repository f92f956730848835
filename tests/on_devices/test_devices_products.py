"""Matrix products and histograms of arrays that are split over devices."""

import numpy as np
import pytest

import parprims
from tests.on_devices.test_devices_scans import mesh_of, near, put
from tests.on_jax import test_jax
from tests.support import devices

jax = test_jax.jax


@pytest.mark.usefixtures("jax")
def test_on_eight_devices(backend, subtests):
    if backend.cuda:
        pytest.skip("is of a CPU")
    devices.hold("tests.on_devices.test_devices_products", subtests)


# ---- In the process with eight devices --------------------------------------------------------------------------

RNG = np.random.default_rng(26)
A, B = RNG.standard_normal((8, 16)), RNG.standard_normal((16, 24))
X = RNG.standard_normal(48)
# How a and b are split, and how their product is: rows, columns, both, the axis summed over on both sides or one, and
# three ways in which parts go around.
WAYS = {
    "rows": (("i",), (), ("i",), 0),
    "columns": ((), (None, "i"), (None, "i"), 0),
    "tiles": (("i",), (None, "j"), ("i", "j"), 0),
    "inner": ((None, "i"), ("i",), (), 2),
    "inner of one": ((None, "i"), (), (), 2),
    "rows of both": (("i",), ("i",), ("i",), 3),
    "columns of both": ((None, "i"), (None, "i"), (None, "i"), 3),
    "rows and columns": (("i",), (None, "i"), ("i",), 3),
    "rows and inner": (("j", "i"), ("i",), ("j",), 2),
}


def check_products_split_in_every_way():
    mesh = mesh_of(8, names=("i", "j"), shape=(4, 2))
    sparse = (A * (RNG.random(A.shape) < 0.2)).round(1), B.round(1)
    for name, (of_a, of_b, result, steps) in WAYS.items():
        with parprims.explain() as calls:
            found = parprims.matmul(put(A, mesh, *of_a), put(B, mesh, *of_b))
        near(found, A @ B)
        assert len(calls[0].steps) == steps, (name, calls)
        assert found.sharding.is_equivalent_to(put(np.zeros((8, 24)), mesh, *result).sharding, 2), name
        if steps == 3 or name == "inner":
            op = parprims.Operator(lambda x, y: x + (x == 0) * y, name="first that is not zero")
            a, b = sparse
            near(parprims.matmul(put(a, mesh, *of_a), put(b, mesh, *of_b), add=op), parprims.matmul(a, b, add=op))
    paths = {"add": "minimum", "multiply": "add"}
    near(parprims.matmul(put(A, mesh, None, "i"), put(B, mesh, "i"), **paths), parprims.matmul(A, B, **paths), steps=0)
    near(parprims.matmul(put(A[0], mesh, "i"), put(B[:, 0], mesh, "i")), A[0] @ B[:, 0])
    batch = RNG.standard_normal((4, 8, 16))
    near(parprims.matmul(put(batch, mesh, "i", "j"), put(B, mesh)), batch @ B)
    single = [x.astype(np.float32) for x in (A, B)]
    exact = (single[0].astype(np.float64) @ single[1].astype(np.float64)).astype(np.float32)
    found = parprims.matmul(put(single[0], mesh, None, "i"), put(single[1], mesh, "i"), precision="highest")
    near(found, exact, steps=1)
    with pytest.raises(ValueError, match="reshard"):
        parprims.matmul(put(A, mesh, None, "i"), put(B, mesh, "j"))
    with pytest.raises(ValueError, match="agree in the length"):
        parprims.matmul(put(A, mesh, "i"), put(A, mesh))


def check_products_in_programs():
    import jax

    mesh = mesh_of(8, names=("i", "j"), shape=(4, 2))
    spec = jax.sharding.PartitionSpec

    def loss(a, b):
        return (parprims.matmul(a, b) ** 2).sum()

    expected = jax.grad(loss, (0, 1))(jax.numpy.asarray(A), jax.numpy.asarray(B))
    for name in ("inner", "rows of both"):
        of_a, of_b, *_ = WAYS[name]
        found = jax.jit(jax.grad(loss, (0, 1)))(put(A, mesh, *of_a), put(B, mesh, *of_b))
        near(tuple(found), tuple(expected))
    mapped = jax.shard_map(
        lambda a, b: parprims.matmul(a, b, axis_name="i"),
        mesh=mesh, in_specs=(spec(None, "i"), spec("i")), out_specs=spec(),
    )  # fmt: skip
    near(jax.jit(mapped)(put(A, mesh, None, "i"), put(B, mesh, "i")), A @ B)
    auto = mesh_of(8, "Auto", ("i", "j"), (4, 2))
    paths = {"add": "minimum", "multiply": "add"}
    for of_a, of_b in (((None, "i"), ("i",)), (("i",), (None, "j")), (("j",), ("i",))):
        call = jax.jit(lambda a, b: (parprims.matmul(a, b), parprims.matmul(a, b, **paths)))
        near(call(put(A, auto, *of_a), put(B, auto, *of_b)), (A @ B, parprims.matmul(A, B, **paths)))
    call = jax.jit(lambda x: parprims.histogram(2 * x, 4))
    near(tuple(call(put(X, auto, ("i", "j")))), tuple(parprims.histogram(2 * X, 4)))


def check_histograms():
    import jax

    mesh = mesh_of(8, names=("i", "j"), shape=(4, 2))
    weights = RNG.integers(0, 9, 48).astype(np.int32)
    edges = np.array([-1.0, 0.0, 2.0])
    for options in ({}, {"bins": 5, "range": (-1.0, 1.0)}, {"density": True}, {"bins": edges}):
        expected = np.histogram(X, **options)
        given = options | ({"bins": jax.numpy.asarray(edges)} if options.get("bins") is edges else {})
        found = parprims.histogram(put(X, mesh, ("i", "j")), **given)
        near(tuple(found), tuple(parprims.histogram(X, **options)))
        np.testing.assert_allclose(found[0], expected[0])
    near(
        tuple(parprims.histogram(put(X, mesh, "i"), 4, weights=put(weights, mesh, "i"))),
        tuple(parprims.histogram(X, 4, weights=weights)),
    )
    table = X.reshape(8, 6)
    with parprims.explain() as calls:
        near(tuple(parprims.histogram(put(table, mesh, "i", "j"), 4)), tuple(parprims.histogram(table, 4)))
    assert calls[0].devices == 8
    wrong = np.where(np.arange(48) == 47, np.nan, X)
    found = parprims.histogram(put(wrong, mesh, "i"))
    alone = parprims.histogram(wrong)
    np.testing.assert_array_equal(found[0], alone[0])
    np.testing.assert_array_equal(found[1], alone[1])
    with pytest.raises(ValueError, match="bins is sharded over 8 devices"):  # edges that are split, beside elements
        parprims.histogram(jax.numpy.asarray(X), put(np.arange(8.0), mesh, "i"))


if __name__ == "__main__":
    import jax as own

    own.config.update("jax_enable_x64", True)
    devices.run_all(globals())
