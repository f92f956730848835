"""Options of matrix products: what is refused, the tiles of the array form, and calls that are remembered."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import parprims
from parprims import _cuda
from parprims._core.arrays import library_title
from parprims._dispatch.dispatch import Methods
from tests.primitives.matmul.test_matmul import FLOATS, INTEGERS, KERNELS, bound, check, loop, make
from tests.support.contract import compare, random


class TestArguments:
    def test_no_array_named(self, backend, rng):
        a = backend.asarray(random(rng, (3, 3), "float32"))
        with pytest.raises(TypeError, match=r"^a must be an array"):
            parprims.matmul([[1.0]], a)
        with pytest.raises(TypeError, match=r"^b must be an array"):
            parprims.matmul(a, 2.0)

    def test_mixed_namespaces_named(self, backend, rng):
        a, b = make(rng, ((3, 3), (3, 3)), "float32")
        if backend.name in ("numpy", "emulated"):
            pytest.skip("needs two libraries")
        with pytest.raises(TypeError, match=r"^b is an array of .* one library"):
            parprims.matmul(backend.asarray(a), b)

    def test_dtypes_that_do_not_promote_named(self, backend, rng):
        pair = {"array-api-strict": ("int32", "float32"), "torch": ("uint16", "int32")}.get(backend.name)
        if pair is None:
            pytest.skip(f"{backend.name} promotes every pair")
        arrays = (backend.asarray(random(rng, (3, 3), dtype)) for dtype in pair)
        with pytest.raises(TypeError, match=f"a and b must have dtypes that promote together, got {pair[0]}"):
            parprims.matmul(*arrays)

    def test_method(self, backend, rng):
        a, b = (backend.asarray(x) for x in make(rng, ((3, 3), (3, 3)), "float64"))
        refusals = parprims.methods(parprims.matmul, a, b)
        if backend.cuda:
            assert refusals.pop("kernel") is None
        elif backend.kernels:
            assert refusals.pop("kernel") == f"{library_title(backend.xp)}'s own way is preferred at any size"
        else:
            assert "not on a CUDA device" in refusals.pop("kernel")
        is_small = backend.cuda and backend.family != "jax" and _cuda.capability(backend.xp, a) == 90
        small = "a call of the kernel takes less time for small matrices on this device" if is_small else None
        assert refusals == {"native": small, "array": None}
        with parprims.explain() as calls:
            parprims.matmul(a, b)
            parprims.matmul(a, b, tile=2)
            parprims.matmul(a, b, add="minimum", multiply="add")
        for_small = backend.cuda or (backend.kernels and backend.name != "jax")
        tiled, tropical = ("kernel" if one else "array" for one in (backend.cuda, for_small))
        assert [call.method for call in calls] == ["kernel" if is_small else "native", tiled, tropical]
        assert "takes no tile" in calls[1].refusals["native"]
        assert "no matrix product with add=minimum, multiply=add" in calls[2].refusals["native"]
        with pytest.raises(parprims.MethodRefused, match="takes no tile"):
            parprims.matmul(a, b, tile=2, method="native")
        with pytest.raises(parprims.MethodRefused, match="no matrix product with add=minimum, multiply=add"):
            parprims.matmul(a, b, add="minimum", multiply="add", method="native")
        with pytest.raises(
            ValueError, match=r"^method must be one of auto, canonical, native, kernel, array, got 'vendor'"
        ):
            parprims.matmul(a, b, method="vendor")

    def test_kernel_named(self, backend, rng):
        a, b = (backend.asarray(x) for x in make(rng, ((3, 3), (3, 3)), "float32"))
        for kernel in KERNELS:
            if backend.cuda:
                with parprims.explain() as calls:
                    parprims.matmul(a, b, kernel=kernel)
                assert [call.method for call in calls] == ["kernel"]
            else:
                with pytest.raises(parprims.MethodRefused, match="not on a CUDA device"):
                    parprims.matmul(a, b, kernel=kernel)

    def test_bad_precision_or_kernel_named(self, backend, rng, subtests):
        a, b = (backend.asarray(x) for x in make(rng, ((3, 3), (3, 3)), "float32"))
        whole, wide, narrow = (backend.asarray(random(rng, (3, 3), one)) for one in ("int32", "float64", "complex64"))
        tropical = {"add": "minimum", "multiply": "add"}
        cases = (
            (a, {"precision": "double"}, r"^precision must be one of float32, tf32, highest, residues, got 'double'"),
            (a, {"precision": None}, r"^precision must be one of"),
            (a, {"kernel": "fast"}, r"^kernel must be one of naive, tiled, packed, conflict_free, tensor, got 'fast'"),
            (whole, {"precision": "tf32"}, r"^precision 'tf32' is for sums of products of float32, got int32"),
            (wide, {"precision": "highest"}, r"^precision 'highest' is for sums of products of float32, got float64"),
            (narrow, {"precision": "tf32"}, r"got complex64"),
            (a, {"precision": "highest", **tropical}, r"^precision 'highest' is for .* got add=minimum, multiply=add"),
            (
                a,
                {"kernel": "naive", "method": "array"},
                r"^kernel names a kernel of method 'kernel', got method 'array'",
            ),
            (a, {"kernel": "tensor", "method": "native"}, r"got method 'native'"),
            (a, {"kernel": "naive", "method": "vendor"}, r"^method must be one of .* got 'vendor'"),
        )
        for factor, options, message in cases:
            with subtests.test(**options), pytest.raises(ValueError, match=message):
                parprims.matmul(factor, b if factor is a else factor, **options)

    def test_impossible_tile_named(self, backend, rng, subtests):
        cases = (
            ("naive", (32, 33, 1), "float32", "it asks for 1056 threads of a block, which has at most 1024"),
            ("tiled", (32, 64, 8), "float32", "it asks for 2048 threads"),
            ("tiled", (32, 32, 2048), "float32", "it asks for 524288 bytes of shared memory, a block has 232448"),
            ("packed", (1, 1025, 1), "float32", "it asks for 1025 threads"),
            ("conflict_free", (48, 64, 16), "float32", "m and n must be multiples of 32 and 64, the tile of a warp"),
            ("conflict_free", (8, 32, 16), "complex128", "m and n must be multiples of 16 and 32"),
            ("conflict_free", (256, 256, 1), "float32", "it asks for 32 warps of a block"),
            ("conflict_free", (32, 64, 12), "float32", "k must be a power of two"),
            ("conflict_free", (128, 128, 256), "float32", "bytes of shared memory"),
            ("tensor", (8, 16, 16), "float32", "m must be a multiple of 16, and of 32 if it is more"),
            ("tensor", (48, 64, 32), "float32", "m must be a multiple of 16, and of 32 if it is more"),
            ("tensor", (64, 64, 24), "float32", "k must be a power of two, at least 8"),
            ("tensor", (16, 16, 4), "float64", "k must be a power of two, at least 8"),
            ("tensor", (256, 128, 16), "float64", "it asks for 16 warps of a block, which has registers for 8"),
            ("tensor", (128, 128, 256), "float32", "bytes of shared memory"),
        )
        for kernel, tile, dtype, reason in cases:
            with subtests.test(kernel=kernel, tile=tile, dtype=dtype):
                a, b = (backend.asarray(x) for x in make(rng, ((3, 3), (3, 3)), dtype))
                with pytest.raises(
                    ValueError, match=rf"^tile \({tile[0]}, .*\) does not fit kernel '{kernel}': .*{reason}"
                ):
                    parprims.matmul(a, b, kernel=kernel, tile=tile)

    def test_operator_named(self, backend, rng):
        a = backend.asarray(random(rng, (3, 3), "float32"))
        whole, truth = (backend.asarray(random(rng, (3, 3), dtype)) for dtype in ("int32", "bool"))
        for name in ("add", "multiply"):
            with pytest.raises(ValueError, match=rf"^{name} must be one of add, .*, got 'plus'"):
                parprims.matmul(a, a, **{name: "plus"})
            with pytest.raises(TypeError, match=rf"^{name} must be a name, an Operator or a function .* got int"):
                parprims.matmul(a, a, **{name: 3})
            with pytest.raises(ValueError, match=r"^op affine works on tuples of 2 arrays, a has 1"):
                parprims.matmul(a, a, **{name: "affine"})
        with pytest.raises(TypeError, match=r"^a must have a floating dtype for op logaddexp, got int32"):
            parprims.matmul(whole, whole, add="logaddexp", multiply="add")
        with pytest.raises(TypeError, match=r"^a must have a bool dtype for op logical_and, got float32"):
            parprims.matmul(a, a, add="maximum", multiply="logical_and")
        with pytest.raises(TypeError, match=r"^a must have an integer, floating or complex dtype for op add"):
            parprims.matmul(truth, truth, add="logical_or", multiply="add")
        with pytest.raises(TypeError, match=r"returned bool for component 0"):
            parprims.matmul(a, a, add="maximum", multiply=lambda x, y: x < y, method="array")

    def test_highest_needs_wide_jax(self, backend, rng):
        if not backend.name.startswith("jax"):
            pytest.skip("only JAX can lack float64")
        import jax

        a = backend.asarray(random(rng, (3, 3), "float32"))
        jax.config.update("jax_enable_x64", False)
        try:
            with pytest.raises(ValueError, match=r"^precision 'highest' sums in float64, .* jax_enable_x64 only"):
                parprims.matmul(a, a, precision="highest")
        finally:
            jax.config.update("jax_enable_x64", True)


MEMORY = """
import tracemalloc
import numpy as np
import parprims

# Beside the result, a tile of 4 MiB, half of it again while it is summed, and the sums of the tiles before.
for m, n in (((512, 512), (512, 512)), ((96, 64, 64), (64, 64)), ((8, 2**20), (2**20,)), ((2**20, 8), (8, 1))):
    a, b = np.ones(m, np.float32), np.ones(n, np.float32)
    parprims.matmul(a, b, method="array")  # imports what it needs
    tracemalloc.start()
    result = parprims.matmul(a, b, method="array")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= result.nbytes + 1.75 * 2**22, (m, n, peak)
"""


class TestTiles:
    """The array method alone: ragged edges, and what a tile bounds."""

    def test_ragged_edges(self, backend, run, rng, subtests):
        cases = (
            (1, ((2, 3), (3, 2)), "int16"),
            (2, ((3, 5), (5, 4)), "float32"),
            ((1, 2, 3), ((2, 1, 2, 7), (3, 7, 3)), "int16"),
            ((4, 3, 2), ((5, 4), (4, 6)), "float32"),
            ((5, 4, 7), ((5, 8), (8, 5)), "float32"),
            (np.int64(3), ((7,), (7, 4)), "int16"),
            (3, ((2, 4, 3), (3,)), "float32"),
            (100, ((5, 7), (7, 4)), "float32"),
        )
        for tile, shapes, dtype in cases:
            with subtests.test(tile=tile, shapes=shapes, dtype=dtype):
                check(backend, run, "array", make(rng, shapes, dtype), tile=tile)

    @pytest.mark.once
    def test_any_tile(self):
        @settings(max_examples=200, deadline=None, derandomize=True)
        @given(st.tuples(*[st.integers(0, 9)] * 3), st.tuples(*[st.integers(1, 9)] * 3), st.integers(0, 2**32))
        def law(edges, tile, seed):
            m, k, n = edges
            a, b = make(np.random.default_rng(seed), ((m, k), (k, n)), "int8")
            np.testing.assert_array_equal(parprims.matmul(a, b, tile=tile), loop(a, b))

        law()

    def test_dtype(self, backend, run, rng, subtests):
        for dtype in (*INTEGERS, *FLOATS):
            with subtests.test(dtype=dtype):
                if not hasattr(backend.xp, dtype):
                    pytest.skip(f"{backend.name} has no {dtype}")
                check(backend, run, "array", make(rng, ((2, 9), (9, 3)), dtype), tile=(2, 3, 5))

    def test_four_by_four_in_tiles_of_two(self, backend, run, rng):
        inputs = tuple(x.astype(np.float64) for x in make(rng, ((4, 4), (4, 4)), "int64"))
        result = run(parprims.matmul, *map(backend.asarray, inputs), tile=2, method="array")
        np.testing.assert_array_equal(backend.to_numpy(result), loop(*inputs).astype(np.float64))

    @pytest.mark.optimised
    def test_packed_blocks_in_double(self, backend, run, rng):
        check(backend, run, "array", make(rng, ((30, 32), (32, 17)), "float64"), tile=16)

    @pytest.mark.optimised
    def test_same_bits_in_other_m_and_n(self, backend, run, rng):
        arrays = tuple(backend.asarray(x) for x in make(rng, ((3, 6), (6, 4)), "float32"))
        one, other = (
            backend.to_numpy(run(parprims.matmul, *arrays, tile=tile, method="array"))
            for tile in ((2, 4, 3), (3, 2, 3))
        )
        assert one.tobytes() == other.tobytes()

    @pytest.mark.once
    def test_memory(self):
        # In a process of its own: what torch.compile has done to one makes arrays live longer.
        done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def test_program_length(self, subtests):
        jax = pytest.importorskip("jax")
        for shapes in (((1024, 1024), (1024, 1024)), ((2048, 2048), (2048, 2048)), ((500, 64, 300), (300, 200))):
            with subtests.test(shapes=shapes):
                factors = (jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)
                program = jax.make_jaxpr(lambda a, b: parprims.matmul(a, b, method="array"))(*factors)
                assert str(program).count(" mul ") <= 256


class TestRemembered:
    """Calls like one before go straight to what computed it, by every method that takes arrays of NumPy or PyTorch."""

    CALLS = (
        {},
        {"method": "array"},
        {"method": "native"},
        {"tile": 3},
        {"add": "minimum", "multiply": "add"},
        {"add": lambda x, y: x + y, "multiply": lambda x, y: x * y, "method": "array"},
    )

    @pytest.fixture
    def choices(self, monkeypatch):
        """Return a list that grows whenever a method is chosen anew."""
        chosen = []
        choose = Methods.__call__
        monkeypatch.setattr(Methods, "__call__", lambda *args: chosen.append(args[1]) or choose(*args))
        return chosen

    def test_same_route_and_bits(self, backend, rng, choices, subtests):
        if backend.name not in ("numpy", "torch", "jax"):
            pytest.skip("what has no signature is chosen anew")
        for options in self.CALLS:
            for shapes in (((5, 4), (4, 3)), ((4,), (2, 4, 3)), ((4,), (4,))):
                with subtests.test(options=options, shapes=shapes):
                    arrays = [backend.asarray(x) for x in make(rng, shapes, "float32")]
                    seen = []
                    for _ in range(4):
                        with parprims.explain() as calls:
                            result = parprims.matmul(*arrays, **options)
                        seen.append((backend.to_numpy(result).tobytes(), result.shape, result.dtype, calls))
                    assert seen[1:] == seen[:1] * 3
                    assert len(choices) <= 2  # the very first array of a type is not known yet
                    choices.clear()

    def test_options_are_told_apart(self, backend, rng, choices):
        a, b = (backend.asarray(x) for x in make(rng, ((5, 4), (4, 3)), "float32"))
        for options in self.CALLS:
            parprims.matmul(a, b, **options)
        for tile in (2.0, True, (2, 2), [2, 2], {2}):
            parprims.matmul(a, b, tile=2)
            with pytest.raises((TypeError, ValueError), match="tile"):
                parprims.matmul(a, b, tile=tile)
        with pytest.raises((TypeError, ValueError), match="method"):
            parprims.matmul(a, b, method=["array"])

    def test_precision_of_torch(self, backend, rng, choices):
        """What PyTorch is told of products of float32 is a part of what a call is known by."""
        if backend.name != "torch":
            pytest.skip("PyTorch's switch")
        import torch

        a, b = make(rng, ((40, 50), (50, 30)), "float32")
        x, y = (backend.asarray(one).requires_grad_(True) for one in (a, b))
        told = torch.get_float32_matmul_precision()
        try:
            for precision in ("highest", "medium", "highest", "medium"):
                torch.set_float32_matmul_precision(precision)
                product = parprims.matmul(x, y, method="native")
                compare(backend, product.detach(), loop(a, b), bound("native", a, b), "float32")
                assert product.requires_grad
        finally:
            torch.set_float32_matmul_precision(told)
        assert len(choices) <= 3
