"""A primitive as one declaration: how a call of it is checked, remembered, computed, and handed to other rooms.

A public function has the parameters and the docstring, and hands its arguments by name to its `Primitive`. Every call
then goes one way, `Primitive.of`: a node of a program that torch.compile reads; a call like an earlier one; options
made plain; arrays that several devices hold; the check, which makes the record of the call; a method.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

from parprims._core.arrays import Namespace, check_flag
from parprims._core.jax_arrays import is_split
from parprims._core.options import NUMBERS_OR_SEVERAL, made_plain
from parprims._core.other_words import unknown_option
from parprims._core.signature import signature
from parprims._dispatch.dispatch import Methods, in_graph, plain, primitives
from parprims._dispatch.examples import Example, MakesCall, Sample, of_an_array
from parprims._dispatch.prepared import kinds, recalled
from parprims._dispatch.registry import devices, nodes
from parprims._operators.function_key import lasting_key


class Arguments:
    """The arguments of a call by the names of the parameters, as they were given.

    Parameters
    ----------
    name : str
        The public function.
    arrays : dict
        What may be an array or a tuple of arrays, in the order of the parameters; None where it was left out.
    options : dict
        All other arguments except the method and ``axis_name``.
    method : str
        The method asked for.
    axis_name : optional
        The axes of a mesh, or the group, over which the arrays are parts.
    """

    __slots__ = ("arrays", "axis_name", "key", "method", "name", "options")

    def __init__(
        self, name: str, arrays: dict[str, Any], options: dict[str, Any], method: str, axis_name: Any = None
    ) -> None:
        self.name, self.arrays, self.options, self.method, self.axis_name = name, arrays, options, method, axis_name
        self.key: Any = None

    def __getitem__(self, parameter: str) -> Any:
        """Return the argument of a parameter."""
        return self.arrays[parameter] if parameter in self.arrays else self.options[parameter]

    @property
    def given(self) -> dict[str, Any]:
        """The arrays that were not left out."""
        optional = declared[self.name].optional
        found = self.arrays.copy()
        for name, x in self.arrays.items():
            if x is None and name in optional:
                del found[name]
        return found

    @property
    def flat(self) -> tuple[Any, ...]:
        """All arrays in order, those of tuples one by one."""
        return _flat(tuple(self.given.values()))

    def key_of(self, *arrays: Any) -> Any:
        """Return the key of the call if the method is given these very arrays, else None.

        Later calls go from the key to the method with the arrays that they are given, so that a call is not remembered
        where arrays were converted first.
        """
        flat = self.flat
        return self.key if len(flat) == len(arrays) and all(map(operator.is_, arrays, flat)) else None

    def on(self, arrays: dict[str, Any], **options: Any) -> Arguments:
        """Return the call on other arrays, and with some options changed."""
        return Arguments(self.name, arrays, {**self.options, **options}, self.method, self.axis_name)

    def mapped(self, function: Callable[[Any], Any]) -> Arguments:
        """Return the call with a function of every argument in its place; of a tuple's items in theirs."""
        arrays, options = (
            {name: _mapped(function, x) for name, x in one.items()} for one in (self.arrays, self.options)
        )
        return self.on(arrays, **options)


def _mapped(function: Callable[[Any], Any], x: Any) -> Any:
    if not isinstance(x, tuple):
        return function(x)
    items = [_mapped(function, one) for one in x]
    return type(x)(*items) if hasattr(x, "_fields") else tuple(items)


def _flat(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    if tuple not in map(type, arrays):
        return arrays
    return tuple([one for x in arrays for one in (x if type(x) is tuple else (x,))])


def plainer(asked: Arguments, several: tuple[str, ...] = ()) -> Arguments | None:
    """Return the call with Python's own numbers and tuples in its options, None if it has these.

    ``several`` are the options that are a number or several, where most functions take a number by the name.
    """
    options = {name: one for name, one in asked.options.items() if name in NUMBERS_OR_SEVERAL}
    made = made_plain(several, **options)
    return None if made is None else asked.on(asked.arrays, **made)


def check_apart(axis_name: Any) -> None:
    """Raise ValueError if a call with offsets has an axis_name too."""
    if axis_name is not None:
        raise ValueError("axis_name must not be given with offsets: segments may end on another device")


Check = Callable[[Arguments], tuple[Namespace, Any]]
"""Raises, naming the argument, for wrong arguments; returns the namespace and the record of the checked call."""


@dataclasses.dataclass(eq=False, kw_only=True)
class Primitive:
    """The declaration of a public function.

    Parameters
    ----------
    name : str
        The public function.
    variant : str
        Which form of the function this is, where it is not the first.
    check : callable
        See `Check`.
    methods : Methods
        The methods of the function.
    example : callable
        Takes a `Sample`; returns the positional arguments and the options of a small call of that kind, or None if the
        function has no such call. The default calls the function on one array, along an axis.
    optional : tuple of str
        The arrays that a call may be without.
    defaults : dict
        Options that the public function does not have, for it always means the same by them.
    normalize : callable, optional
        Returns the arguments that a call means by those given, before all else.
    operators, numbers : tuple of str
        Options that are operators or functions, which calls are remembered by where nothing that they read can change,
        and numbers that stand in a remembered call.
    state : callable, optional
        Returns what else calls depend on, given the arguments.
    plainer : callable
        Returns the call with options and arrays of the types that the check knows, None if it has these; `plainer` by
        default.
    gradient : bool
        Whether it matters to a remembered call by which arrays a derivative is asked for.
    recall : callable, optional
        Returns what computed the call of a key before that the dispatch does not know, or None.
    compute : callable
        Takes the methods, the method asked for, the namespace and the checked call; returns the result. Those of
        `derivative_rules` add a derivative.
    single : bool or callable
        Whether the result is one array and no tuple; a function says so of the arguments.
    composed : bool
        Whether transformations of torch.func see through a node of torch.compile's graph.
    node : callable, optional
        Returns the result as a node of torch.compile's graph, given the arguments, where there is more to do than to
        make the node.
    rules : str
        The name of the rules that a node has for derivatives and vmap (`_torch_compile.rules` and ``vmap``). Without
        one, its operations are differentiated, and vmap is a loop.
    sharded : bool
        Whether arrays that are split over devices are served: `_devices` has a function for the name.
    replicated : tuple of str
        The arrays that every device holds whole where others are split.
    by_offsets : Primitive, optional
        The same function of every segment, for calls with offsets. The room of the segments, which is above, sets it.
    """

    name: str
    variant: str = ""
    check: Check
    methods: Methods
    example: MakesCall = of_an_array
    optional: tuple[str, ...] = ()
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    normalize: Callable[[Arguments], Arguments] | None = None
    operators: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    state: Callable[[Arguments], Any] | None = None
    plainer: Callable[[Arguments], Arguments | None] = plainer
    gradient: bool = True
    recall: Callable[[Any], Callable[..., Any] | None] | None = None
    compute: Callable[[Methods, str, Namespace, Any], Any] = Methods.__call__
    single: bool | Callable[[Arguments], bool] = False
    composed: bool = True
    node: Callable[[Arguments], Any] | None = None
    rules: str = ""
    sharded: bool = False
    replicated: tuple[str, ...] = ()
    by_offsets: Primitive | None = None

    def __post_init__(self) -> None:
        self._title = f"{self.name} {self.variant}".rstrip()
        own = {**dict.fromkeys(self.operators, lasting_key), **dict.fromkeys(self.numbers, plain)}
        self._key_of = [(name, key_of) for name, key_of in own.items() if name not in self.defaults]
        declared[self._title] = self

    def __call__(
        self,
        others: Mapping[str, Any],
        arrays: dict[str, Any],
        method: str,
        axis_name: Any = None,
        /,
        *,
        offsets: Any = None,
        check: Any = None,
        **options: Any,
    ) -> Any:
        """Compute a call; ``others`` are the arguments that no parameter has the name of."""
        if others:
            raise unknown_option(self.name, others)
        if self.defaults:
            options.update(self.defaults)
        if offsets is not None:
            assert self.by_offsets is not None
            check_apart(axis_name)
            arrays, options = {**arrays, "offsets": offsets}, {**options, "check": check}
            return self.by_offsets.of(Arguments(self.name, arrays, options, method))
        if check is not None:
            check_flag("check", check)
        return self.of(Arguments(self.name, arrays, options, method, axis_name))

    def sampled(self, sample: Sample) -> Example | None:
        """Return an example call of a kind, or None where there is none."""
        given = self.example(sample)
        return None if given is None else Example(primitives[self.name], *given)

    def of(self, asked: Arguments) -> Any:
        """Compute a call."""
        if self.normalize is not None:
            asked = self.normalize(asked)
        given = asked.given
        arrays = tuple(given.values())
        flat = _flat(arrays)
        if asked.axis_name is None:
            if in_graph(flat, asked.method):
                return self._node(asked) if self.node is None else self.node(asked)
            key = asked.key = self._key(asked, given, arrays)
            run = recalled(key)
            if run is None and self.recall is not None:
                run = self.recall(key)
            if run is not None:
                return run(*flat)
        plainer = self.plainer(asked)
        if plainer is not None:
            return self.of(plainer)
        if self.sharded and (asked.axis_name is not None or self._is_split(asked)):
            return devices().compute(asked)
        self.methods.check(asked.method)
        xp, call = self.check(asked)
        return self.compute(self.methods, asked.method, xp, call)

    def _is_split(self, asked: Arguments) -> bool:
        """Return whether several devices, or chunks, hold arrays that may be split."""
        return is_split(tuple([x for name, x in asked.arrays.items() if name not in self.replicated]))

    def _key(self, asked: Arguments, given: Collection[str], arrays: tuple[Any, ...]) -> Any:
        """Return the key of the call, given the names of the arrays that were not left out, and these; or None."""
        found = signature(arrays if len(arrays) > 1 else arrays[0], self.gradient)
        if found is None:
            return None
        told, keys = asked.options, []
        if self._key_of:
            told = told.copy()
            for name, key_of in self._key_of:
                one = told.pop(name)
                if one is not None:
                    one = key_of(one)
                    if one is None:
                        return None
                keys.append(one)  # which holds the types of all that it is made of
        options = (*told.values(), asked.method)
        if self.state is not None:
            options = (*options, self.state(asked))
        return (self._title, *given, *told, *keys), found, options, kinds(options)

    def _node(self, asked: Arguments) -> Any:
        single = self.single if isinstance(self.single, bool) else self.single(asked)
        return nodes().call(self._title, asked, single=single, composed=self.composed)


declared: dict[str, Primitive] = {}
"""The declarations by the names of the public functions, and by "name variant" those of other forms."""


def examples(sample: Callable[[], Sample]) -> dict[str, Example]:
    """Return an example call of every declaration that has any of this kind, by the names in `declared`.

    ``sample`` is called for each of them, so that no example depends on another.
    """
    found = {title: one.sampled(sample()) for title, one in sorted(declared.items())}
    return {title: one for title, one in found.items() if one is not None}
