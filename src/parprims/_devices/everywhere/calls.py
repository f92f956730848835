"""Sums with the same bits everywhere on arrays that are split: the work of the parts and its driver."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import Array, Namespace, is_jax, namespace_of, normalize_axes, normalize_axis
from parprims._core.options import dtype_named
from parprims._devices import calls
from parprims._devices.everywhere import drivers
from parprims._devices.work import Engine, Stage, Work, option_key, part_of, together
from parprims._dispatch.derivative_rules import with_derivatives_of
from parprims._dispatch.primitive import Arguments, declared
from parprims._primitives.reproducible import call, running, weights
from parprims._primitives.reproducible.call import OnGrid, Plain, as_terms, check_count, wide


def summed(engine: Engine, asked: Arguments) -> Array:
    """Compute a sum, or a product of vectors."""
    of_one = _of_one(asked, call.checked)
    if of_one is None:
        return calls.reduced(engine, asked)
    asked = _in_its_dtype(asked, of_one.dtype)
    arrays = asked.flat
    split = together(engine, dict(zip(asked.given, arrays, strict=True)))
    ndim = len(split)
    axes = normalize_axes(asked["axis"], ndim)
    keepdims = asked["keepdims"]
    lengths = {axis: engine.length(arrays, axis, ndim) for axis in axes}
    _check_whole(asked, math.prod(lengths.values()))
    (over, group), *others = engine.groups(split, axes)

    def terms(place: Any, shape: tuple[int, ...]) -> int:
        along = sum(place.lengths) * math.prod([shape[axis] for axis in group[1:]]) if group else place.count
        return int(along * math.prod([lengths[axis] for _, axes in others for axis in axes]))

    def local(xs: tuple[Array, ...]) -> tuple[Namespace, call.Sum]:
        xp, c = call.checked(_on(asked, xs))
        assert isinstance(c, call.Sum)
        return xp, c

    driver = drivers.Sums(
        local=local,
        count=len(arrays),
        terms=terms,
        working=of_one.working,
        dtype=of_one.dtype,
        axes=axes,
        keepdims=keepdims,
        method=asked.method,
    )
    stages = [Stage(over, lengths[axes[0]], driver.largest()) for over, axes in others]
    stages.append(Stage(over, lengths[group[0]] if group else 1, driver.main(last=not others)))
    for index, (along, axes_along) in enumerate(others, 1):
        steps = driver.add(terms=math.prod(lengths.values()), last=index == len(others))
        stages.append(Stage(along, lengths[axes_along[0]], steps))
    work = Work(
        primitive=asked.name,
        arrays=arrays,
        inputs=tuple(part_of(split, one) for one in arrays),
        outputs=tuple(() if at in axes else over for at, over in enumerate(split) if keepdims or at not in axes),
        stages=tuple(stages),
        plain=_plain(asked),
        key=_key(asked),
        canonical=True,
    )
    result: Array = _computed(engine, asked, work, calls.reduced)
    return result


def scanned(engine: Engine, asked: Arguments) -> Array:
    """Compute a running sum."""
    of_one = _of_one(asked, running.checked)
    if of_one is None or asked["include_initial"]:
        scanned: Array = calls.scanned(engine, asked)
        return scanned
    asked = _in_its_dtype(asked, of_one.dtype)
    x = asked["x"]
    split = together(engine, {"x": x})
    axis = normalize_axis(-1 if asked["axis"] is None else asked["axis"], x.ndim)
    over, n = engine.working(split[axis]), engine.length((x,), axis, x.ndim)
    _check_whole(asked, n)
    plain = _plain(asked)

    def local(x: Array) -> tuple[Namespace, running.RunningSum]:
        xp, c = running.checked(_on(asked, (x,)))
        assert isinstance(c, running.RunningSum)
        return xp, c

    steps = drivers.running(local, asked.method)
    work = Work(
        primitive=asked.name,
        arrays=(x,),
        inputs=(split,),
        outputs=split,
        stages=(Stage(over, n, steps if over else calls.without_messages(plain)),),
        plain=plain,
        key=_key(asked),
        canonical=True,
    )
    result: Array = _computed(engine, asked, work, calls.scanned)
    return result


def histogrammed(engine: Engine, asked: Arguments) -> Any:
    """Compute a histogram with weights."""
    of_one = _of_one(asked, weights.checked)
    if of_one is None:
        return calls.histogrammed(engine, asked)
    x, bins = asked["x"], asked["bins"]
    even = not hasattr(bins, "shape")
    split = together(engine, {"x": x, "weights": asked["weights"]})
    over = engine.working(tuple(name for names in split for name in names))
    rows = engine.length((x,), 0, x.ndim) if x.ndim else engine.count(over)
    others = [engine.length((x,), axis, x.ndim) for axis in range(1, x.ndim)]
    n = rows * math.prod(others if asked.axis_name is None else x.shape[1:])
    _check_whole(asked, n)

    def local(weights: Array) -> Array:
        xp = namespace_of(weights)
        return as_terms(xp, weights, dtype_named(xp, of_one.working))

    driver = drivers.WeightedHistogram(
        local=local,
        terms=lambda place: n if asked.axis_name is None else sum(place.lengths),
        bins=bins,
        ends=asked["range"],
        even=even,
        working=of_one.working,
        dtype=of_one.dtype,
        method=asked.method,
        hollow=calls.is_hollow(x, split),
    )
    arrays = (x, asked["weights"], *(() if even else (bins,)))
    work = Work(
        primitive="histogram",
        arrays=arrays,
        inputs=(split, split, *(() if even else (((),),))),
        outputs=[((),), ((),)],
        stages=(Stage(over, n, driver.steps),),
        plain=lambda *parts: list(_plain(asked)(*parts)),
        key=_key(asked),
        canonical=True,
    )
    return tuple(_computed(engine, asked, work, calls.histogrammed))


# ---- Common to all ----------------------------------------------------------------------------------------------


def _of_one(asked: Arguments, check: Callable[[Arguments], tuple[Namespace, Any]]) -> OnGrid | None:
    """Return the record of a call on arrays of one element, None if it adds integers; raise as the check.

    The record has the dtypes of the call, and the check reads all options.
    """
    records: list[Any] = []
    names = [name for name in asked.given if name != "bins"]
    xp = namespace_of(asked.flat[0])

    def checked(ones: tuple[Any, ...]) -> tuple[()]:
        records.append(check(_on(asked, ones))[1])
        return ()

    given = [asked[name] for name in names]
    ones = tuple([_ones_like(xp, x) for x in given])
    if is_jax(xp):
        import jax

        jax.eval_shape(checked, ones)
    else:
        checked(ones)
    return None if isinstance(records[0], Plain) else records[0]


def _ones_like(xp: Namespace, x: Any) -> Any:
    return tuple([_ones_like(xp, one) for one in x]) if isinstance(x, tuple) else calls.one_like(xp, x)


def _in_its_dtype(asked: Arguments, dtype: str) -> Arguments:
    """Return the call with the name of a requested dtype, which JAX then does not widen in the mode of 64 bits."""
    return asked if asked["dtype"] is None else asked.on(asked.arrays, dtype=dtype)


def _on(asked: Arguments, arrays: tuple[Any, ...]) -> Arguments:
    """Return the call on other arrays; without the last of them if it has others left out."""
    return asked.on({**asked.arrays, **dict(zip(asked.given, arrays, strict=False))})


def _check_whole(asked: Arguments, n: int) -> None:
    """Raise ValueError if a call on whole arrays has too many terms. Parts know their number only when they run."""
    if asked.axis_name is None:
        check_count(n)


def _plain(asked: Arguments) -> Callable[..., Any]:
    """Return the call as a function of the arrays of a part."""

    def plain(*parts: Array) -> Any:
        local = _on(asked, parts)
        return declared[f"{asked.name} everywhere"].of(Arguments(asked.name, local.arrays, asked.options, asked.method))

    return plain


def _key(asked: Arguments) -> Any:
    return option_key(f"{asked.name} everywhere", given=tuple(asked.given), method=asked.method, **asked.options)


def _computed(engine: Engine, asked: Arguments, work: Work, floats: Callable[..., Any]) -> Any:
    """Return the results of the work, with the derivatives of the sum of floats."""
    xp = namespace_of(work.arrays[0])

    def run(*arrays: Array) -> Any:
        with wide(xp):
            results = engine.compute(dataclasses.replace(work, arrays=arrays))
        return tuple(results) if isinstance(results, list) else results

    def plain(*arrays: Array) -> Any:
        return floats(engine, _on(asked, arrays))

    return with_derivatives_of(xp, plain, run, work.arrays)
