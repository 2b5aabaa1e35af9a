"""Symbols to be named from memory: what is asked, what it earns, with whole episodes played."""

import pytest
import torch

from whorl.envs.native.repeat import RepeatFirst, RepeatPrevious


def symbols(obs: torch.Tensor) -> torch.Tensor:
    assert (obs.sum(1) == 1).all()
    return obs.argmax(1)


def test_the_symbol_of_so_many_steps_ago_is_asked_for():
    world = RepeatPrevious(1, delay=2, max_steps=5)
    shown, rewards = [int(symbols(world.reset(0)))], []
    for t in range(5):
        asked = shown[max(t - 2, 0)]
        named = asked if t != 3 else (asked + 1) % 4  # the fourth answer is wrong
        step = world.step(torch.tensor([named]))
        shown.append(int(symbols(step.obs)))
        rewards.append(float(step.reward))
    # Steps 3, 4 and 5 ask for symbols 1, 2 and 3: a third each.
    assert rewards == pytest.approx([0, 0, 1 / 3, -1 / 3, 1 / 3])
    assert step.truncated.all() and not step.terminated.any()


def test_perfect_memory_returns_one_and_silence_in_the_first_steps_costs_nothing():
    world = RepeatPrevious(100)
    past = [symbols(world.reset(0))]
    total = torch.zeros(100)
    for t in range(64):
        step = world.step(past[t - 4] if t >= 4 else torch.zeros(100, dtype=torch.int64))
        past.append(symbols(step.obs))
        total += step.reward
    assert step.truncated.all()
    torch.testing.assert_close(total, torch.ones(100))


def test_guessing_returns_minus_a_half():
    world = RepeatPrevious(5000)
    world.reset(0)
    total = sum(world.step(torch.zeros(5000, dtype=torch.int64)).reward for _ in range(64))
    assert float(total.mean()) == pytest.approx(0.25 - 0.75, abs=0.01)


def test_the_first_symbol_is_asked_for_at_every_step():
    world = RepeatFirst(100)
    first = symbols(world.reset(0))
    rewards = [world.step(first).reward for _ in range(64)]
    assert all((reward == 1 / 64).all() for reward in rewards)
    world.step(first)  # resets
    second = world.state["symbols"][0].clone()
    assert not torch.equal(first, second)
    assert torch.equal(world.step(second).reward > 0, torch.ones(100, dtype=torch.bool))


def test_every_symbol_is_as_likely_at_every_step():
    world = RepeatFirst(20000)
    world.reset(0)
    for _ in range(2):
        shown = symbols(world.step(torch.zeros(20000, dtype=torch.int64)).obs)
        assert (torch.bincount(shown, minlength=4) / 20000).tolist() == pytest.approx([0.25] * 4, abs=0.015)


def test_seen_in_full_the_symbol_asked_for_is_there_too():
    world = RepeatPrevious(1, observe="full", delay=1)
    first = world.reset(0)[0]
    assert (first[4:] == 0).all()  # none yet
    second = world.step(torch.tensor([0])).obs[0]
    assert torch.equal(second[4:], first[:4])


def test_a_window_over_the_delay_shows_what_is_asked_for():
    world = RepeatPrevious(50, concat=5)
    obs = world.reset(0)
    for t in range(64):
        step = world.step(obs[:, :4].argmax(1))
        assert (step.reward > 0).all() == (t >= 4)
        obs = step.obs
