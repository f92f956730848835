"""Names of options in other libraries: the error of a call with such a name suggests the option here."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from typing import Any

_OTHER_NAMES = {
    "dim": "axis", "dims": "axis", "dimension": "axis", "axes": "axis", "keepdim": "keepdims", "keep_dims": "keepdims",
    "operator": "op", "operation": "op", "func": "op", "combine": "op", "reduce": "op", "reduction": "op",
    "init": "initial", "init_value": "initial", "total_repeat_length": "size", "sum_dtype": "dtype",
    "out_dtype": "dtype", "decreasing": "descending", "backend": "method", "engine": "method", "weight": "weights",
    "state": "zi", "trans": "transpose", "transposed": "transpose", "return_index": "return_indices",
    "indptr": "offsets", "boundaries": "offsets", "include_init": "include_initial",
    "reverse": "descending",
}  # fmt: skip
"""The options here by their names in other libraries."""

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
    "where": (None, "where of the array library puts what changes nothing in the place of other elements"),
}
"""Options without an equivalent here: the nearest option, if any, and a sentence."""


_WITH_OFFSETS = "reduce, map_reduce, scan, linear_recurrence, sort, argsort and sort_by_key take offsets"

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
        "cumulative_sum": "scan(x, 'add', offsets=offsets)",
        "cumulative_prod": "scan(x, 'multiply', offsets=offsets)",
        "cumulative_max": "scan(x, 'maximum', offsets=offsets)",
        "cumulative_min": "scan(x, 'minimum', offsets=offsets)",
        "cumulative_logsumexp": "scan(x, 'logaddexp', offsets=offsets)",
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
    if _OTHER_NAMES.get(word) in names:
        hint = f"it is called {_OTHER_NAMES[word]!r} here"
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
