"""The types of the public functions.

An array that goes in comes out as one of the same type. What has integers or bools as results says so of NumPy's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from parprims._cuda import jax_export_checks as jax_export_checks
from parprims._dispatch.dispatch import Call as Call
from parprims._dispatch.dispatch import MethodRefused as MethodRefused
from parprims._dispatch.dispatch import explain as explain
from parprims._dispatch.dispatch import methods as methods
from parprims._operators.associativity import check_associative as check_associative
from parprims._operators.operator import Operator as Operator
from parprims._operators.operator import segmented as segmented
from parprims._tools.comparison import Comparison as Comparison
from parprims._tools.comparison import compare as compare
from parprims._tools.launches import KernelLaunch as KernelLaunch
from parprims._tools.launches import launches as launches
from parprims._tools.warm_up import warm as warm

__version__: str
CANONICAL_BLOCK: int
__all__ = [
    "Call",
    "Comparison",
    "KernelLaunch",
    "MethodRefused",
    "Operator",
    "all",
    "any",
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "check_associative",
    "compare",
    "cumulative_logsumexp",
    "cumulative_max",
    "cumulative_min",
    "cumulative_prod",
    "cumulative_sum",
    "explain",
    "histogram",
    "jax_export_checks",
    "launches",
    "lfilter",
    "linear_recurrence",
    "map_reduce",
    "matmul",
    "max",
    "median",
    "merge",
    "merge_by_key",
    "methods",
    "min",
    "partition",
    "partition_by",
    "prod",
    "quantile",
    "reduce",
    "run_lengths",
    "scan",
    "searchsorted",
    "segment_reduce",
    "segmented",
    "select",
    "solve_banded",
    "solve_block_tridiagonal",
    "solve_tridiagonal",
    "sort",
    "sort_by_key",
    "sosfilt",
    "sum",
    "top_k",
    "unique",
    "vecdot",
    "warm",
]

class _SupportsArray(Protocol):
    @property
    def dtype(self) -> Any: ...
    @property
    def ndim(self) -> int: ...
    @property
    def shape(self) -> Any: ...

_A = TypeVar("_A", bound=_SupportsArray)
_B = TypeVar("_B", bound=_SupportsArray)
_C = TypeVar("_C", bound=_SupportsArray)
_N = TypeVar("_N", bound=np.generic)
# An array, or those of components in a tuple, a named tuple or a dictionary, as which results come too.
_Elements = TypeVar("_Elements", bound=_SupportsArray | tuple[Any, ...] | Mapping[str, Any])

_Method: TypeAlias = Literal["auto", "canonical", "kernel", "native", "array"]
_OperatorName: TypeAlias = Literal[
    "add",
    "multiply",
    "maximum",
    "minimum",
    "logical_and",
    "logical_or",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "logaddexp",
    "affine",
    "argmax",
    "argmin",
    "welford",
]
_Operator: TypeAlias = _OperatorName | Operator | Callable[[Any, Any], Any]
_Axes: TypeAlias = int | tuple[int, ...] | None
_Places: TypeAlias = int | Sequence[int] | NDArray[Any]

@overload
def all(
    x: NDArray[Any], /, *, axis: _Axes = None, keepdims: bool = False, method: _Method = "auto", axis_name: Any = None
) -> NDArray[np.bool]: ...
@overload
def all(
    x: _A, /, *, axis: _Axes = None, keepdims: bool = False, method: _Method = "auto", axis_name: Any = None
) -> _A: ...
@overload
def any(
    x: NDArray[Any], /, *, axis: _Axes = None, keepdims: bool = False, method: _Method = "auto", axis_name: Any = None
) -> NDArray[np.bool]: ...
@overload
def any(
    x: _A, /, *, axis: _Axes = None, keepdims: bool = False, method: _Method = "auto", axis_name: Any = None
) -> _A: ...
@overload
def argmax(
    x: NDArray[Any], /, *, axis: int | None = None, keepdims: bool = False, method: _Method = "auto"
) -> NDArray[np.int64]: ...
@overload
def argmax(x: _A, /, *, axis: int | None = None, keepdims: bool = False, method: _Method = "auto") -> _A: ...
@overload
def argmin(
    x: NDArray[Any], /, *, axis: int | None = None, keepdims: bool = False, method: _Method = "auto"
) -> NDArray[np.int64]: ...
@overload
def argmin(x: _A, /, *, axis: int | None = None, keepdims: bool = False, method: _Method = "auto") -> _A: ...
@overload
def argpartition(
    x: NDArray[Any], kth: _Places, /, *, axis: int = -1, method: _Method = "auto"
) -> NDArray[np.int64]: ...
@overload
def argpartition(x: _A, kth: _Places, /, *, axis: int = -1, method: _Method = "auto") -> _A: ...
@overload
def argsort(
    x: NDArray[Any],
    /,
    *,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> NDArray[np.int64]: ...
@overload
def argsort(
    x: _A,
    /,
    *,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> _A: ...
def cumulative_logsumexp(
    x: _A,
    /,
    *,
    axis: int | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    segment_ids: Any = None,
    num_segments: int | None = None,
    method: _Method = "auto",
) -> _A: ...
@overload
def cumulative_max(
    x: _A,
    /,
    *,
    axis: int | None = None,
    return_indices: Literal[False] = False,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    segment_ids: Any = None,
    num_segments: int | None = None,
    method: _Method = "auto",
) -> _A: ...
@overload
def cumulative_max(
    x: NDArray[Any],
    /,
    *,
    axis: int | None = None,
    return_indices: Literal[True],
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    segment_ids: Any = None,
    num_segments: int | None = None,
    method: _Method = "auto",
) -> tuple[NDArray[Any], NDArray[np.int64]]: ...
@overload
def cumulative_max(
    x: _A,
    /,
    *,
    axis: int | None = None,
    return_indices: Literal[True],
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    segment_ids: Any = None,
    num_segments: int | None = None,
    method: _Method = "auto",
) -> tuple[_A, _A]: ...
@overload
def cumulative_min(
    x: _A,
    /,
    *,
    axis: int | None = None,
    return_indices: Literal[False] = False,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    segment_ids: Any = None,
    num_segments: int | None = None,
    method: _Method = "auto",
) -> _A: ...
@overload
def cumulative_min(
    x: NDArray[Any],
    /,
    *,
    axis: int | None = None,
    return_indices: Literal[True],
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    segment_ids: Any = None,
    num_segments: int | None = None,
    method: _Method = "auto",
) -> tuple[NDArray[Any], NDArray[np.int64]]: ...
@overload
def cumulative_min(
    x: _A,
    /,
    *,
    axis: int | None = None,
    return_indices: Literal[True],
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    segment_ids: Any = None,
    num_segments: int | None = None,
    method: _Method = "auto",
) -> tuple[_A, _A]: ...
def cumulative_prod(
    x: _A,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: bool = False,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    segment_ids: Any = None,
    num_segments: int | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> _A: ...
def cumulative_sum(
    x: _A,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: bool = False,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    segment_ids: Any = None,
    num_segments: int | None = None,
    reproducible: str | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> _A: ...
@overload
def histogram(
    x: NDArray[Any],
    /,
    bins: int | Sequence[float] | _SupportsArray = 10,
    *,
    range: Sequence[float] | NDArray[Any] | None = None,
    weights: None = None,
    density: Literal[False] = False,
    reproducible: str | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> tuple[NDArray[np.int64], NDArray[Any]]: ...
@overload
def histogram(
    x: NDArray[Any],
    /,
    bins: int | Sequence[float] | _SupportsArray = 10,
    *,
    range: Sequence[float] | NDArray[Any] | None = None,
    weights: _SupportsArray | None = None,
    density: bool = False,
    reproducible: str | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def histogram(
    x: _A,
    /,
    bins: int | Sequence[float] | _SupportsArray = 10,
    *,
    range: Sequence[float] | NDArray[Any] | None = None,
    weights: _SupportsArray | None = None,
    density: bool = False,
    reproducible: str | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> tuple[_A, _A]: ...
@overload
def lfilter(b: _A, a: _A, x: _A, /, *, axis: int = -1, zi: None = None, method: _Method = "auto") -> _A: ...
@overload
def lfilter(b: _A, a: _A, x: _A, /, *, axis: int = -1, zi: _A, method: _Method = "auto") -> tuple[_A, _A]: ...
@overload
def linear_recurrence(
    a: _A | complex,
    b: _A | complex,
    /,
    *,
    axis: int = -1,
    initial: Any = None,
    return_last: Literal[False] = False,
    reverse: bool = False,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    segment_ids: Any = None,
    num_segments: int | None = None,
    matrices: bool = False,
    method: _Method = "auto",
    axis_name: Any = None,
) -> _A: ...
@overload
def linear_recurrence(
    a: _A | complex,
    b: _A | complex,
    /,
    *,
    axis: int = -1,
    initial: Any = None,
    return_last: Literal[True],
    reverse: bool = False,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    segment_ids: Any = None,
    num_segments: int | None = None,
    matrices: bool = False,
    method: _Method = "auto",
    axis_name: Any = None,
) -> tuple[_A, _A]: ...
def map_reduce(
    fn: Callable[..., Any],
    /,
    *arrays: _SupportsArray | tuple[Any, ...] | Mapping[str, Any],
    op: _Operator = "add",
    axis: _Axes = None,
    keepdims: bool = False,
    dtype: Any = None,
    initial: Any = None,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> Any: ...
def matmul(
    a: _A,
    b: _A,
    /,
    *,
    add: _Operator = "add",
    multiply: _Operator = "multiply",
    precision: Literal["float32", "tf32", "highest", "residues"] = "float32",
    kernel: Literal["naive", "tiled", "packed", "conflict_free", "tensor"] | None = None,
    tile: int | Sequence[int] | NDArray[Any] | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> _A: ...
def max(
    x: _A, /, *, axis: _Axes = None, keepdims: bool = False, method: _Method = "auto", axis_name: Any = None
) -> _A: ...
def median(x: _A, /, *, axis: _Axes = None, keepdims: bool = False, method: _Method = "auto") -> _A: ...
def merge(x1: _A, x2: _A, /, *, axis: int = -1, descending: bool = False, method: _Method = "auto") -> _A: ...
def merge_by_key(
    keys1: _A,
    values1: _B,
    keys2: _A,
    values2: _B,
    /,
    *,
    axis: int = -1,
    descending: bool = False,
    method: _Method = "auto",
) -> tuple[_A, _A]: ...
def min(
    x: _A, /, *, axis: _Axes = None, keepdims: bool = False, method: _Method = "auto", axis_name: Any = None
) -> _A: ...
def partition(x: _A, kth: _Places, /, *, axis: int = -1, method: _Method = "auto") -> _A: ...
@overload
def partition_by(
    x: NDArray[_N], mask: _SupportsArray, /, *, method: _Method = "auto"
) -> tuple[NDArray[_N], NDArray[np.int64]]: ...
@overload
def partition_by(x: _A, mask: _SupportsArray, /, *, method: _Method = "auto") -> tuple[_A, _A]: ...
def prod(
    x: _A,
    /,
    *,
    axis: _Axes = None,
    dtype: Any = None,
    keepdims: bool = False,
    method: _Method = "auto",
    axis_name: Any = None,
) -> _A: ...
def quantile(
    x: _A,
    q: float | Sequence[float] | NDArray[Any],
    /,
    *,
    axis: _Axes = None,
    keepdims: bool = False,
    interpolation: Literal["linear", "lower", "higher", "nearest", "midpoint"] = "linear",
    method: _Method = "auto",
) -> _A: ...
def reduce(
    x: _Elements,
    /,
    op: _Operator = "add",
    *,
    axis: _Axes = None,
    keepdims: bool = False,
    dtype: Any = None,
    initial: Any = None,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    reproducible: str | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> _Elements: ...
@overload
def run_lengths(
    x: NDArray[_N], /, *, size: int | None = None, fill_value: Any = 0, method: _Method = "auto"
) -> tuple[NDArray[_N], NDArray[np.int64], NDArray[np.int64]]: ...
@overload
def run_lengths(
    x: _A, /, *, size: int | None = None, fill_value: Any = 0, method: _Method = "auto"
) -> tuple[_A, _A, _A]: ...
@overload
def scan(
    x: _Elements,
    /,
    op: _Operator = "add",
    *,
    axis: int = -1,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    return_last: Literal[False] = False,
    dtype: Any = None,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    segment_ids: Any = None,
    num_segments: int | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> _Elements: ...
@overload
def scan(
    x: _Elements,
    /,
    op: _Operator = "add",
    *,
    axis: int = -1,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    return_last: Literal[True],
    dtype: Any = None,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    segment_ids: Any = None,
    num_segments: int | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> tuple[_Elements, _Elements]: ...
@overload
def searchsorted(
    x1: NDArray[Any],
    x2: NDArray[Any] | float,
    /,
    *,
    side: Literal["left", "right"] = "left",
    sorter: _SupportsArray | None = None,
    method: _Method = "auto",
) -> NDArray[np.int64]: ...
@overload
def searchsorted(
    x1: _A,
    x2: _A | float,
    /,
    *,
    side: Literal["left", "right"] = "left",
    sorter: _SupportsArray | None = None,
    method: _Method = "auto",
) -> _A: ...
def segment_reduce(
    x: _Elements,
    ids: Any,
    /,
    num_segments: int,
    op: _Operator = "add",
    *,
    axis: int = 0,
    indices_are_sorted: bool = False,
    dtype: Any = None,
    initial: Any = None,
    reproducible: str | None = None,
    method: _Method = "auto",
) -> _Elements: ...
@overload
def select(
    x: NDArray[_N], mask: _SupportsArray, /, *, size: int | None = None, fill_value: Any = 0, method: _Method = "auto"
) -> tuple[NDArray[_N], NDArray[np.int64]]: ...
@overload
def select(
    x: _A, mask: _SupportsArray, /, *, size: int | None = None, fill_value: Any = 0, method: _Method = "auto"
) -> tuple[_A, _A]: ...
def solve_banded(
    l_and_u: Sequence[int] | NDArray[Any], ab: _A, b: _A, /, *, periodic: bool = False, method: _Method = "auto"
) -> _A: ...
def solve_block_tridiagonal(
    lower: _A, diag: _A, upper: _A, rhs: _A, /, *, periodic: bool = False, method: _Method = "auto"
) -> _A: ...
@overload
def solve_tridiagonal(
    lower: _A | complex,
    diag: _A | complex,
    upper: _A | complex,
    rhs: _A,
    /,
    *,
    axis: int = -1,
    pivot: Literal["auto", "partial", "none"] = "auto",
    periodic: bool = False,
    transpose: bool = False,
    return_residual: Literal[False] = False,
    return_status: Literal[False] = False,
    method: _Method = "auto",
    axis_name: Any = None,
) -> _A: ...
@overload
def solve_tridiagonal(
    lower: _A | complex,
    diag: _A | complex,
    upper: _A | complex,
    rhs: _A,
    /,
    *,
    axis: int = -1,
    pivot: Literal["auto", "partial", "none"] = "auto",
    periodic: bool = False,
    transpose: bool = False,
    return_residual: Literal[True],
    return_status: Literal[False] = False,
    method: _Method = "auto",
    axis_name: Any = None,
) -> tuple[_A, _A]: ...
@overload
def solve_tridiagonal(
    lower: NDArray[Any] | complex,
    diag: NDArray[Any] | complex,
    upper: NDArray[Any] | complex,
    rhs: NDArray[_N],
    /,
    *,
    axis: int = -1,
    pivot: Literal["auto", "partial", "none"] = "auto",
    periodic: bool = False,
    transpose: bool = False,
    return_residual: Literal[False] = False,
    return_status: Literal[True],
    method: _Method = "auto",
    axis_name: Any = None,
) -> tuple[NDArray[_N], NDArray[np.int32]]: ...
@overload
def solve_tridiagonal(
    lower: _A | complex,
    diag: _A | complex,
    upper: _A | complex,
    rhs: _A,
    /,
    *,
    axis: int = -1,
    pivot: Literal["auto", "partial", "none"] = "auto",
    periodic: bool = False,
    transpose: bool = False,
    return_residual: Literal[False] = False,
    return_status: Literal[True],
    method: _Method = "auto",
    axis_name: Any = None,
) -> tuple[_A, _A]: ...
@overload
def solve_tridiagonal(
    lower: NDArray[Any] | complex,
    diag: NDArray[Any] | complex,
    upper: NDArray[Any] | complex,
    rhs: NDArray[_N],
    /,
    *,
    axis: int = -1,
    pivot: Literal["auto", "partial", "none"] = "auto",
    periodic: bool = False,
    transpose: bool = False,
    return_residual: Literal[True],
    return_status: Literal[True],
    method: _Method = "auto",
    axis_name: Any = None,
) -> tuple[NDArray[_N], NDArray[_N], NDArray[np.int32]]: ...
@overload
def solve_tridiagonal(
    lower: _A | complex,
    diag: _A | complex,
    upper: _A | complex,
    rhs: _A,
    /,
    *,
    axis: int = -1,
    pivot: Literal["auto", "partial", "none"] = "auto",
    periodic: bool = False,
    transpose: bool = False,
    return_residual: Literal[True],
    return_status: Literal[True],
    method: _Method = "auto",
    axis_name: Any = None,
) -> tuple[_A, _A, _A]: ...
def sort(
    x: _A,
    /,
    *,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> _A: ...
@overload
def sort_by_key(
    keys: _A,
    /,
    *,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> tuple[_A]: ...
@overload
def sort_by_key(
    keys: _A,
    value0: _B,
    /,
    *,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> tuple[_A, _B]: ...
@overload
def sort_by_key(
    keys: _A,
    value0: _B,
    value1: _C,
    /,
    *,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> tuple[_A, _B, _C]: ...
@overload
def sort_by_key(
    keys: _A,
    /,
    *values: _SupportsArray,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    offsets: _A | Sequence[int] | None = None,
    check: bool | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> tuple[Any, ...]: ...
@overload
def sosfilt(sos: _A, x: _A, /, *, axis: int = -1, zi: None = None, method: _Method = "auto") -> _A: ...
@overload
def sosfilt(sos: _A, x: _A, /, *, axis: int = -1, zi: _A, method: _Method = "auto") -> tuple[_A, _A]: ...
def sum(
    x: _A,
    /,
    *,
    axis: _Axes = None,
    dtype: Any = None,
    keepdims: bool = False,
    reproducible: str | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> _A: ...
@overload
def top_k(
    x: NDArray[_N],
    k: int,
    /,
    *,
    axis: int = -1,
    mode: Literal["largest", "smallest"] = "largest",
    sorted: bool = True,
    method: _Method = "auto",
) -> tuple[NDArray[_N], NDArray[np.int64]]: ...
@overload
def top_k(
    x: _A,
    k: int,
    /,
    *,
    axis: int = -1,
    mode: Literal["largest", "smallest"] = "largest",
    sorted: bool = True,
    method: _Method = "auto",
) -> tuple[_A, _A]: ...
@overload
def unique(
    x: NDArray[_N], /, *, size: int | None = None, fill_value: Any = 0, method: _Method = "auto"
) -> tuple[NDArray[_N], NDArray[np.int64], NDArray[np.int64]]: ...
@overload
def unique(
    x: _A, /, *, size: int | None = None, fill_value: Any = 0, method: _Method = "auto"
) -> tuple[_A, _A, _A]: ...
def vecdot(
    x1: _A,
    x2: _A,
    /,
    *,
    axis: int = -1,
    reproducible: str | None = None,
    method: _Method = "auto",
    axis_name: Any = None,
) -> _A: ...
