"""Calls as type checkers see them (see public_types.py): lines that end in "# wrong" are errors, and no others."""

from typing import Any, NamedTuple, assert_type

import numpy as np
from numpy.typing import NDArray

import parprims

Floats = NDArray[np.float64]


class Tensor:
    """An array of a library other than NumPy."""

    dtype: str
    ndim: int
    shape: tuple[int, ...]


class Moments(NamedTuple):
    """Components of an element."""

    total: Tensor
    mean: Tensor


def merged(earlier: Moments, later: Moments) -> Moments:
    """Return the moments of both."""
    del earlier
    return later


def uses(x: Floats, t: Tensor, m: Moments) -> None:
    """Make right calls, and wrong ones."""
    # An array in is the same array out.
    assert_type(parprims.sum(x), Floats)
    assert_type(parprims.max(t, axis=(0, 1), keepdims=True), Tensor)
    assert_type(parprims.scan(x, "maximum", reverse=True), Floats)
    assert_type(parprims.cumulative_sum(t, include_initial=True), Tensor)
    assert_type(parprims.linear_recurrence(0.5, x, initial=1.0), Floats)
    assert_type(parprims.linear_recurrence(t, t), Tensor)
    assert_type(parprims.matmul(t, t, add="minimum", multiply="add", kernel="tiled", tile=4), Tensor)
    assert_type(parprims.vecdot(x, x), Floats)
    assert_type(parprims.sort(t, descending=True), Tensor)
    # Tuples are tuples.
    assert_type(parprims.scan((x, x), "affine"), tuple[Floats, Floats])
    assert_type(parprims.reduce(m, merged), Moments)
    assert_type(parprims.scan({"a": t}, lambda earlier, _: earlier), dict[str, Tensor])
    assert_type(parprims.sort_by_key(x, t), tuple[Floats, Tensor])
    assert_type(parprims.sort_by_key(x, t, x), tuple[Floats, Tensor, Floats])
    assert_type(parprims.sort_by_key(x, t, x, t, x), tuple[Any, ...])
    # Integers and bools of NumPy.
    assert_type(parprims.argsort(x), NDArray[np.int64])
    assert_type(parprims.argsort(t), Tensor)
    assert_type(parprims.any(x, axis=0), NDArray[np.bool])
    # Indices and counts are integers, values are of the dtype of x.
    assert_type(parprims.top_k(x, 2), tuple[Floats, NDArray[np.int64]])
    assert_type(x[parprims.top_k(x, 2)[1]], Floats)
    assert_type(parprims.top_k(t, 2), tuple[Tensor, Tensor])
    assert_type(parprims.unique(x), tuple[Floats, NDArray[np.int64], NDArray[np.int64]])
    assert_type(parprims.run_lengths(x), tuple[Floats, NDArray[np.int64], NDArray[np.int64]])
    assert_type(parprims.select(x, x), tuple[Floats, NDArray[np.int64]])
    assert_type(parprims.partition_by(x, x), tuple[Floats, NDArray[np.int64]])
    assert_type(parprims.unique(t), tuple[Tensor, Tensor, Tensor])
    assert_type(parprims.histogram(x), tuple[NDArray[np.int64], NDArray[Any]])
    assert_type(parprims.histogram(x, weights=x), tuple[NDArray[Any], NDArray[Any]])
    assert_type(parprims.histogram(t), tuple[Tensor, Tensor])
    # Filters return the state with a state.
    assert_type(parprims.lfilter(x, x, x), Floats)
    assert_type(parprims.lfilter(t, t, t, zi=t), tuple[Tensor, Tensor])
    assert_type(parprims.sosfilt(x, x), Floats)
    assert_type(parprims.sosfilt(x, x, zi=x), tuple[Floats, Floats])
    assert_type(parprims.solve_tridiagonal(x, x, x, x, return_status=True), tuple[Floats, NDArray[np.int32]])
    # What is asked for besides.
    assert_type(parprims.solve_tridiagonal(1.0, x, -1, x), Floats)
    assert_type(parprims.solve_tridiagonal(t, t, t, t, return_residual=True), tuple[Tensor, Tensor])
    assert_type(parprims.solve_tridiagonal(t, t, t, t, return_status=True), tuple[Tensor, Tensor])
    both = parprims.solve_tridiagonal(t, t, t, t, return_residual=True, return_status=True)
    assert_type(both, tuple[Tensor, Tensor, Tensor])
    assert_type(parprims.cumulative_max(t), Tensor)
    assert_type(parprims.cumulative_max(t, return_indices=True), tuple[Tensor, Tensor])
    assert_type(parprims.explain().__enter__(), list[parprims.Call])
    assert_type(parprims.methods(parprims.sum, x), dict[str, str | None])
    assert_type(parprims.compare(parprims.sum, x).auto, str)

    # Names that there are not.
    parprims.reduce(x, "maximun")  # wrong
    parprims.scan(x, "sum")  # wrong
    parprims.sum(x, method="kernal")  # wrong
    parprims.sort(t, method="gpu")  # wrong
    parprims.solve_tridiagonal(x, x, x, x, pivot="always")  # wrong
    parprims.matmul(x, x, precision="double")  # wrong
    parprims.matmul(x, x, add="plus")  # wrong
    parprims.matmul(x, x, kernel="fast")  # wrong
    parprims.top_k(x, 3, mode="biggest")  # wrong
    parprims.quantile(x, 0.5, interpolation="cubic")  # wrong
    parprims.searchsorted(x, x, side="middle")  # wrong
    # What is no array.
    parprims.sum([1.0, 2.0])  # wrong
    parprims.scan([x, x], "affine")  # wrong
    parprims.sort(3)  # wrong
    parprims.matmul(x, [[1.0]])  # wrong
    parprims.linear_recurrence(x, [1.0])  # wrong
    parprims.solve_tridiagonal(x, x, x, [1.0])  # wrong
    parprims.histogram(x, bins=["a"])  # wrong
    # Options of another kind, or by no name.
    parprims.sum(x, axis="0")  # wrong
    parprims.cumulative_sum(x, 0)  # wrong
    parprims.sort(x, descend=True)  # wrong
    parprims.linear_recurrence(x)  # wrong
