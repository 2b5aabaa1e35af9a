"""Two bumps and a compliant finger: what is felt, how episodes end, and that tables keep to themselves."""

import copy
import io
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from whorl.api import check
from whorl.core.errors import EnvError, WhorlError
from whorl.envs.adapter import factory_from_id
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.snapshot import restore_env, snapshot_env

torch.set_num_threads(1)
SOFT, STIFF = -1.0, 1.0


def make(**options: Any) -> gymnasium.Env:
    pytest.importorskip("pybullet")
    return factory_from_id("BumpsBullet-v0", **options)()


def push(env: gymnasium.Env, number: int) -> tuple[float, bool, int]:
    """Sweep left, feel for the bumps from there, and push the `number`th to the right: reward, end, steps."""
    felt, touching, stiffness, steps = 0, False, SOFT, 0
    place, leftward = env.unwrapped.gripper, True
    while True:
        leftward = leftward and place > -0.33
        (place, angle), reward, terminated, truncated, _ = env.step([-1.0 if leftward else 0.4, stiffness])
        steps += 1
        if terminated or truncated:
            return float(reward), terminated, steps
        # Moving right, a bump holds the tip back: a negative angle.
        if not leftward and angle < -0.05 and not touching:
            felt += 1
            stiffness = STIFF if felt == number else SOFT
        touching = bool(angle < -0.05)


def walk(envs: list[gymnasium.Env], actions: np.ndarray) -> list[Any]:
    """All that walks in turns return; an episode's end is followed by a reset, in place of a step."""
    seen: list[Any] = []
    ended = [False] * len(envs)
    for action in actions:
        for number, env in enumerate(envs):
            if ended[number]:
                seen.append((*env.reset()[0].tolist(), None, False))
                ended[number] = False
            else:
                obs, reward, terminated, truncated, _ = env.step(action)
                ended[number] = terminated or truncated
                seen.append((*obs.tolist(), reward, ended[number]))
    return seen


def draw(count: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (count, 2)).astype(np.float32)


@pytest.mark.parametrize("layout", ["normal", "uniform", "fixed"])
def test_feeling_for_the_second_bump_and_pushing_it_earns_one(layout: str):
    env = make(layout=layout)
    for seed in range(3):
        env.reset(seed=seed)
        reward, terminated, steps = push(env, 2)
        assert (reward, terminated) == (1.0, True) and steps < 50


@pytest.mark.parametrize("failure", [0.0, -1.0])
def test_pushing_the_first_bump_ends_the_episode_as_a_failure(failure: float):
    env = make(failure=failure)
    env.reset(seed=0)
    assert push(env, 1)[:2] == (failure, True)
    assert env.unwrapped.moved()[0] > 0.001


def test_pushing_the_second_bump_to_the_left_ends_the_episode_with_nothing():
    env = make(layout="fixed")
    env.reset(seed=0)
    table = env.unwrapped
    while table.gripper < table.places[1] + 0.05:
        env.step([1.0, SOFT])
    ends: list[Any] = []
    while not ends or not ends[-1][1]:
        _, *end, _, _ = env.step([-0.4, STIFF])
        ends.append(end)
    assert ends[-1] == [0.0, True] and table.moved()[1] < -0.001 and abs(table.moved()[0]) < 1e-9


def test_a_soft_finger_bends_over_the_bumps_and_leaves_them_where_they_are():
    env = make(layout="fixed")
    env.reset(seed=0)
    while env.unwrapped.gripper > -0.35:
        env.step([-1.0, SOFT])
    angles = [env.step([0.5, SOFT])[0][1] for _ in range(29)]
    # The middle of its round tip, 96 mm from a hinge 105 mm up, has to rise to 20 + 4 mm: arccos(81 / 96) = 0.567.
    assert -0.567 < min(angles) < -0.4
    assert np.abs(env.unwrapped.moved()).max() < 1e-4


def test_the_gripper_goes_five_centimetres_a_step_and_ends_the_episode_at_its_limit():
    env = make(layout="fixed")
    env.reset(seed=0)
    before = env.unwrapped.gripper
    obs, *_ = env.step([-1.0, SOFT])
    assert obs[0] == pytest.approx(before - 0.05)
    ends = [False, False]
    while not any(ends):
        obs, reward, *ends, _ = env.step([-1.0, SOFT])
    assert (obs[0], reward, ends) == (pytest.approx(-0.4), 0.0, [True, False])


def test_fifty_steps_truncate():
    env = make()
    env.reset(seed=0)
    ends = [env.step([0.0, 0.0])[2:4] for _ in range(50)]
    assert ends[48:] == [(False, False), (False, True)]


@pytest.mark.parametrize(("layout", "width", "widest"), [("normal", 0.28, 0.32), ("uniform", 0.35, 0.7)])
def test_bumps_lie_apart_within_their_width_and_away_from_the_gripper(
    layout: str, width: float, widest: float
):
    table = make(layout=layout).unwrapped
    table.reset(seed=0)
    places = []
    for _ in range(20):
        table.reset()
        assert min(abs(table.gripper - place) for place in table.places) > 0.05
        places.append(table.places)
    left, right = np.array(places).T
    assert (right - left > 0.12).all() and (right - left < widest).all()
    assert left.min() > -width and right.max() < width


def test_there_are_three_fixed_layouts():
    table = make(layout="fixed").unwrapped
    table.reset(seed=0)
    assert {table.reset() and table.places for _ in range(20)} == {(-0.25, -0.05), (-0.1, 0.1), (0.05, 0.25)}


def test_two_tables_do_not_disturb_each_other():
    tables = [make() for _ in range(4)]
    for table, seed in zip(tables, (0, 1, 0, 1)):
        table.reset(seed=seed)
    alone, other, *both = tables
    mixed = walk(both, draw(60))
    assert mixed[::2] == walk([alone], draw(60)) and mixed[1::2] == walk([other], draw(60))


def test_an_episode_depends_on_its_seed_and_on_nothing_before():
    fresh, used = make(), make()
    used.reset(seed=5)
    push(used, 1)
    for env in (fresh, used):
        env.reset(seed=2)
    assert walk([fresh], draw(40)) == walk([used], draw(40))


@pytest.mark.parametrize("before", [0, 30])
def test_a_fresh_table_continues_exactly(before: int):
    env, fresh = make(), make()
    env.reset(seed=3)
    actions = draw(before + 60)
    walk([env], actions[:before])
    snapshot = snapshot_env(env)
    assert snapshot is not None
    restore_env(fresh, snapshot)
    assert walk([env], actions[before:]) == walk([fresh], actions[before:])


def test_envs_survive_a_safe_file_and_continue_exactly():
    pytest.importorskip("pybullet")
    factory = factory_from_id("BumpsBullet-v0", last_action=True)
    env, fresh = (GymnasiumVector(factory, 2, "BumpsBullet-v0") for _ in range(2))
    env.reset(1)
    for _ in range(5):
        last = env.step(torch.full((2, 2), 0.5)).obs.clone()
    assert last[:, 2:].tolist() == [[0.5, 0.5]] * 2
    file = io.BytesIO()
    torch.save(env.snapshot(), file)
    file.seek(0)
    assert torch.equal(fresh.restore(torch.load(file, weights_only=True)), last)
    for _ in range(20):
        a, b = env.step(torch.full((2, 2), -0.7)), fresh.step(torch.full((2, 2), -0.7))
        assert torch.equal(a.obs, b.obs) and torch.equal(a.reward, b.reward) and torch.equal(a.reset, b.reset)


def test_a_copy_has_an_engine_of_its_own():
    env = make()
    env.reset(seed=0)
    copied = copy.deepcopy(env.unwrapped)
    copied.reset(seed=1)
    copied.close()
    env.step([0.1, 0.0])


def test_a_picture_shows_the_table_and_what_moves():
    env = make(render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    assert first.shape == (240, 480, 3) and first.dtype == np.uint8 and first.std() > 10
    env.step([1.0, SOFT])
    assert not np.array_equal(first, env.render())


def test_nothing_is_wrong_with_it():
    pytest.importorskip("pybullet")
    assert check("BumpsBullet-v0") == []


def test_an_unknown_layout_names_the_nearest():
    with pytest.raises(EnvError, match="layout is 'unifrom'; did you mean 'uniform'"):
        make(layout="unifrom")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pybullet", None)
    with pytest.raises(WhorlError, match=r"pybullet is not installed.*\[pybullet\]"):
        factory_from_id("BumpsBullet-v0")()
