"""Sums with the same bits everywhere of tensors that several processes hold: the bits of NumPy in one process."""

import datetime

import numpy as np
import pytest

import parprims
from tests.on_devices.test_devices_everywhere import calls, given, refused
from tests.primitives.reproducible.test_reproducible_sums import EVERYWHERE, KINDS, agree, terms
from tests.support import devices

ROWS, COLUMNS = 26, 4
NAMES = ("float32", "float64", "float16")


def test_in_processes(backend, subtests, tmp_path):
    if backend.family != "torch" or backend.cuda:
        pytest.skip("is of PyTorch on CPUs, in processes of its own")
    outcomes = devices.outcomes_of_processes("tests.on_devices.test_devices_everywhere_torch", 4, tmp_path)
    for name, raised in outcomes.items():
        with subtests.test(check=name):
            assert not raised, raised


# ---- In each of the processes -----------------------------------------------------------------------------------


def tables(kind, name):
    """Return the same two tables in every process."""
    rng = np.random.default_rng(KINDS.index(kind))
    x = terms(kind, name, ROWS * COLUMNS, rng).reshape(ROWS, COLUMNS)
    return x, rng.uniform(-1, 1, x.shape).astype(x.dtype)


def array(x):
    return (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().numpy()


def expected(call, *pair):
    with np.errstate(all="ignore"):
        return calls("array")[call](*pair)


def groups():
    """Return groups of one to four processes that this process belongs to, with the lengths of the parts."""
    import torch.distributed as dist

    rank, found = dist.get_rank(), []
    for members, lengths in (
        ((0,), (26,)), ((2, 3), (26, 0)), ((0, 1), (20, 6)), ((1, 2, 3), (0, 25, 1)), ((0, 1, 2, 3), (7, 0, 1, 18)),
        ((0, 1, 2, 3), (7, 7, 7, 5)),
    ):  # fmt: skip
        group = dist.new_group(list(members))
        if rank in members:
            at = members.index(rank)
            found.append((group, slice(sum(lengths[:at]), sum(lengths[: at + 1]))))
    return found


def check_plain_tensors_of_uneven_and_empty_parts():
    import torch

    for group, own in groups():
        for name in NAMES:
            for kind in ("wide", "tiny", "cancelling", "huge", "both", "nan"):
                for call in calls():
                    if "of rows" in call:
                        continue
                    pair = given(call, *tables(kind, name))
                    wanted = expected(call, *pair)
                    parts = [torch.asarray(x[own].copy()) for x in pair]
                    found = array(calls(axis_name=group)[call](*parts))
                    agree(found, wanted[own] if call == "running sum" else wanted)


def check_dtensors():
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh, line = init_device_mesh("cpu", (2, 2)), init_device_mesh("cpu", (4,))
    row, column, whole = Shard(0), Shard(1), Replicate()
    for on, placements in (
        (mesh, (row, whole)), (mesh, (whole, row)), (mesh, (row, column)), (mesh, (column, row)), (line, (column,)),
    ):  # fmt: skip
        for name in NAMES:
            for call in calls():
                if call == "product of vectors":
                    continue  # DTensors that are split along columns cannot be reshaped
                pair = given(call, *tables("wide", name))
                split = [distribute_tensor(torch.asarray(x), on, placements) for x in pair]
                if "bins" in call and {row, column} <= {*placements}:
                    for options in (EVERYWHERE, {}):
                        with pytest.raises(ValueError, match="x must be split over one dimension of the mesh"):
                            parprims.histogram(split[0], 3, weights=split[1], **options)
                    continue
                agree(array(calls()[call](*split)), expected(call, *pair))
        x, y = tables("wide", "float64")
        split = [distribute_tensor(torch.asarray(one), on, placements) for one in (x, y)]
        agree(array(parprims.vecdot(*split, **EVERYWHERE)), parprims.vecdot(x, y, method="array", **EVERYWHERE))


def check_derivatives():
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    x, y = tables("wide", "float64")
    mesh, rank = init_device_mesh("cpu", (4,)), dist.get_rank()
    for call in ("sum of columns", "sum of all", "running sum", "bins of a range"):
        pair, at = given(call, x, y), 1 if "bins" in call else 0
        slopes = []
        for functions, split in ((calls(), True), (calls(axis_name=dist.group.WORLD), False),
                                 (calls(reproducible=None), True)):  # fmt: skip
            given_pair = [
                distribute_tensor(torch.asarray(one), mesh, [Shard(0)]) if split else torch.asarray(one[7 * rank :][:7])
                for one in pair
            ]
            by = given_pair[at].requires_grad_()
            found = functions[call](*given_pair)
            wanted = expected(call, *pair)
            if len(slopes) < 2:
                agree(array(found), wanted[7 * rank :][:7] if call == "running sum" and not split else wanted)
            share = 1 if split or call == "running sum" else dist.get_world_size()
            loss = parprims.sum(found * found) if split else (found * found).sum() / share
            slopes.append(array(torch.autograd.grad(loss, by)[0]))
        np.testing.assert_allclose(slopes[0], slopes[2])
        np.testing.assert_allclose(slopes[1], slopes[2][7 * rank :][:7])


def check_messages_and_refusals():
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    x = torch.ones(24, dtype=torch.float32)
    with parprims.explain() as told:
        parprims.sum(x, axis_name=dist.group.WORLD, **EVERYWHERE)
    assert [(one.primitive, one.devices, len(one.steps)) for one in told] == [("sum", 4, 2)]
    split = distribute_tensor(x, init_device_mesh("cpu", (4,)), [Shard(0)])
    refused(split, torch.asarray([0, 24]), torch.zeros(24, dtype=torch.int64))
    with pytest.raises(TypeError, match="axis_name must be a group of processes"):
        parprims.sum(x, axis_name="i", **EVERYWHERE)


NEEDS = ("torch.distributed.tensor", "parprims._torch_compile")


def main(rank, count, folder):
    import torch.distributed as dist

    limit = datetime.timedelta(seconds=30)  # what one process raises, others wait for
    dist.init_process_group("gloo", init_method=f"file://{folder}/here", rank=rank, world_size=count, timeout=limit)
    found = {name: value for name, value in globals().items() if name.startswith("check_")}
    devices.run_all(found, stop=True)
    dist.destroy_process_group()
