"""Faults that libraries like this one had, each beside the tests that keep it out."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault that a peer had, and the tests that keep it out, or the sentence why it cannot apply."""

    what: str
    tests: tuple[str, ...] = ()
    why_not: str = ""


FAULTS: dict[int, Fault] = {
    1: Fault(
        "cccl#6715, cccl#7622, and ours: an operator is remembered though what it reads has changed",
        (
            "tests/operators/test_trace.py::TestCapturesChange::test_by_array",
            "tests/operators/test_trace.py::TestCapturesChange::test_by_kernel",
            "tests/operators/test_trace.py::TestCapturesChange::test_by_kernel_of_tensors",
            "tests/operators/test_trace.py::TestLastingKey::test_arrays_are_known_by_their_values",
        ),
    ),
    2: Fault(
        "cupy#9841: a cumulative sum past 2^31 elements is its input",
        (
            "tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_cumulative_sum",
            "tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_cumulative_sum_far",
            "tests/primitives/scan/test_scan_kernel.py::TestShapes::test_more_than_two_to_the_31",
        ),
    ),
    3: Fault(
        "pytorch#167086: a cumulative sum along a short axis of an array of more than 2^32 elements is wrong",
        ("tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_scan_along_an_axis",),
    ),
    4: Fault(
        "pytorch#143486: a cumulative sum of two long rows is wrong",
        ("tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_scan_along_an_axis",),
    ),
    5: Fault(
        "flashinfer#3391: rows of just above 2^31 elements fail",
        (
            "tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_scan_along_an_axis",
            "tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_reductions_along_an_axis",
        ),
    ),
    6: Fault(
        "cccl#8806, cccl#8807: offsets in bytes beyond 4 GB are of 32 bits",
        ("tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_more_than_four_gigabytes_of_float64",),
    ),
    7: Fault(
        "pytorch#197673: `torch.arange` is wrong past 2^32",
        ("tests/gpu/test_gpu_sizes.py::ramps",),
    ),
    8: Fault(
        "pytorch#187717: batched solves with many right-hand sides are wrong",
        (
            "tests/dispatch/test_peer_faults.py::TestManySystems::test_right_hand_sides",
            "tests/dispatch/test_peer_faults.py::TestManySystems::test_batch",
            "tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_many_right_sides",
            "tests/gpu/test_gpu_sizes.py::TestBeyond32Bits::test_many_systems",
        ),
    ),
    9: Fault(
        "tensorflow#126681: a tridiagonal solve crashes on an empty batch",
        (
            "tests/dispatch/test_peer_faults.py::TestNoSystems::test_empty_batch",
            "tests/dispatch/test_peer_faults.py::TestNoSystems::test_no_right_hand_side",
            "tests/support/contract.py::Contract::test_any_shape",
            "tests/primitives/tridiagonal/test_tridiagonal.py::TestSolveTridiagonal::test_no_rows",
        ),
    ),
    10: Fault(
        "jax#32487: a tridiagonal solve fails for one or two unknowns",
        (
            "tests/on_jax/test_jax.py::TestTransformations::test_few_unknowns",
            "tests/primitives/tridiagonal/test_tridiagonal.py::Systems::test_length",
        ),
    ),
    11: Fault(
        "jax#36644: NaN where rows must be exchanged",
        (
            "tests/dispatch/test_peer_faults.py::TestZeroDiagonal::test_chain",
            "tests/primitives/tridiagonal/test_tridiagonal_stability.py::TestStability::test_classes",
            "tests/primitives/tridiagonal/test_tridiagonal.py::TestSolveTridiagonal::test_every_length",
            "tests/primitives/tridiagonal/test_tridiagonal_kernel.py::test_tile_edges",
        ),
    ),
    12: Fault(
        "pytorch#190781: a NaN with a sign is sorted first",
        (
            "tests/dispatch/test_peer_faults.py::TestNaN::test_every_sign_and_payload",
            "tests/primitives/sort/test_sort.py::Sorting::test_every_bit",
            "tests/primitives/sort/test_sort_kernel.py::TestEveryDtype::test_ways",
        ),
    ),
    13: Fault(
        "kUPS#186: XLA takes the indices that sort indices for something simpler",
        (
            "tests/on_jax/test_jax.py::TestTransformations::test_order_of_an_order",
            "tests/primitives/sort/test_sort.py::TestArgsort::test_ranks_in_one_program",
        ),
    ),
    14: Fault(
        "pytorch#172568: a scan's derivative is wrong where the first of several results is unused",
        (
            "tests/on_jax/test_jax.py::test_a_loss_on_the_second_component_only",
            "tests/on_torch/test_torch.py::TestDerivatives::test_results_that_go_unused",
            "tests/derivatives/test_derivatives.py::TestTorch::test_one_result_and_both",
        ),
    ),
    15: Fault(
        "pytorch#137943, triton#4362: a reverse scan is wrong",
        (
            "tests/dispatch/test_peer_faults.py::TestReverseScan::test_shape_of_two_and_nine",
            "tests/primitives/scan/test_scan.py::TestScan::test_order",
            "tests/gpu/test_gpu.py::test_reverse_and_not_commutative",
        ),
    ),
    16: Fault(
        "ROCm triton#947: a scan is wrong where it crosses a warp",
        (
            "tests/primitives/scan/test_scan_kernel.py::TestShapes::test_lengths",
            "tests/gpu/test_gpu_streams.py::TestStress::test_edges_of_warps_again_and_again",
        ),
    ),
    17: Fault(
        "warp#1373: scratch that grows within a capture spoils the graph",
        (
            "tests/gpu/test_gpu_graphs.py::TestGraphs::test_scratch_grows_within_a_capture",
            "tests/gpu/test_cuda.py::TestGraphs::test_scratch_grows",
        ),
    ),
    18: Fault(
        "warp#1355: temporaries are freed before a replay",
        (
            "tests/gpu/test_gpu_graphs.py::TestGraphs::test_references_are_dropped",
            "tests/gpu/test_cuda.py::TestGraphs::test_what_is_dropped",
        ),
    ),
    19: Fault(
        "cccl#5661, llama.cpp#21682, mlx#2537: a sort of more than 500 rows fails while captured",
        ("tests/gpu/test_gpu_graphs.py::TestGraphs::test_captured_and_replayed",),
    ),
    20: Fault(
        "b12x#32: a kernel that waits for all its blocks hangs beside another stream's",
        ("tests/gpu/test_gpu_streams.py::TestStreams::test_beside_a_kernel_that_holds_the_device",),
    ),
    21: Fault(
        "flashinfer#3053, flashinfer#3329: a shuffle in a diverged warp, or an arrival that is lost, hangs",
        (
            "tests/gpu/test_gpu.py::test_barriers_of_shared_memory_under_replay",
            "tests/gpu/test_gpu.py::test_every_rest_of_a_tile",
            "tests/emulation/test_emulator.py::TestFinds::test_lanes_outside_a_mask",
        ),
    ),
    22: Fault(
        "ERF#3714, quadrants#649: streams share scratch or arguments",
        (
            "tests/gpu/test_gpu_streams.py::TestStreams::test_eight_streams",
            "tests/gpu/test_gpu_streams.py::TestStreams::test_threads_share_a_stream",
            "tests/primitives/scan/test_scan_streams.py::TestStreams::test_streams_and_threads",
        ),
    ),
    23: Fault(
        "sglang#34297, sglang#32467, pegainfer#410: shared memory is used again without a barrier",
        (
            "tests/emulation/test_emulator_watches.py::TestSharedMemory::test_race",
            "tests/gpu/test_gpu_streams.py::TestStreams::test_two_at_once_have_the_bits_of_one",
        ),
    ),
    24: Fault(
        "cupy#9894: a sort returns garbage where an allocation fails",
        (
            "tests/gpu/test_gpu_memory.py::TestOutOfMemory::test_each_allocation",
            "tests/gpu/test_cuda.py::TestFailures::test_each_allocation",
        ),
    ),
    25: Fault(
        "jax#21403, marin#8077: a sharded cumulative sum is wrong, a derivative of ragged parts NaN",
        (
            "tests/on_jax/test_jax_meshes.py::TestMeshes::test_kernels_of_what_is_split",
            "tests/on_jax/test_jax_meshes.py::TestMeshes::test_inside_shard_map",
            "tests/on_jax/test_jax.py::test_a_nan_stays_where_it_is",
            "tests/core/test_door.py::TestOtherLibraries::test_arrays_sharded_over_devices_of_jax",
        ),
    ),
    26: Fault(
        "pytorch#162602, pytorch#62645: inputs that are not contiguous give a wrong result",
        (
            "tests/dispatch/test_peer_faults.py::TestStrides::test_every_primitive",
            "tests/support/contract.py::Contract::test_view",
            "tests/gpu/test_gpu.py::test_views",
            "tests/gpu/test_gpu.py::test_steps_of_zero_and_overlapping",
        ),
    ),
    27: Fault(
        "pytorch#52213, torch-xpu-ops#2816: the logarithm of a sum of exponentials, of infinities",
        (
            "tests/dispatch/test_peer_faults.py::TestLogaddexp::test_infinities",
            "tests/primitives/scan/test_scan.py::TestScan::test_logaddexp",
        ),
    ),
    28: Fault(
        "cccl#9768, cccl#6452: 30 % of the speed is lost in silence",
        ("tests/benchmarks/test_benches.py::test_a_row_may_not_lose_more_than_a_twentieth",),
    ),
    29: Fault(
        "openxla/xla#21461: the largest of many elements on a CPU is not NaN where one of them is",
        ("tests/dispatch/test_peer_faults.py::TestExtremaOfMany::test_nan",),
    ),
}
