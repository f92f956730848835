"""Keys of functions: the code, and the values of all variables that the function reads besides its arguments."""

from __future__ import annotations

import builtins
import dis
import functools
import sys
import types
from typing import Any

import numpy as np

from parprims._operators.operator import Operator


class _UnknownError(Exception):
    """The result of a function may depend on a value that no key can hold."""


def lasting_key(function: Any) -> Any:
    """Return a key under which the trace of a function can be kept; None if the trace may change unseen.

    The key of a function has its code and the values of all that it reads: closures, defaults, globals, attributes of
    modules and, in turn, other functions. The key of an operator has the keys of its parts. A name is its own
    key. So is a module with constant contents, such as an array namespace.
    """
    kind = type(function)
    if kind is str:
        return function
    if function is None:
        return type(None)
    if kind is Operator and function._built_in:
        return function
    try:
        return _function_key(function, ()) if kind is types.FunctionType else _value_key(function, ())
    except _UnknownError:
        return None


_LASTING = frozenset(
    "array_api_compat array_api_strict builtins cmath cupy functools itertools math numpy operator parprims "
    "torch".split()
)
"""Packages whose functions and constants do not change."""

_LASTING_MODULES = ("jax.numpy", "jax.lax", "jax.nn", "jax.scipy", "scipy.special", "ml_dtypes")
"""Modules, with their submodules, whose functions never change although the rest of their package may."""

_LASTING_FUNCTIONS = frozenset({("jax._src.api", "vmap")})
"""Functions of other modules that never change, and read nothing but their arguments."""

_READERS = frozenset(id(one) for one in (globals, locals, vars, dir, eval, exec, open, input, __import__))
"""Built-in functions that read variables which the code does not name."""

_MOST = 256
"""The most entries of a list, dict or array that become part of a key."""


@functools.lru_cache(maxsize=4096)
def _is_lasting(module: str) -> bool:
    return module.partition(".")[0] in _LASTING or any(
        module == one or module.startswith(one + ".") for one in _LASTING_MODULES
    )


class _Reads:
    """The variables that a code object reads besides its arguments.

    ``reads`` has an entry for each variable: whether it belongs to a closure, its name, and the chain of attributes
    that the code reads from it. It is None if the variables cannot be found.
    """

    __slots__ = ("code", "reads")

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        reads: dict[tuple[bool, str, tuple[str, ...]], None] = {}
        self.reads: tuple[tuple[bool, str, tuple[str, ...]], ...] | None = None
        if all(_collect(one, frozenset(code.co_freevars), reads) for one in _codes(code)):
            for name in code.co_freevars:
                if not any(free and name == other for free, other, _ in reads):
                    reads[True, name, ()] = None
            self.reads = tuple(reads)


def _codes(code: types.CodeType) -> list[types.CodeType]:
    """Return a code object and the code objects of the functions defined in it."""
    inner = [one for constant in code.co_consts if isinstance(constant, types.CodeType) for one in _codes(constant)]
    return [code, *inner]


def _collect(code: types.CodeType, free: frozenset[str], reads: dict[tuple[bool, str, tuple[str, ...]], None]) -> bool:
    """Add the variables that a code object reads; return False if an instruction may read other variables."""
    instructions = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "EXTENDED_ARG", "NOP")]
    understood = set()  # names in instructions that are understood
    for index, instruction in enumerate(instructions):
        name = instruction.argval
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            closure = False
        elif instruction.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"):
            if name not in free:
                continue
            closure = True
        else:
            if instruction.opname == "IMPORT_NAME":
                level = instructions[index - 2].argval
                if level != 0 or not _is_lasting(name):
                    return False
            if instruction.opname in _NAMED:
                understood.add(name)
            continue
        understood.add(name)
        chain = []
        for after in instructions[index + 1 :]:
            if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                break
            chain.append(after.argval)
        reads[closure, name, tuple(chain)] = None
    return understood.issuperset(code.co_names)


_NAMED = frozenset(
    "LOAD_ATTR LOAD_METHOD LOAD_SUPER_ATTR STORE_ATTR DELETE_ATTR STORE_NAME STORE_GLOBAL DELETE_NAME DELETE_GLOBAL "
    "IMPORT_NAME IMPORT_FROM".split()
)
"""Instructions whose name is an attribute of an object on the stack, or that read no variable."""

_reads: dict[int, _Reads] = {}


def _reads_of(code: types.CodeType) -> tuple[tuple[bool, str, tuple[str, ...]], ...] | None:
    entry = _reads.get(id(code))
    if entry is None or entry.code is not code:
        if len(_reads) >= 4096:
            _reads.clear()
        entry = _reads[id(code)] = _Reads(code)  # keeps the code alive, so that no other code gets its id
    return entry.reads


_MISSING: Any = object()


def _function_key(function: types.FunctionType, seen: tuple[int, ...]) -> Any:
    code = function.__code__
    reads = _reads_of(code)
    defaults, keyword_defaults = function.__defaults__, function.__kwdefaults__
    if not reads and reads is not None and defaults is None and keyword_defaults is None:
        return code
    if reads is None:
        raise _UnknownError
    if id(function) in seen:
        return "again", seen.index(id(function))
    seen = (*seen, id(function))
    parts: list[Any] = [code]
    scope = function.__globals__
    for closure, name, chain in reads:
        if closure:
            try:
                value = function.__closure__[code.co_freevars.index(name)].cell_contents  # type: ignore[index]
            except ValueError:  # an empty cell
                value = _MISSING
        else:
            value = scope.get(name, _MISSING)
            if value is _MISSING:
                value = vars(builtins).get(name, _MISSING)
        parts.append(_read_key(value, chain, seen))
    if defaults is not None:
        parts.append(_value_key(defaults, seen))
    if keyword_defaults is not None:
        parts.append(_value_key(keyword_defaults, seen))
    return tuple(parts)


def _read_key(value: Any, chain: tuple[str, ...], seen: tuple[int, ...]) -> Any:
    """Return the key of a value, or of the attribute of a module to which the chain leads."""
    for name in chain:
        kind = type(value)
        if not isinstance(value, types.ModuleType):
            if kind is types.FunctionType and not _is_public(value):
                raise _UnknownError  # attributes of a function are not part of its key
            break
        if _is_lasting(value.__name__):
            return value
        contents = vars(value)
        if kind is not types.ModuleType or name not in contents:
            raise _UnknownError
        value = contents[name]
    return _value_key(value, seen)


def _value_key(value: Any, seen: tuple[int, ...]) -> Any:
    kind = type(value)
    if kind is int or kind is bool or kind is str or value is None or kind is bytes:
        return kind, value
    if kind is float or kind is complex:
        return kind, repr(value)  # 0.0 and -0.0 are equal, but differ
    if kind is types.FunctionType:
        return value if _is_public(value) else _function_key(value, seen)
    if kind is types.ModuleType:
        if _is_lasting(value.__name__):
            return value
        raise _UnknownError
    if kind is np.ufunc:
        return value
    if kind is Operator:
        if value._built_in:
            return value
        if value._segments is not None:
            return "segmented", _value_key(value._segments, seen)
        return (
            _value_key(value.combine, seen),
            _value_key(value._identity, seen),
            value.commutative,
            value.components,
        )
    if kind is tuple:
        return kind, *(_value_key(part, seen) for part in value)
    if kind is list or kind is dict:
        if len(value) > _MOST or id(value) in seen:
            raise _UnknownError
        seen = (*seen, id(value))
        items = value if kind is list else [part for item in value.items() for part in item]
        return kind, *(_value_key(part, seen) for part in items)
    if kind is np.ndarray:
        if value.size > _MOST or value.dtype.hasobject:
            raise _UnknownError
        return kind, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic) and kind.__module__ == "numpy" and not value.dtype.hasobject:
        return kind, value.dtype.str, value.tobytes()
    if isinstance(value, np.dtype):
        return np.dtype, value.str, value.name
    if kind is functools.partial:
        return kind, *(_value_key(part, seen) for part in (value.func, value.args, value.keywords))
    if kind is types.MethodType:
        return kind, _value_key(value.__func__, seen), _value_key(value.__self__, seen)
    if value is _MISSING or _is_public(value) or (kind.__module__, kind.__name__) == ("torch", "dtype"):
        return value
    if isinstance(value, type) and (_is_plain_named_tuple(value) or _is_plain_dataclass(value)):
        return value
    raise _UnknownError


def _is_public(value: Any) -> bool:
    """Return whether a lasting module has this function or class under its name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if module is None and isinstance(value, types.BuiltinFunctionType):
        module = getattr(value.__self__, "__module__", None)  # PyTorch's functions
    if not isinstance(module, str) or not isinstance(name, str) or id(value) in _READERS:
        return False
    if not _is_lasting(module) and (module, name) not in _LASTING_FUNCTIONS:
        return False
    home = sys.modules.get(module)
    return home is not None and getattr(home, name, None) is value


_NAMED_TUPLE = frozenset(
    "__slots__ _fields _field_defaults _make _replace _asdict __getnewargs__ __match_args__ __annotations__ "
    "__orig_bases__ __replace__ __static_attributes__ __firstlineno__ __annotate__ __annotate_func__ __module__ "
    "__annotations_cache__ __classdictcell__ __conditional_annotations__ __new__ __repr__ __doc__".split()
)


def _is_plain_named_tuple(kind: type) -> bool:
    """Return whether a class is a NamedTuple that defines nothing but its fields."""
    fields = getattr(kind, "_fields", None)
    return kind.__bases__ == (tuple,) and fields is not None and _NAMED_TUPLE.issuperset(set(vars(kind)) - set(fields))


_DATACLASS = frozenset(
    "__module__ __annotations__ __dict__ __weakref__ __doc__ __dataclass_params__ __dataclass_fields__ __init__ "
    "__repr__ __eq__ __hash__ __setattr__ __delattr__ __match_args__ __slots__ __getstate__ __setstate__ __replace__ "
    "__static_attributes__ __firstlineno__ __annotate__ __annotate_func__ __annotations_cache__".split()
)


def _is_plain_dataclass(kind: type) -> bool:
    """Return whether a class is a dataclass that defines nothing but its fields, with no defaults but numbers."""
    fields = vars(kind).get("__dataclass_fields__")
    if kind.__bases__ != (object,) or fields is None or not _DATACLASS.issuperset(set(vars(kind)) - set(fields)):
        return False
    made = [vars(kind).get(name) for name in ("__init__", "__eq__", "__hash__", "__setattr__")]
    defaults = [vars(kind).get(name) for name in fields]
    return all(one.__code__.co_filename == "<string>" for one in made if isinstance(one, types.FunctionType)) and all(
        one is None or isinstance(one, int | float | complex | str | types.MemberDescriptorType) for one in defaults
    )
