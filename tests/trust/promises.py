"""The promises of the library, each beside the tests that keep it and the words of the document that makes it.

They are one table, so they are one file in spite of its length.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Promise:
    """A sentence that users may rely on, the tests that keep it, and a file that makes it with words from there."""

    sentence: str
    tests: tuple[str, ...]
    file: str = ""
    words: str = ""


_CONTRACT = "tests/support/contract.py::Contract::"

PROMISES: tuple[Promise, ...] = (
    Promise(
        "The result is right, or the call is refused with a sentence; nothing falls back in silence.",
        (
            _CONTRACT + "test_length",
            _CONTRACT + "test_dtype",
            _CONTRACT + "test_any_shape",
            "tests/primitives/matmul/test_matmul.py::TestMatmul::test_any_shape",
            "tests/primitives/sort/test_sort.py::Sorting::test_every_bit",
            "tests/primitives/scan/test_scan_kernel.py::TestStress::test_random_cases",
            "tests/primitives/sort/test_sort_kernel.py::TestStress::test_random_cases",
            "tests/primitives/matmul/test_matmul_kernel.py::TestStress::test_random_cases",
            "tests/dispatch/test_dispatch.py::TestChoice::test_a_refusal_is_an_error_when_asked_for",
            "tests/dispatch/test_dispatch.py::TestChoice::test_an_error_in_a_refusal_is_no_refusal",
            "tests/dispatch/test_fuzz.py::test_no_violation",
            "tests/fuzz/run.py::main",
            "tests/core/test_door.py::TestArrays::test_meaning_lost_is_refused",
        ),
        "README.md",
        "nothing falls back in silence",
    ),
    Promise(
        "The method that you ask for runs, and `explain` shows it.",
        (
            "tests/conftest.py::run",
            "tests/dispatch/test_dispatch.py::TestExplain::test_every_call_in_order",
            "tests/primitives/scan/test_scan.py::TestScan::test_method_taken",
        ),
        "README.md",
        "`with explain() as calls:` records which method ran and why",
    ),
    Promise(
        "`methods` lists the methods that can compute a call, and the reasons of the others, and computes nothing.",
        (
            "tests/dispatch/test_dispatch.py::TestMethods::test_in_the_order_of_auto",
            "tests/dispatch/test_dispatch.py::TestMethods::test_nothing_is_computed_or_recorded",
            "tests/dispatch/test_dispatch.py::TestMethods::test_options_matter",
            "tests/dispatch/test_fuzz.py::test_no_violation",
            "tests/core/test_door.py::TestOptions::test_methods_raise_what_the_call_raises",
            "tests/dispatch/test_dispatch.py::test_auto_serves_what_any_method_does",
            "tests/operators/test_wrong_operators.py::TestPromises::test_are_kept",
            "tests/operators/test_wrong_operators.py::TestPromises::test_cost_nothing",
        ),
        "src/parprims/_dispatch/dispatch.py",
        "List the methods that a call could take",
    ),
    Promise(
        "Inputs are never written.",
        (
            _CONTRACT + "test_inputs_untouched",
            _CONTRACT + "test_view",
            "tests/primitives/matmul/test_matmul.py::TestMatmul::test_inputs_untouched",
            "tests/emulation/test_emulator.py::TestFinds::test_write_to_an_input",
            "tests/operators/test_wrong_operators.py::TestInPlace::test_operator",
            "tests/dispatch/test_fuzz.py::test_no_violation",
        ),
        "README.md",
        "Inputs are never written",
    ),
    Promise(
        "A result shares no memory with an input.",
        (
            "tests/primitives/scan/test_scan.py::TestScan::test_result_is_not_the_input",
            "tests/primitives/recurrence/test_recurrence.py::TestRecurrence::test_result_is_not_the_input",
            "tests/primitives/scan/test_scan_streams.py::TestMemory::test_result_is_not_the_input",
            "tests/primitives/reduce/test_reduce.py::TestOperators::test_one_element_is_a_copy",
            "tests/core/test_door.py::TestArrays::test_an_operator_that_returns_its_argument_returns_no_view",
            "tests/dispatch/test_fuzz.py::test_no_violation",
        ),
        "src/parprims/_primitives/scan/array.py",
        "a result never shares memory with an input",
    ),
    Promise(
        "Every element of a result is written, whatever the memory held before.",
        (
            "tests/primitives/reduce/test_reduce_kernel.py::TestKernelShapes::test_outputs_are_all_written",
            "tests/primitives/scan/test_scan_streams.py::TestMemory::test_outputs_are_all_written",
            "tests/emulation/test_emulator.py::TestFinds::test_unwritten_output",
        ),
    ),
    Promise(
        "By `array` and `kernel`, the same input gives the same bits, run after run.",
        (
            _CONTRACT + "test_same_bits_twice",
            "tests/primitives/matmul/test_matmul.py::TestMatmul::test_same_bits_twice",
            "tests/primitives/scan/test_scan_streams.py::TestReproducible::test_same_bits",
            "tests/primitives/scan/test_scan_kernel.py::TestSlowTiles::test_same_bits",
            "tests/primitives/sort/test_sort_kernel.py::TestShapes::test_same_bits_twice",
            "tests/primitives/matmul/test_matmul_kernel.py::TestSplit::test_same_bits_twice",
            "tests/primitives/tridiagonal/test_tridiagonal.py::TestSolveTridiagonal::test_batch_equals_single",
            "tests/primitives/tridiagonal/test_tridiagonal_kernel.py::test_cut_changes_no_bits",
        ),
        "README.md",
        "the same input gives the same bits on the same machine, run after run",
    ),
    Promise(
        "The kernels for CPUs give the same bits by any number of threads.",
        (
            "tests/cpu/test_cpu.py::test_the_number_of_threads_changes_no_bits",
            "tests/primitives/matmul/test_matmul_cpu.py::test_the_number_of_threads_changes_no_bits",
            "tests/primitives/sort/test_sort_cpu.py::test_the_number_of_threads_changes_no_bits",
            "tests/primitives/histogram/test_histogram_cpu.py::test_the_number_of_threads_changes_no_bits",
            "tests/primitives/filters/test_filters.py::test_the_number_of_threads_changes_no_bits",
            "tests/primitives/banded/test_banded.py::test_the_number_of_threads_changes_no_bits",
        ),
        "docs/histogram.md",
        "the bits of sums do not depend on the number of threads",
    ),
    Promise(
        "By `array` and kernels for CPUs, the bits of a scan's result depend on the elements of its line up to its own "
        "alone.",
        (
            "tests/primitives/scan/test_grouping.py::TestLaws::test_a_line_is_alone_in_any_company",
            "tests/primitives/scan/test_grouping.py::TestLaws::test_a_segment_is_a_line",
            "tests/primitives/scan/test_grouping.py::TestLaws::test_a_prefix_does_not_see_what_follows",
            "tests/primitives/scan/test_grouping.py::TestLaws::test_a_line_goes_on_from_its_state",
            "tests/primitives/scan/test_grouping.py::TestLaws::test_an_exclusive_scan_is_one_element_behind",
            "tests/primitives/scan/test_grouping.py::test_array_has_the_bits_of_the_kernel",
        ),
        "docs/scan.md",
        "Method `array`, and kernels for CPUs, group an element by its place in its line alone",
    ),
    Promise(
        "By `array` and kernels for CPUs, a reduction of a line is that of a tree over the positions of its elements.",
        (
            "tests/primitives/reduce/test_reduce_grouping.py::TestLaws::test_a_line_is_alone_in_any_company",
            "tests/primitives/reduce/test_reduce_grouping.py::TestLaws::test_a_segment_is_a_line",
            "tests/primitives/reduce/test_reduce_grouping.py::TestLaws::test_the_tree",
            "tests/primitives/reduce/test_reduce_grouping.py::TestLaws::test_the_tree_whatever_the_blocks",
            "tests/primitives/reduce/test_reduce_grouping.py::test_products_of_vectors_are_sums",
        ),
        "docs/reduce.md",
        "combine neighbours in a line, then neighbouring pairs",
    ),
    Promise(
        "By `array` and kernels for CPUs, a running sum of terms >= 0 never descends, and one of terms <= 0 never "
        "ascends.",
        ("tests/primitives/scan/test_grouping.py::test_sums_of_terms_of_one_sign_have_one_direction",),
        "docs/scan.md",
        "a running sum of terms >= 0 never descends; a running sum of terms <= 0 never ascends",
    ),
    Promise(
        "On GPUs the bits of results depend on the compute capability, and not on the model of the device.",
        (
            "tests/gpu/test_tuning.py::test_devices_without_an_entry",
            "tests/gpu/test_tuning.py::test_other_devices_of_a_capability",
            "tests/gpu/test_tuning.py::test_grids_are_the_device_s",
            "tests/gpu/test_tuning.py::test_blocks_that_multiply_are_the_device_s",
        ),
        "docs/gpus.md",
        "Bits of results depend on the compute capability, but not on the model of the device",
    ),
    Promise(
        "A histogram counts an element in bin i if it lies between its returned edges i and i + 1, on every library.",
        (
            "tests/primitives/histogram/test_histogram.py::TestBins::test_edges_are_found_exactly",
            "tests/primitives/histogram/test_histogram.py::TestBins::test_edges_of_any_range",
            "tests/primitives/histogram/test_histogram.py::TestBins::test_subnormal_elements",
            "tests/primitives/histogram/test_histogram.py::TestBins::test_subnormal_range",
        ),
        "docs/histogram.md",
        "By every method and on every library, an element belongs to the bin between whose returned edges it is",
    ),
    Promise(
        "Bad input raises ValueError, TypeError or IndexError, before any launch, and names the argument.",
        (
            _CONTRACT + "test_unknown_method_named",
            _CONTRACT + "test_bad_axis_named",
            _CONTRACT + "test_no_array_named",
            _CONTRACT + "test_mixed_namespaces_named",
            "tests/primitives/reduce/test_reduce.py::TestErrors::test_arguments_named",
            "tests/primitives/reduce/test_reduce.py::TestErrors::test_mixed_devices_named",
            "tests/primitives/scan/test_scan.py::TestBadInput::test_scan",
            "tests/primitives/scan/test_scan.py::TestBadInput::test_recurrence",
            "tests/primitives/sort/test_sort.py::Sorting::test_no_order_named",
            "tests/primitives/sort/test_sort.py::TestSortByKey::test_shape_named",
            "tests/primitives/tridiagonal/test_tridiagonal.py::TestSolveTridiagonal::test_shapes_named",
            "tests/primitives/matmul/test_matmul.py::TestMatmul::test_bad_shape_named",
            "tests/primitives/matmul/test_matmul_options.py::TestArguments::test_impossible_tile_named",
            "tests/primitives/matmul/test_matmul_options.py::TestArguments::test_operator_named",
            "tests/operators/test_wrong_operators.py::TestSentences::test_of_what_it_does",
            "tests/core/test_door.py::TestOptions::test_flags",
            "tests/core/test_door.py::TestOptions::test_words",
            "tests/dispatch/test_fuzz.py::test_no_violation",
        ),
        "README.md",
        "Bad input raises `ValueError`, `TypeError` or `IndexError` and names the argument",
    ),
    Promise(
        "Integers are exact, modulo the range of their dtype; floats are within the bound that the docstring states.",
        (
            _CONTRACT + "check",
            "tests/primitives/reduce/test_reduce.py::TestSum::test_array_error_is_that_of_a_tree",
            "tests/primitives/scan/test_scan.py::TestArrayForm::test_error_of_a_tree",
            "tests/primitives/scan/test_scan_rounding.py::TestAccuracy::test_sums",
            "tests/primitives/matmul/test_matmul.py::TestMatmul::test_integers_wrap",
            "tests/primitives/matmul/test_matmul.py::TestPrecision::test_highest",
            "tests/primitives/matmul/test_matmul_rounding.py::TestAccuracy::test_no_worse_than_a_chain",
            "tests/primitives/tridiagonal/test_tridiagonal_stability.py::TestStability::test_classes",
            "tests/primitives/tridiagonal/test_tridiagonal_kernel.py::check",
            "tests/project/test_promises.py::test_bounds_are_those_documented",
        ),
        "README.md",
        "Each docstring states the bound for floats",
    ),
    Promise(
        "16-bit floats are computed in 32 bits and rounded once.",
        (
            "tests/primitives/scan/test_scan.py::TestScan::test_half_precision_is_rounded_once",
            "tests/primitives/scan/test_scan_rounding.py::TestAccuracy::test_half_precision_is_rounded_once",
            "tests/primitives/matmul/test_matmul.py::TestMatmul::test_sixteen_bits_rounded_once",
            "tests/primitives/tridiagonal/test_tridiagonal.py::TestSolveTridiagonal::test_sixteen_bits_are_computed_in_thirty_two",
            "tests/derivatives/test_derivatives.py::TestTorch::test_rounded_once",
        ),
        "README.md",
        "16-bit floats are computed in 32 bits and rounded once",
    ),
    Promise(
        "Reductions and scans carry NaN, infinities and the sign of zero as the loop does; `max` and `min` give NaN "
        "where there is one, and NaN is true.",
        (
            "tests/primitives/reduce/test_reduce.py::TestMax::test_nan_and_signed_zero_and_infinity",
            "tests/primitives/reduce/test_reduce.py::TestTruth::test_nan_is_true",
            "tests/primitives/reduce/test_reduce.py::TestOperators::test_infinities",
            "tests/primitives/reduce/test_reduce.py::TestOperators::test_negative_zero_and_subnormals_survive",
            "tests/primitives/scan/test_scan.py::TestScan::test_special_values",
            "tests/primitives/scan/test_scan_rounding.py::TestAccuracy::test_signed_zeros_and_subnormals_survive",
        ),
        "src/parprims/_primitives/reduce/public.py",
        "NaN counts as larger than all others",
    ),
    Promise(
        "In a recurrence an infinity or NaN spoils its element and all after it, and none before.",
        (
            "tests/primitives/recurrence/test_recurrence.py::TestRecurrence::test_not_finite_from_there_on",
            "tests/primitives/recurrence/test_recurrence.py::TestRecurrence::test_overflow_is_never_a_wrong_number",
            "tests/primitives/scan/test_scan_rounding.py::TestAccuracy::test_not_finite_from_there_on",
            "tests/primitives/scan/test_scan_rounding.py::TestAdjoint::test_infinities_and_nans_stay_where_they_belong",
        ),
        "src/parprims/_primitives/recurrence/public.py",
        "makes that element and all after it infinite or NaN",
    ),
    Promise(
        "Sorts keep one order on every library: by value, -0 equal to +0, NaN last whatever its sign.",
        (
            "tests/primitives/sort/test_sort.py::Sorting::test_every_bit",
            "tests/primitives/sort/test_sort.py::Sorting::test_shape_of_data",
            "tests/primitives/sort/test_sort.py::TestBits::test_every_library",
            "tests/primitives/sort/test_sort_kernel.py::TestEveryDtype::test_ways",
        ),
        "src/parprims/_primitives/sort/public.py",
        "numbers by value, -0 equal to +0, NaN last whatever its sign",
    ),
    Promise(
        "A system with NaN or infinity, or a singular system, spoils no other; the status marks it.",
        (
            "tests/primitives/tridiagonal/test_tridiagonal.py::TestSolveTridiagonal::test_not_finite_stays_in_its_system",
            "tests/primitives/tridiagonal/test_tridiagonal.py::TestSolveTridiagonal::test_pivot_of_zero",
            "tests/primitives/tridiagonal/test_tridiagonal.py::TestSolveTridiagonal::test_status",
            "tests/primitives/tridiagonal/test_tridiagonal_stability.py::TestErrorAndStatus::test_error_and_status_are_as_promised",
        ),
        "src/parprims/_primitives/tridiagonal/public.py",
        "all unknowns of that system are NaN",
    ),
    Promise(
        "A product carries NaN and infinity, by every kernel and precision.",
        (
            "tests/primitives/matmul/test_matmul.py::TestMatmul::test_nan_and_infinity",
            "tests/primitives/matmul/test_matmul_semirings.py::TestSemirings::test_nan_and_infinity",
            "tests/primitives/matmul/test_matmul_rounding.py::TestNotFinite::test_infinity_and_nan",
            "tests/primitives/matmul/test_matmul_rounding.py::TestNotFinite::test_overflow",
        ),
    ),
    Promise(
        "An operator need not commute: the earlier element is always on the left.",
        (
            "tests/primitives/scan/test_scan.py::TestScan::test_order",
            "tests/primitives/scan/test_scan.py::TestScan::test_keep_first_and_last",
            "tests/primitives/reduce/test_reduce.py::TestAffine::test_order_over_several_axes_is_row_major",
            "tests/primitives/reduce/test_reduce.py::TestOperators::test_initial_comes_first",
            "tests/primitives/scan/test_scan_kernel.py::TestShapes::test_every_operator",
            "tests/primitives/scan/test_scan_kernel.py::TestSlowTiles::test_in_order",
            "tests/primitives/matmul/test_matmul_semirings.py::TestSemirings::test_keep_the_later",
            "tests/primitives/matmul/test_matmul_kernel.py::TestSplit::test_order_of_k",
        ),
        "src/parprims/_primitives/scan/public.py",
        "the operator always gets the earlier element first",
    ),
    Promise(
        "What an operator captures is read anew by every call.",
        (
            "tests/operators/test_trace.py::TestLastingKey::test_captures_that_may_change_change_it",
            "tests/operators/test_trace.py::TestCapturesChange::test_by_array",
            "tests/operators/test_trace.py::TestCapturesChange::test_by_kernel",
            "tests/operators/test_trace.py::TestCapturesChange::test_by_kernel_of_tensors",
            "tests/primitives/reduce/test_reduce_kernel.py::TestKernelShapes::test_repeated_calls_see_new_data_and_captures",
            "tests/primitives/scan/test_scan_streams.py::TestMemory::test_repeated_calls_see_new_data_and_captures",
        ),
    ),
    Promise(
        "Sorts are stable, in both directions.",
        (
            "tests/primitives/sort/test_sort.py::Sorting::test_every_bit",
            "tests/primitives/sort/test_sort_kernel.py::TestDistributions::test_stable",
        ),
        "src/parprims/_primitives/sort/public.py",
        "stay in the order they have in x, in both directions",
    ),
    Promise(
        "Empty arrays and arrays of one element are inputs like others.",
        (
            _CONTRACT + "test_length",
            "tests/primitives/reduce/test_reduce.py::TestOperators::test_empty",
            "tests/primitives/scan/test_scan_kernel.py::TestShapes::test_short_and_empty",
            "tests/primitives/sort/test_sort_kernel.py::TestShapes::test_empty",
            "tests/primitives/tridiagonal/test_tridiagonal.py::TestSolveTridiagonal::test_no_rows",
            "tests/primitives/matmul/test_matmul_semirings.py::TestSemirings::test_nothing_to_sum",
            "tests/primitives/matmul/test_matmul_kernel.py::TestShapes::test_vectors_and_empty",
        ),
        "README.md",
        "signature, dtypes, axes, empty input",
    ),
    Promise(
        "Every axis, stride and view is an input like others: strided, reversed, transposed, unaligned, broadcast.",
        (
            _CONTRACT + "test_axis",
            _CONTRACT + "test_view",
            "tests/primitives/reduce/test_reduce.py::TestMapReduce::test_inputs_broadcast",
            "tests/primitives/recurrence/test_recurrence.py::TestRecurrence::test_broadcast",
            "tests/primitives/scan/test_scan_kernel.py::TestShapes::test_layouts",
            "tests/primitives/sort/test_sort_kernel.py::TestShapes::test_axes_and_views",
            "tests/primitives/tridiagonal/test_tridiagonal_kernel.py::test_layouts",
            "tests/primitives/matmul/test_matmul_kernel.py::TestLayouts::test_views",
            "tests/primitives/matmul/test_matmul_kernel.py::TestBatches::test_views_of_batches",
        ),
    ),
    Promise(
        "Results stay on the device and in the library of the inputs.",
        (
            _CONTRACT + "test_device_kept",
            "tests/primitives/reduce/test_reduce_kernel.py::TestKernelShapes::test_another_device_than_the_current",
            "tests/primitives/scan/test_scan_streams.py::TestStreams::test_another_device_than_the_current",
        ),
        "src/parprims/_cuda/__init__.py",
        "Neither copies an array or leaves the device",
    ),
    Promise(
        "Sizes past 2^31 and 2^32 elements are sizes like others.",
        (
            "tests/primitives/reduce/test_reduce_kernel.py::TestKernelShapes::test_more_than_two_to_the_31",
            "tests/primitives/scan/test_scan_kernel.py::TestShapes::test_more_than_two_to_the_31",
            "tests/primitives/sort/test_sort_kernel.py::TestShapes::test_more_than_two_to_the_31",
            "tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_reductions_along_an_axis",
            "tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_scan_along_an_axis",
            "tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_recurrence",
            "tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_sort_along_an_axis",
            "tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_product_with_many_results",
            "tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_systems",
        ),
    ),
    Promise(
        "Derivatives are right on PyTorch and JAX, whichever method computes.",
        (
            "tests/derivatives/test_derivatives.py::TestTorch::test_recurrence",
            "tests/derivatives/test_derivatives.py::TestTorch::test_scan",
            "tests/derivatives/test_derivatives.py::TestJax::test_recurrence",
            "tests/derivatives/test_derivatives.py::TestJax::test_scan",
            "tests/primitives/sort/test_sort.py::TestGradient::test_jax",
            "tests/primitives/sort/test_sort.py::TestGradient::test_torch",
            "tests/primitives/tridiagonal/test_tridiagonal_transforms.py::test_torch_gradients",
            "tests/primitives/tridiagonal/test_tridiagonal_transforms.py::test_jax_transforms",
            "tests/primitives/matmul/test_matmul.py::TestMatmul::test_gradient",
            "tests/primitives/matmul/test_matmul_programs.py::TestDerivatives::test_torch",
        ),
        "docs/scan.md",
        "Scans by add, multiply and affine are differentiable on PyTorch (backward, of any order) and JAX (forward and "
        "backward, of any order), by every method",
    ),
    Promise(
        "`torch.compile` and `torch.export` read every public function without a break of the graph, forward and "
        "backward, and keep each primitive as one node.",
        (
            "tests/on_torch/test_torch_compile.py::TestCompile::test_one_node",
            "tests/on_torch/test_torch_compile.py::TestCompile::test_any_length",
            "tests/on_torch/test_torch_compile.py::TestCompile::test_no_graph_break",
            "tests/on_torch/test_torch_compile.py::TestCompile::test_export",
            "tests/on_torch/test_torch_compile.py::TestCompile::test_own_operators",
            "tests/on_torch/test_torch_compile.py::TestCompile::test_registered_right",
        ),
        "docs/libraries.md",
        "torch.compile and torch.export",
    ),
    Promise(
        "Inside PyTorch every function has its results, and its derivatives: with dynamic shapes, under `torch.func`, "
        "autocast and deterministic mode, and in saved programs. Packages of AOTInductor for CPUs have the results.",
        (
            "tests/on_torch/test_every_function.py::test_dynamic_shapes",
            "tests/on_torch/test_every_function.py::test_func",
            "tests/on_torch/test_every_function.py::test_switches",
            "tests/on_torch/test_every_function.py::test_saved_program",
            "tests/on_torch/test_every_function.py::test_package",
            "tests/on_torch/test_every_function.py::test_transformations_in_a_program",
        ),
        "docs/transformations.md",
        "results and derivatives as outside; one program serves all lengths",
    ),
    Promise(
        "Calls work under `jax.jit`, `vmap` and loops, and under `torch.func`.",
        (
            _CONTRACT + "test_jit",
            "tests/primitives/recurrence/test_recurrence.py::TestTransformations::test_jax_vmap",
            "tests/primitives/reduce/test_reduce.py::TestTransforms::test_jax_vmap_scan_and_gradient",
            "tests/derivatives/test_derivatives.py::TestJax::test_inside_other_transformations",
            "tests/derivatives/test_derivatives.py::TestTorch::test_transformations",
            "tests/primitives/scan/test_scan_streams.py::TestJax::test_inside_a_loop",
            "tests/primitives/tridiagonal/test_tridiagonal_transforms.py::test_torch_func",
            "tests/primitives/matmul/test_matmul_semirings.py::TestSemirings::test_jit_and_vmap",
            "tests/on_torch/test_torch.py::TestTransformations::test_vmap",
            "tests/on_torch/test_torch.py::TestTransformations::test_derivatives",
            "tests/on_jax/test_jax.py::TestTransformations::test_vmap_of_any_axis_and_of_derivatives",
            "tests/on_jax/test_jax.py::TestTransformations::test_inside_a_loop_and_checkpointed",
            "tests/on_jax/test_jax.py::TestLeaks::test_no_tracer_outlives_its_program",
        ),
        "README.md",
        "it runs on NumPy, JAX (also under `jit`), PyTorch, CuPy and any",
    ),
    Promise(
        "Calls can be captured into CUDA graphs, and any two graphs replayed at once.",
        (
            "tests/primitives/reduce/test_reduce_kernel.py::TestKernelShapes::test_captured_into_a_graph",
            "tests/primitives/scan/test_scan_streams.py::TestStreams::test_captured_into_a_graph",
            "tests/primitives/sort/test_sort_kernel.py::TestStreams::test_captured_into_a_graph",
            "tests/gpu/test_gpu_graphs.py::TestGraphs::test_captured_and_replayed",
            "tests/gpu/test_gpu_graphs.py::TestGraphs::test_two_at_once",
            "tests/gpu/test_gpu_graphs.py::TestGraphs::test_scratch_grows_within_a_capture",
            "tests/gpu/test_cuda.py::TestGraphs::test_two_at_once",
        ),
    ),
    Promise(
        "Calls on several streams and from several threads do not disturb each other.",
        (
            "tests/primitives/reduce/test_reduce_kernel.py::TestKernelShapes::test_streams_and_threads",
            "tests/primitives/scan/test_scan_streams.py::TestStreams::test_streams_and_threads",
            "tests/primitives/sort/test_sort_kernel.py::TestStreams::test_streams_and_threads",
            "tests/dispatch/test_dispatch.py::TestExplain::test_threads_do_not_see_each_other",
            "tests/gpu/test_gpu_streams.py::TestStreams::test_eight_streams",
            "tests/gpu/test_gpu_streams.py::TestStreams::test_threads_share_a_stream",
            "tests/gpu/test_gpu_streams.py::TestStress::test_threads_and_streams",
        ),
    ),
    Promise(
        "Where a device has no memory left, the call raises, and the next one works.",
        (
            "tests/primitives/reduce/test_reduce_kernel.py::TestKernelShapes::test_out_of_memory_leaves_the_library_usable",
            "tests/primitives/scan/test_scan_streams.py::TestMemory::test_out_of_memory_leaves_the_library_usable",
            "tests/primitives/sort/test_sort_kernel.py::TestStreams::test_out_of_memory_leaves_the_library_usable",
            "tests/gpu/test_gpu_memory.py::TestOutOfMemory::test_each_allocation",
            "tests/gpu/test_gpu_memory.py::TestOutOfMemory::test_nearly_full",
            "tests/gpu/test_cuda.py::TestFailures::test_each_allocation",
        ),
    ),
    Promise(
        "Memory beyond inputs and outputs is bounded, and the docstrings say by what.",
        (
            "tests/primitives/reduce/test_reduce_kernel.py::TestPlan::test_bounds_of_every_plan",
            "tests/primitives/reduce/test_reduce_kernel.py::TestPlan::test_copies_only_where_unavoidable",
            "tests/primitives/scan/test_scan_plan.py::TestPlan::test_bounds_of_every_plan",
            "tests/primitives/scan/test_scan_plan.py::TestPlan::test_copies_only_where_unavoidable",
            "tests/primitives/sort/test_sort_kernel.py::TestPlan::test_bounds_of_every_plan",
            "tests/primitives/matmul/test_matmul_plan.py::TestPlan::test_bounds_of_every_plan",
            "tests/primitives/matmul/test_matmul_kernel.py::TestBatches::test_nothing_is_copied",
            "tests/primitives/matmul/test_matmul_options.py::TestTiles::test_memory",
            "tests/primitives/tridiagonal/test_tridiagonal_kernel.py::test_plans_fit",
            "tests/primitives/reduce/test_reduce_array.py::TestBlocks::test_memory_of_a_cast",
            "tests/primitives/reduce/test_reduce_array.py::TestBlocks::test_memory_of_a_view_that_repeats_one_number",
            "tests/gpu/test_gpu_streams.py::TestStress::test_memory_stays_where_it_was",
        ),
        "docs/scan.md",
        "up to 4 % of the largest result",
    ),
    Promise(
        "Every kernel compiles for every architecture, without a GPU (`nox -s kernels`).",
        ("tests/checks/compile_kernels.py::main",),
        "CONTRIBUTING.md",
        "A kernel must compile for every architecture",
    ),
    Promise(
        "Every kernel runs on a CPU, where wrong indices, missing barriers and deadlocks show (`nox -s emulate`).",
        (
            "tests/emulation/test_emulator.py::TestFinds::test_missing_barrier",
            "tests/emulation/test_emulator.py::TestFinds::test_write_out_of_bounds",
            "tests/emulation/test_emulator.py::TestFinds::test_deadlock_of_a_block",
            "tests/primitives/reduce/test_reduce_kernel.py::TestSanitized::test_every_kernel",
            "tests/primitives/scan/test_scan_kernel.py::TestSanitized::test_every_kernel",
            "tests/primitives/sort/test_sort_kernel.py::TestSanitized::test_every_kernel",
            "tests/primitives/matmul/test_matmul_kernel.py::TestSanitized::test_ladder",
            "tests/emulation/test_emulator_watches.py::TestSharedMemory::test_poison",
            "tests/emulation/test_emulator_watches.py::TestSharedMemory::test_race",
            "tests/emulation/test_emulator_watches.py::TestFences::test_one_is_missing",
        ),
        "CONTRIBUTING.md",
        "shows wrong indices, missing barriers and deadlocks",
    ),
    Promise(
        "A kernel with a line changed, a barrier or a fence dropped, fails a test of the emulator (`nox -s mutate`).",
        ("tests/mutation/run.py::main",),
        "CONTRIBUTING.md",
        "changes kernels one line at a time",
    ),
    Promise(
        "No call waits for the device, and none needs the whole of it to end.",
        (
            "tests/gpu/test_gpu_streams.py::TestStreams::test_nothing_waits",
            "tests/gpu/test_gpu_streams.py::TestStreams::test_beside_a_kernel_that_holds_the_device",
        ),
    ),
    Promise(
        "A damaged or read-only cache of kernels, no home directory, an unknown architecture, an old driver: a call "
        "works nevertheless, or says in a sentence why not.",
        (
            "tests/gpu/test_cuda_compiler.py::TestCache::test_damaged",
            "tests/gpu/test_cuda_compiler.py::TestCache::test_read_only",
            "tests/gpu/test_cuda_compiler.py::TestCache::test_no_home",
            "tests/gpu/test_cuda_compiler.py::TestArchitectures::test_newer_than_the_compiler",
            "tests/gpu/test_cuda.py::TestRefusals::test_devices",
            "tests/gpu/test_cuda.py::test_cupy_without_a_gpu",
        ),
    ),
    Promise(
        "No speed is published of a wrong result, and no commit may lose more than 5 % in a recorded row.",
        (
            "tests/benchmarks/test_benches.py::test_wrong_result_gets_no_time_and_fails_the_run",
            "tests/benchmarks/test_benches.py::test_a_row_may_not_lose_more_than_a_twentieth",
        ),
        "CONTRIBUTING.md",
        "no result is timed before it is checked",
    ),
    Promise(
        "Every example in the documentation runs and shows what it says.",
        (
            "tests/project/test_package.py::test_docstring_examples",
            "tests/project/test_package.py::test_document_examples",
            "tests/project/test_examples.py::test_example_passes",
            "tests/project/test_examples.py::test_example_fails_where_a_result_is_wrong",
        ),
    ),
    Promise(
        "The tables and plots of the documentation show the recorded figures.",
        (
            "tests/project/test_docs.py::test_generated_parts_are_up_to_date",
            "tests/project/test_docs.py::test_pictures_show_the_records",
            "tests/project/test_docs.py::test_support_of_numpy_is_as_recorded",
        ),
        "docs/performance.md",
        "The plots are drawn from the records in `benches/results/`",
    ),
    Promise(
        "Importing the library loads no array library but NumPy.",
        ("tests/project/test_package.py::test_import_loads_no_array_library",),
    ),
)
