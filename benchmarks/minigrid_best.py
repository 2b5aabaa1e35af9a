"""The best return of MiniGrid tasks with doors, keys, balls and goals, by breadth-first search in many layouts.

    python benchmarks/minigrid_best.py MiniGrid-MultiRoom-N6-v0 MiniGrid-KeyCorridorS3R3-v0 --layouts 100

The search knows the whole grid, which an agent does not. A task ends at its goal, or where the object that its mission
names is picked up.
"""

import argparse
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import gymnasium
import minigrid  # noqa: F401 - registers the tasks

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE = range(6)
OPEN, CLOSED, LOCKED = range(3)
MOVES = ((1, 0), (0, 1), (-1, 0), (0, -1))
Cell = tuple[int, int]
State = tuple[Cell, int, int, tuple[Cell, ...], tuple[int, ...]]
"""position, direction, index of the item that is carried or -1, cells of all items, states of all doors"""
NOWHERE = (-1, -1)


class Layout:
    """A grid, as far as actions can change it."""

    def __init__(self, env: Any) -> None:
        self.free: set[Cell] = set()
        self.goals: set[Cell] = set()
        self.doors: dict[Cell, int] = {}
        """index of the door in each cell"""
        self.items: list[Any] = []
        self.door_colours: list[str] = []
        cells, states = [], []
        for x in range(env.grid.width):
            for y in range(env.grid.height):
                found = env.grid.get(x, y)
                kind = "empty" if found is None else found.type
                if kind == "wall":
                    continue
                self.free.add((x, y))
                if kind == "goal":
                    self.goals.add((x, y))
                elif kind == "door":
                    self.doors[x, y] = len(states)
                    self.door_colours.append(found.color)
                    states.append(OPEN if found.is_open else LOCKED if found.is_locked else CLOSED)
                elif kind in ("key", "ball"):
                    self.items.append(found)
                    cells.append((x, y))
                elif kind != "empty":
                    raise SystemExit(f"{env.spec.id} has a {kind}, which this search does not know")
        self.wanted = getattr(env, "obj", None)
        place = (int(env.agent_pos[0]), int(env.agent_pos[1]))
        self.start: State = (place, int(env.agent_dir), -1, tuple(cells), tuple(states))

    def after(self, state: State) -> Iterator[tuple[State, bool]]:
        """What every action that changes something leads to, and whether it solves the task."""
        (x, y), direction, carried, cells, doors = state
        yield ((x, y), (direction - 1) % 4, carried, cells, doors), False
        yield ((x, y), (direction + 1) % 4, carried, cells, doors), False
        ahead = (x + MOVES[direction][0], y + MOVES[direction][1])
        if ahead not in self.free:
            return
        if ahead in cells:
            if carried < 0:
                item = cells.index(ahead)
                gone = (*cells[:item], NOWHERE, *cells[item + 1 :])
                yield ((x, y), direction, item, gone, doors), self.items[item] is self.wanted
            return
        door = self.doors.get(ahead)
        if door is not None:
            key = carried >= 0 and self.items[carried].type == "key"
            fits = key and self.items[carried].color == self.door_colours[door]
            if doors[door] == CLOSED or (doors[door] == LOCKED and fits):
                yield ((x, y), direction, carried, cells, (*doors[:door], OPEN, *doors[door + 1 :])), False
        elif carried >= 0 and ahead not in self.goals:
            dropped = (*cells[:carried], ahead, *cells[carried + 1 :])
            yield ((x, y), direction, -1, dropped, doors), False
        if door is None or doors[door] == OPEN:
            yield (ahead, direction, carried, cells, doors), ahead in self.goals

    def shortest(self) -> int:
        """Steps of the quickest solution."""
        known, front, steps = {self.start}, [self.start], 0
        while front:
            steps, following = steps + 1, []
            for state in front:
                for reached, solved in self.after(state):
                    if solved:
                        return steps
                    if reached not in known:
                        known.add(reached)
                        following.append(reached)
            front = following
        raise SystemExit("a layout has no solution")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--layouts", type=int, default=100)
    asked = parser.parse_args()
    for task in asked.tasks:
        env: Any = gymnasium.make(task).unwrapped
        steps = []
        for seed in range(asked.layouts):
            env.reset(seed=seed)
            steps.append(Layout(env).shortest())
        best = fmean(1 - 0.9 * number / env.max_steps for number in steps)
        print(f"{task}: return {best:.3f}, {fmean(steps):.1f} of {env.max_steps} steps, {len(steps)} layouts")


if __name__ == "__main__":
    main()
