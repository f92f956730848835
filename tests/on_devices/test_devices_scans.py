"""Reductions, scans and recurrences of arrays that are split over devices, against the same calls on one device."""

import collections

import numpy as np
import pytest

import parprims
from parprims._devices import calls
from tests.on_devices.test_devices_dask import ARRAYS, OF_ONE, outcome
from tests.on_jax import test_jax
from tests.project.test_package import run_examples
from tests.support import devices

jax = test_jax.jax

N = 24
COUNTS = (1, 2, 3, 4, 8)


@pytest.mark.usefixtures("jax")
def test_on_eight_devices(backend, subtests):
    if backend.cuda:
        pytest.skip("is of a CPU")
    devices.hold("tests.on_devices.test_devices_scans", subtests)


# ---- In the process with eight devices --------------------------------------------------------------------------


def mesh_of(count, kind="Explicit", names=("i",), shape=None):
    import jax

    kinds = (getattr(jax.sharding.AxisType, kind),) * len(names)
    return jax.make_mesh(shape or (count,), names, axis_types=kinds, devices=jax.devices()[:count])


def put(x, mesh, *spec):
    import jax

    return jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))


def near(found, expected, steps=64):
    """Compare with what one device computes: integers are equal, floats within so many units of the largest."""
    found, expected = (x if isinstance(x, tuple) else (x,) for x in (found, expected))
    for one, other in zip(found, expected, strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        if one.dtype.kind == "f":
            size = np.max(np.abs(other), where=np.isfinite(other), initial=0.0)
            np.testing.assert_allclose(one, other, rtol=0, atol=steps * np.finfo(one.dtype).eps * size)
        else:
            np.testing.assert_array_equal(one, other)


def matrices(x, y):
    """An operator that does not commute: products of 2 by 2 matrices of integers that wrap."""
    a, b, c, d = x
    e, f, g, h = y
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


RNG = np.random.default_rng(23)
WHOLE = RNG.integers(-50, 50, N).astype(np.int32)
REAL = RNG.standard_normal(N)
DECAY = RNG.uniform(-1, 1, N)
ROWS = RNG.standard_normal((3, N))
PARTS = tuple(RNG.integers(-5, 5, N).astype(np.int32) for _ in range(4))
STARTS = RNG.random(N) < 0.2
SINGLES = np.full(N, 2.0**14, np.float32)
SINGLES[N // 2 :] *= -1
SINGLES[-1] += 2049
HALVES = SINGLES.astype(np.float16)  # sums of parts are larger than any of 16 bits, and the sum of all is exact
TURNS = RNG.integers(-1, 2, (N, 2, 2)).astype(np.float64), RNG.integers(-1, 2, (N, 2)).astype(np.float64)
Moments = collections.namedtuple("Moments", "total squares")


def turned(earlier, later):
    """Compose maps x -> turn x + move, in a tree of leaves of several shapes."""
    move = (later["turn"] @ earlier["move"][..., None])[..., 0] + later["move"]
    return {"turn": later["turn"] @ earlier["turn"], "move": move, "none": None}


def of_turns(function, *leaves, **options):
    """Return the leaves of a call on the tree of these leaves, along axis 0."""
    begin = options.get("initial")
    if begin and not isinstance(leaves[0], np.ndarray):
        import jax

        options["initial"] = {key: one if one is None else jax.numpy.asarray(one) for key, one in begin.items()}
    found = function(dict(zip(("turn", "move", "none"), (*leaves, None), strict=True)), turned, axis=0, **options)
    assert found["none"] is None
    return found["turn"], found["move"]


BEGIN = {"turn": np.array([[0.0, 1.0], [2.0, 0.0]]), "move": 3.0, "none": None}

# Not the examples of the declarations: states, dtypes and operators that devices exchange in different messages.
CALLS = {
    "sum": (lambda x: parprims.sum(x), (WHOLE,)),
    "max": (lambda x: parprims.max(x, keepdims=True), (REAL,)),
    "all": (lambda x: parprims.all(x), (WHOLE,)),
    "vecdot": (lambda x, y: parprims.vecdot(x, y), (REAL, DECAY)),
    "argmax": (lambda x, y: parprims.reduce((x, y), "argmax"), (REAL, np.arange(N))),
    "matrices": (lambda *xs: parprims.reduce(xs, matrices, initial=(1, 2, 3, 4)), PARTS),
    "moments": (lambda x: tuple(parprims.map_reduce(lambda x: Moments(x, x * x), x, op=added)), (REAL,)),
    "sum of half": (lambda x: parprims.sum(x), (REAL.astype(np.float16),)),
    "map of halves": (lambda x: parprims.map_reduce(lambda x: x * 2 - x, x), (HALVES,)),
    "map of halves to singles": (lambda x: parprims.map_reduce(lambda x: x * 2, x, dtype="float32"), (HALVES,)),
    "map of singles to halves": (lambda x: parprims.map_reduce(lambda x: x * 1, x, dtype="float16"), (SINGLES,)),
    "sum of singles to halves": (lambda x: parprims.sum(x, dtype="float16"), (SINGLES,)),
    "map of two halves": (lambda x, y: parprims.map_reduce(lambda x, y: x - y, x, y), (HALVES, HALVES * 0 + 1)),
    "map of halves to moments": (
        lambda x: tuple(parprims.map_reduce(lambda x: Moments(x, -x), x, op=added, initial=(3.0, 4.0))), (HALVES,),
    ),
    "map of halves from an array": (
        lambda x: parprims.map_reduce(lambda x: x * 1, x, initial=x.sum() * 0 + 1), (HALVES,),
    ),
    "sum of halves from an array": (lambda x: parprims.reduce(x, initial=x.sum() * 0 + 1), (HALVES,)),
    "pairs of halves": (lambda x, y: parprims.reduce((x, y), pairwise, initial=(0, 0)), (HALVES, -HALVES)),
    "vecdot of halves": (lambda x, y: parprims.vecdot(x, y), (HALVES, HALVES * 0 + 1)),
    "scan": (lambda x: parprims.scan(x), (WHOLE,)),
    "scan of floats": (lambda x: parprims.scan(x, exclusive=True, reverse=True), (REAL,)),
    "scan of half": (lambda x: parprims.scan(x), (REAL.astype(np.float16),)),
    "scan of matrices": (lambda *xs: parprims.scan(xs, matrices), PARTS),
    "scan of matrices back": (
        lambda *xs: parprims.scan(xs, matrices, reverse=True, exclusive=True, initial=(1, 2, 3, 4)), PARTS,
    ),
    "scan of segments": (lambda x, y: parprims.scan((x, y), parprims.segmented("add"))[1], (STARTS, WHOLE)),
    "scan of maps": (lambda x, y: parprims.scan((x, y), "affine"), (DECAY, REAL)),
    "cumulative_prod": (lambda x: parprims.cumulative_prod(x), (DECAY,)),
    "tree": (lambda *xs: of_turns(parprims.scan, *xs), TURNS),
    "tree back": (lambda *xs: of_turns(parprims.scan, *xs, reverse=True, initial=BEGIN), TURNS),
    "tree before": (lambda *xs: of_turns(parprims.scan, *xs, exclusive=True, initial=BEGIN), TURNS),
    "total of a tree": (lambda *xs: of_turns(parprims.reduce, *xs, keepdims=True), TURNS),
    "total of a tree from an element": (lambda *xs: of_turns(parprims.reduce, *xs, initial=BEGIN), TURNS),
    "total of a tree from numbers": (
        lambda *xs: of_turns(parprims.reduce, *xs, initial=BEGIN | {"turn": 1.0}, keepdims=True), TURNS,
    ),
    "recurrence": (lambda a, b: parprims.linear_recurrence(a, b), (DECAY, REAL)),
    "recurrence back": (lambda a, b: parprims.linear_recurrence(a, b, reverse=True, initial=3.0), (DECAY, REAL)),
    "recurrence of a constant": (lambda b: parprims.linear_recurrence(0.5, b), (REAL,)),
}  # fmt: skip


def pairwise(x, y):
    return x[0] + y[0], x[1] + y[1]


def added(x, y):
    return Moments(x.total + y.total, x.squares + y.squares)


def check_every_call_on_any_number_of_devices():
    for name, (call, arrays) in CALLS.items():
        expected = call(*arrays)
        counts = COUNTS if name in ("sum", "scan", "recurrence", "scan of matrices") else (3, 8)
        for count in counts:
            mesh = mesh_of(count, "Auto" if count == 3 else "Explicit")
            with parprims.explain() as told:
                found = call(*(put(x, mesh, "i") for x in arrays))
            near(found, expected, 0 if "halves" in name else 64)
            (one,) = told
            assert one.devices == count, name
            assert sum(step.nbytes for step in one.steps) <= 64 * count * len(arrays), name
            if found[0].ndim if isinstance(found, tuple) else found.ndim:
                first = found[0] if isinstance(found, tuple) else found
                assert first.shape != (N,) or count == 1 or not first.is_fully_replicated, name


def check_integers_and_bits_stay():
    import jax

    mesh = mesh_of(4)
    x = put(REAL, mesh, "i")
    one, other = (np.asarray(parprims.scan(x)) for _ in range(2))
    assert one.tobytes() == other.tobytes()
    a = np.where(np.arange(N) == 0, np.nan, DECAY)  # the first coefficient is not read
    near(parprims.linear_recurrence(put(a, mesh, "i"), x), parprims.linear_recurrence(DECAY, REAL))
    assert jax.typeof(parprims.scan(x)).sharding.spec == x.sharding.spec


def check_batches_and_two_axes():
    import jax

    both = mesh_of(8, names=("i", "j"), shape=(4, 2))
    rows = RNG.standard_normal((8, N))
    for spec, devs in ((("i",), 1), ((None, "i"), 4), (("j", "i"), 4), ((None, ("i", "j")), 8), (("i", "j"), 2)):
        with parprims.explain() as told:
            found = parprims.scan(put(rows, both, *spec), axis=1)
            total = parprims.sum(put(rows, both, *spec), axis=1)
        near(total, parprims.sum(rows, axis=1))
        near(found, parprims.scan(rows, axis=1))
        assert [one.devices for one in told] == [devs] * 2, (spec, told)
        assert devs > 1 or not told[0].steps
        assert found.sharding.is_equivalent_to(put(rows, both, *spec).sharding, 2)
        near(parprims.sum(put(rows, both, *spec)), parprims.sum(rows))
    whole = tuple(RNG.integers(-5, 5, (4, N)).astype(np.int32) for _ in range(4))
    for spec in (("i",), ("i", "j"), (None, "j")):  # in row-major order whatever is split
        near(
            parprims.reduce(tuple(put(x, both, *spec) for x in whole), matrices),
            parprims.reduce(whole, matrices),
        )
    a = np.full((8, 1), 0.5)
    near(
        parprims.linear_recurrence(put(a, both, "j"), put(rows, both, None, "i"), initial=jax.numpy.ones(8)),
        parprims.linear_recurrence(a, rows, initial=np.ones(8)),
    )


def check_trees():
    """Whose leaves have axes of their own: behind an axis that is split too, in programs, and inside of shard_map."""
    import jax

    both = mesh_of(8, names=("i", "j"), shape=(4, 2))
    rows = [np.stack([x, x[::-1]]) for x in TURNS]

    def call(*leaves):
        tree = dict(zip(("turn", "move", "none"), (*leaves, None), strict=True))
        y, total = parprims.scan(tree, turned, axis=1), parprims.reduce(tree, turned, axis=1)
        return y["turn"], y["move"], total["turn"], total["move"]

    for spec in (("j", "i"), (None, ("i", "j")), ("j",)):
        split = [put(x, both, *spec) for x in rows]
        near(call(*split), call(*rows))
        near(jax.jit(call)(*split), call(*rows))
        assert call(*split)[1].sharding.is_equivalent_to(split[1].sharding, 3)
    with pytest.raises(ValueError, match=r"^x\['turn'\] must not be split behind axis 1"):
        call(put(rows[0], both, None, "i", "j"), put(rows[1], both, None, "i"))
    square = put(RNG.standard_normal((N, 2, 2)), mesh_of(4, names=("i", "j"), shape=(2, 2)), None, "i", "j")
    for function in (parprims.scan, parprims.reduce):
        near(function(square, lambda x, y: x + y + x * y, axis=0), function(np.asarray(square), joined, axis=0))
        with pytest.raises(ValueError, match=r"^x must not be split behind axis 0"):
            function(square, lambda x, y: x @ y, axis=0)
    for split in ((None, "i", "j"), ("i",), ("i", None, "j")):  # XLA moves what is split otherwise
        square = put(np.asarray(square), mesh_of(4, "Auto", ("i", "j"), (2, 2)), *split)
        program = jax.jit(lambda x: parprims.scan(x, lambda p, q: q @ p, axis=0, method="array"))
        near(program(square), parprims.scan(np.asarray(square), lambda p, q: q @ p, axis=0))
    spec, mesh = jax.sharding.PartitionSpec, mesh_of(4)

    def part(*leaves):
        options = {"axis_name": "i", "initial": BEGIN}
        return of_turns(parprims.scan, *leaves, **options), of_turns(parprims.reduce, *leaves, **options)

    expected = of_turns(parprims.scan, *TURNS, initial=BEGIN), of_turns(parprims.reduce, *TURNS, initial=BEGIN)
    mapped = jax.shard_map(part, mesh=mesh, in_specs=spec("i"), out_specs=(spec("i"), spec()))
    found = jax.jit(mapped)(*[put(x, mesh, "i") for x in TURNS])
    for one, other in zip(found, expected, strict=True):
        near(one, other)

    def loss(*leaves):
        return (of_turns(parprims.scan, *leaves)[1] ** 2).sum() + of_turns(parprims.reduce, *leaves)[0].sum()

    arrays = [jax.numpy.asarray(x) for x in TURNS]
    derivatives = jax.jit(jax.grad(loss, (0, 1)))
    near(derivatives(*[put(x, mesh, "i") for x in arrays]), derivatives(*arrays), 256)


def joined(x, y):
    return x + y + x * y


def check_recurrences_that_forget():
    import jax

    mesh, n = mesh_of(4), 2**13
    calls.QUICK = n
    b = RNG.standard_normal((2, 4 * n)).astype(np.float32)
    decaying = RNG.uniform(-0.3, 0.3, b.shape).astype(np.float32)
    lasting = np.where(np.arange(4 * n) % n < 300, np.float32(1), decaying)  # the head of a part forgets nothing
    infinite = np.where(np.arange(4 * n) == n + 5, np.float32(np.inf), b)
    alone = parprims.linear_recurrence

    def solve(a, b):
        return alone(a, b, reverse=True, initial=1e30), alone(a, b), alone(np.float32(0.25), b)

    for coefficients, rhs in ((decaying, b), (lasting, b), (decaying, infinite)):
        split = [put(x, mesh, None, "i") for x in (coefficients, rhs)]
        for found, expected in zip(jax.jit(solve)(*split), solve(coefficients, rhs), strict=True):
            known = np.isfinite(expected)
            found, expected = (np.where(known, x, 0) for x in (found, expected))
            assert (np.isfinite(np.asarray(found)) == np.isfinite(expected)).all()
            for line, wanted in zip(found, expected, strict=True):
                inner = slice(None, -n)  # where 1e30 is forgotten
                np.testing.assert_allclose(line[inner], wanted[inner], rtol=0, atol=1e-5 * np.abs(wanted[inner]).max())
                np.testing.assert_allclose(line, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    (a, x), weights = [put(one, mesh, None, "i") for one in (decaying, b)], np.arange(4 * n, dtype=np.float32) % 7

    def loss(a, b):
        return (alone(a, b) * weights).sum()

    found = jax.jit(jax.grad(loss, (0, 1)))(a, x)
    expected = jax.jit(jax.grad(loss, (0, 1)))(*map(jax.numpy.asarray, (decaying, b)))
    calls.QUICK = 2**20
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())


def check_no_more_than_the_states_is_gathered():
    import jax

    mesh = mesh_of(8)
    x, y = (put(np.tile(one, 100), mesh, "i") for one in (REAL, DECAY))
    for call in (
        lambda x, _: parprims.scan(x),
        lambda x, y: parprims.linear_recurrence(y, x),
        lambda x, y: parprims.vecdot(x, y),
    ):
        text = jax.jit(call).lower(x, y).compile().as_text()
        gathered = [line for line in text.splitlines() if "all-gather(" in line or "all-to-all(" in line]
        assert all("f64[8" in line for line in gathered), gathered
        assert f"f64[{100 * N}]" not in text


def check_in_a_program_and_inside_of_shard_map():
    import jax

    spec = jax.sharding.PartitionSpec
    for kind in ("Explicit", "Auto"):
        mesh = mesh_of(4, kind)
        x, a = put(REAL, mesh, "i"), put(DECAY, mesh, "i")
        if kind == "Explicit":
            near(jax.jit(lambda x: parprims.scan(2 * x) + 1)(x), parprims.scan(2 * REAL) + 1)

        def part(x, a):
            total = parprims.sum(x, axis_name="i")
            return parprims.scan(x, axis_name="i"), parprims.linear_recurrence(a, x, axis_name="i"), total

        out = (spec("i"), spec("i"), spec())
        for check in (True, False):
            mapped = jax.jit(jax.shard_map(part, mesh=mesh, in_specs=spec("i"), out_specs=out, check_vma=check))
            with parprims.explain() as told:
                found = mapped(x, a)
            near(found, (parprims.scan(REAL), parprims.linear_recurrence(DECAY, REAL), parprims.sum(REAL)))
            assert [(one.primitive, one.devices) for one in told] == [
                ("sum", 4), ("scan", 4), ("linear_recurrence", 4),
            ]  # fmt: skip


def check_derivatives():
    import jax

    def loss(a, b, c):
        x = parprims.linear_recurrence(a, b)
        y = parprims.scan(x * c, reverse=True)
        z = parprims.scan((a, b), "affine")[1]
        return (y * y).sum() + parprims.sum(z * x) + parprims.map_reduce(jax.numpy.sin, b)

    arrays = tuple(map(jax.numpy.asarray, (DECAY, REAL, ROWS[0])))
    expected = jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays)
    mesh = mesh_of(4)
    split = tuple(put(x, mesh, "i") for x in arrays)
    near(jax.jit(jax.grad(loss, (0, 1, 2)))(*split), expected, 256)

    def part(*xs):
        y = parprims.linear_recurrence(xs[0], xs[1], axis_name="i")
        return parprims.sum(parprims.scan(y * xs[2], reverse=True, axis_name="i") ** 2, axis_name="i")

    def alone(*xs):
        return parprims.sum(parprims.scan(parprims.linear_recurrence(xs[0], xs[1]) * xs[2], reverse=True) ** 2)

    expected = jax.jit(jax.grad(alone, (0, 1, 2)))(*arrays)
    spec = jax.sharding.PartitionSpec
    mapped = jax.shard_map(part, mesh=mesh, in_specs=spec("i"), out_specs=spec())
    near(jax.jit(jax.grad(mapped, (0, 1, 2)))(*split), expected, 256)

    def by_a_number(b):
        return (parprims.linear_recurrence(0.5, b) ** 2).sum()

    with jax.set_mesh(mesh):  # outside of jit a derivative is traced over a mesh without devices
        near(jax.grad(by_a_number)(split[1]), jax.grad(by_a_number)(arrays[1]), 256)


def check_a_program_in_which_xla_places_the_parts():
    import jax

    mesh = mesh_of(8, "Auto", ("i", "j"), (4, 2))
    rows = RNG.standard_normal((4, N))

    def call(x):
        y = parprims.scan(2 * x) + parprims.linear_recurrence(0.5 * x, x, initial=1.0)
        return y + parprims.reduce(x, joined, axis=1, keepdims=True) + parprims.sum(x, method="array")

    def joined(x, y):
        return x + y + x * y * 1e-3

    for spec in ((), ("i",), ("j", "i"), (None, ("i", "j"))):
        x = put(rows, mesh, *spec)
        compiled = jax.jit(call).lower(x).compile()
        near(compiled(x), call(rows))
        gathered = [line.split(" all-gather(")[0] for line in compiled.as_text().splitlines() if " all-gather(" in line]
        assert not any(f",{N}]" in line for line in gathered), gathered

    def loss(x):
        return (parprims.scan(x) * parprims.linear_recurrence(0.5 * x, x)).sum() + parprims.sum(x, method="array")

    x = put(rows, mesh, None, "i")
    compiled = jax.jit(jax.grad(loss)).lower(x).compile()
    near(compiled(x), jax.jit(jax.grad(loss))(jax.numpy.asarray(rows)), 256)
    assert f"f64[4,{N}]" not in "".join(
        line.split(" all-gather(")[0] for line in compiled.as_text().splitlines() if " all-gather(" in line
    )
    with pytest.raises(parprims.MethodRefused, match="type Auto"):
        jax.jit(lambda x: parprims.cumulative_sum(x, axis=1, include_initial=True))(x)


def check_what_is_refused():
    mesh = mesh_of(4)
    x = put(REAL, mesh, "i")
    other = put(REAL, mesh_of(2), "i")
    for call, words in (
        (lambda: parprims.scan(x, axis=3), "axis 3"),
        (lambda: parprims.scan(x, "addd"), "op must be one of"),
        (lambda: parprims.scan(x, method="bogus"), "method must be"),
        (lambda: parprims.cumulative_sum(x, include_initial=True), "include_initial"),
        (lambda: parprims.linear_recurrence(x, other), "different meshes"),
        (lambda: parprims.scan((put(STARTS, mesh, "i"), x), parprims.segmented("add"), exclusive=True), "exclusive"),
        (lambda: parprims.scan(REAL, axis_name="i"), "axis_name"),
        (lambda: parprims.linear_recurrence(x, REAL), "must all be JAX's"),
        (lambda: parprims.scan(x, axis_name="nowhere"), "axis_name must name axes"),
        (lambda: parprims.scan(x, reverse=1), "reverse must be True or False"),
        (lambda: parprims.sort(x, descending="no"), "descending must be True or False"),
    ):
        with pytest.raises((ValueError, IndexError, TypeError), match=words):
            call()
    assert parprims.methods(parprims.scan, x)["array"] is None
    assert parprims.methods(parprims.scan, x)["kernel"] is not None
    import jax

    tried = 0
    for name, call in OF_ONE.items():
        for kind, values in ARRAYS.items():
            if values.ndim and values.shape[0] % 4 == 0 and isinstance(outcome(call, values), str):
                one = jax.numpy.asarray(values)
                assert outcome(call, put(one, mesh, "i")) == outcome(call, one), (name, kind)
                tried += 1
    assert tried > 50


def check_the_page():
    name = "docs/devices.md"
    assert run_examples((devices.ROOT / name).read_text(encoding="utf-8"), name) == 3


def check_no_elements():
    mesh = mesh_of(4)
    x = put(np.zeros((0, 4)), mesh, "i")
    assert parprims.scan(x, axis=0).shape == (0, 4)
    assert parprims.sum(x, axis=0).tolist() == [0.0] * 4
    assert parprims.linear_recurrence(x, x, axis=0).shape == (0, 4)


if __name__ == "__main__":
    import jax as own

    own.config.update("jax_enable_x64", True)
    devices.run_all(globals())
