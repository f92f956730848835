"""PyTorch's compiler: every public function is one node of its graphs, forward and backward."""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import parprims
from parprims._dispatch.primitive import declared
from tests.on_torch import test_torch
from tests.on_torch.test_torch import (
    CASES,
    _flags,
    arguments,
    every_case,
    loop,
    mapped,
    outcome,
    results,
    value,
    warnings_of_its_own,
)
from tests.support.contract import random

ROOT = Path(__file__).parents[2]

torch = test_torch.torch
_torch_alone = test_torch._torch_alone


def _scaled(a, b):
    return (a + b) * settings.scale


class settings:  # noqa: N801
    """What an operator reads and a test changes."""

    scale = 1.0


class Pair(NamedTuple):
    """An element of two arrays."""

    a: Any
    b: Any


def _pairs(earlier, later):
    return Pair(earlier.a * later.a, earlier.b * later.a + later.b)


def _in_place(a, b):
    a += b
    return a


class _Importing(types.ModuleType):
    """A module that imports another when it is looked at, as some do that load their parts late."""

    @property
    def __class__(self):
        sys.modules.setdefault(f"{self.__name__}.part{len(sys.modules)}", types.ModuleType("part"))
        return types.ModuleType


class TestCompile:
    @pytest.fixture(autouse=True)
    def _anew(self):
        torch._dynamo.reset()

    def test_modules_that_import_others(self, backend, monkeypatch):
        """The compiler does not go through all modules, for one may import another when it is looked at."""
        monkeypatch.setitem(sys.modules, "parprims_imports_late", _Importing("parprims_imports_late"))
        before = set(sys.modules)
        try:
            x = backend.asarray(np.arange(12, dtype=np.float32).reshape(3, 4))
            for function in (
                lambda x: parprims.sum(x, axis=0),
                lambda x: parprims.scan(x, lambda a, b: a + b + a * b, axis=0),
                lambda x: parprims.map_reduce(lambda y: y - 1, x, op=lambda a, b: a + b + a * b, axis=1),
                lambda x: parprims.matmul(x, x.mT, add=lambda a, b: a + b, multiply=lambda a, b: a * b),
            ):
                compiled = torch.compile(function, backend="eager", fullgraph=True)
                torch.testing.assert_close(compiled(x), function(x))
        finally:
            for name in set(sys.modules) - before:
                if name.startswith("parprims_imports_late"):
                    del sys.modules[name]

    @every_case
    def test_one_node(self, backend, rng, case):
        """One graph, with one node for the call, gives the values, derivatives and method of the call itself."""
        from torch._dynamo.backends.registry import lookup_backend

        function, arrays = CASES[case][0], arguments(backend, rng, case)
        nodes = []

        def keep(graph, inputs):
            nodes.append(sum("parprims" in str(node.target) for node in graph.graph.nodes))
            return lookup_backend("aot_eager")(graph, inputs)

        compiled = torch.compile(function, backend=keep, fullgraph=True)
        outcomes, methods = [], []
        for call in (function, compiled):
            with parprims.explain() as calls:
                outcomes.append(outcome(call, arrays))
            methods.append(calls[0])
        torch.testing.assert_close(outcomes[1], outcomes[0])
        if backend.cuda:  # only inside of the graph can a kernel serve where a derivative is asked for
            assert methods[0].primitive == methods[1].primitive
        else:
            outside, inside = methods
            if case == "map_reduce":  # to a node elements come mapped: other sizes are what the kernel waits for
                outside, inside = [dataclasses.replace(one, refusals=dict.fromkeys(one.refusals)) for one in methods]
            assert outside == inside
        assert set(nodes) == {1}

    @pytest.mark.parametrize(
        "case",
        [
            "sum", "max", "reduce tuples", "vecdot broadcast", "scan affine", "scan own", "linear_recurrence",
            "sort_by_key", "solve_tridiagonal", "solve_tridiagonal columns", "matmul", "matmul semiring",
        ],
    )  # fmt: skip
    def test_any_length(self, backend, rng, case):
        """One program serves arrays of other lengths, in the derivatives too."""
        function, shapes = CASES[case]
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        with contextlib.ExitStack() as stack:
            for more in (0, 1, 3):
                arrays = [
                    backend.asarray(random(rng, tuple(n + more if n > 1 else n for n in shape), "float64"))
                    for shape in shapes
                ]
                leaves = [x.requires_grad_() for x in arrays]
                for x in leaves:
                    for axis, n in enumerate(x.shape):
                        if n > 1:
                            torch._dynamo.mark_dynamic(x, axis)
                found = results(compiled(*leaves))
                by = torch.autograd.grad(value(lambda found=found: found)(), leaves)
                torch.testing.assert_close((found, by), outcome(function, arrays))
                if not more:
                    stack.enter_context(torch.compiler.set_stance("fail_on_recompile"))

    def test_no_graph_break(self, backend, rng):
        def program(x, y):
            x = parprims.sort(parprims.cumulative_sum(x, axis=0))
            a = parprims.matmul(x, parprims.linear_recurrence(y, y).mT)
            return parprims.max(parprims.solve_tridiagonal(1.0, x + 9, 1.0, parprims.scan(y, "maximum"))) + a

        found = torch._dynamo.explain(program)(*(backend.asarray(random(rng, (3, 4), "float64")) for _ in range(2)))
        assert (found.graph_break_count, found.graph_count) == (0, 1)

    def test_inductor(self, backend, rng):
        def program(x, y):
            x = parprims.scan(torch.sin(x), lambda a, b: a + b - a * b) * 0.5
            return parprims.map_reduce(lambda x, y: x * y, x, parprims.sort(y), op="logaddexp", axis=0)

        arrays = [backend.asarray(random(rng, (5, 6), "float64")) for _ in range(2)]
        compiled = torch.compile(program, fullgraph=True)
        torch.testing.assert_close(outcome(compiled, arrays), outcome(program, arrays))

    @pytest.mark.parametrize("strict", [True, False])
    def test_export(self, backend, rng, strict):
        class Program(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.decay = torch.nn.Parameter(backend.asarray(random(rng, (4,), "float64")))

            def forward(self, x, rhs):
                x = parprims.linear_recurrence(self.decay, x)
                x, error = parprims.solve_tridiagonal(1, parprims.sort(x) + 9.0, 1, rhs, return_residual=True)
                x = parprims.matmul(x, x.mT, add="maximum", multiply="add")
                return parprims.scan(x, "add"), parprims.any(x), parprims.vecdot(x, x), error

        program = Program()
        given = tuple(backend.asarray(random(rng, (3, 4), "float64")) for _ in range(2))
        exported = torch.export.export(program, given, strict=strict)
        nodes = [node for node in exported.graph.nodes if "parprims" in str(node.target)]
        names = ["linear_recurrence", "sort", "solve_tridiagonal", "matmul", "scan", "any", "vecdot"]
        assert [node.args[3] for node in nodes] == names
        others = tuple(backend.asarray(random(rng, (3, 4), "float64")) for _ in range(2))
        torch.testing.assert_close(exported.module()(*others), program(*others))

    def test_a_saved_program_is_loaded_as_the_page_says(self, backend, tmp_path):
        class Program(torch.nn.Module):
            def forward(self, x):
                return parprims.cumulative_sum(x, axis=0) + parprims.sum(parprims.linear_recurrence(0.5 * x, x))

        x = backend.asarray(np.arange(5.0))
        torch.export.save(torch.export.export(Program(), (x,)), tmp_path / "program.pt2")
        (nodes,) = re.findall(r"`(import parprims\.\S+)`", (ROOT / "docs" / "libraries.md").read_text())
        torch.save(x, tmp_path / "x.pt")
        code = f"import torch; {nodes}; x = torch.load('x.pt'); "
        code += "print(torch.export.load('program.pt2').module()(x).tolist())"
        ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert json.loads(ran.stdout) == Program()(x).tolist()

    def test_own_operators(self, backend, rng):
        x, w = backend.asarray(random(rng, (3, 4), "float64")), backend.asarray(np.asarray(0.5))
        factor = 2.0

        def capturing(x, w):
            """Capture a tensor, by which there is a derivative, and a number."""
            return parprims.scan(x, lambda a, b: a + b + w * a * b * factor, axis=0)

        def reducing(x, w):
            return parprims.reduce((x, x + w), lambda a, b: (a[0] * b[0], a[1] + w * b[1]), axis=0, initial=(1, 0.5))

        def multiplying(x, w):
            return parprims.matmul(x, x.mT, add=lambda a, b: a + b + w * 0, multiply=lambda a, b: a * b)

        def with_segments(x, w):
            op = parprims.segmented(lambda a, b: a + b + w * a * b)
            return parprims.scan((_flags(x), x), op, reverse=True)[1]

        for function in (capturing, reducing, multiplying, with_segments):
            compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(outcome(compiled, (x, w)), outcome(function, (x, w)))

    @pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="2.11 reads no NamedTuple")
    def test_elements_of_any_structure(self, backend, rng):
        """NamedTuples, dicts and flags that broadcast, by operators that are kept and such as capture a tensor."""
        x, y = (backend.asarray(random(rng, (3, 5), "float64")) for _ in range(2))
        flags, w = backend.asarray(np.arange(5) % 2 == 0), backend.asarray(np.asarray(1.5))
        captured = parprims.segmented(lambda a, b: a + b * w)

        def named(x, y):
            return tuple(parprims.scan(Pair(x, y), _pairs, exclusive=True, initial=Pair(1, 0.5)))

        def dicts(x, y):
            def op(a, b):
                return {"u": a["u"] * b["u"], "v": (a["v"][0] * b["u"] + b["v"][0] * w,)}

            return parprims.map_reduce(lambda x, y: {"u": x, "v": (y,)}, x, y, op=op, axis=1)["v"][0]

        def kept_segments(_, y):
            return parprims.scan((flags, y), parprims.segmented("add"), exclusive=True)[1]

        def read_segments(_, y):
            return parprims.scan((flags, y), captured, exclusive=True, initial=(True, 0.5))

        for function in (named, dicts, kept_segments, read_segments):
            torch._dynamo.reset()
            compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(compiled(x, y), function(x, y))

    def test_dtype_by_name(self, backend):
        x = backend.asarray(np.ones((2, 3), dtype=np.float32))

        def program(x):
            return parprims.sum(x, dtype="float64"), parprims.scan(x, dtype=float), parprims.prod(x, dtype=x.dtype)

        torch.testing.assert_close(torch.compile(program, backend="aot_eager", fullgraph=True)(x), program(x))

    def test_in_place(self, backend, rng):
        """No operator changes the caller's array: one that is kept is refused, one that is read works on copies."""
        x, w = backend.asarray(random(rng, (3, 5), "float64")), backend.asarray(np.asarray(1.5))
        before = x.clone()
        compiled = torch.compile(lambda x: parprims.scan(x, _in_place), backend="aot_eager", fullgraph=True)
        with pytest.raises(TypeError, match="op _in_place changes its argument in place"):
            compiled(x)
        for ours, theirs in (
            (
                lambda x: parprims.scan(x, lambda a, b: a.add_(b + w)),
                lambda x: parprims.scan(x, lambda a, b: a + (b + w)),
            ),
            (
                lambda x: parprims.map_reduce(lambda x: x.mul_(w), x, axis=0),
                lambda x: parprims.sum(x * w, axis=0),
            ),
        ):
            torch._dynamo.reset()
            compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(compiled(x), theirs(x))
        assert (x == before).all()

    @pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="PyTorch 2.11 keeps it")
    def test_operator_reads_what_changes(self, backend, monkeypatch):
        x = backend.asarray(np.arange(1.0, 5.0))
        compiled = torch.compile(lambda x: parprims.scan(x, _scaled), backend="aot_eager", fullgraph=True)
        for scale in (1.0, 2.0):
            monkeypatch.setattr(settings, "scale", scale)
            torch.testing.assert_close(compiled(x), parprims.scan(x, _scaled, method="array"), rtol=0, atol=0)

    def test_two_operators_of_one_name(self, backend):
        x = backend.asarray(np.arange(1.0, 5.0))

        def program(x):
            return parprims.scan(x, lambda a, b: a + b), parprims.scan(x, lambda a, b: a * b)

        compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)

    def test_bad_input_named(self, backend):
        x = backend.asarray(np.ones((2, 3)))
        for message, function in (
            ("a and b must broadcast", lambda x: parprims.linear_recurrence(x, x[:, :2])),
            ("axis 5 is out of range", lambda x: parprims.sum(x, axis=5)),
            ("initial must broadcast", lambda x: parprims.scan(x, initial=x)),
            ("op must be one of", lambda x: parprims.reduce(x, "plus")),
            ("axis", lambda x: parprims.sort(x, axis=0.5)),
            ("must have an? .* dtype", lambda x: parprims.scan(x, "bitwise_or")),
            ("pivot must be one of", lambda x: parprims.solve_tridiagonal(x, x, x, x, pivot="some")),
            ("rhs must have the length", lambda x: parprims.solve_tridiagonal(x, x, x, x[:, :2])),
            ("a and b must agree in the length", lambda x: parprims.matmul(x, x)),
            ("precision must be one of", lambda x: parprims.matmul(x, x.T, precision="low")),
            ("x must not be empty", lambda x: parprims.max(x[:, :0], axis=1)),
            ("lower must be an array", lambda x: parprims.solve_tridiagonal(None, x, x, x)),
            ("traces op <lambda> itself", lambda x: parprims.scan(x, lambda a, b: a + b * x[0, 0], method="kernel")),
        ):
            torch._dynamo.reset()
            with pytest.raises(Exception, match=message):
                torch.compile(function, backend="aot_eager", fullgraph=True)(x)

    def test_registered_right(self, backend, rng):
        from torch.library import opcheck

        from parprims._torch_compile.inputs import flat

        def leaf(*shape):
            return backend.asarray(random(rng, shape, "float64")).requires_grad_()

        def check(primitive, named, method="auto", **options):
            opcheck(torch.ops.parprims.call, flat(primitive, named, options, method))

        check("linear_recurrence", {"a": leaf(3, 7), "b": leaf(3, 7), "initial": leaf(3)}, axis=1, reverse=False)
        column = leaf(7, 3).detach().T
        check("linear_recurrence", {"a": leaf(), "b": column, "initial": 0.5}, "array", axis=0, reverse=True)
        twice = {"x": (leaf(3, 7), leaf(3, 7)), "initial": (leaf(3), leaf(3))}
        check("scan", twice, op="affine", axis=1, exclusive=False, reverse=True)
        columns = {"x": leaf(7, 3).detach().T.requires_grad_(), "initial": 1.0}
        check("scan", columns, op="maximum", dtype="float64", axis=1, exclusive=True, reverse=False)
        check("reduce", {"x": leaf(3, 7), "initial": leaf(3)}, op="logaddexp", axis=1, keepdims=False)
        check("sum", {"x": leaf(3, 7)}, axis=(0, 1))
        check("vecdot", {"x1": leaf(3, 7), "x2": leaf(7)}, axis=-1)
        by = {"axis": 0, "descending": False, "stable": True}
        check("sort_by_key", {"keys": leaf(3, 7), "values": (leaf(3, 7),)}, **by, indices=True)
        check("sort", {"x": leaf(3, 7)}, **by)
        check("argsort", {"x": leaf(3, 7)}, "array", **by)
        system = {"lower": leaf(5), "diag": (leaf(5) + 9).detach().requires_grad_(), "upper": -1.0, "rhs": leaf(5, 2)}
        ways = {"axis": 0, "pivot": "auto", "periodic": False, "transpose": True}
        check("solve_tridiagonal", system, **ways, return_residual=True, return_status=True)
        product = {"precision": "float32", "kernel": None}
        check("matmul", {"a": leaf(2, 3, 4), "b": leaf(4, 5).detach()}, add="add", multiply="multiply", **product)
        pair = {"a": leaf(3, 4), "b": leaf(4, 5)}
        check("matmul", pair, add="minimum", multiply="add", tile=(2, 2, 2), **product)
        check("top_k", {"x": leaf(3, 7)}, k=2, axis=0)

    def test_numbers_of_the_program(self, backend, rng):
        """A length and a number that a program is given are no constants of it: other values compile nothing."""
        arrays = [backend.asarray(random(rng, (n,), "float64")) for n in (5, 6, 9)]
        calls = {
            "reduce": lambda x, start: parprims.reduce(x, "add", initial=start + x.shape[0]),
            "scan": lambda x, start: parprims.scan(x, "maximum", initial=start + x.shape[0]),
            "linear_recurrence": lambda x, start: parprims.linear_recurrence(1.0 / x.shape[0], x, initial=start),
            "solve_tridiagonal": lambda x, start: parprims.solve_tridiagonal(1.0, 5.0 + start, 1.0, x),
            "by offsets": lambda x, start: parprims.reduce(x, initial=start, offsets=offsets_of(x)),
        }

        def offsets_of(x):
            return torch.arange(2, device=x.device) * x.shape[0]

        for name, function in calls.items():
            torch._dynamo.reset()
            compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
            for x, start in zip(arrays, (0.5, 1.5, 2.5), strict=True):
                torch.testing.assert_close(compiled(x, start), function(x, start), msg=name)

    def test_rules_are_those_that_declarations_name(self, backend):
        from parprims._torch_compile import rules, vmap

        named = {one.rules for one in declared.values()} - {""}
        assert named == {*vmap._RULES}
        assert {*rules.RULES, "system"} <= named

    def test_the_first_call_of_a_process(self, backend):
        """The compiler may read a program again, and finds what it found before, though calls were made in between."""
        program = """
        import torch, parprims

        def call(x, start):
            return parprims.reduce(x, "add", initial=start + x.shape[0])

        compiled = torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=True)
        for n in (5, 6):
            assert compiled(torch.ones(n).requires_grad_(), 0.5).item() == 2 * n + 0.5
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environment, check=True)

    def test_segments(self, backend, rng):
        """Tuples of elements, operators of the caller's own, several values and coefficients that are numbers."""
        x, y = (backend.asarray(random(rng, (12,), "float64")) for _ in range(2))
        offsets = backend.asarray(np.array([0, 5, 5, 12]))
        for function in (
            lambda x, y: parprims.reduce((x, y), "affine", offsets=offsets),
            lambda x, y: parprims.scan((x, y), "affine", offsets=offsets)[1],
            lambda x, y: parprims.scan(x + y, lambda a, b: a + b + a * b, offsets=offsets),
            lambda x, y: parprims.sort_by_key(x, y, offsets=offsets),
            lambda x, y: parprims.sort_by_key(x, y, x, offsets=offsets),
            lambda x, y: parprims.linear_recurrence(0.5, x * y, offsets=offsets),
            lambda x, y: parprims.linear_recurrence(x, y, initial=0.25, offsets=offsets),
            lambda x, y: parprims.linear_recurrence(
                x.reshape(3, 2, 2), y.reshape(6, 2)[:3], initial=y[:2], matrices=True
            ),
        ):
            torch._dynamo.reset()
            compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(outcome(compiled, [x, y]), outcome(function, [x, y]))

    @pytest.mark.parametrize(
        "case", ["reduce", "vecdot broadcast", "scan affine", "linear_recurrence", "sort_by_key", "argsort",
                 "solve_tridiagonal", "solve_tridiagonal columns", "matmul", "matmul vector"],
    )  # fmt: skip
    def test_nodes_in_vmap(self, backend, rng, case):
        """A program that holds nodes can be mapped over any axes of its arguments, one node becoming another."""
        function, arrays = CASES[case][0], arguments(backend, rng, case)

        class Program(torch.nn.Module):
            def forward(self, *arrays):
                return function(*arrays)

        program = torch.export.export(Program(), arrays).module()
        for dims, given in mapped(rng, backend, arrays):
            found = torch.func.vmap(program, dims)(*given)
            torch.testing.assert_close(found, loop(function, dims, given))
        with pytest.raises(NotImplementedError, match="forward derivatives"):
            torch.func.jvp(program, arrays, arrays)

    def test_transformations_in_the_program(self, backend, rng):
        x = backend.asarray(random(rng, (3, 4), "float64"))

        def total(x):
            y = parprims.linear_recurrence(x, parprims.sort(x))
            return parprims.sum(parprims.scan(y, "maximum") * parprims.matmul(x, x))

        def tangent(x):
            with torch.autograd.forward_ad.dual_level():
                y = parprims.cumulative_sum(torch.autograd.forward_ad.make_dual(x, x), axis=0)
                return torch.autograd.forward_ad.unpack_dual(y).tangent

        func = torch.func
        for function in (
            func.vmap(func.grad(lambda x: total(x[None, :] * x[:, None]))),
            lambda x: func.jvp(lambda x: total(x @ x.mT), (x,), (x,))[1],
            func.vmap(lambda x: parprims.matmul(x, x)),
            tangent,
        ):
            torch._dynamo.reset()
            with warnings_of_its_own():
                torch.testing.assert_close(torch.compile(function, backend="aot_eager", fullgraph=True)(x), function(x))
