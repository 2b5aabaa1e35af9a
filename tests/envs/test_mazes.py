"""Mazes: that they are trees, the disco maze by hand, and the maze with a television."""

from typing import Any

import gymnasium
import pytest
import torch
from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.envs.native.disco_maze import COLOURS, DiscoMaze
from whorl.envs.native.grid import DOWN, LEFT, RIGHT, UP, Maze, edges, joined
from whorl.envs.native.noisy_tv import SWITCH, NoisyTVMaze

BLACK, WHITE = [0, 0, 0], [255, 255, 255]


def reached(walls: Tensor) -> int:
    """How many open cells [size, size] can be reached from the upper left node."""
    seen, queue = {(1, 1)}, [(1, 1)]
    while queue:
        row, column = queue.pop()
        for there in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if not walls[there] and there not in seen:
                seen.add(there)
                queue.append(there)
    return len(seen)


def test_the_edges_of_a_grid_of_two_by_two_nodes():
    """Cells of a 5 by 5 maze: nodes at 6, 8, 16 and 18, and what is between them."""
    assert edges(5) == ([0, 0, 1, 2], [1, 2, 3, 3], [7, 11, 13, 17])


def test_the_lightest_tree_of_a_square_leaves_out_its_heaviest_edge():
    first, second, _ = edges(5)
    weight = torch.tensor([[3, 9, 5], [1, 2, 5], [2, 1, 5], [7, 3, 5]])
    found = joined(weight, torch.tensor(first), torch.tensor(second), 4)
    assert found[:, :2].T.tolist() == [[True, True, True, False], [False, True, True, True]]
    assert found[:, 2].tolist() == [True, True, True, False]  # equal weights: the first edges


def kruskal(weight: list[int], first: list[int], second: list[int], nodes: int) -> set[int]:
    """The lightest tree, edge by edge."""
    group, taken = list(range(nodes)), set()
    for edge in sorted(range(len(weight)), key=lambda e: weight[e]):
        a, b = group[first[edge]], group[second[edge]]
        if a != b:
            taken.add(edge)
            group = [a if g == b else g for g in group]
    return taken


@pytest.mark.parametrize("size", [5, 7, 21])
def test_the_trees_are_those_of_kruskal(size: int):
    first, second, _ = edges(size)
    nodes = (size // 2) ** 2
    weight = torch.randint(1000, (len(first), 8), generator=torch.Generator().manual_seed(size))
    found = joined(weight, torch.tensor(first), torch.tensor(second), nodes)
    for i in range(8):
        assert set(found[:, i].nonzero()[:, 0].tolist()) == kruskal(
            weight[:, i].tolist(), first, second, nodes
        )


@pytest.mark.parametrize("size", [5, 13, 21])
def test_every_open_cell_of_a_maze_is_reached_and_there_are_no_loops(size: int):
    world = DiscoMaze(20, size=size)
    world.reset(0)
    walls = world.state["walls"].view(size, size, 20)
    open_cells = 2 * (size // 2) ** 2 - 1  # a connected graph with one edge less than nodes has no loop
    assert world.open_cells == open_cells
    for i in range(20):
        assert int((~walls[..., i]).sum()) == open_cells == reached(walls[..., i])
    assert walls[0].all() and walls[-1].all() and walls[:, 0].all() and walls[:, -1].all()


def test_each_environment_and_each_episode_has_a_maze_of_its_own():
    world = DiscoMaze(2)
    world.reset(0)
    first = world.state["walls"].clone()
    assert not torch.equal(first[:, 0], first[:, 1])
    world.step(torch.tensor([UP, UP]))
    assert torch.equal(world.state["walls"], first)  # ended, and shown once more
    assert world.step(torch.tensor([UP, UP])).reset.all()
    assert not any(torch.equal(world.state["walls"][:, i], first[:, j]) for i in (0, 1) for j in (0, 1))


def test_on_a_cpu_mazes_are_made_only_where_an_episode_has_ended(monkeypatch: pytest.MonkeyPatch):
    """From the draws that would make all of them, so that the generator and every maze stay the same."""
    made = []

    def counted(weight: Tensor, *rest: Any) -> Tensor:
        made.append(weight.shape[1])
        return joined(weight, *rest)

    monkeypatch.setattr("whorl.envs.native.grid.joined", counted)
    world = carved(DiscoMaze(4, size=5), *RING)
    world.step(torch.tensor([UP, RIGHT, DOWN, LEFT]))
    assert made == [4]
    generator = torch.Generator()
    generator.set_state(world.generator.get_state())
    before, every = world.state["walls"].clone(), world.weights(generator, 4)
    world.step(torch.tensor([UP, LEFT, UP, UP]))
    assert made == [4, 2]
    fresh = world.walls(every)
    assert torch.equal(world.state["walls"][:, [0, 3]], fresh[:, [0, 3]])
    assert torch.equal(world.state["walls"][:, [1, 2]], before[:, [1, 2]])


def carved(world: Maze, *rows: str) -> Maze:
    """The same maze in all environments, from rows in which # is a wall."""
    world.reset(0)
    walls = torch.tensor([mark == "#" for row in rows for mark in row])
    world.state["walls"].copy_(walls[:, None].expand(-1, world.num_envs))
    return world


RING = ("#####", "#   #", "# # #", "# ###", "#####")


def test_a_walk_worked_by_hand():
    world = carved(DiscoMaze(1, size=5), *RING)
    assert world.map_shape == (5, 5) and world.cells().tolist() == [6]
    walk = [RIGHT, RIGHT, DOWN, UP, LEFT, LEFT, DOWN, DOWN]
    steps = [(world.step(torch.tensor([action])), int(world.cells())) for action in walk]
    assert [cell for _, cell in steps] == [7, 8, 13, 8, 7, 6, 11, 16]
    assert not any((step.terminated | step.truncated).any() for step, _ in steps)
    assert [float(step.measures[0, 0]) for step, _ in steps] == [2, 3, 4, 4, 4, 4, 5, 6]
    assert float(steps[-1][0].measures[0, 1]) == pytest.approx(6 / 7)
    assert all(float(step.reward) == 0 for step, _ in steps)
    assert not torch.equal(steps[3][0].obs, steps[1][0].obs)  # the same place looks different


def test_stepping_into_a_wall_terminates_where_the_agent_is():
    world = carved(DiscoMaze(4, size=5), *RING)
    step = world.step(torch.tensor([UP, RIGHT, DOWN, LEFT]))
    assert step.terminated.tolist() == [True, False, False, True]
    assert world.cells().tolist() == [6, 7, 11, 6]
    step = world.step(torch.tensor([UP] * 4))
    assert step.reset.tolist() == [True, False, False, True]
    assert step.measures[:, 0].tolist() == [1, 2, 2, 1]  # a new episode has visited its first cell


def test_time_is_truncated():
    world = carved(DiscoMaze(1, size=5, max_steps=3), *RING)
    steps = [world.step(torch.tensor([action])) for action in (RIGHT, LEFT, RIGHT)]
    assert [bool(step.truncated) for step in steps] == [False, False, True]
    assert not steps[-1].terminated.any()


def test_walls_have_one_of_five_colours_and_others_at_each_step():
    world = carved(DiscoMaze(500, size=5), *RING)
    first = world.observe(world.state)
    second = world.step(torch.full((500,), RIGHT)).obs
    assert first.shape == (500, 5, 5, 3) and first.dtype == torch.uint8
    assert first[0, 1, 1].tolist() == WHITE and first[0, 1, 2].tolist() == BLACK
    assert second[0, 1, 1].tolist() == BLACK and second[0, 1, 2].tolist() == WHITE
    walls = first[:, 0].reshape(-1, 3)
    shares = [(walls == torch.tensor(colour)).all(1).float().mean() for colour in COLOURS]
    assert [float(share) for share in shares] == pytest.approx([0.2] * 5, abs=0.04)
    same = (first[:, 0] == second[:, 0]).all(-1).float().mean()
    assert float(same) == pytest.approx(0.2, abs=0.04)  # as likely as any other colour


def test_a_depth_first_walk_covers_the_maze_within_the_limit():
    world = DiscoMaze(1)
    world.reset(3)
    walls = world.state["walls"][:, 0].view(21, 21).tolist()
    walk: list[int] = []

    def explore(row: int, column: int, back: int) -> None:
        for action, (down, across) in enumerate(((-1, 0), (0, 1), (1, 0), (0, -1))):
            if action != back and not walls[row + down][column + across]:
                walk.append(action)
                explore(row + down, column + across, (action + 2) % 4)
                walk.append((action + 2) % 4)

    explore(1, 1, -1)
    assert len(walk) == 396
    for action in walk:
        step = world.step(torch.tensor([action]))
    assert step.measures.tolist() == [[199, 1]] and not step.terminated.any()


def test_the_goal_gives_one_terminates_and_is_a_success():
    world = carved(NoisyTVMaze(2, size=5), "#####", "#   #", "### #", "### #", "#####")
    for action in (RIGHT, RIGHT, DOWN):
        step = world.step(torch.tensor([action, SWITCH]))
        assert not step.terminated.any() and not step.reward.any()
    step = world.step(torch.tensor([DOWN, LEFT]))
    assert step.reward.tolist() == [1, 0] and step.terminated.tolist() == [True, False]
    assert world.spec.measures == ("cells_visited", "coverage", "success_rate")
    assert step.measures.tolist() == [[5, pytest.approx(5 / 7), 1], [1, pytest.approx(1 / 7), 0]]


def test_a_wall_only_stops_the_agent_there():
    world = carved(NoisyTVMaze(1, size=5), *RING)
    step = world.step(torch.tensor([UP]))
    assert world.cells().tolist() == [6] and not step.terminated.any()


def test_only_the_fifth_action_changes_what_the_television_shows():
    world = NoisyTVMaze(3)
    first = world.reset(0)
    assert first.shape == (3, 14, 11, 3)
    screens = first[:, 11:].clone()
    step = world.step(torch.tensor([UP, SWITCH, SWITCH]))
    assert torch.equal(step.obs[0, 11:], screens[0])
    for i in (1, 2):
        assert float((step.obs[i, 11:] == screens[i]).float().mean()) < 0.1
        assert torch.equal(step.obs[i, :11], first[i, :11])  # the maze stays
    assert not torch.equal(step.obs[1, 11:], step.obs[2, 11:])


def test_the_television_can_be_off():
    world = NoisyTVMaze(2, tv=False)
    first = world.reset(0)
    assert not first[:, 11:].any()
    assert torch.equal(world.step(torch.tensor([SWITCH] * 2)).obs, first)


def test_a_fixed_maze_is_the_same_everywhere_and_another_with_another_seed():
    world, other, seeded = NoisyTVMaze(2), NoisyTVMaze(1), NoisyTVMaze(1, maze_seed=1)
    world.reset(0), other.reset(5), seeded.reset(0)
    walls = world.state["walls"]
    assert torch.equal(walls[:, 0], walls[:, 1]) and torch.equal(walls[:, :1], other.state["walls"])
    assert not torch.equal(walls[:, :1], seeded.state["walls"])
    drawn = NoisyTVMaze(2, fixed=False)
    drawn.reset(0)
    assert not torch.equal(drawn.state["walls"][:, 0], drawn.state["walls"][:, 1])


def test_gymnasium_sees_position_and_measures_in_info():
    env = gymnasium.make("NoisyTVMaze-v0")
    _, info = env.reset(seed=0)
    assert info == {
        "cells_visited": 1.0,
        "coverage": pytest.approx(1 / 49),
        "is_success": 0.0,
        "position": (1, 1),
    }
    assert env.unwrapped.measures == ("cells_visited", "coverage") and env.unwrapped.map_shape == (11, 11)


@pytest.mark.parametrize("size", [3, 10])
def test_an_even_or_too_small_maze_is_refused(size: int):
    with pytest.raises(ConfigError, match=f"size is {size}; it must be odd and at least 5"):
        DiscoMaze(1, size=size)
