"""MinAtar's games: the package's own episodes, what is seen, when episodes end, and that they continue exactly."""

import importlib.util
import io
import sys
from typing import Any

import numpy as np
import pytest
import torch

from whorl.core.errors import EnvError, WhorlError
from whorl.envs.adapter import factory_from_id
from whorl.envs.adapters import minatar
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.adapters.minatar import MinAtar
from whorl.envs.make import find

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")
installed = pytest.mark.skipif(
    importlib.util.find_spec("minatar") is None,
    reason="minatar is not installed: pip install -e '.[minatar]'",
)
GAMES = [
    ("Asterix", 5, 4),
    ("Breakout", 3, 4),
    ("Freeway", 3, 7),
    ("Seaquest", 6, 10),
    ("SpaceInvaders", 4, 6),
]


def make(id: str, **options: Any) -> MinAtar:
    env = factory_from_id(f"MinAtar/{id}", **options)()
    assert isinstance(env, MinAtar)
    return env


@installed
@pytest.mark.parametrize(("game", "actions", "planes"), GAMES)
def test_an_id_finds_its_game(game: str, actions: int, planes: int):
    assert make(f"{game}-v0").action_space.n == 6
    env = make(f"{game}-v1")
    assert env.action_space.n == actions
    obs, _ = env.reset(seed=0)
    assert obs.shape == (10, 10, planes) and obs.dtype == np.uint8
    assert set(obs.ravel().tolist()) == {0, 255}


@installed
def test_an_id_without_a_version_means_the_newest():
    assert make("Breakout").spec.id == "MinAtar/Breakout-v1"


def test_an_unknown_id_names_the_nearest():
    with pytest.raises(EnvError, match="did you mean 'MinAtar/Breakout-v1'"):
        factory_from_id("MinAtar/Brekout-v1")


@installed
@pytest.mark.parametrize("game", [name for name, _, _ in GAMES])
def test_a_seed_gives_the_packages_own_episodes(game: str):
    """Sticky actions and rising difficulty included."""
    from minatar import Environment

    env, reference = make(f"{game}-v0"), Environment(minatar.GAMES[game])
    reference.seed(5)
    reference.reset()
    obs, _ = env.reset(seed=5)
    for action in np.random.default_rng(0).integers(6, size=400).tolist():
        assert np.array_equal(obs, reference.state() * 255)
        obs, reward, terminated, truncated, _ = env.step(action)
        assert (reward, terminated or truncated) == reference.act(action)
        if terminated or truncated:
            reference.reset()
            obs, _ = env.reset()


@installed
def test_the_clock_of_freeway_truncates():
    env = make("Freeway")
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(2501)]
    assert ends[-2:] == [(False, False), (False, True)]


@installed
def test_losing_the_ball_terminates_and_a_limit_truncates():
    env, short = make("Breakout"), make("Breakout", max_steps=3)
    env.reset(seed=0)
    ends = [env.step(1)[2:4] for _ in range(20)]
    assert (True, False) in ends and (False, True) not in ends
    short.reset(seed=0)
    assert [short.step(1)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]


@installed
@pytest.mark.parametrize("game", [name for name, _, _ in GAMES])
def test_envs_survive_a_safe_file_and_continue_exactly(game: str):
    factory = factory_from_id(f"MinAtar/{game}")
    env, fresh = (GymnasiumVector(factory, 2, game) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    count = env.spec.action.n
    env.reset(1)
    for _ in range(77):
        last = env.step(torch.randint(count, (2,), generator=generator)).obs.clone()
    file = io.BytesIO()
    torch.save(env.snapshot(), file)
    file.seek(0)
    assert torch.equal(fresh.restore(torch.load(file, weights_only=True)), last)
    for _ in range(300):
        action = torch.randint(count, (2,), generator=generator)
        a, b = env.step(action), fresh.step(action)
        assert torch.equal(a.obs, b.obs) and torch.equal(a.reward, b.reward) and torch.equal(a.reset, b.reset)


@installed
def test_what_is_drawn_shows_the_uppermost_plane_of_each_cell():
    """Breakout starts with three rows of bricks, the last plane, and nothing above them."""
    env = make("Breakout", render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (160, 160, 3) and picture.dtype == np.uint8
    assert not picture[:16].any()
    assert (picture[16:48] == minatar._palette(4)[4]).all()


@installed
def test_games_are_cheap_enough_to_be_stepped_here():
    assert find("MinAtar/Breakout").workers(-1, 8) == 0


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "minatar", None)
    minatar._module.cache_clear()
    with pytest.raises(WhorlError, match=r"minatar is not installed.*\[minatar\]"):
        factory_from_id("MinAtar/Breakout-v1")()
