"""Check the public docstrings by the rules of numpydoc that pyproject.toml names: python -m tests.checks.docstrings."""

import sys
import tomllib
from pathlib import Path

from numpydoc.validate import get_validation_checks, validate

import parprims


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
    print(f"{len(parprims.__all__)} public docstrings, {errors} errors")
    return errors


if __name__ == "__main__":
    sys.exit(min(main(), 1))
