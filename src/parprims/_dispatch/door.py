"""The door of a public function: a short path from a call to the function that computed an equal call before.

The body of a public function finds prepared calls by itself (`prepared.recalled`), but the functions up to there take
as long as a small call of NumPy. The door is one function before the body, with the same parameters. Its text is
generated once, as `dataclasses` generates methods: it builds a flat key of the arrays and options, looks it up, and
calls the function that it finds. All other calls go to the body.

The door does not need to know the body, because it watches a call. If the body recalled a function, called it with the
very arrays of the call, and returned its result, later calls go to this function. They skip the body, so checks of
values belong into the `complete` of the record, which is part of the function.
"""

from __future__ import annotations

import contextvars
import inspect
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from numpy import dtype, ndarray

from parprims._core.memo import Memo
from parprims._core.other_words import by_position
from parprims._core.signature import alone, makers, signature
from parprims._libraries.settings import asks, compiling

Function = TypeVar("Function", bound=Callable[..., Any])
Run = Callable[..., Any]


class _Watch:
    """Records the first function that a body recalls, its arguments, and its result."""

    __slots__ = ("arguments", "has_run", "result", "run")

    def __init__(self) -> None:
        self.has_run = False
        self.run: Run | None = None
        self.arguments: tuple[Any, ...] = ()
        self.result: Any = None

    def __call__(self, *arguments: Any) -> Any:
        assert self.run is not None
        self.arguments, self.result = arguments, self.run(*arguments)
        return self.result


_watch: contextvars.ContextVar[_Watch | None] = contextvars.ContextVar("door", default=None)


def watched(run: Run | None) -> Run | None:
    """Return the function that a body recalled, or None. If a door watches, it records calls of the first one."""
    watch = _watch.get()
    if watch is None or watch.has_run:
        return run
    watch.has_run, watch.run = True, run
    return None if run is None else watch


def _enter(
    known: Memo[Run], key: Any, arrays: tuple[Any, ...], options: Iterable[Any], body: Run, *args: Any, **named: Any
) -> Any:
    """Call a body, and keep the function that computed the result, if later calls need nothing else."""
    if not all(map(_identifies_itself, options)):
        return body(*args, **named)
    watch = _Watch()
    token = _watch.set(watch)
    try:
        result = body(*args, **named)
    finally:
        _watch.reset(token)
    run, own = watch.run, watch.result
    if run is not None and _are(watch.arguments, arrays):
        if own is result or (type(own) is type(result) is tuple and _are(own, result)):
            known.keep(key, run)
        elif type(own) is tuple and _are(own, (result,)):
            known.keep(key, (lambda x: run(x)[0]) if len(arrays) == 1 else lambda *arrays: run(*arrays)[0])
    return result


def _are(ones: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Return whether tuples hold the same objects."""
    return len(ones) == len(others) and all(map(operator.is_, ones, others))


def _identifies_itself(option: Any) -> bool:
    """Return whether equal options always mean the same: not for 0.0, which equals -0.0, nor for functions."""
    kind = type(option)
    if kind is float:
        return bool(option != 0)
    return kind in (type(None), bool, int) or isinstance(option, str | dtype | type) or kind.__name__ == "dtype"


def door(body: Function, watch: Callable[[], Any], nothing: Any, state: Callable[[Any], Any] | None) -> Function:
    """Return the door of a body. It is closed unless ``watch`` returns ``nothing``.

    ``state`` takes the first array, unless it is NumPy's, and returns the settings of its library that calls depend on.
    The arrays are the positional-only parameters of the body without default and with the annotation Array. If a
    function is given, or an option with default None other than axis, dtype and reproducible, the call goes to the
    body.
    """
    names = _Names(body)
    text = names.text("" if state is None else "state")
    scope: dict[str, Any] = {}
    exec(compile(text, f"<door of {body.__name__}>", "exec"), globals(), scope)
    defaults = {one.name: one.default for one in names.parameters}
    tools = ndarray, asks, compiling, alone, makers, signature, _enter, state, by_position
    made = scope["make"](body, Memo(), watch, nothing, defaults, *tools)
    for name in ("__module__", "__qualname__", "__doc__", "__annotations__"):
        setattr(made, name, getattr(body, name))
    made.__wrapped__ = body
    found: Function = made
    return found


class _Names:
    """The parameters of a body, and the parts of its door's text."""

    def __init__(self, body: Run) -> None:
        assert isinstance(body, types.FunctionType)
        self.name = body.__name__
        self.parameters = [*inspect.signature(body).parameters.values()]
        self.arrays: list[str] = []
        self.options: list[inspect.Parameter] = []
        self.left: list[str] = []
        self.more = not any(one.kind is one.VAR_POSITIONAL for one in self.parameters)
        """Whether the door takes further arguments by position, to show their names in an error."""
        for one in self.parameters:
            plain_array = one.kind is one.POSITIONAL_ONLY and one.default is one.empty
            if plain_array and str(one.annotation).startswith("Array"):
                self.arrays.append(one.name)
            elif one.kind is one.VAR_POSITIONAL:
                self.arrays.append(f"*{one.name}")
            elif one.kind is one.VAR_KEYWORD:
                self.left.append(f"not {one.name}")
            elif one.default is None and one.name not in ("axis", "dtype", "reproducible"):
                self.left.append(f"{one.name} is None")
            else:
                self.options.append(one)
                if "Callable" in str(one.annotation):  # functions may change, so the body makes their keys
                    self.left.append(f"type({one.name}) is str")

    def text(self, state: str) -> str:
        """Return the text of a function that makes the door."""
        arrays = ", ".join(self.arrays)
        rest, told_by = _keyed(self.options), ", ".join([one.name for one in self.options])
        flat = ", ".join([f"{x}.dtype, {x}.shape, {x}.strides, {x}.flags.num" for x in self.arrays])
        first, several = self.arrays[0], any(x.startswith("*") for x in self.arrays)
        handed = arrays if len(self.arrays) == 1 else f"({arrays})"
        # Tensors have no signature while they are exported. torch.compile must not read the code after this condition.
        told = f"not (asks[0]() if asks else compiling({handed}))"
        if several:
            told = f"type({first}) is ndarray or {told}"
        of_numpy = "False" if several else " and ".join([f"type({x}) is ndarray" for x in self.arrays])
        # The first array's signature includes the state of its library; the others leave it out.
        made = [f"(alone.get(type({first})) or signature)({first}, True)"]
        for x in self.arrays[1:]:
            made.append(f"((makers if type({x}) is type({first}) else alone).get(type({x})) or signature)({x}, True)")
        if several:
            made = [f"signature({handed}, True)"]
        found = [f"found{at}" for at in range(len(made))]
        refused = f"\n        if _more:\n            raise by_position({self.name!r}, _more)" if self.more else ""
        return f"""
def make(
    body, known, watch, nothing, default, ndarray, asks, compiling, alone, makers, signature, enter, state, by_position
):
    def {self.name}({self._heads()}):
        key = None{refused}
        if {" and ".join(self.left) or "True"}:
            if {of_numpy}:
                key = {"None" if several else f"{flat}, {rest}"}
            elif {told}:
                {", ".join(found)} = {", ".join(made)}
                if {" and ".join([f"{one} is not None" for one in found])}:
                    key = {", ".join(found)}, {rest}{f", {state}({first})" if state else ""}
        if key is not None:
            try:
                run = known._found.get(key)
            except TypeError:  # an option has no hash
                return body({self._handed()})
            if run is None:
                return enter(known, key, ({arrays},), ({told_by},), body, {self._handed()})
            if watch() is nothing:
                return run({arrays})
        return body({self._handed()})
    return {self.name}
"""

    def _heads(self) -> str:
        """Return the parameters as in the declaration, with defaults by name."""
        heads: list[str] = []
        before: Any = None
        for one in self.parameters:
            if before is one.POSITIONAL_ONLY and one.kind is not before:
                heads.append("/")
            if one.kind is one.KEYWORD_ONLY and before not in (one.kind, one.VAR_POSITIONAL):
                heads.append("*_more" if self.more else "*")
            heads.append(_stars(one) + one.name + ("" if one.default is one.empty else f"=default[{one.name!r}]"))
            before = one.kind
        return ", ".join(heads)

    def _handed(self) -> str:
        """Return the arguments of the call to the body."""
        return ", ".join(
            [
                _stars(one) + one.name
                if _stars(one)
                else f"{one.name}={one.name}"
                if one.kind is one.KEYWORD_ONLY
                else one.name
                for one in self.parameters
            ]
        )


def _keyed(options: Iterable[inspect.Parameter]) -> str:
    """Return the part of a key for options: their values, and their types, because 1, 1.0 and True are equal.

    Strings and dtypes need no type: they equal nothing else.
    """
    names = [one.name for one in options]
    typed = [one.name for one in options if not isinstance(one.default, str) and one.name != "dtype"]
    return ", ".join([*names, *[f"type({name})" for name in typed]])


def _stars(one: inspect.Parameter) -> str:
    return "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
