"""Matrix products by other operators than sum and product, against a sequential loop over k."""

import math
from typing import ClassVar

import numpy as np
import pytest
from array_api_compat import array_namespace

import parprims
from tests.primitives.matmul.test_matmul import EMPTY_SHAPES, SHAPES, make, multiplied, slopes, whole
from tests.support.contract import compare, eps, some_dtypes
from tests.support.covering import lacks_dtype


def folded(add, multiply, a, b, identity=None):
    """Combine what NumPy makes of one outer product after another, in the order of k, from the first on."""
    rows, columns = (a if a.ndim > 1 else a[None, :]), (b if b.ndim > 1 else b[:, None])
    if a.shape[-1] == 0:
        shape = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
        total = np.full((*shape, rows.shape[-2], columns.shape[-1]), identity, a.dtype)
    else:
        total = multiply(rows[..., :, :1], columns[..., :1, :])
    for k in range(1, a.shape[-1]):
        total = add(total, multiply(rows[..., :, k : k + 1], columns[..., k : k + 1, :]))
    if a.ndim == 1:
        total = total[..., 0, :]
    return total[..., 0] if b.ndim == 1 else total


def logaddexp_bound(a, b):
    """Return (k + 1) eps (S + log k + 3), S the largest |a + b|.

    A step log(exp(p) + exp(q)) = max + log1p(exp(-d)) passes the errors of p and q on with weights that sum to 1. It
    adds the roundings of its result, at most eps (S + log k) / 2 for no partial sum is larger, those of d, weighed by
    d / (1 + exp(d)) < 0.3, and those of exp and log1p, a few eps of numbers below 1: less than 3 eps.
    """
    k, name = a.shape[-1], a.dtype.name
    largest = folded(np.maximum, lambda x, y: abs(x + y), a.astype(np.float64), b.astype(np.float64))
    working = "float32" if name in ("float16", "bfloat16") else name
    allowed = (k + 1) * eps(working) * (largest + math.log(k) + 3)
    return allowed + (eps(name) * (largest + math.log(k)) if working != name else 0)


def compose(earlier, later):
    """Compose the maps c x + d that integers hold, c in the lowest 16 bits and d in the next: order matters."""
    c, d, e, f = earlier & 65535, (earlier >> 16) & 65535, later & 65535, (later >> 16) & 65535
    return ((e * d + f & 65535) << 16) | (e * c & 65535)


def last(earlier, later):
    """Return the later number unless it is zero."""
    return array_namespace(later).where(later != 0, later, earlier)


LAST = parprims.Operator(last, identity=0)
COMPOSE = parprims.Operator(compose, identity=1, name="compose")
MIX = parprims.Operator(lambda earlier, later: earlier + later + earlier * later, identity=0, name="mix")

# Name, add and multiply as the library and as NumPy has them, and dtypes.
SEMIRINGS = (
    ("shortest", ("minimum", "add"), (np.minimum, np.add), ("int32", "int64", "float16", "float32", "float64")),
    ("likeliest", ("maximum", "multiply"), (np.maximum, np.multiply), ("uint8", "int16", "bfloat16", "float32")),
    ("longest", ("maximum", "add"), (np.maximum, np.add), ("int8", "int16", "uint16", "uint32", "uint64", "float64")),
    ("reachable", ("logical_or", "logical_and"), (np.logical_or, np.logical_and), ("bool",)),
    ("parity", ("bitwise_xor", "bitwise_and"), (np.bitwise_xor, np.bitwise_and), ("bool", "uint8", "int64")),
    ("composed", (COMPOSE, "bitwise_xor"), (compose, np.bitwise_xor), ("int64",)),
    ("mixed", (MIX, lambda x, y: x - y), (MIX.combine, np.subtract), ("int8", "int32", "uint8")),
    ("added up", ("add", lambda x, y: x - y - y), (np.add, lambda x, y: x - y - y), ("int16", "int64")),
)


class TestSemirings:
    """Any two operators, against the same sequence of NumPy's."""

    methods: ClassVar = ("array", "kernel")

    @staticmethod
    def only_refused(test, given):
        # In most tests calls of JAX are programs, which have no kernels on a CPU.
        in_program = (given["backend"], given["method"]) == ("jax", "kernel") and test != "test_no_identity"
        return in_program or lacks_dtype(given)

    @pytest.mark.parametrize("name", [one[0] for one in SEMIRINGS])
    def test_dtype(self, backend, run, method, rng, subtests, name):
        _, (add, multiply), numpy, dtypes = next(one for one in SEMIRINGS if one[0] == name)
        for dtype in some_dtypes(backend, method, dtypes):
            with subtests.test(dtype=dtype):
                if not backend.supports(dtype):
                    pytest.skip(f"{backend.name} has no {dtype} arithmetic")
                a, b = (whole(rng, shape, dtype) for shape in ((2, 3, 37), (37, 5)))
                result = multiplied(backend, run, method, (a, b), add=add, multiply=multiply)
                compare(backend, result, folded(*numpy, a, b), dtype=dtype)

    @pytest.mark.parametrize("shapes", SHAPES, ids=str)
    @pytest.mark.parametrize(("dtype", "at"), [("int64", 5), ("float32", 0)])
    def test_shape(self, backend, run, method, rng, shapes, dtype, at):
        _, (add, multiply), numpy, _ = SEMIRINGS[at]
        a, b = (whole(rng, shape, dtype) for shape in shapes)
        result = multiplied(backend, run, method, (a, b), add=add, multiply=multiply)
        compare(backend, result, folded(*numpy, a, b), dtype=dtype)

    def test_nothing_to_sum(self, backend, run, method, rng, subtests):
        for shapes in EMPTY_SHAPES:
            for dtype, identity in (("float32", np.inf), ("float16", np.inf), ("int32", 2**31 - 1), ("int8", 127)):
                with subtests.test(shapes=shapes, dtype=dtype):
                    if not hasattr(backend.xp, dtype):
                        pytest.skip(f"{backend.name} has no {dtype}")
                    a, b = (whole(rng, shape, dtype) for shape in shapes)
                    result = multiplied(backend, run, method, (a, b), add="minimum", multiply="add")
                    compare(backend, result, folded(np.minimum, np.add, a, b, identity), dtype=dtype)

    def test_no_identity(self, backend, run, method, rng):
        later = parprims.Operator(lambda _, later: later, name="later")
        a, b = make(rng, ((3, 17), (17, 5)), "float32")
        arrays = tuple(backend.asarray(x) for x in (a, b))
        if method == "kernel" and (backend.cuda or not backend.kernels):
            with pytest.raises(parprims.MethodRefused, match=r"not on a CUDA device|op later has no identity"):
                parprims.matmul(*arrays, add=later, method=method)
        else:
            result = run(parprims.matmul, *arrays, add=later, method=method)
            compare(backend, result, a[:, -1:] * b[-1:], dtype="float32")
        nothing = tuple(backend.asarray(x) for x in make(rng, ((3, 0), (0, 5)), "float32"))
        with pytest.raises(ValueError, match=r"^a and b must have a length summed over of at least 1: op later has no"):
            parprims.matmul(*nothing, add=later, method=method)

    def test_keep_the_later(self, backend, run, method, rng):
        # Of whatever is not zero the last counts, so that any exchange along k shows.
        a, b = (rng.integers(-3, 4, shape).astype(np.int32) for shape in ((4, 61), (61, 6)))
        result = multiplied(backend, run, method, (a, b), add=LAST)
        compare(backend, result, folded(last, np.multiply, a, b), dtype="int32")

    @pytest.mark.optimised
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
    @pytest.mark.parametrize("k", [1, 2, 33, 300])
    def test_logaddexp(self, backend, run, method, rng, dtype, k):
        if not hasattr(backend.xp, dtype):
            pytest.skip(f"{backend.name} has no {dtype}")
        a, b = (10 * x for x in make(rng, ((4, k), (k, 3)), dtype))
        expected = folded(np.logaddexp, np.add, a.astype(np.longdouble), b.astype(np.longdouble))
        result = multiplied(backend, run, method, (a, b), add="logaddexp", multiply="add")
        compare(backend, result, expected, logaddexp_bound(a, b), dtype)

    def test_nan_and_infinity(self, backend, run, method, rng):
        a, b = (whole(rng, shape, "float32") for shape in ((5, 19), (19, 6)))
        a[0, 7], a[1, 8], b[3, 2], a[2] = np.nan, -np.inf, np.inf, np.inf
        b[11, 5] = np.nan
        for add, combine in (("minimum", np.minimum), ("maximum", np.maximum)):
            result = multiplied(backend, run, method, (a, b), add=add, multiply="add")
            expected = folded(combine, np.add, a, b)
            assert np.isnan(expected).any()
            assert np.isinf(expected).any()
            compare(backend, result, expected, dtype="float32")

    def test_promotion(self, backend, run, method, rng):
        a, b = whole(rng, (3, 9), "int8"), whole(rng, (9, 4), "int16")
        result = multiplied(backend, run, method, (a, b), add="maximum", multiply="add")
        compare(backend, result, folded(np.maximum, np.add, a.astype(np.int16), b), dtype="int16")

    def test_tile(self, backend, run, method, rng, subtests):
        for tile in (2, (2, 3, 4), (5, 7, 100)):
            with subtests.test(tile=tile):
                a, b = (whole(rng, shape, "int64") for shape in ((2, 3, 7), (7, 4)))
                result = multiplied(backend, run, method, (a, b), add=COMPOSE, multiply="bitwise_xor", tile=tile)
                compare(backend, result, folded(compose, np.bitwise_xor, a, b), dtype="int64")

    def test_jit_and_vmap(self, backend, run, method, rng):
        if not backend.name.startswith("jax"):
            pytest.skip("only JAX traces")
        import jax

        a, b = (whole(rng, shape, "float32") for shape in ((3, 4, 9), (9, 5)))

        def shortest(a, b):
            return run(parprims.matmul, a, b, add="minimum", multiply="add", method=method)

        for mapped, factors in (
            (jax.jit(shortest), (a, b)),
            (jax.vmap(shortest, in_axes=(0, None)), (a, b)),
            (jax.jit(jax.vmap(shortest, in_axes=(None, 0))), (b.T, a.mT)),
        ):
            expected = folded(np.minimum, np.add, *factors)
            compare(backend, mapped(*map(backend.asarray, factors)), expected, dtype="float32")

    def test_gradient(self, backend, run, method, rng):
        # With s = log(sum exp(a + b)), ds[i,j]/da[i,k] = exp(a[i,k] + b[k,j] - s[i,j]) is a product of weights
        # exp(p - s) of at most k steps. Each has the errors of two sums, 2 E with E from `logaddexp_bound`, and of exp,
        # less than 2 E.
        if method == "kernel" and backend.name.startswith("torch"):
            pytest.skip("PyTorch differentiates the array method")
        a, b, w = make(rng, ((5, 9), (9, 4), (5, 4)), "float64")
        arrays, weights = tuple(map(backend.asarray, (a, b))), backend.asarray(w)

        def weighted(a, b):
            return backend.xp.sum(weights * run(parprims.matmul, a, b, add="logaddexp", multiply="add", method=method))

        gradients = slopes(backend, weighted, arrays)
        shares = w[:, None] * np.exp(a[:, :, None] + b - np.log(np.exp(a) @ np.exp(b))[:, None])  # of i, k, j
        allowed = 4 * 9 * np.max(logaddexp_bound(a, b)) * abs(w).sum()
        for got, expected in zip(gradients, (shares.sum(axis=2), shares.sum(axis=0)), strict=True):
            compare(backend, got, expected, allowed)
