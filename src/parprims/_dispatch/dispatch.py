"""The choice of a method for a call. This module alone chooses, and it can say why."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Never, TypeVar

import numpy as np

from parprims import _cpu
from parprims._compiling.first_call import rehearsed
from parprims._core.arrays import check_choice, is_jax, library, quiet, raise_if_nan, repr_short
from parprims._core.jax_arrays import is_placed_later
from parprims._core.memo import Memo
from parprims._core.programs import one_program
from parprims._core.signature import signature, traced_signature
from parprims._cpu.compiler import believing
from parprims._dispatch import registry
from parprims._dispatch.door import door
from parprims._dispatch.prepared import Prepared, completed, prepared
from parprims._dispatch.watch import NOBODY, CallEnded, observed_by, observers, unwatched
from parprims._libraries.numpy_bridge import quietly
from parprims._libraries.settings import autocast, compiling, without_autocast
from parprims._operators.program_numbers import noting, shared

Refusal = Callable[..., str | None]
"""Takes a namespace and a `Checked` call; returns the sentence why a method cannot compute it, or None."""


Departs = Callable[[str, Any, Any], str | None]
"""Takes the name of a method, a namespace and a `Checked` call; returns the sentence why the method does not group
elements by their places in their line alone, as ``method="canonical"`` promises, or None."""


class MethodRefused(RuntimeError):
    """The requested method cannot compute this call; the message says why.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.scan(np.arange(5.0), lambda earlier, later: earlier - later, method="native")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    parprims._dispatch.dispatch.MethodRefused: scan: method 'native' refused: ...
    """


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Checked:
    """A checked call, the input of every method. Each primitive adds fields of its own.

    Parameters
    ----------
    arrays : tuple of array
        All arrays of the call, in the order in which the public function has them.
    key : optional
        The key of the call (see `call_key`), or None.
    complete : callable, optional
        Returns ``arrays`` for the arguments of a later call with this key; None if the arguments are ``arrays``.
    canonical : bool
        Whether a method that has several groupings of elements must take the canonical one.
    """

    arrays: tuple[Any, ...]
    key: Any = None
    complete: Callable[..., tuple[Any, ...]] | None = None
    canonical: bool = False

    def on(self, *arrays: Any) -> Any:
        """Return the call on other arrays of equal shapes and dtypes."""
        call = object.__new__(type(self))  # ten times as fast as `dataclasses.replace`
        call.__dict__.update(self.__dict__, arrays=arrays)
        return call

    def for_method(self, method: str) -> Any:
        """Return the call as the method of the caller asks for it: ``canonical`` has the canonical grouping."""
        return dataclasses.replace(self, canonical=True) if method == "canonical" else self

    @property
    def lasts(self) -> bool:
        """Whether the field ``operation`` identifies the operators, so that they cannot change unseen."""
        return True

    def empty(self, xp: Any) -> Any:
        """Return empty arrays with the shapes and dtypes of the result."""
        raise NotImplementedError

    def trial(self, xp: Any) -> str | None:  # noqa: ARG002
        """Return the failure of the caller's functions on a few elements, or None.

        The trial takes the same time for any number of elements, and reads no element of the call.
        """
        return None

    def described(self) -> Any:
        """Return a key of the call without its arrays, or None if a field has no key."""
        rest = self.options(*_NOT_PLAIN)
        return (getattr(self, "operation", None), rest) if self.lasts and rest is not None else None

    def options(self, *apart: str) -> Any:
        """Return a key of all fields except those ``apart``, or None if a field is no plain value."""
        names = [field.name for field in dataclasses.fields(self)]
        return plain(tuple([getattr(self, name) for name in names if name not in apart]))


_NOT_PLAIN = ("arrays", "key", "complete", "op", "add", "multiply", "operation")


def plain(value: Any) -> Any:
    """Return a key of a plain value, in which 1, 1.0 and True differ, and 0.0 and -0.0; None for all other values."""
    if type(value) is tuple:
        parts = tuple([plain(entry) for entry in value])
        return None if any(part is None for part in parts) else parts
    if value is None or isinstance(value, bool | int | float | complex | str | np.generic):
        return type(value), repr(value)
    return value if isinstance(value, np.dtype | type) else None


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to compute a primitive.

    Parameters
    ----------
    prepare : callable
        Takes the namespace and a `Checked` call; returns a function of the call's arrays that computes the result. The
        function keeps no array of the call, because later calls with the same key use it too.
    refusal : callable, optional
        Takes the namespace and the call; returns the sentence why the method cannot compute the call, or None. It
        depends on dtypes, shapes, devices, operators, tracing and gradient flags, never on data, and has no side
        effect.
    slower : callable, optional
        Takes the namespace and the call; returns the sentence why ``auto`` passes over the method although it can
        compute the call, or None. It reads the measured crossovers. A caller can still ask for the method by name.
    derivative : callable, optional
        Takes the namespace, the call, the function from ``prepare``, and the requested method; returns a function that
        also has the derivative, or the given function if it has the derivative or none is asked for. A method with this
        field does not refuse calls for which a derivative is asked.
    quiet : bool or callable, optional
        Whether the function from ``prepare`` makes no warnings of NumPy about infinities and NaN; or a function of the
        namespace and the call that says so.
    eager : callable, optional
        Takes the namespace and the call; returns whether JAX arrays are computed outside of a program, where they have
        values.
    rehearsed : bool, optional
        Whether the method launches kernels in several steps, all of which should begin to compile before the first
        runs.
    """

    prepare: Callable[..., Callable[..., Any]]
    refusal: Refusal | None = None
    slower: Refusal | None = None
    derivative: Callable[..., Callable[..., Any]] | None = None
    quiet: bool | Callable[..., bool] = False
    eager: Callable[..., bool] | None = None
    rehearsed: bool = False


def directly(run: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    """Return the ``prepare`` of a method without preparation. ``run`` takes the namespace and the call."""

    def prepare(xp: Any, call: Checked) -> Callable[..., Any]:
        bare = call.on(*(None,) * len(call.arrays))
        return lambda *arrays: run(xp, bare.on(*arrays))

    return prepare


@dataclasses.dataclass(frozen=True, repr=False)
class Call:
    """One call, as `explain` recorded it.

    Parameters
    ----------
    primitive : str
        The primitive that was computed.
    method : str
        The method that computed it.
    refusals : dict of str to str
        For each method that was passed over, in order, the reason.
    canonical : bool
        Whether the method groups elements by their places in their line alone, as ``method="canonical"`` promises.
    devices : int
        The number of devices among which the axis of the call was split.
    steps : tuple
        The collective operations in order, each with its ``name`` and ``nbytes``, the bytes that a device sends.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> with parprims.explain() as calls:
    ...     total = parprims.sum(np.arange(5.0), method="array")
    >>> calls
    [Call(primitive='sum', method='array', refusals={})]
    >>> calls[0].canonical
    True
    """

    primitive: str
    method: str
    refusals: dict[str, str]
    canonical: bool = False
    devices: int = 1
    steps: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        text = f"primitive={self.primitive!r}, method={self.method!r}, refusals={self.refusals!r}"
        more = f", devices={self.devices}, steps={self.steps!r}" if self.devices > 1 else ""
        return f"Call({text}{more})"


primitives: dict[str, Callable[..., Any]] = {}
"""The public functions by name."""

Function = TypeVar("Function", bound=Callable[..., Any])


def primitive(function: Function, state: Callable[[Any], Any] | None = None) -> Function:
    """Register a public function under its name; return it with a door, a short path for calls like earlier ones."""
    with_door = door(function, observers.get, NOBODY, state)
    primitives[function.__name__] = with_door
    return with_door


def chosen(function: Callable[..., Any], *arrays: Any) -> list[Call]:
    """Return the calls that `explain` would record, up to the first choice of a method. That call is not computed."""
    with unwatched(), explain() as calls, contextlib.suppress(CallEnded), observed_by(choosing=True):
        function(*arrays)
    return calls


class Inside(str):
    """The name of a method, in a call from inside a node of torch.compile's graph: the call makes no further node."""

    __slots__ = ()


class Abstract(Inside):
    """The name of a method, for arrays without values: the call is checked, and its results are empty arrays."""

    __slots__ = ()


def in_graph(x: Any, method: Any) -> bool:
    """Return whether torch.compile reads a call on x, and makes it a node of its graph (see `registry.nodes`).

    Every public function asks this first, because torch.compile cannot read the code that follows.
    """
    return compiling(x) and not isinstance(method, Inside)


_programs: Memo[Callable[..., Any]] = Memo()

_CHOOSING = ("auto", "canonical")
"""The methods that choose one of the others."""

SPLIT = (
    "several devices hold the arrays, and combine results in groups that depend on their number; sums by "
    "reproducible='everywhere' do not depend on it"
)
"""Why there is no canonical method for arrays on several devices."""

_ELSE = "; sums by reproducible='everywhere' have the same bits by every method"
_OF_LIBRARY = "the library's routine groups elements in its own way"


def exact(name: str, xp: Any, call: Checked) -> str | None:  # noqa: ARG001
    """Say that every method but native has the one result that the definition of the primitive allows."""
    return _OF_LIBRARY if name == "native" else None


def unordered(name: str, xp: Any, call: Checked) -> str | None:  # noqa: ARG001
    """Say that the methods of a primitive share no order of operations."""
    return _OF_LIBRARY if name == "native" else "its methods share no order of operations"


class Methods:
    """The methods of a primitive, in the order in which ``auto`` tries them.

    Parameters
    ----------
    primitive : str
        Name of the public function.
    departs : callable
        Says which methods group elements canonically. See `Departs`.
    **methods : Method
        The methods by name, first choice first.
    """

    def __init__(self, primitive: str, departs: Departs, /, **methods: Method) -> None:
        self.primitive = primitive
        self.departs = departs
        self._methods = methods
        self._choices = ("auto", "canonical", *methods)

    def check(self, method: str) -> None:
        """Raise ValueError unless there is a method of the name."""
        check_choice("method", method, self._choices)

    def reason(self, name: str, xp: Any, call: Checked, *, auto: bool) -> str | None:
        """Return the refusal of a method, or with ``auto`` the reason to pass over it; None if it computes the call."""
        if not auto:
            return _refused(self._methods[name], xp, call)
        return self._reason(name, xp, call, tries=False)[0]

    def chosen(self, method: str, xp: Any, call: Checked) -> str | None:
        """Return the name of the method that would compute a call, or None if every method refuses."""
        if method not in _CHOOSING:
            return str(method)
        return self._choice(xp, call.for_method(method), tries=True)[0]

    def _choice(self, xp: Any, call: Checked, *, tries: bool) -> tuple[str | None, dict[str, str], str | None]:
        """Return the method that ``auto`` takes, its reasons against others, and a method that fails only in the trial.

        ``auto`` takes the first method that can compute the call and is not slower than others; if there is none, the
        first that can compute the call; None if every method refuses. ``canonical`` takes the first that can compute
        the call and groups elements canonically. With ``tries``, functions of the caller's are first tried on a few
        elements.
        """
        spare, fails = [], None
        passed: dict[str, str] = {}
        for name in self._methods:
            reason, kind = self._reason(name, xp, call, tries=tries)
            if reason is None:
                return name, passed, None
            if kind == "slower":
                spare.append(name)
            elif kind == "fails":
                fails = fails or name
            passed[name] = reason
        for name in spare:
            refused = _refused(self._methods[name], xp, call)
            if refused is None:
                del passed[name]
                return name, passed, fails
            passed[name] = refused
        return None, passed, fails

    def _reason(self, name: str, xp: Any, call: Checked, *, tries: bool) -> tuple[str | None, str]:
        """Return the reason why ``auto`` or ``canonical`` passes over a method, or None, and the kind of the reason."""
        method = self._methods[name]
        reason = self.departs(name, xp, call) if call.canonical else None
        if reason is not None:
            return reason, "departs"
        with believing() as believed:
            reason = _refused(method, xp, call)
        if reason is not None:
            return reason, "refused"
        # The refusal of a kernel has read these functions. Programs of JAX also hold their operations, for other
        # devices.
        if tries and (name != "kernel" or (is_jax(xp) and not _is_outside(method, name, xp, call))):
            reason = call.trial(xp)
            if reason is not None:
                return reason, "fails"
        reason = method.slower(xp, call) if method.slower and not call.canonical else None
        if reason is None and believed:
            return _refused(method, xp, call), "refused"
        return reason, "slower"

    def _list(self, xp: Any, call: Checked, *, named: bool, tries: bool) -> dict[str, str | None]:
        """Return for each method the reason why ``auto`` passes over it, or with ``named`` its refusal."""
        if named:
            return {name: _refused(method, xp, call) for name, method in self._methods.items()}
        taken, passed, _ = self._choice(xp, call, tries=tries)
        return {
            name: None if name == taken else passed.get(name) or self._reason(name, xp, call, tries=tries)[0]
            for name in self._methods
        }

    def __call__(self, method: str, xp: Any, call: Checked) -> Any:
        """Compute with the named method, or with the first that ``auto`` or ``canonical`` finds."""
        self.check(method)
        if isinstance(method, Abstract):
            return call.empty(xp)
        present, call = observers.get(), call.for_method(method)
        if present.listing:
            raise CallEnded(self._list(xp, call, named=present.named, tries=present.tries))
        refusals: dict[str, str] = {}
        if method in _CHOOSING:
            taken, refusals, fails = self._choice(xp, call, tries=True)
            if taken is None and fails is not None:  # the error of the caller's function is the best message
                taken = fails
                del refusals[fails]
            if taken is None:
                reasons = "; ".join(f"{name!r}: {reason}" for name, reason in refusals.items())
                raise MethodRefused(
                    f"{self.primitive}: every method refused: {reasons}{_ELSE if call.canonical else ''}"
                )
            name, implementation = taken, self._methods[taken]
        else:
            name, implementation = method, self._methods[method]
            reason = _refused(implementation, xp, call)
            if reason is not None:
                raise MethodRefused(f"{self.primitive}: method {method!r} refused: {reason}")
        if present.launching and name != "kernel":
            raise CallEnded({})
        placed_later = is_jax(xp) and any(map(is_placed_later, call.arrays))
        if placed_later and call.canonical:
            raise MethodRefused(f"{self.primitive}: method 'canonical' refused: {SPLIT}")
        entry = Call(self.primitive, name, refusals, not placed_later and self.departs(name, xp, call) is None)
        for calls in present.calls:
            calls.append(entry)
        if present.choosing:
            raise CallEnded({})
        with quiet(xp):
            with noting() as kernels:
                run = implementation.prepare(xp, call)
            if implementation.derivative is not None:
                run = implementation.derivative(xp, call, run, method)
            if is_jax(xp) and not present.launching and not _is_outside(implementation, name, xp, call):
                program = self._program_of_numbers(implementation, name, xp, call, kernels=kernels)
                run = self._program(run, name, call) if program is None else program
            if placed_later:
                run = self._partitioned(run, name, call)
            kinds = autocast(xp)
            with without_autocast(kinds) if kinds else contextlib.nullcontext():
                result = rehearsed(run, *call.arrays) if implementation.rehearsed else run(*call.arrays)
            if call.key is not None:
                asked = implementation.quiet
                silent = asked if isinstance(asked, bool) else asked(xp, call)
                later = quietly(run) if library(xp) == "numpy" and not silent else run
                if call.complete is not None:
                    later = completed(later, call.complete)
                prepared.keep(call.key, Prepared(later, entry))
        return raise_if_nan(self.primitive, xp, result)

    def _partitioned(self, run: Callable[..., Any], name: str, call: Checked) -> Callable[..., Any]:
        """Return ``run`` for JAX arrays whose split XLA decides when it compiles the program."""
        partitioned: Callable[..., Any] | None = registry.devices().placed_later(self.primitive, name, call, run)
        if partitioned is None:
            raise MethodRefused(
                f"{self.primitive}: the arrays are in a program over a mesh with axes of type Auto, where XLA would "
                "gather them without a word: give the mesh axes of type Explicit, or call inside jax.shard_map"
            )
        return partitioned

    def _program_of_numbers(
        self, method: Method, name: str, xp: Any, call: Checked, *, kernels: dict[Any, tuple[int, ...] | None]
    ) -> Callable[..., Any] | None:
        """Return a program of JAX arrays that takes the numbers of the caller's functions as parameters, or None."""
        arrays, options = signature(call.arrays), call.options(*_NOT_PLAIN, "fn")
        if arrays is None or options is None or not hasattr(call, "operation"):
            return None
        if name == "kernel" and not any(kernels.values()):
            return None
        key = self.primitive, name, arrays, options
        return shared(call, key, prepare=lambda call: method.prepare(xp, call), hidden=unwatched, kernels=kernels)

    def _program(self, run: Callable[..., Any], name: str, call: Checked) -> Callable[..., Any]:
        """Return ``run`` for JAX arrays, compiled as one program if the program can be found again.

        Single operations take up to a thousand times as long. So do transformations outside of jit, where the
        derivative of each operation would be compiled in every call.
        """
        options, arrays = call.described(), signature(call.arrays) or traced_signature(call.arrays)
        if options is None or arrays is None:
            return run if call.key is None else one_program(run)
        key = self.primitive, name, arrays, options
        return _programs.get(key) or _programs.keep(key, one_program(run))


def _refused(method: Method, xp: Any, call: Checked) -> str | None:
    """Return the refusal of a method for a call, or None."""
    return method.refusal(xp, call) if method.refusal else None


def _is_outside(method: Method, name: str, xp: Any, call: Checked) -> bool:
    """Return whether a method computes JAX arrays outside of a program, as kernels for CPUs do."""
    if method.eager is not None:
        return method.eager(xp, call)
    return name == "kernel" and _cpu.on_cpu(xp, call.arrays)


def explain(*arguments: Never) -> contextlib.AbstractContextManager[list[Call]]:
    """Record a `Call` for each primitive computed inside the block.

    Returns
    -------
    context manager of a list of Call
        The list grows as primitives are called; each entry has the primitive, the method taken and the reasons why
        earlier methods were passed over.

    Raises
    ------
    TypeError
        If it is given a function or arrays.

    See Also
    --------
    methods : List the methods of a call without computing it.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> with parprims.explain() as calls:
    ...     total = parprims.sum(np.arange(5.0))
    >>> calls[0].method
    'native'
    >>> list(calls[0].refusals)
    ['kernel']
    """
    if arguments:
        raise TypeError(
            "explain takes no arguments: write `with explain() as calls:` and make the calls inside; "
            "methods(function, *arguments) lists the methods of one call"
        )
    return _explaining()


@contextlib.contextmanager
def _explaining() -> Iterator[list[Call]]:
    calls: list[Call] = []
    with observed_by(calls=(*observers.get().calls, calls)):
        yield calls


def methods(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> dict[str, str | None]:
    """List the methods that a call could take, in the order ``auto`` tries them; nothing is computed.

    Parameters
    ----------
    function : callable
        A primitive of this library.
    *args, **kwargs
        The call's arguments.

    Returns
    -------
    dict of str to (str or None)
        For each method the reason why ``auto`` would pass over it, or None if it could compute the call.

    Raises
    ------
    TypeError
        If function is no primitive of this library. An invalid call raises the errors of the function.

    See Also
    --------
    explain : Record the methods of the calls in a block.
    compare : Time the methods of a call.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> found = parprims.methods(parprims.sum, np.arange(5.0))
    >>> [name for name, reason in found.items() if reason is None]
    ['native', 'array']
    """
    if not callable(function):
        raise TypeError(f"function must be a primitive of parprims, got {repr_short(function)}")
    return reasons(function, *args, named=False, tries=True, **kwargs)


def reasons(
    function: Callable[..., Any], /, *args: Any, named: bool, tries: bool = False, **kwargs: Any
) -> dict[str, str | None]:
    """Return for each method of a call the reason why ``auto`` would pass over it, or with ``named`` its refusal.

    With ``tries``, functions of the caller's are tried on a few elements.
    """
    with observed_by(listing=True, named=named, tries=tries):
        try:
            function(*args, **kwargs)
        except CallEnded as ended:
            listed_methods: dict[str, str | None] = ended.args[0]
            return listed_methods
    home, name = (getattr(function, attribute, None) for attribute in ("__module__", "__name__"))
    got = f"{home}.{name}" if home and name else repr_short(function)
    raise TypeError(f"function must be a primitive of parprims, got {got}")
