"""A diagonal state space model, trained: the layer is one linear recurrence, and so is its derivative.

Every channel has a state h[t] = a h[t-1] + B u[t], and the output is y[t] = sum of C h[t] over the channels, as in S5
or Mamba with constant coefficients. A student with other a = sigmoid(p), B and C learns from the output of a teacher.
PyTorch and JAX differentiate parprims.linear_recurrence. For NumPy and CuPy the chain rule is written out below: the
derivative of a recurrence is this recurrence run backwards.

The gradient is checked against loops over time. A term of it is rounded at most 10 T times in the two recurrences and
in powers of a, once for each of the batch's T elements in the sum, and 64 times in the rest; a (1 - a), the derivative
of the sigmoid, divides by 1 - a once more. All of this is relative to the gradient of the magnitudes, and counts twice,
since the loop errs by as much. The loss must fall to less than a tenth. (Gu, Goel and Re, ICLR 2022; Smith, Warrington
and Linderman, ICLR 2023.)
"""

import functools
import sys

import common
import numpy as np
from array_api_compat import array_namespace

import parprims

SIZES = common.Sizes(small=64, cpu=2048, cuda=65_536)
BATCH, CHANNELS, STEPS = 4, 8, 60


def output(xp, a, b, c, u, method):
    """Return the states, of shape (batch, channels, time), and the output, of shape (batch, time)."""
    h = parprims.linear_recurrence(a[:, None], b[:, None] * u[:, None, :], method=method)
    return h, xp.sum(c[:, None] * h, axis=1)


def loss(p, b, c, u, target, method):
    """Return the mean squared error."""
    xp = array_namespace(p)
    return xp.mean((output(xp, 1 / (1 + xp.exp(-p)), b, c, u, method)[1] - target) ** 2)


def by_chain_rule(p, b, c, u, target, method):
    """Return the loss and its derivatives by p, b and c, written out."""
    xp = array_namespace(p)
    a = 1 / (1 + xp.exp(-p))
    h, y = output(xp, a, b, c, u, method)
    g = 2 * (y - target)[:, None, :] / (u.shape[0] * u.shape[1])
    adjoint = parprims.linear_recurrence(a[:, None], c[:, None] * g, reverse=True, method=method)
    by_a = xp.sum(adjoint[..., 1:] * h[..., :-1], axis=(0, 2))
    by_b = xp.sum(adjoint * u[:, None, :], axis=(0, 2))
    return xp.mean((y - target) ** 2), by_a * a * (1 - a), by_b, xp.sum(g * h, axis=(0, 2))


def by_torch(p, b, c, u, target, method):
    """Return loss and gradients by PyTorch's derivatives."""
    import torch

    parameters = [one.detach().requires_grad_() for one in (p, b, c)]
    value = loss(*parameters, u, target, method)
    return value.detach(), *torch.autograd.grad(value, parameters)


def by_jax(p, b, c, u, target, method):
    """Return loss and gradients by JAX's derivatives."""
    import jax

    value, gradient = jax.value_and_grad(loss, argnums=(0, 1, 2))(p, b, c, u, target, method)
    return value, *gradient


def by_loop(p, b, c, u, target, sign=-1):
    """Return loss and gradients by loops over time; with sign=1 of magnitudes, all of them positive."""
    a = 1 / (1 + np.exp(-p))
    h = np.zeros((u.shape[0], len(p), u.shape[1]))
    adjoint = np.zeros_like(h)
    for t in range(u.shape[1]):
        h[..., t] = a * h[..., t - 1] * (t > 0) + b * u[:, None, t]
    e = np.sum(c[:, None] * h, axis=1) + sign * target
    g = 2 * e[:, None, :] / e.size
    for t in reversed(range(u.shape[1])):
        following = adjoint[..., t + 1] if t + 1 < u.shape[1] else 0
        adjoint[..., t] = c * g[..., t] + a * following
    by_a = np.sum(adjoint[..., 1:] * h[..., :-1], axis=(0, 2))
    by_b = np.sum(adjoint * u[:, None, :], axis=(0, 2))
    return np.mean(e**2), by_a * a * (1 - a), by_b, np.sum(g * h, axis=(0, 2))


def example(run: common.Run) -> None:
    rng = np.random.default_rng(15)
    length = run.size
    gradient = {"torch": by_torch, "jax": by_jax}.get(run.backend, by_chain_rule)
    teacher = [rng.uniform(0.2, 0.9, CHANNELS), rng.standard_normal(CHANNELS), rng.standard_normal(CHANNELS)]
    student = [rng.uniform(-1, 2, CHANNELS), rng.standard_normal(CHANNELS), rng.standard_normal(CHANNELS)]
    u = rng.standard_normal((BATCH, length))
    target = np.asarray(output(array_namespace(u), *teacher, u, "auto")[1])

    expected = by_loop(*student, u, target)
    magnitudes = by_loop(student[0], abs(student[1]), abs(student[2]), abs(u), abs(target), sign=1)
    roundings = ((10 + BATCH) * length + 64) * (1 + np.exp(np.max(student[0])))

    def check(result, _):
        errors = [
            np.max(abs(run.to_numpy(one) - other) / (2 * roundings * 2.0**-52 * size))
            for one, other, size in zip(result, expected, magnitudes, strict=True)
        ]
        return f"loss {float(result[0]):.6f}", max(errors), 1

    data = (run.asarray(u), run.asarray(target))
    arrays = (*map(run.asarray, student), *data)
    run.compare(f"state space model, {length} steps, gradient", gradient, arrays, check)

    # Adam, with the parameters on the host: they are few.
    step = run.compile(functools.partial(gradient, method="auto"))
    moments, losses = [np.zeros((3, CHANNELS)), np.zeros((3, CHANNELS))], []
    parameters = np.array(student)
    for count in run.progress("training", range(1, STEPS + 1), STEPS):
        value, *found = step(*map(run.asarray, parameters), *data)
        losses.append(float(value))
        g = np.array([run.to_numpy(one) for one in found])
        moments = [0.9 * moments[0] + 0.1 * g, 0.99 * moments[1] + 0.01 * g * g]
        parameters = parameters - 0.05 * (moments[0] / (1 - 0.9**count)) / np.sqrt(moments[1] / (1 - 0.99**count))
    run.report("state space model, training", f"loss {losses[0]:.4f} to {losses[-1]:.4f}", losses[-1] / losses[0], 0.1)
    run.plot(lambda axes: (axes.semilogy(losses), axes.set(xlabel="step", ylabel="loss")))


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))
