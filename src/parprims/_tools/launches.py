"""The kernels of a call: every kernel with its text, its sizes and its arguments, for those who study kernels."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parprims import _cpu, _cuda
from parprims._compiling.plan_capture import Observed, observing
from parprims._core.arrays import library, namespace
from parprims._cuda import compiler, libraries
from parprims._cuda.plan import SCRATCH, Plan, with_include_lines
from parprims._dispatch.watch import launching


@dataclasses.dataclass(frozen=True)
class KernelLaunch:
    """One launch of a kernel, as `launches` lists it.

    Parameters
    ----------
    name : str
        The function template that the kernel calls, with its arguments; on a CPU the function.
    full_source : str
        The text that is compiled, with all headers: CUDA with the kernel ``kernel``; on a CPU the Python that Numba
        compiles, with the kernel ``run``. ``source`` is the part of it to read.
    grid, block : int
        The number of blocks, and of threads in each. On a CPU the number of tasks, which threads share, and 1.
    shared_bytes : int
        The dynamic shared memory of a block, in bytes; 0 on a CPU.
    architecture : str
        The target of the compilation in NVRTC's notation, such as sm_90, or cpu.
    parameters : tuple of str
        The names of the kernel's parameters: arrays, scratch, then integers.
    arguments : tuple
        The values of the parameters on CuPy arrays, in the order of ``parameters``: the call's own arrays, new ones for
        the results and the scratch, NumPy integers. The launches of one call share them. Empty for other arrays.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.launches(parprims.sum, np.arange(5.0))  # NumPy's own routine launches nothing
    []
    """

    name: str
    full_source: str = dataclasses.field(repr=False)
    grid: int
    block: int
    shared_bytes: int
    architecture: str
    parameters: tuple[str, ...]
    arguments: tuple[Any, ...] = dataclasses.field(repr=False)

    @property
    def source(self) -> str:
        """The text to read: ``full_source`` with ``#include`` lines for headers; on a CPU the function ``run`` alone.

        CUDA text is the ``.cu`` file of the primitive, then the operator and the types of the call, then ``kernel``.
        If the text of a header was changed, it is ``full_source``.
        """
        if self.architecture == "cpu":
            return self.full_source[self.full_source.rfind("\n@kernel(") + 1 :]
        return with_include_lines(self.full_source)

    @property
    def registers(self) -> int:
        """The registers of a thread, from the compiler's log; 0 on a CPU."""
        if self.architecture == "cpu":
            return 0
        found = re.search(r"Used (\d+) registers", self._compiled(report=True)[1])
        return int(found[1]) if found else 0

    def raw_kernel(self) -> Any:
        """Return the kernel as a ``cupy.RawKernel``, compiled with the options of the library.

        Returns
        -------
        cupy.RawKernel
            Takes ``(grid,), (block,), arguments`` and ``shared_mem=shared_bytes``. For a changed kernel call this on
            ``dataclasses.replace(launch, full_source=...)``.

        Raises
        ------
        TypeError
            If the kernel is one for CPUs.
        """
        if self.architecture == "cpu":
            raise TypeError(f"{self.name} is a kernel for CPUs: only those for CUDA devices can be a cupy.RawKernel")
        cupy = libraries.cupy()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(self._compiled()[0])
            kernel = cupy.RawModule(path=str(path)).get_function("kernel")
            if self.shared_bytes:
                kernel.max_dynamic_shared_size_bytes = self.shared_bytes
        return kernel

    def _compiled(self, *, report: bool = False) -> tuple[bytes, str]:
        return compiler.compile_source(self.full_source, self.architecture, report=report)


def launches(function: Callable[..., Any] | None = None, /, *args: Any, **kwargs: Any) -> list[KernelLaunch]:
    """List the kernels that a call would launch, in order; nothing is computed.

    Parameters
    ----------
    function : callable
        A primitive of this library.
    *args, **kwargs
        The call's arguments.

    Returns
    -------
    list of KernelLaunch
        Empty if the call takes another method than ``kernel``. For a primitive that is made of others, the kernels of
        the first of these.

    Raises
    ------
    TypeError
        If no function is given.
    MethodRefused
        If the call asks for a method that cannot compute it.

    See Also
    --------
    methods : List the methods of a call.

    Examples
    --------
    >>> import parprims
    >>> def time_sum(x):  # of CuPy
    ...     import cupyx.profiler
    ...
    ...     (one,) = parprims.launches(parprims.sum, x, method="kernel")
    ...     kernel = one.raw_kernel()
    ...     launch = lambda: kernel((one.grid,), (one.block,), one.arguments, shared_mem=one.shared_bytes)
    ...     return cupyx.profiler.benchmark(launch, n_repeat=100)
    """
    if function is None:
        raise TypeError("launches lists the kernels of one call: write launches(function, *arguments), without `with`")
    with launching(), observing():
        try:
            function(*args, **kwargs)
        except Observed as seen:
            return _listed(seen.plan, seen.arrays)
    return []


def _listed(plan: Plan | _cpu.Plan, arrays: tuple[Any, ...]) -> list[KernelLaunch]:
    if isinstance(plan, _cpu.Plan):
        return [
            KernelLaunch(
                name=one.name,
                full_source=plan.text(at),
                grid=one.tasks,
                block=1,
                shared_bytes=0,
                architecture="cpu",
                parameters=plan.parameters(at),
                arguments=(),
            )
            for at, one in enumerate(plan.launches)
        ]
    xp = namespace(x=arrays[0])
    arguments = _arguments(plan, arrays) if library(xp) == "cupy" else ()
    arch = f"sm_{_cuda.capability(xp, arrays[0])}"
    names = (
        *(f"in{index}" for index in range(plan.inputs)),
        *(f"out{index}" for index in range(len(plan.outputs))),
        *SCRATCH,
        *(number.name for number in (*plan.numbers, *plan.words)),
    )
    return [
        KernelLaunch(
            name=one.name,
            full_source=plan.text(at),
            grid=one.grid,
            block=one.block,
            shared_bytes=one.shared_bytes,
            architecture=one.architecture(arch),
            parameters=names,
            arguments=arguments,
        )
        for at, one in enumerate(plan.launches)
    ]


def _arguments(plan: Plan, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of the kernels on CuPy arrays, scratch that starts at zero zeroed."""
    import numpy as np

    cupy = libraries.cupy()
    outputs = (cupy.empty(shape, np.dtype(name)) for shape, name in plan.outputs)
    sizes = {**plan.zeros(), **plan.unset()}
    scratch = (cupy.zeros(max(sizes[kind], 1), np.uint8) for kind in SCRATCH)
    return *arrays, *outputs, *scratch, *(np.int64(value) for value in plan.integers)
