"""The clock: contenders of a case are timed in turn, so that whatever the machine does happens to all of them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from examples.backends import Backend


@functools.cache
def _cache_flush(backend: Backend) -> Callable[[], Any]:
    """Return what reads 1 GiB: the caches then hold nothing of the inputs, and the host can queue the next call."""
    return backend.asarray(np.zeros(2**28, np.float32)).sum


@dataclasses.dataclass
class Contender:
    """One backend and method (or peer) in one case, with its inputs and the times taken so far."""

    backend: Backend
    method: str
    call: Callable[..., Any]
    inputs: list[tuple[Any, ...]]
    seconds: list[float] = dataclasses.field(default_factory=list)

    def timed_by_events(self, whole_call: bool) -> bool:
        """Return whether device events time the calls, and not the host's clock."""
        return self.backend.event is not None and not whole_call

    def sample(self, calls: int, whole_call: bool) -> float:
        """Return the seconds of one call: the mean of several by the host's clock, or one by device events."""
        backend = self.backend
        if self.timed_by_events(whole_call):
            start, end = backend.event(), backend.event()
            _cache_flush(backend)()
            start.record()
            self.call(*self.inputs[0])
            end.record()
            end.synchronize()
            return backend.elapsed(start, end) / 1e3
        inputs = list(itertools.islice(itertools.cycle(self.inputs), calls))
        began = time.perf_counter()
        for arrays in inputs:
            result = self.call(*arrays)
            if not backend.cuda:  # a CPU would run several at a time
                backend.wait(result)
        backend.wait(result)
        return (time.perf_counter() - began) / calls


def interleave(contenders: list[Contender], whole_call: bool, budget: float, long: float = 2.0) -> None:
    """Time contenders in turn, each for about ``budget`` seconds in all: 3 to 30 times, once if a call is ``long``."""
    plans = []
    for one in contenders:
        # The first call may wait for much that the others do not, and short calls are timed by several in a row.
        first = one.sample(1, whole_call)
        first = first if first > 0.1 else min(first, one.sample(1, whole_call), one.sample(1, whole_call))
        # Enough calls between two looks at the clock to make waiting for the device a small part of the time.
        least = 0.02 if one.backend.cuda and not whole_call else 0.005
        calls = 1 if one.timed_by_events(whole_call) else math.ceil(min(1000, least / max(first, 1e-7)))
        turns = 1 if first > long else min(30, max(3, int(budget / max(calls * first, 1e-7))))
        plans.append((one, calls, turns))
        one.seconds = [first] if calls == 1 else []
    for _ in range(30):
        for one, calls, turns in plans:
            if len(one.seconds) < turns:
                one.seconds.append(one.sample(calls, whole_call))
