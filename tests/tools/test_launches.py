"""What a call would launch."""

import dataclasses
import importlib.util
import re

import numpy as np
import pytest

import parprims
from parprims._cpu import compiler as compiler_of_cpus
from parprims._cuda import compiler
from parprims._dispatch.examples import Sample
from parprims._dispatch.primitive import declared

X = np.arange(100_000, dtype=np.float32)
TEMPLATES = {
    "sum": "reduce_", "cumulative_sum": "scan_", "linear_recurrence": "scan_", "sort": "count_digits",
    "matmul": "multiply_", "solve_tridiagonal": "",
}  # fmt: skip
"""How the names of the first kernels begin."""


@pytest.mark.emulator
class TestLaunches:
    @pytest.mark.parametrize("name", TEMPLATES)
    def test_every_primitive(self, gpu, name):
        if gpu.name != "emulated" and not gpu.streams:
            pytest.skip("JAX has them in its programs")
        call = declared[name].sampled(Sample(X.shape))
        options = {"kernel": "naive"} if name == "matmul" else {}
        found = parprims.launches(call, *map(gpu.asarray, call.arrays), method="kernel", **options)
        assert found[0].name.startswith(TEMPLATES[name])
        for one in found:
            template = one.name.partition("<")[0].rpartition("::")[2]
            assert re.search(rf"void {template}\(", one.source)
            assert one.source.count('extern "C"') == one.full_source.count('extern "C"') == 1
            assert one.grid > 0
            assert 0 < one.block <= 1024
            assert one.block % 32 == 0
            assert len(set(one.parameters)) == len(one.parameters)
            inside = one.source[one.source.index(" kernel(") :]
            for parameter in one.parameters:
                assert parameter in inside
            assert '\n#include "common.cuh"\n' in one.source
            assert "#define DEVICE " not in one.source
            assert "#define DEVICE " in one.full_source
            assert "#include" not in one.full_source
            changed = dataclasses.replace(one, full_source=one.full_source.replace("#define DEVICE ", "#define OTHER "))
            assert changed.source == changed.full_source

    @pytest.mark.skipif(compiler.refusal() is not None, reason="needs NVRTC")
    def test_registers(self, gpu):
        (one,) = parprims.launches(parprims.sum, gpu.asarray(X), method="kernel")
        assert 8 <= one.registers <= 255

    def test_a_later_call_computes(self, gpu, run):
        """Neither the call that was listed nor one like it before changes what comes."""
        x = gpu.asarray(X)
        before = parprims.sum(x, method="kernel")
        listed = [parprims.launches(parprims.sum, x, method="kernel") for _ in range(2)]
        assert listed[0] == listed[1]
        assert len(listed[0]) >= 1
        assert float(parprims.sum(x, method="kernel")) == float(before)

    def test_on_cupy(self, gpu):
        """Kernels launched by hand give what the call gives, and a changed one what its change makes of it."""
        if gpu.name != "cupy":
            pytest.skip("needs CuPy")
        import cupy

        x = gpu.asarray(X)
        for function in (parprims.sum, parprims.cumulative_sum, parprims.sort):
            found = parprims.launches(function, x, method="kernel")
            for one in found:
                one.raw_kernel()((one.grid,), (one.block,), one.arguments, shared_mem=one.shared_bytes)
            result = found[0].arguments[found[0].parameters.index("out0")]
            cupy.testing.assert_array_equal(result, function(x, method="kernel"))
        (one,) = parprims.launches(parprims.sum, x, method="kernel")
        changed = dataclasses.replace(one, full_source=one.full_source.replace("long long", "const long long", 1))
        assert changed.raw_kernel().num_regs == changed.registers


def test_nothing_to_launch():
    for function in (parprims.sum, parprims.sort, parprims.cumulative_sum):
        assert parprims.launches(function, X[:100]) == []
        assert parprims.launches(function, X, method="array") == []
    assert parprims.sum(X[:10]) == 45


@pytest.mark.skipif(compiler_of_cpus.refusal() is not None, reason="needs Numba")
def test_on_a_cpu():
    """A kernel for CPUs is listed with its text, in which an operator of the caller's stands; its text computes."""

    def hypot(earlier, later):
        return np.sqrt(earlier * earlier + later * later)

    x = np.arange(5.0)
    (one,) = parprims.launches(parprims.scan, x, hypot, method="kernel")
    assert (one.name, one.grid, one.block, one.shared_bytes) == ("scan_lines", 1, 1, 0)
    assert (one.architecture, one.registers, one.arguments) == ("cpu", 0, ())
    assert "sqrt(" in one.source.partition(f"def run({', '.join(one.parameters)}):")[2]
    assert one.source.startswith("@kernel(")
    assert one.source.count("def ") == 1
    assert one.full_source.endswith(one.source)
    assert one.source not in repr(one)
    assert callable(compiler_of_cpus.compiled(one.full_source))
    with pytest.raises(TypeError, match="scan_lines is a kernel for CPUs"):
        one.raw_kernel()
    assert parprims.scan(x, hypot, method="kernel")[-1] == pytest.approx(30**0.5)
    # A call that was prepared before is listed too, and of one that is made of others the first part.
    assert parprims.launches(parprims.scan, x, hypot, method="kernel") == [one]
    assert parprims.launches(parprims.median, x, method="kernel")[0].name == "sort_tiles"


def test_refused():
    with pytest.raises(parprims.MethodRefused, match="no scan with the operator"):
        parprims.launches(parprims.scan, X, lambda earlier, later: earlier - later, method="native")
    with pytest.raises(TypeError, match="x must be an array"):
        parprims.launches(parprims.sum, [1, 2])


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs JAX")
def test_in_a_program():
    """Within a JAX program a call is listed while it is traced."""
    import jax

    seen = []

    def program(x):
        seen.append(parprims.launches(parprims.sum, x))
        return parprims.sum(x)

    assert float(jax.jit(program)(np.ones(5, np.float32))) == 5
    assert seen == [[]]
