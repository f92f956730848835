"""Derivatives at infinities and zeros, and calls that want one of every method."""

import itertools

import numpy as np
import pytest

import parprims
from parprims._dispatch.examples import Sample
from parprims._dispatch.primitive import declared
from tests.on_jax.test_jax import CALLS, ELSEWHERE, METHODS, floats

INF = np.inf


@pytest.fixture(params=METHODS)
def by(request):
    """A method, asked for by name."""
    return request.param


def refused(method, call, *args):
    """Return the result of a call; skip the test where a method other than ``auto`` refuses it."""
    try:
        return call(*args)
    except parprims.MethodRefused as refusal:
        if method == "auto":
            raise
        pytest.skip(str(refusal))


def nested(transformations, function):
    """Return a function under several transformations, the first of which is the innermost."""
    for one in transformations:
        function = one(function)
    return function


def modes(backend, orders):
    """Return all nestings of forward and backward derivatives, of these orders."""
    if backend.family == "torch":
        from torch.func import jacfwd, jacrev
    elif backend.family == "jax":
        from jax import jacfwd, jacrev
    else:
        pytest.skip("has no derivatives")
    return [one for order in orders for one in itertools.product((jacfwd, jacrev), repeat=order)]


# ---- The logarithm of a sum of exponentials, some of which are nothing -------------------------------------------


def _offsets(x, array, *before):
    return array(np.array([*before, 0, x.shape[0]], np.int32))


SUMS = {
    "reduce": lambda x, _, m: parprims.reduce(x, "logaddexp", method=m),
    "initial": lambda x, _, m: parprims.reduce(x, "logaddexp", initial=-INF, method=m),
    "map_reduce": lambda x, _, m: parprims.map_reduce(lambda v: v * 1.0, x, op="logaddexp", method=m),
    "scan": lambda x, _, m: parprims.scan(x, "logaddexp", method=m)[-1],
    "reverse": lambda x, _, m: parprims.scan(x, "logaddexp", reverse=True, method=m)[0],
    "cumulative_logsumexp": lambda x, _, m: parprims.cumulative_logsumexp(x, method=m)[-1],
    "offsets": lambda x, array, m: parprims.reduce(x, "logaddexp", offsets=_offsets(x, array, 0), method=m)[1],
    "scan by offsets": lambda x, array, m: parprims.scan(x, "logaddexp", offsets=_offsets(x, array), method=m)[-1],
    "segment_reduce": lambda x, array, m: parprims.segment_reduce(
        x, array(np.zeros(x.shape[0], np.int32)), 2, op="logaddexp", method=m
    )[0],
    "matmul": lambda x, array, m: parprims.matmul(
        x[None], array(np.zeros((x.shape[0], 1))), add="logaddexp", multiply="add", method=m
    )[0, 0],
}
LINES = ([-INF, -INF, 1.0], [1.0, -INF, -INF, -INF, 2.0, -INF, -INF], [-INF, 2.0, -INF, 2.0], [-INF] * 5 + [0.0])


def shares(x):
    """Return the derivatives of first and second order of log(sum(exp(x)))."""
    share = np.exp(x - np.max(x))
    share /= share.sum()
    return share, np.diag(share) - np.outer(share, share)


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_nothing(backend, by, name):
    """An element of minus infinity has the derivative 0, of every order and by every mode."""
    lines = LINES if backend.family == "torch" else LINES[1:2]
    kinds = modes(backend, (1, 2)) if backend.family == "torch" else modes(backend, (1, 2))[1:4]
    for line in lines:
        wanted = shares(np.array(line))

        def value(x):
            return SUMS[name](x, backend.asarray, by)

        for kind in kinds:
            found = refused(by, nested(kind, value), backend.asarray(np.array(line)))
            assert np.allclose(backend.to_numpy(found), wanted[len(kind) - 1], rtol=0, atol=1e-12), (line, kind)


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_nothing_backward(backend, by, name):
    """The same by PyTorch's backward, which kernels carry, twice."""
    if backend.family != "torch":
        pytest.skip("PyTorch's own")
    import torch

    for line in LINES:
        x = backend.asarray(np.array(line)).requires_grad_()
        y = refused(by, SUMS[name], x, backend.asarray, by)
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        second = torch.stack([torch.autograd.grad(one, x, retain_graph=True)[0] for one in first])
        for found, wanted in zip((first.detach(), second), shares(np.array(line)), strict=True):
            assert np.allclose(backend.to_numpy(found), wanted, rtol=0, atol=1e-12), line


def test_infinite_sums(backend, by):
    """Where the sum is infinite, nothing is NaN: of those that are, one has the derivative 1."""
    for line, total in (([INF, 1.0, -INF, INF], 1.0), ([-INF, -INF, -INF], 0.0), ([INF, -INF], 1.0)):
        for transformed in modes(backend, (1,)):
            found = refused(
                by, nested(transformed, lambda x: SUMS["reduce"](x, None, by)), backend.asarray(np.array(line))
            )
            got = backend.to_numpy(found)
            assert sorted(got)[:-1] == [0.0] * (len(line) - 1)
            assert got.sum() == total


# ---- Products at zeros -------------------------------------------------------------------------------------------

PRODUCTS = {
    "prod": lambda x, _, m: parprims.prod(x, method=m),
    "reduce": lambda x, _, m: parprims.reduce(x, "multiply", method=m),
    "map_reduce": lambda x, _, m: parprims.map_reduce(lambda v: v * 1.0, x, op="multiply", method=m),
    "offsets": lambda x, array, m: parprims.reduce(x, "multiply", offsets=_offsets(x, array, 0), method=m)[1],
    "segment_reduce": lambda x, array, m: parprims.segment_reduce(
        x, array(np.zeros(x.shape[0], np.int32)), 2, op="multiply", method=m
    )[0],
    "cumulative_prod": lambda x, _, m: parprims.cumulative_prod(x, method=m).sum(),
    "scan": lambda x, _, m: parprims.scan(x, "multiply", reverse=True, method=m).sum(),
    "scan by offsets": lambda x, array, m: parprims.scan(x, "multiply", offsets=_offsets(x, array), method=m).sum(),
    "exclusive": lambda x, _, m: parprims.scan(x, "multiply", exclusive=True, initial=2.0, method=m).sum(),
    "affine": lambda x, _, m: parprims.scan((x, x), "affine", method=m)[1].sum(),
    "linear_recurrence": lambda x, _, m: parprims.linear_recurrence(x, x, method=m).sum(),
}


def product(name, x):
    """Return the same of numbers that know * and +, by a loop."""
    if name in ("affine", "linear_recurrence"):
        total, sums = x[0], x[0]
        for one in x[1:]:
            total = one * total + one
            sums = sums + total
        return sums
    x = x[::-1] if name == "scan" else x
    totals = [2.0 * x[0] ** 0 if name == "exclusive" else x[0]]
    for one in x[:-1] if name == "exclusive" else x[1:]:
        totals.append(totals[-1] * one)
    sums = totals[0]
    for one in totals[1:]:
        sums = sums + one
    return totals[-1] if name in ("prod", "reduce", "map_reduce", "offsets", "segment_reduce") else sums


@pytest.mark.parametrize("zeros", [(0,), (1, 2), (0, 1, 3)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_at_zeros(backend, by, name, zeros):
    """All nestings of forward and backward derivatives, up to the third order, along a line through zeros."""
    steps = np.array([1.0, -2.0, 3.0, 1.5])
    at = np.array([0.0 if index in zeros else 2.0 + index for index in range(4)])
    line = np.polynomial.Polynomial
    exact = product(name, [line([start, step]) for start, step in zip(at, steps, strict=True)])
    start, step = backend.asarray(at), backend.asarray(steps)
    kinds = modes(backend, (1, 2, 3))
    if backend.family == "jax":
        kinds = [one for one in kinds if len(one) == 2] if zeros == (1, 2) else []

    def value(t):
        return PRODUCTS[name](start + t * step, backend.asarray, by)

    for kind in kinds:
        found = refused(by, nested(kind, value), backend.asarray(np.array(0.0)))
        wanted = exact.deriv(len(kind))(0.0)
        assert np.allclose(float(found), wanted, rtol=1e-12, atol=1e-12), [one.__name__ for one in kind]


def test_hessian_by_forward_derivatives(backend, by):
    """PyTorch's own forward derivatives of its backward ones."""
    if backend.family != "torch":
        pytest.skip("PyTorch's own")
    from torch.autograd.functional import hessian

    x = backend.asarray(np.array([0.0, 3.0, 0.0]))
    options = {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}
    found = refused(by, lambda: hessian(lambda x: PRODUCTS["prod"](x, None, by), x, **options))
    assert backend.to_numpy(found).tolist() == [[0, 0, 3], [0, 0, 0], [3, 0, 0]]


# ---- Every function, asked for a derivative ----------------------------------------------------------------------

_RNG = np.random.default_rng(62)
X, Y, W = _RNG.permutation(6) / 7, _RNG.standard_normal(6), _RNG.uniform(0.5, 1.0, 6)


def _sampled(name):
    """Return a function of a method and arrays, and the arrays, of an example call of floats."""
    one = declared[name].sampled(Sample((6,), dtype="float64"))
    return lambda m, *xs: one(*xs, method=m), one.arrays


_OF_FLOATS = (*ELSEWHERE, "argpartition", "cumulative_max with indices", "median", "merge_by_key", "partition", "top_k")
"""Primitives that `CALLS` has no call of, or one of short keys."""

# The calls of the suite of JAX, examples of floats, and options by which a derivative goes other ways.
EVERY = CALLS | {name: _sampled(name) for name in _OF_FLOATS} | {
    "quantile": (lambda m, x: parprims.quantile(x, (0.0, 0.7), method=m), (X,)),
    "argmax of floats": _sampled("argmax"),
    "argsort of floats": _sampled("argsort"),
    "sort of floats": _sampled("sort"),
    "weights": (lambda m, w: parprims.histogram(w * 0 + 1, 3, weights=w, method=m)[0], (W,)),
    "density": (lambda m, x, w: parprims.histogram(x, 3, weights=w, density=True, method=m), (X, W)),
    "weights in a range": (lambda m, x, w: parprims.histogram(x, 3, range=(-0.1, 2), weights=w, method=m), (X, W)),
    "weights by edges": (lambda m, x, e, w: parprims.histogram(x, e, weights=w, method=m)[0], (X, np.sort(Y), W)),
    "initial": (lambda m, x, s: parprims.reduce(x[None], axis=-1, initial=s, method=m), (X, Y[:1])),
}  # fmt: skip


def _smooth(result):
    """Return a number that depends on every floating result."""
    ones = result if isinstance(result, tuple) else (result,)
    return sum((one.sin() * (1 + one)).sum() for one in ones if one.is_floating_point())


@pytest.mark.parametrize("mode", ["backward", "last", "grad", "jvp", "dual"])
@pytest.mark.parametrize("name", EVERY)
def test_every_function(backend, by, name, mode):
    """A method computes with the derivative, or refuses in a sentence; by auto every call is served."""
    if backend.family != "torch":
        pytest.skip("test_jax.py does so on JAX")
    import torch
    from torch.autograd import forward_ad

    call, arrays = EVERY[name]
    if mode in ("grad", "jvp") and name == "select":
        pytest.skip("size must be given")
    places = floats(arrays)[-1 if mode == "last" else 0 :]
    if not places:
        pytest.skip("no argument has a derivative")
    given = [backend.asarray(np.asarray(x, np.float64) if at in floats(arrays) else x) for at, x in enumerate(arrays)]
    rng = np.random.default_rng(7)
    changes = [backend.asarray(rng.standard_normal(arrays[at].shape)) for at in places]

    def value(*xs, using=by):
        whole = list(given)
        for at, x in zip(places, xs, strict=True):
            whole[at] = x
        return _smooth(call(using, *whole))

    def moved(h):
        return value(*(given[at] + h * d for at, d in zip(places, changes, strict=True)), using="array")

    wanted = (moved(1e-5) - moved(-1e-5)) / 2e-5
    if not isinstance(wanted, torch.Tensor):
        wanted = torch.zeros(())
    start = [given[at] for at in places]

    def derivative():
        if mode in ("backward", "last"):
            leaves = [x.clone().requires_grad_() for x in start]
            y = value(*leaves)
            if not isinstance(y, torch.Tensor) or not y.requires_grad:
                return torch.zeros(())
            found = torch.autograd.grad(y, leaves, allow_unused=True)
        elif mode == "grad":
            found = torch.func.grad(lambda *xs: value(*xs) + 0 * xs[0].sum(), tuple(range(len(start))))(*start)
        elif mode == "jvp":
            return torch.func.jvp(lambda *xs: value(*xs) + 0 * xs[0].sum(), tuple(start), tuple(changes))[1]
        else:
            with forward_ad.dual_level():
                y = value(*(forward_ad.make_dual(x, d) for x, d in zip(start, changes, strict=True)))
                tangent = forward_ad.unpack_dual(y).tangent if isinstance(y, torch.Tensor) else None
                return torch.zeros(()) if tangent is None else tangent
        return sum(((g * d).sum() for g, d in zip(found, changes, strict=True) if g is not None), torch.zeros(()))

    got = refused(by, derivative)
    assert abs(float(got) - float(wanted)) <= 1e-6 * (1 + abs(float(wanted)))


def test_weights_on_jax(backend, by):
    """The derivative by weights goes to where they are counted."""
    if backend.family != "jax":
        pytest.skip("the same for JAX")
    import jax

    x, w = backend.asarray(X), backend.asarray(W)
    for transformed in (jax.jit(jax.grad(lambda w: (parprims.histogram(x, 3, weights=w, method=by)[0] ** 2).sum())),):
        found = refused(by, transformed, w)
        sums, edges = np.histogram(X, 3, weights=W)
        bins = np.clip(np.searchsorted(edges, X, "right") - 1, 0, 2)
        assert np.allclose(backend.to_numpy(found), 2 * sums[bins])


def test_native_says_why(backend):
    """A method that is asked for by name and has no derivative says so."""
    if backend.family != "torch":
        pytest.skip("PyTorch's own")
    x, w = backend.asarray(X), backend.asarray(W).requires_grad_()
    with pytest.raises(parprims.MethodRefused, match="PyTorch asks for a derivative by weights"):
        parprims.histogram(x, 3, weights=w, method="native")


# ---- Extrema of which several elements are equal -----------------------------------------------------------------

EXTREMA = {
    "max": lambda x, m: parprims.max(x, method=m),
    "min": lambda x, m: -parprims.min(-x, method=m),
    "reduce": lambda x, m: parprims.reduce(x, "maximum", method=m),
    "scan": lambda x, m: parprims.scan(x, "maximum", method=m)[-1],
    "offsets": lambda x, m: parprims.reduce(x, "maximum", offsets=[0, x.shape[0]], method=m)[0],
    "cumulative_max": lambda x, m: parprims.cumulative_max(x, method=m)[-1],
    "map_reduce": lambda x, m: parprims.map_reduce(lambda v: v, x, op="maximum", method=m),
    "sort": lambda x, m: parprims.sort(x, method=m)[-1],
    "top_k": lambda x, m: parprims.top_k(x, 1, method=m)[0][0],
    "quantile": lambda x, m: parprims.quantile(x, 1.0, method=m),
}


@pytest.mark.parametrize("name", EXTREMA)
def test_equal_elements_share_the_derivative(backend, by, name):
    """A valid subgradient: shares are not negative, add up to 1, and are nothing of smaller elements."""
    x = np.array([1.0, 2.0, -3.0, 2.0, 2.0, 0.0])
    if backend.family == "torch":
        given = backend.asarray(x).requires_grad_()
        refused(by, EXTREMA[name], given, by).backward()
        found = backend.to_numpy(given.grad)
    elif backend.family == "jax":
        import jax

        found = np.asarray(refused(by, jax.grad(lambda x: EXTREMA[name](x, by)), backend.asarray(x)))
    else:
        pytest.skip("has no derivatives")
    assert (found >= 0).all()
    assert (found[x < 2] == 0).all()
    assert found.sum() == pytest.approx(1)
