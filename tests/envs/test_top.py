"""Tasks whose actions are positions and poses: what is shown and rewarded when, with numbers worked by hand."""

import math

import pytest
import torch

from whorl.core.errors import ConfigError
from whorl.envs.native import WORLDS, AntReacherTop, BumpTop, UR5Top


def test_an_ant_goes_where_the_action_says_and_heaven_earns_one_and_hell_costs_one():
    world = AntReacherTop(4)
    world.reset(0)
    world.state["side"].copy_(torch.tensor([1.0, -1.0, 1.0, 1.0]))
    # (6.4, 6.4), 0.38 from (6.25, 6.75); the third is at (0, 8), 6.4 from both; the last one 1.9125 from heaven
    action = torch.tensor([[0.8, 0.8], [0.8, 0.8], [0.0, 1.0], [(6.25 - 1.9125) / 8, 6.75 / 8]])
    step = world.step(action)
    assert step.obs[0].tolist() == pytest.approx([6.4, 6.4, 6.25, 6.75])
    assert step.reward.tolist() == [1.0, -1.0, 0.0, 0.0]
    assert step.terminated.tolist() == [True, True, False, False]
    assert step.measures[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_only_the_priest_tells_an_ant_where_heaven_is():
    world = AntReacherTop(3, observe="priest")
    assert world.reset(0).tolist() == [[0.0] * 4] * 3
    world.state["side"].copy_(torch.tensor([1.0, -1.0, 1.0]))
    priest = [5.25 / 8, -5.75 / 8]
    step = world.step(torch.tensor([priest, priest, [(5.25 - 1.95) / 8, -5.75 / 8]]))
    assert step.obs[:, 2:].tolist() == [[6.25, 6.75], [-6.25, 6.75], [0.0, 0.0]]
    assert not step.terminated.any()
    assert world.step(torch.zeros(3, 2)).obs[:, 2:].tolist() == [[0.0, 0.0]] * 3  # it has to be remembered


def test_an_arm_takes_the_pose_and_ten_degrees_around_the_target_are_enough():
    world = UR5Top(3)
    world.reset(0)
    target = torch.tensor([1.0, -0.4, 0.2])
    world.state["target"].copy_(target[:, None].expand(3, 3))
    exact = torch.tensor([1.0 / math.pi, -0.4 / (math.pi / 8) + 1, 0.2 / (math.pi / 4)])
    off = torch.tensor([math.radians(9.5), math.radians(10.5), 0.0]) / math.pi
    step = world.step(exact + torch.stack([torch.tensor([x, 0.0, 0.0]) for x in off]))
    assert step.obs[2].tolist() == pytest.approx([1.0, -0.4, 0.2, 1.0, -0.4, 0.2], abs=1e-5)
    assert step.reward.tolist() == [1.0, 0.0, 1.0] and step.terminated.tolist() == [True, False, True]
    assert step.measures[:, 0].tolist() == [1.0, 0.0, 1.0]


def test_the_switch_shows_an_arm_its_target_for_ten_steps():
    world = WORLDS["UR5TopSwitch-v0"](1)
    assert world.reset(0)[0, 3:].tolist() == [0.0] * 3
    switch, away = torch.tensor([[0.0, 1.0, -1.0]]), torch.zeros(1, 3)
    seen = [world.step(away).obs, world.step(switch).obs, *(world.step(away).obs for _ in range(11))]
    shown = [bool((obs[0, 3:] == world.state["target"][:, 0]).all()) for obs in seen]
    assert shown == [False] + [True] * 11 + [False]


def test_targets_of_an_arm_lie_to_the_side_and_above_the_table():
    world = UR5Top(20000)
    world.reset(0)
    pan, lift, elbow = world.state["target"]
    assert math.pi / 4 <= float(pan.abs().min()) and 3.1 < float(pan.abs().max()) <= math.pi
    assert float(pan.sign().mean()) == pytest.approx(0, abs=0.03)
    assert -math.pi / 4 <= float(lift.min()) and float(lift.max()) <= 0
    height = 0.089 - 0.425 * lift.sin() - 0.392 * (lift + elbow).sin()
    assert float(height.min()) > 0.15
    assert float(world.state["angles"][0].abs().max()) <= math.pi / 8


def lay(world: BumpTop, **values: float) -> BumpTop:
    world.reset(0)
    for key, value in values.items():
        world.state[key].fill_(value)
    return world


def test_a_finger_bends_over_a_bump_and_a_narrow_one_is_passed_first():
    for width, angles in ((4.0, [0.0, -0.0, 0.35, 0.0]), (5.0, [0.0, 0.05, 0.4, 0.45])):
        world = lay(BumpTop(1), place=30.0, thing=50.0, width=width, side=-1.0, way=1.0)
        # Edges are at 48 or 47.5; with an overlap of the whole width, at 52 or 52.5, the finger is over it.
        felt = [float(world.step(torch.tensor([[x / 50 - 1]])).obs[0, 1]) for x in (47.5, 48.0, 51.5, 52.0)]
        assert felt == pytest.approx(angles, abs=1e-5)


def test_a_finger_that_comes_from_the_right_bends_the_other_way():
    world = lay(BumpTop(1), place=70.0, thing=50.0, width=4.0, side=1.0, way=1.0)
    assert float(world.step(torch.tensor([[0.0]])).obs[0, 1]) == pytest.approx(-0.2)


@pytest.mark.parametrize(("end", "way", "reward"), [(9.0, 1, 1), (9.0, -1, -1), (91.0, -1, 1), (91.0, 1, -1)])
def test_one_end_of_the_line_earns_one_and_the_other_costs_one(end: float, way: int, reward: int):
    world = lay(BumpTop(1), place=30.0, thing=50.0, width=4.0, side=-1.0, way=float(way))
    step = world.step(torch.tensor([[end / 50 - 1]]))
    assert (float(step.reward), bool(step.terminated)) == (reward, True)
    assert float(step.measures) == (reward > 0)


def test_a_box_is_there_or_not_and_its_ends_are_further_out():
    world = WORLDS["BoxTopFull-v0"](4000)
    obs = world.reset(0)
    box = world.state["width"] == 10
    assert (obs[:, 2] == torch.where(box, 1.0, -1.0)).all() and float(box.float().mean()) == pytest.approx(
        0.5, abs=0.03
    )
    step = world.step(torch.zeros(4000, 1))
    assert (step.obs[box, 1].abs() > 0.4).all() and (step.obs[~box, 1] == 0).all()
    assert not world.step(torch.full((4000, 1), -0.88)).terminated.any()  # at 6


def test_with_velocity_an_action_is_a_move_and_the_wrong_end_earns_nothing():
    world = lay(WORLDS["BumpVelocityFull-v0"](1), place=30.0, thing=50.0, width=4.0, side=-1.0, way=-1.0)
    assert world.step(torch.tensor([[-0.5]])).obs[0].tolist() == pytest.approx([0.285, 0.0, -1.0])
    world.state["place"].fill_(12.0)
    step = world.step(torch.tensor([[-1.0]]))
    assert (float(step.reward), bool(step.terminated), float(step.measures)) == (0.0, True, 0.0)


def test_starts_are_clear_of_what_is_to_be_felt():
    world = WORLDS["BumpVelocity-v0"](20000)
    world.reset(0)
    place, thing = world.state["place"], world.state["thing"]
    assert float((place - thing).abs().min()) >= 3.5
    assert 10 <= float(place.min()) < 10.1 and 89.9 < float(place.max()) <= 90
    assert 40 <= float(thing.min()) < 40.1 and 59.9 < float(thing.max()) <= 60


def test_wrong_options_are_named():
    with pytest.raises(ConfigError, match="two different widths"):
        BumpTop(1, widths=(4.0, 4.0))
    with pytest.raises(ConfigError, match="margin is 30"):
        BumpTop(1, margin=30)
