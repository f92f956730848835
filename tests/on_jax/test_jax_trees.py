"""`scan` in place of `jax.lax.associative_scan`: equal functions, results and derivatives, in and out of programs."""

import contextlib
import dataclasses
import functools
import operator
from typing import Any, NamedTuple

import numpy as np
import pytest

import parprims
from parprims._core.elements import flattened
from parprims._operators.function_key import lasting_key
from parprims._operators.operator import as_operator, restructured

METHODS = ("auto", "native", "array")
EPS = 2.0**-52


@pytest.fixture
def jax():
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


@pytest.fixture(params=METHODS)
def scan(request):
    """`scan` with the arguments of `associative_scan`."""

    def scan(fn, elems, reverse=False, axis=0):
        return parprims.scan(elems, fn, axis=axis, reverse=reverse, method=request.param)

    return scan


def agree(jax, found, expected, rtol=100 * EPS):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * max(1, np.max(abs(np.asarray(other)), initial=0)))


class Pair(NamedTuple):
    first: Any
    second: Any


class TestAsJaxItself:
    """The behaviours that JAX's own tests of `associative_scan` demand."""

    @pytest.mark.parametrize("n", [0, 1, 2, 3, 10, 1000])
    def test_plain_arrays(self, jax, scan, n):
        x = jax.numpy.arange(n)
        np.testing.assert_array_equal(scan(operator.add, x), np.cumsum(np.arange(n)))
        np.testing.assert_array_equal(scan(operator.add, x, reverse=True), np.cumsum(np.arange(n)[::-1])[::-1])

    def test_pairs(self, jax, scan):
        x = Pair(jax.numpy.array([1, 2, 3]), jax.numpy.array([1.0, 2.0, 3.0]))
        found = scan(lambda p, q: Pair(p.first + q.first, p.second * q.second), x)
        assert type(found) is Pair
        np.testing.assert_array_equal(found.first, [1, 3, 6])
        np.testing.assert_array_equal(found.second, [1, 2, 6])

    def test_bools(self, jax, scan):
        x = jax.numpy.array([False, True, True, True, False, True])
        found = scan(jax.numpy.logical_xor, x)
        np.testing.assert_array_equal(found, [False, True, False, True, True, False])

    @pytest.mark.parametrize("axis", [0, 1, 2])
    def test_any_axis(self, jax, scan, axis):
        x = jax.numpy.asarray(np.random.default_rng(1).integers(0, 9, (3, 4, 5)))
        np.testing.assert_array_equal(scan(operator.add, x, axis=axis), np.cumsum(x, axis=axis))
        tree = {"x": x, "y": x[..., :1] if axis < 2 else x[:1]}
        for reverse in (False, True):
            found, expected = (
                one(lambda p, q: jax.tree.map(jax.numpy.add, p, q), tree, reverse, axis)
                for one in (scan, jax.lax.associative_scan)
            )
            agree(jax, found, expected)

    def test_the_function_gets_the_axis(self, jax, scan):
        """The function gets many elements along the axis: in one call, as many earlier as later ones."""
        x = {"m": jax.numpy.ones((7, 2, 2)), "v": jax.numpy.ones((7, 2))}
        seen = set()

        def combine(p, q):
            seen.add((p["m"].ndim, p["v"].ndim, p["m"].shape[1:], q["v"].shape[1:]))
            assert p["m"].shape[0] == q["m"].shape[0] == p["v"].shape[0] == q["v"].shape[0]
            return jax.tree.map(jax.numpy.add, p, q)

        scan(combine, x)
        assert seen == {(3, 2, (2, 2), (2,))}

    def test_wrong_arguments(self, jax, scan):
        x = jax.numpy.ones(5)
        with pytest.raises(TypeError, match="op must be a name, an Operator or a function"):
            parprims.scan(x, (x, x), axis=0)
        with pytest.raises(ValueError, match=r"equal length along axis 0: .*x\[1\] has \(4, 2\)"):
            scan(lambda p, _: p, (x, jax.numpy.ones((4, 2))))
        with pytest.raises(TypeError, match=r"x\['a'\] must be an array"):
            scan(lambda p, _: p, {"a": 1.0, "b": x})
        with pytest.raises(IndexError, match="axis 1"):
            scan(lambda p, _: p, x, axis=1)

    def test_without_jit(self, jax, scan):
        x = {"m": jax.numpy.ones((5, 2, 2)), "n": jax.numpy.ones(5)}
        with jax.disable_jit():
            found = scan(lambda p, q: {"m": p["m"] @ q["m"], "n": p["n"] + q["n"]}, x)
        np.testing.assert_array_equal(found["m"][:, 0, 0], 2.0 ** np.arange(5))
        np.testing.assert_array_equal(found["n"], np.arange(1, 6))


def affine(jax, how):
    """Return the composition of maps x -> A x + b, by a function of `jax.vmap`, by einsum, or by products of arrays."""

    def one(p, q):
        return {"A": q["A"] @ p["A"], "b": q["A"] @ p["b"] + q["b"]}

    def by_einsum(p, q):
        a = jax.numpy.einsum("nij,njk->nik", q["A"], p["A"])
        return {"A": a, "b": jax.numpy.einsum("nij,nj->ni", q["A"], p["b"]) + q["b"]}

    def by_products(p, q):
        return {"A": q["A"] @ p["A"], "b": jax.numpy.sum(q["A"] * p["b"][:, None, :], axis=-1) + q["b"]}

    return {"vmap": jax.vmap(one), "einsum": by_einsum, "products": by_products}[how]


@pytest.mark.parametrize("how", ["vmap", "einsum", "products"])
class TestTransformed:
    def data(self, jax, n=7):
        rng = np.random.default_rng(n)
        return {
            "A": jax.numpy.asarray(rng.uniform(-0.5, 0.5, (n, 3, 3))),
            "b": jax.numpy.asarray(rng.normal(size=(n, 3))),
        }

    def test_values(self, jax, scan, how):
        fn, x = affine(jax, how), self.data(jax)
        for reverse in (False, True):
            expected = jax.lax.associative_scan(fn, x, reverse)
            agree(jax, scan(fn, x, reverse), expected)
            agree(jax, jax.jit(functools.partial(scan, fn, reverse=reverse))(x), expected)

    def test_derivatives(self, jax, scan, how):
        fn, x = affine(jax, how), self.data(jax)

        def loss(scan, x):
            return jax.numpy.sum(jax.numpy.sin(scan(fn, x)["b"]))

        expected = jax.grad(functools.partial(loss, jax.lax.associative_scan))(x)
        found = functools.partial(loss, scan)
        agree(jax, jax.grad(found)(x), expected)
        agree(jax, jax.jit(jax.grad(found))(x), expected)
        tangent = jax.jvp(found, (x,), (jax.tree.map(jax.numpy.ones_like, x),))[1]
        agree(jax, tangent, sum(jax.numpy.sum(one) for one in jax.tree.leaves(expected)), rtol=1000 * EPS)

    def test_vmap(self, jax, scan, how):
        fn, x = affine(jax, how), self.data(jax)
        many = jax.tree.map(lambda one: jax.numpy.stack([one, 2 * one, -one]), x)
        expected = jax.vmap(functools.partial(jax.lax.associative_scan, fn))(many)
        agree(jax, jax.vmap(functools.partial(scan, fn))(many), expected)
        some = jax.vmap(lambda b: scan(fn, {"A": x["A"], "b": b}))(many["b"])  # a single leaf has the axis
        agree(jax, some["b"], jax.vmap(lambda b: jax.lax.associative_scan(fn, {"A": x["A"], "b": b}))(many["b"])["b"])

    def test_reductions(self, jax, scan, how):
        del scan
        fn, x = affine(jax, how), self.data(jax, 20)

        def last(x):
            return jax.tree.map(lambda one: one[-1], jax.lax.associative_scan(fn, x))

        def total(x):
            return parprims.reduce(x, fn, axis=0)

        agree(jax, total(x), last(x))
        agree(jax, jax.jit(total)(x), last(x))
        agree(
            jax, jax.grad(lambda x: jax.numpy.sum(total(x)["b"]))(x), jax.grad(lambda x: jax.numpy.sum(last(x)["b"]))(x)
        )


def test_registered_classes(jax, scan):
    @jax.tree_util.register_pytree_node_class
    class Line:
        def __init__(self, slope, offset, name):
            self.slope, self.offset, self.name = slope, offset, name

        def tree_flatten(self):
            return (self.slope, self.offset), self.name

        @classmethod
        def tree_unflatten(cls, name, children):
            return cls(*children, name)

        def __matmul__(self, later):
            return Line(later.slope * self.slope, later.slope * self.offset + later.offset, self.name)

    @functools.partial(jax.tree_util.register_dataclass, data_fields=["line"], meta_fields=["unit"])
    @dataclasses.dataclass
    class Measured:
        line: Line
        unit: str

    rng = np.random.default_rng(5)
    slope, offset = jax.numpy.asarray(rng.integers(-1, 2, (9, 1))), jax.numpy.asarray(rng.integers(-3, 4, (9, 4)))
    x = Measured(Line(slope, offset, "tried"), "metre")

    def combine(p, q):
        return Measured(p.line @ q.line, p.unit)

    found, expected = scan(combine, x), jax.lax.associative_scan(combine, x)
    assert (found.unit, found.line.name) == ("metre", "tried")
    agree(jax, found, expected)
    agree(jax, jax.jit(functools.partial(scan, combine))(x), expected)


@functools.partial(pytest.importorskip("jax").tree_util.register_dataclass, data_fields=["m", "v"], meta_fields=[])
@dataclasses.dataclass
class Kept:
    m: Any
    v: Any


def test_programs_are_kept(jax):
    """Operators on registered dataclasses have keys, with `jax.vmap` too, so a second call compiles nothing."""

    def one(p, q):
        return Kept(q.m @ p.m, q.m @ p.v + q.v)

    def combine(p, q):
        return jax.vmap(one)(p, q)

    x = Kept(jax.numpy.ones((5, 2, 2)), jax.numpy.ones((5, 2)))
    _, structure = flattened(x)
    assert lasting_key(restructured(as_operator(combine), structure)) is not None
    for method in METHODS:
        parprims.scan(x, combine, axis=0, method=method)
        with jax.check_tracer_leaks(False), _counted(jax) as compiled:
            parprims.scan(x, combine, axis=0, method=method)
        assert compiled == []


@contextlib.contextmanager
def _counted(jax):
    """Collect the programs that JAX compiles."""
    compiled = []

    def note(event, *_, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
