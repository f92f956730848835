"""Small arrays of symbolic scalars, and the functions that they have translations for.

The file is long because it is one table of short functions.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import dtype_name
from parprims._operators import tracing
from parprims._operators.foreign.names import standard_name
from parprims._operators.tracing import Lines, Scalar, Untraceable, constant, function_named

Shape = tuple[int, ...]
Entries = np.ndarray[Any, Any]
"""An array of NumPy with a Scalar, or a number of Python, in each place."""


class Lanes:
    """The elements that an operator sees: two along each of ``axes`` axes, each with the lines of its trace."""

    def __init__(self, axes: int, like: Lines) -> None:
        self.shape: Shape = (2,) * axes
        self.lines: dict[Shape, Lines] = {}
        for number, place in enumerate(np.ndindex(self.shape)):
            lines = self.lines[place] = Lines()
            lines.immutable, lines.language, lines.told = True, like.language, like.told
            lines.prefix = f"lane{number}_"

    def arguments(self, shape: Shape, dtypes: Sequence[str], first: int) -> Small:
        """Return an array of new scalars; the names of the scalars count from ``first``."""
        entries = np.empty((*self.shape, *shape), object)
        for place, lines in self.lines.items():
            for index, at in enumerate(np.ndindex(shape)):
                code = f"{lines.prefix}x{first + index}"
                entries[(*place, *at)] = Scalar(lines, dtypes[index], code)
        return Small(self, entries)

    def constants(self, values: Any, dtype: str, *, whole: bool = False) -> Entries:
        """Return an array of numbers as literals of every lane; a ``whole`` array has the axes of the lanes already."""
        array = np.asarray(values)
        inner = array.shape[len(self.shape) :] if whole else array.shape
        entries = np.empty((*self.shape, *inner), object)
        for place, lines in self.lines.items():
            for at in np.ndindex(inner):
                value = array[(*place, *at) if whole else at]
                entries[(*place, *at)] = constant(lines, value.item(), dtype, written=True)
        return entries

    def factors(self, values: Any, dtype: str) -> Entries:
        """Return an array of numbers as literals without axes of lanes, for products that begin with another factor."""
        one: Entries = self.constants(values, dtype)[(0,) * len(self.shape)]
        return one

    def outputs(self, results: Sequence[Any], shapes: Sequence[Shape], dtypes: Sequence[str]) -> list[Scalar]:
        """Return the results of the first lane, if every lane has an equal trace; raise Untraceable if not."""
        found: dict[Shape, list[Scalar]] = {place: [] for place in self.lines}
        for result, shape, dtype in zip(results, shapes, dtypes, strict=True):
            if not isinstance(result, Small):
                raise Untraceable(f"it returns {type(result).__name__}, which does not depend on the elements")
            if result.shape != (*self.shape, *shape):
                raise Untraceable(f"it returns shape {result.shape[len(self.shape) :]} for trailing axes {shape}")
            for place in self.lines:
                scalars = result._entries[place]
                found[place] += [scalars] if isinstance(scalars, Scalar) else [*scalars.flat]
            if result._name != dtype:
                raise Untraceable(f"it turns {dtype} into {result._name}")
        first, *others = self.lines.values()
        texts = [
            "\n".join((*lines, *(one._code for one in outputs)))
            for lines, outputs in zip(self.lines.values(), found.values(), strict=True)
        ]
        plain = texts[0].replace(first.prefix, "")
        if "lane" in plain or any(
            text.replace(lines.prefix, "") != plain for text, lines in zip(texts[1:], others, strict=True)
        ):
            raise Untraceable("it mixes elements along the axis, or treats them differently")
        return found[next(iter(self.lines))]


class Small:
    """A small array of symbolic scalars, with the axes of the `Lanes` in front."""

    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 1000
    device = None  # arrays of an operator are made where its kernel runs

    def __init__(self, lanes: Lanes, entries: Any) -> None:
        self._lanes, self._entries = lanes, np.asarray(entries, dtype=object)

    @property
    def shape(self) -> Shape:
        """The shape, with two elements along each axis of the lanes."""
        return self._entries.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._entries.ndim

    @property
    def size(self) -> int:
        """The number of scalars."""
        return self._entries.size

    @property
    def _name(self) -> str:
        """The name of the dtype."""
        names = {one._dtype if isinstance(one, Scalar) else "a number" for one in self._entries.flat}
        if len(names) != 1:
            raise Untraceable(f"it makes an array of {' and '.join(sorted(names)) or 'no elements'}")
        return names.pop()

    @property
    def dtype(self) -> Any:
        """The dtype, equal to that of every library."""
        return next(iter(self._entries.flat)).dtype

    @property
    def T(self) -> Small:  # noqa: N802
        """The array with its axes in the opposite order."""
        return self._moved(self._entries.T)

    @property
    def mT(self) -> Small:  # noqa: N802
        """The matrices transposed."""
        return self._moved(np.swapaxes(self._entries, -1, -2))

    def _moved(self, entries: Any) -> Small:
        """Return an array of other entries."""
        return Small(self._lanes, entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Any:
        return (self[index, ...] for index in range(len(self)))

    def __bool__(self) -> bool:
        raise Untraceable("it branches on the values of the arrays (use where of the array library)")

    def __getitem__(self, index: Any) -> Small:
        if any(isinstance(one, Small) for one in (index if isinstance(index, tuple) else (index,))):
            raise Untraceable("it indexes an array by an array")
        found = self._entries[index]
        if not isinstance(found, np.ndarray):
            holder = np.empty((), object)
            holder[()] = found
            found = holder
        return self._moved(found)

    def __setitem__(self, _index: Any, _value: Any) -> None:
        raise Untraceable("it assigns to elements of an array")

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return NAMESPACE

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise Untraceable("it makes an array of NumPy of an element")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            raise Untraceable(f"numpy.{ufunc.__name__}.{method} has no translation")
        return function(ufunc.__name__)(*inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function(func.__name__)(*args, **kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        return function(name if name in _FUNCTIONS else name.removeprefix("linalg_"))(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in _METHODS:
            raise AttributeError(f"arrays have no attribute {name!r} that has a translation")
        return functools.partial(function(name), self)


# ---- Functions of small arrays ----------------------------------------------------------------------------------


def lanes_of(values: Any) -> Lanes:
    """Return the lanes of the first small array among arguments."""
    for value in values:
        if isinstance(value, Small):
            return value._lanes
        if isinstance(value, (list, tuple)) and any(isinstance(one, Small) for one in value):
            return lanes_of(value)
    raise Untraceable("it combines constants only")


def entries_of(lanes: Lanes, value: Any, name: str | None = None, ndim: int = 0) -> Any:
    """Return an operand as entries: those of a small array, a number as it is, and an array as literals of its dtype.

    ``name`` is the dtype that an array must have. An array of ``ndim`` axes has the axes of the lanes.
    """
    if isinstance(value, Small):
        return value._entries
    if isinstance(value, (bool, int, float, complex, np.generic)) or not hasattr(value, "shape"):
        return value
    array = array_of(value, name)
    if array.ndim and array.ndim == ndim:
        lead = len(lanes.shape)
        shape = (*np.broadcast_shapes(array.shape[:lead], lanes.shape), *array.shape[lead:])
        whole = np.broadcast_to(array, shape)
        return lanes.constants(whole, array.dtype.name, whole=True)
    return lanes.constants(array, array.dtype.name)


def array_of(value: Any, name: str | None) -> np.ndarray[Any, Any]:
    """Return an array that an operator reads as NumPy's; raise Untraceable unless it has the dtype of this name."""
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    if name is not None and dtype_name(array.dtype) != name:
        raise Untraceable(f"it combines {name} with an array of {dtype_name(array.dtype)}")
    return array


def _dtype_among(values: Any) -> str | None:
    return next((value._name for value in values if isinstance(value, Small)), None)


def mapped(lanes: Lanes, compute: Callable[..., Any], *operands: Any) -> Small:
    """Return the results of a function of scalars, for entries that broadcast."""
    shape = np.broadcast_shapes(*(np.shape(one) for one in operands if isinstance(one, np.ndarray)))
    found = np.empty(shape, object)
    arrays = [np.broadcast_to(one, shape) if isinstance(one, np.ndarray) else None for one in operands]
    for at in np.ndindex(shape):
        found[at] = compute(*[one if array is None else array[at] for one, array in zip(operands, arrays, strict=True)])
    return Small(lanes, found)


def elementwise(name: str) -> Callable[..., Small]:
    """Return an elementwise function."""
    compute = function_named(name)

    def apply(*operands: Any, **options: Any) -> Small:
        lanes, dtype = lanes_of(operands), _dtype_among(operands)
        if name == "where":
            dtype = _dtype_among(operands[1:])
        ndim = max(one.ndim for one in operands if isinstance(one, Small))
        shaped = [entries_of(lanes, one, dtype, ndim) for one in operands]
        return mapped(lanes, functools.partial(compute, **options) if options else compute, *shaped)

    return apply


def _axis(x: Any, axis: Any) -> tuple[int, ...]:
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple(sorted([one % x.ndim for one in axes]))


def reduction(combine: Callable[..., Any]) -> Callable[..., Small]:
    """Return a function that combines numbers along axes, in order."""

    def reduced(
        x: Any, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False, dtype: Any = None
    ) -> Small:
        if dtype is not None and dtype_name(dtype) != x._name:
            raise Untraceable("it reduces in another dtype")
        if isinstance(dim, list):
            dim = tuple(dim)
        axes = _axis(x, dim if axis is None else axis)
        moved = np.moveaxis(x._entries, axes, range(len(axes)))
        inner = moved.shape[len(axes) :]
        rows = moved.reshape((math.prod(moved.shape[: len(axes)]), *inner))
        if not len(rows):
            raise Untraceable("it reduces an axis without elements")
        total = functools.reduce(lambda p, q: mapped(x._lanes, combine, p, q)._entries, rows)
        holder = np.empty(inner, object)
        holder[...] = total
        return Small(x._lanes, np.expand_dims(holder, axes) if keepdims or keepdim else holder)

    return reduced


_add, _multiply, _subtract = (lambda p, q: p + q), (lambda p, q: p * q), (lambda p, q: p - q)
_sum, _product = reduction(_add), reduction(_multiply)
_maximum, _minimum = reduction(function_named("maximum")), reduction(function_named("minimum"))


def _mean(x: Any, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False) -> Small:
    axes = _axis(x, dim if axis is None else axis)
    total = _sum(x, axes, keepdims or keepdim)
    count = float(math.prod([x.shape[one] for one in axes]))
    return mapped(x._lanes, lambda one: one / constant(one._lines, count, one._dtype, written=True), total._entries)


def contracted(spec: str, *operands: Any) -> Small:
    """Return an Einstein sum. Terms are added in the order of their indices."""
    lanes = lanes_of(operands)
    dtype = _dtype_among(operands)
    arrays = [
        one._entries if isinstance(one, Small) else lanes.factors(array_of(one, dtype), dtype or "") for one in operands
    ]
    inputs, arrow, output = spec.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(arrays):
        raise Untraceable(f"einsum {spec} has other operands")
    spare = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in spec]
    width = max(one.ndim - len(term.replace("...", "")) for term, one in zip(terms, arrays, strict=True))
    dots = spare[:width]
    letters = []
    for term, one in zip(terms, arrays, strict=True):
        count = one.ndim - len(term.replace("...", ""))
        if count and "..." not in term:
            raise Untraceable(f"einsum {spec} does not fit its operands")
        letters.append(term.replace("...", "".join(dots[width - count :])))
    if not arrow:
        names = "".join(terms).replace("...", "")
        output = ("..." if width else "") + "".join(sorted(one for one in {*names} if names.count(one) == 1))
    target = output.replace("...", "".join(dots))
    lengths: dict[str, int] = {}
    for names, one in zip(letters, arrays, strict=True):
        for letter, length in zip(names, one.shape, strict=True):
            if lengths.setdefault(letter, length) == 1:
                lengths[letter] = length
            if length not in (1, lengths[letter]):
                raise Untraceable(f"einsum {spec} does not fit its operands")
    summed = [letter for letter in lengths if letter not in target]
    # A product belongs to the lane of its first factor.
    order = sorted(range(len(arrays)), key=lambda at: not isinstance(operands[at], Small))
    letters, arrays = [letters[at] for at in order], [arrays[at] for at in order]
    found = np.empty([lengths[letter] for letter in target], object)
    for at in np.ndindex(found.shape):
        total = None
        for inner in itertools.product(*(range(lengths[letter]) for letter in summed)):
            place = dict(zip((*target, *summed), (*at, *inner), strict=True))
            factors = [
                one[tuple([place[letter] if one.shape[k] > 1 else 0 for k, letter in enumerate(names)])]
                for names, one in zip(letters, arrays, strict=True)
            ]
            term = functools.reduce(_multiply, factors)
            total = term if total is None else total + term
        if total is None:
            raise Untraceable("it sums no elements")
        found[at] = total
    return Small(lanes, found)


def _matmul(x: Any, y: Any) -> Small:
    kinds = {(1, 1): "i,i->", (1, 2): "j,...jk->...k", (2, 1): "...ij,j->...i", (2, 2): "...ij,...jk->...ik"}
    ranks = tuple([min(getattr(one, "ndim", 0), 2) for one in (x, y)])
    if ranks not in kinds:
        raise Untraceable("it multiplies numbers as matrices")
    return contracted(kinds[ranks], x, y)


def solved(matrix: Any, right: Any) -> Small:
    """Return the solution of systems of equations, by elimination with the largest pivot of each column."""
    lanes = lanes_of((matrix, right))
    dtype = _dtype_among((matrix, right))
    a = np.array(entries_of(lanes, matrix, dtype), dtype=object)
    b = np.array(entries_of(lanes, right, dtype), dtype=object)
    n = a.shape[-1]
    if a.shape[-2:] != (n, n) or b.shape[-2] != n:
        raise Untraceable("it solves systems of equations that are not square")
    where, absolute = function_named("where"), function_named("abs")

    def on(compute: Callable[..., Any], *operands: Any) -> Entries:
        return mapped(lanes, compute, *operands)._entries

    rows = [[a[..., i, j] for j in range(n)] + [b[..., i, j] for j in range(b.shape[-1])] for i in range(n)]
    width = len(rows[0])
    rows = [[_as_entries(one) for one in row] for row in rows]
    for k in range(n):
        for i in range(k + 1, n):
            larger = on(lambda p, q: absolute(p) > absolute(q), rows[i][k], rows[k][k])
            for j in range(k, width):
                upper, lower = rows[k][j], rows[i][j]
                rows[k][j] = on(where, larger, lower, upper)
                rows[i][j] = on(where, larger, upper, lower)
        for i in range(k + 1, n):
            factor = on(lambda p, q: p / q, rows[i][k], rows[k][k])
            for j in range(k + 1, width):
                rows[i][j] = on(_subtract, rows[i][j], on(_multiply, factor, rows[k][j]))
    x: list[list[Any]] = [[] for _ in range(n)]
    for i in range(n - 1, -1, -1):
        for j in range(n, width):
            value = rows[i][j]
            for k in range(i + 1, n):
                value = on(_subtract, value, on(_multiply, rows[i][k], x[k][j - n]))
            x[i].append(on(lambda p, q: p / q, value, rows[i][i]))
    return Small(lanes, np.stack([np.stack(row, axis=-1) for row in x], axis=-2))


def _as_entries(value: Any) -> Entries:
    if isinstance(value, np.ndarray):
        return value
    holder = np.empty((), object)
    holder[()] = value
    return holder


def _solve(matrix: Any, right: Any) -> Small:
    if right.ndim == 1:
        lanes, dtype = lanes_of((matrix, right)), _dtype_among((matrix, right))
        return solved(matrix, Small(lanes, entries_of(lanes, right, dtype))[..., None])[..., 0]
    return solved(matrix, right)


def _solve_in_torch(matrix: Any, right: Any) -> Small:
    vectors = right.ndim == matrix.ndim - 1 and tuple(right.shape) == tuple(matrix.shape[:-1])
    return solved(matrix, right[..., None])[..., 0] if vectors else _solve(matrix, right)


def _inverse(matrix: Any) -> Small:
    lanes = matrix._lanes
    unit = lanes.constants(np.eye(matrix.shape[-1]), matrix._name)
    batch = matrix.shape[:-2]
    extra = len(batch) - len(lanes.shape)
    unit = np.reshape(unit, (*lanes.shape, *(1,) * extra, *unit.shape[-2:]))
    return solved(matrix, Small(lanes, np.broadcast_to(unit, matrix.shape)))


def _trace(x: Any) -> Small:
    return contracted("...ii->...", x)


def _arrays(x: Any) -> tuple[Lanes, list[Entries]]:
    """Return the entries of a sequence of arrays."""
    lanes, dtype = lanes_of(x), _dtype_among(x)
    ndim = max(one.ndim for one in x if isinstance(one, Small))
    return lanes, [np.asarray(entries_of(lanes, one, dtype, ndim), dtype=object) for one in x]


def _concat(xs: Any, axis: int = 0, *, dim: int | None = None) -> Small:
    lanes, arrays = _arrays(xs)
    return Small(lanes, np.concatenate(arrays, axis=axis if dim is None else dim))


def _stack(xs: Any, axis: int = 0, *, dim: int | None = None) -> Small:
    lanes, arrays = _arrays(xs)
    return Small(lanes, np.stack(arrays, axis=axis if dim is None else dim))


def _permuted(x: Small, *axes: Any) -> Small:
    axes = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    return x._moved(np.transpose(x._entries, axes or None))


def _transposed(x: Small, *axes: Any) -> Small:
    if len(axes) == 2 and x.ndim != 2 and all(isinstance(one, int) for one in axes):  # PyTorch names two axes
        return x._moved(np.swapaxes(x._entries, *axes))
    return _permuted(x, *axes)


def _reshaped(x: Small, *shape: Any, **options: Any) -> Small:
    if "shape" in options:
        shape = (options.pop("shape"),)
    options.pop("copy", None)
    if options:
        raise Untraceable("it reshapes an array with an option")
    return x._moved(x._entries.reshape(*shape))


def _by_numpy(name: str) -> Callable[..., Small]:
    """Return a function of NumPy that moves entries."""
    move = getattr(np, name)

    def moved(x: Small, *args: Any, **options: Any) -> Small:
        if "dim" in options:
            options["axis"] = options.pop("dim")
        return x._moved(move(x._entries, *args, **options))

    return moved


def _astype(x: Any, dtype: Any, *, copy: bool = True) -> Small:
    compute = function_named("astype")
    return mapped(x._lanes, lambda one: compute(one, dtype, copy=copy), x._entries)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "matmul": _matmul,
    "einsum": contracted,
    "sum": _sum,
    "prod": _product,
    "mean": _mean,
    "amax": _maximum,
    "amin": _minimum,
    "solve": _solve,
    "linalg_solve": _solve_in_torch,
    "inv": _inverse,
    "inverse": _inverse,
    "trace": _trace,
    "concat": _concat,
    "concatenate": _concat,
    "cat": _concat,
    "stack": _stack,
    "permute_dims": _permuted,
    "permute": _permuted,
    "transpose": _transposed,
    "reshape": _reshaped,
    "view": _reshaped,
    "unsqueeze": _by_numpy("expand_dims"),
    "matrix_transpose": lambda x: x.mT,
    "astype": _astype,
    "clone": lambda x: x,
    **{
        name: _by_numpy(name)
        for name in ("swapaxes", "moveaxis", "expand_dims", "squeeze", "broadcast_to", "flip", "roll", "repeat")
    },
    "ndim": lambda x: x.ndim,
    "shape": lambda x: x.shape,
}

_METHODS = frozenset(
    "sum prod mean reshape view transpose permute swapaxes squeeze unsqueeze astype clone repeat abs sqrt exp log conj "
    "inverse clip".split()
)


def function(name: str) -> Callable[..., Any]:
    """Return a function of small arrays by its name in NumPy, PyTorch or the standard."""
    name = standard_name(name)
    if name in ("max", "min"):
        extremum = {"max": _maximum, "min": _minimum}[name]
        return lambda x, *args, **options: (
            elementwise(f"{name}imum")(x, *args)
            if args and isinstance(args[0], Small)
            else extremum(x, *args, **options)
        )
    return _FUNCTIONS[name] if name in _FUNCTIONS else elementwise(name)


class _LinearAlgebra:
    """The extension ``linalg`` of the namespace."""

    solve: Any = staticmethod(_solve)
    inv: Any = staticmethod(_inverse)
    matmul: Any = staticmethod(_matmul)
    trace: Any = staticmethod(_trace)
    matrix_transpose: Any = staticmethod(lambda x: x.mT)


class _Namespace:
    """The array namespace of small arrays."""

    __name__ = "parprims._operators.small"
    linalg = _LinearAlgebra()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("eye", "zeros", "ones", "asarray", "arange"):
            return functools.partial(_made, name)
        if name in ("pi", "e", "inf", "nan", "finfo", "iinfo", "isdtype") or name in _DTYPES:
            return getattr(tracing.NAMESPACE, name)
        return function(name)


def _made(name: str, *args: Any, dtype: Any = None, device: Any = None) -> Any:
    """Return a new array of NumPy."""
    del device
    kind = None if dtype is None else dtype_name(dtype)
    return getattr(np, name)(*args, dtype=None if kind is None else np.dtype(kind))


_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
)
NAMESPACE = _Namespace()


def _binary(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    def apply(self: Any, other: Any) -> Any:
        compute = function(name)
        return compute(other, self) if reflected else compute(self, other)

    return apply


for _method, _name in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "matmul": "matmul",
}.items():  # fmt: skip
    setattr(Small, f"__{_method}__", _binary(_name))
    setattr(Small, f"__r{_method}__", _binary(_name, reflected=True))
for _method, _name in {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}.items():  # fmt: skip
    setattr(Small, f"__{_method}__", _binary(_name))
for _method, _name in {"neg": "negative", "pos": "positive", "invert": "bitwise_invert", "abs": "abs"}.items():
    setattr(Small, f"__{_method}__", lambda self, name=_name: function(name)(self))
