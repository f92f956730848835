"""Calls on arrays that are split: for each primitive, the work of the parts and its driver.

The file is long because it is the one table of all primitives for all engines.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import (
    Array,
    admit,
    broadcast_shapes,
    cast,
    check_choice,
    check_flag,
    device,
    dtype_kind,
    dtype_name,
    is_jax,
    is_tensor,
    move_axis,
    namespace_of,
    normalize_axes,
    normalize_axis,
    shared_axis,
)
from parprims._core.elements import flattened, rebuilt
from parprims._core.options import as_dtypes, check_entries, dtype_named
from parprims._core.promotion import check_casts
from parprims._core.scalars import as_array, is_scalar
from parprims._devices import tridiagonals
from parprims._devices.communicator import Quick, Step, steps_of
from parprims._devices.products import circulating_columns, circulating_factor, counts, inner_product
from parprims._devices.scans import (
    ScanCall,
    arrays_of,
    canonical_reduction,
    canonical_scans,
    decaying,
    recurrence,
    reduction,
    result_shape,
    scans,
    with_arrays,
)
from parprims._devices.sorts import SortCall, key_width, sorts
from parprims._devices.work import Engine, Names, Split, Stage, Work, in_front, option_key, part_of, together
from parprims._dispatch.dispatch import SPLIT, MethodRefused
from parprims._dispatch.primitive import Arguments, declared
from parprims._operators.flags import of_equal_shapes
from parprims._operators.operator import Operator, as_operator, names_of_leaves, restructured, rounds
from parprims._primitives.histogram import public as public_histogram
from parprims._primitives.matmul import public as public_matmul
from parprims._primitives.matmul.call import as_operators
from parprims._primitives.recurrence import public as public_recurrence
from parprims._primitives.reduce.call import SUMS, names_once_rounded, own_dtypes, widened
from parprims._primitives.reduce.public import reduce
from parprims._primitives.scan.trailing_axes.parts import combines_axes
from parprims._primitives.tridiagonal import public as public_tridiagonal
from parprims._primitives.tridiagonal.call import checked
from parprims._primitives.vecdot.public import vecdot

QUICK, QUICK_SYSTEMS = 2**20, 2**16
"""The least sizes of a part for which a quick way is worth its trial and the time to compile it: the elements along the
axis of a recurrence, and the unknowns of all tridiagonal systems together."""

LONGEST_HEAD = 2**12
"""The most unknowns at an end of a part that may depend on another part in a quick way."""


def reduced(engine: Engine, asked: Arguments) -> Any:
    """Compute any of the reductions."""
    primitive, method, options = asked.name, asked.method, asked.options
    x = next(iter(asked.arrays.values())) if primitive != "vecdot" else asked.flat
    fn, op, axis, dtype, initial = (options[name] for name in ("fn", "op", "axis", "dtype", "initial"))
    keepdims = _checked(method, keepdims=options["keepdims"])[0]
    single = not isinstance(x, tuple)
    arrays = (x,) if single else x
    key = option_key(primitive, **options, method=method)
    xp, operator = namespace_of(arrays[0]), as_operator(op)
    differ = False
    if fn is None and primitive != "vecdot":
        arrays, differ = of_equal_shapes(xp, operator, arrays, axis)
        axis = axis[0] if differ and isinstance(axis, tuple) and len(axis) == 1 else axis
    axis, splits = _of_elements(engine, operator, axis, _components(operator, arrays, single), differ=differ)
    split, keeps = splits[0], keepdims and not differ
    shape = tuple(arrays[0].shape) if differ else broadcast_shapes(*(tuple(one.shape) for one in arrays))
    axes = normalize_axes(axis, len(shape))
    combines = initial is not None and not all(map(is_scalar, initial if isinstance(initial, tuple) else (initial,)))
    computed, results = _dtypes_of_reduction(xp, fn, arrays, op=operator, dtype=dtype)
    narrow, wide = None, dtype
    if computed != results:  # 16-bit floats: parts have results in float32, which are combined and then rounded
        narrow, wide = results, computed if len(computed) > 1 else computed[0]
    names = tuple(dtype_name(one.dtype) for one in arrays)
    has_identity = fn is None and primitive not in ("max", "min") and operator.identity(*names) is not None

    def local(axes: tuple[int, ...], keepdims: bool, dtype: Any, initial: Any = None) -> Callable[..., Any]:
        if primitive == "vecdot":

            def product(*xs: Array) -> Array:
                if narrow is not None and dtype is wide:
                    xs = widened(namespace_of(xs[0]), xs)
                ndim = max(x.ndim for x in xs)
                return _kept(vecdot(*xs, axis=axes[0] - ndim, method=method), axes, keepdims)

            return product

        def part(*xs: Array) -> Any:
            changed = {"axis": axes, "keepdims": keepdims, "dtype": dtype, "initial": initial}
            call = Arguments(primitive, {"x": xs[0] if single else xs}, {**options, **changed}, method)
            return declared[primitive].of(call)

        return part

    def of_results(axes: tuple[int, ...]) -> Callable[..., Any]:
        return lambda *xs: reduce(
            xs[0] if len(xs) == 1 else xs, operator, axis=axes, keepdims=True, dtype=tuple(one.dtype for one in xs)
        )

    stages = []
    groups = engine.groups(split, axes)
    is_exact = fn is None and not rounds(operator, [one.dtype for one in arrays])
    if method == "canonical" and not is_exact and any(over for over, _ in groups):
        if differ:
            raise MethodRefused(f"{primitive}: method 'canonical' refused: {SPLIT}")
        if len(groups) > 1:
            raise ValueError("method must not be 'canonical' unless the first of the reduced axes alone is split")
        ((over, group),) = groups

        def blocks(xs: tuple[Array, ...], axis: int) -> Any:
            return local((axis,), False, wide)(*xs)

        options_of_end = {"initial": None if combines else initial, "dtypes": None if combines else narrow}
        steps = canonical_reduction(blocks, operator, group, keepdims=keepdims, **options_of_end)
        stages.append(Stage(over, engine.length(arrays, group[0], len(shape)), steps))
        groups = []
    for index, (over, group) in enumerate(groups):
        last = index == len(groups) - 1
        steps = reduction(
            of_results(group) if index else local(group, True, wide),
            operator,
            result_shape(axes, keeps) if last else tuple,
            initial=initial if last and not combines else None,
            dtypes=narrow if last and not combines else None,
            can_be_empty=has_identity,
        )
        along = arrays[:1] if differ else arrays
        stages.append(Stage(over, engine.length(along, group[0], len(shape)) if group else 1, steps))

    def without_axes(split: Split) -> Split:
        return tuple(() if at in axes else over for at, over in enumerate(split) if keeps or at not in axes)

    work = Work(
        primitive=primitive,
        arrays=arrays,
        inputs=tuple(part_of(own, one) for own, one in zip(splits, arrays, strict=True)),
        outputs=without_axes(split),
        stages=tuple(stages),
        plain=local(axes, keeps, wide if combines else dtype, None if combines else initial),
        key=key,
        canonical=is_exact or method == "canonical",
    )
    if not differ:
        totals = engine.compute(work)
        return _begun(operator, initial, totals, narrow) if combines else totals
    totals = _computed_apart(engine, work, [without_axes(own) for own in splits])
    whole = tuple(xp.expand_dims(one, axis=axis) for one in totals)  # operators of the caller's see the axis
    if combines:
        whole = _begun(operator, _with_axis(initial, axis, [one.ndim for one in whole]), whole, narrow)
    return whole if keepdims else tuple(xp.squeeze(one, axis=axis) for one in whole)


def _dtypes_of_reduction(
    xp: Any, fn: Callable[..., Any] | None, arrays: tuple[Array, ...], *, op: Operator, dtype: Any
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the dtypes to reduce in, and of the dtypes of the results."""
    dtypes = tuple(one.dtype for one in arrays)
    if fn is not None:
        try:
            dtypes = own_dtypes(xp, fn, tuple(one_like(xp, x) for x in arrays))
        except Exception:  # the call on parts raises the error of the map
            return (), ()
    requested = as_dtypes(xp, dtype)
    if requested is not None:
        check_entries("dtype", requested, len(dtypes))
        check_casts(dtypes, requested)
    return names_once_rounded(xp, dtypes, requested, op in SUMS)


def one_like(xp: Any, x: Array) -> Array:
    """Return an array of one element with the dtype and device of x, or its description for JAX's tracing."""
    if not is_jax(xp):
        return xp.ones((1,) * x.ndim, dtype=x.dtype, device=device(x))
    import jax

    return jax.ShapeDtypeStruct((1,) * x.ndim, x.dtype)


def _kept(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return namespace_of(x).expand_dims(x, axis=axes[0]) if keepdims else x


def _begun(op: Operator, initial: Any, results: Any, narrow: tuple[str, ...] | None) -> Any:
    """Return the results combined with the initial element, then rounded to the dtypes ``narrow`` if given."""
    totals, structure = flattened(results)
    op, xp = restructured(op, structure), namespace_of(totals[0])
    dtypes = tuple(one.dtype for one in totals) if narrow is None else tuple(dtype_named(xp, one) for one in narrow)
    entries = initial if isinstance(initial, tuple) else (initial,)
    starts = tuple(
        cast(xp, as_array("initial", one, xp, dtype, device=None, shape=tuple(total.shape)), total.dtype)
        for one, total, dtype in zip(entries, totals, dtypes, strict=True)
    )
    begun = tuple(cast(xp, one, dtype) for one, dtype in zip(op(starts, totals), dtypes, strict=True))
    return rebuilt(structure, begun)


def scanned(engine: Engine, asked: Arguments) -> Any:
    """Compute any of the scans."""
    primitive, method, options = asked.name, asked.method, asked.options
    x, initial, op, axis, dtype = (asked[name] for name in ("x", "initial", "op", "axis", "dtype"))
    exclusive, reverse = _checked(method, exclusive=options["exclusive"], reverse=options["reverse"])
    if check_flag("include_initial", options["include_initial"]):
        raise ValueError(
            "include_initial must be False for an array that is split over devices: parts are of one length"
        )
    single = not isinstance(x, tuple)
    xs = (x,) if single else x
    key = option_key(primitive, initial=initial, **options, method=method)
    xp, operator = namespace_of(xs[0]), as_operator(op)
    if operator.flags and exclusive:
        raise ValueError(
            f"exclusive must be False for op {operator.name} and arrays that are split over devices: "
            "segments that begin in one part and end in another have no exclusive scan yet"
        )
    xs, differ = of_equal_shapes(xp, operator, xs, -1 if axis is None else axis)
    axis, splits = _of_elements(engine, operator, axis, _components(operator, xs, single), differ=differ)
    split, ndim = splits[0], xs[0].ndim
    axis = normalize_axis(-1 if axis is None else axis, ndim)
    starts, entries = arrays_of(initial)

    def local(xs: tuple[Array, ...], start: tuple[Any, ...] | None, dtypes: Any) -> Any:
        arrays = {"x": xs[0] if single else xs, "initial": start}
        return declared[primitive].of(Arguments(primitive, arrays, {**options, "axis": axis, "dtype": dtypes}, method))

    call = ScanCall(
        operator=operator,
        axis=axis,
        exclusive=exclusive,
        reverse=reverse,
        initial=entries,
        dtypes=as_dtypes(xp, dtype),
        single=single,
    )
    is_exact = not rounds(operator, [one.dtype for one in xs])
    if method == "canonical" and differ and not is_exact:
        raise MethodRefused(f"{primitive}: method 'canonical' refused: {SPLIT}")
    steps = (canonical_scans if method == "canonical" and not is_exact else scans)(call, local)
    over = engine.working(split[axis])
    count = len(xs)
    started = initial if isinstance(initial, tuple) else (initial,) * count
    of_starts = [own for own, one in zip(splits, started, strict=False) if one is not None and not is_scalar(one)]
    start_splits = [(*own[:axis], *own[axis + 1 :]) for own in of_starts]

    def plain(*parts: Array) -> Any:
        return local(parts[:count], with_arrays(entries, parts[count:]), dtype)

    work = Work(
        primitive=primitive,
        arrays=(*xs, *starts),
        inputs=tuple(part_of(own, one) for own, one in zip((*splits, *start_splits), (*xs, *starts), strict=True)),
        outputs=split,
        stages=(
            Stage(
                over,
                engine.length(xs[:1] if differ else xs, axis, ndim),
                steps if over else without_messages(plain),
            ),
        ),
        plain=plain,
        key=key,
        canonical=is_exact or method == "canonical",
    )
    return _computed_apart(engine, work, splits) if differ else engine.compute(work)


def solved(engine: Engine, asked: Arguments) -> Any:
    """Compute a linear recurrence."""
    a, b, axis, initial, method = *(asked[name] for name in ("a", "b", "axis", "initial")), asked.method
    (reverse,) = _checked(method, reverse=asked["reverse"])
    key = option_key("linear_recurrence", initial=initial, **asked.options, method=method)
    numbers = [is_scalar(a), is_scalar(b)]
    xp = namespace_of(b if numbers[0] else a)
    a, b = (
        xp.asarray(one, dtype=other.dtype, device=other.device if is_tensor(other) else None) if is_scalar(one) else one
        for one, other in ((a, b), (b, a))
    )
    if any(numbers):
        key = None
    split = together(engine, {"a": a, "b": b})
    shape = broadcast_shapes(tuple(a.shape), tuple(b.shape))
    axis = normalize_axis(axis, len(shape))
    starts, entries = arrays_of(initial)
    dtype = a.dtype if a.dtype == b.dtype else xp.result_type(a, b)
    over, options = (
        engine.working(split[axis]),
        {"axis": axis, "initial": entries, "dtype": dtype, "method": method},
    )
    steps = recurrence(reverse=reverse, **options)
    quick: list[Quick] = []
    n = engine.part_shape(b, split)[axis] if b.ndim == len(shape) else 1
    if over and n >= QUICK and dtype_kind(dtype) in ("float", "complex"):
        quick.append(decaying(reverse=reverse, head=min(n // 32, 2**16), **options))

    def plain(a: Array, b: Array, *starts: Array) -> Array:
        start = (with_arrays(entries, starts) or (None,))[0]
        return public_recurrence.linear_recurrence(a, b, axis=axis, initial=start, reverse=reverse, method=method)

    work = Work(
        primitive="linear_recurrence",
        arrays=(a, b, *starts),
        inputs=(
            part_of(split, a),
            part_of(split, b),
            *(part_of((*split[:axis], *split[axis + 1 :]), s) for s in starts),
        ),
        outputs=split,
        stages=(
            Stage(
                over, engine.length((a, b), axis, len(shape)), steps if over else without_messages(plain), quick=quick
            ),
        ),
        plain=plain,
        key=key,
    )
    return engine.compute(work)


def sorted_(engine: Engine, asked: Arguments) -> tuple[Array, ...]:
    """Compute any of the sorts. All of them are stable.

    Sorts from `jax_auto`, where XLA decides the split, have the options ``keyed`` and ``indices``, as in `Sorting`.
    """
    primitive, method, axis = asked.name, asked.method, asked["axis"]
    descending, stable = _checked(method, descending=asked["descending"], stable=asked["stable"])
    keys, *values = asked.flat
    keyed = asked.options.get("keyed", primitive != "argsort")
    indices = asked.options.get("indices", primitive == "argsort")
    key = option_key(primitive, axis=axis, descending=descending, method=method, keyed=keyed, indices=indices)
    arrays = (keys, *values)
    split = together(
        engine, {"x" if primitive != "sort_by_key" else "keys": keys, **named("values", arrays[1:], False)}
    )
    axis = normalize_axis(axis, keys.ndim)
    over = engine.working(split[axis])

    def plain(*parts: Array) -> tuple[Array, ...]:
        options = {"axis": axis, "descending": descending, "stable": stable}
        named = dict(zip(asked.arrays, (parts[0], parts[1:]), strict=False))
        result: tuple[Array, ...] = declared[primitive].of(Arguments(primitive, named, options, method))
        return result

    shape = engine.part_shape(keys, split)
    rows = math.prod(n for index, n in enumerate(keys.shape) if index != axis)
    is_local = not (keyed and indices) and (not over or rows == 0)
    call = SortCall(
        axis=axis,
        descending=descending,
        method=method,
        keyed=keyed,
        indices=indices,
        width=key_width(keys.dtype),
        rows=math.prod(n for index, n in enumerate(shape) if index != axis),
    )
    driver = without_messages(plain) if is_local else functools.partial(sorts, call)
    work = Work(
        primitive=primitive,
        arrays=arrays,
        inputs=(split,) * len(arrays),
        outputs=split,
        stages=(Stage(over, engine.length((keys,), axis, keys.ndim), driver),),
        plain=plain,
        key=key,
        canonical=True,
    )
    results: tuple[Array, ...] = engine.compute(work)
    return results


def tridiagonal(engine: Engine, asked: Arguments) -> Any:
    """Solve tridiagonal systems."""
    method, pivot = asked.method, asked["pivot"]
    _checked(method)
    untransposed = Arguments(asked.name, asked.arrays, {**asked.options, "transpose": False}, method)
    xp, solution = checked(untransposed, sharded=True)
    s, dtype, columns = solution.system, solution.dtype, solution.columns
    transpose, periodic = check_flag("transpose", asked["transpose"]), s.periodic
    verdicts = {name: getattr(solution, name) for name in ("return_residual", "return_status")}
    arrays = s.arrays
    split = together(engine, dict(zip(("lower", "diag", "upper", "rhs"), arrays, strict=True)), len(s.shape))
    arrays = (*arrays[:3], xp.broadcast_to(arrays[3], s.shape))
    unknowns = len(s.shape) + s.axis
    over = engine.working(split[unknowns])
    outer = (*split[:unknowns], *split[unknowns + 1 :])
    outputs: Any = split
    if any(verdicts.values()):
        outputs = [split, *(outer,) * sum(verdicts.values())]
    options: dict[str, Any] = {"periodic": periodic, "transpose": transpose}

    def plain(*parts: Array) -> Any:
        lower, diag, upper, b = (xp.astype(x, dtype, copy=False) for x in parts)
        pad = (1,) * (b.ndim - max(x.ndim for x in parts[:3]))  # axes of several right-hand sides of a system
        lower = xp.reshape(lower, (*pad, *lower.shape)) if pad else lower
        solutions = public_tridiagonal.solve_tridiagonal(
            lower, diag, upper, b, axis=s.axis, pivot=pivot, method=method, **options, **verdicts
        )
        return list(solutions) if isinstance(solutions, tuple) else solutions

    if not over:
        stages = [Stage((), s.n, without_messages(plain))]
    else:
        if method not in ("auto", "array"):
            raise MethodRefused(
                f"solve_tridiagonal: method {method!r} refused: systems that are split along their unknowns are solved "
                "by array"
            )
        drivers = [
            tridiagonals.solution(axis=s.axis, periodic=periodic, transpose=transposed)
            for transposed in (transpose, not transpose)
        ]
        multiply = tridiagonals.product(axis=s.axis, periodic=periodic, transpose=transpose)
        needs_finish = any(verdicts.values()) or dtype != s.rhs.dtype
        n = engine.length(arrays, unknowns, len(s.shape))
        quick: list[Quick] = []
        part = engine.part_shape(arrays[3], split)
        if tuple(s.rows) == tuple(s.shape) and method == "auto" and math.prod(part) >= QUICK_SYSTEMS:
            head = min(part[unknowns] // 32, LONGEST_HEAD)
            if head:
                quick.append(tridiagonals.by_ends(axis=s.axis, head=head, **options))
            quick.append(tridiagonals.by_blocks(axis=s.axis, **options))
        systems = [entry for entry in range(len(part)) if entry != unknowns]
        apart = max(systems, key=lambda entry: part[entry], default=None)
        linear = (multiply, drivers[1])
        stages = [Stage(over, n, drivers[0], linear=linear, quick=quick, apart=apart, appended=needs_finish)]
        if needs_finish:
            stages.append(Stage(over, n, tridiagonals.finish(axis=s.axis, dtype=dtype, **options, **verdicts)))
    work = Work(
        primitive="solve_tridiagonal",
        arrays=arrays,
        inputs=tuple(part_of(split, entry) for entry in arrays),
        outputs=outputs,
        stages=tuple(stages),
        plain=plain,
        key=option_key(
            "solve_tridiagonal", axis=s.axis, pivot=pivot, method=method, dtype=dtype, **options, **verdicts
        ),
    )
    solutions = engine.compute(work)
    results = list(solutions) if isinstance(solutions, tuple | list) else [solutions]
    if columns:
        results = [move_axis(xp, entry, 0, -1) for entry in results]
    return tuple(results) if len(results) > 1 else results[0]


def product(engine: Engine, asked: Arguments) -> Array:
    """Compute a matrix product."""
    a, b, method, options = asked["a"], asked["b"], asked.method, asked.options
    _checked(method)
    key = option_key("matmul", method=method, **options)
    xp, (a, b) = admit({"a": a, "b": b}, sharded=True)
    add, _ = as_operators(options["add"], options["multiply"])
    for name, x in (("a", a), ("b", b)):
        if x.ndim == 0:
            raise ValueError(f"{name} must have at least one dimension")
    of_a, of_b = engine.split("a", a), engine.split("b", b)
    at = b.ndim - min(b.ndim, 2)  # the contracted axis of b
    rows, columns = of_a[-2:-1], of_b[-1:] if b.ndim > 1 else ()
    inner_a, inner_b = of_a[-1], of_b[at]
    inside = engine.working(())
    if inside:  # inside shard_map the contracted axis is the split one
        inner_a = inner_b = inside
    batch = _batches(a, b, of_a, of_b)
    inner, m, n = inner_a or inner_b, (rows or ((),))[0], (columns or ((),))[0]
    if options["precision"] == "highest" and inner:
        factors = {"a": cast(xp, a, xp.float64), "b": cast(xp, b, xp.float64)}
        wide = Arguments("matmul", factors, {**options, "precision": "float32"}, method)
        return cast(xp, product(engine, wide), a.dtype)

    def multiply(a: Array, b: Array) -> Array:
        return public_matmul.matmul(a, b, method=method, **options)

    count = engine.count(inner or m) if inner or (m and m == n) else 1
    k = engine.length((a,), a.ndim - 1, a.ndim)
    if inner and inner_a != inner_b and inner_a and inner_b:
        raise ValueError(
            f"a and b are split differently along the axis summed over, {inner_a} and {inner_b}: reshard one of them"
        )
    if not inner and m and m == n:
        stage, n_out = Stage(m, b.shape[-1], circulating_columns(multiply, count)), ()
    elif not inner:
        stage, n_out = Stage((), 1, without_messages(multiply)), n
    elif inner_b and inner == m and not inner_a:
        stage, n_out = Stage(inner, k, circulating_factor(multiply, add, 1, count)), n
        inner_a, inner_b = (), inner
    elif inner_a and inner == n and not inner_b:
        stage, n_out = Stage(inner, k, circulating_factor(multiply, add, 0, count)), n
        inner_a, inner_b = inner, ()
    else:
        inner_a = inner_b = inner
        stage, n_out = Stage(inner, k, inner_product(multiply, add, trades=engine.trades)), n
    own = [*m, *(name for names in batch for name in names), *n_out, *(inner if inner_a == inner_b else ())]
    if len(set(own)) < len(own):
        raise ValueError("a and b are split along different axes over one axis of the mesh: reshard one of them")
    work = Work(
        primitive="matmul",
        arrays=(a, b),
        inputs=(
            (*_own_batch(batch, a), *(m,) * len(rows), inner_a),
            (*_own_batch(batch, b), inner_b, n) if b.ndim > 1 else (inner_b,),
        ),
        outputs=(*batch, *(m,) * len(rows), *(n_out,) * len(columns)),
        stages=(stage,),
        plain=multiply,
        key=key,
    )
    found: Array = engine.compute(work)
    return found


def _batches(a: Array, b: Array, of_a: Split, of_b: Split) -> Split:
    """Return how the batches of a product are split."""
    ndim = max(a.ndim, b.ndim, 2) - 2
    batch: list[Names] = [()] * ndim
    for x, split in ((a, of_a), (b, of_b)):
        for index, names in enumerate(split[:-2], ndim - max(x.ndim - 2, 0)):
            if names and batch[index] and batch[index] != names:
                raise ValueError("a and b have batches that are split differently: reshard one of them")
            batch[index] = batch[index] or names
    return tuple(batch)


def _own_batch(batch: Split, x: Array) -> Split:
    own = batch[len(batch) - (x.ndim - 2) :] if x.ndim > 2 else ()
    return tuple(() if length == 1 else names for names, length in zip(own, x.shape[:-2], strict=True))


def histogrammed(engine: Engine, asked: Arguments) -> Any:
    """Compute a histogram."""
    x, bins, weights, range, method = *(asked[name] for name in ("x", "bins", "weights", "range")), asked.method
    (density,) = _checked(method, density=asked["density"])
    even = not hasattr(bins, "shape")
    number = {"bins": bins} if even else {}
    key = option_key("histogram", range=range, weighted=weights is not None, density=density, method=method, **number)
    named_arrays = {"x": x} if weights is None else {"x": x, "weights": weights}
    split = together(engine, named_arrays)
    over = engine.working(tuple(name for names in split for name in names))
    arrays = (*named_arrays.values(), *(() if even else (bins,)))
    weighted = weights is not None

    def plain(*parts: Array) -> Any:
        edges = bins if even else parts[-1]
        part_weights = parts[1] if weighted else None
        return list(
            public_histogram.histogram(
                parts[0], edges, range=range, weights=part_weights, density=density, method=method
            )
        )

    hollow = is_hollow(x, split)
    steps = counts(bins=bins, range=range, even=even, weighted=weighted, density=density, method=method, hollow=hollow)
    elements = engine.count(over) * math.prod(engine.part_shape(x, split))
    work = Work(
        primitive="histogram",
        arrays=arrays,
        inputs=(*(split,) * len(named_arrays), *(() if even else (((),),))),
        outputs=[((),), ((),)],
        stages=(Stage(over, elements, steps),),
        plain=plain,
        key=key,
    )
    return tuple(engine.compute(work))


def is_hollow(x: Array, split: Split) -> bool:
    """Return whether an array has no elements because an axis that is not split has none."""
    return any(n == 0 for n, names in zip(x.shape, split, strict=True) if not names)


# ---- Elements of several shapes ---------------------------------------------------------------------------------


def _components(op: Operator, arrays: tuple[Array, ...], single: bool) -> dict[str, Array]:
    """Return the components of elements by their names in error messages."""
    return dict(zip(("x",) if single else names_of_leaves(op, len(arrays)), arrays, strict=True))


def _of_elements(
    engine: Engine, op: Operator, axis: Any, arrays: dict[str, Array], *, differ: bool
) -> tuple[Any, list[Split]]:
    """Return the axis of a call, counted from the front if shapes ``differ``, and the split of each component.

    Raises ValueError, which names the array, if it is split along an axis that the operator combines.
    """
    xs = tuple(arrays.values())
    if differ:
        axis = shared_axis(axis, [tuple(x.shape) for x in xs], tuple(arrays))
        return axis, in_front(engine, arrays, axis + 1)
    split = together(engine, arrays)
    if isinstance(axis, int) and -len(split) <= axis < len(split):
        place = axis % len(split)
        if any(split[place + 1 :]) and combines_axes(namespace_of(xs[0]), op, xs, place):
            return axis, in_front(engine, arrays, place + 1)
    return axis, [split] * len(arrays)


def _computed_apart(engine: Engine, work: Work, outputs: list[Split]) -> tuple[Array, ...]:
    """Compute a work, and return its results; ``outputs`` has the split of each."""
    *stages, stage = work.stages

    def driver(lengths: tuple[int, ...]) -> list[Step]:
        *steps, last = steps_of(stage.steps, lengths)

        def listed(*arguments: Any) -> Any:
            message, results = last(*arguments)
            return message, list(results)

        return [*steps, listed]

    changed = dataclasses.replace(stage, steps=driver)
    plain = work.plain
    return tuple(
        engine.compute(
            dataclasses.replace(
                work, stages=(*stages, changed), outputs=outputs, plain=lambda *parts: list(plain(*parts))
            )
        )
    )


def _with_axis(initial: tuple[Any, ...], axis: int, ndims: list[int]) -> tuple[Any, ...]:
    """Return an initial element for results with ``ndims`` axes, an axis of length 1 among them."""

    def entry(one: Any, ndim: int) -> Any:
        if is_scalar(one) or one.ndim < ndim - axis:
            return one
        return namespace_of(one).expand_dims(one, axis=one.ndim - (ndim - 1 - axis))

    return tuple(entry(one, ndim) for one, ndim in zip(initial, ndims, strict=True))


# ---- Arguments --------------------------------------------------------------------------------------------------


def without_messages(plain: Callable[..., Any]) -> list[Step]:
    """Return the driver of a call that sends no messages."""
    return [lambda _, parts, __: (None, plain(*parts))]


def _checked(method: str, **flags: Any) -> tuple[bool, ...]:
    """Return flags as bools. Raise an error that names the argument if a flag is no bool or the method is unknown."""
    check_choice("method", method, ("auto", "canonical", "kernel", "native", "array"))
    return tuple(check_flag(name, value) for name, value in flags.items())


def named(name: str, arrays: tuple[Array, ...], single: bool) -> dict[str, Array]:
    """Return the arrays by their names in error messages."""
    return {name if single else f"{name}[{index}]": one for index, one in enumerate(arrays)}
