"""The geometry of a kernel of segments: shapes, layouts and lines of its arrays, and its parameters."""

from __future__ import annotations

import dataclasses

from parprims import _cuda
from parprims._core.layout import Layout, Lines, access, broadcast_strides, lines_along, row_major
from parprims._operators.languages import C_TYPES
from parprims._primitives.scan.source import Specialisation


@dataclasses.dataclass(frozen=True)
class Work:
    """The geometry of a reduction or scan of segments.

    Parameters
    ----------
    special : Specialisation
        The operator and the dtypes.
    shape : tuple of int
        The shape of every input.
    axis, segments : int
        The axis of the segments, and their number.
    offsets : str
        The dtype of the offsets.
    shapes, layouts : tuple
        The shapes and layouts of the inputs, then of the starts. These have length 1 along the axis; in scans in the
        canonical grouping perhaps the length of the segments.
    reverse : bool
        Whether a scan starts at the end of each segment.
    """

    special: Specialisation
    shape: tuple[int, ...]
    axis: int
    segments: int
    offsets: str
    shapes: tuple[tuple[int, ...], ...]
    layouts: tuple[Layout, ...]
    reverse: bool = False

    @property
    def n(self) -> int:
        """The length of the axis."""
        return self.shape[self.axis]

    @property
    def arrays(self) -> int:
        """The number of inputs and outputs."""
        return len(self.special.inputs) + len(self.special.outputs)

    def lines(self, result: tuple[int, ...]) -> Lines | None:
        """Return the lines of inputs, outputs and starts, or None if they are adjacent or have several strides."""
        inputs = len(self.special.inputs)
        arrays = zip(self.shapes, self.layouts, strict=True)
        strides = [broadcast_strides(steps, input_shape, len(self.shape)) for input_shape, (steps, _) in arrays]
        strides[inputs:inputs] = [row_major(result)] * len(self.special.outputs)
        merged = lines_along(self.shape, self.axis, strides)
        return None if merged is None or merged.inner > 1 else merged

    def access(self, merged: Lines, index: int, length: int, vector: int) -> str:
        """Return the name of the access to ``vector`` elements of an array with a length along the axis."""
        itemsize, step = self.special.itemsizes[index], -merged.along[index] if self.reverse else merged.along[index]
        inputs = len(self.special.inputs)
        address = self.layouts[index][1] if index < inputs else 0
        begin = (length - 1) * merged.along[index] if self.reverse else 0
        first = address + (begin - (vector - 1 if step == -1 else 0)) * itemsize
        strides = merged.upward[index], merged.downward[index]
        return access(step, first, strides, vector=vector, itemsize=itemsize)

    def parameters(self, numbers: _cuda.Numbers, merged: Lines, length: int) -> tuple[_cuda.Parameter, ...]:
        """Return the parameters Inputs, Outputs with a length along the axis, Starts, and offsets."""
        special, inputs = self.special, len(self.special.inputs)

        def view(index: int, memory: str, dtype: str, length: int = 1, *, inner: int = 0) -> _cuda.Struct:
            step = merged.along[index]
            return _cuda.Struct(
                _cuda.Pointer(memory, dtype, elements=numbers("begin", (length - 1) * step if self.reverse else 0)),
                numbers("high_stride", merged.upward[index]),
                numbers("low_stride", merged.downward[index]),
                numbers("stride", -step if self.reverse else step),
                numbers("inner_stride", inner),
            )

        def named(index: int, name: str) -> tuple[str, str]:
            return f"in{index}", f"const {C_TYPES[name]}"

        reads = [view(index, *named(index, name), self.n) for index, name in enumerate(special.inputs)]
        writes = [
            view(inputs + index, f"out{index}", C_TYPES[name], length) for index, name in enumerate(special.outputs)
        ]
        starts = [
            view(self.arrays + index, *named(inputs + 1 + index, name), inner=merged.along[self.arrays + index])
            for index, name in enumerate(special.starts)
        ]
        return (
            _cuda.Struct(*reads, type="Inputs"),
            _cuda.Struct(*writes, type="Outputs"),
            _cuda.Struct(*starts, type="Starts"),
            _cuda.Pointer(*named(inputs, self.offsets)),
        )

    def plan(self, launch: _cuda.Launch, numbers: _cuda.Numbers, result: tuple[int, ...], **scratch: int) -> _cuda.Plan:
        """Return the plan of a launch."""
        special = self.special
        outputs = tuple([(result, name) for name in special.outputs])
        inputs = len(special.inputs) + 1 + len(special.starts)
        return _cuda.Plan((launch,), inputs, outputs, numbers.all(), captured=special.captured, **scratch)
