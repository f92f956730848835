"""Monte Carlo with the same bits everywhere: one sum of payoffs on one thread, on devices, in chunks, in any order.

An asset moves by normal numbers (Bachelier's model), and an option pays what the price exceeds the strike by, at the
end. A normal number is the sum of twelve uniform numbers, less 6. The uniform numbers are drawn by a counter, so that a
path is the same wherever it is computed; they are multiples of 2^-32, so that all operations up to the discount are
exact in float64, on every device. The discount rounds once.

The sum of these payoffs by floats depends on the order of additions. With reproducible="everywhere" all its bits are
equal: by NumPy on one thread, of shuffled paths, in Dask's chunks, on eight devices of JAX (of the CPU unless there are
several GPUs), and on this run's library and device. The exact mean is known, because the density of the sum of uniform
numbers is a polynomial.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
from fractions import Fraction

import common
import numpy as np
import philox
from array_api_compat import array_namespace

import parprims

SIZES = common.Sizes(small=20_000, cpu=1_000_000, cuda=10_000_000)
PRICE, STRIKE, SPREAD, DISCOUNT, SEED, DEVICES = 100, 105, 20, math.exp(-0.05), 2026, 8


def payoffs(path):
    """Return what paths pay, given their numbers in int64: float64, equal in all bits by every library."""
    xp, total = array_namespace(path), 6  # twelve halves, which centre the numbers
    for draw in range(3):
        for word in philox.words((path & philox.MASK, path >> 32, path * 0 + draw, path * 0), (SEED, 0)):
            total = word + total
    normal = xp.astype(total, xp.float64) * 2.0**-32 - 6
    return xp.maximum(SPREAD * normal + (PRICE - STRIKE), xp.zeros_like(normal)) * DISCOUNT


def exact_mean():
    """Return the mean of the payoff and its standard deviation."""
    strike = Fraction(STRIKE - PRICE, SPREAD) + 6  # as a sum of uniform numbers

    def moment(power):  # of (strike - sum)+, by the density of the sum
        terms = ((-1) ** k * math.comb(12, k) * (strike - k) ** (11 + power + 1) for k in range(math.floor(strike) + 1))
        return sum(terms) * math.factorial(power) / Fraction(math.factorial(12 + power))

    first = 6 - strike + moment(1)  # of (sum - strike)+
    second = 1 + (6 - strike) ** 2 - moment(2)  # the sum has variance 1
    return DISCOUNT * SPREAD * float(first), DISCOUNT * SPREAD * math.sqrt(second - first**2)


def both(x, **options):
    """Return the sum by floats and the sum with the same bits everywhere."""
    return [float(parprims.sum(x, reproducible=how, **options)) for how in (None, "everywhere")]


def on_devices(size: int) -> None:
    """Print the sums of an array that eight devices hold. It runs in a process of its own."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    jax.config.update("jax_enable_x64", True)
    devices = jax.devices() if len(jax.devices()) > 1 else jax.devices("cpu")
    count = min(DEVICES, len(devices))
    mesh = jax.make_mesh((count,), ("paths",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices[:count])
    split = NamedSharding(mesh, PartitionSpec("paths"))
    path = jax.device_put(np.arange(-(-size // count) * count), split)
    x = jax.jit(lambda path: jax.numpy.where(path < size, payoffs(path), 0.0))(path)  # zeros change no bits
    sums = [float(parprims.sum(x, reproducible=how)) for how in (None, "everywhere")]
    print(json.dumps([f"JAX, {count} devices ({devices[0].platform})", *sums]))


def in_a_process(size: int) -> list:
    """Return what `on_devices` prints. JAX counts its devices once, when a process first asks for them."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    own = {"XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "NPROC": "16"}
    command = [sys.executable, __file__, "--on-devices", str(size)]
    done = subprocess.run(command, env=os.environ | own, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def example(run: common.Run) -> None:
    size = run.size
    x = np.concatenate(common.by_pieces(payoffs, np.arange(size)))
    sums = [["NumPy, one thread", *both(x, method="array")]]
    sums.append(["NumPy, shuffled", *both(np.random.default_rng(SEED).permutation(x), method="array")])
    if importlib.util.find_spec("dask"):
        import dask.array

        chunks = dask.array.arange(size, chunks=-(-size // 7), dtype=np.int64).map_blocks(payoffs, dtype=np.float64)
        sums.append(["Dask, 7 chunks", *both(chunks)])
    if importlib.util.find_spec("jax"):
        sums.append(in_a_process(size))
    device = "GPU" if run.cuda else "CPU"
    sums.append([f"{run.backend}, {device}", *both(run.compile(payoffs)(run.asarray(np.arange(size))))])

    mean, deviation = exact_mean()
    found, allowed = sums[0][2] / size, 4 * deviation / math.sqrt(size)
    run.report(f"price, {size} paths", f"{found:.6f}, exact {mean:.6f}", abs(found - mean), allowed)
    for place, by_floats, everywhere in sums:
        text = f"{everywhere.hex()}, by floats {by_floats.hex()}"
        run.report(f"sum everywhere, {size} paths, {place}", text, everywhere != sums[0][2], 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--on-devices"]:
        sys.exit(on_devices(int(sys.argv[2])))
    sys.exit(common.main(example, SIZES))
