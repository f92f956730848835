"""Sorts of arrays that are split over devices, against NumPy's stable sort."""

import numpy as np
import pytest

import parprims
from parprims._primitives.search import merge_cuda as search_merge_cuda
from tests.on_devices.test_devices_scans import mesh_of, put
from tests.on_jax import test_jax
from tests.support import devices
from tests.support.sort_keys import hostile, stable

jax = test_jax.jax

N = 48


@pytest.mark.usefixtures("jax")
def test_on_eight_devices(backend, subtests):
    if backend.cuda:
        pytest.skip("is of a CPU")
    devices.hold("tests.on_devices.test_devices_sorts", subtests)


# ---- In the process with eight devices --------------------------------------------------------------------------

RNG = np.random.default_rng(24)
# Keys of 16 bits mostly, whose cuts take two rounds to find: their values are what is hard.
REAL = {
    "random": RNG.standard_normal(N).astype(np.float16),
    "equal": np.ones(N, np.float16),
    "reversed": np.arange(N, 0, -1).astype(np.float16),
    "sorted": np.arange(N).astype(np.float16),
    "special": RNG.choice(np.array([np.nan, -np.nan, -0.0, 0.0, np.inf, -np.inf], np.float16), N),
}
WHOLE = {
    "uint64": RNG.integers(0, 2**64, N, dtype=np.uint64),
    "few": RNG.integers(-2, 2, N).astype(np.int8),
    "bool": RNG.random(N) < 0.5,
    "float32": RNG.standard_normal(N).astype(np.float32),
}


def check_keys_of_every_kind_on_any_number_of_devices():
    for count in (1, 2, 3, 4, 8):
        mesh = mesh_of(count, "Auto" if count == 4 else "Explicit")
        cases = REAL if count in (3, 8) else {name: REAL[name] for name in ("equal", "special")}
        for name, x in (cases | (WHOLE if count == 8 else {})).items():
            for descending in (False, True) if name in REAL and count in (2, 8) else (name in ("few", "float32"),):
                expected = stable(x, descending)
                keys, index = parprims.sort_by_key(
                    put(x, mesh, "i"), put(np.arange(N), mesh, "i"), descending=descending
                )
                assert np.asarray(index).tolist() == expected.tolist(), (count, name, descending)
                assert np.asarray(keys).tobytes() == x[expected].tobytes(), (count, name, descending)
                assert keys.sharding.is_equivalent_to(put(x, mesh, "i").sharding, 1)  # every device has its n / P
            if (count, name) == (8, "equal"):
                assert np.asarray(parprims.argsort(put(x, mesh, "i"))).tolist() == list(range(N))
                assert np.asarray(parprims.sort(put(x, mesh, "i"))).tobytes() == x.tobytes()


def check_splits_of_hostile_keys():
    """Every device gets exactly its keys, by short searches and by long: counts gathered or traded, steps in a loop."""
    from parprims._devices import jax_mesh, sorts

    cases = hostile(N, np.random.default_rng(30))
    for count, long in ((2, False), (8, False), (8, True)):
        mesh = mesh_of(count)
        with pytest.MonkeyPatch.context() as patch:
            jax_mesh._programs._found.clear()
            if long:
                patch.setattr(sorts, "FEW", 1)
                patch.setattr(sorts, "_UNROLLED", 0)
            for name, x in cases.items():
                order = stable(x, descending=long)
                given = put(x, mesh, "i"), put(np.arange(N), mesh, "i")
                keys, index = parprims.sort_by_key(*given, descending=long)
                assert {shard.data.shape for shard in keys.addressable_shards} == {(N // count,)}
                assert np.asarray(index).tolist() == order.tolist(), (count, long, name)
                assert np.asarray(keys).tobytes() == x[order].tobytes(), (count, long, name)
    jax_mesh._programs._found.clear()


def check_rows_and_columns():
    both = mesh_of(8, names=("i", "j"), shape=(4, 2))
    rows = RNG.integers(0, 9, (4, N)).astype(np.int16)
    for spec in (("i", "j"), (None, ("j", "i"))):
        found = parprims.argsort(put(rows, both, *spec))
        assert (np.asarray(found) == np.argsort(rows, axis=1, kind="stable")).all()
    found = parprims.sort(put(rows.T, both, "i"), axis=0, descending=True)
    assert (np.asarray(found) == -np.sort(-rows.T, axis=0)).all()
    with parprims.explain() as calls:
        parprims.sort(put(rows, both, "i"))
    assert [(one.devices, one.steps) for one in calls] == [(1, ())]
    assert parprims.sort(put(rows[:, :0], both, None, "j")).shape == (4, 0)


def check_programs():
    import jax

    spec = jax.sharding.PartitionSpec
    x, values = RNG.standard_normal((2, N)).astype(np.float32)
    weights = np.arange(N, dtype=np.float32)

    def loss(keys, values, weights):
        keys, values = parprims.sort_by_key(keys, values)
        return ((keys * keys + values) * weights).sum()

    expected = jax.grad(loss, (0, 1))(*map(jax.numpy.asarray, (x, values, weights)))
    mesh = mesh_of(4)
    arrays = tuple(put(one, mesh, "i") for one in (x, values, weights))
    for one, other in zip(jax.jit(jax.grad(loss, (0, 1)))(*arrays), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    large = put(np.tile(x, 100), mesh, "i")
    text = jax.jit(parprims.sort).lower(large).compile().as_text()
    assert f"f32[{100 * N}]" not in text
    assert " all-to-all(" in text
    for check in (True, False):
        mapped = jax.shard_map(
            lambda x: parprims.argsort(x, axis_name="i"),
            mesh=mesh, in_specs=spec("i"), out_specs=spec("i"), check_vma=check,
        )  # fmt: skip
        assert np.asarray(jax.jit(mapped)(arrays[0])).tolist() == np.argsort(x).tolist()
    auto = put(np.stack([x, values]), mesh_of(8, "Auto", ("i", "j"), (2, 4)), "i", "j")
    compiled = jax.jit(lambda x: parprims.sort(2 * x)).lower(auto).compile()
    assert (np.asarray(compiled(auto)) == np.sort(2 * np.asarray(auto))).all()
    assert f"f32[2,{N}]" not in compiled.as_text()
    with pytest.raises(parprims.MethodRefused, match="derivative"):
        jax.jit(jax.grad(lambda x: parprims.sort(x)[0, 0]))(auto)


def check_parts_that_go_in_many_rounds():
    """In blocks of five elements, of which none holds a part; one row is written by slices, two by places."""
    from parprims._devices import jax_mesh

    kept, jax_mesh.LONGEST_BLOCK = jax_mesh.LONGEST_BLOCK, 5
    jax_mesh._programs._found.clear()
    try:
        for count in (2, 3):
            mesh = mesh_of(count)
            for name in ("random", "reversed", "equal"):
                x = WHOLE["float32"] if name == "random" else REAL[name]
                found = parprims.argsort(put(x, mesh, "i"), descending=count == 3)
                assert np.asarray(found).tolist() == stable(x, count == 3).tolist(), (count, name)
                rows = np.stack([x, x[::-1]])
                assert (np.asarray(parprims.sort(put(rows, mesh, None, "i"))) == np.sort(rows)).all(), (count, name)
    finally:
        jax_mesh.LONGEST_BLOCK = kept
        jax_mesh._programs._found.clear()


def check_indices_in_parts_of_a_long_axis():
    """With the numbers of the parts beside them, as where 32 bits are too few for the whole axis."""
    from parprims._devices import jax_mesh, sorts

    kept, sorts.LONGEST_SHORT = sorts.LONGEST_SHORT, N // 2 - 1
    jax_mesh._programs._found.clear()
    try:
        for count in (2, 3):  # in 64 bits and in 32
            mesh = mesh_of(count)
            for name in ("random", "equal"):
                x = REAL[name]
                found = parprims.argsort(put(x, mesh, "i"), descending=count == 3)
                assert found.dtype == np.int64
                assert np.asarray(found).tolist() == stable(x, count == 3).tolist(), (count, name)
            rows = np.stack([x, REAL["reversed"]])
            found = parprims.argsort(put(rows, mesh, None, "i"))
            assert (np.asarray(found) == np.argsort(rows, axis=1, kind="stable")).all()
    finally:
        sorts.LONGEST_SHORT = kept
        jax_mesh._programs._found.clear()


def check_memory_on_gpus():
    """XLA plans the memory of a program with kernels, though it could not run them: at most twice that of the arrays.

    A device has keys of 4 bytes and indices of 8. It sorts, sends and merges keys and numbers of 4 bytes each, beside
    which a long axis has one byte, and needs memory for three of these.
    """
    import types

    import jax

    from parprims import _cuda
    from parprims._devices import jax_mesh, sorts

    n = 2**24
    x = jax.ShapeDtypeStruct((n,), np.uint32, sharding=put(np.zeros(2), mesh_of(2), "i").sharding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_cuda, "refusal", lambda *_: None)
        patch.setattr(_cuda.xla, "devices", lambda: [types.SimpleNamespace(compute_capability="9.0")])
        patch.setattr(_cuda.xla, "TARGET", "lapack_spotrf_ffi")  # one that XLA knows on CPUs
        patch.setattr(_cuda.compiler, "compiled_together", lambda sources: [b""] * len(sources))
        patch.setattr(jax.lax, "platform_dependent", lambda *arrays, cuda, **_: cuda(*arrays))
        patch.setattr(sorts, "LONGEST_SHORT", n // 2)
        patch.setattr(jax_mesh, "LONGEST_BLOCK", n // 64)  # as short beside a part as in long axes
        compiled = jax.jit(parprims.argsort).lower(x).compile()
    assert compiled.as_text().count("lapack_spotrf_ffi") > 4  # each pass of the sort is a kernel
    found = compiled.memory_analysis()
    assert found.temp_size_in_bytes <= 2 * (found.argument_size_in_bytes + found.output_size_in_bytes)
    jax_mesh._programs._found.clear()


def check_parts_that_arrive_are_merged():
    """By the steps that a kernel merges in, here computed by what stands for it on a CPU."""
    import jax

    kept, order = jax.lax.ppermute, []

    def sent(*arguments):
        order.append("sent")
        return kept(*arguments)

    def merger(*_, otherwise, **__):
        order.append("merged")
        return otherwise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_merge_cuda, "refusal", lambda *_: None)
        patch.setattr(search_merge_cuda, "merger", merger)
        patch.setattr(jax.lax, "ppermute", sent)
        for count, shape in ((2, (4, 64)), (4, (1, 128)), (8, (2, 256))):
            mesh = mesh_of(count)
            n = shape[1]
            cases = {
                "random": RNG.integers(0, 9, shape).astype(np.int16),
                "equal": np.zeros(shape, np.int16),
                "skewed": np.tile(np.arange(n, 0, -1, dtype=np.int16), (shape[0], 1)),
            }
            numbers = np.broadcast_to(np.arange(n), shape)
            program = jax.jit(lambda keys, values: parprims.sort_by_key(keys, values, descending=True))
            for name, keys in cases.items():
                given = put(keys, mesh, None, "i"), put(numbers, mesh, None, "i")
                found, index = program(*given)
                expected = np.argsort(-keys, axis=1, kind="stable")
                assert (np.asarray(index) == expected).all(), (count, name)
                assert (np.asarray(found) == np.take_along_axis(keys, expected, 1)).all(), (count, name)
            text = program.lower(*given).compile().as_text()
            assert text.count(" collective-permute(") >= count - 1
            assert order[:3] == ["sent", "sent", "merged"]  # keys and values; no merge waits for later pieces
            order.clear()
        x = RNG.standard_normal(96).astype(np.float32)
        weights = np.arange(96, dtype=np.float32)
        one = jax.grad(lambda x: (parprims.sort(x) * weights).sum())
        np.testing.assert_allclose(jax.jit(one)(put(x, mesh_of(2), "i")), one(jax.numpy.asarray(x)), rtol=1e-6)


if __name__ == "__main__":
    import jax as own

    own.config.update("jax_enable_x64", True)
    devices.run_all(globals())
