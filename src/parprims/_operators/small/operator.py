"""The combination of elements of small arrays as operations on scalars."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from parprims._operators.constants import with_own_numbers
from parprims._operators.foreign.jax_programs import came_through_jax
from parprims._operators.foreign.names import Untranslatable
from parprims._operators.small.arrays import Lanes, Shape
from parprims._operators.small.jax_programs import by_jax
from parprims._operators.tracing import Lines, Scalar, Untraceable


def combined(
    combine: Callable[[Any, Any], Any],
    axes: int,
    shapes: Sequence[Shape],
    scalars: tuple[Sequence[Scalar], Sequence[Scalar]],
) -> tuple[Scalar, ...]:
    """Return the combination of two elements of small arrays, given as scalars and returned as scalars.

    ``combine`` takes tuples of arrays, with ``axes`` axes before the trailing ``shapes``.
    """
    outer = scalars[0][0]._lines
    lanes, elements, first = Lanes(axes, outer), [], 0
    dtypes: list[str] = []
    for side in scalars:
        rest, leaves = [*side], []
        for shape in shapes:
            count = math.prod(shape)
            leaves.append(lanes.arguments(shape, [one._dtype for one in rest[:count]], first))
            dtypes += [rest[0]._dtype] if side is scalars[0] else []
            rest, first = rest[count:], first + count
        elements.append(leaves)
    own = combine if outer.told is None else with_own_numbers(combine)
    try:
        result = own(*map(tuple, elements))
        results = result if isinstance(result, tuple) else (result,)
    except (Untraceable, Untranslatable):
        raise
    except Exception as error:
        if not came_through_jax(error):
            raise
        results = by_jax(own, elements, dtypes)
    if len(results) != len(shapes):
        raise Untraceable(f"it returns {len(results)} arrays for elements of {len(shapes)}")
    outputs = lanes.outputs(results, shapes, dtypes)
    return _replayed(outer, next(iter(lanes.lines.values())), outputs, [*scalars[0], *scalars[1]])


def _replayed(outer: Lines, inner: Lines, outputs: Sequence[Scalar], scalars: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """Append the lines of a lane to the outer trace, with its names in place of the lane's; return the results."""
    start, told = len(outer), len(outer.captured)

    def renamed(text: str) -> str:
        text = re.sub(rf"\b{inner.prefix}x(\d+)\b", lambda found: scalars[int(found[1])]._code, text)
        text = re.sub(rf"\b{inner.prefix}t(\d+)\b", lambda found: f"t{start + int(found[1])}", text)
        if inner.told is not None and told:
            text = re.sub(rf"\b{inner.told}(\d+)\b", lambda found: f"{inner.told}{told + int(found[1])}", text)
        return text

    outer += [renamed(line) for line in inner]
    outer.long |= inner.long
    outer.captured += [type(one)(renamed(one.name), one.dtype, one.words) for one in inner.captured]
    return tuple([Scalar(outer, one._dtype, renamed(one._code)) for one in outputs])
