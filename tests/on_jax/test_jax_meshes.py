"""JAX's meshes: the kernels of arrays that are split over devices, and arrays mapped part by part."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

from tests.on_jax import test_jax

jax = test_jax.jax


_MESHES = """
import jax, numpy as np, types
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import parprims
from parprims import _cuda
from parprims._cuda import compiler, xla
from parprims._devices import calls
from tests.support.devices import teach_to_compile_quickly
from tests.on_jax.test_jax import CALLS, total, same, floats

teach_to_compile_quickly()
jax.config.update("jax_enable_x64", True)
explicit, auto = (jax.make_mesh((4,), ("i",), axis_types=(kind,)) for kind in (AxisType.Explicit, AxisType.Auto))
alone = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:1])

def put(x, mesh, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))

def refused(call, *words):
    try:
        call()
    except (ValueError, parprims.MethodRefused) as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("not refused")

def mapped(function, mesh, check):
    def part(*arrays):
        return jax.tree.map(lambda y: y[None], function(*(x[0] for x in arrays)))
    return jax.jit(jax.shard_map(part, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=check))
"""


def on_four_devices(program, timeout=300):
    """Run a program where JAX takes the CPU for four devices."""
    root = pathlib.Path(__file__).parents[2]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    paths = os.pathsep.join((str(root), *sys.path))
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _MESHES + textwrap.dedent(program)],
        capture_output=True, text=True, env=environment, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


class TestMeshes:
    @pytest.fixture(autouse=True)
    def _once(self, jax, backend):
        if backend.cuda:
            pytest.skip("is of a CPU")

    def test_kernels_of_what_is_split(self):
        on_four_devices(
            """
            wide = put(np.arange(16.0), explicit, "i")
            refused(lambda: parprims.check_associative("add", wide), "4 devices", "shard_map")
            x = put(np.arange(16.0).reshape(4, 4), explicit, "i")
            columns = put(np.arange(16.0).reshape(4, 4), explicit, None, "i")
            for call in (parprims.matmul, jax.jit(parprims.matmul)):
                same(jax, call(x, put(np.ones((4, 4)), explicit)), np.asarray(x) @ np.ones((4, 4)))
                same(jax, call(columns, x), np.asarray(x) @ np.asarray(x))
            xla.devices = lambda: [types.SimpleNamespace(compute_capability="9.0")]
            compiler.compiled = lambda text, _: str(len(text)).encode()
            _cuda.refusal = lambda *_: None
            calls.QUICK = calls.QUICK_SYSTEMS = 1
            x = put(np.ones(64, np.float32), explicit, "i")
            for call, kernels in (
                (lambda x: parprims.scan(x), 2),  # the totals, and the scan
                (lambda x: parprims.linear_recurrence(x, x), 4),  # as part of the first device and of others, both ways
                (lambda x: parprims.sort(x), 1),  # twice the same
                (lambda x: parprims.solve_tridiagonal(x, x, x, x), 1),
                (jax.grad(lambda x: parprims.scan(parprims.linear_recurrence(x, x)).sum()), 4),
            ):
                text = jax.jit(call).trace(x).lower(lowering_platforms=("cuda",)).as_text()
                assert text.count("xla.gpu.ptx") >= kernels, text.count("xla.gpu.ptx")
            for name, (function, arrays) in CALLS.items():
                wide = [np.stack([x] * 4) for x in arrays]
                for check in (True, False):
                    traced = mapped(lambda *xs: function("kernel", *xs), auto, check).trace(*wide)
                    assert "xla.gpu.ptx" in traced.lower(lowering_platforms=("cuda",)).as_text(), name
            """
        )

    def test_programs_and_calls_of_few_or_no_elements(self):
        on_four_devices(
            """
            from contextlib import nullcontext as nothing
            third = np.float64(1 / 3)
            table = jax.numpy.asarray([0.25, 0.5])
            calls = {
                "sum": lambda x: parprims.sum(x, axis=0),
                "map_reduce": lambda x: parprims.map_reduce(lambda v: v * third + table[1], x, axis=1),
                "scan": lambda x: parprims.scan(x, lambda p, q: p + q + table[0] * p * q, axis=1),
                "recurrence": lambda x: parprims.linear_recurrence(table[0], x, axis=1),
                "vecdot": lambda x: parprims.vecdot(x, x),
                "matmul": lambda x: parprims.matmul(x, x.T),
                "matmul, rows": lambda x: parprims.matmul(x.T, x),
                "min-plus": lambda x: parprims.matmul(x, x.T, add="minimum", multiply="add"),
                "sort": lambda x: parprims.sort(x, axis=1),
                "histogram": lambda x: parprims.histogram(x, 5, range=(0, 4)),
                "histogram of edges": lambda x: parprims.histogram(x, jax.numpy.asarray([0.0, 1.0, 3.0])),
                "density": lambda x: parprims.histogram(x, 5, range=(0, 4), density=True, weights=x * x),
            }
            for shape in ((8, 8), (8, 0), (0, 8)):
                whole = np.arange(float(np.prod(shape))).reshape(shape) % 5
                for name, call in calls.items():
                    for mesh in (explicit, auto):
                        for spec in (("i", None), (None, "i")):
                            expected = call(jax.numpy.asarray(whole))
                            x = put(whole, mesh, *spec)
                            for run in (call, jax.jit(call)):
                                with jax.set_mesh(mesh) if run is not call and mesh is explicit else nothing():
                                    found = run(x)
                                assert jax.tree.map(np.shape, found) == jax.tree.map(np.shape, expected), name
                                if all(y.size for y in jax.tree.leaves(found)):  # JAX reads no other split arrays
                                    same(jax, found, expected)
            refused(lambda: jax.jit(lambda x, c: parprims.scan(x, lambda p, q: p + q + c * p * q))(
                put(np.ones(8), auto, "i"), 0.5), "type Explicit")
            """
        )

    def test_inside_shard_map(self):
        on_four_devices(
            """
            for name in ("sum", "scan", "linear_recurrence", "sort_by_key", "solve_tridiagonal", "matmul of paths"):
                function, arrays = CALLS[name]
                wide = [np.stack([x * s for s in (1, 2, 3, 1)]).astype(x.dtype) for x in map(np.asarray, arrays)]
                by = floats(arrays)

                def both(*xs):
                    return function("auto", *xs), jax.grad(total(jax, lambda *xs: function("auto", *xs)), by)(*xs)

                expected = jax.jit(jax.vmap(both))(*wide)
                split = [put(x, explicit, "i") for x in wide]
                same(jax, mapped(both, explicit, True)(*split), expected)
                for method in ("auto", "array"):
                    for mesh, xs in ((explicit, split), (auto, wide)):
                        for check in (True, False):
                            mapped(lambda *xs: function(method, *xs), mesh, check).trace(*xs)
                mapped(jax.grad(total(jax, lambda *xs: function("array", *xs)), by), auto, True).trace(*wide)
            for name in ("scan", "sort_by_key", "solve_tridiagonal"):
                function, arrays = CALLS[name]
                call = jax.jit(lambda *xs: function("auto", *xs))
                expected = call(*arrays)
                same(jax, call(*(put(x, explicit) for x in arrays)), expected)
                own = [put(x, alone, *("i",) * min(x.ndim, 1)) for x in arrays]
                same(jax, call(*own), expected)
                if name == "scan":
                    same(jax, function("auto", *(put(x, explicit) for x in arrays)), expected)
                    same(jax, function("auto", *own), expected)
                    same(jax, function("auto", own[0], *map(jax.numpy.asarray, arrays[1:])), expected)
            _, there, usual, _ = jax.devices()
            for name in ("scan", "sort_by_key", "matmul of paths"):
                function, arrays = CALLS[name]
                with jax.default_device(usual):
                    found = function("auto", *(jax.device_put(x, there) for x in arrays))
                assert all(x.devices() == {there} for x in jax.tree.leaves(found))
            x = np.arange(16.0).reshape(4, 4)
            for one, other in (((), ("i",)), (("i",), (None, "i"))):
                same(jax, parprims.matmul(put(x, auto, *one), put(x, auto, *other)), x @ x)
            """
        )
