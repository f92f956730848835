"""The largest error of every primitive, dtype, method and backend over the bound of the check that found it.

``pytest --record-errors FILE`` writes them.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

KEY = ("primitive", "dtype", "method", "backend")


class Errors:
    """The largest errors of the checks of a run, over their bounds, where a run is asked to record them.

    A check knows the arrays it compares and `run` knows which call they came from; what a test derives from its
    results (a part of one, a gradient) goes to the account of the one primitive and method that the test called.
    """

    def __init__(self) -> None:
        self.on = False
        self._rows: dict[tuple[str, ...], dict[str, Any]] = {}
        self._results: list[tuple[Any, tuple[str, str]]] = []
        self._calls: set[tuple[str, str]] = set()
        self._test = ""

    def begin(self, test: str) -> None:
        """Forget the calls of the test before."""
        self._results, self._calls, self._test = [], set(), test

    def ran(self, call: Any, result: Any) -> None:
        """Remember which primitive and method a result came from."""
        if not self.on:
            return
        who = (call.primitive, call.method)
        self._calls.add(who)
        ones = result if isinstance(result, tuple) else (result,)
        for one in ones:
            try:  # a result is not kept alive: tests of memory count what is
                self._results.append((weakref.ref(one), who))
            except TypeError:
                if isinstance(one, np.generic):
                    self._results.append((lambda one=one: one, who))

    def note(self, backend: Any, result: Any, dtype: str, error: Any = 0.0, bound: Any = 0.0) -> None:
        """Record the error of a check beside its bound; a bound of 0 asks for the exact result."""
        if not self.on:
            return
        who = next((who for one, who in reversed(self._results) if one() is result), None)
        if who is None and len(self._calls) == 1:
            (who,) = self._calls
        if who is not None:
            self.add(*who, dtype, backend.name, error, bound)

    def add(self, primitive: str, method: str, dtype: str, backend: str, error: Any, bound: Any) -> None:
        """Record an error and its bound, elementwise, under the names given."""
        if not self.on:
            return
        error, bound = np.broadcast_arrays(np.asarray(error, np.float64), np.asarray(bound, np.float64))
        with np.errstate(all="ignore"):
            ratios = np.where(error == 0, 0.0, error / bound)  # infinite where an exact result is not
        row = {
            **dict(zip(KEY, (primitive, dtype, method, backend), strict=True)),
            "checks": 1,
            "exact": int(not np.any(bound > 0)),
            "ratio": float(np.max(ratios, initial=0.0)),
            "test": self._test,
        }
        self.join([row])

    def join(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take over rows recorded elsewhere."""
        for row in rows:
            key = tuple(row[name] for name in KEY)
            known = self._rows.setdefault(key, {**row, "checks": 0, "exact": 0})
            worst = row if row["ratio"] > known["ratio"] else known
            counts = {name: known[name] + row[name] for name in ("checks", "exact")}
            self._rows[key] = {**worst, **counts}

    def records(self) -> list[dict[str, Any]]:
        """Return the rows, sorted."""
        return [self._rows[key] for key in sorted(self._rows)]

    def write(self, path: Path, header: Mapping[str, Any] | None = None) -> None:
        """Write the rows, one to a line, with what ran them."""
        rows = self.records()
        lines = ",\n    ".join(json.dumps(one) for one in rows)
        head = json.dumps(header or _header({one["backend"] for one in rows}))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{\n  "header": {head},\n  "records": [\n    {lines}\n  ]\n}}\n')


errors = Errors()


class Recorder:
    """The plugin of pytest that records a run's errors, in one process or in those of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        errors.on = True

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        errors.begin(item.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        errors.join(getattr(node, "workeroutput", {}).get("errors", []))

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["errors"] = errors.records()
        else:
            errors.write(Path(self._config.getoption("--record-errors")))


def _header(backends: set[str]) -> dict[str, Any]:
    """Return the device, versions, commit and date of a run on these backends."""
    import datetime

    from benches.core import records
    from examples.backends import gpu_name

    cuda = bool(backends & {"cupy", "torch-cuda", "jax-cuda"})
    return {
        "device": gpu_name() if cuda else "CPU",
        "versions": records.versions(cuda),
        "commit": records.commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
