"""Valid calls of every public function, and what each is to return."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import parprims
from tests.fuzz.draw import (
    GOOD_OPERATORS,
    Draw,
    itself,
    keep_first,
    keep_last,
    largest_of,
    minus,
    product,
    returns_none,
    returns_text,
    square,
)
from tests.fuzz.foreign import draw_foreign
from tests.fuzz.values import (
    COMPLEX,
    FORMATS,
    IDENTITIES,
    INTEGERS,
    NUMBERS,
    REAL,
    Call,
    Expected,
    Step,
    differs,
    eps,
    folded,
    kind,
    largest,
    result_of_sum,
    single,
    stacked,
    tiny,
    wide,
    working_eps,
    wrapped,
)
from tests.support.contract import numpy_dtype


def draw_reduce(d: Draw, name: str) -> Call:
    ops = {
        "sum": "add",
        "prod": "multiply",
        "max": "maximum",
        "min": "minimum",
        "any": "logical_or",
        "all": "logical_and",
    }
    fixed = ops.get(name)
    own = None
    if fixed is None and d.chance(0.25):
        own = d.one(tuple(GOOD_OPERATORS))
    op = fixed or GOOD_OPERATORS.get(own) or (None if own else d.one(tuple(IDENTITIES)))
    x = d.values(d.shape(), d.dtype(*dtypes_of(name if fixed else own.__name__ if own else op)))
    array, x = d.array(x)
    axes: Any = None
    if x.ndim and d.chance(0.7):
        axes = d.axis(x.ndim)
        if d.chance(0.3):
            axes = tuple(int(a) for a in d.rng.permutation(x.ndim)[: int(d.rng.integers(0, x.ndim + 1))])
    options: dict[str, Any] = {}
    if axes is not None or d.chance(0.5):
        options["axis"] = axes
    keepdims = d.flag()
    if keepdims or d.chance(0.3):
        options["keepdims"] = keepdims
    taken = range(x.ndim) if axes is None else axes if isinstance(axes, tuple) else (int(axes),)
    taken = sorted(a % x.ndim for a in taken)
    kept = [a for a in range(x.ndim) if a not in taken]
    if name in ("any", "all"):
        x = x != 0
    dtype = x.dtype.name
    if own is None and op in ("add", "multiply"):
        dtype = result_of_sum(dtype)
        if d.chance(0.2) and kind(x.dtype.name) != "bool":
            dtype = d.dtype(*wider(x.dtype.name))
            options["dtype"] = d.asked(dtype)
    with np.errstate(all="ignore"):
        y = x.astype(numpy_dtype(dtype))
    n = math.prod(x.shape[a] for a in taken)
    shape = tuple(x.shape[a] for a in kept)
    elements = list(np.moveaxis(np.transpose(y, (*kept, *taken)).reshape((*shape, n)), -1, 0))
    no_identity = own is not None and n == 0
    if name == "reduce" and (no_identity or d.chance(0.2)):
        options["initial"], start = draw_initial(d, () if keepdims else shape, dtype)
        elements = [np.broadcast_to(start, shape), *elements]
    steps = fold_own(own, op, elements, dtype)
    step = steps[-1] if steps else None
    if step is None and own is None:
        step = single(op, dtype, shape)
    wrong: set[str] = set()
    if step is None or (n == 0 and name in ("max", "min")):
        wrong = {"x"}
        step = (np.zeros(shape), 0.0, False)
    expected = Expected(np.asarray(step[0]), dtype, step[1], step[2])
    if keepdims:
        long = tuple(1 if a in taken else m for a, m in enumerate(x.shape))
        parts = np.broadcast_arrays(expected.values, expected.bound, expected.unknown)
        expected.values, expected.bound, expected.unknown = (one.reshape(long) for one in parts)
    args: list[Any] = [array]
    if not fixed:
        args.append(own or op)
        if own is None and op == "add" and d.chance(0.5):
            args.pop()
    return Call(name, args, options, lambda got: differs(d.backend, got, expected), wrong)


def fold_own(own: Any, op: str | None, elements: list[np.ndarray], dtype: str) -> list[Step]:
    """Return the steps of an operator, an own one perhaps."""
    if own is keep_first:
        return [(elements[0], 0.0, False) for _ in elements]
    if own is keep_last:
        return [(one, 0.0, False) for one in elements]
    if own is largest_of:  # a NaN is never larger, nor is anything larger than one
        steps: list[Step] = []
        for x in elements:
            with np.errstate(all="ignore"):
                if steps:
                    y, _, unknown = steps[-1]
                    steps.append((np.where(x > y, x, y), 0.0, unknown | (x != x)))
                else:
                    steps.append((x, 0.0, x != x))
        return steps
    assert op is not None
    return folded(op, elements, dtype)


def draw_initial(d: Draw, shape: tuple[int, ...], dtype: str) -> tuple[Any, np.ndarray]:
    """Return an initial element as it is given, and as an array of the shape."""
    x = d.values(shape if d.chance(0.4) else (), dtype, tame=True)
    full = np.broadcast_to(x, shape)
    if x.ndim == 0 and d.chance(0.6):
        value = x[()].item()
        if d.chance(0.3) and dtype != "bfloat16":
            value = x[()]
            if dtype in ("float32", "float16") and d.chance(0.5):
                value = np.float64(value)
        return value, full
    array, x = d.array(x)
    return array, np.broadcast_to(x, shape)


def dtypes_of(op: str) -> tuple[str, ...]:
    """Return the dtypes of elements of an operator or a function."""
    return {
        "add": ("bool", *NUMBERS),
        "multiply": ("bool", *NUMBERS),
        "sum": ("bool", *NUMBERS),
        "prod": ("bool", *NUMBERS),
        "cumulative_sum": ("bool", *NUMBERS),
        "cumulative_prod": ("bool", *NUMBERS),
        "max": REAL,
        "min": REAL,
        "maximum": REAL,
        "minimum": REAL,
        "largest_of": REAL,
        "logical_and": ("bool",),
        "logical_or": ("bool",),
        "bitwise_and": ("bool", *INTEGERS),
        "bitwise_or": ("bool", *INTEGERS),
        "bitwise_xor": ("bool", *INTEGERS),
        "logaddexp": ("float32", "float64"),
        "plus": NUMBERS,
    }.get(op, ("bool", *NUMBERS))


def wider(dtype: str) -> tuple[str, ...]:
    """Return dtypes that hold the numbers of one, or floats of other widths."""
    if kind(dtype) == "complex":
        return COMPLEX
    if kind(dtype) == "float":
        return ("float32", "float64")
    return (dtype, "int64", "float64", "float32") if dtype != "uint64" else ("uint64", "float64")


def draw_scan(d: Draw, name: str) -> Call:
    fixed = {"cumulative_sum": "add", "cumulative_prod": "multiply"}.get(name)
    own = d.one(tuple(GOOD_OPERATORS)) if fixed is None and d.chance(0.2) else None
    op = fixed or GOOD_OPERATORS.get(own) or (None if own else d.one(tuple(IDENTITIES)))
    x = d.values(d.shape(1), d.dtype(*dtypes_of(own.__name__ if own else op)))
    array, x = d.array(x)
    axis = d.axis(x.ndim)
    options: dict[str, Any] = {"axis": axis}
    if fixed and x.ndim == 1 and d.chance(0.5):
        axis = 0
        options = d.one(({}, {"axis": None}))
    axis = int(axis) % x.ndim
    dtype = x.dtype.name
    if own is None and op in ("add", "multiply"):
        dtype = result_of_sum(dtype)
        if d.chance(0.2) and kind(x.dtype.name) != "bool":
            dtype = d.dtype(*wider(x.dtype.name))
            options["dtype"] = d.asked(dtype)
    with np.errstate(all="ignore"):
        y = x.astype(numpy_dtype(dtype))
    shape = y.shape[:axis] + y.shape[axis + 1 :]
    elements = list(np.moveaxis(y, axis, 0))
    exclusive = reverse = include = False
    wrong: set[str] = set()
    start = None
    exclusive, reverse = d.flag(), d.flag()
    if fixed and not exclusive:
        include = d.flag()
        if include or d.chance(0.3):
            options["include_initial"] = include
    options |= {"exclusive": exclusive} if exclusive or d.chance(0.3) else {}
    options |= {"reverse": reverse} if reverse or d.chance(0.3) else {}
    if d.chance(0.3) or (own and exclusive and d.chance(0.8)):
        options["initial"], start = draw_initial(d, shape, dtype)
    elif own and exclusive:
        wrong = {"initial"}
    lasts = not fixed and not wrong and d.chance(0.2) and (start is not None or not own)
    options |= {"return_last": True} if lasts else {}
    if reverse:
        elements.reverse()
    steps = fold_own(own, op, elements if start is None else [start, *elements], dtype)
    end = steps[-1] if steps else None if own else single(op, dtype, shape)
    if start is not None and not include:
        steps = steps[:-1] if exclusive else steps[1:]
    elif exclusive and elements:
        steps = [single(op, dtype, shape) if op and not own else steps[0], *steps[:-1]]
    elif include and start is None:
        steps = [single(op, dtype, shape), *steps]
    if reverse:
        steps.reverse()
    length = y.shape[axis] + int(include)
    expected = stacked(steps, axis, (*y.shape[:axis], length, *y.shape[axis + 1 :]), dtype)
    args = [array] if fixed or (op == "add" and not own and d.chance(0.3)) else [array, own or op]
    if lasts and end is not None:
        value, bound, unknown = end
        last = Expected(np.asarray(value), dtype, bound, unknown)
        check = lambda got: differs(d.backend, got[0], expected) or differs(d.backend, got[1], last)  # noqa: E731
        return Call(name, args, options, check, wrong)
    return Call(name, args, options, lambda got: differs(d.backend, got, expected), wrong)


def draw_recurrence(d: Draw, name: str) -> Call:
    dtype = d.dtype(*NUMBERS)
    shape = d.shape(1)
    axis = d.axis(len(shape))
    a = d.values(d.one((shape, (), tuple(d.one((n, 1)) for n in shape))), dtype, tame=True)
    b = d.values(shape, dtype, tame=d.chance(0.8))
    if dtype in FORMATS:
        a = (a / numpy_dtype(dtype).type(2)).astype(a.dtype)
    given_a, a = d.array(a)
    given_b, b = d.array(b)
    if a.ndim == 0 and d.chance(0.5):
        given_a = a[()].item()
        if dtype == "float32" and d.chance(0.3) and d.backend.name not in ("numpy", "emulated"):
            given_a = np.float64(given_a)
    options: dict[str, Any] = {"axis": axis} if int(axis) != -1 or d.chance(0.5) else {}
    axis = int(axis) % len(shape)
    reverse = d.flag()
    if reverse or d.chance(0.3):
        options["reverse"] = reverse
    rest = shape[:axis] + shape[axis + 1 :]
    elements = list(zip(*(np.moveaxis(np.broadcast_to(x, shape), axis, 0) for x in (a, b)), strict=True))
    if reverse:
        elements.reverse()
    state: Any = None
    if d.chance(0.4):
        options["initial"], state = draw_initial(d, rest, dtype)
        state = wide(state)
    size: Any = None if state is None else abs(state)
    steps: list[Step] = []
    strange: Any = np.zeros(rest, dtype=bool)
    for n, (x, y) in enumerate(elements, 2):
        u, v = wide(x), wide(y)
        with np.errstate(all="ignore"):
            state, size = (v, abs(v)) if state is None else (u * state + v, abs(u) * size + abs(v))
            if dtype not in FORMATS:
                steps.append((wrapped(state, dtype), 0.0, False))
                continue
            strange = strange | ~np.isfinite(v.astype(np.clongdouble)) | (size > largest(dtype) / 4)
            scale = 12 if kind(dtype) == "complex" else 4
            bound = size * (scale * n * working_eps(dtype) + eps(dtype)) + n * tiny(dtype)
            steps.append((np.asarray(state), bound, strange))
    if reverse:
        steps.reverse()
    expected = stacked(steps, axis, shape, dtype)
    return Call(name, [given_a, given_b], options, lambda got: differs(d.backend, got, expected))


def order(x: np.ndarray, descending: bool) -> list[int]:
    """Return the stable order of a row: NaN last, or first if descending."""
    ints = x.dtype.kind in "biu"

    def key(i: int) -> tuple[bool, Any]:
        value = int(x[i]) if ints else float(x[i])
        nan = value != value
        return (not nan, 0 if nan else -value) if descending else (nan, 0 if nan else value)

    return sorted(range(len(x)), key=key)


def draw_sort(d: Draw, name: str) -> Call:
    x = d.values(d.shape(1), d.dtype("bool", *REAL))
    array, x = d.array(x)
    axis = d.axis(x.ndim)
    options: dict[str, Any] = {"axis": axis} if int(axis) != -1 or d.chance(0.5) else {}
    axis = int(axis) % x.ndim
    descending, stable = d.flag(), d.flag(0.8)
    options |= {"descending": descending} if descending or d.chance(0.3) else {}
    options |= {"stable": stable} if not stable or d.chance(0.3) else {}
    rows = np.moveaxis(x, axis, -1)
    flat = rows.reshape((-1, rows.shape[-1])) if rows.size else rows.reshape((0, rows.shape[-1]))
    indices = np.array([order(row, bool(descending)) for row in flat], dtype=np.int64).reshape(rows.shape)
    indices = np.moveaxis(indices, -1, axis)
    values = []
    if name == "sort_by_key":
        for _ in range(int(d.rng.integers(0, 3))):
            values.append(d.array(d.values(x.shape, d.dtype("bool", *NUMBERS))))
    arrays = [x, *(one for _, one in values)]
    moved = [np.take_along_axis(one, indices, axis=axis) for one in arrays]
    backend = d.backend

    def check(got: Any) -> str | None:
        results = got if name == "sort_by_key" else (got,)
        if not isinstance(results, tuple) or len(results) != (len(arrays) if name == "sort_by_key" else 1):
            return f"result is {type(got).__name__} of other length"
        if name == "argsort" and not stable:
            found = np.sort(backend.to_numpy(got), axis=axis)
            if found.shape != x.shape or (found != np.sort(indices, axis=axis)).any():
                return "indices are no permutation"
            again = np.take_along_axis(x, backend.to_numpy(got).astype(np.int64), axis=axis)
            return None if np.array_equal(again, moved[0], equal_nan=x.dtype.kind != "b") else "order is wrong"
        if name == "argsort":
            return differs(backend, got, Expected(indices, None))
        for at, (one, wanted) in enumerate(zip(results, moved, strict=True)):
            if at and not stable:
                continue  # equal keys may come in any order
            # The bits of NaN may change on the way to us, and on JAX's.
            exact = bool(stable) and not backend.name.startswith("jax") and wanted.dtype.name != "bfloat16"
            problem = differs(backend, one, Expected(wanted, wanted.dtype.name, bits=wanted if exact else None))
            if problem:
                return f"array {at}: {problem}"
        return None

    return Call(name, [array, *(one for one, _ in values)], options, check)


def draw_tridiagonal(d: Draw, name: str) -> Call:
    dtype = d.dtype("float32", "float64", *COMPLEX, "float16", "bfloat16")
    n = d.one((1, 2, 5)) if d.few else int(d.rng.integers(0, 12))
    batch = d.one(((), (3,))) if not d.few else ()
    shape = (*batch, n)
    numbers = d.chance(0.2)
    coefficients, given = [], []
    for at in range(3):
        x = d.values(() if numbers else shape, dtype, tame=True)
        if at == 1:
            x = np.asarray(x / numpy_dtype(dtype).type(4) + numpy_dtype(dtype).type(4)).astype(x.dtype)
        else:
            x = np.asarray(np.clip(x.real, -1, 1)).astype(x.dtype)
        if numbers and d.chance(0.7):
            given.append(x[()].item())
        else:
            array, x = d.array(x)
            given.append(array)
        coefficients.append(np.broadcast_to(x, shape))
    columns = not numbers and d.chance(0.2)
    rhs = d.values((*shape, 2) if columns else shape, dtype, tame=True)
    array, rhs = d.array(rhs)
    options: dict[str, Any] = {}
    periodic, transpose, residual, status = d.flag(0.2), d.flag(0.2), d.flag(0.2), d.flag(0.2)
    for key, value in (
        ("periodic", periodic),
        ("transpose", transpose),
        ("return_residual", residual),
        ("return_status", status),
    ):
        if value or d.chance(0.2):
            options[key] = value
    if d.chance(0.4):
        options["pivot"] = d.one(("auto", "partial", "none"))
    if d.chance(0.2):
        options["axis"] = -1
    backend = d.backend

    def check(got: Any) -> str | None:
        results = got if residual or status else (got,)
        if not isinstance(results, tuple) or len(results) != 1 + bool(residual) + bool(status):
            return "result has another number of arrays"
        right = rhs if columns else rhs[..., None]
        wrong = differs(backend, results[0], Expected(np.zeros(rhs.shape), dtype, unknown=True))
        if wrong:
            return wrong
        x = wide(backend.to_numpy(results[0]))
        x = x if columns else x[..., None]
        matrix = np.zeros((*shape, n), dtype=x.dtype)
        for i in range(n):
            matrix[..., i, i] += wide(coefficients[1][..., i])
            for at, j in ((0, i - 1), (2, i + 1)):
                if periodic or 0 <= j < n:
                    matrix[..., i, j % n] += wide(coefficients[at][..., i])
        if transpose:
            matrix = np.swapaxes(matrix, -1, -2)
        size = abs(matrix) @ abs(x) + abs(wide(right))
        wrong = abs(matrix @ x - wide(right)) > (200 * working_eps(dtype) + 4 * eps(dtype)) * size + 8 * tiny(dtype)
        if not np.isfinite(x.astype(np.clongdouble)).all() or wrong.any():
            return f"solution is wrong: {x[..., 0].tolist()}"
        for one in results[1:]:
            wrong = differs(backend, one, Expected(np.zeros((*batch, 2) if columns else batch), None, unknown=True))
            if wrong:
                return f"residual or status: {wrong}"
        if status and backend.to_numpy(results[-1]).any():
            return "status is not 0"
        return None

    return Call(name, [*given, array], options, check)


def draw_matmul(d: Draw, name: str) -> Call:
    ring = d.chance(0.7)
    pairs = {("minimum", "add"): ("float32", "float64", "int32"), ("logical_or", "logical_and"): ("bool",)}
    add, multiply = ("add", "multiply") if ring else d.one(tuple(pairs))
    dtype = d.dtype(*(NUMBERS if ring else pairs[add, multiply]))
    m, n, k = (2, 3, 4) if d.few else (int(one) for one in d.rng.choice([0, 1, 2, 3, 5, 8, 17], 3))
    batch = () if d.few else d.one(((), (), (2,), (1, 3)))
    shapes = [d.one(((*batch, m, k), (m, k), (k,))), d.one(((*batch, k, n), (k, n), (k,)))]
    x, y = (d.values(shape, dtype, tame=True) for shape in shapes)
    (a, x), (b, y) = d.array(x), d.array(y)
    options: dict[str, Any] = {} if ring else {"add": add, "multiply": multiply}
    if d.chance(0.2):
        options["tile"] = d.one((1, 4, (2, 3, 4)))
    if d.chance(0.1) and ring and dtype == "float32":
        options["precision"] = d.one(("float32", "tf32", "highest", "residues"))
    rows, columns = (x if x.ndim > 1 else x[None]), (y if y.ndim > 1 else y[:, None])
    u, v = wide(rows)[..., :, :, None], wide(columns)[..., None, :, :]
    with np.errstate(all="ignore"):
        terms = np.moveaxis(getattr(np, multiply)(u, v), -2, 0)
    shape = terms.shape[1:]
    exact = kind(dtype) not in ("float", "complex")
    if ring:
        values = terms.sum(axis=0) if k else np.zeros(shape, dtype=terms.dtype)
        size = abs(terms).sum(axis=0) if k else np.zeros(shape)
    else:
        function = getattr(np, add)
        values = np.full(shape, IDENTITIES[add](dtype), dtype=terms.dtype)
        for one in terms:
            values = np.asarray(function(values, one))
        size = np.where(np.isfinite(values.astype(np.float64)), abs(values.astype(np.float64)), 0)
    if exact:
        values, bound = (wrapped(values, dtype) if kind(dtype) != "bool" else values.astype(bool)), 0.0
    else:
        loose = 2.0**-9 if options.get("precision") == "tf32" else 0.0
        bound = np.asarray(size).astype(np.float64) * (16 * (k + 2) * working_eps(dtype) + eps(dtype) + loose)
    unknown = False
    if kind(dtype) in ("int", "uint") and not ring:
        unknown = False
    final = (*shape[:-2], *(shape[-2:-1] if x.ndim > 1 else ()), *(shape[-1:] if y.ndim > 1 else ()))
    parts = np.broadcast_arrays(values, bound, unknown)
    values, bound, unknown = (np.asarray(one).reshape(final) for one in parts)
    expected = Expected(values, dtype, bound, unknown)
    call = Call(name, [a, b], options, lambda got: differs(d.backend, got, expected))
    call.may_refuse = "precision" in options
    return call


def draw_vecdot(d: Draw, name: str) -> Call:
    dtype = d.dtype(*NUMBERS)
    shape = d.shape(1)
    x, y = (d.values(shape, dtype, tame=True) for _ in range(2))
    (a, x), (b, y) = d.array(x), d.array(y)
    axis = -1 - int(d.rng.integers(len(shape)))
    options = {"axis": axis} if axis != -1 or d.chance(0.5) else {}
    u, v = wide(x), wide(y)
    terms = (np.conj(u) if kind(dtype) == "complex" else u) * v
    values, size = terms.sum(axis=axis), abs(terms).sum(axis=axis)
    if dtype in FORMATS:
        bound = np.asarray(size) * (16 * (shape[axis] + 2) * working_eps(dtype) + eps(dtype))
    else:
        values, bound = wrapped(np.asarray(values, dtype=object), dtype), 0.0
    expected = Expected(np.asarray(values), dtype, bound)
    return Call(name, [a, b], options, lambda got: differs(d.backend, got, expected))


def draw_map_reduce(d: Draw, name: str) -> Call:
    fn = d.one((square, product, itself))
    dtype = d.dtype(*(one for one in REAL if one not in ("float16", "bfloat16")))
    shape = d.shape()
    given = [d.array(d.values(shape, dtype, tame=True)) for _ in range(2 if fn is product else 1)]
    op = d.one(("add", "maximum"))
    x = fn(*(one for _, one in given))
    axis: Any = d.one((None, d.axis(len(shape)))) if shape else None
    options = {"op": op, "axis": axis}
    total = result_of_sum(dtype) if op == "add" else dtype
    y = np.moveaxis(x.astype(total), int(axis), -1) if axis is not None else x.astype(total).reshape(-1)
    steps = folded(op, list(np.moveaxis(y, -1, 0)), total)
    value, bound, unknown = steps[-1] if steps else single(op, total, y.shape[:-1])
    if total in FORMATS:
        bound = bound + 4 * eps(total) * abs(x).sum(axis=axis)
    expected = Expected(np.asarray(value), total, bound, unknown)
    call = Call(name, [fn, *(one for one, _ in given)], options, lambda got: differs(d.backend, got, expected))
    call.may_refuse = not d.backend.supports(dtype)
    return call


def draw_tuple(d: Draw, name: str) -> Call:
    """Return a reduction or a scan of elements of several components along an axis."""
    op = d.one(("argmax", "argmin", "affine", "segmented"))
    shape = d.shape(1, 2)
    axis = d.axis(len(shape))
    options: dict[str, Any] = {"axis": axis} if name == "scan" or len(shape) > 1 or d.chance(0.5) else {}
    axis = int(axis) % len(shape)
    reverse = name == "scan" and d.chance(0.2)
    if reverse:
        options["reverse"] = True
    if op in ("argmax", "argmin"):
        values = d.values(shape, d.dtype("int32", "float32", "float64", "uint8"))
        values = np.where(np.isfinite(values), values, 1).astype(values.dtype)
        xs = [values, np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), shape).astype("int32")]
    elif op == "affine":
        xs = [d.values(shape, d.one(("int32", "int64")), tame=True) for _ in range(1)] * 2
    else:
        xs = [d.values(shape, "bool"), d.values(shape, "int64", tame=True)]
    given = [d.array(x) for x in xs]
    arrays, xs = tuple(one for one, _ in given), [one for _, one in given]
    elements = list(zip(*(np.moveaxis(x, axis, 0) for x in xs), strict=True))
    if reverse:
        elements.reverse()
    steps: list[tuple[np.ndarray, ...]] = []
    for element in elements:
        steps.append(element if not steps else combined(op, steps[-1], element))
    call_op = parprims.segmented("add") if op == "segmented" else op
    dtypes = [x.dtype.name for x in xs]
    wrong = set()
    if name == "reduce":
        if steps:
            results = [np.asarray(one) for one in steps[-1]]
        elif op == "affine":
            results = [np.full(shape[:axis] + shape[axis + 1 :], one, dtype=dtypes[0]) for one in (1, 0)]
        else:
            return draw_tuple(d, name)  # the identity is a matter of the operator
    else:
        steps = steps[::-1] if reverse else steps
        results = [
            np.stack([step[at] for step in steps], axis=axis) if steps else np.zeros(shape, dtype=dtypes[at])
            for at in range(2)
        ]

    def check(got: Any) -> str | None:
        if not isinstance(got, tuple) or len(got) != 2:
            return "result is no pair"
        for one, wanted, dtype in zip(got, results, dtypes, strict=True):
            problem = differs(d.backend, one, Expected(wanted, dtype))
            if problem:
                return problem
        return None

    if name == "reduce" and len(shape) > 1 and "axis" not in options:
        options["axis"] = axis
    return Call(name, [arrays, call_op], options, check, wrong)


def combined(op: str, earlier: tuple[np.ndarray, ...], later: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Return two elements combined, element by element in NumPy."""
    (a, b), (c, e) = earlier, later
    if op == "affine":
        with np.errstate(all="ignore"):
            return c * a, c * b + e
    if op == "segmented":
        return a | c, np.where(c, e, b + e)
    better = c > a if op == "argmax" else c < a
    take = better | ((c == a) & (e < b))
    return np.where(take, c, a), np.where(take, e, b)


def draw_check(d: Draw, name: str) -> Call:
    """Return a check of an operator on examples, which holds or says where it does not."""
    right = (("add", "int64"), ("maximum", "float32"), (largest_of, "int32"), (keep_last, "int32"))
    not_right = ((minus, "int64"), (minus, "float64"), (returns_text, "float32"), (returns_none, "int32"))
    holds = d.chance(0.5)
    op, dtype = d.one(right if holds else not_right)
    n = int(d.rng.integers(0, 9)) if not d.few else d.one((3, 5))
    x = d.values((n,), dtype, tame=True)
    x = np.where(x == 0, np.ones_like(x), x)
    array, x = d.array(x)
    wrong = set() if holds and n >= 3 else {"examples"} if n < 3 else {"op"}
    return Call(name, [op, array], {}, lambda got: None if got is True else f"result is {got!r}", wrong)


DRAWS: dict[str, Callable[[Draw, str], Call]] = {
    "check_associative": draw_check,
    "linear_recurrence": draw_recurrence,
    "map_reduce": draw_map_reduce,
    "matmul": draw_matmul,
    "solve_tridiagonal": draw_tridiagonal,
    "vecdot": draw_vecdot,
}


def draw_call(d: Draw, name: str) -> Call:
    """Return a valid call of a function, by some method."""
    from tests.fuzz.segments import BY_OFFSETS, draw_segments  # which is made of this module

    if name in BY_OFFSETS and d.chance(0.2):
        call = draw_segments(d, name)
    elif name == "map_reduce" and d.backend.name != "array-api-strict" and d.chance(0.4):
        return draw_foreign(d)
    elif name in ("sort", "argsort", "sort_by_key"):
        call = draw_sort(d, name)
    elif name in ("reduce", "scan") and d.chance(0.2):
        call = draw_tuple(d, name)
    elif name in ("scan", "cumulative_sum", "cumulative_prod"):
        call = draw_scan(d, name)
    else:
        call = DRAWS.get(name, draw_reduce)(d, name)
    if name == "check_associative":
        return call
    method = d.one(("auto", "auto", "array", "array", "native", "kernel", "canonical"))
    call.may_refuse = call.may_refuse or method == "canonical"
    if method != "auto" or d.chance(0.2):
        call.options["method"] = np.str_(method) if d.chance(0.05) else method
    return call
