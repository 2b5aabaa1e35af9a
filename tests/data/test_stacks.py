"""Frame stacks: what environments show, what the ring stores and what is sampled, against a plain recorder."""

from collections import deque
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from whorl.agents.agent import Acted, Agent
from whorl.collect.collector import LocalCollector
from whorl.core import tree
from whorl.core.errors import EnvError
from whorl.core.registry import register
from whorl.core.spec import Array, Discrete, Spec
from whorl.data.batch import Batch
from whorl.data.replay import Replay
from whorl.data.ring import replay_bytes
from whorl.data.views import Sequences, Transitions, View
from whorl.distributed.pool import WorkerPool
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.make import find
from whorl.state.policy import SavedPolicy

STACK = 4
SHAPES = {"plane": (6, 5), "picture": (5, 6, 3), "channels first": (3, 6, 5), "vector": (3,)}
STACKED = {"plane": (4, 6, 5), "picture": (5, 6, 12), "channels first": (12, 6, 5), "vector": (12,)}


class Film(gymnasium.Env):
    """Random frames, random lengths (one step too), a life lost now and then; remembers what it has shown."""

    action_space = spaces.Discrete(3)
    frame_stack = STACK
    soft_ends = True

    def __init__(self, kind: str = "plane") -> None:
        self.observation_space = spaces.Box(0, 255, SHAPES[kind], np.uint8)
        self.shown: deque[np.ndarray] = deque(maxlen=STACK)
        self.axis = {"plane": None, "picture": -1}.get(kind, 0)

    def _frame(self, opens: bool) -> np.ndarray:
        frame = self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)
        self.shown.extend([frame] * (STACK if opens else 1))
        return frame

    def stack(self) -> np.ndarray:
        """What an agent should see now, by the plainest means."""
        return np.stack(self.shown) if self.axis is None else np.concatenate(list(self.shown), self.axis)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._frame(True), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        drawn = self.np_random.random(3)
        info = {"soft_end": bool(drawn[2] < 0.1)}
        return self._frame(False), 1.0, bool(drawn[0] < 0.1), bool(drawn[1] < 0.1), info


class Idle(Agent):
    """Takes action 0."""

    def act(self, obs: Any, memory: Any, context: Any) -> Acted:
        return Acted(torch.zeros(len(context.reset), dtype=torch.int64), {})


@pytest.mark.parametrize("kind", SHAPES)
def test_envs_stack_frames_as_a_deque_would(kind: str) -> None:
    vector = GymnasiumVector(lambda: Film(kind), 3, "Film")
    axis, plane = 2 if kind == "picture" else 0, kind == "plane"
    assert vector.spec.observation == Array(STACKED[kind], "uint8", 0.0, 255.0, STACK, axis, plane=plane)
    obs = vector.reset(seed=1)
    for _ in range(200):
        want = np.stack([env.stack() for env in vector.stepper.envs])
        assert np.array_equal(obs.numpy(), want)
        obs = vector.step(torch.zeros(3, dtype=torch.int64)).obs


@pytest.mark.parametrize("view", [Transitions(1), Transitions(3), Sequences(5, stride=1)], ids=str)
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("kind", SHAPES)
def test_every_stack_that_is_drawn_is_the_one_that_was_seen(kind: str, num_envs: int, view: View) -> None:
    """Some 4,000 episodes over all cases, rings written over many times, every start looked at each time."""
    vector = GymnasiumVector(lambda: Film(kind), num_envs, "Film")
    replay = Replay(
        vector.spec,
        "cpu",
        torch.Generator(),
        view=view,
        gamma=0.9,
        buffer_size=40 * num_envs,
        batch_size=8,
        learning_starts=10**9,
    )
    collector = LocalCollector(vector, Idle(vector.spec, None), 7, torch.Generator())
    collector.reset(3)
    seen = torch.zeros(0, num_envs, *STACKED[kind], dtype=torch.uint8)
    for _ in range(60):
        rollout = collector.collect()
        replay.add(rollout)
        seen = torch.cat((seen, rollout.obs[:7]))
        start = _drawable(replay)
        batch = view.gather(replay.ring, start, replay.discounting)
        rows, env_index = _rows(replay, start), start % num_envs
        assert torch.equal(batch.obs[0], seen[rows, env_index])
        if isinstance(view, Sequences):
            for ahead in range(view.span):
                assert torch.equal(batch.obs[ahead], seen[rows + ahead, env_index])


@pytest.mark.parametrize("view", [Transitions(1), Transitions(3), Sequences(5, stride=1)], ids=str)
@pytest.mark.parametrize("lost", ["rollouts", "the first ones"])
def test_no_stack_is_drawn_that_reaches_across_a_gap(view: View, lost: str) -> None:
    """Where rollouts are dropped, and where a buffer begins in the middle of an episode (a replaced shard)."""
    vector = GymnasiumVector(lambda: Film("vector"), 2, "Film")
    options = {"view": view, "gamma": 0.9, "buffer_size": 80, "batch_size": 8, "learning_starts": 10**9}
    replay = Replay(vector.spec, "cpu", torch.Generator().manual_seed(0), **options)
    collector = LocalCollector(vector, Idle(vector.spec, None), 7, torch.Generator())
    collector.reset(3)
    seen, missing = torch.zeros(0, 2, *vector.spec.observation.shape, dtype=torch.uint8), 0
    for number in range(60):
        rollout = collector.collect()
        if (number % 3 == 1) if lost == "rollouts" else number == 0:
            replay.cut()
            continue
        replay.add(rollout)
        seen = torch.cat((seen, rollout.obs[:7]))
        start = _drawable(replay)
        if not len(start):
            continue
        batch = view.gather(replay.ring, start, replay.discounting)
        rows, env_index = _rows(replay, start), start % 2
        for ahead in range(view.span if isinstance(view, Sequences) else 1):
            learned = batch.mask[ahead] > 0
            assert torch.equal(batch.obs[ahead][learned], seen[rows + ahead, env_index][learned])
        # What is drawn is what may be drawn, also after rows were written over.
        assert replay.sampler.count == len(start)
        assert set(replay.sampler.draw(2000, replay.generator)[0].tolist()) == set(start.tolist())
        whole = range(replay.ring.first_start() * 2, (replay.ring.rows - view.span) * 2)
        missing += len(whole) - len(start)
    assert missing > 3


def _drawable(replay: Replay) -> torch.Tensor:
    """The starts with all their frames and rows, each in its slot of the ring."""
    start = torch.arange(replay.ring.slots * replay.ring.num_envs)
    rows = _rows(replay, start)
    start = start[(rows >= replay.ring.first_start()) & (rows < replay.ring.rows - replay.view.span)]
    return start[replay.view.allowed(replay.ring, start)]


def _rows(replay: Replay, start: torch.Tensor) -> torch.Tensor:
    """Row numbers of starts: the newest that lie in their slots."""
    slot = start // replay.ring.num_envs
    return slot + (replay.ring.rows - 1 - slot) // replay.ring.slots * replay.ring.slots


def test_drawn_starts_are_those_with_all_their_frames() -> None:
    vector = GymnasiumVector(Film, 2, "Film")
    generator = torch.Generator().manual_seed(0)
    replay = Replay(
        vector.spec, "cpu", generator, view=Transitions(2), gamma=0.9, buffer_size=60, batch_size=512
    )
    collector = LocalCollector(vector, Idle(vector.spec, None), 7, torch.Generator())
    collector.reset(3)
    for _ in range(12):
        replay.add(collector.collect())
    drawn, _ = replay.sampler.draw(4096, generator)
    assert set(drawn.tolist()) == set(_drawable(replay).tolist())


def test_a_soft_end_ends_the_value_but_not_the_episode() -> None:
    """Four steps, a life lost at the second: the value ends there, no row is masked, one episode of 4."""

    class Lives(Film):
        def step(self, action: int) -> Any:
            self.steps += 1
            return self._frame(False), 1.0, self.steps == 4, False, {"soft_end": self.steps == 2}

        def reset(self, **given: Any) -> Any:
            self.steps = 0
            return super().reset(**given)

    vector = GymnasiumVector(Lives, 1, "Lives")
    collector = LocalCollector(vector, Idle(vector.spec, None), 5, torch.Generator())
    collector.reset(0)
    batch = collector.collect()
    assert batch.continues is not None
    assert batch.continues.flatten().tolist() == [True, False, True, False, False]
    assert batch.keep.flatten().tolist() == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert batch.mask.flatten().tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert batch.reset.flatten().tolist() == [True, False, False, False, False, True]
    seen = collector.episode_statistics.drain()
    assert (seen["episodes"], seen["return"], seen["length"]) == (1, 4, 4)


def test_workers_show_the_same_stacks_and_soft_ends() -> None:
    here = GymnasiumVector(Film, 4, "Film")
    pool = WorkerPool(Film, 4, "Film", workers=2)
    try:
        assert torch.equal(here.reset(5), pool.reset(5))
        for _ in range(50):
            one, other = (env.step(torch.zeros(4, dtype=torch.int64)) for env in (here, pool))
            for name in ("obs", "reward", "terminated", "truncated", "reset", "soft"):
                assert torch.equal(getattr(one, name), getattr(other, name)), name
    finally:
        pool.close()


def test_a_million_atari_transitions_take_less_than_7_3_gigabytes() -> None:
    spec = Spec(Array((4, 84, 84), "uint8", 0, 255, 4), Discrete(6), 8)
    priorities = 4.6 * 1_000_000
    assert replay_bytes(spec, 1_000_000) + priorities < 7.3e9


def test_leaves_of_different_stacks_live_in_one_ring() -> None:
    """A stacked picture beside a plain vector: each comes back in its own shape."""
    observation = {"view": Array((3, 4, 4), "uint8", stack=3), "speed": Array((2,))}
    spec = Spec(observation, Discrete(2), 1)
    frames = torch.arange(10, dtype=torch.uint8).reshape(10, 1, 1, 1, 1).expand(10, 1, 1, 4, 4)
    stacks = torch.cat([frames[[max(0, t - back) for t in range(10)]] for back in (2, 1, 0)], 2)
    speed = torch.arange(20.0).reshape(10, 1, 2)
    ones = torch.ones(9, 1)
    reset = torch.zeros(10, 1, dtype=torch.bool)
    reset[0] = True
    batch = Batch(
        {"view": stacks, "speed": speed},
        reset,
        torch.zeros(9, 1, dtype=torch.int64),
        ones,
        keep=ones,
        mask=ones,
        continues=ones > 0,
    )
    replay = Replay(
        spec, "cpu", torch.Generator(), view=Transitions(1), gamma=0.9, buffer_size=20, batch_size=2
    )
    replay.add(batch)
    found = replay.view.gather(replay.ring, torch.tensor([0, 1, 5]), replay.discounting)
    assert found.obs["view"].shape == (2, 3, 3, 4, 4)
    assert found.obs["view"][0, :, :, 0, 0].tolist() == [[0, 0, 0], [0, 0, 1], [3, 4, 5]]
    assert torch.equal(tree.index(found.obs, 1)["speed"], speed[[1, 2, 6], 0])


@pytest.mark.parametrize("kind", SHAPES)
def test_a_saved_policy_stacks_the_frames_it_is_shown(kind: str) -> None:
    """One environment alone, then three at once of which one is reset in between."""
    env, seen = Film(kind), []
    spec = GymnasiumVector(lambda: Film(kind), 1, "Film").spec

    class Watching(Idle):
        def act(self, obs: Any, memory: Any, context: Any) -> Acted:
            seen.append(obs.numpy().copy())
            return super().act(obs, memory, context)

    policy = SavedPolicy(Watching(spec, None), None)  # type: ignore[arg-type]
    frame, _ = env.reset(seed=1)
    for _ in range(6):
        policy.act(frame)
        assert np.array_equal(seen[-1][0], env.stack())
        frame = env.step(0)[0]
    envs = [Film(kind) for _ in range(3)]
    frames = [one.reset(seed=number)[0] for number, one in enumerate(envs)]
    policy.reset()
    for step in range(8):
        policy.act(np.stack(frames))
        assert np.array_equal(seen[-1], np.stack([one.stack() for one in envs]))
        frames = [one.step(0)[0] for one in envs]
        if step == 4:
            frames[1] = envs[1].reset()[0]
            policy.reset(np.array([False, True, False]))


def test_any_environment_can_be_seen_several_frames_at_a_time() -> None:
    source = find("CartPole-v1", {"frame_stack": 3})
    vector = source.vector(2)
    assert vector.spec.observation.shape == (12,) and vector.snapshots
    first = vector.reset(1).clone()
    assert torch.equal(first[:, :4], first[:, 4:8]) and torch.equal(first[:, :4], first[:, 8:])
    second = vector.step(torch.zeros(2, dtype=torch.int64)).obs
    assert torch.equal(second[:, :4], first[:, 4:8]) and not torch.equal(second[:, 8:], first[:, 8:])
    with pytest.raises(EnvError, match="frame_stack is 0; it must be a whole number of at least 1"):
        find("CartPole-v1", {"frame_stack": 0})


@pytest.mark.parametrize(
    ("shape", "stacked", "axis"),
    [((10, 10, 10), (10, 10, 40), 2), ((7, 7, 20), (7, 7, 80), 2), ((3, 9, 9), (12, 9, 9), 0)],
)
def test_frames_are_joined_where_the_encoder_looks_for_channels(
    shape: tuple[int, ...], stacked: tuple[int, ...], axis: int
) -> None:
    class Grid(Film):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    leaf = GymnasiumVector(Grid, 1, "Grid").spec.observation
    assert (leaf.shape, leaf.axis) == (stacked, axis)


def test_a_single_plane_of_pixels_is_a_picture_of_one_channel() -> None:
    class Plane(Film):
        frame_stack = 1

    vector = GymnasiumVector(Plane, 2, "Plane")
    assert vector.spec.observation.shape == (1, 6, 5) and vector.spec.observation.plane
    assert vector.reset(0).shape == (2, 1, 6, 5)
    policy = SavedPolicy(Idle(vector.spec, None), None)  # type: ignore[arg-type]
    assert policy.act(np.zeros((6, 5), np.uint8)) == 0


@pytest.mark.parametrize("stack", [None, "4", 0, True])
def test_a_stack_that_is_no_number_of_frames_is_told_in_a_sentence(stack: Any) -> None:
    class Odd(Film):
        frame_stack = stack

    with pytest.raises(EnvError, match=r"frame_stack is .*; it must be a whole number of at least 1"):
        GymnasiumVector(Odd, 1, "Odd")


def test_worlds_made_of_tensors_and_registered_ones_answer_to_frame_stack() -> None:
    with pytest.raises(
        EnvError, match="a native environment, which does not support frame_stack; leave it out"
    ):
        find("Quadrotor-v0", {"frame_stack": 2})
    register("environment", "Filmed", lambda: Film("vector"))
    assert find("Filmed", {"frame_stack": 2}).spec(1).observation.shape == (6,)
