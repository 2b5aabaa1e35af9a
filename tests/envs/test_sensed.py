"""Windows of the last observations: what `concat` joins, through episodes, snapshots and environments."""

import pytest
import torch

from whorl.envs.native import WORLDS
from whorl.envs.native.car import CarHeavenHell


def coasting(concat: int, max_steps: int = 160) -> CarHeavenHell:
    """One environment at 0.1 with speed 0.1, heaven on the right: it goes on by 0.1 a step."""
    world = CarHeavenHell(1, concat=concat, max_steps=max_steps, dtype="float64")
    world.reset(0)
    world.state["body"].copy_(torch.tensor([[0.1], [0.1]]))
    world.state["side"].fill_(1)
    return world


def places(obs: torch.Tensor) -> list[float]:
    """Every third number: places, speeds and sides take turns."""
    return [round(place, 6) for place in obs[0, ::3].tolist()]


def test_an_episode_starts_with_zeros_before_its_first_observation():
    world = CarHeavenHell(2, concat=3)
    first = world.reset(0)
    plain = CarHeavenHell(2).reset(0)
    assert first.shape == (2, 9)
    assert (first[:, :6] == 0).all() and torch.equal(first[:, 6:], plain)


def test_the_newest_observation_is_last_and_the_oldest_falls_out():
    world = coasting(3)
    start = float(world.state["window"][-1, 0])  # as reset saw it
    seen = [places(world.step(torch.zeros(1, 1)).obs) for _ in range(4)]
    assert seen[0] == [0.0, round(start, 6), 0.2]
    assert seen[1:] == [[round(start, 6), 0.2, 0.3], [0.2, 0.3, 0.4], [0.3, 0.4, 0.5]]


def test_each_observation_of_the_window_is_whole():
    world = coasting(2)
    world.step(torch.zeros(1, 1))
    obs = world.step(torch.tensor([[1.0]])).obs[0]
    # place, speed, side; then with a push of 0.0015
    expected = torch.tensor([0.2, 0.1, 1.0, 0.3015, 0.1015, 1.0], dtype=torch.float64)
    torch.testing.assert_close(obs, expected)


def test_the_window_is_empty_again_after_a_reset():
    world = coasting(3, max_steps=2)
    world.step(torch.zeros(1, 1))
    assert world.step(torch.zeros(1, 1)).truncated.all()
    step = world.step(torch.zeros(1, 1))
    assert step.reset.all()
    assert (step.obs[0, :6] == 0).all() and float(step.obs[0, 6]) == float(world.state["body"][0])


def test_observations_of_one_env_share_no_memory_with_the_window():
    world = coasting(2)
    obs = world.step(torch.zeros(1, 1)).obs
    kept = obs.clone()
    world.step(torch.zeros(1, 1))
    assert torch.equal(obs, kept)


def test_a_restored_world_goes_on_with_its_window():
    world, other = WORLDS["PendulumVAConcat10-v0"](4), WORLDS["PendulumVAConcat10-v0"](4)
    world.reset(0)
    for _ in range(5):
        obs = world.step(torch.ones(4, 1)).obs
    assert torch.equal(other.restore(world.snapshot()), obs)
    assert torch.equal(other.step(torch.ones(4, 1)).obs, world.step(torch.ones(4, 1)).obs)


def test_a_window_of_one_is_the_plain_world():
    world = CarHeavenHell(3, concat=1)
    world.reset(0)
    assert set(world.state) == {"body", "side"}


def test_with_state_the_whole_state_stands_beside_what_is_observed():
    plain, both, full = (
        WORLDS["PendulumP-v0"](3, concat=2),
        WORLDS["PendulumP-v0"](3, concat=2, state=True),
        WORLDS["PendulumFull-v0"](3),
    )
    assert both.spec.observation["observed"].shape == (4,) and both.spec.observation["state"].shape == (3,)
    seen = [world.reset(5) for world in (plain, both, full)]
    for _ in range(3):
        assert torch.equal(seen[1]["observed"], seen[0]) and torch.equal(seen[1]["state"], seen[2])
        seen = [world.step(torch.full((3, 1), 0.5)).obs for world in (plain, both, full)]


@pytest.mark.parametrize("id", ["CartPoleContinuousP-v0", "CartPoleSwingUpVariableLengthPA-v0"])
def test_other_worlds_with_hidden_state_show_it_on_demand(id: str):
    world = WORLDS[id](2, state=True)
    first = world.reset(0)
    rows = world.sense(world.state)
    assert torch.equal(first["state"], torch.stack(list(rows), 1))
    assert torch.equal(first["observed"], WORLDS[id](2).reset(0))
