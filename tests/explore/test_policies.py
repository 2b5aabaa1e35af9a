"""A family of policies and the bandit that chooses among them, beside numbers by hand and a plain implementation."""

import math
from collections import deque

import pytest
import torch

from whorl.explore.policies import Bandit, PolicyReturns, betas, gammas


def test_betas_by_hand() -> None:
    assert betas(4, 0.3).tolist() == pytest.approx([0.0, 0.15, 0.3 / (1 + math.exp(-10)), 0.3])
    assert betas(2, 0.3).tolist() == pytest.approx([0.0, 0.3])


def test_a_single_policy_explores() -> None:
    assert betas(1, 0.3).tolist() == pytest.approx([0.3])


def test_gammas_by_hand() -> None:
    assert gammas(3, 0.99, 0.9).tolist() == pytest.approx([0.99, 1 - math.sqrt(1e-3), 0.9])
    assert gammas(1, 0.99, 0.9).tolist() == pytest.approx([0.99])


class Plain:
    """One environment's sliding-window UCB, with lists."""

    def __init__(self, arms: int, window: int, beta: float) -> None:
        self.arms, self.beta, self.count = arms, beta, 0
        self.seen: deque[tuple[int, float]] = deque(maxlen=window)

    def add(self, arm: int, value: float) -> None:
        self.seen.append((arm, value))
        self.count += 1

    def choose(self) -> int:
        if self.count < self.arms:
            return self.count
        scores = []
        for arm in range(self.arms):
            values = [value for other, value in self.seen if other == arm]
            bonus = self.beta * math.sqrt(1 / len(values)) if values else math.inf
            scores.append((sum(values) / len(values) if values else 0.0) + bonus)
        return scores.index(max(scores))


def test_ucb_equals_a_plain_implementation() -> None:
    bandit, plain = Bandit(4, 6, 1.0, 0.0), [Plain(4, 6, 1.0) for _ in range(3)]
    generator = torch.Generator().manual_seed(0)
    state, unseen = bandit.initial(3), 0
    for _ in range(80):
        arms = bandit.choose(state, generator)
        assert arms.tolist() == [one.choose() for one in plain]
        values = torch.rand(3, generator=generator) * torch.tensor([1.0, 5.0, 0.1]) + arms * 0.3
        ended = torch.rand(3, generator=generator) < 0.7
        state = bandit.add(state, ended, arms, values)
        unseen += int(bandit.scores(state).isinf().any() & (state["count"] > 4).any())
        for number, one in enumerate(plain):
            if ended[number]:
                one.add(int(arms[number]), float(values[number]))
    assert unseen > 5, "arms without visits in the window were among them"


def test_some_arms_are_random() -> None:
    bandit, generator = Bandit(5, 10, 1.0, 1.0), torch.Generator().manual_seed(0)
    state = bandit.initial(2000)
    state["count"] += 10
    drawn = bandit.choose(state, generator).bincount(minlength=5)
    assert drawn.min() > 300


def test_evaluation_takes_the_policy_with_the_best_recent_returns() -> None:
    returns = PolicyReturns(3)
    assert returns.best() == 0
    returns.add_(torch.tensor([[2, -1], [1, -1]]), torch.tensor([[-5.0, 90.0], [-7.0, 90.0]]))
    assert returns.best() == 2 and returns.count.tolist() == [0, 1, 1]
    assert returns.mean.tolist() == [0.0, -7.0, -5.0]
    returns.add_(torch.tensor([1, 1]), torch.tensor([3.0, 5.0]))  # 0.81 * -7 + 0.19 * 4
    assert returns.mean.tolist() == pytest.approx([0.0, -4.91, -5.0])
    assert returns.best() == 1
