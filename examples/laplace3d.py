"""Laplace's equation on a cube, by Jacobi's iteration: u' is the mean of the six neighbours, u = 1 on every face.

From 0 inside, 10 sweeps in float32. A sweep reads and writes the whole grid, so its speed is that of memory. The block
forms go over the grid block by block, whole columns or boxes, which keeps neighbours in a cache; the temporally blocked
form sweeps a block several times while it is there, and computes the cells shared by neighbouring blocks twice. All add
in one order, so they must agree with the plain sweep in every bit: rms 0. Each form is searched for its fastest block,
and stands beside 10 passes that only read and write the grid: copies, where the library has them. With CuPy, two .cu
files do the same in CUDA.

The source reported for 10 sweeps of 512^3 41.3 ms by columns and 19.8 ms by boxes, of 1024^3 228.1 ms at best and 156.3
ms. A stencil is no primitive of parprims: its neighbourhood, its boundary and its time steps are the user's own, and
what stencils share fits in these few array operations.
"""

import functools
import itertools
import sys

import common
import laplace3d_cuda
import numpy as np
from array_api_extra import at

SIZES = common.Sizes(small=20, cpu=64, cuda=512)
SWEEPS = 10
SOURCE = {("columns", 512): "41.3 ms", ("boxes", 512): "19.8 ms"}
SOURCE |= {("columns", 1024): "228.1 ms", ("boxes", 1024): "156.3 ms"}
INSIDE = (slice(1, -1),) * 3


def update(u):
    """Return the means of the neighbours of all cells that have six."""
    total = u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:]
    total = total + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]
    return (total + u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1]) * float(np.float32(1 / 6))


def plain(xp, u):
    """Return u after one sweep."""
    return at(xp.asarray(u, copy=True))[INSIDE].set(update(u))


def blocked(xp, u, block, times=1):
    """Return u after `times` sweeps, done on one block before the next.

    A block is taken with as many cells around it as it is swept; the outermost are stale after one sweep, the next
    after two, and so on, unless they are on a face of the cube, which stays as it is.
    """
    result = xp.asarray(u, copy=True)
    starts = [range(0, n, length) for n, length in zip(u.shape, block, strict=True)]
    for corner in itertools.product(*starts):
        ends = [min(a + length, n) for a, length, n in zip(corner, block, u.shape, strict=True)]
        lows = [max(a - times, 0) for a in corner]
        highs = [min(b + times, n) for b, n in zip(ends, u.shape, strict=True)]
        box = u[tuple(map(slice, lows, highs))]
        for _ in range(times):
            box = plain(xp, box)
        inner = tuple(slice(a - low, b - low) for a, b, low in zip(corner, ends, lows, strict=True))
        result = at(result)[tuple(map(slice, corner, ends))].set(box[inner])
    return result


def repeated(step, count: int):
    """Return the function that applies a function `count` times."""
    return lambda u: functools.reduce(lambda u, _: step(u), range(count), u)


def array_forms(run: common.Run, u) -> dict:
    """Return the forms in array operations: kind, then name, then a function of u that makes all sweeps."""
    n = u.shape[0]
    steps = []

    def form(block, times=1):
        steps.append(run.compile(functools.partial(blocked, run.xp, block=block, times=times)))
        return repeated(steps[-1], SWEEPS // times)

    step = run.compile(functools.partial(plain, run.xp))
    forms = {"plain": {"plain": repeated(step, SWEEPS)}, "columns": {}, "boxes": {}, "sweeps at once": {}}
    for parts in (1, 2, 3):
        edge = -(-n // parts)
        forms["columns"][f"columns of {edge} x {edge}"] = form((n, edge, edge))
        forms["boxes"][f"boxes of {edge}^3"] = form((edge,) * 3)
        for times in (2, 5):
            forms["sweeps at once"][f"{times} sweeps at once of boxes of {edge}^3"] = form((edge,) * 3, times)
    run.compile_now([step, *steps], u)
    return forms


def copying(run: common.Run, u):
    """Return a function that reads u and writes as much: a copy into an array, or -u where arrays are not written."""
    if run.backend == "jax":
        return functools.partial(run.compile(run.xp.negative), u)
    target = run.xp.empty_like(u)
    if run.backend == "torch":
        return functools.partial(target.copy_, u)
    return functools.partial(run.library.copyto, target, u)


def on_cpu(u):
    """Return u after all sweeps by NumPy, a few planes to a core."""
    for _ in range(SWEEPS):
        parts = common.cores().map(lambda at, u=u: update(u[at : at + 10]), range(0, len(u) - 2, 8))
        u = u.copy()
        u[INSIDE] = np.concatenate(list(parts))
    return u


def example(run: common.Run) -> None:
    n, xp = run.size, run.xp
    start = np.ones((n, n, n), np.float32)
    start[INSIDE] = 0
    u = run.asarray(start)
    # Beyond 512^3 the plain sweep on the device is the reference: the CPU would take minutes.
    forms = array_forms(run, u)
    expected = run.asarray(on_cpu(start)) if n <= 512 else forms["plain"]["plain"](u)
    if run.backend == "cupy":
        for form in (form for form in laplace3d_cuda.FORMS if form.fits(u.shape)):
            forms.setdefault(f"{form.kind} in CUDA", {})[form.name] = laplace3d_cuda.sweeps_by(form, SWEEPS, u.shape)

    once = SWEEPS * run.times(copying(run, u))[0]
    for kind, variants in run.progress("Laplace", forms.items(), len(forms)):
        calls = [functools.partial(sweeps, u) for sweeps in variants.values()]
        rms = max(float(xp.mean((call() - expected) ** 2)) ** 0.5 for call in calls)
        seconds = dict(zip(variants, run.times(*calls), strict=True))
        if len(variants) > 1:
            print(", ".join(f"{name} {taken * 1e3:.4g} ms" for name, taken in seconds.items()))
        best = min(seconds, key=seconds.__getitem__)
        rate = f"{SWEEPS * n**3 / seconds[best] / 1e9:.3g} Gcell/s"
        options = {"reported": SOURCE.get((kind.partition(" ")[0], n), ""), "vendor": once}
        run.report(f"B4 {kind}, {n}^3: {best}", rate, rms, 0, seconds=seconds[best], **options)
    middle = run.to_numpy(expected)[n // 2]
    run.plot(lambda axes: axes.figure.colorbar(axes.imshow(middle), label=f"u after {SWEEPS} sweeps, middle plane"))


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))
