"""Options of every type: the result of Python's own spelling, or an error that names the option."""

import functools
import importlib
import inspect
import math
import re
import warnings

import numpy as np
import pytest

import parprims
from parprims._dispatch.dispatch import primitives
from parprims._dispatch.examples import Sample
from parprims._dispatch.primitive import examples
from tests.fuzz.run import FUNCTIONS

X = np.array([3.0, 1.0, 2.0, 5.0, 4.0])
PLANE = X[None, :] + np.zeros((2, 1))
EXAMPLES = examples(lambda: Sample((5,), dtype="float64")) | examples(lambda: Sample((5, 5), axis=1, dtype="float64"))
"""A call of every function, on arrays of two dimensions if the function takes them."""
ARRAYS = {"zi", "sorter", "weights", "ids", "initial", "op", "add", "multiply", "axis_name", "offsets"}
"""Parameters that this file leaves out: arrays, elements and functions."""
NAMES = {"l_and_u": "l_and_u|ab", "matrices": "matrices|a|axis"}
"""The names in an error about an option that is right by itself, but not with these arrays."""


class Index:
    """An object that stands for an integer."""

    def __index__(self):
        return 1


def _tensors():
    """Return nested, sparse and meta tensors. A nested tensor raises when its shape is read."""
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        return ()
    two = [torch.ones(2), torch.ones(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = [torch.nested.nested_tensor(two, layout=one) for one in (torch.strided, torch.jagged)]
        return (*nested, torch.eye(2).to_sparse(), torch.ones(2).to_sparse(), torch.ones(1, device="meta"))


VALUES = {
    "zero": (np.int64(0), np.int8(0), np.array(0), np.array(0, np.uint8)),
    "one": (np.int64(1), np.array(1), np.array(1, np.int32)),
    "minus one": (np.int16(-1), np.array(-1)),
    "list": ([0, 1], np.array([0, 1]), range(2), (np.int64(0), 1), [np.int32(0), np.array(1)]),
    "list of one": ([1], np.array([1]), (np.int64(1),)),
    "list of three": ([1, 1, 1], np.array([1, 1, 1])),
    "shares": ([0.25, 0.5], np.array([0.25, 0.5]), (np.float32(0.25), np.float64(0.5))),
    "a share": (np.float64(0.25), np.float32(0.25), np.array(0.25)),
    "a flag": (np.True_,),
    "a word": (np.str_("native"), np.str_("left"), np.str_("float32")),
    "of two dimensions": (np.zeros((1, 1)), [[0]], np.ones((2, 2))),
    "others": ({0}, {}, {0: 1}, frozenset({0}), "text", "0", b"0", None, math.nan, np.float64(math.nan), 1j, Index),
    "more": (
        object(),
        (),
        [],
        np.zeros(0),
        np.array(None),
        np.array("a"),
        np.datetime64("2020"),
        np.timedelta64(0, "s"),
    ),
    "an index": (Index(),),
    "tensors": _tensors(),
}


def spelled(value):
    """Return an option as Python's own numbers and tuples."""
    if isinstance(value, np.ndarray) and value.ndim < 2:
        return spelled(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | range | tuple):
        return tuple(map(spelled, value))
    return 1 if isinstance(value, Index) else value


def bound(name):
    """Return the arguments of a call by name."""
    one = EXAMPLES[name]
    return inspect.signature(one.function).bind(*one.args, **one.options)


def options_of(name):
    """Return the options of a function, those among its positional arguments first."""
    parameters = inspect.signature(primitives[name]).parameters
    positional = {one: value for one, value in bound(name).arguments.items() if one not in ("arrays", "values")}
    plain = [one for one, value in positional.items() if isinstance(value, int | float | tuple)]
    keywords = [one for one, it in parameters.items() if it.kind is it.KEYWORD_ONLY or it.default is not it.empty]
    return [one for one in dict.fromkeys((*plain, *keywords)) if one not in ARRAYS]


def called(name, option, value):
    """Return the leaves of a result, or the error."""
    call = bound(name)
    call.arguments[option] = value
    try:
        found = primitives[name](*call.args, **call.kwargs)
    except (TypeError, ValueError, IndexError, parprims.MethodRefused) as error:
        return error
    return [np.asarray(one).tolist() for one in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.once
@pytest.mark.parametrize("name", sorted(set(primitives)))
def test_options(name, subtests):
    for option in options_of(name):
        for value in (one for values in VALUES.values() for one in values):
            with subtests.test(option=option, value=repr(value)):
                first, again = called(name, option, value), called(name, option, value)
                if isinstance(first, Exception):
                    assert str(first) == str(again)
                    said = str(first)
                    named = isinstance(first, parprims.MethodRefused) or re.match(
                        rf"^({NAMES.get(option, option)})\b|^.*\b{option}\b", said
                    )
                    assert named, said
                    assert "unhashable" not in said
                else:
                    assert repr(first) == repr(again)
                    assert repr(first) == repr(called(name, option, spelled(value)))


@pytest.mark.once
def test_what_numpy_takes():
    """A list, an array and a number of NumPy, where NumPy and SciPy take them."""
    for q in ([0.25, 0.5], np.array([0.25, 0.5]), np.float32(0.25), np.array(0.25)):
        np.testing.assert_allclose(parprims.quantile(X, q), np.quantile(X, q))
    for kth in ([1, 2], np.array([1, 2]), np.int8(1), np.array(1)):
        got, wanted = parprims.partition(X, kth), np.partition(X, kth)
        np.testing.assert_array_equal(got[kth], wanted[kth])
    for options in (
        {"bins": np.int64(3)},
        {"bins": np.array(3)},
        {"bins": [1, 2, 4]},
        {"bins": (1.0, 2.5, 4.0)},
        {"bins": range(5)},
        {"bins": 3, "range": [0, 9]},
        {"bins": 3, "range": np.array([0, 9.5])},
    ):
        for got, wanted in zip(parprims.histogram(X, **options), np.histogram(X, **options), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-15)
    for offsets in ([0, 2, 5], (0, 2, 5), range(6)):
        expected = np.add.reduceat(X, list(offsets)[:-1])
        np.testing.assert_array_equal(parprims.reduce(X, offsets=offsets), expected)
    for pair in ([1, 1], np.array([1, 1]), (np.int64(1), 1)):
        ab = np.stack([np.ones(5), np.full(5, 4.0), np.ones(5)])
        np.testing.assert_array_equal(parprims.solve_banded(pair, ab, X), parprims.solve_banded((1, 1), ab, X))
    for tile in ([1, 2, 3], np.array([1, 2, 3]), np.int64(2)):
        np.testing.assert_allclose(parprims.matmul(PLANE, PLANE.T, tile=tile), PLANE @ PLANE.T)
    assert parprims.top_k(X, np.array(2))[1].tolist() == [3, 4]
    np.testing.assert_allclose(parprims.median(PLANE, axis=[0, 1]), np.median(PLANE, axis=[0, 1]))


def test_lists_beside_other_libraries(backend):
    x = backend.asarray(X)
    assert backend.to_numpy(parprims.reduce(x, offsets=[0, 2, 5])).tolist() == [4.0, 11.0]
    assert backend.to_numpy(parprims.scan(x, offsets=[0, 2, 5])).tolist() == [3.0, 4.0, 2.0, 7.0, 11.0]
    assert backend.to_numpy(parprims.sort(x, offsets=(0, 2, 5))).tolist() == [1.0, 3.0, 2.0, 4.0, 5.0]
    assert backend.to_numpy(parprims.linear_recurrence(x, x, offsets=[0, 5])).shape == (5,)
    assert backend.to_numpy(parprims.histogram(x, [1, 2, 4])[0]).tolist() == [1, 3]
    assert backend.to_numpy(parprims.quantile(x, [0.0, 1.0])).tolist() == [1.0, 5.0]
    assert backend.to_numpy(parprims.top_k(x, backend.asarray(np.array(2)))[0]).tolist() == [5.0, 4.0]
    with pytest.raises(ValueError, match=r"^bins must be edges that ascend"):
        parprims.histogram(x, [1, 4, 2])


def test_numbers_of_numpy_beside_other_libraries(backend):
    """Coefficients, offsets, edges and quantiles of NumPy or SciPy are taken beside arrays of any library."""
    x = backend.asarray(X)
    b, a, sos = np.array([0.5, 0.25]), np.array([1.0, -0.5]), np.array([[0.5, 0.25, 0.0, 1.0, -0.5, 0.0]])
    filtered = np.asarray(parprims.lfilter(b, a, X))
    for got in (
        parprims.lfilter(b, a, x),
        parprims.lfilter([0.5, 0.25], (1.0, -0.5), x),
        parprims.lfilter(backend.asarray(b), a, x, zi=np.zeros(1))[0],
        parprims.sosfilt(sos, x),
    ):
        np.testing.assert_allclose(backend.to_numpy(got), filtered)
    for offsets in (np.array([0, 2, 5]), np.array([0, 2, 5], np.int32), np.array([5, 2, 0])[::-1]):
        assert backend.to_numpy(parprims.reduce(x, offsets=offsets)).tolist() == [4.0, 11.0]
        assert backend.to_numpy(parprims.scan(x, offsets=offsets)).tolist() == [3.0, 4.0, 2.0, 7.0, 11.0]
        assert backend.to_numpy(parprims.sort(x, offsets=offsets)).tolist() == [1.0, 3.0, 2.0, 4.0, 5.0]
        assert backend.to_numpy(parprims.linear_recurrence(x, x, offsets=offsets)).shape == (5,)
    assert backend.to_numpy(parprims.histogram(x, np.array([1.0, 2.0, 4.0]))[0]).tolist() == [1, 3]
    assert backend.to_numpy(parprims.quantile(x, np.array([0.0, 1.0]))).tolist() == [1.0, 5.0]
    for wrong in ([0, 5, 3, 5], [1, 5], [0, 6]):
        with pytest.raises(ValueError, match=r"^offsets must ascend from 0 to the length of the axis, 5"):
            parprims.scan(x, offsets=np.array(wrong))


@pytest.mark.once
def test_numbers_of_numpy_that_jax_would_round():
    jax = pytest.importorskip("jax")
    with jax.enable_x64(False):
        x = jax.numpy.asarray(X)
        assert parprims.lfilter(np.array([0.5]), np.array([1.0, -0.25]), x).dtype == np.float32
        assert parprims.reduce(x, offsets=np.array([0, 2, 5])).tolist() == [4.0, 11.0]
        with pytest.raises(TypeError, match=r"^b is an array of NumPy, and JAX would round its float64 numbers"):
            parprims.lfilter(np.array([0.1]), np.array([1.0]), x)
        with pytest.raises(TypeError, match=r"^offsets is an array of NumPy, and JAX would round its int64 numbers"):
            parprims.reduce(x, offsets=np.array([0, 2**40]))


WRONG = ([0, 5, 3, 6], [0, 3, 5], [1, 3, 6], [0], [0, 7], [-1, 6], [6, 0], [0, 6, 0, 6], [6])


@pytest.mark.parametrize(
    "name", ["reduce", "map_reduce", "scan", "linear_recurrence", "sort", "argsort", "sort_by_key"]
)
def test_wrong_offsets(backend, name, subtests):
    """Refused by every function that takes them, in the memory of a CPU, first and later."""
    x = backend.asarray(np.arange(6.0, dtype=np.float32))
    on_gpu = backend.name in ("cupy", "torch-cuda", "jax-cuda")
    calls = {
        "map_reduce": functools.partial(parprims.map_reduce, lambda x: x + x, x),
        "linear_recurrence": functools.partial(parprims.linear_recurrence, x, x),
        "sort_by_key": functools.partial(parprims.sort_by_key, x, x),
    }
    call = calls.get(name) or functools.partial(getattr(parprims, name), x)
    for wrong in WRONG:
        right = np.linspace(0, 6, len(wrong)).astype(int) if len(wrong) > 1 else np.array([0, 6])
        long = len(wrong) > 1
        for given in (backend.asarray(np.array(wrong, np.int32)), *(() if on_gpu else (wrong, tuple(wrong)))):
            with subtests.test(wrong=wrong, given=type(given).__name__):
                call(offsets=backend.asarray(right.astype(np.int32)))
                if long:
                    call(offsets=backend.asarray(right.astype(np.int32)))
                options = {"check": True} if on_gpu else {}
                for _ in range(2):
                    with pytest.raises(ValueError, match=r"^offsets must ascend from 0 to the length of the axis, 6"):
                        call(offsets=given, **options)
    assert call(offsets=backend.asarray(np.array([0, 6], np.int32)), check=False) is not None


@pytest.mark.once
def test_many_wrong_offsets():
    """More than Python compares one by one, in a call that is remembered."""
    x, right = np.arange(1000.0), np.arange(1001)
    for at in (0, 500, 999, 1000):
        wrong = right.copy()
        wrong[at] += 2 if at < 1000 else -3
        parprims.scan(x, offsets=right)
        parprims.scan(x, offsets=right)
        with pytest.raises(ValueError, match=r"^offsets must ascend"):
            parprims.scan(x, offsets=wrong)


def test_ids_outside_are_left_out(backend, subtests):
    """Negative ids, and ids that are not below the number of segments, by every method."""
    x, ids = np.arange(1.0, 9.0, dtype=np.float32), np.array([-(2**31), -1, 0, 2, 2, 3, 4, 2**31 - 1], np.int32)
    for ascending in (False, True):
        for name, reason in parprims.methods(
            parprims.segment_reduce, backend.asarray(x), backend.asarray(ids), 3, indices_are_sorted=ascending
        ).items():
            if reason is None:
                with subtests.test(method=name):
                    got = parprims.segment_reduce(
                        backend.asarray(x), backend.asarray(ids), 3, indices_are_sorted=ascending, method=name
                    )
                    assert backend.to_numpy(got).tolist() == [3.0, 0.0, 9.0]


def test_a_number_searched_for(backend, subtests):
    for dtype in ("int8", "int32", "float32", "float64"):
        x = backend.asarray(np.array([1, 3, 3, 7], dtype))
        for value in (2.5, 3, 3.0, 0, 9, -1, 1000, -1000, 10**400, -(10**400), math.inf, -math.inf, 1e300, 7.5):
            for side in ("left", "right"):
                with subtests.test(dtype=dtype, value=str(value)[:9], side=side):
                    below = sum(one < value or (side == "right" and one == value) for one in (1, 3, 3, 7))
                    got = parprims.searchsorted(x, value, side=side)
                    assert got.shape == ()
                    assert int(got) == below
        assert int(parprims.searchsorted(x, math.nan)) == 4


@pytest.mark.once
def test_hints():
    """Messages name what is to be written."""
    ones = np.ones(5)
    for call, words in (
        (
            lambda: parprims.quantile(X, 0.5, method="lower"),
            "^method must name an implementation, got 'lower': ",
        ),
        (lambda: parprims.solve_tridiagonal(ones[1:], ones, ones, ones), r"^lower .*lower\[0\]"),
        (lambda: parprims.solve_tridiagonal(ones, ones, ones[1:], ones), r"^upper .*upper\[n-1\]"),
        (lambda: parprims.scan((X, X), "affine", initial=[1.0, 0.0]), "^initial must be a tuple of 2"),
        (lambda: parprims.reduce((X, X), "affine", initial=[1.0, 0.0]), "^initial must be a tuple of 2"),
        (lambda: parprims.quantile(X, ()), "^q must hold at least one"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call()


def test_an_option_that_is_traced():
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(X)
    with pytest.raises(TypeError, match=r"^k must have a value .* static_argnums"):
        jax.jit(parprims.top_k)(x, 2)
    with pytest.raises(TypeError, match=r"^size must have a value .* static_argnames"):
        jax.jit(lambda x, size: parprims.unique(x, size=size))(x, 2)
    with pytest.raises(TypeError, match=r"^descending must be True or False, got .*: name it in static_argnums"):
        jax.jit(lambda x, down: parprims.sort(x, descending=down))(x, True)


WORDS = {
    "dim": "axis", "keepdim": "keepdims", "dims": "axis", "init": "initial", "func": "op", "decreasing": "descending",
    "largest": "mode", "inclusive": "exclusive", "right": "side", "ascending": "descending", "return_index":
    "return_indices", "trans": "transpose", "total_repeat_length": "size", "weight": "weights", "engine": "method",
    "metod": "method", "axes_name": "axis_name", "keepdimz": "keepdims", "interpolatin": "interpolation",
}  # fmt: skip
"""Options of other libraries and misspelled ones, and the option that is meant where a function has it."""


@pytest.mark.once
@pytest.mark.parametrize("name", sorted({*FUNCTIONS} - {"check_associative"}))
def test_options_of_other_libraries(name):
    """An option that a function has not is an error that names it, and the one that is meant, in warm calls too."""
    one = EXAMPLES[name]
    function, args, options = one.function, one.args, one.options
    own = inspect.signature(function).parameters
    assert "others" not in own
    function(*args, **options)
    for word, meant in {**WORDS, "out": None, "check_finite": None, "anything": None}.items():
        for call in (function, functools.partial(parprims.methods, function)):
            with pytest.raises(TypeError, match=f"^{name} has no option {word!r}: ") as raised:
                call(*args, **options, **{word: 1})
            assert meant not in own or re.search(rf"(?<!\w){meant}(?!\w)", str(raised.value)), str(raised.value)


def by_place(name):
    """Return a function that takes the options of a call by position, after all its positional arguments."""
    one = EXAMPLES[name]
    first = [it for it in inspect.signature(one.function).parameters.values() if it.kind is not it.KEYWORD_ONLY]
    args = [*one.args, *(it.default for it in first[len(one.args) :])]
    return functools.partial(one.function, *args)


def keywords_of(name):
    parameters = inspect.signature(EXAMPLES[name].function).parameters.values()
    return {it.name: it.default for it in parameters if it.kind is it.KEYWORD_ONLY}


WITHOUT_REST = sorted({*FUNCTIONS} - {"map_reduce", "sort_by_key", "check_associative"})
"""The functions that take a fixed number of arguments by position."""


@pytest.mark.once
@pytest.mark.parametrize("name", WITHOUT_REST)
def test_options_by_position(name):
    """The error of options by position has them with their names, in warm calls too."""
    one, options, call = EXAMPLES[name], keywords_of(name), by_place(name)
    one.function(*one.args, **one.options)
    defaults = [value for option, value in options.items() if option != "axis_name"]
    words = [f"{option}={value!r}" for option, value in options.items() if option != "axis_name"]
    with pytest.raises(TypeError, match=rf"^{name} takes \d arguments? by position, got \d+: write ") as raised:
        call(*defaults)
    assert str(raised.value).endswith(f": write {', '.join(words)}")
    given = {"axis": 0, "dtype": np.float32, "initial": np.ones(100), "keepdims": True, "interpolation": "lower"}
    for option in options.keys() & given.keys():
        names = list(options)
        before = [options[one] for one in names[: names.index(option)]]
        with pytest.raises(TypeError, match=f"write .*{option}="):
            call(*before, given[option])
    if "axis" in options:
        for axis in (0, -1, np.int64(1), (0, 1)):
            with pytest.raises(TypeError, match=re.escape(f": write axis={axis!r}"[:25])):
                call(axis)
    for value in (object(), b"bytes"):
        with pytest.raises(
            TypeError, match=r"(options are given by their names, .*method|write (fill_value|initial)=)"
        ):
            call(value)


@pytest.mark.once
def test_options_after_all_arrays():
    with pytest.raises(TypeError, match=r"^values\[1\] must be an array, got int: options are given by their names"):
        parprims.sort_by_key(np.ones(3), np.ones(3), 0)
    with pytest.raises(TypeError, match=r"^arrays\[1\] must be an array, got str: options are given by their names"):
        parprims.map_reduce(abs, np.ones(3), "add")
    with pytest.raises(TypeError, match=r"^check_associative takes 2 arguments by position, got 3: write rtol=0\.5$"):
        parprims.check_associative("add", np.ones(3), 0.5)
    for call in (parprims.reduce, parprims.scan):
        with pytest.raises(TypeError, match=r"^op must be a name, .*, got int: write axis=0$"):
            call(np.ones((3, 3)), 0)
    ids = np.array([0, 1, 0])
    for op, written in (("add", r"'add'"), ("sum", "op"), (np.add, "op"), (parprims.Operator(max), "op")):
        shown = rf"write segment_reduce\(x, ids, num_segments, {written}\)$"
        for more in ((), (2,)):
            with pytest.raises(TypeError, match=rf"^num_segments must be an integer, got .+: {shown}"):
                parprims.segment_reduce(np.ones(3), ids, op, *more)


OTHER_VALUES = {
    "mode": {"min": "smallest", "MAX": "largest", "smalest": "smallest"},
    "side": {"l": "left", "Right": "right"},
    "interpolation": {"low": "lower", "high": "higher", "mid": "midpoint", "Linear": "linear"},
    "pivot": {"Partial": "partial", True: "partial", False: "none"},
    "precision": {"tensorfloat32": "tf32", "HIGHEST": "highest", "high": "highest", "fp32": "float32"},
    "method": {"cuda": "kernel", "numpy": "native", "Kernel": "kernel"},
}
"""Values of options as other libraries spell them, and as they are spelled here."""


@pytest.mark.once
@pytest.mark.parametrize("name", sorted({*FUNCTIONS} - {"check_associative"}))
def test_values_of_other_libraries(name):
    one = EXAMPLES[name]
    for option in keywords_of(name).keys() & OTHER_VALUES.keys():
        for value, meant in OTHER_VALUES[option].items():
            with pytest.raises(ValueError, match=f"^{option} must .*, got {value!r}: did you mean {meant!r}\\?$"):
                one.function(*one.args, **{**one.options, option: value})
        with pytest.raises(ValueError, match=f"^{option} must .*, got 'zzz'$"):
            one.function(*one.args, **{**one.options, option: "zzz"})


@pytest.mark.once
@pytest.mark.parametrize("name", sorted({*FUNCTIONS} - {"check_associative"}))
def test_masks_of_numbers(name):
    """Numbers in the place of bools are an error that shows how to make a mask of them."""
    arguments = inspect.signature(EXAMPLES[name].function).parameters
    for number in ("int64", "uint8", "float32"):
        call = bound(name)
        if "mask" in arguments:
            call.arguments["mask"] = call.arguments["mask"].astype(number)
            with pytest.raises(TypeError, match=f"^mask must have dtype bool, got {number}: write mask != 0$"):
                EXAMPLES[name].function(*call.args, **call.kwargs)
        elif "op" in arguments and name in ("reduce", "scan"):
            flags, x = np.ones(5, number), np.ones(5)
            with pytest.raises(TypeError, match=r"^x\[0\], the flags of .*, must have dtype bool.*: write flags != 0$"):
                EXAMPLES[name].function((flags, x), parprims.segmented("add"))


class _Sparse:
    """An object with a shape and a dtype that is no array of a library, as SciPy's sparse arrays are."""

    shape, dtype, ndim = (5,), np.dtype("float64"), 1


@pytest.mark.once
@pytest.mark.parametrize(
    ("named", "call"),
    [
        ("x", lambda x: parprims.histogram(x, [0, 1, 2])),
        ("x1", lambda x: parprims.searchsorted(x, 2.5)),
        ("x", lambda x: parprims.reduce(x, offsets=[0, 5])),
        ("x", lambda x: parprims.scan(x, "add", offsets=(0, 5))),
        ("x", lambda x: parprims.sort(x, offsets=range(0, 6, 5))),
        ("keys", lambda x: parprims.sort_by_key(x, X, offsets=[0, 5])),
        ("a", lambda x: parprims.linear_recurrence(x, X, offsets=[0, 5])),
        ("a", lambda x: parprims.linear_recurrence(x, X, offsets=np.array([0, 5]))),
        ("b", lambda x: parprims.linear_recurrence(0.5, x)),
    ],
)
def test_objects_that_are_no_arrays_are_named(named, call):
    """Lists and numbers beside it become arrays of its library before anything is checked."""
    for value, kind in ((_Sparse(), "_Sparse"), (np.ndarray, "type")):
        with pytest.raises(TypeError, match=rf"^{named} must be an array, got {kind}"):
            call(value)
