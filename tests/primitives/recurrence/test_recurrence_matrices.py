"""Linear recurrences of vectors against a loop, and against the scalar recurrence of higher order that they contain."""

import numpy as np
import pytest

import parprims
from tests.support.contract import check_derivatives, compare, eps, random, skip_without_derivative
from tests.support.covering import lacks_dtype


def loop(a, b, axis, initial=None, reverse=False):
    """Return the solution by its definition, and that of the recurrence with all numbers' sizes."""
    a, b = (
        np.moveaxis(np.broadcast_to(x, shape), axis, 0) for x, shape in ((a, (*b.shape, b.shape[-1])), (b, b.shape))
    )
    found, sizes = np.zeros(b.shape, b.dtype), np.zeros(b.shape)
    x, size = initial, None if initial is None else abs(initial)
    for n in range(len(b))[:: -1 if reverse else 1]:
        x = b[n] if x is None else (a[n] @ x[..., None])[..., 0] + b[n]
        size = abs(b[n]) if size is None else (abs(a[n]) @ size[..., None])[..., 0] + abs(b[n])
        found[n], sizes[n] = x, size
    return np.moveaxis(found, 0, axis), np.moveaxis(sizes, 0, axis)


class TestMatrices:
    methods = ("kernel", "native", "array")

    @staticmethod
    def only_refused(_test, given):
        return (given["method"] == "native" and given["backend"] != "jax") or lacks_dtype(given)

    # Each number of unknowns is a kernel of its own, and so is a way through memory.
    @pytest.mark.parametrize("initial", [False, True])
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize(
        ("shape", "axis"),
        [((1, 2), 0), ((33, 3), 0), ((3, 20, 2), 1), ((2, 2), 0), ((0, 2), 0), ((20, 3, 1), 0), ((1000, 2), 0)],
    )
    def test_shapes(self, backend, run, method, rng, shape, axis, reverse, initial):
        a, b = 0.4 * random(rng, (*shape, shape[-1]), "float64"), random(rng, shape, "float64")
        start = random(rng, (*shape[:axis], *shape[axis + 1 :]), "float64") if initial else None
        options = {} if start is None else {"initial": backend.asarray(start)}
        options |= {"axis": axis, "reverse": reverse, "matrices": True, "method": method}
        found = run(parprims.linear_recurrence, backend.asarray(a), backend.asarray(b), **options)
        expected, sizes = loop(a, b, axis, start, reverse)
        compare(backend, found, expected, 8 * shape[-1] * shape[axis] * eps("float64") * sizes, "float64")

    @pytest.mark.parametrize("dtype", ["int32", "float16", "complex64"])
    def test_dtypes(self, backend, run, method, rng, dtype):
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        a, b = random(rng, (2, 2), dtype), random(rng, (2, 17, 2), dtype)
        if dtype != "int32":
            a = (a * np.asarray(0.3, a.dtype)).astype(dtype)
        arrays = backend.asarray(a), backend.asarray(b)
        found = run(parprims.linear_recurrence, *arrays, matrices=True, method=method)
        with np.errstate(all="ignore"):
            wide = b if dtype == "int32" else b.astype(np.complex128 if dtype[0] == "c" else np.float64)
            expected, sizes = loop(a.astype(wide.dtype), wide, 1)
        bound = 0 if dtype == "int32" else (16 * 17 * eps("float32") + eps(dtype)) * sizes
        compare(backend, found, expected, bound, dtype)

    def test_higher_order(self, backend, run, method, rng):
        """y[n] = c[n] y[n-1] + d[n] y[n-2] + x[n], as a recurrence of pairs."""
        c, d, x = 0.5 * random(rng, (3, 50), "float64")
        a = np.stack([np.stack([c, d], -1), np.broadcast_to([1.0, 0.0], (50, 2))], 1)
        b = np.stack([x, 0 * x], -1)
        found = run(parprims.linear_recurrence, backend.asarray(a), backend.asarray(b), matrices=True, method=method)
        y = np.zeros(52)
        for n in range(50):
            y[n + 2] = c[n] * y[n + 1] + d[n] * y[n] + x[n]
        np.testing.assert_allclose(backend.to_numpy(found)[:, 0], y[2:], atol=1e-13)

    def test_derivatives(self, backend, run, method, rng):
        if backend.name == "jax" and method == "native":
            pytest.skip("much to compile")
        skip_without_derivative(backend, method)
        inputs = 0.5 * random(rng, (6, 2, 2), "float64"), random(rng, (6, 2), "float64"), random(rng, (2,), "float64")

        def solved(a, b, initial):
            return run(parprims.linear_recurrence, a, b, initial=initial, matrices=True, method=method)

        check_derivatives(backend, solved, inputs)


def test_many_numbers(backend, rng):
    a, b = 0.1 * random(rng, (9, 9), "float64"), random(rng, (20, 9), "float64")
    found = parprims.linear_recurrence(backend.asarray(a), backend.asarray(b), matrices=True)
    np.testing.assert_allclose(backend.to_numpy(found), loop(a, b, 0)[0], atol=1e-12)


def test_arguments_named(backend):
    a, b = backend.asarray(np.ones((5, 2, 2))), backend.asarray(np.ones((5, 2)))
    solve = parprims.linear_recurrence
    for call, error, words in (
        (lambda: solve(b, b, matrices=True), ValueError, r"a must have shape \(..., n, k, k\)"),
        (lambda: solve(a, a[:, :, 0][:, :1], matrices=True), ValueError, r"b must have shape \(..., n, k\), with k 2"),
        (
            lambda: solve(a[:3, :, :], b, matrices=True),
            ValueError,
            "a and b must broadcast but for the axes of matrices",
        ),
        (lambda: solve(a, b, matrices=True, axis=1), IndexError, "axis 1 is out of range"),
        (lambda: solve(a, b, matrices=1), TypeError, "matrices must be True or False"),
        (lambda: solve(a, b, matrices=True, offsets=b), ValueError, "offsets must be None where coefficients are"),
    ):
        with pytest.raises(error, match=f"^{words}"):
            call()


def test_torch_compile(rng):
    torch = pytest.importorskip("torch")
    a, b = (torch.from_numpy(0.5 * random(rng, shape, "float64")) for shape in ((7, 2, 2), (7, 2)))

    def loss(a, b):
        return (parprims.linear_recurrence(a, b, axis=0, matrices=True) ** 2).sum()

    results = []
    for function in (torch.compile(loss, fullgraph=True, backend="aot_eager"), loss):
        leaves = [one.clone().requires_grad_() for one in (a, b)]
        function(*leaves).backward()
        results.append([one.grad for one in leaves])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
