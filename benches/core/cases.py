"""What a bench module declares: cases, the problems that they pose, and how large they may be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

OURS = ("array", "kernel", "native")
LIBRARIES = ("numpy", "cupy", "torch", "jax")


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large the cases may be: what the machine has, and whether the run is to be short."""

    gpu: bool
    quick: bool

    def pick(self, quick: Any, cpu: Any, gpu: Any) -> Any:
        """Return the first for a quick run, else the second or the third for the machine."""
        return quick if self.quick else gpu if self.gpu else cpu


@dataclasses.dataclass(frozen=True)
class Problem:
    """Inputs and the answer to them, found without the library and given in the result's dtype.

    A result may be off by ``allowed``, elementwise.
    """

    inputs: tuple[np.ndarray, ...]
    expected: Any
    allowed: Any = 0.0


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the comparison.

    ``name`` is "family, size"; the results page shows the largest of a family. ``run(*arrays, method=...)`` calls the
    primitive. ``peers`` maps a name of `LIBRARIES` or `OUTSIDE` to a function of the library's module and the
    arrays. ``work`` is counted in ``unit``; for B/s it is the bytes of inputs and outputs. ``ceiling`` names the
    entry of `ceilings` that bounds the case. With ``whole_call`` the time is that of the call as Python sees it,
    and not only the device's. ``libraries`` are those whose arrays the case is for. ``skip`` maps a method or peer,
    or one of a backend ("jax-cuda array"), to the reason why it is not timed. With ``raw_kernel`` the kernels of the
    call are also timed as CuPy launches them, without the library, under the name rawkernel.
    """

    primitive: str
    name: str
    make: Callable[[np.random.Generator], Problem]
    run: Callable[..., Any]
    peers: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    unit: str = "B/s"
    work: float | None = None
    ceiling: str | None = "copy"
    whole_call: bool = False
    libraries: tuple[str, ...] = LIBRARIES
    skip: Mapping[str, str] = dataclasses.field(default_factory=dict)
    raw_kernel: bool = False

    def __str__(self) -> str:
        return f"{self.primitive}: {self.name}"


OUTSIDE = {  # peer: (backend whose arrays it takes, module)
    "numba": ("numpy", "numba"),
    "scipy": ("numpy", "scipy"),
    "cuda.compute": ("cupy", "cuda.compute"),
    "cublas": ("cupy", "cupy"),
    "cusparse": ("cupy", "cupy"),
    "cupyx": ("cupy", "cupyx.scipy.signal"),
    "torchaudio": ("torch-cuda", "torchaudio"),
    "accelerated-scan": ("torch-cuda", "accelerated_scan"),
}


def library(call: Callable[..., Any], **peers: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Return the peers that are one call in every library, apart from those given by name."""
    return {**dict.fromkeys(LIBRARIES, call), **peers}
