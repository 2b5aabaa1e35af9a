"""Bumps: contact worked by hand, and what it takes to push the right one."""

import pytest
import torch
from torch import Tensor

from whorl.envs.native.bumps import Bumps

NUM_ENVS = 2000


def placed(place: float, left: float = -0.1, right: float = 0.1) -> Bumps:
    """One environment with the finger straight."""
    world = Bumps(1, observe="full", dtype="float64")
    world.reset(0)
    bumps = torch.tensor([[left], [right]], dtype=torch.float64)
    world.state["place"].fill_(place)
    world.state["bumps"].copy_(bumps)
    world.state["put"].copy_(bumps)
    world.state["side"].copy_((place - bumps).sign())
    return world


def act(world: Bumps, *action: float) -> tuple[list[float], float, bool]:
    step = world.step(torch.tensor([action]))
    return step.obs[0].tolist(), float(step.reward), bool(step.terminated)


def test_a_soft_finger_bends_with_the_overlap_slips_over_and_moves_nothing():
    world = placed(0.07)  # the right bump begins at 0.08 and ends at 0.12
    assert act(world, 0.4, -1)[0] == pytest.approx([0.09, 0.125, -0.1, 0.1])  # 0.01 of 0.08 m
    assert act(world, 0.5, -1)[0] == pytest.approx([0.115, 0.4375, -0.1, 0.1])
    assert act(world, -0.5, -1)[0] == pytest.approx([0.09, 0.125, -0.1, 0.1])  # and back
    assert act(world, 0.62, -1) == (pytest.approx([0.121, 0.0, -0.1, 0.1]), 0.0, False)
    assert act(world, -0.22, -1)[0] == pytest.approx([0.11, -0.125, -0.1, 0.1])  # from the other side


def test_the_angle_tells_nothing_once_a_step_has_crossed_a_whole_bump():
    assert act(placed(0.075), 1.0, -1)[0] == pytest.approx([0.125, 0.0, -0.1, 0.1])


def test_a_stiff_finger_pushes_the_right_bump_and_that_is_the_task():
    # Stiffness 0.047: the bump gives way at an overlap of 0.04 * 27 / 47 m.
    gives = 0.04 * 27 / 47
    obs, reward, ended = act(placed(0.075), 1.0, 1)
    assert obs == pytest.approx([0.125, gives / 0.08, -0.1, 0.1 + 0.045 - gives])
    assert (reward, ended) == (1.0, True)


def test_less_than_a_centimetre_is_not_yet_enough():
    world = placed(0.08)
    obs, reward, ended = act(world, 0.6, 1)  # an overlap of 0.03: it gives way by 0.007
    assert obs[3] == pytest.approx(0.1 + 0.03 - 0.04 * 27 / 47) and (reward, ended) == (0.0, False)
    assert act(world, 0.1, 1)[1:] == (1.0, True)  # 0.012


def test_stiffening_a_bent_finger_pushes():
    world = placed(0.08)
    act(world, 0.7, -1)  # an overlap of 0.035
    obs, reward, _ = act(world, 0.0, 1)
    assert obs[3] == pytest.approx(0.1 + 0.035 - 0.04 * 27 / 47) and reward == 1.0


@pytest.mark.parametrize("stiffness", [-1.0, -0.5, -0.01])
def test_up_to_the_middle_stiffness_nothing_is_ever_moved(stiffness: float):
    world = placed(0.08)
    assert act(world, 1.0, stiffness)[0][2:] == [-0.1, 0.1]
    world = placed(0.08)
    act(world, 0.78, stiffness)
    assert act(world, 1.0, stiffness)[0][2:] == [-0.1, 0.1]


@pytest.mark.parametrize(
    ("start", "step"),
    [(-0.13, 1.0), (-0.07, -1.0), (0.13, -1.0)],
    ids=["left", "left, leftwards", "right, leftwards"],
)
def test_pushing_the_left_bump_or_the_right_one_to_the_left_ends_without_a_reward(start: float, step: float):
    assert act(placed(start), step, 1)[1:] == (0.0, True)


def test_the_gripper_ends_the_episode_at_the_limits():
    assert act(placed(0.36), 0.7, -1)[1:] == (0.0, False)
    assert act(placed(0.36), 0.9, -1)[1:] == (0.0, True)
    assert act(placed(-0.36), -0.9, -1)[1:] == (0.0, True)


def test_bumps_and_gripper_are_put_where_they_may_be():
    world = Bumps(20000, observe="full")
    place, angle, left, right = world.reset(0).T
    apart = right - left
    assert 0.12 <= float(apart.min()) < 0.121 and 0.319 < float(apart.max()) <= 0.3201
    assert -0.2801 <= float(left.min()) < -0.27 and 0.27 < float(right.max()) <= 0.2801
    assert (angle == 0).all()
    assert float(torch.stack([place - left, place - right]).abs().min()) >= 0.02 - 1e-6
    assert -0.35 <= float(place.min()) < -0.349 and 0.349 < float(place.max()) <= 0.35
    between = ((place > left) & (place < right)).float().mean()
    # 0.22 - 0.04 of the 0.62 m that are free, on average
    assert float(between) == pytest.approx(0.18 / 0.62, abs=0.01)


def played(world: Bumps, obs: Tensor, policy) -> Tensor:
    """Returns [B] of one episode each."""
    total, alive = torch.zeros(world.num_envs), torch.ones(world.num_envs, dtype=torch.bool)
    for _ in range(50):
        step = world.step(policy(obs))
        total += step.reward * alive
        alive &= ~(step.terminated | step.truncated)
        obs = step.obs
    assert not alive.any()
    return total


class Feel:
    """Left of everything, then right in steps that miss no bump, soft; at the second bump, stiff."""

    def __init__(self) -> None:
        self.turned, self.touching = torch.zeros(2, NUM_ENVS, dtype=torch.bool)
        self.met = torch.zeros(NUM_ENVS)

    def __call__(self, obs: Tensor) -> Tensor:
        place, angle = obs.T
        self.turned = self.turned | (place < -0.31)
        touches = self.turned & (angle > 0)
        self.met = self.met + (touches & ~self.touching)
        self.touching = touches
        push = self.met == 2
        step = torch.where(push, 1.0, torch.where(self.turned, 0.7, -1.0))
        return torch.stack([step, torch.where(push, 1.0, -1.0)], 1)


def test_feeling_both_bumps_softly_and_then_pushing_always_succeeds():
    world = Bumps(NUM_ENVS)
    assert (played(world, world.reset(0), Feel()) == 1).all()


def test_pushing_the_first_bump_met_fails_unless_the_start_was_behind_it():
    world = Bumps(NUM_ENVS)
    obs = world.reset(0)
    place, (left, right) = world.state["place"].clone(), world.state["bumps"].clone()
    total = played(world, obs, lambda obs: torch.tensor([0.7, 1.0]).expand(NUM_ENVS, 2))
    assert (total[place < left] == 0).all()
    assert (total[(place > left) & (place < right)] == 1).all()
    assert (total[place > right] == 0).all()
