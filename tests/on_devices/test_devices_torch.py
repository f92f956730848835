"""Tensors of PyTorch that are split over the processes of a group, against the same calls in one process."""

import datetime

import numpy as np
import pytest

import parprims
from parprims._devices import calls, sorts
from tests.support import devices
from tests.support.sort_keys import hostile, stable


def test_in_processes(backend, subtests, tmp_path):
    """Over gloo in four processes, and over NCCL in one for each GPU."""
    if backend.family != "torch":
        pytest.skip("is of PyTorch, in processes of its own")
    import torch

    count = torch.cuda.device_count() if backend.cuda else 4
    if count < 2:
        pytest.skip("needs two GPUs")
    where = "cuda" if backend.cuda else "cpu"
    outcomes = devices.outcomes_of_processes("tests.on_devices.test_devices_torch", count, tmp_path, where)
    for name, raised in outcomes.items():
        with subtests.test(check=name):
            assert not raised, raised


# ---- In each of the processes -----------------------------------------------------------------------------------

N = 26  # which four processes cut into 7, 7, 7 and 5


def cut(x, lengths, rank):
    first = sum(lengths[:rank])
    return x[..., first : first + lengths[rank]]


def near(found, expected, steps=64):
    found, expected = (x.full_tensor() if hasattr(x, "full_tensor") else x for x in (found, expected))
    found, expected = (np.asarray(x.cpu()) for x in (found, expected))
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype.kind == "f":
        atol = steps * np.finfo(found.dtype).eps * np.max(np.abs(expected), initial=0)
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)
    else:
        np.testing.assert_array_equal(found, expected)


def draws():
    import torch

    rng = np.random.default_rng(27)
    return tuple(torch.asarray(x, device=where()) for x in rng.uniform(-1, 1, (4, N)))


def where():
    return PLACE[0]


def groups():
    import torch.distributed as dist

    if dist.get_world_size() == 2:
        return tuple((dist.group.WORLD, dist.get_rank(), lengths) for lengths in ((N, 0), (20, 6), (0, N)))
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][dist.get_rank() // 2]
    return (
        (pair, dist.get_rank() % 2, (N, 0)),
        (pair, dist.get_rank() % 2, (20, 6)),
        (dist.group.WORLD, dist.get_rank(), (7, 0, 1, 18)),
    )


def check_canonical_bits_do_not_show_the_number_of_processes():
    import torch
    import torch.distributed as dist

    block, canonical = parprims.CANONICAL_BLOCK, {"method": "canonical"}
    x = torch.asarray(np.random.default_rng(3).standard_normal((2, 4 * block + 100)).astype(np.float32), device=where())
    rest = [0] * (dist.get_world_size() - 2)
    for lengths, reverse in (
        ([3 * block, *rest, block + 100], False),
        ([*rest, 4 * block, 100], False),
        ([block + 100, *rest, 3 * block], True),
    ):
        part = cut(x, lengths, dist.get_rank()).contiguous()
        group = {"axis": 1, "axis_name": dist.group.WORLD, **canonical}
        if not reverse:
            assert torch.equal(parprims.sum(part, **group), parprims.sum(x, axis=1, **canonical))
        for options in ({}, {"exclusive": True, "initial": 0.5}):
            found = parprims.scan(part, "add", reverse=reverse, **options, **group)
            whole = parprims.scan(x, "add", axis=1, reverse=reverse, **options, **canonical)
            assert torch.equal(found, cut(whole, lengths, dist.get_rank()))
    with pytest.raises(ValueError, match="method must not be 'canonical' for parts of"):
        parprims.sum(x[:, : 5 + dist.get_rank()], **group)


def moved(earlier, later):
    """Compose maps x -> matrix x + offset."""
    return later[0] @ earlier[0], (later[0] @ earlier[1][..., None])[..., 0] + later[1]


def check_plain_tensors_of_uneven_and_empty_parts():
    import torch

    a, b, c, d = draws()
    keys = (4 * b).round()
    whole = torch.arange(N, device=where())
    for group, rank, lengths in groups():

        def part(x):
            return cut(x, lengths, rank)  # noqa: B023

        near(parprims.sum(part(whole), axis_name=group), parprims.sum(whole))
        near(parprims.max(part(b), axis_name=group), parprims.max(b))
        near(
            parprims.reduce(part(b), lambda x, y: x + y + x * y, axis_name=group),
            parprims.reduce(b, lambda x, y: x + y + x * y),
            512,
        )
        for options in (
            {},
            {"reverse": True},
            {"exclusive": True},
            {"initial": 3.0},
            {"op": lambda x, y: x + y + x * y},
        ):
            near(parprims.scan(part(b), axis_name=group, **options), part(parprims.scan(b, **options)), 512)
        for options in ({}, {"reverse": True, "initial": 2.0}):
            found = parprims.linear_recurrence(part(a), part(b), axis_name=group, **options)
            near(found, part(parprims.linear_recurrence(a, b, **options)))
        for descending in (False, True):
            at = torch.argsort(keys, descending=descending, stable=True)
            near(parprims.argsort(part(keys), descending=descending, axis_name=group), part(at))
            found = parprims.sort_by_key(part(keys), part(whole), descending=descending, axis_name=group)
            near(found[1], part(at))
            near(found[0], part(keys[at]))
        rows = torch.stack([keys, a])
        near(parprims.sort(part(rows), axis_name=group), part(torch.sort(rows, stable=True).values))
        for periodic in (False, True):
            x, error = parprims.solve_tridiagonal(
                part(a), part(3 + b), part(c), part(d), periodic=periodic, return_residual=True, axis_name=group
            )
            near(x, part(parprims.solve_tridiagonal(a, 3 + b, c, d, periodic=periodic)))
            assert float(error) < 1e-15
        near(parprims.matmul(part(rows), part(rows).T, axis_name=group), rows @ rows.T)
        leaves = torch.stack([a, b, c, d]).T.reshape(N, 2, 2), torch.stack([b, c]).T
        first = sum(lengths[:rank])
        parts = tuple(x[first : first + lengths[rank]] for x in leaves)
        for options in ({}, {"reverse": True}, {"initial": (torch.eye(2, dtype=a.dtype, device=where()), 0.5)}):
            found = parprims.scan(parts, moved, axis=0, axis_name=group, **options)
            for x, y in zip(found, parprims.scan(leaves, moved, axis=0, **options), strict=True):
                near(x, y[first : first + lengths[rank]], 512)
        for options in ({"keepdims": True}, {"initial": (torch.eye(2, dtype=a.dtype, device=where()), 0.5)}):
            found = parprims.reduce(parts, moved, axis=0, axis_name=group, **options)
            for x, y in zip(found, parprims.reduce(leaves, moved, axis=0, **options), strict=True):
                near(x, y, 512)
        near(parprims.histogram(part(b), 5, axis_name=group)[0], parprims.histogram(b, 5)[0])
        wrong = torch.where(whole == N // 2, torch.nan, b)  # edges from such data are NaN, and enclose nothing
        near(parprims.histogram(part(wrong), 5, axis_name=group)[0], parprims.histogram(wrong, 5)[0])
        with parprims.explain() as told:
            parprims.scan(part(b), axis_name=group)
        assert [(one.devices, len(one.steps)) for one in told] == [(len(lengths), 1)]


def check_sorts_of_hostile_keys():
    """In parts of uneven lengths, which gather the counts beside the cuts, or trade them."""
    import torch

    cases = hostile(N, np.random.default_rng(31))
    kept = sorts.FEW
    try:
        for (group, rank, lengths), few in zip(groups(), (16, 1, 1), strict=True):
            sorts.FEW = few
            for name, x in cases.items():
                order = stable(x, descending=few == 1)
                keys, index = parprims.sort_by_key(
                    cut(torch.asarray(x, device=where()), lengths, rank),
                    cut(torch.arange(N, device=where()), lengths, rank),
                    descending=few == 1,
                    axis_name=group,
                )
                assert index.tolist() == cut(order, lengths, rank).tolist(), (name, lengths)
                assert keys.cpu().numpy().tobytes() == cut(x[order], lengths, rank).tobytes(), (name, lengths)
    finally:
        sorts.FEW = kept


def check_a_short_part_beside_a_long_one():
    """All parts search by digits of the same lengths, which do not follow from the local part."""
    import torch
    import torch.distributed as dist

    x = torch.asarray(np.random.default_rng(32).standard_normal(10**5).astype(np.float32), device=where())
    lengths = (10, *[0] * (dist.get_world_size() - 2), 10**5 - 10)
    found = parprims.sort(cut(x, lengths, dist.get_rank()), axis_name=dist.group.WORLD)
    assert torch.equal(found, cut(torch.sort(x).values, lengths, dist.get_rank()))


def check_one_element_of_any_stride():
    import torch

    from parprims._devices import torch_groups

    x = torch.arange(3, device=where())[1:2].as_strided((1,), (0,))
    assert torch_groups._bytes(x).tolist() == [1, *7 * [0]]


def check_dtensors():
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    a, b, c, d = draws()
    mesh = init_device_mesh(where(), (2, dist.get_world_size() // 2), mesh_dim_names=("i", "j"))
    for placements in ((Shard(0), Replicate()), (Replicate(), Shard(0))):
        arrays = tuple(distribute_tensor(x, mesh, placements) for x in (a, b, c, d))
        x = parprims.scan(arrays[1])
        split = [one if mesh.size(dim) > 1 else Replicate() for dim, one in enumerate(placements)]
        assert list(x.placements) == split
        near(x, parprims.scan(b))
        near(parprims.sum(arrays[1]), parprims.sum(b))
        near(parprims.linear_recurrence(arrays[0], arrays[1]), parprims.linear_recurrence(a, b))
        near(parprims.linear_recurrence(0.5, arrays[1]), parprims.linear_recurrence(0.5, b))
        near(parprims.sort(arrays[1]), torch.sort(b).values)
        near(parprims.solve_tridiagonal(arrays[0], 3.0, arrays[2], arrays[3]), parprims.solve_tridiagonal(a, 3.0, c, d))
    leaves = torch.stack([a, b, c, d]).T.reshape(N, 2, 2), torch.stack([b, c]).T.contiguous()
    arrays_of_leaves = tuple(distribute_tensor(x, mesh, (Replicate(), Shard(0))) for x in leaves)
    for x, y in zip(parprims.scan(arrays_of_leaves, moved, axis=0), parprims.scan(leaves, moved, axis=0), strict=True):
        near(x, y, 512)
    for x, y in zip(
        parprims.reduce(arrays_of_leaves, moved, axis=0), parprims.reduce(leaves, moved, axis=0), strict=True
    ):
        near(x, y, 512)
    table = torch.stack([a, b, c, d])
    both = distribute_tensor(table, mesh, (Shard(0), Shard(1)))
    near(parprims.scan(both), parprims.scan(table))
    near(parprims.sum(both), parprims.sum(table))
    near(parprims.sum(both, axis=0), parprims.sum(table, axis=0))
    other = distribute_tensor(table.T.contiguous(), mesh, (Replicate(), Shard(0)))
    near(parprims.matmul(both, other), table @ table.T)
    with pytest.raises(TypeError, match="must all be DTensors"):
        parprims.linear_recurrence(arrays[0], b)
    flat = init_device_mesh(where(), (dist.get_world_size(), 1))  # whose second dimension splits nothing
    for placements in ((Shard(0), Shard(0)), (Shard(0), Shard(1))):
        near(parprims.scan(distribute_tensor(table.T.contiguous(), flat, placements), axis=0), table.T.cumsum(0))


def check_quick_ways():
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    count, n = dist.get_world_size(), 2**13
    mesh = init_device_mesh(where(), (count,))
    rng = np.random.default_rng(30)
    a, b = torch.asarray(rng.uniform(-0.3, 0.3, (2, count * n)), dtype=torch.float32, device=where())
    calls.QUICK = calls.QUICK_SYSTEMS = n
    split = [distribute_tensor(x, mesh, [Shard(0)]) for x in (a, b)]
    with parprims.explain() as told:
        near(parprims.linear_recurrence(*split), parprims.linear_recurrence(a, b), 16)
        near(parprims.linear_recurrence(*split, reverse=True), parprims.linear_recurrence(a, b, reverse=True), 16)
    assert len(told[0].steps) == 2  # whether it forgets, and the ends of the parts
    near(parprims.solve_tridiagonal(split[0], 1.0, split[1], split[1]), parprims.solve_tridiagonal(a, 1.0, b, b))
    calls.QUICK, calls.QUICK_SYSTEMS = 2**20, 2**16


def check_derivatives():
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh(where(), (dist.get_world_size(),))

    def loss(a, b, c):
        x = parprims.linear_recurrence(a, b)
        y = parprims.solve_tridiagonal(a, c + 4, b, x)
        keys, values = parprims.sort_by_key(c, y)
        return parprims.sum(parprims.scan(values * values, reverse=True) * keys)

    def gradients(arrays):
        arrays = tuple(x.detach().requires_grad_() for x in arrays)
        return torch.autograd.grad(loss(*arrays), arrays)

    arrays = draws()[:3]
    split = tuple(distribute_tensor(x, mesh, [Shard(0)]) for x in arrays)
    for one, other in zip(gradients(split), gradients(arrays), strict=True):
        near(one, other, 512)


NEEDS = ("torch.distributed.tensor", "parprims._torch_compile")
PLACE = ["cpu"]


def main(rank, count, folder, place):
    import torch.distributed as dist

    PLACE[:] = [place]
    limit = datetime.timedelta(seconds=30)  # what one process raises, others wait for
    at = f"file://{folder}/processes"
    if where() == "cuda":
        import torch

        torch.cuda.set_device(rank)
    library = "nccl" if where() == "cuda" else "gloo"
    dist.init_process_group(library, init_method=at, rank=rank, world_size=count, timeout=limit)
    devices.run_all(globals(), stop=True)
    dist.destroy_process_group()
