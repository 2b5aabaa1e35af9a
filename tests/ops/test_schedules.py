"""Schedules: factors as functions of the progress of a run."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.core.registry import Part, register
from whorl.core.spec import Array, Discrete, Spec
from whorl.ops.schedules import schedule
from whorl.settings.merge import configure
from whorl.state.policy import build_agent

pytestmark = pytest.mark.usefixtures("own_registry")


def factor(part: Any, progress: float) -> float:
    return float(schedule(Part.of(part))(torch.tensor(progress)))


@pytest.mark.parametrize(
    ("part", "progress", "expected"),
    [
        ("constant", 0.7, 1.0),
        ("linear", 0.25, 0.75),
        ({"class": "linear", "end": 0.5}, 0.5, 0.75),
        ("cosine", 0.5, 0.5),
        ("cosine", 0.25, 0.5 * (1 + math.cos(math.pi / 4))),
        ({"class": "cosine", "end": 0.5}, 1.0, 0.5),
        ({"class": "warmup", "fraction": 0.2}, 0.1, 0.5),
        ({"class": "warmup", "fraction": 0.2}, 0.6, 1.0),
        ({"class": "warmup", "fraction": 0.2, "then": "linear"}, 0.6, 0.5),
        ({"class": "warmup", "fraction": 0.2, "then": {"class": "linear", "end": 0.5}}, 1.0, 0.5),
    ],
)
def test_factors(part: Any, progress: float, expected: float) -> None:
    assert factor(part, progress) == pytest.approx(expected, abs=1e-6)


def test_linear_is_one_minus_progress_to_the_last_bit() -> None:
    progress = torch.rand(100)
    assert torch.equal(0.3 * schedule(Part("linear"))(progress[3]), 0.3 * (1 - progress[3]))


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ({"class": "warmup", "fraction": 2}, "fraction is 2; it must be between 0 and 1"),
        ({"class": "linear", "finish": 2}, "unexpected keyword argument 'finish'"),
        ("lnear", "no schedule is called 'lnear'; did you mean 'linear'"),
        ("flat", "it must return a tensor of one number"),
    ],
)
def test_a_schedule_that_can_not_be_used_is_one_sentence(part: Any, sentence: str) -> None:
    register("schedule", "flat", lambda progress: 1.0)
    with pytest.raises(ConfigError, match=sentence):
        schedule(Part.of(part))


def halved(progress: Tensor, below: float = 0.5) -> Tensor:
    return torch.where(progress < below, 1.0, 0.5)


def agent(**settings: Any) -> Any:
    return build_agent(configure("ppo", "X", settings), Spec(Array((4,)), Discrete(2), num_envs=2))


@pytest.mark.parametrize("given", ["halved", halved, {"class": f"{__name__}.halved", "below": 0.5}])
def test_a_schedule_of_ones_own_sets_the_learning_rates(given: Any) -> None:
    if given == "halved":
        register("schedule", "halved", halved)
    found = agent(lr_schedule=given, learning_rate=0.5)
    for progress, expected in ((0.25, 0.5), (0.75, 0.25)):
        found.progress.fill_(progress)
        found.anneal()
        assert found.lr_actor.item() == found.lr_critic.item() == expected


def test_a_function_that_can_not_be_found_again_is_refused() -> None:
    with pytest.raises(ConfigError, match="define it at the top level of a module, or register it"):
        agent(lr_schedule=lambda progress: 1 - progress)


def test_a_constant_rate_is_left_as_it_is() -> None:
    found = agent()
    found.lr_actor.fill_(0.5)  # what the KL schedule does
    found.anneal()
    assert found.lr_actor.item() == 0.5
