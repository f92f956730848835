"""Derivatives of scans and linear recurrences, against differences and against sequential loops."""

from typing import ClassVar

import numpy as np
import pytest

import parprims
from tests.support.contract import eps, random
from tests.trust.recorder import errors

METHODS = tuple(parprims.methods(parprims.linear_recurrence, np.ones(2), np.ones(2)))


def forward(a, b, initial=None, reverse=False):
    """Return x[n] = a[n] x[n-1] + b[n] along the last axis."""
    order = range(a.shape[-1])[::-1] if reverse else range(a.shape[-1])
    x = b.copy()
    before = initial
    for index in order:
        if before is not None:
            x[..., index] += a[..., index] * before
        before = x[..., index]
    return x


def backward(a, x, g, initial=None, reverse=False):
    """Return the derivatives by a, b and initial of sum(g x), going back through the loop element by element."""
    order = range(a.shape[-1])[::-1] if reverse else range(a.shape[-1])
    by_a, by_b = np.zeros_like(x), np.zeros_like(x)
    total = np.zeros_like(x[..., 0])
    for step in reversed(range(len(order))):
        index = order[step]
        total = total + g[..., index]
        by_b[..., index] = total
        before = x[..., order[step - 1]] if step else initial
        if before is not None:
            by_a[..., index] = total * before
        total = a[..., index] * total
    return by_a, by_b, total


def bounds(a, b, g, initial, reverse, name):
    """Return how far the derivatives by a, b and initial, computed in the named dtype, may be from the exact ones.

    Each is a sum of products that take at most 4 n operations to form, x included, so that it is off by at most
    4 (n + 1) eps times the same sum of the magnitudes.
    """
    a, b, g = (abs(one) for one in (a, b, g))
    initial = None if initial is None else abs(initial)
    sizes = backward(a, forward(a, b, initial, reverse), g, initial, reverse)
    return tuple(4 * (a.shape[-1] + 1) * eps(name) * size for size in sizes)


def compare(backend, results, expected, allowed, dtype):
    for result, one, bound in zip(results, expected, allowed, strict=True):
        got = backend.to_numpy(result)
        assert got.dtype.name == dtype
        assert got.shape == one.shape
        error = abs(got.astype(np.float64) - one)
        errors.note(backend, result, dtype, error, bound)
        assert (error <= bound).all()


def long_case(rng, reverse):
    """Return a, b, g, initial, the derivatives and how far off they may be, for 1000 elements and some zeros."""
    a, b, g = rng.uniform(-1.1, 1.1, (3, 2, 1000))
    a[0, 500], a[1, :3] = 0, 0
    initial = rng.standard_normal(2)
    expected = backward(a, forward(a, b, initial, reverse), g, initial, reverse)
    return (a, b, g, initial), expected, bounds(a, b, g, initial, reverse, "float64")


def narrow_case(rng, dtype):
    """Return a, b, g and initial of a 16-bit dtype, and what gives the derivatives and the error allowed from x."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    given = tuple(one.astype(dtype) for one in (*rng.uniform(-1, 1, (3, 2, 50)), rng.uniform(-1, 1, 2)))

    def outcome(x):
        a, b, g, initial = (one.astype(np.float64) for one in given)
        expected = backward(a, x.astype(np.float64), g, initial)
        # Rounded once from float32, to half a unit in the last place; the first derivative by b may be rounded before
        # it is multiplied with initial and with the first a.
        once = [0.5 * eps(np.dtype(dtype).name) * abs(one) for one in expected]
        once[0][:, 0] += once[1][:, 0] * abs(initial)
        once[2] += once[1][:, 0] * abs(a[:, 0])
        return expected, [
            one + other for one, other in zip(once, bounds(a, b, g, initial, False, "float32"), strict=True)
        ]

    return given, outcome


class TestTorch:
    methods: ClassVar = METHODS

    @staticmethod
    def only_refused(_test, given):
        return not given["backend"].startswith("torch")

    @pytest.fixture(autouse=True)
    def _torch_alone(self, backend):
        if not backend.name.startswith("torch"):
            pytest.skip("PyTorch's own derivatives")

    def arrays(self, backend, rng, *shapes, dtype="float64"):
        given = [random(rng, shape, dtype) for shape in shapes]
        if given[0].size > 1:
            given[0].flat[given[0].size // 2] = 0
        return tuple(backend.asarray(one).requires_grad_() for one in given)

    def check(self, function, arrays, twice=True):
        from torch.autograd import gradcheck, gradgradcheck

        assert gradcheck(function, arrays)
        assert not twice or gradgradcheck(function, arrays)

    @pytest.mark.parametrize("dtype", ["float64", "complex128"])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_recurrence(self, backend, run, method, rng, subtests, dtype, reverse):
        if reverse and dtype == "complex128" and method in ("auto", "kernel") and not backend.cuda:
            pytest.skip("real numbers go in both directions, and so do derivatives; a kernel takes long to compile")
        for shape, axis in (((0,), 0), ((1,), 0), ((2,), 0), ((2, 5), 1), ((4, 2), 0)):
            rest = shape[:axis] + shape[axis + 1 :]
            for shapes in ((shape, shape), (shape, shape, rest)):
                with subtests.test(shape=shape, initial=len(shapes) > 2):

                    def solve(a, b, initial=None, axis=axis):
                        options = {"axis": axis, "initial": initial, "reverse": reverse}
                        return run(parprims.linear_recurrence, a, b, method=method, **options)

                    self.check(solve, self.arrays(backend, rng, *shapes, dtype=dtype))

    @pytest.mark.parametrize("op", ["add", "multiply", "affine"])
    @pytest.mark.parametrize("exclusive", [False, True])
    @pytest.mark.parametrize("initial", [False, True])
    @pytest.mark.parametrize(
        ("shape", "reverse", "dtype"),
        [
            ((0,), False, "float64"),
            ((1,), False, "float64"),
            ((2, 4), True, "float64"),
            ((2, 4), False, "complex128"),
        ],
    )
    def test_scan(self, backend, run, method, rng, op, exclusive, initial, shape, reverse, dtype):
        count = 2 if op == "affine" else 1

        def combine(*arrays):
            xs, start = arrays[:count], arrays[count:] or None
            options = {"exclusive": exclusive, "reverse": reverse, "initial": start}
            return run(parprims.scan, xs if count > 1 else xs[0], op, method=method, **options)

        shapes = (shape,) * count + (shape[:-1],) * (count if initial else 0)
        self.check(combine, self.arrays(backend, rng, *shapes, dtype=dtype), twice=shape == (2, 4))

    @pytest.mark.parametrize("function", [parprims.cumulative_sum, parprims.cumulative_prod])
    @pytest.mark.parametrize("dtype", [None, "complex128"])
    def test_standard(self, backend, run, method, rng, function, dtype):
        (x,) = self.arrays(backend, rng, (3, 2))
        options = {"axis": 0, "include_initial": True, "dtype": dtype and getattr(backend.xp, dtype)}
        self.check(lambda x: run(function, x, method=method, **options), (x,))

    @pytest.mark.parametrize("op", ["maximum", "logaddexp"])
    def test_other_operators(self, backend, run, method, rng, op):
        arrays = self.arrays(backend, rng, (2, 5))
        if method == "kernel" and backend.cuda:
            with pytest.raises(parprims.MethodRefused, match="gradient"):
                parprims.scan(arrays[0].requires_grad_(), op, method=method)
            return
        self.check(lambda x: run(parprims.scan, x, op, method=method), arrays, twice=False)

    def test_broadcast(self, backend, run, method, rng, subtests):
        for shapes in (
            ((), (2, 4)),
            ((2, 1), (2, 4)),
            ((4,), (2, 4)),
            ((2, 4), (4,)),
            ((), (3,), ()),
            ((2, 1), (4,), (1,)),
        ):
            with subtests.test(shapes=shapes):

                def solve(a, b, initial=None):
                    return run(parprims.linear_recurrence, a, b, method=method, initial=initial)

                self.check(solve, self.arrays(backend, rng, *shapes))

    def test_mixed_dtypes(self, backend, run, method, rng):
        (a,), (b,) = self.arrays(backend, rng, (5,)), self.arrays(backend, rng, (5,), dtype="complex128")
        for one, other in ((a, b), (b, a)):
            self.check(lambda a, b: run(parprims.linear_recurrence, a, b, method=method), (one, other))
        narrow, wide = a.detach().float().requires_grad_(), a.detach().clone().requires_grad_()
        run(parprims.linear_recurrence, narrow, wide, method=method).sum().backward()
        assert (narrow.grad.dtype, wide.grad.dtype) == (narrow.dtype, wide.dtype)

    @pytest.mark.parametrize("reverse", [False, True])
    def test_many_elements(self, backend, run, method, rng, reverse):
        (a, b, g, initial), expected, allowed = long_case(rng, reverse)
        arrays = [backend.asarray(one).requires_grad_() for one in (a, b, initial)]
        x = run(parprims.linear_recurrence, *arrays[:2], method=method, initial=arrays[2], reverse=reverse)
        x.backward(backend.asarray(g))
        compare(backend, [one.grad for one in arrays], expected, allowed, "float64")

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_rounded_once(self, backend, run, method, rng, dtype):
        (a, b, g, initial), outcome = narrow_case(rng, dtype)
        arrays = [backend.asarray(one).requires_grad_() for one in (a, b, initial)]
        x = run(parprims.linear_recurrence, *arrays[:2], method=method, initial=arrays[2])
        x.backward(backend.asarray(g))
        compare(backend, [one.grad for one in arrays], *outcome(backend.to_numpy(x)), dtype)

    def test_first_coefficient_is_not_read(self, backend, run, method, rng):
        a, b, g = rng.standard_normal((3, 6))
        a[0], g[0] = np.nan, np.inf
        arrays = [backend.asarray(one).requires_grad_() for one in (a, b)]
        run(parprims.linear_recurrence, *arrays, method=method).backward(backend.asarray(g))
        by_a, by_b = (backend.to_numpy(one.grad) for one in arrays)
        assert by_a[0] == 0
        assert by_b[0] == np.inf
        assert np.isfinite(by_a).all()
        assert np.isfinite(by_b[1:]).all()

    def test_only_what_is_asked(self, backend, run, method, rng):
        a, b, initial = self.arrays(backend, rng, (5,), (5,), ())
        every = run(parprims.linear_recurrence, a, b, initial=initial, method=method).sum()
        every.backward()
        for index, one in enumerate((a, b, initial)):
            given = [x.detach() for x in (a, b, initial)]
            given[index].requires_grad_()
            x = run(parprims.linear_recurrence, *given[:2], initial=given[2], method=method)
            x.sum().backward()
            assert [x.grad is None for x in given] == [at != index for at in range(3)]
            assert (given[index].grad == one.grad).all()
            plain = run(parprims.linear_recurrence, a.detach(), b.detach(), initial=initial.detach(), method=method)
            assert not plain.requires_grad
            assert (plain == x).all()

    def test_one_result_and_both(self, backend, run, method, rng):
        arrays = self.arrays(backend, rng, (2, 4), (2, 4), (2,), (2,))
        for used in (lambda a, _: a, lambda _, x: x, lambda a, x: a * x):

            def combine(a, b, *initial, used=used):
                return used(*run(parprims.scan, (a, b), "affine", initial=initial, method=method))

            self.check(combine, arrays)

    def test_transformations(self, backend, run, method, rng):
        import torch

        (a, b, g, initial), expected, allowed = long_case(rng, False)

        def total(a, b, initial, g):
            if method == "kernel":
                return (parprims.linear_recurrence(a, b, initial=initial, method=method) * g).sum()
            return (run(parprims.linear_recurrence, a, b, initial=initial, method=method) * g).sum()

        function = torch.func.vmap(torch.func.grad(total, argnums=(0, 1, 2)))
        if method == "kernel":
            with pytest.raises(parprims.MethodRefused, match=r"torch\.func" if backend.kernels else "CUDA"):
                function(*map(backend.asarray, (a, b, initial, g)))
            return
        compare(backend, function(*map(backend.asarray, (a, b, initial, g))), expected, allowed, "float64")


class TestTorchCompile:
    methods: ClassVar = METHODS

    only_refused = TestTorch.only_refused

    @pytest.fixture(autouse=True)
    def _torch_alone(self, backend):
        if not backend.name.startswith("torch"):
            pytest.skip("PyTorch's own compiler")
        import torch

        torch._dynamo.reset()

    def check(self, backend, function, *arrays, by="aot_eager"):
        """Assert that one graph holds the function, and gives the same values, derivatives and methods."""
        import torch

        compiled = torch.compile(function, backend=by, fullgraph=True)
        outcomes = []
        for call in (function, compiled):
            given = [backend.asarray(one) for one in arrays]
            given = [one.requires_grad_() if one.is_floating_point() else one for one in given]
            with parprims.explain() as calls:
                result = call(*given)
            results = result if isinstance(result, tuple) else (result,)
            if results[0].requires_grad:
                sum((x * torch.sin(x)).sum() for x in results).backward()
            outcomes.append(([*results], [one.grad for one in given], calls))
        (values, derivatives, calls), (others, others_derivatives, others_calls) = outcomes
        assert calls == others_calls
        torch.testing.assert_close(others, values, rtol=0, atol=0)
        for one, other in zip(others_derivatives, derivatives, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other)

    @pytest.mark.parametrize("by", ["eager", "aot_eager"])
    def test_one_graph(self, backend, run, method, rng, by):
        a, b, initial = random(rng, (3, 20), "float64"), random(rng, (3, 20), "float64"), random(rng, (3,), "float64")

        def solve(a, b, initial):
            x = parprims.linear_recurrence(a * 0.5, b, initial=initial, reverse=True, method=method)
            return parprims.cumulative_sum(x, axis=1), x

        run(parprims.linear_recurrence, backend.asarray(a), backend.asarray(b), method=method)
        self.check(backend, solve, a, b, initial, by=by)

    def test_recurrences(self, backend, rng):
        a, b, whole = random(rng, (3, 20), "float64"), random(rng, (3, 20), "float64"), random(rng, (3, 20), "int64")
        self.check(backend, lambda a, b: parprims.linear_recurrence(a, b, axis=0, initial=0.5), a, b)
        self.check(backend, parprims.linear_recurrence, a[0, 0], b)
        self.check(backend, parprims.linear_recurrence, a[:, :1].astype(np.float32), b)
        self.check(backend, parprims.linear_recurrence, whole, whole)

    def test_scans(self, backend, rng):
        x, y, initial = random(rng, (3, 20), "float64"), random(rng, (3, 20), "float64"), random(rng, (3,), "float64")
        self.check(backend, lambda x: parprims.cumulative_prod(x, axis=-1, include_initial=True), x)
        self.check(backend, lambda x, s: parprims.scan(x, "multiply", exclusive=True, initial=s), x, initial)
        self.check(backend, lambda x, s: parprims.scan(x, exclusive=True, reverse=True, initial=s), x, initial)
        self.check(backend, lambda x, y: parprims.scan((x, y), "affine", initial=(1.0, 2.0)), x, y)
        self.check(backend, lambda x, y, s: parprims.scan((x, y), "affine", initial=(s, s)), x, y, initial)
        self.check(backend, lambda x, y: parprims.scan((x, y), "affine", exclusive=True)[1], x, y)
        self.check(backend, lambda x: parprims.scan(x, "maximum", initial=3), random(rng, (3, 20), "int64"))

    def test_bad_input_named(self, backend):
        import torch

        x = backend.asarray(np.ones((2, 3)))
        for message, function in (
            ("a and b must broadcast", lambda x: parprims.linear_recurrence(x, x[:, :2])),
            ("a and b must have dtypes that promote", lambda x: parprims.linear_recurrence(x, x.long())),
            ("axis 5 is out of range", lambda x: parprims.linear_recurrence(x, x, axis=5)),
            ("initial must broadcast", lambda x: parprims.scan(x, initial=x)),
            ("method must be one of", lambda x: parprims.linear_recurrence(x, x, method="vendor")),
        ):
            with pytest.raises(Exception, match=message):
                torch.compile(function, backend="aot_eager", fullgraph=True)(x)


class TestJax:
    methods: ClassVar = METHODS

    @staticmethod
    def only_refused(_test, given):
        return not given["backend"].startswith("jax")

    @pytest.fixture(autouse=True)
    def _jax_alone(self, backend):
        if not backend.name.startswith("jax"):
            pytest.skip("JAX's own derivatives")

    def check(self, backend, function, *arrays, order=2):
        """Compare derivatives of both modes with differences, and those of second order too."""
        import jax
        from jax.test_util import check_grads

        check_grads(jax.jit(function), tuple(map(backend.asarray, arrays)), order=order)

    # Programs of second order are large; test_many_elements holds optimised ones of float64 to their bounds.
    @pytest.mark.parametrize("dtype", ["float64", pytest.param("complex128", marks=pytest.mark.optimised)])
    def test_recurrence(self, backend, run, method, rng, dtype):
        a, b, initial = random(rng, (4, 2), dtype), random(rng, (4, 2), dtype), random(rng, (2,), dtype)
        a[1] = 0

        def solve(a, b, initial):
            return (
                run(parprims.linear_recurrence, a, b, method=method, axis=0),
                run(parprims.linear_recurrence, a, b, method=method, axis=1, reverse=True),
                run(parprims.linear_recurrence, a, b, method=method, axis=0, initial=initial, reverse=True),
                run(parprims.linear_recurrence, a[:1, :1], b[:1], method=method, axis=0),
            )

        self.check(backend, solve, a, b, initial, order=2 if dtype == "float64" and method != "array" else 1)

    @pytest.mark.parametrize("op", ["add", "multiply", "affine"])
    def test_scan(self, backend, run, method, rng, op):
        x, y, start = random(rng, (2, 3), "float64"), random(rng, (2, 3), "float64"), random(rng, (2,), "float64")
        x[1, 1] = 0
        shapes = [(exclusive, exclusive != given, given) for exclusive in (False, True) for given in (False, True)]

        def combine(x, y, start):
            xs, starts = ((x, y), (start, 2 * start)) if op == "affine" else (x, start)
            found = [
                run(
                    parprims.scan,
                    xs,
                    op,
                    method=method,
                    exclusive=exclusive,
                    reverse=reverse,
                    initial=starts if given else None,
                )
                for exclusive, reverse, given in shapes
            ]
            if op != "affine":
                function = parprims.cumulative_sum if op == "add" else parprims.cumulative_prod
                found.append(run(function, x, method=method, axis=0, include_initial=True))
            return found

        self.check(backend, combine, x, y, start, order=2 if op == "affine" and method != "array" else 1)

    def test_broadcast(self, backend, run, method, rng):
        a, b = random(rng, (), "float64"), random(rng, (2, 3), "float64")
        function = lambda a, b: run(parprims.linear_recurrence, a, b, method=method)  # noqa: E731
        self.check(backend, lambda a, b: (function(a, b), function(b[:, :1], b), function(b[0], b)), a, b, order=1)

    @pytest.mark.optimised
    @pytest.mark.parametrize("reverse", [False, True])
    def test_many_elements(self, backend, run, method, rng, reverse):
        import jax

        (a, b, g, initial), expected, allowed = long_case(rng, reverse)

        def total(a, b, initial, g):
            x = run(parprims.linear_recurrence, a, b, method=method, initial=initial, reverse=reverse)
            return (x * g).sum()

        function = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
        compare(backend, function(*map(backend.asarray, (a, b, initial, g))), expected, allowed, "float64")

    @pytest.mark.optimised
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_rounded_once(self, backend, run, method, rng, dtype):
        import jax

        (a, b, g, initial), outcome = narrow_case(rng, dtype)

        @jax.jit
        def derivatives(a, b, initial, g):
            def solve(a, b, initial):
                return run(parprims.linear_recurrence, a, b, method=method, initial=initial)

            x, pull = jax.vjp(solve, a, b, initial)
            return x, pull(g)

        x, results = derivatives(*map(backend.asarray, (a, b, initial, g)))
        compare(backend, results, *outcome(backend.to_numpy(x)), dtype)

    def test_vmap(self, backend, run, method, rng, subtests):
        import jax

        a, b, g = random(rng, (3, 20), "float64"), random(rng, (3, 20), "float64"), random(rng, (20,), "float64")

        def total(a, b):
            return run(parprims.linear_recurrence, a, b, method=method) @ backend.asarray(g)

        for in_axes, given in (((0, 0), (a, b)), ((None, 1), (a[0], b.T)), ((0, None), (a, b[0]))):
            with subtests.test(in_axes=in_axes):
                function = jax.jit(jax.vmap(jax.grad(total, argnums=(0, 1)), in_axes))
                wide = [
                    np.broadcast_to(one.T if axis == 1 else one, a.shape)
                    for one, axis in zip(given, in_axes, strict=True)
                ]
                weights = np.broadcast_to(g, a.shape)
                expected = backward(wide[0], forward(*wide), weights)[:2]
                allowed = bounds(*wide, weights, None, False, "float64")[:2]
                compare(backend, function(*map(backend.asarray, given)), expected, allowed, "float64")

    def test_inside_other_transformations(self, backend, run, method, rng):
        import jax

        a, b = rng.uniform(-1, 1, (3, 6)), random(rng, (6,), "float64")

        def layers(a, b):
            def layer(x, a):
                return jax.numpy.tanh(run(parprims.linear_recurrence, a, x, method=method)), None

            return jax.lax.scan(jax.checkpoint(layer), b, a)[0].sum()

        self.check(backend, layers, a, b, order=1)

    def test_first_coefficient_is_not_read(self, backend, run, method, rng):
        import jax

        a, b, g = rng.standard_normal((3, 6))
        a[0], g[0] = np.nan, np.inf

        @jax.jit
        def derivatives(a, b, g):
            return jax.vjp(lambda a, b: run(parprims.linear_recurrence, a, b, method=method), a, b)[1](g)

        by_a, by_b = (backend.to_numpy(one) for one in derivatives(*map(backend.asarray, (a, b, g))))
        assert by_a[0] == 0
        assert by_b[0] == np.inf
        assert np.isfinite(by_a).all()
        assert np.isfinite(by_b[1:]).all()

    def test_rules_cost_nothing_where_not_asked(self, backend, run, method, rng, monkeypatch):
        import jax

        from parprims._dispatch import derivative_rules

        arrays = [backend.asarray(random(rng, (50,), "float64")) for _ in range(2)]

        def lengths():
            programs = (
                lambda a, b: run(parprims.linear_recurrence, a, b, method=method),
                lambda a, b: run(parprims.scan, (a, b), "affine", method=method),
            )
            return [jax.jit(program).lower(*arrays).as_text().count("stablehlo.") for program in programs]

        found = lengths()
        monkeypatch.setattr(derivative_rules, "_rules", {}.get)
        assert found == lengths()

    def test_integers(self, backend, run, method, rng):
        import jax

        whole, x = random(rng, (7,), "int64"), random(rng, (7,), "float64")

        def total(x, whole):
            steps = run(parprims.linear_recurrence, whole, whole, method=method)
            return (x * steps).sum()

        by_x = jax.jit(jax.grad(total))(backend.asarray(x), backend.asarray(whole))
        np.testing.assert_array_equal(backend.to_numpy(by_x), forward(whole, whole))
