"""Products by residues: the bound that is promised, what is found to need another way, and the plan.

A test makes its numbers so hard, or the tolerance so small, that the other way is taken, or leaves it out: then what
is right was found by residues.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest

import parprims
from parprims._primitives.matmul import residues as matmul_residues
from parprims._primitives.matmul.tiles import TUNING
from tests.emulation import emulator
from tests.primitives.matmul.test_matmul import bound, loop
from tests.primitives.matmul.test_matmul_kernel import (
    check,
    gapped,
    inset,
    lacking,
    make,
    make_problem,
    odd,
    plain,
    planned,
    size,
    turned,
)
from tests.support.contract import compare, eps, random

RESIDUES = {"precision": "residues"}
DTYPES = ("float32", "float64")
SIZES = {field.name for field in dataclasses.fields(TUNING[90].residues)}
SMALLEST = {"float32": 2.0**-149, "float64": 2.0**-1074}


def promised(a, b):
    """Return (2 sqrt(k) + 1) eps sum |a| |b|, the bound of what is found by residues; underflow adds half a unit."""
    name = a.dtype.name
    return (2 * math.sqrt(a.shape[-1]) + 1) * eps(name) * size(a, b) + SMALLEST[name]


def allowed(a, b):
    """Return the bound of every element, which is that of the other precisions."""
    return bound("kernel", a, b) + SMALLEST[a.dtype.name]


@pytest.fixture
def changing(monkeypatch):
    """Return a function that changes constants of products by residues, or sizes of their work."""

    def change(**values):
        emulator.forget(monkeypatch)
        for name, value in values.items():
            if name.isupper():
                monkeypatch.setattr(matmul_residues, name, value)
            else:
                entry = TUNING[90]
                if name in SIZES:
                    name, value = "residues", dataclasses.replace(entry.residues, **{name: value})
                monkeypatch.setitem(TUNING, 90, dataclasses.replace(entry, **{name: value}))

    return change


@pytest.fixture
def alone(changing, monkeypatch):
    """Leave out the launch that computes what residues would lose."""
    own = matmul_residues.plan

    def plan(*arguments, **options):
        whole = own(*arguments, **options)
        assert whole.launches[-1].template == "residues::multiply_lost"
        return dataclasses.replace(whole, launches=whole.launches[:-1])

    changing()
    monkeypatch.setattr(matmul_residues, "plan", plan)


def served(gpu, *shapes):
    """Skip where the kernel refuses."""
    arrays = [gpu.asarray(np.zeros(shape, np.float32)) for shape in shapes or ((3, 3), (3, 3))]
    reason = parprims.methods(parprims.matmul, *arrays, **RESIDUES)["kernel"]
    if reason is not None and "compute capability" in reason:
        pytest.skip(reason)


class TestBound:
    @pytest.mark.sanitize
    @pytest.mark.parametrize("views", [*itertools.product((plain, turned), repeat=2)])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_layouts(self, gpu, run, rng, dtype, views, alone):
        """By residues alone, with tiles that have edges in every direction."""
        lacking(gpu, dtype)
        served(gpu)
        inputs = make(rng, ((131, 140), (140, 261)), dtype)
        check(gpu, run, inputs, views, error=promised(*inputs), **RESIDUES)

    @pytest.mark.parametrize("views", [(odd, plain), (plain, odd), (inset, gapped), (gapped, inset)])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_views(self, gpu, run, rng, dtype, views, alone):
        lacking(gpu, dtype)
        served(gpu)
        inputs = make(rng, ((3, 33, 40), (3, 40, 21)), dtype)
        check(gpu, run, inputs, views, error=promised(*inputs), **RESIDUES)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_shapes(self, gpu, run, rng, subtests, dtype, alone):
        lacking(gpu, dtype)
        served(gpu)
        for shapes in (
            ((1, 1), (1, 1)),
            ((5,), (5,)),
            ((4, 5), (5,)),
            ((7,), (7, 3)),
            ((2, 1, 4, 5), (3, 5, 6)),
            ((3, 20, 9), (9, 11)),
            ((9, 8), (2, 8, 5)),
            ((1, 300), (300, 1)),
        ):
            with subtests.test(shapes=shapes):
                inputs = make(rng, shapes, dtype)
                check(gpu, run, inputs, error=promised(*inputs), **RESIDUES)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_exact(self, gpu, run, rng, dtype, alone):
        """Integers whose products have few enough bits are multiplied exactly, however sparse they are."""
        lacking(gpu, dtype)
        served(gpu)
        a, b = (rng.integers(-99, 100, shape) * (rng.random(shape) < 0.3) for shape in ((40, 200), (200, 50)))
        inputs = a.astype(dtype), (b * 2.0**-30).astype(dtype)
        check(gpu, run, inputs, error=0, **RESIDUES)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_cancellation(self, gpu, run, rng, dtype, alone):
        """What is left of products that cancel but for their last bits is exact, of either sign."""
        lacking(gpu, dtype)
        served(gpu)
        a = np.abs(random(rng, (40, 1), dtype)) + 1
        b = np.abs(random(rng, (1, 30), dtype)) + 1
        after = np.where(np.arange(30) % 2, np.nextafter(b, b.dtype.type(0)), np.nextafter(b, b.dtype.type(9)))
        expected = a * (b - after)
        a, b = np.concatenate([a, a], axis=1), np.concatenate([b, -after], axis=0)
        check(gpu, run, (a, b), expected=expected, error=0, **RESIDUES)

    @pytest.mark.parametrize("scales", ["small", "large", "both"])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_scales_of_lines(self, gpu, run, rng, dtype, scales, alone):
        """Lines of which each has its own scale, subnormal numbers among them; products may underflow or overflow."""
        lacking(gpu, dtype)
        served(gpu)
        if gpu.name.startswith("jax"):
            pytest.skip("XLA flushes subnormal numbers to zero where it makes the factors")
        a, b = make(rng, ((40, 100), (100, 50)), dtype)
        low, high = (-145, 120) if dtype == "float32" else (-1070, 1000)
        first, last = {"small": (low, low + 60), "large": (high // 2 - 20, high // 2), "both": (low, high)}[scales]
        a, b = a * 2.0 ** rng.integers(first, last, (40, 1)), b * 2.0 ** rng.integers(first, last, (1, 50))
        a, b = a.astype(dtype), b.astype(dtype)
        expected = loop(a, b)
        overflows = abs(expected) > np.finfo(dtype).max
        expected = np.where(overflows, np.copysign(np.inf, expected), expected)
        check(gpu, run, (a, b), expected=expected, error=np.where(overflows, 0, promised(a, b)), **RESIDUES)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_sums_are_reduced(self, gpu, run, rng, dtype, alone, changing):
        """After as many tiles along k as sums have room for; the largest residues of all are among these."""
        lacking(gpu, dtype)
        served(gpu)
        changing(LONGEST=2, tested_from=2, tested=dict.fromkeys(DTYPES, 2))
        inputs = make(rng, ((3, 700), (700, 4)), dtype)
        check(gpu, run, inputs, error=promised(*inputs), **RESIDUES)

    @pytest.mark.sanitize
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_blocks_go_on(self, gpu, run, rng, dtype, alone, changing):
        """Few blocks: each goes from tile to tile, and from modulus to modulus."""
        lacking(gpu, dtype)
        served(gpu)
        changing(multiprocessors=3)
        inputs = make(rng, ((600, 70), (70, 270)), dtype)
        check(gpu, run, inputs, error=promised(*inputs), **RESIDUES)

    @pytest.mark.parametrize("count", [7, 8])
    def test_moduli_of_float32(self, gpu, run, rng, alone, changing, count):
        served(gpu)
        changing(moduli={"float32": count})
        inputs = make(rng, ((20, 90), (90, 30)), "float32")
        check(gpu, run, inputs, error=promised(*inputs), **RESIDUES)

    def test_moduli_of_float64(self, gpu, run, rng, alone, changing):
        lacking(gpu, "float64")
        served(gpu)
        changing(moduli={"float64": 14})
        inputs = make(rng, ((20, 90), (90, 30)), "float64")
        check(gpu, run, inputs, error=promised(*inputs), **RESIDUES)


class TestOtherWay:
    """Where residues would lose too much, and where numbers are not finite."""

    @pytest.mark.sanitize
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_everywhere(self, gpu, run, rng, dtype, changing):
        """No tolerance: every element whose factors are rounded is computed in float64."""
        lacking(gpu, dtype)
        served(gpu)
        changing(TOLERANCE=0.0)
        inputs = make(rng, ((131, 140), (140, 261)), dtype)
        error = allowed(*inputs) if dtype == "float64" else eps(dtype) / 2 * abs(loop(*inputs)) * (1 + 1e-6)
        check(gpu, run, inputs, error=error.astype(np.float64), **RESIDUES)

    @pytest.mark.parametrize("spread", [5, 20, 60, 120])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_spreads(self, gpu, run, rng, dtype, spread):
        """Exponents that differ by up to so much, in the same line."""
        lacking(gpu, dtype)
        served(gpu)
        factors = make(rng, ((40, 300), (300, 40)), dtype)
        wide = [x * 2.0 ** rng.integers(-spread // 2, spread // 2, x.shape) for x in factors]
        inputs = tuple(x.astype(dtype) for x in wide)
        check(gpu, run, inputs, error=allowed(*inputs), **RESIDUES)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_small_beside_large(self, gpu, run, rng, dtype):
        """A number that is lost beside the largest of its line is all that counts in some elements."""
        lacking(gpu, dtype)
        served(gpu)
        a, b = make(rng, ((140, 64), (64, 300)), dtype)
        a[:, 0] *= 2.0**60
        b[0, ::2] = 0
        check(gpu, run, (a, b), error=allowed(a, b), **RESIDUES)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_diagonal(self, gpu, run, rng, dtype):
        """Each element is a single product, of numbers that are small beside others of their lines."""
        lacking(gpu, dtype)
        served(gpu)
        a, _ = make(rng, ((90, 90), (1, 1)), dtype)
        b = np.diag(random(rng, (90,), dtype))
        check(gpu, run, (a, b), error=allowed(a, b), **RESIDUES)

    @pytest.mark.sanitize
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_not_finite(self, gpu, run, rng, dtype):
        lacking(gpu, dtype)
        served(gpu)
        a, b = make(rng, ((140, 40), (40, 270)), dtype)
        b = np.rint(8 * b).astype(dtype)
        a[0, 3], a[1, 5], a[2, 7], a[70, :2] = np.inf, -np.inf, np.nan, (np.inf, -np.inf)
        b[9, 265] = np.inf
        with np.errstate(invalid="ignore"):
            expected = loop(a, b)
        finite = [np.where(np.isfinite(x), x, x.dtype.type(0)) for x in (a, b)]
        check(gpu, run, (a, b), expected=expected, error=allowed(*finite), **RESIDUES)

    @pytest.mark.sanitize
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_some_tiles(self, gpu, run, rng, dtype, changing):
        """Some tiles are done the other way, which blocks leave out as they go on."""
        lacking(gpu, dtype)
        served(gpu)
        changing(multiprocessors=2)
        a, b = make(rng, ((600, 40), (40, 300)), dtype)
        a[130, 7] = a[300, 9] = np.inf
        with np.errstate(invalid="ignore"):
            expected = loop(a, b)
        error = allowed(np.where(np.isfinite(a), a, a.dtype.type(0)), b)
        check(gpu, run, (a, b), expected=expected, error=error, **RESIDUES)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_zeros(self, gpu, run, rng, dtype, alone):
        """Lines of zeros lose nothing."""
        lacking(gpu, dtype)
        served(gpu)
        a, b = make(rng, ((30, 40), (40, 50)), dtype)
        a[::3], b[:, ::2] = 0, 0
        check(gpu, run, (a, b), error=promised(a, b), **RESIDUES)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_bound_of_a_part(self, gpu, run, rng, dtype, alone, changing):
        """The part of k that is looked at first has nothing but zeros: the whole does."""
        lacking(gpu, dtype)
        served(gpu)
        changing(tested_from=2, tested=dict.fromkeys(DTYPES, 3))
        a, b = make(rng, ((150, 300), (300, 20)), dtype)
        a[:, :128] = 0
        check(gpu, run, (a, b), error=promised(a, b), **RESIDUES)


class TestCalls:
    def test_bits(self, gpu, run, rng):
        served(gpu)
        inputs = [gpu.asarray(x) for x in make(rng, ((140, 90), (90, 270)), "float32")]
        first, second = (gpu.to_numpy(run(parprims.matmul, *inputs, method="kernel", **RESIDUES)) for _ in range(2))
        assert first.tobytes() == second.tobytes()

    def test_refusals(self, gpu, rng):
        served(gpu)
        a = gpu.asarray(make(rng, ((4, 4), (4, 4)), "float32")[0])
        for options, what in (({"kernel": "naive"}, "kernel 'naive'"), ({"tile": (16, 16, 8)}, "tile")):
            with pytest.raises(parprims.MethodRefused, match=f"multiplies by residues takes no {what}"):
                parprims.matmul(a, a, method="kernel", **RESIDUES, **options)
        with parprims.explain() as calls:
            parprims.matmul(a, a, kernel="tensor", **RESIDUES)
        assert calls[0].method == "kernel"

    def test_devices(self):
        """Instructions for integers along k are those of one architecture."""
        for capability, served in ((80, False), (90, True), (100, False)):
            reason = make_problem((4, 4), (4, 4), "float32", **RESIDUES).choose_kernel(capability)[1]
            assert (reason is None) is served
            assert served or "needs a device of compute capability 9.0" in reason

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_preferred(self, gpu, rng, dtype, changing):
        """By auto the kernel multiplies large matrices."""
        lacking(gpu, dtype)
        served(gpu)
        changing(least=dict.fromkeys(DTYPES, 16 * 16 * 300))
        for k, preferred in ((300, True), (299, False)):
            a, b = (gpu.asarray(x) for x in make(rng, ((16, k), (k, 16)), dtype))
            with parprims.explain() as calls:
                parprims.matmul(a, b, **RESIDUES)
            assert calls[0].method == ("kernel" if preferred else "native")

    def test_gradients(self, gpu, rng, changing):
        if gpu.name != "torch-cuda":
            pytest.skip("needs PyTorch")
        served(gpu)
        a, b, weights = make(rng, ((16, 300), (300, 16), (16, 16)), "float32")
        x, y = (gpu.asarray(one).requires_grad_() for one in (a, b))
        parprims.matmul(x, y, method="kernel", **RESIDUES).backward(gpu.asarray(weights))
        for grad, factors in ((x.grad, (weights, b.T)), (y.grad, (a.T, weights))):
            compare(gpu, grad, loop(*factors), allowed(*factors), "float32")


class TestEveryMethod:
    methods = "native", "array"

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_bound(self, backend, run, rng, method, dtype):
        """It may be asked for everywhere."""
        a, b = make(rng, ((9, 30), (30, 7)), dtype)
        result = run(parprims.matmul, backend.asarray(a), backend.asarray(b), method=method, **RESIDUES)
        compare(backend, result, loop(a, b), bound("auto", a, b), dtype)

    def test_dtypes_named(self, backend, rng):
        for dtype in ("int32", "complex64"):
            a = backend.asarray(random(rng, (3, 3), dtype))
            with pytest.raises(ValueError, match=rf"^precision 'residues' is for .* float32 or float64, got {dtype}"):
                parprims.matmul(a, a, **RESIDUES)
        a = backend.asarray(random(rng, (3, 3), "float32"))
        with pytest.raises(ValueError, match=r"^precision 'residues' is for .* got add=minimum, multiply=add"):
            parprims.matmul(a, a, add="minimum", multiply="add", **RESIDUES)


@pytest.mark.once
class TestArithmetic:
    def test_moduli(self):
        for first, second in itertools.combinations(matmul_residues.MODULI, 2):
            assert math.gcd(first, second) == 1
        assert max(matmul_residues.MODULI) == 256

    def test_norms(self):
        """Integers of these norms have products of which the residues tell all, and floats how often to subtract."""
        for count in range(1, len(matmul_residues.MODULI) + 1):
            whole = math.prod(matmul_residues.MODULI[:count])
            assert 2 * matmul_residues.largest_norm(count) ** 2 < whole * (1 - 2**-9)

    def test_sums_fit(self):
        most = max(matmul_residues.MODULI) // 2
        assert most**2 * matmul_residues.LONGEST * matmul_residues.SIDE < 2**31 - 2 * 256

    def test_scratch(self):
        """It is as much as the docs say."""
        for dtype, count in TUNING[90].residues.moduli.items():
            m, k, n = 512, 384, 768
            plan = planned((m, k), (k, n), dtype, **RESIDUES)[1]
            stored = (count + 1) * k * (m + n) + count * m * n
            assert stored < plan.temporary_bytes < 1.05 * stored
        assert TUNING[90].residues.moduli == {"float32": 7, "float64": 15}
