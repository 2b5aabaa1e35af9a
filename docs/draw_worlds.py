"""Draws native environments, one frame each: docs/images/memory.png, recall.png, positions.png, exploration.png,
hybrid.png and goals.png."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from whorl.envs.native import (
    WORLDS,
    CatchPoint,
    DeepSea,
    DiscoMaze,
    Goal,
    HardMove,
    Moving,
    NoisyTVMaze,
    Platform,
    SparseCartPoleSwingUp,
    SparseMountainCar,
    World,
)
from whorl.envs.native.grid import Maze

IMAGES = Path(__file__).parent / "images"


def main() -> None:
    draw_memory()
    draw_recall()
    draw_positions()
    draw_exploration()
    draw_hybrid()
    draw_goals()


def draw_memory() -> None:
    maze, symbols, bumps = (WORLDS[f"{name}-v0"](1) for name in ("TMaze", "RepeatPrevious", "Bumps"))
    for world in (maze, symbols, bumps):
        world.reset(4)
    follow(maze, [1] * 6)
    follow(symbols, [0] * 7)
    bumps.state["put"][:, 0] = bumps.state["bumps"][:, 0] = torch.tensor([-0.12, 0.1])
    bumps.state["place"].fill_(0.1), bumps.state["side"][:, 0].copy_(torch.tensor([1.0, -1.0]))
    save((maze, symbols, bumps), "memory.png")


def draw_positions() -> None:
    bump, ant, arm = (WORLDS[f"{name}-v0"](1) for name in ("BumpTop", "AntReacherTopPriest", "UR5TopSwitch"))
    for world in (bump, ant, arm):
        world.reset(2)
    bump.step(torch.tensor([[0.01]]))
    ant.step(torch.tensor([[0.55, -0.6]]))
    arm.step(torch.tensor([[0.0, 1.0, -1.0]]))
    save((bump, ant, arm), "positions.png")


def draw_exploration() -> None:
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
    save(worlds, "exploration.png")


def draw_hybrid() -> None:
    worlds = Platform(1), Goal(1), CatchPoint(1), HardMove(1), Moving(1), Moving(1, sliding=True)
    platform, goal, catch, move, moving, sliding = worlds
    for world in worlds:
        world.reset(3)
    platform.state["body"][:, 0] = torch.tensor([130.0, 96, 39, 118, 730, -30, -30])
    goal.state["place"][..., 0] = torch.tensor([[1.8, 11.0, 2.8], [5.8, 3.0, 7.0]])
    goal.state["facing"][:, 0] = torch.tensor([0.9, 2.7])
    spots = ((-0.5, -0.3, 0.4, 0.5), (0.3, -0.6, -0.5, 0.4), (-0.6, -0.4, 0.5, 0.3), (0.2, -0.5, 0.6, 0.5))
    for world, (x, y, right, up) in zip(worlds[2:], spots):
        world.state["place"][:, 0], world.state["target"][:, 0] = (
            torch.tensor([x, y]),
            torch.tensor([right, up]),
        )
    catch.state["speed"][:, 0], move.state["speed"][:, 0] = (
        torch.tensor([0.5, 0.4]),
        torch.tensor([-0.4, 0.5]),
    )
    for world, course in ((moving, 0.6), (sliding, 2.2)):
        world.state["facing"].fill_(0.6), world.state["course"].fill_(course), world.state["speed"].fill_(2.0)
    save(worlds, "hybrid.png")


def draw_recall() -> None:
    worlds = [WORLDS[f"{name}-v0"](1) for name in ("Hallway", "Queue", "Stack")]
    for world, steps in zip(worlds, (14, 19, 20)):
        world.reset(5)
        follow(world, [0] * steps)
    worlds[2].state["kept"][:, 0] = torch.tensor([1, 3, 0, 2])
    save(worlds, "recall.png")


def draw_goals() -> None:
    worlds = [WORLDS[f"{name}-v0"](1) for name in ("BitFlip", "PointReach", "PointPush")]
    for world in worlds:
        world.reset(3)
    follow(worlds[0], [0, 4, 7, 9])
    for world in worlds[1:]:
        world.state["place"][:, 0] = torch.tensor([-0.5, -0.35])
        world.state["goal"][:, 0] = torch.tensor([0.45, 0.4])
    worlds[2].state["puck"][:, 0] = torch.tensor([-0.36, -0.25])
    save(worlds, "goals.png")


def save(worlds: Sequence[World], name: str) -> None:
    """Frames of worlds, three in a row."""
    frames = [world.render() for world in worlds]
    rows = [np.concatenate(frames[first : first + 3], 1) for first in range(0, len(frames), 3)]
    Image.fromarray(np.concatenate(rows)).save(IMAGES / name, optimize=True)


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
