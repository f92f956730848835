"""Sums with the same bits everywhere, of arrays that several devices or chunks hold: the bits of one device."""

import itertools

import numpy as np
import pytest

import parprims
from tests.on_jax import test_jax
from tests.primitives.reproducible.test_reproducible_sums import EVERYWHERE, KINDS, agree, dtype_of, terms
from tests.support import devices

jax = test_jax.jax

COUNTS = (1, 2, 3, 4, 8)
ROWS, COLUMNS = 24, 5
EDGES = (-1.0, -0.25, 0.0, 0.5, 1.0)


def calls(by="auto", **options):
    """Return the calls on two arrays of 24 rows, of which all but the last two work along the first axis."""
    options = {"method": by, **EVERYWHERE, **options}
    return {
        "sum of columns": lambda x, _: parprims.sum(x, axis=0, **options),
        "sum of all": lambda x, _: parprims.reduce(x, keepdims=True, **options),
        "product of vectors": lambda x, y: parprims.vecdot(x.reshape(-1), y.reshape(-1), **options),
        "running sum": lambda x, _: parprims.cumulative_sum(x, axis=0, **options),
        "even bins": lambda x, y: parprims.histogram(x, 4, weights=y, **options)[0],
        "bins of a range": lambda x, y: parprims.histogram(x, 4, range=(-1.0, 1.0), weights=y, **options)[0],
        "bins of edges": lambda x, y: parprims.histogram(x, EDGES, weights=y, **options)[0],
        "sum of rows": lambda x, _: parprims.sum(x, axis=1, keepdims=True, **options),
        "running sum of rows": lambda x, _: parprims.cumulative_sum(x, axis=1, **options),
    }


def tables(kind, name, rng):
    """Return two tables: terms of a kind, and terms between -1 and 1."""
    x = terms(kind, name, ROWS * COLUMNS, rng).reshape(ROWS, COLUMNS)
    return x, rng.uniform(-1, 1, x.shape).astype(x.dtype)


def given(call, x, y):
    """Return the arrays of a call: in histograms the terms are the weights."""
    return (y, x) if "bins" in call else (x, y)


@pytest.mark.usefixtures("jax")
def test_on_eight_devices(backend, subtests):
    if backend.cuda:
        pytest.skip("is of a CPU")
    devices.hold("tests.on_devices.test_devices_everywhere", subtests)


# ---- Chunks -----------------------------------------------------------------------------------------------------

CUTS = [((24,), (5,)), ((7, 1, 16), (5,)), ((3,) * 8, (2, 3)), ((24,), (1, 4)), ((1,) * 24, (1,) * 5)]


@pytest.mark.once
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["wide", "tiny", "huge", "cancelling", "both", "nan"])
def test_chunks(rng, kind, name, subtests):
    """Every call is cut in two ways; other kinds of terms and dtypes are cut in others."""
    dask = pytest.importorskip("dask.array")
    x, y = tables(kind, name, rng)
    ways = itertools.cycle(CUTS[len(kind) % 5 :] + CUTS[: len(kind) % 5])
    for call, function in calls().items():
        pair = given(call, x, y)
        expected = calls("array")[call](*pair)
        for cut in itertools.islice(ways, 2):
            with subtests.test(call=call, cut=cut):
                found = function(*[dask.from_array(one, chunks=cut) for one in pair])
                assert found.dtype == expected.dtype
                assert found.shape == expected.shape
                agree(found.compute(scheduler="sync"), expected)


@pytest.mark.once
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_order_of_chunks(rng, name):
    """The chunks of a permuted array have the same sum."""
    dask = pytest.importorskip("dask.array")
    x = terms("wide", name, 1000, rng)
    expected = parprims.sum(x, method="array", **EVERYWHERE)
    for chunks in (1, 17, 999, 1000):
        if chunks > 1:
            agree(parprims.sum(dask.from_array(rng.permutation(x), chunks=chunks), **EVERYWHERE).compute(), expected)
    by = parprims.methods(parprims.sum, dask.from_array(x, chunks=100), **EVERYWHERE)
    for method, reason in by.items():
        if reason is None:
            agree(parprims.sum(dask.from_array(x, chunks=100), method=method, **EVERYWHERE).compute(), expected)


WRONG = [
    (lambda x: parprims.reduce(x, initial=1.0, **EVERYWHERE), "reproducible must be None with initial"),
    (lambda x: parprims.reduce(x, "maximum", **EVERYWHERE), "reproducible must be None with op maximum"),
    (lambda x: parprims.sum(x + 0j, **EVERYWHERE), "x must be real with reproducible, got complex"),
    (lambda x: parprims.cumulative_sum(x, exclusive=True, **EVERYWHERE), "exclusive must be False with reproducible"),
    (lambda x: parprims.cumulative_sum(x, include_initial=True, **EVERYWHERE), "include_initial must be False"),
    (lambda x: parprims.histogram(x, 3, weights=x, density=True, **EVERYWHERE), "reproducible must be None with dens"),
    (lambda x: parprims.sum(x, reproducible="always"), "reproducible must be None or 'everywhere'"),
]


def refused(x, offsets, ids):
    """Assert that calls on a split array raise errors that name the argument."""
    for call, message in WRONG:
        with pytest.raises((TypeError, ValueError), match=message):
            call(x)
    with pytest.raises((TypeError, ValueError), match=r"sharded over|dask|DTensor"):
        parprims.reduce(x, offsets=offsets, **EVERYWHERE)
    with pytest.raises((TypeError, ValueError), match=r"sharded over|dask|DTensor"):
        parprims.segment_reduce(x, ids, 2, **EVERYWHERE)


@pytest.mark.once
def test_chunks_are_refused_before_they_are_computed():
    dask = pytest.importorskip("dask.array")

    def unread():
        raise AssertionError("a chunk was read")

    import dask as tasks

    x = dask.from_delayed(tasks.delayed(unread)(), (24,), meta=np.zeros(0)).rechunk(5)
    refused(x, np.asarray([0, 24]), np.zeros(24, np.int64))
    many = dask.zeros(2**32, chunks=2**28, dtype=np.float32)
    with pytest.raises(ValueError, match=r"x must have at most 2\^32 - 1 terms"):
        parprims.sum(many, **EVERYWHERE)


# ---- In the process with eight devices --------------------------------------------------------------------------


def mesh_of(count, kind="Explicit", names=("i",), shape=None):
    import jax

    kinds = (getattr(jax.sharding.AxisType, kind),) * len(names)
    return jax.make_mesh(shape or (count,), names, axis_types=kinds, devices=jax.devices()[:count])


def put(x, mesh, *spec):
    import jax

    return jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))


RNG = np.random.default_rng(42)


def compare(made, kinds, name, *, named):
    """Compare results by functions of two tables that ``made`` returns for the name of a call."""
    tables_of_kinds = {kind: tables(kind, name, RNG) for kind in kinds}
    for call in calls():
        function = made(call)
        for kind, of_kind in tables_of_kinds.items():
            pair = given(call, *of_kind)
            with np.errstate(all="ignore"):
                expected = calls("array")[call](*pair)
            try:
                agree(np.asarray(function(*pair)), expected)
            except AssertionError as error:
                raise AssertionError(f"{named}, {call} of {kind} {name}") from error


def check_any_number_of_devices():
    for count in COUNTS:
        mesh = mesh_of(count, "Auto" if count == 3 else "Explicit")
        for name in ("float32", "float64") if count in (3, 8) else ("float32",):

            def made(call, mesh=mesh):
                return lambda *pair: calls()[call](*(put(x, mesh, "i") for x in pair))

            compare(made, KINDS, name, named=f"{count} devices")


def check_floats_of_16_bits():
    mesh = mesh_of(4)
    for name in ("float16", "bfloat16"):
        pair = tables("wide", name, RNG)
        for call in ("sum of columns", "running sum", "bins of a range"):
            expected = calls("array")[call](*(x.astype(dtype_of(name)) for x in given(call, *pair)))
            agree(np.asarray(calls()[call](*(put(x, mesh, "i") for x in given(call, *pair)))), np.asarray(expected))


def check_without_64_bits():
    import jax

    mesh = mesh_of(4)
    with jax.enable_x64(False):
        compare(lambda call: lambda *pair: calls()[call](*(put(x, mesh, "i") for x in pair)), ("wide", "tiny", "nan"),
                "float32", named="without 64 bits")  # fmt: skip
        x = put(np.ones(8, np.float32), mesh, "i")
        assert parprims.sum(x, **EVERYWHERE).dtype == np.float32


def check_every_method():
    mesh = mesh_of(2)
    for call in calls():
        pair = given(call, *tables("wide", "float32", RNG))
        expected = calls("array")[call](*pair)
        split = [put(x, mesh, "i") for x in pair]
        listed = parprims.methods(calls()[call], *split)
        assert None in listed.values(), call
        for method, reason in listed.items():
            if reason is None:
                agree(np.asarray(calls(method)[call](*split)), expected)


def check_several_split_axes():
    mesh = mesh_of(8, names=("i", "j"), shape=(4, 2))
    for spec in (("i", "j"), (("i", "j"),), ("j",), (None, "i"), ("j", "i")):
        x, y = (terms(kind, "float32", 64, RNG).reshape(8, 8) for kind in ("wide", "tiny"))
        split = [put(one, mesh, *spec) for one in (x, y)]
        for function in (
            lambda x, _: parprims.sum(x, **EVERYWHERE),
            lambda x, _: parprims.sum(x, axis=(0, 1), keepdims=True, **EVERYWHERE),
            lambda x, y: parprims.vecdot(x, y, **EVERYWHERE),
            lambda x, _: parprims.cumulative_sum(x, axis=1, **EVERYWHERE),
            lambda x, y: parprims.histogram(x, 3, weights=y, **EVERYWHERE)[0],
        ):
            agree(np.asarray(function(*split)), function(x, y))


def check_programs():
    """Over meshes with axes of both types, and inside shard_map. No message grows with the part."""
    import jax
    from jax.sharding import PartitionSpec

    for kind in ("Auto", "Explicit"):
        mesh = mesh_of(3, kind)

        def made(call, mesh=mesh):
            program = jax.jit(calls()[call])
            return lambda *pair: program(*(put(x, mesh, "i") for x in pair))

        compare(made, ("wide", "tiny", "cancelling", "both"), "float32", named=f"jit, {kind}")
    mesh = mesh_of(4)

    def inside(call):
        out = PartitionSpec("i") if call == "running sum" else PartitionSpec()
        function = calls(axis_name="i")[call]
        program = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=PartitionSpec("i"), out_specs=out))
        return lambda *pair: program(*(put(x, mesh, "i") for x in pair))

    split = [call for call in calls() if "of rows" not in call]
    for call in split:
        for kind in ("wide", "tiny", "nan"):
            pair = given(call, *tables(kind, "float32", RNG))
            agree(np.asarray(inside(call)(*pair)), calls("array")[call](*pair))


def check_64_bits_in_a_part_of_a_program():
    """XLA divides arrays in threads of its own, where JAX has the dtypes of the whole process."""
    import jax

    x, mesh = RNG.normal(size=32), mesh_of(4, "Auto")
    jax.config.update("jax_enable_x64", False)
    try:
        with jax.enable_x64(True):
            split = put(x, mesh, "i")
            for call in (parprims.scan, parprims.sort, lambda x: parprims.sum(x, method="array")):
                found = jax.jit(call)(split)
                assert found.dtype == np.float64
                np.testing.assert_allclose(found, call(x), rtol=1e-13)
        single = put(x.astype(np.float32), mesh, "i")
        agree(np.asarray(jax.jit(lambda x: parprims.sum(x, **EVERYWHERE))(single)),
              parprims.sum(x.astype(np.float32), method="array", **EVERYWHERE))  # fmt: skip
    finally:
        jax.config.update("jax_enable_x64", True)


def check_derivatives():
    import jax

    mesh = mesh_of(4)
    x, y = (put(one, mesh, "i") for one in tables("normal", "float32", RNG))
    for call in ("sum of columns", "product of vectors", "running sum", "bins of a range"):
        function, floats = calls()[call], calls(reproducible=None)[call]
        pair = given(call, x, y)
        expected = calls("array")[call](*map(np.asarray, pair))

        def loss(function, *pair):
            return (function(*pair) ** 2).sum()

        for by in (0, 1) if call == "product of vectors" else (1,) if "bins" in call else (0,):
            agree(np.asarray(jax.jit(lambda *pair, f=function: jax.vjp(f, *pair)[0])(*pair)), expected)
            slopes = [jax.jit(jax.grad(lambda *pair, f=f: loss(f, *pair), argnums=by)) for f in (function, floats)]
            got, wanted = (slope(*pair) for slope in slopes)
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
            agree(np.asarray(jax.jit(lambda *pair, f=function: jax.vjp(f, *pair)[0])(*pair)), expected)


def check_messages_and_refusals():
    import jax

    mesh = mesh_of(4)
    x = put(np.ones(1024, np.float32), mesh, "i")
    for call in (parprims.sum, parprims.cumulative_sum):
        with parprims.explain() as told:
            call(x, **EVERYWHERE)
        (one,) = told
        assert one.devices == 4
        assert [step.name for step in one.steps] == ["gather", "gather"]
        assert sum(step.nbytes for step in one.steps) <= 3 * (4 + 16)
    refused(x, jax.numpy.asarray([0, 1024]), jax.numpy.zeros(1024, int))
    with pytest.raises(ValueError, match="axis_name must name axes of a mesh inside"):
        parprims.sum(jax.numpy.ones(3), axis_name="i", **EVERYWHERE)
    assert int(parprims.sum(put(np.arange(8), mesh, "i"), **EVERYWHERE)) == 28  # integers are exact already


if __name__ == "__main__":
    import jax as own

    own.config.update("jax_enable_x64", True)
    devices.run_all(globals())
