"""A primitive as one declaration: the check of its calls, their keys, their methods, and their use in other rooms.

A public function has the parameters and the docstring, and hands its arguments by name to its `Primitive`. Every call
then takes the steps of `Primitive.of`, in this order: in a program of torch.compile it becomes a node; an equal earlier
call is found by its key; options are made plain; arrays that several devices hold go to `_devices`; the check makes the
record of the call; a method computes it.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

from parprims._core.arrays import Namespace, check_flag, repr_short
from parprims._core.jax_arrays import is_split
from parprims._core.options import NUMBERS_OR_SEVERAL, is_array, made_plain
from parprims._core.other_words import unknown_option
from parprims._core.signature import signature
from parprims._dispatch.dispatch import Methods, in_graph, plain, primitives
from parprims._dispatch.examples import Example, MakesCall, Sample, of_an_array
from parprims._dispatch.prepared import kinds, recalled
from parprims._dispatch.registry import devices, nodes
from parprims._operators.function_key import lasting_key


class Arguments:
    """The unchecked arguments of a call by the names of its parameters.

    Parameters
    ----------
    name : str
        The public function.
    arrays : dict
        The arguments that are arrays or tuples of arrays, in the order of the parameters; None for one left out.
    options : dict
        All other arguments except the method and ``axis_name``.
    method : str
        The requested method.
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
        arrays = self.arrays.copy()
        for name, x in self.arrays.items():
            if x is None and name in optional:
                del arrays[name]
        return arrays

    @property
    def flat(self) -> tuple[Any, ...]:
        """All arrays in order, with the arrays of tuples one by one."""
        return _flat(tuple(self.given.values()))

    def key_of(self, *arrays: Any) -> Any:
        """Return the key of the call if ``arrays`` are the very arrays of the call, else None.

        A later call with this key hands its own arrays to the method, without the conversions of the check. So a call
        with converted arrays has no key.
        """
        flat = self.flat
        return self.key if len(flat) == len(arrays) and all(map(operator.is_, arrays, flat)) else None

    def on(self, arrays: dict[str, Any], **options: Any) -> Arguments:
        """Return the call on other arrays, and with some options changed."""
        return Arguments(self.name, arrays, {**self.options, **options}, self.method, self.axis_name)

    def mapped(self, function: Callable[[Any], Any]) -> Arguments:
        """Return the call with ``function`` applied to every argument, and to every item of tuples."""
        arrays, options = (
            {name: _mapped(function, x) for name, x in arguments.items()} for arguments in (self.arrays, self.options)
        )
        return self.on(arrays, **options)


def _mapped(function: Callable[[Any], Any], x: Any) -> Any:
    if not isinstance(x, tuple):
        return function(x)
    items = [_mapped(function, item) for item in x]
    return type(x)(*items) if hasattr(x, "_fields") else tuple(items)


def _holds_arrays(value: Any) -> bool:
    """Return whether an option is an array, or a tuple with arrays."""
    return any(map(is_array, value)) if type(value) is tuple else is_array(value)


def _flat(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    if tuple not in map(type, arrays):
        return arrays
    return tuple([array for x in arrays for array in (x if type(x) is tuple else (x,))])


def plainer(asked: Arguments, several: tuple[str, ...] = ()) -> Arguments | None:
    """Return the call with Python's own numbers and tuples as options; None if its options are plain already.

    ``several`` are the options that may be several numbers here, although most functions take a single number for them.
    """
    options = {name: value for name, value in asked.options.items() if name in NUMBERS_OR_SEVERAL}
    plain_options = made_plain(several, **options)
    return None if plain_options is None else asked.on(asked.arrays, **plain_options)


def check_apart(axis_name: Any) -> None:
    """Raise ValueError if a call with offsets has an axis_name too."""
    if axis_name is not None:
        raise ValueError("axis_name must not be given with offsets: segments may end on another device")


def check_grouped(ids: Any, count: Any, *, offsets: Any, check: Any, axis_name: Any) -> None:
    """Raise ValueError unless a call has segment_ids and num_segments, and neither offsets nor an axis_name."""
    if ids is None or count is None:
        raise ValueError("segment_ids and num_segments must be given together")
    if offsets is not None:
        raise ValueError("offsets must be None where segment_ids are given")
    if axis_name is not None:
        raise ValueError("axis_name must not be given with segment_ids: segments may have elements on another device")
    if check is not None:
        check_flag("check", check)


Check = Callable[[Arguments], tuple[Namespace, Any]]
"""Returns the namespace and the record of the checked call; raises an error that names a wrong argument."""


@dataclasses.dataclass(eq=False, kw_only=True)
class Primitive:
    """The declaration of a public function.

    Parameters
    ----------
    name : str
        The public function.
    variant : str
        The name of this form of the function; empty for its first form.
    check : callable
        See `Check`.
    methods : Methods
        The methods of the function.
    example : callable
        Takes a `Sample`; returns the positional arguments and the options of a small call of that kind, or None if the
        function has no such call. The default calls the function on one array, along an axis.
    optional : tuple of str
        The arrays that a call may leave out.
    defaults : dict
        Options of the check that the public function does not have, with their values.
    normalize : callable, optional
        Replaces the arguments before all other steps.
    operators, numbers : tuple of str
        Options that are operators or functions, and options that are numbers held by prepared calls. An operator has
        a key if its trace cannot change unseen (`lasting_key`); without keys for all options, a call has no key.
    or_arrays : str
        The one of ``numbers`` that may also be an array, or a tuple with arrays. Then it is among the arrays of the
        call, so that a later call passes its own. Empty if there is none.
    state : callable, optional
        Takes the arguments; returns a further part of the key, such as settings of a library.
    plainer : callable
        Returns the call with options and arrays of the types that the check accepts, or None if it has them already;
        `plainer` by default.
    gradient : bool
        Whether the key includes the arrays with respect to which a derivative is requested.
    recall : callable, optional
        Takes a key; returns a prepared call that only the derivative rules know, or None.
    compute : callable
        Takes the methods, the requested method, the namespace and the checked call; returns the result. The functions
        of `derivative_rules` add a derivative.
    single : bool or callable
        Whether the result is one array and no tuple; or a function of the arguments that says so.
    node : callable, optional
        Takes the arguments; returns the result as a node of torch.compile's graph. By default the node is made without
        further steps.
    rules : str
        The name of a node's rules for derivatives and vmap (`_torch_compile.rules` and ``vmap``). Without a name, the
        operations of the node are differentiated, and vmap is a loop.
    sharded : bool
        Whether arrays may be split over devices: `_devices` has a function with the name of the primitive.
    replicated : tuple of str
        The arrays that every device holds whole, even if others are split.
    by_offsets : Primitive, optional
        The form of the function for calls with offsets. The room of segments sets it, because it is a higher room.
    everywhere : Primitive, optional
        The form of the function with the option ``reproducible``, which a higher room sets too.
    by_ids : Primitive, optional
        The same for calls with segment_ids.
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
    or_arrays: str = ""
    state: Callable[[Arguments], Any] | None = None
    plainer: Callable[[Arguments], Arguments | None] = plainer
    gradient: bool = True
    recall: Callable[[Any], Callable[..., Any] | None] | None = None
    compute: Callable[[Methods, str, Namespace, Any], Any] = Methods.__call__
    single: bool | Callable[[Arguments], bool] = False
    node: Callable[[Arguments], Any] | None = None
    rules: str = ""
    sharded: bool = False
    replicated: tuple[str, ...] = ()
    by_offsets: Primitive | None = None
    everywhere: Primitive | None = None
    by_ids: Primitive | None = None

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
        reproducible: Any = None,
        **options: Any,
    ) -> Any:
        """Compute a call; ``others`` are arguments whose names are no parameters."""
        if others:
            raise unknown_option(self.name, others)
        if self.defaults:
            options.update(self.defaults)
        if self.by_ids is not None:
            ids, count = options.pop("segment_ids", None), options.pop("num_segments", None)
            if ids is not None or count is not None:
                check_grouped(ids, count, offsets=offsets, check=check, axis_name=axis_name)
                arrays, options = {**arrays, "segment_ids": ids}, {**options, "num_segments": count}
                return self.by_ids._form(reproducible).of(Arguments(self.name, arrays, options, method))
        if offsets is not None:
            assert self.by_offsets is not None
            check_apart(axis_name)
            arrays, options = {**arrays, "offsets": offsets}, {**options, "check": check}
            return self.by_offsets._form(reproducible).of(Arguments(self.name, arrays, options, method))
        if check is not None:
            check_flag("check", check)
        form = self if reproducible is None else self._form(reproducible)
        return form.of(Arguments(self.name, arrays, options, method, axis_name))

    def _form(self, reproducible: Any) -> Primitive:
        """Return the form of the function for the option ``reproducible``."""
        if reproducible is None:
            return self
        if not (isinstance(reproducible, str) and reproducible == "everywhere"):
            raise ValueError(f"reproducible must be None or 'everywhere', got {repr_short(reproducible)}")
        if self.everywhere is None:
            raise ValueError("reproducible must be None: segments are scanned as floats")
        return self.everywhere

    def sampled(self, sample: Sample) -> Example | None:
        """Return an example call of a kind, or None if the primitive has none."""
        given = self.example(sample)
        return None if given is None else Example(primitives[self.name], *given)

    def of(self, asked: Arguments) -> Any:
        """Compute a call."""
        if self.normalize is not None:
            asked = self.normalize(asked)
        given = asked.given
        arrays = tuple(given.values())
        flat = _flat(arrays)
        kept = asked
        if asked.axis_name is None:
            if in_graph(flat, asked.method):
                asked = nodes().with_constants(asked, self.numbers)
                return self._node(asked) if self.node is None else self.node(asked)
            if self.or_arrays and _holds_arrays(asked.options.get(self.or_arrays)):
                kept = self._with_more_arrays(asked)
                given = kept.given
                arrays = tuple(given.values())
                flat = _flat(arrays)
            key = kept.key = self._key(kept, given, arrays)
            run = recalled(key)
            if run is None and self.recall is not None:
                run = self.recall(key)
            if run is not None:
                return run(*flat)
        plainer = self.plainer(asked)
        if plainer is not None:
            return self.of(plainer)
        if self.sharded and (asked.axis_name is not None or self._is_split(asked)):
            return devices().compute(asked, self._title)
        self.methods.check(asked.method)
        xp, call = self.check(asked if kept.key is None else kept)
        return self.compute(self.methods, asked.method, xp, call)

    def _with_more_arrays(self, asked: Arguments) -> Arguments:
        """Return the call with its option ``or_arrays`` among its arrays."""
        options = asked.options.copy()
        arrays = {**asked.arrays, self.or_arrays: options.pop(self.or_arrays)}
        return Arguments(asked.name, arrays, options, asked.method)

    def _is_split(self, asked: Arguments) -> bool:
        """Return whether several devices, or chunks, hold arrays that may be split."""
        return is_split(tuple([x for name, x in asked.arrays.items() if name not in self.replicated]))

    def _key(self, asked: Arguments, given: Collection[str], arrays: tuple[Any, ...]) -> Any:
        """Return the key of the call, or None; ``given`` are the names of ``arrays``, all that were not left out."""
        array_key = signature(arrays if len(arrays) > 1 else arrays[0], self.gradient)
        if array_key is None:
            return None
        others, keys = asked.options, []
        if self._key_of:
            others = others.copy()
            for name, key_of in self._key_of:
                value = others.pop(name, None)
                if value is not None:
                    value = key_of(value)
                    if value is None:
                        return None
                keys.append(value)  # this key includes the types of its parts
        options = (*others.values(), asked.method)
        if self.state is not None:
            options = (*options, self.state(asked))
        return (self._title, *given, *others, *keys), array_key, options, kinds(options)

    def _node(self, asked: Arguments) -> Any:
        single = self.single if isinstance(self.single, bool) else self.single(asked)
        return nodes().call(self._title, asked, single=single)


declared: dict[str, Primitive] = {}
"""The declarations by the names of the public functions; other forms are under "name variant"."""


def examples(sample: Callable[[], Sample]) -> dict[str, Example]:
    """Return the example calls of this kind by the names in `declared`; some declarations have none.

    Each declaration gets a new ``sample``, so that no example depends on another.
    """
    calls = {title: primitive.sampled(sample()) for title, primitive in sorted(declared.items())}
    return {title: call for title, call in calls.items() if call is not None}
