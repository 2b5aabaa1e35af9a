"""What intrinsic rewards cost: PPO's steps/s with and without RND at Atari shapes, and milliseconds of NGU's bonus.

`python benchmarks/exploration.py rnd --env Pong`: two trainers in one process take turns, iteration by iteration, with
the settings of `ppo_rnd` for the game, with its component and without it. The ratio of the median rates is printed;
aim: at least 0.75.

`python benchmarks/exploration.py episodic --num-envs 64 --capacity 2000`: the bonus of one step of all environments
with full memories, embedding included, for vectors and for images of 84 x 84, on a GPU as it is and as a CUDA graph,
as it is in captured rollouts; medians. Aim on a GPU: at most 1 ms.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import whorl
from whorl.agents.component import with_components
from whorl.core import tree
from whorl.core.cuda_graphs import record
from whorl.core.spec import Array, Discrete, Spec, empty_action, empty_obs
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
                rate = trainer.step()["time/steps_per_second"]
                if number > 1:  # the first ones build and capture
                    rates.append(rate)
        for trainer in trainers:
            trainer.close()
    alone, both = (statistics.median(rates) for rates in found.values())
    print(f"PPO on {env}: {alone:,.0f} steps/s, with RND {both:,.0f}, ratio {both / alone:.2f}")


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rnd", "episodic"])
    parser.add_argument("--env", default="Pong")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--num-envs", type=int, default=0, help="default: the preset's, or 64")
    parser.add_argument("--capacity", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    if asked.what == "rnd":
        device = {} if asked.device == "cuda" else {"device": asked.device}
        rnd(asked.env, asked.rounds, device | ({"num_envs": asked.num_envs} if asked.num_envs else {}))
    else:
        episodic(asked.num_envs or 64, asked.capacity, torch.device(asked.device), asked.repeats)


if __name__ == "__main__":
    main()
