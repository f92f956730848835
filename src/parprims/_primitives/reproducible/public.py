"""Sums with the same bits everywhere: forms of the public functions that have the option ``reproducible``."""

from __future__ import annotations

from typing import Any

from parprims._core.arrays import Namespace
from parprims._dispatch.derivative_rules import differentiated_as
from parprims._dispatch.dispatch import Methods
from parprims._dispatch.examples import Given, Sample
from parprims._dispatch.primitive import Primitive
from parprims._primitives.reduce.public import REDUCE, SUM, VECDOT
from parprims._primitives.reproducible import call, running
from parprims._primitives.reproducible.call import Plain, methods_of
from parprims._primitives.scan.public import CUMULATIVE_SUM


def _declared(whole: Primitive, room: Any) -> None:
    """Declare the form of a function with the option, and store it in the declaration of the function.

    ``room`` is the module that checks and computes its calls.
    """

    def compute(methods: Methods, method: str, xp: Namespace, c: Any) -> Any:
        if isinstance(c, Plain):
            return whole.of(c.asked)
        return differentiated_as(methods, method, xp, c, room.plain(c))

    def example(make: Sample) -> Given | None:
        given = whole.example(make) if make.floating and not make.dtype.startswith("complex") else None
        return None if given is None else (given[0], {**given[1], "reproducible": "everywhere"})

    whole.everywhere = Primitive(
        name=whole.name,
        variant="everywhere",
        check=room.checked,
        methods=methods_of(whole.name, room.compute, room.parts),
        example=example,
        optional=whole.optional,
        defaults=whole.defaults,
        operators=whole.operators,
        numbers=whole.numbers,
        compute=compute,
        single=True,
    )


for _whole in (REDUCE, SUM, VECDOT):
    _declared(_whole, call)
_declared(CUMULATIVE_SUM, running)
