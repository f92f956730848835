"""Kernels of matrix products in programs of PyTorch and JAX, and their derivatives."""

import numpy as np
import pytest

import parprims
from parprims._dispatch import derivative_rules
from parprims._primitives.matmul import call as call_matmul
from parprims._primitives.matmul import public as public_matmul
from parprims._primitives.matmul.array import tiled_product
from tests.conftest import _backend
from tests.emulation import emulator
from tests.primitives.matmul.test_matmul import (
    KERNELS,
    bound,
    loop,
)
from tests.primitives.matmul.test_matmul_kernel import make, size
from tests.support.contract import compare, eps, random


class TestTorch:
    @pytest.mark.parametrize("shapes", [((5, 9), (9, 4)), ((2, 1, 5, 9), (3, 9, 4)), ((9,), (3, 9, 4)), ((9,), (9,))])
    @pytest.mark.parametrize("dtype", ["float32", "complex128"])
    def test_backward(self, tensors, rng, shapes, dtype):
        # Of sum(w * (a b)) the derivatives are w b^H and a^H w, summed over what was broadcast.
        a, b = make(rng, shapes, dtype)
        (w,) = make(rng, (loop(a, b).shape,), dtype)
        x, y = (tensors.asarray(one).requires_grad_(True) for one in (a, b))
        product = parprims.matmul(x, y, method="kernel")
        compare(tensors, product, loop(a, b), bound("kernel", a, b), dtype)
        product.backward(tensors.asarray(w))
        rows, columns = (a if a.ndim > 1 else a[None]), (b if b.ndim > 1 else b[:, None])
        w = w if b.ndim > 1 else w[..., None]
        w = w if a.ndim > 1 else w[..., None, :]
        for got, factors, given in (
            (x.grad, (w, np.swapaxes(columns, -1, -2).conj()), a),
            (y.grad, (np.swapaxes(rows, -1, -2).conj(), w), b),
        ):
            expected, error = loop(*factors), bound("kernel", *factors)
            two = given if given.ndim > 1 else expected[(0,) * (expected.ndim - 2)]
            shape = (1,) * (expected.ndim - two.ndim) + two.shape
            over = tuple(at for at, (one, other) in enumerate(zip(shape, expected.shape, strict=True)) if one != other)
            # Summed in at most 6 more steps.
            error = (error + 6 * eps(dtype) * size(*factors)).sum(axis=over)
            compare(tensors, got, expected.sum(axis=over).reshape(given.shape), error.reshape(given.shape), dtype)

    def test_backward_of_backward(self, tensors, rng):
        a, b, w, v = make(rng, ((5, 9), (9, 4), (5, 4), (5, 9)), "float64")
        x, y, u = (tensors.asarray(one).requires_grad_(True) for one in (a, b, w))
        import torch

        product = parprims.matmul(x, y, method="kernel")
        (by_x,) = torch.autograd.grad(product, x, u, create_graph=True)  # u y^T
        by_y, by_u = torch.autograd.grad(by_x, (y, u), tensors.asarray(v))
        compare(tensors, by_y, loop(v.T, w), bound("kernel", v.T, w))
        compare(tensors, by_u, loop(v, b), bound("kernel", v, b))

    def test_no_other_operators(self, tensors, rng):
        x, y = (tensors.asarray(one).requires_grad_(True) for one in make(rng, ((5, 9), (9, 4)), "float32"))
        if tensors.name == "torch":
            pytest.skip("the emulator refuses nothing")
        with pytest.raises(parprims.MethodRefused, match="a gradient is asked for"):
            parprims.matmul(x, y, add="minimum", multiply="add", method="kernel")
        parprims.matmul(x, y, add="minimum", multiply="add").sum().backward()
        assert x.grad is not None


class TestDerivatives:
    """The rules that go with the kernel, carried out by array on any machine."""

    @pytest.mark.parametrize(
        "shapes",
        [((3, 4), (4, 2)), ((4,), (4,)), ((4,), (4, 2)), ((3, 4), (4,)), ((2, 1, 3, 4), (3, 4, 2)), ((4,), (2, 4, 3))],
    )
    @pytest.mark.parametrize(
        "dtypes", [("float64", "float64"), ("complex128", "complex128"), ("float64", "complex128")]
    )
    def test_torch(self, rng, shapes, dtypes):
        torch = pytest.importorskip("torch")
        from parprims._derivatives import torch_rules

        product = torch_rules.product(
            lambda a, b: parprims.matmul(a, b, method="array"), precision="float32", kernel=None, method="array"
        )
        factors = [
            torch.from_numpy(np.asarray(random(rng, shape, dtype))).requires_grad_(True)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        assert torch.autograd.gradcheck(product, factors)
        assert torch.autograd.gradgradcheck(product, factors)

    def test_torch_options_are_kept(self, rng, monkeypatch):
        torch = pytest.importorskip("torch")
        asked = []
        matmul = public_matmul.matmul

        def watched(a, b, **options):
            asked.append(options)
            return matmul(a, b, precision=options["precision"], method="array")

        monkeypatch.setattr(public_matmul, "matmul", watched)
        a, b = (torch.from_numpy(x).requires_grad_(True) for x in make(rng, ((3, 4), (4, 2)), "float32"))
        from array_api_compat import torch as xp

        operators = call_matmul.as_operators("add", "multiply")
        p = call_matmul.Product.of(xp, (a, b), operators, precision="tf32", kernel="tensor")
        run = derivative_rules.product(xp, p, lambda x, y: tiled_product(xp, p.on(x, y)), "array")
        run(a, b).sum().backward()
        assert asked == [{"precision": "tf32", "kernel": "tensor", "method": "array"}] * 2

    @pytest.fixture
    def jax(self, monkeypatch):
        """Return JAX, which takes its CPU for a GPU until it compiles: programs for both can be had."""
        jax = pytest.importorskip("jax")
        _backend("jax")
        emulator.install_for_jax(monkeypatch)
        return jax

    @pytest.mark.parametrize("kernel", [None, "packed"])
    def test_jax(self, jax, rng, kernel, subtests):
        a, b, c, w = make(rng, ((5, 9), (9, 4), (6, 9), (6, 4)), "float32")
        more_a, more_b = make(rng, ((3, 5, 9), (3, 9, 4)), "float32")
        many_a, vectors = make(rng, ((2, 3, 5, 9), (7, 9)), "float32")

        def product(x, y):
            return parprims.matmul(x, y, kernel=kernel, method="kernel")

        def same(x):
            return x

        def swapped(x):
            return np.swapaxes(x, -1, -2)

        cases = {  # the function, its arguments, the factors, and how the result lies
            "plain": (product, (a, b), (a, b), same),
            "a mapped": (jax.vmap(product, in_axes=(0, None)), (more_a, b), (more_a, b), same),
            "b mapped": (jax.vmap(product, in_axes=(None, 0)), (a, more_b), (a, more_b), same),
            "both mapped": (jax.vmap(product), (more_a, more_b), (more_a, more_b), same),
            "twice": (jax.vmap(jax.vmap(product, (0, None)), (0, None)), (many_a, b), (many_a, b), same),
            "another axis": (
                jax.vmap(product, in_axes=(1, None)), (np.swapaxes(many_a, 0, 1), b), (many_a, b), same,
            ),
            "vectors": (jax.vmap(product, in_axes=(None, 0)), (a, vectors), (a, vectors.T), swapped),
        }  # fmt: skip
        for name, (function, inputs, factors, moved) in cases.items():
            with subtests.test(name):
                text = jax.jit(function).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()
                assert text.count("@__gpu$xla.gpu.ptx(") == (3 if kernel == "packed" else 1)
                with jax.default_device(jax.devices("cpu")[0]):
                    found = jax.jit(function)(*inputs)
                compare(_backend("jax"), found, moved(loop(*factors)), moved(bound("native", *factors)), "float32")
        with subtests.test("gradient"), jax.default_device(jax.devices("cpu")[0]):
            loss = jax.grad(lambda x, y: (product(x, y) * w).sum(), argnums=(0, 1))
            for got, factors in zip(jax.jit(loss)(c, b), ((w, b.T), (c.T, w)), strict=True):
                assert np.all(abs(np.asarray(got) - loop(*factors)) <= bound("native", *factors))


class TestJax:
    @pytest.fixture
    def jax(self, gpu):
        if gpu.name != "jax-cuda":
            pytest.skip("only JAX traces")
        return pytest.importorskip("jax")

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_jit_vmap_and_gradient(self, jax, gpu, rng, subtests, kernel):
        a, b, more_a, more_b, w = make(rng, ((20, 33), (33, 18), (3, 20, 33), (4, 33, 18), (20, 18)), "float32")

        def product(x, y):
            return parprims.matmul(x, y, kernel=kernel)

        for name, function, inputs in (
            ("jit", jax.jit(product), (a, b)),
            ("a", jax.vmap(product, in_axes=(0, None)), (more_a, b)),
            ("b", jax.jit(jax.vmap(product, in_axes=(None, 0))), (a, more_b)),
        ):
            with subtests.test(name):
                compare(gpu, function(*map(gpu.asarray, inputs)), loop(*inputs), bound("kernel", *inputs), "float32")
        with subtests.test("gradient"):
            loss = jax.jit(jax.grad(lambda x, y: (product(x, y) * w).sum(), argnums=(0, 1)))
            for got, factors in zip(loss(*map(gpu.asarray, (a, b))), ((w, b.T), (a.T, w)), strict=True):
                compare(gpu, got, loop(*factors), bound("native", *factors))
