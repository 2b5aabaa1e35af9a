"""What every world of the package keeps to, whatever it is about."""

import inspect

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from torch import Tensor

import whorl
from whorl.conformance import capture_safe
from whorl.core import tree
from whorl.core.cuda_graphs import Recorded
from whorl.core.errors import ConfigError
from whorl.core.spec import Continuous, Discrete, empty_action
from whorl.envs.make import find
from whorl.envs.native import WORLDS, World
from whorl.envs.native.sensed import Sensed
from whorl.envs.vector import Step

KNOWN = {
    "QuadInvPendulum": (1000, {"": 14}),
    "CartPoleContinuous": (200, {"": 4, "P": 2, "V": 2, "PConcat5": 10, "VConcat10": 20}),
    "CartPoleContinuousLong": (1000, {"": 4, "P": 2, "V": 2, "PConcat5": 10, "VConcat10": 20}),
    "CartPoleSwingUpVariableLength": (500, {"": 7, "PVL": 6, "PV": 5, "PA": 4, "PAConcat5": 20}),
    "Pendulum": (
        200,
        {"Full": 3, "P": 2, "V": 1, "VA": 2, "PConcat5": 10, "VConcat10": 10, "VAConcat10": 20},
    ),
    "PendulumVariableLength": (200, {"": 5, "PVL": 4, "PV": 3, "PL": 3, "PA": 3, "PAConcat5": 15}),
    "WaterMaze": (200, {"": 5, "Hidden": 3}),
    "WaterMazeDense": (200, {"": 5}),
    "WaterMazeSimple": (200, {"": 7, "Hidden": 5, "HiddenConcat10": 50}),
    "CarHeavenHell": (160, {"": 3, "Priest": 3, "PriestConcat20": 60}),
    "CarHeavenHellEpisodic": (160, {"": 3, "Priest": 3, "PriestConcat20": 60}),
    "CarHeavenHellTop": (10, {"": 2, "Priest": 2, "QuietPriest": 2}),
    "CarHeavenHellTopRelative": (8, {"": 60, "Priest": 60}),
    "TMaze": (44, {"": 4}),
    "TMazeLong": (204, {"": 4}),
    "RepeatPrevious": (64, {"": 4}),
    "RepeatFirst": (64, {"": 4}),
    "Hallway": (176, {"": 5}),
    "Queue": (32, {"": 5}),
    "Stack": (32, {"": 5}),
    "Bumps": (50, {"": 2}),
    "BumpTop": (20, {"": 2, "Full": 3}),
    "BoxTop": (20, {"": 2, "Full": 3}),
    "BumpVelocity": (200, {"": 2, "Full": 3}),
    "AntReacherTop": (20, {"": 4, "Priest": 4}),
    "UR5Top": (10, {"": 6}),
    "UR5TopSwitch": (200, {"": 6}),
    "SparseMountainCar": (200, {"": 2}),
    "SparseMountainCarContinuous": (999, {"": 2}),
    "SparseCartPoleSwingUp": (1000, {"": 7}),
    "Platform": (200, {"": 9}),
    "Goal": (100, {"": 17}),
    "CatchPoint": (25, {"": 4}),
    "HardMove": (30, {"": 4}),
    "Moving": (201, {"": 10}),
    "Sliding": (201, {"": 10}),
}
"""by the beginning of its ids: the limit of steps, and how many numbers are seen, by the ending"""
GRIDS = {"DeepSea-v0": 10, "DeepSeaStochastic-v0": 10, "DiscoMaze-v0": 500, "NoisyTVMaze-v0": 200}
"""worlds on a grid, which see all of it: the limit of steps"""
GOALS = {"BitFlip-v0": 15, "PointReach-v0": 50, "PointPush-v0": 50}
"""worlds with goals, which see several parts: the limit of steps"""
SENSED = {f"{name}{end}-v0": limit for name, (limit, ends) in KNOWN.items() for end in ends}
LIMITS = {**SENSED, **GRIDS, **GOALS}
SIZES = {f"{name}{end}-v0": size for name, (_, ends) in KNOWN.items() for end, size in ends.items()}
TIMED = ("CarHeavenHellEpisodic", "CarHeavenHellTopRelative", "Moving", "Sliding")
"""worlds in which running out of time is an end"""
FIRST = [f"{name}{next(iter(ends))}-v0" for name, (_, ends) in KNOWN.items()]
MOVED = [id for id in FIRST if "compile" in inspect.signature(WORLDS[id]).parameters]
"""worlds with equations of motion, by one id each"""
every_world = pytest.mark.parametrize("id", LIMITS)
every_sensed = pytest.mark.parametrize("id", SENSED)
every_motion = pytest.mark.parametrize("id", MOVED)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def actions(world: World, seed: int) -> tree.Tree:
    generator = torch.Generator().manual_seed(seed)

    def drawn(leaf: Discrete | Continuous) -> Tensor:
        if isinstance(leaf, Discrete):
            return torch.randint(leaf.n, (world.num_envs,), generator=generator)
        return torch.rand(world.num_envs, leaf.size, generator=generator) * 2 - 1

    return tree.map(drawn, world.spec.action)


def others(world: World, action: tree.Tree) -> tree.Tree:
    """In every environment another action."""

    def other(leaf: Discrete | Continuous, part: Tensor) -> Tensor:
        return (part + 1) % leaf.n if isinstance(leaf, Discrete) else -part

    return tree.map(other, world.spec.action, action)


def still(world: World) -> tree.Tree:
    """An action of each environment that ends no episode."""
    action = empty_action(world.spec.action, (world.num_envs,))
    if world.id.startswith("Goal"):  # a kick to the player's own position
        action["1"][:, 0] = -1
        action["1"][:, 1] = world.state["place"][1, 0] / 15
    return action


def seen(step: Step) -> Tensor:
    """All numbers observed, by environment."""
    return torch.cat([leaf.double().flatten(1) for leaf in tree.leaves(step.obs)], 1)


def flat(step: Step) -> Tensor:
    parts = (step.reward, step.terminated, step.truncated, step.reset)
    return torch.cat([seen(step).flatten(), *(part.double() for part in parts)])


def run(world: World, steps: int) -> Tensor:
    return torch.stack([flat(world.step(actions(world, t))) for t in range(steps)])


def test_the_worlds_are_known_by_these_ids_and_see_so_many_numbers():
    sensed = {id: world for id, world in WORLDS.items() if issubclass(world, Sensed)}
    assert {id: world(1).spec.observation.size for id, world in sensed.items()} == SIZES
    assert {id for id in WORLDS if id not in sensed} == {"Quadrotor-v0", *GRIDS, *GOALS}
    assert all(world.id == id for id, world in WORLDS.items())


@every_world
def test_an_episode_has_its_own_limit_and_ends_by_truncation_unless_time_is_part_of_the_task(id: str):
    world = WORLDS[id](2)
    world.reset(0)
    world.steps.fill_(LIMITS[id] - 2)
    if "time" in world.state:
        world.state["time"].fill_(LIMITS[id] - 2)
    if id.startswith("DiscoMaze"):
        world.state["walls"].zero_()  # a wall would end the episode
        world.state["place"].fill_(220)
    before, last = world.step(still(world)), world.step(still(world))
    assert not (before.terminated | before.truncated).any()
    timed = id.startswith(TIMED)
    assert last.truncated.all() != timed and last.terminated.all() == timed


@every_world
def test_runs_repeat_by_seed_and_snapshots_continue_bit_for_bit(id: str):
    world, other = WORLDS[id](9), WORLDS[id](9)
    world.reset(4)
    first = world.snapshot()["state"]
    world.steps.fill_(world.max_steps - 6)  # some environments are reset on the way
    run(world, 3)
    snapshot, places = world.snapshot(), [x.data_ptr() for x in world.state_tensors()]
    expected = run(world, 8)
    assert expected[:, -9:].any()
    other.restore(snapshot)
    assert torch.equal(run(other, 8), expected)
    other.reset(4)
    assert all(torch.equal(other.state[key], first[key]) for key in first)
    other.reset(5)
    same_start = id.startswith(("DeepSea", "Platform"))
    assert all(torch.equal(other.state[key], first[key]) for key in first) == same_start
    assert [x.data_ptr() for x in world.state_tensors()] == places


@every_world
def test_no_env_influences_another(id: str):
    world, other = WORLDS[id](9), WORLDS[id](9)
    world.reset(1), other.reset(1)
    for t in range(30 if id.startswith("Hallway") else 5):  # there nothing is asked in the first steps
        action = actions(world, t)
        changed = others(world, action)
        tree.map(lambda new, old: new[3].copy_(old[3]), changed, action)
        a, b = world.step(action), other.step(changed)
        assert torch.equal(seen(a)[3], seen(b)[3]) and a.reward[3] == b.reward[3]
    pairs = zip((flat(a), *world.state.values()), (flat(b), *other.state.values()))
    assert not all(torch.equal(x, y) for x, y in pairs)


DRAWN = (
    "Repeat",
    "Hallway",
    "Queue",
    "Stack",
    "DeepSeaStochastic",
    "DiscoMaze",
    "NoisyTV",
    "Platform",
    "Goal",
)
"""worlds that draw random numbers at every step"""


@pytest.mark.parametrize("id", [id for id in LIMITS if not id.startswith(DRAWN)])
def test_one_env_moves_like_the_same_env_of_many(id: str):
    many, one = WORLDS[id](20), WORLDS[id](1)
    many.reset(3), one.reset(0)
    for key, value in one.state.items():
        value.copy_(many.state[key][..., 7:8])
    for t in range(3):
        action = actions(many, t)
        a, b = many.step(action), one.step(tree.index(action, slice(7, 8)))
        if a.reset[7]:
            break  # each world draws starts of its own
        torch.testing.assert_close(seen(a)[7:8], seen(b), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(a.reward[7:8], b.reward, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("id", [id for id in LIMITS if not isinstance(WORLDS[id](1).spec.action, Discrete)])
def test_actions_beyond_the_bounds_are_clipped(id: str):
    world, other = WORLDS[id](9), WORLDS[id](9)
    world.reset(0), other.reset(0)
    action = actions(world, 0)
    for leaf in tree.leaves(action):
        if leaf.is_floating_point():
            leaf.fill_(7.0)
    clipped = tree.map(lambda leaf: leaf.clamp(max=1) if leaf.is_floating_point() else leaf, action)
    assert torch.equal(flat(world.step(action)), flat(other.step(clipped)))


@every_world
def test_a_step_can_be_captured(id: str):
    world = WORLDS[id](16)
    world.reset(0)
    for name in ("every_tick", "every_maze"):
        if hasattr(world, name):
            setattr(world, name, True)  # as on a GPU
    action = actions(world, 0)
    with capture_safe():
        world.step(action)


@every_world
@pytest.mark.filterwarnings("ignore")
def test_it_is_a_sound_gymnasium_environment(id: str):
    env = gymnasium.make(id, render_mode="rgb_array")
    check_env(env.unwrapped)
    assert whorl.check(id) == []


@every_world
def test_it_draws_itself(id: str):
    world = WORLDS[id](2)
    world.reset(0)
    first = world.render(1)
    world.step(tree.map(torch.ones_like, empty_action(world.spec.action, (2,))))
    assert first.shape == (360, 480, 3) and first.dtype == np.uint8
    assert (world.render(1) != first).any()


@every_sensed
def test_each_choice_of_what_is_seen_is_a_part_of_all(id: str):
    whole = WORLDS[id](3)
    whole.reset(2)
    rows = whole.sense(whole.state)
    for name, parts in whole.choices.items():
        options = {"observe": name} if len(whole.choices) > 1 else {}
        world = WORLDS[id](3, concat=1, **options)
        obs = world.reset(2)
        assert obs.shape == (3, *world.spec.observation.shape)
        assert torch.equal(obs, torch.stack([rows[i] for i in parts], 1))


@every_motion
def test_compile_without_a_compiler_warns_and_goes_on(id: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.warns(UserWarning, match="C\\+\\+ compiler"):
        world = WORLDS[id](2, compile=True)
    world.reset(0)
    world.step(actions(world, 0))


@pytest.mark.full
@every_motion
def test_compiled_motion_agrees_with_eager(id: str):
    eager, fused = WORLDS[id](16), WORLDS[id](16, compile=True)
    eager.reset(0), fused.reset(0)
    torch.testing.assert_close(run(eager, 5), run(fused, 5), atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("id", "options"),
    [(id, {}) for id in LIMITS]
    + [(id, {"compile": True}) for id in MOVED]
    + [("QuadInvPendulum-v0", {"random_starts": 0.5})],
)
def test_a_captured_step_replays_what_eager_steps_do(id: str, options: dict[str, bool]):
    captured, eager = (WORLDS[id](512, "cuda", **options) for _ in range(2))
    action = tree.to(actions(eager, 0), "cuda")
    captured.reset(0), eager.reset(0)
    recorded = Recorded(lambda: captured.step(action), [], [captured.generator])
    captured.reset(5), eager.reset(5)
    for _ in range(30):
        step = recorded.replay()
        expected = eager.step(action)
        assert torch.equal(step.reset, expected.reset)
        torch.testing.assert_close(step.obs, expected.obs)


def test_an_id_with_options_of_its_own_can_be_given_others():
    assert WORLDS["CartPoleContinuousLong-v0"](1).max_steps == 1000
    env = gymnasium.make("CartPoleContinuousLong-v0", max_steps=50, observe="p")
    assert env.unwrapped.world.max_steps == 50
    assert env.observation_space.shape == (2,)
    assert env.unwrapped.world.id == "CartPoleContinuousLong-v0"


def test_wrong_options_are_named():
    with pytest.raises(ConfigError, match="CartPoleContinuous-v0 offers full, p, v"):
        WORLDS["CartPoleContinuous-v0"](1, observe="q")
    with pytest.raises(ConfigError, match="concat is 0; use 1 for the newest observation alone"):
        WORLDS["CartPoleContinuousP-v0"](1, concat=0)
    with pytest.raises(ConfigError, match="max_steps is 0"):
        WORLDS["CartPoleContinuous-v0"](1, max_steps=0)
    with pytest.raises(ConfigError, match="choose float32 or float64"):
        WORLDS["CarHeavenHell-v0"](1, dtype="half")
    with pytest.raises(ConfigError, match="above 0"):
        WORLDS["PendulumVariableLength-v0"](1, lengths=(0.5, 0.0))
    with pytest.raises(ConfigError, match=r"at most 0\.5, so that there is something to search"):
        WORLDS["WaterMaze-v0"](1, radius=0.9)
    with pytest.raises(ConfigError, match="at least 1 step from the start"):
        WORLDS["TMaze-v0"](1, length=0)
    with pytest.raises(ConfigError, match="delay is 64; choose 1 to 63"):
        WORLDS["RepeatPrevious-v0"](1, delay=64)


def test_wrappers_and_time_limits_around_a_native_environment_are_kept() -> None:
    plain = gymnasium.make("CatchPoint-v0")
    assert find(plain).named
    rewarded = find(gymnasium.wrappers.TransformReward(plain, lambda reward: 1000.0))
    env = rewarded.factory()
    env.reset(seed=0)
    assert not rewarded.named
    assert env.step(env.action_space.sample())[1] == 1000.0
    env = find(gymnasium.make("CatchPoint-v0", max_episode_steps=3)).factory()
    env.reset(seed=0)
    assert [env.step(env.action_space.sample())[3] for _ in range(3)] == [False, False, True]
