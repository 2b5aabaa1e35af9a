"""Updates per second of recurrent SAC beside others, one run, alternating: `python benchmarks/recurrent.py`.

Same shapes for all: an LSTM of 256 each for the policy, two critics and their targets, heads of 256x256,
batches of B sequences of T + 1 rows that open from an empty memory, Adam, a tuned temperature. An update is: draw a
batch, learn, move the targets. Lines are for T 50, B 10 (offpcc's batch, cut into segments of 50) and T 80, B 32.

- `whorl`: the preset `rsac`, which draws from its ring. On a
  GPU it is captured, with `whorl, eager` beside it; `--only whorl "whorl, compiled"` shows what compiled losses bring.
- `plain`: the update as offpcc writes it, in plain PyTorch and with no cost of a library around it: one unroll of
  nn.LSTM over the window for each of the five nets, an optimizer for each function, targets moved parameter by
  parameter, sequences drawn out of NumPy arrays. On a GPU its unrolls are cuDNN's.
- `skrl`: its SAC_RNN with LSTMs built as its documentation does, where it is installed. It unrolls more: the policy
  twice, the critics again for the policy's loss, whose gradient runs back through them.

With `--episode N` our episodes end every N steps, so that memories are cleared within windows; the others' windows stay
whole. With `--device cuda` the lines are of an LSTM and of attention, T 80, B 32; attention has no peers here.
"""

import argparse
import copy
import json
import math
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rounds import serve, turns
from torch import Tensor, nn
from updates import ROWS, ours

from whorl.core.process import keep_freed_memory

LINES = {"cpu": (("lstm", 50, 10), ("lstm", 80, 32)), "cuda": (("lstm", 80, 32), ("attention", 80, 32))}


def whorl(args: argparse.Namespace, compile: bool = False, capture: bool = True) -> Callable[[int], None]:
    settings = {
        "memory": args.memory,
        "memory_size": args.size,
        "sequence_length": args.length,
        "batch_size": args.batch,
        "stored_memory": False,
        **args.settings,
    }
    args = argparse.Namespace(**{**vars(args), "settings": settings})
    return ours("rsac", args, compile=compile, capture=capture)


class Net(nn.Module):
    """An LSTM, and a head that also reads `extra` columns."""

    def __init__(self, inputs: int, size: int, extra: int, outputs: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, size)
        self.head = mlp(size + extra, outputs)

    def summary(self, obs: Tensor) -> Tensor:
        return self.lstm(obs)[0]

    def q(self, summary: Tensor, action: Tensor) -> Tensor:
        return self.head(torch.cat((summary, action), -1)).squeeze(-1)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs)
    )


def drawn(head: Tensor) -> tuple[Tensor, Tensor]:
    """A squashed Gaussian's action and its log-probability."""
    mean, log_std = head.chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    before = normal.rsample()
    slope = 2 * (math.log(2) - before - F.softplus(-2 * before))
    return before.tanh(), (normal.log_prob(before) - slope).sum(-1)


def plain(args: argparse.Namespace) -> Callable[[int], None]:
    device, gamma, tau = args.device, 0.99, 0.005
    actor = Net(args.obs, args.size, 0, 2 * args.actions).to(device)
    critics = [Net(args.obs, args.size, args.actions, 1).to(device) for _ in range(2)]
    targets = [copy.deepcopy(critic).requires_grad_(False) for critic in critics]
    log_alpha = torch.zeros(1, device=device, requires_grad=True)
    parameters = [*(list(net.parameters()) for net in (actor, *critics)), [log_alpha]]
    actor_optimizer, *critic_optimizers, alpha_optimizer = (
        torch.optim.Adam(each, lr=3e-4) for each in parameters
    )
    count, rng = ROWS // args.length, np.random.default_rng(0)
    kept = {
        "obs": rng.standard_normal((count, args.length + 1, args.obs), np.float32),
        "action": rng.uniform(-1, 1, (count, args.length, args.actions)).astype(np.float32),
        "reward": rng.standard_normal((count, args.length), np.float32),
        "done": np.zeros((count, args.length), np.float32),
        "mask": np.ones((count, args.length), np.float32),
    }

    def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def update() -> None:
        which = rng.integers(0, count, args.batch)
        obs, action, reward, done, mask = (
            torch.as_tensor(part[which].swapaxes(0, 1), device=device) for part in kept.values()
        )
        summary = actor.summary(obs)  # [T+1, B, size]
        summaries = [critic.summary(obs)[:-1] for critic in critics]
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            after, log_prob = drawn(actor.head(summary[1:]))
            values = [target.q(target.summary(obs)[1:], after) for target in targets]
            goal = reward + gamma * (1 - done) * (torch.min(*values) - alpha * log_prob)
        for critic, optimizer, read in zip(critics, critic_optimizers, summaries):
            error = critic.q(read, action) - goal
            descend(optimizer, (error.square() * mask).sum() / mask.sum())
        tried, log_prob = drawn(actor.head(summary[:-1]))
        q = torch.min(*(critic.q(read.detach(), tried) for critic, read in zip(critics, summaries)))
        descend(actor_optimizer, ((alpha * log_prob - q) * mask).sum() / mask.sum())
        excess = ((log_prob.detach() - args.actions) * mask).sum() / mask.sum()
        descend(alpha_optimizer, -log_alpha * excess)
        with torch.no_grad():
            for target, critic in zip(targets, critics):
                for old, new in zip(target.parameters(), critic.parameters()):
                    old.mul_(1 - tau).add_(tau * new)

    def run(updates: int) -> None:
        for _ in range(updates):
            update()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def skrl(args: argparse.Namespace) -> Callable[[int], None] | None:
    """None where it is not installed."""
    try:
        from skrl.agents.torch.sac import SAC_CFG, SAC_RNN
        from skrl.memories.torch import RandomMemory
        from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    except ImportError:
        return None
    from gymnasium.spaces import Box

    given = {
        "observation_space": Box(-np.inf, np.inf, (args.obs,), np.float32),
        "action_space": Box(-1, 1, (args.actions,), np.float32),
        "device": args.device,
    }

    class Remembers(Model):
        def __init__(self, extra: int, outputs: int) -> None:
            super().__init__(**given)
            self.lstm = nn.LSTM(args.obs, args.size, batch_first=True)
            self.head = mlp(args.size + extra, outputs)

        def get_specification(self) -> dict[str, Any]:
            return {"rnn": {"sequence_length": args.length, "sizes": [(1, 1, args.size)] * 2}}

        def summary(self, inputs: dict[str, Any]) -> Tensor:
            rows = inputs["observations"].view(-1, args.length, args.obs)
            first = [
                state.view(1, -1, args.length, args.size)[:, :, 0].contiguous() for state in inputs["rnn"]
            ]
            if torch.any(inputs["terminated"] | inputs["truncated"]):
                raise NotImplementedError("windows are whole here")
            return self.lstm(rows, tuple(first))[0].flatten(0, 1)

    class Policy(GaussianMixin, Remembers):
        def __init__(self) -> None:
            Remembers.__init__(self, 0, 2 * args.actions)
            GaussianMixin.__init__(self)

        def compute(self, inputs: dict[str, Any], role: str = "") -> Any:
            mean, log_std = self.head(self.summary(inputs)).chunk(2, -1)
            return mean.tanh(), {"log_std": log_std}

    class Critic(DeterministicMixin, Remembers):
        def __init__(self) -> None:
            Remembers.__init__(self, args.actions, 1)
            DeterministicMixin.__init__(self)

        def compute(self, inputs: dict[str, Any], role: str = "") -> Any:
            return self.head(torch.cat((self.summary(inputs), inputs["taken_actions"]), -1)), {}

    names = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
    models = {"policy": Policy(), **{name: Critic() for name in names}}
    for model in models.values():
        model.to(args.device)
    memory = RandomMemory(memory_size=ROWS, num_envs=1, device=args.device)
    cfg = SAC_CFG(batch_size=args.batch, learning_rate=3e-4)
    cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
    agent = SAC_RNN(models=models, memory=memory, cfg=cfg, **given)
    agent.init()
    agent.enable_models_training_mode(True)
    no, state = torch.zeros(ROWS, 1, dtype=torch.bool), torch.zeros(ROWS, 1, args.size)
    memory.add_samples(
        observations=torch.randn(ROWS, args.obs),
        next_observations=torch.randn(ROWS, args.obs),
        actions=torch.rand(ROWS, args.actions) * 2 - 1,
        rewards=torch.randn(ROWS, 1),
        terminated=no,
        truncated=no,
        rnn_policy_0=state,
        rnn_policy_1=state,
    )

    def run(updates: int) -> None:
        for number in range(updates):
            agent.update(timestep=number, timesteps=updates)
        if args.device == "cuda":
            torch.cuda.synchronize()

    return run


CONTESTANTS: dict[str, Callable[[argparse.Namespace], Callable[[int], None] | None]] = {
    "whorl": whorl,
    "whorl, eager": partial(whorl, capture=False),
    "whorl, compiled": partial(whorl, compile=True),
    "plain": plain,
    "skrl": skrl,
}


def contestant(name: str, args: argparse.Namespace) -> None:
    """A process of its own."""
    torch.set_num_threads(args.threads[0])
    torch.backends.cuda.matmul.allow_tf32 = True  # as a run does by default
    if name.startswith("whorl"):
        keep_freed_memory()
    serve(CONTESTANTS[name](args), args.count, processor_time=args.processor_time)


def measure(memory: str, length: int, batch: int, threads: int, args: argparse.Namespace) -> dict[str, Any]:
    """Medians of the rounds, all contestants taking turns."""
    names = args.only or (
        ["whorl", "plain", "skrl"] if args.device == "cpu" else ["whorl", "whorl, eager", "plain", "skrl"]
    )
    if memory != "lstm":
        names = [name for name in names if name.startswith("whorl")]
    line = {"memory": memory, "length": length, "batch": batch, "threads": threads}
    given = [word for key, value in line.items() for word in (f"--{key}", str(value))]
    commands = {name: [sys.executable, *sys.argv, *given, "--contestant", name] for name in names}
    rates = turns(commands, threads, args.rounds)
    row: dict[str, Any] = {**line, **{name: round(statistics.median(v), 2) for name, v in rates.items()}}
    for name in rates:
        if name != "whorl" and "whorl" in rates:
            each = [a / b for a, b in zip(rates["whorl"], rates[name])]
            row[f"whorl / {name}"] = round(statistics.median(each), 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--obs", type=int, default=3)
    parser.add_argument("--actions", type=int, default=1)
    parser.add_argument("--memory", default="", help="one line: its memory,")
    parser.add_argument("--length", type=int, default=80, help="its T,")
    parser.add_argument("--batch", type=int, default=32, help="and its B")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--episode", type=int, default=0, help="steps of our episodes; 0: they never end")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=10, help="updates in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--processor-time", action="store_true", help="for one thread on a shared machine")
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--only", nargs="*", choices=CONTESTANTS, help="contestants")
    parser.add_argument("--contestant", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contestant:
        contestant(args.contestant, args)
        return
    lines = ((args.memory, args.length, args.batch),) if args.memory else LINES[args.device]
    for line in lines:
        for threads in args.threads if args.device == "cpu" else [1]:
            print(json.dumps(measure(*line, threads, args)), flush=True)


if __name__ == "__main__":
    main()
