"""What intrinsic rewards cost: PPO's steps/s with and without RND, milliseconds of NGU's bonus; and what that one sees.

`python benchmarks/exploration.py rnd --env Pong`: two trainers in one process take turns, iteration by iteration, with
the settings of `ppo_rnd` for the game, with its component and without it. The ratio of the median rates is printed, on
a CPU those of processor time in one process; aim: at least 0.75.

`python benchmarks/exploration.py episodic --num-envs 64 --capacity 2000`: the bonus of one step of all environments
with full memories, embedding included, for vectors and for images of 84 x 84, on a GPU as it is and as a CUDA graph,
as it is in captured rollouts; medians. Aim on a GPU: at most 1 ms.

`python benchmarks/exploration.py cells --size 7 --rows 60000`: how well NGU's bonus tells new cells of DiscoMaze from
known ones, whose walls have other colours by then. The embedding learns from walks that seldom turn back; then come the
distances of the nearest memory and the bonuses of further walks, for several values of `cluster_distance`.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import whorl
import whorl.nets.backbone  # registers encoders
from whorl.agents.component import with_components
from whorl.core import tree
from whorl.core.cuda_graphs import record
from whorl.core.registry import Part
from whorl.core.spec import Array, Discrete, Spec, empty_action, empty_obs
from whorl.envs.native.disco_maze import DiscoMaze
from whorl.nets.novelty import InverseDynamics
from whorl.ops.novelty import episodic_bonus, nearest_distances
from whorl.settings.merge import configure
from whorl.settings.presets import algorithm_class

SHAPES = {"vector": Array((64,)), "image": Array((84, 84, 1), "uint8", 0.0, 255.0)}


def rnd(env: str, rounds: int, settings: dict[str, Any]) -> None:
    """Rates of PPO with and without RND."""
    found: dict[str, list[float]] = {"ppo": [], "ppo with rnd": []}
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"eval": False, "save_model": False, "tensorboard": False, "quiet": True, "runs": folder}
        trainers = [
            whorl.load(env, "ppo_rnd", components=components, **quiet, **settings)
            for components in ([], ["rnd"])
        ]
        for number in range(rounds + 2):
            for trainer, rates in list(zip(trainers, found.values()))[:: 1 if number % 2 else -1]:
                began, before = time.process_time(), trainer.steps if number else 0
                rate = trainer.step()["time/steps_per_second"]
                if settings.get("device") == "cpu":  # which others may use at the same time
                    rate = (trainer.steps - before) / (time.process_time() - began)
                if number > 1:  # the first ones build and capture
                    rates.append(rate)
        for trainer in trainers:
            trainer.close()
    alone, both = (statistics.median(rates) for rates in found.values())
    unit = "steps per second of processor time" if settings.get("device") == "cpu" else "steps/s"
    print(f"PPO on {env}: {alone:,.0f} {unit}, with RND {both:,.0f}, ratio {both / alone:.2f}")


def bonus_step(
    kind: str, num_envs: int, capacity: int, device: torch.device
) -> tuple[Callable[[], Any], Any]:
    """One step of the episodic bonus, and the memory that it changes."""
    asked = {"num_envs": num_envs, "components": ["episodic"], "episodic": {"capacity": capacity}}
    settings = configure("ppo", "", asked)
    spec = Spec(SHAPES[kind], Discrete(18), num_envs)
    build: Any = partial(algorithm_class("ppo")[1], cfg=settings.algo)
    agent = with_components(build, spec, settings.components).to(device)
    component: Any = agent.components["episodic"]
    memory = tree.to(component.initial_memory(num_envs), device)
    memory["held"].normal_()
    memory["count"].fill_(capacity)
    obs, action = (
        empty_obs(spec.observation, (num_envs,), device),
        empty_action(spec.action, (num_envs,), device),
    )
    reset = torch.zeros(num_envs, dtype=torch.bool, device=device)

    def step() -> Any:
        after, found = component.track(memory, obs, action, obs, reset)
        tree.copy_(memory, after)
        return found

    return torch.no_grad()(step), memory


def milliseconds(step: Callable[[], Any], device: torch.device, repeats: int) -> float:
    found = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append((time.perf_counter() - began) * 1e3)
    return statistics.median(found[repeats // 10 :])


def episodic(num_envs: int, capacity: int, device: torch.device, repeats: int) -> None:
    """Milliseconds of a step of the episodic bonus."""
    for kind in SHAPES:
        step, memory = bonus_step(kind, num_envs, capacity, device)
        ways: dict[str, Callable[[], Any]] = {"eager": step}
        if device.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            record(graph, step, list(tree.leaves(memory)), [])
            ways["captured"] = graph.replay
        times = ", ".join(f"{way} {milliseconds(call, device, repeats):.3f} ms" for way, call in ways.items())
        print(f"episodic bonus, {num_envs} environments x {capacity} memories, {kind}, {device}: {times}")


class Walks:
    """Walks through DiscoMaze that keep away from walls and seldom turn back."""

    def __init__(self, size: int, num_envs: int, steps: int) -> None:
        self.world, self.steps = DiscoMaze(num_envs, size=size, max_steps=steps + 1), steps
        self.moves = torch.tensor([-size, 1, size, -1])

    def walk(self, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Observations [T+1, B, ...], actions [T, B] and places [T+1, B]."""
        generator = torch.Generator().manual_seed(seed)
        obs, actions, places = [self.world.reset(seed)], [], [self.world.cells()]
        last = torch.zeros(self.world.num_envs, dtype=torch.int64)
        for _ in range(self.steps):
            around = places[-1] + self.moves.unsqueeze(1)  # [4, B]
            walls = self.world.state["walls"].gather(0, around).T
            liking = torch.rand(walls.shape, generator=generator) - 10 * walls.float()
            back = ((last + 2) % 4).unsqueeze(1)
            last = liking.scatter_add(1, back, torch.full(back.shape, -0.7)).argmax(1)
            obs.append(self.world.step(last).obs)
            actions.append(last)
            places.append(self.world.cells())
        return torch.stack(obs), torch.stack(actions), torch.stack(places)


def cells(size: int, rows: int, encoder: str, lr: float) -> None:
    """Distances and bonuses of new and of known cells."""
    torch.manual_seed(0)
    walks = Walks(size, 128, 64)
    spec = walks.world.spec
    part = Part(encoder, {"kind": "small"} if encoder == "images" else {})
    net = InverseDynamics(spec.observation, spec.action, part, (128,), 32, 5.0)
    optimizer = torch.optim.Adam(net.parameters(), lr)
    learned, loss = 0, torch.zeros(())
    while learned < rows:
        obs, action, _ = walks.walk(learned)
        net.merge_(obs[1:], torch.ones(action.shape))
        before, after, taken = obs[:-1].flatten(0, 1), obs[1:].flatten(0, 1), action.flatten()
        for index in torch.randperm(len(taken)).split(256):
            loss = net.loss(net(before[index]), net(after[index]), taken[index]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        learned += len(taken)
    with torch.no_grad():
        obs, _, place = walks.walk(2**31)
        value = net(obs)  # [T+1, B, features]
        count = torch.zeros(value.shape[1], dtype=torch.int64)
        held = value.transpose(0, 1)
        found = torch.stack([nearest_distances(value[t], held, count + t, 10) for t in range(len(value))])
        new = torch.stack([~(place[:t] == place[t]).any(0) for t in range(len(value))])
        found, new = found[10:], new[10:]  # from the time on when there are ten neighbours
        scale = found.mean()
        near = found[..., 0] / scale
        print(f"{size} x {size} cells, encoder {encoder}, {learned:,} rows: loss {loss.item():.3f}")
        for name, which in (("new", new), ("known", ~new)):
            low, middle, high = near[which].quantile(torch.tensor([0.05, 0.5, 0.95])).tolist()
            print(f"  relative distance of the nearest, {name}: {middle:.3f} ({low:.3f} to {high:.3f})")
        for cluster in (0.008, 0.05, 0.1, 0.2):
            flat = found.flatten(0, 1)
            bonus = episodic_bonus(flat, scale.expand(len(flat)), 1e-4, cluster, 1e-3, 8.0).view(new.shape)
            print(
                f"  cluster_distance {cluster}: new {bonus[new].mean():.1f}, known {bonus[~new].mean():.1f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rnd", "episodic", "cells"])
    parser.add_argument("--env", default="Pong")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--num-envs", type=int, default=0, help="default: the preset's, or 64")
    parser.add_argument("--capacity", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, default=7)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--encoder", default="images", choices=["images", "flat"])
    parser.add_argument("--lr", type=float, default=2e-3)
    asked = parser.parse_args()
    if asked.what == "rnd":
        device: dict[str, Any] = {} if asked.device == "cuda" else {"device": asked.device, "workers": 0}
        rnd(asked.env, asked.rounds, device | ({"num_envs": asked.num_envs} if asked.num_envs else {}))
    elif asked.what == "cells":
        cells(asked.size, asked.rows, asked.encoder, asked.lr)
    else:
        episodic(asked.num_envs or 64, asked.capacity, torch.device(asked.device), asked.repeats)


if __name__ == "__main__":
    main()
