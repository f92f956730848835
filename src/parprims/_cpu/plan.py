"""Plans of kernels for CPUs, and the lines that they see arrays as."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import SIXTEEN_BIT_FLOATS
from parprims._core.layout import broadcast_strides, lines_along, row_major
from parprims._cpu import memory, text
from parprims._cpu.language import NUMBA, memory_type, register_type
from parprims._operators.languages import Captured
from parprims._operators.operator import Operator


@dataclasses.dataclass(frozen=True)
class Lines:
    """Arrays as lines along an axis: (high, low, n, inner), with one stride each.

    Parameters
    ----------
    high, low, inner : int
        The lengths of the axes that lines are counted by.
    groups : tuple of (tuple of View)
        The views of inputs, of outputs and of initial elements.
    """

    high: int
    low: int
    inner: int
    groups: tuple[tuple[text.View, ...], ...]

    @property
    def count(self) -> int:
        """The number of lines."""
        return self.high * self.low * self.inner

    def steps(self, *, columns: bool) -> tuple[list[int], list[int]]:
        """Return the strides of inputs and of outputs: from line to line if ``columns``, else along a line."""
        inputs, outputs = ([view.outer[-1] if columns else view.along for view in group] for group in self.groups[:2])
        return inputs, outputs

    def by_low(self) -> Lines:
        """Return the lines with ``low`` counted fastest, without a division, if no lines are adjacent."""
        if self.inner != 1:
            return self
        groups = [
            tuple([dataclasses.replace(view, outer=(view.outer[0], *view.outer[:0:-1])) for view in group])
            for group in self.groups
        ]
        return Lines(self.high, 1, self.low, tuple(groups))


def lines_of(
    shape: tuple[int, ...],
    axis: int,
    inputs: Sequence[tuple[np.ndarray[Any, Any], str]],
    outputs: Sequence[tuple[tuple[int, ...], str]],
    *,
    starts: Sequence[tuple[np.ndarray[Any, Any], str]] = (),
    reverse: bool = False,
    broadcast: bool = True,
) -> Lines | None:
    """Return arrays as lines along an axis of a shape, from the last element on if ``reverse``.

    Inputs and initial elements are given with their dtypes, outputs by their shapes. Inputs ``broadcast`` to the shape,
    or they have it. Initial elements have length 1 along the axis, or the number of segments; ``reverse`` leaves their
    order. Return None if the other axes do not merge into three.
    """

    def read(x: np.ndarray[Any, Any]) -> tuple[tuple[int, ...], int]:
        strides = memory.strides(x)
        return broadcast_strides(strides, x.shape, len(shape)) if broadcast else strides, memory.first(x)

    arrays = [*(read(x) for x, _ in inputs), *((row_major(made), 0) for made, _ in outputs)]
    arrays += [read(x) for x, _ in starts]
    lengths = [*[shape[axis]] * len(inputs), *(made[axis] for made, _ in outputs)]
    merged = lines_along(shape, axis, [strides for strides, _ in arrays])
    if merged is None:
        return None
    views = []
    for at, (_, dtype) in enumerate((*inputs, *outputs, *starts)):
        begin, along = arrays[at][1], merged.along[at]
        if reverse and at < len(lengths):
            begin, along = begin + (lengths[at] - 1) * along, -along
        views.append(text.View(dtype, begin, (merged.upward[at], merged.downward[at], merged.across[at]), along))
    first, last = len(inputs), len(inputs) + len(outputs)
    groups = tuple(views[:first]), tuple(views[first:last]), tuple(views[last:])
    return Lines(merged.high, merged.low, merged.inner, groups)


def is_memory_bound(op: Operator, dtypes: Sequence[str]) -> bool:
    """Return whether an operator takes less time than to read its elements, of one array."""
    return op._built_in and op.name != "logaddexp" and not any(one in SIXTEEN_BIT_FLOATS for one in dtypes)


@dataclasses.dataclass(frozen=True)
class Launch:
    """A kernel and its tasks.

    Parameters
    ----------
    name : str
        The name of the kernel's function in the texts.
    tasks : int
        The number of tasks. Any number of threads may run them in any order.
    least : int
        The fewest tasks of a thread.
    reads : int, optional
        The number of inputs that the kernel gets, the first ones; by default all.
    writes : bool
        Whether the kernel gets the outputs. More plans share a kernel that needs few arrays, and compile it once.
    """

    name: str
    tasks: int
    least: int = 1
    reads: int | None = None
    writes: bool = True


@dataclasses.dataclass(frozen=True)
class Plan:
    """Kernels, one after another, with the arrays and the numbers that they share.

    Parameters
    ----------
    launches : tuple of Launch
        The kernels in order; each reads the memory that earlier kernels wrote.
    texts : tuple of str
        The functions of the kernels.
    inputs : tuple of str
        The dtypes of the inputs.
    outputs : tuple of (shape, dtype)
        The outputs to allocate.
    scratch : tuple of (int, dtype)
        Arrays of states with one axis, allocated for each call.
    numbers : tuple of int
        The numbers that all kernels get.
    starts : tuple of str, optional
        The dtypes of initial elements. Behind the inputs, they are a group of their own.
    seen : tuple of str, optional
        The dtypes as which kernels see the outputs, if not as their own: dtypes of equal width.
    captured : tuple of Captured
        The captured numbers of operators. Kernels get them behind the other numbers, so that texts do not hold them.
    """

    launches: tuple[Launch, ...]
    texts: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    scratch: tuple[tuple[int, str], ...]
    numbers: tuple[int, ...]

    starts: tuple[str, ...] | None = None
    seen: tuple[str, ...] | None = None
    captured: tuple[Captured, ...] = ()

    def kernel(self, at: int = 0) -> text.Kernel:
        """Return one of the kernels."""
        launch = self.launches[at]
        read = [self.inputs] if self.starts is None else [self.inputs, self.starts]
        seen = self.seen or tuple([dtype for _, dtype in self.outputs])
        written = [tuple([memory_type(dtype) for dtype in seen if launch.writes])]
        if self.scratch:
            written.append(tuple([register_type(dtype) for _, dtype in self.scratch]))
        groups = [tuple([memory_type(dtype) for dtype in group[: launch.reads]]) for group in read]
        return text.Kernel(
            launch.name, self.texts, read=tuple(groups), written=tuple(written), begins=tuple(self._named())
        )

    @property
    def all_numbers(self) -> tuple[int, ...]:
        """The numbers, and behind them the words of captured numbers."""
        return *self.numbers, *(word for captured in self.captured for word in captured.words)

    def _named(self) -> Iterator[str]:
        """Return the lines that assign captured numbers to their names in the texts."""
        at = len(self.numbers)
        for one in self.captured:
            words = [f"numbers[{at + part}]" for part in range(len(one.words))]
            yield f"{one.name} = {NUMBA.from_words(words, one.dtype)}"
            at += len(words)

    def text(self, at: int = 0) -> str:
        """Return the whole text of one kernel."""
        return self.kernel(at).text

    def parameters(self, at: int = 0) -> tuple[str, ...]:
        """Return the names of the parameters of one kernel, as in its text."""
        return self.kernel(at).parameters
