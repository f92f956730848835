"""Plans one after another as one plan: results of earlier plans are arrays of later ones, in the call's own memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from parprims._core.arrays import dtype_bits
from parprims._cuda.plan import Launch, Number, Numbers, Parameter, Plan, Pointer, Struct

_ALIGNMENT = 256
"""Arrays in the call's own memory begin at multiples of so many bytes."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A plan and the names of its inputs and outputs.

    Parameters
    ----------
    plan : Plan
        The plan.
    inputs, outputs : tuple of str
        The names of its arrays. Steps with an equal name share the array.
    only_if : str, optional
        The name of an array of 32-bit integers. The step has work only if the first is not zero.
    """

    plan: Plan
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    only_if: str | None = None


def chained(steps: Sequence[Step], inputs: Sequence[str], outputs: Sequence[tuple[str, tuple[int, ...], str]]) -> Plan:
    """Return one plan of all steps.

    ``inputs`` names the arrays of the call, ``outputs`` has the name, the shape and the dtype of each result. All other
    arrays are in the call's own memory. The steps share scratch, which each of them leaves as it must be found.
    """
    places = {name: Pointer(f"in{at}") for at, name in enumerate(inputs)}
    places |= {name: Pointer(f"out{at}") for at, (name, _, _) in enumerate(outputs)}
    end, numbers, launches = 0, Numbers(), []
    for step in steps:
        for name, (shape, dtype) in zip(step.outputs, step.plan.outputs, strict=True):
            if name not in places:
                places[name] = Pointer("temporary", bytes=end)
                end += -(-math.prod(shape) * dtype_bits(dtype) // (8 * _ALIGNMENT)) * _ALIGNMENT
        launches += _launches(step, places, numbers)
    plans = [step.plan for step in steps]
    assert not any(plan.temporary_bytes or plan.captured for plan in plans)
    return Plan(
        tuple(launches),
        len(inputs),
        tuple([(shape, dtype) for _, shape, dtype in outputs]),
        numbers.all(),
        zeroed_bytes=max(plan.zeroed_bytes for plan in plans),
        status_bytes=max(plan.status_bytes for plan in plans),
        scratch_bytes=max(plan.scratch_bytes for plan in plans),
        temporary_bytes=end,
    )


def _launches(step: Step, places: dict[str, Pointer], numbers: Numbers) -> list[Launch]:
    """Return the launches of a step with arrays at their places, and integers under names of the whole chain."""
    own = {f"in{at}": places[name] for at, name in enumerate(step.inputs)}
    own |= {f"out{at}": places[name] for at, name in enumerate(step.outputs)}
    named = {one: numbers(one.name, one.value) for one in step.plan.numbers}

    def moved(one: Parameter) -> Parameter:
        if isinstance(one, Number):
            return named[one]
        if isinstance(one, Struct):
            return Struct(*map(moved, one.fields), type=one.type)
        if isinstance(one, Pointer):
            elements = named[one.elements] if isinstance(one.elements, Number) else one.elements
            place = own.get(one.memory)
            if place is None:
                return dataclasses.replace(one, elements=elements)
            assert one.bytes is None
            return Pointer(place.memory, one.type, elements=elements, bytes=place.bytes)
        return one

    def placed(one: Launch) -> Launch:
        return dataclasses.replace(
            one,
            parameters=tuple(map(moved, one.parameters)),
            only_if=None if step.only_if is None else dataclasses.replace(places[step.only_if], type="const int"),
            then=tuple(map(placed, one.then)),
        )

    return list(map(placed, step.plan.launches))
