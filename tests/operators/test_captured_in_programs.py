"""Numbers that an operator captures, where its kernel is inside a program of JAX: they lie in memory."""

import concurrent.futures
import functools
import re

import numpy as np
import pytest

import parprims
from parprims._core.arrays import dtype_kind
from parprims._operators import languages
from tests.emulation import emulator
from tests.operators import test_captured
from tests.operators.test_captured import VALUES, compare, elements, from_closure, joined

texts, compilations = test_captured.texts, test_captured.compilations
calls = test_captured.TestOneText().calls


def left_out(_, given):
    """Return the sentence why a case is not tested, or nothing."""
    return "" if given.get("backend", "").startswith("jax") else "programs are JAX's"


@pytest.fixture
def in_programs(backend, monkeypatch):
    """JAX whose programs hold kernels: those of a GPU, or programs that the emulator carries out."""
    jax = pytest.importorskip("jax")
    if backend.name == "jax":
        if emulator.compiler() is None:
            pytest.skip("needs a C++ compiler")
        emulator.install_in_programs(monkeypatch)
    elif backend.name != "jax-cuda":
        pytest.skip("programs are JAX's")
    return jax


class TestKernelsInPrograms:
    """Kernels inside programs of JAX read numbers from memory: the first value alone compiles a text, and a program."""

    def check(self, backend, compilations, texts, call, *, values=(0.1, 0.2, -0.3, 0.1), programs=(0,)):
        """Check results by operations, that the first value alone needs a text, and which values compile a program."""
        compiled, needed = [], []
        for at, value in enumerate(values):
            programs_before, texts_before = len(compilations), len(texts)
            result = call(value, "kernel")
            if len(compilations) > programs_before:
                compiled.append(at)
            if len(texts) > texts_before:
                needed.append(at)
            compare(backend, result, call(value, "array"))
        assert needed == [0]
        assert {*compiled} <= {*programs}  # programs of other tests serve too

    @pytest.mark.parametrize(
        "name", ["scan", "of two", "of a dict", "from initial", "by offsets", "reduce", "reduce in order", "map"]
    )
    def test_primitives(self, backend, in_programs, compilations, texts, name):
        self.check(backend, compilations, texts, calls(backend)[name])
        assert in_programs

    @pytest.mark.parametrize("name", ["segments by tables", "matmul"])
    def test_operators_in_operators(self, backend, in_programs, compilations, texts, name):
        x = backend.asarray(np.arange(12.0).reshape(3, 4) / 8)
        ids = backend.asarray(np.array([0, 2, 1, 0, 1, 1, 0, 2, 0, 1, 2, 2]))

        def call(k, way):
            op = parprims.Operator(lambda p, q: p + q + k * p * q, identity=0, commutative=True)
            if name == "matmul":
                return parprims.matmul(x, x.T, add=op, multiply=lambda a, b: a * b - k, method=way)
            return parprims.segment_reduce(x.reshape(-1), ids, 3, op, method=way)

        self.check(backend, compilations, texts, call)
        assert in_programs

    @pytest.mark.parametrize("name", ["exclusive", "reduce by offsets", "segments", "matmul"])
    def test_identities(self, backend, in_programs, compilations, texts, name):
        """An identity is part of the program, but not of the text."""

        self.check(backend, compilations, texts, calls(backend)[name], programs=(0, 1, 2))
        assert in_programs

    @pytest.mark.parametrize("dtype", ["float32", "float16", "complex64", "int32", "uint8", "bool"])
    def test_dtypes(self, backend, in_programs, texts, dtype):
        x, counts = backend.to_numpy(elements(backend, dtype, (2,))), []
        for k in VALUES[dtype_kind(dtype)]:
            result = parprims.scan(backend.asarray(x), from_closure(k), method="kernel")
            counts.append(len(texts))
            compare(backend, result, parprims.scan(x, from_closure(k), method="array"))
        assert counts == counts[:1] * len(counts)
        assert in_programs

    @pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "int64"])
    def test_same_bits(self, backend, in_programs, monkeypatch, dtype):
        """As if the numbers stood in the text: products by powers of two are exact, with and without fma."""
        x = elements(backend, dtype, (300,))
        for k in {"int": (3, -5), "float": (0.5, -4.0), "complex": (0.5 + 1j, -2.0)}[dtype_kind(x.dtype)]:
            made = []
            for tells in (True, False):
                monkeypatch.setattr(languages.CUDA, "tells", tells)
                # An operator of another identity, so that nothing is found again.
                op = parprims.Operator(from_closure(k), identity=int(tells))
                made.append(backend.to_numpy(parprims.scan(x, op, method="kernel")).tobytes())
            assert made[0] == made[1]
        assert in_programs

    def test_what_decides_a_branch(self, backend, in_programs, compilations):
        x = np.arange(9.0) / 8
        for k in (0.5, 0.25, -1.0, -2.0, 0.125):
            before = len(compilations)
            result = parprims.scan(backend.asarray(x), joined(k), method="kernel")
            if k in (0.25, 0.125):  # those below zero are no numbers of the kernel
                assert len(compilations) == before
            compare(backend, result, parprims.scan(x, joined(k), method="array"))
        assert in_programs

    @pytest.mark.parametrize("name", ["scan", "reduce", "segments", "matmul"])
    def test_a_global_that_changes(self, backend, in_programs, name):
        """The function is the same one, and its numbers are those of the call, in the caller's programs too."""
        x, ids = backend.asarray(np.arange(4.0) / 8), backend.asarray(np.array([0, 1, 0, 1]))

        def combine(p, q):
            return p + q + number * p * q

        op = parprims.Operator(combine, identity=0, commutative=True)

        def call(way):
            if name == "matmul":
                return parprims.matmul(x[None], x[:, None], add=op, multiply="multiply", method=way)
            if name == "segments":
                return parprims.segment_reduce(x, ids, 2, op, method=way)
            return getattr(parprims, name)(x, op, method=way)

        global number
        for k in (0.5, 0.25, 0.125, 0.5):
            number = k
            expected = call("array")
            compare(backend, call("kernel"), expected)
            compare(backend, in_programs.jit(lambda: call("kernel"))(), expected)

    def test_in_programs_of_the_caller(self, backend, in_programs, texts):
        """They are compiled for each value, from one text; transformations have the numbers of their call."""
        jax, x, counts = in_programs, backend.asarray(np.arange(9.0) / 8), []
        rows = jax.numpy.stack((x, 2 * x))

        def scan(x, k, method="kernel"):
            return parprims.scan(x, lambda p, q: p + q + k * p * q, method=method)

        def total(x, k, method="kernel"):
            return (scan(x, k, method) * x).sum()

        for k in (0.5, 0.25, -0.5):
            one, by_hand = functools.partial(scan, k=k), functools.partial(scan, k=k, method="array")
            compare(backend, jax.jit(lambda x, one=one: one(one(x) / 64))(x), by_hand(by_hand(x) / 64))
            for transformed in (jax.vmap, lambda f: jax.jit(jax.vmap(f))):
                compare(backend, transformed(one)(rows), jax.vmap(by_hand)(rows))
            derivative = jax.grad(total)(x, k, "array")
            for transformed in (jax.grad, lambda f: jax.jit(jax.grad(f), static_argnums=1)):
                compare(backend, transformed(total)(x, k), derivative)
            tangent = jax.jvp(by_hand, (x,), (x,))[1]
            compare(backend, jax.jvp(one, (x,), (x,))[1], tangent)
            compare(backend, jax.jit(one)(x), by_hand(x))
            counts.append(len(texts))
        assert counts == counts[:1] * len(counts)

    def test_numbers_that_are_arrays(self, backend, in_programs):
        """A number that is traced, or an array of JAX, is no number of a kernel: operations compute with it."""
        jax, x = in_programs, backend.asarray(np.arange(9.0) / 8)

        def scan(x, k, method="auto"):
            return parprims.scan(x, lambda p, q: p + q + k * p * q, method=method)

        for k in (0.5, 0.25):
            expected = scan(x, k, "array")
            compare(backend, jax.jit(scan)(x, k), expected)
            compare(backend, scan(x, backend.asarray(np.array(k))), expected)
            slope = jax.grad(lambda k: scan(x, k, "array").sum())(k)
            compare(backend, jax.grad(lambda k: scan(x, k).sum())(k), slope)

    def test_inside_shard_map(self, backend, in_programs, texts):
        jax, counts = in_programs, []
        mesh, spec = jax.make_mesh((1,), ("i",), devices=jax.devices()[:1]), jax.sharding.PartitionSpec("i")
        x = jax.device_put(backend.asarray(np.arange(9.0) / 8), jax.sharding.NamedSharding(mesh, spec))
        for k in (0.5, 0.25):
            op = functools.partial(lambda k, p, q: p + q + k * p * q, k)
            own = jax.shard_map(
                lambda x, op=op: parprims.scan(x, op, method="kernel"), mesh=mesh, in_specs=spec, out_specs=spec
            )
            compare(backend, jax.jit(own)(x), parprims.scan(np.arange(9.0) / 8, op, method="array"))
            counts.append(len(texts))
        assert counts == counts[:1] * 2

    def test_many_at_once(self, backend, in_programs, compilations):
        x = np.arange(9.0) / 8

        def call(made, k):
            way = "kernel" if made is backend.asarray else "array"
            return parprims.scan(made(x), lambda p, q: p + q + k * p * q, method=way)

        call(backend.asarray, 1.0)
        before, values = len(compilations), [at / 64 for at in range(32)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            results = list(pool.map(functools.partial(call, backend.asarray), values))
        assert len(compilations) == before
        for k, result in zip(values, results, strict=True):
            compare(backend, result, call(np.asarray, k))
        assert in_programs

    def test_what_was_let_go_is_made_again(self, backend, in_programs):
        x = np.arange(9.0) / 8

        def call(made, k):
            way = "kernel" if made is backend.asarray else "array"
            return parprims.scan(made(x), lambda p, q: p + q + k * p * q, method=way)

        for k in (0.3, 0.4, 0.3):
            compare(backend, call(backend.asarray, k), call(np.asarray, k))
            in_programs.clear_caches()


class TestExportedKernels:
    def test_texts_are_the_same(self, backend, monkeypatch):
        """What is exported for a GPU holds the numbers beside one text, and exports as before."""
        if backend.name != "jax":
            pytest.skip("is for a CPU")
        import jax

        emulator.install_for_jax(monkeypatch)
        x, checks, kernels, programs = backend.asarray(np.arange(9.0) / 8), parprims.jax_export_checks(), set(), set()
        for k in (0.5, 0.25, 0.5):
            op = functools.partial(lambda k, p, q: p + q + k * p * q, k)
            program = jax.jit(functools.partial(parprims.scan, op=op, method="kernel"))
            exported = jax.export.export(program, platforms=["cuda"], disabled_checks=checks)(x)
            text = exported.mlir_module()
            (call,) = re.findall(r"custom_call @__gpu.xla\.gpu\.ptx\((.*?)\)(.*)", text)
            assert call[0].count("%") == 2  # the elements, and the words of the number
            kernels.add(call[1])
            programs.add(text)
        assert len(kernels) == 1
        assert len(programs) == 2
