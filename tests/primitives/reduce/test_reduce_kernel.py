"""The kernel of reductions: every way it cuts its work, and what a GPU brings; needs a GPU or the emulator."""

import dataclasses
import math

import numpy as np
import pytest
from array_api_compat import device

import parprims
from parprims._primitives.reduce.call import Reduction
from parprims._primitives.reduce.cuda import TUNING, make_plan
from parprims._primitives.reduce.source import specialise
from tests.emulation import emulator
from tests.primitives.reduce.test_reduce import affine
from tests.support.contract import compare, few_on_jax, random


class TestKernelShapes:
    """Shapes that reach every kernel and every way the work is cut; only a GPU runs them."""

    SHAPES = (
        ((1 << 22) + 5,),
        (3, 100_003),
        (700, 5000),
        (9000, 4100),
        (70_000, 3),
        (5000, 37),
        (2, 3, 1 << 19),
    )

    def test_rows_and_columns(self, backend, run, rng, subtests):
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        for shape in (*self.SHAPES, (1 << 18, 7), (4097, 513), (33, 1001, 3), (2000, 2, 5), (1 << 20, 1, 2)):
            for axis in range(len(shape)):
                with subtests.test(shape=shape, axis=axis):
                    a, b = (rng.integers(-9, 9, shape).astype(np.int32) for _ in range(2))
                    arrays = (backend.asarray(a), backend.asarray(b))
                    total = run(parprims.sum, arrays[0], axis=axis, method="kernel")
                    compare(backend, total, a.sum(axis=axis))
                    result = run(parprims.reduce, arrays, affine, axis=axis, method="kernel")
                    compare(backend, result, _affine_by_halves(a, b, axis))

    def test_more_than_two_to_the_31(self, backend, run):
        if not backend.cuda or backend.name == "jax-cuda":
            pytest.skip("needs a CUDA device; JAX would hold two copies")
        xp = backend.xp
        n = 2**31 + 2**20 + 3
        x = xp.ones((n,), dtype=xp.int8, device=backend.asarray(np.zeros(1)).device)
        x[n - 1] = 5
        x[2**31] = 7
        assert int(run(parprims.sum, x, method="kernel")) == n + 10
        y = xp.reshape(x[: 2**31 + 2], (2**30 + 1, 2))
        sums = backend.to_numpy(run(parprims.sum, y, axis=0, method="kernel"))
        assert sums.tolist() == [2**30 + 1 + 6, 2**30 + 1]
        rows = run(parprims.sum, y, axis=1, method="kernel")
        assert int(rows[2**30]) == 8
        assert int(run(parprims.sum, rows, method="kernel")) == 2**31 + 2 + 6

    def test_outputs_are_all_written(self, backend, run, rng):
        if backend.name not in ("cupy", "torch-cuda"):
            pytest.skip("needs an allocator that hands out the same memory again")
        for shape, axis in (((1000, 1000), 0), ((1000, 1000), 1), ((100_000, 8), 1)):
            x = rng.standard_normal(shape)
            array = backend.asarray(x)
            poison = backend.xp.full(np.sum(x, axis=axis).shape, np.nan, dtype=array.dtype, device=array.device)
            del poison
            result = run(parprims.sum, array, axis=axis, method="kernel")
            compare(backend, result, x.sum(axis=axis), 1e-9)

    def test_streams_and_threads(self, backend, rng):
        if backend.name not in ("cupy", "torch-cuda"):
            pytest.skip("needs streams")
        import concurrent.futures

        x = rng.integers(-99, 99, 3_000_001)
        array = backend.asarray(x)

        def work(index):
            if backend.name == "cupy":
                import cupy

                stream = cupy.cuda.Stream(non_blocking=True)
                with stream:
                    results = [parprims.sum(array[index:], method="kernel") for _ in range(50)]
                stream.synchronize()
            else:
                import torch

                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.default_stream())
                with torch.cuda.stream(stream):
                    results = [parprims.sum(array[index:], method="kernel") for _ in range(50)]
                stream.synchronize()
            return {int(one) for one in results}

        if backend.name == "cupy":
            import cupy

            cupy.cuda.Device().synchronize()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for index, found in enumerate(pool.map(work, range(8))):
                assert found == {int(x[index:].sum())}

    def test_what_auto_takes(self, backend, rng):
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        x = backend.asarray(rng.standard_normal(1000))
        with parprims.explain() as calls:
            parprims.sum(x)
            parprims.reduce((x, x), affine)
        plain = "native" if backend.name == "jax-cuda" else "kernel"
        assert [call.method for call in calls] == [plain, "kernel"]

    def test_repeated_calls_see_new_data_and_captures(self, backend, rng):
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        state = {"scale": 2}
        for _ in range(3):
            x = rng.integers(-9, 9, (40, 30))
            array = backend.asarray(x)
            assert int(parprims.sum(array, method="kernel")) == x.sum()
            assert int(parprims.max(array, method="kernel")) == x.max()
            compare(backend, parprims.sum(array, axis=1, method="kernel"), x.sum(axis=1))
            compare(backend, parprims.sum(array, axis=1, keepdims=True, method="kernel"), x.sum(axis=1, keepdims=True))
            state["scale"] += 1
            total = parprims.map_reduce(lambda x: x * state["scale"], array, method="kernel")
            assert int(total) == state["scale"] * x.sum()

    def test_another_device_than_the_current(self, backend, rng):
        if not backend.cuda:
            pytest.skip("needs CUDA devices")
        x = rng.integers(-99, 99, 1_234_567)
        if backend.name == "cupy":
            import cupy

            if cupy.cuda.runtime.getDeviceCount() < 2:
                pytest.skip("needs two GPUs")
            with cupy.cuda.Device(1):
                there = cupy.asarray(x)
        elif backend.name == "torch-cuda":
            import torch

            if torch.cuda.device_count() < 2:
                pytest.skip("needs two GPUs")
            there = torch.from_numpy(x).to("cuda:1")
        else:
            import jax

            if len(jax.devices("cuda")) < 2:
                pytest.skip("needs two GPUs")
            there = jax.device_put(x, jax.devices("cuda")[1])
        here = backend.asarray(x)
        for array in (there, here, there):
            for part in (array, array[1:], array[:100]):
                total = parprims.sum(part, method="kernel")
                assert device(total) == device(array)
                assert int(total) == int(backend.to_numpy(part).sum())
        assert device(backend.asarray(x)) == device(here)  # the current device is what it was

    def test_captured_into_a_graph(self, backend, rng):
        if backend.name not in ("cupy", "torch-cuda"):
            pytest.skip("needs graphs")
        first, second = (rng.integers(-99, 99, 1_234_567) for _ in range(2))
        x = backend.asarray(first)
        if backend.name == "cupy":
            import cupy

            stream = cupy.cuda.Stream(non_blocking=True)
            cupy.cuda.Device().synchronize()
            with stream:
                parprims.sum(x[1:], method="kernel")  # CuPy takes no memory from the device while it captures
                stream.begin_capture()
                total = parprims.sum(x, method="kernel")
                graph = stream.end_capture()
                x[...] = backend.asarray(second)
                graph.launch()
                graph.launch()
            stream.synchronize()
        else:
            import torch

            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                total = parprims.sum(x, method="kernel")
            x.copy_(backend.asarray(second))
            graph.replay()
            graph.replay()
        assert int(total) == second.sum()

    def test_out_of_memory_leaves_the_library_usable(self, backend):
        if backend.name not in ("cupy", "torch-cuda"):
            pytest.skip("needs a device whose memory can be overdrawn")
        xp = backend.xp
        one = xp.ones((1,), dtype=xp.float64, device=backend.asarray(np.zeros(1)).device)
        vast = xp.broadcast_to(one, (1 << 36, 2))  # its sums along an axis would take half a terabyte
        with pytest.raises(Exception, match=r"(?i)out of memory"):
            parprims.sum(vast, axis=1, method="kernel")
        assert float(parprims.sum(one, method="kernel")) == 1.0

    def test_impossible_launch_raises(self, backend):
        if not backend.cuda or backend.name == "jax-cuda":
            pytest.skip("needs a CUDA device")
        from parprims import _cuda

        def plan(block):
            source = "__device__ void set_one(int* y) { *y = 1; }"
            launch = _cuda.Launch(source, "set_one", (), (_cuda.Pointer("out0", "int"),), 1, block)
            return _cuda.Plan((launch,), 1, (((1,), "int32"),), ())

        x = backend.asarray(np.zeros(4, np.int32))
        runner = _cuda.Runner(backend.xp, plan(1), 0)
        runner(x)
        runner.plan, runner._packets = plan(4096), {}
        with pytest.raises(_cuda.CudaError, match="cuLaunchKernel"):
            runner(x)
        assert int(parprims.sum(x, method="kernel")) == 0

    def test_jax_needs_no_cupy(self, backend):
        if backend.name != "jax-cuda":
            pytest.skip("needs JAX on a GPU")
        import subprocess
        import sys

        program = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cupy", "cupy_backends", "torch"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import jax, jax.numpy as jnp, parprims
x = jnp.arange(100000.0)
with parprims.explain() as calls:
    total = jax.jit(lambda x: parprims.sum(x * 2, method="kernel"))(x)
assert calls[0].method == "kernel" and abs(float(total) / 9999900000.0 - 1) < 1e-6
"""
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_first_call_imports_no_sympy(self, backend):
        """As PyTorch does for tensors without memory, which takes two seconds."""
        if backend.name != "torch-cuda":
            pytest.skip("needs PyTorch on a GPU")
        import subprocess
        import sys

        program = """
import sys, torch, parprims
x = torch.arange(100.0, device="cuda")
assert float(parprims.sum(x, method="kernel")) == 4950
assert parprims.sort(x, descending=True, method="kernel")[0] == 99
assert "sympy" not in sys.modules
"""
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_a_program_finds_its_kernels_on_disk(self, backend, tmp_path, monkeypatch):
        if backend.name != "cupy":
            pytest.skip("needs CuPy")
        import time

        from parprims._cuda import compiler

        monkeypatch.setenv("PARPRIMS_CACHE_DIR", str(tmp_path))
        x = backend.asarray(np.arange(10, dtype=np.float32))
        compiler.compiled.cache_clear()
        start = time.perf_counter()
        parprims.map_reduce(lambda x: x * x - 0.125, x, method="kernel")
        assert time.perf_counter() - start < 0.5
        (file,) = tmp_path.iterdir()
        written = file.stat().st_mtime_ns
        compiler.compiled.cache_clear()
        parprims.map_reduce(lambda x: x * x - 0.125, x, method="kernel")
        assert [one.stat().st_mtime_ns for one in tmp_path.iterdir()] == [written]


@pytest.mark.sanitize
class TestSanitized:
    """Small work through every kernel and every way it is cut, for tools that watch each access."""

    @pytest.mark.parametrize(
        ("shape", "axis"),
        [
            ((300, 5), 1),
            ((40, 200), 1),
            ((5, 3000), 1),
            ((2, 40_001), 1),
            ((500, 3), 0),
            ((4000, 40), 0),
            ((3, 9, 130), 1),
            ((65, 7, 5), 1),
        ],
    )
    def test_every_kernel(self, backend, run, rng, shape, axis):
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        a, b = (rng.integers(-9, 9, shape).astype(np.int32) for _ in range(2))
        arrays = (backend.asarray(a), backend.asarray(b))
        compare(backend, run(parprims.sum, arrays[0], axis=axis, method="kernel"), a.sum(axis=axis))
        result = run(parprims.reduce, arrays, affine, axis=axis, method="kernel")
        compare(backend, result, _affine_by_halves(a, b, axis))
        x = run(parprims.max, backend.asarray(a.astype(np.float16)), axis=axis, method="kernel")
        compare(backend, x, a.max(axis=axis))

    @pytest.mark.parametrize(("shape", "axis"), [((1000, 3), 0), ((9, 2100), 0), ((7, 5, 400), 1), ((4000, 40), 0)])
    def test_columns_in_one_block(self, backend, run, rng, monkeypatch, shape, axis):
        """Few columns that all threads of a block share, and so many that each of its threads has its own."""
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        emulator.forget(monkeypatch)
        monkeypatch.setitem(TUNING, 90, dataclasses.replace(TUNING[90], blocks=1, column_blocks=1))
        a, b = (rng.integers(-9, 9, shape).astype(np.int32) for _ in range(2))
        compare(backend, run(parprims.sum, backend.asarray(a), axis=axis, method="kernel"), a.sum(axis=axis))
        arrays = (backend.asarray(a), backend.asarray(b))
        result = run(parprims.reduce, arrays, affine, axis=axis, method="kernel")
        compare(backend, result, _affine_by_halves(a, b, axis))

    @pytest.mark.parametrize("shape", [(9, 2100), (7, 5, 200)])
    def test_columns_without_vectors(self, backend, run, rng, monkeypatch, shape):
        """Rows begin where no vector does; columns more and fewer than the threads of a block."""
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        emulator.forget(monkeypatch)
        monkeypatch.setitem(TUNING, 90, dataclasses.replace(TUNING[90], blocks=1, column_blocks=1))
        x = rng.integers(-9, 9, (*shape[:-1], shape[-1] + 1)).astype(np.int32)
        y = run(parprims.sum, backend.asarray(x)[..., 1:], axis=-2, method="kernel")
        compare(backend, y, x[..., 1:].sum(axis=-2))

    def test_a_chunk_of_several_batches(self, backend, run, rng, monkeypatch):
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        emulator.forget(monkeypatch)
        monkeypatch.setitem(TUNING, 90, dataclasses.replace(TUNING[90], blocks=1, rounds=1 << 20))
        a, b = rng.integers(-9, 9, (2, 140_001)) + 0j
        arrays = (backend.asarray(a), backend.asarray(0 * b + 1))
        compare(backend, run(parprims.sum, arrays[0], method="kernel"), a.sum(), 0, "complex128")
        product, total = run(parprims.reduce, arrays[::-1], affine, method="kernel")
        compare(backend, product, 1, 0, "complex128")
        compare(backend, total, a.sum(), 0, "complex128")

    @pytest.mark.parametrize("shape", [(300, 2), (40, 60)])
    def test_elements_as_large_as_a_vector(self, backend, run, rng, shape):
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        x = np.round(8 * random(rng, shape, "complex128"))
        y = run(parprims.sum, backend.asarray(x), axis=1, method="kernel")
        compare(backend, y, x.sum(axis=1), 0, "complex128")

    @pytest.mark.parametrize("shape", [(300, 2), (40, 60), (3, 5000), (5, 3003)])
    def test_large_elements(self, backend, run, rng, shape):
        """A thread loads one vector of elements at a time; the last vector of a row is not whole."""
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        x = rng.integers(-9, 9, shape).astype(np.float64)
        arrays = [backend.asarray(one) for one in (np.ones(shape), x, np.zeros(shape))]
        count, mean, squares = run(parprims.reduce, tuple(arrays), "welford", axis=1, method="kernel")
        assert np.all(backend.to_numpy(count) == shape[1])
        np.testing.assert_allclose(backend.to_numpy(mean), x.mean(axis=1), rtol=0, atol=1e-12)
        np.testing.assert_allclose(backend.to_numpy(squares), x.var(axis=1) * shape[1], rtol=1e-12)

    def test_every_remainder(self, backend, run, rng, subtests):
        """Of 32 lengths in turn: rows, columns, and rows shared by blocks."""
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        for n in few_on_jax(backend, rng, range(225, 257), 2):
            for shape, axis in (((3, n), 1), ((n, 3), 0), ((1, 32_768 + n), 1)):
                with subtests.test(shape=shape):
                    x = rng.integers(-9, 9, shape).astype(np.int32)
                    y = run(parprims.sum, backend.asarray(x), axis=axis, method="kernel")
                    compare(backend, y, x.sum(axis=axis))

    @pytest.mark.parametrize(("shape", "axis"), [((40_001,), 0), ((4001, 3), 0)])
    def test_states_with_gaps(self, backend, run, rng, shape, axis):
        """What aligns the members of a state takes room between blocks too."""
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        x = np.round(8 * random(rng, shape, "complex128"))
        flags = np.zeros(shape, bool)
        flags[shape[0] // 2] = True
        arrays = backend.asarray(flags), backend.asarray(x)
        _, total = run(parprims.reduce, arrays, parprims.segmented("add"), axis=axis, method="kernel")
        compare(backend, total, x[shape[0] // 2 :].sum(axis=axis), 0, "complex128")

    def test_rest_of_a_row(self, backend, run, rng):
        """Elements that make no whole vector end a row that begins with whole ones."""
        if not backend.cuda:
            pytest.skip("needs a CUDA device")
        x = rng.integers(-9, 9, 3003).astype(np.int32)
        compare(backend, run(parprims.sum, backend.asarray(x), method="kernel"), x.sum())


class TestPlan:
    """How the kernel cuts its work, checked without a GPU."""

    @pytest.mark.once
    def test_bounds_of_every_plan(self, subtests):
        for dtype in ("int8", "float32", "complex128"):
            for shape in (
                (1 << 33,),
                (1 << 20, 1 << 12),
                (1 << 12, 1 << 20),
                (3, 1 << 31),
                (1 << 31, 3),
                (7, 5, 1 << 26),
            ):
                for axis in range(len(shape)):
                    with subtests.test(dtype=dtype, shape=shape, axis=axis):
                        plan = self.plan(dtype, shape, axis)
                        (launch,) = plan.launches
                        assert 0 < launch.grid < 2**31
                        assert plan.zeroed_bytes <= 1 << 18
                        assert plan.scratch_bytes <= 1 << 19

    def test_copies_only_where_unavoidable(self):
        x = np.broadcast_to(np.zeros((), np.float32), (8, 6, 4))
        strided = np.zeros((8, 6, 9), np.float32)[:, :, :4]
        assert self.plan("float32", (8, 6, 4), None) is not None
        assert self.plan("float32", (8, 6, 4), None, x) is not None
        assert self.plan("float32", (8, 6, 4), 2, strided) is not None
        assert self.plan("float32", (8, 6, 4), 0, strided) is not None
        assert self.plan("float32", (6, 8, 4), None, np.zeros((8, 6, 4), np.float32).transpose(1, 0, 2)) is not None
        assert self.plan("float32", (8, 6, 4), (0, 2)) is None
        assert self.plan("float32", (8, 6, 4), None, strided) is None

    def plan(self, dtype, shape, axis, x=None):
        from array_api_compat import numpy as xp

        from parprims._operators.operator import BUILT_IN

        if x is None:
            strides = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
            x = np.broadcast_to(np.zeros((), dtype), shape)
        else:
            strides = tuple(stride // x.itemsize for stride in x.strides)
        axes = tuple(range(len(shape))) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        r = Reduction(arrays=(x,), shape=shape, single=True, op=BUILT_IN["add"], axes=axes)
        return make_plan(specialise(xp, r, (dtype,)), TUNING[90], r, ((strides, 0),))


def _affine_by_halves(a, b, axis):
    """Compose affine maps along an axis by NumPy's own arithmetic, halves first; integers wrap alike in any order."""
    a, b = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    while len(a) > 1:
        even = len(a) // 2 * 2
        head = affine((a[0:even:2], b[0:even:2]), (a[1:even:2], b[1:even:2]))
        a, b = (np.concatenate([one, rest[even:]]) for one, rest in zip(head, (a, b), strict=True))
    return a[0], b[0]
