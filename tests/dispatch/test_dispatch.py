"""Which method runs, who is told, and what is refused."""

import asyncio
import importlib.util
import threading
import warnings

import numpy as np
import pytest
from array_api_compat import numpy as xp

import parprims
from parprims._core import scalars
from parprims._dispatch.dispatch import Checked, Method, Methods, directly, reasons, unordered
from parprims._dispatch.examples import Sample
from parprims._dispatch.primitive import declared
from parprims._primitives.recurrence import call as call_recurrence
from parprims._primitives.reduce import call as reduce_call
from parprims._primitives.scan import call as call_scan

X = np.array([3.0, 1.0, 2.0])
NUMBA = importlib.util.find_spec("numba") is not None


def sums_of_both(earlier, later):
    return earlier[0] + later[0], earlier[1] + later[1]


def method(run, refusal=None, slower=None):
    """Return a method given functions of the call's only argument."""
    reasons = [reason and (lambda _, call, reason=reason: reason(*call.arrays)) for reason in (refusal, slower)]
    return Method(directly(lambda _, call: run(*call.arrays)), *reasons)


def toy_of(**methods):
    """Return a function of a method's name and the call's only argument."""
    found = Methods("toy", unordered, **methods)
    return lambda name, x: found(name, xp, Checked(arrays=(x,)))


def toy(**reasons):
    """Return methods that return their name and argument; reasons are each one's (refusal, slower)."""

    def named(name):
        refusal, slower = reasons.get(name, (None, None))
        return method(lambda x: (name, x), lambda _: refusal, lambda _: slower)

    return toy_of(first=named("first"), second=named("second"), last=method(lambda x: ("last", x)))


class TestChoice:
    def test_auto_takes_the_first_that_serves(self):
        assert toy()("auto", 5) == ("first", 5)
        assert toy(first=("no", None))("auto", 5) == ("second", 5)
        assert toy(first=("no", None), second=("no", None))("auto", 5) == ("last", 5)

    def test_auto_passes_a_slower_one_by_and_tells(self):
        with parprims.explain() as calls:
            assert toy(first=("no", None), second=(None, "slow here"))("auto", 5) == ("last", 5)
        assert calls == [parprims.Call("toy", "last", {"first": "no", "second": "slow here"})]
        assert list(calls[0].refusals) == ["first", "second"]

    def test_a_slower_one_serves_when_asked_for(self):
        with parprims.explain() as calls:
            assert toy(first=(None, "slow here"))("first", 5) == ("first", 5)
        assert calls == [parprims.Call("toy", "first", {})]

    def test_a_refusal_is_an_error_when_asked_for(self):
        with parprims.explain() as calls, pytest.raises(parprims.MethodRefused) as error:
            toy(first=("the moon is full", None))("first", 5)
        assert str(error.value) == "toy: method 'first' refused: the moon is full"
        assert isinstance(error.value, RuntimeError)
        assert calls == []

    def test_unknown_method_names_the_choices(self):
        for method in ("vendor", "", "Array", None, 3):
            with pytest.raises(ValueError, match=r"^method must be one of auto, canonical, first, second, last, got "):
                toy()(method, 5)

    def test_refusals_see_the_arguments(self):
        short = toy_of(
            first=method(lambda _: "first", lambda x: "too long" if len(x) > 2 else None),
            last=method(lambda _: "last"),
        )
        assert [short("auto", "ab"), short("auto", "abc")] == ["first", "last"]

    def test_an_error_in_a_refusal_is_no_refusal(self):
        broken = toy_of(first=method(lambda x: x, lambda x: x.missing), last=method(lambda x: x))
        with pytest.raises(AttributeError):
            broken("auto", 5)


class TestExplain:
    def test_every_call_in_order(self):
        with parprims.explain() as calls:
            parprims.sum(X)
            parprims.max(X, method="array")
            parprims.reduce(np.ones(64), lambda earlier, _: earlier)
        assert [call.primitive for call in calls] == ["sum", "max", "reduce"]
        assert [call.method for call in calls] == ["native", "array", "kernel" if NUMBA else "array"]
        assert list(calls[0].refusals) == ["kernel"]
        assert calls[1].refusals == {}
        assert list(calls[2].refusals) == ([] if NUMBA else ["kernel", "native"])
        assert NUMBA or "<lambda>" in calls[2].refusals["native"]

    def test_nothing_after_the_block(self):
        with parprims.explain() as calls:
            parprims.sum(X)
        parprims.sum(X)
        assert len(calls) == 1

    def test_nested_blocks_both_see_the_inner_calls(self):
        with parprims.explain() as outer:
            parprims.sum(X)
            with parprims.explain() as inner:
                parprims.max(X)
            parprims.min(X)
        assert [call.primitive for call in outer] == ["sum", "max", "min"]
        assert [call.primitive for call in inner] == ["max"]

    def test_a_primitive_inside_a_primitive(self):
        def centred(x):
            return x - parprims.sum(x, method="array") / 3

        with parprims.explain() as calls:
            parprims.map_reduce(centred, X, method="array")
        assert [call.primitive for call in calls] == ["map_reduce", "sum"]

    def test_block_left_by_an_error(self):
        with pytest.raises(IndexError), parprims.explain() as calls:
            parprims.sum(X, axis=3)
        parprims.sum(X)
        assert calls == []

    def test_threads_do_not_see_each_other(self):
        together = threading.Barrier(2, timeout=30)
        seen = {}

        def work(function):
            with parprims.explain() as calls:
                together.wait()
                for _ in range(50):
                    function(X)
                together.wait()
            seen[function] = {call.primitive for call in calls}, len(calls)

        functions = (parprims.sum, parprims.max)
        threads = [threading.Thread(target=work, args=(function,)) for function in functions]
        with parprims.explain() as calls:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert seen == {parprims.sum: ({"sum"}, 50), parprims.max: ({"max"}, 50)}
        assert calls == []

    def test_tasks_do_not_see_each_other(self):
        async def work(function):
            with parprims.explain() as calls:
                for _ in range(5):
                    await asyncio.sleep(0)
                    function(X)
            return [call.primitive for call in calls]

        async def both():
            return await asyncio.gather(work(parprims.sum), work(parprims.max))

        assert asyncio.run(both()) == [["sum"] * 5, ["max"] * 5]


class TestMethods:
    def test_in_the_order_of_auto(self):
        found = parprims.methods(parprims.sort, X)
        assert list(found) == ["kernel", "native", "array"]
        reason = "NumPy is faster below" if NUMBA else "the arrays are not on a CUDA device, and Numba"
        assert found.pop("kernel").startswith(reason)
        assert found == {"native": None, "array": None}

    def test_tells_of_slower_ones(self):
        methods = toy(first=("no", "slow here"), second=(None, "slow here"))
        assert parprims.methods(lambda x: methods("auto", x), 5) == {"first": "no", "second": "slow here", "last": None}

    def test_nothing_is_computed_or_recorded(self):
        computed = []
        methods = toy_of(first=method(computed.append), last=method(computed.append))
        with parprims.explain() as calls:
            assert parprims.methods(methods, "auto", 5) == {"first": None, "last": None}
        assert (calls, computed) == ([], [])

    def test_arguments_are_checked_and_calls_go_on(self):
        with pytest.raises(IndexError, match="axis"):
            parprims.methods(parprims.sum, X, axis=3)
        assert float(parprims.sum(X)) == 6.0
        parprims.methods(parprims.sum, X)
        assert float(parprims.sum(X)) == 6.0

    def test_options_matter(self):
        first, second = np.eye(2), np.eye(2)
        assert parprims.methods(parprims.matmul, first, second)["native"] is None
        assert "tile" in parprims.methods(parprims.matmul, first, second, tile=2)["native"]

    def test_no_primitive_named(self):
        with pytest.raises(TypeError, match=r"^function must be a primitive of parprims, got (numpy.add|<ufunc)"):
            parprims.methods(np.add, X, X)
        with pytest.raises(TypeError, match=r"^function must be a primitive of parprims, got numpy.sort$"):
            parprims.methods(np.sort, X)

    def test_preferences_for_what_refuses_are_none(self):
        def run(x):
            return toy_of(
                first=method(lambda x: ("first", x), lambda _: "no"),
                second=method(lambda x: ("second", x), slower=lambda _: "slow here"),
                last=method(lambda x: ("last", x), lambda _: "no"),
            )("auto", x)

        assert parprims.methods(run, 5) == {"first": "no", "second": None, "last": "no"}
        with parprims.explain() as calls:
            assert run(5) == ("second", 5)
        assert calls == [parprims.Call("toy", "second", {"first": "no", "last": "no"})]


@pytest.mark.parametrize("name", sorted(declared))
@pytest.mark.parametrize("dtype", ["bool", "uint16", "uint64", "complex64"])
def test_auto_serves_what_any_method_does(backend, name, dtype):
    """A preference is no refusal, and what is listed is what happens, for every primitive."""
    example = declared[name].sampled(Sample((12,), dtype=dtype))
    if example is None:
        pytest.skip("takes floats only")
    arrays = [backend.asarray(x) for x in example.arrays]  # PyTorch has dtypes that it has no arithmetic for

    def call(method):
        return example(*arrays, method=method)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        served = [one for one in ("native", "array") if serves(call, one)]
        try:
            listed = parprims.methods(call, "auto")
            able = [one for one, why in reasons(call, "auto", named=True).items() if why is None]
        except (TypeError, ValueError):  # no method takes the dtype
            assert not served
            with pytest.raises((TypeError, ValueError)):
                call("auto")
            return
        if not served and not serves(call, "kernel"):  # a function of a map fails where the library has no arithmetic
            assert None not in listed.values()
            with pytest.raises((TypeError, ValueError)):
                call("auto")
            return
        assert served == [one for one in ("native", "array") if one in able]
        assert serves(call, "auto") == bool(able)
        assert (None in listed.values()) == bool(able)


def serves(call, method):
    """Return whether a method serves a call that takes it."""
    try:
        call(method)
    except (parprims.MethodRefused, TypeError, ValueError):
        return False
    return True


class TestRemembered:
    def test_options_of_other_types_are_others(self):
        """Also inside of tuples: True is no axis, though it equals 1."""
        x = np.ones((2, 3))
        for _ in range(2):
            assert parprims.sum(x, axis=(0, 1)) == 6
            with pytest.raises(TypeError, match="axis"):
                parprims.sum(x, axis=(False, True))

    def test_numbers_are_those_of_the_call(self, backend):
        """A call is found again by the type of a number alone, and goes on with its value, which is checked."""
        b = backend.asarray(np.arange(3, dtype=np.float32))
        whole = backend.asarray(np.arange(3, dtype=np.int8))
        array = backend.asarray(np.asarray(4, np.float32))

        def ends(x):
            return backend.to_numpy(x)[-1].item()

        for initial in (1.0, np.float32(-2.0), array, 3.0, array + 1):
            start = float(initial)
            assert ends(parprims.linear_recurrence(0.5, b, initial=initial)) == start / 8 + 2.5
            assert ends(parprims.linear_recurrence(start, b)) == start + 2
            assert ends(parprims.scan(b, initial=initial)) == start + 3
            assert ends(parprims.scan((b, b), sums_of_both, initial=(initial, 2.0))[0]) == start + 3
            assert float(parprims.reduce(b, initial=initial)) == start + 3
        for diag in (2.0, 4.0, np.float32(8.0)):
            assert ends(parprims.solve_tridiagonal(0.0, diag, 0.0, b)) == 2 / float(diag)
        for function in (parprims.scan, parprims.reduce):
            assert np.all(backend.to_numpy(function(whole, "maximum", initial=5)) == 5)
            with pytest.raises(ValueError, match=r"^initial must be in the range of int8, got 300"):
                function(whole, "maximum", initial=300)
            with pytest.raises(TypeError, match=r"^initial must fit dtype int8, got 5\.0"):
                function(whole, "maximum", initial=5.0)

    def test_calls_with_numbers_are_found_again(self, monkeypatch):
        calls = (
            lambda x: parprims.linear_recurrence(0.5, x, initial=x[0]),
            lambda x: parprims.scan(x, initial=x[0]),
            lambda x: parprims.reduce(x, initial=2.0),
            lambda x: parprims.solve_tridiagonal(-1.0, 4.0, -1.0, x),
        )
        once = [call(X) for call in calls]
        monkeypatch.setattr(Methods, "__call__", None)
        assert all(np.array_equal(call(X), first) for call, first in zip(calls, once, strict=True))

    def test_what_was_checked_is_not_checked_again(self, backend, monkeypatch):
        """Arrays of a call that is found again are taken as they are; JAX makes an array of a number once."""
        b = backend.asarray(np.arange(8.0).reshape(2, 4))
        first, number = b[:, 0], 0.3125  # of which no other test makes an array

        def results():
            found = [
                parprims.linear_recurrence(b, b, initial=first),
                parprims.scan(b, axis=1, initial=first),
                parprims.scan(b, axis=1, initial=number),
                parprims.linear_recurrence(number, b),
                parprims.solve_tridiagonal(number, 4.0, number, b),
                parprims.reduce(b, axis=1, initial=number),
            ]
            return [backend.to_numpy(one) for one in found]

        if backend.name not in ("numpy", "jax", "torch"):
            pytest.skip("its calls are not remembered, or its numbers are made on a GPU")
        once = results()
        for module in (scalars, call_scan, call_recurrence, reduce_call):
            monkeypatch.setattr(module, "admit", None)
        monkeypatch.setattr(reduce_call, "as_array", None)
        if backend.name == "jax":
            monkeypatch.setattr(backend.xp, "asarray", None)
        for one, again in zip(once, results(), strict=True):
            np.testing.assert_array_equal(one, again)

    def test_calls_with_derivatives_are_found_again(self, monkeypatch):
        torch = pytest.importorskip("torch")
        calls = (
            parprims.sum,
            parprims.prod,
            lambda x: parprims.sum(x, method="array"),
            lambda x: parprims.max(x, axis=0),
            lambda x: parprims.reduce(x, "logaddexp", axis=1),
            lambda x: parprims.reduce(x, "add", axis=1, initial=2.0),
            lambda x: parprims.map_reduce(torch.sin, x, axis=1),
            lambda x: parprims.vecdot(x, x),
            lambda x: parprims.cumulative_sum(x, axis=1),
            lambda x: parprims.cumulative_sum(x, axis=0, include_initial=True),
            lambda x: parprims.scan(x, axis=1, exclusive=True, reverse=True),
            lambda x: parprims.scan((x, x), "affine", axis=1, initial=(x[:, 0], 2.0))[1],
            lambda x: parprims.scan(x, axis=1, initial=1.0, method="array"),
            lambda x: parprims.cumulative_prod(x, axis=1),
            lambda x: parprims.cumulative_logsumexp(x, axis=1),
            lambda x: parprims.sort(x, descending=True),
            lambda x: parprims.sort_by_key(x, x * x)[1],
        )

        def derivatives(seed):
            x = torch.rand((3, 5), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            found = []
            for call in calls:
                one = x.clone().requires_grad_()
                y = call(one)
                (first,) = torch.autograd.grad(torch.sum(y * y), one, create_graph=True)
                (second,) = torch.autograd.grad(torch.sum(first * first), one)
                found.append((y.detach(), first.detach(), second))
            return found

        expected = derivatives(1)
        derivatives(2)
        with monkeypatch.context() as patch:
            original = Methods.__call__

            def forward_only(self, method, xp, call):
                assert not any(x.requires_grad for x in call.arrays), self.primitive
                return original(self, method, xp, call)

            patch.setattr(Methods, "__call__", forward_only)
            again = derivatives(1)
        for one, other in zip(expected, again, strict=True):
            assert all(map(torch.equal, one, other))
        with torch.no_grad():  # the same arrays, by which no derivative is asked for
            assert not any(
                call(torch.rand((3, 5), dtype=torch.float64, requires_grad=True)).requires_grad for call in calls
            )

    @pytest.mark.skipif(not NUMBA, reason="needs Numba")
    def test_kernels_for_cpus_warn_of_nothing(self):
        """Nor do the calls that they leave to operations of the library."""
        zero, many, empty = np.zeros(1), np.full((2, 300), 3e38, np.float32), np.ones((3, 0))
        with np.errstate(all="raise"):
            for _ in range(3):  # the last of which are remembered
                assert np.isinf(parprims.cumulative_sum(many, axis=1, method="kernel")[0, -1])
                assert np.isinf(parprims.sum(many, method="kernel"))
                found = parprims.solve_tridiagonal(zero, zero, zero, zero + 1, periodic=True, method="kernel")
                assert not np.isfinite(found).any()
                assert parprims.sum(empty, axis=1, method="kernel").tolist() == [0, 0, 0]
                assert parprims.matmul(empty, empty.T, add="maximum", method="kernel")[0, 0] == -np.inf
