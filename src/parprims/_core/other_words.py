"""Words of other libraries: errors of calls with their options, or options by position, suggest the words here."""

from __future__ import annotations

import inspect
import numbers
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_OTHER_NAMES = {
    "dim": "axis", "dims": "axis", "dimension": "axis", "axes": "axis", "keepdim": "keepdims", "keep_dims": "keepdims",
    "operator": "op", "operation": "op", "func": "op", "combine": "op", "reduce": "op", "reduction": "op",
    "init": "initial", "init_value": "initial", "total_repeat_length": "size", "sum_dtype": "dtype",
    "out_dtype": "dtype", "decreasing": "descending", "backend": "method", "engine": "method", "weight": "weights",
    "state": "zi", "trans": "transpose", "transposed": "transpose", "return_index": "return_indices",
    "indptr": "offsets", "boundaries": "offsets", "include_init": "include_initial",
    "reverse": "descending", "mode": "interpolation side precision pivot", "length": "size", "nbins": "bins",
    "num_bins": "bins", "prepend": "include_initial",
}  # fmt: skip
"""The options here by their names in other libraries: the first that the function has."""

_OTHER_VALUES = {
    "min": "smallest", "minimum": "smallest", "lowest": "smallest", "max": "largest", "maximum": "largest",
    "l": "left", "r": "right", "low": "lower", "high": "higher highest", "mid": "midpoint", "tensorfloat32": "tf32",
    "full": "highest", "fp32": "float32", "f32": "float32", "true": "partial", "false": "none", "cuda": "kernel",
    "gpu": "kernel", "numba": "kernel", "numpy": "native", "torch": "native", "jax": "native", "cupy": "native",
    "library": "native",
}  # fmt: skip
"""The values of options here by their names in other libraries: the first that the option takes."""

_INSTEAD = {
    "largest": ("mode", "mode='largest' and mode='smallest' say which elements are wanted"),
    "ascending": ("descending", "descending=True stands for ascending=False"),
    "inclusive": ("exclusive", "exclusive=True stands for inclusive=False"),
    "right": ("side", "side='right' stands for right=True"),
    "kind": ("stable", "every sort is stable, and there is no other kind"),
    "out": (None, "inputs are never written, and results are new arrays"),
    "overwrite_ab": (None, "inputs are never written"),
    "overwrite_b": (None, "inputs are never written"),
    "check_finite": (None, "infinities and NaN are computed with"),
    "where": (None, "write x = where(mask, x, identity) before the call, with where of the array library"),
}
"""Options without an equivalent here: the nearest option, if any, and a sentence."""


_WITH_OFFSETS = (
    "reduce, map_reduce, scan, linear_recurrence, the cumulative functions, sort, argsort and sort_by_key take offsets"
)

_BY_OFFSETS = {
    name: f"for segments write {call}"
    for name, call in {
        "sum": "reduce(x, 'add', offsets=offsets)",
        "prod": "reduce(x, 'multiply', offsets=offsets)",
        "max": "reduce(x, 'maximum', offsets=offsets)",
        "min": "reduce(x, 'minimum', offsets=offsets)",
        "argmax": "reduce((x, positions), 'argmax', offsets=offsets)",
        "argmin": "reduce((x, positions), 'argmin', offsets=offsets)",
        "vecdot": "map_reduce(lambda a, b: a * b, x1, x2, offsets=offsets)",
        "top_k": "sort(x, offsets=offsets), and select",
    }.items()
}
"""The calls that compute segments, for functions without offsets."""

_FUNCTIONS = {
    "cumsum": "cumulative_sum", "cumprod": "cumulative_prod", "cummax": "cumulative_max", "cummin": "cumulative_min",
    "logcumsumexp": "cumulative_logsumexp", "associative_scan": "scan", "segment_sum": "segment_reduce",
    "segment_max": "segment_reduce", "topk": "top_k", "dot": "vecdot", "inner": "vecdot", "percentile": "quantile",
    "compress": "select", "masked_select": "select", "bucketize": "searchsorted", "digitize": "searchsorted",
    "bincount": "histogram", "einsum": "matmul", "mm": "matmul", "amax": "max", "amin": "min", "accumulate": "scan",
}  # fmt: skip
"""The functions here by their names in other libraries."""


def unknown_function(name: str) -> AttributeError:
    """Return the error of the package for a name that it does not have."""
    hint = f": the function is called {_FUNCTIONS[name]} here" if name in _FUNCTIONS else ""
    return AttributeError(f"module 'parprims' has no attribute {name!r}{hint}")


def nearest_value(value: Any, choices: Sequence[str]) -> str | None:
    """Return the value of an option that is likely meant, by its spelling or another library's word, or None."""
    import difflib

    word = str(value).lower() if isinstance(value, str | bool) else ""
    known = [one for one in (word, *_OTHER_VALUES.get(word, "").split()) if one in choices]
    return next(iter(known or difflib.get_close_matches(word, choices, 1)), None)


def by_position(function: str, more: Sequence[Any]) -> TypeError:
    """Return the error of a public function for options by position: it shows how to write them with their names."""
    parameters = [*inspect.signature(getattr(sys.modules["parprims"], function)).parameters.values()]
    options = {p.name: str(p.annotation) for p in parameters if p.kind is p.KEYWORD_ONLY}
    most = len(parameters) - len(options)
    meant: dict[str, Any] = {}
    for value in more:
        fitting = [one for one in options if one not in meant and _takes(one, options[one], value)]
        meant.update(dict.fromkeys(fitting[:1], value))
    hint = f"write {', '.join(f'{name}={_written(name, value)}' for name, value in meant.items())}"
    if len(meant) < len(more):
        hint = f"options are given by their names, {', '.join(options)}"
    arguments = f"{most} argument{'s' if most > 1 else ''}"
    return TypeError(f"{function} takes {arguments} by position, got {most + len(more)}: {hint}")


def _takes(name: str, annotation: str, value: Any) -> bool:
    """Return whether an option is for values of the type of this one."""
    if value is None or (annotation == "Any" and name not in ("dtype", "axis_name")):
        return True
    if name == "dtype":
        return isinstance(value, type) or type(value).__name__.endswith(("dtype", "DType")) or _is_dtype_name(value)
    if isinstance(value, bool):
        return annotation == "bool"
    if isinstance(value, numbers.Integral | tuple | list):
        return annotation.startswith(("int", "tuple", "float"))
    if isinstance(value, str):
        return annotation.startswith("str") and not (name == "method" and _is_dtype_name(value))
    if isinstance(value, numbers.Real):
        return annotation.startswith("float")
    return annotation.startswith("Array") and hasattr(value, "shape")


def _is_dtype_name(value: Any) -> bool:
    kind = value.rstrip("0123456789") if isinstance(value, str) else None
    return kind in ("bool", "int", "uint", "float", "bfloat", "complex")


def _written(name: str, value: Any) -> str:
    """Return a value as in a call; a long one, such as an array, by the name of its option."""
    text = value.__name__ if isinstance(value, type) else repr(value)
    return text if len(text) <= 20 and text.isprintable() else name


def unknown_option(function: str, others: Mapping[str, Any]) -> TypeError:
    """Return the error of a public function for options that it does not have."""
    import difflib

    parameters = inspect.signature(getattr(sys.modules["parprims"], function)).parameters.values()
    names = [p.name for p in parameters if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]
    word = next(iter(others))
    instead, sentence = _INSTEAD.get(word, ("", ""))
    near = difflib.get_close_matches(word, names, 1)
    if word == "offsets":
        instead, sentence = None, _BY_OFFSETS.get(function, _WITH_OFFSETS)
    called = [one for one in _OTHER_NAMES.get(word, "").split() if one in names]
    if called:
        hint = f"it is called {called[0]!r} here"
    elif instead is None or instead in names:
        hint = sentence
    elif near:
        hint = f"did you mean {near[0]!r}?"
    else:
        hint = f"its options are {', '.join(names)}"
    return TypeError(f"{function} has no option {word!r}: {hint}")


def show_own_options(public: Iterable[Any]) -> None:
    """Give public functions a signature without ``**others``, which they accept only for better errors."""
    for function in public:
        if inspect.isfunction(function):
            signature = inspect.signature(function)
            parameters = [p for p in signature.parameters.values() if p.annotation != "Never"]
            function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
