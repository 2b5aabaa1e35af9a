"""Evaluation: every environment plays its share, greedily, with the newest weights and seeds of its own."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from whorl.agents.agent import Acted, Context
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.run import evaluate
from whorl.run.evaluate import Evaluator, run_episodes
from whorl.state.streams import Streams


class Short(gymnasium.Env):
    """The first copy terminates after one step, the second is truncated after three; the reward is the action."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    measures = ("rooms", "untold")
    made = count()

    def __init__(self) -> None:
        self.second = next(Short.made) % 2 == 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        first, second = not self.second, self.second and self.t == 3
        return np.zeros(1, np.float32), float(action), first, second, {"rooms": 2 * self.t}


class Greedy:
    """Action 1 where it is to be greedy."""

    device = torch.device("cpu")

    tracks = False

    def begin(self, obs: Tree, collecting: bool) -> Tree:
        return {}

    def follow(self, memory: Tree, *row: Any) -> tuple[Tree, dict[str, Any]]:
        return memory, {}

    def act_tracked(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return Acted(torch.full((len(obs),), int(context.greedy)), memory)


def played(episodes: int, **options: Any) -> evaluate.Evaluation:
    Short.made = count()
    agent: Any = Greedy()
    steps = count()

    def watch(*_: Any) -> None:
        assert next(steps) < 50, "an episode never ends"

    return run_episodes(agent, GymnasiumVector(Short, 2, "Short"), episodes, 0, watch=watch, **options)


def test_long_episodes_count_as_often_as_short_ones() -> None:
    found = played(4)
    assert sorted(found.lengths) == [1, 1, 3, 3]
    assert sorted(found.returns) == [1, 1, 3, 3]
    assert (found.mean_return, found.mean_length, found.std) == (2, 2, 1)


def test_measures_are_means_over_the_ends_of_episodes() -> None:
    found = played(4)
    assert found.measures == {"rooms": 4.0}, "2 and 6"
    assert found.metrics()["evaluation/rooms"] == 4.0
    assert found.success_rate is None


def test_actions_are_greedy_unless_told_otherwise() -> None:
    assert played(2, deterministic=False).returns == [0, 0]


def test_every_evaluation_has_the_newest_weights_and_a_seed_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[Any] = []
    monkeypatch.setattr(
        evaluate,
        "make_vector",
        lambda source, num_envs, *rest: SimpleNamespace(
            spec=Spec(None, None, num_envs), close=lambda: events.append("closed")
        ),
    )
    monkeypatch.setattr(
        evaluate, "run_episodes", lambda policy, env, episodes, seed, **_: events.append((episodes, seed))
    )
    run = SimpleNamespace(
        n_eval_episodes=5,
        num_envs=2,
        workers=0,
        compile=False,
        env_timeout=0.0,
        eval_max_steps=9,
        render=False,
    )
    streams = Streams(3)
    parts: Any = SimpleNamespace(
        settings=SimpleNamespace(run=run),
        acting=SimpleNamespace(policy=Greedy()),
        send_weights=lambda: events.append("weights"),
        streams=streams,
    )
    source: Any = SimpleNamespace(world=None, num_envs=0)
    source.evaluated = source
    evaluator = Evaluator(source, parts)
    evaluator.evaluate(0, 7)
    evaluator.evaluate(0, 8)
    seeds = [streams.seed("eval", str(iteration)) for iteration in (7, 8)]
    assert seeds[0] != seeds[1]
    assert events == ["weights", (5, seeds[0]), "weights", (5, seeds[1])]
