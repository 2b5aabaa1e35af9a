"""Hallway, queue and stack: what is shown, what is asked for, what earns, and what memory is worth."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from whorl.core.errors import ConfigError
from whorl.envs.native import WORLDS
from whorl.envs.native.recall import NOTHING, QUESTION, SYMBOL, SYMBOLS, Recall

IDS = ("Hallway-v0", "Queue-v0", "Stack-v0")


def read(world: Recall) -> list[tuple[int, int]]:
    """What each environment is shown, kind and symbol, from its observation alone."""
    found = []
    for row in world.observe(world.state).tolist():
        if row[SYMBOLS]:
            found.append((QUESTION, -1))
        elif any(row):
            found.append((SYMBOL, row.index(1.0)))
        else:
            found.append((NOTHING, -1))
    return found


class Rememberer:
    """Plays from what is shown, with a list as its memory."""

    def __init__(self, newest: bool) -> None:
        self.kept: list[int] = []
        self.newest = newest

    def act(self, kind: int, symbol: int) -> int:
        if kind == SYMBOL:
            self.kept.append(symbol)
        return self.kept.pop(-1 if self.newest else 0) if kind == QUESTION else 0


@pytest.mark.parametrize("id", IDS)
def test_a_list_that_is_filled_and_emptied_in_order_earns_one_and_the_last_answer_ends_the_episode(id: str):
    world = WORLDS[id](20)
    world.reset(0)
    players = [Rememberer(world.order == "stack") for _ in range(20)]
    ended = torch.zeros(20, dtype=torch.bool)
    for _ in range(world.max_steps):
        acted = [player.act(*seen) for player, seen in zip(players, read(world))]
        step = world.step(torch.tensor(acted))
        last = step.terminated & ~ended
        assert torch.allclose(world.returns[last], torch.ones(int(last.sum())))
        assert (step.measures[last] == 1).all()
        assert not step.truncated.any()
        ended |= step.terminated
        for i in step.terminated.nonzero()[:, 0].tolist():
            players[i].kept.clear()
    assert ended.all()


@pytest.mark.parametrize(("id", "other"), [("Queue-v0", True), ("Stack-v0", False)])
def test_the_other_order_earns_less(id: str, other: bool):
    world = WORLDS[id](30)
    world.reset(1)
    players = [Rememberer(other) for _ in range(30)]
    total = torch.zeros(30)
    for _ in range(world.max_steps):
        acted = [player.act(*seen) for player, seen in zip(players, read(world))]
        total += world.step(torch.tensor(acted)).reward
    assert -0.2 < float(total.mean()) < 0.8


@pytest.mark.parametrize("id", IDS)
def test_guessing_returns_minus_a_half(id: str):
    world = WORLDS[id](4000)
    world.reset(0)
    total, over = torch.zeros(4000), torch.zeros(4000, dtype=torch.bool)
    for number in range(world.max_steps):
        guess = torch.randint(SYMBOLS, (4000,), generator=torch.Generator().manual_seed(number))
        step = world.step(guess)
        total += step.reward * ~over
        over |= step.terminated
    assert over.all()
    assert float(total.mean()) == pytest.approx(-0.5, abs=0.03)


def histories(world: Recall, steps: int) -> list[list[int]]:
    """The kinds that each environment is shown before its first episode ends."""
    kinds, over = [], torch.zeros(world.num_envs, dtype=torch.bool)
    for _ in range(steps):
        kinds.append(torch.where(over, -1, world.state["kind"]))
        over |= world.step(torch.zeros(world.num_envs, dtype=torch.int64)).terminated
    return [[k for k in column if k >= 0] for column in torch.stack(kinds, 1).tolist()]


def test_a_hallway_alternates_symbols_and_questions_with_three_to_ten_steps_between():
    world = WORLDS["Hallway-v0"](100)
    world.reset(0)
    gaps: set[int] = set()
    for kinds in histories(world, world.max_steps):
        shown = [place for place, kind in enumerate(kinds) if kind != NOTHING]
        assert [kinds[place] for place in shown] == [SYMBOL, QUESTION] * 8
        gaps |= {b - a - 1 for a, b in pairwise(shown)} | {shown[0]}
    assert gaps == set(range(3, 11))


def test_a_queue_keeps_at_most_four_and_every_symbol_is_asked_for_once():
    world = WORLDS["Queue-v0"](200)
    world.reset(0)
    deepest = set()
    for kinds in histories(world, 32):
        assert kinds.count(SYMBOL) == kinds.count(QUESTION) == 16
        depths = [0]
        for kind in kinds:
            depths.append(depths[-1] + (1 if kind == SYMBOL else -1))
        assert min(depths) == 0 and depths[-1] == 0
        deepest.add(max(depths))
    assert max(deepest) == 4


def test_only_answers_to_questions_are_scored():
    world = Recall(3, items=4, depth=2)
    world.reset(0)
    world.state["kind"].copy_(torch.tensor([NOTHING, SYMBOL, QUESTION]))
    world.state["kept"].copy_(torch.tensor([[2, 2, 2], [3, 3, 3]]))
    step = world.step(torch.tensor([2, 2, 2]))
    assert step.reward.tolist() == [0.0, 0.0, 0.25]
    assert world.state["kept"][0].tolist()[2] == 3 and world.state["asked"].tolist() == [0, 0, 1]


def test_a_stack_asks_for_the_newest():
    world = Recall(2, order="stack", items=4, depth=3)
    world.reset(0)
    world.state["kind"].fill_(QUESTION)
    world.state["kept"].copy_(torch.tensor([[0, 1], [2, 3], [-1, -1]]))
    step = world.step(torch.tensor([2, 1]))
    assert step.reward.tolist() == [0.25, -0.25]
    assert world.state["kept"][:1].tolist() == [[0, 1]]


def test_seen_in_full_a_question_shows_its_answer():
    def answers(world: Recall) -> Tensor:
        return world.observe(world.state)[:, SYMBOLS + 1 :]

    world = Recall(2, observe="full", items=4, depth=2)
    world.reset(0)
    world.state["kind"].copy_(torch.tensor([QUESTION, SYMBOL]))
    world.state["kept"].copy_(torch.tensor([[1, 1], [3, -1]]))
    assert answers(world).tolist() == [[0, 1, 0, 0], [0, 0, 0, 0]]


def test_wrong_options_are_named():
    with pytest.raises(ConfigError, match="choose queue or stack"):
        Recall(1, order="heap")
    with pytest.raises(ConfigError, match="depth is 9 and items 4"):
        Recall(1, depth=9, items=4)
    with pytest.raises(ConfigError, match="the fewest and the most steps"):
        Recall(1, gaps=(5, 2))
