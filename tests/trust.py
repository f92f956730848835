"""What the library promises, the tests that keep it, and how much of its bounds it uses: ``python -m tests.trust``.

``pytest --record-errors FILE`` writes, for every primitive, dtype, method and backend, the largest error that a check
found over the bound it was held against. This module merges such files, one for each device, into ``tests/errors/``
and writes ``docs/trust.md`` from them and from the tables below. ``tests/test_promises.py`` holds the page to both.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import json
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "trust.md"
ERRORS = ROOT / "tests" / "errors"
METHODS = ("array", "native", "kernel")
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

    from benches import records
    from examples.backends import gpu_name

    cuda = bool(backends & {"cupy", "torch-cuda", "jax-cuda"})
    return {
        "device": gpu_name() if cuda else "CPU",
        "versions": records.versions(cuda),
        "commit": records.commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


@dataclasses.dataclass(frozen=True)
class Promise:
    """A sentence that users may rely on, the tests that keep it, and a file that makes it with words from there."""

    sentence: str
    tests: tuple[str, ...]
    file: str = ""
    words: str = ""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault that a peer had, and the tests that keep it out, or the sentence why it cannot apply."""

    what: str
    tests: tuple[str, ...] = ()
    why_not: str = ""


_CONTRACT = "tests/contract.py::Contract::"

PROMISES: tuple[Promise, ...] = (
    Promise(
        "The result is right, or the call is refused with a sentence; nothing falls back in silence.",
        (
            _CONTRACT + "test_length",
            _CONTRACT + "test_dtype",
            _CONTRACT + "test_any_shape",
            "tests/test_matmul.py::TestMatmul::test_any_shape",
            "tests/test_sort.py::Sorting::test_every_bit",
            "tests/test_scan_kernel.py::TestStress::test_random_cases",
            "tests/test_sort_kernel.py::TestStress::test_random_cases",
            "tests/test_matmul_kernel.py::TestStress::test_random_cases",
            "tests/test_dispatch.py::TestChoice::test_a_refusal_is_an_error_when_asked_for",
            "tests/test_dispatch.py::TestChoice::test_an_error_in_a_refusal_is_no_refusal",
            "tests/test_fuzz.py::test_no_violation",
            "tests/fuzz.py::main",
            "tests/test_door.py::TestArrays::test_meaning_lost_is_refused",
        ),
        "README.md",
        "nothing falls back in silence",
    ),
    Promise(
        "The method asked for is the one that runs, and `explain` tells.",
        (
            "tests/conftest.py::run",
            "tests/test_dispatch.py::TestExplain::test_every_call_in_order",
            "tests/test_scan.py::TestScan::test_method_taken",
        ),
        "README.md",
        "the library says which one it took and why",
    ),
    Promise(
        "`methods` lists what would serve, with the reason for what would not, and computes nothing.",
        (
            "tests/test_dispatch.py::TestMethods::test_in_the_order_of_auto",
            "tests/test_dispatch.py::TestMethods::test_nothing_is_computed_or_recorded",
            "tests/test_dispatch.py::TestMethods::test_options_matter",
            "tests/test_fuzz.py::test_no_violation",
            "tests/test_door.py::TestOptions::test_methods_raise_what_the_call_raises",
        ),
        "src/parprims/_dispatch.py",
        "List the methods that a call could take",
    ),
    Promise(
        "Inputs are never written.",
        (
            _CONTRACT + "test_inputs_untouched",
            _CONTRACT + "test_view",
            "tests/test_matmul.py::TestMatmul::test_inputs_untouched",
            "tests/test_emulator.py::TestFinds::test_write_to_an_input",
            "tests/test_operators.py::TestInPlace::test_operator",
            "tests/test_fuzz.py::test_no_violation",
        ),
        "README.md",
        "Inputs are never written",
    ),
    Promise(
        "A result shares no memory with an input.",
        (
            "tests/test_scan.py::TestScan::test_result_is_not_the_input",
            "tests/test_scan.py::TestRecurrence::test_result_is_not_the_input",
            "tests/test_scan_kernel.py::TestMemory::test_result_is_not_the_input",
            "tests/test_reduce.py::TestOperators::test_one_element_is_a_copy",
            "tests/test_door.py::TestArrays::test_an_operator_that_returns_its_argument_returns_no_view",
            "tests/test_fuzz.py::test_no_violation",
        ),
        "src/parprims/_scan_array.py",
        "a result never shares memory with an input",
    ),
    Promise(
        "Every element of a result is written, whatever the memory held before.",
        (
            "tests/test_reduce.py::TestKernelShapes::test_outputs_are_all_written",
            "tests/test_scan_kernel.py::TestMemory::test_outputs_are_all_written",
            "tests/test_emulator.py::TestFinds::test_unwritten_output",
        ),
    ),
    Promise(
        "By `array` and `kernel`, the same input gives the same bits, run after run.",
        (
            _CONTRACT + "test_same_bits_twice",
            "tests/test_matmul.py::TestMatmul::test_same_bits_twice",
            "tests/test_scan_kernel.py::TestReproducible::test_same_bits",
            "tests/test_scan_kernel.py::TestSlowTiles::test_same_bits",
            "tests/test_sort_kernel.py::TestShapes::test_same_bits_twice",
            "tests/test_matmul_kernel.py::TestSplit::test_same_bits_twice",
            "tests/test_tridiagonal.py::TestSolveTridiagonal::test_batch_equals_single",
            "tests/test_tridiagonal_kernel.py::test_cut_changes_no_bits",
        ),
        "README.md",
        "the same input gives the same bits on the same machine, run after run",
    ),
    Promise(
        "Bad input raises ValueError, TypeError or IndexError, before any launch, and names the argument.",
        (
            _CONTRACT + "test_unknown_method_named",
            _CONTRACT + "test_bad_axis_named",
            _CONTRACT + "test_no_array_named",
            _CONTRACT + "test_mixed_namespaces_named",
            "tests/test_reduce.py::TestErrors::test_arguments_named",
            "tests/test_reduce.py::TestErrors::test_mixed_devices_named",
            "tests/test_scan.py::TestBadInput::test_scan",
            "tests/test_scan.py::TestBadInput::test_recurrence",
            "tests/test_sort.py::Sorting::test_no_order_named",
            "tests/test_sort.py::TestSortByKey::test_shape_named",
            "tests/test_tridiagonal.py::TestSolveTridiagonal::test_shapes_named",
            "tests/test_matmul.py::TestMatmul::test_bad_shape_named",
            "tests/test_matmul.py::TestArguments::test_impossible_tile_named",
            "tests/test_matmul.py::TestArguments::test_operator_named",
            "tests/test_operators.py::TestSentences::test_of_what_it_does",
            "tests/test_door.py::TestOptions::test_flags",
            "tests/test_door.py::TestOptions::test_words",
            "tests/test_fuzz.py::test_no_violation",
        ),
        "README.md",
        "Bad input raises `ValueError`, `TypeError` or `IndexError` and names the argument",
    ),
    Promise(
        "Integers are exact, modulo the range of their dtype; floats are within the bound that the docstring states.",
        (
            _CONTRACT + "check",
            "tests/test_reduce.py::TestSum::test_array_error_is_that_of_a_tree",
            "tests/test_scan.py::TestArrayForm::test_error_of_a_tree",
            "tests/test_scan_kernel.py::TestAccuracy::test_sums",
            "tests/test_matmul.py::TestMatmul::test_integers_wrap",
            "tests/test_matmul.py::TestPrecision::test_highest",
            "tests/test_matmul_kernel.py::TestAccuracy::test_no_worse_than_a_chain",
            "tests/test_tridiagonal.py::TestStability::test_classes",
            "tests/test_tridiagonal_kernel.py::check",
            "tests/test_promises.py::test_bounds_are_those_documented",
        ),
        "README.md",
        "Each docstring states the bound for floats",
    ),
    Promise(
        "16-bit floats are computed in 32 bits and rounded once.",
        (
            "tests/test_scan.py::TestScan::test_half_precision_is_rounded_once",
            "tests/test_scan_kernel.py::TestAccuracy::test_half_precision_is_rounded_once",
            "tests/test_matmul.py::TestMatmul::test_sixteen_bits_rounded_once",
            "tests/test_tridiagonal.py::TestSolveTridiagonal::test_sixteen_bits_are_computed_in_thirty_two",
            "tests/test_derivatives.py::TestTorch::test_rounded_once",
        ),
        "README.md",
        "16-bit floats are computed in 32 bits and rounded once",
    ),
    Promise(
        "Reductions and scans carry NaN, infinities and the sign of zero as the loop does; `max` and `min` give NaN "
        "where there is one, and NaN is true.",
        (
            "tests/test_reduce.py::TestMax::test_nan_and_signed_zero_and_infinity",
            "tests/test_reduce.py::TestTruth::test_nan_is_true",
            "tests/test_reduce.py::TestOperators::test_infinities",
            "tests/test_reduce.py::TestOperators::test_negative_zero_and_subnormals_survive",
            "tests/test_scan.py::TestScan::test_special_values",
            "tests/test_scan_kernel.py::TestAccuracy::test_signed_zeros_and_subnormals_survive",
        ),
        "src/parprims/_reduce.py",
        "NaN counts as larger than all others",
    ),
    Promise(
        "In a recurrence an infinity or NaN spoils its element and all after it, and none before.",
        (
            "tests/test_scan.py::TestRecurrence::test_not_finite_from_there_on",
            "tests/test_scan.py::TestRecurrence::test_overflow_is_never_a_wrong_number",
            "tests/test_scan_kernel.py::TestAccuracy::test_not_finite_from_there_on",
            "tests/test_scan_kernel.py::TestAdjoint::test_infinities_and_nans_stay_where_they_belong",
        ),
        "src/parprims/_recurrence.py",
        "makes that element and all after it infinite or NaN",
    ),
    Promise(
        "Sorts keep one order on every library: by value, -0 equal to +0, NaN last whatever its sign.",
        (
            "tests/test_sort.py::Sorting::test_every_bit",
            "tests/test_sort.py::Sorting::test_shape_of_data",
            "tests/test_sort.py::TestBits::test_every_library",
            "tests/test_sort_kernel.py::TestEveryDtype::test_ways",
        ),
        "src/parprims/_sort.py",
        "numbers by value, -0 equal to +0, NaN last whatever its sign",
    ),
    Promise(
        "A system with NaN or infinity, or a singular one, spoils no other; the status tells.",
        (
            "tests/test_tridiagonal.py::TestSolveTridiagonal::test_not_finite_stays_in_its_system",
            "tests/test_tridiagonal.py::TestSolveTridiagonal::test_pivot_of_zero",
            "tests/test_tridiagonal.py::TestSolveTridiagonal::test_status",
            "tests/test_tridiagonal.py::TestErrorAndStatus::test_error_and_status_are_as_promised",
        ),
        "src/parprims/_tridiagonal.py",
        "A solution that is not finite in every unknown is NaN in all of them",
    ),
    Promise(
        "A product carries NaN and infinity, by every kernel and precision.",
        (
            "tests/test_matmul.py::TestMatmul::test_nan_and_infinity",
            "tests/test_matmul.py::TestSemirings::test_nan_and_infinity",
            "tests/test_matmul_kernel.py::TestNotFinite::test_infinity_and_nan",
            "tests/test_matmul_kernel.py::TestNotFinite::test_overflow",
        ),
    ),
    Promise(
        "An operator need not commute: the earlier element is always on the left.",
        (
            "tests/test_scan.py::TestScan::test_order",
            "tests/test_scan.py::TestScan::test_keep_first_and_last",
            "tests/test_reduce.py::TestAffine::test_order_over_several_axes_is_row_major",
            "tests/test_reduce.py::TestOperators::test_initial_comes_first",
            "tests/test_scan_kernel.py::TestShapes::test_every_operator",
            "tests/test_scan_kernel.py::TestSlowTiles::test_in_order",
            "tests/test_matmul.py::TestSemirings::test_keep_the_later",
            "tests/test_matmul_kernel.py::TestSplit::test_order_of_k",
        ),
        "src/parprims/_scan.py",
        "elements are always combined earlier with later",
    ),
    Promise(
        "What an operator captures is read anew by every call.",
        (
            "tests/test_trace.py::TestLastingKey::test_captures_that_may_change_change_it",
            "tests/test_trace.py::TestCapturesChange::test_by_array",
            "tests/test_trace.py::TestCapturesChange::test_by_kernel",
            "tests/test_trace.py::TestCapturesChange::test_by_kernel_of_tensors",
            "tests/test_reduce.py::TestKernelShapes::test_repeated_calls_see_new_data_and_captures",
            "tests/test_scan_kernel.py::TestMemory::test_repeated_calls_see_new_data_and_captures",
        ),
    ),
    Promise(
        "Sorts are stable, in both directions.",
        (
            "tests/test_sort.py::Sorting::test_every_bit",
            "tests/test_sort_kernel.py::TestDistributions::test_stable",
        ),
        "src/parprims/_sort.py",
        "stay in the order they have in x, in both directions",
    ),
    Promise(
        "Empty arrays and arrays of one element are inputs like others.",
        (
            _CONTRACT + "test_length",
            "tests/test_reduce.py::TestOperators::test_empty",
            "tests/test_scan_kernel.py::TestShapes::test_short_and_empty",
            "tests/test_sort_kernel.py::TestShapes::test_empty",
            "tests/test_tridiagonal.py::TestSolveTridiagonal::test_no_rows",
            "tests/test_matmul.py::TestSemirings::test_nothing_to_sum",
            "tests/test_matmul_kernel.py::TestShapes::test_vectors_and_empty",
        ),
        "README.md",
        "signature, dtypes, axes, empty input",
    ),
    Promise(
        "Every axis, stride and view is an input like others: strided, reversed, transposed, unaligned, broadcast.",
        (
            _CONTRACT + "test_axis",
            _CONTRACT + "test_view",
            "tests/test_reduce.py::TestMapReduce::test_inputs_broadcast",
            "tests/test_scan.py::TestRecurrence::test_broadcast",
            "tests/test_scan_kernel.py::TestShapes::test_layouts",
            "tests/test_sort_kernel.py::TestShapes::test_axes_and_views",
            "tests/test_tridiagonal_kernel.py::test_layouts",
            "tests/test_matmul_kernel.py::TestLayouts::test_views",
            "tests/test_matmul_kernel.py::TestBatches::test_views_of_batches",
        ),
    ),
    Promise(
        "Results stay on the device and in the library of the inputs.",
        (
            _CONTRACT + "test_device_kept",
            "tests/test_reduce.py::TestKernelShapes::test_another_device_than_the_current",
            "tests/test_scan_kernel.py::TestStreams::test_another_device_than_the_current",
        ),
        "src/parprims/_cuda/__init__.py",
        "Neither copies an array or leaves the device",
    ),
    Promise(
        "Sizes past 2^31 and 2^32 elements are sizes like others.",
        (
            "tests/test_reduce.py::TestKernelShapes::test_more_than_two_to_the_31",
            "tests/test_scan_kernel.py::TestShapes::test_more_than_two_to_the_31",
            "tests/test_sort_kernel.py::TestShapes::test_more_than_two_to_the_31",
            "tests/test_gpu.py::TestBeyond32Bits::test_reductions_along_an_axis",
            "tests/test_gpu.py::TestBeyond32Bits::test_scan_along_an_axis",
            "tests/test_gpu.py::TestBeyond32Bits::test_recurrence",
            "tests/test_gpu.py::TestBeyond32Bits::test_sort_along_an_axis",
            "tests/test_gpu.py::TestBeyond32Bits::test_product_with_many_results",
            "tests/test_gpu.py::TestBeyond32Bits::test_systems",
        ),
    ),
    Promise(
        "Derivatives are right on PyTorch and JAX, whichever method computes.",
        (
            "tests/test_derivatives.py::TestTorch::test_recurrence",
            "tests/test_derivatives.py::TestTorch::test_scan",
            "tests/test_derivatives.py::TestJax::test_recurrence",
            "tests/test_derivatives.py::TestJax::test_scan",
            "tests/test_sort.py::TestGradient::test_jax",
            "tests/test_sort.py::TestGradient::test_torch",
            "tests/test_tridiagonal.py::test_torch_gradients",
            "tests/test_tridiagonal.py::test_jax_transforms",
            "tests/test_matmul.py::TestMatmul::test_gradient",
            "tests/test_matmul_kernel.py::TestDerivatives::test_torch",
        ),
        "docs/scan.md",
        "Scans by add, multiply and affine are differentiable on PyTorch (backward, of any order) and JAX (forward and "
        "backward, of any order), by every method",
    ),
    Promise(
        "`torch.compile` and `torch.export` read every public function without a break of the graph, forward and "
        "backward, and keep each primitive as one node.",
        (
            "tests/test_torch.py::TestCompile::test_one_node",
            "tests/test_torch.py::TestCompile::test_any_length",
            "tests/test_torch.py::TestCompile::test_no_graph_break",
            "tests/test_torch.py::TestCompile::test_export",
            "tests/test_torch.py::TestCompile::test_own_operators",
            "tests/test_torch.py::TestCompile::test_registered_right",
        ),
        "docs/libraries.md",
        "torch.compile and torch.export",
    ),
    Promise(
        "Calls work under `jax.jit`, `vmap` and loops, and under `torch.func`.",
        (
            _CONTRACT + "test_jit",
            "tests/test_scan.py::TestTransformations::test_jax_vmap",
            "tests/test_reduce.py::TestTransforms::test_jax_vmap_scan_and_gradient",
            "tests/test_derivatives.py::TestJax::test_inside_other_transformations",
            "tests/test_derivatives.py::TestTorch::test_transformations",
            "tests/test_scan_kernel.py::TestJax::test_inside_a_loop",
            "tests/test_tridiagonal.py::test_torch_func",
            "tests/test_matmul.py::TestSemirings::test_jit_and_vmap",
            "tests/test_torch.py::TestTransformations::test_vmap",
            "tests/test_torch.py::TestTransformations::test_derivatives",
            "tests/test_jax.py::TestTransformations::test_vmap_of_any_axis_and_of_derivatives",
            "tests/test_jax.py::TestTransformations::test_inside_a_loop_and_checkpointed",
            "tests/test_jax.py::TestLeaks::test_no_tracer_outlives_its_program",
        ),
        "README.md",
        "it runs on NumPy, JAX (also under `jit`), PyTorch, CuPy and any other conforming array",
    ),
    Promise(
        "Calls can be captured into CUDA graphs, and any two graphs replayed at once.",
        (
            "tests/test_reduce.py::TestKernelShapes::test_captured_into_a_graph",
            "tests/test_scan_kernel.py::TestStreams::test_captured_into_a_graph",
            "tests/test_sort_kernel.py::TestStreams::test_captured_into_a_graph",
            "tests/test_gpu.py::TestGraphs::test_captured_and_replayed",
            "tests/test_gpu.py::TestGraphs::test_two_at_once",
            "tests/test_gpu.py::TestGraphs::test_scratch_grows_within_a_capture",
            "tests/test_cuda.py::TestGraphs::test_two_at_once",
        ),
    ),
    Promise(
        "Calls on several streams and from several threads do not disturb each other.",
        (
            "tests/test_reduce.py::TestKernelShapes::test_streams_and_threads",
            "tests/test_scan_kernel.py::TestStreams::test_streams_and_threads",
            "tests/test_sort_kernel.py::TestStreams::test_streams_and_threads",
            "tests/test_dispatch.py::TestExplain::test_threads_do_not_see_each_other",
            "tests/test_gpu.py::TestStreams::test_eight_streams",
            "tests/test_gpu.py::TestStreams::test_threads_share_a_stream",
            "tests/test_gpu.py::TestStress::test_threads_and_streams",
        ),
    ),
    Promise(
        "Where a device has no memory left, the call raises, and the next one works.",
        (
            "tests/test_reduce.py::TestKernelShapes::test_out_of_memory_leaves_the_library_usable",
            "tests/test_scan_kernel.py::TestMemory::test_out_of_memory_leaves_the_library_usable",
            "tests/test_sort_kernel.py::TestStreams::test_out_of_memory_leaves_the_library_usable",
            "tests/test_gpu.py::TestOutOfMemory::test_each_allocation",
            "tests/test_gpu.py::TestOutOfMemory::test_nearly_full",
            "tests/test_cuda.py::TestFailures::test_each_allocation",
        ),
    ),
    Promise(
        "Memory beyond inputs and outputs is bounded, and the docstrings say by what.",
        (
            "tests/test_reduce.py::TestPlan::test_bounds_of_every_plan",
            "tests/test_reduce.py::TestPlan::test_copies_only_where_unavoidable",
            "tests/test_scan_kernel.py::TestPlan::test_bounds_of_every_plan",
            "tests/test_scan_kernel.py::TestPlan::test_copies_only_where_unavoidable",
            "tests/test_sort_kernel.py::TestPlan::test_bounds_of_every_plan",
            "tests/test_matmul_kernel.py::TestPlan::test_bounds_of_every_plan",
            "tests/test_matmul_kernel.py::TestBatches::test_nothing_is_copied",
            "tests/test_matmul.py::TestTiles::test_memory",
            "tests/test_tridiagonal_kernel.py::test_plans_fit",
            "tests/test_reduce.py::TestBlocks::test_memory_of_a_cast",
            "tests/test_reduce.py::TestBlocks::test_memory_of_a_view_that_repeats_one_number",
            "tests/test_gpu.py::TestStress::test_memory_stays_where_it_was",
        ),
        "docs/scan.md",
        "up to 3 % of the largest result",
    ),
    Promise(
        "Every kernel compiles for every architecture, without a GPU (`nox -s kernels`).",
        ("tests/compile_kernels.py::main",),
        "CONTRIBUTING.md",
        "It must compile for every architecture",
    ),
    Promise(
        "Every kernel runs on a CPU, where wrong indices, missing barriers and deadlocks show (`nox -s emulate`).",
        (
            "tests/test_emulator.py::TestFinds::test_missing_barrier",
            "tests/test_emulator.py::TestFinds::test_write_out_of_bounds",
            "tests/test_emulator.py::TestFinds::test_deadlock_of_a_block",
            "tests/test_reduce.py::TestSanitized::test_every_kernel",
            "tests/test_scan_kernel.py::TestSanitized::test_every_kernel",
            "tests/test_sort_kernel.py::TestSanitized::test_every_kernel",
            "tests/test_matmul_kernel.py::TestSanitized::test_ladder",
            "tests/test_emulator.py::TestSharedMemory::test_poison",
            "tests/test_emulator.py::TestSharedMemory::test_race",
            "tests/test_emulator.py::TestFences::test_one_is_missing",
        ),
        "CONTRIBUTING.md",
        "shows wrong indices, missing barriers and deadlocks",
    ),
    Promise(
        "A kernel with a line changed, a barrier or a fence dropped, fails a test of the emulator (`nox -s mutate`).",
        ("tests/mutate.py::main",),
        "CONTRIBUTING.md",
        "changes kernels one line at a time",
    ),
    Promise(
        "No call waits for the device, and none needs the whole of it to end.",
        (
            "tests/test_gpu.py::TestStreams::test_nothing_waits",
            "tests/test_gpu.py::TestStreams::test_beside_a_kernel_that_holds_the_device",
        ),
    ),
    Promise(
        "A damaged or read-only cache of kernels, no home directory, an unknown architecture, an old driver: a call "
        "works nevertheless, or says in a sentence why not.",
        (
            "tests/test_cuda.py::TestCache::test_damaged",
            "tests/test_cuda.py::TestCache::test_read_only",
            "tests/test_cuda.py::TestCache::test_no_home",
            "tests/test_cuda.py::TestArchitectures::test_newer_than_the_compiler",
            "tests/test_cuda.py::TestRefusals::test_devices",
            "tests/test_cuda.py::test_cupy_without_a_gpu",
        ),
    ),
    Promise(
        "No speed is published of a wrong result, and no commit may lose more than 5 % in a recorded row.",
        (
            "tests/test_benches.py::test_wrong_result_gets_no_time_and_fails_the_run",
            "tests/test_benches.py::test_a_row_may_not_lose_more_than_a_twentieth",
        ),
        "CONTRIBUTING.md",
        "no result is timed before it is checked",
    ),
    Promise(
        "Every example in the documentation runs and shows what it says.",
        (
            "tests/test_package.py::test_docstring_examples",
            "tests/test_package.py::test_document_examples",
            "tests/test_examples.py::test_example_passes",
            "tests/test_examples.py::test_example_fails_where_a_result_is_wrong",
        ),
    ),
    Promise(
        "Importing the library loads no array library but NumPy.",
        ("tests/test_package.py::test_import_loads_no_array_library",),
    ),
)

FAULTS: dict[int, Fault] = {
    1: Fault(
        "cccl#6715, cccl#7622, and ours: an operator is remembered though what it reads has changed",
        (
            "tests/test_trace.py::TestCapturesChange::test_by_array",
            "tests/test_trace.py::TestCapturesChange::test_by_kernel",
            "tests/test_trace.py::TestCapturesChange::test_by_kernel_of_tensors",
            "tests/test_trace.py::TestLastingKey::test_arrays_are_known_by_their_values",
        ),
    ),
    2: Fault(
        "cupy#9841: a cumulative sum past 2^31 elements is its input",
        (
            "tests/test_gpu.py::TestBeyond32Bits::test_cumulative_sum",
            "tests/test_gpu.py::TestBeyond32Bits::test_cumulative_sum_far",
            "tests/test_scan_kernel.py::TestShapes::test_more_than_two_to_the_31",
        ),
    ),
    3: Fault(
        "pytorch#167086: a cumulative sum along a short axis of an array of more than 2^32 elements is wrong",
        ("tests/test_gpu.py::TestBeyond32Bits::test_scan_along_an_axis",),
    ),
    4: Fault(
        "pytorch#143486: a cumulative sum of two long rows is wrong",
        ("tests/test_gpu.py::TestBeyond32Bits::test_scan_along_an_axis",),
    ),
    5: Fault(
        "flashinfer#3391: rows of just above 2^31 elements fail",
        (
            "tests/test_gpu.py::TestBeyond32Bits::test_scan_along_an_axis",
            "tests/test_gpu.py::TestBeyond32Bits::test_reductions_along_an_axis",
        ),
    ),
    6: Fault(
        "cccl#8806, cccl#8807: offsets in bytes beyond 4 GB are of 32 bits",
        ("tests/test_gpu.py::TestBeyond32Bits::test_more_than_four_gigabytes_of_float64",),
    ),
    7: Fault(
        "pytorch#197673: `torch.arange` is wrong past 2^32",
        ("tests/test_gpu.py::ramps",),
    ),
    8: Fault(
        "pytorch#187717: batched solves with many right-hand sides are wrong",
        (
            "tests/test_peer_faults.py::TestManySystems::test_right_hand_sides",
            "tests/test_peer_faults.py::TestManySystems::test_batch",
            "tests/test_gpu.py::TestBeyond32Bits::test_many_right_sides",
            "tests/test_gpu.py::TestBeyond32Bits::test_many_systems",
        ),
    ),
    9: Fault(
        "tensorflow#126681: a tridiagonal solve crashes on an empty batch",
        (
            "tests/test_peer_faults.py::TestNoSystems::test_empty_batch",
            "tests/test_peer_faults.py::TestNoSystems::test_no_right_hand_side",
            "tests/contract.py::Contract::test_any_shape",
            "tests/test_tridiagonal.py::TestSolveTridiagonal::test_no_rows",
        ),
    ),
    10: Fault(
        "jax#32487: a tridiagonal solve fails for one or two unknowns",
        (
            "tests/test_jax.py::TestTransformations::test_few_unknowns",
            "tests/test_tridiagonal.py::Systems::test_length",
        ),
    ),
    11: Fault(
        "jax#36644: NaN where rows must be exchanged",
        (
            "tests/test_peer_faults.py::TestZeroDiagonal::test_chain",
            "tests/test_tridiagonal.py::TestStability::test_classes",
            "tests/test_tridiagonal.py::TestSolveTridiagonal::test_every_length",
            "tests/test_tridiagonal_kernel.py::test_tile_edges",
        ),
    ),
    12: Fault(
        "pytorch#190781: a NaN with a sign is sorted first",
        (
            "tests/test_peer_faults.py::TestNaN::test_every_sign_and_payload",
            "tests/test_sort.py::Sorting::test_every_bit",
            "tests/test_sort_kernel.py::TestEveryDtype::test_ways",
        ),
    ),
    13: Fault(
        "kUPS#186: XLA takes the indices that sort indices for something simpler",
        (
            "tests/test_jax.py::TestTransformations::test_order_of_an_order",
            "tests/test_sort.py::TestArgsort::test_ranks_in_one_program",
        ),
    ),
    14: Fault(
        "pytorch#172568: a scan's derivative is wrong where the first of several results is unused",
        (
            "tests/test_jax.py::test_a_loss_on_the_second_component_only",
            "tests/test_torch.py::TestDerivatives::test_results_that_go_unused",
            "tests/test_derivatives.py::TestTorch::test_one_result_and_both",
        ),
    ),
    15: Fault(
        "pytorch#137943, triton#4362: a reverse scan is wrong",
        (
            "tests/test_peer_faults.py::TestReverseScan::test_shape_of_two_and_nine",
            "tests/test_scan.py::TestScan::test_order",
            "tests/test_gpu.py::test_reverse_and_not_commutative",
        ),
    ),
    16: Fault(
        "ROCm triton#947: a scan is wrong where it crosses a warp",
        (
            "tests/test_scan_kernel.py::TestShapes::test_lengths",
            "tests/test_gpu.py::TestStress::test_edges_of_warps_again_and_again",
        ),
    ),
    17: Fault(
        "warp#1373: scratch that grows within a capture spoils the graph",
        (
            "tests/test_gpu.py::TestGraphs::test_scratch_grows_within_a_capture",
            "tests/test_cuda.py::TestGraphs::test_scratch_grows",
        ),
    ),
    18: Fault(
        "warp#1355: temporaries are freed before a replay",
        (
            "tests/test_gpu.py::TestGraphs::test_references_are_dropped",
            "tests/test_cuda.py::TestGraphs::test_what_is_dropped",
        ),
    ),
    19: Fault(
        "cccl#5661, llama.cpp#21682, mlx#2537: a sort of more than 500 rows fails while captured",
        ("tests/test_gpu.py::TestGraphs::test_captured_and_replayed",),
    ),
    20: Fault(
        "b12x#32: a kernel that waits for all its blocks hangs beside another stream's",
        ("tests/test_gpu.py::TestStreams::test_beside_a_kernel_that_holds_the_device",),
    ),
    21: Fault(
        "flashinfer#3053, flashinfer#3329: a shuffle in a diverged warp, or an arrival that is lost, hangs",
        (
            "tests/test_gpu.py::test_barriers_of_shared_memory_under_replay",
            "tests/test_gpu.py::test_every_rest_of_a_tile",
            "tests/test_emulator.py::TestFinds::test_lanes_outside_a_mask",
        ),
    ),
    22: Fault(
        "ERF#3714, quadrants#649: streams share scratch or arguments",
        (
            "tests/test_gpu.py::TestStreams::test_eight_streams",
            "tests/test_gpu.py::TestStreams::test_threads_share_a_stream",
            "tests/test_scan_kernel.py::TestStreams::test_streams_and_threads",
        ),
    ),
    23: Fault(
        "sglang#34297, sglang#32467, pegainfer#410: shared memory is used again without a barrier",
        (
            "tests/test_emulator.py::TestSharedMemory::test_race",
            "tests/test_gpu.py::TestStreams::test_two_at_once_have_the_bits_of_one",
        ),
    ),
    24: Fault(
        "cupy#9894: a sort returns garbage where an allocation fails",
        (
            "tests/test_gpu.py::TestOutOfMemory::test_each_allocation",
            "tests/test_cuda.py::TestFailures::test_each_allocation",
        ),
    ),
    25: Fault(
        "jax#21403, marin#8077: a sharded cumulative sum is wrong, a derivative of ragged parts NaN",
        (
            "tests/test_jax.py::TestMeshes::test_what_is_split_is_refused",
            "tests/test_jax.py::TestMeshes::test_inside_shard_map",
            "tests/test_jax.py::test_a_nan_stays_where_it_is",
            "tests/test_door.py::TestOtherLibraries::test_arrays_sharded_over_devices_of_jax",
        ),
    ),
    26: Fault(
        "pytorch#162602, pytorch#62645: inputs that are not contiguous give a wrong result",
        (
            "tests/test_peer_faults.py::TestStrides::test_every_primitive",
            "tests/contract.py::Contract::test_view",
            "tests/test_gpu.py::test_views",
            "tests/test_gpu.py::test_steps_of_zero_and_overlapping",
        ),
    ),
    27: Fault(
        "pytorch#52213, torch-xpu-ops#2816: the logarithm of a sum of exponentials, of infinities",
        (
            "tests/test_peer_faults.py::TestLogaddexp::test_infinities",
            "tests/test_scan.py::TestScan::test_logaddexp",
        ),
    ),
    28: Fault(
        "cccl#9768, cccl#6452: 30 % of the speed is lost in silence",
        ("tests/test_benches.py::test_a_row_may_not_lose_more_than_a_twentieth",),
    ),
}


@functools.cache
def functions(file: str) -> frozenset[str]:
    """Return the functions of a file, and the methods of its classes as Class::method, without importing it."""
    found = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return frozenset(found)


def exists(test: str) -> bool:
    """Return whether a test, ``file::function`` or ``file::Class::function``, is written down where it says."""
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and name in functions(file)


def keepers() -> dict[str, list[str]]:
    """Return, by file, the test classes that inherit the laws of `Contract`, found without importing them."""
    parents: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                parents[path.name, node.name] = [(path.name, base) for base in bases]
    found: dict[str, list[str]] = {}

    def inherits(one: tuple[str, str]) -> bool:
        return one[1] == "Contract" or any(map(inherits, parents.get(one, [])))

    for (file, name), bases in parents.items():
        if name.startswith("Test") and any(map(inherits, bases)):
            found.setdefault(f"tests/{file}", []).append(name)
    return found


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[`{file.removeprefix('tests/')}::{name}`](../{file})"


def _links(tests: Iterable[str]) -> str:
    return "<br>".join(map(_link, tests))


def _promises() -> Iterator[str]:
    yield "| promise | kept by | made in |"
    yield "|---|---|---|"
    for one in PROMISES:
        made = f'[{one.file}](../{one.file}): "{one.words}"' if one.file else ""
        yield f"| {one.sentence} | {_links(one.tests)} | {made} |"
    yield ""
    yield "The laws of `contract.py` are inherited by these classes, and run over every library and every method:"
    yield ""
    for file, names in keepers().items():
        yield f"- [`{file.removeprefix('tests/')}`](../{file}): {', '.join(f'`{name}`' for name in names)}"


def _faults() -> Iterator[str]:
    yield "|  | fault | kept out by |"
    yield "|---|---|---|"
    for number, one in sorted(FAULTS.items()):
        yield f"| {number} | {one.what} | {_links(one.tests) or one.why_not} |"


def _figure(rows: list[dict[str, Any]]) -> str:
    """Return a cell: the largest ratio and whose it is, "exact" where every check asked for the exact result."""
    if not rows:
        return ""
    if all(one["exact"] == one["checks"] and one["ratio"] == 0 for one in rows):
        return "exact"
    worst = max(rows, key=lambda one: one["ratio"])
    return f"{worst['ratio']:.2g} {worst['backend']}"


def table(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table of ratios: a line for a primitive and dtype, a column for a method."""
    yield f"| primitive | dtype | {' | '.join(METHODS)} | checks |"
    yield "|---" * (len(METHODS) + 3) + "|"
    groups: dict[tuple[str, str], list[Any]] = {}
    for one in rows:
        groups.setdefault((one["primitive"], one["dtype"]), []).append(one)
    for (primitive, dtype), group in sorted(groups.items()):
        cells = [_figure([one for one in group if one["method"] == method]) for method in METHODS]
        yield f"| `{primitive}` | {dtype} | {' | '.join(cells)} | {sum(one['checks'] for one in group)} |"


def recorded() -> dict[str, dict[str, Any]]:
    """Return the committed records: for the name of each file, its header and rows."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(ERRORS.glob("*.json"))}


def _errors() -> Iterator[str]:
    for file in recorded().values():
        head = file["header"]
        names = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
        yield f"**{head['device']}**, {head['date']}, commit {head['commit'][:12]}; {names}."
        yield ""
        yield from table(file["records"])
        yield ""


def page() -> str:
    """Return the text of docs/trust.md."""
    return "\n".join(
        [
            "# What you can rely on",
            "",
            "Every promise of the library stands here beside the tests that keep it, then how much of its error bounds "
            "it uses, then the faults that libraries like it had and what keeps them out. `python -m tests.trust` "
            "writes this page and `tests/test_promises.py` holds it to the tests; edit neither the page nor its "
            "figures by hand.",
            "",
            "## Promises",
            "",
            *_promises(),
            "",
            "## Errors over their bounds",
            "",
            "The largest error found by any check of the suite, over the bound it is held against, by primitive and "
            "dtype of the result. The bounds are those of the docstrings where these state one (`test_promises.py` "
            "compares them), else those of the test. 1 would be all of the bound. The backend named is the worst. "
            '"exact" says that every check asked for the exact result. `emulated` is the CUDA kernel\'s text run on '
            "a CPU. Derivatives count with their primitive.",
            "",
            *_errors(),
            "## Faults of others",
            "",
            *_faults(),
            "",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Merge records, if any are given, and write the page; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust", description=__doc__)
    parser.add_argument("records", nargs="*", type=Path, help="files of pytest --record-errors, of any devices")
    options = parser.parse_args(arguments)
    merged: dict[str, tuple[dict[str, Any], Errors]] = {}
    for path in options.records:
        file = json.loads(path.read_text())
        head, found = merged.setdefault(file["header"]["device"], (file["header"], Errors()))
        head["versions"] |= file["header"]["versions"]
        found.join(file["records"])
    for device, (head, found) in merged.items():
        from benches import records

        found.write(ERRORS / f"{records.slug(device)}.json", head)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
