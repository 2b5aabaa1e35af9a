"""dm_control's tasks as Gymnasium environments: what is seen, when episodes end, and that they continue exactly."""

import importlib.util
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from whorl.core.errors import EnvError, WhorlError
from whorl.envs.adapter import factory_from_id
from whorl.envs.adapters import dm_control
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.snapshot import restore_env, snapshot_env

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")
installed = pytest.mark.skipif(
    importlib.util.find_spec("dm_control") is None,
    reason="dm_control is not installed: pip install -e '.[dm-control]'",
)


def make(name: str, **options: Any) -> gymnasium.Env:
    return factory_from_id(f"dm_control/{name}", **options)()


@pytest.fixture
def draw() -> Iterator[Callable[..., gymnasium.Env]]:
    """A function that makes environments which draw; the test is skipped where nothing can."""
    made = []

    def make_drawn(name: str, **options: Any) -> gymnasium.Env:
        try:
            made.append(make(name, **options))
        except EnvError as error:
            if "can't draw" in str(error):
                pytest.skip(str(error))
            raise
        return made[-1]

    yield make_drawn
    for env in made:
        env.close()


def actions(env: gymnasium.Env, count: int) -> list[np.ndarray]:
    env.action_space.seed(0)
    return [env.action_space.sample() for _ in range(count)]


def play(env: gymnasium.Env, taken: list[np.ndarray]) -> list[tuple[np.ndarray, float]]:
    return [env.step(action)[:2] for action in taken]


def same(a: list[tuple[np.ndarray, float]], b: list[tuple[np.ndarray, float]]) -> bool:
    return all(np.array_equal(x, y) and r == q for (x, r), (y, q) in zip(a, b, strict=True))


@installed
@pytest.mark.parametrize(
    "id",
    [
        "dm_control/cartpole-swingup",
        "dmc/cartpole-swingup",
        "dm_control/cartpole-swingup-v0",
        "dmc/cartpole_swingup",
    ],
)
def test_a_task_has_several_spellings(id: str):
    assert factory_from_id(id)().spec.id == "dm_control/cartpole-swingup-v0"


@installed
@pytest.mark.parametrize(
    ("name", "repeats"), [("cartpole-swingup", 8), ("walker_walk", 2), ("cheetah-run", 4)]
)
def test_tasks_from_pixels_repeat_actions_and_stack_three_frames(draw, name: str, repeats: int):
    env = draw(f"{name}-pixels")
    assert env.spec.id == f"dm_control/{name.replace('_', '-')}-pixels-v0"
    assert env.unwrapped.frame_skip == repeats and env.unwrapped.frame_stack == 3
    obs, _ = env.reset(seed=0)
    assert obs.shape == (84, 84, 3) and obs.dtype == np.uint8


@installed
def test_the_state_can_be_observed_beside_pixels(draw):
    both, alone = draw("cartpole-swingup", pixels=True, state=True), draw("cartpole-swingup")
    seen, state = both.reset(seed=3)[0], alone.reset(seed=3)[0]
    assert both.observation_space.contains(seen) and np.array_equal(seen["state"], state)
    with pytest.raises(EnvError, match="state is true, but without pixels"):
        factory_from_id("dm_control/cartpole-swingup", state=True)()


@installed
def test_an_unknown_task_names_the_nearest():
    with pytest.raises(EnvError, match="task 'cartpole-swingpu'; did you mean 'cartpole-swingup'"):
        make("cartpole-swingpu")


@installed
def test_a_seed_and_a_flat_observation_are_those_of_dm_control():
    from dm_control import suite

    env = make("walker-walk")
    seen, _ = env.reset(seed=3)
    expected = suite.load("walker", "walk", task_kwargs={"random": 3}).reset().observation
    assert list(expected) == ["orientations", "height", "velocity"]
    assert seen.dtype == np.float32 and seen.shape == (14 + 1 + 9,)
    assert np.array_equal(seen[:14], expected["orientations"].astype(np.float32))
    assert seen[14] == np.float32(expected["height"])
    assert env.observation_space.contains(seen)


@installed
def test_observations_stay_apart_where_asked():
    env = make("walker-walk", flatten=False)
    seen, _ = env.reset(seed=0)
    shapes = {key: (leaf.shape, leaf.dtype) for key, leaf in seen.items()}
    assert shapes == {"orientations": ((14,), "f4"), "height": ((1,), "f4"), "velocity": ((9,), "f4")}
    assert env.observation_space.contains(seen)


@installed
def test_seeds_repeat_and_envs_differ():
    env = GymnasiumVector(factory_from_id("dmc/cheetah-run"), 2, "dmc/cheetah-run")
    first = env.reset(5).clone()
    assert torch.equal(first, env.reset(5)) and not torch.equal(first, env.reset(6))
    assert not torch.equal(first[0], first[1])


@installed
def test_without_a_seed_two_environments_start_differently():
    assert not np.array_equal(make("cheetah-run").reset()[0], make("cheetah-run").reset()[0])


@installed
def test_canonical_actions_reach_asymmetric_bounds():
    """The quadruped's second actuator moves in [-1, 1.1]: an action of 0 is its middle, 0.05."""
    env = GymnasiumVector(factory_from_id("dmc/quadruped-walk"), 1, "dmc/quadruped-walk")
    assert env.spec.action.low[1] == -1.0 and env.spec.action.high[1] == pytest.approx(1.1)
    env.reset(0)
    control = env.stepper.envs[0].unwrapped._physics.data.ctrl
    for given, reached in ((-1.0, -1.0), (0.0, 0.05), (1.0, 1.1), (9.0, 1.1)):
        env.step(torch.full((1, 12), given))
        assert control[1] == pytest.approx(reached, abs=1e-6)


@installed
def test_an_unlimited_actuator_has_no_bounds():
    assert make("lqr-lqr_2_1").action_space == gymnasium.spaces.Box(-np.inf, np.inf, (1,))


@installed
@pytest.mark.parametrize(("frame_skip", "steps"), [(1, 1000), (4, 250), (3, 334)])
def test_the_time_limit_truncates(frame_skip: int, steps: int):
    """1000 steps of dm_control; in threes, the last of 334 repeats its action only once."""
    env = make("pendulum-swingup", frame_skip=frame_skip)
    env.reset(seed=0)
    ends = [env.step(np.zeros(1))[2:4] for _ in range(steps)]
    assert ends == [(False, False)] * (steps - 1) + [(False, True)]


@installed
def test_discount_zero_terminates():
    """Only lqr has it: its episode is over once position and velocity are zero."""
    env = make("lqr-lqr_2_1")
    env.reset(seed=0)
    assert env.step(np.zeros(1))[2:4] == (False, False)
    with env.unwrapped._physics.reset_context():
        pass  # at the origin
    assert env.step(np.zeros(1))[2:4] == (True, False)


@installed
def test_a_frame_skip_repeats_the_action_and_sums_rewards():
    env, skipping = make("walker-walk"), make("walker-walk", frame_skip=4)
    env.reset(seed=0)
    skipping.reset(seed=0)
    for action in actions(env, 5):
        played = play(env, [action] * 4)
        seen, reward, *_ = skipping.step(action)
        assert np.array_equal(seen, played[-1][0])
        assert reward == sum(reward for _, reward in played)


@installed
@pytest.mark.parametrize(
    "name",
    [
        "walker-walk",
        "hopper-hop",
        "humanoid-run",
        "reacher-hard",
        "point_mass-hard",
        "manipulator-bring_ball",
    ],
)
@pytest.mark.parametrize("before", [0, 40])
def test_another_environment_continues_exactly(name: str, before: int):
    """With contacts, touch sensors, and tasks that write targets or gains into the model; the next reset included."""
    env, other = make(name), make(name)
    env.reset(seed=3)
    other.reset(seed=4)
    taken = actions(env, before + 60)
    play(env, taken[:before])
    snapshot = snapshot_env(env)
    assert snapshot is not None
    restore_env(other, snapshot)
    assert same(play(env, taken[before:]), play(other, taken[before:]))
    assert np.array_equal(env.reset()[0], other.reset()[0])
    assert same(play(env, taken[:10]), play(other, taken[:10]))


@installed
def test_envs_survive_a_safe_file_and_continue_exactly():
    """Episodes of 15 steps: among the 40 that follow are resets."""
    factory = factory_from_id("dmc/cheetah-run", max_episode_steps=15)
    env, fresh = (GymnasiumVector(factory, 2, "dmc/cheetah-run") for _ in range(2))
    assert env.snapshots
    generator = torch.Generator().manual_seed(0)
    env.reset(1)
    for _ in range(15):
        last = env.step(torch.rand(2, 6, generator=generator)).obs.clone()
    file = io.BytesIO()
    torch.save(env.snapshot(), file)
    file.seek(0)
    assert torch.equal(fresh.restore(torch.load(file, weights_only=True)), last)
    for _ in range(40):
        action = torch.rand(2, 6, generator=generator)
        a, b = env.step(action), fresh.step(action)
        assert torch.equal(a.obs, b.obs) and torch.equal(a.reward, b.reward) and torch.equal(a.reset, b.reset)


@installed
def test_pixels_are_bytes_with_the_channels_last(draw: Callable[..., gymnasium.Env]):
    env = draw("reacher-easy", pixels=True, height=24, width=32)
    seen, _ = env.reset(seed=0)
    assert seen.shape == (24, 32, 3) and seen.dtype == np.uint8 and env.observation_space.contains(seen)
    assert seen.std() > 10  # a scene, and no blank
    then, *_ = env.step(np.ones(2))
    assert not np.array_equal(seen, then)


@installed
def test_gray_pixels_are_the_luminance(draw: Callable[..., gymnasium.Env]):
    options = {"pixels": True, "height": 24, "width": 24}
    gray, _ = draw("reacher-easy", gray=True, **options).reset(seed=0)
    color, _ = draw("reacher-easy", **options).reset(seed=0)
    assert gray.shape == (24, 24, 1)
    red, green, blue = (float(x) for x in color[12, 12])
    assert abs(float(gray[12, 12, 0]) - (0.299 * red + 0.587 * green + 0.114 * blue)) <= 0.51


@installed
def test_pixels_continue_exactly(draw: Callable[..., gymnasium.Env]):
    options = {"pixels": True, "height": 24, "width": 24}
    env, other = draw("reacher-easy", **options), draw("reacher-easy", **options)
    env.reset(seed=0)
    other.reset(seed=1)
    taken = actions(env, 6)
    play(env, taken[:3])
    restore_env(other, snapshot_env(env))
    assert same(play(env, taken[3:]), play(other, taken[3:]))


@installed
def test_render_draws_beside_the_states(draw: Callable[..., gymnasium.Env]):
    env = draw("cartpole-balance", render_mode="rgb_array", camera="lookatcart")
    assert env.reset(seed=0)[0].shape == (5,)
    assert env.render().shape == (480, 640, 3)
    assert env.metadata["render_fps"] == 100


@installed
def test_a_camera_that_is_not_there_is_named_with_those_that_are(draw: Callable[..., gymnasium.Env]):
    with pytest.raises(
        EnvError, match=r"camera is 'front'.*choose one of: side, back, or a number from -1 to 1"
    ):
        draw("walker-walk", pixels=True, camera="front")


@installed
def test_where_nothing_can_draw_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    from dm_control import _render

    def broken(**_: Any) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr(_render, "Renderer", broken)
    monkeypatch.setattr(dm_control, "_headless", lambda: False)
    with pytest.raises(
        EnvError, match=r"can't render here \(no device\).*libegl1.*MUJOCO_GL=egl.*libosmesa6"
    ):
        make("walker-walk", pixels=True)


@installed
def test_a_frame_skip_below_one_is_refused():
    with pytest.raises(EnvError, match="frame_skip is 0; it must be 1 or more"):
        make("walker-walk", frame_skip=0)


@installed
def test_versions_that_do_not_go_together_are_named(monkeypatch: pytest.MonkeyPatch):
    def load(*_: Any, **__: Any) -> None:
        raise AttributeError("'MjModel' object has no attribute 'flex_vertedge'")

    monkeypatch.setattr(dm_control._suite(), "load", load)
    with pytest.raises(
        EnvError, match=r"dm_control [\d.]+ does not work with mujoco [\d.]+ .*\[dm-control\]"
    ):
        make("walker-walk")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    dm_control._suite.cache_clear()
    with pytest.raises(WhorlError, match=r"dm_control is not installed.*\[dm-control\]"):
        factory_from_id("dm_control/walker-walk")
