"""segment_reduce of several arrays: each segment against a loop."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import parprims

METHODS = ("auto", "kernel", "native", "array")


class Moments(NamedTuple):
    count: Any
    mean: Any
    squares: Any


def larger(earlier, later):
    return earlier if earlier[0] >= later[0] else later


def affine(earlier, later):
    (a, b), (c, d) = earlier, later
    return c * a, c * b + d


def welford(earlier, later):
    (n, mean, squares), (m, other, more) = earlier, later
    if n + m == 0:
        return later
    apart = other - mean
    return n + m, mean + apart * m / (n + m), squares + more + apart**2 * n * m / (n + m)


def last(earlier, later):
    """Return the later pair with the number of pairs: an operator that does not commute."""
    return {"count": earlier["count"] + later["count"], "value": later["value"]}


def pairs(rng, shape):
    places = np.broadcast_to(np.arange(shape[0]).reshape(-1, *(1,) * (len(shape) - 1)), shape)
    return rng.integers(0, 5, shape).astype(np.float32), places.astype(np.int32)


def maps(rng, shape):
    return rng.uniform(0.5, 1, shape), rng.standard_normal(shape)


def moments(rng, shape):
    return Moments(np.ones(shape), rng.standard_normal(shape), np.zeros(shape))


CASES = {
    "argmax": (pairs, larger, (-np.inf, -1)),
    "affine": (maps, affine, None),
    "welford": (moments, welford, None),
    "last": (lambda rng, shape: dict(zip(("count", "value"), moments(rng, shape)[:2], strict=True)), None, (0.0, -5.0)),
}
IDENTITY = {"affine": (1.0, 0.0), "welford": (0.0, 0.0, 0.0)}


def loop(xs, ids, segments, combine, start):
    """Return what every segment is by its definition, one element after another; arrays are of one dimension."""
    states = [start] * segments
    for at, number in enumerate(ids):
        if 0 <= number < segments:
            states[number] = combine(states[number], tuple(x[at] for x in xs))
    return [np.asarray(one) for one in zip(*states, strict=True)]


def leaves(x):
    return tuple(x.values()) if isinstance(x, dict) else tuple(x)


def made(x, arrays):
    if isinstance(x, dict):
        return dict(zip(x, arrays, strict=True))
    return type(x)(*arrays) if hasattr(x, "_fields") else tuple(arrays)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", METHODS)
@pytest.mark.parametrize("columns", [(), (3,)], ids=["lines", "columns"])
@pytest.mark.parametrize("in_order", [False, True])
def test_every_segment_is_that_of_a_loop(backend, rng, name, way, columns, in_order):
    make, combine, initial = CASES[name]
    op = last if name == "last" else name
    if name == "last":
        combine = lambda one, two: (one[0] + two[0], two[1])  # noqa: E731
    for n in (0, 40):
        segments = 7
        ids = rng.integers(-1, segments + 1, n)
        ids[ids == 4] = 5  # the fifth segment is empty
        ids = np.sort(ids) if in_order else ids
        x = make(rng, (n, *columns))
        given = made(x, [backend.asarray(one) for one in leaves(x)])
        options = {"indices_are_sorted": in_order, "method": way, "initial": initial}
        try:
            found = parprims.segment_reduce(given, backend.asarray(ids), segments, op, **options)
        except parprims.MethodRefused:
            assert way in ("native", "kernel")
            continue
        assert type(found) is type(x)
        start = initial or IDENTITY[name]
        lines = np.ndindex(columns)
        for line in lines:
            expected = loop([one[(slice(None), *line)] for one in leaves(x)], ids, segments, combine, start)
            for y, exact in zip(leaves(found), expected, strict=True):
                y = backend.to_numpy(y)
                assert y.shape == (segments, *columns)
                np.testing.assert_allclose(y[(slice(None), *line)], exact, rtol=1e-5, atol=1e-5, err_msg=f"{n}")


@pytest.mark.once
def test_what_does_not_fit_is_refused():
    x, ids = np.ones(4), np.array([0, 1, 1, 3])
    with pytest.raises(ValueError, match=r"initial must be given.*no identity for empty segments"):
        parprims.segment_reduce((x, x), ids, 4, lambda one, two: (one[0] + two[0], one[1] * two[1]))
    with pytest.raises(ValueError, match="x must be arrays of equal shape"):
        parprims.segment_reduce((x, x[:3]), ids, 4, "affine")
    with pytest.raises(ValueError, match="initial must have 2 entries"):
        parprims.segment_reduce((x, x), ids, 4, "affine", initial=(1.0,))
    with pytest.raises(ValueError, match="works on a single array"):
        parprims.segment_reduce((x, x), ids, 4, "add")
    with pytest.raises(ValueError, match="x must hold at least one array"):
        parprims.segment_reduce((), ids, 4, "add")


@pytest.mark.once
def test_derivatives_are_those_of_a_loop(rng):
    torch = pytest.importorskip("torch")
    ids = torch.tensor([2, 0, 2, 2, -1, 0])
    x = tuple(torch.tensor(one, requires_grad=True) for one in maps(rng, (6,)))
    for method in ("auto", "array"):
        found = parprims.segment_reduce(x, ids, 4, "affine", method=method)[1]
        expected = torch.stack([x[1][1] * x[0][5] + x[1][5], (x[1][0] * x[0][2] + x[1][2]) * x[0][3] + x[1][3]])
        torch.testing.assert_close(found[torch.tensor([0, 2])], expected)
        weights = torch.tensor([2.0, 3.0], dtype=torch.float64)
        ours = torch.autograd.grad((found[torch.tensor([0, 2])] * weights).sum(), x)
        theirs = torch.autograd.grad((expected * weights).sum(), x)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.once
def test_derivatives_on_jax(rng):
    jax = pytest.importorskip("jax")
    a, b = (jax.numpy.asarray(one, dtype=jax.numpy.float32) for one in maps(rng, (5,)))
    ids = jax.numpy.asarray([1, 0, 1, 1, 0])

    def total(a, b):
        return parprims.segment_reduce((a, b), ids, 2, "affine")[1].sum()

    def by_hand(a, b):
        return b[1] * a[4] + b[4] + (b[0] * a[2] + b[2]) * a[3] + b[3]

    for ours, theirs in zip(jax.jit(jax.grad(total, (0, 1)))(a, b), jax.grad(by_hand, (0, 1))(a, b), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
