"""The type stub of the public functions: ``python -m tests.checks.stub`` writes it from their signatures.

Names, parameters and defaults are those of the functions. The types of parameters are their annotations, in the words
of checkers; those that annotations do not tell, such as the names that an option may have, are here, and so are results
that depend on the library or on an option.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import parprims
from parprims._dispatch.dispatch import primitives
from parprims._dispatch.primitive import declared
from parprims._operators.operator import BUILT_IN
from parprims._primitives.matmul.call import PRECISIONS
from parprims._primitives.matmul.tiles import KERNELS
from parprims._primitives.order_statistics.call import INTERPOLATIONS
from parprims._primitives.tridiagonal.call import PIVOTS

STUB = Path(parprims.__file__).with_suffix(".pyi")
WIDTH = 120

HEAD = '''"""The types of the public functions.

An array that goes in comes out as one of the same type. What has integers or bools as results says so of NumPy's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

{imports}

__version__: str
CANONICAL_BLOCK: int
__all__ = [
{names}
]

class _SupportsArray(Protocol):
    @property
    def dtype(self) -> Any: ...
    @property
    def ndim(self) -> int: ...
    @property
    def shape(self) -> Any: ...

_A = TypeVar("_A", bound=_SupportsArray)
_B = TypeVar("_B", bound=_SupportsArray)
_C = TypeVar("_C", bound=_SupportsArray)
_N = TypeVar("_N", bound=np.generic)
# An array, or those of components in a tuple, a named tuple or a dictionary, as which results come too.
_Elements = TypeVar("_Elements", bound=_SupportsArray | tuple[Any, ...] | Mapping[str, Any])

_Method: TypeAlias = {method}
_OperatorName: TypeAlias = Literal[
{operators}
]
_Operator: TypeAlias = _OperatorName | Operator | Callable[[Any, Any], Any]
_Axes: TypeAlias = int | tuple[int, ...] | None
_Places: TypeAlias = int | Sequence[int] | NDArray[Any]

'''


def literal(*names: str) -> str:
    """Return the type of these texts."""
    return f"Literal[{', '.join(map(quoted, names))}]"


def quoted(name: str) -> str:
    """Return a text in the quotes of the project."""
    return f'"{name}"'


ANNOTATIONS = {
    "Array": "_A",
    "Array | complex": "_A | complex",
    "Array | tuple[Array, ...]": "_Elements",
    "int | tuple[int, ...] | None": "_Axes",
}
"""Annotations of parameters in the words of the stub; all others stay as they are."""

COEFFICIENT = "_A | complex"
ANY_ELEMENTS = "_SupportsArray | tuple[Any, ...] | Mapping[str, Any]"
PARAMETERS = {
    "method": "_Method",
    "op": "_Operator",
    "add": "_Operator",
    "multiply": "_Operator",
    "offsets": "_A | Sequence[int] | None",
    "segment_ids": "Any",
    "kth": "_Places",
    "mask": "_SupportsArray",
    "values": "_SupportsArray",
    "arrays": ANY_ELEMENTS,
    "weights": "_SupportsArray | None",
    "sorter": "_SupportsArray | None",
    "bins": "int | Sequence[float] | _SupportsArray",
    "range": "Sequence[float] | NDArray[Any] | None",
    "q": "float | Sequence[float] | NDArray[Any]",
    "tile": "int | Sequence[int] | NDArray[Any] | None",
    "l_and_u": "Sequence[int] | NDArray[Any]",
    "fn": "Callable[..., Any]",
    "ids": "Any",
    "interpolation": literal(*INTERPOLATIONS),
    "mode": literal("largest", "smallest"),
    "side": literal("left", "right"),
    "pivot": literal(*PIVOTS),
    "precision": literal(*PRECISIONS),
    "kernel": f"{literal(*KERNELS)} | None",
}
"""The types that annotations do not tell, by the names of the parameters."""

OWN_PARAMETERS = {
    "linear_recurrence": {"a": COEFFICIENT, "b": COEFFICIENT},
    "merge_by_key": {"values1": "_B", "values2": "_B"},
    "searchsorted": {"x2": "_A | float"},
}
"""The same where a name means something else in a function."""

Form = tuple[dict[str, str], str]
"""The types that differ in one form of an overloaded function, and its result."""

NUMPY, BOOLS, INTEGERS = "NDArray[Any]", "NDArray[np.bool]", "NDArray[np.int64]"
OF_KIND = "NDArray[_N]"
TRUE, FALSE = "Literal[True]", "Literal[False]"


def several(*types: str) -> str:
    """Return the type of a tuple."""
    return f"tuple[{', '.join(types)}]"


def of_numpy(*types: str, x: str = NUMPY) -> list[Form]:
    """Return the forms of a function whose results have other dtypes than x on NumPy: NumPy's, and all others."""
    pair = types[0] if len(types) == 1 else several(*types)
    return [({"x": x}, pair), ({}, "_A" if len(types) == 1 else several(*["_A"] * len(types)))]


def _extrema_so_far() -> list[Form]:
    plain: Form = ({"return_indices": FALSE}, "_A")
    return [plain, *[({**types, "return_indices": TRUE}, result) for types, result in of_numpy(NUMPY, INTEGERS)]]


def _solutions() -> list[Form]:
    forms: list[Form] = []
    for residual, status in ((FALSE, FALSE), (TRUE, FALSE), (FALSE, TRUE), (TRUE, TRUE)):
        ways = {"return_residual": residual, "return_status": status}
        count = 1 + (residual == TRUE) + (status == TRUE)
        if status == TRUE:
            system = dict.fromkeys(("lower", "diag", "upper"), "NDArray[Any] | complex")
            result = several(*[OF_KIND] * (count - 1), "NDArray[np.int32]")
            forms.append(({**system, "rhs": OF_KIND, **ways}, result))
        forms.append((ways, several(*["_A"] * count) if count > 1 else "_A"))
    return forms


FORMS: dict[str, list[Form]] = {
    **dict.fromkeys(("all", "any"), of_numpy(BOOLS)),
    **dict.fromkeys(("argmax", "argmin", "argpartition", "argsort"), of_numpy(INTEGERS)),
    **dict.fromkeys(("cumulative_max", "cumulative_min"), _extrema_so_far()),
    **dict.fromkeys(("partition_by", "select", "top_k"), of_numpy(OF_KIND, INTEGERS, x=OF_KIND)),
    **dict.fromkeys(("run_lengths", "unique"), of_numpy(OF_KIND, INTEGERS, INTEGERS, x=OF_KIND)),
    **{name: [({"zi": "None"}, "_A"), ({"zi": "_A"}, several("_A", "_A"))] for name in ("lfilter", "sosfilt")},
    **{name: [({}, "_Elements")] for name in ("reduce", "segment_reduce")},
    "histogram": [
        ({"x": NUMPY, "weights": "None", "density": FALSE}, several(INTEGERS, NUMPY)),
        *of_numpy(NUMPY, NUMPY),
    ],
    **{
        name: [({"return_last": FALSE}, one), ({"return_last": TRUE}, several(one, one))]
        for name, one in (("scan", "_Elements"), ("linear_recurrence", "_A"))
    },
    "searchsorted": [({"x1": NUMPY, "x2": f"{NUMPY} | float"}, INTEGERS), ({}, "_A")],
    "solve_tridiagonal": _solutions(),
    "sort_by_key": [
        ({"values": ""}, "tuple[_A]"),
        ({"values": "_B"}, several("_A", "_B")),
        ({"values": "_B, _C"}, several("_A", "_B", "_C")),
        ({}, "tuple[Any, ...]"),
    ],
}
"""The forms of functions whose result is not an array like the first, or arrays like it."""


def imported() -> Iterator[str]:
    """Yield the lines that import what has its own types."""
    for node in ast.parse(Path(parprims.__file__).read_text()).body:
        if isinstance(node, ast.ImportFrom):
            for one in node.names:
                if one.name in parprims.__all__ and one.name not in primitives:
                    yield f"from {node.module} import {one.name} as {one.name}"


def parameters(name: str, changed: Mapping[str, str]) -> Iterator[str]:
    """Yield the parameters of a function in one form, with the marks between them."""
    found = [one for one in inspect.signature(primitives[name]).parameters.values() if one.kind is not one.VAR_KEYWORD]
    own = {**PARAMETERS, **OWN_PARAMETERS.get(name, {}), **changed}
    before: Any = None
    for one in found:
        if before is one.POSITIONAL_ONLY and one.kind is not before:
            if one.kind is one.VAR_POSITIONAL and one.name in changed:  # so many further arrays
                entries = filter(None, changed[one.name].split(", "))
                yield from (f"value{at}: {kind}" for at, kind in enumerate(entries))
            yield "/"
        annotation = str(one.annotation)
        kind = own.get(one.name) or ANNOTATIONS.get(annotation, annotation)
        if one.kind is one.VAR_POSITIONAL:
            yield "*" if one.name in changed else f"*{one.name}: {kind}"
        else:
            if one.kind is one.KEYWORD_ONLY and before not in (one.kind, one.VAR_POSITIONAL):
                yield "*"
            given = one.default is not one.empty and kind != TRUE and not (one.default is None and kind == "_A")
            default = quoted(one.default) if isinstance(one.default, str) else repr(one.default)
            yield f"{one.name}: {kind} = {default}" if given else f"{one.name}: {kind}"
        before = one.kind


def result(name: str) -> str:
    """Return the result of a function of one form."""
    annotation = str(inspect.signature(primitives[name]).return_annotation)
    return annotation.replace("Array", "_A")


def function(name: str) -> Iterator[str]:
    """Yield the lines of a function, as ruff formats them."""
    forms = FORMS.get(name) or [({}, result(name))]
    for changed, returned in forms:
        if len(forms) > 1:
            yield "@overload"
        parts, behind = [*parameters(name, changed)], f") -> {returned}: ..."
        line = ", ".join(parts)
        if len(f"def {name}({line}{behind}") <= WIDTH:
            yield f"def {name}({line}{behind}"
        else:
            yield f"def {name}("
            yield from [f"    {line}"] if len(line) + 4 <= WIDTH else [f"    {one}," for one in parts]
            yield behind


def text() -> str:
    """Return the stub."""
    head = HEAD.format(
        imports="\n".join(imported()),
        names="\n".join(f"    {quoted(name)}," for name in parprims.__all__),
        method=literal("auto", "canonical", *declared["sum"].methods._methods),
        operators="\n".join(f"    {quoted(name)}," for name in BUILT_IN),
    )
    return head + "\n".join(line for name in sorted(primitives) for line in function(name)) + "\n"


def main() -> int:
    """Write the stub."""
    STUB.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
