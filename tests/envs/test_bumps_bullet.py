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


def task(name: str, **options: Any) -> gymnasium.Env:
    pytest.importorskip("pybullet")
    return factory_from_id(f"{name}Bullet-v0", **options)()


def go(env: gymnasium.Env, to: float, stiffness: float, most: float) -> tuple[float, bool, bool] | None:
    """Move to a position in steps of at most `most`: reward, end and success of an episode that ends on the way."""
    table = env.unwrapped
    while abs(table.gripper - to) > 1e-3:
        move = float(np.clip((to - table.gripper) / 0.05, -most, most))
        _, reward, terminated, _, info = env.step([move, stiffness])
        if terminated:
            return float(reward), terminated, info["success"]
    return None


def test_of_two_different_bumps_the_larger_one_counts_once_both_were_felt():
    env = task("BumpsDiff")
    for seed, sweep in ((0, True), (2, True), (2, False)):
        env.reset(seed=seed)
        table = env.unwrapped
        assert table.radii == (0.02, 0.025)
        large = table.places[1]
        if sweep:
            assert go(env, -0.36, SOFT, 1.0) is None and go(env, max(table.places) + 0.09, SOFT, 0.7) is None
            assert table.felt == {0, 1} and np.abs(table.moved()).max() < 1e-4
        else:
            table._p.resetJointState(
                table._hand, 0, large - 0.08
            )  # put down beside it, without feeling anything
            table.gripper = large - 0.08
        assert go(env, large - 0.08, SOFT, 1.0) is None
        assert go(env, 0.4, STIFF, 0.5) == (float(sweep), True, sweep)


def test_bumps_of_different_size_lie_either_way_round_and_far_apart():
    env = task("BumpsDiff", observe="full")
    seen = np.array([env.reset(seed=seed)[0] for seed in range(20)])
    gap = seen[:, 3] - seen[:, 2]
    assert set(np.sign(gap)) == {-1.0, 1.0}
    assert (np.abs(gap) >= 0.24 - 1e-6).all() and (np.abs(gap) <= 0.4).all()
    assert np.abs(seen[:, 2:]).max() <= 0.24


def test_a_bump_has_to_be_brought_within_five_centimetres_of_its_target():
    env = task("BumpTarget")
    for seed in (0, 1):
        obs, _ = env.reset(seed=seed)
        table = env.unwrapped
        place, target = table.places[0], table.target
        assert obs[2] == pytest.approx(target) and abs(target - place) >= 0.06
        way = np.sign(target - place)
        assert go(env, place - 0.07 * way, SOFT, 1.0) is None
        assert go(env, 0.4 * way, STIFF, 0.5) == (1.0, True, True)
        assert abs(place + table.moved()[0] - target) <= 0.05


@pytest.mark.parametrize("discrete", [False, True])
def test_a_grasp_between_the_upper_two_plates_earns_one_and_any_grasp_is_the_end(discrete: bool):
    env = task("TopPlate", discrete=discrete)
    up, grasp = (1, 2) if discrete else ([0.3, -1.0], [0.0, 0.0])
    env.reset(seed=0)
    assert env.step(grasp)[1:3] == (0.0, True)  # below the plates
    obs, _ = env.reset(seed=1)
    assert len(env.unwrapped.places) == 5 and obs[2] == pytest.approx(4 * 0.014)
    steps = 0
    while obs[0] + 0.1 * np.sin(obs[1]) <= obs[2] - 0.014:
        obs, reward, terminated, _, info = env.step(up)
        steps += 1
        assert (reward, terminated, info["success"]) == (0.0, False, False)
    assert steps < 45 and min(env.unwrapped.moved()) > -1e-3
    _, reward, terminated, _, info = env.step(grasp)
    assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_a_finger_feels_the_plates_and_is_straight_above_them():
    env = task("TopPlate", observe="touch")
    assert env.reset(seed=1)[0].shape == (2,)
    angles = {}
    while env.unwrapped.gripper < 0.12:
        place, angle = env.step([0.35, -1.0])[0]
        angles[place] = angle
    assert all(angle < -0.15 for place, angle in angles.items() if 0.02 < place < 0.05)
    assert all(angle > -0.05 for place, angle in angles.items() if place > 0.105)


def test_discrete_actions_are_moves_to_either_side_with_a_soft_or_a_stiff_finger():
    env, same = make(discrete=True), make()
    assert env.action_space.n == 4
    for action, move in enumerate([[-1, -1], [-1, 1], [1, -1], [1, 1]]):
        assert env.reset(seed=4)[0].tolist() == same.reset(seed=4)[0].tolist()
        for _ in range(3):
            assert env.step(action)[0].tolist() == same.step(move)[0].tolist()


def test_an_action_that_fails_has_no_effect():
    env = make(action_failure=0.5)
    env.reset(seed=0)
    moves = [env.unwrapped.gripper]
    while len(moves) < 40:
        moves.append(float(env.step([0.1 * (-1) ** len(moves), SOFT])[0][0]))
    stayed = np.mean(np.abs(np.diff(moves)) < 1e-6)
    assert 0.25 < stayed < 0.75
    with pytest.raises(EnvError, match="action_failure is 2; it must be between 0 and 1"):
        make(action_failure=2)


def test_wide_bumps_are_half_a_metre_apart_nearly():
    env = task("BumpsWide")
    for seed in range(5):
        env.reset(seed=seed)
        left, right = env.unwrapped.places
        assert right - left == pytest.approx(0.48) and max(-left, right) <= 0.28


@pytest.mark.parametrize("name", ["BumpsDiff", "BumpTarget", "TopPlate", "BumpsPunish"])
def test_other_tasks_are_sound_and_continue_exactly(name: str):
    assert check(f"{name}Bullet-v0") == []
    env, fresh = task(name, action_failure=0.2), task(name, action_failure=0.2)
    env.reset(seed=3)
    actions = draw(40) * [1.0, 0.5] - [0.0, 0.5]  # no grasp
    walk([env], actions[:12])
    restore_env(fresh, snapshot_env(env))
    assert walk([env], actions[12:]) == walk([fresh], actions[12:])


def test_ids_name_variants():
    assert task("BumpsPunish").unwrapped.failure == -1
    assert [task(f"Bumps{kind.title()}").unwrapped.layout for kind in ("uniform", "fixed")] == [
        "uniform",
        "fixed",
    ]
