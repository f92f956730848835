"""Kernels of matrix products by the instructions of warpgroups, and which kernel is chosen."""

import itertools
import math

import numpy as np
import pytest

from parprims._primitives.matmul.tiles import TUNING
from tests.primitives.matmul import test_matmul_kernel
from tests.primitives.matmul.test_matmul import (
    loop,
)
from tests.primitives.matmul.test_matmul_kernel import (
    TENSOR,
    allowed,
    check,
    gapped,
    inset,
    lacking,
    make,
    odd,
    plain,
    planned,
    turned,
)

sizes = test_matmul_kernel.sizes


# A small tile of each kind.
GROUPS = {"HALF": (64, 64, 64), "TF32": (64, 64, 32), "SPLIT": (64, 64, 32), "DOUBLE": (64, 128, 16)}


def kind_of(dtype, precision):
    """Return the kind of instructions for a dtype and precision, as the sizes of groups name it."""
    by_precision = {"tf32": "TF32", "highest": "DOUBLE", "float32": "SPLIT"}
    return {"float16": "HALF", "bfloat16": "HALF", "float64": "DOUBLE"}.get(dtype) or by_precision[precision]


class TestGroups:
    """Tensor cores by the instructions of groups of four warps, where the factors lie as these ask for."""

    @pytest.fixture
    def groups(self, sizes):
        """Return a function that tells, with small tiles for groups, the tile of a dtype and whether it is theirs."""
        sizes(groups={kind: (tile,) for kind, tile in GROUPS.items()}, at_once=0, at_once_uneven=0, split_clusters={})

        def tile(dtype, precision, views):
            kind = kind_of(dtype, precision)
            one_along_k = views[0] is plain or views[1] is turned
            return GROUPS[kind], kind in ("HALF", "DOUBLE") or one_along_k

        return tile

    @pytest.mark.parametrize("views", [*itertools.product((plain, turned), repeat=2)])
    @pytest.mark.parametrize(("dtype", "precision"), TENSOR)
    def test_layouts(self, gpu, run, rng, subtests, groups, dtype, precision, views):
        lacking(gpu, dtype)
        tile, fits = groups(dtype, precision, views)
        half = kind_of(dtype, precision) == "HALF"
        k = 3000 if half else 1200
        for a, b in (((72, 136), (136, 88)), ((2, 64, 64), (64, 128)), ((72, 8), (3, 8, 56)), ((40, k), (k, 56))):
            with subtests.test(a=a, b=b):
                options = {"kernel": "tensor", "tile": tile, "precision": precision}
                strides = [
                    (
                        *(math.prod(one[at + 1 :]) for at in range(len(one) - 2)),
                        *((one[-1], 1) if view is plain else (1, one[-2])),
                    )
                    for one, view in zip((a, b), views, strict=True)
                ]
                _, plan = planned(a, b, dtype, strides=strides, **options)
                assert plan.launches[-1].template.endswith("by_groups") == fits
                assert bool(plan.zeroed_bytes) == (a[-1] == k)
                check(gpu, run, make(rng, (a, b), dtype), views, **options)
                (launch,) = planned(a, b, dtype, strides=strides, capability=86, **options)[1].launches
                assert launch.template == "multiply_tensor"

    @pytest.mark.parametrize("views", [*itertools.product((plain, turned), repeat=2)])
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_copied_by_threads(self, gpu, run, rng, subtests, groups, sizes, dtype, views):
        lacking(gpu, dtype)
        options = {"kernel": "tensor", "tile": groups(dtype, "float32", views)[0]}
        sizes(at_once=2**40, at_once_uneven=2**40)
        for shapes in (((72, 136), (136, 88)), ((2, 64, 64), (64, 128)), ((40, 1200), (1200, 56))):
            with subtests.test(shapes=shapes):
                assert "BY_THREADS" in planned(*shapes, dtype, **options)[1].launches[-1].arguments
                check(gpu, run, make(rng, shapes, dtype), views, **options)

    def test_bulk_copies(self, groups):
        """They are of 16-bit floats and the right factor of tf32, wherever a tensor map can tell where these lie."""
        a, b, row_major = (72, 136), (136, 88), ((136, 1), (88, 1))
        batch, two = (3, 72, 136), (2, 3, 136, 88)
        for way, dtype, shapes, strides in (
            ("AT_ONCE", "float16", (a, b), row_major),
            ("AT_ONCE", "float16", (a, b), ((1, 72), (1, 136))),
            ("AT_ONCE", "float16", (batch, (3, *b)), ((9792, 136, 1), (11968, 88, 1))),
            ("AT_ONCE", "float16", (batch, (3, *b)), ((9792, 136, 1), (0, 88, 1))),
            ("BY_THREADS", "float16", (batch, (3, *b)), ((9792, 136, 1), (-11968, 88, 1))),
            ("BY_THREADS", "float16", (a, two), (row_major[0], (100000, 11968, 88, 1))),
            ("BY_THREADS", "float16", (a, b), ((0, 1), (88, 1))),
            ("BY_THREADS", "float16", (a, b), ((-136, 1), (88, 1))),
            ("RIGHT_AT_ONCE", "float32", (a, b), ((136, 1), (1, 136))),
            ("RIGHT_AT_ONCE", "float32", (a, b), row_major),  # turned: a is the right one
            ("BY_THREADS", "float32", (a, b), ((0, 1), (88, 1))),
        ):
            precision = "tf32" if dtype == "float32" else "float32"
            options = {"kernel": "tensor", "tile": GROUPS[kind_of(dtype, precision)], "precision": precision}
            plan = planned(*shapes, dtype, strides=strides, **options)[1]
            assert way in plan.launches[-1].arguments, (shapes, strides)
            assert bool(plan.scratch_bytes) == (way != "BY_THREADS")

    def test_bulk_copies_of_lines_of_any_pitch(self):
        """They pay earlier where lines do not begin at multiples of 128 bytes, and where tiles have edges."""
        for (m, k, n), at_once in (
            ((512, 512, 512), False),
            ((1024, 1024, 1024), True),
            ((512, 500, 512), True),
            ((512, 512, 500), True),
            ((448, 512, 512), True),
            ((240, 2688, 3904), True),
            ((200, 200, 200), False),
        ):
            plan = planned((m, k), (k, n), "float16", kernel="tensor")[1]
            assert ("AT_ONCE" in plan.launches[-1].arguments) == at_once, (m, k, n)

    @pytest.mark.parametrize(("dtype", "precision"), TENSOR)
    def test_own_tiles(self, gpu, run, rng, subtests, dtype, precision):
        lacking(gpu, dtype)
        for tile in TUNING[90].groups[kind_of(dtype, precision)]:
            with subtests.test(tile=tile):
                options = {"kernel": "tensor", "tile": tile, "precision": precision}
                shapes = (tile[0] + 8, 136), (136, tile[1] + 8)
                check(gpu, run, make(rng, shapes, dtype), (plain, turned), **options)

    @pytest.mark.sanitize
    @pytest.mark.parametrize(("dtype", "precision"), TENSOR)
    def test_blocks_go_on(self, gpu, run, rng, groups, sizes, dtype, precision):
        """Few blocks, each with several tiles of several products, whose sums have from 1 to 8 tiles along k."""
        lacking(gpu, dtype)
        views = plain, turned
        tile, _ = groups(dtype, precision, views)
        sizes(multiprocessors=3)
        options = {"kernel": "tensor", "tile": tile, "precision": precision}
        for k in (8, 136, 264):
            shapes = (3, 72, k), (k, 200)
            strides = (72 * k, k, 1), (1, k)
            _, plan = planned(*shapes, dtype, strides=strides, **options)
            (launch,) = plan.launches
            assert launch.template.endswith("by_groups")
            assert launch.grid == 3
            check(gpu, run, make(rng, shapes, dtype), views, **options)

    @pytest.mark.sanitize
    @pytest.mark.parametrize("views", [(turned, plain), (odd, plain), (turned, gapped), (inset, inset)])
    @pytest.mark.parametrize("precision", ["float32", "tf32"])
    def test_laid_along_k(self, gpu, run, rng, subtests, groups, sizes, precision, views):
        """Neither factor lies as groups ask for: the smaller one is copied so."""
        tile, _ = groups("float32", precision, views)
        sizes(packed=40)
        for a, b in (((72, 141), (141, 50)), ((3, 50, 70), (3, 70, 131)), ((2, 45, 1201), (1201, 40))):
            with subtests.test(a=a, b=b):
                options = {"kernel": "tensor", "tile": tile, "precision": precision}
                strides = [(*(math.prod(one[at:]) * 3 for at in range(1, len(one))), 3) for one in (a, b)]
                packing, multiply = planned(a, b, "float32", strides=strides, **options)[1].launches
                assert packing.template == "pack_lines"
                assert multiply.template.endswith("by_groups")
                check(gpu, run, make(rng, (a, b), "float32"), views, **options)

    @pytest.mark.sanitize
    @pytest.mark.parametrize("views", [(turned, plain), (odd, plain), (turned, gapped), (inset, inset)])
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_packed(self, gpu, run, rng, subtests, groups, dtype, views):
        """Lines of 16-bit floats that do not begin at whole vectors: each such factor is packed."""
        lacking(gpu, dtype)
        tile, _ = groups(dtype, "float32", views)
        for a, b in (((72, 141), (141, 50)), ((3, 50, 70), (3, 70, 131)), ((2, 45, 1201), (1201, 40))):
            with subtests.test(a=a, b=b):
                options = {"kernel": "tensor", "tile": tile}
                strides = [(*(math.prod(one[at:]) * 3 for at in range(1, len(one))), 3) for one in (a, b)]
                packing, multiply = planned(a, b, dtype, strides=strides, **options)[1].launches
                assert packing.template == "pack_lines"
                assert multiply.template.endswith("by_groups")
                check(gpu, run, make(rng, (a, b), dtype), views, **options)

    @pytest.mark.parametrize(("m", "k", "n"), [(1, 4097, 4097), (8, 1001, 1001), (1001, 1001, 3)])
    def test_packed_for_few_rows(self, m, k, n):
        """Few rows or columns, for which single warps would load elements one by one."""
        packing, multiply = planned((m, k), (k, n), "float16", kernel="tensor")[1].launches
        assert packing.template == "pack_lines"
        assert multiply.template == "multiply_by_groups"

    @pytest.mark.parametrize("cluster", [(2, 1), (1, 2), (2, 2)])
    @pytest.mark.parametrize("views", [*itertools.product((plain, turned), repeat=2)])
    def test_clusters(self, gpu, run, rng, subtests, groups, sizes, cluster, views):
        """Blocks that share tiles of the factors; the last cluster of a row or column of tiles may be partly empty."""
        dtype = "float16"
        tile, _ = groups(dtype, "float32", views)
        sizes(clusters=(cluster,), multiprocessors=5)
        for a, b in (((136, 136), (136, 200)), ((3, 192, 328), (3, 328, 136)), ((136, 1608), (1608, 72))):
            with subtests.test(a=a, b=b):
                options = {"kernel": "tensor", "tile": tile}
                (launch,) = planned(a, b, dtype, **options)[1].launches
                assert launch.cluster == cluster[0] * cluster[1]
                assert launch.grid == 4
                check(gpu, run, make(rng, (a, b), dtype), views, **options)

    @pytest.mark.sanitize
    @pytest.mark.parametrize("cluster", [(2, 1), (1, 2), (2, 2)])
    def test_clusters_sanitized(self, gpu, run, rng, groups, sizes, cluster):
        """More tiles along k than there are stages, and a second unit of work for each cluster."""
        sizes(clusters=(cluster,), multiprocessors=4)
        views = turned, plain
        options = {"kernel": "tensor", "tile": groups("float16", "float32", views)[0]}
        check(gpu, run, make(rng, ((136, 648), (648, 136)), "float16"), views, **options)

    @pytest.mark.sanitize
    @pytest.mark.parametrize(
        ("cluster", "how"),
        [
            *(((1, 1, parts), "AT_ONCE") for parts in (2, 3, 8)),
            ((1, 1, 3), "BY_THREADS"),
            ((2, 1, 2), "AT_ONCE"),
            ((1, 2, 3), "AT_ONCE"),
        ],
    )
    def test_split_in_clusters(self, gpu, run, rng, subtests, groups, sizes, cluster, how):
        """Blocks that multiply parts of the same sums, and store pairs or single numbers of their total."""
        dtype = "float16"
        options = {"kernel": "tensor", "tile": groups(dtype, "float32", (plain, plain))[0]}
        least = 0 if how == "AT_ONCE" else 2**40
        sizes(clusters=(cluster[:2],), split_clusters={math.prod(cluster): 9}, at_once=least, at_once_uneven=least)
        few = (((40, 2040), (2040, 136)), ((3, 48, 2048), (2048, 56)), ((72, 2037), (2037, 51)))
        for a, b in few if cluster[:2] == (1, 1) else (((136, 2040), (2040, 136)),):
            with subtests.test(a=a, b=b):
                _, plan = planned(a, b, dtype, **options)
                assert how in plan.launches[-1].arguments
                assert plan.launches[-1].cluster == math.prod(cluster)
                assert plan.zeroed_bytes == 0
                check(gpu, run, make(rng, (a, b), dtype), (plain, plain), **options)

    @pytest.mark.parametrize("tile", [(64, 64, 64), (64, 256, 64), (128, 192, 64), (128, 256, 64)])
    def test_tiles_split_in_clusters(self, gpu, run, rng, sizes, tile):
        sizes(at_once_uneven=0)
        shapes, options = ((tile[0] + 8, 1000), (1000, tile[1] - 8)), {"kernel": "tensor", "tile": tile}
        assert planned(*shapes, "float16", **options)[1].launches[-1].cluster == 8
        check(gpu, run, make(rng, shapes, "float16"), (turned, turned), **options)

    @pytest.mark.parametrize("views", [(plain, turned), (plain, plain)])
    @pytest.mark.parametrize(("dtype", "precision"), TENSOR)
    def test_not_finite(self, gpu, run, rng, groups, dtype, precision, views):
        lacking(gpu, dtype)
        tile, _ = groups(dtype, precision, views)
        (a,) = make(rng, ((72, 136),), dtype)
        b = rng.integers(-9, 10, (136, 88)).astype(a.dtype)
        a[0, 3], a[1, 5], a[2, 7], a[70, :2] = np.inf, -np.inf, np.nan, (np.inf, -np.inf)
        expected = loop(a, b)
        finite = np.where(np.isfinite(a.astype(np.float64)), a, a.dtype.type(0))
        options = {"kernel": "tensor", "tile": tile, "precision": precision}
        check(gpu, run, (a, b), views, expected=expected, error=allowed(finite, b, precision), **options)

    @pytest.mark.sanitize
    @pytest.mark.parametrize("views", [(plain, turned), (plain, plain)])
    @pytest.mark.parametrize(("dtype", "precision"), TENSOR)
    def test_sanitized(self, gpu, run, rng, groups, dtype, precision, views):
        lacking(gpu, dtype)
        options = {"kernel": "tensor", "tile": groups(dtype, precision, views)[0], "precision": precision}
        check(gpu, run, make(rng, ((72, 136), (136, 72)), dtype), views, **options)

    @pytest.mark.sanitize
    @pytest.mark.parametrize(
        ("dtype", "views", "n"), [("bfloat16", (turned, turned), 88), ("float64", (turned, plain), 73)]
    )
    def test_sanitized_otherwise(self, gpu, run, rng, groups, sizes, dtype, views, n):
        """Copied by threads; numbers that are copied one by one."""
        lacking(gpu, dtype)
        options = {"kernel": "tensor", "tile": groups(dtype, "float32", views)[0]}
        sizes(at_once=2**40, at_once_uneven=2**40)
        check(gpu, run, make(rng, ((72, 136), (136, n)), dtype), views, **options)
