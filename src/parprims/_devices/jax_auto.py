"""Arrays of JAX in programs over meshes with axes of type Auto, where XLA decides the split when it compiles.

The driver is chosen at that time, by the partitioning rule of the call.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding

from parprims._core.arrays import Array
from parprims._devices import calls
from parprims._devices.communicator import run_quick
from parprims._devices.jax_mesh import Devices, spec_of, split_of
from parprims._devices.work import Names, Split, Work, groups, length
from parprims._dispatch.dispatch import Checked, MethodRefused
from parprims._dispatch.primitive import Arguments, declared
from parprims._dispatch.watch import unwatched
from parprims._primitives.matmul.call import Product
from parprims._primitives.recurrence.call import Recurrence
from parprims._primitives.reduce.call import Reduction
from parprims._primitives.scan.call import Scan
from parprims._primitives.sort.call import Sorting
from parprims._primitives.tridiagonal.call import System


class _FoundError(Exception):
    """Carries the `Work` out of a call that runs only to find it."""


@dataclasses.dataclass(frozen=True)
class _Known:
    """The engine of a call for which XLA decides how arrays are split; it finds the split of an array by its id.

    Without a mesh it computes nothing, and raises `_FoundError` with the work.
    """

    splits: dict[int, Split]
    mesh: Any = None
    trades: ClassVar[bool] = True
    moves: ClassVar[bool] = True

    def split(self, name: str, x: Array) -> Split:
        """Return the mesh axes that each axis of an array is split over."""
        del name
        return self.splits[id(x)]

    def working(self, names: Names) -> Names:
        """Return the split that the arrays have."""
        return names

    def groups(self, split: Split, axes: tuple[int, ...]) -> list[tuple[Names, tuple[int, ...]]]:
        """Return the axes in groups. Only the first axis of a group is split."""
        return groups(split, axes)

    def length(self, arrays: tuple[Array, ...], axis: int, ndim: int) -> int:
        """Return the length of an axis of the local parts."""
        return length(arrays, axis, ndim)

    def count(self, over: Names) -> int:
        """Return the number of parts."""
        return math.prod(self.mesh.shape[name] for name in over) if self.mesh is not None else 2

    def part_shape(self, x: Array, split: Split) -> tuple[int, ...]:
        """Return the shape of an array, which is a part."""
        del split
        return tuple(x.shape)

    def compute(self, work: Work) -> Any:
        """Return the results for the local part."""
        if self.mesh is None:
            raise _FoundError(work)
        arrays: Any = work.arrays
        for stage in work.stages:
            devices = Devices(stage.over)
            lengths = (stage.length,) * devices.count
            arrays, _ = run_quick(stage.steps, stage.quick, devices, lengths, parts=_tuple(arrays), apart=stage.apart)
        return arrays


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def partitioned(primitive: str, method: str, call: Checked, whole: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a function that computes the call, however XLA splits its arrays; None if no driver can.

    ``whole`` computes the call if no axis is split.
    """
    if isinstance(call, Reduction) and (method == "native" or call.initial is not None or call.n == 0):
        return whole  # XLA reduces split arrays itself, and gathers nothing larger than the results
    if isinstance(call, Product) and method == "native":
        return whole  # XLA multiplies split arrays itself
    public = _public_call(primitive, method, call)
    if public is None:
        return None

    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in call.arrays]
    with unwatched():
        program, results = jax.make_jaxpr(whole, return_shape=True)(*structs)
    # XLA partitions no program that holds arrays, such as edges or values that an operator captures: make them inputs.
    held = program.consts
    if any(isinstance(x, jax.core.Tracer) for x in held):
        return None  # an operator captures a value of the enclosing program, which no part can read
    held_splits: tuple[Split, ...] = tuple(((),) * np.ndim(x) for x in held)
    count = len(structs)

    def body(*arrays: Array) -> Any:
        if not held:
            return whole(*arrays)
        leaves = jax.core.eval_jaxpr(program.jaxpr, arrays[count:], *arrays[:count])
        return jax.tree.unflatten(jax.tree.structure(results), leaves)

    partitioned_body = custom_partitioning(body)

    def function(*arrays: Array) -> Any:
        return partitioned_body(*arrays, *held)

    def partition(mesh: Any, args: Any, result: Any) -> Any:
        args = args[:count]
        splits = tuple(split_of(mesh, array.sharding, len(array.shape)) for array in args)
        work = _layout(public, args, splits)
        inputs = public.inputs(work)
        leaves, tree = jax.tree.flatten(result)
        outputs = [NamedSharding(mesh, spec_of(split)) for split in _outputs(work, len(leaves))]

        def lower(*parts: Array) -> Any:
            parts = parts[:count]
            with unwatched():
                return public.run(_Known({id(x): split for x, split in zip(parts, inputs, strict=True)}, mesh), parts)

        shardings = tuple(NamedSharding(mesh, spec_of(split)) for split in (*inputs, *held_splits))
        return mesh, lower, jax.tree.unflatten(tree, outputs), shardings

    rule = _rule(public, structs, held_splits, jax.tree.leaves(results))
    partitioned_body.def_partition(partition=partition, infer_sharding_from_operands=None, sharding_rule=rule)
    if isinstance(call, Reduction):
        r = call
        return _with_derivative(
            function,
            lambda *arrays: declared[primitive].of(_of_reduction(primitive, "native", r, arrays)),
        )
    return _without_derivative(primitive, function)


def _without_derivative(primitive: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose derivative raises MethodRefused. Calls with derivative rules never reach it."""

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def compute(*arrays: Array) -> Any:
        return function(*arrays)

    def refuse(*_: Any) -> Any:
        raise MethodRefused(
            f"{primitive}: this derivative would gather arrays in a program over a mesh with axes of type Auto: give "
            "the mesh axes of type Explicit, or call inside jax.shard_map"
        )

    compute.defjvp(refuse)
    refusing: Callable[..., Any] = compute
    return refusing


def _with_derivative(function: Callable[..., Any], native: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reduction with the derivative of the library's reduction: XLA computes it without gathering arrays."""

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def compute(*arrays: Array) -> Any:
        return function(*arrays)

    compute.defjvp(lambda primals, tangents: jax.jvp(native, primals, tangents))
    found: Callable[..., Any] = compute
    return found


def _outputs(work: Work, count: int) -> tuple[Split, ...]:
    return tuple(work.outputs) if isinstance(work.outputs, list) else (work.outputs,) * count


def _layout(public: _PublicCall, args: Any, splits: tuple[Split, ...]) -> Work:
    """Return the work for arrays with these splits."""
    works: list[Work] = []

    def trace(*arrays: Array) -> Any:
        try:
            public.run(_Known({id(x): split for x, split in zip(arrays, splits, strict=True)}), arrays)
        except _FoundError as error:
            works.append(error.args[0])
        return 0

    with unwatched():
        jax.eval_shape(trace, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args))
    return works[0]


def _rule(public: _PublicCall, structs: list[Any], held: tuple[Split, ...], results: list[Any]) -> str:
    """Return the sharding rule for XLA: axes with equal names are split equally."""
    fresh = (f"f{number}" for number in itertools.count())
    labels = tuple(
        tuple(
            (name,) if length != 1 else ()
            for name, length in zip(public.names(index, len(x.shape)), x.shape, strict=True)
        )
        for index, x in enumerate(structs[: public.count])
    ) + tuple(((),) * len(x.shape) for x in structs[public.count :])
    work = _layout(public, structs, labels)

    def side(splits: tuple[Split, ...]) -> str:
        return ", ".join(" ".join(names[0] if names else next(fresh) for names in split) for split in splits)

    return f"{side((*public.inputs(work), *held))} -> {side(_outputs(work, len(results)))}"


@dataclasses.dataclass(frozen=True)
class _PublicCall:
    """A checked call as a public call that can be repeated on parts.

    ``run`` takes an engine and the arrays. ``count`` is the number of arrays that determine the split of the work; the
    other arrays have an axis ``inserted`` that the work lacks. ``ndims`` are the numbers of axes of the arrays, if the
    work has more. ``ends`` are the names of the last axes of the factors of a product.
    """

    run: Callable[[Any, tuple[Array, ...]], Any]
    count: int
    inserted: int | None = None
    ndims: tuple[int, ...] | None = None
    ends: tuple[str, ...] = ()

    def names(self, index: int, ndim: int) -> list[str]:
        """Return the names of an array's axes: equal for axes that broadcast, but `ends` for last axes in a product."""
        names = [f"axis{ndim - axis}" for axis in range(ndim)]
        if self.ends:
            last = self.ends[index]
            end_names = last if ndim > 1 else last[index - 1]  # a vector has only the contracted axis
            names = [*names[: ndim - len(end_names)], *end_names]
        return names

    def inputs(self, work: Work) -> tuple[Split, ...]:
        """Return the splits that the arrays must have."""
        if self.ndims is not None:
            return tuple(split[len(split) - n :] for split, n in zip(work.inputs, self.ndims, strict=True))
        if self.inserted is None:
            return work.inputs
        axis = self.inserted
        starts = tuple((*split[:axis], (), *split[axis:]) for split in work.inputs[self.count :])
        return (*work.inputs[: self.count], *starts)


def _public_call(primitive: str, method: str, call: Checked) -> _PublicCall | None:
    def laid_out(lay_out: Callable[..., Any], engine: Any, arrays: dict[str, Any], options: dict[str, Any]) -> Any:
        return lay_out(engine, Arguments(primitive, arrays, options, method))

    if getattr(call, "shapes", None) is not None:
        return None
    if isinstance(call, Reduction):
        r = call

        def reduced(engine: Any, arrays: tuple[Array, ...]) -> Any:
            return calls.reduced(engine, _of_reduction(primitive, method, r, arrays))

        return _PublicCall(reduced, len(call.arrays))
    if isinstance(call, Scan):
        s = call
        count, include = len(s.inputs), s.n > s.shape[s.axis]
        if include:
            return None
        of_scan = {
            "op": s.op, "axis": s.axis, "exclusive": s.exclusive, "reverse": s.reverse, "dtype": s.dtypes,
            "include_initial": False,
        }  # fmt: skip

        def scanned(engine: Any, arrays: tuple[Array, ...]) -> Any:
            starts = tuple(_squeezed(one, s.axis) for one in arrays[count:]) or None
            call_arrays = {"x": arrays[0] if s.single else arrays[:count], "initial": starts}
            return laid_out(calls.scanned, engine, call_arrays, of_scan)

        return _PublicCall(scanned, count, s.axis)
    if isinstance(call, Recurrence):
        q = call

        def solved(engine: Any, arrays: tuple[Array, ...]) -> Any:
            start = _squeezed(arrays[2], q.axis) if len(arrays) > 2 else None
            call_arrays = {"a": arrays[0], "b": arrays[1], "initial": start}
            return laid_out(calls.solved, engine, call_arrays, {"axis": q.axis, "reverse": q.reverse})

        return _PublicCall(solved, 2, q.axis)
    if isinstance(call, Sorting):
        order = call
        names = "axis", "descending", "stable", "keyed", "indices"
        of_sort = {name: getattr(order, name) for name in names}

        def sorted_(engine: Any, arrays: tuple[Array, ...]) -> Any:
            call_arrays = {"keys" if primitive == "sort_by_key" else "x": arrays[0], "values": arrays[1:]}
            return laid_out(calls.sorted_, engine, call_arrays if order.keyed else {"x": arrays[0]}, of_sort)

        return _PublicCall(sorted_, len(order.arrays))
    if isinstance(call, System):
        t = call
        of_system: dict[str, Any] = {"axis": t.axis, "pivot": t.pivot, "periodic": t.periodic, "transpose": False}
        of_system |= {"return_residual": False, "return_status": False}

        def solved_system(engine: Any, arrays: tuple[Array, ...]) -> Any:
            call_arrays = {}
            for name, x in zip(("lower", "diag", "upper"), arrays, strict=False):
                more = len(t.shape) - x.ndim  # so that no axis of rhs seems to count right-hand sides
                call_arrays[name] = x.reshape((1,) * more + x.shape) if more else x
                engine.splits[id(call_arrays[name])] = ((),) * more + engine.splits[id(x)]
            asked = Arguments(primitive, {**call_arrays, "rhs": arrays[3]}, of_system, "auto")
            return calls.tridiagonal(engine, asked)

        return _PublicCall(solved_system, 4, ndims=tuple(x.ndim for x in t.arrays))
    if isinstance(call, Product):
        p = call
        of_product = {name: getattr(p, name) for name in "add multiply precision kernel tile".split()}

        def multiplied(engine: Any, arrays: tuple[Array, ...]) -> Any:
            return laid_out(calls.product, engine, dict(zip("ab", arrays, strict=True)), of_product)

        return _PublicCall(multiplied, 2, ends=("mk", "kn"))
    if primitive == "histogram":
        h: Any = call

        def histogrammed(engine: Any, arrays: tuple[Array, ...]) -> Any:
            call_arrays = {"x": arrays[0], "weights": arrays[1] if h.weighted else None}
            call_arrays["bins"] = h.bins if h.even else arrays[-1]
            return laid_out(calls.histogrammed, engine, call_arrays, {"range": h.ends, "density": h.density})

        return _PublicCall(histogrammed, 1 + h.weighted)
    return None


def _of_reduction(primitive: str, method: str, r: Reduction, arrays: tuple[Array, ...]) -> Arguments:
    """Return the arguments of this reduction of other arrays."""
    options = {"fn": r.fn, "op": r.op, "axis": r.axes, "keepdims": r.keepdims, "dtype": r.dtypes, "initial": None}
    return Arguments(primitive, {"x": arrays[0] if r.single else arrays}, options, method)


def _squeezed(x: Array, axis: int) -> Array:
    return x.reshape((*x.shape[:axis], *x.shape[axis + 1 :]))
