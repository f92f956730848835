"""What the documents show is what the library does."""

import ast
import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import parprims

README = Path(__file__).parents[1] / "README.md"


def test_readme_examples():
    # A line that is an expression with a comment after it shows the expression's value.
    text = README.read_text()
    shown = 0
    names: dict[str, Any] = {}
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        lines = block[1].splitlines()
        first = text[: block.start()].count("\n") + 2
        for node in ast.parse(block[1]).body:
            ast.increment_lineno(node, first - 1)
            comment = lines[node.end_lineno - first].partition("  # ")[2]
            if isinstance(node, ast.Expr) and comment:
                value = eval(compile(ast.Expression(node.value), README, "eval"), names)
                assert repr(value) == comment, f"README.md, line {node.end_lineno}"
                shown += 1
            else:
                exec(compile(ast.Module([node], []), README, "exec"), names)
    assert shown


@pytest.mark.parametrize("module", sorted({getattr(parprims, name).__module__ for name in parprims.__all__}))
def test_docstring_examples(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0
