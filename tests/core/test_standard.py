"""The array API standard in its older versions and without its options, as array-api-strict shows them."""

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import parprims
from parprims._dispatch.examples import Sample
from parprims._dispatch.primitive import examples

strict = pytest.importorskip("array_api_strict")

FLAGS: tuple[dict[str, Any], ...] = (
    {"api_version": "2023.12"},
    {"api_version": "2024.12"},
    {"boolean_indexing": False, "data_dependent_shapes": False, "enabled_extensions": ()},
    {"api_version": "2023.12", "boolean_indexing": False, "data_dependent_shapes": False, "enabled_extensions": ()},
)


@pytest.fixture
def flags() -> Iterator[Callable[..., None]]:
    """Return what sets the flags of array-api-strict, until the test ends."""

    def change(**flags: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of versions that it supports in part
            strict.set_array_api_strict_flags(**flags)

    yield change
    strict.reset_array_api_strict_flags()


def calls(asarray: Any) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Yield calls as (function, arguments, options): the example of every declaration, then options and dtypes.

    The options and dtypes listed here make a method call other functions of the library.
    """
    kinds = ({"shape": (3, 5)}, {"shape": (5,), "fixed": True})
    for kind in kinds:
        for example in examples(lambda: Sample(dtype="float64", **kind)).values():  # noqa: B023
            options = {name: asarray(x) if isinstance(x, np.ndarray) else x for name, x in example.options.items()}
            args = tuple(asarray(x) if isinstance(x, np.ndarray) else x for x in example.args)
            yield example.function.__name__, args, options
    numbers = np.random.default_rng(3).standard_normal((3, 5))
    x, i, b = asarray(numbers), asarray(np.arange(15).reshape(3, 5) % 7), asarray(numbers > 0)
    yield "sum", (x,), {"axis": (0, 1)}
    yield "sum", (i,), {"axis": 0, "keepdims": True}
    yield "prod", (x,), {}
    yield "max", (x,), {"axis": 1}
    yield "min", (i,), {}
    yield "any", (x,), {"axis": ()}
    yield "all", (b,), {"axis": 0}
    yield "reduce", ((x, i), "argmax"), {"axis": 1}
    yield "reduce", (x, "logaddexp"), {"initial": 1.0}
    yield "map_reduce", (abs, x), {"op": "maximum", "axis": 0}
    for reverse in (False, True):
        yield "scan", (x, "maximum"), {"axis": 0, "reverse": reverse, "exclusive": reverse}
        yield "scan", ((b, x), parprims.segmented("add")), {"reverse": reverse}
        yield "linear_recurrence", (x, x), {"reverse": reverse, "initial": 2.0}
        yield "linear_recurrence", (i, i), {"reverse": reverse, "axis": 0}
        yield "sort", (x,), {"descending": reverse, "axis": 0}
        yield "sort", (b,), {"descending": reverse}
        yield "argsort", (i,), {"descending": reverse}
        yield "sort_by_key", (x, i, b), {"descending": reverse}
    yield "cumulative_sum", (i,), {"axis": 0, "include_initial": True}
    for pivot in ("auto", "none"):
        for periodic in (False, True):
            options = {"pivot": pivot, "periodic": periodic, "return_residual": True, "return_status": True}
            yield "solve_tridiagonal", (x, asarray(numbers + 4), x, x), options
    yield "solve_tridiagonal", (-1.0, 3.0, -1.0, x), {"transpose": True}
    row, whole, offsets = x[0, :], i[0, :], asarray(np.array([0, 2, 2, 5]))
    for function in ("cumulative_max", "cumulative_min"):
        yield function, (x,), {"axis": 0, "return_indices": True}
    yield "argmin", (i,), {}
    for mode in ("largest", "smallest"):
        yield "top_k", (x, 2), {"mode": mode, "axis": 0}
    yield "quantile", (x, (0.2, 0.9)), {"axis": 1}
    yield "select", (x, b), {}
    yield "select", (x, b), {"size": 4}
    yield "partition_by", (x, b), {}
    yield "run_lengths", (whole,), {}
    yield "unique", (i,), {"size": 9}
    yield "lfilter", (row[:2], row + 3.0, x), {"axis": 0}
    yield "reduce", (row,), {"offsets": offsets, "check": True}
    yield "scan", (row, "maximum"), {"offsets": offsets}
    yield "segment_reduce", (row, whole, 6), {}
    yield "solve_banded", ((1, 1), asarray(numbers + np.array([[0.0], [5.0], [0.0]])), row), {}
    yield "matmul", (x, asarray(numbers.T)), {}
    yield "matmul", (x, asarray(numbers.T)), {"tile": 2, "add": "minimum", "multiply": "add"}


@pytest.mark.parametrize("way", ["array", "native", "auto"])
@pytest.mark.parametrize("given", FLAGS, ids=lambda given: " ".join(f"{value}" for value in given.values()))
def test_results_are_those_of_numpy(flags, given, way):
    flags(**given)
    served = set()
    pairs = zip(calls(strict.asarray), calls(np.asarray), strict=True)
    for (function, arguments, options), (_, others, theirs) in pairs:
        primitive = getattr(parprims, function)
        try:
            result = primitive(*arguments, method=way, **options)
        except parprims.MethodRefused:
            assert way == "native"
            continue
        assert parprims.methods(primitive, *arguments, **options)["array"] is None
        served.add(function)
        expected = primitive(*others, method=way if way == "array" else "auto", **theirs)
        for one, other in zip(*(y if isinstance(y, tuple) else (y,) for y in (result, expected)), strict=True):
            np.testing.assert_allclose(np.asarray(one), other, rtol=1e-12, atol=1e-12)
    everything = {function for function, *_ in calls(np.asarray)}
    assert served == everything if way != "native" else served >= {"sum", "sort", "argsort", "cumulative_sum", "matmul"}


class Absent:
    """Finds no module of the libraries that the user has not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "torch", "cupy", "dask"):
            raise ModuleNotFoundError(name)


@pytest.mark.parametrize("way", ["array", "auto"])
def test_other_libraries_may_be_absent(monkeypatch, way):
    for name in ("jax", "torch", "cupy", "dask"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    for function, arguments, options in calls(np.asarray):
        getattr(parprims, function)(*arguments, method=way, **options)


@pytest.mark.parametrize("version", ["2021.12", "2022.12"])
def test_older_versions_are_refused_by_name(flags, version):
    flags(api_version=version)
    for function, arguments, options in calls(strict.asarray):
        with pytest.raises(TypeError, match=rf"array-api-strict at version {version} of the array API standard"):
            getattr(parprims, function)(*arguments, **options)


def test_a_refusal_names_what_is_missing(flags):
    flags(api_version="2023.12")
    x = strict.asarray(np.arange(3.0))
    with pytest.raises(parprims.MethodRefused, match="array-api-strict has no take_along_axis at this version"):
        parprims.sort_by_key(x, x, method="native")
    with pytest.raises(parprims.MethodRefused, match="array-api-strict has no scan with the operator multiply"):
        parprims.cumulative_prod(x, method="native")
