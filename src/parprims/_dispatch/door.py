"""The door of a public function: a call like one before goes straight to what computed that.

A body finds its earlier calls again by itself (`dispatch.recalled`), but the functions on its way there take as long
as a small call of NumPy. The door is one function before the body, with the same parameters. Its text is made once, as
`dataclasses` makes theirs: it builds one flat key of the arrays and options, looks it up once, and calls what it finds.
All else goes to the body.

The door need not know what bodies do, for it watches a call: where the body first recalled a function, called it with
the very arrays of the call, and returned what it returned, later calls go to that function. They skip the body, so a
check that reads values stands in the `complete` of the record, which is part of that function.
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
from parprims._core.signature import alone, makers, signature
from parprims._libraries.settings import asks, compiling

Function = TypeVar("Function", bound=Callable[..., Any])
Run = Callable[..., Any]


class _Watch:
    """Is told what a body recalls first, and what that is called with and returns."""

    __slots__ = ("given", "result", "run", "told")

    def __init__(self) -> None:
        self.told = False
        self.run: Run | None = None
        self.given: tuple[Any, ...] = ()
        self.result: Any = None

    def __call__(self, *given: Any) -> Any:
        assert self.run is not None
        self.given, self.result = given, self.run(*given)
        return self.result


_watch: contextvars.ContextVar[_Watch | None] = contextvars.ContextVar("door", default=None)


def watched(run: Run | None) -> Run | None:
    """Return the function that a body recalled, or None; an open door watches the first recalled function."""
    watch = _watch.get()
    if watch is None or watch.told:
        return run
    watch.told, watch.run = True, run
    return None if run is None else watch


def _enter(
    known: Memo[Run], key: Any, arrays: tuple[Any, ...], options: Iterable[Any], body: Run, *args: Any, **named: Any
) -> Any:
    """Call a body, and keep what computes its result, if there is no more to do for a call like this."""
    if not all(map(_is_told_by_itself, options)):
        return body(*args, **named)
    watch = _Watch()
    token = _watch.set(watch)
    try:
        result = body(*args, **named)
    finally:
        _watch.reset(token)
    run, found = watch.run, watch.result
    if run is not None and _are(watch.given, arrays):
        if found is result or (type(found) is type(result) is tuple and _are(found, result)):
            known.keep(key, run)
        elif type(found) is tuple and _are(found, (result,)):
            known.keep(key, (lambda x: run(x)[0]) if len(arrays) == 1 else lambda *given: run(*given)[0])
    return result


def _are(ones: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Return whether tuples hold the same objects."""
    return len(ones) == len(others) and all(map(operator.is_, ones, others))


def _is_told_by_itself(option: Any) -> bool:
    """Return whether an option is equal to none that means another; 0.0 and -0.0 are equal, and functions change."""
    kind = type(option)
    if kind is float:
        return bool(option != 0)
    return kind in (type(None), bool, int) or isinstance(option, str | dtype | type) or kind.__name__ == "dtype"


def door(body: Function, watch: Callable[[], Any], nothing: Any, state: Callable[[Any], Any] | None) -> Function:
    """Return the door of a body, closed while ``watch`` returns something else than ``nothing``.

    ``state`` takes the first array, which is not NumPy's, and returns what else calls depend on that a library is told.
    The arrays are the parameters of the body that have no name to a caller, no default, and the annotation Array. An
    option whose default is None, but for axis and dtype, is left to the body if it is given, and so is a function.
    """
    names = _Names(body)
    text = names.text("" if state is None else "state")
    scope: dict[str, Any] = {}
    exec(compile(text, f"<door of {body.__name__}>", "exec"), globals(), scope)
    defaults = {one.name: one.default for one in names.parameters}
    tools = ndarray, asks, compiling, alone, makers, signature, _enter, state
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
        for one in self.parameters:
            plain_array = one.kind is one.POSITIONAL_ONLY and one.default is one.empty
            if plain_array and str(one.annotation).startswith("Array"):
                self.arrays.append(one.name)
            elif one.kind is one.VAR_POSITIONAL:
                self.arrays.append(f"*{one.name}")
            elif one.kind is one.VAR_KEYWORD:
                self.left.append(f"not {one.name}")
            elif one.default is None and one.name not in ("axis", "dtype"):
                self.left.append(f"{one.name} is None")
            else:
                self.options.append(one)
                if "Callable" in str(one.annotation):  # functions change, so the body asks what they read
                    self.left.append(f"type({one.name}) is str")

    def text(self, state: str) -> str:
        """Return the text of a function that makes the door."""
        arrays = ", ".join(self.arrays)
        rest, told_by = _keyed(self.options), ", ".join([one.name for one in self.options])
        flat = ", ".join([f"{x}.dtype, {x}.shape, {x}.strides, {x}.flags.num" for x in self.arrays])
        first, several = self.arrays[0], any(x.startswith("*") for x in self.arrays)
        handed = arrays if len(self.arrays) == 1 else f"({arrays})"
        # While tensors are exported they have no signature; what torch.compile reads is to get no further than here.
        told = f"not (asks[0]() if asks else compiling({handed}))"
        if several:
            told = f"type({first}) is ndarray or {told}"
        of_numpy = "False" if several else " and ".join([f"type({x}) is ndarray" for x in self.arrays])
        # One after another: what holds for a library is asked once.
        made = [f"(alone.get(type({first})) or signature)({first}, True)"]
        for x in self.arrays[1:]:
            made.append(f"((makers if type({x}) is type({first}) else alone).get(type({x})) or signature)({x}, True)")
        if several:
            made = [f"signature({handed}, True)"]
        found = [f"found{at}" for at in range(len(made))]
        return f"""
def make(body, known, watch, nothing, default, ndarray, asks, compiling, alone, makers, signature, enter, state):
    def {self.name}({self._heads()}):
        key = None
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
        """Return the parameters as they are declared, with defaults by name."""
        heads: list[str] = []
        before: Any = None
        for one in self.parameters:
            if before is one.POSITIONAL_ONLY and one.kind is not before:
                heads.append("/")
            if one.kind is one.KEYWORD_ONLY and before not in (one.kind, one.VAR_POSITIONAL):
                heads.append("*")
            heads.append(_stars(one) + one.name + ("" if one.default is one.empty else f"=default[{one.name!r}]"))
            before = one.kind
        return ", ".join(heads)

    def _handed(self) -> str:
        """Return the arguments as they are handed on."""
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
    """Return the part of a key that tells options apart: 1, 1.0 and True are equal, but not the same.

    Texts and dtypes are equal to nothing else.
    """
    names = [one.name for one in options]
    typed = [one.name for one in options if not isinstance(one.default, str) and one.name != "dtype"]
    return ", ".join([*names, *[f"type({name})" for name in typed]])


def _stars(one: inspect.Parameter) -> str:
    return "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
