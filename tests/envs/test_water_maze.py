"""The water mazes: moves, rewards and placements, with numbers worked by hand."""

import math

import pytest
import torch

from whorl.envs.native import WORLDS
from whorl.envs.native.water_maze import WaterMaze, WaterMazeSimple


def placed(
    world: WaterMaze, *places: tuple[float, float], platform: tuple[float, float] = (0.5, 0.0)
) -> WaterMaze:
    """Environments at known places, at rest, with the platform at one place."""
    world.reset(0)
    world.state["place"].copy_(torch.tensor(places, dtype=world.dtype).T)
    world.state["platform"].copy_(
        torch.tensor(platform, dtype=world.dtype)[:, None].expand(2, world.num_envs)
    )
    return world


def test_a_full_action_moves_by_0_04_per_axis_and_the_platform_is_seen():
    world = placed(WaterMaze(1), (0.0, 0.0))
    step = world.step(torch.tensor([[1.0, -0.5]]))
    assert step.obs[0].tolist() == pytest.approx([0.04, -0.02, 0.0, 0.5, 0.0])
    assert float(step.reward) == 0


def test_a_move_out_of_the_pool_does_not_happen():
    world = placed(WaterMaze(2), (-0.99, 0.0), (-0.5, 0.0))
    step = world.step(torch.tensor([[-1.0, 0.0], [-1.0, 0.0]]))
    assert step.obs[:, 0].tolist() == pytest.approx([-0.99, -0.54])


def test_a_step_that_ends_on_the_platform_earns_one():
    world = placed(WaterMaze(2), (0.19, 0.0), (0.19, 0.0))
    step = world.step(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))  # the platform begins at 0.2
    assert step.reward.tolist() == [1.0, 0.0]
    assert step.obs[:, 2].tolist() == [1.0, 0.0]


def test_after_five_steps_on_the_platform_in_a_row_or_not_it_is_put_off_it():
    world = placed(WaterMaze(1), (0.21, 0.0))
    inside, outside = torch.tensor([[0.0, 0.0]]), torch.tensor([[-1.0, 0.0]])
    rewards = [float(world.step(action).reward) for action in (inside, inside, outside, -outside, inside)]
    assert rewards == [1.0, 1.0, 0.0, 1.0, 1.0]
    step = world.step(inside)
    assert float(step.reward) == 1  # the fifth
    assert float(step.obs[0, 2]) == 0 and math.hypot(*(step.obs[0, :2] - step.obs[0, 3:]).tolist()) > 0.3
    assert float(world.state["stayed"]) == 0
    assert step.obs[0, 3:].tolist() == [0.5, 0.0]  # the platform stays
    assert not bool(step.terminated)


@pytest.mark.parametrize("id", ["WaterMaze-v0", "WaterMazeDense-v0"])
def test_placements_are_uniform_in_angle_and_distance_and_off_the_platform(id: str):
    world = WORLDS[id](50000)
    world.reset(0)
    place, platform, radius = world.state["place"], world.state["platform"], world.radius
    from_middle, platform_from_middle = place.norm(dim=0), platform.norm(dim=0)
    assert float(platform_from_middle.max()) <= 1 - radius + 1e-6
    assert float(platform_from_middle.mean()) == pytest.approx((1 - radius) / 2, abs=0.01)
    assert float((place - platform).norm(dim=0).min()) > radius
    assert 0.99 < float(from_middle.max()) <= 1
    torch.testing.assert_close(place.mean(1), torch.zeros(2), rtol=0, atol=0.01)
    # A platform in the very middle leaves the distances from its rim to the wall, as likely each.
    central = platform_from_middle < 0.02
    assert float(from_middle[central].mean()) == pytest.approx((1 + radius) / 2, abs=0.03)


def test_if_no_draw_is_off_the_platform_the_place_opposite_is_taken(monkeypatch: pytest.MonkeyPatch):
    world = placed(WaterMaze(1), (0.0, 0.0), platform=(0.0, 0.4))
    monkeypatch.setattr(world, "uniform", lambda rows, generator: torch.full((rows, 1), 0.25))
    # Distance 0.25 at 90 degrees is on the platform, every time.
    place = world.random_place(world.state["platform"], world.generator)
    assert place[:, 0].tolist() == pytest.approx([0.0, -0.9], abs=1e-6)


def test_the_dense_variant_pays_minus_the_distance_and_has_a_smaller_platform():
    world = placed(WORLDS["WaterMazeDense-v0"](1), (0.0, 0.0), platform=(0.3, 0.4))
    step = world.step(torch.zeros(1, 2))
    assert float(step.reward) == pytest.approx(-0.5)
    assert world.radius == 0.2


def test_the_simple_variant_coasts():
    world = placed(WaterMazeSimple(1), (0.0, 0.0), platform=(0.7, 0.0))
    push, rest = torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2)
    steps = [world.step(action).obs[0].tolist() for action in (push, push, rest)]
    # Speed 0.03, 0.06, 0.06: place, inside, platform, speed
    assert steps[1] == pytest.approx([0.09, 0.0, 0.0, 0.7, 0.0, 0.06, 0.0])
    assert steps[2] == pytest.approx([0.15, 0.0, 0.0, 0.7, 0.0, 0.06, 0.0])
    for _ in range(3):
        step = world.step(push)
    assert float(step.obs[0, 5]) == pytest.approx(0.1)  # the highest speed


def test_the_simple_variant_stops_at_the_wall_and_goes_back_to_the_middle_after_five():
    world = placed(WaterMazeSimple(2), (0.0, 0.99), (0.6, 0.0), platform=(0.7, 0.0))
    world.state["drift"][1] = torch.tensor([0.05, 0.0])
    step = world.step(torch.zeros(2, 2))
    assert step.obs[0, [0, 1, 5, 6]].tolist() == pytest.approx([0.0, 0.99, 0.0, 0.0])
    rewards = [float(step.reward[1])] + [float(world.step(torch.zeros(2, 2)).reward[1]) for _ in range(4)]
    assert rewards == [1.0] * 5
    assert world.state["place"][:, 1].tolist() == [0.0, 0.0]


def test_the_simple_variant_starts_in_the_middle_with_the_platform_0_7_away():
    world = WaterMazeSimple(5000)
    obs = world.reset(0)
    assert (obs[:, [0, 1, 2, 5, 6]] == 0).all()
    torch.testing.assert_close(obs[:, 3:5].norm(dim=1), torch.full((5000,), 0.7))
    torch.testing.assert_close(obs[:, 3:5].mean(0), torch.zeros(2), rtol=0, atol=0.03)
