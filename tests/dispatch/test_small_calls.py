"""The doors of public functions: a call like one before goes straight to what computed that, and to nothing else."""

import functools
import inspect
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import parprims
from benches.overhead import small_calls
from parprims._dispatch import door
from parprims._dispatch.dispatch import primitives
from parprims._dispatch.examples import Sample
from parprims._dispatch.prepared import kinds
from parprims._dispatch.primitive import examples
from parprims._libraries import numpy_bridge

X = np.array([3.0, 1.0, 2.0, 7.0, -5.0, 0.5], dtype=np.float32)
EXAMPLES = examples(lambda: Sample(X.shape))
CALLS = {
    name: one
    for name, one in EXAMPLES.items()
    if not any(form in name for form in (" by offsets", " by segment_ids", " with last states"))
    and name not in ("map_reduce", "solve_banded", "histogram everywhere")
}
"""Calls that go through doors: offsets, segment_ids, last states, functions and tuples are left to the bodies."""
FRAMES = {
    **dict.fromkeys(CALLS, 4),
    "cumulative_logsumexp": 5, "cumulative_max with indices": 6, "cumulative_min with indices": 6, "histogram": 9,
    "linear_recurrence": 6, "median": 6, "quantile": 6, "run_lengths": 8, "segment_reduce": 7,
    "solve_tridiagonal": 8, "sort_by_key": 8, "unique": 8,
    **dict.fromkeys(("cumulative_sum everywhere", "reduce everywhere", "sum everywhere"), 8),
}  # fmt: skip
"""Functions of Python that a call on NumPy's arrays enters, at most."""
for _name in (
    "lfilter", "linear_recurrence of matrices", "merge_by_key", "segment_reduce everywhere", "solve_block_tridiagonal",
    "sosfilt", "vecdot everywhere",
):  # fmt: skip
    del FRAMES[_name]  # made of other calls


def joined(earlier, later):
    return earlier + later + earlier * later


PAST_THE_DOOR = {
    "scan by a function": (lambda x: parprims.scan(x, joined), 24),
    "scan by an operator": (lambda x: parprims.scan(x, parprims.Operator(joined)), 29),
    "sum over axes": (lambda x: parprims.sum(x, axis=(0,)), 24),
}
"""Calls that the body finds again, and the functions of Python that they enter, at most; after PyTorch one more."""


def entered(call, within=""):
    """Return the names of the functions of Python that a call enters, of files in a folder."""
    found = []

    def seen(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(within):
            found.append(frame.f_code.co_qualname)

    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


class NUMPY:
    """What the library's arrays in a CPU's memory are read by."""

    to_numpy = staticmethod(np.asarray)


def warm(function, arrays):
    for _ in range(3):
        result = function(*arrays)
    return result


def bits_of(backend, result):
    return [backend.to_numpy(one).tobytes() for one in (result if isinstance(result, tuple) else (result,))]


class TestTheWay:
    @pytest.mark.parametrize("name", FRAMES)
    @pytest.mark.once
    def test_few_functions_are_entered(self, name):
        if name.endswith(" everywhere"):
            pytest.importorskip("numba")  # without it they are made of other calls
        call = CALLS[name].bound(*CALLS[name].arrays)
        warm(call, ())
        names = entered(call)
        assert len(names) <= FRAMES[name], names

    @pytest.mark.parametrize("name", PAST_THE_DOOR)
    @pytest.mark.once
    def test_few_functions_are_entered_past_the_door(self, name):
        call, most = PAST_THE_DOOR[name]
        pytest.importorskip("numba")
        x = np.tile(X, 20)
        warm(call, (x,))
        names = entered(functools.partial(call, x))[1:]  # the first is the call itself
        assert len(names) <= most, names

    @pytest.mark.parametrize("name", CALLS)
    def test_the_body_is_not(self, backend, name, monkeypatch):
        if backend.name not in ("numpy", "torch", "jax"):
            pytest.skip("its calls are not remembered by what the door reads")
        call = CALLS[name].bound(*map(backend.asarray, CALLS[name].arrays))
        once = warm(call, ())
        monkeypatch.setattr(door, "_enter", None)
        is_one = name in FRAMES and not name.endswith(" everywhere")  # not made of other calls, without Numba either
        bodies = {*primitives} if is_one else {CALLS[name].function.__name__}
        assert not bodies & {*entered(call, within=str(Path(parprims.__file__).parent))}
        assert bits_of(backend, call()) == bits_of(backend, once)

    @pytest.mark.parametrize("name", CALLS)
    def test_results_are_those_of_the_first_call(self, backend, name):
        call = CALLS[name].bound(*map(backend.asarray, CALLS[name].arrays))
        first = bits_of(backend, call())
        for _ in range(4):
            assert bits_of(backend, call()) == first


@pytest.mark.once
class TestWhatIsTold:
    def test_explain_and_methods(self):
        warm(parprims.sum, (X,))
        with parprims.explain() as calls:
            parprims.sum(X)
        assert [one.primitive for one in calls] == ["sum"]
        assert parprims.methods(parprims.sum, X)["native"] is None
        assert float(parprims.sum(X)) == float(X.sum())

    def test_signatures_are_those_of_bodies(self):
        for name in primitives:
            function = getattr(parprims, name)
            if name == "map_reduce":  # has no door
                continue
            shown, own = inspect.signature(function).parameters, inspect.signature(function.__wrapped__).parameters
            assert [*shown] == [one for one in own if own[one].annotation != "Never"]
            assert all(shown[one] == own[one] for one in shown)
            assert function.__doc__ == function.__wrapped__.__doc__
            assert (function.__module__, function.__qualname__) == (function.__wrapped__.__module__, name)
        with pytest.raises(TypeError, match=r"sum\(\) missing 1 required positional argument: 'x'"):
            parprims.sum()
        with pytest.raises(TypeError, match="sum has no option 'dim': it is called 'axis' here"):
            parprims.sum(X, dim=0)

    def test_equal_options_that_mean_others(self):
        plane = np.arange(6.0).reshape(2, 3)
        warm(lambda x: parprims.sum(x, axis=1), (plane,))
        for axis in (True, 1.0):
            with pytest.raises(TypeError, match="axis"):
                parprims.sum(plane, axis=axis)
        assert parprims.sum(plane, axis=np.int64(1)).tolist() == [3.0, 12.0]
        warm(lambda x: parprims.sort(x, descending=True), (X,))
        with pytest.raises(TypeError, match="descending"):
            parprims.sort(X, descending=1)
        warm(lambda x: parprims.sum(x, axis=(0, 1)), (plane,))
        with pytest.raises(TypeError, match="axis"):
            parprims.sum(plane, axis=(False, True))
        x, mask = np.ones(2), np.array([True, False])
        for zero in (0.0, -0.0, 0.0):
            padded, _ = warm(lambda x, m, zero=zero: parprims.select(x, m, size=2, fill_value=zero), (x, mask))
            assert np.signbit(padded[1]) == np.signbit(zero)

    def test_entries_of_tuples_have_types(self):
        options = [(1, (1, (2, 3))), (1, (1, (2.0, 3))), (1, (True, (2, 3))), (True, (1, (2, 3)))]
        assert len({*options}) == 1
        assert len({kinds(one) for one in options}) == len(options)

    def test_dtypes_and_layouts(self):
        wanted = {}
        for x in (X, X[::2], X[::-1], X.astype("f8"), X.astype(">f4"), X.reshape(2, 3), X.reshape(2, 3).T):
            for dtype in (None, np.float64, "float64", np.dtype("f8")):
                got = warm(lambda x, dtype=dtype: parprims.sum(x, dtype=dtype), (x,))
                assert got.dtype == (np.float64 if dtype or x.dtype == "f8" else np.float32)
                wanted.setdefault((x.dtype.str, x.shape), []).append(float(got))
        assert all(len({*found}) <= 2 for found in wanted.values())

    def test_operators_that_change(self):
        for scale in (1.0, 2.0, 1.0, 3.0):
            Settings.scale = scale
            for _ in range(3):
                assert float(parprims.reduce(X[:2], scaled)) == scale * (X[0] + X[1])

    def test_options_without_hash(self):
        assert parprims.partition(X, [1, 2])[1] == 0.5
        with pytest.raises(TypeError, match="axis"):
            parprims.sum(X, axis=[[0]])


class Settings:
    scale = 1.0


def scaled(earlier, later):
    return Settings.scale * (earlier + later)


@pytest.mark.once
class TestWarnings:
    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "?"])
    def test_of_nan_and_infinities(self, dtype):
        """NumPy is kept quiet only where it may warn; a signalling NaN is the most that it could warn of."""
        x = np.array([1, np.inf, -np.inf, np.nan, 0.0, -0.0, 6e4]) if dtype[0] == "f" else np.array([1, 0, 1, 1])
        x = x.astype(dtype)
        if dtype == "f4":
            x[4] = np.array([0x7F800001], np.uint32).view("f4")[0]
        names = (
            "sum prod max min any all argmax argmin cumulative_sum cumulative_max cumulative_min sort argsort".split()
        )
        with np.errstate(all="raise"), warnings.catch_warnings():
            warnings.simplefilter("error")
            for name in names:
                if dtype != "?" or not name.endswith(("max", "min")) or name.startswith("arg"):
                    warm(getattr(parprims, name), (x,))
                    warm(lambda x, name=name: getattr(parprims, name)(x, method="native"), (x,))
            for op in ("maximum", "minimum") if dtype != "?" else ():
                warm(lambda x, op=op: (parprims.reduce(x, op), parprims.scan(x, op)), (x,))
            for values in ((x,), (x, np.arange(len(x)))):
                warm(parprims.sort_by_key, (x, *values))

    def test_what_the_caller_was_told_stays(self, monkeypatch):
        def divide(x):
            return x / np.zeros(3)

        for way in ("by NumPy's own switch", "by numpy.errstate"):
            if way == "by numpy.errstate":
                monkeypatch.setattr(numpy_bridge, "_switch", None)
            quiet = numpy_bridge.quietly(divide)
            with np.errstate(all="raise"):
                assert np.isinf(quiet(np.ones(3))).all()
                with pytest.raises(FloatingPointError):
                    divide(np.ones(3))
                with pytest.raises(TypeError):
                    quiet(None)
                with pytest.raises(FloatingPointError):
                    divide(np.ones(3))


@pytest.mark.once
class TestOtherLibraries:
    def test_torch_in_other_states(self):
        torch = pytest.importorskip("torch")
        x = torch.tensor(X)
        warm(parprims.sum, (x,))
        warm(parprims.cumulative_prod, (x,))
        wanted = x.clone().requires_grad_()
        parprims.sum(wanted * wanted).backward()
        assert wanted.grad.tolist() == (2 * x).tolist()
        assert torch.func.vmap(parprims.sum)(x.reshape(2, 3)).tolist() == [6.0, 2.5]
        assert torch.func.grad(lambda x: parprims.sum(x * x))(x).tolist() == (2 * x).tolist()
        with torch.no_grad():
            assert not parprims.sum(wanted).requires_grad
        assert parprims.sum(wanted).requires_grad
        a = torch.ones(3, 3)
        warm(parprims.matmul, (a, a))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert parprims.matmul(a, a).dtype == torch.float32
        with parprims.explain() as calls:
            parprims.matmul(a, a)
        was = torch.get_float32_matmul_precision()
        try:
            torch.set_float32_matmul_precision("medium")
            entered_bodies = entered(lambda: parprims.matmul(a, a))
        finally:
            torch.set_float32_matmul_precision(was)
        assert "matmul" in entered_bodies
        assert calls[0].primitive == "matmul"
        assert parprims.sum(torch.conj(torch.tensor([1j, 2j]))).item() == -3j

    def test_torch_compiled(self):
        """A program comes to what computes a call without PyTorch's rules of derivatives on the way."""
        torch = pytest.importorskip("torch")
        from parprims._torch_compile.inputs import flat

        torch._dynamo.reset()
        x = torch.tensor(X)
        calls = {
            "sum": parprims.sum,
            "vecdot": lambda x: parprims.vecdot(x, x),
            "cumulative_sum": parprims.cumulative_sum,
            "sort": parprims.sort,
            "argmax": parprims.argmax,
        }
        for name, call in calls.items():
            program = torch.compile(call, backend="aot_eager", fullgraph=True)
            assert bits_of(NUMPY, warm(program, (x,))) == bits_of(NUMPY, call(x))
            names = entered(lambda program=program: program(x), within=str(Path(parprims.__file__).parent))
            assert not {"_define.<locals>.enter", name} & {*names}
            assert len(names) <= 16, names
        given = flat("sum", {"x": x.clone().requires_grad_()}, {}, "auto")
        (found,) = torch.ops.parprims.call_backward([torch.tensor(1.0)], [0], [True], *given)
        with pytest.raises(RuntimeError, match="has no derivative"):
            found.sum().backward()

    def test_jax_in_other_states(self):
        jax = pytest.importorskip("jax")
        x = jax.numpy.asarray(X)
        warm(parprims.sum, (x,))
        assert float(jax.jit(parprims.sum)(x)) == 8.5
        assert jax.grad(lambda x: parprims.sum(x * x))(x).tolist() == (2 * x).tolist()
        with jax.debug_nans(True), pytest.raises(FloatingPointError):
            parprims.sum(x.at[0].set(np.nan))
        assert np.isnan(parprims.sum(x.at[0].set(np.nan)))

    @pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
    def test_the_bench(self, library, capsys, monkeypatch):
        found = pytest.importorskip(library)
        if library == "torch":  # whose compiler of C++ takes long, and is not in question
            monkeypatch.setattr(found, "compile", functools.partial(found.compile, backend="eager"))
        assert small_calls.main(["sum", "linear_recurrence", "--backend", library, "--repeats", "1"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [one.split()[0] for one in lines] == ["call,", "sum", "linear_recurrence"]
