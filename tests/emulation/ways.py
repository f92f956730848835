"""The ways of the kernels' templates that a run of the emulated tests has reached, and those it has to reach.

A way is a template with those of its arguments that are words, and what its text distinguishes of the numbers among
them (`_PARTS`). The element type is left out, and of how several arrays lie in memory only which kinds there are. What
the text before a kernel defines (`_TEXT`) makes ways of its own.

`pytest --backend emulated --promise ways` fails if a way that `compile_kernels.py` lists was reached by no test, and
is not in `UNREACHED`. Run by itself, ``python -m tests.emulation.ways``, this file lists what has to be reached.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest

from parprims._cuda.plan import expression

_ACCESS = ("STRIDED", "CONSTANT", "ASCENDING")
# The arguments of which it matters whether they are 1, at most a warp, or more. Of products those before a truth value
# are lengths of vectors, of which it matters whether they are 1; others are sizes. Of other numbers: 0, 1, or more.
_PARTS = {
    "reduce_lines": (1, 2, 3),
    "scan_rows": (1,),
    "scan_columns": (0, 1),
    "solve_in_order": (2,),
    "solve_exchanging": (2,),
    "sort_rows": (1,),
    "solve_stable": (2,),
    "reduce_in_order": (2,),
    "solve_reduced_in_order": (2,),
    "expand_in_order": (2,),
    "reduce_exchanging": (2,),
    "solve_reduced_exchanging": (2,),
    "expand_exchanging": (2,),
}
_TEXT = re.compile(r"\b(COMMUTATIVE|EXCLUSIVE|STARTS|PEEKS|DESCENDING|KIND) = (\w+)")

UNREACHED: dict[str, str] = {}
"""Ways that no emulated test reaches, with the reason."""

reached: set[str] = set()


def ways(launch: Any) -> Iterator[str]:
    """Yield the ways of the templates that one launch takes; none for a kernel that is not the library's."""
    name, arguments = launch.template, list(map(expression, launch.arguments))
    if not name or name.startswith("sweep"):
        return
    kinds = sorted({one for one in arguments if one in _ACCESS})
    words = []
    for at, (one, following) in enumerate(itertools.pairwise([*arguments, ""])):
        if not one.isdigit():
            one = re.sub(r"^((?:compaction|filters)::\w+)<.*", r"\1", one)  # of what types the elements and counts are
            if one not in _ACCESS and not re.match(r"float|double|Complex<", one):
                words.append(one)
        elif at in _PARTS.get(name, ()) and int(one) > 1:
            words.append("few" if int(one) <= 32 else "many")
        elif following in ("true", "false") or not name.startswith("multiply"):
            words.append(one if int(one) <= 1 else "more")
    yield f"{name}<{', '.join([*words, *(['/'.join(kinds)] if kinds else [])])}>"
    for constant, value in _TEXT.findall(launch.source):
        yield f"{name}, {constant} = {value}"


def wanted() -> set[str]:
    """Return the ways that the library can ask for."""
    from tests.checks import compile_kernels as kernels

    return {way for _, plan in kernels.plans() for launch in plan.launches for way in ways(launch)}


def lacking() -> list[str]:
    """Return what is wrong with the ways reached."""
    missing = [f"no test reaches {way}" for way in sorted(wanted() - reached - UNREACHED.keys())]
    return missing + [f"{way} is reached, and yet in UNREACHED" for way in sorted(reached & UNREACHED.keys())]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a process of pytest-xdist has reached."""
    reached.update(getattr(node, "workeroutput", {}).get("ways", ()))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Hand over what was reached, or fail if that is not enough."""
    config: Any = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["ways"] = sorted(reached)
    elif "ways" in config.getoption("--promise") and exitstatus == pytest.ExitCode.OK and lacking():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the ways that were promised and not reached."""
    if "ways" in terminalreporter.config.getoption("--promise"):
        for line in lacking():
            terminalreporter.write_line(f"promised ways: {line}", red=True)


if __name__ == "__main__":
    print(*sorted(wanted()), sep="\n")
