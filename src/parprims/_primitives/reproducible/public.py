"""Sums with the same bits everywhere: forms of the public functions that have the option ``reproducible``."""

from __future__ import annotations

import functools
from typing import Any

from parprims._core.arrays import Namespace
from parprims._core.jax_arrays import is_placed_later
from parprims._dispatch.by_device import by_device, either_of, in_programs
from parprims._dispatch.derivative_rules import differentiated_as
from parprims._dispatch.dispatch import Method, Methods
from parprims._dispatch.examples import Given, Sample
from parprims._dispatch.primitive import Primitive
from parprims._primitives.histogram.public import HISTOGRAM, in_graph_as
from parprims._primitives.reduce.public import REDUCE, SUM
from parprims._primitives.reproducible import call, cpu, cuda, groups_cpu, running, segments, weights
from parprims._primitives.reproducible.call import OnGrid, Plain
from parprims._primitives.scan.public import CUMULATIVE_SUM
from parprims._primitives.segments.public import SEGMENT_REDUCE
from parprims._primitives.vecdot.public import VECDOT


def _methods(name: str, room: Any) -> Methods:
    parts, native, array = (call.by_integers(one, room.compute, room.parts) for one in ("kernel", "native", "array"))
    in_lines = room in (call, running)
    if in_lines:
        parts = cuda.instead_of(parts, room.compute)
    prepare = cpu.prepare if in_lines else groups_cpu.segments if room is segments else groups_cpu.weights
    on_cpu = Method(prepare, cpu.refusal, quiet=True)
    in_program = in_programs(on_cpu, native, array, batched=cpu.batched if in_lines else None)
    by_kernel = by_device(parts, on_cpu, in_program)

    def serves(_: Namespace, c: OnGrid) -> bool:
        return cpu.serves(c) and not any(map(is_placed_later, c.arrays))

    kernel = either_of(lambda xp, c: by_kernel if serves(xp, c) else parts, quiet=serves)
    return Methods(name, lambda *_: None, kernel=kernel, native=native, array=array)


def _declared(whole: Primitive, room: Any) -> None:
    """Declare the form of a function with the option, and store it in the declaration of the function.

    ``room`` is the module that checks and computes its calls.
    """

    def compute(methods: Methods, method: str, xp: Namespace, c: OnGrid | Plain) -> Any:
        if isinstance(c, Plain):
            return whole.of(c.asked)
        return differentiated_as(methods, method, xp, c, function=room.plain(c))

    def example(make: Sample) -> Given | None:
        given = whole.example(make) if make.floating and not make.dtype.startswith("complex") else None
        if given is None:
            return None
        weighted = {"weights": make()} if room is weights else {}
        return given[0], {**given[1], **weighted, "reproducible": "everywhere"}

    whole.everywhere = Primitive(
        name=whole.name,
        variant=f"{whole.variant} everywhere".lstrip(),
        check=room.checked,
        normalize=whole.normalize,
        methods=_methods(whole.name, room),
        example=example,
        optional=whole.optional,
        defaults=whole.defaults,
        operators=whole.operators,
        numbers=whole.numbers,
        compute=compute,
        plainer=whole.plainer,
        node=functools.partial(in_graph_as, "histogram everywhere") if whole is HISTOGRAM else None,
        single=room is not weights,
        sharded=whole.sharded,
        replicated=whole.replicated,
    )


for _whole in (REDUCE, SUM, VECDOT):
    _declared(_whole, call)
_declared(CUMULATIVE_SUM, running)
_declared(SEGMENT_REDUCE, segments)
assert REDUCE.by_offsets is not None
_declared(REDUCE.by_offsets, segments)
_declared(HISTOGRAM, weights)
