"""What every native world promises, shown on a world small enough to follow by hand."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from torch import Tensor

from whorl.core.errors import ConfigError, EnvError
from whorl.core.spec import Array, Continuous, Spec
from whorl.envs.native import WORLDS, register_world
from whorl.envs.native.world import State, World


class Walk(World):
    """A point that moves by its action, plus noise; reward is its place, and beyond 3 the episode terminates."""

    id = "Walk-v0"
    max_steps = 4

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", noise: float = 0.0) -> None:
        super().__init__(num_envs, device)
        self.noise = noise
        self.spec = Spec(Array((1,)), Continuous((1,), (-2.0,), (2.0,)), num_envs)

    def initial(self, generator: torch.Generator) -> State:
        return {"x": torch.rand(self.num_envs, generator=generator, device=self.device)}

    def advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        shake = torch.randn(self.num_envs, generator=self.generator, device=self.device)
        x = state["x"] + 2 * action[:, 0] + self.noise * shake
        return {"x": x}, x.clone(), x > 3

    def observe(self, state: State) -> Tensor:
        return state["x"][:, None].clone()


def actions(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


def test_an_ended_env_is_reset_by_the_next_step_and_the_others_go_on():
    world = Walk(2)
    world.reset(0)
    for _ in range(2):
        step = world.step(actions(1, 0))  # environment 0 moves by 2 a step, environment 1 stays
    assert step.terminated.tolist() == [True, False]
    assert step.obs[0] > 3  # the final observation is an ordinary row
    before = step.obs[1].clone()
    step = world.step(actions(1, 0))
    assert step.reset.tolist() == [True, False]
    assert 0 <= step.obs[0] < 1  # a first state, whatever the action
    assert step.obs[1] == before
    assert step.reward[0] == 0
    assert not step.terminated.any() and not step.truncated.any()


def test_the_time_limit_truncates_after_max_steps_and_counts_again_after_the_reset():
    world = Walk(1)
    world.reset(0)
    seen = [world.step(actions(0)) for _ in range(10)]
    assert [bool(s.truncated) for s in seen] == [False, False, False, True, False] * 2
    assert [bool(s.reset) for s in seen] == [False, False, False, False, True] * 2


def test_an_episode_that_terminates_on_its_last_step_is_not_truncated():
    world = Walk(1)
    world.reset(0)
    for action in (0, 0, 1, 1):
        step = world.step(actions(action))
    assert world.steps == 4
    assert bool(step.terminated) and not bool(step.truncated)


def test_returns_sum_the_rewards_of_the_running_episode():
    world = Walk(1)
    x = float(world.reset(0))
    for _ in range(4):
        world.step(actions(0))
    assert float(world.returns) == pytest.approx(4 * x)
    world.step(actions(0))
    assert float(world.returns) == 0


def test_seeds_repeat_and_differ():
    world = Walk(8)
    first, again, other = world.reset(1), world.reset(1), world.reset(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_restored_world_continues_bit_for_bit_in_this_object_and_in_a_new_one():
    world = Walk(16, noise=0.3)
    world.reset(0)
    for _ in range(7):
        world.step(torch.full((16, 1), 0.2))
    snapshot = world.snapshot()

    def run(of: World) -> list[Tensor]:
        steps = [of.step(torch.full((16, 1), 0.2)) for _ in range(9)]
        return [x for s in steps for x in (s.obs, s.reward, s.terminated, s.truncated, s.reset)] + [
            of.returns.clone()
        ]

    expected = run(world)
    fresh = Walk(16, noise=0.3)
    for other in (world, fresh):
        obs = other.restore(snapshot)
        assert torch.equal(obs[:, 0], snapshot["state"]["x"])
        assert all(torch.equal(a, b) for a, b in zip(expected, run(other)))


def test_a_snapshot_is_not_moved_by_later_steps():
    world = Walk(2, noise=1.0)
    world.reset(0)
    snapshot = world.snapshot()
    kept = snapshot["state"]["x"].clone()
    world.step(actions(1, 1))
    assert torch.equal(snapshot["state"]["x"], kept)


def test_buffers_keep_their_addresses_over_steps_resets_and_restores():
    world = Walk(4)
    world.reset(0)

    def addresses() -> list[int]:
        return [x.data_ptr() for x in (*world.state.values(), world.steps, world.returns, world.ended)]

    before, snapshot = addresses(), world.snapshot()
    for _ in range(6):
        world.step(torch.ones(4, 1))
    world.reset(3)
    world.restore(snapshot)
    assert addresses() == before


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match="at least 1"):
        Walk(0)
    with pytest.raises(EnvError, match="call reset"):
        Walk(1).step(actions(0))
    donor, other = Walk(2), Walk(3)
    donor.reset(0)
    with pytest.raises(EnvError, match="2 environments"):
        other.restore(donor.snapshot())
    with pytest.raises(EnvError, match="taken"):
        register_world("Quadrotor-v0", Walk)
    with pytest.raises(EnvError, match="taken"):
        register_world("CartPole-v1", Walk)


@pytest.fixture
def walk_id():
    register_world("Walk-v0", Walk)
    yield "Walk-v0"
    del WORLDS["Walk-v0"], gymnasium.registry["Walk-v0"]


def test_a_registered_world_is_a_gymnasium_environment_with_its_own_action_range(walk_id: str):
    env = gymnasium.make(walk_id)
    first, _ = env.reset(seed=5)
    obs, reward, terminated, truncated, _ = env.step(
        np.array([1.5], np.float32)
    )  # canonical 0.75, moves by 1.5
    assert obs[0] == pytest.approx(first[0] + 1.5)
    assert (reward, terminated, truncated) == (pytest.approx(obs[0]), False, False)
    for _ in range(3):
        *_, truncated, _ = env.step(np.array([0.0], np.float32))
    assert truncated


@pytest.mark.filterwarnings("ignore")
def test_gymnasium_accepts_the_quadrotor():
    env = gymnasium.make("Quadrotor-v0", render_mode="rgb_array")
    check_env(env.unwrapped)
    first, _ = env.reset(seed=1)
    env.step(env.action_space.sample())
    again, _ = env.reset(seed=1)
    np.testing.assert_array_equal(first, again)
    fresh, _ = env.reset()
    assert not np.array_equal(fresh, again)
    frame = env.render()
    assert frame.shape == (360, 480, 3) and frame.dtype == np.uint8


def test_options_reach_the_world_through_gymnasium():
    env = gymnasium.make("whorl.envs.native:Quadrotor-v0", faults=(1, 0, 1, 1))
    assert env.unwrapped.world.faults == (1, 0, 1, 1)
