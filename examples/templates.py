"""One text for every type, and a small array with its length as a parameter, so that it stays in registers.

The source had a C++ template for float32, float64 and int32, and a kernel with the size of a thread's array as a
template parameter. Here the text is Python: the same operator serves all dtypes, and an element may consist of any
number of components, which on a GPU become a thread's registers. The array is the sorted list of the `count` smallest
numbers; merging two lists is associative, so one reduction finds them in one pass, without sorting the rest.
Numbers are moved and compared, never changed: the difference must be 0.
"""

import functools
import sys

import common
import numpy as np
from array_api_compat import array_namespace

import parprims

SIZES = common.Sizes(small=2000, cpu=300_000, cuda=2**26)


def merge(earlier: tuple, later: tuple) -> tuple:
    """Return the smallest of two ascending lists of one length, a power of two, in ascending order.

    One list beside the other reversed: the smaller of each pair are the smallest of all, first falling and then
    rising or the other way round, which Batcher's bitonic network sorts.
    """
    xp = array_namespace(*earlier)
    ones = [xp.minimum(one, other) for one, other in zip(earlier, reversed(later), strict=True)]
    stride = len(ones) // 2
    while stride:
        for low in (index for index in range(len(ones)) if not index & stride):
            one, other = ones[low], ones[low + stride]
            ones[low], ones[low + stride] = xp.minimum(one, other), xp.maximum(one, other)
        stride //= 2
    return tuple(ones)


def smallest(x, /, count: int, *, method: str = "auto") -> tuple:
    """Return the `count` smallest elements in ascending order."""
    xp = array_namespace(x)
    top = xp.finfo(x.dtype).max if xp.isdtype(x.dtype, "real floating") else xp.iinfo(x.dtype).max
    listed = lambda one: (one, *(xp.full_like(one, top) for _ in range(count - 1)))  # noqa: E731
    op = parprims.Operator(merge, identity=(top,) * count, commutative=True, components=count)
    return parprims.map_reduce(listed, x, op=op, method=method)


def example(run: common.Run) -> None:
    numbers = np.random.default_rng(7).integers(-(10**9), 10**9, run.size)
    for dtype in ("float32", "float64", "int32"):
        x = numbers.astype(dtype)
        ascending = np.sort(np.partition(x, 7)[:8])
        for count in (1, 2, 4, 8) if dtype == "int32" else (4,):

            def check(result, _, expected=ascending[:count]):
                found = np.array([run.to_numpy(one) for one in result])
                return f"largest of them {found[-1]:.0f}", np.max(abs(found - expected)), 0

            call = functools.partial(smallest, count=count)
            skip = () if dtype == "float32" or count == 1 else run.shown_already
            run.compare(f"B7 the {count} smallest, {dtype}", call, (run.asarray(x),), check, skip=skip)


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))
