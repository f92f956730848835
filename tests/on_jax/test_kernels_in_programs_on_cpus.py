"""Kernels for CPUs inside programs of JAX: every primitive, every transformation, threads, and other processes."""

import gc
import importlib
import importlib.util
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import parprims
from parprims import _cpu
from tests.on_jax import test_jax
from tests.on_jax.test_jax_meshes import on_four_devices
from tests.support.contract import eps

pytest.importorskip("numba")

xla = importlib.import_module("parprims._cpu.running.xla") if importlib.util.find_spec("jax") else None


@pytest.fixture
def jax(backend, request):
    if not backend.name.startswith("jax") or backend.cuda or request.config.getoption("--as-gpu"):
        pytest.skip("needs JAX on a CPU")
    return importlib.import_module("jax")


@pytest.fixture
def program(jax):
    """Return a function that computes a call inside jit, and asserts that the kernel does."""

    def run(function, *arrays):
        with parprims.explain() as calls:
            found = jax.jit(lambda *xs: function(*xs))(*arrays)
        assert {call.method for call in calls} == {"kernel"}
        return found

    return run


def close(found, expected, *, ulps=64):
    """Assert that an array equals one of wider floats but for so many roundings of its largest element."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
        return
    wide = found.astype(np.result_type(expected.dtype, np.float64))
    assert np.abs(wide - expected).max(initial=0) <= ulps * eps(found.dtype) * np.abs(expected).max(initial=1)


def recurrence(a, b, start=0.0):
    """Return x[n] = a[n] x[n-1] + b[n] along the last axis, in the widest floats, a step at a time."""
    wide = np.result_type(a, b, np.float64)
    a, b = (np.broadcast_to(x, np.broadcast_shapes(np.shape(a), np.shape(b))).astype(wide) for x in (a, b))
    found, x = np.empty_like(b), np.zeros(b.shape[:-1]) + start
    for at in range(b.shape[-1]):
        x = a[..., at] * x + b[..., at]
        found[..., at] = x
    return found


# ---- Every primitive ---------------------------------------------------------------------------------------------

SORTED = np.sort(test_jax.A)
CALLS = {
    **test_jax.CALLS,
    **{name: test_jax.sampled(name) for name in test_jax.ELSEWHERE},
    "merge_by_key": (lambda m, k, x: parprims.merge_by_key(k, x, k, x, method=m), (SORTED, test_jax.A)),
    "sort by offsets": (lambda m, k, x: parprims.sort(x, offsets=k, method=m), (test_jax.OFFSETS, test_jax.A)),
    "scan by offsets": (lambda m, k, x: parprims.scan(x, offsets=k, method=m), (test_jax.OFFSETS, test_jax.A)),
}


class TestCalls:
    @pytest.mark.parametrize("name", CALLS)
    def test_inside_a_program(self, jax, program, name):
        function, arrays = CALLS[name]
        expected = function("array", *map(jax.numpy.asarray, arrays))
        test_jax.same(jax, program(lambda *xs: function("kernel", *xs), *arrays), expected)

    @pytest.mark.parametrize("name", CALLS)
    def test_mapped(self, jax, program, name):
        """Row by row or all at once, what each row has by itself."""
        function, arrays = CALLS[name]
        factors = (1, 1, 1) if "offsets" in name else (1, 2, 3)
        stacked = [np.stack([(x * factor).astype(x.dtype) for factor in factors]) for x in arrays]
        found = program(jax.vmap(lambda *xs: function("kernel", *xs)), *stacked)
        for at in range(3):
            one = program(lambda *xs: function("kernel", *xs), *(x[at] for x in stacked))
            test_jax.same(jax, jax.tree.map(lambda x, at=at: x[at], found), one)

    @pytest.mark.parametrize("name", CALLS)
    def test_subnormal_numbers(self, jax, name):
        """They are no zeros, though XLA's own operations take them for zeros."""
        function, arrays = CALLS[name]
        arrays = [(x * 2.0**-135).astype("float32") if x.dtype.kind == "f" else x for x in map(np.asarray, arrays)]
        outside = function("kernel", *map(jax.numpy.asarray, arrays))
        inside = jax.jit(lambda *xs: function("kernel", *xs))(*arrays)
        jax.tree.map(np.testing.assert_array_equal, inside, outside)

    @pytest.mark.parametrize("name", [name for name in CALLS if name not in test_jax.WITHOUT_DERIVATIVES])
    def test_derivatives(self, jax, name):
        function, arrays = CALLS[name]
        by = test_jax.floats(arrays)
        kernel, array = (
            (lambda *xs, method=method: test_jax.total(jax, lambda *ys: function(method, *ys))(*xs))
            for method in ("kernel", "array")
        )
        try:
            expected = jax.jit(jax.grad(array, by))(*arrays)
        except (ValueError, NotImplementedError, TypeError) as error:
            pytest.skip(f"without a derivative: {str(error)[:80]}")
        test_jax.same(jax, jax.jit(jax.grad(kernel, by))(*arrays), expected, tolerance=1e-10)


# ---- Values, of random arrays -------------------------------------------------------------------------------------

SHAPES = [((1,), 0), ((70001,), 0), ((37, 129), 1), ((129, 37), 0), ((5, 41, 3), 1), ((0, 4), 1), ((3, 0), 1)]


def numbers(rng, shape, dtype):
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    if kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


class TestValues:
    @pytest.mark.parametrize(("shape", "axis"), SHAPES)
    @pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "complex64", "int16", "uint8", "int64"])
    def test_sums(self, program, rng, shape, axis, dtype):
        x = numbers(rng, shape, dtype)
        found = program(lambda x: parprims.cumulative_sum(x, axis=axis, method="kernel"), x)
        close(found, np.cumsum(x.astype(np.result_type(dtype, np.float64) if x.dtype.kind in "fc" else dtype), axis))

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("axis", [0, 1])
    def test_an_operator_in_order(self, program, rng, axis, reverse):
        """Products of matrices of two rows, which do not commute."""
        x = 0.7 * rng.standard_normal((4, 33, 47))

        def product(earlier, later):
            a, b, c, d = earlier
            e, f, g, h = later
            return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h

        op = parprims.Operator(product)
        found = program(lambda *xs: parprims.scan(xs, op, axis=axis, reverse=reverse, method="kernel"), *x)
        matrices = np.moveaxis(x.reshape(2, 2, 33, 47), (0, 1), (-2, -1))
        matrices = np.moveaxis(matrices, axis, 0)
        order = range(len(matrices))[:: -1 if reverse else 1]
        expected, state = np.empty_like(matrices), np.broadcast_to(np.eye(2), matrices.shape[1:])
        for at in order:
            state = state @ matrices[at]
            expected[at] = state
        expected = np.moveaxis(np.moveaxis(expected, 0, axis), (-2, -1), (0, 1)).reshape(x.shape)
        for one, other in zip(found, expected, strict=True):
            close(one, other, ulps=1 << 12)

    @pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
    @pytest.mark.parametrize("shape", [(5,), (200_001,), (19, 300), (64, 2048)])
    def test_recurrences(self, program, rng, shape, dtype):
        a, b = numbers(rng, shape, dtype) * np.dtype(dtype).type(0.3), numbers(rng, shape, dtype)
        start = numbers(rng, shape[:-1], dtype)
        found = program(lambda a, b, x: parprims.linear_recurrence(a, b, initial=x, method="kernel"), a, b, start)
        close(found, recurrence(a, b, start), ulps=1 << 9)
        row = a[..., :1]  # broadcasts
        close(
            program(lambda a, b: parprims.linear_recurrence(a, b, method="kernel"), row, b),
            recurrence(row, b),
            ulps=1 << 9,
        )

    @pytest.mark.parametrize(("shape", "axis"), SHAPES)
    @pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bool", "int8", "uint16", "int64"])
    def test_sorts(self, program, rng, shape, axis, dtype):
        x = numbers(rng, shape, dtype)
        if x.dtype.kind == "f" and x.size:
            x.flat[0] = np.nan
        np.testing.assert_array_equal(
            program(lambda x: parprims.sort(x, axis=axis, method="kernel"), x), np.sort(x, axis)
        )
        order = program(lambda x: parprims.argsort(x, axis=axis, method="kernel"), x)
        np.testing.assert_array_equal(order, np.argsort(x, axis, stable=True))

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_floats_of_16_bits(self, jax, program, rng, dtype):
        x = jax.numpy.asarray(rng.standard_normal(3000), dtype)
        found = program(lambda x: parprims.sort(x, method="kernel"), x)
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(found, np.float32), np.sort(np.asarray(x, np.float32)))
        total = program(lambda x: parprims.sum(x, method="kernel"), x)
        assert abs(float(total) - np.asarray(x, np.float64).sum()) <= 2 * float(jax.numpy.finfo(x.dtype).eps) * 3000

    def test_filters(self, program, rng):
        from tests.primitives.filters.test_filters import loop

        b, a, x = rng.standard_normal(4), np.array([1.0, -0.4, 0.2]), rng.standard_normal((1000, 7))
        z = rng.standard_normal((3, 7))
        call = lambda *xs: parprims.lfilter(*xs[:3], axis=0, zi=xs[3], method="kernel")  # noqa: E731
        for one, other in zip(program(call, b, a, x, z), loop(b, a, x, z)[:2], strict=True):
            close(one, other, ulps=1 << 8)

    @pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), None])
    def test_reductions(self, program, rng, axes):
        x = rng.standard_normal((30, 41, 17))
        kernel = {"axis": axes, "method": "kernel"}
        close(program(lambda x: parprims.sum(x, **kernel), x), x.sum(axes))
        close(program(lambda x: parprims.max(x, **kernel), x), x.max(axes))
        squares = program(lambda x: parprims.map_reduce(lambda y: y * y, x, op="add", **kernel), x)
        close(squares, (x * x).sum(axes))
        close(program(lambda x: parprims.any(x > 3, keepdims=True, **kernel), x), (x > 3).any(axes, keepdims=True))

    @pytest.mark.parametrize("n", [1, 2, 300, 20_000])
    @pytest.mark.parametrize("periodic", [False, True])
    def test_tridiagonal_systems(self, program, rng, n, periodic):
        lower, upper, x = rng.standard_normal((3, 2, n))
        diag = 5 + rng.random((2, n))
        before, after = np.roll(x, 1, -1), np.roll(x, -1, -1)
        if not periodic:
            before[:, 0] = after[:, -1] = 0
        rhs = lower * before + diag * x + upper * after
        solve = lambda *xs: parprims.solve_tridiagonal(*xs, periodic=periodic, method="kernel")  # noqa: E731
        if n == 2 and periodic:
            return  # both neighbours are one unknown
        found = program(solve, lower, diag, upper, rhs)
        close(found, x, ulps=1 << 8)

    def test_numbers_of_32_bits(self, jax, program, rng):
        """Without integers and floats of 64 bits, as JAX is by default."""
        x = rng.standard_normal(5000).astype(np.float32)
        with jax.enable_x64(False):
            order = program(lambda x: parprims.argsort(x, method="kernel"), x)
            sums = program(lambda x: parprims.cumulative_sum(x, method="kernel"), x)
            total = program(lambda x: parprims.sum(x > 0, method="kernel"), x)
        assert (order.dtype, sums.dtype, total.dtype) == ("int32", "float32", "int32")
        np.testing.assert_array_equal(order, np.argsort(x, stable=True))
        close(sums, np.cumsum(x, dtype=np.float64))
        assert total == (x > 0).sum()


# ---- Transformations ---------------------------------------------------------------------------------------------


def sums(x):
    return parprims.cumulative_sum(x, axis=-1, method="kernel")


def ordered(x):
    return parprims.sort(x, axis=-1, method="kernel")


class TestTransformations:
    def test_vmap_of_any_axis_and_of_some_arrays(self, jax, rng):
        a, b, start = rng.standard_normal((6, 50)), rng.standard_normal((50, 6)), rng.standard_normal()

        def solve(a, b, start):
            return parprims.linear_recurrence(0.3 * a, b, initial=start, method="kernel")

        mapped = jax.jit(jax.vmap(solve, (0, 1, None), 1))(a, b, start)
        close(mapped.T, recurrence(0.3 * a, b.T, start), ulps=1 << 9)
        mapped = jax.jit(jax.vmap(solve, (None, 1, None)))(a[0], b, start)
        close(mapped, recurrence(0.3 * a[0], b.T, start), ulps=1 << 9)
        nested = jax.jit(jax.vmap(jax.vmap(solve, (None, 0, None)), (0, None, None)))(a, b.T, start)
        close(nested, recurrence(0.3 * a[:, None], b.T, start), ulps=1 << 9)

    def test_forward_and_backward(self, jax, rng):
        x = rng.standard_normal(40)
        lower = np.tril(np.ones((40, 40)))
        test_jax.same(jax, jax.jacfwd(sums)(x), lower)
        test_jax.same(jax, jax.jacrev(sums)(x), lower)
        test_jax.same(jax, jax.linearize(sums, x)[1](x), np.cumsum(x))
        test_jax.same(jax, jax.linear_transpose(sums, x)(x)[0], np.cumsum(x[::-1])[::-1])
        test_jax.same(jax, jax.jacfwd(ordered)(x), np.eye(40)[np.argsort(x)])
        second = jax.hessian(lambda x: (sums(x) ** 3).sum())(x)
        test_jax.same(jax, second, 6 * (lower.T * np.cumsum(x)) @ lower, tolerance=1e-10)

    def test_derivatives_by_differences(self, jax, rng):
        from jax.test_util import check_grads

        x = 0.3 * rng.standard_normal(9)
        own = lambda x: parprims.scan(x, lambda p, q: p + q + p * q, method="kernel")  # noqa: E731
        filtered = lambda x: parprims.lfilter([1.0, 0.5], [1.0, 0.3], x, method="kernel")  # noqa: E731
        solved = lambda x: parprims.solve_tridiagonal(x, 4 + x, x, x, method="kernel")  # noqa: E731
        product = lambda x: parprims.map_reduce(lambda y: 1 + y, x, op="multiply", method="kernel")  # noqa: E731
        for function in (own, filtered, solved, product):
            check_grads(jax.jit(function), (x,), order=2, atol=1e-4, rtol=1e-4)

    def test_loops_branches_and_checkpoints(self, jax, rng):
        x = rng.standard_normal((5, 30))

        def layer(state, row):
            state = ordered(0.1 * sums(state) + row)
            return state, state.sum()

        expected, totals = x[0], []
        for row in x:
            expected = np.sort(0.1 * np.cumsum(expected) + row)
            totals.append(expected.sum())
        found = jax.jit(lambda x: jax.lax.scan(layer, x[0], x))(x)
        test_jax.same(jax, found, (expected, np.array(totals)))

        def loss(layer, x):
            return jax.lax.scan(layer, x[0], x)[1].sum()

        plain, again = (jax.jit(jax.grad(lambda x, one=one: loss(one, x)))(x) for one in (layer, jax.checkpoint(layer)))
        test_jax.same(jax, plain, again)
        turned = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: -ordered(x), x))(x)
        np.testing.assert_array_equal(turned, -np.sort(x, -1))
        for chosen, one in ((True, np.cumsum(x, -1)), (False, np.sort(x, -1))):
            test_jax.same(jax, jax.jit(lambda p, x: jax.lax.cond(p, sums, ordered, x))(chosen, x), one)
        test_jax.same(jax, jax.jit(lambda x: jax.lax.map(sums, x))(x), np.cumsum(x, -1))

    def test_without_jit(self, jax, rng):
        x = jax.numpy.asarray(rng.standard_normal((3, 20)))
        with jax.disable_jit():
            test_jax.same(jax, jax.vmap(sums)(x), np.cumsum(x, -1))
            test_jax.same(jax, jax.grad(lambda x: sums(x).sum())(x[0]), np.arange(20, 0, -1.0))

    def test_donated_arrays(self, jax, rng):
        x = rng.standard_normal(1000)
        found = jax.jit(ordered, donate_argnums=0)(jax.numpy.asarray(x))
        np.testing.assert_array_equal(found, np.sort(x))

    def test_parts_of_meshes(self, jax):
        on_four_devices("""
            x = np.random.default_rng(3).standard_normal((8, 300))
            for function, expected in (
                (lambda x: parprims.cumulative_sum(x, axis=-1, method="kernel"), np.cumsum(x, -1)),
                (lambda x: parprims.sort(x, axis=-1, method="kernel"), np.sort(x, -1)),
                (lambda x: parprims.linear_recurrence(0 * x, x, method="kernel"), x),
            ):
                for check in (False, True):
                    mapping = dict(mesh=auto, in_specs=P("i"), out_specs=P("i"), check_vma=check)
                    for part in (function, jax.vmap(function)):
                        same(jax, jax.jit(jax.shard_map(part, **mapping))(x), expected)
                    loss = lambda x: (jax.shard_map(function, **mapping)(x) ** 2).sum()
                    same(jax, jax.jit(jax.grad(loss))(x), jax.grad(lambda x: (function(x) ** 2).sum())(x), 1e-9)
                same(jax, jax.pmap(function)(x.reshape(4, 2, 300)).reshape(8, 300), expected)
                same(jax, jax.jit(function)(put(x, auto, "i")), expected)
                with jax.set_mesh(explicit):
                    same(jax, jax.jit(function)(put(x, explicit, "i")), expected)
        """)

    def test_auto_leaves_arrays_to_xla_that_it_may_divide(self, jax):
        on_four_devices("""
            x = np.zeros((8, 1 << 16))

            def chosen(transform):
                with parprims.explain() as calls:
                    transform(lambda x: parprims.lfilter([1.0], [1.0, 0.5], x))
                return calls[0]

            whole = chosen(lambda f: jax.jit(f)(x))
            assert whole.refusals["kernel"] == "XLA would gather arrays that the program divides among devices"
            part = lambda f: jax.jit(jax.shard_map(f, mesh=auto, in_specs=P("i"), out_specs=P("i")))(x)
            assert chosen(part).method == "kernel"
        """)


# ---- Threads and memory -------------------------------------------------------------------------------------------


class TestThreads:
    def test_calls_of_several_threads(self, jax, rng):
        arrays = [rng.standard_normal(300_000).astype(np.float32) for _ in range(6)]
        function = jax.jit(lambda x: (ordered(x), sums(x)))
        found = {}

        def call(at):
            for _ in range(3):
                found[at] = [np.asarray(one) for one in function(arrays[at])]

        threads = [threading.Thread(target=call, args=(at,)) for at in range(6)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        for at, x in enumerate(arrays):
            np.testing.assert_array_equal(found[at][0], np.sort(x))
            close(found[at][1], np.cumsum(x, dtype=np.float64))

    def test_several_calls_of_a_program(self, jax, rng):
        """XLA runs them side by side, and each asks for threads of the pool that runs the others."""
        x = rng.standard_normal((6, 400_000)).astype(np.float32)
        function = jax.jit(lambda x: [(ordered(row), sums(row)) for row in x])
        for _ in range(3):
            for row, (one, other) in zip(x, function(x), strict=True):
                np.testing.assert_array_equal(one, np.sort(row))
                close(other, np.cumsum(row, dtype=np.float64))

    def test_limit_of_the_process(self, jax):
        code = """
            import parprims
            from parprims._cpu.running import xla
            print(xla.refusal(), int(xla._table().words[1]))
        """
        assert ran(code, PARPRIMS_NUM_THREADS="1", OMP_NUM_THREADS="2") == "None 1"

    @pytest.mark.parametrize("most", [1, 2, 7])
    def test_ranges_of_tasks(self, jax, monkeypatch, most):
        """Every task runs once, however many threads share them."""
        words = xla._table().words
        before = int(words[1])
        words[1] = most
        try:
            for tasks, least in ((1, 1), (2, 1), (1000, 1), (1000, 300), (1001, 7)):
                plan = counting(tasks, least)
                (found,) = jax.jit(lambda x, plan=plan: xla.embedded(plan, (x,)))(np.arange(tasks, dtype=np.int32))
                np.testing.assert_array_equal(found, np.arange(tasks) + 3)
        finally:
            words[1] = before

    def test_no_memory_for_scratch(self, jax):
        plan = counting(4, 1, scratch=((1 << 58, "float64"),))
        with pytest.raises(jax.errors.JaxRuntimeError, match="no memory is left for the scratch of a kernel"):
            jax.block_until_ready(jax.jit(lambda x: xla.embedded(plan, (x,)))(np.arange(4, dtype=np.int32)))

    @pytest.mark.parametrize("tasks", [1, 64])
    def test_no_memory_inside_a_kernel(self, jax, tasks):
        plan = counting(tasks, 1, "more = np.empty(1 << 60, np.float64)", "store(more, 0, 1.0)")
        with pytest.raises(jax.errors.JaxRuntimeError, match="no memory is left"):
            jax.block_until_ready(jax.jit(lambda x: xla.embedded(plan, (x,)))(np.arange(tasks, dtype=np.int32)))


def counting(tasks, least, *more, scratch=()):
    """Return the plan of a kernel whose tasks each add 3 to an element, behind more lines."""
    lines = [*more, "store(outputs[0], at, load(inputs[0], at) + numbers[0])"]
    kept = "scratch, " if scratch else ""
    head = f"add_three(inputs, outputs, {kept}numbers, begin, end)"
    text = _cpu.text.function(head, ["for at in range(begin, end):", *(f"    {line}" for line in lines)])
    launch, output = _cpu.Launch("add_three", tasks, least), ((tasks,), "int32")
    return _cpu.Plan((launch,), (text,), ("int32",), (output,), scratch, numbers=(3,))


# ---- Other processes and programs ----------------------------------------------------------------------------------


def ran(code, *words, **variables):
    """Run a program in a process of its own; return its last line."""
    paths = os.pathsep.join(sys.path)
    environment = os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", **variables}
    command = [sys.executable, "-c", textwrap.dedent(code), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


_CACHED = """
    import sys, jax, numpy as np, parprims
    from jax import monitoring
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    events = []
    x = np.random.default_rng(5).standard_normal(3000)
    if "others" in sys.argv:  # other kernels come first
        for function in (parprims.cumulative_prod, parprims.sort):
            jax.jit(lambda x: function(x, method="kernel"))(x)
    monitoring.register_event_listener(lambda event, **_: events.append(event))
    found = jax.jit(lambda x: parprims.scan(x, lambda p, q: p + q + 0.01 * p * q, method="kernel"))(x)
    expected = parprims.scan(x, lambda p, q: p + q + 0.01 * p * q, method="array")
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    print([one for one in events if one.endswith(("cache_hits", "cache_misses"))][-1])
"""

_SAVED = """
    import pickle, sys, jax, numpy as np, parprims
    from jax.experimental import serialize_executable
    x = np.ones(100, np.float32)
    program = jax.jit(lambda x: parprims.cumulative_sum(x, method="kernel")).lower(x).compile()
    pickle.dump(serialize_executable.serialize(program), open(sys.argv[1], "wb"))
    print("saved")
"""

_LOADED = """
    import pickle, sys, jax, numpy as np
    from jax.experimental import serialize_executable
    if "with kernels" in sys.argv:
        import parprims
        jax.jit(lambda x: parprims.sort(x, method="kernel"))(np.ones(9, np.float32)).block_until_ready()
    x = np.ones(100, np.float32)
    try:
        program = serialize_executable.deserialize_and_load(*pickle.load(open(sys.argv[1], "rb")))
        print(jax.block_until_ready(program(x))[-1])
    except jax.errors.JaxRuntimeError as error:
        print(str(error).replace(chr(10), " "))
"""


class TestProcesses:
    def test_programs_in_the_cache_of_jax(self, jax, tmp_path):
        """They name kernels by digests: another process runs its own kernel, whatever it compiled before."""
        assert ran(_CACHED, str(tmp_path)).endswith("cache_misses")
        assert ran(_CACHED, str(tmp_path), "others").endswith("cache_hits")

    def test_programs_that_were_saved(self, jax, tmp_path):
        """They end with a sentence, and not with the process, where their kernels are not."""
        path = str(tmp_path / "program")
        assert ran(_SAVED, path) == "saved"
        assert f"No FFI handler registered for {xla.TARGET}" in ran(_LOADED, path)
        assert 'method="array" before the program is saved' in ran(_LOADED, path, "with kernels")

    def test_programs_that_are_exported(self, jax, rng):
        """They hold the library's operations, for any platform, and need no checks to be off."""
        from jax import export

        x = rng.standard_normal((3, 50))
        function = jax.jit(lambda x: ordered(sums(x)))
        for platforms in (None, ["cpu"], ["cpu", "cuda"]):
            exported = export.export(function, platforms=platforms)(x)
            assert xla.TARGET not in exported.mlir_module()
            test_jax.same(jax, exported.call(x), np.sort(np.cumsum(x, -1), -1))
        lower = np.tril(np.ones((50, 50)))
        gradient = export.export(jax.jit(jax.vmap(jax.grad(lambda x: (sums(x) ** 2).sum()))))(x)
        test_jax.same(jax, gradient.call(x), 2 * np.cumsum(x, -1) @ lower, tolerance=1e-9)
        assert xla.TARGET in function.lower(x).as_text()

    def test_programs_for_other_platforms(self, jax, rng):
        lowered = jax.jit(sums).trace(rng.standard_normal(50)).lower(lowering_platforms=("cuda",))
        assert xla.TARGET not in lowered.as_text()


class TestTable:
    def test_digests_that_share_a_place(self, jax):
        """A kernel is found behind others, and one that is not there is not found."""
        plan = counting(5, 1)
        first, second = xla._digest(xla.symbol(plan.kernel()))
        table, length = xla._table(), xla._LENGTH
        place = int(xla.address(plan.kernel(), "_in_programs"))
        others = [(first ^ (length << shift), second) for shift in (3, 9)] + [(first, second ^ 1)]
        for at, one in enumerate(others):  # addresses that no program may call
            table.add(f"other {at} of {first}", one, 1)
        table.add(xla.symbol(plan.kernel()), (first, second), place)
        (found,) = jax.jit(lambda x: xla.embedded(plan, (x,)))(np.arange(5, dtype=np.int32))
        np.testing.assert_array_equal(found, np.arange(5) + 3)

    def test_a_kernel_that_is_not_there(self, jax, monkeypatch):
        plan, own = counting(6, 1), xla._digest
        monkeypatch.setattr(xla, "_digest", lambda name: (own(name)[0], own(name)[1] ^ 2))
        monkeypatch.setattr(xla._table(), "add", lambda *_: None)
        with pytest.raises(jax.errors.JaxRuntimeError, match="this process has not compiled a kernel of the program"):
            jax.block_until_ready(jax.jit(lambda x: xla.embedded(plan, (x,)))(np.arange(6, dtype=np.int32)))

    def test_more_kernels_than_it_holds(self, jax, monkeypatch):
        monkeypatch.setattr(xla, "MOST_KERNELS", 0)
        with pytest.raises(parprims.MethodRefused, match="programs of this process hold 0 different kernels already"):
            jax.jit(sums)(np.ones(4))

    def test_numbers_of_operators(self, jax, program, rng):
        """Programs with other captured numbers share a kernel."""
        x = rng.standard_normal(200)
        count = []
        for factor in (0.25, 0.5, 0.75):
            found = program(lambda x, k=factor: parprims.scan(x, lambda p, q: k + p + q, method="kernel"), x)
            close(found, np.cumsum(x) + factor * np.arange(200))
            count.append(len(xla._table().known))
        assert count[0] == count[1] == count[2]


class TestAuto:
    @pytest.mark.parametrize(
        ("function", "shape"),
        [
            (parprims.sort, (1 << 14,)),
            (parprims.argsort, (1 << 14,)),
            (parprims.cumulative_sum, (1 << 14,)),
            (lambda x, **how: parprims.linear_recurrence(x, x, **how), (1 << 12,)),
            (lambda x, **how: parprims.lfilter([1.0, 0.5], [1.0, 0.2], x, **how), (1 << 12,)),
            (lambda x, **how: parprims.solve_tridiagonal(x, x, x, x, **how), (1 << 12,)),
            (parprims.unique, (1 << 14,)),
            (parprims.median, (1 << 14,)),
        ],
    )
    def test_takes_the_kernel_of_many_elements(self, jax, function, shape):
        how = {"size": 5} if function is parprims.unique else {}

        def chosen(shape):
            with parprims.explain() as calls:
                jax.eval_shape(lambda x: function(x, **how), jax.ShapeDtypeStruct(shape, np.float64))
            return calls[0].method

        assert chosen(shape) == "kernel"
        assert chosen((4,) * len(shape)) != "kernel"

    def test_leaves_sums_to_xla(self, jax):
        found = {}

        def listed(x):
            found.update(parprims.methods(parprims.sum, x))
            return x

        jax.eval_shape(listed, jax.ShapeDtypeStruct((1 << 20,), np.float64))
        assert found["kernel"] == "JAX's own way is preferred at any size"
        assert found["native"] is None

    @pytest.mark.parametrize("name", ["linear_recurrence", "scan by an own operator", "sort_by_key", "lfilter"])
    def test_no_tracer_outlives_its_program(self, jax, name):
        function, arrays = CALLS[name]
        gc.freeze()
        try:
            test_jax.TestLeaks().check(jax, lambda *xs: function("kernel", *xs), arrays)
        finally:
            gc.unfreeze()


class TestReleases:
    def test_others_are_refused(self, jax, monkeypatch):
        for release in (xla.OLDEST, (*xla.NEWEST, 7)):
            assert xla.release_refusal(release) is None
        monkeypatch.setattr(jax, "__version_info__", (1, 2, 3))
        assert xla._probe_refusal.__wrapped__().endswith("and this is JAX 1.2.3")

    def test_an_interface_that_does_not_answer(self, jax, monkeypatch):
        def fails(*_):
            raise RuntimeError("no such target\nand more")

        monkeypatch.setattr(xla, "embedded", fails)
        assert (
            xla._probe_refusal.__wrapped__() == "this JAX cannot hold a kernel for CPUs: RuntimeError: no such target"
        )
