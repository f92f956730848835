"""The ways of the kernels' templates that a run of the emulated tests has reached, and those it has to reach.

A way is a template with those of its arguments that are words, and what its text distinguishes of the numbers among
them (`_PARTS`). The element type is left out, and of how several arrays lie in memory only which kinds there are. What
the text before a kernel defines (`_TEXT`) makes ways of its own.

`pytest --backend emulated --promise ways` fails if a way that `compile_kernels.py` lists was reached by no test, and
is not in `UNREACHED`. Run by itself, ``python -m tests.ways``, this file lists what has to be reached.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from parprims import _cuda

_CALL = re.compile(
    r"\b((?:reduce|scan|solve|shorten|lengthen|expand|mend|join|finish|multiply|pack)_\w+|count_digits|Sorted\w+)<"
)
_LIES = ("APART", "SAME", "VECTORS")
# The arguments of which it matters whether they are 1, at most a warp, or more. Of products those before a truth value
# are lengths of vectors, of which it matters whether they are 1; others are sizes. Of other numbers: 0, 1, or more.
_PARTS = {
    "reduce_short_rows": (1,),
    "reduce_columns": (0, 1),
    "scan_rows": (1,),
    "scan_columns": (0, 1),
    "solve_in_order": (2,),
    "solve_exchanging": (2,),
    "solve_systems": (2,),
    "solve_top": (2,),
    "solve_short": (2,),
    "SortedRows": (1,),
}
_TEXT = re.compile(r"\b(COMMUTATIVE|EXCLUSIVE|STARTS|PEEKS|FALLING|SEGMENTS|KIND) = (\w+)")

UNREACHED: dict[str, str] = {}
"""Ways that no emulated test reaches, with the reason."""

reached: set[str] = set()


def ways(plan: _cuda.Plan) -> Iterator[str]:
    """Yield the ways of the templates that one launch takes; none for a kernel that is not the library's."""
    found = _CALL.search(plan.body)
    if not found:
        return
    name, arguments = found[1], list(_arguments(plan.body[found.end() :]))
    kinds = sorted({one for one in arguments if one in _LIES})
    words = []
    for at, (one, following) in enumerate(itertools.pairwise([*arguments, ""])):
        if not one.isdigit():
            if one not in _LIES and not re.match(r"float|double|Complex<", one):
                words.append(one)
        elif at in _PARTS.get(name, ()) and int(one) > 1:
            words.append("few" if int(one) <= 32 else "many")
        elif following in ("true", "false") or not name.startswith("multiply"):
            words.append(one if int(one) <= 1 else "more")
    yield f"{name}<{', '.join([*words, *(['/'.join(kinds)] if kinds else [])])}>"
    for constant, value in _TEXT.findall(plan.source):
        yield f"{name}, {constant} = {value}"


def _arguments(text: str) -> Iterator[str]:
    """Yield the template arguments with which a text begins."""
    depth, begin = 1, 0
    for at, letter in enumerate(text):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if depth == 0 or (depth == 1 and letter == ","):
            yield text[begin:at].strip()
            begin = at + 1
        if depth == 0:
            return


def wanted() -> set[str]:
    """Return the ways that the library can ask for."""
    from tests import compile_kernels as kernels

    plans: Iterable[Any] = itertools.chain(
        kernels.reductions(), kernels.scans(), kernels.solves(), kernels.sorts(), kernels.products()
    )
    return {way for _, plan in plans for way in ways(plan)}


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
