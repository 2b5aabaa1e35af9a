"""The T-maze: what is seen, what earns, and what memory is worth."""

import pytest
import torch
from torch import Tensor

from whorl.envs.native import WORLDS
from whorl.envs.native.t_maze import DOWN, FORWARD, UP, TMaze


def walk(world: TMaze, *actions: int) -> list[list[float]]:
    """What one environment sees after each action."""
    return [world.step(torch.tensor([action])).obs[0].tolist() for action in actions]


def cued(world: TMaze, *cues: int) -> TMaze:
    world.reset(0)
    world.state["cue"].copy_(torch.tensor(cues))
    return world


CORRIDOR, JUNCTION = [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]


def test_the_first_observation_alone_is_the_cue():
    world = cued(TMaze(2), 1, -1)
    assert world.observe(world.state).tolist() == [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
    for action in (UP, DOWN, FORWARD):  # still at the start, and then on: only a corridor
        assert world.step(torch.full((2,), action)).obs.tolist() == [CORRIDOR, CORRIDOR]


def test_the_junction_comes_after_as_many_steps_as_the_corridor_is_long():
    world = cued(TMaze(1, length=3), 1)
    assert walk(world, FORWARD, FORWARD, FORWARD) == [CORRIDOR, CORRIDOR, JUNCTION]
    assert walk(world, FORWARD) == [JUNCTION]  # a wall


def test_turning_in_the_corridor_and_walking_into_walls_cost_only_time():
    world = cued(TMaze(1), 1)
    for action in (UP, DOWN, UP):
        step = world.step(torch.tensor([action]))
        assert float(step.reward) == 0 and not step.terminated.any()
    assert int(world.state["place"]) == 0 and int(world.steps) == 3


def test_the_way_of_the_cue_earns_one_the_other_nothing_and_both_end_the_episode():
    world = cued(TMaze(4), 1, 1, -1, -1)
    world.state["place"].fill_(10)
    step = world.step(torch.tensor([UP, DOWN, UP, DOWN]))
    assert step.reward.tolist() == [1.0, 0.0, 0.0, 1.0]
    assert step.terminated.all() and not step.truncated.any()


def test_an_episode_is_truncated_after_four_times_the_steps_that_it_takes():
    world = cued(TMaze(1, length=3), 1)
    steps = [world.step(torch.tensor([UP])) for _ in range(16)]
    assert [bool(step.truncated) for step in steps] == [False] * 15 + [True]
    assert not steps[-1].terminated.any()


def returns(world: TMaze, turn: Tensor) -> Tensor:
    """Of one episode: forward as long as there is a corridor, and at the junction `turn` [B]."""
    world.reset(0)
    total = torch.zeros(world.num_envs)
    junction = torch.zeros(world.num_envs)
    for _ in range(world.length + 1):
        step = world.step(torch.where(junction > 0, turn, FORWARD))
        junction = step.obs[:, 3]
        total += step.reward
    assert step.terminated.all()
    return total


@pytest.mark.parametrize("id", ["TMaze-v0", "TMazeLong-v0"])
def test_memory_earns_one_and_any_fixed_turn_half_of_that(id: str):
    world = WORLDS[id](20000)
    first = world.reset(0)
    told = torch.where(first[:, 0] > 0, UP, DOWN)
    assert (returns(world, told) == 1).all()
    always, turns = torch.full((20000,), UP), torch.arange(20000) % 2 * DOWN
    assert float(returns(world, always).mean()) == pytest.approx(0.5, abs=0.02)
    assert float(returns(world, turns).mean()) == pytest.approx(0.5, abs=0.02)


def test_seen_in_full_the_cue_stays():
    world = cued(TMaze(1, observe="full", length=2), -1)
    assert walk(world, FORWARD, FORWARD) == [[0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]]


@pytest.mark.parametrize("id", ["TMaze-v0", "TMazeLong-v0"])
def test_random_play_mostly_comes_to_the_junction_and_is_right_half_of_the_time(id: str):
    world = WORLDS[id](5000)
    world.reset(0)
    generator = torch.Generator().manual_seed(0)
    total, alive, reached = torch.zeros(5000), torch.ones(5000, dtype=torch.bool), torch.tensor(0)
    for _ in range(world.max_steps):
        step = world.step(torch.randint(3, (5000,), generator=generator))
        total += step.reward * alive
        reached = reached + (step.terminated & alive).sum()
        alive &= ~(step.terminated | step.truncated)
    assert int(reached) > 0.92 * 5000
    assert float(total.sum() / reached) == pytest.approx(0.5, abs=0.03)
