"""Write the parameters that public functions share into their docstrings: ``python -m docs.parameters``.

Each text is written once, in `SHARED`. The docstrings hold the whole text, so that editors, linters and help() show it
and an import fills nothing in. With ``--check`` nothing is written, and a docstring that differs is an error.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import parprims

WIDTH = 120

DEVICES = 'See the page "Arrays that are split over devices".'

OPERATOR = (
    "The operator: a built-in name (add, multiply, maximum, minimum, logical_and, logical_or, bitwise_and, bitwise_or, "
    "bitwise_xor, logaddexp, affine, argmax, argmin, welford), an `Operator`, or an associative function "
    "``combine(earlier, later)``."
)


@dataclass(frozen=True)
class Shared:
    """A parameter of several public functions.

    ``text`` is a format, and ``words`` fills its fields for each function. An entry without words is for every public
    function with such a parameter that no other entry names.
    """

    name: str
    type: str
    text: str
    words: Mapping[str, tuple[str, ...]] | None = None

    def texts(self) -> dict[str, str]:
        """Return the description of the parameter in the docstring of each function."""
        words = self.words
        if words is None:
            named = {name for other in SHARED if other.name == self.name for name in other.words or ()}
            words = dict.fromkeys((name for name in functions_with(self.name) if name not in named), ())
        return {name: self.text.format(*fields) for name, fields in words.items()}


def functions_with(parameter: str) -> list[str]:
    """Return the names of the public functions that have a parameter."""
    public = ((name, getattr(parprims, name)) for name in parprims.__all__)
    return [
        name for name, function in public
        if inspect.isfunction(function) and parameter in inspect.signature(function).parameters
    ]  # fmt: skip


def _same(names: str, *fields: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(names.split(), fields)


_FACTORS, _TERMS = _same("prod cumulative_prod", "factors"), _same("sum cumulative_sum", "terms")
_CUMULATIVE = "cumulative_sum cumulative_prod cumulative_max cumulative_min cumulative_logsumexp"
_LARGEST, _SMALLEST = _same("max cumulative_max", "larger"), _same("min cumulative_min", "smaller")

SHARED = (
    Shared(
        "method",
        '{"auto", "canonical", "kernel", "native", "array"}, default "auto"',
        'Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. '
        'See the page "Reproducibility", and `methods`.',
    ),
    Shared(
        "check",
        "bool, optional",
        "Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default, offsets in "
        "CPU memory are checked. True checks offsets on a GPU too, which synchronises the device, and is refused in "
        "traced programs. False checks none. Wrong offsets that are not checked give unspecified results.",
    ),
    Shared(
        "offsets",
        "array or sequence of int, optional",
        "The offsets of segments: integers that ascend from 0 to the length of the axis, in one dimension. "
        "Segment j begins at offsets[j], ends before offsets[j + 1], and may be empty. A list or a NumPy array is "
        "accepted with every library. Each segment is {}.",
        {
            "reduce": ("combined separately, along a single axis",),
            "map_reduce": ("combined separately, along a single axis; values of fn are stored",),
            **_same(f"scan {_CUMULATIVE}", "scanned separately, with ``initial`` before it"),
            "linear_recurrence": ("a recurrence of its own, with ``initial`` before it",),
            **_same("sort sort_by_key", "sorted separately"),
            "argsort": ("sorted separately; indices are still counted along the whole axis",),
        },
    ),
    Shared(
        "reproducible",
        '{"everywhere"}, optional',
        'With "everywhere", {} real floats {} the same bits by every library, method and device{}. '
        'See the page "reduce".',
        {
            "reduce": ("a sum of", "has", ", in any order of its terms. Only for add, without initial"),
            "sum": ("a sum of", "has", ", in any order of its terms"),
            "vecdot": ("a product of vectors of", "has", ", in any order of their elements"),
            "cumulative_sum": ("running sums of", "have", ""),
            "segment_reduce": (
                "sums of",
                "have",
                ", in any order of the elements. Only for add, without initial",
            ),
            "histogram": ("sums of weights that are", "have", ", in any order of the elements"),
        },
    ),
    Shared(
        "exclusive",
        "bool, default False",
        "Whether every result leaves its own element out; the first result is ``initial``, or {}.",
        {
            "cumulative_sum": ("0",),
            "cumulative_prod": ("1",),
            "cumulative_max": ("minus infinity, for integers the least of the dtype",),
            "cumulative_min": ("infinity, for integers the largest of the dtype",),
            "cumulative_logsumexp": ("minus infinity",),
        },
    ),
    Shared(
        "reverse",
        "bool, default False",
        "Whether every element is combined with all behind it, from the last on, and not with all before it.",
        _same(_CUMULATIVE),
    ),
    Shared(
        "initial",
        "scalar or array, optional",
        "An element before the first, behind the last if ``reverse``. Its shape broadcasts to that of x without the "
        "axis. With offsets, an array of as many dimensions as x has an element for each segment: its shape broadcasts "
        "to that of x with the number of segments as the length of the axis.",
        _same(_CUMULATIVE),
    ),
    Shared(
        "segment_ids",
        "array, optional",
        "The number of the segment of each position along the axis, in one dimension and any order. Each element is "
        "combined with the elements of its segment alone. An element whose number is below 0, or num_segments or more, "
        "is returned as it is.",
    ),
    Shared(
        "segment_ids",
        "array, optional",
        "The number of the segment of each position along the axis, in one dimension and any order. Each segment is "
        "solved separately, with ``initial`` before it, as with offsets. The solution is b at a position whose number "
        "is below 0, or num_segments or more.",
        _same("linear_recurrence"),
    ),
    Shared(
        "num_segments",
        "int, optional",
        "The number of segments; given with segment_ids.",
        _same(f"scan linear_recurrence {_CUMULATIVE}"),
    ),
    Shared(
        "axis_name",
        "str, tuple of str or ProcessGroup, optional",
        "Inside `jax.shard_map`, the axes of the mesh that {} split over; on PyTorch, the group of processes. Each "
        f"device passes its own part. {DEVICES}",
        {
            **_same("reduce map_reduce sum prod max min any all vecdot", "the first of the axes is"),
            **_same("scan cumulative_sum cumulative_prod sort argsort sort_by_key", "the axis is"),
            **_same("linear_recurrence solve_tridiagonal", "the axis is"),
            "histogram": ("x and weights are",),
            "matmul": ("the contracted axis of both factors is",),
        },
    ),
    Shared(
        "keepdims",
        "bool, default False",
        "Whether the {} axes stay, with length 1.",
        {
            **_same("max min any all argmax argmin median quantile", "searched"),
            **_same("reduce map_reduce", "combined"),
            "sum": ("summed",),
            "prod": ("multiplied",),
        },
    ),
    Shared(
        "axis",
        "int, default -1",
        "The axis to {} along.",
        {
            "scan": ("scan",),
            "top_k": ("search",),
            **_same("sort argsort sort_by_key", "sort"),
            **_same("merge merge_by_key", "merge"),
            **_same("partition argpartition", "partition"),
            **_same("lfilter sosfilt", "filter"),
        },
    ),
    Shared(
        "axis",
        "int or None, default None",
        "The axis to {} along; None only for an array of one dimension.",
        {
            **_same("cumulative_sum cumulative_logsumexp", "sum"),
            "cumulative_prod": ("multiply",),
            **_same("cumulative_max cumulative_min", "search"),
        },
    ),
    Shared(
        "axis",
        "int or None, default None",
        "The axis to search; None for all elements in row-major order. There must be at least one element.",
        _same("argmax argmin"),
    ),
    Shared(
        "axis",
        "int, tuple of int or None, default None",
        "The axes to {}",
        {
            "sum": ("sum over; None for all.",),
            "prod": ("multiply over; None for all.",),
            **_same("any all", "search; None for all."),
            **_same("max min median quantile", "search; None for all. They must hold at least one element."),
            "reduce": ("combine along; None for all. Elements are taken in row-major order over these axes.",),
        },
    ),
    Shared(
        "dtype",
        "dtype or str, optional",
        "The dtype that {0} are cast to first. By default, integers narrower than the default integer widen to it; "
        "unsigned integers stay unsigned. Complex {0} are not cast to a real dtype.",
        {**_FACTORS, **_TERMS},
    ),
    Shared(
        "dtype",
        "dtype, str or tuple of these, optional",
        "The dtype that elements are cast to before they are combined, or its name in the standard; for several "
        "components a tuple. By default, add and multiply widen integers as the standard's ``{}`` does, and every "
        "other operator keeps the dtype.",
        {"reduce": ("sum",), "scan": ("cumulative_sum",)},
    ),
    Shared(
        "initial",
        "scalar, array, or a tuple of these, optional",
        "An element that comes before all others: it is combined from the left with the result. For several components "
        "it is a tuple, or has the structure of the elements.",
        _same("reduce map_reduce"),
    ),
    Shared(
        "op",
        'str, Operator or callable, default "add"',
        OPERATOR + "{}",
        {"reduce": ("",), "scan": (" It need not be commutative.",)},
    ),
    Shared(
        "include_initial",
        "bool, default False",
        "Whether the empty {} comes first; the result is then longer by one.",
        {"cumulative_sum": ("sum, 0,",), "cumulative_prod": ("product, 1,",)},
    ),
    Shared(
        "return_indices",
        "bool, default False",
        "Whether the positions of these elements are returned too.",
        _same("cumulative_max cumulative_min"),
    ),
    Shared(
        "descending",
        "bool, default False",
        "Whether the {} come first{}.",
        {
            "sort": ("largest elements", ""),
            "sort_by_key": ("largest keys", ""),
            "argsort": ("indices of the largest elements", ""),
            "merge": ("largest elements", ", in the result as in x1 and x2"),
            "merge_by_key": ("largest keys", ", in the result as in keys1 and keys2"),
        },
    ),
    Shared(
        "kth",
        "int or sequence of int",
        "The index, or several indices. Negative indices count from the end.",
        _same("partition argpartition"),
    ),
    Shared(
        "size",
        "int, optional",
        "The length of the results. It is required inside jit, vmap and torch.compile, where the number of {0} is "
        "unknown. The default is the number of {0}, which is read from the device.",
        {"select": ("elements kept",), "run_lengths": ("runs",), "unique": ("distinct elements",)},
    ),
    Shared(
        "fill_value",
        "scalar, default 0",
        "The value that fills results up to ``size``, if {}.",
        {
            "select": ("fewer elements are kept",),
            "run_lengths": ("there are fewer runs",),
            "unique": ("there are fewer distinct elements",),
        },
    ),
    Shared(
        "x",
        "array, or tree of array",
        "The elements, of any shape and any dtype that the operator takes. Several arrays, in tuples, lists, dicts "
        "or other trees of JAX, are the components of an element. They may have different axes behind the axis of the "
        "call.",
        _same("reduce scan"),
    ),
    Shared(
        "x",
        "array",
        "The {}, of any shape and numeric dtype; bool counts as an integer.",
        {**_FACTORS, **_TERMS},
    ),
    Shared(
        "x",
        "array",
        "The elements, of any shape and real dtype. NaN counts as {} than all others.",
        {**_LARGEST, **_SMALLEST},
    ),
    Shared(
        "x",
        "array",
        "The elements, of any shape and of bool or a real dtype. NaN counts as {} than all others.",
        {"argmax": ("larger",), "argmin": ("smaller",)},
    ),
    Shared(
        "x",
        "array",
        "The elements, of any shape and dtype; a number is true unless it is zero.",
        _same("any all"),
    ),
    Shared(
        "x",
        "array",
        "The elements, of at least one dimension and of bool, integer or real floating dtype.",
        _same("sort argsort"),
    ),
    Shared(
        "x",
        "array",
        "The elements, of at least one dimension and of integer or real floating dtype, in the order of `sort`.",
        _same("partition argpartition"),
    ),
    Shared("x", "array", "The elements, of any shape and of integer or real floating dtype.", _same("median quantile")),
    Shared(
        "x",
        "array",
        "The elements, of any shape and dtype, taken in row-major order.",
        _same("select partition_by"),
    ),
    Shared(
        "x",
        "array",
        "The signal, of at least one dimension and a floating dtype. All dtypes promote together.",
        _same("lfilter sosfilt"),
    ),
    Shared("function", "callable", "A primitive of this library.", _same("compare launches methods")),
)
"""Every parameter that several public functions describe alike."""


def with_parameters(source: str, texts: Mapping[str, Mapping[str, tuple[str, str]]]) -> str:
    """Return a module's source with the types and descriptions of parameters, by function, in its docstrings."""
    lines: list[str | None] = list(source.splitlines())
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef) or node.name not in texts:
            continue
        docstring = node.body[0]
        for name, (kind, text) in texts[node.name].items():
            _replace(lines, range(docstring.lineno - 1, docstring.end_lineno or 0), name, (kind, text))
    return "\n".join(line for entry in lines if entry is not None for line in entry.split("\n")) + "\n"


def _replace(lines: list[str | None], docstring: range, name: str, entry: tuple[str, str]) -> None:
    """Put a parameter's type and description into lines of a docstring; lines that go become None."""
    kind, text = entry
    heads = [at for at in docstring if re.match(rf"    {name} : ", lines[at] or "")]
    if len(heads) != 1:
        raise ValueError(f"line {docstring[0] + 1}: the docstring must have one entry for {name}, not {len(heads)}")
    (at,) = heads
    lines[at] = f"    {name} : {kind}\n" + textwrap.fill(
        text, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False, break_long_words=False
    )
    at += 1
    while (lines[at] or "").startswith(" " * 8):
        lines[at] = None
        at += 1


def changes() -> Iterator[tuple[Path, str, str]]:
    """Yield every module of public functions: its path, its source, and the source with the shared texts."""
    texts: dict[str, dict[str, tuple[str, str]]] = {}
    for shared in SHARED:
        for name, text in shared.texts().items():
            entries = texts.setdefault(name, {})
            if shared.name in entries:
                raise ValueError(f"{shared.name} of {name} has two texts")
            entries[shared.name] = shared.type, text
    paths = {inspect.getsourcefile(inspect.unwrap(getattr(parprims, name))) for name in texts}
    for path in sorted(Path(path) for path in paths if path):
        source = path.read_text(encoding="utf-8")
        yield path, source, with_parameters(source, texts)


def main(arguments: list[str]) -> int:
    """Write the docstrings, or with --check name the modules that differ."""
    different = [(path, text) for path, source, text in changes() if source != text]
    for path, text in different:
        if "--check" in arguments:
            print(f"{path}: run python -m docs.parameters")
        else:
            path.write_text(text, encoding="utf-8")
    return int("--check" in arguments and bool(different))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
