"""The car between heaven and hell: moves, rewards and what the priest tells, with numbers worked by hand."""

import gymnasium
import pytest
import torch

from whorl.envs.native import WORLDS
from whorl.envs.native.car import CarHeavenHell, CarHeavenHellTop, CarHeavenHellTopRelative


def placed(world: CarHeavenHell, *rows: tuple[float, float, int]) -> CarHeavenHell:
    """Environments with known place, speed and side of heaven."""
    world.reset(0)
    x, v, side = torch.tensor(rows, dtype=world.dtype).T
    world.state["body"].copy_(torch.stack([x, v]))
    world.state["side"].copy_(side)
    return world


def test_a_push_changes_the_speed_and_then_the_place():
    world = placed(CarHeavenHell(2, dtype="float64"), (0.1, 0.01, 1), (0.0, 0.2, -1))
    step = world.step(torch.tensor([[-1.0], [1.0]]))
    assert step.obs[0].tolist() == pytest.approx([0.1085, 0.0085, 1.0])
    assert step.obs[1].tolist() == pytest.approx([0.2, 0.2, -1.0])  # the highest speed
    assert step.reward.tolist() == [0.0, 0.0]


def test_heaven_earns_one_hell_nothing_and_both_end_the_episode():
    world = placed(CarHeavenHell(4), (0.95, 0.1, 1), (0.95, 0.1, -1), (-0.95, -0.1, -1), (-0.95, -0.1, 1))
    step = world.step(torch.zeros(4, 1))
    assert step.reward.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert step.terminated.all() and not step.truncated.any()


def test_only_the_priest_tells_where_nothing_else_does():
    rows = [(0.0, 0.0, -1), (0.299, 0.0, -1), (0.301, 0.0, -1), (0.699, 0.0, 1), (0.701, 0.0, 1)]
    world = placed(CarHeavenHell(5, observe="priest"), *rows)
    assert world.observe(world.state)[:, 2].tolist() == [0.0, 0.0, -1.0, 1.0, 0.0]
    full = placed(CarHeavenHell(5), *rows)
    assert full.observe(full.state)[:, 2].tolist() == [-1.0, -1.0, -1.0, 1.0, 1.0]


def test_in_the_episodic_variant_steps_cost_and_hell_costs_the_rest():
    world = placed(CarHeavenHell(3, episodic=True), (0.95, 0.1, 1), (0.95, 0.1, -1), (0.0, 0.0, 1))
    world.steps.fill_(99)
    step = world.step(torch.zeros(3, 1))
    # The hundredth step of 160 costs 1, and hell the 60 that are left.
    assert step.reward.tolist() == [-1.0, -61.0, -1.0]
    assert step.terminated.tolist() == [True, True, False]


def test_in_the_episodic_variant_every_episode_without_heaven_returns_minus_160():
    world = CarHeavenHell(256, episodic=True)
    world.reset(0)
    action = torch.linspace(-1, 1, 256)[:, None]
    alive, returns = torch.ones(256, dtype=torch.bool), torch.zeros(256)
    success = torch.zeros(256, dtype=torch.bool)
    for _ in range(160):
        step = world.step(action)
        returns += step.reward * alive
        success |= alive & (step.obs[:, 0] * step.obs[:, 2] >= 1)
        alive &= ~(step.terminated | step.truncated)
    assert not alive.any()
    assert 0.3 < float(success.float().mean()) < 0.6
    assert (returns[~success] == -160).all() and (returns[success] > -160).all()


def test_starts_are_at_rest_within_0_2_and_heaven_is_on_either_side_as_often():
    world = CarHeavenHell(20000)
    obs = world.reset(0)
    assert -0.2 <= float(obs[:, 0].min()) < -0.199 and 0.199 < float(obs[:, 0].max()) <= 0.2
    assert (obs[:, 1] == 0).all() and set(obs[:, 2].tolist()) == {-1.0, 1.0}
    assert float(obs[:, 2].mean()) == pytest.approx(0, abs=0.03)


def test_in_the_top_variant_the_action_is_the_place_and_hell_costs_one():
    world = placed(CarHeavenHellTop(3), (0.0, 0.0, 1), (0.0, 0.0, 1), (0.0, 0.0, -1))
    step = world.step(torch.tensor([[0.5], [1.0], [1.0]]))
    assert step.obs[:, 0].tolist() == pytest.approx([0.55, 1.1, 1.1])
    assert step.obs[:, 1].tolist() == [1.0, 1.0, -1.0]
    assert step.reward.tolist() == [0.0, 1.0, -1.0]
    assert step.terminated.tolist() == [False, True, True]
    assert gymnasium.make("CarHeavenHellTop-v0").action_space.high == pytest.approx(1.1)


def test_how_far_the_priest_is_heard_is_an_option():
    near = placed(CarHeavenHellTop(2, observe="priest", hearing=0.05), (0.46, 0.0, 1), (0.4, 0.0, 1))
    assert near.observe(near.state)[:, 1].tolist() == [1.0, 0.0]


def test_the_quiet_priest_is_heard_within_0_05():
    assert WORLDS["CarHeavenHellTopQuietPriest-v0"](1).hearing == 0.05
    assert WORLDS["CarHeavenHellTopPriest-v0"](1).hearing == 0.2


def test_in_the_relative_variant_a_move_is_seen_at_twenty_places_on_the_way():
    world = placed(CarHeavenHellTopRelative(1, observe="priest", dtype="float64"), (0.1, 0.0, -1))
    seen = world.step(torch.tensor([[0.8]])).obs.view(20, 3)
    assert seen[:, 0].tolist() == pytest.approx([0.1 + 0.04 * i for i in range(1, 21)])
    assert (seen[:, 1] == 0).all()
    # The priest is heard from 0.3 to 0.7: the places 0.3 (the fifth) to 0.7 (the fifteenth), ends aside
    assert seen[5:14, 2].tolist() == [-1.0] * 9
    assert seen[:4, 2].tolist() == [0.0] * 4 and seen[15:, 2].tolist() == [0.0] * 5
    assert world.spec.action.high == (1.0,)


def test_in_the_relative_variant_the_first_observation_is_the_start_alone():
    world = CarHeavenHellTopRelative(1, observe="priest")
    seen = world.reset(0).view(20, 3)
    assert (seen[:19] == 0).all()
    assert seen[19].tolist() == [float(world.state["body"][0]), 0.0, 0.0]


def test_in_the_relative_variant_moves_end_at_1_1_and_cost_one_and_hell_the_eight_steps():
    world = placed(CarHeavenHellTopRelative(3), (0.9, 0.0, 1), (0.9, 0.0, -1), (0.0, 0.0, 1))
    world.steps.fill_(2)
    step = world.step(torch.tensor([[1.0], [1.0], [-0.5]]))
    assert step.obs[:, 57].tolist() == pytest.approx([1.1, 1.1, -0.5])
    assert step.reward.tolist() == [-1.0, -6.0, -1.0]  # the third step; five are left
    assert step.terminated.tolist() == [True, True, False]
