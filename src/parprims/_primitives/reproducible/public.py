"""Sums with the same bits everywhere: forms of the public functions that have the option ``reproducible``."""

from __future__ import annotations

from typing import Any

from parprims._core.arrays import Namespace
from parprims._dispatch.dispatch import Methods
from parprims._dispatch.examples import Given, Sample
from parprims._dispatch.primitive import Check, Primitive
from parprims._primitives.reduce.public import REDUCE, SUM, VECDOT
from parprims._primitives.reproducible import call
from parprims._primitives.reproducible.call import Plain


def _declared(whole: Primitive, check: Check, methods: Methods) -> None:
    """Declare the form of a function with the option, and store it in the declaration of the function."""

    def compute(methods: Methods, method: str, xp: Namespace, c: Any) -> Any:
        return whole.of(c.asked) if isinstance(c, Plain) else call.computed(methods, method, xp, c)

    def example(make: Sample) -> Given | None:
        given = whole.example(make) if make.floating and not make.dtype.startswith("complex") else None
        return None if given is None else (given[0], {**given[1], "reproducible": "everywhere"})

    whole.everywhere = Primitive(
        name=whole.name,
        variant="everywhere",
        check=check,
        methods=methods,
        example=example,
        defaults=whole.defaults,
        operators=whole.operators,
        numbers=whole.numbers,
        compute=compute,
        single=True,
    )


for _whole in (REDUCE, SUM, VECDOT):
    _declared(_whole, call.checked, call.methods_of(_whole.name))
