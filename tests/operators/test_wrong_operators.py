"""Operators that are wrong: the sentence that says what is, and those that change their arguments in place."""

import contextlib
import importlib.util
import itertools
import math
import tracemalloc
import warnings

import numpy as np
import pytest
from array_api_compat import array_namespace

import parprims
from parprims._cpu import compiler as cpu
from parprims._operators import in_place
from parprims._operators.function_key import lasting_key
from parprims._operators.operator import nearest
from tests.support.contract import compare


def _doubled(x):
    return x + x


def _paired(x):
    return x, -x


def _joined(earlier, later):
    return earlier[0] + later[0], earlier[1] + later[1]


class TestSentences:
    """What is wrong with an operator is said of it, by name, before or instead of what a library makes of it."""

    def calls(self, backend, **way):
        x = backend.asarray(np.arange(1.0, 7.0))
        square = backend.asarray(np.ones((3, 3)))
        parts = {"offsets": backend.asarray(np.array([0, 4, 6])), "initial": 0.0, **way}
        ids = backend.asarray(np.array([0, 1, 0, 0, 1, 1]))
        return {
            "scan by offsets": lambda op: parprims.scan(x, op, **parts),
            "exclusive scan by offsets": lambda op: parprims.scan(x, op, exclusive=True, **parts),
            "reduce by offsets": lambda op: parprims.reduce(x, op, **parts),
            "map_reduce by offsets": lambda op: parprims.map_reduce(abs, x, op=op, **parts),
            "segment_reduce": lambda op: parprims.segment_reduce(x, ids, 2, op, initial=0.0, **way),
            "scan": lambda op: parprims.scan(x, op, **way),
            "reduce": lambda op: parprims.reduce(x, op, **way),
            "map_reduce": lambda op: parprims.map_reduce(abs, x, op=op, **way),
            "add": lambda op: parprims.matmul(square, square, add=op, **way),
            "multiply": lambda op: parprims.matmul(square, square, multiply=op, **way),
            "check_associative": lambda op: parprims.check_associative(op, x),
        }

    @pytest.mark.parametrize(
        ("combine", "words"),
        [
            (lambda e, later: max(e, later), "branches on the value of an array: use where"),
            (lambda e, later: math.exp(e) + later, "makes a number of an array: use functions of the array library"),
            (lambda e, later: int(e) + later, "makes a number of an array: use functions of the array library"),
            (lambda e, later: 0.5, "returned float, not an array"),  # noqa: ARG005
            (lambda e, later: [e + later], "returned list, not an array"),
            (lambda e, later: None, "returned NoneType, not an array .it has no return"),  # noqa: ARG005
            (lambda e, later: "text", "returned str, not an array"),  # noqa: ARG005
            (lambda e, later: {"sum": e + later}, "returned dict, not an array"),
            (lambda e, later: (e, later), "returned 2 components for elements of 1"),
            (lambda e, later: e < later, "returned bool for component 0, which has dtype float64"),
        ],
    )
    def test_of_what_it_does(self, backend, subtests, combine, words):
        for name, call in self.calls(backend, method="array").items():
            with (
                subtests.test(function=name),
                pytest.raises(TypeError, match=rf"^op tried {words}"),
            ):
                call(parprims.Operator(combine, name="tried", identity=0))

    def test_of_its_shape(self, backend, subtests):
        xp = backend.xp
        calls = self.calls(backend, method="array")
        for combine in (lambda e, later: xp.sum(e + later), lambda e, later: (e + later)[..., None]):
            for name in {*calls} - {"add", "multiply"}:
                with (
                    subtests.test(function=name),
                    pytest.raises(ValueError, match=r"op tried returned shape \(.*\) for component 0, which has shape"),
                ):
                    calls[name](parprims.Operator(combine, name="tried", identity=0))

    def test_of_another_library(self, backend, subtests):
        if backend.name in ("numpy", "emulated"):
            pytest.skip("needs two libraries")
        for name, call in self.calls(backend, method="array").items():
            with (
                subtests.test(function=name),
                pytest.raises(
                    TypeError,  # in a program of JAX arrays have no values that NumPy could be given
                    match=r"^op tried (returned an array of NumPy, given arrays of [\w-]+"
                    r"|gives arrays of JAX to NumPy): use functions",
                ),
            ):
                call(parprims.Operator(lambda e, later: backend.to_numpy(e) + 0 * len(later.shape), name="tried"))

    def test_other_failures_keep_their_words(self, backend, subtests):
        def fails(_, __):
            raise KeyError("own")

        for name, call in self.calls(backend, method="array").items():
            with subtests.test(function=name), pytest.raises(KeyError, match="own") as caught:
                call(fails)
            notes = [note for note in caught.value.__notes__ if "JAX" not in note]  # which tells of its own frames
            assert notes == ["Raised by op fails."]

    def test_refusals_name_the_operator(self, backend, subtests):
        """By segments too, where the operator that is combined is made of it."""
        for name, call in self.calls(backend, method="native").items():
            with subtests.test(function=name):
                said = ""
                try:
                    call(parprims.Operator(lambda e, later: e + later, name="tried", identity=0))
                except parprims.MethodRefused as refused:
                    said = str(refused)
                assert "segmented(" not in said
                assert "operator" not in said or "operator tried" in said

    @pytest.mark.parametrize(
        ("fn", "error", "words"),
        [
            (lambda x: x if x > 2 else -x, TypeError, "branches on the value of an array: use where"),
            (lambda x: float(x) * x, TypeError, "makes a number of an array: use functions of the array library"),
            (lambda x: 0.5, TypeError, "returned float, not an array"),  # noqa: ARG005
            (lambda x: [x], TypeError, "returned list, not an array"),
            (lambda x: None, TypeError, "returned NoneType, not an array"),  # noqa: ARG005
            (lambda x: (x, 0.5), TypeError, "returned float for component 1, not an array"),
            (lambda x: (), TypeError, "returned no array"),  # noqa: ARG005
            (lambda x: x[:3], ValueError, r"returned shape \(3,\), which does not broadcast"),
        ],
    )
    def test_of_a_map(self, backend, fn, error, words):
        with pytest.raises(error, match=f"^fn {words}"):
            parprims.map_reduce(fn, backend.asarray(np.arange(6.0)), method="array")

    def test_traced_by_jax(self, backend):
        if backend.name != "jax":
            pytest.skip("only JAX traces")
        import jax

        x = backend.asarray(np.arange(6.0))
        branching = parprims.Operator(lambda e, later: e if e.any() else later, name="tried")
        for method in ("array", "native"):
            with pytest.raises(TypeError, match=r"^op tried branches on the value of an array: use where"):
                jax.jit(lambda x, method=method: parprims.scan(x, branching, method=method))(x)

    def test_of_a_name(self):
        for given, meant in (("mximum", "maximum"), ("sum", "add"), ("logical-or", "logical_or"), ("max", "maximum")):
            with pytest.raises(ValueError, match=f"got {given!r}: did you mean {meant!r}"):
                parprims.reduce(np.ones(3), given)
        with pytest.raises(ValueError, match=r"got 'frobnicate'$"):
            parprims.reduce(np.ones(3), "frobnicate")
        assert nearest(["array"], ["array"]) == ""
        assert nearest("kernal", ["kernel", "native"]) == ": did you mean 'kernel'?"

    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"identity": [1, 0]}, TypeError, "^identity must be a scalar, a tuple of scalars or a callable, got list"),
            ({"identity": "zero"}, TypeError, "^identity must be .* got str"),
            ({"identity": (0, None)}, TypeError, "^identity must be .* got a tuple with NoneType"),
            ({"identity": np.zeros(2)}, TypeError, "^identity must be .* got ndarray"),
            (
                {"identity": (1,), "components": 2},
                ValueError,
                "^identity must have 2 entries, one per component, got 1",
            ),
            (
                {"identity": (1, 0), "components": 1},
                ValueError,
                "^identity must have 1 entry, one per component, got 2",
            ),
            ({"commutative": "yes"}, TypeError, "^commutative must be True or False"),
            ({"components": 2.0}, TypeError, "^components must be an integer"),
            ({"components": 0}, ValueError, "^components must be at least 1"),
            ({"name": 3}, TypeError, "^name must be a string"),
        ],
    )
    def test_of_an_operator_as_it_is_made(self, options, error, words):
        with pytest.raises(error, match=words):
            parprims.Operator(lambda e, later: e + later, **options)

    @pytest.mark.parametrize(
        ("identity", "dtypes", "error", "words"),
        [
            ((1,), ("int64", "int64"), ValueError, "must have 2 entries, one per component, got 1"),
            (0, ("int64", "int64"), ValueError, "must have 2 entries, one per component, got 1"),
            ((0, 0), ("int64",), ValueError, "must have 1 entry, one per component, got 2"),
            (0.5, ("int64",), TypeError, "must fit int64, got 0.5"),
            (300, ("int8",), TypeError, "must fit int8, got 300"),
            (-1, ("uint8",), TypeError, "must fit uint8, got -1"),
            (2, ("bool",), TypeError, "must fit bool, got 2"),
            (1j, ("float64",), TypeError, "must fit float64, got 1j"),
            (lambda *_: [0], ("float64",), TypeError, "must be a scalar, a tuple of scalars or a callable, got list"),
            (lambda *_: (0, 0), ("float64",), ValueError, "must have 1 entry, one per component, got 2"),
        ],
    )
    def test_of_an_identity_in_use(self, backend, subtests, identity, dtypes, error, words):
        op = parprims.Operator(
            lambda _, later: later,
            identity=identity,
            name="tried",
        )
        xs = tuple(backend.asarray(np.ones(4, dtype=dtype)) for dtype in dtypes)
        x = xs if len(xs) > 1 else xs[0]
        for name, call in {
            "scan": lambda: parprims.scan(x, op, exclusive=True),
            "reduce": lambda: parprims.reduce(tuple(one[:0] for one in xs) if len(xs) > 1 else x[:0], op),
            "check_associative": lambda: parprims.check_associative(op, x),
        }.items():
            with subtests.test(function=name), pytest.raises(error, match=f"^the identity of op tried {words}"):
                call()

    @pytest.mark.parametrize(
        ("op", "dtype", "words"),
        [
            ("maximum", "bool", "dtype must be an integer or floating dtype for op maximum, got bool"),
            ("multiply", "bool", "dtype must be an integer, floating or complex dtype for op multiply, got bool"),
            ("bitwise_and", "float32", "dtype must be a bool or integer dtype for op bitwise_and, got float32"),
            ("logaddexp", "int32", "dtype must be a floating dtype for op logaddexp, got int32"),
            ("logical_or", "float32", "dtype must be a bool dtype for op logical_or, got float32"),
        ],
    )
    def test_of_a_dtype_asked_for(self, backend, subtests, op, dtype, words):
        """The option is wrong, not the elements."""
        for name, call in self.calls(backend, dtype=dtype).items():
            if name in ("add", "multiply", "check_associative"):
                continue
            with subtests.test(function=name), pytest.raises(TypeError, match=f"^{words}$"):
                call(op)
        x = backend.asarray(np.arange(6.0))
        flags = x > 2
        for function in (parprims.scan, parprims.reduce):
            with pytest.raises(
                TypeError, match=r"^dtype\[0\], the dtype of the flags of op segmented\(add\), must be bool"
            ):
                function((flags, x), parprims.segmented("add"), dtype=("int32", "float64"))

    @pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
    def test_of_arrays_without_elements(self, backend, subtests, shape):
        """What `methods` promises runs, and what it does not is said of the operator, or of the map."""
        x, begin = backend.asarray(np.ones(shape)), {"axis": 1, "initial": 0.0}
        for function, arguments, options in (
            (parprims.reduce, (x, lambda e, _: [e]), begin),
            (parprims.map_reduce, (lambda v: [v], x), begin),
            (parprims.map_reduce, (lambda v: v + v, x), begin),
            (parprims.scan, (x, lambda e, _: [e]), {"axis": 1}),
        ):
            with subtests.test(function=function.__name__):
                promised = parprims.methods(function, *arguments, **options)["array"] is None
                raised = (
                    contextlib.nullcontext() if promised else pytest.raises(TypeError, match="returned list, not an")
                )
                with raised:
                    function(*arguments, **options, method="array")

    def test_of_entries_of_initial(self, backend, subtests):
        """Also where all but the initial element is as in a call before."""
        x, offsets = backend.asarray(np.arange(6.0)), backend.asarray(np.array([0, 4, 6]))
        calls = {
            "reduce": lambda x, initial: parprims.reduce(x, initial=initial),
            "scan": lambda x, initial: parprims.scan(x, initial=initial),
            "map_reduce": lambda x, initial: parprims.map_reduce(_doubled, x, initial=initial),
            "map_reduce to pairs": lambda x, initial: parprims.map_reduce(
                _paired, x, op=_joined, initial=(*initial, initial[0])
            ),
            "reduce by offsets": lambda x, initial: parprims.reduce(x, initial=initial, offsets=offsets),
        }
        for name, call in calls.items():
            with subtests.test(function=name):
                call(x, (1.0,))
                for wrong in ((1.0, 2.0), (1.0, 2.0, 3.0, 4.0)):
                    with pytest.raises(ValueError, match=r"^initial must have [12] entr.*, one per component, got"):
                        call(x, wrong)

    def test_of_the_values_of_a_map(self, backend, subtests):
        """The map is wrong, not the arrays."""
        x, offsets = backend.asarray(np.arange(6.0)), backend.asarray(np.array([0, 4, 6]))
        for way in ({}, {"offsets": offsets}):
            with subtests.test(way=way.keys()):
                with pytest.raises(TypeError, match=r"^the result of fn must have an integer"):
                    parprims.map_reduce(lambda x: x > 2, x, op="maximum", **way)
                with pytest.raises(
                    ValueError, match=r"^op maximum works on a single array, the result of fn is a tuple"
                ):
                    parprims.map_reduce(lambda x: (x, x), x, op="maximum", **way)
                with pytest.raises(ValueError, match=r"^op affine works on tuples of 2 arrays, the result of fn has 1"):
                    parprims.map_reduce(lambda x: x, x, op="affine", **way)

    def test_of_flags(self, backend):
        flags, x = backend.asarray(np.array([1, 0, 1])), backend.asarray(np.array([1.0, 2.0, 3.0]))
        for function in (parprims.scan, parprims.reduce):
            with pytest.raises(TypeError, match=r"^x\[0\], the flags of op segmented\(add\), must have dtype bool"):
                function((flags, x), parprims.segmented("add"))
            with pytest.raises(TypeError, match=r"^x\[1\], the flags of op .*, must have dtype bool, got float64"):
                function((x > 0, x, x), parprims.segmented(parprims.segmented("add")))
            with pytest.raises(TypeError, match=r"^x must have a bool dtype for op logical_or in component 1"):
                function((x > 0, x), parprims.segmented("logical_or"))
            with pytest.raises(ValueError, match=r"^x\[0\], the flags of op .*, must broadcast to the shape \(3,\)"):
                function((x[:2] > 0, x), parprims.segmented("add"))


def standard(earlier, later):
    return array_namespace(earlier).maximum(earlier, later)


_larger = np.frompyfunc(max, 2, 1)


def of_numpy(earlier, later):
    return _larger(earlier, later).astype(float)


def of_torch(earlier, later):
    import torch

    return torch.special.i0e(earlier) + later


def of_jax(earlier, later):
    import jax.scipy

    return jax.scipy.special.i0e(earlier) + later


def branching(earlier, later):
    return earlier if earlier > later else later


def as_number(earlier, later):
    return float(earlier) + later


def of_one(earlier):
    return earlier


def of_four(a, b, c, d):
    return a + c, b + d


def fails(_, __):
    raise KeyError("own")


def returns(made):
    def combine(earlier, later):
        return made(earlier + later)

    return combine


RIGHT = {"sum": lambda earlier, later: earlier + later, "last": lambda e, later: 0 * e + later, "standard": standard}
STRANGE = {"numpy": of_numpy, "torch": of_torch, "jax": of_jax}
WRONG = {
    "branch": branching,
    "number": as_number,
    "one argument": of_one,
    "four arguments": of_four,
    "error": fails,
    "list": returns(lambda y: [y]),
    "list of two": returns(lambda y: [y, y]),
    "none": returns(lambda _: None),
    "dtype": returns(lambda y: y > 1),
    "shape": returns(lambda y: y[..., None]),
    "pair": returns(lambda y: (y, y)),
}


def calls_with(backend, op):
    """Return calls of every function that takes an operator, each a function of options."""
    x, square = backend.asarray(np.ones(6, np.float32)), backend.asarray(np.ones((3, 3), np.float32))
    ids, offsets = backend.asarray(np.array([0, 0, 1, 1, 2, 2])), backend.asarray(np.array([0, 2, 6]))
    op = parprims.Operator(op, identity=0, name="tried")
    return {
        "reduce": lambda **way: parprims.reduce(x, op, **way),
        "scan": lambda **way: parprims.scan(x, op, **way),
        "map_reduce": lambda **way: parprims.map_reduce(lambda one: one + one, x, op=op, **way),
        "map": lambda **way: parprims.map_reduce(lambda one: op.combine(one, one), x, **way),
        "reduce by offsets": lambda **way: parprims.reduce(x, op, offsets=offsets, **way),
        "scan by offsets": lambda **way: parprims.scan(x, op, offsets=offsets, **way),
        "segment_reduce": lambda **way: parprims.segment_reduce(x, ids, 3, op, **way),
        "matmul, add": lambda **way: parprims.matmul(square, square, add=op, **way),
        "matmul, multiply": lambda **way: parprims.matmul(square, square, multiply=op, **way),
    }


class TestPromises:
    """What methods() says of an operator is so: what serves runs, what does not raises, and so does auto."""

    @pytest.mark.parametrize("name", [*RIGHT, *STRANGE, *WRONG])
    def test_are_kept(self, backend, subtests, name):
        if name in STRANGE:
            pytest.importorskip(name)
        for function, call in calls_with(backend, {**RIGHT, **STRANGE, **WRONG}[name]).items():
            with subtests.test(function=function), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # NumPy's, of tensors that it is given
                if (function, name) == ("map", "pair"):  # which no method is asked about
                    for way in (lambda call=call: parprims.methods(call), call):
                        with pytest.raises(
                            ValueError, match=r"^op add works on a single array, the result of fn is a tuple of 2"
                        ):
                            way()
                    continue
                found = parprims.methods(call)
                if name in RIGHT:
                    assert None in found.values()
                elif name in WRONG and (function != "map" or name not in ("dtype", "shape")):
                    assert None not in found.values()
                for method, reason in found.items():
                    if reason is None:
                        call(method=method)
                    elif not any(words in reason for words in ("prefer", "faster", "less time", "as fast")):
                        with pytest.raises((TypeError, ValueError, KeyError, parprims.MethodRefused)):
                            call(method=method)
                if None in found.values():
                    call()
                else:
                    with pytest.raises((TypeError, ValueError, KeyError)) as caught:
                        call()
                    named = (str(caught.value), *getattr(caught.value, "__notes__", ()))
                    assert any("op tried" in one or one.startswith(("fn ", "Raised by fn")) for one in named), named

    def test_cost_nothing(self, backend, subtests):
        """To ask of more elements than any memory holds takes no memory, and the operator sees a few elements."""
        if backend.name not in ("numpy", "torch"):
            pytest.skip("needs arrays that are larger than memory")
        one = backend.asarray(np.ones((1, 1), np.float32))
        x = np.broadcast_to(one, (2**20, 2**24)) if backend.name == "numpy" else one.expand(2**20, 2**24)
        seen = []

        def op(earlier, later):
            seen.append(math.prod(getattr(earlier, "shape", ())))
            return earlier if (earlier > later).any() else later

        def fn(one):
            seen.append(math.prod(getattr(one, "shape", ())))
            return one + one

        for name, call in {
            "reduce": lambda: parprims.reduce(x, op),
            "rows": lambda: parprims.reduce(x, op, axis=1),
            "scan": lambda: parprims.scan(x, op),
            "columns": lambda: parprims.scan(x, op, axis=0),
            "map_reduce": lambda: parprims.map_reduce(fn, x, op=op),
            "matmul": lambda: parprims.matmul(x, x.T, add=op),
        }.items():
            with subtests.test(call=name):
                seen.clear()
                tracemalloc.start()
                parprims.methods(call)
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert peak < 2**20
                assert seen
                assert max(seen) <= 4096

    def test_of_one_element_nothing_is_combined(self, backend):
        one = backend.asarray(np.ones(1, np.float32))
        for function in (parprims.reduce, parprims.scan):
            assert None in parprims.methods(function, one, branching).values()
            function(one, branching)


class TestRemedies:
    """A message says what to do, and names what its reader knows."""

    def message(self, backend, op, x=None):
        x = backend.asarray(np.ones(4)) if x is None else x
        with pytest.raises(TypeError) as caught:
            parprims.reduce(x, parprims.Operator(op, name="tried"), method="array")
        assert "array_api_compat.numpy" not in str(caught.value)
        assert "tracing" not in str(caught.value)
        return str(caught.value)

    def test_of_lists_and_arguments(self, backend):
        x = backend.asarray(np.ones(4))
        assert "return a tuple of 2 arrays" in self.message(backend, lambda e, f: [e[0] + f[0], e[1]], (x, x))
        assert "return the array itself" in self.message(backend, lambda e, f: [e + f])
        for op in (of_one, of_four):
            assert "op tried must take two elements" in self.message(backend, op)
            assert "arrive as tuples" in self.message(backend, op)
        with pytest.raises(TypeError, match=r"^fn must take as many arrays as are given, which are 2: "):
            parprims.map_reduce(lambda one: one, x, x, method="array")
        with pytest.raises(TypeError, match=r"^fn returned list, not an array: return a tuple of 2 arrays"):
            parprims.map_reduce(lambda one: [one, one], x, method="array")

    def test_of_other_libraries(self, backend):
        pytest.importorskip("jax")
        torch = pytest.importorskip("torch")
        family = {"jax-cuda": "jax", "torch-cuda": "torch"}.get(backend.name, backend.name)
        for name, op in STRANGE.items():
            if name == family or (name, family) == ("numpy", "torch"):
                continue
            if name == "numpy" and family != "jax":
                continue
            assert "array_api_compat.array_namespace(x)" in self.message(backend, op), name
        if family == "numpy":
            x = torch.ones(4)
            with pytest.raises(TypeError, match=r"^b is an array of PyTorch, but a is one of NumPy"):
                parprims.linear_recurrence(np.ones(4), x)

    def test_refusals_name_no_stand_in(self, backend):
        pytest.importorskip("jax")
        if not importlib.util.find_spec("numba"):
            pytest.skip("needs a kernel")
        reason = parprims.methods(parprims.scan, backend.asarray(np.ones(4)), of_jax)["kernel"]
        if "of_jax" not in reason:
            pytest.skip(reason)
        assert "bessel_i0e" in reason
        assert "Scalar" not in reason

    def test_of_threads(self, monkeypatch):
        from parprims._cpu import limits

        monkeypatch.setenv("PARPRIMS_NUM_THREADS", "abc")
        limits._in_environment.cache_clear()
        with pytest.raises(ValueError, match=r"^PARPRIMS_NUM_THREADS must be a positive integer, got 'abc'"):
            limits.limit()
        limits._in_environment.cache_clear()


def augmented(earlier, later):
    earlier += later
    return earlier


def later_augmented(earlier, later):
    later += earlier
    return later


def assigned(earlier, later):
    earlier[...] = earlier + later
    return earlier


def emptied(earlier, later):
    later[...] = 0
    return earlier


def first_augmented(earlier, later):
    (a, b), (c, d) = earlier, later
    a += c
    return a, b + d


WORDS = "changes its argument in place: return a new array"


class TestInPlace:
    """An operator or map that works in place is refused, at the first call too, and damages nothing."""

    def arrays(self, backend):
        return [np.arange(1, 13).reshape(3, 4), np.zeros((3, 4), dtype=np.float32), np.ones((0, 4), dtype=np.int8)]

    def calls(self, x, combine):
        op = parprims.Operator(combine, identity=0, commutative=True)
        yield lambda **way: parprims.scan(x, combine, **way)
        yield lambda **way: parprims.scan(x, op, initial=0, exclusive=True, **way)
        yield lambda **way: parprims.reduce(x, combine, axis=1, **way)
        yield lambda **way: parprims.reduce(x, op, axis=1, initial=0, **way)
        yield lambda **way: parprims.map_reduce(lambda one: one, x, op=op, axis=1, **way)
        yield lambda **way: parprims.scan(x, combine, axis=0, offsets=[0, 1, 3], **way)
        yield lambda **way: parprims.reduce(x, op, axis=0, offsets=[0, 1, 3], **way)
        yield lambda **way: parprims.matmul(x, x.T, add=op, **way)
        yield lambda **way: parprims.matmul(x, x.T, multiply=combine, **way)

    @pytest.mark.parametrize("combine", [augmented, later_augmented, assigned, emptied])
    def test_operator(self, backend, combine):
        if backend.name.startswith("jax"):
            pytest.skip("JAX's arrays never change")
        methods = ("array", "kernel") if backend.cuda else ("array", "auto")
        for values in self.arrays(backend)[:2]:
            x = backend.asarray(values.copy())
            for method, call in itertools.product(methods, self.calls(x, combine)):
                for _ in range(3):  # what was seen at a call before must not let the next one pass
                    name = rf"({combine.__name__}|segmented\({combine.__name__}\))"
                    with pytest.raises(TypeError, match=rf"^op {name} {WORDS}$"):
                        call(method=method)
            compare(backend, x, values)

    def test_map(self, backend):
        if backend.name.startswith("jax"):
            pytest.skip("JAX's arrays never change")
        for values in self.arrays(backend)[:2]:
            x = backend.asarray(values.copy())
            for method in ("array", "kernel") if backend.cuda else ("array", "auto"):
                for fn in (lambda x: augmented(x, x + 1), lambda x: emptied(x, x)):
                    for options in ({}, {"axis": 0, "offsets": [0, 1, 3]}):
                        with pytest.raises(TypeError, match=rf"^fn {WORDS}$"):
                            parprims.map_reduce(fn, x, method=method, **options)
            compare(backend, x, values)

    def test_component(self, backend):
        if backend.name.startswith("jax"):
            pytest.skip("JAX's arrays never change")
        x, y = (backend.asarray(np.arange(6.0)) for _ in range(2))
        for call in (parprims.scan, parprims.reduce):
            for method in ("array", "kernel") if backend.cuda else ("array",):
                with pytest.raises(TypeError, match=rf"^op first_augmented {WORDS}$"):
                    call((x, y), first_augmented, method=method)
                op = parprims.segmented(parprims.Operator(first_augmented, components=2))
                with pytest.raises(TypeError, match=rf"^op segmented\(first_augmented\) {WORDS}$"):
                    call((x > 0, x, y), op, method=method)
        compare(backend, (x, y), (np.arange(6.0), np.arange(6.0)))

    def test_jax_makes_another_array(self, backend):
        if not backend.name.startswith("jax"):
            pytest.skip("JAX's arrays never change")
        x = backend.asarray(np.arange(1.0, 7.0))
        compare(backend, parprims.scan(x, augmented), np.cumsum(np.arange(1.0, 7.0)))
        compare(backend, parprims.reduce(x, later_augmented), 21.0)
        compare(backend, x, np.arange(1.0, 7.0))

    def test_own_arrays_may_change(self, backend):
        def careful(earlier, later):
            total = earlier + later
            total += 1
            return total

        x = np.arange(1.0, 7.0)
        for method in ("array", "kernel") if backend.cuda else ("array",):
            compare(backend, parprims.scan(backend.asarray(x), careful, method=method), np.cumsum(x) + np.arange(6))

    def test_tried_once(self, backend):
        if backend.name.startswith("jax"):
            pytest.skip("JAX's arrays never change")

        class Calls:
            count = 0

        def counting(earlier, later):
            Calls.count += 1
            return earlier + later

        def calls(function, dtype="float32"):
            Calls.count = 0
            x = backend.asarray(np.ones(1000, dtype=dtype))
            parprims.reduce(x, function, method="array")
            return Calls.count

        first, again, third = (calls(counting) for _ in range(3))
        assert first > again == third
        assert calls(counting, "float64") > calls(counting, "float64") == again
        operator = parprims.Operator(counting)
        assert calls(operator) == again

        def made():
            return lambda earlier, later: earlier + later + 0 * len(seen)

        seen = []
        key = lasting_key(made())
        parprims.reduce(backend.asarray(np.ones(9)), made(), method="array")
        known = len(in_place._tried)
        for _ in range(3):  # made anew for every call, but from the same code
            parprims.reduce(backend.asarray(np.ones(9)), made(), method="array")
        assert len(in_place._tried) == known
        assert any(one == key for one, _ in in_place._tried)

    def test_check_associative(self, backend):
        if backend.name.startswith("jax"):
            pytest.skip("JAX's arrays never change")
        for combine in (augmented, later_augmented, assigned, emptied):
            x = backend.asarray(np.arange(6.0))
            with pytest.raises(TypeError, match=rf"^op {combine.__name__} {WORDS}$"):
                parprims.check_associative(combine, x)
            compare(backend, x, np.arange(6.0))

    def test_torch_of_any_kind(self, backend):
        if backend.name != "torch":
            pytest.skip("PyTorch's modes")
        import torch

        for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
            with mode():
                x = torch.arange(6.0, requires_grad=mode is torch.enable_grad)
                with pytest.raises(TypeError, match=WORDS):
                    parprims.reduce(x, lambda a, b: a.detach().add_(b), method="array")
                assert x.detach().tolist() == list(range(6))
                assert parprims.reduce(x, lambda a, b: a + b, method="array").item() == 15
        # Where nobody counts changes the operator works on copies.
        x = torch.arange(6.0).reshape(2, 3)
        result = torch.func.vmap(lambda one: parprims.scan(one, lambda a, b: a.add_(b), method="array"))(x)
        assert result.tolist() == x.cumsum(1).tolist()
        assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.once
def test_messages_help():
    """An error says what to do, and calls a library by the name that its users know."""
    x = np.arange(5.0)
    with pytest.raises(TypeError, match=r"^op must be a name, .* got tuple: the arrays come before the operator$"):
        parprims.scan(max, (x, x))
    refused = {
        "native": (lambda e, f: e + f, "^reduce: method 'native' refused: NumPy has no reduction with the operator"),
        "kernel": (lambda e, f: math.exp(e) + f, "functions of math do .use the array library's.$"),
    }
    if cpu.refusal() is not None:
        del refused["kernel"]
    for method, (op, words) in refused.items():
        with pytest.raises(parprims.MethodRefused, match=words):
            parprims.reduce(x, op, method=method)
