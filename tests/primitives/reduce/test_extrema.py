"""Positions of extrema against a loop over the elements."""

import functools

import numpy as np
import pytest

import parprims
from parprims._primitives.reduce import extrema as reduce_extrema
from tests.fuzz import values
from tests.support.contract import compare, numpy_dtype, random
from tests.support.covering import lacks_dtype

METHODS = ("kernel", "native", "array")


def only_refused(_test, given):
    return lacks_dtype(given)


FUNCTIONS = {parprims.argmax: True, parprims.argmin: False}


def position(x, axis, keepdims, largest):
    """Return where the extrema are, by a loop: the first of equals, NaN before all."""
    rows = x.reshape(1, -1) if axis is None else np.moveaxis(x, axis, -1)
    found = np.empty(rows.shape[:-1], np.int64)
    for at in np.ndindex(found.shape):
        best = 0
        for i, other in enumerate(rows[at]):
            one = rows[at][best]
            if (other > one if largest else other < one) or (other != other and one == one):
                best = i
        found[at] = best
    if axis is None:
        return found.reshape((1,) * x.ndim if keepdims else ())
    return np.expand_dims(found, axis) if keepdims else found


def drawn(rng, shape, dtype):
    """Return numbers of which many are equal, and some NaN."""
    x = random(rng, shape, "int8").astype(numpy_dtype(dtype))
    if numpy_dtype(dtype).kind not in "iu" and rng.random() < 0.5:
        x = np.where(rng.random(shape) < 0.1, numpy_dtype(dtype).type(np.nan), x).astype(x.dtype)
    return x


class TestPosition:
    methods = METHODS

    def test_shapes(self, backend, run, method, rng, subtests):
        shapes = ((1,), (7,), (3, 5), (4, 1, 6)) if backend.name == "jax" else ((1,), (7,), (3, 5), (4, 1, 6), (5000,))
        for shape in shapes:
            x = drawn(rng, shape, "float32")
            for axis in (None, *range(-len(shape), len(shape))):
                keepdims = bool(rng.integers(2))
                with subtests.test(shape=shape, axis=axis, keepdims=keepdims):
                    for function, largest in FUNCTIONS.items():
                        found = run(function, backend.asarray(x), axis=axis, keepdims=keepdims, method=method)
                        compare(backend, found, position(x, axis, keepdims, largest))

    @pytest.mark.parametrize("dtype", ["uint8", "float32"])
    def test_long_lines(self, backend, rng, dtype):
        """Of elements side by side, and not, by the method that auto takes."""
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        x = drawn(rng, (64, 130), dtype)
        for array, same in ((backend.asarray(x), x), (backend.asarray(x.T.copy()).T, x)):
            for axis in (None, 0, 1):
                for function, largest in FUNCTIONS.items():
                    found = function(array, axis=axis, keepdims=axis == 1)
                    compare(backend, found, position(same, axis, axis == 1, largest))

    @pytest.mark.parametrize("dtype", ["int8", "uint64", "bfloat16", "float64"])
    @pytest.mark.parametrize("function", FUNCTIONS)
    @pytest.mark.parametrize("axis", [None, 1])
    def test_dtypes(self, backend, run, method, rng, dtype, function, axis):
        if not backend.supports(dtype):
            pytest.skip(f"{backend.name} has no {dtype} arithmetic")
        x = drawn(rng, (9, 40), dtype)
        found = run(function, backend.asarray(x), axis=axis, method=method)
        compare(backend, found, position(x, axis, False, FUNCTIONS[function]))

    @pytest.mark.parametrize("axis", [None, 0])
    @pytest.mark.parametrize("place", [np.s_[::2, :], np.s_[:, 3:17], "T"], ids=str)
    def test_views(self, backend, run, method, rng, place, axis):
        x = drawn(rng, (40, 30), "float32")
        part, view = (one.T if place == "T" else one[place] for one in (backend.asarray(x), x))
        compare(backend, run(parprims.argmax, part, axis=axis, method=method), position(view, axis, False, True))

    def test_special_values(self, backend, run, method):
        for x in ([-np.inf, -np.inf], [np.inf, np.nan, np.nan], [-0.0, 0.0, -0.0], [2.0, np.inf, np.inf]):
            x = np.array(x)
            for function, largest in FUNCTIONS.items():
                compare(backend, run(function, backend.asarray(x), method=method), position(x, None, False, largest))


@pytest.mark.sanitize
def test_long_lines_by_kernels(gpu, rng):
    """By blocks that share a line, in vectors and not, along rows, columns and all axes in either order."""
    x = drawn(rng, (3, 40_007), "float32")
    array, step = gpu.asarray(x), -3 if gpu.negative_strides else 3
    for part, view in (
        (array[0, 1:], x[0, 1:]),
        (array[1, ::step], x[1, ::step]),
        (array, x),
        (array.T, x.T),
    ):
        for axis in (None, 0, 1)[: view.ndim + 1]:
            for function, largest in FUNCTIONS.items():
                found = function(part, axis=axis, method="kernel")
                compare(gpu, found, np.asarray((np.argmax if largest else np.argmin)(view, axis)))


@pytest.mark.emulator
def test_kernels_read_no_positions(gpu, rng):
    if gpu.name != "emulated" and not gpu.streams:
        pytest.skip("JAX has launches in its programs")
    (launch,) = parprims.launches(parprims.argmax, gpu.asarray(drawn(rng, (70_000,), "float32")), method="kernel")
    assert "in0" in launch.parameters
    assert not {"in1", "out1"} & set(launch.parameters)


def test_index_dtype(backend):
    for method in ("auto", "array"):
        found = parprims.argmax(backend.asarray(np.arange(3.0)), method=method)
        assert found.dtype == backend.xp.argmax(backend.asarray(np.arange(3.0))).dtype
        assert found.shape == ()


@pytest.mark.parametrize("wide", [False, True])
def test_more_elements_than_positions(wide):
    jax = pytest.importorskip("jax")
    with jax.enable_x64(wide):
        for length in (2**31, 2**31 + 1):
            search = functools.partial(
                jax.eval_shape, lambda x: parprims.argmax(x, method="native"), jax.ShapeDtypeStruct((length,), "int8")
            )
            if wide or length == 2**31:
                assert search().shape == ()
            else:
                with pytest.raises(ValueError, match=r"^x must have no more than 2\^31 elements"):
                    search()


class TestBools:
    methods = METHODS

    @pytest.mark.parametrize("function", FUNCTIONS)
    @pytest.mark.parametrize("axis", [None, 0, 1])
    def test_position(self, backend, run, method, rng, function, axis):
        x = rng.random((3, 50)) < 0.05
        for _ in range(2):  # the second call is a warm one
            found = run(function, backend.asarray(x), axis=axis, method=method)
            compare(backend, found, position(x, axis, False, FUNCTIONS[function]))

    @pytest.mark.parametrize("function", FUNCTIONS)
    @pytest.mark.parametrize("axis", [None, 0, 1, 2])
    def test_pieces(self, backend, run, method, rng, monkeypatch, function, axis):
        """Positions are written piece by piece, along every axis and of all elements."""
        monkeypatch.setattr(reduce_extrema, "_PIECE", 7)
        x = drawn(rng, (3, 20, 2), "float32")
        found = run(function, backend.asarray(x), axis=axis, method=method)
        compare(backend, found, position(x, axis, False, FUNCTIONS[function]))


def test_nothing_named(backend):
    x = backend.asarray(np.ones((3, 0)))
    for function in FUNCTIONS:
        for options in ({}, {"axis": 1}):
            with pytest.raises(ValueError, match=r"^x must not be empty along the axes of an arg"):
                function(x, **options)
        assert function(x, axis=0).shape == (0,)
        with pytest.raises(TypeError, match=r"^x must have an? .* dtype"):
            function(backend.xp.astype(x, backend.xp.complex64), axis=0)
        with pytest.raises(TypeError, match=r"^axis must be an integer"):
            function(x, axis=(0, 1))
        with pytest.raises(TypeError, match=r"^keepdims must be True or False"):
            function(x, axis=0, keepdims=1)


def test_torch_compile(rng):
    """One node of the graph, also where lengths are symbols, and by operations in torch.func."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(random(rng, (3, 40), "float64"))
    program = torch.compile(lambda x: parprims.argmin(x, axis=-1), fullgraph=True, dynamic=True, backend="aot_eager")
    for one in (x, x[:2], x[0, :5]):
        assert torch.equal(program(one), one.argmin(-1))
    assert torch.equal(torch.func.vmap(parprims.argmax)(x), x.argmax(-1))


# ---- What the fuzz makes of it (tests/fuzz finds these by their names) ----------------------------------------

WRONG_OPTIONS: dict = {}


def draw(d, name):
    """Return a valid call, whose result is held against the loop."""
    x = d.values(d.shape(), d.dtype(*values.REAL))
    array, x = d.array(x)
    axis = None if x.ndim == 0 or d.chance(0.3) else d.axis(x.ndim)
    options = {"axis": axis} if axis is not None or d.chance(0.5) else {}
    keepdims = d.flag()
    options |= {"keepdims": keepdims} if keepdims or d.chance(0.3) else {}
    if (x.size if axis is None else x.shape[axis]) == 0:
        return values.Call(name, [array], options, lambda _: None, {"x"})
    expected = values.Expected(position(x, axis, bool(keepdims), name == "argmax"), None)
    return values.Call(name, [array], options, lambda got: values.differs(d.backend, got, expected))
