"""Draws docs/images/exploration.png: native environments to explore, one frame each."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from whorl.envs.native import DeepSea, DiscoMaze, NoisyTVMaze, SparseCartPoleSwingUp, SparseMountainCar, World
from whorl.envs.native.grid import Maze

IMAGE = Path(__file__).parent / "images" / "exploration.png"


def main() -> None:
    sea, disco, tv = DeepSea(1, size=12, randomize_actions=False), DiscoMaze(1), NoisyTVMaze(1)
    dark = NoisyTVMaze(1, size=15, tv=False, maze_seed=1)
    car, pole = SparseMountainCar(1), SparseCartPoleSwingUp(1)
    worlds = (sea, disco, tv, car, pole, dark)
    for world in worlds:
        world.reset(2)
    follow(sea, [1, 1, 1, 0, 1, 1])
    follow(disco, walk(disco)[:230])
    follow(tv, walk(tv)[:20])
    follow(dark, walk(dark)[:30])
    car.state["place"].fill_(0.2)
    pole.state["body"].copy_(torch.tensor([[0.4], [0.0], [0.9], [-2.0]]))
    frames = [world.render() for world in worlds]
    rows = [np.concatenate(frames[:3], 1), np.concatenate(frames[3:], 1)]
    Image.fromarray(np.concatenate(rows)).save(IMAGE, optimize=True)


def follow(world: World, actions: Sequence[int]) -> None:
    for action in actions:
        world.step(torch.tensor([action]))


def walk(world: Maze) -> list[int]:
    """The actions of a depth-first walk through the maze and back."""
    walls = world.state["walls"].view(world.size, world.size).tolist()
    found: list[int] = []

    def explore(row: int, column: int, back: int) -> None:
        for action, (down, across) in enumerate(((-1, 0), (0, 1), (1, 0), (0, -1))):
            if action != back and not walls[row + down][column + across]:
                found.append(action)
                explore(row + down, column + across, (action + 2) % 4)
                found.append((action + 2) % 4)

    explore(1, 1, -1)
    return found


if __name__ == "__main__":
    main()
