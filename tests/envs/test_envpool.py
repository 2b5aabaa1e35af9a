"""EnvPool's threads beside our own environments, step by step, where nothing is left to chance."""

import importlib.util
import sys
from typing import Any

import pytest
import torch

from whorl.core.errors import EnvError, WhorlError
from whorl.envs.adapters.envpool import EnvPoolVector
from whorl.envs.make import find

torch.set_num_threads(1)
played = pytest.mark.skipif(
    importlib.util.find_spec("ale_py") is None, reason="ale-py is not installed: pip install -e '.[atari]'"
)
installed = pytest.mark.skipif(
    importlib.util.find_spec("envpool") is None or importlib.util.find_spec("ale_py") is None,
    reason="envpool is not installed: pip install -e '.[atari,envpool]'",
)


def pool(id: str, num_envs: int = 2, **options: Any) -> EnvPoolVector:
    vector = find(id, {"backend": "envpool", **options}).vector(num_envs)
    assert isinstance(vector, EnvPoolVector)
    return vector


def compare(id: str, steps: int, **options: Any) -> tuple[int, int]:
    """Play both with one no-op and no sticky actions; how many games ended, and how many lives were lost before."""
    theirs, ours = pool(id, noop_max=1, **options), find(id, {"noop_max": 1, **options}).vector(2)
    assert theirs.spec == ours.spec
    assert torch.equal(theirs.reset(0), ours.reset(0))
    generator = torch.Generator().manual_seed(0)
    ends = lost = 0
    for _ in range(steps):
        action = torch.randint(ours.spec.action.n, (2,), generator=generator)
        a, b = ours.step(action), theirs.step(action)
        for name in ("reward", "terminated", "truncated", "reset", "soft"):
            assert torch.equal(getattr(a, name), getattr(b, name))
        apart = (a.obs.int() - b.obs.int()).abs().flatten(1).amax(1)
        assert (apart[~a.terminated] <= 1).all()
        ends += int(a.terminated.sum())
        lost += int(a.soft.sum())
    theirs.close()
    return ends, lost


@installed
def test_frames_rewards_lives_and_ends_are_those_of_our_envs():
    """A shade may differ by one, and so may the last picture of a game."""
    ends, lost = compare("BreakoutNoFrameskip-v4", 250, life_loss=True)
    assert ends > 0 and lost >= 4 * ends


@installed
@pytest.mark.parametrize(
    ("id", "options"),
    [
        ("SeaquestNoFrameskip-v4", {"gray": False, "stack": 2}),
        ("MsPacmanNoFrameskip-v4", {"stack": 1, "screen": 64, "frame_skip": 3}),
        ("SpaceInvadersNoFrameskip-v4", {"fire_reset": True, "full_actions": True}),
    ],
)
def test_options_mean_the_same(id: str, options: dict[str, Any]):
    compare(id, 80, **options)


@installed
def test_a_limit_truncates_and_the_next_step_resets():
    """40 frames are ten steps."""
    env = pool("Pong", num_envs=1, max_frames=40)
    env.reset(0)
    steps = [env.step(torch.zeros(1, dtype=torch.int64)) for _ in range(12)]
    assert [int(step.truncated) for step in steps] == [0] * 9 + [1, 0, 0]
    assert [int(step.reset) for step in steps] == [0] * 10 + [1, 0]
    assert not any(step.terminated for step in steps)
    first = steps[10].obs[0]
    assert all(torch.equal(first[0], frame) for frame in first)
    env.close()


@installed
def test_a_seed_repeats_and_envs_differ():
    env = pool("Breakout", noop_max=30)

    def walk(seed: int) -> torch.Tensor:
        env.reset(seed)
        return torch.stack([env.step(torch.full((2,), step % 4)).obs.clone() for step in range(40)])

    first = walk(1)
    assert torch.equal(first, walk(1))
    assert not torch.equal(first, walk(2))
    assert not torch.equal(first[:, 0], first[:, 1])
    env.close()


@installed
def test_it_has_no_snapshots_and_needs_no_workers():
    source = find("Pong", {"backend": "envpool"})
    assert source.workers(-1, 8) == 0
    assert not source.vector(1).snapshots


@installed
def test_what_is_drawn_comes_from_our_envs():
    vector = find("Pong", {"backend": "envpool", "render_mode": "rgb_array"}).vector(1)
    vector.reset(0)
    assert vector.render().shape == (210, 160, 3)


@installed
def test_options_that_it_has_not_are_an_error():
    with pytest.raises(EnvError, match="can't obscure frames"):
        pool("Pong", obscure=0.5)
    with pytest.raises(EnvError, match="use noop_max=1 or more"):
        pool("Pong", noop_max=0)


@played
def test_an_unknown_backend_names_those_there_are():
    with pytest.raises(EnvError, match="backend is 'envpol'; did you mean 'envpool'"):
        find("Pong", {"backend": "envpol"})


@played
def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(WhorlError, match=r"envpool is not installed.*\[envpool\]"):
        pool("Pong").reset(0)


@installed
def test_rooms_are_not_counted_where_they_can_not_be_seen():
    assert find("MontezumaRevenge").spec(1).measures == ("rooms",)
    assert find("MontezumaRevenge", {"backend": "envpool"}).spec(1).measures == ()


@installed
def test_frame_stack_is_the_stack_of_a_game_here_too():
    source = find("Pong", {"backend": "envpool", "frame_stack": 2})
    assert source.spec(2).observation.shape == (2, 84, 84)
    vector = source.vector(2)
    assert vector.reset(0).shape == (2, 2, 84, 84)
    vector.close()
