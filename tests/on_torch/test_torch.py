"""PyTorch: its compiler, its transformations and its switches, over every public function."""

import contextlib
import unittest.mock
from typing import ClassVar

import numpy as np
import pytest

import parprims
from tests.support.contract import random

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _torch_alone(request):
    if "tensors" in request.fixturenames:
        return
    if not request.getfixturevalue("backend").name.startswith("torch"):
        pytest.skip("PyTorch's own compiler, transformations and switches")


def _sum_and_product(earlier, later):
    (a, b), (c, d) = earlier, later
    return a * c, b * c + d


BOTH = parprims.Operator(_sum_and_product, identity=(1, 0), components=2)


def _flags(x):
    return (x * 0 + torch.arange(x.shape[-1], device=x.device)) % 3 == 0


# name: (function, shapes of its arguments). The arguments are float64; the first result is what derivatives are of.
CASES = {
    "sum": (lambda x, **m: parprims.sum(x, axis=0, **m), ((3, 4),)),
    "sum of all": (lambda x, **m: parprims.sum(x, axis=None, keepdims=True, **m), ((3, 4),)),
    "prod": (lambda x, **m: parprims.prod(x, axis=(0, 1), **m), ((3, 4),)),
    "max": (lambda x, **m: parprims.max(x, axis=1, keepdims=True, **m), ((3, 4),)),
    "min": (lambda x, **m: parprims.min(x, axis=0, **m), ((3, 4),)),
    "any": (lambda x, **m: parprims.any(x - x, axis=0, **m), ((3, 4),)),
    "all": (lambda x, **m: parprims.all(x > -9, **m), ((3, 4),)),
    "reduce": (lambda x, s, **m: parprims.reduce(x, "logaddexp", axis=0, initial=s, **m), ((3, 4), (4,))),
    "reduce tuples": (lambda x, y, **m: parprims.reduce((x, y), "affine", axis=1, **m)[::-1], ((3, 5), (3, 5))),
    "reduce own": (lambda x, **m: parprims.reduce(x, lambda a, b: a * b, axis=0, initial=0.5, **m), ((3, 4),)),
    "map_reduce": (lambda x, y, **m: parprims.map_reduce(lambda x, y: x * y, x, y, axis=-1, **m), ((3, 4), (4,))),
    "vecdot": (lambda x, y, **m: parprims.vecdot(x, y, axis=0, **m), ((3, 4), (3, 4))),
    "vecdot broadcast": (lambda x, y, **m: parprims.vecdot(x, y, **m), ((3, 4), (4,))),
    "scan": (lambda x, **m: parprims.scan(x, axis=0, exclusive=True, reverse=True, **m), ((3, 4),)),
    "scan maximum": (lambda x, s, **m: parprims.scan(x, "maximum", axis=0, initial=s, **m), ((3, 4), (4,))),
    "scan affine": (
        lambda x, y, s, **m: parprims.scan((x, y), "affine", initial=(0.5, s), **m)[::-1],
        ((3, 4), (3, 4), (3,)),
    ),
    "scan own": (lambda x, y, **m: parprims.scan((x, y), BOTH, exclusive=True, **m)[::-1], ((3, 4), (3, 4))),
    "scan segments": (
        lambda x, **m: parprims.scan((_flags(x), x), parprims.segmented("maximum"), **m)[1],
        ((2, 7),),
    ),
    "cumulative_sum": (lambda x, **m: parprims.cumulative_sum(x, axis=1, include_initial=True, **m), ((3, 4),)),
    "cumulative_prod": (lambda x, **m: parprims.cumulative_prod(x, axis=-1, **m), ((3, 4),)),
    "linear_recurrence": (
        lambda a, b, s, **m: parprims.linear_recurrence(a, b, axis=0, initial=s, reverse=True, **m),
        ((4,), (3, 4), (4,)),
    ),
    "linear_recurrence constant": (lambda a, b, **m: parprims.linear_recurrence(a, b, initial=2, **m), ((), (3, 4))),
    "sort": (lambda x, **m: parprims.sort(x, axis=0, descending=True, **m), ((3, 4),)),
    "argsort": (lambda x, **m: parprims.argsort(x, axis=0, **m), ((3, 4),)),
    "sort_by_key": (lambda x, y, **m: parprims.sort_by_key(x, y, **m)[::-1], ((3, 4), (3, 4))),
    "solve_tridiagonal": (
        lambda a, b, c, d, **m: parprims.solve_tridiagonal(a, b + 9, c, d, axis=0, **m),
        ((5, 2), (5, 2), (1, 2), (5, 2)),
    ),
    "solve_tridiagonal columns": (
        lambda a, b, d, **m: parprims.solve_tridiagonal(a, b + 9, -1, d, transpose=True, periodic=True, **m),
        ((1,), (5,), (5, 3)),
    ),
    "solve_tridiagonal status": (
        lambda b, d, **m: parprims.solve_tridiagonal(
            1.0, b + 9, -1.0, d, pivot="none", return_residual=True, return_status=True, **m
        )[::2],
        ((1, 5), (3, 5)),
    ),
    "matmul": (lambda a, b, **m: parprims.matmul(a, b, **m), ((2, 3, 4), (4, 2))),
    "matmul vector": (lambda a, b, **m: parprims.matmul(a, b, **m), ((3, 4), (4,))),
    "matmul semiring": (
        lambda a, b, **m: parprims.matmul(a, b, add="maximum", multiply="add", **m),
        ((3, 4), (4, 2)),
    ),
    "matmul own": (
        lambda a, b, **m: parprims.matmul(a, b, add="add", multiply=lambda x, y: x * y + x, **m),
        ((3, 4), (4, 2)),
    ),
}
WITHOUT_DERIVATIVE = ("any", "all", "argsort")
every_case = pytest.mark.parametrize("case", CASES)


def arguments(backend, rng, case):
    return tuple(backend.asarray(random(rng, shape, "float64")) for shape in CASES[case][1])


def results(result):
    """Return the results of a call as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def value(function):
    """Return the function whose derivative is taken: a number, from every result that has one."""

    def total(*arrays):
        return sum((y * torch.sin(y)).sum() for y in results(function(*arrays)) if y.is_floating_point())

    return total


def outcome(function, arrays):
    """Return the results of a function, and the derivatives by its arguments."""
    leaves = [x.detach().clone().requires_grad_() for x in arrays]
    found = results(function(*leaves))
    if not any(y.requires_grad for y in found):
        return found, ()
    return found, torch.autograd.grad(value(lambda: found)(), leaves)


@contextlib.contextmanager
def warnings_of_its_own():
    """Let PyTorch warn of its own use of torch.jit.script, and of its own derivative of cummax."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=".*batching rule for aten::cummaxmin_backward", category=UserWarning)
        yield


def mapped(rng, backend, arrays):
    """Yield the axes of vmap for each argument, and arguments that have them."""
    count = len(arrays)
    choices = {(0,) * count, (-1,) * count, (0,) + (None,) * (count - 1), (None,) * (count - 1) + (-1,)}
    for dims in sorted(choices, key=str):
        given = [
            x
            if dim is None
            else torch.movedim(backend.asarray(random(rng, (3, *x.shape), "float64")), 0, 0 if dim == 0 else -1)
            for x, dim in zip(arrays, dims, strict=True)
        ]
        yield dims, given


def loop(function, dims, arrays):
    """Return what vmap is to return, one slice after another."""
    found = [
        function(*(x if dim is None else x.select(dim, at) for x, dim in zip(arrays, dims, strict=True)))
        for at in range(3)
    ]
    return tuple(map(torch.stack, zip(*found, strict=True))) if isinstance(found[0], tuple) else torch.stack(found)


@pytest.mark.parametrize("descending", [False, True])
def test_vmap_where_bits_cannot_be_viewed(backend, rng, monkeypatch, descending):
    """Not every release of PyTorch has a rule for views of bits."""
    monkeypatch.setattr(parprims._primitives.sort.call, "_has_rule_for_views", lambda: False)
    monkeypatch.setattr(
        parprims._primitives.sort.call,
        "_cannot_view",
        cannot := unittest.mock.Mock(wraps=parprims._primitives.sort.call._cannot_view),
    )
    view = torch.Tensor.view

    def without_rule(tensor, *shape):
        assert not (isinstance(shape[0], torch.dtype) and torch._C._are_functorch_transforms_active())
        return view(tensor, *shape)

    monkeypatch.setattr(torch.Tensor, "view", without_rule)
    x = random(rng, (3, 9), "float32")
    x[1, 3:6] = np.nan, -np.inf, np.copysign(np.nan, -1)
    values = [rng.integers(0, np.iinfo(dtype).max, x.shape, dtype=dtype) for dtype in ("uint8", "uint16", "uint64")]
    options = {"descending": descending, "method": "array"}
    for function in (parprims.sort, parprims.argsort):
        found = torch.func.vmap(lambda x: function(x, **options))(backend.asarray(x))  # noqa: B023
        np.testing.assert_array_equal(backend.to_numpy(found), function(x, axis=1, **options))
    for one in values:
        found = torch.func.vmap(lambda *xs: parprims.sort_by_key(*xs, **options))(*map(backend.asarray, (x, one)))
        expected = parprims.sort_by_key(x, one, axis=1, **options)
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(backend.to_numpy(got), wanted)
    assert cannot.called


@every_case
class TestTransformations:
    methods: ClassVar = ("array",)

    @pytest.fixture
    def function(self, case, method):
        return lambda *arrays: CASES[case][0](*arrays, method=method)

    def test_vmap(self, backend, rng, case, function):
        arrays = arguments(backend, rng, case)
        for dims, given in mapped(rng, backend, arrays):
            torch.testing.assert_close(torch.func.vmap(function, dims)(*given), loop(function, dims, given))
        twice = [backend.asarray(random(rng, (2, 3, *x.shape), "float64")) for x in arrays]
        every = (0,) * len(arrays)
        expected = [loop(function, every, [x[at] for x in twice]) for at in range(2)]
        stacked = tuple(map(torch.stack, zip(*map(results, expected), strict=True)))
        torch.testing.assert_close(results(torch.func.vmap(torch.func.vmap(function))(*twice)), stacked)

    def test_derivatives(self, backend, rng, case, function):
        if case in WITHOUT_DERIVATIVE:
            pytest.skip("no derivative")
        func, arrays = torch.func, arguments(backend, rng, case)
        total, every = value(function), tuple(range(len(arrays)))
        _, by = outcome(function, arrays)
        torch.testing.assert_close(func.grad(total, every)(*arrays), by)
        with warnings_of_its_own():
            torch.testing.assert_close(func.jacrev(total, every)(*arrays), by)
        tangents = [backend.asarray(random(rng, tuple(x.shape), "float64")) for x in arrays]
        along = sum((one * other).sum() for one, other in zip(by, tangents, strict=True))
        with warnings_of_its_own():
            torch.testing.assert_close(func.jvp(total, arrays, tuple(tangents))[1], along.to(by[0].dtype))
            with torch.autograd.forward_ad.dual_level():
                leaves = [x.clone().requires_grad_() for x in arrays]
                y = total(*map(torch.autograd.forward_ad.make_dual, leaves, tangents))
                torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(y).tangent, along)

    def test_by_differences(self, backend, rng, case, function):
        if case in WITHOUT_DERIVATIVE:
            pytest.skip("no derivative")

        def real(*arrays):
            return tuple(y for y in results(function(*arrays)) if y.is_floating_point())

        leaves = [x.requires_grad_() for x in arguments(backend, rng, case)]
        assert torch.autograd.gradcheck(real, leaves)
        assert torch.autograd.gradgradcheck(real, leaves)


@contextlib.contextmanager
def setting(get, change, value):
    """Change a setting of PyTorch for a while."""
    before = get()
    change(value)
    try:
        yield
    finally:
        change(before)


SWITCHES = {
    "deterministic": lambda _: setting(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "default float64": lambda _: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "default float16": lambda _: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float16),
    "default device": lambda _: torch.device("meta"),
    "no gradient": lambda _: torch.no_grad(),
    "inference": lambda _: torch.inference_mode(),
    "autocast": lambda kind: torch.autocast(kind, torch.bfloat16),
    "narrow products": lambda _: setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
}


def exactly(backend):
    """Return that numbers are to be equal; on a GPU but for rounding, where other methods and routines may serve.

    There a kernel serves only where no derivative is asked for, and cuBLAS has routines of its own for some layouts.
    """
    return {} if backend.cuda else {"rtol": 0, "atol": 0}


class TestSwitches:
    methods: ClassVar = ("native", "array")

    @pytest.mark.parametrize("switch", SWITCHES)
    def test_results_stay(self, backend, rng, switch, subtests):
        """The same bits, dtypes and devices, backward too, whatever PyTorch is told to do with its own functions."""
        for case, (function, shapes) in CASES.items():
            arrays = [backend.asarray(random(rng, shape, "float32")) for shape in shapes]
            for method in ("auto", "array"):
                with subtests.test(case=case, method=method):

                    def call(function=function, method=method, arrays=arrays):
                        if torch.is_grad_enabled():
                            return outcome(lambda *xs: function(*xs, method=method), arrays)
                        return results(function(*arrays, method=method)), ()

                    expected = call()
                    with SWITCHES[switch](backend.asarray(np.ones(1)).device.type):
                        found = call()
                    if not found[1]:
                        expected = (expected[0], ())
                    # Where PyTorch would take fewer bits other operations are taken, whose errors are others.
                    loose = {"rtol": 1e-5, "atol": 1e-5} if switch in ("autocast", "narrow products") else {}
                    torch.testing.assert_close(found, expected, **(loose or exactly(backend)))

    def test_products_keep_their_bits(self, backend, rng, method):
        """With autocast, or fewer bits allowed, errors stay those of float32, of derivatives too."""
        kind = backend.asarray(np.ones(1)).device.type
        a, b, g = (random(rng, (64, 64), "float32") for _ in range(3))
        exact = a.astype(float) @ b, g.astype(float) @ b.T, a.T.astype(float) @ g
        dots = (a.astype(float) * b).sum(1), g[:, :1].astype(float) * b, g[:, :1].astype(float) * a
        for switch in ("autocast", "narrow products"):
            with SWITCHES[switch](kind):
                for function, given, wanted in (
                    (parprims.matmul, g, exact),
                    (parprims.vecdot, g[:, 0].copy(), dots),
                ):
                    leaves = [backend.asarray(x).requires_grad_() for x in (a, b)]
                    y = function(*leaves, method=method)
                    found = (y, *torch.autograd.grad(y, leaves, backend.asarray(given)))
                    for one, other in zip(found, wanted, strict=True):
                        assert one.dtype == torch.float32
                        assert abs(backend.to_numpy(one) - other).max() <= 65 * 2.0**-23 * 64

    @every_case
    def test_meta(self, backend, rng, case):
        function, arrays = CASES[case][0], arguments(backend, rng, case)
        expected = results(function(*arrays))
        found = results(function(*(x.to("meta") for x in arrays)))
        assert [(x.device.type, x.shape, x.dtype) for x in found] == [("meta", x.shape, x.dtype) for x in expected]

    @every_case
    def test_parameters(self, backend, rng, case):
        function, arrays = CASES[case][0], arguments(backend, rng, case)
        found = function(*map(torch.nn.Parameter, arrays))
        torch.testing.assert_close(found, function(*arrays), **exactly(backend))

    def test_views_that_are_computed_when_read(self, backend, rng, method, run, subtests):
        z = backend.asarray(random(rng, (3, 4), "complex128"))
        for x in (z.conj(), torch._neg_view(z), z.conj().imag):
            plain = x.resolve_conj().resolve_neg().clone()
            for function in (
                lambda x: run(parprims.sum, x, axis=0, method=method),
                lambda x: run(parprims.scan, x, axis=0, method=method),
                lambda x: run(parprims.linear_recurrence, x, x, method=method),
                lambda x: run(parprims.matmul, x, x.mT, method=method),
                lambda x: run(parprims.vecdot, x, x, method=method),
                lambda x: run(parprims.sort_by_key, x.real if x.is_complex() else x, x, method=method),
                lambda x: run(parprims.solve_tridiagonal, x, x + 9, x, x, method=method),
            ):
                with subtests.test(dtype=x.dtype):
                    torch.testing.assert_close(function(x), function(plain), **exactly(backend))


class TestDerivatives:
    def test_ties(self, backend):
        """Elements that are equal share a derivative as in PyTorch, and what is sorted keeps it."""
        x = backend.asarray(np.array([[1.0, 3.0, 3.0, 0.0, 3.0], [2.0, 2.0, 2.0, 2.0, 2.0]]))
        leaf = x.clone().requires_grad_()
        for ours, theirs in ((parprims.max, torch.amax), (parprims.min, torch.amin)):
            (expected,) = torch.autograd.grad((theirs(leaf, 1) * 6).sum(), leaf)
            for method in ("native", "array"):
                (found,) = torch.autograd.grad((ours(leaf, axis=1, method=method) * 6).sum(), leaf)
                torch.testing.assert_close(found, expected)
            compiled = torch.compile(lambda x, ours=ours: ours(x, axis=1) * 6, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(torch.autograd.grad(compiled(leaf).sum(), leaf), (expected,))
        weights = torch.arange(1.0, 6.0, dtype=x.dtype, device=x.device)
        for descending in (False, True):
            theirs = torch.sort(leaf, dim=1, descending=descending, stable=True).values
            (expected,) = torch.autograd.grad((theirs * weights).sum(), leaf)
            for method in ("native", "array"):
                ours = parprims.sort(leaf, descending=descending, method=method)
                torch.testing.assert_close(torch.autograd.grad((ours * weights).sum(), leaf), (expected,))

    @pytest.mark.parametrize("by", [None, "aot_eager"])
    def test_results_that_go_unused(self, backend, rng, by):
        """Of a scan with several results the first, or any other, may go unused."""
        arrays = [backend.asarray(random(rng, (3, 5), "float64")) for _ in range(3)]

        def combine(earlier, later):
            (a, b, c), (d, e, f) = earlier, later
            return a * d, b * d + e, c + f * b

        def sequential(*arrays):
            """Scan with the sum of affine maps; the third component is associative only where it goes unused."""
            rows = [tuple(x[:, 0] for x in arrays)]
            for at in range(1, 5):
                rows.append(combine(rows[-1], tuple(x[:, at] for x in arrays)))
            return tuple(torch.stack(one, 1) for one in zip(*rows, strict=True))

        for used in (0, 1):

            def ours(x, y, used=used):
                return parprims.scan((x, y), BOTH)[used]

            def theirs(x, y, used=used):
                return sequential(x, y, x)[used]

            call = ours if by is None else torch.compile(ours, backend=by, fullgraph=True)
            leaves = [x.clone().requires_grad_() for x in arrays[:2]]
            found = torch.autograd.grad(call(*leaves).square().sum(), leaves, allow_unused=True, materialize_grads=True)
            y = theirs(*leaves).square().sum()
            torch.testing.assert_close(found, torch.autograd.grad(y, leaves, allow_unused=True, materialize_grads=True))

    def test_functional_call(self, backend, rng):
        class Layer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.decay = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))

            def forward(self, x):
                return parprims.linear_recurrence(self.decay, x, axis=0)

        layer, x = Layer(), backend.asarray(random(rng, (3, 4), "float64"))
        decay = {"decay": backend.asarray(random(rng, (2, 4), "float64"))}

        def loss(parameters, x):
            return torch.func.functional_call(layer, parameters, (x,)).square().sum()

        found = torch.func.vmap(torch.func.grad(loss), (0, None))(decay, x)["decay"]
        for at in range(2):
            one = decay["decay"][at].clone().requires_grad_()
            y = parprims.linear_recurrence(one, x, axis=0).square().sum()
            torch.testing.assert_close(found[at], torch.autograd.grad(y, one)[0])


def test_saved_program(backend, rng):
    """A program with built-in operators can be saved; one with an operator of another process says what is missing."""
    import io

    from parprims._torch_compile.inputs import Inputs

    class Program(torch.nn.Module):
        def forward(self, x):
            return parprims.scan(x, "maximum")

    x = backend.asarray(random(rng, (3, 4), "float64"))
    file = io.BytesIO()
    torch.export.save(torch.export.export(Program(), (x,)), file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(x), parprims.scan(x, "maximum"))
    with pytest.raises(ValueError, match="compiled in another process"):
        Inputs("scan", {"x": x}, {"op": "f#0", "axis": 1}, "auto").node()


def test_kernels_run_in_nodes(tensors, rng):
    """A node takes the kernel where the call would, for operators of the caller's own too, backward as well."""
    torch._dynamo.reset()

    def program(x, y):
        own = parprims.scan(x.detach(), lambda a, b: a + b - a * b)
        pairs = parprims.reduce((x.detach() > 0, y.detach()), parprims.segmented("maximum"), axis=1)[1]
        x = parprims.linear_recurrence(x, y)
        return parprims.matmul(x, parprims.sort(y).mT, method="kernel"), own, pairs

    arrays = [tensors.asarray(random(rng, (8, 9), "float32") / 9) for _ in range(2)]
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    outcomes = []
    for call in (program, compiled):
        with parprims.explain() as calls:
            leaves = [x.clone().requires_grad_() for x in arrays]
            found = call(*leaves)
            by = torch.autograd.grad(found[0].square().sum(), leaves)
        assert {one.method for one in calls} == {"kernel"}
        outcomes.append((found, by))
    torch.testing.assert_close(outcomes[1], outcomes[0])
