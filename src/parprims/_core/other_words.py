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


def unknown_option(function: str, others: Mapping[str, Any]) -> TypeError:
    """Return the error of a public function for options that it does not have."""
    import difflib

    parameters = inspect.signature(getattr(sys.modules["parprims"], function)).parameters.values()
    names = [p.name for p in parameters if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]
    word = next(iter(others))
    instead, sentence = _INSTEAD.get(word, ("", ""))
    near = difflib.get_close_matches(word, names, 1)
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
