"""What JAX's transformations, switches, meshes and releases ask of every public function."""

import gc
import importlib

import numpy as np
import pytest

import parprims
from parprims._core import arrays as core_arrays
from parprims._core import signature
from parprims._cuda import xla
from parprims._dispatch.examples import Sample
from parprims._dispatch.primitive import declared
from tests.emulation import emulator

N = 4
_RNG = np.random.default_rng(20)
A, B = 0.5 * _RNG.standard_normal((2, N))
D = 4 + _RNG.standard_normal(N)
C = B[0]
OFFSETS = np.array([0, 3, 3, 4], np.int8)
KEYS = np.array([3, -1, 2, -1], np.int8)
HALVES = A.astype(np.float16)  # numbers to order: by `array` their 16 bits are a quarter of the passes to compile
MASK = KEYS > 0


def combined(x, y):
    return x + y + x * y


DTYPES = {
    **dict.fromkeys(("argmax", "argmin", "argsort", "merge", "run_lengths", "unique"), "int8"),
    **dict.fromkeys(("argpartition", "median", "partition", "quantile", "top_k"), "float16"),
}
"""Keys of 8 and 16 bits, which `array` takes an eighth and a quarter of the passes of float64 to sort by."""
ELSEWHERE = ("histogram", "lfilter", "searchsorted", "solve_banded", "solve_block_tridiagonal", "sosfilt")
"""Primitives that have such tests of their own."""


def sampled(name):
    """Return a function of a method and arrays, and the arrays, of an example call."""
    one = declared[name].sampled(Sample((N,), dtype=DTYPES.get(name, "float64"), fixed=True))
    return lambda m, *xs: one(*xs, method=m), one.arrays


# A small call of every public function, all of one shape: by name what is called, with a method first, and its arrays.
# Written out are calls with options that a program or a derivative goes other ways for.
CALLS = {
    **{name: sampled(name) for name in sorted({one.name for one in declared.values()}.difference(ELSEWHERE))},
    "reduce": (lambda m, x: parprims.reduce(x, "logaddexp", method=m), (A,)),
    "map_reduce": (lambda m, x, y: parprims.map_reduce(lambda x, y: x * y, x, y, method=m), (A, B)),
    "scan": (lambda m, x, i: parprims.scan(x, "multiply", exclusive=True, initial=i, method=m), (A, C)),
    "scan of maps": (lambda m, x, y: parprims.scan((x, y), "affine", method=m), (A, B)),
    "scan by an own operator": (lambda m, x: parprims.scan(x, combined, reverse=True, method=m), (A,)),
    "cumulative_sum": (lambda m, x: parprims.cumulative_sum(x, include_initial=True, method=m), (A,)),
    "cumulative_max": (lambda m, x: parprims.cumulative_max(x, return_indices=True, method=m), (A,)),
    "linear_recurrence": (lambda m, a, b, i: parprims.linear_recurrence(a, b, initial=i, method=m), (A, B, C)),
    "sort": (lambda m, x: parprims.sort(x, descending=True, method=m), (KEYS,)),
    "sort_by_key": (lambda m, k, x: parprims.sort_by_key(k, x, method=m), (KEYS, A)),
    "merge_by_key": (lambda m, k, x: parprims.merge_by_key(k, x, k, x, method=m), (KEYS, A)),
    "segment_reduce": (lambda m, k, x: parprims.segment_reduce(x, k, 4, method=m), (KEYS, A)),
    "reduce by offsets": (lambda m, k, x: parprims.reduce(x, offsets=k, method=m), (OFFSETS, A)),
    "solve_tridiagonal": (
        lambda m, a, d, b: parprims.solve_tridiagonal(a, d, -1.0, b, return_status=True, method=m)[0], (A, D, B),
    ),
    "matmul": (lambda m, a, b: parprims.matmul(a[None], b[:, None], method=m), (A, B)),
    "matmul of paths": (
        lambda m, a, b: parprims.matmul(a[None], b[:, None], add="logaddexp", multiply="add", method=m), (A, B),
    ),
}  # fmt: skip
MANY_SEGMENTS = (lambda m, k, x: parprims.segment_reduce(x, k, 30_000, method=m), (KEYS, A))
METHODS = ("auto", "kernel", "native", "array")
WITHOUT_DERIVATIVES = (
    "any", "all", "argmax", "argmin", "argpartition", "argsort", "merge", "run_lengths", "sort", "unique",
)  # fmt: skip


def serving(function, arrays):
    """Return the methods that serve a call inside a program, without those that another name stands for."""
    jax, found = importlib.import_module("jax"), []
    for method in METHODS:
        try:
            with parprims.explain() as taken:
                jax.eval_shape(lambda *xs, method=method: function(method, *xs), *arrays)
        except parprims.MethodRefused:
            continue
        if taken[0].method not in found:
            found.append(taken[0].method)
    return found


@pytest.fixture
def jax(backend):
    """JAX, on the device under test."""
    if not backend.name.startswith("jax"):
        pytest.skip("needs JAX")
    import jax

    with jax.default_device(jax.devices("cuda" if backend.cuda else "cpu")[0]):
        yield jax


@pytest.fixture
def compiled(jax):
    """The names of the programs that JAX compiles from now on."""
    names = []

    def note(event, _, **about):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(about.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(note)
    yield names
    jax.monitoring.unregister_event_duration_listener(note)


@pytest.fixture
def as_if_cuda(monkeypatch):
    """JAX, which takes its CPU for a GPU until it compiles: programs for both can be had."""
    jax = pytest.importorskip("jax")
    if xla.devices():
        pytest.skip("there is a GPU")
    emulator.install_for_jax(monkeypatch)
    return jax


def total(jax, function):
    """Return a function whose value is one number that depends on all that another returns."""

    def loss(*arrays):
        leaves = jax.tree.leaves(function(*arrays))
        return sum(jax.numpy.sum(jax.numpy.sin(x)) for x in leaves if jax.numpy.issubdtype(x.dtype, np.floating))

    return loss


def floats(arrays):
    """Return the places of arrays by which there is a derivative."""
    return tuple(at for at, x in enumerate(arrays) if np.asarray(x).dtype.kind == "f")


def nothing(jax, x):
    """Return the tangent of integers."""
    return np.zeros(x.shape, jax.dtypes.float0)


def same(jax, found, expected, tolerance=1e-12):
    """Assert that two trees of arrays are equal but for rounding."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        if one.dtype == jax.dtypes.float0:
            continue
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=tolerance, rtol=tolerance)


# ---- Derivatives -------------------------------------------------------------------------------------------------


class TestArraysOfNumPy:
    """A rule of JAX is handed the arrays of NumPy that a derivative is asked by as they are."""

    @pytest.mark.parametrize("name", [name for name in CALLS if name not in WITHOUT_DERIVATIVES])
    def test_derivatives(self, jax, compiled, name):
        """What was compiled for a derivative outside of jit is not compiled again."""
        function, arrays = CALLS[name]
        on_device, by = tuple(map(jax.numpy.asarray, arrays)), floats(arrays)
        arrays = tuple(x if at in by else on_device[at] for at, x in enumerate(arrays))
        tangents = tuple(np.ones_like(x) if at in by else nothing(jax, x) for at, x in enumerate(arrays))
        # Of a sort and a product `auto` takes the library's, whose derivative is the library's.
        method = "array" if name in ("sort_by_key", "cumulative_prod", "scan") else "auto"

        def call(*arrays):
            return function(method, *arrays)

        gradient = jax.grad(total(jax, call), by)
        same(jax, gradient(*arrays), gradient(*on_device))
        compiled.clear()
        gradient(*on_device)
        assert not compiled
        same(jax, jax.jvp(call, arrays, tangents)[1], jax.jvp(call, on_device, tangents)[1])

    @pytest.mark.parametrize("name", ["linear_recurrence", "scan of maps", "cumulative_sum", "sort_by_key"])
    def test_second_derivatives(self, jax, name):
        from jax.test_util import check_grads

        function, arrays = CALLS[name]
        if name == "sort_by_key":  # of keys and values
            arrays = (D, A)

        def call(*arrays):  # differences are those of the methods for NumPy
            return function("auto", *arrays)

        check_grads(call, arrays, order=2, atol=1e-4, rtol=1e-4)

    def test_jacobians(self, jax):
        sums = parprims.cumulative_sum
        lower = np.tril(np.ones((N, N)))
        same(jax, jax.jacrev(sums)(A), lower)
        same(jax, jax.jacfwd(sums)(A), lower)
        same(jax, jax.hessian(total(jax, sums))(A), -(lower.T * np.sin(np.cumsum(A))) @ lower)

    def test_second_derivatives_of_solutions(self, jax):
        from jax.test_util import check_grads

        def solve(lower, diag, upper, rhs):
            return parprims.solve_tridiagonal(lower, diag, upper, rhs)

        check_grads(solve, (A, D, B, D), order=2, atol=1e-3, rtol=1e-3)

    def test_order_of_numpy_keys(self, jax):
        def taken(x):
            return jax.numpy.take(x, parprims.argsort(x, method="array"))

        tangent = B.astype(np.float16)
        same(jax, jax.jvp(taken, (HALVES,), (tangent,)), (np.sort(HALVES), tangent[np.argsort(HALVES)]))


def test_a_loss_on_the_second_component_only(jax):
    def loss(method, x, y):
        return jax.numpy.sum(parprims.scan((x, y), "affine", method=method)[1] ** 2)

    def sequential(x, y):
        before, squares = y[0], y[0] ** 2
        for at in range(1, N):
            before = x[at] * before + y[at]
            squares = squares + before**2
        return squares

    expected = jax.grad(sequential, (0, 1))(*map(jax.numpy.asarray, (A, B)))

    for method in serving(CALLS["scan of maps"][0], (jax.numpy.asarray(A),) * 2):
        same(jax, jax.grad(loss, (1, 2))(method, *map(jax.numpy.asarray, (A, B))), expected)


def test_a_nan_stays_where_it_is(jax):
    """A NaN in one row, or behind an element, reaches no derivative that does not depend on it."""
    x = np.stack([A, np.where(np.arange(N) == 2, np.nan, B)])
    a, b = (jax.numpy.asarray(y) for y in (np.stack([B, A]), x))

    def by_both(method):
        def loss(a, b):
            return parprims.linear_recurrence(a, b, method=method)[:, :2].sum()

        return jax.jit(jax.grad(loss, (0, 1)))(a, b)

    expected = np.zeros_like(x), np.zeros_like(x)
    expected[0][:, 1], expected[1][:, 0], expected[1][:, 1] = x[:, 0], 1 + np.asarray(a)[:, 1], 1
    for method in ("auto", "array"):
        by_a, by_b = by_both(method)
        same(jax, (by_a[:, :2], by_b[:, :2]), (expected[0][:, :2], expected[1][:, :2]))
        same(jax, (by_a[0], by_b[0]), (expected[0][0], expected[1][0]))  # the row without a NaN


# ---- Transformations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["auto", "array"])
def test_a_derivative_is_a_few_programs(jax, compiled, by):
    """Also outside of jit; `explain` tells of the call each time."""
    a, b = (jax.device_put(np.linspace(0.1, 0.9, 83)) for _ in range(2))

    def loss(a, b):
        return parprims.linear_recurrence(a, b, method=by).sum()

    for most in (40, 0):
        compiled.clear()
        with parprims.explain() as calls:
            found = jax.grad(loss, (0, 1))(a, b)
        assert len(compiled) <= most
        assert [call.primitive for call in calls][:1] == ["linear_recurrence"]
    same(jax, found, jax.jit(jax.grad(loss, (0, 1)))(a, b))


@pytest.mark.parametrize("name", CALLS)
def test_a_remembered_call_is_one_program(jax, compiled, name):
    """By the methods auto and array, and compiled at the first call only."""
    function, arrays = CALLS[name]
    if name in ("top_k", "partition", "argpartition"):  # of bytes, by array half the passes of halves to compile
        arrays = (KEYS,)
    larger = [19 * x if x is OFFSETS else np.concatenate([x] * 19) for x in arrays if x is not C]
    arrays = [jax.device_put(x) for x in (*larger, *(x for x in arrays if x is C))]
    for method in ("auto", "array"):
        compiled.clear()
        function(method, *arrays)
        assert len(compiled) <= (40 if name == "solve_tridiagonal" else 6)  # the status is apart
        compiled.clear()
        function(method, *arrays)
        assert len(compiled) <= (1 if "matmul" in name else 0)


@pytest.mark.parametrize("by", ["auto", "array"])
def test_the_first_call_of_a_process_is_one_program(jax, compiled, monkeypatch, by):
    """It is remembered too, though nothing was known of the type of JAX's arrays before."""
    x = jax.device_put(np.linspace(0.1, 0.9, 61))
    for known in (core_arrays._known, signature.makers):
        monkeypatch.delitem(known, type(x), raising=False)
    parprims.any(x, method=by)
    assert len(compiled) <= 4
    compiled.clear()
    parprims.any(x, method=by)
    assert not compiled


class TestTransformations:
    @pytest.mark.parametrize("name", CALLS)
    def test_shapes_without_values(self, jax, name):
        function, arrays = CALLS[name]
        expected = function("auto", *map(jax.numpy.asarray, arrays))
        shapes = jax.eval_shape(
            lambda *xs: function("auto", *xs), *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays)
        )
        for one, other in zip(jax.tree.leaves(shapes), jax.tree.leaves(expected), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            assert not one.weak_type

    @pytest.mark.parametrize("name", ["linear_recurrence", "sort_by_key", "solve_tridiagonal", "cumulative_sum"])
    def test_vmap_of_any_axis_and_of_derivatives(self, jax, name):
        function, arrays = CALLS[name]
        scales = np.array([1, 2, 3])
        for method in ("auto", "array") if name in ("linear_recurrence", "cumulative_sum") else ("auto",):

            def call(*xs, method=method):
                return function(method, *xs)

            loss, by = total(jax, call), floats(arrays)
            one_by_one = [tuple(jax.numpy.asarray((x * scale).astype(x.dtype)) for x in arrays) for scale in scales]
            stacked = [np.stack(xs, axis=-1) for xs in zip(*one_by_one, strict=True)]

            derivative = jax.grad(loss, by)

            def both(*xs, call=call, derivative=derivative):
                return call(*xs), derivative(*xs)

            mapped = jax.jit(jax.vmap(both, in_axes=-1))(*stacked)
            for at, xs in enumerate(one_by_one):
                same(jax, jax.tree.map(lambda x, at=at: x[at], mapped), both(*xs))
            nested = jax.jit(jax.vmap(jax.vmap(call, in_axes=-1, out_axes=-1)))(*(np.stack([x, x]) for x in stacked))
            for one, other in zip(jax.tree.leaves(nested), jax.tree.leaves(mapped[0]), strict=True):
                same(jax, one, jax.numpy.stack([jax.numpy.moveaxis(other, 0, -1)] * 2))

    def test_inside_a_loop_and_checkpointed(self, jax):
        def layer(x, a):
            x = parprims.linear_recurrence(a, x, method="array")
            return parprims.sort(x, method="native") * 0.5, parprims.sum(x)

        def run(layer, x, steps):
            x, sums = jax.lax.scan(layer, x, steps)
            return x.sum() + sums.sum()

        x, steps = jax.numpy.asarray(D), jax.numpy.asarray(np.stack([A, B, A]))
        unrolled = x
        sums = 0.0
        for a in steps:
            unrolled, one = layer(unrolled, a)
            sums += one
        same(jax, run(layer, x, steps), unrolled.sum() + sums)
        plain = jax.jit(jax.grad(lambda *xs: run(layer, *xs), (0, 1)))(x, steps)
        same(jax, jax.jit(jax.grad(lambda *xs: run(jax.checkpoint(layer), *xs), (0, 1)))(x, steps), plain)

    def test_linearised(self, jax):
        function, arrays = CALLS["linear_recurrence"]
        xs = tuple(map(jax.numpy.asarray, arrays))
        value, linear = jax.linearize(lambda *xs: function("array", *xs), *xs)
        same(jax, (value, linear(*xs)), jax.jvp(lambda *xs: function("array", *xs), xs, xs))

    def test_options_are_static_and_arrays_donated(self, jax):
        solve = jax.jit(parprims.linear_recurrence, static_argnames=("axis", "reverse", "method"))
        a, b = map(jax.numpy.asarray, (A, B))
        same(jax, solve(a, b, axis=-1, reverse=True), parprims.linear_recurrence(a, b, reverse=True))
        expected = np.sort(D)
        same(jax, jax.jit(parprims.sort, donate_argnums=0)(jax.numpy.asarray(D)), expected)

    def test_weakly_typed_numbers(self, jax):
        half, b = jax.numpy.asarray(0.5), jax.numpy.asarray(B.astype(np.float32))
        assert jax.typeof(half).weak_type
        half32 = jax.numpy.asarray(0.5, np.float32)
        for function in (jax.jit(parprims.linear_recurrence),):
            found, expected = (
                jax.jvp(lambda a, function=function: function(a, b), (a,), (a,))
                for a in (half.astype(np.float32), half32)
            )
            same(jax, found, expected)
        same(jax, parprims.scan(b, initial=jax.lax.full_like(half, 2, np.float32)), parprims.scan(b, initial=2.0))

    def test_order_of_an_order(self, jax):
        """XLA has simplified this wrongly."""
        x = np.array([30, 10, 10, -20])
        expected = np.argsort(np.argsort(x, stable=True), stable=True)
        for method in serving(CALLS["argsort"][0], (jax.numpy.asarray(KEYS),)):
            # By `array` 64 bits would be many passes to compile, of operations that XLA does not know for a sort.
            keys = jax.numpy.asarray(x, np.int8 if method == "array" else np.int64)

            def ranks(x, method=method):
                order = parprims.argsort(x, method=method)
                return parprims.argsort(order.astype(x.dtype), method=method)

            found = jax.jit(ranks)(keys)
            assert found.dtype == np.int64
            np.testing.assert_array_equal(found, expected)

    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_few_unknowns(self, jax, n):
        lower, upper, rhs = (_RNG.standard_normal((2, n)) for _ in range(3))
        diag = 4 + _RNG.random((2, n))
        matrices = np.stack([np.diag(row) for row in diag])
        for at in range(n - 1):
            matrices[:, at + 1, at], matrices[:, at, at + 1] = lower[:, at + 1], upper[:, at]
        expected = np.linalg.solve(matrices, rhs[..., None])[..., 0]
        systems = tuple(map(jax.numpy.asarray, (lower, diag, upper, rhs)))
        for method in serving(lambda m, *xs: parprims.solve_tridiagonal(*xs, method=m), systems):

            def solve(*xs, method=method):
                pivot = "none" if method == "array" else "auto"  # which is less to compile
                return parprims.solve_tridiagonal(*xs, pivot=pivot, method=method)

            try:
                found = jax.jit(jax.vmap(solve))(*systems)
            except parprims.MethodRefused:  # JAX's own routine on a GPU, which takes one system at a time
                assert jax.default_backend() == "gpu"
                continue
            same(jax, found, expected)
        same(jax, parprims.solve_tridiagonal(*systems), expected)


# ---- Leaks -------------------------------------------------------------------------------------------------------


@pytest.fixture
def few_objects():
    """Let the garbage collector, which JAX calls at every look for leaks, see only what is made from now on."""
    gc.freeze()
    yield
    gc.unfreeze()


class TestLeaks:
    @pytest.mark.parametrize("name", CALLS)
    def test_no_tracer_outlives_its_program(self, jax, few_objects, name):
        function, arrays = CALLS[name]
        methods = ("auto",) if name == "solve_tridiagonal" else ("auto", "array")
        for method in methods:
            self.check(jax, lambda *xs, method=method: function(method, *xs), arrays)

    @pytest.mark.parametrize("name", ["many segments", *sorted(CALLS.keys() - {"matmul of paths"})])
    def test_none_outlives_a_program_with_kernels(self, as_if_cuda, few_objects, name):
        function, arrays = {**CALLS, "many segments": MANY_SEGMENTS}[name]
        self.check(as_if_cuda, lambda *xs: function("kernel", *xs), arrays)

    def check(self, jax, call, arrays):
        wide, by = [np.stack([x, x]) for x in arrays], floats(arrays)
        with jax.checking_leaks():  # the first trace, for later ones find what it remembered
            results = jax.jit(call).trace(*arrays).out_info
        programs = [(jax.vmap(call), wide)]
        if by and any(np.issubdtype(x.dtype, np.floating) for x in jax.tree.leaves(results)):
            programs = [(jax.vmap(jax.grad(total(jax, call), by)), wide)]
        for program, given in programs:
            with jax.checking_leaks():
                jax.jit(program).trace(*given)

    def test_no_array_outlives_its_call(self, as_if_cuda):
        """What is remembered of a call for later ones holds none of its arrays."""
        import weakref

        seen = {}
        for name in ("linear_recurrence", "scan", "matmul", "sort_by_key", "sum", "map_reduce"):
            function, arrays = CALLS[name]
            xs = [as_if_cuda.numpy.asarray(x) for x in arrays]
            seen[name] = [weakref.ref(x) for x in xs]
            function("kernel", *xs)
        del xs
        gc.collect()
        for name, references in seen.items():
            assert not any(x() is not None for x in references), name


# ---- Switches ----------------------------------------------------------------------------------------------------

SWITCHES = {
    "jax_enable_x64": False,
    "jax_numpy_rank_promotion": "raise",
    "jax_numpy_dtype_promotion": "strict",
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_disable_jit": True,
    "jax_transfer_guard": "disallow",
    "jax_enable_custom_prng": True,
    "jax_check_tracer_leaks": True,
    "jax_default_matmul_precision": "bfloat16",
}


@pytest.fixture
def switched(jax):
    """Return a function that turns one of JAX's switches until the test ends."""
    before = {}

    def turn(name):
        before[name] = getattr(jax.config, name)
        jax.config.update(name, SWITCHES[name])

    yield turn
    for name, value in before.items():
        jax.config.update(name, value)
    if "jax_transfer_guard" in before:
        for way in ("host_to_device", "device_to_device", "device_to_host"):
            jax.config.update(f"jax_transfer_guard_{way}", "allow")


class TestSwitches:
    @pytest.mark.parametrize("switch", SWITCHES)
    def test_every_function(self, jax, switched, few_objects, switch):
        prepared = []
        for function, arrays in CALLS.values():
            if switch == "jax_enable_x64":
                arrays = tuple(x.astype(np.float32) if x.dtype.kind == "f" else x for x in map(np.asarray, arrays))
            prepared += [(function, method, tuple(map(jax.numpy.asarray, arrays))) for method in ("auto", "array")]
        at_run_time = switch in ("jax_debug_nans", "jax_debug_infs", "jax_transfer_guard")
        expected = [function(method, *xs) for function, method, xs in prepared] if at_run_time else []
        switched(switch)
        for at, (function, method, xs) in enumerate(prepared):
            # What switches change of programs is changed as they are made.
            made = jax.eval_shape(lambda *xs, call=function, method=method: call(method, *xs), *xs)
            if switch == "jax_enable_x64":
                assert all(x.dtype.itemsize <= 4 for x in jax.tree.leaves(made))
            if at_run_time:
                found = function(method, *xs)
                with jax.transfer_guard("allow"):
                    same(jax, found, expected[at])

    def test_ranks_that_differ(self, jax, switched):
        """Coefficients without the axes of the right-hand sides, batches that only one factor has."""
        wide, flat, factor, batch = np.stack([A, B, D], -1), np.ones((N, 1)), np.ones((3, 2)), np.ones((2, 2, 2))

        def solve(a, d, b, wide):
            yield from (parprims.solve_tridiagonal(a, d, b, wide, pivot=pivot) for pivot in ("auto", "none"))
            yield parprims.solve_tridiagonal(a, d, b, wide, periodic=True, method="array", return_status=True)
            yield parprims.solve_tridiagonal(a, d, b, wide, method="array", return_residual=True)
            yield jax.grad(lambda x: parprims.solve_tridiagonal(a, x, b, wide).sum())(d)

        switched("jax_numpy_rank_promotion")
        jax.eval_shape(lambda *xs: list(solve(*xs)), A, D, B, wide)
        jax.eval_shape(lambda a, b: parprims.linear_recurrence(a, b, axis=0), flat, wide)
        jax.eval_shape(lambda a, b: parprims.matmul(a, b, add="maximum", multiply="add"), factor, batch)

    @pytest.mark.parametrize("switch", ["jax_debug_nans", "jax_debug_infs"])
    def test_products_that_overflow_on_the_way(self, jax, switched, switch):
        n = 11  # a length of its own: JAX does not look at what it compiled before
        a = jax.numpy.asarray(np.full(n, 1e200))
        b = jax.numpy.asarray(np.where(np.arange(n) < n - 1, 0.0, 1.0))
        zeros, ones = (jax.numpy.asarray(np.full(N, value)) for value in (0.0, 1.0))
        switched(switch)
        np.testing.assert_array_equal(parprims.linear_recurrence(a, b, method="array"), b)
        np.testing.assert_allclose(parprims.solve_tridiagonal(ones, zeros, ones, ones), [0, 1, 1, 0])

    def test_a_nan_in_a_result_is_reported(self, jax, switched):
        x = jax.numpy.asarray(np.array([1.0, np.nan]))
        switched("jax_debug_nans")
        with pytest.raises(FloatingPointError, match=r"invalid value \(nan\) encountered in cumulative_sum"):
            parprims.cumulative_sum(x, method="array")


# ---- Releases ----------------------------------------------------------------------------------------------------


class TestReleases:
    def test_only_tested_ones_run_kernels(self, monkeypatch):
        oldest, newest = xla.OLDEST, xla.NEWEST
        for release in ((*oldest, 0), (*newest, 7), newest):
            assert xla.release_refusal(release) is None
        releases = f"JAX {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
        words = f"XLA's call of kernels is tested with {releases}, and this is "
        for release in ((oldest[0], oldest[1] - 1, 4), (newest[0], newest[1] + 1, 0), (1, 0, 0)):
            name = ".".join(map(str, release))
            assert xla.release_refusal(release) == words + f"JAX {name}"
        assert releases in " ".join(parprims.jax_export_checks.__doc__.split())

    def test_another_is_refused_before_anything_runs(self, jax, monkeypatch):
        monkeypatch.setattr(xla, "devices", lambda: ["a device"])
        monkeypatch.setattr(xla, "embedded", None)
        monkeypatch.setattr(jax, "__version_info__", (0, 99, 1))
        assert xla.platform_refusal.__wrapped__().endswith("and this is JAX 0.99.1")


class TestExport:
    @pytest.mark.parametrize("name", CALLS)
    def test_programs_for_a_cpu(self, jax, backend, name):
        if jax.default_backend() != "cpu":
            pytest.skip("is for a CPU")
        from jax import export

        function, arrays = CALLS[name]
        exported = export.export(jax.jit(lambda *xs: function("auto", *xs)))(*arrays)
        if name in ("sort_by_key", "linear_recurrence", "solve_tridiagonal"):
            found = exported.call(*arrays)
            same(jax, found, function("auto", *map(jax.numpy.asarray, arrays)))

    def test_programs_with_kernels(self, as_if_cuda):
        from jax import export

        program = as_if_cuda.jit(lambda x: parprims.cumulative_sum(x, method="kernel"))
        with pytest.raises(ValueError, match="custom call"):
            export.export(program, platforms=["cuda"])(A)
        exported = export.export(program, platforms=["cuda"], disabled_checks=parprims.jax_export_checks())(A)
        assert "xla.gpu.ptx" in exported.mlir_module()
