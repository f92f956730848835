"""Load the object code of a kernel as a function of Python. This takes LLVM, but not Numba."""

from __future__ import annotations

import ctypes
import functools
import importlib
import struct
from collections.abc import Callable
from typing import Any


class _Method(ctypes.Structure):
    """PyMethodDef: the description of a C function for Python."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FASTCALL = 0x80


def load(name: str, code: bytes) -> Callable[..., None]:
    """Return the function of a name in object code; it raises MemoryError if no memory is left.

    Only one thread at a time may call this.
    """
    llvm, engine = _llvm(), _engine()  # with an engine, LLVM looks for names in the whole process
    names = _undefined(code)
    if names is None or any(llvm.address_of_symbol(one) is None for one in names):
        from numba.core.registry import cpu_target

        _ = cpu_target.target_context  # makes all functions of Numba known to LLVM
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    method = _Method(name.encode(), engine.get_function_address(name), _FASTCALL, None)
    function: Callable[..., None] = _function(ctypes.addressof(method), None, method)  # keeps `method` alive
    return function


def address(name: str, *, data: bool) -> int:
    """Return the address of a function, or with ``data`` of a variable, in object code that is loaded.

    Only one thread at a time may call this.
    """
    engine = _engine()
    found: int = engine.get_global_value_address(name) if data else engine.get_function_address(name)
    return found


_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)
"""The C function PyCFunction_NewEx(method_def, self, module)."""


def _llvm() -> Any:
    return importlib.import_module("llvmlite.binding")


@functools.cache
def _engine() -> Any:
    llvm = _llvm()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


@functools.cache
def processor() -> str:
    """Return a text that is equal for processors that can run each other's code."""
    llvm = _llvm()
    return f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def _undefined(code: bytes) -> list[str] | None:
    """Return the names that object code does not define, or None if it is not ELF of 64 bits."""
    if code[:6] != b"\x7fELF\x02\x01":
        return None
    (start,), (size, count) = struct.unpack_from("<Q", code, 0x28), struct.unpack_from("<HH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + size * at) for at in range(count)]
    symbols = next(one for one in sections if one[1] == _SYMBOLS)
    names = sections[symbols[6]][4]
    return [
        code[names + name : code.index(b"\0", names + name)].decode()
        for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", code[symbols[4] : symbols[4] + symbols[5]])
        if name and not section
    ]


_SYMBOLS = 2
"""The type of the section that lists the names."""
