"""Settings of PyTorch and CuPy: compilation, autocast, and the precision of products."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import SIXTEEN_BIT_FLOATS, Array, Namespace, dtype_name, is_tensor
from parprims._core.jax_arrays import is_traced

_AUTOCAST = ("cuda", "cpu", "xpu", "mps")
"""The kinds of devices for which autocast is looked up."""

_ENOUGH = {"float32": ("none", "ieee"), "residues": ("none", "ieee"), "tf32": ("none", "ieee", "tf32")}
"""By precision, the settings of PyTorch that form products of float32 at least that exactly."""


asks: list[Callable[[], bool]] = []
"""PyTorch's tests of compilation and export; empty until `compiling` has seen a tensor outside of both."""


def compiling(x: Any) -> bool:
    """Return whether torch.compile or torch.export reads the calling program, and x or an entry of it is a tensor.

    Every public function calls this first, because its call then becomes a node of the graph (`_torch_compile`). The
    compiler reads this function too. So it does not use `sys.modules`: the compiler would inspect all modules, and fail
    at a module that imports another when its attributes are read.
    """
    xs = x if type(x) is tuple else (x,)
    if asks:
        if not (asks[0]() or asks[1]()):
            return False
    elif not _one_is_tensor(xs):
        return False
    else:
        import torch

        if not (torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting()):
            # The compiler may call this while it reads a program. It may read twice, and `asks` must not have changed.
            if torch._guards.TracingContext.try_get() is None:
                asks[:] = torch.compiler.is_dynamo_compiling, torch.compiler.is_exporting
            return False
    return _one_is_tensor(xs)


def _one_is_tensor(xs: tuple[Any, ...]) -> bool:
    for x in xs:  # noqa: SIM110 - a generator would delay calls on other libraries
        if not isinstance(x, int | float) and hasattr(x, "requires_grad"):  # the compiler asks no symbol for attributes
            return True
    return False


def transformed() -> bool:
    """Return whether a transformation of torch.func or a forward derivative of PyTorch is under way."""
    import torch

    found: bool = torch._C._are_functorch_transforms_active() or forward_asked()
    return found


def forward_asked() -> bool:
    """Return whether a forward derivative of PyTorch is under way, also by torch.func."""
    import torch

    found: bool = torch.autograd.forward_ad._current_level >= 0
    return found


def asked_for(x: Any) -> bool:
    """Return whether a derivative by an array may be requested, also by a transformation of its library."""
    if is_tensor(x):
        import torch

        return bool(transformed() or (torch.is_grad_enabled() and x.requires_grad))
    return is_traced(x)


def autocast(xp: Namespace) -> tuple[str, ...]:
    """Return the kinds of devices for which PyTorch's autocast is on."""
    if getattr(xp, "__name__", "") != "array_api_compat.torch":
        return ()
    import torch

    return tuple([kind for kind in _AUTOCAST if torch.is_autocast_enabled(kind)])


def without_autocast(kinds: tuple[str, ...]) -> contextlib.ExitStack:
    """Return a context in which autocast is off for these kinds of devices."""
    import torch

    stack = contextlib.ExitStack()
    for kind in kinds:
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


_tells: tuple[Callable[[str, str], str], ...] = ()
"""PyTorch's getter of its setting for products of float32; empty until a tensor has been seen."""


def float32_products(x: Array) -> str | None:
    """Return PyTorch's setting for products of float32 on the device of x; None for arrays of other libraries."""
    global _tells
    if not is_tensor(x):
        return None
    if not _tells:  # an import statement takes longer than the getter
        import torch

        _tells = (torch._C._get_fp32_precision_getter,)
    return _tells[0]("cuda" if x.is_cuda else "mkldnn", "matmul")


def narrowed(x: Array, precision: str = "float32") -> bool:
    """Return whether PyTorch may form float32 products on the device of x with fewer bits than a precision needs."""
    return precision in _ENOUGH and float32_products(x) not in _ENOUGH[precision]


def narrowed_in_cupy() -> bool:
    """Return whether the environment variable CUPY_TF32 lets CuPy form products of float32 with fewer bits."""
    from cupy._core import _routines_linalg as told

    exact = told.COMPUTE_TYPE_DEFAULT, told.COMPUTE_TYPE_PEDANTIC, told.COMPUTE_TYPE_FP32
    return told.get_compute_type("f") not in exact


class _UnroundedSums:
    """While a thread is inside, cuBLAS forms sums of products of 16-bit floats in float32 and rounds them once.

    By default PyTorch lets cuBLAS round parts of a sum to 16 bits. The caller's settings are restored when the last
    thread has left.
    """

    _LOSSES = ("bf16_reduced_precision_reduction", "fp16_reduced_precision_reduction", "fp16_accumulation")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._switches: tuple[tuple[Callable[[], Any], Callable[..., None]], ...] = ()  # getters, setters
        self._told: list[tuple[Callable[..., None], tuple[bool, ...]]] = []

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside > 1:
                return
            for ask, tell in self._switches or self._found():
                told = ask()
                if told.__class__ is not tuple:  # some releases return further settings
                    told = (told,)
                if told[0]:
                    tell(False, *told[1:])
                    self._told.append((tell, told))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                for tell, told in self._told:
                    tell(*told)
                self._told.clear()

    def _found(self) -> tuple[tuple[Callable[[], Any], Callable[..., None]], ...]:
        """Find PyTorch's getters and setters, once: the search takes nearly as long as a product of small matrices."""
        import torch

        ask, tell = "_get_cublas_allow_", "_set_cublas_allow_"
        self._switches = tuple([(getattr(torch._C, ask + one), getattr(torch._C, tell + one)) for one in self._LOSSES])
        return self._switches


UNROUNDED_SUMS = _UnroundedSums()


def may_round_sums(x: Array, dtype: Any) -> bool:
    """Return whether PyTorch, outside of `UNROUNDED_SUMS`, may round parts of sums of products of x in a dtype."""
    return is_tensor(x) and x.is_cuda and dtype_name(dtype) in SIXTEEN_BIT_FLOATS
