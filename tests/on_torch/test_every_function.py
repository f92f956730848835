"""Every public function inside PyTorch: dynamic shapes, torch.func, the switches, saved and packaged programs.

The functions and their calls are the examples of the declarations. Calls outside of all these are the reference; other
tests hold them to differences.
"""

import contextlib
import io
import os
import shutil
import warnings
from typing import NamedTuple

import numpy as np
import pytest

import parprims
from parprims._dispatch.examples import Example, Sample
from parprims._dispatch.primitive import declared
from tests.on_torch import test_torch
from tests.on_torch.test_torch import SWITCHES, exactly, results, value, warnings_of_its_own

torch = test_torch.torch
_torch_alone = test_torch._torch_alone

N = 12


def left_out(_test, given):
    """Return why a case is skipped."""
    return "" if given["backend"].startswith("torch") else "PyTorch's own compiler, transformations and switches"


class Call(NamedTuple):
    """A function of arrays alone, with the options of the example of length N."""

    function: object
    given: object

    def __call__(self, *arrays, **method):
        return self.function(*arrays, **method)

    def arrays(self, backend, n=N, seed=0, dtype="float64"):
        """Return arrays of a length."""
        return [backend.asarray(np.asarray(x)) for x in self.given(n, seed, dtype)]


def _example(name):
    """Return the call of a declaration. torch.compile reads it, but not how the arrays are made."""

    def example(n, seed, dtype) -> Example:
        return declared[name].sampled(Sample((n,), dtype=dtype, fixed=True, seed=seed))

    one = example(N, 0, "float64")
    function, args, options = one.function, one.args, one.options
    at = [isinstance(x, np.ndarray) for x in args]
    constants = [None if is_array else x for is_array, x in zip(at, args, strict=True)]
    optional = [key for key, x in options.items() if isinstance(x, np.ndarray)]
    others = {key: x for key, x in options.items() if key not in optional}

    def call(*arrays, **method):
        left = list(arrays)
        first = [left.pop(0) if is_array else x for is_array, x in zip(at, constants, strict=True)]
        return function(*first, **dict(zip(optional, left, strict=True)), **others, **method)

    return Call(call, lambda n, seed, dtype: example(n, seed, dtype).arrays)


def _pair(n, seed, dtype):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.1, 1, (2, n)).astype(dtype)


CALLS = {
    **{name: _example(name) for name in sorted(declared)},
    "weights": Call(lambda x, w, **m: parprims.histogram(x, 5, range=(0.0, 1.0), weights=w, **m), _pair),
    "affine": Call(lambda x, y, **m: parprims.scan((x, y), "affine", **m), _pair),
    "quantiles": Call(lambda x, y, **m: parprims.quantile(x * y, (0.2, 0.5), interpolation="midpoint", **m), _pair),
}
"""All calls by the names of declarations, and of kinds of calls whose derivatives are their own."""

WITHOUT_DERIVATIVE = (
    *("all", "any", "argmax", "argmin", "argpartition", "argsort", "argsort by offsets"),
    *("histogram", "run_lengths", "searchsorted"),
)
every_call = pytest.mark.parametrize("name", CALLS)
differentiable = pytest.mark.parametrize("name", [name for name in CALLS if name not in WITHOUT_DERIVATIVE])


def floats(arrays):
    """Return the places of the arrays that have derivatives."""
    return [at for at, x in enumerate(arrays) if x.is_floating_point()]


def outcome(call, arrays, **method):
    """Return the results of a call, and the derivatives by its arrays of floats."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in arrays]
    found = results(call(*leaves, **method))
    if not any(y.requires_grad for y in found):
        return found, ()
    by = [x for x in leaves if x.requires_grad]
    return found, torch.autograd.grad(value(lambda: found)(), by, materialize_grads=True)


def of_floats(call, arrays):
    """Return the numbers that a call computes, as one vector, as a function of its arrays of floats; and these."""
    places = floats(arrays)

    def vector(*given):
        every = list(arrays)
        for at, x in zip(places, given, strict=True):
            every[at] = x
        return torch.cat([(y * torch.sin(y)).reshape(-1) for y in results(call(*every)) if y.is_floating_point()])

    return vector, tuple(arrays[at] for at in places)


def jacobian(function, arrays):
    """Return the derivatives of a vector by arrays, one element after another."""
    leaves = [x.view_as(x) if x.requires_grad else x.detach().clone().requires_grad_() for x in arrays]
    rows = [
        torch.autograd.grad(y, leaves, create_graph=True, materialize_grads=True)
        if y.requires_grad
        else [torch.zeros_like(x) for x in leaves]
        for y in function(*leaves).reshape(-1)
    ]
    return tuple(map(torch.stack, zip(*rows, strict=True)))


class Program(torch.nn.Module):
    """A call as a module."""

    def __init__(self, *calls):
        super().__init__()
        self.calls = calls

    def forward(self, *arrays):
        found = [call(*given) for call, given in zip(self.calls, self.parts(arrays), strict=True)]
        return found[0] if len(found) == 1 else tuple(y for one in found for y in results(one))

    def parts(self, arrays):
        """Return the arrays of each call."""
        return (arrays,) if len(self.calls) == 1 else tuple(arrays)


def lengths(short, long, n):
    """Return for each array the axes of the length n, given arrays of two lengths."""
    return tuple(
        {at: n for at, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if a != b}
        for x, y in zip(short, long, strict=True)
    )


@every_call
def test_dynamic_shapes(backend, name):
    """Values and derivatives at any length; after the second length nothing is compiled anew."""
    torch._dynamo.reset()
    call = CALLS[name]
    compiled = torch.compile(lambda *xs: call.function(*xs), backend="aot_eager", fullgraph=True, dynamic=True)
    with contextlib.ExitStack() as stack:
        for seed, n in enumerate((N, 15, 21, 30)):
            arrays = call.arrays(backend, n, seed)
            torch.testing.assert_close(outcome(compiled, arrays), outcome(call, arrays))
            if seed == 1:
                stack.enter_context(torch.compiler.set_stance("fail_on_recompile"))


@differentiable
def test_func(backend, name):
    """The transformations of torch.func, nested too, are the derivatives that autograd finds one by one."""
    func, call = torch.func, CALLS[name]
    vector, arrays = of_floats(call, call.arrays(backend))
    every = tuple(range(len(arrays)))

    def total(*given):
        return vector(*given).sum()

    rows = jacobian(vector, arrays)
    by = tuple(one.sum(0) for one in rows)
    twice = [jacobian(lambda *xs, at=at: jacobian(total, xs)[at], arrays) for at in every]
    twice = tuple(
        tuple(one.reshape(*x.shape, *y.shape) for one, y in zip(ones, arrays, strict=True))
        for x, ones in zip(arrays, twice, strict=True)
    )
    tangents = tuple(torch.cos(x) for x in arrays)
    along = sum((one.reshape(len(one), -1) * t.reshape(-1)).sum(1) for one, t in zip(rows, tangents, strict=True))
    layer = Program(total)
    layer.first = torch.nn.Parameter(arrays[0])
    layer.forward = lambda *others: total(layer.first, *others)
    stacked = tuple(torch.stack([x, 0.9 * x]) for x in arrays)

    def of_parameter(first):
        return func.functional_call(layer, {"first": first}, arrays[1:])

    with warnings_of_its_own():
        torch.testing.assert_close(func.grad(total, every)(*arrays), by)
        torch.testing.assert_close(func.vjp(total, *arrays)[1](torch.ones_like(vector(*arrays).sum())), by)
        torch.testing.assert_close(func.jvp(vector, arrays, tangents)[1], along)
        torch.testing.assert_close(func.jacrev(vector, every)(*arrays), rows)
        torch.testing.assert_close(func.jacfwd(vector, every)(*arrays), rows)
        torch.testing.assert_close(func.hessian(total, every)(*arrays), twice)
        torch.testing.assert_close(func.jacrev(func.jacrev(total, every), every)(*arrays), twice)
        found = func.vmap(func.grad(total, every))(*stacked)
        for at in range(2):
            expected = tuple(one.sum(0) for one in jacobian(vector, [x[at] for x in stacked]))
            torch.testing.assert_close(tuple(x[at] for x in found), expected)
        torch.testing.assert_close(func.grad(of_parameter)(arrays[0]), by[0])


@every_call
@pytest.mark.parametrize("switch", ["autocast", "deterministic"])
def test_switches(backend, name, switch, subtests):
    """Autocast changes no dtype and no error, deterministic mode no bit, forward or backward, of no method."""
    call = CALLS[name]
    for dtype in ("float32", "bfloat16"):
        if not backend.supports(dtype):
            continue
        for method in ("auto", "native", "array"):
            if method == "native" and switch == "deterministic" and backend.cuda:
                continue  # PyTorch's own routines may refuse
            arrays = [
                x.to(getattr(torch, dtype)) if x.is_floating_point() else x
                for x in call.arrays(backend, 40, dtype="float32")
            ]
            with subtests.test(dtype=dtype, method=method):
                try:
                    expected = outcome(call, arrays, method=method)
                except parprims.MethodRefused:
                    continue
                with SWITCHES[switch](backend.asarray(np.ones(1)).device.type):
                    found = outcome(call, arrays, method=method)
                loose = {} if switch == "autocast" and dtype == "float32" else exactly(backend)
                torch.testing.assert_close(found, expected, **loose)


@every_call
def test_saved_program(backend, name):
    """An exported program for any length has values and derivatives after it was saved and loaded."""
    call = CALLS[name]
    arrays = [tuple(call.arrays(backend, n, n)) for n in (N, 15)]
    n = torch.export.Dim("n", min=N // 2, max=4096)
    exported = torch.export.export(Program(call.function), arrays[0], dynamic_shapes={"arrays": lengths(*arrays, n)})
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for given in arrays:
        torch.testing.assert_close(outcome(loaded, given), outcome(call, given))


def test_package(backend, tmp_path):
    """A package of AOTInductor with every function, for any length, loads and computes."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("AOTInductor needs a C++ compiler")
    if backend.cuda:
        pytest.skip("PyTorch's loader of packages ends with a segmentation fault on GPUs")
    program = Program(*[call.function for call in CALLS.values()])
    arrays = [tuple(tuple(call.arrays(backend, n, n)) for call in CALLS.values()) for n in (N, 15)]
    n = torch.export.Dim("n", min=N // 2, max=4096)
    shapes = tuple(lengths(*both, n) for both in zip(*arrays, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch's own use of its trees
        exported = torch.export.export(program, arrays[0], dynamic_shapes={"arrays": shapes})
        path = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "package.pt2"))
    loaded = torch._inductor.aoti_load_package(path)
    for given in arrays:
        torch.testing.assert_close(tuple(loaded(*given)), program(*given))


OPTIONS = {
    "axis": (lambda x, axis: parprims.sum(x, axis=axis), (0, 2, -1)),
    "axes": (lambda x, axes: parprims.max(x, axis=axes), ((0, 1), (1, 2))),
    "k": (lambda x, k: parprims.top_k(x, k, axis=2)[0], (2, 4)),
    "half": (lambda x, _: parprims.top_k(x, x.shape[2] // 2, axis=2)[0], (0,)),
    "kth": (lambda x, kth: parprims.partition(x, kth, axis=2).sort(2).values, (2, 3)),
    "q": (lambda x, q: parprims.quantile(x, q, axis=2), (0.3, 0.75)),
    "bins": (lambda x, bins: parprims.histogram(x, bins, range=(0.0, bins))[0], (4, 7)),
    "num_segments": (lambda x, n: parprims.segment_reduce(x, torch.arange(2, device=x.device), n, axis=0), (3, 5)),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_are_constants_of_a_program(backend, option):
    """An option that is an argument of the program, or made of a length, may be a symbol; each value compiles anew."""
    torch._dynamo.reset()
    function, values = OPTIONS[option]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    x = backend.asarray(np.random.default_rng(3).uniform(0, 5, (2, 3, 6)))
    for one in values:
        torch.testing.assert_close(compiled(x, one), function(x, one))


def test_histograms_in_transformations_in_a_program(backend):
    """Weights and edges have their derivatives, and counts have none, under torch.func inside of torch.compile."""
    x, w = (backend.asarray(one) for one in _pair(N, 0, "float64"))

    def weighted(w):
        return parprims.histogram(x, 5, range=(0.0, 1.0), weights=w)[0].sin().sum()

    def counted(w):
        return (w * parprims.histogram(w, 5, range=(0.0, 1.0))[0].sum()).sum()

    def edges(w):
        return parprims.histogram(w, 5)[1].sin().sum()

    for function in (weighted, counted, edges):
        for transformed in (
            torch.func.grad(function),
            lambda w, function=function: torch.func.jvp(function, (w,), (w,)),
        ):
            torch._dynamo.reset()
            compiled = torch.compile(lambda w, f=transformed: f(w), backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(compiled(w), transformed(w))


IN_PROGRAMS = {
    "cumulative_sum": lambda x: parprims.cumulative_sum(x),
    "sort": lambda x: parprims.sort(x),
    "max": lambda x: parprims.max(x) * x,
    "weights": lambda x: parprims.histogram(x.detach(), 3, weights=x)[0],
}


@pytest.mark.parametrize("name", IN_PROGRAMS)
def test_transformations_in_a_program(backend, name):
    """Nested transformations, compiled, and the derivative of a compiled derivative."""

    def total(x):
        return torch.sin(IN_PROGRAMS[name](x)).sum()

    func, x = torch.func, backend.asarray(_pair(5, 0, "float64")[0])
    for function, given in (
        (func.hessian(total), x),
        (func.vmap(func.grad(total)), torch.stack([x, 0.5 * x])),
    ):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, f=function: f(x), backend="aot_eager", fullgraph=True)
        with warnings_of_its_own():
            torch.testing.assert_close(compiled(given), function(given))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: func.grad(total)(x), backend="aot_eager", fullgraph=True)
    leaf = x.clone().requires_grad_()
    by, right = (torch.autograd.grad(torch.sin(f(leaf)).sum(), leaf) for f in (compiled, func.grad(total)))
    torch.testing.assert_close(by, right)
