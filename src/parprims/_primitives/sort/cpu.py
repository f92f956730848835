"""Sorts by kernels for CPUs: their text, the division of lines, and the call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims import _cpu
from parprims._core.arrays import (
    SIXTEEN_BIT_FLOATS,
    Array,
    Namespace,
    device,
    dtype_bits,
    dtype_kind,
    dtype_name,
    library,
    library_title,
)
from parprims._cpu.language import loaded
from parprims._operators.languages import C_TYPES
from parprims._primitives.sort.call import FRACTION_BITS, Sorting, index_dtype

_TILE = 1 << 15
"""Elements of a tile of adjacent lines."""
_ADJACENT = 16
"""The most lines of a tile."""
_LONG = 1 << 17
"""The length from which a line is divided, because it fills a cache."""
_COUNTED = {8: 128, 16: 1 << 13}
"""Maps the bits of keys to the length from which lines of keys alone are sorted by counting."""
_BLOCKS, _BLOCK = 32, 1 << 15
"""The most blocks of a line, and the fewest elements of one."""
_DIGITS, _BUCKETS = 4096, 256
"""Digits by which the elements of a long line are first counted, and buckets into which the digits are grouped."""
_SLACK, _SLACK_OF_FLOATS = 2, 9
"""Bits to sort by beyond those that number the elements; most exponent bits of floats agree."""
NARROW = 31
"""The most bits of an index that is stored in 32 bits."""
_LEAST = 1 << 15
"""The fewest elements for each thread."""


# ---- Specialisation ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Kind:
    """The key of generated kernels: dtypes of keys and values, the results, and whether indices have 32 bits.

    Values, and keys that are not floats, are read as unsigned integers of equal width.
    """

    key: str
    values: tuple[str, ...]
    keyed: bool
    index: str | None
    narrow: bool

    @property
    def bits(self) -> int:
        """The width of a key."""
        return int(self.key.lstrip("abcdefghijklmnopqrstuvwxyz"))

    @property
    def is_float(self) -> bool:
        """Whether keys are floats."""
        return self.key in FRACTION_BITS

    @property
    def alone(self) -> bool:
        """Whether sorted keys are the only result."""
        return not self.values and self.index is None

    @property
    def packed(self) -> bool:
        """Whether a key and an index are one integer of 64 bits."""
        return not self.alone and self.bits <= 32 and self.narrow

    @property
    def word(self) -> str:
        """The type of a key without an index."""
        return "uint64" if self.bits == 64 else "uint32"

    @property
    def slack(self) -> int:
        """The bits to sort by beyond those that number the elements."""
        return _SLACK_OF_FLOATS if self.is_float else _SLACK

    @property
    def states(self) -> tuple[str, ...]:
        """The types of the stored parts of an element."""
        if self.packed:
            return ("uint64",)
        return (self.word,) if self.alone else (self.word, "uint32" if self.narrow else "uint64")

    @property
    def results(self) -> tuple[str, ...]:
        """The dtypes of the results."""
        keyed = (self.key, *self.values) if self.keyed else ()
        return keyed if self.index is None else (*keyed, self.index)


def _bits_of(kind: Kind, code: str) -> str:
    """Return the bits of a float in memory."""
    return f"uint32({code})" if kind.key in SIXTEEN_BIT_FLOATS else f"as_{kind.word}({code})"


def _encoded(kind: Kind) -> tuple[str, str]:
    """Return the functions that encode elements as keys, and that test for elements that keys do not determine."""
    bits, word, read = kind.bits, kind.word, "load(inputs[0], at[0])"
    head = "is_special(inputs, at)"
    if not kind.is_float:
        lines = [f"return {word}({read})"]
    else:
        half = 1 << (bits - 1)
        infinity = half - (1 << FRACTION_BITS[kind.key])
        pattern = [f"pattern = {_bits_of(kind, read)}", f"magnitude = {word}(pattern & {word}({half - 1}))"]
        lines = [
            *pattern,
            f"negative = {word}({word}(0) - {word}(pattern >> {word}({bits - 1})))",
            f"signed = {word}({word}({half}) + {word}({word}(magnitude ^ negative) - negative))",
            f"return {word}({2 * half - 1}) if magnitude > {word}({infinity}) else signed",
        ]
        if kind.alone:
            special = f"(magnitude > {word}({infinity})) | (pattern == {word}({half}))"
            special_lines = [*pattern, f"return int64({special})"]
            return (
                _cpu.text.function("encoded(inputs, at)", lines),
                _cpu.text.function(head, special_lines),
            )
    return _cpu.text.function("encoded(inputs, at)", lines), _cpu.text.function(head, ("return 0",))


def _decoded(kind: Kind, code: str) -> str:
    """Return the stored element of a key."""
    bits, word = kind.bits, kind.word
    half = f"{word}({1 << (bits - 1)})"
    if not kind.is_float:
        return f"{kind.key}({code})"
    pattern = f"{word}({code} - {half}) if {code} >= {half} else {word}(({half} - {code}) | {half})"
    return f"uint16({pattern})" if kind.key in SIXTEEN_BIT_FLOATS else f"as_{kind.key}({pattern})"


def _delivered(kind: Kind) -> str:
    """Return the function that writes the results of an element."""
    word, lines, results = kind.word, [], []
    if kind.packed:
        lines.append("index = int64(load(mem[0], spot) & uint64(4294967295))")
        key = f"{word}(load(mem[0], spot) >> uint64(32))"
    else:
        key = "load(mem[0], spot)"
        if not kind.alone:
            lines.append("index = int64(load(mem[1], spot))")
    if kind.keyed:
        if kind.is_float and not kind.alone:
            results.append("load(inputs[0], at[0] + steps[0] * index)")
        else:
            lines.append(f"key = {word}({key} ^ flip)")
            results.append(_decoded(kind, "key"))
        results += [f"load(inputs[{at}], at[{at}] + steps[{at}] * index)" for at in range(1, 1 + len(kind.values))]
    if kind.index is not None:
        results.append(f"{kind.index}(index)")
    lines += [f"store(outputs[{at}], to[{at}], {code})" for at, code in enumerate(results)]
    return _cpu.text.function("deliver(inputs, outputs, mem, spot, at, steps, to, flip)", lines)


def sorting_texts(kind: Kind) -> tuple[str, ...]:
    """Return the functions that sort the stored parts of elements, and that write and read them."""
    text = _cpu.text
    if kind.packed:
        fill = ["store(mem[0], spot, (uint64(key) << uint64(32)) | uint64(i))"]
    else:
        fill = ["store(mem[0], spot, key)"] + ([] if kind.alone else [f"store(mem[1], spot, {kind.states[1]}(i))"])
    count = range(len(kind.states))
    return (
        text.states_in_memory(kind.states),
        *_encoded(kind),
        text.function("fill(mem, spot, key, i)", fill),
        _delivered(kind),
        text.function("mem_of(scratch)", (f"return {text.packed(f'scratch[{at}]' for at in count)}",)),
        text.function("as_key(x)", (f"return {kind.word}(x)",)),
        text.function("as_state(x)", (f"return {kind.states[0]}(x)",)),
        text.function("low_bit()", (f"return {32 if kind.packed else 0}",)),
        text.loops("_primitives/sort/sort_loops.py"),
    )


def _texts(kind: Kind, views: Sequence[Sequence[_cpu.View]]) -> tuple[str, ...]:
    """Return the functions that the loops call, for views of inputs and outputs."""
    text, (inputs, outputs) = _cpu.text, views
    restores = kind.alone and kind.is_float
    arguments = "inputs, outputs, at, steps, to, steps_out, n, descending"
    read = "inputs, mem, specials, at, steps, across, n, columns, flip"
    write = "inputs, outputs, mem, founds, at, to, steps, across, steps_out, across_out, n, columns, flip"
    # Elements of a line that are adjacent in all arrays are read as vectors.
    adjacent = [
        text.function(f"alongs_{name}(numbers)", (f"return {text.packed('1' * len(group))}",))
        for name, group in (("in", inputs), ("out", outputs))
        if all(one.along == 1 for one in group)
    ]
    ways = ["rows" if 0 < abs(one.outer[-1]) < abs(one.along) else "lines" for one in (inputs[0], outputs[0])]
    return (
        *text.groups(["in", "out"], views, _NUMBERS),
        *adjacent,
        text.function(f"read({read})", (f"read_{ways[0]}({read})",)),
        text.function(f"write({write})", (f"write_{ways[1]}({write})",)),
        text.function("value(inputs, at)", (f"return {loaded(kind.key, 'load(inputs[0], at[0])')}",)),
        text.function("copy(inputs, outputs, at, to)", ("store(outputs[0], to[0], load(inputs[0], at[0]))",)),
        text.function(f"restore({arguments})", (f"return {f'restore_floats({arguments})' if restores else 0}",)),
        *(
            text.function(f"{name}_of(scratch)", (f"return scratch[{len(kind.states) + at}]",))
            for at, name in enumerate(("masks", "counts", "shares", "places", "starts"))
        ),
        text.function(
            "deliver_key(outputs, to, key)",
            (f"store(outputs[0], to[0], {_decoded(kind, 'key') if kind.keyed else '0'})",),
        ),
        text.function("every_key()", (f"return {1 << min(kind.bits, 16)}",)),
        text.function("words(count)", (f"return np.empty(count, np.{kind.word})",)),
        *sorting_texts(kind),
    )


# ---- Plan -------------------------------------------------------------------------------------------------------

_NUMBERS = 9
"""The count of numbers before the numbers of views."""


def seen_as(dtype: str, *, moved: bool) -> str:
    """Return the dtype as which kernels read keys or, if ``moved``, values of a dtype."""
    bits = dtype_bits(dtype)
    return dtype if bits > 64 or (dtype in FRACTION_BITS and not moved) else f"uint{max(8, bits)}"


def flip(dtype: Any, descending: bool) -> int:
    """Return the mask that inverts the bits of keys into ascending order: the sign, and all bits if descending."""
    sign = -1 << (dtype_bits(dtype) - 1) if dtype_kind(dtype) == "int" else 0
    return ~sign if descending else sign


def _plan(call: Sorting, kind: Kind, names: Sequence[str], hosts: Sequence[np.ndarray[Any, Any]]) -> _cpu.Plan | None:
    """Return the plan for the layouts of arrays and the dtypes of results.

    Return None if the axes do not merge into (high, low, n, inner).
    """
    shape, axis = hosts[0].shape, call.axis
    dtypes, results = (kind.key, *kind.values), kind.results
    inputs, outputs = [*zip(hosts, dtypes, strict=True)], [(shape, name) for name in results]
    layout = _cpu.lines_of(shape, axis, inputs, outputs, broadcast=False)
    if layout is None:
        return None
    views = layout.groups[:2]
    n, inner, lines, outer = shape[axis], layout.inner, layout.count, layout.high * layout.low
    width = max(1, min(inner, _ADJACENT, _TILE // n))
    blocks = min(_BLOCKS, -(-n // _BLOCK))
    size = -(-n // blocks)
    numbers = (
        *(layout.low, n, inner, width, flip(call.keys.dtype, call.descending)),
        *(kind.slack, blocks, size, int(call.descending)),
        *_cpu.text.numbers_of(views),
    )
    launches, scratch = [_cpu.Launch("sort_tiles", outer * -(-inner // width), -(-_LEAST // (n * width)))], []
    if n >= _COUNTED.get(kind.bits, n + 1) and (kind.alone or kind.bits == 8):
        launches = [_cpu.Launch("count_lines" if kind.alone else "place_lines", lines, -(-_LEAST // n))]
    elif n >= _LONG:
        least = -(-_LEAST * _BUCKETS // n)
        launches = [
            *(_cpu.Launch(f"{name}_blocks", lines * blocks, reads=1, writes=False) for name in ("survey", "count")),
            _cpu.Launch("share_lines", lines, reads=0, writes=False),
            _cpu.Launch("scatter_blocks", lines * blocks, reads=1, writes=False),
            _cpu.Launch("sort_buckets", _BUCKETS * lines, least),
        ]
        if kind.alone and kind.is_float:
            launches.append(_cpu.Launch("restore_lines", lines))
        scratch = [(2 * lines * n, name) for name in kind.states]
        scratch += [(2 * lines * blocks, "uint64"), (_DIGITS * lines * blocks, "int32"), (_DIGITS * lines, "int32")]
        scratch += [(_BUCKETS * lines * blocks, "int64"), ((_BUCKETS + 1) * lines, "int64")]
        numbers = (*numbers[:5], _SLACK, *numbers[6:])
    return _cpu.Plan(
        tuple(launches),
        _texts(kind, views),
        dtypes,
        tuple([(shape, name) for name in names]),
        tuple(scratch),
        numbers,
        seen=results,
    )


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, call: Sorting) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    for x in call.values:
        if dtype_name(x.dtype) not in C_TYPES:
            return f"the kernel does not move values of dtype {dtype_name(x.dtype)}"
    return _cpu.refusal(xp, call.arrays, differentiable=True)  # `derivative_rules.sorting` adds the derivative


CROSSOVERS = _cpu.crossovers(__name__)
"""Lengths of lines of keys alone, and elements of other calls, from which kernels on one thread are faster.

NumPy sorts lines of 32 and 64 bits by vectors: with AVX-512 in less than half the time of the kernel on one thread,
with AVX2 in about equal time.
"""
_FEW = 1 << 12
"""Below this number of elements no kernel is used: it saves little, and its first call in a process waits for LLVM."""
_THREADS, _SHARE = 4, 1 << 17
"""The fewest threads, and the fewest elements of a thread, that are faster than NumPy's one thread."""


def kind(call: Sorting) -> str:
    """Return the kind of a call in `CROSSOVERS`: the dtype and layout for keys alone, else "values" or "indices"."""
    if not call.keys_alone:
        return "values" if call.values else "indices"
    bits = dtype_bits(call.keys.dtype)
    if dtype_kind(call.keys.dtype) == "float":
        name = "floats of 16 bits" if bits == 16 else "floats"
    else:
        name = f"{bits} bits" if bits <= 16 else "integers"
    return f"{name}, {_cpu.of_columns(call.keys.shape, call.axis)}"


def slower(xp: Namespace, call: Sorting) -> str | None:
    """Return the reason why another method is faster, or None."""
    elements = math.prod(call.keys.shape)
    if elements < _FEW:
        return f"{library_title(xp)} is faster below {_FEW} elements"
    if min(_cpu.threads.limit(), elements // _SHARE) >= _THREADS:
        return None
    table = _cpu.measured(CROSSOVERS, xp, call.arrays)
    return table.slower(library(xp), kind(call), call.keys.shape[call.axis] if call.keys_alone else elements)


def prepare(xp: Namespace, call: Sorting) -> Callable[..., tuple[Array, ...]]:
    """Return a function of a call's arrays that sorts them."""
    if 0 in call.keys.shape:
        bare = call.on(*(None,) * len(call.arrays))
        return lambda *arrays: _empty(xp, bare.on(*arrays))
    n = call.keys.shape[call.axis]
    dtypes = [dtype_name(x.dtype) for x in call.arrays]
    read_as = [seen_as(name, moved=at > 0) for at, name in enumerate(dtypes)]
    index = dtype_name(index_dtype(xp)) if call.indices else None
    kind = Kind(read_as[0], tuple(read_as[1:]), call.keyed, index, narrow=n >> NARROW == 0)
    names = [*(dtypes if call.keyed else ()), *([] if index is None else [index])]
    views = [_cpu.bits_dtype(one) for one in read_as]
    plan = _plan(call, kind, names, [_cpu.host(x) for x in call.arrays])
    if plan is not None:
        readers = [_cpu.viewed(x, _cpu.reader(x), view) for x, view in zip(call.arrays, views, strict=True)]
        return _cpu.runner(plan, call.arrays, readers)

    plan = _plan(call, kind, names, [_cpu.in_order(x) for x in call.arrays])
    assert plan is not None
    readers = [_cpu.viewed(x, _cpu.flat_in_order, view) for x, view in zip(call.arrays, views, strict=True)]
    return _cpu.runner(plan, call.arrays, readers)


def batched(xp: Namespace, call: Sorting, arrays: tuple[Array, ...]) -> Sorting:
    """Return the call on arrays with one more leading axis."""
    return dataclasses.replace(call, arrays=tuple(xp.broadcast_arrays(*arrays)), axis=call.axis + 1, key=None)


def _empty(xp: Namespace, call: Sorting) -> tuple[Array, ...]:
    """Return the results of a call without elements."""
    dtypes = [x.dtype for x in call.arrays] if call.keyed else []
    dtypes += [index_dtype(xp)] if call.indices else []
    return tuple([xp.empty(call.keys.shape, dtype=dtype, device=device(call.keys)) for dtype in dtypes])
