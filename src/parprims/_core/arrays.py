"""Facts about arrays of every library, and the checks of every public function: namespace, axis, dtype.

Nearly every module asks for several of these facts, so one file holds them, and a module imports them in one line.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat
import numpy as np

from parprims._core.jax_arrays import explicit_sharding, is_jax_literal, is_sharded, is_traced, quiet_jax, unsplit
from parprims._core.other_words import nearest_value

Array = Any
"""An array of any library that conforms to the array API standard."""

Namespace = Any
"""The module (or object) that holds a library's array functions, usually called xp."""

SIXTEEN_BIT_FLOATS = ("float16", "bfloat16")


def namespace(**arrays: Array) -> Namespace:
    """Return the array namespace that the named arrays share.

    Raises TypeError, naming the argument, if an argument is no array, comes from another library or has properties that
    results would lose (masks, units), and ValueError if an array is on another device.
    """
    return _shared(arrays, sharded=False)


def admit(arrays: dict[str, Array], *, moved: bool = False, sharded: bool = False) -> tuple[Namespace, list[Array]]:
    """Return the array namespace that the named arrays share, and the arrays in the form that every method takes.

    Raises as `namespace`, and TypeError for dtypes that are neither numbers nor bool. NumPy arrays become plain arrays
    of native byte order, NumPy scalars become 0-d arrays. ``moved`` says that elements of all arrays but the first are
    only moved; NumPy's may then have any dtype. ``sharded`` admits JAX arrays that are spread over several devices.
    """
    xp = _shared(arrays, sharded=sharded)
    admitted: list[Array] = []
    for name, array in arrays.items():
        dtype = array.dtype
        if not is_number(dtype) and not (moved and admitted and _can_move(array)):
            raise TypeError(f"{name} must have a dtype of numbers or bool, got {dtype_name(dtype)}")
        if is_jax_literal(type(array)):
            array = xp.asarray(array)
        elif isinstance(array, (np.ndarray, np.generic)):
            if type(array) is not np.ndarray:
                array = np.asarray(array)
            if not dtype.isnative:
                array = array.astype(dtype.newbyteorder("="))
        elif array_api_compat.is_jax_array(array) and not is_sharded(array):
            array = unsplit(array)
        admitted.append(array)
    return xp, admitted


def _can_move(x: Array) -> bool:
    """Return whether elements that are not numbers can be moved: all except JAX's random keys."""
    return not array_api_compat.is_jax_array(x) or not dtype_name(x.dtype).startswith("key<")


def _shared(arrays: dict[str, Array], *, sharded: bool) -> Namespace:
    shared: Namespace = None
    first = ""
    for name, array in arrays.items():
        xp, flaw = _known.get(type(array)) or _know(name, array)
        if shared is None:
            if array_api_compat.is_array_api_strict_namespace(xp) and _version(xp) < "2023.12":
                raise TypeError(
                    f"{name} is an array of {library_title(xp)} at version {_version(xp)} of the array API standard: "
                    "version 2023.12 or later is needed"
                )
            shared, first = xp, name
        elif xp is not shared:
            raise TypeError(
                f"{name} is an array of {library_title(xp)}, but {first} is one of {library_title(shared)}: "
                "all arrays must come from one library"
            )
        if flaw is not None:
            reason = flaw(array)
            if reason is not None and not (sharded and flaw is _jax_flaw):
                raise (ValueError if flaw is _jax_flaw else TypeError)(f"{name} {reason}")
        if name != first and not isinstance(array, np.ndarray):
            _check_same_device(first, arrays[first], name, array)
    return shared


_known: dict[type, tuple[Namespace, Callable[[Array], str | None] | None]] = {}
"""The namespace of each array type, and a function that returns the flaw of an array or None, if the type has flaws."""


def _know(name: str, array: Array) -> tuple[Namespace, Callable[[Array], str | None] | None]:
    """Return the entry of `_known` for a new array type; raise TypeError, naming the argument, if it has none."""
    kind = type(array)
    home = kind.__module__.partition(".")[0]
    if home == "dask":  # before dask is imported
        raise TypeError(
            f"{name} is a dask array, and this call has no driver for chunks: call compute() or map_blocks()"
        )
    if home == "sparse":
        raise TypeError(f"{name} must be a dense array, got {kind.__name__}: call todense()")
    if is_jax_literal(kind):
        import jax

        return jax.numpy, None
    try:
        xp = array_api_compat.array_namespace(array)
    except TypeError:
        hint = ": numbers become one by asarray, and an element of several arrays is a tuple" if kind is list else ""
        if name.startswith(("arrays[", "values[")):
            hint = ": options are given by their names, as in axis=0"
        raise TypeError(f"{name} must be an array, got {kind.__name__}{hint}") from None
    flaw = None
    if isinstance(array, np.ndarray):
        if kind is not np.ndarray and kind is not np.memmap:
            own = "its mask would be lost" if isinstance(array, np.ma.MaskedArray) else "convert it by numpy.asarray"
            raise TypeError(f"{name} must be a plain array, got {kind.__name__}: {own}")
    elif array_api_compat.is_torch_namespace(xp):
        if not _is_plain_tensor(kind):
            raise TypeError(f"{name} must be a plain tensor, got {kind.__name__}")
        flaw = _torch_flaw
    elif array_api_compat.is_jax_namespace(xp):
        flaw = _jax_flaw
    _known[kind] = xp, flaw
    return xp, flaw


def _is_plain_tensor(kind: type) -> bool:
    """Return whether tensors of the type are plain, or substitutes that PyTorch makes for them, as in torch.compile."""
    import torch

    return kind in (torch.Tensor, torch.nn.Parameter) or kind.__module__.startswith(
        ("torch._subclasses.", "torch._functorch.", "torch.fx.")
    )


def _torch_flaw(x: Array) -> str | None:
    if x.is_nested:
        return "must be a plain tensor, got a nested one"
    layout = str(x.layout)
    return None if layout == "torch.strided" else f"must be a dense tensor, got layout {layout}: call to_dense()"


def _jax_flaw(x: Array) -> str | None:
    if not is_sharded(x):
        return None
    if is_traced(x):
        over, gather = f"explicit axes of a mesh, {explicit_sharding(x).spec}", "jax.sharding.reshard"
    else:
        over, gather = f"{len(x.devices())} devices", "jax.device_put"
    return (
        f"is sharded over {over}, and this call has no driver for sharded arrays: gather it by {gather}, or call "
        "inside jax.shard_map"
    )


@functools.cache
def library(xp: Namespace) -> str:
    """Return the library of a namespace: numpy, cupy, torch, jax, or other."""
    for name in ("numpy", "cupy", "torch", "jax"):
        if getattr(array_api_compat, f"is_{name}_namespace")(xp):
            return name
    return "other"


NAMES = {"numpy": "NumPy", "cupy": "CuPy", "torch": "PyTorch", "jax": "JAX", "array_api_strict": "array-api-strict"}
"""The names of libraries in messages, by the name that `library` returns or by the name of the namespace."""


def library_title(xp: Namespace) -> str:
    """Return the name of a library in messages: NumPy, PyTorch, JAX."""
    name = library(xp)
    if name == "other":
        name = str(xp.__name__).removeprefix("array_api_compat.")
    return NAMES.get(name, name)


def is_jax(xp: Namespace) -> bool:
    """Return whether arrays of this namespace are JAX's."""
    return library(xp) == "jax"


def mode(xp: Namespace) -> bool:
    """Return the setting of the library that decides its dtypes: for JAX, whether 64-bit dtypes are enabled."""
    if not is_jax(xp):
        return False
    import jax

    wide: bool = jax.config.jax_enable_x64
    return wide


def _check_same_device(first: str, array: Array, name: str, other_array: Array) -> None:
    if is_traced(array) or is_traced(other_array):
        return
    if array_api_compat.is_jax_array(array) and hasattr(array, "devices") and hasattr(other_array, "devices"):
        here, there = array.devices(), other_array.devices()  # each array may be split, or have copies
        if here == there:
            return
        here, there = (", ".join(sorted(map(str, devices))) for devices in (here, there))
    else:
        here, there = array_api_compat.device(array), array_api_compat.device(other_array)
        if here == there:
            return
    raise ValueError(f"{name} is on device {there}, but {first} is on {here}: all arrays must be on one device")


def device(x: Array) -> Any:
    """Return the device of an array; None for a traced JAX array: the program decides.

    For an array with copies on several devices, return a sharding that gives other arrays such copies too.
    """
    if isinstance(x, np.ndarray) or is_tensor(x):
        return x.device
    if not array_api_compat.is_jax_array(x):
        return array_api_compat.device(x)
    if is_traced(x):
        return None
    devices = x.devices()
    if len(devices) == 1:
        return next(iter(devices))
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(x.sharding.mesh, PartitionSpec()) if isinstance(x.sharding, NamedSharding) else x.sharding


_tensors: tuple[type, ...] = ()
"""PyTorch's tensor type, once an object that may be a tensor has been seen."""


def is_tensor(x: Any) -> bool:
    """Return whether x is a PyTorch tensor; torch.compile can read this function (see `settings.compiling`)."""
    global _tensors
    if not hasattr(x, "requires_grad"):
        return False
    if not _tensors:
        try:
            import torch
        except ImportError:  # an object of another library has the attribute too
            return False
        _tensors = (torch.Tensor,)
    return isinstance(x, _tensors)


def namespace_of(x: Array) -> Namespace:
    """Return the namespace of an array; torch.compile can read this function."""
    if is_tensor(x):
        from array_api_compat import torch

        return torch
    return array_api_compat.array_namespace(x)


def namespace_named(name: str, x: Array) -> Namespace:
    """Return the namespace of an argument before `admit`; raise TypeError, naming it, if it is no array."""
    try:
        return namespace_of(x)
    except TypeError:
        return namespace(**{name: x})


def spread(xp: Namespace, flags: Array, x: Array) -> Array:
    """Return flags with axes of length 1 appended, so that they have as many axes as x."""
    return flags if flags.ndim == x.ndim else xp.reshape(flags, (*flags.shape, *(1,) * (x.ndim - flags.ndim)))


def normalize_axis(axis: Any, ndim: int, name: str = "axis") -> int:
    """Return the axis counted from the front; raise IndexError if it is out of range, TypeError if it is no integer."""
    try:
        index = operator.index(axis) if type(axis) is not bool and not getattr(axis, "ndim", 0) else None
    except TypeError:
        index = None
    if index is None:
        raise TypeError(f"{name} must be an integer, got {repr_short(axis)}")
    if not -ndim <= index < ndim:
        raise IndexError(f"{name} {index} is out of range for an array of {ndim} dimensions")
    return index % ndim


def shared_axis(axis: Any, shapes: Sequence[tuple[int, ...]], names: Sequence[str], name: str = "x") -> int:
    """Return an axis of arrays of several shapes, counted from the front; their lengths along it must be equal.

    Raises an error that names the array if it does not have the axis, or has another length. ``name`` is the argument.
    """
    ranks = [len(shape) for shape in shapes]
    least, most = ranks.index(min(ranks)), ranks.index(max(ranks))
    if axis is None or (least != most and normalize_axis(axis, ranks[most]) != axis):
        if least == most:
            shown = " and ".join(sorted({str(tuple(shape)) for shape in shapes}))
            raise ValueError(
                f"{name} must be arrays of equal shape, or of equal length along a given axis, got {shown}"
            )
        raise ValueError(
            f"{name} must be arrays of equal shape, or axis must count from the front: {names[least]} has "
            f"{ranks[least]} dimensions, {names[most]} has {ranks[most]}, and axis is {axis}"
        )
    place = normalize_axis(axis, ranks[least], name=f"axis of {names[least]}:")
    for other, shape in zip(names, shapes, strict=True):
        if shape[place] != shapes[0][place]:
            raise ValueError(
                f"{name} must be arrays of equal shape, or of equal length along axis {place}: {names[0]} has shape "
                f"{tuple(shapes[0])}, {other} has {tuple(shape)}"
            )
    return place


def normalize_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes meant by None (all), an integer or a tuple of integers, in ascending order."""
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, (list, set, range)):
        raise TypeError(f"axis must be an integer, a tuple of integers or None, got {repr_short(axis)}")
    if not isinstance(axis, tuple):
        return (normalize_axis(axis, ndim),)
    axes = tuple(normalize_axis(one, ndim) for one in axis)
    if len(set(axes)) != len(axes):
        raise ValueError(f"axis {axis} names an axis twice")
    return tuple(sorted(axes))


_ANNOUNCING = ("array_api_compat.numpy", "array_api_strict")


def quiet(xp: Namespace) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which NumPy does not warn of infinities and NaN. They are ordinary results here.

    It also switches off JAX's strict modes: rank promotion, transfer guard, debug_nans and debug_infs.
    """
    name = getattr(xp, "__name__", "")
    if name == "jax.numpy":
        return quiet_jax()
    return np.errstate(all="ignore") if name in _ANNOUNCING else contextlib.nullcontext()


def raise_if_nan(primitive: str, xp: Namespace, result: Any) -> Any:
    """Return the result; raise FloatingPointError if it holds a value that jax_debug_nans or jax_debug_infs forbids.

    JAX itself checks only programs that it compiles after the setting has changed.
    """
    if getattr(xp, "__name__", "") == "jax.numpy":
        import jax

        config = jax.config
        looks = [look for look, on in ((np.isnan, config.jax_debug_nans), (np.isinf, config.jax_debug_infs)) if on]
        for x in (result if isinstance(result, tuple) else (result,)) if looks else ():
            if not is_traced(x) and dtype_kind(x.dtype) in ("float", "complex"):
                values = jax.device_get(x)
                for look in looks:
                    if look(values).any():
                        raise FloatingPointError(f"invalid value ({look.__name__[2:]}) encountered in {primitive}")
    return result


def repr_short(value: Any) -> str:
    """Return the text of a wrong value for an error: its repr if that is short, else the name of its type."""
    try:
        text = repr(value)
    except Exception:  # a repr that fails
        text = ""
    return text if 0 < len(text) <= 60 and "\n" not in text else type(value).__name__


def check_flag(name: str, value: Any) -> bool:
    """Return a flag as a bool; raise TypeError, naming the argument, for anything but a bool of Python or NumPy."""
    if value is True or value is False:
        return bool(value)
    if isinstance(value, np.bool_):
        return bool(value)
    raise TypeError(f"{name} must be True or False, got {repr_short(value)}{STATIC if is_traced(value) else ''}")


STATIC = ": name it in static_argnums or static_argnames of jax.jit"
"""The remedy, in messages, for an option that is traced in a JAX program."""


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return a choice; raise ValueError, naming the argument and the nearest choice, for any other value."""
    if isinstance(value, str) and value in choices:
        return value
    near = nearest_value(value, choices)
    hint = f": did you mean {near!r}?" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(choices)}, got {repr_short(value)}{hint}")


DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128",
)  # fmt: skip
LONG_DOUBLES = tuple(np.dtype(one).name for one in (np.longdouble, np.clongdouble))


def is_number(dtype: Any) -> bool:
    """Return whether a dtype is a dtype of the standard, bfloat16 or a long double of NumPy."""
    library: Any = type(dtype)
    return _is_number(library, dtype)


@functools.cache
def _is_number(_type: Any, dtype: Any) -> bool:
    name = dtype_name(dtype)
    return (name in DTYPES or name in LONG_DOUBLES) and getattr(dtype, "fields", None) is None


@functools.cache
def _name_and_kind(_type: Any, dtype: Any) -> tuple[str, str]:
    # The type leads the cache's key, because dtypes of two libraries may share a hash and object to comparison.
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]
    kind = "float" if name == "bfloat16" else name.rstrip("0123456789")
    return name, kind if kind in ("bool", "int", "uint", "float", "complex") else "other"


def dtype_name(dtype: Any) -> str:
    """Return the standard's name of a dtype of any library, such as "float32"."""
    library: Any = type(dtype)
    return _name_and_kind(library, dtype)[0]


def dtype_kind(dtype: Any) -> str:
    """Return "bool", "int", "uint", "float", "complex" or, for anything else, "other"."""
    library: Any = type(dtype)
    return _name_and_kind(library, dtype)[1]


def dtype_bits(dtype: Any) -> int:
    """Return the width of a numeric dtype in bits; 8 for bool."""
    digits = dtype_name(dtype).lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits) if digits else 8


def check_kind(name: str, x: Array, kinds: Sequence[str]) -> None:
    """Raise TypeError, naming the argument, unless x has a dtype of one of the kinds."""
    if dtype_kind(x.dtype) not in kinds:
        if kinds == ("bool",):
            raise TypeError(f"{name} must have dtype bool, got {dtype_name(x.dtype)}: write {name} != 0")
        raise TypeError(f"{name} must have {one_of_kinds(kinds)}, got {dtype_name(x.dtype)}")


def one_of_kinds(kinds: Sequence[str]) -> str:
    """Return the words of an error for a dtype of one of the kinds, such as "an integer or floating dtype"."""
    words = ("floating" if kind == "float" else kind.replace("int", "integer") for kind in kinds if kind != "uint")
    *first, last = words
    text = f"{', '.join(first)} or {last}" if first else last
    return f"{'an' if text.startswith('i') else 'a'} {text} dtype"


def compute_dtype(xp: Namespace, dtype: Any) -> Any:
    """Return the dtype for sums and products of this dtype: float32 for 16-bit floats, else the dtype itself."""
    return xp.float32 if dtype_name(dtype) in SIXTEEN_BIT_FLOATS else dtype


def cast(xp: Namespace, x: Array, dtype: Any) -> Array:
    """Return x in a dtype; x itself if it has that dtype."""
    return x if x.dtype == dtype else xp.astype(x, dtype)


def ring_dtype(xp: Namespace, dtype: Any) -> Any:
    """Return the dtype for sums and products if the result keeps this dtype and integers wrap around.

    As `compute_dtype`, but int64 for unsigned integers that a library cannot add (PyTorch); the low bits are equal.
    """
    if dtype_kind(dtype) == "uint" and dtype_bits(dtype) > 8 and array_api_compat.is_torch_namespace(xp):
        return xp.int64
    return compute_dtype(xp, dtype)


def lacks_arithmetic(xp: Namespace, dtypes: Sequence[Any]) -> str | None:
    """Return a refusal if the library has no arithmetic in a dtype (wide unsigned integers on PyTorch), or None."""
    if array_api_compat.is_torch_namespace(xp):
        for dtype in dtypes:
            if dtype_kind(dtype) == "uint" and dtype_bits(dtype) > 8:
                return f"PyTorch has no arithmetic on {dtype_name(dtype)}: cast to a signed integer"
    return None


def selected(xp: Namespace, mask: Array, x: Array, y: Array) -> Array:
    """Return x where the mask is True, else y, of the same dtype: PyTorch selects no wide unsigned integers on GPUs."""
    if lacks_arithmetic(xp, [x.dtype]) is None:
        return xp.where(mask, x, y)
    return xp.astype(xp.where(mask, xp.astype(x, xp.int64), xp.astype(y, xp.int64)), x.dtype)


def as_result(x: Array) -> Array:
    """Return a result as an array: NumPy turns 0-d results into scalars."""
    return np.asarray(x) if isinstance(x, np.generic) else x


def lacks_products(xp: Namespace, x: Array, dtype: Any) -> bool:
    """Return whether the library lacks vector products of the dtype on the device of x: integers on GPUs in PyTorch."""
    return array_api_compat.is_torch_namespace(xp) and x.is_cuda and dtype_kind(dtype) in ("int", "uint")


def sum_dtype(xp: Namespace, dtype: Any) -> Any:
    """Return the dtype of a sum by the standard: integers narrower than the default widen to it.

    bool counts as an integer. Unsigned integers stay unsigned, even if a library cannot add them (see `ring_dtype`).
    Other dtypes stay unchanged.
    """
    kind = dtype_kind(dtype)
    if kind not in ("bool", "int", "uint"):
        return dtype
    default = xp.__array_namespace_info__().default_dtypes()["integral"]
    if kind == "bool":
        return default
    if dtype_bits(dtype) >= dtype_bits(default):
        return dtype
    return getattr(xp, f"uint{dtype_bits(default)}") if kind == "uint" else default


def move_axis(xp: Namespace, x: Array, source: int, destination: int) -> Array:
    """Return x with one axis moved, as moveaxis, by an operation for which torch.func.vmap has a rule."""
    if source % x.ndim == destination % x.ndim:
        return x
    order = list(range(x.ndim))
    axis = order.pop(source)
    order.insert(destination % x.ndim, axis)
    return xp.permute_dims(x, tuple(order))


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the broadcast shape; raise ValueError if there is none. Lengths may be symbols of torch.compile."""
    result: list[int] = []
    for shape in shapes:
        result[:0] = [1] * (len(shape) - len(result))
        for at, length in enumerate(shape, len(result) - len(shape)):
            if result[at] == 1:
                result[at] = length
            elif length not in (1, result[at]):
                raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
    return tuple(result)


def filled(xp: Namespace, value: Any, like: Array, axis: int) -> Array:
    """Return an array of one value, like another array except for length 1 along the axis."""
    return xp.full((*like.shape[:axis], 1, *like.shape[axis + 1 :]), value, dtype=like.dtype, device=device(like))


def along(axis: int, *bounds: int | None) -> tuple[Any, ...]:
    """Return the index that applies slice(*bounds) to one axis, counted from the front, and takes all other axes."""
    return (slice(None),) * axis + (slice(*bounds), ...)


def offers(xp: Namespace, function: str) -> bool:
    """Return whether the library has a function that early versions of the standard lack."""
    if array_api_compat.is_array_api_strict_namespace(xp):
        return _version(xp) >= _SINCE[function]
    return hasattr(xp, function)


_SINCE = {"cumulative_sum": "2023.12", "cumulative_prod": "2024.12", "take_along_axis": "2024.12"}


def _version(xp: Namespace) -> str:
    """Return the version of the standard to which array-api-strict is set."""
    version: str = xp.get_array_api_strict_flags()["api_version"]
    return version
