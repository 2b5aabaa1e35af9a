"""Atari games by id: what is seen, when episodes end, what is left to chance, and that they continue exactly."""

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from whorl.core.errors import EnvError, WhorlError
from whorl.envs.adapter import factory_from_id
from whorl.envs.adapters import atari
from whorl.envs.adapters.atari import ROOMS, Atari
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.make import find
from whorl.envs.snapshot import restore_env, snapshot_env

torch.set_num_threads(1)
installed = pytest.mark.skipif(
    importlib.util.find_spec("ale_py") is None,
    reason="ale-py is not installed: pip install -e '.[atari]'",
)
FIRE = 1


def make(id: str, **options: Any) -> Atari:
    env = factory_from_id(id, **options)()
    assert isinstance(env, Atari)
    return env


def emulator(game: str) -> Any:
    """ALE as it is, without sticky actions."""
    from ale_py import ALEInterface, LoggerMode, roms

    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path(game))
    ale.reset_game()
    return ale


def play(env: Atari, actions: list[int]) -> list[tuple[np.ndarray, float, bool, bool]]:
    """Everything that a walk returns; an episode's end is followed by a reset, in place of a step."""
    seen, ended = [], False
    for action in actions:
        if ended:
            seen.append((env.reset()[0], 0.0, False, False))
            ended = False
        else:
            seen.append(env.step(action)[:4])
            ended = seen[-1][2] or seen[-1][3]
    return seen


def same(a: list[Any], b: list[Any]) -> bool:
    return all(np.array_equal(x[0], y[0]) and x[1:] == y[1:] for x, y in zip(a, b, strict=True))


def choices(env: Atari, count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(env.action_space.n, size=count).tolist()


@installed
@pytest.mark.parametrize(
    ("id", "whole", "sticky"),
    [
        ("ALE/Pong-v5", "ALE/Pong-v5", 0.25),
        ("ALE/Pong", "ALE/Pong-v5", 0.25),
        ("Pong", "ALE/Pong-v5", 0.25),
        ("PongNoFrameskip-v4", "PongNoFrameskip-v4", 0.0),
        ("ALE/MontezumaRevenge-v5", "ALE/MontezumaRevenge-v5", 0.25),
        ("Montezuma", "ALE/MontezumaRevenge-v5", 0.25),
    ],
)
def test_an_id_finds_its_game(id: str, whole: str, sticky: float):
    env = make(id)
    assert env.spec is not None and env.spec.id == whole
    assert env.sticky == sticky


@installed
def test_an_id_without_its_namespace_names_the_one_with_it():
    # Pong is the same, and the nearest where nothing has imported the emulator yet.
    with pytest.raises(EnvError, match=r"did you mean '(ALE/Pong-v5|Pong)'"):
        factory_from_id("Pong-v5")


@installed
@pytest.mark.parametrize("id", ["Pnog", "ALE/Pnog-v5", "PnogNoFrameskip-v4"])
def test_an_unknown_game_names_the_nearest(id: str):
    with pytest.raises(EnvError, match=r"did you mean 'Pong'"):
        factory_from_id(id)


@installed
def test_an_id_of_another_kind_names_those_there_are():
    with pytest.raises(EnvError, match="use ALE/Pong-v5 or PongNoFrameskip-v4"):
        factory_from_id("Pong-v4")


@installed
def test_a_card_game_of_gymnasium_keeps_its_name():
    assert factory_from_id("Blackjack")().spec.id == "Blackjack-v1"
    assert make("ALE/Blackjack").game == "blackjack"


@installed
@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (84, 84)),
        ({"screen": 64}, (64, 64)),
        ({"screen": 0}, (210, 160)),
        ({"gray": False}, (84, 84, 3)),
    ],
)
def test_one_frame_is_seen_at_a_time(options: dict[str, Any], shape: tuple[int, ...]):
    env = make("Pong", **options)
    obs, _ = env.reset(seed=0)
    assert obs.shape == shape and obs.dtype == np.uint8 and obs.any()
    assert env.observation_space.contains(obs)
    assert env.frame_stack == 4


@installed
def test_envs_see_the_stack():
    env = GymnasiumVector(factory_from_id("Pong", stack=3), 1, "Pong")
    assert env.spec.observation.shape == (3, 84, 84)
    assert env.reset(0).shape == (1, 3, 84, 84)


@installed
def test_all_actions_or_those_of_the_game():
    assert make("Pong").action_space.n == 6
    assert make("Pong", full_actions=True).action_space.n == 18


@installed
@pytest.mark.parametrize(
    ("option", "value"),
    [("frame_skip", 0), ("stack", 0), ("noop_max", -1), ("sticky", 1.5), ("obscure", -0.1)],
)
def test_an_impossible_option_is_an_error(option: str, value: float):
    with pytest.raises(EnvError, match=f"{option} is {value}"):
        make("Pong", **{option: value})


def test_pictures_are_averaged_over_areas():
    """5 rows to 2, 2.5 each: (0 + 10 + 20/2) / 2.5 = 8 and (20/2 + 30 + 40) / 2.5 = 32. 4 columns to 2: pairs."""
    picture = np.array([0, 10, 20, 30, 40], np.uint8)[:, None] + np.array([0, 2, 4, 8], np.uint8)
    expected = [[8 + 1, 8 + 6], [32 + 1, 32 + 6]]
    assert atari._Shrink((5, 4), 2)(picture).tolist() == expected
    colours = atari._Shrink((5, 4), 2)(np.stack([picture, 2 * picture], axis=2))
    assert colours[..., 0].tolist() == expected
    assert colours[..., 1].tolist() == [[18, 28], [66, 76]]


@pytest.mark.parametrize(("shape", "size"), [((210, 160), 84), ((250, 160), 84), ((210, 160), 64)])
def test_pictures_of_games_are_averaged_as_if_each_pixel_was_cut_in_pieces(shape: tuple[int, int], size: int):
    picture = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    pieces = picture.repeat(size, axis=0).repeat(size, axis=1)
    cells = pieces.reshape(size, shape[0], size, shape[1]).mean((1, 3), dtype=np.float64)
    assert np.abs(atari._Shrink(shape, size)(picture) - cells).max() < 0.5001


@installed
def test_a_step_sums_rewards_and_shows_the_brighter_of_its_last_two_frames():
    """Reference: ALE itself, played frame by frame."""
    env, ale = make("SpaceInvadersNoFrameskip-v4", noop_max=0, screen=0), emulator("space_invaders")
    obs, _ = env.reset(seed=0)
    assert np.array_equal(obs, ale.getScreenGrayscale())
    total = 0.0
    for action in choices(env, 150):
        reward, frames = 0, []
        for _ in range(4):
            reward += ale.act(ale.getMinimalActionSet()[action])
            frames.append(ale.getScreenGrayscale())
        step = env.step(action)
        assert np.array_equal(step[0], np.maximum(frames[2], frames[3])) and step[1] == reward
        total += reward
    assert total > 0


@installed
def test_a_limit_of_frames_truncates():
    env = make("Pong", max_frames=40, noop_max=0)
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(10)][-2:] == [(False, False), (False, True)]


@installed
def test_a_lost_life_is_a_soft_end_and_the_game_goes_on():
    """Breakout has five lives: four are lost on the way, with the fifth the game is over."""
    env = make("BreakoutNoFrameskip-v4", life_loss=True)
    assert env.soft_ends
    env.reset(seed=0)
    told, ends = [], (False, False)
    while ends == (False, False):
        _, _, *ends, info = env.step(FIRE)
        ends = tuple(ends)
        told.append(info.get("soft_end", False))
    assert ends == (True, False)
    assert sum(told) == 4 and not told[-1]


@installed
def test_without_the_option_lives_are_not_told():
    env = make("BreakoutNoFrameskip-v4")
    env.reset(seed=0)
    assert not env.soft_ends
    assert not any("soft_end" in env.step(FIRE)[4] for _ in range(60))


@installed
def test_episodes_start_after_some_frames_without_an_action():
    env = make("Pong", noop_max=5)
    env.reset(seed=0)
    frames = []
    for _ in range(40):
        env.reset()
        frames.append(env._ale.getEpisodeFrameNumber())
    assert set(frames) == {1, 2, 3, 4, 5}


@installed
def test_fire_starts_the_game_where_that_is_wanted():
    """Nothing moves in Breakout before FIRE is pressed."""
    still, started = make("BreakoutNoFrameskip-v4"), make("BreakoutNoFrameskip-v4", fire_reset=True)
    for env in (still, started):
        env.reset(seed=0)
    moved = [len({env.step(0)[0].tobytes() for _ in range(20)}) > 1 for env in (still, started)]
    assert moved == [False, True]


@installed
def test_sticky_actions_repeat_the_one_before():
    """With probability 1 no action ever replaces the no-op of the start."""
    stuck, idle = make("Pong", sticky=1.0, noop_max=0), make("Pong", sticky=0.0, noop_max=0)
    for env in (stuck, idle):
        env.reset(seed=0)
    assert same(play(stuck, choices(stuck, 40)), play(idle, [0] * 40))


@installed
def test_sticky_actions_are_drawn_frame_by_frame():
    """A quarter of the frames repeats what came before; of 4,000 that is 1,000, with a deviation of 27."""
    env = make("Pong")
    env.reset(seed=0)
    taken = []
    act = env._ale.act

    class Spy:
        def __getattr__(self, name: str) -> Any:
            return getattr(ale, name)

        def act(self, action: int) -> int:
            taken.append(action)
            return act(action)

    ale, env._ale = env._ale, Spy()
    for step in range(1000):
        env.step(2 + step % 2)
    wanted = np.repeat([env._actions[2 + step % 2] for step in range(1000)], 4)
    # A frame that repeats shows only where the action before was another: at the first of a step, then along it.
    missed = np.array(taken) != wanted
    assert 200 < missed[::4].sum() < 300
    assert abs(missed.sum() - 1000 * (0.25 + 0.25**2 + 0.25**3 + 0.25**4)) < 70


@installed
def test_frames_are_obscured_with_a_probability():
    env = make("Pong", obscure=0.5)
    black = [not env.reset(seed=0)[0].any(), *(not env.step(0)[0].any() for _ in range(200))]
    assert 75 < sum(black) < 125


@installed
def test_rooms_are_counted():
    """The top of the pyramid has three rooms above the middle of the second floor's five, of which 7 is the last."""
    env = make("MontezumaRevenge")
    first = {"rooms": 1, "visited_rooms": {1}, "position": (0, 4)}
    assert env.reset(seed=0)[1] == first
    env._ale.setRAM(3, 7)
    assert env.step(0)[4] == {"rooms": 2, "visited_rooms": {1, 7}, "position": (1, 6)}
    assert env.reset()[1] == first
    assert env.map_shape == (4, 9) and make("Pong").map_shape is None


@installed
def test_every_room_has_a_cell_of_the_map_of_its_own():
    pyramid, jungle = ROOMS["montezuma_revenge"].positions, ROOMS["pitfall"].positions
    assert len(set(pyramid.values())) == 24 and [pyramid[room] for room in (0, 8, 15, 23)] == [
        (0, 3),
        (2, 1),
        (3, 0),
        (3, 8),
    ]
    assert pyramid[5][1] == pyramid[11][1] == 4  # ladders lead down from room 1
    assert set(jungle) == set(range(1, 256)) and len(set(jungle.values())) == 255
    # Seen in the game: the first room, the next to the right, and those that come when running left.
    assert [jungle[room] for room in (196, 137)] == [(0, 0), (0, 1)]
    assert [jungle[room] for room in (226, 113, 56, 28, 142)] == [(14, 16 - i) for i in range(5)]


@installed
def test_the_rooms_to_the_left_of_pitfalls_first_are_the_last_ones():
    env = make("Pitfall", noop_max=0, sticky=0.0)
    assert env.reset(seed=0)[1]["position"] == (0, 0)
    left = [action.name for action in env._ale.getMinimalActionSet()].index("LEFT")
    for _ in range(20):
        info = env.step(left)[4]
    assert info["position"] == (14, 16) and info["rooms"] == 2


@installed
def test_the_batch_of_games_says_in_which_rooms_they_are():
    vector = GymnasiumVector(factory_from_id("MontezumaRevenge"), 2, "montezuma")
    vector.reset(0)
    assert vector.map_shape == (4, 9) and vector.cells().tolist() == [4, 4]
    pong = GymnasiumVector(factory_from_id("Pong"), 1, "Pong")
    assert pong.map_shape is None
    with pytest.raises(EnvError, match="Pong has no map"):
        pong.cells()


@installed
def test_an_episode_depends_on_its_seed_and_on_nothing_before():
    env, used = make("Qbert"), make("Qbert")
    used.reset(seed=9)
    play(used, choices(used, 60))
    assert np.array_equal(env.reset(seed=2)[0], used.reset(seed=2)[0])
    assert same(play(env, choices(env, 60)), play(used, choices(used, 60)))


@installed
@pytest.mark.parametrize("game", ["Pong", "Qbert", "YarsRevenge", "MontezumaRevenge"])
def test_a_used_environment_continues_exactly(game: str):
    """With sticky actions, at several points, from another episode's midst."""
    env, other = make(game, obscure=0.1), make(game, obscure=0.1)
    for number, each in enumerate((env, other)):
        each.reset(seed=number)
        play(each, choices(each, 20))
    for point in range(8):
        play(env, choices(env, 7, point))
        snapshot = snapshot_env(env)
        assert snapshot is not None
        restore_env(other, snapshot)
        assert same(play(env, choices(env, 12, point)), play(other, choices(other, 12, point)))


CONTINUE = """
import sys
import torch
from tests.envs.test_atari import digest, environments
games = torch.load(sys.argv[1], weights_only=True)
envs = [environments(game) for game in games]
for env, snapshot in zip(envs, games.values()):
    env.restore(snapshot)
print(digest(envs))
"""


def environments(game: str) -> GymnasiumVector:
    return GymnasiumVector(factory_from_id(f"ALE/{game}-v5", life_loss=True), 1, game)


def digest(envs: list[GymnasiumVector]) -> str:
    """All that the next 400 steps of several games show."""
    seen = hashlib.sha256()
    generator = torch.Generator().manual_seed(0)
    for env in envs:
        for _ in range(400):
            step = env.step(torch.randint(env.spec.action.n, (1,), generator=generator))
            for part in (step.obs, step.reward, step.terminated, step.truncated, step.reset, step.soft):
                seen.update(part.numpy().tobytes())
    return seen.hexdigest()


@installed
@pytest.mark.full
def test_a_fresh_process_continues_exactly(tmp_path: Path):
    """Sticky actions, lost lives and the no-ops of later episodes included; Breakout ends twice."""
    envs = {game: environments(game) for game in ("Breakout", "Seaquest")}
    for env in envs.values():
        env.reset(3)
        for number in range(150):
            env.step(torch.tensor([number % 4]))
    file = tmp_path / "snapshots.pt"
    torch.save({game: env.snapshot() for game, env in envs.items()}, file)
    command = [sys.executable, "-c", CONTINUE, str(file)]
    there = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert there.stdout.strip() == digest(list(envs.values()))


@installed
def test_a_game_whose_score_is_not_in_ales_states_promises_no_snapshot():
    assert not GymnasiumVector(factory_from_id("ALE/MiniatureGolf"), 1, "golf").snapshots


@installed
def test_what_is_drawn_has_the_consoles_size_and_colours():
    env = make("Pong", render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (210, 160, 3) and picture.dtype == np.uint8
    assert env.metadata["render_fps"] == 15


@pytest.fixture
def uninstalled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    for id in [id for id, spec in gymnasium.registry.items() if "ale_py" in str(spec.entry_point)]:
        monkeypatch.delitem(gymnasium.registry, id)
    for cached in (atari._ale, atari.games):
        cached.cache_clear()
    yield
    for cached in (atari._ale, atari.games):
        cached.cache_clear()


@pytest.mark.usefixtures("uninstalled")
@pytest.mark.parametrize("id", ["ALE/Pong-v5", "PongNoFrameskip-v4", "Pong"])
def test_a_missing_package_names_the_extra(id: str):
    with pytest.raises(WhorlError, match=r"\[atari\]"):
        factory_from_id(id)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"frame_skip": 1.5}, "frame_skip is 1.5; it must be an integer from 1 to 1,000"),
        ({"stack": True}, "stack is True; it must be an integer from 1 to 1,000"),
        ({"life_loss": "yes"}, "life_loss is 'yes'; it must be true or false"),
        ({"sticky": "often"}, "sticky is 'often'; it must be between 0 and 1"),
    ],
)
def test_an_option_of_the_wrong_kind_is_told_in_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        find("Pong", options)


def test_a_name_that_somebody_registered_is_theirs() -> None:
    gymnasium.register("Tetris-v0", lambda: gymnasium.make("CartPole-v1"))
    try:
        assert find("Tetris-v0").id == "Tetris-v0"
        assert find("Tetris").id == "Tetris-v0"
    finally:
        del gymnasium.registry["Tetris-v0"]
    assert find("Tetris").id == "ALE/Tetris-v5"


def test_frame_stack_is_the_stack_of_a_game() -> None:
    assert find("Pong", {"frame_stack": 2}).spec(1).observation.shape == (2, 84, 84)
