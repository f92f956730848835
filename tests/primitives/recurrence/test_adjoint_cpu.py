"""Derivatives of linear recurrences on PyTorch's CPU tensors, of which one kernel finds those by a and b."""

import numpy as np
import pytest

import parprims
from parprims._cpu import threads
from parprims._dispatch import prepared
from parprims._primitives.recurrence import gradient_cpu as recurrence_gradient_cpu

pytest.importorskip("numba")
torch = pytest.importorskip("torch")

ERRORS = {"float64": 1e-13, "float32": 1e-5, "float16": 1e-2, "bfloat16": 8e-2, "complex64": 1e-5, "complex128": 1e-13}


@pytest.fixture(autouse=True)
def _asked_for(request):
    if "torch" not in (request.config.getoption("--backend") or ["torch"]):
        pytest.skip("torch is not asked for")


@pytest.fixture
def plans(monkeypatch):
    """The calls for which the kernel was made ready."""
    found, prepare = [], recurrence_gradient_cpu._plan
    monkeypatch.setattr(recurrence_gradient_cpu, "_plan", lambda r: found.append(prepare(r)) or found[-1])
    monkeypatch.setattr(prepared.prepared, "_found", {})
    return found


def normal(rng, shape, dtype, scale=1.0):
    values = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape)
    return torch.from_numpy(np.asarray(scale * values)).to(getattr(torch, dtype))


def expected(a, x, g, axis, reverse):
    """Return the derivatives by a and b, one element after another, in the widest dtype."""
    wide = np.complex128 if a.is_complex() else np.float64
    a, x, g = (np.moveaxis(np.broadcast_to(one.to(torch.complex128).numpy(), g.shape), axis, 0) for one in (a, x, g))
    if reverse:
        a, x, g = a[::-1], x[::-1], g[::-1]
    by_a, by_b = np.zeros_like(g), g.copy()
    for i in reversed(range(len(g))):
        if i + 1 < len(g):
            by_b[i] += a[i + 1].conj() * by_b[i + 1]
        if i > 0:
            by_a[i] = by_b[i] * x[i - 1].conj()
    if reverse:
        by_a, by_b = by_a[::-1], by_b[::-1]
    return [np.moveaxis(one if wide is np.complex128 else one.real, 0, axis) for one in (by_a, by_b)]


def derivatives(a, b, g, wanted=(True, True), **options):
    a, b = (one.detach().requires_grad_(asked) for one, asked in zip((a, b), wanted, strict=True))
    x = parprims.linear_recurrence(a, b, **options)
    asked = [one for one in (a, b) if one.requires_grad]
    return x.detach(), torch.autograd.grad(x, asked, g)


def check(found, reference, dtype):
    for one, other in zip(found, reference, strict=True):
        assert str(one.dtype) == f"torch.{dtype}"
        assert np.abs(one.to(torch.complex128).numpy() - other).max() <= ERRORS[dtype] * max(1, np.abs(other).max())


LAYOUTS = {
    "lines": (((1,), 0), ((2,), 0), ((5, 37), 1), ((2, 1), 1)),
    "columns": (((37, 5), 0), ((3, 20, 7), 1), ((70, 600), 0)),
}
"""Shapes and axes: lines and tiles of columns of odd lengths; one line alone, and pairs of lines."""


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_every_layout(rng, plans, dtype, layout, reverse, transposed):
    for shape, axis in LAYOUTS[layout]:
        stored = shape[::-1] if transposed else shape
        a, b, g = (normal(rng, stored, dtype, scale) for scale in (0.5, 1, 1))
        if transposed:
            a, b, g = (one.permute(*reversed(range(one.ndim))) for one in (a, b, g))
        before = [one.clone() for one in (a, b, g)]
        x, found = derivatives(a, b, g, axis=axis, reverse=reverse)
        check(found, expected(a, x, g, axis, reverse), dtype)
        assert all(torch.equal(one, other) for one, other in zip((a, b, g), before, strict=True))
    assert plans
    assert None not in plans


@pytest.mark.parametrize("axis", [0, 1])
def test_broadcast_coefficients_and_initial_elements(rng, plans, axis):
    b, g = normal(rng, (30, 40), "float64"), normal(rng, (30, 40), "float64")
    for shape in ((), (40,), (30, 1), (30, 40)):
        a = normal(rng, shape, "float64", 0.5).requires_grad_()
        start = normal(rng, (70 - b.shape[axis],), "float64").requires_grad_()
        x = parprims.linear_recurrence(a, b, axis=axis, initial=start)
        found = torch.autograd.grad(x, (a, start), g)
        again = parprims.linear_recurrence(a, b, axis=axis, initial=start, method="array")
        for one, other in zip(found, torch.autograd.grad(again, (a, start), g), strict=True):
            assert one.shape == other.shape
            assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)
    assert plans


def test_only_what_is_asked_for(rng, plans):
    a, b, g = (normal(rng, (6, 50), "float64", scale) for scale in (0.5, 1, 1))
    x, (by_a, by_b) = derivatives(a, b, g)
    assert torch.equal(derivatives(a, b, g, (False, True))[1][0], by_b)
    assert torch.equal(derivatives(a, b, g, (True, False))[1][0], by_a)
    assert {len(one.outputs) for one in plans} == {1, 2}
    check((by_a, by_b), expected(a, x, g, 1, reverse=False), "float64")


def test_first_coefficients_and_infinities(rng):
    """A first coefficient is not read, so that it has no derivative, whatever it is; others spread what they are."""
    a, b, g = (normal(rng, (3, 9), "float64") for _ in range(3))
    a[:, 0] = torch.tensor([np.inf, np.nan, 1.0])
    x, (by_a, by_b) = derivatives(a, b, g, axis=1)
    assert (by_a[:, 0] == 0).all()
    check((by_a, by_b), expected(a, x, g, 1, reverse=False), "float64")
    g[1, 4] = np.inf
    found = derivatives(a, b, g, axis=1)[1][1].numpy()
    assert not np.isfinite(found[1, :5]).any()
    assert np.isfinite(found[[0, 2]]).all()
    assert np.isfinite(found[1, 5:]).all()


@pytest.mark.parametrize(("shape", "axis"), [((3001, 70), 1), ((70, 3001), 0)])
def test_the_number_of_threads_changes_no_bits(rng, monkeypatch, shape, axis):
    a, b, g = (normal(rng, shape, "float64", scale) for scale in (0.5, 1, 1))
    found = []
    for count in (1, 2, 7):
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        monkeypatch.setattr(threads, "_pool", None)
        monkeypatch.setattr(prepared.prepared, "_found", {})
        found.append([one.numpy().tobytes() for one in derivatives(a, b, g, axis=axis)[1]])
    assert found[0] == found[1] == found[2]


def test_long_lines_are_left_to_recurrences(rng, plans):
    a, b, g = (normal(rng, (9001,), "float64", scale) for scale in (0.5, 1, 1))
    x, found = derivatives(a, b, g)
    check(found, expected(a, x, g, 0, reverse=False), "float64")
    assert not plans


def test_second_derivatives(rng):
    a, b = (normal(rng, (4, 6), "float64", 0.5).requires_grad_() for _ in range(2))
    assert torch.autograd.gradgradcheck(lambda a, b: parprims.linear_recurrence(a, b, axis=1), (a, b))
