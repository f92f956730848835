"""Check the public docstrings: python -m tests.checks.docstrings.

They keep the rules of numpydoc that pyproject.toml names. The line of a parameter's type names its default. Functions
have the sections Returns, Raises, See Also and Examples, and examples of these parameters: axis, offsets, op, reverse.
"""

import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numpydoc.validate import get_validation_checks, validate

import parprims

SHOWN = {"axis": r"\baxis=", "offsets": r"\boffsets=", "op": r"\blambda|Operator\(", "reverse": r"\breverse="}
"""Parameters that the examples must show, and what they then contain."""


def faults(function: Callable[..., Any]) -> Iterator[str]:
    """Yield a sentence for each default, section and example that a function's docstring lacks."""
    text = inspect.getdoc(function) or ""
    parts = re.split(r"^(\w[\w ]*)\n-{4,}$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    lines = re.findall(r"^(\w+(?:, \w+)*) : (.*)$", sections.get("Parameters", ""), re.MULTILINE)
    types = {name: kind for names, kind in lines for name in names.split(", ")}
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        default = parameter.default
        if default is not parameter.empty and name in types and (function, name) != (parprims.launches, "function"):
            shown = f'default "{default}"' if isinstance(default, str) else f"default {default}".replace("'", '"')
            if shown not in types[name] and not (default is None and types[name].endswith(", optional")):
                yield f"the type of {name} lacks {shown}"
    yield from (f"there is no section {name}" for name in ("Returns", "Raises", "See Also") if name not in sections)
    for name, pattern in SHOWN.items():
        if name in parameters and not re.search(pattern, sections.get("Examples", "")):
            yield f"no example of {name}"


def main() -> int:
    """Print what breaks a rule; return how much does."""
    config = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["numpydoc_validation"]
    checks = get_validation_checks(set(config["checks"]))
    errors = 0
    for name in parprims.__all__:
        report = validate(f"parprims.{name}")
        for code, sentence in report["errors"]:
            if code in checks:
                print(f"{report['file']}:{report['file_line']}: parprims.{name}: {code} {sentence}")
                errors += 1
        if inspect.isfunction(function := getattr(parprims, name)):
            for sentence in faults(function):
                print(f"{report['file']}:{report['file_line']}: parprims.{name}: {sentence}")
                errors += 1
    print(f"{len(parprims.__all__)} public docstrings, {errors} errors")
    return errors


if __name__ == "__main__":
    sys.exit(min(main(), 1))
