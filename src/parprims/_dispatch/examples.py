"""Example calls: a declaration makes the arguments of a small call that is valid and ordinary.

All that goes over the primitives reads them: `warm`, benchmarks, tests, and the record of what works where.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional arguments and the options of a call; their arrays are NumPy's."""


@dataclasses.dataclass(eq=False)
class Sample:
    """The kind of an example call, and the maker of its arrays.

    Parameters
    ----------
    shape : tuple of int
        The shape of the elements.
    axis : int
        The axis to work along.
    dtype : str
        The dtype of the elements.
    fixed : bool
        Whether the shapes of results must not depend on values, as in programs of JAX.
    seed : int
        Other seeds give other elements.
    """

    shape: tuple[int, ...] = (100,)
    axis: int = 0
    dtype: str = "float32"
    fixed: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def __call__(self, *shape: int) -> Any:
        """Return random elements: floats between -1 and 1, integers from 0 to 9."""
        rng, dtype, shape = self._rng, np.dtype(self.dtype), shape or self.shape
        if dtype.kind == "b":
            return rng.random(shape) < 0.5
        if dtype.kind in "iu":
            return rng.integers(0, 10, shape).astype(dtype)
        x = rng.uniform(-1, 1, shape)
        return (x + 1j * rng.uniform(-1, 1, shape) if dtype.kind == "c" else x).astype(dtype)

    def of(self, *numbers: Any) -> Any:
        """Return these numbers as an array of the elements' dtype."""
        return np.asarray(numbers).astype(self.dtype)

    def sorted(self) -> Any:
        """Return random elements of one axis in order."""
        return np.sort(self())

    def offsets(self) -> Any:
        """Return offsets of three segments along the axis, the second empty."""
        return np.asarray([0, self.n // 3, self.n // 3, self.n])

    def ids(self) -> Any:
        """Return the segments of the elements, of which there are three in order."""
        return np.arange(self.n) * 3 // max(1, self.n)

    @property
    def along(self) -> dict[str, Any]:
        """The option that names the axis."""
        return {"axis": self.axis}

    @property
    def sized(self) -> dict[str, Any]:
        """The option that fixes the length of a result, if it must be fixed."""
        return {"size": self.n} if self.fixed else {}

    @property
    def n(self) -> int:
        """The length of the axis."""
        return self.shape[self.axis]

    @property
    def few(self) -> int:
        """A position in the first half of the axis, at most 5."""
        return max(1, min(5, self.n // 2))

    @property
    def side(self) -> int:
        """The length of the sides of a square of about as many elements."""
        return math.isqrt(math.prod(self.shape))

    @property
    def floating(self) -> bool:
        """Whether the elements are real or complex floats."""
        return np.dtype(self.dtype).kind not in "biu"

    @property
    def is_line(self) -> bool:
        """Whether there is one axis."""
        return len(self.shape) == 1

    @property
    def is_last(self) -> bool:
        """Whether the axis is the last."""
        return self.axis == len(self.shape) - 1


MakesCall = Callable[[Sample], Given | None]
"""Returns the arguments of an example call, or None where there is none of the kind."""


def of_an_array(make: Sample) -> Given:
    """Return the call of one array along an axis."""
    return (make(),), make.along


def of_two(make: Sample) -> Given:
    """Return the call of two arrays along an axis."""
    return (make(), make()), make.along


def floats(example: MakesCall) -> MakesCall:
    """Return an example of floats only."""
    return lambda make: example(make) if make.floating else None


def lines(example: MakesCall) -> MakesCall:
    """Return an example of arrays of one axis only."""
    return lambda make: example(make) if make.is_line else None


@dataclasses.dataclass(frozen=True)
class Example:
    """A call as data: a public function, its positional arguments, and its options.

    Called with other arrays in the places of its own, and perhaps further options, it calls the function.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All arrays of the call, those among the options last."""
        return tuple(x for x in (*self.args, *self.options.values()) if isinstance(x, np.ndarray))

    def bound(self, *arrays: Any) -> Callable[..., Any]:
        """Return the call on other arrays in the places of its own, as a function of further options."""
        found = iter(arrays)
        args = [next(found) if isinstance(x, np.ndarray) else x for x in self.args]
        options = {name: next(found) if isinstance(x, np.ndarray) else x for name, x in self.options.items()}
        return functools.partial(self.function, *args, **options)

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        return self.bound(*arrays)(**options)
