"""Calls with an initial element that is an array: a later call is found again, and takes its own initial element."""
# ruff: noqa: ARG005

import numpy as np
import pytest

import parprims
from parprims._dispatch.dispatch import Methods
from tests.support.contract import compare

N, K = 12, 3
OFFSETS = np.array([0, 5, 5, N])
IDS = np.array([2, 0, 1, 1, 2, 0, 0, 2, 2, 1, 0, 2])
GROUPS = {"segment_ids": IDS, "num_segments": 3}


def concatenated(earlier, later):
    return {"x": 2 * earlier["x"] + later["x"], "y": earlier["y"] + later["y"]}


def called(function, **options):
    """Return a call; arrays among the options become arrays of the library of x."""

    def call(of, x, start):
        arrays = {name: of(value) if isinstance(value, np.ndarray) else value for name, value in options.items()}
        return function(x, axis=0, initial=start, **arrays)

    return call


def tree(function):
    return lambda of, x, start: tuple(
        function({"x": x, "y": x}, concatenated, axis=0, initial={"x": start, "y": start}).values()
    )


def pair(function, *arguments, **options):
    """Return a call with an array beside a number in the initial element."""

    def call(of, x, start):
        arrays = {name: of(value) if isinstance(value, np.ndarray) else value for name, value in options.items()}
        more = [of(value) if isinstance(value, np.ndarray) else value for value in arguments]
        return function((x, x), *more, "affine", axis=0, initial=(1.0, start), **arrays)

    return call


CALLS = {
    "reduce": called(parprims.reduce),
    "reduce of pairs": pair(parprims.reduce),
    "reduce of trees": tree(parprims.reduce),
    "reduce by offsets": called(parprims.reduce, offsets=OFFSETS),
    "reduce of pairs by offsets": pair(parprims.reduce, offsets=OFFSETS),
    "map_reduce": lambda of, x, start: parprims.map_reduce(abs, x, axis=0, initial=start),
    "map_reduce by offsets": lambda of, x, start: parprims.map_reduce(
        abs, x, axis=0, initial=start, offsets=of(OFFSETS)
    ),
    "segment_reduce": lambda of, x, start: parprims.segment_reduce(x, of(IDS), 3, initial=start),
    "segment_reduce of pairs": pair(parprims.segment_reduce, IDS, 3),
    "scan": called(parprims.scan),
    "scan of pairs": pair(parprims.scan),
    "scan by offsets": called(parprims.scan, offsets=OFFSETS),
    "exclusive scan by offsets": called(parprims.scan, offsets=OFFSETS, exclusive=True),
    "scan of pairs by offsets": pair(parprims.scan, offsets=OFFSETS),
    "scan by segment_ids": called(parprims.scan, **GROUPS),
    "scan with last states by offsets": called(parprims.scan, offsets=OFFSETS, return_last=True),
    "cumulative_sum by offsets": called(parprims.cumulative_sum, offsets=OFFSETS),
    "cumulative_max by segment_ids": called(parprims.cumulative_max, **GROUPS),
    "linear_recurrence": lambda of, x, start: parprims.linear_recurrence(x, x, axis=0, initial=start),
    "linear_recurrence by offsets": lambda of, x, start: parprims.linear_recurrence(
        x, x, axis=0, initial=start, offsets=of(OFFSETS)
    ),
    "linear_recurrence by segment_ids": lambda of, x, start: parprims.linear_recurrence(
        x, x, axis=0, initial=start, segment_ids=of(IDS), num_segments=3
    ),
    "linear_recurrence of matrices": lambda of, x, start: parprims.linear_recurrence(
        x[..., None] * x[..., None, :], x, axis=0, initial=start, matrices=True
    ),
}
OF_SEGMENTS = {
    name: called(function, **options)
    for name, function, options in (
        ("scan", parprims.scan, {"offsets": OFFSETS}),
        ("exclusive scan", parprims.scan, {"offsets": OFFSETS, "exclusive": True}),
        ("scan by segment_ids", parprims.scan, GROUPS),
        ("cumulative_min", parprims.cumulative_min, {"offsets": OFFSETS}),
    )
}
"""Calls with an initial element for each segment."""


class TestInitialArrays:
    @staticmethod
    def check(backend, monkeypatch, rng, call, shape):
        x, *starts = (rng.integers(-2, 3, one).astype(float) for one in ((N, K), shape, shape))
        xs, first, second = map(backend.asarray, (x, *starts))
        for _ in range(3):
            call(backend.asarray, xs, first)
        choices, choose = [], Methods._choice
        monkeypatch.setattr(Methods, "_choice", lambda *args, **kw: choices.append(args[0]) or choose(*args, **kw))
        found = call(backend.asarray, xs, second)
        assert not choices, f"a later call chose a method for {choices[0].primitive}"
        expected = call(np.asarray, x, starts[1])
        compare(backend, flat(found), flat(expected))

    @pytest.mark.parametrize("name", CALLS)
    def test_a_later_call_is_found(self, backend, monkeypatch, rng, name):
        if backend.name == "array-api-strict":
            pytest.skip("its arrays have no signature")
        self.check(backend, monkeypatch, rng, CALLS[name], (K,))

    @pytest.mark.parametrize("name", OF_SEGMENTS)
    def test_an_element_for_each_segment(self, backend, monkeypatch, rng, name):
        if backend.name == "array-api-strict":
            pytest.skip("its arrays have no signature")
        self.check(backend, monkeypatch, rng, OF_SEGMENTS[name], (3, K))


def flat(result):
    """Return the arrays of a result."""
    return tuple(one for part in result for one in flat(part)) if isinstance(result, tuple) else (result,)
