"""Generalised advantage estimation in a training loop of PyTorch, for many environments at once.

An actor and a critic learn to hold a cart in the middle of a track by pushes to the left or right. Each round plays the
environments for T steps, and then estimates the advantages A[t] = delta[t] + gamma lambda A[t+1], with
delta[t] = r[t] + gamma V[t+1] - V[t], where nothing passes the end of an episode. Training loops compute A by a loop
over the time, from the last step to the first. It is one linear recurrence, with the coefficient 0 at the end of an
episode. The row "advantages" has the time of both.

A term passes through T steps at most. So the advantages of both, in float32, may differ by 4 T units in the last place
of the largest sum of magnitudes in any round. The mean cost of a step, |position| and 10 for leaving the track, must
fall to less than half. (Schulman, Moritz, Levine, Jordan and Abbeel, High-Dimensional Continuous Control Using
Generalized Advantage Estimation, ICLR 2016.)
"""

import sys

import common
import numpy as np
import torch

import parprims

BACKENDS = ("torch",)
SIZES = common.Sizes(small=32, cpu=256, cuda=1024)
GAMMA, LAMBDA, ENVIRONMENTS, ROUNDS = 0.95, 0.9, 64, 40


def by_recurrence(decay, delta):
    """Return the advantages by one call."""
    return parprims.linear_recurrence(decay, delta, axis=0, reverse=True)


def by_loop(decay, delta):
    """Return the advantages from the last step to the first."""
    advantage, following = torch.empty_like(delta), torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        following = delta[t] + decay[t] * following
        advantage[t] = following
    return advantage


class ActorCritic(torch.nn.Module):
    """Maps states, of shape (..., 2), to the logit of a push to the right, and to the value of the state."""

    def __init__(self):
        super().__init__()
        self.actor = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.critic = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def forward(self, state):
        return self.actor(state)[..., 0], self.critic(state)[..., 0]


def moved(state, push):
    """Return the states after a push, the costs, and whether the episode ends; a new one starts near the middle."""
    speed = state[..., 1] + 0.2 * (2 * push - 1)
    position = state[..., 0] + 0.2 * speed
    done = abs(position) > 2
    state = torch.stack([position, speed], -1)
    return torch.where(done[..., None], 0.1 * state, state), abs(position) + 10 * done, done


@torch.no_grad()
def play(model, state, steps):
    """Play for some steps; return the last states, and along the first axis states, pushes, costs and ends."""
    lines = []
    for _ in range(steps):
        push = torch.bernoulli(torch.sigmoid(model(state)[0]))
        following, cost, done = moved(state, push)
        lines.append((state, push, cost, done))
        state = following
    return state, *map(torch.stack, zip(*lines, strict=True))


def differences(cost, value, last, done):
    """Return the coefficients and the terms of the recurrence."""
    following = torch.cat([value[1:], last[None]]) * ~done
    return GAMMA * LAMBDA * ~done, GAMMA * following - cost - value


def example(run: common.Run) -> None:
    torch.manual_seed(21)
    model = ActorCritic().to(run.asarray(np.zeros(1, "float32")))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    state = torch.zeros((ENVIRONMENTS, 2), device=model.actor[0].weight.device)
    costs, worst = [], 0.0
    for _ in run.progress("training", range(ROUNDS), ROUNDS):
        state, states, pushes, cost, done = play(model, state, run.size)
        logit, value = model(states)
        with torch.no_grad():
            decay, delta = differences(cost, value, model(state)[1], done)
            advantage, expected = by_recurrence(decay, delta), by_loop(decay, delta)
            allowed = 4 * run.size * torch.finfo(delta.dtype).eps * by_loop(decay, abs(delta)).max()
            worst = max(worst, float(abs(advantage - expected).max() / allowed))
        likely = -torch.nn.functional.binary_cross_entropy_with_logits(logit, pushes, reduction="none")
        gain = (likely * (advantage - advantage.mean()) / advantage.std()).mean()
        loss = 0.1 * (advantage + value.detach() - value).square().mean() - gain
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        costs.append(float(cost.mean()))

    shape = f"{run.size} steps of {ENVIRONMENTS} environments"
    calls = {"linear_recurrence": by_recurrence, "loop": by_loop}
    times = run.times(*(lambda call=call: call(decay, delta) for call in calls.values()))
    for name, seconds in zip(calls, times, strict=True):
        run.report(f"advantages, {shape}, {name}", f"{ROUNDS} rounds", worst, 1, seconds=seconds)
    run.report("training by advantages", f"cost {costs[0]:.3f} to {costs[-1]:.3f}", costs[-1] / costs[0], 0.5)
    run.plot(lambda axes: (axes.plot(costs), axes.set(xlabel="round", ylabel="mean cost of a step")))


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))
