"""Deep sea against episodes worked by hand and a plain re-derivation of bsuite's rule."""

import gymnasium
import pytest
import torch
from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.envs.native import WORLDS
from whorl.envs.native.deep_sea import DeepSea

LEFT, RIGHT = 0, 1


def go(world: DeepSea, *ways: int) -> list[tuple[float, bool, list[int]]]:
    """Reward, end and the cells that are 1 in the observation, for one environment that goes left or right."""
    found = []
    for way in ways:
        right = world.right[world.cells()]
        step = world.step(torch.where(torch.tensor(way == RIGHT), right, 1 - right))
        found.append((float(step.reward), bool(step.terminated), step.obs[0].nonzero()[:, 0].tolist()))
        assert not step.truncated.any()
    return found


def test_going_right_every_time_finds_the_treasure_and_pays_a_hundredth():
    world = DeepSea(1, size=3)
    assert world.reset(0).tolist() == [[1.0, *[0.0] * 8]]
    cost = 0.01 / 3
    # Cells 0, 4 and 8 are the diagonal; after the last step nothing is seen.
    assert go(world, RIGHT, RIGHT, RIGHT) == [
        (pytest.approx(-cost), False, [4]),
        (pytest.approx(-cost), False, [8]),
        (pytest.approx(1 - cost), True, []),
    ]
    assert float(world.returns) == pytest.approx(0.99) == world.optimal_return


def test_the_sides_stop_the_diver_and_a_step_left_can_not_be_made_good():
    world = DeepSea(1, size=4)
    world.reset(0)
    cost = pytest.approx(-0.01 / 4)
    assert go(world, LEFT, RIGHT, RIGHT, RIGHT) == [
        (0.0, False, [4]),  # still in column 0
        (cost, False, [9]),
        (cost, False, [14]),  # column 2 of row 3
        (cost, True, []),
    ]


def test_never_going_right_gives_nothing():
    world = DeepSea(1, size=4)
    world.reset(0)
    assert [row[0] for row in go(world, *[LEFT] * 4)] == [0.0] * 4


def test_an_episode_terminates_after_size_steps_and_is_never_truncated():
    world = DeepSea(3, size=5)
    world.reset(0)
    steps = [world.step(torch.tensor([0, 1, 1])) for _ in range(6)]
    assert [step.terminated.tolist() for step in steps] == [[False] * 3] * 4 + [[True] * 3, [False] * 3]
    assert not any(step.truncated.any() for step in steps)
    assert steps[-1].reset.all() and torch.equal(steps[-1].obs.argmax(1), torch.zeros(3, dtype=torch.int64))


def test_success_is_told_where_the_treasure_was_found():
    world = DeepSea(2, size=3, randomize_actions=False)
    assert world.spec.measures == ("success_rate",)
    world.reset(0)
    for action in ([1, 1], [1, 0], [1, 1]):
        step = world.step(torch.tensor(action))
    assert step.measures.tolist() == [[1.0], [0.0]]


def test_actions_mean_the_same_in_all_environments_runs_and_seeds_and_differ_between_cells():
    world, other = DeepSea(4, size=20), DeepSea(1, size=20)
    world.reset(0), other.reset(7)
    assert torch.equal(world.right, other.right)
    assert 140 < int(world.right.sum()) < 260
    assert not torch.equal(world.right, DeepSea(1, size=20, mapping_seed=1).right)
    assert (DeepSea(1, size=20, randomize_actions=False).right == 1).all()


def reference(size: int, right: list[int], actions: list[int]) -> list[tuple[float, int]]:
    """Rewards and columns of one deterministic episode, by bsuite's definition."""
    column, found = 0, []
    for row, action in enumerate(actions):
        goes_right, reward = action == right[size * row + column], 0.0
        if column == size - 1 and goes_right:
            reward += 1.0
        if goes_right:
            column, reward = min(column + 1, size - 1), reward - 0.01 / size
        else:
            column = max(column - 1, 0)
        found.append((reward, column))
    return found


def test_random_episodes_follow_the_definition():
    size, num_envs = 6, 32
    world = DeepSea(num_envs, size=size)
    world.reset(0)
    actions = torch.randint(2, (size, num_envs), generator=torch.Generator().manual_seed(0))
    actions[:, 0] = world.right.view(size, size).diagonal()  # one that finds the treasure
    seen = []
    for action in actions:
        step = world.step(action)
        seen.append(torch.stack([step.reward.double(), world.state["column"].double()]))
    expected = [reference(size, world.right.tolist(), column) for column in actions.T.tolist()]
    assert torch.allclose(torch.stack(seen).permute(2, 0, 1), torch.tensor(expected).double())
    assert expected[0][-1][0] > 0.9


def stochastic(size: int, num_envs: int, ways: int) -> tuple[Tensor, Tensor]:
    """The columns after each step, and the last rewards, of many episodes that try to go one way."""
    world = DeepSea(num_envs, size=size, stochastic=True, randomize_actions=False)
    world.reset(0)
    columns = []
    for _ in range(size):
        step = world.step(torch.full((num_envs,), ways))
        columns.append(world.state["column"].clone())
    assert step.terminated.all()
    return torch.stack(columns), step.reward


def test_wind_takes_a_move_to_the_right_once_in_size_steps_and_none_to_the_left():
    columns, _ = stochastic(5, 20000, RIGHT)
    assert float(columns[0].float().mean()) == pytest.approx(1 - 1 / 5, abs=0.01)
    assert set((columns[1] - columns[0]).tolist()) == {0, 1}
    assert (stochastic(5, 100, LEFT)[0] == 0).all()


def test_rewards_of_the_lower_corners_alone_are_noisy():
    columns, reward = stochastic(5, 20000, RIGHT)
    before = columns[-2]
    corner = reward[before == 4]
    assert float(corner.mean()) == pytest.approx(1 - 0.002, abs=0.04)
    assert float(corner.std()) == pytest.approx(1, abs=0.04)
    inner = reward[(before > 0) & (before < 4)]
    assert len(inner) > 1000 and torch.allclose(inner, torch.tensor(-0.002))
    _, idle = stochastic(5, 20000, LEFT)
    assert float(idle.mean()) == pytest.approx(0, abs=0.03) and float(idle.std()) == pytest.approx(
        1, abs=0.03
    )


@pytest.mark.parametrize("size", [2, 4, 30])
def test_the_best_mean_return_of_the_stochastic_sea_is_that_of_dynamic_programming(size: int):
    calm, following = 1 - 1 / size, [0.0] * (size + 1)
    for row in reversed(range(size)):
        values = []
        for column in range(row + 1):
            found = 1.0 if column == size - 1 else 0.0
            after = following[min(column + 1, size - 1)]
            right = found - 0.01 / size + calm * after + (1 - calm) * following[column]
            values.append(max(right, following[max(column - 1, 0)]))
        following = [*values, 0.0]
    assert WORLDS["DeepSeaStochastic-v0"](1, size=size).optimal_return == pytest.approx(following[0])


def test_the_best_policy_of_the_stochastic_sea_stops_paying_where_the_wind_has_stopped_it():
    world = WORLDS["DeepSeaStochastic-v0"](40000, size=4, randomize_actions=False)
    world.reset(0)
    for row in range(4):
        world.step((world.state["column"] == row).long())
    # The treasure with 0.75^3, and a right move of 0.0025 in each row with 1, 0.75, 0.75^2 and 0.75^3.
    assert world.optimal_return == pytest.approx(0.421875 - 0.0025 * 2.734375)
    assert float(world.returns.mean()) == pytest.approx(world.optimal_return, abs=0.03)


def test_a_random_policy_returns_next_to_nothing():
    world = DeepSea(10000)
    world.reset(0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        world.step(torch.randint(2, (10000,), generator=generator))
    assert -0.006 < float(world.returns.mean()) < 0


def test_the_map_says_which_cell_the_diver_is_in():
    world = DeepSea(2, size=4, randomize_actions=False)
    world.reset(0)
    world.step(torch.tensor([0, 1]))
    world.step(torch.tensor([1, 1]))
    assert world.map_shape == (4, 4)
    assert world.cells().tolist() == [2 * 4 + 1, 2 * 4 + 2]


def test_gymnasium_sees_position_and_success_in_info():
    env = gymnasium.make("DeepSea-v0", size=2, randomize_actions=False)
    assert env.reset(seed=0)[1] == {"position": (0, 0), "is_success": 0.0}
    assert env.step(1)[4] == {"position": (1, 1), "is_success": 0.0}
    assert env.step(1)[4]["is_success"] == 1.0


def test_a_sea_of_one_cell_is_refused():
    with pytest.raises(ConfigError, match="size is 1; it must be at least 2"):
        DeepSea(1, size=1)
