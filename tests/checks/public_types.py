"""Check the public types with mypy and with pyright: errors where uses_of_types.py says so, and completeness.

``python -m tests.checks.public_types`` prints what differs and ends with 1 if anything does.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

USES = Path(__file__).with_name("uses_of_types.py")
COMPLETE = 0.95
"""The share of public names whose types pyright must find known."""


def expected(text: str) -> set[int]:
    """Return the lines that are to be errors."""
    return {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# wrong")}


def by_mypy(output: str) -> dict[int, str]:
    """Return the errors that mypy printed, by line."""
    found = re.findall(rf"^.*{re.escape(USES.name)}:(\d+): error: (.*)$", output, re.MULTILINE)
    return {int(number): told for number, told in found}


def by_pyright(output: str) -> dict[int, str]:
    """Return the errors in pyright's report, by line."""
    reports = json.loads(output)["generalDiagnostics"]
    return {one["range"]["start"]["line"] + 1: one["message"] for one in reports if one["severity"] == "error"}


def completeness(output: str) -> float:
    """Return the share of the public symbols whose types are known in pyright's report."""
    found: float = json.loads(output)["typeCompleteness"]["completenessScore"]
    return found


def differences(name: str, errors: dict[int, str], wanted: set[int]) -> list[str]:
    """Return what a checker found that is right, and what it did not find."""
    more = [f"{name}: line {line}: {told}" for line, told in sorted(errors.items()) if line not in wanted]
    return more + [f"{name}: line {line}: no error" for line in sorted(wanted - {*errors})]


def run(*command: str) -> str:
    """Return what a checker prints."""
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"{command[0]} fails: {done.stderr}")
    return done.stdout


def main() -> int:
    """Run both checkers; return the exit status."""
    wanted = expected(USES.read_text())
    wrong = differences("mypy", by_mypy(run("mypy", "--no-error-summary", str(USES))), wanted)
    wrong += differences("pyright", by_pyright(run("pyright", "--outputjson", str(USES))), wanted)
    score = completeness(run("pyright", "--outputjson", "--ignoreexternal", "--verifytypes", "parprims"))
    if score < COMPLETE:
        wrong.append(f"pyright: the types of {score:.1%} of the public names are known")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(wanted)} wrong calls, completeness {score:.1%}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
