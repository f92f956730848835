"""Cumulative functions from the end, exclusive, after an initial element and by segments, against loops."""

import math

import numpy as np
import pytest

import parprims
from tests.primitives.segments.test_segment_states import FORMS, SHAPES, formed, loop, of_segments
from tests.primitives.segments.test_segments import METHODS, cuts
from tests.support.contract import check_derivatives, compare, eps

LEAST, MOST = -(2**63), 2**63 - 1
FUNCTIONS = {
    "sum": (parprims.cumulative_sum, lambda x, y: (x[0] + y[0],), 0),
    "prod": (parprims.cumulative_prod, lambda x, y: (x[0] * y[0],), 1),
    "max": (parprims.cumulative_max, lambda x, y: (np.maximum(x[0], y[0]),), LEAST),
    "min": (parprims.cumulative_min, lambda x, y: (np.minimum(x[0], y[0]),), MOST),
    "logsumexp": (parprims.cumulative_logsumexp, lambda x, y: (np.logaddexp(x[0], y[0]),), -math.inf),
}


class TestOptions:
    methods = METHODS

    @pytest.mark.parametrize("name", FUNCTIONS)
    @pytest.mark.parametrize("form", [None, *FORMS])
    @pytest.mark.parametrize("exclusive", [False, True])
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("by_offsets", [False, True])
    @pytest.mark.parametrize("case", range(len(SHAPES)))
    def test_loop(self, backend, run, method, rng, name, form, exclusive, reverse, by_offsets, case):
        function, combine, identity = FUNCTIONS[name]
        shape, axis = SHAPES[case]
        floats = name == "logsumexp"
        dtype = "float64" if floats else "int64"
        offsets = np.concatenate(
            [[0], cuts(rng, shape[axis], 5), [shape[axis]] * 2] if by_offsets else [[0, shape[axis]]]
        )
        x = rng.integers(-1, 2, shape).astype(dtype)
        start = of_segments(rng, shape, axis, len(offsets) - 1, dtype)
        options = {"axis": axis, "exclusive": exclusive, "reverse": reverse, "method": method}
        if by_offsets:
            options["offsets"] = backend.asarray(offsets)
        elif form in ("segment", "segments"):
            form = "line"
        if form is None:
            start = np.full_like(start, identity)
        else:
            given, start = formed(start, form, axis)
            options["initial"] = given if form == "number" else backend.asarray(given)
        ((expected,), _) = loop((x,), combine, (start,), offsets, axis, reverse=reverse, exclusive=exclusive)
        bound = 100 * eps(dtype) * (1 + np.where(np.isfinite(expected), abs(expected), 0)) if floats else 0
        compare(backend, run(function, backend.asarray(x), **options), expected, bound)

    @pytest.mark.parametrize("name", ["sum", "prod"])
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("n", [0, 1, 9])
    def test_include_initial(self, backend, run, method, rng, name, reverse, n):
        """The first result is the initial element, in reverse the last."""
        function, combine, identity = FUNCTIONS[name]
        x = rng.integers(-2, 3, (2, n, 3))
        for start in (None, 5, rng.integers(-9, 10, (2, 3))):
            initial = start if start is None or isinstance(start, int) else backend.asarray(start)
            begin = np.broadcast_to(np.asarray(identity if start is None else start), (2, 3))[:, None]
            ((rest,), _) = loop((x,), combine, (begin,), [0, n], 1, reverse=reverse)
            expected = np.concatenate([rest, begin] if reverse else [begin, rest], axis=1)
            options = {"axis": 1, "reverse": reverse, "include_initial": True, "initial": initial}
            compare(backend, run(function, backend.asarray(x), method=method, **options), expected)

    @pytest.mark.parametrize("name", ["sum", "prod"])
    def test_derivatives_by_the_initial_element(self, backend, run, method, rng, name):
        if backend.family not in ("torch", "jax"):
            pytest.skip("has no derivatives")
        function = FUNCTIONS[name][0]
        for n in (0, 4):
            x = rng.standard_normal((n, 2))

            def value(start, x=x):
                options = {"axis": 0, "include_initial": True, "reverse": True, "method": method}
                return run(function, backend.asarray(x), initial=start, **options)

            check_derivatives(backend, value, (rng.standard_normal(2),))


def test_wrong_options(backend):
    x, offsets = backend.asarray(np.ones(4)), backend.asarray(np.array([0, 2, 4]))
    for function in (parprims.cumulative_sum, parprims.cumulative_prod):
        with pytest.raises(ValueError, match=r"^exclusive must be False where include_initial is True"):
            function(x, exclusive=True, include_initial=True)
        with pytest.raises(ValueError, match=r"^include_initial must be False where offsets are given"):
            function(x, offsets=offsets, include_initial=True)
    given = {"exclusive": True, "reverse": True, "initial": 1.0, "offsets": offsets}
    for function in (parprims.cumulative_max, parprims.cumulative_min):
        for name, value in given.items():
            with pytest.raises(ValueError, match=rf"^{name} must be left out where return_indices is True"):
                function(x, return_indices=True, **{name: value})
    for function, *_ in FUNCTIONS.values():
        with pytest.raises(ValueError, match=r"^offsets must ascend from 0"):
            function(x, offsets=[0, 3])
        with pytest.raises(ValueError, match=r"^axis must be given with offsets"):
            function(backend.asarray(np.ones((2, 4))), offsets=offsets)
        with pytest.raises(TypeError, match=r"^reverse must be True or False"):
            function(x, reverse=1)


@pytest.mark.once
def test_programs(rng):
    """Inside jit and torch.compile."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    x, start, offsets = rng.standard_normal(9), rng.standard_normal(4), np.array([0, 0, 4, 9, 9])

    def all_of(x, start, offsets):
        options = {"offsets": offsets, "initial": start, "exclusive": True}
        found = [function(x, **options) for function, *_ in FUNCTIONS.values()]
        return *found, *[function(x, reverse=True, initial=2.0) for function, *_ in FUNCTIONS.values()]

    expected = all_of(x, start, offsets)
    for one, other in zip(jax.jit(all_of)(*map(jax.numpy.asarray, (x, start, offsets))), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    compiled = torch.compile(all_of, fullgraph=True, backend="aot_eager")
    for one, other in zip(compiled(*map(torch.from_numpy, (x, start, offsets))), expected, strict=True):
        np.testing.assert_allclose(one, other)
