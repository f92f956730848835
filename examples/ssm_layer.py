"""A layer of a gated state space model, as a module of PyTorch, trained to remember.

The state is h[t] = (1 - z[t]) h[t-1] + z[t] x[t], with gates z = sigmoid(G u) and candidates x = X u, as in a minimal
GRU or Mamba. It is one linear recurrence along the time. The layer takes the function that computes it as an argument:
`parprims.linear_recurrence`, a loop over the time, or this loop with its step compiled by torch.compile. The compiler
would unroll the whole loop, and take minutes for a hundred steps. On a GPU the function may also be the one of
`accelerated_scan`, if that is installed. The times are of the loss and its gradient. The task: of a sequence of random
numbers, some of them marked, each output is the last marked number.

The checks compare with the loop, in float64. A state is an average of candidates. So its error is at most 4 T units in
the last place of the largest candidate after T steps. A gradient is a sum of such terms, which may cancel: 100 times as
much is allowed, of the largest element. In float32, which accelerated_scan needs, the unit is that of float32. Training
must lower the loss to less than a tenth. (Feng, Tung, Ahmed, Bengio and Hajimirsadeghi, Were RNNs All We Needed?,
2024.)
"""

import functools
import importlib.util
import sys

import common
import numpy as np
import torch

import parprims

BACKENDS = ("torch",)
SIZES = common.Sizes(small=64, cpu=2048, cuda=8192)
BATCH, CHANNELS, STEPS = 4, 16, 150


def by_recurrence(decay, b):
    """Return the states by one call."""
    return parprims.linear_recurrence(decay, b, axis=-1)


def by_loop(decay, b, step=torch.addcmul):
    """Return the states, of shape (batch, channels, time), one after another."""
    h, states = torch.zeros_like(b[..., 0]), []
    for a, term in zip(decay.unbind(-1), b.unbind(-1), strict=True):
        h = step(term, a, h)
        states.append(h)
    return torch.stack(states, -1)


class Layer(torch.nn.Module):
    """Maps arrays of shape (batch, inputs, time) to shape (batch, outputs, time)."""

    def __init__(self, inputs, outputs, recurrence):
        super().__init__()
        self.gate = torch.nn.Conv1d(inputs, CHANNELS, 1)
        self.candidate = torch.nn.Conv1d(inputs, CHANNELS, 1)
        self.output = torch.nn.Conv1d(CHANNELS, outputs, 1)
        self.recurrence = recurrence

    def forward(self, u):
        z = torch.sigmoid(self.gate(u))
        return self.output(self.recurrence(1 - z, z * self.candidate(u)))


def ways(run, dtype):
    """Return the functions that compute the recurrence in a dtype, by name."""
    if dtype == torch.float64:
        calls = {"linear_recurrence": by_recurrence, "loop": by_loop}
        if run.size > SIZES.small:  # the compiler takes seconds
            calls["compiled loop"] = functools.partial(by_loop, step=torch.compile(lambda term, a, h: term + a * h))
        return calls
    calls = {"linear_recurrence in float32": by_recurrence}
    if importlib.util.find_spec("accelerated_scan"):
        from accelerated_scan.warp import scan

        calls["accelerated_scan in float32"] = lambda decay, b: scan(decay.contiguous(), b.contiguous())
    return calls


def sequences(rng, length):
    """Return inputs, numbers and their marks, and targets: the last marked number."""
    numbers, marks = rng.uniform(-1, 1, (BATCH, length)), rng.random((BATCH, length)) < 0.2
    marks[:, 0] = True
    last = np.maximum.accumulate(np.where(marks, np.arange(length), 0), axis=1)
    return np.stack([numbers, marks], 1), np.take_along_axis(numbers, last, 1)[:, None]


def gradient(layer, u, target):
    """Return the loss and its derivatives by the parameters."""
    value = torch.nn.functional.mse_loss(layer(u), target)
    return value.detach(), *torch.autograd.grad(value, [*layer.parameters()])


def example(run: common.Run) -> None:
    rng = np.random.default_rng(18)
    u, target = map(run.asarray, sequences(rng, run.size))
    torch.manual_seed(18)
    layer = Layer(2, 1, by_recurrence).to(u)
    expected = None
    for dtype in (torch.float64, torch.float32) if run.cuda else (torch.float64,):
        data = u.to(dtype), target.to(dtype)
        calls = {}
        for name, recurrence in ways(run, dtype).items():
            one = Layer(2, 1, recurrence).to(data[0])
            one.load_state_dict(layer.state_dict())
            calls[name] = functools.partial(gradient, one, *data)
        expected = calls["loop"]() if expected is None else expected
        for (name, call), seconds in zip(calls.items(), run.times(*calls.values()), strict=True):
            found, largest = call(), max(float(part.abs().max()) for part in expected)
            difference = max(float((x - y).abs().max()) for x, y in zip(found, expected, strict=True))
            allowed = 400 * run.size * torch.finfo(dtype).eps * largest
            text = f"loss {float(found[0]):.6f}"
            run.report(f"gated layer, {run.size} steps, {name}", text, difference, allowed, seconds=seconds)

    optimizer, losses = torch.optim.Adam(layer.parameters(), lr=0.05), []
    for _ in run.progress("training", range(STEPS), STEPS):
        value, *found = gradient(layer, u, target)
        for parameter, by in zip(layer.parameters(), found, strict=True):
            parameter.grad = by
        optimizer.step()
        losses.append(float(value))
    run.report("gated layer, training", f"loss {losses[0]:.4f} to {losses[-1]:.4f}", losses[-1] / losses[0], 0.1)
    run.plot(lambda axes: (axes.semilogy(losses), axes.set(xlabel="step", ylabel="loss")))


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))
