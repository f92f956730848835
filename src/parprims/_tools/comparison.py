"""Comparison of the methods by their times for a call."""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from parprims._dispatch.dispatch import methods, primitives, reasons

_SAMPLE = 0.005
"""The seconds that a sample takes at least: several calls where one is short, so that the clock is read seldom."""
_BUDGET = 0.2
"""The seconds for which a method is timed, in samples that take turns with those of the others."""
_SAMPLES = 3, 30
"""The fewest and the most samples of a method."""
_LONG = 1.0
"""The seconds of a call from which one is enough."""


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """The measurements of `compare`; printed, they are a table.

    Parameters
    ----------
    call : str
        The call in words.
    seconds : mapping of str to float
        For each method that can compute the call, the median time of a call in seconds.
    refusals : mapping of str to str
        For each other method, the reason why it cannot compute the call.
    auto : str
        The method that ``auto`` takes.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> found = parprims.compare(parprims.sum, np.ones(1000))
    >>> found.auto in found.seconds
    True
    """

    call: str
    seconds: Mapping[str, float]
    refusals: Mapping[str, str]
    auto: str

    @property
    def best(self) -> str:
        """The fastest method."""
        return min(self.seconds, key=self.seconds.__getitem__)

    def __str__(self) -> str:
        best = self.seconds[self.best]
        rows = [("method", "time", "over the best", "")]
        for name in sorted(self.seconds, key=self.seconds.__getitem__):
            one = self.seconds[name]
            rows.append((name, si(one, "s"), f"{one / best:.2f}", "taken by auto" if name == self.auto else ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        lines += [f"{name} refuses: {reason}" for name, reason in self.refusals.items()]
        return "\n".join((self.call, *lines))

    __repr__ = __str__


def compare(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Comparison:
    """Time every method that can compute a call.

    Parameters
    ----------
    function : callable
        A primitive of this library.
    *args, **kwargs
        The call's arguments, without ``method``.

    Returns
    -------
    Comparison
        The median time of each method, and the refusals of the others. Printed, it is a table.

    Raises
    ------
    TypeError
        If function is no primitive of this library, or ``method`` is given.

    See Also
    --------
    methods : List the methods of a call without computing it.
    explain : Record the methods of the calls in a block.

    Notes
    -----
    A time covers a whole call from Python until the result exists. On a GPU several calls are queued, and the clock
    stops when the device has finished the last. The first call of each method, which may compile, is not counted.
    A method is timed for about 0.2 s, in turn with the others. If its call takes more than a second it is timed once.
    A method that raises, for instance for lack of memory, is listed among the refusals with its error.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> print(parprims.compare(parprims.sort, np.arange(1000)))  # doctest: +SKIP
    sort(int64[1000]) of numpy
    method  time     over the best
    native  3.01 us  1.00           taken by auto
    kernel  5.96 us  1.98
    array   1.88 ms  624.58
    """
    if "method" in kwargs:
        raise TypeError("method must not be given: compare times every one")
    by_auto = methods(function, *args, **kwargs)
    auto = next((name for name, reason in by_auto.items() if reason is None), None)
    if auto is None:
        function(*args, **kwargs)  # which raises, and says why every method refuses
        raise AssertionError("a call succeeded that every method refuses")
    named = reasons(function, *args, named=True, **kwargs)
    refusals = {name: reason for name, reason in named.items() if reason is not None}
    timed: list[_Timed] = []
    for name in (one for one in named if one not in refusals):
        try:
            timed.append(_Timed(name, _caller(function, args, {**kwargs, "method": name})))
        except Exception as error:
            if name == auto:
                raise
            refusals[name] = f"raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    for _ in range(_SAMPLES[1]):
        for one in timed:
            one.sample()
    return Comparison(_described(function, args), {one.name: one.seconds for one in timed}, refusals, auto)


def _caller(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    return lambda: function(*args, **kwargs)


class _Timed:
    """A method with the samples of its time. Its first call is made at once, and not counted unless it is long."""

    def __init__(self, name: str, call: Callable[[], Any]) -> None:
        self.name, self._call, self._queues = name, call, False
        first = self._seconds(1)
        self._queues = _on_gpu(self._last)
        # The first call may compile, and a second one may still allocate.
        self._samples: list[float] = []
        once = min(self._seconds(1), self._seconds(1)) if first < _LONG else self._seconds(1)
        self._calls = max(1, math.ceil(_SAMPLE / max(once, 1e-7)))
        if once >= _LONG:
            self._samples.append(once)
        low, high = _SAMPLES
        self._wanted = 1 if once >= _LONG else min(high, max(low, int(_BUDGET / (self._calls * once))))

    def _seconds(self, calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            self._last = self._call()
            if not self._queues:  # the threads of a CPU would compute several at a time
                _wait(self._last)
        _wait(self._last)
        return (time.perf_counter() - began) / calls

    def sample(self) -> None:
        """Time the method once more, if there are not enough samples."""
        if len(self._samples) < self._wanted:
            self._samples.append(self._seconds(self._calls))

    @property
    def seconds(self) -> float:
        """The median of the samples."""
        return statistics.median(self._samples)


def _wait(result: Any) -> None:
    """Wait until an array, or all in a tuple, is computed."""
    leaves = [*_leaves(result)]
    homes = {type(one).__module__.partition(".")[0] for one in leaves}
    if homes & {"jax", "jaxlib"}:
        sys.modules["jax"].block_until_ready(leaves)
    if "torch" in homes:
        for place in {one.device for one in leaves if getattr(one, "is_cuda", False)}:
            sys.modules["torch"].cuda.synchronize(place)
    if "cupy" in homes:
        sys.modules["cupy"].cuda.get_current_stream().synchronize()


def _on_gpu(result: Any) -> bool:
    """Return whether an array, or one in a tuple, is on a GPU."""
    for one in _leaves(result):
        home = type(one).__module__.partition(".")[0]
        if home == "cupy" or getattr(one, "is_cuda", False):
            return True
        if home in ("jax", "jaxlib") and any(place.platform != "cpu" for place in one.devices()):
            return True
    return False


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, Mapping):
        yield from _leaves([*value.values()])
    else:
        yield value


def _described(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Return a call in words: the function, and of its arrays dtypes, shapes and library."""
    arrays = [one for one in _leaves(args) if hasattr(one, "dtype") and hasattr(one, "shape")]
    words = [f"{str(one.dtype).rpartition('.')[2]}[{', '.join(map(str, one.shape))}]" for one in arrays]
    name = next((name for name, one in primitives.items() if one is function), getattr(function, "__name__", "call"))
    home = type(arrays[0]).__module__.partition(".")[0] if arrays else ""
    return f"{name}({', '.join(words)})" + (f" of {home.replace('jaxlib', 'jax')}" if home else "")


def si(value: float, unit: str) -> str:
    """Return a number with three digits and the SI prefix that suits it."""
    if value <= 0:
        return f"0 {unit}"
    power = min(4, max(-3, math.floor(math.log10(value * 1.0005) / 3)))
    scaled = value / 1000.0**power
    digits = max(0, 2 - math.floor(math.log10(scaled * 1.0005)))
    return f"{scaled:.{digits}f} {['n', 'u', 'm', '', 'k', 'M', 'G', 'T'][power + 3]}{unit}"
